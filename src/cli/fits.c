/*
 * fits.c: `plimsoll fits MODEL --gpu 12`: whether a model can be fine-tuned on a GPU, and how
 * (compare/plan_request.h).
 */
#include "cli/cli.h"
#include "compare/plan_request.h"
#include "models/catalogue.h"

enum { TOKENS = 2048, BATCH = 8 };

struct fits {
    struct options o;
    struct plan_request sizes; /* of images */
    struct ways_request of;
    struct config config;
    struct model model;
    uint64_t tokens, batch;
};

static void set_key(struct options *o, const char *key, const char *value)
{
    struct text set = {0};
    text_printf(&set, "%s=%s", key, value);
    vec_push(&o->set, set.at);
}

static void set_count(struct options *o, const char *key, uint64_t value)
{
    char text[32];
    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    if (value) set_key(o, key, text);
}

/* Sets the keys of a model, and prints the commands that make a run file for it. */
static int ask_model(struct fits *f, struct error *e)
{
    struct options *o = &f->o;
    struct ways_request *a = &f->of;
    const char *name = o->run;
    struct text folder = {0}, download = {0};
    TRY(model_find(&f->model, name, e));
    const bool preset = !*f->model.path;
    if (!model_is(&f->model, "masks") && !f->model.vocabulary)
        return error_set(e, PL_USAGE, "%s is a %s, which trains with a head over it: give a RUN.yaml, as `plimsoll "
                         "init --model %s --data DIR` writes it", name, f->model.family->model_type, name);
    o->run = NULL;
    set_key(o, preset ? "model.preset" : "model.path", name);
    if (preset && catalogue_download(name, &download, &folder)) text_printf(&a->first, "  %s\n", download.at);
    text_printf(&a->first, "  plimsoll init --model %s --data DIR > run.yaml\n", folder.n ? folder.at : name);
    if (!f->tokens && f->model.vocabulary)
        f->tokens = f->model.longest ? min_u64(TOKENS, (uint64_t)f->model.longest) : TOKENS;
    if (!f->batch) f->batch = BATCH;
    if (f->model.vocabulary && f->model.encoder && !f->sizes.images) f->sizes.images = "1";
    a->run = "run.yaml";
    text_free(&folder);
    text_free(&download);
    return PL_OK;
}

static int ask(struct fits *f, struct error *e)
{
    struct options *o = &f->o;
    struct ways_request *a = &f->of;
    const bool file = !o->run || text_ends_with(o->run, ".yaml") || text_ends_with(o->run, ".yml");
    a->run = o->run;
    if (!file) TRY(ask_model(f, e));
    set_count(o, "data.sequence", f->tokens);
    set_count(o, "train.effective_batch", f->batch);
    if (f->batch) text_printf(&a->keys, " --set train.effective_batch=%llu", (unsigned long long)f->batch);
    TRY(plan_request_read(&f->sizes, false, e));
    TRY(plan_source_read(&f->sizes.source, &f->config, e));
    if (file) TRY(config_check(&f->config, CONFIG_NEEDS_MODEL, e));
    if (file) TRY(config_open_model(&f->config, &f->model, e));
    a->tokens = f->model.vocabulary ? f->config.data_sequence : 0;
    if (a->tokens && (!file || f->tokens || f->sizes.images)) {
        text_printf(&a->keys, " --set data.sequence=%lld", (long long)a->tokens);
        if (f->config.data_max_images > 0)
            text_printf(&a->keys, " --set data.max_images=%lld", (long long)f->config.data_max_images);
        if (f->config.data_max_patches > 0)
            text_printf(&a->keys, " --set data.max_patches=%lld", (long long)f->config.data_max_patches);
    }
    return PL_OK;
}

static int fits(struct options *o, struct error *e)
{
    struct fits *f = (struct fits *)o;
    struct ways_request *a = &f->of;
    if (!o->run && !o->from.n)
        return error_set(e, PL_USAGE, "expected a model folder, a name of `plimsoll models` or a RUN.yaml: plimsoll %s",
                         command_fits.usage);
    if (!a->gpus)
        return error_set(e, PL_USAGE,
                         "no GPU is given: add --gpu with GiB of memory or a name, such as 12 or rtx-4090");
    config_init(&f->config);
    f->sizes.source = (struct plan_source){.read = options_source, .of = o};
    a->config = &f->config, a->model = &f->model, a->source = &f->sizes.source, a->json = o->json;
    int rc = ask(f, e);
    if (!rc) rc = ways_request_run(a, e);
    text_free(&a->first);
    text_free(&a->keys);
    model_close(&f->model);
    config_free(&f->config);
    return rc;
}

static const struct option OPTIONS[] = {
    OPTION(struct fits, "--gpu", TEXT, of.gpus), OPTION(struct fits, "--tokens", POSITIVE, tokens),
    OPTION(struct fits, "--images", TEXT, sizes.images),
    OPTION(struct fits, "--image-size", TEXT, sizes.image_size),
    OPTION(struct fits, "--batch", POSITIVE, batch)};

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
    .shared = OPT_RUN | OPT_NO_RUN | OPT_JSON, COMMAND_OPTIONS(OPTIONS), COMMAND_STATE(struct fits, .o = {0}),
    .run = fits};
