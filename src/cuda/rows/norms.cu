/*
 * norms.cu: RMSNORM, LAYERNORM, L2NORM, SOFTMAX and their gradients: one group of threads per row
 * (rows.cuh). The first two use norm_packs.cu if rows are whole 16-byte packs.
 *
 *     x[r] --read--> sums along the row --> x[r] --read again, from cache--> y[r]
 *
 * A row's sums are complete before any of it is written, and the thread that writes a pack is the
 * one that read it: results may alias inputs.
 *
 * Gradients of weights are sums over rows. A block traverses its rows in order and keeps the sums
 * of its columns in shared memory, each column owned by one thread; then its groups are added in
 * order, and a second kernel adds the blocks in order:
 *
 *     block b: rows --> shared [groups, sums, C] --> partial[b] [sums, C] --> dw, db [C]
 *
 * Column c = k V + i, element i of pack k, has index i packs + k there, so that neighbouring
 * threads access neighbouring words.
 */
#include "cuda/rows/launch_elementwise.h"
#include "cuda/rows/norms.cuh"

constexpr int BWD_BLOCK = NORM_BWD_BLOCK;

/* --- RMSNORM and LAYERNORM -------------------------------------------------------------- */

template <bool CENTRED, typename T, int V>
static __global__ void norm_kernel(T *y, norm_stats stats, const T *x, typed_ptr w, typed_ptr b, int64_t rows,
                                   int64_t C, float eps, int size)
{
    __shared__ float partial[WARP];
    const int lane = threadIdx.x & (size - 1), each = BLOCK / size;
    for (int64_t base = (int64_t)blockIdx.x * each; base < rows; base += (int64_t)gridDim.x * each) {
        const int64_t row = base + (int)threadIdx.x / size, packs = row < rows ? C / V : 0;
        const T *from = x + row * C;
        float mean = 0, squares = 0;
        if (CENTRED) {
            float sum = 0;
            for (int64_t k = lane; k < packs; k += size) {
                float a[V];
                load<V>(a, from + k * V);
#pragma unroll
                for (int i = 0; i < V; i++) sum += a[i];
            }
            mean = group_sum(sum, size, partial) / (float)C;
        }
        for (int64_t k = lane; k < packs; k += size) {
            float a[V];
            load<V>(a, from + k * V);
#pragma unroll
            for (int i = 0; i < V; i++) squares += (a[i] - mean) * (a[i] - mean);
        }
        const float rstd = 1.0f / sqrtf(group_sum(squares, size, partial) / (float)C + eps);
        if (lane == 0 && packs) {
            if (CENTRED) stats.mean[row] = mean;
            stats.rstd[row] = rstd;
        }
        for (int64_t k = lane; k < packs; k += size) {
            float a[V], s[V], t[V];
            load<V>(a, from + k * V);
            load<V>(s, w, k * V);
            if (CENTRED) load<V>(t, b, k * V);
#pragma unroll
            for (int i = 0; i < V; i++) a[i] = (a[i] - mean) * rstd * (s[i] + stats.offset) + (CENTRED ? t[i] : 0.0f);
            store<V>(y + row * C + k * V, a);
        }
    }
}

int norm_run(const struct launch *l, const norm_pieces &n, struct error *e)
{
    TRY_CUDA(by_access(n.type, l->access, [&](auto zero, auto width) {
        using T = decltype(zero);
        constexpr int V = decltype(width)::value;
        const int size = group_size(n.C / V, BLOCK);
        const auto kernel = n.stats.mean ? norm_kernel<true, T, V> : norm_kernel<false, T, V>;
        kernel<<<grid_of_rows(n.rows, BLOCK / size, GRID_MAX), BLOCK, 0, stream_of(l)>>>(
            (T *)n.y, n.stats, (const T *)n.x, n.w, n.b, n.rows, n.C, n.eps, size);
    }, n.y, n.x, n.w.data, n.b.data));
    return PL_OK;
}

template <bool CENTRED, bool ADDED> static int launch_norm(const struct launch *l, struct error *e)
{
    const norm_pieces n = norm_of(l, CENTRED, ADDED);
    if (ADDED) {
        loop_nest f = {};
        loop_nest_push(&f, n.rows * n.C, 1, 1, 1);
        loop_nest_end(&f);
        TRY_CUDA(cuda_pair_strided(FUNCTION_ADD, l->out[norm_sum_at(CENTRED)].data, l->in[0].data, l->in[1].data,
                                   n.type, f, l->access, l->access == 16 ? PAIR_PACKS_32 : PAIR_ELEMENTS,
                                   stream_of(l)));
    }
    return norm_run(l, n, e);
}

/* --- their gradients -----------------------------------------------------------------------
 *
 * With h = (x - mean) r, g = dy w, and w with its offset:
 *     dx = r (g - mean(g) - h mean(g h)),  dw = sum over rows of dy h,  db = of dy
 * and without a mean its terms and those of b vanish. The gradient that reaches x past the norm
 * (the residual branch) is added to dx, if it is given.
 */

template <bool CENTRED, typename T, int V>
static __global__ void __launch_bounds__(BWD_BLOCK, 2)
    norm_bwd_kernel(T *dx, float *partial, const T *dy, const T *x, typed_ptr w, const T *add, norm_stats stats,
                    int64_t rows, int64_t C, int size, bool in_shared)
{
    constexpr int SUMS = CENTRED ? 2 : 1;
    extern __shared__ float shared[];
    __shared__ float meet[WARP];
    const int lane = threadIdx.x & (size - 1), each = BWD_BLOCK / size, group = (int)threadIdx.x / size;
    const int64_t width = C / V;
    float *mine = in_shared ? shared + group * SUMS * C : partial + blockIdx.x * SUMS * C;
    for (int64_t k = lane; k < width; k += size)
        for (int i = 0; i < SUMS * V; i++) mine[i * width + k] = 0;

    for (int64_t base = (int64_t)blockIdx.x * each; base < rows; base += (int64_t)gridDim.x * each) {
        const int64_t row = base + group, packs = row < rows ? width : 0;
        const float mean = CENTRED && packs ? stats.mean[row] : 0.0f, rstd = packs ? stats.rstd[row] : 0.0f;
        float g = 0, gh = 0;
        for (int64_t k = lane; k < packs; k += size) {
            float d[V], a[V], s[V];
            load<V>(d, dy + row * C + k * V);
            load<V>(a, x + row * C + k * V);
            load<V>(s, w, k * V);
#pragma unroll
            for (int i = 0; i < V; i++) {
                const float h = (a[i] - mean) * rstd, ds = d[i] * (s[i] + stats.offset);
                mine[i * width + k] += d[i] * h;
                if (CENTRED) mine[(V + i) * width + k] += d[i];
                g += ds;
                gh += ds * h;
            }
        }
        g = CENTRED ? group_sum(g, size, meet) / (float)C : 0.0f;
        gh = group_sum(gh, size, meet) / (float)C;
        for (int64_t k = lane; k < packs; k += size) {
            float d[V], a[V], s[V];
            load<V>(d, dy + row * C + k * V);
            load<V>(a, x + row * C + k * V);
            load<V>(s, w, k * V);
#pragma unroll
            for (int i = 0; i < V; i++) d[i] = rstd * (d[i] * (s[i] + stats.offset) - g - (a[i] - mean) * rstd * gh);
            if (add) {
                load<V>(a, add + row * C + k * V);
#pragma unroll
                for (int i = 0; i < V; i++) d[i] = __fadd_rn(d[i], a[i]);
            }
            store<V>(dx + row * C + k * V, d);
        }
    }
    if (!in_shared) return;
    __syncthreads();
    for (int64_t j = threadIdx.x; j < SUMS * C; j += BWD_BLOCK) {
        float sum = 0;
        for (int e = 0; e < each; e++) sum += shared[e * SUMS * C + j];
        partial[blockIdx.x * SUMS * C + j] = sum;
    }
}

constexpr int COLUMNS = 32, SLICES = 8;

/* Combines out[s] [C] from partial [blocks, sums, C], s = blockIdx.y: adds slices of the blocks,
 * then the slices in order. */
static __global__ void combine_kernel(float *dw, float *db, const float *partial, int blocks, int64_t C, int V)
{
    __shared__ double sums[SLICES][COLUMNS];
    const int64_t place = (int64_t)blockIdx.x * COLUMNS + threadIdx.x, width = C / V;
    double sum = 0;
    if (place < C)
        for (int b = threadIdx.y; b < blocks; b += SLICES)
            sum += partial[((int64_t)b * gridDim.y + blockIdx.y) * C + place];
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y || place >= C) return;
    for (int s = 1; s < SLICES; s++) sum += sums[s][threadIdx.x];
    (blockIdx.y ? db : dw)[place % width * V + place / width] = (float)sum;
}

int norm_bwd_run(const struct launch *l, const norm_bwd_pieces &n, struct error *e)
{
    float *partial = (float *)l->work;
    const int sums = n.stats.mean ? 2 : 1;
    const bool in_shared = l->form == NORM_BWD_SHARED;
    if (l->form != norm_bwd_form(n.C, l->access == 16 ? n.type == STORE_F32 ? 4 : 8 : 1, sums))
        TRY_CUDA(cudaErrorInvalidValue);
    TRY_CUDA(by_access(n.type, l->access, [&](auto zero, auto width) {
        using T = decltype(zero);
        constexpr int V = decltype(width)::value;
        const int size = group_size(n.C / V, BWD_BLOCK), each = BWD_BLOCK / size;
        const unsigned grid = grid_of_rows(n.whole, each, norm_blocks(n.whole, n.C, sizeof(T)));
        const auto kernel = n.stats.mean ? norm_bwd_kernel<true, T, V> : norm_bwd_kernel<false, T, V>;
        kernel<<<grid, BWD_BLOCK, in_shared ? (size_t)norm_bwd_shared(n.C, V, sums) : 0, stream_of(l)>>>(
            (T *)n.dx, partial, (const T *)n.dy, (const T *)n.x, n.w, (const T *)n.add, n.stats, n.rows, n.C, size,
            in_shared);
        const dim3 columns((unsigned)((n.C + COLUMNS - 1) / COLUMNS), (unsigned)sums);
        combine_kernel<<<columns, dim3(COLUMNS, SLICES), 0, stream_of(l)>>>(n.dw, n.db, partial, (int)grid, n.C, V);
    }, n.dx, n.dy, n.x, n.w.data, n.add));
    return PL_OK;
}

template <bool CENTRED> static int launch_norm_bwd(const struct launch *l, struct error *e)
{
    return norm_bwd_run(l, norm_bwd_of(l, CENTRED), e);
}

/* --- L2NORM and SOFTMAX -------------------------------------------------------------------
 *
 * Four functions of one row or two: the sum along the row, and then the result for each
 * element. A function of one row gets it twice.
 */

struct l2norm {
    static constexpr bool LARGEST = false, TWO = false;
    template <typename T> static __device__ void add(float &p, float &, float x, float) { p += x * x; }
    static __device__ void finish(float &p, float &q, float eps)
    {
        p = 1.0f / fmaxf(sqrtf(p), eps);
        q = 0;
    }
    template <typename T> static __device__ float of(float x, float, float p, float) { return x * p; }
};

struct l2norm_bwd {
    static constexpr bool LARGEST = false, TWO = true;
    template <typename T> static __device__ void add(float &p, float &q, float dy, float x)
    {
        p += x * x;
        q += dy * x;
    }
    static __device__ void finish(float &p, float &q, float eps)
    {
        const float length = sqrtf(p);
        p = 1.0f / fmaxf(length, eps);
        q = length > eps ? q * p * p * p : 0.0f;
    }
    template <typename T> static __device__ float of(float dy, float x, float p, float q) { return dy * p - x * q; }
};

/* p: the sum of e^(x - q), with q the running maximum, then the row's. While all elements are -inf,
 * any finite q makes their terms 0. */
struct softmax {
    static constexpr bool LARGEST = true, TWO = false;
    template <typename T> static __device__ float of(float x, float, float p, float q) { return exp_of<T>(x - q) * p; }
};

struct softmax_bwd {
    static constexpr bool LARGEST = false, TWO = true;
    template <typename T> static __device__ void add(float &p, float &, float dy, float y) { p += dy * y; }
    static __device__ void finish(float &, float &, float) {}
    template <typename T> static __device__ float of(float dy, float y, float p, float) { return y * (dy - p); }
};

/* Adds a pack to a sum of exponentials relative to its largest element. */
template <typename T, int V> static __device__ void add_exponentials(float &sum, float &most, const float (&a)[V])
{
    float top = most;
#pragma unroll
    for (int i = 0; i < V; i++) top = fmaxf(top, a[i]);
    const float shift = top == -INFINITY ? 0.0f : top;
    if (top > most) sum *= exp_of<T>(most - shift);
    most = top;
#pragma unroll
    for (int i = 0; i < V; i++) sum += exp_of<T>(a[i] - shift);
}

template <typename F, typename T, int V>
static __global__ void row_kernel(T *y, const T *a, const T *b, int64_t rows, int64_t C, float eps, int size)
{
    __shared__ float partial[WARP];
    const int lane = threadIdx.x & (size - 1), each = BLOCK / size;
    for (int64_t base = (int64_t)blockIdx.x * each; base < rows; base += (int64_t)gridDim.x * each) {
        const int64_t row = base + (int)threadIdx.x / size, packs = row < rows ? C / V : 0;
        float p = 0, q = F::LARGEST ? -INFINITY : 0.0f;
        for (int64_t k = lane; k < packs; k += size) {
            float s[V], t[V];
            load<V>(s, a + row * C + k * V);
            if constexpr (F::LARGEST) add_exponentials<T, V>(p, q, s);
            else {
                if (F::TWO) load<V>(t, b + row * C + k * V);
#pragma unroll
                for (int i = 0; i < V; i++) F::template add<T>(p, q, s[i], F::TWO ? t[i] : s[i]);
            }
        }
        if constexpr (F::LARGEST) {
            const float most = group_max(q, size, partial);
            const float shift = most == -INFINITY ? 0.0f : most;
            p = 1.0f / group_sum(p * exp_of<T>(q - shift), size, partial);
            q = most;
        } else {
            p = group_sum(p, size, partial);
            q = F::TWO ? group_sum(q, size, partial) : 0.0f;
            F::finish(p, q, eps);
        }
        for (int64_t k = lane; k < packs; k += size) {
            float s[V], t[V];
            load<V>(s, a + row * C + k * V);
            if (F::TWO) load<V>(t, b + row * C + k * V);
#pragma unroll
            for (int i = 0; i < V; i++) s[i] = F::template of<T>(s[i], F::TWO ? t[i] : s[i], p, q);
            store<V>(y + row * C + k * V, s);
        }
    }
}

/* The last input has the rows; of a function of two rows it is the second. */
template <typename F, int ROWS> static int launch_rows(const struct launch *l, struct error *e)
{
    const struct operand *x = &l->in[ROWS - 1];
    const int64_t rows = operand_rows(x), C = operand_last(x);
    const float eps = F::LARGEST || std::is_same<F, softmax_bwd>::value ? 0 : l->attr->rmsnorm.eps;
    TRY_CUDA(by_access(store_of(x->dtype), l->access, [&](auto zero, auto width) {
        using T = decltype(zero);
        constexpr int V = decltype(width)::value;
        const int size = group_size(C / V, BLOCK);
        row_kernel<F, T, V><<<grid_of_rows(rows, BLOCK / size, GRID_MAX), BLOCK, 0, stream_of(l)>>>(
            out_as<T>(l, 0), in_as<T>(l, 0), in_as<T>(l, ROWS - 1), rows, C, eps, size);
    }, l->out[0].data, l->in[0].data, x->data));
    return PL_OK;
}

CUDA_KERNEL(cuda_rmsnorm, .launch = launch_norm<false, false>);
CUDA_KERNEL(cuda_rmsnorm_bwd, .launch = launch_norm_bwd<false>);
CUDA_KERNEL(cuda_layernorm, .launch = launch_norm<true, false>);
CUDA_KERNEL(cuda_layernorm_bwd, .launch = launch_norm_bwd<true>);
CUDA_KERNEL(cuda_add_rmsnorm, .launch = launch_norm<false, true>);
CUDA_KERNEL(cuda_add_layernorm, .launch = launch_norm<true, true>);
CUDA_KERNEL(cuda_l2norm, .launch = launch_rows<l2norm, 1>);
CUDA_KERNEL(cuda_l2norm_bwd, .launch = launch_rows<l2norm_bwd, 2>);
CUDA_KERNEL(cuda_softmax, .launch = launch_rows<softmax, 1>);
CUDA_KERNEL(cuda_softmax_bwd, .launch = launch_rows<softmax_bwd, 2>);
