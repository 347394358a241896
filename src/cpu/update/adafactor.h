/*
 * adafactor.h: shared by Adafactor's kernels: its inputs, and a weight as matrices.
 */
#ifndef CPU_ADAFACTOR_H
#define CPU_ADAFACTOR_H

#include "base/optimizers.h"
#include "cpu/update/update.h"

static const struct update_slots adafactor_at = {3, 4, 5};
enum { ADAFACTOR_ROWS = 2, ADAFACTOR_COLUMNS = 6 };

/* N matrices of R x C. A weight that is not factored is rows of one tile: there are no means over
 * them. */
struct matrices {
    int64_t N, R, C;
};
static inline struct matrices matrices_of(int rank, const int64_t *dim)
{
    struct matrices x = {1, 1, 1};
    for (int i = 0; i < rank - 2; i++) x.N *= dim[i];
    if (rank >= 2) x.R = dim[rank - 2];
    if (rank >= 1) x.C = dim[rank - 1];
    return x;
}

#endif
