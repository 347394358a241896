/*
 * depthwise.cu: depthwise convolutions: each channel has its own filter.
 *
 * Channels are adjacent in memory and in threads. A thread computes V channels of one pixel, with V
 * such that an access is 16 bytes wide where addresses allow; its neighbours read the same pixels,
 * from the cache. The weights, stored by channel, are first rearranged by tap as f32, so that they
 * are read like the map.
 *
 * The gradient of the weights is summed over fixed runs of pixels in fixed order; then the runs are
 * added in order, so the bits are always the same. For 3 x 3 taps a thread sums all nine taps of
 * four channels, so that dy is read once, and x once from memory and then from the cache; for other
 * sizes each tap is a separate pass.
 */
#include "cuda/device/device.cuh"
#include "cuda/maps/launch_conv.h"

typedef uint32_t index32;

struct shape {
    int H, W, H2, W2, kh, kw, stride, pad;
    index32 C;
};

static shape shape_of(const struct depthwise *n)
{
    return {(int)n->H,  (int)n->W,      (int)n->H2,  (int)n->W2,   (int)n->kh,
            (int)n->kw, (int)n->stride, (int)n->pad, (index32)n->C};
}

static bool fits(int64_t n) { return n >= 0 && n <= INT32_MAX; }

/* --- results and the gradient of x ------------------------------------------------------------ */

/* to [taps,C] from w [C,taps]. */
template <typename T> __global__ void by_tap_kernel(float *to, const T *w, index32 C, index32 taps)
{
    for (index32 k = blockIdx.x * BLOCK + threadIdx.x; k < C * taps; k += gridDim.x * BLOCK)
        to[k] = to_float(w[k % C * taps + k / C]);
}

/* The pixel of the input map that result (i,j) of an H x W map reads through tap (u,v); -1: none.
 * In the forward the input map is x; in the backward it is dy: i' stride + u - pad = i. */
template <bool BACK> __device__ int64_t source_pixel(const shape &n, int b, int i, int j, int u, int v)
{
    if (!BACK) {
        const int y = i * n.stride + u - n.pad, x = j * n.stride + v - n.pad;
        return y < 0 || y >= n.H || x < 0 || x >= n.W ? -1 : ((int64_t)b * n.H + y) * n.W + x;
    }
    const int y = i + n.pad - u, x = j + n.pad - v;
    if (y < 0 || x < 0 || y % n.stride || x % n.stride || y / n.stride >= n.H2 || x / n.stride >= n.W2) return -1;
    return ((int64_t)b * n.H2 + y / n.stride) * n.W2 + x / n.stride;
}

template <typename T, int V, bool BACK>
__global__ void depthwise_kernel(T *out, const T *in, const float *w, const T *bias, shape n, index32 count)
{
    const index32 packs = n.C / V;
    const int width = BACK ? n.W : n.W2, height = BACK ? n.H : n.H2;
    for (index32 k = blockIdx.x * BLOCK + threadIdx.x; k < count; k += gridDim.x * BLOCK) {
        const index32 c = k % packs * V, p = k / packs;
        const int j = p % width, i = p / width % height, b = p / width / height;
        float sum[V];
#pragma unroll
        for (int q = 0; q < V; q++) sum[q] = bias ? to_float(bias[c + q]) : 0.0f;
        for (int u = 0; u < n.kh; u++)
            for (int v = 0; v < n.kw; v++) {
                const int64_t pixel = source_pixel<BACK>(n, b, i, j, u, v);
                if (pixel < 0) continue;
                const pack<T, V> x = *reinterpret_cast<const pack<T, V> *>(in + pixel * n.C + c);
                const pack<float, V> tap =
                    *reinterpret_cast<const pack<float, V> *>(w + (int64_t)(u * n.kw + v) * n.C + c);
#pragma unroll
                for (int q = 0; q < V; q++) sum[q] = fmaf(to_float(x.at[q]), tap.at[q], sum[q]);
            }
        pack<T, V> y;
#pragma unroll
        for (int q = 0; q < V; q++) y.at[q] = from_float<T>(sum[q]);
        *reinterpret_cast<pack<T, V> *>(out + (int64_t)p * n.C + c) = y;
    }
}

template <typename T, bool BACK>
static cudaError_t launch(void *out, const void *in, const void *w, const void *bias, float *scratch,
                          const struct depthwise *n, int access, cudaStream_t stream)
{
    constexpr int V = 16 / sizeof(T);
    const int64_t count = n->B * n->C * (BACK ? n->H * n->W : n->H2 * n->W2), taps = n->kh * n->kw;
    if (!fits(count) || !fits(n->C * taps)) return cudaErrorInvalidValue;
    if (misaligned(access, out, in)) return cudaErrorMisalignedAddress;
    T *to = static_cast<T *>(out);
    const T *from = static_cast<const T *>(in), *add = static_cast<const T *>(bias);
    by_tap_kernel<T>
        <<<grid_for(n->C * taps), BLOCK, 0, stream>>>(scratch, static_cast<const T *>(w), (index32)n->C, (index32)taps);
    if (access == 16)
        depthwise_kernel<T, V, BACK><<<grid_for(count / V), BLOCK, 0, stream>>>(to, from, scratch, add, shape_of(n),
                                                                                (index32)(count / V));
    else
        depthwise_kernel<T, 1, BACK>
            <<<grid_for(count), BLOCK, 0, stream>>>(to, from, scratch, add, shape_of(n), (index32)count);
    return cudaGetLastError();
}

template <bool BACK>
static cudaError_t launch_of(void *out, const void *in, const void *w, const void *bias, float *scratch,
                             const struct depthwise *n, enum store type, int access, cudaStream_t stream)
{
    switch (type) {
    case STORE_F32: return launch<float, BACK>(out, in, w, bias, scratch, n, access, stream);
    case STORE_BF16: return launch<__nv_bfloat16, BACK>(out, in, w, bias, scratch, n, access, stream);
    case STORE_F16: return launch<__half, BACK>(out, in, w, bias, scratch, n, access, stream);
    }
    return cudaErrorInvalidValue;
}

extern "C" cudaError_t cuda_depthwise(void *y, const void *x, const void *w, const void *bias, float *scratch,
                                      const struct depthwise *n, enum store type, int access, cudaStream_t stream)
{
    return launch_of<false>(y, x, w, bias, scratch, n, type, access, stream);
}

extern "C" cudaError_t cuda_depthwise_dx(void *x, const void *y, const void *w, const void *bias, float *scratch,
                                         const struct depthwise *n, enum store type, int access, cudaStream_t stream)
{
    return launch_of<true>(x, y, w, bias, scratch, n, type, access, stream);
}

/* --- the gradient of the weights -------------------------------------------------------------- */

constexpr int LANES = 32, LINES = 8; /* channels, and pixels, of a block at a time */
static_assert(LANES * LINES == BLOCK, "a block is LANES x LINES threads");

/* Block (c, run, t): tap t of LANES channels, over a run of pixels. partial [runs,taps,C]. */
template <typename T>
__global__ void dw_kernel(float *partial, const T *dy, const T *x, shape n, index32 results, index32 pixels)
{
    __shared__ float sums[LINES][LANES];
    const index32 c = blockIdx.x * LANES + threadIdx.x, from = blockIdx.y * pixels;
    const index32 end = from + pixels < results ? from + pixels : results;
    const int t = blockIdx.z, u = t / n.kw, v = t % n.kw;
    float sum = 0;
    if (c < n.C)
        for (index32 p = from + threadIdx.y; p < end; p += LINES) {
            const int64_t pixel = source_pixel<false>(n, p / n.W2 / n.H2, p / n.W2 % n.H2, p % n.W2, u, v);
            if (pixel >= 0) sum = fmaf(to_float(dy[(int64_t)p * n.C + c]), to_float(x[pixel * n.C + c]), sum);
        }
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y || c >= n.C) return;
    for (int line = 1; line < LINES; line++) sum += sums[line][threadIdx.x];
    partial[((int64_t)blockIdx.y * gridDim.z + t) * n.C + c] = sum;
}

/* A warp has a part of the block's run of pixels and 32 times GROUP channels: whether a tap is
 * inside the map is the same for all its lanes. Away from the border its nine loads are in flight
 * together. partial [runs,9,C]. */
constexpr int GROUP = 4, SIDE = 3;

template <typename T> using channels = pack<T, GROUP>;

template <typename T> __device__ static channels<T> read(const T *x)
{
    return *reinterpret_cast<const channels<T> *>(x);
}

template <typename T> __device__ static void add_tap(float (&sum)[GROUP], const channels<T> &dy, const channels<T> &x)
{
#pragma unroll
    for (int q = 0; q < GROUP; q++) sum[q] = fmaf(to_float(dy.at[q]), to_float(x.at[q]), sum[q]);
}

/* One pixel of dy: its nine products. x0 is the offset of its first tap, also if that is outside
 * the map. */
template <typename T>
__device__ static void add_pixel(float (&sum)[SIDE * SIDE][GROUP], const T *dy, const T *x, int64_t x0, int y,
                                 int column, const shape &n)
{
    const channels<T> d = read(dy);
    const int64_t line = (int64_t)n.W * n.C;
    if (y >= 0 && y + SIDE <= n.H && column >= 0 && column + SIDE <= n.W) {
        channels<T> c[SIDE * SIDE];
#pragma unroll
        for (int t = 0; t < SIDE * SIDE; t++) c[t] = read(x + x0 + t / SIDE * line + (int64_t)(t % SIDE) * n.C);
#pragma unroll
        for (int t = 0; t < SIDE * SIDE; t++) add_tap(sum[t], d, c[t]);
        return;
    }
#pragma unroll
    for (int t = 0; t < SIDE * SIDE; t++) {
        const int u = y + t / SIDE, v = column + t % SIDE;
        if (u >= 0 && u < n.H && v >= 0 && v < n.W)
            add_tap(sum[t], d, read(x + x0 + t / SIDE * line + (int64_t)(t % SIDE) * n.C));
    }
}

template <typename T>
__global__ void dw_nine_kernel(float *partial, const T *dy, const T *x, shape n, index32 results, index32 pixels,
                               index32 groups)
{
    __shared__ float sums[LINES][LANES * GROUP];
    const index32 lane = threadIdx.x % LANES, line = threadIdx.x / LANES, run = blockIdx.x / groups;
    const index32 first = blockIdx.x % groups * LANES * GROUP, c = first + lane * GROUP,
                  each = (pixels + LINES - 1) / LINES;
    const index32 stop = min((run + 1) * pixels, results), from = min(run * pixels + line * each, stop),
                  end = min(from + each, stop);
    float sum[SIDE * SIDE][GROUP] = {};
    int j = from % n.W2, i = from / n.W2 % n.H2, b = from / n.W2 / n.H2;
    for (index32 p = from; p < end && c < n.C; p++) {
        const int y = i * n.stride - n.pad, column = j * n.stride - n.pad;
        add_pixel(sum, dy + (int64_t)p * n.C + c, x, (((int64_t)b * n.H + y) * n.W + column) * n.C + c, y, column, n);
        if (++j < n.W2) continue;
        j = 0;
        if (++i == n.H2) i = 0, b++;
    }
#pragma unroll
    for (int t = 0; t < SIDE * SIDE; t++) {
        __syncthreads();
#pragma unroll
        for (int q = 0; q < GROUP; q++) sums[line][lane * GROUP + q] = sum[t][q];
        __syncthreads();
        const index32 k = threadIdx.x;
        if (k >= LANES * GROUP || first + k >= n.C) continue;
        float all = sums[0][k];
        for (int m = 1; m < LINES; m++) all += sums[m][k];
        partial[((int64_t)run * SIDE * SIDE + t) * n.C + first + k] = all;
    }
}

/* Sums dw [C,taps] from partial [runs,taps,C]: LANES sums per block, each split over LINES
 * threads. */
__global__ void dw_sum_kernel(float *dw, const float *partial, index32 C, index32 taps, int runs, bool add)
{
    __shared__ float sums[LINES][LANES];
    const index32 lane = threadIdx.x % LANES, line = threadIdx.x / LANES, k = blockIdx.x * LANES + lane, n = C * taps;
    float sum = 0;
    for (int r = (int)line; r < runs && k < n; r += LINES) sum += partial[(int64_t)r * n + k];
    sums[line][lane] = sum;
    __syncthreads();
    if (line || k >= n) return;
    for (int m = 1; m < LINES; m++) sum += sums[m][lane];
    float *to = dw + (int64_t)(k % C) * taps + k / C;
    *to = add ? *to + sum : sum;
}

template <typename T>
static cudaError_t launch_dw(float *dw, const void *dy, const void *x, float *scratch, const struct depthwise *n,
                             int64_t pixels, bool add, bool nine, cudaStream_t stream)
{
    const int64_t results = n->B * n->H2 * n->W2, runs = (results + pixels - 1) / pixels, taps = n->kh * n->kw;
    if (!fits(results + pixels) || runs > 65535 || taps > 65535 || !fits(n->C * taps)) return cudaErrorInvalidValue;
    const T *from = static_cast<const T *>(dy), *map = static_cast<const T *>(x);
    if (nine) {
        const int64_t groups = (n->C + LANES * GROUP - 1) / (LANES * GROUP);
        const unsigned blocks = (unsigned)(groups * runs);
        if (!fits(groups * runs)) return cudaErrorInvalidValue;
        dw_nine_kernel<T><<<blocks, BLOCK, 0, stream>>>(scratch, from, map, shape_of(n), (index32)results,
                                                        (index32)pixels, (index32)groups);
    } else {
        const dim3 grid((unsigned)((n->C + LANES - 1) / LANES), (unsigned)runs, (unsigned)taps);
        dw_kernel<T><<<grid, dim3(LANES, LINES), 0, stream>>>(scratch, from, map, shape_of(n), (index32)results,
                                                              (index32)pixels);
    }
    const unsigned ends = (unsigned)((n->C * taps + LANES - 1) / LANES);
    dw_sum_kernel<<<ends, BLOCK, 0, stream>>>(dw, scratch, (index32)n->C, (index32)taps, (int)runs, add);
    return cudaGetLastError();
}

extern "C" cudaError_t cuda_depthwise_dw(float *dw, const void *dy, const void *x, float *scratch,
                                         const struct depthwise *n, int64_t pixels, bool add, bool nine,
                                         enum store type, cudaStream_t stream)
{
    switch (type) {
    case STORE_F32: return launch_dw<float>(dw, dy, x, scratch, n, pixels, add, nine, stream);
    case STORE_BF16: return launch_dw<__nv_bfloat16>(dw, dy, x, scratch, n, pixels, add, nine, stream);
    case STORE_F16: return launch_dw<__half>(dw, dy, x, scratch, n, pixels, add, nine, stream);
    }
    return cudaErrorInvalidValue;
}
