/*
 * patches.c: see patches.h.
 *
 * Sizes are computed in double, in the order in which transformers' Python computes them: its
 * integers are exact in a double up to 2^53, and rounding is half to even.
 *
 *   scratch  | the resized image or frame, bytes | resize.h |
 */
#include "data/images/patches.h"

#include <math.h>

/* --- sizes ------------------------------------------------------------------------------------ */

static uint32_t factor_of(const struct patch_rules *p) { return p->patch * p->merge; }

/* What smart_resize decides on: an image, a frame, or all frames of a video. */
struct bounds {
    double frames;        /* that the pixels are counted over, */
    double rounded;       /* and the same in whole grids */
    double least, most;   /* pixels */
};

static void smart_resize(const struct bounds *b, double h, double w, uint32_t factor, double *to_h, double *to_w)
{
    *to_h = rint(h / factor) * factor;
    *to_w = rint(w / factor) * factor;
    const double pixels = b->rounded * *to_h * *to_w;
    if (pixels > b->most) {
        const double beta = sqrt(b->frames * h * w / b->most);
        *to_h = fmax(factor, floor(h / beta / factor) * factor);
        *to_w = fmax(factor, floor(w / beta / factor) * factor);
    } else if (pixels < b->least) {
        const double beta = sqrt(b->least / (b->frames * h * w));
        *to_h = ceil(h * beta / factor) * factor;
        *to_w = ceil(w * beta / factor) * factor;
    }
}

static int check_size(const char *what, uint32_t width, uint32_t height, struct error *e)
{
    const uint32_t longer = width > height ? width : height, shorter = width > height ? height : width;
    if (!shorter)
        return error_set(e, PL_USAGE, "%s has %u x %u pixels; expected at least 1 x 1", what, width, height);
    if ((double)longer / shorter > PATCH_ASPECT)
        return error_set(e, PL_USAGE,
                         "%s has %u x %u pixels: one side is %.5g times the other; expected at most %d times: crop it "
                         "or leave it out", what, width, height, (double)longer / shorter, PATCH_ASPECT);
    return PL_OK;
}

static void set_grid(const struct patch_rules *p, uint32_t t, double h, double w, struct patch_grid *grid)
{
    *grid = (struct patch_grid){t, (uint32_t)h / p->patch, (uint32_t)w / p->patch};
}

int patch_grid_image(const struct patch_rules *p, uint32_t width, uint32_t height, struct patch_grid *grid,
                     struct error *e)
{
    const struct bounds b = {1, 1, (double)p->min_pixels, (double)p->max_pixels};
    double h, w;
    TRY(check_size("the image", width, height, e));
    smart_resize(&b, height, width, factor_of(p), &h, &w);
    set_grid(p, 1, h, w, grid);
    return PL_OK;
}

/* Returns the largest number of pixels of a frame of Qwen2-VL's videos: with the cap also an even
 * share of all tokens. */
static double frame_most(const struct patch_rules *p, uint32_t frames)
{
    const double factor = factor_of(p), all = floor((double)p->cap_tokens * factor * factor * 0.9);
    if (!p->cap) return (double)p->max_pixels;
    return fmax(fmin((double)p->max_pixels, floor(all * p->temporal / frames)), floor((double)p->min_pixels * 1.05));
}

/* Returns the same of all frames of a Qwen3-VL video. */
static double video_most(const struct patch_rules *p, uint32_t frames)
{
    const double factor = factor_of(p), most = (double)p->cap_tokens * factor * factor;
    if (!p->cap) return (double)p->max_pixels;
    return frames * fmax(fmin(most, floor((double)p->max_pixels / frames)), floor((double)p->min_pixels * 1.05));
}

/* Scales a frame with a side below the factor up to it: Qwen3-VL does so before it looks at the
 * aspect ratio. */
static void enlarge(uint32_t factor, uint32_t *width, uint32_t *height)
{
    if (!*width || !*height || (*width >= factor && *height >= factor)) return;
    const double scale = fmax((double)factor / *height, (double)factor / *width);
    *height = (uint32_t)fmin(floor(*height * scale), UINT32_MAX);
    *width = (uint32_t)fmin(floor(*width * scale), UINT32_MAX);
}

int patch_grid_video(const struct patch_rules *p, uint32_t frames, uint32_t width, uint32_t height,
                     struct patch_grid *grid, struct error *e)
{
    const bool together = p->family == PATCHES_QWEN3_VL;
    const uint32_t least = together ? p->temporal : 1;
    struct bounds b = {1, 1, (double)p->min_pixels, 0};
    double h, w;
    if (frames < least)
        return error_set(e, PL_USAGE, "the video has %u frames that are used; expected at least %u", frames, least);
    b.most = together ? video_most(p, frames) : frame_most(p, frames);
    if (together) {
        b.frames = frames;
        b.rounded = rint((double)frames / p->temporal) * p->temporal;
        enlarge(factor_of(p), &width, &height);
    }
    TRY(check_size("the video", width, height, e));
    smart_resize(&b, height, width, factor_of(p), &h, &w);
    set_grid(p, (uint32_t)(((uint64_t)frames + p->temporal - 1) / p->temporal), h, w, grid);
    return PL_OK;
}

uint64_t patch_grid_patches(const struct patch_grid *g)
{
    uint64_t frame = (uint64_t)g->h * g->w, all;
    return __builtin_mul_overflow(frame, g->t, &all) ? UINT64_MAX : all;
}

uint64_t patch_grid_tokens(const struct patch_rules *p, const struct patch_grid *g)
{
    return patch_grid_patches(g) / (p->merge * p->merge);
}

uint32_t patch_bytes(const struct patch_rules *p) { return 3 * p->temporal * p->patch * p->patch; }

/* --- values ----------------------------------------------------------------------------------- */

/* Computes the value of each byte in f32, as torchvision does: the factor is moved into mean and
 * standard deviation. */
static void fill_values(const struct patch_rules *p, uint32_t c, float value[256])
{
    const float inverse = (float)(1 / p->factor);
    float mean = (float)p->mean[c], std = (float)p->std[c];
    if (p->rescale) mean *= inverse, std *= inverse;
    for (int v = 0; v < 256; v++) {
        if (p->normalize) value[v] = ((float)v - mean) / std;
        else value[v] = p->rescale ? (float)v * (float)p->factor : (float)v;
    }
}

void patch_values(const struct patch_rules *p, float value[3][256])
{
    for (uint32_t c = 0; c < 3; c++) fill_values(p, c, value[c]);
}

/* --- pixels ----------------------------------------------------------------------------------- */

static struct resize_view view_of(const struct patch_rules *p, const struct patch_grid *g, uint32_t width,
                                  uint32_t height)
{
    return (struct resize_view){.filter = p->filter, .width = width, .height = height, .to_width = g->w * p->patch,
                                .to_height = g->h * p->patch, .stride = (size_t)g->w * p->patch * 3};
}

static uint64_t resized_bytes(const struct resize_view *v) { return align_up((uint64_t)v->stride * v->to_height, 64); }

uint64_t patch_scratch(const struct patch_rules *p, const struct patch_grid *g, uint32_t width, uint32_t height)
{
    enum { SIDE_MOST = 1 << 24 }; /* products of two sides and the filter's width stay below 2^63 */
    const struct resize_view v = view_of(p, g, width, height);
    if (width > SIDE_MOST || height > SIDE_MOST || v.to_width > SIDE_MOST || v.to_height > SIDE_MOST) return UINT64_MAX;
    return resized_bytes(&v) + resize_scratch(&v);
}

static const uint8_t *resized(const struct patch_rules *p, const struct patch_grid *g, const uint8_t *rgb,
                              uint32_t width, uint32_t height, void *scratch, uint64_t room)
{
    struct resize_view v = view_of(p, g, width, height);
    struct resize r;
    CHECK(patch_scratch(p, g, width, height) <= room, "patches of %ux%u in %llu bytes", width, height,
          (unsigned long long)room);
    v.to = scratch;
    resize_begin(&r, &v, v.to + resized_bytes(&v), room - resized_bytes(&v));
    for (uint32_t y = 0; resize_wants(&r); y++) resize_row(&r, rgb + (size_t)y * width * 3);
    return scratch;
}

/* Where a frame goes: the grid in time, and its slots there, from `first` to before `end`. */
struct slots { uint32_t grid, first, end; };

/* Writes one patch, whose first pixel is at rgb, into the slots of a row of pixel values. */
static void put_patch(const struct patch_rules *p, const uint8_t *rgb, size_t stride, const struct slots *s,
                      uint8_t *to)
{
    const size_t square = (size_t)p->patch * p->patch;
    for (uint32_t c = 0; c < 3; c++, to += p->temporal * square) {
        uint8_t *first = to + s->first * square, *at = first;
        for (uint32_t y = 0; y < p->patch; y++)
            for (uint32_t x = 0; x < p->patch; x++) *at++ = rgb[y * stride + (size_t)x * 3 + c];
        for (uint32_t k = s->first + 1; k < s->end; k++, at += square) memcpy(at, first, square);
    }
}

/* Writes a resized frame: the patches of merge * merge neighbours follow each other. */
static void put_frame(const struct patch_rules *p, const struct patch_grid *g, const uint8_t *rgb,
                      const struct slots *s, uint8_t *to)
{
    const size_t stride = (size_t)g->w * p->patch * 3, bytes = patch_bytes(p);
    to += (size_t)s->grid * g->h * g->w * bytes;
    for (uint32_t h = 0; h < g->h; h += p->merge)
        for (uint32_t w = 0; w < g->w; w += p->merge)
            for (uint32_t k = 0; k < p->merge * p->merge; k++, to += bytes) {
                const size_t y = (size_t)(h + k / p->merge) * p->patch, x = (size_t)(w + k % p->merge) * p->patch;
                put_patch(p, rgb + y * stride + x * 3, stride, s, to);
            }
}

void patch_image(const struct patch_rules *p, const struct patch_grid *g, const uint8_t *rgb, uint32_t width,
                 uint32_t height, void *scratch, uint64_t room, uint8_t *to)
{
    put_frame(p, g, resized(p, g, rgb, width, height, scratch, room), &(struct slots){0, 0, p->temporal}, to);
}

void patch_frame(const struct patch_rules *p, const struct patch_grid *g, uint32_t i, uint32_t frames,
                 const uint8_t *rgb, uint32_t width, uint32_t height, void *scratch, uint64_t room, uint8_t *to)
{
    const uint32_t slot = i % p->temporal;
    const struct slots s = {i / p->temporal, slot, i + 1 == frames ? p->temporal : slot + 1};
    CHECK(i < frames && s.grid < g->t, "frame %u of %u in %u grids", i, frames, g->t);
    put_frame(p, g, resized(p, g, rgb, width, height, scratch, room), &s, to);
}
