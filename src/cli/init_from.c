/*
 * init_from.c: `plimsoll init --config-from FILE`: prints a RUN.yaml with what the configuration of another program says.
 * Where each value comes from, and what has no effect, are comments at its beginning.
 */
#include <stdio.h>
#include <string.h>

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

int init_from(const struct names *from, const struct names *set, struct error *e)
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
