/*
 * attention_fast.cu: attention's forward on tensor cores, bf16 and f16.
 *
 * Four warps hold 64 queries, 16 each, and walk the keys in tiles of 64, the next tile on its
 * way while this one is multiplied:
 *
 *     s = q k^T   ->   p = 2^(s - running maximum)   ->   o = o * shrink + p v
 *
 * s and p live in registers, p rounded to the storage's type for its product; sums are f32.
 * Scores are powers of two: scale, mask and positions come multiplied by log2(e). Over a grid, the
 * queries' positions or the head's biases lie in shared memory.
 */
#include "cuda/attention_mma.cuh"

constexpr int KEYS = 64;

/* The part of shared memory behind the tiles: by key of two tiles what is added and where it
 * lies on the grid; the queries' positions, or the biases. */
struct key_notes {
    float add[2][KEYS];
    int place[2][KEYS];
};

#if HAS_MMA

static __device__ void note_keys(key_notes *notes, int slot, const attention &a, int64_t b, int s0)
{
    for (int i = threadIdx.x; i < KEYS; i += FAST_BLOCK) {
        const int s = s0 + i;
        float add = s < a.S ? 0.0f : -CUDART_INF_F;
        if (a.mask && s < a.S) add = a.mask[b * a.mask_sample + s * a.mask_key] * LOG2E;
        notes->add[slot][i] = add;
        notes->place[slot][i] = a.mode == ATTENTION_PLAIN ? 0 : place_of(a, s);
    }
}

/* Whether a tile of keys lies in one row of the grid, and its columns from an even place on. */
static __device__ bool is_level(const attention &a, int s0)
{
    return a.mode == ATTENTION_BY_TABLES && s0 / a.width == (s0 + KEYS - 1) / a.width && (a.height + s0 % a.width) % 2 == 0;
}

/* Turns products into scores for such a tile: its row's number is one, its columns' lie side by side. */
static __device__ void make_level_scores(float (&x)[KEYS / 8][4], const attention &a, const float *extra, int stride, int s0)
{
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4, column = lane % 4 * 2;
    const float factor = a.scale * LOG2E;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float *from = extra + (row + 8 * half) * stride;
        const float2 *columns = reinterpret_cast<const float2 *>(from + a.height + s0 % a.width + column);
        const float level = from[s0 / a.width];
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) {
            const float2 two = columns[4 * n];
            x[n][2 * half] = x[n][2 * half] * factor + (level + two.x);
            x[n][2 * half + 1] = x[n][2 * half + 1] * factor + (level + two.y);
        }
    }
}

/* Turns products into scores. */
static __device__ void make_scores(float (&x)[KEYS / 8][4], const attention &a, const key_notes *notes, int slot,
                                   const float *extra, int stride, int t0, int s0)
{
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4, column = lane % 4 * 2;
    const bool whole = all_seen(a, t0, HELD, s0, KEYS);
    const float factor = a.scale * LOG2E;
    const int own[2] = {place_of(a, t0 + row), place_of(a, t0 + row + 8)};
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int c = 8 * n + column + i % 2, r = row + i / 2 * 8;
            float score = x[n][i] * factor + notes->add[slot][c];
            if (a.mode == ATTENTION_BY_TABLES) {
                const int place = notes->place[slot][c];
                /* beyond the last key a place is off the grid */
                if (s0 + c < a.S) score += extra[r * stride + (place >> 16)] + extra[r * stride + a.height + (place & 0xffff)];
            }
            if (a.mode == ATTENTION_BY_BIAS && s0 + c < a.S && t0 + r < a.T)
                score += extra[bias_between(a, own[i / 2], notes->place[slot][c])];
            if (!whole && !key_seen(a, t0 + r, s0 + c)) score = -CUDART_INF_F;
            x[n][i] = score;
        }
}

/* Scores to probabilities against the running maximum of a row of either half; o and sum shrink. */
template <int D>
static __device__ void soften(float (&x)[KEYS / 8][4], float (&o)[D / 8][4], float (&top)[2], float (&sum)[2])
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float here = top[half], part = 0;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) here = fmaxf(here, fmaxf(x[n][2 * half], x[n][2 * half + 1]));
        here = fmaxf(here, __shfl_xor_sync(0xffffffffu, here, 1));
        here = fmaxf(here, __shfl_xor_sync(0xffffffffu, here, 2));
        const float base = here == -CUDART_INF_F ? 0.0f : here; /* nothing seen so far: 2^-inf = 0 */
        const float shrink = exp2f(top[half] - base);
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int i = 2 * half; i < 2 * half + 2; i++) part += x[n][i] = exp2f(x[n][i] - base);
        sum[half] = sum[half] * shrink + part; /* of this thread's columns */
        top[half] = here;
#pragma unroll
        for (int n = 0; n < D / 8; n++) o[n][2 * half] *= shrink, o[n][2 * half + 1] *= shrink;
    }
}

#endif

template <typename T, int D> __global__ void __launch_bounds__(FAST_BLOCK) fast_forward(const attention a, int stride)
{
#if HAS_MMA
    extern __shared__ uint4 shared[];
    constexpr int TILE = KEYS * (D + 8);
    T *q = reinterpret_cast<T *>(shared), *k = q + HELD * (D + 8), *v = k + 2 * TILE;
    key_notes *notes = reinterpret_cast<key_notes *>(v + 2 * TILE);
    float *extra = reinterpret_cast<float *>(notes + 1);
    const int tiles = (a.T + HELD - 1) / HELD, t0 = (int)(blockIdx.x % tiles) * HELD;
    const int64_t head = blockIdx.x / tiles, b = head / a.H, h = head % a.H, g = h / (a.H / a.G);
    const span keys = keys_of(a, t0, HELD);

    copy_rows<T, D, HELD>(q, a.q, b, h, t0, a.T);
    if (a.mode == ATTENTION_BY_TABLES)
        for (int i = threadIdx.x; i < HELD * positions(a); i += FAST_BLOCK) {
            const int r = i / positions(a), c = i % positions(a);
            extra[r * stride + c] = t0 + r < a.T ? a.rel[(head * a.T + t0 + r) * positions(a) + c] : 0.0f;
        }
    if (a.mode == ATTENTION_BY_BIAS)
        for (int i = threadIdx.x; i < a.T; i += FAST_BLOCK) extra[i] = a.bias[h * a.T + i];
    if (keys.begin < keys.end) {
        copy_rows<T, D, KEYS>(k, a.k, b, g, keys.begin, a.S);
        copy_rows<T, D, KEYS>(v, a.v, b, g, keys.begin, a.S);
        note_keys(notes, 0, a, b, keys.begin);
    }
    copy_commit();

    float o[D / 8][4], top[2] = {-CUDART_INF_F, -CUDART_INF_F}, sum[2] = {0, 0};
#pragma unroll
    for (int n = 0; n < D / 8; n++) o[n][0] = o[n][1] = o[n][2] = o[n][3] = 0;
    int slot = 0;
    for (int s0 = keys.begin; s0 < keys.end; s0 += KEYS, slot ^= 1) {
        if (s0 + KEYS < keys.end) {
            copy_rows<T, D, KEYS>(k + (slot ^ 1) * TILE, a.k, b, g, s0 + KEYS, a.S);
            copy_rows<T, D, KEYS>(v + (slot ^ 1) * TILE, a.v, b, g, s0 + KEYS, a.S);
            note_keys(notes, slot ^ 1, a, b, s0 + KEYS);
        }
        copy_commit();
        copy_wait<1>();
        __syncthreads();
        float x[KEYS / 8][4];
        product_rows<T, D, KEYS / 8>(x, q + threadIdx.x / 32 * 16 * (D + 8), k + slot * TILE);
        if (is_level(a, s0)) make_level_scores(x, a, extra, stride, s0);
        else make_scores(x, a, notes, slot, extra, stride, t0, s0);
        soften<D>(x, o, top, sum);
        product_add<T, D, KEYS / 8>(o, x, v + slot * TILE);
        __syncthreads();
    }
    copy_wait<0>();

    const int lane = threadIdx.x % 32, first = t0 + threadIdx.x / 32 * 16;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 1);
        sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 2);
        const int t = first + lane / 4 + 8 * half;
        if (lane % 4 == 0 && t < a.T)
            *lse_at(a, b, h, t) = sum[half] == 0 ? -CUDART_INF_F : top[half] * LN2 + logf(sum[half]);
    }
    store_rows<T, D>(a.o, b, h, first, a.T, o, sum[0] == 0 ? 0.0f : 1 / sum[0], sum[1] == 0 ? 0.0f : 1 / sum[1]);
#endif
}

/* --- launching -------------------------------------------------------------------------------- */

template <typename T, int D> static cudaError_t start(const attention *a, cudaStream_t stream)
{
    const int stride = position_stride(a->height + a->width);
    const int64_t blocks = (int64_t)a->B * a->H * ((a->T + HELD - 1) / HELD);
    size_t bytes = (HELD + 4 * KEYS) * (D + 8) * sizeof(T) + sizeof(key_notes);
    if (a->mode == ATTENTION_BY_TABLES) bytes += (size_t)(HELD * stride) * sizeof(float);
    if (a->mode == ATTENTION_BY_BIAS) bytes += (size_t)a->T * sizeof(float);
    if (blocks < 1 || blocks > INT32_MAX) return cudaErrorInvalidValue; /* blocks of one grid */
    const cudaError_t rc = allow_shared(fast_forward<T, D>, bytes);
    if (rc != cudaSuccess) return rc;
    fast_forward<T, D><<<(unsigned)blocks, FAST_BLOCK, bytes, stream>>>(*a, stride);
    return cudaGetLastError();
}

extern "C" cudaError_t cuda_attention_fast(const struct attention *a, cudaStream_t stream)
{
    return by_type_and_length(a, [&](auto t, auto d) { return start<decltype(t), decltype(d)::value>(a, stream); });
}
