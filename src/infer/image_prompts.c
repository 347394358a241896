/*
 * image_prompts.c: see many.h.
 */
#include "infer/many.h"

#include <float.h>
#include <math.h>

#include "data/formats/csv.h"
#include "data/images/image.h"
#include "io/file.h"
#include "io/json.h"

enum { FILE_MOST = 1 << 30 };

void image_prompts_free(struct image_prompts *p)
{
    vec_free(&p->all);
    bump_free(&p->memory);
}

/* Adds a point. There is room for a power of two of them: the next one doubles it. */
static void add_point(struct image_prompts *p, struct image_prompt *q, const float at[2], int label)
{
    if (!(q->n & (q->n - 1))) {
        const size_t room = q->n ? 2 * (size_t)q->n : 1;
        float(*points)[2] = bump_alloc(&p->memory, room * sizeof *points);
        int *labels = bump_alloc(&p->memory, room * sizeof *labels);
        if (q->n) memcpy(points, q->points, q->n * sizeof *points), memcpy(labels, q->labels, q->n * sizeof *labels);
        q->points = points, q->labels = labels;
    }
    memcpy(q->points[q->n], at, sizeof *q->points);
    q->labels[q->n++] = label;
}

/* --- words of a command ---------------------------------------------------------------------- */

/* Parses "1,2.5,3", at most `room` numbers; returns their count, or 0 for anything else. */
static int parse_numbers(const char *s, float *out, int room)
{
    for (int n = 0; n < room;) {
        char *end;
        out[n] = strtof(s, &end);
        if (end == s || !isfinite(out[n])) return 0;
        n++;
        if (!*end) return n;
        if (*end != ',') return 0;
        s = end + 1;
    }
    return 0;
}

static bool inside(const struct image *image, const float at[2])
{
    return !image || (at[0] >= 0 && at[1] >= 0 && at[0] <= (float)image->width && at[1] <= (float)image->height);
}

static int outside_error(const struct image *image, const char *path, const char *option, const char *given,
                         struct error *e)
{
    return error_set(e, PL_USAGE, "%s %s lies outside of the image: %s has %u x %u pixels, with 0,0 at the upper left",
                     option, given, path, image->width, image->height);
}

int image_prompt_parse(struct image_prompt *q, const struct names *points, const char *box, const struct image *image,
                       const char *path, struct error *e)
{
    *q = (struct image_prompt){.id = "", .category = -1, .image_id = -1, .n = points->n, .box = box};
    q->points = mem_alloc((q->n + 1) * sizeof *q->points);
    q->labels = mem_alloc((q->n + 1) * sizeof *q->labels);
    if (box && parse_numbers(box, q->corners, 4) != 4)
        return error_set(e, PL_USAGE, "--box %s: expected X0,Y0,X1,Y1 in pixels", box);
    if (box && !(q->corners[0] < q->corners[2] && q->corners[1] < q->corners[3]))
        return error_set(e, PL_USAGE, "--box %s is empty: X0,Y0 is the upper left corner, X1,Y1 the lower right", box);
    if (box && !(inside(image, q->corners) && inside(image, q->corners + 2)))
        return outside_error(image, path, "--box", box, e);
    for (uint32_t i = 0; i < q->n; i++) {
        float x[3] = {0, 0, 1};
        if (parse_numbers(points->at[i], x, 3) < 2 || (x[2] != 0 && x[2] != 1))
            return error_set(e, PL_USAGE,
                             "--point %s: expected X,Y or X,Y,LABEL: pixels, and the label 1 (foreground, the default) "
                             "or 0 (background)",
                             points->at[i]);
        memcpy(q->points[i], x, sizeof *q->points);
        q->labels[i] = x[2] != 0;
        if (!inside(image, x)) return outside_error(image, path, "--point", points->at[i], e);
    }
    return PL_OK;
}

/* --- CSV ------------------------------------------------------------------------------------- */

enum column { IMAGE, ID, X0, Y0, X1, Y1, X, Y, LABEL, CATEGORY, COLUMNS };
static const char *const columns[COLUMNS] = {"image", "id", "x0", "y0", "x1", "y1", "x", "y", "label", "category"};

static const char *field(const struct csv *c, const int at[COLUMNS], enum column k)
{
    return at[k] < 0 || (uint32_t)at[k] >= c->n ? "" : c->fields[at[k]];
}

static int number(const struct csv *c, const int at[COLUMNS], enum column k, float *to, struct error *e)
{
    const char *s = field(c, at, k);
    char *end;
    *to = strtof(s, &end);
    if (end != s && !*end && isfinite(*to)) return PL_OK;
    return error_set(e, PL_USAGE, "line %u: %s is \"%.40s\", expected a number", c->line, columns[k], s);
}

static int read_header(struct csv *c, int at[COLUMNS], struct error *e)
{
    bool more;
    if (csv_next(c, &more, e)) return e->code;
    for (int k = 0; k < COLUMNS; k++) at[k] = more ? csv_column(c, columns[k]) : -1;
    if (more && at[IMAGE] < 0) at[IMAGE] = csv_usual_column(c, CSV_IMAGE);
    if (more && at[IMAGE] < 0) at[IMAGE] = csv_column(c, "frame"); /* of a video */
    const bool box = at[X0] >= 0 && at[Y0] >= 0 && at[X1] >= 0 && at[Y1] >= 0, point = at[X] >= 0 && at[Y] >= 0;
    if (at[IMAGE] >= 0 && (box || point)) return PL_OK;
    return error_set(e, PL_USAGE,
                     "the header has no columns for prompts; expected image and x0,y0,x1,y1 for boxes or x,y (and "
                     "label) for points");
}

static int read_row(struct image_prompts *p, const struct csv *c, const int at[COLUMNS], struct image_prompt *q,
                    struct error *e)
{
    float xy[2], label = 1;
    char *end;
    *q = (struct image_prompt){.image = bump_string(&p->memory, field(c, at, IMAGE)),
                               .id = bump_string(&p->memory, field(c, at, ID)),
                               .category = -1,
                               .image_id = -1,
                               .row = c->line};
    if (!*q->image) return error_set(e, PL_USAGE, "line %u: no image is named", c->line);
    if (*field(c, at, CATEGORY)) {
        q->category = strtoll(field(c, at, CATEGORY), &end, 10);
        if (*end || q->category < 0)
            return error_set(e, PL_USAGE, "line %u: category is \"%.40s\", expected a whole number", c->line,
                             field(c, at, CATEGORY));
    }
    if (*field(c, at, X0)) {
        q->box = true;
        for (int k = 0; k < 4; k++)
            if (number(c, at, (enum column)(X0 + k), &q->corners[k], e)) return e->code;
    }
    if (*field(c, at, X)) {
        if (number(c, at, X, &xy[0], e) || number(c, at, Y, &xy[1], e)) return e->code;
        if (*field(c, at, LABEL) && number(c, at, LABEL, &label, e)) return e->code;
        if (label != 0 && label != 1)
            return error_set(e, PL_USAGE, "line %u: label is %g, expected 1 (foreground) or 0 (background)", c->line,
                             (double)label);
        add_point(p, q, xy, label != 0);
    }
    return q->box || q->n ? PL_OK : error_set(e, PL_USAGE, "line %u: it has neither a box nor a point", c->line);
}

static int read_csv(struct image_prompts *p, char *text, size_t n, struct error *e)
{
    struct csv c;
    int at[COLUMNS];
    bool more = true;
    csv_begin(&c, text, n);
    int rc = read_header(&c, at, e);
    while (!rc && !(rc = csv_next(&c, &more, e)) && more) {
        struct image_prompt q;
        rc = read_row(p, &c, at, &q, e);
        if (!rc) vec_push(&p->all, q);
    }
    return rc;
}

static int by_image(const void *a, const void *b)
{
    const struct image_prompt *x = a, *y = b;
    const int order = strcmp(x->image, y->image);
    return order ? order : (x->row > y->row) - (x->row < y->row);
}

/* Merges rows of the same image and id to one prompt, at the first of them. They may repeat its
 * box. */
static int merge(struct image_prompts *p, struct error *e)
{
    uint32_t kept = 0, first = 0; /* first: prompt of the same image */
    for (uint32_t i = 0; i < p->all.n; i++) {
        struct image_prompt *q = &p->all.at[i];
        if (!kept || strcmp(p->all.at[kept - 1].image, q->image)) first = kept;
        uint32_t same = first;
        while (same < kept && (!*q->id || strcmp(p->all.at[same].id, q->id))) same++;
        if (same == kept) {
            p->all.at[kept++] = *q;
            continue;
        }
        struct image_prompt *to = &p->all.at[same];
        for (uint32_t k = 0; k < q->n; k++) add_point(p, to, q->points[k], q->labels[k]);
        if (!q->box) continue;
        if (to->box && memcmp(to->corners, q->corners, sizeof to->corners))
            return error_set(e, PL_USAGE, "%.200s has two boxes with the id %.40s; give each box an id of its own",
                             to->image, to->id);
        to->box = true;
        memcpy(to->corners, q->corners, sizeof to->corners);
    }
    p->all.n = kept;
    return PL_OK;
}

/* --- COCO ------------------------------------------------------------------------------------- */

struct named_image {
    int64_t id;
    const char *name;
};

static int by_id(const void *a, const void *b)
{
    const struct named_image *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

static int read_box(const struct value *box, float to[4], struct error *e)
{
    double x[4];
    if (value_as_list(box, "bbox", e)) return e->code;
    if (box->count != 4)
        return error_set(e, PL_USAGE, "bbox has %u numbers, expected 4: x, y, width, height", box->count);
    for (uint32_t k = 0; k < 4; k++)
        if (value_as_number(value_at(box, k), "bbox", &x[k], e)) return e->code;
    x[2] += x[0], x[3] += x[1];
    for (uint32_t k = 0; k < 4; k++) {
        if (!(fabs(x[k]) <= FLT_MAX))
            return error_set(e, PL_USAGE, "bbox has a corner at %g, which no image has", x[k]);
        to[k] = (float)x[k];
    }
    return PL_OK;
}

static int read_annotation(struct image_prompts *p, const struct value *v, const struct named_image *images, uint32_t n,
                           uint32_t row, struct error *e)
{
    struct image_prompt q = {.row = row, .box = true, .category = -1};
    int64_t id = row;
    if (value_as_int(value_get(v, "image_id"), "image_id", &q.image_id, e) || value_opt_int(v, "id", &id, e) ||
        value_opt_int(v, "category_id", &q.category, e) || read_box(value_get(v, "bbox"), q.corners, e))
        return e->code;
    const struct named_image *image =
        n ? bsearch(&(struct named_image){.id = q.image_id}, images, n, sizeof *images, by_id) : NULL;
    if (!image) return error_set(e, PL_USAGE, "no image has the id %lld", (long long)q.image_id);
    q.image = image->name;
    q.id = bump_format(&p->memory, "%lld", (long long)id);
    vec_push(&p->all, q);
    return PL_OK;
}

static int read_coco(struct image_prompts *p, const char *text, size_t bytes, struct error *e)
{
    struct value *root;
    if (json_parse(text, bytes, &p->memory, &root, e)) return e->code;
    const struct value *images = value_get(root, "images"), *annotations = value_get(root, "annotations");
    if (value_as_list(images, "images", e) || value_as_list(annotations, "annotations", e)) return e->code;
    struct named_image *list = mem_alloc((images->count + 1) * sizeof *list);
    int rc = PL_OK;
    for (uint32_t i = 0; i < images->count && !rc; i++) {
        rc = value_as_int(value_get(images->items[i], "id"), "id", &list[i].id, e);
        if (!rc) rc = value_as_string(value_get(images->items[i], "file_name"), "file_name", &list[i].name, e);
        if (!rc && !*list[i].name) rc = error_set(e, PL_USAGE, "file_name is empty");
        if (rc) error_prepend(e, "images[%u]", i);
    }
    if (!rc && images->count) qsort(list, images->count, sizeof *list, by_id);
    for (uint32_t i = 0; i < annotations->count && !rc; i++) {
        rc = read_annotation(p, annotations->items[i], list, images->count, i, e);
        if (rc) error_prepend(e, "annotations[%u]", i);
    }
    mem_free(list);
    return rc;
}

/* --- both ------------------------------------------------------------------------------------- */

int image_prompts_parse(struct image_prompts *p, char *text, size_t n, bool json, struct error *e)
{
    *p = (struct image_prompts){0};
    int rc = json ? read_coco(p, text, n, e) : read_csv(p, text, n, e);
    if (!rc && !p->all.n) rc = error_set(e, PL_USAGE, "it has no prompts");
    if (!rc) qsort(p->all.at, p->all.n, sizeof *p->all.at, by_image), rc = merge(p, e);
    if (rc) image_prompts_free(p);
    return rc;
}

int image_prompts_read(struct image_prompts *p, const char *path, struct error *e)
{
    char *bytes;
    size_t n;
    TRY(file_read(path, FILE_MOST, &bytes, &n, e));
    int rc = image_prompts_parse(p, bytes, n, path_has_ending(path, ".json"), e);
    mem_free(bytes);
    return rc ? error_prepend(e, "%s", path) : PL_OK;
}
