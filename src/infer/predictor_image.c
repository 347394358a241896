/*
 * predictor_image.c: reads and preprocesses an image for a mask model (see predictor.h).
 *
 * The longer side is resized to the side of the square, with the loader's own resizing. Then values
 * are normalised, and the rest of the square is filled with zeros after the normalisation.
 */
#include <string.h>

#include "data/images/image.h"
#include "data/images/resize.h"
#include "io/file.h"
#include "infer/predictor.h"

enum { FILE_MOST = 1 << 30 };

/* --- reading --------------------------------------------------------------------------- */

int predictor_image_decode(struct predictor_image *p, const void *bytes, size_t n, const struct pixel_range *range,
                           struct error *e)
{
    struct image i;
    memset(p, 0, sizeof *p);
    if (image_decode(&i, bytes, n, &(struct image_options){.range = *range}, NULL, 0, e)) return e->code;
    *p = (struct predictor_image){.w = i.width, .h = i.height, .rgb = i.rgb, .window = {i.window[0], i.window[1]}};
    return PL_OK;
}

int predictor_image_read(struct predictor_image *p, const char *path, const struct pixel_range *range, struct error *e)
{
    char *bytes;
    size_t n;
    memset(p, 0, sizeof *p);
    int rc = file_read(path, FILE_MOST, &bytes, &n, e);
    if (rc) return rc;
    rc = predictor_image_decode(p, bytes, n, range, e);
    mem_free(bytes);
    return rc ? error_prepend(e, "%s", path) : PL_OK;
}

void predictor_image_free(struct predictor_image *p)
{
    mem_free(p->rgb);
    memset(p, 0, sizeof *p);
}

/* --- fitting ------------------------------------------------------------------------------- */

static uint8_t *resized(const struct predictor_image *p, uint32_t w, uint32_t h)
{
    uint8_t *to = mem_alloc((size_t)w * h * 3);
    struct resize_view view =
        {.width = p->w, .height = p->h, .to_width = w, .to_height = h, .to = to, .stride = (size_t)w * 3};
    size_t room = resize_scratch(&view);
    void *scratch = mem_alloc(room);
    struct resize r;
    resize_begin(&r, &view, scratch, room);
    for (uint32_t y = 0; resize_wants(&r); y++) resize_row(&r, p->rgb + (size_t)y * p->w * 3);
    mem_free(scratch);
    return to;
}

void predictor_fit(const struct predictor_image *p, const struct pixel_norm *n, uint32_t side, float *to,
                   uint32_t *fit_w, uint32_t *fit_h)
{
    resize_longest(p->w, p->h, side, fit_w, fit_h);
    uint8_t *small = resized(p, *fit_w, *fit_h);
    memset(to, 0, (size_t)3 * side * side * sizeof *to);
    for (uint32_t c = 0; c < 3; c++) {
        float value[256];
        for (int v = 0; v < 256; v++) value[v] = (float)((v * n->scale - n->mean[c]) / n->std[c]);
        for (uint32_t y = 0; y < *fit_h; y++)
            for (uint32_t x = 0; x < *fit_w; x++)
                to[((size_t)c * side + y) * side + x] = value[small[((size_t)y * *fit_w + x) * 3 + c]];
    }
    mem_free(small);
}
