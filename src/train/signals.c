/*
 * signals.c: one flag. The handler does only what is async-signal-safe: it stores the number and
 * changes actions.
 *
 * With SA_RESTART the first signal does not interrupt a read or a write, so that the current step
 * and its files are completed normally.
 */
#include "train/trainer.h"

#include "base/base.h"
#include "io/temporary.h"

#include <signal.h>

static volatile sig_atomic_t received;

/* After the first signal, `final` ends the process by temporary_end. The others are ignored:
 * SIGHUP of a closed terminal may come twice, SIGXCPU comes every second, and batch systems repeat
 * SIGUSR1 or SIGUSR2. */
static const struct {
    int number;
    bool final;
    const char *name;
} table[] = {{SIGTERM, true, "SIGTERM"},  {SIGINT, true, "SIGINT"},    {SIGHUP, false, "SIGHUP"},
             {SIGUSR1, false, "SIGUSR1"}, {SIGUSR2, false, "SIGUSR2"}, {SIGXCPU, false, "SIGXCPU"}};

static void act_later(void)
{
    for (size_t i = 0; i < COUNT(table); i++) {
        struct sigaction act = {0};
        act.sa_handler = table[i].final ? temporary_end : SIG_IGN;
        sigemptyset(&act.sa_mask);
        sigaction(table[i].number, &act, NULL);
    }
}

static void record_signal(int signal_number)
{
    received = signal_number;
    act_later();
}

void signals_install(void)
{
    struct sigaction act = {0}, before;
    act.sa_handler = record_signal;
    act.sa_flags = SA_RESTART;
    /* Each signal blocks the others during the handler: otherwise a second signal could arrive
     * between the store and the change of actions. */
    sigemptyset(&act.sa_mask);
    for (size_t i = 0; i < COUNT(table); i++) sigaddset(&act.sa_mask, table[i].number);
    received = 0;
    for (size_t i = 0; i < COUNT(table); i++) {
        CHECK(sigaction(table[i].number, NULL, &before) == 0, "%s", table[i].name);
        if (!table[i].final && before.sa_handler == SIG_IGN) continue; /* as nohup asked */
        CHECK(sigaction(table[i].number, &act, NULL) == 0, "%s", table[i].name);
    }
}

int signals_received(void) { return received; }

const char *signals_name(int signal_number)
{
    for (size_t i = 0; i < COUNT(table); i++)
        if (table[i].number == signal_number) return table[i].name;
    return "a signal";
}
