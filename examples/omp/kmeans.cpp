// K-means on images: clusters the pixels of each image by colour and place, and stores centres and labels.
//
//     kmeans WHERE [--clusters K --iterations N --tolerance RMSE --batch N --chunk N --expect HASH]
#include <cmath>
#include <limits>

#include "image.h"
#include "program.h"

namespace {

constexpr const char *kUsage =
    "kmeans WHERE [--clusters K] [--iterations N] [--tolerance RMSE] [--batch N] [--chunk N] [--expect HASH]\n"
    "  --clusters K        clusters of each image, up to 255 [8]\n"
    "  --iterations N      most iterations for an image [20]\n"
    "  --tolerance RMSE    ends where the centres move less than this, on a scale of 0 to 1 [0.01]\n"
    "  --batch N           images of a parallel region [256]\n"
    "  --chunk N           images that a thread loads together [32]\n";

constexpr size_t kFeatures = 5;

struct Settings {
  size_t clusters, iterations;
  double tolerance;
};

// Red, green, blue, x, y of each pixel, each from 0 to 1.
std::vector<float> features_of(const Image &image) {
  std::vector<float> features;
  features.reserve(kFeatures * image.width * image.height);
  const uint8_t *pixel = image.rgb.data();
  for (unsigned y = 0; y < image.height; y++) {
    for (unsigned x = 0; x < image.width; x++) {
      for (int part = 0; part < 3; part++) features.push_back(static_cast<float>(*pixel++) / 255);
      features.push_back(static_cast<float>(x) / static_cast<float>(image.width));
      features.push_back(static_cast<float>(y) / static_cast<float>(image.height));
    }
  }
  return features;
}

size_t closest(const float *pixel, const std::vector<float> &centres) {
  size_t best = 0;
  float least = std::numeric_limits<float>::max();
  for (size_t cluster = 0; cluster * kFeatures < centres.size(); cluster++) {
    float distance = 0;
    for (size_t at = 0; at < kFeatures; at++) {
      float difference = pixel[at] - centres[cluster * kFeatures + at];
      distance += difference * difference;
    }
    if (distance < least) least = distance, best = cluster;
  }
  return best;
}

// The centres, and the cluster of each pixel: one byte each, in the order of the pixels.
Bytes cluster(const std::vector<float> &features, const Settings &settings) {
  size_t pixels = features.size() / kFeatures;
  size_t clusters = std::min(settings.clusters, pixels);
  std::vector<float> centres;
  for (size_t at = 0; at < clusters; at++) {
    const float *pixel = &features[kFeatures * (at * pixels / clusters + pixels / (2 * clusters))];
    centres.insert(centres.end(), pixel, pixel + kFeatures);
  }
  Bytes labels(pixels);
  for (size_t iteration = 0; iteration < settings.iterations; iteration++) {
    std::vector<double> sums(clusters * kFeatures);
    std::vector<size_t> counts(clusters);
    for (size_t pixel = 0; pixel < pixels; pixel++) {
      size_t found = closest(&features[pixel * kFeatures], centres);
      labels[pixel] = static_cast<uint8_t>(found);
      counts[found]++;
      for (size_t at = 0; at < kFeatures; at++) sums[found * kFeatures + at] += features[pixel * kFeatures + at];
    }
    double moved = 0;
    for (size_t at = 0; at < sums.size(); at++) {
      // A cluster without pixels stays where it is.
      size_t count = counts[at / kFeatures];
      auto centre = count == 0 ? centres[at] : static_cast<float>(sums[at] / static_cast<double>(count));
      moved += (centre - centres[at]) * (centre - centres[at]);
      centres[at] = centre;
    }
    if (std::sqrt(moved / static_cast<double>(clusters)) < settings.tolerance) break;
  }
  Bytes result;
  append(result, centres.data(), centres.size());
  append(result, labels.data(), labels.size());
  return result;
}

void work_on(Program &program, const std::vector<std::string> &names, const Settings &settings) {
  std::vector<Object> results;
  program.load(names, false, [&](size_t index, const uint8_t *value, size_t length) {
    std::vector<float> features;
    {
      Timer timer(program, kPrepare);
      features = features_of(decode(names[index], value, length));
    }
    Timer timer(program, kCompute);
    results.push_back({"kmeans/" + names[index].substr(names[index].find('/') + 1), cluster(features, settings)});
  });
  program.store(results);
}

}  // namespace

int main(int argc, char **argv) {
  Program program(argc, argv, 1, kUsage);
  Settings settings{};
  settings.clusters = std::clamp<size_t>(static_cast<size_t>(program.number("clusters", 8)), 1, 255);
  settings.iterations = static_cast<size_t>(program.number("iterations", 20));
  settings.tolerance = program.number("tolerance", 0.01);
  auto batch = std::max<size_t>(1, static_cast<size_t>(program.number("batch", 256)));
  auto chunk = std::max<size_t>(1, static_cast<size_t>(program.number("chunk", 32)));
  program.open(0);
  for (const auto &images : parts_of(program.list("image/"), batch)) {
    Region region("images", images.size());
    auto chunks = parts_of(images, chunk);
#pragma omp parallel for schedule(dynamic)
    for (size_t at = 0; at < chunks.size(); at++) work_on(program, chunks[at], settings);
  }
  return program.finish("kmeans", "kmeans/");
}
