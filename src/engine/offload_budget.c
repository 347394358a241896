/*
 * offload_budget.c: see offload_budget.h.
 */
#include "engine/offload_budget.h"

#include <stdio.h>
#include <string.h>

#include "base/system.h"
#include "io/file.h"
#include "passes/passes.h"

/* Reserve of `memory.host_budget: auto` beside a GPU, for the system. */
enum { MEMORY_RESERVE = 1 << 30 };
static const uint64_t LIKELY_LEAST = (uint64_t)32 << 30;

const char *offload_folder(const char *out) { return out && *out ? out : "/tmp"; }

/* 0 would mean no bound. */
static uint64_t at_least_one(uint64_t bytes) { return bytes ? bytes : 1; }

static int file_budget(const char *folder, const struct system_memory *now, uint64_t *bytes, const char **rule, struct error *e)
{
    uint64_t free;
    int rc = disk_free(folder, &free, e);
    if (rc) return error_prepend(e, "memory.host_budget auto");
    const bool memory = now->total && now->total < free;
    *bytes = at_least_one((memory ? now->total : free) / 2);
    *rule = memory ? "half of this machine's memory" : "half of the free disk space";
    return PL_OK;
}

int offload_budget(const struct config *c, enum device_kind kind, bool gpu_here, uint64_t *bytes, const char **rule, struct error *e)
{
    const struct config_budget *b = &c->memory_host_budget;
    struct system_memory now;
    *bytes = b->kind == BUDGET_BYTES ? b->bytes : 0;
    *rule = NULL;
    if (b->kind != BUDGET_AUTO || (kind == DEVICE_CUDA && !gpu_here)) return PL_OK;
    system_memory(&now);
    if (kind != DEVICE_CUDA) return file_budget(offload_folder(c->train_out), &now, bytes, rule, e);
    *bytes = at_least_one(now.available - min_u64(MEMORY_RESERVE, now.available));
    *rule = "the free memory less 1 GiB";
    return PL_OK;
}

uint64_t offload_likely(uint64_t gpu_memory) { return 2 * gpu_memory > LIKELY_LEAST ? 2 * gpu_memory : LIKELY_LEAST; }
