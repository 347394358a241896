/*
 * signals.h: signals that stop a run after the current step: SIGTERM, SIGINT, SIGHUP (the terminal
 * is closed), SIGUSR1 and SIGUSR2 (batch systems warn with them before the time is over) and
 * SIGXCPU (the limit of processor time, ulimit -t).
 */
#ifndef SIGNALS_H
#define SIGNALS_H

/* From here on the first of these signals is only recorded. A further SIGTERM or SIGINT ends the
 * process by default action: a run that hangs can always be stopped from the keyboard. Where
 * SIGHUP, SIGUSR1, SIGUSR2 or SIGXCPU is ignored before, as under nohup, it stays so. */
void signals_install(void);

/* The recorded signal, or 0. Cheap enough for every step. */
int signals_received(void);

/* "SIGTERM": for the message. */
const char *signals_name(int signal_number);

#endif
