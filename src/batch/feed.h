/*
 * feed.h: a feed reads samples of any data format and writes them into a step's inputs.
 *
 *     files ─ feed ─ input storages of the step or of the evaluation
 *
 * A feed addresses its samples by position. The order is a pure function of seed and position, so
 * the trainer stores one number and a resumed run reads the same samples. A feed may prefetch; its
 * output does not depend on that.
 *
 * A feed of tokens fills input_ids and labels; if feed_describe set run_batches.packed, also
 * position_ids and ranges (batch.packed of models/model.h).
 */
#pragma once

#include "batch/writer.h"

struct dataset;
struct sample_order; /* data/reader.h */

enum feed_role { FEED_TRAIN, FEED_VALIDATION };

/* Size of a batch. */
enum { FEED_COUNTS = 2 };
struct feed_batch {
    /* by feed_ops.counts: divisors of losses. The first is that of a model with one loss: tokens
     * that have a successor, or masks */
    double count[FEED_COUNTS];
    double units;  /* the unit of throughput: tokens or images */
};

/* A mask of the last batch: for tables by category and images of the worst predictions. */
struct feed_mask {
    uint64_t sample;            /* index in the dataset */
    int64_t id;                 /* id in the file */
    int32_t category;
    uint32_t area;              /* in pixels of the loss's grid; 0: no mask here */
};

/* Masks that are left out while samples are read. */
struct feed_left {
    uint64_t images;            /* read */
    uint64_t small;             /* masks that cover no cell of the loss's grid: too small, or outside of the crop */
    uint64_t malformed;         /* masks */
    uint64_t without;           /* images without a mask to train on; replaced in training */
    uint64_t queries;           /* queries whose mask covers no patch */
    uint32_t cells;             /* side of the grid */
};

/* The queries of the last batch, for retrieval scores. */
struct feed_queries {
    int64_t M, Q;
    const int32_t *targets;     /* [rows][Q] index of a mask; below 0: no query */
    const bool *is_mask;        /* [rows][M]; NULL: all are candidates */
};

/* What the queries of a feed's samples are matched with, in words. */
struct feed_matches {
    const char *output;         /* of the program: similarities [rows,Q,M]; of classes [rows,M] */
    const char *word;           /* before "accuracy": "retrieval " */
    const char *found;          /* "queries find their mask" */
    const char *model;          /* of a model: "matches masks with texts" */
    bool queries;               /* a sample has any number of queries */
};

/* A row of a batch that is written. */
struct feed_row {
    int64_t at;                 /* in the batch */
    uint64_t position;          /* of the batch's first row */
    const void *slot;           /* of the feed's reader; NULL: the row is padding */
    const void *last;           /* the slot of the row before it, of this one if it has one; NULL: none yet */
};

struct feed;
struct feed_ops {
    const char *port;           /* the input of a model that it fills */
    const char *unit;           /* "tokens": of feed_batch.units */
    const char *counts[FEED_COUNTS]; /* what feed_batch.count counts: "tokens", ... */
    const char *const *passes;  /* an evaluation reads the dataset once for each of these names; NULL: once */
    int n_passes;
    int (*open)(struct feed *f, struct run *r, enum feed_role role, struct error *e);
    /* before memory is allocated; NULL: nothing to do */
    int (*prepare)(struct feed *f, struct run *r, const char *folder, struct error *e);
    /* after the run's memory is allocated; NULL: nothing to do */
    void (*start)(struct feed *f, struct run *r);
    /* of feeds with an order: writes a row, through feed.writer, and counts it... */
    int (*row)(struct feed *f, const struct batch_target *t, const struct feed_row *x, struct feed_batch *out,
               struct error *e);
    /* ...and what depends on all rows; NULL: nothing does */
    int (*end)(struct feed *f, const struct batch_target *t, int64_t rows, struct error *e);
    /* feed_put of a feed without an order */
    int (*put)(struct feed *f, const struct batch_target *t, uint64_t position, int64_t samples, int64_t rows,
               struct feed_batch *out, struct error *e);
    void (*close)(struct feed *f);
};

struct feed {
    const struct feed_ops *ops; /* NULL: not open */
    const struct config *config;
    const struct run *run;
    struct batch_writer *writer; /* of the run, after feed_start */
    enum feed_role role;
    uint64_t samples;           /* in the dataset; known after feed_prepare */
    uint64_t fingerprint;       /* of the dataset; 0: not known */
    bool (*interrupted)(void);  /* whether feed_prepare should stop; NULL: never */
    int pass;                   /* evaluation: index in ops->passes */
    uint64_t start;             /* the position at which this process began */
    uint64_t broken;            /* number of broken samples that were replaced so far */
    /* the first member of the source that the run's reader reads (feed_reading of batch_plan.h);
     * NULL: samples are read without threads, and none is ever broken */
    struct sample_order *order;
    uint32_t cells;             /* side of the loss's grid; 0: there are no masks */
    uint64_t unmatched;         /* queries without weight, in `left` */
    /* masks that could not be used, since this process began; in an evaluation of its last pass */
    struct feed_left left;
    const struct feed_mask *masks; /* [rows][data.max_masks] of the last feed_put; NULL: no masks */
    const struct feed_queries *queries; /* of the last feed_put; NULL: no queries */
    const struct feed_matches *matches; /* NULL: there are none */
    void *state;                /* the format's own */
};

/* Describes the batches of the configuration's data, before any file is opened:
 * run_options.describe of every command that trains or evaluates (batch_plan.c). It is an error if
 * the model does not take such data, and if a file sets tokens for a mask model. A mask model
 * without data gets the batches that the options give. */
describe_batches feed_describe;

/* Opens data.train or data.validation in the configuration's format and checks it against the
 * model's inputs. */
int feed_open(struct feed *f, const struct config *c, struct run *r, enum feed_role role, struct error *e);
/* Does what takes long and needs no memory of the run: text becomes tokens, in a file of `folder`,
 * the run's. It is called after feed_open and before run_start. */
int feed_prepare(struct feed *f, struct run *r, const char *folder, struct error *e);
/* Starts the feed after run_start. `position` and `broken` come from the checkpoint of a resumed
 * run. */
int feed_start(struct feed *f, struct run *r, uint64_t position, uint64_t broken, struct error *e);
/* With ranks: reading does not fail because of the share of broken samples, which is that of all
 * ranks. feed_seen: samples that this one has read so far. feed_check: what all have read, at a
 * step from `position` on with n samples; PL_FAIL if too many are broken. */
uint64_t feed_seen(const struct feed *f);
int feed_check(struct feed *f, uint64_t seen, uint64_t broken, uint64_t position, int64_t n, struct error *e);
/* The positions that this rank reads, from `first` on `each` of every `every` (ring_part of
 * data/ring.h): its shares of each step, or its batches of an evaluation. each 0: all of them. */
struct feed_part {
    uint64_t first, each, every;
};
struct feed_part feed_part(const struct feed *f, const struct run *r);
/* Reports whether a position is that of this rank's first batch of an evaluation. */
static inline bool feed_begins(uint64_t position, uint64_t each, uint64_t every) { return position <= every - each; }
/* The passes of an evaluation, and the selected one: "point" and "box" for a promptable model, each
 * reproducible. A pass without a name is "". */
int feed_passes(const struct feed *f);
const char *feed_pass_name(const struct feed *f, int pass);
void feed_set_pass(struct feed *f, int pass);
/* Writes the samples at positions position .. position + samples - 1 into the target's first rows,
 * and padding with weight 0 into the rest of `rows`. Allocates nothing. */
int feed_put(struct feed *f, const struct batch_target *t, uint64_t position, int64_t samples, int64_t rows,
             struct feed_batch *out, struct error *e);
/* Returns what the batch has of a count by its name (graph_count): "" is the first. */
double feed_count(const struct feed *f, const struct feed_batch *b, const char *name);
/* Prints what was left out, in one line without a newline; false: nothing. Allocates nothing. */
bool feed_print_left(const struct feed *f, char *out, size_t room);
/* The error of an evaluation without any target. */
int feed_empty(const struct feed *f, struct error *e);
void feed_close(struct feed *f);

/* Returns the index of the sample at a position: training repeats the dataset in epochs, each with
 * its own order; validation reads it once. */
uint64_t feed_sample(const struct feed *f, uint64_t position);

/* Opens the images of a configuration without a feed, for inspection. The caller calls
 * dataset_close. */
int feed_open_dataset(struct dataset **set, const struct config *c, enum feed_role role, struct error *e);
/* Does the same with questions and answers: rows of tables without them are left out. */
int feed_open_questions(struct dataset **set, const struct config *c, enum feed_role role, struct error *e);
/* Returns the order of samples by the configuration. */
struct sample_order feed_order(const struct config *c, enum feed_role role);
/* The samples of a dataset, in the configuration's order. */
struct loader_source;
struct loader_source feed_source(const struct config *c, const struct dataset *set, enum feed_role role);
/* The range of the configuration's keys for images of 16 bits. */
struct pixel_range;
struct pixel_range feed_range(const struct config *c);
struct slice_options;
struct slice_options feed_slices(const struct config *c);
/* Writes what the dataset's survey decided (data.labels, data.threshold, data.ignore, data.range)
 * into a configuration, so that every later command decides the same. */
void feed_resolve(const struct feed *f, struct config *c);
/* Reads up to `samples` samples as a run would: PL_USAGE when more of them than data.max_bad cannot
 * be used, or when none can. */
int feed_try_images(const struct config *c, const struct model *m, enum feed_role role, uint64_t samples,
                    struct error *e);
/* Returns the dataset that the feed reads; NULL: the data are not images. */
const struct dataset *feed_dataset(const struct feed *f);

extern const struct feed_ops tokens_feed, conversations_feed, masks_feed, questions_feed, grounding_feed, labelled_feed,
    clips_feed;
/* Returns the dataset of a feed of questions, and the number of one of its samples in that of
 * feed_open_questions. */
const struct dataset *question_dataset(const struct feed *f);
uint64_t question_number(const struct feed *f, uint64_t sample);

/* --- images and videos that are added to the rows of a planned run (added_media.c) ----------- */

/* pixels along images of any size whose size is not given */
enum { IMAGE_SIDE = 1024 };

struct added_media {
    int64_t images, frames;      /* of a row; 0: as the run has them */
    uint32_t width, height;
    bool sized;                  /* the size was given */
};
/* Adds them to the sequence. A model that takes images plans these: their tokens, and its tower. */
int batch_add_media(struct config *c, const struct added_media *x, struct error *e);
