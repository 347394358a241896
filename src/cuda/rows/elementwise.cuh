/*
 * elementwise.cuh: launches of elementwise ops that others are made of (act_sums.cu).
 */
#pragma once

#include "cuda/device/kernel.cuh"
extern "C" {
#include "cuda/rows/operand_loops.h"
}

int launch_act_bwd(const struct launch *l, struct error *e);     /* elementwise.cu: dense operands */
int launch_act_bwd_any(const struct launch *l, struct error *e); /* strided.cu: any */
/* Computes y = the column sums of x, or with `add` adds them to y, by a launch with the workspace
 * and form of SUM_TO (sums.cu). */
int launch_sum_columns(const struct launch *l, const struct operand *x, const struct operand *y, bool add,
                       struct error *e);
