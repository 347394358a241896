/*
 * vision_text.c: see vision_text.h.
 */
#include "text/template/vision_text.h"

static void repeat(const char *token, uint64_t n, struct text *out)
{
    const size_t bytes = strlen(token);
    for (uint64_t i = 0; i < n; i++) text_append(out, token, bytes);
}

void vision_text_put(const struct vision_text *v, struct text *out)
{
    if (!v->seconds) {
        repeat(v->token, vision_text_features(v), out);
        return;
    }
    for (uint32_t i = 0; i < v->grids; i++) {
        text_printf(out, "<%.1f seconds>%s", v->seconds[i], v->start);
        repeat(v->token, v->tokens, out);
        text_printf(out, "%s", v->end);
    }
}

uint64_t vision_text_features(const struct vision_text *v) { return v->grids * v->tokens; }
