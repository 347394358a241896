/*
 * mpi.c: the transport over MPI: plimsoll-mpi.so, built by mpicc.
 *
 * MPI moves bytes and nothing else: no reduction and no collective of MPI touches a tensor, so that sums have our order,
 * and no memory but ours. A wait is a loop of MPI_Test that yields the processor; a rank that makes no progress for
 * `timeout` seconds finds out who is late. It asks those that it waits for whether they are alive. One that waits itself
 * answers, for another rank is the cause, and is left the time to name it. Tensors, agreements and these questions have
 * a communicator each.
 *
 * It contains no code of the program, and calls none: messages are formatted here.
 */
#include <mpi.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "dist/dist.h"

enum { PIECE = 1 << 28 }; /* bytes of a message, at most: MPI counts in int */
enum { ASK = 1, ANSWER };  /* tags of communicator `alive` */
enum { ANSWER_SECONDS = 1, OTHERS_SECONDS = 3 }; /* a rank that waits answers within the first; another names the cause within the second */

struct mpi {
    MPI_Comm tensors, agreements, alive;
    MPI_Request *request;
    int *peer;
    int room;
    char (*hosts)[RANK_HOST];
    char *answered;          /* by rank: since this one asked */
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int fail(struct error *e, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(e->text, sizeof e->text, fmt, args);
    va_end(args);
    return e->code = PL_FAIL;
}

static int late(const struct ranks *r, int peer, double timeout, struct error *e)
{
    const struct mpi *m = r->state;
    return fail(e, "waited %g s for rank %d (%s) in %s, step %lld: is it stopped, or the network down?", timeout, peer, m->hosts[peer], r->where ? r->where : "an agreement",
                (long long)r->step);
}

/* --- who is alive -------------------------------------------------------------------------------- */

static void say(const struct mpi *m, int peer, int tag)
{
    static char nothing;
    MPI_Request request;
    if (MPI_Isend(&nothing, 1, MPI_BYTE, peer, tag, m->alive, &request) == MPI_SUCCESS) MPI_Request_free(&request);
}

/* Answers those that ask, and notes answers. */
static void hear(struct mpi *m)
{
    for (int tag = ASK; tag <= ANSWER; tag++) {
        MPI_Message message;
        MPI_Status from;
        int there = 1;
        while (MPI_Improbe(MPI_ANY_SOURCE, tag, m->alive, &there, &message, &from) == MPI_SUCCESS && there) {
            char nothing;
            MPI_Mrecv(&nothing, 1, MPI_BYTE, &message, MPI_STATUS_IGNORE);
            if (tag == ASK) say(m, from.MPI_SOURCE, ANSWER);
            else m->answered[from.MPI_SOURCE] = 1;
        }
    }
}

/* The first rank of those that are waited for that has not answered; -1: all have. `ask`: asks them first. */
static int silent(struct mpi *m, const MPI_Request *request, const int *peer, int n, int ranks, int ask)
{
    if (ask) memset(m->answered, 0, (size_t)ranks);
    for (int i = 0; i < n && ask; i++)
        if (request[i] != MPI_REQUEST_NULL) say(m, peer[i], ASK);
    for (int i = 0; i < n; i++)
        if (request[i] != MPI_REQUEST_NULL && !m->answered[peer[i]]) return peer[i];
    return -1;
}

/* --- waiting ------------------------------------------------------------------------------------- */

/* Awaits n requests. The clock starts again whenever one of them completes. */
static int await(struct ranks *r, MPI_Request *request, const int *peer, int n, double timeout, struct error *e)
{
    struct mpi *m = r->state;
    const double from = now();
    double progress = from, asked = 0; /* asked 0: not yet */
    int done = 0;
    for (int idle = 0; done < n; idle++) {
        int before = done, open = -1;
        done = 0;
        for (int i = 0; i < n; i++) {
            int complete = 1;
            if (request[i] != MPI_REQUEST_NULL && MPI_Test(&request[i], &complete, MPI_STATUS_IGNORE) != MPI_SUCCESS) return fail(e, "MPI_Test failed while waiting for rank %d", peer[i]);
            done += complete;
            if (!complete && open < 0) open = i;
        }
        if (done > before) progress = now(), asked = 0;
        const double over = now() - progress - timeout;
        if (over > 0 && !asked) {
            asked = now();
            silent(m, request, peer, n, r->n, 1);
        } else if (over > 0 && now() - asked > ANSWER_SECONDS) {
            const int who = silent(m, request, peer, n, r->n, 0);
            if (who >= 0 || now() - asked > OTHERS_SECONDS) return late(r, who >= 0 ? who : peer[open], timeout, e);
        }
        if (idle > 50) hear(m), sched_yield();
    }
    r->waited += now() - from;
    return PL_OK;
}

/* Grows before the first step: the plan's largest exchange has two moves for each peer. */
static void reserve(struct mpi *m, int n)
{
    if (n <= m->room) return;
    m->room = n;
    m->request = realloc(m->request, (size_t)n * sizeof *m->request);
    m->peer = realloc(m->peer, (size_t)n * sizeof *m->peer);
    if (!m->request || !m->peer) abort();
}

static int post(const struct move *v, uint64_t at, MPI_Comm comm, MPI_Request *request)
{
    const int bytes = (int)(v->bytes - at < PIECE ? v->bytes - at : PIECE);
    char *from = (char *)v->at + at;
    return v->send ? MPI_Isend(from, bytes, MPI_BYTE, v->peer, 0, comm, request) : MPI_Irecv(from, bytes, MPI_BYTE, v->peer, 0, comm, request);
}

/* Receives are posted first, so that nothing arrives unexpected. Messages between two ranks keep their order. */
static int exchange(struct ranks *r, const struct move *v, int n, struct error *e)
{
    struct mpi *m = r->state;
    int posted = 0, pieces = 0;
    for (int i = 0; i < n; i++) pieces += (int)((v[i].bytes + PIECE - 1) / PIECE);
    reserve(m, pieces);
    for (int send = 0; send < 2; send++)
        for (int i = 0; i < n; i++)
            for (uint64_t at = 0; at < v[i].bytes && v[i].send == (send == 1); at += PIECE) {
                if (post(&v[i], at, m->tensors, &m->request[posted]) != MPI_SUCCESS) return fail(e, "MPI cannot send to or receive from rank %d", v[i].peer);
                m->peer[posted++] = v[i].peer;
            }
    return await(r, m->request, m->peer, posted, r->timeout, e);
}

static int gather(struct ranks *r, const void *mine, void *all, size_t each, struct error *e)
{
    struct mpi *m = r->state;
    int posted = 0;
    reserve(m, 2 * r->n);
    for (int i = 0; i < r->n; i++) {
        if (i == r->rank) continue;
        if (MPI_Irecv((char *)all + (size_t)i * each, (int)each, MPI_BYTE, i, 0, m->agreements, &m->request[posted]) != MPI_SUCCESS) return fail(e, "MPI_Irecv from rank %d failed", i);
        m->peer[posted++] = i;
    }
    for (int i = 0; i < r->n; i++) {
        if (i == r->rank) continue;
        if (MPI_Isend(mine, (int)each, MPI_BYTE, i, 0, m->agreements, &m->request[posted]) != MPI_SUCCESS) return fail(e, "MPI_Isend to rank %d failed", i);
        m->peer[posted++] = i;
    }
    memcpy((char *)all + (size_t)r->rank * each, mine, each);
    return await(r, m->request, m->peer, posted, r->timeout * (r->patient ? 6 : 1), e);
}

/* MPI_Abort may hang if the network does: the alarm ends the process. */
static void end_now(struct ranks *r, int code, const char *why)
{
    if (why) fprintf(stderr, "[rank %d on %s] %s\n", r->rank, r->host, why);
    fflush(stderr);
    signal(SIGALRM, SIG_DFL);
    alarm(5);
    MPI_Abort(MPI_COMM_WORLD, code);
    _exit(code);
}

static void finish(struct ranks *r)
{
    struct mpi *m = r->state;
    MPI_Comm_free(&m->tensors);
    MPI_Comm_free(&m->agreements);
    MPI_Comm_free(&m->alive);
    MPI_Finalize();
    free(m->request);
    free(m->peer);
    free(m->hosts);
    free(m->answered);
    free(m);
}

static int open_world(struct ranks *r, struct error *e)
{
    struct mpi *m = calloc(1, sizeof *m);
    int provided;
    if (!m || MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided) != MPI_SUCCESS) return fail(e, "MPI_Init_thread failed");
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &r->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &r->n);
    if (MPI_Comm_dup(MPI_COMM_WORLD, &m->tensors) != MPI_SUCCESS || MPI_Comm_dup(MPI_COMM_WORLD, &m->agreements) != MPI_SUCCESS ||
        MPI_Comm_dup(MPI_COMM_WORLD, &m->alive) != MPI_SUCCESS)
        return fail(e, "MPI_Comm_dup failed");
    gethostname(r->host, sizeof r->host - 1);
    r->state = m;
    r->exchange = exchange;
    r->gather = gather;
    r->abort = end_now;
    r->close = finish;
    m->hosts = calloc((size_t)r->n, sizeof *m->hosts);
    m->answered = calloc((size_t)r->n, 1);
    for (int i = 0; m->hosts && i < r->n; i++) snprintf(m->hosts[i], sizeof m->hosts[i], "its host");
    reserve(m, 4 * r->n);
    if (!m->hosts || !m->answered) return fail(e, "no memory for the names of %d hosts", r->n);
    if (gather(r, r->host, m->hosts, sizeof *m->hosts, e)) return e->code;
    for (int i = 0; i < r->n; i++) r->local += !strcmp(m->hosts[i], r->host);
    return PL_OK;
}

__attribute__((visibility("default"))) const struct mpi_plugin plimsoll_mpi_plugin = {MPI_PLUGIN_ABI, open_world};
