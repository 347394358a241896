/*
 * adafactor.cu: ADAFACTOR (formulas: cpu/update/adafactor.c).
 *
 *     g --> r, means of g^2 over columns      one group of threads per row
 *     g --> c, means of g^2 over rows         chunks of rows, then the chunks in order
 *     r --> row factors 1/sqrt(r / mean r);   column factors 1/sqrt(c)
 *     g --> sums of u^2 by block --> rate     u is computed from its factors and never stored
 *     g --> p
 *
 * Without c, r is the second moment itself, element by element, and u = g / sqrt(r). If the step is
 * skipped, every kernel returns at its start.
 */
#include "cuda/update/update.cuh"

struct factors {
    int64_t N, R, C;
    float *r, *c;              /* the optimizer state; c NULL: not factored */
    double *sums, *rate;
    float *row, *column, *partial;
    unsigned blocks;           /* number of partial sums */
};

static __device__ float beta_of(const update &u) { return (float)adafactor_beta(u.step->adam_t); }

/* Computes beta once per block. */
static __device__ float shared_beta(const update &u)
{
    __shared__ float beta;
    if (threadIdx.x == 0) beta = beta_of(u);
    __syncthreads();
    return beta;
}

/* Adds g^2 of V elements to the sums. */
template <int V> static __device__ inline void add_squares(float (&sum)[V], const update &u, int64_t at, float clip)
{
    float g[V];
    load<V>(g, u.g, at);
#pragma unroll
    for (int i = 0; i < V; i++) sum[i] += adafactor_square(g[i] * clip);
}

/* --- the second moment ------------------------------------------------------------------------ */

template <int V> static __global__ void rows_kernel(update u, factors f, int size)
{
    __shared__ float meet[WARP];
    if (is_skipped(u)) return;
    const float beta = shared_beta(u), clip = clip_of(u);
    const int lane = threadIdx.x & (size - 1), each = BLOCK / size;
    const int64_t rows = f.N * f.R;
    for (int64_t base = (int64_t)blockIdx.x * each; base < rows; base += (int64_t)gridDim.x * each) {
        const int64_t row = base + (int)threadIdx.x / size, packs = row < rows ? f.C / V : 0;
        float sum[V] = {}, total = 0;
        for (int64_t k = lane; k < packs; k += size) add_squares<V>(sum, u, row * f.C + k * V, clip);
#pragma unroll
        for (int i = 0; i < V; i++) total += sum[i];
        total = group_sum(total, size, meet);
        if (lane == 0 && packs) f.r[row] = adafactor_moment(f.r[row], total / (float)f.C, beta);
    }
}

static __device__ void finish_column(const factors &f, int64_t at, double sum, float beta)
{
    const float c = adafactor_moment(f.c[at], (float)(sum / (double)f.R), beta);
    f.c[at] = c;
    f.column[at] = 1.0f / sqrtf(c);
}

/* Sums columns of few rows: one thread per column. */
static __global__ void columns_direct_kernel(update u, factors f)
{
    if (is_skipped(u)) return;
    const float beta = shared_beta(u), clip = clip_of(u);
    for (int64_t at = (int64_t)blockIdx.x * BLOCK + threadIdx.x; at < f.N * f.C; at += (int64_t)gridDim.x * BLOCK) {
        const int64_t first = at / f.C * f.R * f.C + at % f.C;
        float sum[1] = {};
        for (int64_t row = 0; row < f.R; row++) add_squares<1>(sum, u, first + row * f.C, clip);
        finish_column(f, at, (double)sum[0], beta);
    }
}

/* Block (packs of columns, chunk of rows, matrix): a warp takes every eighth row, its lanes the
 * columns. */
template <int V> static __global__ void columns_kernel(update u, factors f)
{
    constexpr int WARPS = BLOCK / WARP;
    __shared__ float meet[WARPS][WARP * V];
    if (is_skipped(u)) return;
    const float clip = clip_of(u);
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int64_t k = (int64_t)blockIdx.x * WARP + lane, from = blockIdx.y * FACTOR_ROWS;
    const int64_t to = from + FACTOR_ROWS < f.R ? from + FACTOR_ROWS : f.R;
    for (int64_t matrix = blockIdx.z; matrix < f.N; matrix += gridDim.z) {
        float sum[V] = {};
        if (k < f.C / V)
            for (int64_t row = from + warp; row < to; row += WARPS)
                add_squares<V>(sum, u, (matrix * f.R + row) * f.C + k * V, clip);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < V; i++) meet[warp][lane * V + i] = sum[i];
        __syncthreads();
        for (int column = threadIdx.x; column < WARP * V; column += BLOCK) {
            const int64_t c = (int64_t)blockIdx.x * WARP * V + column;
            if (c >= f.C) continue;
            float total = 0;
            for (int w = 0; w < WARPS; w++) total += meet[w][column];
            f.partial[(matrix * gridDim.y + blockIdx.y) * f.C + c] = total;
        }
    }
}

static __global__ void columns_finish_kernel(update u, factors f, int64_t chunks)
{
    if (is_skipped(u)) return;
    const float beta = shared_beta(u);
    for (int64_t at = (int64_t)blockIdx.x * BLOCK + threadIdx.x; at < f.N * f.C; at += (int64_t)gridDim.x * BLOCK) {
        const float *from = f.partial + at / f.C * chunks * f.C + at % f.C;
        double sum = 0;
        for (int64_t b = 0; b < chunks; b++) sum += (double)from[b * f.C];
        finish_column(f, at, sum, beta);
    }
}

/* Computes row factors with one group of threads per matrix. */
static __global__ void row_factors_kernel(update u, factors f, int size)
{
    __shared__ float meet[WARP];
    if (is_skipped(u)) return;
    const int lane = threadIdx.x & (size - 1), each = BLOCK / size;
    for (int64_t base = (int64_t)blockIdx.x * each; base < f.N; base += (int64_t)gridDim.x * each) {
        const int64_t matrix = base + (int)threadIdx.x / size, rows = matrix < f.N ? f.R : 0;
        const float *r = f.r + matrix * f.R;
        float sum = 0;
        for (int64_t i = lane; i < rows; i += size) sum += r[i];
        const float mean = group_sum(sum, size, meet) / (float)f.R;
        for (int64_t i = lane; i < rows; i += size) f.row[matrix * f.R + i] = 1.0f / sqrtf(r[i] / mean);
    }
}

/* --- the update ------------------------------------------------------------------------------- */

/* u of V elements of a row. */
template <int V>
static __device__ inline void make_update(float (&out)[V], const update &u, const factors &f, int64_t row, int64_t k,
                                          float clip)
{
    float column[V];
    load<V>(out, u.g, row * f.C + k * V);
    load<V>(column, f.column + row / f.R * f.C + k * V);
    const float by = f.row[row];
#pragma unroll
    for (int i = 0; i < V; i++) out[i] = adafactor_factored(by, column[i], out[i], clip);
}

template <int V> static __global__ void size_kernel(update u, factors f, int size)
{
    if (is_skipped(u)) return;
    const float clip = clip_of(u);
    const int lane = threadIdx.x & (size - 1), each = BLOCK / size;
    double sum = 0;
    for (int64_t row = (int64_t)blockIdx.x * each + (int)threadIdx.x / size; row < f.N * f.R;
         row += (int64_t)gridDim.x * each)
        for (int64_t k = lane; k < f.C / V; k += size) {
            float x[V], squares = 0;
            make_update<V>(x, u, f, row, k, clip);
#pragma unroll
            for (int i = 0; i < V; i++) squares += x[i] * x[i];
            sum += (double)squares;
        }
    sum = block_sum_double(sum);
    if (threadIdx.x == 0) f.sums[blockIdx.x] = sum;
}

template <typename P, int V> static __global__ void apply_kernel(update u, factors f, int size)
{
    if (is_skipped(u)) return;
    const float clip = clip_of(u), keep = decay_keep(rate_of(u), u.weight_decay), rate = (float)*f.rate;
    const uint64_t key = keyed_round(u.step, u.key);
    const int lane = threadIdx.x & (size - 1), each = BLOCK / size;
    for (int64_t row = (int64_t)blockIdx.x * each + (int)threadIdx.x / size; row < f.N * f.R;
         row += (int64_t)gridDim.x * each)
        for (int64_t k = lane; k < f.C / V; k += size) {
            float x[V], p[V];
            make_update<V>(x, u, f, row, k, clip);
            load<V>(p, static_cast<const P *>(u.p.data) + row * f.C + k * V);
#pragma unroll
            for (int i = 0; i < V; i++) p[i] = adafactor_weight(p[i], x[i], keep, rate);
            store_weight<P, V>(u, row * f.C + k * V, p, key);
        }
}

/* --- not factored ----------------------------------------------------------------------------- */

template <int V>
static __device__ inline double moment_at(const update &u, float *v, int64_t at, float beta, float clip)
{
    float g[V], square[V];
    double sum = 0;
    load<V>(square, v + at);
    load<V>(g, u.g, at);
#pragma unroll
    for (int i = 0; i < V; i++) {
        square[i] = adafactor_moment(square[i], adafactor_square(g[i] * clip), beta);
        const float x = adafactor_whole(square[i], g[i], clip);
        sum += (double)(x * x);
    }
    store<V>(v + at, square);
    return sum;
}

template <int V> static __global__ void moments_kernel(update u, factors f)
{
    if (is_skipped(u)) return;
    const float beta = shared_beta(u), clip = clip_of(u);
    const int64_t first = (int64_t)blockIdx.x * BLOCK + threadIdx.x, stride = (int64_t)gridDim.x * BLOCK,
                  packs = u.n / V;
    double sum = 0;
    for (int64_t k = first; k < packs; k += stride) sum += moment_at<V>(u, f.r, k * V, beta, clip);
    for (int64_t i = packs * V + first; i < u.n; i += stride) sum += moment_at<1>(u, f.r, i, beta, clip);
    sum = block_sum_double(sum);
    if (threadIdx.x == 0) f.sums[blockIdx.x] = sum;
}

template <typename P, int V>
static __device__ inline void move_at(const update &u, const float *v, int64_t at, float clip, float keep, float rate,
                                      uint64_t key)
{
    float p[V], g[V], square[V];
    load<V>(p, static_cast<const P *>(u.p.data) + at);
    load<V>(square, v + at);
    load<V>(g, u.g, at);
#pragma unroll
    for (int i = 0; i < V; i++) p[i] = adafactor_weight(p[i], adafactor_whole(square[i], g[i], clip), keep, rate);
    store_weight<P, V>(u, at, p, key);
}

template <typename P, int V> static __global__ void move_kernel(update u, factors f)
{
    if (is_skipped(u)) return;
    const float clip = clip_of(u), keep = decay_keep(rate_of(u), u.weight_decay), rate = (float)*f.rate;
    const uint64_t key = keyed_round(u.step, u.key);
    const int64_t first = (int64_t)blockIdx.x * BLOCK + threadIdx.x, stride = (int64_t)gridDim.x * BLOCK,
                  packs = u.n / V;
    for (int64_t k = first; k < packs; k += stride) move_at<P, V>(u, f.r, k * V, clip, keep, rate, key);
    for (int64_t i = packs * V + first; i < u.n; i += stride) move_at<P, 1>(u, f.r, i, clip, keep, rate, key);
}

/* --- both variants ---------------------------------------------------------------------------- */

/* Computes the learning rate, divided by max(1, rms(u)), in one block. */
static __global__ void rate_kernel(update u, factors f)
{
    if (is_skipped(u)) return;
    double sum = 0;
    for (unsigned b = threadIdx.x; b < f.blocks; b += BLOCK) sum += f.sums[b];
    sum = block_sum_double(sum);
    if (threadIdx.x == 0) *f.rate = rate_of(u) / fmax(1.0, sqrt(sum / (double)u.n));
}

template <int V>
static cudaError_t launch_factored(const update &u, factors f, enum factor_form form, cudaStream_t stream)
{
    const int size = group_size(f.C / V, BLOCK);
    const unsigned rows = grid_of_rows(f.N * f.R, BLOCK / size, 2 * UPDATE_BLOCKS);
    rows_kernel<V><<<rows, BLOCK, 0, stream>>>(u, f, size);
    if (form == FACTOR_COLUMNS) {
        columns_direct_kernel<<<update_grid(f.N * f.C), BLOCK, 0, stream>>>(u, f);
    } else {
        const int64_t packs = f.C / V, chunks = factor_chunks(f.R);
        const dim3 grid((unsigned)((packs + WARP - 1) / WARP), (unsigned)chunks, (unsigned)(f.N < 4096 ? f.N : 4096));
        columns_kernel<V><<<grid, BLOCK, 0, stream>>>(u, f);
        columns_finish_kernel<<<update_grid(f.N * f.C), BLOCK, 0, stream>>>(u, f, chunks);
    }
    const int column = group_size(f.R, BLOCK);
    row_factors_kernel<<<grid_of_rows(f.N, BLOCK / column, UPDATE_BLOCKS), BLOCK, 0, stream>>>(u, f, column);
    f.blocks = grid_of_rows(f.N * f.R, BLOCK / size, UPDATE_BLOCKS);
    size_kernel<V><<<f.blocks, BLOCK, 0, stream>>>(u, f, size);
    rate_kernel<<<1, BLOCK, 0, stream>>>(u, f);
    return by_weight(u.p.type, [&](auto p) { apply_kernel<decltype(p), V><<<rows, BLOCK, 0, stream>>>(u, f, size); });
}

template <int V> static cudaError_t launch_whole(const update &u, factors f, cudaStream_t stream)
{
    f.blocks = grid_of_rows(u.n / V, BLOCK, UPDATE_BLOCKS);
    moments_kernel<V><<<f.blocks, BLOCK, 0, stream>>>(u, f);
    rate_kernel<<<1, BLOCK, 0, stream>>>(u, f);
    return by_weight(u.p.type,
                     [&](auto p) { move_kernel<decltype(p), V><<<update_grid(u.n / V), BLOCK, 0, stream>>>(u, f); });
}

/* Updates p, N matrices of R x C, with r [N,R] and c [N,C], or without c with r of p's shape. */
static int launch_adafactor(const struct launch *l, struct error *e)
{
    const struct operand *p = &l->in[0];
    const update u = update_of(l, 3, 4, 5);
    const int64_t C = operand_last(p), R = p->rank >= 2 ? p->dim[p->rank - 2] : 1, N = operand_elements(p) / (R * C);
    factors f = {N, R, C, (float *)l->in[2].data, (float *)data_in(l, 6), (double *)l->work};
    f.blocks = 1;
    f.rate = f.sums + UPDATE_BLOCKS;
    f.column = reinterpret_cast<float *>(f.rate + 2); /* on 16 bytes */
    f.row = f.column + N * C;
    f.partial = f.row + N * R;
    const enum factor_form form = factor_form(R, f.c != nullptr);
    const bool wide = l->access == 16;
    if (l->form != form) TRY_CUDA(cudaErrorInvalidValue);
    if (misaligned(l->access, u.p.data, u.g.data, u.w.data, f.r, f.column)) TRY_CUDA(cudaErrorMisalignedAddress);
    if (form == FACTOR_NONE) TRY_CUDA(wide ? launch_whole<4>(u, f, stream_of(l)) : launch_whole<1>(u, f, stream_of(l)));
    else
        TRY_CUDA(wide ? launch_factored<4>(u, f, form, stream_of(l)) : launch_factored<1>(u, f, form, stream_of(l)));
    return PL_OK;
}

CUDA_KERNEL(cuda_adafactor, .launch = launch_adafactor);
