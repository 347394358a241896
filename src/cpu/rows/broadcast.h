/*
 * broadcast.h: broadcast shapes as few nested loops.
 */
#ifndef CPU_BROADCAST_H
#define CPU_BROADCAST_H

#include "run/kernel.h"

/* Loops over a shape, the innermost first, with the stride of each loop in two dense tensors that
 * are broadcast to the shape: 0 where the tensor is repeated. Dimensions that both tensors traverse
 * contiguously are merged into one loop. */
struct walk {
    int loops;
    int64_t size[MAX_RANK], a[MAX_RANK], b[MAX_RANK];
};
struct walk walk_of(int rank, const int64_t *dim, int a_rank, const int64_t *a_dim, int b_rank, const int64_t *b_dim);

/* Output 0 from inputs 0 and 1, both broadcast to its shape; `tile` computes n elements. */
void broadcast_run(const struct launch *l, void (*tile)(float *, const float *, const float *, int));

#endif
