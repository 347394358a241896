/*
 * attr.c: attributes by name: the ATTRS rows of ops.def, read once when the program starts.
 *
 * An op's attributes are a typed member of union attr, and code that knows the op sets that member.
 * Callers that know an op only by its name (the library's pl_op) write
 *
 *     eps=1e-6        k=3,3 stride=2,2 count_pad=1
 *
 * An attribute that is not named is 0; signatures reject a 0 that is invalid. An attribute called
 * dtype cannot be written: it is the dtype of the op's first input.
 */
#include <ctype.h>
#include <math.h>
#include <strings.h>

#include "graph/rules.h"

static const struct {
    const char *name;
    uint8_t bytes;
} types[] = {{"float", 4},    {"double", 8},  {"uint8_t", 1}, {"int32_t", 4},
             {"uint32_t", 4}, {"int64_t", 8}, {"uint64_t", 8}};
enum { TYPE_F32, TYPE_F64, TYPE_U8, TYPE_I32, TYPE_U32, TYPE_I64, TYPE_U64, FIELDS_MOST = 10 };

struct field {
    const char *name;
    size_t n; /* length of the name */
    int type, count;
    size_t offset;
};
/* A member of union attr. */
static struct member {
    const char *name, *text;
    size_t bytes;
    struct field field[FIELDS_MOST];
    int fields;
} members[] = {
#define OP(...)
#define VIEW(...)
#define ATTRS(MEMBER, ...) {#MEMBER, #__VA_ARGS__, sizeof(((union attr *)0)->MEMBER)},
#include "graph/ops.def"
#undef OP
};
static const struct member *member_of[OP_COUNT]; /* NULL: no attributes */

/* Reads "float scale; int32_t height, width" with the offsets that a compiler gives them. */
static void read_fields(struct member *m)
{
    size_t end = 0;
    int type = TYPE_F32;
    for (const char *at = m->text; *at; at += strspn(at, " ,;")) {
        size_t n = strcspn(at, " ,;[");
        for (int t = 0; t < (int)COUNT(types); t++)
            if (at[n] == ' ' && strlen(types[t].name) == n && !strncmp(types[t].name, at, n)) {
                type = t;
                at += n + 1;
                n = strcspn(at, " ,;[");
                break;
            }
        CHECK(m->fields < FIELDS_MOST, "%s", m->name);
        struct field *f = &m->field[m->fields++];
        *f = (struct field){at, n, type, 1, align_up(end, types[type].bytes)};
        if (at[n] == '[') f->count = isdigit((unsigned char)at[n + 1]) ? atoi(at + n + 1) : MAX_RANK;
        end = f->offset + (size_t)f->count * types[type].bytes;
        at += strcspn(at, ",;");
    }
    CHECK(end <= m->bytes && m->bytes < end + 8, "the fields of %s", m->name);
}

void attr_table_read(void)
{
    for (size_t i = 0; i < COUNT(members); i++) read_fields(&members[i]);
    for (enum op op = OP_NONE + 1; op < OP_COUNT; op++) {
        const char *name = op_table[op].attributes;
        const size_t n = strcspn(name, ":");
        for (size_t i = 0; i < COUNT(members); i++)
            if (strlen(members[i].name) == n && !strncmp(members[i].name, name, n)) member_of[op] = &members[i];
        CHECK(!n || member_of[op], "%s: no row ATTRS for %s", op_table[op].name, name);
    }
}

static const struct field *find(enum op op, const char *name, size_t n)
{
    const struct member *m = member_of[op];
    for (int i = 0; m && i < m->fields; i++)
        if (m->field[i].n == n && !strncmp(m->field[i].name, name, n)) return &m->field[i];
    return NULL;
}

bool attr_has(enum op op, const char *name, size_t n) { return find(op, name, n); }

bool attr_value(const union attr *attr, enum op op, const char *name, size_t n, double *value)
{
    const struct field *f = find(op, name, n);
    if (!f) return false;
    const void *at = (const char *)attr + f->offset;
    switch (f->type) {
    case TYPE_F32: *value = (double)*(const float *)at; break;
    case TYPE_F64: *value = *(const double *)at; break;
    case TYPE_U8: *value = *(const uint8_t *)at; break;
    case TYPE_I32: *value = *(const int32_t *)at; break;
    case TYPE_U32: *value = *(const uint32_t *)at; break;
    case TYPE_I64: *value = (double)*(const int64_t *)at; break;
    default: *value = (double)*(const uint64_t *)at;
    }
    return true;
}

/* Returns the next name that the row lists after ":", with its length; NULL: there is none. */
static const char *next_listed(enum op op, const char *at, size_t *n)
{
    at = at ? at + *n : strchr(op_table[op].attributes, ':');
    if (!at) return NULL;
    at += strspn(at, ": ");
    *n = strcspn(at, " ");
    return *n ? at : NULL;
}

/* Returns the field of a name that the row lists. */
static const struct field *find_listed(enum op op, const char *name, size_t n)
{
    size_t length = 0;
    for (const char *at = NULL; (at = next_listed(op, at, &length));)
        if (length == n && !strncmp(at, name, n)) return find(op, name, n);
    return NULL;
}

enum op op_named(const char *name)
{
    for (int op = OP_NONE + 1; op < OP_COUNT; op++)
        if (!strcasecmp(op_table[op].name, name)) return op;
    return OP_NONE;
}

/* Writes the names of the op's attributes: "eps, window". */
static const char *names_of(enum op op, char out[200])
{
    size_t n = 0, length = 0;
    snprintf(out, 200, "none");
    for (const char *at = NULL; (at = next_listed(op, at, &length)) && n < 200;)
        if (strncmp(at, "dtype", length))
            n += (size_t)snprintf(out + n, 200 - n, "%s%.*s", n ? ", " : "", (int)length, at);
    return out;
}

/* Stores element k; false: the attribute's type cannot represent the value. */
static bool store(const struct field *f, union attr *attr, int k, double value)
{
    static const double most[] = {[TYPE_U8] = 255, [TYPE_I32] = INT32_MAX, [TYPE_U32] = UINT32_MAX, [TYPE_I64] = 0x1p53,
                                  [TYPE_U64] = 0x1p53};
    void *at = (char *)attr + f->offset + (size_t)k * types[f->type].bytes;
    const bool whole = f->type != TYPE_F32 && f->type != TYPE_F64, positive = types[f->type].name[0] == 'u';
    const double least = positive ? 0 : -most[f->type];
    if (!isfinite(value) || (whole && (value != rint(value) || value > most[f->type] || value < least))) return false;
    switch (f->type) {
    case TYPE_F32: *(float *)at = (float)value; break;
    case TYPE_F64: *(double *)at = value; break;
    case TYPE_U8: *(uint8_t *)at = (uint8_t)value; break;
    case TYPE_I32: *(int32_t *)at = (int32_t)value; break;
    case TYPE_U32: *(uint32_t *)at = (uint32_t)value; break;
    default: *(int64_t *)at = (int64_t)value;
    }
    return true;
}

/* Reads "3,3" from `text`; returns the rest of the text, or NULL if this is not such a list. */
static const char *read_values(const struct field *f, union attr *attr, const char *text)
{
    for (int k = 0; k < f->count; k++) {
        char *end;
        double value = strtod(text, &end);
        if (end == text || isspace((unsigned char)*text) || !store(f, attr, k, value)) return NULL;
        text = end;
        if (*text != ',') return text;
        text++;
    }
    return NULL;
}

int attr_read(union attr *attr, enum op op, enum dtype dtype, const char *text, struct error *e)
{
    const struct field *type = find_listed(op, "dtype", 5);
    char names[200];
    memset(attr, 0, sizeof *attr);
    if (type) *((uint8_t *)attr + type->offset) = (uint8_t)dtype;
    while (text && *(text += strspn(text, " "))) {
        size_t n = strcspn(text, "= ");
        const struct field *f = text[n] == '=' ? find_listed(op, text, n) : NULL;
        if (!f || f == type)
            return error_set(e, PL_USAGE, "%s: found the attribute \"%.*s\", expected name=number of: %s",
                             op_table[op].name, (int)strcspn(text, " "), text, names_of(op, names));
        const char *end = read_values(f, attr, text + n + 1);
        if (!end || (*end && *end != ' '))
            return error_set(e, PL_USAGE, "%s: found \"%.*s\", expected %s%s", op_table[op].name,
                             (int)strcspn(text, " "), text, f->type <= TYPE_F64 ? "a number" : "an integer",
                             f->count > 1 ? " for each axis, as in 3,3" : "");
        text = end;
    }
    return PL_OK;
}

uint64_t attr_hash(const union attr *attr, enum op op, uint64_t seed)
{
    size_t n = 0;
    for (const char *at = NULL; (at = next_listed(op, at, &n));) {
        const struct field *f = find(op, at, n);
        seed = hash_bytes((const char *)attr + f->offset, (size_t)f->count * types[f->type].bytes, seed);
    }
    return seed;
}
