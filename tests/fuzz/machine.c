/*
 * machine.c: what fuzz targets say of the machine instead of asking it, so that readers of profiles need no kernels.
 */
#include "run/device.h"

void cpu_identity(struct cpu_identity *c) { *c = (struct cpu_identity){0}; }
bool cpu_has_onednn(void) { return false; }
void profile_onednn(struct profile *p, bool takes_part) { (void)p, (void)takes_part; }
