/*
 * autotune_file.c: see autotune_file.h.
 */
#include "cuda/products/autotune_file.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/file.h"

enum { LINE_MOST = 512 };

bool choices_path(const char *gpu, uint64_t version, char *out, size_t room)
{
    char name[320];
    int n = snprintf(name, sizeof name, "cublaslt-%llu-%.200s.txt", (unsigned long long)version, gpu);
    for (int i = 0; i < n; i++)
        if (!isalnum((unsigned char)name[i]) && name[i] != '.') name[i] = '-';
    return data_path(name, out, room);
}

/* --- lines ------------------------------------------------------------------------------ */

void choice_print(const struct choice *x, struct text *out)
{
    text_printf(out, "%s =", x->key);
    for (int i = 0; i < CHOICE_NUMBERS; i++) text_printf(out, " %u", x->number[i]);
    text_printf(out, " : %.4f %.4f ms\n", x->first, x->taken);
}

/* Reads one space, then digits of a number that fits 32 bits. */
static bool read_number(const char **at, uint32_t *x)
{
    char *end;
    if ((*at)[0] != ' ' || !isdigit((unsigned char)(*at)[1])) return false;
    errno = 0;
    unsigned long long v = strtoull(*at + 1, &end, 10);
    if (errno || v > UINT32_MAX) return false;
    *at = end;
    *x = (uint32_t)v;
    return true;
}

/* Reads one space, then a time such as "12.3456": no sign, no exponent, no name. */
static bool read_time(const char **at, double *x)
{
    size_t n = strspn(*at + ((*at)[0] == ' '), "0123456789.");
    char *end;
    if ((*at)[0] != ' ' || !isdigit((unsigned char)(*at)[1]) || n > 20) return false;
    *x = strtod(*at + 1, &end);
    if (end != *at + 1 + n) return false;
    *at = end;
    return *x < 1e6;
}

/* Reads the key: the start of a line up to " =". */
static bool read_key(const char **at, char key[CHOICE_KEY])
{
    const char *end = strstr(*at, " =");
    size_t n = end ? (size_t)(end - *at) : 0;
    if (!n || n >= CHOICE_KEY) return false;
    for (size_t i = 0; i < n; i++)
        if (!isprint((unsigned char)(*at)[i]) || (*at)[i] == ':' || (*at)[i] == '=') return false;
    memcpy(key, *at, n);
    key[n] = '\0';
    *at = end + 2;
    return true;
}

static bool read_line(const char *line, struct choice *x)
{
    if (!read_key(&line, x->key)) return false;
    for (int i = 0; i < CHOICE_NUMBERS; i++)
        if (!read_number(&line, &x->number[i])) return false;
    if (strncmp(line, " :", 2)) return false;
    line += 2;
    return read_time(&line, &x->first) && read_time(&line, &x->taken) && !strcmp(line, " ms");
}

/* --- the list ------------------------------------------------------------------------------ */

static struct choice *find(const struct choices *c, const char *key)
{
    for (uint32_t i = 0; i < c->list.n; i++)
        if (!strcmp(c->list.at[i].key, key)) return &c->list.at[i];
    return NULL;
}

const struct choice *choices_find(const struct choices *c, const char *key) { return find(c, key); }

/* Puts a choice in the list: the last line with a given key counts. */
static bool put(struct choices *c, const struct choice *x)
{
    struct choice *old = find(c, x->key);
    if (old) *old = *x;
    else if (c->list.n < CHOICES_MOST) vec_push(&c->list, *x);
    else return false;
    return true;
}

void choices_parse(struct choices *c, const char *bytes, size_t n)
{
    char line[LINE_MOST];
    struct choice x;
    c->list.n = 0;
    c->skipped = 0;
    c->bytes = n;
    c->torn = n && bytes[n - 1] != '\n';
    for (const char *at = bytes, *to = bytes + n; at < to;) {
        const char *end = memchr(at, '\n', (size_t)(to - at));
        const size_t length = (size_t)((end ? end : to) - at);
        const bool comment = !length || at[0] == '#';
        if (!comment && end && length < sizeof line) {
            memcpy(line, at, length);
            line[length] = '\0';
        }
        if (!comment &&
            (!end || length >= sizeof line || memchr(at, '\0', length) || !read_line(line, &x) || !put(c, &x)))
            c->skipped++;
        at += length + 1;
    }
}

/* --- the file ------------------------------------------------------------------------------ */

int choices_read(struct choices *c, struct error *e)
{
    char *bytes;
    size_t n;
    if (!file_exists(c->path)) return choices_parse(c, "", 0), PL_OK;
    TRY(file_read(c->path, CHOICES_BYTES_MOST, &bytes, &n, e));
    choices_parse(c, bytes, n);
    mem_free(bytes);
    return PL_OK;
}

static int open_kept(const char *path, struct error *e)
{
    char dir[4200];
    int rc = path_dir(path, dir, sizeof dir, e);
    if (!rc) rc = dir_make(dir, e);
    if (rc) return -1;
    int file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
    if (file < 0) file_error(path, "write it", e);
    return file;
}

/* Waits for the lock. A process that measures is done in seconds; the timeout covers one that was
 * stopped. */
static int wait_for_lock(int file, const char *path, double seconds, struct error *e)
{
    const double begun = clock_seconds();
    while (flock(file, LOCK_EX | LOCK_NB)) {
        if (errno != EWOULDBLOCK && errno != EINTR) return file_error(path, "lock it", e);
        if (clock_seconds() - begun > seconds)
            return error_set(e, PL_FAIL, "%s: another process has held its lock for %.0f s", path, seconds);
        usleep(20000);
    }
    return PL_OK;
}

int choices_lock(struct choices *c, double seconds, struct error *e)
{
    CHECK(c->lock < 0, "held already");
    int file = open_kept(c->path, e);
    if (file < 0) return e->code;
    int rc = wait_for_lock(file, c->path, seconds, e);
    if (!rc) rc = choices_read(c, e);
    if (rc) close(file);
    else c->lock = file;
    return rc;
}

/* Appends the line in one write. A partial write, on a full disk, is undone by truncation. */
static int append(struct choices *c, const struct text *line, struct error *e)
{
    ssize_t n = write(c->lock, line->at, line->n);
    if (n == (ssize_t)line->n) {
        c->bytes += line->n;
        c->torn = false;
        return PL_OK;
    }
    if (n >= 0) errno = ENOSPC;
    int rc = file_error(c->path, "write it", e);
    if (n > 0 && ftruncate(c->lock, (off_t)c->bytes)) c->torn = true;
    return rc;
}

int choices_add(struct choices *c, const struct choice *x, struct error *e)
{
    struct text line = {0};
    CHECK(c->lock >= 0, "not held");
    if (c->torn) text_printf(&line, "\n");
    if (!c->bytes)
        text_printf(&line, "# The fastest cuBLASLt algorithm by matmul: key = algorithm : ms of the first proposal, of "
                    "this one.\n# Without this file the algorithms are measured anew, and a run's last bits may "
                    "change.\n");
    choice_print(x, &line);
    int rc = PL_OK;
    if (c->bytes + line.n > CHOICES_BYTES_MOST || (c->list.n >= CHOICES_MOST && !find(c, x->key)))
        rc = error_set(e, PL_FAIL, "%s is full (%u products, %llu bytes): delete it to start anew", c->path, c->list.n,
                       (unsigned long long)c->bytes);
    if (!rc) rc = append(c, &line, e);
    if (!rc) CHECK(put(c, x), "%s", x->key);
    text_free(&line);
    return rc;
}

void choices_unlock(struct choices *c)
{
    if (c->lock >= 0) close(c->lock);
    c->lock = -1;
}

void choices_free(struct choices *c)
{
    choices_unlock(c);
    vec_free(&c->list);
}
