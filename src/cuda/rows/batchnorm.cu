/*
 * batchnorm.cu: BATCHNORM over groups of images, the variant with given statistics, their
 * gradients, and the running statistics.
 *
 * A map is rows of C channels; a group is n rows, split into the chunks of norm_blocks.h. A thread
 * owns V channels and traverses every S-th row of a chunk; S threads share the channels:
 *
 *     block (tile of channels, chunk, group):   lanes across channels, slices down the rows
 *     slices added in order --> partial [G, chunks, 2, C] --> chunks added in order
 *
 * The moments are a mean and a sum of squared deviations in every thread (Welford), so that a
 * large mean costs no precision; two sets a and b combine as
 *     M2 = M2_a + M2_b + (mean_a - mean_b)^2 n_a n_b / (n_a + n_b).
 */
#include "cuda/device/kernel.cuh"

/* Statistics of a channel: [G,C] each. Frozen: [C], and `spread` is the variance instead of
 * rstd. */
struct channel {
    typed_ptr mean, spread, w, b;
    int frozen;
    float eps;
};
/* G groups of n rows of C. The workspace has batch_partial(G, n, C) floats, and for gradients of
 * statistics that are not frozen [G,2,C] behind them. */
struct maps {
    enum store type;
    int64_t G, n, C;
};
static maps maps_of(const struct operand *x, int64_t G)
{
    return {store_of(x->dtype), G, operand_rows(x) / G, operand_last(x)};
}

/* The part of the map that a thread handles. */
struct part {
    int64_t from, to;    /* rows of the map */
    int64_t k;           /* the thread's pack of channels */
    int slice, slices;
    bool live;           /* the pack exists */
};

static __device__ part part_of(const maps &m, int64_t each, int lanes, int V)
{
    part p;
    const int64_t g = blockIdx.z, begin = blockIdx.y * each, end = begin + each;
    p.from = g * m.n + (begin < m.n ? begin : m.n);
    p.to = g * m.n + (end < m.n ? end : m.n);
    p.k = (int64_t)blockIdx.x * lanes + (threadIdx.x & (lanes - 1));
    p.slice = (int)threadIdx.x / lanes;
    p.slices = BLOCK / lanes;
    p.live = p.k < m.C / V;
    return p;
}

static __device__ int64_t chunk_rows(const maps &m, int64_t each, int64_t chunk)
{
    const int64_t left = m.n - chunk * each;
    return left < 0 ? 0 : left < each ? left : each;
}

/* Returns the index of partial sum `which` of the block's channels. */
static __device__ int64_t partial_at(const maps &m, int64_t g, int64_t chunks, int64_t chunk, int which)
{
    return ((g * chunks + chunk) * 2 + which) * m.C;
}

/* mean, rstd and w of the thread's channels. */
template <int V>
static __device__ void load_channel(float (&mean)[V], float (&rstd)[V], float (&w)[V], const channel &c, const maps &m,
                                    int64_t k)
{
    const int64_t at = (c.frozen ? 0 : blockIdx.z * m.C) + k * V;
    load<V>(mean, c.mean, at);
    load<V>(rstd, c.spread, at);
    load<V>(w, c.w, k * V);
    if (!c.frozen) return;
#pragma unroll
    for (int i = 0; i < V; i++) rstd[i] = 1.0f / sqrtf(rstd[i] + c.eps);
}

/* --- statistics -------------------------------------------------------------------------- */

template <typename T, int V>
static __global__ void moments_kernel(float *partial, const T *x, maps m, int64_t each, int lanes)
{
    __shared__ float means[BLOCK * V], squares[BLOCK * V];
    const part p = part_of(m, each, lanes, V);
    float mean[V] = {}, m2[V] = {};
    if (p.live) {
        int count = 0;
#pragma unroll 4
        for (int64_t r = p.from + p.slice; r < p.to; r += p.slices) {
            float a[V];
            load<V>(a, x + r * m.C + p.k * V);
            const float inverse = __frcp_rn((float)++count);
#pragma unroll
            for (int i = 0; i < V; i++) {
                const float d = a[i] - mean[i];
                mean[i] += d * inverse;
                m2[i] += d * (a[i] - mean[i]);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < V; i++) {
        means[threadIdx.x * V + i] = mean[i];
        squares[threadIdx.x * V + i] = m2[i];
    }
    __syncthreads();
    for (int column = threadIdx.x; column < lanes * V; column += BLOCK) {
        const int64_t c = (int64_t)blockIdx.x * lanes * V + column;
        if (c >= m.C) continue;
        double all = 0, middle = 0, sum = 0;
        for (int s = 0; s < p.slices; s++) {
            const int64_t rows = p.to - p.from - s;
            if (rows <= 0) break;
            const double count = (double)((rows + p.slices - 1) / p.slices);
            const double off = means[s * lanes * V + column] - middle, share = count / (all + count);
            middle += off * share;
            sum += squares[s * lanes * V + column] + off * off * all * share;
            all += count;
        }
        partial[partial_at(m, blockIdx.z, gridDim.y, blockIdx.y, 0) + c] = (float)middle;
        partial[partial_at(m, blockIdx.z, gridDim.y, blockIdx.y, 1) + c] = (float)sum;
    }
}

constexpr int COLUMNS = 32, SLICES = 8;

/* Sums over slices (threadIdx.y), in order; every slice gets the same bits. */
static __device__ double slice_sum(double x)
{
    __shared__ double sums[SLICES][COLUMNS];
    __syncthreads();
    sums[threadIdx.y][threadIdx.x] = x;
    __syncthreads();
    double sum = 0;
    for (int s = 0; s < SLICES; s++) sum += sums[s][threadIdx.x];
    return sum;
}

static __global__ void statistics_kernel(float *mean, float *rstd, const float *partial, maps m, int64_t chunks,
                                         int64_t each, float eps)
{
    const int64_t c = (int64_t)blockIdx.x * COLUMNS + threadIdx.x, g = blockIdx.z;
    const int64_t mine = c < m.C ? chunks : 0;
    double sum = 0, squares = 0;
    for (int64_t b = threadIdx.y; b < mine; b += SLICES)
        sum += (double)partial[partial_at(m, g, chunks, b, 0) + c] * (double)chunk_rows(m, each, b);
    const double middle = slice_sum(sum) / (double)m.n;
    for (int64_t b = threadIdx.y; b < mine; b += SLICES) {
        const double off = partial[partial_at(m, g, chunks, b, 0) + c] - middle;
        squares += partial[partial_at(m, g, chunks, b, 1) + c] + off * off * (double)chunk_rows(m, each, b);
    }
    squares = slice_sum(squares);
    if (threadIdx.y || c >= m.C) return;
    mean[g * m.C + c] = (float)middle;
    rstd[g * m.C + c] = (float)(1 / sqrt(squares / (double)m.n + (double)eps));
}

/* --- forward --------------------------------------------------------------------------------- */

/* y = (x - mean) rstd w + b; y may be x. */
template <typename T, int V>
static __global__ void normalise_kernel(T *y, const T *x, channel c, maps m, int64_t each, int lanes)
{
    const part p = part_of(m, each, lanes, V);
    if (!p.live) return;
    float mean[V], scale[V], w[V], shift[V];
    load_channel<V>(mean, scale, w, c, m, p.k);
    load<V>(shift, c.b, p.k * V);
#pragma unroll
    for (int i = 0; i < V; i++) scale[i] *= w[i];
#pragma unroll 4
    for (int64_t r = p.from + p.slice; r < p.to; r += p.slices) {
        float a[V];
        load<V>(a, x + r * m.C + p.k * V);
#pragma unroll
        for (int i = 0; i < V; i++) a[i] = (a[i] - mean[i]) * scale[i] + shift[i];
        store<V>(y + r * m.C + p.k * V, a);
    }
}

/* --- gradients ----------------------------------------------------------------------------------
 *
 * With h = (x - mean) rstd, per group of n rows:  sum = sum dy,  dot = sum dy h,
 *     dx = w rstd (dy - sum/n - h dot/n)     (given statistics: dx = w rstd dy)
 * and dw, db are the sums of dot and sum over groups.
 */

/* Partial sums of dy and dy h; with given statistics also dx, which may alias dy. */
template <typename T, int V>
static __global__ void dots_kernel(T *dx, float *partial, const T *dy, const T *x, channel c, maps m, int64_t each,
                                   int lanes)
{
    __shared__ float sums[BLOCK * V], dots[BLOCK * V];
    const part p = part_of(m, each, lanes, V);
    float sum[V] = {}, dot[V] = {};
    if (p.live) {
        float mean[V], rstd[V], w[V];
        load_channel<V>(mean, rstd, w, c, m, p.k);
#pragma unroll 2
        for (int64_t r = p.from + p.slice; r < p.to; r += p.slices) {
            float d[V], a[V];
            load<V>(d, dy + r * m.C + p.k * V);
            load<V>(a, x + r * m.C + p.k * V);
#pragma unroll
            for (int i = 0; i < V; i++) {
                sum[i] += d[i];
                dot[i] += d[i] * ((a[i] - mean[i]) * rstd[i]);
            }
            if (!c.frozen) continue;
#pragma unroll
            for (int i = 0; i < V; i++) d[i] *= w[i] * rstd[i];
            store<V>(dx + r * m.C + p.k * V, d);
        }
    }
#pragma unroll
    for (int i = 0; i < V; i++) {
        sums[threadIdx.x * V + i] = sum[i];
        dots[threadIdx.x * V + i] = dot[i];
    }
    __syncthreads();
    for (int column = threadIdx.x; column < lanes * V; column += BLOCK) {
        const int64_t at = (int64_t)blockIdx.x * lanes * V + column;
        if (at >= m.C) continue;
        float a = 0, b = 0;
        for (int s = 0; s < p.slices; s++) {
            a += sums[s * lanes * V + column];
            b += dots[s * lanes * V + column];
        }
        partial[partial_at(m, blockIdx.z, gridDim.y, blockIdx.y, 0) + at] = a;
        partial[partial_at(m, blockIdx.z, gridDim.y, blockIdx.y, 1) + at] = b;
    }
}

/* Adds the chunks of group g; the results are at sum + g stride and dot + g stride. */
static __global__ void totals_kernel(float *sum, float *dot, int64_t stride, const float *partial, maps m,
                                     int64_t chunks)
{
    const int64_t c = (int64_t)blockIdx.x * COLUMNS + threadIdx.x, g = blockIdx.z, mine = c < m.C ? chunks : 0;
    double a = 0, b = 0;
    for (int64_t k = threadIdx.y; k < mine; k += SLICES) {
        a += partial[partial_at(m, g, chunks, k, 0) + c];
        b += partial[partial_at(m, g, chunks, k, 1) + c];
    }
    a = slice_sum(a);
    b = slice_sum(b);
    if (threadIdx.y || c >= m.C) return;
    sum[g * stride + c] = (float)a;
    dot[g * stride + c] = (float)b;
}

/* Computes dw, db from totals [G,2,C]. */
static __global__ void weights_kernel(float *dw, float *db, const float *totals, int64_t G, int64_t C)
{
    const int64_t c = (int64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (c >= C) return;
    double sum = 0, dot = 0;
    for (int64_t g = 0; g < G; g++) {
        sum += totals[2 * g * C + c];
        dot += totals[(2 * g + 1) * C + c];
    }
    dw[c] = (float)dot;
    db[c] = (float)sum;
}

template <typename T, int V>
static __global__ void slopes_kernel(T *dx, const T *dy, const T *x, const float *totals, channel c, maps m,
                                     int64_t each, int lanes)
{
    const part p = part_of(m, each, lanes, V);
    if (!p.live) return;
    float mean[V], rstd[V], w[V], sum[V], dot[V];
    load_channel<V>(mean, rstd, w, c, m, p.k);
#pragma unroll
    for (int i = 0; i < V; i++) {
        sum[i] = totals[2 * blockIdx.z * m.C + p.k * V + i] / (float)m.n;
        dot[i] = totals[(2 * blockIdx.z + 1) * m.C + p.k * V + i] / (float)m.n;
        w[i] *= rstd[i];
    }
#pragma unroll 2
    for (int64_t r = p.from + p.slice; r < p.to; r += p.slices) {
        float d[V], a[V];
        load<V>(d, dy + r * m.C + p.k * V);
        load<V>(a, x + r * m.C + p.k * V);
#pragma unroll
        for (int i = 0; i < V; i++) d[i] = w[i] * (d[i] - sum[i] - (a[i] - mean[i]) * rstd[i] * dot[i]);
        store<V>(dx + r * m.C + p.k * V, d);
    }
}

/* --- launching -------------------------------------------------------------------------------- */

struct layout {
    int64_t chunks, each;
    int lanes;
    dim3 blocks, columns; /* grids of the kernels by chunk, and by channel */
};

static layout layout_of(const maps &m, int V)
{
    layout l;
    l.chunks = batch_chunks(m.G, m.n, m.C);
    l.each = batch_each(m.G, m.n, m.C);
    l.lanes = group_size(m.C / V, WARP);
    const int64_t packs = m.C / V;
    l.blocks = dim3((unsigned)((packs + l.lanes - 1) / l.lanes), (unsigned)l.chunks, (unsigned)m.G);
    l.columns = dim3((unsigned)((m.C + COLUMNS - 1) / COLUMNS), 1, (unsigned)m.G);
    return l;
}

template <bool FROZEN> static int launch_batchnorm(const struct launch *l, struct error *e)
{
    const struct operand *x = &l->in[0];
    const maps m = maps_of(x, FROZEN ? 1 : l->out[1].dim[0]);
    const channel c = {typed_of(FROZEN ? &l->in[3] : &l->out[1]), typed_of(FROZEN ? &l->in[4] : &l->out[2]),
                       typed_of(&l->in[1]), typed_of(&l->in[2]), FROZEN,
                       FROZEN ? l->attr->batchnorm_frozen.eps : l->attr->batchnorm.eps};
    float *work = (float *)l->work;
    TRY_CUDA(by_access(m.type, l->access, [&](auto zero, auto width) {
        using T = decltype(zero);
        constexpr int V = decltype(width)::value;
        const layout a = layout_of(m, V);
        if (!FROZEN) {
            moments_kernel<T, V><<<a.blocks, BLOCK, 0, stream_of(l)>>>(work, in_as<T>(l, 0), m, a.each, a.lanes);
            statistics_kernel<<<a.columns, dim3(COLUMNS, SLICES), 0, stream_of(l)>>>(
                (float *)c.mean.data, (float *)c.spread.data, work, m, a.chunks, a.each, c.eps);
        }
        normalise_kernel<T, V><<<a.blocks, BLOCK, 0, stream_of(l)>>>(out_as<T>(l, 0), in_as<T>(l, 0), c, m, a.each,
                                                                     a.lanes);
    }, l->out[0].data, x->data, c.mean.data, c.spread.data, c.w.data, c.b.data));
    return PL_OK;
}

/* dx may alias dy. */
template <bool FROZEN> static int launch_batchnorm_bwd(const struct launch *l, struct error *e)
{
    const maps m = maps_of(&l->in[1], FROZEN ? 1 : l->in[3].dim[0]);
    const channel c = {typed_of(&l->in[3]), typed_of(&l->in[4]), typed_of(&l->in[2]), {nullptr, STORE_F32}, FROZEN,
                       FROZEN ? l->attr->batchnorm_frozen.eps : 0};
    float *dw = out_as<float>(l, 1), *db = out_as<float>(l, 2), *work = (float *)l->work;
    float *totals = work + batch_partial(m.G, m.n, m.C);
    TRY_CUDA(by_access(m.type, l->access, [&](auto zero, auto width) {
        using T = decltype(zero);
        constexpr int V = decltype(width)::value;
        const layout a = layout_of(m, V);
        T *dx = out_as<T>(l, 0);
        const T *dy = in_as<T>(l, 0), *x = in_as<T>(l, 1);
        dots_kernel<T, V><<<a.blocks, BLOCK, 0, stream_of(l)>>>(dx, work, dy, x, c, m, a.each, a.lanes);
        totals_kernel<<<a.columns, dim3(COLUMNS, SLICES), 0, stream_of(l)>>>(
            FROZEN ? db : totals, FROZEN ? dw : totals + m.C, FROZEN ? 0 : 2 * m.C, work, m, a.chunks);
        if (FROZEN) return;
        weights_kernel<<<(unsigned)((m.C + BLOCK - 1) / BLOCK), BLOCK, 0, stream_of(l)>>>(dw, db, totals, m.G, m.C);
        slopes_kernel<T, V><<<a.blocks, BLOCK, 0, stream_of(l)>>>(dx, dy, x, totals, c, m, a.each, a.lanes);
    }, l->out[0].data, l->in[0].data, l->in[1].data, c.mean.data, c.spread.data, c.w.data));
    return PL_OK;
}

/* --- running statistics ----------------------------------------------------------------------- */

static __global__ void update_kernel(float *mean, float *var, const float *batch_mean, const float *batch_rstd,
                                     int64_t G, int64_t C, double unbiased, double momentum, double eps)
{
    const int64_t c = (int64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (c >= C) return;
    /* f32 after each group: the bits do not depend on how many come at once */
    float running_mean = mean[c], running_var = var[c];
    for (int64_t k = c; k < G * C; k += C) {
        const double rstd = batch_rstd[k], now = fmax(0.0, 1 / (rstd * rstd) - eps);
        running_mean = (float)(running_mean + momentum * (batch_mean[k] - (double)running_mean));
        running_var = (float)(running_var + momentum * (now * unbiased - running_var));
    }
    mean[c] = running_mean;
    var[c] = running_var;
}

static int launch_batchnorm_update(const struct launch *l, struct error *e)
{
    const int64_t G = l->in[0].dim[0], C = l->in[0].dim[1], count = l->attr->batchnorm_update.count;
    update_kernel<<<(unsigned)((C + BLOCK - 1) / BLOCK), BLOCK, 0, stream_of(l)>>>(
        out_as<float>(l, 0), out_as<float>(l, 1), in_as<float>(l, 0), in_as<float>(l, 1), G, C,
        (double)count / (double)(count - 1), l->attr->batchnorm_update.momentum, (double)l->attr->batchnorm_update.eps);
    TRY_CUDA(cudaGetLastError());
    return PL_OK;
}

CUDA_KERNEL(cuda_batchnorm, .launch = launch_batchnorm<false>);
CUDA_KERNEL(cuda_batchnorm_bwd, .launch = launch_batchnorm_bwd<false>);
CUDA_KERNEL(cuda_batchnorm_frozen, .launch = launch_batchnorm<true>);
CUDA_KERNEL(cuda_batchnorm_frozen_bwd, .launch = launch_batchnorm_bwd<true>);
CUDA_KERNEL(cuda_batchnorm_update, .launch = launch_batchnorm_update);
