/*
 * leaks.c: see calibrate.h.
 */
#include "calibrate/calibrate.h"

#include "base/system.h"
#include "batch/feed.h"
#include "calibrate/bench.h"

enum { WARM = 3 }; /* steps before the first reading, the first of them in bench_open */

static const struct run_options OPTIONS = {.train = true, .describe = feed_describe, .no_files = true};

struct process_state {
    struct system_process process;
    uint64_t allocations, device_free;
};

static void read_process_state(const struct bench *b, struct process_state *s)
{
    uint64_t total;
    memset(s, 0, sizeof *s);
    system_process(&s->process);
    s->allocations = mem_allocations();
    if (b->run.device.ops->memory) b->run.device.ops->memory(&b->run.device, &s->device_free, &total);
}

int64_t leaks_steps(int64_t steps) { return WARM + steps; }

int leaks_measure(const struct config *c, int64_t steps, struct leaks *out, struct error *e)
{
    struct bench b = {0};
    struct process_state before, after;
    int rc = bench_open(&b, c, &OPTIONS, e);
    if (!rc) {
        /* allocated now, so that no allocation falls between the two readings */
        b.seconds = mem_alloc(((uint64_t)steps + 2) * sizeof *b.seconds);
        b.room = (uint32_t)steps + 2;
        rc = bench_run_shown(&b, WARM - 1, e);
        read_process_state(&b, &before);
    }
    if (!rc) rc = bench_run_shown(&b, steps, e);
    if (!rc) {
        read_process_state(&b, &after);
        *out = (struct leaks){.steps = steps,
                              .resident = (int64_t)(after.process.anonymous - before.process.anonymous),
                              .device = (int64_t)(before.device_free - after.device_free),
                              .allocations = (int64_t)(after.allocations - before.allocations),
                              .descriptors = (int)(after.process.descriptors - before.process.descriptors),
                              .threads = (int)(after.process.threads - before.process.threads)};
    }
    bench_close(&b);
    return rc;
}

int leaks_try_step(const struct config *c, struct error *e)
{
    struct bench b = {0};
    int rc = bench_open(&b, c, &OPTIONS, e);
    if (!rc) rc = bench_run_shown(&b, 1, e);
    bench_close(&b);
    return rc;
}
