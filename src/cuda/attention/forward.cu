/*
 * forward.cu: the attention forward on tensor cores, bf16 and f16: dense, causal, sliding window,
 * grouped heads; a mask, the position terms of a grid or a bias by distance may be added to the
 * scores.
 *
 * Four warps hold queries and traverse the keys in tiles. Keys and values have one buffer each in
 * shared memory; while one is multiplied, the other is loaded:
 *
 *     s = q k^T   ->   p = 2^(s - maximum)   ->   o += p v
 *     values' copy     next keys' copy
 *
 * s and p are in registers, p rounded to the storage type for its product; sums are f32. Only tiles
 * at an edge are masked. A warp holds 32 queries if nothing is added, 16 of a head of 256, else 16
 * in registers. Added terms are multiplied by log2(e) and are in shared memory. Per tile of keys:
 * the mask, or the keys' cells on the grid. For all keys: the position terms of the queries, or the
 * biases of the head. With RANGES each query has a range of keys (ranges.cuh).
 */
#include "cuda/attention/tiles.cuh"

/* Groups of 16 queries per warp; keys per tile: longer rows leave fewer registers. */
template <int D, score_terms ADDED> constexpr int sixteens = is_bare<ADDED> && D <= 128 ? 2 : 1;
template <int D, score_terms ADDED> constexpr int keys_to_tile = ADDED == ADDS_NOTHING && D <= 64 ? 128 : FAST_KEYS;

template <typename T, int D, score_terms ADDED, bool RANGES>
__global__ void __launch_bounds__(FAST_BLOCK, is_bare<ADDED> || D > 96 ? 2 : 3)
    tiles_forward(const attention a, int stride, bool grid64)
{
    if (!multiplies<T>()) return;
    extern __shared__ __align__(128) uint4 shared[];
    constexpr bool BARE = is_bare<ADDED>;
    constexpr int M = sixteens<D, ADDED>, QUERIES = WARPS * 16 * M, KEYS = keys_to_tile<D, ADDED>, N = KEYS / 8;
    const unsigned q = shared_address(shared), k = q + QUERIES * D * 2, v = k + KEYS * D * 2;
    float *key_info = reinterpret_cast<float *>(reinterpret_cast<char *>(shared) + (QUERIES + 2 * KEYS) * D * 2),
          *extra = key_info + KEYS;
    const int tiles = (a.T + QUERIES - 1) / QUERIES, lane = threadIdx.x % 32, own = threadIdx.x / 32 * 16 * M;
    const block_of block = block_in_order((int64_t)a.B * a.H, tiles, a.causal || RANGES, true);
    const int64_t b = block.head / a.H, h = block.head % a.H, g = h / (a.H / a.G);
    const int t0 = block.tile * QUERIES;
    span keys;
    if constexpr (RANGES) {
        const range_tile x = bounds_of(a, b, t0, QUERIES);
        if (threadIdx.x == 0) block_bounds() = x;
        keys = {x.begin, x.end};
    } else {
        keys = keys_of(a, t0, QUERIES);
    }
    const int begin = keys.begin / KEYS * KEYS;
    const T *from_k = row_at<T>(a.k, b, 0, g), *from_v = row_at<T>(a.v, b, 0, g);
    const float factor = a.scale * LOG2E;

    copy_tile<T, D, QUERIES>(q, row_at<T>(a.q, b, 0, h), a.q, t0, a.T);
    if (begin < keys.end) copy_tile<T, D, KEYS>(k, from_k, a.k, begin, a.S);
    copy_commit();
    if (ADDED == ADDS_TABLES) fetch_positions(extra, stride, a, block.head, t0, grid64);
    if (ADDED == ADDS_BIAS)
        for (int i = threadIdx.x; i < a.T; i += FAST_BLOCK) extra[i] = a.bias[h * a.T + i];

    const float *const positions_of[2] = {extra + (own + lane / 4) * stride, extra + (own + lane / 4 + 8) * stride};
    const unsigned own_q = q + own * 2 * D + ldmatrix_left<D>(lane);
    float o[M][D / 8][4], top[M][2], sum[M][2] = {};
    unsigned held[BARE ? 1 : D / 16][M][4];
    clear(o);
    each<M>([&](int m) { top[m][0] = top[m][1] = -CUDART_INF_F; });
    if constexpr (!BARE) {
        copy_wait<0>();
        __syncthreads();
        load_held<D, M>(held, own_q);
    }
    for (int s0 = begin; s0 < keys.end; s0 += KEYS) {
        copy_wait<0>();
        __syncthreads(); /* keys have arrived, values and key_info are no longer read */
        copy_tile<T, D, KEYS>(v, from_v, a.v, s0, a.S);
        copy_commit();
        float x[M][N][4];
        if constexpr (BARE) {
            multiply<T, D, M, N>(x, own_q, k + ldmatrix_right<D>(lane));
        } else {
            load_key_info<ADDED, KEYS>(key_info, a, b, s0);
            multiply_held<T, D, M, N>(x, held, k + ldmatrix_right<D>(lane));
        }
        copy_wait<0>();
        __syncthreads(); /* values and key_info have arrived, keys are no longer read */
        if (s0 + KEYS < keys.end) copy_tile<T, D, KEYS>(k, from_k, a.k, s0 + KEYS, a.S);
        copy_commit();
        if constexpr (ADDED == ADDS_CAP) cap_scores(x, a);
        if (ADDED == ADDS_MASK) add_mask<N>(x[0], key_info, factor);
        if (ADDED == ADDS_TABLES)
            add_positions<N, true>(x[0], a, key_info, positions_of, columns_offset_even(a), s0, factor);
        if (ADDED == ADDS_BIAS) add_bias<N>(x[0], a, key_info, extra, t0 + own + lane / 4, factor);
        if constexpr (RANGES) {
            if (!sees_all(block_bounds(), s0, KEYS)) set_unseen(x, a, b, t0 + own, s0, -CUDART_INF_F);
            if (is_mixed(block_bounds(), s0, KEYS)) {
                __shared__ unsigned bad[KEYS / 32];
                clean_tile<T, D, KEYS>(reinterpret_cast<char *>(shared) + (QUERIES + KEYS) * D * 2, bad);
                __syncthreads();
                spoil_scores(x, bad);
            }
        } else if (s0 + KEYS > a.S || !all_seen(a, t0, QUERIES, s0, KEYS)) {
            mask_scores<false, M, N>(x, a, t0 + own, s0);
        }
        if constexpr (RANGES)
            online_softmax<D, M, N, true>(x, o, top, sum, ADDED == ADDS_NOTHING ? factor : 1.0f, block_bounds().border);
        else online_softmax<D, M, N>(x, o, top, sum, ADDED == ADDS_NOTHING ? factor : 1.0f);
        multiply_add<T, D, M, N>(o, x, v + ldmatrix_left<D>(lane));
    }
    copy_wait<0>();
    store_output<T, D, M>(a, b, h, t0 + own, o, top, sum);
}

/* A grid of 64 columns has its position terms transposed. */
extern "C" cudaError_t cuda_attention_forward(const struct attention *a, enum score_terms added, cudaStream_t stream)
{
    return by_kind(a, added, [&](auto t, auto d, auto terms, auto ranges) {
        constexpr bool GRID64 = terms == ADDS_GRID64;
        constexpr score_terms ADDED = GRID64 ? ADDS_TABLES : terms;
        constexpr int D = d, QUERIES = WARPS * 16 * sixteens<D, ADDED>;
        constexpr size_t bare = (QUERIES + 2 * keys_to_tile<D, ADDED>) * D * sizeof t;
        static_assert(!is_bare<ADDED> || bare <= (D <= 128 ? ATTENTION_SHARED_SM75 : ATTENTION_SHARED),
                      "it fits, on 7.5 too");
        static_assert(fast_bytes(D, ADDED, position_stride(ATTENTION_GRID + 1), ATTENTION_GRID * ATTENTION_GRID / 4) <=
                          ATTENTION_SHARED,
                      "it fits");
        const int stride = position_stride(columns_offset_even(*a) + a->width);
        return start_kernel(tiles_forward<decltype(t), D, ADDED, ranges>,
                            (int64_t)a->B * a->H * ((a->T + QUERIES - 1) / QUERIES), FAST_BLOCK,
                            is_bare<ADDED> ? bare : fast_bytes(D, ADDED, stride, a->T), stream, *a, stride,
                            GRID64);
    });
}
