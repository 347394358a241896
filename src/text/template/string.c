/*
 * string.c: strings that know which of their bytes came from the data, and what prints values into
 * them: str, repr and json.dumps of Python.
 *
 * Joining to the end of a string is the usual way in which templates collect text, so that a buffer
 * is shared:
 *
 *   buffer   [ a a a a b b b . . . . ]      room.used = 7
 *   "aaaa"     ^^^^^^^                      can no longer grow: its end is not `used`
 *   "aaaabbb"  ^^^^^^^^^^^^^                grows in place
 */
#include <math.h>

#include "text/template/jinja.h"

struct str_room {
    uint32_t used, cap;
};

/* ---- building ---- */

static void build_reserve(struct build *b, size_t more)
{
    if (more > RENDER_OUTPUT || b->n + more > RENDER_OUTPUT)
        fail(b->r, "the text grows beyond %d MiB", RENDER_OUTPUT >> 20);
    const uint32_t need = b->n + (uint32_t)more;
    if (need <= b->cap) return;
    uint32_t cap = b->cap ? b->cap * 2 : 64;
    if (cap < need) cap = need;
    char *at = take(b->r, cap);
    if (b->n) memcpy(at, b->at, b->n);
    b->at = at;
    b->cap = cap;
}

/* Marks the bytes from `begin` to the end as data; a range that touches the last one continues
 * it. */
static void build_mark(struct build *b, uint32_t begin, uint32_t end)
{
    if (begin == end) return;
    if (b->n_data && b->data[b->n_data - 1].end == begin) {
        b->data[b->n_data - 1].end = end;
        return;
    }
    if (b->n_data == b->cap_data) {
        const uint32_t cap = b->cap_data ? b->cap_data * 2 : 4;
        struct byte_range *data = take(b->r, cap * sizeof *data);
        if (b->n_data) memcpy(data, b->data, b->n_data * sizeof *data);
        b->data = data;
        b->cap_data = cap;
    }
    b->data[b->n_data++] = (struct byte_range){begin, end};
}

void build_bytes(struct build *b, const char *at, size_t n, bool data)
{
    if (!n) return;
    build_reserve(b, n);
    memcpy(b->at + b->n, at, n);
    b->n += (uint32_t)n;
    b->r->steps += 1 + n / 64;
    if (data) build_mark(b, b->n - (uint32_t)n, b->n);
}

void build_text(struct build *b, const char *text)
{
    build_bytes(b, text, strlen(text), false);
}

void build_slice(struct build *b, const struct str *s, uint32_t from, uint32_t to)
{
    const uint32_t base = b->n;
    build_bytes(b, s->at + from, to - from, false);
    for (uint32_t i = 0; i < s->n_data; i++) {
        const uint32_t begin = s->data[i].begin > from ? s->data[i].begin : from,
                       end = s->data[i].end < to ? s->data[i].end : to;
        if (begin < end) build_mark(b, base + begin - from, base + end - from);
    }
    b->r->steps += s->n_data / 8;
}

void build_str(struct build *b, const struct str *s)
{
    build_slice(b, s, 0, s->n);
}

struct var build_done(struct build *b)
{
    struct var v = var_text(b->r, b->n ? b->at : "", b->n);
    struct str *s = (struct str *)v.s;
    s->data = b->data;
    s->n_data = b->n_data;
    return v;
}

/* ---- strings ---- */

bool str_is(const struct str *s, const char *text)
{
    return s->n == strlen(text) && !memcmp(s->at, text, s->n);
}

bool str_is_data(const struct str *s, uint32_t at, uint32_t *hint)
{
    while (*hint < s->n_data && s->data[*hint].end <= at) ++*hint;
    return *hint < s->n_data && s->data[*hint].begin <= at;
}

char *str_c(struct render *r, const struct str *s)
{
    char *copy = take(r, s->n + 1);
    if (s->n) memcpy(copy, s->at, s->n);
    return copy;
}

uint32_t str_length(const struct str *s)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n; i++) n += ((unsigned char)s->at[i] & 0xc0) != 0x80;
    return n;
}

uint32_t str_offset(const struct str *s, uint32_t index)
{
    uint32_t i = 0;
    for (; i < s->n; i++)
        if (((unsigned char)s->at[i] & 0xc0) != 0x80 && !index--) break;
    return i;
}

struct var str_slice(struct render *r, struct var v, uint32_t from, uint32_t to)
{
    struct var out = var_text(r, v.s->at + from, to - from);
    struct str *s = (struct str *)out.s;
    out.markup = v.markup;
    uint32_t first = 0, n = 0;
    while (first < v.s->n_data && v.s->data[first].end <= from) first++;
    while (first + n < v.s->n_data && v.s->data[first + n].begin < to) n++;
    if (!n) return out;
    struct byte_range *data = take(r, n * sizeof *data);
    for (uint32_t i = 0; i < n; i++) {
        const struct byte_range old = v.s->data[first + i];
        data[i].begin = old.begin > from ? old.begin - from : 0;
        data[i].end = (old.end < to ? old.end : to) - from;
    }
    s->data = data;
    s->n_data = n;
    return out;
}

struct var str_join(struct render *r, struct var a, struct var b)
{
    if (!b.s->n || !a.s->n) {
        struct var v = a.s->n ? a : b;
        v.markup = a.markup || b.markup;
        return v;
    }
    struct build out = {.r = r};
    struct str_room *room = a.s->room;
    const uint32_t n = a.s->n + b.s->n;
    if (room && room->used == a.s->n && n <= room->cap) { /* append in place; the marks are copied */
        out.at = (char *)a.s->at;
        out.cap = room->cap;
    } else {
        if (n > RENDER_OUTPUT) fail(r, "the text grows beyond %d MiB", RENDER_OUTPUT >> 20);
        room = take(r, sizeof *room);
        out.cap = room->cap = n < 128 ? n : n + n / 2;
        out.at = take(r, out.cap);
        memcpy(out.at, a.s->at, a.s->n);
    }
    out.n = a.s->n;
    out.n_data = out.cap_data = a.s->n_data;
    if (a.s->n_data) {
        out.cap_data += b.s->n_data;
        out.data = memcpy(take(r, out.cap_data * sizeof *out.data), a.s->data, a.s->n_data * sizeof *out.data);
    }
    build_str(&out, b.s);
    room->used = out.n;
    struct var v = build_done(&out);
    ((struct str *)v.s)->room = room;
    v.markup = a.markup || b.markup;
    return v;
}

struct var var_string(struct render *r, struct var v)
{
    if (v.kind == VAR_STRING) return v;
    struct build b = {.r = r};
    build_var(&b, v);
    return build_done(&b);
}

/* ---- printing ---- */

/* Appends a float: the shortest digits that read back as x, laid out as Python does: an exponent
 * below 1e-4 and from 1e16. */
static void build_float(struct build *b, double x)
{
    char digits[40], out[40];
    for (int precision = 0; precision < 17; precision++) {
        snprintf(digits, sizeof digits, "%.*e", precision, x);
        if (strtod(digits, NULL) == x) break;
    }
    char *e = strchr(digits, 'e');
    if (!e) fail(b->r, "%s cannot be printed", digits); /* an infinity */
    const int exponent = atoi(e + 1);
    if (exponent < -4 || exponent >= 16) { /* 1e-05, 1.5e+16: C's own layout */
        build_text(b, digits);
        return;
    }
    const int shown = (int)(e - digits) - (digits[0] == '-') - 1; /* digits behind the first, and the point */
    const int decimals = (shown > 0 ? shown - 1 : 0) - exponent;
    snprintf(out, sizeof out, "%.*f", decimals > 1 ? decimals : 1, x);
    build_text(b, out);
}

static void build_integer(struct build *b, int64_t x)
{
    char digits[40];
    build_bytes(b, digits, (size_t)snprintf(digits, sizeof digits, "%lld", (long long)x), false);
}

/* Appends 'a\n' of Python: double quotes where the text has single ones and no double ones. */
static void repr_string(struct build *b, const struct str *s)
{
    const bool other = s->n && memchr(s->at, '\'', s->n) && !memchr(s->at, '"', s->n);
    const char quote[2] = {other ? '"' : '\'', 0};
    uint32_t hint = 0;
    build_text(b, quote);
    for (uint32_t i = 0; i < s->n;) {
        uint32_t c;
        char escape[16] = "";
        const int n = utf8_next(s->at + i, &c);
        const bool data = str_is_data(s, i, &hint);
        if (c == '\n' || c == '\r' || c == '\t')
            snprintf(escape, sizeof escape, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
        else if (c == (unsigned char)quote[0] || c == '\\') snprintf(escape, sizeof escape, "\\%c", (int)c);
        else if (!python_is_printable(c))
            snprintf(escape, sizeof escape, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)c);
        if (escape[0]) build_bytes(b, escape, strlen(escape), data);
        else build_bytes(b, s->at + i, (size_t)n, data);
        i += (uint32_t)n;
    }
    build_text(b, quote);
}

static void build_repr(struct build *b, struct var v);

static void repr_elements(struct build *b, const struct seq *q, const char *open, const char *close)
{
    build_text(b, open);
    for (uint32_t i = 0; i < q->n; i++) {
        if (i) build_text(b, ", ");
        build_repr(b, q->at[i]);
    }
    build_text(b, close);
}

static void repr_dict(struct build *b, const struct dict *d)
{
    build_text(b, "{");
    for (uint32_t i = 0; i < d->n; i++) {
        if (i) build_text(b, ", ");
        build_repr(b, d->keys[i]);
        build_text(b, ": ");
        build_repr(b, d->values[i]);
    }
    build_text(b, "}");
}

/* Appends repr(v) of Python. */
static void build_repr(struct build *b, struct var v)
{
    enter(b->r);
    switch (v.kind) {
    case VAR_UNDEFINED: build_text(b, "Undefined"); break;
    case VAR_NONE: build_text(b, "None"); break;
    case VAR_BOOL: build_text(b, v.truth ? "True" : "False"); break;
    case VAR_INT: build_integer(b, v.i); break;
    case VAR_FLOAT: build_float(b, v.f); break;
    case VAR_STRING:
        if (v.markup) build_text(b, "Markup(");
        repr_string(b, v.s);
        if (v.markup) build_text(b, ")");
        break;
    case VAR_LIST: repr_elements(b, v.q, "[", "]"); break;
    case VAR_TUPLE: repr_elements(b, v.q, "(", v.q->n == 1 ? ",)" : ")"); break;
    case VAR_DICT: repr_dict(b, v.d); break;
    default: fail(b->r, "a %s cannot be printed", var_type(v));
    }
    leave(b->r);
}

void build_var(struct build *b, struct var v)
{
    if (v.kind == VAR_STRING) build_str(b, v.s);
    else if (v.kind != VAR_UNDEFINED) build_repr(b, v);
}

void build_escaped(struct build *b, const struct str *s)
{
    uint32_t hint = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        const char c = s->at[i];
        const char *as = c == '&'    ? "&amp;"
                         : c == '<'  ? "&lt;"
                         : c == '>'  ? "&gt;"
                         : c == '\'' ? "&#39;"
                         : c == '"'  ? "&#34;"
                                     : NULL;
        const bool data = str_is_data(s, i, &hint);
        if (as) build_bytes(b, as, strlen(as), data);
        else build_bytes(b, &c, 1, data);
    }
}

/* ---- JSON ---- */

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
        uint32_t c;
        const int n = utf8_next(text->at + i, &c);
        const bool data = str_is_data(text, i, &hint),
                   escape = c < 0x20 || c == '"' || c == '\\' || (c >= 0x7f && s->style->ascii);
        if (escape) json_escape(s->b, c, data);
        else build_bytes(s->b, text->at + i, (size_t)n, data);
        i += (uint32_t)n;
    }
    build_text(s->b, "\"");
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

/* Appends a key; one that is no string becomes a string. */
static void json_key(struct json_state *s, struct var key)
{
    if (key.kind == VAR_STRING) {
        json_string(s, key.s);
        return;
    }
    if (key.kind != VAR_NONE && !is_number(key))
        fail(s->b->r, "tojson: a %s cannot be a key", var_type(key));
    build_text(s->b, "\"");
    json_var(s, key);
    build_text(s->b, "\"");
}

static void json_dict(struct json_state *s, const struct dict *d)
{
    build_text(s->b, "{");
    s->depth++;
    for (uint32_t i = 0; i < d->n; i++) {
        if (i) build_str(s->b, s->style->item);
        json_line(s);
        json_key(s, d->keys[i]);
        build_str(s->b, s->style->key);
        json_var(s, d->values[i]);
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
    case VAR_FLOAT: build_repr(s->b, v); break;
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
