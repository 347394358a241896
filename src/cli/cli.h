/*
 * cli.h: a command is a row of commands.def and a file; main.c dispatches. It returns its exit code
 * and fills `e` when that is not 0; only main prints the error.
 */
#ifndef CLI_H
#define CLI_H

#include "import/import.h"

struct command {
    const char *name, *usage, *summary;
    int (*run)(int argc, char **argv, struct error *e);
    bool ranks;           /* it runs on several ranks (ranks.h) */
};
#define COMMAND(name, what) extern const struct command command_##name;
#include "cli/commands.def"
#undef COMMAND

/* Prepares the process, which may start the program again, and returns what `body` returns
 * (start.c). Called first. */
int start_process(int (*body)(int argc, char **argv), int argc, char **argv);

/* The command of a list that a mistyped or related word means; NULL: none is near. */
const char *nearest_command(const char *word, const struct command *const *commands, size_t n);

/* Options that several commands share. The members of options that a command does not allow
 * stay NULL; an option that the command does not know is PL_USAGE. */
struct options {
    const char *run;      /* RUN.yaml, the positional argument */
    const char *memory, *plan, *output, *model, *adapter, *preset, *batch, *steps, *threads;
    const char *devices, *images, *frames, *masks;
    const char *ranks, *per_host, *links;
    const char **set, **from; /* --set, --config-from */
    int n_set, n_from;
    const char *script;       /* the program whose options are taken too, because of the model; NULL: none */
    struct text program;      /* these options, as words of a shell */
    bool json, explain, resume, calibrate, confirm, help;
    bool resume_auto;         /* --resume auto */
    bool explain_all;         /* --explain all */
    bool compare, frontier, rules;
    bool asks; /* a question of --config-from without an answer is an error, which the command sets: it decides what is
                  trained */
};
enum option_flag {
    OPT_RUN = 1, OPT_MEMORY = 2, OPT_PLAN = 4, OPT_OUTPUT = 8, OPT_MODEL = 16, OPT_BATCH = 32, OPT_JSON = 64,
    OPT_EXPLAIN = 128, OPT_RESUME = 256, OPT_STEPS = 512, OPT_THREADS = 1024,
    OPT_CALIBRATE = 2048, /* --calibrate needs no RUN.yaml */
    OPT_CONFIRM = 4096,
    OPT_TABLES = 8192,    /* the tables of `plan`: see plan_tables.h */
    OPT_RANKS = 16384,
    OPT_LINKS = 32768,    /* with --ranks, for predicted times */
};
int options_parse(struct options *o, unsigned allowed, int argc, char **argv, struct error *e);
void options_free(struct options *o);
/* Parses an option's value as an integer within bounds; *out is unchanged when text is NULL. */
int options_count(const char *option, const char *text, int64_t least, int64_t most, int64_t *out, struct error *e);
/* The configuration: the defaults, then the files of --config-from, the run file, --set and
 * --memory override them in this order. What the files of --config-from gave is listed on stderr,
 * once for each command. */
int options_config(const struct options *o, struct config *c, struct error *e);

/* The files of --config-from, for commands with options of their own: sets what they say, before
 * the run file and --set; and settles what depends on those, and lists it on stderr. */
int from_read(struct import *f, const char *const *files, int n, struct config *c, struct error *e);
int from_settle(struct import *f, struct config *c, struct error *e);

/* --model of a command: a folder, or the name of a preset, for which it warns that "text" or
 * "masks" have no meaning. */
void use_model(struct config *c, const char *model, const char *results);

/* The line of --config-from in the summaries of the commands that take a run file. */
#define CONFIG_FROM_HELP                                                                                               \
    "  --config-from FILE   takes the settings of another program from FILE: Hugging Face TrainingArguments, TRL, "    \
    "LLaMA-Factory,\n"                                                                                                 \
    "                   ms-swift, Axolotl, LLaVA, DeepSpeed, Accelerate, a training command line, or values in "       \
    "Python's notation. May be\n"                                                                                      \
    "                   given several times. RUN.yaml, which is then optional, and --set come after it and override "  \
    "it\n"
#define PRESET_HELP                                                                                                                         \
    "  --preset NAME    model.preset; with prs-med, or with --set model.path=DIR of a PRS-Med folder, the flags of train_prs_med.py are\n"    \
    "                   taken too, such as --data_root DIR --batch_size 2\n"

/* Prints a command's usage and summary, and after them the description of every key. */
void print_help(const struct command *c);

#endif
