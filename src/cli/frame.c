/*
 * frame.c: what is the same in every command: options, help, ranks, the configuration, and freeing
 * them (cli.h).
 */
#include <inttypes.h>
#include <math.h>
#include <omp.h>

#include "base/progress.h"
#include "cli/cli.h"
#include "cli/data.h"
#include "dist/agree.h"
#include "dist/dist.h"
#include "io/json.h"
#include "models/catalogue.h"
#include "models/model.h"

/* --- names ------------------------------------------------------------------------------- */

/* Words that other programs use for a command. */
static const char *const synonyms[][2] = {
    {"fit", "train"}, {"finetune", "train"}, {"fine-tune", "train"}, {"run", "train"}, {"infer", "predict"},
    {"inference", "predict"}, {"segment", "predict"}, {"validate", "eval"}, {"test", "eval"}, {"export", "convert"},
    {"estimate", "plan"}, {"new", "init"}, {"trace", "profile"}};

const struct command *command_find(const char *name, const struct command *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(list[i]->name, name)) return list[i];
    return NULL;
}

const char *command_nearest(const char *word, const struct command *const *list, size_t n)
{
    const char *nearest = NULL;
    int best = (int)strlen(word) < 4 ? 2 : 3;
    for (size_t i = 0; i < COUNT(synonyms); i++)
        if (!strcmp(word, synonyms[i][0]) && command_find(synonyms[i][1], list, n)) return synonyms[i][1];
    for (size_t k = 0; k < n; k++) {
        const char *name = list[k]->name;
        size_t shorter = strlen(word) < strlen(name) ? strlen(word) : strlen(name);
        if (shorter > 2 && !strncmp(word, name, shorter)) return name; /* evaluate, pred */
        if (edit_distance(word, name) < best) best = edit_distance(word, name), nearest = name;
    }
    return nearest;
}

/* --- options ----------------------------------------------------------------------------- */

#define IN_GROUP(group, name, kind, member) {group, OPTION(struct options, name, kind, member)}
static const struct {
    unsigned groups; /* of any of them */
    struct option option;
} shared[] = {
    IN_GROUP(OPT_MEMORY, "--memory", TEXT, memory),
    IN_GROUP(OPT_PLAN, "--plan", TEXT, plan),
    IN_GROUP(OPT_OUTPUT, "-o", TEXT, output),
    IN_GROUP(OPT_OUTPUT, "--out", TEXT, output),
    IN_GROUP(OPT_RUN | OPT_MODEL, "--adapter", TEXT, adapter),
    IN_GROUP(OPT_RUN, "--preset", TEXT, preset),
    IN_GROUP(OPT_MODEL, "--model", TEXT, model),
    IN_GROUP(OPT_BATCH, "--batch", TEXT, batch),
    IN_GROUP(OPT_JSON, "--json", SWITCH, json),
    IN_GROUP(OPT_RANKS, "--ranks", TEXT, ranks),
    IN_GROUP(OPT_STEPS, "--steps", TEXT, steps),
    IN_GROUP(OPT_RUN | OPT_SET, "--set", LIST, set),
    IN_GROUP(OPT_RUN | OPT_FROM, "--config-from", LIST, from),
};

/* Parses a value into `to`. */
static int parse_value(const struct option *o, const char *s, void *to, struct error *e)
{
    char *end;
    const char *expected = NULL;
    if (o->kind == OPTION_TEXT) *(const char **)to = s;
    else if (o->kind == OPTION_LIST) vec_push((struct names *)to, mem_string(s));
    else if (o->kind == OPTION_SIZE && !extent_parse(s, to)) expected = "WIDTHxHEIGHT in pixels, such as 1024x768";
    else if (o->kind == OPTION_REAL) {
        *(double *)to = strtod(s, &end);
        if (end == s || *end || !isfinite(*(double *)to)) expected = "a number";
    } else if (o->kind == OPTION_COUNT || o->kind == OPTION_POSITIVE) {
        const bool positive = o->kind == OPTION_POSITIVE;
        *(uint64_t *)to = strtoull(s, &end, 10);
        if (*s < '0' || *s > '9' || *end || (positive && !*(uint64_t *)to))
            expected = positive ? "a whole number above 0" : "a whole number";
    }
    return expected ? error_set(e, PL_USAGE, "%s %s: expected %s", o->name, s, expected) : PL_OK;
}

static int unknown_option(const struct options *o, const char *arg, struct error *e)
{
    const char *nearest = NULL;
    int best = 4;
    for (uint32_t i = 0; i < o->known.n; i++)
        if (edit_distance(arg, o->known.at[i].name) < best)
            best = edit_distance(arg, o->known.at[i].name), nearest = o->known.at[i].name;
    return error_set(e, PL_USAGE, "unknown option %s%s%s%s --help lists them", arg, nearest ? "; did you mean " : ";",
                     nearest ? nearest : "", nearest ? "?" : "");
}

/* Reports whether config.json of a folder names this model_type. */
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

/* Returns the script whose own options are taken too; NULL: none. The model decides: --preset, or
 * --set model.path. */
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

/* Keeps an option of the script and its values, for the shell's reader. */
static void keep_option(struct options *o, int *i)
{
    do {
        text_quote(&o->program, o->argv[*i]);
    } while (*i + 1 < o->argc && o->argv[*i + 1][0] != '-' && ++*i);
}

/* Parses the option at argv[*i], written `--x value` or `--x=value`. */
static int parse_option(struct options *o, int *i, struct error *e)
{
    char *state = (char *)o;
    const char *arg = o->argv[*i], *equals = strchr(arg, '='), *next = *i + 1 < o->argc ? o->argv[*i + 1] : NULL;
    const size_t length = equals ? (size_t)(equals - arg) : strlen(arg);
    const struct option *x = NULL;
    for (uint32_t k = 0; k < o->known.n && !x; k++)
        if (strlen(o->known.at[k].name) == length && !strncmp(o->known.at[k].name, arg, length)) x = &o->known.at[k];
    if (!x && o->script) keep_option(o, i);
    else if (!x) return unknown_option(o, arg, e);
    if (!x) return PL_OK;
    if (x->kind == OPTION_SWITCH) {
        const bool follows = !equals && x->word && next && !strcmp(next, x->word);
        const char *word = equals ? equals + 1 : follows ? next : NULL;
        if (word && (!x->word || strcmp(word, x->word)))
            return error_set(e, PL_USAGE, "%s takes no value%s%s", x->name, x->word ? " but " : "",
                             x->word ? x->word : "");
        *i += follows;
        ((bool *)(state + x->at))[0] = true;
        if (word) ((bool *)(state + x->at))[1] = true;
        return PL_OK;
    }
    if (!equals && !next) return error_set(e, PL_USAGE, "%s needs a value", arg);
    *i += !equals;
    return parse_value(x, equals ? equals + 1 : next, state + x->at, e);
}

/* Parses all words of o->argv by o->known, unless one of them asks for help. */
static int parse_words(struct options *o, struct error *e)
{
    const unsigned groups = o->command->shared;
    for (int i = 0; i < o->argc; i++)
        if (!strcmp(o->argv[i], "--help") || !strcmp(o->argv[i], "-h")) o->help = true;
    if (o->help) return PL_OK;
    for (int i = 0; i < o->argc; i++) {
        char *word = o->argv[i];
        if (word[0] == '-' && word[1]) {
            if (parse_option(o, &i, e)) return e->code;
        } else if (groups & OPT_PATHS) vec_push(&o->paths, mem_string(word));
        else if (!(groups & OPT_RUN)) return error_set(e, PL_USAGE, "unexpected argument %s", word);
        else if (o->run) return error_set(e, PL_USAGE, "two run files are given: %s and %s", o->run, word);
        else o->run = word;
    }
    return PL_OK;
}

void command_options(const struct command *c, const char *between, struct text *out)
{
    for (size_t i = 0; i < c->n_options; i++) text_printf(out, "%s%s", out->n ? between : "", c->options[i].name);
    for (size_t i = 0; i < COUNT(shared); i++)
        if (shared[i].groups & c->shared) text_printf(out, "%s%s", out->n ? between : "", shared[i].option.name);
}

static void add_shared(struct options *o, unsigned groups)
{
    for (size_t i = 0; i < COUNT(shared); i++)
        if (shared[i].groups & groups) vec_push(&o->known, shared[i].option);
}

int options_need_run(const struct options *o, struct error *e)
{
    if (o->run || o->from.n || o->preset || o->script) return PL_OK;
    return error_set(e, PL_USAGE, "no run file is given: add the path of a RUN.yaml (see --help)");
}

static void options_free(struct options *o)
{
    for (uint32_t i = 0; i < o->known.n; i++)
        if (o->known.at[i].kind == OPTION_LIST) names_free((struct names *)((char *)o + o->known.at[i].at));
    vec_free(&o->known);
    names_free(&o->paths);
    text_free(&o->program);
    if (o->configured) config_free(&o->config);
}

const char *options_given(const struct options *o, const struct option *list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const void *at = (const char *)o + list[i].at;
        if (list[i].kind == OPTION_TEXT    ? *(const char *const *)at != NULL
            : list[i].kind == OPTION_SWITCH ? *(const bool *)at
                                            : *(const uint64_t *)at != 0)
            return list[i].name;
    }
    return NULL;
}

/* --- ranks ------------------------------------------------------------------------------- */

/* Starts the same command under mpirun, without --ranks. Returns on failure. */
static int start_ranks(const struct options *o, int64_t ranks, struct error *e)
{
    const char **words = mem_alloc(((size_t)o->argc + 1) * sizeof *words);
    int n = 0;
    words[n++] = o->command->name;
    for (int i = 0; i < o->argc; i++)
        if (!strcmp(o->argv[i], "--ranks")) i++;
        else if (strncmp(o->argv[i], "--ranks=", 8)) words[n++] = o->argv[i];
    int rc = dist_start(ranks, words, n, e);
    mem_free(words);
    return rc;
}

/* Divides the processors of a host among its ranks, unless a launcher or the user has done so. */
static void divide_threads(const struct ranks *r)
{
    char text[24];
    const int each = dist_threads(r->local);
    if (!each) return;
    snprintf(text, sizeof text, "%d", each);
    setenv("OMP_NUM_THREADS", text, 1); /* where the plan takes its number of threads from */
    omp_set_num_threads(each);
}

/* Prints the error on rank 0 before dist_close, where ranks wait for each other: the launcher ends
 * the others when the first one exits. */
static void say_error(const struct options *o, struct error *e)
{
    progress_clear();
    if (!o->world->rank && e->text[0]) fprintf(stderr, "plimsoll %s: %s\n", o->command->name, e->text);
    e->text[0] = '\0';
}

/* Runs a command on the ranks that a launcher started. With --ranks N and without a launcher it
 * starts the program again under mpirun, and returns only on failure. */
static int run_on_ranks(struct options *o, struct error *e)
{
    int64_t n = 1;
    TRY(option_count("--ranks", o->ranks, 1, 65536, &n, e));
    if (n > 1 && dist_launched() == 1) return start_ranks(o, n, e);
    o->world = dist_open(e);
    int rc = e->code;
    if (o->world) divide_threads(o->world);
    if (o->world && o->world->rank) log_silence();
    if (!rc) rc = o->command->run(o, e);
    rc = agree_to_end(o->world, rc, e);
    if (rc && o->world) say_error(o, e);
    dist_close(o->world);
    return rc;
}

/* --- the configuration ------------------------------------------------------------------- */

/* Returns the number of ranks that the run file or --set names; 0: none. Errors are reported where
 * they are read for good. */
static int64_t ranks_in_files(const struct options *o)
{
    struct config c;
    struct error ignored;
    config_init(&c);
    if (o->run) config_read(&c, o->run, &ignored);
    for (uint32_t i = 0; i < o->set.n; i++)
        if (!strncmp(o->set.at[i], "parallel.ranks=", 15)) config_set(&c, o->set.at[i], &ignored);
    const int64_t n = c.parallel_ranks;
    config_free(&c);
    return n;
}

/* Returns the ranks of the run: a number of --ranks, of a list 1; else as the run file says, or as
 * launched. */
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

/* Lists once what was taken: a command may read its configuration several times. */
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

static int from_settle(struct import *f, struct config *c, struct error *e)
{
    if (import_settle(f, c, e)) return error_prepend(e, "--config-from");
    list_imported(f, c);
    return PL_OK;
}

/* Reads the options of the program that the preset is from, on the command line itself. */
static int read_program(const struct options *o, struct import *f, struct config *c, struct error *e)
{
    struct text command = {0};
    text_printf(&command, "python %s%s\n", f->script, o->program.at);
    int rc = import_read_text(f, command.at, command.n, "the command line", e);
    text_free(&command);
    return rc ? rc : import_apply(f, c, e);
}

/* Takes what the files of --config-from and the run file give. */
static int read_files(const struct options *o, struct import *f, struct config *c, struct error *e)
{
    int rc = PL_OK;
    f->script = o->script;
    f->asks = o->asks;
    if (o->from.n || o->program.n) f->ranks = ranks_of(o);
    if (o->from.n && !o->program.n) rc = from_read(f, (const char *const *)o->from.at, (int)o->from.n, c, e);
    for (uint32_t i = 0; i < o->from.n && o->program.n && !rc; i++) rc = import_read(f, o->from.at[i], e);
    if (!rc && o->program.n) rc = read_program(o, f, c, e);
    return !rc && o->run ? config_read(c, o->run, e) : rc;
}

/* Takes what overrides the files. */
static int override(const struct options *o, struct import *f, struct config *c, struct error *e)
{
    const struct {
        const char *key, *value;
    } parallel[] = {{"parallel.ranks", o->ranks}, {"parallel.per_host", o->per_host}, {"parallel.links", o->links}};
    int rc = o->preset ? config_assign(c, "model.preset", o->preset, e) : PL_OK;
    for (uint32_t i = 0; i < o->set.n && !rc; i++) rc = config_set(c, o->set.at[i], e);
    if (!rc && o->memory) rc = config_set_memory(c, o->memory, e);
    for (size_t i = 0; i < COUNT(parallel) && !rc; i++)
        if (parallel[i].value) rc = config_assign(c, parallel[i].key, parallel[i].value, e);
    if (!rc && o->adapter) config_use_adapter(c, o->adapter);
    return rc ? rc : from_settle(f, c, e);
}

/* Reads another copy of the configuration: the defaults, then the files of --config-from, the run
 * file, --set and --memory override them in this order. Lists what the files of --config-from gave
 * on stderr, once for each command. */
static int options_config(const struct options *o, struct config *c, struct error *e)
{
    struct import f = {0};
    config_init(c);
    int rc = read_files(o, &f, c, e);
    if (!rc && o->command->between) rc = o->command->between(o, c, e);
    if (!rc) rc = override(o, &f, c, e);
    import_free(&f);
    if (rc) config_free(c);
    return rc;
}

int options_source(const void *options, struct config *c, struct error *e)
{
    struct options o = *(const struct options *)options;
    if (o.ranks && strchr(o.ranks, ',')) o.ranks = NULL;
    return options_config(&o, c, e);
}

static int check_ranks(const struct config *c, const struct ranks *r, struct error *e)
{
    const int64_t n = r ? r->n : 1;
    if (c->parallel_ranks <= 0 || c->parallel_ranks == n) return PL_OK;
    error_set(e, PL_USAGE, "parallel.ranks is %lld, and %lld %s started: use --ranks %lld, or mpirun -np %lld",
              (long long)c->parallel_ranks, (long long)n, n == 1 ? "process was" : "processes were",
              (long long)c->parallel_ranks, (long long)c->parallel_ranks);
    return config_at_key(c, KEY_parallel_ranks, e);
}

/* Gives the configuration that rank 0 has read to the others, as text. */
static int share_config(struct ranks *r, struct config *c, struct error *e)
{
    struct text text = {0};
    uint64_t bytes;
    if (!r->rank) config_write_given(c, &text);
    bytes = text.n;
    r->where = "the configuration";
    agree_broadcast(r, &bytes, sizeof bytes);
    char *at = r->rank ? mem_alloc(bytes + 1) : text.at;
    agree_broadcast(r, at, bytes);
    r->where = NULL;
    int rc = PL_OK;
    if (r->rank) {
        config_init(c);
        rc = config_read_text(c, at, "the configuration of rank 0", e);
        c->checked = true; /* by rank 0, which knows the options */
        if (rc) config_free(c);
        mem_free(at);
    }
    text_free(&text);
    return rc;
}

/* Reads the configuration on rank 0 and gives it to all. The timeout of ranks is set from it. */
static int configure_ranks(struct options *o, struct error *e)
{
    struct ranks *r = o->world;
    struct config *c = &o->config;
    const bool reads = !r || !r->rank;
    int rc = reads ? options_config(o, c, e) : PL_OK;
    if (!rc && reads && (rc = check_ranks(c, r, e))) config_free(c);
    const bool read = reads && !rc;
    if ((rc = agree_on(r, rc, e)) && read) config_free(c);
    if (rc || !r) return rc;
    rc = share_config(r, c, e);
    if (!rc) r->timeout = c->parallel_timeout;
    return rc;
}

int options_configure(struct options *o, struct error *e)
{
    int rc = o->command->ranks ? configure_ranks(o, e) : options_config(o, &o->config, e);
    o->configured = !rc;
    return rc;
}

void use_model(struct config *c, const char *model, const char *results)
{
    const bool preset = !dir_exists(model) && preset_config(model) && !catalogue_find(model, NULL);
    c->model_path = preset ? NULL : (char *)model;
    c->model_preset = preset ? (char *)model : NULL;
    if (preset)
        log_warn("%s is a preset: its weights are random, so its %s %s meaningless", model, results,
                 strcmp(results, "text") ? "are" : "is");
}

void use_other_model(struct options *o, const char *results)
{
    struct config *c = &o->config;
    use_model(c, o->model, results);
    config_use_adapter(c, o->adapter);
    c->model_freeze.n = c->train_groups.n = c->train_no_decay.n = 0;
}

void warn_random(const char *model)
{
    struct text download = {0}, folder = {0};
    if (catalogue_download(model, &download, &folder))
        log_warn("the weights of %s are random here. To train from the published ones: %s, then use %s", model,
                 download.at, folder.at);
    text_free(&download);
    text_free(&folder);
}

/* --- a command --------------------------------------------------------------------------- */

/* Prints a command's usage and summary, and for a command that reads a configuration every key. */
static void print_help(const struct command *c)
{
    struct text keys = {0};
    printf("usage: plimsoll %s\n\n%s\n", c->usage, c->summary);
    if (!(c->shared & (OPT_RUN | OPT_BATCH))) return;
    config_help(&keys);
    printf("\nKeys of RUN.yaml, each also a --set key=value:\n\n%s", keys.at);
    text_free(&keys);
}

static int run_subcommand(const struct command *c, int argc, char **argv, struct error *e)
{
    const struct command *found = argc ? command_find(argv[0], c->commands, c->n_commands) : NULL;
    if (found) return command_run(found, argc - 1, argv + 1, e) ? error_prepend(e, "%s", found->name) : PL_OK;
    if (argc && (!strcmp(argv[0], "--help") || !strcmp(argv[0], "-h"))) {
        printf("usage:\n");
        for (size_t i = 0; i < c->n_commands; i++) printf("  plimsoll %s\n", c->commands[i]->usage);
        printf("\n`plimsoll %s SUBCOMMAND --help` describes a subcommand.\n", c->name);
        return PL_OK;
    }
    struct text known = {0};
    for (size_t i = 0; i < c->n_commands; i++)
        text_printf(&known, "%s%s", i == 0 ? "" : i + 1 < c->n_commands ? ", " : " or ", c->commands[i]->name);
    const char *nearest = argc ? command_nearest(argv[0], c->commands, c->n_commands) : NULL;
    if (nearest)
        error_set(e, PL_USAGE, "unknown subcommand %s; did you mean `%s %s`? --help describes all", argv[0], c->name,
                  nearest);
    else if (argc) error_set(e, PL_USAGE, "%s %s: expected %s; --help describes them", c->name, argv[0], known.at);
    else error_set(e, PL_USAGE, "no subcommand is given: expected %s; --help describes them", known.at);
    text_free(&known);
    return PL_USAGE;
}

int command_run(const struct command *c, int argc, char **argv, struct error *e)
{
    if (c->commands) return run_subcommand(c, argc, argv, e);
    struct options *o = c->initial ? mem_copy(c->initial, c->bytes) : mem_alloc(sizeof *o);
    o->command = c;
    o->argc = argc;
    o->argv = argv;
    for (size_t i = 0; i < c->n_options; i++) vec_push(&o->known, c->options[i]);
    add_shared(o, c->shared);
    if (c->shared & OPT_RUN) o->script = script_of(argc, argv); /* it decides what the other words are */
    int rc = parse_words(o, e);
    if (!rc && o->help) print_help(c);
    else if (!rc && c->shared & OPT_RUN && !(c->shared & OPT_NO_RUN)) rc = options_need_run(o, e);
    if (!rc && !o->help) rc = c->ranks ? run_on_ranks(o, e) : c->run(o, e);
    options_free(o);
    mem_free(o);
    return rc;
}
