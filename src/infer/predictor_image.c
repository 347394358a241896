/*
 * predictor_image.c: reads and preprocesses an image for a mask model (see predictor.h).
 *
 * The longer side is resized to the side of the square, with the loader's own resizing. Then values
 * are normalised, and the rest of the square is filled with zeros after the normalisation.
 */
#include <string.h>

#include "data/jpeg.h"
#include "data/resize.h"
#include "io/file.h"
#include "io/png.h"
#include "infer/predictor.h"

enum { FILE_MOST = 1 << 30 };

/* --- reading --------------------------------------------------------------------------- */

static int read_png(struct predictor_image *p, const char *bytes, size_t n, const struct pixel_range *range, struct error *e)
{
    struct png_pixels x;
    uint32_t used[2];
    int rc = range_decode(bytes, n, range, NULL, 0, &x, used, e);
    if (!rc) *p = (struct predictor_image){.w = x.width, .h = x.height, .rgb = x.at, .window = {used[0], used[1]}};
    return rc;
}

static int read_jpeg(struct predictor_image *p, const char *bytes, size_t n, struct error *e)
{
    struct jpg *j = jpg_new(&(struct jpg_limits){.memory = (uint64_t)1 << 30});
    int rc = jpg_decode(j, bytes, n, 1, &p->w, &p->h, &p->rgb, e);
    jpg_free(j);
    return rc;
}

int predictor_image_decode(struct predictor_image *p, const void *bytes, size_t n, const struct pixel_range *range, struct error *e)
{
    static const uint8_t png[] = {0x89, 'P', 'N', 'G'}, jpeg[] = {0xff, 0xd8};
    memset(p, 0, sizeof *p);
    if (n >= sizeof png && !memcmp(bytes, png, sizeof png)) return read_png(p, bytes, n, range, e);
    if (n >= sizeof jpeg && !memcmp(bytes, jpeg, sizeof jpeg)) return read_jpeg(p, bytes, n, e);
    return error_set(e, PL_USAGE, "neither a JPEG nor a PNG image; convert it to one of them");
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
    struct resize_view view = {.width = p->w, .height = p->h, .to_width = w, .to_height = h, .to = to, .stride = (size_t)w * 3};
    size_t room = resize_scratch(&view);
    void *scratch = mem_alloc(room);
    struct resize r;
    resize_begin(&r, &view, scratch, room);
    for (uint32_t y = 0; resize_wants(&r); y++) resize_row(&r, p->rgb + (size_t)y * p->w * 3);
    mem_free(scratch);
    return to;
}

void predictor_fit(const struct predictor_image *p, const struct pixel_norm *n, uint32_t side, float *to, uint32_t *fit_w, uint32_t *fit_h)
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
