/*
 * signals.h: signals that stop a run after the current step: SIGTERM, SIGINT, SIGHUP (the terminal
 * is closed), SIGUSR1 and SIGUSR2 (batch systems warn with them before the time is over) and
 * SIGXCPU (the limit of processor time, ulimit -t).
 */
#ifndef SIGNALS_H
#define SIGNALS_H

/* Records the first of these signals from here on, and does no more. A further SIGTERM or SIGINT
 * ends the process by default action: a run that hangs can always be stopped from the keyboard.
 * Where SIGHUP, SIGUSR1, SIGUSR2 or SIGXCPU is ignored before, as under nohup, it stays so. */
void signals_install(void);

/* Returns the recorded signal, or 0. It is cheap enough for every step. */
int signals_received(void);

/* Returns "SIGTERM" for the message. */
const char *signals_name(int signal_number);

#endif
