// The objects of a program: named byte strings. A program is linked with objects_kv.cpp, which keeps them in a key-value device, or with
// objects_files.cpp, which keeps one file per object; nothing else differs between the two.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

using Bytes = std::vector<uint8_t>;

struct Object {
  std::string name;
  Bytes value;
};

// Called with the index and the value of a loaded object; the value is valid until it returns.
using Work = std::function<void(size_t index, const uint8_t *value, size_t length)>;

// All functions may be called by any thread. Errors end the program with a message.
class Objects {
 public:
  virtual ~Objects() = default;
  // "key-value" or "files".
  virtual const char *kind() const = 0;
  // The names that begin with `prefix`, of four bytes at least, in ascending order.
  virtual std::vector<std::string> list(const std::string &prefix) = 0;
  // Loads objects and works on each, in the order of `names` or as they come.
  virtual void load(const std::vector<std::string> &names, bool in_order, const Work &work) = 0;
  // Stores objects; they are on the drive when it returns.
  virtual void store(const std::vector<Object> &objects) = 0;
  // Seconds that accesses were worked on, of all together.
  virtual double access_seconds() const = 0;
  // Frees everything; errors that are found then end the program, too.
  virtual void close() = 0;
};

// Opens what the program was linked with; makes it if it is not there.
std::unique_ptr<Objects> open_objects(const std::string &where);

// Prints a message and ends the program.
[[noreturn]] void fail(const std::string &message);
