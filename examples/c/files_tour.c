/*
 * Directory trees in a device: what a program does that had one file per object.
 *
 *     files_tour URI DIRECTORY
 *
 * makes DIRECTORY/out, which must not exist, from what it has stored in the device.
 */
#include <kvs_files.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(int result, const char *what) {
  if (result != KVS_FILES_OK) {
    fprintf(stderr, "%s: %s: %s\n", what, kvs_files_result_name(result), kvs_files_last_error());
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

/* Instead of creating files: one key-value object for each. */
static void initialize(kvs_files *files) {
  CHECK(kvs_files_mkdir(files, "tiles", 0755));
  for (int n = 0; n < 20; n++) {
    char path[32], contents[1000];
    snprintf(path, sizeof path, "tiles/%02d", n);
    memset(contents, 'a' + n, sizeof contents);
    CHECK(kvs_store(files, path, contents, (size_t)(50 * n), 0644));
  }
  char *large = calloc(3, 1 << 20);
  EXPECT(large != NULL);
  large[2000000] = 'x';
  CHECK(kvs_store(files, "large", large, 3 << 20, 0600));
  free(large);
}

/* Instead of opening and scanning them: a map, and retrieving by its entries. */
static size_t scan(kvs_files *files, const char *path) {
  kvs_file_map *map;
  CHECK(kvs_map(files, path, &map));
  size_t bytes = 0;
  for (size_t n = 0; n < kvs_map_count(map); n++) {
    kvs_file_entry entry;
    CHECK(kvs_map_entry(map, n, &entry));
    char buffer[100];
    for (uint64_t offset = 0; offset < entry.stat.size; offset += sizeof buffer) {
      size_t actual;
      CHECK(kvs_retrieve(map, n, offset, buffer, sizeof buffer, &actual));
      EXPECT(actual == sizeof buffer || offset + actual == entry.stat.size);
      EXPECT(buffer[0] == entry.path[strlen(entry.path) - 1] - '0' + 'a' || n >= 10);
      bytes += actual;
    }
  }
  kvs_map_free(map);
  return bytes;
}

static void names(kvs_files *files) {
  kvs_file_stat stat;
  CHECK(kvs_files_link(files, "large", "tiles/also large"));
  CHECK(kvs_files_symlink(files, "tiles/00", "first"));
  CHECK(kvs_files_rename(files, "tiles", "squares", false));
  EXPECT(kvs_files_stat(files, "tiles", &stat) == KVS_FILES_ERR_NOT_FOUND);
  CHECK(kvs_files_stat(files, "squares/also large", &stat));
  EXPECT(stat.links == 2 && stat.size == 3 << 20 && stat.mode == 0600 && stat.kind == KVS_FILE_REGULAR);

  char target[16];
  size_t length = sizeof target;
  CHECK(kvs_files_read_link(files, "first", target, &length));
  EXPECT(strcmp(target, "tiles/00") == 0 && length == 9);
  CHECK(kvs_files_set_mode(files, "squares/01", 0440));
  CHECK(kvs_files_set_mtime(files, "squares/01", 1000000000, 1));

  kvs_file_map *list;
  kvs_file_entry entry;
  CHECK(kvs_files_list(files, "/", &list));
  EXPECT(kvs_map_count(list) == 3);
  CHECK(kvs_map_entry(list, 2, &entry));
  EXPECT(strcmp(entry.path, "squares") == 0 && entry.stat.kind == KVS_FILE_DIRECTORY);
  kvs_map_free(list);
}

int main(int argc, char **argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: files_tour URI DIRECTORY\n");
    return 2;
  }
  kvs_device_handle device;
  EXPECT(kvs_open_device(argv[1], &device) == KVS_SUCCESS);
  kvs_files *files;
  CHECK(kvs_files_open(device, "files", true, &files));
  initialize(files);
  EXPECT(scan(files, "tiles") == 50 * (19 * 20 / 2));
  names(files);

  /* Out to the file system, and in again as a whole. */
  char out[4096];
  uint64_t bytes, problems;
  snprintf(out, sizeof out, "%s/out", argv[2]);
  CHECK(kvs_files_export(files, "squares", out));
  EXPECT(kvs_create(files, out, "squares", 0, NULL) == KVS_FILES_ERR_EXISTS);
  CHECK(kvs_create(files, out, "squares", KVS_CREATE_REPLACE, &bytes));
  EXPECT(bytes == 9500 + (3 << 20));
  CHECK(kvs_files_check(files, &problems));
  EXPECT(problems == 0);

  CHECK(kvs_files_unlink(files, "large"));
  EXPECT(kvs_files_rmdir(files, "squares") == KVS_FILES_ERR_NOT_EMPTY);
  CHECK(kvs_files_remove_all(files, "squares"));
  kvs_files_free(files);
  EXPECT(kvs_close_device(device) == KVS_SUCCESS);
  printf("done\n");
  return 0;
}
