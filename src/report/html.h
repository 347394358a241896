/*
 * html.h: a run's folder as one page that a person can look at.
 *
 * The page holds everything it shows: curves as SVG, images as data URIs. It needs no
 * other file and no network, so it can be mailed.
 */
#ifndef REPORT_HTML_H
#define REPORT_HTML_H

#include "base/base.h"

/* Reads DIR/{metrics.jsonl, plan.json, config.yaml, images, worst}, writes DIR/report.html
 * all or nothing. Images are shown by name; of a file that is not there its part is left
 * out. PL_USAGE when DIR is no run. */
int report_html(const char *dir, struct error *e);

#endif
