/*
 * page.h: the common parts of our HTML pages: report.html, profile.html. A page is self-contained
 * and needs no network. It follows the reader's light or dark mode and reads well on a phone.
 */
#pragma once

#include "io/table.h"
#include "base/base.h"

/* Writes the head, the style and a heading: a small line `above` it, then the title. The body stays
 * open. */
void page_begin(struct text *out, const char *above, const char *title);
void page_end(struct text *out);
/* Does as html_escape, but with absolute paths shortened to their last part: a page is shown to
 * others. */
void page_text(struct text *out, const char *s);
/* Returns the last `parts` parts of a path, for headings. Points into the path, unless it has an
 * end that is a slash or a pattern. */
const char *page_name(const char *path, int parts, char out[256]);

/* The headline of a page: facts side by side, each a label, a value and a remark ("": none). */
void page_facts_begin(struct text *out);
void page_fact(struct text *out, const char *label, const char *value, const char *remark);
void page_facts_end(struct text *out);

/* Returns the colour of a kind of memory by its name (kind_name), the same on every page. */
const char *page_kind_colour(const char *kind);
/* Memory by kind: a bar of all parts, and a table with their sizes and shares of the whole. */
struct page_part {
    const char *kind;
    uint64_t bytes;
};
void page_memory(struct text *out, const struct page_part *parts, uint32_t n, uint64_t whole);

/* Writes an image, as the bytes of a PNG file, with a caption: HTML, which the caller escapes. */
void page_figure(struct text *out, const void *png, size_t n, const char *caption);

struct series {
    const char *name;
    VEC(double) x, y;   /* of equal length, x ascending; a y that is not finite is a gap */
};

/* Draws one or two series over the same x axis, which `x` names. Draws nothing when no point is
 * finite. */
void curve_draw(struct text *out, const char *title, const char *x, const struct series *const *series, int n);
