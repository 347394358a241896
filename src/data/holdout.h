/*
 * holdout.h: which samples of a dataset are held out for evaluation (data.holdout), by their number.
 *
 * The split depends on the number of samples, the fraction and the seed alone: training, evaluation and `plimsoll eval` find
 * the same one in the same files.
 */
#ifndef HOLDOUT_H
#define HOLDOUT_H

#include "base/base.h"

/* By sample, true for round(fraction * n) of them, chosen by the seed. The caller frees it. NULL: the fraction is 0. */
bool *holdout_mark(uint64_t n, double fraction, uint64_t seed);

#endif
