/*
 * The SNIA Key Value Storage API 1.1, over Isobath. A device is a store, see docs/kv-device.md.
 *
 * Every function may be called from any thread at any time, unless it says otherwise. Handles are numbers, not memory: one
 * that is NULL, closed, or was never given out is answered with a result code. Pointers must be valid or NULL; those of an
 * asynchronous call until its callback is called.
 *
 * Asynchronous calls check their parameters before they return; what happens afterwards is in the callback's context. A call
 * that finds as many requests of its thread in flight as may be waits; inside a callback it never does.
 */
#ifndef KVS_API_H
#define KVS_API_H

/* The header of key-value SSDs includes these, and programs rely on it. */
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "kvs_const.h"
#include "kvs_result.h"
#include "kvs_struct.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Devices. `URI` is a store's path, and options behind it: "/data/dev.iso?create=yes&pool=256MiB". */
kvs_result kvs_open_device(char *URI, kvs_device_handle *dev_hd);
/* Waits for what is in flight, calls the callbacks that are left, and closes key spaces and store; in a callback, too. What
 * isobath_omp_load calls must not close its device. A forked child has none of its parent's devices. */
kvs_result kvs_close_device(kvs_device_handle dev_hd);
kvs_result kvs_get_device_info(kvs_device_handle dev_hd, kvs_device *dev_info);
kvs_result kvs_get_device_capacity(kvs_device_handle dev_hd, uint64_t *dev_capacity);
/* 0 (empty) to 10000 (full). */
kvs_result kvs_get_device_utilization(kvs_device_handle dev_hd, uint32_t *dev_utilization);
kvs_result kvs_get_min_key_length(kvs_device_handle dev_hd, uint32_t *min_key_length);
kvs_result kvs_get_max_key_length(kvs_device_handle dev_hd, uint32_t *max_key_length);
kvs_result kvs_get_min_value_length(kvs_device_handle dev_hd, uint32_t *min_value_length);
kvs_result kvs_get_max_value_length(kvs_device_handle dev_hd, uint32_t *max_value_length);
kvs_result kvs_get_optimal_value_length(kvs_device_handle dev_hd, uint32_t *opt_value_length);

/* Key spaces. `size` is in bytes of keys and values; 0: no limit but the device's. */
kvs_result kvs_create_key_space(kvs_device_handle dev_hd, kvs_key_space_name *key_space_name, uint64_t size,
                                kvs_option_key_space opt);
/* Deletes everything in it, and closes it for everyone. */
kvs_result kvs_delete_key_space(kvs_device_handle dev_hd, kvs_key_space_name *key_space_name);
/* The names from the `index`-th on; the first one has index 1. Each of `names` has a buffer of `name_len` bytes. */
kvs_result kvs_list_key_spaces(kvs_device_handle dev_hd, uint32_t index, uint32_t buffer_size,
                               kvs_key_space_name *names, uint32_t *ks_cnt);
kvs_result kvs_open_key_space(kvs_device_handle dev_hd, char *name, kvs_key_space_handle *ks_hd);
kvs_result kvs_close_key_space(kvs_key_space_handle ks_hd);
/* Counts the pairs one by one. `ks->name->name` is a buffer of MAX_KEYSPACE_NAME_LEN bytes. */
kvs_result kvs_get_key_space_info(kvs_key_space_handle ks_hd, kvs_key_space *ks);

/* Key value pairs. */
kvs_result kvs_get_kvp_info(kvs_key_space_handle ks_hd, kvs_key *key, kvs_kvp_info *info);
kvs_result kvs_retrieve_kvp(kvs_key_space_handle ks_hd, kvs_key *key, kvs_option_retrieve *opt, kvs_value *value);
kvs_result kvs_retrieve_kvp_async(kvs_key_space_handle ks_hd, kvs_key *key, kvs_option_retrieve *opt, void *private1,
                                  void *private2, kvs_value *value, kvs_postprocess_function post_fn);
kvs_result kvs_store_kvp(kvs_key_space_handle ks_hd, kvs_key *key, kvs_value *value, kvs_option_store *opt);
kvs_result kvs_store_kvp_async(kvs_key_space_handle ks_hd, kvs_key *key, kvs_value *value, kvs_option_store *opt,
                               void *private1, void *private2, kvs_postprocess_function post_fn);
kvs_result kvs_delete_kvp(kvs_key_space_handle ks_hd, kvs_key *key, kvs_option_delete *opt);
kvs_result kvs_delete_kvp_async(kvs_key_space_handle ks_hd, kvs_key *key, kvs_option_delete *opt, void *private1,
                                void *private2, kvs_postprocess_function post_fn);
kvs_result kvs_delete_key_group(kvs_key_space_handle ks_hd, kvs_key_group_filter *grp_fltr);
kvs_result kvs_delete_key_group_async(kvs_key_space_handle ks_hd, kvs_key_group_filter *grp_fltr, void *private1,
                                      void *private2, kvs_postprocess_function post_fn);
kvs_result kvs_exist_kv_pairs(kvs_key_space_handle ks_hd, uint32_t key_cnt, kvs_key *keys, kvs_exist_list *list);
kvs_result kvs_exist_kv_pairs_async(kvs_key_space_handle ks_hd, uint32_t key_cnt, kvs_key *keys, kvs_exist_list *list,
                                    void *private1, void *private2, kvs_postprocess_function post_fn);

/* Iterators. */
kvs_result kvs_create_iterator(kvs_key_space_handle ks_hd, kvs_option_iterator *iter_op,
                               kvs_key_group_filter *iter_fltr, kvs_iterator_handle *iter_hd);
kvs_result kvs_delete_iterator(kvs_key_space_handle ks_hd, kvs_iterator_handle iter_hd);
kvs_result kvs_iterate_next(kvs_key_space_handle ks_hd, kvs_iterator_handle iter_hd, kvs_iterator_list *iter_list);
kvs_result kvs_iterate_next_async(kvs_key_space_handle ks_hd, kvs_iterator_handle iter_hd,
                                  kvs_iterator_list *iter_list, void *private1, void *private2,
                                  kvs_postprocess_function post_fn);

/*
 * Beyond the standard.
 */

/* What KV-SSD programs allocate buffers with; any other memory works as well. */
void *_kvs_malloc(size_t size_bytes, size_t alignment, const char *file);
void *_kvs_zalloc(size_t size_bytes, size_t alignment, const char *file);
void _kvs_free(void *buf, const char *file);
#define kvs_malloc(size, alignment) _kvs_malloc(size, alignment, __FILE__)
#define kvs_zalloc(size, alignment) _kvs_zalloc(size, alignment, __FILE__)
#define kvs_free(buf) _kvs_free(buf, __FILE__)

/* The name of a result code. */
const char *kvs_errstr(int32_t result);

/* Where a device's configuration says completion = polling: calls the callbacks of what the calling thread issued and has
 * completed, at most `maxevents`, and returns how many. Never waits. Negative: the handle is of no open key space. */
int32_t kvs_get_ioevents(kvs_key_space_handle ks_hd, int maxevents);

/* What the calling thread's last failed call found, for people. Valid until its next failed call. */
const char *kvs_isobath_last_error(void);

/* The limits of parallel data access: each thread may have `queue_depth` × `data_tasks` requests in flight, and `data_tasks`
 * of them are worked on at a time. They may be changed at any time. */
kvs_result kvs_isobath_set_limits(kvs_device_handle dev_hd, uint32_t queue_depth, uint32_t data_tasks);

typedef enum {
  KVS_ISOBATH_CHANNEL_PARALLEL = 0, /* each thread has queues of its own */
  KVS_ISOBATH_CHANNEL_SERIAL = 1    /* one request at a time, of all threads */
} kvs_isobath_channel;

/* May be changed at any time; what is in flight stays where it is. */
kvs_result kvs_isobath_set_channel(kvs_device_handle dev_hd, kvs_isobath_channel channel);

typedef struct {
  uint64_t issued;        /* requests that were accepted, direct calls included */
  uint64_t in_flight;     /* of those, the ones that are not completed */
  uint64_t completed;
  uint64_t failed;        /* of the completed ones; a key that does not exist counts, too */
  uint64_t in_flight_max; /* the most that one thread ever had */
  uint64_t waits;         /* times that a thread waited because its limit was reached */
  uint64_t bytes;         /* of values that were moved */
  uint32_t threads;       /* threads that issued requests, as far as they have not ended */
  uint32_t queue_depth;
  uint32_t data_tasks;
  uint32_t channel;
} kvs_isobath_counters;

/* The numbers of all threads, or only the calling one's. */
kvs_result kvs_isobath_get_counters(kvs_device_handle dev_hd, bool of_this_thread, kvs_isobath_counters *counters);

/* Programs that were written against version 1.0, whose asynchronous calls take no private pointers, define this. */
#ifdef KVS_ISOBATH_API_1_0
#define kvs_retrieve_kvp_async(ks, key, opt, value, fn) kvs_retrieve_kvp_async(ks, key, opt, NULL, NULL, value, fn)
#define kvs_store_kvp_async(ks, key, value, opt, fn) kvs_store_kvp_async(ks, key, value, opt, NULL, NULL, fn)
#define kvs_delete_kvp_async(ks, key, opt, fn) kvs_delete_kvp_async(ks, key, opt, NULL, NULL, fn)
#define kvs_delete_key_group_async(ks, filter, fn) kvs_delete_key_group_async(ks, filter, NULL, NULL, fn)
#define kvs_exist_kv_pairs_async(ks, count, keys, list, fn) kvs_exist_kv_pairs_async(ks, count, keys, list, NULL, NULL, fn)
#define kvs_iterate_next_async(ks, it, list, fn) kvs_iterate_next_async(ks, it, list, NULL, NULL, fn)
#endif

#ifdef __cplusplus
}
#endif

#endif
