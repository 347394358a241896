/*
 * device_budget.c: the memory budget of a run in bytes, and that a rank has a GPU of its own.
 */
#include "planning/stages.h"

#include "base/system.h"
#include "cuda/cuda.h"
#include "run/ranks.h"

/* Returns the available memory that the kernel reports, or what the control group leaves. */
static uint64_t free_memory(void)
{
    struct system_memory m;
    system_memory(&m);
    return m.available;
}

/* Returns the number of ranks that share a GPU of this host (parallel.crowd). */
static int64_t ranks_of_gpu(const struct planned *r)
{
    return r->ranks && r->kind == DEVICE_CUDA ? ceil_div(r->ranks->local, max_i64(1, cuda_gpus())) : 1;
}

uint64_t planned_cpu_budget(uint64_t free) { return free - min_u64(BUDGET_RESERVE, free); }

uint64_t planned_gpu_budget(uint64_t memory) { return memory - min_u64(GPU_RESERVE, memory / 2); }

/* Estimates the GPU memory that NCCL takes for itself: with one peer, and for each further one. */
static uint64_t nccl_reserve(const struct planned *r)
{
    const int64_t n = r->ranks ? r->ranks->n : r->config->parallel_ranks;
    return n > 1 ? (uint64_t)(512 + 32 * (n - 1)) << 20 : 0;
}

int planned_check_gpus(const struct planned *r, struct error *e)
{
    if (!r->ranks || r->config->parallel_crowd || !planned_gpu_is_here(r) || ranks_of_gpu(r) == 1) return PL_OK;
    return error_set(e, PL_USAGE,
                     "%d ranks were started on %s, which has %d GPU%s: start one for each GPU, or set parallel.crowd "
                     "true, with which they share them",
                     r->ranks->local, r->ranks->host, cuda_gpus(), cuda_gpus() == 1 ? "" : "s");
}

/* Returns the free memory of this machine for each of its ranks. */
static uint64_t free_host_memory(const struct planned *r)
{
    return r->ranks && r->ranks->share.free ? r->ranks->share.free : free_memory() / (uint64_t)planned_host_ranks(r);
}

/* Returns the free memory of the plan's GPU, which need not be present. */
static uint64_t free_gpu_memory(const struct planned *r)
{
    const uint64_t each = planned_gpu_budget(r->profile.memory_bytes) / (uint64_t)ranks_of_gpu(r);
    return each - min_u64(nccl_reserve(r), each / 2);
}

uint64_t planned_free_memory(const struct planned *r)
{
    if (r->kind == DEVICE_CUDA) return free_gpu_memory(r);
    return planned_cpu_budget(free_host_memory(r));
}

int planned_resolve_budget(struct planned *r, struct error *e)
{
    const struct config_budget *b = &r->config->memory_budget;
    char have[32], keep[32];
    r->budget = b->kind == BUDGET_BYTES ? b->bytes : 0;
    if (b->kind != BUDGET_AUTO) return PL_OK;
    if (r->kind == DEVICE_CUDA) {
        if (!r->profile.memory_bytes)
            return error_set(e, PL_USAGE, "memory.budget auto: the profile has no GPU memory size; give a size");
        r->budget = free_gpu_memory(r);
        return PL_OK;
    }
    const uint64_t free = free_host_memory(r);
    if (!planned_cpu_budget(free))
        return error_set(e, PL_FAIL,
                         "memory.budget auto: %s are free and %s are kept in reserve; free some memory or give a size",
                         size_print(free, have), size_print(BUDGET_RESERVE, keep));
    r->budget = planned_cpu_budget(free);
    log_note("memory.budget auto: %s free, %s kept in reserve", size_print(free, have),
             size_print(BUDGET_RESERVE, keep));
    return PL_OK;
}

bool planned_exceeds_host(const struct planned *r)
{
    return r->host_budget && r->plan.placement.arena[SPACE_HOST] > r->host_budget;
}
