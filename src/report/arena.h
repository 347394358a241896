/*
 * arena.h: a plot of the arena: time on the x axis, addresses on the y axis, every storage a
 * rectangle whose name appears on hover.
 */
#ifndef REPORT_ARENA_H
#define REPORT_ARENA_H

#include "report/lives.h"

/* Appends the plot to an open page (page.h). `seconds`: time of each node in one step, the width of
 * its instant. */
void arena_draw(const struct plan *p, const struct graph *g, const struct lives *l, const double *seconds,
                struct text *out);

/* Appends a curve of the live bytes over the time of a step. */
void arena_curve(const struct graph *g, const struct lives *l, const double *seconds, struct text *out);

#endif
