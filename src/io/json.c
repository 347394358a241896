/*
 * json.c: reading and writing JSON. A scan passes over the bytes first (json_scan.c), then the tree
 * is made (json_tree.c).
 */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>

#include "io/file.h"
#include "io/json_scan.h"

int json_parse(const char *bytes, size_t n, struct bump *b, struct value **out, struct error *e)
{
    return json_parse_within(bytes, n, UINT64_MAX, b, out, e);
}

int json_parse_within(const char *bytes, size_t n, uint64_t most, struct bump *b, struct value **out, struct error *e)
{
    if (n >= 3 && !memcmp(bytes, "\xef\xbb\xbf", 3)) bytes += 3, n -= 3; /* a byte order mark */
    char *text = mem_alloc(n + 1);
    if (n) memcpy(text, bytes, n);
    struct json_scan s = {.begin = text, .at = text, .end = text + n, .most = most, .e = e};
    int rc = json_scan_tokens(&s, false);
    if (!rc) rc = json_tree(&s, b, out);
    vec_free(&s.numbers);
    mem_free(text);
    return rc;
}

static void skip_blanks(struct json_scan *s)
{
    while (s->at < s->end && *s->at && strchr(" \t\r\n", *s->at)) s->at++;
}

/* Parses the member that begins at s->at, as a map of its own, and moves on to its end. */
static int parse_member(struct json_scan *s, json_member *each, void *user)
{
    struct text map = {0};
    struct bump b = {0};
    struct value *root;
    const char *from = s->at;
    s->values = 0, s->numbers.n = 0;
    int rc = json_scan_tokens(s, true);
    if (!rc && s->at == s->end) rc = json_fail_at(s, s->end, "the text ends too early");
    if (rc) return rc;
    text_append(&map, "{", 1);
    text_append(&map, from, (size_t)(s->at - from));
    text_append(&map, "}", 1);
    rc = json_parse(map.at, map.n, &b, &root, s->e);
    if (!rc && root->count != 1) rc = json_fail_at(s, s->at, "expected a member of the map before this");
    if (!rc) rc = each(user, root->items[0], s->e);
    text_free(&map);
    bump_free(&b);
    return rc;
}

int json_each(const char *bytes, size_t n, uint64_t most, json_member *each, void *user, struct error *e)
{
    struct json_scan s = {.begin = bytes, .at = bytes, .end = bytes + n, .most = most, .e = e};
    int rc = PL_OK;
    skip_blanks(&s);
    if (s.at == s.end) return json_fail_at(&s, s.end, "the text ends too early");
    if (*s.at++ != '{') return json_fail_at(&s, s.at - 1, "expected a map, {...}");
    skip_blanks(&s);
    if (s.at < s.end && *s.at == '}') s.at++;
    else
        do rc = parse_member(&s, each, user);
        while (!rc && *s.at++ == ',');
    vec_free(&s.numbers);
    skip_blanks(&s);
    return rc || s.at == s.end ? rc : json_fail_at(&s, s.at, "unexpected text after the JSON value");
}

int json_read_file(const char *path, uint64_t limit, struct bump *b, struct value **out, struct error *e)
{
    char *bytes;
    size_t n;
    if (file_read(path, limit, &bytes, &n, e)) return e->code;
    int rc = json_parse(bytes, n, b, out, e);
    mem_free(bytes);
    return rc ? error_prepend(e, "%s", path) : PL_OK;
}

/* ---- Writing ----
 *
 * writing JSON to a text.
 *
 * Invariant: the text so far is a prefix of a valid document. The writer adds commas, line
 * breaks and indentation. A key is given inside maps and only there.
 */

static bool is_plain(uint32_t code) { return code >= 0x20 && code != 0x7f; }
static void write_quoted(struct text *out, const char *s, size_t n) { value_quote(out, s, n, is_plain, "\\u%04x"); }

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
