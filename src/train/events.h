/*
 * events.h: the run's metrics as TensorBoard event files.
 *
 *     DIR/events.out.tfevents.0000000000.plimsoll    from step 1 on
 *     DIR/events.out.tfevents.0000000400.plimsoll    of a run resumed after step 400
 *
 * Like metrics.jsonl, the files are truncated to the checkpoint that a run resumes from. Later
 * events go into a file of their own. Its first event invalidates everything from its step on: a
 * running TensorBoard drops the steps that are repeated, and never sees a file change behind its
 * read position.
 */
#pragma once

#include "base/base.h"

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
