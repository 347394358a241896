/*
 * page.h: what our HTML pages have in common. A page holds everything that it shows and needs
 * no network.
 */
#ifndef REPORT_PAGE_H
#define REPORT_PAGE_H

#include "base/base.h"

/* Head, style and the title as a heading; the body is open behind it. */
void page_begin(struct text *out, const char *title);
void page_end(struct text *out);
/* Text from outside, with what HTML would take for markup made harmless. */
void page_escaped(struct text *out, const char *s);
/* Colours of kinds of memory and the like, by number. */
const char *page_colour(uint32_t i);

#endif
