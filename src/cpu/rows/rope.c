/*
 * rope.c: ROPE, rotary position embedding: the pair (x[i], x[i+D/2]) of each head is rotated by the
 * angle p * inv_freq[i], where p is the token's position: t, or an input.
 *
 * Published models compute the angle as an f32 product, and at t = 2048 its rounding shows in the
 * fourth digit of the cosine; so the product is f32 here too, and only its sine and cosine are
 * exact.
 *
 * Threads share the tokens of a row; sines and cosines of a token are computed once for all its
 * heads, and for all batches where the position is t. Both halves of a pair are read before either
 * is written: the output may be the input.
 */
#include <math.h>

#include "base/shared.h"
#include "cpu/cpu.h"
#include "cpu/rows/row_parts.h"

static bool rope_match(const struct query *q)
{
    return tensor_is_fast(q->in[0]) && tensor_is_fast(q->out[0]) && q->in[0]->rank == 4 && tensor_is(q->in[1], DT_F32);
}

/* Returns the position that pair i of token t turns by. */
static int64_t rope_position(const struct launch *l, int64_t b, int64_t t, int64_t i)
{
    const struct operand *p = &l->in[2]; // [B,T] or [B,T,3]
    const struct attr_rope *a = &l->attr->rope;
    if (!launch_has(l, 2)) return t;
    const int32_t *at = (const int32_t *)p->data + b * p->stride[0] + t * p->stride[1];
    return p->rank == 2 ? *at : at[shared_coordinate(i, a->sections, a->interleaved) * p->stride[2]];
}

/* Computes sine and cosine, times scale, of n frequencies at the token's position. */
static void rope_angles(const struct launch *l, int64_t b, int64_t t, int64_t from, int n, float *sine, float *cosine)
{
    const float *inv_freq = (const float *)l->in[1].data + from;
    const float scale = l->attr->rope.scale, sign = l->attr->rope.inverse ? -1.0f : 1.0f;
    for (int i = 0; i < n; i++) {
        float angle = (float)rope_position(l, b, t, from + i) * inv_freq[i];
        sine[i] = sinf(angle) * sign * scale;
        cosine[i] = cosf(angle) * scale;
    }
}

/* Rotates n pairs: elements at .. at+n with elements at+half .. at+half+n. */
static void rope_turn(const struct launch *l, int64_t at, int64_t half, int n, const float *sine,
                      const float *cosine)
{
    float as[TILE], bs[TILE];
    const float *a = row_view(&l->in[0], at, n, as), *b = row_view(&l->in[0], at + half, n, bs);
    float *ya = row_place(&l->out[0], at, as), *yb = row_place(&l->out[0], at + half, bs);
#pragma omp simd
    for (int i = 0; i < n; i++) {
        float x = a[i], y = b[i];
        ya[i] = x * cosine[i] - y * sine[i];
        yb[i] = y * cosine[i] + x * sine[i];
    }
    row_store(&l->out[0], at, n, ya);
    row_store(&l->out[0], at + half, n, yb);
}

void rope_place(const struct launch *l, int64_t t)
{
    const struct operand *x = &l->in[0]; // [B,T,H,D]
    const int64_t B = x->dim[0], T = x->dim[1], H = x->dim[2], D = x->dim[3], half = D / 2;
    float sine[TILE], cosine[TILE];
    for (int64_t from = 0; from < half; from += TILE) {
        int n = row_tile(half - from);
        for (int64_t b = 0; b < B; b++) {
            if (!b || launch_has(l, 2)) rope_angles(l, b, t, from, n, sine, cosine);
            for (int64_t h = 0; h < H; h++)
                rope_turn(l, ((b * T + t) * H + h) * D + from, half, n, sine, cosine);
        }
    }
}

void rope_heads(const struct launch *l, int64_t first, int64_t last)
{
    const int64_t T = l->in[0].dim[1], D = l->in[0].dim[3], half = D / 2, token = first / l->in[0].dim[2];
    float sine[TILE], cosine[TILE];
    for (int64_t from = 0; from < half; from += TILE) {
        int n = row_tile(half - from);
        rope_angles(l, token / T, token % T, from, n, sine, cosine);
        for (int64_t head = first; head < last; head++) rope_turn(l, head * D + from, half, n, sine, cosine);
    }
}

static void rope_run(const struct launch *l)
{
    const int64_t T = l->in[0].dim[1];
#pragma omp parallel for num_threads(l->threads) schedule(static) if (operand_elements(&l->in[0]) > 4096)
    for (int64_t t = 0; t < T; t++) rope_place(l, t);
}

CPU_KERNEL(ROPE, rope);
