/*
 * options.c: parses the options that several commands share.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "import/import.h"
#include "dist/dist.h"
#include "io/file.h"
#include "io/json.h"
#include "models/presets.h"

/* Words that other programs use for a command. */
static const char *const synonyms[][2] = {{"fit", "train"},       {"finetune", "train"}, {"fine-tune", "train"},
                                          {"run", "train"},       {"infer", "predict"},  {"inference", "predict"},
                                          {"segment", "predict"}, {"validate", "eval"},  {"test", "eval"},
                                          {"export", "convert"},  {"estimate", "plan"},  {"new", "init"},
                                          {"trace", "profile"}};

const char *nearest_command(const char *word, const struct command *const *commands, size_t n)
{
    const char *nearest = NULL;
    int best = (int)strlen(word) < 4 ? 2 : 3;
    for (size_t i = 0; i < COUNT(synonyms); i++)
        for (size_t k = 0; k < n; k++)
            if (!strcmp(word, synonyms[i][0]) && !strcmp(commands[k]->name, synonyms[i][1])) return commands[k]->name;
    for (size_t k = 0; k < n; k++) {
        const char *name = commands[k]->name;
        size_t shorter = strlen(word) < strlen(name) ? strlen(word) : strlen(name);
        if (shorter > 2 && !strncmp(word, name, shorter)) return name; /* evaluate, pred */
        if (edit_distance(word, name) < best) best = edit_distance(word, name), nearest = name;
    }
    return nearest;
}

struct option {
    const char *name;
    unsigned flag;
    size_t value; /* offset of a const char *, or of a bool when takes_value is false */
    bool takes_value;
    const char *word; /* a switch may be followed by this word; NULL: by none... */
    unsigned needs;   /* ...in commands that allow these options too... */
    size_t more;      /* ...which sets the bool at this offset */
};

#define VALUE(name, flag, member) {name, flag, offsetof(struct options, member), true}
#define SWITCH(name, flag, member) {name, flag, offsetof(struct options, member), false}
#define SWITCH_OR(name, flag, member, word, needs, more) {name, flag, offsetof(struct options, member), false, word, needs, offsetof(struct options, more)}
static const struct option table[] = {
    VALUE("--memory", OPT_MEMORY, memory),
    VALUE("--plan", OPT_PLAN, plan),
    VALUE("-o", OPT_OUTPUT, output),
    VALUE("--adapter", OPT_RUN | OPT_MODEL, adapter),
    VALUE("--preset", OPT_RUN, preset),
    VALUE("--out", OPT_OUTPUT, output),
    VALUE("--model", OPT_MODEL, model),
    VALUE("--batch", OPT_BATCH, batch),
    SWITCH("--json", OPT_JSON, json),
    SWITCH_OR("--explain", OPT_EXPLAIN, explain, "all", OPT_TABLES, explain_all),
    SWITCH_OR("--resume", OPT_RESUME, resume, "auto", 0, resume_auto),
    VALUE("--ranks", OPT_RANKS, ranks),
    VALUE("--per-host", OPT_LINKS, per_host),
    VALUE("--links", OPT_LINKS, links),
    VALUE("--steps", OPT_STEPS, steps),
    VALUE("--threads", OPT_THREADS, threads),
    SWITCH("--calibrate", OPT_CALIBRATE, calibrate),
    SWITCH("--confirm", OPT_CONFIRM, confirm),
    SWITCH("--compare", OPT_TABLES, compare),
    SWITCH("--frontier", OPT_TABLES, frontier),
    SWITCH("--rules-of-thumb", OPT_TABLES, rules),
    VALUE("--devices", OPT_TABLES, devices),
    VALUE("--images", OPT_TABLES, images),
    VALUE("--frames", OPT_TABLES, frames),
    VALUE("--masks", OPT_TABLES, masks),
};

/* Options that had another name in earlier versions. */
static const char *const renamed[][2] = {{"--seed-formula", "--rules-of-thumb"}};

static int unknown_option(const char *arg, unsigned allowed, struct error *e)
{
    for (size_t i = 0; i < COUNT(renamed); i++)
        if (!strcmp(arg, renamed[i][0])) return error_set(e, PL_USAGE, "%s is now %s", arg, renamed[i][1]);
    int best = edit_distance(arg, "--set") < 3 ? edit_distance(arg, "--set") : 4;
    const char *nearest = best < 4 ? "--set" : NULL;
    for (size_t i = 0; i < COUNT(table); i++)
        if (table[i].flag & allowed && edit_distance(arg, table[i].name) < best) {
            best = edit_distance(arg, table[i].name);
            nearest = table[i].name;
        }
    return error_set(e, PL_USAGE, "unknown option %s%s%s%s --help lists them", arg, nearest ? "; did you mean " : ";",
                     nearest ? nearest : "", nearest ? "?" : "");
}

/* Whether config.json of a folder names this model_type. */
static bool folder_is(const char *path, const char *model_type)
{
    struct bump b = {0};
    struct value *config;
    struct error ignored;
    const char *type = "", *file = bump_format(&b, "%s/config.json", path);
    const bool found = file_exists(file) && !json_read_file(file, 16u << 20, &b, &config, &ignored) &&
                       !value_opt_string(config, "model_type", &type, &ignored) && !strcmp(type, model_type);
    bump_free(&b);
    return found;
}

/* The script whose own options are taken too; NULL: none. The model decides: --preset, or --set
 * model.path. */
static const char *script_of(int argc, char **argv)
{
    static const char key[] = "model.path=";
    bool is = false;
    for (int i = 0; i + 1 < argc && !is; i++) {
        const char *value = argv[i + 1];
        if (!strcmp(argv[i], "--preset")) is = !strncmp(value, "prs-med", 7);
        else if (!strcmp(argv[i], "--set") && !strncmp(value, key, strlen(key)))
            is = folder_is(value + strlen(key), "prs_med");
    }
    return is ? "train_prs_med.py" : NULL;
}

/* An option of the program, and its values, for the shell's reader. */
static void keep_option(struct options *o, int argc, char **argv, int *i)
{
    do {
        text_printf(&o->program, " '");
        for (const char *c = argv[*i]; *c; c++) text_append(&o->program, *c == '\'' ? "'\\''" : c, *c == '\'' ? 4 : 1);
        text_printf(&o->program, "'");
    } while (*i + 1 < argc && argv[*i + 1][0] != '-' && ++*i);
}

/* Parses the option at argv[*i], written `--x value` or `--x=value`. */
static int parse_option(struct options *o, unsigned allowed, int argc, char **argv, int *i, struct error *e)
{
    const char *arg = argv[*i], *equals = strchr(arg, '=');
    size_t length = equals ? (size_t)(equals - arg) : strlen(arg);
    bool set = length == 5 && !strncmp(arg, "--set", 5),
         from = allowed & OPT_RUN && length == 13 && !strncmp(arg, "--config-from", 13);
    const struct option *found = NULL;
    for (size_t k = 0; k < COUNT(table) && !set && !from; k++)
        if (table[k].flag & allowed && strlen(table[k].name) == length && !strncmp(table[k].name, arg, length))
            found = &table[k];
    if (!set && !from && !found) {
        if (!(allowed & OPT_RUN) || !o->script) return unknown_option(arg, allowed, e);
        keep_option(o, argc, argv, i);
        return PL_OK;
    }
    if (found && !found->takes_value) {
        const bool may = found->word && (allowed & found->needs) == found->needs;
        const char *word = equals                                                       ? equals + 1
                           : may && *i + 1 < argc && !strcmp(argv[*i + 1], found->word) ? argv[++*i]
                                                                                        : NULL;
        if (word && (!may || strcmp(word, found->word)))
            return error_set(e, PL_USAGE, "%s takes no value%s%s", found->name, may ? " but " : "",
                             may ? found->word : "");
        *(bool *)((char *)o + found->value) = true;
        if (word) *(bool *)((char *)o + found->more) = true;
        return PL_OK;
    }
    const char *value = equals ? equals + 1 : *i + 1 < argc ? argv[++*i] : NULL;
    if (!value) return error_set(e, PL_USAGE, "%s needs a value", arg);
    if (set) o->set[o->n_set++] = value;
    else if (from) o->from[o->n_from++] = value;
    else *(const char **)((char *)o + found->value) = value;
    return PL_OK;
}

int options_parse(struct options *o, unsigned allowed, int argc, char **argv, struct error *e)
{
    memset(o, 0, sizeof *o);
    o->set = mem_alloc((size_t)(argc + 1) * sizeof *o->set);
    o->from = mem_alloc((size_t)(argc + 1) * sizeof *o->from);
    int rc = PL_OK;
    if (allowed & OPT_RUN) o->script = script_of(argc, argv); /* before the others: it decides what they are */
    for (int i = 0; i < argc && !rc; i++) {
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) o->help = true;
        else if (argv[i][0] == '-' && argv[i][1]) rc = parse_option(o, allowed, argc, argv, &i, e);
        else if (!(allowed & OPT_RUN)) rc = error_set(e, PL_USAGE, "unexpected argument %s", argv[i]);
        else if (o->run) rc = error_set(e, PL_USAGE, "two run files are given: %s and %s", o->run, argv[i]);
        else o->run = argv[i];
    }
    if (!rc && !o->help && allowed & OPT_RUN && !o->run && !o->n_from && !o->calibrate && !o->preset && !o->script)
        rc = error_set(e, PL_USAGE, "no run file is given: add the path of a RUN.yaml (see --help)");
    if (rc) options_free(o);
    return rc;
}

int options_count(const char *option, const char *text, int64_t least, int64_t most, int64_t *out, struct error *e)
{
    char *end;
    if (!text) return PL_OK;
    long long x = strtoll(text, &end, 10);
    if (!*text || *end || x < least || x > most)
        return error_set(e, PL_USAGE, "%s is %s, expected a number from %" PRId64 " to %" PRId64, option, text, least,
                         most);
    *out = x;
    return PL_OK;
}

void options_free(struct options *o)
{
    mem_free(o->set);
    mem_free(o->from);
    text_free(&o->program);
    o->set = o->from = NULL;
}

/* The number of ranks that the run file or --set names; 0: none. Errors are reported where they are
 * read for good. */
static int64_t ranks_in_files(const struct options *o)
{
    struct config c;
    struct error ignored;
    config_init(&c);
    if (o->run) config_read(&c, o->run, &ignored);
    for (int i = 0; i < o->n_set; i++)
        if (!strncmp(o->set[i], "parallel.ranks=", 15)) config_set(&c, o->set[i], &ignored);
    const int64_t n = c.parallel_ranks;
    config_free(&c);
    return n;
}

/* Ranks of the run: a number of --ranks, of a list 1; else as the run file says, or as launched. */
static int64_t ranks_of(const struct options *o)
{
    char *end;
    const int64_t n = o->ranks ? strtoll(o->ranks, &end, 10) : ranks_in_files(o);
    return o->ranks && *end ? 1 : n > 0 ? n : dist_launched();
}

int from_read(struct import *f, const char *const *files, int n, struct config *c, struct error *e)
{
    int rc = PL_OK;
    for (int i = 0; i < n && !rc; i++) rc = import_read(f, files[i], e);
    if (!rc) rc = import_apply(f, c, e);
    return rc ? error_prepend(e, "--config-from") : PL_OK;
}

/* A command may read its configuration several times. */
static void list_imported(const struct import *f, const struct config *c)
{
    static bool listed;
    struct text text = {0};
    if (!f->files.n || listed) return;
    listed = true;
    import_print(f, c, &text);
    for (char *line = text.at, *end; *line; line = end + 1) {
        end = strchr(line, '\n');
        log_note("%.*s", (int)(end - line), line);
    }
    text_free(&text);
}

int from_settle(struct import *f, struct config *c, struct error *e)
{
    if (import_settle(f, c, e)) return error_prepend(e, "--config-from");
    list_imported(f, c);
    return PL_OK;
}

/* Options of the program that the preset is from, on the command line itself. */
static int read_program(const struct options *o, struct import *f, struct config *c, struct error *e)
{
    struct text command = {0};
    text_printf(&command, "python %s%s\n", f->script, o->program.at);
    int rc = import_read_text(f, command.at, command.n, "the command line", e);
    text_free(&command);
    return rc ? rc : import_apply(f, c, e);
}

static int read_sources(const struct options *o, struct import *f, struct config *c, struct error *e)
{
    int rc = PL_OK;
    f->script = o->script;
    f->asks = o->asks;
    if (o->n_from || o->program.n) f->ranks = ranks_of(o);
    if (o->n_from && !o->program.n) rc = from_read(f, o->from, o->n_from, c, e);
    for (int i = 0; i < o->n_from && o->program.n && !rc; i++) rc = import_read(f, o->from[i], e);
    if (!rc && o->program.n) rc = read_program(o, f, c, e);
    if (rc) return rc;
    if (o->run) rc = config_read(c, o->run, e);
    if (!rc && o->preset) rc = config_assign(c, "model.preset", o->preset, e);
    for (int i = 0; i < o->n_set && !rc; i++) rc = config_set(c, o->set[i], e);
    if (!rc && o->memory) rc = config_set_memory(c, o->memory, e);
    const struct {
        const char *key, *value;
    } parallel[] = {{"parallel.ranks", o->ranks}, {"parallel.per_host", o->per_host}, {"parallel.links", o->links}};
    for (size_t i = 0; i < COUNT(parallel) && !rc; i++)
        if (parallel[i].value) rc = config_assign(c, parallel[i].key, parallel[i].value, e);
    if (!rc && o->adapter) config_use_adapter(c, o->adapter);
    return rc ? rc : from_settle(f, c, e);
}

int options_config(const struct options *o, struct config *c, struct error *e)
{
    struct import f = {0};
    config_init(c);
    int rc = read_sources(o, &f, c, e);
    import_free(&f);
    if (rc) config_free(c);
    return rc;
}

static bool is_preset(const char *name)
{
    for (const struct preset *k = presets; k->name; k++)
        if (!strcmp(k->name, name)) return true;
    return false;
}

void use_model(struct config *c, const char *model, const char *results)
{
    const bool preset = !dir_exists(model) && is_preset(model);
    c->model_path = preset ? NULL : (char *)model;
    c->model_preset = preset ? (char *)model : NULL;
    if (preset)
        log_warn("%s is a preset: its weights are random, so its %s %s meaningless", model, results,
                 strcmp(results, "text") ? "are" : "is");
}

void print_help(const struct command *c)
{
    struct text keys = {0};
    config_help(&keys);
    printf("usage: plimsoll %s\n\n%s\n\nKeys of RUN.yaml, each also a --set key=value:\n\n%s", c->usage, c->summary,
           keys.at);
    text_free(&keys);
}
