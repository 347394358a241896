/*
 * curve_fit.h: from times of nodes to a curve over the ideal (run/calibration.h). Nodes whose
 * ideals are within a factor of four make a point, at their mean: the sum of their times is kept.
 */
#ifndef CURVE_FIT_H
#define CURVE_FIT_H

#include "run/calibration.h"

struct curve_fit {
    struct curve_bucket {
        double n, ideal, seconds;
    } bucket[CURVE_POINTS];
};

/* One launch: its ideal, and what it took beyond the price of a launch. */
void curve_fit_add(struct curve_fit *f, double ideal, double seconds);
void curve_fit_end(const struct curve_fit *f, struct curve *c);

#endif
