/*
 * A whole program for key-value SSDs, written against the standard's header alone: a pool of threads fills, reads and empties key
 * spaces by asynchronous calls.
 *
 *     kv_pool URI [THREADS [PAIRS]]
 *
 * Each key space gets PAIRS pairs. What earlier runs have left on the device is deleted first.
 */
#include <kvs_api.h>
#include <stdlib.h>

enum { SPACES = 2, JOB_PAIRS = 32, KEY = 16, VALUE_MAX = 6000, NAMES = 8 };

static void fail(const char *what, kvs_result result) {
  fprintf(stderr, "%s: %s\n", what, kvs_errstr(result));
  exit(1);
}

static void check(const char *what, kvs_result result) {
  if (result != KVS_SUCCESS) fail(what, result);
}

/* ---- pairs: all of a pair follows from its number ---- */

typedef struct {
  char name[KEY + 1];
  kvs_key key;
  kvs_value value;
} pair;

static uint32_t length_of(uint32_t number) { return 100 + number * 2654435761u % (VALUE_MAX - 100); }

static void fill(pair *p, uint32_t number) {
  snprintf(p->name, sizeof p->name, "%s%012u", number % 4 == 0 ? "four" : "rest", number);
  p->key.key = p->name;
  p->key.length = KEY;
  p->value.length = length_of(number);
  p->value.offset = 0;
  p->value.actual_value_size = 0;
  memset(p->value.value, (int)(number % 251), p->value.length);
}

static int is_right(const pair *p, uint32_t number) {
  const unsigned char *bytes = p->value.value;
  if (p->value.length != length_of(number) || p->value.actual_value_size != p->value.length) return 0;
  for (uint32_t at = 0; at < p->value.length; at++) {
    if (bytes[at] != number % 251) return 0;
  }
  return 1;
}

/* ---- jobs: a thread issues the requests of one and waits until the last callback has been called ---- */

typedef enum { STORE, RETRIEVE, EXIST, DELETE } operation;

typedef struct {
  pthread_mutex_t lock;
  pthread_cond_t done;
  uint32_t in_flight;
} waiter;

typedef struct job {
  struct job *next;
  operation what;
  kvs_key_space_handle space;
  uint32_t first, count;
} job;

typedef struct {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  job *first, *last;
  uint32_t unfinished;
  int ends;
} queue;

static queue jobs = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, NULL, NULL, 0, 0};

static void give(operation what, kvs_key_space_handle space, uint32_t first, uint32_t count) {
  job *one = calloc(1, sizeof *one);
  *one = (job){NULL, what, space, first, count};
  pthread_mutex_lock(&jobs.lock);
  if (jobs.last) {
    jobs.last->next = one;
  } else {
    jobs.first = one;
  }
  jobs.last = one;
  jobs.unfinished++;
  pthread_cond_broadcast(&jobs.changed);
  pthread_mutex_unlock(&jobs.lock);
}

/* The next job; NULL when there will be none. */
static job *take(void) {
  pthread_mutex_lock(&jobs.lock);
  while (!jobs.first && !jobs.ends) pthread_cond_wait(&jobs.changed, &jobs.lock);
  job *one = jobs.first;
  if (one) {
    jobs.first = one->next;
    if (!jobs.first) jobs.last = NULL;
  }
  pthread_mutex_unlock(&jobs.lock);
  return one;
}

static void finish(job *one) {
  free(one);
  pthread_mutex_lock(&jobs.lock);
  jobs.unfinished--;
  pthread_cond_broadcast(&jobs.changed);
  pthread_mutex_unlock(&jobs.lock);
}

static void wait_for_all(void) {
  pthread_mutex_lock(&jobs.lock);
  while (jobs.unfinished > 0) pthread_cond_wait(&jobs.changed, &jobs.lock);
  pthread_mutex_unlock(&jobs.lock);
}

static void begin(waiter *w) {
  pthread_mutex_lock(&w->lock);
  w->in_flight++;
  pthread_mutex_unlock(&w->lock);
}

static void on_complete(kvs_postprocess_context *ctx) {
  check("a request", ctx->result);
  pair *p = ctx->private1;
  if (p && ctx->key != &p->key) fail("the callback's key", KVS_ERR_PARAM_INVALID);
  waiter *w = ctx->private2;
  pthread_mutex_lock(&w->lock);
  if (--w->in_flight == 0) pthread_cond_signal(&w->done);
  pthread_mutex_unlock(&w->lock);
}

static void await(waiter *w) {
  pthread_mutex_lock(&w->lock);
  while (w->in_flight > 0) pthread_cond_wait(&w->done, &w->lock);
  pthread_mutex_unlock(&w->lock);
}

static void exist(const job *one, const pair *pairs, waiter *w) {
  kvs_key keys[JOB_PAIRS];
  uint8_t bits[JOB_PAIRS / 8] = {0};
  for (uint32_t at = 0; at < one->count; at++) keys[at] = pairs[at].key;
  kvs_exist_list list = {0, NULL, sizeof bits, bits};
  begin(w);
  check("exist", kvs_exist_kv_pairs_async(one->space, one->count, keys, &list, NULL, w, on_complete));
  await(w);
  for (uint32_t at = 0; at < one->count; at++) {
    if (!(bits[at / 8] >> (at % 8) & 1)) fail(pairs[at].name, KVS_ERR_KEY_NOT_EXIST);
  }
}

static void run(const job *one, pair *pairs, waiter *w) {
  kvs_option_store store = {KVS_STORE_NOOVERWRITE, NULL};
  kvs_option_retrieve retrieve = {false};
  kvs_option_delete delete_option = {true};
  for (uint32_t at = 0; at < one->count; at++) {
    pair *p = &pairs[at];
    fill(p, one->first + at);
    if (one->what == EXIST) continue;
    begin(w);
    switch (one->what) {
      case STORE:
        check("store", kvs_store_kvp_async(one->space, &p->key, &p->value, &store, p, w, on_complete));
        break;
      case RETRIEVE:
        memset(p->value.value, 0xEE, VALUE_MAX);
        p->value.length = VALUE_MAX;
        check("retrieve", kvs_retrieve_kvp_async(one->space, &p->key, &retrieve, p, w, &p->value, on_complete));
        break;
      default:
        check("delete", kvs_delete_kvp_async(one->space, &p->key, &delete_option, p, w, on_complete));
    }
  }
  if (one->what == EXIST) exist(one, pairs, w);
  await(w);
  for (uint32_t at = 0; at < one->count && one->what == RETRIEVE; at++) {
    if (!is_right(&pairs[at], one->first + at)) fail(pairs[at].name, KVS_ERR_SYS_IO);
  }
}

static void *worker(void *unused) {
  (void)unused;
  pair pairs[JOB_PAIRS];
  waiter w = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};
  for (int at = 0; at < JOB_PAIRS; at++) pairs[at].value.value = kvs_malloc(VALUE_MAX, 4096);
  for (job *one = take(); one; one = take()) {
    run(one, pairs, &w);
    finish(one);
  }
  for (int at = 0; at < JOB_PAIRS; at++) kvs_free(pairs[at].value.value);
  return NULL;
}

static void phase(operation what, kvs_key_space_handle *spaces, uint32_t count) {
  for (uint32_t first = 0; first < count; first += JOB_PAIRS) {
    uint32_t left = count - first;
    for (int at = 0; at < SPACES; at++) give(what, spaces[at], first, left < JOB_PAIRS ? left : JOB_PAIRS);
  }
  wait_for_all();
}

/* ---- key spaces and iterators, by the main thread ---- */

/* Deletes every key space that the device has; how many there were. */
static uint32_t clear(kvs_device_handle device) {
  char text[NAMES][MAX_KEYSPACE_NAME_LEN + 1];
  uint32_t deleted = 0;
  for (;;) {
    kvs_key_space_name names[NAMES];
    for (int at = 0; at < NAMES; at++) names[at] = (kvs_key_space_name){MAX_KEYSPACE_NAME_LEN, text[at]};
    uint32_t count = 0;
    check("list", kvs_list_key_spaces(device, 1, sizeof names, names, &count));
    if (count == 0) return deleted;
    for (uint32_t at = 0; at < count; at++) check("delete key space", kvs_delete_key_space(device, &names[at]));
    deleted += count;
  }
}

/* Counts the keys of a group, a buffer at a time. */
static uint32_t iterate(kvs_key_space_handle space, const char *group) {
  kvs_key_group_filter filter;
  memset(filter.bitmask, 0xFF, sizeof filter.bitmask);
  memcpy(filter.bit_pattern, group, sizeof filter.bit_pattern);
  kvs_option_iterator option = {KVS_ITERATOR_KEY};
  kvs_iterator_handle iterator;
  check("create iterator", kvs_create_iterator(space, &option, &filter, &iterator));
  waiter w = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};
  kvs_iterator_list list = {0, false, 0, kvs_zalloc(KVS_ITERATOR_BUFFER_SIZE, 4096)};
  uint32_t found = 0;
  while (!list.end) {
    list.size = KVS_ITERATOR_BUFFER_SIZE;
    begin(&w);
    check("iterate", kvs_iterate_next_async(space, iterator, &list, NULL, &w, on_complete));
    await(&w);
    const uint8_t *at = list.it_list;
    for (uint32_t entry = 0; entry < list.num_entries; entry++) {
      uint32_t length;
      memcpy(&length, at, sizeof length);
      if (length != KEY || memcmp(at + sizeof length, group, 4) != 0) fail("an entry", KVS_ERR_KEY_LENGTH_INVALID);
      at += sizeof length + length;
    }
    found += list.num_entries;
  }
  check("delete iterator", kvs_delete_iterator(space, iterator));
  kvs_free(list.it_list);
  return found;
}

int main(int argc, char **argv) {
  if (argc < 2) return 2;
  uint32_t threads = argc > 2 ? (uint32_t)atoi(argv[2]) : 4, count = argc > 3 ? (uint32_t)atoi(argv[3]) : 1000;
  kvs_device_handle device;
  check("open device", kvs_open_device(argv[1], &device));
  printf("%u key spaces of an earlier run\n", clear(device));
  kvs_key_space_handle spaces[SPACES];
  for (int at = 0; at < SPACES; at++) {
    char name[32];
    kvs_key_space_name space_name = {(uint32_t)snprintf(name, sizeof name, "pool-%d", at), name};
    kvs_option_key_space option = {at == 0 ? KVS_KEY_ORDER_NONE : KVS_KEY_ORDER_DESCEND};
    check("create key space", kvs_create_key_space(device, &space_name, 0, option));
    check("open key space", kvs_open_key_space(device, name, &spaces[at]));
  }
  pthread_t *pool = calloc(threads, sizeof *pool);
  for (uint32_t at = 0; at < threads; at++) pthread_create(&pool[at], NULL, worker, NULL);

  phase(STORE, spaces, count);
  phase(EXIST, spaces, count);
  phase(RETRIEVE, spaces, count);
  uint32_t fours = (count + 3) / 4;
  for (int at = 0; at < SPACES; at++) {
    uint32_t four = iterate(spaces[at], "four"), rest = iterate(spaces[at], "rest");
    printf("key space %d: %u and %u keys\n", at, four, rest);
    if (four != fours || rest != count - fours) return 1;
  }
  phase(DELETE, spaces, count / 2);
  for (int at = 0; at < SPACES; at++) {
    if (iterate(spaces[at], "four") + iterate(spaces[at], "rest") != count - count / 2) return 1;
  }

  pthread_mutex_lock(&jobs.lock);
  jobs.ends = 1;
  pthread_cond_broadcast(&jobs.changed);
  pthread_mutex_unlock(&jobs.lock);
  for (uint32_t at = 0; at < threads; at++) pthread_join(pool[at], NULL);
  free(pool);
  /* One is deleted while it is open, the other one is left for the next run. */
  kvs_key_space_name gone = {6, (char[]){"pool-0"}};
  check("delete key space", kvs_delete_key_space(device, &gone));
  if (kvs_close_key_space(spaces[0]) != KVS_ERR_KS_NOT_EXIST) return 1;
  check("close key space", kvs_close_key_space(spaces[1]));
  check("close device", kvs_close_device(device));
  printf("done\n");
  return 0;
}
