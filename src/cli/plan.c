/*
 * plan.c: `plimsoll plan`: finds and prints the memory plan of a run, before anything runs.
 */
#include "calibrate/calibrate.h"
#include "cli/plan_tables.h"
#include "plan/explain.h"
#include "io/file.h"
#include "batch/text_source.h"

static int write_plan(const struct planned *r, bool fits, const char *path, struct error *e)
{
    struct text text = {0};
    struct plan_note note = planned_note(r, fits);
    note.storages = true;
    plan_write(&r->plan, &r->graph, &note, &text);
    int rc = file_write_atomic(path, text.at, text.n, e);
    text_free(&text);
    return rc;
}

/* Returns the heading of the plan that is printed when none fits. */
static const char *refusal(const struct planned *r, const struct plan_options *o)
{
    const bool host = planned_exceeds_host(r);
    if (o->o.plan)
        return host ? "The given plan does not fit memory.host_budget" : "The given plan does not fit the budget";
    if (!host) return "Does not fit the budget. The smallest plan";
    return r->plan.settings.device.separate_memory
               ? "Does not fit memory.host_budget. The plan with the least host memory"
               : "Does not fit memory.host_budget. The plan with the smallest offload file";
}

static void print_host_budget(const struct planned *r, struct text *out)
{
    const bool cuda = r->kind == DEVICE_CUDA;
    char room[32];
    if (r->host_rule && r->host_budget <= 1)
        text_printf(out, "  there is no room for %s (memory.host_budget auto: %s)\n",
                    cuda ? "offloading to host memory" : "an offload file", r->host_rule);
    else if (r->host_rule)
        text_printf(out, "  %s is limited to %s (memory.host_budget auto: %s)\n",
                    cuda ? "host memory" : "the offload file", size_print(r->host_budget, room), r->host_rule);
    else if (r->host_budget)
        text_printf(out, "  %s is limited to %s (memory.host_budget)\n", cuda ? "host memory" : "the offload file",
                    size_print(r->host_budget, room));
    else if (cuda && r->config->memory_host_budget.kind == BUDGET_AUTO)
        text_printf(out, "  host memory is not limited: the GPU is not in this machine, so the host memory beside it "
                         "is unknown; memory.host_budget sets a limit\n");
}

/* Prints which keys decide the order of sums. Ranks and shares promise bits, for which sums must
 * have the same order. */
static void print_order(const struct planned *r, struct text *out)
{
    struct text keys = {0};
    if (r->shares > 1 && planned_print_order(r, &keys))
        text_printf(out,
                    "  the order of sums depends on %s, which the planner chose: set them to compare bits with other "
                    "ranks or another parallel.shard\n",
                    keys.at);
    text_free(&keys);
}

static void print_batch(const struct planned *r, struct text *out)
{
    struct text note = {0};
    if (planned_print_batch(r, &note)) text_printf(out, "  note: %s\n", note.at);
    text_free(&note);
}

static void show(const struct planned *r, const struct plan_options *o, bool fits)
{
    struct text text = {0};
    struct plan_note note = planned_note(r, fits);
    struct profile profile = r->profile;
    struct plan plan = r->plan; /* as it is shown */
    profile.factor = time_factor(r);
    if (profile.factor > 0) plan_scale_times(&plan, profile.factor);
    note.profile = &profile;
    if (o->o.json) plan_write(&plan, &r->graph, &note, &text);
    else if (!fits) text_printf(&text, "%s:\n\n", refusal(r, o));
    if (!o->o.json) plan_print(&plan, &r->graph, &profile, &text);
    if (!o->o.json && r->plan.placement.arena[SPACE_HOST]) print_host_budget(r, &text);
    if (!o->o.json) print_order(r, &text);
    if (!o->o.json) print_batch(r, &text);
    if (!o->o.json && r->adapted) text_printf(&text, "Adapter\n  %s\n", r->adapted);
    for (int i = 0; i < r->n_warnings && !o->o.json; i++) text_printf(&text, "  WARNING: %s\n", r->warning[i]);
    if (o->explain && !o->o.json) plan_explain(&plan, &r->graph, &text);
    if (o->explain && !o->explain_all && !o->o.json)
        text_printf(&text,
                    "--explain all lists every op with its kernel, and every storage with its offset and lifetime.\n");
    if (o->explain_all && !o->o.json) plan_explain_all(&plan, &r->graph, &text);
    fputs(text.at, stdout);
    text_free(&text);
}

/* Reads the configuration without --ranks, of which a table has several. */
static int read_options(const void *of, struct config *c, struct error *e)
{
    struct options o = *(const struct options *)of;
    if (o.ranks && strchr(o.ranks, ',')) o.ranks = NULL;
    return options_config(&o, c, e);
}

static int read_size(const char *text, struct plan_source *s, struct error *e)
{
    int n = 0;
    s->sized = text;
    s->width = s->height = IMAGE_SIDE;
    if (!text || (sscanf(text, "%5ux%5u%n", &s->width, &s->height, &n) == 2 && !text[n])) return PL_OK;
    return error_set(e, PL_USAGE, "--image-size %s: expected WIDTHxHEIGHT in pixels, such as 1024x768", text);
}

int plan_options_read(struct plan_options *o, bool several, struct error *e)
{
    struct plan_source *s = &o->source;
    *s = (struct plan_source){.read = read_options, .of = &o->o};
    if (!several) TRY(options_count("--images", o->images, 1, IMAGES_MOST, &s->images, e));
    if (!several) TRY(options_count("--frames", o->frames, 1, FRAMES_MOST, &s->frames, e));
    TRY(read_size(o->image_size, s, e));
    return options_count("--masks", o->masks, 1, 1024, &s->masks, e);
}

static int plan_one(const struct plan_options *o, struct error *e)
{
    struct config c;
    struct planned r = {0};
    const struct run_options options = {.plan = o->o.plan, .train = true, .describe = feed_describe, .ablation = true};
    TRY(plan_source_read(&o->source, &c, e));
    int rc = config_check(&c, CONFIG_NEEDS_MODEL, e);
    if (o->explain) planned_explain_device();
    if (!rc) {
        rc = planned_open(&r, &c, &options, e);
        if (r.has_graph && (!rc || rc == PL_NOFIT)) show(&r, o, !rc);
        if (!rc) text_warn_endless(&c, &r.model);
        if (!rc && o->o.output) rc = write_plan(&r, true, o->o.output, e);
        planned_close(&r);
    }
    config_free(&c);
    return rc;
}

static int plan(struct options *shared, struct error *e)
{
    struct plan_options *o = (struct plan_options *)shared;
    const bool ranks = shared->ranks && strchr(shared->ranks, ',');
    const int tables = o->compare + o->frontier + !!o->devices;
    if (ranks && (tables || shared->plan || shared->output || o->explain))
        return error_set(
            e, PL_USAGE,
            "--ranks with several numbers is a table of its own: leave out the other tables, --plan, --explain and -o");
    if (tables > 1)
        return error_set(e, PL_USAGE, "--compare, --frontier and --devices are separate tables: give one of them");
    if (tables && (shared->memory || shared->plan || shared->output || o->explain))
        return error_set(e, PL_USAGE, "a table holds many plans: leave out --memory, --plan, --explain and -o");
    TRY(plan_options_read(o, o->devices, e));
    return ranks         ? table_ranks(o, e)
           : o->compare  ? table_compare(o, e)
           : o->frontier ? table_frontier(o, e)
           : o->devices  ? table_devices(o, e)
                         : plan_one(o, e);
}

static const struct plan_options START;
static const struct option OPTIONS[] = {
    {"--explain", OPTION_SWITCH, offsetof(struct plan_options, explain), "all"},
    OPTION(struct plan_options, "--compare", SWITCH, compare),
    OPTION(struct plan_options, "--frontier", SWITCH, frontier),
    OPTION(struct plan_options, "--devices", TEXT, devices), OPTION(struct plan_options, "--images", TEXT, images),
    OPTION(struct plan_options, "--image-size", TEXT, image_size),
    OPTION(struct plan_options, "--frames", TEXT, frames), OPTION(struct plan_options, "--masks", TEXT, masks),
    OPTION(struct plan_options, "--per-host", TEXT, o.per_host), OPTION(struct plan_options, "--links", TEXT, o.links)};

const struct command command_plan = {
    "plan",
    "plan RUN.yaml [--config-from FILE]... [--preset NAME] [--memory SIZE] [--adapter DIR] [--ranks N] [--set "
    "key=value]... [--plan PLAN.json] [--json] [--explain [all]] [-o PLAN.json]\n"
    "       plimsoll plan RUN.yaml --ranks 1,2,4,8 [--per-host N] [--links LOCAL,REMOTE] [--memory SIZE] [--json]\n"
    "       plimsoll plan RUN.yaml --compare | --frontier | --devices 8,16,24 [--images N] [--frames N] "
    "[--image-size WxH] [--masks N] [--json]",
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
    "  --images N, --frames N   adds N images or frames to a language model's sequence: those of the\n"
    "                   model, with its vision tower (data.max_images, data.max_frames); of a model of\n"
    "                   text only 576 tokens each. With --devices N may be a list, such as 1,2,4: a row\n"
    "                   for each\n"
    "  --image-size WxH   the size of these images and frames, where their tokens follow from it\n"
    "                   (data.max_patches); default: 1024x1024\n"
    "  --masks N        masks per image: data.max_masks",
    .shared = OPT_RUN | OPT_MEMORY | OPT_PLAN | OPT_OUTPUT | OPT_JSON | OPT_RANKS, COMMAND_OPTIONS(OPTIONS),
    COMMAND_STATE(START), .run = plan};
