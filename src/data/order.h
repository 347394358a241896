/*
 * order.h: the order in which the samples of a dataset are read.
 */
#ifndef ORDER_H
#define ORDER_H

#include <stdbool.h>
#include <stdint.h>

/* Returns the sample at `position` (0 <= position < n) of an epoch. Each epoch has every sample
 * exactly once; with shuffle, in an order that depends only on seed and epoch. It is a pure
 * function without state: a resumed run, a rank or a loader thread computes any position and gets
 * the same result. */
uint64_t sample_order(uint64_t seed, uint64_t epoch, uint64_t position, uint64_t n, bool shuffle);

/* Returns the sample at position p of the whole run, epoch after epoch: p is position p % n of
 * epoch p / n. */
uint64_t sample_at(uint64_t seed, uint64_t p, uint64_t n, bool shuffle);

#endif
