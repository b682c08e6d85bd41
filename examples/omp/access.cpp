// Stores and loads objects of one size: rates, and how long each access took.
//
//     access WHERE --operation store|load [--size BYTES --count N --passes N --part N --latencies FILE]
#include <omp.h>

#include <algorithm>
#include <cstdio>

#include "program.h"

namespace {

constexpr const char *kUsage =
    "access WHERE --operation OPERATION [--size BYTES] [--count N] [--passes N] [--part N] [--latencies FILE]\n"
    "  --operation OP      store, or load what was stored\n"
    "  --size BYTES        bytes of each object [28000]\n"
    "  --count N           objects [1000]\n"
    "  --passes N          loads everything so many times; the last one is reported [1]\n"
    "  --part N            objects that a thread gives over together; with 1 each access is timed [1]\n"
    "  --latencies FILE    microseconds of each part, ascending, one per line\n";

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

struct Load {
  size_t size, count, part;
};

// What no compressor and no drive could save.
Bytes value_of(size_t number, size_t size) {
  Random random(number);
  Bytes value(size);
  for (size_t at = 0; at < size; at += 8) {
    uint64_t word = random.next();
    std::copy_n(reinterpret_cast<uint8_t *>(&word), std::min<size_t>(8, size - at), &value[at]);
  }
  return value;
}

// One pass over all objects in a random order; how many microseconds each part took.
std::vector<double> pass(Program &program, bool stores, const Load &load) {
  std::vector<size_t> order(load.count);
  for (size_t at = 0; at < load.count; at++) order[at] = at;
  Random random(load.count);
  for (size_t at = load.count; at > 1; at--) std::swap(order[at - 1], order[random.next() % at]);
  auto parts = parts_of(order, load.part);
  std::vector<double> took(parts.size());
  Region region(stores ? "store" : "load", load.count);
#pragma omp parallel for schedule(dynamic)
  for (size_t at = 0; at < parts.size(); at++) {
    std::vector<std::string> names;
    for (size_t number : parts[at]) names.push_back(numbered("object/", number, 9));
    if (stores) {
      std::vector<Object> objects;
      for (size_t which = 0; which < names.size(); which++)
        objects.push_back({names[which], value_of(parts[at][which], load.size)});
      auto begin = Clock::now();
      program.store(objects);
      took[at] = seconds_since(begin) * 1e6;
      continue;
    }
    auto begin = Clock::now();
    program.load(names, false, [&](size_t index, const uint8_t *value, size_t length) {
      Random first(parts[at][index]);
      uint64_t word = first.next();
      if (length != load.size || !std::equal(value, value + std::min<size_t>(8, length), reinterpret_cast<uint8_t *>(&word)))
        fail(names[index] + ": this is not what was stored");
    });
    took[at] = seconds_since(begin) * 1e6;
  }
  return took;
}

}  // namespace

int main(int argc, char **argv) {
  Program program(argc, argv, 1, kUsage);
  std::string operation = program.text("operation", "");
  if (operation != "store" && operation != "load") fail("--operation: store or load");
  auto whole = [&](const char *name, double otherwise) {
    return std::max<size_t>(1, static_cast<size_t>(program.number(name, otherwise)));
  };
  Load load{whole("size", 28000), whole("count", 1000), whole("part", 1)};
  size_t passes = whole("passes", 1);
  std::string latencies = program.text("latencies", "");
  program.open(0);
  std::vector<double> took;
  double seconds = 0;
  for (size_t at = 0; at < passes; at++) {
    auto begin = Clock::now();
    took = pass(program, operation == "store", load);
    seconds = seconds_since(begin);
  }
  std::sort(took.begin(), took.end());
  auto share = [&](double of) { return took[std::min(took.size() - 1, static_cast<size_t>(of * static_cast<double>(took.size())))]; };
  double rate = static_cast<double>(load.count) / seconds;
  std::printf("operation %s\nobjects_per_s %.1f\nmib_per_s %.1f\n", operation.c_str(), rate,
              rate * static_cast<double>(load.size) / 1048576);
  std::printf("p50_us %.0f\np90_us %.0f\np99_us %.0f\nmax_us %.0f\n", share(0.5), share(0.9), share(0.99), took.back());
  if (!latencies.empty()) {
    FILE *file = std::fopen(latencies.c_str(), "w");
    if (file == nullptr) fail(latencies + ": cannot be written");
    for (double microseconds : took) std::fprintf(file, "%.1f\n", microseconds);
    if (std::fclose(file) != 0) fail(latencies + ": cannot be written");
  }
  return program.finish("access", "none/");
}
