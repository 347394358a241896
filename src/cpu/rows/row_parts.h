/*
 * row_parts.h: the parts of RMSNORM (norms.c) and ROPE (rope.c) that norm_rope.c runs one after
 * the other.
 */
#pragma once

#include "run/kernel.h"

/* Computes y and rstd of row r of x, for a launch of RMSNORM. */
void rmsnorm_row(const struct launch *l, const struct operand *x, const struct operand *w, int64_t r);
/* Computes dx of the rows from `first` to before `last` and adds to dw [C], for a launch of
 * RMSNORM_BWD. */
void rmsnorm_bwd_rows(const struct launch *l, int64_t first, int64_t last, float *dw);

/* Rotates the heads of place t in all sequences, for a launch of ROPE. */
void rope_place(const struct launch *l, int64_t t);
/* Rotates the heads from `first` to before `last`, which are of one token: row (b T + t) H + h is a
 * head. */
void rope_heads(const struct launch *l, int64_t first, int64_t last);
