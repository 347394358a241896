/*
 * window_hopper.cu: the forward of windowed attention with 14 x 14 windows on Hopper,
 * bf16 and f16.
 *
 * A block has one window of a head and one warpgroup, which takes 64 queries at a time. Two blocks
 * share an SM, so that one multiplies while the other waits for its keys or computes its softmax.
 * Queries are loaded 64 ahead, into one of two buffers. One product computes the scores of all 224
 * keys, so the softmax has its maximum before the first power. Position terms come from a product
 * with the tables and go through shared memory, 16 queries per warp, to the rows and columns that
 * they belong to.
 */
#include "cuda/attention/window_hopper.cuh"

constexpr int TILE = 64, REL_ROW = TILE + 8;

/* Blocks per SM: limited by shared memory and by registers. */
constexpr int BLOCKS = 2;

/* The shared-memory layout, as byte offsets in order. */
template <int D> struct forward_layout {
    static constexpr int k = 0, v = k + KEYS * D * 2, tables = v + KEYS * D * 2, q = tables + BOTH * D * 2,
                         rel = q + 2 * TILE * D * 2;
    static constexpr int total = rel + 4 * 2 * WINDOW * REL_ROW;
};

/* Turns products into probabilities, not yet divided by their sum; `most` and `sum` of the thread's
 * two queries give the lse. */
static __device__ void softmax_rows(float (&x)[KEYS / 2], float (&most)[2], float (&sum)[2], const float *rel,
                                    float factor)
{
    const int lane = threadIdx.x % 32, column = lane % 4 * 2;
    rel += threadIdx.x / 32 * 16 + lane / 4;
    each<2>([&](int half) {
        float columns[4];
        each<4>([&](int j) {
            const int c = j / 2 * 8 + column + j % 2;
            columns[j] = c < WINDOW ? rel[(WINDOW + c) * REL_ROW + 8 * half] : -CUDART_INF_F;
        });
        float high = -CUDART_INF_F, total = 0;
        each<WINDOW>([&](int y) {
            const float row_bias = rel[y * REL_ROW + 8 * half];
            each<4>([&](int j) {
                float &at = x[8 * y + j / 2 * 4 + 2 * half + j % 2];
                at = fmaf(at, factor, columns[j] + row_bias);
                high = fmaxf(high, at);
            });
        });
        high = quad_max(high);
        each<4 * WINDOW>([&](int i) {
            float &at = x[i / 4 * 8 + i / 2 % 2 * 4 + 2 * half + i % 2];
            at = power_of_two(at - high);
            total += at;
        });
        total = quad_sum(total);
        most[half] = high, sum[half] = total;
    });
}

template <typename T, int D>
__global__ void __launch_bounds__(GROUP, BLOCKS) window_hopper(const __grid_constant__ attention a)
{
    extern __shared__ uint4 shared_pieces[];
    using at = forward_layout<D>;
    char *shared = reinterpret_cast<char *>(shared_pieces);
    float *rel = reinterpret_cast<float *>(shared + at::rel);
    const window_block s = window_block_of(a, (int)blockIdx.x);
    const numbering n = numbering_of(s);
    const int lane = threadIdx.x % 32, queries = s.rows * s.columns;
    const uint64_t k = cores_along<KEYS>(shared + at::k), v = cores_across<KEYS>(shared + at::v),
                   tables = cores_along<BOTH>(shared + at::tables);

    stage_tables<T, D, GROUP>(shared + at::tables, a);
    stage_queries<T, D, TILE, GROUP>(shared + at::q, a, s, n, a.q, 0);
    stage_keys<T, D, GROUP>(shared + at::k, a, s, a.k, 0);
    copy_commit();
    stage_keys<T, D, GROUP>(shared + at::v, a, s, a.v, 1);
    copy_commit();
#pragma unroll 1
    for (int t0 = 0; t0 < queries; t0 += TILE) {
        const int slot = t0 / TILE % 2 * (TILE * D * 2);
        float x[KEYS / 2], o[D / 2], most[2], sum[2];
        unsigned p[KEYS / 4];
        if (t0 == 0) copy_wait<1>();
        else copy_wait<0>();
        fence_shared_stores();
        __syncthreads(); /* the other query buffer is free from here on */
        if (t0 + TILE < queries)
            stage_queries<T, D, TILE, GROUP>(shared + at::q + (TILE * D * 2 - slot), a, s, n, a.q, t0 + TILE);
        copy_commit();
        {
            float g[BOTH / 2];
            const uint64_t q = cores_along<TILE>(shared + at::q + slot);
            pin_registers(g), pin_registers(x);
            issue([&] { cores_product<T, D, TILE, BOTH>(g, q, tables, 0); });
            cores_product<T, D, TILE, KEYS>(x, q, k, 0);
            wgmma_commit();
            wgmma_wait<1>();
            pin_registers(g);
            __syncwarp(); /* the warp no longer reads the previous position terms */
            stage_positions<REL_ROW>(rel, g, {0, 0}, n, t0, INT32_MAX);
            __syncwarp();
            wgmma_wait<0>();
            pin_registers(x);
        }
        if (t0 + (int)threadIdx.x / 32 * 16 < queries) {
            softmax_rows(x, most, sum, rel, a.scale * LOG2E);
            round_all<T>(p, x);
        }
        if (t0 == 0) {
            copy_wait<1>();
            fence_shared_stores();
            __syncthreads();
        }
        pin_registers(p), pin_registers(o);
        issue([&] { cores_add<T, KEYS / 16>(o, p, v, 0); });
        wgmma_wait<0>();
        pin_registers(o), pin_registers(p);
        each<2>([&](int half) {
            const int r = t0 + threadIdx.x / 32 * 16 + lane / 4 + 8 * half;
            const bool is_there = r < queries;
            const int t = token_of(a, s, n, is_there ? r : 0);
            store_row<T>(row_at<T>(a.o, s.b, t, s.h), o, half, 1.0f / sum[half], is_there);
            if (is_there && lane % 4 == 0) *lse_at(a, s.b, s.h, t) = (most[half] + log2f(sum[half])) * LN2;
        });
    }
}

extern "C" cudaError_t cuda_window_hopper(const struct attention *a, cudaStream_t stream)
{
    return by_type_and_length<64, 80>(a, [&](auto t, auto d) {
        const auto kernel = window_hopper<decltype(t), decltype(d)::value>;
        /* maximum shared memory carveout, so that two blocks fit */
        const cudaError_t rc = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                                    cudaSharedmemCarveoutMaxShared);
        return rc == cudaSuccess
                   ? start_kernel(kernel, windows_of(a), GROUP, forward_layout<decltype(d)::value>::total, stream, *a)
                   : rc;
    });
}
