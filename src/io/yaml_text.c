/*
 * yaml_text.c: scalars of YAML, and writing it; neither needs a library.
 *
 * Invariant: a number's text is a JSON number, for every spelling that YAML allows
 * (+1, 0x10, .5, 007), so one writer serves both formats.
 */
#include <errno.h>
#include <math.h>
#include <strings.h>

#include "io/yaml.h"

/* ---- scalars of the core schema ---- */

static bool one_of(const char *s, const char *a, const char *b, const char *c)
{
    return !strcmp(s, a) || !strcmp(s, b) || !strcmp(s, c);
}

/* Converts 0x1f and 0o17 to decimal digits; NULL for other text and beyond 64 bits. */
static struct value *scalar_radix(struct bump *b, const char *s)
{
    if (s[0] != '0' || (s[1] != 'x' && s[1] != 'o')) return NULL;
    const char *allowed = s[1] == 'x' ? "0123456789abcdefABCDEF" : "01234567";
    if (!s[2] || s[2 + strspn(s + 2, allowed)]) return NULL;
    errno = 0;
    unsigned long long x = strtoull(s + 2, NULL, s[1] == 'x' ? 16 : 8);
    return errno ? NULL : value_uint(b, x);
}

/* Reads [-+]? digits, with the sign and leading zeroes as in JSON. */
static struct value *scalar_whole(struct bump *b, const char *s)
{
    bool minus = s[0] == '-';
    const char *d = s + (s[0] == '-' || s[0] == '+');
    if (!*d || d[strspn(d, "0123456789")]) return NULL;
    while (d[0] == '0' && d[1]) d++;
    char *text = bump_format(b, "%s%s", minus ? "-" : "", d);
    return value_digits(b, text, strlen(text));
}

/* Reads [-+]? ( .d+ | d+ ( .d* )? ) ( [eE] [-+]? d+ )? */
static struct value *scalar_float(struct bump *b, const char *s)
{
    static const char ten[] = "0123456789";
    const char *p = s + (s[0] == '-' || s[0] == '+');
    size_t whole = strspn(p, ten), part = 0;
    p += whole;
    if (*p == '.') part = strspn(p + 1, ten), p += 1 + part;
    if (!whole && !part) return NULL;
    if (*p == 'e' || *p == 'E') {
        p++;
        p += *p == '-' || *p == '+';
        size_t n = strspn(p, ten);
        if (!n) return NULL;
        p += n;
    }
    if (*p) return NULL;
    size_t n = strlen(s);
    return number_is_json(s, n) ? value_digits(b, s, n) : value_number(b, strtod(s, NULL));
}

static struct value *scalar_special(struct bump *b, const char *s)
{
    const char *p = s + (s[0] == '-' || s[0] == '+');
    if (one_of(p, ".inf", ".Inf", ".INF")) return value_number(b, s[0] == '-' ? -INFINITY : INFINITY);
    if (one_of(s, ".nan", ".NaN", ".NAN")) return value_number(b, NAN);
    return NULL;
}

struct value *yaml_scalar(struct bump *b, const char *s)
{
    struct value *v = NULL;
    if (!*s || !strcmp(s, "~") || one_of(s, "null", "Null", "NULL")) return value_new(b, VALUE_NULL);
    if (one_of(s, "true", "True", "TRUE")) return value_bool(b, true);
    if (one_of(s, "false", "False", "FALSE")) return value_bool(b, false);
    if (strchr("+-.0123456789", *s)) {
        v = scalar_whole(b, s);
        if (!v) v = scalar_radix(b, s);
        if (!v) v = scalar_special(b, s);
        if (!v) v = scalar_float(b, s);
    }
    return v ? v : value_string(b, s);
}

/* ---- Writing ----
 *
 * writing a tree as YAML.
 *
 *   train:                 a map under a key: one indent deeper
 *     steps: 100           a scalar: on its line
 *     betas: [0.9, 0.95]   a list of scalars: in brackets
 *   stages:
 *     - name: first        any other list: one dash per child
 *       blocks: 2
 *
 * Invariant: the output parses to an equal tree. A string is written without quotes only if it
 * looks like a name and resolves to nothing else, under YAML 1.1 (which other readers follow) as
 * well as 1.2; otherwise it is quoted on one line.
 */

/* A longer key needs the explicit "? key" syntax: parsers look 1024 characters ahead. */
enum { LONG_KEY = 128 };

static bool is_bare(const char *s)
{
    static const char *const words[] = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"};
    static const char first[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_/";
    static const char rest[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_/0123456789.-+";
    if (!*s || !strchr(first, *s) || s[strspn(s, rest)]) return false;
    for (size_t i = 0; i < COUNT(words); i++)
        if (!strcasecmp(s, words[i])) return false;
    return true;
}

/* Reports whether a character is printable in YAML and does not break the line. */
static bool is_printable(uint32_t c)
{
    if (c < 0xa0) return c >= 0x20 && c < 0x7f;
    return c != 0x2028 && c != 0x2029 && c != 0xfeff && c != 0xfffe && c != 0xffff;
}

static void write_string(struct text *out, const char *s)
{
    if (is_bare(s)) text_append(out, s, strlen(s));
    else value_quote(out, s, strlen(s), is_printable, "\\u%04X");
}

static bool is_scalar(const struct value *v)
{
    return v->kind != VALUE_LIST && v->kind != VALUE_MAP;
}

/* Reports whether the value is written on one line: scalars, empty maps, lists of scalars. */
static bool is_inline(const struct value *v)
{
    if (is_scalar(v) || !v->count) return true;
    if (v->kind == VALUE_MAP) return false;
    for (uint32_t i = 0; i < v->count; i++)
        if (!is_scalar(v->items[i])) return false;
    return true;
}

static void write_inline(struct text *out, const struct value *v)
{
    switch (v->kind) {
    case VALUE_NULL: text_append(out, "null", 4); break;
    case VALUE_BOOL: text_printf(out, "%s", v->truth ? "true" : "false"); break;
    case VALUE_NUMBER: text_append(out, v->text, strlen(v->text)); break;
    case VALUE_STRING: write_string(out, v->text); break;
    case VALUE_MAP: text_append(out, "{}", 2); break;
    case VALUE_LIST:
        text_append(out, "[", 1);
        for (uint32_t i = 0; i < v->count; i++) {
            if (i) text_append(out, ", ", 2);
            write_inline(out, v->items[i]);
        }
        text_append(out, "]", 1);
        break;
    }
}

/* Writes the children of a block value, indented by `indent` columns. With `started` the first
 * line is already indented (it follows a dash). */
static void write_block(struct text *out, const struct value *v, int indent, bool started)
{
    for (uint32_t i = 0; i < v->count; i++) {
        const struct value *child = v->items[i];
        if (!started || i) text_printf(out, "%*s", indent, "");
        if (v->kind == VALUE_MAP) {
            bool explicit_key = strlen(child->key) > LONG_KEY;
            if (explicit_key) text_append(out, "? ", 2);
            write_string(out, child->key);
            if (explicit_key) text_printf(out, "\n%*s", indent, "");
            text_append(out, ":", 1);
        } else {
            text_append(out, "-", 1);
        }
        if (is_inline(child)) {
            text_append(out, " ", 1);
            write_inline(out, child);
            text_append(out, "\n", 1);
        } else if (v->kind == VALUE_LIST) {
            text_append(out, " ", 1);
            write_block(out, child, indent + 2, true);
        } else {
            text_append(out, "\n", 1);
            write_block(out, child, indent + 2, false);
        }
    }
}

void yaml_write(const struct value *v, struct text *out)
{
    if (!is_inline(v)) {
        write_block(out, v, 0, false);
        return;
    }
    write_inline(out, v);
    text_append(out, "\n", 1);
}
