/*
 * plan_tables.c: see plan_tables.h. Each row is a separate plan with exact bytes and a predicted
 * time.
 */
#include "cli/plan_tables.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/progress.h"
#include "calibrate/time_factor.h"
#include "models/model.h"
#include "io/json.h"
#include "cost/calibration.h"
#include "cost/profile.h"
#include "adapter/adapter.h"
#include "feed/feed.h"
#include "models/images.h"

static const uint64_t GIB = (uint64_t)1 << 30;

enum { GIB_MOST = 1024 };    /* GiB that a GPU of --devices may have */

/* tokens of an image or frame in the sequence of a model that takes text alone: a 24 x 24 grid */
enum { IMAGE_TOKENS = 576 };

/* tokens of a frame's time, and around its image, where videos are described
 * (text/template/video_text.h) */
enum { FRAME_TEXT = 16 };

/* Room for images and frames in a row of a model that takes images; the tokens of each. */
static int plan_images(struct config *c, const struct model *m, int64_t images, int64_t frames, int64_t tokens[2],
                       struct error *e)
{
    if (images || c->data_max_images < 0) c->data_max_images = images;
    if (frames) c->data_max_frames = frames;
    tokens[0] = m->images->features;
    if (images_frame_tokens(m, c->data_tokens_per_frame, &tokens[1], e)) return e->code;
    if (m->images->timed) tokens[1] += FRAME_TEXT;
    return PL_OK;
}

/* Adds images and frames to the sequence. A model that takes images plans these: their tokens, and
 * its tower. */
static int add_images(struct config *c, int64_t images, int64_t frames, struct error *e)
{
    struct model m;
    int64_t tokens[2] = {IMAGE_TOKENS, IMAGE_TOKENS};
    const bool named = c->model_path || c->model_preset;
    int rc = PL_OK;
    if (!(images + frames) || !config_tokens(c)) return PL_OK;
    if (named && config_open_model(c, &m, e)) return e->code;
    if (named && m.images) rc = plan_images(c, &m, images, frames, tokens, e);
    if (named) model_close(&m);
    c->data_sequence += images * tokens[0] + frames * tokens[1];
    return rc;
}

int table_options(const struct options *o, struct config *c, struct error *e)
{
    int64_t images = 0, frames = 0, masks = 0;
    int rc = options_config(o, c, e);
    if (rc) return rc;
    rc = options_count("--images", o->images, 1, 4096, &images, e);
    if (!rc) rc = options_count("--frames", o->frames, 1, 65536, &frames, e);
    if (!rc) rc = options_count("--masks", o->masks, 1, 1024, &masks, e);
    if (!rc && (images > 1 || frames) && !config_tokens(c))
        rc = error_set(e, PL_USAGE,
                       "--images and --frames are for language models; with this data.format a sample is one image");
    if (!rc && masks) c->data_max_masks = masks;
    if (!rc) rc = add_images(c, images, frames, e);
    if (rc) config_free(c);
    return rc;
}

/* --- one row ------------------------------------------------------------------------- */

/* One row of a table: the facts of one plan. */
struct row {
    char label[64];
    bool fits;
    uint64_t budget;             /* 0: none */
    uint64_t gpu;                /* memory of the GPU of a row of --devices; else 0 */
    double gib;                  /* its size as given, or the same in GiB */
    bool by_size;                /* that GPU was given by its memory alone */
    int64_t images, frames;      /* of --images and --frames; 0: not given */
    char profile[64];            /* name of the profile that predicts the times */
    bool processor;              /* the profile is a CPU's */
    uint64_t arena, host;        /* bytes; of the smallest plan when none fits */
    uint64_t host_budget;        /* the host budget, if it is why no plan fits; else 0 */
    double seconds, factor;      /* as shown: times a factor that was measured; 0: none was (calibrate/time_factor.h) */
    int effective, least;        /* samples of a step, and of its smallest possible micro-batch */
    bool measured;
    struct settings settings;
    char warning[WARNINGS_MOST][WARNING_ROOM]; /* in what the plan exceeds its machine */
    int n_warnings;
    struct remedy remedy[REMEDY_MOST]; /* of a row of --devices that does not fit: changes that would */
    int n_remedies;
};

/* One configuration that is planned within several budgets. */
struct trial {
    struct config config;
    struct planned run;
    int rc;                      /* of the last plan: PL_OK or PL_NOFIT */
};

/* Plans the run with additional keys, within the memory of a GPU less its reserve (0: no budget).
 * On PL_OK the caller closes it. */
static int open_trial(struct trial *p, const struct options *o, const char *const *sets, size_t n, uint64_t gpu,
                      struct error *e)
{
    int rc = table_options(o, &p->config, e);
    if (rc) return rc;
    for (size_t i = 0; i < n && !rc; i++) rc = config_set(&p->config, sets[i], e);
    if (!rc) rc = config_check(&p->config, CONFIG_NEEDS_MODEL, e);
    if (!rc) {
        p->config.memory_budget = gpu ? (struct config_budget){BUDGET_BYTES, planned_gpu_budget(gpu)}
                                      : (struct config_budget){BUDGET_NONE, 0};
        const struct run_options options = {.train = true,
                                            .describe = feed_describe,
                                            .probe = true,
                                            .several = true,
                                            .gpu_memory = gpu};
        p->rc = rc = planned_open(&p->run, &p->config, &options, e);
        if (rc == PL_NOFIT && gpu) planned_find_remedies(&p->run, &options);
        if (!rc || rc == PL_NOFIT) return PL_OK;
        planned_close(&p->run);
    }
    config_free(&p->config);
    return rc;
}

static int plan_within(struct trial *p, uint64_t budget, struct error *e)
{
    p->rc = planned_within(&p->run, budget, e);
    return p->rc == PL_NOFIT ? PL_OK : p->rc;
}

static void close_trial(struct trial *p)
{
    planned_close(&p->run);
    config_free(&p->config);
}

/* Fills all members but the label and the GPU. */
static void fill_row(struct row *row, const struct trial *p)
{
    const struct planned *r = &p->run;
    row->fits = !p->rc;
    row->budget = r->budget;
    row->arena = p->rc ? r->plan.smallest : plan_arena(&r->plan);
    row->host = r->plan.placement.arena[SPACE_HOST];
    row->host_budget = p->rc && planned_exceeds_host(r) ? r->host_budget : 0;
    row->factor = time_factor(r);
    row->seconds = r->plan.seconds * time_scale(r);
    row->effective = r->effective_batch;
    row->least = planned_least_micro_batch(r);
    row->settings = r->plan.settings;
    row->measured = r->profile.measured != NULL;
    row->processor = r->kind != DEVICE_CUDA;
    snprintf(row->profile, sizeof row->profile, "%s", r->profile.name);
    memcpy(row->warning, r->warning, sizeof row->warning);
    row->n_warnings = r->n_warnings;
    memcpy(row->remedy, r->remedy, sizeof row->remedy);
    row->n_remedies = r->n_remedies;
}

/* What is offloaded: of the rows of one table, or of one row. */
static const char *host_name(bool processor) { return processor ? "offload file" : "host memory"; }

static int plan_row(const struct options *o, const char *const *sets, size_t n, uint64_t gpu, struct row *row,
                    struct error *e)
{
    struct trial p;
    int rc = open_trial(&p, o, sets, n, gpu, e);
    if (rc) return rc;
    fill_row(row, &p);
    close_trial(&p);
    return PL_OK;
}

/* Prints a row that does not fit, with the budget that is too small and what would fit. False: the
 * row fits. */
static bool put_refusal(const struct row *r, int width, struct text *out)
{
    char need[32], have[32];
    if (r->fits) return false;
    text_printf(out, "%-*s does not fit: ", width, r->label);
    if (r->host_budget)
        text_printf(out, "%s needs %s, memory.host_budget is %s", host_name(r->processor), size_print(r->host, need),
                    size_print(r->host_budget, have));
    else text_printf(out, "the smallest plan needs %s", size_print(r->arena, need));
    if (r->host && !r->host_budget)
        text_printf(out, " and %s of %s", size_print(r->host, have), host_name(r->processor));
    if (r->n_remedies) text_printf(out, "\n%-*s fits with: ", width, "");
    remedies_print(r->remedy, r->n_remedies, host_name(r->processor), out);
    text_printf(out, "\n");
    return true;
}

static void put_row(struct json_writer *w, const struct row *r)
{
    json_begin_map(w, NULL);
    json_put_string(w, "label", r->label);
    json_put_bool(w, "fits", r->fits);
    if (!r->fits) json_put_string(w, "refused_by", r->host_budget ? "memory.host_budget" : "memory.budget");
    if (r->budget) json_put_uint(w, "budget_bytes", r->budget);
    json_put_uint(w, r->fits ? "arena_bytes" : "smallest_budget_bytes", r->arena);
    json_put_uint(w, "host_bytes", r->host);
    json_put_string(w, "profile", r->profile);
    if (r->gpu) json_put_uint(w, "gpu_memory_bytes", r->gpu);
    if (r->images) json_put_int(w, "images", r->images);
    if (r->frames) json_put_int(w, "frames", r->frames);
    if (r->fits) {
        json_put_number(w, "predicted_step_seconds", r->seconds);
        json_put_number(w, "samples_per_second", r->effective / r->seconds);
        json_put_bool(w, "measured", r->measured);
        if (r->factor > 0) json_put_number(w, "factor", r->factor);
        plan_put_settings(w, &r->settings, r->effective);
    }
    plan_put_remedies(w, r->remedy, r->n_remedies);
    if (r->fits) plan_put_machine(w, r->warning, r->n_warnings);
    json_end(w);
}

struct rows {
    VEC(struct row) list;
};

static void put_rows(struct json_writer *w, const char *name, const struct rows *rows, uint32_t from, uint32_t to)
{
    json_begin_list(w, name);
    for (uint32_t i = from; i < to; i++) put_row(w, &rows->list.at[i]);
    json_end(w);
}

/* The rows from `what_ifs` on are a list of their own. */
static void show_json(const char *table, const struct rows *rows, uint32_t what_ifs)
{
    struct text out = {0};
    struct json_writer w = {.out = &out, .indent = 2};
    json_begin_map(&w, NULL);
    put_rows(&w, table, rows, 0, what_ifs);
    if (what_ifs < rows->list.n) put_rows(&w, "what_if", rows, what_ifs, rows->list.n);
    json_end(&w);
    printf("%s\n", out.at);
    text_free(&out);
}

static void note_times(const struct rows *rows, struct text *out)
{
    struct text unmeasured = {0};
    uint32_t timed = 0, measured = 0;
    for (uint32_t i = 0; i < rows->list.n; i++) {
        const struct row *r = &rows->list.at[i];
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

/* In what plans exceed this machine, their GPU, or the machine around it: in full for each row, or
 * for the first one with the names of the others. */
static void note_warnings(const struct rows *rows, bool each, struct text *out)
{
    struct text others = {0};
    bool have = false;
    for (uint32_t i = 0; i < rows->list.n; i++) {
        const struct row *r = &rows->list.at[i];
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
    struct rows rows;            /* the rungs, then the what-ifs */
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

static int ask_run(const struct options *o, struct asked *out, struct error *e)
{
    struct config c;
    int rc = table_options(o, &c, e);
    if (rc) return rc;
    const int64_t ranks = max_i64(1, c.parallel_ranks), shares = c.parallel_shares > 0 ? c.parallel_shares : ranks;
    *out = (struct asked){(int)ceil_div(c.train_effective_batch, shares), (int)ranks, adapter_given(&c), strcmp(c.memory_quantize.value, "none") != 0};
    config_free(&c);
    return PL_OK;
}

/* Adds a row with all settings of `sets` and the keys of `more`. */
static int add_row(const struct options *o, const struct sets *sets, const char *const *more, size_t n_more,
                   const char *label, struct rows *rows, struct progress *p, struct error *e)
{
    struct row row = {0};
    const char *at[TECHNIQUES + COUNT(LORA) + 1];
    size_t n = 0;
    for (int i = 0; i < TECHNIQUES; i++)
        if (*sets->at[i]) at[n++] = sets->at[i];
    for (size_t i = 0; i < n_more; i++) at[n++] = more[i];
    snprintf(row.label, sizeof row.label, "%s", label);
    int rc = plan_row(o, at, n, 0, &row, e);
    if (!rc) vec_push(&rows->list, row);
    if (!rc) progress_add(p, 1);
    return rc;
}

static int add_rung(const struct options *o, const struct sets *sets, const char *label, struct rows *rows,
                    struct progress *p, struct error *e)
{
    return add_row(o, sets, NULL, 0, label, rows, p, e);
}

/* The rows of one technique: each of its values for comparison replaces the one before. There are
 * none if this device's ladder lacks what the technique needs. */
static int compare_technique(const struct options *o, enum technique_id id, struct sets *sets, struct rows *rows,
                             struct progress *p, struct error *e)
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
        rc = add_rung(o, sets, label, rows, p, e);
        if (rc == PL_USAGE && t->compare_else) {
            add_set(sets, id, t->compare_else);
            technique_label(id, &sets->s, label + 2);
            rc = add_rung(o, sets, label, rows, p, e);
        }
        if (rc) return rc;
    }
    return PL_OK;
}

/* What the run would need with an adapter, and with frozen weights in 4 bits, where it has neither.
 * A model that they do not apply to (no linear layers) has no such row. */
static int plan_what_ifs(const struct options *o, struct sets *sets, const struct asked *run, struct rows *rows,
                         struct progress *p, struct error *e)
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

/* The first row has no technique and computes all samples of a step at once; of several ranks, all
 * of a rank's share. A run's own 4-bit weights stay: they are no step of the ladder. */
static int plan_ladder(const struct options *o, struct ladder *l, struct error *e)
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
    if (!rc) rc = add_rung(o, &sets, "no technique", &l->rows, &progress, e);
    for (enum technique_id id = 0; id < TECHNIQUES && !rc; id++) {
        if (id == TECHNIQUE_offload) l->base = l->rows.list.n - 1;
        if (id != TECHNIQUE_shard || run.ranks > 1) rc = compare_technique(o, id, &sets, &l->rows, &progress, e);
    }
    l->rungs = l->rows.list.n;
    if (!rc) rc = plan_what_ifs(o, &sets, &run, &l->rows, &progress, e);
    progress_clear();
    return rc;
}

/* A row that fits, beside `before`, the row that it is compared with, which may be NULL. */
static void put_compared(const struct row *r, const struct row *before, const struct row *first, int width,
                         struct text *out)
{
    char arena[32], saved[32], host[32], step[32];
    const int64_t less = before ? (int64_t)before->arena - (int64_t)r->arena : 0;
    text_printf(out, "%-*s %12s %s%11s %12s %12s %6.2fx\n", width, r->label, size_print(r->arena, arena),
                less < 0 ? "-" : " ", size_print((uint64_t)(less < 0 ? -less : less), saved), size_print(r->host, host),
                duration_print(r->seconds, step), r->seconds / first->seconds);
}

static void show_ladder(const struct ladder *l, struct text *out)
{
    const struct row *rows = l->rows.list.at, *last = NULL; /* the last row that fits */
    const uint32_t n = l->rows.list.n;
    int width = 28;
    for (uint32_t i = 0; i < n; i++) width = (int)max_i64(width, (int64_t)strlen(rows[i].label));
    text_printf(out, "%-*s %12s %12s %12s %12s %7s\n", width, "", "arena", "saved", host_name(rows[0].processor),
                "step", "ratio");
    for (uint32_t i = 0; i < n; i++) {
        if (i == l->rungs) {
            text_printf(out, "What if, instead of offload:\n");
            last = rows[l->base].fits ? &rows[l->base] : NULL;
        }
        if (put_refusal(&rows[i], width, out)) continue;
        put_compared(&rows[i], last, &rows[0], width, out);
        last = &rows[i];
    }
    if (n > l->rungs)
        text_printf(out, "LoRA (adapter.target_modules) and NF4 (memory.quantize) change the result of training: they "
                         "are yours to set.\n");
    note_warnings(&l->rows, false, out);
    note_times(&l->rows, out);
}

int table_compare(const struct options *o, struct error *e)
{
    struct ladder l = {0};
    struct text out = {0};
    int rc = plan_ladder(o, &l, e);
    if (!rc && o->json) {
        show_json("compare", &l.rows, l.rungs);
    } else if (!rc) {
        show_ladder(&l, &out);
        fputs(out.at, stdout);
    }
    text_free(&out);
    vec_free(&l.rows.list);
    return rc;
}

/* --- the frontier -------------------------------------------------------------------------- */

static const uint32_t STEPS[] = {1,  2,  3,  4,  6,  8,   10,  12,  16,  20,  24, 32,
                                 40, 48, 64, 80, 96, 128, 141, 192, 256, 384, 512};

/* Plans again within another budget and fills a row. */
static int next_row(struct trial *p, uint64_t budget, struct row *row, struct error *e)
{
    int rc = plan_within(p, budget, e);
    if (!rc) fill_row(row, p);
    return rc;
}

/* Plans for budgets from the smallest possible up to the one that no longer limits the plan:
 * common memory sizes, in the largest unit of 1 GiB / 16^k that leaves several rows. */
static int plan_budgets(const struct options *o, struct rows *rows, struct error *e)
{
    struct row most = {0}, least = {0};
    struct trial p;
    struct progress progress;
    /* no limit, the smallest, and those between them, which are not known yet */
    progress_begin(&progress, "planning", "budgets", 2);
    int rc = open_trial(&p, o, NULL, 0, 0, e);
    if (rc) return rc;
    progress_add(&progress, 1);
    fill_row(&most, &p);
    rc = next_row(&p, 1, &least, e); /* a budget of one byte: finds the smallest plan */
    uint64_t unit = GIB;
    while (unit > 1 << 10 && most.arena < 8 * unit) unit /= 16;
    snprintf(least.label, sizeof least.label, "smallest");
    if (!rc) rc = next_row(&p, least.arena, &least, e);
    if (!rc) vec_push(&rows->list, least);
    for (size_t i = 0; i < COUNT(STEPS); i++)
        progress.total += STEPS[i] * unit > least.arena && STEPS[i] * unit < most.arena;
    for (size_t i = 0; i < COUNT(STEPS) && !rc; i++) {
        struct row row = {0};
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
    close_trial(&p);
    return rc;
}

int table_frontier(const struct options *o, struct error *e)
{
    struct rows rows = {0};
    struct text out = {0};
    char arena[32], host[32];
    int rc = plan_budgets(o, &rows, e);
    if (!rc && o->json) {
        show_json("frontier", &rows, rows.list.n);
    } else if (!rc) {
        text_printf(&out, "%-14s %12s %12s %11s %12s  %s\n", "budget", "arena", host_name(rows.list.at[0].processor),
                    "micro-batch", "samples/s", "techniques");
        for (uint32_t i = 0; i < rows.list.n; i++) {
            const struct row *r = &rows.list.at[i];
            if (put_refusal(r, 14, &out)) continue;
            text_printf(&out, "%-14s %12s %12s %5d x %-3d %12.4g  ", r->label, size_print(r->arena, arena),
                        size_print(r->host, host), r->settings.micro_batch, r->settings.accumulation,
                        r->effective / r->seconds);
            settings_print(&r->settings, &out);
            text_printf(&out, "\n");
        }
        note_warnings(&rows, false, &out);
        note_times(&rows, &out);
        fputs(out.at, stdout);
    }
    text_free(&out);
    vec_free(&rows.list);
    return rc;
}

/* --- GPUs ------------------------------------------------------------------------------------- */

/* Plans for a GPU given by name, with its measured or published profile; or by its memory, with the
 * profile of a GPU of about that memory. */
static int gpu_row(const struct options *o, const char *gpu, struct row *row, struct error *e)
{
    char *end, profile[96];
    const char *sets[] = {"device.kind=cuda", profile}, *name = gpu;
    if (!*gpu)
        return error_set(e, PL_USAGE,
                         "--devices: a GPU is missing; expected GiB of memory or names, such as 8,24,h200");
    row->gib = strtod(gpu, &end);
    /* a GPU is sold by GB and has GiB */
    row->by_size = end > gpu && (!*end || !strcasecmp(end, "GiB") || !strcasecmp(end, "GB"));
    if (!row->by_size) {
        struct profile p;
        struct calibration *c = mem_alloc(sizeof *c);
        int rc = profile_gpu(&p, c, gpu, e);
        mem_free(c);
        if (rc) return error_prepend(e, "--devices: %s is not a number of GiB", gpu);
        row->gpu = p.memory_bytes;
        row->gib = (double)p.memory_bytes / (double)GIB;
        snprintf(row->label, sizeof row->label, "%.40s", gpu);
    /* half of it is the budget, and a budget of 0 would mean no limit */
    } else if (!(row->gib * (double)GIB >= 4 && row->gib <= GIB_MOST)) {
        struct text like = {0};
        const bool named = profile_gpu_like(gpu, &like);
        int rc = error_set(e, PL_USAGE, "--devices: %s GiB is not the memory of a GPU%s%s%s", gpu,
                           named ? "; did you mean " : "", named ? like.at : "", named ? "?" : "");
        text_free(&like);
        return rc;
    } else {
        name = profile_of_class(row->gib, &row->gpu);
        snprintf(row->label, sizeof row->label, "%g GiB", row->gib);
    }
    snprintf(profile, sizeof profile, "device.profile=%s", name);
    return plan_row(o, sets, COUNT(sets), row->gpu, row, e);
}

/* Names the GPUs whose figures were used for rows given by memory. */
static void note_classes(const struct rows *rows, struct text *out)
{
    struct text used = {0};
    for (uint32_t i = 0; i < rows->list.n; i++) {
        const struct row *r = &rows->list.at[i];
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

/* Prints the batch by rules of thumb below a row. */
static void put_rules(const struct row *r, struct text *out)
{
    double gigabytes = r->gib;
    int images = r->images ? (int)r->images : 1;
    struct rule_batch rule = rule_multi_image(gigabytes, images, r->effective),
                      corrected = rule_multi_image_corrected(gigabytes, images, r->effective);
    text_printf(out,
                "%-14s   multi-image rule: %d x %d = %d; with the weights and rounded up: %d x %d = %d; PRS-Med: %s; "
                "video: %s\n",
                "", rule.batch, rule.accumulation, rule.effective, corrected.batch, corrected.accumulation,
                corrected.effective, rule_prs_med(gigabytes), rule_video(gigabytes));
}

static void show_devices(const struct options *o, const struct rows *rows)
{
    struct text out = {0};
    char size[32], host[32];
    int width = 14;
    for (uint32_t i = 0; i < rows->list.n; i++) width = (int)max_i64(width, (int64_t)strlen(rows->list.at[i].label));
    text_printf(&out, "%-*s %12s %12s %18s %12s %-14s  %s\n", width, "GPU", "arena", "host memory", "batch",
                "samples/s", "profile", "techniques");
    for (uint32_t i = 0; i < rows->list.n; i++) {
        const struct row *r = &rows->list.at[i];
        if (!put_refusal(r, width, &out)) {
            text_printf(&out, "%-*s %12s %12s %4d x %-3d = %-6d %12.4g %-14s  ", width, r->label,
                        size_print(r->arena, size), size_print(r->host, host), r->settings.micro_batch,
                        r->settings.accumulation, r->effective, r->effective / r->seconds, r->profile);
            settings_print(&r->settings, &out);
            text_printf(&out, "\n");
        }
        if (o->rules) put_rules(r, &out);
    }
    text_printf(
        &out, "%s of each GPU (half of a GPU with less than twice that) are reserved for the CUDA context and code.\n",
        size_print(GPU_RESERVE, size));
    note_classes(rows, &out);
    note_warnings(rows, true, &out);
    note_times(rows, &out);
    if (o->rules) rules_errata(&out);
    fputs(out.at, stdout);
    text_free(&out);
}

/* The next word of a list with commas; false at its end. No list, NULL, has one word, NULL. */
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

static void add_label(struct row *row, bool several, int64_t n, const char *what)
{
    const size_t at = strlen(row->label);
    if (several && n)
        snprintf(row->label + at, sizeof row->label - at, ", %lld %s%s", (long long)n, what, n == 1 ? "" : "s");
}

/* The rows of one GPU: a row for each number of images and of frames. */
static int gpu_rows(const struct options *o, const char *gpu, struct rows *rows, struct progress *p, struct error *e)
{
    struct options one = *o;
    char images[32], frames[32];
    int rc = PL_OK;
    for (const char *i = o->images; !rc && next_word(&i, images, &one.images);)
        for (const char *f = o->frames; !rc && next_word(&f, frames, &one.frames);) {
            struct row row = {.images = one.images ? atoll(one.images) : 0,
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

int table_devices(const struct options *o, struct error *e)
{
    struct rows rows = {0};
    char list[512], *at = list;
    int rc = PL_OK;
    snprintf(list, sizeof list, "%s", o->devices ? o->devices : "8,16,24,40,80");
    struct progress progress;
    progress_begin(&progress, "planning", "rows", count_words(list) * count_words(o->images) * count_words(o->frames));
    for (char *gpu; !rc && (gpu = strsep(&at, ","));) rc = gpu_rows(o, gpu, &rows, &progress, e);
    progress_clear();
    if (!rc && o->json) show_json("devices", &rows, rows.list.n);
    else if (!rc) show_devices(o, &rows);
    vec_free(&rows.list);
    return rc;
}

int plan_table(const struct options *o, struct error *e)
{
    int tables = o->compare + o->frontier + (o->devices || o->rules);
    if (tables > 1)
        return error_set(e, PL_USAGE, "--compare, --frontier and --devices are separate tables: give one of them");
    if (o->memory || o->plan || o->output || o->explain)
        return error_set(e, PL_USAGE, "a table holds many plans: leave out --memory, --plan, --explain and -o");
    return o->compare ? table_compare(o, e) : o->frontier ? table_frontier(o, e) : table_devices(o, e);
}
