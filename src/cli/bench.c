/*
 * bench.c: `plimsoll bench`: times training steps (report/step_report.h). Needs no data and writes
 * no files but the offload file of a plan that has one.
 */
#include "batch/feed.h"
#include "calibrate/calibrate.h"
#include "cli/cli.h"
#include "dist/agree.h"
#include "report/step_report.h"

struct bench_options {
    struct options o;
    bool calibrate;
    const char *threads;
};

int bench_start(struct options *o, int64_t most, int64_t *steps, struct bench *b, struct error *e)
{
    struct ranks *r = o->world;
    TRY(options_configure(o, e));
    TRY(option_count("--steps", o->steps, 1, most, steps, e));
    TRY(config_check(&o->config, CONFIG_NEEDS_MODEL, e));
    TRY(agree_free(r, offload_folder(o->config.train_out), e));
    const int rc = bench_open(b, &o->config,
                    &(struct run_options){.plan = o->plan, .train = true, .describe = feed_describe, .ranks = r}, e);
    return agree_on(r, rc, e);
}

static int bench_model(struct options *o, struct error *e)
{
    struct bench b = {0};
    struct ranks *r = o->world;
    struct rank_times *each = mem_alloc((size_t)(r ? r->n : 1) * sizeof *each);
    int64_t steps = 5;
    int rc = bench_start(o, BENCH_STEPS_MOST, &steps, &b, e);
    if (!rc) {
        const double before = r ? r->moving : 0;
        rc = bench_run_shown(&b, steps, e);
        if (!rc && r) rc = rank_times_gather(r, &b, (r->moving - before) / (double)steps, each, e);
        if (!rc) rc = bench_time_nodes(&b, e);
        if (!rc && (!r || !r->rank)) bench_report(&b, r, each, o->json);
        rc = agree_on(r, rc, e);
    }
    bench_close(&b);
    mem_free(each);
    return rc;
}

/* --- --calibrate ------------------------------------------------------------------------------ */

/* Checks that --set has only the device to measure, and that ranks share a GPU. */
static int check_options(const struct bench_options *o, struct error *e)
{
    static const char *const may[] = {"device=", "device.kind=", "parallel.crowd="};
    if (o->o.run || o->o.memory || o->o.plan || o->o.steps || o->o.json)
        return error_set(e, PL_USAGE, "--calibrate accepts only --set device=cuda, -o, --threads and --ranks");
    if (o->o.from.n) return error_set(e, PL_USAGE, "--calibrate measures this machine and takes no --config-from");
    for (uint32_t i = 0; i < o->o.set.n; i++) {
        bool known = false;
        for (size_t k = 0; k < COUNT(may); k++) known |= !strncmp(o->o.set.at[i], may[k], strlen(may[k]));
        if (!known)
            return error_set(e, PL_USAGE,
                             "--calibrate accepts only --set device=cuda, -o, --threads and --ranks, not --set %s",
                             o->o.set.at[i]);
    }
    return PL_OK;
}

static int calibrate_machine(struct bench_options *o, struct error *e)
{
    struct config *c = &o->o.config;
    struct ranks *world = o->o.world;
    int64_t threads = 0;
    int rc = check_options(o, e);
    if (!rc) rc = option_count("--threads", o->threads, 1, 4096, &threads, e);
    TRY(agree_on(world, rc, e));
    TRY(options_configure(&o->o, e));
    c->device_threads = threads;
    if (c->device_kind == ON_CUDA && o->threads)
        return error_set(e, PL_USAGE, "--threads is for the CPU, not for a GPU");
    return calibrate_profile(c, o->o.output, world && world->n > 1 ? world : NULL, e);
}

/* --- the command ------------------------------------------------------------------------------ */

static int bench(struct options *o, struct error *e)
{
    struct bench_options *own = (struct bench_options *)o;
    if (own->calibrate) return calibrate_machine(own, e);
    TRY(options_need_run(o, e));
    if (o->output || own->threads)
        return error_set(e, PL_USAGE,
                         "-o and --threads need --calibrate; `--set device.threads=N` sets the threads of a step");
    return bench_model(o, e);
}

static const struct option OPTIONS[] = {OPTION(struct bench_options, "--calibrate", SWITCH, calibrate),
                                        OPTION(struct bench_options, "--threads", TEXT, threads)};

const struct command command_bench = {
    "bench",
    "bench RUN.yaml [--config-from FILE]... [--adapter DIR] [--steps N] [--memory SIZE] [--plan PLAN.json] [--ranks "
    "N] [--set key=value]... [--json]\n"
    "       plimsoll bench --calibrate [--set device=cuda] [-o PROFILE.json] [--threads N] [--ranks N]",
    "Runs training steps on synthetic inputs and prints the predicted and the measured time, the memory,\n"
    "and the time of each op. Needs no data and writes no files, except the offload file of a CPU's plan\n"
    "that offloads; it is gone when bench ends.\n"
    CONFIG_FROM_HELP
    "  --steps N        steps to measure (5)\n"
    ADAPTER_HELP
    "  --calibrate      measures the peak rates and the ops of this machine, or of its GPU with --set\n"
    "                   device=cuda, and stores the profile from which plans predict times; takes about a\n"
    "                   minute and 2 GiB of memory\n"
    "  -o PROFILE.json  with --calibrate: the file for the profile, instead of the default path\n"
    "  --threads N      with --calibrate: CPU threads to measure with\n"
    "  --ranks N        a step of N processes on this machine, as `mpirun -np N plimsoll bench ...`. With\n"
    "                   --calibrate: measures the links between ranks, within a host and between hosts,\n"
    "                   and adds them to the profile",
    .ranks = true,
    .shared = OPT_RUN | OPT_NO_RUN | OPT_MEMORY | OPT_PLAN | OPT_JSON | OPT_STEPS | OPT_OUTPUT | OPT_RANKS,
    COMMAND_OPTIONS(OPTIONS), COMMAND_STATE(struct bench_options, .o = {0}), .run = bench};
