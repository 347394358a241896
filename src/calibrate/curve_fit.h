/*
 * curve_fit.h: from times of nodes to a curve over the ideal time (cost/calibration.h). Nodes whose
 * ideal times are within a factor of four make one point, at their mean: the sum of their times is
 * preserved.
 */
#ifndef CURVE_FIT_H
#define CURVE_FIT_H

#include "cost/calibration.h"

struct curve_fit {
    struct curve_bucket {
        double n, ideal, seconds;
    } bucket[CURVE_POINTS];
};

/* Adds one launch: its ideal time, and its measured time beyond the launch cost. */
void curve_fit_add(struct curve_fit *f, double ideal, double seconds);
void curve_fit_end(const struct curve_fit *f, struct curve *c);

#endif
