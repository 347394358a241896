/*
 * step_images.c: the images of `plimsoll step`, for a model that takes them among its tokens
 * (models/images.h).
 *
 * pixel_values [N,channels,side,side] are the images of the whole batch, in the order in which
 * their tokens come in input_ids. Models for which transformers pads them, [B,M,...], are given so
 * too: an image of zeros is padding, and a pixel_attention_mask may say so again. frame_values
 * [F,...] are the frames of videos, pooled to data.tokens_per_frame features each; their tokens
 * come after those of all images. The image tokens are counted before anything is planned: there
 * must be as many as features.
 */
#include <inttypes.h>
#include <string.h>

#include "cli/step.h"
#include "models/images.h"

/* Row r of input_ids as i32. */
static int read_ids(const struct step *s, const struct st_entry *t, int64_t r, int64_t *raw, int32_t *ids,
                    struct error *e)
{
    const uint64_t bytes = t->bytes / (uint64_t)s->B;
    int rc = st_read(&s->in, t, (uint64_t)r * bytes, bytes, raw, e);
    for (int64_t i = 0; i < s->T && !rc; i++)
        ids[i] = t->dtype == DT_I64 ? (int32_t)raw[i] : ((const int32_t *)(const void *)raw)[i];
    return rc;
}

/* --- which images ----------------------------------------------------------------------------- */

/* Whether an image of the file has a pixel that is not zero. */
static int is_image(const struct step *s, const struct st_entry *t, int64_t i, int64_t elements, char *raw,
                    float *pixels, bool *out, struct error *e)
{
    const uint64_t bytes = (uint64_t)elements * dtype_size(t->dtype);
    int rc = st_read(&s->in, t, (uint64_t)i * bytes, bytes, raw, e);
    if (!rc) dtype_convert(pixels, DT_F32, raw, t->dtype, elements);
    *out = false;
    for (int64_t k = 0; k < elements && !rc && !*out; k++) *out = pixels[k] != 0;
    return rc;
}

/* Lists the images of [B,M,...] that are no padding. */
static int list_images(struct step *s, const struct st_entry *t, struct error *e)
{
    const int64_t all = t->dims[0] * t->dims[1], elements = t->dims[2] * t->dims[3] * t->dims[4];
    char *raw = mem_alloc((size_t)elements * 4);
    float *pixels = mem_alloc((size_t)elements * sizeof *pixels);
    int rc = PL_OK;
    s->image_at = mem_alloc((size_t)max_i64(1, all) * sizeof *s->image_at);
    s->size['N'] = 0;
    for (int64_t i = 0; i < all && !rc; i++) {
        bool real;
        rc = is_image(s, t, i, elements, raw, pixels, &real, e);
        if (!rc && real) s->image_at[s->size['N']++] = i;
    }
    mem_free(raw);
    mem_free(pixels);
    return rc;
}

/* The pixels of an image, unless it is padding, are all there. */
static int check_mask(const struct step *s, const struct st_entry *t, bool listed, struct error *e)
{
    const int64_t all = t->dims[0] * t->dims[1], pixels = t->dims[2] * t->dims[3];
    const uint64_t size = t->bytes / (uint64_t)t->elements;
    char *raw = mem_alloc((size_t)pixels * size);
    int rc = PL_OK;
    for (int64_t i = 0; i < (listed ? s->size['N'] : all) && !rc; i++) {
        const int64_t image = listed ? s->image_at[i] : i;
        rc = image < all
                 ? st_read(&s->in, t, (uint64_t)image * (uint64_t)pixels * size, (uint64_t)pixels * size, raw, e)
                 : PL_OK;
        for (int64_t k = 0; k < pixels && !rc; k++)
            if (raw[(uint64_t)k * size] != 1)
                rc = error_set(e, PL_USAGE,
                               "%s: pixel_attention_mask leaves out pixels of image %" PRId64
                               "; images must fill their squares: resize them to config.json's image_size",
                               s->in.path, image);
    }
    mem_free(raw);
    return rc;
}

/* Goes through the rows of input_ids: counts the image tokens, and with `put` writes the input
 * image_index. */
static int index_rows(struct step *s, const struct model *m, bool put, int64_t *count, struct error *e)
{
    const size_t T = (size_t)s->T;
    int64_t *raw = mem_alloc(T * 8);
    int32_t *ids = mem_alloc(T * sizeof *ids), *index = mem_alloc(T * sizeof *index);
    int rc = PL_OK;
    *count = 0;
    for (int64_t r = 0; r < s->B && !rc; r++) {
        rc = read_ids(s, step_given(s, m, "input_ids"), r, raw, ids, e);
        if (!rc) image_index(m, ids, s->T, count, index);
        if (!rc && put) rc = run_write_input(&s->run, "image_index", r, index, T * sizeof *index, e);
    }
    mem_free(raw);
    mem_free(ids);
    mem_free(index);
    return rc;
}

int step_check_images(struct step *s, const struct model *m, struct error *e)
{
    if (!m->images) return PL_OK;
    const struct st_entry *t = step_given(s, m, "pixel_values");
    int64_t tokens = 0;
    const struct st_entry *mask = step_given(s, m, "pixel_attention_mask");
    const bool listed = t && t->rank == 5;
    int rc = listed ? list_images(s, t, e) : PL_OK;
    if (!rc && mask) rc = check_mask(s, mask, listed, e);
    if (!rc) rc = index_rows(s, m, false, &tokens, e);
    const int64_t images = s->size['N'], frames = s->size['F'];
    int64_t each = 0;
    if (!rc && frames) rc = images_frame_tokens(m, s->frames.tokens_per_frame, &each, e);
    const int64_t expected = images * m->images->features + frames * each;
    if (!rc && frames && tokens != expected)
        rc = error_set(e, PL_USAGE,
                       "%s: input_ids has %" PRId64 " image tokens (id %d); expected %" PRId64 ": %" PRId64
                       " for each of %" PRId64 " images in pixel_values, then %" PRId64 " for each of %" PRId64
                       " frames in frame_values",
                       s->in.path, tokens, m->images->token, expected, m->images->features, images, each, frames);
    else if (!rc && tokens != expected)
        rc = error_set(e, PL_USAGE,
                       "%s: input_ids has %" PRId64 " image tokens (id %d), and pixel_values %" PRId64
                       " images of %" PRId64 " features: expected %" PRId64 " tokens",
                       s->in.path, tokens, m->images->token, images, m->images->features, expected);
    return rc;
}

int step_put_images(struct step *s, struct error *e)
{
    struct planned_input x;
    int64_t tokens;
    return planned_input(&s->run.planned, "image_index", &x) ? index_rows(s, &s->run.planned.model, true, &tokens, e)
                                                             : PL_OK;
}
