/*
 * offload_budget.c: see offload_budget.h.
 */
#include "planning/offload_budget.h"

#include <stdio.h>
#include <string.h>

#include "base/system.h"
#include "io/file.h"
#include "passes/passes.h"
#include "run/ranks.h"

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
