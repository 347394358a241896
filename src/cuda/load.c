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

/* Looks beside the program, then in the lib folder of an installation. The first
 * answer is kept; `why` is what the last attempt said. */
static const struct cuda_plugin *plugin(char *why, size_t room)
{
    static const struct cuda_plugin *found;
    char program[3000], path[3100];
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    if (why) snprintf(why, room, "this build has no CUDA device");
    if (found || n < 0) return found;
    program[n] = '\0';
    char *slash = strrchr(program, '/');
    if (slash) *slash = '\0';
    for (size_t i = 0; i < COUNT(places) && !found; i++) {
        snprintf(path, sizeof path, "%s/%s", program, places[i]);
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

bool cuda_look(const struct device *d, struct cuda_view *out)
{
    const struct cuda_plugin *p = plugin(NULL, 0);
    return p && p->look(d, out);
}
