/*
 * init_from.c: `plimsoll init --config-from FILE`: prints a RUN.yaml with what the configuration of
 * another program says. Where each value comes from, and what has no effect, are comments at its
 * beginning.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/data.h"
#include "cli/init.h"
#include "import/import.h"

static void put_comments(const struct text *list, struct text *out)
{
    for (const char *line = list->at; line && *line; line += strcspn(line, "\n") + 1)
        text_printf(out, "# %.*s\n", (int)strcspn(line, "\n"), line);
    text_printf(out, "\n");
}

struct sources {
    struct names from, set;
    uint64_t ranks; /* 0: not given */
};

static int read_all(const struct sources *s, struct import *f, struct config *c, struct error *e)
{
    char ranks[32];
    f->asks = true;
    f->ranks = (int64_t)s->ranks;
    for (uint32_t i = 0; i < s->set.n && !s->ranks; i++)
        if (!strncmp(s->set.at[i], "parallel.ranks=", 15)) f->ranks = strtol(s->set.at[i] + 15, NULL, 10);
    int rc = from_read(f, (const char *const *)s->from.at, (int)s->from.n, c, e);
    for (uint32_t i = 0; i < s->set.n && !rc; i++) rc = config_set(c, s->set.at[i], e);
    snprintf(ranks, sizeof ranks, "%" PRIu64, s->ranks);
    if (!rc && s->ranks) rc = config_assign(c, "parallel.ranks", ranks, e);
    if (!rc && import_settle(f, c, e)) rc = error_prepend(e, "--config-from");
    return rc ? rc : config_check(c, 0, e);
}

static int print_run(const struct sources *s, struct error *e)
{
    struct import f = {0};
    struct config c;
    struct text list = {0}, out = {0};
    config_init(&c);
    int rc = read_all(s, &f, &c, e);
    if (!rc) {
        import_print(&f, &c, &list);
        put_comments(&list, &out);
        config_write_given(&c, &out);
        fputs(out.at, stdout);
    }
    text_free(&list);
    text_free(&out);
    import_free(&f);
    config_free(&c);
    return rc;
}

bool init_is_from(int argc, char **argv)
{
    for (int i = 0; i < argc; i++)
        if (!strcmp(argv[i], "--config-from") || !strncmp(argv[i], "--config-from=", 14)) return true;
    return false;
}

int init_from(int argc, char **argv, struct error *e)
{
    struct sources s = {0};
    bool help;
    const struct data_option table[] = {
        {"--config-from", DATA_LIST, &s.from}, {"--set", DATA_LIST, &s.set}, {"--ranks", DATA_POSITIVE, &s.ranks}};
    int rc = data_options(&command_init, table, COUNT(table), argc, argv, NULL, &help, e);
    if (rc) error_prepend(e, "with --config-from");
    else if (!help) rc = print_run(&s, e);
    names_free(&s.from);
    names_free(&s.set);
    return rc;
}
