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

struct dataset;

enum feed_role { FEED_TRAIN, FEED_VALIDATION };

/* What a batch holds. */
struct feed_batch {
    double count;  /* what its loss is divided by: tokens that have a successor, masks */
    double units;  /* what speed is counted in: tokens, images */
};

/* A mask of the last batch: for tables by category and images of the worst. */
struct feed_mask {
    uint64_t sample;            /* of the data set */
    int64_t id;                 /* as the file says */
    int32_t category;
    uint32_t area;              /* in cells of the loss's grid; 0: no mask here */
};

struct feed;
struct feed_ops {
    const char *unit;           /* "tokens": of feed_batch.units */
    const char *const *passes;  /* an evaluation goes through the set once for each of these names; NULL: once */
    int n_passes;
    int (*open)(struct feed *f, struct run *r, enum feed_role role, struct error *e);
    int (*start)(struct feed *f, struct run *r, struct error *e); /* when the run's memory is there; NULL: nothing to do */
    int (*put)(struct feed *f, struct run *r, uint64_t position, int64_t samples, int64_t rows, struct feed_batch *out, struct error *e);
    void (*close)(struct feed *f);
};

struct feed {
    const struct feed_ops *ops; /* NULL: not open */
    const struct config *config;
    enum feed_role role;
    uint64_t samples;           /* in the set */
    uint64_t fingerprint;       /* of the set; 0: not known */
    int pass;                   /* of an evaluation: which of ops->passes */
    uint64_t start;             /* the position at which this process began */
    uint64_t broken;            /* samples so far that were replaced because they are broken */
    const struct feed_mask *masks; /* [rows][data.max_masks] of the last put; NULL: no masks */
    void *state;                /* the format's own */
};

/* Opens data.train or data.validation in the configuration's format, checked against what
 * the model takes. */
int feed_open(struct feed *f, const struct config *c, struct run *r, enum feed_role role, struct error *e);
/* After run_start. `position` and `broken` are what a resumed run had come to. */
int feed_start(struct feed *f, struct run *r, uint64_t position, uint64_t broken, struct error *e);
/* The passes of an evaluation, and the one that comes: "point" and "box" where a model is
 * prompted, each the same every time. A pass without a name is "". */
int feed_passes(const struct feed *f);
const char *feed_pass_name(const struct feed *f, int pass);
void feed_set_pass(struct feed *f, int pass);
/* Puts the samples at positions position .. position + samples - 1 into the first rows of
 * the inputs, and what weighs nothing into the rest of `rows`. Allocates nothing. */
int feed_put(struct feed *f, struct run *r, uint64_t position, int64_t samples, int64_t rows, struct feed_batch *out, struct error *e);
/* The error of an evaluation that counted nothing. */
int feed_empty(const struct feed *f, struct error *e);
void feed_close(struct feed *f);

/* What to do about a model that takes other data, for a message: "set data.format to tokens, ...". */
const char *feed_advice(const struct model *m);

/* The sample at a position: training goes through epochs, each in its own order;
 * validation goes through once. */
uint64_t feed_sample(const struct feed *f, uint64_t position);

/* The images of a configuration whose data.format has some, without a feed: to look at. dataset_close is due. */
int feed_open_dataset(struct dataset **set, const struct config *c, enum feed_role role, struct error *e);
/* The images that it reads; NULL: it reads none. */
const struct dataset *feed_dataset(const struct feed *f);

/* Of a run over images with masks: what the model is asked with, and the bytes of the loader
 * (settings.loader_bytes). By configuration and model alone, so that it can be planned, and by what
 * the head of a packed store says of its embeddings: those that will be read, type 0 for none. Leaves
 * all alone where data.format is tokens; a file that says so of a model of masks is refused. */
int feed_plan(const struct config *c, const struct model *m, bool train, struct prompting *p, uint64_t *loader_bytes,
              struct packed_embeddings *embeddings, struct error *e);
/* PL_USAGE: rows of tokens are not what the model takes. */
int feed_refuse_tokens(const struct model *m, struct error *e);

extern const struct feed_ops tokens_feed, masks_feed;

#endif
