/*
 * signals.h: SIGTERM and SIGINT ask a run to stop after the step it is in.
 */
#ifndef SIGNALS_H
#define SIGNALS_H

/* From here on the first SIGTERM or SIGINT is only remembered; the second one,
 * of either kind, ends the process as it would have without us: a run that is
 * stuck can always be stopped from the keyboard. */
void signals_install(void);

/* The signal that came (SIGTERM or SIGINT), or 0. Cheap: read it every step. */
int signals_received(void);

/* "SIGTERM", "SIGINT": for the message. */
const char *signals_name(int signal_number);

#endif
