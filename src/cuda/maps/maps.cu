/*
 * maps.cu: images and maps [B,H,W,C]: RESIZE, AVGPOOL and MAXPOOL, forward and backward, IMAGE, and
 * FOURIER.
 *
 * A thread computes V channels of one output pixel, in the forward and in the backward: a gradient
 * gathers from the pixels that its own contributed to, in order, so no element has two writers.
 * Coordinates between pixels are computed in double, as in the reference.
 */
#include "cuda/rows/elements.cuh"
#include "cuda/maps/launch_shuffle.h"

/* Channel c of a pixel in a map [B,H,W,C]. */
struct spot {
    int64_t b, h, w, c;
};

static __device__ spot spot_of(int64_t k, int64_t H, int64_t W, int64_t C, int V)
{
    const int64_t pixel = quotient(k, C / V), line = quotient(pixel, W), b = quotient(line, H);
    return {b, line - b * H, pixel - line * W, (k - pixel * (C / V)) * V};
}

static __device__ int64_t element_of(int64_t b, int64_t h, int64_t w, int64_t c, int64_t H, int64_t W, int64_t C)
{
    return ((b * H + h) * W + w) * C + c;
}

/* --- resize ---------------------------------------------------------------------------- */

/* The two pixels that result pixel `at` interpolates, and the weight of the second. */
struct between {
    int64_t low, high;
    double weight;
};

static __device__ double scale_of(int64_t from, int64_t to, int align)
{
    return align ? (to > 1 ? (double)(from - 1) / (double)(to - 1) : 0.0) : (double)from / (double)to;
}

static __device__ between between_of(int64_t at, int64_t from, double scale, int align)
{
    const double place = align ? scale * (double)at : fmax(0.0, scale * ((double)at + 0.5) - 0.5);
    int64_t low = (int64_t)place;
    if (low > from - 1) low = from - 1;
    return {low, low + 1 < from ? low + 1 : from - 1, fmin(1.0, place - (double)low)};
}

template <typename T, int V> __global__ void resize_kernel(T *y, const T *x, map_sizes m, int align, int64_t packs)
{
    const double down = scale_of(m.H, m.H2, align), across = scale_of(m.W, m.W2, align);
    for (int64_t k = (int64_t)blockIdx.x * BLOCK + threadIdx.x; k < packs; k += (int64_t)gridDim.x * BLOCK) {
        const spot s = spot_of(k, m.H2, m.W2, m.C, V);
        const between p = between_of(s.h, m.H, down, align), q = between_of(s.w, m.W, across, align);
        auto at = [&](int64_t h, int64_t w) {
            return *reinterpret_cast<const pack<T, V> *>(x + element_of(s.b, h, w, s.c, m.H, m.W, m.C));
        };
        const pack<T, V> a = at(p.low, q.low), b = at(p.low, q.high), c = at(p.high, q.low), d = at(p.high, q.high);
        const float v = (float)p.weight, w = (float)q.weight, v1 = (float)(1 - p.weight), w1 = (float)(1 - q.weight);
        pack<T, V> out;
#pragma unroll
        for (int i = 0; i < V; i++)
            out.at[i] = from_float<T>(v1 * (w1 * to_float(a.at[i]) + w * to_float(b.at[i])) +
                                      v * (w1 * to_float(c.at[i]) + w * to_float(d.at[i])));
        reinterpret_cast<pack<T, V> *>(y)[k] = out;
    }
}

/* Returns the weight of pixel i in a result pixel. */
static __device__ double share_of(const between &p, int64_t i)
{
    return (i == p.low ? 1 - p.weight : 0) + (i == p.high ? p.weight : 0);
}

/* The result pixels that pixel i may contribute to: those whose coordinate is within one of i, and,
 * at the borders, all that were clamped there. */
struct reach {
    int64_t first, last;
};

static __device__ reach reach_of(int64_t i, int64_t from, int64_t to, double scale, int align)
{
    reach r = {0, to - 1};
    if (scale <= 0) return r;
    const double shift = align ? 0 : 0.5, slack = 1e-3;
    const double low = ((double)(i - 1) + shift) / scale - shift, high = ((double)(i + 1) + shift) / scale - shift;
    if (i > 0 && low > 0) r.first = (int64_t)ceil(low - slack);
    if (i < from - 1 && high < (double)to) r.last = (int64_t)floor(high + slack);
    if (r.first < 0) r.first = 0;
    if (r.last > to - 1) r.last = to - 1;
    return r;
}

template <typename T, int V>
__global__ void resize_bwd_kernel(T *dx, const T *dy, map_sizes m, int align, int64_t packs)
{
    const double down = scale_of(m.H, m.H2, align), across = scale_of(m.W, m.W2, align);
    for (int64_t k = (int64_t)blockIdx.x * BLOCK + threadIdx.x; k < packs; k += (int64_t)gridDim.x * BLOCK) {
        const spot s = spot_of(k, m.H, m.W, m.C, V);
        const reach rows = reach_of(s.h, m.H, m.H2, down, align), columns = reach_of(s.w, m.W, m.W2, across, align);
        float sum[V];
#pragma unroll
        for (int i = 0; i < V; i++) sum[i] = 0;
        for (int64_t h = rows.first; h <= rows.last; h++) {
            const double share = share_of(between_of(h, m.H, down, align), s.h);
            if (share == 0) continue;
            for (int64_t w = columns.first; w <= columns.last; w++) {
                const float weight = (float)(share * share_of(between_of(w, m.W, across, align), s.w));
                if (weight == 0) continue;
                const pack<T, V> a =
                    *reinterpret_cast<const pack<T, V> *>(dy + element_of(s.b, h, w, s.c, m.H2, m.W2, m.C));
#pragma unroll
                for (int i = 0; i < V; i++) sum[i] += weight * to_float(a.at[i]);
            }
        }
        pack<T, V> out;
#pragma unroll
        for (int i = 0; i < V; i++) out.at[i] = from_float<T>(sum[i]);
        reinterpret_cast<pack<T, V> *>(dx)[k] = out;
    }
}

template <typename T, int V>
static void start_resize(T *y, const T *x, const map_sizes &m, int align, int backward, cudaStream_t stream)
{
    const int64_t packs = m.B * (backward ? m.H * m.W : m.H2 * m.W2) * (m.C / V);
    if (backward) resize_bwd_kernel<T, V><<<grid_for(packs), BLOCK, 0, stream>>>(y, x, m, align, packs);
    else resize_kernel<T, V><<<grid_for(packs), BLOCK, 0, stream>>>(y, x, m, align, packs);
}

template <typename T>
static cudaError_t launch_resize(void *y, const void *x, const map_sizes &m, int align, int backward, int access,
                                 cudaStream_t stream)
{
    constexpr int V = 16 / sizeof(T);
    if (misaligned(access, y, x)) return cudaErrorMisalignedAddress;
    if (access == 16) start_resize<T, V>((T *)y, (const T *)x, m, align, backward, stream);
    else start_resize<T, 1>((T *)y, (const T *)x, m, align, backward, stream);
    return cudaGetLastError();
}

extern "C" cudaError_t cuda_resize(void *y, const void *x, enum store type, struct map_sizes m, int align, int backward,
                                   int access, cudaStream_t stream)
{
    switch (type) {
    case STORE_F32: return launch_resize<float>(y, x, m, align, backward, access, stream);
    case STORE_BF16: return launch_resize<__nv_bfloat16>(y, x, m, align, backward, access, stream);
    case STORE_F16: return launch_resize<__half>(y, x, m, align, backward, access, stream);
    }
    return cudaErrorInvalidValue;
}

/* --- average pooling ---------------------------------------------------------------------- */

/* Pixels from .. to of window `at` along an axis of n pixels, and the divisor of the mean. */
struct pool_span {
    int64_t from, to, count;
};

static __device__ pool_span span_of(const pool &p, int axis, int64_t at, int64_t n, int64_t windows)
{
    if (p.adaptive) {
        const int64_t from = quotient(at * n, windows), to = quotient((at + 1) * n + windows - 1, windows);
        return {from, to, to - from};
    }
    const int64_t begin = at * p.stride[axis] - p.pad[axis], end = begin + p.k[axis];
    const int64_t from = begin > 0 ? begin : 0, to = end < n ? end : n;
    return {from, to, p.count_pad ? end - begin : to - from};
}

/* Returns the windows that may contain pixel i. */
static __device__ reach windows_of(const pool &p, int axis, int64_t i, int64_t n, int64_t windows)
{
    reach r;
    if (p.adaptive) {
        r.first = quotient(i * windows, n);
        r.last = quotient((i + 1) * windows - 1, n);
    } else {
        const int64_t behind = i + p.pad[axis] - p.k[axis] + 1;
        r.first = behind > 0 ? quotient(behind + p.stride[axis] - 1, p.stride[axis]) : 0;
        r.last = quotient(i + p.pad[axis], p.stride[axis]);
    }
    if (r.last > windows - 1) r.last = windows - 1;
    return r;
}

template <typename T, int V> __global__ void avgpool_kernel(T *y, const T *x, map_sizes m, pool p, int64_t packs)
{
    for (int64_t k = (int64_t)blockIdx.x * BLOCK + threadIdx.x; k < packs; k += (int64_t)gridDim.x * BLOCK) {
        const spot s = spot_of(k, m.H2, m.W2, m.C, V);
        const pool_span rows = span_of(p, 0, s.h, m.H, m.H2), columns = span_of(p, 1, s.w, m.W, m.W2);
        float sum[V];
#pragma unroll
        for (int i = 0; i < V; i++) sum[i] = 0;
        for (int64_t h = rows.from; h < rows.to; h++)
            for (int64_t w = columns.from; w < columns.to; w++) {
                const pack<T, V> a =
                    *reinterpret_cast<const pack<T, V> *>(x + element_of(s.b, h, w, s.c, m.H, m.W, m.C));
#pragma unroll
                for (int i = 0; i < V; i++) sum[i] += to_float(a.at[i]);
            }
        const float count = (float)(rows.count * columns.count);
        pack<T, V> out;
#pragma unroll
        for (int i = 0; i < V; i++) out.at[i] = from_float<T>(sum[i] / count);
        reinterpret_cast<pack<T, V> *>(y)[k] = out;
    }
}

template <typename T, int V> __global__ void avgpool_bwd_kernel(T *dx, const T *dy, map_sizes m, pool p, int64_t packs)
{
    for (int64_t k = (int64_t)blockIdx.x * BLOCK + threadIdx.x; k < packs; k += (int64_t)gridDim.x * BLOCK) {
        const spot s = spot_of(k, m.H, m.W, m.C, V);
        const reach rows = windows_of(p, 0, s.h, m.H, m.H2), columns = windows_of(p, 1, s.w, m.W, m.W2);
        float sum[V];
#pragma unroll
        for (int i = 0; i < V; i++) sum[i] = 0;
        for (int64_t h = rows.first; h <= rows.last; h++) {
            const pool_span u = span_of(p, 0, h, m.H, m.H2);
            if (s.h < u.from || s.h >= u.to) continue;
            for (int64_t w = columns.first; w <= columns.last; w++) {
                const pool_span v = span_of(p, 1, w, m.W, m.W2);
                if (s.w < v.from || s.w >= v.to) continue;
                const float count = (float)(u.count * v.count);
                const pack<T, V> a =
                    *reinterpret_cast<const pack<T, V> *>(dy + element_of(s.b, h, w, s.c, m.H2, m.W2, m.C));
#pragma unroll
                for (int i = 0; i < V; i++) sum[i] += to_float(a.at[i]) / count;
            }
        }
        pack<T, V> out;
#pragma unroll
        for (int i = 0; i < V; i++) out.at[i] = from_float<T>(sum[i]);
        reinterpret_cast<pack<T, V> *>(dx)[k] = out;
    }
}

template <typename T, int V>
static void start_pool(T *y, const T *x, const map_sizes &m, const pool &p, int backward, cudaStream_t stream)
{
    const int64_t packs = m.B * (backward ? m.H * m.W : m.H2 * m.W2) * (m.C / V);
    if (backward) avgpool_bwd_kernel<T, V><<<grid_for(packs), BLOCK, 0, stream>>>(y, x, m, p, packs);
    else avgpool_kernel<T, V><<<grid_for(packs), BLOCK, 0, stream>>>(y, x, m, p, packs);
}

template <typename T>
static cudaError_t launch_pool(void *y, const void *x, const map_sizes &m, const pool &p, int backward, int access,
                               cudaStream_t stream)
{
    constexpr int V = 16 / sizeof(T);
    if (misaligned(access, y, x)) return cudaErrorMisalignedAddress;
    if (access == 16) start_pool<T, V>((T *)y, (const T *)x, m, p, backward, stream);
    else start_pool<T, 1>((T *)y, (const T *)x, m, p, backward, stream);
    return cudaGetLastError();
}

extern "C" cudaError_t cuda_avgpool(void *y, const void *x, enum store type, struct map_sizes m, struct pool p,
                                    int backward, int access, cudaStream_t stream)
{
    switch (type) {
    case STORE_F32: return launch_pool<float>(y, x, m, p, backward, access, stream);
    case STORE_BF16: return launch_pool<__nv_bfloat16>(y, x, m, p, backward, access, stream);
    case STORE_F16: return launch_pool<__half>(y, x, m, p, backward, access, stream);
    }
    return cudaErrorInvalidValue;
}

/* --- maximum pooling ---------------------------------------------------------------------------
 *
 * A thread has V channels of one window. Windows lie side by side, so that the gradient of a window
 * has one writer, which reads the window before: dx may be x. */

/* Finds the largest elements of a window and the pixels u size + v where they are first. */
template <typename T, int V>
static __device__ void find_largest(float *best, int *at, const T *x, const spot &s, const map_sizes &m, int size)
{
    for (int i = 0; i < size * size; i++) {
        const pack<T, V> a = *reinterpret_cast<const pack<T, V> *>(
            x + element_of(s.b, s.h * size + i / size, s.w * size + i % size, s.c, m.H, m.W, m.C));
#pragma unroll
        for (int k = 0; k < V; k++) {
            const float next = to_float(a.at[k]);
            if (i && !(next > best[k] || isnan(next))) continue;
            best[k] = next;
            at[k] = i;
        }
    }
}

template <typename T, int V> __global__ void maxpool_kernel(T *y, const T *x, map_sizes m, int size, int64_t packs)
{
    for (int64_t k = (int64_t)blockIdx.x * BLOCK + threadIdx.x; k < packs; k += (int64_t)gridDim.x * BLOCK) {
        float best[V];
        int at[V];
        pack<T, V> out;
        find_largest<T, V>(best, at, x, spot_of(k, m.H2, m.W2, m.C, V), m, size);
#pragma unroll
        for (int i = 0; i < V; i++) out.at[i] = from_float<T>(best[i]);
        reinterpret_cast<pack<T, V> *>(y)[k] = out;
    }
}

/* Returns the end of a window's own part of an axis: the last window's reaches to the end of the
 * map, so that what is in no window gets its zeros too. */
static __device__ int64_t end_of(int64_t window, int64_t windows, int size, int64_t n)
{
    return window + 1 < windows ? (window + 1) * size : n;
}

template <typename T, int V>
__global__ void maxpool_bwd_kernel(T *dx, const T *dy, const T *x, map_sizes m, int size, int64_t packs)
{
    for (int64_t k = (int64_t)blockIdx.x * BLOCK + threadIdx.x; k < packs; k += (int64_t)gridDim.x * BLOCK) {
        const spot s = spot_of(k, m.H2, m.W2, m.C, V);
        const int64_t bottom = end_of(s.h, m.H2, size, m.H), right = end_of(s.w, m.W2, size, m.W);
        const pack<T, V> d = reinterpret_cast<const pack<T, V> *>(dy)[k];
        float best[V];
        int at[V];
        find_largest<T, V>(best, at, x, s, m, size);
        for (int64_t h = s.h * size; h < bottom; h++)
            for (int64_t w = s.w * size; w < right; w++) {
                const int64_t u = h - s.h * size, v = w - s.w * size;
                pack<T, V> out;
#pragma unroll
                for (int i = 0; i < V; i++)
                    out.at[i] = u < size && v < size && at[i] == (int)(u * size + v) ? d.at[i] : from_float<T>(0.0f);
                *reinterpret_cast<pack<T, V> *>(dx + element_of(s.b, h, w, s.c, m.H, m.W, m.C)) = out;
            }
    }
}

template <typename T>
static cudaError_t launch_maxpool(void *y, const void *x, const map_sizes &m, int size, int access, cudaStream_t stream)
{
    constexpr int V = 16 / sizeof(T);
    if (misaligned(access, y, x)) return cudaErrorMisalignedAddress;
    const int64_t wide = m.B * m.H2 * m.W2 * (m.C / V), narrow = m.B * m.H2 * m.W2 * m.C;
    if (access == 16) maxpool_kernel<T, V><<<grid_for(wide), BLOCK, 0, stream>>>((T *)y, (const T *)x, m, size, wide);
    else maxpool_kernel<T, 1><<<grid_for(narrow), BLOCK, 0, stream>>>((T *)y, (const T *)x, m, size, narrow);
    return cudaGetLastError();
}

template <typename T>
static cudaError_t launch_maxpool_bwd(void *dx, const void *dy, const void *x, const map_sizes &m, int size, int access,
                                      cudaStream_t stream)
{
    constexpr int V = 16 / sizeof(T);
    if (misaligned(access, dx, dy, x)) return cudaErrorMisalignedAddress;
    const int64_t wide = m.B * m.H2 * m.W2 * (m.C / V), narrow = m.B * m.H2 * m.W2 * m.C;
    T *to = (T *)dx;
    const T *d = (const T *)dy, *from = (const T *)x;
    if (access == 16) maxpool_bwd_kernel<T, V><<<grid_for(wide), BLOCK, 0, stream>>>(to, d, from, m, size, wide);
    else maxpool_bwd_kernel<T, 1><<<grid_for(narrow), BLOCK, 0, stream>>>(to, d, from, m, size, narrow);
    return cudaGetLastError();
}

extern "C" cudaError_t cuda_maxpool(void *y, const void *x, enum store type, struct map_sizes m, int size, int access,
                                    cudaStream_t stream)
{
    switch (type) {
    case STORE_F32: return launch_maxpool<float>(y, x, m, size, access, stream);
    case STORE_BF16: return launch_maxpool<__nv_bfloat16>(y, x, m, size, access, stream);
    case STORE_F16: return launch_maxpool<__half>(y, x, m, size, access, stream);
    }
    return cudaErrorInvalidValue;
}

extern "C" cudaError_t cuda_maxpool_bwd(void *dx, const void *dy, const void *x, enum store type, struct map_sizes m,
                                        int size, int access, cudaStream_t stream)
{
    switch (type) {
    case STORE_F32: return launch_maxpool_bwd<float>(dx, dy, x, m, size, access, stream);
    case STORE_BF16: return launch_maxpool_bwd<__nv_bfloat16>(dx, dy, x, m, size, access, stream);
    case STORE_F16: return launch_maxpool_bwd<__half>(dx, dy, x, m, size, access, stream);
    }
    return cudaErrorInvalidValue;
}

/* --- images and points ------------------------------------------------------------------------ */

template <typename T>
__global__ void image_kernel(T *y, const uint8_t *x, const int32_t *valid, int64_t H, int64_t W, image_scale s,
                             int64_t n)
{
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < n; i += (int64_t)gridDim.x * BLOCK) {
        const int64_t pixel = quotient(i, 3), line = quotient(pixel, W), b = quotient(line, H);
        const int64_t c = i - pixel * 3, w = pixel - line * W, h = line - b * H;
        const float mean = c == 0   ? s.mean[0]
                           : c == 1 ? s.mean[1]
                                    : s.mean[2],
                    std = c == 0   ? s.std[0]
                          : c == 1 ? s.std[1]
                                   : s.std[2];
        y[i] = from_float<T>(h < valid[2 * b] && w < valid[2 * b + 1] ? ((float)x[i] - mean) / std : 0.0f);
    }
}

extern "C" cudaError_t cuda_image(void *y, const uint8_t *x, const int32_t *valid, enum store type, int64_t B,
                                  int64_t H, int64_t W, struct image_scale s, cudaStream_t stream)
{
    const int64_t n = B * H * W * 3;
    switch (type) {
    case STORE_F32: image_kernel<<<grid_for(n), BLOCK, 0, stream>>>((float *)y, x, valid, H, W, s, n); break;
    case STORE_BF16: image_kernel<<<grid_for(n), BLOCK, 0, stream>>>((__nv_bfloat16 *)y, x, valid, H, W, s, n); break;
    case STORE_F16: image_kernel<<<grid_for(n), BLOCK, 0, stream>>>((__half *)y, x, valid, H, W, s, n); break;
    }
    return cudaGetLastError();
}

template <typename T>
__global__ void pixels_kernel(T *y, const uint8_t *x, const float *table, int64_t plane, int64_t rows, int64_t n)
{
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < n; i += (int64_t)gridDim.x * BLOCK) {
        const int64_t number = quotient(i, plane), row = number - quotient(number, rows) * rows;
        y[i] = from_float<T>(__ldg(table + row * 256 + x[i]));
    }
}

extern "C" cudaError_t cuda_pixels(void *y, const uint8_t *x, const float *table, enum store type, int64_t plane,
                                   int64_t rows, int64_t n, cudaStream_t stream)
{
    switch (type) {
    case STORE_F32: pixels_kernel<<<grid_for(n), BLOCK, 0, stream>>>((float *)y, x, table, plane, rows, n); break;
    case STORE_BF16:
        pixels_kernel<<<grid_for(n), BLOCK, 0, stream>>>((__nv_bfloat16 *)y, x, table, plane, rows, n);
        break;
    case STORE_F16: pixels_kernel<<<grid_for(n), BLOCK, 0, stream>>>((__half *)y, x, table, plane, rows, n); break;
    }
    return cudaGetLastError();
}

/* Computes the Fourier features. Whole turns are subtracted in double: after many of them a float
 * angle has little precision left. */
__global__ void fourier_kernel(void *y, const void *coords, const void *gauss, any_types types, int64_t points,
                               int64_t F)
{
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < points * F; i += (int64_t)gridDim.x * BLOCK) {
        const int64_t point = quotient(i, F), f = i - point * F;
        const double u = 2 * any_load(coords, types.a, 2 * point) - 1,
                     v = 2 * any_load(coords, types.a, 2 * point + 1) - 1;
        const double turns = u * any_load(gauss, types.b, f) + v * any_load(gauss, types.b, F + f);
        const float angle = (float)(6.283185307179586476925286766559 * (turns - rint(turns)));
        any_store(y, types.y, point * 2 * F + f, sinf(angle));
        any_store(y, types.y, point * 2 * F + F + f, cosf(angle));
    }
}

extern "C" cudaError_t cuda_fourier(void *y, const void *coords, const void *gauss, struct any_types types,
                                    int64_t points, int64_t F, cudaStream_t stream)
{
    fourier_kernel<<<grid_for(points * F), BLOCK, 0, stream>>>(y, coords, gauss, types, points, F);
    return cudaGetLastError();
}
