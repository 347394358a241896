/*
 * signals.c: one flag. The handler does only what is async-signal-safe: it stores the number and
 * restores the default actions.
 *
 * With SA_RESTART the first signal does not interrupt a read or a write, so that the current step
 * and its files are completed normally.
 */
#include "train/signals.h"

#include "base/base.h"

#include <signal.h>

static volatile sig_atomic_t received;

static void restore_defaults(void)
{
    struct sigaction act = {0};
    act.sa_handler = SIG_DFL;
    sigemptyset(&act.sa_mask);
    sigaction(SIGTERM, &act, NULL);
    sigaction(SIGINT, &act, NULL);
}

static void record_signal(int signal_number)
{
    received = signal_number;
    restore_defaults();
}

void signals_install(void)
{
    struct sigaction act = {0};
    act.sa_handler = record_signal;
    act.sa_flags = SA_RESTART;
    /* Each signal blocks the other during the handler: otherwise a second signal could arrive
     * between the store and the reset. */
    sigemptyset(&act.sa_mask);
    sigaddset(&act.sa_mask, SIGTERM);
    sigaddset(&act.sa_mask, SIGINT);
    received = 0;
    CHECK(sigaction(SIGTERM, &act, NULL) == 0, "SIGTERM");
    CHECK(sigaction(SIGINT, &act, NULL) == 0, "SIGINT");
}

int signals_received(void)
{
    return received;
}

const char *signals_name(int signal_number)
{
    return signal_number == SIGTERM ? "SIGTERM" : signal_number == SIGINT ? "SIGINT" : "a signal";
}
