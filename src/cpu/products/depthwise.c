/*
 * depthwise.c: depthwise convolutions: each channel has its own kernel.
 *
 * There are few multiplications per element, so memory access determines the speed. A block of
 * results is computed from a staged copy of its region of the map:
 *
 *     block   LINES x ACROSS results x DEEP channels
 *     stage   [(LINES-1) step + ky][(ACROSS-1) step + kx][PITCH]  f32, zeros outside the map
 *
 * The copy makes all loops uniform: no borders, one dtype, strides known at compile time, and
 * adjacent lines, where the lines of a map with 2^n elements per line would map to the same cache
 * sets. Channels are the vector lanes; the stage, the weights and the sums are padded to whole
 * blocks of DEEP, so that loops advance by four.
 *
 * Bit-identical for any thread count: a result is computed by one thread, taps in order. The
 * gradient of the weights is summed over fixed blocks of lines, which are added in order.
 *
 *     work, results:   [weights of each sweep | bias | stage of thread 0 | 1 | ...]
 *     work, gradient:  [sums of each block of lines | their sum | stage, dy of thread 0 | ...]
 *     weights, sums:   [channels / DEEP][taps][DEEP]
 */
#pragma GCC optimize("fp-contract=fast")

#include "cpu/products/conv.h"

#include <omp.h>

/* The pixels of a stage are PITCH floats apart: loads of neighbouring pixels then use different
 * cache banks. */
enum { LINES = 8, ACROSS = 16, DEEP = 64, PITCH = DEEP + 4 };

typedef float quad __attribute__((vector_size(16)));
typedef float quad_mem __attribute__((vector_size(16), aligned(4), may_alias));

static inline quad quad_load(const float *p) { return *(const quad_mem *)p; }
static inline void quad_store(float *p, quad x) { *(quad_mem *)p = x; }

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

static int64_t padded(int64_t C) { return ceil_div(C, DEEP) * DEEP; }

/* --- the stage ---------------------------------------------------------------------------- */

/* Returns the floats from line to line. */
INLINE int64_t stage_row(int64_t kx, int64_t step) { return ((ACROSS - 1) * step + kx) * PITCH; }

static int64_t stage_floats(int64_t ky, int64_t kx, int64_t step)
{
    return ((LINES - 1) * step + ky) * stage_row(kx, step);
}

/* Copies n elements of the map as f32, then zeros to a multiple of four. A full pixel is copied
 * inline: a call would double the cost. */
static inline void stage_pixel(float *to, const struct operand *map, int64_t at, int64_t n)
{
    const float *from = (const float *)map->data + at;
    if (map->dtype == DT_F32 && n == DEEP)
        UNROLL for (int64_t c = 0; c < DEEP; c += 4) quad_store(to + c, quad_load(from + c));
    else if (map->dtype == DT_F32) memcpy(to, from, (size_t)n * sizeof *to);
    else dtype_convert(to, DT_F32, (const char *)map->data + at * dtype_size(map->dtype), map->dtype, n);
    for (; n % 4; n++) to[n] = 0;
}

/* Copies lines y .., pixels x .. and channels c .. of image b to the stage; zeros outside. */
static void stage_fill(float *stage, int64_t row, const struct operand *map, int64_t b, int64_t y, int64_t lines,
                       int64_t x, int64_t pixels, int64_t c, int64_t n)
{
    const int64_t H = map->dim[1], W = map->dim[2], C = map->dim[3];
    for (int64_t i = 0; i < lines; i++, stage += row) {
        const bool inside = y + i >= 0 && y + i < H;
        for (int64_t j = 0; j < pixels; j++) {
            if (inside && x + j >= 0 && x + j < W)
                stage_pixel(stage + j * PITCH, map, ((b * H + y + i) * W + x + j) * C + c, n);
            else
                memset(stage + j * PITCH, 0, (size_t)ceil_div(n, 4) * 16);
        }
    }
}

/* --- results ---------------------------------------------------------------------------------- */

/* One sweep with its weights: the parameters of a block. */
struct depth {
    struct sweep s;
    const float *w;    /* [blocks of channels][taps][DEEP] */
    const float *bias; /* [padded C]; NULL: none */
    const struct operand *in, *out;
};

/* Computes `count` neighbouring results of four channels: sums over the taps, first to last. Eight
 * at a time are enough to hide the latency of a multiplication. With constant bounds it compiles to
 * straight-line code in registers, in which a load serves every result that uses it. */
INLINE void taps_sum(int count, int64_t ky, int64_t kx, int64_t step, float *to, int64_t to_pixel, const float *in,
                     const quad *w, quad first)
{
    quad sum[8];
    UNROLL for (int i = 0; i < count; i++) sum[i] = first;
    UNROLL for (int64_t a = 0; a < ky; a++)
        UNROLL for (int64_t b = 0; b < kx; b++)
            UNROLL for (int i = 0; i < count; i++)
                sum[i] += quad_load(in + a * stage_row(kx, step) + (i * step + b) * PITCH) * w[a * kx + b];
    UNROLL for (int i = 0; i < count; i++, to += to_pixel) quad_store(to, sum[i]);
}

/* Computes nj results of n channels, in fours, by a kernel of constant size: its weights stay in
 * registers along the line. */
INLINE void line_fixed(int64_t ky, int64_t kx, int64_t step, float *to, int64_t to_pixel, const float *in,
                       const float *w, const float *bias, int64_t nj, int64_t n)
{
    for (int64_t c = 0; c < n; c += 4) {
        quad weight[9], first = bias ? quad_load(bias + c) : (quad){0};
        UNROLL for (int64_t t = 0; t < ky * kx; t++) weight[t] = quad_load(w + t * DEEP + c);
        const float *at = in + c;
        float *out = to + c;
        int64_t j = 0;
        for (; j + 8 <= nj; j += 8, at += 8 * step * PITCH, out += 8 * to_pixel)
            taps_sum(8, ky, kx, step, out, to_pixel, at, weight, first);
        for (; j < nj; j++, at += step * PITCH, out += to_pixel)
            taps_sum(1, ky, kx, step, out, to_pixel, at, weight, first);
    }
}

/* Does as line_fixed for any kernel size: result by result. */
static void line_any(int64_t ky, int64_t kx, int64_t step, float *to, int64_t to_pixel, const float *in, const float *w,
                     const float *bias, int64_t nj, int64_t n)
{
    for (int64_t j = 0; j < nj; j++, to += to_pixel, in += step * PITCH)
        for (int64_t c = 0; c < n; c += 4) {
            quad sum = bias ? quad_load(bias + c) : (quad){0};
            for (int64_t a = 0; a < ky; a++)
                for (int64_t b = 0; b < kx; b++)
                    sum += quad_load(in + a * stage_row(kx, step) + b * PITCH + c) *
                           quad_load(w + (a * kx + b) * DEEP + c);
            quad_store(to + c, sum);
        }
}

/* Computes nj results of n channels, with fixed code for the common kernel sizes: 3x3 at both
 * strides, and the phases of a 3x3 of stride 2. */
static void line_sum(const struct sweep *s, float *to, int64_t to_pixel, const float *in, const float *w,
                     const float *bias, int64_t nj, int64_t n)
{
    const int64_t kind = s->step * 100 + s->ky * 10 + s->kx;
    switch (s->ky < 10 && s->kx < 10 ? kind : 0) {
    case 133: line_fixed(3, 3, 1, to, to_pixel, in, w, bias, nj, n); return;
    case 233: line_fixed(3, 3, 2, to, to_pixel, in, w, bias, nj, n); return;
    case 122: line_fixed(2, 2, 1, to, to_pixel, in, w, bias, nj, n); return;
    case 121: line_fixed(2, 1, 1, to, to_pixel, in, w, bias, nj, n); return;
    case 112: line_fixed(1, 2, 1, to, to_pixel, in, w, bias, nj, n); return;
    case 111: line_fixed(1, 1, 1, to, to_pixel, in, w, bias, nj, n); return;
    default: line_any(s->ky, s->kx, s->step, to, to_pixel, in, w, bias, nj, n); return;
    }
}

/* Computes results (i, j .. j+nj) of image b, channels c .. c+n, from the stage's line. Results
 * that are not f32, or not a multiple of four, go through a buffer. */
static void line_run(const struct depth *d, int64_t b, int64_t i, int64_t j, int64_t nj, int64_t c, int64_t n,
                     const float *in)
{
    const struct sweep *s = &d->s;
    const struct operand *out = d->out;
    const int64_t C = out->dim[3], apart = s->out_step * C;
    const int64_t at = ((b * s->out_H + s->oy + i * s->out_step) * s->out_W + s->ox + j * s->out_step) * C + c;
    const float *w = d->w + c * s->ky * s->kx, *bias = d->bias ? d->bias + c : NULL;
    if (out->dtype == DT_F32 && n % 4 == 0) {
        line_sum(s, (float *)out->data + at, apart, in, w, bias, nj, n);
        return;
    }
    float buffer[ACROSS * DEEP];
    line_sum(s, buffer, DEEP, in, w, bias, nj, n);
    for (int64_t k = 0; k < nj; k++)
        dtype_convert((char *)out->data + (at + k * apart) * dtype_size(out->dtype), out->dtype, buffer + k * DEEP,
                      DT_F32, n);
}

/* Computes the block of a sweep with first result (i0,j0) of image b, channels c .. c+n. */
static void block_run(const struct depth *d, int64_t b, int64_t i0, int64_t j0, int64_t c, int64_t n, float *stage)
{
    const struct sweep *s = &d->s;
    const int64_t ni = min_i64(LINES, s->ny - i0), nj = min_i64(ACROSS, s->nx - j0), row = stage_row(s->kx, s->step);
    if (ni <= 0 || nj <= 0) return;
    if (s->ky > 0 && s->kx > 0)
        stage_fill(stage, row, d->in, b, s->y0 + i0 * s->step, (ni - 1) * s->step + s->ky, s->x0 + j0 * s->step,
                   (nj - 1) * s->step + s->kx, c, n);
    for (int64_t i = 0; i < ni; i++) line_run(d, b, i0 + i, j0, nj, c, n, stage + i * s->step * row);
}

/* Rounds a number of floats up, so that each section begins on a cache line. */
static int64_t align_floats(int64_t floats) { return (floats + 15) / 16 * 16; }

/* Returns the floats of a stage. The whole kernel is an upper bound of a phase's taps. */
static int64_t stage_of(const struct conv *n, bool backward)
{
    return align_floats(stage_floats(n->kh, n->kw, backward ? 1 : n->stride));
}

uint64_t depthwise_workspace(const struct conv *n, bool backward, int threads)
{
    return (uint64_t)((n->kh * n->kw + 1) * padded(n->C) + threads * stage_of(n, backward)) * sizeof(float);
}

/* Returns the number of sweeps: one in the forward, all phases in the backward. */
static int64_t sweep_count(const struct conv *n, bool backward) { return backward ? n->stride * n->stride : 1; }

static struct sweep sweep_at(const struct conv *n, bool backward, int64_t r)
{
    return backward ? sweep_backward(n, r / n->stride, r % n->stride) : sweep_forward(n);
}

/* Arranges a sweep's weights by blocks of channels; returns the number of floats. */
static int64_t weights_fill(float *to, const struct operand *w, const struct sweep *s, int64_t C, int threads)
{
    const int64_t taps = s->ky * s->kx;
    memset(to, 0, (size_t)(taps * padded(C)) * sizeof *to);
    for (int64_t c = 0; c < C; c += DEEP) {
        struct operand some = *w;
        some.data = (char *)w->data + c * w->dim[2] * w->dim[3] * dtype_size(w->dtype);
        some.dim[0] = min_i64(DEEP, C - c);
        conv_weights(to + c * taps, 1, DEEP, &some, s, threads);
    }
    return taps * padded(C);
}

/* Computes all results of every sweep at one block of the grid. Phases read the same region of dy,
 * so they are computed one after the other. */
static void block_sweeps(const struct launch *l, const struct conv *n, bool backward, int64_t b, int64_t i0, int64_t j0,
                      const float *weights, const float *bias, float *stage)
{
    for (int64_t c = 0; c < n->C; c += DEEP) {
        const float *w = weights;
        for (int64_t r = 0; r < sweep_count(n, backward); r++) {
            const struct depth d = {.s = sweep_at(n, backward, r), .w = w, .bias = bias, .in = &l->in[0],
                                    .out = &l->out[0]};
            block_run(&d, b, i0, j0, c, min_i64(DEEP, n->C - c), stage);
            w += d.s.ky * d.s.kx * padded(n->C);
        }
    }
}

void depthwise_run(const struct launch *l, const struct conv *n, bool backward)
{
    const int64_t C = padded(n->C);
    float *weights = l->work, *bias = weights + n->kh * n->kw * C, *stages = bias + C, *at = weights;
    int64_t down = 0, across = 0;
    for (int64_t r = 0; r < sweep_count(n, backward); r++) {
        const struct sweep s = sweep_at(n, backward, r);
        at += weights_fill(at, &l->in[1], &s, n->C, l->threads);
        down = max_i64(down, ceil_div(s.ny, LINES));
        across = max_i64(across, ceil_div(s.nx, ACROSS));
    }
    memset(bias, 0, (size_t)C * sizeof *bias);
    if (launch_has(l, 2)) dtype_convert(bias, DT_F32, l->in[2].data, l->in[2].dtype, n->C);
#pragma omp parallel for num_threads(l->threads) schedule(dynamic, 1)
    for (int64_t k = 0; k < n->B * down * across; k++)
        block_sweeps(l, n, backward, k / across / down, k / across % down * LINES, k % across * ACROSS, weights, bias,
                  stages + omp_get_thread_num() * stage_of(n, backward));
}

/* --- the gradient of the weights -------------------------------------------------------------- */

INLINE void taps_add(int64_t ky, int64_t kx, int64_t x_row, quad *sum, quad dy, const float *x)
{
    UNROLL for (int64_t a = 0; a < ky; a++)
        UNROLL for (int64_t b = 0; b < kx; b++) sum[a * kx + b] += dy * quad_load(x + a * x_row + b * PITCH);
}

/* Computes sum[tap][c] += dy . x over ni x nj results, both staged, n channels in fours. ky and kx
 * are constants, at most 3 x 3: all taps' sums stay in registers. x_row: floats between lines. */
INLINE void taps_product(int64_t ky, int64_t kx, int64_t step, int64_t x_row, float *sum, const float *dy,
                         const float *x, int64_t ni, int64_t nj, int64_t n)
{
    for (int64_t c = 0; c < n; c += 4) {
        quad even[9] = {0}, odd[9] = {0}; /* two chains per tap hide the latency */
        for (int64_t i = 0; i < ni; i++) {
            const float *d = dy + i * stage_row(1, 1) + c, *at = x + i * step * x_row + c;
            int64_t j = 0;
            for (; j + 2 <= nj; j += 2, d += 2 * PITCH, at += 2 * step * PITCH) {
                taps_add(ky, kx, x_row, even, quad_load(d), at);
                taps_add(ky, kx, x_row, odd, quad_load(d + PITCH), at + step * PITCH);
            }
            if (j < nj) taps_add(ky, kx, x_row, even, quad_load(d), at);
        }
        UNROLL for (int64_t t = 0; t < ky * kx; t++)
            quad_store(sum + t * DEEP + c, quad_load(sum + t * DEEP + c) + (even[t] + odd[t]));
    }
}

/* Adds a staged block's products to the sums of all taps; one tap after another if the kernel is
 * not 3 x 3. */
static void block_product(const struct sweep *s, float *sum, const float *dy, const float *x, int64_t ni, int64_t nj,
                          int64_t n)
{
    const int64_t row = stage_row(s->kx, s->step);
    if (s->ky == 3 && s->kx == 3 && s->step == 1) taps_product(3, 3, 1, stage_row(3, 1), sum, dy, x, ni, nj, n);
    else if (s->ky == 3 && s->kx == 3 && s->step == 2) taps_product(3, 3, 2, stage_row(3, 2), sum, dy, x, ni, nj, n);
    else
        for (int64_t a = 0; a < s->ky; a++)
            for (int64_t b = 0; b < s->kx; b++)
                taps_product(1, 1, s->step, row, sum + (a * s->kx + b) * DEEP, dy, x + a * row + b * PITCH, ni, nj, n);
}

/* Adds the products of lines i0 .. of image b of dy to sum [blocks of channels][taps][DEEP]. */
static void lines_product(const struct launch *l, const struct sweep *s, int64_t b, int64_t i0, float *sum,
                          float *stage)
{
    const struct operand *dy = &l->in[0], *x = &l->in[1];
    const int64_t C = x->dim[3], ni = min_i64(LINES, s->ny - i0);
    float *stage_dy = stage + align_floats(stage_floats(s->ky, s->kx, s->step));
    for (int64_t j = 0; j < s->nx; j += ACROSS)
        for (int64_t c = 0; c < C; c += DEEP) {
            const int64_t nj = min_i64(ACROSS, s->nx - j), n = min_i64(DEEP, C - c);
            stage_fill(stage_dy, stage_row(1, 1), dy, b, i0, ni, j, nj, c, n);
            stage_fill(stage, stage_row(s->kx, s->step), x, b, s->y0 + i0 * s->step, (ni - 1) * s->step + s->ky,
                       s->x0 + j * s->step, (nj - 1) * s->step + s->kx, c, n);
            block_product(s, sum + c * s->ky * s->kx, stage_dy, stage, ni, nj, n);
        }
}

/* Groups of LINES lines of an image; a block is several consecutive ones. */
static struct row_blocks dw_blocks(const struct conv *n)
{
    const int64_t groups = n->B * ceil_div(n->H2, LINES), each = max_i64(1, ceil_div(groups, 64));
    return (struct row_blocks){.n = ceil_div(groups, each), .each = each};
}

static int64_t dw_stage(const struct conv *n)
{
    return align_floats(stage_floats(n->kh, n->kw, n->stride)) + align_floats(stage_floats(1, 1, 1));
}

uint64_t depthwise_dw_workspace(const struct conv *n, int threads)
{
    const int64_t sums = n->kh * n->kw * padded(n->C);
    return (uint64_t)((dw_blocks(n).n + 1) * sums + threads * dw_stage(n)) * sizeof(float);
}

void depthwise_dw_run(const struct launch *l, const struct conv *n)
{
    const struct sweep s = sweep_forward(n);
    const struct row_blocks blocks = dw_blocks(n);
    const int64_t taps = n->kh * n->kw, sums = taps * padded(n->C), down = ceil_div(n->H2, LINES);
    float *partial = l->work, *total = partial + blocks.n * sums, *stages = total + sums;
#pragma omp parallel for num_threads(l->threads) schedule(dynamic, 1)
    for (int64_t k = 0; k < blocks.n; k++) {
        float *sum = partial + k * sums;
        memset(sum, 0, (size_t)sums * sizeof *sum);
        for (int64_t g = k * blocks.each; g < min_i64((k + 1) * blocks.each, n->B * down); g++)
            lines_product(l, &s, g / down, g % down * LINES, sum, stages + omp_get_thread_num() * dw_stage(n));
    }
    row_combine(&(struct operand){total, DT_F32, 1, {sums}, {1}}, partial, blocks.n, false, l->threads);
    for (int64_t c = 0; c < n->C; c += DEEP) {
        struct conv some = *n;
        some.O = min_i64(DEEP, n->C - c);
        conv_weights_back((float *)l->out[0].data + c * taps, total + c * taps, 1, DEEP, &some, launch_has(l, 2),
                          l->threads);
    }
}
