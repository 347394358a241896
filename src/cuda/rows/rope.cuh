/*
 * rope.cuh: the sines and cosines of ROPE and RMSNORM_ROPE. The angle is an f32 product, as in
 * published models; its sine and cosine are exact.
 */
#pragma once

#include "base/shared.h"
#include "cuda/device/kernel.cuh"

/* y, x [B,T,H,D]; y may alias x. */
struct rope_shape {
    int64_t B, T, H, D;
    int64_t token;            /* the position of the first token, where they are not given */
    float scale, sign;        /* sign -1: the inverse */
    const int32_t *positions; /* [B,T,per]; nullptr: token, token + 1, ... */
    int64_t per;              /* 1 or 3 */
    int64_t sections[3];      /* of three, the pairs of each */
    bool interleaved;
};
rope_shape rope_shape_of(const struct launch *l); /* of a launch of ROPE */
int launch_rope(const struct launch *l, struct error *e);

/* Fills turns [rows, 2, D/2], cosines and sines of the `rows` tokens from `first` on. All threads
 * of a block call it; GIVEN: s has positions. */
template <bool GIVEN>
static __device__ inline void fill_turns(float *turns, const float *inv_freq, const rope_shape &s, int64_t first,
                                         int rows)
{
    const int half = (int)(s.D / 2);
    for (int i = threadIdx.x; i < rows * half; i += blockDim.x) {
        const int row = i / half, f = i - row * half;
        float sine, cosine;
        float position = 0;
        if constexpr (GIVEN)
            position = (float)s.positions[(first + row) * s.per +
                                          (s.per == 3 ? shared_coordinate(f, s.sections, s.interleaved) : 0)];
        else position = (float)(s.token + (first + row) % s.T);
        sincosf(__fmul_rn(position, inv_freq[f]), &sine, &cosine);
        turns[row * 2 * half + f] = cosine * s.scale;
        turns[row * 2 * half + half + f] = sine * s.sign * s.scale;
    }
}
