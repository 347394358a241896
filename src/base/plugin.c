/*
 * plugin.c: see plugin.h.
 */
#include "base/plugin.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"

enum { FOLDER = 3000 };

/* The folder of the program, or of the library that contains this code. */
static bool folder_of(bool library, char out[FOLDER])
{
    Dl_info at;
    ssize_t n = -1;
    if (!library) n = readlink("/proc/self/exe", out, FOLDER - 1);
    else if (dladdr((void *)(uintptr_t)plugin_find, &at) && at.dli_fname) n = snprintf(out, FOLDER, "%s", at.dli_fname);
    if (n < 0 || n >= FOLDER) return false;
    out[n] = '\0';
    char *slash = strrchr(out, '/');
    if (slash) *slash = '\0';
    return slash;
}

bool plugin_find(const char *name, char path[PLUGIN_PATH])
{
    static const char *const beside[] = {"", "../", "../lib/"};
    char folder[FOLDER];
    for (size_t i = 0; i < 2 * COUNT(beside); i++) {
        if (!folder_of(i >= COUNT(beside), folder)) continue;
        snprintf(path, PLUGIN_PATH, "%s/%s%s", folder, beside[i % COUNT(beside)], name);
        if (!access(path, R_OK)) return true;
    }
    return false;
}
