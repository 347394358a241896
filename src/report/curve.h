/*
 * curve.h: a series of numbers as a small SVG drawing with axes.
 */
#ifndef REPORT_CURVE_H
#define REPORT_CURVE_H

#include "base/base.h"

struct series {
    const char *name;
    VEC(double) x, y;   /* equally many; y that is not finite is a gap */
};

/* Draws one or two series over the same x. Nothing when there is no finite point. */
void curve_draw(struct text *out, const char *title, const struct series *const *series, int n);

#endif
