/*
 * plan_request.c: see plan_request.h.
 */
#include "compare/plan_request.h"

#include "base/words.h"
#include "batch/text_source.h"
#include "calibrate/calibrate.h"
#include "io/file.h"
#include "io/table.h"
#include "plan/explain.h"

enum { IMAGES_MOST = 4096, FRAMES_MOST = 65536, RANK_ROWS = 32 };

/* --- one plan ------------------------------------------------------------------------------- */

static int write_plan(const struct planned *r, bool fits, const char *path, struct error *e)
{
    struct text text = {0};
    struct plan_note note = planned_note(r, fits);
    note.storages = true;
    plan_write(&r->plan, &r->graph, &note, &text);
    return file_write_text(PL_OK, path, &text, e);
}

/* Returns the heading of the plan that is printed when none fits. */
static const char *refusal(const struct planned *r, const struct plan_request *o)
{
    const bool host = planned_exceeds_host(r);
    if (o->plan)
        return host ? "The given plan does not fit memory.host_budget" : "The given plan does not fit the budget";
    if (!host) return "Does not fit the budget. The smallest plan";
    return r->plan.settings.device.separate_memory
               ? "Does not fit memory.host_budget. The plan with the least host memory"
               : "Does not fit memory.host_budget. The plan with the smallest offload file";
}

static void print_host_budget(const struct planned *r, struct text *out)
{
    const bool cuda = r->kind == DEVICE_CUDA;
    char room[32];
    if (r->host_rule && r->host_budget <= 1)
        text_printf(out, "  there is no room for %s (memory.host_budget auto: %s)\n",
                    cuda ? "offloading to host memory" : "an offload file", r->host_rule);
    else if (r->host_rule)
        text_printf(out, "  %s is limited to %s (memory.host_budget auto: %s)\n",
                    cuda ? "host memory" : "the offload file", size_print(r->host_budget, room), r->host_rule);
    else if (r->host_budget)
        text_printf(out, "  %s is limited to %s (memory.host_budget)\n", cuda ? "host memory" : "the offload file",
                    size_print(r->host_budget, room));
    else if (cuda && r->config->memory_host_budget.kind == BUDGET_AUTO)
        text_printf(out, "  host memory is not limited: the GPU is not in this machine, so the host memory beside it "
                         "is unknown; memory.host_budget sets a limit\n");
}

/* Prints which keys decide the order of sums. Ranks and shares promise bits, for which sums must
 * have the same order. */
static void print_order(const struct planned *r, struct text *out)
{
    struct text keys = {0};
    if (r->shares > 1 && planned_print_order(r, &keys))
        text_printf(out,
                    "  the order of sums depends on %s, which the planner chose: set them to compare bits with other "
                    "ranks or another parallel.shard\n",
                    keys.at);
    text_free(&keys);
}

static void print_batch(const struct planned *r, struct text *out)
{
    struct text note = {0};
    if (planned_print_batch(r, &note)) text_printf(out, "  note: %s\n", note.at);
    text_free(&note);
}

static void show_plan(const struct planned *r, const struct plan_request *o, bool fits)
{
    struct text text = {0};
    struct plan_note note = planned_note(r, fits);
    struct profile profile = r->profile;
    struct plan plan = r->plan; /* as it is shown */
    profile.factor = time_factor(r);
    if (profile.factor > 0) plan_scale_times(&plan, profile.factor);
    note.profile = &profile;
    if (o->json) plan_write(&plan, &r->graph, &note, &text);
    else if (!fits) text_printf(&text, "%s:\n\n", refusal(r, o));
    if (!o->json) plan_print(&plan, &r->graph, &profile, &text);
    if (!o->json && r->plan.placement.arena[SPACE_HOST]) print_host_budget(r, &text);
    if (!o->json) print_order(r, &text);
    if (!o->json) print_batch(r, &text);
    if (!o->json && r->adapted) text_printf(&text, "Adapter\n  %s\n", r->adapted);
    for (int i = 0; i < r->n_warnings && !o->json; i++) text_printf(&text, "  WARNING: %s\n", r->warning[i]);
    if (o->explain && !o->json) plan_explain(&plan, &r->graph, &text);
    if (o->explain && !o->explain_all && !o->json)
        text_printf(&text,
                    "--explain all lists every op with its kernel, and every storage with its offset and lifetime.\n");
    if (o->explain_all && !o->json) plan_explain_all(&plan, &r->graph, &text);
    fputs(text.at, stdout);
    text_free(&text);
}

static int show_one(const struct plan_request *o, struct error *e)
{
    struct config c;
    struct planned r = {0};
    const struct run_options options = {.plan = o->plan, .train = true, .describe = feed_describe, .ablation = true};
    TRY(plan_source_read(&o->source, &c, e));
    int rc = config_check(&c, CONFIG_NEEDS_MODEL, e);
    if (o->explain) planned_explain_device();
    if (!rc) {
        rc = planned_open(&r, &c, &options, e);
        if (r.has_graph && (!rc || rc == PL_NOFIT)) show_plan(&r, o, !rc);
        if (!rc) text_warn_endless(&c, &r.model);
        if (!rc && o->output) rc = write_plan(&r, true, o->output, e);
        planned_close(&r);
    }
    config_free(&c);
    return rc;
}

/* --- the tables as text and JSON ---------------------------------------------------------- */

enum { COMPARE = 1, FRONTIER = 2, DEVICES = 4, RANKS = 8, ALL = 15 };

static void put_settings(struct json_writer *w, const void *of)
{
    plan_put_settings(w, &((const struct plan_row *)of)->settings, ((const struct plan_row *)of)->effective);
}
static void put_remedies(struct json_writer *w, const void *of)
{
    plan_put_remedies(w, ((const struct plan_row *)of)->remedy, ((const struct plan_row *)of)->n_remedies);
}
static void put_machine(struct json_writer *w, const void *of)
{
    plan_put_machine(w, ((const struct plan_row *)of)->warning, ((const struct plan_row *)of)->n_warnings);
}

/* Every column, and the tables that show it as text. */
static const struct {
    unsigned tables;
    struct report_column column;
} COLUMNS[] = {{ALL - RANKS, {"label", ""}}, {RANKS, {"world", "ranks", ""}}, {0, {"per_host"}}, {0, {"fits"}},
               {0, {"refused_by"}}, {0, {"budget_bytes"}}, {RANKS, {NULL, "shard"}}, {RANKS, {NULL, "group"}},
               {RANKS, {NULL, "micro-batch", ""}}, {RANKS, {NULL, "recompute"}}, {RANKS, {NULL, "offload"}},
               {ALL, {"arena_bytes", "arena", "bytes"}}, {0, {"smallest_budget_bytes"}},
               {COMPARE, {NULL, "saved", "bytes"}}, {ALL - RANKS, {"host_bytes", "host", "bytes"}}, {0, {"profile"}},
               {0, {"gpu_memory_bytes"}}, {0, {"images"}}, {0, {"frames"}}, {FRONTIER, {NULL, "micro-batch", ""}},
               {DEVICES, {NULL, "batch", ""}}, {COMPARE, {"predicted_step_seconds", "step", "time"}},
               {COMPARE, {NULL, "ratio", "%.2fx"}}, {FRONTIER | DEVICES, {"samples_per_second", "samples/s", "%.4g"}},
               {DEVICES, {NULL, "profile"}}, {FRONTIER | DEVICES, {NULL, "techniques"}},
               {RANKS, {"sent_bytes", "sent", "bytes"}}, {0, {"received_bytes"}},
               {RANKS, {"communication_seconds", "in", "time"}}, {RANKS, {"hidden_seconds", "hidden", "time"}},
               {RANKS, {NULL, "step", "time"}}, {RANKS, {NULL, "samples/s", "%.4g"}},
               {RANKS, {"efficiency", "effic.", "%.0f %%", 100}}, {0, {"measured"}}, {0, {"factor"}}, {0, {0}},
               {0, {0}}, {0, {0}}};

/* A table, and the columns that it shows. */
struct shown {
    struct report_column columns[COUNT(COLUMNS)];
    struct report_table table;
};

/* Returns the name of what is offloaded: of the rows of one table, or of one row. */
static const char *host_name(bool processor) { return processor ? "offload file" : "host memory"; }

static void open_shown(struct shown *s, unsigned which, const struct plan_rows *rows)
{
    *s = (struct shown){.table = {.columns = s->columns, .n_columns = COUNT(COLUMNS)}};
    for (size_t i = 0; i < COUNT(COLUMNS); i++) {
        s->columns[i] = COLUMNS[i].column;
        if (!(COLUMNS[i].tables & which)) s->columns[i].title = NULL;
        else if (!strcmp(s->columns[i].title, "host")) s->columns[i].title = host_name(rows->list.at[0].processor);
    }
    if (which & (FRONTIER | DEVICES)) s->columns[0].title = which == FRONTIER ? "budget" : "GPU";
}

/* Says why a row does not fit: the budget that is too small, and what would fit. */
static void print_refusal(const struct plan_row *r, struct text *out)
{
    char need[32], have[32];
    text_printf(out, "does not fit: ");
    if (r->host_budget && !r->ranks)
        text_printf(out, "%s needs %s, memory.host_budget is %s", host_name(r->processor), size_print(r->host, need),
                    size_print(r->host_budget, have));
    else text_printf(out, "the smallest plan needs %s", size_print(r->arena, need));
    if (r->host && !r->host_budget && !r->ranks)
        text_printf(out, " and %s of %s", size_print(r->host, have), host_name(r->processor));
    if (r->n_remedies) text_printf(out, "\n%14s fits with: ", "");
    remedies_print(r->remedy, r->n_remedies, host_name(r->processor), out);
}

/* Adds a row, beside `before`, which it is compared with, and the `first` one; NULL: none. */
static void add_shown(struct shown *x, const struct plan_row *r, const struct plan_row *before,
                      const struct plan_row *first)
{
    const struct settings *s = &r->settings;
    const bool fits = r->fits, ranks = r->ranks, timed = fits && !ranks, sends = fits && ranks;
    const struct cell none = {0};
    struct text techniques = {0}, refusal = {0};
    char shard[SETTING_ROOM], group[SETTING_ROOM], recompute[SETTING_ROOM], offload[SETTING_ROOM], micro[32], batch[64];
    settings_print(s, &techniques);
    snprintf(micro, sizeof micro, "%d x %d", s->micro_batch, s->accumulation);
    snprintf(batch, sizeof batch, "%s = %d", micro, r->effective);
    struct report_row *row = TABLE_ADD(
        &x->table, CELL_IF(!ranks, r->label), CELL_IF(ranks, r->ranks), CELL_IF(ranks, r->per_host), CELL(r->fits),
        CELL_IF(!fits && !ranks, r->host_budget ? "memory.host_budget" : "memory.budget"),
        CELL_IF(r->budget && !ranks, r->budget), CELL(technique_print(TECHNIQUE_shard, s, shard)),
        CELL(s->shard ? technique_print(TECHNIQUE_group, s, group) : "-"), CELL((const char *)micro),
        CELL(technique_print(technique_in(CLASS_BLOCKS), s, recompute)),
        CELL(technique_print(technique_in(CLASS_PLACES), s, offload)),
        CELL_IF(fits, r->arena), CELL_IF(!fits, r->arena),
        CELL(before ? (int64_t)before->arena - (int64_t)r->arena : (int64_t)0), CELL(r->host),
        CELL_IF(!ranks, (const char *)r->profile), CELL_IF(r->gpu, r->gpu), CELL_IF(r->images, r->images),
        CELL_IF(r->frames, r->frames), CELL((const char *)micro), CELL((const char *)batch), CELL_IF(fits, r->seconds),
        CELL_IF(first, r->seconds / first->seconds), CELL_IF(fits, r->effective / r->seconds),
        CELL((const char *)r->profile), CELL((const char *)techniques.at), CELL_IF(sends, (uint64_t)r->sends.sent),
        CELL_IF(sends, (uint64_t)r->sends.sent), CELL_IF(sends, r->sends.seconds), CELL_IF(sends, r->sends.hidden),
        CELL(r->seconds), CELL(r->effective / r->seconds), CELL_IF(sends && r->efficiency > 0, r->efficiency),
        CELL_IF(timed, r->measured), CELL_IF(timed && r->factor > 0, r->factor),
        fits ? (struct cell){CELL_CALL, .of = r, .call = put_settings} : none,
        !ranks ? (struct cell){CELL_CALL, .of = r, .call = put_remedies} : none,
        fits ? (struct cell){CELL_CALL, .of = r, .call = put_machine} : none);
    if (!fits) print_refusal(r, &refusal), table_note(&x->table, row, refusal.at);
    text_free(&techniques);
    text_free(&refusal);
}

static void add_all(struct shown *x, unsigned which, const struct plan_rows *rows)
{
    open_shown(x, which, rows);
    for (uint32_t i = 0; i < rows->list.n; i++) add_shown(x, &rows->list.at[i], NULL, NULL);
}

/* Says how good the times of a table are. */
void plan_note_times(const struct plan_rows *rows, struct text *out)
{
    struct text unmeasured = {0};
    uint32_t timed = 0, measured = 0;
    for (uint32_t i = 0; i < rows->list.n; i++) {
        const struct plan_row *r = &rows->list.at[i];
        timed += r->fits;
        measured += r->fits && r->measured;
        if (r->fits && !r->measured) text_printf(&unmeasured, "%s%s", unmeasured.n ? ", " : " of ", r->label);
    }
    if (timed > measured && rows->list.at[0].factor > 0)
        text_printf(out,
                    "Times are estimated from built-in peak rates times %.2g, by a small step on this CPU; plimsoll "
                    "bench --calibrate measures each op.\n",
                    rows->list.at[0].factor);
    else if (timed > measured)
        text_printf(out, "Times%s are unmeasured: estimated from %s peak rates, good for comparing%s rows.\n",
                    measured ? unmeasured.at : "", rows->list.at[0].processor ? "built-in" : "published",
                    measured ? " these" : "");
    text_free(&unmeasured);
    if (rows->list.n && (rows->list.at[0].effective < 8 ||
                         rows->list.at[0].effective > 32 * max_i64(1, rows->list.at[0].settings.ranks)))
        text_printf(out,
                    "Note: the effective batch of %d is outside of 8 to 32, the usual range of fine-tuning recipes.\n",
                    rows->list.at[0].effective);
}

/* Says in what plans exceed this machine, their GPU, or the machine around it: in full for each
 * row, or for the first one with the names of the others. */
static void note_warnings(const struct plan_rows *rows, bool each, struct text *out)
{
    struct text others = {0};
    bool have = false;
    for (uint32_t i = 0; i < rows->list.n; i++) {
        const struct plan_row *r = &rows->list.at[i];
        if (!r->fits || !r->n_warnings) continue;
        for (int k = 0; k < r->n_warnings && (each || !have); k++)
            text_printf(out, "WARNING: %s: %s\n", r->label, r->warning[k]);
        if (have && !each) text_printf(&others, "%s%s", others.n ? ", " : "", r->label);
        have = true;
    }
    if (others.n) text_printf(out, "WARNING: too large as well: %s\n", others.at);
    text_free(&others);
}

/* --- each of them --------------------------------------------------------------------------- */

static int show_compare(const struct plan_request *o, struct error *e)
{
    struct ladder l = {0};
    struct text out = {0};
    struct shown rungs, others;
    int rc = plan_ladder(&o->source, &l, e);
    if (!rc) {
        const struct plan_row *rows = l.rows.list.at, *last = NULL; /* the last row that fits */
        const bool more = l.rows.list.n > l.rungs;
        open_shown(&rungs, COMPARE, &l.rows);
        open_shown(&others, COMPARE, &l.rows);
        for (uint32_t i = 0; i < l.rows.list.n; i++) {
            if (i == l.rungs) last = rows[l.base].fits ? &rows[l.base] : NULL;
            add_shown(i < l.rungs ? &rungs : &others, &rows[i], last, rows);
            if (rows[i].fits) last = &rows[i];
        }
        others.columns[0].title = "What if, instead of offload:";
        if (o->json && more)
            PRINT_FACTS(2, FACT_TABLE("compare", &rungs.table), FACT_TABLE("what_if", &others.table));
        else if (o->json) PRINT_FACTS(2, FACT_TABLE("compare", &rungs.table));
        table_print(&rungs.table, 0, 0, &out);
        if (more) {
            table_print(&others.table, 0, 0, &out);
            text_printf(&out, "LoRA (adapter.target_modules) and NF4 (memory.quantize) change the result of training: "
                              "they are yours to set.\n");
        }
        note_warnings(&l.rows, false, &out);
        plan_note_times(&l.rows, &out);
        if (!o->json) fputs(out.at, stdout);
        table_free(&rungs.table);
        table_free(&others.table);
    }
    text_free(&out);
    vec_free(&l.rows.list);
    return rc;
}

/* Prints a table, whose text ends in notes. */
static void show_table(const struct plan_request *o, unsigned which, const char *name, const struct plan_rows *rows,
                       const struct text *note)
{
    struct shown x;
    struct text out = {0};
    add_all(&x, which, rows);
    table_print(&x.table, 0, 0, &out);
    text_printf(&out, "%s", note->n ? note->at : "");
    if (which != RANKS) note_warnings(rows, which == DEVICES, &out), plan_note_times(rows, &out);
    if (o->json) PRINT_FACTS(2, FACT_TABLE(name, &x.table));
    else fputs(out.at, stdout);
    text_free(&out);
    table_free(&x.table);
}

static int show_frontier(const struct plan_request *o, struct error *e)
{
    struct plan_rows rows = {0};
    int rc = plan_frontier(&o->source, &rows, e);
    if (!rc) show_table(o, FRONTIER, "frontier", &rows, &(struct text){0});
    vec_free(&rows.list);
    return rc;
}

/* Lists the GPUs whose figures were used for rows given by memory. */
void plan_note_gpus(const struct plan_rows *rows, struct text *out)
{
    struct text used = {0};
    for (uint32_t i = 0; i < rows->list.n; i++) {
        const struct plan_row *r = &rows->list.at[i];
        if (r->by_size && !(i && r[-1].by_size && r[-1].gib == r->gib))
            text_printf(&used, "%s%g GiB: %s", used.n ? ", " : "", r->gib, r->profile);
    }
    if (used.n)
        text_printf(out,
                    "A size is planned with the figures of the slowest listed GPU of about that memory (%s); a name "
                    "gives the figures of that GPU.\n",
                    used.at);
    text_free(&used);
}

/* Reads the numbers of an option, a list with commas; no list, NULL, has none. */
static int read_counts(const char *option, const char *text, int64_t most, struct counts *out, struct error *e)
{
    char copy[256], *at = text ? copy : NULL, *word;
    snprintf(copy, sizeof copy, "%s", text ? text : "");
    while ((word = strsep(&at, ","))) {
        vec_push(&out->list, 0);
        TRY(option_count(option, word, 1, most, &out->list.at[out->list.n - 1], e));
    }
    return PL_OK;
}

static int show_devices(const struct plan_request *o, struct error *e)
{
    struct plan_rows rows = {0};
    struct counts images = {0}, frames = {0};
    struct text note = {0};
    char size[32];
    int rc = read_counts("--images", o->images, IMAGES_MOST, &images, e);
    if (!rc) rc = read_counts("--frames", o->frames, FRAMES_MOST, &frames, e);
    if (!rc) rc = plan_devices(&o->source, o->devices, &images, &frames, &rows, e);
    text_printf(
        &note, "%s of each GPU (half of a GPU with less than twice that) are reserved for the CUDA context and code.\n",
        size_print(GPU_RESERVE, size));
    plan_note_gpus(&rows, &note);
    if (!rc) show_table(o, DEVICES, "devices", &rows, &note);
    text_free(&note);
    vec_free(&rows.list);
    vec_free(&images.list);
    vec_free(&frames.list);
    return rc;
}

/* --- tables as text ------------------------------------------------------------------------- */

static void put_rows(unsigned which, const char *name, const struct plan_rows *rows, struct text *out)
{
    struct shown x;
    struct json_writer w = {.out = out};
    add_all(&x, which, rows);
    json_begin_map(&w, NULL);
    table_json(&x.table, &w, name);
    json_end(&w);
    table_free(&x.table);
}

int plan_frontier_json(const struct plan_source *s, struct text *out, struct error *e)
{
    struct plan_rows rows = {0};
    const int rc = plan_frontier(s, &rows, e);
    if (!rc) put_rows(FRONTIER, "frontier", &rows, out);
    vec_free(&rows.list);
    return rc;
}

int plan_devices_json(const struct plan_source *s, const char *gpus, struct text *out, struct error *e)
{
    struct plan_rows rows = {0};
    struct counts none = {0};
    const int rc = plan_devices(s, gpus, &none, &none, &rows, e);
    if (!rc) put_rows(DEVICES, "devices", &rows, out);
    vec_free(&rows.list);
    return rc;
}

/* --- ranks ---------------------------------------------------------------------------------- */

/* Says what the columns are, what connects ranks, and what is too large. */
static void note_ranks(const struct plan_rows *rows, bool without, struct text *out)
{
    text_printf(out,
                "Arena: of each rank. Sent: by each rank in a step, and received; in: its time; hidden: while the rank "
                "computes.\n"
                "Efficiency: samples/s over those of one rank%s times the number of ranks.\n",
                without ? ", which has no budget here," : "");
    const struct plan_row *last = NULL;
    for (uint32_t i = 0; i < rows->list.n; i++)
        if (rows->list.at[i].ranks > 1) last = &rows->list.at[i];
    if (last) text_printf(out, "Links: %s%s.\n", last->links, last->per_host < last->ranks ? "" : " (one host)");
    for (uint32_t i = 0; i < rows->list.n; i++)
        for (int k = 0; rows->list.at[i].fits && k < rows->list.at[i].n_warnings; k++)
            text_printf(out, "WARNING: %d %s: %s\n", rows->list.at[i].ranks,
                        rows->list.at[i].ranks == 1 ? "rank" : "ranks", rows->list.at[i].warning[k]);
}

static int show_ranks(const struct plan_request *o, struct error *e)
{
    struct plan_rows rows = {0};
    struct counts list = {0};
    struct text note = {0};
    bool without = false;
    int rc = read_counts("--ranks", o->ranks, 65536, &list, e);
    if (!rc && list.list.n > RANK_ROWS) rc = error_set(e, PL_USAGE, "--ranks: at most %d numbers", RANK_ROWS);
    if (!rc) rc = plan_ranks(&o->source, list.list.at, (int)list.list.n, &rows, &without, e);
    if (!rc) note_ranks(&rows, without, &note);
    if (!rc) show_table(o, RANKS, "ranks", &rows, &note);
    text_free(&note);
    vec_free(&rows.list);
    vec_free(&list.list);
    return rc;
}

/* --- the longest row ------------------------------------------------------------------------ */

static const struct report_column LONGEST_COLUMNS[] = {
    {"label", "", ""}, {"fits"}, {"tokens", "longest row", ""}, {"budget_bytes"}, {"arena_bytes", "memory", "bytes"},
    {"host_bytes", "host memory", "bytes"}, {"next_bytes", "64 tokens more", "bytes"}, {"gpu_memory_bytes"},
    {NULL, "batch", ""}, {"predicted_step_seconds", "step", "time"}, {"tokens_per_second", "tokens/s", "%.0f"},
    {"profile"}, {"measured"}, {"techniques", "techniques"}};

static void add_longest(struct report_table *t, const struct plan_row *r)
{
    struct text techniques = {0};
    char batch[32], size[32], refusal[128];
    settings_print(&r->settings, &techniques);
    snprintf(batch, sizeof batch, "%d x %d", r->settings.micro_batch, r->settings.accumulation);
    snprintf(refusal, sizeof refusal, "does not fit: a row of %d tokens needs %s", ROW_UNIT,
             size_print(r->arena, size));
    struct report_row *row = TABLE_ADD(
        t, CELL((const char *)r->label), CELL(r->fits), CELL_IF(r->fits, r->tokens), CELL_IF(r->budget, r->budget),
        CELL(r->arena), CELL_IF(r->fits, r->host), CELL_IF(r->refused, r->refused), CELL_IF(r->gpu, r->gpu),
        CELL((const char *)batch), CELL_IF(r->fits, r->seconds),
        CELL_IF(r->fits, (double)(r->tokens * r->effective) / r->seconds), CELL_IF(r->fits, (const char *)r->profile),
        CELL_IF(r->fits, r->measured), CELL_IF(r->fits, (const char *)techniques.at));
    if (!r->fits) table_note(t, row, refusal);
    text_free(&techniques);
}

static int show_longest(const struct plan_request *o, struct error *e)
{
    struct plan_rows rows = {0};
    struct report_table t = REPORT_TABLE(LONGEST_COLUMNS);
    struct text out = {0};
    bool any = false;
    int rc = plan_longest(&o->source, o->devices, &rows, e);
    for (uint32_t i = 0; i < rows.list.n && !rc; i++) {
        add_longest(&t, &rows.list.at[i]);
        any |= rows.list.at[i].fits;
    }
    if (!rc && o->json) PRINT_FACTS(2, FACT_TABLE("longest", &t));
    if (!rc && !o->json) {
        table_print(&t, 0, 0, &out);
        text_printf(&out, "Rows count in multiples of %d tokens; 64 tokens more are refused. None is longer than the "
                          "model's positions, or %d tokens.\n", ROW_UNIT, ROW_MOST);
        plan_note_gpus(&rows, &out);
        plan_note_times(&rows, &out);
        fputs(out.at, stdout);
    }
    if (!rc && !any) rc = error_set(e, PL_NOFIT, "no row fits");
    text_free(&out);
    table_free(&t);
    vec_free(&rows.list);
    return rc;
}

/* --- a request ------------------------------------------------------------------------------ */

static int read_size(const char *text, struct added_media *s, struct error *e)
{
    int n = 0;
    s->sized = text;
    s->width = s->height = IMAGE_SIDE;
    if (!text || (sscanf(text, "%5ux%5u%n", &s->width, &s->height, &n) == 2 && !text[n])) return PL_OK;
    return error_set(e, PL_USAGE, "--image-size %s: expected WIDTHxHEIGHT in pixels, such as 1024x768", text);
}

int plan_request_read(struct plan_request *o, bool several, struct error *e)
{
    struct plan_source *s = &o->source;
    if (!several) TRY(option_count("--images", o->images, 1, IMAGES_MOST, &s->media.images, e));
    if (!several) TRY(option_count("--frames", o->frames, 1, FRAMES_MOST, &s->media.frames, e));
    TRY(read_size(o->image_size, &s->media, e));
    return option_count("--masks", o->masks, 1, 1024, &s->masks, e);
}

int plan_request_run(struct plan_request *o, struct error *e)
{
    const int tables = o->compare + o->frontier + (o->devices && !o->longest), all = tables + o->longest;
    if (o->ranks && (all || o->plan || o->output || o->explain))
        return error_set(
            e, PL_USAGE,
            "--ranks with several numbers is a table of its own: leave out the other tables, --plan, --explain and -o");
    if (all > 1)
        return error_set(e, PL_USAGE, "--compare, --frontier, --devices and --longest are separate tables: give one of "
                         "them, or --longest with --devices");
    if (all && ((o->budget && (tables || o->devices)) || o->plan || o->output || o->explain))
        return error_set(e, PL_USAGE, "a table holds many plans: leave out --memory, --plan, --explain and -o");
    TRY(plan_request_read(o, tables && o->devices, e));
    return (o->longest    ? show_longest
            : o->ranks    ? show_ranks
            : o->compare  ? show_compare
            : o->frontier ? show_frontier
            : o->devices  ? show_devices
                          : show_one)(o, e);
}
