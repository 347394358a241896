/*
 * trainer.h: what the files of the training loop share: the trainer, and what they do for each other.
 *
 *     train_begin.c     configuration, plan, data, folder, weights: all that is there before the first step
 *     train.c           the loop
 *       train_step.c      a step is asked for, and taken
 *         train_batch.c     its batch, put together while the step before runs
 *         train_check.c     what it says of itself; one that is not finite ends the run
 *       train_after.c     a step was taken: metrics, evaluation, checkpoint
 *         train_evaluate.c  the loss over data.validation
 *         train_save.c      checkpoints, the best model, the final one; and back
 *
 * Outside of these files a trainer is what train.h says of it.
 */
#ifndef TRAINER_H
#define TRAINER_H

#include "train/best.h"
#include "train/events.h"
#include "train/feed.h"
#include "train/folder.h"
#include "train/mask_scores.h"
#include "train/progress.h"
#include "train/run.h"
#include "train/schedule.h"
#include "train/state.h"
#include "train/ticket.h"
#include "train/train.h"

struct trainer {
    const struct config *c;
    const struct train_options *o;
    struct run run;
    struct folder folder;
    struct events events;
    struct feed data, validation; /* not open: a program brings its own batches */
    struct progress progress;
    struct train_state state;
    uint64_t total;          /* steps of the whole run */
    uint64_t end;            /* the position at which the last epoch ends; UINT64_MAX: train.steps decides */
    struct schedule schedule;
    int64_t saved;           /* step of the last checkpoint; -1: none */
    double units;            /* trained on in this process: tokens, images */
    id eval_loss;            /* tensor */
    double eval;             /* the last evaluation */
    struct mask_scores scores; /* of the last evaluation, where there are masks */
    struct best best;        /* in checkpoints/best */
    double count;            /* what losses are divided by; 0: the default */
    struct tickets tickets;
    struct {                 /* of a step that was asked for */
        int64_t samples;
        uint64_t broken;
        double units;
    } pending[TICKETS];
    uint64_t position;       /* in the data, behind all steps that were asked for */
    bool has_folder, has_run, has_pool, has_scores;
    bool stopped;            /* by on_step */
    struct {                 /* the batch of the step to come, where the run has it (run.ahead_ready) */
        uint64_t position, broken;
        int64_t samples;
        struct feed_batch batch;
        struct error failed; /* what is wrong with it, to be said when its step comes */
    } next;
};

/* --- train_begin.c ---------------------------------------------------------------------------------- */

/* All that comes before the first step, of a new run or of one that goes on. */
int trainer_begin(struct trainer *t, const struct train_options *o, struct error *e);

/* --- train.c ---------------------------------------------------------------------------------------- */

/* A signal or the callback has asked for the end. */
bool trainer_stopping(const struct trainer *t);

/* --- train_step.c ----------------------------------------------------------------------------------- */

/* Steps done when all that were asked for are. */
uint64_t trainer_steps_asked(const struct trainer *t);
/* The numbers of the step to come; `count` is what its loss is divided by. */
struct step_block trainer_step_block(const struct trainer *t, double count);
/* Asks for the step to come, and puts the batch behind it. */
int trainer_submit_step(struct trainer *t, struct error *e);
/* Waits for the oldest step that was asked for, and takes it over into the state. */
int trainer_take_step(struct trainer *t, struct train_event *out, struct error *e);

/* --- train_batch.c ---------------------------------------------------------------------------------- */

/* What speed is counted in: "tokens", "images". */
const char *trainer_unit(const struct trainer *t);
/* Samples of the step at a position. */
int64_t trainer_samples_at(const struct trainer *t, uint64_t position);
/* Puts the batch of the step to come where it can lie ahead; else nothing. What is wrong with it is said when its step
 * comes. */
int trainer_put_next(struct trainer *t, struct error *e);
/* The batch of the step that is asked for now: put ahead, or put now. `broken`: samples so far. */
int trainer_take_batch(struct trainer *t, int64_t samples, struct feed_batch *batch, uint64_t *broken, struct error *e);

/* --- train_check.c ---------------------------------------------------------------------------------- */

/* What a taken step says of itself. PL_FAIL, with the first tensor that is not finite, ends the run. */
int trainer_check_step(struct trainer *t, const struct ticket *k, struct error *e);

/* --- train_after.c ---------------------------------------------------------------------------------- */

/* What a taken step is followed by: its metrics, and when due an evaluation, the best model, a checkpoint. */
int trainer_after_step(struct trainer *t, const struct train_event *v, struct error *e);

/* --- train_evaluate.c ------------------------------------------------------------------------------- */

/* After the last step, and every train.eval_every before it. */
bool trainer_evaluation_due(const struct trainer *t, uint64_t step);
/* Evaluates, and reports it. */
int trainer_evaluate(struct trainer *t, struct evaluation *out, struct error *e);

/* --- train_save.c ----------------------------------------------------------------------------------- */

/* Every train.save_every steps. */
bool trainer_save_due(const struct trainer *t, uint64_t step);
/* A checkpoint of the last step that was taken. */
int trainer_save(struct trainer *t, struct error *e);
/* The model as checkpoints/best, if it is to be kept and this is the best evaluation so far. */
int trainer_keep_best(struct trainer *t, const struct evaluation *v, struct error *e);
/* The model folder of a finished run. */
int trainer_publish(struct trainer *t, struct error *e);
/* Loads the newest checkpoint, if there is one; *found says so. */
int trainer_load(struct trainer *t, bool *found, struct error *e);
/* What checkpoints/best holds from before. */
void trainer_find_best(struct trainer *t);
/* PL_FAIL where the disk has no room for what the run will save. */
int trainer_require_space(struct trainer *t, struct error *e);

#endif
