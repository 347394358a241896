/*
 * curve.h: a line chart of a series of numbers as a small SVG with axes.
 */
#ifndef REPORT_CURVE_H
#define REPORT_CURVE_H

#include "base/base.h"

struct series {
    const char *name;
    VEC(double) x, y;   /* of equal length; a y that is not finite is a gap */
};

/* Draws one or two series over the same x axis. Draws nothing when no point is finite. */
void curve_draw(struct text *out, const char *title, const struct series *const *series, int n);

#endif
