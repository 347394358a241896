/*
 * fault.c: makes file system calls fail, or the process die, at a chosen call.
 *
 *   LD_PRELOAD=fault.so FAULT=ACTION:N FAULT_PATH=TEXT [FAULT_LOG=FILE] plimsoll ...
 *
 * Counts the calls that change files whose path contains TEXT: open for writing, write, fallocate,
 * ftruncate, fsync, mkdir, rename, unlink, rmdir, remove. At the N-th call, counted from 1:
 *
 *     kill     sends itself SIGKILL; a write writes half of its bytes before
 *     stop     sends itself SIGSTOP: the test acts meanwhile and sends SIGCONT
 *     nospace  this call and all later ones that need disk space fail with ENOSPC; calls that only
 *              free space or rename keep working, as on a full disk
 *     lost     the pages of every file that is mapped for writing become zeros, as if they had left
 *              memory after a write that failed and were read again; the kernel then tells the
 *              failure once, to the next sync_file_range, msync or fsync of such a file
 *     shrink   a file whose path contains TEXT has only N bytes left as soon as it is mapped for reading
 *     count    nothing: at the end the number of calls is written to FAULT_LOG
 *
 * Every N is a moment at which a kill or a full disk could strike, so a test can try all of them; a
 * timer finds only the long ones. fsync is counted but not executed: the kernel already has the
 * data that a dead process wrote, and power failures are not tested here.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static enum { NOTHING, KILL, STOP, NOSPACE, LOST, SHRINK } action;
static long moment;
static const char *wanted;
static atomic_long calls;

__attribute__((constructor)) static void start(void)
{
    static const struct {
        const char *name;
        int action;
    } actions[] = {{"kill:", KILL}, {"stop:", STOP}, {"nospace:", NOSPACE}, {"lost:", LOST}, {"shrink:", SHRINK}};
    const char *text = getenv("FAULT");
    wanted = getenv("FAULT_PATH");
    for (size_t i = 0; text && i < sizeof actions / sizeof *actions; i++) {
        size_t n = strlen(actions[i].name);
        if (strncmp(text, actions[i].name, n)) continue;
        action = actions[i].action;
        moment = strtol(text + n, NULL, 10);
    }
}

__attribute__((destructor)) static void finish(void)
{
    const char *log = getenv("FAULT_LOG");
    char text[32];
    int n = snprintf(text, sizeof text, "%ld\n", atomic_load(&calls));
    int fd = log ? (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_TRUNC, 0666) : -1;
    if (fd >= 0 && syscall(SYS_write, fd, text, n) != n) _exit(99);
}

/* True for the N-th call, and on a full disk for all later ones. */
static bool due(const char *path)
{
    if (!wanted || !path || !strstr(path, wanted)) return false;
    long now = atomic_fetch_add(&calls, 1) + 1;
    return action != NOTHING && action != SHRINK && (action == NOSPACE ? now >= moment : now == moment);
}

static bool due_fd(int fd)
{
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 0) return false;
    path[n] = 0;
    return due(path);
}

/* --- files that are mapped for writing ------------------------------------------------------- */

static struct {
    void *at;
    size_t bytes;
    ino_t inode;
    bool failed; /* not told yet */
} maps[16];
static size_t n_maps;

static void lose_maps(void)
{
    for (size_t i = 0; i < n_maps; i++) {
        memset(maps[i].at, 0, maps[i].bytes);
        maps[i].failed = true;
    }
}

/* True, with errno, if a write of this file failed since the last call. */
static bool tell_failure(const void *at, int fd)
{
    struct stat s;
    for (size_t i = 0; i < n_maps; i++) {
        const bool same = at ? at == maps[i].at : !fstat(fd, &s) && s.st_ino == maps[i].inode;
        if (!same || !maps[i].failed) continue;
        maps[i].failed = false;
        errno = EIO;
        return true;
    }
    return false;
}

/* Truncates the file of a new mapping. */
static void shrink(int fd)
{
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 0) return;
    path[n] = 0;
    if (wanted && strstr(path, wanted) && syscall(SYS_truncate, path, moment)) _exit(99);
}

static void *map_any(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    struct stat s;
    void *p = (void *)syscall(SYS_mmap, at, bytes, protection, flags, fd, offset);
    if (p != MAP_FAILED && fd >= 0 && action == SHRINK) shrink(fd);
    if (p != MAP_FAILED && fd >= 0 && protection & PROT_WRITE && flags & MAP_SHARED &&
        n_maps < sizeof maps / sizeof *maps && !fstat(fd, &s)) {
        maps[n_maps].at = p;
        maps[n_maps].bytes = bytes;
        maps[n_maps++].inode = s.st_ino;
    }
    return p;
}

void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    return map_any(at, bytes, protection, flags, fd, offset);
}
void *mmap64(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    return map_any(at, bytes, protection, flags, fd, offset);
}

int munmap(void *at, size_t bytes)
{
    for (size_t i = 0; i < n_maps; i++)
        if (maps[i].at == at) maps[i] = maps[--n_maps];
    return (int)syscall(SYS_munmap, at, bytes);
}

int sync_file_range(int fd, off_t offset, off_t bytes, unsigned flags)
{
    (void)offset, (void)bytes, (void)flags;
    return tell_failure(NULL, fd) ? -1 : 0;
}

int msync(void *at, size_t bytes, int flags)
{
    (void)bytes, (void)flags;
    return tell_failure(at, -1) ? -1 : 0;
}

/* Performs the action. False: the call itself is still to be executed. */
static bool inject_fault(bool needs_space)
{
    if (action == KILL) raise(SIGKILL);
    if (action == STOP) {
        raise(SIGSTOP);
        usleep(100000); /* a signal that was sent meanwhile may be another thread's: this one lets it come first */
    }
    if (action == LOST) lose_maps();
    if (action != NOSPACE || !needs_space) return false;
    errno = ENOSPC;
    return true;
}

/* --- calls that need disk space -------------------------------------------------------------- */

static int open_any(const char *path, int flags, mode_t mode)
{
    if (flags & (O_WRONLY | O_RDWR) && due(path) && inject_fault(flags & O_CREAT)) return -1;
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

int open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    return open_any(path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    return open_any(path, flags, mode);
}

ssize_t write(int fd, const void *bytes, size_t n)
{
    if (due_fd(fd)) {
        if (action == KILL && syscall(SYS_write, fd, bytes, n / 2) < 0) _exit(99);
        if (inject_fault(true)) return -1;
    }
    return syscall(SYS_write, fd, bytes, n);
}

int fallocate(int fd, int mode, off_t offset, off_t bytes)
{
    if (due_fd(fd) && inject_fault(true)) return -1;
    return (int)syscall(SYS_fallocate, fd, mode, offset, bytes);
}

int mkdir(const char *path, mode_t mode)
{
    if (due(path) && inject_fault(true)) return -1;
    return (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

/* --- calls that need none -------------------------------------------------------------------- */

int fsync(int fd)
{
    if (due_fd(fd)) inject_fault(false);
    return tell_failure(NULL, fd) ? -1 : 0;
}

int ftruncate(int fd, off_t bytes)
{
    if (due_fd(fd)) inject_fault(false);
    return (int)syscall(SYS_ftruncate, fd, bytes);
}

int rename(const char *from, const char *to)
{
    if (due(to)) inject_fault(false);
    return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
    if (due(to)) inject_fault(false);
    return (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, flags);
}

int unlink(const char *path)
{
    if (due(path)) inject_fault(false);
    return (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}

int rmdir(const char *path)
{
    if (due(path)) inject_fault(false);
    return (int)syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR);
}

int remove(const char *path)
{
    if (due(path)) inject_fault(false);
    int rc = (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
    return rc && (errno == EISDIR || errno == EPERM) ? (int)syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR) : rc;
}
