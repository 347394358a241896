/*
 * init.c: `plimsoll init --model X --data DIR`: prints a RUN.yaml for this model and this data
 * (batch/suggest.h). What cannot be trained is refused here.
 *
 * `plimsoll init --config-from FILE` prints a RUN.yaml with what the configuration of another
 * program says. Where each value comes from, and what has no effect, are comments at its beginning.
 */
#include <inttypes.h>

#include "batch/suggest.h"
#include "cli/data.h"
#include "import/import.h"

static int init(struct suggestion *r, const char *model, const char *data, bool bytes,
                const struct dataset_options *given, const char *folder, struct error *e)
{
    struct text standard = {0}, out = {0};
    int rc = suggest_model(r, model, e);
    if (!rc) suggest_folder(model, data, &standard);
    if (!rc && r->preset) warn_random(model);
    if (!folder) folder = standard.at;
    if (!rc && r->model.tower) rc = suggest_labelled(r, data, folder, &out, e);
    else if (!rc && !(rc = suggest_data(r, data, bytes, given, e))) {
        suggestion_write(r, data, folder, &out);
        if (suggestion_try(r, out.at, e))
            rc = error_prepend(e, "%s (%s)", data, r->data.what);
    }
    if (!rc) fputs(out.at, stdout);
    text_free(&standard);
    text_free(&out);
    suggestion_free(r);
    return rc;
}

struct sources {
    struct names from, set;
    uint64_t ranks; /* 0: not given */
};

static int read_sources(const struct sources *s, struct import *f, struct config *c, struct error *e)
{
    char ranks[32];
    f->asks = true;
    f->ranks = (int64_t)s->ranks;
    for (uint32_t i = 0; i < s->set.n && !s->ranks; i++)
        if (!strncmp(s->set.at[i], "parallel.ranks=", 15)) f->ranks = strtol(s->set.at[i] + 15, NULL, 10);
    TRY(from_read(f, (const char *const *)s->from.at, (int)s->from.n, c, e));
    for (uint32_t i = 0; i < s->set.n; i++) TRY(config_set(c, s->set.at[i], e));
    snprintf(ranks, sizeof ranks, "%" PRIu64, s->ranks);
    if (s->ranks) TRY(config_assign(c, "parallel.ranks", ranks, e));
    if (import_settle(f, c, e)) return error_prepend(e, "--config-from");
    return config_check(c, 0, e);
}

/* Prints a run file for the configurations of other programs, with the --set options on top. */
static int init_from(const struct sources *s, struct error *e)
{
    struct import f = {0};
    struct config c;
    struct text list = {0}, out = {0};
    config_init(&c);
    int rc = read_sources(s, &f, &c, e);
    if (!rc) {
        import_print(&f, &c, &list);
        for (const char *line = list.at; line && *line; line += strcspn(line, "\n") + 1)
            text_printf(&out, "# %.*s\n", (int)strcspn(line, "\n"), line);
        text_printf(&out, "\n");
        config_write_given(&c, &out);
        fputs(out.at, stdout);
    }
    text_free(&list);
    text_free(&out);
    import_free(&f);
    config_free(&c);
    return rc;
}

struct init_options {
    struct options o;
    const char *data;
    bool bytes;
    uint64_t ranks;
    struct suggestion r;
    struct dataset_options given;
};
static const struct option OPTIONS[] = {
    OPTION(struct init_options, "--ranks", POSITIVE, ranks), OPTION(struct init_options, "--model", TEXT, o.model),
    OPTION(struct init_options, "--data", TEXT, data), OPTION(struct init_options, "--out", TEXT, o.output),
    OPTION(struct init_options, "--bytes", SWITCH, bytes), OPTION(struct init_options, "--template", TEXT, r.template),
    OPTION(struct init_options, "--max-frames", POSITIVE, r.max_frames), FOLDER_OPTIONS(struct init_options, given)};

static int run(struct options *o, struct error *e)
{
    struct init_options *x = (struct init_options *)o;
    const char *other = options_given(o, OPTIONS + 1, COUNT(OPTIONS) - 1); /* all but --ranks */
    if (o->from.n && other) return error_set(e, PL_USAGE, "with --config-from: unknown option %s", other);
    if (o->from.n) return init_from(&(struct sources){o->from, o->set, x->ranks}, e);
    if (o->set.n || x->ranks)
        return error_set(e, PL_USAGE, "unknown option %s: it is for --config-from", o->set.n ? "--set" : "--ranks");
    if (!o->model)
        return error_set(e, PL_USAGE, "no model is given: add --model with a folder or a preset such as sam-tiny");
    if (!x->data) return error_set(e, PL_USAGE, "no data is given: add --data with a folder or a file");
    return init(&x->r, o->model, x->data, x->bytes, &x->given, o->output, e);
}

const struct command command_init = {
    "init",
    "init --model MODEL --data DIR [--bytes] [--template FILE] [--max-frames N] [--out FOLDER] > RUN.yaml\n"
    "       plimsoll init --config-from FILE... [--ranks N] [--set key=value]... > RUN.yaml",
    "Detects the format of the data, counts the samples, and prints a configuration that trains the model\n"
    "on them.\n"
    "\n"
    "  --model MODEL   a folder with config.json, a preset such as sam-tiny, or the name of a published model\n"
    "                  (`plimsoll models`), with random weights\n"
    "  --data DIR      images and masks, in two folders or in one, also in train/ and val/ (Kvasir-SEG,\n"
    "                  ISIC, nnU-Net, Pascal VOC, Cityscapes); COCO's instances_*.json, also of Roboflow;\n"
    "                  a .csv or .tsv with columns of images and masks; tar shards, or extracted folders\n"
    "                  of x.jpg + x.json; *.pack; index.json + masks.u8; tokens: .npy, .bin, .tokens,\n"
    "                  .safetensors; conversations: .json or .jsonl of LLaVA, ShareGPT, OpenAI messages,\n"
    "                  Alpaca, prompt and completion, or text; plain text: .txt; for a vision tower\n"
    "                  images in folders of their classes, also in train/ and val/, or a table of images\n"
    "                  with classes or texts\n"
    "  --bytes         the data are files of any kind, and each byte is a token (data.format: bytes)\n"
    "  --template FILE conversations: a chat template (data.template), if the model's folder has none; or\n"
    "                  chatml, mistral_instruct, vicuna_v1\n"
    "  --max-frames N  conversations with videos: frames in a row (data.max_frames); without it such\n"
    "                  conversations are left out\n"
    "  --out FOLDER    the value of train.out; default: runs/MODEL-DATA\n"
    "  --config-from FILE  instead of a model and data: prints what the configuration of another program\n"
    "                  says (Hugging Face TrainingArguments, TRL, LLaMA-Factory, ms-swift, Axolotl,\n"
    "                  LLaVA, DeepSpeed, Accelerate, a training command line, values in Python's\n"
    "                  notation), with where each value comes from; --set key=value changes or adds keys,\n"
    "                  and --ranks N is the number of ranks (parallel.ranks)\n"
    FOLDER_HELP,
    .shared = OPT_SET | OPT_FROM, COMMAND_OPTIONS(OPTIONS), COMMAND_STATE(struct init_options, .o = {0}), .run = run};
