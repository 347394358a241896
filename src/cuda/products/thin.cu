/*
 * thin.cu: products of a few rows with a long matrix (thin.h).
 *
 * A warp processes 32 points at a time. A lane holds 16 bytes of a point, V channels; so L = K / V
 * lanes hold a point, R = 32 / L points are one access of 512 contiguous bytes, and L accesses are
 * the 32 points:
 *
 *     access u, lane (group, sub)      point u R + group, channels sub V .. sub V + V - 1
 *     results of the 32 points         lane i has that of point i, read or written contiguously
 *
 * Filters are in registers, as f32; the rows beyond m are 0. Sums have one order: a lane's
 * channels, or its points, in ascending order; then lanes, warps and chunks as the shapes
 * determine.
 */
#include <type_traits>

#include "cuda/products/launch_products.h"
#include "cuda/rows/elements.cuh"
#include "cuda/rows/rows.cuh"

constexpr int WARPS = BLOCK / WARP;
static_assert(THIN_STEP == BLOCK, "a block has as many points at a time as threads");

template <typename T, int K> struct lanes {
    static constexpr int V = 16 / (int)sizeof(T), L = K / V, R = WARP / L;
    int sub, group;
    __device__ lanes() : sub((int)threadIdx.x % WARP % L), group((int)threadIdx.x % WARP / L) {}
};

/* The chunk of a batch that this block handles. */
struct span {
    int64_t batch, first, end; /* this warp's first point; the end of the chunk */
};

static __device__ span span_of(const thin &t)
{
    const int64_t batch = blockIdx.x / t.blocks, from = blockIdx.x % t.blocks * t.each;
    const int64_t end = from + t.each < t.N ? from + t.each : t.N;
    return {batch, from + (int64_t)(threadIdx.x / WARP) * WARP, end};
}

/* The case of SAM's mask decoder: depth 32, bf16 or f32. These kernels are tuned one by one. The
 * others are written for short compile times: they check the filters' type once, and treat one row
 * as the first of THIN_ROWS. */
template <typename T, int K> constexpr bool common = K == 32 && !std::is_same_v<T, __half>;

template <typename S, int M, int V> static __device__ void load_filters_as(float (&f)[M][V], const S *s, const thin &t)
{
#pragma unroll
    for (int i = 0; i < M; i++)
#pragma unroll
        for (int v = 0; v < V; v++) f[i][v] = i < t.m ? to_float(s[i * t.K + v]) : 0.0f;
}

template <int M, int V> static __device__ void load_once(float (&f)[M][V], typed_ptr s, const thin &t, int64_t at)
{
    if (s.type == STORE_F32) load_filters_as(f, static_cast<const float *>(s.data) + at, t);
    else if (s.type == STORE_BF16) load_filters_as(f, static_cast<const __nv_bfloat16 *>(s.data) + at, t);
    else load_filters_as(f, static_cast<const __half *>(s.data) + at, t);
}

template <typename T, int K, int M, int V>
static __device__ void load_filters(float (&f)[M][V], typed_ptr s, const lanes<T, K> &at, const thin &t, int64_t batch)
{
    const int channel = at.sub * V;
    if constexpr (common<T, K>) {
#pragma unroll
        for (int i = 0; i < M; i++)
#pragma unroll
            for (int v = 0; v < V; v++) f[i][v] = i < t.m ? element(s, (batch * t.m + i) * t.K + channel + v) : 0.0f;
    } else {
        load_once(f, s, t, batch * t.m * t.K + channel);
    }
}

/* The results of this lane's point among the 32 from `first` on. */
template <int M>
static __device__ void load_results(float (&r)[M], typed_ptr y, const thin &t, const span &p, int64_t first)
{
    const int64_t n = first + threadIdx.x % WARP;
#pragma unroll
    for (int i = 0; i < M; i++) r[i] = i < t.m && n < p.end ? element(y, (p.batch * t.m + i) * t.N + n) : 0.0f;
}

/* All of a lane's bytes of 32 points; zeros beyond the end. */
template <typename T, int K, int L, int V>
static __device__ void load_points(pack<T, V> (&c)[L], const T *x, const lanes<T, K> &at, const thin &t, const span &p,
                                   int64_t first)
{
    constexpr int R = WARP / L;
#pragma unroll
    for (int u = 0; u < L; u++) {
        const int64_t n = first + u * R + at.group;
        if (n < p.end) c[u] = *reinterpret_cast<const pack<T, V> *>(x + (p.batch * t.N + n) * K + at.sub * V);
        else
#pragma unroll
            for (int v = 0; v < V; v++) c[u].at[v] = from_float<T>(0.0f);
    }
}

/* The element itself, or its GELU. */
template <typename T, bool GELU> static __device__ float channel_of(T x)
{
    return GELU ? act_value<T>(0, to_float(x)) : to_float(x);
}

/* Each of L lanes has a part of L sums: lane i gets the total of sum i. */
template <int L> static __device__ float transpose_sum(float (&part)[L], int sub)
{
#pragma unroll
    for (int w = L / 2; w > 0; w /= 2)
#pragma unroll
        for (int i = 0; i < L / 2; i++) {
            if (i >= w) continue; /* written so that the loop unrolls */
            const bool upper = sub & w;
            const float keep = upper ? part[i + w] : part[i], give = upper ? part[i] : part[i + w];
            part[i] = keep + __shfl_xor_sync(ALL_LANES, give, w);
        }
    return part[0];
}

/* --- down: y = s x^T ---------------------------------------------------------------- */

template <typename T, int K, int M, bool GELU>
static __global__ void down_kernel(typed_ptr y, typed_ptr s, const T *x, thin t)
{
    constexpr int V = lanes<T, K>::V, L = lanes<T, K>::L, R = lanes<T, K>::R;
    const lanes<T, K> at;
    const span p = span_of(t);
    float f[M][V];
    load_filters(f, s, at, t, p.batch);
    for (int64_t first = p.first; first < p.end; first += BLOCK) {
        pack<T, V> c[L];
        float part[M][L] = {};
        load_points(c, x, at, t, p, first);
#pragma unroll
        for (int u = 0; u < L; u++)
#pragma unroll
            for (int v = 0; v < V; v++) {
                const float channel = channel_of<T, GELU>(c[u].at[v]);
#pragma unroll
                for (int i = 0; i < M; i++) part[i][u] = fmaf(f[i][v], channel, part[i][u]);
            }
        const int64_t n = first + at.sub * R + at.group;
#pragma unroll
        for (int i = 0; i < M; i++) {
            float sum[1] = {transpose_sum(part[i], at.sub)};
            const int64_t to = (p.batch * t.m + i) * t.N + n;
            if (i >= t.m || n >= p.end) continue;
            if (t.add) sum[0] += element(y, to);
            store<1>(y, to, sum);
        }
    }
}

/* The same at other depths, row by row. */
template <typename T, int K> static __global__ void down_any_kernel(typed_ptr y, typed_ptr s, const T *x, thin t)
{
    constexpr int V = lanes<T, K>::V, L = lanes<T, K>::L, R = lanes<T, K>::R;
    const lanes<T, K> at;
    const span p = span_of(t);
    for (int64_t first = p.first; first < p.end; first += BLOCK) {
        pack<T, V> c[L];
        load_points(c, x, at, t, p, first);
        const int64_t n = first + at.sub * R + at.group;
#pragma unroll 1
        for (int64_t row = p.batch * t.m; row < (p.batch + 1) * t.m; row++) {
            float f[1][V], part[L] = {};
            load_once(f, s, t, row * K + at.sub * V);
#pragma unroll
            for (int u = 0; u < L; u++)
#pragma unroll
                for (int v = 0; v < V; v++) part[u] = fmaf(f[0][v], to_float(c[u].at[v]), part[u]);
            float sum[1] = {transpose_sum(part, at.sub)};
            if (n >= p.end) continue;
            if (t.add) sum[0] += element(y, row * t.N + n);
            store<1>(y, row * t.N + n, sum);
        }
    }
}

/* --- up: x = y^T s ---------------------------------------------------------------------- */

template <typename T, int K, int M, bool GELU>
static __global__ void up_kernel(T *x, typed_ptr y, typed_ptr s, const T *z, thin t)
{
    constexpr int V = lanes<T, K>::V, L = lanes<T, K>::L, R = lanes<T, K>::R;
    const lanes<T, K> at;
    const span p = span_of(t);
    float f[M][V];
    load_filters(f, s, at, t, p.batch);
    for (int64_t first = p.first; first < p.end; first += BLOCK) {
        float r[M];
        load_results(r, y, t, p, first);
#pragma unroll
        for (int u = 0; u < L; u++) {
            const int64_t n = first + u * R + at.group;
            T *to = x + (p.batch * t.N + n) * K + at.sub * V;
            float sum[V] = {};
#pragma unroll
            for (int i = 0; i < M; i++) {
                const float factor = __shfl_sync(ALL_LANES, r[i], u * R + at.group);
#pragma unroll
                for (int v = 0; v < V; v++) sum[v] = fmaf(factor, f[i][v], sum[v]);
            }
            if (n >= p.end) continue;
            if (GELU) {
                float argument[V];
                load<V>(argument, z + (p.batch * t.N + n) * K + at.sub * V);
#pragma unroll
                for (int v = 0; v < V; v++) sum[v] *= act_slope<T>(0, argument[v]);
            }
            if (t.add) {
                float have[V];
                load<V>(have, to);
#pragma unroll
                for (int v = 0; v < V; v++) sum[v] += have[v];
            }
            store<V>(to, sum);
        }
    }
}

/* --- across: s = y x -------------------------------------------------------------------- */

/* The sums of a chunk, [batches, blocks, m, K]. */
template <typename T, int K, int M, bool GELU>
static __global__ void across_kernel(float *partial, typed_ptr y, const T *x, thin t)
{
    constexpr int V = lanes<T, K>::V, L = lanes<T, K>::L, R = lanes<T, K>::R;
    __shared__ float of_warp[WARPS][M * K];
    static_assert(M * K <= BLOCK, "a thread adds one sum");
    const lanes<T, K> at;
    const span p = span_of(t);
    float sum[M][V] = {};
    for (int64_t first = p.first; first < p.end; first += BLOCK) {
        pack<T, V> c[L];
        float r[M];
        load_points(c, x, at, t, p, first);
        load_results(r, y, t, p, first);
#pragma unroll
        for (int u = 0; u < L; u++) {
            float factor[M];
#pragma unroll
            for (int i = 0; i < M; i++) factor[i] = __shfl_sync(ALL_LANES, r[i], u * R + at.group);
#pragma unroll
            for (int v = 0; v < V; v++) {
                const float channel = channel_of<T, GELU>(c[u].at[v]);
#pragma unroll
                for (int i = 0; i < M; i++) sum[i][v] = fmaf(factor[i], channel, sum[i][v]);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < M; i++)
#pragma unroll
        for (int v = 0; v < V; v++) {
#pragma unroll
            for (int mask = L; mask < WARP; mask *= 2) sum[i][v] += __shfl_xor_sync(ALL_LANES, sum[i][v], mask);
            if (at.group == 0) of_warp[threadIdx.x / WARP][i * K + at.sub * V + v] = sum[i][v];
        }
    __syncthreads();
    const int k = (int)threadIdx.x;
    if (k >= t.m * K) return;
    float all = 0;
    for (int w = 0; w < WARPS; w++) all += of_warp[w][k];
    partial[(int64_t)blockIdx.x * t.m * K + k] = all;
}

static __global__ void across_end_kernel(typed_ptr s, const float *partial, thin t)
{
    const int64_t size = t.m * t.K, n = t.batches * size;
    const int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= n) return;
    const float *at = partial + i / size * t.blocks * size + i % size;
    float sum[1] = {0};
    for (int64_t b = 0; b < t.blocks; b++) sum[0] += at[b * size];
    if (t.add) sum[0] += element(s, i);
    store<1>(s, i, sum);
}

/* --- launching ------------------------------------------------------------------------------- */

template <typename T, int K, int M, bool GELU>
static void launch(typed_ptr s, typed_ptr x, typed_ptr y, const void *z, float *partial, const thin &t,
                   enum thin_form form, cudaStream_t stream)
{
    const unsigned grid = (unsigned)(t.batches * t.blocks);
    T *points = static_cast<T *>(x.data);
    if (form == THIN_FORM_DOWN || form == THIN_FORM_DOWN_ANY) {
        if constexpr (K == THIN_GELU) down_kernel<T, K, M, GELU><<<grid, BLOCK, 0, stream>>>(y, s, points, t);
        else down_any_kernel<T, K><<<grid, BLOCK, 0, stream>>>(y, s, points, t);
    } else if (form == THIN_FORM_UP)
        up_kernel<T, K, M, GELU><<<grid, BLOCK, 0, stream>>>(points, y, s, static_cast<const T *>(z), t);
    else {
        across_kernel<T, K, M, GELU><<<grid, BLOCK, 0, stream>>>(partial, y, points, t);
        const unsigned ends = (unsigned)((t.batches * t.m * t.K + BLOCK - 1) / BLOCK);
        across_end_kernel<<<ends, BLOCK, 0, stream>>>(s, partial, t);
    }
}

/* The rows beyond the first are 0 and not written: the sums are the same. */
template <typename T, int K, bool GELU>
static void launch_rows(typed_ptr s, typed_ptr x, typed_ptr y, const void *z, float *partial, const thin &t,
                        enum thin_form form, cudaStream_t stream)
{
    if constexpr (common<T, K>)
        if (t.m == 1) return launch<T, K, 1, GELU>(s, x, y, z, partial, t, form, stream);
    launch<T, K, THIN_ROWS, GELU>(s, x, y, z, partial, t, form, stream);
}

template <typename T, bool GELU>
static cudaError_t launch_depth(typed_ptr s, typed_ptr x, typed_ptr y, const void *z, float *partial, const thin &t,
                                enum thin_form form, cudaStream_t stream)
{
    if (t.K == THIN_GELU) launch_rows<T, THIN_GELU, GELU>(s, x, y, z, partial, t, form, stream);
    else if (GELU) return cudaErrorInvalidValue;
    else if (t.K == 16) launch_rows<T, 16, false>(s, x, y, z, partial, t, form, stream);
    else if (t.K == 64) launch_rows<T, 64, false>(s, x, y, z, partial, t, form, stream);
    else return cudaErrorInvalidValue;
    return cudaGetLastError();
}

template <bool GELU>
static cudaError_t launch_type(typed_ptr s, typed_ptr x, typed_ptr y, const void *z, float *partial, const thin &t,
                               enum thin_form form, cudaStream_t stream)
{
    switch (x.type) {
    case STORE_F32: return launch_depth<float, GELU>(s, x, y, z, partial, t, form, stream);
    case STORE_BF16: return launch_depth<__nv_bfloat16, GELU>(s, x, y, z, partial, t, form, stream);
    case STORE_F16: return launch_depth<__half, GELU>(s, x, y, z, partial, t, form, stream);
    }
    return cudaErrorInvalidValue;
}

extern "C" cudaError_t cuda_thin(struct typed_ptr s, struct typed_ptr x, struct typed_ptr y, const void *z,
                                 float *partial, struct thin t, enum thin_form form, cudaStream_t stream)
{
    if (t.mode == THIN_NONE || form != thin_form(&t) || !is_aligned(x.data, 16)) return cudaErrorInvalidValue;
    if (t.gelu && t.mode == THIN_UP && (!z || !is_aligned(z, 16))) return cudaErrorInvalidValue;
    return t.gelu ? launch_type<true>(s, x, y, z, partial, t, form, stream)
                  : launch_type<false>(s, x, y, z, partial, t, form, stream);
}
