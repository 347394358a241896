/*
 * page.h: the common parts of our HTML pages. A page is self-contained and needs no network.
 */
#ifndef REPORT_PAGE_H
#define REPORT_PAGE_H

#include "base/base.h"

/* Writes the head, the style and the title as a heading; the body stays open. */
void page_begin(struct text *out, const char *title);
void page_end(struct text *out);
/* Appends text with HTML's special characters escaped. */
void page_escaped(struct text *out, const char *s);
/* Colour i of a palette, for kinds of memory. */
const char *page_colour(uint32_t i);

#endif
