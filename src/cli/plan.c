/*
 * plan.c: `plimsoll plan`: finds and prints the memory plan of a run, before anything runs
 * (compare/plan_request.h).
 */
#include "cli/cli.h"
#include "compare/plan_request.h"

struct planning {
    struct options o;
    struct plan_request of;
};

static int plan(struct options *o, struct error *e)
{
    struct plan_request *r = &((struct planning *)o)->of;
    r->source = (struct plan_source){.read = options_source, .of = o};
    r->ranks = o->ranks && strchr(o->ranks, ',') ? o->ranks : NULL;
    r->plan = o->plan, r->output = o->output, r->budget = o->memory, r->json = o->json;
    return plan_request_run(r, e);
}

static const struct option OPTIONS[] = {
    {"--explain", OPTION_SWITCH, offsetof(struct planning, of.explain), "all"},
    OPTION(struct planning, "--compare", SWITCH, of.compare),
    OPTION(struct planning, "--frontier", SWITCH, of.frontier),
    OPTION(struct planning, "--longest", SWITCH, of.longest),
    OPTION(struct planning, "--devices", TEXT, of.devices), OPTION(struct planning, "--images", TEXT, of.images),
    OPTION(struct planning, "--image-size", TEXT, of.image_size),
    OPTION(struct planning, "--frames", TEXT, of.frames), OPTION(struct planning, "--masks", TEXT, of.masks),
    OPTION(struct planning, "--per-host", TEXT, o.per_host), OPTION(struct planning, "--links", TEXT, o.links)};

const struct command command_plan = {
    "plan",
    "plan RUN.yaml [--config-from FILE]... [--preset NAME] [--memory SIZE] [--adapter DIR] [--ranks N] [--set "
    "key=value]... [--plan PLAN.json] [--json] [--explain [all]] [-o PLAN.json]\n"
    "       plimsoll plan RUN.yaml --ranks 1,2,4,8 [--per-host N] [--links LOCAL,REMOTE] [--memory SIZE] [--json]\n"
    "       plimsoll plan RUN.yaml --compare | --frontier | --devices 8,16,24 [--images N] [--frames N] "
    "[--image-size WxH] [--masks N] [--json]\n"
    "       plimsoll plan RUN.yaml --longest [--memory SIZE | --devices 8,16,24] [--json]",
    "Finds the training step with the shortest predicted time that fits the memory budget, and prints\n"
    "where every byte goes, before anything runs. It searches combinations of gradient accumulation\n"
    "(memory.micro_batch), gradient checkpointing, also called activation checkpointing\n"
    "(memory.recompute), offload to host memory (memory.offload), the chunks of the LM head or mask\n"
    "decoder (memory.head_chunks), sharding among ranks (parallel.shard), and with memory.allow 8-bit\n"
    "Adam and 4-bit weights; mixed precision (memory.precision) is not chosen by the budget. All memory\n"
    "of a step is allocated once before the first step: a run that starts does not run out of memory\n"
    "later. Exit code 3: no plan fits.\n"
    CONFIG_FROM_HELP
    PRESET_HELP
    "  --memory SIZE    the budget, such as 24GiB: memory.budget\n"
    "  --ranks N        the plan of one of N ranks (data parallel), which need not be there:\n"
    "                   parallel.ranks\n"
    "  --ranks LIST     a table over numbers of ranks (1,2,4,8,64): what is divided among them, memory of\n"
    "                   a rank, bytes that it sends, step time, efficiency\n"
    "  --per-host N     ranks of one host: parallel.per_host. Fewer ranks than that are on one host\n"
    "  --links LIST     what connects ranks of a host, and hosts, such as nvlink4,ib-ndr: parallel.links\n"
    ADAPTER_HELP
    "  --explain        also shows the memory over the step, the largest tensors, all modules and the\n"
    "                   kernels, and says why `device: auto` is this device\n"
    "  --explain all    the same, then lists every op with its kernel, and every storage with its offset\n"
    "                   and lifetime\n"
    "  -o PLAN.json     writes the plan, for train --plan\n"
    "  --plan PLAN.json uses the techniques of a stored plan instead of searching\n"
    "  --compare        adds one technique at a time and prints memory and step time of each; then LoRA\n"
    "                   and 4-bit weights\n"
    "  --frontier       a table over budgets: micro-batch, samples/s and techniques of the best plan for\n"
    "                   each\n"
    "  --devices LIST   a table over GPUs, given by GiB of memory or by name (8,24,h200): memory, batch,\n"
    "                   speed and techniques for each. For a size, the figures of a GPU of about that\n"
    "                   memory are used, and named\n"
    "  --longest        the longest row of tokens (data.sequence) that fits the budget, or each GPU of\n"
    "                   --devices, in multiples of 64, with the host memory that it takes, and what 64\n"
    "                   tokens more need. memory.host_budget bounds host memory\n"
    "  --images N, --frames N   adds N images or frames to a language model's sequence: those of the\n"
    "                   model, with its vision tower (data.max_images, data.max_frames); of a model of\n"
    "                   text only 576 tokens each. With --devices N may be a list, such as 1,2,4: a row\n"
    "                   for each\n"
    "  --image-size WxH   the size of these images and frames, where their tokens follow from it\n"
    "                   (data.max_patches); default: 1024x1024\n"
    "  --masks N        masks per image: data.max_masks",
    .shared = OPT_RUN | OPT_MEMORY | OPT_PLAN | OPT_OUTPUT | OPT_JSON | OPT_RANKS, COMMAND_OPTIONS(OPTIONS),
    COMMAND_STATE(struct planning, .o = {0}), .run = plan};
