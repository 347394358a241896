/*
 * unicode.c: properties of code points, from the tables of tools/unicode_tables.py.
 */
#include <string.h>

#include "base/base.h"
#include "text/template/unicode.h"

struct case_run {
    uint32_t first, last, step;
    int32_t distance;
};
struct case_long {
    uint32_t code;
    const char *text;
};
struct code_range {
    uint32_t first, last;
};
#include "text/template/unicode.inc"

bool code_is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool code_is_line_end(uint32_t c)
{
    return (c >= 10 && c <= 13) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

bool code_is_printable(uint32_t c)
{
    if (c < 0x80) return c >= 0x20 && c < 0x7f;
    size_t from = 0, to = COUNT(not_printable);
    while (from < to) {
        const size_t middle = (from + to) / 2;
        if (c > not_printable[middle].last) from = middle + 1;
        else to = middle;
    }
    return from == COUNT(not_printable) || c < not_printable[from].first;
}

int code_encode(uint32_t c, char out[4])
{
    if (c < 0x80) return out[0] = (char)c, 1;
    const int n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (int i = n - 1; i > 0; i--, c >>= 6) out[i] = (char)(0x80 | (c & 0x3f));
    out[0] = (char)(c | (0xf00u >> n & 0xff));
    return n;
}

uint32_t code_at(const char *s, int *n)
{
    const unsigned char *u = (const unsigned char *)s;
    *n = u[0] < 0x80 ? 1 : u[0] < 0xe0 ? 2 : u[0] < 0xf0 ? 3 : 4;
    if (*n == 1) return u[0];
    uint32_t c = u[0] & (0xffu >> (*n + 1));
    for (int i = 1; i < *n; i++) c = c << 6 | (u[i] & 0x3f);
    return c;
}

/* The row with the last `first` that is not beyond c. Rows may interleave by at most one step. */
static uint32_t map_runs(const struct case_run *at, size_t n, uint32_t c)
{
    size_t from = 0, to = n;
    while (from < to) {
        const size_t middle = (from + to) / 2;
        if (at[middle].first <= c) from = middle + 1;
        else to = middle;
    }
    if (!from) return c;
    const struct case_run *run = &at[from - 1];
    return c <= run->last && (c - run->first) % run->step == 0 ? c + (uint32_t)run->distance : c;
}

static const char *map_long(const struct case_long *at, size_t n, uint32_t c)
{
    for (size_t i = 0; i < n && at[i].code <= c; i++)
        if (at[i].code == c) return at[i].text;
    return NULL;
}

static int put_long(const char *text, char out[CASE_BYTES])
{
    const size_t n = strlen(text);
    CHECK(n <= CASE_BYTES, "case of %zu bytes", n);
    memcpy(out, text, n);
    return (int)n;
}

int code_upper(uint32_t c, char out[CASE_BYTES])
{
    if (c < 0x80) return out[0] = (char)(c >= 'a' && c <= 'z' ? c - 32 : c), 1;
    const char *more = map_long(upper_long, COUNT(upper_long), c);
    return more ? put_long(more, out) : code_encode(map_runs(upper_runs, COUNT(upper_runs), c), out);
}

int code_lower(uint32_t c, char out[CASE_BYTES])
{
    if (c < 0x80) return out[0] = (char)(c >= 'A' && c <= 'Z' ? c + 32 : c), 1;
    const char *more = map_long(lower_long, COUNT(lower_long), c);
    return more ? put_long(more, out) : code_encode(map_runs(lower_runs, COUNT(lower_runs), c), out);
}

int code_title(uint32_t c, char out[CASE_BYTES])
{
    const char *more = c < 0x80 ? NULL : map_long(title_long, COUNT(title_long), c);
    return more ? put_long(more, out) : code_upper(c, out);
}

bool code_is_cased(uint32_t c)
{
    char same[4], other[CASE_BYTES];
    const int n = code_encode(c, same);
    return code_upper(c, other) != n || memcmp(same, other, (size_t)n) || code_lower(c, other) != n ||
           memcmp(same, other, (size_t)n);
}
