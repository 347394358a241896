/*
 * yaml.c: reading YAML, on libyaml. The only file that includes its header.
 *
 * libyaml emits events; a recursive descent, bounded by VALUE_DEPTH, builds the tree. Aliases are
 * rejected, not expanded: without them a document's tree is never larger than its text, so no
 * small file can grow without bound.
 *
 * Invariant: a number's text is a JSON number, for every spelling that YAML allows
 * (+1, 0x10, .5, 007), so one writer serves both formats.
 */
#include <errno.h>
#include <math.h>
#include <strings.h>
#include <yaml.h>

#include "io/file.h"
#include "io/yaml.h"

struct yaml_reader {
    yaml_parser_t parser;
    yaml_event_t event;
    bool has_event;       /* event owns memory of libyaml */
    const char *bytes;
    size_t n;
    struct bump *b;
    struct error *e;
};

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

/* ---- events ---- */

static uint32_t event_line(const struct yaml_reader *r)
{
    return (uint32_t)r->event.start_mark.line + 1;
}

static int fail_here(const struct yaml_reader *r, const char *what)
{
    return error_set(r->e, PL_USAGE, "line %u: %s", event_line(r), what);
}

/* Reports whether the line, counted from 0, is indented with a tab, which YAML does not allow. */
static bool tab_indents(const struct yaml_reader *r, size_t line)
{
    const char *at = r->bytes, *end = at + r->n;
    for (; line && at < end; at++) line -= *at == '\n';
    while (at < end && *at == ' ') at++;
    return at < end && *at == '\t';
}

/* Adds a hint: libyaml's own words say what its parser saw; a hint says what usually causes it. */
static const char *hint(const struct yaml_reader *r)
{
    const yaml_parser_t *p = &r->parser;
    if (tab_indents(r, p->problem_mark.line)) return ": the line is indented with a tab, use spaces";
    return p->context && strstr(p->context, "block") ? ": is it indented like the lines around it?" : "";
}

/* Reports libyaml's problem: with line and column for most, for bad bytes only with an offset. */
static int fail_parser(const struct yaml_reader *r)
{
    const yaml_parser_t *p = &r->parser;
    const char *problem = p->problem ? p->problem : "not YAML";
    if (p->error == YAML_MEMORY_ERROR) return error_set(r->e, PL_FAIL, "out of memory while reading YAML");
    if (p->error == YAML_READER_ERROR)
        return error_set(r->e, PL_USAGE, "byte %zu: %s", p->problem_offset, problem);
    return error_set(r->e, PL_USAGE, "line %zu, column %zu: %s%s%s%s", p->problem_mark.line + 1,
                     p->problem_mark.column + 1, problem, p->context ? ", " : "",
                     p->context ? p->context : "", hint(r));
}

static int event_next(struct yaml_reader *r)
{
    if (r->has_event) yaml_event_delete(&r->event);
    r->has_event = yaml_parser_parse(&r->parser, &r->event);
    return r->has_event ? PL_OK : fail_parser(r);
}

/* Anchors are rejected where they are set, so an alias never has a target. */
static int check_plain(const struct yaml_reader *r, const yaml_char_t *anchor, const yaml_char_t *tag)
{
    if (anchor) return fail_here(r, "anchors (&name) are not supported; write the value out where it is used");
    if (tag) return fail_here(r, "tags (!name) are not supported; plain values need none");
    return PL_OK;
}

static int check_event(const struct yaml_reader *r)
{
    const yaml_event_t *ev = &r->event;
    switch (ev->type) {
        case YAML_ALIAS_EVENT:
            return fail_here(r, "aliases (*name) are not supported; write the value out, or quote the text");
        case YAML_SCALAR_EVENT:
            if (memchr(ev->data.scalar.value, 0, ev->data.scalar.length)) return fail_here(r, "NUL character");
            return check_plain(r, ev->data.scalar.anchor, ev->data.scalar.tag);
        case YAML_SEQUENCE_START_EVENT:
            return check_plain(r, ev->data.sequence_start.anchor, ev->data.sequence_start.tag);
        case YAML_MAPPING_START_EVENT: return check_plain(r, ev->data.mapping_start.anchor, ev->data.mapping_start.tag);
        default: return PL_OK;
    }
}

/* ---- the tree; each function begins at the event that opens its value ---- */

static int read_value(struct yaml_reader *r, int depth, struct value **out);

static int read_scalar(struct yaml_reader *r, struct value **out)
{
    const char *s = (const char *)r->event.data.scalar.value;
    bool plain = r->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    *out = plain ? yaml_scalar(r->b, s) : value_string(r->b, s);
    if ((*out)->kind == VALUE_NUMBER && isinf((*out)->number) && !strstr(s, "inf") && !strstr(s, "Inf") &&
        !strstr(s, "INF"))
        return fail_here(r, "the number is beyond the range of a double");
    return PL_OK;
}

static int read_list(struct yaml_reader *r, int depth, struct value *list)
{
    for (;;) {
        struct value *child = NULL;
        if (event_next(r)) return r->e->code;
        if (r->event.type == YAML_SEQUENCE_END_EVENT) return PL_OK;
        if (read_value(r, depth + 1, &child)) return r->e->code;
        value_append(r->b, list, child);
    }
}

/* Reads the key at the current event, checked and copied. */
static int read_key(struct yaml_reader *r, const struct value *map, const char **key)
{
    if (check_event(r)) return r->e->code;
    if (r->event.type != YAML_SCALAR_EVENT) return fail_here(r, "the key is a list or a map; expected a name");
    const char *s = (const char *)r->event.data.scalar.value;
    if (!*s && r->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE) return fail_here(r, "empty key");
    const struct value *before = value_get(map, s);
    if (before)
        return error_set(r->e, PL_USAGE, "line %u: the key \"%.200s\" occurs twice in one map (first on line %u)",
                         event_line(r), s, before->line);
    *key = bump_string(r->b, s);
    return PL_OK;
}

static int read_map(struct yaml_reader *r, int depth, struct value *map)
{
    for (;;) {
        struct value *child = NULL;
        const char *key = NULL;
        if (event_next(r)) return r->e->code;
        if (r->event.type == YAML_MAPPING_END_EVENT) return PL_OK;
        if (read_key(r, map, &key)) return r->e->code;
        uint32_t line = event_line(r);
        if (event_next(r) || read_value(r, depth + 1, &child)) return r->e->code;
        child->line = line; /* the key's line: a block value starts below it */
        value_put(r->b, map, key, child);
    }
}

static int read_value(struct yaml_reader *r, int depth, struct value **out)
{
    if (check_event(r)) return r->e->code;
    uint32_t line = event_line(r);
    int rc;
    if (r->event.type == YAML_SCALAR_EVENT) {
        rc = read_scalar(r, out);
    } else {
        bool is_map = r->event.type == YAML_MAPPING_START_EVENT;
        CHECK(is_map || r->event.type == YAML_SEQUENCE_START_EVENT, "unexpected event of type %d", (int)r->event.type);
        if (depth >= VALUE_DEPTH) return fail_here(r, "nested more than 128 deep");
        *out = value_new(r->b, is_map ? VALUE_MAP : VALUE_LIST);
        rc = is_map ? read_map(r, depth, *out) : read_list(r, depth, *out);
    }
    if (!rc) (*out)->line = line;
    return rc;
}

static int read_document(struct yaml_reader *r, struct value **out)
{
    *out = value_new(r->b, VALUE_NULL);
    if (event_next(r) || event_next(r)) return r->e->code; /* the stream's start, and the first event after it */
    if (r->event.type == YAML_STREAM_END_EVENT) return PL_OK;
    if (event_next(r) || read_value(r, 0, out)) return r->e->code;
    if (event_next(r) || event_next(r)) return r->e->code; /* the document's end, and the event after it */
    if (r->event.type != YAML_STREAM_END_EVENT) return fail_here(r, "the file has a second document; expected one");
    return PL_OK;
}

int yaml_parse(const char *bytes, size_t n, struct bump *b, struct value **out, struct error *e)
{
    struct yaml_reader r = {.b = b, .e = e, .bytes = bytes, .n = n};
    if (!yaml_parser_initialize(&r.parser)) return error_set(e, PL_FAIL, "out of memory while reading YAML");
    yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)bytes, n);
    int rc = read_document(&r, out);
    if (r.has_event) yaml_event_delete(&r.event);
    yaml_parser_delete(&r.parser);
    return rc;
}

int yaml_read_file(const char *path, uint64_t limit, struct bump *b, struct value **out, struct error *e)
{
    char *bytes;
    size_t n;
    if (file_read(path, limit, &bytes, &n, e)) return e->code;
    int rc = yaml_parse(bytes, n, b, out, e);
    mem_free(bytes);
    return rc ? error_prepend(e, "%s", path) : PL_OK;
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
