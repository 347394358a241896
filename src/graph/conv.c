/*
 * conv.c: the rules of convolutions: shapes, gradients, costs, and their sweeps (sweep.h).
 *
 * Maps are channels-last, [B,H,W,C]; weights are as published, [O,C/groups,kh,kw].
 * With zeros around x, and for each group of channels on its own,
 *
 *     y[b,i,j,o] = sum over u,v,c of x[b, i s + u - p, j s + v - p, c] w[o,c,u,v]
 *
 * It is linear in x and in w. The three ops are the partial derivatives of one trilinear form, so
 * the gradients of each one are the other two:
 *
 *     F(dy, x, w) = sum of dy[b,i,j,o] x[b, i s + u - p, j s + v - p, c] w[o,c,u,v]
 *     CONV = dF/d dy,  CONV_DX = dF/dx,  CONV_DW = dF/dw.
 *
 * A transposed convolution is CONV_DX whose "dy" is its input.
 */
#include <stdio.h>
#include <string.h>

#include "graph/rules.h"
#include "graph/sweep.h"

#define REQUIRE(cond, ...)                                    \
    do {                                                      \
        if (!(cond)) {                                        \
            snprintf(f->error, sizeof f->error, __VA_ARGS__); \
            return false;                                     \
        }                                                     \
    } while (0)

/* --- shapes --------------------------------------------------------------------------- */

static void set(struct tensor *out, enum dtype t, const int64_t dim[4])
{
    out->dtype = t;
    out->rank = 4;
    memcpy(out->dim, dim, 4 * sizeof *dim);
}

/* The checks that all three share: attributes, and a kernel [O,C/groups,kh,kw] over C channels. */
static bool check_kernel(struct infer *f, const int64_t w[4], int64_t C)
{
    const int stride = f->attr->conv.stride, pad = f->attr->conv.pad, groups = f->attr->conv.groups;
    REQUIRE(stride >= 1 && pad >= 0, "stride %d must be at least 1 and pad %d at least 0", stride, pad);
    REQUIRE(groups == 1 || (groups == C && w[0] == C),
            "groups is %d: it must be 1, or equal to the channels of x, %lld, and to the channels of the result, %lld",
            groups, (long long)C, (long long)w[0]);
    REQUIRE(w[1] * groups == C, "x has %lld channels, w expects %lld", (long long)C, (long long)(w[1] * groups));
    return true;
}

/* Checks that [B,H,W] and [B,H2,W2] are input and output of a convolution with a kernel kh x kw. */
static bool check_maps(struct infer *f, const int64_t *x, const int64_t *y, int64_t kh, int64_t kw)
{
    const int64_t s = f->attr->conv.stride, p = f->attr->conv.pad;
    REQUIRE(x[1] + 2 * p >= kh && x[2] + 2 * p >= kw,
            "the kernel %lldx%lld is larger than the map %lldx%lld with its padding", (long long)kh, (long long)kw,
            (long long)x[1], (long long)x[2]);
    REQUIRE(x[0] == y[0], "batches of %lld and %lld", (long long)x[0], (long long)y[0]);
    REQUIRE(y[1] == (x[1] + 2 * p - kh) / s + 1 && y[2] == (x[2] + 2 * p - kw) / s + 1,
            "a map %lldx%lld gives %lldx%lld, not %lldx%lld", (long long)x[1], (long long)x[2],
            (long long)((x[1] + 2 * p - kh) / s + 1), (long long)((x[2] + 2 * p - kw) / s + 1), (long long)y[1],
            (long long)y[2]);
    return true;
}

static bool check_operands(struct infer *f, const char *names)
{
    const struct tensor *a = f->in[0], *b = f->in[1];
    REQUIRE(a->rank == 4 && b->rank == 4, "%s must have four dimensions, not %d and %d", names, a->rank, b->rank);
    REQUIRE(a->dtype == b->dtype && dtype_is_float(a->dtype), "%s must have one floating-point dtype, not %s and %s",
            names, dtype_name(a->dtype), dtype_name(b->dtype));
    return true;
}

static bool check_bias(struct infer *f, int64_t n)
{
    const struct tensor *bias = f->in[2];
    REQUIRE(!bias || (bias->rank == 1 && bias->dim[0] == n), "bias must have %lld elements", (long long)n);
    return true;
}

void infer_conv(struct infer *f)
{
    const struct tensor *x = f->in[0], *w = f->in[1];
    const int64_t s = f->attr->conv.stride, p = f->attr->conv.pad;
    if (!check_operands(f, "x and w") || !check_kernel(f, w->dim, x->dim[3]) || !check_bias(f, w->dim[0])) return;
    const int64_t y[4] = {x->dim[0], (x->dim[1] + 2 * p - w->dim[2]) / s + 1, (x->dim[2] + 2 * p - w->dim[3]) / s + 1,
                          w->dim[0]};
    if (check_maps(f, x->dim, y, w->dim[2], w->dim[3])) set(&f->out[0], x->dtype, y);
}

void infer_conv_dx(struct infer *f)
{
    const struct tensor *dy = f->in[0], *w = f->in[1];
    if (!check_operands(f, "dy and w")) return;
    const int64_t x[4] = {dy->dim[0], f->attr->conv.H, f->attr->conv.W, w->dim[1] * f->attr->conv.groups};
    if (dy->dim[3] != w->dim[0]) {
        snprintf(f->error, sizeof f->error, "dy has %lld channels, w expects %lld", (long long)dy->dim[3],
                 (long long)w->dim[0]);
        return;
    }
    if (!check_kernel(f, w->dim, x[3]) || !check_bias(f, x[3])) return;
    if (check_maps(f, x, dy->dim, w->dim[2], w->dim[3])) set(&f->out[0], dy->dtype, x);
}

void infer_conv_dw(struct infer *f)
{
    const struct tensor *dy = f->in[0], *x = f->in[1], *acc = f->in[2];
    const int64_t kh = f->attr->conv.kh, kw = f->attr->conv.kw;
    if (!check_operands(f, "dy and x")) return;
    const int64_t w[4] = {dy->dim[3], x->dim[3] / max_i64(1, f->attr->conv.groups), kh, kw};
    if (!check_kernel(f, w, x->dim[3]) || !check_maps(f, x->dim, dy->dim, kh, kw)) return;
    set(&f->out[0], x->dtype == DT_F64 ? DT_F64 : DT_F32, w);
    if (acc &&
        (acc->dtype != f->out[0].dtype || tensor_elements(acc) != w[0] * w[1] * kh * kw || !tensor_is_dense(acc)))
        snprintf(f->error, sizeof f->error, "the accumulator does not fit the gradient of w");
}

/* --- gradients -------------------------------------------------------------------------- */

static id emit(struct vjp *v, enum op op, const union attr *attr, id a, id b)
{
    id n = graph_emit(v->g, op, attr, (id[]){a, b}, 2);
    return n ? node_at(v->g, n)->out[0] : 0;
}

/* The attributes of all three, for a map `x` and a kernel `w`. */
static union attr full_attr(struct vjp *v, id x, id w)
{
    union attr a = *v->attr;
    const struct tensor *map = tensor_at(v->g, x), *kernel = tensor_at(v->g, w);
    a.conv.H = map->dim[1], a.conv.W = map->dim[2];
    a.conv.kh = (int32_t)kernel->dim[2], a.conv.kw = (int32_t)kernel->dim[3];
    return a;
}

/* y = dF/d dy at (x, w), so <dy, y> = F(dy, x, w): dx = dF/dx and dw = dF/dw at dy. dx is computed
 * last, as in vjp_linear: x may be dead by then. */
void vjp_conv(struct vjp *v)
{
    id dy = v->dout[0], x = v->in[0], w = v->in[1];
    const union attr a = full_attr(v, x, w);
    if (v->need[1]) v->din[1] = emit(v, OP_CONV_DW, &a, dy, x);
    if (v->need[2]) v->din[2] = vjp_sum_to(v, dy, v->in[2]);
    if (v->need[0]) v->din[0] = emit(v, OP_CONV_DX, &a, dy, w);
}

/* Here the result is F's x and the input is F's dy. With the result's gradient g, <g, y> = F(in, g,
 * w), so d in = CONV(g, w) and dw = CONV_DW(in, g). */
void vjp_conv_dx(struct vjp *v)
{
    id g = v->dout[0], in = v->in[0], w = v->in[1];
    const union attr a = full_attr(v, g, w);
    if (v->need[1]) v->din[1] = emit(v, OP_CONV_DW, &a, in, g);
    if (v->need[2]) v->din[2] = vjp_sum_to(v, g, v->in[2]);
    if (v->need[0]) v->din[0] = emit(v, OP_CONV, &a, g, w);
}

/* --- costs -------------------------------------------------------------------------------- */

/* Each element of dy (or y) takes one product with the kernel of its channel. */
static struct cost conv_cost(const struct tensor *y, const struct tensor *w, const struct tensor *const *in,
                             const struct tensor *out)
{
    double bytes = (double)tensor_bytes(out);
    for (int i = 0; i < 3; i++)
        if (in[i]) bytes += (double)tensor_bytes(in[i]);
    return (struct cost){2.0 * (double)tensor_elements(y) * (double)(tensor_elements(w) / max_i64(1, w->dim[0])),
                         bytes};
}

struct cost cost_conv(const struct tensor *const *in, const struct tensor *const *out, const union attr *attr)
{
    (void)attr;
    return conv_cost(out[0], in[1], in, out[0]);
}

struct cost cost_conv_dx(const struct tensor *const *in, const struct tensor *const *out, const union attr *attr)
{
    (void)attr;
    return conv_cost(in[0], in[1], in, out[0]);
}

struct cost cost_conv_dw(const struct tensor *const *in, const struct tensor *const *out, const union attr *attr)
{
    (void)attr;
    return conv_cost(in[0], out[0], in, out[0]);
}

/* --- sweeps (sweep.h) ------------------------------------------------------------------------ */

bool conv_is_depthwise(const struct conv *n) { return n->depth != n->C; }

struct sweep sweep_forward(const struct conv *n)
{
    return (struct sweep){.B = n->B, .H = n->H, .W = n->W, .ny = n->H2, .nx = n->W2, .step = n->stride,
                          .y0 = -n->pad, .x0 = -n->pad, .ky = n->kh, .kx = n->kw, .tap_step = 1,
                          .out_H = n->H2, .out_W = n->W2, .out_step = 1};
}

/* Computes one axis of a phase: its first pixel, the number of pixels, its taps, and the row of dy that the
 * first pixel's first tap reads. Taps are in descending order, so that rows of dy are ascending. */
static void phase_axis(int64_t size, int64_t k, int64_t stride, int64_t pad, int64_t r, int64_t *first, int64_t *count,
                       int64_t *taps, int64_t *tap, int64_t *row)
{
    *first = ((r - pad) % stride + stride) % stride;
    *count = *first < size ? ceil_div(size - *first, stride) : 0;
    *taps = r < k ? ceil_div(k - r, stride) : 0;
    *tap = r + stride * (*taps - 1);
    *row = (*first + pad - r) / stride - (*taps - 1);
}

struct sweep sweep_backward(const struct conv *n, int64_t ry, int64_t rx)
{
    struct sweep s = {.B = n->B, .H = n->H2, .W = n->W2, .step = 1, .tap_step = -n->stride,
                      .out_H = n->H, .out_W = n->W, .out_step = n->stride};
    phase_axis(n->H, n->kh, n->stride, n->pad, ry, &s.oy, &s.ny, &s.ky, &s.tap_y, &s.y0);
    phase_axis(n->W, n->kw, n->stride, n->pad, rx, &s.ox, &s.nx, &s.kx, &s.tap_x, &s.x0);
    return s;
}
