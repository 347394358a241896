/*
 * json.c: the filter tojson: Python's json.dumps.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "text/template/unicode.h"
#include "text/template/value.h"

struct json_state {
    struct build *b;
    const struct json_style *style;
    uint32_t depth;
};

static void json_var(struct json_state *s, struct var v);

static void json_escape(struct build *b, uint32_t c, bool data)
{
    static const char plain[] = "\"\\\n\r\t\b\f", names[] = "\"\\nrtbf";
    const char *at = c && c < 0x80 ? strchr(plain, (int)c) : NULL;
    char text[16];
    if (at) snprintf(text, sizeof text, "\\%c", names[at - plain]);
    else if (c < 0x10000) snprintf(text, sizeof text, "\\u%04x", (unsigned)c);
    else
        snprintf(text, sizeof text, "\\u%04x\\u%04x", (unsigned)(0xd800 + ((c - 0x10000) >> 10)),
                 (unsigned)(0xdc00 + ((c - 0x10000) & 0x3ff)));
    build_bytes(b, text, strlen(text), data);
}

static void json_string(struct json_state *s, const struct str *text)
{
    uint32_t hint = 0;
    build_text(s->b, "\"");
    for (uint32_t i = 0; i < text->n;) {
        int n;
        const uint32_t c = code_at(text->at + i, &n);
        const bool data = str_is_data(text, i, &hint),
                   escape = c < 0x20 || c == '"' || c == '\\' || (c >= 0x7f && s->style->ascii);
        if (escape) json_escape(s->b, c, data);
        else build_bytes(s->b, text->at + i, (size_t)n, data);
        i += (uint32_t)n;
    }
    build_text(s->b, "\"");
}

static void json_float(struct json_state *s, double x)
{
    char digits[40];
    if (isnan(x)) build_text(s->b, "NaN");
    else if (isinf(x)) build_text(s->b, x < 0 ? "-Infinity" : "Infinity");
    else build_bytes(s->b, digits, (size_t)float_repr(x, digits), false);
}

static void json_line(struct json_state *s)
{
    if (!s->style->indent) return;
    build_text(s->b, "\n");
    for (uint32_t i = 0; i < s->depth; i++) build_str(s->b, s->style->indent);
}

static void json_list(struct json_state *s, const struct seq *q)
{
    build_text(s->b, "[");
    s->depth++;
    for (uint32_t i = 0; i < q->n; i++) {
        if (i) build_str(s->b, s->style->item);
        json_line(s);
        json_var(s, q->at[i]);
    }
    s->depth--;
    if (q->n) json_line(s);
    build_text(s->b, "]");
}

/* Keys that are no strings become strings. */
static void json_key(struct json_state *s, struct var key)
{
    if (key.kind == VAR_STRING) {
        json_string(s, key.s);
        return;
    }
    if (key.kind != VAR_NONE && key.kind != VAR_BIG && !var_is_number(key))
        fail(s->b->r, "tojson: a %s cannot be a key", var_type(key));
    build_text(s->b, "\"");
    json_var(s, key);
    build_text(s->b, "\"");
}

/* The order of a dict's members: as they are, or by key. */
static uint32_t *json_order(struct json_state *s, const struct dict *d)
{
    uint32_t *order = take(s->b->r, d->n * sizeof *order);
    for (uint32_t i = 0; i < d->n; i++) {
        uint32_t at = i;
        for (; s->style->sort && at > 0 && var_less(s->b->r, d->keys[i], d->keys[order[at - 1]]); at--) {
            step(s->b->r);
            order[at] = order[at - 1];
        }
        order[at] = i;
    }
    return order;
}

static void json_dict(struct json_state *s, const struct dict *d)
{
    const uint32_t *order = json_order(s, d);
    build_text(s->b, "{");
    s->depth++;
    for (uint32_t i = 0; i < d->n; i++) {
        if (i) build_str(s->b, s->style->item);
        json_line(s);
        json_key(s, d->keys[order[i]]);
        build_str(s->b, s->style->key);
        json_var(s, d->values[order[i]]);
    }
    s->depth--;
    if (d->n) json_line(s);
    build_text(s->b, "}");
}

static void json_var(struct json_state *s, struct var v)
{
    enter(s->b->r);
    switch (v.kind) {
    case VAR_NONE: build_text(s->b, "null"); break;
    case VAR_BOOL: build_text(s->b, v.truth ? "true" : "false"); break;
    case VAR_INT:
    case VAR_BIG: build_repr(s->b, v); break;
    case VAR_FLOAT: json_float(s, v.f); break;
    case VAR_STRING: json_string(s, v.s); break;
    case VAR_LIST:
    case VAR_TUPLE: json_list(s, v.q); break;
    case VAR_DICT: json_dict(s, v.d); break;
    default: fail(s->b->r, "tojson: a %s has no JSON form", var_type(v));
    }
    leave(s->b->r);
}

void build_json(struct build *b, struct var v, const struct json_style *style)
{
    struct json_state s = {b, style, 0};
    json_var(&s, v);
}
