/*
 * profile.c: `plimsoll profile`: the time and memory of a step by op and tensor
 * (report/step_report.h). Runs steps on synthetic inputs, as `bench` does.
 */
#include "cli/cli.h"
#include "dist/agree.h"
#include "report/step_report.h"

struct profile_options {
    struct options o;
    bool explain;
};

static int show(const struct profile_options *o, const struct step_report *s, struct error *e)
{
    const char *dir = o->o.output ? o->o.output : "profile";
    const struct bench *b = s->bench;
    const struct plan *p = &b->run.planned.plan;
    struct text out = {0};
    step_report_print(s, &out);
    if (o->explain) step_report_kernels(&b->run, &out);
    int rc = step_report_write(s, &o->o.config, dir, o->o.run, e);
    if (!rc && o->o.json)
        PRINT_FACTS(2, FACT("steps", b->steps), FACT("measured_mean_seconds", bench_mean(b)),
                    FACT("measured_median_seconds", bench_median(b)), FACT("predicted_step_seconds", p->seconds),
                    FACT("arena_bytes", plan_arena(p)), FACT("launches", b->now.n_events), FACT("folder", dir),
                    FACT_TABLE("ops", &s->ops));
    else if (!rc) printf("%s\n%s/profile.html\n%s/trace.json\n%s/snapshot.pickle\n", out.at, dir, dir, dir);
    text_free(&out);
    return rc;
}

static int profile(struct options *o, struct error *e)
{
    struct ranks *r = o->world;
    struct bench b = {0};
    struct step_report s = {0};
    int64_t steps = 5;
    int rc = bench_start(o, 1000, &steps, &b, e);
    if (!rc) {
        rc = step_report_measure(&s, &b, steps, r, e);
        if (!rc && (!r || !r->rank)) rc = show((struct profile_options *)o, &s, e);
        rc = agree_on(r, rc, e);
    }
    step_report_close(&s);
    bench_close(&b);
    return rc;
}

static const struct option OPTIONS[] = {OPTION(struct profile_options, "--explain", SWITCH, explain)};

const struct command command_profile = {
    "profile",
    "profile RUN.yaml [--config-from FILE]... [--adapter DIR] [--steps N] [--memory SIZE] [--plan PLAN.json] "
    "[--ranks N] [--set key=value]... [--json] [--explain] [-o DIR]",
    "Runs training steps on synthetic inputs and shows the time and memory of each op and tensor: tables\n"
    "on standard output; DIR/profile.html with a plot of the arena over time; DIR/trace.json for Perfetto\n"
    "or chrome://tracing; DIR/snapshot.pickle for PyTorch's memory_viz page.\n"
    CONFIG_FROM_HELP
    "  --steps N        steps to measure (5)\n"
    "  --explain        also lists the kernels of the plan and, on a GPU, the algorithms of cuBLASLt that\n"
    "                   were chosen for its products\n"
    ADAPTER_HELP
    "  --ranks N        N processes on this machine, as `mpirun -np N plimsoll profile ...`: in the trace\n"
    "                   a rank is a process and a lane a thread; the tables are of rank 0\n"
    "  -o DIR           the output folder (profile)",
    .ranks = true, .shared = OPT_RUN | OPT_MEMORY | OPT_PLAN | OPT_JSON | OPT_STEPS | OPT_OUTPUT | OPT_RANKS,
    COMMAND_OPTIONS(OPTIONS), COMMAND_STATE(struct profile_options, .o = {0}), .run = profile};
