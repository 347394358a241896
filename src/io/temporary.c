/*
 * temporary.c: see temporary.h.
 *
 * A signal may come at any moment, so the handler uses only a fixed table of paths and system
 * calls.
 */
#include "io/temporary.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/file.h"

#define MARK ".tmp."
enum { DIGITS = 12, LISTED = 64, DEPTH = 8 };

/* --- signals ---------------------------------------------------------------------------------- */

/* The temporary files of this process. Those beyond the table stay after a signal. */
static struct listed {
    _Atomic bool used;
    char path[PATH_MAX];
} listed[LISTED];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of those who change the table; the handler only reads */
static _Atomic bool ending;

static void list(const char *path)
{
    int i = 0;
    while (atomic_load(&ending)) pause(); /* nothing is made any more */
    pthread_mutex_lock(&lock);
    while (i < LISTED && listed[i].used) i++;
    if (i < LISTED && strlen(path) < PATH_MAX) {
        strcpy(listed[i].path, path);
        listed[i].used = true;
    }
    pthread_mutex_unlock(&lock);
}

static void unlist(const char *path)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < LISTED; i++)
        if (listed[i].used && !strcmp(listed[i].path, path)) listed[i].used = false;
    pthread_mutex_unlock(&lock);
}

/* Removes a file, or a folder with its contents, only by system calls. */
static void remove_now(int folder, const char *name, int depth)
{
    char entries[2048];
    ssize_t n;
    if (!unlinkat(folder, name, 0) || !depth) return;
    const int fd = openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return;
    while ((n = getdents64(fd, entries, sizeof entries)) > 0)
        for (ssize_t at = 0; at < n;) {
            const struct dirent64 *x = (const void *)(entries + at);
            if (strcmp(x->d_name, ".") && strcmp(x->d_name, "..")) remove_now(fd, x->d_name, depth - 1);
            at += x->d_reclen;
        }
    close(fd);
    unlinkat(folder, name, AT_REMOVEDIR);
}

void temporary_remove_all(void)
{
    atomic_store(&ending, true);
    for (int i = 0; i < LISTED; i++)
        if (atomic_load(&listed[i].used)) remove_now(AT_FDCWD, listed[i].path, DEPTH);
}

void temporary_end(int signal_number)
{
    const int code = errno;
    temporary_remove_all();
    signal(signal_number, SIG_DFL);
    raise(signal_number); /* it is delivered when the handler returns */
    errno = code;
}

void temporary_on_signals(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction before, act = {.sa_handler = temporary_end};
    sigfillset(&act.sa_mask);
    for (size_t i = 0; i < COUNT(numbers); i++)
        if (!sigaction(numbers[i], NULL, &before) && before.sa_handler == SIG_DFL) sigaction(numbers[i], &act, NULL);
}

/* --- names ------------------------------------------------------------------------------------ */

static void random_digits(char out[DIGITS + 1])
{
    uint64_t x = 0;
    if (getrandom(&x, sizeof x, 0) != (ssize_t)sizeof x) x = (uint64_t)clock_seconds() ^ (uint64_t)getpid() << 32;
    snprintf(out, DIGITS + 1, "%012llx", (unsigned long long)(x & 0xffffffffffffull));
}

/* Reports whether the descriptor is that of the file at a path, and only this process has it. */
static bool is_own(int fd, const char *path)
{
    struct stat mine, there;
    /* other failures: there are no locks here */
    if (flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK) return false;
    return !fstat(fd, &mine) && !lstat(path, &there) && mine.st_ino == there.st_ino && mine.st_dev == there.st_dev;
}

/* Removes a file or folder that a process of this user left when it was killed: nobody has its
 * lock. */
static void remove_left(const char *path)
{
    struct stat s;
    struct error ignored;
    const int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return;
    if (!fstat(fd, &s) && s.st_uid == geteuid() && (S_ISREG(s.st_mode) || S_ISDIR(s.st_mode)) &&
        !flock(fd, LOCK_EX | LOCK_NB) && is_own(fd, path))
        tree_remove(path, &ignored);
    close(fd);
}

static void sweep(const char *path)
{
    char folder[PATH_MAX];
    struct names all;
    struct error ignored;
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    const size_t n = strlen(name), m = n + strlen(MARK);
    if (path_dir(path, folder, sizeof folder, &ignored) || dir_list(folder, &all, &ignored)) return;
    for (uint32_t i = 0; i < all.n; i++) {
        const char *x = all.at[i];
        struct text left = {0};
        if (strncmp(x, name, n) || strncmp(x + n, MARK, strlen(MARK)) || strlen(x) != m + DIGITS ||
            strspn(x + m, "0123456789abcdef") != DIGITS)
            continue;
        text_printf(&left, "%s/%s", folder, x);
        remove_left(left.at);
        text_free(&left);
    }
    names_free(&all);
}

/* --- making ----------------------------------------------------------------------------------- */

static int open_new(const char *path, bool folder)
{
    if (!folder) return open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    return mkdir(path, 0700) ? -1 : open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

static int make(struct temporary *t, const char *path, bool folder, struct error *e)
{
    enum { TRIES = 100 };
    struct text name = {0};
    char digits[DIGITS + 1];
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    *t = (struct temporary){.fd = -1};
    for (int i = 0; i < TRIES; i++) {
        random_digits(digits);
        name.n = 0;
        text_printf(&name, "%.*s" MARK "%s", (int)n, path, digits);
        t->fd = open_new(name.at, folder);
        /* ENOENT: another process took the folder for one that was left, before it was opened */
        if (t->fd < 0 && errno != EEXIST && errno != ENOENT) break;
        if (t->fd >= 0 && is_own(t->fd, name.at)) {
            t->path = name.at;
            list(t->path);
            return PL_OK;
        }
        if (t->fd >= 0) { /* another process took it for one that was left */
            remove_now(AT_FDCWD, name.at, 1);
            close(t->fd), t->fd = -1;
        }
    }
    file_error(path, folder ? "create a temporary folder beside it" : "create a temporary file beside it", e);
    text_free(&name);
    return e->code;
}

int temporary_file(struct temporary *t, const char *path, struct error *e)
{
    sweep(path);
    return make(t, path, false, e);
}

int temporary_folder(struct temporary *t, const char *path, struct error *e)
{
    sweep(path);
    return make(t, path, true, e);
}

int temporary_work(struct temporary *t, struct error *e)
{
    const char *base = getenv("TMPDIR");
    struct text path = {0};
    text_printf(&path, "%s/plimsoll", base && *base ? base : "/tmp");
    int rc = temporary_folder(t, path.at, e);
    text_free(&path);
    return rc;
}

/* Closes it, when it has another name or is removed. */
static void forget(struct temporary *t)
{
    if (!t->path) return;
    unlist(t->path);
    close(t->fd);
    mem_free(t->path);
    *t = (struct temporary){.fd = -1};
}

void temporary_drop(struct temporary *t)
{
    struct error ignored;
    if (t->path) tree_remove(t->path, &ignored);
    forget(t);
}

static mode_t mask; /* the user's umask, which can only be read by changing it */
static pthread_once_t read_once = PTHREAD_ONCE_INIT;
static void read_mask(void)
{
    mask = umask(077);
    umask(mask);
}

/* Returns the mode that open(2) and mkdir(2) give new files. */
static mode_t usual_mode(int fd)
{
    struct stat s;
    pthread_once(&read_once, read_mask);
    return (!fstat(fd, &s) && S_ISDIR(s.st_mode) ? 0777 : 0666) & ~mask;
}

int temporary_keep(struct temporary *t, const char *path, bool sync, struct error *e)
{
    int rc = PL_OK;
    if (fchmod(t->fd, usual_mode(t->fd)) && errno != EPERM) rc = file_error(path, "set its mode", e);
    if (!rc && sync && fsync(t->fd) && errno != EINVAL) rc = file_error(path, "write it", e);
    if (!rc && sync) rc = file_rename(t->path, path, e);
    else if (!rc && rename(t->path, path)) rc = file_error(path, "rename a temporary file to it", e);
    if (rc) temporary_drop(t);
    else forget(t);
    return rc;
}

/* --- whole files (file.h) --------------------------------------------------------------------- */

static int write_whole(const char *path, const void *bytes, size_t n, bool sync, struct error *e)
{
    struct temporary t;
    char doing[64];
    TRY(make(&t, path, false, e));
    if (!fd_write(t.fd, bytes, n)) return temporary_keep(&t, path, sync, e);
    snprintf(doing, sizeof doing, "write %zu bytes", n);
    int rc = file_error(path, doing, e);
    temporary_drop(&t);
    return rc;
}

int file_write_atomic(const char *path, const void *bytes, size_t n, struct error *e)
{
    return write_whole(path, bytes, n, true, e);
}

int file_write_text(int rc, const char *path, struct text *t, struct error *e)
{
    if (!rc) rc = file_write_atomic(path, t->at, t->n, e);
    text_free(t);
    return rc;
}

int file_write_unsynced(const char *path, const void *bytes, size_t n, struct error *e)
{
    return write_whole(path, bytes, n, false, e);
}
