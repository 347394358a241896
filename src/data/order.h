/*
 * order.h: the order in which the samples of a dataset are read.
 */
#pragma once

#include "base/base.h"

/* Returns the sample at `position` (0 <= position < n) of an epoch. Each epoch has every sample
 * exactly once; with shuffle, in an order that depends only on seed and epoch. It is a pure
 * function without state: a resumed run, a rank or a loader thread computes any position and gets
 * the same result. */
uint64_t sample_order(uint64_t seed, uint64_t epoch, uint64_t position, uint64_t n, bool shuffle);

/* Returns the sample at position p of the whole run, epoch after epoch: p is position p % n of
 * epoch p / n. */
uint64_t sample_at(uint64_t seed, uint64_t p, uint64_t n, bool shuffle);

/* ---- Holding samples out ----
 *
 * which samples data.holdout holds out for evaluation.
 *
 * A sample has a rank, and those with the lowest ranks are held out. Samples of one group (the
 * slices of a volume, the images of a patient, the conversations about a video) have one rank: a
 * group is never on both sides, because its samples are nearly equal, and a model that was trained
 * on some of them would score too well on the others. The split depends on the samples, the
 * fraction and the seed only: training, evaluation and `plimsoll eval` find the same one in the
 * same files.
 */

struct ranked {
    uint64_t rank, sample;
};
/* Sorts samples by their ranks and returns how many, from the first, are held out: round(fraction *
 * n), moved to the nearest border between two ranks that leaves some on both sides. If all have one
 * rank there is none, and a group is on both sides. */
uint64_t holdout_cut(struct ranked *samples, uint64_t n, double fraction);
/* Reports whether sorted samples, more than one, have one rank. */
bool holdout_one_group(const struct ranked *samples, uint64_t n);

/* A sample that belongs to a group, by its number and a hash of the group's name. */
struct group_member {
    uint64_t group, sample;
};
/* Returns by sample number whether it is held out; the caller frees it. NULL: the fraction is 0.
 * Samples that are no members are groups of their own. Members are sorted. *one: all samples are of
 * one group. */
bool *holdout_mark(uint64_t n, struct group_member *members, uint64_t n_members, double fraction, uint64_t seed,
                   bool *one);
