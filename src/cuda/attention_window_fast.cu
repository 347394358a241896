/*
 * attention_window_fast.cu: attention within squares on tensor cores, bf16 and f16: the forward.
 *
 * A block has a square of a head: its keys and values in shared memory, seven warps that take tiles of 16
 * queries; four where heads of 80 leave no room for more. A tile's positions come from one product with the tables, and wait in the warp's part of
 * shared memory, where its queries were; those by columns then are registers, since a row of the
 * square always begins at a fragment's first column. Four rows of keys at a time go through the softmax.
 */
#include "cuda/attention_window_mma.cuh"


/* Elements of a warp's own part: 16 queries, then 16 rows of positions. */
template <int D> constexpr int own_elements = 16 * (D + 8) > 16 * REL * 2 ? 16 * (D + 8) : 16 * REL * 2;

template <int D, int W> constexpr size_t forward_bytes = sizeof(uint16_t) * ((2 * PLACES + BOTH) * (D + 8) + W * own_elements<D>);
static_assert(forward_bytes<64, 7> <= WINDOW_SHARED && forward_bytes<80, 4> <= WINDOW_SHARED, "what every card from 8.0 on gives a block");

#if HAS_MMA

constexpr int ROWS = 4; /* of keys to a softmax */

/* What the softmax of a tile knows so far: the thread's two queries. */
struct so_far {
    float most[2], sum[2];
};

/* Scores become probabilities against the new maximum; o so far is scaled to it. */
template <int N, int M> static __device__ void soften(float (&x)[N][4], float (&o)[M][4], so_far &at)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float most = at.most[half];
#pragma unroll
        for (int n = 0; n < N; n++) most = fmaxf(most, fmaxf(x[n][2 * half], x[n][2 * half + 1]));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
        const float factor = exp2f(at.most[half] - most);
        float sum = 0;
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 2 * half; i < 2 * half + 2; i++) x[n][i] = exp2f(x[n][i] - most), sum += x[n][i];
        at.most[half] = most, at.sum[half] = at.sum[half] * factor + sum;
#pragma unroll
        for (int n = 0; n < M; n++) o[n][2 * half] *= factor, o[n][2 * half + 1] *= factor;
    }
}

/* The 16 queries from r0 on, which lie in the warp's own part. */
template <typename T, int D>
static __device__ void take_tile(const window_attention &a, const square &s, const T *k, const T *v, const T *tables, T *own, int r0)
{
    constexpr int ROW = D + 8;
    const int lane = threadIdx.x % 32, row = lane / 4, column = lane % 4 * 2;
    const float factor = a.scale * LOG2E;
    float *rel = reinterpret_cast<float *>(own);
    unsigned q[D / 16][4];
#pragma unroll
    for (int i = 0; i < D / 16; i++) load4(q[i], own + lane % 16 * ROW + lane / 16 * 8 + 16 * i);
    __syncwarp();
    tile_positions<T, D>(rel, q, tables, a, s, r0);
    float across[2][4];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int c = i / 2 % 2 * 8 + column + i % 2;
        across[i / 4][i % 4] = c < a.window ? rel[(row + i / 4 * 8) * REL + SIDE + c] : -CUDART_INF_F;
    }
    const T *keys = k + (lane / 16 * 8 + lane % 8) * ROW + lane / 8 % 2 * 8, *values = v + lane % 16 * ROW + lane / 16 * 8;
    float o[D / 8][4] = {};
    so_far at = {{-CUDART_INF_F, -CUDART_INF_F}, {0, 0}};
    for (int y0 = 0; y0 < a.window; y0 += ROWS) {
        float x[2 * ROWS][4];
#pragma unroll
        for (int y = 0; y < ROWS; y++) {
            const bool is_there = y0 + y < a.window;
            float down[2] = {0, 0};
#pragma unroll
            for (int i = 0; i < 8; i++) x[2 * y + i / 4][i % 4] = is_there ? 0.0f : -CUDART_INF_F;
            if (!is_there) continue;
#pragma unroll
            for (int half = 0; half < 2; half++) down[half] = rel[(row + 8 * half) * REL + y0 + y];
#pragma unroll
            for (int i = 0; i < D / 16; i++) {
                unsigned b[4];
                load4(b, keys + (y0 + y) * SIDE * ROW + 16 * i);
                mma(x[2 * y], q[i], b[0], b[1], T());
                mma(x[2 * y + 1], q[i], b[2], b[3], T());
            }
#pragma unroll
            for (int i = 0; i < 8; i++) {
                float &score = x[2 * y + i / 4][i % 4];
                score = score * factor + (across[i / 2 % 2][i / 4 * 2 + i % 2] + down[i / 2 % 2]);
            }
        }
        soften<2 * ROWS, D / 8>(x, o, at);
#pragma unroll
        for (int y = 0; y < ROWS; y++) {
            if (y0 + y >= a.window) continue;
            unsigned p[4];
            round_to<T, 2 * ROWS>(p, x, y);
#pragma unroll
            for (int n = 0; n < D / 8; n += 2) {
                unsigned b[4];
                load4_across(b, values + (y0 + y) * SIDE * ROW + n * 8);
                mma(o[n], p, b[0], b[1], T());
                mma(o[n + 1], p, b[2], b[3], T());
            }
        }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int r = r0 + row + 8 * half;
        float sum = at.sum[half];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (r >= s.rows * s.columns) continue;
        const int t = query_at(a, s, r);
        const float inverse = 1.0f / sum;
        T *to = row_at<T>(a.o, s.b, t, s.h) + column;
#pragma unroll
        for (int n = 0; n < D / 8; n++)
            *reinterpret_cast<unsigned *>(to + 8 * n) = both(o[n][2 * half] * inverse, o[n][2 * half + 1] * inverse, T());
        if (lane % 4 == 0) *window_lse_at(a, s, t) = (at.most[half] + log2f(sum)) * LN2;
    }
}

#endif

template <typename T, int D, int W> __global__ void __launch_bounds__(W * 32, 2) window_forward(const window_attention a)
{
#if HAS_MMA
    extern __shared__ uint4 shared[];
    constexpr int ROW = D + 8;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const square s = square_of(a, (int)blockIdx.x);
    const int tiles = (s.rows * s.columns + 15) / 16;
    T *k = reinterpret_cast<T *>(shared), *v = k + PLACES * ROW, *tables = v + PLACES * ROW;
    T *own = tables + BOTH * ROW + warp * own_elements<D>;
    copy_queries<T, D>(own, a, s, a.q, warp * 16, 16, lane, 32);
    copy_tables<T, D>(tables, a);
    copy_places<T, D>(k, a, s, a.k, 0, 0, a.window);
    copy_places<T, D>(v, a, s, a.v, 1, 0, a.window);
    copy_commit();
    copy_wait<0>();
    __syncthreads();
    for (int tile = warp; tile < tiles; tile += W) {
        if (tile != warp) {
            __syncwarp();
            copy_queries<T, D>(own, a, s, a.q, tile * 16, 16, lane, 32);
            copy_commit();
            copy_wait<0>();
            __syncwarp();
        }
        take_tile<T, D>(a, s, k, v, tables, own, tile * 16);
    }
#endif
}

template <typename T, int D, int W = 7> static cudaError_t start(const window_attention *a, cudaStream_t stream)
{
    constexpr size_t bytes = forward_bytes<D, W>;
    cudaError_t rc = allow_shared(window_forward<T, D, W>, bytes);
    /* All of it for shared memory: two blocks fit then. */
    if (rc == cudaSuccess) rc = cudaFuncSetAttribute(window_forward<T, D, W>, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
    if (rc != cudaSuccess) return rc;
    window_forward<T, D, W><<<(unsigned)((int64_t)a->B * a->across * a->down * a->H), W * 32, bytes, stream>>>(*a);
    return cudaGetLastError();
}

template <typename T> static cudaError_t run(const window_attention *a, size_t room, cudaStream_t stream)
{
    switch (a->D) {
    case 32: return start<T, 32>(a, stream);
    case 64: return start<T, 64>(a, stream);
    case 80: return room >= forward_bytes<80, 7> ? start<T, 80>(a, stream) : start<T, 80, 4>(a, stream);
    }
    return cudaErrorInvalidValue;
}

extern "C" cudaError_t cuda_window_fast(const struct window_attention *a, size_t room, cudaStream_t stream)
{
    return a->type == STORE_BF16 ? run<__nv_bfloat16>(a, room, stream) : run<__half>(a, room, stream);
}
