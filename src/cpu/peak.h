/*
 * peak.h: this machine's ceilings, measured (see peak.c); run/device.h has its name.
 */
#ifndef PEAK_H
#define PEAK_H

#include "base/base.h"
#include "base/dtype.h"

/* Multiply-adds, in flops a second; of f32 where the processor does not multiply t itself. */
double peak_measure(enum dtype t, int threads);
/* Bytes a second of a sum of two arrays into a third, `bytes` in all; 0: no memory for it. */
double peak_stream(uint64_t bytes, int threads);

#endif
