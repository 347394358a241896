/*
 * activations.h: ACT's functions for kernels that apply one to elements they have just computed. An
 * element's bits do not depend on its tile.
 */
#pragma once

#include "run/kernel.h"

/* y = f(x) for n elements (at most TILE, rows.h) from `at` on of two dense operands, which may be
 * the same; and for all elements. */
void act_tile(enum act_kind kind, const struct operand *y, const struct operand *x, int64_t at, int n);
void act_all(enum act_kind kind, const struct operand *y, const struct operand *x, int threads);
/* Computes y = f(x) and slope = f'(x) in one pass: they share most of their work. Bit-identical to
 * separate passes. */
void act_both(enum act_kind kind, const struct operand *y, float *slope, const struct operand *x, int threads);
