/*
 * optimizers.h: what an optimizer does to one element, written once for the host and for GPUs.
 *
 *     AdamW       p -= lr wd p
 *                 m += (1-b1) (g - m)          v = b2 v + (1-b2) g^2
 *                 p -= lr / (1-b1^t) * m / (sqrt(v) / sqrt(1-b2^t) + eps)
 *     SGD         d = g + wd p                 m = momentum m + d          p -= lr m
 *     Adafactor   u = g / sqrt(v), or g times a factor of its row and one of its column
 *                 p = p (1 - lr wd) - lr u
 *
 * g is multiplied by the clip factor first. The scalars of a step are computed in double and
 * rounded once. AdamW, SGD and the last line of Adafactor give the same bits on both devices, so an
 * update may run on either: shared.h rounds every product and sum. Adafactor's moment may be
 * contracted into an fma on a GPU.
 */
#pragma once

#include <math.h>

#include "base/shared.h"

/* Returns 1 - lr wd, the share of a weight that weight decay leaves. */
SHARED float decay_keep(double lr, double weight_decay)
{
    return (float)shared_sub_double(1, shared_mul_double(lr, weight_decay));
}

/* --- AdamW ------------------------------------------------------------------------------- */

struct adamw_scalars {
    float keep;             /* 1 - lr wd */
    float rate1, b2, rate2; /* 1-b1, b2, 1-b2 */
    float root;             /* sqrt(1-b2^t) */
    float eps, size;        /* lr / (1-b1^t) */
    float clip;             /* factor on the gradient */
};

/* Returns the bias correction of the first moment at update t; adamw_root returns the root of the
 * second moment's. */
SHARED double adamw_correction(double beta1, int32_t t)
{
    return shared_sub_double(1, shared_power(beta1, (uint32_t)t));
}
SHARED float adamw_root(double beta2, int32_t t)
{
    return (float)sqrt(shared_sub_double(1, shared_power(beta2, (uint32_t)t)));
}

SHARED void adamw_moments(float *m, float *v, float g, const struct adamw_scalars *s)
{
    const float d = shared_mul(g, s->clip);
    *m = shared_add(*m, shared_mul(s->rate1, shared_sub(d, *m)));
    *v = shared_add(shared_mul(s->b2, *v), shared_mul(shared_mul(s->rate2, d), d));
}

SHARED float adamw_weight(float p, float m, float v, const struct adamw_scalars *s)
{
    const float step = shared_div(m, shared_add(shared_div(shared_sqrt(v), s->root), s->eps));
    return shared_sub(shared_mul(p, s->keep), shared_mul(s->size, step));
}

/* --- SGD --------------------------------------------------------------------------------- */

struct sgd_scalars {
    float clip, decay, momentum, rate;
};

/* Returns the direction in which the weight moves, before momentum. With momentum, the new moment
 * takes its place. */
SHARED float sgd_direction(float p, float g, const struct sgd_scalars *s)
{
    return shared_add(shared_mul(g, s->clip), shared_mul(s->decay, p));
}
SHARED float sgd_moment(float m, float direction, const struct sgd_scalars *s)
{
    return shared_add(shared_mul(s->momentum, m), direction);
}
SHARED float sgd_weight(float p, float direction, const struct sgd_scalars *s)
{
    return shared_sub(p, shared_mul(s->rate, direction));
}

/* --- Adafactor --------------------------------------------------------------------------- */

/* Added to squares; the upper bound of the update's root mean square. */
#define ADAFACTOR_EPS 1e-30
#define ADAFACTOR_CLIP 1.0

/* Returns the decay of the second moment at update t. */
SHARED double adafactor_beta(double t) { return 1 - pow(t, -0.8); }
/* Returns the new second moment of an element, or of a row or column, of which `square` is the
 * mean. */
SHARED float adafactor_moment(float v, float square, float beta) { return beta * v + (1 - beta) * square; }
SHARED float adafactor_square(float d) { return d * d + (float)ADAFACTOR_EPS; }
/* Returns u from the factors of row and column; adafactor_whole returns it from the element's own
 * moment. */
SHARED float adafactor_factored(float row, float column, float g, float clip) { return row * column * (g * clip); }
SHARED float adafactor_whole(float v, float g, float clip) { return g * clip / shared_sqrt(v); }
SHARED float adafactor_weight(float p, float u, float keep, float rate)
{
    return shared_sub(shared_mul(p, keep), shared_mul(rate, u));
}
