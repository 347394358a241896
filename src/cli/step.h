/*
 * step.h: the declarations that the files of `plimsoll step` share.
 *
 *     step.c           the command: plan, run once
 *     step_inputs.c    IN.safetensors, checked against the model's ports
 *     step_values.c    its values, checked and converted to the graph's inputs
 *     step_rows.c      attention_mask and position_ids of a language model
 *     step_images.c    images among its tokens
 *     step_grounding.c masks that are matched with texts
 *     step_pairs.c     images that are matched with texts
 *     step_outputs.c   OUT.safetensors: outputs, loss, gradients
 */
#ifndef CLI_STEP_H
#define CLI_STEP_H

#include "io/safetensors.h"
#include "engine/run.h"
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
    const char *loss_output;     /* of a tower, from the file's metadata; NULL: the model's default */
    bool has_loss;
    struct run run;
    double labels;               /* that are not ignored */
    float loss_scale;            /* by which all gradients are multiplied; 1 unless f16 */
    double counted;              /* the divisor of the loss: labels, elements or masks */
};

/* Opens the file and finds the model's inputs in it; sets the sizes, prompts, loss_output and
 * has_loss. */
int step_open(struct step *s, const struct model *m, const char *path, struct error *e);
/* The tensor of an input; NULL: not given. */
const struct st_entry *step_given(const struct step *s, const struct model *m, const char *name);
/* Checks all values and writes them to the graph's inputs; sets `labels` and `counted`. */
int step_put_inputs(struct step *s, struct error *e);
/* The divisor of a loss by its name (graph_count). */
double step_count(const struct step *s, const char *name);
/* step_check_rows checks attention_mask and position_ids and sets `packed`; step_put_rows writes
 * the graph's inputs position_ids and ranges, if it is. */
int step_check_rows(struct step *s, const struct model *m, struct error *e);
int step_put_rows(struct step *s, struct error *e);
/* step_check_images counts the images and their tokens; step_put_images writes the graph's input
 * image_index. */
int step_check_images(struct step *s, const struct model *m, struct error *e);
int step_put_images(struct step *s, struct error *e);
/* Writes the graph's inputs candidates and answers, which follow from masks and target_masks. */
int step_put_candidates(struct step *s, struct error *e);
/* Whether the model matches the images of a batch with its texts (models/heads.h); writes the
 * graph's input text_end, which follows from input_ids. */
bool step_pairs(const struct model *m);
int step_put_ends(struct step *s, struct error *e);
int step_write(struct step *s, const char *path, struct error *e);

#endif
