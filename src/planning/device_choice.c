/*
 * device_choice.c: chooses the device that a run is planned for and runs on, and its profile. A
 * plan needs a profile, not the device.
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
#include <unistd.h>

#include "base/processor.h"
#include "cost/calibration.h"
#include "cost/profile.h"
#include "dist/dist.h"
#include "io/file.h"
#include "planning/stages.h"

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

/* Sets the device's kind and, for a present GPU, its profile. */
static void choose_device(struct planned *r)
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

/* --- the profile ---------------------------------------------------------------------------- */

/* Finds the profile file for predicted times; "": the built-in peak rates. */
static void find_profile(const struct planned *r, char *path, size_t room)
{
    const char *given = r->config->device_profile;
    path[0] = '\0';
    if (given && strcmp(given, "default")) snprintf(path, room, "%s", given);
    if (given) return;
    if (!profile_path(r->profile.threads, path, room) || !file_exists(path)) path[0] = '\0';
}

/* Opens a GPU's profile: the given one, by name or as a file; else, for a present GPU, its own
 * measurement, the built-in measurement, or its peak rates; else the H200's. */
static int open_gpu(struct planned *r, struct error *e)
{
    const char *given = r->config->device_profile, *name = given;
    struct profile *p = &r->profile;
    struct calibration *c = bump_alloc(&r->memory, sizeof *c);
    const bool here = !given && p->name[0]; /* set by choose_device */
    char path[4200] = "";
    if (given && !strcmp(given, "default")) {
        if (!p->name[0]) profile_default(p, DEVICE_CUDA, 0);
        return PL_OK;
    }
    if (!given) name = here ? p->name : "h200";
    if (given && !profile_is_gpu(given) && file_exists(given)) snprintf(path, sizeof path, "%s", given);
    if (here && (!profile_gpu_path(name, path, sizeof path) || !file_exists(path))) path[0] = '\0';
    if (here && !path[0] && !profile_is_stored(name)) return PL_OK;
    if (!path[0]) {
        char own[sizeof p->name]; /* a copy: the name may be part of the profile that is overwritten */
        snprintf(own, sizeof own, "%s", name);
        return profile_gpu(p, c, own, e);
    }
    int rc = profile_read(path, p, c, e);
    if (!rc && p->kind != DEVICE_CUDA)
        rc = error_set(e, PL_USAGE, "%s is the profile of a CPU, not of a GPU; set device.kind to cpu", path);
    return rc;
}

/* Returns the number of CPU threads of a rank; a plan for ranks that are not there divides the
 * processors as they would. 0: as for one process. */
static int threads_of_rank(const struct planned *r)
{
    const struct config *c = r->config;
    const int64_t n = planned_world(r),
                  local = c->parallel_per_host > 0 ? min_i64(c->parallel_per_host, n) : n;
    return c->device_threads || r->ranks || local < 2 ? (int)c->device_threads : dist_threads(local);
}

int planned_open_profile(struct planned *r, struct error *e)
{
    const struct config *c = r->config;
    char path[4200];
    TRY(cpu_features_check(e));
    choose_device(r);
    bool named = c->device_profile && strcmp(c->device_profile, "default");
    if (r->kind == DEVICE_CUDA) return open_gpu(r, e) ? error_prepend(e, "device.profile") : PL_OK;
    if (named && profile_is_gpu(c->device_profile))
        return error_set(e, PL_USAGE, "device.profile: %s is a GPU; set device.kind to cuda to plan for it",
                         c->device_profile);
    profile_default(&r->profile, r->kind, threads_of_rank(r));
    find_profile(r, path, sizeof path);
    int rc = path[0] ? profile_read(path, &r->profile, bump_alloc(&r->memory, sizeof(struct calibration)), e) : PL_OK;
    if (!rc && path[0] && r->profile.kind != DEVICE_CPU)
        rc = error_set(e, PL_USAGE, "%s is the profile of a GPU; set device.kind to cuda", path);
    if (!rc && c->device_threads && c->device_threads != r->profile.threads)
        rc = error_set(e, PL_USAGE, "%s is for %d threads, device.threads is %d; calibrate with --threads %d, or leave "
                       "device.threads out", path, r->profile.threads, (int)c->device_threads, (int)c->device_threads);
    if (!rc && c->device_deterministic) profile_onednn(&r->profile, false);
    return rc ? error_prepend(e, "device.profile") : PL_OK;
}
