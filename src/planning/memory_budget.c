/*
 * memory_budget.c: the memory that a run may take, and that its machine has: memory.budget,
 * memory.host_budget, and the check of a plan against both.
 *
 *     arena          a CPU    this machine's memory
 *                    a GPU    its memory less the reserve of memory.budget auto
 *     offload file   a CPU    the free disk space of its folder
 *     host memory    a GPU    this machine's memory if the GPU is here; else what a machine with
 *                             such a GPU is likely to have (offload_likely)
 *
 * `plan` prints the differences as warnings. A run that lacks memory at its start is refused before
 * any is taken: the kernel would end the process in the middle of it.
 */
#include <stdarg.h>

#include "base/system.h"
#include "cuda/cuda.h"
#include "io/file.h"
#include "planning/stages.h"
#include "run/ranks.h"

/* --- device memory: memory.budget ----------------------------------------------------------- */

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
    struct system_memory m;
    if (r->ranks && r->ranks->share.free) return r->ranks->share.free;
    system_memory(&m); /* what the control group leaves, where it is less */
    return m.available / (uint64_t)planned_host_ranks(r);
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
        return error_set(e, PL_FAIL, "memory.budget auto: %s are free and %s are kept in reserve; free some memory or "
                         "give a size", size_print(free, have), size_print(BUDGET_RESERVE, keep));
    r->budget = planned_cpu_budget(free);
    log_note("memory.budget auto: %s free, %s kept in reserve", size_print(free, have),
             size_print(BUDGET_RESERVE, keep));
    return PL_OK;
}

bool planned_exceeds_host(const struct planned *r)
{
    return r->host_budget && r->plan.placement.arena[SPACE_HOST] > r->host_budget;
}

/* --- for offload: memory.host_budget -------------------------------------------------------- */

/* Reserve of `memory.host_budget: auto` beside a GPU, for the system. */
enum { MEMORY_RESERVE = 1 << 30 };
static const uint64_t LIKELY_LEAST = (uint64_t)32 << 30;

const char *offload_folder(const char *out) { return out && *out ? out : "/tmp"; }

/* Returns the bound, at least 1, because 0 means none. */
static uint64_t at_least_one(uint64_t bytes) { return bytes ? bytes : 1; }

/* Finds what a host has for each of its ranks: as the ranks agreed, or by this machine. */
static int find_share(const char *folder, const struct ranks *ranks, int local, struct rank_share *out, struct error *e)
{
    struct system_memory now;
    if (ranks) *out = ranks->share;
    if (ranks && out->free && folder && !out->disk)
        return error_set(e, PL_FAIL, "memory.host_budget auto: cannot find the free disk space of %s on every rank",
                         folder);
    if (ranks && out->free) return PL_OK;
    system_memory(&now);
    *out = (struct rank_share){now.available / (uint64_t)local, now.total / (uint64_t)local, 0};
    if (!folder) return PL_OK;
    if (disk_free(folder, &out->disk, e)) return error_prepend(e, "memory.host_budget auto");
    out->disk /= (uint64_t)local;
    return PL_OK;
}

int offload_budget(const struct config *c, enum device_kind kind, bool gpu_here, const struct ranks *ranks, int local,
                   uint64_t *bytes, const char **rule, struct error *e)
{
    const struct config_budget *b = &c->memory_host_budget;
    const bool file = kind != DEVICE_CUDA;
    struct rank_share x;
    *bytes = b->kind == BUDGET_BYTES ? b->bytes : 0;
    *rule = NULL;
    if (b->kind != BUDGET_AUTO || (kind == DEVICE_CUDA && !gpu_here)) return PL_OK;
    if (find_share(file ? offload_folder(c->train_out) : NULL, ranks, local, &x, e)) return e->code;
    const bool memory = x.memory && x.memory < x.disk;
    *bytes = at_least_one(file ? (memory ? x.memory : x.disk) / 2
                               : x.free - min_u64((uint64_t)MEMORY_RESERVE / (uint64_t)local, x.free));
    if (local > 1)
        *rule = !file    ? "a rank's part of the free memory less 1 GiB"
                : memory ? "a rank's part of half of its host's memory"
                         : "a rank's part of half of the free disk space";
    else
        *rule = !file    ? "the free memory less 1 GiB"
                : memory ? "half of this machine's memory"
                         : "half of the free disk space";
    return PL_OK;
}

uint64_t offload_likely(uint64_t gpu_memory) { return 2 * gpu_memory > LIKELY_LEAST ? 2 * gpu_memory : LIKELY_LEAST; }

/* --- a plan and its machine ----------------------------------------------------------------- */

static void warn(struct planned *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void warn(struct planned *r, const char *fmt, ...)
{
    va_list a;
    CHECK(r->n_warnings < WARNINGS_MOST, "too many warnings");
    va_start(a, fmt);
    vsnprintf(r->warning[r->n_warnings++], WARNING_ROOM, fmt, a);
    va_end(a);
}

/* Prints the bytes of a rank, and the number of ranks of a host that need them. */
static const char *print_each(uint64_t bytes, int ranks, char out[64])
{
    char size[32];
    if (ranks > 1) snprintf(out, 64, "%s on each of %d ranks", size_print(bytes, size), ranks);
    else size_print(bytes, out);
    return out;
}

static void warn_of_cpu(struct planned *r, const struct system_memory *now)
{
    const int local = planned_host_ranks(r);
    const uint64_t each = plan_arena(&r->plan), file = r->plan.placement.arena[SPACE_HOST],
                   arena = each * (uint64_t)local;
    const char *folder = offload_folder(r->config->train_out);
    char need[64], have[32], left[32];
    struct error ignored;
    uint64_t disk;
    if (now->total && arena > now->total)
        warn(r, "the plan is larger than this machine: %s; this machine has %s of memory; memory.budget: auto plans "
             "for it", print_each(each, local, need), size_print(now->total, have));
    else if (now->available && arena > now->available + now->swap)
        warn(r, "the plan does not fit the free memory: %s; this machine has %s, of which %s are free; memory.budget: "
             "auto plans for them", print_each(each, local, need), size_print(now->total, have),
             size_print(now->available, left));
    if (file && !disk_free(folder, &disk, &ignored) && file * (uint64_t)local > disk)
        warn(r, "the offload file does not fit on the disk of %.100s: %s, where %s are free; memory.host_budget: auto "
             "plans for less", folder, print_each(file, local, need), size_print(disk, left));
}

static void warn_of_gpu(struct planned *r, const struct system_memory *now)
{
    const uint64_t arena = plan_arena(&r->plan), host = r->plan.placement.arena[SPACE_HOST],
                   memory = r->profile.memory_bytes, likely = offload_likely(memory);
    const char *gpu = r->profile.name;
    const int local = planned_host_ranks(r);
    char need[64], have[32], other[32];
    if (r->profile.capability && r->profile.capability < GPU_CAPABILITY_LEAST)
        warn(r, "%s is planned for and cannot be used: it has compute capability %d.%d, and there are kernels for "
             "%d.%d and later only", gpu, r->profile.capability / 10, r->profile.capability % 10,
             GPU_CAPABILITY_LEAST / 10, GPU_CAPABILITY_LEAST % 10);
    if (memory && arena > planned_gpu_budget(memory))
        warn(r, "the plan is larger than that GPU: %s; %s has %s, of which %s are left beside the CUDA context; "
             "memory.budget: auto plans for it", size_print(arena, need), gpu, size_print(memory, have),
             size_print(planned_gpu_budget(memory), other));
    if (planned_gpu_is_here(r)) {
        if (now->total && host * (uint64_t)local > now->total)
            warn(r, "the plan needs more host memory than this machine has: %s; it has %s; memory.host_budget: auto "
                 "plans for it", print_each(host, local, need), size_print(now->total, have));
    } else if (memory && host > likely) {
        warn(r, "the plan needs %s of host memory, more than a machine with such a GPU is likely to have: %s (twice "
             "the GPU's memory, at least 32 GiB); memory.host_budget sets a bound", size_print(host, need),
             size_print(likely, have));
    }
}

void planned_warn(struct planned *r)
{
    struct system_memory now;
    r->n_warnings = 0;
    system_memory(&now);
    if (r->kind == DEVICE_CUDA) warn_of_gpu(r, &now);
    else warn_of_cpu(r, &now);
}

int machine_room(enum device_kind kind, const uint64_t arena[SPACE_COUNT], bool no_files, const struct ranks *ranks,
                 struct error *e)
{
    const int local = ranks ? ranks->local : 1;
    const bool cuda = kind == DEVICE_CUDA, all = no_files && arena[SPACE_HOST];
    const uint64_t need = cuda ? arena[SPACE_HOST] : arena[SPACE_DEVICE] + (all ? arena[SPACE_HOST] : 0);
    struct system_memory now;
    char needed[32], total[32], left[32], each[32] = "";
    system_memory(&now);
    if (ranks && ranks->share.free) now.available = ranks->share.free * (uint64_t)local; /* before a rank took any */
    if (!now.available || need * (uint64_t)local <= now.available + now.swap) return PL_OK;
    if (local > 1) snprintf(each, sizeof each, " on each of %d ranks", local);
    return error_set(e, PL_FAIL, "the plan takes %s of %s%s%s; this machine has %s, of which %s are free",
                     size_print(need, needed), cuda ? "host memory" : "memory", each,
                     !cuda && all ? ", without an offload file" : "", size_print(now.total, total),
                     size_print(now.available, left));
}

int planned_check_room(const struct planned *r, struct error *e)
{
    if (!machine_room(r->kind, r->plan.placement.arena, r->no_files, r->ranks, e)) return PL_OK;
    size_t n = strlen(e->text);
    snprintf(e->text + n, sizeof e->text - n, "; set %s, or free memory",
             r->kind == DEVICE_CUDA ? "memory.host_budget: auto" : "memory.budget: auto (--memory auto)");
    return e->code;
}
