/*
 * cli.h: a command is a row of commands.def and a file, with a struct command: names, help, options
 * and a function. frame.c parses the options, prints the help, starts ranks, reads the
 * configuration and frees all of it; main.c dispatches and prints the error.
 */
#pragma once

#include "base/words.h"
#include "config/config.h"
#include "import/import.h"
#include "io/file.h"

/* An option of a command. */
enum option_kind {
    OPTION_SWITCH,   /* bool */
    OPTION_TEXT,     /* const char * */
    OPTION_COUNT,    /* uint64_t */
    OPTION_POSITIVE, /* uint64_t above 0; 0: not given */
    OPTION_SIZE,     /* uint32_t[2] of width and height, WxH */
    OPTION_REAL,     /* double */
    OPTION_LIST,     /* struct names: each use appends one */
};
struct option {
    const char *name;
    enum option_kind kind;
    size_t at;        /* of its value in the command's state */
    const char *word; /* a switch may be followed by this word, which sets the bool behind it; NULL: by none */
};
#define OPTION(state, name, kind, member) {name, OPTION_##kind, offsetof(state, member)}

/* Groups of options that several commands share; their values are members of struct options. */
enum option_group {
    OPT_RUN = 1,         /* a run file, --preset, --adapter, --set and --config-from */
    OPT_MEMORY = 2, OPT_PLAN = 4, OPT_OUTPUT = 8, OPT_JSON = 16, OPT_STEPS = 32, OPT_RANKS = 64,
    OPT_MODEL = 128,     /* --model and --adapter */
    OPT_SET = 256, OPT_FROM = 512, OPT_BATCH = 1024,
    OPT_PATHS = 2048,    /* any number of arguments that are no options */
    OPT_NO_RUN = 4096,   /* with OPT_RUN: the command checks itself whether there is one (options_need_run) */
};

struct options;
struct command {
    const char *name, *usage, *summary;
    bool ranks;                      /* it runs on several ranks: o->world */
    unsigned shared;                 /* enum option_group */
    const struct option *options;    /* its own */
    size_t n_options;
    const void *initial;             /* its state, which begins with a struct options */
    size_t bytes;
    /* Changes a configuration that has the files but not --set and --memory; NULL: does nothing. */
    int (*between)(const struct options *o, struct config *c, struct error *e);
    /* Returns the exit code, and fills `e` when that is not 0. */
    int (*run)(struct options *o, struct error *e);
    const struct command *const *commands; /* instead: subcommands */
    size_t n_commands;
};
#define COMMAND_OPTIONS(list) .options = (list), .n_options = COUNT(list)
/* A state of a type, with the values that are not 0. */
#define COMMAND_STATE(type, ...) .initial = &(const type){__VA_ARGS__}, .bytes = sizeof(type)
#define COMMAND(name, what) extern const struct command command_##name;
#include "cli/commands.def"
#undef COMMAND

/* What is common to the states of all commands. */
struct options {
    const struct command *command;
    int argc;                 /* the words after the command's name */
    char **argv;
    VEC(struct option) known; /* options of the command, with the shared ones */
    const char *run;          /* RUN.yaml, the positional argument; NULL: none */
    struct names paths;       /* of OPT_PATHS */
    const char *memory, *plan, *output, *model, *adapter, *preset, *batch, *steps, *ranks;
    struct names set, from;   /* --set, --config-from */
    bool json, resume, resume_auto, help;
    const char *script;       /* the program whose options are taken too, because of the model; NULL: none */
    struct text program;      /* these options, as words of a shell */
    const char *per_host, *links;
    bool asks;                /* the command decides what is trained: an open question of --config-from is an error */
    struct config config;     /* of options_configure */
    bool configured;
    struct ranks *world;      /* of a command with `ranks`; NULL: this is the only process */
};

/* Runs a command, or the subcommand that argv names, with the words after its name. */
int command_run(const struct command *c, int argc, char **argv, struct error *e);
/* Returns the command of a list with this name, or with that for which it is another word or a
 * mistyped one; NULL: none. */
const struct command *command_find(const char *name, const struct command *const *list, size_t n);
const char *command_nearest(const char *word, const struct command *const *list, size_t n);

/* Appends the names of all options of a command, with `between` them. */
void command_options(const struct command *c, const char *between, struct text *out);
/* Returns the name of the first option of a list that has a value other than 0; NULL: none. */
const char *options_given(const struct options *o, const struct option *list, size_t n);
/* Refuses options without a run file or what replaces it. */
int options_need_run(const struct options *o, struct error *e);
/* Reads the configuration into o->config: on several ranks rank 0 reads it for all. */
int options_configure(struct options *o, struct error *e);
/* Does the same for a plan_source (compare/trial.h), with the struct options and without --ranks of
 * several numbers. */
int options_source(const void *options, struct config *c, struct error *e);
/* Does the same for files of --config-from only. */
int from_read(struct import *f, const char *const *files, int n, struct config *c, struct error *e);

/* Sets the model of --model: a folder, or the name of a preset, for which it warns that "text" or
 * "masks" have no meaning. */
void use_model(struct config *c, const char *model, const char *results);
/* Sets the model and adapter of --model and --adapter in place of those of a run file, whose
 * patterns for names of weights are dropped. */
void use_other_model(struct options *o, const char *results);
/* Says how a published model, which has random weights here, gets the published ones; of other
 * models nothing. */
void warn_random(const char *model);

/* Reads the configuration and --steps, and opens a bench of it on all ranks. The caller closes the
 * bench, also after a failure (bench.c). */
struct bench;
int bench_start(struct options *o, int64_t most, int64_t *steps, struct bench *b, struct error *e);

/* Lines of help that several commands share. */
#define CONFIG_FROM_HELP                                                                                       \
    "  --config-from FILE  takes the settings of another program from FILE: Hugging Face TrainingArguments,\n"  \
    "                   TRL, LLaMA-Factory, ms-swift, Axolotl, LLaVA, DeepSpeed, Accelerate, a training\n"      \
    "                   command line, or values in Python's notation. May be given several times.\n"            \
    "                   RUN.yaml, which is then optional, and --set come after it and override it\n"
#define PRESET_HELP                                                                                            \
    "  --preset NAME    model.preset; with prs-med, or with --set model.path=DIR of a PRS-Med folder, the\n"    \
    "                   flags of train_prs_med.py are taken too, such as --data_root DIR --batch_size 2\n"
#define ADAPTER_HELP                                                                                           \
    "  --adapter DIR    a LoRA adapter, as PEFT or a run with an adapter saves it, instead of the one in\n"     \
    "                   RUN.yaml: adapter.path\n"
