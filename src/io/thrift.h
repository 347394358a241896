/*
 * thrift.h: reads structs in Thrift's compact protocol, in which Parquet writes its headers.
 *
 *     for (struct thrift_field f = {0}; thrift_next(&t, &f);)
 *         if (f.id == 3 && f.type == THRIFT_I64) rows = thrift_int(&t);
 *         else thrift_skip(&t, f.type);
 *
 * The first malformed byte sets `bad`; from then on there are no fields, numbers are 0 and lists
 * are empty.
 */
#ifndef THRIFT_H
#define THRIFT_H

#include "base/base.h"

enum thrift_type {
    THRIFT_STOP, THRIFT_TRUE, THRIFT_FALSE, THRIFT_I8, THRIFT_I16, THRIFT_I32, THRIFT_I64,
    THRIFT_DOUBLE, THRIFT_BINARY, THRIFT_LIST, THRIFT_SET, THRIFT_MAP, THRIFT_STRUCT
};

struct thrift {
    const uint8_t *at, *end;
    bool bad;
};

struct thrift_field {
    int64_t id;
    enum thrift_type type;
};

/* The next field of a struct; false at its end. The caller reads or skips the field's value. */
bool thrift_next(struct thrift *t, struct thrift_field *f);
uint64_t thrift_varint(struct thrift *t);
/* An i16, i32 or i64. */
int64_t thrift_int(struct thrift *t);
/* The bytes of a binary or string, in place. */
const char *thrift_bytes(struct thrift *t, size_t *n);
/* The number of elements of a list, which is at most the bytes that are left. */
uint32_t thrift_list(struct thrift *t, enum thrift_type *type);
void thrift_skip(struct thrift *t, enum thrift_type type);

#endif
