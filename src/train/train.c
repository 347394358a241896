/*
 * train.c: the training loop, from the first step to the model folder.
 *
 *     samples at positions p .. p+E-1  ->  inputs  ->  step and update are submitted
 *     the previous step is retired: loss checked  ->  metrics line  ->  checkpoint if due
 *
 * A GPU runs a step while the host processes the results of the previous one (ticket.h): the
 * submitted steps are then one ahead of `state`, which describes the retired steps. No step is
 * submitted beyond one that is followed by an evaluation or a checkpoint, because those read its
 * weights. On the CPU every step is retired at once.
 *
 * Everything that a step needs is allocated before the first one. trainer.h lists the files of the
 * loop: train_begin.c, train_step.c, train_after.c and their parts.
 */
#include "train/trainer.h"

#include <inttypes.h>
#include <math.h>

#include "base/system.h"
#include "batch/batch_plan.h"
#include "io/table.h"

/* Bytes for the lists and headers of a save, allocated before the first step. */
enum { SAVE_POOL = 1 << 20, SAVE_POOL_PER_WEIGHT = 4096 };

/* Reports whether the next step may be submitted before the last one is retired. */
static bool may_overlap(const struct trainer *t)
{
    const uint64_t step = trainer_steps_submitted(t);
    return tickets_overlap(&t->steps.tickets) && step < t->total && !trainer_evaluation_due(t, step) &&
           !trainer_save_due(t, step);
}

/* Retires steps until `left` are in flight, and processes the results of each. */
static int retire_steps(struct trainer *t, uint32_t left, struct train_event *v, struct error *e)
{
    while (tickets_in_flight(&t->steps.tickets) > left) {
        TRY(trainer_retire_step(t, v, e));
        TRY(trainer_after_step(t, v, e));
    }
    return PL_OK;
}

/* Submits one more step and retires earlier ones. An error of an earlier step is reported first. */
static int submit_and_retire(struct trainer *t, struct train_event *v, struct error *e)
{
    struct error failed;
    int submit_rc = trainer_submit_step(t, &failed);
    int rc = retire_steps(t, !submit_rc && may_overlap(t) ? 1 : 0, v, e);
    if (rc || !submit_rc) return rc;
    *e = failed;
    return submit_rc;
}

/* Evaluates mask models before the first step too, as the baseline. */
static int evaluate_baseline(struct trainer *t, struct error *e)
{
    struct scored found;
    if (!t->has_scores || t->state.step || !t->c->train_eval_every) return PL_OK;
    return trainer_evaluate(t, &found, e);
}

/* Finds the worst masks of the last evaluation again, for a run that was killed after its last
 * checkpoint and may not have drawn them. */
static int find_worst_again(struct trainer *t, struct error *e)
{
    struct scored found;
    if (!t->has_scores || !t->o->worst || t->state.step < t->total) return PL_OK;
    return trainer_score(t, &found, e);
}

static int interrupted(const struct trainer *t, const char *command, struct error *e)
{
    return error_set(e, t->o->signals ? PL_FAIL : PL_STOPPED,
                     "stopped by %s after step %" PRIu64 " of %" PRIu64 "; saved. Resume with: %s",
                     t->stopped          ? "the step callback"
                     : t->o->signals     ? signals_name(signals_received())
                                         : "pl_cancel",
                     t->state.step, t->total, command);
}

static int loop(struct trainer *t, const struct train_options *o, struct train_summary *out, struct error *e)
{
    struct train_event v = {.loss = NAN};
    double begun = clock_seconds();
    uint64_t allocations = 0;
    char left[512];
    int rc = PL_OK;
    out->first_step = (int64_t)t->state.step;
    mem_pool_create(SAVE_POOL + t->run.planned.graph.params.n * SAVE_POOL_PER_WEIGHT + t->answering.pool);
    t->has_pool = true;
    if (t->validation.ops) {
        t->has_retrieval = retrieval_open(&t->retrieval, &t->run, &t->validation, PROGRAM_EVAL);
        t->has_scores = mask_scores_open(&t->scores, &t->run, &t->validation, PROGRAM_EVAL,
                                         o->worst ? (uint32_t)t->c->train_worst : 0);
    }
    trainer_open_parts(t);
    if (t->c->train_best && t->validation.ops && !t->has_scores) {
        error_set(e, PL_USAGE, "train.best compares the Dice or IoU of masks, and a %s predicts none; expected loss",
                  t->run.planned.model.family->model_type);
        rc = config_at_key(t->c, KEY_train_best, e);
    }
    if (!rc) rc = evaluate_baseline(t, e);
    if (!rc && out->first_step) rc = find_worst_again(t, e);
    t->progress = (struct progress){.what = "training", .unit = "steps", .first = t->state.step, .total = t->total,
                                    .begun = clock_seconds()};
    if (t->scale > 0 && t->state.step < t->total)
        progress_expect(&t->progress, t->scale * t->run.planned.plan.seconds * (double)(t->total - t->state.step));
    while (t->state.step < t->total && !rc && !trainer_stopping(t)) {
        if (!allocations) allocations = mem_allocations();
        rc = submit_and_retire(t, &v, e);
    }
    if (!rc) rc = retire_steps(t, 0, &v, e);
    progress_keep();
    if (rc) return rc;
    if (t->data.ops && feed_print_left(&t->data, left, sizeof left)) log_note("%s", left);
    if (t->state.step < t->total) {
        /* A signal between two steps, or before the first one, was not followed by a save. */
        if (t->saved != (int64_t)t->state.step && (rc = trainer_save(t, e))) return rc;
        return interrupted(t, o->command, e);
    }
    out->steps = (int64_t)t->state.step;
    out->loss = v.loss;
    out->seconds = clock_seconds() - begun;
    out->step_seconds = t->seconds;
    out->units_per_second = t->seconds > 0 ? t->units / t->seconds : 0;
    out->unit = trainer_unit(t);
    out->broken_samples = t->state.broken;
    out->small_masks = t->data.left.small;
    out->loss_scale = t->state.scale;
    out->skipped_steps = t->state.skipped;
    out->allocations = allocations ? mem_allocations() - allocations : 0;
    if (t->has_scores && o->worst && contents_of(&t->run.planned.batch)->prompts.points) { /* which are drawn too */
        out->worst = t->scores.scores.n_worst;
        memcpy(o->worst, t->scores.scores.worst, out->worst * sizeof *o->worst);
    }
    return trainer_publish(t, e);
}

/* Gathers what each rank has used. */
static int gather_ranks(const struct trainer *t, const struct train_options *o, const struct train_summary *s,
                        struct error *e)
{
    struct system_process m;
    system_process(&m);
    struct rank_summary mine = {.seconds = t->busy_sum / (double)max_i64(1, s->steps - s->first_step),
                                .arena_bytes = s->allocated_bytes, .host_bytes = s->host_bytes,
                                .allocations = s->allocations, .resident_peak = m.resident_peak, .growth = t->growth};
    snprintf(mine.host, sizeof mine.host, "%s", o->ranks->host);
    return o->ranks->gather(o->ranks, &mine, o->each, sizeof mine, e);
}

/* Removes the files of a new run that did no step, so that the user can fix the error and repeat
 * the same command. */
static void remove_empty_run(struct trainer *t)
{
    if (!t->has_folder || t->resumes || t->state.step || t->saved >= 0) return;
    events_abandon(&t->events);
    folder_abandon(&t->folder);
    t->has_folder = false;
}

int train_run(const struct config *c, const struct train_options *o, struct train_summary *out, struct error *e)
{
    struct trainer *t = trainer_open(c, o);
    *out = (struct train_summary){.eval_loss = NAN};
    if (o->signals) signals_install();
    int rc = trainer_begin(t, o, e);
    if (rc == PL_NOFIT && t->has_run) {
        out->smallest_budget = t->run.planned.plan.smallest;
        out->host_bytes = t->run.planned.plan.placement.arena[SPACE_HOST];
        out->refused_by = planned_note(&t->run.planned, false).refused_by;
    }
    if (!rc) {
        out->arena_bytes = plan_arena(&t->run.planned.plan);
        out->allocated_bytes = t->run.device.bytes[SPACE_DEVICE];
        out->host_bytes = t->run.device.bytes[SPACE_HOST];
        out->host_name = plan_host_name(&t->run.planned.plan);
        out->outside_bytes = t->run.device.outside_bytes;
        snprintf(out->model, sizeof out->model, "%s/model", c->train_out);
        rc = loop(t, o, out, e);
        out->eval_loss = t->eval;
        out->prompts = t->answering.all.answers;
        out->answers = text_scores_result(&t->answering.all);
        out->best_step = t->best.step;
        out->best_loss = isfinite(t->best.loss) ? t->best.loss : NAN;
    }
    if (o->ranks) o->ranks->patient = true; /* rank 0 writes the model */
    rc = agree_on(o->ranks, rc, e);
    if (!rc && o->ranks && o->each) rc = gather_ranks(t, o, out, e);
    if (rc) remove_empty_run(t);
    trainer_close(t);
    return rc;
}

/* --- the summary ---------------------------------------------------------------------------- */

static int by_seconds(const void *a, const void *b)
{
    const double x = ((const struct rank_summary *)a)->seconds, y = ((const struct rank_summary *)b)->seconds;
    return x < y ? -1 : x > y;
}

/* Prints which rank was slower than the median by more than a fifth. */
static void print_slowest(const struct rank_summary *at, int n, struct text *out)
{
    char seconds[32], others[32];
    int slowest = 0;
    if (n < 2) return;
    struct rank_summary *sorted = mem_copy(at, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, by_seconds);
    const double median = sorted[(n - 1) / 2].seconds;
    mem_free(sorted);
    for (int i = 1; i < n; i++)
        if (at[i].seconds > at[slowest].seconds) slowest = i;
    text_printf(out, "%d ranks", n);
    if (at[slowest].seconds > 1.2 * median)
        text_printf(out, ": rank %d on %s was the slowest, with %s of its own work a step; the median rank had %s",
                    slowest, at[slowest].host, duration_print(at[slowest].seconds, seconds),
                    duration_print(median, others));
    text_printf(out, "\n");
}

static void print_text(const struct train_summary *s, const struct rank_summary *each, int ranks)
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
        print_slowest(each, ranks, &out);
    }
    printf("%smodel: %s\n", out.at, s->model);
    text_free(&out);
}

static const struct report_column RANKS[] = {
    {"host"}, {"seconds_per_step"}, {"allocated_bytes"}, {"host_bytes"}, {"allocations_in_steps"},
    {"resident_peak_bytes"}, {"anonymous_growth_bytes"}};

static void print_json(const struct train_summary *s, const struct rank_summary *each, int n)
{
    struct report_table ranks = REPORT_TABLE(RANKS);
    const bool asked = s->prompts, scaled = s->loss_scale > 0;
    for (const struct rank_summary *x = each; x < each + n; x++)
        TABLE_ADD(&ranks, CELL((const char *)x->host), CELL(x->seconds), CELL(x->arena_bytes), CELL(x->host_bytes),
                  CELL(x->allocations), CELL(x->resident_peak), CELL(x->growth));
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
                FACT("allocations_in_steps", s->allocations), FACT_TABLE_IF(n, "ranks", &ranks),
                FACT("model", (const char *)s->model));
    table_free(&ranks);
}

void train_summary_print(const struct train_summary *s, const struct rank_summary *each, int ranks, bool json)
{
    (json ? print_json : print_text)(s, each, ranks);
}
