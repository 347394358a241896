/*
 * device_profile.c: selects the profile that a run is planned with. A plan needs a profile, not the
 * device.
 */
#include <stdio.h>
#include <string.h>

#include "base/processor.h"
#include "io/file.h"
#include "cost/calibration.h"
#include "cost/profile.h"
#include "dist/dist.h"
#include "planning/stages.h"

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
    const bool here = !given && p->name[0]; /* set by planned_choose_device */
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
    const int64_t n = r->shares > 1 ? c->parallel_ranks : 1,
                  local = c->parallel_per_host > 0 ? min_i64(c->parallel_per_host, n) : n;
    return c->device_threads || r->ranks || local < 2 ? (int)c->device_threads : dist_threads(local);
}

int planned_open_profile(struct planned *r, struct error *e)
{
    const struct config *c = r->config;
    char path[4200];
    TRY(cpu_features_check(e));
    planned_choose_device(r);
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
        rc = error_set(
            e, PL_USAGE,
            "%s is for %d threads, device.threads is %d; calibrate with --threads %d, or leave device.threads out",
            path, r->profile.threads, (int)c->device_threads, (int)c->device_threads);
    if (!rc && c->device_deterministic) profile_onednn(&r->profile, false);
    return rc ? error_prepend(e, "device.profile") : PL_OK;
}
