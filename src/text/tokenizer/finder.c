/*
 * finder.c: matches in a text (see finder.h).
 */
#include <string.h>

#include "text/tokenizer/finder.h"
#include "text/unicode.h"

int finder_expression(struct finder *f, const char *expression, const char *what, struct error *e)
{
    if (pattern_compile(&f->pattern, expression, e)) return error_prepend(e, "%s", what);
    return PL_OK;
}

int finder_read(struct finder *f, const struct value *v, const char *name, struct bump *memory, struct error *e)
{
    const char *text;
    if (value_as_map(v, name, e)) return e->code;
    const struct value *string = value_get(v, "String"), *regex = value_get(v, "Regex");
    if (!string == !regex) return error_set(e, PL_USAGE, "%s: expected {\"String\": ...} or {\"Regex\": ...}", name);
    if (value_as_string(string ? string : regex, name, &text, e)) return e->code;
    if (regex || !*text) return finder_expression(f, text, name, e);
    f->literal = bump_string(memory, text);
    f->n = (uint32_t)strlen(text);
    return PL_OK;
}

void finder_close(struct finder *f)
{
    pattern_free(f->pattern);
    f->pattern = NULL;
}

int finder_next(const struct finder *f, struct pattern_search *s, const char *text, size_t n, struct finding *at,
                struct byte_range *match)
{
    if (f->literal) {
        const char *found = at->from < n ? memmem(text + at->from, n - at->from, f->literal, f->n) : NULL;
        if (!found) return 0;
        *match = (struct byte_range){(uint32_t)(found - text), (uint32_t)(found - text) + f->n};
        at->from = match->end;
        return 1;
    }
    while (at->from <= n) {
        size_t begin, end;
        int rc = pattern_find(f->pattern, s, text, n, at->from, &begin, &end);
        if (rc != 1) return rc;
        if (begin == end && at->last_end == end + 1) {
            at->from += at->from < n ? (size_t)utf8_length(text[at->from]) : 1;
            continue;
        }
        at->from = end;
        at->last_end = end + 1;
        *match = (struct byte_range){(uint32_t)begin, (uint32_t)end};
        return 1;
    }
    return 0;
}
