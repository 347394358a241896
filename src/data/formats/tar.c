/*
 * tar.c: reading archives as a list of offsets, and writing them (see tar.h).
 *
 * Every number of a header is checked against the archive's size before it moves the position,
 * and the position always grows by at least a block, so the reader terminates for any input.
 */
#include "data/formats/tar.h"

#include <errno.h>
#include <unistd.h>

#include "io/file.h"

/* The POSIX header, in its 512 bytes. */
struct header {
    char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], checksum[8], type, link[100];
    char magic[6], version[2], user[32], group[32], major[8], minor[8], prefix[155], rest[12];
};
_Static_assert(sizeof(struct header) == TAR_BLOCK, "a header is one block");

enum tar_kind tar_sniff(const void *head, size_t n)
{
    if (n >= 2 && !memcmp(head, "\x1f\x8b", 2)) return TAR_GZIP;
    if (n >= 4 && !memcmp(head, "\x28\xb5\x2f\xfd", 4)) return TAR_ZSTD;
    return TAR_PLAIN;
}

void tar_open(struct tar *t, int fd, const void *memory, uint64_t size)
{
    memset(t, 0, sizeof *t);
    t->fd = fd;
    t->memory = memory;
    t->size = size;
}

/* --- bytes ------------------------------------------------------------------------- */

/* Reads bytes [at, at + n) of the archive, n <= TAR_WINDOW, all inside; with `ahead` it fills the
 * whole window, for callers that continue block by block. */
static int read_at(struct tar *t, uint64_t at, size_t n, bool ahead, const uint8_t **out, struct error *e)
{
    CHECK(n <= TAR_WINDOW && at <= t->size && n <= t->size - at);
    if (t->memory) return *out = t->memory + at, PL_OK;
    if (at < t->window_at || at + n > t->window_at + t->window_n) {
        size_t want = ahead ? (size_t)min_u64(TAR_WINDOW, t->size - at) : n, got = 0;
        t->window_n = 0;
        while (got < want) {
            ssize_t r = pread(t->fd, t->window + got, want - got, (off_t)(at + got));
            if (r < 0 && errno == EINTR) continue;
            if (r < 0)
                return error_set(e, PL_FAIL, "cannot read at byte %llu: %s", (unsigned long long)(at + got),
                                 strerror(errno));
            if (!r)
                return error_set(e, PL_FAIL, "it became shorter while it was read, at byte %llu",
                                 (unsigned long long)(at + got));
            got += (size_t)r;
        }
        t->window_at = at;
        t->window_n = got;
    }
    *out = t->window + (at - t->window_at);
    return PL_OK;
}

static bool all_zero(const uint8_t *block)
{
    uint64_t any = 0, word;
    for (int i = 0; i < TAR_BLOCK; i += 8) memcpy(&word, block + i, 8), any |= word;
    return !any;
}

/* Parses a header's number: octal digits between blanks, or base 256 after a byte 0x80. */
static bool parse_number(const char *field, size_t n, uint64_t *value)
{
    const uint8_t *f = (const uint8_t *)field;
    uint64_t v = 0;
    if (f[0] == 0x80) {
        for (size_t i = 1; i < n; i++) {
            if (v >> 55) return false;
            v = v << 8 | f[i];
        }
        return *value = v, true;
    }
    size_t i = 0;
    while (i < n && f[i] == ' ') i++;
    for (; i < n && f[i] >= '0' && f[i] <= '7'; i++) v = v << 3 | (f[i] - '0');
    if (i < n && f[i] && f[i] != ' ') return false;
    return *value = v, true;
}

/* Returns the sum of all bytes, with blanks for the sum itself. Some old writers sum signed
 * bytes. */
static bool checksum_right(const uint8_t *block)
{
    const struct header *h = (const struct header *)block;
    uint64_t stored;
    if (!parse_number(h->checksum, sizeof h->checksum, &stored)) return false;
    uint32_t sum = 0;
    int32_t sum_signed = 0;
    for (size_t i = 0; i < TAR_BLOCK; i++) {
        bool inside = i >= offsetof(struct header, checksum) && i < offsetof(struct header, type);
        uint8_t byte = inside ? ' ' : block[i];
        sum += byte;
        sum_signed += (int8_t)byte;
    }
    return stored == sum || (sum_signed >= 0 && stored == (uint64_t)sum_signed);
}

/* --- extension headers: long names, pax ------------------------------------------ */

static void keep_path(struct tar_pax *p, const char *s, size_t n)
{
    n = strnlen(s, n);
    if (!n) return;
    if (n >= TAR_NAME) s += n - (TAR_NAME - 1), n = TAR_NAME - 1; /* the end of the name identifies the image */
    memcpy(p->path, s, n);
    p->path[n] = 0;
    p->has_path = true;
}

static bool parse_decimal(const char *s, size_t n, uint64_t *value)
{
    uint64_t v = 0;
    if (!n || n > 18) return false;
    for (size_t i = 0; i < n; i++) {
        if (s[i] < '0' || s[i] > '9') return false;
        v = v * 10 + (uint64_t)(s[i] - '0');
    }
    return *value = v, true;
}

/* Parses records "LENGTH key=value\n"; LENGTH counts the whole record. False if malformed. */
static bool parse_pax(struct tar_pax *p, const char *at, size_t n)
{
    while (n && *at) {
        const char *blank = memchr(at, ' ', n < 20 ? n : 20);
        uint64_t length;
        if (!blank || !parse_decimal(at, (size_t)(blank - at), &length)) return false;
        size_t head = (size_t)(blank - at) + 1;
        if (length <= head || length > n || at[length - 1] != '\n') return false;
        const char *key = blank + 1, *end = at + length - 1;
        const char *equals = memchr(key, '=', (size_t)(end - key));
        if (!equals) return false;
        const char *value = equals + 1;
        if (equals - key == 4 && !memcmp(key, "path", 4)) keep_path(p, value, (size_t)(end - value));
        if (equals - key == 4 && !memcmp(key, "size", 4)) {
            if (!parse_decimal(value, (size_t)(end - value), &p->size)) return false;
            p->has_size = true;
        }
        at += length;
        n -= length;
    }
    return true;
}

/* Reads a header extension for the following members. An extension that is larger than the window
 * or malformed is skipped and counted: the member's own header is still valid. */
static int read_extension(struct tar *t, char type, uint64_t offset, uint64_t size, struct error *e)
{
    const uint8_t *bytes = NULL;
    if (type == 'K') return PL_OK; /* the target of a long link */
    bool right = size <= TAR_WINDOW;
    if (right) {
        if (read_at(t, offset, (size_t)size, false, &bytes, e)) return e->code;
        if (type == 'L') keep_path(&t->next, (const char *)bytes, (size_t)size);
        else right = parse_pax(type == 'x' ? &t->next : &t->global, (const char *)bytes, (size_t)size);
    }
    if (!right && !t->damaged++) t->first_bad = offset;
    return PL_OK;
}

/* --- members ------------------------------------------------------------------------ */

/* Searches from a block that is not a header to the next one that is. The magic is required here:
 * without it a block of data could too easily pass for a header. */
static int resync(struct tar *t, struct error *e)
{
    uint64_t from = t->at;
    if (!t->damaged++) t->first_bad = from;
    t->next = (struct tar_pax){0};
    for (t->at += TAR_BLOCK; t->at + TAR_BLOCK <= t->size; t->at += TAR_BLOCK) {
        const uint8_t *block = NULL;
        if (read_at(t, t->at, TAR_BLOCK, true, &block, e)) return e->code;
        if (!memcmp(block + offsetof(struct header, magic), "ustar", 5) && checksum_right(block)) break;
    }
    t->lost += t->at - from;
    return PL_OK;
}

static void member_name(const struct tar *t, const struct header *h, char *out)
{
    if (t->next.has_path || t->global.has_path) {
        strcpy(out, t->next.has_path ? t->next.path : t->global.path);
        return;
    }
    size_t n = 0;
    if (!memcmp(h->magic, "ustar", 6) && h->prefix[0]) {
        n = strnlen(h->prefix, sizeof h->prefix);
        memcpy(out, h->prefix, n);
        out[n++] = '/';
    }
    size_t rest = strnlen(h->name, sizeof h->name);
    memcpy(out + n, h->name, rest);
    out[n + rest] = 0;
}

static bool is_regular(char type, const char *name)
{
    size_t n = strlen(name);
    if (n && name[n - 1] == '/') return false; /* a folder in old archives */
    return type == '0' || type == 0 || type == '7';
}

/* Processes one valid header at t->at; *given when it is a member for the caller. */
static int process_header(struct tar *t, const struct header *h, struct tar_member *m, bool *given, struct error *e)
{
    uint64_t size, offset = t->at + TAR_BLOCK;
    char type = h->type;
    bool extension = type == 'x' || type == 'g' || type == 'L' || type == 'K';
    if (!parse_number(h->size, sizeof h->size, &size)) return resync(t, e);
    if (!extension && t->next.has_size) size = t->next.size;
    else if (!extension && t->global.has_size) size = t->global.size;
    if (type >= '1' && type <= '6') size = 0; /* links, devices, folders: no bytes follow */
    if (size > t->size - offset) {
        t->partial = true;
        t->at = t->size;
        return PL_OK;
    }
    uint64_t end = offset + align_up(size, TAR_BLOCK);
    t->at = min_u64(end, t->size); /* the last padding may be missing */
    if (extension) return read_extension(t, type, offset, size, e);
    member_name(t, h, m->name);
    t->next = (struct tar_pax){0};
    *given = is_regular(type, m->name);
    *(*given ? &t->members : &t->others) += 1;
    m->offset = offset;
    m->size = size;
    return PL_OK;
}

int tar_next(struct tar *t, struct tar_member *m, bool *more, struct error *e)
{
    *more = false;
    bool zeros = false;
    while (!*more && t->at + TAR_BLOCK <= t->size) {
        const uint8_t *block = NULL;
        if (read_at(t, t->at, TAR_BLOCK, zeros, &block, e)) return e->code;
        zeros = all_zero(block);
        if (zeros) {
            t->at += TAR_BLOCK;
        } else if (!checksum_right(block)) {
            if (resync(t, e)) return e->code;
        } else {
            struct header h; /* the window moves when an extension is read */
            memcpy(&h, block, sizeof h);
            if (process_header(t, &h, m, more, e)) return e->code;
        }
    }
    if (!*more && t->at < t->size) t->partial = true, t->at = t->size;
    return PL_OK;
}

/* --- writing ------------------------------------------------------------------------- */

static int tar_write_data(struct tar_writer *w, const void *bytes, size_t n, struct error *e)
{
    char doing[64];
    snprintf(doing, sizeof doing, "write at byte %llu", (unsigned long long)w->at);
    if (fd_write(w->fd, bytes, n)) return file_error(w->path ? w->path : "the tar", doing, e);
    w->at += n;
    return PL_OK;
}

static int tar_write_pad(struct tar_writer *w, struct error *e)
{
    static const char zeros[TAR_BLOCK];
    return tar_write_data(w, zeros, (size_t)(align_up(w->at, TAR_BLOCK) - w->at), e);
}

/* Writes octal digits with a terminator; base 256 when the field is too short for that. */
static void put_number(char *field, size_t n, uint64_t value)
{
    if (value >> 3 * (n - 1)) {
        for (size_t i = n; i-- > 1; value >>= 8) field[i] = (char)(value & 255);
        field[0] = (char)0x80;
        return;
    }
    field[n - 1] = 0;
    for (size_t i = n - 1; i-- > 0; value >>= 3) field[i] = (char)('0' + (value & 7));
}

/* Stores a name of up to 100 bytes unchanged, a longer one split at a slash into prefix and name.
 * False: it does not fit. */
static bool put_name(struct header *h, const char *name, size_t n)
{
    if (n <= sizeof h->name) return memcpy(h->name, name, n), true;
    for (size_t cut = n - sizeof h->name - 1; cut <= sizeof h->prefix && cut < n; cut++)
        if (name[cut] == '/' && cut > 0 && cut + 1 < n) {
            memcpy(h->prefix, name, cut);
            memcpy(h->name, name + cut + 1, n - cut - 1);
            return true;
        }
    return false;
}

static int put_header(struct tar_writer *w, struct header *h, char type, uint64_t size, struct error *e)
{
    h->type = type;
    put_number(h->mode, sizeof h->mode, 0644);
    put_number(h->uid, sizeof h->uid, 0);
    put_number(h->gid, sizeof h->gid, 0);
    put_number(h->size, sizeof h->size, size);
    put_number(h->mtime, sizeof h->mtime, 0);
    memcpy(h->magic, "ustar", 6);
    memcpy(h->version, "00", 2);
    memset(h->checksum, ' ', sizeof h->checksum);
    uint32_t sum = 0;
    for (size_t i = 0; i < sizeof *h; i++) sum += ((const uint8_t *)h)[i];
    put_number(h->checksum, 7, sum); /* six digits, a terminator, a blank */
    return tar_write_data(w, h, sizeof *h, e);
}

/* Writes the pax header before a member: "LENGTH path=NAME\n", where LENGTH counts its own digits
 * too. Names here have 101 to TAR_NAME - 1 bytes, so LENGTH has three or four digits. */
static int put_pax(struct tar_writer *w, const char *name, size_t n, struct error *e)
{
    struct header h = {.name = "PaxHeaders/name"};
    char record[TAR_NAME + 16];
    size_t length = n + strlen(" path=\n") + 3;
    if (length > 999) length++;
    size_t made = (size_t)snprintf(record, sizeof record, "%zu path=%s\n", length, name);
    CHECK(made == length);
    if (put_header(w, &h, 'x', length, e) || tar_write_data(w, record, length, e)) return e->code;
    return tar_write_pad(w, e);
}

static int tar_write_header(struct tar_writer *w, const char *name, uint64_t size, struct error *e)
{
    struct header h = {0};
    size_t n = strlen(name);
    if (!n || n >= TAR_NAME)
        return error_set(e, PL_USAGE, "the name \"%.200s\" has %zu bytes: expected 1 to %d", name, n, TAR_NAME - 1);
    if (!put_name(&h, name, n)) {
        /* like keep_path: the end of the name identifies the image */
        memcpy(h.name, name + n - sizeof h.name, sizeof h.name);
        if (put_pax(w, name, n, e)) return e->code;
    }
    return put_header(w, &h, '0', size, e);
}

int tar_write_member(struct tar_writer *w, const char *name, const void *bytes, size_t n, struct error *e)
{
    if (tar_write_header(w, name, n, e) || tar_write_data(w, bytes, n, e)) return e->code;
    return tar_write_pad(w, e);
}

int tar_write_end(struct tar_writer *w, struct error *e)
{
    static const char zeros[2 * TAR_BLOCK];
    return tar_write_data(w, zeros, sizeof zeros, e);
}
