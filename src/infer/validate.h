/*
 * validate.h: a model over the whole of data.validation, forward only, outside of training: the
 * mean loss, and scores of masks.
 *
 * The memory is that of the weights and one batch's activations. The prompts of masks are those of
 * the evaluation in training, so the same model and data give the same scores.
 */
#pragma once

#include "infer/mask_scores.h"
#include "infer/own_size.h"
#include "infer/questions.h"
#include "infer/retrieval.h"
#include "io/temporary.h"

/* --- the loss --------------------------------------------------------------------------------- */

struct mean_loss {
    double loss;
    uint64_t arena, samples; /* bytes; rows of data.sequence tokens */
    double tokens;           /* with a label */
};
/* Computes the mean loss of a language model, in memory of its own. */
int validate_loss(const struct config *c, struct mean_loss *out, struct error *e);
/* Does the same for files of tokens, or of texts, which the model's tokenizer makes tokens of. Rows
 * do not overlap, and what remains at a file's end is not used; data.sequence becomes the length of
 * the shortest text if that is less. */
int validate_files(struct config *c, struct mean_loss *out, struct error *e);

/* --- masks, and what is matched with texts or classes ----------------------------------------- */

struct own_size_options {
    double mm[2], tolerance; /* as of own_size_open */
};
struct mask_validation {
    struct temporary folder; /* for what the feed prepares: texts of questions become tokens */
    struct run run;
    struct feed feed;
    bool matches, has_own;   /* `retrieval` is scored instead of masks; `own` is too */
    struct mask_scores found;
    struct retrieval retrieval;
    struct own_size own;
    double loss, seconds;
};
/* Starts the model of a configuration. `worst`: masks with the lowest IoU to record; `own`: scores
 * at the image's own size, NULL: none. PL_USAGE: the model has nothing that is scored so.
 * mask_validation_close is called in any case. */
int mask_validation_open(struct mask_validation *v, const struct config *c, uint32_t worst,
                         const struct own_size_options *own, struct error *e);
/* Runs all passes over the data, and sets loss and seconds. */
int mask_validation_run(struct mask_validation *v, struct error *e);
/* Ends the run and its data: their memory is free, and the scores remain. The worst masks then have
 * the numbers of questions. */
void mask_validation_end_run(struct mask_validation *v);
void mask_validation_close(struct mask_validation *v);

/* --- videos ----------------------------------------------------------------------------------- */

/* The scores of an object over the frames of its video but the first and the last, as the DAVIS
 * challenges have them: J, the mean IoU, and F, the mean of boundary_score. */
struct video_object {
    char video[256];
    uint32_t id, frames;
    double j, f;
};
struct video_validation {
    VEC(struct video_object) objects;
    uint64_t videos, frames, unscored; /* unscored: videos of less than three frames or without an object */
    uint64_t later;                    /* objects that appear after the first frame, and are not scored */
    struct volume_scores volumes;
    struct dataset *set;               /* which names the volumes */
    uint64_t arena;
    double seconds;
};
/* Tracks the objects of the first frame of each video of data.validation, from their masks or with
 * `boxes` from their boxes, and scores them. A structure of a volume is tracked both ways from the
 * slice where it is largest, and scored in three dimensions: NSD within `tolerance` mm.
 * validate_videos_close is called in any case. */
int validate_videos(struct video_validation *v, const struct config *c, bool boxes, double tolerance, struct error *e);
void validate_videos_close(struct video_validation *v);

/* --- validate answers ------------------------------------------------------------------------ */

/* A language model answers the held-out questions, greedily, and the answers
 * are scored against the references.
 *
 *     conversations   of data.validation, or held out of data.train; scored by file
 *     questions       of the validation rows of a table, by a PRS-Med model; scored by dataset
 */
struct answer_options {
    uint64_t samples, max_new; /* of each file, tokens of an answer, at most; 0: all; the folder's, else 256 */
    bool lines;                /* also write each answer with its scores, as JSON lines */
    bool loss;                 /* also compute the loss over all conversations */
};

/* --- conversations ---------------------------------------------------------------------------- */

struct answered {
    struct held_out held;
    struct generator generator;
    struct text_scores *scores; /* of each file */
    struct text_scores all;
    struct text lines;
    struct mean_loss loss;
    uint64_t unfinished;        /* answers that are as long as they may be */
    double seconds;
};
/* Answers and scores all of them. answered_close is called in any case. */
int validate_answers(struct answered *v, const struct config *c, const struct answer_options *o, struct error *e);
void answered_close(struct answered *v);

/* --- questions -------------------------------------------------------------------------------- */

enum { ANSWER_DATASETS = 64 }; /* that are scored by themselves; the last has all others */

struct answered_questions {
    struct dataset *set;
    struct text_scores all, by[ANSWER_DATASETS];
};
/* Plans the model once, for prompts of up to data.sequence tokens. answered_questions_close is
 * called in any case. */
int validate_questions(struct answered_questions *v, const struct config *c, const struct answer_options *o,
                       struct error *e);
void answered_questions_close(struct answered_questions *v);
/* Returns the name of a dataset. */
const char *answered_dataset(const struct answered_questions *v, int32_t k);
