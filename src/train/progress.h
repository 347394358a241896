/*
 * progress.h: the line that a person watches: step, loss, learning rate,
 * gradient norm, tokens/s or images/s, memory, time left. On a terminal it stays in place;
 * in a log it appears at most once a second.
 */
#ifndef PROGRESS_H
#define PROGRESS_H

#include "base/base.h"

struct progress {
    int64_t first, total;
    double begun, shown;
    double units, seconds;   /* of this run so far */
    const char *unit;
    uint64_t arena;
    bool terminal, open;     /* open: a line without its newline is on the screen */
};

void progress_begin(struct progress *p, int64_t step, int64_t total, uint64_t arena, const char *unit);
void progress_step(struct progress *p, int64_t step, double loss, double rate, double norm, double units, double seconds);
/* Ends an open line, so that other text can follow. */
void progress_break(struct progress *p);

#endif
