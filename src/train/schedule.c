/*
 * schedule.c: three curves behind one linear warmup.
 *
 *     1 |      ____________ constant
 *       |     /\ `-.
 *       |    /  \   `.      cosine: half a period from 1 to 0
 *       |   /    linear     linear: a straight line to 0
 *     0 |__/______________
 *         0  warmup   total
 */
#include "train/schedule.h"

#include "base/base.h"

#include <math.h>

/* Where we are between the end of the warmup (0) and the end of the run (1).
 * A run no longer than its warmup has no "between": the divisor is at least 1. */
static double progress(int64_t step, int64_t warmup, int64_t total)
{
    return (double)(step - warmup) / (double)max_i64(1, total - warmup);
}

double schedule_factor(enum schedule kind, int64_t step, int64_t warmup, int64_t total)
{
    CHECK(step >= 0 && warmup >= 0, "step %lld", (long long)step);
    if (step < warmup) return (double)step / (double)warmup;
    switch (kind) {
    case SCHEDULE_CONSTANT:
        return 1;
    case SCHEDULE_LINEAR:
        return fmax(0, (double)(total - step) / (double)max_i64(1, total - warmup));
    case SCHEDULE_COSINE:
        return fmax(0, 0.5 * (1 + cos(3.14159265358979323846 * progress(step, warmup, total))));
    }
    CHECK(false, "schedule %d", (int)kind);
}
