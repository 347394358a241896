/*
 * curve_fit.c: see curve_fit.h.
 */
#include "calibrate/curve_fit.h"

#include <math.h>

#define IDEAL_LEAST 1e-7

/* Buckets begin at 1e-7 seconds; each spans a factor of four. */
static int bucket_of(double ideal)
{
    int k = ideal > IDEAL_LEAST ? (int)floor(log2(ideal / IDEAL_LEAST) / 2) : 0;
    return k < CURVE_POINTS ? k : CURVE_POINTS - 1;
}

void curve_fit_add(struct curve_fit *f, double ideal, double seconds)
{
    struct curve_bucket *b = &f->bucket[bucket_of(ideal)];
    b->n++;
    b->ideal += fmax(ideal, IDEAL_LEAST);
    b->seconds += fmax(seconds, 0);
}

void curve_fit_end(const struct curve_fit *f, struct curve *c)
{
    c->n = 0;
    for (int k = 0; k < CURVE_POINTS; k++) {
        const struct curve_bucket *b = &f->bucket[k];
        if (b->n) c->at[c->n++] = (struct curve_point){b->ideal / b->n, fmin(fmax(b->seconds / b->ideal, 0.01), 1e5)};
    }
}
