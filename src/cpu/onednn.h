/*
 * onednn.h: matrix products made by oneDNN, for builds that have it (onednn.c) and
 * for those that do not (onednn_none.c, where nothing matches).
 */
#ifndef CPU_ONEDNN_H
#define CPU_ONEDNN_H

#include "cpu/cpu.h"

bool onednn_linear_match(const struct query *q), onednn_matmul_match(const struct query *q);
uint64_t onednn_linear_workspace(const struct query *q), onednn_matmul_workspace(const struct query *q);
void onednn_linear_run(const struct launch *l), onednn_matmul_run(const struct launch *l);
/* LINEAR's product and then an activation (linear_act.c, in every build). */
void onednn_linear_act_run(const struct launch *l);

/* Before step 0: makes what a launch of one of these kernels needs, and hangs it on the
 * launch (other kernels' are left alone); and gives it back. */
int onednn_prepare(const struct kernel *k, struct launch *l, struct error *e);
void onednn_release(const struct kernel *k, struct launch *l);

/* The implementation that oneDNN would take for a product that its kernel's match is asked
 * about, refused or not; NULL: it has none. For the bench. */
const char *onednn_implementation(const struct query *q, bool linear);

#endif
