/* Limits of the SNIA Key Value Storage API 1.1, as key-value SSDs and their header have them. */
#ifndef KVS_CONST_H
#define KVS_CONST_H

#define KVS_MIN_KEY_LENGTH 4                  /* bytes */
#define KVS_MAX_KEY_LENGTH 255                /* bytes */
#define KVS_MIN_VALUE_LENGTH 0                /* bytes */
#define KVS_MAX_VALUE_LENGTH (2 * 1024 * 1024) /* bytes; a device's configuration may allow more */
#define KVS_OPTIMAL_VALUE_LENGTH 4096         /* bytes */
#define KVS_ALIGNMENT_UNIT 512                /* bytes; offsets within values are multiples of it */
#define KVS_VALUE_LENGTH_ALIGNMENT_UNIT 4     /* not demanded by this library */
#define KVS_MAX_ITERATE_HANDLE 16             /* iterators of a device that are open at a time */
#define KVS_MAX_KEY_GROUP_BYTES 4             /* first bytes of a key that a group filter looks at */
#define KVS_ITERATOR_BUFFER_SIZE (32 * 1024)  /* bytes; other sizes work as well */
#define G_ITER_KEY_SIZE_FIXED 16
#define MAX_CONT_PATH_LEN 255
#define MAX_KEYSPACE_NAME_LEN MAX_CONT_PATH_LEN /* bytes, without a terminating zero */

#endif
