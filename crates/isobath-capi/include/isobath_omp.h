/*
 * Parallel compute and parallel data access for OpenMP programs over the key-value interface, see docs/omp.md.
 *
 * A program calls isobath_omp_init, opens a device, attaches it, and puts isobath_omp_begin and isobath_omp_end around its parallel
 * regions. How many compute threads a region gets, and how many data accesses each of them may have at once, is then chosen by the
 * environment or the command line, without a change of the program. Works with every OpenMP, and without one (one thread).
 *
 * isobath_omp_load, isobath_omp_store, isobath_omp_count, isobath_omp_data_accesses, isobath_omp_is_serial and
 * isobath_omp_get_totals may be called from any thread at any time; the others from the thread that runs the program's sequential parts.
 * kvs_isobath_last_error has the message of a failed call.
 */
#ifndef ISOBATH_OMP_H
#define ISOBATH_OMP_H

#include <kvs_api.h>

#ifdef _OPENMP
#include <omp.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The parts of the functions below that do not depend on OpenMP. */
kvs_result isobath_omp_start(int *argc, char **argv, int processors);
int isobath_omp_region_begin(const char *name);
void isobath_omp_region_end(uint64_t items);

/* Begins the session: reads the environment and takes this library's options out of the program's arguments (both may be NULL).
 * KVS_ERR_PARAM_INVALID where an option is wrong. */
static inline kvs_result isobath_omp_init(int *argc, char **argv) {
#ifdef _OPENMP
  return isobath_omp_start(argc, argv, omp_get_num_procs());
#else
  return isobath_omp_start(argc, argv, 1);
#endif
}

/* Help for the options, to be printed behind the program's own. */
const char *isobath_omp_help(void);

/* Gives the session control of a device's limits and channel. */
kvs_result isobath_omp_attach(kvs_device_handle dev_hd);

/* A region of this name begins: sets the number of threads of the following parallel regions, and returns it; without OpenMP that is
 * one, whatever the settings say. One region at a time; what the controllers have learnt of a name serves its next execution. */
static inline int isobath_omp_begin(const char *name) {
  int threads = isobath_omp_region_begin(name);
#ifdef _OPENMP
  omp_set_dynamic(0);
  omp_set_num_threads(threads);
#else
  threads = 1;
#endif
  return threads;
}

/* The region ends. `items` is how much it has done, in any unit that is the same for all executions of the region; it is
 * looked at where the region accesses no data. 0 counts the executions. */
static inline void isobath_omp_end(uint64_t items) { isobath_omp_region_end(items); }

/* Called with the index and the value of a loaded object, on the thread that loads. The value is valid until it returns. It may
 * load and store, and must not unwind. */
typedef void (*isobath_omp_work)(void *context, size_t index, const void *value, size_t length);

/* Loads objects and works on each while the next ones are read: with parallel data access, up to the limit of data accesses
 * is read at a time, and as many more wait to be worked on; with a serial channel one at a time of all threads. With `in_order`, objects
 * come in the order of their keys, else as they are read. The first error ends it; work on other objects may have been done then. */
kvs_result isobath_omp_load(kvs_key_space_handle ks_hd, size_t count, const kvs_key *keys, int in_order,
                            isobath_omp_work work, void *context);

/* Stores objects, several at a time as above; when it returns, all are acknowledged. The first error ends it; some of the objects may be
 * stored then. */
kvs_result isobath_omp_store(kvs_key_space_handle ks_hd, size_t count, const kvs_key *keys, const kvs_value *values);

/* For programs that access data by other means, such as files: what the session has decided ... */
uint32_t isobath_omp_data_accesses(void);
int isobath_omp_is_serial(void);
/* ... and how many accesses of how many bytes were made, for the controllers. */
void isobath_omp_count(uint64_t requests, uint64_t bytes);

typedef struct {
  uint64_t requests; /* objects loaded and stored by isobath_omp_load and isobath_omp_store */
  uint64_t bytes;    /* of their values */
  uint64_t wait_ns;  /* nanoseconds that compute threads waited for them, of all threads together */
  uint64_t busy_ns;  /* nanoseconds that data tasks worked on them, of all tasks together */
} isobath_omp_totals;

/* Sums over the session so far. */
kvs_result isobath_omp_get_totals(isobath_omp_totals *totals);

/* Ends the session and writes its log out; before or after the device is closed. */
kvs_result isobath_omp_finish(void);

#ifdef __cplusplus
}
#endif

#endif
