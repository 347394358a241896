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

#include "cli/ranks.h"
#include "graph/ops.h"
#include "io/file.h"
#include "io/json.h"
#include "report/arena.h"
#include "report/curve.h"
#include "report/page.h"
#include "report/trace.h"
#include "calibrate/bench.h"
#include "planning/planned.h"
#include "feed/feed.h"

enum { ROWS = 20, LAUNCHES_MOST = 2000000 };
static const double GIB = 1 << 30;

/* The number of launches: every iteration of every loop, over all steps. */
static uint32_t count_launches(const struct run *r, int64_t steps)
{
    uint64_t n = 0;
    FOR_STEP_PROGRAMS(p)
        for (uint32_t k = 0; k < r->planned.graph.order[p].nodes.n; k++) {
            uint64_t times = 1;
            for (id l = node_at(&r->planned.graph, r->planned.graph.order[p].nodes.at[k])->loop; l;
                 l = r->planned.graph.loops.at[l].parent)
                times *= r->planned.graph.loops.at[l].trip;
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
    const struct peak *peak = &r->planned.plan.peak;
    const struct life *life = r->planned.plan.placement.life[peak->program];
    struct tensor_row *all = mem_alloc(r->planned.graph.storages.n * sizeof *all);
    uint32_t n = 0;
    for (id s = 1; s < r->planned.graph.storages.n; s++) {
        const struct storage *x = &r->planned.graph.storages.at[s];
        if (!life[s].used || life[s].start > peak->instant || life[s].end < peak->instant || x->space != SPACE_DEVICE ||
            storage_is_persistent(x))
            continue;
        all[n++] = (struct tensor_row){x, node_at(&r->planned.graph,
                                                  r->planned.graph.order[peak->program].nodes.at[life[s].start])};
    }
    qsort(all, n, sizeof *all, by_bytes);
    memcpy(rows, all, min_u64(n, ROWS) * sizeof *rows);
    mem_free(all);
    return n;
}

/* The module that a tensor's producer belongs to. */
static const char *module_of(const struct bench *b, const struct tensor_row *r)
{
    return r->producer->scope
               ? graph_name(&b->run.planned.graph, b->run.planned.graph.scopes.at[r->producer->scope].name)
               : "the step";
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
    text_printf(out, "%-22s %-5s %8s %11s %7s %12s %9s %8s\n", "op", "", "calls", "ms", "share", "bytes moved",
                "GFLOP/s", "GiB/s");
    for (uint32_t i = 0; i < t->n && i < ROWS; i++) {
        const struct bench_op *x = &t->ops[i];
        text_printf(out, "%-22s %-5s %8" PRIu64 " %11.3f %5.1f %% %12s %9.1f %8.2f\n", op_table[x->op].name,
                    dtype_name(x->dtype), x->calls, 1e3 * x->seconds, 100 * x->seconds / t->seconds,
                    size_print((uint64_t)x->bytes, size), 1e-9 * x->flops / x->seconds, x->bytes / x->seconds / GIB);
    }
    text_printf(out, "\nlargest of the %u transient tensors alive at the peak (program %s)\n", t->live,
                program_name(b->run.planned.plan.peak.program));
    for (uint32_t i = 0; i < t->live && i < ROWS; i++)
        text_printf(out, "%12s  %s, from %s of %s\n", size_print(t->rows[i].storage->bytes, size),
                    graph_name(&b->run.planned.graph, t->rows[i].storage->name), op_table[t->rows[i].producer->op].name,
                    module_of(b, &t->rows[i]));
}

/* --- the page ------------------------------------------------------------------------- */

static void put_headline(const struct bench *b, const struct config *c, struct text *out)
{
    const struct plan *p = &b->run.planned.plan;
    const char *path = c->model_path ? c->model_path : "", *slash = strrchr(path, '/');
    const double seconds = bench_median(b);
    char value[64], remark[128], size[32], time[32];
    page_facts_begin(out);
    snprintf(remark, sizeof remark, "%s, micro-batch %d x %d",
             technique_print(TECHNIQUE_precision, &p->settings, (char[SETTING_ROOM]){0}), p->settings.micro_batch,
             p->settings.accumulation);
    page_fact(out, "Model", c->model_preset ? c->model_preset : slash && slash[1] ? slash + 1 : path, remark);
    snprintf(remark, sizeof remark, "median of %u; %s predicted", b->steps, duration_print(p->seconds, time));
    page_fact(out, "Step time", duration_print(seconds, value), remark);
    snprintf(value, sizeof value, "%.3g samples/s", b->run.planned.effective_batch / seconds);
    page_fact(out, "Speed", value,
              bench_replays(b) ? "timed node by node, which is slower than training" : "on synthetic inputs");
    if (b->run.planned.budget)
        snprintf(remark, sizeof remark, "of a budget of %s", size_print(b->run.planned.budget, size));
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
    text_printf(out, "<h2>Time by op</h2>\n<div "
                     "class='wide'><table><tr><th>op</th><th>dtype</th><th>calls</th><th>ms</th><th>share</"
                     "th><th>bytes moved</th><th>GFLOP/s</th>"
                     "<th>GiB/s</th></tr>\n");
    for (uint32_t i = 0; i < t->n && i < ROWS; i++) {
        const struct bench_op *x = &t->ops[i];
        text_printf(out,
                    "<tr><td>%s</td><td>%s</td><td>%" PRIu64
                    "</td><td>%.3f</td><td>%.1f %%</td><td>%s</td><td>%.1f</td><td>%.2f</td></tr>\n",
                    op_table[x->op].name, dtype_name(x->dtype), x->calls, 1e3 * x->seconds,
                    100 * x->seconds / t->seconds, size_print((uint64_t)x->bytes, size), 1e-9 * x->flops / x->seconds,
                    x->bytes / x->seconds / GIB);
    }
    text_printf(out,
                "</table></div>\n<h2>Largest tensors at the peak</h2>\n<p>%u transient tensors are alive at the peak, "
                "in program %s.</p>\n<div class='wide'><table "
                "class='names'><tr><th>size</th><th>tensor</th><th>produced by</th></tr>\n",
                t->live, program_name(b->run.planned.plan.peak.program));
    for (uint32_t i = 0; i < t->live && i < ROWS; i++) {
        text_printf(out, "<tr><td>%s</td><td>", size_print(t->rows[i].storage->bytes, size));
        page_escaped(out, graph_name(&b->run.planned.graph, t->rows[i].storage->name));
        text_printf(out, "</td><td>%s of ", op_table[t->rows[i].producer->op].name);
        page_escaped(out, module_of(b, &t->rows[i]));
        text_printf(out, "</td></tr>\n");
    }
    text_printf(out, "</table></div>\n");
}

static void make_page(const struct bench *b, const struct lives *l, const struct tables *t, const struct config *c,
                      const char *title, struct text *out)
{
    const bool long_step = bench_median(b) >= 10;
    char name[256];
    struct series steps = {.name = "time"};
    const struct series *drawn = &steps;
    for (uint32_t i = 0; i < b->steps; i++) {
        vec_push(&steps.x, (double)i + 1);
        vec_push(&steps.y, (long_step ? 1 : 1e3) * b->seconds[i]);
    }
    page_begin(out, "Plimsoll: profile of a training step", title ? page_name(title, 1, name) : "without a run file");
    put_headline(b, c, out);
    put_breakdown(out, &b->run.planned.plan);
    arena_draw(&b->run.planned.plan, &b->run.planned.graph, l, b->fastest.seconds, out);
    text_printf(out, "<div class='row'>\n");
    arena_curve(&b->run.planned.graph, l, b->fastest.seconds, out);
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

static int write_files(const struct bench *b, const struct tables *t, const struct config *c, const struct text *events,
                       int ranks, const char *dir, const char *title, struct error *e)
{
    struct lives l;
    struct text page = {0}, trace = {0}, snapshot = {0};
    lives_collect(&l, &b->run.planned.plan, &b->run.planned.graph);
    make_page(b, &l, t, c, title, &page);
    trace_write(&b->run.planned.plan, events, ranks, &trace);
    snapshot_write(&b->run.planned.plan, &b->run.planned.graph, &l, &snapshot);
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

/* --- ranks ------------------------------------------------------------------------------------ */

/* The events of this rank, for the trace. All ranks count from the same moment, when they last
 * met. */
static void list_events(const struct bench *b, const struct ranks *r, double met, struct text *out)
{
    struct lives l;
    char name[RANK_HOST + 32] = "plimsoll";
    const double first = b->now.n_events ? b->now.events[0].from : 0;
    if (r) snprintf(name, sizeof name, "rank %d on %s", r->rank, r->host);
    lives_collect(&l, &b->run.planned.plan, &b->run.planned.graph);
    trace_events(&b->run.planned.graph, &l, &b->now,
                 &(struct trace_process){(r ? r->rank : 0) + 1, name, r ? met : first}, out);
    lives_free(&l);
}

/* Rank 0 gets the events of all ranks; all[i] are those of rank i. */
static int gather_events(struct ranks *r, struct text *all, struct error *e)
{
    uint64_t *bytes = mem_alloc((size_t)r->n * sizeof *bytes);
    struct move *moves = mem_alloc((size_t)r->n * sizeof *moves);
    int n = 0, rc = r->gather(r, &(uint64_t){all[r->rank].n}, bytes, sizeof *bytes, e);
    if (!rc && r->rank) moves[n++] = (struct move){0, all[r->rank].at, bytes[r->rank], true};
    for (int i = 1; i < r->n && !rc && !r->rank; i++) {
        all[i] = (struct text){.at = mem_alloc(bytes[i] + 1), .n = bytes[i]};
        moves[n++] = (struct move){i, all[i].at, bytes[i], false};
    }
    r->where = "the trace";
    if (!rc && n) rc = r->exchange(r, moves, n, e);
    r->where = NULL;
    mem_free(bytes);
    mem_free(moves);
    return rc;
}

/* Seconds of work of each rank in a step, without exchanges and the wait for others; of rank 0
 * alone if it is alone. */
struct rank_work {
    char host[RANK_HOST];
    double seconds, exchanges;
};

static void print_work(const struct rank_work *each, int n, struct text *out)
{
    char step[32], own[32];
    int slowest = 0;
    if (n < 2) return;
    text_printf(out, "\n%-5s %-24s %12s %12s\n", "rank", "host", "step", "own work");
    for (int i = 0; i < n; i++) {
        text_printf(out, "%-5d %-24.24s %12s %12s\n", i, each[i].host, duration_print(each[i].seconds, step),
                    duration_print(each[i].seconds - each[i].exchanges, own));
        if (each[i].seconds - each[i].exchanges > each[slowest].seconds - each[slowest].exchanges) slowest = i;
    }
    text_printf(out, "rank %d on %s works longest\n", slowest, each[slowest].host);
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
    json_put_number(&w, "predicted_step_seconds", b->run.planned.plan.seconds);
    json_put_uint(&w, "arena_bytes", plan_arena(&b->run.planned.plan));
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

/* A kernel with its form and the bytes that a thread moves at a time, and its nodes in the programs
 * of a step. */
struct kernel_row {
    const struct kernel *kernel;
    int form, access;
    uint32_t nodes;
};
typedef VEC(struct kernel_row) kernel_rows;

static void count_kernel(kernel_rows *rows, const struct binding *b)
{
    for (uint32_t i = 0; i < rows->n; i++)
        if (rows->at[i].kernel == b->kernel && rows->at[i].form == b->form && rows->at[i].access == b->access) {
            rows->at[i].nodes++;
            return;
        }
    vec_push(rows, ((struct kernel_row){b->kernel, b->form, b->access, 1}));
}

/* The kernels as the plan names them, and what the device chose when it recorded the programs. */
static void print_kernels(const struct run *r, struct text *out)
{
    kernel_rows rows = {0};
    struct text chosen = {0};
    FOR_STEP_PROGRAMS(p)
        for (uint32_t k = 0; k < r->planned.graph.order[p].nodes.n; k++) {
            const struct binding *b = &r->planned.plan.placement.binding[r->planned.graph.order[p].nodes.at[k]];
            if (b->kernel) count_kernel(&rows, b);
        }
    text_printf(out, "\nkernels of the plan: nodes, name and form, bytes that a thread moves at a time\n");
    for (uint32_t i = 0; i < rows.n; i++) {
        text_printf(out, "%6u  %s", rows.at[i].nodes, rows.at[i].kernel->name);
        if (rows.at[i].kernel->forms) text_printf(out, ", %s", kernel_form_name(rows.at[i].kernel, rows.at[i].form));
        if (rows.at[i].access) text_printf(out, ", %d B", rows.at[i].access);
        text_printf(out, "\n");
    }
    if (r->device.ops->explain) r->device.ops->explain(&r->tape, &chosen);
    if (chosen.n)
        text_printf(out, "\nalgorithms of cuBLASLt, chosen when the programs were recorded: nodes, kernel, product\n%s",
                    chosen.at);
    text_free(&chosen);
    vec_free(&rows);
}

/* --- runs ------------------------------------------------------------------------------ */

/* The steps, and the events of all ranks. */
static int measure(struct bench *b, int64_t steps, struct ranks *r, struct text *events, struct rank_work *each,
                   struct error *e)
{
    bench_by_node(b);
    timing_record_events(&b->now, count_launches(&b->run, steps));
    int rc = agree_on(r, PL_OK, e);
    const double met = clock_seconds(), before = r ? r->moving : 0;
    if (!rc) rc = bench_run_shown(b, steps, e);
    if (rc) return rc;
    struct rank_work mine = {.seconds = bench_mean(b), .exchanges = r ? (r->moving - before) / (double)steps : 0};
    list_events(b, r, met, &events[r ? r->rank : 0]);
    if (!r) return PL_OK;
    memcpy(mine.host, r->host, sizeof mine.host);
    rc = r->gather(r, &mine, each, sizeof mine, e);
    return rc ? rc : gather_events(r, events, e);
}

static int show(const struct options *o, const struct config *c, const struct bench *b, const struct text *events,
                const struct rank_work *each, int ranks, struct error *e)
{
    const char *dir = o->output ? o->output : "profile";
    struct text tables = {0}, out = {0};
    struct tables t;
    fill_tables(&t, b);
    print_tables(b, &t, &tables);
    print_work(each, ranks, &tables);
    if (o->explain) print_kernels(&b->run, &tables);
    int rc = write_files(b, &t, c, events, ranks, dir, o->run, e);
    if (!rc) {
        if (o->json) put_json(b, dir, &out);
        else text_printf(&out, "%s\n%s/profile.html\n%s/trace.json\n%s/snapshot.pickle\n", tables.at, dir, dir, dir);
        fputs(out.at, stdout);
    }
    text_free(&tables);
    text_free(&out);
    return rc;
}

static int profile_run(const struct options *o, struct ranks *r, struct error *e)
{
    struct config c;
    struct bench b = {0};
    int64_t steps = 5;
    const int n = r ? r->n : 1;
    int rc = ranks_configure(o, r, &c, e);
    if (rc) return rc;
    struct text *events = mem_alloc((size_t)n * sizeof *events);
    struct rank_work *each = mem_alloc((size_t)n * sizeof *each);
    rc = options_count("--steps", o->steps, 1, 1000, &steps, e);
    if (!rc) rc = config_check(&c, CONFIG_NEEDS_MODEL, e);
    rc = agree_on(r, rc, e);
    if (!rc) {
        agree_free(r, offload_folder(c.train_out));
        rc =
            bench_open(&b, &c,
                       &(struct run_options){.plan = o->plan, .train = true, .describe = feed_describe, .ranks = r}, e);
        rc = agree_on(r, rc, e);
        if (!rc) rc = measure(&b, steps, r, events, each, e);
        if (!rc && (!r || !r->rank)) rc = show(o, &c, &b, events, each, n, e);
        rc = agree_on(r, rc, e);
        bench_close(&b);
    }
    for (int i = 0; i < n; i++) text_free(&events[i]);
    mem_free(events);
    mem_free(each);
    config_free(&c);
    return rc;
}

static int profile(int argc, char **argv, struct error *e)
{
    struct options o;
    int rc =
        options_parse(&o, OPT_RUN | OPT_MEMORY | OPT_PLAN | OPT_JSON | OPT_EXPLAIN | OPT_STEPS | OPT_OUTPUT | OPT_RANKS,
                      argc, argv, e);
    if (rc) return rc;
    if (o.help) print_help(&command_profile);
    else rc = ranks_run(&command_profile, &o, argc, argv, profile_run, e);
    options_free(&o);
    return rc;
}

const struct command command_profile =
    {"profile",
     "profile RUN.yaml [--config-from FILE]... [--adapter DIR] [--steps N] [--memory SIZE] [--plan PLAN.json] [--ranks "
     "N] [--set key=value]... [--json] [--explain] [-o DIR]",
     "Runs training steps on synthetic inputs and shows the time and memory of each op and tensor: tables on standard "
     "output;\n"
     "DIR/profile.html with a plot of the arena over time; DIR/trace.json for Perfetto or chrome://tracing; "
     "DIR/snapshot.pickle for\n"
     "PyTorch's memory_viz page.\n" CONFIG_FROM_HELP "  --steps N        steps to measure (5)\n"
     "  --explain        also lists the kernels of the plan and, on a GPU, the algorithms of cuBLASLt that were chosen "
     "for its products\n"
     "  --adapter DIR    a LoRA adapter, as PEFT or a run with an adapter saves it, instead of the one in RUN.yaml: "
     "adapter.path\n"
     "  --ranks N        N processes on this machine, as `mpirun -np N plimsoll profile ...`: in the trace a rank is a "
     "process and a lane a\n"
     "                   thread; the tables are of rank 0\n"
     "  -o DIR           the output folder (profile)",
     profile, .ranks = true};
