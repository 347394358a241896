/*
 * grid64_dq.cu: the attention gradient dq for a grid of 64 columns, on tensor cores, bf16
 * and f16.
 *
 * Like fast_dq.cu, but a tile of 64 keys is one row of the grid. A query has one row term
 * for all of them, and a column term for each, which is the same in every tile and stays in
 * registers. So do the sums of ds by the keys' columns, one addition per tile; by the keys' rows a
 * tile has one sum, which is written to drel at once. ds does not pass through shared memory, which
 * leaves room for double-buffered tiles. At the end drel overwrites the tiles, and its contribution
 * is added to dq (dq_tables.cuh).
 */
#include "cuda/attention/dq_tables.cuh"
#include "cuda/attention/tiles.cuh"

constexpr int KEYS = 64;

constexpr int N = KEYS / 8; /* fragments per row of a tile */

/* Turns products into ds, not yet scaled, and adds up its sums. `before`: the row term of each
 * query minus its lse. */
static __device__ void make_ds(float (&ds)[N][4], const float (&x)[N][4], const float (&across)[N][4], float (&columns)[N][4],
                               float (&row)[2], const float (&before)[2], const float (&delta)[2], float factor)
{
    row[0] = row[1] = 0;
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float p = power_of_two(fmaf(x[n][i], factor, across[n][i] + before[i / 2]));
            ds[n][i] = p * (ds[n][i] - delta[i / 2]);
            columns[n][i] += ds[n][i];
            row[i / 2] += ds[n][i];
        }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        row[half] += __shfl_xor_sync(0xffffffffu, row[half], 1);
        row[half] += __shfl_xor_sync(0xffffffffu, row[half], 2);
    }
}

template <typename T, int D> __global__ void __launch_bounds__(FAST_BLOCK, 2) level_dq(const attention a, int stride)
{
    if (!multiplies<T>()) return;
    extern __shared__ __align__(128) uint4 shared[];
    constexpr int TILE = KEYS * D * 2;
    const unsigned q = shared_address(shared), dout = q + HELD * D * 2, k = dout + HELD * D * 2, v = k + 2 * TILE;
    const int tiles = (a.T + HELD - 1) / HELD, lane = threadIdx.x % 32, own = threadIdx.x / 32 * 16, R = positions(a);
    const int64_t head = blockIdx.x / tiles, b = head / a.H, h = head % a.H, g = h / (a.H / a.G);
    const int t0 = (int)(blockIdx.x % tiles) * HELD; /* T is a multiple of 64 */
    const T *from_k = row_at<T>(a.k, b, 0, g), *from_v = row_at<T>(a.v, b, 0, g);

    copy_tile<T, D, HELD>(q, row_at<T>(a.q, b, 0, h), a.q.token, t0, a.T);
    copy_tile<T, D, HELD>(dout, row_at<T>(a.dout, b, 0, h), a.dout.token, t0, a.T);
    copy_tile<T, D, KEYS>(k, from_k, a.k.token, 0, a.S);
    copy_tile<T, D, KEYS>(v, from_v, a.v.token, 0, a.S);
    copy_commit();
    float lse[2], delta[2], row_bias[2], across[N][4], columns[1][N][4], dq[1][D / 8][4];
    clear(dq), clear(columns);
    const int64_t first = t0 + own + lane / 4; /* the first of the thread's two queries */
    const float *rel = a.rel + head * R * a.T + first;
    float *drel = a.drel + head * R * a.T + first;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        lse[half] = a.lse2[head * a.T + first + 8 * half], delta[half] = a.delta[head * a.T + first + 8 * half], row_bias[half] = rel[8 * half];
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) across[n][2 * half + i] = rel[(int64_t)(a.height + 8 * n + lane % 4 * 2 + i) * a.T + 8 * half];
    }

    const unsigned own_q = q + own * 2 * D + ldmatrix_left<D>(lane), own_dout = own_q + (dout - q);
    const float factor = a.scale * LOG2E;
    unsigned slot = 0;
    for (int y = 0; y < a.height; y++, slot ^= TILE) {
        copy_wait<0>();
        __syncthreads(); /* this tile has arrived, the previous one is no longer read */
        if (y + 1 < a.height) {
            copy_tile<T, D, KEYS>(k + (slot ^ TILE), from_k, a.k.token, (y + 1) * KEYS, a.S);
            copy_tile<T, D, KEYS>(v + (slot ^ TILE), from_v, a.v.token, (y + 1) * KEYS, a.S);
        }
        copy_commit();
        const float before[2] = {row_bias[0] - lse[0], row_bias[1] - lse[1]};
        const float *next = rel + (int64_t)min(y + 1, a.height - 1) * a.T;
        row_bias[0] = next[0], row_bias[1] = next[8];
        float x[1][N][4], ds[1][N][4], row[2];
        multiply<T, D, 1, N>(x, own_q, k + slot + ldmatrix_right<D>(lane));
        multiply<T, D, 1, N>(ds, own_dout, v + slot + ldmatrix_right<D>(lane));
        make_ds(ds[0], x[0], across, columns[0], row, before, delta, factor);
        if (lane % 4 == 0) drel[(int64_t)y * a.T] = row[0], drel[(int64_t)y * a.T + 8] = row[1];
        multiply_add<T, D, 1, N>(dq, ds, k + slot + ldmatrix_left<D>(lane));
    }
    copy_wait<0>();
    __syncthreads(); /* the tiles are no longer read; the row sums of drel are written */

    float *sums = reinterpret_cast<float *>(shared);
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int c = a.height + 8 * n + lane % 4 * 2 + i % 2;
            sums[(own + lane / 4 + i / 2 * 8) * stride + c] = columns[0][n][i];
            drel[(int64_t)c * a.T + i / 2 * 8] = columns[0][n][i];
        }
    for (int i = threadIdx.x; i < HELD * a.height; i += FAST_BLOCK)
        sums[i % HELD * stride + i / HELD] = a.drel[(head * R + i / HELD) * a.T + t0 + i % HELD];
#pragma unroll
    for (int n = 0; n < D / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) dq[0][n][i] *= a.scale;
    add_tables<T, D>(dq[0], a, sums, stride, reinterpret_cast<T *>(sums + HELD * stride), t0);
    store_rows<T, D>(a.dq, b, h, t0 + own, a.T, dq[0], 1.0f, 1.0f);
}

/* --- launching -------------------------------------------------------------------------------- */

template <typename T, int D> static cudaError_t start(const attention *a, cudaStream_t stream)
{
    const int stride = position_stride(a->height + a->width);
    const int64_t blocks = (int64_t)a->B * a->H * a->height;
    constexpr size_t tiles = (2 * HELD + 4 * KEYS) * D * sizeof(T), most = HELD * position_stride(2 * ATTENTION_GRID64_WIDTH) * sizeof(float) + dq_tables_bytes<D>;
    static_assert((tiles > most ? tiles : most) <= (D <= ATTENTION_SMALL ? ATTENTION_SHARED_SM75 : ATTENTION_SHARED), "it fits");
    const size_t after = HELD * (size_t)stride * sizeof(float) + dq_tables_bytes<D>, bytes = tiles > after ? tiles : after;
    if (blocks < 1 || blocks > INT32_MAX) return cudaErrorInvalidValue; /* the limit of a CUDA grid */
    const cudaError_t rc = allow_shared(level_dq<T, D>, bytes);
    if (rc != cudaSuccess) return rc;
    level_dq<T, D><<<(unsigned)blocks, FAST_BLOCK, bytes, stream>>>(*a, stride);
    return cudaGetLastError();
}

extern "C" cudaError_t cuda_attention_grid64_dq(const struct attention *a, cudaStream_t stream)
{
    return by_type_and_length(a, [&](auto t, auto d) { return start<decltype(t), decltype(d)::value>(a, stream); });
}
