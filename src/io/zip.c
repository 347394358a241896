/*
 * zip.c: see zip.h. The directory at the end of the file has the offsets of the members:
 *
 *     member: header, name, extra, bytes   ...   directory   [64-bit end, its offset]   end
 */
#include "io/zip.h"

#include <stdlib.h>
#include <string.h>

enum { LOCAL = 0x04034b50, CENTRAL = 0x02014b50, END = 0x06054b50, END64 = 0x06064b50, PLACE64 = 0x07064b50,
       LOCAL_BYTES = 30, CENTRAL_BYTES = 46, END_BYTES = 22, PLACE64_BYTES = 20, END64_BYTES = 56 };

static uint64_t number(const uint8_t *p, int bytes)
{
    uint64_t x = 0;
    for (int i = 0; i < bytes; i++) x |= (uint64_t)p[i] << (8 * i);
    return x;
}

bool zip_is(const uint8_t *bytes, size_t n) { return n >= END_BYTES && number(bytes, 4) == LOCAL; }

static int damaged(struct error *e, const char *what)
{
    return error_set(e, PL_USAGE, "damaged zip archive: %s", what);
}

/* Finds the offset of the directory and its number of entries. */
static int find_directory(const uint8_t *bytes, size_t n, uint64_t *at, uint64_t *count, struct error *e)
{
    size_t k = n - END_BYTES, last = k > UINT16_MAX ? k - UINT16_MAX : 0;
    while (k > last && number(bytes + k, 4) != END) k--;
    if (number(bytes + k, 4) != END) return damaged(e, "no directory at its end; was the file truncated?");
    *count = number(bytes + k + 10, 2);
    *at = number(bytes + k + 16, 4);
    if (k < PLACE64_BYTES || number(bytes + k - PLACE64_BYTES, 4) != PLACE64) return PL_OK;
    uint64_t end = number(bytes + k - PLACE64_BYTES + 8, 8);
    if (end > n || n - end < END64_BYTES || number(bytes + end, 4) != END64)
        return damaged(e, "the 64-bit end record is not at its offset");
    *count = number(bytes + end + 32, 8);
    *at = number(bytes + end + 48, 8);
    return PL_OK;
}

struct entry {
    uint64_t packed, bytes, at;
};

/* Numbers that do not fit 32 bits are in the extra field, in this order. */
static void read_extra(struct entry *x, const uint8_t *extra, size_t n)
{
    while (n >= 4) {
        size_t length = number(extra + 2, 2);
        if (length > n - 4) return;
        if (number(extra, 2) == 1) {
            uint64_t *const wide[] = {&x->bytes, &x->packed, &x->at};
            const uint8_t *p = extra + 4;
            for (int i = 0; i < 3; i++)
                if (*wide[i] == UINT32_MAX && (size_t)(p - extra) + 8 <= 4 + length) *wide[i] = number(p, 8), p += 8;
            return;
        }
        extra += 4 + length;
        n -= 4 + length;
    }
}

static int add_member(struct zip *z, const uint8_t *bytes, size_t n, const uint8_t *central, struct bump *b,
                      struct error *e)
{
    struct entry x = {number(central + 20, 4), number(central + 24, 4), number(central + 42, 4)};
    size_t name = number(central + 28, 2), extra = number(central + 30, 2);
    read_extra(&x, central + CENTRAL_BYTES + name, extra);
    if (x.at > n || n - x.at < LOCAL_BYTES || number(bytes + x.at, 4) != LOCAL)
        return damaged(e, "a member is not at the offset in the directory");
    uint64_t skip = LOCAL_BYTES + number(bytes + x.at + 26, 2) + number(bytes + x.at + 28, 2);
    bool stored = number(central + 10, 2) == 0 && x.packed == x.bytes;
    if (skip > n - x.at || x.packed > n - x.at - skip) return damaged(e, "a member ends beyond the end of the file");
    char *text = bump_alloc(b, name + 1);
    memcpy(text, central + CENTRAL_BYTES, name);
    text[name] = 0;
    vec_push(&z->members, ((struct zip_member){text, stored ? bytes + x.at + skip : NULL, x.bytes, stored}));
    return PL_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct zip_member *)a)->name, ((const struct zip_member *)b)->name);
}

int zip_read(struct zip *z, const uint8_t *bytes, size_t n, struct bump *b, struct error *e)
{
    uint64_t at = 0, count = 0;
    *z = (struct zip){0};
    if (n < END_BYTES) return damaged(e, "too short");
    int rc = find_directory(bytes, n, &at, &count, e);
    for (uint64_t i = 0; i < count && !rc; i++) {
        if (at > n || n - at < CENTRAL_BYTES || number(bytes + at, 4) != CENTRAL)
            return damaged(e, "its directory is truncated");
        uint64_t length =
            CENTRAL_BYTES + number(bytes + at + 28, 2) + number(bytes + at + 30, 2) + number(bytes + at + 32, 2);
        if (length > n - at) return damaged(e, "its directory is truncated");
        rc = add_member(z, bytes, n, bytes + at, b, e);
        at += length;
    }
    if (!rc && z->members.n) qsort(z->members.at, z->members.n, sizeof *z->members.at, by_name);
    return rc;
}

void zip_free(struct zip *z) { vec_free(&z->members); }

const struct zip_member *zip_find(const struct zip *z, const char *name)
{
    struct zip_member key = {.name = name};
    return z->members.n ? bsearch(&key, z->members.at, z->members.n, sizeof key, by_name) : NULL;
}
