/*
 * Stores pairs until it is killed, and prints the number of each one that was acknowledged: the crash test's program.
 *
 *     kv_writer URI [FIRST]
 */
#include <kvs_api.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A line at once: what is printed is whole. */
static void acknowledge(long number) {
  char line[32];
  int length = snprintf(line, sizeof line, "%ld\n", number);
  if (write(STDOUT_FILENO, line, (size_t)length) != length) _exit(3);
}

static void on_complete(kvs_postprocess_context *ctx) {
  if (ctx->result != KVS_SUCCESS) _exit(4);
  acknowledge((long)ctx->private1);
  free(ctx->value->value);
  free(ctx->value);
  free(ctx->key->key);
  free(ctx->key);
}

int main(int argc, char **argv) {
  if (argc < 2) return 2;
  kvs_device_handle device;
  kvs_key_space_handle space;
  char name[] = "crash";
  kvs_key_space_name space_name = {5, name};
  kvs_option_key_space option = {KVS_KEY_ORDER_NONE};
  if (kvs_open_device(argv[1], &device) != KVS_SUCCESS) {
    fprintf(stderr, "%s\n", kvs_isobath_last_error());
    return 1;
  }
  kvs_result made = kvs_create_key_space(device, &space_name, 0, option);
  if (made != KVS_SUCCESS && made != KVS_ERR_KS_EXIST) return 1;
  if (kvs_open_key_space(device, name, &space) != KVS_SUCCESS) return 1;
  for (long number = argc > 2 ? atol(argv[2]) : 0;; number++) {
    kvs_key *key = malloc(sizeof *key);
    kvs_value *value = malloc(sizeof *value);
    key->key = malloc(32);
    key->length = (uint16_t)sprintf(key->key, "key-%08ld", number);
    uint32_t length = number % 16 == 15 ? 30000 : 100;
    *value = (kvs_value){malloc(length), length, 0, 0};
    memset(value->value, (int)(number % 251), length);
    if (number % 2 == 0) {
      if (kvs_store_kvp_async(space, key, value, NULL, (void *)number, NULL, on_complete) != KVS_SUCCESS) return 1;
    } else {
      kvs_postprocess_context done = {.key = key, .value = value, .private1 = (void *)number};
      done.result = kvs_store_kvp(space, key, value, NULL);
      on_complete(&done);
    }
  }
}
