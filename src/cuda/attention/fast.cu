/*
 * fast.cu: the attention forward on tensor cores, bf16 and f16, where something is added
 * to the scores: a mask, the position terms of a grid, a bias by distance.
 *
 * Four warps hold 64 queries, 16 each, in registers, and traverse the keys as dense.cu
 * does. Scores are in base 2: the added terms are multiplied by log2(e) and are in shared memory.
 * Per tile of keys: the mask, or the keys' cells on the grid. For all keys: the position terms of
 * the queries, or the biases of the head.
 */
#include "cuda/attention/score_bias.cuh"

constexpr int KEYS = FAST_KEYS;

template <typename T, int D, attention_mode MODE> __global__ void __launch_bounds__(FAST_BLOCK, D > 96 ? 2 : 3) fast_forward(const attention a, int stride, bool grid64)
{
    if (!multiplies<T>()) return;
    extern __shared__ __align__(128) uint4 shared[];
    constexpr int BEFORE = (HELD + 2 * KEYS) * D * 2;
    const unsigned q = shared_address(shared), k = q + HELD * D * 2, v = k + KEYS * D * 2;
    float *key_info = reinterpret_cast<float *>(reinterpret_cast<char *>(shared) + BEFORE), *extra = key_info + KEYS;
    const int tiles = (a.T + HELD - 1) / HELD, lane = threadIdx.x % 32, own = threadIdx.x / 32 * 16;
    const block_of block = block_in_order((int64_t)a.B * a.H, tiles, a.causal, true);
    const int64_t b = block.head / a.H, h = block.head % a.H, g = h / (a.H / a.G);
    const int t0 = block.tile * HELD;
    const span keys = keys_of(a, t0, HELD);
    const int begin = keys.begin / KEYS * KEYS;
    const T *from_k = row_at<T>(a.k, b, 0, g), *from_v = row_at<T>(a.v, b, 0, g);
    const float factor = a.scale * LOG2E;

    copy_tile<T, D, HELD>(q, row_at<T>(a.q, b, 0, h), a.q.token, t0, a.T);
    if (begin < keys.end) copy_tile<T, D, KEYS>(k, from_k, a.k.token, begin, a.S);
    copy_commit();
    if (MODE == ATTENTION_BY_TABLES) fetch_positions(extra, stride, a, block.head, t0, grid64);
    if (MODE == ATTENTION_BY_BIAS)
        for (int i = threadIdx.x; i < a.T; i += FAST_BLOCK) extra[i] = a.bias[h * a.T + i];

    const float *const positions_of[2] = {extra + (own + lane / 4) * stride, extra + (own + lane / 4 + 8) * stride};
    float o[1][D / 8][4], top[1][2] = {{-CUDART_INF_F, -CUDART_INF_F}}, sum[1][2] = {};
    unsigned held[D / 16][1][4];
    clear(o);
    copy_wait<0>();
    __syncthreads();
    load_held<D, 1>(held, q + own * 2 * D + ldmatrix_left<D>(lane));
    for (int s0 = begin; s0 < keys.end; s0 += KEYS) {
        copy_wait<0>();
        __syncthreads(); /* keys have arrived, values and key_info are no longer read */
        copy_tile<T, D, KEYS>(v, from_v, a.v.token, s0, a.S);
        copy_commit();
        load_key_info<MODE, KEYS>(key_info, a, b, s0);
        float x[1][KEYS / 8][4];
        multiply_held<T, D, 1, KEYS / 8>(x, held, k + ldmatrix_right<D>(lane));
        copy_wait<0>();
        __syncthreads(); /* values and key_info have arrived, keys are no longer read */
        if (s0 + KEYS < keys.end) copy_tile<T, D, KEYS>(k, from_k, a.k.token, s0 + KEYS, a.S);
        copy_commit();
        if (MODE == ATTENTION_PLAIN) add_mask<KEYS / 8>(x[0], key_info, factor);
        if (MODE == ATTENTION_BY_TABLES) add_positions<KEYS / 8, true>(x[0], a, key_info, positions_of, columns_offset_even(a), s0, factor);
        if (MODE == ATTENTION_BY_BIAS) add_bias<KEYS / 8>(x[0], a, key_info, extra, t0 + own + lane / 4, factor);
        if (s0 + KEYS > a.S || !all_seen(a, t0, HELD, s0, KEYS)) mask_scores<false, 1, KEYS / 8>(x, a, t0 + own, s0);
        online_softmax<D, 1, KEYS / 8>(x, o, top, sum, 1.0f);
        multiply_add<T, D, 1, KEYS / 8>(o, x, v + ldmatrix_left<D>(lane));
    }
    copy_wait<0>();
    store_output<T, D, 1>(a, b, h, t0 + own, o, top, sum);
}

/* --- launching -------------------------------------------------------------------------------- */

template <typename T, int D, attention_mode MODE> static cudaError_t start(const attention *a, bool grid64, cudaStream_t stream)
{
    const int stride = position_stride(columns_offset_even(*a) + a->width);
    const int64_t blocks = (int64_t)a->B * a->H * ((a->T + HELD - 1) / HELD);
    static_assert(fast_bytes(D, MODE, position_stride(ATTENTION_GRID + 1), ATTENTION_GRID * ATTENTION_GRID / 4) <= ATTENTION_SHARED, "it fits");
    const size_t bytes = fast_bytes(D, MODE, stride, a->T);
    if (blocks < 1 || blocks > INT32_MAX) return cudaErrorInvalidValue; /* the limit of a CUDA grid */
    const cudaError_t rc = allow_shared(fast_forward<T, D, MODE>, bytes);
    if (rc != cudaSuccess) return rc;
    fast_forward<T, D, MODE><<<(unsigned)blocks, FAST_BLOCK, bytes, stream>>>(*a, stride, grid64);
    return cudaGetLastError();
}

extern "C" cudaError_t cuda_attention_fast(const struct attention *a, int grid64, cudaStream_t stream)
{
    return by_type_length_and_mode(a, [&](auto t, auto d, auto mode) { return start<decltype(t), decltype(d)::value, decltype(mode)::value>(a, grid64, stream); });
}
