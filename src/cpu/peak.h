/*
 * peak.h: this machine's peak rates, measured (see peak.c); run/device.h has its name.
 */
#ifndef PEAK_H
#define PEAK_H

#include "base/base.h"
#include "base/dtype.h"

/* Multiply-adds, in flops per second; of f32 if the processor has no instruction for t. */
double peak_measure(enum dtype t, int threads);
/* Bytes per second of adding two arrays into a third, `bytes` in all; 0: out of memory. */
double peak_stream(uint64_t bytes, int threads);

#endif
