/*
 * Directory trees in a device of kvs_api.h or a store of isobath.h, see docs/files.md. Generated from src/files; do not edit.
 *
 * kvs_create makes keys and values of files outside, kvs_map finds the keys of data, kvs_store and kvs_retrieve move contents, the
 * other functions change names. Each change is atomic and survives crashes. Paths are bytes that end with a zero; they begin at the
 * root, with or without a slash. Functions that can fail return a result code; kvs_files_last_error() has the message of the calling
 * thread's last failed call. Pointers must be valid or NULL, which is KVS_FILES_ERR_NULL where something belongs.
 */

#ifndef KVS_FILES_H
#define KVS_FILES_H

#include "isobath.h"
#include "kvs_api.h"

// Replaces the entry at the path, with all below it.
#define KVS_CREATE_REPLACE 1

// Leaves out sockets, pipes and devices.
#define KVS_CREATE_SKIP_SPECIAL 2

// What every function that can fail returns. `kvs_files_last_error` has the message.
typedef enum kvs_files_result {
  // Done.
  KVS_FILES_OK = 0,
  // There is nothing of that name, or no tree of that name in the store.
  KVS_FILES_ERR_NOT_FOUND = 1,
  // The name is taken.
  KVS_FILES_ERR_EXISTS = 2,
  // A part of the path is no directory, or a directory is needed. Symbolic links are not
  // followed.
  KVS_FILES_ERR_NOT_A_DIRECTORY = 3,
  // A directory cannot be read, linked or removed as a file is.
  KVS_FILES_ERR_IS_A_DIRECTORY = 4,
  // The directory has entries.
  KVS_FILES_ERR_NOT_EMPTY = 5,
  // A regular file is needed.
  KVS_FILES_ERR_NOT_A_FILE = 6,
  // A symbolic link is needed.
  KVS_FILES_ERR_NOT_A_LINK = 7,
  // A name has more than 255 bytes, or the path contains `..`, or names the root where that
  // cannot be; or a link's target is empty or has more than 4095 bytes.
  KVS_FILES_ERR_NAME = 8,
  // A directory cannot be moved into itself.
  KVS_FILES_ERR_INTO_ITSELF = 9,
  // A file has more bytes than offsets can name.
  KVS_FILES_ERR_TOO_LARGE = 10,
  // A file has as many names as can be counted.
  KVS_FILES_ERR_TOO_MANY_LINKS = 11,
  // Contents have another CRC-32C than they were stored with; the message names the file.
  KVS_FILES_ERR_CHECKSUM = 12,
  // Records of the tree, or pages of the store, are corrupt.
  KVS_FILES_ERR_CORRUPT = 13,
  // The tree of that name holds something else than files, or files of a newer version.
  KVS_FILES_ERR_NOT_FILES = 14,
  // The file system outside refused or failed.
  KVS_FILES_ERR_HOST = 15,
  // Sockets, pipes and devices cannot be stored; exports go to names that are free.
  KVS_FILES_ERR_REFUSED = 16,
  // A pointer that must not be NULL is.
  KVS_FILES_ERR_NULL = 17,
  // An argument makes no sense: an index beyond the last one, an offset beyond the end, an
  // unknown flag.
  KVS_FILES_ERR_ARGUMENT = 18,
  // The buffer is too small; the needed length was written.
  KVS_FILES_ERR_BUFFER = 19,
  // The device's handle is NULL, closed or none, or the store was closed.
  KVS_FILES_ERR_CLOSED = 20,
  // The store is open for reading only.
  KVS_FILES_ERR_READ_ONLY = 21,
  // The store has no space left.
  KVS_FILES_ERR_FULL = 22,
  // Other threads have changed the same names each time that the change was tried: try again.
  KVS_FILES_ERR_BUSY = 23,
  // More was changed since the map was made than the store can keep of what it had: make it
  // again.
  KVS_FILES_ERR_TOO_OLD = 24,
  // Reading or writing the store failed, now or before.
  KVS_FILES_ERR_IO = 25,
  // The library failed: please report it.
  KVS_FILES_ERR_PANIC = 26,
  // Any other error; the message says which.
  KVS_FILES_ERR_OTHER = 27,
} kvs_files_result;

// What an entry is.
typedef enum kvs_file_kind {
  // A regular file.
  KVS_FILE_REGULAR = 0,
  // A directory.
  KVS_FILE_DIRECTORY = 1,
  // A symbolic link.
  KVS_FILE_SYMLINK = 2,
} kvs_file_kind;

// Files, or entries of a directory, as they were at one moment, with numbers from 0. Every
// function may be called from any thread, also at the same time.
typedef struct kvs_file_map kvs_file_map;

// A tree of directories, files and links. Every function may be called from any thread, also at
// the same time.
typedef struct kvs_files kvs_files;

// Properties of a file, directory or link.
typedef struct kvs_file_stat {
  // Its number, the same under all of its names.
  uint64_t inode;
  // Bytes of contents, or of a link's target.
  uint64_t size;
  // When it was changed last: seconds since 1970.
  int64_t mtime_seconds;
  // And nanoseconds.
  uint32_t mtime_nanoseconds;
  // CRC-32C of the contents, or of a link's target.
  uint32_t crc32c;
  // Permission bits.
  uint32_t mode;
  // Names that it has.
  uint32_t links;
  // The owner.
  uint32_t uid;
  // The owning group.
  uint32_t gid;
  // What it is.
  enum kvs_file_kind kind;
} kvs_file_stat;

// An entry of a map.
typedef struct kvs_file_entry {
  // Its path from the root; of a list its name. Valid until the map is freed.
  const char *path;
  // Its properties.
  struct kvs_file_stat stat;
} kvs_file_entry;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The message of the calling thread's last call that failed, in a sentence for people. Valid until
// the thread's next call that fails; never NULL. Any thread.
const char *kvs_files_last_error(void);

// The name of a result code, such as "KVS_FILES_OK"; never NULL. Any thread.
const char *kvs_files_result_name(int32_t result);

// Opens the tree of files `name` in a device of kvs_api.h; with `create` it is made where it is
// missing. The tree stands beside the device's key spaces; its name must not be one of theirs,
// `kvs` or `kvs.` and more. Free it before the device is closed: later calls answer
// KVS_FILES_ERR_CLOSED. Any thread.
enum kvs_files_result kvs_files_open(void *device, const char *name, bool create, struct kvs_files **out);

// The same in a store of isobath.h. Any thread.
enum kvs_files_result kvs_files_open_store(const isobath_store *store,
                                           const char *name,
                                           bool create,
                                           struct kvs_files **out);

// Frees the handle; the tree stays. Does nothing for NULL. No other thread may be using it.
void kvs_files_free(struct kvs_files *files);

// Copies a directory and all below it, or a file, from the file system outside to `path`: in one
// step, which a crash leaves whole or not at all. `flags` are KVS_CREATE_REPLACE and
// KVS_CREATE_SKIP_SPECIAL, or 0. `bytes`, if it is not NULL, gets how many bytes of contents there
// are. Any thread.
enum kvs_files_result kvs_create(struct kvs_files *files,
                                 const char *from,
                                 const char *path,
                                 uint32_t flags,
                                 uint64_t *bytes);

// Maps all regular files at and below `path`, in the order of a walk: data and keys, sizes and
// checksums. What is stored, moved or removed later does not change what the map retrieves. It is
// freed by kvs_map_free. Any thread.
enum kvs_files_result kvs_map(struct kvs_files *files, const char *path, struct kvs_file_map **out);

// Lists the entries of a directory, of all kinds, in the order of their names. It is freed by
// kvs_map_free. Any thread.
enum kvs_files_result kvs_files_list(struct kvs_files *files, const char *path, struct kvs_file_map **out);

// How many entries a map has; 0 for NULL. Any thread.
size_t kvs_map_count(const struct kvs_file_map *map);

// One entry of a map. KVS_FILES_ERR_ARGUMENT for an index that it has not. Any thread.
enum kvs_files_result kvs_map_entry(const struct kvs_file_map *map, size_t index, struct kvs_file_entry *out);

// Frees a map. Does nothing for NULL. No other thread may be using it.
void kvs_map_free(struct kvs_file_map *map);

// Stores the whole contents of a file: a new one, which gets the permission bits `mode`, or an
// existing one, which keeps its own. When it returns, they are as durable as the device's or
// store's durability says. Any thread.
enum kvs_files_result kvs_store(struct kvs_files *files,
                                const char *path,
                                const void *data,
                                size_t length,
                                uint32_t mode);

// Retrieves bytes of a mapped file from `offset` on, verified against the CRC-32C of the pieces
// that they are in. `*actual`, which may be NULL, gets how many bytes were read: fewer than
// `length` only at the end of the file. An offset beyond the end is KVS_FILES_ERR_ARGUMENT. Any
// thread.
enum kvs_files_result kvs_retrieve(const struct kvs_file_map *map,
                                   size_t index,
                                   uint64_t offset,
                                   void *buffer,
                                   size_t length,
                                   size_t *actual);

// Copies the entry at `path`, and all below it, to `to` in the file system outside, which must not
// exist. Any thread.
enum kvs_files_result kvs_files_export(struct kvs_files *files, const char *path, const char *to);

// What a path names. Symbolic links are not followed. Any thread.
enum kvs_files_result kvs_files_stat(struct kvs_files *files, const char *path, struct kvs_file_stat *out);

// The target of a symbolic link, with a zero behind it. `*length` is the buffer's length and gets
// the target's with its zero; if the buffer is too small, that is KVS_FILES_ERR_BUFFER and
// nothing is written to it. Any thread.
enum kvs_files_result kvs_files_read_link(struct kvs_files *files, const char *path, char *buffer, size_t *length);

// Reads everything and verifies it: names against inodes, contents against checksums. `*problems`
// gets how many there are; the message is that of the first one. Any thread.
enum kvs_files_result kvs_files_check(struct kvs_files *files, uint64_t *problems);

// Makes an empty directory. Any thread.
enum kvs_files_result kvs_files_mkdir(struct kvs_files *files, const char *path, uint32_t mode);

// Makes a symbolic link with any text as its target. Any thread.
enum kvs_files_result kvs_files_symlink(struct kvs_files *files, const char *target, const char *path);

// Gives a file or symbolic link a further name (hard link). Any thread.
enum kvs_files_result kvs_files_link(struct kvs_files *files, const char *existing, const char *path);

// Moves a file, link or directory, as rename(2) does; without `replace`, a name that is taken is
// KVS_FILES_ERR_EXISTS. The cost of moving a directory does not depend on its size. Any
// thread.
enum kvs_files_result kvs_files_rename(struct kvs_files *files, const char *from, const char *to, bool replace);

// Removes a name of a file or symbolic link, and with the last one the file. Any thread.
enum kvs_files_result kvs_files_unlink(struct kvs_files *files, const char *path);

// Removes an empty directory. Any thread.
enum kvs_files_result kvs_files_rmdir(struct kvs_files *files, const char *path);

// Removes whatever has this name, of a directory everything below it, in one step. Any thread.
enum kvs_files_result kvs_files_remove_all(struct kvs_files *files, const char *path);

// Sets the permission bits. Any thread.
enum kvs_files_result kvs_files_set_mode(struct kvs_files *files, const char *path, uint32_t mode);

// Sets the time of the last change. KVS_FILES_ERR_ARGUMENT for a second of nanoseconds or more.
// Any thread.
enum kvs_files_result kvs_files_set_mtime(struct kvs_files *files,
                                          const char *path,
                                          int64_t seconds,
                                          uint32_t nanoseconds);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* KVS_FILES_H */
