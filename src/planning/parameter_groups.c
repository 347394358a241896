/*
 * parameter_groups.c: see parameter_groups.h. A pattern that matches nothing is an error, except
 * for weight decay: a typo in a name must not silently train a parameter that should be frozen. A
 * part (parts.def) that the model does not have is a note.
 */
#include "planning/parameter_groups.h"

#include <math.h>

#include "graph/stored.h"

/* --- parts of a model ------------------------------------------------------------------- */

static const struct part_row {
    const char *role, *parameters, *modules; /* patterns, separated by blanks */
} parts[] = {
#define PART(role, parameters, modules) {#role, parameters, modules},
#include "config/parts.def"
#undef PART
};

/* Returns the part that a word names; NULL: none. */
static const struct part_row *find_part(const char *word)
{
    for (size_t i = 0; i < COUNT(parts); i++)
        if (!strcmp(parts[i].role, word)) return &parts[i];
    return NULL;
}

/* Notes that the model does not have a part, once in a process. */
static void note_missing(const char *where, const struct part_row *part)
{
    static bool noted[COUNT(parts)];
    if (!noted[part - parts]) log_note("%s: this model has no %s, so nothing changes", where, part->role);
    noted[part - parts] = true;
}

/* Returns a list with the patterns of the parts that it names, allocated in `b`. */
static struct config_list expand(const struct config_list *list, bool modules, struct bump *b)
{
    VEC(char *) all = {0};
    for (uint32_t i = 0; i < list->n; i++) {
        const struct part_row *part = find_part(list->at[i]);
        const char *s = !part ? NULL : modules ? part->modules : part->parameters;
        if (!s) vec_push(&all, list->at[i]);
        for (; s && *s; s += strcspn(s, " "), s += *s == ' ')
            vec_push(&all, bump_format(b, "%.*s", (int)strcspn(s, " "), s));
    }
    struct config_list out = {bump_alloc(b, all.n * sizeof *all.at), all.n};
    if (all.n) memcpy(out.at, all.at, all.n * sizeof *all.at);
    vec_free(&all);
    return out;
}

static bool matches_any(const struct config_list *patterns, const char *name)
{
    for (uint32_t i = 0; i < patterns->n; i++)
        if (pattern_match(patterns->at[i], name)) return true;
    return false;
}

/* --- what is frozen ---------------------------------------------------------------------- */

/* Returns the parameter's name, or NULL for a constant table among the parameters, which is never
 * trained. */
static const char *param_name(const struct graph *g, const struct param *p)
{
    if (storage_of(g, p->tensor)->kind == KIND_CONST) return NULL;
    return graph_name(g, tensor_at(g, p->tensor)->name);
}

static void set_frozen(struct graph *g, const struct config_list *patterns, bool *frozen, bool to)
{
    for (uint32_t i = 0; i < g->params.n; i++) {
        const char *name = param_name(g, &g->params.at[i]);
        if (name && matches_any(patterns, name)) frozen[i] = to;
    }
}

void groups_freeze(const struct config *c, struct graph *g)
{
    struct bump b = {0};
    bool *frozen = bump_alloc(&b, g->params.n * sizeof *frozen);
    struct config_list patterns = expand(&c->model_freeze, false, &b);
    set_frozen(g, &patterns, frozen, true);
    for (uint32_t i = 0; i < c->train_groups.n; i++) {
        const struct config_group *group = &c->train_groups.at[i];
        patterns = expand(&group->match, false, &b);
        if (group->given[GROUP_frozen]) set_frozen(g, &patterns, frozen, group->frozen);
    }
    for (uint32_t i = 0; i < g->params.n; i++) g->params.at[i].frozen |= frozen[i];
    bump_free(&b);
}

/* --- checking ------------------------------------------------------------------------ */

/* Returns the parameter that is nearest to a pattern; NULL: the pattern matches a parameter. */
static const char *nearest_unmatched(const char *pattern, const struct graph *g)
{
    int best = INT32_MAX;
    const char *nearest = "";
    for (uint32_t k = 0; k < g->params.n && best; k++) {
        const char *name = param_name(g, &g->params.at[k]);
        int distance = name ? pattern_distance(pattern, name) : INT32_MAX;
        if (distance < best) best = distance, nearest = name;
    }
    return best ? nearest : NULL;
}

/* Reports whether a name of the graph, a parameter's or a module's, matches a part. */
static bool has_part(const struct part_row *part, bool modules, const struct graph *g)
{
    struct bump b = {0};
    const struct config_list word = {(char *[]){(char *)part->role}, 1}, patterns = expand(&word, modules, &b);
    const struct module_rule rule = {.match = (const char *const *)patterns.at, .n_match = patterns.n};
    bool found = false;
    for (uint32_t i = 0; i < patterns.n && !modules && !found; i++) found = !nearest_unmatched(patterns.at[i], g);
    for (id s = 1; s < g->scopes.n && modules && !found; s++)
        found = module_matches(&rule, g, s);
    bump_free(&b);
    return found;
}

/* Returns the error "model.freeze: the pattern ..." for the first pattern of a list that matches
 * nothing. */
static int check_patterns(const struct config_list *patterns, const char *where, const struct graph *g, struct error *e)
{
    for (uint32_t i = 0; i < patterns->n; i++) {
        const struct part_row *part = find_part(patterns->at[i]);
        if (part && !has_part(part, false, g)) note_missing(where, part);
        const char *nearest = part ? NULL : nearest_unmatched(patterns->at[i], g);
        if (nearest)
            return error_set(e, PL_USAGE, "%s: the pattern \"%.200s\" matches no parameter; the nearest is %s (* "
                             "matches any text, ? one character)", where, patterns->at[i], nearest);
    }
    return PL_OK;
}

/* Notes, once in a process, a pattern of train.no_decay that matches nothing. It is no error: the
 * usual ["*norm.weight", "*.bias"] is right for a model without biases too. */
static void note_no_decay(const struct config *c, const struct graph *g)
{
    static bool noted;
    for (uint32_t i = 0; i < c->train_no_decay.n && !noted; i++) {
        const char *nearest = nearest_unmatched(c->train_no_decay.at[i], g);
        if (nearest)
            log_note("train.no_decay: the pattern \"%.200s\" matches no parameter of this model; the nearest is %s",
                     c->train_no_decay.at[i], nearest);
    }
    noted |= c->train_no_decay.n;
}

static int check_trained(const struct config *c, const struct graph *g, struct error *e)
{
    for (uint32_t i = 0; i < g->params.n; i++)
        if (param_name(g, &g->params.at[i]) && !g->params.at[i].frozen) return PL_OK;
    bool groups = !c->model_freeze.n;
    error_set(e, PL_USAGE, "%s: every parameter is frozen, so there is nothing to train",
              groups ? "train.groups" : "model.freeze");
    return config_at_key(c, groups ? KEY_train_groups : KEY_model_freeze, e);
}

/* Checks that each pattern matches a module, unless it names a part; *missing: it names a part that
 * the model does not have. */
static int check_module_patterns(const struct config_module *m, uint32_t number, const struct graph *g, bool *missing,
                                 struct error *e)
{
    for (uint32_t i = 0; i < m->match.n; i++) {
        const struct part_row *part = find_part(m->match.at[i]);
        int best = part ? 0 : INT32_MAX;
        if (part && !has_part(part, true, g)) note_missing("memory.modules", part), *missing = true;
        const char *nearest = "";
        for (id s = 1; s < g->scopes.n && best; s++) {
            const bool found = module_scope(m->match.at[i], g, s);
            const char *name = *module_name(g, s) ? module_name(g, s) : graph_name(g, g->scopes.at[s].name);
            int distance = found ? 0 : pattern_distance(m->match.at[i], name);
            if (distance < best) best = distance, nearest = name;
        }
        if (best)
            return error_set(e, PL_USAGE, "memory.modules[%u].match: the pattern \"%.200s\" matches no module; the "
                             "nearest is %s (`plimsoll modules` lists the names)", number, m->match.at[i], nearest);
    }
    return PL_OK;
}

/* Returns what the rule recomputes; nothing if it has no such setting. */
static struct recompute module_recompute(const struct config_module *m)
{
    struct recompute r = {0};
    CHECK(!m->given[MODULE_recompute] || recompute_read(m->recompute.value, &r), "%s", m->recompute.value);
    return r;
}

/* Checks the rules of memory.modules: one that recomputes blocks must match a block. */
static int check_modules(const struct config *c, const struct graph *g, struct error *e)
{
    for (uint32_t i = 0; i < c->memory_modules.n; i++) {
        const struct config_module *m = &c->memory_modules.at[i];
        struct bump b = {0};
        const struct config_list match = expand(&m->match, true, &b);
        const struct module_rule rule = {.match = (const char *const *)match.at, .n_match = match.n};
        const struct recompute r = module_recompute(m);
        bool missing = false, blocks = r.kind != RECOMPUTE_NONE && r.kind != RECOMPUTE_SELECTIVE;
        int rc = check_module_patterns(m, i, g, &missing, e);
        for (id s = 1; s < g->scopes.n && blocks; s++)
            if (g->scopes.at[s].flags & SCOPE_BLOCK && module_matches(&rule, g, s)) blocks = false;
        bump_free(&b);
        if (rc) return rc;
        if (missing) continue;
        if (blocks)
            return error_set(e, PL_USAGE, "memory.modules[%u]: recompute is %s, but match names no block; name blocks "
                             "(model.layers.3) or a module that contains blocks", i, m->recompute.value);
    }
    return PL_OK;
}

int groups_check(const struct config *c, const struct graph *g, bool train, struct error *e)
{
    if (check_patterns(&c->model_freeze, "model.freeze", g, e)) return config_at_key(c, KEY_model_freeze, e);
    note_no_decay(c, g);
    for (uint32_t i = 0; i < c->train_groups.n; i++) {
        char where[40];
        snprintf(where, sizeof where, "train.groups[%u].match", i);
        if (check_patterns(&c->train_groups.at[i].match, where, g, e)) return config_at_key(c, KEY_train_groups, e);
    }
    if (train && check_modules(c, g, e)) return config_at_key(c, KEY_memory_modules, e);
    return train ? check_trained(c, g, e) : PL_OK;
}

/* --- the update ------------------------------------------------------------------------- */

static struct update_rule rule_of(const struct config *c, const struct config_group *g, struct bump *b)
{
    bool absolute = g->given[GROUP_learning_rate];
    const struct config_list match = expand(&g->match, false, b);
    return (struct update_rule){
        .match = (const char *const *)match.at, .n_match = match.n, .has_rate = absolute || g->given[GROUP_lr_scale],
        .absolute = absolute, .lr_scale = absolute ? g->learning_rate / c->train_learning_rate : g->lr_scale,
        .has_decay = g->given[GROUP_weight_decay], .weight_decay = g->weight_decay,
    };
}

static void module_settings(const struct config *c, struct bump *b, struct settings *s)
{
    static const enum precision precisions[] = {
        [MODULE_F32] = PRECISION_F32, [MODULE_BF16] = PRECISION_BF16, [MODULE_F16] = PRECISION_F16,
        [MODULE_FP8] = PRECISION_FP8, [MODULE_FP8_ALL] = PRECISION_FP8_ALL};
    struct module_rule *rules = bump_alloc(b, c->memory_modules.n * sizeof *rules);
    for (uint32_t i = 0; i < c->memory_modules.n; i++) {
        const struct config_module *m = &c->memory_modules.at[i];
        const struct config_list match = expand(&m->match, true, b);
        rules[i] = (struct module_rule){.match = (const char *const *)match.at, .n_match = match.n,
                                        .has_recompute = m->given[MODULE_recompute], .recompute = module_recompute(m),
                                        .has_precision = m->given[MODULE_precision],
                                        .precision = precisions[m->precision]};
    }
    s->modules = rules;
    s->n_modules = c->memory_modules.n;
}

static void quantize_settings(const struct config *c, struct bump *b, struct settings *s)
{
    static const uint8_t forms[] = {[FORM_NONE] = STORED_PLAIN, [FORM_NF4] = STORED_NF4, [FORM_FP8] = STORED_E4M3};
    const struct config_forms *list = &c->memory_quantize.rules;
    struct quantize_rule *rules = bump_alloc(b, list->n * sizeof *rules);
    for (uint32_t i = 0; i < list->n; i++)
        rules[i] = (struct quantize_rule){(const char *const *)list->at[i].match.at, list->at[i].match.n,
                                          forms[list->at[i].form]};
    s->quantize_rules = rules;
    s->n_quantize_rules = list->n;
}

void groups_settings(const struct config *c, struct bump *b, struct settings *s)
{
    struct update_rule *rules = bump_alloc(b, (c->train_groups.n + 1) * sizeof *rules);
    rules[0] = (struct update_rule){.match = (const char *const *)c->train_no_decay.at, .n_match = c->train_no_decay.n,
                                    .has_decay = true};
    for (uint32_t i = 0; i < c->train_groups.n; i++) rules[i + 1] = rule_of(c, &c->train_groups.at[i], b);
    s->rules = rules;
    s->n_rules = c->train_groups.n + 1;
    s->beta1 = c->train_beta1;
    s->beta2 = c->train_beta2;
    s->eps = c->train_eps;
    s->weight_decay = c->train_weight_decay;
    s->momentum = c->train_momentum;
    s->layer_decay = c->train_layer_decay;
    s->bf16_ends = c->memory_bf16_ends;
    module_settings(c, b, s);
    quantize_settings(c, b, s);
}

double groups_rate(const struct config *c)
{
    double ratio = (double)c->train_effective_batch / (double)c->train_lr_batch;
    switch ((enum config_scaling)c->train_lr_scaling) {
    case SCALING_LINEAR: return c->train_learning_rate * ratio;
    case SCALING_SQRT: return c->train_learning_rate * sqrt(ratio);
    default: return c->train_learning_rate;
    }
}
