/*
 * csv.c: see csv.h. The write position never passes the read position, so a row can be rewritten
 * in place.
 */
#include "data/csv.h"

#include <string.h>

void csv_begin(struct csv *c, char *text, size_t n)
{
    *c = (struct csv){.at = text, .end = text + n, .next = 1};
    if (n >= 3 && !memcmp(text, "\xef\xbb\xbf", 3)) c->at += 3;
}

static bool at_line_end(const struct csv *c) { return c->at == c->end || *c->at == '\n' || *c->at == '\r'; }

static void skip_line_end(struct csv *c)
{
    if (c->at < c->end && *c->at == '\r') c->at++;
    if (c->at < c->end && *c->at == '\n') c->at++;
    c->next++;
}

/* Parses the rest of a quoted field; its bytes move to `to`. */
static int quoted(struct csv *c, char **to, struct error *e)
{
    for (c->at++; c->at < c->end; c->at++) {
        if (*c->at == '"') {
            if (c->at + 1 == c->end || c->at[1] != '"') break;
            c->at++;
        }
        if (*c->at == '\n') c->next++;
        *(*to)++ = *c->at;
    }
    if (c->at == c->end) return error_set(e, PL_USAGE, "line %u: a quote is not closed", c->line);
    c->at++;
    if (!at_line_end(c) && *c->at != ',')
        return error_set(e, PL_USAGE, "line %u: %c after a closing quote; expected a comma", c->line, *c->at);
    return PL_OK;
}

int csv_next(struct csv *c, bool *more, struct error *e)
{
    while (c->at < c->end && at_line_end(c)) skip_line_end(c);
    *more = c->at < c->end;
    c->n = 0;
    c->line = c->next;
    while (*more) {
        if (c->n == CSV_COLUMNS) return error_set(e, PL_USAGE, "line %u: more than %d columns", c->line, CSV_COLUMNS);
        char *to = c->at, *from = c->at;
        c->fields[c->n++] = to;
        if (!at_line_end(c) && *c->at == '"') {
            if (quoted(c, &to, e)) return e->code;
        } else {
            while (!at_line_end(c) && *c->at != ',') c->at++;
            to = c->at;
        }
        if (memchr(from, 0, (size_t)(to - from))) return error_set(e, PL_USAGE, "line %u contains a zero byte", c->line);
        bool comma = c->at < c->end && *c->at == ',';
        if (comma) c->at++;
        else if (c->at < c->end) skip_line_end(c);
        *to = 0; /* at or before the comma, the line's end, or the text's terminator */
        if (!comma) break;
    }
    return PL_OK;
}

int csv_column(const struct csv *c, const char *name)
{
    for (uint32_t i = 0; i < c->n; i++)
        if (!strcmp(c->fields[i], name)) return (int)i;
    return -1;
}
