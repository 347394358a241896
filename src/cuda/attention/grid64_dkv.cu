/*
 * grid64_dkv.cu: the attention gradient dk, dv for a grid of 64 columns, on tensor cores,
 * bf16 and f16.
 *
 * Like fast_dkv.cu, but the 64 keys that a block holds are row y of the grid. A tile of
 * queries comes with one term per query for the row and, for each key's column, a row of the
 * queries' terms, in the layout of rel. No tile has an edge: T is a multiple of 64.
 */
#include "cuda/attention/tiles.cuh"

constexpr int QUERIES = 32;
/* Per tile of queries: lse, delta, row terms, and column terms, with a pitch such that the pairs
 * read by a warp cause no bank conflicts. */
constexpr int PITCH = QUERIES + 8, STATS = 3 * QUERIES + HELD * PITCH;

constexpr int N = QUERIES / 8; /* fragments per row of a tile */

template <typename T, int D>
static __device__ void fetch(unsigned q, unsigned dout, unsigned stats, const attention &a, int64_t b, int64_t h, int t0, int y)
{
    constexpr int CHUNKS = QUERIES / 4;
    const int64_t head = b * a.H + h;
    const float *rel = a.rel + head * positions(a) * a.T + t0;
    copy_tile<T, D, QUERIES>(q, row_at<T>(a.q, b, 0, h), a.q.token, t0, a.T);
    copy_tile<T, D, QUERIES>(dout, row_at<T>(a.dout, b, 0, h), a.dout.token, t0, a.T);
    const int which = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS * 4;
    if (which < 3) {
        const float *from = which == 0 ? a.lse2 + head * a.T + t0 : which == 1 ? a.delta + head * a.T + t0 : rel + (int64_t)y * a.T;
        copy_to(stats + (which * QUERIES + chunk) * 4, from + chunk, true);
    }
    const float *columns = rel + (int64_t)(a.height + which) * a.T + chunk;
    const unsigned to = stats + (3 * QUERIES + which * PITCH + chunk) * 4;
#pragma unroll
    for (int i = 0; i < HELD * CHUNKS / FAST_BLOCK; i++) {
        copy_to(to + i * (FAST_BLOCK / CHUNKS) * PITCH * 4, columns, true);
        columns += (int64_t)(FAST_BLOCK / CHUNKS) * a.T;
    }
}

/* Turns products into p and ds, the latter not yet scaled. `key`: the upper of the thread's two
 * keys. */
static __device__ void compute_p_ds(float (&x)[N][4], float (&dp)[N][4], const float *stats, int key, float factor)
{
#pragma unroll
    for (int n = 0; n < N; n++) {
        const float *own = stats + 8 * n + threadIdx.x % 4 * 2;
        const float2 lse = *reinterpret_cast<const float2 *>(own), delta = *reinterpret_cast<const float2 *>(own + QUERIES);
        const float2 row = *reinterpret_cast<const float2 *>(own + 2 * QUERIES);
        const float before[2] = {row.x - lse.x, row.y - lse.y};
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float2 column = *reinterpret_cast<const float2 *>(own + 3 * QUERIES + (key + 8 * half) * PITCH);
            float *p = &x[n][2 * half], *ds = &dp[n][2 * half];
            p[0] = power_of_two(fmaf(p[0], factor, column.x + before[0])), p[1] = power_of_two(fmaf(p[1], factor, column.y + before[1]));
            ds[0] = p[0] * (ds[0] - delta.x), ds[1] = p[1] * (ds[1] - delta.y);
        }
    }
}

template <typename T, int D> __global__ void __launch_bounds__(FAST_BLOCK, D > 64 ? 2 : 3) level_dkv(const attention a)
{
    if (!multiplies<T>()) return;
    extern __shared__ __align__(128) uint4 shared[];
    constexpr int TILE = QUERIES * D * 2;
    static_assert(2 * HELD == 4 * QUERIES, "keys and values are loaded through the tiles' buffers");
    const unsigned q = shared_address(shared), dout = q + 2 * TILE, stats = q + 4 * TILE;
    const int group = a.H / a.G, lane = threadIdx.x % 32, own = threadIdx.x / 32 * 16;
    const int y = (int)(blockIdx.x % a.height), s0 = y * HELD;
    const int64_t head = blockIdx.x / a.height, b = head / a.G, g = head % a.G;

    copy_tile<T, D, HELD>(q, row_at<T>(a.k, b, 0, g), a.k.token, s0, a.S);
    copy_tile<T, D, HELD>(dout, row_at<T>(a.v, b, 0, g), a.v.token, s0, a.S);
    copy_commit();
    unsigned k[D / 16][1][4], v[D / 16][1][4];
    copy_wait<0>();
    __syncthreads();
    load_held<D, 1>(k, q + own * 2 * D + ldmatrix_left<D>(lane));
    load_held<D, 1>(v, dout + own * 2 * D + ldmatrix_left<D>(lane));
    __syncthreads();
    fetch<T, D>(q, dout, stats, a, b, g * group, 0, y);
    copy_commit();

    float dk[1][D / 8][4], dv[1][D / 8][4];
    clear(dk), clear(dv);
    const float factor = a.scale * LOG2E;
    int slot = 0, t0 = 0;
    for (int h = 0; h < group;) { /* over heads, then tiles */
        const int next = t0 + QUERIES < a.T ? t0 + QUERIES : 0, next_h = next ? h : h + 1, other = slot ^ 1;
        copy_wait<0>();
        __syncthreads(); /* this tile has arrived, the previous one is no longer read */
        if (next_h < group) fetch<T, D>(q + other * TILE, dout + other * TILE, stats + other * STATS * 4, a, b, g * group + next_h, next, y);
        copy_commit();
        const unsigned here_q = q + slot * TILE, here_dout = dout + slot * TILE;
        const float *here = reinterpret_cast<const float *>(reinterpret_cast<const char *>(shared) + 4 * TILE) + slot * STATS;
        float p[1][N][4], ds[1][N][4];
        multiply_held<T, D, 1, N>(p, k, here_q + ldmatrix_right<D>(lane));
        multiply_held<T, D, 1, N>(ds, v, here_dout + ldmatrix_right<D>(lane));
        compute_p_ds(p[0], ds[0], here, own + lane / 4, factor);
        multiply_add<T, D, 1, N>(dv, p, here_dout + ldmatrix_left<D>(lane));
        multiply_add<T, D, 1, N>(dk, ds, here_q + ldmatrix_left<D>(lane));
        slot = other, h = next_h, t0 = next;
    }
    copy_wait<0>();
    store_rows<T, D>(a.dk, b, g, s0 + own, a.S, dk[0], a.scale, a.scale);
    store_rows<T, D>(a.dv, b, g, s0 + own, a.S, dv[0], 1.0f, 1.0f);
}

/* --- launching -------------------------------------------------------------------------------- */

template <typename T, int D> static cudaError_t start(const attention *a, cudaStream_t stream)
{
    const int64_t blocks = (int64_t)a->B * a->G * a->height;
    constexpr size_t bytes = 4 * QUERIES * D * sizeof(T) + 2 * STATS * sizeof(float);
    static_assert(bytes <= (D <= ATTENTION_SMALL ? ATTENTION_SHARED_SM75 : ATTENTION_SHARED), "it fits");
    if (blocks < 1 || blocks > INT32_MAX) return cudaErrorInvalidValue; /* the limit of a CUDA grid */
    const cudaError_t rc = allow_shared(level_dkv<T, D>, bytes);
    if (rc != cudaSuccess) return rc;
    level_dkv<T, D><<<(unsigned)blocks, FAST_BLOCK, bytes, stream>>>(*a);
    return cudaGetLastError();
}

extern "C" cudaError_t cuda_attention_grid64_dkv(const struct attention *a, cudaStream_t stream)
{
    return by_type_and_length(a, [&](auto t, auto d) { return start<decltype(t), decltype(d)::value>(a, stream); });
}
