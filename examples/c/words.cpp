// The engine from C++: handles that free themselves, and counting words in several threads without losing one.
//
//     words PATH [BACKEND]
#include <isobath.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

void check(int status) {
  if (status != ISOBATH_OK) {
    throw std::runtime_error(std::string(isobath_status_name(status)) + ": " + isobath_last_error());
  }
}

template <typename T, void (*Free)(T *)>
struct Freed {
  void operator()(T *object) const { Free(object); }
};
using Options = std::unique_ptr<isobath_options, Freed<isobath_options, isobath_options_free>>;
using Store = std::unique_ptr<isobath_store, Freed<isobath_store, isobath_store_free>>;
using Tree = std::unique_ptr<isobath_tree, Freed<isobath_tree, isobath_tree_free>>;
using Iterator = std::unique_ptr<isobath_iterator, Freed<isobath_iterator, isobath_iterator_free>>;

void count(const Tree &tree, const std::string &word) {
  std::uint64_t number = 0;
  auto add = [](void *argument, const isobath_slice *old_value, isobath_slice *new_value) {
    auto *number = static_cast<std::uint64_t *>(argument);
    *number = 0;
    if (old_value != nullptr) std::memcpy(number, old_value->data, sizeof *number);
    ++*number;
    *new_value = isobath_slice{number, sizeof *number};
  };
  check(isobath_update(tree.get(), word.data(), word.size(), add, &number));
}

}  // namespace

int main(int argc, char **argv) try {
  if (argc < 2) return 2;
  Options options(isobath_options_new());
  check(isobath_options_set(options.get(), "pool_bytes", "8MiB"));
  check(isobath_options_set(options.get(), "workers", "1"));
  check(isobath_options_set(options.get(), "durability", "buffered:10"));
  if (argc > 2) check(isobath_options_set(options.get(), "backend", argv[2]));
  isobath_store *opened = nullptr;
  const char *path = argv[1];
  check(isobath_store_open_or_create(&path, 1, options.get(), &opened));
  Store store(opened);
  isobath_tree *made = nullptr;
  check(isobath_tree_create(store.get(), "words", &made));
  Tree words(made);

  std::vector<std::thread> threads;
  for (int t = 0; t < 3; t++) {
    threads.emplace_back([&words] {
      for (int i = 0; i < 60; i++) count(words, i % 3 == 0 ? "sea" : "lake");
    });
  }
  for (auto &thread : threads) thread.join();

  isobath_iterator *range = nullptr;
  check(isobath_range(words.get(), nullptr, nullptr, &range));
  Iterator iterator(range);
  isobath_slice key, value;
  std::uint64_t sum = 0;
  while (isobath_iterator_next(iterator.get(), &key, &value) == ISOBATH_OK) {
    std::uint64_t number = 0;
    std::memcpy(&number, value.data, sizeof number);
    std::printf("%.*s %llu\n", static_cast<int>(key.length), static_cast<const char *>(key.data),
                static_cast<unsigned long long>(number));
    sum += number;
  }
  check(isobath_store_close(store.get()));
  return sum == 180 ? 0 : 1;
} catch (const std::exception &error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
