/*
 * machine.c: fixed answers to queries of the machine's features, so that fuzz targets of the
 * readers of profiles and plans link without kernels; and empty tables of these.
 */
#include "run/device.h"
#include "graph/ops.h"
#include "run/kernel.h"

const struct kernel *const ref_kernels[OP_COUNT], *const cpu_kernels[OP_COUNT], *const cuda_kernels[] = {NULL};

void cpu_identity(struct cpu_identity *c) { *c = (struct cpu_identity){0}; }
bool cpu_has_onednn(void) { return false; }
void profile_onednn(struct profile *p, bool takes_part) { (void)p, (void)takes_part; }
