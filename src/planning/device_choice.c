/*
 * device_choice.c: chooses the device that a run is planned for and runs on.
 *
 *     device.kind   a GPU is present          no GPU is present
 *     cpu           the CPU                   the CPU
 *     auto          the GPU                   the CPU
 *     cuda          the GPU                   the plan is for an h200; starting is an error
 *
 * With a named device.profile the plan is for that profile, whatever GPU is present. The present
 * GPU then only decides device.kind auto, and whether the free host memory is known.
 *
 * The choice of auto is logged in one line by the commands that explain a run
 * (planned_explain_device). A GPU of this machine that cannot be used is logged by every command.
 */
#include "planning/stages.h"
#include "cost/profile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Commands plan many times; the result of the first query is cached. */
static int gpu_here(struct gpu *c, struct error *why)
{
    static struct gpu gpu;
    static struct error missing;
    static bool queried;
    if (!queried) cuda_gpu(&gpu, &missing);
    queried = true;
    *c = gpu;
    *why = missing;
    return missing.code;
}

static bool explained; /* the choice is to be logged */

void planned_explain_device(void) { explained = true; }

/* Logs the line once per process. */
static void log_once(const char *line)
{
    static bool logged;
    if (!logged) log_note("%s", line);
    logged = true;
}

static void log_gpu(const char *kind, const struct gpu *c)
{
    char line[256], memory[32];
    snprintf(line, sizeof line, "device %s: %s, compute capability %d.%d, %s", kind, c->name, c->capability / 10,
             c->capability % 10, size_print(c->memory_bytes, memory));
    if (explained) log_once(line);
}

/* Reports whether there is a GPU that its user did not hide. The driver makes one such file for
 * each GPU. */
static bool has_nvidia_gpu(void)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    return !access("/dev/nvidia0", F_OK) && (!visible || *visible);
}

/* Returns the length of the message without its remedy, which is for users who set device.kind
 * cuda. */
static int without_remedy(const struct error *why)
{
    const char *remedy = strstr(why->text, "; ");
    return remedy ? (int)(remedy - why->text) : (int)strlen(why->text);
}

static void log_missing(const char *instead, const struct error *why)
{
    char line[2200];
    snprintf(line, sizeof line, "%s: %.*s", instead, without_remedy(why), why->text);
    log_once(line);
}

void planned_choose_device(struct planned *r)
{
    const struct config *c = r->config;
    const bool named = c->device_profile && strcmp(c->device_profile, "default");
    const bool is_gpu = named && profile_is_gpu(c->device_profile);
    struct gpu gpu;
    struct error why = {0};
    r->kind = c->device_kind == ON_CUDA ? DEVICE_CUDA : DEVICE_CPU;
    if (c->device_kind == ON_CPU || (named && c->device_kind == ON_CUDA)) return;
    /* A profile file describes a CPU; a GPU's name does not select a GPU. */
    if (named && !is_gpu) {
        if (explained) log_once("device auto: the CPU, because device.profile is the profile of a CPU");
    } else if (!gpu_here(&gpu, &why)) {
        log_gpu(c->device_kind == ON_AUTO ? "auto" : "cuda", &gpu);
        r->kind = DEVICE_CUDA;
        if (!named) profile_here(&r->profile, &gpu);
    } else if (c->device_kind == ON_AUTO) {
        if (explained || has_nvidia_gpu()) log_missing("device auto: the CPU", &why);
    } else {
        log_missing("device cuda: planned for an h200", &why);
    }
}

int planned_check_device(const struct planned *r, struct error *e)
{
    struct gpu gpu;
    struct error why = {0};
    if (r->kind != DEVICE_CUDA || !gpu_here(&gpu, &why)) return PL_OK;
    return error_set(e, PL_FAIL, "%.*s", without_remedy(&why), why.text);
}

bool planned_gpu_is_here(const struct planned *r)
{
    struct gpu gpu;
    struct profile here;
    struct error why = {0};
    if (r->kind != DEVICE_CUDA || gpu_here(&gpu, &why)) return false;
    profile_here(&here, &gpu);
    return !strcmp(here.name, r->profile.name);
}
