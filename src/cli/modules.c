/*
 * modules.c: `plimsoll modules`: the modules of a model, by which patterns in a run file name them.
 *
 * A module is what parameters share before their last dot: x.q_proj of x.q_proj.weight and
 * x.q_proj.bias. Modules that differ only in the numbers of layers are one line, with * for the
 * number, as a pattern would match them.
 */
#include <inttypes.h>

#include "cli/cli.h"
#include "models/model.h"
#include "adapter/adapter.h"
#include "planning/parameter_groups.h"
#include "planning/planned.h"
#include "graph/ops.h"
#include "io/table.h"
#include "passes/passes.h"

enum { NAME_ROOM = 256 };

struct module {
    char name[NAME_ROOM];    /* of one module, or the pattern of several */
    const char *type;        /* of the op that reads the weight; -: none does, in one forward without options */
    const struct tensor *weight; /* its parameter of the highest rank */
    bool bias, trained;
    uint32_t count;
    uint64_t weights;
};
struct modules {
    VEC(struct module) list;
};

/* --- from the forward graph --------------------------------------------------------------- */

static const char *type_of_op(enum op op)
{
    switch (op) {
    case OP_LINEAR: case OP_LINEAR_ACT: case OP_GROUPED_LINEAR: return "linear";
    case OP_CONV: return "conv";
    case OP_CONV_DX: return "conv transpose";
    case OP_EMBEDDING: return "embedding";
    case OP_RMSNORM: case OP_LAYERNORM: case OP_BATCHNORM: return "norm";
    default: return "table"; /* added, gathered or attended to */
    }
}

/* Returns the type of the first op that reads each storage; NULL: none. */
static const char **types_by_storage(const struct graph *g)
{
    const char **types = mem_alloc(g->storages.n * sizeof *types);
    const struct order *o = &g->order[PROGRAM_STEP];
    for (uint32_t k = 0; k < o->nodes.n; k++) {
        const struct node *n = node_at(g, o->nodes.at[k]);
        if (!node_launches(n)) continue;
        for (int i = 0; i < n->nin; i++) {
            const id s = n->in[i] ? tensor_at(g, n->in[i])->storage : 0;
            if (s && !types[s]) types[s] = type_of_op(n->op);
        }
    }
    return types;
}

static struct module *module_named(struct modules *m, const char *name, size_t n)
{
    for (uint32_t i = m->list.n; i-- > 0;) /* parameters of a module are near each other */
        if (strlen(m->list.at[i].name) == n && !memcmp(m->list.at[i].name, name, n)) return &m->list.at[i];
    vec_push(&m->list, ((struct module){.count = 1}));
    struct module *x = &m->list.at[m->list.n - 1];
    snprintf(x->name, sizeof x->name, "%.*s", (int)n, name);
    return x;
}

static void collect(const struct graph *g, struct modules *m)
{
    const char **types = types_by_storage(g);
    for (uint32_t i = 0; i < g->params.n; i++) {
        const struct param *p = &g->params.at[i];
        const struct tensor *t = tensor_at(g, p->tensor);
        if (storage_of(g, p->tensor)->kind == KIND_CONST) continue;
        const char *name = graph_name(g, t->name), *dot = strrchr(name, '.');
        struct module *x = module_named(m, name, dot ? (size_t)(dot - name) : strlen(name));
        if (dot && !strcmp(dot, ".bias")) x->bias = true;
        if (!x->weight || t->rank > x->weight->rank)
            x->weight = t, x->type = types[t->storage] ? types[t->storage] : "-";
        x->trained |= !p->frozen;
        x->weights += (uint64_t)tensor_elements(t);
    }
    mem_free(types);
}

/* --- folding layers --------------------------------------------------------------------------- */

static bool is_number(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (s[i] < '0' || s[i] > '9') return false;
    return n > 0;
}

/* Writes the name with * for every component that is a number. */
static void pattern_of(const char *name, char out[NAME_ROOM])
{
    size_t n = 0;
    for (const char *at = name; *at;) {
        const size_t length = strcspn(at, ".");
        if (is_number(at, length)) out[n++] = '*';
        else memcpy(out + n, at, length), n += length;
        at += length;
        if (*at) out[n++] = *at++;
    }
    out[n] = 0;
}

static bool is_alike(const struct module *a, const struct module *b)
{
    return a->type == b->type && a->bias == b->bias && a->trained == b->trained && a->weight->rank == b->weight->rank &&
           !memcmp(a->weight->dim, b->weight->dim, (size_t)a->weight->rank * sizeof a->weight->dim[0]);
}

/* Makes a line of each pattern and kind of module. A pattern of one module keeps its name. */
static void fold(const struct modules *m, struct modules *lines)
{
    char pattern[NAME_ROOM], other[NAME_ROOM];
    for (uint32_t i = 0; i < m->list.n; i++) {
        const struct module *x = &m->list.at[i];
        struct module *line = NULL;
        pattern_of(x->name, pattern);
        for (uint32_t k = 0; k < lines->list.n && !line; k++) {
            pattern_of(lines->list.at[k].name, other);
            if (!strcmp(other, pattern) && is_alike(&lines->list.at[k], x)) line = &lines->list.at[k];
        }
        if (!line) {
            vec_push(&lines->list, *x);
            continue;
        }
        snprintf(line->name, sizeof line->name, "%s", pattern);
        line->count++;
        line->weights += x->weights;
    }
}

/* --- names for memory.modules ---------------------------------------------------------------- */

struct scope_line {
    char name[NAME_ROOM];
    bool block;
};
struct scope_lines {
    VEC(struct scope_line) list;
};

/* Lists the modules that ops are in, each once, in the order of the forward; folded: with * for
 * numbers. */
static void collect_scopes(const struct graph *g, bool folded, struct scope_lines *out)
{
    for (id s = 1; s < g->scopes.n; s++) {
        struct scope_line x = {.block = g->scopes.at[s].flags & SCOPE_BLOCK};
        uint32_t k = 0;
        if (folded) pattern_of(module_name(g, s), x.name);
        else snprintf(x.name, sizeof x.name, "%s", module_name(g, s));
        while (k < out->list.n && strcmp(out->list.at[k].name, x.name)) k++;
        if (x.name[0] && k == out->list.n) vec_push(&out->list, x);
    }
}

/* --- printing --------------------------------------------------------------------------------- */

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

static void list_scopes(const struct graph *g, bool folded, struct report_table *t)
{
    struct scope_lines s = {0};
    char words[NAME_ROOM + 16];
    collect_scopes(g, folded, &s);
    for (const struct scope_line *x = s.list.at; x < s.list.at + s.list.n; x++) {
        snprintf(words, sizeof words, "%s%s", x->name, x->block ? " (blocks)" : "");
        TABLE_ADD(t, CELL((const char *)x->name), CELL(x->block), CELL((const char *)words));
    }
    vec_free(&s.list);
}

/* Prints every module in JSON; in text, layers of equal shape on one line. */
static void show(const struct modules *m, const struct graph *g, bool json)
{
    struct report_table modules = REPORT_TABLE(MODULES), scopes = REPORT_TABLE(SCOPES);
    struct modules lines = {0};
    struct text out = {0};
    char count[32], other[32];
    uint64_t all = 0, trained = 0;
    for (const struct module *x = m->list.at; x < m->list.at + m->list.n; x++)
        all += x->weights, trained += x->trained ? x->weights : 0;
    if (!json) fold(m, &lines);
    list_modules(json ? m : &lines, &modules);
    list_scopes(g, !json, &scopes);
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

/* --- the command ------------------------------------------------------------------------------ */

static int open_model(const struct config *c, const char *name, struct model *m, struct error *e)
{
    if (name) return model_find(m, name, e);
    if (config_check(c, CONFIG_NEEDS_MODEL, e)) return e->code;
    return config_open_model(c, m, e);
}

/* Adds the adapter of the configuration: all that it does not train is frozen. */
static int add_adapter(const struct config *c, const struct model *m, struct graph *g, struct bump *memory,
                       struct error *e)
{
    struct adapter a;
    if (!adapter_given(c)) return PL_OK;
    if (adapter_open(c, m->family, memory, &a, e) || lora_check(g, &a, e)) return e->code;
    pass_lora(g, &a, 1);
    return PL_OK;
}

static int show_model(const struct config *c, const char *name, bool json, struct error *e)
{
    struct model m = {0};
    struct graph g;
    struct modules found = {0};
    struct bump memory = {0};
    if (open_model(c, name, &m, e)) {
        model_close(&m);
        return e->code;
    }
    const struct batch one = {.B = 1, .T = 2, .outputs = true};
    graph_init(&g);
    m.family->build(&m, &g, &one);
    if (g.error.code) *e = g.error;
    else add_adapter(c, &m, &g, &memory, e);
    if (!e->code) groups_freeze(c, &g);
    if (!e->code && !groups_check(c, &g, false, e)) {
        collect(&g, &found);
        show(&found, &g, json);
    }
    vec_free(&found.list);
    graph_free(&g);
    bump_free(&memory);
    model_close(&m);
    return e->code;
}

static int modules(struct options *o, struct error *e)
{
    if (!o->argc)
        return error_set(e, PL_USAGE, "expected a model folder, a preset or a RUN.yaml: plimsoll %s",
                         command_modules.usage);
    TRY(options_need_run(o, e));
    const char *model = !o->run || text_ends_with(o->run, ".yaml") || text_ends_with(o->run, ".yml") ? NULL : o->run;
    if (model) o->run = NULL;
    TRY(options_configure(o, e));
    return show_model(&o->config, model, o->json, e);
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
