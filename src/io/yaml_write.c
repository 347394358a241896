/*
 * yaml_write.c: writing a tree as YAML.
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
#include <string.h>
#include <strings.h>

#include "io/yaml.h"

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

/* Characters that are printable in YAML and do not break the line. */
static bool is_printable(uint32_t c)
{
    if (c < 0xa0) return c >= 0x20 && c < 0x7f;
    return c != 0x2028 && c != 0x2029 && c != 0xfeff && c != 0xfffe && c != 0xffff;
}

static void write_string(struct text *out, const char *s)
{
    size_t n = strlen(s);
    if (is_bare(s)) {
        text_append(out, s, n);
        return;
    }
    text_append(out, "\"", 1);
    while (n) {
        uint32_t code;
        int k = utf8_decode(s, n, &code);
        if (!k) text_append(out, "\xef\xbf\xbd", 3);
        else if (code == '"' || code == '\\') text_printf(out, "\\%c", (char)code);
        else if (code == '\n') text_append(out, "\\n", 2);
        else if (code == '\t') text_append(out, "\\t", 2);
        else if (!is_printable(code)) text_printf(out, "\\u%04X", (unsigned)code);
        else text_append(out, s, (size_t)k);
        s += k ? k : 1;
        n -= (size_t)(k ? k : 1);
    }
    text_append(out, "\"", 1);
}

static bool is_scalar(const struct value *v)
{
    return v->kind != VALUE_LIST && v->kind != VALUE_MAP;
}

/* Whether the value is written on one line: scalars, empty maps, lists of scalars. */
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
