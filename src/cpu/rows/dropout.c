/*
 * dropout.c: DROPOUT: elements, or whole samples, set to 0 at random.
 *
 * Invariant: whether an element is kept is a pure function of the run's seed, the step, the op's
 * key, the sample and the element's index in the sample (dropout_key). Threads, micro-batches,
 * recomputation in the backward and a resume therefore drop the same elements; no mask is stored.
 */
#include "cpu/rows/dropout.h"

#include "base/random.h"
#include "cpu/cpu.h"
#include "cpu/rows.h"

uint64_t dropout_key(const struct step_block *step, uint32_t key, int32_t sample)
{
    uint64_t stream = random_bits(random_key(step->seed, "dropout"), step->rng_step);
    return random_bits(random_bits(stream, key), (uint64_t)(uint32_t)sample);
}

uint32_t dropout_threshold(float p) { return (uint32_t)((double)p * 4294967296.0); }

static bool dropout_match(const struct query *q)
{
    return tensor_is_fast(q->in[0]) && tensor_is_fast(q->out[0]) && tensor_is(q->in[2], DT_I32);
}

/* An element of a sample is dropped when its word is below the threshold. */
static void tile_dropout(float *y, const float *x, const uint32_t *words, uint32_t threshold, float scale, int n)
{
#pragma omp simd
    for (int i = 0; i < n; i++) y[i] = words[i] >= threshold ? x[i] * scale : 0.0f;
}

static void dropout_run(const struct launch *l)
{
    const struct operand *x = &l->in[0], *y = &l->out[0];
    const struct step_block *step = l->in[1].data;
    const int32_t *samples = l->in[2].data;
    const int64_t B = x->dim[0], each = operand_elements(x) / B, tiles = row_tiles(each);
    const uint32_t threshold = dropout_threshold(l->attr->dropout.p);
    const float scale = 1.0f / (1.0f - l->attr->dropout.p);
#pragma omp parallel for num_threads(l->threads) schedule(static) if (B * each > 4096)
    for (int64_t u = 0; u < B * tiles; u++) {
        float scratch[TILE];
        uint32_t words[TILE];
        int64_t b = u / tiles, from = u % tiles * TILE, at = b * each + from;
        int n = row_tile(each - from);
        uint64_t key = dropout_key(step, l->attr->dropout.key, samples[b]);
        random_words(words, key, l->attr->dropout.per_sample ? 0 : (uint64_t)from, l->attr->dropout.per_sample ? 1 : n);
        for (int i = 1; i < n && l->attr->dropout.per_sample; i++) words[i] = words[0];
        const float *v = row_view(x, at, n, scratch);
        float *to = row_place(y, at, scratch);
        tile_dropout(to, v, words, threshold, scale, n);
        row_store(y, at, n, to);
    }
}

CPU_KERNEL(DROPOUT, dropout);
