/*
 * diagnosis.c: diagnoses the memory of a run (advice.h).
 *
 *     peaks     inference, forward with saved activations, forward and backward, update
 *     batch     the largest micro-batch that fits: planned, and with `confirm` run for one step
 *     advice    other plans; one change at a time: bytes saved, seconds lost
 *     leaks     growth of memory, allocations, descriptors and threads over steps
 *
 * What is planned needs no device and is printed before any step runs.
 */
#include <inttypes.h>

#include "base/system.h"
#include "batch/feed.h"
#include "calibrate/calibrate.h"
#include "compare/advice.h"
#include "graph/ops.h"
#include "io/table.h"
#include "plan/explain.h"
#include "report/lives.h"

enum { TENSORS = 8 };

static const struct report_column SIZES[] = {{NULL, "", "bytes"}, {NULL, ""}}; /* bytes, and what they are */

struct doctor {
    const struct diagnosis_options *o;
    struct planned run;        /* the plan that is examined */
    struct examined x;
    int64_t batch, batch_most; /* largest with the plan's techniques, with any */
    uint64_t most[SPACE_COUNT]; /* the arenas of the latter */
    struct report_table others, advice; /* plans within the same budget; one change at a time */
    bool given, confirmed;
    struct error unmeasured;   /* why leaks were not measured; code 0: they were, or need not be */
    struct error unconfirmed;  /* the same of --confirm */
};

/* --- steps ------------------------------------------------------------------------------------ */

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

/* Runs one step with the largest micro-batch. */
static int confirm(const struct doctor *d, struct error *e)
{
    struct config c;
    TRY(batch_config(&d->x, &c, d->batch_most, false, e));
    c.memory_budget = (struct config_budget){BUDGET_BYTES, d->x.budget};
    int rc = leaks_try_step(&c, e);
    config_free(&c);
    return rc;
}

static int measure(const struct doctor *d, int64_t steps, struct leaks *out, struct error *e)
{
    struct config c;
    char time[32];
    TRY(examined_config(&d->x, &c, true, e));
    log_note("leaks: %" PRId64 " steps of about %s run on synthetic inputs (--steps N sets their number; 0: none)",
             leaks_steps(steps), duration_print(d->run.plan.seconds * d->x.scale, time));
    int rc = leaks_measure(&c, steps, out, e);
    config_free(&c);
    return rc;
}

/* --- the report ------------------------------------------------------------------------------- */

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

static void print_peaks(const struct planned *r, const struct step_peaks *p, struct text *out)
{
    struct report_table t = REPORT_TABLE(SIZES);
    char host[64];
    TABLE_ADD(&t, CELL(p->forward_only), CELL("forward only (inference), no activations saved"));
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
    text_printf(out, "Largest micro-batch within %s (%s)", size_print(d->x.budget, size),
                d->given ? "the budget"
                : cuda   ? "the GPU's memory less a reserve"
                         : "free memory");
    if (d->x.host_bound)
        text_printf(out, " and %s of host memory (%s)", size_print(d->x.host_bound, size),
                    d->x.host_bound > offload_likely(d->run.profile.memory_bytes)
                        ? "as much as the plan takes"
                        : "what a machine with such a GPU is likely to have");
    text_printf(out, "\n  %6" PRId64 "  with this plan's techniques\n  %6" PRId64 "  with any techniques", d->batch,
                d->batch_most);
    if (d->most[SPACE_HOST])
        text_printf(out, " and %s of %s", size_print(d->most[SPACE_HOST], size), plan_host_name(&d->run.plan));
    text_printf(out, "%s\n", d->batch_most && !d->o->confirm ? "; --confirm runs a step to check it" : "");
    if (d->batch >= BATCH_MOST) text_printf(out, "  (the search ends at %d)\n", BATCH_MOST);
}

static const struct report_column OTHERS[] = {
    {"change"}, {"what"}, {"arena_bytes", "arena", "bytes"}, {"host_bytes", "offloaded", "bytes"},
    {"predicted_step_seconds", "step", "time"}, {NULL, "change"}, {NULL, ""}};
static const struct report_column ADVICE[] = {
    {"change"}, {"saves_bytes", "saves", "bytes"}, {"host_bytes", "offloads more", "bytes"}, {NULL, "costs", ""},
    {"costs_seconds"}, {"changes_results"}, {NULL, "change"}, {NULL, ""}};

static void list_advice(const struct advices *found, struct report_table *t)
{
    for (const struct advice *a = found->at; a < found->at + found->n; a++) {
        char time[32], set[128];
        snprintf(set, sizeof set, "--set %.95s", a->change);
        TABLE_ADD(t, CELL((const char *)a->change), CELL(a->saves), CELL(a->host),
                  CELL(duration_change(a->costs, time)), CELL(a->costs), CELL((bool)a->note), CELL((const char *)set),
                  CELL(a->note ? a->note : ""));
    }
}

/* Plans other changes and prints them. */
static void print_advice(struct doctor *d, struct text *out)
{
    struct advices *found = mem_alloc(sizeof *found);
    char size[32], time[32];
    d->others = (struct report_table)REPORT_TABLE(OTHERS);
    d->advice = (struct report_table)REPORT_TABLE(ADVICE);
    advise(&d->x, found);
    list_advice(found, &d->advice);
    for (const struct other_plan *p = found->others; p < found->others + found->n_others; p++)
        TABLE_ADD(&d->others, CELL((const char *)p->change), CELL(p->what), CELL(p->arena), CELL(p->host),
                  CELL(p->seconds), CELL((const char *)p->change), CELL(p->what));
    if (d->others.rows.n) {
        text_printf(out, "Other plans within %s (column offloaded: %s)\n", size_print(d->x.budget, size),
                    plan_host_name(&d->run.plan));
        table_print(&d->others, 2, 0, out);
    }
    text_printf(out,
                "Advice: one change at a time, most bytes saved per second lost first; predicted step time now %s\n",
                duration_print(d->x.scale * d->run.plan.seconds, time));
    if (found->n) table_print(&d->advice, 2, 0, out);
    else text_printf(out, "  no change saves memory: every technique that applies is in use\n");
    mem_free(found);
}

/* Prints a part of the report at once, so that it is there whatever the next part does. */
static void put_out(const struct doctor *d, struct text *part)
{
    if (!d->o->json && part->n) fputs(part->at, stdout);
    fflush(stdout);
    text_free(part);
}

/* Plans and prints peaks, the largest batch and advice. */
static void plan_report(struct doctor *d, bool fits, struct step_peaks *peaks)
{
    struct text out = {0};
    *peaks = lives_peaks(&d->run.plan, &d->run.graph);
    if (!fits) text_printf(&out, "Does not fit the budget. The smallest plan:\n\n");
    print_peaks(&d->run, peaks, &out);
    print_holders(&d->run, &out);
    put_out(d, &out);
    d->batch = largest_batch(&d->x, false);
    d->batch_most = max_i64(d->batch, largest_batch(&d->x, true));
    if (d->batch_most) d->most[SPACE_DEVICE] = batch_arena(&d->x, d->batch_most, true, &d->most[SPACE_HOST]);
    print_batch(d, &out);
    put_out(d, &out);
    print_advice(d, &out);
    put_out(d, &out);
}

/* Runs and prints a step with the largest micro-batch, if asked for, and steps over which leaks are
 * measured. A failure is in the report too. */
static int run_report(struct doctor *d, int64_t steps, struct leaks *found, struct error *e)
{
    struct text out = {0};
    int rc = PL_OK;
    if (d->o->confirm && d->batch_most && can_run(d, d->most, &d->unconfirmed)) {
        rc = confirm(d, e);
        d->confirmed = !rc;
        if (rc) d->unconfirmed = *e;
    }
    if (d->confirmed)
        text_printf(&out, "The largest micro-batch, %" PRId64 ": confirmed by running a step\n", d->batch_most);
    if (d->unconfirmed.code)
        text_printf(&out, "The largest micro-batch, %" PRId64 ": not confirmed: %s\n", d->batch_most,
                    d->unconfirmed.text);
    put_out(d, &out);
    if (!rc && steps && can_run(d, d->run.plan.placement.arena, &d->unmeasured)) {
        rc = measure(d, steps, found, e);
        if (rc) d->unmeasured = *e;
    }
    print_leaks(d, found, &out);
    put_out(d, &out);
    return rc;
}

static void put_machine(struct json_writer *w, const void *of)
{
    plan_put_machine(w, ((const struct planned *)of)->warning, ((const struct planned *)of)->n_warnings);
}

static int examine(struct doctor *d, bool fits, int64_t steps, struct error *e)
{
    struct step_peaks p;
    struct leaks l = {0};
    plan_report(d, fits, &p);
    int rc = run_report(d, steps, &l, e);
    const struct fact leaks = FACT_MAP("leaks", FACT("steps", l.steps), FACT("host_bytes", l.resident),
                                       FACT("device_bytes", l.device), FACT("allocations", l.allocations),
                                       FACT("descriptors", l.descriptors), FACT("threads", l.threads));
    if (d->o->json)
        PRINT_FACTS(2, FACT("forward_alone_bytes", p.forward_only), FACT("forward_bytes", p.forward),
                    FACT("forward_backward_bytes", p.backward), FACT("update_bytes", p.update),
                    FACT("arena_bytes", plan_arena(&d->run.plan)),
                    FACT("host_bytes", d->run.plan.placement.arena[SPACE_HOST]), FACT("budget_bytes", d->x.budget),
                    FACT("largest_batch", d->batch), FACT("largest_batch_any", d->batch_most),
                    FACT("largest_batch_any_host_bytes", d->most[SPACE_HOST]), FACT("confirmed", d->confirmed),
                    FACT("predicted_step_seconds", d->x.scale * d->run.plan.seconds), FACT("factor", d->x.scale),
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

int diagnose(const struct plan_source *source, const struct config *c, const struct diagnosis_options *o,
             struct error *e)
{
    struct doctor d = {.o = o, .x = {.source = source, .run = &d.run}};
    struct system_memory now;
    planned_explain_device();
    int rc =
        planned_open(&d.run, c,
                     &(struct run_options){.plan = o->plan, .train = true, .describe = feed_describe, .several = true},
                     e);
    const bool fits = rc != PL_NOFIT;
    if (!rc || !fits) {
        system_memory(&now);
        d.given = d.run.budget != 0;
        d.x.budget = d.given                     ? d.run.budget
                     : d.run.kind == DEVICE_CUDA ? planned_gpu_budget(d.run.profile.memory_bytes)
                                                 : now.available;
        d.x.host_bound = host_bound(&d.run);
        d.x.scale = time_scale(&d.run);
        rc = examine(&d, fits, fits ? o->steps : 0, e);
    }
    planned_close(&d.run);
    return rc ? rc : fits ? PL_OK : PL_NOFIT;
}
