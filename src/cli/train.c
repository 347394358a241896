/*
 * train.c: `plimsoll train`: runs exactly the plan that `plan` prints.
 */
#include "train/train.h"

#include <math.h>

#include "calibrate/calibrate.h"
#include "cli/cli.h"
#include "report/worst.h"
#include "adapter/adapter.h"
#include "dist/agree.h"
#include "io/table.h"
#include "report/html.h"
#include "batch/feed.h"

/* What each rank has used. */
struct rank_list {
    const struct rank_summary *at;
    int n;               /* 0: this is the only process */
};

static int by_seconds(const void *a, const void *b)
{
    const double x = ((const struct rank_summary *)a)->seconds, y = ((const struct rank_summary *)b)->seconds;
    return x < y ? -1 : x > y;
}

/* Prints which rank was slower than the median by more than a fifth. */
static void print_slowest(const struct rank_list *r, struct text *out)
{
    char seconds[32], others[32];
    int slowest = 0;
    if (r->n < 2) return;
    struct rank_summary *sorted = mem_copy(r->at, (size_t)r->n * sizeof *sorted);
    qsort(sorted, (size_t)r->n, sizeof *sorted, by_seconds);
    const double median = sorted[(r->n - 1) / 2].seconds;
    mem_free(sorted);
    for (int i = 1; i < r->n; i++)
        if (r->at[i].seconds > r->at[slowest].seconds) slowest = i;
    text_printf(out, "%d ranks", r->n);
    if (r->at[slowest].seconds > 1.2 * median)
        text_printf(out, ": rank %d on %s was the slowest, with %s of its own work a step; the median rank had %s",
                    slowest, r->at[slowest].host, duration_print(r->at[slowest].seconds, seconds),
                    duration_print(median, others));
    text_printf(out, "\n");
}

static void print_text(const struct train_summary *s, const struct rank_list *ranks)
{
    struct text out = {0};
    char size[32], time[32];
    if (s->steps == s->first_step) {
        text_printf(&out, "no steps are left: all %lld are done already\n", (long long)s->steps);
    } else {
        if (s->first_step) text_printf(&out, "%lld of ", (long long)(s->steps - s->first_step));
        text_printf(&out, "%lld step%s, loss %.6g, %s, %.*f %s/s, ", (long long)s->steps, s->steps == 1 ? "" : "s",
                    s->loss, duration_print(s->seconds, time), s->unit[0] == 't' ? 0 : 2, s->units_per_second, s->unit);
        text_printf(&out, "arena %s", size_print(s->arena_bytes, size));
        if (s->host_bytes) text_printf(&out, ", %s %s", s->host_name, size_print(s->host_bytes, size));
        if (s->outside_bytes) text_printf(&out, ", NCCL's own %s", size_print(s->outside_bytes, size));
        text_printf(&out, "\n");
        if (s->loss_scale > 0)
            text_printf(&out, "loss scale %g, %llu step%s skipped\n", s->loss_scale,
                        (unsigned long long)s->skipped_steps, s->skipped_steps == 1 ? "" : "s");
        print_slowest(ranks, &out);
    }
    printf("%smodel: %s\n", out.at, s->model);
    text_free(&out);
}

static const struct report_column RANKS[] = {
    {"host"}, {"seconds_per_step"}, {"allocated_bytes"}, {"host_bytes"}, {"allocations_in_steps"},
    {"resident_peak_bytes"}, {"anonymous_growth_bytes"}};

static void print_json(const struct train_summary *s, const struct rank_list *r)
{
    struct report_table ranks = REPORT_TABLE(RANKS);
    const bool asked = s->prompts, scaled = s->loss_scale > 0;
    for (int i = 0; i < r->n; i++) {
        const struct rank_summary *x = &r->at[i];
        TABLE_ADD(&ranks, CELL((const char *)x->host), CELL(x->seconds), CELL(x->arena_bytes), CELL(x->host_bytes),
                  CELL(x->allocations), CELL(x->resident_peak), CELL(x->growth));
    }
    PRINT_FACTS(2, FACT("steps", s->steps), FACT("first_step", s->first_step), FACT("loss", s->loss),
                FACT("eval_loss", s->eval_loss), FACT_IF(asked, "eval_exact_match", s->answers.exact),
                FACT_IF(asked, "eval_token_f1", s->answers.f1), FACT_IF(asked, "eval_bleu", s->answers.bleu),
                FACT_IF(asked, "eval_rouge_l", s->answers.rouge_l), FACT_IF(asked, "eval_prompts", s->prompts),
                FACT("best_eval_loss", s->best_loss), FACT("best_step", s->best_step < 0 ? NAN : (double)s->best_step),
                FACT("seconds", s->seconds), FACT("step_seconds", s->step_seconds),
                FACT(strcmp(s->unit, "tokens") ? "images_per_second" : "tokens_per_second", s->units_per_second),
                FACT_IF(scaled, "loss_scale", s->loss_scale), FACT_IF(scaled, "skipped_steps", s->skipped_steps),
                FACT_IF(s->broken_samples, "broken_samples", s->broken_samples),
                FACT_IF(s->small_masks, "too_small_masks", s->small_masks), FACT("arena_bytes", s->arena_bytes),
                FACT("allocated_bytes", s->allocated_bytes), FACT("host_bytes", s->host_bytes),
                FACT_IF(s->outside_bytes, "outside_bytes", s->outside_bytes),
                FACT("allocations_in_steps", s->allocations), FACT_TABLE_IF(r->n, "ranks", &ranks),
                FACT("model", (const char *)s->model));
    table_free(&ranks);
}

/* Appends a word of a command, quoted for a shell. */
static void put_word(struct text *out, const char *word)
{
    if (!word[strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:=,+-")]) {
        text_printf(out, " %s", word);
        return;
    }
    text_printf(out, " '");
    for (; *word; word++) text_printf(out, *word == '\'' ? "'\\''" : "%c", *word);
    text_printf(out, "'");
}

/* Writes the command that resumes an interrupted run, quoted for a shell. */
static void resume_command(const struct options *o, struct text *out)
{
    if (o->world && o->world->n > 1) text_printf(out, "mpirun -np %d ", o->world->n);
    text_printf(out, "plimsoll train");
    if (o->run) put_word(out, o->run);
    for (uint32_t i = 0; i < o->from.n; i++) text_printf(out, " --config-from"), put_word(out, o->from.at[i]);
    if (o->memory) text_printf(out, " --memory"), put_word(out, o->memory);
    for (uint32_t i = 0; i < o->set.n; i++) text_printf(out, " --set"), put_word(out, o->set.at[i]);
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
        (o->json ? print_json : print_text)(&s, &(struct rank_list){each, ranks ? ranks->n : 0});
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
