/*
 * mpi.c: the transport over MPI: plimsoll-mpi.so, built by mpicc.
 *
 * MPI moves bytes and nothing else: no reduction and no collective of MPI touches a tensor, so that
 * sums have our order, and no memory but ours. A wait is a loop of MPI_Test that yields the
 * processor; a rank that makes no progress for `timeout` seconds finds out who is late. It asks
 * those that it waits for whether they are alive. One that waits itself answers, for another rank
 * is the cause, and is left the time to name it. Tensors, agreements and these questions have a
 * communicator each.
 *
 * It contains no code of the program, and calls none: messages are formatted here.
 */
#include <mpi.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <time.h>
#include <unistd.h>

#include "dist/dist.h"

enum { PIECE = 1 << 28 }; /* bytes of a message, at most: MPI counts in int */
enum { ASK = 1, ANSWER };  /* tags of communicator `alive` */
/* a rank that waits answers within the first; another names the cause within the second */
enum { ANSWER_SECONDS = 1, OTHERS_SECONDS = 3 };

/* Requests of one kind, posted and awaited by one thread. */
struct line {
    MPI_Comm comm;
    MPI_Request *request;
    int *peer;
    int room;
};

struct mpi {
    struct line tensors, agreements;
    MPI_Comm alive;
    char (*hosts)[RANK_HOST];
    double *answered;        /* by rank: when it answered last; both threads hear */
    bool broken;             /* an exchange failed: the others may wait for it, and come to no agreement */
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

static int late(const struct ranks *r, int peer, double timeout, const char *where, struct error *e)
{
    const struct mpi *m = r->state;
    return fail(e, "waited %g s for rank %d (%s) in %s, step %lld: is it stopped, or the network down?", timeout, peer,
                m->hosts[peer], where, (long long)r->step);
}

/* --- who is alive ----------------------------------------------------------------------------- */

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
            else m->answered[from.MPI_SOURCE] = now();
        }
    }
}

/* Asks those that are waited for. */
static void ask(const struct mpi *m, const struct line *l, int n)
{
    for (int i = 0; i < n; i++)
        if (l->request[i] != MPI_REQUEST_NULL) say(m, l->peer[i], ASK);
}

/* Returns the first of those that are waited for that has not answered since; -1: all have. */
static int silent(const struct mpi *m, const struct line *l, int n, double since)
{
    for (int i = 0; i < n; i++)
        if (l->request[i] != MPI_REQUEST_NULL && m->answered[l->peer[i]] < since) return l->peer[i];
    return -1;
}

/* --- waiting ---------------------------------------------------------------------------------- */

/* Awaits n requests. The clock starts again whenever one of them completes. */
static int await(struct ranks *r, const struct line *l, int n, double timeout, const char *where, struct error *e)
{
    struct mpi *m = r->state;
    double progress = now(), asked = 0; /* asked 0: not yet */
    int done = 0;
    for (int idle = 0; done < n; idle++) {
        int before = done, open = -1;
        done = 0;
        for (int i = 0; i < n; i++) {
            int complete = 1;
            if (l->request[i] != MPI_REQUEST_NULL &&
                MPI_Test(&l->request[i], &complete, MPI_STATUS_IGNORE) != MPI_SUCCESS)
                return fail(e, "MPI_Test failed while waiting for rank %d", l->peer[i]);
            done += complete;
            if (!complete && open < 0) open = i;
        }
        if (done > before) progress = now(), asked = 0;
        const double over = now() - progress - timeout;
        if (over > 0 && !asked) {
            asked = now();
            ask(m, l, n);
        } else if (over > 0 && now() - asked > ANSWER_SECONDS) {
            const int who = silent(m, l, n, asked);
            if (who >= 0 || now() - asked > OTHERS_SECONDS)
                return late(r, who >= 0 ? who : l->peer[open], timeout, where, e);
        }
        if (idle > 50) hear(m), sched_yield();
    }
    return PL_OK;
}

/* Grows before the first step: the plan's largest exchange has two moves for each peer. */
static int reserve(struct line *l, int n, struct error *e)
{
    if (n <= l->room) return PL_OK;
    MPI_Request *request = realloc(l->request, (size_t)n * sizeof *l->request);
    if (request) l->request = request;
    int *peer = request ? realloc(l->peer, (size_t)n * sizeof *l->peer) : NULL;
    if (!peer) return fail(e, "no memory for %d messages of MPI", n);
    l->peer = peer;
    l->room = n;
    return PL_OK;
}

static int post(const struct move *v, uint64_t at, MPI_Comm comm, MPI_Request *request)
{
    const int bytes = (int)(v->bytes - at < PIECE ? v->bytes - at : PIECE);
    char *from = (char *)v->at + at;
    return v->send ? MPI_Isend(from, bytes, MPI_BYTE, v->peer, 0, comm, request)
                   : MPI_Irecv(from, bytes, MPI_BYTE, v->peer, 0, comm, request);
}

/* Posts the messages of n moves: receives first, so that nothing arrives unexpected. Messages
 * between two ranks keep their order. */
static int post_all(struct line *l, const struct move *v, int n, int *messages, struct error *e)
{
    int posted = 0, pieces = 0;
    for (int i = 0; i < n; i++) pieces += (int)((v[i].bytes + PIECE - 1) / PIECE);
    if (reserve(l, pieces, e)) return e->code;
    for (int send = 0; send < 2; send++)
        for (int i = 0; i < n; i++)
            for (uint64_t at = 0; at < v[i].bytes && v[i].send == (send == 1); at += PIECE) {
                if (post(&v[i], at, l->comm, &l->request[posted]) != MPI_SUCCESS)
                    return fail(e, "MPI cannot send to or receive from rank %d", v[i].peer);
                l->peer[posted++] = v[i].peer;
            }
    *messages = posted;
    return PL_OK;
}

static int exchange(struct ranks *r, const struct move *v, int n, struct error *e)
{
    struct mpi *m = r->state;
    const double from = now();
    int messages = 0, rc = post_all(&m->tensors, v, n, &messages, e);
    if (!rc) rc = await(r, &m->tensors, messages, r->timeout, r->where ? r->where : "an exchange", e);
    m->broken |= rc != PL_OK;
    r->moving += now() - from;
    return rc;
}

static int gather(struct ranks *r, const void *mine, void *all, size_t each, struct error *e)
{
    struct mpi *m = r->state;
    struct line *l = &m->agreements;
    const double from = now();
    int posted = 0;
    if (m->broken) return fail(e, "an exchange failed");
    if (reserve(l, 2 * r->n, e)) return e->code;
    for (int i = 0; i < r->n; i++) {
        if (i == r->rank) continue;
        if (MPI_Irecv((char *)all + (size_t)i * each, (int)each, MPI_BYTE, i, 0, l->comm, &l->request[posted]) !=
            MPI_SUCCESS)
            return fail(e, "MPI_Irecv from rank %d failed", i);
        l->peer[posted++] = i;
    }
    for (int i = 0; i < r->n; i++) {
        if (i == r->rank) continue;
        if (MPI_Isend(mine, (int)each, MPI_BYTE, i, 0, l->comm, &l->request[posted]) != MPI_SUCCESS)
            return fail(e, "MPI_Isend to rank %d failed", i);
        l->peer[posted++] = i;
    }
    memcpy((char *)all + (size_t)r->rank * each, mine, each);
    const int rc = await(r, l, posted, r->timeout * (r->patient ? 6 : 1), "an agreement", e);
    r->waited += now() - from;
    return rc;
}

/* Ends all ranks with a code. MPI_Abort may hang if the network does: the alarm ends the
 * process. */
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
    MPI_Comm_free(&m->tensors.comm);
    MPI_Comm_free(&m->agreements.comm);
    MPI_Comm_free(&m->alive);
    MPI_Finalize();
    free(m->tensors.request);
    free(m->tensors.peer);
    free(m->agreements.request);
    free(m->agreements.peer);
    free(m->hosts);
    free(m->answered);
    free(m);
}

static int open_world(struct ranks *r, struct error *e)
{
    struct mpi *m = calloc(1, sizeof *m);
    int provided;
    if (!m || MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided) != MPI_SUCCESS)
        return fail(e, "MPI_Init_thread failed");
    r->threads = provided == MPI_THREAD_MULTIPLE;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (MPI_Comm_rank(MPI_COMM_WORLD, &r->rank) != MPI_SUCCESS ||
        MPI_Comm_size(MPI_COMM_WORLD, &r->n) != MPI_SUCCESS)
        return fail(e, "MPI does not tell which rank this is");
    if (MPI_Comm_dup(MPI_COMM_WORLD, &m->tensors.comm) != MPI_SUCCESS ||
        MPI_Comm_dup(MPI_COMM_WORLD, &m->agreements.comm) != MPI_SUCCESS ||
        MPI_Comm_dup(MPI_COMM_WORLD, &m->alive) != MPI_SUCCESS)
        return fail(e, "MPI_Comm_dup failed");
    gethostname(r->host, sizeof r->host - 1);
    r->state = m;
    r->exchange = exchange;
    r->gather = gather;
    r->abort = end_now;
    r->close = finish;
    m->hosts = calloc((size_t)r->n, sizeof *m->hosts);
    m->answered = calloc((size_t)r->n, sizeof *m->answered);
    for (int i = 0; m->hosts && i < r->n; i++) snprintf(m->hosts[i], sizeof m->hosts[i], "its host");
    if (reserve(&m->tensors, 4 * r->n, e) || reserve(&m->agreements, 2 * r->n, e)) return e->code;
    if (!m->hosts || !m->answered) return fail(e, "no memory for the names of %d hosts", r->n);
    if (gather(r, r->host, m->hosts, sizeof *m->hosts, e)) return e->code;
    for (int i = 0; i < r->n; i++) {
        if (i == r->rank) r->local_rank = r->local;
        r->local += !strcmp(m->hosts[i], r->host);
    }
    return PL_OK;
}

__attribute__((visibility("default"))) const struct mpi_plugin plimsoll_mpi_plugin = {MPI_PLUGIN_ABI, open_world};
