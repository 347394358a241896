/*
 * nodes.c: the diagnostic mode: a program is launched node by node instead of by its graph, so that
 * each node can be timed or inspected by an observer.
 *
 *     entry by entry, in the CPU runner's order, all lanes on the compute lane's stream:
 *
 *     host     hold, event, launch, event   release   wait
 *     stream   [ held ................... ]    |------- node -------|
 *                                            event                event
 *
 * The host waits after each node. So an error is attributed to the node that caused it, and, where
 * the tape has a timing, the time between two events is the time of that node. An idle stream would
 * pass the first event long before the host has queued the kernels after it, and a small node would
 * be measured by its launch overhead. So a host function holds the stream until everything is
 * queued.
 *
 * The hold ends by itself after HOLD_LIMIT. A launch that has to wait for the GPU (a full queue, a
 * kernel that is being loaded) would otherwise deadlock with it.
 *
 * Small launches that a captured graph merges into one (batch.c) are timed as one.
 *
 * Descriptors that record.c freed after the capture are created anew from the same operands at the
 * first such run, and kept for the next.
 */
#include <stdatomic.h>

#include "cuda/device/host.h"

static const double HOLD_LIMIT = 0.01; /* seconds */

/* The events and the flag that time one node. */
struct watch {
    cudaStream_t stream;
    cudaEvent_t from, to;
    atomic_bool released;
};

static int watch_open(struct watch *w, struct error *e)
{
    TRY_CUDA(cudaEventCreate(&w->from));
    TRY_CUDA(cudaEventCreate(&w->to));
    return PL_OK;
}

static void watch_close(struct watch *w)
{
    if (w->from) cudaEventDestroy(w->from);
    if (w->to) cudaEventDestroy(w->to);
}

/* Runs on a thread of the driver, in stream order. */
static void CUDART_CB hold(void *watch)
{
    struct watch *w = watch;
    double begun = clock_seconds();
    while (!atomic_load(&w->released) && clock_seconds() - begun < HOLD_LIMIT) {
    }
}

static int launch_between_events(struct watch *w, struct launch_batch *b, uint32_t *at, struct error *e)
{
    TRY_CUDA(cudaEventRecord(w->from, w->stream));
    TRY(batch_flush(b, at, e));
    TRY_CUDA(cudaEventRecord(w->to, w->stream));
    return PL_OK;
}

/* Launches and times a node or a batch. On every path the stream is released, and no host function
 * uses the watch any more when this returns. *seconds is the GPU's own measurement. */
static int launch_timed(struct watch *w, struct launch_batch *b, uint32_t *at, double *seconds, struct error *e)
{
    float ms = 0;
    atomic_store(&w->released, false);
    TRY_CUDA(cudaLaunchHostFunc(w->stream, hold, w));
    int rc = launch_between_events(w, b, at, e);
    atomic_store(&w->released, true);
    cudaError_t done = cudaStreamSynchronize(w->stream);
    if (rc) return rc;
    if (done != cudaSuccess) return cuda_failed(e, done, "cudaStreamSynchronize behind the node");
    TRY_CUDA(cudaEventElapsedTime(&ms, w->from, w->to));
    *seconds = 1e-3 * (double)ms;
    return PL_OK;
}

static int launch_alone(cudaStream_t stream, struct launch_batch *b, uint32_t *at, struct error *e)
{
    TRY(batch_flush(b, at, e));
    TRY_CUDA(cudaStreamSynchronize(stream));
    return PL_OK;
}

/* --- batches --------------------------------------------------------------------------- */

/* The traversal of a program: entries first, first + 1 ... are pending in `batch`. */
struct walk {
    struct watch watch;
    struct tape *t;
    enum program p;
    struct launch_batch batch;
    uint32_t first;
};

static double bytes_of(const struct launch *l)
{
    double bytes = 1;
    for (int i = 0; i < l->nin; i++) bytes += (double)operand_elements(&l->in[i]) * dtype_size(l->in[i].dtype);
    for (int o = 0; o < l->nout; o++) bytes += (double)operand_elements(&l->out[o]) * dtype_size(l->out[o].dtype);
    return bytes;
}

/* Records the times of a batch. The GPU's clock is not the host's: the last node is recorded as
 * ending now, and each node of a batch gets a share of the time in proportion to its bytes. */
static void record_times(struct walk *w, uint32_t n, double seconds)
{
    const struct launch *l = w->batch.launches.at;
    double all = 0, at = clock_seconds() - seconds;
    for (uint32_t i = 0; i < n; i++) all += bytes_of(&l[i]);
    for (uint32_t i = 0; i < n; i++) {
        const struct entry *entry = &w->t->program[w->p].at[w->first + i];
        struct timing_event v = {.node = entry->node, .position = entry->position, .program = (uint8_t)w->p,
                                 .lane = entry->lane};
        v.from = at;
        v.to = at += seconds * (bytes_of(&l[i]) / all);
        timing_add(w->t->timing, &v);
    }
}

static int flush(struct walk *w, struct error *e)
{
    const uint32_t n = w->batch.launches.n;
    uint32_t at = 0;
    double seconds = 0;
    if (!n) return PL_OK;
    int rc = w->t->timing ? launch_timed(&w->watch, &w->batch, &at, &seconds, e)
                          : launch_alone(w->watch.stream, &w->batch, &at, e);
    if (rc) return cuda_name_entry(w->t, w->p, &w->t->program[w->p].at[w->first + (at < n ? at : 0)], e);
    if (w->t->timing) record_times(w, n, seconds);
    for (uint32_t i = 0; w->t->observe && i < n; i++) {
        struct entry now = w->t->program[w->p].at[w->first + i]; /* with the addresses of this iteration */
        now.launch = w->batch.launches.at[i];
        w->t->observe(w->t->observer, &now);
    }
    return PL_OK;
}

/* Runs an entry. When only times are recorded, launches are merged as in a captured graph, because
 * those are the times of a real step. Otherwise each node is launched by itself. */
static int run_entry(struct walk *w, uint32_t k, struct error *e)
{
    const struct entry *entry = &w->t->program[w->p].at[k];
    const struct cuda_kernel *kernel = cuda_kernel_of(entry->kernel);
    struct launch l = entry->launch;
    l.stream = w->watch.stream;
    tape_advance(w->t, entry, &l);
    if (w->t->nodes || w->t->observe || !batch_joins(&w->batch, kernel, &l)) TRY(flush(w, e));
    if (!w->batch.launches.n) w->first = k;
    batch_add(&w->batch, kernel, &l);
    return PL_OK;
}

static int walk_program(struct walk *w, struct error *e)
{
    TRY(watch_open(&w->watch, e));
    for (uint32_t k = 0; k < w->t->program[w->p].n; k = tape_follow(w->t, w->p, k)) {
        if (w->t->program[w->p].at[k].kind == ENTRY_LAUNCH) TRY(run_entry(w, k, e));
        else TRY(flush(w, e));
    }
    return flush(w, e);
}

int cuda_run_nodes(const struct cuda_state *s, struct tape *t, enum program p, struct error *e)
{
    struct walk w = {.watch.stream = s->lane[LANE_COMPUTE], .t = t, .p = p};
    TRY(cuda_prepare(s, t, p, e));
    int rc = walk_program(&w, e);
    watch_close(&w.watch);
    vec_free(&w.batch.launches);
    return rc;
}
