/*
 * value.c: the document tree: lookups, typed reading, building.
 *
 * Invariant: the children of a map have distinct keys. value_put is the only function that adds
 * one, and it replaces; a parser that rejects duplicates must look the key up first.
 *
 * A map of up to SMALL_MAP children is searched linearly. A larger one has an
 * open-addressed table, so that a vocabulary of 10^5 names reads in linear time:
 *
 *   items   [ v0 | v1 | v2 | ... ]           in document order
 *   slots   [ 0 | 2 | 0 | 1 | 3 | ... ]      hash(key) -> index + 1, at most half full
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>

#include "io/value.h"

enum { SMALL_MAP = 16 };

/* ---- lookups ---- */

/* Returns the slot that holds `key`, or the empty slot for it. */
static uint32_t map_slot(const struct value *map, const char *key)
{
    uint32_t mask = map->slot_count - 1;
    uint32_t s = (uint32_t)hash_bytes(key, strlen(key), 0) & mask;
    while (map->slots[s] && strcmp(map->items[map->slots[s] - 1]->key, key)) s = (s + 1) & mask;
    return s;
}

/* Returns the child's position, or map->count. */
static uint32_t map_find(const struct value *map, const char *key)
{
    if (map->slot_count) {
        uint32_t found = map->slots[map_slot(map, key)];
        return found ? found - 1 : map->count;
    }
    uint32_t i = 0;
    while (i < map->count && strcmp(map->items[i]->key, key)) i++;
    return i;
}

const struct value *value_get(const struct value *map, const char *key)
{
    if (!map || map->kind != VALUE_MAP) return NULL;
    uint32_t i = map_find(map, key);
    return i < map->count ? map->items[i] : NULL;
}

const struct value *value_at(const struct value *list, uint32_t i)
{
    return list && i < list->count ? list->items[i] : NULL;
}

const struct value *value_path(const struct value *map, const char *path)
{
    char key[256];
    while (map) {
        size_t n = strcspn(path, ".");
        if (n >= sizeof key) return NULL;
        memcpy(key, path, n);
        key[n] = 0;
        map = value_get(map, key);
        if (!path[n]) return map;
        path += n + 1;
    }
    return NULL;
}

static bool is_whole(const char *text)
{
    return !strpbrk(text, ".eE");
}

static bool number_equal(const struct value *a, const struct value *b)
{
    if (is_whole(a->text) && is_whole(b->text)) return !strcmp(a->text, b->text);
    return a->number == b->number || (isnan(a->number) && isnan(b->number));
}

bool value_equal(const struct value *a, const struct value *b)
{
    if (a->kind != b->kind || a->count != b->count) return false;
    if (a->kind == VALUE_BOOL) return a->truth == b->truth;
    if (a->kind == VALUE_NUMBER) return number_equal(a, b);
    if (a->kind == VALUE_STRING) return !strcmp(a->text, b->text);
    for (uint32_t i = 0; i < a->count; i++) {
        if (a->kind == VALUE_MAP && strcmp(a->items[i]->key, b->items[i]->key)) return false;
        if (!value_equal(a->items[i], b->items[i])) return false;
    }
    return true;
}

/* ---- typed reading ---- */

char *value_describe(const struct value *v, char out[96])
{
    static const char *const names[] = {"null", "true", "", "", "a list", "a map"};
    if (!v) snprintf(out, 96, "nothing");
    else if (v->kind == VALUE_BOOL) snprintf(out, 96, "%s", v->truth ? "true" : "false");
    else if (v->kind == VALUE_NUMBER) snprintf(out, 96, "the number %.60s", v->text);
    else if (v->kind == VALUE_STRING)
        snprintf(out, 96, "the string \"%.60s%s\"", v->text, strlen(v->text) > 60 ? "..." : "");
    else snprintf(out, 96, "%s", names[v->kind]);
    return out;
}

/* Reports a mismatch, in one wording for all: the location, the value found, the value expected. */
static int value_mismatch(const struct value *v, const char *name, const char *expected, struct error *e)
{
    char found[96];
    if (!v) return error_set(e, PL_USAGE, "%s is missing; expected %s", name, expected);
    value_describe(v, found);
    if (!v->line) return error_set(e, PL_USAGE, "%s is %s; expected %s", name, found, expected);
    return error_set(e, PL_USAGE, "line %u: %s is %s; expected %s", v->line, name, found, expected);
}

int value_as_bool(const struct value *v, const char *name, bool *out, struct error *e)
{
    if (!v || v->kind != VALUE_BOOL) return value_mismatch(v, name, "true or false", e);
    *out = v->truth;
    return PL_OK;
}

/* Reads a whole number. Digits are read exactly; 1e5 and 2.0 are whole numbers too, if a double
 * holds them. */
int value_as_int(const struct value *v, const char *name, int64_t *out, struct error *e)
{
    const char *expected = "a whole number";
    if (!v || v->kind != VALUE_NUMBER) return value_mismatch(v, name, expected, e);
    if (is_whole(v->text)) {
        errno = 0;
        long long x = strtoll(v->text, NULL, 10);
        if (errno) return value_mismatch(v, name, "a whole number within 64 bits", e);
        *out = x;
        return PL_OK;
    }
    if (!(fabs(v->number) <= 0x1p53) || v->number != floor(v->number))
        return value_mismatch(v, name, expected, e);
    *out = (int64_t)v->number;
    return PL_OK;
}

int value_as_uint(const struct value *v, const char *name, uint64_t *out, struct error *e)
{
    const char *expected = "a whole number of at least 0";
    if (!v || v->kind != VALUE_NUMBER || !(v->number >= 0))
        return value_mismatch(v, name, expected, e);
    if (!is_whole(v->text) || v->text[0] == '-') { /* "-0" is a zero */
        int64_t x;
        if (value_as_int(v, name, &x, e)) return value_mismatch(v, name, expected, e);
        *out = (uint64_t)x;
        return PL_OK;
    }
    errno = 0;
    unsigned long long x = strtoull(v->text, NULL, 10);
    if (errno) return value_mismatch(v, name, "a whole number within 64 bits", e);
    *out = x;
    return PL_OK;
}

int value_as_number(const struct value *v, const char *name, double *out, struct error *e)
{
    if (!v || v->kind != VALUE_NUMBER) return value_mismatch(v, name, "a number", e);
    *out = v->number;
    return PL_OK;
}

int value_as_string(const struct value *v, const char *name, const char **out, struct error *e)
{
    if (!v || v->kind != VALUE_STRING) return value_mismatch(v, name, "a string", e);
    *out = v->text;
    return PL_OK;
}

int value_as_size(const struct value *v, const char *name, uint64_t *bytes, struct error *e)
{
    if (v && v->kind == VALUE_NUMBER && !value_as_uint(v, name, bytes, e)) return PL_OK;
    if (v && v->kind == VALUE_STRING && size_parse(v->text, bytes)) return PL_OK;
    return value_mismatch(v, name, "a size: bytes, or a number with KiB MiB GiB TiB KB MB GB TB", e);
}

int value_as_list(const struct value *v, const char *name, struct error *e)
{
    return v && v->kind == VALUE_LIST ? PL_OK : value_mismatch(v, name, "a list", e);
}

int value_as_map(const struct value *v, const char *name, struct error *e)
{
    return v && v->kind == VALUE_MAP ? PL_OK : value_mismatch(v, name, "a map", e);
}

static const struct value *value_given(const struct value *map, const char *path)
{
    const struct value *v = value_path(map, path);
    return v && v->kind != VALUE_NULL ? v : NULL;
}

/* value_opt_TYPE does as value_as_TYPE, for a key that is there. */
#define OPTIONAL(name, type)                                                                          \
    int value_opt_##name(const struct value *map, const char *path, type *out, struct error *e)       \
    {                                                                                                 \
        const struct value *v = value_given(map, path);                                               \
        return v ? value_as_##name(v, path, out, e) : PL_OK;                                          \
    }
OPTIONAL(bool, bool)
OPTIONAL(int, int64_t)
OPTIONAL(uint, uint64_t)
OPTIONAL(number, double)
OPTIONAL(string, const char *)

/* ---- building ---- */

struct value *value_new(struct bump *b, enum value_kind kind)
{
    struct value *v = bump_alloc(b, sizeof *v);
    v->kind = kind;
    if (kind == VALUE_STRING) v->text = "";
    if (kind == VALUE_NUMBER) v->text = "0";
    return v;
}

struct value *value_bool(struct bump *b, bool x)
{
    struct value *v = value_new(b, VALUE_BOOL);
    v->truth = x;
    return v;
}

/* Makes a number of its digits, which `b` owns. */
static struct value *number_of(struct bump *b, double x, const char *text)
{
    struct value *v = value_new(b, VALUE_NUMBER);
    v->number = x;
    v->text = text;
    return v;
}

struct value *value_int(struct bump *b, int64_t x) { return number_of(b, (double)x, bump_format(b, "%" PRId64, x)); }
struct value *value_uint(struct bump *b, uint64_t x) { return number_of(b, (double)x, bump_format(b, "%" PRIu64, x)); }

struct value *value_number(struct bump *b, double x)
{
    char text[32];
    return number_of(b, x, bump_string(b, number_print(x, text)));
}

struct value *value_string(struct bump *b, const char *s)
{
    struct value *v = value_new(b, VALUE_STRING);
    v->text = bump_string(b, s);
    return v;
}

struct value *value_digits(struct bump *b, const char *text, size_t n)
{
    CHECK(number_is_json(text, n), "\"%.*s\" is not a number", (int)n, text);
    char *copy = bump_alloc(b, n + 1); /* zeroed, so terminated */
    memcpy(copy, text, n);
    return number_of(b, strtod(copy, NULL), copy);
}

struct value *value_copy(struct bump *b, const struct value *v)
{
    struct value *copy = value_new(b, v->kind);
    copy->line = v->line;
    copy->truth = v->truth;
    copy->number = v->number;
    if (v->text) copy->text = bump_string(b, v->text);
    for (uint32_t i = 0; i < v->count; i++) {
        struct value *child = value_copy(b, v->items[i]);
        if (v->kind == VALUE_MAP) value_put(b, copy, v->items[i]->key, child);
        else value_append(b, copy, child);
    }
    return copy;
}

/* Makes room for one more child. Old arrays stay in the bump: at most as much again. */
static void children_reserve(struct bump *b, struct value *parent)
{
    if (parent->count < parent->room) return;
    CHECK(parent->room <= UINT32_MAX / 8, "list of %u values", parent->room);
    uint32_t room = parent->room ? parent->room * 2 : 4;
    struct value **items = bump_alloc(b, room * sizeof *items);
    if (parent->count) memcpy(items, parent->items, parent->count * sizeof *items);
    parent->items = items;
    parent->room = room;
}

/* Rebuilds the table, four slots per child, when a map has outgrown the old one. */
static void map_index(struct bump *b, struct value *map)
{
    if (map->count <= SMALL_MAP || map->count * 2 <= map->slot_count) return;
    uint32_t n = 64;
    while (n < map->count * 4) n *= 2;
    map->slots = bump_alloc(b, n * sizeof *map->slots);
    map->slot_count = n;
    for (uint32_t i = 0; i < map->count; i++) map->slots[map_slot(map, map->items[i]->key)] = i + 1;
}

void value_append(struct bump *b, struct value *list, struct value *child)
{
    CHECK(list->kind == VALUE_LIST, "append to a value that is not a list");
    children_reserve(b, list);
    list->items[list->count++] = child;
}

void value_put(struct bump *b, struct value *map, const char *key, struct value *child)
{
    CHECK(map->kind == VALUE_MAP, "put \"%s\" into a value that is not a map", key);
    child->key = bump_string(b, key);
    uint32_t i = map_find(map, key);
    if (i < map->count) {
        map->items[i] = child;
        return;
    }
    children_reserve(b, map);
    map->items[map->count++] = child;
    if (map->slot_count) map->slots[map_slot(map, key)] = map->count;
    map_index(b, map);
}

/* ---- numbers and characters ---- */

static size_t digits(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n && s[i] >= '0' && s[i] <= '9') i++;
    return i;
}

bool number_is_json(const char *s, size_t n)
{
    size_t i = n && s[0] == '-', k = digits(s + i, n - i);
    if (!k || (k > 1 && s[i] == '0')) return false;
    i += k;
    if (i < n && s[i] == '.') {
        i++;
        if (!(k = digits(s + i, n - i))) return false;
        i += k;
    }
    if (i < n && (s[i] == 'e' || s[i] == 'E')) {
        i++;
        if (i < n && (s[i] == '+' || s[i] == '-')) i++;
        if (!(k = digits(s + i, n - i))) return false;
        i += k;
    }
    return i == n;
}

char *number_print(double x, char out[32])
{
    if (isnan(x)) return strcpy(out, ".nan");
    if (isinf(x)) return strcpy(out, x < 0 ? "-.inf" : ".inf");
    for (int precision = 15; precision <= 17; precision++) {
        snprintf(out, 32, "%.*g", precision, x);
        if (strtod(out, NULL) == x) break;
    }
    return out;
}

/* Decodes a character. Overlong encodings, surrogates and codes beyond U+10FFFF are not well
 * formed. */
int utf8_decode(const char *s, size_t n, uint32_t *code)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    if (!n) return 0;
    unsigned char c = (unsigned char)s[0];
    *code = c;
    if (c < 0x80) return 1;
    size_t length = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;
    if (c < 0xc2 || c > 0xf4 || length > n) return 0;
    uint32_t x = c & (0xffu >> (length + 1));
    for (size_t i = 1; i < length; i++) {
        if (((unsigned char)s[i] & 0xc0) != 0x80) return 0;
        x = x << 6 | ((unsigned char)s[i] & 0x3f);
    }
    if (x < least[length] || x > 0x10ffff || (x >= 0xd800 && x < 0xe000)) return 0;
    *code = x;
    return (int)length;
}

void value_quote(struct text *out, const char *s, size_t n, bool (*plain)(uint32_t code), const char *escape)
{
    text_append(out, "\"", 1);
    for (int k; n; s += k, n -= (size_t)k) {
        uint32_t code;
        k = utf8_decode(s, n, &code);
        if (!k) text_append(out, "\xef\xbf\xbd", 3), k = 1;
        else if (code == '"' || code == '\\') text_printf(out, "\\%c", (char)code);
        else if (code == '\n') text_append(out, "\\n", 2);
        else if (code == '\t') text_append(out, "\\t", 2);
        else if (!plain(code)) text_printf(out, escape, (unsigned)code);
        else text_append(out, s, (size_t)k);
    }
    text_append(out, "\"", 1);
}
