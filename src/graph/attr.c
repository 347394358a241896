/*
 * attr.c: attributes by name: the ATTR rows of ops.def, and reading them from text.
 *
 * An op's attributes are a typed member of union attr, and code that knows the op sets that member.
 * Callers that know an op only by its name (the library's pl_op) write
 *
 *     eps=1e-6        k=3,3 stride=2,2 count_pad=1
 *
 * An attribute that is not named is 0; shape rules reject a 0 that is invalid. An attribute called
 * dtype cannot be written: it is the dtype of the op's first input.
 */
#include <ctype.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "graph/ops.h"

/* An array decays to a pointer, which _Generic matches. */
#define ATTR_MEMBER(m) (((union attr *)0)->m)
#define ATTR_TYPE(m)                                                                                    \
    _Generic(ATTR_MEMBER(m), float: ATTR_F32, double: ATTR_F64, uint8_t: ATTR_U8, uint8_t *: ATTR_U8,   \
             int32_t: ATTR_I32, int64_t: ATTR_I64, int64_t *: ATTR_I64)

enum { ATTR_F32, ATTR_F64, ATTR_U8, ATTR_I32, ATTR_I64 };
static const uint8_t sizes[] = {[ATTR_F32] = 4, [ATTR_F64] = 8, [ATTR_U8] = 1, [ATTR_I32] = 4, [ATTR_I64] = 8};

struct attr_row {
    enum op op;
    const char *name;
    size_t offset, bytes;
    uint8_t type;
};

static const struct attr_row table[] = {
#define OP(...)
#define VIEW(...)
#define ATTR(NAME, ATTRIBUTE, MEMBER) {OP_##NAME, #ATTRIBUTE, offsetof(union attr, MEMBER), sizeof ATTR_MEMBER(MEMBER), ATTR_TYPE(MEMBER)},
#include "graph/ops.def"
#undef OP
};

enum op op_named(const char *name)
{
    for (int op = OP_NONE + 1; op < OP_COUNT; op++)
        if (!strcasecmp(op_table[op].name, name)) return op;
    return OP_NONE;
}

static const struct attr_row *find(enum op op, const char *name, size_t n)
{
    for (size_t i = 0; i < COUNT(table); i++)
        if (table[i].op == op && strlen(table[i].name) == n && !strncmp(table[i].name, name, n)) return &table[i];
    return NULL;
}

/* "eps, window": the names of the op's attributes. */
static const char *names_of(enum op op, char out[200])
{
    size_t n = 0;
    snprintf(out, 200, "none");
    for (size_t i = 0; i < COUNT(table); i++)
        if (table[i].op == op && strcmp(table[i].name, "dtype") && n < 200)
            n += (size_t)snprintf(out + n, 200 - n, "%s%s", n ? ", " : "", table[i].name);
    return out;
}

/* Stores element k; false: the attribute's type cannot represent the value. */
static bool store(const struct attr_row *row, union attr *attr, size_t k, double value)
{
    static const double most[] = {[ATTR_U8] = 255, [ATTR_I32] = INT32_MAX, [ATTR_I64] = 0x1p53};
    char *at = (char *)attr + row->offset + k * sizes[row->type];
    bool whole = row->type != ATTR_F32 && row->type != ATTR_F64;
    if (!isfinite(value) || (whole && (value != rint(value) || value > most[row->type] ||
                                       value < (row->type == ATTR_U8 ? 0 : -most[row->type]))))
        return false;
    switch (row->type) {
    case ATTR_F32: *(float *)(void *)at = (float)value; break;
    case ATTR_F64: *(double *)(void *)at = value; break;
    case ATTR_U8: *(uint8_t *)at = (uint8_t)value; break;
    case ATTR_I32: *(int32_t *)(void *)at = (int32_t)value; break;
    default: *(int64_t *)(void *)at = (int64_t)value;
    }
    return true;
}

/* Reads "3,3" from `text`; returns the rest of the text, or NULL if this is not such a list. */
static const char *read_values(const struct attr_row *row, union attr *attr, const char *text)
{
    const size_t most = row->bytes / sizes[row->type];
    for (size_t k = 0; k < most; k++) {
        char *end;
        double value = strtod(text, &end);
        if (end == text || isspace((unsigned char)*text) || !store(row, attr, k, value)) return NULL;
        text = end;
        if (*text != ',') return text;
        text++;
    }
    return NULL;
}

int attr_read(union attr *attr, enum op op, enum dtype dtype, const char *text, struct error *e)
{
    const struct attr_row *type = find(op, "dtype", 5);
    char names[200];
    memset(attr, 0, sizeof *attr);
    if (type) *((uint8_t *)attr + type->offset) = (uint8_t)dtype;
    while (text && *(text += strspn(text, " "))) {
        size_t n = strcspn(text, "= ");
        const struct attr_row *row = text[n] == '=' ? find(op, text, n) : NULL;
        if (!row || row == type)
            return error_set(e, PL_USAGE, "%s: found the attribute \"%.*s\", expected name=number of: %s",
                             op_table[op].name, (int)strcspn(text, " "), text, names_of(op, names));
        const char *end = read_values(row, attr, text + n + 1);
        if (!end || (*end && *end != ' '))
            return error_set(e, PL_USAGE, "%s: found \"%.*s\", expected %s%s", op_table[op].name,
                             (int)strcspn(text, " "), text, row->type <= ATTR_F64 ? "a number" : "an integer",
                             row->bytes > sizes[row->type] ? " for each axis, as in 3,3" : "");
        text = end;
    }
    return PL_OK;
}

uint64_t attr_hash(const union attr *attr, enum op op, uint64_t seed)
{
    for (size_t i = 0; i < COUNT(table); i++)
        if (table[i].op == op) seed = hash_bytes((const char *)attr + table[i].offset, table[i].bytes, seed);
    return seed;
}
