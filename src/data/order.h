/*
 * order.h: in which order the samples of a data set are read.
 */
#ifndef ORDER_H
#define ORDER_H

#include <stdbool.h>
#include <stdint.h>

/* The sample at `position` (0 <= position < n) of an epoch. Over the n positions
 * every sample comes exactly once; with shuffle, in an order that depends on seed
 * and epoch alone. A pure function without memory: a resumed run, a rank or a
 * loader thread asks for any position and gets what the first run got. */
uint64_t sample_order(uint64_t seed, uint64_t epoch, uint64_t position, uint64_t n, bool shuffle);

/* The same over the whole run, epoch after epoch: global position p is place
 * p % n of epoch p / n. */
uint64_t sample_at(uint64_t seed, uint64_t p, uint64_t n, bool shuffle);

#endif
