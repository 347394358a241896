/*
 * folder.h: the folder of a run, and what may be believed in it after a kill.
 *
 *     DIR/.lock                  held while a run is alive; contains its pid
 *     DIR/config.yaml            the resolved configuration
 *     DIR/plan.json              the plan
 *     DIR/metrics.jsonl          one line per step
 *     DIR/tb/                    the same for TensorBoard (events.h)
 *     DIR/checkpoints/step-N/    a model folder, the training state, DONE
 *     DIR/checkpoints/best/      the model folder of the best evaluation, eval.json
 *     DIR/model/                 the final model folder
 *     DIR/worst/                 images of its worst masks, by the command
 *
 * A name without a leading dot is complete: checkpoints and the model are written
 * under .NAME.tmp and renamed when every byte is on the disk. Only metrics.jsonl and tb/
 * grow in place; a resumed run cuts them back to its checkpoint.
 */
#ifndef FOLDER_H
#define FOLDER_H

#include "base/base.h"

enum {
    FOLDER_PATH = 4096, /* the longest path, with its terminator */
    FOLDER_LINE = 4096, /* the longest line of metrics.jsonl, with its newline */
};

/* All room that metrics and checkpoints need is in the struct: after folder_open
 * nothing here takes memory, so that a step that saves is a step like another. */
struct folder {
    char dir[FOLDER_PATH]; /* empty: not open */
    int lock_fd;
    int metrics_fd;            /* -1 until the first line or cut */
    char staging[FOLDER_PATH]; /* the folder begin gave out; empty: none */
    int64_t staging_step;      /* of a checkpoint; -1: it is a model */
    bool made;                 /* it was not there before */
    char line[FOLDER_LINE];
};

/* Makes (or, with resume, takes up) the folder and locks it. PL_USAGE: it is not
 * empty and resume was not asked for, or there is no run in it to resume; PL_FAIL:
 * another run holds it, or the system refuses. On success folder_close is due. */
int folder_open(struct folder *f, const char *dir, bool resume, struct error *e);
/* Lets the lock go, and drops what was begun and not committed. Harmless on a struct of
 * zeros. */
void folder_close(struct folder *f);

/* Closes a fresh folder whose run took no step, and takes away what it put there: its files by their
 * names, checkpoints/ if it is empty, and the folder if it made that and nothing else is in it. */
void folder_abandon(struct folder *f);

/* Fails with PL_FAIL when the disk has fewer free bytes. Ask before step 0 for
 * what the run will have on disk at once: two checkpoints (one complete while the
 * next is written, more when train.keep is more) and the model. */
int folder_require_space(struct folder *f, uint64_t bytes, struct error *e);

/* Writes DIR/name whole or not at all: config.yaml, plan.json. */
int folder_write(struct folder *f, const char *name, const char *bytes, size_t n, struct error *e);

/* Appends one line (the newline is added) to metrics.jsonl: one write, nothing
 * allocated. Every line holds a "step" member. */
int folder_metrics(struct folder *f, struct error *e, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* For a resume, before the first line. Leaves of metrics.jsonl what ends with the last whole line of a step <= `step`.
 * A torn last line goes too. No file is no error. */
int folder_metrics_cut(struct folder *f, int64_t step, struct error *e);

/* begin gives an empty folder to write the checkpoint of `step` into (the path
 * stays ours); commit makes it checkpoints/step-N, whole and on the disk, and then
 * removes the oldest until `keep` are left. Between the two, nothing a resume
 * looks at changes. begin again instead of commit drops what was written. */
int folder_checkpoint_begin(struct folder *f, int64_t step, const char **path, struct error *e);
int folder_checkpoint_commit(struct folder *f, int64_t keep, struct error *e);
/* How many complete checkpoints there are. */
int folder_checkpoint_count(struct folder *f, int64_t *count, struct error *e);
/* The newest complete checkpoint, its step and its path; step -1 when there is none. */
int folder_checkpoint_latest(struct folder *f, int64_t *step, char path[FOLDER_PATH], struct error *e);
/* The same of those before a step. */
int folder_checkpoint_before(struct folder *f, int64_t before, int64_t *step, char path[FOLDER_PATH], struct error *e);

/* begin gives an empty folder for a model: the final one, or the best so far; publish puts
 * it at DIR/model or DIR/checkpoints/best, in place of an older one, which stays whole
 * until then. */
enum folder_model { FOLDER_FINAL, FOLDER_BEST };
int folder_model_begin(struct folder *f, enum folder_model which, const char **path, struct error *e);
int folder_model_publish(struct folder *f, enum folder_model which, struct error *e);
/* Where publish puts it; true when it is there. */
bool folder_model_path(const struct folder *f, enum folder_model which, char path[FOLDER_PATH]);

#endif
