/*
 * train_batch.c: the batch of a step, and the prefetched batch of the next one.
 *
 * The host prepares the next batch while a step runs; it is copied to the GPU after that step:
 *
 *     host    submit n, prefetch n+1, retire n-1   submit n+1, prefetch n+2, retire n
 *     GPU    .. n-1][ step n ............][update n][ step n+1 ..........][update n+1]
 *     copies                               [copy n+1]                      [copy n+2]
 *
 * The batch is in one buffer, which is free when the previous batch has been copied. That copy
 * follows the previous step, so the host has the whole duration of this step. An evaluation would
 * overwrite the batch, so nothing is prefetched before one. The samples of a batch depend only on
 * its position, not on when it is prepared.
 */
#include "train/trainer.h"

/* Samples of the step at a position: the effective batch, or the rest at the end of the last epoch.
 * Other epochs end within a batch. */
int64_t trainer_samples_at(const struct trainer *t, uint64_t position)
{
    if (!t->data.ops) return t->run.effective_batch;
    uint64_t left = t->end - min_u64(t->end, position);
    return (int64_t)min_u64(left, (uint64_t)t->run.effective_batch);
}

const char *trainer_unit(const struct trainer *t) { return t->data.ops ? t->data.ops->unit : "tokens"; }

int trainer_prefetch_batch(struct trainer *t, struct error *e)
{
    const uint64_t position = t->position, done = trainer_steps_submitted(t);
    const int64_t n = trainer_samples_at(t, position);
    if (!t->data.ops || done >= t->total || !n || trainer_evaluation_due(t, done) || !run_can_prefetch(&t->run)) return PL_OK;
    int rc = run_prefetch_begin(&t->run, e);
    if (rc) return rc;
    t->next.position = position;
    t->next.samples = n;
    t->next.failed.code = PL_OK;
    rc = feed_put(&t->data, &t->run, position, n, run_samples(&t->run), &t->next.batch, &t->next.failed);
    t->next.broken = t->data.broken;
    run_prefetch_end(&t->run, !rc);
    return PL_OK;
}

int trainer_get_batch(struct trainer *t, int64_t samples, struct feed_batch *batch, uint64_t *broken, struct error *e)
{
    if (!t->data.ops) return PL_OK;
    const bool prefetched = t->next.samples && t->next.position == t->position;
    if (prefetched && t->next.failed.code) {
        *e = t->next.failed;
        return e->code;
    }
    if (prefetched && t->run.prefetched && t->next.samples == samples) {
        *batch = t->next.batch;
        *broken = t->next.broken;
        return PL_OK;
    }
    int rc = feed_put(&t->data, &t->run, t->position, samples, run_samples(&t->run), batch, e);
    *broken = t->data.broken;
    return rc;
}
