/*
 * schedule.c: four curves after one linear warmup.
 *
 *     1 |      ____________ constant
 *       |     /\ `-.
 *       |    /  \   `.      cosine: half a period from 1 to the floor
 *       |   /    linear     linear: a straight line to the floor, here 0
 *     0 |__/______________
 *         0  warmup   total
 *
 *     1 |     /----.
 *       |    /     |        step: multiplied by gamma at every drop
 *       |   /      `----.
 *     0 |__/____________`--
 */
#include "config/schedule.h"

#include "base/base.h"

#include <math.h>

/* Progress between the end of the warmup (0) and the end of the run (1). If the run is not longer
 * than its warmup, the divisor is still at least 1. */
static double progress(const struct schedule *s, int64_t step)
{
    return (double)(step - s->warmup) / (double)max_i64(1, s->total - s->warmup);
}

/* Number of drops so far: the step of a drop has the lower rate already. */
static int64_t drops(const struct schedule *s, int64_t step)
{
    int64_t n = 0;
    if (s->every) return (step - s->warmup) / s->every;
    while (n < s->n_milestones && s->milestones[n] <= step) n++;
    return n;
}

/* A curve from 1 to 0 as one from 1 to the floor. */
static double above_floor(const struct schedule *s, double factor) { return s->floor + (1 - s->floor) * fmax(0, factor); }

double schedule_factor(const struct schedule *s, int64_t step)
{
    CHECK(step >= 0 && s->warmup >= 0, "step %lld", (long long)step);
    if (step < s->warmup) return (double)step / (double)s->warmup;
    switch (s->kind) {
    case SCHEDULE_CONSTANT:
        return 1;
    case SCHEDULE_LINEAR:
        return above_floor(s, (double)(s->total - step) / (double)max_i64(1, s->total - s->warmup));
    case SCHEDULE_COSINE:
        return above_floor(s, 0.5 * (1 + cos(3.14159265358979323846 * progress(s, step))));
    case SCHEDULE_STEP:
        return pow(s->gamma, (double)drops(s, step));
    }
    CHECK(false, "schedule %d", (int)s->kind);
}
