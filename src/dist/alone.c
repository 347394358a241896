/*
 * alone.c: a single rank that goes through the motions of several, for tests and to measure what
 * they cost (PLIMSOLL_RANKS=1): its plan has the collectives, and what it sends goes to itself.
 */
#include "dist/dist.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The k-th send arrives at the k-th receive. */
static int exchange(struct ranks *r, const struct move *m, int n, struct error *e)
{
    (void)r;
    for (int i = 0, j = 0; i < n; i++) {
        if (!m[i].send) continue;
        while (j < n && m[j].send) j++;
        if (j == n || m[j].bytes != m[i].bytes)
            return error_set(e, PL_FAIL, "a rank that is alone sends what it does not receive");
        memmove(m[j++].at, m[i].at, m[i].bytes);
    }
    return PL_OK;
}

static int gather(struct ranks *r, const void *mine, void *all, size_t each, struct error *e)
{
    (void)r, (void)e;
    memcpy(all, mine, each);
    return PL_OK;
}

static void end_now(struct ranks *r, int code, const char *why)
{
    fprintf(stderr, "plimsoll: %s\n", why);
    (void)r;
    _exit(code);
}

static void finish(struct ranks *r) { (void)r; }

void dist_alone(struct ranks *r)
{
    *r = (struct ranks){.n = 1, .local = 1, .threads = true, .motions = true, .timeout = r->timeout, .exchange = exchange, .gather = gather, .abort = end_now, .close = finish};
    gethostname(r->host, sizeof r->host - 1);
}
