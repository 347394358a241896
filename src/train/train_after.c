/*
 * train_after.c: the work after a step is retired.
 *
 *     progress  ->  memory  ->  metrics.jsonl, TensorBoard  ->  evaluation, best model  ->  on_step
 *     ->  checkpoint
 *
 * The order is guaranteed: a checkpoint is never ahead of the metrics, and the callback runs after
 * the step's metrics are written. Nothing here changes what the next step computes.
 */
#include "train/trainer.h"

#include <inttypes.h>
#include <math.h>

#include "base/system.h"

/* --- memory use ----------------------------------------------------------------------------- */

/* Memory use during a run, every train.monitor_every steps. For the compute device: allocated is
 * the live memory at the plan's peak, reserved the arena, peak the highest byte that a step uses
 * (of an arena that is placed once, its size); free and total are the device's. On the CPU the
 * device's memory is host memory. The members are the same with and without a GPU. */
struct memory_state {
    uint64_t allocated, reserved, peak, free, total;
    struct system_memory host;
    struct system_process process;
};

/* Reads the state without allocating. */
static void monitor_read(struct memory_state *m, const struct run *r)
{
    *m = (struct memory_state){.allocated = r->planned.plan.peak.bytes, .reserved = r->device.bytes[SPACE_DEVICE],
                               .peak = plan_arena(&r->planned.plan)};
    system_memory(&m->host);
    system_process(&m->process);
    m->free = m->host.available;
    m->total = m->host.total;
    if (r->device.ops->memory) r->device.ops->memory(&r->device, &m->free, &m->total);
}

/* Returns the share of the device's memory that is in use, 0 to 1. */
static double monitor_utilization(const struct memory_state *m)
{
    return m->total ? (double)(m->total - min_u64(m->free, m->total)) / (double)m->total : 0;
}

/* Logs "[Step 100] CPU: Alloc=1.20 GiB Reserved=1.31 GiB (8.1% of Total) ...". */
static void monitor_log(const struct memory_state *m, const struct run *r, int64_t step)
{
    char size[7][32];
    log_note("[Step %" PRId64
             "] %s: Alloc=%s Reserved=%s (%.1f%% of Total) Peak=%s Free=%s Total=%s; host: Resident=%s Available=%s",
             step, r->planned.kind == DEVICE_CUDA ? "GPU" : "CPU", size_print(m->allocated, size[0]),
             size_print(m->reserved, size[1]), m->total ? 100 * (double)m->reserved / (double)m->total : 0,
             size_print(m->peak, size[2]), size_print(m->free, size[3]), size_print(m->total, size[4]),
             size_print(m->process.resident, size[5]), size_print(m->host.available, size[6]));
}

/* Prints ,"memory_allocated":... for a line of metrics; 768 bytes are enough. */
static void monitor_members(const struct memory_state *m, char *out, size_t room)
{
    snprintf(out, room,
             ",\"memory_allocated\":%" PRIu64 ",\"memory_reserved\":%" PRIu64 ",\"memory_peak\":%" PRIu64
             ",\"memory_free\":%" PRIu64 ",\"memory_total\":%" PRIu64
             ",\"memory_utilization\":%.4f,\"host_resident\":%" PRIu64 ",\"host_anonymous\":%" PRIu64
             ",\"host_resident_peak\":%" PRIu64 ",\"host_available\":%" PRIu64 ",\"host_total\":%" PRIu64,
             m->allocated, m->reserved, m->peak, m->free, m->total, monitor_utilization(m), m->process.resident,
             m->process.anonymous, m->process.resident_peak, m->host.available, m->host.total);
}

/* Prints the memory use as members of the step's metrics, and logs it; "" if it is not due. */
static void report_memory(struct trainer *t, char *out, size_t room)
{
    int64_t every = t->c->train_monitor_every, step = (int64_t)t->state.step;
    struct memory_state m;
    out[0] = '\0';
    if (!every || (step != 1 && step % every)) return;
    monitor_read(&m, &t->run);
    monitor_members(&m, out, room);
    if (t->o->progress) monitor_log(&m, &t->run, step);
}

/* --- metrics -------------------------------------------------------------------------------- */

/* Shows "step 12/100  loss 0.1234  lr 0.0001  grad 0.52  3.41 images/s  80.21 MiB  25 s left". */
static void show_step(struct trainer *t, const struct train_event *v)
{
    struct progress *p = &t->progress;
    p->done = t->state.step;
    if (!progress_due(p, p->done == p->first + 1 || p->done == p->total)) return;
    const bool tokens = t->data.ops == &tokens_feed;
    const double speed = t->units / t->seconds;
    char memory[32], left[48];
    progress_line("step %" PRIu64 "/%" PRIu64 "  loss %.4f  lr %.3g  grad %.3g  %.*f %s/s  %s  %s", p->done, p->total,
                  v->loss, v->learning_rate, v->gradient_norm, speed < 100 && !tokens ? 2 : 0, speed,
                  tokens ? "tok" : trainer_unit(t), size_print(plan_arena(&t->run.planned.plan), memory),
                  progress_left(p, left));
}

/* Prints a number in JSON: a value that is not finite, in a skipped step, is null. */
static const char *number(double x, char out[32])
{
    snprintf(out, 32, isfinite(x) ? "%.9g" : "null", x);
    return out;
}

/* Prints the number of ranks, and the slowest in the step before: its number, its seconds without
 * waiting, and those of the median rank. */
static void list_ranks(const struct trainer *t, char *out, size_t room)
{
    out[0] = '\0';
    if (t->o->ranks)
        snprintf(out, room, ",\"ranks\":%d,\"slowest\":[%d,%.6f,%.6f]", t->o->ranks->n, t->agreed.slowest,
                 t->agreed.busy, t->agreed.median);
}

/* Prints the losses of a model with several, as members of a line of metrics.jsonl. */
static void list_losses(const struct trainer *t, const struct train_event *v, char *out, size_t room)
{
    size_t n = 0;
    char value[32];
    out[0] = '\0';
    for (int i = 0; i < t->steps.tickets.parts && n < room; i++)
        n +=
            (size_t)snprintf(out + n, room - n, ",\"%s\":%s", t->steps.tickets.part_name[i], number(v->part[i], value));
}

/* Reports a step to metrics.jsonl, the scalars of TensorBoard and the screen; its loss scale only
 * where the run has one. */
static int report_step(struct trainer *t, const struct train_event *v, struct error *e)
{
    char memory[768];
    double speed = v->units / v->seconds;
    char per_second[32];
    snprintf(per_second, sizeof per_second, "%s_per_second", trainer_unit(t));
    const struct scalar scalars[] = {{"loss", v->loss},
                                     {"learning_rate", v->learning_rate},
                                     {"grad_norm", v->gradient_norm},
                                     {per_second, speed},
                                     {"loss_scale", v->loss_scale}};
    char loss[32], norm[32], scale[80] = "", ranks[96], losses[256];
    if (t->steps.tickets.scaled)
        snprintf(scale, sizeof scale, ",\"loss_scale\":%.9g,\"skipped_steps\":%" PRIu64, v->loss_scale,
                 t->state.skipped);
    if (t->o->progress) show_step(t, v);
    report_memory(t, memory, sizeof memory);
    list_ranks(t, ranks, sizeof ranks);
    list_losses(t, v, losses, sizeof losses);
    TRY(folder_metrics(&t->folder, e,
                       "{\"step\":%" PRId64 ",\"loss\":%s,\"learning_rate\":%.9g,\"grad_norm\":%s,\"seconds\":%.6f,"
                       "\"%s\":%.*f,\"samples\":%" PRIu64 ",\"arena_bytes\":%" PRIu64 "%s%s%s%s}",
                       t->state.step, number(v->loss, loss), v->learning_rate, number(v->gradient_norm, norm),
                       v->seconds, per_second, t->data.ops == &tokens_feed ? 1 : 3, speed, t->state.position,
                       plan_arena(&t->run.planned.plan), losses, scale, memory, ranks));
    return events_write(&t->events, (int64_t)t->state.step, scalars, COUNT(scalars) - !t->steps.tickets.scaled, e);
}

int trainer_after_step(struct trainer *t, const struct train_event *v, struct error *e)
{
    const bool evaluates = trainer_evaluation_due(t, t->state.step);
    int rc = trainer_leads(t) ? report_step(t, v, e) : PL_OK;
    if (evaluates) rc = agree_on(t->o->ranks, rc, e); /* no rank waits in the evaluation for one that has ended */
    if (!rc && evaluates) {
        struct scored found;
        rc = trainer_evaluate(t, &found, e);
        if (!rc) rc = trainer_keep_best(t, &found, e);
    }
    if (!rc && t->o->on_step) t->stopped |= t->o->on_step(t->o->user, v) != 0;
    bool last = t->state.step == t->total, stop = trainer_stopping(t) && !tickets_in_flight(&t->steps.tickets);
    if (!rc && (trainer_save_due(t, t->state.step) || last || stop)) rc = trainer_save(t, e);
    if (t->o->ranks) t->o->ranks->patient = t->saved == (int64_t)t->state.step || evaluates;
    return rc;
}
