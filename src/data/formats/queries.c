/*
 * queries.c: see queries.h.
 */
#include "data/formats/queries.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <strings.h>

#include "data/formats/csv.h"
#include "io/file.h"
#include "io/json.h"
#include "base/progress.h"
#include "data/loader.h"
#include "text/tokenizer/tokenizer.h"

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

/* Returns a string, or a whole number as text; NULL: something else. */
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
    TRY(file_read(path, FILE_MOST, &text, &n, e));
    int rc = queries_parse(q, text, n, path, e);
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

/* ---- A set of queries ---- */

/* A query by the key of its image. */
struct keyed {
    const char *key;
    uint32_t query;
};

static int by_key(const void *pa, const void *pb)
{
    const struct keyed *a = pa, *b = pb;
    const int order = strcmp(a->key, b->key);
    return order ? order : a->query < b->query ? -1 : a->query > b->query;
}

struct grouping {
    struct query_set *s;
    const struct queries *q;
    const struct query_set_options *o;
    struct dataset *d;
    struct keyed *keys;         /* in order */
    VEC(uint32_t) images;       /* of each sample: its number in the dataset's files */
    struct mask *masks;         /* [LOADER_RECORDS] of the current image */
    char *scratch;
    struct token_list tokens;
    uint64_t matched;
};

/* Returns the first query with a key that is not before `key`. */
static uint32_t lower_bound(const struct grouping *g, const char *key)
{
    uint32_t low = 0, high = g->q->list.n;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (strcmp(g->keys[middle].key, key) < 0) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* --- tokens -------------------------------------------------------------------------------- */

static int encode(struct grouping *g, const struct mask_query *q, struct error *e)
{
    const size_t n = strlen(q->text);
    g->tokens.n = 0;
    if (g->o->tokenizer)
        return tokenizer_encode(g->o->tokenizer, q->text, n, &(struct byte_range){0, (uint32_t)n}, 1, true, &g->tokens,
                                e);
    for (size_t i = 0; i < n; i++) vec_push(&g->tokens, ((struct token){.id = (uint8_t)q->text[i]}));
    return PL_OK;
}

static int check_ids(const struct grouping *g, const struct mask_query *q, struct error *e)
{
    for (uint32_t i = 0; i < g->tokens.n; i++)
        if (g->tokens.at[i].id >= g->o->vocabulary)
            return error_set(e, PL_USAGE,
                             "query \"%.60s\": its token %u has the id %d, but the model's vocabulary has %lld ids",
                             q->text, i, g->tokens.at[i].id, (long long)g->o->vocabulary);
    return PL_OK;
}

/* --- samples ------------------------------------------------------------------------------- */

/* Appends the query that was encoded to the last sample, or to a new one if it is the first of the
 * image or does not fit. */
static void append(struct grouping *g, const struct mask_query *q, uint32_t image, bool *begun)
{
    struct query_set *s = g->s;
    if (*begun) {
        const uint32_t first = s->first.at[s->samples - 1];
        *begun = s->mask.n - first < g->o->queries &&
                 s->ids.n - s->token.at[first] + g->tokens.n <= (uint64_t)g->o->sequence;
    }
    if (!*begun) {
        vec_push(&s->first, s->mask.n);
        vec_push(&g->images, image);
        s->samples++;
    }
    *begun = true;
    vec_push(&s->mask, q->mask);
    vec_push(&s->token, s->ids.n);
    for (uint32_t i = 0; i < g->tokens.n; i++) vec_push(&s->ids, g->tokens.at[i].id);
}

static bool has_mask(const struct grouping *g, uint32_t n, int64_t id)
{
    for (uint32_t i = 0; i < n; i++)
        if (g->masks[i].id == id) return true;
    return false;
}

static void note_missing(struct query_set *s, const struct mask_query *q)
{
    if (!s->missing++)
        snprintf(s->such_as, sizeof s->such_as, "line %u: image %.100s has no mask %" PRId64, q->line, q->image,
                 q->mask);
}

/* Adds the queries from `at` on that are of image i. */
static int add_image(struct grouping *g, uint64_t i, const char *key, uint32_t at, struct error *e)
{
    struct dataset_masks found = {0};
    struct error unread;
    const bool readable = !dataset_masks(g->d, i, g->scratch, g->o->room, g->masks, LOADER_RECORDS, &found, &unread);
    const uint32_t image = g->d->chosen ? g->d->chosen[i] : (uint32_t)i;
    bool begun = false;
    int rc = PL_OK;
    for (; at < g->q->list.n && !strcmp(g->keys[at].key, key) && !rc; at++) {
        const struct mask_query *q = &g->q->list.at[g->keys[at].query];
        g->matched++;
        if (!readable) g->s->unreadable++;
        else if (!has_mask(g, found.n, q->mask)) note_missing(g->s, q);
        else if (!(rc = encode(g, q, e)) && !(rc = check_ids(g, q, e))) {
            if (g->tokens.n && g->tokens.n <= (uint64_t)g->o->sequence) append(g, q, image, &begun);
            else g->s->too_long++;
        }
        if (rc) error_prepend(e, "line %u", q->line);
    }
    return rc;
}

static int add_images(struct grouping *g, struct error *e)
{
    const uint64_t n = dataset_count(g->d);
    struct progress p;
    int rc = PL_OK;
    progress_begin(&p, "reading the masks of queries:", "images", n);
    for (uint64_t i = 0; i < n && !rc; i++) {
        char name[1024], key[1024];
        dataset_name(g->d, i, name, sizeof name);
        query_image_key(name, key, sizeof key);
        const uint32_t at = lower_bound(g, key);
        if (at < g->q->list.n && !strcmp(g->keys[at].key, key)) rc = add_image(g, i, key, at, e);
        progress_add(&p, 1);
    }
    progress_clear();
    return rc;
}

/* Restricts the dataset to the samples' images, in their order. */
static void restrict_to(struct dataset *d, const uint32_t *images, uint32_t n, uint64_t hash)
{
    mem_free(d->chosen);
    d->chosen = mem_copy(images, n * sizeof *images);
    d->n = n;
    d->fingerprint = hash_bytes(images, n * sizeof *images, d->fingerprint ^ hash);
}

static int none(const struct query_set *s, const struct queries *q, struct error *e)
{
    if (s->missing)
        return error_set(e, PL_USAGE, "no query can be used: %" PRIu64 " name a mask that does not exist (%s)",
                         s->missing, s->such_as);
    return error_set(e, PL_USAGE, "no query can be used: %" PRIu64
                     " of %u are of images that are not in the data (such as %.100s), %" PRIu64
                     " are longer than data.sequence", s->elsewhere, q->list.n, q->list.at[0].image, s->too_long);
}

int query_set_open(struct query_set *s, struct dataset *d, const struct queries *q, const struct query_set_options *o,
                   struct error *e)
{
    *s = (struct query_set){0};
    struct grouping g = {.s = s, .q = q, .o = o, .d = d, .keys = mem_alloc(q->list.n * sizeof *g.keys),
                         .masks = mem_alloc(LOADER_RECORDS * sizeof *g.masks), .scratch = mem_alloc(o->room)};
    struct bump names = {0};
    char key[1024];
    for (uint32_t i = 0; i < q->list.n; i++)
        g.keys[i] = (struct keyed){bump_string(&names, query_image_key(q->list.at[i].image, key, sizeof key)), i};
    qsort(g.keys, q->list.n, sizeof *g.keys, by_key);
    int rc = add_images(&g, e);
    s->elsewhere = q->list.n - g.matched;
    vec_push(&s->first, s->mask.n);
    vec_push(&s->token, s->ids.n);
    if (!rc && !s->samples) rc = none(s, q, e);
    if (!rc)
        restrict_to(d, g.images.at, s->samples, hash_bytes(s->ids.at, s->ids.n * sizeof *s->ids.at,
                               hash_bytes(s->mask.at, s->mask.n * sizeof *s->mask.at, 0)));
    bump_free(&names);
    vec_free(&g.images);
    token_list_free(&g.tokens);
    mem_free(g.keys);
    mem_free(g.masks);
    mem_free(g.scratch);
    return rc;
}

void query_set_close(struct query_set *s)
{
    vec_free(&s->first);
    vec_free(&s->mask);
    vec_free(&s->token);
    vec_free(&s->ids);
}

bool query_set_print_left(const struct query_set *s, struct text *out)
{
    const struct {
        uint64_t n;
        const char *why;
    } left[] = {{s->missing, "of a mask that does not exist"},
                {s->too_long, "longer than data.sequence"},
                {s->unreadable, "of images whose masks cannot be read"}};
    for (size_t i = 0; i < COUNT(left); i++)
        if (left[i].n)
            text_printf(out, "%s%" PRIu64 " %s %s%s%s%s", out->n ? ", " : "left out: ", left[i].n,
                        left[i].n == 1 ? "query" : "queries", left[i].why, i ? "" : " (", i ? "" : s->such_as,
                        i ? "" : ")");
    return out->n;
}

uint32_t query_set_row(const struct query_set *s, uint32_t sample, int64_t T, uint32_t Q, int32_t *ids,
                       int32_t *positions, int32_t (*ranges)[2], int32_t *last)
{
    const uint32_t from = s->first.at[sample], n = s->first.at[sample + 1] - from;
    int32_t at = 0;
    for (uint32_t q = 0; q < Q; q++) {
        const int32_t begin = at;
        for (uint32_t k = q < n ? s->token.at[from + q] : 0, end = q < n ? s->token.at[from + q + 1] : 0; k < end;
             k++, at++) {
            ids[at] = s->ids.at[k];
            positions[at] = at - begin;
            ranges[at][0] = begin;
            ranges[at][1] = at + 1;
        }
        last[q] = q < n ? at - 1 : -1;
    }
    for (int64_t i = at; i < T; i++) ids[i] = positions[i] = ranges[i][0] = ranges[i][1] = 0;
    return (uint32_t)at;
}
