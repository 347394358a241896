/*
 * html.h: writes the HTML report of a run.
 *
 * The page is self-contained: curves are SVG, images are data URIs. It needs no other file and no
 * network.
 */
#pragma once

#include "base/base.h"

/* Reads DIR/{metrics.jsonl, plan.json, config.yaml, eval.txt, answers, images, worst} and writes
 * DIR/report.html atomically. Images are sorted by name. The section of a missing file is left out.
 * PL_USAGE when DIR is not the folder of a run. */
int report_html(const char *dir, struct error *e);

/* Appends the answers of the last evaluation, DIR/answers/step-N.jsonl, some of them. Nothing is
 * appended if there is none. Images are read where the run's configuration has them; one that is
 * not there is named. */
void answers_section(struct text *out, const char *dir);

/* Somebody else may have made the files of a run's folder. A page of them is shown to others: so
 * nothing is read through a link, which could lead to any file of the reader. */
enum { RUN_PATH = 8400 };

/* Fills the path of DIR/NAME. False: it is not there, or a part of NAME is a link, or it is no
 * regular file; `e` says which. DIR itself may be a link. */
bool run_file(const char *dir, const char *name, char path[RUN_PATH], struct error *e);
/* Does as run_file, but for a folder. */
bool run_folder(const char *dir, const char *name, char path[RUN_PATH]);
