/*
 * data_inspect.c: `plimsoll data inspect`: statistics of a dataset and the memory of its masks,
 * with a contact sheet; of conversations what they hold, and some samples with the tokens that have
 * labels marked (report/data_report.h).
 */
#include "cli/data.h"
#include "data/detect/detect.h"
#include "data/masks/grid.h"
#include "data/text/tokens.h"
#include "report/data_report.h"

struct inspecting {
    struct options o;
    struct samples_options samples;
    uint64_t cells, shown;
    const char *given;
};

/* --- conversations ---------------------------------------------------------------------------- */

/* Reports whether the paths are conversations, by the option, by the name of a configuration, or by
 * the first object of the file. */
static bool is_text(const struct names *paths, const char *format)
{
    if (format) return !strcmp(format, "conversations") || !strcmp(format, "text");
    return is_plain_text(paths->at[0]) || path_has_ending(paths->at[0], ".jsonl") ||
           path_has_ending(paths->at[0], ".ndjson") || path_has_ending(paths->at[0], ".yaml") ||
           path_has_ending(paths->at[0], ".yml") || detect_conversations(paths->at[0]);
}

static int configure_texts(struct config *c, const struct inspecting *x, struct error *e)
{
    const struct options *o = &x->o;
    const char *first = o->paths.at[0], *images = x->samples.set.images;
    const bool run = path_has_ending(first, ".yaml") || path_has_ending(first, ".yml");
    int rc = run ? config_read(c, first, e) : PL_OK;
    if (!rc && !run) {
        rc = config_assign(c, "data.format", is_plain_text(o->paths.at[0]) ? "text" : "conversations", e);
        c->data_train.at = o->paths.at; /* names with commas stay whole */
        c->data_train.n = o->paths.n;
    }
    for (uint32_t i = 0; i < o->set.n && !rc; i++) rc = config_set(c, o->set.at[i], e);
    if (!rc && images) rc = config_assign(c, "data.images", images, e);
    if (!rc && o->model) rc = config_assign(c, dir_exists(o->model) ? "model.path" : "data.tokenizer", o->model, e);
    if (!rc && !config_text(c)) {
        error_set(
            e, PL_USAGE,
            "data.format is not text or conversations; for images give their files or folders, not a configuration");
        rc = config_at_key(c, KEY_data_format, e);
    }
    if (!rc) rc = config_check_read(c, "data inspect", "model.* data.*", e);
    return rc ? rc : config_check(c, CONFIG_NEEDS_DATA, e);
}

static int inspect_conversations(const struct inspecting *x, struct error *e)
{
    const struct samples_options *s = &x->samples;
    struct config c;
    const char *other = x->o.output     ? "-o"
                        : s->set.masks ? "--masks"
                        : s->labels    ? "--labels"
                        : s->range     ? "--range"
                                       : NULL;
    if (other)
        return error_set(e, PL_USAGE, "%s is for images with masks, and %s has text", other, x->o.paths.at[0]);
    config_init(&c);
    int rc = configure_texts(&c, x, e);
    if (!rc) rc = inspect_texts(&c, x->shown, x->o.json, e);
    config_free(&c);
    return rc;
}

/* --- the command ------------------------------------------------------------------------------ */

static int run(struct options *o, struct error *e)
{
    struct inspecting *x = (struct inspecting *)o;
    const struct names *paths = &o->paths;
    if (x->given && (paths->n || o->output))
        return error_set(e, PL_USAGE, "--given computes from sizes only: leave out the paths and -o");
    if (x->given) return inspect_given(x->given, o->json, e);
    if (!paths->n)
        return error_set(e, PL_USAGE,
                         "no data is given: add shards, folders or globs, or sizes with --given (see --help)");
    if (file_exists(paths->at[0]) && !dir_exists(paths->at[0])) TRY(file_check(paths->at[0], e));
    if (embeddings_alone(paths)) return inspect_embeddings(paths, false, o->json, e);
    if (is_text(paths, x->samples.set.format)) return inspect_conversations(x, e);
    if (o->model || o->set.n)
        return error_set(e, PL_USAGE, "%s is for conversations, and %s is not a file of them",
                         o->model ? "--model" : "--set", paths->at[0]);
    if (x->cells < 4 || x->cells > GRID_MAX_CELLS)
        return error_set(e, PL_USAGE, "--masks-size %llu: expected 4 to %d", (unsigned long long)x->cells,
                         GRID_MAX_CELLS);
    TRY(png_check_name("-o", o->output, e));
    return inspect_samples(&x->samples, paths, (uint32_t)x->cells, o->output, o->json, e);
}

static const struct option OPTIONS[] = {
    SAMPLES_OPTIONS(struct inspecting, samples), OPTION(struct inspecting, "--masks-size", POSITIVE, cells),
    OPTION(struct inspecting, "--given", TEXT, given), OPTION(struct inspecting, "--model", TEXT, o.model),
    OPTION(struct inspecting, "--samples", COUNT, shown)};

const struct command data_inspect = {
    "inspect",
    "data inspect PATHS [--format F] [--images DIR] [--masks DIR] [--labels KIND] [--range R] [-o SHEET] [--json] "
    "|  data inspect --given WxH,MASKS [--json]  |  data inspect (FILES --model DIR | RUN.yaml) [--set "
    "KEY=VALUE]... [--samples N] [--json]",
    "Prints statistics of a dataset: images, masks, sizes and damage, and the memory of the masks as\n"
    "float32, uint8, bits and run lengths (RLE), at full size, 1024 and 256.\n"
    "\n"
    "  PATHS           shards (tar), folders of extracted files, folders of shards; the annotation file\n"
    "                  of COCO; a folder of images and masks; a table; globs\n"
    SAMPLES_HELP
    "\n"
    "  --masks-size N  side of the grid on which masks too small to be trained on are counted: the\n"
    "                  resolution of the loss, 4 x size / patch (256)\n"
    "  -o SHEET        writes a contact sheet of images with their masks: SHEET.html or SHEET.png\n"
    "  --json          prints the numbers as JSON\n"
    "  --given         computes the memory only, for images of this size with this many masks: of the\n"
    "                  masks, the image, the annotations, and all of them; needs no data\n"
    "\n"
    "Of conversations (JSON files, or a RUN.yaml with data.format conversations) it prints how many can\n"
    "be used and why the others cannot, lengths in tokens, how rows are filled, and samples as the model\n"
    "reads them, with the tokens that have labels marked.\n"
    "\n"
    "  --model DIR     the folder of the tokenizer and the chat template, or a tokenizer's file\n"
    "  --images DIR    data.images\n"
    "  --set KEY=VALUE sets a key, such as data.sequence, data.template or data.train_on\n"
    "  --samples N     samples to show (3)",
    .shared = OPT_PATHS | OPT_OUTPUT | OPT_JSON | OPT_SET, COMMAND_OPTIONS(OPTIONS),
    COMMAND_STATE(struct inspecting, .cells = 256, .shown = 3), .run = run};
