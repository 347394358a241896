/*
 * ways.c: the ways in which people fine-tune a model, as keys of a run file (plan_request.h).
 */
#include "adapter/adapter.h"
#include "base/progress.h"
#include "compare/plan_request.h"
#include "io/table.h"

enum { WAY_KEYS = 4 };

struct way {
    const char *name;            /* of JSON: "qlora" */
    const char *label;           /* "QLoRA" */
    const char *keys[WAY_KEYS];  /* key=value, up to a NULL */
};
struct way_list {
    VEC(const struct way *) list;
};

#define LORA "adapter.target_modules=all-linear", "adapter.r=16"

enum { FULL, FROZEN, LORA_16, LORA_4 };
/* The first one changes nothing; a row without a name ends the table. */
static const struct way ways[] = {
    [FULL] = {"full", "full fine-tuning", {NULL}},
    [FROZEN] = {"frozen", "vision tower frozen", {"model.freeze=vision_tower"}},
    [LORA_16] = {"lora", "LoRA, r 16", {LORA, "model.freeze=[]"}},
    [LORA_4] = {"qlora", "QLoRA, r 16, NF4", {LORA, "model.freeze=[]", "memory.quantize=nf4"}},
    {0},
};

/* Reports whether a way differs from what a run does already: its vision tower can be frozen, it
 * has no adapter, its weights are not in 4 bits. */
static bool way_differs(const struct way *w, const struct config *c, const struct model *m)
{
    const bool adapter = adapter_given(c), quantized = strcmp(c->memory_quantize.value, "none") != 0;
    switch (w - ways) {
    case FROZEN: return m->encoder && !c->model_freeze.n && !adapter;
    case LORA_16: return !adapter;
    case LORA_4: return !quantized;
    default: return true;
    }
}

/* Appends " --set key=value" for each key of a way that is not the default. */
static void way_print(const struct way *w, struct text *out)
{
    for (int i = 0; i < WAY_KEYS && w->keys[i]; i++)
        if (!strchr(w->keys[i], '[')) text_printf(out, " --set %s", w->keys[i]); /* an empty list is the default */
}

/* The keys of a way on a GPU. */
struct way_keys {
    char profile[96];
    const char *sets[WAY_KEYS + 3];
};

/* Returns the change that plans one way on a GPU, with the host memory that is likely. */
static int change_to(const struct way *w, const char *gpu, struct way_keys *keys, struct plan_row *row,
                     struct plan_change *x, struct error *e)
{
    char profile[64];
    if (plan_row_gpu(gpu, row, profile, e)) return error_prepend(e, "--gpu");
    snprintf(keys->profile, sizeof keys->profile, "device.profile=%s", profile);
    *x = (struct plan_change){.sets = keys->sets, .gpu = row->gpu, .host = offload_likely(row->gpu), .plain = true,
                              .fitting = true};
    keys->sets[x->n++] = "device.kind=cuda";
    keys->sets[x->n++] = keys->profile;
    for (int i = 0; i < WAY_KEYS && w->keys[i]; i++) keys->sets[x->n++] = w->keys[i];
    return PL_OK;
}

/* Plans one way on one GPU. */
static int plan_way(const struct plan_source *s, const struct way *w, const char *gpu, struct plan_row *row,
                    struct error *e)
{
    struct plan_trial p;
    struct way_keys keys;
    struct plan_change x;
    TRY(change_to(w, gpu, &keys, row, &x, e));
    TRY(plan_trial_open(&p, s, &x, e));
    if (p.rc && p.run.has_space) p.rc = planned_with_host(&p.run, UINT64_MAX / 2, e);
    const int rc = p.rc == PL_NOFIT ? PL_OK : p.rc;
    if (!rc) plan_row_fill(row, &p);
    plan_trial_close(&p);
    return rc;
}

/* Finds a long row of a way that fits in a step by itself: of the last way on a GPU that fits,
 * which needs the least memory. */
static int plan_way_row(const struct plan_source *s, const struct way *w, const char *gpu, struct plan_row *row,
                        struct error *e)
{
    struct way_keys keys;
    struct plan_change x;
    struct plan_row longest = {0};
    TRY(change_to(w, gpu, &keys, &longest, &x, e));
    keys.sets[x.n++] = "train.effective_batch=1";
    TRY(plan_longest_row(s, &x, true, &longest, e));
    row->tokens = longest.tokens;
    return PL_OK;
}

/* Plans every way on each GPU; list[i] is that of row i. A way that a model has nothing for (no
 * linear layers), or that the run is already, has no row. */
static int plan_ways(const struct ways_request *r, struct plan_rows *rows, struct way_list *list, struct error *e)
{
    char words[512], *at = words;
    struct progress progress;
    progress_begin(&progress, "planning", "rows", 0);
    snprintf(words, sizeof words, "%s", r->gpus);
    for (char *gpu; (gpu = strsep(&at, ","));) {
        uint32_t best = UINT32_MAX;
        for (const struct way *w = ways; w->name; w++) {
            struct plan_row row = {0};
            if (!way_differs(w, r->config, r->model)) continue;
            const int rc = plan_way(r->source, w, gpu, &row, e);
            if (rc && (rc != PL_USAGE || w == ways)) return rc;
            if (rc) continue;
            if (row.fits) best = rows->list.n;
            vec_push(&rows->list, row);
            vec_push(&list->list, w);
            progress_add(&progress, 1);
        }
        if (r->tokens && best != UINT32_MAX)
            TRY(plan_way_row(r->source, list->list.at[best], gpu, &rows->list.at[best], e));
    }
    progress_clear();
    return PL_OK;
}

/* --- printing --------------------------------------------------------------------------------- */

static const struct report_column COLUMNS[] = {
    {"way"}, {NULL, ""}, {"gpu", "GPU"}, {"fits"}, {"arena_bytes", "GPU memory", "bytes"},
    {"smallest_budget_bytes"}, {"host_bytes", "host memory", "bytes"}, {"budget_bytes"}, {"gpu_memory_bytes"},
    {NULL, "batch", ""}, {"samples_per_second", "samples/s", "%.3g"}, {"tokens_per_second", "tokens/s", "%.0f"},
    {"longest_row"},
    {"profile"}, {"measured"}, {"techniques", "techniques"}, {"command"}};

static void add_way(struct report_table *t, const struct way *w, const struct plan_row *r, const struct ways_request *a)
{
    struct text techniques = {0}, command = {0}, refusal = {0};
    char batch[32], size[2][32];
    const double speed = r->effective / r->seconds;
    settings_print(&r->settings, &techniques);
    snprintf(batch, sizeof batch, "%d x %d", r->settings.micro_batch, r->settings.accumulation);
    text_printf(&command, "plimsoll train %s%s", a->run, a->keys.n ? a->keys.at : "");
    way_print(w, &command);
    struct report_row *row =
        TABLE_ADD(t, CELL(w->name), CELL(w->label), CELL(r->label), CELL(r->fits), CELL_IF(r->fits, r->arena),
                  CELL_IF(!r->fits, r->arena), CELL(r->host), CELL(r->budget), CELL(r->gpu), CELL((const char *)batch),
                  CELL_IF(r->fits, speed), CELL_IF(r->fits && a->tokens, speed * (double)a->tokens),
                  CELL_IF(r->fits && r->tokens, r->tokens),
                  CELL((const char *)r->profile), CELL_IF(r->fits, r->measured), CELL(techniques.at),
                  CELL_IF(r->fits, command.at));
    if (!r->fits)
        text_printf(&refusal, "%s: does not fit: needs %s and %s of host memory", r->label,
                    size_print(r->arena, size[0]), size_print(r->host, size[1]));
    if (!r->fits) table_note(t, row, refusal.at);
    text_free(&techniques);
    text_free(&command);
    text_free(&refusal);
}

static void print_text(const struct report_table *t, const struct plan_rows *rows, const struct ways_request *a)
{
    struct text out = {0};
    char likely[32];
    table_print(t, 0, 0, &out);
    text_printf(&out, "\nTo run one of them:\n%s", a->first.n ? a->first.at : "");
    for (uint32_t i = 0; i < rows->list.n; i++)
        if (rows->list.at[i].fits) {
            const struct cell *c = t->rows.at[i].cells;
            text_printf(&out, "  %s    # %s, %s\n", c[COUNT(COLUMNS) - 1].text, c[1].text, c[2].text);
        }
    text_printf(&out, "\n%lld samples a step%s. ", (long long)a->config->train_effective_batch,
                a->tokens ? "" : ", whose images have the model's own size");
    if (a->tokens) text_printf(&out, "A sample has %lld tokens. ", (long long)a->tokens);
    text_printf(&out, "Host memory is held to %s where that suffices: twice the GPU's memory, at least 32 GiB.\n",
                size_print(offload_likely(rows->list.at[0].gpu), likely));
    for (uint32_t i = 0; i < rows->list.n; i++)
        if (rows->list.at[i].fits && rows->list.at[i].host > offload_likely(rows->list.at[i].gpu))
            text_printf(&out, "%s, %s: more host memory than a machine with such a GPU is likely to have.\n",
                        t->rows.at[i].cells[1].text, rows->list.at[i].label);
    for (uint32_t i = 0; i < rows->list.n; i++)
        if (rows->list.at[i].tokens)
            text_printf(&out, "In a step by itself, a row of %lld tokens fits: %s, %s.\n",
                        (long long)rows->list.at[i].tokens, t->rows.at[i].cells[1].text, rows->list.at[i].label);
    plan_note_gpus(rows, &out);
    plan_note_times(rows, &out);
    fputs(out.at, stdout);
    text_free(&out);
}

int ways_request_run(const struct ways_request *r, struct error *e)
{
    struct plan_rows rows = {0};
    struct way_list ways = {0};
    struct report_table t = REPORT_TABLE(COLUMNS);
    bool any = false;
    int rc = plan_ways(r, &rows, &ways, e);
    for (uint32_t i = 0; i < rows.list.n; i++) {
        any |= rows.list.at[i].fits;
        add_way(&t, ways.list.at[i], &rows.list.at[i], r);
    }
    if (!rc && r->json) PRINT_FACTS(2, FACT("fits", any), FACT_TABLE("ways", &t));
    else if (!rc) print_text(&t, &rows, r);
    if (!rc && !any) rc = error_set(e, PL_NOFIT, "nothing fits: a shorter row (--tokens) needs less memory");
    table_free(&t);
    vec_free(&rows.list);
    vec_free(&ways.list);
    return rc;
}
