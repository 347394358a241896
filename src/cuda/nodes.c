/*
 * nodes.c: the diagnostic switch: a program is launched node by node, not replayed, so that each
 * can be timed, or looked at by an observer.
 *
 *     entry by entry, as the CPU's runner walks, all lanes on the compute lane's stream:
 *
 *     host     hold, event, launch, event   release   wait
 *     stream   [ held ................... ]    |------- node -------|
 *                                            event                event
 *
 * The host waits behind each node, so that a failure is named by the node that caused it,
 * and, where the tape has a timing, so that the time between two events is that node's.
 * An idle stream would take the first event long before the host has put the kernels behind
 * it, and a small node would be timed as the host's work on it. So the stream is held by a
 * function of the host until everything is in the queue.
 *
 * The hold ends by itself after HELD_MOST: a launch that has to wait for the card (a full
 * queue, a kernel that is loaded now) would otherwise wait for ever, for us.
 *
 * Descriptors that record.c gave up after the capture are made again, from the same
 * operands, at the first such run, and kept for the next.
 */
#include <stdatomic.h>

#include "cuda/host.h"

static const double HELD_MOST = 0.01; /* seconds */

/* What one node is timed with. */
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

/* Runs on a thread of the driver, in the stream's order. */
static void CUDART_CB hold(void *watch)
{
    struct watch *w = watch;
    double begun = clock_seconds();
    while (!atomic_load(&w->released) && clock_seconds() - begun < HELD_MOST) {
    }
}

static int launch_between(struct watch *w, const struct cuda_kernel *kernel, const struct launch *l, struct error *e)
{
    TRY_CUDA(cudaEventRecord(w->from, w->stream));
    TRY(cuda_launch(kernel, l, e));
    TRY_CUDA(cudaEventRecord(w->to, w->stream));
    return PL_OK;
}

/* Whatever happens the stream is released, and nobody holds the watch any more when this
 * returns. The card's clock is not the host's: the node is noted as ending now. */
static int launch_timed(struct watch *w, const struct cuda_kernel *kernel, const struct launch *l, struct timing_event *v, struct error *e)
{
    float ms = 0;
    atomic_store(&w->released, false);
    TRY_CUDA(cudaLaunchHostFunc(w->stream, hold, w));
    int rc = launch_between(w, kernel, l, e);
    atomic_store(&w->released, true);
    cudaError_t done = cudaStreamSynchronize(w->stream);
    v->to = clock_seconds();
    if (rc) return rc;
    if (done != cudaSuccess) return cuda_failed(e, done, "cudaStreamSynchronize behind the node");
    TRY_CUDA(cudaEventElapsedTime(&ms, w->from, w->to));
    v->from = v->to - 1e-3 * (double)ms;
    return PL_OK;
}

static int launch_alone(cudaStream_t stream, const struct cuda_kernel *kernel, const struct launch *l, struct error *e)
{
    TRY(cuda_launch(kernel, l, e));
    TRY_CUDA(cudaStreamSynchronize(stream));
    return PL_OK;
}

static int run_entry(struct watch *w, struct tape *t, enum program p, const struct entry *entry, struct error *e)
{
    const struct cuda_kernel *kernel = cuda_kernel_named(entry->kernel->name);
    struct timing_event v = {.node = entry->node, .position = entry->position, .program = (uint8_t)p, .lane = entry->lane};
    struct launch l = entry->launch;
    l.stream = w->stream;
    tape_advance(t, entry, &l);
    int rc = t->timing ? launch_timed(w, kernel, &l, &v, e) : launch_alone(w->stream, kernel, &l, e);
    if (rc) return cuda_name_entry(t, p, entry, e);
    if (t->timing) timing_add(t->timing, &v);
    if (t->observe) {
        struct entry now = *entry; /* with the addresses of this iteration */
        now.launch = l;
        t->observe(t->observer, &now);
    }
    return PL_OK;
}

int cuda_run_nodes(const struct cuda_state *s, struct tape *t, enum program p, struct error *e)
{
    struct watch w = {.stream = s->lane[LANE_COMPUTE]};
    TRY(cuda_prepare(s, t, p, e));
    int rc = watch_open(&w, e);
    for (uint32_t k = 0; k < t->program[p].n && !rc; k = tape_follow(t, p, k))
        if (t->program[p].at[k].kind == ENTRY_LAUNCH) rc = run_entry(&w, t, p, &t->program[p].at[k], e);
    watch_close(&w);
    return rc;
}
