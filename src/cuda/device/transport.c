/*
 * transport.c: see transport.h.
 */
#include "cuda/device/transport.h"

#include <sched.h>

/* --- staged ----------------------------------------------------------------------------------- */

/* The argument of a host function in a captured graph: it lives as long as the device. */
struct staged_call {
    struct ranks *ranks;
    const char *where;
    int n;
    struct move moves[];         /* at addresses of host memory */
};

/* Exchanges on a thread of the driver, in stream order. It may not call CUDA. Nobody takes its
 * failure: it ends all ranks. */
static void CUDART_CB run_call(void *call)
{
    const struct staged_call *c = call;
    struct error e = {0};
    c->ranks->where = c->where;
    if (c->ranks->exchange(c->ranks, c->moves, c->n, &e)) c->ranks->abort(c->ranks, PL_FAIL, e.text);
    c->ranks->where = NULL;
}

static struct staged_call *add_call(struct transport *t, int moves, const char *where)
{
    struct staged_call *c = mem_alloc(sizeof *c + (size_t)moves * sizeof *c->moves);
    c->ranks = t->ranks;
    c->where = where;
    vec_push(&t->calls, c);
    return c;
}

static uint64_t piece_of(const struct transport *t, const struct move *m, uint64_t from)
{
    return m->bytes > from ? min_u64(m->bytes - from, t->each) : 0;
}

/* Stages bytes [from, from + each) of every move. */
static int stage(struct transport *t, const struct move *moves, int n, uint64_t from, const char *where,
                 cudaStream_t stream, struct error *e)
{
    struct staged_call *c = add_call(t, n, where);
    uint64_t sent = 0, received = 0;
    for (int i = 0; i < n; i++) {
        const struct move *m = &moves[i];
        const uint64_t bytes = piece_of(t, m, from);
        char *host = m->send ? t->out + sent++ * t->each : t->in + received++ * t->each;
        if (bytes) c->moves[c->n++] = (struct move){m->peer, host, bytes, m->send};
        if (bytes && m->send)
            TRY_CUDA(cudaMemcpyAsync(host, (const char *)m->at + from, bytes, cudaMemcpyDeviceToHost, stream));
    }
    CHECK(sent <= (uint64_t)t->ranks->n && received <= (uint64_t)t->ranks->n,
          "more moves than host memory has room for");
    TRY_CUDA(cudaLaunchHostFunc(stream, run_call, c));
    received = 0;
    for (int i = 0; i < n; i++) {
        const struct move *m = &moves[i];
        const uint64_t bytes = piece_of(t, m, from);
        const char *host = m->send ? NULL : t->in + received++ * t->each;
        if (bytes && host) TRY_CUDA(cudaMemcpyAsync((char *)m->at + from, host, bytes, cudaMemcpyHostToDevice, stream));
    }
    return PL_OK;
}

int transport_exchange(struct transport *t, const struct move *moves, int n, const char *where, cudaStream_t stream,
                       struct error *e)
{
    uint64_t most = 0;
    if (!n) return PL_OK;
    if (t->nccl) return nccl_exchange(t->nccl, moves, n, stream, e);
    for (int i = 0; i < n; i++) most = moves[i].bytes > most ? moves[i].bytes : most;
    for (uint64_t from = 0; from < most; from += t->each) TRY(stage(t, moves, n, from, where, stream, e));
    return PL_OK;
}

/* --- waiting ---------------------------------------------------------------------------------- */

static int stalled(const struct transport *t, double seconds, struct error *e)
{
    struct ranks *r = t->ranks;
    nccl_close(t->nccl, true);
    error_set(e, PL_FAIL, "waited %g s for the GPU in step %lld, which waits for other ranks: is one of them stopped, "
              "or the network down?", seconds, (long long)r->step);
    r->abort(r, PL_FAIL, e->text);
    return PL_FAIL;
}

int transport_wait(const struct cuda_state *s, cudaStream_t stream, cudaEvent_t event, struct error *e)
{
    const struct transport *t = s->transport;
    if (!t || !t->nccl) {
        TRY_CUDA(event ? cudaEventSynchronize(event) : cudaStreamSynchronize(stream));
        return PL_OK;
    }
    const double from = clock_seconds(), timeout = t->ranks->timeout * (t->ranks->patient ? 6 : 1);
    for (int idle = 0;; idle++) {
        const cudaError_t rc = event ? cudaEventQuery(event) : cudaStreamQuery(stream);
        if (rc == cudaSuccess) return PL_OK;
        if (rc != cudaErrorNotReady) return cuda_failed(e, rc, "a step of several ranks");
        cudaGetLastError();
        if (idle % 256) continue;
        TRY(nccl_check(t->nccl, e));
        if (clock_seconds() - from > timeout) return stalled(t, timeout, e);
        sched_yield();
    }
}

/* --- opening ---------------------------------------------------------------------------------- */

static id find_storage(const struct graph *g, const char *name)
{
    for (id s = 1; s < g->storages.n; s++)
        if (g->storages.at[s].kind == KIND_STAGING && !strcmp(graph_name(g, g->storages.at[s].name), name)) return s;
    return 0;
}

/* Loads NCCL, or says why this rank does not use it; "": it does. */
static void load_nccl(struct transport *t, char why[200])
{
    const char *file = getenv("PLIMSOLL_NCCL"), *crowded = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    struct error e = {0};
    why[0] = '\0';
    if (file && (!file[0] || !strcmp(file, "0"))) snprintf(why, 200, "PLIMSOLL_NCCL is %s", file[0] ? file : "empty");
    else if (cuda_gpu_is_shared() && !(crowded && !strcmp(crowded, "1")))
        snprintf(why, 200, "several ranks share a GPU");
    else if (!(t->nccl = nccl_load(&e))) snprintf(why, 200, "%.190s", e.text);
}

/* Chooses NCCL on all ranks, or on none. */
static int choose(struct transport *t, struct error *e)
{
    struct ranks *r = t->ranks;
    char (*all)[200] = mem_alloc((size_t)r->n * sizeof *all), why[200];
    load_nccl(t, why);
    int rc = r->gather(r, why, all, sizeof why, e), first = -1;
    for (int i = r->n; i-- > 0;)
        if (all[i][0]) first = i;
    if (first >= 0 && t->nccl) {
        nccl_close(t->nccl, false);
        t->nccl = NULL;
    }
    if (!rc && t->nccl) log_note("gradients go from GPU to GPU by NCCL %s", nccl_version(t->nccl));
    else if (!rc) log_note("gradients go through host memory: %s (rank %d)", all[first], first);
    mem_free(all);
    return rc;
}

int transport_open(struct device *d, const struct tape *t, struct error *e)
{
    struct cuda_state *s = d->state;
    const id host = find_storage(t->graph, "exchange");
    size_t before = 0, after = 0, total;
    if (!d->ranks || !host || s->transport) return PL_OK;
    struct transport *x = s->transport = mem_alloc(sizeof *x);
    x->ranks = d->ranks;
    x->each = t->graph->storages.at[host].bytes / 2 / (uint64_t)d->ranks->n / 64 * 64;
    x->out = t->arena[SPACE_HOST] + t->placement->offset[host];
    x->in = x->out + x->each * (uint64_t)d->ranks->n;
    TRY(choose(x, e));
    if (!x->nccl && !x->ranks->threads)
        return error_set(e, PL_FAIL, "this MPI is built for one thread (no MPI_THREAD_MULTIPLE): ranks on GPUs need "
                         "NCCL, or another MPI");
    if (!x->nccl) return PL_OK;
    TRY_CUDA(cudaMemGetInfo(&before, &total));
    TRY(nccl_connect(x->nccl, x->ranks, d->arena[SPACE_DEVICE], s->lane[LANE_COMPUTE], e));
    TRY_CUDA(cudaMemGetInfo(&after, &total));
    d->outside_bytes = before > after ? before - after : 0;
    return PL_OK;
}

void transport_close(struct cuda_state *s)
{
    struct transport *t = s->transport;
    if (!t) return;
    if (t->nccl) nccl_close(t->nccl, t->ranks->ended);
    for (uint32_t i = 0; i < t->calls.n; i++) mem_free(t->calls.at[i]);
    vec_free(&t->calls);
    mem_free(t);
    s->transport = NULL;
}
