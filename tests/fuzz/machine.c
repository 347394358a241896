/*
 * machine.c: fixed answers to queries of the machine's features, so that fuzz targets of the readers of
 * profiles link without the CPU kernels.
 */
#include "run/device.h"

void cpu_identity(struct cpu_identity *c) { *c = (struct cpu_identity){0}; }
bool cpu_has_onednn(void) { return false; }
void profile_onednn(struct profile *p, bool takes_part) { (void)p, (void)takes_part; }
