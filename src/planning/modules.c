/*
 * modules.c: see parameter_groups.h.
 */

#include "adapter/adapter.h"
#include "graph/ops.h"
#include "passes/passes.h"
#include "planning/parameter_groups.h"

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

static void collect(struct modules *m)
{
    const struct graph *g = &m->graph;
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
static void pattern_of(const char *name, char out[MODULE_NAME])
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

void modules_fold(const struct modules *m, struct modules *lines)
{
    char pattern[MODULE_NAME], other[MODULE_NAME];
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

void modules_scopes(const struct modules *m, bool folded, struct scope_lines *out)
{
    const struct graph *g = &m->graph;
    for (id s = 1; s < g->scopes.n; s++) {
        struct scope_line x = {.block = g->scopes.at[s].flags & SCOPE_BLOCK};
        uint32_t k = 0;
        if (folded) pattern_of(module_name(g, s), x.name);
        else snprintf(x.name, sizeof x.name, "%s", module_name(g, s));
        while (k < out->list.n && strcmp(out->list.at[k].name, x.name)) k++;
        if (x.name[0] && k == out->list.n) vec_push(&out->list, x);
    }
}

/* --- opening ---------------------------------------------------------------------------------- */

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

int modules_open(struct modules *m, const struct config *c, const char *name, struct error *e)
{
    const struct batch one = {.B = 1, .T = 2, .outputs = true};
    struct graph *g = &m->graph;
    *m = (struct modules){0};
    graph_init(g);
    if (!name) TRY(config_check(c, CONFIG_NEEDS_MODEL, e));
    TRY(name ? model_find(&m->model, name, e) : config_open_model(c, &m->model, e));
    m->model.family->build(&m->model, g, &one);
    if (g->error.code) return *e = g->error, e->code;
    TRY(add_adapter(c, &m->model, g, &m->memory, e));
    groups_freeze(c, g);
    TRY(groups_check(c, g, false, e));
    collect(m);
    return PL_OK;
}

void modules_close(struct modules *m)
{
    vec_free(&m->list);
    graph_free(&m->graph);
    bump_free(&m->memory);
    model_close(&m->model);
}
