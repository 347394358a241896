/*
 * cli.h: one file per command; main.c dispatches. A command returns the exit
 * code and fills `e` when it is not 0; only main prints the error.
 */
#ifndef CLI_H
#define CLI_H

#include "train/config.h"

struct command {
    const char *name, *usage, *summary;
    int (*run)(int argc, char **argv, struct error *e);
};
extern const struct command command_plan, command_train, command_step, command_report, command_bench,
    command_data, command_convert, command_predict, command_eval, command_init,
    command_profile, command_doctor;

/* Options that commands share, parsed in one place. Members a command does not
 * allow stay NULL; an option it does not know is PL_USAGE. */
struct options {
    const char *run;      /* RUN.yaml, the positional argument */
    const char *memory, *plan, *output, *model, *batch, *steps, *threads;
    const char *devices, *images, *frames, *masks;
    const char **set;
    int n_set;
    bool json, explain, resume, calibrate, confirm, help;
    bool compare, frontier, rules;
};
enum option_flag {
    OPT_RUN = 1, OPT_MEMORY = 2, OPT_PLAN = 4, OPT_OUTPUT = 8, OPT_MODEL = 16, OPT_BATCH = 32, OPT_JSON = 64,
    OPT_EXPLAIN = 128, OPT_RESUME = 256, OPT_STEPS = 512, OPT_THREADS = 1024,
    OPT_CALIBRATE = 2048, /* and then no RUN.yaml is needed */
    OPT_CONFIRM = 4096,
    OPT_TABLES = 8192,    /* of plan: see plan_tables.h */
};
int options_parse(struct options *o, unsigned allowed, int argc, char **argv, struct error *e);
void options_free(struct options *o);
/* A whole number of an option, within bounds; without one *out stays. */
int options_count(const char *option, const char *text, int64_t least, int64_t most, int64_t *out, struct error *e);
/* Defaults, the file, --set, --memory, in this order. */
int options_config(const struct options *o, struct config *c, struct error *e);

/* The explanation of all keys follows a command's own usage. */
void print_help(const struct command *c);

#endif
