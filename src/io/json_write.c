/*
 * json_write.c: writing JSON to a text.
 *
 * Invariant: the text so far is a prefix of a valid document. The writer adds commas, line
 * breaks and indentation. A key is given inside maps and only there.
 */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "io/json.h"

static void write_quoted(struct text *out, const char *s, size_t n)
{
    text_append(out, "\"", 1);
    while (n) {
        uint32_t code;
        int k = utf8_decode(s, n, &code);
        if (!k) text_append(out, "\xef\xbf\xbd", 3);
        else if (code == '"' || code == '\\') text_printf(out, "\\%c", (char)code);
        else if (code == '\n') text_append(out, "\\n", 2);
        else if (code == '\t') text_append(out, "\\t", 2);
        else if (code < 0x20 || code == 0x7f) text_printf(out, "\\u%04x", (unsigned)code);
        else text_append(out, s, (size_t)k);
        s += k ? k : 1;
        n -= (size_t)(k ? k : 1);
    }
    text_append(out, "\"", 1);
}

size_t json_quoted_bytes(const char *s, size_t n)
{
    size_t out = 2;
    for (int k; n; s += k ? k : 1, n -= (size_t)(k ? k : 1)) {
        uint32_t code;
        k = utf8_decode(s, n, &code);
        out += !k                                                            ? 3
               : code == '"' || code == '\\' || code == '\n' || code == '\t' ? 2
               : code < 0x20 || code == 0x7f                                 ? 6
                                                                             : (size_t)k;
    }
    return out;
}

static void write_break(struct json_writer *w)
{
    if (w->indent) text_printf(w->out, "\n%*s", w->depth * w->indent, "");
}

/* Writes what precedes a value: comma, line break, key. */
static void write_lead(struct json_writer *w, const char *key)
{
    CHECK(!w->depth || (w->close[w->depth] == '}') == (key != NULL),
          "a key is needed inside a map, and only there (%s)", key ? key : "none given");
    if (w->depth) {
        if (w->any[w->depth]) text_append(w->out, w->indent ? "," : ", ", w->indent ? 1 : 2);
        write_break(w);
    }
    w->any[w->depth] = true;
    if (!key) return;
    write_quoted(w->out, key, strlen(key));
    text_append(w->out, ": ", 2);
}

static void write_open(struct json_writer *w, const char *key, char open, char close)
{
    write_lead(w, key);
    text_append(w->out, &open, 1);
    CHECK(++w->depth < (int)COUNT(w->close), "JSON nested %d deep", w->depth);
    w->close[w->depth] = close;
    w->any[w->depth] = false;
}

void json_begin_map(struct json_writer *w, const char *key)
{
    write_open(w, key, '{', '}');
}

void json_begin_list(struct json_writer *w, const char *key)
{
    write_open(w, key, '[', ']');
}

void json_end(struct json_writer *w)
{
    CHECK(w->depth > 0, "json_end without a begin");
    char close = w->close[w->depth];
    bool any = w->any[w->depth];
    w->depth--;
    if (any) write_break(w);
    text_append(w->out, &close, 1);
}

void json_put_null(struct json_writer *w, const char *key)
{
    write_lead(w, key);
    text_append(w->out, "null", 4);
}

void json_put_bool(struct json_writer *w, const char *key, bool x)
{
    write_lead(w, key);
    text_printf(w->out, "%s", x ? "true" : "false");
}

void json_put_int(struct json_writer *w, const char *key, int64_t x)
{
    write_lead(w, key);
    text_printf(w->out, "%" PRId64, x);
}

void json_put_uint(struct json_writer *w, const char *key, uint64_t x)
{
    write_lead(w, key);
    text_printf(w->out, "%" PRIu64, x);
}

void json_put_number(struct json_writer *w, const char *key, double x)
{
    char text[32];
    if (!isfinite(x)) {
        json_put_null(w, key);
        return;
    }
    write_lead(w, key);
    text_printf(w->out, "%s", number_print(x, text));
}

void json_put_bytes(struct json_writer *w, const char *key, const char *s, size_t n)
{
    write_lead(w, key);
    write_quoted(w->out, s, n);
}

void json_put_string(struct json_writer *w, const char *key, const char *s) { json_put_bytes(w, key, s, strlen(s)); }

void json_put_format(struct json_writer *w, const char *key, const char *fmt, ...)
{
    char text[1024];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    CHECK(n >= 0 && (size_t)n < sizeof text, "the formatted string has %d bytes", n);
    json_put_string(w, key, text);
}

void json_put_value(struct json_writer *w, const char *key, const struct value *v)
{
    switch (v->kind) {
    case VALUE_NULL: json_put_null(w, key); return;
    case VALUE_BOOL: json_put_bool(w, key, v->truth); return;
    case VALUE_STRING: json_put_string(w, key, v->text); return;
    case VALUE_NUMBER:
        if (!isfinite(v->number)) {
            json_put_null(w, key);
            return;
        }
        write_lead(w, key);
        text_append(w->out, v->text, strlen(v->text)); /* the digits as in the source */
        return;
    case VALUE_LIST: json_begin_list(w, key); break;
    case VALUE_MAP: json_begin_map(w, key); break;
    }
    for (uint32_t i = 0; i < v->count; i++)
        json_put_value(w, v->kind == VALUE_MAP ? v->items[i]->key : NULL, v->items[i]);
    json_end(w);
}

void json_write(const struct value *v, int indent, struct text *out)
{
    struct json_writer w = {.out = out, .indent = indent};
    json_put_value(&w, NULL, v);
}
