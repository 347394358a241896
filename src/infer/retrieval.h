/*
 * retrieval.h: how often a model that matches masks with texts finds the mask of a query, batch by batch.
 *
 * The mask that it finds is the one of the image with the highest similarity; of equal ones the first. `chance` is what
 * guessing would find: the mean of 1 / masks of the image.
 */
#ifndef RETRIEVAL_H
#define RETRIEVAL_H

#include "feed/feed.h"

struct retrieval {
    id similarity;  /* the program's output [rows,Q,M] */
    float *values;  /* its values */
    uint64_t queries, right;
    double chance;  /* sum of 1 / masks */
};

/* False: the program has no similarities, and nothing was opened. */
bool retrieval_open(struct retrieval *x, const struct run *r, enum program p);
void retrieval_close(struct retrieval *x);
void retrieval_reset(struct retrieval *x);
/* After the program has run on a batch of the feed. */
int retrieval_add(struct retrieval *x, struct run *r, const struct feed *f, struct error *e);
/* The share of queries; 0 without any. */
double retrieval_accuracy(const struct retrieval *x);
double retrieval_chance(const struct retrieval *x);

#endif
