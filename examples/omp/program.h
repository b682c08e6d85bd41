// What the programs have in common: options, the breakdown of their time, the hash of their results.
#pragma once

#include <isobath_omp.h>

#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <string>

#include "objects.h"

// Where the time of compute threads goes (paper 004, Fig. 8).
enum Phase { kCreate, kMap, kWait, kPrepare, kCompute, kStore, kPhases };

// Options as "--name value", and what is no option.
class Program {
 public:
  // Begins the session. `usage` is printed for --help, and where arguments are missing.
  Program(int argc, char **argv, size_t arguments, const char *usage);

  const std::string &argument(size_t at) const { return arguments_[at]; }
  // An option's value, or what it is without one.
  double number(const std::string &name, double otherwise);
  std::string text(const std::string &name, const std::string &otherwise);

  // Opens the objects at an argument, and counts the time as create.
  Objects &open(size_t at);
  // Names of objects, counted as map.
  std::vector<std::string> list(const std::string &prefix);
  // Loads objects; what is not spent in `work` is waiting.
  void load(const std::vector<std::string> &names, bool in_order, const Work &work);
  // Stores objects, counted as store.
  void store(const std::vector<Object> &objects);

  void count(Phase phase, double seconds);
  // Hashes the objects of a prefix, prints the breakdown, ends the session; the program's exit code: 1 where the option
  // --expect gives another hash.
  int finish(const char *name, const std::string &prefix);

 private:
  std::map<std::string, std::string> options_;
  std::vector<std::string> arguments_;
  std::unique_ptr<Objects> objects_;
  std::array<std::atomic<int64_t>, kPhases> nanoseconds_{};
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

// Counts the time until its end for a phase.
class Timer {
 public:
  Timer(Program &program, Phase phase) : program_(program), phase_(phase) {}
  ~Timer() { program_.count(phase_, seconds()); }
  Timer(const Timer &) = delete;
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count(); }

 private:
  Program &program_;
  Phase phase_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

// A parallel region with a name: sets its threads.
class Region {
 public:
  explicit Region(const char *name, uint64_t items = 0) : items_(items) { isobath_omp_begin(name); }
  ~Region() { isobath_omp_end(items_); }
  Region(const Region &) = delete;

 private:
  uint64_t items_;
};

// The same numbers for the same seed, everywhere (SplitMix64).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  // From 0 to 1, without 1.
  double unit() { return static_cast<double>(next() >> 11) / static_cast<double>(uint64_t{1} << 53); }

 private:
  uint64_t state_;
};

// A name with a number of so many digits.
std::string numbered(const char *prefix, size_t number, int digits, const char *suffix = "");

// Parts of a list, each of at most `size` elements.
template <typename T>
std::vector<std::vector<T>> parts_of(const std::vector<T> &all, size_t size) {
  std::vector<std::vector<T>> parts;
  for (size_t at = 0; at < all.size(); at += size)
    parts.emplace_back(all.begin() + at, all.begin() + std::min(all.size(), at + size));
  return parts;
}

template <typename T>
void append(Bytes &bytes, const T *values, size_t count) {
  const auto *from = reinterpret_cast<const uint8_t *>(values);
  bytes.insert(bytes.end(), from, from + count * sizeof(T));
}
