/*
 * data_inspect.c: `plimsoll data inspect`: statistics of a dataset, the memory of its masks, and a
 * contact sheet of images with their masks (data_inspect.h).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/data.h"
#include "cli/data_inspect.h"
#include "cli/data_samples.h"
#include "data/detect/detect.h"
#include "data/masks/grid.h"
#include "data/text/tokens.h"
#include "feed/embed.h"
#include "io/file.h"

static int inspect(struct samples_options *o, const struct names *paths, uint32_t cells, const char *sheet,
                   bool json, struct error *e)
{
    struct samples all;
    struct facts f = {.cells = cells};
    struct text out = {0};
    TRY(samples_options_read(o, e));
    TRY(samples_open(&all, &o->set, paths, e));
    facts_count(&f, &all);
    struct mask_memory c = mask_memory_measured(&f);
    if (json) inspect_json(&all, &f, &c, &out);
    else inspect_print(&all, &f, &out), inspect_print_memory(&c, &out);
    fputs(out.at, stdout);
    int rc = dataset_intact(all.set, e);
    if (!rc && sheet)
        rc = text_ends_with(sheet, ".html") ? inspect_page(sheet, &all, &f, &c, e)
                                            : inspect_sheet(sheet, &all, &f, &c, e);
    text_free(&out);
    facts_free(&f);
    samples_close(&all);
    return rc;
}

/* "WxH,MASKS" */
static int inspect_given(const char *given, bool json, struct error *e)
{
    char size[64], *end;
    uint32_t wh[2];
    const char *comma = strchr(given, ',');
    double masks = comma ? strtod(comma + 1, &end) : 0;
    if (!comma || end == comma + 1 || *end || !(masks > 0 && masks <= 1e6) || (size_t)(comma - given) >= sizeof size)
        return error_set(e, PL_USAGE, "--given %s: expected WIDTHxHEIGHT,MASKS, such as 2250x1500,100", given);
    snprintf(size, sizeof size, "%.*s", (int)(comma - given), given);
    if (!data_parse_size(size, wh))
        return error_set(e, PL_USAGE, "--given %s: expected WIDTHxHEIGHT,MASKS, such as 2250x1500,100", given);
    struct mask_memory c = mask_memory_of(wh[0], wh[1], masks);
    struct text out = {0};
    if (json) inspect_json_memory(&c, &out), text_printf(&out, "\n");
    else inspect_print_memory(&c, &out);
    fputs(out.at, stdout);
    text_free(&out);
    return PL_OK;
}

/* Conversations, by the option, by the name of a configuration, or by the first object of the
 * file. */
static bool is_text(const struct names *paths, const char *format)
{
    if (format) return !strcmp(format, "conversations") || !strcmp(format, "text");
    return is_plain_text(paths->at[0]) || path_has_ending(paths->at[0], ".jsonl") ||
           path_has_ending(paths->at[0], ".ndjson") || path_has_ending(paths->at[0], ".yaml") ||
           path_has_ending(paths->at[0], ".yml") || detect_conversations(paths->at[0]);
}

static int run(int argc, char **argv, struct error *e)
{
    const char *sheet = NULL, *given = NULL, *model = NULL;
    bool json = false, help;
    uint64_t cells = 256, samples = 3;
    struct names paths = {0}, set = {0};
    struct samples_options o = {0};
    const struct data_option table[] = {
        SAMPLES_OPTIONS(o),
        {"--masks-size", DATA_POSITIVE, &cells},
        {"-o", DATA_TEXT, &sheet},
        {"--out", DATA_TEXT, &sheet},
        {"--json", DATA_SWITCH, &json},
        {"--given", DATA_TEXT, &given},
        {"--model", DATA_TEXT, &model},
        {"--set", DATA_LIST, &set},
        {"--samples", DATA_COUNT, &samples},
    };
    int rc = data_options(&data_inspect, table, COUNT(table), argc, argv, &paths, &help, e);
    if (!rc && !help) {
        if (given && (paths.n || sheet))
            rc = error_set(e, PL_USAGE, "--given computes from sizes only: leave out the paths and -o");
        else if (given) rc = inspect_given(given, json, e);
        else if (!paths.n)
            rc = error_set(e, PL_USAGE,
                           "no data is given: add shards, folders or globs, or sizes with --given (see --help)");
        else if (file_exists(paths.at[0]) && !dir_exists(paths.at[0]) && file_check(paths.at[0], e)) rc = e->code;
        else if (embeddings_alone(&paths)) rc = inspect_embeddings(&paths, false, json, e);
        else if (is_text(&paths, o.set.format)) {
            const bool run = path_has_ending(paths.at[0], ".yaml") || path_has_ending(paths.at[0], ".yml");
            const char *other = sheet ? "-o" : o.set.masks ? "--masks" : o.labels ? "--labels" : o.range ? "--range" : NULL;
            if (other) rc = error_set(e, PL_USAGE, "%s is for images with masks, and %s has text", other, paths.at[0]);
            else
                rc = inspect_text(&(struct inspect_text){.paths = &paths,
                                                         .set = &set,
                                                         .run = run ? paths.at[0] : NULL,
                                                         .model = model,
                                                         .images = o.set.images,
                                                         .samples = samples,
                                                         .json = json},
                                  e);
        } else if (model || set.n)
            rc = error_set(e, PL_USAGE, "%s is for conversations, and %s is not a file of them",
                           model ? "--model" : "--set", paths.at[0]);
        else if (cells < 4 || cells > GRID_MAX_CELLS)
            rc = error_set(e, PL_USAGE, "--masks-size %llu: expected 4 to %d", (unsigned long long)cells,
                           GRID_MAX_CELLS);
        else if (!(rc = data_check_png("-o", sheet, e))) rc = inspect(&o, &paths, (uint32_t)cells, sheet, json, e);
    }
    names_free(&paths);
    names_free(&set);
    return rc;
}

const struct command data_inspect =
    {"inspect",
     "data inspect PATHS [--format F] [--images DIR] [--masks DIR] [--labels KIND] [--range R] [-o SHEET] [--json]  |  "
     "data inspect --given WxH,MASKS [--json]  |  "
     "data inspect (FILES --model DIR | RUN.yaml) [--set KEY=VALUE]... [--samples N] [--json]",
     "Prints statistics of a dataset: images, masks, sizes and damage, and the memory of the masks as\n"
     "float32, uint8, bits and run lengths (RLE), at full size, 1024 and 256.\n"
     "\n"
     "  PATHS           shards (tar), folders of extracted files, folders of shards; the annotation\n"
     "                  file of COCO; a folder of images and masks; a table; globs\n" SAMPLES_HELP "\n"
     "  --masks-size N  side of the grid on which masks too small to be trained on are counted: the\n"
     "                  resolution of the loss, 4 x size / patch (256)\n"
     "  -o SHEET        writes a contact sheet of images with their masks: SHEET.html or SHEET.png\n"
     "  --json          prints the numbers as JSON\n"
     "  --given         computes the memory only, for images of this size with this many masks: of the masks, the "
     "image, the\n"
     "                  annotations, and all of them; needs no data\n"
     "\n"
     "Of conversations (JSON files, or a RUN.yaml with data.format conversations) it prints how many can be\n"
     "used and why the others cannot, lengths in tokens, how rows are filled, and samples as the model\n"
     "reads them, with the tokens that have labels marked.\n"
     "\n"
     "  --model DIR     the folder of the tokenizer and the chat template, or a tokenizer's file\n"
     "  --images DIR    data.images\n"
     "  --set KEY=VALUE sets a key, such as data.sequence, data.template or data.train_on\n"
     "  --samples N     samples to show (3)",
     run};
