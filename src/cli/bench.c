/*
 * bench.c: `plimsoll bench`: the measured time of a training step, the predicted time, and the
 * time of each op. Needs no data and writes no files but the offload file of a plan that has one.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/bench.h"
#include "graph/ops.h"
#include "io/json.h"
#include "calibrate/bench.h"
#include "cost/links.h"
#include "planning/planned.h"
#include "feed/feed.h"
#include "plan/communication.h"

enum { OPS_SHOWN = 16, CLASSES_SHOWN = 12, KERNELS_LISTED = 40 };

static const double GIB = 1 << 30;

/* The arena at its peak, split into four classes; `rest` includes the padding. */
struct breakdown {
    uint64_t weights, gradients, optimizer, rest;
};

static struct breakdown arena_breakdown(const struct plan *p)
{
    const uint64_t *k = p->peak.by_kind;
    struct breakdown x = {k[KIND_PARAM] + k[KIND_MASTER], k[KIND_GRAD], k[KIND_STATE], 0};
    x.rest = plan_arena(p) - x.weights - x.gradients - x.optimizer;
    return x;
}

/* --- ranks ------------------------------------------------------------------------------------ */

/* Times of a rank, a step. */
struct rank_times {
    char host[RANK_HOST];
    double seconds, exchanges;   /* of them in exchanges, with the wait for others; on a GPU with NCCL not known: 0 */
};

/* What is shown of a bench. */
struct shown {
    struct bench *bench;
    struct ranks *ranks;         /* NULL: this process is alone */
    struct rank_times *each;
};

static bool has_ranks(const struct shown *x) { return x->ranks && x->ranks->n > 1; }

static int gather_times(const struct shown *x, double exchanges, struct error *e)
{
    struct rank_times mine = {.seconds = bench_mean(x->bench), .exchanges = exchanges};
    snprintf(mine.host, sizeof mine.host, "%s", x->ranks->host);
    return x->ranks->gather(x->ranks, &mine, x->each, sizeof mine, e);
}

/* Seconds of the collectives of a step, node by node. */
static double collectives(const struct bench *b)
{
    double sum = 0;
    for (id n = 1; n < b->run.planned.graph.nodes.n; n++)
        if (op_table[node_at(&b->run.planned.graph, n)->op].flags & OPF_COMM) sum += b->fastest.seconds[n];
    return sum;
}

static void print_ranks(const struct shown *x, struct text *out)
{
    const struct run *r = &x->bench->run;
    const struct communication c = plan_communication(&r->planned.plan, &r->planned.graph, &r->planned.profile);
    char sent[32], predicted[32], measured[32], step[32], exchanges[32];
    if (!has_ranks(x)) return;
    text_printf(out, "Ranks\n  a rank sends %s in a step: %s predicted (links ", size_print((uint64_t)c.sent, sent),
                duration_print(c.seconds, predicted));
    links_print(&r->planned.profile, out);
    text_printf(out, "), %s measured, with the wait for others\n  %-5s %-24s %12s %14s\n",
                duration_print(collectives(x->bench), measured), "rank", "host", "step", "in exchanges");
    for (int i = 0; i < x->ranks->n; i++)
        text_printf(out, "  %-5d %-24.24s %12s %14s\n", i, x->each[i].host, duration_print(x->each[i].seconds, step),
                    x->each[i].exchanges > 0 ? duration_print(x->each[i].exchanges, exchanges) : "-");
}

static void put_ranks(const struct shown *x, struct json_writer *w)
{
    const struct run *r = &x->bench->run;
    const struct communication c = plan_communication(&r->planned.plan, &r->planned.graph, &r->planned.profile);
    if (!has_ranks(x)) return;
    json_begin_map(w, "communication");
    json_put_uint(w, "sent_bytes", (uint64_t)c.sent);
    json_put_number(w, "predicted_seconds", c.seconds);
    json_put_number(w, "measured_seconds", collectives(x->bench));
    json_begin_list(w, "ranks");
    for (int i = 0; i < x->ranks->n; i++) {
        json_begin_map(w, NULL);
        json_put_string(w, "host", x->each[i].host);
        json_put_number(w, "seconds_per_step", x->each[i].seconds);
        json_put_number(w, "exchange_seconds", x->each[i].exchanges);
        json_end(w);
    }
    json_end(w);
    json_end(w);
}

/* --- printing --------------------------------------------------------------------------------- */

static void print_row(struct text *out, const char *name, uint64_t bytes, uint64_t whole)
{
    char size[32];
    text_printf(out, "  %-22s %12s  %5.1f %%\n", name, size_print(bytes, size), 100.0 * (double)bytes / (double)whole);
}

static void print_ops(const struct bench *b, struct text *out)
{
    struct bench_op ops[2 * OP_COUNT];
    uint32_t n = bench_ops(b, ops);
    if (!n) return;
    text_printf(out, "Time by op, in %s\n  %-20s %-5s %7s %10s %10s %9s %8s %8s\n",
                bench_replays(b) ? "one more step, node by node" : "the fastest step", "op", "", "calls", "ms",
                "predicted", "GFLOP/s", "GiB/s", "ceiling");
    for (uint32_t i = 0; i < n && i < OPS_SHOWN; i++) {
        const struct bench_op *x = &ops[i];
        text_printf(out, "  %-20s %-5s %7" PRIu64 " %10.3f %10.3f %9.1f %8.2f %6.0f %%\n", op_table[x->op].name,
                    dtype_name(x->dtype), x->calls, 1e3 * x->seconds, 1e3 * x->predicted, 1e-9 * x->flops / x->seconds,
                    x->bytes / x->seconds / GIB, 100 * x->ideal / x->seconds);
    }
    double rest = 0, predicted = 0;
    for (uint32_t i = OPS_SHOWN; i < n; i++) rest += ops[i].seconds, predicted += ops[i].predicted;
    if (n > OPS_SHOWN) text_printf(out, "  %-34s %10.3f %10.3f\n", "others", 1e3 * rest, 1e3 * predicted);
}

/* "4096 x 4096 x 80": the extents of a class of launches, rounded by a factor of up to 1.2. */
static const char *print_extents(const struct op_class *x, char out[64])
{
    size_t n = 0;
    out[0] = '\0';
    for (int i = 0; i < EXTENTS && x->extent[i]; i++)
        n += (size_t)snprintf(out + n, 64 - n, "%s%.0f", i ? " x " : "", exp2(x->extent[i] / 2.));
    return out;
}

/* On a GPU: the kernels with the largest prediction errors, by the error's seconds per step. */
static void print_errors(const struct bench *b, struct text *out)
{
    struct bench_class *all;
    char extents[64];
    double seconds = 0, predicted = 0;
    uint32_t n = bench_classes(b, &all);
    for (uint32_t i = 0; i < n; i++) seconds += all[i].seconds, predicted += all[i].predicted;
    text_printf(out, "Largest prediction errors, timed node by node\n  %-40s %-24s %7s %10s %10s %10s\n", "kernel",
                "extents, about", "calls", "ms", "predicted", "error");
    for (uint32_t i = 0; i < n && i < CLASSES_SHOWN; i++) {
        const struct bench_class *x = &all[i];
        const char *variant = op_variant_name(x->of.op, x->of.variant);
        char kernel[96];
        snprintf(kernel, sizeof kernel, "%s%s%s", x->of.kernel, *x->form ? ", " : "", x->form);
        text_printf(out, "  %-40.40s %-6s %-17s %7" PRIu64 " %10.3f %10.3f %+10.3f\n", kernel, variant ? variant : "",
                    print_extents(&x->of, extents), x->calls, 1e3 * x->seconds, 1e3 * x->predicted,
                    1e3 * (x->predicted - x->seconds));
    }
    text_printf(out, "  %-73s %10.3f %10.3f %+10.3f\n", "all", 1e3 * seconds, 1e3 * predicted,
                1e3 * (predicted - seconds));
    mem_free(all);
}

static void print_text(const struct shown *s, struct text *out)
{
    const struct bench *b = s->bench;
    const struct plan *p = &b->run.planned.plan;
    struct breakdown x = arena_breakdown(p);
    char a[32], predicted[32], measured[32], median[32];
    uint64_t arena = plan_arena(p);
    double mean = bench_mean(b);
    text_printf(out, "Step of %d sample%s: micro-batch %d x %d, ", b->run.planned.effective_batch,
                b->run.planned.effective_batch == 1 ? "" : "s", p->settings.micro_batch, p->settings.accumulation);
    settings_print(&p->settings, out);
    text_printf(out, ", %d thread%s%s\n", b->run.planned.profile.threads,
                b->run.planned.profile.threads == 1 ? "" : "s", has_ranks(s) ? " of each rank" : "");
    text_printf(out, "  predicted  %s\n  measured   %s mean, %s median of %u\n  measured / predicted  %.3f\n",
                duration_print(p->seconds, predicted), duration_print(mean, measured),
                duration_print(bench_median(b), median), b->steps, mean / p->seconds);
    text_printf(out, "  samples/s  %.4g%s\n", b->run.planned.effective_batch / mean,
                has_ranks(s) ? " of all ranks together" : "");
    print_ranks(s, out);
    text_printf(out, "Memory%s\n", has_ranks(s) ? " of each rank" : "");
    print_row(out, "weights", x.weights, arena);
    print_row(out, "gradients", x.gradients, arena);
    print_row(out, "optimizer", x.optimizer, arena);
    print_row(out, "activations and rest", x.rest, arena);
    text_printf(out, "  %-22s %12s  (%" PRIu64 " bytes)\n", "arena", size_print(arena, a), arena);
    if (p->placement.arena[SPACE_HOST])
        text_printf(out, "  %-22s %12s\n", plan_host_name(p), size_print(p->placement.arena[SPACE_HOST], a));
    if (b->device_total) text_printf(out, "  %-22s %12s\n", "GPU memory used", size_print(b->device_used, a));
    if (b->run.device.outside_bytes)
        text_printf(out, "  %-22s %12s\n", "NCCL's own", size_print(b->run.device.outside_bytes, a));
    text_printf(out, "  %-22s %12s\n", "peak resident", size_print(bench_peak_resident(), a));
    print_ops(b, out);
    if (bench_replays(b)) print_errors(b, out);
}

static void put_ops(const struct bench *b, struct json_writer *w)
{
    struct bench_op ops[2 * OP_COUNT];
    uint32_t n = bench_ops(b, ops);
    json_begin_list(w, "ops");
    for (uint32_t i = 0; i < n; i++) {
        const struct bench_op *x = &ops[i];
        json_begin_map(w, NULL);
        json_put_string(w, "op", op_table[x->op].name);
        json_put_string(w, "dtype", dtype_name(x->dtype));
        json_put_uint(w, "calls", x->calls);
        json_put_number(w, "seconds", x->seconds);
        json_put_number(w, "predicted_seconds", x->predicted);
        json_put_number(w, "gflop_per_second", 1e-9 * x->flops / x->seconds);
        json_put_number(w, "gb_per_second", 1e-9 * x->bytes / x->seconds);
        json_put_number(w, "share_of_ceiling", x->ideal / x->seconds);
        json_end(w);
    }
    json_end(w);
}

static void put_classes(const struct bench *b, struct json_writer *w)
{
    struct bench_class *all;
    uint32_t n = bench_classes(b, &all);
    json_begin_list(w, "classes");
    for (uint32_t i = 0; i < n; i++) {
        char extents[64];
        json_begin_map(w, NULL);
        json_put_string(w, "kernel", all[i].of.kernel);
        json_put_string(w, "form", all[i].form);
        json_put_string(w, "extents", print_extents(&all[i].of, extents));
        json_put_uint(w, "calls", all[i].calls);
        json_put_number(w, "seconds", all[i].seconds);
        json_put_number(w, "predicted_seconds", all[i].predicted);
        json_end(w);
    }
    json_end(w);
    mem_free(all);
}

/* "4x4096x1280" */
static void put_shape(struct json_writer *w, const char *key, const struct tensor *t)
{
    char shape[160] = "";
    int at = 0;
    for (int i = 0; t && i < t->rank; i++)
        at += snprintf(shape + at, sizeof shape - (size_t)at, "%s%" PRId64, i ? "x" : "", t->dim[i]);
    json_put_string(w, key, shape);
}

static void put_kernels(const struct bench *b, struct json_writer *w)
{
    struct bench_kernel lines[KERNELS_LISTED];
    uint32_t n = bench_kernels(b, lines, KERNELS_LISTED);
    json_begin_list(w, "kernels");
    for (uint32_t i = 0; i < n; i++) {
        const struct bench_kernel *x = &lines[i];
        json_begin_map(w, NULL);
        json_put_string(w, "op", op_table[x->op].name);
        json_put_string(w, "kernel", x->kernel ? x->kernel->name : "");
        json_put_string(w, "form", x->kernel ? kernel_form_name(x->kernel, x->form) : "");
        put_shape(w, "in", x->in);
        put_shape(w, "out", x->out);
        json_put_string(w, "dtype", x->in ? dtype_name(x->in->dtype) : "");
        json_put_uint(w, "calls", x->calls);
        json_put_number(w, "seconds", x->seconds);
        json_put_number(w, "ideal_seconds", x->ideal);
        json_put_number(w, "flops", x->flops);
        json_put_number(w, "bytes", x->bytes);
        json_end(w);
    }
    json_end(w);
}

static void print_json(const struct shown *s, struct text *out)
{
    const struct bench *b = s->bench;
    const struct plan *p = &b->run.planned.plan;
    struct breakdown x = arena_breakdown(p);
    struct json_writer w = {.out = out, .indent = 2};
    double mean = bench_mean(b);
    json_begin_map(&w, NULL);
    json_put_uint(&w, "steps", b->steps);
    json_put_number(&w, "predicted_step_seconds", p->seconds);
    json_put_number(&w, "measured_mean_seconds", mean);
    json_put_number(&w, "measured_median_seconds", bench_median(b));
    json_put_number(&w, "ratio", mean / p->seconds);
    json_put_number(&w, "samples_per_second", b->run.planned.effective_batch / mean);
    plan_put_settings(&w, &p->settings, b->run.planned.effective_batch);
    json_put_int(&w, "threads", b->run.planned.profile.threads);
    json_put_uint(&w, "arena_bytes", plan_arena(p));
    json_put_uint(&w, "host_arena_bytes", p->placement.arena[SPACE_HOST]);
    json_begin_map(&w, "breakdown");
    json_put_uint(&w, "weights", x.weights);
    json_put_uint(&w, "gradients", x.gradients);
    json_put_uint(&w, "optimizer", x.optimizer);
    json_put_uint(&w, "activations_and_rest", x.rest);
    json_end(&w);
    json_put_uint(&w, "peak_resident_bytes", bench_peak_resident());
    if (b->device_total) {
        json_put_uint(&w, "device_used_bytes", b->device_used);
        json_put_uint(&w, "outside_bytes", b->run.device.outside_bytes);
        json_put_uint(&w, "device_total_bytes", b->device_total);
    }
    put_ranks(s, &w);
    put_ops(b, &w);
    if (bench_replays(b)) put_classes(b, &w);
    put_kernels(b, &w);
    json_end(&w);
    text_printf(out, "\n");
}

/* --- the command ------------------------------------------------------------------------------ */

static int measure(const struct options *o, const struct config *c, struct shown *x, struct error *e)
{
    struct ranks *r = x->ranks;
    int64_t steps = 5;
    int rc = options_count("--steps", o->steps, 1, BENCH_STEPS_MOST, &steps, e);
    if (!rc) rc = config_check(c, CONFIG_NEEDS_MODEL, e);
    if ((rc = agree_on(r, rc, e))) return rc;
    agree_free(r, offload_folder(c->train_out));
    rc = bench_open(x->bench, c,
                    &(struct run_options){.plan = o->plan, .train = true, .describe = feed_describe, .ranks = r}, e);
    if ((rc = agree_on(r, rc, e))) return rc;
    const double before = r ? r->moving : 0;
    rc = bench_run_shown(x->bench, steps, e);
    if (!rc && r) rc = gather_times(x, (r->moving - before) / (double)steps, e);
    return rc ? rc : bench_time_nodes(x->bench, e);
}

static int bench_model(const struct options *o, struct ranks *ranks, struct error *e)
{
    struct config c;
    struct bench b = {0};
    struct text out = {0};
    struct shown x = {&b, ranks, NULL};
    int rc = ranks_configure(o, ranks, &c, e);
    if (rc) return rc;
    if (ranks) x.each = mem_alloc((size_t)ranks->n * sizeof *x.each);
    rc = measure(o, &c, &x, e);
    if (!rc && (!ranks || !ranks->rank)) {
        if (o->json) print_json(&x, &out);
        else print_text(&x, &out);
        fputs(out.at, stdout);
        text_free(&out);
    }
    rc = agree_on(ranks, rc, e);
    bench_close(&b);
    mem_free(x.each);
    config_free(&c);
    return rc;
}

static int bench(int argc, char **argv, struct error *e)
{
    struct options o;
    int rc = options_parse(&o,
                           OPT_RUN | OPT_MEMORY | OPT_PLAN | OPT_JSON | OPT_STEPS | OPT_CALIBRATE | OPT_OUTPUT |
                               OPT_THREADS | OPT_RANKS,
                           argc, argv, e);
    if (rc) return rc;
    if (o.help) print_help(&command_bench);
    else if (!o.calibrate && (o.output || o.threads))
        rc = error_set(e, PL_USAGE,
                       "-o and --threads need --calibrate; `--set device.threads=N` sets the threads of a step");
    else rc = ranks_run(&command_bench, &o, argc, argv, o.calibrate ? bench_calibrate : bench_model, e);
    options_free(&o);
    return rc;
}

const struct command command_bench =
    {"bench",
     "bench RUN.yaml [--config-from FILE]... [--adapter DIR] [--steps N] [--memory SIZE] [--plan PLAN.json] [--ranks "
     "N] [--set key=value]... [--json]\n"
     "       plimsoll bench --calibrate [--set device=cuda] [-o PROFILE.json] [--threads N] [--ranks N]",
     "Runs training steps on synthetic inputs and prints the predicted and the measured time, the memory, and the time "
     "of each op.\n"
     "Needs no data and writes no files, except the offload file of a CPU's plan that offloads; it is gone when bench "
     "ends.\n" CONFIG_FROM_HELP "  --steps N        steps to measure (5)\n"
     "  --adapter DIR    a LoRA adapter, as PEFT or a run with an adapter saves it, instead of the one in RUN.yaml: "
     "adapter.path\n"
     "  --calibrate      measures the peak rates and the ops of this machine, or of its GPU with --set device=cuda, "
     "and stores the\n"
     "                   profile from which plans predict times; takes about a minute and 2 GiB of memory\n"
     "  -o PROFILE.json  with --calibrate: the file for the profile, instead of the default path\n"
     "  --threads N      with --calibrate: CPU threads to measure with\n"
     "  --ranks N        a step of N processes on this machine, as `mpirun -np N plimsoll bench ...`. With "
     "--calibrate: measures the links\n"
     "                   between ranks, within a host and between hosts, and adds them to the profile",
     bench, .ranks = true};
