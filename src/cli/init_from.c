/*
 * init_from.c: `plimsoll init --config-from FILE`: prints a RUN.yaml with what the configuration of another program says.
 * Where each value comes from, and what has no effect, are comments at its beginning.
 */
#include <stdio.h>
#include <string.h>

#include "cli/data.h"
#include "cli/init.h"
#include "config/foreign.h"

static void put_comments(const struct text *list, struct text *out)
{
    for (const char *line = list->at; line && *line; line += strcspn(line, "\n") + 1) text_printf(out, "# %.*s\n", (int)strcspn(line, "\n"), line);
    text_printf(out, "\n");
}

static int read_all(const struct names *from, const struct names *set, struct foreign *f, struct config *c, struct error *e)
{
    int rc = PL_OK;
    for (uint32_t i = 0; i < from->n && !rc; i++) rc = foreign_read(f, from->at[i], e);
    if (!rc) rc = foreign_apply(f, c, e);
    if (rc) return error_prepend(e, "--config-from");
    for (uint32_t i = 0; i < set->n && !rc; i++) rc = config_set(c, set->at[i], e);
    foreign_settle(f, c);
    return rc ? rc : config_check(c, 0, e);
}

static int print_run(const struct names *from, const struct names *set, struct error *e)
{
    struct foreign f = {0};
    struct config c;
    struct text list = {0}, out = {0};
    config_init(&c);
    int rc = read_all(from, set, &f, &c, e);
    if (!rc) {
        foreign_print(&f, &c, &list);
        put_comments(&list, &out);
        config_write_given(&c, &out);
        fputs(out.at, stdout);
    }
    text_free(&list);
    text_free(&out);
    foreign_free(&f);
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
    struct names from = {0}, set = {0};
    bool help;
    const struct data_option table[] = {{"--config-from", DATA_LIST, &from}, {"--set", DATA_LIST, &set}};
    int rc = data_options(&command_init, table, COUNT(table), argc, argv, NULL, &help, e);
    if (rc) error_prepend(e, "with --config-from");
    else if (!help) rc = print_run(&from, &set, e);
    names_free(&from);
    names_free(&set);
    return rc;
}
