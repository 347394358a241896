/*
 * npy.c: the header of a .npy file:
 *
 *     "\x93NUMPY" major minor  length (u16, from version 2 on u32)  dict  data...
 *
 * where dict is the text of a Python dict literal with exactly three entries:
 *
 *     {'descr': '<u2', 'fortran_order': False, 'shape': (1000,), }
 *
 * The parser reads only that literal, not Python in general. Every number is checked before it is
 * used, so the result describes bytes that exist.
 */
#include "data/formats/npy.h"

#include <ctype.h>
#include <unistd.h>

enum { MAX_HEADER = 4096 };

static int bad(struct error *e, const char *what)
{
    return error_set(e, PL_USAGE, "the .npy file cannot be read: %s", what);
}

static const char *skip_space(const char *s)
{
    while (isspace((unsigned char)*s)) s++;
    return s;
}

/* Reads 'text' or "text"; returns its start and length, and the position after the quote. */
static const char *read_quoted(const char *s, const char **start, size_t *n)
{
    char quote = *s;
    if (quote != '\'' && quote != '"') return NULL;
    const char *end = strchr(s + 1, quote);
    if (!end) return NULL;
    *start = s + 1;
    *n = (size_t)(end - s - 1);
    return end + 1;
}

/* Reads '<u2', '|u1': byte order, kind, size. */
static const char *read_descr(const char *s, struct npy_header *h)
{
    const char *d;
    size_t n;
    s = read_quoted(s, &d, &n);
    if (!s || n < 3 || !strchr("<>|=", d[0])) return NULL;
    h->big_endian = d[0] == '>';
    h->type = d[1];
    char *end;
    unsigned long size = strtoul(d + 2, &end, 10);
    if (end != d + n || size == 0 || size > 16) return NULL;
    h->size = (uint32_t)size;
    return s;
}

static const char *read_order(const char *s, struct npy_header *h)
{
    h->fortran_order = strncmp(s, "True", 4) == 0;
    if (h->fortran_order) return s + 4;
    return strncmp(s, "False", 5) == 0 ? s + 5 : NULL;
}

/* Reads (), (N,), (N, M): the product is checked for overflow here. */
static const char *read_shape(const char *s, struct npy_header *h)
{
    if (*s++ != '(') return NULL;
    h->rank = 0;
    h->count = 1;
    for (s = skip_space(s); *s != ')'; s = skip_space(s)) {
        if (!isdigit((unsigned char)*s) || h->rank == NPY_MAX_DIMS) return NULL;
        char *end;
        uint64_t dim = strtoull(s, &end, 10);
        if (__builtin_mul_overflow(h->count, dim, &h->count)) return NULL;
        h->shape[h->rank++] = dim;
        s = skip_space(end);
        if (*s == ',') s++;
        else if (*s != ')') return NULL;
    }
    return s + 1;
}

/* Parses the dict literal, terminated by a NUL. All three entries are required. */
static int parse_dict(const char *s, struct npy_header *h, struct error *e)
{
    enum { DESCR = 1, ORDER = 2, SHAPE = 4 };
    int seen = 0;
    s = skip_space(s);
    if (*s++ != '{') return bad(e, "its header is not a dict");
    for (s = skip_space(s); *s != '}'; s = skip_space(s)) {
        const char *key;
        size_t n;
        s = read_quoted(s, &key, &n);
        if (!s) return bad(e, "its header is truncated or malformed");
        s = skip_space(s);
        if (*s++ != ':') return bad(e, "its header is truncated or malformed");
        s = skip_space(s);
        if (n == 5 && !memcmp(key, "descr", n)) {
            seen |= DESCR;
            s = read_descr(s, h);
        } else if (n == 13 && !memcmp(key, "fortran_order", n)) {
            seen |= ORDER;
            s = read_order(s, h);
        } else if (n == 5 && !memcmp(key, "shape", n)) {
            seen |= SHAPE;
            s = read_shape(s, h);
        } else {
            return bad(e, "its header has an entry that is not descr, fortran_order or shape");
        }
        if (!s) return bad(e, "its descr, fortran_order or shape is not that of a plain array");
        s = skip_space(s);
        if (*s == ',') s++;
        else if (*s != '}') return bad(e, "its header is truncated or malformed");
    }
    if (seen != (DESCR | ORDER | SHAPE)) return bad(e, "its header lacks descr, fortran_order or shape");
    return PL_OK;
}

int npy_read_header(int fd, uint64_t size_of_file, struct npy_header *h, struct error *e)
{
    unsigned char buffer[MAX_HEADER + 13] = {0};
    ssize_t got = pread(fd, buffer, sizeof buffer - 1, 0);
    if (got < 10 || memcmp(buffer, "\x93NUMPY", 6)) return bad(e, "it does not begin with the NumPy signature");
    unsigned major = buffer[6];
    if (major < 1 || major > 3) return bad(e, "its format version is not 1, 2 or 3");
    size_t at = major == 1 ? 10 : 12;
    uint64_t length = buffer[8] | (uint64_t)buffer[9] << 8;
    if (major > 1) length |= (uint64_t)buffer[10] << 16 | (uint64_t)buffer[11] << 24;
    if (length > MAX_HEADER) return bad(e, "its header is longer than 4096 bytes");
    if (at + length > (uint64_t)got) return bad(e, "its header is truncated");
    buffer[at + length] = 0;
    if (parse_dict((const char *)buffer + at, h, e)) return e->code;

    uint64_t bytes;
    h->data = at + length;
    if (__builtin_mul_overflow(h->count, (uint64_t)h->size, &bytes) || h->data > size_of_file ||
        bytes > size_of_file - h->data)
        return error_set(e, PL_USAGE, "truncated: its header describes %llu elements of %u bytes after byte %llu, "
                         "but the file has %llu bytes",
                         (unsigned long long)h->count, h->size, (unsigned long long)h->data,
                         (unsigned long long)size_of_file);
    return PL_OK;
}
