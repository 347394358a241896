/*
 * fits.c: `plimsoll fits MODEL --gpu 12`: whether a model can be fine-tuned on a GPU, and how. Each
 * row is a plan of one way of fine-tuning on one GPU (compare/tables.h).
 */
#include "cli/plan_tables.h"
#include "compare/tables.h"
#include "io/table.h"
#include "models/catalogue.h"

enum { TOKENS = 2048, BATCH = 8 };

struct fits_options {
    struct plan_options plan;
    const char *gpu;
    uint64_t tokens, batch;
};

/* What is asked: a run file, or a model with the keys that it needs. */
struct fits_run {
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
static int ask_model(struct fits_options *f, struct fits_run *a, struct error *e)
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

static int ask(struct fits_options *f, struct fits_run *a, struct error *e)
{
    struct options *o = &f->plan.o;
    const bool file = !o->run || text_ends_with(o->run, ".yaml") || text_ends_with(o->run, ".yml");
    a->run = o->run;
    if (!file) TRY(ask_model(f, a, e));
    set_count(o, NULL, "data.sequence", f->tokens);
    set_count(o, &a->keys, "train.effective_batch", f->batch);
    TRY(plan_options_read(&f->plan, false, e));
    TRY(plan_source_read(&f->plan.source, &a->config, e));
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

/* --- printing --------------------------------------------------------------------------------- */

static const struct report_column COLUMNS[] = {
    {"way"}, {NULL, ""}, {"gpu", "GPU"}, {"fits"}, {"arena_bytes", "GPU memory", "bytes"},
    {"smallest_budget_bytes"}, {"host_bytes", "host memory", "bytes"}, {"budget_bytes"}, {"gpu_memory_bytes"},
    {NULL, "batch", ""}, {"samples_per_second", "samples/s", "%.3g"}, {"tokens_per_second", "tokens/s", "%.0f"},
    {"profile"}, {"measured"}, {"techniques", "techniques"}, {"command"}};

static void add_way(struct report_table *t, const struct way *w, const struct plan_row *r, const struct fits_run *a)
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

static void print_text(const struct report_table *t, const struct plan_rows *rows, const struct fits_run *a)
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

static int fits(struct options *o, struct error *e)
{
    struct fits_options *f = (struct fits_options *)o;
    struct fits_run a = {0};
    struct plan_rows rows = {0};
    struct way_list ways = {0};
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
    if (!rc) rc = plan_ways(&f->plan.source, &a.config, &a.model, f->gpu, &rows, &ways, e);
    for (uint32_t i = 0; i < rows.list.n; i++) {
        any |= rows.list.at[i].fits;
        add_way(&t, ways.list.at[i], &rows.list.at[i], &a);
    }
    if (!rc && o->json) PRINT_FACTS(2, FACT("fits", any), FACT_TABLE("ways", &t));
    else if (!rc) print_text(&t, &rows, &a);
    if (!rc && !any) rc = error_set(e, PL_NOFIT, "nothing fits: a shorter row (--tokens) needs less memory");
    table_free(&t);
    vec_free(&rows.list);
    vec_free(&ways.list);
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
    "  --image-size WxH   their size, where their tokens follow from it; default: 1024x1024\n"
    "  --batch N        samples of a step: train.effective_batch; default: 8",
    .shared = OPT_RUN | OPT_NO_RUN | OPT_JSON, COMMAND_OPTIONS(OPTIONS), COMMAND_STATE(START), .run = fits};
