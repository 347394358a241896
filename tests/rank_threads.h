/*
 * rank_threads.h: N ranks as threads of one process: the transport of tests that need no launcher.
 * Each rank shows its moves to the others; when all have come, a receiver copies what its peers
 * send.
 */
#pragma once

#include <pthread.h>
#include <time.h>

#include "run/ranks.h"

enum { RANK_THREADS = 64 };

struct rank_threads {
    pthread_mutex_t lock;
    pthread_cond_t all_here;
    int n, here;
    unsigned round;
    const struct move *moves[RANK_THREADS];
    int n_moves[RANK_THREADS];
    const void *mine[RANK_THREADS];
};

/* Waits until all ranks are here; false after the timeout. */
static inline bool rank_threads_meet(struct ranks *r)
{
    struct rank_threads *t = r->state;
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += (time_t)r->timeout;
    pthread_mutex_lock(&t->lock);
    const unsigned round = t->round;
    bool late = false;
    if (++t->here == t->n) {
        t->here = 0;
        t->round++;
        pthread_cond_broadcast(&t->all_here);
    }
    while (t->round == round && !late) late = pthread_cond_timedwait(&t->all_here, &t->lock, &end) != 0;
    pthread_mutex_unlock(&t->lock);
    return !late;
}

/* The k-th move from rank `from` to rank `to`. */
static inline const struct move *rank_threads_sent(const struct rank_threads *t, int from, int to, int k)
{
    for (int i = 0; i < t->n_moves[from]; i++)
        if (t->moves[from][i].send && t->moves[from][i].peer == to && !k--) return &t->moves[from][i];
    return NULL;
}

static inline int rank_threads_exchange(struct ranks *r, const struct move *m, int n, struct error *e)
{
    struct rank_threads *t = r->state;
    int received[RANK_THREADS] = {0}, rc = PL_OK;
    t->moves[r->rank] = m;
    t->n_moves[r->rank] = n;
    if (!rank_threads_meet(r)) return error_set(e, PL_FAIL, "rank %d waited %g s for the others", r->rank, r->timeout);
    for (int i = 0; i < n; i++) {
        if (m[i].send) continue;
        const struct move *from = rank_threads_sent(t, m[i].peer, r->rank, received[m[i].peer]++);
        if (!from || from->bytes != m[i].bytes)
            rc = error_set(e, PL_FAIL, "rank %d expects %llu bytes of rank %d, which sends %llu", r->rank,
                           (unsigned long long)m[i].bytes, m[i].peer, from ? (unsigned long long)from->bytes : 0ull);
        else memcpy(m[i].at, from->at, from->bytes);
    }
    if (!rank_threads_meet(r)) return error_set(e, PL_FAIL, "rank %d waited %g s for the others", r->rank, r->timeout);
    return rc;
}

static inline int rank_threads_gather(struct ranks *r, const void *mine, void *all, size_t each, struct error *e)
{
    struct rank_threads *t = r->state;
    t->mine[r->rank] = mine;
    bool here = rank_threads_meet(r);
    for (int i = 0; i < r->n && here; i++) memcpy((char *)all + (size_t)i * each, t->mine[i], each);
    if (here) here = rank_threads_meet(r);
    return here ? PL_OK : error_set(e, PL_FAIL, "rank %d waited %g s for the others", r->rank, r->timeout);
}

static inline void rank_threads_abort(struct ranks *r, int code, const char *why)
{
    fprintf(stderr, "rank %d: %s (code %d)\n", r->rank, why, code);
    abort();
}

/* Fills r[0..n-1]. */
static inline void rank_threads_open(struct ranks *r, int n, double timeout)
{
    struct rank_threads *t = calloc(1, sizeof *t);
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->all_here, NULL);
    t->n = n;
    for (int i = 0; i < n; i++)
        r[i] = (struct ranks){.n = n, .rank = i, .local = n, .timeout = timeout, .host = "here",
                              .exchange = rank_threads_exchange, .gather = rank_threads_gather,
                              .abort = rank_threads_abort, .state = t};
}

static inline void rank_threads_close(struct ranks *r)
{
    struct rank_threads *t = r->state;
    pthread_mutex_destroy(&t->lock);
    pthread_cond_destroy(&t->all_here);
    free(t);
}
