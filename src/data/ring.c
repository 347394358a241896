/*
 * ring.c: see ring.h.
 *
 *     taken            next
 *       │                │
 *   ... │ r  r  .  r  .  │ free ...      r: ready   .: being filled
 *       └── at most `slots` wide ──┘
 *
 * One mutex guards the counters. A slot belongs to a thread from its ticket until `ready`, then to
 * the consumer until it takes the next slot. A seek waits until no ticket is out, so a thread
 * never writes to a slot that has been reassigned.
 */
#include "data/ring.h"

#include <pthread.h>
#include <signal.h>

enum { STACK = 1 << 20 };

struct ring {
    struct ring_options o;
    char *slots;               /* [o.slots] structs of the kind */
    bool *ready;               /* [o.slots] */
    void **states;             /* [o.threads] */
    pthread_t *threads;
    uint32_t started;
    pthread_mutex_t lock;
    pthread_cond_t work, done; /* for threads: a slot is free; for the consumer: a slot is ready,
                                  or no ticket is out */
    const void *source;        /* NULL: none yet */
    uint64_t end;              /* of its positions */
    struct ring_part part;     /* of its positions that are read */
    /* the consumer's next number, and the number of the next ticket: positions, or of the part's */
    uint64_t taken, next;
    bool holds;                /* the consumer has the slot of `taken` - 1 */
    uint32_t busy;             /* tickets that are out */
    bool stop, held;           /* held: no new tickets, a seek is waiting */
};

/* --- memory ------------------------------------------------------------------------------ */

void *ring_carve(char *at, uint64_t *used, uint64_t bytes)
{
    void *p = at ? at + *used : NULL;
    *used += align_up(bytes, 64);
    return p;
}

uint64_t ring_bytes(const struct ring_options *o)
{
    void *slot = mem_alloc(o->kind->slot);
    const uint64_t bytes =
        o->slots * o->kind->slot_layout(slot, o->options, NULL) + o->threads * o->kind->thread_bytes(o->options);
    mem_free(slot);
    return bytes;
}

static void *slot_of(const struct ring *r, uint64_t number) { return r->slots + number % r->o.slots * r->o.kind->slot; }

/* Returns the position with this number. */
static uint64_t position_of(const struct ring *r, uint64_t number)
{
    const struct ring_part *p = &r->part;
    return p->each ? p->first + (number - p->first) / p->each * p->every + (number - p->first) % p->each : number;
}

/* --- threads ------------------------------------------------------------------------------ */

static bool may_start(const struct ring *r)
{
    if (!r->source || r->held || position_of(r, r->next) >= r->end) return false;
    /* the consumer still reads the slot of taken - 1 */
    return r->next < r->taken - r->holds + r->o.slots;
}

struct start {
    struct ring *ring;
    void *state;
};

static void *work(void *argument)
{
    struct ring *r = ((struct start *)argument)->ring;
    void *state = ((struct start *)argument)->state;
    pthread_mutex_lock(&r->lock);
    r->started++;
    pthread_cond_broadcast(&r->done);
    while (!r->stop) {
        if (!may_start(r)) {
            pthread_cond_wait(&r->work, &r->lock);
            continue;
        }
        /* ahead: filled after all current tickets */
        const uint64_t number = r->next++, position = position_of(r, number),
                       ahead = position_of(r, number + r->o.threads);
        const bool prefetch = r->o.kind->prefetch && ahead < r->end;
        const void *source = r->source;
        r->busy++;
        pthread_mutex_unlock(&r->lock);
        if (prefetch) r->o.kind->prefetch(source, ahead);
        r->o.kind->fill(state, source, position, slot_of(r, number));
        pthread_mutex_lock(&r->lock);
        r->busy--;
        r->ready[number % r->o.slots] = true;
        pthread_cond_broadcast(&r->done);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

/* Starts a thread with all signals blocked, except that of a memory map that fails (base/mapped.h);
 * waits until it has read `start`. */
static int start_thread(struct ring *r, uint32_t i, struct error *e)
{
    struct start start = {r, r->states[i]};
    pthread_attr_t attributes;
    sigset_t all, before;
    sigfillset(&all);
    sigdelset(&all, SIGBUS);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&r->threads[i], &attributes, work, &start);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (rc) return error_set(e, PL_FAIL, "cannot start loader thread %u: %s; lower data.threads", i, strerror(rc));
    pthread_mutex_lock(&r->lock);
    while (r->started <= i) pthread_cond_wait(&r->done, &r->lock);
    pthread_mutex_unlock(&r->lock);
    return PL_OK;
}

int ring_open(struct ring **out, const struct ring_options *o, void *memory, struct error *e)
{
    CHECK(o->slots >= 2 && o->threads && (uintptr_t)memory % 64 == 0, "ring of %u slots and %u threads at %p", o->slots,
          o->threads, memory);
    struct ring *r = mem_alloc(sizeof *r);
    const struct ring_kind *k = o->kind;
    char *at = memory;
    r->o = *o;
    r->slots = mem_alloc(o->slots * k->slot);
    r->ready = mem_alloc(o->slots * sizeof *r->ready);
    r->states = mem_alloc(o->threads * sizeof *r->states);
    r->threads = mem_alloc(o->threads * sizeof *r->threads);
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->work, NULL);
    pthread_cond_init(&r->done, NULL);
    for (uint32_t i = 0; i < o->slots; i++) at += k->slot_layout(slot_of(r, i), o->options, at);
    for (uint32_t i = 0; i < o->threads; i++, at += k->thread_bytes(o->options))
        r->states[i] = k->thread_new(o->options, at);
    int rc = PL_OK;
    for (uint32_t i = 0; i < o->threads && !rc; i++) rc = start_thread(r, i, e);
    if (rc) ring_close(r);
    else *out = r;
    return rc;
}

void ring_close(struct ring *r)
{
    if (!r) return;
    pthread_mutex_lock(&r->lock);
    r->stop = true;
    pthread_cond_broadcast(&r->work);
    pthread_mutex_unlock(&r->lock);
    for (uint32_t i = 0; i < r->started; i++) pthread_join(r->threads[i], NULL);
    for (uint32_t i = 0; i < r->o.threads; i++) r->o.kind->thread_free(r->states[i]);
    pthread_cond_destroy(&r->done);
    pthread_cond_destroy(&r->work);
    pthread_mutex_destroy(&r->lock);
    mem_free(r->threads);
    mem_free(r->states);
    mem_free(r->ready);
    mem_free(r->slots);
    mem_free(r);
}

/* --- the consumer ---------------------------------------------------------------------------- */

void ring_seek_part(struct ring *r, const void *source, struct ring_part part, uint64_t end)
{
    pthread_mutex_lock(&r->lock);
    r->held = true;
    while (r->busy) pthread_cond_wait(&r->done, &r->lock);
    memset(r->ready, 0, r->o.slots * sizeof *r->ready);
    r->source = source;
    r->end = end;
    r->part = part;
    r->taken = r->next = part.first;
    r->holds = r->held = false;
    pthread_cond_broadcast(&r->work);
    pthread_mutex_unlock(&r->lock);
}

bool ring_at(const struct ring *r, const void *source, uint64_t position)
{
    return r->source == source && position_of(r, r->taken) == position; /* only the consumer changes these */
}

void *ring_next(struct ring *r)
{
    CHECK(r->source && position_of(r, r->taken) < r->end, "no sample at position %llu",
          (unsigned long long)position_of(r, r->taken));
    pthread_mutex_lock(&r->lock);
    if (r->holds) { /* release the slot of the previous call */
        r->holds = false;
        pthread_cond_broadcast(&r->work);
    }
    const uint64_t number = r->taken;
    while (!r->ready[number % r->o.slots]) pthread_cond_wait(&r->done, &r->lock);
    r->ready[number % r->o.slots] = false;
    r->taken++;
    r->holds = true;
    pthread_mutex_unlock(&r->lock);
    return slot_of(r, number);
}
