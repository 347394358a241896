/*
 * round.h: stochastic rounding of weights that are kept in bf16 only.
 *
 *     bf16 --exact--> f32 --update--> f32 --up or down, at random--> bf16
 *
 * A step changes most weights by less than half of the spacing of bf16 (1/256 of the weight), and
 * rounding to nearest would undo it every time. With rounding up at the probability given by the
 * dropped bits, a weight moves by the right amount on average.
 *
 * Invariant: the rounding of an element is a pure function of the run's seed, the step, the
 * parameter's key and the element's index: threads, tiles and a resume change no bit. Every update
 * (update.h) also supports f32 weights, which are updated in place.
 */
#ifndef CPU_ROUND_H
#define CPU_ROUND_H

#include <string.h>

#include "base/random.h"
#include "base/shared.h"
#include "cpu/rows.h"

/* The random stream of a parameter in a step. */
static inline uint64_t round_key(const struct step_block *step, uint64_t parameter)
{
    return random_bits(random_bits(random_key(step->seed, "round"), step->rng_step), parameter);
}

/* `bits` has 16 random bits. Inf and NaN are unchanged, and so are values that bf16 represents. */
static inline uint16_t round_at_random(float x, uint32_t bits)
{
    return shared_is_finite(x) ? shared_round_at_random(x, bits) : f32_to_bf16(x);
}

static inline bool weight_is_kept(const struct tensor *t) { return tensor_is(t, DT_F32) || tensor_is(t, DT_BF16); }

/* Stores weights. One draw of 64 bits serves four elements; `at` is a multiple of four, and so is
 * `first`, the place of p in the whole weight. */
static inline void store_weight(const struct operand *p, int64_t at, int64_t first, int n, const float *from,
                                uint64_t key)
{
    if (p->dtype != DT_BF16) return;
    uint16_t *to = (uint16_t *)p->data + at;
    for (int i = 0; i < n; i += 4) {
        uint64_t bits = random_bits(key, (uint64_t)(first + at + i) / 4);
        for (int k = i; k < n && k < i + 4; k++, bits >>= 16) to[k] = round_at_random(from[k], (uint32_t)bits);
    }
}

#endif
