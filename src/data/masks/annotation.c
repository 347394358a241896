/*
 * annotation.c: see annotation.h. The text is parsed in one pass. Each entry writes at most one
 * mask record, and no record is written beyond the caller's room.
 */
#include "data/masks/annotation.h"

#include <math.h>
#include <string.h>

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

/* {"size": [h, w], "counts": "text" or [runs]} */
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

/* [[x, y]]; only the first of several points is used. */
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

/* False with s->fault, or with *many when there is no room for the next mask. */
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
            return error_set(
                       e, PL_USAGE,
                       "mask %lld is a list of polygons; expected run lengths (if this is COCO, set data.format: coco)",
                       (long long)masks[i].id),
                   FAULT_SHAPE;
        if (shape->h != a->h || shape->w != a->w)
            return error_set(e, PL_USAGE, "mask %lld has %u x %u pixels (width x height), its image %u x %u",
                             (long long)masks[i].id, shape->w, shape->h, a->w, a->h),
                   FAULT_SIZE;
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
