/* Stores objects and loads them in a parallel region, with OpenMP or without. */
#include <isobath_omp.h>
#include <stdlib.h>

enum { OBJECTS = 40, PART = 10, SIZE = 3000 };

static void check(kvs_result result) {
  if (result != KVS_SUCCESS) {
    fprintf(stderr, "%s: %s\n", kvs_errstr(result), kvs_isobath_last_error());
    exit(1);
  }
}

static char names[OBJECTS][16];
static kvs_key keys[OBJECTS];
static kvs_value values[OBJECTS];

static void work(void *context, size_t index, const void *value, size_t length) {
  size_t object = *(size_t *)context + index;
  if (length != SIZE || memcmp(value, values[object].value, SIZE) != 0) exit(3);
  __atomic_add_fetch(&values[object].actual_value_size, 1, __ATOMIC_RELAXED);
}

int main(int argc, char **argv) {
  check(isobath_omp_init(&argc, argv));
  if (argc != 2) return 2;
  kvs_device_handle device;
  check(kvs_open_device(argv[1], &device));
  check(isobath_omp_attach(device));
  char name[] = "objects";
  kvs_key_space_name space_name = {7, name};
  kvs_option_key_space option = {KVS_KEY_ORDER_NONE};
  kvs_result made = kvs_create_key_space(device, &space_name, 0, option);
  if (made != KVS_ERR_KS_EXIST) check(made);
  kvs_key_space_handle space;
  check(kvs_open_key_space(device, name, &space));
  for (int at = 0; at < OBJECTS; at++) {
    keys[at] = (kvs_key){names[at], (uint16_t)sprintf(names[at], "object-%04d", at)};
    values[at] = (kvs_value){malloc(SIZE), SIZE, 0, 0};
    memset(values[at].value, at, SIZE);
  }
  check(isobath_omp_store(space, OBJECTS, keys, values));

  int threads = 0, given = isobath_omp_begin("load");
#pragma omp parallel
  {
    __atomic_add_fetch(&threads, 1, __ATOMIC_RELAXED);
#pragma omp for schedule(dynamic)
    for (size_t first = 0; first < OBJECTS; first += PART) check(isobath_omp_load(space, PART, &keys[first], 0, work, &first));
  }
  isobath_omp_end(OBJECTS);
  unsigned objects = 0;
  for (int at = 0; at < OBJECTS; at++) {
    objects += values[at].actual_value_size;
    free(values[at].value);
  }
  printf("threads %d %d\nobjects %u\n", given, threads, objects);
  check(isobath_omp_finish());
  check(kvs_close_device(device));
  return 0;
}
