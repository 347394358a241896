/*
 * modules.c: settings by module: which scopes a pattern means.
 *
 * A pattern matches a module with everything in it: "vision_encoder" and "vision_encoder.layers.*"
 * both match the scope "vision_encoder.layers.3.attn", by its prefixes. So a rule does not depend
 * on how deep a model nests its scopes.
 */
#include "passes/passes.h"

/* Reports whether the pattern matches the name, or the name up to one of its dots. */
bool module_pattern(const char *pattern, const char *module)
{
    char part[256];
    size_t n = strlen(module);
    if (pattern_match(pattern, module)) return true;
    if (n >= sizeof part) return false;
    memcpy(part, module, n + 1);
    for (char *dot; (dot = strrchr(part, '.'));) {
        *dot = '\0';
        if (pattern_match(pattern, part)) return true;
    }
    return false;
}

const char *module_name(const struct graph *g, id scope)
{
    const char *name = graph_name(g, g->scopes.at[scope].name);
    id pass = scope;
    while (pass && !(g->scopes.at[pass].flags & SCOPE_PASS)) pass = g->scopes.at[pass].parent;
    if (!pass) return name;
    name += strlen(graph_name(g, g->scopes.at[pass].name));
    return *name == '.' ? name + 1 : name;
}

bool module_scope(const char *pattern, const struct graph *g, id scope)
{
    return module_pattern(pattern, module_name(g, scope)) ||
           module_pattern(pattern, graph_name(g, g->scopes.at[scope].name));
}

enum precision scope_precision(const struct settings *s, const struct graph *g, id scope)
{
    for (uint32_t i = s->n_modules; i-- > 0;)
        if (s->modules[i].has_precision && module_matches(&s->modules[i], g, scope)) return s->modules[i].precision;
    return s->precision;
}

bool module_matches(const struct module_rule *r, const struct graph *g, id scope)
{
    for (uint32_t i = 0; i < r->n_match; i++)
        if (module_scope(r->match[i], g, scope)) return true;
    return false;
}
