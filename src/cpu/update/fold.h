/*
 * fold.h: the sum of two terms of the tree over shares and ranks (fold.c, collective.c).
 */
#ifndef CPU_FOLD_H
#define CPU_FOLD_H

#include "run/kernel.h"

/* to = a + b, n elements of dense memory; `to` may be a or b. */
void fold_add(void *to, const void *a, const void *b, enum dtype t, int64_t n, int threads);

#endif
