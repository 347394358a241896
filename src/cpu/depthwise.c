/*
 * depthwise.c: convolutions in which each channel has a kernel of its own.
 *
 * A few multiplications per element, so memory sets the pace: a block of results is
 * made while its piece of the map is in the first caches, and each load serves four
 * results. Channels are the vector lanes.
 *
 *     block      LINES x ACROSS results x DEEP channels
 *     its piece  (LINES-1) step + ky lines of (ACROSS-1) step + kx pixels
 *
 * The piece is read where it lies when it is f32 and wholly inside the map. Otherwise
 * it is staged: as f32, with its zeros around, so that the loops know no borders.
 *
 * Same bits for any thread count: a result is made by one thread, taps in order. The
 * weights' gradient is summed over fixed blocks of lines, and those are added in order.
 *
 *     work, results:   [weights [taps][C] per phase | bias [C] | stage of thread 0 | 1 | ...]
 *     work, gradient:  [partial sums [blocks][taps][C] | their sum | stage of thread 0 | ...]
 */
#pragma GCC optimize("fp-contract=fast")

#include "cpu/conv.h"

#include <omp.h>
#include <string.h>

#include "cpu/rows.h"

enum { LINES = 4, ACROSS = 16, DEEP = 64 };

typedef float quad __attribute__((vector_size(16)));
typedef float quad_mem __attribute__((vector_size(16), aligned(4), may_alias));

static inline quad quad_load(const float *p) { return *(const quad_mem *)p; }
static inline void quad_store(float *p, quad x) { *(quad_mem *)p = x; }

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

/* --- a piece of a map --------------------------------------------------------------------- */

/* f32 elements at (line, pixel, channel): at[line * row + pixel * pixel + channel]. */
struct piece {
    const float *at;
    int64_t row, pixel;
};

static int64_t stage_floats(int64_t ky, int64_t kx, int64_t step)
{
    return ((LINES - 1) * step + ky) * ((ACROSS - 1) * step + kx) * DEEP;
}

/* Lines y .., pixels x .. and channels c .. of image b; zeros outside. */
static struct piece piece_of(const struct operand *map, int64_t b, int64_t y, int64_t lines, int64_t x, int64_t pixels,
                             int64_t c, int64_t channels, float *stage)
{
    const int64_t H = map->dim[1], W = map->dim[2], C = map->dim[3];
    if (map->dtype == DT_F32 && y >= 0 && x >= 0 && y + lines <= H && x + pixels <= W)
        return (struct piece){(const float *)map->data + ((b * H + y) * W + x) * C + c, W * C, C};
    for (int64_t i = 0; i < lines; i++)
        for (int64_t j = 0; j < pixels; j++) {
            float *to = stage + (i * pixels + j) * channels;
            if (y + i < 0 || y + i >= H || x + j < 0 || x + j >= W) {
                memset(to, 0, (size_t)channels * sizeof *to);
                continue;
            }
            const int64_t at = ((b * H + y + i) * W + x + j) * C + c;
            dtype_convert(to, DT_F32, (const char *)map->data + at * dtype_size(map->dtype), map->dtype, channels);
        }
    return (struct piece){stage, pixels * channels, channels};
}

/* --- results ------------------------------------------------------------------------------------ */

/* `count` neighbouring results, n channels: sums over the taps, first to last. `in` is
 * the first result's first tap. Constant bounds make it registers and straight code. */
INLINE void taps_sum(int count, int64_t ky, int64_t kx, int64_t step, float *to, int64_t to_pixel, const struct piece *in,
                     const float *w, int64_t w_tap, const float *bias, int64_t n)
{
    int64_t c = 0;
    for (; c + 4 <= n; c += 4) {
        quad sum[4], first = bias ? quad_load(bias + c) : (quad){0};
        UNROLL for (int i = 0; i < count; i++) sum[i] = first;
        UNROLL for (int64_t a = 0; a < ky; a++)
            UNROLL for (int64_t b = 0; b < kx; b++) {
                const float *at = in->at + a * in->row + b * in->pixel + c;
                quad x = quad_load(w + (a * kx + b) * w_tap + c);
                UNROLL for (int i = 0; i < count; i++) sum[i] += quad_load(at + i * step * in->pixel) * x;
            }
        UNROLL for (int i = 0; i < count; i++) quad_store(to + i * to_pixel + c, sum[i]);
    }
    for (; c < n; c++)
        for (int i = 0; i < count; i++) {
            float sum = bias ? bias[c] : 0;
            for (int64_t a = 0; a < ky; a++)
                for (int64_t b = 0; b < kx; b++)
                    sum += in->at[a * in->row + (i * step + b) * in->pixel + c] * w[(a * kx + b) * w_tap + c];
            to[i * to_pixel + c] = sum;
        }
}

/* One sweep with its weights; what a block needs to know. */
struct depth {
    struct sweep s;
    const float *w;    /* [taps][C] */
    const float *bias; /* [C]; NULL: none */
    const struct operand *in, *out;
};

/* Four results or one. */
INLINE void taps_group(const struct depth *d, int64_t ky, int64_t kx, int64_t step, int count, float *to, int64_t to_pixel,
                       const struct piece *in, int64_t c, int64_t n)
{
    const int64_t C = d->out->dim[3];
    const float *bias = d->bias ? d->bias + c : NULL;
    if (count == 4) taps_sum(4, ky, kx, step, to, to_pixel, in, d->w + c, C, bias, n);
    else taps_sum(1, ky, kx, step, to, to_pixel, in, d->w + c, C, bias, n);
}

static void taps_any(const struct depth *d, int count, float *to, int64_t to_pixel, const struct piece *in, int64_t c, int64_t n)
{
    const struct sweep *s = &d->s;
    if (s->ky == 3 && s->kx == 3 && s->step == 1) taps_group(d, 3, 3, 1, count, to, to_pixel, in, c, n);
    else if (s->ky == 3 && s->kx == 3 && s->step == 2) taps_group(d, 3, 3, 2, count, to, to_pixel, in, c, n);
    else taps_group(d, s->ky, s->kx, s->step, count, to, to_pixel, in, c, n);
}

/* Results (i, j .. j+nj) of image b, channels c .. c+n, from their piece. Narrow results
 * pass through a buffer. */
static void line_run(const struct depth *d, int64_t b, int64_t i, int64_t j, int64_t nj, int64_t c, int64_t n, struct piece in)
{
    const struct sweep *s = &d->s;
    const struct operand *out = d->out;
    const int64_t C = out->dim[3], apart = s->out_step * C;
    int64_t at = ((b * s->out_H + s->oy + i * s->out_step) * s->out_W + s->ox + j * s->out_step) * C + c;
    float buffer[4 * DEEP];
    for (int64_t k = 0; k < nj;) {
        const int count = nj - k >= 4 ? 4 : 1;
        if (out->dtype == DT_F32) {
            taps_any(d, count, (float *)out->data + at, apart, &in, c, n);
        } else {
            taps_any(d, count, buffer, DEEP, &in, c, n);
            for (int r = 0; r < count; r++)
                dtype_convert((char *)out->data + (at + r * apart) * dtype_size(out->dtype), out->dtype, buffer + r * DEEP,
                              DT_F32, n);
        }
        in.at += count * s->step * in.pixel;
        at += count * apart;
        k += count;
    }
}

/* Lines i0 .. of image b: all of a sweep's results there. */
static void lines_run(const struct depth *d, int64_t b, int64_t i0, float *stage)
{
    const struct sweep *s = &d->s;
    const int64_t C = d->out->dim[3], ni = min_i64(LINES, s->ny - i0);
    for (int64_t j = 0; j < s->nx && ni > 0; j += ACROSS)
        for (int64_t c = 0; c < C; c += DEEP) {
            const int64_t nj = min_i64(ACROSS, s->nx - j), n = min_i64(DEEP, C - c);
            struct piece in = {stage, 0, 0}; /* never read where there are no taps */
            if (s->ky > 0 && s->kx > 0)
                in = piece_of(d->in, b, s->y0 + i0 * s->step, (ni - 1) * s->step + s->ky, s->x0 + j * s->step,
                              (nj - 1) * s->step + s->kx, c, n, stage);
            for (int64_t i = 0; i < ni; i++, in.at += s->step * in.row) line_run(d, b, i0 + i, j, nj, c, n, in);
        }
}

/* The forward's taps bound a phase's. */
static int64_t stage_of(const struct conv *n, bool backward)
{
    return stage_floats(n->kh, n->kw, backward ? 1 : n->stride);
}

/* Floats, rounded so that each part begins on a cache line. */
static int64_t part(int64_t floats) { return (floats + 15) / 16 * 16; }

uint64_t depthwise_workspace(const struct conv *n, bool backward, int threads)
{
    return (uint64_t)(part(n->kh * n->kw * n->C) + part(n->C) + threads * part(stage_of(n, backward))) * sizeof(float);
}

/* Lines i .. of every sweep: of the forward's one, or of all phases, which read the same
 * lines of dy. Their weights lie one after the other. */
static void depthwise_lines(const struct launch *l, const struct conv *n, bool backward, int64_t b, int64_t i, float *weights,
                            const float *bias, float *stage)
{
    const int64_t phases = backward ? n->stride : 1;
    for (int64_t r = 0; r < phases * phases; r++) {
        struct depth d = {.s = backward ? sweep_backward(n, r / phases, r % phases) : sweep_forward(n), .w = weights,
                          .bias = bias, .in = &l->in[0], .out = &l->out[0]};
        lines_run(&d, b, i, stage);
        weights += d.s.ky * d.s.kx * n->C;
    }
}

void depthwise_run(const struct launch *l, const struct conv *n, bool backward)
{
    const int64_t phases = backward ? n->stride : 1, C = n->C;
    float *weights = l->work, *bias = weights + part(n->kh * n->kw * C), *stages = bias + part(C), *at = weights;
    int64_t lines = 0;
    for (int64_t r = 0; r < phases * phases; r++) {
        const struct sweep s = backward ? sweep_backward(n, r / phases, r % phases) : sweep_forward(n);
        conv_weights(at, 1, C, &l->in[1], &s, l->threads);
        at += s.ky * s.kx * C;
        lines = max_i64(lines, s.ny);
    }
    if (launch_has(l, 2)) dtype_convert(bias, DT_F32, l->in[2].data, l->in[2].dtype, C);
    const int64_t groups = (lines + LINES - 1) / LINES;
#pragma omp parallel for num_threads(l->threads) schedule(dynamic, 1)
    for (int64_t i = 0; i < n->B * groups; i++)
        depthwise_lines(l, n, backward, i / groups, i % groups * LINES, weights, launch_has(l, 2) ? bias : NULL,
                        stages + omp_get_thread_num() * part(stage_of(n, backward)));
}

/* --- the gradient of the weights ------------------------------------------------------------------- */

/* sum[tap * tap_step + c] += dy . x over ni x nj results. ky and kx are constants, at most
 * 3 x 3: all taps' sums stay in registers. */
INLINE void taps_product(int64_t ky, int64_t kx, int64_t step, float *sum, int64_t tap_step, const struct piece *dy,
                         const struct piece *x, int64_t ni, int64_t nj, int64_t n)
{
    int64_t c = 0;
    for (; c + 4 <= n; c += 4) {
        quad total[9] = {0};
        for (int64_t i = 0; i < ni; i++)
            for (int64_t j = 0; j < nj; j++) {
                quad d = quad_load(dy->at + i * dy->row + j * dy->pixel + c);
                const float *at = x->at + i * step * x->row + j * step * x->pixel + c;
                UNROLL for (int64_t a = 0; a < ky; a++)
                    UNROLL for (int64_t b = 0; b < kx; b++)
                        total[a * kx + b] += d * quad_load(at + a * x->row + b * x->pixel);
            }
        UNROLL for (int64_t t = 0; t < ky * kx; t++)
            quad_store(sum + t * tap_step + c, quad_load(sum + t * tap_step + c) + total[t]);
    }
    for (; c < n; c++)
        for (int64_t t = 0; t < ky * kx; t++) {
            float total = 0;
            for (int64_t i = 0; i < ni; i++)
                for (int64_t j = 0; j < nj; j++)
                    total += dy->at[i * dy->row + j * dy->pixel + c] *
                             x->at[(i * step + t / kx) * x->row + (j * step + t % kx) * x->pixel + c];
            sum[t * tap_step + c] += total;
        }
}

/* One tap after another where the kernel is not 3 x 3. */
static void block_product(const struct sweep *s, float *sum, int64_t tap_step, const struct piece *dy, const struct piece *x,
                          int64_t ni, int64_t nj, int64_t n)
{
    if (s->ky == 3 && s->kx == 3) {
        if (s->step == 1) taps_product(3, 3, 1, sum, tap_step, dy, x, ni, nj, n);
        else taps_product(3, 3, s->step, sum, tap_step, dy, x, ni, nj, n);
        return;
    }
    for (int64_t t = 0; t < s->ky * s->kx; t++) {
        struct piece at = *x;
        at.at += t / s->kx * x->row + t % s->kx * x->pixel;
        taps_product(1, 1, s->step, sum + t * tap_step, tap_step, dy, &at, ni, nj, n);
    }
}

/* Lines i0 .. i0+ni of image b of dy, added to sum [taps][C]. */
static void lines_product(const struct launch *l, const struct sweep *s, int64_t b, int64_t i0, int64_t ni, float *sum,
                          float *stage)
{
    const struct operand *dy = &l->in[0], *x = &l->in[1];
    const int64_t C = x->dim[3];
    float *stage_dy = stage + stage_floats(s->ky, s->kx, s->step);
    for (int64_t j = 0; j < s->nx; j += ACROSS)
        for (int64_t c = 0; c < C; c += DEEP) {
            const int64_t nj = min_i64(ACROSS, s->nx - j), n = min_i64(DEEP, C - c);
            const struct piece d = piece_of(dy, b, i0, ni, j, nj, c, n, stage_dy);
            const struct piece p = piece_of(x, b, s->y0 + i0 * s->step, (ni - 1) * s->step + s->ky, s->x0 + j * s->step,
                                            (nj - 1) * s->step + s->kx, c, n, stage);
            block_product(s, sum + c, C, &d, &p, ni, nj, n);
        }
}

/* Groups of LINES lines of an image; a block is some of them in a row. */
static struct row_blocks dw_blocks(const struct conv *n)
{
    const int64_t groups = n->B * ((n->H2 + LINES - 1) / LINES), each = max_i64(2, (groups + 63) / 64);
    return (struct row_blocks){.n = (groups + each - 1) / each, .each = each};
}

static int64_t dw_stage(const struct conv *n)
{
    return part(stage_floats(n->kh, n->kw, n->stride) + LINES * ACROSS * DEEP);
}

uint64_t depthwise_dw_workspace(const struct conv *n, int threads)
{
    const int64_t sums = part(n->kh * n->kw * n->C);
    return (uint64_t)((dw_blocks(n).n + 1) * sums + threads * dw_stage(n)) * sizeof(float);
}

void depthwise_dw_run(const struct launch *l, const struct conv *n)
{
    const struct sweep s = sweep_forward(n);
    const struct row_blocks blocks = dw_blocks(n);
    const int64_t sums = part(n->kh * n->kw * n->C), per_image = (n->H2 + LINES - 1) / LINES;
    float *partial = l->work, *total = partial + blocks.n * sums, *stages = total + sums;
#pragma omp parallel for num_threads(l->threads) schedule(dynamic, 1)
    for (int64_t k = 0; k < blocks.n; k++) {
        float *sum = partial + k * sums;
        memset(sum, 0, (size_t)sums * sizeof *sum);
        for (int64_t g = k * blocks.each; g < min_i64((k + 1) * blocks.each, n->B * per_image); g++) {
            const int64_t i0 = g % per_image * LINES;
            lines_product(l, &s, g / per_image, i0, min_i64(LINES, n->H2 - i0), sum,
                          stages + omp_get_thread_num() * dw_stage(n));
        }
    }
    row_combine(total, partial, blocks.n, sums, false, l->threads);
    conv_weights_back(l->out[0].data, total, 1, n->C, n, launch_has(l, 2), l->threads);
}
