// Objects in a key-value device: `where` is a URI such as "/data/objects.iso?create=yes&pool=256MiB".
#include <isobath_omp.h>

#include <algorithm>
#include <cstring>

#include "objects.h"

namespace {

void check(kvs_result result, const char *what) {
  if (result != KVS_SUCCESS) fail(std::string(what) + ": " + kvs_errstr(result) + ": " + kvs_isobath_last_error());
}

kvs_key key_of(const std::string &name) {
  return {const_cast<char *>(name.data()), static_cast<uint16_t>(name.size())};
}

class KvObjects : public Objects {
 public:
  explicit KvObjects(std::string uri) {
    if (uri.find('?') == std::string::npos) uri += "?create=yes";
    check(kvs_open_device(uri.data(), &device_), "opening the device");
    std::string name = "objects";
    kvs_key_space_name space_name{static_cast<uint32_t>(name.size()), name.data()};
    kvs_result made = kvs_create_key_space(device_, &space_name, 0, {KVS_KEY_ORDER_ASCEND});
    if (made != KVS_ERR_KS_EXIST) check(made, "making the key space");
    check(kvs_open_key_space(device_, name.data(), &space_), "opening the key space");
    check(isobath_omp_attach(device_), "attaching the device");
  }

  const char *kind() const override { return "key-value"; }

  std::vector<std::string> list(const std::string &prefix) override {
    kvs_key_group_filter filter;
    std::memset(filter.bitmask, 0xff, sizeof filter.bitmask);
    std::memcpy(filter.bit_pattern, prefix.data(), sizeof filter.bit_pattern);
    kvs_option_iterator option{KVS_ITERATOR_KEY};
    kvs_iterator_handle iterator;
    check(kvs_create_iterator(space_, &option, &filter, &iterator), "listing");
    std::vector<std::string> names;
    Bytes buffer(32 << 10);
    for (bool ends = false; !ends;) {
      kvs_iterator_list list{0, false, static_cast<uint32_t>(buffer.size()), buffer.data()};
      check(kvs_iterate_next(space_, iterator, &list), "listing");
      const uint8_t *at = buffer.data();
      for (uint32_t entry = 0; entry < list.num_entries; entry++) {
        uint32_t length;
        std::memcpy(&length, at, sizeof length);
        std::string name(reinterpret_cast<const char *>(at) + sizeof length, length);
        if (name.compare(0, prefix.size(), prefix) == 0) names.push_back(name);
        at += sizeof length + length;
      }
      ends = list.end;
    }
    check(kvs_delete_iterator(space_, iterator), "listing");
    return names;
  }

  void load(const std::vector<std::string> &names, bool in_order, const Work &work) override {
    std::vector<kvs_key> keys;
    for (const std::string &name : names) keys.push_back(key_of(name));
    auto call = [](void *context, size_t index, const void *value, size_t length) {
      (*static_cast<const Work *>(context))(index, static_cast<const uint8_t *>(value), length);
    };
    void *context = const_cast<Work *>(&work);
    check(isobath_omp_load(space_, keys.size(), keys.data(), in_order, call, context), "loading");
  }

  void store(const std::vector<Object> &objects) override {
    std::vector<kvs_key> keys;
    std::vector<kvs_value> values;
    for (const Object &object : objects) {
      keys.push_back(key_of(object.name));
      auto *bytes = const_cast<uint8_t *>(object.value.data());
      values.push_back({bytes, static_cast<uint32_t>(object.value.size()), 0, 0});
    }
    check(isobath_omp_store(space_, keys.size(), keys.data(), values.data()), "storing");
  }

  double access_seconds() const override {
    isobath_omp_totals totals;
    check(isobath_omp_get_totals(&totals), "totals");
    return static_cast<double>(totals.busy_ns) / 1e9;
  }

  void close() override { check(kvs_close_device(device_), "closing the device"); }

 private:
  kvs_device_handle device_;
  kvs_key_space_handle space_;
};

}  // namespace

std::unique_ptr<Objects> open_objects(const std::string &where) { return std::make_unique<KvObjects>(where); }
