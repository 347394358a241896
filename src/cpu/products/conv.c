/*
 * conv.c: the kernels CONV, CONV_DX and CONV_DW: geometry, and the matrix products that compute
 * full convolutions. Depthwise ones are in depthwise.c.
 *
 * The matrix of patches (im2col), one row per result, [B ny nx, ky kx C], is never stored: the
 * product packs it panel by panel directly from the map (struct patches). With channels last, a
 * patch's row of kx pixels is one run of kx C elements:
 *
 *     map row   . . [c c c|c c c|c c c] . .      kx = 3, C = 3
 *     patch     [ ... a = 0 ... ][ a = 1 ][ a = 2 ]   K = ky kx C
 *
 *     CONV     y  = patches(x)  weights^T
 *     CONV_DX  dx = patches(dy) weights, a product per phase (graph/sweep.h)
 *     CONV_DW  dw = dy^T patches(x)
 *
 * A 1x1 kernel of stride 1 needs no patches: the maps are matrices. A kernel as large as its
 * stride, without padding, has patches that do not overlap: then dx is one product with rows that
 * are scattered to the pixels of their patch.
 *
 * Bit-identical for any thread count: gemm.h guarantees it and there are no other sums.
 *
 *     work: [weights in the order of taps, f32 | bias, f32 | the product's own]
 */
#include "cpu/products/conv.h"

#include "cpu/products/gemm.h"
#include "cpu/products/pack.h"

/* --- shapes -------------------------------------------------------------------------------- */

static struct conv conv_of(const union attr *attr, const int64_t *x, const int64_t *y, const int64_t *w)
{
    return (struct conv){.B = x[0], .H = x[1], .W = x[2], .C = x[3], .H2 = y[1], .W2 = y[2], .O = y[3], .depth = w[1],
                         .kh = w[2], .kw = w[3], .stride = attr->conv.stride, .pad = attr->conv.pad};
}

/* Reports whether the maps are matrices, and so is w. */
static bool conv_is_plain(const struct conv *n) { return n->kh == 1 && n->kw == 1 && n->stride == 1 && n->pad == 0; }

/* Reports whether patches cover x without gaps or overlap. */
static bool conv_is_tiling(const struct conv *n)
{
    return n->kh == n->stride && n->kw == n->stride && n->pad == 0 && n->H == n->H2 * n->stride &&
           n->W == n->W2 * n->stride;
}

static int64_t conv_taps(const struct conv *n) { return n->kh * n->kw; }
static int64_t conv_pixels(const struct conv *n) { return n->B * n->H2 * n->W2; } /* of y */

/* --- weights --------------------------------------------------------------------------------- */

/* Distributes channels c .. c+n of result o over the taps, from f32 [channels][kh][kw]. */
static void weights_deal(float *to, int64_t tap_step, const float *from, int64_t n, int64_t kh, int64_t kw,
                         const struct sweep *s)
{
    for (int64_t a = 0; a < s->ky; a++)
        for (int64_t b = 0; b < s->kx; b++) {
            const float *tap = from + (s->tap_y + a * s->tap_step) * kw + s->tap_x + b * s->tap_step;
            float *row = to + (a * s->kx + b) * tap_step;
            for (int64_t c = 0; c < n; c++) row[c] = tap[c * kh * kw];
        }
}

void conv_weights(float *to, int64_t o_step, int64_t tap_step, const struct operand *w, const struct sweep *s,
                  int threads)
{
    const int64_t O = w->dim[0], depth = w->dim[1], taps = w->dim[2] * w->dim[3];
    const int64_t most = max_i64(1, TAPS_MAX / taps);
#pragma omp parallel for num_threads(threads) schedule(static) if (O * depth * taps > 16384)
    for (int64_t o = 0; o < O; o++)
        for (int64_t c = 0; c < depth; c += most) {
            float scratch[TAPS_MAX];
            const int64_t n = min_i64(most, depth - c);
            const char *at = (const char *)w->data + (o * depth + c) * taps * dtype_size(w->dtype);
            if (w->dtype != DT_F32) dtype_convert(scratch, DT_F32, at, w->dtype, n * taps);
            weights_deal(to + o * o_step + c, tap_step, w->dtype == DT_F32 ? (const float *)at : scratch, n, w->dim[2],
                         w->dim[3], s);
        }
}

void conv_weights_back(float *dw, const float *from, int64_t o_step, int64_t tap_step, const struct conv *n, bool add,
                       int threads)
{
    const int64_t taps = conv_taps(n);
#pragma omp parallel for num_threads(threads) schedule(static) if (n->O * n->depth * taps > 16384)
    for (int64_t o = 0; o < n->O; o++)
        for (int64_t c = 0; c < n->depth; c++)
            for (int64_t t = 0; t < taps; t++) {
                float *to = dw + (o * n->depth + c) * taps + t, x = from[o * o_step + t * tap_step + c];
                *to = add ? *to + x : x;
            }
}

/* --- patches: the gathered operand ------------------------------------------------------------ */

struct patches {
    struct gather gather;
    const struct sweep *s;
    const char *data; /* [B,H,W,C] */
    enum dtype dtype;
    int64_t C;
};

/* Copies n elements of the map as f32. Runs are often a few pixels of few channels: a call would
 * cost more than the copy. */
static inline void patch_copy(float *to, const struct patches *p, int64_t at, int64_t n)
{
    if (p->dtype != DT_F32 || n >= 64) {
        dtype_convert(to, DT_F32, p->data + at * dtype_size(p->dtype), p->dtype, n);
        return;
    }
    const float *from = (const float *)p->data + at;
    for (; n >= 4; n -= 4, to += 4, from += 4) memcpy(to, from, 16);
    for (; n > 0; n--) *to++ = *from++;
}

static inline void patch_zero(float *to, int64_t n)
{
    for (int64_t i = 0; i < n; i++) to[i] = 0;
}

/* Copies elements off .. off+n of one row of a patch, kx C long, with first pixel (y,x); zeros
 * outside. */
static void patch_segment(float *to, const struct patches *p, int64_t b, int64_t y, int64_t x, int64_t off, int64_t n)
{
    const struct sweep *s = p->s;
    if (y < 0 || y >= s->H) {
        patch_zero(to, n);
        return;
    }
    int64_t base = ((b * s->H + y) * s->W + x) * p->C;
    int64_t from = max_i64(off, -x * p->C), end = min_i64(off + n, (s->W - x) * p->C);
    if (from >= end) {
        patch_zero(to, n);
        return;
    }
    patch_zero(to, from - off);
    patch_copy(to + (from - off), p, base + from, end - from);
    patch_zero(to + (end - off), off + n - end);
}

/* Gathers strips (see struct gather): row i is the patch of result i, in the order (b, i, j). */
static void patch_strips(const struct gather *g, int64_t i, int count, int64_t at, int64_t n, const float *row[],
                         float scratch[][GATHER_STRIP])
{
    const struct patches *p = (const struct patches *)g;
    const struct sweep *s = p->s;
    const int64_t run = s->kx * p->C, a0 = at / run, off0 = at % run;
    int64_t j = i % s->nx, r = i / s->nx % s->ny, b = i / s->nx / s->ny;
    for (int k = 0; k < count; k++) {
        int64_t y = s->y0 + r * s->step + a0, x = s->x0 + j * s->step, off = off0;
        bool inside = y >= 0 && y < s->H && x >= 0 && x + s->kx <= s->W;
        if (inside && p->dtype == DT_F32 && off + n <= run) {
            row[k] = (const float *)p->data + ((b * s->H + y) * s->W + x) * p->C + off;
        } else {
            row[k] = scratch[k];
            for (int64_t done = 0; done < n; y++, off = 0) {
                int64_t piece = min_i64(n - done, run - off);
                patch_segment(scratch[k] + done, p, b, y, x, off, piece);
                done += piece;
            }
        }
        if (++j == s->nx) j = 0, r++;
        if (r == s->ny) r = 0, b++;
    }
}

static struct patches patches_of(const struct sweep *s, const struct operand *map)
{
    return (struct patches){.gather = {patch_strips}, .s = s, .data = map->data, .dtype = map->dtype, .C = map->dim[3]};
}

static struct matrix patches_matrix(const struct patches *p)
{
    return (struct matrix){.dtype = p->dtype, .row = p->s->ky * p->s->kx * p->C, .column = 1, .gather = &p->gather};
}

/* --- scattering results that are not consecutive
 * ------------------------------------------------------- */

struct pixels {
    struct scatter scatter;
    const struct sweep *s;
    const struct operand *out; /* [B,out_H,out_W,C] */
};

static void pixel_put(const struct operand *out, int64_t at, int64_t n, const float *sum)
{
    char *to = (char *)out->data + at * dtype_size(out->dtype);
    if (out->dtype == DT_F32) memcpy(to, sum, (size_t)n * sizeof *sum);
    else dtype_convert(to, out->dtype, sum, DT_F32, n);
}

/* Stores results of a phase: row i is the pixel of result i. */
static void pixel_store(const struct scatter *scatter, int64_t i, int64_t j, int64_t n, const float *sum)
{
    const struct pixels *p = (const struct pixels *)scatter;
    const struct sweep *s = p->s;
    const int64_t r = i / s->nx, y = s->oy + r % s->ny * s->out_step, x = s->ox + i % s->nx * s->out_step;
    pixel_put(p->out, ((r / s->ny * s->out_H + y) * s->out_W + x) * p->out->dim[3] + j, n, sum);
}

/* Stores results of tiling patches, `s` the forward sweep: row i is patch i, [kh][kw C]; its rows
 * are not adjacent. */
static void tile_store(const struct scatter *scatter, int64_t i, int64_t j, int64_t n, const float *sum)
{
    const struct pixels *p = (const struct pixels *)scatter;
    const struct sweep *s = p->s;
    const int64_t C = p->out->dim[3], run = s->kx * C, r = i / s->nx;
    for (int64_t done = 0; done < n;) {
        int64_t a = (j + done) / run, off = (j + done) % run, piece = min_i64(n - done, run - off);
        int64_t y = r % s->ny * s->step + a, x = i % s->nx * s->step;
        pixel_put(p->out, ((r / s->ny * s->H + y) * s->W + x) * C + off, piece, sum + done);
        done += piece;
    }
}

/* --- workspace -------------------------------------------------------------------------------- */

/* Returns the bytes of a section of weights or of a bias; the product's section follows. */
static uint64_t weights_bytes(int64_t floats) { return align_up((uint64_t)floats * sizeof(float), 64); }

static struct gemm gemm_at(int64_t M, int64_t N, int64_t K) { return (struct gemm){.M = M, .N = N, .K = K}; }

static void set_bias(struct gemm *g, const struct launch *l)
{
    if (!launch_has(l, 2)) return;
    g->bias = l->in[2].data;
    g->bias_dtype = l->in[2].dtype;
}

static void gemm_after(const struct gemm *g, const struct launch *l, uint64_t used)
{
    gemm_run(g, (char *)l->work + used, l->work_bytes - used, l->threads);
}

/* Returns a map as a matrix of pixels. */
static struct matrix map_matrix(const struct operand *x) { return (struct matrix){x->data, x->dtype, x->dim[3], 1}; }

/* --- CONV ------------------------------------------------------------------------------------- */

static bool conv_fits(const struct query *q, const struct tensor *w)
{
    return query_is_fast(q) && w->dim[2] * w->dim[3] <= TAPS_MAX;
}

static bool conv_match(const struct query *q) { return conv_fits(q, q->in[1]); }

static uint64_t conv_workspace(const struct query *q)
{
    const struct conv n = conv_of(q->attr, q->in[0]->dim, q->out[0]->dim, q->in[1]->dim);
    const int threads = q->profile->threads;
    if (conv_is_depthwise(&n)) return depthwise_workspace(&n, false, threads);
    const int64_t K = conv_taps(&n) * n.C;
    return (conv_is_plain(&n) ? 0 : weights_bytes(n.O * K)) +
           gemm_workspace(conv_pixels(&n), n.O, K, q->out[0]->dtype, threads);
}

static void conv_run(const struct launch *l)
{
    const struct operand *x = &l->in[0], *w = &l->in[1], *y = &l->out[0];
    const struct conv n = conv_of(l->attr, x->dim, y->dim, w->dim);
    if (conv_is_depthwise(&n)) {
        depthwise_run(l, &n, false);
        return;
    }
    const struct sweep s = sweep_forward(&n);
    const struct patches p = patches_of(&s, x);
    const int64_t K = conv_taps(&n) * n.C;
    struct gemm g = gemm_at(conv_pixels(&n), n.O, K);
    uint64_t used = 0;
    g.rows = portion_whole(l->portion, g.M);
    set_bias(&g, l);
    g.c = map_matrix(y);
    if (conv_is_plain(&n)) {
        g.a = map_matrix(x);
        g.b = (struct matrix){w->data, w->dtype, 1, K};
    } else {
        float *by_tap = l->work; // [O][taps][C]
        conv_weights(by_tap, K, n.C, w, &s, l->threads);
        used = weights_bytes(n.O * K);
        g.a = patches_matrix(&p);
        g.b = (struct matrix){by_tap, DT_F32, 1, K};
    }
    gemm_after(&g, l, used);
}

/* --- CONV_DX ---------------------------------------------------------------------------------- */

static bool conv_dx_match(const struct query *q) { return conv_fits(q, q->in[1]); }

/* Returns the maximum over the phases. Phase 0 has the most taps, and so the most weights. */
static uint64_t phases_workspace(const struct conv *n, enum dtype t, int threads)
{
    uint64_t most = 0;
    for (int64_t r = 0; r < n->stride * n->stride; r++) {
        const struct sweep s = sweep_backward(n, r / n->stride, r % n->stride);
        uint64_t need =
            gemm_workspace(s.B * s.ny * s.nx, n->C, s.ky * s.kx * n->O, n->stride == 1 ? t : DT_NONE, threads);
        if (need > most) most = need;
    }
    return weights_bytes(ceil_div(n->kh, n->stride) * ceil_div(n->kw, n->stride) * n->O * n->C) + most;
}

static uint64_t conv_dx_workspace(const struct query *q)
{
    const struct conv n = conv_of(q->attr, q->out[0]->dim, q->in[0]->dim, q->in[1]->dim);
    const int threads = q->profile->threads;
    const enum dtype t = q->out[0]->dtype;
    if (conv_is_depthwise(&n)) return depthwise_workspace(&n, true, threads);
    if (conv_is_plain(&n)) return gemm_workspace(conv_pixels(&n), n.C, n.O, t, threads);
    const int64_t N = conv_taps(&n) * n.C;
    if (conv_is_tiling(&n))
        return weights_bytes(n.O * N) + weights_bytes(N) + gemm_workspace(conv_pixels(&n), N, n.O, DT_NONE, threads);
    return phases_workspace(&n, t, threads);
}

/* Computes dx in one product: row i is the whole patch of pixel i of dy. The bias, per channel,
 * repeats with the taps. */
static void dx_tiling(const struct launch *l, const struct conv *n)
{
    const struct sweep s = sweep_forward(n);
    const struct pixels p = {{tile_store}, &s, &l->out[0]};
    const int64_t N = conv_taps(n) * n->C;
    float *by_tap = l->work, *bias = by_tap + weights_bytes(n->O * N) / sizeof(float); // [O][taps][C], [taps][C]
    struct gemm g = gemm_at(conv_pixels(n), N, n->O);
    conv_weights(by_tap, N, n->C, &l->in[1], &s, l->threads);
    if (launch_has(l, 2)) {
        for (int64_t t = 0; t < conv_taps(n); t++)
            dtype_convert(bias + t * n->C, DT_F32, l->in[2].data, l->in[2].dtype, n->C);
        g.bias = bias, g.bias_dtype = DT_F32;
    }
    g.a = map_matrix(&l->in[0]);
    g.b = (struct matrix){by_tap, DT_F32, N, 1};
    g.c = (struct matrix){.dtype = l->out[0].dtype, .row = N, .column = 1};
    g.scatter = &p.scatter;
    gemm_after(&g, l, weights_bytes(n->O * N) + weights_bytes(N));
}

static void dx_phase(const struct launch *l, const struct conv *n, const struct sweep *s)
{
    const struct patches patches = patches_of(s, &l->in[0]);
    const struct pixels p = {{pixel_store}, s, &l->out[0]};
    const int64_t taps = s->ky * s->kx;
    float *by_tap = l->work; // [taps][O][C]
    struct gemm g = gemm_at(s->B * s->ny * s->nx, n->C, taps * n->O);
    conv_weights(by_tap, n->C, n->O * n->C, &l->in[1], s, l->threads);
    set_bias(&g, l);
    g.a = patches_matrix(&patches);
    g.b = (struct matrix){by_tap, DT_F32, n->C, 1};
    g.c = map_matrix(&l->out[0]);
    if (n->stride > 1) g.scatter = &p.scatter;
    gemm_after(&g, l, weights_bytes(ceil_div(n->kh, n->stride) * ceil_div(n->kw, n->stride) * n->O * n->C));
}

static void conv_dx_run(const struct launch *l)
{
    const struct operand *dy = &l->in[0], *w = &l->in[1], *dx = &l->out[0];
    const struct conv n = conv_of(l->attr, dx->dim, dy->dim, w->dim);
    if (conv_is_depthwise(&n)) {
        depthwise_run(l, &n, true);
    } else if (conv_is_plain(&n)) {
        struct gemm g = gemm_at(conv_pixels(&n), n.C, n.O);
        g.a = map_matrix(dy), g.c = map_matrix(dx);
        g.b = (struct matrix){w->data, w->dtype, n.C, 1};
        set_bias(&g, l);
        gemm_after(&g, l, 0);
    } else if (conv_is_tiling(&n)) {
        dx_tiling(l, &n);
    } else {
        for (int64_t r = 0; r < n.stride * n.stride; r++) {
            const struct sweep s = sweep_backward(&n, r / n.stride, r % n.stride);
            dx_phase(l, &n, &s);
        }
    }
}

/* --- CONV_DW ---------------------------------------------------------------------------------- */

static bool conv_dw_match(const struct query *q) { return conv_fits(q, q->out[0]) && q->out[0]->dtype == DT_F32; }

static uint64_t conv_dw_workspace(const struct query *q)
{
    const struct conv n = conv_of(q->attr, q->in[1]->dim, q->in[0]->dim, q->out[0]->dim);
    const int threads = q->profile->threads;
    if (conv_is_depthwise(&n)) return depthwise_dw_workspace(&n, threads);
    const int64_t N = conv_taps(&n) * n.C;
    return (conv_is_plain(&n) ? 0 : weights_bytes(n.O * N)) + gemm_workspace(n.O, N, conv_pixels(&n), DT_F32, threads);
}

static void conv_dw_run(const struct launch *l)
{
    const struct operand *dy = &l->in[0], *x = &l->in[1];
    const struct conv n = conv_of(l->attr, x->dim, dy->dim, l->out[0].dim);
    const bool add = launch_has(l, 2);
    CHECK(!add || l->in[2].data == l->out[0].data, "the result is not in the accumulator's bytes");
    if (conv_is_depthwise(&n)) {
        depthwise_dw_run(l, &n);
        return;
    }
    const struct sweep s = sweep_forward(&n);
    const struct patches p = patches_of(&s, x);
    const int64_t N = conv_taps(&n) * n.C;
    struct gemm g = gemm_at(n.O, N, conv_pixels(&n));
    g.a = (struct matrix){dy->data, dy->dtype, 1, n.O};
    if (conv_is_plain(&n)) {
        g.b = map_matrix(x);
        g.c = (struct matrix){l->out[0].data, DT_F32, N, 1};
        g.add = add;
        gemm_after(&g, l, 0);
        return;
    }
    float *by_tap = l->work; // [O][taps][C]
    g.b = patches_matrix(&p);
    g.c = (struct matrix){by_tap, DT_F32, N, 1};
    gemm_after(&g, l, weights_bytes(n.O * N));
    conv_weights_back(l->out[0].data, by_tap, N, n.C, &n, add, l->threads);
}

CPU_KERNEL_WORK(CONV, conv);
CPU_KERNEL_WORK(CONV_DX, conv_dx);
CPU_KERNEL_WORK(CONV_DW, conv_dw);
