/*
 * A program for key-value SSDs, as the SNIA interface has it: every one of its 31 functions.
 *
 *     kv_tour URI
 *
 * where URI is a device, such as /data/dev.iso?create=yes
 */
#include <kvs_api.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPECT(condition)                                                                                  \
  do {                                                                                                     \
    if (!(condition)) {                                                                                    \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, kvs_isobath_last_error());        \
      exit(1);                                                                                             \
    }                                                                                                      \
  } while (0)
#define CHECK(call) EXPECT((call) == KVS_SUCCESS)

enum { COUNT = 200, VALUE = 1000 };

static volatile int completed[KVS_CMD_STORE + 1];

static void on_complete(kvs_postprocess_context *ctx) {
  EXPECT(ctx->result == KVS_SUCCESS);
  EXPECT(ctx->private2 == (void *)&completed);
  __atomic_add_fetch(&completed[ctx->context], 1, __ATOMIC_SEQ_CST);
}

static void wait_for(kvs_context context, int count) {
  while (__atomic_load_n(&completed[context], __ATOMIC_SEQ_CST) < count) usleep(100);
}

static void key_for(int number, char *buffer, kvs_key *key) {
  key->key = buffer;
  key->length = (uint16_t)sprintf(buffer, "%s%04d", number % 2 == 0 ? "even" : "odd.", number);
}

static void device_facts(kvs_device_handle device) {
  kvs_device info;
  uint64_t capacity = 0;
  uint32_t number = 0;
  CHECK(kvs_get_device_info(device, &info));
  CHECK(kvs_get_device_capacity(device, &capacity));
  EXPECT(capacity > 0 && info.max_key_len == KVS_MAX_KEY_LENGTH);
  CHECK(kvs_get_device_utilization(device, &number));
  EXPECT(number <= 10000);
  CHECK(kvs_get_min_key_length(device, &number));
  EXPECT(number == KVS_MIN_KEY_LENGTH);
  CHECK(kvs_get_max_key_length(device, &number));
  EXPECT(number == KVS_MAX_KEY_LENGTH);
  CHECK(kvs_get_min_value_length(device, &number));
  EXPECT(number == KVS_MIN_VALUE_LENGTH);
  CHECK(kvs_get_max_value_length(device, &number));
  EXPECT(number >= KVS_MAX_VALUE_LENGTH);
  CHECK(kvs_get_optimal_value_length(device, &number));
  EXPECT(number == KVS_OPTIMAL_VALUE_LENGTH);
}

static void pairs(kvs_key_space_handle space) {
  char text[COUNT][16];
  kvs_key keys[COUNT];
  kvs_value values[COUNT];
  kvs_option_store store = {KVS_STORE_POST, NULL};
  for (int i = 0; i < COUNT; i++) {
    key_for(i, text[i], &keys[i]);
    void *buffer = kvs_malloc(VALUE, 4096);
    memset(buffer, i, VALUE);
    values[i] = (kvs_value){buffer, VALUE, 0, 0};
    if (i == 0) {
      CHECK(kvs_store_kvp(space, &keys[i], &values[i], &store));
    } else {
      CHECK(kvs_store_kvp_async(space, &keys[i], &values[i], &store, &keys[i], (void *)&completed, on_complete));
    }
  }
  wait_for(KVS_CMD_STORE, COUNT - 1);

  kvs_kvp_info info = {0, (uint8_t *)calloc(1, KVS_MAX_KEY_LENGTH), 0};
  CHECK(kvs_get_kvp_info(space, &keys[7], &info));
  EXPECT(info.key_len == keys[7].length && info.value_len == VALUE && memcmp(info.key, text[7], info.key_len) == 0);
  free(info.key);

  kvs_option_retrieve retrieve = {false};
  for (int i = 0; i < COUNT; i++) {
    memset(values[i].value, 0xEE, VALUE);
    CHECK(kvs_retrieve_kvp_async(space, &keys[i], &retrieve, NULL, (void *)&completed, &values[i], on_complete));
  }
  wait_for(KVS_CMD_RETRIEVE, COUNT);
  for (int i = 0; i < COUNT; i++) {
    unsigned char *bytes = values[i].value;
    EXPECT(values[i].actual_value_size == VALUE && bytes[0] == (unsigned char)i && bytes[VALUE - 1] == (unsigned char)i);
  }
  kvs_value part = {values[0].value, 100, 0, 512};
  EXPECT(kvs_retrieve_kvp(space, &keys[9], &retrieve, &part) == KVS_ERR_BUFFER_SMALL);
  EXPECT(part.length == 100 && part.actual_value_size == VALUE);

  uint8_t bits[COUNT / 8];
  kvs_exist_list list = {0, NULL, sizeof bits, bits};
  CHECK(kvs_exist_kv_pairs(space, COUNT, keys, &list));
  for (size_t i = 0; i < sizeof bits; i++) EXPECT(bits[i] == 0xFF);
  CHECK(kvs_exist_kv_pairs_async(space, COUNT, keys, &list, NULL, (void *)&completed, on_complete));
  wait_for(KVS_CMD_EXIST, 1);

  kvs_option_delete delete_option = {true};
  CHECK(kvs_delete_kvp(space, &keys[0], &delete_option));
  EXPECT(kvs_delete_kvp(space, &keys[0], &delete_option) == KVS_ERR_KEY_NOT_EXIST);
  CHECK(kvs_delete_kvp_async(space, &keys[2], &delete_option, NULL, (void *)&completed, on_complete));
  wait_for(KVS_CMD_DELETE, 1);
  for (int i = 0; i < COUNT; i++) kvs_free(values[i].value);
}

static int entries_of(kvs_iterator_list *list) {
  uint8_t *at = list->it_list;
  for (uint32_t i = 0; i < list->num_entries; i++) {
    uint32_t length;
    memcpy(&length, at, sizeof length);
    EXPECT(length == 8);
    at += sizeof length + length;
  }
  EXPECT(at == list->it_list + list->size);
  return (int)list->num_entries;
}

static void groups(kvs_key_space_handle space) {
  kvs_key_group_filter odd = {{0xFF, 0xFF, 0xFF, 0xFF}, {'o', 'd', 'd', '.'}};
  kvs_key_group_filter even = {{0xFF, 0, 0, 0}, {'e', 0, 0, 0}};
  kvs_option_iterator option = {KVS_ITERATOR_KEY};
  kvs_iterator_handle iterator;
  CHECK(kvs_create_iterator(space, &option, &odd, &iterator));
  uint8_t *buffer = kvs_zalloc(KVS_ITERATOR_BUFFER_SIZE, 4096);
  kvs_iterator_list list = {0, false, 500, buffer};
  int found = 0;
  while (!list.end) {
    list.size = 500;
    CHECK(kvs_iterate_next(space, iterator, &list));
    found += entries_of(&list);
  }
  EXPECT(found == COUNT / 2);
  CHECK(kvs_delete_iterator(space, iterator));
  CHECK(kvs_create_iterator(space, &option, &even, &iterator));
  list.size = KVS_ITERATOR_BUFFER_SIZE;
  CHECK(kvs_iterate_next_async(space, iterator, &list, NULL, (void *)&completed, on_complete));
  wait_for(KVS_CMD_ITER_NEXT, 1);
  EXPECT(list.end && entries_of(&list) == COUNT / 2 - 2);
  CHECK(kvs_delete_iterator(space, iterator));
  kvs_free(buffer);
  CHECK(kvs_delete_key_group(space, &odd));
  CHECK(kvs_delete_key_group_async(space, &even, NULL, (void *)&completed, on_complete));
  wait_for(KVS_CMD_DELETE_GROUP, 1);
}

int main(int argc, char **argv) {
  if (argc < 2) return 2;
  kvs_device_handle device;
  CHECK(kvs_open_device(argv[1], &device));
  device_facts(device);
  char name[] = "tour";
  kvs_key_space_name space_name = {4, name};
  kvs_option_key_space option = {KVS_KEY_ORDER_NONE};
  CHECK(kvs_create_key_space(device, &space_name, 0, option));
  EXPECT(kvs_create_key_space(device, &space_name, 0, option) == KVS_ERR_KS_EXIST);
  kvs_key_space_handle space;
  CHECK(kvs_open_key_space(device, name, &space));
  pairs(space);
  groups(space);

  char listed[MAX_KEYSPACE_NAME_LEN + 1];
  kvs_key_space_name names[1] = {{MAX_KEYSPACE_NAME_LEN, listed}};
  uint32_t count = 0;
  CHECK(kvs_list_key_spaces(device, 1, sizeof names, names, &count));
  EXPECT(count == 1 && strcmp(listed, "tour") == 0);
  kvs_key_space known;
  known.name = &names[0];
  CHECK(kvs_get_key_space_info(space, &known));
  EXPECT(known.count == 0 && known.opened);
  kvs_isobath_counters counters;
  CHECK(kvs_isobath_get_counters(device, false, &counters));
  printf("%llu requests, at most %llu in flight\n", (unsigned long long)counters.issued,
         (unsigned long long)counters.in_flight_max);
  CHECK(kvs_close_key_space(space));
  EXPECT(kvs_close_key_space(space) == KVS_ERR_KS_NOT_OPEN);
  CHECK(kvs_delete_key_space(device, &space_name));
  CHECK(kvs_close_device(device));
  EXPECT(kvs_close_device(device) == KVS_ERR_DEV_NOT_EXIST);
  printf("done\n");
  return 0;
}
