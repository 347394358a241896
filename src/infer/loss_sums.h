/*
 * loss_sums.h: the mean loss over a dataset, added up batch by batch.
 *
 * Each loss of a model is divided by its own count over the whole dataset, which is known at the
 * end. So a batch runs once for each count, with that one 1 and the others infinite, and the sums
 * are divided at last. A model with one count runs once.
 */
#pragma once

#include "batch/feed.h"

struct loss_sums {
    double sum[STEP_COUNTS], count[STEP_COUNTS]; /* in the order of graph.counts */
};

/* Runs a program on the batch that was just put, with a step block `b`, and adds its output `loss`,
 * which is in *value too. */
int loss_sums_add(struct loss_sums *s, struct run *r, enum program p, id loss, struct step_block b,
                  const struct feed *f, const struct feed_batch *batch, float *value, struct error *e);
/* Computes the mean; returns false if nothing was counted. */
bool loss_sums_mean(const struct loss_sums *s, double *mean);
