/*
 * run_file.c: see run_file.h.
 */
#include "report/run_file.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "io/file.h"

/* Returns the mode of DIR/NAME; 0: `e` says why it is not used. */
static mode_t mode_of(const char *dir, const char *name, char path[RUN_PATH], struct error *e)
{
    struct stat s = {0};
    const size_t n = strlen(dir) + 1;
    if (snprintf(path, RUN_PATH, "%s/%s", dir, name) >= RUN_PATH)
        return error_set(e, PL_USAGE, "%.200s...: the path is too long", dir), 0;
    for (char *slash = strchr(path + n, '/');; slash = strchr(slash + 1, '/')) {
        if (slash) *slash = '\0';
        if (lstat(path, &s)) return file_error(path, "read it", e), 0;
        if (S_ISLNK(s.st_mode))
            return error_set(e, PL_USAGE, "%s: it is a link, and may lead out of the run's folder", path), 0;
        if (!slash) return s.st_mode;
        *slash = '/';
    }
}

bool run_file(const char *dir, const char *name, char path[RUN_PATH], struct error *e)
{
    const mode_t mode = mode_of(dir, name, path, e);
    return S_ISREG(mode) || (mode && (error_set(e, PL_USAGE, "%s: it is no regular file", path), false));
}

bool run_folder(const char *dir, const char *name, char path[RUN_PATH])
{
    struct error ignored;
    return S_ISDIR(mode_of(dir, name, path, &ignored));
}
