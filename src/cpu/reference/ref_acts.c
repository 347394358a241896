/*
 * ref_acts.c: reference kernels of broadcast sums, layer norm, activations, softmax and dropout
 * (see ref.c for the reference's guarantees).
 */
#include <math.h>

#include "base/random.h"
#include "cpu/rows/dropout.h"
#include "cpu/reference/ref.h"

/* --- sums over broadcast dimensions ----------------------------------------------------- */

/* The index in x of the r-th element that result o sums: o varies in the dimensions that the result
 * keeps, r in the others. */
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

/* h of element i, in row i / C. */
static double ref_normal(const struct launch *l, int64_t i, int64_t C)
{
    return (ref_get(&l->in[1], i) - ref_get(&l->in[3], i / C)) * ref_get(&l->in[4], i / C);
}

/* y = h w + b with h = (x - m) r, m = mean(x), r = (mean((x - m)^2) + eps)^-1/2.
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

/* The inner function of GELU_TANH, and its derivative. */
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

/* z is rounded first; without an output z it is stored in y temporarily. */
static void ref_linear_act(const struct launch *l)
{
    const struct operand *x = &l->in[0], *w = &l->in[1], *y = &l->out[0], *z = l->out[1].data ? &l->out[1] : y;
    const int64_t rows = operand_rows(x), K = operand_last(x), N = w->dim[0];
    for (int64_t r = 0; r < rows; r++)
        for (int64_t n = 0; n < N; n++) {
            double sum = ref_has(l, 2) ? ref_get(&l->in[2], n) : 0;
            for (int64_t k = 0; k < K; k++) sum += ref_get(x, r * K + k) * ref_get(w, n * K + k);
            ref_put(z, r * N + n, sum);
            ref_put(y, r * N + n, act_value(l->attr->act.kind, ref_get(z, r * N + n)));
        }
}

/* y = f(x):  dx = dy f'(x). */
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

/* da = dy f(z), dz = (dy^T a) f'(z). All of da first: dz may be in place of z. */
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

/* y_i = e^x_i / sum e^x:  dy_i/dx_j = y_i (delta_ij - y_j), so  dx = y (dy - sum(dy y)). */
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

/* --- dropout ---------------------------------------------------------------------------------- */

static void ref_dropout(const struct launch *l)
{
    const struct operand *x = &l->in[0];
    const int64_t each = operand_elements(x) / x->dim[0];
    const float p = l->attr->dropout.p;
    for (int64_t i = 0; i < operand_elements(x); i++) {
        uint64_t key = dropout_key(l->in[1].data, l->attr->dropout.key, (int32_t)ref_get(&l->in[2], i / each));
        uint32_t word;
        random_words(&word, key, l->attr->dropout.per_sample ? 0 : (uint64_t)(i % each), 1);
        ref_put(&l->out[0], i, word < dropout_threshold(p) ? 0 : ref_get(x, i) / (1 - (double)p));
    }
}

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
REF_KERNEL(DROPOUT, dropout);
