/*
 * sgd.c: SGD (base/optimizers.h), as torch.optim.SGD without dampening and without Nesterov. Weight
 * decay is part of the gradient; m begins as 0, so that the first m is the gradient.
 */
#include "base/optimizers.h"
#include "cpu/cpu.h"
#include "cpu/update/update.h"

static const struct update_slots sgd_at = {2, 3, 4};
enum { SGD_MOMENT = 5 };

static bool sgd_match(const struct query *q)
{
    return (!query_in(q, SGD_MOMENT) || tensor_is(query_in(q, SGD_MOMENT), DT_F32)) && update_match(q, sgd_at);
}

static void sgd_tile(float *p, float *m, const float *g, int n, struct sgd_scalars s)
{
    if (!m) {
#pragma omp simd
        for (int i = 0; i < n; i++) p[i] = sgd_weight(p[i], sgd_direction(p[i], g[i], &s), &s);
        return;
    }
#pragma omp simd
    for (int i = 0; i < n; i++) {
        m[i] = sgd_moment(m[i], sgd_direction(p[i], g[i], &s), &s);
        p[i] = sgd_weight(p[i], m[i], &s);
    }
}

static void sgd_run(const struct launch *l)
{
    if (update_is_off(l, sgd_at)) return;
    const struct sgd_scalars s = {update_clip(l, sgd_at), (float)l->attr->adamw.weight_decay,
                                  (float)l->attr->adamw.beta1, (float)update_rate(l, sgd_at)};
    const int64_t n = operand_elements(&l->in[0]);
    float *m = launch_has(l, SGD_MOMENT) ? l->in[SGD_MOMENT].data : NULL;
#pragma omp parallel for num_threads(l->threads) schedule(static) if (n > 16384)
    for (int64_t at = 0; at < n; at += TILE) {
        float scratch[2][TILE];
        const int width = row_tile(n - at);
        float *p = update_view(&l->in[0], at, width, scratch[0]);
        sgd_tile(p, m ? m + at : NULL, row_view(&l->in[1], at, width, scratch[1]), width, s);
        update_store(l, sgd_at, at, width, p);
    }
}

CPU_KERNEL(SGD, sgd);
