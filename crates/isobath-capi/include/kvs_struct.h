/* Types of the SNIA Key Value Storage API 1.1. */
#ifndef KVS_STRUCT_H
#define KVS_STRUCT_H

#include <stdbool.h>
#include <stdint.h>

#include "kvs_const.h"
#include "kvs_result.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  uint8_t major;
  uint8_t minor;
  uint8_t micro;
} kvs_api_version;

/* The operation that a callback reports. */
typedef enum {
  KVS_CMD_DELETE = 0x01,
  KVS_CMD_DELETE_GROUP = 0x02,
  KVS_CMD_EXIST = 0x03,
  KVS_CMD_ITER_CREATE = 0x04,
  KVS_CMD_ITER_DELETE = 0x05,
  KVS_CMD_ITER_NEXT = 0x06,
  KVS_CMD_RETRIEVE = 0x07,
  KVS_CMD_STORE = 0x08
} kvs_context;

/* In which order iterators find keys. */
typedef enum {
  KVS_KEY_ORDER_NONE = 0, /* not defined (here: ascending) */
  KVS_KEY_ORDER_ASCEND = 1,
  KVS_KEY_ORDER_DESCEND = 2
} kvs_key_order;

typedef struct {
  kvs_key_order ordering;
} kvs_option_key_space;

typedef struct {
  bool kvs_delete_error; /* a key that does not exist is an error */
} kvs_option_delete;

typedef enum {
  KVS_ITERATOR_KEY = 0,      /* keys */
  KVS_ITERATOR_KEY_VALUE = 1 /* keys and values */
} kvs_iterator_type;

typedef struct {
  kvs_iterator_type iter_type;
} kvs_option_iterator;

typedef struct {
  bool kvs_retrieve_delete; /* deletes what was retrieved, in one step */
} kvs_option_retrieve;

typedef enum {
  KVS_STORE_POST = 0,        /* whether the key exists or not */
  KVS_STORE_UPDATE_ONLY = 1, /* only if the key exists, else KVS_ERR_KEY_NOT_EXIST */
  KVS_STORE_NOOVERWRITE = 2, /* only if it does not, else KVS_ERR_VALUE_UPDATE_NOT_ALLOWED */
  KVS_STORE_APPEND = 3       /* behind the value that the key has */
} kvs_store_type;

typedef enum {
  KVS_NOASSOCIATION = 0,
  KVS_ASSOCIATION_STREAM = 1
} kvs_association_type;

typedef struct {
  void *key;
  uint16_t length; /* bytes */
} kvs_key;

typedef struct {
  void *value;
  uint32_t length;            /* bytes of the buffer; after retrieving, bytes that were written to it */
  uint32_t actual_value_size; /* bytes of the whole value, as the device has it */
  uint32_t offset;            /* bytes of the value to skip when retrieving */
} kvs_value;

/* A hint of which values belong together; this library places them itself. */
typedef struct {
  kvs_association_type assoc_type;
  uint16_t assoc_hint;
} kvs_association;

typedef struct {
  kvs_store_type st_type;
  kvs_association *assoc;
} kvs_option_store;

struct _kvs_device_handle;
struct _kvs_key_space_handle;
typedef struct _kvs_device_handle *kvs_device_handle;
typedef struct _kvs_key_space_handle *kvs_key_space_handle;
typedef uint8_t kvs_iterator_handle;

typedef struct {
  uint32_t name_len; /* bytes, without a terminating zero */
  char *name;
} kvs_key_space_name;

typedef struct {
  bool opened;
  uint64_t capacity;  /* bytes of keys and values that it may have; 0: as the device */
  uint64_t free_size; /* bytes that it may still take */
  uint64_t count;     /* key value pairs */
  kvs_key_space_name *name;
} kvs_key_space;

typedef struct {
  uint64_t capacity;         /* bytes */
  uint64_t unalloc_capacity; /* bytes that no key space has reserved */
  uint32_t max_value_len;    /* bytes */
  uint32_t max_key_len;      /* bytes */
  uint32_t optimal_value_len;
  uint32_t optimal_value_granularity;
  void *extended_info; /* NULL */
} kvs_device;

typedef struct {
  uint32_t num_keys;
  kvs_key *keys;
  uint32_t length;        /* bytes of the buffer; afterwards, bytes that were written to it */
  uint8_t *result_buffer; /* one bit for each key, the lowest bit of the first byte for the first key */
} kvs_exist_list;

/* Keys whose first bytes, masked, are the pattern. */
typedef struct {
  uint8_t bitmask[KVS_MAX_KEY_GROUP_BYTES];
  uint8_t bit_pattern[KVS_MAX_KEY_GROUP_BYTES];
} kvs_key_group_filter;

typedef struct {
  uint32_t num_entries; /* entries in the buffer */
  bool end;             /* nothing is left */
  uint32_t size;        /* bytes of the buffer; afterwards, bytes that were written to it */
  uint8_t *it_list;     /* u32 length, key [, u32 length, value], ... without padding */
} kvs_iterator_list;

typedef struct {
  kvs_context context;
  kvs_key_space_handle ks_hd;
  kvs_key *key;
  kvs_value *value;
  void *option;
  void *private1;
  void *private2;
  kvs_result result;
  kvs_iterator_handle iter_hd;
  union {
    kvs_iterator_list *iter_list;
    kvs_exist_list *list;
  } result_buffer;
} kvs_postprocess_context;

typedef void (*kvs_postprocess_function)(kvs_postprocess_context *ctx);

typedef struct {
  uint16_t key_len;   /* bytes */
  uint8_t *key;       /* a buffer for the key, or NULL */
  uint32_t value_len; /* bytes */
} kvs_kvp_info;

#ifdef __cplusplus
}
#endif

#endif
