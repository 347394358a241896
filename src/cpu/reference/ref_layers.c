/*
 * ref_layers.c: reference kernels of matrix products, norms, rotary position and the gated
 * activation (see ref.c for the reference's guarantees).
 */
#include <math.h>

#include "cpu/reference/ref.h"

/* --- matrix products -------------------------------------------------------------- */

static void ref_linear(const struct launch *l)
{
    const struct operand *x = &l->in[0], *w = &l->in[1], *y = &l->out[0];
    const int64_t rows = operand_rows(x), K = operand_last(x), N = w->dim[0];
    for (int64_t r = 0; r < rows; r++)
        for (int64_t n = 0; n < N; n++) {
            double sum = ref_get_acc(l, 2, n) + ref_get_acc(l, 3, r * N + n); // bias, and what is added
            const struct ref_row a = ref_row(x, r * K), b = ref_row(w, n * K);
            for (int64_t k = 0; k < K; k++) sum += ref_at(&a, k) * ref_at(&b, k);
            ref_put(y, r * N + n, sum);
        }
}

/* a and b as matrices [rows, last]; ta and tb determine which dimension is summed over. */
static void ref_matmul(const struct launch *l)
{
    const struct operand *a = &l->in[0], *b = &l->in[1];
    const bool ta = l->attr->matmul.ta, tb = l->attr->matmul.tb;
    const int64_t a_last = operand_last(a), b_last = operand_last(b);
    const int64_t M = ta ? a_last : operand_rows(a), K = ta ? operand_rows(a) : a_last;
    const int64_t N = tb ? operand_rows(b) : b_last;
    for (int64_t m = 0; m < M; m++)
        for (int64_t n = 0; n < N; n++) {
            double sum = ref_get_acc(l, 2, m * N + n);
            for (int64_t k = 0; k < K; k++)
                sum += ref_get(a, ta ? k * a_last + m : m * a_last + k) *
                       ref_get(b, tb ? n * b_last + k : k * b_last + n);
            ref_put(&l->out[0], m * N + n, sum);
        }
}

static void ref_bmm(const struct launch *l)
{
    const struct operand *a = &l->in[0], *b = &l->in[1], *c = &l->out[0];
    const bool ta = l->attr->matmul.ta, tb = l->attr->matmul.tb;
    const int64_t M = c->dim[c->rank - 2], N = c->dim[c->rank - 1], K = a->dim[a->rank - (ta ? 2 : 1)];
    for (int64_t i = 0; i < operand_elements(c); i++) {
        const int64_t batch = i / N / M, m = i / N % M, n = i % N;
        double sum = ref_get_acc(l, 2, i);
        for (int64_t k = 0; k < K; k++)
            sum += ref_get(a, batch * M * K + (ta ? k * M + m : m * K + k)) *
                   ref_get(b, batch * N * K + (tb ? n * K + k : k * N + n));
        ref_put(c, i, sum);
    }
}

/* --- rmsnorm ------------------------------------------------------------------------ */

static void ref_rmsnorm(const struct launch *l)
{
    const struct operand *x = &l->in[0], *w = &l->in[1];
    const int64_t rows = operand_rows(x), C = operand_last(x);
    for (int64_t r = 0; r < rows; r++) {
        double squares = 0;
        for (int64_t c = 0; c < C; c++) squares += ref_get(x, r * C + c) * ref_get(x, r * C + c);
        double rstd = 1 / sqrt(squares / (double)C + l->attr->rmsnorm.eps);
        ref_put(&l->out[1], r, rstd);
        for (int64_t c = 0; c < C; c++) ref_put(&l->out[0], r * C + c, ref_get(x, r * C + c) * rstd * ref_get(w, c));
    }
}

void ref_add_first(const struct launch *l, struct launch *rest)
{
    const struct operand *r = &l->out[l->nout - 1];
    for (int64_t i = 0; i < operand_elements(r); i++) ref_put(r, i, ref_get(&l->in[0], i) + ref_get(&l->in[1], i));
    *rest = *l;
    rest->in[0] = *r;
    for (int i = 1; i + 1 < l->nin; i++) rest->in[i] = l->in[i + 1];
    rest->nin = l->nin - 1;
    rest->nout = l->nout - 1;
}

static void ref_add_rmsnorm(const struct launch *l)
{
    struct launch rest;
    ref_add_first(l, &rest);
    ref_rmsnorm(&rest);
}

/* y = x r w with r = (mean(x^2) + eps)^-1/2, h = x r:
 *   dw = sum over rows of dy h
 *   dx = r (dy w - h mean(dy w h))          since dr/dx = -r^3 x / C */
static void ref_rmsnorm_bwd(const struct launch *l)
{
    const struct operand *dy = &l->in[0], *x = &l->in[1], *w = &l->in[2], *rstd = &l->in[3];
    const int64_t rows = operand_rows(x), C = operand_last(x);
    for (int64_t c = 0; c < C; c++) {
        double sum = 0;
        for (int64_t r = 0; r < rows; r++)
            sum += ref_get(dy, r * C + c) * ref_get(x, r * C + c) * ref_get(rstd, r);
        ref_put(&l->out[1], c, sum);
    }
    for (int64_t r = 0; r < rows; r++) {
        double inv = ref_get(rstd, r), sum = 0;
        for (int64_t c = 0; c < C; c++)
            sum += ref_get(w, c) * ref_get(dy, r * C + c) * ref_get(x, r * C + c);
        for (int64_t c = 0; c < C; c++)
            ref_put(&l->out[0], r * C + c,
                    inv * ref_get(w, c) * ref_get(dy, r * C + c) -
                        ref_get(x, r * C + c) * inv * inv * inv / (double)C * sum + ref_get_acc(l, 4, r * C + c));
    }
}

/* --- rope ----------------------------------------------------------------------------
 *
 * With an f32 table the angle is an f32 product, as in published models: at large t its rounding is
 * part of the definition, not an error. */
static double ref_angle(const struct operand *inv_freq, int64_t t, int64_t i)
{
    double exact = (double)t * ref_get(inv_freq, i);
    return inv_freq->dtype == DT_F64 ? exact : (double)(float)exact;
}

/* The position that pair i of token bt = b T + t turns by. */
static int64_t ref_position(const struct launch *l, int64_t bt, int64_t T, int64_t i)
{
    const struct operand *p = &l->in[2]; // [B,T] or [B,T,3]
    const int64_t *sections = l->attr->rope.sections;
    if (!ref_has(l, 2)) return bt % T;
    if (p->rank == 2) return (int64_t)ref_get(p, bt);
    return (int64_t)ref_get(p, bt * 3 + (i >= sections[0]) + (i >= sections[0] + sections[1]));
}

static void ref_rope(const struct launch *l)
{
    const struct operand *x = &l->in[0]; // [B,T,H,D]
    const int64_t B = x->dim[0], T = x->dim[1], H = x->dim[2], D = x->dim[3], half = D / 2;
    const double scale = l->attr->rope.scale, sign = l->attr->rope.inverse ? -1 : 1;
    for (int64_t row = 0; row < B * T * H; row++)
        for (int64_t i = 0; i < half; i++) {
            double angle = sign * ref_angle(&l->in[1], ref_position(l, row / H, T, i), i);
            double a = ref_get(x, row * D + i), b = ref_get(x, row * D + half + i);
            ref_put(&l->out[0], row * D + i, (a * cos(angle) - b * sin(angle)) * scale);
            ref_put(&l->out[0], row * D + half + i, (b * cos(angle) + a * sin(angle)) * scale);
        }
}

/* --- gated activation ------------------------------------------------------------------ */

static void ref_silu_gate(const struct launch *l)
{
    for (int64_t i = 0; i < operand_elements(&l->out[0]); i++) {
        double gate = ref_get(&l->in[0], i), up = ref_get(&l->in[1], i);
        ref_put(&l->out[0], i, gate / (1 + exp(-gate)) * up);
    }
}

/* y = g s u with s = 1/(1+e^-g), s' = s (1-s):  dg = dy u s (1 + g (1-s)),  du = dy s g. */
static void ref_silu_gate_bwd(const struct launch *l)
{
    for (int64_t i = 0; i < operand_elements(&l->in[0]); i++) {
        double dy = ref_get(&l->in[0], i), gate = ref_get(&l->in[1], i), up = ref_get(&l->in[2], i);
        double s = 1 / (1 + exp(-gate));
        ref_put(&l->out[0], i, dy * up * s * (1 + gate * (1 - s)));
        ref_put(&l->out[1], i, dy * gate * s);
        if (l->nout > 2) ref_put(&l->out[2], i, gate * s * up);
    }
}

REF_KERNEL(LINEAR, linear);
REF_KERNEL(MATMUL, matmul);
REF_KERNEL(BMM, bmm);
REF_KERNEL(RMSNORM, rmsnorm);
REF_KERNEL(RMSNORM_BWD, rmsnorm_bwd);
REF_KERNEL(ADD_RMSNORM, add_rmsnorm);
REF_KERNEL(ROPE, rope);
REF_KERNEL(SILU_GATE, silu_gate);
REF_KERNEL(SILU_GATE_BWD, silu_gate_bwd);
REF_KERNEL(SILU_GATE_BWD_Y, silu_gate_bwd);
