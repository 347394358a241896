/*
 * eval_worst.c: the worst masks of an evaluation, to look at: what the model answered in blue, the outline of what
 * was right in green, and the prompt.
 *
 * Each is asked again by itself, with the prompt that it had, at the picture's own size; the IoU in the
 * caption is the evaluation's. A sample that can no longer be read is left out.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/data_samples.h"
#include "cli/eval.h"
#include "data/grid.h"
#include "io/png.h"
#include "report/draw.h"
#include "train/ask.h"

enum { COLUMNS = 4, CELL_W = 360, CELL_H = 270 };

static int open_picture(const struct sample *s, struct ask_picture *p, struct error *e)
{
    if (!s->facts.decoded) return ask_picture_decode(p, s->image, s->facts.n, e);
    *p = (struct ask_picture){s->facts.w, s->facts.h, mem_copy(s->image, s->facts.n)};
    return PL_OK;
}

/* The target's bits at the picture's size; *stride bytes a row. NULL: it makes none. */
static uint8_t *raster(const struct sample *s, int64_t mask, uint32_t w, uint32_t h, size_t *stride, struct error *e)
{
    const uint32_t side = w > h ? w : h;
    const struct grid_geometry all = {.h = h, .w = w, .resized_w = w, .resized_h = h, .canvas_w = w, .canvas_h = h, .gw = w, .gh = h};
    if (side > GRID_MAX_CELLS || s->found.w != w || s->found.h != h) return NULL;
    void *memory = mem_alloc(grid_bytes(side, side));
    uint8_t *bits = mem_alloc(grid_mask_bytes(w, h));
    struct grid g;
    struct polygon_scratch runs = s->runs;
    bool found = false;
    grid_init(&g, memory, side, side);
    if (!grid_set(&g, &all, e))
        for (uint32_t k = 0; k < s->found.n && !found; k++)
            found = s->masks[k].id == mask && !mask_raster(&s->masks[k], &g, &runs, bits, e);
    *stride = grid_stride(w);
    mem_free(memory);
    if (found) return bits;
    mem_free(bits);
    return NULL;
}

/* From the square's measure back to the picture's pixels: ask.c's `place`, the other way. */
static void unplace(const struct ask *a, const float from[2], float to[2])
{
    float x = (from[0] * (float)a->shape.side - 0.5f) * (float)a->w / (float)a->fit_w, y = (from[1] * (float)a->shape.side - 0.5f) * (float)a->h / (float)a->fit_h;
    to[0] = fminf(fmaxf(x, 0), (float)a->w);
    to[1] = fminf(fmaxf(y, 0), (float)a->h);
}

static void draw_answer(struct picture *out, const struct ask *a, const uint8_t *mask, const uint8_t *bits, size_t stride, const struct ask_prompt *q)
{
    const struct draw_place all = {0, 0, a->w, a->h};
    const int line = (int)max_i64(1, (int64_t)(a->w > a->h ? a->w : a->h) / 250);
    const struct colour answer = {30, 144, 255}, right = {60, 210, 80}, prompt = {255, 200, 0};
    draw_overlay(out, all, &(struct draw_mask){.at = mask, .stride = a->w, .w = a->w, .h = a->h}, answer, 0.5, line);
    if (bits) draw_overlay(out, all, &(struct draw_mask){bits, stride, a->w, a->h, true}, right, 0, line);
    if (a->shape.box) draw_box(out, (int)q->box[0], (int)q->box[1], (int)(q->box[2] - q->box[0]), (int)(q->box[3] - q->box[1]), line, prompt);
    else draw_point(out, (int)q->points[0][0], (int)q->points[0][1], 3 + 2 * line, prompt);
}

static int draw_worst(const struct eval *v, const struct sample *s, const struct worst *w, struct picture *out, struct error *e)
{
    static const int on = 1;
    const bool box = !strcmp(feed_pass_name(&v->feed, (int)w->prompt), "box");
    struct ask_shape shape = {.prompts = 1, .points = !box, .box = box, .side = v->config.data_image_size};
    struct ask_picture p;
    struct ask a;
    float point[1][2];
    struct ask_prompt q = {.points = (const float(*)[2])point, .labels = &on};
    int rc = open_picture(s, &p, e);
    if (rc) return rc;
    rc = ask_open(&a, &v->config, &p, &shape, e);
    if (!rc) {
        unplace(&a, w->place, point[0]);
        unplace(&a, w->place, q.box);
        unplace(&a, w->place + 2, q.box + 2);
        rc = ask_run(&a, &q, 1, e);
        uint8_t *mask = mem_alloc((size_t)p.w * p.h);
        size_t stride = 0;
        uint8_t *bits = rc ? NULL : raster(s, w->mask, p.w, p.h, &stride, e);
        if (!rc) {
            ask_mask(&a, 0, ask_best(&a, 0), 0, mask);
            *out = (struct picture){p.w, p.h, mem_copy(p.rgb, (size_t)p.w * p.h * 3)};
            draw_answer(out, &a, mask, bits, stride, &q);
        }
        mem_free(mask);
        mem_free(bits);
        ask_close(&a);
    }
    ask_picture_free(&p);
    return rc;
}

int eval_worst(const struct eval *v, struct error *e)
{
    const struct scores *s = &v->found.scores;
    struct samples all = {.set = (struct dataset *)feed_dataset(&v->feed), .n = v->feed.samples};
    struct draw_cell *cells = mem_alloc((s->n_worst + 1) * sizeof *cells);
    struct bump captions = {0};
    uint32_t n = 0;
    int rc = PL_OK;
    for (uint32_t i = 0; i < s->n_worst && !rc; i++) {
        const struct worst *w = &s->worst[i];
        struct sample x;
        struct error lost;
        if (samples_read(&all, w->sample, &x, &lost)) {
            log_warn("%s: %s", x.name, lost.text);
        } else if (!(rc = draw_worst(v, &x, w, &cells[n].picture, e))) {
            cells[n].lines[0] = bump_format(&captions, "%s, IoU %.3f", s->prompts[w->prompt], w->iou);
            cells[n++].lines[1] = bump_string(&captions, x.name);
        }
        sample_free(&x);
    }
    if (!rc) {
        struct picture sheet = draw_sheet("worst masks: answer blue, right green", cells, n, COLUMNS, CELL_W, CELL_H);
        rc = png_write(v->overlays, PNG_RGB, sheet.w, sheet.h, sheet.rgb, 0, e);
        picture_free(&sheet);
    }
    for (uint32_t i = 0; i < n; i++) picture_free(&cells[i].picture);
    bump_free(&captions);
    mem_free(cells);
    return rc;
}
