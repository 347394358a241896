/*
 * curve.h: a line chart of a series of numbers as a figure: a caption, and an SVG that is as wide
 * as its column.
 */
#ifndef REPORT_CURVE_H
#define REPORT_CURVE_H

#include "base/base.h"

struct series {
    const char *name;
    VEC(double) x, y;   /* of equal length, x ascending; a y that is not finite is a gap */
};

/* Draws one or two series over the same x axis, which `x` names. Draws nothing when no point is
 * finite. */
void curve_draw(struct text *out, const char *title, const char *x, const struct series *const *series, int n);

#endif
