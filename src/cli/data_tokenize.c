/*
 * data_tokenize.c: `plimsoll data tokenize`: makes the token stores of a configuration's
 * conversations ahead of training (data/text/token_store.h).
 */
#include "cli/data.h"
#include "models/model.h"
#include "batch/text_source.h"
#include "io/table.h"
#include "io/temporary.h"

static void print(const struct conversations *c, const char *path, bool json)
{
    struct text left = {0};
    const double fill = (double)c->tokens / ((double)c->rows.n * (double)c->o.sequence),
                 labels = (double)c->labels / (double)c->tokens;
    const struct token_store_header *h = c->store.header;
    const bool images = c->o.images.features;
    const uint64_t unit = c->o.images.patches;
    conversations_print_left(c, &left);
    if (json)
        PRINT_FACTS(0, FACT("store", path), FACT("samples", h->report.read), FACT("used", c->samples),
                    FACT("unusable", report_bad(&h->report)), FACT("too_long", c->too_long), FACT("tokens", h->tokens),
                    FACT("rows", c->rows.n), FACT("filled", fill), FACT_IF(images && !unit, "images", c->images),
                    FACT_IF(unit, "patches", c->images * unit),
                    FACT_IF(images, "too_many_images", c->too_many), FACT_IF(images, "frames", c->frames),
                    FACT_IF(images, "too_many_frames", c->too_many_frames), FACT("labelled", labels));
    else {
        print_line("%s: %llu tokens of %llu samples", path, (unsigned long long)h->tokens,
                   (unsigned long long)h->samples);
        print_line("  %u rows of %lld tokens, %.1f %% filled; %.1f %% of the tokens have labels", c->rows.n,
                   (long long)c->o.sequence, 100 * fill, 100 * labels);
        if (unit)
            print_line("  images of %llu patches, %.0f a row of at most %llu (data.max_patches)",
                       (unsigned long long)(c->images * unit), (double)(c->images * unit) / (double)c->rows.n,
                       (unsigned long long)(c->o.images.most * unit));
        else if (images)
            print_line("  %llu images, %.2f a row of at most %u (data.max_images)", (unsigned long long)c->images,
                       (double)c->images / (double)c->rows.n, c->o.images.most);
        if (c->o.images.most_frames)
            print_line("  %llu frames of videos, %.2f a row of at most %u (data.max_frames)",
                       (unsigned long long)c->frames, (double)c->frames / (double)c->rows.n, c->o.images.most_frames);
        if (left.n) print_line("  %s", left.at);
    }
    text_free(&left);
}

static int write_array(const struct text_source *s, const struct options *o, struct error *e)
{
    struct token_store store;
    struct temporary work;
    const struct token_store_key key = {0};
    struct text path = {0}, left = {0};
    if (s->options.images)
        return error_set(
            e, PL_USAGE,
            "an array of tokens has no images: leave model.path out, and set data.tokenizer to the folder");
    if (temporary_work(&work, e)) return e->code;
    text_printf(&path, "%s/tokens", work.path);
    int rc = tokenize_build(&s->options, &key, path.at, e);
    if (!rc && !(rc = token_store_open(&store, path.at, e))) {
        rc = token_store_write_npy(&store, o->output, e);
        report_print(&store.header->report, &left);
        if (!rc)
            print_line("%s: %llu tokens of %llu samples", o->output, (unsigned long long)store.header->tokens,
                       (unsigned long long)store.header->samples);
        if (!rc && left.n) print_line("  %s", left.at);
        token_store_close(&store);
    }
    temporary_drop(&work);
    text_free(&path);
    text_free(&left);
    return rc;
}

static int tokenize(const struct config *c, const struct options *o, enum feed_role role, const struct model *m,
                    struct error *e)
{
    struct text_source s;
    struct conversations set;
    struct token_store_key key;
    struct text path = {0};
    int rc = text_source_open(&s, c, role, m, e);
    if (rc) return rc;
    if (o->output && path_has_ending(o->output, ".npy")) {
        rc = write_array(&s, o, e);
        text_source_close(&s);
        return rc;
    }
    if (o->output) rc = dir_make(o->output, e);
    if (!rc) rc = text_store_path(&s, o->output, role, &path, e);
    if (!rc) rc = tokenize_key(&s.options, &key, e);
    if (!rc) rc = tokenize_build(&s.options, &key, path.at, e);
    const struct conversations_options rows = text_rows(c, &s, role, m ? m->vocabulary : 0);
    if (!rc) rc = conversations_open(&set, path.at, &rows, e);
    if (!rc) {
        print(&set, path.at, o->json);
        conversations_close(&set);
    }
    text_source_close(&s);
    text_free(&path);
    return rc;
}

static int tokenize_all(struct options *o, struct error *e)
{
    struct config *c = &o->config;
    struct model own, *m;
    if (o->paths.n != 1) return error_set(e, PL_USAGE, "expected one RUN.yaml; %u files are given", o->paths.n);
    o->run = o->paths.at[0];
    TRY(options_configure(o, e));
    TRY(config_check_read(c, "data tokenize", "model.* data.*", e));
    TRY(config_check(c, CONFIG_NEEDS_DATA, e));
    if (!config_text(c)) {
        error_set(e, PL_USAGE, "data.format is not text or conversations: only text is tokenized");
        return config_at_key(c, KEY_data_format, e);
    }
    m = c->model_path || c->model_preset ? &own : NULL;
    if (m) TRY(config_open_model(c, m, e));
    int rc = tokenize(c, o, FEED_TRAIN, m, e) ? error_prepend(e, "data.train") : PL_OK;
    const bool array = o->output && path_has_ending(o->output, ".npy");
    if (!rc && c->data_validation.n && array)
        print_line("data.validation is not in the array: tokenize it by itself, with --set data.train");
    if (!rc && c->data_validation.n && !array && tokenize(c, o, FEED_VALIDATION, m, e))
        rc = error_prepend(e, "data.validation");
    if (m) model_close(m);
    return rc;
}

const struct command data_tokenize = {
    "tokenize",
    "data tokenize RUN.yaml [-o FOLDER | FILE.npy] [--set KEY=VALUE]... [--json]",
    "Tokenizes the texts or conversations of data.train and data.validation ahead of training, with the\n"
    "tokenizer and the chat template of the run. `train` uses the result as long as data files,\n"
    "tokenizer, template and system prompt are the same; without it, `train` makes its own.\n"
    "\n"
    "  -o FOLDER       writes FOLDER/train.tokenized and FOLDER/validation.tokenized, for data.store;\n"
    "                  default: a file beside the first data file, FILE.tokenized\n"
    "  -o FILE.npy     writes the token ids of data.train, one text after the other, as a NumPy array of\n"
    "                  uint16 or uint32: for data.format: tokens, or other programs\n"
    "  --set KEY=VALUE sets a key of the configuration\n"
    "  --json          prints the numbers as JSON, a line for each store",
    .shared = OPT_PATHS | OPT_OUTPUT | OPT_SET | OPT_JSON, .run = tokenize_all};
