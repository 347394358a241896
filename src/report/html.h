/*
 * html.h: writes the HTML report of a run.
 *
 * The page is self-contained: curves are SVG, images are data URIs. It needs no other file and no
 * network.
 */
#ifndef REPORT_HTML_H
#define REPORT_HTML_H

#include "base/base.h"

/* Reads DIR/{metrics.jsonl, plan.json, config.yaml, eval.txt, answers, images, worst} and writes
 * DIR/report.html atomically. Images are sorted by name. The section of a missing file is left out.
 * PL_USAGE when DIR is not the folder of a run. */
int report_html(const char *dir, struct error *e);

#endif
