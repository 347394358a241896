/*
 * host_lane.c: what the host's processor computes between the kernels of a GPU (LANE_HOST): a
 * kernel of the CPU, on operands in pinned host memory, as a host function of the stream.
 *
 *     copy out   [ gradient 1 ][ gradient 2 ]
 *     host                     [ update 1   ][ update 2   ]
 *     copy back                              [ weight 1   ][ weight 2 ]
 *
 * A thread of the driver calls it in stream order, and all processors take part. It calls nothing
 * of CUDA. The graph keeps the address of the call, which therefore lives as long as the recording
 * (cuda_kernel.kept).
 */
#include "cuda/device/host.h"

struct host_call {
    void (*run)(const struct launch *);
    struct launch launch;
};

static void CUDART_CB run_call(void *call)
{
    const struct host_call *c = call;
    c->run(&c->launch);
}

static int prepare_host(const struct cuda_state *s, struct entry *entry, struct error *e)
{
    (void)s, (void)e;
    CHECK(!entry->advances, "the host's operands are the same in every iteration");
    struct host_call *c = entry->launch.state = mem_alloc(sizeof *c);
    c->run = entry->kernel->run;
    return PL_OK;
}

static int launch_host(const struct launch *l, struct error *e)
{
    struct host_call *c = l->state;
    c->launch = *l;
    TRY_CUDA(cudaLaunchHostFunc(l->stream, run_call, c));
    return PL_OK;
}

static void release_host(void *state) { mem_free(state); }

const struct cuda_kernel cuda_host_kernel = {
    .prepare = prepare_host, .launch = launch_host, .release = release_host, .kept = true};
