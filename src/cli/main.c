/*
 * main.c: plimsoll COMMAND ...: dispatches to the command. Only this file prints an error and
 * exits.
 */
#include <stdio.h>
#include <string.h>

#include "base/processor.h"
#include "base/progress.h"
#include "cli/cli.h"
#include "run/device.h"

static const struct command *const commands[] = {&command_plan, &command_train, &command_step, &command_report, &command_bench,
                                                  &command_data, &command_convert, &command_predict, &command_eval, &command_init, &command_profile, &command_doctor};

static void usage(FILE *out)
{
    fprintf(out, "Plimsoll %s: trains models in the memory you have.\n\n", PL_VERSION);
    for (size_t i = 0; i < COUNT(commands); i++) fprintf(out, "  plimsoll %s\n", commands[i]->usage);
    fprintf(out, "\n`plimsoll COMMAND --help` describes a command and every key of RUN.yaml.\n"
                 "Exit codes: 0 done, 1 failed, 2 bad usage or input, 3 does not fit in memory.\n");
}

static const struct command *find_command(const char *name)
{
    for (size_t i = 0; i < COUNT(commands); i++)
        if (!strcmp(commands[i]->name, name)) return commands[i];
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        usage(stderr);
        return PL_USAGE;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
        usage(stdout);
        return PL_OK;
    }
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--version")) { /* also after a command's name */
            struct cpu_identity cpu;
            cpu_identity(&cpu);
            printf("plimsoll %s\n%s: %s\n", PL_VERSION, cpu.name, cpu.isa);
            return PL_OK;
        }
    struct error e = {0};
    const struct command *c = find_command(argv[1]);
    if (!c) {
        fprintf(stderr, "plimsoll: unknown command %s\n\n", argv[1]);
        usage(stderr);
        return PL_USAGE;
    }
    int rc = cpu_features_check(&e);
    if (!rc) rc = c->run(argc - 2, argv + 2, &e);
    if (fflush(stdout) && !rc) rc = error_set(&e, PL_FAIL, "standard output cannot be written");
    progress_clear();
    if (rc) fprintf(stderr, "plimsoll %s: %s\n", c->name, e.text);
    return rc;
}
