/*
 * ref_layers.c: reference kernels of matrix products, norms, rotary position, activations,
 * broadcast sums and softmax (see ref.c for the reference's guarantees).
 */
#include <math.h>

#include "cpu/reference/ref.h"
#include "run/norm_rope.h"

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

/* Reads a and b as matrices [rows, last]; ta and tb determine which dimension is summed over. */
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

/* Returns the scale of column c: w, or 1 + w with unit_offset. */
static double ref_rms_weight(const struct launch *l, const struct operand *w, int64_t c)
{
    return ref_get(w, c) + l->attr->rmsnorm.unit_offset;
}

static void ref_rmsnorm(const struct launch *l)
{
    const struct operand *x = &l->in[0], *w = &l->in[1];
    const int64_t rows = operand_rows(x), C = operand_last(x);
    for (int64_t r = 0; r < rows; r++) {
        double squares = 0;
        for (int64_t c = 0; c < C; c++) squares += ref_get(x, r * C + c) * ref_get(x, r * C + c);
        double rstd = 1 / sqrt(squares / (double)C + l->attr->rmsnorm.eps);
        ref_put(&l->out[1], r, rstd);
        for (int64_t c = 0; c < C; c++)
            ref_put(&l->out[0], r * C + c, ref_get(x, r * C + c) * rstd * ref_rms_weight(l, w, c));
    }
}

/* Computes the sum of an ADD_ op, and sets `rest` to the launch of the op on it. */
static void ref_add_first(const struct launch *l, struct launch *rest)
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

/* Computes, for y = x r w with r = (mean(x^2) + eps)^-1/2, h = x r, w with its offset:
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
            sum += ref_rms_weight(l, w, c) * ref_get(dy, r * C + c) * ref_get(x, r * C + c);
        for (int64_t c = 0; c < C; c++)
            ref_put(&l->out[0], r * C + c,
                    inv * ref_rms_weight(l, w, c) * ref_get(dy, r * C + c) -
                        ref_get(x, r * C + c) * inv * inv * inv / (double)C * sum + ref_get_acc(l, 4, r * C + c));
    }
}

/* --- rope ---------------------------------------------------------------------------- */

/* Returns the angle of pair i at position t. With an f32 table it is an f32 product, as in
 * published models: at large t its rounding is part of the definition, not an error. */
static double ref_angle(const struct operand *inv_freq, int64_t t, int64_t i)
{
    double exact = (double)t * ref_get(inv_freq, i);
    return inv_freq->dtype == DT_F64 ? exact : (double)(float)exact;
}

/* Returns the position that pair i of token bt = b T + t turns by. */
static int64_t ref_position(const struct launch *l, int64_t bt, int64_t T, int64_t i)
{
    const struct operand *p = &l->in[2]; // [B,T] or [B,T,3]
    const int64_t *sections = l->attr->rope.sections;
    int coordinate = (i >= sections[0]) + (i >= sections[0] + sections[1]);
    if (!launch_has(l, 2)) return l->token + bt % T;
    if (p->rank == 2) return (int64_t)ref_get(p, bt);
    if (l->attr->rope.interleaved) coordinate = i % 3 && i < 3 * sections[i % 3] ? (int)(i % 3) : 0;
    return (int64_t)ref_get(p, bt * 3 + coordinate);
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

static void ref_rmsnorm_rope(const struct launch *l)
{
    struct norm_rope n;
    norm_rope_apart(&n, l);
    ref_rmsnorm(&n.norm);
    ref_rope(&n.rope);
}

/* Computes dx, dw of y = R n(x, w): the rotation R is undone by its transpose, then the norm's
 * gradient. */
static void ref_rmsnorm_rope_bwd(const struct launch *l)
{
    struct norm_rope n;
    norm_rope_bwd_apart(&n, l);
    ref_rope(&n.rope);
    ref_rmsnorm_bwd(&n.norm);
}

/* --- gated activation ------------------------------------------------------------------ */

static void ref_silu_gate(const struct launch *l)
{
    for (int64_t i = 0; i < operand_elements(&l->out[0]); i++) {
        double gate = ref_get(&l->in[0], i), up = ref_get(&l->in[1], i);
        ref_put(&l->out[0], i, gate / (1 + exp(-gate)) * up);
    }
}

/* Computes, for y = g s u with s = 1/(1+e^-g), s' = s (1-s):  dg = dy u s (1 + g (1-s)),  du = dy s
 * g. */
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

/* --- sums over broadcast dimensions ----------------------------------------------------- */

/* Returns the index in x of the r-th element that result o sums: o varies in the dimensions that
 * the result keeps, r in the others. */
static int64_t summed_index(const struct operand *x, const struct operand *y, int64_t o, int64_t r)
{
    int64_t at = 0, stride = 1;
    for (int d = x->rank - 1, k = y->rank - 1; d >= 0; stride *= x->dim[d], d--, k--) {
        int64_t *rest = k >= 0 && y->dim[k] == x->dim[d] ? &o : &r;
        at += *rest % x->dim[d] * stride;
        *rest /= x->dim[d];
    }
    return at;
}

static void ref_sum_to(const struct launch *l)
{
    const struct operand *x = &l->in[0], *y = &l->out[0];
    const int64_t N = operand_elements(y), count = operand_elements(x) / N;
    for (int64_t o = 0; o < N; o++) {
        double sum = ref_get_acc(l, 1, o);
        for (int64_t r = 0; r < count; r++) sum += ref_get(x, summed_index(x, y, o, r));
        ref_put(y, o, sum);
    }
}

/* --- layer norm ---------------------------------------------------------------------- */

static void ref_layernorm(const struct launch *l)
{
    const struct operand *x = &l->in[0], *w = &l->in[1], *b = &l->in[2];
    const int64_t rows = operand_rows(x), C = operand_last(x);
    for (int64_t r = 0; r < rows; r++) {
        double mean = 0, variance = 0;
        for (int64_t c = 0; c < C; c++) mean += ref_get(x, r * C + c) / (double)C;
        for (int64_t c = 0; c < C; c++) variance += pow(ref_get(x, r * C + c) - mean, 2) / (double)C;
        double rstd = 1 / sqrt(variance + l->attr->layernorm.eps);
        ref_put(&l->out[1], r, mean);
        ref_put(&l->out[2], r, rstd);
        for (int64_t c = 0; c < C; c++)
            ref_put(&l->out[0], r * C + c, (ref_get(x, r * C + c) - mean) * rstd * ref_get(w, c) + ref_get(b, c));
    }
}

static void ref_add_layernorm(const struct launch *l)
{
    struct launch rest;
    ref_add_first(l, &rest);
    ref_layernorm(&rest);
}

/* Returns h of element i, in row i / C. */
static double ref_normal(const struct launch *l, int64_t i, int64_t C)
{
    return (ref_get(&l->in[1], i) - ref_get(&l->in[3], i / C)) * ref_get(&l->in[4], i / C);
}

/* Computes, for y = h w + b with h = (x - m) r, m = mean(x), r = (mean((x - m)^2) + eps)^-1/2:
 *   dw = sum over rows of dy h,  db = sum over rows of dy
 * With g = dy w:  dm/dx_j = 1/C  and  dr/dx_j = -r^2 h_j / C  (the term through m
 * vanishes: sum of x - m is 0), so
 *   dx = r (g - mean(g) - h mean(g h)) */
static void ref_layernorm_bwd(const struct launch *l)
{
    const struct operand *dy = &l->in[0], *w = &l->in[2];
    const int64_t rows = operand_rows(&l->in[1]), C = operand_last(&l->in[1]);
    for (int64_t c = 0; c < C; c++) {
        double dw = 0, db = 0;
        for (int64_t r = 0; r < rows; r++) {
            dw += ref_get(dy, r * C + c) * ref_normal(l, r * C + c, C);
            db += ref_get(dy, r * C + c);
        }
        ref_put(&l->out[1], c, dw);
        ref_put(&l->out[2], c, db);
    }
    for (int64_t r = 0; r < rows; r++) {
        double g = 0, gh = 0;
        for (int64_t c = 0; c < C; c++) {
            double one = ref_get(dy, r * C + c) * ref_get(w, c);
            g += one / (double)C;
            gh += one * ref_normal(l, r * C + c, C) / (double)C;
        }
        for (int64_t c = 0; c < C; c++)
            ref_put(&l->out[0], r * C + c,
                    ref_get(&l->in[4], r) *
                            (ref_get(dy, r * C + c) * ref_get(w, c) - g - ref_normal(l, r * C + c, C) * gh) +
                        ref_get_acc(l, 5, r * C + c));
    }
}

/* --- activations ------------------------------------------------------------------------ */

static const double root_half = 0.70710678118654752440, root_two_over_pi = 0.79788456080286535588;

static double logistic(double x) { return 1 / (1 + exp(-x)); }

/* Returns the inner function of GELU_TANH, and its derivative. */
static double gelu_u(double x) { return root_two_over_pi * (x + 0.044715 * x * x * x); }
static double gelu_du(double x) { return root_two_over_pi * (1 + 3 * 0.044715 * x * x); }

static double act_value(enum act_kind kind, double x)
{
    switch (kind) {
    case ACT_GELU: return 0.5 * x * (1 + erf(x * root_half));
    case ACT_GELU_TANH: return 0.5 * x * (1 + tanh(gelu_u(x)));
    case ACT_QUICK_GELU: return x * logistic(1.702 * x);
    case ACT_RELU: return x < 0 ? 0 : x;
    case ACT_SIGMOID: return logistic(x);
    case ACT_SILU: return x * logistic(x);
    case ACT_TANH: return tanh(x);
    case ACT_EXP: return exp(x);
    default: CHECK(false, "activation %d", kind);
    }
    return 0;
}

static double act_slope(enum act_kind kind, double x)
{
    double s = logistic(kind == ACT_QUICK_GELU ? 1.702 * x : x), t = tanh(kind == ACT_GELU_TANH ? gelu_u(x) : x);
    switch (kind) {
    case ACT_GELU: return 0.5 * (1 + erf(x * root_half)) + x * 0.5 * root_two_over_pi * exp(-0.5 * x * x);
    case ACT_GELU_TANH: return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * gelu_du(x);
    case ACT_QUICK_GELU: return s + 1.702 * x * s * (1 - s);
    case ACT_RELU: return x > 0;
    case ACT_SIGMOID: return s * (1 - s);
    case ACT_SILU: return s + x * s * (1 - s);
    case ACT_TANH: return 1 - t * t;
    case ACT_EXP: return exp(x);
    default: CHECK(false, "activation %d", kind);
    }
    return 0;
}

static void ref_act(const struct launch *l)
{
    for (int64_t i = 0; i < operand_elements(&l->out[0]); i++)
        ref_put(&l->out[0], i, act_value(l->attr->act.kind, ref_get(&l->in[0], i)));
}

/* Computes y = f(z). z is rounded first; without an output z it is stored in y temporarily. */
static void ref_linear_act(const struct launch *l)
{
    const struct operand *x = &l->in[0], *w = &l->in[1], *y = &l->out[0], *z = l->out[1].data ? &l->out[1] : y;
    const int64_t rows = operand_rows(x), K = operand_last(x), N = w->dim[0];
    for (int64_t r = 0; r < rows; r++)
        for (int64_t n = 0; n < N; n++) {
            double sum = ref_get_acc(l, 2, n);
            for (int64_t k = 0; k < K; k++) sum += ref_get(x, r * K + k) * ref_get(w, n * K + k);
            ref_put(z, r * N + n, sum);
            ref_put(y, r * N + n, act_value(l->attr->act.kind, ref_get(z, r * N + n)));
        }
}

/* Computes dx = dy f'(x), as y = f(x). */
static void ref_act_bwd(const struct launch *l)
{
    for (int64_t i = 0; i < operand_elements(&l->out[0]); i++)
        ref_put(&l->out[0], i, ref_get(&l->in[0], i) * act_slope(l->attr->act.kind, ref_get(&l->in[1], i)));
}

/* Sums the stored values. dx and y may be in place of dy and x. */
static void ref_act_bwd_sum(const struct launch *l)
{
    const struct operand *dx = &l->out[0];
    const int64_t rows = operand_rows(dx), C = operand_last(dx);
    for (int64_t i = 0; i < rows * C; i++) {
        const double dy = ref_get(&l->in[0], i), x = ref_get(&l->in[1], i);
        ref_put(dx, i, dy * act_slope(l->attr->act.kind, x));
        if (l->nout > 2) ref_put(&l->out[2], i, act_value(l->attr->act.kind, x));
    }
    for (int64_t c = 0; c < C; c++) {
        double sum = 0;
        for (int64_t r = 0; r < rows; r++) sum += ref_get(dx, r * C + c);
        ref_put(&l->out[1], c, sum);
    }
}

/* y = a f(z)^T, for each batch. */
struct ref_filter {
    int64_t batches, M, N, K;
};

static struct ref_filter ref_filter_of(const struct operand *a, const struct operand *z)
{
    struct ref_filter n = {1, a->dim[a->rank - 2], z->dim[z->rank - 2], operand_last(a)};
    for (int i = 0; i + 2 < a->rank; i++) n.batches *= a->dim[i];
    return n;
}

static void ref_bmm_act(const struct launch *l)
{
    const struct ref_filter x = ref_filter_of(&l->in[0], &l->in[1]);
    for (int64_t b = 0; b < x.batches; b++)
        for (int64_t m = 0; m < x.M; m++)
            for (int64_t n = 0; n < x.N; n++) {
                double sum = 0;
                for (int64_t k = 0; k < x.K; k++)
                    sum += ref_get(&l->in[0], (b * x.M + m) * x.K + k) *
                           act_value(l->attr->act.kind, ref_get(&l->in[1], (b * x.N + n) * x.K + k));
                ref_put(&l->out[0], (b * x.M + m) * x.N + n, sum);
            }
}

/* Computes da = dy f(z), dz = (dy^T a) f'(z). All of da is computed first: dz may be in place of
 * z. */
static void ref_bmm_act_bwd(const struct launch *l)
{
    const struct operand *dy = &l->in[0], *a = &l->in[1], *z = &l->in[2];
    const struct ref_filter x = ref_filter_of(a, z);
    const enum act_kind kind = l->attr->act.kind;
    for (int64_t b = 0; b < x.batches; b++)
        for (int64_t i = 0; i < x.M * x.K; i++) {
            const int64_t m = i / x.K, k = i % x.K;
            double sum = 0;
            for (int64_t n = 0; n < x.N; n++)
                sum += ref_get(dy, (b * x.M + m) * x.N + n) * act_value(kind, ref_get(z, (b * x.N + n) * x.K + k));
            ref_put(&l->out[0], (b * x.M + m) * x.K + k, sum);
        }
    for (int64_t b = 0; b < x.batches; b++)
        for (int64_t i = 0; i < x.N * x.K; i++) {
            const int64_t n = i / x.K, k = i % x.K, at = (b * x.N + n) * x.K + k;
            double sum = 0;
            for (int64_t m = 0; m < x.M; m++)
                sum += ref_get(dy, (b * x.M + m) * x.N + n) * ref_get(a, (b * x.M + m) * x.K + k);
            ref_put(&l->out[1], at, sum * act_slope(kind, ref_get(z, at)));
        }
}

/* --- softmax --------------------------------------------------------------------------------- */

static void ref_softmax(const struct launch *l)
{
    const struct operand *x = &l->in[0];
    const int64_t rows = operand_rows(x), C = operand_last(x);
    for (int64_t r = 0; r < rows; r++) {
        double most = -INFINITY, sum = 0;
        for (int64_t c = 0; c < C; c++) most = fmax(most, ref_get(x, r * C + c));
        for (int64_t c = 0; c < C; c++) sum += exp(ref_get(x, r * C + c) - most);
        for (int64_t c = 0; c < C; c++) ref_put(&l->out[0], r * C + c, exp(ref_get(x, r * C + c) - most) / sum);
    }
}

/* Computes dx = y (dy - sum(dy y)), since y_i = e^x_i / sum e^x and dy_i/dx_j = y_i (delta_ij -
 * y_j). */
static void ref_softmax_bwd(const struct launch *l)
{
    const struct operand *dy = &l->in[0], *y = &l->in[1];
    const int64_t rows = operand_rows(y), C = operand_last(y);
    for (int64_t r = 0; r < rows; r++) {
        double sum = 0;
        for (int64_t c = 0; c < C; c++) sum += ref_get(dy, r * C + c) * ref_get(y, r * C + c);
        for (int64_t c = 0; c < C; c++)
            ref_put(&l->out[0], r * C + c, ref_get(y, r * C + c) * (ref_get(dy, r * C + c) - sum));
    }
}

/* --- batch normalisation: a map [B,H,W,C] is rows of C, a group is n consecutive rows --------- */

static void ref_batchnorm(const struct launch *l)
{
    const struct operand *x = &l->in[0];
    const int64_t C = operand_last(x), G = l->out[1].dim[0], n = operand_rows(x) / G;
    for (int64_t k = 0; k < G * C; k++) {
        const int64_t g = k / C, c = k % C;
        double mean = 0, var = 0;
        for (int64_t r = g * n; r < (g + 1) * n; r++) mean += ref_get(x, r * C + c) / (double)n;
        for (int64_t r = g * n; r < (g + 1) * n; r++) var += pow(ref_get(x, r * C + c) - mean, 2) / (double)n;
        const double rstd = 1 / sqrt(var + l->attr->batchnorm.eps);
        for (int64_t r = g * n; r < (g + 1) * n; r++)
            ref_put(&l->out[0], r * C + c,
                    (ref_get(x, r * C + c) - mean) * rstd * ref_get(&l->in[1], c) + ref_get(&l->in[2], c));
        ref_put(&l->out[1], k, mean);
        ref_put(&l->out[2], k, rstd);
    }
}

/* Computes, per channel and group of n elements, with r = rstd and h = (x - mean) r, y = h w + b:
 *   db = sum dy,  dw = sum dy h
 *   dx = w r (dy - sum(dy)/n - h sum(dy h)/n)      since dmean/dx = 1/n, dr/dx = -r^2 h/n
 * where the last line's sums are the group's and dw, db are over all groups. */
static void ref_batchnorm_bwd(const struct launch *l)
{
    const struct operand *dy = &l->in[0], *x = &l->in[1];
    const int64_t C = operand_last(x), G = l->in[3].dim[0], n = operand_rows(x) / G;
    for (int64_t c = 0; c < C; c++) {
        double dw = 0, db = 0;
        for (int64_t g = 0; g < G; g++) {
            const double mean = ref_get(&l->in[3], g * C + c), rstd = ref_get(&l->in[4], g * C + c);
            double sum = 0, dot = 0;
            for (int64_t r = g * n; r < (g + 1) * n; r++) {
                sum += ref_get(dy, r * C + c);
                dot += ref_get(dy, r * C + c) * (ref_get(x, r * C + c) - mean) * rstd;
            }
            for (int64_t r = g * n; r < (g + 1) * n; r++) {
                double h = (ref_get(x, r * C + c) - mean) * rstd, d = ref_get(dy, r * C + c);
                ref_put(&l->out[0], r * C + c,
                        ref_get(&l->in[2], c) * rstd * (d - sum / (double)n - h * dot / (double)n));
            }
            dw += dot;
            db += sum;
        }
        ref_put(&l->out[1], c, dw);
        ref_put(&l->out[2], c, db);
    }
}

static void ref_batchnorm_frozen(const struct launch *l)
{
    const int64_t C = operand_last(&l->in[0]);
    for (int64_t i = 0; i < operand_elements(&l->out[0]); i++) {
        const double rstd = 1 / sqrt(ref_get(&l->in[4], i % C) + l->attr->batchnorm_frozen.eps);
        const double h = (ref_get(&l->in[0], i) - ref_get(&l->in[3], i % C)) * rstd;
        ref_put(&l->out[0], i, h * ref_get(&l->in[1], i % C) + ref_get(&l->in[2], i % C));
    }
}

/* Computes dx = w dy / sqrt(var + eps), as mean and var are given; the others as above. */
static void ref_batchnorm_frozen_bwd(const struct launch *l)
{
    const int64_t C = operand_last(&l->in[1]), rows = operand_rows(&l->in[1]);
    for (int64_t c = 0; c < C; c++) {
        const double rstd = 1 / sqrt(ref_get(&l->in[4], c) + l->attr->batchnorm_frozen.eps);
        double dw = 0, db = 0;
        for (int64_t r = 0; r < rows; r++) {
            const double d = ref_get(&l->in[0], r * C + c), x = ref_get(&l->in[1], r * C + c);
            dw += d * (x - ref_get(&l->in[3], c)) * rstd;
            db += d;
            ref_put(&l->out[0], r * C + c, d * ref_get(&l->in[2], c) * rstd);
        }
        ref_put(&l->out[1], c, dw);
        ref_put(&l->out[2], c, db);
    }
}

/* Updates running statistics as torch.nn.BatchNorm2d updates them, with one update per group. */
static void ref_batchnorm_update(const struct launch *l)
{
    const int64_t G = l->in[0].dim[0], C = l->in[0].dim[1], count = l->attr->batchnorm_update.count;
    const double m = l->attr->batchnorm_update.momentum, unbiased = (double)count / (double)(count - 1);
    for (int64_t c = 0; c < C; c++)
        for (int64_t g = 0; g < G; g++) {
            double rstd = ref_get(&l->in[1], g * C + c), var = 1 / (rstd * rstd) - l->attr->batchnorm_update.eps;
            ref_put(&l->out[0], c, (1 - m) * ref_get(&l->in[2], c) + m * ref_get(&l->in[0], g * C + c));
            ref_put(&l->out[1], c, (1 - m) * ref_get(&l->in[3], c) + m * fmax(0, var) * unbiased);
        }
}

REF_KERNEL(LINEAR, linear);
REF_KERNEL(MATMUL, matmul);
REF_KERNEL(BMM, bmm);
REF_KERNEL(RMSNORM, rmsnorm);
REF_KERNEL(RMSNORM_BWD, rmsnorm_bwd);
REF_KERNEL(ADD_RMSNORM, add_rmsnorm);
REF_KERNEL(ROPE, rope);
REF_KERNEL(RMSNORM_ROPE, rmsnorm_rope);
REF_KERNEL(RMSNORM_ROPE_BWD, rmsnorm_rope_bwd);
REF_KERNEL(SILU_GATE, silu_gate);
REF_KERNEL(SILU_GATE_BWD, silu_gate_bwd);
REF_KERNEL(SILU_GATE_BWD_Y, silu_gate_bwd);
REF_KERNEL(SUM_TO, sum_to);
REF_KERNEL(LAYERNORM, layernorm);
REF_KERNEL(LAYERNORM_BWD, layernorm_bwd);
REF_KERNEL(ADD_LAYERNORM, add_layernorm);
REF_KERNEL(ACT, act);
REF_KERNEL(LINEAR_ACT, linear_act);
REF_KERNEL(ACT_BWD, act_bwd);
REF_KERNEL(ACT_BWD_SUM, act_bwd_sum);
REF_KERNEL(BMM_ACT, bmm_act);
REF_KERNEL(BMM_ACT_BWD, bmm_act_bwd);
REF_KERNEL(SOFTMAX, softmax);
REF_KERNEL(SOFTMAX_BWD, softmax_bwd);
REF_KERNEL(BATCHNORM, batchnorm);
REF_KERNEL(BATCHNORM_BWD, batchnorm_bwd);
REF_KERNEL(BATCHNORM_FROZEN, batchnorm_frozen);
REF_KERNEL(BATCHNORM_FROZEN_BWD, batchnorm_frozen_bwd);
REF_KERNEL(BATCHNORM_UPDATE, batchnorm_update);
