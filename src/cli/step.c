/*
 * step.c: `plimsoll step`: runs one forward and backward on given inputs and writes outputs, loss
 * and gradients, for comparison with another framework (batch/step_inputs.h).
 */
#include "batch/step_inputs.h"
#include "cli/cli.h"

/* Checks the output folder before the step is planned and run. */
static int check_output(const char *path, struct error *e)
{
    char dir[4096];
    if (path_dir(path, dir, sizeof dir, e)) return e->code;
    return dir_exists(dir) ? PL_OK : error_set(e, PL_USAGE, "--out %s: no such folder: %s", path, dir);
}

static int step(struct options *o, struct error *e)
{
    struct config *c = &o->config;
    if (!o->model || !o->batch || !o->output)
        return error_set(e, PL_USAGE, "needs --model DIR, --batch IN.safetensors and --out OUT.safetensors");
    TRY(check_output(o->output, e));
    TRY(options_configure(o, e));
    TRY(config_check_read(
        c, "step", "model.* adapter.* data.tokens_per_frame loss.* train.loss_scale train.groups memory.* device.*",
        e));
    /* f32 is the precision of a comparison with another framework, unless the user sets bf16. */
    if (!c->memory_precision.chosen) c->memory_precision = (struct config_setting){true, "f32"};
    c->model_path = (char *)o->model;
    c->model_preset = NULL;
    return step_run(c, o->batch, o->output, e);
}

const struct command command_step = {
    "step",
    "step --model DIR [--adapter DIR] --batch IN.safetensors --out OUT.safetensors [--set key=value]...",
    "Runs one forward and backward on given inputs and writes the outputs, the loss and every gradient,\n"
    "for comparison with another framework.\n"
    "  --adapter DIR    a LoRA adapter for that model; the gradients are then those of the adapter's\n"
    "                   weights",
    .shared = OPT_MODEL | OPT_BATCH | OPT_OUTPUT | OPT_MEMORY | OPT_SET, .run = step};
