/*
 * profile.c: `plimsoll profile`: the time and memory of a step by op and tensor, as tables and for
 * common viewers. Runs steps on synthetic inputs, as `bench` does.
 *
 *     DIR/profile.html      tables, the live bytes over time, a plot of the arena
 *     DIR/trace.json        Chrome's trace events with a memory track
 *     DIR/snapshot.pickle   for PyTorch's memory_viz page
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "io/file.h"
#include "io/json.h"
#include "report/arena.h"
#include "report/curve.h"
#include "report/page.h"
#include "report/trace.h"
#include "calibrate/bench.h"
#include "feed/feed.h"

enum { ROWS = 20, LAUNCHES_MOST = 2000000 };
static const double GIB = 1 << 30;

/* The number of launches: every iteration of every loop, over all steps. */
static uint32_t count_launches(const struct run *r, int64_t steps)
{
    uint64_t n = 0;
    FOR_STEP_PROGRAMS(p)
        for (uint32_t k = 0; k < r->graph.order[p].nodes.n; k++) {
            uint64_t times = 1;
            for (id l = node_at(&r->graph, r->graph.order[p].nodes.at[k])->loop; l; l = r->graph.loops.at[l].parent) times *= r->graph.loops.at[l].trip;
            n += times;
        }
    return (uint32_t)min_u64(n * (uint64_t)steps, LAUNCHES_MOST);
}

/* --- tables ------------------------------------------------------------------------ */

struct tensor_row {
    const struct storage *storage;
    const struct node *producer;
};

static int by_bytes(const void *a, const void *b)
{
    const struct tensor_row *x = a, *y = b;
    return x->storage->bytes > y->storage->bytes ? -1 : x->storage->bytes < y->storage->bytes;
}

/* Finds the largest transient tensors that are alive at the peak; returns the number of all such
 * tensors. */
static uint32_t peak_tensors(const struct run *r, struct tensor_row rows[ROWS])
{
    const struct peak *peak = &r->plan.peak;
    const struct life *life = r->plan.placement.life[peak->program];
    struct tensor_row *all = mem_alloc(r->graph.storages.n * sizeof *all);
    uint32_t n = 0;
    for (id s = 1; s < r->graph.storages.n; s++) {
        const struct storage *x = &r->graph.storages.at[s];
        if (!life[s].used || life[s].start > peak->instant || life[s].end < peak->instant || x->space != SPACE_DEVICE || storage_is_persistent(x)) continue;
        all[n++] = (struct tensor_row){x, node_at(&r->graph, r->graph.order[peak->program].nodes.at[life[s].start])};
    }
    qsort(all, n, sizeof *all, by_bytes);
    memcpy(rows, all, min_u64(n, ROWS) * sizeof *rows);
    mem_free(all);
    return n;
}

/* The module that a tensor's producer belongs to. */
static const char *module_of(const struct bench *b, const struct tensor_row *r)
{
    return r->producer->scope ? graph_name(&b->run.graph, b->run.graph.scopes.at[r->producer->scope].name) : "the step";
}

/* The measured ops with the time of all of them, and the largest tensors at the peak. */
struct tables {
    struct bench_op ops[2 * OP_COUNT];
    struct tensor_row rows[ROWS];
    uint32_t n, live;
    double seconds;
};

static void fill_tables(struct tables *t, const struct bench *b)
{
    *t = (struct tables){0};
    t->n = bench_ops(b, t->ops);
    t->live = peak_tensors(&b->run, t->rows);
    for (uint32_t i = 0; i < t->n; i++) t->seconds += t->ops[i].seconds;
}

static void print_tables(const struct bench *b, const struct tables *t, struct text *out)
{
    char size[32];
    text_printf(out, "%-22s %-5s %8s %11s %7s %12s %9s %8s\n", "op", "", "calls", "ms", "share", "bytes moved", "GFLOP/s", "GiB/s");
    for (uint32_t i = 0; i < t->n && i < ROWS; i++) {
        const struct bench_op *x = &t->ops[i];
        text_printf(out, "%-22s %-5s %8" PRIu64 " %11.3f %5.1f %% %12s %9.1f %8.2f\n", op_table[x->op].name, dtype_name(x->dtype), x->calls, 1e3 * x->seconds,
                    100 * x->seconds / t->seconds, size_print((uint64_t)x->bytes, size), 1e-9 * x->flops / x->seconds, x->bytes / x->seconds / GIB);
    }
    text_printf(out, "\nlargest of the %u transient tensors alive at the peak (program %s)\n", t->live, program_name(b->run.plan.peak.program));
    for (uint32_t i = 0; i < t->live && i < ROWS; i++)
        text_printf(out, "%12s  %s, from %s of %s\n", size_print(t->rows[i].storage->bytes, size), graph_name(&b->run.graph, t->rows[i].storage->name),
                    op_table[t->rows[i].producer->op].name, module_of(b, &t->rows[i]));
}

/* --- the page ------------------------------------------------------------------------- */

static void put_headline(const struct bench *b, const struct config *c, struct text *out)
{
    const struct plan *p = &b->run.plan;
    const char *path = c->model_path ? c->model_path : "", *slash = strrchr(path, '/');
    const double seconds = bench_median(b);
    char value[64], remark[128], size[32], time[32];
    page_facts_begin(out);
    snprintf(remark, sizeof remark, "%s, micro-batch %d x %d", technique_print(TECHNIQUE_precision, &p->settings, (char[SETTING_ROOM]){0}), p->settings.micro_batch, p->settings.accumulation);
    page_fact(out, "Model", c->model_preset ? c->model_preset : slash && slash[1] ? slash + 1 : path, remark);
    snprintf(remark, sizeof remark, "median of %u; %s predicted", b->steps, duration_print(p->seconds, time));
    page_fact(out, "Step time", duration_print(seconds, value), remark);
    snprintf(value, sizeof value, "%.3g samples/s", b->run.effective_batch / seconds);
    page_fact(out, "Speed", value, bench_replays(b) ? "timed node by node, which is slower than training" : "on synthetic inputs");
    if (b->run.budget) snprintf(remark, sizeof remark, "of a budget of %s", size_print(b->run.budget, size));
    else snprintf(remark, sizeof remark, "no budget was set");
    page_fact(out, "Peak memory", size_print(plan_arena(p), value), remark);
    page_facts_end(out);
}

static void put_breakdown(struct text *out, const struct plan *p)
{
    struct page_part parts[KIND_COUNT + 1];
    uint32_t n = 0;
    for (int k = KIND_PARAM; k < KIND_COUNT; k++)
        if (p->peak.by_kind[k]) parts[n++] = (struct page_part){kind_name(k), p->peak.by_kind[k]};
    if (plan_arena(p) > p->peak.bytes) parts[n++] = (struct page_part){"padding", plan_arena(p) - p->peak.bytes};
    text_printf(out, "<h2>Memory at the peak</h2>\n");
    page_memory(out, parts, n, plan_arena(p));
}

static void put_tables(const struct bench *b, const struct tables *t, struct text *out)
{
    char size[32];
    text_printf(out, "<h2>Time by op</h2>\n<div class='wide'><table><tr><th>op</th><th>dtype</th><th>calls</th><th>ms</th><th>share</th><th>bytes moved</th><th>GFLOP/s</th>"
                     "<th>GiB/s</th></tr>\n");
    for (uint32_t i = 0; i < t->n && i < ROWS; i++) {
        const struct bench_op *x = &t->ops[i];
        text_printf(out, "<tr><td>%s</td><td>%s</td><td>%" PRIu64 "</td><td>%.3f</td><td>%.1f %%</td><td>%s</td><td>%.1f</td><td>%.2f</td></tr>\n", op_table[x->op].name,
                    dtype_name(x->dtype), x->calls, 1e3 * x->seconds, 100 * x->seconds / t->seconds, size_print((uint64_t)x->bytes, size), 1e-9 * x->flops / x->seconds,
                    x->bytes / x->seconds / GIB);
    }
    text_printf(out, "</table></div>\n<h2>Largest tensors at the peak</h2>\n<p>%u transient tensors are alive at the peak, in program %s.</p>\n<div class='wide'><table "
                     "class='names'><tr><th>size</th><th>tensor</th><th>produced by</th></tr>\n", t->live, program_name(b->run.plan.peak.program));
    for (uint32_t i = 0; i < t->live && i < ROWS; i++) {
        text_printf(out, "<tr><td>%s</td><td>", size_print(t->rows[i].storage->bytes, size));
        page_escaped(out, graph_name(&b->run.graph, t->rows[i].storage->name));
        text_printf(out, "</td><td>%s of ", op_table[t->rows[i].producer->op].name);
        page_escaped(out, module_of(b, &t->rows[i]));
        text_printf(out, "</td></tr>\n");
    }
    text_printf(out, "</table></div>\n");
}

static void make_page(const struct bench *b, const struct lives *l, const struct tables *t, const struct config *c, const char *title, struct text *out)
{
    const bool long_step = bench_median(b) >= 10;
    struct series steps = {.name = "time"};
    const struct series *drawn = &steps;
    for (uint32_t i = 0; i < b->steps; i++) {
        vec_push(&steps.x, (double)i + 1);
        vec_push(&steps.y, (long_step ? 1 : 1e3) * b->seconds[i]);
    }
    page_begin(out, "Plimsoll: profile of a training step", title);
    put_headline(b, c, out);
    put_breakdown(out, &b->run.plan);
    arena_draw(&b->run.plan, &b->run.graph, l, b->fastest.seconds, out);
    text_printf(out, "<div class='row'>\n");
    arena_curve(&b->run.graph, l, b->fastest.seconds, out);
    curve_draw(out, long_step ? "seconds of a step" : "milliseconds of a step", "step", &drawn, 1);
    text_printf(out, "</div>\n");
    put_tables(b, t, out);
    page_end(out);
    vec_free(&steps.x);
    vec_free(&steps.y);
}

static int put_file(const char *dir, const char *name, const struct text *text, struct error *e)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return file_write_atomic(path, text->at, text->n, e);
}

static int write_files(const struct bench *b, const struct tables *t, const struct config *c, const char *dir, const char *title, struct error *e)
{
    struct lives l;
    struct text page = {0}, trace = {0}, snapshot = {0};
    lives_collect(&l, &b->run.plan, &b->run.graph);
    make_page(b, &l, t, c, title, &page);
    trace_write(&b->run.plan, &b->run.graph, &l, &b->now, &trace);
    snapshot_write(&b->run.plan, &b->run.graph, &l, &snapshot);
    int rc = dir_make(dir, e);
    if (!rc) rc = put_file(dir, "profile.html", &page, e);
    if (!rc) rc = put_file(dir, "trace.json", &trace, e);
    if (!rc) rc = put_file(dir, "snapshot.pickle", &snapshot, e);
    text_free(&page);
    text_free(&trace);
    text_free(&snapshot);
    lives_free(&l);
    return rc;
}

/* --- the command -------------------------------------------------------------------------- */

static void put_json(const struct bench *b, const char *dir, struct text *out)
{
    struct bench_op ops[2 * OP_COUNT];
    uint32_t n = bench_ops(b, ops);
    struct json_writer w = {.out = out, .indent = 2};
    json_begin_map(&w, NULL);
    json_put_uint(&w, "steps", b->steps);
    json_put_number(&w, "measured_mean_seconds", bench_mean(b));
    json_put_number(&w, "measured_median_seconds", bench_median(b));
    json_put_number(&w, "predicted_step_seconds", b->run.plan.seconds);
    json_put_uint(&w, "arena_bytes", plan_arena(&b->run.plan));
    json_put_uint(&w, "launches", b->now.n_events);
    json_put_string(&w, "folder", dir);
    json_begin_list(&w, "ops");
    for (uint32_t i = 0; i < n; i++) {
        json_begin_map(&w, NULL);
        json_put_string(&w, "op", op_table[ops[i].op].name);
        json_put_string(&w, "dtype", dtype_name(ops[i].dtype));
        json_put_uint(&w, "calls", ops[i].calls);
        json_put_number(&w, "seconds", ops[i].seconds);
        json_put_number(&w, "bytes", ops[i].bytes);
        json_put_number(&w, "flops", ops[i].flops);
        json_end(&w);
    }
    json_end(&w);
    json_end(&w);
    text_printf(out, "\n");
}

/* --- kernels ------------------------------------------------------------------------ */

/* A kernel with the bytes that a thread moves at a time, and its nodes in the programs of a step. */
struct kernel_row {
    const struct kernel *kernel;
    int access;
    uint32_t nodes;
};
typedef VEC(struct kernel_row) kernel_rows;

static void count_kernel(kernel_rows *rows, const struct binding *b)
{
    for (uint32_t i = 0; i < rows->n; i++)
        if (rows->at[i].kernel == b->kernel && rows->at[i].access == b->access) {
            rows->at[i].nodes++;
            return;
        }
    vec_push(rows, ((struct kernel_row){b->kernel, b->access, 1}));
}

/* The kernels as the plan names them, and what the device chose when it recorded the programs. */
static void print_kernels(const struct run *r, struct text *out)
{
    kernel_rows rows = {0};
    struct text chosen = {0};
    FOR_STEP_PROGRAMS(p)
        for (uint32_t k = 0; k < r->graph.order[p].nodes.n; k++) {
            const struct binding *b = &r->plan.placement.binding[r->graph.order[p].nodes.at[k]];
            if (b->kernel) count_kernel(&rows, b);
        }
    text_printf(out, "\nkernels of the plan: nodes, name, bytes that a thread moves at a time\n");
    for (uint32_t i = 0; i < rows.n; i++) {
        text_printf(out, "%6u  %s", rows.at[i].nodes, rows.at[i].kernel->name);
        if (rows.at[i].access) text_printf(out, ", %d B", rows.at[i].access);
        text_printf(out, "\n");
    }
    if (r->device.ops->explain) r->device.ops->explain(&r->tape, &chosen);
    if (chosen.n) text_printf(out, "\nalgorithms of cuBLASLt, chosen when the programs were recorded: nodes, kernel, product\n%s", chosen.at);
    text_free(&chosen);
    vec_free(&rows);
}

static int profile_run(const struct options *o, const struct config *c, int64_t steps, struct error *e)
{
    struct bench b = {0};
    struct text tables = {0}, out = {0};
    const char *dir = o->output ? o->output : "profile";
    int rc = bench_open(&b, c, &(struct run_options){.plan = o->plan, .train = true, .describe = feed_describe}, e);
    if (!rc) {
        bench_by_node(&b);
        timing_record_events(&b.now, count_launches(&b.run, steps));
        rc = bench_run_shown(&b, steps, e);
    }
    if (!rc) {
        struct tables t;
        fill_tables(&t, &b);
        print_tables(&b, &t, &tables);
        if (o->explain) print_kernels(&b.run, &tables);
        rc = write_files(&b, &t, c, dir, o->run, e);
    }
    if (!rc) {
        if (o->json) put_json(&b, dir, &out);
        else text_printf(&out, "%s\n%s/profile.html\n%s/trace.json\n%s/snapshot.pickle\n", tables.at, dir, dir, dir);
        fputs(out.at, stdout);
    }
    text_free(&tables);
    text_free(&out);
    bench_close(&b);
    return rc;
}

static int profile(int argc, char **argv, struct error *e)
{
    struct options o;
    struct config c;
    int64_t steps = 5;
    int rc = options_parse(&o, OPT_RUN | OPT_MEMORY | OPT_PLAN | OPT_JSON | OPT_EXPLAIN | OPT_STEPS | OPT_OUTPUT, argc, argv, e);
    if (rc) return rc;
    if (o.help) {
        print_help(&command_profile);
    } else if (!(rc = options_count("--steps", o.steps, 1, 1000, &steps, e)) && !(rc = options_config(&o, &c, e))) {
        rc = config_check(&c, CONFIG_NEEDS_MODEL, e);
        if (!rc) rc = profile_run(&o, &c, steps, e);
        config_free(&c);
    }
    options_free(&o);
    return rc;
}

const struct command command_profile = {
    "profile", "profile RUN.yaml [--config-from FILE]... [--adapter DIR] [--steps N] [--memory SIZE] [--plan PLAN.json] [--set key=value]... [--json] [--explain] [-o DIR]",
    "Runs training steps on synthetic inputs and shows the time and memory of each op and tensor: tables on standard output;\n"
    "DIR/profile.html with a plot of the arena over time; DIR/trace.json for Perfetto or chrome://tracing; DIR/snapshot.pickle for\n"
    "PyTorch's memory_viz page.\n"
    CONFIG_FROM_HELP
    "  --steps N        steps to measure (5)\n"
    "  --explain        also lists the kernels of the plan and, on a GPU, the algorithms of cuBLASLt that were chosen for its products\n"
    "  --adapter DIR    a LoRA adapter, as PEFT or a run with an adapter saves it, instead of the one in RUN.yaml: adapter.path\n"
    "  -o DIR           the output folder (profile)", profile};
