/*
 * offload_budget.c: see offload_budget.h.
 */
#include "train/offload_budget.h"

#include <stdio.h>
#include <string.h>

#include "io/file.h"
#include "passes/passes.h"

/* Reserves of `memory.host_budget: auto`: memory for the system, disk space for checkpoints and
 * other programs. */
enum { MEMORY_RESERVE = 1 << 30, DISK_RESERVE = 1 << 30 };

const char *offload_folder(const char *out) { return out && *out ? out : "/tmp"; }

int offload_budget(const struct config *c, enum device_kind kind, uint64_t free_memory, uint64_t *bytes, struct error *e)
{
    const struct config_budget *b = &c->memory_host_budget;
    uint64_t free = free_memory, reserve = MEMORY_RESERVE;
    *bytes = b->kind == BUDGET_BYTES ? b->bytes : 0;
    if (b->kind != BUDGET_AUTO || (kind == DEVICE_CUDA && !free_memory)) return PL_OK;
    if (kind != DEVICE_CUDA) {
        int rc = disk_free(offload_folder(c->train_out), &free, e);
        if (rc) return error_prepend(e, "memory.host_budget auto");
        reserve = DISK_RESERVE;
    }
    /* 0 would mean no bound. */
    *bytes = free > reserve ? free - reserve : 1;
    return PL_OK;
}
