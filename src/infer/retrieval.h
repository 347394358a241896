/*
 * retrieval.h: how often a model finds what belongs to a query, batch by batch: of one that matches
 * masks with texts the mask of a text; of a vision tower with a head the class of an image, or its
 * text among those of the batch.
 *
 * The candidate that it finds is the one with the highest similarity; of equal ones the first.
 * `chance` is what guessing would find: the mean of 1 / candidates.
 */
#pragma once

#include "batch/feed.h"

struct retrieval {
    id similarity;  /* the program's output [rows,Q,M]; of classes [rows,M] */
    float *values;  /* its values */
    uint64_t queries, right;
    double chance;  /* sum of 1 / candidates */
};

/* False: the feed has no queries, and nothing was opened. */
bool retrieval_open(struct retrieval *x, const struct run *r, const struct feed *f, enum program p);
void retrieval_close(struct retrieval *x);
void retrieval_reset(struct retrieval *x);
/* Adds a batch of the feed, after the program has run on it. */
int retrieval_add(struct retrieval *x, struct run *r, const struct feed *f, struct error *e);
/* The share of queries; 0 without any. */
double retrieval_accuracy(const struct retrieval *x);
double retrieval_chance(const struct retrieval *x);
