/*
 * mask_drawing.c: see mask_drawing.h.
 */
#include "report/mask_drawing.h"

#include <inttypes.h>
#include <math.h>

#include "data/masks/rle.h"
#include "infer/everything.h"
#include "io/png.h"
#include "report/page.h"

static void put_chip(struct text *out, struct colour c, bool outline, const char *name)
{
    text_printf(out, "<span><i class='chip' style='%s#%02x%02x%02x'></i>%s</span>\n",
                outline ? "border:2px solid " : "background:", c.r, c.g, c.b, name);
}

void masks_legend(struct text *out)
{
    text_printf(out, "<p class='chips'>");
    put_chip(out, MASKS_PREDICTION, false, "prediction");
    put_chip(out, MASKS_TRUTH, true, "outline of the ground truth");
    put_chip(out, MASKS_PROMPT, false, "prompt");
    text_printf(out, "</p>\n");
}

void masks_caption(struct text *out, double iou, const char *prompt, const char *sample, int64_t mask)
{
    text_printf(out, "<b>IoU %.3f</b>, prompt: ", iou);
    html_escape(out, prompt);
    text_printf(out, "<br><span class='dim'>");
    page_text(out, sample);
    text_printf(out, ", mask %" PRId64 "</span>", mask);
}

int masks_write_prompted(const char *path, const struct image *image, const uint8_t *mask,
                         const struct predictor_prompt *q, const struct predictor_shape *shape, struct error *e)
{
    const uint32_t w = image->width, h = image->height;
    const int line = (int)max_i64(1, (int64_t)(w > h ? w : h) / 400), radius = 4 + 2 * line;
    const struct colour blue = {30, 144, 255}, foreground = {40, 190, 60}, background = {220, 50, 47},
                        box = {255, 200, 0};
    struct canvas out = {w, h, mem_copy(image->rgb, (size_t)w * h * 3)};
    draw_overlay(&out, (struct draw_area){0, 0, w, h}, &(struct draw_mask){.at = mask, .stride = w, .w = w, .h = h},
                 blue, 0.45, line);
    const float *b = q->box;
    if (shape->box)
        draw_box(&out, (int)lroundf(b[0]), (int)lroundf(b[1]), (int)max_i64(lroundf(b[2] - b[0]), 1),
                 (int)max_i64(lroundf(b[3] - b[1]), 1), line + 1, box);
    for (int64_t k = 0; k < shape->points; k++)
        draw_point(&out, (int)q->points[k][0], (int)q->points[k][1], radius,
                   q->labels[k] ? foreground : background);
    int rc = png_write(path, PNG_RGB, w, h, out.rgb, 0, e);
    canvas_free(&out);
    return rc;
}

static int largest_first(const void *a, const void *b)
{
    const struct everything_mask *const *x = a, *const *y = b;
    if ((*x)->shape.area != (*y)->shape.area) return (*x)->shape.area < (*y)->shape.area ? 1 : -1;
    return (*x > *y) - (*x < *y);
}

/* Unpacks runs, which go down the columns, to rows of bytes. */
static void unpack(const struct traced *t, uint32_t w, uint32_t h, uint8_t *columns, uint8_t *rows)
{
    struct rle runs = {RLE_RUNS, h, w, t->runs.at, t->runs.n};
    enum rle_status s = rle_to_pixels(&runs, columns);
    CHECK(s == RLE_OK, "invalid runs: %s", rle_status_text(s));
    for (uint32_t x = 0; x < w; x++)
        for (uint32_t y = 0; y < h; y++) rows[(size_t)y * w + x] = columns[(size_t)x * h + y];
}

int masks_write_all(const char *path, const struct image *image, const struct everything *g, struct error *e)
{
    const uint32_t w = image->width, h = image->height, n = g->masks.n;
    const struct everything_mask **order = mem_alloc((n + 1) * sizeof *order);
    uint8_t *columns = mem_alloc((size_t)w * h), *rows = mem_alloc((size_t)w * h);
    struct canvas out = {w, h, mem_copy(image->rgb, (size_t)w * h * 3)};
    for (uint32_t i = 0; i < n; i++) order[i] = &g->masks.at[i];
    if (n) qsort(order, n, sizeof *order, largest_first);
    for (uint32_t i = 0; i < n; i++) {
        unpack(&order[i]->shape, w, h, columns, rows);
        draw_overlay(&out, (struct draw_area){0, 0, w, h}, &(struct draw_mask){.at = rows, .stride = w, .w = w, .h = h},
                     draw_colour(i), 0.5, (int)max_i64(1, (int64_t)(w > h ? w : h) / 600));
    }
    int rc = png_write(path, PNG_RGB, w, h, out.rgb, 0, e);
    canvas_free(&out);
    mem_free(columns);
    mem_free(rows);
    mem_free(order);
    return rc;
}
