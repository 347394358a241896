/*
 * caller.c: see caller.h.
 */
#include <pthread.h>
#include <stdatomic.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "base/caller.h"

struct caller_slot {
    _Atomic(const struct caller *) now;
    pthread_t thread; /* of the call; valid with a caller */
};

static struct caller_slot own;
static struct caller_slot *slot = &own;

struct caller_slot *caller_slot(void) { return slot; }
void caller_share(struct caller_slot *shared) { slot = shared; }

const struct caller *caller_enter(const struct caller *c)
{
    slot->thread = pthread_self();
    return atomic_exchange(&slot->now, c);
}

bool caller_is(void) { return atomic_load(&slot->now); }

bool caller_listens(void)
{
    const struct caller *c = atomic_load(&slot->now);
    return c && c->log;
}

void caller_log(enum log_level level, const char *line)
{
    const struct caller *c = atomic_load(&slot->now);
    if (c && c->log) c->log(c->user, level, line);
}

static bool in_parallel_region(void)
{
#ifdef _OPENMP
    return omp_in_parallel();
#else
    return false;
#endif
}

void caller_end(const char *message)
{
    const struct caller *c = atomic_load(&slot->now);
    if (c && c->end && pthread_equal(slot->thread, pthread_self()) && !in_parallel_region()) c->end(c->user, message);
}

bool caller_stops(void)
{
    const struct caller *c = atomic_load(&slot->now);
    return c && c->stops && c->stops(c->user);
}
