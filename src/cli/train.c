/*
 * train.c: `plimsoll train`: runs exactly the plan that `plan` prints.
 */
#include "train/train.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calibrate/time_factor.h"
#include "cli/ranks.h"
#include "report/worst.h"
#include "adapter/adapter.h"
#include "io/json.h"
#include "report/html.h"
#include "feed/feed.h"

/* What each rank has used. */
struct rank_list {
    const struct rank_summary *at;
    int n;               /* 0: this process is alone */
};

static int by_seconds(const void *a, const void *b)
{
    const double x = ((const struct rank_summary *)a)->seconds, y = ((const struct rank_summary *)b)->seconds;
    return x < y ? -1 : x > y;
}

/* Names a rank that was slower than the median by more than a fifth. */
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

static void put_ranks(struct json_writer *w, const struct rank_list *r)
{
    json_begin_list(w, "ranks");
    for (int i = 0; i < r->n; i++) {
        const struct rank_summary *x = &r->at[i];
        json_begin_map(w, NULL);
        json_put_string(w, "host", x->host);
        json_put_number(w, "seconds_per_step", x->seconds);
        json_put_uint(w, "allocated_bytes", x->arena_bytes);
        json_put_uint(w, "host_bytes", x->host_bytes);
        json_put_uint(w, "allocations_in_steps", x->allocations);
        json_put_uint(w, "resident_peak_bytes", x->resident_peak);
        json_put_int(w, "anonymous_growth_bytes", x->growth);
        json_end(w);
    }
    json_end(w);
}

static void print_summary(const struct train_summary *s, const struct rank_list *ranks, bool json)
{
    struct text out = {0};
    char arena[32], host[32], time[32], offloaded[64] = "", outside[64] = "", scale[96] = "", of[32] = "";
    if (!json && s->steps == s->first_step) {
        text_printf(&out, "no steps are left: all %lld are done already\nmodel: %s\n", (long long)s->steps, s->model);
    } else if (!json) {
        if (s->loss_scale > 0)
            snprintf(scale, sizeof scale, "loss scale %g, %llu step%s skipped\n", s->loss_scale,
                     (unsigned long long)s->skipped_steps, s->skipped_steps == 1 ? "" : "s");
        if (s->host_bytes)
            snprintf(offloaded, sizeof offloaded, ", %s %s", s->host_name, size_print(s->host_bytes, host));
        if (s->outside_bytes) snprintf(outside, sizeof outside, ", NCCL's own %s", size_print(s->outside_bytes, host));
        if (s->first_step) snprintf(of, sizeof of, "%lld of ", (long long)(s->steps - s->first_step));
        text_printf(&out, "%s%lld step%s, loss %.6g, %s, %.*f %s/s, arena %s%s%s\n%s", of, (long long)s->steps,
                    s->steps == 1 ? "" : "s", s->loss, duration_print(s->seconds, time), s->unit[0] == 't' ? 0 : 2,
                    s->units_per_second, s->unit, size_print(s->arena_bytes, arena), offloaded, outside, scale);
        print_slowest(ranks, &out);
        text_printf(&out, "model: %s\n", s->model);
    } else {
        struct json_writer w = {.out = &out, .indent = 2};
        json_begin_map(&w, NULL);
        json_put_int(&w, "steps", s->steps);
        json_put_int(&w, "first_step", s->first_step);
        json_put_number(&w, "loss", s->loss);
        json_put_number(&w, "eval_loss", s->eval_loss);
        if (s->prompts) {
            json_put_number(&w, "eval_exact_match", s->answers.exact);
            json_put_number(&w, "eval_token_f1", s->answers.f1);
            json_put_number(&w, "eval_bleu", s->answers.bleu);
            json_put_number(&w, "eval_rouge_l", s->answers.rouge_l);
            json_put_uint(&w, "eval_prompts", s->prompts);
        }
        json_put_number(&w, "best_eval_loss", s->best_loss);
        json_put_number(&w, "best_step", s->best_step < 0 ? NAN : (double)s->best_step);
        json_put_number(&w, "seconds", s->seconds);
        json_put_number(&w, "step_seconds", s->step_seconds);
        json_put_number(&w, !strcmp(s->unit, "tokens") ? "tokens_per_second" : "images_per_second",
                        s->units_per_second);
        if (s->loss_scale > 0) {
            json_put_number(&w, "loss_scale", s->loss_scale);
            json_put_uint(&w, "skipped_steps", s->skipped_steps);
        }
        if (s->broken_samples) json_put_uint(&w, "broken_samples", s->broken_samples);
        if (s->small_masks) json_put_uint(&w, "too_small_masks", s->small_masks);
        json_put_uint(&w, "arena_bytes", s->arena_bytes);
        json_put_uint(&w, "allocated_bytes", s->allocated_bytes);
        json_put_uint(&w, "host_bytes", s->host_bytes);
        if (s->outside_bytes) json_put_uint(&w, "outside_bytes", s->outside_bytes);
        json_put_uint(&w, "allocations_in_steps", s->allocations);
        if (ranks->n) put_ranks(&w, ranks);
        json_put_string(&w, "model", s->model);
        json_end(&w);
        text_printf(&out, "\n");
    }
    fputs(out.at, stdout);
    text_free(&out);
}

/* The JSON of a run that does not fit. */
static void print_nofit(const struct train_summary *s)
{
    struct text out = {0};
    struct json_writer w = {.out = &out, .indent = 2};
    json_begin_map(&w, NULL);
    json_put_bool(&w, "fits", false);
    if (s->refused_by) json_put_string(&w, "refused_by", s->refused_by);
    json_put_uint(&w, "smallest_budget_bytes", s->smallest_budget);
    json_put_uint(&w, "host_bytes", s->host_bytes);
    json_end(&w);
    printf("%s\n", out.at);
    text_free(&out);
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

/* The command that resumes an interrupted run, quoted for a shell. */
static void resume_command(const struct options *o, const struct ranks *ranks, struct text *out)
{
    if (ranks && ranks->n > 1) text_printf(out, "mpirun -np %d ", ranks->n);
    text_printf(out, "plimsoll train");
    if (o->run) put_word(out, o->run);
    for (int i = 0; i < o->n_from; i++) text_printf(out, " --config-from"), put_word(out, o->from[i]);
    if (o->memory) text_printf(out, " --memory"), put_word(out, o->memory);
    for (int i = 0; i < o->n_set; i++) text_printf(out, " --set"), put_word(out, o->set[i]);
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
    int rc = feed_open_dataset(&set, &c, FEED_VALIDATION, e);
    if (rc) return rc;
    rc = worst_images(&(struct worst_masks){&c, set, masks_feed.passes, worst, s->worst}, dir, e);
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

static int train_as(const struct options *o, struct ranks *ranks, struct error *e)
{
    struct config c;
    struct text command = {0};
    const bool leads = !ranks || !ranks->rank;
    int rc = ranks_configure(o, ranks, &c, e);
    if (!rc) {
        struct train_summary s;
        struct worst *worst = mem_alloc((size_t)(c.train_worst + 1) * sizeof *worst);
        struct rank_summary *each = ranks ? mem_alloc((size_t)ranks->n * sizeof *each) : NULL;
        resume_command(o, ranks, &command);
        rc = train_run(&c,
                       &(struct train_options){.plan = o->plan,
                                               .resume = o->resume,
                                               .resume_auto = o->resume_auto,
                                               .command = command.at,
                                               .signals = true,
                                               .progress = leads,
                                               .time_scale = leads ? time_scale : NULL,
                                               .ranks = ranks,
                                               .each = each,
                                               .worst = worst},
                       &s, e);
        text_free(&command);
        if (!rc && leads) print_summary(&s, &(struct rank_list){each, ranks ? ranks->n : 0}, o->json);
        if (!rc && leads) write_report(&c, worst, &s, o->json);
        else if (rc == PL_NOFIT && o->json && leads) print_nofit(&s);
        mem_free(worst);
        mem_free(each);
        config_free(&c);
    }
    return rc;
}

static int train(int argc, char **argv, struct error *e)
{
    struct options o;
    int rc = options_parse(&o, OPT_RUN | OPT_MEMORY | OPT_PLAN | OPT_RESUME | OPT_JSON | OPT_RANKS, argc, argv, e);
    if (rc) return rc;
    o.asks = true;
    if (o.help) print_help(&command_train);
    else rc = ranks_run(&command_train, &o, argc, argv, train_as, e);
    options_free(&o);
    return rc;
}

const struct command command_train =
    {"train",
     "train RUN.yaml [--config-from FILE]... [--preset NAME] [--memory SIZE] [--plan PLAN.json] [--ranks N] [--resume "
     "[auto]] [--adapter DIR] [--set key=value]... [--json]",
     "Trains a model within a memory budget and writes the model folder to train.out/model.\n" CONFIG_FROM_HELP
         PRESET_HELP
     "  --memory SIZE    the budget, such as 24GiB: memory.budget; `plimsoll plan` shows the plan that fits\n"
     "  --plan PLAN.json uses the techniques of a stored plan instead of searching\n"
     "  --ranks N        data parallel training by N processes on this machine, as `mpirun -np N plimsoll train ...` "
     "(see docs/guides/ranks.md)\n"
     "  --adapter DIR    continues from a LoRA adapter, as PEFT or a run with an adapter saves it: adapter.path\n"
     "  --resume         continues an interrupted or killed run from its last checkpoint\n"
     "  --resume auto    the same where train.out has a checkpoint; else the run begins: one command for every job of "
     "a queue\n"
     "  --json           prints the summary as JSON",
     train, .ranks = true};
