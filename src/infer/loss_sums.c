/*
 * loss_sums.c: see loss_sums.h.
 */
#include "infer/loss_sums.h"

int loss_sums_add(struct loss_sums *s, struct run *r, enum program p, id loss, struct step_block b,
                  const struct feed *f, const struct feed_batch *batch, float *value, struct error *e)
{
    const uint32_t n = r->planned.graph.n_counts > 1 ? r->planned.graph.n_counts : 1;
    int rc = PL_OK;
    *value = 0;
    for (uint32_t k = 0; k < n && !rc; k++) {
        float part = 0;
        memset(b.inv_count, 0, sizeof b.inv_count);
        b.inv_count[k] = 1;
        rc = run_put_step(r, &b, e);
        if (!rc) rc = run_program(r, p, e);
        if (!rc) rc = run_read(r, loss, &part, e);
        s->sum[k] += part;
        s->count[k] += feed_count(f, batch, graph_count_name(&r->planned.graph, k));
        *value += part;
    }
    return rc;
}

bool loss_sums_mean(const struct loss_sums *s, double *mean)
{
    bool any = false;
    *mean = 0;
    for (int k = 0; k < STEP_COUNTS; k++) {
        any |= s->count[k] > 0;
        if (s->count[k] > 0) *mean += s->sum[k] / s->count[k];
    }
    return any;
}
