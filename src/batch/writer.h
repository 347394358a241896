/*
 * writer.h: the batch writer: a record becomes a row of a program's inputs.
 *
 *     slot of a reader ┐
 *     given tensors    ├─ record ─ batch_write ─┬─ the inputs that it holds
 *     question, prompt ┘                        └─ those that follow from them (follow.c)
 *
 * inputs.def says which inputs there are and who fills each. Training, evaluation, `step`,
 * prediction, generation, the library and stored embeddings write the inputs of a run here and
 * nowhere else. Inputs that no program of the run reads are left out.
 */
#pragma once

#include "engine/run.h"

enum batch_input {
#define INPUT(ID, NAME, FILLER, HOLDS) ROW_##ID,
#include "batch/inputs.def"
#undef INPUT
    ROW_INPUTS
};
enum batch_filler { FILLED_BY_READER, FILLED_BY_WRITER, FILLED_BY_RUN };
struct batch_input_row {
    const char *name;
    enum batch_filler filler;
    const char *holds;
};
extern const struct batch_input_row batch_inputs[ROW_INPUTS];
/* Returns the input with this name, which must be one of the table. */
enum batch_input batch_find(const char *name);

/* Where a batch goes. */
struct batch_target {
    int64_t row;    /* its first row in the inputs */
    int64_t sample; /* the index of that row in the step's batch */
};

/* The tokens of an image, or of a video: the image tokens before `end`, counted over the text, have
 * the features from `row` on; of a volume those of volumes. */
struct image_run {
    int64_t end, row;
    bool volume;
};

/* What a row holds. */
struct batch_record {
    struct {
        const void *at;  /* NULL: the row keeps what it had, which has weight 0 or is still right */
        uint64_t bytes;  /* 0: those of a sample of the input */
    } is[ROW_INPUTS];
    /* With images among the tokens: the features of image tokens, in order; tokens after the last
     * run are text. NULL: they are consecutive. */
    const struct image_run *runs;
    uint32_t n_runs;
    /* Images of any size (models/image_grid.h), whose patches ROW_PIXELS has in the order of the
     * processors, none behind them. They need ROW_POSITIONS, where a document begins at 0. */
    const struct image_grid *grids;
    int64_t n_grids;
    /* For the batch writer: the row in the run's inputs; where its patches go in the sequence of
     * its micro-batch, and how many these are with padding. */
    int64_t row, patch, patches;
    /* With a given ROW_INDEX, for a token allocator: the position of each token in its document,
     * from which it follows what is a question; NULL: there is none */
    const int32_t *documents;
    /* how many image tokens came before this row, which moves on; NULL: none. Where images are
     * tiles with a map: how many features, [0] for images and [1] for frames */
    int64_t *feature;
    bool text;           /* no image belongs to the tokens: nothing about images follows from them */
    const bool *is_mask; /* with ROW_AREAS: which of the masks cover something */
    uint64_t position;   /* of the sample, which random scores depend on */
};

struct image_processor;
struct batch_writer;
/* Makes the writer of a started run. Only this allocates. */
struct batch_writer *batch_writer_new(struct run *r);
/* Frees it. NULL is allowed. */
void batch_writer_free(struct batch_writer *w);
/* Says how pixel values were normalised. A model that chooses among an image's tokens needs it. */
void batch_writer_set_pixels(struct batch_writer *w, const struct image_processor *p);
/* Reports whether a program reads the input, so that it is written; stops writing it. */
bool batch_writes(const struct batch_writer *w, enum batch_input i);
void batch_leave_out(struct batch_writer *w, enum batch_input i);
/* Writes a row: `row` of the batch that goes to the target. */
int batch_write(struct batch_writer *w, const struct batch_target *t, int64_t row, const struct batch_record *x,
                struct error *e);
/* Writes a row of a run that has no writer of its own. Allocates. */
int batch_write_once(struct run *r, int64_t row, const struct batch_record *x, struct error *e);
/* Writes, for a contrastive loss, which of the batch's B rows are each other's negatives: those
 * that are samples. */
int batch_write_pairs(struct batch_writer *w, const struct batch_target *t, const bool *is_sample, int64_t B,
                      struct error *e);

/* Given tensors, by name: all samples of the effective batch, in the order of the input's own
 * dimensions; and bytes from an offset on, of an input whose rows are no samples. */
int batch_write_all(struct run *r, const char *input, const void *data, struct error *e);
int batch_write_part(struct run *r, const char *input, uint64_t from, const void *data, uint64_t bytes,
                     struct error *e);

/* Finds the features of a row of T image tokens: image_index, and volume_index; either may be NULL.
 * An image token that is not in the vocabulary becomes 0 in `ids`. Returns false if image tokens do
 * not make whole images. */
bool batch_index(const struct model *m, const struct batch_record *x, int32_t *ids, int64_t T, int32_t *index,
                 int32_t *volumes);

/* --- follow ---------------------------------------------------------------------------------- */

/* The inputs that follow from what a record holds. */
struct follow;
/* Makes room for what follows in a run; `used` says which inputs are written. */
struct follow *follow_new(const struct run *r, const bool used[ROW_INPUTS]);
void follow_free(struct follow *f);
void follow_set_pixels(struct follow *f, const struct image_processor *p);
/* Adds to the record what follows from it; pointers into `f`, valid until the next call. Returns
 * false if its image tokens and its images do not match. */
bool follow_record(struct follow *f, const bool used[ROW_INPUTS], struct batch_record *x);

/* --- synthetic batches (synthetic.c) -----------------------------------------------------------
 *
 * Random pixels, tokens and prompts, of the shapes and shares of labels for which a plan's times
 * are predicted. */
/* Fills all inputs but "samples", which run_start fills. They depend only on train.seed. */
int batch_synthesize(struct run *r, struct error *e);
/* Returns the divisor of such a batch's loss: labels, masks, or the elements that a vision tower's
 * loss is the mean of. */
double batch_synthetic_count(const struct run *r);
