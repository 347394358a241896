/*
 * progress.h: the progress line: step, loss, learning rate, gradient norm, tokens/s or images/s,
 * memory, time left. On a terminal it is updated in place; in a log file it appears at most once a
 * second.
 */
#ifndef PROGRESS_H
#define PROGRESS_H

#include "base/base.h"

struct progress {
    int64_t first, total;
    double begun, shown;
    double units, seconds;   /* of this process so far */
    const char *unit;
    uint64_t arena;
    bool terminal, open;     /* open: the line on the screen has no newline yet */
};

void progress_begin(struct progress *p, int64_t step, int64_t total, uint64_t arena, const char *unit);
void progress_step(struct progress *p, int64_t step, double loss, double rate, double norm, double units, double seconds);
/* Ends an open line, so that other text can be printed. */
void progress_break(struct progress *p);

#endif
