/*
 * files.h: a private folder for fuzz targets of readers that open files by name.
 */
#pragma once

#include "io/file.h"

static char fuzz_dir[64]; /* empty before fuzz_begin */

static inline void fuzz_clean(void)
{
    struct error ignored;
    tree_remove(fuzz_dir, &ignored);
}

/* Makes the folder, in memory where that is possible; it is removed at the end. Returns false when
 * it is there already. */
static inline bool fuzz_begin(void)
{
    if (*fuzz_dir) return false;
    strcpy(fuzz_dir, "/dev/shm/plimsoll-fuzz-XXXXXX");
    if (!mkdtemp(fuzz_dir)) {
        strcpy(fuzz_dir, "/tmp/plimsoll-fuzz-XXXXXX");
        CHECK(mkdtemp(fuzz_dir));
    }
    atexit(fuzz_clean);
    log_quiet(true);
    return true;
}

/* Writes a file of the folder and returns its path, which the next call overwrites. */
static inline const char *fuzz_put(const char *name, const void *bytes, size_t n)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", fuzz_dir, name);
    FILE *f = fopen(path, "wb");
    CHECK(f && fwrite(bytes, 1, n, f) == n && !fclose(f));
    return path;
}
