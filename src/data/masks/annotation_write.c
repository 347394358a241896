/*
 * annotation_write.c: see annotation_write.h. Numbers are printed as Python prints them, as in
 * the files of SA-1B.
 */
#include "data/masks/annotation_write.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "data/masks/rle.h"
#include "io/json.h"

/* ---- runs ---- */

struct run {
    uint32_t from, longest, middle;
    bool set;
};

static void end_run(struct traced *t, struct run *r, uint32_t at)
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

/* A column's last run ends with the region, unless the region touches the image's lower edge and
 * the next column continues the run. */
void trace_runs(struct traced *t, uint32_t h, uint32_t w, uint32_t x0, uint32_t y0, uint32_t x1, uint32_t y1,
                trace_set *set, const void *of)
{
    struct run r = {0};
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

void trace_free(struct traced *t) { vec_free(&t->runs); }

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
