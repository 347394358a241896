/*
 * eval_passes.c: the forward over all samples, and what is measured of each batch: the loss, masks,
 * or texts that were found.
 */
#include <math.h>

#include "base/progress.h"
#include "cli/eval.h"
#include "cli/eval_table.h"
#include "infer/loss_sums.h"
#include "infer/mask_scores.h"
#include "infer/retrieval.h"

static int run_pass(const struct eval_pass *v, struct progress *p, struct loss_sums *sums, struct error *e)
{
    const struct step_block b = {.loss_scale = 1, .step = 1, .adam_t = 1};
    struct run *r = v->run;
    const int64_t B = r->planned.effective_batch, n = (int64_t)v->feed->samples;
    const id loss = graph_find_output(&r->planned.graph, PROGRAM_STEP, "loss");
    int rc = PL_OK;
    for (int64_t at = 0; at < n && !rc; at += B) {
        struct feed_batch batch;
        float l = 0;
        rc = feed_put(v->feed, r, (uint64_t)at, min_i64(B, n - at), B, &batch, e);
        if (!rc) rc = loss_sums_add(sums, r, PROGRAM_STEP, loss, b, v->feed, &batch, &l, e);
        if (!rc && !isfinite(l))
            rc = error_set(e, PL_FAIL, "the loss is %g in samples %lld to %lld", (double)l, (long long)at,
                           (long long)min_i64(at + B, n) - 1);
        if (!rc && v->masks) rc = mask_scores_add(v->masks, r, v->feed, e);
        if (!rc && v->found) rc = retrieval_add(v->found, r, v->feed, e);
        if (!rc && v->own) rc = own_size_add(v->own, r, v->feed, e);
        progress_add(p, 1);
    }
    return rc;
}

int eval_passes(const struct eval_pass *v, double *loss, struct error *e)
{
    struct progress p;
    struct loss_sums sums = {0};
    const int passes = feed_passes(v->feed);
    int rc = PL_OK;
    progress_begin(&p, "evaluating", "batches",
                   (uint64_t)(passes * ceil_div((int64_t)v->feed->samples, v->run->planned.effective_batch)));
    for (int pass = 0; pass < passes && !rc; pass++) {
        feed_set_pass(v->feed, pass);
        rc = run_pass(v, &p, &sums, e);
    }
    if (v->counted) *v->counted = sums.count[0];
    if (!loss_sums_mean(&sums, loss) && !rc) rc = feed_empty(v->feed, e);
    progress_clear();
    return rc;
}
