/*
 * The engine from C: trees, batches, transactions, iterators, large values, asynchronous calls.
 *
 *     people PATH [BACKEND]
 *
 * makes a store at PATH, which must not exist, and removes nothing.
 */
#include <isobath.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(int status, const char *what) {
  if (status != ISOBATH_OK) {
    fprintf(stderr, "%s: %s: %s\n", what, isobath_status_name(status), isobath_last_error());
    exit(1);
  }
}

#define CHECK(call) check((call), #call)
#define EXPECT(condition)                                              \
  do {                                                                 \
    if (!(condition)) {                                                \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);  \
      exit(1);                                                         \
    }                                                                  \
  } while (0)

static isobath_slice slice(const char *text) {
  isobath_slice slice = {text, strlen(text)};
  return slice;
}

static void put(isobath_tree *tree, const char *key, const char *value) {
  CHECK(isobath_put(tree, key, strlen(key), value, strlen(value)));
}

static int has(isobath_tree *tree, const char *key, const char *value) {
  char buffer[64];
  size_t length = 0;
  int status = isobath_get_into(tree, key, strlen(key), buffer, sizeof buffer, &length);
  return status == ISOBATH_OK && length == strlen(value) && memcmp(buffer, value, length) == 0;
}

static void records(isobath_store *store, isobath_tree *people) {
  put(people, "ada", "Analytical Engine");
  put(people, "grace", "compiler");
  EXPECT(has(people, "grace", "compiler"));
  EXPECT(isobath_contains(people, "alan", 4) == ISOBATH_NOT_FOUND);
  EXPECT(isobath_delete(people, "alan", 4) == ISOBATH_NOT_FOUND);

  char little[4];
  size_t length = 0;
  EXPECT(isobath_get_into(people, "ada", 3, little, sizeof little, &length) == ISOBATH_BUFFER);
  EXPECT(length == 17 && memcmp(little, "Anal", 4) == 0);

  isobath_slice keys[] = {slice("grace"), slice("alan"), slice("ada")};
  isobath_bytes values[3];
  CHECK(isobath_get_many(people, keys, 3, values));
  EXPECT(values[0].length == 8 && values[1].data == NULL && values[2].length == 17);
  for (int i = 0; i < 3; i++) isobath_bytes_free(values[i]);

  isobath_slice old_value = slice("compiler"), new_value = slice("COBOL");
  isobath_bytes current = {NULL, 0};
  CHECK(isobath_compare_and_swap(people, "grace", 5, &old_value, &new_value, NULL));
  EXPECT(isobath_compare_and_swap(people, "grace", 5, &old_value, NULL, &current) == ISOBATH_DIFFERENT);
  EXPECT(current.length == 5 && memcmp(current.data, "COBOL", 5) == 0);
  isobath_bytes_free(current);

  isobath_batch *batch = isobath_batch_new();
  CHECK(isobath_batch_put(batch, people, "alan", 4, "machine", 7));
  CHECK(isobath_batch_delete(batch, people, "ada", 3));
  EXPECT(isobath_batch_length(batch) == 2);
  CHECK(isobath_batch_write(store, batch));
  isobath_batch_free(batch);
  EXPECT(has(people, "alan", "machine") && isobath_contains(people, "ada", 3) == ISOBATH_NOT_FOUND);
}

static void increment(void *argument, const isobath_slice *old_value, isobath_slice *new_value) {
  uint64_t *count = argument;
  *count = 0;
  if (old_value != NULL) memcpy(count, old_value->data, sizeof *count);
  *count += 1;
  new_value->data = count;
  new_value->length = sizeof *count;
}

struct trees {
  isobath_tree *stock, *orders;
};

static int32_t order(void *argument, isobath_transaction *transaction) {
  struct trees *trees = argument;
  isobath_bytes apples;
  int status = isobath_transaction_get(transaction, trees->stock, "apples", 6, &apples);
  if (status != ISOBATH_OK) return status;
  unsigned char left = apples.data[0] - 1;
  isobath_bytes_free(apples);
  if (left > 100) return ISOBATH_ARGUMENT; /* nothing was left: roll back */
  status = isobath_transaction_put(transaction, trees->stock, "apples", 6, &left, 1);
  if (status != ISOBATH_OK) return status;
  return isobath_transaction_put(transaction, trees->orders, &left, 1, "one apple", 9);
}

static void transactions(isobath_store *store) {
  struct trees trees;
  CHECK(isobath_tree_create(store, "stock", &trees.stock));
  CHECK(isobath_tree_create(store, "orders", &trees.orders));
  CHECK(isobath_put(trees.stock, "apples", 6, "\2", 1));
  CHECK(isobath_transact(store, NULL, order, &trees));
  CHECK(isobath_transact(store, NULL, order, &trees));
  EXPECT(isobath_transact(store, NULL, order, &trees) == ISOBATH_ARGUMENT);
  uint64_t count = 0;
  CHECK(isobath_count(trees.orders, NULL, NULL, &count));
  EXPECT(count == 2);

  /* By hand, with a savepoint; and a second transaction that changes the same key. */
  isobath_transaction_options serializable = {.isolation = ISOBATH_SERIALIZABLE};
  isobath_transaction *first, *second;
  CHECK(isobath_transaction_begin(store, &serializable, &first));
  CHECK(isobath_transaction_begin(store, NULL, &second));
  size_t savepoint = 0;
  CHECK(isobath_transaction_put(first, trees.stock, "pears", 5, "\1", 1));
  CHECK(isobath_transaction_savepoint(first, &savepoint));
  CHECK(isobath_transaction_put(first, trees.stock, "plums", 5, "\1", 1));
  isobath_iterator *iterator;
  CHECK(isobath_transaction_range(first, trees.stock, NULL, NULL, &iterator));
  int seen = 0;
  while (isobath_iterator_next(iterator, NULL, NULL) == ISOBATH_OK) seen++;
  EXPECT(seen == 3);
  isobath_iterator_free(iterator);
  CHECK(isobath_transaction_rollback_to(first, savepoint));
  CHECK(isobath_transaction_put(second, trees.stock, "pears", 5, "\2", 1));
  CHECK(isobath_transaction_commit(first));
  int status = isobath_transaction_commit(second);
  EXPECT(status == ISOBATH_CONFLICT && isobath_status_is_retryable(status));
  EXPECT(isobath_transaction_rollback(second) == ISOBATH_CLOSED);
  isobath_transaction_free(first);
  isobath_transaction_free(second);
  EXPECT(isobath_contains(trees.stock, "plums", 5) == ISOBATH_NOT_FOUND);

  uint64_t counter = 0;
  for (int i = 0; i < 3; i++) CHECK(isobath_update(trees.stock, "visits", 6, increment, &counter));
  EXPECT(counter == 3);
  isobath_tree_free(trees.stock);
  isobath_tree_free(trees.orders);
}

static void ranges(isobath_store *store) {
  isobath_tree *days;
  CHECK(isobath_tree_create(store, "days", &days));
  isobath_loader *loader;
  CHECK(isobath_loader_new(days, &loader));
  for (int day = 30; day >= 1; day--) {
    unsigned char key[2] = {0, (unsigned char)day};
    CHECK(isobath_loader_push(loader, key, 2, &day, sizeof day));
  }
  uint64_t stored = 0;
  CHECK(isobath_loader_finish(loader, &stored));
  isobath_loader_free(loader);
  EXPECT(stored == 30);

  isobath_bound from = {{"\0\10", 2}, true}, to = {{"\0\17", 2}, false};
  isobath_iterator *iterator;
  isobath_slice key, value;
  CHECK(isobath_range(days, &from, &to, &iterator));
  CHECK(isobath_iterator_next(iterator, &key, &value));
  EXPECT(((const unsigned char *)key.data)[1] == 8 && value.length == sizeof(int));
  CHECK(isobath_iterator_previous(iterator, &key, NULL));
  EXPECT(((const unsigned char *)key.data)[1] == 14);
  int left = 0;
  while (isobath_iterator_previous(iterator, &key, NULL) == ISOBATH_OK) left++;
  EXPECT(left == 5);
  isobath_iterator_free(iterator);
  CHECK(isobath_prefix(days, "\0", 1, &iterator));
  isobath_iterator_free(iterator);
  CHECK(isobath_delete_range(days, &from, &to, &stored));
  EXPECT(stored == 7);
  isobath_tree_free(days);
}

static void large_values(isobath_tree *people) {
  enum { PIECE = 100000, PIECES = 30 };
  char *piece = malloc(PIECE);
  isobath_writer *writer;
  CHECK(isobath_writer_new(people, "novel", 5, &writer));
  for (int i = 0; i < PIECES; i++) {
    memset(piece, 'a' + i % 26, PIECE);
    CHECK(isobath_writer_append(writer, piece, PIECE));
  }
  CHECK(isobath_writer_finish(writer));
  isobath_writer_free(writer);
  isobath_reader *reader;
  CHECK(isobath_reader_new(people, "novel", 5, &reader));
  EXPECT(isobath_reader_length(reader) == (uint64_t)PIECE * PIECES);
  size_t length = 0, total = 0;
  do {
    CHECK(isobath_reader_read(reader, piece, PIECE, &length));
    if (length > 0) EXPECT(piece[0] == (char)('a' + total / PIECE % 26));
    total += length;
  } while (length > 0);
  EXPECT(total == (size_t)PIECE * PIECES);
  isobath_reader_free(reader);
  free(piece);
}

static void told(const isobath_completion *completion) {
  EXPECT(completion->status == ISOBATH_OK);
  ++*(int *)completion->user_data;
}

static void asynchronous_calls(isobath_store *store, isobath_tree *people) {
  isobath_queue *queue;
  CHECK(isobath_queue_new(store, 4, 4, false, &queue));
  int numbers[20], callbacks = 0;
  int submitted = 0, completed = 0;
  isobath_completion completions[8];
  size_t count = 0;
  while (completed < 20) {
    while (submitted < 20) {
      numbers[submitted] = submitted;
      isobath_request request = {.operation = ISOBATH_OP_PUT,
                                 .tree = people,
                                 .key = &numbers[submitted],
                                 .key_length = sizeof(int),
                                 .value = "value",
                                 .value_length = 5,
                                 .user_data = &numbers[submitted]};
      int status = isobath_queue_submit(queue, &request);
      if (status == ISOBATH_QUEUE_FULL) break;
      CHECK(status);
      submitted++;
    }
    CHECK(isobath_queue_poll(queue, completions, 8, -1, &count));
    for (size_t i = 0; i < count; i++) {
      EXPECT(completions[i].status == ISOBATH_OK && completions[i].operation == ISOBATH_OP_PUT);
      EXPECT(*(int *)completions[i].user_data < 20);
    }
    completed += (int)count;
  }
  /* Values come with completions; callbacks run in isobath_queue_poll. */
  isobath_request get = {.operation = ISOBATH_OP_GET, .tree = people, .key = "grace", .key_length = 5};
  CHECK(isobath_queue_submit(queue, &get));
  CHECK(isobath_queue_poll(queue, completions, 1, -1, &count));
  EXPECT(count == 1 && completions[0].value.length == 5);
  isobath_bytes_free(completions[0].value);
  get.callback = told;
  get.user_data = &callbacks;
  CHECK(isobath_queue_submit(queue, &get));
  while (callbacks == 0) CHECK(isobath_queue_poll(queue, completions, 1, 100, &count));
  /* A commit, whose callback a thread of the library calls. */
  isobath_queue *threaded;
  CHECK(isobath_queue_new(store, 1, 1, true, &threaded));
  isobath_request commit = {.operation = ISOBATH_OP_COMMIT, .user_data = &callbacks, .callback = told};
  CHECK(isobath_transaction_begin(store, NULL, &commit.transaction));
  CHECK(isobath_transaction_put(commit.transaction, people, "late", 4, "x", 1));
  CHECK(isobath_queue_submit(threaded, &commit));
  isobath_queue_free(threaded); /* waits */
  isobath_transaction_free(commit.transaction);
  EXPECT(callbacks == 2 && has(people, "late", "x"));
  isobath_queue_counters counters;
  CHECK(isobath_queue_get_counters(queue, &counters));
  EXPECT(counters.issued == 22 && counters.in_flight == 0 && counters.in_flight_max <= 16);
  isobath_queue_free(queue);
}

static void print_tree(void *argument, const char *name) {
  (void)argument;
  printf("tree %s\n", name);
}

static bool progress(void *argument, uint64_t is_done, uint64_t total) {
  (void)is_done, (void)total;
  ++*(int *)argument;
  return true;
}

int main(int argc, char **argv) {
  if (argc < 2) return 2;
  isobath_options *options = isobath_options_new();
  CHECK(isobath_options_set(options, "pool_bytes", "8MiB"));
  CHECK(isobath_options_set_number(options, "workers", 1));
  if (argc > 2) CHECK(isobath_options_set(options, "backend", argv[2]));
  EXPECT(isobath_options_set(options, "colour", "red") == ISOBATH_OPTION);

  const char *path = argv[1];
  isobath_store *store;
  EXPECT(isobath_store_open(&path, 1, options, &store) == ISOBATH_OPEN);
  CHECK(isobath_store_create(&path, 1, options, &store));
  isobath_store *second;
  EXPECT(isobath_store_open(&path, 1, options, &second) == ISOBATH_IN_USE);
  isobath_tree *people;
  CHECK(isobath_tree_open_or_create(store, "people", &people));
  EXPECT(isobath_get(NULL, "x", 1, NULL) == ISOBATH_NULL);
  EXPECT(isobath_put(people, path, ISOBATH_MAX_KEY_BYTES + 1, "x", 1) == ISOBATH_KEY_TOO_LONG);

  records(store, people);
  transactions(store);
  ranges(store);
  large_values(people);
  asynchronous_calls(store, people);

  CHECK(isobath_trees(store, print_tree, NULL));
  uint64_t commits = 0;
  CHECK(isobath_stat(store, "commits", &commits));
  EXPECT(commits > 20);
  isobath_bytes text;
  CHECK(isobath_stats_text(store, &text));
  isobath_bytes_free(text);
  int calls = 0;
  isobath_check_report report;
  CHECK(isobath_check(store, progress, &calls, &report));
  EXPECT(report.problem_count == 0 && report.trees == 4 && calls > 0);
  char backup[4096];
  snprintf(backup, sizeof backup, "%s.backup", path);
  CHECK(isobath_backup(store, backup, NULL, progress, &calls, NULL));
  CHECK(isobath_checkpoint(store));
  CHECK(isobath_compact(store, NULL));

  CHECK(isobath_store_close(store));
  EXPECT(isobath_contains(people, "grace", 5) == ISOBATH_CLOSED);
  EXPECT(isobath_tree_create(store, "more", &people) == ISOBATH_CLOSED);
  isobath_tree_free(people);
  isobath_store_free(store);

  CHECK(isobath_store_open(&path, 1, options, &store));
  CHECK(isobath_tree_open(store, "people", &people));
  EXPECT(has(people, "grace", "COBOL"));
  CHECK(isobath_store_close(store));
  isobath_tree_free(people);
  isobath_store_free(store);
  isobath_options_free(options);
  printf("isobath %s: done\n", isobath_version());
  return 0;
}
