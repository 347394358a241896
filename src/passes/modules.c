/*
 * modules.c: matching of module rules.
 *
 * A pattern matches a module with everything in it: "vision_encoder" and "vision_encoder.layers.*"
 * both match the scope "vision_encoder.layers.3.attn", by its prefixes. So a rule does not depend
 * on how deep a model nests its scopes.
 */
#include <string.h>

#include "passes/passes.h"

/* True if the pattern matches the name, or the name up to one of its dots. */
bool module_pattern(const char *pattern, const char *scope)
{
    char part[256];
    size_t n = strlen(scope);
    if (pattern_match(pattern, scope)) return true;
    if (n >= sizeof part) return false;
    memcpy(part, scope, n + 1);
    for (char *dot; (dot = strrchr(part, '.'));) {
        *dot = '\0';
        if (pattern_match(pattern, part)) return true;
    }
    return false;
}

bool module_matches(const struct module_rule *r, const char *scope)
{
    for (uint32_t i = 0; i < r->n_match; i++)
        if (module_pattern(r->match[i], scope)) return true;
    return false;
}
