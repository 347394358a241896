/*
 * main.c: plimsoll COMMAND ...: dispatches to the command. Only this file prints an error and
 * exits. Before anything else it gives the process what it needs: signals that become errors, three
 * open descriptors, stacks that are large enough, and an orderly end when memory runs out.
 */
#include "plimsoll.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/processor.h"
#include "base/progress.h"
#include "cli/cli.h"
#include "dist/dist.h"
#include "io/temporary.h"
#include "planning/planned.h"

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
    for (size_t i = 0; i < COUNT(commands); i++) fprintf(out, "  %-10s %s\n", commands[i]->name, what[i]);
    fprintf(out, "\n`plimsoll COMMAND --help` describes a command and its options, and every key of RUN.yaml. "
                 "`plimsoll --version` lists the\n"
                 "libraries that this build uses, `plimsoll doctor` describes the machine.\n"
                 "Exit codes: 0 done, 1 failed, 2 bad usage or input, 3 does not fit in memory.\n");
}

static int refuse_command(const char *given)
{
    char word[512];
    const char *nearest = command_nearest(given, commands, COUNT(commands));
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
        environment_print_version(has_option(argc, argv, "--json"));
        return PL_OK;
    }
    struct error e = {0};
    const struct command *c = command_find(argv[1], commands, COUNT(commands));
    if (!c) return refuse_command(argv[1]);
    int rc = cpu_features_check(&e);
    if (!rc && dist_launched() > 1 && !c->ranks)
        rc = error_set(&e, PL_USAGE,
                       "a launcher started %lld processes of it, and only `plimsoll train`, bench and profile run on "
                       "several ranks",
                       (long long)dist_launched());
    if (!rc) rc = command_run(c, argc - 2, argv + 2, &e);
    if ((fflush(stdout) || ferror(stdout)) && !rc) rc = error_set(&e, PL_FAIL, "standard output cannot be written");
    progress_clear();
    if (rc && e.text[0]) fprintf(stderr, "plimsoll %s: %s\n", c->name, e.text);
    return rc;
}

/* --- the process ------------------------------------------------------------------------- */

enum { STACK_LEAST = 256 << 10 };  /* of a thread */
static const rlim_t MAIN_STACK_LEAST = 1 << 20, MAIN_STACK = 8 << 20;

/* Ignores signals: a reader that went away (SIGPIPE) and a limit on the size of files (SIGXFSZ) end
 * a process without a word. Ignored, they make the write fail, which is reported as any other
 * failed write. */
static void ignore_signals(void)
{
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
}

/* Opens the standard descriptors: a file that is opened while descriptor 1 or 2 is closed would get
 * that number, and messages would be written into it. Writing to a closed standard output still
 * fails: /dev/null is opened for reading. */
static void open_standard(void)
{
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", fd == 2 ? O_WRONLY : O_RDONLY) < 0) return;
}

/* Returns the bytes of a variable such as OMP_STACKSIZE: a number with B, K, M or G, without a unit
 * in KiB; 0: not set, or no size. */
static uint64_t stack_of(const char *name)
{
    const char *text = getenv(name);
    char *end;
    if (!text || !*text) return 0;
    const unsigned long long n = strtoull(text, &end, 10);
    while (*end == ' ') end++;
    const int shift = *end == 'b' || *end == 'B'   ? 0
                      : *end == 'm' || *end == 'M' ? 20
                      : *end == 'g' || *end == 'G' ? 30
                                                   : 10;
    return end == text ? 0 : (uint64_t)n << shift;
}

/* Raises the limit of the main thread's stack (ulimit -s), which is also the size of the other
 * threads' stacks unless a variable sets that. True if it was too small. */
static bool raise_limit(void)
{
    struct rlimit l;
    if (getrlimit(RLIMIT_STACK, &l) || l.rlim_cur >= MAIN_STACK_LEAST) return false;
    if (l.rlim_max <= l.rlim_cur)
        return l.rlim_cur < STACK_LEAST && !stack_of("OMP_STACKSIZE") && !setenv("OMP_STACKSIZE", "2M", 1);
    l.rlim_cur = l.rlim_max < MAIN_STACK ? l.rlim_max : MAIN_STACK;
    return !setrlimit(RLIMIT_STACK, &l);
}

/* Starts the program again with larger stacks where they are too small: OpenMP reads its variables,
 * and the kernel the limit, before main. If that fails it goes on, and opening the device reports
 * the stacks. */
static void enlarge_stacks(char **argv)
{
    static const char *const names[] = {"OMP_STACKSIZE", "GOMP_STACKSIZE", "KMP_STACKSIZE"};
    bool again = raise_limit();
    for (size_t i = 0; i < COUNT(names); i++) {
        const uint64_t bytes = stack_of(names[i]);
        if (bytes && bytes < STACK_LEAST) unsetenv(names[i]), again = true;
    }
    if (again) execv("/proc/self/exe", argv);
}

/* Ends the process. Other threads may be anywhere, so nothing is closed: files get their names only
 * when they are whole. */
static void end_without_memory(void)
{
    temporary_remove_all();
    _exit(PL_FAIL);
}

struct call {
    int argc, rc;
    char **argv;
};

static void *run_call(void *user)
{
    struct call *c = user;
    c->rc = run(c->argc, c->argv);
    return NULL;
}

/* Runs the body on a thread with a stack of its own where the main thread's is too small and its
 * limit cannot be raised (a hard limit). The stacks of threads that libraries start follow. */
static bool run_on_thread(struct call *c)
{
    struct rlimit l;
    pthread_attr_t a;
    pthread_t thread;
    if (getrlimit(RLIMIT_STACK, &l) || l.rlim_cur >= MAIN_STACK_LEAST || pthread_attr_init(&a)) return false;
    pthread_attr_setstacksize(&a, (size_t)MAIN_STACK);
    pthread_setattr_default_np(&a);
    const bool started = !pthread_create(&thread, &a, run_call, c);
    pthread_attr_destroy(&a);
    return started && !pthread_join(thread, NULL);
}

int main(int argc, char **argv)
{
    struct call c = {argc, PL_OK, argv};
    open_standard();
    enlarge_stacks(argv);
    ignore_signals();
    temporary_on_signals();
    files_raise_limit();
    mem_on_exhaustion(end_without_memory);
    if (!run_on_thread(&c)) run_call(&c);
    return c.rc;
}
