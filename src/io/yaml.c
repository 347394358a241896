/*
 * yaml.c: reading YAML, on libyaml. The only file that includes its header. Scalars and the writer
 * are in yaml_text.c.
 *
 * libyaml emits events; a recursive descent, bounded by VALUE_DEPTH, builds the tree. Aliases are
 * rejected, not expanded: without them a document's tree is never larger than its text, so no
 * small file can grow without bound.
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
