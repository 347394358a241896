/*
 * arena.h: the arena as an image: time from left to right, addresses upwards, every
 * storage a rectangle that says what it is when pointed at.
 */
#ifndef REPORT_ARENA_H
#define REPORT_ARENA_H

#include "report/lives.h"

/* `seconds` by node, of one step: how wide an instant is. A part of an open page (page.h). */
void arena_draw(const struct plan *p, const struct graph *g, const struct lives *l, const double *seconds, struct text *out);

/* The bytes alive over the time of a step, as a curve. */
void arena_curve(const struct graph *g, const struct lives *l, const double *seconds, struct text *out);

#endif
