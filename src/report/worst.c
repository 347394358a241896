/*
 * worst.c: see worst.h.
 *
 * Each mask is predicted again by itself, with its prompt of the evaluation, and drawn at the
 * image's own size; the IoU in the caption is the evaluation's. A sample that can no longer be read
 * is left out. A mask that a question asks for is predicted from the question; all of these by one
 * run.
 */
#include <math.h>

#include "base/progress.h"
#include "data/images/image.h"
#include "data/samples.h"
#include "infer/ask.h"
#include "io/file.h"
#include "io/png.h"
#include "io/json.h"
#include "report/mask_drawing.h"
#include "report/page.h"
#include "report/worst.h"

enum { COLUMNS = 4, CELL_W = 360, CELL_H = 270 }; /* of a sheet */
enum { MOST_W = 720, MOST_H = 540 };              /* of the image of one mask */

/* Draws candidate k of a prediction over the image; q NULL: there is no prompt to draw. */
static void draw_result(struct canvas *out, const struct sample *s, const struct worst *w, const struct image *p,
                        struct predictor *a, int64_t k, const struct predictor_prompt *q)
{
    uint8_t *mask = mem_alloc((size_t)a->w * a->h), *bits = NULL;
    size_t stride = 0;
    for (uint32_t i = 0; i < s->found.n && !bits && s->found.w == a->w && s->found.h == a->h; i++)
        if (s->masks[i].id == w->mask) bits = sample_raster(s, i, a->w, a->h, &stride);
    predictor_mask(a, 0, k, 0, mask);
    *out = (struct canvas){a->w, a->h, mem_copy(p->rgb, (size_t)a->w * a->h * 3)};
    const struct draw_area all = {0, 0, a->w, a->h};
    const int64_t side = a->w > a->h ? a->w : a->h;
    const int line = (int)max_i64(2, side / 200), disc = (int)(1 + side / 90); /* a small disc on a small image */
    draw_overlay(out, all, &(struct draw_mask){.at = mask, .stride = a->w, .w = a->w, .h = a->h}, MASKS_PREDICTION, 0.5,
                 line);
    if (bits) draw_overlay(out, all, &(struct draw_mask){bits, stride, a->w, a->h, true}, MASKS_TRUTH, 0, line);
    if (q && a->shape.box)
        draw_box(out, (int)q->box[0], (int)q->box[1], (int)(q->box[2] - q->box[0]), (int)(q->box[3] - q->box[1]), line,
                 MASKS_PROMPT);
    else if (q) draw_point(out, (int)q->points[0][0], (int)q->points[0][1], disc, MASKS_PROMPT);
    mem_free(mask);
    mem_free(bits);
}

static int draw_prompted(const struct worst_masks *all, const struct sample *s, const struct worst *w,
                         const struct image *p, struct canvas *out, struct error *e)
{
    static const int on = 1;
    const bool box = !strcmp(all->prompts[w->prompt], "box");
    struct predictor_shape shape = {.prompts = 1, .points = !box, .box = box, .side = all->config->data_image_size};
    struct predictor a;
    float point[1][2];
    struct predictor_prompt q = {.points = (const float(*)[2])point, .labels = &on};
    TRY(predictor_open(&a, all->config, p, &shape, e));
    const uint32_t side = (uint32_t)a.shape.side;
    predictor_to_pixels(side, a.canvas.stretched, a.w, a.h, w->coords, point[0]);
    predictor_to_pixels(side, a.canvas.stretched, a.w, a.h, w->coords, q.box);
    predictor_to_pixels(side, a.canvas.stretched, a.w, a.h, w->coords + 2, q.box + 2);
    int rc = predictor_run(&a, &q, 1, e);
    if (!rc) draw_result(out, s, w, p, &a, predictor_best(&a, 0), &q);
    predictor_close(&a);
    return rc;
}

/* --- masks that questions ask for ---------------------------------------------------------- */

struct worst_ask {
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
static int questions_open(struct worst_ask *q, const struct worst_masks *all, struct error *e)
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

static int draw_worst(const struct worst_masks *all, struct worst_ask *q, const struct sample *s, const struct worst *w,
                      struct canvas *out, struct error *e)
{
    struct image p;
    struct predictor a;
    TRY(sample_decode(s, &all->set->range, &p, e));
    int rc = asks(all) ? ask_worst(all, &q->ask, w, e) : draw_prompted(all, s, w, &p, out, e);
    if (!rc && asks(all) && !(rc = ask_masks_run(&q->masks, &q->ask, &p, &a, e))) {
        draw_result(out, s, w, &p, &a, 0, NULL);
        ask_mask_free(&a);
    }
    image_free(&p);
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

static int draw_all(const struct worst_masks *w, struct drawn *d, struct error *e)
{
    struct progress progress;
    struct worst_ask questions = {0};
    int rc = asks(w) ? questions_open(&questions, w, e) : PL_OK;
    progress_begin(&progress, "drawing the worst masks:", "masks", w->n);
    *d = (struct drawn){.cells = mem_alloc((w->n + 1) * sizeof *d->cells),
                        .which = mem_alloc((w->n + 1) * sizeof *d->which),
                        .prompts = mem_alloc((w->n + 1) * sizeof *d->prompts)};
    for (uint32_t i = 0; i < w->n && !rc; i++) {
        struct sample x;
        struct error lost;
        if (samples_read(w->set, w->at[i].sample, &x, &lost)) {
            log_warn("%s: %s", x.name, lost.text);
        } else if (!(rc = draw_worst(w, &questions, &x, &w->at[i], &d->cells[d->n].image, e))) {
            const uint64_t row = w->at[i].sample; /* of a table: the question and its answer asked for the mask */
            d->prompts[d->n] = !asks(w) ? w->prompts[w->at[i].prompt]
                                        : bump_format(&d->captions, "%s (%s)",
                                                      dataset_text(w->set, row, DATASET_QUESTION),
                                                      dataset_text(w->set, row, DATASET_ANSWER));
            d->cells[d->n].lines[0] = bump_format(&d->captions, "%s, IoU %.3f", d->prompts[d->n], w->at[i].iou);
            d->cells[d->n].lines[1] = bump_string(&d->captions, x.name);
            d->which[d->n++] = &w->at[i];
        }
        sample_free(&x);
        progress_add(&progress, 1);
    }
    progress_clear();
    if (asks(w)) ask_masks_close(&questions.masks), ask_close(&questions.ask);
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

/* Encodes the image of one mask as PNG, no larger than it is shown. */
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
    if (w->table) text_printf(&out, "%s", w->table);
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
    return file_write_text(rc, path, &out, e);
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
    rc = file_write_text(rc, path.at, &index, e);
    text_free(&path);
    drawn_free(&d);
    return rc;
}
