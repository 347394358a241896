/*
 * annotation.c: see annotation.h. The text is parsed in one pass. Each entry writes at most one
 * mask record, and no record is written beyond the caller's room.
 */
#include "data/masks/annotation.h"
#include "data/masks/rle.h"
#include "io/json.h"

#include <math.h>

const char *fault_text(enum data_fault f)
{
    static const char *const texts[FAULT_KINDS] = {
        [FAULT_NONE] = "no fault",
        [FAULT_READ] = "it cannot be read",
        [FAULT_OPEN] = "too many files are open",
        [FAULT_TOO_LARGE] = "it is larger than the buffers planned for it",
        [FAULT_SYNTAX] = "its annotations are malformed",
        [FAULT_SIZE] = "image and masks differ in size",
        [FAULT_SHAPE] = "a mask has an encoding that this format does not support",
        [FAULT_MANY] = "it has more masks than the buffers planned for it",
        [FAULT_NO_MASKS] = "it has no mask to train on",
        [FAULT_MASK] = "a mask cannot be decoded",
        [FAULT_IMAGE] = "the image cannot be decoded",
    };
    return f < FAULT_KINDS && texts[f] ? texts[f] : "it has an unknown fault";
}

static bool scan_size(struct scan *s, uint32_t *out)
{
    int64_t x;
    if (!scan_integer(s, &x)) return false;
    if (x < 1 || x > RLE_MAX_PIXELS) return scan_fail(s, "a size of 1 to 2^31 - 1");
    *out = (uint32_t)x;
    return true;
}

/* Scans {"size": [h, w], "counts": "text" or [runs]}. */
static bool scan_rle(struct scan *s, struct shape *shape)
{
    struct scan_key key;
    const char *at = NULL;
    size_t n = 0;
    enum rle_kind kind = RLE_JSON;
    for (bool first = scan_enter(s, '{'); scan_member(s, &first, &key);) {
        if (scan_is(&key, "size")) {
            bool one = scan_enter(s, '[');
            if (!scan_element(s, &one) || !scan_size(s, &shape->h) || !scan_element(s, &one) ||
                !scan_size(s, &shape->w) || scan_element(s, &one))
                return scan_fail(s, "a size of two numbers");
        } else if (scan_is(&key, "counts")) {
            bool list = scan_peek(s) == '[';
            if (!(list ? scan_span(s, &at, &n) : scan_text(s, &at, &n))) return false;
            kind = list ? RLE_LIST : RLE_JSON;
        } else {
            scan_skip(s);
        }
    }
    if (s->fault) return false;
    if (!at || !shape->h) return scan_fail(s, "a segmentation with size and counts");
    if (n > UINT32_MAX) return scan_fail(s, "shorter run lengths");
    shape->kind = SHAPE_RLE;
    shape->rle = (struct rle){.kind = kind, .h = shape->h, .w = shape->w, .at = at, .n = (uint32_t)n};
    return true;
}

static bool scan_shape(struct scan *s, struct shape *shape)
{
    if (scan_peek(s) == '{') return scan_rle(s, shape);
    if (scan_peek(s) == 'n') return scan_skip(s); /* null: no mask */
    if (scan_peek(s) != '[') return scan_fail(s, "run lengths {...} or polygons [...]");
    shape->kind = SHAPE_POLYGONS;
    return scan_span(s, &shape->polygons.at, &shape->polygons.n);
}

/* Scans [[x, y]]; only the first of several points is used. */
static bool scan_points(struct scan *s, float point[2])
{
    bool first = scan_enter(s, '[');
    if (scan_element(s, &first)) scan_numbers(s, point, 2);
    while (scan_element(s, &first)) scan_skip(s);
    return !s->fault;
}

static bool scan_field(struct scan *s, const struct scan_key *key, struct mask *m)
{
    int64_t category;
    if (scan_is(key, "segmentation")) return scan_shape(s, &m->shape);
    if (scan_is(key, "area")) return scan_number(s, &m->area);
    if (scan_is(key, "bbox")) return scan_numbers(s, m->box, 4);
    if (scan_is(key, "predicted_iou")) return scan_float(s, &m->predicted_iou);
    if (scan_is(key, "stability_score")) return scan_float(s, &m->stability);
    if (scan_is(key, "point_coords")) return scan_points(s, m->point);
    if (scan_is(key, "crop_box")) return scan_numbers(s, m->crop_box, 4);
    if (scan_is(key, "id")) return scan_integer(s, &m->id);
    if (scan_is(key, "image_id")) return scan_integer(s, &m->image);
    if (scan_is(key, "iscrowd")) return scan_bool(s, &m->crowd);
    if (!scan_is(key, "category_id")) return scan_skip(s);
    if (!scan_integer(s, &category)) return false;
    if (category < 0 || category > INT32_MAX) return scan_fail(s, "a category of 0 to 2^31 - 1");
    m->category = (int32_t)category;
    return true;
}

bool annotation_scan_mask(struct scan *s, struct mask *m)
{
    struct scan_key key;
    *m = (struct mask){.area = -1, .predicted_iou = 1, .stability = 1, .point = {NAN, NAN}};
    for (bool first = scan_enter(s, '{'); scan_member(s, &first, &key);)
        if (!scan_field(s, &key, m)) break;
    return !s->fault;
}

static bool scan_image(struct scan *s, struct annotation *a)
{
    struct scan_key key;
    for (bool first = scan_enter(s, '{'); scan_member(s, &first, &key);) {
        if (scan_is(&key, "width")) scan_size(s, &a->w);
        else if (scan_is(&key, "height")) scan_size(s, &a->h);
        else if (scan_is(&key, "image_id")) scan_integer(s, &a->id);
        else if (scan_is(&key, "file_name")) scan_text(s, &a->file_name, &a->file_name_n);
        else scan_skip(s);
    }
    return !s->fault;
}

/* Scans the masks; returns false with s->fault, or with *many when there is no room for the next
 * mask. */
static bool scan_masks(struct scan *s, struct annotation *a, struct mask *masks, uint32_t room, bool *many)
{
    for (bool first = scan_enter(s, '['); scan_element(s, &first);) {
        struct mask m;
        if (!annotation_scan_mask(s, &m)) return false;
        if (m.area == 0) {
            a->empty++;
            continue;
        }
        if (m.shape.kind == SHAPE_NONE) return scan_fail(s, "an annotation with a segmentation");
        if (a->masks == room) return *many = true, false;
        masks[a->masks++] = m;
    }
    return !s->fault;
}

static enum data_fault check_shapes(const struct annotation *a, const struct mask *masks, struct error *e)
{
    for (uint32_t i = 0; i < a->masks; i++) {
        const struct shape *shape = &masks[i].shape;
        if (shape->kind != SHAPE_RLE)
            return error_set(e, PL_USAGE,
                       "mask %lld is a list of polygons; expected run lengths (if this is COCO, set data.format: coco)",
                       (long long)masks[i].id), FAULT_SHAPE;
        if (shape->h != a->h || shape->w != a->w)
            return error_set(e, PL_USAGE, "mask %lld has %u x %u pixels (width x height), its image %u x %u",
                             (long long)masks[i].id, shape->w, shape->h, a->w, a->h), FAULT_SIZE;
    }
    return FAULT_NONE;
}

enum data_fault annotation_read(const char *text, size_t n, struct annotation *a, struct mask *masks, uint32_t room,
                                struct error *e)
{
    struct scan s = scan_begin(text, n);
    struct scan_key key;
    bool many = false, image = false, list = false;
    *a = (struct annotation){0};
    for (bool first = scan_enter(&s, '{'); !many && scan_member(&s, &first, &key);) {
        if (scan_is(&key, "image") && !image) image = scan_image(&s, a);
        else if (scan_is(&key, "annotations") && !list) list = scan_masks(&s, a, masks, room, &many);
        else scan_skip(&s);
    }
    if (many) return error_set(e, PL_USAGE, "more than %u masks", room), FAULT_MANY;
    if (!scan_finish(&s))
        return error_set(e, PL_USAGE, "byte %zu: expected %s", scan_offset(&s), s.fault), FAULT_SYNTAX;
    if (!image || !list || !a->w || !a->h)
        return error_set(e, PL_USAGE, "expected \"image\" with width and height, and \"annotations\""), FAULT_SYNTAX;
    if ((uint64_t)a->w * a->h > RLE_MAX_PIXELS)
        return error_set(e, PL_USAGE, "the image has %u x %u pixels", a->w, a->h), FAULT_SIZE;
    return check_shapes(a, masks, e);
}

/* ---- Writing ----
 *
 * Numbers are printed as Python prints them, as in
 * the files of SA-1B.
 */

/* ---- runs ---- */

struct longest_run {
    uint32_t from, longest, middle;
    bool set;
};

static void end_run(struct traced *t, struct longest_run *r, uint32_t at)
{
    uint32_t n = at - r->from;
    if (r->set) t->area += n;
    if (r->set && n > r->longest) r->longest = n, r->middle = r->from + n / 2;
    vec_push(&t->runs, n);
    r->from = at;
    r->set = !r->set;
}

static void extend_box(struct traced *t, uint32_t x, uint32_t y, bool *any)
{
    if (!*any) t->x0 = t->x1 = x, t->y0 = t->y1 = y, *any = true;
    if (x > t->x1) t->x1 = x;
    if (y < t->y0) t->y0 = y;
    if (y > t->y1) t->y1 = y;
}

/* Traces the runs of a region. A column's last run ends with the region, unless the region touches
 * the image's lower edge and the next column continues the run. */
void trace_runs(struct traced *t, uint32_t h, uint32_t w, uint32_t x0, uint32_t y0, uint32_t x1, uint32_t y1,
                trace_set *set, const void *of)
{
    struct longest_run r = {0};
    bool whole = y0 == 0 && y1 == h - 1, any = false;
    t->runs.n = t->area = 0;
    for (uint32_t x = x0; x <= x1; x++) {
        for (uint32_t y = y0; y <= y1; y++) {
            bool on = set(of, x, y);
            if (on) extend_box(t, x, y, &any);
            if (on != r.set) end_run(t, &r, x * h + y);
        }
        if (r.set && !(whole && x < x1)) end_run(t, &r, x * h + y1 + 1);
    }
    if (r.from < w * h) end_run(t, &r, w * h);
    t->point[0] = r.middle / h;
    t->point[1] = r.middle % h;
}

struct pixels {
    const uint8_t *at;
    uint32_t w;
};

static bool is_set(const void *of, uint32_t x, uint32_t y)
{
    const struct pixels *p = of;
    return p->at[(size_t)y * p->w + x];
}

void trace_bytes(struct traced *t, const uint8_t *mask, uint32_t w, uint32_t h)
{
    trace_runs(t, h, w, 0, 0, w - 1, h - 1, is_set, &(struct pixels){mask, w});
}

void trace_free(struct traced *t) { vec_free(&t->runs); }

void trace_put_runs(const struct traced *t, uint32_t w, uint32_t h, struct json_writer *to)
{
    size_t room = (size_t)t->runs.n * 7 + 1;
    char *counts = mem_alloc(room);
    rle_encode(t->runs.at, t->runs.n, counts, room - 1);
    json_begin_list(to, "size");
    json_put_uint(to, NULL, h);
    json_put_uint(to, NULL, w);
    json_end(to);
    json_put_string(to, "counts", counts);
    mem_free(counts);
}

void trace_put_box(const struct traced *t, struct json_writer *to)
{
    const bool any = t->area;
    json_begin_list(to, "bbox");
    json_put_uint(to, NULL, any ? t->x0 : 0);
    json_put_uint(to, NULL, any ? t->y0 : 0);
    json_put_uint(to, NULL, any ? t->x1 - t->x0 + 1 : 0);
    json_put_uint(to, NULL, any ? t->y1 - t->y0 + 1 : 0);
    json_end(to);
    json_put_uint(to, "area", t->area);
}

/* ---- text ---- */

/* Prints as many digits as parse to the same float, and a decimal point. */
static void print_number(struct text *out, double x)
{
    char s[40];
    snprintf(s, sizeof s, "%.9g", x);
    text_printf(out, strpbrk(s, ".en") ? "%s" : "%s.0", s);
}

static void print_list(struct text *out, const char *open, const double *x, int n, const char *close)
{
    text_printf(out, "%s", open);
    for (int k = 0; k < n; k++) {
        if (k) text_printf(out, ", ");
        print_number(out, x[k]);
    }
    text_printf(out, "%s", close);
}

static void print_counts(struct text *out, const struct traced *t)
{
    size_t room = (size_t)t->runs.n * 7 + 1;
    char *text = mem_alloc(room);
    size_t n = rle_encode(t->runs.at, t->runs.n, text, room);
    for (size_t k = 0; k < n; k++) text_append(out, text[k] == '\\' ? "\\\\" : text + k, text[k] == '\\' ? 2 : 1);
    mem_free(text);
}

void annotation_write_begin(struct text *out, int64_t image_id, uint32_t w, uint32_t h, const char *file_name)
{
    struct text quoted = {0};
    struct json_writer json = {.out = &quoted};
    json_put_string(&json, NULL, file_name);
    text_printf(
        out, "{\"image\": {\"image_id\": %lld, \"width\": %u, \"height\": %u, \"file_name\": %s}, \"annotations\": [",
        (long long)image_id, w, h, quoted.at);
    text_free(&quoted);
}

void annotation_write_mask(struct text *out, uint32_t number, uint32_t w, uint32_t h, const struct annotation_mask *m)
{
    const struct traced *t = m->shape;
    double box[4] = {t->x0, t->y0, t->x1 - t->x0, t->y1 - t->y0};
    print_list(out, number ? ", {\"bbox\": [" : "{\"bbox\": [", box, 4, "], ");
    text_printf(out, "\"area\": %u, \"segmentation\": {\"size\": [%u, %u], \"counts\": \"", t->area, h, w);
    print_counts(out, t);
    print_list(out, "\"}, \"predicted_iou\": ", &m->predicted_iou, 1, ", ");
    print_list(out, "\"point_coords\": [[", m->point, 2, "]], ");
    print_list(out, "\"crop_box\": [", m->crop_box, 4, "], ");
    text_printf(out, "\"id\": %lld, ", (long long)m->id);
    print_list(out, "\"stability_score\": ", &m->stability, 1, "}");
}

void annotation_write_end(struct text *out) { text_printf(out, "]}"); }
