/*
 * json.c: reading JSON, on cJSON. The only file that includes its header.
 *
 * cJSON checks the structure, but it is lenient and loses digits. A scan therefore passes over
 * the bytes first. It sees only tokens. It rejects what cJSON would accept (control characters
 * as blanks, "01", raw line breaks in strings, invalid UTF-8, \u0000), bounds the nesting, and
 * records the position of each number:
 *
 *   bytes    {"a": [1, 18446744073709551615], "b": -2e3}
 *   numbers        ^  ^                            ^
 *
 * Invariant: numbers occur in the text in the order in which a walk over cJSON's
 * tree, parents first, visits them. So the walk that copies the tree takes the next recorded
 * number each time, and with it the exact digits.
 */
#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>

#include "io/file.h"
#include "io/json.h"

/* cJSON copies a number into a buffer of 64 bytes and would truncate a longer one. */
enum { NUMBER_LENGTH = 63 };
/* Bytes that a value or a key takes here, in cJSON's tree and in ours, beside its text. */
enum { VALUE_BYTES = 200 };

struct span {
    const char *at;
    size_t n;
};

struct json_scan {
    const char *begin, *at, *end;
    VEC(struct span) numbers;
    uint64_t values, most; /* values and keys so far; bytes that they may take */
    struct error *e;
};

/* Reports "line 3, column 14: ..." for the byte at `at`. */
static int fail_at(const struct json_scan *s, const char *at, const char *what)
{
    unsigned line = 1, column = 1;
    for (const char *p = s->begin; p < at; p++) {
        column++;
        if (*p == '\n') line++, column = 1;
    }
    return error_set(s->e, PL_USAGE, "line %u, column %u: %s", line, column, what);
}

static bool is_hex(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

/* Starts at the backslash. cJSON checks pairs of surrogates. */
static int scan_escape(struct json_scan *s)
{
    const char *start = s->at++;
    if (s->at == s->end) return fail_at(s, start, "the text ends inside a string");
    char c = *s->at++;
    if (!c || !strchr("\"\\/bfnrtu", c)) return fail_at(s, start, "unknown escape in a string");
    if (c != 'u') return PL_OK;
    for (int i = 0; i < 4; i++)
        if (s->end - s->at <= i || !is_hex(s->at[i]))
            return fail_at(s, start, "\\u needs four hexadecimal digits");
    if (!memcmp(s->at, "0000", 4)) return fail_at(s, start, "the string contains a NUL character");
    s->at += 4;
    return PL_OK;
}

/* Scans from the opening quote to just after the closing quote. */
static int scan_string(struct json_scan *s)
{
    const char *start = s->at++;
    while (s->at < s->end && *s->at != '"') {
        uint32_t code;
        if (*s->at == '\\') {
            if (scan_escape(s)) return s->e->code;
            continue;
        }
        int n = utf8_decode(s->at, (size_t)(s->end - s->at), &code);
        if (!n) return fail_at(s, s->at, "the string is not UTF-8");
        if (code < 0x20) return fail_at(s, s->at, "control character in a string; write it as an escape");
        s->at += n;
    }
    if (s->at == s->end) return fail_at(s, start, "the string has no closing quote");
    s->at++;
    return PL_OK;
}

static int scan_number(struct json_scan *s)
{
    struct span number = {s->at, 0};
    while (s->at < s->end && *s->at && strchr("0123456789+-.eE", *s->at)) s->at++;
    number.n = (size_t)(s->at - number.at);
    if (!number_is_json(number.at, number.n)) return fail_at(s, number.at, "malformed number");
    if (number.n > NUMBER_LENGTH) return fail_at(s, number.at, "the number has more than 63 characters");
    vec_push(&s->numbers, number);
    return PL_OK;
}

/* Scans true, false, null. The scan only separates their letters from the "e" of a number. */
static int scan_word(struct json_scan *s)
{
    static const char *const words[] = {"true", "false", "null"};
    size_t n = 0, left = (size_t)(s->end - s->at);
    while (n < left && ((s->at[n] >= 'a' && s->at[n] <= 'z') || (s->at[n] >= 'A' && s->at[n] <= 'Z'))) n++;
    for (size_t i = 0; i < COUNT(words); i++)
        if (strlen(words[i]) == n && !memcmp(words[i], s->at, n)) {
            s->at += n;
            return PL_OK;
        }
    return fail_at(s, s->at, "expected a value; words other than true, false, null need quotes");
}

/* Scans to the end, or with `member` to the comma or brace that ends a member of a map. */
static int scan_tokens(struct json_scan *s, bool member)
{
    int depth = 0;
    while (s->at < s->end) {
        char c = *s->at;
        int rc = PL_OK;
        if (member && !depth && (c == ',' || c == '}')) break;
        if (c == '"') rc = scan_string(s), s->values++;
        else if (c == '-' || (c >= '0' && c <= '9')) rc = scan_number(s), s->values++;
        else if (c && strchr(" \t\r\n:,{}[]", c)) {
            depth += (c == '{' || c == '[') - (c == '}' || c == ']');
            s->values += c == '{' || c == '[';
            if (depth > VALUE_DEPTH) rc = fail_at(s, s->at, "nested more than 128 deep");
            s->at++;
        } else rc = scan_word(s), s->values++;
        if (rc) return rc;
        if (s->values > s->most / VALUE_BYTES)
            return error_set(s->e, PL_USAGE, "its values take more than %llu MiB of memory",
                             (unsigned long long)(s->most >> 20));
    }
    return PL_OK;
}

/* ---- from the cJSON tree to struct value ---- */

struct walk {
    struct bump *b;
    const struct json_scan *scan;
    uint32_t next_number;
};

static int walk_value(struct walk *w, const cJSON *from, struct value **out);

static int walk_number(struct walk *w, struct value **out)
{
    CHECK(w->next_number < w->scan->numbers.n, "the text has fewer numbers than the tree");
    struct span s = w->scan->numbers.at[w->next_number++];
    *out = value_digits(w->b, s.at, s.n);
    if (isinf((*out)->number)) return fail_at(w->scan, s.at, "the number is beyond the range of a double");
    return PL_OK;
}

static int walk_children(struct walk *w, const cJSON *from, struct value *to)
{
    for (const cJSON *c = from->child; c; c = c->next) {
        struct value *child = NULL;
        if (to->kind == VALUE_MAP && value_get(to, c->string))
            return error_set(w->scan->e, PL_USAGE, "the key \"%.200s\" occurs twice in one map", c->string);
        if (walk_value(w, c, &child)) return w->scan->e->code;
        if (to->kind == VALUE_MAP) value_put(w->b, to, c->string, child);
        else value_append(w->b, to, child);
    }
    return PL_OK;
}

static int walk_value(struct walk *w, const cJSON *from, struct value **out)
{
    if (cJSON_IsNumber(from)) return walk_number(w, out);
    if (cJSON_IsNull(from)) *out = value_new(w->b, VALUE_NULL);
    else if (cJSON_IsBool(from)) *out = value_bool(w->b, cJSON_IsTrue(from));
    else if (cJSON_IsString(from)) *out = value_string(w->b, from->valuestring);
    else {
        *out = value_new(w->b, cJSON_IsObject(from) ? VALUE_MAP : VALUE_LIST);
        return walk_children(w, from, *out);
    }
    return PL_OK;
}

/* Makes cJSON end the process where memory is short, as all of our code does: it would report a
 * failed allocation as malformed JSON. */
static void set_hooks(void)
{
    cJSON_InitHooks(&(cJSON_Hooks){mem_alloc, mem_free});
}

/* Parses `text`, which is terminated. cJSON knows that, so its look-ahead stays in bounds. */
static int parse_text(struct json_scan *s, struct bump *b, struct value **out)
{
    static pthread_once_t hooks = PTHREAD_ONCE_INIT;
    if (scan_tokens(s, false)) return s->e->code;
    pthread_once(&hooks, set_hooks);
    const char *end = s->begin;
    cJSON *tree = cJSON_ParseWithLengthOpts(s->begin, (size_t)(s->end - s->begin) + 1, &end, 0);
    if (!tree) {
        if (end >= s->end) return fail_at(s, s->end, "the text ends too early");
        return fail_at(s, end, "expected a JSON value, or one of , : ] } before this");
    }
    int rc = PL_OK;
    for (; end < s->end && !rc; end++)
        if (!strchr(" \t\r\n", *end)) rc = fail_at(s, end, "unexpected text after the JSON value");
    if (!rc) {
        struct walk w = {b, s, 0};
        rc = walk_value(&w, tree, out);
    }
    cJSON_Delete(tree);
    return rc;
}

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
    int rc = parse_text(&s, b, out);
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
    int rc = scan_tokens(s, true);
    if (!rc && s->at == s->end) rc = fail_at(s, s->end, "the text ends too early");
    if (rc) return rc;
    text_append(&map, "{", 1);
    text_append(&map, from, (size_t)(s->at - from));
    text_append(&map, "}", 1);
    rc = json_parse(map.at, map.n, &b, &root, s->e);
    if (!rc && root->count != 1) rc = fail_at(s, s->at, "expected a member of the map before this");
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
    if (s.at == s.end) return fail_at(&s, s.end, "the text ends too early");
    if (*s.at++ != '{') return fail_at(&s, s.at - 1, "expected a map, {...}");
    skip_blanks(&s);
    if (s.at < s.end && *s.at == '}') s.at++;
    else
        do rc = parse_member(&s, each, user);
        while (!rc && *s.at++ == ',');
    vec_free(&s.numbers);
    skip_blanks(&s);
    return rc || s.at == s.end ? rc : fail_at(&s, s.at, "unexpected text after the JSON value");
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
