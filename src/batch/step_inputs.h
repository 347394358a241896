/*
 * step_inputs.h: a step on given tensors, for `plimsoll step`: reads a safetensors file into the
 * inputs of a run, runs it, and writes outputs, loss and gradients. The tensors of the file, what
 * follows from its images, the values, and the run are a file each.
 *
 * Names are those of the Hugging Face forward. A language model takes input_ids, labels,
 * attention_mask and position_ids and writes logits and loss; without labels only logits. One that
 * takes images among its tokens also takes pixel_values, the images of the whole batch,
 * frame_values, the frames of its videos, and volumes.NAME, its volumes. A vision tower takes
 * pixel_values and writes last_hidden_state and hidden_states.N. A grounding model takes
 * pixel_values, masks, input_ids, query_index and target_masks and writes similarity. A mask model
 * (SAM) takes pixel_values and prompts and writes pred_masks and iou_scores. The loss of a tower or
 * a mask model is the mean square of the output that the file's metadata names as loss_output; with
 * gt_masks it is the training loss, over all pixels. A PRS-Med model takes the inputs of a language
 * model with images, the images of TinySAM's encoder as bytes, the tokens of the question, and
 * perhaps gt_masks. Gradients are grad.<parameter>. `memory.precision: auto` is f32 here, on any
 * device. In f16 the loss is scaled (train.loss_scale), and the gradients are divided by the scale.
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
    /* of a mask model its prompts; how frames of videos are pooled, of a model that takes images */
    struct contents holds;
    bool prompted;               /* it is a mask model */
    bool reasons;                /* it is a PRS-Med model */
    bool packed;                 /* the batch has padding or position_ids (batch.packed) */
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

/* Runs one forward and backward on a batch, a safetensors file, and writes another one. */
int step_run(const struct config *c, const char *batch, const char *out, struct error *e);

/* Opens the file and finds the model's inputs in it; sets the sizes, prompts, loss_output and
 * has_loss. step_close may follow a failure. */
int step_open(struct step *s, const struct model *m, const char *path, struct error *e);
/* Checks all values and writes them to the graph's inputs; sets `labels` and `counted`. */
int step_put_inputs(struct step *s, struct error *e);
/* Returns the divisor of a loss by its name (graph_count). */
double step_count(const struct step *s, const char *name);
void step_close(struct step *s);

/* --- tensors (step_tensors.c) ----------------------------------------------------------------- */

enum { STEP_SIZE_MOST = 1 << 20 }; /* largest size that the batch file may set */

/* Finds the tensors of the model's ports, checks their dtypes and shapes, and sets the sizes. */
int step_find_tensors(struct step *s, const struct model *m, struct error *e);
/* Returns the tensor of an input; NULL: not given. */
const struct st_entry *step_tensor(const struct step *s, const struct model *m, const char *name);
/* Reads row r of a tensor, n integers or booleans. */
int step_ints(const struct step *s, const struct st_entry *t, int64_t r, int64_t n, int64_t *out, struct error *e);
/* Reads row r of a tensor, n numbers of any dtype, through `raw`, 8 bytes each. */
int step_reals(const struct step *s, const struct st_entry *t, int64_t r, int64_t n, void *raw, float *out,
               struct error *e);
/* Finds the tokens begin .. end of row r of an attention_mask that are no padding. */
int step_unpadded(const struct step *s, int64_t r, const int64_t *mask, int64_t *begin, int64_t *end, struct error *e);
/* Allocates n elements, until step_close. */
void *step_room(struct step *s, int64_t n, size_t size);

/* --- images, videos and volumes (step_images.c) ----------------------------------------------- */

/* Checks that there are as many image tokens as features, before anything is planned. pixel_values
 * [N,channels,side,side] are the images of the whole batch, in the order in which their tokens come
 * in input_ids. Models for which transformers pads them, [B,M,...], are given so too: an image of
 * zeros is padding, and a pixel_attention_mask may say so again. frame_values [F,...] are the
 * frames of videos, pooled to data.tokens_per_frame features each; their tokens come after those of
 * all images. */
int step_check_images(struct step *s, const struct model *m, struct error *e);
/* Gives the image tokens of a row the ids that tell the shapes of its images and videos. */
int step_put_shapes(struct step *s, const struct anyres *a, int64_t r, int32_t *ids, struct error *e);

/* A row's tokens, and what follows of them. */
struct grid_tokens {
    int32_t *ids, *index, (*positions)[3]; /* [T] */
};
struct grid_tokens step_grid_tokens(struct step *s);
/* Finds the positions and the features of row r through `raw`, [T]. */
int step_find_features(struct step *s, const struct model *m, int64_t r, struct grid_walk *walk, int64_t *raw,
                       struct grid_tokens *out, struct error *e);
