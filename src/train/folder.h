/*
 * folder.h: the folder of a run, consistent after a kill at any moment.
 *
 *     DIR/.lock                  held while a run is active, as DIR itself is; contains its pid
 *     DIR/config.yaml            the resolved configuration
 *     DIR/plan.json              the plan
 *     DIR/metrics.jsonl          one line per step
 *     DIR/answers/step-N.jsonl   the answers of an evaluation (train.eval_samples)
 *     DIR/train.tokenized        the token store of conversations, and validation.tokenized
 *     DIR/tb/                    the same for TensorBoard (events.c)
 *     DIR/checkpoints/step-N/    a model folder, the training state, DONE
 *     DIR/checkpoints/best/      the model folder of the best evaluation, eval.json
 *     DIR/model/                 the final model folder
 *     DIR/worst/                 images of the predictions with the lowest IoU (plimsoll train)
 *
 * A name without a leading dot is complete: checkpoints and the model are written as .NAME.tmp and
 * renamed when every byte is on disk. Only metrics.jsonl and tb/ grow in place; a resumed run
 * truncates them to its checkpoint.
 */
#pragma once

#include "base/base.h"

enum {
    FOLDER_PATH = 4096, /* the longest path, with its terminator */
    FOLDER_LINE = 4096, /* the longest line of metrics.jsonl, with its newline */
};

/* All buffers for metrics and checkpoints are in the struct: after folder_open no function here
 * allocates memory. */
struct folder {
    char dir[FOLDER_PATH]; /* empty: not open */
    int dir_fd;                /* the lock: it lasts even if .lock is removed */
    int lock_fd;
    int metrics_fd;            /* -1 until the first line or truncation */
    char staging[FOLDER_PATH]; /* the folder returned by begin; empty: none */
    int64_t staging_step;      /* step of a checkpoint; -1: a model */
    bool made;                 /* this process created DIR */
    char line[FOLDER_LINE];
};

enum folder_use {
    FOLDER_NEW,    /* it must be empty */
    FOLDER_RESUME, /* it must have a run with a checkpoint */
    FOLDER_AGAIN,  /* it may be empty, or have a run without a checkpoint, which begins again */
};
/* Creates or opens the folder and locks it. PL_USAGE: it does not hold what its use needs; PL_FAIL:
 * another run uses it, or a system call failed. After success the caller calls folder_close. */
int folder_open(struct folder *f, const char *dir, enum folder_use use, struct error *e);
/* Reports whether the folder has something that must not be begun again: a checkpoint, or a final
 * model. */
bool folder_resumes(const char *dir);
/* Releases the lock, and removes a folder that was begun and not committed. A zeroed struct is
 * allowed. */
void folder_close(struct folder *f);

/* Closes a new folder whose run did no step, and removes what the run created: its files by name,
 * checkpoints/ if it is empty, and DIR if the run created it and it is empty. */
void folder_abandon(struct folder *f);

/* Fails with PL_FAIL if the disk has fewer free bytes. It is called before step 0 with the largest
 * disk use of the run: two checkpoints (one complete while the next is written, more if train.keep
 * is larger) and the model. */
int folder_require_space(struct folder *f, uint64_t bytes, struct error *e);

/* Writes DIR/name atomically: config.yaml, plan.json. */
int folder_write(struct folder *f, const char *name, const char *bytes, size_t n, struct error *e);

/* Appends one line (the newline is added) to metrics.jsonl in one write, without allocation. Every
 * line holds a "step" member. */
int folder_metrics(struct folder *f, struct error *e, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Truncates metrics.jsonl, for a resume and before the first line, after the last whole line of a
 * step <= `step`. An incomplete last line is removed too. A missing file is no error. */
int folder_metrics_cut(struct folder *f, int64_t step, struct error *e);

/* begin returns an empty folder for the checkpoint of `step` (the path string belongs to the
 * struct). commit syncs it, renames it to checkpoints/step-N, and then removes the oldest until
 * `keep` are left. Between the two nothing that a resume reads changes. A second begin instead of
 * commit discards the files. */
int folder_checkpoint_begin(struct folder *f, int64_t step, const char **path, struct error *e);
int folder_checkpoint_commit(struct folder *f, int64_t keep, struct error *e);
/* Counts the complete checkpoints. */
int folder_checkpoint_count(struct folder *f, int64_t *count, struct error *e);
/* Finds the newest complete checkpoint, its step and its path; step -1 when there is none. */
int folder_checkpoint_latest(struct folder *f, int64_t *step, char path[FOLDER_PATH], struct error *e);
/* Finds the newest complete checkpoint before a step. */
int folder_checkpoint_before(struct folder *f, int64_t before, int64_t *step, char path[FOLDER_PATH], struct error *e);

/* begin returns an empty folder for a model: the final one, or the best so far. publish renames it
 * to DIR/model or DIR/checkpoints/best. An older one stays complete until it is replaced. */
enum folder_model { FOLDER_FINAL, FOLDER_BEST };
int folder_model_begin(struct folder *f, enum folder_model which, const char **path, struct error *e);
int folder_model_publish(struct folder *f, enum folder_model which, struct error *e);
/* Prints the path that publish renames to; true if the folder exists. */
bool folder_model_path(const struct folder *f, enum folder_model which, char path[FOLDER_PATH]);

/* --- events ---------------------------------------------------------------------------------- */

/* The run's metrics as TensorBoard event files.
 *
 *     DIR/events.out.tfevents.0000000000.plimsoll    from step 1 on
 *     DIR/events.out.tfevents.0000000400.plimsoll    of a run resumed after step 400
 *
 * Like metrics.jsonl, the files are truncated to the checkpoint that a run resumes from. Later
 * events go into a file of their own. Its first event invalidates everything from its step on: a
 * running TensorBoard drops the steps that are repeated, and never sees a file change behind its
 * read position.
 */
enum { EVENTS_PATH = 4200 };

struct events {
    char dir[EVENTS_PATH]; /* empty: not open */
    int64_t start;         /* steps done before the first event of this process */
    int fd;                /* -1: nothing written yet */
};

struct scalar {
    const char *tag;
    double value;          /* written as a float */
};

/* Opens DIR for events after `step` (0: a new run): truncates its files, creates none. The parent
 * folder of DIR exists. */
int events_open(struct events *w, const char *dir, int64_t step, struct error *e);
/* Appends one event with a step's scalars in one write, without allocation. The first call creates
 * the folder and the file. */
int events_write(struct events *w, int64_t step, const struct scalar *scalars, int n, struct error *e);
/* Flushes everything written to disk. */
int events_sync(struct events *w, struct error *e);
/* Closes, removes the file that this process created, and DIR if it is empty then. */
void events_abandon(struct events *w);
/* Closes the file. A zeroed struct is allowed. */
void events_close(struct events *w);
