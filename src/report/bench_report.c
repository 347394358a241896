/*
 * bench_report.c: the measured time of a training step, the predicted time, and the time of each op
 * (step_report.h).
 */
#include <inttypes.h>
#include <math.h>

#include "cost/links.h"
#include "graph/ops.h"
#include "plan/plan.h"
#include "report/step_report.h"

enum { OPS_SHOWN = 16, CLASSES_SHOWN = 12, KERNELS_LISTED = 40 };

/* --- tables ----------------------------------------------------------------------------------- */

static const double PER_GIB = 1.0 / (1 << 30);
static const struct report_column OPS[] = {
    {"op", "op"}, {"dtype", ""}, {"calls", "calls", ""}, {"seconds", "ms", "%.3f", 1e3},
    {"predicted_seconds", "predicted", "%.3f", 1e3}, {"gflop_per_second", "GFLOP/s", "%.1f"}, {NULL, "GiB/s", "%.2f"},
    {"gb_per_second"}, {"share_of_ceiling", "ceiling", "%.0f %%", 100}};

/* Lists the ops, the slowest first, and in text the sum of those that are not shown. */
static void list_ops(const struct bench *b, struct report_table *t)
{
    struct bench_op ops[2 * OP_COUNT];
    const uint32_t n = bench_ops(b, ops);
    double rest = 0, predicted = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct bench_op *x = &ops[i];
        TABLE_ADD(t, CELL(op_table[x->op].name), CELL(dtype_name(x->dtype)), CELL(x->calls), CELL(x->seconds),
                  CELL(x->predicted), CELL(1e-9 * x->flops / x->seconds), CELL(PER_GIB * x->bytes / x->seconds),
                  CELL(1e-9 * x->bytes / x->seconds), CELL(x->ideal / x->seconds));
        if (i >= OPS_SHOWN) rest += x->seconds, predicted += x->predicted;
    }
    if (n > OPS_SHOWN)
        TABLE_ADD(t, CELL("others"), {0}, {0}, CELL(rest), CELL(predicted))->text_only = true;
}

static const struct report_column CLASSES[] = {
    {NULL, "kernel"}, {"kernel"}, {"form"}, {NULL, ""}, {"extents", "extents, about"}, {"calls", "calls", ""},
    {"seconds", "ms", "%.3f", 1e3}, {"predicted_seconds", "predicted", "%.3f", 1e3}, {NULL, "error", "%+.3f", 1e3}};

/* Writes "4096 x 4096 x 80": the extents of a class of launches, rounded by a factor of up to
 * 1.2. */
static const char *print_extents(const struct op_class *x, char out[64])
{
    size_t n = 0;
    out[0] = '\0';
    for (int i = 0; i < EXTENTS && x->extent[i]; i++)
        n += (size_t)snprintf(out + n, 64 - n, "%s%.0f", i ? " x " : "", exp2(x->extent[i] / 2.));
    return out;
}

/* Lists the kernels of a GPU by the seconds of a step that the prediction errs, and in text the sum
 * of all. */
static void list_classes(const struct bench *b, struct report_table *t)
{
    struct bench_class *all;
    char extents[64], kernel[96];
    double seconds = 0, predicted = 0;
    const uint32_t n = bench_classes(b, &all);
    for (uint32_t i = 0; i < n; i++) {
        const struct bench_class *x = &all[i];
        const char *variant = op_variant_name(x->of.op, x->of.variant);
        snprintf(kernel, sizeof kernel, "%s%s%s", x->of.kernel, *x->form ? ", " : "", x->form);
        TABLE_ADD(t, CELL((const char *)kernel), CELL(x->of.kernel), CELL(x->form), CELL(variant ? variant : ""),
                  CELL(print_extents(&x->of, extents)), CELL(x->calls), CELL(x->seconds), CELL(x->predicted),
                  CELL(x->predicted - x->seconds));
        seconds += x->seconds, predicted += x->predicted;
    }
    TABLE_ADD(t, CELL("all"), {0}, {0}, {0}, {0}, {0}, CELL(seconds), CELL(predicted), CELL(predicted - seconds))
        ->text_only = true;
    mem_free(all);
}

static const struct report_column KERNELS[] = {
    {"op"}, {"kernel"}, {"form"}, {"in"}, {"out"}, {"dtype"}, {"calls"}, {"seconds"}, {"ideal_seconds"}, {"flops"},
    {"bytes"}};

/* Returns "4x4096x1280". */
static const char *print_shape(const struct tensor *t, char out[160])
{
    int at = 0;
    out[0] = 0;
    for (int i = 0; t && i < t->rank; i++)
        at += snprintf(out + at, 160 - (size_t)at, "%s%" PRId64, i ? "x" : "", t->dim[i]);
    return out;
}

static void list_kernels(const struct bench *b, struct report_table *t)
{
    struct bench_kernel lines[KERNELS_LISTED];
    const uint32_t n = bench_kernels(b, lines, KERNELS_LISTED);
    char in[160], out[160];
    for (const struct bench_kernel *x = lines; x < lines + n; x++)
        TABLE_ADD(t, CELL(op_table[x->op].name), CELL(x->kernel ? x->kernel->name : ""),
                  CELL(x->kernel ? kernel_form_name(x->kernel, x->form) : ""), CELL(print_shape(x->in, in)),
                  CELL(print_shape(x->out, out)), CELL(x->in ? dtype_name(x->in->dtype) : ""), CELL(x->calls),
                  CELL(x->seconds), CELL(x->ideal), CELL(x->flops), CELL(x->bytes));
}

/* --- ranks ------------------------------------------------------------------------------------ */

static const struct report_column RANKS[] = {
    {NULL, "rank"}, {"host", "host"}, {"seconds_per_step", "step", "time"}, {NULL, "in exchanges", ""},
    {"exchange_seconds"}};

static void list_ranks(const struct ranks *r, const struct rank_times *each, struct report_table *t)
{
    char time[32];
    for (int i = 0; i < r->n; i++) {
        const double exchanges = each[i].exchanges;
        TABLE_ADD(t, CELL(i), CELL((const char *)each[i].host), CELL(each[i].seconds),
                  CELL(exchanges > 0 ? duration_print(exchanges, time) : "-"), CELL(exchanges));
    }
}

/* Returns the seconds of the collectives of a step, node by node. */
static double collectives(const struct bench *b)
{
    double sum = 0;
    for (id n = 1; n < b->run.planned.graph.nodes.n; n++)
        if (op_table[node_at(&b->run.planned.graph, n)->op].flags & OPF_COMM) sum += b->fastest.seconds[n];
    return sum;
}

/* --- printing --------------------------------------------------------------------------------- */

/* What is shown of a bench. */
struct shown {
    const struct bench *bench;
    const struct ranks *world;   /* NULL: this is the only process */
    struct communication sends;
    struct report_table ops, classes, kernels, ranks;
    uint64_t arena, weights, gradients, optimizer, rest; /* the arena at its peak; `rest` includes the padding */
    uint64_t copied[SPACE_COUNT];  /* of a step, into each memory space */
};

static void print_memory(const struct shown *s, struct text *out)
{
    const struct bench *b = s->bench;
    const struct plan *p = &b->run.planned.plan;
    static const struct report_column columns[] = {{NULL, ""}, {NULL, "", "bytes"}, {NULL, "", "%.1f %%", 100}};
    struct report_table t = REPORT_TABLE(columns);
    const struct {
        const char *name;
        uint64_t bytes;
        bool part;
    } lines[] = {{"weights", s->weights, true}, {"gradients", s->gradients, true}, {"optimizer", s->optimizer, true},
                 {"activations and rest", s->rest, true}, {"arena", s->arena, false},
                 {plan_host_name(p), p->placement.arena[SPACE_HOST], false},
                 {"GPU memory used", b->device_total ? b->device_used : 0, false},
                 {"NCCL's own", b->run.device.outside_bytes, false}, {"peak resident", bench_peak_resident(), false}};
    for (size_t i = 0; i < COUNT(lines); i++)
        if (lines[i].part || lines[i].bytes)
            TABLE_ADD(&t, CELL(lines[i].name), CELL(lines[i].bytes),
                      CELL_IF(lines[i].part, (double)lines[i].bytes / (double)s->arena));
    text_printf(out, "Memory%s\n", s->world ? " of each rank" : "");
    table_print(&t, 2, 0, out);
    table_free(&t);
}

/* Returns what a step copies into a memory space from the other one. */
static uint64_t copied_bytes(const struct graph *g, enum space to)
{
    double bytes = 0;
    FOR_STEP_PROGRAMS(p)
        for (uint32_t k = 0; k < g->order[p].nodes.n; k++) {
            const struct node *n = node_at(g, g->order[p].nodes.at[k]);
            const bool crosses = n->op == OP_COPY && storage_of(g, n->in[0])->space != storage_of(g, n->out[0])->space;
            if (crosses && storage_of(g, n->out[0])->space == to)
                bytes += loop_iterations(g, n->loop) * (double)tensor_bytes(tensor_at(g, n->in[0]));
        }
    return (uint64_t)bytes;
}

static void print_text(const struct shown *s, struct text *out)
{
    const struct bench *b = s->bench;
    const struct planned *r = &b->run.planned;
    const struct plan *p = &r->plan;
    char a[32], c[32], d[32];
    const double mean = bench_mean(b);
    text_printf(out, "Step of %d sample%s: micro-batch %d x %d, ", r->effective_batch,
                r->effective_batch == 1 ? "" : "s", p->settings.micro_batch, p->settings.accumulation);
    settings_print(&p->settings, out);
    text_printf(out, ", %d thread%s%s\n", r->profile.threads, r->profile.threads == 1 ? "" : "s",
                s->world ? " of each rank" : "");
    text_printf(out, "  predicted  %s\n  measured   %s mean, %s median of %u\n  measured / predicted  %.3f\n",
                duration_print(p->seconds, a), duration_print(mean, c), duration_print(bench_median(b), d), b->steps,
                mean / p->seconds);
    text_printf(out, "  samples/s  %.4g%s\n", r->effective_batch / mean, s->world ? " of all ranks together" : "");
    if (s->copied[SPACE_DEVICE])
        text_printf(out, "  copies     %s in, %s out a step\n", size_print(s->copied[SPACE_DEVICE], a),
                    size_print(s->copied[SPACE_HOST], c));
    if (s->world) {
        text_printf(out, "Ranks\n  a rank sends %s in a step: %s predicted (links ",
                    size_print((uint64_t)s->sends.sent, a), duration_print(s->sends.seconds, c));
        links_print(&r->profile, out);
        text_printf(out, "), %s measured, with the wait for others\n", duration_print(collectives(b), a));
        table_print(&s->ranks, 2, 0, out);
    }
    print_memory(s, out);
    if (s->ops.rows.n) {
        text_printf(out, "Time by op, in %s\n", bench_replays(b) ? "one more step, node by node" : "the fastest step");
        table_print(&s->ops, 2, OPS_SHOWN, out);
    }
    if (!bench_replays(b)) return;
    text_printf(out, "Largest prediction errors, timed node by node\n");
    table_print(&s->classes, 2, CLASSES_SHOWN, out);
}

static void put_settings(struct json_writer *w, const void *of)
{
    const struct planned *r = of;
    plan_put_settings(w, &r->plan.settings, r->effective_batch);
}

static void put_sends(struct json_writer *w, const void *of)
{
    const struct shown *s = of;
    PUT_FACTS(w, FACT_MAP("communication", FACT("sent_bytes", (uint64_t)s->sends.sent),
                          FACT("predicted_seconds", s->sends.seconds), FACT("measured_seconds", collectives(s->bench)),
                          FACT_TABLE("ranks", &s->ranks)));
}

static void print_json(const struct shown *s)
{
    const struct bench *b = s->bench;
    const struct planned *r = &b->run.planned;
    const double mean = bench_mean(b);
    const bool gpu = b->device_total;
    PRINT_FACTS(2, FACT("steps", b->steps), FACT("predicted_step_seconds", r->plan.seconds),
                FACT("measured_mean_seconds", mean), FACT("measured_median_seconds", bench_median(b)),
                FACT("ratio", mean / r->plan.seconds), FACT("samples_per_second", r->effective_batch / mean),
                FACT_CALL(put_settings, r), FACT("threads", r->profile.threads), FACT("arena_bytes", s->arena),
                FACT("host_arena_bytes", r->plan.placement.arena[SPACE_HOST]),
                FACT("copied_in_bytes", s->copied[SPACE_DEVICE]), FACT("copied_out_bytes", s->copied[SPACE_HOST]),
                FACT_MAP("breakdown", FACT("weights", s->weights), FACT("gradients", s->gradients),
                         FACT("optimizer", s->optimizer), FACT("activations_and_rest", s->rest)),
                FACT("peak_resident_bytes", bench_peak_resident()), FACT_IF(gpu, "device_used_bytes", b->device_used),
                FACT_IF(gpu, "outside_bytes", b->run.device.outside_bytes),
                FACT_IF(gpu, "device_total_bytes", b->device_total), FACT_CALL_IF(s->world, put_sends, s),
                FACT_TABLE("ops", &s->ops), FACT_TABLE_IF(bench_replays(b), "classes", &s->classes),
                FACT_TABLE("kernels", &s->kernels));
}

void bench_report(const struct bench *b, const struct ranks *ranks, const struct rank_times *each, bool json)
{
    const struct planned *r = &b->run.planned;
    const uint64_t *k = r->plan.peak.by_kind;
    struct shown s = {.bench = b, .world = ranks && ranks->n > 1 ? ranks : NULL,
                      .sends = plan_communication(&r->plan, &r->graph, &r->profile), .ops = REPORT_TABLE(OPS),
                      .classes = REPORT_TABLE(CLASSES), .kernels = REPORT_TABLE(KERNELS),
                      .ranks = REPORT_TABLE(RANKS), .arena = plan_arena(&r->plan),
                      .weights = k[KIND_PARAM] + k[KIND_MASTER], .gradients = k[KIND_GRAD], .optimizer = k[KIND_STATE]};
    struct text out = {0};
    for (enum space space = 0; space < SPACE_COUNT; space++) s.copied[space] = copied_bytes(&r->graph, space);
    s.rest = s.arena - s.weights - s.gradients - s.optimizer;
    list_ops(b, &s.ops);
    list_kernels(b, &s.kernels);
    if (bench_replays(b)) list_classes(b, &s.classes);
    if (s.world) list_ranks(ranks, each, &s.ranks);
    print_text(&s, &out);
    if (json) print_json(&s);
    else fputs(out.at, stdout);
    text_free(&out);
    table_free(&s.ops);
    table_free(&s.classes);
    table_free(&s.kernels);
    table_free(&s.ranks);
}
