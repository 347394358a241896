/*
 * conv.h: shared by the convolution kernels, which compute sweeps (graph/sweep.h).
 */
#pragma once

#include "cpu/cpu.h"
#include "graph/sweep.h"

/* Kernels with more taps are left to the reference. */
enum { TAPS_MAX = 1024 };

/* Copies the sweep's taps of the weights as f32: tap t of element (o,c) goes to to[o * o_step + t *
 * tap_step + c]. */
void conv_weights(float *to, int64_t o_step, int64_t tap_step, const struct operand *w, const struct sweep *s,
                  int threads);
/* Does the inverse, for the forward's taps: into dw [O,depth,kh,kw], added to it if `add`. */
void conv_weights_back(float *dw, const float *from, int64_t o_step, int64_t tap_step, const struct conv *n, bool add,
                       int threads);

/* depthwise.c: groups = C. */
uint64_t depthwise_workspace(const struct conv *n, bool backward, int threads);
uint64_t depthwise_dw_workspace(const struct conv *n, int threads);
void depthwise_run(const struct launch *l, const struct conv *n, bool backward);
void depthwise_dw_run(const struct launch *l, const struct conv *n);
