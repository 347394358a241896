/*
 * predict_write.c: the outputs of `plimsoll predict`: masks as runs in JSON, and overlays. Lines
 * and discs scale with the image, so that they are visible at any size.
 */
#include <math.h>
#include <string.h>

#include "cli/predict.h"
#include "data/masks/rle.h"
#include "io/json.h"
#include "io/png.h"

struct pixels {
    const uint8_t *at;
    uint32_t w;
};

static bool is_set(const void *of, uint32_t x, uint32_t y)
{
    const struct pixels *p = of;
    return p->at[(size_t)y * p->w + x];
}

void predict_trace(struct traced *t, const uint8_t *mask, uint32_t w, uint32_t h)
{
    struct pixels p = {mask, w};
    trace_runs(t, h, w, 0, 0, w - 1, h - 1, is_set, &p);
}

static void put_runs(struct json_writer *w, const struct traced *t, uint32_t width, uint32_t height)
{
    size_t room = (size_t)t->runs.n * 7 + 1;
    char *counts = mem_alloc(room);
    rle_encode(t->runs.at, t->runs.n, counts, room - 1);
    json_begin_list(w, "size");
    json_put_uint(w, NULL, height);
    json_put_uint(w, NULL, width);
    json_end(w);
    json_put_string(w, "counts", counts);
    mem_free(counts);
}

static void put_box(struct json_writer *w, const struct traced *t)
{
    const bool any = t->area;
    const uint32_t box[4] = {any ? t->x0 : 0, any ? t->y0 : 0, any ? t->x1 - t->x0 + 1 : 0,
                             any ? t->y1 - t->y0 + 1 : 0};
    json_begin_list(w, "bbox");
    for (int k = 0; k < 4; k++) json_put_uint(w, NULL, box[k]);
    json_end(w);
    json_put_uint(w, "area", t->area);
}

static void put_mask(struct json_writer *w, const char *key, const struct traced *t, uint32_t width, uint32_t height,
                     const double *score)
{
    json_begin_map(w, key);
    put_runs(w, t, width, height);
    if (score) json_put_number(w, "score", *score);
    put_box(w, t);
    json_end(w);
}

void predict_put_result(struct json_writer *w, const struct traced *t, uint32_t width, uint32_t height, double score)
{
    json_begin_map(w, "segmentation");
    put_runs(w, t, width, height);
    json_end(w);
    json_put_number(w, "score", score);
    put_box(w, t);
}

void predict_put_mask(struct json_writer *w, const struct traced *t, uint32_t width, uint32_t height, double score)
{
    put_mask(w, NULL, t, width, height, &score);
}
void predict_put_mask_as(struct json_writer *w, const char *key, const struct traced *t, uint32_t width,
                         uint32_t height)
{
    put_mask(w, key, t, width, height, NULL);
}

int predict_overlay(const struct predict *p, const char *path, const struct predict_drawn *d, struct error *e)
{
    const uint32_t w = p->image.w, h = p->image.h;
    const int line = (int)max_i64(1, (int64_t)(w > h ? w : h) / 400), radius = 4 + 2 * line;
    const struct colour mask = {30, 144, 255}, foreground = {40, 190, 60}, background = {220, 50, 47},
                        box = {255, 200, 0};
    struct canvas out = {w, h, mem_copy(p->image.rgb, (size_t)w * h * 3)};
    draw_overlay(&out, (struct draw_area){0, 0, w, h}, &(struct draw_mask){.at = d->mask, .stride = w, .w = w, .h = h},
                 mask, 0.45, line);
    const float *b = d->prompt->box;
    if (d->box)
        draw_box(&out, (int)lroundf(b[0]), (int)lroundf(b[1]), (int)max_i64(lroundf(b[2] - b[0]), 1),
                 (int)max_i64(lroundf(b[3] - b[1]), 1), line + 1, box);
    for (int64_t k = 0; k < d->points; k++)
        draw_point(&out, (int)d->prompt->points[k][0], (int)d->prompt->points[k][1], radius,
                   d->prompt->labels[k] ? foreground : background);
    int rc = png_write(path, PNG_RGB, w, h, out.rgb, 0, e);
    canvas_free(&out);
    return rc;
}
