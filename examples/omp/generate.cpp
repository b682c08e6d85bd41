// Inputs from a seed: images and matrices as objects, a graph as an edge list.
//
//     generate WHERE images COUNT | generate WHERE matrix TILES | generate FILE graph SCALE
#include <cmath>
#include <cstdio>

#include "image.h"
#include "program.h"

namespace {

constexpr const char *kUsage =
    "generate WHERE images COUNT [--width N --height N --seed N]     stores image/000000.jpg, image/000001.png, ...\n"
    "generate WHERE matrix TILES [--tile N --seed N]                 stores A and B of TILES x TILES tiles of N x N numbers\n"
    "generate FILE graph SCALE [--edges N --seed N]                  writes N edges for each of 2^SCALE nodes, as SNAP does\n";

// Objects that one call stores.
constexpr size_t kStored = 64;

// Discs on a gradient with noise: clusters that k-means can find.
Image draw(unsigned width, unsigned height, Random random) {
  struct Disc {
    double x, y, radius;
    double colour[3];
  };
  std::vector<Disc> discs(6);
  for (Disc &disc : discs) {
    disc = {random.unit() * width, random.unit() * height, (0.1 + 0.2 * random.unit()) * width, {}};
    for (double &part : disc.colour) part = 255 * random.unit();
  }
  Image image{width, height, Bytes(size_t{3} * width * height)};
  uint8_t *pixel = image.rgb.data();
  for (unsigned y = 0; y < height; y++) {
    for (unsigned x = 0; x < width; x++) {
      double colour[3] = {60.0 + 60 * x / width, 60.0 + 60 * y / height, 90};
      for (const Disc &disc : discs) {
        if (std::hypot(x - disc.x, y - disc.y) < disc.radius) std::copy_n(disc.colour, 3, colour);
      }
      for (double part : colour) *pixel++ = static_cast<uint8_t>(std::clamp(part + 24 * random.unit() - 12, 0.0, 255.0));
    }
  }
  return image;
}

void images(Program &program, size_t count) {
  auto width = static_cast<unsigned>(program.number("width", 160)), height = static_cast<unsigned>(program.number("height", 120));
  auto seed = static_cast<uint64_t>(program.number("seed", 1));
  std::vector<Object> objects;
  for (size_t at = 0; at < count; at++) {
    Image image = draw(width, height, Random(seed * 1000003 + at));
    bool is_png = at % 4 == 3;
    objects.push_back({numbered("image/", at, 6, is_png ? ".png" : ".jpg"), is_png ? encode_png(image) : encode_jpeg(image)});
    if (objects.size() == kStored || at + 1 == count) {
      program.store(objects);
      objects.clear();
    }
  }
}

void matrix(Program &program, size_t tiles) {
  auto tile = static_cast<size_t>(program.number("tile", 64));
  auto seed = static_cast<uint64_t>(program.number("seed", 1));
  for (const char *name : {"matrix/A/", "matrix/B/"}) {
    for (size_t row = 0; row < tiles; row++) {
      std::vector<Object> objects;
      for (size_t column = 0; column < tiles; column++) {
        Random random(seed + 1009 * row + 1000003 * column + (name[7] == 'B' ? 7919 : 0));
        std::vector<double> values(tile * tile);
        for (double &value : values) value = 2 * random.unit() - 1;
        Object object{numbered(numbered(name, row, 4, "/").c_str(), column, 4), {}};
        append(object.value, values.data(), values.size());
        objects.push_back(std::move(object));
      }
      program.store(objects);
    }
  }
}

// An R-MAT graph with the usual 0.57, 0.19, 0.19, 0.05.
void graph(Program &program, unsigned scale) {
  auto edges = static_cast<uint64_t>(program.number("edges", 8)) << scale;
  Random random(static_cast<uint64_t>(program.number("seed", 1)));
  const std::string &path = program.argument(0);
  std::FILE *file = std::fopen(path.c_str(), "w");
  if (!file) fail(path + " cannot be written");
  std::fprintf(file, "# R-MAT graph, scale %u\n# FromNodeId\tToNodeId\n", scale);
  for (uint64_t edge = 0; edge < edges; edge++) {
    uint64_t from = 0, to = 0;
    for (unsigned bit = 0; bit < scale; bit++) {
      double where = random.unit();
      from = from << 1 | (where >= 0.76);
      to = to << 1 | ((where >= 0.57 && where < 0.76) || where >= 0.95);
    }
    std::fprintf(file, "%llu\t%llu\n", static_cast<unsigned long long>(from), static_cast<unsigned long long>(to));
  }
  if (std::fclose(file) != 0) fail(path + " could not be written");
}

}  // namespace

int main(int argc, char **argv) {
  Program program(argc, argv, 3, kUsage);
  const std::string what = program.argument(1);
  auto size = std::strtoul(program.argument(2).c_str(), nullptr, 10);
  if (what == "graph" && size >= 1 && size < 32) {
    graph(program, static_cast<unsigned>(size));
    return 0;
  }
  if ((what != "images" && what != "matrix") || size == 0) fail(what + ' ' + program.argument(2) + ": see --help");
  program.open(0);
  what == "images" ? images(program, size) : matrix(program, size);
  return program.finish("generate", what == "images" ? "image/" : "matrix/");
}
