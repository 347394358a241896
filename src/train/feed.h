/*
 * feed.h: where a step's batch comes from, whatever the data are.
 *
 *     files ─ feed ─ input storages of the step or of the evaluation
 *
 * A feed knows its samples by position: the order is a pure function of seed and
 * position, so the trainer keeps one number and a resumed run asks for the same
 * samples. A feed may read ahead; what it gives does not depend on that.
 */
#ifndef FEED_H
#define FEED_H

#include "train/run.h"

enum feed_role { FEED_TRAIN, FEED_VALIDATION };

/* What a batch holds. */
struct feed_batch {
    double count;  /* what its loss is divided by: tokens that have a successor, masks */
    double units;  /* what speed is counted in: tokens, images */
};

struct feed;
struct feed_ops {
    const char *unit;           /* "tokens": of feed_batch.units */
    int (*open)(struct feed *f, struct run *r, enum feed_role role, struct error *e);
    int (*put)(struct feed *f, struct run *r, uint64_t position, int64_t samples, int64_t rows, struct feed_batch *out, struct error *e);
    void (*close)(struct feed *f);
};

struct feed {
    const struct feed_ops *ops; /* NULL: not open */
    const struct config *config;
    enum feed_role role;
    uint64_t samples;           /* in the set */
    void *state;                /* the format's own */
};

/* Opens data.train or data.validation in the configuration's format, checked against what
 * the model takes. */
int feed_open(struct feed *f, const struct config *c, struct run *r, enum feed_role role, struct error *e);
/* Puts the samples at positions position .. position + samples - 1 into the first rows of
 * the inputs, and what weighs nothing into the rest of `rows`. Allocates nothing. */
int feed_put(struct feed *f, struct run *r, uint64_t position, int64_t samples, int64_t rows, struct feed_batch *out, struct error *e);
void feed_close(struct feed *f);

/* The sample at a position: training goes through epochs, each in its own order;
 * validation goes through once. */
uint64_t feed_sample(const struct feed *f, uint64_t position);

extern const struct feed_ops tokens_feed;

#endif
