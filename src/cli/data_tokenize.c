/*
 * data_tokenize.c: `plimsoll data tokenize`: makes the token stores of a configuration's
 * conversations ahead of training (data/text/token_store.h).
 */
#include <stdio.h>

#include "cli/data.h"
#include "models/model.h"
#include "feed/text_source.h"
#include "io/json.h"
#include "io/temporary.h"

struct command_line {
    const char *out;
    struct names set;
    bool json;
};

/* The configured model; *out NULL: none is. */
static int open_model(const struct config *c, struct model *m, const struct model **out, struct error *e)
{
    *out = NULL;
    if (!c->model_path && !c->model_preset) return PL_OK;
    if (config_open_model(c, m, e)) return e->code;
    *out = m;
    return PL_OK;
}

static void print(const struct conversations *c, const char *path, bool json)
{
    struct text out = {0}, left = {0};
    const double fill = (double)c->tokens / ((double)c->rows.n * (double)c->o.sequence),
                 labels = (double)c->labels / (double)c->tokens;
    conversations_print_left(c, &left);
    if (json) {
        struct json_writer w = {.out = &out};
        json_begin_map(&w, NULL);
        json_put_string(&w, "store", path);
        json_put_uint(&w, "samples", c->store.header->report.read);
        json_put_uint(&w, "used", c->samples);
        json_put_uint(&w, "unusable", report_bad(&c->store.header->report));
        json_put_uint(&w, "too_long", c->too_long);
        json_put_uint(&w, "tokens", c->store.header->tokens);
        json_put_uint(&w, "rows", c->rows.n);
        json_put_number(&w, "filled", fill);
        if (c->o.images.features) {
            json_put_uint(&w, "images", c->images);
            json_put_uint(&w, "too_many_images", c->too_many);
            json_put_uint(&w, "frames", c->frames);
            json_put_uint(&w, "too_many_frames", c->too_many_frames);
        }
        json_put_number(&w, "labelled", labels);
        json_end(&w);
        printf("%s\n", out.at);
    } else {
        print_line("%s: %llu tokens of %llu samples", path, (unsigned long long)c->store.header->tokens,
                   (unsigned long long)c->store.header->samples);
        print_line("  %u rows of %lld tokens, %.1f %% filled; %.1f %% of the tokens have labels", c->rows.n,
                   (long long)c->o.sequence, 100 * fill, 100 * labels);
        if (c->o.images.features)
            print_line("  %llu images, %.2f a row of at most %u (data.max_images)", (unsigned long long)c->images,
                       (double)c->images / (double)c->rows.n, c->o.images.most);
        if (c->o.images.most_frames)
            print_line("  %llu frames of videos, %.2f a row of at most %u (data.max_frames)",
                       (unsigned long long)c->frames, (double)c->frames / (double)c->rows.n, c->o.images.most_frames);
        if (left.n) print_line("  %s", left.at);
    }
    text_free(&out);
    text_free(&left);
}

static int write_array(const struct text_source *s, const struct command_line *o, struct error *e)
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
        rc = token_store_write_npy(&store, o->out, e);
        report_print(&store.header->report, &left);
        if (!rc)
            print_line("%s: %llu tokens of %llu samples", o->out, (unsigned long long)store.header->tokens,
                       (unsigned long long)store.header->samples);
        if (!rc && left.n) print_line("  %s", left.at);
        token_store_close(&store);
    }
    temporary_drop(&work);
    text_free(&path);
    text_free(&left);
    return rc;
}

static int tokenize(const struct config *c, const struct command_line *o, enum feed_role role, const struct model *m,
                    struct error *e)
{
    struct text_source s;
    struct conversations set;
    struct token_store_key key;
    struct text path = {0};
    int rc = text_source_open(&s, c, role, m, e);
    if (rc) return rc;
    if (o->out && path_has_ending(o->out, ".npy")) {
        rc = write_array(&s, o, e);
        text_source_close(&s);
        return rc;
    }
    if (o->out) rc = dir_make(o->out, e);
    if (!rc) rc = text_store_path(&s, o->out, role, &path, e);
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

static int tokenize_all(struct config *c, const char *run, const struct command_line *o, struct error *e)
{
    struct model own;
    const struct model *m = NULL;
    int rc = config_read(c, run, e);
    for (uint32_t i = 0; i < o->set.n && !rc; i++) rc = config_set(c, o->set.at[i], e);
    if (!rc) rc = config_check_read(c, "data tokenize", "model.* data.*", e);
    if (!rc) rc = config_check(c, CONFIG_NEEDS_DATA, e);
    if (!rc && !config_text(c)) {
        error_set(e, PL_USAGE, "data.format is not text or conversations: only text is tokenized");
        rc = config_at_key(c, KEY_data_format, e);
    }
    if (!rc) rc = open_model(c, &own, &m, e);
    if (!rc && tokenize(c, o, FEED_TRAIN, m, e)) rc = error_prepend(e, "data.train");
    const bool array = o->out && path_has_ending(o->out, ".npy");
    if (!rc && c->data_validation.n && array)
        print_line("data.validation is not in the array: tokenize it by itself, with --set data.train");
    if (!rc && c->data_validation.n && !array && tokenize(c, o, FEED_VALIDATION, m, e))
        rc = error_prepend(e, "data.validation");
    if (m) model_close(&own);
    return rc;
}

static int run(int argc, char **argv, struct error *e)
{
    struct command_line o = {0};
    struct names paths = {0};
    bool help;
    const struct data_option table[] = {{"-o", DATA_TEXT, &o.out},
                                        {"--out", DATA_TEXT, &o.out},
                                        {"--set", DATA_LIST, &o.set},
                                        {"--json", DATA_SWITCH, &o.json}};
    int rc = data_options(&data_tokenize, table, COUNT(table), argc, argv, &paths, &help, e);
    if (!rc && !help) {
        struct config c;
        config_init(&c);
        if (paths.n != 1) rc = error_set(e, PL_USAGE, "expected one RUN.yaml; %u files are given", paths.n);
        else rc = tokenize_all(&c, paths.at[0], &o, e);
        config_free(&c);
    }
    names_free(&paths);
    names_free(&o.set);
    return rc;
}

const struct command data_tokenize = {
    "tokenize", "data tokenize RUN.yaml [-o FOLDER | FILE.npy] [--set KEY=VALUE]... [--json]",
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
    run};
