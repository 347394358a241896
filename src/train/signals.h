/*
 * signals.h: SIGTERM and SIGINT stop a run after the current step.
 */
#ifndef SIGNALS_H
#define SIGNALS_H

/* From here on the first SIGTERM or SIGINT is only recorded. The second one, of either kind, ends
 * the process by default action: a run that hangs can always be stopped from the keyboard. */
void signals_install(void);

/* The recorded signal (SIGTERM or SIGINT), or 0. Cheap enough for every step. */
int signals_received(void);

/* "SIGTERM", "SIGINT": for the message. */
const char *signals_name(int signal_number);

#endif
