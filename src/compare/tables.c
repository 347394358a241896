/*
 * tables.c: see plan_request.h.
 */
#include "compare/plan_request.h"

#include <strings.h>

#include "adapter/adapter.h"
#include "base/progress.h"
#include "cost/calibration.h"
#include "cost/profile.h"

static const uint64_t GIB = (uint64_t)1 << 30;

enum { GIB_MOST = 1024 }; /* GiB that a GPU of --devices may have */

/* --- the ladder ------------------------------------------------------------------------------- */

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
struct own_keys {
    int share, ranks;            /* samples of a step, of one of its shares; ranks */
    bool adapter, quantize;
};

static int ask_run(const struct plan_source *s, struct own_keys *out, struct error *e)
{
    struct config c;
    TRY(plan_source_read(s, &c, e));
    const int64_t ranks = max_i64(1, c.parallel_ranks), data = max_i64(1, ranks / max_i64(1, c.parallel_tensor)),
                  shares = c.parallel_shares > 0 ? c.parallel_shares : data;
    *out = (struct own_keys){(int)ceil_div(c.train_effective_batch, shares), (int)ranks, adapter_given(&c),
                          strcmp(c.memory_quantize.value, "none") != 0};
    config_free(&c);
    return PL_OK;
}

/* Adds a row with all settings of `sets` and the keys of `more`. */
static int add_row(const struct plan_source *s, const struct sets *sets, const char *const *more, size_t n_more,
                   const char *label, struct plan_rows *rows, struct progress *p, struct error *e)
{
    struct plan_row row = {0};
    const char *at[TECHNIQUES + COUNT(LORA) + 1];
    size_t n = 0;
    for (int i = 0; i < TECHNIQUES; i++)
        if (*sets->at[i]) at[n++] = sets->at[i];
    for (size_t i = 0; i < n_more; i++) at[n++] = more[i];
    snprintf(row.label, sizeof row.label, "%s", label);
    TRY(plan_row_make(s, &(struct plan_change){.sets = at, .n = n}, &row, e));
    vec_push(&rows->list, row);
    progress_add(p, 1);
    return PL_OK;
}

/* Adds the rows of one technique: each of its values for comparison replaces the one before. There
 * are none if this device's ladder lacks what the technique needs. */
static int compare_technique(const struct plan_source *s, enum technique_id id, struct sets *sets,
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
        rc = add_row(s, sets, NULL, 0, label, rows, p, e);
        if (rc == PL_USAGE && t->compare_else) {
            add_set(sets, id, t->compare_else);
            technique_label(id, &sets->s, label + 2);
            rc = add_row(s, sets, NULL, 0, label, rows, p, e);
        }
        if (rc) return rc;
    }
    return PL_OK;
}

/* Plans the run with an adapter, and with frozen weights in 4 bits, where it has neither.
 * A model that they do not apply to (no linear layers) has no such row. */
static int plan_what_ifs(const struct plan_source *s, struct sets *sets, const struct own_keys *run,
                         struct plan_rows *rows, struct progress *p, struct error *e)
{
    const char *keys[COUNT(LORA) + 1];
    size_t n = 0;
    int rc = PL_OK;
    if (run->quantize) return PL_OK;
    add_set(sets, technique_in(CLASS_PLACES), techniques[technique_in(CLASS_PLACES)].off);
    if (!run->adapter) {
        for (; n < COUNT(LORA); n++) keys[n] = LORA[n];
        rc = add_row(s, sets, keys, n, "LoRA, r 16 on all linear layers", rows, p, e);
    }
    keys[n++] = NF4;
    if (!rc) rc = add_row(s, sets, keys, n, run->adapter ? "NF4" : "LoRA + NF4", rows, p, e);
    return rc == PL_USAGE ? PL_OK : rc;
}

int plan_ladder(const struct plan_source *s, struct ladder *l, struct error *e)
{
    struct sets sets = {0};
    struct own_keys run = {0};
    struct progress progress;
    char share[SETTING_ROOM], value[SETTING_ROOM];
    int rc = ask_run(s, &run, e);
    uint32_t count = 1 + 2;
    snprintf(share, sizeof share, "%d", run.share);
    for (enum technique_id id = 0; id < TECHNIQUES && !rc; id++) {
        if (!techniques[id].rules) add_set(&sets, id, techniques[id].off ? techniques[id].off : share);
        for (int i = 0; technique_value(techniques[id].compare, i, value); i++) count++;
    }
    progress_begin(&progress, "planning", "rows", count);
    if (!rc) rc = add_row(s, &sets, NULL, 0, "no technique", &l->rows, &progress, e);
    for (enum technique_id id = 0; id < TECHNIQUES && !rc; id++) {
        if (techniques[id].class == CLASS_PLACES) l->base = l->rows.list.n - 1;
        if (techniques[id].class != CLASS_SHARES || run.ranks > 1)
            rc = compare_technique(s, id, &sets, &l->rows, &progress, e);
    }
    l->rungs = l->rows.list.n;
    if (!rc) rc = plan_what_ifs(s, &sets, &run, &l->rows, &progress, e);
    progress_clear();
    return rc;
}

/* --- the frontier ----------------------------------------------------------------------------- */

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

int plan_frontier(const struct plan_source *s, struct plan_rows *rows, struct error *e)
{
    struct plan_row most = {0}, least = {0};
    struct plan_trial p;
    struct progress progress;
    /* no limit, the smallest, and those between them, which are not known yet */
    progress_begin(&progress, "planning", "budgets", 2);
    TRY(plan_trial_open(&p, s, &(struct plan_change){0}, e));
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
static int gpu_row(const struct plan_source *s, const char *gpu, struct plan_row *row, struct error *e)
{
    char profile[64], set[96];
    const char *sets[] = {"device.kind=cuda", set};
    if (plan_row_gpu(gpu, row, profile, e)) return error_prepend(e, "--devices");
    snprintf(set, sizeof set, "device.profile=%s", profile);
    return plan_row_make(s, &(struct plan_change){.sets = sets, .n = COUNT(sets), .gpu = row->gpu}, row, e);
}

static void add_label(struct plan_row *row, bool several, int64_t n, const char *what)
{
    const size_t at = strlen(row->label);
    if (several && n)
        snprintf(row->label + at, sizeof row->label - at, ", %lld %s%s", (long long)n, what, n == 1 ? "" : "s");
}

/* Adds the rows of one GPU: one for each number of images and of frames. */
static int gpu_rows(const struct plan_source *s, const char *gpu, const struct counts *images,
                    const struct counts *frames, struct plan_rows *rows, struct progress *p, struct error *e)
{
    struct plan_source one = *s;
    for (uint32_t i = 0; i < max_i64(1, images->list.n); i++)
        for (uint32_t f = 0; f < max_i64(1, frames->list.n); f++) {
            if (images->list.n) one.media.images = images->list.at[i];
            if (frames->list.n) one.media.frames = frames->list.at[f];
            struct plan_row row = {.images = one.media.images, .frames = one.media.frames};
            TRY(gpu_row(&one, gpu, &row, e));
            add_label(&row, images->list.n > 1, row.images, "image");
            add_label(&row, frames->list.n > 1, row.frames, "frame");
            vec_push(&rows->list, row);
            progress_add(p, 1);
        }
    return PL_OK;
}

int plan_devices(const struct plan_source *s, const char *gpus, const struct counts *images,
                 const struct counts *frames, struct plan_rows *rows, struct error *e)
{
    char list[512], *at = list;
    struct progress progress;
    uint64_t n = 1;
    int rc = PL_OK;
    snprintf(list, sizeof list, "%s", gpus);
    for (const char *c = list; *c; c++) n += *c == ',';
    progress_begin(&progress, "planning", "rows",
                   n * (uint64_t)max_i64(1, images->list.n) * (uint64_t)max_i64(1, frames->list.n));
    for (char *gpu; !rc && (gpu = strsep(&at, ","));) rc = gpu_rows(s, gpu, images, frames, rows, &progress, e);
    progress_clear();
    return rc;
}

/* --- ranks ------------------------------------------------------------------------------------ */

int plan_ranks(const struct plan_source *s, const int64_t *ranks, int n, struct plan_rows *rows, bool *without,
               struct error *e)
{
    struct plan_row within = {0}, one;
    struct progress progress;
    progress_begin(&progress, "planning", "numbers of ranks", (uint64_t)n + 1);
    int rc = plan_row_make(s, &(struct plan_change){.ranks = 1, .budget = true}, &within, e);
    one = within;
    *without = !within.fits;
    if (!rc && *without) rc = plan_row_make(s, &(struct plan_change){.ranks = 1}, &one, e);
    for (int i = 0; i < n && !rc; i++, progress_add(&progress, 1)) {
        struct plan_row row = within;
        if (ranks[i] != 1) rc = plan_row_make(s, &(struct plan_change){.ranks = ranks[i], .budget = true}, &row, e);
        if (!rc && row.fits && one.fits)
            row.efficiency = row.effective / row.seconds / (one.effective / one.seconds * row.ranks);
        vec_push(&rows->list, row);
    }
    progress_clear();
    return rc;
}
