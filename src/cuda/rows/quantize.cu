/*
 * quantize.cu: QUANTIZE_ROWS, QUANTIZE_COLUMNS and DEQUANTIZE_ROWS: numbers in e4m3 with scales,
 * with the bits of the CPU (base/e4m3.h). All are bound by memory.
 *
 * Rows. A group of threads keeps a row in registers, from the search for its largest magnitude to
 * the store of its codes: x is read once.
 *
 * Columns. A block of threads has a tile of 128 rows, eight 16-byte packs wide. A thread reads one
 * pack of each of four consecutive rows, so it has four codes of a column that follow each other in
 * the transpose. The tile is turned in shared memory by words of four codes, and 16 bytes of a
 * column are stored at a time. Column c of a pack lies in shared memory beside column c of the
 * other packs, so that the threads of a warp write to different banks:
 *
 *     x [M,K]     row 4g+i  | pack 0 | pack 1 | ... | pack 7 |     thread (g, pack), i = 0 to 3
 *     shared      slot 8c+p [ word of rows 0..3 | of 4..7 | ... ]  36 words, so that banks differ
 *     q [K,M]     column    |<----------- 128 bytes ------------>|
 *
 * If 128 rows have scales of their own, one launch does it all. Otherwise, as for the columns of a
 * weight, a first launch finds the largest magnitudes. A maximum has no order, so atomics keep the
 * bits.
 */
#include "cuda/device/kernel.cuh"

#include "base/e4m3.h"

constexpr int TILE_ROWS = 128, PACKS_WIDE = 8, FOUR = 4, STRIDE = TILE_ROWS / FOUR + 4;
static_assert(BLOCK == PACKS_WIDE * TILE_ROWS / FOUR, "a thread for each four rows of a pack");

/* A number in e4m3 as an element type. */
struct e4m3 {
    uint8_t code;
};

/* --- conversions ------------------------------------------------------------------------------ */

/* Returns the codes of a and b, that of a in the low byte. */
static __device__ inline uint32_t codes_of(float a, float b)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    uint16_t both;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(b), "f"(a));
    return both;
#else
    return (uint32_t)e4m3_from_f32(a) | (uint32_t)e4m3_from_f32(b) << 8;
#endif
}

/* Returns four codes, that of a in the lowest byte. */
static __device__ inline uint32_t codes_of(float a, float b, float c, float d)
{
    return codes_of(a, b) | codes_of(c, d) << 16;
}

/* Returns the numbers of two codes, that of the low byte first. */
static __device__ inline float2 numbers_of(uint32_t codes)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    __half2_raw both;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(*reinterpret_cast<uint32_t *>(&both)) : "h"((uint16_t)codes));
    return __half22float2(both);
#else
    return make_float2(e4m3_to_f32((uint8_t)codes), e4m3_to_f32((uint8_t)(codes >> 8)));
#endif
}

static __device__ inline uint32_t magnitude(float x) { return __float_as_uint(x) & 0x7fffffffu; }

/* A pack of 16 bytes of x as floats; of e4m3 times the scale of its row. */
template <typename T> constexpr int PACK = 16 / sizeof(T);
template <typename T> static __device__ inline void unpack(float (&to)[PACK<T>], const uint4 &from, float)
{
    const wide_pack<T, PACK<T>> p = *reinterpret_cast<const wide_pack<T, PACK<T>> *>(&from);
#pragma unroll
    for (int i = 0; i < PACK<T>; i++) to[i] = to_float(p.at[i]);
}
template <> __device__ inline void unpack<e4m3>(float (&to)[16], const uint4 &from, float scale)
{
    const uint32_t word[4] = {from.x, from.y, from.z, from.w};
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float2 two = numbers_of(word[i / 2] >> 16 * (i % 2));
        to[2 * i] = two.x * scale;
        to[2 * i + 1] = two.y * scale;
    }
}

template <typename T> static __device__ inline float value_of(const T *x, int64_t i, const float *, int64_t)
{
    return to_float(x[i]);
}
template <> __device__ inline float value_of<e4m3>(const e4m3 *x, int64_t i, const float *xs, int64_t row)
{
    return numbers_of(x[i].code).x * xs[row];
}

/* --- rows ------------------------------------------------------------------------------------- */

/* Returns the largest magnitude of a pack. */
template <typename T> static __device__ inline uint32_t largest(const uint4 &from)
{
    float x[PACK<T>];
    uint32_t most = 0;
    unpack<T>(x, from, 1);
#pragma unroll
    for (int i = 0; i < PACK<T>; i++) most = max(most, magnitude(x[i]));
    return most;
}
/* The bits of a bf16 are the upper ones of its f32: two are compared at once. */
template <> __device__ inline uint32_t largest<__nv_bfloat16>(const uint4 &from)
{
    const uint32_t both = __vmaxu2(__vmaxu2(from.x & 0x7fff7fffu, from.y & 0x7fff7fffu),
                                   __vmaxu2(from.z & 0x7fff7fffu, from.w & 0x7fff7fffu));
    return max(both & 0xffff0000u, both << 16);
}

/* Returns the maximum over a group of `size` threads; `partial` has a word for each warp. */
static __device__ inline uint32_t group_most(uint32_t x, int size, uint32_t *partial)
{
    for (int mask = (size < WARP ? size : WARP) / 2; mask > 0; mask /= 2)
        x = max(x, __shfl_xor_sync(ALL_LANES, x, mask));
    if (size <= WARP) return x;
    __syncthreads();
    if (threadIdx.x % WARP == 0) partial[threadIdx.x / WARP] = x;
    __syncthreads();
    const int warps = size / WARP, first = (int)threadIdx.x / size * warps;
    for (int w = 0; w < warps; w++) x = max(x, partial[first + w]);
    return x;
}

template <typename T, int PACKS>
static __global__ void __launch_bounds__(BLOCK)
    quantize_rows_kernel(uint8_t *q, float *scales, const T *x, int64_t rows, int64_t K, int size)
{
    constexpr int V = PACK<T>;
    __shared__ uint32_t partial[WARP];
    const int lane = threadIdx.x & (size - 1), each = BLOCK / size, packs = (int)(K / V);
    for (int64_t base = (int64_t)blockIdx.x * each; base < rows; base += (int64_t)gridDim.x * each) {
        const int64_t row = base + (int)threadIdx.x / size;
        const bool live = row < rows;
        uint4 held[PACKS];
        uint32_t most = 0;
#pragma unroll
        for (int j = 0; j < PACKS; j++)
            if (live && lane + j * size < packs)
                held[j] = *reinterpret_cast<const uint4 *>(x + row * K + (lane + j * size) * V);
#pragma unroll
        for (int j = 0; j < PACKS; j++)
            if (live && lane + j * size < packs) most = max(most, largest<T>(held[j]));
        const e4m3_scale s = e4m3_scale_of(group_most(most, size, partial));
        if (live && lane == 0) scales[row] = s.scale;
#pragma unroll
        for (int j = 0; j < PACKS; j++) {
            if (!live || lane + j * size >= packs) continue;
            float a[V];
            unpack<T>(a, held[j], 1);
            wide_pack<uint32_t, V / 4> codes;
#pragma unroll
            for (int i = 0; i < V; i += 4)
                codes.at[i / 4] = codes_of(a[i] * s.factor, a[i + 1] * s.factor, a[i + 2] * s.factor,
                                           a[i + 3] * s.factor);
            *reinterpret_cast<wide_pack<uint32_t, V / 4> *>(q + row * K + (lane + j * size) * V) = codes;
        }
    }
}

/* Rows of any length: a block of threads reads each twice. */
template <typename T>
static __global__ void quantize_any_row_kernel(uint8_t *q, float *scales, const T *x, int64_t rows, int64_t K)
{
    __shared__ uint32_t partial[WARP];
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        uint32_t most = 0;
        for (int64_t k = threadIdx.x; k < K; k += BLOCK) most = max(most, magnitude(to_float(x[row * K + k])));
        const e4m3_scale s = e4m3_scale_of(group_most(most, BLOCK, partial));
        if (threadIdx.x == 0) scales[row] = s.scale;
        for (int64_t k = threadIdx.x; k < K; k += BLOCK)
            q[row * K + k] = (uint8_t)codes_of(to_float(x[row * K + k]) * s.factor, 0);
    }
}

/* Calls the kernel for the packs of a thread: up to four where that is enough. */
template <typename T> static cudaError_t run_rows(const struct launch *l, int64_t rows, int64_t K)
{
    const int64_t packs = K / PACK<T>;
    int size = 1;
    while (size < BLOCK && (int64_t)size * 4 < packs) size *= 2;
    const int64_t held = (packs + size - 1) / size;
    const auto kernel = held <= 1   ? quantize_rows_kernel<T, 1>
                        : held <= 2 ? quantize_rows_kernel<T, 2>
                        : held <= 4 ? quantize_rows_kernel<T, 4>
                                    : quantize_rows_kernel<T, 8>;
    if (held > 8) return cudaErrorInvalidValue;
    kernel<<<grid_of_rows(rows, BLOCK / size, GRID_MAX), BLOCK, 0, stream_of(l)>>>(
        out_as<uint8_t>(l, 0), out_as<float>(l, 1), in_as<T>(l, 0), rows, K, size);
    return cudaGetLastError();
}

static int launch_quantize_rows(const struct launch *l, struct error *e)
{
    const int64_t rows = operand_rows(&l->in[0]), K = operand_last(&l->in[0]);
    if (misaligned(16, l->in[0].data, l->out[0].data)) TRY_CUDA(cudaErrorMisalignedAddress);
    TRY_CUDA(try_by_type(store_of(l->in[0].dtype), [&](auto zero) { return run_rows<decltype(zero)>(l, rows, K); }));
    return PL_OK;
}

static int launch_quantize_any_row(const struct launch *l, struct error *e)
{
    const int64_t rows = operand_rows(&l->in[0]), K = operand_last(&l->in[0]);
    TRY_CUDA(by_type(store_of(l->in[0].dtype), [&](auto zero) {
        using T = decltype(zero);
        quantize_any_row_kernel<T><<<grid_of_rows(rows, 1, GRID_MAX), BLOCK, 0, stream_of(l)>>>(
            out_as<uint8_t>(l, 0), out_as<float>(l, 1), in_as<T>(l, 0), rows, K);
    }));
    return PL_OK;
}

/* --- columns ---------------------------------------------------------------------------------- */

/* What a launch does: both, for blocks of TILE_ROWS rows; finds the largest magnitudes of blocks;
 * or quantizes with them. */
enum columns { COLUMNS_BOTH, COLUMNS_FIND, COLUMNS_QUANTIZE };

struct columns_of {
    uint8_t *q;
    float *scales;
    uint32_t *most; /* [blocks,K] */
    const float *xs;
    int64_t M, K, rows; /* rows: of a block */
};

/* Returns the column of a slot of shared memory. */
template <int N> static __device__ inline int column_of(int slot) { return slot % PACKS_WIDE * N + slot / PACKS_WIDE; }

/* Finds the largest magnitudes of the columns by slot, in `most`, which is shared and zero. */
template <int N> static __device__ inline void find_most(const float (&x)[FOUR][N], uint32_t *most)
{
#pragma unroll
    for (int c = 0; c < N; c++) {
        uint32_t m = 0;
#pragma unroll
        for (int i = 0; i < FOUR; i++) m = max(m, magnitude(x[i][c]));
        for (int mask = PACKS_WIDE; mask < WARP; mask *= 2) m = max(m, __shfl_xor_sync(ALL_LANES, m, mask));
        if (threadIdx.x % WARP < PACKS_WIDE) atomicMax(&most[c * PACKS_WIDE + (int)threadIdx.x % PACKS_WIDE], m);
    }
}

/* Stores the codes of the tile's columns. */
template <int N>
static __device__ inline void store_columns(const uint32_t *word, const columns_of &p, int64_t m0, int64_t k0)
{
    for (int t = threadIdx.x; t < PACKS_WIDE * N * TILE_ROWS / 16; t += BLOCK) {
        const int slot = t / (TILE_ROWS / 16), at = t % (TILE_ROWS / 16);
        const int64_t k = k0 + column_of<N>(slot), m = m0 + 16 * at;
        if (k < p.K && m < p.M)
            *reinterpret_cast<uint4 *>(p.q + k * p.M + m) =
                *reinterpret_cast<const uint4 *>(word + slot * STRIDE + 4 * at);
    }
}

template <typename T, enum columns WHAT>
static __global__ void __launch_bounds__(BLOCK, 2) quantize_columns_kernel(const T *x, columns_of p)
{
    constexpr int N = PACK<T>, WIDTH = PACKS_WIDE * N;
    __shared__ uint32_t most[WIDTH];
    __shared__ alignas(16) uint32_t word[WHAT == COLUMNS_FIND ? 1 : WIDTH * STRIDE];
    __shared__ float factor[WIDTH];
    const int pack = threadIdx.x % PACKS_WIDE, four = threadIdx.x / PACKS_WIDE, tid = threadIdx.x;
    const int64_t m0 = (int64_t)blockIdx.y * TILE_ROWS, k0 = (int64_t)blockIdx.x * WIDTH, block = m0 / p.rows;
    float value[FOUR][N];
#pragma unroll
    for (int i = 0; i < FOUR; i++) {
        const int64_t m = m0 + FOUR * four + i, k = k0 + pack * N;
        const bool live = m < p.M && k < p.K;
        const uint4 held = live ? *reinterpret_cast<const uint4 *>(x + m * p.K + k) : make_uint4(0, 0, 0, 0);
        unpack<T>(value[i], held, live && p.xs ? p.xs[m] : 1.0f);
    }
    const int64_t column = k0 + column_of<N>(tid);
    const bool has_column = tid < WIDTH && column < p.K;
    if (tid < WIDTH) most[tid] = WHAT == COLUMNS_QUANTIZE && has_column ? p.most[block * p.K + column] : 0;
    __syncthreads();
    if (WHAT != COLUMNS_QUANTIZE) {
        find_most<N>(value, most);
        __syncthreads();
    }
    if (has_column) {
        if (WHAT == COLUMNS_FIND) {
            atomicMax(&p.most[block * p.K + column], most[tid]);
        } else {
            const e4m3_scale s = e4m3_scale_of(most[tid]);
            factor[tid] = s.factor;
            if (m0 % p.rows == 0) p.scales[block * p.K + column] = s.scale;
        }
    }
    if (WHAT == COLUMNS_FIND) return;
    __syncthreads();
#pragma unroll
    for (int c = 0; c < N; c++) {
        const int slot = c * PACKS_WIDE + pack;
        const float f = factor[slot];
        word[slot * STRIDE + four] =
            codes_of(value[0][c] * f, value[1][c] * f, value[2][c] * f, value[3][c] * f);
    }
    __syncthreads();
    store_columns<N>(word, p, m0, k0);
}

template <typename T> static cudaError_t run_columns(const struct launch *l, const columns_of &p, enum columns what)
{
    const int64_t width = PACKS_WIDE * PACK<T>;
    const dim3 grid((unsigned)((p.K + width - 1) / width), (unsigned)((p.M + TILE_ROWS - 1) / TILE_ROWS));
    const auto kernel = what == COLUMNS_BOTH   ? quantize_columns_kernel<T, COLUMNS_BOTH>
                        : what == COLUMNS_FIND ? quantize_columns_kernel<T, COLUMNS_FIND>
                                               : quantize_columns_kernel<T, COLUMNS_QUANTIZE>;
    kernel<<<grid, BLOCK, 0, stream_of(l)>>>(in_as<T>(l, 0), p);
    return cudaGetLastError();
}

/* Columns of any shape: a thread for each column of a block. */
template <typename T> static __global__ void quantize_any_column_kernel(const T *x, columns_of p)
{
    const int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x, block = i / p.K, k = i % p.K;
    if (i >= p.M / p.rows * p.K) return;
    uint32_t most = 0;
    for (int64_t m = block * p.rows; m < (block + 1) * p.rows; m++)
        most = max(most, magnitude(value_of<T>(x, m * p.K + k, p.xs, m)));
    const e4m3_scale s = e4m3_scale_of(most);
    p.scales[i] = s.scale;
    for (int64_t m = block * p.rows; m < (block + 1) * p.rows; m++)
        p.q[k * p.M + m] = (uint8_t)codes_of(value_of<T>(x, m * p.K + k, p.xs, m) * s.factor, 0);
}

static columns_of columns_of_launch(const struct launch *l)
{
    return {out_as<uint8_t>(l, 0), out_as<float>(l, 1), (uint32_t *)l->work, in_as<float>(l, 1),
            operand_rows(&l->in[0]), operand_last(&l->in[0]), l->attr->quantize_columns.rows};
}

/* Calls f with a value of x's element type. */
template <typename F> static cudaError_t by_element(const struct launch *l, F f)
{
    if (l->in[0].dtype == DT_E4M3) return f(e4m3());
    return try_by_type(store_of(l->in[0].dtype), f);
}

static int launch_quantize_columns(const struct launch *l, struct error *e)
{
    const columns_of p = columns_of_launch(l);
    if (misaligned(16, l->in[0].data, l->out[0].data)) TRY_CUDA(cudaErrorMisalignedAddress);
    if (p.rows == TILE_ROWS) {
        TRY_CUDA(by_element(l, [&](auto zero) { return run_columns<decltype(zero)>(l, p, COLUMNS_BOTH); }));
        return PL_OK;
    }
    TRY_CUDA(cudaMemsetAsync(p.most, 0, (size_t)(p.M / p.rows * p.K) * sizeof *p.most, stream_of(l)));
    TRY_CUDA(by_element(l, [&](auto zero) { return run_columns<decltype(zero)>(l, p, COLUMNS_FIND); }));
    TRY_CUDA(by_element(l, [&](auto zero) { return run_columns<decltype(zero)>(l, p, COLUMNS_QUANTIZE); }));
    return PL_OK;
}

static int launch_quantize_any_column(const struct launch *l, struct error *e)
{
    const columns_of p = columns_of_launch(l);
    TRY_CUDA(by_element(l, [&](auto zero) {
        using T = decltype(zero);
        quantize_any_column_kernel<T>
            <<<grid_of_rows(p.M / p.rows * p.K, BLOCK, INT32_MAX), BLOCK, 0, stream_of(l)>>>(in_as<T>(l, 0), p);
        return cudaGetLastError();
    }));
    return PL_OK;
}

/* --- back ------------------------------------------------------------------------------------- */

/* A thread has 16 codes of a row. */
template <typename T>
static __global__ void dequantize_rows_kernel(T *x, const uint8_t *q, const float *scales, int64_t packs, int64_t wide)
{
    const int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= packs) return;
    float a[16];
    unpack<e4m3>(a, reinterpret_cast<const uint4 *>(q)[i], scales[i / wide]);
    store<16>(x + 16 * i, a);
}

template <typename T>
static __global__ void dequantize_any_row_kernel(T *x, const uint8_t *q, const float *scales, int64_t n, int64_t K)
{
    const int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i < n) x[i] = from_float<T>(numbers_of(q[i]).x * scales[i / K]);
}

static int launch_dequantize_rows(const struct launch *l, struct error *e)
{
    const int64_t packs = operand_elements(&l->in[0]) / 16, wide = operand_last(&l->in[0]) / 16;
    if (misaligned(16, l->in[0].data, l->out[0].data)) TRY_CUDA(cudaErrorMisalignedAddress);
    TRY_CUDA(by_type(store_of(l->out[0].dtype), [&](auto zero) {
        using T = decltype(zero);
        dequantize_rows_kernel<T><<<grid_of_rows(packs, BLOCK, INT32_MAX), BLOCK, 0, stream_of(l)>>>(
            out_as<T>(l, 0), in_as<uint8_t>(l, 0), in_as<float>(l, 1), packs, wide);
    }));
    return PL_OK;
}

static int launch_dequantize_any_row(const struct launch *l, struct error *e)
{
    const int64_t n = operand_elements(&l->in[0]);
    TRY_CUDA(by_type(store_of(l->out[0].dtype), [&](auto zero) {
        using T = decltype(zero);
        dequantize_any_row_kernel<T><<<grid_of_rows(n, BLOCK, INT32_MAX), BLOCK, 0, stream_of(l)>>>(
            out_as<T>(l, 0), in_as<uint8_t>(l, 0), in_as<float>(l, 1), n, operand_last(&l->in[0]));
    }));
    return PL_OK;
}

CUDA_KERNEL(cuda_quantize_rows, .launch = launch_quantize_rows);
CUDA_KERNEL(cuda_quantize_rows_any, .launch = launch_quantize_any_row);
CUDA_KERNEL(cuda_quantize_columns, .launch = launch_quantize_columns);
CUDA_KERNEL(cuda_quantize_columns_any, .launch = launch_quantize_any_column);
CUDA_KERNEL(cuda_dequantize_rows, .launch = launch_dequantize_rows);
CUDA_KERNEL(cuda_dequantize_rows_any, .launch = launch_dequantize_any_row);
