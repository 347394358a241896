/*
 * thrift.c: see thrift.h.
 */
#include "io/thrift.h"

enum { DEPTH = 32 };

static uint8_t byte(struct thrift *t)
{
    if (t->at < t->end && !t->bad) return *t->at++;
    t->bad = true;
    return 0;
}

static void pass(struct thrift *t, uint64_t n)
{
    if (n > (uint64_t)(t->end - t->at)) t->bad = true;
    else t->at += n;
}

uint64_t thrift_varint(struct thrift *t)
{
    uint64_t x = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        const uint8_t b = byte(t);
        x |= (uint64_t)(b & 127) << shift;
        if (!(b & 128)) return t->bad ? 0 : x;
    }
    t->bad = true;
    return 0;
}

int64_t thrift_int(struct thrift *t)
{
    const uint64_t x = thrift_varint(t);
    return (int64_t)(x >> 1) ^ -(int64_t)(x & 1);
}

/* A field's byte is the distance of its number from the last one, or 0 and the number follows; and
 * its type. */
bool thrift_next(struct thrift *t, struct thrift_field *f)
{
    const uint8_t b = byte(t);
    f->type = b & 15;
    if (t->bad || f->type == THRIFT_STOP) return false;
    if (f->type > THRIFT_STRUCT) t->bad = true;
    f->id = b >> 4 ? f->id + (b >> 4) : thrift_int(t);
    if (f->id < 0 || f->id > INT16_MAX) t->bad = true;
    return !t->bad;
}

const char *thrift_bytes(struct thrift *t, size_t *n)
{
    const uint64_t length = thrift_varint(t);
    const uint8_t *at = t->at;
    pass(t, length);
    *n = t->bad ? 0 : (size_t)length;
    return (const char *)at;
}

uint32_t thrift_list(struct thrift *t, enum thrift_type *type)
{
    const uint8_t b = byte(t);
    const uint64_t n = b >> 4 == 15 ? thrift_varint(t) : b >> 4;
    *type = b & 15;
    if (*type > THRIFT_STRUCT || n > (uint64_t)(t->end - t->at)) t->bad = true;
    return t->bad ? 0 : (uint32_t)n;
}

static void skip(struct thrift *t, enum thrift_type type, int depth);

/* The elements of a list, a set or a map; booleans take a byte there. */
static void skip_elements(struct thrift *t, uint64_t n, enum thrift_type a, enum thrift_type b, int depth)
{
    for (uint64_t i = 0; i < n && !t->bad; i++) {
        if (a == THRIFT_TRUE || a == THRIFT_FALSE) pass(t, 1);
        else skip(t, a, depth);
        if (b == THRIFT_TRUE || b == THRIFT_FALSE) pass(t, 1);
        else if (b) skip(t, b, depth);
    }
}

static void skip_map(struct thrift *t, int depth)
{
    const uint64_t n = thrift_varint(t);
    const uint8_t types = n ? byte(t) : 0;
    if (n > (uint64_t)(t->end - t->at) || (types & 15) > THRIFT_STRUCT || types >> 4 > THRIFT_STRUCT) t->bad = true;
    else skip_elements(t, n, types >> 4, types & 15, depth);
}

static void skip(struct thrift *t, enum thrift_type type, int depth)
{
    enum thrift_type element;
    size_t n;
    if (!depth) t->bad = true;
    if (t->bad) return;
    switch (type) {
    case THRIFT_TRUE: case THRIFT_FALSE: break;
    case THRIFT_I8: pass(t, 1); break;
    case THRIFT_I16: case THRIFT_I32: case THRIFT_I64: thrift_varint(t); break;
    case THRIFT_DOUBLE: pass(t, 8); break;
    case THRIFT_BINARY: thrift_bytes(t, &n); break;
    case THRIFT_LIST:
    case THRIFT_SET:
        n = thrift_list(t, &element);
        skip_elements(t, n, element, THRIFT_STOP, depth - 1);
        break;
    case THRIFT_MAP: skip_map(t, depth - 1); break;
    case THRIFT_STRUCT:
        for (struct thrift_field f = {0}; thrift_next(t, &f);) skip(t, f.type, depth - 1);
        break;
    default: t->bad = true;
    }
}

void thrift_skip(struct thrift *t, enum thrift_type type) { skip(t, type, DEPTH); }
