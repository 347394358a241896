/*
 * main.c: plimsoll COMMAND ...: dispatches to the command. Only this file prints an error and
 * exits.
 */
#include "plimsoll.h"

#include <stdio.h>
#include <string.h>

#include "base/processor.h"
#include "base/progress.h"
#include "cli/cli.h"
#include "cli/environment.h"
#include "dist/dist.h"

#define COMMAND(name, what) &command_##name,
static const struct command *const commands[] = {
#include "cli/commands.def"
};
#undef COMMAND

static void usage(FILE *out)
{
#define COMMAND(name, what) what,
    static const char *const what[] = {
#include "cli/commands.def"
    };
#undef COMMAND
    fprintf(out, "Plimsoll %s: trains models in the memory you have, on a CPU or a GPU.\n\n"
                 "  plimsoll init  --model MODEL --data DATA > RUN.yaml\n"
                 "  plimsoll plan  RUN.yaml --memory 8GiB\n"
                 "  plimsoll train RUN.yaml --memory 8GiB\n\n", PL_VERSION);
    for (size_t i = 0; i < COUNT(commands); i++) fprintf(out, "  %-9s %s\n", commands[i]->name, what[i]);
    fprintf(out, "\n`plimsoll COMMAND --help` describes a command and its options, and every key of RUN.yaml. "
                 "`plimsoll --version` lists the\n"
                 "libraries that this build uses, `plimsoll doctor` describes the machine.\n"
                 "Exit codes: 0 done, 1 failed, 2 bad usage or input, 3 does not fit in memory.\n");
}

static const struct command *find_command(const char *name)
{
    for (size_t i = 0; i < COUNT(commands); i++)
        if (!strcmp(commands[i]->name, name)) return commands[i];
    return NULL;
}

static int refuse_command(const char *given)
{
    char word[512];
    const char *nearest = nearest_command(given, commands, COUNT(commands));
    text_escape(word, sizeof word, given);
    fprintf(stderr, "plimsoll: ");
    if (text_ends_with(word, ".yaml") || text_ends_with(word, ".yml"))
        fprintf(stderr, "expected a command before %s, such as `plimsoll plan %s` or `plimsoll train %s`", word, word,
                word);
    else if (word[0] == '-')
        fprintf(stderr, "expected a command before the option %s", word);
    else
        fprintf(stderr, "unknown command %s", word);
    if (nearest) fprintf(stderr, "; did you mean %s?", nearest);
    else {
        fprintf(stderr, "; the commands are ");
        for (size_t i = 0; i < COUNT(commands); i++) fprintf(stderr, "%s%s", i ? ", " : "", commands[i]->name);
        fprintf(stderr, ".");
    }
    fprintf(stderr, " `plimsoll --help` lists the commands.\n");
    return PL_USAGE;
}

static bool has_option(int argc, char **argv, const char *option)
{
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], option)) return true;
    return false;
}

static int run(int argc, char **argv)
{
    if (argc < 2) {
        usage(stderr);
        return PL_USAGE;
    }
    const bool help = !strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help");
    if (help && argc == 2) {
        usage(stdout);
        return PL_OK;
    }
    if (help) { /* `help train` is `train --help` */
        memmove(argv + 1, argv + 2, (size_t)(argc - 2) * sizeof *argv);
        argv[argc - 1] = "--help";
    }
    if (has_option(argc, argv, "--version")) { /* also after a command's name */
        print_version(has_option(argc, argv, "--json"));
        return PL_OK;
    }
    struct error e = {0};
    const struct command *c = find_command(argv[1]);
    if (!c) return refuse_command(argv[1]);
    int rc = cpu_features_check(&e);
    if (!rc && dist_launched() > 1 && !c->ranks)
        rc = error_set(&e, PL_USAGE,
                       "a launcher started %lld processes of it, and only `plimsoll train`, bench and profile run on "
                       "several ranks",
                       (long long)dist_launched());
    if (!rc) rc = c->run(argc - 2, argv + 2, &e);
    if ((fflush(stdout) || ferror(stdout)) && !rc) rc = error_set(&e, PL_FAIL, "standard output cannot be written");
    progress_clear();
    if (rc && e.text[0]) fprintf(stderr, "plimsoll %s: %s\n", c->name, e.text);
    return rc;
}

int main(int argc, char **argv) { return start_process(run, argc, argv); }
