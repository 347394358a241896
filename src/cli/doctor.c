/*
 * doctor.c: `plimsoll doctor`: diagnoses the memory of a run (compare/advice.h), or describes the
 * machine.
 */
#include "calibrate/bench.h"
#include "cli/cli.h"
#include "compare/advice.h"
#include "planning/planned.h"

struct doctor_options {
    struct options o;
    struct diagnosis_options of;
    bool machine;
};

static int doctor(struct options *o, struct error *e)
{
    struct diagnosis_options *of = &((struct doctor_options *)o)->of;
    const bool machine = ((struct doctor_options *)o)->machine;
    if (machine && o->argc > 1 + o->json)
        return error_set(e, PL_USAGE, "--machine describes this machine, with --json at most; leave the rest out");
    if (machine || !o->argc || (o->argc == 1 && o->json)) {
        environment_print_machine(o->json);
        return PL_OK;
    }
    TRY(options_need_run(o, e));
    TRY(option_count("--steps", o->steps, 0, BENCH_STEPS_MOST, &of->steps, e));
    TRY(options_configure(o, e));
    TRY(config_check(&o->config, CONFIG_NEEDS_MODEL, e));
    of->plan = o->plan, of->json = o->json;
    return diagnose(&(struct plan_source){.read = options_source, .of = o}, &o->config, of, e);
}

static const struct option OPTIONS[] = {OPTION(struct doctor_options, "--confirm", SWITCH, of.confirm),
                                       OPTION(struct doctor_options, "--machine", SWITCH, machine)};

const struct command command_doctor = {
    "doctor",
    "doctor [--machine] [--json]\n"
    "       plimsoll doctor RUN.yaml [--config-from FILE]... [--adapter DIR] [--memory SIZE] [--steps N] [--confirm] "
    "[--plan PLAN.json] [--set key=value]... [--json]",
    "Without a run file, describes this machine: processor, memory, limits, GPU, libraries, and what\n"
    "memory.budget: auto would be. With one, diagnoses the memory of a run, such as one that is out of\n"
    "memory: the peaks of a training step, the largest tensors at the peak, the largest micro-batch that\n"
    "fits, leaks, and what each change would save and cost: gradient checkpointing (activation\n"
    "checkpointing), offload to host memory, mixed precision, 8-bit Adam, gradient accumulation, LoRA,\n"
    "4-bit weights. What is planned is printed first and needs no GPU; then steps run, where they can, to\n"
    "measure leaks. Needs no data and writes no files: what a CPU would offload to a file stays in memory\n"
    "while it measures, and where that does not fit it does not measure.\n"
    CONFIG_FROM_HELP
    "  --steps N        steps over which leaks are measured (20; 0: none)\n"
    ADAPTER_HELP
    "  --confirm        runs one step with the largest micro-batch\n"
    "  --machine        describes this machine: the same as without a run file",
    .shared = OPT_RUN | OPT_NO_RUN | OPT_MEMORY | OPT_PLAN | OPT_JSON | OPT_STEPS, COMMAND_OPTIONS(OPTIONS),
    COMMAND_STATE(struct doctor_options, .of.steps = 20), .run = doctor};
