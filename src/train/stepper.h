/*
 * stepper.h: the steps of a run and their batches, each prepared ahead of the device.
 *
 * The host prepares the next batch while a step runs; it is copied to the GPU after that step:
 *
 *     host    submit n, prefetch n+1, retire n-1   submit n+1, prefetch n+2, retire n
 *     GPU    .. n-1][ step n ............][update n][ step n+1 ..........][update n+1]
 *     copies                               [copy n+1]                      [copy n+2]
 *
 * The batch is in one buffer, which is free when the previous batch has been copied. That copy
 * follows the previous step, so the host has the whole duration of this step. The samples of a
 * batch depend only on its position, not on when it is prepared.
 */
#ifndef STEPPER_H
#define STEPPER_H

#include "engine/ticket.h"
#include "feed/feed.h"

/* The part of the data that a step reads. */
struct step_samples {
    int64_t n;
    uint64_t broken;         /* unreadable samples that were replaced, up to this step */
    double units;            /* tokens or images */
};

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

/* Finds the outputs of the run; `end` is set by the caller. `s` must not move afterwards. */
void stepper_begin(struct stepper *s, struct run *r, struct feed *data);
/* Samples of the step at a position: the effective batch, or the rest at the end of the last epoch.
 * Other epochs end within a batch. */
int64_t stepper_samples_at(const struct stepper *s, uint64_t position);

/* The batch of the step that is submitted next, prefetched or read now. `position` and `broken` are
 * those after the last retired step, used if no step is in flight. Changes nothing if there is no
 * feed. */
int stepper_get_batch(struct stepper *s, uint64_t position, uint64_t broken, struct feed_batch *batch, struct error *e);
/* Submits the step of that batch. `from` as in ticket_submit. */
int stepper_submit(struct stepper *s, const struct step_block *b, double from, struct error *e);
/* Prefetches the batch of the next step if the device can; else does nothing. An evaluation would
 * overwrite the batch, so this is not called before one. An error of the batch is reported when
 * its step is submitted. */
int stepper_prefetch(struct stepper *s, struct error *e);
/* Waits for the oldest step in flight and retires it. */
int stepper_retire(struct stepper *s, struct ticket *out, struct step_samples *samples, struct error *e);
/* Reads the batch of the step at a position again, if a later one has overwritten it. */
void stepper_restore(struct stepper *s, uint64_t position);

#endif
