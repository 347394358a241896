/*
 * choose.c: which device a run is planned for and runs on, and said in one line why.
 *
 *     device.kind   a GPU is here             none is
 *     cpu           the CPU                    the CPU
 *     auto          the GPU                   the CPU, and what is missing is said
 *     cuda          the GPU                   an h200 is planned for; starting refuses
 *
 * A named device.profile is planned for whatever is here: then a GPU that is here decides
 * nothing, unless the kind is left open, but whether the memory beside it is known.
 */
#include "train/run.h"

#include <stdio.h>
#include <string.h>

/* Commands plan many times; the GPU is the same each time. */
static int gpu_here(struct gpu *c, struct error *why)
{
    static struct gpu gpu;
    static struct error missing;
    static bool asked;
    if (!asked) cuda_gpu(&gpu, &missing);
    asked = true;
    *c = gpu;
    *why = missing;
    return missing.code;
}

/* Once for each process. */
static void say(const char *line)
{
    static bool said;
    if (!said) log_note("%s", line);
    said = true;
}

static void say_gpu(const char *asked, const struct gpu *c)
{
    char line[256], memory[32];
    snprintf(line, sizeof line, "device %s: %s, compute capability %d.%d, %s", asked, c->name, c->capability / 10, c->capability % 10,
             size_print(c->memory_bytes, memory));
    say(line);
}

static void say_missing(const char *instead, const struct error *why)
{
    char line[2200];
    const char *remedy = strstr(why->text, "; "); /* for those who asked for a GPU */
    snprintf(line, sizeof line, "%s: %.*s", instead, remedy ? (int)(remedy - why->text) : (int)strlen(why->text), why->text);
    say(line);
}

void run_choose_device(struct run *r)
{
    const struct config *c = r->config;
    const bool named = c->device_profile && strcmp(c->device_profile, "default");
    const bool is_gpu = named && profile_is_gpu(c->device_profile);
    struct gpu gpu;
    struct error why = {0};
    r->device.kind = c->device_kind == ON_CUDA ? DEVICE_CUDA : DEVICE_CPU;
    if (c->device_kind == ON_CPU || (named && c->device_kind == ON_CUDA)) return;
    /* A file is of a processor; a GPU's name alone does not ask for a GPU. */
    if (named && !is_gpu) {
        say("device auto: the CPU, because device.profile is a file of one");
    } else if (!gpu_here(&gpu, &why)) {
        say_gpu(c->device_kind == ON_AUTO ? "auto" : "cuda", &gpu);
        r->device.kind = DEVICE_CUDA;
        if (!named) profile_here(&r->device.profile, &gpu);
    } else if (c->device_kind == ON_AUTO) {
        say_missing("device auto: the CPU", &why);
    } else {
        say_missing("device cuda: planned for an h200", &why);
    }
}

bool run_gpu_is_here(const struct run *r)
{
    struct gpu gpu;
    struct profile here;
    struct error why = {0};
    if (r->device.kind != DEVICE_CUDA || gpu_here(&gpu, &why)) return false;
    profile_here(&here, &gpu);
    return !strcmp(here.name, r->device.profile.name);
}
