/*
 * stepper.c: see stepper.h.
 */
#include "train/stepper.h"

void stepper_begin(struct stepper *s, struct run *r, struct feed *data)
{
    *s = (struct stepper){.run = r, .data = data, .end = s->end};
    tickets_begin(&s->tickets, r);
}

int64_t stepper_samples_at(const struct stepper *s, uint64_t position)
{
    if (!s->data->ops) return s->run->planned.effective_batch;
    uint64_t left = s->end - min_u64(s->end, position);
    return (int64_t)min_u64(left, (uint64_t)s->run->planned.effective_batch);
}

/* Reads this rank's shares of the step's n samples: share i has the samples from i times
 * planned_share_samples on. */
static int read_shares(struct stepper *s, uint64_t position, int64_t n, struct feed_batch *batch, struct error *e)
{
    struct run *r = s->run;
    const int64_t each = planned_share_samples(&r->planned), rows = planned_share_rows(&r->planned);
    int rc = PL_OK;
    *batch = (struct feed_batch){0};
    for (int k = 0; k < planned_own_shares(&r->planned) && !rc; k++) {
        struct feed_batch share;
        const int64_t first = (planned_first_share(&r->planned) + k) * each;
        r->share.row = k * rows;
        r->share.sample = first;
        rc = feed_put(s->data, r, position + (uint64_t)first, max_i64(0, min_i64(each, n - first)), rows, &share, e);
        for (int i = 0; i < FEED_COUNTS; i++) batch->count[i] += share.count[i];
        batch->units += share.units;
    }
    r->share.row = r->share.sample = 0;
    return rc;
}

static int read_batch(struct stepper *s, uint64_t position, struct step_samples *samples, struct feed_batch *batch,
                      struct error *e)
{
    int rc = read_shares(s, position, samples->n, batch, e);
    samples->broken = s->data->broken;
    samples->units = batch->units;
    return rc;
}

int stepper_get_batch(struct stepper *s, uint64_t position, uint64_t broken, struct feed_batch *batch, struct error *e)
{
    struct step_samples *samples = &s->samples[s->tickets.submitted % TICKETS];
    if (!tickets_in_flight(&s->tickets)) s->position = position;
    *samples = (struct step_samples){.n = stepper_samples_at(s, s->position), .broken = broken};
    if (!s->data->ops) return PL_OK;
    const bool prefetched = s->next.samples.n && s->next.position == s->position;
    if (prefetched && s->next.failed.code) {
        *e = s->next.failed;
        return e->code;
    }
    if (!prefetched || !s->run->prefetched || s->next.samples.n != samples->n)
        return read_batch(s, s->position, samples, batch, e);
    *batch = s->next.batch;
    *samples = s->next.samples;
    return PL_OK;
}

int stepper_submit(struct stepper *s, const struct step_block *b, double from, struct error *e)
{
    const int64_t n = s->samples[s->tickets.submitted % TICKETS].n;
    int rc = ticket_submit(&s->tickets, b, from, e);
    if (!rc) s->position += (uint64_t)n;
    return rc;
}

int stepper_prefetch(struct stepper *s, struct error *e)
{
    const int64_t n = stepper_samples_at(s, s->position);
    if (!s->data->ops || !n || !run_can_prefetch(s->run)) return PL_OK;
    int rc = run_prefetch_begin(s->run, e);
    if (rc) return rc;
    s->next.position = s->position;
    s->next.samples = (struct step_samples){.n = n};
    s->next.failed.code = PL_OK;
    rc = read_batch(s, s->position, &s->next.samples, &s->next.batch, &s->next.failed);
    run_prefetch_end(s->run, !rc);
    return PL_OK;
}

int stepper_retire(struct stepper *s, struct ticket *out, struct step_samples *samples, struct error *e)
{
    *samples = s->samples[s->tickets.retired % TICKETS];
    return ticket_retire(&s->tickets, out, e);
}

void stepper_restore(struct stepper *s, uint64_t position)
{
    struct feed_batch batch;
    struct error ignored;
    if (!s->data->ops || !(tickets_in_flight(&s->tickets) || s->run->prefetched || s->next.failed.code)) return;
    read_shares(s, position, stepper_samples_at(s, position), &batch, &ignored);
}
