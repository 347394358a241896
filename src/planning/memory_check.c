/*
 * memory_check.c: compares a plan with the machine that it is for: memory, disk space, the GPU.
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
#include <stdio.h>
#include <string.h>

#include "base/system.h"
#include "io/file.h"
#include "planning/offload_budget.h"
#include "planning/stages.h"
#include "run/ranks.h"

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
        warn(
            r,
            "the plan is larger than this machine: %s; this machine has %s of memory; memory.budget: auto plans for it",
            print_each(each, local, need), size_print(now->total, have));
    else if (now->available && arena > now->available + now->swap)
        warn(r,
             "the plan does not fit the free memory: %s; this machine has %s, of which %s are free; memory.budget: "
             "auto plans for them",
             print_each(each, local, need), size_print(now->total, have), size_print(now->available, left));
    if (file && !disk_free(folder, &disk, &ignored) && file * (uint64_t)local > disk)
        warn(r,
             "the offload file does not fit on the disk of %.100s: %s, where %s are free; memory.host_budget: auto "
             "plans for less",
             folder, print_each(file, local, need), size_print(disk, left));
}

static void warn_of_gpu(struct planned *r, const struct system_memory *now)
{
    const uint64_t arena = plan_arena(&r->plan), host = r->plan.placement.arena[SPACE_HOST],
                   memory = r->profile.memory_bytes, likely = offload_likely(memory);
    const char *gpu = r->profile.name;
    const int local = planned_host_ranks(r);
    char need[64], have[32], other[32];
    if (r->profile.capability && r->profile.capability < GPU_CAPABILITY_LEAST)
        warn(r,
             "%s is planned for and cannot be used: it has compute capability %d.%d, and there are kernels for %d.%d "
             "and later only",
             gpu, r->profile.capability / 10, r->profile.capability % 10, GPU_CAPABILITY_LEAST / 10,
             GPU_CAPABILITY_LEAST % 10);
    if (memory && arena > planned_gpu_budget(memory))
        warn(r,
             "the plan is larger than that GPU: %s; %s has %s, of which %s are left beside the CUDA context; "
             "memory.budget: auto plans for it",
             size_print(arena, need), gpu, size_print(memory, have), size_print(planned_gpu_budget(memory), other));
    if (planned_gpu_is_here(r)) {
        if (now->total && host * (uint64_t)local > now->total)
            warn(r,
                 "the plan needs more host memory than this machine has: %s; it has %s; memory.host_budget: auto plans "
                 "for it",
                 print_each(host, local, need), size_print(now->total, have));
    } else if (memory && host > likely) {
        warn(r,
             "the plan needs %s of host memory, more than a machine with such a GPU is likely to have: %s (twice the "
             "GPU's memory, at least 32 GiB); "
             "memory.host_budget sets a bound",
             size_print(host, need), size_print(likely, have));
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
