/*
 * progress.h: how far a long command is, on stderr.
 *
 *     struct progress p;
 *     progress_begin(&p, "packing", "images", n);
 *     for (...) progress_add(&p, 1);
 *     progress_clear();
 *
 * On a terminal it is one line that is rewritten:
 *
 *     packing 120/5000 images  12.3 images/s  6 min 37 s left
 *
 * Elsewhere (a pipe, a log file) it is a line now and then: none in the first seconds, at most one
 * every few seconds, and fewer the longer the command runs. The environment variable
 * PLIMSOLL_PROGRESS sets the least number of seconds between these lines; 0: no progress is shown
 * anywhere. Nothing is shown while notes are dropped (log_quiet).
 *
 * One thread at a time calls these functions; they allocate nothing. Log lines and errors erase the
 * rewritten line; before a command prints to stdout it calls progress_clear.
 */
#pragma once

#include "base/base.h"

struct progress {
    const char *what, *unit;
    /* first: done before `begun`; total 0: not known, so the time left is not known either */
    uint64_t first, done, total;
    double begun, shown;
};

void progress_begin(struct progress *p, const char *what, const char *unit, uint64_t total);
/* Says at once how long the command is expected to take, if that is long. */
void progress_expect(struct progress *p, double seconds);
/* Reports whether progress_expect says a time of `seconds`. */
bool progress_says(double seconds);
/* Counts `n` more as done, and shows a line if one is due. */
void progress_add(struct progress *p, uint64_t n);

/* For lines of another form: whether a line is due now, and the line. `edge`: it is due however
 * recent the last one is, as for the first and the last step of a training run. */
bool progress_due(struct progress *p, bool edge);
void progress_line(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Prints the time left by the mean speed so far: "6 min 37 s left". */
char *progress_left(const struct progress *p, char out[48]);

/* Erases the rewritten line; progress_keep leaves it on the screen and goes to the next line. Both
 * do nothing when there is none. */
void progress_clear(void);
void progress_keep(void);

/* Switches notes and warnings of this process off: another rank of the run logs them, or a caller
 * of the library takes them. */
void log_silence(void);
