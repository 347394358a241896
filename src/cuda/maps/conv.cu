/*
 * conv.cu: the copies of convolutions by matrix products: patches (im2col), weights by tap, results
 * that are not adjacent. These kernels copy elements and compute none.
 *
 * An element here is a word: 2 or 4 bytes, or 16 where the plan says so (launch.access); C then
 * counts 16-byte words. Indices within a launch have 31 bits (ensured by plan_conv.c): these
 * kernels are divisions and a copy, and the divisions are multiplications by constants that the
 * host computes (device.cuh).
 */
#include "cuda/device/device.cuh"
#include "cuda/maps/launch_conv.h"

typedef uint32_t index32;

#define EACH(k, n)                                                                                          \
    for (index32 k = blockIdx.x * BLOCK + threadIdx.x, step_ = gridDim.x * BLOCK; k < (n); k += step_)

/* Calls with `word` a type of `bytes` bytes. */
#define BY_WORD(bytes, call)                                     \
    do {                                                         \
        if ((bytes) == 16) { typedef uint4 word; call; }         \
        else if ((bytes) == 4) { typedef uint32_t word; call; }  \
        else { typedef uint16_t word; call; }                    \
    } while (0)

static bool fits(int64_t n) { return n >= 0 && n <= INT32_MAX; }

/* Replaces n by n / d and returns n mod d. */
__device__ static inline index32 split(index32 &n, const divisor &d)
{
    const index32 all = n;
    n = all / d;
    return all - n * d.by;
}

/* --- patches ---------------------------------------------------------------------------- */

struct patches {
    int H, W, step, y0, x0;
    divisor ny, nx, kx, tap, row; /* tap, row: words of one tap, and of one patch */
    int64_t line, hop;            /* words per line of the map, and from patch to patch */
};

template <typename T> __global__ void patches_kernel(T *to, const T *map, patches g, index32 first, index32 n)
{
    EACH(k, n) {
        index32 b = k, t = split(b, g.row); /* word t of patch b */
        const index32 c = split(t, g.tap);
        b += first;
        const int j = split(b, g.nx), i = split(b, g.ny), v = g.x0 + (int)split(t, g.kx);
        const int y = g.y0 + i * g.step + (int)t, x = j * g.step + v;
        T word = {};
        if (y >= 0 && y < g.H && x >= 0 && x < g.W)
            word = map[((int64_t)b * g.H + y) * g.line + j * g.hop + (int64_t)v * g.tap.by + c];
        to[k] = word;
    }
}

extern "C" cudaError_t cuda_conv_patches(void *to, const void *map, const struct conv_patches *g, int64_t first,
                                         int64_t rows, int size, int access, enum patch_form form, cudaStream_t stream)
{
    const bool lines = form == PATCH_LINES;
    const int64_t kx = lines ? 1 : g->kx, C = lines ? g->kx * g->C : g->C;
    const int bytes = access;
    if (C * size % bytes || (lines && (bytes != 16 || !patch_lines_fit(g, size)))) return cudaErrorInvalidValue;
    if (misaligned(access, to, map)) return cudaErrorMisalignedAddress;
    const int64_t tap = C * size / bytes, n = rows * g->ky * kx * tap;
    if (!fits(n) || !fits(first + rows)) return cudaErrorInvalidValue;
    const patches at = {(int)g->H,
                        (int)g->W,
                        (int)g->step,
                        (int)g->y0,
                        (int)g->x0,
                        divisor_of(g->ny),
                        divisor_of(g->nx),
                        divisor_of(kx),
                        divisor_of(tap),
                        divisor_of(g->ky * kx * tap),
                        g->W * g->C * size / bytes,
                        g->step * g->C * size / bytes};
    BY_WORD(bytes, (patches_kernel<word><<<grid_for(n), BLOCK, 0, stream>>>((word *)to, (const word *)map, at,
                                                                            (index32)first, (index32)n)));
    return cudaGetLastError();
}

/* --- weights ------------------------------------------------------------------------------ */

template <typename T> __global__ void weights_kernel(T *to, const T *w, tap_grid g, index32 n)
{
    const index32 depth = (index32)g.depth, taps = (index32)(g.ky * g.kx), kx = (index32)g.kx;
    EACH(k, n) {
        const index32 c = k % depth, t = k / depth % taps, o = k / depth / taps;
        const int64_t u = g.tap_y + t / kx * g.tap_step, v = g.tap_x + t % kx * g.tap_step;
        to[o * g.o_step + t * g.t_step + c] = w[(((int64_t)o * depth + c) * g.kh + u) * g.kw + v];
    }
}

extern "C" cudaError_t cuda_conv_weights(void *to, const void *w, const struct tap_grid *g, int size,
                                         cudaStream_t stream)
{
    const int64_t n = g->O * g->ky * g->kx * g->depth;
    if (!fits(n)) return cudaErrorInvalidValue;
    BY_WORD(size,
            (weights_kernel<word><<<grid_for(n), BLOCK, 0, stream>>>((word *)to, (const word *)w, *g, (index32)n)));
    return cudaGetLastError();
}

__global__ void weights_back_kernel(float *dw, const float *from, index32 depth, index32 taps, bool add, index32 n)
{
    EACH(k, n) {
        const index32 t = k % taps, c = k / taps % depth, o = k / taps / depth;
        const float x = from[((int64_t)o * taps + t) * depth + c];
        dw[k] = add ? dw[k] + x : x;
    }
}

extern "C" cudaError_t cuda_conv_weights_back(float *dw, const float *from, int64_t O, int64_t depth, int64_t taps,
                                              bool add, cudaStream_t stream)
{
    const int64_t n = O * depth * taps;
    if (!fits(n)) return cudaErrorInvalidValue;
    weights_back_kernel<<<grid_for(n), BLOCK, 0, stream>>>(dw, from, (index32)depth, (index32)taps, add, (index32)n);
    return cudaGetLastError();
}

/* --- results that are not adjacent ------------------------------------------------------------ */

struct pixels {
    int H, W, step, oy, ox;
    divisor C, ny, nx;
};

template <typename T> __global__ void place_kernel(T *to, const T *from, pixels g, index32 first, bool same, index32 n)
{
    EACH(k, n) {
        index32 b = k;
        const index32 c = split(b, g.C);
        b += first;
        const int j = split(b, g.nx), i = split(b, g.ny);
        const int y = g.oy + i * g.step, x = g.ox + j * g.step;
        T word = {};
        if (from) word = from[same ? c : k];
        to[(((int64_t)b * g.H + y) * g.W + x) * g.C.by + c] = word;
    }
}

extern "C" cudaError_t cuda_conv_scatter(void *to, const void *from, const struct pixel_grid *g, int64_t first,
                                         int64_t rows, bool same, int size, int access, cudaStream_t stream)
{
    const int bytes = access;
    if (g->C * size % bytes) return cudaErrorInvalidValue;
    if (misaligned(access, to, from)) return cudaErrorMisalignedAddress;
    const int64_t C = g->C * size / bytes, n = rows * C;
    if (!fits(n) || !fits(first + rows)) return cudaErrorInvalidValue;
    const pixels at = {(int)g->H,  (int)g->W,     (int)g->step,      (int)g->oy,
                       (int)g->ox, divisor_of(C), divisor_of(g->ny), divisor_of(g->nx)};
    BY_WORD(bytes, (place_kernel<word><<<grid_for(n), BLOCK, 0, stream>>>((word *)to, (const word *)from, at,
                                                                          (index32)first, same, (index32)n)));
    return cudaGetLastError();
}

/* A patch is `side` runs, one in each of its lines. Patch p is number j = p mod W2 in the row of
 * patches p / W2, and a row of patches is `side` lines of W2 runs. */
struct tiles {
    divisor W2, side, run;
};

template <typename T> __global__ void untile_kernel(T *to, const T *from, tiles g, index32 first, index32 n)
{
    EACH(k, n) {
        index32 p = k;
        const index32 off = split(p, g.run), a = split(p, g.side);
        p += first;
        const index32 j = split(p, g.W2);
        to[(((int64_t)p * g.side.by + a) * g.W2.by + j) * g.run.by + off] = from[k];
    }
}

extern "C" cudaError_t cuda_conv_untile(void *to, const void *from, int64_t W2, int64_t side, int64_t C, int64_t first,
                                        int64_t rows, int size, int access, cudaStream_t stream)
{
    const int bytes = access;
    if (side * C * size % bytes) return cudaErrorInvalidValue;
    if (misaligned(access, to, from)) return cudaErrorMisalignedAddress;
    const int64_t run = side * C * size / bytes, n = rows * side * run;
    if (!fits(n) || !fits(first + rows)) return cudaErrorInvalidValue;
    const tiles at = {divisor_of(W2), divisor_of(side), divisor_of(run)};
    BY_WORD(bytes, (untile_kernel<word><<<grid_for(n), BLOCK, 0, stream>>>((word *)to, (const word *)from, at,
                                                                           (index32)first, (index32)n)));
    return cudaGetLastError();
}

template <typename T> __global__ void repeat_kernel(T *to, const T *x, index32 C, index32 n)
{
    EACH(k, n) to[k] = x[k % C];
}

extern "C" cudaError_t cuda_conv_repeat(void *to, const void *x, int64_t times, int64_t C, int size,
                                        cudaStream_t stream)
{
    const int64_t n = times * C;
    if (!fits(n)) return cudaErrorInvalidValue;
    BY_WORD(size, (repeat_kernel<word>
                   <<<grid_for(n), BLOCK, 0, stream>>>((word *)to, (const word *)x, (index32)C, (index32)n)));
    return cudaGetLastError();
}
