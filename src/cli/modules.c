/*
 * modules.c: `plimsoll modules`: the modules of a model (planning/parameter_groups.h).
 */
#include <inttypes.h>

#include "cli/cli.h"
#include "io/table.h"
#include "planning/parameter_groups.h"

static const struct report_column MODULES[] = {
    {"name", "module"}, {"type", "type"}, {"shape"}, {NULL, "shape"}, {NULL, "count", ""}, {"bias"},
    {"parameters", "weights", "count"}, {"trained", "trained"}};
static const struct report_column SCOPES[] = {{"name"}, {"block"}, {NULL, ""}};

static void list_modules(const struct modules *m, struct report_table *t)
{
    for (const struct module *x = m->list.at; x < m->list.at + m->list.n; x++) {
        const struct tensor *w = x->weight;
        char shape[128] = "";
        size_t n = 0;
        for (int d = 0; d < w->rank; d++)
            n += (size_t)snprintf(shape + n, sizeof shape - n, "%s%" PRId64, d ? " x " : "", w->dim[d]);
        if (x->bias && w->rank > 1) snprintf(shape + n, sizeof shape - n, " + bias");
        TABLE_ADD(t, CELL((const char *)x->name), CELL(x->type), cell_ints(w->dim, (size_t)w->rank),
                  CELL((const char *)shape), CELL(x->count), CELL(x->bias), CELL(x->weights), CELL(x->trained));
    }
}

static void list_scopes(const struct modules *m, bool folded, struct report_table *t)
{
    struct scope_lines s = {0};
    char words[MODULE_NAME + 16];
    modules_scopes(m, folded, &s);
    for (const struct scope_line *x = s.list.at; x < s.list.at + s.list.n; x++) {
        snprintf(words, sizeof words, "%s%s", x->name, x->block ? " (blocks)" : "");
        TABLE_ADD(t, CELL((const char *)x->name), CELL(x->block), CELL((const char *)words));
    }
    vec_free(&s.list);
}

/* Prints every module in JSON; in text, layers of equal shape on one line. */
static void show(const struct modules *m, bool json)
{
    struct report_table modules = REPORT_TABLE(MODULES), scopes = REPORT_TABLE(SCOPES);
    struct modules lines = {0};
    struct text out = {0};
    char count[32], other[32];
    uint64_t all = 0, trained = 0;
    for (const struct module *x = m->list.at; x < m->list.at + m->list.n; x++)
        all += x->weights, trained += x->trained ? x->weights : 0;
    if (!json) modules_fold(m, &lines);
    list_modules(json ? m : &lines, &modules);
    list_scopes(m, !json, &scopes);
    if (json)
        PRINT_FACTS(2, FACT("parameters", all), FACT("trained_parameters", trained), FACT_TABLE("modules", &modules),
                    FACT_TABLE("memory_modules", &scopes));
    else {
        table_print(&modules, 0, 0, &out);
        text_printf(&out, "\n%s weights, %s of them trained\n", count_print(all, count), count_print(trained, other));
        text_printf(&out, "\nNames for memory.modules, each with everything in it\n");
        table_print(&scopes, 2, 0, &out);
        fputs(out.at, stdout);
    }
    text_free(&out);
    table_free(&modules);
    table_free(&scopes);
    vec_free(&lines.list);
}

static int modules(struct options *o, struct error *e)
{
    struct modules m;
    if (!o->argc)
        return error_set(e, PL_USAGE, "expected a model folder, a preset or a RUN.yaml: plimsoll %s",
                         command_modules.usage);
    TRY(options_need_run(o, e));
    const char *model = !o->run || text_ends_with(o->run, ".yaml") || text_ends_with(o->run, ".yml") ? NULL : o->run;
    if (model) o->run = NULL;
    TRY(options_configure(o, e));
    int rc = modules_open(&m, &o->config, model, e);
    if (!rc) show(&m, o->json);
    modules_close(&m);
    return rc;
}

const struct command command_modules = {
    "modules",
    "modules MODEL | RUN.yaml [--config-from FILE]... [--set key=value]... [--json]",
    "Lists the modules of a model with their type, shape and number of weights, and whether they are\n"
    "trained: NAME.* is a pattern for model.freeze and train.groups. Layers of equal shape are one line,\n"
    "with * for their number, as a pattern matches them. Then the names for memory.modules: blocks, parts\n"
    "of blocks and of the model, each with everything in it. MODEL is a model folder or a preset; with\n"
    "RUN.yaml its adapter, model.freeze and train.groups are applied.\n"
    CONFIG_FROM_HELP
    "  --json           every module by itself",
    .shared = OPT_RUN | OPT_NO_RUN | OPT_JSON, .run = modules};
