/*
 * ask_image.c: a picture as a model of masks wants it (see ask.h).
 *
 * The longer side becomes the square's, by the loader's own resizing; then values are
 * normalised, and only then is the rest filled with zeros: the padding is the mean colour to
 * nobody but the eye.
 */
#include <stdio.h>
#include <string.h>

#include "data/jpeg.h"
#include "data/resize.h"
#include "io/file.h"
#include "io/json.h"
#include "io/png.h"
#include "train/ask.h"

enum { FILE_MOST = 1 << 30, JSON_MOST = 1 << 20 };

/* --- reading --------------------------------------------------------------------------- */

static int read_png(struct ask_picture *p, const char *bytes, size_t n, struct error *e)
{
    struct png_pixels x;
    int rc = png_decode(bytes, n, PNG_AS_RGB, 0, NULL, 0, &x, e);
    if (!rc) *p = (struct ask_picture){x.width, x.height, x.at};
    return rc;
}

static int read_jpeg(struct ask_picture *p, const char *bytes, size_t n, struct error *e)
{
    struct jpg *j = jpg_new(&(struct jpg_limits){.memory = (uint64_t)1 << 30});
    int rc = jpg_decode(j, bytes, n, 1, &p->w, &p->h, &p->rgb, e);
    jpg_free(j);
    return rc;
}

int ask_picture_decode(struct ask_picture *p, const void *bytes, size_t n, struct error *e)
{
    static const uint8_t png[] = {0x89, 'P', 'N', 'G'}, jpeg[] = {0xff, 0xd8};
    memset(p, 0, sizeof *p);
    if (n >= sizeof png && !memcmp(bytes, png, sizeof png)) return read_png(p, bytes, n, e);
    if (n >= sizeof jpeg && !memcmp(bytes, jpeg, sizeof jpeg)) return read_jpeg(p, bytes, n, e);
    return error_set(e, PL_USAGE, "neither a JPEG nor a PNG picture; convert it to one of them");
}

int ask_picture_read(struct ask_picture *p, const char *path, struct error *e)
{
    char *bytes;
    size_t n;
    memset(p, 0, sizeof *p);
    int rc = file_read(path, FILE_MOST, &bytes, &n, e);
    if (rc) return rc;
    rc = ask_picture_decode(p, bytes, n, e);
    mem_free(bytes);
    return rc ? error_prepend(e, "%s", path) : PL_OK;
}

void ask_picture_free(struct ask_picture *p)
{
    mem_free(p->rgb);
    memset(p, 0, sizeof *p);
}

/* --- normalising ------------------------------------------------------------------------- */

static int read_three(const struct value *map, const char *key, double out[3], struct error *e)
{
    const struct value *list = value_get(map, key);
    if (!list || list->kind == VALUE_NULL) return PL_OK;
    if (value_as_list(list, key, e)) return e->code;
    if (list->count != 3) return error_set(e, PL_USAGE, "%s has %u numbers, expected 3", key, list->count);
    for (uint32_t i = 0; i < 3; i++)
        if (value_as_number(value_at(list, i), key, &out[i], e)) return e->code;
    return PL_OK;
}

static int read_norm(struct ask_norm *n, const struct value *map, struct error *e)
{
    bool scale = true, normalise = true;
    int rc = value_opt_bool(map, "do_rescale", &scale, e);
    if (!rc) rc = value_opt_bool(map, "do_normalize", &normalise, e);
    if (!rc) rc = value_opt_number(map, "rescale_factor", &n->scale, e);
    if (!rc) rc = read_three(map, "image_mean", n->mean, e);
    if (!rc) rc = read_three(map, "image_std", n->std, e);
    if (rc) return rc;
    if (!scale) n->scale = 1;
    for (int k = 0; k < 3; k++) {
        if (!normalise) n->mean[k] = 0, n->std[k] = 1;
        if (!(n->std[k] > 0)) return error_set(e, PL_USAGE, "image_std is %g, it must be above 0", n->std[k]);
    }
    return PL_OK;
}

int ask_norm_read(struct ask_norm *n, const char *folder, struct error *e)
{
    *n = (struct ask_norm){1.0 / 255, {0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}};
    if (!*folder) return PL_OK;
    struct bump memory = {0};
    char path[1100];
    int rc = PL_OK;
    for (int nested = 0; nested < 2; nested++) {
        struct value *root;
        snprintf(path, sizeof path, "%s/%s", folder, nested ? "processor_config.json" : "preprocessor_config.json");
        if (!file_exists(path)) continue;
        rc = json_read_file(path, JSON_MOST, &memory, &root, e);
        if (!rc && read_norm(n, nested ? value_get(root, "image_processor") : root, e)) rc = error_prepend(e, "%s", path);
        break;
    }
    bump_free(&memory);
    return rc;
}

/* --- fitting ------------------------------------------------------------------------------- */

static uint8_t *resized(const struct ask_picture *p, uint32_t w, uint32_t h)
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

void ask_fit(const struct ask_picture *p, const struct ask_norm *n, uint32_t side, float *to, uint32_t *fit_w, uint32_t *fit_h)
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
