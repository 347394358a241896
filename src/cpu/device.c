/*
 * device.c: the CPU as a device, and the reference device.
 *
 * The compute space is one anonymous mapping that ends at a page without access: a read or write
 * past the planned size faults at once. Every page is allocated at the start, so that a lack of
 * memory shows then and not in step 1000. The host space is the offload file: a mapping of an
 * unnamed file, so its bytes are in the page cache and leave memory under pressure. This is what
 * offloading means on a CPU. Commands that write no files map anonymous memory instead.
 *
 * Invariant: no result is passed on that was computed from bytes of the offload file which the disk
 * did not keep. The kernel writes pages on its own, and a page whose write failed may leave memory:
 * old bytes are then read in its place. It records the failure before the page can leave. So every
 * program and every read ends with a question to the kernel, which costs no write and no wait: has
 * any write of this file failed? (check_spill)
 */
#include <errno.h>
#include <fcntl.h>
#include <omp.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/mapped.h"
#include "cpu/products/onednn.h"
#include "run/device.h"

enum { STACK_BYTES = 128 << 10 }; /* more than any kernel uses */

/* Returns the smallest stack of the threads, in bytes; SIZE_MAX: unknown. */
static size_t least_stack(int threads)
{
    size_t least = SIZE_MAX;
#pragma omp parallel num_threads(threads) reduction(min : least)
    {
        pthread_attr_t a;
        size_t bytes = 0;
        if (!pthread_getattr_np(pthread_self(), &a)) {
            pthread_attr_getstacksize(&a, &bytes);
            pthread_attr_destroy(&a);
        }
        least = bytes ? bytes : least;
    }
    return least;
}

/* Starts the threads and touches their stacks, so that neither appears as memory that a later step
 * allocates. */
static void warm_threads(int threads)
{
#pragma omp parallel num_threads(threads)
    {
        volatile char stack[STACK_BYTES];
        for (size_t i = 0; i < sizeof stack; i += 1024) stack[i] = 0;
    }
}

static int cpu_open(struct device *d, struct error *e)
{
    const size_t stack = least_stack(d->profile.threads);
    if (stack < 2 * STACK_BYTES)
        return error_set(e, PL_FAIL,
                         "the threads have stacks of %zu bytes; expected at least %d: unset OMP_STACKSIZE or set it to "
                         "2M, and raise `ulimit -s`",
                         stack, 2 * STACK_BYTES);
    warm_threads(d->profile.threads);
    return PL_OK;
}

/* Allocates every page now, so that a lack of memory shows before the first step. */
static void touch(char *at, uint64_t bytes, uint64_t page)
{
    for (uint64_t i = 0; i < bytes; i += page) ((volatile char *)at)[i] = 0;
}

/* Maps [pages ... arena][no access] and returns the arena, NULL on failure. The arena ends where
 * the guard page begins, up to its alignment to 256. */
static char *map_compute(uint64_t bytes, uint64_t *mapped)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), whole = align_up(bytes, page);
    char *at = mmap(NULL, whole + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return NULL;
    mprotect(at + whole, page, PROT_NONE);
    madvise(at, whole, MADV_HUGEPAGE); /* fewer page faults and cache conflicts, if the kernel provides huge pages */
    touch(at, whole, page);
    *mapped = whole + page;
    return at + (whole - align_up(bytes, 256));
}

/* Opens an unnamed file if the file system supports it: nothing is left on disk even if the process
 * is killed at this moment. Otherwise creates a file and unlinks it at once. */
static int open_spill(const char *dir)
{
    char path[sizeof ((struct device *)0)->spill + 32];
    int fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0) return fd;
    snprintf(path, sizeof path, "%s/.plimsoll-spill-XXXXXX", dir);
    fd = mkstemp(path);
    if (fd >= 0) unlink(path);
    return fd;
}

/* Warns if the offload file is in a file system in memory, whose pages can only go to swap. */
static void warn_of_memory(int fd, const char *dir, uint64_t bytes)
{
    enum { TMPFS = 0x01021994, RAMFS = (int)0x858458f6 };
    struct statfs s;
    char size[32];
    if (!fstatfs(fd, &s) && ((int)s.f_type == TMPFS || (int)s.f_type == RAMFS))
        log_warn("the offload file of %s is in %s, a file system in memory: memory.offload frees no memory there; set "
                 "train.out to a directory on disk", size_print(bytes, size), dir);
}

/* Compares the file's size with the free disk space. Without this, a file system that cannot
 * reserve blocks would be filled by the attempt. */
static int check_disk(int fd, const char *dir, uint64_t bytes, struct error *e)
{
    struct statvfs s;
    char need[32], have[32];
    if (fstatvfs(fd, &s)) return PL_OK; /* posix_fallocate decides */
    uint64_t free = (uint64_t)s.f_bavail * s.f_frsize;
    if (bytes <= free) return PL_OK;
    return error_set(e, PL_FAIL,
                     "the offload file of %s does not fit on the disk of %s, where %s are free; free disk space, lower "
                     "memory.host_budget or set "
                     "memory.offload: none",
                     size_print(bytes, need), dir, size_print(free, have));
}

/* Reserves the file's blocks: a full disk must not cause a fault in the middle of a step. */
static int grow_spill(int fd, const char *dir, uint64_t bytes, struct error *e)
{
    char need[32];
    warn_of_memory(fd, dir, bytes);
    int rc = check_disk(fd, dir, bytes, e);
    if (rc) return rc;
    rc = posix_fallocate(fd, 0, (off_t)bytes);
    return rc ? error_set(e, PL_FAIL,
                          "cannot reserve %s for the offload file in %s: %s; free disk space, lower memory.host_budget "
                          "or set memory.offload: none",
                          size_print(bytes, need), dir, strerror(rc))
              : PL_OK;
}

struct mapping {
    uint64_t bytes;
    int team; /* the size that OpenMP's teams had by default */
    struct mapped spill; /* the offload file */
    int spill_fd;        /* -1: there is none */
    bool flushes;        /* the kernel tells of failed writes only when it flushes the disk's cache */
    int write_error;     /* errno of a failed write; the kernel tells it once */
};

static const char *spill_folder(const struct device *d) { return d->spill[0] ? d->spill : "/tmp"; }

/* Reports whether a file is in overlayfs, the file system of containers: only a flush goes through
 * it to the file below. */
static bool needs_flush(int fd)
{
    enum { OVERLAYFS = 0x794c7630 };
    struct statfs s;
    return !fstatfs(fd, &s) && (int)s.f_type == OVERLAYFS;
}

/* Returns errno of a write that failed since the last call, or 0. sync_file_range reports the
 * failures of the whole file and waits only for writes of the given range, here a page behind the
 * end. Where it is not supported, a flush of one page reports them. */
static int find_write_error(struct mapping *m)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    if (!m->flushes) {
        if (!sync_file_range(m->spill_fd, (off_t)align_up(m->spill.bytes, page), (off_t)page,
                             SYNC_FILE_RANGE_WAIT_BEFORE))
            return 0;
        if (errno != ENOSYS && errno != EINVAL && errno != ESPIPE && errno != EOPNOTSUPP) return errno;
        m->flushes = true;
    }
    return msync(m->spill.at, page, MS_SYNC) ? errno : 0;
}

/* Fails if the disk lost bytes of the offload file. Once it failed, it always fails. */
static int check_spill(struct device *d, struct error *e)
{
    struct mapping *m = d->state;
    if (m->spill_fd < 0) return PL_OK;
    if (!m->write_error) m->write_error = find_write_error(m);
    if (!m->write_error && mapped_failed(&m->spill)) m->write_error = EIO;
    if (!m->write_error) return PL_OK;
    return error_set(e, PL_FAIL,
                     "the disk of the offload file, in %s, lost bytes of this run: %s. Nothing computed from them is "
                     "saved; see the kernel's log (dmesg) for the "
                     "disk's errors, and continue from the last checkpoint with --resume, or set memory.offload: none",
                     spill_folder(d), strerror(m->write_error));
}

static int map_spill(struct device *d, uint64_t bytes, struct error *e)
{
    struct mapping *m = d->state;
    const char *dir = spill_folder(d);
    m->spill_fd = open_spill(dir);
    if (m->spill_fd < 0) return error_set(e, PL_FAIL, "cannot create the offload file in %s: %s", dir, strerror(errno));
    m->flushes = needs_flush(m->spill_fd);
    int rc = grow_spill(m->spill_fd, dir, bytes, e);
    if (!rc && mapped_open(&m->spill, m->spill_fd, bytes, PROT_READ | PROT_WRITE, MAP_SHARED))
        rc = error_set(e, PL_FAIL, "cannot map %llu bytes of the offload file: %s", (unsigned long long)bytes,
                       strerror(errno));
    if (rc) {
        close(m->spill_fd); /* the file and its blocks are gone */
        m->spill_fd = -1;
        return rc;
    }
    d->arena[SPACE_HOST] = m->spill.at;
    return PL_OK;
}

/* Maps the host space of a command that writes no files. */
static int map_memory(struct device *d, uint64_t bytes, struct error *e)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return error_set(e, PL_FAIL, "cannot allocate %llu bytes in place of the offload file: %s",
                         (unsigned long long)bytes, strerror(errno));
    touch(at, bytes, (uint64_t)sysconf(_SC_PAGESIZE));
    d->arena[SPACE_HOST] = at;
    return PL_OK;
}

static int cpu_allocate(struct device *d, const uint64_t bytes[SPACE_COUNT], struct error *e)
{
    struct mapping *m = mem_alloc(sizeof *m);
    m->spill_fd = -1;
    d->state = m;
    /* Regions that name no size get the plan's: a team of another size would end some of the warm
     * threads. */
    m->team = omp_get_max_threads();
    omp_set_num_threads(d->profile.threads);
    int rc = !bytes[SPACE_HOST] ? PL_OK
             : d->no_file       ? map_memory(d, bytes[SPACE_HOST], e)
                                : map_spill(d, bytes[SPACE_HOST], e);
    if (rc) return rc; /* a disk that is too full shows before memory is taken */
    d->arena[SPACE_DEVICE] = map_compute(bytes[SPACE_DEVICE], &m->bytes);
    if (!d->arena[SPACE_DEVICE])
        return error_set(e, PL_FAIL, "cannot allocate the arena of %llu bytes: %s",
                         (unsigned long long)bytes[SPACE_DEVICE], strerror(errno));
    return PL_OK;
}

/* Prepares the kernels of libraries before the first step. */
static int cpu_record(struct device *d, struct tape *t, struct error *e)
{
    (void)d;
    for (int p = 0; p < PROGRAM_COUNT; p++)
        for (uint32_t i = 0; i < t->program[p].n; i++) {
            struct entry *x = &t->program[p].at[i];
            int rc = x->kind == ENTRY_LAUNCH ? onednn_prepare(x->kernel, &x->launch, e) : PL_OK;
            if (rc) return rc;
        }
    return PL_OK;
}

static int cpu_run(struct device *d, struct tape *t, enum program p, struct error *e)
{
    tape_run(t, p);
    return check_spill(d, e);
}

static int cpu_copy(struct device *d, void *to, const void *from, uint64_t bytes, struct error *e)
{
    (void)d, (void)e;
    memcpy(to, from, bytes);
    return PL_OK;
}

static int cpu_read(struct device *d, void *to, const void *from, uint64_t bytes, struct error *e)
{
    const uintptr_t offset = (uintptr_t)from - (uintptr_t)d->arena[SPACE_HOST];
    memcpy(to, from, bytes);
    return d->arena[SPACE_HOST] && offset < d->bytes[SPACE_HOST] ? check_spill(d, e) : PL_OK;
}

/* Waits until all submitted work is done. */
static int cpu_synchronize_writes(struct device *d, struct error *e)
{
    (void)d, (void)e;
    return PL_OK;
}

static int cpu_record_event(struct device *d, int number, struct error *e)
{
    (void)e;
    d->reached[number] = clock_seconds();
    return PL_OK;
}

static int cpu_wait_event(struct device *d, int number, double *reached, struct error *e)
{
    (void)e;
    *reached = d->reached[number];
    return PL_OK;
}

static void release_launches(struct tape *t)
{
    for (int p = 0; p < PROGRAM_COUNT; p++)
        for (uint32_t i = 0; i < t->program[p].n; i++) {
            struct entry *x = &t->program[p].at[i];
            if (x->kind == ENTRY_LAUNCH) onednn_release(x->kernel, &x->launch);
        }
}

static void cpu_close(struct device *d, struct tape *t)
{
    if (t) release_launches(t);
    struct mapping *m = d->state;
    if (m && d->arena[SPACE_DEVICE]) {
        uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), used = align_up(d->bytes[SPACE_DEVICE], 256);
        char *start = d->arena[SPACE_DEVICE] - (align_up(used, page) - used);
        munmap(start, m->bytes);
    }
    if (m && m->spill_fd >= 0) {
        mapped_close(&m->spill);
        close(m->spill_fd);
    } else if (d->arena[SPACE_HOST])
        munmap(d->arena[SPACE_HOST], d->bytes[SPACE_HOST]);
    if (m) omp_set_num_threads(m->team);
    mem_free(m);
}

const struct device_ops cpu_device = {"cpu",
                                      cpu_open,
                                      cpu_allocate,
                                      cpu_record,
                                      cpu_run,
                                      cpu_copy,
                                      cpu_read,
                                      cpu_close,
                                      .write_later = cpu_copy,
                                      .synchronize_writes = cpu_synchronize_writes,
                                      .send = cpu_copy,
                                      .record_event = cpu_record_event,
                                      .wait_event = cpu_wait_event};
const struct device_ops ref_device = {"ref",   cpu_open, cpu_allocate, cpu_record,
                                      cpu_run, cpu_copy, cpu_read,     cpu_close};
