/*
 * train.c: `plimsoll train`: runs exactly the plan that `plan` prints.
 */
#include "train/train.h"

#include <math.h>

#include "calibrate/calibrate.h"
#include "cli/cli.h"
#include "report/worst.h"
#include "adapter/adapter.h"
#include "io/table.h"
#include "report/html.h"
#include "batch/feed.h"

/* Writes the command that resumes an interrupted run, quoted for a shell. */
static void resume_command(const struct options *o, struct text *out)
{
    if (o->world && o->world->n > 1) text_printf(out, "mpirun -np %d ", o->world->n);
    text_printf(out, "plimsoll train");
    if (o->run) text_quote(out, o->run);
    for (uint32_t i = 0; i < o->from.n; i++) text_printf(out, " --config-from"), text_quote(out, o->from.at[i]);
    if (o->memory) text_printf(out, " --memory"), text_quote(out, o->memory);
    for (uint32_t i = 0; i < o->set.n; i++) text_printf(out, " --set"), text_quote(out, o->set.at[i]);
    text_printf(out, o->resume_auto ? " --resume auto" : " --resume");
}

/* Predicts the worst masks again with the final model, in new memory: that of training is freed by
 * now. */
static int draw_worst(const struct config *run, const struct worst *worst, const struct train_summary *s,
                      struct error *e)
{
    struct config c = *run;
    struct dataset *set;
    char dir[4200];
    if (adapter_given(run)) config_use_adapter(&c, s->model);
    else c.model_path = (char *)s->model, c.model_preset = NULL;
    c.model_freeze.n = c.train_groups.n = c.train_no_decay.n = 0; /* nothing is trained */
    snprintf(dir, sizeof dir, "%s/worst", c.train_out);
    TRY(feed_open_dataset(&set, &c, FEED_VALIDATION, e));
    int rc = worst_images(&(struct worst_masks){&c, set, masks_feed.passes, worst, s->worst}, dir, e);
    dataset_close(set);
    return rc;
}

/* Draws the worst masks and writes the report. The run is saved already, so a failure here is only
 * a warning. */
static void write_report(const struct config *c, const struct worst *worst, const struct train_summary *s, bool json)
{
    struct error e;
    if (s->worst && draw_worst(c, worst, s, &e)) log_warn("the worst masks were not drawn: %s", e.text);
    if (report_html(c->train_out, &e)) log_warn("%s", e.text);
    else if (!json) printf("report: %s/report.html\n", c->train_out);
}

/* --- the command ------------------------------------------------------------------------------ */

static int train(struct options *o, struct error *e)
{
    struct ranks *ranks = o->world;
    const struct config *c = &o->config;
    const bool leads = !ranks || !ranks->rank;
    struct text command = {0};
    struct train_summary s;
    o->asks = true;
    TRY(options_configure(o, e));
    if (leads && !o->resume && c->model_preset) warn_random(c->model_preset);
    struct worst *worst = mem_alloc((size_t)(c->train_worst + 1) * sizeof *worst);
    struct rank_summary *each = ranks ? mem_alloc((size_t)ranks->n * sizeof *each) : NULL;
    resume_command(o, &command);
    int rc = train_run(c,
                       &(struct train_options){.plan = o->plan, .resume = o->resume, .resume_auto = o->resume_auto,
                                               .command = command.at, .signals = true, .progress = leads,
                                               .time_scale = leads ? time_scale : NULL, .ranks = ranks, .each = each,
                                               .worst = worst},
                       &s, e);
    if (!rc && leads) {
        train_summary_print(&s, each, ranks ? ranks->n : 0, o->json);
        write_report(c, worst, &s, o->json);
    } else if (rc == PL_NOFIT && o->json && leads) {
        PRINT_FACTS(2, FACT("fits", (bool)false), FACT_IF(s.refused_by, "refused_by", s.refused_by),
                    FACT("smallest_budget_bytes", s.smallest_budget), FACT("host_bytes", s.host_bytes));
    }
    text_free(&command);
    mem_free(worst);
    mem_free(each);
    return rc;
}

static const struct option OPTIONS[] = {{"--resume", OPTION_SWITCH, offsetof(struct options, resume), "auto"}};

const struct command command_train = {
    "train",
    "train RUN.yaml [--config-from FILE]... [--preset NAME] [--memory SIZE] [--plan PLAN.json] [--ranks N] "
    "[--resume [auto]] [--adapter DIR] [--set key=value]... [--json]",
    "Trains a model within a memory budget and writes the model folder to train.out/model.\n"
    CONFIG_FROM_HELP
    PRESET_HELP
    "  --memory SIZE    the budget, such as 24GiB: memory.budget; `plimsoll plan` shows the plan that\n"
    "                   fits\n"
    "  --plan PLAN.json uses the techniques of a stored plan instead of searching\n"
    "  --ranks N        data parallel training by N processes on this machine, as `mpirun -np N plimsoll\n"
    "                   train ...` (see docs/guides/ranks.md)\n"
    "  --adapter DIR    continues from a LoRA adapter, as PEFT or a run with an adapter saves it:\n"
    "                   adapter.path\n"
    "  --resume         continues an interrupted or killed run from its last checkpoint\n"
    "  --resume auto    the same where train.out has a checkpoint; else the run begins: one command for\n"
    "                   every job of a queue\n"
    "  --json           prints the summary as JSON",
    .ranks = true,
    .shared = OPT_RUN | OPT_MEMORY | OPT_PLAN | OPT_JSON | OPT_RANKS,
    COMMAND_OPTIONS(OPTIONS),
    .run = train};
