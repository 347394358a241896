/*
 * onednn.h: matrix products by oneDNN, for builds that have it (onednn.c) and for those that do not
 * (onednn_none.c, where nothing matches).
 */
#pragma once

#include "cpu/cpu.h"

bool onednn_linear_match(const struct query *q), onednn_matmul_match(const struct query *q);
uint64_t onednn_linear_workspace(const struct query *q), onednn_matmul_workspace(const struct query *q);
void onednn_linear_run(const struct launch *l), onednn_matmul_run(const struct launch *l);
/* Computes LINEAR's product, then an activation (gemm.c, in every build). */
void onednn_linear_act_run(const struct launch *l);

/* Create, before step 0, the primitive of a launch of one of these kernels and attaches it to the
 * launch (launches of other kernels are unchanged), and release it. */
int onednn_prepare(const struct kernel *k, struct launch *l, struct error *e);
void onednn_release(const struct kernel *k, struct launch *l);

/* Returns the implementation that oneDNN would select for a product, whether or not the kernel's
 * match accepts it; NULL: none. For the benchmark. */
const char *onednn_implementation(const struct query *q, bool linear);
