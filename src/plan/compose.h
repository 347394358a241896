/*
 * compose.h: bounds of a step that was never compiled, from surveys (survey.h) of steps that were:
 * some blocks as in one survey, the others as in another.
 *
 *     block             1    2    3    4    ..
 *     recomputed        x    x
 *     weights fetched   x         x
 *     survey of it      D    B    C    A          A: neither   B: recomputed   C: fetched   D: both
 */
#pragma once

#include "plan/survey.h"

struct composition {
    const struct survey *of[2][2];        /* by whether weights are fetched, and whether it is recomputed */
    const bool *is_fetched, *is_recomputed; /* by block; 0: for the nodes in no block */
    bool away;                            /* activations are offloaded in the surveys */
    bool lean;                            /* without the gradients that are handed to program update */
};

struct composed {
    uint64_t bytes;            /* transients of the step: a lower bound */
    double lane[LANE_COUNT];   /* seconds of each lane */
    double seconds;            /* of the step: exact without copies, else a lower bound */
};
/* Composes a step. A tensor that passes between blocks of two surveys may be counted in both;
 * the bound does not count it twice. */
struct composed compose(const struct composition *c);
