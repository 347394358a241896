/*
 * doctor.c: `plimsoll doctor`: diagnoses the memory of a run.
 *
 *     peaks     inference, forward with saved activations, forward and backward, update
 *     batch     the largest micro-batch that fits: planned, and with --confirm run for one step
 *     advice    other plans; one change at a time: bytes saved, seconds lost (doctor_advice.c)
 *     leaks     growth of memory, allocations, descriptors and threads over --steps N steps
 *
 * What is planned needs no device and is printed before any step runs.
 */
#include "cli/doctor.h"

#include <inttypes.h>

#include "base/system.h"
#include "graph/ops.h"
#include "plan/explain.h"
#include "report/lives.h"
#include "calibrate/bench.h"
#include "calibrate/calibrate.h"
#include "planning/planned.h"
#include "batch/feed.h"

/* WARM: steps that run before leaks are measured, the first of them in bench_open */
enum { STEPS = 20, TENSORS = 8, BATCH_MOST = 4096, WARM = 3 };

static const struct report_column SIZES[] = {{NULL, "", "bytes"}, {NULL, ""}}; /* bytes, and what they are */

/* Peaks of the live bytes of each program or phase. */
struct peaks {
    uint64_t forward_alone, forward, backward, update;
};

/* Growth over a number of steps. */
struct leaks {
    int64_t steps, resident, device, allocations;
    int descriptors, threads;
};

/* --- peaks --------------------------------------------------------------------------- */

/* Returns the largest number of live bytes while nodes of a phase run; PHASE_COUNT: of any
 * phase. */
static uint64_t phase_peak(const struct planned *r, const struct lives *l, enum program p, enum phase phase)
{
    uint64_t *alive = lives_by_position(l, &r->graph, p), most = 0;
    for (uint32_t k = 0; k < r->graph.order[p].nodes.n; k++) {
        const struct node *n = node_at(&r->graph, r->graph.order[p].nodes.at[k]);
        uint64_t sum = 0;
        for (int kind = 0; kind < KIND_COUNT; kind++) sum += alive[k * KIND_COUNT + (uint32_t)kind];
        if ((phase == PHASE_COUNT || n->phase == phase) && sum > most) most = sum;
    }
    mem_free(alive);
    return most;
}

/* Returns the peak of the evaluation program. */
static uint64_t evaluation_peak(const struct planned *r)
{
    uint64_t *alive = plan_alive(&r->plan, &r->graph, PROGRAM_EVAL, true), most = 0;
    for (uint32_t k = 0; k < r->graph.order[PROGRAM_EVAL].nodes.n; k++)
        if (alive[k] > most) most = alive[k];
    mem_free(alive);
    return r->plan.persistent[SPACE_DEVICE] + most;
}

/* Prints the largest transient tensors that are alive at the peak. */
static void print_holders(const struct planned *r, struct text *out)
{
    const struct peak *peak = &r->plan.peak;
    struct held *all = mem_alloc(r->graph.storages.n * sizeof *all);
    struct report_table t = REPORT_TABLE(SIZES);
    char words[TENSOR_WORDS];
    const uint32_t n = plan_at_peak(&r->plan, &r->graph, all);
    const struct node *at = node_at(&r->graph, r->graph.order[peak->program].nodes.at[peak->instant]);
    text_printf(out, "Largest tensors at the peak, in the %s of %s (program %s, op %s), %u transient tensors alive\n",
                phase_name(at->phase),
                at->scope ? graph_name(&r->graph, r->graph.scopes.at[at->scope].name) : "the step",
                program_name(peak->program), op_table[at->op].name, n);
    for (uint32_t i = 0; i < n && i < TENSORS; i++)
        TABLE_ADD(&t, CELL(all[i].bytes), CELL(tensor_words(all[i].name, words)));
    table_print(&t, 2, 0, out);
    table_free(&t);
    mem_free(all);
}

/* Finds the peaks of the live bytes of each program or phase. */
static struct peaks find_peaks(const struct planned *r)
{
    struct lives l;
    struct peaks out = {.forward_alone = evaluation_peak(r)};
    lives_collect(&l, &r->plan, &r->graph);
    FOR_STEP_PROGRAMS(p) {
        const uint64_t most = phase_peak(r, &l, p, PHASE_COUNT);
        if (program_is(p, PROGRAM_TRAINS)) out.forward = phase_peak(r, &l, p, PHASE_FORWARD), out.backward = most;
        else out.update = most;
    }
    lives_free(&l);
    return out;
}

/* --- the largest batch -------------------------------------------------------------------- */

/* Reads the configuration with a micro-batch, which is the whole step; pinned: with the plan's
 * techniques. */
static int configure_batch(const struct doctor *d, struct config *c, int64_t batch, bool pinned, struct error *e)
{
    static const char *const keys[] = {"train.effective_batch", "memory.micro_batch"};
    char set[64];
    int rc = doctor_config(d, c, pinned, e);
    for (size_t i = 0; i < COUNT(keys) && !rc; i++) {
        snprintf(set, sizeof set, "%s=%" PRId64, keys[i], batch);
        rc = config_set(c, set, e);
    }
    return rc;
}

/* Returns the arena of a micro-batch of `b`, with the techniques of the plan, or with those that
 * the search finds within the budget; UINT64_MAX when planning fails. *host: the offloaded
 * bytes. */
static uint64_t arena_of(const struct doctor *d, int64_t b, bool search, uint64_t *host, struct error *e)
{
    struct config c;
    struct planned r;
    if (configure_batch(d, &c, b, !search, e)) return UINT64_MAX;
    if (search) c.memory_budget = (struct config_budget){BUDGET_BYTES, d->budget};
    if (d->host_bound) c.memory_host_budget = (struct config_budget){BUDGET_BYTES, d->host_bound};
    const int rc =
        planned_open(&r, &c, &(struct run_options){.train = true, .describe = feed_describe, .probe = true}, e);
    uint64_t bytes = rc ? UINT64_MAX : plan_arena(&r.plan);
    *host = rc ? 0 : r.plan.placement.arena[SPACE_HOST];
    planned_close(&r);
    config_free(&c);
    return bytes;
}

/* Finds the largest batch by a binary search, as the bytes grow with the batch; 0 when not even one
 * sample fits. */
static int64_t largest_batch(const struct doctor *d, bool search)
{
    struct error e;
    uint64_t host;
    struct progress p;
    int64_t low = 0, high = 1;
    progress_begin(&p,
                   search ? "largest micro-batch with any techniques"
                          : "largest micro-batch with this plan's techniques",
                   "plans", 0);
    for (; high <= BATCH_MOST && arena_of(d, high, search, &host, &e) <= d->budget; low = high, high *= 2)
        progress_add(&p, 1);
    for (; low < BATCH_MOST && high - low > 1; progress_add(&p, 1)) {
        int64_t middle = (low + high) / 2;
        if (arena_of(d, middle, search, &host, &e) <= d->budget) low = middle;
        else high = middle;
    }
    progress_clear();
    return low;
}

/* Reports whether a step can run here: in this process, on a device that is here, and in memory
 * only, since the doctor writes no offload file. */
static bool can_run(const struct doctor *d, const uint64_t arena[SPACE_COUNT], struct error *why)
{
    const int ranks = d->run.plan.settings.ranks;
    if (ranks > 1)
        return !error_set(why, PL_USAGE,
                          "the plan is that of a rank of %d, and a step needs all of them: `plimsoll train --ranks %d "
                          "--json` tells what each rank allocates",
                          ranks, ranks);
    return !planned_check_device(&d->run, why) && !machine_room(d->run.kind, arena, true, NULL, why);
}

/* Runs one step with that micro-batch. */
static int confirm(const struct doctor *d, int64_t batch, struct error *e)
{
    struct config c;
    struct bench b = {0};
    TRY(configure_batch(d, &c, batch, false, e));
    c.memory_budget = (struct config_budget){BUDGET_BYTES, d->budget};
    int rc = bench_open(&b, &c, &(struct run_options){.train = true, .describe = feed_describe, .no_files = true}, e);
    if (!rc) rc = bench_run_shown(&b, 1, e);
    bench_close(&b);
    config_free(&c);
    return rc;
}

/* --- leaks ------------------------------------------------------------------------------------ */

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

static int measure_leaks(const struct doctor *d, int64_t steps, struct leaks *out, struct error *e)
{
    struct config c;
    struct bench b = {0};
    struct process_state before, after;
    char time[32];
    TRY(doctor_config(d, &c, true, e));
    log_note("leaks: %" PRId64 " steps of about %s run on synthetic inputs (--steps N sets their number; 0: none)",
             WARM + steps, duration_print(d->run.plan.seconds * d->scale, time));
    int rc = bench_open(&b, &c, &(struct run_options){.train = true, .describe = feed_describe, .no_files = true}, e);
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
        *out = (struct leaks){steps,
                                     (int64_t)(after.process.anonymous - before.process.anonymous),
                                     (int64_t)(before.device_free - after.device_free),
                                     (int64_t)(after.allocations - before.allocations),
                                     (int)(after.process.descriptors - before.process.descriptors),
                                     (int)(after.process.threads - before.process.threads)};
    }
    bench_close(&b);
    config_free(&c);
    return rc;
}

/* --- the report ------------------------------------------------------------------------------- */

static void print_peaks(const struct planned *r, const struct peaks *p, struct text *out)
{
    struct report_table t = REPORT_TABLE(SIZES);
    char host[64];
    TABLE_ADD(&t, CELL(p->forward_alone), CELL("forward only (inference), no activations saved"));
    TABLE_ADD(&t, CELL(p->forward), CELL("forward, with the activations saved for the backward"));
    TABLE_ADD(&t, CELL(p->backward), CELL("forward and backward"));
    TABLE_ADD(&t, CELL(p->update), CELL("optimizer update"));
    TABLE_ADD(&t, CELL(plan_arena(&r->plan)), CELL("the arena: the total, with padding"));
    snprintf(host, sizeof host, "the %s: what is offloaded", plan_host_name(&r->plan));
    if (r->plan.placement.arena[SPACE_HOST])
        TABLE_ADD(&t, CELL(r->plan.placement.arena[SPACE_HOST]), CELL((const char *)host));
    text_printf(out, "Peak memory of a micro-batch of %d", r->plan.settings.micro_batch);
    if (r->plan.settings.ranks > 1) text_printf(out, " on each of %d ranks", r->plan.settings.ranks);
    text_printf(out, "\n");
    table_print(&t, 2, 0, out);
    table_free(&t);
    /* in what the plan exceeds its machine, such as host memory that a machine with this GPU is not
     * likely to have */
    for (int i = 0; i < r->n_warnings; i++) text_printf(out, "  WARNING: %s\n", r->warning[i]);
}

static void print_leaks(const struct doctor *d, const struct leaks *l, struct text *out)
{
    bool clean = l->resident <= 0 && l->device <= 0 && l->allocations <= 0 && l->descriptors <= 0 && l->threads <= 0;
    if (d->unmeasured.code) text_printf(out, "Leaks: not measured: %s\n", d->unmeasured.text);
    if (d->unmeasured.code || !l->steps) return;
    text_printf(out, "Leaks over %" PRId64 " steps: %s\n", l->steps, clean ? "none" : "found");
    text_printf(out,
                "  host %+" PRId64 " bytes, device %+" PRId64 " bytes, allocations %+" PRId64
                ", descriptors %+d, threads %+d\n",
                l->resident, l->device, l->allocations, l->descriptors, l->threads);
}

static void print_batch(const struct doctor *d, struct text *out)
{
    const bool cuda = d->run.kind == DEVICE_CUDA;
    char size[32];
    text_printf(out, "Largest micro-batch within %s (%s)", size_print(d->budget, size),
                d->given ? "the budget"
                : cuda   ? "the GPU's memory less a reserve"
                         : "free memory");
    if (d->host_bound)
        text_printf(out, " and %s of host memory (%s)", size_print(d->host_bound, size),
                    d->host_bound > offload_likely(d->run.profile.memory_bytes)
                        ? "as much as the plan takes"
                        : "what a machine with such a GPU is likely to have");
    text_printf(out, "\n  %6" PRId64 "  with this plan's techniques\n  %6" PRId64 "  with any techniques", d->batch,
                d->batch_most);
    if (d->most[SPACE_HOST])
        text_printf(out, " and %s of %s", size_print(d->most[SPACE_HOST], size), plan_host_name(&d->run.plan));
    text_printf(out, "%s\n", d->batch_most && !d->confirm ? "; --confirm runs a step to check it" : "");
    if (d->batch >= BATCH_MOST) text_printf(out, "  (the search ends at %d)\n", BATCH_MOST);
}

/* Prints a part of the report at once, so that it is there whatever the next part does. */
static void put_out(const struct options *o, struct text *part)
{
    if (!o->json && part->n) fputs(part->at, stdout);
    fflush(stdout);
    text_free(part);
}

/* Plans and prints peaks, the largest batch and advice. */
static void plan_report(struct doctor *d, const struct options *o, bool fits, struct peaks *peaks)
{
    struct text out = {0};
    struct error e;
    *peaks = find_peaks(&d->run);
    if (!fits) text_printf(&out, "Does not fit the budget. The smallest plan:\n\n");
    print_peaks(&d->run, peaks, &out);
    print_holders(&d->run, &out);
    put_out(o, &out);
    d->batch = largest_batch(d, false);
    d->batch_most = max_i64(d->batch, largest_batch(d, true));
    if (d->batch_most) d->most[SPACE_DEVICE] = arena_of(d, d->batch_most, true, &d->most[SPACE_HOST], &e);
    print_batch(d, &out);
    put_out(o, &out);
    doctor_advice(d, &out);
    put_out(o, &out);
}

/* Runs and prints a step with the largest micro-batch, if asked for, and steps over which leaks are
 * measured. A failure is in the report too. */
static int run_report(struct doctor *d, const struct options *o, int64_t steps, struct leaks *found,
                      struct error *e)
{
    struct text out = {0};
    int rc = PL_OK;
    if (d->confirm && d->batch_most && can_run(d, d->most, &d->unconfirmed)) {
        rc = confirm(d, d->batch_most, e);
        d->confirmed = !rc;
        if (rc) d->unconfirmed = *e;
    }
    if (d->confirmed)
        text_printf(&out, "The largest micro-batch, %" PRId64 ": confirmed by running a step\n", d->batch_most);
    if (d->unconfirmed.code)
        text_printf(&out, "The largest micro-batch, %" PRId64 ": not confirmed: %s\n", d->batch_most,
                    d->unconfirmed.text);
    put_out(o, &out);
    if (!rc && steps && can_run(d, d->run.plan.placement.arena, &d->unmeasured)) {
        rc = measure_leaks(d, steps, found, e);
        if (rc) d->unmeasured = *e;
    }
    print_leaks(d, found, &out);
    put_out(o, &out);
    return rc;
}

static void put_machine(struct json_writer *w, const void *of)
{
    plan_put_machine(w, ((const struct planned *)of)->warning, ((const struct planned *)of)->n_warnings);
}

static int examine(struct doctor *d, const struct options *o, bool fits, int64_t steps, struct error *e)
{
    struct peaks p;
    struct leaks l = {0};
    plan_report(d, o, fits, &p);
    int rc = run_report(d, o, steps, &l, e);
    const struct fact leaks = FACT_MAP("leaks", FACT("steps", l.steps), FACT("host_bytes", l.resident),
                                       FACT("device_bytes", l.device), FACT("allocations", l.allocations),
                                       FACT("descriptors", l.descriptors), FACT("threads", l.threads));
    if (o->json)
        PRINT_FACTS(2, FACT("forward_alone_bytes", p.forward_alone), FACT("forward_bytes", p.forward),
                    FACT("forward_backward_bytes", p.backward), FACT("update_bytes", p.update),
                    FACT("arena_bytes", plan_arena(&d->run.plan)),
                    FACT("host_bytes", d->run.plan.placement.arena[SPACE_HOST]), FACT("budget_bytes", d->budget),
                    FACT("largest_batch", d->batch), FACT("largest_batch_any", d->batch_most),
                    FACT("largest_batch_any_host_bytes", d->most[SPACE_HOST]), FACT("confirmed", d->confirmed),
                    FACT("predicted_step_seconds", d->scale * d->run.plan.seconds), FACT("factor", d->scale),
                    FACT_IF(d->unconfirmed.code, "not_confirmed", (const char *)d->unconfirmed.text),
                    FACT_IF(d->unmeasured.code, "leaks_not_measured", (const char *)d->unmeasured.text),
                    l.steps ? leaks : (struct fact){0}, FACT_CALL(put_machine, &d->run),
                    FACT_TABLE("other_plans", &d->others), FACT_TABLE("advice", &d->advice));
    table_free(&d->others);
    table_free(&d->advice);
    return rc;
}

/* Returns the host memory that the largest batch may take, where it is not known: what a machine
 * with such a GPU is likely to have, or as much as the examined plan. 0: the configuration or this
 * machine bounds it. */
static uint64_t host_bound(const struct planned *r)
{
    if (r->kind != DEVICE_CUDA || r->host_budget) return 0;
    const uint64_t likely = offload_likely(r->profile.memory_bytes), host = r->plan.placement.arena[SPACE_HOST];
    return host > likely ? host : likely;
}

static int doctor(struct options *o, struct error *e)
{
    struct doctor d = {.options = o, .confirm = ((struct doctor_options *)o)->confirm};
    struct system_memory now;
    int64_t steps = STEPS;
    if (!o->argc || (o->argc == 1 && o->json)) {
        print_machine(o->json);
        return PL_OK;
    }
    TRY(options_need_run(o, e));
    TRY(options_count("--steps", o->steps, 0, BENCH_STEPS_MOST, &steps, e));
    TRY(options_configure(o, e));
    TRY(config_check(&o->config, CONFIG_NEEDS_MODEL, e));
    planned_explain_device();
    int rc =
        planned_open(&d.run, &o->config,
                     &(struct run_options){.plan = o->plan, .train = true, .describe = feed_describe, .several = true},
                     e);
    const bool fits = rc != PL_NOFIT;
    if (!rc || !fits) {
        system_memory(&now);
        d.given = d.run.budget != 0;
        d.budget = d.given                     ? d.run.budget
                   : d.run.kind == DEVICE_CUDA ? planned_gpu_budget(d.run.profile.memory_bytes)
                                               : now.available;
        d.host_bound = host_bound(&d.run);
        d.scale = time_scale(&d.run);
        rc = examine(&d, o, fits, fits ? steps : 0, e);
    }
    planned_close(&d.run);
    return rc ? rc : fits ? PL_OK : PL_NOFIT;
}

static const struct doctor_options START;
static const struct option OPTIONS[] = {OPTION(struct doctor_options, "--confirm", SWITCH, confirm)};

const struct command command_doctor = {
    "doctor",
    "doctor [--json]\n"
    "       plimsoll doctor RUN.yaml [--config-from FILE]... [--adapter DIR] [--memory SIZE] [--steps N] [--confirm] "
    "[--plan PLAN.json] [--set key=value]... [--json]",
    "Without a run file, describes this machine: processor, memory, limits, GPU, libraries, and what\n"
    "memory.budget: auto would be. With one, diagnoses the memory of a run, such as one that is out of\n"
    "memory: the peaks of a training step, the largest tensors at the peak, the largest micro-batch that\n"
    "fits, leaks, and what each change would save and cost: gradient checkpointing (activation\n"
    "checkpointing), offload to host memory, mixed precision, 8-bit Adam, gradient accumulation, LoRA,\n"
    "4-bit weights. What is planned is printed first and needs no GPU; then steps run, where they can, to\n"
    "measure leaks. Needs no data and writes no files: what a CPU would offload to a file stays in memory\n"
    "while it measures, and where that does not fit it does not measure.\n"
    CONFIG_FROM_HELP
    "  --steps N        steps over which leaks are measured (20; 0: none)\n"
    ADAPTER_HELP
    "  --confirm        runs one step with the largest micro-batch",
    .shared = OPT_RUN | OPT_NO_RUN | OPT_MEMORY | OPT_PLAN | OPT_JSON | OPT_STEPS, COMMAND_OPTIONS(OPTIONS),
    COMMAND_STATE(START), .run = doctor};
