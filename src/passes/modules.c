/*
 * modules.c: rules of modules by name.
 *
 * A pattern means a module with all that it holds: "vision_encoder" and "vision_encoder.layers.*"
 * both match the scope "vision_encoder.layers.3.attn", by its beginnings. So a rule
 * need not know how deep a model cuts its scopes.
 */
#include <string.h>

#include "passes/passes.h"

/* Does the pattern match the name, or the name up to one of its dots? */
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
