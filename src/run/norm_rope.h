/*
 * norm_rope.h: RMSNORM_ROPE and its gradient as launches of the two ops.
 *
 *     forward    norm: x, w -> y, rstd                 rope: y -> y
 *     backward   rope, inverted: dy -> dx              norm's gradient: dx, x, w, rstd -> dx, dw
 *
 * What is between the two is in y, or in dx. A kernel of a device runs the two row by row, or one
 * after the other.
 */
#pragma once

#include "run/kernel.h"

struct norm_rope {
    struct launch norm, rope;
    union attr norm_attr, rope_attr;
};
void norm_rope_apart(struct norm_rope *to, const struct launch *l);
void norm_rope_bwd_apart(struct norm_rope *to, const struct launch *l);
