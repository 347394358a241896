/*
 * doctor.c: `plimsoll doctor`: diagnoses the memory of a run.
 *
 *     peaks     inference, forward with saved activations, forward and backward, update
 *     batch     the largest micro-batch that fits: planned, and with --confirm run for one step
 *     advice    other plans, and one change at a time: bytes saved and seconds lost (doctor_advice.c)
 *     leaks     growth of memory, allocations, descriptors and threads over --steps N steps
 *
 * What is planned needs no device and is printed before any step runs.
 */
#include "cli/doctor.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/system.h"
#include "cli/environment.h"
#include "graph/ops.h"
#include "plan/explain.h"
#include "report/lives.h"
#include "calibrate/bench.h"
#include "calibrate/time_factor.h"
#include "planning/planned.h"
#include "feed/feed.h"

/* WARM: steps that run before leaks are measured, the first of them in bench_open */
enum { STEPS = 20, TENSORS = 8, BATCH_MOST = 4096, WARM = 3 };

/* --- peaks --------------------------------------------------------------------------- */

/* The largest number of live bytes while nodes of a phase run; PHASE_COUNT: of any phase. */
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

/* The peak of the evaluation program. */
static uint64_t forward_alone(const struct planned *r)
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
    char size[32], words[TENSOR_WORDS];
    const uint32_t n = plan_at_peak(&r->plan, &r->graph, all);
    const struct node *at = node_at(&r->graph, r->graph.order[peak->program].nodes.at[peak->instant]);
    text_printf(out, "Largest tensors at the peak, in the %s of %s (program %s, op %s), %u transient tensors alive\n",
                phase_name(at->phase),
                at->scope ? graph_name(&r->graph, r->graph.scopes.at[at->scope].name) : "the step",
                program_name(peak->program), op_table[at->op].name, n);
    for (uint32_t i = 0; i < n && i < TENSORS; i++)
        text_printf(out, "  %12s  %s\n", size_print(all[i].bytes, size), tensor_words(all[i].name, words));
    mem_free(all);
}

void doctor_peaks(const struct planned *r, struct doctor_peaks *out)
{
    struct lives l;
    lives_collect(&l, &r->plan, &r->graph);
    *out = (struct doctor_peaks){.forward_alone = forward_alone(r)};
    FOR_STEP_PROGRAMS(p) {
        const uint64_t most = phase_peak(r, &l, p, PHASE_COUNT);
        if (program_is(p, PROGRAM_TRAINS)) out->forward = phase_peak(r, &l, p, PHASE_FORWARD), out->backward = most;
        else out->update = most;
    }
    lives_free(&l);
}

/* --- the largest batch -------------------------------------------------------------------- */

/* The arena of a micro-batch of `b`, with the techniques of the plan, or with those that the search
 * finds within the budget; UINT64_MAX when planning fails. *host: the offloaded bytes. */
static uint64_t arena_of(const struct doctor *d, int64_t b, bool search, uint64_t *host, struct error *e)
{
    char sets[2][64];
    struct config c;
    struct planned r;
    snprintf(sets[0], sizeof sets[0], "train.effective_batch=%" PRId64, b);
    snprintf(sets[1], sizeof sets[1], "memory.micro_batch=%" PRId64, b);
    int rc = doctor_config(d, &c, !search, e);
    for (int i = 0; i < 2 && !rc; i++) rc = config_set(&c, sets[i], e);
    if (rc) return UINT64_MAX;
    if (search) c.memory_budget = (struct config_budget){BUDGET_BYTES, d->budget};
    if (d->host_bound) c.memory_host_budget = (struct config_budget){BUDGET_BYTES, d->host_bound};
    rc = planned_open(&r, &c, &(struct run_options){.train = true, .describe = feed_describe, .probe = true}, e);
    uint64_t bytes = rc ? UINT64_MAX : plan_arena(&r.plan);
    *host = rc ? 0 : r.plan.placement.arena[SPACE_HOST];
    planned_close(&r);
    config_free(&c);
    return bytes;
}

/* A binary search, as the bytes grow with the batch; 0 when not even one sample fits. */
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

/* True if a step can run here: in this process, on a device that is here, and in memory alone,
 * since the doctor writes no offload file. */
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
    char set[64];
    struct config c;
    struct bench b = {0};
    int rc = doctor_config(d, &c, false, e);
    for (int i = 0; i < 2 && !rc; i++) {
        snprintf(set, sizeof set, "%s=%" PRId64, i ? "memory.micro_batch" : "train.effective_batch", batch);
        rc = config_set(&c, set, e);
    }
    if (rc) return rc;
    c.memory_budget = (struct config_budget){BUDGET_BYTES, d->budget};
    rc = bench_open(&b, &c, &(struct run_options){.train = true, .describe = feed_describe, .no_files = true}, e);
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

static int leaks(const struct doctor *d, int64_t steps, struct doctor_leaks *out, struct error *e)
{
    struct config c;
    struct bench b = {0};
    struct process_state before, after;
    char time[32];
    int rc = doctor_config(d, &c, true, e);
    if (rc) return rc;
    log_note("leaks: %" PRId64 " steps of about %s run on synthetic inputs (--steps N sets their number; 0: none)",
             WARM + steps, duration_print(d->run.plan.seconds * d->scale, time));
    rc = bench_open(&b, &c, &(struct run_options){.train = true, .describe = feed_describe, .no_files = true}, e);
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
        *out = (struct doctor_leaks){steps,
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

static void print_peaks(const struct planned *r, const struct doctor_peaks *p, struct text *out)
{
    char size[32];
    text_printf(out, "Peak memory of a micro-batch of %d", r->plan.settings.micro_batch);
    if (r->plan.settings.ranks > 1) text_printf(out, " on each of %d ranks", r->plan.settings.ranks);
    text_printf(out, "\n");
    text_printf(out, "  %12s  forward only (inference), no activations saved\n", size_print(p->forward_alone, size));
    text_printf(out, "  %12s  forward, with the activations saved for the backward\n", size_print(p->forward, size));
    text_printf(out, "  %12s  forward and backward\n", size_print(p->backward, size));
    text_printf(out, "  %12s  optimizer update\n", size_print(p->update, size));
    text_printf(out, "  %12s  the arena: the total, with padding\n", size_print(plan_arena(&r->plan), size));
    if (r->plan.placement.arena[SPACE_HOST])
        text_printf(out, "  %12s  the %s: what is offloaded\n", size_print(r->plan.placement.arena[SPACE_HOST], size),
                    plan_host_name(&r->plan));
}

/* In what the plan exceeds its machine, such as host memory that a machine with this GPU is not
 * likely to have. */
static void print_warnings(const struct planned *r, struct text *out)
{
    for (int i = 0; i < r->n_warnings; i++) text_printf(out, "  WARNING: %s\n", r->warning[i]);
}

static void print_leaks(const struct doctor *d, const struct doctor_leaks *l, struct text *out)
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

/* What is planned: peaks, the largest batch, advice. Returns the number of changes in `advice`. */
static uint32_t plan_report(struct doctor *d, const struct options *o, bool fits, struct doctor_peaks *peaks,
                            struct advice advice[ADVICE_MOST])
{
    struct text out = {0};
    struct error e;
    doctor_peaks(&d->run, peaks);
    if (!fits) text_printf(&out, "Does not fit the budget. The smallest plan:\n\n");
    print_peaks(&d->run, peaks, &out);
    print_warnings(&d->run, &out);
    print_holders(&d->run, &out);
    put_out(o, &out);
    d->batch = largest_batch(d, false);
    d->batch_most = max_i64(d->batch, largest_batch(d, true));
    if (d->batch_most) d->most[SPACE_DEVICE] = arena_of(d, d->batch_most, true, &d->most[SPACE_HOST], &e);
    print_batch(d, &out);
    put_out(o, &out);
    uint32_t n = doctor_advice(d, advice);
    others_print(d, &out);
    advice_print(d, advice, n, &out);
    put_out(o, &out);
    return n;
}

/* What is run: a step with the largest micro-batch, if asked for, and steps over which leaks are
 * measured. A failure is in the report too. */
static int run_report(struct doctor *d, const struct options *o, int64_t steps, struct doctor_leaks *found,
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
        rc = leaks(d, steps, found, e);
        if (rc) d->unmeasured = *e;
    }
    print_leaks(d, found, &out);
    put_out(o, &out);
    return rc;
}

static int examine(struct doctor *d, const struct options *o, bool fits, int64_t steps, struct error *e)
{
    struct text out = {0};
    struct doctor_peaks peaks;
    struct doctor_leaks found = {0};
    struct advice advice[ADVICE_MOST];
    const uint32_t n = plan_report(d, o, fits, &peaks, advice);
    int rc = run_report(d, o, steps, &found, e);
    if (o->json) {
        doctor_json(d, &peaks, found.steps ? &found : NULL, advice, n, &out);
        fputs(out.at, stdout);
    }
    text_free(&out);
    return rc;
}

/* The host memory that the largest batch may take, where it is not known: what a machine with such
 * a GPU is likely to have, or as much as the examined plan. 0: the configuration or this machine
 * bounds it. */
static uint64_t host_bound(const struct planned *r)
{
    if (r->kind != DEVICE_CUDA || r->host_budget) return 0;
    const uint64_t likely = offload_likely(r->profile.memory_bytes), host = r->plan.placement.arena[SPACE_HOST];
    return host > likely ? host : likely;
}

static int doctor_run(struct doctor *d, const struct config *c, const struct options *o, int64_t steps, struct error *e)
{
    struct system_memory now;
    planned_explain_device();
    int rc =
        planned_open(&d->run, c,
                     &(struct run_options){.plan = o->plan, .train = true, .describe = feed_describe, .several = true},
                     e);
    bool fits = rc != PL_NOFIT;
    if (!rc || !fits) {
        system_memory(&now);
        d->given = d->run.budget != 0;
        d->budget = d->given                     ? d->run.budget
                    : d->run.kind == DEVICE_CUDA ? planned_gpu_budget(d->run.profile.memory_bytes)
                                                 : now.available;
        d->host_bound = host_bound(&d->run);
        d->scale = time_scale(&d->run);
        rc = examine(d, o, fits, fits ? steps : 0, e);
    }
    planned_close(&d->run);
    return rc ? rc : fits ? PL_OK : PL_NOFIT;
}

static int doctor(int argc, char **argv, struct error *e)
{
    struct doctor d = {0};
    struct options o;
    struct config c;
    int64_t steps = STEPS;
    if (!argc || (argc == 1 && !strcmp(argv[0], "--json"))) {
        print_machine(argc);
        return PL_OK;
    }
    int rc = options_parse(&o, OPT_RUN | OPT_MEMORY | OPT_PLAN | OPT_JSON | OPT_STEPS | OPT_CONFIRM, argc, argv, e);
    if (rc) return rc;
    d.options = &o;
    d.confirm = o.confirm;
    if (o.help) {
        print_help(&command_doctor);
    } else if (!(rc = options_count("--steps", o.steps, 0, BENCH_STEPS_MOST, &steps, e)) &&
               !(rc = options_config(&o, &c, e))) {
        rc = config_check(&c, CONFIG_NEEDS_MODEL, e);
        if (!rc) rc = doctor_run(&d, &c, &o, steps, e);
        config_free(&c);
    }
    options_free(&o);
    return rc;
}

const struct command command_doctor =
    {"doctor",
     "doctor [--json]\n       plimsoll doctor RUN.yaml [--config-from FILE]... [--adapter DIR] [--memory SIZE] "
     "[--steps N] [--confirm] [--plan PLAN.json] [--set key=value]... [--json]",
     "Without a run file, describes this machine: processor, memory, limits, GPU, libraries, and what memory.budget: "
     "auto would be.\n"
     "With one, diagnoses the memory of a run, such as one that is out of memory: the peaks of a training step, the "
     "largest tensors at the\n"
     "peak, the largest micro-batch that fits, leaks, and what each change would save and cost: gradient checkpointing "
     "(activation\n"
     "checkpointing), offload to host memory, mixed precision, 8-bit Adam, gradient accumulation, LoRA, 4-bit weights. "
     "What is planned\n"
     "is printed first and needs no GPU; then steps run, where they can, to measure leaks. Needs no data and writes no "
     "files:\n"
     "what a CPU would offload to a file stays in memory while it measures, and where that does not fit it does not "
     "measure.\n" CONFIG_FROM_HELP "  --steps N        steps over which leaks are measured (20; 0: none)\n"
     "  --adapter DIR    a LoRA adapter, as PEFT or a run with an adapter saves it, instead of the one in RUN.yaml: "
     "adapter.path\n"
     "  --confirm        runs one step with the largest micro-batch",
     doctor};
