/*
 * calibrate_profile.c: measures this machine and stores its profile. On several ranks it measures
 * the links between them, which are added to the profile of rank 0's machine (calibrate.h).
 */
#include "calibrate/calibrate.h"
#include "cost/profile.h"
#include "dist/agree.h"
#include "graph/ops.h"
#include "io/file.h"

static const double GIB = 1 << 30;

/* What is measured, and where it is stored. */
struct target {
    const struct config *config; /* the device, and the threads of a CPU */
    const char *output;         /* NULL: the default path */
    bool gpu;
    char path[4200];
    struct profile profile;
    struct calibration *measured;
};

static void print_gpu(const struct profile *p)
{
    const struct calibration *c = p->measured;
    printf("%s, %s, %s\n  copies          %8.1f GiB/s\n  updates on host %8.1f GiB/s\n  launch          %8.2f us\n"
           "  classes         %8d\n", c->cpu, c->isa, c->date, p->copy_bandwidth / GIB, p->host_bandwidth / GIB,
           1e6 * p->launch_seconds, c->classes);
}

static void print_cpu(const struct profile *p)
{
    const struct calibration *c = p->measured;
    int curves = 0;
    for (int op = 1; op < OP_COUNT; op++)
        for (int v = 0; v < OP_VARIANTS; v++)
            for (int half = 0; half < CLASS_COUNT; half++) curves += c->curve[op][v][half].n > 0;
    printf("%s, %s, %d thread%s, %s\n", c->cpu, c->isa, p->threads, p->threads == 1 ? "" : "s", c->date);
    printf("  multiply-adds   %8.1f GFLOP/s in f32, %.1f in bf16\n", 1e-9 * p->flops_f32, 1e-9 * p->flops_bf16);
    printf("  bytes           %8.1f GiB/s from memory, %.1f from caches\n", p->memory_bandwidth / GIB,
           p->cache_bandwidth / GIB);
    printf("  offload         %8.1f GiB/s\n  launch          %8.2f us\n  ops corrected   %8d\n",
           p->copy_bandwidth / GIB, 1e6 * p->launch_seconds, curves);
}

/* Finds the path of the profile: `output`, or else `stored`, which is "" when no default path is
 * known. Creates its folder. */
static int output_path(const char *output, const char *stored, char *path, size_t room, struct error *e)
{
    char dir[4200];
    if (output)
        return snprintf(path, room, "%s", output) < (int)room ? PL_OK
                                                                 : error_set(e, PL_USAGE, "-o: the path is too long");
    if (!stored[0])
        return error_set(e, PL_USAGE,
                         "neither XDG_DATA_HOME nor HOME is set, so the profile has no default path; give -o FILE");
    snprintf(path, room, "%s", stored);
    int rc = path_dir(path, dir, sizeof dir, e);
    return rc ? rc : dir_make(dir, e);
}

/* Finds the path, of which a GPU's name, which the measurement finds, is a part. */
static int find_path(struct target *t, struct error *e)
{
    char stored[4200] = "";
    if (!(t->gpu ? profile_gpu_path(t->profile.name, stored, sizeof stored)
                 : profile_path(t->profile.threads, stored, sizeof stored)))
        stored[0] = '\0';
    return output_path(t->output, stored, t->path, sizeof t->path, e);
}

static int measure_machine(struct target *t, struct error *e)
{
    profile_default(&t->profile, DEVICE_CPU, (int)t->config->device_threads);
    int rc = t->gpu ? calibrate_gpu(&t->profile, t->measured, e) : find_path(t, e);
    if (!rc) rc = t->gpu ? find_path(t, e) : calibrate(&t->profile, t->measured, (int)t->config->device_threads, e);
    if (!rc) (t->gpu ? print_gpu : print_cpu)(&t->profile);
    return rc;
}

/* Reads the profile to which links are added: the stored one, or, for a known GPU, that of the
 * program. Without one the machine is measured first. */
static int find_machine(struct target *t, struct error *e)
{
    struct gpu gpu;
    profile_default(&t->profile, DEVICE_CPU, (int)t->config->device_threads);
    int rc = t->gpu ? cuda_gpu(&gpu, e) : PL_OK;
    if (!rc && t->gpu) profile_here(&t->profile, &gpu);
    if (!rc) rc = find_path(t, e);
    if (rc) return rc;
    if (file_exists(t->path)) return profile_read(t->path, &t->profile, t->measured, e);
    if (t->gpu && profile_is_stored(t->profile.name)) {
        char name[sizeof t->profile.name];
        memcpy(name, t->profile.name, sizeof name);
        return profile_stored(&t->profile, t->measured, name, e);
    }
    log_note("%s does not exist: this machine is measured first", t->path);
    return measure_machine(t, e);
}

static int store(const struct target *t, struct error *e)
{
    struct text out = {0};
    profile_write(&t->profile, &out);
    int rc = file_write_text(PL_OK, t->path, &out, e);
    if (!rc) printf("profile written to %s\n", t->path);
    return rc;
}

static int calibrate_ranks(struct target *t, struct ranks *ranks, struct error *e)
{
    struct text out = {0};
    const bool leads = !ranks->rank;
    ranks->patient = true; /* rank 0 may measure its machine */
    int rc = agree_on(ranks, leads ? find_machine(t, e) : PL_OK, e);
    if (!rc) rc = calibrate_links(ranks, t->config, &t->profile, &out, e);
    if (!rc && leads) {
        printf("Links of %d ranks\n%s", ranks->n, out.at);
        rc = store(t, e);
    }
    text_free(&out);
    return agree_on(ranks, rc, e);
}

int calibrate_profile(const struct config *c, const char *output, struct ranks *ranks, struct error *e)
{
    struct target *t = mem_alloc(sizeof *t);
    *t = (struct target){.config = c, .output = output, .gpu = c->device_kind == ON_CUDA,
                         .measured = mem_alloc(sizeof *t->measured)};
    int rc = ranks ? calibrate_ranks(t, ranks, e) : measure_machine(t, e);
    if (!rc && !ranks) rc = store(t, e);
    mem_free(t->measured);
    mem_free(t);
    return rc;
}
