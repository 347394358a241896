/*
 * fast_dq.cu: the attention gradient dq on tensor cores, bf16 and f16, where something is
 * added to the scores: a mask, the position terms of a grid, a bias by distance.
 *
 * Four warps hold 64 queries and their do, 16 each, and traverse the keys in tiles:
 *
 *     s = q k^T,  dp = do v^T   ->   ds = 2^(s - lse) (dp - delta)   ->   dq += ds k
 *
 * With tables, ds also goes through shared memory, where the warp sums it by the keys' grid rows
 * and columns into drel: one warp owns the position terms of 16 queries and adds in one order. At
 * the end drel is written for the tables' gradients, and its contribution is added to dq
 * (dq_tables.cuh). With a bias, each warp likewise adds ds into a row of its own, and the
 * four rows form the block's partial sum. Grids of 64 columns have a kernel of their own
 * (grid64_dq.cu).
 *
 * The next tile is in flight while this one is multiplied, except with tables, where drel needs the
 * shared memory.
 */
#include "cuda/attention/score_bias.cuh"
#include "cuda/attention/dq_tables.cuh"

static_assert(HELD == ATTENTION_FAST_TILE, "a partial sum covers the queries of one block");

/* Keys per tile: longer rows leave less shared memory. */
template <int D> constexpr int keys_to_tile = dq_keys(D);
template <attention_mode MODE> constexpr int slots = dq_slots(MODE);

/* Writes the warp's 16 rows of ds to its part of shared memory. */
template <int KEYS> static __device__ void store_ds(float *tile, const float (&ds)[KEYS / 8][4])
{
    const int lane = threadIdx.x % 32, row = lane / 4, column = lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            *reinterpret_cast<float2 *>(tile + (row + half * 8) * (KEYS + 4) + 8 * n + column) = {ds[n][2 * half], ds[n][2 * half + 1]};
    __syncwarp();
}

/* Adds the warp's 16 rows of ds into its row of bias gradients: one lane per distance between
 * columns. */
template <int KEYS>
static __device__ void gather_biases(const attention &a, float *dbias, float *tile, const float (&ds)[KEYS / 8][4], int first, int s0)
{
    constexpr int P = KEYS + 4;
    const int end = min(s0 + KEYS, a.S);
    store_ds<KEYS>(tile, ds);
    for (int dx = threadIdx.x % 32; dx < a.width; dx += 32)
        for (int r = 0; r < min(16, a.T - first); r++) {
            const int y = (first + r) / a.width, x = (first + r) % a.width;
            for (int ky = s0 / a.width; ky * a.width < end; ky++) {
                const int right = ky * a.width + x + dx, left = ky * a.width + x - dx;
                float sum = 0;
                if (x + dx < a.width && right >= s0 && right < end) sum += tile[r * P + right - s0];
                if (dx && x >= dx && left >= s0 && left < end) sum += tile[r * P + left - s0];
                dbias[abs(y - ky) * a.width + dx] += sum;
            }
        }
    __syncwarp();
}

/* Adds the warp's 16 rows of ds into its rows of drel. */
template <int KEYS>
static __device__ void gather_positions(const attention &a, float *drel, int stride, float *tile, const float (&ds)[KEYS / 8][4], int s0)
{
    constexpr int P = KEYS + 4;
    const int lane = threadIdx.x % 32, end = min(s0 + KEYS, a.S);
    store_ds<KEYS>(tile, ds);
    for (int c = lane; c < a.width; c += 32) {
        int s = s0 - s0 % a.width + c;
        if (s < s0) s += a.width;
        for (; s < end; s += a.width)
#pragma unroll
            for (int r = 0; r < 16; r++) drel[r * stride + a.height + c] += tile[r * P + s - s0];
    }
    const int r = lane % 16;
    for (int y = s0 / a.width; y * a.width < end; y++) {
        const int last = min(end, (y + 1) * a.width);
        float sum = 0;
        for (int s = max(s0, y * a.width) + lane / 16; s < last; s += 2) sum += tile[r * P + s - s0];
        sum += __shfl_xor_sync(0xffffffffu, sum, 16);
        if (lane < 16) drel[r * stride + y] += sum;
    }
    __syncwarp();
}

/* The block's partial sum of a bias gradient: the warps' rows, added in order. */
static __device__ void store_biases(const attention &a, const float *dbias, int64_t b, int64_t h, int tile, int tiles)
{
    for (int i = threadIdx.x; i < a.T; i += FAST_BLOCK) {
        float sum = 0;
        for (int w = 0; w < WARPS; w++) sum += dbias[w * a.T + i];
        a.partial[((b * tiles + tile) * a.H + h) * a.T + i] = sum;
    }
}

/* Writes drel for the tables' gradients, and adds its contribution to dq, which is scaled here. */
template <typename T, int D>
static __device__ void store_positions(const attention &a, float (&dq)[D / 8][4], const float *drel, int stride, T *scratch, int64_t head, int t0)
{
    for (int i = threadIdx.x; i < min(HELD, a.T - t0) * positions(a); i += FAST_BLOCK)
        a.drel[(head * a.T + t0) * positions(a) + i] = drel[i / positions(a) * stride + i % positions(a)];
#pragma unroll
    for (int n = 0; n < D / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) dq[n][i] *= a.scale;
    add_tables<T, D>(dq, a, drel, stride, scratch, t0);
}

template <typename T, int D, attention_mode MODE> __global__ void __launch_bounds__(FAST_BLOCK, 2) fast_dq(const attention a, int stride)
{
    if (!multiplies<T>()) return;
    extern __shared__ __align__(128) uint4 shared[];
    constexpr bool BY_TABLES = MODE == ATTENTION_BY_TABLES, BY_BIAS = MODE == ATTENTION_BY_BIAS;
    constexpr int KEYS = keys_to_tile<D>, N = KEYS / 8, TILE = KEYS * D * 2, SLOTS = slots<MODE>, BEFORE = 2 * HELD * D * 2 + 2 * SLOTS * TILE;
    const unsigned q = shared_address(shared), dout = q + HELD * D * 2, k = dout + HELD * D * 2, v = k + SLOTS * TILE;
    float *key_info = reinterpret_cast<float *>(reinterpret_cast<char *>(shared) + BEFORE);
    float *through = key_info + SLOTS * KEYS, *sums = through + (MODE == ATTENTION_PLAIN ? 0 : HELD * (KEYS + 4));
    float *bias = sums, *dbias = bias + a.T; /* [T], [WARPS][T]; or drel [HELD][stride] */
    const int tiles = (a.T + HELD - 1) / HELD, lane = threadIdx.x % 32, own = threadIdx.x / 32 * 16;
    const block_of block = block_in_order((int64_t)a.B * a.H, tiles, a.causal, true);
    const int64_t b = block.head / a.H, h = block.head % a.H, g = h / (a.H / a.G);
    const int t0 = block.tile * HELD, padded = (a.T + 63) / 64 * 64, R = positions(a);
    const span keys = keys_of(a, t0, HELD);
    const int begin = keys.begin / KEYS * KEYS;
    const T *from_k = row_at<T>(a.k, b, 0, g), *from_v = row_at<T>(a.v, b, 0, g);
    const auto fetch = [&](int slot, int s0) {
        copy_tile<T, D, KEYS>(k + slot * TILE, from_k, a.k.token, s0, a.S);
        copy_tile<T, D, KEYS>(v + slot * TILE, from_v, a.v.token, s0, a.S);
        load_key_info<MODE, KEYS>(key_info + slot * KEYS, a, b, s0);
    };

    copy_tile<T, D, HELD>(q, row_at<T>(a.q, b, 0, h), a.q.token, t0, a.T);
    copy_tile<T, D, HELD>(dout, row_at<T>(a.dout, b, 0, h), a.dout.token, t0, a.T);
    if (begin < keys.end) fetch(0, begin);
    copy_commit();
    if (BY_TABLES)
        for (int i = threadIdx.x; i < HELD * stride; i += FAST_BLOCK) sums[i] = 0;
    if (BY_BIAS) {
        for (int i = threadIdx.x; i < a.T; i += FAST_BLOCK) bias[i] = a.bias[h * a.T + i];
        for (int i = threadIdx.x; i < WARPS * a.T; i += FAST_BLOCK) dbias[i] = 0;
    }
    float lse[2], delta[2], dq[1][D / 8][4];
    const float *rel[2];
    clear(dq);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int t = t0 + own + lane / 4 + 8 * half;
        lse[half] = t < a.T ? a.lse2[block.head * padded + t] : CUDART_INF_F;
        delta[half] = t < a.T ? a.delta[block.head * padded + t] : 0.0f;
        rel[half] = a.rel + (block.head * a.T + min(t, a.T - 1)) * R;
    }

    const unsigned own_q = q + own * 2 * D + ldmatrix_left<D>(lane), own_dout = own_q + (dout - q);
    const float factor = a.scale * LOG2E;
    int slot = 0;
    for (int s0 = begin; s0 < keys.end; s0 += KEYS, slot ^= SLOTS - 1) {
        copy_wait<0>();
        __syncthreads(); /* this tile has arrived, the previous one is no longer read */
        if (SLOTS == 2 && s0 + KEYS < keys.end) fetch(slot ^ 1, s0 + KEYS);
        copy_commit();
        const float *here = key_info + slot * KEYS;
        float x[1][N][4], ds[1][N][4];
        multiply<T, D, 1, N>(x, own_q, k + slot * TILE + ldmatrix_right<D>(lane));
        multiply<T, D, 1, N>(ds, own_dout, v + slot * TILE + ldmatrix_right<D>(lane));
        if (MODE == ATTENTION_PLAIN) add_mask<N>(x[0], here, factor);
        if (BY_TABLES) add_positions<N, false>(x[0], a, here, rel, a.height, s0, factor);
        if (BY_BIAS) add_bias<N>(x[0], a, here, bias, t0 + own + lane / 4, factor);
        if (s0 + KEYS > a.S || !all_seen(a, t0, HELD, s0, KEYS)) mask_scores<false, 1, N>(x, a, t0 + own, s0);
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) ds[0][n][i] = power_of_two(x[0][n][i] - lse[i / 2]) * (ds[0][n][i] - delta[i / 2]);
        if (BY_TABLES) gather_positions<KEYS>(a, sums + own * stride, stride, through + own * (KEYS + 4), ds[0], s0);
        if (BY_BIAS) gather_biases<KEYS>(a, dbias + own / 16 * a.T, through + own * (KEYS + 4), ds[0], t0 + own, s0);
        multiply_add<T, D, 1, N>(dq, ds, k + slot * TILE + ldmatrix_left<D>(lane));
        if (SLOTS == 1) {
            __syncthreads(); /* this tile is no longer read */
            if (s0 + KEYS < keys.end) fetch(0, s0 + KEYS);
            copy_commit();
        }
    }
    copy_wait<0>();
    __syncthreads(); /* the sums are complete */
    if (BY_TABLES) store_positions<T, D>(a, dq[0], sums, stride, reinterpret_cast<T *>(shared), block.head, t0);
    if (BY_BIAS) store_biases(a, dbias, b, h, block.tile, tiles);
    const float scale = BY_TABLES ? 1.0f : a.scale;
    store_rows<T, D>(a.dq, b, h, t0 + own, a.T, dq[0], scale, scale);
}

/* --- launching -------------------------------------------------------------------------------- */

template <typename T, int D, attention_mode MODE> static cudaError_t start(const attention *a, cudaStream_t stream)
{
    static_assert(MODE != ATTENTION_BY_TABLES || dq_tables_bytes<D> <= dq_tile_bytes(D, MODE), "add_tables fits the tiles' buffers");
    static_assert(fast_dq_bytes(D, MODE, position_stride(ATTENTION_GRID), ATTENTION_BIASES) <= ATTENTION_SHARED, "it fits");
    const int stride = position_stride(a->height + a->width);
    const int64_t blocks = (int64_t)a->B * a->H * ((a->T + HELD - 1) / HELD);
    const size_t bytes = fast_dq_bytes(D, MODE, stride, a->T);
    if (blocks < 1 || blocks > INT32_MAX) return cudaErrorInvalidValue; /* the limit of a CUDA grid */
    const cudaError_t rc = allow_shared(fast_dq<T, D, MODE>, bytes);
    if (rc != cudaSuccess) return rc;
    fast_dq<T, D, MODE><<<(unsigned)blocks, FAST_BLOCK, bytes, stream>>>(*a, stride);
    return cudaGetLastError();
}

extern "C" cudaError_t cuda_attention_fast_dq(const struct attention *a, cudaStream_t stream)
{
    return by_type_length_and_mode(a, [&](auto t, auto d, auto mode) { return start<decltype(t), decltype(d)::value, decltype(mode)::value>(a, stream); });
}
