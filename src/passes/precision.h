/*
 * precision.h: memory.precision as a policy for each operand of a product (precisions.def).
 */
#pragma once

#include "base/dtype.h"

enum precision {
#define PRECISION(NAME, ...) PRECISION_##NAME,
#include "passes/precisions.def"
#undef PRECISION
    PRECISIONS
};

/* The forms in which a linear layer's products read their operands. */
struct policy {
    const char *word;       /* the value of memory.precision */
    enum dtype compute;     /* dtype of activations, results and plain operands */
    bool masters;           /* trained weights have f32 master weights, unless they are f32 */
    uint8_t x, w, dy;       /* enum stored (graph/stored.h): operands of forward and dx */
    uint8_t summed;         /* the same: both operands of dw */
};
extern const struct policy policies[PRECISIONS];
