/*
 * run_file.h: the files of a run's folder, which somebody else may have made. A page of them is
 * shown to others: so nothing is read through a link, which could lead to any file of the reader.
 */
#ifndef REPORT_RUN_FILE_H
#define REPORT_RUN_FILE_H

#include "base/base.h"

enum { RUN_PATH = 8400 };

/* Fills the path of DIR/NAME. False: it is not there, or a part of NAME is a link, or it is no
 * regular file; `e` says which. DIR itself may be a link. */
bool run_file(const char *dir, const char *name, char path[RUN_PATH], struct error *e);
/* Does as run_file, but for a folder. */
bool run_folder(const char *dir, const char *name, char path[RUN_PATH]);

#endif
