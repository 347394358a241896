/*
 * csv.c: see csv.h. The write position never passes the read position, so a row can be rewritten
 * in place.
 */
#include "data/formats/csv.h"

#include <ctype.h>

static char find_separator(const char *at, const char *end)
{
    static const char separators[] = ",;\t";
    uint32_t n[3] = {0}, best = 0;
    bool quoted = false, any = false;
    for (; at < end && (quoted || !any || (*at != '\n' && *at != '\r')); at++) {
        const char *found = *at ? strchr(separators, *at) : NULL;
        if (*at == '"') quoted = !quoted;
        if (found && !quoted) n[found - separators]++;
        any |= *at != '\n' && *at != '\r';
    }
    for (uint32_t i = 1; i < 3; i++)
        if (n[i] > n[best]) best = i;
    return separators[best];
}

void csv_begin(struct csv *c, char *text, size_t n)
{
    *c = (struct csv){.at = text, .end = text + n, .next = 1};
    if (n >= 3 && !memcmp(text, "\xef\xbb\xbf", 3)) c->at += 3;
    c->separator = find_separator(c->at, c->end);
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
    if (!at_line_end(c) && *c->at != c->separator)
        return error_set(e, PL_USAGE, "line %u: %c after a closing quote; expected %s", c->line, *c->at,
                         c->separator == ',' ? "a comma" : c->separator == ';' ? "a semicolon" : "a tab");
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
        while (c->at < c->end && *c->at == ' ') c->at++; /* "image, mask" */
        char *to = c->at, *from = c->at;
        c->fields[c->n++] = to;
        if (!at_line_end(c) && *c->at == '"') {
            if (quoted(c, &to, e)) return e->code;
        } else {
            while (!at_line_end(c) && *c->at != c->separator) c->at++;
            to = c->at;
            while (to > from && to[-1] == ' ') to--;
        }
        if (memchr(from, 0, (size_t)(to - from)))
            return error_set(e, PL_USAGE, "line %u contains a zero byte: save the table as UTF-8 text", c->line);
        bool more_fields = c->at < c->end && *c->at == c->separator;
        if (more_fields) c->at++;
        else if (c->at < c->end) skip_line_end(c);
        *to = 0; /* at or before the separator, the line's end, or the text's terminator */
        if (!more_fields) break;
    }
    return PL_OK;
}

int csv_column(const struct csv *c, const char *name)
{
    for (uint32_t i = 0; i < c->n; i++)
        if (!strcmp(c->fields[i], name)) return (int)i;
    return -1;
}

/* Returns letters and digits in lower case: "Image Path" and image_path are imagepath. */
static void squeeze(const char *name, char *out, size_t room)
{
    size_t n = 0;
    for (; *name && n + 1 < room; name++)
        if (isalnum((unsigned char)*name)) out[n++] = (char)tolower((unsigned char)*name);
    out[n] = 0;
}

/* Finds a column by a list of usual names, first to last: a table may have a column of masks and
 * one of labels. */
int usual_column(const char *const *names, uint32_t n, enum csv_usual what)
{
    static const char *const images[] = {"image",         "img",           "imagepath", "imgpath",  "imagefile",
                                         "imagefilename", "imagefilepath", "images",    "filename", "file",
                                         "filepath",      "path",          "imagename", "input",    NULL};
    static const char *const masks[] =
        {"mask",  "maskpath",  "maskfile",     "maskfilename",     "maskfilepath",     "masks",
         "seg",   "segpath",   "segmentation", "segmentationpath", "segmentationmask", "segmentationfile",
         "label", "labelpath", "labelfile",    "labels",           "annotation",       "annotationpath",
         "gt",    "gtpath",    "groundtruth",  "groundtruthpath",  "target",           "maskname", NULL};
    static const char *const splits[] = {"split", "subset", "set", "partition", "phase", NULL};
    static const char *const questions[] = {"question", "prompt", "query", NULL}, *const answers[] = {"answer",
                                                                                                      "response", NULL};
    static const char *const classes[] = {"label",     "class",  "category",  "target", "classname",
                                          "labelname", "labels", "diagnosis", NULL};
    static const char *const captions[] = {"text",      "caption", "captions", "title",  "description", "sentence",
                                           "sentences", "texts",   "alttext",  "prompt", "report",      NULL};
    static const char *const *const lists[] = {images, masks, splits, questions, answers, classes, captions};
    for (const char *const *name = lists[what]; *name; name++)
        for (uint32_t i = 0; i < n; i++) {
            char squeezed[64];
            squeeze(names[i], squeezed, sizeof squeezed);
            if (!strcmp(squeezed, *name)) return (int)i;
        }
    return -1;
}

int csv_usual_column(const struct csv *c, enum csv_usual what)
{
    return usual_column((const char *const *)c->fields, c->n, what);
}
