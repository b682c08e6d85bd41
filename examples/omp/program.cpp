#include "program.h"

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

const char *const kPhaseNames[kPhases] = {"create", "map", "wait", "prepare", "compute", "store"};

// Objects that one hash step loads.
constexpr size_t kHashed = 64;

uint64_t hash(uint64_t state, const void *bytes, size_t length) {
  // FNV-1a.
  for (size_t at = 0; at < length; at++) state = (state ^ static_cast<const uint8_t *>(bytes)[at]) * 0x100000001B3u;
  return state;
}

}  // namespace

void fail(const std::string &message) {
  std::fprintf(stderr, "error: %s\n", message.c_str());
  std::exit(1);
}

Program::Program(int argc, char **argv, size_t arguments, const char *usage) {
  if (isobath_omp_init(&argc, argv) != KVS_SUCCESS) fail(kvs_isobath_last_error());
  for (int at = 1; at < argc; at++) {
    std::string word = argv[at];
    if (word == "--help") {
      std::printf("%s%s", usage, isobath_omp_help());
      std::exit(0);
    }
    if (word.compare(0, 2, "--") != 0) {
      arguments_.push_back(word);
    } else if (at + 1 < argc) {
      options_[word.substr(2)] = argv[++at];
    } else {
      fail(word + ": a value must follow");
    }
  }
  if (arguments_.size() != arguments) {
    std::fprintf(stderr, "%s", usage);
    std::exit(2);
  }
}

double Program::number(const std::string &name, double otherwise) {
  std::string found = text(name, "");
  if (found.empty()) return otherwise;
  char *end;
  double value = std::strtod(found.c_str(), &end);
  if (*end != 0 || value < 0) fail("--" + name + ": " + found + " is no such number");
  return value;
}

std::string Program::text(const std::string &name, const std::string &otherwise) {
  auto found = options_.find(name);
  return found == options_.end() ? otherwise : found->second;
}

Objects &Program::open(size_t at) {
  Timer timer(*this, kCreate);
  objects_ = open_objects(argument(at));
  return *objects_;
}

std::vector<std::string> Program::list(const std::string &prefix) {
  Timer timer(*this, kMap);
  return objects_->list(prefix);
}

void Program::load(const std::vector<std::string> &names, bool in_order, const Work &work) {
  auto now = [] { return std::chrono::steady_clock::now(); };
  auto begin = now();
  std::chrono::steady_clock::duration worked{};
  objects_->load(names, in_order, [&](size_t index, const uint8_t *value, size_t length) {
    auto before = now();
    work(index, value, length);
    worked += now() - before;
  });
  count(kWait, std::chrono::duration<double>(now() - begin - worked).count());
}

void Program::store(const std::vector<Object> &objects) {
  Timer timer(*this, kStore);
  objects_->store(objects);
}

void Program::count(Phase phase, double seconds) { nanoseconds_[phase] += static_cast<int64_t>(seconds * 1e9); }

int Program::finish(const char *name, const std::string &prefix) {
  std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin_;
  double access = objects_->access_seconds();
  std::printf("program %s\nobjects %s\nelapsed_s %.3f\naccess_s %.3f\n", name, objects_->kind(), elapsed.count(), access);
  for (int phase = 0; phase < kPhases; phase++)
    std::printf("%s_s %.3f\n", kPhaseNames[phase], static_cast<double>(nanoseconds_[phase]) / 1e9);

  std::vector<std::string> names = objects_->list(prefix);
  uint64_t state = 0xCBF29CE484222325u;
  for (const auto &part : parts_of(names, kHashed)) {
    objects_->load(part, true, [&](size_t index, const uint8_t *value, size_t length) {
      state = hash(state, part[index].data(), part[index].size());
      state = hash(state, value, length);
    });
  }
  objects_->close();
  if (isobath_omp_finish() != KVS_SUCCESS) fail(kvs_isobath_last_error());
  char text[17];
  std::snprintf(text, sizeof text, "%016" PRIx64, state);
  std::printf("results %zu\nhash %s\n", names.size(), text);
  std::string expected = this->text("expect", text);
  if (expected != text) {
    std::fprintf(stderr, "error: the results are not those that were expected, %s\n", expected.c_str());
    return 1;
  }
  return 0;
}

std::string numbered(const char *prefix, size_t number, int digits, const char *suffix) {
  char text[64];
  std::snprintf(text, sizeof text, "%s%0*zu%s", prefix, digits, number, suffix);
  return text;
}
