/*
 * events.h: the run's numbers as TensorBoard reads them.
 *
 *     DIR/events.out.tfevents.0000000000.plimsoll    from step 1 on
 *     DIR/events.out.tfevents.0000000400.plimsoll    of a run taken up after step 400
 *
 * Like metrics.jsonl, the files are cut back to the checkpoint that a run goes on from.
 * What follows goes into a file of its own, which says first that everything from its
 * step on is void: a TensorBoard that has been looking on drops what it had read of the
 * steps that are done again, and never finds a file changed behind its back.
 */
#ifndef EVENTS_H
#define EVENTS_H

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

/* Takes up DIR after `step` (0: a new run): cuts its files back, makes none. The folder
 * around DIR exists. */
int events_open(struct events *w, const char *dir, int64_t step, struct error *e);
/* Appends one event with a step's scalars: one write, nothing allocated. The first one
 * makes the folder and the file. */
int events_write(struct events *w, int64_t step, const struct scalar *scalars, int n, struct error *e);
/* What was written is on the disk. */
int events_sync(struct events *w, struct error *e);
/* Closes, and takes away the file that this process made, and DIR if it was all that is there. */
void events_abandon(struct events *w);
/* Harmless on a struct of zeros. */
void events_close(struct events *w);

#endif
