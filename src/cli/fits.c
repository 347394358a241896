/*
 * fits.c: `plimsoll fits MODEL --gpu 12`: whether a model can be fine-tuned on a GPU, and how. Each
 * row is a plan (plan.h) of one way of fine-tuning on one GPU.
 */
#include "adapter/adapter.h"
#include "base/progress.h"
#include "cli/plan.h"
#include "io/table.h"
#include "models/catalogue.h"

enum { TOKENS = 2048, BATCH = 8 };

/* The ways in which people fine-tune a model, as keys of a run file. */
enum { WAY_KEYS = 4 };

struct way {
    const char *name;            /* of JSON: "qlora" */
    const char *label;           /* "QLoRA" */
    const char *keys[WAY_KEYS];  /* key=value, up to a NULL */
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
    case FROZEN: return (m->images || m->masks) && !c->model_freeze.n && !adapter;
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

struct fits_options {
    struct plan_options plan;
    const char *gpu;
    uint64_t tokens, batch;
};

/* What is asked: a run file, or a model with the keys that it needs. */
struct asked {
    struct config config;
    struct model model;
    const char *run;             /* the file of the row's commands */
    struct text first, keys;     /* the commands before these; " --set" of what was asked */
    int64_t tokens;              /* of a sample; 0: it has none */
};

static void set_key(struct options *o, struct text *shown, const char *key, const char *value)
{
    struct text set = {0};
    text_printf(&set, "%s=%s", key, value);
    vec_push(&o->set, mem_string(set.at));
    if (shown) text_printf(shown, " --set %s", set.at);
    text_free(&set);
}

static void set_count(struct options *o, struct text *shown, const char *key, uint64_t value)
{
    char text[32];
    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    if (value) set_key(o, shown, key, text);
}

/* Sets the keys of a model, and prints the commands that make a run file for it. */
static int ask_model(struct fits_options *f, struct asked *a, struct error *e)
{
    struct options *o = &f->plan.o;
    const char *name = o->run;
    struct text folder = {0}, download = {0};
    TRY(model_find(&a->model, name, e));
    const bool preset = !*a->model.path;
    if (!a->model.masks && !a->model.vocabulary)
        return error_set(e, PL_USAGE, "%s is a %s, which trains with a head over it: give a RUN.yaml, as `plimsoll "
                         "init --model %s --data DIR` writes it", name, a->model.family->model_type, name);
    o->run = NULL;
    set_key(o, NULL, preset ? "model.preset" : "model.path", name);
    if (preset && catalogue_download(name, &download, &folder)) text_printf(&a->first, "  %s\n", download.at);
    text_printf(&a->first, "  plimsoll init --model %s --data DIR > run.yaml\n", folder.n ? folder.at : name);
    if (!f->tokens && a->model.vocabulary)
        f->tokens = a->model.longest ? min_u64(TOKENS, (uint64_t)a->model.longest) : TOKENS;
    if (!f->batch) f->batch = BATCH;
    if (a->model.images && !f->plan.images) f->plan.images = "1";
    a->run = "run.yaml";
    text_free(&folder);
    text_free(&download);
    return PL_OK;
}

static int ask(struct fits_options *f, struct asked *a, struct error *e)
{
    struct options *o = &f->plan.o;
    const bool file = !o->run || text_ends_with(o->run, ".yaml") || text_ends_with(o->run, ".yml");
    a->run = o->run;
    if (!file) TRY(ask_model(f, a, e));
    set_count(o, NULL, "data.sequence", f->tokens);
    set_count(o, &a->keys, "train.effective_batch", f->batch);
    TRY(plan_configure(&f->plan, &a->config, e));
    if (file) TRY(config_check(&a->config, CONFIG_NEEDS_MODEL, e));
    if (file) TRY(config_open_model(&a->config, &a->model, e));
    a->tokens = a->model.vocabulary && !a->model.masks ? a->config.data_sequence : 0;
    if (a->tokens && (!file || f->tokens || f->plan.images)) {
        text_printf(&a->keys, " --set data.sequence=%lld", (long long)a->tokens);
        if (a->model.images && a->config.data_max_images > 0)
            text_printf(&a->keys, " --set data.max_images=%lld", (long long)a->config.data_max_images);
        if (a->config.data_max_patches > 0)
            text_printf(&a->keys, " --set data.max_patches=%lld", (long long)a->config.data_max_patches);
    }
    return PL_OK;
}

/* Plans one way on one GPU, with the host memory that a machine with such a GPU is likely to have;
 * if that does not suffice, with any. */
static int plan_way(const struct fits_options *f, const struct way *w, const char *gpu, struct plan_row *row,
                    struct error *e)
{
    char profile[64], set[96];
    const char *sets[WAY_KEYS + 2] = {"device.kind=cuda", set};
    struct plan_change x = {.sets = sets, .n = 2, .plain = true};
    if (plan_row_gpu(gpu, row, profile, e)) return error_prepend(e, "--gpu");
    snprintf(set, sizeof set, "device.profile=%s", profile);
    for (int i = 0; i < WAY_KEYS && w->keys[i]; i++) sets[x.n++] = w->keys[i];
    x.gpu = row->gpu;
    x.host = offload_likely(row->gpu);
    int rc = plan_row_make(&f->plan, &x, row, e);
    x.host = UINT64_MAX / 2;
    return rc || row->fits ? rc : plan_row_make(&f->plan, &x, row, e);
}

/* --- printing --------------------------------------------------------------------------------- */

static const struct report_column COLUMNS[] = {
    {"way"}, {NULL, ""}, {"gpu", "GPU"}, {"fits"}, {"arena_bytes", "GPU memory", "bytes"},
    {"smallest_budget_bytes"}, {"host_bytes", "host memory", "bytes"}, {"budget_bytes"}, {"gpu_memory_bytes"},
    {NULL, "batch", ""}, {"samples_per_second", "samples/s", "%.3g"}, {"tokens_per_second", "tokens/s", "%.0f"},
    {"profile"}, {"measured"}, {"techniques", "techniques"}, {"command"}};

static void add_way(struct report_table *t, const struct way *w, const struct plan_row *r, const struct asked *a)
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

static void print_text(const struct report_table *t, const struct plan_rows *rows, const struct asked *a)
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
    text_printf(&out, "\n%lld samples a step%s. ", (long long)a->config.train_effective_batch,
                a->tokens ? "" : ", whose images have the model's own size");
    if (a->tokens) text_printf(&out, "A sample has %lld tokens. ", (long long)a->tokens);
    text_printf(&out, "Host memory is held to %s where that suffices: twice the GPU's memory, at least 32 GiB.\n",
                size_print(offload_likely(rows->list.at[0].gpu), likely));
    for (uint32_t i = 0; i < rows->list.n; i++)
        if (rows->list.at[i].fits && rows->list.at[i].host > offload_likely(rows->list.at[i].gpu))
            text_printf(&out, "%s, %s: more host memory than a machine with such a GPU is likely to have.\n",
                        t->rows.at[i].cells[1].text, rows->list.at[i].label);
    plan_note_gpus(rows, &out);
    plan_note_times(rows, &out);
    fputs(out.at, stdout);
    text_free(&out);
}

/* --- the command ------------------------------------------------------------------------------ */

/* Plans every way on every GPU. A way that a model has nothing for (no linear layers) has no
 * row. */
static int plan_ways(const struct fits_options *f, const struct asked *a, struct plan_rows *rows,
                     struct report_table *t, struct error *e)
{
    char list[512], *at = list;
    struct progress progress;
    progress_begin(&progress, "planning", "rows", 0);
    snprintf(list, sizeof list, "%s", f->gpu);
    for (char *gpu; (gpu = strsep(&at, ","));)
        for (const struct way *w = ways; w->name; w++) {
            struct plan_row row = {0};
            if (!way_differs(w, &a->config, &a->model)) continue;
            const int rc = plan_way(f, w, gpu, &row, e);
            if (rc && (rc != PL_USAGE || w == ways)) return rc;
            if (rc) continue;
            vec_push(&rows->list, row);
            add_way(t, w, &row, a);
            progress_add(&progress, 1);
        }
    progress_clear();
    return PL_OK;
}

static int fits(struct options *o, struct error *e)
{
    struct fits_options *f = (struct fits_options *)o;
    struct asked a = {0};
    struct plan_rows rows = {0};
    struct report_table t = REPORT_TABLE(COLUMNS);
    bool any = false;
    if (!o->run && !o->from.n)
        return error_set(e, PL_USAGE, "expected a model folder, a name of `plimsoll models` or a RUN.yaml: plimsoll %s",
                         command_fits.usage);
    if (!f->gpu)
        return error_set(e, PL_USAGE,
                         "no GPU is given: add --gpu with GiB of memory or a name, such as 12 or rtx-4090");
    config_init(&a.config);
    int rc = ask(f, &a, e);
    if (!rc) rc = plan_ways(f, &a, &rows, &t, e);
    for (uint32_t i = 0; i < rows.list.n; i++) any |= rows.list.at[i].fits;
    if (!rc && o->json) PRINT_FACTS(2, FACT("fits", any), FACT_TABLE("ways", &t));
    else if (!rc) print_text(&t, &rows, &a);
    if (!rc && !any) rc = error_set(e, PL_NOFIT, "nothing fits: a shorter row (--tokens) needs less memory");
    table_free(&t);
    vec_free(&rows.list);
    text_free(&a.first);
    text_free(&a.keys);
    model_close(&a.model);
    config_free(&a.config);
    return rc;
}

static const struct fits_options START;
static const struct option OPTIONS[] = {
    OPTION(struct fits_options, "--gpu", TEXT, gpu), OPTION(struct fits_options, "--tokens", POSITIVE, tokens),
    OPTION(struct fits_options, "--images", TEXT, plan.images),
    OPTION(struct fits_options, "--image-size", TEXT, plan.image_size),
    OPTION(struct fits_options, "--batch", POSITIVE, batch)};

const struct command command_fits = {
    "fits",
    "fits MODEL | RUN.yaml --gpu LIST [--tokens N] [--images N] [--image-size WxH] [--batch N] "
    "[--set key=value]... [--json]",
    "Shows whether a model can be fine-tuned on a GPU, which need not be here: full fine-tuning, with a\n"
    "frozen vision tower, with LoRA and with QLoRA. Each row is a plan with exact bytes and a predicted\n"
    "speed, and has a command that runs it. MODEL is a model folder or a name of `plimsoll models`, which\n"
    "needs no download. Exit code 3: nothing fits.\n"
    "  --gpu LIST       GPUs, by GiB of memory or by name: 12 or 8,24,rtx-4090\n"
    "  --tokens N       tokens of text in a sample: data.sequence; default: 2048\n"
    "  --images N       images in a sample of a model that takes images; default: 1\n"
    "  --image-size WxH   their size, for a model that takes images of any size; default: 1024x1024\n"
    "  --batch N        samples of a step: train.effective_batch; default: 8",
    .shared = OPT_RUN | OPT_NO_RUN | OPT_JSON, COMMAND_OPTIONS(OPTIONS), COMMAND_STATE(START), .run = fits};
