// Faults below the system calls, for a process that is started with this library preloaded.
//
// Only files whose path has "/store." in it are hit. The environment says what happens:
//   FAULTS_SEED   which calls are hit
//   FAULTS_SOFT   n: one call in n is interrupted, gets EAGAIN, or transfers less than asked for
//   FAULTS_ONLY   1, 2 or 3: of these, only that
//   FAULTS_EIO    n: the n-th write or flush fails with EIO, once
//   FAULTS_LOSE   n: before the n-th flush or growth of a file, what was written and not flushed is lost, and each
//                 descriptor of the file gets the error once, from its next flush, as on Linux
//
// An io_uring makes no calls that could be intercepted here; libaio's go through syscall().
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define MOST_FDS 1024
#define MOST_FILES 16
#define MOST_WRITES 65536

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

// A write that no flush has made durable, and what was there before.
struct written { int fd; off_t at; size_t len; void *before; };

static struct file { ino_t inode; unsigned failures; unsigned events; struct written *writes; int count; } files[MOST_FILES];
// How many failures of its file a descriptor has reported.
static unsigned told[MOST_FDS];
static unsigned long hits;
static uint64_t state;

static long number(const char *name) {
    const char *text = getenv(name);
    return text ? atol(text) : 0;
}

static void *next(const char *name) { return dlsym(RTLD_NEXT, name); }

#define NEXT(type, name, ...) \
    static type (*real)(__VA_ARGS__); \
    if (!real) real = (type(*)(__VA_ARGS__))next(name)

static uint64_t draw(void) {
    if (!state) state = (uint64_t)number("FAULTS_SEED") * 0x9e3779b97f4a7c15u + 1;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state >> 11;
}

static int is_store(int fd) {
    char name[64], path[4096];
    if (fd < 0 || fd >= MOST_FDS) return 0;
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(name, path, sizeof path - 1);
    if (n <= 0) return 0;
    path[n] = 0;
    return strstr(path, "/store.") != NULL;
}

static struct file *file_of(int fd) {
    struct stat stat;
    if (fstat(fd, &stat)) return NULL;
    for (int i = 0; i < MOST_FILES; i++) {
        if (!files[i].inode) files[i].inode = stat.st_ino;
        if (files[i].inode == stat.st_ino) return &files[i];
    }
    return NULL;
}

enum soft { NOTHING, INTERRUPTED, AGAIN, SHORT };

static enum soft soft(void) {
    long n = number("FAULTS_SOFT");
    if (!n) return NOTHING;
    pthread_mutex_lock(&lock);
    uint64_t drawn = draw();
    pthread_mutex_unlock(&lock);
    enum soft fault = drawn % n ? NOTHING : 1 + (drawn / n) % 3;
    long only = number("FAULTS_ONLY");
    return only && fault != only ? NOTHING : fault;
}

// Whether this write or flush is the one that fails.
static int fails(void) {
    long n = number("FAULTS_EIO");
    return n && __atomic_add_fetch(&hits, 1, __ATOMIC_SEQ_CST) == (unsigned long)n;
}

static int failed(int error) {
    errno = error;
    return -1;
}

// ---- lost writes ----

static ssize_t real_pread(int fd, void *to, size_t len, off_t at) {
    NEXT(ssize_t, "pread64", int, void *, size_t, off_t);
    return real(fd, to, len, at);
}

static ssize_t real_pwrite(int fd, const void *from, size_t len, off_t at) {
    NEXT(ssize_t, "pwrite64", int, const void *, size_t, off_t);
    return real(fd, from, len, at);
}

// Called with the lock held, before a write that needs a flush to be durable.
static void note(int fd, off_t at, size_t len) {
    struct file *file = file_of(fd);
    void *before = NULL;
    if (!file || posix_memalign(&before, 4096, len)) return;
    memset(before, 0, len);
    if (real_pread(fd, before, len, at) < 0) memset(before, 0, len);
    if (!file->writes) file->writes = calloc(MOST_WRITES, sizeof *file->writes);
    if (!file->writes || file->count == MOST_WRITES) { free(before); return; }
    file->writes[file->count++] = (struct written){fd, at, len, before};
}

static void forget(struct file *file) {
    while (file->count) free(file->writes[--file->count].before);
}

// A flush or growth of a file begins: what was not flushed may be lost now.
static void event(int fd) {
    long n = number("FAULTS_LOSE");
    struct file *file = n ? file_of(fd) : NULL;
    if (!file) return;
    pthread_mutex_lock(&lock);
    file->events++;
    if (file->failures == 0 && file->events >= n && file->count) {
        file->failures++;
        fprintf(stderr, "faults: %d writes are lost\n", file->count);
        for (int i = file->count; i-- > 0;) {
            struct written *w = &file->writes[i];
            real_pwrite(w->fd, w->before, w->len, w->at);
        }
        forget(file);
    }
    pthread_mutex_unlock(&lock);
}

// Whether this descriptor has yet to report a lost write; once. All else is flushed now.
static int is_told(int fd, int flushed) {
    if (!number("FAULTS_LOSE")) return 0;
    pthread_mutex_lock(&lock);
    struct file *file = file_of(fd);
    int tell = file && told[fd] != file->failures;
    if (tell) {
        told[fd] = file->failures;
        fprintf(stderr, "faults: descriptor %d is told\n", fd);
    }
    (void)flushed;
    pthread_mutex_unlock(&lock);
    return tell;
}

// ---- the calls ----

static ssize_t total(const struct iovec *v, int count) {
    ssize_t sum = 0;
    for (int i = 0; i < count; i++) sum += v[i].iov_len;
    return sum;
}

// Fewer bytes, in whole blocks; 0 where there is only one.
static size_t less(size_t len) {
    if (len <= 4096) return 0;
    pthread_mutex_lock(&lock);
    size_t blocks = 1 + draw() % ((len - 1) / 4096);
    pthread_mutex_unlock(&lock);
    return blocks * 4096;
}

// What a call that reads or writes does instead: 0 nothing, -1 fails, or so many bytes at most.
static ssize_t instead(int fd, size_t len, int writes) {
    if (!is_store(fd)) return 0;
    if (writes && fails()) {
        fprintf(stderr, "faults: a write fails\n");
        return failed(EIO);
    }
    switch (soft()) {
        case INTERRUPTED: return failed(EINTR);
        case AGAIN: return failed(EAGAIN);
        case SHORT: return less(len);
        default: return 0;
    }
}

ssize_t preadv(int fd, const struct iovec *v, int count, off_t at) {
    NEXT(ssize_t, "preadv", int, const struct iovec *, int, off_t);
    ssize_t most = instead(fd, v[0].iov_len, 0);
    if (most < 0) return most;
    struct iovec first = {v[0].iov_base, most};
    return most ? real(fd, &first, 1, at) : real(fd, v, count, at);
}
ssize_t preadv64(int fd, const struct iovec *v, int count, off_t at) { return preadv(fd, v, count, at); }

static ssize_t write_vec(int fd, const struct iovec *v, int count, off_t at, int flags) {
    NEXT(ssize_t, "pwritev2", int, const struct iovec *, int, off_t, int);
    ssize_t most = instead(fd, v[0].iov_len, 1);
    if (most < 0) return most;
    struct iovec first = {v[0].iov_base, most};
    if (most) { v = &first; count = 1; }
    int durable = (flags & RWF_DSYNC) != 0;
    if (durable || !number("FAULTS_LOSE") || !is_store(fd)) {
        if (durable && is_store(fd)) event(fd);
        ssize_t done = real(fd, v, count, at, flags);
        return durable && done >= 0 && is_store(fd) && is_told(fd, 0) ? failed(EIO) : done;
    }
    // One step, so that nothing is lost between the note and the write.
    pthread_mutex_lock(&lock);
    note(fd, at, total(v, count));
    ssize_t done = real(fd, v, count, at, flags);
    pthread_mutex_unlock(&lock);
    return done;
}
ssize_t pwritev(int fd, const struct iovec *v, int count, off_t at) { return write_vec(fd, v, count, at, 0); }
ssize_t pwritev64(int fd, const struct iovec *v, int count, off_t at) { return write_vec(fd, v, count, at, 0); }
ssize_t pwritev2(int fd, const struct iovec *v, int count, off_t at, int flags) { return write_vec(fd, v, count, at, flags); }
ssize_t pwritev64v2(int fd, const struct iovec *v, int count, off_t at, int flags) { return write_vec(fd, v, count, at, flags); }

ssize_t pread64(int fd, void *to, size_t len, off_t at) {
    ssize_t most = is_store(fd) ? instead(fd, len, 0) : 0;
    if (most < 0 && errno == EAGAIN) errno = EINTR;
    return most < 0 ? most : real_pread(fd, to, most ? (size_t)most : len, at);
}
ssize_t pwrite64(int fd, const void *from, size_t len, off_t at) {
    struct iovec one = {(void *)from, len};
    return is_store(fd) ? write_vec(fd, &one, 1, at, 0) : real_pwrite(fd, from, len, at);
}

int fdatasync(int fd) {
    NEXT(int, "fdatasync", int);
    if (!is_store(fd)) return real(fd);
    if (soft() == INTERRUPTED) return failed(EINTR);
    if (fails()) {
        fprintf(stderr, "faults: a flush fails\n");
        return failed(EIO);
    }
    event(fd);
    // What was written before this call is durable after it.
    pthread_mutex_lock(&lock);
    struct file *file = number("FAULTS_LOSE") ? file_of(fd) : NULL;
    int done = real(fd);
    if (file) forget(file);
    pthread_mutex_unlock(&lock);
    return is_told(fd, 1) ? failed(EIO) : done;
}

int sync_file_range(int fd, off64_t at, off64_t len, unsigned flags) {
    NEXT(int, "sync_file_range", int, off64_t, off64_t, unsigned);
    if (is_store(fd) && is_told(fd, 0)) return failed(EIO);
    return real(fd, at, len, flags);
}

int fallocate(int fd, int mode, off_t at, off_t len) {
    NEXT(int, "fallocate", int, int, off_t, off_t);
    if (is_store(fd) && mode == 0) {
        if (soft() == INTERRUPTED) return failed(EINTR);
        event(fd);
    }
    return real(fd, mode, at, len);
}
int fallocate64(int fd, int mode, off_t at, off_t len) { return fallocate(fd, mode, at, len); }

// ---- libaio ----

#define MOST_CONTEXTS 64
#define MOST_TOKENS 4096

// What a request in flight is, by its context and the number that comes back with it.
static struct context { unsigned long id; struct { int fd, op; } requests[MOST_TOKENS]; } contexts[MOST_CONTEXTS];

static struct context *context_of(unsigned long id) {
    pthread_mutex_lock(&lock);
    struct context *found = NULL;
    for (int i = 0; i < MOST_CONTEXTS && !found; i++) {
        if (!contexts[i].id) contexts[i].id = id;
        if (contexts[i].id == id) found = &contexts[i];
    }
    pthread_mutex_unlock(&lock);
    return found;
}

static void submitted(unsigned long id, long count, struct iocb **iocbs) {
    struct context *context = context_of(id);
    for (long i = 0; context && i < count; i++) {
        if (iocbs[i]->aio_data >= MOST_TOKENS) continue;
        context->requests[iocbs[i]->aio_data].fd = iocbs[i]->aio_fildes;
        context->requests[iocbs[i]->aio_data].op = iocbs[i]->aio_lio_opcode;
    }
}

static void change(unsigned long id, struct io_event *event) {
    struct context *context = context_of(id);
    if (!context || event->data >= MOST_TOKENS) return;
    int fd = context->requests[event->data].fd, op = context->requests[event->data].op;
    if (!is_store(fd)) return;
    int writes = op == IOCB_CMD_PWRITE || op == IOCB_CMD_PWRITEV;
    int flushes = op == IOCB_CMD_FSYNC || op == IOCB_CMD_FDSYNC;
    if ((writes || flushes) && fails()) {
        fprintf(stderr, "faults: a %s fails\n", writes ? "write" : "flush");
        event->res = -EIO;
        return;
    }
    enum soft fault = soft();
    if (fault == INTERRUPTED) event->res = -EINTR;
    else if (fault == AGAIN) event->res = -EAGAIN;
    else if (fault == SHORT && !flushes && (long)event->res > 4096) {
        event->res = less((size_t)event->res);
    }
}

long syscall(long call, ...) {
    static long (*real)(long, ...);
    if (!real) real = (long (*)(long, ...))next("syscall");
    va_list list;
    long a[6];
    va_start(list, call);
    for (int i = 0; i < 6; i++) a[i] = va_arg(list, long);
    va_end(list);
    if (call == SYS_io_submit) {
        if (soft() == AGAIN) return failed(EAGAIN);
        submitted(a[0], a[1], (struct iocb **)a[2]);
    }
    if (call == SYS_io_getevents && soft() == INTERRUPTED) return failed(EINTR);
    long done = real(call, a[0], a[1], a[2], a[3], a[4], a[5]);
    // Without its mark the ring of completions is not read directly, so that all of them come by here.
    if (call == SYS_io_setup && done == 0) ((uint32_t *)*(unsigned long *)a[1])[4] = 0;
    if (call == SYS_io_getevents && done > 0) {
        struct io_event *events = (struct io_event *)a[3];
        for (long i = 0; i < done; i++) change(a[0], &events[i]);
    }
    return done;
}
