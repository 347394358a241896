/*
 * allocation.c: see allocation.h.
 *
 * The texture is that of the image as the tower sees it, before it was normalised. Random scores
 * are a function of train.seed and the position, so that no split of a batch, and no resume,
 * changes them.
 */
#include "feed/allocation.h"

#include <string.h>

#include "base/random.h"
#include "models/allocator.h"
#include "models/images.h"

struct allocation {
    int64_t side, T, patches;   /* patches 0: scored */
    double mean[3], std[3];     /* pixels are (x - mean) / std, x from 0 to 1 */
    uint64_t key;
    float *rgb, *texture, *information, *weights, *scores;
};

struct allocation *allocation_new(const struct run *r, int64_t T, const struct image_processor *processor)
{
    struct planned_input x;
    const bool random = planned_input(&r->planned, "random_scores", &x);
    if (!r->planned.model.images->single) return NULL;
    struct allocation *a = mem_alloc(sizeof *a);
    *a = (struct allocation){.side = r->planned.model.image,
                             .T = T,
                             .patches = random ? (int64_t)(x.sample / sizeof(float)) : 0,
                             .key = random_key((uint64_t)r->planned.config->train_seed, "token selection")};
    for (int k = 0; k < 3; k++) {
        const double unit = processor->rescale ? 255 * processor->factor : 255;
        a->mean[k] = processor->normalize ? processor->mean[k] / unit : 0;
        a->std[k] = (processor->normalize ? processor->std[k] : 1) / unit;
    }
    if (random) {
        a->scores = mem_alloc((size_t)a->patches * sizeof *a->scores);
        return a;
    }
    a->rgb = mem_alloc((size_t)(3 * a->side * a->side) * sizeof *a->rgb);
    a->texture = mem_alloc(TEXTURE_CELLS * TEXTURE_CHANNELS * sizeof *a->texture);
    a->information = mem_alloc(TEXTURE_CELLS * sizeof *a->information);
    a->weights = mem_alloc((size_t)a->T * sizeof *a->weights);
    return a;
}

void allocation_free(struct allocation *a)
{
    if (!a) return;
    mem_free(a->rgb), mem_free(a->texture), mem_free(a->information), mem_free(a->weights), mem_free(a->scores);
    mem_free(a);
}

static int put_random(struct allocation *a, struct run *r, int64_t i, uint64_t position, struct error *e)
{
    const uint64_t key = random_bits(a->key, position);
    for (int64_t k = 0; k < a->patches; k++) a->scores[k] = (float)(random_bits(key, (uint64_t)k) >> 40) * 0x1p-24f;
    return run_write_input(r, "random_scores", i, a->scores, (uint64_t)a->patches * sizeof *a->scores, e);
}

/* Describes an image. A row without one has a texture of zeros, and what follows from it is not
 * read. */
static void describe(struct allocation *a, const float *pixels)
{
    const int64_t plane = a->side * a->side;
    memset(a->texture, 0, TEXTURE_CELLS * TEXTURE_CHANNELS * sizeof *a->texture);
    memset(a->information, 0, TEXTURE_CELLS * sizeof *a->information);
    if (!pixels) return;
    for (int64_t k = 0; k < 3 * plane; k++)
        a->rgb[k] = (float)((double)pixels[k] * a->std[k / plane] + a->mean[k / plane]);
    texture_of(a->rgb, a->side, a->texture);
    texture_information(a->texture, a->information);
}

int allocation_put(struct allocation *a, struct run *r, int64_t i, uint64_t position, const struct token_row *row,
                   const int32_t *index, const float *pixels, struct error *e)
{
    if (a->scores) return put_random(a, r, i, position, e);
    describe(a, pixels);
    question_weights(row->positions, row->labels, index, a->T, a->weights);
    int rc = run_write_input(r, "texture", i, a->texture, TEXTURE_CELLS * TEXTURE_CHANNELS * sizeof *a->texture, e);
    if (!rc) rc = run_write_input(r, "information", i, a->information, TEXTURE_CELLS * sizeof *a->information, e);
    return rc ? rc : run_write_input(r, "query_weights", i, a->weights, (uint64_t)a->T * sizeof *a->weights, e);
}
