/*
 * fold.cu: FOLD over the shares of a step, and the norm by cells: SQUARES and TOTAL
 * (cpu/update/collective.c has the tree, and why).
 *
 * Each sum of two elements is one f32 addition, rounded to the dtype: the bits are those of the
 * CPU. A cell is summed by one block, in an order that depends only on the cell.
 */
#include "cuda/device/kernel.cuh"

constexpr int FOLD_BLOCK = 256, TOTAL_BLOCK = 1024;

/* x = partial + x for every level in `levels`, lowest first; then partial[store] = x, unless store
 * is negative. */
template <typename T>
static __global__ void __launch_bounds__(FOLD_BLOCK)
    fold_kernel(T *x, T *partials, int64_t n, uint32_t levels, int store)
{
    const int64_t stride = (int64_t)gridDim.x * FOLD_BLOCK;
    for (int64_t i = (int64_t)blockIdx.x * FOLD_BLOCK + threadIdx.x; i < n; i += stride) {
        T sum = x[i];
        for (uint32_t left = levels; left; left &= left - 1)
            sum = from_float<T>(to_float(partials[(int64_t)(__ffs((int)left) - 1) * n + i]) + to_float(sum));
        x[i] = sum;
        if (store >= 0) partials[(int64_t)store * n + i] = sum;
    }
}

static int launch_fold(const struct launch *l, struct error *e)
{
    const uint32_t i = l->iteration;
    const bool last = (int)i + 1 == l->attr->fold.shares;
    int ones = 0;
    while (i >> ones & 1) ones++;
    const int64_t n = operand_elements(&l->out[0]);
    const uint32_t levels = last ? i : (1u << ones) - 1;
    const unsigned grid = (unsigned)min_i64((n + FOLD_BLOCK - 1) / FOLD_BLOCK, 4096);
    TRY_CUDA(by_type(store_of(l->out[0].dtype), [&](auto zero) {
        using T = decltype(zero);
        fold_kernel<<<grid, FOLD_BLOCK, 0, (cudaStream_t)l->stream>>>((T *)l->out[0].data, (T *)l->out[1].data, n,
                                                                      levels, last ? -1 : ones);
    }));
    return PL_OK;
}

template <typename T>
static __global__ void __launch_bounds__(FOLD_BLOCK) squares_kernel(double *cells, const T *x, int64_t n, int64_t cell)
{
    const int64_t from = (int64_t)blockIdx.x * cell, end = from + cell < n ? from + cell : n;
    double sum = 0;
    for (int64_t i = from + threadIdx.x; i < end; i += FOLD_BLOCK)
        sum += (double)to_float(x[i]) * (double)to_float(x[i]);
    sum = block_sum_double(sum);
    if (threadIdx.x == 0) cells[blockIdx.x] = sum;
}

static int launch_squares(const struct launch *l, struct error *e)
{
    const int64_t part = l->attr->squares.part, first = launch_first(l, part), cell = l->attr->squares.cell;
    /* without the padding of a shard */
    const int64_t n = part ? max_i64(0, min_i64(operand_elements(&l->in[0]), l->attr->squares.n - first))
                           : operand_elements(&l->in[0]);
    const auto &a = l->attr->squares;
    const int64_t each = (part ? a.n : operand_elements(&l->in[0])) + cell - 1;
    const int64_t of = part_index(part_number_read(a.of), launch_place(l));
    double *cells = (double *)l->out[0].data + a.at + of * (each / cell) + first / cell;
    if (!n || !launch_is_first(l, a.of)) return PL_OK;
    TRY_CUDA(by_type(store_of(l->in[0].dtype), [&](auto zero) {
        using T = decltype(zero);
        squares_kernel<<<(unsigned)((n + cell - 1) / cell), FOLD_BLOCK, 0, (cudaStream_t)l->stream>>>(
            cells, (const T *)l->in[0].data, n, cell);
    }));
    return PL_OK;
}

/* Sums in one block: thread t sums the blocks of cells t, t + TOTAL_BLOCK, ... in order; then a
 * tree over threads. */
static __global__ void __launch_bounds__(TOTAL_BLOCK) total_kernel(double *out, const double *cells, int64_t n)
{
    __shared__ double sums[TOTAL_BLOCK];
    double sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += TOTAL_BLOCK) sum += cells[i];
    sums[threadIdx.x] = sum;
    for (int w = 1; w < TOTAL_BLOCK; w *= 2) {
        __syncthreads();
        if (threadIdx.x % (2 * w) == 0) sums[threadIdx.x] += sums[threadIdx.x + w];
    }
    if (threadIdx.x == 0) *out = sums[0];
}

static int launch_total(const struct launch *l, struct error *e)
{
    total_kernel<<<1, TOTAL_BLOCK, 0, (cudaStream_t)l->stream>>>((double *)l->out[0].data,
                                                                 (const double *)l->in[0].data,
                                                                 operand_elements(&l->in[0]));
    TRY_CUDA(cudaGetLastError());
    return PL_OK;
}

CUDA_KERNEL(cuda_fold, .launch = launch_fold);
CUDA_KERNEL(cuda_squares, .launch = launch_squares);
CUDA_KERNEL(cuda_total, .launch = launch_total);
