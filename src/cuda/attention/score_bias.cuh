/*
 * score_bias.cuh: terms added to the scores, for forward.cu, dq.cu and dkv.cu:
 * a mask by key, the position terms of a grid, a bias by distance.
 *
 * Rows of fragments are queries here. key_info has one word for each key of a tile: the mask, or
 * the key's cell of the grid. A query's position terms are those of the grid's rows, then, from an
 * even index on, those of its columns.
 */
#ifndef ATTENTION_SCORE_BIAS_CUH
#define ATTENTION_SCORE_BIAS_CUH

#include "cuda/attention/tiles.cuh"

__host__ __device__ inline int columns_offset_even(const attention &a) { return forward_columns(a.height); }

/* Beyond the last key the last key's cell is repeated; those scores are masked. */
template <score_terms ADDED, int KEYS>
__device__ inline void load_key_info(float *key_info, const attention &a, int64_t b, int s0)
{
    for (int i = threadIdx.x; i < KEYS; i += FAST_BLOCK) {
        const int s = min(s0 + i, a.S - 1);
        if (ADDED == ADDS_MASK) key_info[i] = a.mask ? a.mask[b * a.mask_sample + s * a.mask_key] * LOG2E : 0.0f;
        else reinterpret_cast<int *>(key_info)[i] = grid_cell(a, s);
    }
}

/* Loads the position terms of a tile of queries; transposed: the layout of a grid of 64 columns. */
__device__ inline void fetch_positions(float *to, int stride, const attention &a, int64_t head, int t0, bool transposed)
{
    const int R = positions(a), gap = columns_offset_even(a) - a.height;
    const float *from = a.rel + head * a.T * R;
    for (int i = threadIdx.x; i < HELD * R; i += FAST_BLOCK) {
        const int r = transposed ? i % HELD : i / R, c = transposed ? i / HELD : i % R, t = min(t0 + r, a.T - 1);
        to[r * stride + c + (c < a.height ? 0 : gap)] = from[transposed ? (int64_t)c * a.T + t : (int64_t)t * R + c];
    }
}

template <int N> __device__ inline void add_mask(float (&x)[N][4], const float *key_info, float factor)
{
    each<N>([&](int n) {
        const float2 add = pair_at(key_info + 8 * n + threadIdx.x % 4 * 2);
        x[n][0] = fmaf(x[n][0], factor, add.x), x[n][1] = fmaf(x[n][1], factor, add.y);
        x[n][2] = fmaf(x[n][2], factor, add.x), x[n][3] = fmaf(x[n][3], factor, add.y);
    });
}

/* `own`: the position terms of the thread's two queries, whose columns begin at `begin`; PAIRS: at
 * even indices. If the grid's width is a multiple of eight, eight adjacent keys are in one row of
 * the grid. */
template <int N, bool PAIRS>
__device__ inline void add_positions(float (&x)[N][4], const attention &a, const float *key_info,
                                     const float *const (&own)[2], int begin, int s0, float factor)
{
    const int column = threadIdx.x % 4 * 2;
    if (a.width % 8 == 0) {
        int row = s0 / a.width, across = s0 % a.width;
        each<N>([&](int n) {
            each<2>([&](int half) {
                const float *from = own[half] + begin + across + column, row_bias = own[half][row];
                const float2 add = PAIRS ? pair_at(from) : float2{from[0], from[1]};
                x[n][2 * half] = fmaf(x[n][2 * half], factor, row_bias + add.x);
                x[n][2 * half + 1] = fmaf(x[n][2 * half + 1], factor, row_bias + add.y);
            });
            across += 8;
            if (across == a.width) across = 0, row = min(row + 1, a.height - 1);
        });
        return;
    }
    each<N, 4>([&](int n, int i) {
        const int cell = reinterpret_cast<const int *>(key_info)[8 * n + column + i % 2];
        x[n][i] = fmaf(x[n][i], factor, own[i / 2][cell >> 16] + own[i / 2][begin + (cell & 0xffff)]);
    });
}

/* t: the upper of the thread's two queries. */
template <int N>
__device__ inline void add_bias(float (&x)[N][4], const attention &a, const float *key_info, const float *bias, int t,
                                float factor)
{
    const int own[2] = {grid_cell(a, min(t, a.T - 1)), grid_cell(a, min(t + 8, a.T - 1))};
    each<N, 4>([&](int n, int i) {
        const int cell = reinterpret_cast<const int *>(key_info)[8 * n + threadIdx.x % 4 * 2 + i % 2];
        x[n][i] = fmaf(x[n][i], factor, bias[bias_between(a, own[i / 2], cell)]);
    });
}

/* Calls f(T, D, terms, whether there are ranges), as types, for this attention. With ranges nothing
 * is added. */
template <score_terms ADDED> using adds = std::integral_constant<score_terms, ADDED>;
template <typename F> static cudaError_t by_kind(const attention *a, score_terms added, F f)
{
    return by_type_and_length<32, 64, 80, 96, 128>(a, [&](auto t, auto d) {
        switch (added) {
            case ADDS_NOTHING:
                return a->ranges ? f(t, d, adds<ADDS_NOTHING>(), std::true_type())
                                 : f(t, d, adds<ADDS_NOTHING>(), std::false_type());
            case ADDS_MASK: return f(t, d, adds<ADDS_MASK>(), std::false_type());
            case ADDS_TABLES: return f(t, d, adds<ADDS_TABLES>(), std::false_type());
            case ADDS_GRID64: return f(t, d, adds<ADDS_GRID64>(), std::false_type());
            case ADDS_BIAS: return f(t, d, adds<ADDS_BIAS>(), std::false_type());
        }
        return cudaErrorInvalidValue;
    });
}

#endif
