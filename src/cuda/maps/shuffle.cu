/*
 * shuffle.cu: kernels that move elements without changing them: strided copies, GATHER, REPEAT,
 * windows, labels; and SCATTER_ADD, which adds rows in the order of their indices.
 *
 * Elements are moved in units of up to 16 bytes: the widest that divides every row and stride, and
 * the addresses as the plan knows them (launch.access). Transposed copies go through tiles in
 * shared memory, so that both sides are accessed along their rows. The plan chooses the form
 * (loop_nest.h).
 */
#include "cuda/rows/elements.cuh"
#include "cuda/maps/launch_shuffle.h"
#include "cuda/rows/rows.cuh"

/* Reports whether addresses are not multiples of `access` bytes, as the plan says. */
static bool is_off(int access, const void *a, const void *b)
{
    return !is_aligned(a, (size_t)access) || !is_aligned(b, (size_t)access);
}

/* Runs `call` with U a type of `bytes` bytes. */
#define WITH_UNIT(bytes, call)                      \
    switch (bytes) {                                \
    case 16: { using U = uint4; call; break; }      \
    case 8: { using U = uint2; call; break; }       \
    case 4: { using U = uint32_t; call; break; }    \
    case 2: { using U = uint16_t; call; break; }    \
    default: { using U = uint8_t; call; break; }    \
    }

static __device__ int64_t thread_first(void) { return (int64_t)blockIdx.x * BLOCK + threadIdx.x; }
static __device__ int64_t thread_step(void) { return (int64_t)gridDim.x * BLOCK; }

/* --- strided copies ------------------------------------------------------------------ */

template <typename U> __global__ void move_kernel(U *y, const U *a, loop_nest f, int64_t n)
{
    for (int64_t i = thread_first(); i < n; i += thread_step()) {
        const int64_t row = quotient(i, f.size[0]);
        const offsets p = offsets_of(f, row, i - row * f.size[0]);
        y[p.y] = a[p.a];
    }
}

constexpr int SIDE = 32, SIDE_ROWS = BLOCK / SIDE;

/* y has stride 1 along i, a along j; the other loops are in `rest`, whose first loop has one
 * iteration. */
template <typename U>
__global__ void transpose_kernel(U *y, const U *a, loop_nest rest, int64_t I, int64_t J, int64_t y_j, int64_t a_i,
                                 int64_t tiles_i, int64_t tiles_j)
{
    __shared__ U tile[SIDE][SIDE + 1];
    const int64_t q = quotient(blockIdx.x, tiles_i), batch = quotient(q, tiles_j);
    const int64_t i0 = (blockIdx.x - q * tiles_i) * SIDE, j0 = (q - batch * tiles_j) * SIDE;
    const offsets p = offsets_of(rest, batch, 0);
    const int x = threadIdx.x % SIDE;
    for (int r = threadIdx.x / SIDE; r < SIDE; r += SIDE_ROWS)
        if (i0 + r < I && j0 + x < J) tile[r][x] = a[p.a + (i0 + r) * a_i + j0 + x];
    __syncthreads();
    for (int r = threadIdx.x / SIDE; r < SIDE; r += SIDE_ROWS)
        if (j0 + r < J && i0 + x < I) y[p.y + (j0 + r) * y_j + i0 + x] = tile[x][r];
}

template <typename U>
static cudaError_t launch_transpose(void *y, const void *a, const loop_nest &f, int d, cudaStream_t stream)
{
    loop_nest rest;
    memset(&rest, 0, sizeof rest);
    rest.loops = 1;
    rest.size[0] = 1;
    int64_t batch = 1;
    for (int k = 1; k < f.loops; k++) {
        if (k == d) continue;
        rest.size[rest.loops] = f.size[k];
        rest.y[rest.loops] = f.y[k];
        rest.a[rest.loops++] = f.a[k];
        batch *= f.size[k];
    }
    const int64_t I = f.size[0], J = f.size[d], tiles_i = (I + SIDE - 1) / SIDE, tiles_j = (J + SIDE - 1) / SIDE;
    if (tiles_i * tiles_j * batch > INT32_MAX) return cudaErrorInvalidValue;
    transpose_kernel<U>
        <<<(unsigned)(tiles_i * tiles_j * batch), BLOCK, 0, stream>>>(static_cast<U *>(y), static_cast<const U *>(a),
                                                                      rest, I, J, f.y[d], f.a[0], tiles_i, tiles_j);
    return cudaGetLastError();
}

template <typename U> static cudaError_t launch_move(void *y, const void *a, const loop_nest &f, cudaStream_t stream)
{
    const int64_t n = loop_nest_elements(&f);
    move_kernel<U><<<grid_for(n), BLOCK, 0, stream>>>(static_cast<U *>(y), static_cast<const U *>(a), f, n);
    return cudaGetLastError();
}

/* Counts rows that are contiguous on both sides in units instead of elements. */
static void widen(loop_nest &f, int unit, int size)
{
    f.size[0] = f.size[0] * size / unit;
    for (int k = 1; k < f.loops; k++) {
        f.y[k] = f.y[k] * size / unit;
        f.a[k] = f.a[k] * size / unit;
    }
}

extern "C" cudaError_t cuda_move(void *y, const void *a, struct loop_nest nest, int size, int access,
                                 enum move_form form, cudaStream_t stream)
{
    cudaError_t rc = cudaErrorInvalidValue;
    if (is_off(access, y, a)) return cudaErrorMisalignedAddress;
    if (form == MOVE_TRANSPOSED) {
        const int d = transposed_loop(&nest);
        if (d && access == size) WITH_UNIT(size, rc = launch_transpose<U>(y, a, nest, d, stream));
        return rc;
    }
    if (move_unit(&nest, (uint64_t)access, size) != access) return cudaErrorInvalidValue;
    if (access > size) widen(nest, access, size);
    WITH_UNIT(access, rc = launch_move<U>(y, a, nest, stream));
    return rc;
}

template <typename U> static __device__ U zero_of(void)
{
    U zero;
    memset(&zero, 0, sizeof zero);
    return zero;
}

/* Pads in units of 16 bytes. */
__global__ void pad_kernel(uint4 *y, const uint4 *x, int64_t before, int64_t count, int64_t all)
{
    const int64_t first = (int64_t)blockIdx.x * BLOCK * TURN + threadIdx.x;
    uint4 units[TURN];
#pragma unroll
    for (int u = 0; u < TURN; u++) {
        const int64_t i = first + u * BLOCK - before;
        units[u] = zero_of<uint4>();
        if (i >= 0 && i < count) units[u] = x[i];
    }
#pragma unroll
    for (int u = 0; u < TURN; u++)
        if (first + u * BLOCK < all) y[first + u * BLOCK] = units[u];
}

extern "C" cudaError_t cuda_pad(void *y, const void *x, int64_t before, int64_t count, int64_t bytes,
                                cudaStream_t stream)
{
    if (!is_one_grid(bytes / 16)) return cudaErrorInvalidValue;
    pad_kernel<<<grid_of_packs(bytes / 16), BLOCK, 0, stream>>>((uint4 *)y, (const uint4 *)x, before / 16, count / 16,
                                                                bytes / 16);
    return cudaGetLastError();
}

/* --- concatenation ------------------------------------------------------------------------ */

/* All sizes in units; `first`: the offset of each input in a row of y. */
struct joined {
    const void *x[JOIN_MOST];
    int64_t row[JOIN_MOST], first[JOIN_MOST + 1];
    int count;
};

template <typename U> static __device__ inline U joined_at(const joined &j, int64_t i)
{
    const int64_t all = j.first[j.count], outer = quotient(i, all), c = i - outer * all;
    int k = 0;
    while (k + 1 < j.count && c >= j.first[k + 1]) k++;
    return static_cast<const U *>(j.x[k])[outer * j.row[k] + c - j.first[k]];
}

template <typename U> __global__ void join_kernel(U *y, const __grid_constant__ joined j, int64_t n)
{
    const int64_t first = (int64_t)blockIdx.x * BLOCK * TURN + threadIdx.x;
    U units[TURN];
#pragma unroll
    for (int u = 0; u < TURN; u++)
        if (first + u * BLOCK < n) units[u] = joined_at<U>(j, first + u * BLOCK);
#pragma unroll
    for (int u = 0; u < TURN; u++)
        if (first + u * BLOCK < n) y[first + u * BLOCK] = units[u];
}

extern "C" cudaError_t cuda_join(void *y, join j, int64_t outer, int access, cudaStream_t stream)
{
    const int unit = access;
    for (int k = 0; k < j.count; k++)
        if (is_off(unit, y, j.x[k])) return cudaErrorMisalignedAddress;
    joined to;
    memset(&to, 0, sizeof to);
    to.count = j.count;
    for (int k = 0; k < j.count; k++) {
        to.x[k] = j.x[k];
        to.row[k] = j.row[k] / unit;
        to.first[k + 1] = to.first[k] + to.row[k];
    }
    const int64_t n = outer * to.first[j.count];
    if (n == 0) return cudaSuccess;
    if (!is_one_grid(n)) return cudaErrorInvalidValue;
    WITH_UNIT(unit, (join_kernel<U><<<grid_of_packs(n), BLOCK, 0, stream>>>((U *)y, to, n)));
    return cudaGetLastError();
}

/* --- rows by index, rows repeated ------------------------------------------------------ */

template <typename U>
__global__ void gather_kernel(U *y, const U *x, const int32_t *index, int64_t rows, int64_t N, int64_t M, int64_t each)
{
    for (int64_t i = thread_first(); i < rows * each; i += thread_step()) {
        const int64_t row = quotient(i, each), c = i - row * each, n = index[row];
        y[i] = n >= 0 && n < N ? x[(quotient(row, M) * N + n) * each + c] : zero_of<U>();
    }
}

extern "C" cudaError_t cuda_gather(void *y, const void *x, const int32_t *index, int64_t B, int64_t N, int64_t M,
                                   int64_t row, int access, cudaStream_t stream)
{
    const int unit = access;
    if (is_off(unit, y, x)) return cudaErrorMisalignedAddress;
    const unsigned grid = grid_for(B * M * (row / unit));
    WITH_UNIT(unit,
              (gather_kernel<U><<<grid, BLOCK, 0, stream>>>((U *)y, (const U *)x, index, B * M, N, M, row / unit)));
    return cudaGetLastError();
}

template <typename U> __global__ void repeat_kernel(U *y, const U *x, int64_t rows, int64_t n, int64_t each)
{
    for (int64_t i = thread_first(); i < rows * n * each; i += thread_step()) {
        const int64_t row = quotient(i, each);
        y[i] = x[quotient(row, n) * each + (i - row * each)];
    }
}

extern "C" cudaError_t cuda_repeat(void *y, const void *x, int64_t rows, int64_t n, int64_t row, int access,
                                   cudaStream_t stream)
{
    const int unit = access;
    if (is_off(unit, y, x)) return cudaErrorMisalignedAddress;
    const unsigned grid = grid_for(rows * n * (row / unit));
    WITH_UNIT(unit, (repeat_kernel<U><<<grid, BLOCK, 0, stream>>>((U *)y, (const U *)x, rows, n, row / unit)));
    return cudaGetLastError();
}

/* --- windows ------------------------------------------------------------------------------- */

/* The offset in the map, in units, of unit c of pixel `pixel` of all windows; -1: outside the
 * map. */
struct windows {
    int64_t H, W, each, size, across, down;
};

static __device__ int64_t map_offset(const windows &g, int64_t pixel, int64_t c)
{
    const int64_t line = quotient(pixel, g.size), window = quotient(line, g.size);
    const int64_t row = quotient(window, g.across), b = quotient(row, g.down);
    const int64_t x = (window - row * g.across) * g.size + (pixel - line * g.size);
    const int64_t y = (row - b * g.down) * g.size + (line - window * g.size);
    return x < g.W && y < g.H ? ((b * g.H + y) * g.W + x) * g.each + c : -1;
}

template <typename U> __global__ void window_kernel(U *y, const U *x, windows g, int64_t n, int back)
{
    for (int64_t i = thread_first(); i < n; i += thread_step()) {
        const int64_t pixel = quotient(i, g.each), at = map_offset(g, pixel, i - pixel * g.each);
        if (!back) y[i] = at >= 0 ? x[at] : zero_of<U>();
        else if (at >= 0) y[at] = x[i];
    }
}

constexpr int PIXEL_TURN = 6;

/* One warp per pixel: the offset is computed once, and all loads of the pixel are in flight at
 * once. */
template <typename U> __global__ void window_pixels_kernel(U *y, const U *x, windows g, int64_t pixels, int back)
{
    const int lane = threadIdx.x % 32;
    const int64_t warps = (int64_t)gridDim.x * (BLOCK / 32);
    for (int64_t pixel = (int64_t)blockIdx.x * (BLOCK / 32) + threadIdx.x / 32; pixel < pixels; pixel += warps) {
        const int64_t at = map_offset(g, pixel, 0);
        if (back && at < 0) continue;
        const U *from = back ? x + pixel * g.each : x + at;
        U *to = back ? y + at : y + pixel * g.each;
        for (int64_t c = lane; c < g.each; c += 32 * PIXEL_TURN) {
            U units[PIXEL_TURN];
#pragma unroll
            for (int k = 0; k < PIXEL_TURN; k++) {
                units[k] = zero_of<U>();
                if (at >= 0 && c + 32 * k < g.each) units[k] = from[c + 32 * k];
            }
#pragma unroll
            for (int k = 0; k < PIXEL_TURN; k++)
                if (c + 32 * k < g.each) to[c + 32 * k] = units[k];
        }
    }
}

extern "C" cudaError_t cuda_window(void *y, const void *x, int64_t B, int64_t H, int64_t W, int64_t pixel, int64_t size,
                                   int back, int access, enum window_form form, cudaStream_t stream)
{
    const int unit = access;
    if (is_off(unit, y, x)) return cudaErrorMisalignedAddress;
    const windows g = {H, W, pixel / unit, size, (W + size - 1) / size, (H + size - 1) / size};
    const int64_t pixels = B * g.across * g.down * size * size, n = pixels * g.each;
    if (form != window_form(g.each)) return cudaErrorInvalidValue;
    if (form == WINDOW_PIXELS) {
        const unsigned grid = grid_for(pixels * 32);
        WITH_UNIT(unit, (window_pixels_kernel<U><<<grid, BLOCK, 0, stream>>>((U *)y, (const U *)x, g, pixels, back)));
        return cudaGetLastError();
    }
    WITH_UNIT(unit, (window_kernel<U><<<grid_for(n), BLOCK, 0, stream>>>((U *)y, (const U *)x, g, n, back)));
    return cudaGetLastError();
}

/* --- labels ----------------------------------------------------------------------------------- */

__global__ void shift_kernel(int32_t *y, const int32_t *x, int64_t n, int64_t T, int32_t ignored)
{
    for (int64_t i = thread_first(); i < n; i += thread_step()) y[i] = (i + 1) % T ? x[i + 1] : ignored;
}

extern "C" cudaError_t cuda_shift_labels(int32_t *y, const int32_t *x, int64_t B, int64_t T, int32_t ignored,
                                         cudaStream_t stream)
{
    shift_kernel<<<grid_for(B * T), BLOCK, 0, stream>>>(y, x, B * T, T, ignored);
    return cudaGetLastError();
}

constexpr int SCAN = 1024; /* rows at a time */

/* Counts labels in one block: a label's position is the number of labels before it. */
__global__ void __launch_bounds__(SCAN) labelled_first_kernel(int32_t *labels, int32_t *index, int32_t *position,
                                                              const int32_t *x, int64_t rows, int32_t ignored)
{
    __shared__ int32_t count[SCAN / 32]; /* by warp */
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int32_t n = 0; /* labels in the rows so far */
    for (int64_t first = 0; first < rows; first += SCAN) {
        const int64_t r = first + threadIdx.x;
        const int32_t label = r < rows ? x[r] : ignored;
        const unsigned votes = __ballot_sync(0xffffffffu, label != ignored);
        if (lane == 0) count[warp] = __popc(votes);
        __syncthreads();
        int32_t at = n + __popc(votes & ((1u << lane) - 1));
        for (int w = 0; w < SCAN / 32; w++) {
            if (w < warp) at += count[w];
            n += count[w];
        }
        if (r < rows) position[r] = label == ignored ? -1 : at;
        if (label != ignored) {
            labels[at] = label;
            index[at] = (int32_t)r;
        }
        __syncthreads(); /* before the counts are overwritten */
    }
    for (int64_t k = n + threadIdx.x; k < rows; k += SCAN) {
        labels[k] = ignored;
        index[k] = -1;
    }
}

extern "C" cudaError_t cuda_labelled_first(int32_t *labels, int32_t *index, int32_t *position, const int32_t *x,
                                           int64_t rows, int32_t ignored, cudaStream_t stream)
{
    labelled_first_kernel<<<1, SCAN, 0, stream>>>(labels, index, position, x, rows, ignored);
    return cudaGetLastError();
}

/* Marks the blocks that are read, in one block of threads, then replaces the marks by the numbers
 * of those that are set. A number is written where marks are no longer read. */
__global__ void __launch_bounds__(SCAN) used_first_kernel(int32_t *used, const int32_t *index, int64_t B, int64_t T,
                                                          int64_t blocks, struct feature_blocks of, int64_t room)
{
    __shared__ int32_t count[SCAN / 32]; /* by warp */
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int32_t n = 0; /* blocks that are read, so far */
    for (int64_t i = threadIdx.x; i < room; i += SCAN) used[i] = 0;
    __syncthreads();
    for (int64_t i = threadIdx.x; i < B * T; i += SCAN) {
        const int64_t block = index[i] < 0 ? blocks : shared_block_of(of, index[i]);
        if (block < blocks) used[i / T * blocks + block] = 1;
    }
    __syncthreads();
    for (int64_t first = 0; first < room; first += SCAN) {
        const int64_t k = first + threadIdx.x;
        const bool set = k < room && used[k];
        const unsigned votes = __ballot_sync(0xffffffffu, set);
        if (lane == 0) count[warp] = __popc(votes);
        __syncthreads();
        int32_t at = n + __popc(votes & ((1u << lane) - 1));
        for (int w = 0; w < SCAN / 32; w++) {
            if (w < warp) at += count[w];
            n += count[w];
        }
        if (set) used[at] = (int32_t)k;
        __syncthreads(); /* before the counts are overwritten */
    }
    for (int64_t k = n + threadIdx.x; k < room; k += SCAN) used[k] = -1;
}

extern "C" cudaError_t cuda_used_first(int32_t *used, const int32_t *index, int64_t B, int64_t T, int64_t blocks,
                                       struct feature_blocks of, int64_t room, cudaStream_t stream)
{
    used_first_kernel<<<1, SCAN, 0, stream>>>(used, index, B, T, blocks, of, room);
    return cudaGetLastError();
}

/* --- SCATTER_ADD ---------------------------------------------------------------------------------
 *
 * A block computes one row of the result. Its threads search the indices BLOCK at a time, list the
 * matching rows in order, and add them in that order, column by column.
 */

__global__ void scatter_add_kernel(typed_ptr y, typed_ptr x, const int32_t *index, int64_t N, int64_t M, int64_t C,
                                   int accumulate)
{
    __shared__ int32_t list[BLOCK];
    __shared__ int32_t before[BLOCK / 32];
    const int64_t b = blockIdx.x / N, n = blockIdx.x - b * N;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t to = (b * N + n) * C;
    for (int64_t from = 0; from < C; from += BLOCK) { /* one column per thread at a time */
        const int64_t c = from + threadIdx.x;
        float sum = accumulate && c < C ? element(y, to + c) : 0.0f;
        for (int64_t m0 = 0; m0 < M; m0 += BLOCK) {
            const int64_t m = m0 + threadIdx.x;
            const bool meant = m < M && index[b * M + m] == n;
            const unsigned votes = __ballot_sync(0xffffffffu, meant);
            if (lane == 0) before[warp] = __popc(votes);
            __syncthreads();
            int at = __popc(votes & ((1u << lane) - 1)), count = 0;
            for (int w = 0; w < BLOCK / 32; w++) {
                if (w < warp) at += before[w];
                count += before[w];
            }
            if (meant) list[at] = threadIdx.x;
            __syncthreads();
            for (int k = 0; k < count && c < C; k++) sum += element(x, (b * M + m0 + list[k]) * C + c);
            __syncthreads(); /* before the list is overwritten */
        }
        const float one[1] = {sum};
        if (c < C) store<1>(y, to + c, one);
    }
}

extern "C" cudaError_t cuda_scatter_add(void *y, const void *x, const int32_t *index, enum store type, enum store from,
                                        int64_t B, int64_t N, int64_t M, int64_t C, int accumulate, cudaStream_t stream)
{
    if (B * N > INT32_MAX) return cudaErrorInvalidValue; /* the limit of a CUDA grid */
    const typed_ptr to = {y, type}, rows = {const_cast<void *>(x), from};
    scatter_add_kernel<<<(unsigned)(B * N), BLOCK, 0, stream>>>(to, rows, index, N, M, C, accumulate);
    return cudaGetLastError();
}
