/*
 * plan_tables.c: the tables of `plimsoll plan`, each of which plans the same run many times. Each
 * row is a separate plan with exact bytes and a predicted time.
 *
 *     --compare            adds one technique in each row
 *     --frontier           the best plan for each of many budgets
 *     --devices LIST       GPUs, by memory in GiB or by name: batch, accumulation and techniques
 *     --ranks N,M,...      numbers of ranks, which need not be there: sharding, bytes sent
 */
#include "cli/plan.h"

#include <inttypes.h>
#include <strings.h>

#include "adapter/adapter.h"
#include "base/progress.h"
#include "cost/calibration.h"
#include "cost/profile.h"
#include "io/table.h"

static const uint64_t GIB = (uint64_t)1 << 30;

enum { GIB_MOST = 1024 }; /* GiB that a GPU of --devices may have */
enum { RANK_ROWS = 32 };

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
        CELL(technique_print(TECHNIQUE_recompute, s, recompute)), CELL(technique_print(TECHNIQUE_offload, s, offload)),
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

/* --- the ladder -------------------------------------------------------------------------- */

/* Each row of the ladder adds a technique to the row before (techniques.def). What-ifs change what
 * is trained: they have the techniques of the ladder but offload. */
struct ladder {
    struct plan_rows rows;            /* the rungs, then the what-ifs */
    uint32_t rungs;
    uint32_t base;               /* the last rung without offload, which the what-ifs are compared with */
};

struct sets {
    char at[TECHNIQUES][2 * SETTING_ROOM]; /* "memory.key=value" by technique; empty: as the run has it */
    struct settings s;                     /* the same values */
};

/* What a run that trains everything, or freezes parts of it, could be instead. */
static const char *const LORA[] = {"adapter.target_modules=all-linear", "adapter.r=16", "model.freeze=[]"};
static const char NF4[] = "memory.quantize=nf4";

static void add_set(struct sets *x, enum technique_id id, const char *value)
{
    snprintf(x->at[id], sizeof x->at[id], "%s.%s=%s", techniques[id].section, techniques[id].name, value);
    CHECK(technique_parse(id, value, &x->s), "%s", value);
}

/* What the run itself says. */
struct asked {
    int share, ranks;            /* samples of a step, of one of its shares; ranks */
    bool adapter, quantize;
};

static int ask_run(const struct plan_options *o, struct asked *out, struct error *e)
{
    struct config c;
    TRY(plan_configure(o, &c, e));
    const int64_t ranks = max_i64(1, c.parallel_ranks), shares = c.parallel_shares > 0 ? c.parallel_shares : ranks;
    *out = (struct asked){(int)ceil_div(c.train_effective_batch, shares), (int)ranks, adapter_given(&c),
                          strcmp(c.memory_quantize.value, "none") != 0};
    config_free(&c);
    return PL_OK;
}

/* Adds a row with all settings of `sets` and the keys of `more`. */
static int add_row(const struct plan_options *o, const struct sets *sets, const char *const *more, size_t n_more,
                   const char *label, struct plan_rows *rows, struct progress *p, struct error *e)
{
    struct plan_row row = {0};
    const char *at[TECHNIQUES + COUNT(LORA) + 1];
    size_t n = 0;
    for (int i = 0; i < TECHNIQUES; i++)
        if (*sets->at[i]) at[n++] = sets->at[i];
    for (size_t i = 0; i < n_more; i++) at[n++] = more[i];
    snprintf(row.label, sizeof row.label, "%s", label);
    TRY(plan_row_make(o, &(struct plan_change){.sets = at, .n = n}, &row, e));
    vec_push(&rows->list, row);
    progress_add(p, 1);
    return PL_OK;
}

/* Adds the rows of one technique: each of its values for comparison replaces the one before. There
 * are none if this device's ladder lacks what the technique needs. */
static int compare_technique(const struct plan_options *o, enum technique_id id, struct sets *sets,
                             struct plan_rows *rows, struct progress *p, struct error *e)
{
    const struct technique *t = &techniques[id];
    char value[SETTING_ROOM], label[2 * SETTING_ROOM + 2] = "+ ";
    enum technique_id other;
    const char *values;
    for (int i = 0, rc; technique_value(t->compare, i, value); i++) {
        const bool least = !strcmp(value, "least");
        if (least) snprintf(value, sizeof value, "%d", rows->list.at[0].least);
        add_set(sets, id, value);
        if (!technique_met(id, &sets->s, &other, &values)) {
            add_set(sets, id, t->off);
            return PL_OK;
        }
        technique_label(id, &sets->s, label + 2);
        rc = add_row(o, sets, NULL, 0, label, rows, p, e);
        if (rc == PL_USAGE && t->compare_else) {
            add_set(sets, id, t->compare_else);
            technique_label(id, &sets->s, label + 2);
            rc = add_row(o, sets, NULL, 0, label, rows, p, e);
        }
        if (rc) return rc;
    }
    return PL_OK;
}

/* Plans the run with an adapter, and with frozen weights in 4 bits, where it has neither.
 * A model that they do not apply to (no linear layers) has no such row. */
static int plan_what_ifs(const struct plan_options *o, struct sets *sets, const struct asked *run,
                         struct plan_rows *rows, struct progress *p, struct error *e)
{
    const char *keys[COUNT(LORA) + 1];
    size_t n = 0;
    int rc = PL_OK;
    if (run->quantize) return PL_OK;
    add_set(sets, TECHNIQUE_offload, techniques[TECHNIQUE_offload].off);
    if (!run->adapter) {
        for (; n < COUNT(LORA); n++) keys[n] = LORA[n];
        rc = add_row(o, sets, keys, n, "LoRA, r 16 on all linear layers", rows, p, e);
    }
    keys[n++] = NF4;
    if (!rc) rc = add_row(o, sets, keys, n, run->adapter ? "NF4" : "LoRA + NF4", rows, p, e);
    return rc == PL_USAGE ? PL_OK : rc;
}

/* Plans all rows. The first row has no technique and computes all samples of a step at once; of
 * several ranks, all of a rank's share. A run's own 4-bit weights stay: they are no step of the
 * ladder. */
static int plan_ladder(const struct plan_options *o, struct ladder *l, struct error *e)
{
    struct sets sets = {0};
    struct asked run = {0};
    struct progress progress;
    char share[SETTING_ROOM], value[SETTING_ROOM];
    int rc = ask_run(o, &run, e);
    uint32_t count = 1 + 2;
    snprintf(share, sizeof share, "%d", run.share);
    for (enum technique_id id = 0; id < TECHNIQUES && !rc; id++) {
        if (id != TECHNIQUE_quantize) add_set(&sets, id, techniques[id].off ? techniques[id].off : share);
        for (int i = 0; technique_value(techniques[id].compare, i, value); i++) count++;
    }
    progress_begin(&progress, "planning", "rows", count);
    if (!rc) rc = add_row(o, &sets, NULL, 0, "no technique", &l->rows, &progress, e);
    for (enum technique_id id = 0; id < TECHNIQUES && !rc; id++) {
        if (id == TECHNIQUE_offload) l->base = l->rows.list.n - 1;
        if (id != TECHNIQUE_shard || run.ranks > 1) rc = compare_technique(o, id, &sets, &l->rows, &progress, e);
    }
    l->rungs = l->rows.list.n;
    if (!rc) rc = plan_what_ifs(o, &sets, &run, &l->rows, &progress, e);
    progress_clear();
    return rc;
}

int table_compare(const struct plan_options *o, struct error *e)
{
    struct ladder l = {0};
    struct text out = {0};
    struct shown rungs, others;
    int rc = plan_ladder(o, &l, e);
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
        if (o->o.json && more)
            PRINT_FACTS(2, FACT_TABLE("compare", &rungs.table), FACT_TABLE("what_if", &others.table));
        else if (o->o.json) PRINT_FACTS(2, FACT_TABLE("compare", &rungs.table));
        table_print(&rungs.table, 0, 0, &out);
        if (more) {
            table_print(&others.table, 0, 0, &out);
            text_printf(&out, "LoRA (adapter.target_modules) and NF4 (memory.quantize) change the result of training: "
                              "they are yours to set.\n");
        }
        note_warnings(&l.rows, false, &out);
        plan_note_times(&l.rows, &out);
        if (!o->o.json) fputs(out.at, stdout);
        table_free(&rungs.table);
        table_free(&others.table);
    }
    text_free(&out);
    vec_free(&l.rows.list);
    return rc;
}

/* --- the frontier -------------------------------------------------------------------------- */

static const uint32_t STEPS[] = {1,  2,  3,  4,  6,  8,   10,  12,  16,  20,  24, 32,
                                 40, 48, 64, 80, 96, 128, 141, 192, 256, 384, 512};

/* Plans again within another budget and fills a row. */
static int next_row(struct plan_trial *p, uint64_t budget, struct plan_row *row, struct error *e)
{
    p->rc = planned_within(&p->run, budget, e);
    if (p->rc && p->rc != PL_NOFIT) return p->rc;
    plan_row_fill(row, p);
    return PL_OK;
}

/* Plans for budgets from the smallest possible up to the one that no longer limits the plan:
 * common memory sizes, in the largest unit of 1 GiB / 16^k that leaves several rows. */
static int plan_budgets(const struct plan_options *o, struct plan_rows *rows, struct error *e)
{
    struct plan_row most = {0}, least = {0};
    struct plan_trial p;
    struct progress progress;
    /* no limit, the smallest, and those between them, which are not known yet */
    progress_begin(&progress, "planning", "budgets", 2);
    TRY(plan_trial_open(&p, o, &(struct plan_change){0}, e));
    progress_add(&progress, 1);
    plan_row_fill(&most, &p);
    int rc = next_row(&p, 1, &least, e); /* a budget of one byte: finds the smallest plan */
    uint64_t unit = GIB;
    while (unit > 1 << 10 && most.arena < 8 * unit) unit /= 16;
    snprintf(least.label, sizeof least.label, "smallest");
    if (!rc) rc = next_row(&p, least.arena, &least, e);
    if (!rc) vec_push(&rows->list, least);
    for (size_t i = 0; i < COUNT(STEPS); i++)
        progress.total += STEPS[i] * unit > least.arena && STEPS[i] * unit < most.arena;
    for (size_t i = 0; i < COUNT(STEPS) && !rc; i++) {
        struct plan_row row = {0};
        uint64_t budget = STEPS[i] * unit;
        if (budget <= least.arena || budget >= most.arena) continue;
        progress_add(&progress, 1);
        size_print(budget, row.label);
        rc = next_row(&p, budget, &row, e);
        if (!rc) vec_push(&rows->list, row);
    }
    snprintf(most.label, sizeof most.label, "no limit");
    if (!rc) vec_push(&rows->list, most);
    progress_clear();
    plan_trial_close(&p);
    return rc;
}

/* Prints a table, whose text ends in notes. */
static void show_table(const struct plan_options *o, unsigned which, const char *name, const struct plan_rows *rows,
                       const struct text *note)
{
    struct shown x;
    struct text out = {0};
    add_all(&x, which, rows);
    table_print(&x.table, 0, 0, &out);
    text_printf(&out, "%s", note->n ? note->at : "");
    if (which != RANKS) note_warnings(rows, which == DEVICES, &out), plan_note_times(rows, &out);
    if (o->o.json) PRINT_FACTS(2, FACT_TABLE(name, &x.table));
    else fputs(out.at, stdout);
    text_free(&out);
    table_free(&x.table);
}

int table_frontier(const struct plan_options *o, struct error *e)
{
    struct plan_rows rows = {0};
    int rc = plan_budgets(o, &rows, e);
    if (!rc) show_table(o, FRONTIER, "frontier", &rows, &(struct text){0});
    vec_free(&rows.list);
    return rc;
}

/* --- GPUs ------------------------------------------------------------------------------------- */

int plan_row_gpu(const char *gpu, struct plan_row *row, char profile[64], struct error *e)
{
    char *end;
    const char *name = gpu;
    if (!*gpu)
        return error_set(e, PL_USAGE,
                         "a GPU is missing; expected GiB of memory or names, such as 8,24,h200");
    row->gib = strtod(gpu, &end);
    /* a GPU is sold by GB and has GiB */
    row->by_size = end > gpu && (!*end || !strcasecmp(end, "GiB") || !strcasecmp(end, "GB"));
    if (!row->by_size) {
        struct profile p;
        struct calibration *c = mem_alloc(sizeof *c);
        int rc = profile_gpu(&p, c, gpu, e);
        mem_free(c);
        if (rc) return error_prepend(e, "%s is not a number of GiB", gpu);
        row->gpu = p.memory_bytes;
        row->gib = (double)p.memory_bytes / (double)GIB;
        snprintf(row->label, sizeof row->label, "%.40s", gpu);
    /* half of it is the budget, and a budget of 0 would mean no limit */
    } else if (!(row->gib * (double)GIB >= 4 && row->gib <= GIB_MOST)) {
        struct text like = {0};
        const bool named = profile_gpu_like(gpu, &like);
        int rc = error_set(e, PL_USAGE, "%s GiB is not the memory of a GPU%s%s%s", gpu,
                           named ? "; did you mean " : "", named ? like.at : "", named ? "?" : "");
        text_free(&like);
        return rc;
    } else {
        name = profile_of_class(row->gib, &row->gpu);
        snprintf(row->label, sizeof row->label, "%g GiB", row->gib);
    }
    snprintf(profile, 64, "%s", name);
    return PL_OK;
}

/* Plans for a GPU, by name or by its memory. */
static int gpu_row(const struct plan_options *o, const char *gpu, struct plan_row *row, struct error *e)
{
    char profile[64], set[96];
    const char *sets[] = {"device.kind=cuda", set};
    if (plan_row_gpu(gpu, row, profile, e)) return error_prepend(e, "--devices");
    snprintf(set, sizeof set, "device.profile=%s", profile);
    return plan_row_make(o, &(struct plan_change){.sets = sets, .n = COUNT(sets), .gpu = row->gpu}, row, e);
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

/* Finds the next word of a list with commas; false at its end. No list, NULL, has one word,
 * NULL. */
static bool next_word(const char **list, char word[32], const char **out)
{
    static const char end[] = "";
    if (*list == end) return false;
    const size_t n = *list ? strcspn(*list, ",") : 0;
    *out = *list ? word : NULL;
    if (*list) snprintf(word, 32, "%.*s", (int)n, *list);
    *list = *list && (*list)[n] ? *list + n + 1 : end;
    return true;
}

static void add_label(struct plan_row *row, bool several, int64_t n, const char *what)
{
    const size_t at = strlen(row->label);
    if (several && n)
        snprintf(row->label + at, sizeof row->label - at, ", %lld %s%s", (long long)n, what, n == 1 ? "" : "s");
}

/* Adds the rows of one GPU: one for each number of images and of frames. */
static int gpu_rows(const struct plan_options *o, const char *gpu, struct plan_rows *rows, struct progress *p,
                    struct error *e)
{
    struct plan_options one = *o;
    char images[32], frames[32];
    int rc = PL_OK;
    for (const char *i = o->images; !rc && next_word(&i, images, &one.images);)
        for (const char *f = o->frames; !rc && next_word(&f, frames, &one.frames);) {
            struct plan_row row = {.images = one.images ? atoll(one.images) : 0,
                              .frames = one.frames ? atoll(one.frames) : 0};
            rc = gpu_row(&one, gpu, &row, e);
            add_label(&row, o->images && strchr(o->images, ','), row.images, "image");
            add_label(&row, o->frames && strchr(o->frames, ','), row.frames, "frame");
            if (!rc) vec_push(&rows->list, row);
            progress_add(p, 1);
        }
    return rc;
}

static uint64_t count_words(const char *list)
{
    uint64_t n = 1;
    for (; list && (list = strchr(list, ',')); list++) n++;
    return n;
}

int table_devices(const struct plan_options *o, struct error *e)
{
    struct plan_rows rows = {0};
    struct text note = {0};
    char list[512], *at = list, size[32];
    int rc = PL_OK;
    snprintf(list, sizeof list, "%s", o->devices);
    struct progress progress;
    progress_begin(&progress, "planning", "rows", count_words(list) * count_words(o->images) * count_words(o->frames));
    for (char *gpu; !rc && (gpu = strsep(&at, ","));) rc = gpu_rows(o, gpu, &rows, &progress, e);
    progress_clear();
    text_printf(
        &note, "%s of each GPU (half of a GPU with less than twice that) are reserved for the CUDA context and code.\n",
        size_print(GPU_RESERVE, size));
    plan_note_gpus(&rows, &note);
    if (!rc) show_table(o, DEVICES, "devices", &rows, &note);
    text_free(&note);
    vec_free(&rows.list);
    return rc;
}

/* --- ranks ------------------------------------------------------------------------------------ */

static int read_ranks(const char *text, int64_t *list, int *n, struct error *e)
{
    char copy[256], *at = copy, *word;
    snprintf(copy, sizeof copy, "%s", text);
    while ((word = strsep(&at, ","))) {
        if (*n == RANK_ROWS) return error_set(e, PL_USAGE, "--ranks: at most %d numbers", RANK_ROWS);
        list[*n] = 0;
        TRY(options_count("--ranks", word, 1, 65536, &list[(*n)++], e));
    }
    return PL_OK;
}

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

int table_ranks(const struct plan_options *o, struct error *e)
{
    int64_t list[RANK_ROWS];
    int n = 0, rc = read_ranks(o->o.ranks, list, &n, e);
    struct plan_rows rows = {0};
    struct plan_row within = {0}, one;
    struct text note = {0};
    struct progress progress;
    progress_begin(&progress, "planning", "numbers of ranks", (uint64_t)n + 1);
    if (!rc) rc = plan_row_make(o, &(struct plan_change){.ranks = 1, .budget = true}, &within, e);
    one = within;
    if (!rc && !one.fits) rc = plan_row_make(o, &(struct plan_change){.ranks = 1}, &one, e);
    for (int i = 0; i < n && !rc; i++, progress_add(&progress, 1)) {
        struct plan_row row = within;
        if (list[i] != 1) rc = plan_row_make(o, &(struct plan_change){.ranks = list[i], .budget = true}, &row, e);
        if (!rc && row.fits && one.fits)
            row.efficiency = row.effective / row.seconds / (one.effective / one.seconds * row.ranks);
        vec_push(&rows.list, row);
    }
    progress_clear();
    note_ranks(&rows, !within.fits, &note);
    if (!rc) show_table(o, RANKS, "ranks", &rows, &note);
    text_free(&note);
    vec_free(&rows.list);
    return rc;
}
