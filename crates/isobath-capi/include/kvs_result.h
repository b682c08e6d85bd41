/* Result codes of the SNIA Key Value Storage API 1.1. */
#ifndef KVS_RESULT_H
#define KVS_RESULT_H

typedef enum {
  KVS_SUCCESS = 0x000,
  KVS_ERR_BUFFER_SMALL = 0x001,             /* the buffer is too small; it has what fits */
  KVS_ERR_DEV_CAPAPCITY = 0x002,            /* the device has not enough space (the standard's spelling) */
  KVS_ERR_DEV_NOT_EXIST = 0x003,            /* there is no such device, or the handle is of none */
  KVS_ERR_KS_CAPACITY = 0x004,              /* the key space, or the device, has not enough space */
  KVS_ERR_KS_EXIST = 0x005,                 /* a key space of that name exists */
  KVS_ERR_KS_INDEX = 0x006,                 /* there is no key space of that index */
  KVS_ERR_KS_NAME = 0x007,                  /* no name for a key space */
  KVS_ERR_KS_NOT_EXIST = 0x008,             /* there is no such key space, or the handle is of none */
  KVS_ERR_KS_NOT_OPEN = 0x009,              /* the key space was closed */
  KVS_ERR_KS_OPEN = 0x00A,                  /* the key space is open already */
  KVS_ERR_ITERATOR_FILTER_INVALID = 0x00B,  /* the pattern has bits that the mask has not */
  KVS_ERR_ITERATOR_MAX = 0x00C,             /* as many iterators are open as a device can have */
  KVS_ERR_ITERATOR_NOT_EXIST = 0x00D,       /* there is no such iterator */
  KVS_ERR_ITERATOR_OPEN = 0x00E,            /* an iterator with this filter is open already */
  KVS_ERR_KEY_LENGTH_INVALID = 0x00F,       /* the key is too short or too long */
  KVS_ERR_KEY_NOT_EXIST = 0x010,            /* there is no such key */
  KVS_ERR_OPTION_INVALID = 0x011,           /* no such option */
  KVS_ERR_PARAM_INVALID = 0x012,            /* a parameter is NULL, or makes no sense */
  KVS_ERR_SYS_IO = 0x013,                   /* the store failed; kvs_isobath_last_error() says how */
  KVS_ERR_VALUE_LENGTH_INVALID = 0x014,     /* the value is too long */
  KVS_ERR_VALUE_OFFSET_INVALID = 0x015,     /* the offset is not less than the value's length */
  KVS_ERR_VALUE_OFFSET_MISALIGNED = 0x016,  /* the offset is no multiple of KVS_ALIGNMENT_UNIT */
  KVS_ERR_VALUE_UPDATE_NOT_ALLOWED = 0x017, /* the key exists, and was not to be overwritten */
  KVS_ERR_DEV_NOT_OPENED = 0x018            /* the device was closed */
} kvs_result;

#define KVS_ERR_DEV_CAPACITY KVS_ERR_DEV_CAPAPCITY

#endif
