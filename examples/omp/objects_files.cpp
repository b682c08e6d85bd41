// One file per object: `where` is a directory, or "DIRECTORY?io=HOW":
//
// - synced (the default): as durable as the device. Each file is synced before it gets its name, and its directory before store() returns;
// - direct: the same, past the page cache (O_DIRECT);
// - buffered: nothing is synced, so that a power cut may lose what was stored.
//
// Modes and numbers of threads mean the same as for the device.
#include <dirent.h>
#include <fcntl.h>
#include <isobath_omp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include "data_threads.h"
#include "objects.h"

namespace {

// What a thread has read and not worked on yet, at most, per data thread; as for the device.
constexpr size_t kAhead = 2;

using Clock = std::chrono::steady_clock;

thread_local DataThreads data_threads;

void check(bool is_good, const std::string &what) {
  if (!is_good) fail(what + ": " + std::strerror(errno));
}

void sync_directory(const std::string &path) {
  int directory = open(path.c_str(), O_RDONLY | O_DIRECTORY);
  check(directory >= 0 && fsync(directory) == 0, path);
  ::close(directory);
}

enum class Io { kSynced, kDirect, kBuffered };

// What O_DIRECT requires of buffers, places and lengths.
constexpr size_t kBlock = 4096;

// Memory in whole blocks.
class Blocks {
 public:
  explicit Blocks(size_t bytes) : bytes_((bytes + kBlock - 1) / kBlock * kBlock) {
    void *memory = nullptr;
    if (bytes_ > 0 && posix_memalign(&memory, kBlock, bytes_) != 0) fail("no memory");
    memory_ = static_cast<uint8_t *>(memory);
  }
  ~Blocks() { std::free(memory_); }
  Blocks(const Blocks &) = delete;
  uint8_t *data() { return memory_; }
  size_t size() const { return bytes_; }

 private:
  size_t bytes_;
  uint8_t *memory_ = nullptr;
};

// The results of accesses that data threads made for one compute thread.
struct Completions {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<size_t, Bytes> values;

  void add(size_t index, Bytes value) {
    std::lock_guard<std::mutex> guard(mutex);
    values[index] = std::move(value);
    changed.notify_one();
  }
};

class FileObjects : public Objects {
 public:
  explicit FileObjects(std::string where) : root_(where.substr(0, where.find('?'))) {
    std::string how = where.substr(root_.size());
    if (how == "?io=direct") {
      io_ = Io::kDirect;
    } else if (how == "?io=buffered") {
      io_ = Io::kBuffered;
    } else if (!how.empty() && how != "?io=synced") {
      fail(how + ": ?io=synced, ?io=direct or ?io=buffered");
    }
    std::filesystem::create_directories(root_);
    known_.insert(root_);
  }

  const char *kind() const override { return "files"; }

  std::vector<std::string> list(const std::string &prefix) override {
    std::vector<std::string> names;
    std::string directory = path_of(prefix.substr(0, prefix.rfind('/') + 1));
    if (!std::filesystem::exists(directory)) return names;
    for (const auto &entry : std::filesystem::recursive_directory_iterator(directory)) {
      if (!entry.is_regular_file()) continue;
      std::string name = entry.path().string().substr(root_.size() + 1);
      if (name.compare(0, prefix.size(), prefix) == 0) names.push_back(name);
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  void load(const std::vector<std::string> &names, bool in_order, const Work &work) override {
    if (isobath_omp_is_serial()) {
      for (size_t index = 0; index < names.size(); index++) {
        Bytes value;
        {
          std::lock_guard<std::mutex> channel(serial_);
          value = read(names[index]);
        }
        work(index, value.data(), value.size());
      }
      return;
    }
    Completions completions;
    size_t submitted = 0;
    for (size_t done = 0; done < names.size();) {
      unsigned limit = isobath_omp_data_accesses();
      for (; submitted < names.size() && submitted - done < kAhead * limit; submitted++) {
        size_t index = submitted;
        data_threads.submit(limit, [this, &completions, &names, index] { completions.add(index, read(names[index])); });
      }
      std::pair<size_t, Bytes> next;
      {
        std::unique_lock<std::mutex> guard(completions.mutex);
        auto &values = completions.values;
        completions.changed.wait(guard, [&] { return !values.empty() && (!in_order || values.begin()->first == done); });
        next = {values.begin()->first, std::move(values.begin()->second)};
        values.erase(values.begin());
      }
      work(next.first, next.second.data(), next.second.size());
      done++;
    }
  }

  void store(const std::vector<Object> &objects) override {
    std::set<std::string> directories;
    for (const Object &object : objects) directories.insert(directory_of(object.name));
    Completions completions;
    for (size_t index = 0; index < objects.size(); index++) {
      if (isobath_omp_is_serial()) {
        std::lock_guard<std::mutex> channel(serial_);
        write(objects[index]);
        continue;
      }
      data_threads.submit(isobath_omp_data_accesses(), [this, &completions, &objects, index] {
        write(objects[index]);
        completions.add(index, {});
      });
    }
    if (!isobath_omp_is_serial()) {
      std::unique_lock<std::mutex> guard(completions.mutex);
      completions.changed.wait(guard, [&] { return completions.values.size() == objects.size(); });
    }
    for (const std::string &directory : directories)
      if (io_ != Io::kBuffered) sync_directory(directory);
  }

  double access_seconds() const override { return static_cast<double>(access_ns_) / 1e9; }

  void close() override {}

 private:
  std::string path_of(const std::string &name) const { return root_ + "/" + name; }

  // The directory of a name, which is made and synced where it is not there.
  std::string directory_of(const std::string &name) {
    std::filesystem::path directory = std::filesystem::path(path_of(name)).parent_path();
    std::lock_guard<std::mutex> guard(known_mutex_);
    std::vector<std::filesystem::path> missing;
    for (auto path = directory; known_.count(path.string()) == 0; path = path.parent_path()) missing.push_back(path);
    for (auto path = missing.rbegin(); path != missing.rend(); ++path) {
      check(mkdir(path->c_str(), 0777) == 0 || errno == EEXIST, path->string());
      sync_directory(path->parent_path().string());
      known_.insert(path->string());
    }
    return directory.string();
  }

  Bytes read(const std::string &name) {
    Clock::time_point begin = Clock::now();
    std::string path = path_of(name);
    int file = open(path.c_str(), io_ == Io::kDirect ? O_RDONLY | O_DIRECT : O_RDONLY);
    struct stat status;
    check(file >= 0 && fstat(file, &status) == 0, path);
    Bytes value(static_cast<size_t>(status.st_size));
    Blocks blocks(io_ == Io::kDirect ? value.size() : 0);
    uint8_t *into = io_ == Io::kDirect ? blocks.data() : value.data();
    size_t length = io_ == Io::kDirect ? blocks.size() : value.size();
    for (size_t at = 0; at < value.size();) {
      ssize_t count = ::read(file, into + at, length - at);
      check(count > 0, path);
      at += static_cast<size_t>(count);
    }
    if (io_ == Io::kDirect) std::copy_n(into, value.size(), value.data());
    ::close(file);
    count(begin, value.size());
    return value;
  }

  void write(const Object &object) {
    Clock::time_point begin = Clock::now();
    std::string path = path_of(object.name);
    std::string unnamed = path + ".new";
    int file = open(unnamed.c_str(), O_WRONLY | O_CREAT | O_TRUNC | (io_ == Io::kDirect ? O_DIRECT : 0), 0666);
    check(file >= 0, unnamed);
    Blocks blocks(io_ == Io::kDirect ? object.value.size() : 0);
    if (io_ == Io::kDirect) std::copy(object.value.begin(), object.value.end(), blocks.data());
    const uint8_t *from = io_ == Io::kDirect ? blocks.data() : object.value.data();
    size_t length = io_ == Io::kDirect ? blocks.size() : object.value.size();
    for (size_t at = 0; at < length;) {
      ssize_t count = ::write(file, from + at, length - at);
      check(count > 0, unnamed);
      at += static_cast<size_t>(count);
    }
    // The last block is whole.
    if (length > object.value.size()) check(ftruncate(file, static_cast<off_t>(object.value.size())) == 0, unnamed);
    if (io_ != Io::kBuffered) check(fsync(file) == 0, unnamed);
    check(::close(file) == 0, unnamed);
    check(rename(unnamed.c_str(), path.c_str()) == 0, path);
    count(begin, object.value.size());
  }

  void count(Clock::time_point begin, size_t bytes) {
    access_ns_ += std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count();
    isobath_omp_count(1, bytes);
  }

  std::string root_;
  Io io_ = Io::kSynced;
  std::mutex serial_;
  std::mutex known_mutex_;
  std::set<std::string> known_;
  std::atomic<int64_t> access_ns_{0};
};

}  // namespace

std::unique_ptr<Objects> open_objects(const std::string &where) { return std::make_unique<FileObjects>(where); }
