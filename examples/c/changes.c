/*
 * A copy of a store that follows its changes, and goes on where it stopped.
 *
 *     changes PATH [BACKEND [alone]]
 *
 * makes stores at PATH and PATH.copy, which must not exist, and removes nothing. `alone` leaves out what a process
 * does that reads beside the writer.
 */
#include <isobath.h>

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

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

enum { KINDS = ISOBATH_CHANGE_WHOLE + 1, WAIT_MS = 60000 };

static isobath_tree *tree_of(isobath_store *store, const char *name) {
  isobath_tree *tree;
  CHECK(isobath_tree_open_or_create(store, name, &tree));
  return tree;
}

static void put(isobath_tree *tree, const char *key, const char *value) {
  CHECK(isobath_put(tree, key, strlen(key), value, strlen(value)));
}

/* Names of a store's trees. */
struct names {
  int count;
  char name[8][32];
};

static void keep_name(void *argument, const char *name) {
  struct names *names = argument;
  EXPECT(names->count < 8);
  snprintf(names->name[names->count++], sizeof names->name[0], "%s", name);
}

static void drop_all(isobath_store *store) {
  struct names names = {0};
  CHECK(isobath_trees(store, keep_name, &names));
  for (int i = 0; i < names.count; i++) CHECK(isobath_tree_drop(store, names.name[i]));
}

static void apply(const isobath_change *change, isobath_store *copy) {
  char name[32];
  snprintf(name, sizeof name, "%.*s", (int)change->tree.length, (const char *)change->tree.data);
  if (change->kind == ISOBATH_CHANGE_WHOLE) {
    drop_all(copy);
  } else if (change->kind == ISOBATH_CHANGE_DROP) {
    CHECK(isobath_tree_drop(copy, name));
  } else {
    isobath_tree *tree = tree_of(copy, name);
    const void *key = change->key.data;
    if (change->kind == ISOBATH_CHANGE_PUT) {
      CHECK(isobath_put(tree, key, change->key.length, change->value.data, change->value.length));
    } else if (change->kind == ISOBATH_CHANGE_REMOVE) {
      CHECK(isobath_delete(tree, key, change->key.length));
    } else if (change->kind == ISOBATH_CHANGE_REPLACE) {
      isobath_bound from = {change->key, true};
      CHECK(isobath_delete_range(tree, &from, NULL, NULL));
    }
    isobath_tree_free(tree);
  }
}

/* Applies all changes that are there; how many transactions, and in `kinds` how many changes of each
 * kind. */
static int follow(isobath_changes *changes, isobath_store *copy, int kinds[KINDS]) {
  int transactions = 0, status;
  memset(kinds, 0, KINDS * sizeof *kinds);
  while ((status = isobath_changes_next(changes, 0)) == ISOBATH_OK) {
    isobath_change change;
    while ((status = isobath_changes_change(changes, &change)) == ISOBATH_OK) {
      apply(&change, copy);
      kinds[change.kind]++;
    }
    EXPECT(status == ISOBATH_NOT_FOUND);
    EXPECT(isobath_changes_change(changes, &change) == ISOBATH_NOT_FOUND);
    transactions++;
  }
  EXPECT(status == ISOBATH_NOT_FOUND);
  return transactions;
}

static int is_equal(isobath_slice left, isobath_slice right) {
  return left.length == right.length && memcmp(left.data, right.data, left.length) == 0;
}

static void expect_equal(isobath_store *source, isobath_store *copy) {
  struct names names = {0}, copied = {0};
  CHECK(isobath_trees(source, keep_name, &names));
  CHECK(isobath_trees(copy, keep_name, &copied));
  EXPECT(names.count == copied.count);
  for (int i = 0; i < names.count; i++) {
    isobath_tree *trees[] = {tree_of(source, names.name[i]), tree_of(copy, names.name[i])};
    isobath_iterator *iterators[2];
    for (int j = 0; j < 2; j++) CHECK(isobath_range(trees[j], NULL, NULL, &iterators[j]));
    int status;
    do {
      isobath_slice key[2], value[2];
      status = isobath_iterator_next(iterators[0], &key[0], &value[0]);
      EXPECT((int)isobath_iterator_next(iterators[1], &key[1], &value[1]) == status);
      if (status == ISOBATH_OK) EXPECT(is_equal(key[0], key[1]) && is_equal(value[0], value[1]));
    } while (status == ISOBATH_OK);
    EXPECT(status == ISOBATH_NOT_FOUND);
    for (int j = 0; j < 2; j++) isobath_iterator_free(iterators[j]), isobath_tree_free(trees[j]);
  }
}

/* All trees first, then each kind of change; the position behind them. */
static void copies(isobath_store *source, isobath_store *copy, char position[64]) {
  int kinds[KINDS];
  isobath_tree *fruit = tree_of(source, "fruit");
  put(fruit, "apple", "red");
  isobath_tree *old = tree_of(copy, "old");
  isobath_changes *changes;
  CHECK(isobath_changes_open(source, NULL, &changes));
  EXPECT(follow(changes, copy, kinds) == 1);
  EXPECT(kinds[ISOBATH_CHANGE_WHOLE] == 1 && kinds[ISOBATH_CHANGE_REPLACE] == 1 && kinds[ISOBATH_CHANGE_PUT] == 1);
  isobath_tree_free(old);
  expect_equal(source, copy);

  put(fruit, "pear", "green");
  CHECK(isobath_delete(fruit, "apple", 5));
  isobath_batch *batch = isobath_batch_new();
  CHECK(isobath_batch_put(batch, fruit, "fig", 3, "blue", 4));
  CHECK(isobath_batch_put(batch, fruit, "plum", 4, "", 0));
  CHECK(isobath_batch_write(source, batch));
  isobath_batch_free(batch);
  EXPECT(follow(changes, copy, kinds) == 3);
  EXPECT(kinds[ISOBATH_CHANGE_PUT] == 3 && kinds[ISOBATH_CHANGE_REMOVE] == 1);
  expect_equal(source, copy);

  isobath_tree *brief = tree_of(source, "brief");
  CHECK(isobath_tree_drop(source, "brief"));
  isobath_tree_free(brief);
  char *film = calloc(1, 200000);
  CHECK(isobath_put(fruit, "film", 4, film, 200000));
  free(film);
  follow(changes, copy, kinds);
  EXPECT(kinds[ISOBATH_CHANGE_CREATE] == 1 && kinds[ISOBATH_CHANGE_DROP] == 1 && kinds[ISOBATH_CHANGE_PUT] == 1);
  expect_equal(source, copy);
  EXPECT(isobath_changes_position(changes, position, 4) == ISOBATH_BUFFER);
  CHECK(isobath_changes_position(changes, position, 64));
  isobath_changes_free(changes);
  isobath_tree_free(fruit);
}

/* Goes on at the position: what was committed while there was no stream, a loaded tree too. */
static void resumes(isobath_store *source, isobath_store *copy, char position[64]) {
  int kinds[KINDS];
  isobath_tree *numbers = tree_of(source, "numbers");
  isobath_loader *loader;
  CHECK(isobath_loader_new(numbers, &loader));
  for (uint32_t i = 0; i < 3000; i++) CHECK(isobath_loader_push(loader, &i, sizeof i, "a number", 8));
  CHECK(isobath_loader_finish(loader, NULL));
  isobath_loader_free(loader);
  isobath_tree_free(numbers);
  isobath_changes *changes;
  CHECK(isobath_changes_open(source, position, &changes));
  follow(changes, copy, kinds);
  EXPECT(kinds[ISOBATH_CHANGE_REPLACE] == 1 && kinds[ISOBATH_CHANGE_PUT] == 3000 && kinds[ISOBATH_CHANGE_WHOLE] == 0);
  expect_equal(source, copy);
  CHECK(isobath_changes_position(changes, position, 64));
  EXPECT(isobath_changes_next(changes, 20) == ISOBATH_NOT_FOUND);
  isobath_changes_free(changes);
  EXPECT(isobath_changes_open(source, "nowhere", &changes) == ISOBATH_OPTION);
}

struct later {
  isobath_tree *tree;
  isobath_changes *changes;
};

static void *put_later(void *argument) {
  struct later *later = argument;
  usleep(50000);
  put(later->tree, "late", "ripe");
  return NULL;
}

static void *stop_later(void *argument) {
  struct later *later = argument;
  usleep(50000);
  CHECK(isobath_changes_stop(later->changes));
  return NULL;
}

/* A stream that waits is woken by a commit and by a stop, long before its time is over. */
static void waits(isobath_store *source, const char *position) {
  struct later later = {tree_of(source, "fruit"), NULL};
  CHECK(isobath_changes_open(source, position, &later.changes));
  time_t begun = time(NULL);
  pthread_t thread;
  EXPECT(pthread_create(&thread, NULL, put_later, &later) == 0);
  CHECK(isobath_changes_next(later.changes, WAIT_MS));
  pthread_join(thread, NULL);
  isobath_change change;
  CHECK(isobath_changes_change(later.changes, &change));
  EXPECT(change.kind == ISOBATH_CHANGE_PUT && change.value.length == 4);
  EXPECT(pthread_create(&thread, NULL, stop_later, &later) == 0);
  EXPECT(isobath_changes_next(later.changes, WAIT_MS) == ISOBATH_NOT_FOUND);
  pthread_join(thread, NULL);
  EXPECT((time(NULL) - begun) * 1000 < WAIT_MS);
  isobath_changes_free(later.changes);
  isobath_tree_free(later.tree);
}

/* Another process would read so, while this one writes. */
static void follows_beside(const char *path, isobath_options *options, isobath_store *source, isobath_store *copy,
                           const char *position) {
  int kinds[KINDS];
  isobath_changes *changes;
  CHECK(isobath_changes_open_beside(&path, 1, options, position, &changes));
  EXPECT(follow(changes, copy, kinds) == 1 && kinds[ISOBATH_CHANGE_PUT] == 1);
  expect_equal(source, copy);
  isobath_changes_free(changes);
}

/* Commits more than the log has; neither an old position nor a stream that was left behind goes on. */
static void is_overrun(isobath_store *source, const char *position) {
  isobath_changes *changes, *second;
  CHECK(isobath_changes_open(source, position, &changes));
  isobath_tree *fruit = tree_of(source, "fruit");
  char value[1000] = {0};
  for (int i = 0; i < 100; i++) {
    isobath_batch *batch = isobath_batch_new();
    for (int j = 0; j < 100; j++) CHECK(isobath_batch_put(batch, fruit, &j, sizeof j, value, sizeof value));
    CHECK(isobath_batch_write(source, batch));
    isobath_batch_free(batch);
  }
  int status;
  while ((status = isobath_changes_next(changes, 0)) == ISOBATH_OK) continue;
  EXPECT(status == ISOBATH_OVERRUN && strstr(isobath_last_error(), "log") != NULL);
  EXPECT(isobath_changes_open(source, position, &second) == ISOBATH_OVERRUN);
  isobath_changes_free(changes);
  isobath_tree_free(fruit);
}

int main(int argc, char **argv) {
  if (argc < 2) return 2;
  isobath_options *options = isobath_options_new();
  CHECK(isobath_options_set(options, "pool_bytes", "8MiB"));
  CHECK(isobath_options_set(options, "log_bytes", "4MiB"));
  CHECK(isobath_options_set_number(options, "workers", 1));
  if (argc > 2) CHECK(isobath_options_set(options, "backend", argv[2]));
  const char *path = argv[1];
  char copy_path[4096];
  snprintf(copy_path, sizeof copy_path, "%s.copy", path);
  isobath_store *source, *copy;
  CHECK(isobath_store_create(&path, 1, options, &source));
  CHECK(isobath_options_set(options, "durability", "none"));
  CHECK(isobath_store_create(&(const char *){copy_path}, 1, options, &copy));

  char position[64], early[64];
  CHECK(isobath_log_position(source, early, sizeof early));
  copies(source, copy, position);
  resumes(source, copy, position);
  waits(source, position);

  bool is_alone = argc > 3;
  if (!is_alone) follows_beside(path, options, source, copy, position);
  is_overrun(source, early);

  isobath_changes *inside, *beside = NULL;
  CHECK(isobath_changes_open(source, NULL, &inside));
  if (!is_alone) {
    CHECK(isobath_changes_open_beside(&path, 1, options, NULL, &beside));
    CHECK(isobath_changes_next(beside, WAIT_MS));
  }
  CHECK(isobath_store_close(source));
  EXPECT(isobath_changes_next(inside, WAIT_MS) == ISOBATH_CLOSED);
  if (!is_alone) EXPECT(isobath_changes_next(beside, WAIT_MS) == ISOBATH_CLOSED);
  isobath_changes_free(inside);
  isobath_changes_free(beside);
  isobath_store_free(source);
  CHECK(isobath_store_close(copy));
  isobath_store_free(copy);
  isobath_options_free(options);
  printf("done\n");
  return 0;
}
