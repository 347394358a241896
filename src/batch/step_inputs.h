/*
 * step_inputs.h: a step on given tensors: reads a safetensors file into the inputs of a run, for
 * `plimsoll step`.
 */
#pragma once

#include "io/safetensors.h"
#include "engine/run.h"
#include "models/image_grid.h"
#include "batch/writer.h"
#include "models/images.h"
#include "models/masks.h"
#include "models/prs_med.h"

struct step {
    struct st_file in;
    const struct st_entry *given[MODEL_PORTS]; /* by port; NULL: not given */
    int64_t size[OPEN_LETTERS];  /* by the letter of a dimension (model.h); 0: no tensor has it */
    int64_t B, T;                /* T: 1 for a model without sequences */
    struct prompting prompts;    /* of a mask model... */
    bool prompted;               /* ...which it is */
    struct prs_batch prs;        /* of a PRS-Med model... */
    bool reasons;                /* ...which it is */
    bool packed;                 /* the batch has padding or position_ids (batch.packed) */
    struct image_batch frames;   /* how those of videos are pooled, of a model that takes images */
    /* images of padded pixel_values, size['N'] of them: their numbers in the file; NULL: all */
    int64_t *image_at;
    /* images in tiles with a map (anyres.h), then videos, and the next of each that is written */
    struct anyres_shape *shapes;
    int64_t n_shapes, n_videos, next_shape[2];
    struct image_grid *grids;    /* images of any size (image_grid.h), then videos */
    int64_t n_grids;
    struct image_run *runs;      /* of the image tokens of all rows, with volumes among them; NULL: of images only */
    uint32_t n_runs;
    struct bump memory;          /* of rows that are converted */
    const char *loss_output;     /* of a tower, from the file's metadata; NULL: the model's default */
    bool has_loss;
    struct run run;
    double labels;               /* that are not ignored */
    float loss_scale;            /* by which all gradients are multiplied; 1 unless f16 */
    double counted;              /* the divisor of the loss: labels, elements or masks */
};

/* Opens the file and finds the model's inputs in it; sets the sizes, prompts, loss_output and
 * has_loss. step_close may follow a failure. */
int step_open(struct step *s, const struct model *m, const char *path, struct error *e);
/* Checks all values and writes them to the graph's inputs; sets `labels` and `counted`. */
int step_put_inputs(struct step *s, struct error *e);
/* Returns the divisor of a loss by its name (graph_count). */
double step_count(const struct step *s, const char *name);
void step_close(struct step *s);
