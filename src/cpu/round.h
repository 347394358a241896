/*
 * round.h: weights that are kept in bf16 alone.
 *
 *     bf16 --exact--> f32 --update--> f32 --up or down, at random--> bf16
 *
 * A step moves most weights by less than half of bf16's spacing there (1/256 of the weight), and rounding to nearest
 * would undo it every time. Rounded up with the probability that the dropped bits state, a
 * weight moves by the right amount on average.
 *
 * Invariant: how an element is rounded is a pure function of the run's seed, the step, the
 * parameter's key and the element's place: threads, tiles and a resume change no bit. An
 * update of any kind (update.h) serves f32 weights as well, which
 * are worked on where they lie.
 */
#ifndef CPU_ROUND_H
#define CPU_ROUND_H

#include <string.h>

#include "base/random.h"
#include "cpu/rows.h"

/* The stream of a parameter in a step. */
static inline uint64_t round_key(const struct step_block *step, uint64_t parameter)
{
    return random_bits(random_bits(random_key(step->seed, "round"), step->rng_step), parameter);
}

/* `bits` has 16 random ones. Inf and NaN stay; what lies on a bf16 value stays there. */
static inline uint16_t round_at_random(float x, uint32_t bits)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    if ((u & 0x7f800000u) == 0x7f800000u) return f32_to_bf16(x);
    return (uint16_t)((u + (bits & 0xffffu)) >> 16);
}

static inline bool weight_is_kept(const struct tensor *t) { return tensor_is(t, DT_F32) || tensor_is(t, DT_BF16); }

/* Brings them home. One draw of 64 bits serves four elements; `at` is a multiple of four. */
static inline void store_weight(const struct operand *p, int64_t at, int n, const float *from, uint64_t key)
{
    if (p->dtype != DT_BF16) return;
    uint16_t *to = (uint16_t *)p->data + at;
    for (int i = 0; i < n; i += 4) {
        uint64_t bits = random_bits(key, (uint64_t)(at + i) / 4);
        for (int k = i; k < n && k < i + 4; k++, bits >>= 16) to[k] = round_at_random(from[k], (uint32_t)bits);
    }
}

#endif
