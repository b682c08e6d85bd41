/*
 * Isobath for C and C++: an embedded, transactional, ordered key-value engine. Generated from src/abi; do not edit.
 *
 * Functions that can fail return a status; isobath_last_error() has the message of the calling thread's last failed call. Each
 * function says which threads may call it: "any thread" means any number at the same time; "one thread at a time" means that calls
 * with the same object must not overlap. Objects are freed by their own function, after their last use. A store that was closed
 * stays valid until it is freed. NULL where an object belongs is answered with ISOBATH_NULL. Callbacks must not unwind.
 */

#ifndef ISOBATH_H
#define ISOBATH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Most bytes of a key.
#define ISOBATH_MAX_KEY_BYTES 1024

// Most bytes of a value.
#define ISOBATH_MAX_VALUE_BYTES (1 << 30)

// What every function that can fail returns. `ISOBATH_NOT_FOUND` is an answer, all that follow are
// errors.
typedef enum isobath_status {
  // Done.
  ISOBATH_OK = 0,
  // Done: there is no such record, or nothing is left.
  ISOBATH_NOT_FOUND = 1,
  // A pointer that must not be NULL is.
  ISOBATH_NULL = 2,
  // An argument makes no sense.
  ISOBATH_ARGUMENT = 3,
  // An option has a value that cannot work.
  ISOBATH_OPTION = 4,
  // The buffer is too small; the needed length was written.
  ISOBATH_BUFFER = 5,
  // A key is longer than ISOBATH_MAX_KEY_BYTES.
  ISOBATH_KEY_TOO_LONG = 6,
  // A value is longer than ISOBATH_MAX_VALUE_BYTES.
  ISOBATH_VALUE_TOO_LONG = 7,
  // No store can be there, or be opened: the message says why.
  ISOBATH_OPEN = 8,
  // Another process, or this one, has the store open.
  ISOBATH_IN_USE = 9,
  // There is no tree of that name.
  ISOBATH_NO_TREE = 10,
  // A tree of that name exists already.
  ISOBATH_TREE_EXISTS = 11,
  // The tree was dropped.
  ISOBATH_TREE_DROPPED = 12,
  // Another transaction was first: run this one again from its beginning.
  ISOBATH_CONFLICT = 13,
  // What the snapshot reads is gone: begin again.
  ISOBATH_TOO_OLD = 14,
  // The transaction replaces more pages than one log record can name, or has too many
  // savepoints.
  ISOBATH_TOO_LARGE = 15,
  // The store, or the transaction, is for reading only.
  ISOBATH_READ_ONLY = 16,
  // The volume, or its file system, has no space left.
  ISOBATH_FULL = 17,
  // Stored bytes differ from the written ones.
  ISOBATH_CORRUPT = 18,
  // Reading or writing failed.
  ISOBATH_IO = 19,
  // A write failed earlier: the store takes no more changes until it is opened again.
  ISOBATH_POISONED = 20,
  // The store, or the transaction, was ended.
  ISOBATH_CLOSED = 21,
  // A callback ended the work.
  ISOBATH_INTERRUPTED = 22,
  // As many requests are in flight as the queue may have.
  ISOBATH_QUEUE_FULL = 23,
  // A value is not the one that was expected; what there is instead was written.
  ISOBATH_DIFFERENT = 24,
  // The library failed: please report it.
  ISOBATH_PANIC = 25,
  // Any other error; the message says which.
  ISOBATH_OTHER = 26,
  // The value was replaced or removed while it was read: read it again from its beginning.
  ISOBATH_REPLACED = 27,
  // The log no longer has what a stream of changes asks for: begin again, with all trees.
  ISOBATH_OVERRUN = 28,
} isobath_status;

// The kind of a change.
typedef enum isobath_change_kind {
  // The key has the value from now on.
  ISOBATH_CHANGE_PUT = 0,
  // The key has no value any more.
  ISOBATH_CHANGE_REMOVE = 1,
  // The tree was created, without records.
  ISOBATH_CHANGE_CREATE = 2,
  // The tree was dropped.
  ISOBATH_CHANGE_DROP = 3,
  // The tree has no records from the key on, but those that follow, each as a put.
  ISOBATH_CHANGE_REPLACE = 4,
  // First of all: the store has no trees but those that follow.
  ISOBATH_CHANGE_WHOLE = 5,
} isobath_change_kind;

// When commits are acknowledged.
typedef enum isobath_durability {
  // Once they are on the drive, its volatile cache included.
  ISOBATH_SYNCED = 0,
  // At once; on the drive within so many milliseconds.
  ISOBATH_BUFFERED = 1,
  // At once; on the drive when something else makes it so.
  ISOBATH_NONE = 2,
} isobath_durability;

// The isolation of a transaction.
typedef enum isobath_isolation {
  // It commits only if nothing that it writes was changed since it began.
  ISOBATH_SNAPSHOT = 0,
  // And nothing that it has read.
  ISOBATH_SERIALIZABLE = 1,
} isobath_isolation;

// What a request does.
typedef enum isobath_operation {
  // Reads the value of `key`.
  ISOBATH_OP_GET = 0,
  // Gives `key` the value `value`.
  ISOBATH_OP_PUT = 1,
  // Removes `key`.
  ISOBATH_OP_DELETE = 2,
  // Asks whether `key` has a value.
  ISOBATH_OP_CONTAINS = 3,
  // Commits `transaction`, which has ended when this returns.
  ISOBATH_OP_COMMIT = 4,
} isobath_operation;

// Changes of any trees of one store. One thread at a time.
typedef struct isobath_batch isobath_batch;

// The committed changes of a store, in order. One thread at a time, but for isobath_changes_stop.
typedef struct isobath_changes isobath_changes;

// Records in key order. One thread at a time.
typedef struct isobath_iterator isobath_iterator;

// Takes records in any order and stores them sorted. One thread at a time.
typedef struct isobath_loader isobath_loader;

// How a store is created and opened. One thread at a time.
typedef struct isobath_options isobath_options;

// Requests in flight and their completions. One thread at a time submits and polls;
// isobath_queue_set_limits and isobath_queue_get_counters may be called from any thread. A program
// has one for each thread.
typedef struct isobath_queue isobath_queue;

// A value that is being read. One thread at a time.
typedef struct isobath_reader isobath_reader;

// An open store. Every function may be called from any thread, also at the same time.
typedef struct isobath_store isobath_store;

// A transaction over all trees of a store. It reads the store as it was when it began, together
// with its own changes. One thread at a time; it may move between threads.
typedef struct isobath_transaction isobath_transaction;

// A named tree of a store: an ordered map from bytes to bytes. Every function may be called from
// any thread, also at the same time.
typedef struct isobath_tree isobath_tree;

// A value that is being written. One thread at a time.
typedef struct isobath_writer isobath_writer;

// Bytes of the library's memory, to be freed by isobath_bytes_free. `data` is NULL only where
// nothing was found.
typedef struct isobath_bytes {
  // Where they are.
  uint8_t *data;
  // How many.
  size_t length;
} isobath_bytes;

// Called with the name of each tree, which ends with a zero and is valid during the call.
typedef void (*isobath_tree_visitor)(void *argument, const char *name);

// Bytes of the program's memory.
typedef struct isobath_slice {
  // Where they are; may be NULL if there are none.
  const void *data;
  // How many.
  size_t length;
} isobath_slice;

// Called with what a key has, `old_value`, or NULL if it has nothing. Returns what it is to
// have: `new_value` is the program's memory until the next call or isobath_update's return; one
// whose `data` is NULL removes the key. Must not call the library.
typedef void (*isobath_update_function)(void *argument,
                                        const struct isobath_slice *old_value,
                                        struct isobath_slice *new_value);

// One end of a range.
typedef struct isobath_bound {
  // The key.
  struct isobath_slice key;
  // Whether the key itself belongs to the range.
  bool inclusive;
} isobath_bound;

// How a transaction runs. All zeros: snapshot isolation, the store's durability, reading and
// writing.
typedef struct isobath_transaction_options {
  // An isobath_isolation.
  int32_t isolation;
  // Refuses changes: a snapshot of the store.
  bool read_only;
  // Whether `durability` counts; else the store's does.
  bool has_durability;
  // An isobath_durability.
  int32_t durability;
  // Milliseconds, if that is ISOBATH_BUFFERED.
  uint32_t window_ms;
} isobath_transaction_options;

// What isobath_transact runs: ISOBATH_OK has it commit, anything else has it roll back. It must
// not end the transaction.
typedef int32_t (*isobath_work)(void *argument, struct isobath_transaction *transaction);

// Fills `buffer` with up to `capacity` bytes of a value and says how many in `length`, 0 at the
// end. Anything but ISOBATH_OK ends the work with that status.
typedef int32_t (*isobath_source)(void *argument, void *buffer, size_t capacity, size_t *length);

// How a request went.
typedef struct isobath_completion {
  // As given.
  void *user_data;
  // An isobath_operation.
  int32_t operation;
  // An isobath_status.
  int32_t status;
  // The value that ISOBATH_OP_GET has read. One from isobath_queue_poll is freed by
  // isobath_bytes_free.
  struct isobath_bytes value;
} isobath_completion;

// Called with a completion, which is valid during the call; `value` is the library's there. Must
// not close the store or free the queue; may submit.
typedef void (*isobath_callback)(const struct isobath_completion *completion);

// A request. What it points to is copied when it is submitted.
typedef struct isobath_request {
  // An isobath_operation.
  int32_t operation;
  // The tree of all but ISOBATH_OP_COMMIT.
  const struct isobath_tree *tree;
  // The transaction of ISOBATH_OP_COMMIT.
  struct isobath_transaction *transaction;
  // The key.
  const void *key;
  // Its bytes.
  size_t key_length;
  // The value of ISOBATH_OP_PUT.
  const void *value;
  // Its bytes.
  size_t value_length;
  // Given back with the completion.
  void *user_data;
  // Called with the completion; NULL: isobath_queue_poll returns it.
  isobath_callback callback;
} isobath_request;

// Numbers of a queue.
typedef struct isobath_queue_counters {
  // Requests that were accepted.
  uint64_t issued;
  // Of those, the ones that were not handed over yet.
  uint64_t in_flight;
  // Requests that were handed over.
  uint64_t completed;
  // Of those, the ones that failed.
  uint64_t failed;
  // The most that ever were in flight.
  uint64_t in_flight_max;
  // Bytes of values that were moved.
  uint64_t bytes;
} isobath_queue_counters;

// One change. What it points at is the stream's, valid until the next call.
typedef struct isobath_change {
  // What was changed.
  enum isobath_change_kind kind;
  // The tree's name, in UTF-8, without a zero at its end.
  struct isobath_slice tree;
  // The key.
  struct isobath_slice key;
  // The value of a put.
  struct isobath_slice value;
} isobath_change;

// What compaction has gained, in bytes.
typedef struct isobath_compaction {
  // The volume's length before.
  uint64_t bytes_before;
  // The volume's length after.
  uint64_t bytes_after;
  // Bytes that block devices were asked to discard.
  uint64_t bytes_discarded;
} isobath_compaction;

// Called with the progress of long work: how much is done of how much, 0 if that is not known.
// Returning false ends the work, if the function says so. Must not call the library.
typedef bool (*isobath_progress)(void *argument, uint64_t is_done, uint64_t total);

// What a check found.
typedef struct isobath_check_report {
  // Named trees.
  uint64_t trees;
  // Their pages.
  uint64_t pages;
  // Their records.
  uint64_t records;
  // Chunks of large values.
  uint64_t value_chunks;
  // Bytes that were read and verified.
  uint64_t bytes_verified;
  // The problem.
  uint64_t problem_count;
  // A sentence for each, in lines; freed by isobath_bytes_free. `data` is NULL if nothing is
  // wrong.
  struct isobath_bytes problems;
} isobath_check_report;

// What a tree holds; estimated unless `is_exact`.
typedef struct isobath_tree_stats {
  // Nothing is estimated.
  bool is_exact;
  // Levels, that of the leaves included.
  uint64_t levels;
  // Pages that hold records.
  uint64_t leaf_pages;
  // Pages above them.
  uint64_t inner_pages;
  // Records.
  uint64_t records;
  // Bytes of all keys.
  uint64_t key_bytes;
  // Bytes of all values.
  uint64_t value_bytes;
  // Values that have chunks of their own.
  uint64_t large_values;
  // Bytes of those.
  uint64_t large_value_bytes;
  // Bytes of pages and large values.
  uint64_t bytes;
  // Share of the leaves' bytes that is in use, 0 to 1.
  double leaf_fill;
  // Records of the tree's overlays in memory, removals included.
  uint64_t memory_records;
  // Runs of its overlays.
  uint64_t runs;
  // Their records that are to be merged, removals included.
  uint64_t run_records;
  // Bytes of their pages.
  uint64_t run_bytes;
} isobath_tree_stats;

// What a backup consists of.
typedef struct isobath_backup_report {
  // Pages and chunks of large values in the file.
  uint64_t pages;
  // Their bytes.
  uint64_t page_bytes;
  // Bytes of log records in the file.
  uint64_t log_bytes;
  // Bytes of the file.
  uint64_t file_bytes;
} isobath_backup_report;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The message of the calling thread's last call that failed, in a sentence for people. Valid until
// the thread's next call that fails; never NULL. Any thread.
const char *isobath_last_error(void);

// The name of a status, such as "ISOBATH_OK"; never NULL. Any thread.
const char *isobath_status_name(int32_t status);

// Whether the same work, such as a transaction, may succeed when it is run again from its
// beginning. Any thread.
bool isobath_status_is_retryable(int32_t status);

// The library's version, such as "0.1.0"; never NULL. Any thread.
const char *isobath_version(void);

// Frees what the library gave. Does nothing if `data` is NULL. Any thread.
void isobath_bytes_free(struct isobath_bytes bytes);

// Options with their defaults, which fit the machine. Freed by isobath_options_free. Any thread.
struct isobath_options *isobath_options_new(void);

// Frees options; stores that were opened with them are not concerned. One thread at a time.
void isobath_options_free(struct isobath_options *options);

// Sets an option by its name, as the book's page on tuning lists them, to a value in text: numbers
// in decimal; sizes in bytes, or with KiB, MiB, GiB behind them; "true" and "false"; names such as
// "mdc" for `cleaning_policy`, "io_uring", "libaio", "pread", "auto" for `backend`, "auto",
// "required", "off" for `direct`; "synced", "buffered:MILLISECONDS", "none" for `durability`;
// milliseconds for `open_timeout`. One thread at a time.
enum isobath_status isobath_options_set(struct isobath_options *options, const char *name, const char *value);

// Sets a number, as isobath_options_set does. One thread at a time.
enum isobath_status isobath_options_set_number(struct isobath_options *options, const char *name, uint64_t value);

// Creates a store on files that do not exist yet, or block devices that hold no data; several are
// striped. `options` may be NULL. The store is closed by isobath_store_close and freed by
// isobath_store_free. Any thread.
enum isobath_status isobath_store_create(const char *const *paths,
                                         size_t count,
                                         const struct isobath_options *options,
                                         struct isobath_store **out);

// Opens an existing store, with the paths in the order of its creation; recovers one that was not
// closed. Any thread.
enum isobath_status isobath_store_open(const char *const *paths,
                                       size_t count,
                                       const struct isobath_options *options,
                                       struct isobath_store **out);

// Opens a store, or creates it if nothing is there yet. Any thread.
enum isobath_status isobath_store_open_or_create(const char *const *paths,
                                                 size_t count,
                                                 const struct isobath_options *options,
                                                 struct isobath_store **out);

// A store in memory, gone when it is closed. Any thread.
enum isobath_status isobath_store_in_memory(const struct isobath_options *options, struct isobath_store **out);

// Whether a store was not closed, so that its next opening for writing recovers it: ISOBATH_OK if
// so, ISOBATH_NOT_FOUND if not. Any thread.
enum isobath_status isobath_store_needs_recovery(const char *const *paths,
                                                 size_t count,
                                                 const struct isobath_options *options);

// Writes a checkpoint and closes the store. Calls under way end first; later ones on the store and
// everything of it answer ISOBATH_CLOSED. Closing a closed store answers as the first time. Any
// thread, but not in a callback of a queue.
enum isobath_status isobath_store_close(struct isobath_store *store);

// Frees a store; one that is open is closed when nothing of it is left. NULL does nothing. Any
// thread; no other may use the store any more.
void isobath_store_free(struct isobath_store *store);

// Makes the tree `name`. Its handle is freed by isobath_tree_free. Any thread.
enum isobath_status isobath_tree_create(const struct isobath_store *store, const char *name, struct isobath_tree **out);

// The existing tree `name`. Any thread.
enum isobath_status isobath_tree_open(const struct isobath_store *store, const char *name, struct isobath_tree **out);

// The tree `name`, made if there is none. Any thread.
enum isobath_status isobath_tree_open_or_create(const struct isobath_store *store,
                                                const char *name,
                                                struct isobath_tree **out);

// Drops the tree `name` with all its records. Handles on it answer ISOBATH_TREE_DROPPED from now
// on. Any thread.
enum isobath_status isobath_tree_drop(const struct isobath_store *store, const char *name);

// Calls `visit` for all trees, by name. Any thread.
enum isobath_status isobath_trees(const struct isobath_store *store, isobath_tree_visitor visit, void *argument);

// Frees a handle; the tree stays. NULL does nothing. Any thread; no other may use the handle any
// more.
void isobath_tree_free(struct isobath_tree *tree);

// Reads the value of a key, to be freed by isobath_bytes_free. ISOBATH_NOT_FOUND if there is
// none. Any thread.
enum isobath_status isobath_get(const struct isobath_tree *tree,
                                const void *key,
                                size_t key_length,
                                struct isobath_bytes *value);

// Reads the value of a key into the program's buffer, and its whole length. ISOBATH_BUFFER where
// it is longer than the buffer, which then has its beginning. Any thread.
enum isobath_status isobath_get_into(const struct isobath_tree *tree,
                                     const void *key,
                                     size_t key_length,
                                     void *buffer,
                                     size_t capacity,
                                     size_t *length);

// Whether a key has a value: ISOBATH_OK or ISOBATH_NOT_FOUND. Any thread.
enum isobath_status isobath_contains(const struct isobath_tree *tree, const void *key, size_t key_length);

// Reads the values of many keys at once, which is the fastest way to read many. `values` has space
// for `count`; each has `data` NULL if there is none, and is freed by isobath_bytes_free. Any
// thread.
enum isobath_status isobath_get_many(const struct isobath_tree *tree,
                                     const struct isobath_slice *keys,
                                     size_t count,
                                     struct isobath_bytes *values);

// Gives a key a value, whether it had one or not. Durable when this returns, unless the store's
// options say otherwise. Any thread.
enum isobath_status isobath_put(const struct isobath_tree *tree,
                                const void *key,
                                size_t key_length,
                                const void *value,
                                size_t value_length);

// Removes a key: ISOBATH_NOT_FOUND if it had no value. Any thread.
enum isobath_status isobath_delete(const struct isobath_tree *tree, const void *key, size_t key_length);

// Gives a key the value `new_value` if it has the value `old_value`, in one step; NULL stands for
// no value. Else ISOBATH_DIFFERENT, and what it has instead in `current` (which may be NULL). Any
// thread.
enum isobath_status isobath_compare_and_swap(const struct isobath_tree *tree,
                                             const void *key,
                                             size_t key_length,
                                             const struct isobath_slice *old_value,
                                             const struct isobath_slice *new_value,
                                             struct isobath_bytes *current);

// Changes a record by what it has, in one step: if another change comes between, `change` is
// called again with what the key has then. Any thread.
enum isobath_status isobath_update(const struct isobath_tree *tree,
                                   const void *key,
                                   size_t key_length,
                                   isobath_update_function change,
                                   void *argument);

// Counts the records of a range. A bound that is NULL is none. Any thread.
enum isobath_status isobath_count(const struct isobath_tree *tree,
                                  const struct isobath_bound *lower,
                                  const struct isobath_bound *upper,
                                  uint64_t *count);

// Removes the records of a range, some hundred in each commit, and counts them. `removed` may be
// NULL. Any thread.
enum isobath_status isobath_delete_range(const struct isobath_tree *tree,
                                         const struct isobath_bound *lower,
                                         const struct isobath_bound *upper,
                                         uint64_t *removed);

// Begins to load records. Freed by isobath_loader_free. Any thread.
enum isobath_status isobath_loader_new(const struct isobath_tree *tree, struct isobath_loader **out);

// Takes one record. One thread at a time.
enum isobath_status isobath_loader_push(struct isobath_loader *loader,
                                        const void *key,
                                        size_t key_length,
                                        const void *value,
                                        size_t value_length);

// Stores all records, and says how many there are, those of the same key counted once. `stored`
// may be NULL. One thread at a time.
enum isobath_status isobath_loader_finish(struct isobath_loader *loader, uint64_t *stored);

// Frees a loader; one that has not finished leaves the tree as it was. NULL does nothing. One
// thread at a time.
void isobath_loader_free(struct isobath_loader *loader);

// A batch without changes. Freed by isobath_batch_free. Any thread.
struct isobath_batch *isobath_batch_new(void);

// Frees a batch. NULL does nothing. One thread at a time.
void isobath_batch_free(struct isobath_batch *batch);

// Adds a change: the key is to have the value. One thread at a time.
enum isobath_status isobath_batch_put(struct isobath_batch *batch,
                                      const struct isobath_tree *tree,
                                      const void *key,
                                      size_t key_length,
                                      const void *value,
                                      size_t value_length);

// Adds a change: the key is to have no value. One thread at a time.
enum isobath_status isobath_batch_delete(struct isobath_batch *batch,
                                         const struct isobath_tree *tree,
                                         const void *key,
                                         size_t key_length);

// Keys that the batch changes; 0 for NULL. One thread at a time.
size_t isobath_batch_length(const struct isobath_batch *batch);

// Forgets all changes. One thread at a time.
void isobath_batch_clear(struct isobath_batch *batch);

// Commits all changes at once. The batch stays as it is. Any thread, while none changes the batch.
enum isobath_status isobath_batch_write(const struct isobath_store *store, const struct isobath_batch *batch);

// Begins a transaction; `options` may be NULL. Freed by isobath_transaction_free, whether it was
// committed or not. Any thread.
enum isobath_status isobath_transaction_begin(const struct isobath_store *store,
                                              const struct isobath_transaction_options *options,
                                              struct isobath_transaction **out);

// Makes all changes visible and lasting, or none; either way the transaction has ended. After
// ISOBATH_CONFLICT and ISOBATH_TOO_OLD the same may succeed in a new one. One thread at a time.
enum isobath_status isobath_transaction_commit(struct isobath_transaction *transaction);

// Ends a transaction without changing anything. One thread at a time.
enum isobath_status isobath_transaction_rollback(struct isobath_transaction *transaction);

// Frees a transaction; one that has not ended is rolled back. NULL does nothing. One thread at a
// time.
void isobath_transaction_free(struct isobath_transaction *transaction);

// Runs `work` in a transaction and commits it. If other transactions were first, in the work or
// at its commit, runs it again in a new transaction, at most 64 times. The status of the work, or
// of the commit. Any thread.
int32_t isobath_transact(const struct isobath_store *store,
                         const struct isobath_transaction_options *options,
                         isobath_work work,
                         void *argument);

// The value of a key for this transaction, to be freed by isobath_bytes_free. ISOBATH_NOT_FOUND
// if there is none. One thread at a time.
enum isobath_status isobath_transaction_get(const struct isobath_transaction *transaction,
                                            const struct isobath_tree *tree,
                                            const void *key,
                                            size_t key_length,
                                            struct isobath_bytes *value);

// Whether a key has a value for this transaction: ISOBATH_OK or ISOBATH_NOT_FOUND. One thread at a
// time.
enum isobath_status isobath_transaction_contains(const struct isobath_transaction *transaction,
                                                 const struct isobath_tree *tree,
                                                 const void *key,
                                                 size_t key_length);

// The values of many keys, as isobath_get_many. One thread at a time.
enum isobath_status isobath_transaction_get_many(const struct isobath_transaction *transaction,
                                                 const struct isobath_tree *tree,
                                                 const struct isobath_slice *keys,
                                                 size_t count,
                                                 struct isobath_bytes *values);

// Gives a key a value. One thread at a time.
enum isobath_status isobath_transaction_put(struct isobath_transaction *transaction,
                                            const struct isobath_tree *tree,
                                            const void *key,
                                            size_t key_length,
                                            const void *value,
                                            size_t value_length);

// Gives a key a large value that `source` hands out in pieces. One thread at a time.
enum isobath_status isobath_transaction_put_from(struct isobath_transaction *transaction,
                                                 const struct isobath_tree *tree,
                                                 const void *key,
                                                 size_t key_length,
                                                 isobath_source source,
                                                 void *argument);

// Removes a key: ISOBATH_NOT_FOUND if it had no value. One thread at a time.
enum isobath_status isobath_transaction_delete(struct isobath_transaction *transaction,
                                               const struct isobath_tree *tree,
                                               const void *key,
                                               size_t key_length);

// Remembers the changes so far; the savepoint's number. One thread at a time.
enum isobath_status isobath_transaction_savepoint(struct isobath_transaction *transaction, size_t *number);

// Undoes all changes since a savepoint, which stays usable; those made after it are gone. One
// thread at a time.
enum isobath_status isobath_transaction_rollback_to(struct isobath_transaction *transaction, size_t number);

// The records of a range, in key order from both ends; a bound that is NULL is none. Safe beside
// writers: a record that is there during the whole iteration is found exactly once. Freed by
// isobath_iterator_free. Any thread.
enum isobath_status isobath_range(const struct isobath_tree *tree,
                                  const struct isobath_bound *lower,
                                  const struct isobath_bound *upper,
                                  struct isobath_iterator **out);

// The keys of a range with the lengths of their values, in key order from both ends; no large
// value is read. Each value that the iterator gives has the data NULL, and its length. Otherwise
// as isobath_range. Any thread.
enum isobath_status isobath_keys(const struct isobath_tree *tree,
                                 const struct isobath_bound *lower,
                                 const struct isobath_bound *upper,
                                 struct isobath_iterator **out);

// The records whose keys begin with a prefix. Otherwise as isobath_range. Any thread.
enum isobath_status isobath_prefix(const struct isobath_tree *tree,
                                   const void *prefix,
                                   size_t prefix_length,
                                   struct isobath_iterator **out);

// The records of a range as a transaction sees them, its own changes included; whether it finds
// those that the transaction makes while it iterates is not said. To be freed before the
// transaction ends. The transaction's thread.
enum isobath_status isobath_transaction_range(const struct isobath_transaction *transaction,
                                              const struct isobath_tree *tree,
                                              const struct isobath_bound *lower,
                                              const struct isobath_bound *upper,
                                              struct isobath_iterator **out);

// The keys of a range as a transaction sees them, as isobath_keys. Otherwise as
// isobath_transaction_range. The transaction's thread.
enum isobath_status isobath_transaction_keys(const struct isobath_transaction *transaction,
                                             const struct isobath_tree *tree,
                                             const struct isobath_bound *lower,
                                             const struct isobath_bound *upper,
                                             struct isobath_iterator **out);

// The next record by key; ISOBATH_NOT_FOUND at the end. Key and value are the iterator's, valid
// until its next call. Either may be NULL. One thread at a time.
enum isobath_status isobath_iterator_next(struct isobath_iterator *iterator,
                                          struct isobath_slice *key,
                                          struct isobath_slice *value);

// The next record from the range's end. Otherwise as isobath_iterator_next; the two meet. One
// thread at a time.
enum isobath_status isobath_iterator_previous(struct isobath_iterator *iterator,
                                              struct isobath_slice *key,
                                              struct isobath_slice *value);

// Frees an iterator. NULL does nothing. One thread at a time.
void isobath_iterator_free(struct isobath_iterator *iterator);

// Begins a value of up to ISOBATH_MAX_VALUE_BYTES, which appears under its key when
// isobath_writer_finish returns. Freed by isobath_writer_free. Any thread.
enum isobath_status isobath_writer_new(const struct isobath_tree *tree,
                                       const void *key,
                                       size_t key_length,
                                       struct isobath_writer **out);

// Appends bytes; nothing of them if it fails. One thread at a time.
enum isobath_status isobath_writer_append(struct isobath_writer *writer, const void *data, size_t length);

// Makes the value visible under its key. One thread at a time.
enum isobath_status isobath_writer_finish(struct isobath_writer *writer);

// Frees a writer; one that has not finished leaves the tree as it was. NULL does nothing. One
// thread at a time.
void isobath_writer_free(struct isobath_writer *writer);

// Begins to read a value; ISOBATH_NOT_FOUND if there is none. Once a large value is replaced or
// removed, reading it answers ISOBATH_REPLACED. Freed by isobath_reader_free. Any thread.
enum isobath_status isobath_reader_new(const struct isobath_tree *tree,
                                       const void *key,
                                       size_t key_length,
                                       struct isobath_reader **out);

// Begins to read a value as a transaction sees it. The transaction's thread; the reader may
// outlive it.
enum isobath_status isobath_transaction_reader_new(const struct isobath_transaction *transaction,
                                                   const struct isobath_tree *tree,
                                                   const void *key,
                                                   size_t key_length,
                                                   struct isobath_reader **out);

// Bytes of the whole value; 0 for NULL. One thread at a time.
uint64_t isobath_reader_length(const struct isobath_reader *reader);

// Reads the next bytes, at most `capacity`; `length` says how many, 0 at the end. One thread at a
// time.
enum isobath_status isobath_reader_read(struct isobath_reader *reader, void *buffer, size_t capacity, size_t *length);

// Frees a reader. NULL does nothing. One thread at a time.
void isobath_reader_free(struct isobath_reader *reader);

// Makes a queue of up to `depth` × `data_tasks` requests in flight (2048 at most), `data_tasks` of
// which are worked on at a time. With `callback_thread`, a thread of the library calls the
// callbacks of all requests, which then must have one; else isobath_queue_poll does. Freed by
// isobath_queue_free. Any thread.
enum isobath_status isobath_queue_new(const struct isobath_store *store,
                                      uint32_t depth,
                                      uint32_t data_tasks,
                                      bool callback_thread,
                                      struct isobath_queue **out);

// Sets the limits of isobath_queue_new again; requests in flight stay. Any thread.
enum isobath_status isobath_queue_set_limits(const struct isobath_queue *queue, uint32_t depth, uint32_t data_tasks);

// Submits a request, whose completion has the result. ISOBATH_QUEUE_FULL if as many are in
// flight as may be: poll, and submit again. Inside a callback the limit does not count. One thread
// at a time.
enum isobath_status isobath_queue_submit(const struct isobath_queue *queue, const struct isobath_request *request);

// Hands over completions: calls the callbacks of those that have one, and writes the others to
// `completions`, at most `capacity`, which is at least 1. Waits up to `timeout_ms` milliseconds
// for the first one, without a limit if that is negative; `count` says how many were written. Ends
// when nothing is in flight. One thread at a time.
enum isobath_status isobath_queue_poll(const struct isobath_queue *queue,
                                       struct isobath_completion *completions,
                                       size_t capacity,
                                       int64_t timeout_ms,
                                       size_t *count);

// The numbers of a queue. Any thread.
enum isobath_status isobath_queue_get_counters(const struct isobath_queue *queue,
                                               struct isobath_queue_counters *counters);

// Waits for requests in flight, calls the remaining callbacks, forgets other completions, and
// frees the queue. NULL does nothing. No other thread may use the queue any more.
void isobath_queue_free(struct isobath_queue *queue);

// Writes the position in the log behind all that is durable into `text`, which has `length` bytes
// (64 suffice), as text with a zero at its end. Changes from a position before a backup began can
// be applied to what is restored from that. Any thread.
enum isobath_status isobath_log_position(const struct isobath_store *store, char *text, size_t length);

// The changes that are committed from the position `from` on; where that is NULL all trees as they
// are now, then the changes. ISOBATH_OVERRUN where the log no longer has what is asked for; so
// answers isobath_changes_next of a stream that has fallen behind. Freed by isobath_changes_free.
// Any thread.
enum isobath_status isobath_changes_open(const struct isobath_store *store,
                                         const char *from,
                                         struct isobath_changes **out);

// As isobath_changes_open, of a store that another process may write. Once that has closed it, the
// stream ends with ISOBATH_CLOSED. `options` may be NULL. Any thread.
enum isobath_status isobath_changes_open_beside(const char *const *paths,
                                                size_t path_count,
                                                const struct isobath_options *options,
                                                const char *from,
                                                struct isobath_changes **out);

// Goes to the next transaction, whatever is left of the one before; ISOBATH_NOT_FOUND if there is
// none after `timeout_ms` milliseconds, or the stream was stopped. One thread at a time.
enum isobath_status isobath_changes_next(struct isobath_changes *changes, uint64_t timeout_ms);

// The next change of the transaction; ISOBATH_NOT_FOUND behind the last one. One thread at a time.
enum isobath_status isobath_changes_change(struct isobath_changes *changes, struct isobath_change *change);

// Writes the position behind the transaction that was given out last into `text`, as
// isobath_log_position. One thread at a time.
enum isobath_status isobath_changes_position(const struct isobath_changes *changes, char *text, size_t length);

// Ends the waiting of isobath_changes_next, now and from now on. Any thread, while another one
// waits.
enum isobath_status isobath_changes_stop(const struct isobath_changes *changes);

// Frees a stream. NULL does nothing. One thread at a time.
void isobath_changes_free(struct isobath_changes *changes);

// Writes a checkpoint now: recovery has to read only later records. Any thread.
enum isobath_status isobath_checkpoint(const struct isobath_store *store);

// Packs the stored data and gives the space behind it back to the file system, while the store is
// used. `gained` may be NULL. Any thread.
enum isobath_status isobath_compact(const struct isobath_store *store, struct isobath_compaction *gained);

// Discards the segments that hold nothing on the drive; `bytes` says how much that was, and may be
// NULL. Any thread.
enum isobath_status isobath_discard_free_segments(const struct isobath_store *store, uint64_t *bytes);

// Reads and verifies everything; the store must not be changed during that. ISOBATH_CORRUPT where
// something is wrong, which the report says. `progress` may be NULL and cannot end the work. Any
// thread.
enum isobath_status isobath_check(const struct isobath_store *store,
                                  isobath_progress progress,
                                  void *argument,
                                  struct isobath_check_report *report);

// All statistics, one name and number per line, without a zero at the end; freed by
// isobath_bytes_free. Any thread.
enum isobath_status isobath_stats_text(const struct isobath_store *store, struct isobath_bytes *text);

// All statistics in the OpenMetrics format, for Prometheus; freed by isobath_bytes_free. Any
// thread.
enum isobath_status isobath_stats_openmetrics(const struct isobath_store *store, struct isobath_bytes *text);

// The statistics of a store that another process has open, as isobath_stats_text. Any thread.
enum isobath_status isobath_stats_of_store_in_use(const char *path, struct isobath_bytes *text);

// One number of the statistics by its name, such as "commits"; ISOBATH_NOT_FOUND if there is
// none of that name. Any thread.
enum isobath_status isobath_stat(const struct isobath_store *store, const char *name, uint64_t *value);

// What a tree holds. Any thread.
enum isobath_status isobath_tree_get_stats(const struct isobath_tree *tree, struct isobath_tree_stats *stats);

// Writes a backup of the store to the new file `to`, while the store is used; only what has
// changed since the backup `since`, unless that is NULL. Returning false from `progress` ends it
// with ISOBATH_INTERRUPTED. `progress` and `report` may be NULL. Any thread.
enum isobath_status isobath_backup(const struct isobath_store *store,
                                   const char *to,
                                   const char *since,
                                   isobath_progress progress,
                                   void *argument,
                                   struct isobath_backup_report *report);

// Makes a store on `paths` from a full backup and the incremental ones that follow it. `options`
// and `progress` may be NULL. Any thread.
enum isobath_status isobath_restore(const char *const *backups,
                                    size_t backup_count,
                                    const char *const *paths,
                                    size_t path_count,
                                    const struct isobath_options *options,
                                    isobath_progress progress,
                                    void *argument);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* ISOBATH_H */
