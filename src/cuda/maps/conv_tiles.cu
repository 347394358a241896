/*
 * conv_tiles.cu: convolutions whose patches are 2 x 2 pixels and tile the map, on tensor cores:
 * each map is read or written once, and there is no matrix of patches.
 *
 *     fine map          a a b b        the patch of a coarse pixel is two runs of R = 2 C elements,
 *                       a a b b        run i of pixel p = q W2 + w at (2 q + i) W2 R + w R
 *
 *     CONV      coarse [P,O] = fine [P,K] weights^T          K = 2 R
 *     CONV_DX   fine [P,K]   = coarse [P,O] weights
 *     CONV_DW   dw [O,K]     = coarse^T fine, as partial sums, which are then added in order
 *
 * The first two keep the weights in shared memory and traverse tiles of pixels with double
 * buffering: while one tile is multiplied, the next is loaded. The results are staged in the
 * operand's buffer, so that they are written 16 bytes at a time. A block of CONV_DW keeps its
 * partial sum in registers and traverses its pixels with several tiles in flight.
 *
 * Rows in shared memory are padded by 16 bytes: the eight rows that one ldmatrix reads are in
 * different banks.
 */
#include "cuda/attention/mma.cuh"
#include "cuda/rows/column_sums.cuh"
#include "cuda/maps/launch_conv.h"

constexpr int TILE_BLOCK = 256, PAD = 8, GROUPS = TILE_BLOCK / 32;

/* BACK: CONV_DX. DEEP is the contracted dimension, WIDE the results per pixel, ROWS the pixels per
 * tile. A warp has 32 pixels. */
template <bool BACK, int O, int K, int ROWS> struct sweep_config {
    static constexpr int DEEP = BACK ? O : K, WIDE = BACK ? K : O, LONGER = O > K ? O : K;
    static constexpr int DOWN = ROWS / 32, ACROSS = GROUPS / DOWN, COLUMNS = WIDE / ACROSS;
    static constexpr int BUFFER = ROWS * (LONGER + PAD), WEIGHTS = O * (K + PAD);
    static constexpr size_t BYTES = 2 * (size_t)(WEIGHTS + 2 * BUFFER);
    static_assert(DOWN * ACROSS == GROUPS && COLUMNS % 16 == 0, "warps cover the tile");
};

#if HAS_BF16

/* A matrix of pixels in global memory: of the coarse map, or the tiles of the fine one. */
template <typename T, bool FINE, int N> struct map_rows {
    T *data;
    int W2;
    /* The address of elements d .. d + 8 of pixel first + r; `first` is number w of its line. */
    __device__ T *at(int first, int w, int r, int d) const
    {
        constexpr int R = N / 2;
        const int p = first + r;
        if (!FINE) return data + (int64_t)p * N + d;
        w += r;
        if (w >= W2) w %= W2;
        return data + (int64_t)(p - w) * N + (int64_t)(d / R) * W2 * R + (int64_t)w * R + d % R;
    }
};

/* Copies COUNT pixels from `first` on, columns from `column` on, into rows of WIDTH; zeros from P
 * on. */
template <int COUNT, int WIDTH, typename T, typename M>
__device__ inline void fetch_pixels(T *to, const M &from, int first, int column, int P)
{
    constexpr int CHUNKS = WIDTH / 8;
    static_assert(COUNT * CHUNKS % TILE_BLOCK == 0, "every thread copies the same number of chunks");
    const int w = first % from.W2;
#pragma unroll
    for (int k = 0; k < COUNT * CHUNKS / TILE_BLOCK; k++) {
        const int i = k * TILE_BLOCK + threadIdx.x, r = i / CHUNKS, d = i % CHUNKS * 8;
        const bool there = first + r < P;
        copy16(to + r * (WIDTH + PAD) + d, from.at(first, w, there ? r : 0, column + d), there);
    }
}

/* --- CONV, CONV_DX ------------------------------------------------------------------------- */

/* c [32][COLUMNS] of the warp. The weights are [O][K]: by rows of results or, with BACK, by rows of
 * the contracted dimension. */
template <typename T, bool BACK, int O, int K, int COLUMNS, int DEEP>
__device__ inline void multiply(float (&c)[2][COLUMNS / 8][4], const T *pixels, const T *weights, int column)
{
    constexpr int ROW = DEEP + PAD, WROW = K + PAD;
    const int lane = threadIdx.x % 32;
    const T *left = pixels + lane % 16 * ROW + lane / 16 * 8;
    const T *right = BACK ? weights + lane % 16 * WROW + lane / 16 * 8 + column
                          : weights + (column + lane / 16 * 8 + lane % 8) * WROW + lane / 8 % 2 * 8;
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < COLUMNS / 8; n++) c[m][n][0] = c[m][n][1] = c[m][n][2] = c[m][n][3] = 0;
#pragma unroll 4
    for (int d = 0; d < DEEP; d += 16) {
        unsigned a[2][4];
        load4(a[0], left + d);
        load4(a[1], left + 16 * ROW + d);
#pragma unroll
        for (int n = 0; n < COLUMNS / 8; n += 2) {
            unsigned b[4];
            if (BACK) load4_transposed(b, right + d * WROW + n * 8);
            else load4(b, right + n * 8 * WROW + d);
#pragma unroll
            for (int m = 0; m < 2; m++) {
                mma(c[m][n], a[m], b[0], b[1], T());
                mma(c[m][n + 1], a[m], b[2], b[3], T());
            }
        }
    }
}

/* Writes the warp's sums plus bias, rounded, to rows of WIDE. */
template <typename T, int COLUMNS, int WIDE>
__device__ inline void round_tile(T *to, const float (&c)[2][COLUMNS / 8][4], const T *bias, int row, int column)
{
    const int lane = threadIdx.x % 32, r = row + lane / 4, k = column + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < COLUMNS / 8; n++) {
        const float first = bias ? to_float(bias[k + 8 * n]) : 0, second = bias ? to_float(bias[k + 8 * n + 1]) : 0;
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                *reinterpret_cast<unsigned *>(to + (r + 16 * m + 8 * half) * (WIDE + PAD) + k + 8 * n) =
                    both(c[m][n][2 * half] + first, c[m][n][2 * half + 1] + second, T());
    }
}

#endif /* HAS_BF16 */

template <typename T, bool BACK, int O, int K, int ROWS, int RESIDENT>
static __global__ void __launch_bounds__(TILE_BLOCK, RESIDENT)
    sweep_kernel(T *out, const T *in, const T *by_tap, const T *bias, int P, int W2)
{
#if HAS_BF16
    typedef sweep_config<BACK, O, K, ROWS> config;
    extern __shared__ uint4 shared[];
    T *weights = reinterpret_cast<T *>(shared), *buffer = weights + config::WEIGHTS;
    const map_rows<const T, !BACK, config::DEEP> from = {in, W2};
    const map_rows<T, BACK, config::WIDE> to = {out, W2};
    const int warp = threadIdx.x / 32, row = warp % config::DOWN * 32, column = warp / config::DOWN * config::COLUMNS;
    const int tiles = (P + ROWS - 1) / ROWS;
    for (int i = threadIdx.x; i < O * (K / 8); i += TILE_BLOCK)
        copy16(weights + i / (K / 8) * (K + PAD) + i % (K / 8) * 8, by_tap + i * 8, true);
    if ((int)blockIdx.x < tiles) fetch_pixels<ROWS, config::DEEP>(buffer, from, blockIdx.x * ROWS, 0, P);
    copy_commit();
    for (int tile = blockIdx.x, turn = 0; tile < tiles; tile += gridDim.x, turn ^= 1) {
        T *here = buffer + turn * config::BUFFER;
        const int next = tile + gridDim.x, first = tile * ROWS;
        if (next < tiles)
            fetch_pixels<ROWS, config::DEEP>(buffer + (turn ^ 1) * config::BUFFER, from, next * ROWS, 0, P);
        copy_commit();
        copy_wait<1>();
        __syncthreads();
        float c[2][config::COLUMNS / 8][4];
        multiply<T, BACK, O, K, config::COLUMNS, config::DEEP>(c, here + row * (config::DEEP + PAD), weights, column);
        __syncthreads(); /* all threads have read the operand: the results may overwrite it */
        round_tile<T, config::COLUMNS, config::WIDE>(here, c, bias, row, column);
        __syncthreads();
        constexpr int CHUNKS = config::WIDE / 8;
        const int w = first % W2;
        for (int i = threadIdx.x; i < ROWS * CHUNKS; i += TILE_BLOCK) {
            const int r = i / CHUNKS, d = i % CHUNKS * 8;
            if (first + r < P)
                *reinterpret_cast<uint4 *>(to.at(first, w, r, d)) =
                    *reinterpret_cast<const uint4 *>(here + r * (config::WIDE + PAD) + d);
        }
        __syncthreads(); /* before the tile after the next is loaded here */
    }
    copy_wait<0>();
#endif
}

/* --- CONV_DW ---------------------------------------------------------------------------------- */

/* A block's tile of dw: DOWN of the O rows, ACROSS of the K columns; STEP pixels at a time, AHEAD
 * steps in buffers. */
template <int DOWN, int ACROSS, int AHEAD> struct part_config {
    static constexpr int STEP = 64, LEFT = STEP * (DOWN + PAD), BUFFER = LEFT + STEP * (ACROSS + PAD);
    static constexpr int HIGH = DOWN / 2, LONG = ACROSS / 4; /* per warp: 2 x 4 warps */
    static constexpr size_t BYTES = 2 * (size_t)AHEAD * BUFFER;
};

/* partial [parts][O][K]. The tiles of dw are innermost in the grid, so that blocks which read the
 * same pixels run together. */
template <typename T, int O, int K, int DOWN, int ACROSS, int AHEAD>
static __global__ void __launch_bounds__(TILE_BLOCK, 2)
    part_kernel(float *partial, const T *coarse, const T *fine, int P, int W2, int each)
{
#if HAS_BF16
    typedef part_config<DOWN, ACROSS, AHEAD> config;
    constexpr int STEP = config::STEP, MI = config::HIGH / 16, NI = config::LONG / 8, ROW = DOWN + PAD,
                  LINE = ACROSS + PAD, BESIDE = K / ACROSS;
    extern __shared__ uint4 shared[];
    pdl_launch_dependents();
    T *buffer = reinterpret_cast<T *>(shared);
    const map_rows<const T, false, O> left = {coarse, W2};
    const map_rows<const T, true, K> right = {fine, W2};
    const int tile = blockIdx.x % (O / DOWN * BESIDE), part = blockIdx.x / (O / DOWN * BESIDE);
    const int o0 = tile / BESIDE * DOWN, k0 = tile % BESIDE * ACROSS;
    const int begin = part * each, end = P < begin + each ? P : begin + each,
              steps = end > begin ? (end - begin + STEP - 1) / STEP : 0;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, high = warp % 2 * config::HIGH,
              far = warp / 2 * config::LONG;
    auto fetch = [&](int s) {
        T *to = buffer + s % AHEAD * config::BUFFER;
        if (s < steps) {
            fetch_pixels<STEP, DOWN>(to, left, begin + s * STEP, o0, end);
            fetch_pixels<STEP, ACROSS>(to + config::LEFT, right, begin + s * STEP, k0, end);
        }
        copy_commit();
    };
    float c[MI][NI][4];
#pragma unroll
    for (int m = 0; m < MI; m++)
#pragma unroll
        for (int n = 0; n < NI; n++) c[m][n][0] = c[m][n][1] = c[m][n][2] = c[m][n][3] = 0;
    for (int s = 0; s < AHEAD - 1; s++) fetch(s);
    for (int s = 0; s < steps; s++) {
        copy_wait<AHEAD - 2>();
        __syncthreads(); /* step s has arrived, and all threads are done with the one before */
        fetch(s + AHEAD - 1);
        const T *x = buffer + s % AHEAD * config::BUFFER + (lane / 16 * 8 + lane % 8) * ROW + lane / 8 % 2 * 8 + high;
        const T *y = buffer + s % AHEAD * config::BUFFER + config::LEFT + lane % 16 * LINE + lane / 16 * 8 + far;
#pragma unroll
        for (int p = 0; p < STEP; p += 16) {
            unsigned a[MI][4];
#pragma unroll
            for (int m = 0; m < MI; m++) load4_transposed(a[m], x + p * ROW + 16 * m);
#pragma unroll
            for (int n = 0; n < NI; n += 2) {
                unsigned b[4];
                load4_transposed(b, y + p * LINE + 8 * n);
#pragma unroll
                for (int m = 0; m < MI; m++) {
                    mma(c[m][n], a[m], b[0], b[1], T());
                    mma(c[m][n + 1], a[m], b[2], b[3], T());
                }
            }
        }
    }
    copy_wait<0>();
    float *to = partial + (int64_t)part * O * K + (int64_t)(o0 + high + lane / 4) * K + k0 + far + lane % 4 * 2;
#pragma unroll
    for (int m = 0; m < MI; m++)
#pragma unroll
        for (int n = 0; n < NI; n++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                *reinterpret_cast<float2 *>(to + (16 * m + 8 * half) * K + 8 * n) =
                    make_float2(c[m][n][2 * half], c[m][n][2 * half + 1]);
#endif
}

/* --- launching -------------------------------------------------------------------------------- */

/* Blocks in total: twice the SMs of a large GPU. The number of partial sums depends only on
 * shapes. */
template <typename T, bool BACK, int O, int K, int ROWS, int RESIDENT>
static cudaError_t launch_sweep(void *out, const void *in, const void *weights, const void *bias,
                                const struct conv_tiles *n, cudaStream_t stream)
{
    typedef sweep_config<BACK, O, K, ROWS> config;
    const int64_t tiles = (n->P + ROWS - 1) / ROWS, most = CONV_TILES_GRID / 2 * RESIDENT;
    cudaError_t rc = allow_shared(sweep_kernel<T, BACK, O, K, ROWS, RESIDENT>, config::BYTES);
    if (rc != cudaSuccess) return rc;
    sweep_kernel<T, BACK, O, K, ROWS, RESIDENT>
        <<<(unsigned)(tiles < most ? tiles : most), TILE_BLOCK, config::BYTES, stream>>>((T *)out, (const T *)in,
                                                                                         (const T *)weights,
                                                                                         (const T *)bias, (int)n->P,
                                                                                         n->W2);
    return cudaGetLastError();
}

template <typename T, int O, int K, int DOWN, int ACROSS, int AHEAD>
static cudaError_t launch_part(float *partial, const void *coarse, const void *fine, int64_t parts,
                               const struct conv_tiles *n, cudaStream_t stream)
{
    typedef part_config<DOWN, ACROSS, AHEAD> config;
    const int64_t steps = (n->P + config::STEP - 1) / config::STEP, each = (steps + parts - 1) / parts * config::STEP;
    cudaError_t rc = allow_shared(part_kernel<T, O, K, DOWN, ACROSS, AHEAD>, config::BYTES);
    if (rc != cudaSuccess) return rc;
    part_kernel<T, O, K, DOWN, ACROSS, AHEAD>
        <<<(unsigned)(parts * (O / DOWN) * (K / ACROSS)), TILE_BLOCK, config::BYTES, stream>>>(partial,
                                                                                               (const T *)coarse,
                                                                                               (const T *)fine,
                                                                                               (int)n->P, n->W2,
                                                                                               (int)each);
    return cudaGetLastError();
}

static_assert(part_config<64, 128, 4>::BYTES == CONV_TILES_SMALL &&
                  sweep_config<false, 256, 256, 64>::BYTES == CONV_TILES_LARGE,
              "the plan knows the shared memory");

template <typename T, bool BACK>
static cudaError_t sweep_of(void *out, const void *in, const void *weights, const void *bias,
                            const struct conv_tiles *n, enum conv_tiles_form form, cudaStream_t stream)
{
    if (form != conv_tiles_form(n) || form == CONV_TILES_NONE) return cudaErrorInvalidValue;
    if (form == CONV_TILES_64_128) return launch_sweep<T, BACK, 64, 128, 128, 2>(out, in, weights, bias, n, stream);
    return launch_sweep<T, BACK, 256, 256, 64, 1>(out, in, weights, bias, n, stream);
}

extern "C" cudaError_t cuda_conv_tiles(void *coarse, const void *fine, const void *weights, const void *bias,
                                       const struct conv_tiles *n, enum store type, enum conv_tiles_form form,
                                       cudaStream_t stream)
{
    if (type == STORE_BF16) return sweep_of<__nv_bfloat16, false>(coarse, fine, weights, bias, n, form, stream);
    return type == STORE_F16 ? sweep_of<__half, false>(coarse, fine, weights, bias, n, form, stream)
                             : cudaErrorInvalidValue;
}

extern "C" cudaError_t cuda_conv_tiles_dx(void *fine, const void *coarse, const void *weights, const void *bias,
                                          const struct conv_tiles *n, enum store type, enum conv_tiles_form form,
                                          cudaStream_t stream)
{
    if (type == STORE_BF16) return sweep_of<__nv_bfloat16, true>(fine, coarse, weights, bias, n, form, stream);
    return type == STORE_F16 ? sweep_of<__half, true>(fine, coarse, weights, bias, n, form, stream)
                             : cudaErrorInvalidValue;
}

template <typename T>
static cudaError_t part_of(float *partial, const void *coarse, const void *fine, int64_t parts,
                           const struct conv_tiles *n, enum conv_tiles_form form, cudaStream_t stream)
{
    if (form != conv_tiles_form(n) || form == CONV_TILES_NONE) return cudaErrorInvalidValue;
    if (form == CONV_TILES_64_128) return launch_part<T, 64, 128, 64, 128, 4>(partial, coarse, fine, parts, n, stream);
    return launch_part<T, 256, 256, 128, 128, 3>(partial, coarse, fine, parts, n, stream);
}

extern "C" cudaError_t cuda_conv_tiles_dw(float *dw, const void *coarse, const void *fine, float *partial,
                                          int64_t parts, const struct conv_tiles *n, enum store type,
                                          enum conv_tiles_form form, cudaStream_t stream)
{
    const int64_t N = (int64_t)n->O * n->K;
    const cudaError_t rc = type == STORE_BF16 ? part_of<__nv_bfloat16>(partial, coarse, fine, parts, n, form, stream)
                           : type == STORE_F16 ? part_of<__half>(partial, coarse, fine, parts, n, form, stream)
                                               : cudaErrorInvalidValue;
    if (rc != cudaSuccess) return rc;
    typed_ptr to;
    to.data = dw, to.type = STORE_F32;
    launch_column_sums({to, to, N, 0}, partial, parts, N, stream);
    return cudaGetLastError();
}
