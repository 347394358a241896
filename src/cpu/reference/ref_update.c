/*
 * ref_update.c: reference kernels of the updates (see ref.c for the reference's guarantees). Parts
 * that all kernels must do identically are shared: random numbers and quantisation maps.
 */
#include <math.h>

#include "base/random.h"
#include "base/state_codes.h"
#include "cpu/reference/ref.h"
#include "cpu/update/update.h"
#include "graph/sizes.h"

static bool is_off(const struct launch *l, struct update_slots at)
{
    const struct step_block *step = l->in[at.step].data;
    return step->found_inf || (launch_has(l, at.clip) && !isfinite(ref_get(&l->in[at.clip], 0)));
}

static double gradient(const struct launch *l, struct update_slots at, int64_t i)
{
    return ref_get(&l->in[1], i) * (launch_has(l, at.clip) ? ref_get(&l->in[at.clip], 1) : 1);
}

/* Stores p, rounded at random if it is bf16, and w, which is rounded from the stored p, so that the
 * two never differ by a double rounding. */
static void put_weight(const struct launch *l, struct update_slots at, int w_out, int64_t i, double p)
{
    if (l->in[0].dtype == DT_BF16) {
        const int64_t first = launch_first(l, l->attr->adamw.part);
        const uint64_t key = launch_key(l, l->attr->adamw.key, l->attr->adamw.of);
        uint64_t bits = random_bits(round_key(l->in[at.step].data, key), (uint64_t)(first + i) / 4) >> 16 * (i % 4);
        p = bf16_to_f32(round_at_random((float)p, (uint32_t)bits));
    }
    ref_put(&l->out[0], i, p);
    if (launch_has(l, at.w)) ref_put(&l->out[w_out], i, ref_get(&l->out[0], i));
}

/* --- Adam ------------------------------------------------------------------------------ */

/* Computes torch.optim.AdamW, single tensor, without amsgrad. */
static void ref_adamw(const struct launch *l)
{
    static const struct update_slots at = {4, 5, 6};
    const struct step_block *step = l->in[4].data;
    const double b1 = l->attr->adamw.beta1, b2 = l->attr->adamw.beta2, eps = l->attr->adamw.eps;
    const double lr = update_rate(l, at);
    const double correct1 = 1 - pow(b1, step->adam_t), correct2 = 1 - pow(b2, step->adam_t);
    if (is_off(l, at)) {
        update_nothing(l, at);
        return;
    }
    for (int64_t i = 0; i < operand_elements(&l->in[0]); i++) {
        double p = ref_get(&l->in[0], i), g = gradient(l, at, i);
        double m = b1 * ref_get(&l->in[2], i) + (1 - b1) * g;
        double v = b2 * ref_get(&l->in[3], i) + (1 - b2) * g * g;
        p *= 1 - lr * l->attr->adamw.weight_decay;
        p -= lr / correct1 * m / (sqrt(v) / sqrt(correct2) + eps);
        ref_put(&l->out[1], i, m);
        ref_put(&l->out[2], i, v);
        put_weight(l, at, 3, i, p);
    }
}

/* Returns the code of the nearest value, by a search over all; at a midpoint, the smaller
 * magnitude. The sign of x is kept. */
static int nearest(const struct codes *c, float x)
{
    int k = 0;
    for (; k < 255; k++) {
        float middle = (c->value[k] + c->value[k + 1]) / 2;
        if (!(x > middle || (x < 0 && x == middle))) break;
    }
    return x < 0 && k >= c->zero ? c->zero - 1 : k;
}

/* Computes the moments in f32, by ADAMW's formulas in their order, so that there is one right
 * answer: a code does not show how far its number is from the border to the next one. */
static void ref_adamw_8bit(const struct launch *l)
{
    static const struct update_slots at = {5, 6, 7};
    const struct step_block *step = l->in[5].data;
    const struct codes *cm = codes_signed(), *cv = codes_unsigned();
    const double b1 = l->attr->adamw.beta1, b2 = l->attr->adamw.beta2, lr = update_rate(l, at);
    const double correct1 = 1 - pow(b1, step->adam_t), correct2 = 1 - pow(b2, step->adam_t);
    const int64_t n = operand_elements(&l->in[0]);
    if (is_off(l, at)) {
        update_nothing(l, at);
        return;
    }
    for (int64_t block = 0; block < state_blocks(n); block++) {
        const int64_t from = block * STATE_BLOCK, to = min_i64(n, from + STATE_BLOCK);
        float most[2] = {0}, m[STATE_BLOCK], v[STATE_BLOCK];
        for (int64_t i = from; i < to; i++) {
            const float g = (float)gradient(l, at, i);
            m[i - from] = cm->value[(int)ref_get(&l->in[2], i)] * (float)ref_get(&l->in[4], 2 * block);
            v[i - from] = cv->value[(int)ref_get(&l->in[3], i)] * (float)ref_get(&l->in[4], 2 * block + 1);
            m[i - from] += (float)(1 - b1) * (g - m[i - from]);
            v[i - from] = (float)b2 * v[i - from] + (float)(1 - b2) * g * g;
            most[0] = fmaxf(most[0], fabsf(m[i - from]));
            most[1] = fmaxf(most[1], v[i - from]);
            double p = ref_get(&l->in[0], i) * (1 - lr * l->attr->adamw.weight_decay);
            put_weight(l, at, 4, i,
                       p - lr / correct1 * m[i - from] / (sqrt(v[i - from]) / sqrt(correct2) + l->attr->adamw.eps));
        }
        for (int64_t i = from; i < to; i++) {
            ref_put(&l->out[1], i, nearest(cm, most[0] > 0 ? m[i - from] / most[0] : 0));
            ref_put(&l->out[2], i, nearest(cv, most[1] > 0 ? v[i - from] / most[1] : 0));
        }
        ref_put(&l->out[3], 2 * block, most[0]);
        ref_put(&l->out[3], 2 * block + 1, most[1]);
    }
}

/* --- SGD ----------------------------------------------------------------------------------- */

static void ref_sgd(const struct launch *l)
{
    static const struct update_slots at = {2, 3, 4};
    const double lr = update_rate(l, at);
    if (is_off(l, at)) {
        update_nothing(l, at);
        return;
    }
    for (int64_t i = 0; i < operand_elements(&l->in[0]); i++) {
        double p = ref_get(&l->in[0], i), d = gradient(l, at, i) + l->attr->adamw.weight_decay * p;
        if (launch_has(l, 5)) {
            d += l->attr->adamw.beta1 * ref_get(&l->in[5], i);
            ref_put(&l->out[2], i, d);
        }
        put_weight(l, at, 1, i, p - lr * d);
    }
}

/* --- Adafactor ------------------------------------------------------------------------------- */

/* Returns the mean of g^2 + ADAFACTOR_EPS over a row (step 1) or a column (step C). */
static double mean_square(const struct launch *l, int64_t from, int64_t count, int64_t step)
{
    double sum = 0;
    for (int64_t k = 0; k < count; k++) {
        double g = gradient(l, adafactor_at, from + k * step);
        sum += g * g + ADAFACTOR_EPS;
    }
    return sum / (double)count;
}

static void moments(const struct launch *l, struct matrices x, double beta)
{
    const struct operand *r = &l->out[1], *c = &l->out[3];
    if (!launch_has(l, ADAFACTOR_COLUMNS)) {
        for (int64_t i = 0; i < operand_elements(r); i++)
            ref_put(r, i, beta * ref_get(&l->in[ADAFACTOR_ROWS], i) + (1 - beta) * mean_square(l, i, 1, 1));
        return;
    }
    for (int64_t i = 0; i < x.N * x.R; i++)
        ref_put(r, i, beta * ref_get(&l->in[ADAFACTOR_ROWS], i) + (1 - beta) * mean_square(l, i * x.C, x.C, 1));
    for (int64_t i = 0; i < x.N * x.C; i++)
        ref_put(c, i,
                beta * ref_get(&l->in[ADAFACTOR_COLUMNS], i) +
                    (1 - beta) * mean_square(l, i / x.C * x.R * x.C + i % x.C, x.R, x.C));
}

/* Returns the square of the divisor of g at element i. */
static double second_moment(const struct launch *l, struct matrices x, int64_t i)
{
    const struct operand *r = &l->out[1], *c = &l->out[3];
    if (!launch_has(l, ADAFACTOR_COLUMNS)) return ref_get(r, i);
    const int64_t row = i / x.C, matrix = row / x.R;
    double mean = 0;
    for (int64_t k = 0; k < x.R; k++) mean += ref_get(r, matrix * x.R + k) / (double)x.R;
    return ref_get(r, row) * ref_get(c, matrix * x.C + i % x.C) / mean;
}

static void ref_adafactor(const struct launch *l)
{
    const struct matrices x = matrices_of(l->in[0].rank, l->in[0].dim);
    const int64_t n = operand_elements(&l->in[0]);
    const double lr = update_rate(l, adafactor_at);
    double sum = 0;
    if (is_off(l, adafactor_at)) return;
    moments(l, x, adafactor_beta(((const struct step_block *)l->in[adafactor_at.step].data)->adam_t));
    for (int64_t i = 0; i < n; i++) {
        double g = gradient(l, adafactor_at, i);
        sum += g * g / second_moment(l, x, i);
    }
    const double size = fmax(1, sqrt(sum / (double)n) / ADAFACTOR_CLIP);
    for (int64_t i = 0; i < n; i++) {
        double p = ref_get(&l->in[0], i) * (1 - lr * l->attr->adamw.weight_decay);
        put_weight(l, adafactor_at, 2, i, p - lr / size * gradient(l, adafactor_at, i) / sqrt(second_moment(l, x, i)));
    }
}

REF_KERNEL(ADAMW, adamw);
REF_KERNEL(ADAMW_8BIT, adamw_8bit);
REF_KERNEL(SGD, sgd);
REF_KERNEL(ADAFACTOR, adafactor);
