/*
 * grouped.cu: GROUPED_LINEAR and GROUPED_DW of any dtype, shape and strides of w. A block computes
 * a tile of results, EACH x EACH by a thread; both factors pass through shared memory, as f32. A
 * result is summed over its ascending depth in one thread.
 */
#include "cuda/products/grouped.cuh"

constexpr int TILE = GROUPED_TILE, STEP = 16, SIDE = 16, EACH = TILE / SIDE;
static_assert(SIDE * SIDE == BLOCK, "a thread has EACH x EACH results");

typedef float staged[STEP][TILE + 1]; /* [d][i] */

/* Loads TILE x STEP elements of a factor from `at` on; zeros beyond `wide` and `deep`. Threads that
 * are adjacent read what is adjacent in memory. */
static __device__ inline void stage(staged &to, typed_ptr x, int64_t at, const factor &f, int wide, int deep)
{
#pragma unroll
    for (int k = 0; k < TILE * STEP / BLOCK; k++) {
        const int n = k * BLOCK + (int)threadIdx.x;
        const int i = f.deep == 1 ? n / STEP : n % TILE, d = f.deep == 1 ? n % STEP : n / TILE;
        to[d][i] = i < wide && d < deep ? element(x, at + i * f.wide + d * f.deep) : 0.0f;
    }
}

template <bool DW>
static __global__ void __launch_bounds__(BLOCK) grouped_kernel(typed_ptr c, typed_ptr a, typed_ptr b, grouped g)
{
    __shared__ staged left, right;
    const int x = threadIdx.x % SIDE, y = threadIdx.x / SIDE;
    tile t;
    if (!find_tile<DW, TILE, TILE>(t, g)) return;
    float sum[EACH][EACH] = {};
    for (int d = 0; d < t.depth; d += STEP) {
        stage(left, a, t.a + d * g.a.deep, g.a, t.rows, t.depth - d);
        stage(right, b, t.b + d * g.b.deep, g.b, t.columns, t.depth - d);
        __syncthreads();
#pragma unroll
        for (int k = 0; k < STEP; k++)
#pragma unroll
            for (int i = 0; i < EACH; i++)
#pragma unroll
                for (int j = 0; j < EACH; j++)
                    sum[i][j] = fmaf(left[k][y + SIDE * i], right[k][x + SIDE * j], sum[i][j]);
        __syncthreads(); /* before the next step is staged */
    }
#pragma unroll
    for (int i = 0; i < EACH; i++)
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            if (y + SIDE * i >= t.rows || x + SIDE * j >= t.columns) continue;
            const int64_t at = t.c + (y + SIDE * i) * g.c_row + x + SIDE * j;
            const float result[1] = {g.add ? element(c, at) + sum[i][j] : sum[i][j]};
            store<1>(c, at, result);
        }
}

template <bool DW> static int launch(const struct launch *l, const grouped &g, struct error *e)
{
    const unsigned blocks = grouped_grid(g);
    if (!blocks) TRY_CUDA(cudaErrorInvalidValue);
    grouped_kernel<DW><<<blocks, BLOCK, 0, (cudaStream_t)l->stream>>>(typed_of(&l->out[0]), typed_of(&l->in[0]),
                                                                      typed_of(&l->in[1]), g);
    TRY_CUDA(cudaGetLastError());
    return PL_OK;
}

static int launch_linear(const struct launch *l, struct error *e)
{
    return launch<false>(l, grouped_linear(l, TILE, TILE), e);
}

static int launch_dw(const struct launch *l, struct error *e)
{
    if (has(l, 3) && l->in[3].data != l->out[0].data) TRY_CUDA(cudaErrorInvalidValue);
    return launch<true>(l, grouped_dw(l, TILE, TILE), e);
}

CUDA_KERNEL(cuda_grouped_linear, .launch = launch_linear);
CUDA_KERNEL(cuda_grouped_dw, .launch = launch_dw);
