/*
 * adafactor.h: shared by Adafactor's kernels: its constants, and a weight as matrices.
 */
#ifndef CPU_ADAFACTOR_H
#define CPU_ADAFACTOR_H

#include <math.h>

#include "cpu/update.h"

/* Added to squares; the upper bound of the update's root mean square. */
#define ADAFACTOR_EPS 1e-30
#define ADAFACTOR_CLIP 1.0
/* The decay of the second moment at update t. */
static inline double adafactor_beta(const struct step_block *step) { return 1 - pow(step->adam_t, -0.8); }

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
