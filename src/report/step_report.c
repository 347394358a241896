/*
 * step_report.c: see step_report.h.
 */
#include "report/step_report.h"

#include "dist/agree.h"
#include "graph/ops.h"
#include "io/file.h"
#include "plan/explain.h"
#include "report/lives.h"
#include "report/page.h"
#include "report/trace.h"

enum { ROWS = 20, LAUNCHES_MOST = 2000000 };

/* --- tables ------------------------------------------------------------------------ */

static const struct report_column OPS[] = {
    {"op", "op"}, {"dtype", "dtype"}, {"calls", "calls", ""}, {"seconds", "ms", "%.3f", 1e3},
    {NULL, "share", "%.1f %%", 100}, {"bytes", "bytes moved", "bytes"}, {"flops"}, {NULL, "GFLOP/s", "%.1f", 1e-9},
    {NULL, "GiB/s", "%.2f", 1.0 / (1 << 30)}};
static const struct report_column TENSORS[] = {{NULL, "size", "bytes"}, {NULL, "tensor"}, {NULL, "produced by"}};
static const struct report_column RANKS[] = {
    {NULL, "rank"}, {NULL, "host"}, {NULL, "step", "time"}, {NULL, "own work", "time"}};

static void list_ops(const struct bench *b, struct report_table *t)
{
    struct bench_op ops[2 * OP_COUNT];
    const uint32_t n = bench_ops(b, ops);
    double seconds = 0;
    for (uint32_t i = 0; i < n; i++) seconds += ops[i].seconds;
    for (const struct bench_op *x = ops; x < ops + n; x++)
        TABLE_ADD(t, CELL(op_table[x->op].name), CELL(dtype_name(x->dtype)), CELL(x->calls), CELL(x->seconds),
                  CELL(x->seconds / seconds), CELL(x->bytes), CELL(x->flops), CELL(x->flops / x->seconds),
                  CELL(x->bytes / x->seconds));
}

/* Lists the largest transient tensors that are alive at the peak; returns the number of all such
 * tensors. */
static uint32_t list_tensors(const struct planned *r, struct report_table *t)
{
    const struct graph *g = &r->graph;
    const struct peak *peak = &r->plan.peak;
    struct held *all = mem_alloc(g->storages.n * sizeof *all);
    const uint32_t n = plan_at_peak(&r->plan, g, all);
    char from[512];
    for (uint32_t i = 0; i < n && i < ROWS; i++) {
        const struct node *x = node_at(g, g->order[peak->program].nodes.at[all[i].start]);
        snprintf(from, sizeof from, "%s of %s", op_table[x->op].name,
                 x->scope ? graph_name(g, g->scopes.at[x->scope].name) : "the step");
        TABLE_ADD(t, CELL(all[i].bytes), CELL(all[i].name), CELL((const char *)from));
    }
    mem_free(all);
    return n;
}

/* Lists the work of each rank in a step, without exchanges and the wait for others. */
static void list_ranks(const struct rank_times *each, int n, struct report_table *t)
{
    for (int i = 0; i < n; i++)
        TABLE_ADD(t, CELL(i), CELL((const char *)each[i].host), CELL(each[i].seconds),
                  CELL(each[i].seconds - each[i].exchanges));
}

static void print_slowest(const struct rank_times *each, int n, struct text *out)
{
    int slowest = 0;
    for (int i = 0; i < n; i++)
        if (each[i].seconds - each[i].exchanges > each[slowest].seconds - each[slowest].exchanges) slowest = i;
    text_printf(out, "rank %d on %s works longest\n", slowest, each[slowest].host);
}

void step_report_print(const struct step_report *s, struct text *out)
{
    table_print(&s->ops, 0, ROWS, out);
    text_printf(out, "\nlargest of the %u transient tensors alive at the peak (program %s)\n", s->live,
                program_name(s->bench->run.planned.plan.peak.program));
    table_print(&s->tensors, 0, 0, out);
    if (s->n < 2) return;
    text_printf(out, "\n");
    table_print(&s->ranks, 0, 0, out);
    print_slowest(s->times, s->n, out);
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

void step_report_kernels(const struct run *r, struct text *out)
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

/* --- the page ------------------------------------------------------------------------- */

static void put_headline(const struct bench *b, const struct config *c, struct text *out)
{
    const struct plan *p = &b->run.planned.plan;
    const char *path = c->model_path ? c->model_path : "", *slash = strrchr(path, '/');
    const double seconds = bench_median(b);
    char value[64], remark[128], size[32], time[32];
    page_facts_begin(out);
    snprintf(remark, sizeof remark, "%s, micro-batch %d x %d",
             settings_precision(&p->settings, (char[SETTING_ROOM]){0}), p->settings.micro_batch,
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

static void put_tables(const struct step_report *t, struct text *out)
{
    text_printf(out, "<h2>Time by op</h2>\n");
    table_html(&t->ops, "", ROWS, out);
    text_printf(out,
                "<h2>Largest tensors at the peak</h2>\n<p>%u transient tensors are alive at the peak, in program "
                "%s.</p>\n",
                t->live, program_name(t->bench->run.planned.plan.peak.program));
    table_html(&t->tensors, "names", 0, out);
}

static void make_page(const struct step_report *s, const struct lives *l, const struct config *c, const char *title,
                      struct text *out)
{
    const struct bench *b = s->bench;
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
    put_tables(s, out);
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

int step_report_write(const struct step_report *s, const struct config *c, const char *dir, const char *title,
                      struct error *e)
{
    const struct bench *b = s->bench;
    struct lives l;
    struct text page = {0}, trace = {0}, snapshot = {0};
    lives_collect(&l, &b->run.planned.plan, &b->run.planned.graph);
    make_page(s, &l, c, title, &page);
    trace_write(&b->run.planned.plan, s->events, s->n, &trace);
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

/* --- measuring -------------------------------------------------------------------------------- */

/* Counts launches: every iteration of every loop, over all steps. */
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

/* Lists the events of this rank, for the trace. All ranks count from the same moment, when they
 * last met. */
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

/* Gives rank 0 the events of all ranks; all[i] are those of rank i. */
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

/* Runs the steps, and gathers the events and times of all ranks. */
static int measure_all(struct bench *b, int64_t steps, struct ranks *r, struct text *events, struct rank_times *each,
                   struct error *e)
{
    bench_by_node(b);
    timing_record_events(&b->now, count_launches(&b->run, steps));
    TRY(agree_on(r, PL_OK, e));
    const double met = clock_seconds(), before = r ? r->moving : 0;
    TRY(bench_run_shown(b, steps, e));
    list_events(b, r, met, &events[r ? r->rank : 0]);
    if (!r) return PL_OK;
    TRY(rank_times_gather(r, b, (r->moving - before) / (double)steps, each, e));
    return gather_events(r, events, e);
}

int step_report_measure(struct step_report *s, struct bench *b, int64_t steps, struct ranks *r, struct error *e)
{
    const int n = r ? r->n : 1;
    *s = (struct step_report){.bench = b, .n = n, .ops = REPORT_TABLE(OPS), .tensors = REPORT_TABLE(TENSORS),
                              .ranks = REPORT_TABLE(RANKS), .events = mem_alloc((size_t)n * sizeof *s->events),
                              .times = mem_alloc((size_t)n * sizeof *s->times)};
    TRY(measure_all(b, steps, r, s->events, s->times, e));
    if (r && r->rank) return PL_OK;
    list_ops(b, &s->ops);
    s->live = list_tensors(&b->run.planned, &s->tensors);
    list_ranks(s->times, n, &s->ranks);
    return PL_OK;
}

void step_report_close(struct step_report *s)
{
    for (int i = 0; i < s->n; i++) text_free(&s->events[i]);
    mem_free(s->events);
    mem_free(s->times);
    table_free(&s->ops);
    table_free(&s->tensors);
    table_free(&s->ranks);
}
