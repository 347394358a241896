/*
 * worst.c: see worst.h.
 *
 * Each mask is predicted again by itself, with its prompt of the evaluation, and drawn at the
 * image's own size; the IoU in the caption is the evaluation's. A sample that can no longer be read
 * is left out. A mask that a question asks for is predicted from the question; all of these by one
 * run.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/progress.h"
#include "data/samples.h"
#include "cli/eval_table.h"
#include "cli/worst.h"
#include "data/masks/grid.h"
#include "io/file.h"
#include "io/png.h"
#include "io/json.h"
#include "report/masks.h"
#include "report/page.h"
#include "infer/ask.h"

enum { COLUMNS = 4, CELL_W = 360, CELL_H = 270 }; /* of a sheet */
enum { MOST_W = 720, MOST_H = 540 };              /* of the image of one mask */

static int open_image(const struct sample *s, const struct pixel_range *range, struct predictor_image *p,
                      struct error *e)
{
    if (!s->facts.decoded) return predictor_image_decode(p, s->image, s->facts.n, range, e);
    *p = (struct predictor_image){.w = s->facts.w, .h = s->facts.h, .rgb = mem_copy(s->image, s->facts.n)};
    return PL_OK;
}

/* Rasterises the target mask at the image's size, *stride bytes per row. NULL: not possible. */
static uint8_t *raster(const struct sample *s, int64_t mask, uint32_t w, uint32_t h, size_t *stride, struct error *e)
{
    const uint32_t side = w > h ? w : h;
    const struct grid_geometry all =
        {.h = h, .w = w, .resized_w = w, .resized_h = h, .canvas_w = w, .canvas_h = h, .gw = w, .gh = h};
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

/* Converts normalised prompt coordinates to pixels of the image: the inverse of `place` in
 * predictor.c. */
static void to_image_pixels(const struct predictor *a, const float from[2], float to[2])
{
    float x = (from[0] * (float)a->shape.side - 0.5f) * (float)a->w / (float)a->fit_w,
          y = (from[1] * (float)a->shape.side - 0.5f) * (float)a->h / (float)a->fit_h;
    to[0] = fminf(fmaxf(x, 0), (float)a->w);
    to[1] = fminf(fmaxf(y, 0), (float)a->h);
}

static void draw_prediction(struct canvas *out, const struct predictor *a, const uint8_t *mask, const uint8_t *bits,
                            size_t stride, const struct predictor_prompt *q)
{
    const struct draw_area all = {0, 0, a->w, a->h};
    const int64_t side = a->w > a->h ? a->w : a->h;
    const int line = (int)max_i64(2, side / 200), disc = (int)(1 + side / 90); /* a small disc on a small image */
    draw_overlay(out, all, &(struct draw_mask){.at = mask, .stride = a->w, .w = a->w, .h = a->h}, MASKS_PREDICTION, 0.5,
                 line);
    if (bits) draw_overlay(out, all, &(struct draw_mask){bits, stride, a->w, a->h, true}, MASKS_TRUTH, 0, line);
    if (!q) return;
    if (a->shape.box)
        draw_box(out, (int)q->box[0], (int)q->box[1], (int)(q->box[2] - q->box[0]), (int)(q->box[3] - q->box[1]), line,
                 MASKS_PROMPT);
    else draw_point(out, (int)q->points[0][0], (int)q->points[0][1], disc, MASKS_PROMPT);
}

/* The image with candidate k of a prediction; q NULL: there is no prompt to draw. */
static void draw_result(struct canvas *out, const struct sample *s, const struct worst *w,
                        const struct predictor_image *p, struct predictor *a, int64_t k,
                        const struct predictor_prompt *q)
{
    uint8_t *mask = mem_alloc((size_t)p->w * p->h);
    struct error ignored;
    size_t stride = 0;
    uint8_t *bits = raster(s, w->mask, p->w, p->h, &stride, &ignored);
    predictor_mask(a, 0, k, 0, mask);
    *out = (struct canvas){p->w, p->h, mem_copy(p->rgb, (size_t)p->w * p->h * 3)};
    draw_prediction(out, a, mask, bits, stride, q);
    mem_free(mask);
    mem_free(bits);
}

static int draw_prompted(const struct worst_masks *all, const struct sample *s, const struct worst *w,
                         const struct predictor_image *p, struct canvas *out, struct error *e)
{
    static const int on = 1;
    const bool box = !strcmp(all->prompts[w->prompt], "box");
    struct predictor_shape shape = {.prompts = 1, .points = !box, .box = box, .side = all->config->data_image_size};
    struct predictor a;
    float point[1][2];
    struct predictor_prompt q = {.points = (const float(*)[2])point, .labels = &on};
    int rc = predictor_open(&a, all->config, p, &shape, e);
    if (rc) return rc;
    to_image_pixels(&a, w->coords, point[0]);
    to_image_pixels(&a, w->coords, q.box);
    to_image_pixels(&a, w->coords + 2, q.box + 2);
    rc = predictor_run(&a, &q, 1, e);
    if (!rc) draw_result(out, s, w, p, &a, predictor_best(&a, 0), &q);
    predictor_close(&a);
    return rc;
}

/* --- masks that questions ask for ---------------------------------------------------------- */

struct questions {
    struct ask ask;
    struct ask_masks masks;
};

static bool asks(const struct worst_masks *w) { return w->n && !strcmp(w->prompts[w->at[0].prompt], "question"); }

static int ask_worst(const struct worst_masks *all, struct ask *a, const struct worst *w, struct error *e)
{
    return ask_again(a, dataset_image_path(all->set, w->sample), dataset_text(all->set, w->sample, DATASET_QUESTION),
                     e);
}

/* Plans the run for the longest of the questions. */
static int questions_open(struct questions *q, const struct worst_masks *all, struct error *e)
{
    const uint64_t first = all->at[0].sample;
    int64_t longest = 0;
    int rc = ask_open(&q->ask, all->config, dataset_image_path(all->set, first),
                      dataset_text(all->set, first, DATASET_QUESTION), e);
    for (uint32_t i = 0; i < all->n && !rc; i++) {
        rc = ask_worst(all, &q->ask, &all->at[i], e);
        longest = max_i64(longest, q->ask.ids.n);
    }
    return rc ? rc : ask_masks_open(&q->masks, &q->ask, longest, e);
}

static void questions_close(struct questions *q)
{
    ask_masks_close(&q->masks);
    ask_close(&q->ask);
}

static int draw_asked(const struct worst_masks *all, struct questions *q, const struct sample *s, const struct worst *w,
                      const struct predictor_image *p, struct canvas *out, struct error *e)
{
    struct predictor a;
    int rc = ask_worst(all, &q->ask, w, e);
    if (!rc) rc = ask_masks_run(&q->masks, &q->ask, p, &a, e);
    if (rc) return rc;
    draw_result(out, s, w, p, &a, 0, NULL);
    ask_mask_free(&a);
    return PL_OK;
}

static int draw_worst(const struct worst_masks *all, struct questions *q, const struct sample *s, const struct worst *w,
                      struct canvas *out, struct error *e)
{
    struct predictor_image p;
    int rc = open_image(s, &all->set->range, &p, e);
    if (rc) return rc;
    rc = asks(all) ? draw_asked(all, q, s, w, &p, out, e) : draw_prompted(all, s, w, &p, out, e);
    predictor_image_free(&p);
    return rc;
}

/* --- all masks --------------------------------------------------------------------------- */

struct drawn {
    struct draw_cell *cells;    /* captions: the prompt, the sample's name */
    const struct worst **which; /* of each cell */
    const char **prompts;
    uint32_t n;
    struct bump captions;
};

static void drawn_free(struct drawn *d)
{
    for (uint32_t i = 0; i < d->n; i++) canvas_free(&d->cells[i].image);
    bump_free(&d->captions);
    mem_free(d->cells);
    mem_free(d->which);
    mem_free(d->prompts);
}

/* What asked for a mask: the name of the prompt, or the question with its answer in the table. */
static const char *describe_prompt(const struct worst_masks *all, const struct worst *w, struct bump *memory)
{
    if (!asks(all)) return all->prompts[w->prompt];
    return bump_format(memory, "%s (%s)", dataset_text(all->set, w->sample, DATASET_QUESTION),
                       dataset_text(all->set, w->sample, DATASET_ANSWER));
}

static int draw_all(const struct worst_masks *w, struct drawn *d, struct error *e)
{
    struct progress progress;
    struct questions questions = {0};
    int rc = asks(w) ? questions_open(&questions, w, e) : PL_OK;
    progress_begin(&progress, "drawing the worst masks:", "masks", w->n);
    *d = (struct drawn){.cells = mem_alloc((w->n + 1) * sizeof *d->cells), .which = mem_alloc((w->n + 1) * sizeof *d->which), .prompts = mem_alloc((w->n + 1) * sizeof *d->prompts)};
    for (uint32_t i = 0; i < w->n && !rc; i++) {
        struct sample x;
        struct error lost;
        if (samples_read(w->set, w->at[i].sample, &x, &lost)) {
            log_warn("%s: %s", x.name, lost.text);
        } else if (!(rc = draw_worst(w, &questions, &x, &w->at[i], &d->cells[d->n].image, e))) {
            d->prompts[d->n] = describe_prompt(w, &w->at[i], &d->captions);
            d->cells[d->n].lines[0] = bump_format(&d->captions, "%s, IoU %.3f", d->prompts[d->n], w->at[i].iou);
            d->cells[d->n].lines[1] = bump_string(&d->captions, x.name);
            d->which[d->n++] = &w->at[i];
        }
        sample_free(&x);
        progress_add(&progress, 1);
    }
    progress_clear();
    if (asks(w)) questions_close(&questions);
    return rc;
}

static int write_sheet(const char *path, const struct drawn *d, struct error *e)
{
    struct canvas sheet =
        draw_sheet("worst masks: prediction blue, ground truth green", d->cells, d->n, COLUMNS, CELL_W, CELL_H);
    int rc = png_write(path, PNG_RGB, sheet.w, sheet.h, sheet.rgb, 0, e);
    canvas_free(&sheet);
    return rc;
}

/* The image of one mask, no larger than it is shown. */
static int encode_image(struct text *out, const struct canvas *image, struct error *e)
{
    if (image->w <= MOST_W && image->h <= MOST_H) return png_encode(out, PNG_RGB, image->w, image->h, image->rgb, 0, e);
    const double scale = fmin((double)MOST_W / image->w, (double)MOST_H / image->h);
    struct canvas small =
        canvas_new((uint32_t)fmax(1, image->w * scale), (uint32_t)fmax(1, image->h * scale), DRAW_WHITE);
    draw_fit(&small, 0, 0, small.w, small.h, image);
    int rc = png_encode(out, PNG_RGB, small.w, small.h, small.rgb, 0, e);
    canvas_free(&small);
    return rc;
}

static int write_page(const struct worst_masks *w, const char *path, const struct drawn *d, struct error *e)
{
    struct text out = {0};
    char name[256];
    int rc = PL_OK;
    page_begin(&out, w->table ? "Plimsoll: an evaluation" : "Plimsoll: the worst masks of an evaluation",
               page_name(w->config->model_path, 2, name));
    if (w->table) eval_table_page(w->table, &out);
    masks_legend(&out);
    text_printf(&out, "<div class='images'>\n");
    for (uint32_t i = 0; i < d->n && !rc; i++) {
        struct text png = {0}, caption = {0};
        rc = encode_image(&png, &d->cells[i].image, e);
        masks_caption(&caption, d->which[i]->iou, d->prompts[i], d->cells[i].lines[1], d->which[i]->mask);
        if (!rc) page_figure(&out, png.at, png.n, caption.at);
        text_free(&caption);
        text_free(&png);
    }
    text_printf(&out, "</div>\n");
    page_end(&out);
    if (!rc) rc = file_write_atomic(path, out.at, out.n, e);
    text_free(&out);
    return rc;
}

int worst_sheet(const struct worst_masks *w, const char *path, struct error *e)
{
    struct drawn d;
    int rc = draw_all(w, &d, e);
    if (!rc) rc = text_ends_with(path, ".html") ? write_page(w, path, &d, e) : write_sheet(path, &d, e);
    drawn_free(&d);
    return rc;
}

int worst_images(const struct worst_masks *w, const char *dir, struct error *e)
{
    struct drawn d;
    struct text path = {0}, index = {0};
    struct json_writer j = {.out = &index, .indent = 2};
    int rc = draw_all(w, &d, e);
    if (!rc) rc = tree_remove(dir, e);
    if (!rc) rc = dir_make(dir, e);
    json_begin_list(&j, NULL);
    for (uint32_t i = 0; i < d.n && !rc; i++) {
        const struct worst *x = d.which[i];
        struct text png = {0};
        text_free(&path);
        text_printf(&path, "%s/%02u-%s-%.3f.png", dir, i + 1, w->prompts[x->prompt], x->iou);
        rc = encode_image(&png, &d.cells[i].image, e);
        if (!rc) rc = file_write_atomic(path.at, png.at, png.n, e);
        json_begin_map(&j, NULL);
        json_put_string(&j, "file", path.at + strlen(dir) + 1);
        json_put_string(&j, "prompt", w->prompts[x->prompt]);
        json_put_number(&j, "iou", x->iou);
        json_put_string(&j, "sample", d.cells[i].lines[1]);
        json_put_int(&j, "mask", x->mask);
        json_end(&j);
        text_free(&png);
    }
    json_end(&j);
    text_printf(&index, "\n");
    text_free(&path);
    text_printf(&path, "%s/index.json", dir);
    if (!rc) rc = file_write_atomic(path.at, index.at, index.n, e);
    text_free(&index);
    text_free(&path);
    drawn_free(&d);
    return rc;
}
