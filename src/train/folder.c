/*
 * folder.c: the run's folder. A kill at any moment leaves it consistent.
 *
 *     begin      checkpoints/.step-8.tmp/     files are written; a resume ignores the folder
 *     commit     ... every file synced, then DONE synced, then the folder
 *                checkpoints/step-8/          one rename: now the checkpoint is valid
 *                checkpoints/.step-4.tmp/     the oldest: renamed first, then removed
 *
 * Invariants: a folder named step-N that contains DONE is complete and on disk. After the first
 * commit at least one always exists. Such a name appears and disappears only by a rename. Files
 * that a kill leaves behind have a leading dot, and the next open, which holds the lock, removes
 * them.
 *
 * Paths are built on the stack and folders are read entry by entry: saving allocates no memory,
 * whatever the number of files and checkpoints.
 */
#include "train/folder.h"

#include "io/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* Longest path below DIR: folder_open checks that DIR leaves room for it. */
enum { LONGEST_BELOW = 512 };

/* Prints a path into the caller's buffer and returns it. */
__attribute__((format(printf, 2, 3))) static const char *path_print(char out[FOLDER_PATH], const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(out, FOLDER_PATH, fmt, args);
    va_end(args);
    CHECK(n >= 0 && n < FOLDER_PATH, "a path of %d bytes", n);
    return out;
}

/* --- opening ----------------------------------------------------------------------- */

/* Returns the error that names the process in the lock file. */
static int locked_out(const struct folder *f, struct error *e)
{
    char path[FOLDER_PATH], pid[32] = {0};
    int fd = open(path_print(path, "%s/.lock", f->dir), O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : pread(fd, pid, sizeof pid - 1, 0);
    if (fd >= 0) close(fd);
    pid[n > 0 ? strspn(pid, "0123456789") : 0] = 0;
    return error_set(e, PL_FAIL,
                     "%s: another run, process %s, is using this folder: wait for it, stop it, or set "
                     "another train.out",
                     f->dir, *pid ? pid : "unknown");
}

/* Locks DIR itself: unlike the lock file, it cannot be removed while a run uses it. A network file
 * system may not lock folders; there the lock file decides. */
static int lock_dir(struct folder *f, struct error *e)
{
    f->dir_fd = open(f->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (f->dir_fd < 0) return file_error(f->dir, "open the folder", e);
    return flock(f->dir_fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK ? locked_out(f, e) : PL_OK;
}

static int take_lock(struct folder *f, struct error *e)
{
    char path[FOLDER_PATH], pid[32];
    if (lock_dir(f, e)) return e->code;
    path_print(path, "%s/.lock", f->dir);
    f->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (f->lock_fd < 0) return file_error(path, "make the lock file", e);
    if (flock(f->lock_fd, LOCK_EX | LOCK_NB))
        return errno == EWOULDBLOCK ? locked_out(f, e) : file_error(path, "lock it", e);
    /* The pid is only for the message above; the locks decide. */
    int n = snprintf(pid, sizeof pid, "%ld\n", (long)getpid());
    if (ftruncate(f->lock_fd, 0) || pwrite(f->lock_fd, pid, (size_t)n, 0) != n)
        return file_error(path, "write the lock file", e);
    return PL_OK;
}

/* The contents of the folder, except for what a run that was killed before it wrote config.yaml may
 * have left: a lock, an empty checkpoints/, temporary files, text that was tokenized. */
struct contents {
    bool any, run, lock;
};

/* Reports whether a name is that of a file of io/temporary.h that was left, of an offload file, or
 * of tokenized text, which is made anew if it is of other data. */
static bool is_debris(const char *name)
{
    return !strcmp(name, "train.tokenized") || !strcmp(name, "validation.tokenized") ||
           pattern_match("*?.tmp.????????????", name) || pattern_match(".plimsoll-spill-??????", name);
}

static bool is_empty_dir(const char *dir, const char *name)
{
    char path[FOLDER_PATH];
    struct names names;
    struct error ignored;
    if (dir_list(path_print(path, "%s/%s", dir, name), &names, &ignored)) return false;
    bool empty = !names.n;
    names_free(&names);
    return empty;
}

static int list_contents(const char *dir, struct contents *c, struct error *e)
{
    struct names names;
    *c = (struct contents){0};
    if (dir_list(dir, &names, e)) return e->code;
    for (uint32_t i = 0; i < names.n; i++) {
        const char *name = names.at[i];
        if (!strcmp(name, ".lock")) c->lock = true;
        else if (strcmp(name, "checkpoints") ? !is_debris(name) : !is_empty_dir(dir, name)) c->any = true;
        if (!strcmp(name, "config.yaml")) c->run = true;
    }
    names_free(&names);
    return PL_OK;
}

static int check_contents(const char *dir, const struct contents *c, enum folder_use use, struct error *e)
{
    const bool resume = use == FOLDER_RESUME;
    if (use == FOLDER_AGAIN && c->run) return PL_OK;
    if (resume && !c->run)
        return error_set(e, PL_USAGE, "%s: nothing to resume: it has no config.yaml; start without --resume", dir);
    if (resume || !c->any) return PL_OK;
    if (c->run)
        return error_set(e, PL_USAGE, "%s: the folder holds a run already: continue that one with --resume, or set "
                         "another train.out", dir);
    return error_set(e, PL_USAGE, "%s: the folder is not empty, and holds no run that --resume could continue: set "
                     "another train.out", dir);
}

/* Removes the temporary entries of one folder: .NAME.tmp is incomplete; .NAME.old is the previous
 * NAME and is renamed back if the new one is missing. */
static int sweep(const char *dir, struct error *e)
{
    struct names names;
    int rc = PL_OK;
    if (dir_list(dir, &names, e)) return e->code;
    for (uint32_t i = 0; !rc && i < names.n; i++) {
        const char *name = names.at[i];
        char path[FOLDER_PATH], final[FOLDER_PATH];
        bool old = pattern_match(".*.old", name);
        if (!old && !is_debris(name) && !pattern_match(".*.tmp", name)) continue;
        path_print(path, "%s/%s", dir, name);
        path_print(final, "%s/%.*s", dir, (int)(strlen(name) - strlen(".") - strlen(".old")), name + 1);
        rc = old && !file_exists(final) ? file_rename(path, final, e) : tree_remove(path, e);
    }
    names_free(&names);
    return rc;
}

/* Returns PL_USAGE if there is no checkpoint: a resume would begin at step 0, over the metrics and
 * the model of the run. */
static int require_checkpoint(struct folder *f, struct error *e)
{
    char path[FOLDER_PATH];
    int64_t step;
    if (folder_checkpoint_latest(f, &step, path, e)) return e->code;
    if (step >= 0) return PL_OK;
    return error_set(e, PL_USAGE,
                     "--resume: %s has no checkpoint to resume from%s; to start again from step 0, remove the folder "
                     "(rm -r) or set another "
                     "train.out, and leave --resume out",
                     f->dir, folder_model_path(f, FOLDER_FINAL, path) ? ", only the final model, in model/" : "");
}

static int prepare(struct folder *f, enum folder_use use, struct error *e)
{
    struct contents c;
    char checkpoints[FOLDER_PATH];
    const bool resume = use == FOLDER_RESUME;
    if (resume && !dir_exists(f->dir))
        return error_set(e, PL_USAGE, "%s: nothing to resume: there is no such folder; start without --resume", f->dir);
    f->made = !file_exists(f->dir);
    if (dir_make(f->dir, e) || list_contents(f->dir, &c, e)) return e->code;
    /* A folder that no run used is checked before a lock file is created in it. In any other folder
     * "in use" is the better message, and the contents may change until this process has the
     * lock. */
    if (!c.lock && check_contents(f->dir, &c, use, e)) return e->code;
    if (take_lock(f, e) || list_contents(f->dir, &c, e) || check_contents(f->dir, &c, use, e)) return e->code;
    path_print(checkpoints, "%s/checkpoints", f->dir);
    if (dir_make(checkpoints, e) || sweep(checkpoints, e) || sweep(f->dir, e)) return e->code;
    if (use == FOLDER_AGAIN && folder_resumes(f->dir))
        return error_set(e, PL_FAIL, "%s: a checkpoint appeared while the run began; start the command again", f->dir);
    return resume ? require_checkpoint(f, e) : PL_OK;
}

int folder_open(struct folder *f, const char *dir, enum folder_use use, struct error *e)
{
    memset(f, 0, sizeof *f);
    f->dir_fd = f->lock_fd = f->metrics_fd = -1;
    size_t n = strlen(dir);
    if (!n || n > FOLDER_PATH - LONGEST_BELOW)
        return error_set(e, PL_USAGE, "train.out: found a path of %zu bytes, expected 1 to %d", n,
                         FOLDER_PATH - LONGEST_BELOW);
    while (n > 1 && dir[n - 1] == '/') n--;
    memcpy(f->dir, dir, n);
    int rc = prepare(f, use, e);
    if (rc) folder_close(f);
    return rc;
}

void folder_close(struct folder *f)
{
    struct error ignored;
    if (!*f->dir) return;
    if (*f->staging) tree_remove(f->staging, &ignored); /* frees the disk space of an incomplete folder */
    if (f->metrics_fd >= 0) close(f->metrics_fd);
    if (f->lock_fd >= 0) close(f->lock_fd); /* releases the lock */
    if (f->dir_fd >= 0) close(f->dir_fd);
    memset(f, 0, sizeof *f);
}

void folder_abandon(struct folder *f)
{
    static const char *const ours[] = {"config.yaml", "plan.json", ".lock",           "metrics.jsonl",
                                       "eval.txt",    "eval.csv",  "train.tokenized", "validation.tokenized"};
    char path[FOLDER_PATH + 16], dir[FOLDER_PATH];
    const bool made = f->made;
    struct error ignored;
    if (*f->staging) tree_remove(f->staging, &ignored);
    for (size_t i = 0; i < COUNT(ours); i++) {
        snprintf(path, sizeof path, "%s/%s", f->dir, ours[i]);
        unlink(path);
    }
    snprintf(path, sizeof path, "%s/checkpoints", f->dir);
    rmdir(path);
    memcpy(dir, f->dir, sizeof dir);
    folder_close(f);
    if (made) rmdir(dir); /* fails, as intended, if the folder is not empty */
}

int folder_require_space(struct folder *f, uint64_t bytes, struct error *e)
{
    uint64_t available = 0;
    char need[32], have[32];
    if (disk_free(f->dir, &available, e)) return e->code;
    if (available >= bytes) return PL_OK;
    return error_set(e, PL_FAIL, "%s: the checkpoints and the model need %s (%llu bytes) on disk, %s (%llu bytes) are "
                     "free: free some space, or set train.out on another disk", f->dir, size_print(bytes, need),
                     (unsigned long long)bytes, size_print(available, have), (unsigned long long)available);
}

int folder_write(struct folder *f, const char *name, const char *bytes, size_t n, struct error *e)
{
    char path[FOLDER_PATH];
    return file_write_atomic(path_print(path, "%s/%s", f->dir, name), bytes, n, e);
}

/* --- metrics ------------------------------------------------------------------------ */

static int metrics_open(struct folder *f, struct error *e)
{
    char path[FOLDER_PATH];
    if (f->metrics_fd >= 0) return PL_OK;
    path_print(path, "%s/metrics.jsonl", f->dir);
    f->metrics_fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    return f->metrics_fd < 0 ? file_error(path, "open it", e) : PL_OK;
}

int folder_metrics(struct folder *f, struct error *e, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(f->line, sizeof f->line, fmt, args);
    va_end(args);
    CHECK(n >= 0 && n < (int)sizeof f->line, "a metrics line of %d bytes", n);
    f->line[n] = '\n'; /* replaces the terminator */
    if (metrics_open(f, e)) return e->code;
    if (!fd_write(f->metrics_fd, f->line, (size_t)n + 1)) return PL_OK;
    file_error("metrics.jsonl", "append a line", e);
    return error_prepend(e, "%s", f->dir);
}

/* Returns the number of `"step": N` in a line of n bytes; -1 when there is none. */
static int64_t line_step(const char *line, size_t n)
{
    const char *at = memmem(line, n, "\"step\"", 6);
    if (!at) return -1;
    at += 6;
    while (at < line + n && (*at == ' ' || *at == ':')) at++;
    return at < line + n && *at >= '0' && *at <= '9' ? strtoll(at, NULL, 10) : -1;
}

/* Returns the number of leading bytes up to the last whole line of a step <= `step`. Lines are in
 * the order of steps, so the first line beyond ends the search. */
static size_t kept_bytes(const char *text, size_t n, int64_t step)
{
    size_t kept = 0, at = 0;
    for (const char *end; (end = memchr(text + at, '\n', n - at)); at = (size_t)(end - text) + 1) {
        int64_t found = line_step(text + at, (size_t)(end - text) - at);
        if (found > step) break;
        if (found >= 0) kept = (size_t)(end - text) + 1;
    }
    return kept;
}

int folder_metrics_cut(struct folder *f, int64_t step, struct error *e)
{
    char path[FOLDER_PATH], *text = NULL;
    size_t n = 0;
    path_print(path, "%s/metrics.jsonl", f->dir);
    if (!file_exists(path)) return PL_OK;
    if (metrics_open(f, e) || file_read(path, UINT64_MAX, &text, &n, e)) return e->code;
    off_t kept = (off_t)kept_bytes(text, n, step);
    mem_free(text);
    return ftruncate(f->metrics_fd, kept) || fsync(f->metrics_fd) ? file_error(path, "truncate it", e) : PL_OK;
}

/* --- atomic creation of folders ------------------------------------------------------ */

/* Creates a new empty folder at f->staging and removes what a kill left there. */
static int stage(struct folder *f, int64_t step, const char **path, struct error *e)
{
    f->staging_step = step;
    if (tree_remove(f->staging, e)) return e->code;
    if (mkdir(f->staging, 0777)) return file_error(f->staging, "make the folder", e);
    *path = f->staging;
    return PL_OK;
}

static int sync_file(const char *path, struct error *e)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    int rc = fd < 0 || fsync(fd) ? file_error(path, "sync it", e) : PL_OK;
    if (fd >= 0) close(fd);
    return rc;
}

/* Syncs every file below, then the folder itself, which holds the directory entries. */
static int sync_tree(const char *dir, struct error *e)
{
    DIR *d = opendir(dir);
    int rc = PL_OK;
    if (!d) return file_error(dir, "open the folder", e);
    for (struct dirent *entry; !rc && (entry = readdir(d));) {
        char path[FOLDER_PATH];
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        path_print(path, "%s/%s", dir, entry->d_name);
        rc = dir_exists(path) ? sync_tree(path, e) : sync_file(path, e);
    }
    closedir(d);
    return rc ? rc : dir_sync(dir, e);
}

/* Replaces a folder where the file system cannot exchange two names: the old folder is renamed to
 * .NAME.old, and sweep() renames it back if the second rename does not happen. */
static int replace_in_two(const char *from, const char *to, struct error *e)
{
    char old[FOLDER_PATH];
    const char *name = strrchr(to, '/') + 1;
    path_print(old, "%.*s.%s.old", (int)(name - to), to, name);
    if (tree_remove(old, e) || file_rename(to, old, e) || file_rename(from, to, e)) return e->code;
    return tree_remove(old, e);
}

/* Renames the folder `from` to `to`, and replaces an existing one. */
static int put_in_place(const char *from, const char *to, struct error *e)
{
    char parent[FOLDER_PATH];
    if (!file_exists(to)) return file_rename(from, to, e);
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE)) return replace_in_two(from, to, e);
    path_print(parent, "%.*s", (int)(strrchr(to, '/') - to), to);
    if (dir_sync(parent, e)) return e->code;
    return tree_remove(from, e); /* `from` is the old folder now */
}

/* --- checkpoints --------------------------------------------------------------------- */

int folder_checkpoint_begin(struct folder *f, int64_t step, const char **path, struct error *e)
{
    CHECK(step >= 0, "step %lld", (long long)step);
    path_print(f->staging, "%s/checkpoints/.step-%lld.tmp", f->dir, (long long)step);
    return stage(f, step, path, e);
}

/* Returns the step of a complete checkpoint's name, or -1 for any other name, such as one with
 * leading zeros or too many digits, which this program never writes. */
static int64_t complete_step(const struct folder *f, const char *name)
{
    char done[FOLDER_PATH];
    const char *digits = name + 5;
    if (strncmp(name, "step-", 5)) return -1;
    size_t n = strspn(digits, "0123456789");
    if (!n || n > 18 || digits[n] || (n > 1 && digits[0] == '0')) return -1;
    path_print(done, "%s/checkpoints/%s/DONE", f->dir, name);
    return file_exists(done) ? strtoll(digits, NULL, 10) : -1;
}

struct checkpoint_survey {
    int64_t count, oldest, newest; /* complete checkpoints; -1: none */
};

/* Counts the complete checkpoints before a step; `spared` is counted, but is never the oldest. */
static int survey(const struct folder *f, int64_t before, int64_t spared, struct checkpoint_survey *s, struct error *e)
{
    char dir[FOLDER_PATH];
    *s = (struct checkpoint_survey){0, -1, -1};
    DIR *d = opendir(path_print(dir, "%s/checkpoints", f->dir));
    if (!d) return file_error(dir, "open the folder", e);
    for (struct dirent *entry; (entry = readdir(d));) {
        int64_t step = complete_step(f, entry->d_name);
        if (step < 0 || step >= before) continue;
        s->count++;
        if (step > s->newest) s->newest = step;
        if (step != spared && (s->oldest < 0 || step < s->oldest)) s->oldest = step;
    }
    closedir(d);
    return PL_OK;
}

/* Removes a checkpoint. It is renamed first, so that a folder with a checkpoint's name is never
 * incomplete. */
static int remove_checkpoint(const struct folder *f, int64_t step, struct error *e)
{
    char path[FOLDER_PATH], removed[FOLDER_PATH];
    path_print(path, "%s/checkpoints/step-%lld", f->dir, (long long)step);
    path_print(removed, "%s/checkpoints/.step-%lld.tmp", f->dir, (long long)step);
    if (tree_remove(removed, e) || file_rename(path, removed, e)) return e->code;
    return tree_remove(removed, e);
}

/* Removes the oldest until `keep` are left, but never the one just written. */
static int remove_oldest(const struct folder *f, int64_t keep, int64_t written, struct error *e)
{
    for (;;) {
        struct checkpoint_survey s;
        if (survey(f, INT64_MAX, written, &s, e)) return e->code;
        if (s.count <= keep || s.oldest < 0) return PL_OK;
        if (remove_checkpoint(f, s.oldest, e)) return e->code;
    }
}

/* Writes DONE, the last file: all others are on disk when it is written. */
static int write_done(const char *dir, struct error *e)
{
    char path[FOLDER_PATH];
    path_print(path, "%s/DONE", dir);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    int rc = fd < 0 || fsync(fd) ? file_error(path, "write it", e) : PL_OK;
    if (fd >= 0) close(fd);
    return rc ? rc : dir_sync(dir, e);
}

/* Syncs the checkpoint and renames it to its final name. */
static int publish_checkpoint(struct folder *f, struct error *e)
{
    char final[FOLDER_PATH];
    path_print(final, "%s/checkpoints/step-%lld", f->dir, (long long)f->staging_step);
    /* The metrics on disk must include the checkpoint's step. */
    if (f->metrics_fd >= 0 && fsync(f->metrics_fd)) return file_error(f->dir, "sync metrics.jsonl", e);
    if (sync_tree(f->staging, e) || write_done(f->staging, e)) return e->code;
    return put_in_place(f->staging, final, e);
}

int folder_checkpoint_commit(struct folder *f, int64_t keep, struct error *e)
{
    CHECK(*f->staging && f->staging_step >= 0 && keep >= 1, "no checkpoint was begun");
    int rc = publish_checkpoint(f, e);
    if (!rc) rc = remove_oldest(f, keep, f->staging_step, e);
    if (!rc) *f->staging = 0;
    return rc ? error_prepend(e, "saving the checkpoint of step %lld", (long long)f->staging_step) : PL_OK;
}

int folder_checkpoint_count(struct folder *f, int64_t *count, struct error *e)
{
    struct checkpoint_survey s;
    int rc = survey(f, INT64_MAX, -1, &s, e);
    *count = s.count;
    return rc;
}

int folder_checkpoint_latest(struct folder *f, int64_t *step, char path[FOLDER_PATH], struct error *e)
{
    return folder_checkpoint_before(f, INT64_MAX, step, path, e);
}

int folder_checkpoint_before(struct folder *f, int64_t before, int64_t *step, char path[FOLDER_PATH], struct error *e)
{
    struct checkpoint_survey s;
    *step = -1;
    *path = 0;
    if (survey(f, before, -1, &s, e)) return e->code;
    *step = s.newest;
    if (s.newest >= 0) path_print(path, "%s/checkpoints/step-%lld", f->dir, (long long)s.newest);
    return PL_OK;
}

/* --- models ---------------------------------------------------------------------------- */

/* Parent folder below DIR, with a slash, and name of each model folder. */
static const struct {
    const char *parent, *name;
} models[] = {[FOLDER_FINAL] = {"", "model"}, [FOLDER_BEST] = {"checkpoints/", "best"}};

bool folder_model_path(const struct folder *f, enum folder_model which, char path[FOLDER_PATH])
{
    return dir_exists(path_print(path, "%s/%s%s", f->dir, models[which].parent, models[which].name));
}

/* Counts names of checkpoints that sweep would rename back too. */
bool folder_resumes(const char *dir)
{
    struct folder f = {0};
    struct names names;
    struct error ignored;
    char path[FOLDER_PATH];
    bool found = false;
    if (strlen(dir) > FOLDER_PATH - LONGEST_BELOW) return false;
    path_print(f.dir, "%s", dir);
    if (folder_model_path(&f, FOLDER_FINAL, path)) return true;
    if (dir_list(path_print(path, "%s/checkpoints", dir), &names, &ignored)) return false;
    for (uint32_t i = 0; i < names.n; i++)
        found |= complete_step(&f, names.at[i]) >= 0 || pattern_match(".step-*.old", names.at[i]);
    names_free(&names);
    return found;
}

int folder_model_begin(struct folder *f, enum folder_model which, const char **path, struct error *e)
{
    path_print(f->staging, "%s/%s.%s.tmp", f->dir, models[which].parent, models[which].name);
    return stage(f, -1, path, e);
}

int folder_model_publish(struct folder *f, enum folder_model which, struct error *e)
{
    char final[FOLDER_PATH];
    CHECK(*f->staging && f->staging_step < 0, "no model was begun");
    folder_model_path(f, which, final);
    int rc = sync_tree(f->staging, e);
    if (!rc) rc = put_in_place(f->staging, final, e);
    if (!rc) *f->staging = 0;
    return rc ? error_prepend(e, "publishing the model") : PL_OK;
}
