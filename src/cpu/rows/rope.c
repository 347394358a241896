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

/* Takes a part of a wider tensor too, such as q of a fused q, k and v: only heads are dense. */
static bool rope_match(const struct query *q)
{
    const struct tensor *x = q->in[0];
    return dtype_is_fast(x->dtype) && x->rank == 4 && x->stride[3] == 1 && tensor_is_fast(q->out[0]) &&
           tensor_is(q->in[1], DT_F32);
}

/* Returns the position that pair i of token t turns by. */
static int64_t rope_position(const struct launch *l, int64_t b, int64_t t, int64_t i)
{
    const struct operand *p = &l->in[2]; // [B,T] or [B,T,3]
    const struct attr_rope *a = &l->attr->rope;
    if (!launch_has(l, 2)) return l->token + t;
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

/* Rotates n pairs of head h of token t, from pair `from` on. */
static void rope_turn(const struct launch *l, int64_t b, int64_t t, int64_t h, int64_t from, int n, const float *sine,
                      const float *cosine)
{
    float as[TILE], bs[TILE];
    const struct operand *x = &l->in[0], *y = &l->out[0]; // [B,T,H,D]
    const int64_t half = x->dim[3] / 2, in = b * x->stride[0] + t * x->stride[1] + h * x->stride[2] + from,
                  out = b * y->stride[0] + t * y->stride[1] + h * y->stride[2] + from;
    const float *first = row_view(x, in, n, as), *second = row_view(x, in + half, n, bs);
    float *to_first = row_place(y, out, as), *to_second = row_place(y, out + half, bs);
#pragma omp simd
    for (int i = 0; i < n; i++) {
        float u = first[i], v = second[i];
        to_first[i] = u * cosine[i] - v * sine[i];
        to_second[i] = v * cosine[i] + u * sine[i];
    }
    row_store(y, out, n, to_first);
    row_store(y, out + half, n, to_second);
}

void rope_place(const struct launch *l, int64_t t)
{
    const struct operand *x = &l->in[0];
    const int64_t half = x->dim[3] / 2;
    float sine[TILE], cosine[TILE];
    for (int64_t from = 0; from < half; from += TILE) {
        int n = row_tile(half - from);
        for (int64_t b = 0; b < x->dim[0]; b++) {
            if (!b || launch_has(l, 2)) rope_angles(l, b, t, from, n, sine, cosine);
            for (int64_t h = 0; h < x->dim[2]; h++) rope_turn(l, b, t, h, from, n, sine, cosine);
        }
    }
}

void rope_heads(const struct launch *l, int64_t first, int64_t last)
{
    const int64_t T = l->in[0].dim[1], H = l->in[0].dim[2], half = l->in[0].dim[3] / 2, token = first / H;
    float sine[TILE], cosine[TILE];
    for (int64_t from = 0; from < half; from += TILE) {
        int n = row_tile(half - from);
        rope_angles(l, token / T, token % T, from, n, sine, cosine);
        for (int64_t head = first; head < last; head++)
            rope_turn(l, token / T, token % T, head % H, from, n, sine, cosine);
    }
}

static void rope_run(const struct launch *l)
{
    const int64_t T = l->in[0].dim[1];
#pragma omp parallel for num_threads(l->threads) schedule(static) if (operand_elements(&l->in[0]) > 4096)
    for (int64_t t = 0; t < T; t++) rope_place(l, t);
}

CPU_KERNEL(ROPE, rope);
