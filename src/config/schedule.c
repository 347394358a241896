/*
 * schedule.c: four curves after one warmup, which is a line (below) or a logarithm.
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
#include "config/config.h"

#include <math.h>

/* Returns the warmup's steps: DeepSpeed's warmup has at least 2. */
static int64_t warmup_steps(const struct schedule *s)
{
    return s->deepspeed && s->warmup ? max_i64(2, s->warmup) : s->warmup;
}

/* Returns the warmup's factor. DeepSpeed's first two steps both have the start; in its cosine the
 * first has 0. */
static double rise(const struct schedule *s, int64_t step)
{
    const double n = (double)warmup_steps(s), k = (double)max_i64(0, step - s->deepspeed);
    if (s->deepspeed && s->kind == SCHEDULE_COSINE && !step) return 0;
    return s->start + (1 - s->start) * (s->log ? log(k + 1) / log(fmax(2, n)) : k / n);
}

/* Returns what the warmup leaves of the run, at least 1: a run may be no longer than its warmup. */
static double remaining(const struct schedule *s) { return (double)max_i64(1, s->total - warmup_steps(s)); }

/* Returns the number of drops so far: the step of a drop has the lower rate already. */
static int64_t drops(const struct schedule *s, int64_t step)
{
    int64_t n = 0;
    if (s->every) return (step - s->warmup) / s->every;
    while (n < s->n_milestones && s->milestones[n] <= step) n++;
    return n;
}

/* Returns a curve from 1 to 0 as one from 1 to the floor. */
static double above_floor(const struct schedule *s, double factor)
{
    return s->floor + (1 - s->floor) * fmax(0, factor);
}

double schedule_factor(const struct schedule *s, int64_t step)
{
    CHECK(step >= 0 && s->warmup >= 0, "step %lld", (long long)step);
    const int64_t warmup = warmup_steps(s), delayed = max_i64(0, step - s->deepspeed);
    if (delayed < warmup) return rise(s, step);
    switch (s->kind) {
    case SCHEDULE_CONSTANT:
        return 1;
    case SCHEDULE_LINEAR:
        return above_floor(s, (double)(s->total - delayed) / remaining(s));
    case SCHEDULE_COSINE:
        return above_floor(s, 0.5 * (1 + cos(3.14159265358979323846 * ((double)(step - warmup) / remaining(s)))));
    case SCHEDULE_STEP:
        return pow(s->gamma, (double)drops(s, step));
    }
    CHECK(false, "schedule %d", (int)s->kind);
}
