/*
 * signals.c: one flag. The handler does only what is safe in a handler: it
 * stores the number and puts the default actions back.
 *
 * SA_RESTART keeps the first signal from cutting a read or a write short, so the
 * step in progress and its files end as if nothing had happened.
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

static void remember(int signal_number)
{
    received = signal_number;
    restore_defaults();
}

void signals_install(void)
{
    struct sigaction act = {0};
    act.sa_handler = remember;
    act.sa_flags = SA_RESTART;
    /* Neither may interrupt the handler of the other, or a second signal could
     * come between the store and the defaults. */
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
