/*
 * sums.cu: SUM and SUM_TO in two stages: blocks leave their sums in the workspace, and a second
 * kernel adds those in order. How many blocks there are is a function of the shapes (form.h).
 */
#include "cuda/elements.cuh"

constexpr int WARP = 32;

template <typename S> static __device__ S warp_sum(S x)
{
    for (int mask = WARP / 2; mask > 0; mask /= 2) x += __shfl_xor_sync(0xffffffffu, x, mask);
    return x;
}

/* Over a block of BLOCK threads; the result is thread 0's. */
template <typename S> static __device__ S block_total(S x)
{
    __shared__ S partial[BLOCK / WARP];
    x = warp_sum(x);
    if (threadIdx.x % WARP == 0) partial[threadIdx.x / WARP] = x;
    __syncthreads();
    S sum = 0;
    for (int w = 0; w < BLOCK / WARP; w++) sum += partial[w];
    return sum;
}

/* --- of everything ------------------------------------------------------------------- */

/* Dense: block b has the elements from b * each on; each is a multiple of V. */
template <typename T, int V> __global__ void sum_kernel(float *partial, const T *x, int64_t each, int64_t n)
{
    const int64_t from = blockIdx.x * each, to = from + each < n ? from + each : n, packs = (to - from) / V;
    const pack<T, V> *at = reinterpret_cast<const pack<T, V> *>(x + from);
    float sum = 0;
    for (int64_t k = threadIdx.x; k < packs; k += BLOCK) {
        const pack<T, V> a = at[k];
#pragma unroll
        for (int i = 0; i < V; i++) sum += to_float(a.at[i]);
    }
    for (int64_t i = from + packs * V + threadIdx.x; i < to; i += BLOCK) sum += to_float(x[i]);
    sum = block_total(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

template <typename T> __global__ void sum_form_kernel(float *partial, const T *x, form f, int64_t each, int64_t n)
{
    const int64_t from = blockIdx.x * each, to = from + each < n ? from + each : n;
    float sum = 0;
    for (int64_t i = from + threadIdx.x; i < to; i += BLOCK) {
        const int64_t row = quotient(i, f.size[0]);
        sum += to_float(x[place_of(f, row, i - row * f.size[0]).a]);
    }
    sum = block_total(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

/* One block. */
__global__ void sum_end_kernel(float *y, const float *partial, int64_t blocks)
{
    double sum = 0;
    for (int64_t b = threadIdx.x; b < blocks; b += BLOCK) sum += partial[b];
    sum = block_total(sum);
    if (threadIdx.x == 0) *y = (float)sum;
}

template <typename T> static cudaError_t launch_sum(float *y, float *partial, const void *x, const form &f, cudaStream_t stream)
{
    constexpr int V = 16 / sizeof(T);
    const int64_t n = form_elements(&f), each = sum_each(n), blocks = sum_blocks(n);
    const T *from = static_cast<const T *>(x);
    if (f.loops > 1 || (f.a[0] != 1 && n > 1)) sum_form_kernel<T><<<(unsigned)blocks, BLOCK, 0, stream>>>(partial, from, f, each, n);
    else if (is_aligned(x, 16)) sum_kernel<T, V><<<(unsigned)blocks, BLOCK, 0, stream>>>(partial, from, each, n);
    else sum_kernel<T, 1><<<(unsigned)blocks, BLOCK, 0, stream>>>(partial, from, each, n);
    sum_end_kernel<<<1, BLOCK, 0, stream>>>(y, partial, blocks);
    return cudaGetLastError();
}

extern "C" cudaError_t cuda_sum(float *y, float *partial, const void *x, enum store type, struct form form, cudaStream_t stream)
{
    switch (type) {
    case STORE_F32: return launch_sum<float>(y, partial, x, form, stream);
    case STORE_BF16: return launch_sum<__nv_bfloat16>(y, partial, x, form, stream);
    case STORE_F16: return launch_sum<__half>(y, partial, x, form, stream);
    }
    return cudaErrorInvalidValue;
}

/* --- of what was repeated -------------------------------------------------------------- */

static __device__ int64_t axes_at(const axes &x, int64_t i)
{
    int64_t at = 0;
    for (int k = 0; k < x.n; k++) {
        const int64_t next = k + 1 < x.n ? quotient(i, x.size[k]) : 0;
        at += (i - next * x.size[k]) * x.stride[k];
        i = next;
    }
    return at;
}

constexpr int LINES = BLOCK / WARP;

/* Rows of C results: a warp has WARP * V columns, the LINES warps of a block share the summed
 * positions. Blocks: column tiles, innermost, then kept positions, then blocks of positions. */
template <typename T, int V> __global__ void sum_rows_kernel(float *partial, const T *x, summing s, int64_t tiles, int64_t N)
{
    __shared__ float lines[LINES][WARP * V];
    const int64_t rest = quotient(blockIdx.x, tiles), tile = blockIdx.x - rest * tiles;
    const int64_t block = quotient(rest, s.kept.count), kept = rest - block * s.kept.count;
    const int lane = threadIdx.x % WARP, line = threadIdx.x / WARP;
    const int64_t c = (tile * WARP + lane) * V, end = (block + 1) * s.each < s.summed.count ? (block + 1) * s.each : s.summed.count;
    const T *from = x + axes_at(s.kept, kept) + c * s.stride;
    float sum[V];
#pragma unroll
    for (int i = 0; i < V; i++) sum[i] = 0;
    for (int64_t r = block * s.each + line; r < end && c < s.C; r += LINES) {
        const pack<T, V> a = *reinterpret_cast<const pack<T, V> *>(from + axes_at(s.summed, r));
#pragma unroll
        for (int i = 0; i < V; i++) sum[i] += to_float(a.at[i]);
    }
#pragma unroll
    for (int i = 0; i < V; i++) lines[line][lane * V + i] = sum[i];
    __syncthreads();
    for (int64_t i = threadIdx.x; i < WARP * V && tile * WARP * V + i < s.C; i += BLOCK) {
        float total = 0;
        for (int w = 0; w < LINES; w++) total += lines[w][i];
        partial[block * N + kept * s.C + tile * WARP * V + i] = total;
    }
}

/* Results alone: G threads, a warp or a block, for each kept position and block of positions. */
template <typename T, int G> __global__ void sum_alone_kernel(float *partial, const T *x, summing s, int64_t N)
{
    const int64_t task = (int64_t)blockIdx.x * (BLOCK / G) + threadIdx.x / G;
    const bool works = task < s.kept.count * s.blocks;
    const int64_t block = quotient(task, s.kept.count), kept = task - block * s.kept.count;
    const int64_t end = (block + 1) * s.each < s.summed.count ? (block + 1) * s.each : s.summed.count;
    float sum = 0;
    if (works) {
        const T *from = x + axes_at(s.kept, kept);
        for (int64_t r = block * s.each + threadIdx.x % G; r < end; r += G) sum += to_float(from[axes_at(s.summed, r)]);
    }
    sum = G == WARP ? warp_sum(sum) : block_total(sum);
    if (works && threadIdx.x % G == 0) partial[block * N + kept] = sum;
}

/* The blocks' sums in order, onto what y holds where it is the accumulator. */
__global__ void sum_to_end_kernel(void *y, enum any to, const float *partial, int64_t blocks, int64_t N, int accumulate)
{
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < N; i += (int64_t)gridDim.x * BLOCK) {
        double sum = accumulate ? any_load(y, to, i) : 0;
        for (int64_t b = 0; b < blocks; b++) sum += partial[b * N + i];
        any_store(y, to, i, sum);
    }
}

/* Whether V columns can be read at once wherever a row begins. */
static bool rows_fit(const void *x, const summing &s, int V)
{
    bool fit = s.C % V == 0 && s.stride == 1 && is_aligned(x, 16);
    for (int k = 0; k < s.kept.n; k++) fit &= s.kept.stride[k] % V == 0;
    for (int k = 0; k < s.summed.n; k++) fit &= s.summed.stride[k] % V == 0;
    return fit;
}

template <typename T> static cudaError_t launch_sum_to(float *partial, const void *x, const summing &s, int64_t N, cudaStream_t stream)
{
    constexpr int V = 16 / sizeof(T);
    const T *from = static_cast<const T *>(x);
    const int64_t tasks = s.kept.count * s.blocks;
    if (s.rows) {
        const bool wide = rows_fit(x, s, V);
        const int64_t columns = WARP * (wide ? V : 1), tiles = (s.C + columns - 1) / columns;
        if (tiles * tasks > INT32_MAX) return cudaErrorInvalidValue;
        const unsigned grid = (unsigned)(tiles * tasks);
        if (wide) sum_rows_kernel<T, V><<<grid, BLOCK, 0, stream>>>(partial, from, s, tiles, N);
        else sum_rows_kernel<T, 1><<<grid, BLOCK, 0, stream>>>(partial, from, s, tiles, N);
    } else {
        if (tasks > INT32_MAX) return cudaErrorInvalidValue;
        constexpr int LANES = BLOCK / WARP;
        if (s.each <= 1024) sum_alone_kernel<T, WARP><<<(unsigned)((tasks + LANES - 1) / LANES), BLOCK, 0, stream>>>(partial, from, s, N);
        else sum_alone_kernel<T, BLOCK><<<(unsigned)tasks, BLOCK, 0, stream>>>(partial, from, s, N);
    }
    return cudaGetLastError();
}

extern "C" cudaError_t cuda_sum_to(void *y, float *partial, const void *x, enum any to, enum store type, struct summing s, int64_t N,
                                   int accumulate, cudaStream_t stream)
{
    cudaError_t rc = cudaErrorInvalidValue;
    switch (type) {
    case STORE_F32: rc = launch_sum_to<float>(partial, x, s, N, stream); break;
    case STORE_BF16: rc = launch_sum_to<__nv_bfloat16>(partial, x, s, N, stream); break;
    case STORE_F16: rc = launch_sum_to<__half>(partial, x, s, N, stream); break;
    }
    if (rc != cudaSuccess) return rc;
    sum_to_end_kernel<<<grid_for(N), BLOCK, 0, stream>>>(y, to, partial, s.blocks, N, accumulate);
    return cudaGetLastError();
}
