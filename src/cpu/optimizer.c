/*
 * optimizer.c: the update: SUMSQ, CLIP and ADAMW.
 *
 * What varies by step comes from the step block. A step whose gradients hold an
 * inf or NaN (step.found_inf, or a norm in clip that is not finite) leaves every byte of p, m, v and w as it was.
 */
#include <math.h>

#include "cpu/cpu.h"
#include "cpu/round.h"
#include "cpu/rows.h"

static bool sumsq_match(const struct query *q)
{
    return tensor_is_fast(q->in[0]) && tensor_is(q->in[1], DT_F64) && tensor_is(q->out[0], DT_F64);
}
static uint64_t sumsq_workspace(const struct query *q) { return reduce_workspace(tensor_elements(q->in[0])); }
static void sumsq_run(const struct launch *l)
{
    CHECK(l->in[1].data == l->out[0].data, "the accumulator is updated in place");
    *(double *)l->out[0].data += reduce_sum(&l->in[0], true, l->work, l->threads);
}

/* As clip_grad_norm_: the norm is increased by 1e-6 before it divides. A norm that
 * is NaN gives a factor of NaN, so that the failure is seen. Gradients of a scaled loss are
 * divided by the scale first: the factor does both. */
static bool clip_match(const struct query *q)
{
    return tensor_is(q->in[0], DT_F64) && tensor_is(q->out[0], DT_F32);
}
static void clip_run(const struct launch *l)
{
    const struct step_block *step = l->in[1].data;
    double norm = sqrt(*(const double *)l->in[0].data) / step->loss_scale, factor = 1;
    if (step->clip_norm > 0) factor = step->clip_norm / (norm + 1e-6);
    float *out = l->out[0].data;
    out[0] = (float)norm;
    out[1] = (float)((factor > 1 ? 1 : factor) / step->loss_scale);
}

/* --- adamw -------------------------------------------------------------------------
 *
 * As torch.optim.AdamW, the plain one:
 *     p -= lr wd p
 *     m += (1-b1) (g - m)          v = b2 v + (1-b2) g^2
 *     p -= lr / (1-b1^t) * m / (sqrt(v) / sqrt(1-b2^t) + eps)
 * The scalars are made in double and rounded once.
 */

struct adamw_scalars {
    float keep;             /* 1 - lr wd */
    float rate1, b2, rate2; /* 1-b1, b2, 1-b2 */
    float root;             /* sqrt(1-b2^t) */
    float eps, size;        /* lr / (1-b1^t) */
    float clip;             /* factor on the gradient */
};

static struct adamw_scalars adamw_prepare(const struct launch *l)
{
    const struct step_block *step = l->in[4].data;
    const double b1 = l->attr->adamw.beta1, b2 = l->attr->adamw.beta2;
    const double lr = (double)step->learning_rate * l->attr->adamw.lr_scale;
    return (struct adamw_scalars){
        .keep = (float)(1 - lr * l->attr->adamw.weight_decay),
        .rate1 = (float)(1 - b1),
        .b2 = (float)b2,
        .rate2 = (float)(1 - b2),
        .root = (float)sqrt(1 - pow(b2, step->adam_t)),
        .eps = l->attr->adamw.eps,
        .size = (float)(lr / (1 - pow(b1, step->adam_t))),
        .clip = launch_has(l, 5) ? ((const float *)l->in[5].data)[1] : 1.0f,
    };
}

static void adamw_tile(float *p, float *m, float *v, const float *g, int n, struct adamw_scalars s)
{
#pragma omp simd
    for (int i = 0; i < n; i++) {
        float d = g[i] * s.clip;
        float mean = m[i] + s.rate1 * (d - m[i]);
        float square = s.b2 * v[i] + s.rate2 * d * d;
        m[i] = mean;
        v[i] = square;
        p[i] = p[i] * s.keep - s.size * (mean / (__builtin_sqrtf(square) / s.root + s.eps));
    }
}

static bool adamw_match(const struct query *q)
{
    if (!weight_is_kept(q->in[0])) return false;
    for (int i = 1; i < 4; i++)
        if (!tensor_is(q->in[i], DT_F32)) return false;
    if (query_in(q, 5) && !tensor_is(query_in(q, 5), DT_F32)) return false;
    return !query_in(q, 6) || tensor_is_fast(query_in(q, 6));
}

static void adamw_run(const struct launch *l)
{
    const struct step_block *step = l->in[4].data;
    if (step->found_inf || (launch_has(l, 5) && !isfinite(*(const float *)l->in[5].data))) return;
    const struct adamw_scalars s = adamw_prepare(l);
    const int64_t n = operand_elements(&l->in[0]);
    const uint64_t key = round_key(step, l->attr->adamw.key);
    float *m = l->in[2].data, *v = l->in[3].data;
    const float *g = l->in[1].data;
    const bool rounded = launch_has(l, 6);
#pragma omp parallel for num_threads(l->threads) schedule(static) if (n > 16384)
    for (int64_t at = 0; at < n; at += TILE) {
        float scratch[TILE];
        int width = row_tile(n - at);
        float *p = load_weight(&l->in[0], at, width, scratch);
        adamw_tile(p, m + at, v + at, g + at, width, s);
        store_weight(&l->in[0], at, width, p, key);
        if (rounded) row_store(&l->in[6], at, width, p);
    }
}

CPU_KERNEL_WORK(SUMSQ, sumsq);
CPU_KERNEL(CLIP, clip);
CPU_KERNEL(ADAMW, adamw);
