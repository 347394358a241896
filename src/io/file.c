/*
 * file.c: files and folders.
 *
 * Invariant: a function that returns PL_OK after writing has synced the bytes and, if it created
 * a file, the folder entry, so that a crash right after it loses nothing. temporary.c writes whole
 * files.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <limits.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "io/file.h"

enum { COPY_BLOCK = 64 << 10, WRITE_MOST = 1 << 30, OPEN_FOLDERS = 16 };

void names_free(struct names *l)
{
    for (uint32_t i = 0; i < l->n; i++) mem_free(l->at[i]);
    vec_free(l);
}

static int name_order(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void names_sort(struct names *l)
{
    if (l->n) qsort(l->at, l->n, sizeof *l->at, name_order);
}

static const char *errno_hint(int code)
{
    switch (code) {
    case ENOSPC: case EDQUOT: return " (free some space, or write elsewhere)";
    case EFBIG: return " (a limit on the size of files: see `ulimit -f`, or write to another file system)";
    case EROFS: return " (the file system is mounted read-only; write elsewhere)";
    case EACCES: case EPERM: return " (check the permissions of the file and of its folder)";
    case EMFILE: return " (raise the limit of open files of a process with `ulimit -n`)";
    case ENFILE: return " (raise the limit of open files of the system, fs.file-max)";
    default: return "";
    }
}

int file_error(const char *path, const char *doing, struct error *e)
{
    int code = errno;
    bool missing = code == ENOENT || code == ENOTDIR || code == EISDIR;
    error_set(e, missing ? PL_USAGE : PL_FAIL, "%s: cannot %s: %s%s", path, doing, strerror(code), errno_hint(code));
    e->no_descriptors = code == EMFILE || code == ENFILE;
    return e->code;
}

void files_raise_limit(void)
{
    struct rlimit l;
    if (getrlimit(RLIMIT_NOFILE, &l) || l.rlim_cur >= l.rlim_max) return;
    l.rlim_cur = l.rlim_max;
    setrlimit(RLIMIT_NOFILE, &l);
}

uint32_t files_limit(void)
{
    struct rlimit l;
    return getrlimit(RLIMIT_NOFILE, &l) ? 0 : (uint32_t)min_u64(l.rlim_cur, INT32_MAX);
}

int files_spare(uint32_t n, struct error *e)
{
    int *fds = mem_alloc((n + 1) * sizeof *fds), rc = PL_OK;
    uint32_t k = 0;
    while (k < n && (fds[k] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0) k++;
    if (k < n)
        rc = error_set(e, PL_FAIL,
                       "only %u more files can be opened (%s), and reading and saving need %u: raise the limit "
                       "with `ulimit -n`, which is %u", k, strerror(errno), n, files_limit());
    while (k) close(fds[--k]);
    mem_free(fds);
    return rc;
}

bool data_path(const char *name, char *out, size_t room)
{
    const char *data = getenv("XDG_DATA_HOME"), *home = getenv("HOME");
    bool own = data && data[0] == '/'; /* the XDG specification ignores relative paths */
    if (!own && !(home && home[0])) return false;
    int n = snprintf(out, room, "%s%s/plimsoll/%s", own ? data : home, own ? "" : "/.local/share", name);
    return n > 0 && (size_t)n < room;
}

void path_from_windows(char *path)
{
    for (; *path; path++)
        if (*path == '\\') *path = '/';
}

char *path_join(const char *folder, const char *name)
{
    struct text path = {0};
    text_printf(&path, "%s%s%s", folder, *folder ? "/" : "", name);
    return path.at;
}

int path_dir(const char *path, char *out, size_t room, struct error *e)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    while (n && path[n - 1] != '/') n--;
    while (n > 1 && path[n - 1] == '/') n--;
    if (!n) path = ".", n = 1;
    if (n >= room) return error_set(e, PL_USAGE, "the path has more than %zu bytes: %.80s...", room, path);
    memcpy(out, path, n);
    out[n] = 0;
    return PL_OK;
}

int fd_write(int fd, const void *bytes, size_t n)
{
    const char *at = bytes;
    while (n) {
        ssize_t k = write(fd, at, n < WRITE_MOST ? n : WRITE_MOST);
        if (k < 0 && errno == EINTR) continue;
        if (k < 0) return -1;
        at += k;
        n -= (size_t)k;
    }
    return 0;
}

static ssize_t fd_read(int fd, void *bytes, size_t n)
{
    ssize_t k;
    do k = read(fd, bytes, n);
    while (k < 0 && errno == EINTR);
    return k;
}

/* ---- reading ---- */

/* Reads to the end, or one byte beyond the limit, which shows that the file is larger. */
static int fd_read_all(int fd, uint64_t limit, struct text *into)
{
    size_t block = 64 << 10;
    char *buffer = mem_alloc(block);
    ssize_t k = 0;
    while (into->n <= limit && (k = fd_read(fd, buffer, block)) > 0) text_append(into, buffer, (size_t)k);
    mem_free(buffer);
    return k < 0 ? -1 : 0;
}

static int refuse_mode(const char *path, mode_t mode, struct error *e)
{
    const char *what = S_ISDIR(mode)    ? "a folder"
                       : S_ISFIFO(mode) ? "a pipe"
                       : S_ISSOCK(mode) ? "a socket"
                                        : "a device";
    return error_set(e, PL_USAGE, "%s is %s, not a regular file%s", path, what,
                     S_ISDIR(mode) ? "" : "; write its contents to a file, and use that");
}

int file_refuse_pointer(const char *path, int fd, uint64_t bytes, struct error *e)
{
    static const char mark[] = "version https://git-lfs.github.com/spec/";
    enum { POINTER_MOST = 1024 };
    char head[sizeof mark - 1];
    if (bytes < sizeof head || bytes > POINTER_MOST || pread(fd, head, sizeof head, 0) != (ssize_t)sizeof head)
        return PL_OK;
    if (memcmp(head, mark, sizeof head)) return PL_OK;
    return error_set(e, PL_USAGE, "%s: it is a Git LFS pointer, not the file: run `git lfs pull` in its folder", path);
}

/* Opens a regular file for reading. */
static int open_regular(const char *path, struct stat *s, struct error *e)
{
    if (stat(path, s)) return file_error(path, "open it", e), -1;
    if (!S_ISREG(s->st_mode)) return refuse_mode(path, s->st_mode, e), -1; /* opening a device may have effects */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return file_error(path, "open it", e), -1;
    int rc = fstat(fd, s)           ? file_error(path, "find its size", e)
             : !S_ISREG(s->st_mode) ? refuse_mode(path, s->st_mode, e)
                                    : PL_OK;
    return rc ? close(fd), -1 : fd;
}

int file_open(const char *path, uint64_t *bytes, struct error *e)
{
    struct stat s;
    int fd = open_regular(path, &s, e);
    if (fd >= 0 && file_refuse_pointer(path, fd, (uint64_t)s.st_size, e)) close(fd), fd = -1;
    if (fd >= 0 && bytes) *bytes = (uint64_t)s.st_size;
    return fd;
}

int file_map(struct mapped *m, const char *path, struct error *e)
{
    uint64_t bytes;
    *m = (struct mapped){0};
    const int fd = file_open(path, &bytes, e);
    if (fd < 0) return e->code;
    const bool failed = bytes && mapped_open(m, fd, (size_t)bytes, PROT_READ, MAP_SHARED);
    const int rc = failed ? file_error(path, "map it", e) : PL_OK;
    close(fd);
    return rc;
}

int file_check(const char *path, struct error *e)
{
    const int fd = file_open(path, NULL, e);
    return fd < 0 ? e->code : (close(fd), PL_OK);
}

int fd_read_at(int fd, uint64_t at, void *to, size_t n, struct error *e)
{
    for (size_t got = 0; got < n;) {
        ssize_t r = pread(fd, (char *)to + got, n - got, (off_t)(at + got));
        if (r < 0 && errno == EINTR) continue;
        if (r < 0)
            return error_set(e, PL_FAIL, "cannot read at byte %llu: %s", (unsigned long long)(at + got),
                             strerror(errno));
        if (!r)
            return error_set(e, PL_FAIL, "it ends at byte %llu; expected %zu more bytes",
                             (unsigned long long)(at + got), n - got);
        got += (size_t)r;
    }
    return PL_OK;
}

int file_read(const char *path, uint64_t limit, char **bytes, size_t *n, struct error *e)
{
    int fd = file_open(path, NULL, e);
    if (fd < 0) return e->code;
    struct text all = {0};
    text_append(&all, "", 0); /* an empty file is an empty string, not NULL */
    int rc = fd_read_all(fd, limit, &all) ? file_error(path, "read it", e) : PL_OK;
    close(fd);
    if (!rc && all.n > limit)
        rc = error_set(e, PL_USAGE, "%s: larger than the %llu bytes allowed for such a file", path,
                       (unsigned long long)limit);
    if (rc) {
        text_free(&all);
        return rc;
    }
    *bytes = all.at;
    *n = all.n;
    return PL_OK;
}

bool file_is_hidden(int code) { return code == EIO || code == ENOMEM; }

bool file_exists(const char *path)
{
    struct stat s;
    return !stat(path, &s) || file_is_hidden(errno);
}

bool dir_exists(const char *path)
{
    struct stat s;
    return !stat(path, &s) && S_ISDIR(s.st_mode);
}

bool file_same(const char *a, const char *b)
{
    struct stat s, t;
    return !stat(a, &s) && !stat(b, &t) && s.st_dev == t.st_dev && s.st_ino == t.st_ino;
}

int file_size(const char *path, uint64_t *bytes, struct error *e)
{
    struct stat s;
    if (stat(path, &s)) return file_error(path, "find its size", e);
    *bytes = (uint64_t)s.st_size;
    return PL_OK;
}

/* ---- writing ---- */

int dir_sync(const char *path, struct error *e)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return file_error(path, "open the folder", e);
    int rc = PL_OK;
    /* Some network file systems cannot sync a folder and return EINVAL. */
    if (fsync(fd) && errno != EINVAL) rc = file_error(path, "sync the folder", e);
    close(fd);
    return rc;
}

static int parent_sync(const char *path, struct error *e)
{
    char dir[PATH_MAX];
    if (path_dir(path, dir, sizeof dir, e)) return e->code;
    return dir_sync(dir, e);
}

int file_rename(const char *from, const char *to, struct error *e)
{
    if (rename(from, to)) {
        file_error(to, "put the new file in place", e);
        return error_prepend(e, "renaming %s", from);
    }
    return parent_sync(to, e);
}

size_t file_peek(const char *path, void *to, size_t n)
{
    struct stat st;
    size_t got = 0;
    ssize_t r = 1;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return 0;
    bool regular = !fstat(fd, &st) && S_ISREG(st.st_mode);
    while (regular && got < n && r > 0) {
        r = pread(fd, (char *)to + got, n - got, (off_t)got);
        if (r > 0) got += (size_t)r;
    }
    close(fd);
    return got;
}

/* Copies the rest of `in` to `out`. Returns -1 with errno when reading or writing fails. */
static int fd_copy(int in, int out)
{
    char *block = mem_alloc(COPY_BLOCK);
    ssize_t k;
    int rc = 0;
    while (!rc && (k = fd_read(in, block, COPY_BLOCK)) != 0) rc = k < 0 ? -1 : fd_write(out, block, (size_t)k);
    mem_free(block);
    return rc;
}

int file_copy(const char *from, const char *to, struct error *e)
{
    struct stat s;
    int in = open_regular(from, &s, e);
    if (in < 0) return e->code;
    int out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, s.st_mode & 0777);
    if (out < 0) {
        close(in);
        return file_error(to, "create it", e);
    }
    int rc = PL_OK;
    if (fd_copy(in, out) || fsync(out)) {
        rc = file_error(to, "copy into it", e);
        error_prepend(e, "copying %s", from);
    }
    close(in);
    if (close(out) && !rc) rc = file_error(to, "close it", e);
    if (rc) unlink(to);
    return rc ? rc : parent_sync(to, e);
}

/* ---- folders ---- */

int dir_make(const char *path, struct error *e)
{
    char *p = mem_string(path);
    int rc = PL_OK;
    for (char *at = p + 1; !rc && *p; at++) {
        if (*at && *at != '/') continue;
        char stop = *at;
        *at = 0;
        int failed = mkdir(p, 0777) ? errno : 0;
        if (failed && !dir_exists(p)) {
            errno = failed == EEXIST ? ENOTDIR : failed; /* EEXIST: there is a file of that name */
            rc = file_error(p, "create the folder", e);
        }
        *at = stop;
        if (!stop) break;
    }
    mem_free(p);
    return rc;
}

int dir_list(const char *path, struct names *out, struct error *e)
{
    *out = (struct names){0};
    DIR *d = opendir(path);
    if (!d) return file_error(path, "open the folder", e);
    struct dirent *entry;
    errno = 0;
    while ((entry = readdir(d)))
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..")) vec_push(out, mem_string(entry->d_name));
    int rc = errno ? file_error(path, "list the folder", e) : PL_OK;
    closedir(d);
    names_sort(out);
    if (rc) names_free(out);
    return rc;
}

static int remove_one(const char *path, const struct stat *s, int type, struct FTW *where)
{
    (void)s, (void)type, (void)where;
    return remove(path);
}

int tree_remove(const char *path, struct error *e)
{
    if (!nftw(path, remove_one, OPEN_FOLDERS, FTW_DEPTH | FTW_PHYS) || errno == ENOENT) return PL_OK;
    return file_error(path, "remove it", e);
}

int dir_list_ending(const char *path, const char *ending, struct names *out, struct error *e)
{
    struct names all;
    *out = (struct names){0};
    int rc = dir_list(path, &all, e);
    for (uint32_t i = 0; i < all.n && !rc; i++) {
        const size_t n = strlen(all.at[i]), m = strlen(ending);
        struct text full = {0};
        if (all.at[i][0] == '.' || n < m || strcmp(all.at[i] + n - m, ending)) continue;
        text_printf(&full, "%s/%s", path, all.at[i]);
        vec_push(out, mem_string(full.at));
        text_free(&full);
    }
    names_free(&all);
    return rc;
}

/* Returns how many patterns a pattern with {a,b} means, at most; *at is moved to its end, or
 * within braces to , or }. */
static uint64_t count_braces(const char **at, int depth)
{
    enum { ENOUGH = 1 << 20, DEPTH = 64 };
    uint64_t n = 1;
    if (depth > DEPTH) return *at += strlen(*at), ENOUGH;
    for (; **at && !(depth && (**at == ',' || **at == '}')); ++*at) {
        if (**at == '\\' && (*at)[1]) ++*at;
        else if (**at == '{') {
            uint64_t alternatives = 0;
            do {
                ++*at;
                alternatives += count_braces(at, depth + 1);
            } while (**at == ',');
            n = min_u64(n * alternatives, ENOUGH);
            if (!**at) break;
        }
    }
    return n;
}

int file_glob(const char *pattern, struct names *out, struct error *e)
{
    enum { PATTERNS = 10000 };
    const char *end = pattern;
    glob_t found = {0};
    *out = (struct names){0};
    if (!access(pattern, F_OK)) return vec_push(out, mem_string(pattern)), PL_OK;
    if (count_braces(&end, 0) > PATTERNS)
        return error_set(e, PL_USAGE,
                         "%.200s: its alternatives in braces mean more than %d patterns; expected fewer", pattern,
                         PATTERNS);
    int rc = glob(pattern, GLOB_BRACE | GLOB_NOSORT, NULL, &found);
    if (rc && rc != GLOB_NOMATCH) {
        globfree(&found);
        return error_set(e, PL_FAIL, "%s: cannot search for files: %s", pattern,
                         rc == GLOB_NOSPACE ? "out of memory" : "a folder cannot be read");
    }
    for (size_t i = 0; !rc && i < found.gl_pathc; i++) vec_push(out, mem_string(found.gl_pathv[i]));
    globfree(&found);
    names_sort(out);
    uint32_t kept = 0; /* alternatives may match a file twice */
    for (uint32_t i = 0; i < out->n; i++) {
        if (kept && !strcmp(out->at[kept - 1], out->at[i])) mem_free(out->at[i]);
        else out->at[kept++] = out->at[i];
    }
    out->n = kept;
    return PL_OK;
}

int folder_above(const char *path, char *out, size_t room, struct error *e)
{
    char at[PATH_MAX];
    struct stat s;
    if (strlen(path) >= sizeof at) return error_set(e, PL_USAGE, "the path has more than %d bytes", PATH_MAX);
    strcpy(at, path);
    while (stat(at, &s)) {
        bool top = !strcmp(at, "/") || !strcmp(at, ".");
        if (errno != ENOENT || top) return file_error(path, "find the folder", e);
        char up[PATH_MAX];
        if (path_dir(at, up, sizeof up, e)) return e->code;
        strcpy(at, up);
    }
    if (snprintf(out, room, "%s", at) < (int)room) return PL_OK;
    return error_set(e, PL_USAGE, "the path of %s is too long", path);
}

int disk_free(const char *path, uint64_t *bytes, struct error *e)
{
    char at[PATH_MAX];
    struct statvfs s;
    if (folder_above(path, at, sizeof at, e)) return e->code;
    if (statvfs(at, &s)) return file_error(path, "find the free space", e);
    *bytes = (uint64_t)s.f_bavail * s.f_frsize;
    return PL_OK;
}
