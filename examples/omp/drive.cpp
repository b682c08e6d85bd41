// The drive alone: what storing one object durably costs at least, one after the other, and what a file for each costs.
//
//     drive DIRECTORY COUNT
//
// DIRECTORY is on the drive to measure; files in it are made and stay.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr size_t kObject = 28 << 10, kRecord = 4 << 10, kStep = 1 << 20;
constexpr size_t kVolume = 256 << 20, kLog = 16 << 20;

using Clock = std::chrono::steady_clock;

void check(bool is_good, const std::string &what) {
  if (is_good) return;
  std::fprintf(stderr, "error: %s: %s\n", what.c_str(), std::strerror(errno));
  std::exit(1);
}

// Runs something `count` times, and prints its rate and latencies.
void measure(const char *what, size_t count, const std::function<void(size_t)> &work) {
  std::vector<double> took;
  for (size_t at = 0; at < count; at++) {
    auto begin = Clock::now();
    work(at);
    took.push_back(std::chrono::duration<double>(Clock::now() - begin).count() * 1e6);
  }
  double all = 0;
  for (double one : took) all += one;
  std::sort(took.begin(), took.end());
  std::printf("%-52s %6.0f per second, p50 %5.0f us, p90 %5.0f us, p99 %5.0f us\n", what, static_cast<double>(count) / all * 1e6,
              took[count / 2], took[count * 9 / 10], took[count * 99 / 100]);
}

// A file whose blocks have all been written.
int written(const std::string &path, size_t bytes, const uint8_t *memory) {
  int file = open(path.c_str(), O_RDWR | O_CREAT | O_DIRECT, 0666);
  check(file >= 0, path);
  for (size_t at = 0; at < bytes; at += kStep)
    check(pwrite(file, memory, kStep, static_cast<off_t>(at)) == static_cast<ssize_t>(kStep), path);
  check(fsync(file) == 0, path);
  return file;
}

}  // namespace

int main(int argc, char **argv) {
  if (argc != 3 || std::atoi(argv[2]) < 1) {
    std::fprintf(stderr, "drive DIRECTORY COUNT\n");
    return 2;
  }
  std::string directory = argv[1];
  auto count = static_cast<size_t>(std::atoi(argv[2]));
  void *aligned = nullptr;
  check(posix_memalign(&aligned, 4096, kStep) == 0, "memory");
  auto *memory = static_cast<uint8_t *>(aligned);
  std::memset(memory, 7, kStep);
  int volume = written(directory + "/volume", kVolume, memory), log = written(directory + "/log", kLog, memory);

  auto object = [&](size_t at) {
    off_t place = static_cast<off_t>(at * kObject % (kVolume - kObject) / 4096 * 4096);
    check(pwrite(volume, memory, kObject, place) == static_cast<ssize_t>(kObject), "volume");
  };
  auto record = [&](size_t at, int flags) {
    iovec part{memory, kRecord};
    check(pwritev2(log, &part, 1, static_cast<off_t>(at * kRecord % kLog), flags) == static_cast<ssize_t>(kRecord), "log");
  };
  auto flush = [&] { check(fdatasync(volume) == 0, "volume"); };
  measure("flush, nothing written", count, [&](size_t) { flush(); });
  measure("object", count, object);
  measure("object, flush", count, [&](size_t at) { object(at), flush(); });
  measure("object, record, flush", count, [&](size_t at) { object(at), record(at, 0), flush(); });
  measure("object, record written durably", count, [&](size_t at) { object(at), record(at, RWF_DSYNC); });
  measure("object, flush, record written durably", count, [&](size_t at) { object(at), flush(), record(at, RWF_DSYNC); });
  {
    // A thread that writes records whenever it is told to; both sides spin.
    std::atomic<size_t> wanted{0}, done{0};
    std::atomic<bool> ends{false};
    std::thread helper([&] {
      for (size_t next = 1;; next++) {
        while (wanted < next)
          if (ends) return;
        record(next, 0);
        done = next;
      }
    });
    size_t asked = 0;
    measure("object and record at once, flush", count, [&](size_t at) {
      wanted = ++asked;
      object(at);
      while (done < asked) {
      }
      flush();
    });
    ends = true;
    helper.join();
  }
  std::string files = directory + "/files";
  check(mkdir(files.c_str(), 0777) == 0 || errno == EEXIST, files);
  for (bool direct : {false, true}) {
    auto store = [&](size_t at) {
      std::string path = files + "/" + (direct ? "direct" : "buffered") + std::to_string(at), unnamed = path + ".new";
      int file = open(unnamed.c_str(), O_WRONLY | O_CREAT | O_TRUNC | (direct ? O_DIRECT : 0), 0666);
      check(file >= 0 && write(file, memory, kObject) == static_cast<ssize_t>(kObject) && fsync(file) == 0, unnamed);
      check(close(file) == 0 && rename(unnamed.c_str(), path.c_str()) == 0, path);
      int names = open(files.c_str(), O_RDONLY | O_DIRECTORY);
      check(names >= 0 && fsync(names) == 0 && close(names) == 0, files);
    };
    measure(direct ? "file, O_DIRECT, synced with its directory" : "file, synced with its directory", count, store);
  }
  return 0;
}
