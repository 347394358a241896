/*
 * window_fast.cu: the forward of windowed attention on tensor cores, bf16 and f16.
 *
 * A block has one window of a head, each warp a tile of 16 queries in registers. Keys and values
 * are loaded in parts of the window's rows, so that a block needs no more shared memory than any
 * GPU has. A tile's position terms come from one product with the tables and are stored in the
 * warp's part of shared memory; those by column are then kept in registers, since a row of the
 * window always begins at a fragment's first column. The softmax processes four rows of keys at a
 * time.
 */
#include "cuda/attention/window_mma.cuh"

constexpr int ONCE = 4; /* rows of keys per softmax step */

/* The running softmax state of the thread's two queries. */
struct softmax_state {
    float most[2], sum[2];
};

/* Turns scores into probabilities relative to the new maximum; o is rescaled to it. */
template <int N, int M> static __device__ void online_softmax(float (&x)[N][4], float (&o)[M][4], softmax_state &at)
{
    each<2>([&](int half) {
        float most = at.most[half];
        each<N>([&](int n) { most = fmaxf(most, fmaxf(x[n][2 * half], x[n][2 * half + 1])); });
        most = quad_max(most);
        const float factor = exp2f(at.most[half] - most);
        float sum = 0;
        each<N>([&](int n) {
#pragma unroll
            for (int i = 2 * half; i < 2 * half + 2; i++) x[n][i] = exp2f(x[n][i] - most), sum += x[n][i];
        });
        at.most[half] = most, at.sum[half] = at.sum[half] * factor + sum;
        each<M>([&](int n) { o[n][2 * half] *= factor, o[n][2 * half + 1] *= factor; });
    });
}

/* The position terms of the thread's two queries: those by column; the warp's terms by row are at
 * rel. */
struct query_positions {
    float across[2][4];
    const float *rel;
};

/* Processes `rows` rows of keys, from row y0 of the window on, at k and v, for the warp's
 * queries. */
template <typename T, int D>
static __device__ void attend_key_rows(float (&o)[D / 8][4], softmax_state &at, const unsigned (&q)[D / 16][4],
                                       const query_positions &p, const T *k, const T *v, int y0, int rows, float factor)
{
    constexpr int ROW = D + 8;
    const int row = threadIdx.x % 32 / 4;
    const T *keys = lane_along<T, D>(k), *values = lane_across<T, ROW>(v);
    for (int first = 0; first < rows; first += ONCE) {
        float x[2 * ONCE][4];
        each<ONCE>([&](int y) {
            const bool is_there = first + y < rows;
            float down[2] = {0, 0};
            each<8>([&](int i) { x[2 * y + i / 4][i % 4] = is_there ? 0.0f : -CUDART_INF_F; });
            if (!is_there) return;
            each<2>([&](int half) { down[half] = p.rel[(row + 8 * half) * REL + y0 + first + y]; });
            each<D / 16>([&](int i) {
                add_along<T, D>(*reinterpret_cast<float(*)[2][4]>(&x[2 * y]), q[i],
                                keys + (first + y) * SIDE * ROW + 16 * i);
            });
            each<8>([&](int i) {
                float &score = x[2 * y + i / 4][i % 4];
                score = score * factor + (p.across[i / 2 % 2][i / 4 * 2 + i % 2] + down[i / 2 % 2]);
            });
        });
        online_softmax<2 * ONCE, D / 8>(x, o, at);
        each<ONCE>([&](int y) {
            if (first + y >= rows) return;
            unsigned a[4];
            round_to<T, 2 * ONCE>(a, x, y);
            add_across<T, D>(o, a, values + (first + y) * SIDE * ROW);
        });
    }
}

template <typename T, int D, int ROWS>
__global__ void __launch_bounds__(TILES * 32, 1) window_forward(const attention a)
{
    if (!multiplies<T>()) return;
    extern __shared__ uint4 shared_pieces[];
    char *shared = reinterpret_cast<char *>(shared_pieces);
    const window_block s = window_block_of(a, (int)blockIdx.x);
    const int lane = threadIdx.x % 32, row = lane / 4, column = lane % 4 * 2, r0 = threadIdx.x / 32 * 16,
              queries = s.rows * s.columns;
    T *k = reinterpret_cast<T *>(shared + part_layout<D, ROWS>::k),
      *v = reinterpret_cast<T *>(shared + part_layout<D, ROWS>::v);
    T *tables = reinterpret_cast<T *>(shared + part_layout<D, ROWS>::tables);
    float *rel = reinterpret_cast<float *>(shared + part_layout<D, ROWS>::own) + r0 * REL;

    copy_tables<T, D>(tables, a);
    copy_part<T, D>(k, v, a, s, 0, min(ROWS, a.window));
    int token[2];
    tokens_from(token, a, s, r0);
    unsigned q[D / 16][4];
    load_tokens<T, D>(q, s, a.q, token);
    copy_wait<0>();
    __syncthreads();
    tile_positions<T, D>(rel, q, tables, a, s, r0);
    query_positions p = {{}, rel};
    each<8>([&](int i) {
        const int c = i / 2 % 2 * 8 + column + i % 2;
        p.across[i / 4][i % 4] = c < a.window ? rel[(row + i / 4 * 8) * REL + SIDE + c] : -CUDART_INF_F;
    });
    float o[D / 8][4] = {};
    softmax_state at = {{-CUDART_INF_F, -CUDART_INF_F}, {0, 0}};
    by_parts<T, D, ROWS>(k, v, a, s, [&](int y0, int rows) {
        if (r0 < queries) attend_key_rows<T, D>(o, at, q, p, k, v, y0, rows, a.scale * LOG2E);
    });
    each<2>([&](int half) {
        float sum = at.sum[half];
        sum = quad_sum(sum);
        if (token[half] < 0) return;
        store_half(row_at<T>(a.o, s.b, token[half], s.h), o, half, 1.0f / sum);
        if (lane % 4 == 0) *lse_at(a, s.b, s.h, token[half]) = (at.most[half] + log2f(sum)) * LN2;
    });
}

template <int ROWS, typename T, int D> static cudaError_t start(const attention *a, cudaStream_t stream)
{
    constexpr size_t bytes = part_layout<D, ROWS>::total;
    static_assert(bytes <= part_shared_limit<ROWS>, "it fits");
    return start_kernel(window_forward<T, D, ROWS>, windows_of(a), TILES * 32, bytes, stream, *a);
}

extern "C" cudaError_t cuda_window_fast(const struct attention *a, cudaStream_t stream)
{
    return by_type_and_length<32, 64, 80>(a, [&](auto t, auto d) {
        return start<PART, decltype(t), decltype(d)::value>(a, stream);
    });
}

extern "C" cudaError_t cuda_window_small(const struct attention *a, cudaStream_t stream)
{
    return by_length<__half, 32, 64, 80>(a, [&](auto t, auto d) {
        return start<small_part<decltype(d)::value>, decltype(t), decltype(d)::value>(a, stream);
    });
}
