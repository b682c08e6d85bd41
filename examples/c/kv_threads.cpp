// A C++ program over the key-value interface: threads that poll for their own completions, and append to shared pairs.
//
//     kv_threads URI
//
// where URI says completion=polling.
#include <kvs_api.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int kThreads = 3;
constexpr int kRounds = 40;

void expect(bool condition, const char *what) {
  if (!condition) {
    std::fprintf(stderr, "%s: %s\n", what, kvs_isobath_last_error());
    std::exit(1);
  }
}

// Called by kvs_get_ioevents in the thread that issued the request: no atomics are needed.
void on_complete(kvs_postprocess_context *ctx) {
  expect(ctx->result == KVS_SUCCESS, kvs_errstr(ctx->result));
  ++*static_cast<int *>(ctx->private1);
}

void work(kvs_key_space_handle space, char letter) {
  int completed = 0;
  std::string key = "shared";
  kvs_key kv_key{key.data(), static_cast<uint16_t>(key.size())};
  kvs_value value{&letter, 1, 0, 0};
  kvs_option_store append{KVS_STORE_APPEND, nullptr};
  for (int round = 0; round < kRounds; round++) {
    kvs_result result = kvs_store_kvp_async(space, &kv_key, &value, &append, &completed, nullptr, on_complete);
    expect(result == KVS_SUCCESS, kvs_errstr(result));
  }
  while (completed < kRounds) {
    if (kvs_get_ioevents(space, 8) == 0) std::this_thread::yield();
  }
}

}  // namespace

int main(int argc, char **argv) {
  if (argc < 2) return 2;
  kvs_device_handle device;
  expect(kvs_open_device(argv[1], &device) == KVS_SUCCESS, "open");
  std::string name = "threads";
  kvs_key_space_name space_name{static_cast<uint32_t>(name.size()), name.data()};
  expect(kvs_create_key_space(device, &space_name, 0, {KVS_KEY_ORDER_ASCEND}) == KVS_SUCCESS, "create");
  kvs_key_space_handle space;
  expect(kvs_open_key_space(device, name.data(), &space) == KVS_SUCCESS, "open key space");

  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; t++) threads.emplace_back(work, space, static_cast<char>('a' + t));
  expect(kvs_isobath_set_limits(device, 2, 5) == KVS_SUCCESS, "limits");
  for (auto &thread : threads) thread.join();

  std::string log(kThreads * kRounds, '\0');
  std::string key = "shared";
  kvs_key kv_key{key.data(), static_cast<uint16_t>(key.size())};
  kvs_value value{log.data(), static_cast<uint32_t>(log.size()), 0, 0};
  expect(kvs_retrieve_kvp(space, &kv_key, nullptr, &value) == KVS_SUCCESS, "retrieve");
  for (int t = 0; t < kThreads; t++) {
    int count = 0;
    for (char letter : log) count += letter == 'a' + t;
    expect(count == kRounds, "an append was lost");
  }
  expect(kvs_close_device(device) == KVS_SUCCESS, "close");
  std::printf("done\n");
  return 0;
}
