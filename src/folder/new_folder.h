/*
 * new_folder.h: a model folder that a command writes: under a temporary name, and renamed when it
 * is complete.
 */
#pragma once

#include "io/temporary.h"

/* Fills a folder, which exists and is empty. */
typedef int fill_folder(void *of, const char *dir, struct error *e);

/* Checks that a path does not exist or is an empty folder, so that no file is overwritten. */
int new_folder_check(const char *path, struct error *e);
/* Fills a temporary folder beside `path`; on failure there is none. */
int new_folder_fill(struct temporary *t, const char *path, fill_folder *fill, void *of, struct error *e);
/* Does the same and gives it the name. */
int new_folder_write(const char *path, fill_folder *fill, void *of, struct error *e);
