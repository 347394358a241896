/*
 * queries.c: see queries.h.
 */
#include "data/formats/queries.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "data/formats/csv.h"
#include "io/file.h"
#include "io/json.h"

enum { FIELD_IMAGE, FIELD_TEXT, FIELD_MASK, FIELDS };
#define FILE_MOST (1ull << 30)

static const char *const usual[FIELDS][8] = {
    {"image", "image_id", "file", "file_name", "image_path", NULL},
    {"query", "text", "caption", "expression", "sentence", "phrase", NULL},
    {"mask_id", "mask", "target", "target_mask", "annotation_id", "ann_id", NULL},
};
static const char *const words[FIELDS] = {"image", "text (query, caption, ...)", "mask (mask_id, annotation_id, ...)"};

static int no_field(const char *path, uint32_t line, int field, struct error *e)
{
    return error_set(e, PL_USAGE, "%s:%u: no %s; a query has image, query and mask_id", path, line, words[field]);
}

static int add(struct queries *q, const char *path, uint32_t line, const char *image, const char *text,
               const char *mask, struct error *e)
{
    const char *const fields[FIELDS] = {image, text, mask};
    for (int i = 0; i < FIELDS; i++)
        if (!fields[i][strspn(fields[i], " \t\r\n")]) return no_field(path, line, i, e);
    char *end;
    errno = 0;
    const long long id = strtoll(mask, &end, 10);
    if (errno || end == mask || end[strspn(end, " \t\r\n")])
        return error_set(e, PL_USAGE, "%s:%u: the mask is \"%.60s\", expected the id of an annotation, a whole number",
                         path, line, mask);
    vec_push(&q->list, ((struct mask_query){bump_string(&q->memory, image), bump_string(&q->memory, text), id, line}));
    return PL_OK;
}

/* --- tables -------------------------------------------------------------------------------- */

static int find_columns(const struct csv *c, const char *path, int at[FIELDS], struct error *e)
{
    for (int f = 0; f < FIELDS; f++) {
        at[f] = -1;
        for (int k = 0; usual[f][k] && at[f] < 0; k++)
            for (uint32_t i = 0; i < c->n && at[f] < 0; i++)
                if (!strcasecmp(c->fields[i], usual[f][k])) at[f] = (int)i;
        if (at[f] < 0)
            return error_set(e, PL_USAGE,
                             "%s: its first line names no column for the %s; expected image, query and mask_id", path,
                             words[f]);
    }
    return PL_OK;
}

static int parse_table(struct queries *q, char *text, size_t n, const char *path, struct error *e)
{
    struct csv c;
    bool more;
    int at[FIELDS];
    csv_begin(&c, text, n);
    int rc = csv_next(&c, &more, e);
    if (rc) return error_prepend(e, "%s", path);
    if (!more)
        return error_set(e, PL_USAGE, "%s: it is empty; expected a table or JSON with image, query and mask_id", path);
    rc = find_columns(&c, path, at, e);
    while (!rc) {
        if (csv_next(&c, &more, e)) return error_prepend(e, "%s", path);
        if (!more) break;
        const char *fields[FIELDS];
        for (int f = 0; f < FIELDS && !rc; f++) {
            if ((uint32_t)at[f] >= c.n) rc = no_field(path, c.line, f, e);
            else fields[f] = c.fields[at[f]];
        }
        if (!rc) rc = add(q, path, c.line, fields[FIELD_IMAGE], fields[FIELD_TEXT], fields[FIELD_MASK], e);
    }
    return rc;
}

/* --- JSON ---------------------------------------------------------------------------------- */

/* A string, or a whole number as text; NULL: something else. */
static const char *as_text(const struct value *v, char out[32])
{
    int64_t x;
    struct error ignored;
    if (v->kind == VALUE_STRING) return v->text;
    if (value_as_int(v, "", &x, &ignored)) return NULL;
    snprintf(out, 32, "%lld", (long long)x);
    return out;
}

static int add_object(struct queries *q, const struct value *map, const char *path, uint32_t line, struct error *e)
{
    char number[FIELDS][32];
    const char *fields[FIELDS];
    if (map->kind != VALUE_MAP)
        return error_set(e, PL_USAGE, "%s:%u: expected an object with image, query and mask_id", path, line);
    for (int f = 0; f < FIELDS; f++) {
        const struct value *v = NULL;
        for (int k = 0; usual[f][k] && !v; k++) v = value_get(map, usual[f][k]);
        if (!v || !(fields[f] = as_text(v, number[f]))) return no_field(path, line, f, e);
    }
    return add(q, path, line, fields[FIELD_IMAGE], fields[FIELD_TEXT], fields[FIELD_MASK], e);
}

static int parse_list(struct queries *q, const char *text, size_t n, const char *path, struct error *e)
{
    struct bump b = {0};
    struct value *root;
    int rc = json_parse(text, n, &b, &root, e);
    if (rc) error_prepend(e, "%s", path);
    for (uint32_t i = 0; !rc && i < root->count; i++) rc = add_object(q, value_at(root, i), path, i + 1, e);
    bump_free(&b);
    return rc;
}

static int parse_lines(struct queries *q, const char *text, size_t n, const char *path, struct error *e)
{
    uint32_t line = 1;
    int rc = PL_OK;
    for (const char *at = text, *end = text + n, *next; at < end && !rc; at = next, line++) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        struct bump b = {0};
        struct value *map;
        next = stop ? stop + 1 : end;
        if (!stop) stop = end;
        while (stop > at && isspace((unsigned char)stop[-1])) stop--;
        if (stop == at) continue;
        rc = json_parse(at, (size_t)(stop - at), &b, &map, e);
        if (rc) error_prepend(e, "%s:%u", path, line);
        else rc = add_object(q, map, path, line, e);
        bump_free(&b);
    }
    return rc;
}

/* --- the file ------------------------------------------------------------------------------ */

int queries_parse(struct queries *q, char *text, size_t n, const char *path, struct error *e)
{
    *q = (struct queries){0};
    size_t first = 0;
    while (first < n && isspace((unsigned char)text[first])) first++;
    const char kind = first < n ? text[first] : 0;
    int rc = kind == '['   ? parse_list(q, text, n, path, e)
             : kind == '{' ? parse_lines(q, text, n, path, e)
                           : parse_table(q, text, n, path, e);
    if (!rc && !q->list.n) rc = error_set(e, PL_USAGE, "%s: it has no queries", path);
    return rc;
}

int queries_read(struct queries *q, const char *path, struct error *e)
{
    char *text;
    size_t n;
    *q = (struct queries){0};
    int rc = file_read(path, FILE_MOST, &text, &n, e);
    if (rc) return rc;
    rc = queries_parse(q, text, n, path, e);
    mem_free(text);
    return rc;
}

void queries_free(struct queries *q)
{
    vec_free(&q->list);
    bump_free(&q->memory);
}

const char *query_image_key(const char *name, char *out, size_t room)
{
    static const char *const ends[] = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff"};
    const char *slash = strrchr(name, '/');
    if (slash) name = slash + 1;
    size_t n = strlen(name);
    for (size_t i = 0; i < COUNT(ends); i++) {
        const size_t k = strlen(ends[i]);
        if (n > k && !strcasecmp(name + n - k, ends[i])) {
            n -= k;
            break;
        }
    }
    if (n > 3 && !strncmp(name, "sa_", 3)) name += 3, n -= 3;
    if (strspn(name, "0123456789") >= n)
        while (n > 1 && *name == '0') name++, n--;
    snprintf(out, room, "%.*s", (int)n, name);
    return out;
}
