/*
 * temporary_folder.h: a folder of its own for a group of tests, removed after them:
 *
 *     cmocka_run_group_tests(tests, make_folder, remove_folder)
 */
#ifndef TEMPORARY_FOLDER_H
#define TEMPORARY_FOLDER_H

#include <stdio.h>
#include <stdlib.h>

#include "io/file.h"

static char folder[256];

static int make_folder(void **state)
{
    (void)state;
    const char *base = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/plimsoll-test-XXXXXX", base ? base : "/tmp");
    log_quiet(true);
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    struct error e;
    return tree_remove(folder, &e);
}

#endif
