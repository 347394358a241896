/*
 * trainer.h: the trainer, and the functions that the files of the training loop share.
 *
 *     train_begin.c     configuration, plan, data, folder, weights: all before the first step
 *     train.c           the loop
 *       train_step.c      submits and retires a step, and prepares the batch of the next one; a
 *                         step that is not finite ends the run
 *       train_after.c     after a step is retired: metrics, evaluation, checkpoint
 *         train_evaluate.c  the loss over data.validation
 *           train_answer.c    answers to held-out prompts
 *         train_save.c      saves and loads checkpoints, the best and the final model
 *     own_batches.c     the calls of a program with its own batches
 *
 * Other files use the interface in train.h.
 */
#pragma once

#include "base/progress.h"
#include "dist/agree.h"
#include "batch/feed.h"
#include "train/folder.h"
#include "infer/questions.h"
#include "infer/mask_scores.h"
#include "infer/retrieval.h"
#include "engine/run.h"
#include "config/config.h"
#include "folder/train_state.h"
#include "engine/ticket.h"
#include "train/train.h"

/* With train.eval_samples: held-out prompts, and the scores of their answers in the last
 * evaluation. */
struct answering {
    bool open;               /* false: there is nothing to answer */
    struct held_out held;
    struct generator generator;
    struct generate generate;
    struct text_scores *scores; /* of each file */
    struct text_scores all;
    uint64_t pool;           /* bytes of the pool that an answer needs */
};

/* The part of the data that a step reads. */
struct step_samples {
    int64_t n;
    uint64_t broken;         /* unreadable samples that were replaced, up to this step */
    double units;            /* tokens or images */
};

/* The steps of a run and their batches, each prepared ahead of the device. */
struct stepper {
    struct run *run;
    struct feed *data;       /* not open: the program writes its own batches */
    struct tickets tickets;  /* the steps in flight */
    struct step_samples samples[TICKETS]; /* of each of them */
    uint64_t position;       /* in the data, after all submitted steps */
    uint64_t end;            /* the position at which the last epoch ends; UINT64_MAX: there is none */
    struct {                 /* the prefetched batch of the next step, valid with run.prefetched */
        uint64_t position;
        struct step_samples samples;
        struct feed_batch batch;
        struct error failed; /* its error, reported when its step is submitted */
    } next;
};

/* The best model so far: by train.best, the lowest loss, or the highest mean Dice or IoU. */
struct best {
    int64_t step;   /* -1: no best model yet */
    double loss;    /* of its evaluation; infinity: no best model yet */
    double rank;    /* lower is better: the loss, or the negative Dice or IoU; infinity: no best model yet */
};

/* One evaluation. */
struct scored {
    int64_t step, samples;
    double loss;
    double iou, dice; /* means over masks; NaN: it has none */
};

/* The tokenizer and the chat template that a run was trained with. */
struct text_files {
    const char *folder, *file; /* data.tokenizer, a folder or one file; both NULL: the files of model.path are right */
    const char *as;            /* the name under which `file` is saved */
    char *template;            /* saved as chat_template.jinja; NULL: that of `folder` */
    uint64_t bytes;            /* of all that is saved */
};

struct trainer {
    const struct config *c;
    struct config resolved;  /* the same, with what was decided over the data; its strings are the caller's */
    const struct train_options *o;
    struct run run;
    struct folder folder;
    struct events events;
    struct text_files text;  /* saved with each model */
    struct feed data, validation; /* not open: a program has its own batches */
    struct progress progress; /* of this process */
    struct train_state state;
    uint64_t total;          /* steps of the whole run */
    double scale;            /* of predicted times when they are shown; 0: they are not */
    struct schedule schedule;
    int64_t saved;           /* step of the last checkpoint; -1: none */
    double units, seconds;   /* tokens or images trained on in this process, and the sum of its steps' times */
    id eval_loss;            /* tensor */
    double eval;             /* loss of the last evaluation */
    struct mask_scores scores; /* of the last evaluation, for mask models */
    struct retrieval retrieval;  /* with has_retrieval */
    struct answering answering;
    struct best best;        /* in checkpoints/best */
    double count[STEP_COUNTS]; /* divisors of losses, in the order of graph.counts; 0: the default */
    double gradient_scale;   /* f16: the loss scale of the stored gradients; 0: another precision */
    struct stepper steps;
    bool resumes;            /* the run continues from a checkpoint */
    bool has_folder, has_run, has_pool, has_scores, has_retrieval;
    bool said_left;          /* what evaluations leave out has been logged */
    bool stopped;            /* on_step ended the run */
    bool whole;              /* run_options.whole */
    bool stop;               /* with ranks: one of them is to stop, as agreed */
    double waited;           /* with ranks: ranks.waited at the end of the last step... */
    double busy;             /* ...and the seconds of that step without waiting... */
    double busy_sum;         /* ...and of all steps of this process */
    uint64_t retired;        /* with ranks: steps of this process */
    uint64_t anonymous;      /* with ranks: resident bytes after the third step... */
    int64_t growth;          /* ...and how much more they are after the last one */
    uint64_t seen, broken;   /* with ranks: samples that all have read, and the broken ones among them */
    struct agreement agreed; /* the last one */
    void *parts;             /* of an evaluation that ranks divide (train_evaluate.c) */
};

/* Reports whether this process writes the run's files and messages: it is the only one, or rank
 * 0. */
static inline bool trainer_leads(const struct trainer *t) { return !t->o->ranks || !t->o->ranks->rank; }
/* Reports whether this rank answers prompts: rank 0, and where ranks meet in the forward all of
 * them. */
static inline bool trainer_answers(const struct trainer *t)
{
    return t->answering.open && (trainer_leads(t) || settings_meet(&t->run.planned.plan.settings));
}

/* --- train_begin.c -------------------------------------------------------------------------- */

/* Does everything before the first step of a new or resumed run. */
int trainer_begin(struct trainer *t, const struct train_options *o, struct error *e);

/* --- train.c -------------------------------------------------------------------------------- */

/* Reports whether a signal or the callback requested the end of the run. */
bool trainer_stopping(const struct trainer *t);

/* --- train_step.c --------------------------------------------------------------------------- */

/* Returns the number of steps submitted so far, retired ones included. */
uint64_t trainer_steps_submitted(const struct trainer *t);
/* Returns the step block of the next step, with all counts 1. */
struct step_block trainer_step_block(const struct trainer *t);
/* Returns the unit of throughput: "tokens", "images". */
const char *trainer_unit(const struct trainer *t);
/* Sets the divisors of losses: what the batch counts, or for a program with its own batches
 * (`batch` NULL) samples, for a built-in model family tokens. */
void trainer_set_counts(const struct trainer *t, const struct feed_batch *batch, struct step_block *b);
/* Submits the next step, and prefetches the batch after it. */
int trainer_submit_step(struct trainer *t, struct error *e);
/* Waits for the oldest step in flight, retires it, and advances the state. */
int trainer_retire_step(struct trainer *t, struct train_event *out, struct error *e);

/* --- train_after.c -------------------------------------------------------------------------- */

/* Processes a retired step: metrics, and if due an evaluation, the best model, a checkpoint. */
int trainer_after_step(struct trainer *t, const struct train_event *v, struct error *e);

/* --- train_evaluate.c ----------------------------------------------------------------------- */

/* Reports whether an evaluation is due: after the last step, and every train.eval_every before
 * it. */
bool trainer_evaluation_due(const struct trainer *t, uint64_t step);
/* Evaluates without a report. */
int trainer_score(struct trainer *t, struct scored *out, struct error *e);
/* Evaluates and reports the result. */
int trainer_evaluate(struct trainer *t, struct scored *out, struct error *e);
/* Allocates the memory of an evaluation that ranks divide, before the first one and after scores
 * and retrieval were opened. */
void trainer_open_parts(struct trainer *t);

/* --- train_answer.c ------------------------------------------------------------------------- */

/* Reads the prompts, after the plan is made and before memory is taken. Does nothing without
 * train.eval_samples. */
int trainer_read_prompts(struct trainer *t, struct error *e);
/* Returns what ranks that answer together must have in common: 0 if they do not. */
uint64_t trainer_prompts(const struct trainer *t);
/* After the run is started. */
void trainer_open_answers(struct trainer *t);
void trainer_close_answers(struct trainer *t);
/* Answers all prompts and writes answers/step-N.jsonl. */
int trainer_answer(struct trainer *t, struct error *e);
/* Reports the scores by file: in the log, and a line of metrics.jsonl each. */
int trainer_report_answers(struct trainer *t, struct error *e);

/* --- train_save.c --------------------------------------------------------------------------- */

/* Returns exp(loss), or NaN (null in JSON) if that overflows a double. */
double perplexity(double loss);
/* Reads what saving the tokenizer needs; nothing for data that are no conversations. Strings of `c`
 * are kept. */
int text_files_open(struct text_files *t, const struct config *c, struct error *e);
/* Frees them. A zeroed struct is allowed. */
void text_files_close(struct text_files *t);

/* Reports whether a checkpoint is due: every train.save_every steps. */
bool trainer_save_due(const struct trainer *t, uint64_t step);
/* Saves a checkpoint of the last retired step. */
int trainer_save(struct trainer *t, struct error *e);
/* Saves the model as checkpoints/best, if train.keep_best is set and its evaluation is the best
 * so far. */
int trainer_keep_best(struct trainer *t, const struct scored *v, struct error *e);
/* Writes the final model folder. */
int trainer_publish(struct trainer *t, struct error *e);
/* Loads the newest checkpoint of a resumed run, and checks that its model has not changed. Changes
 * no file. */
int trainer_load(struct trainer *t, struct error *e);
/* Reads the evaluation in checkpoints/best. */
void trainer_find_best(struct trainer *t);
/* Returns PL_FAIL if the disk has too little space for what the run will save. */
int trainer_require_space(struct trainer *t, struct error *e);

/* --- signals that stop a run after the current step (signals.c) ----------------------------- */

/* They are SIGTERM, SIGINT, SIGHUP (the terminal is closed), SIGUSR1 and SIGUSR2 (batch systems
 * warn with them before the time is over) and SIGXCPU (the limit of processor time, ulimit -t). */

/* Records the first of these signals from here on, and does no more. A further SIGTERM or SIGINT
 * ends the process by default action: a run that hangs can always be stopped from the keyboard.
 * Where SIGHUP, SIGUSR1, SIGUSR2 or SIGXCPU is ignored before, as under nohup, it stays so. */
void signals_install(void);

/* Returns the recorded signal, or 0. It is cheap enough for every step. */
int signals_received(void);

/* Returns "SIGTERM" for the message. */
const char *signals_name(int signal_number);
