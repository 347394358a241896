/*
 * load.c: opens the CUDA plug-in (see cuda.h). The planning half (plan.c) is in
 * every build, so a plan for a card can be made without it.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cuda/cuda.h"

static const char *const places[] = {"plimsoll-cuda.so", "../plimsoll-cuda.so", "../lib/plimsoll-cuda.so"};

static const struct cuda_plugin *plugin(char *why, size_t room);

/* The folder of the program, or of the library that this code is in. */
static bool folder_of(bool library, char out[3000])
{
    Dl_info at;
    ssize_t n = -1;
    if (!library) n = readlink("/proc/self/exe", out, 2999);
    else if (dladdr((void *)(uintptr_t)plugin, &at) && at.dli_fname) n = snprintf(out, 3000, "%s", at.dli_fname);
    if (n < 0 || n >= 3000) return false;
    out[n] = '\0';
    char *slash = strrchr(out, '/');
    if (slash) *slash = '\0';
    return slash;
}

/* Looks beside the program, in the lib folder of an installation, and beside the library.
 * The first answer is kept; `why` is what the last attempt said. */
static const struct cuda_plugin *plugin(char *why, size_t room)
{
    static const struct cuda_plugin *found;
    char folder[3000], path[3100];
    if (why) snprintf(why, room, "this build has no CUDA device");
    for (size_t i = 0; i < 2 * COUNT(places) && !found; i++) {
        if (!folder_of(i >= COUNT(places), folder)) continue;
        snprintf(path, sizeof path, "%s/%s", folder, places[i % COUNT(places)]);
        if (access(path, R_OK)) continue;
        void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (handle) found = dlsym(handle, "plimsoll_cuda_plugin");
        if (!found && why) snprintf(why, room, "%s", dlerror());
    }
    return found;
}

const struct device_ops *cuda_device(char *why, size_t room)
{
    const struct cuda_plugin *p = plugin(why, room);
    return p ? p->ops : NULL;
}

int cuda_cards(void)
{
    const struct cuda_plugin *p = plugin(NULL, 0);
    return p ? p->cards() : 0;
}

bool cuda_card(char *name, size_t room)
{
    const struct cuda_plugin *p = plugin(NULL, 0);
    return p && p->card(name, room);
}

bool cuda_look(const struct device *d, struct cuda_view *out)
{
    const struct cuda_plugin *p = plugin(NULL, 0);
    return p && p->look(d, out);
}
