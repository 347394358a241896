/*
 * train_evaluate.c: the evaluation within a training run.
 *
 * It computes the mean loss over the whole of data.validation, per token or mask: a line in the log
 * and one in metrics.jsonl. For masks also IoU and Dice, by prompt and category in eval.txt and
 * eval.csv. For conversations also answers, if they are asked for (train_answer.c). The program
 * reads weights and writes its own transient tensors, and the next step writes its own step block
 * and batch: the evaluation does not change the state of training.
 */
#include "train/trainer.h"

#include <inttypes.h>
#include <math.h>

#include "batch/batch_plan.h"
#include "infer/loss_sums.h"

/* Adds the loss of the batch that begins with sample `at`. */
static int evaluate_batch(struct trainer *t, int64_t at, struct loss_sums *sums, struct error *e)
{
    struct step_block b = trainer_step_block(t);
    const int64_t B = t->run.planned.plan.settings.micro_batch, n = (int64_t)t->validation.samples;
    struct feed_batch batch;
    float l = 0;
    b.rng_step = 0; /* the points of later rounds are the same in every evaluation */
    int rc = feed_put(&t->validation, &(struct batch_target){0}, (uint64_t)at, min_i64(B, n - at), B, &batch, e);
    /* no rank enters the program, in which ranks meet, without the others */
    if (settings_meet(&t->run.planned.plan.settings)) rc = agree_on(t->o->ranks, rc, e);
    if (!rc) rc = loss_sums_add(sums, &t->run, PROGRAM_EVAL, t->eval_loss, b, &t->validation, &batch, &l, e);
    if (!rc && !isfinite(l))
        rc = error_set(e, PL_FAIL,
                       "step %" PRIu64 ": the evaluation loss is %g in samples %" PRId64 " to %" PRId64
                       " of data.validation; lower train.learning_rate, or resume from an earlier checkpoint",
                       t->state.step, l, at, min_i64(at + B, n) - 1);
    return rc;
}

/* Runs one pass of an evaluation. */
static int evaluate_pass(struct trainer *t, struct progress *p, struct loss_sums *sums, struct error *e)
{
    int64_t B = t->run.planned.plan.settings.micro_batch, n = (int64_t)t->validation.samples;
    for (int64_t at = 0; at < n; at += B) {
        TRY(evaluate_batch(t, at, sums, e));
        if (t->has_scores) TRY(mask_scores_add(&t->scores, &t->run, &t->validation, e));
        if (t->has_retrieval) TRY(retrieval_add(&t->retrieval, &t->run, &t->validation, e));
        if (t->o->progress) progress_add(p, 1);
    }
    return PL_OK;
}

/* --- with other ranks ----------------------------------------------------------------------- */

/* What a rank found in a batch. */
struct eval_part {
    struct loss_sums sums;
    int64_t failed;
    uint64_t queries, right; /* retrieval */
    double chance;
    struct feed_left left;   /* of the rank's batches of the pass so far */
    uint32_t n_records;
    struct mask_record records[];
};

static size_t part_bytes(const struct trainer *t)
{
    return (size_t)align_up(sizeof(struct eval_part) +
                                (t->has_scores ? t->scores.most_records : 0) * sizeof(struct mask_record),
                            64);
}
/* Returns the part of rank i; with i the number of ranks, this rank's before they are gathered. */
static struct eval_part *part_of(const struct trainer *t, int i)
{
    return (struct eval_part *)(void *)((char *)t->parts + (size_t)i * part_bytes(t));
}

void trainer_open_parts(struct trainer *t)
{
    if (t->o->ranks) t->parts = mem_alloc((size_t)(t->o->ranks->n + 1) * part_bytes(t));
}

static int list_retrieval(struct trainer *t, struct eval_part *mine, struct error *e)
{
    const struct retrieval all = t->retrieval;
    retrieval_reset(&t->retrieval);
    int rc = retrieval_add(&t->retrieval, &t->run, &t->validation, e);
    mine->queries = t->retrieval.queries, mine->right = t->retrieval.right, mine->chance = t->retrieval.chance;
    t->retrieval = all;
    return rc;
}

/* Evaluates this rank's batch of those that begin with sample `first`. It may have none. With
 * weights in shards all ranks run the program together: one that has no batch runs another's. */
static int evaluate_own(struct trainer *t, int64_t first, struct eval_part *mine, struct error *e)
{
    const int64_t at = first + t->run.planned.plan.settings.micro_batch * planned_data_place(&t->run.planned);
    const struct feed_left left = t->validation.left;
    struct loss_sums ignored = {0};
    *mine = (struct eval_part){0};
    int rc = PL_OK;
    if (at >= (int64_t)t->validation.samples) {
        if (settings_meet(&t->run.planned.plan.settings)) rc = evaluate_batch(t, first, &ignored, e);
        t->validation.left = left;
    } else {
        rc = evaluate_batch(t, at, &mine->sums, e);
        if (!rc && t->has_scores) rc = mask_scores_list(&t->scores, &t->run, &t->validation, e);
        if (!rc && t->has_retrieval) rc = list_retrieval(t, mine, e);
        if (!rc && t->has_scores) {
            mine->n_records = t->scores.n_records;
            memcpy(mine->records, t->scores.records, t->scores.n_records * sizeof *mine->records);
        }
    }
    mine->left = t->validation.left;
    mine->failed = rc;
    return rc;
}

static void take_part(struct trainer *t, const struct eval_part *x, struct loss_sums *sums)
{
    for (int k = 0; k < STEP_COUNTS; k++) {
        sums->sum[k] += x->sums.sum[k];
        sums->count[k] += x->sums.count[k];
    }
    t->retrieval.queries += x->queries;
    t->retrieval.right += x->right;
    t->retrieval.chance += x->chance;
    if (t->has_scores) mask_scores_take(&t->scores, x->records, x->n_records);
}

/* Returns the part of a rank with batches of its own: the i-th one. */
static const struct eval_part *own_part(const struct trainer *t, int i)
{
    return part_of(t, mesh_rank(planned_mesh(&t->run.planned), 0, AXIS_DATA, i));
}

/* Sums what all ranks omitted from the pass. */
static void add_left(struct trainer *t)
{
    struct feed_left *to = &t->validation.left;
    *to = (struct feed_left){.cells = part_of(t, 0)->left.cells};
    for (int i = 0; i < planned_data_ranks(&t->run.planned); i++) {
        const struct feed_left *x = &own_part(t, i)->left;
        to->images += x->images;
        to->small += x->small;
        to->malformed += x->malformed;
        to->without += x->without;
        to->queries += x->queries;
    }
}

/* Runs one pass of an evaluation on all ranks: batch j is evaluated by rank j modulo the number of
 * those that have other samples, with the ranks that compute together with it. All ranks add in the
 * order of batches, which gives the bits of one rank. */
static int evaluate_together(struct trainer *t, struct progress *p, struct loss_sums *sums, struct error *e)
{
    struct ranks *r = t->o->ranks;
    const int64_t B = t->run.planned.plan.settings.micro_batch, n = (int64_t)t->validation.samples;
    const int groups = planned_data_ranks(&t->run.planned);
    t->validation.left = (struct feed_left){0};
    for (int64_t at = 0; at < n; at += B * groups) {
        struct error waiting = {0};
        const int rc = evaluate_own(t, at, part_of(t, r->n), e);
        if (rc && r->ended) return rc; /* all ranks know */
        if (r->gather(r, part_of(t, r->n), t->parts, part_bytes(t), &waiting)) r->abort(r, PL_FAIL, waiting.text);
        for (int i = 0; i < r->n; i++)
            if (part_of(t, i)->failed) return agree_on(r, rc, e);
        for (int i = 0; i < groups; i++) take_part(t, own_part(t, i), sums);
        if (t->o->progress) progress_add(p, (uint64_t)min_i64(groups, ceil_div(n - at, B)));
    }
    add_left(t);
    return PL_OK;
}

/* Evaluates the whole validation dataset in all passes. */
int trainer_score(struct trainer *t, struct scored *out, struct error *e)
{
    struct progress p = {0};
    struct loss_sums sums = {0};
    double loss;
    int rc = PL_OK;
    if (t->o->progress)
        progress_begin(&p, "evaluating", "batches",
                       (uint64_t)(feed_passes(&t->validation) *
                                  ceil_div((int64_t)t->validation.samples, t->run.planned.plan.settings.micro_batch)));
    if (t->has_scores) scores_reset(&t->scores.scores);
    if (t->has_retrieval) retrieval_reset(&t->retrieval);
    for (int pass = 0; pass < feed_passes(&t->validation) && !rc; pass++) {
        feed_set_pass(&t->validation, pass);
        rc = t->o->ranks ? evaluate_together(t, &p, &sums, e) : evaluate_pass(t, &p, &sums, e);
    }
    if (!loss_sums_mean(&sums, &loss) && !rc) rc = feed_empty(&t->validation, e);
    *out = (struct scored){.step = (int64_t)t->state.step, .samples = (int64_t)t->validation.samples, .loss = loss,
                               .iou = NAN, .dice = NAN};
    if (t->has_scores) {
        const struct score all = mask_scores_of(&t->scores, false);
        out->iou = score_iou(&all);
        out->dice = score_dice(&all);
    }
    return rc;
}

/* Writes the scores by prompt and category beside the metrics: eval.txt, eval.csv. */
static int write_scores(struct trainer *t, struct error *e)
{
    struct text table = {0}, csv = {0};
    mem_pool_enter();
    text_printf(&table, "step %" PRIu64 "\n", t->state.step);
    scores_print(&t->scores.scores, &table);
    scores_csv(&t->scores.scores, &csv);
    int rc = folder_write(&t->folder, "eval.txt", table.at, table.n, e);
    if (!rc) rc = folder_write(&t->folder, "eval.csv", csv.at, csv.n, e);
    text_free(&table);
    text_free(&csv);
    mem_pool_leave();
    return rc;
}

/* Prints the scores of answers as members of the evaluation's line in metrics.jsonl, and lists them
 * as scalars; returns the number of these. */
static uint32_t list_answers(const struct trainer *t, char *out, size_t room, struct scalar *to)
{
    const struct text_score x = text_scores_result(&t->answering.all);
    const struct scalar scalars[] = {{"eval_exact_match", x.exact},
                                     {"eval_token_f1", x.f1},
                                     {"eval_bleu", x.bleu},
                                     {"eval_rouge_l", x.rouge_l}};
    int n = 0;
    if (!t->answering.open) return 0;
    for (size_t i = 0; i < COUNT(scalars); i++)
        n += snprintf(out + n, room - (size_t)n, ",\"%s\":%.9g", scalars[i].tag, scalars[i].value);
    snprintf(out + n, room - (size_t)n, ",\"eval_prompts\":%" PRIu64, t->answering.all.answers);
    memcpy(to, scalars, sizeof scalars);
    return COUNT(scalars);
}

/* Reports an evaluation to the log, metrics.jsonl and the scalars of TensorBoard: with the
 * perplexity of tokens, null if it overflows a double, IoU and Dice of masks, the accuracy of
 * retrieval (of labels, captions, or masks by their texts), and the scores of generated answers.
 * */
static int report_evaluation(struct trainer *t, const struct scored *v, struct error *e)
{
    char number[32] = "null", more[128] = "", text[128] = "", answers[256] = "";
    struct scalar scalars[8] = {{"eval_loss", v->loss}};
    uint32_t n_scalars = 1;
    double p = perplexity(v->loss);
    if (isfinite(p)) snprintf(number, sizeof number, "%.9g", p);
    if (config_tokens(t->c)) {
        snprintf(more, sizeof more, ",\"eval_perplexity\":%s", number);
        snprintf(text, sizeof text, ", perplexity %.6g", p);
    } else if (t->has_scores) {
        struct score all = mask_scores_of(&t->scores, false), last = mask_scores_of(&t->scores, true);
        int n = snprintf(more, sizeof more, ",\"eval_iou\":%.6f,\"eval_dice\":%.6f", score_iou(&all), score_dice(&all));
        int k = snprintf(text, sizeof text, ", mean IoU %.4f, mean Dice %.4f", score_iou(&all), score_dice(&all));
        if (t->scores.last) {
            snprintf(more + n, sizeof more - (size_t)n, ",\"eval_iou_last\":%.6f", score_iou(&last));
            snprintf(text + k, sizeof text - (size_t)k, ", after the last round IoU %.4f", score_iou(&last));
        }
        scalars[n_scalars++] = (struct scalar){"eval_iou", score_iou(&all)};
        scalars[n_scalars++] = (struct scalar){"eval_dice", score_dice(&all)};
        TRY(write_scores(t, e));
    }
    if (t->has_retrieval) {
        const double right = retrieval_accuracy(&t->retrieval);
        const int n = snprintf(more, sizeof more, ",\"eval_accuracy\":%.6f", right);
        if (t->validation.matches->queries)
            snprintf(more + n, sizeof more - (size_t)n, ",\"eval_queries\":%" PRIu64, t->retrieval.queries);
        snprintf(text, sizeof text, ", %saccuracy %.4f (chance %.4f)", t->validation.matches->word, right,
                 retrieval_chance(&t->retrieval));
        scalars[n_scalars++] = (struct scalar){"eval_accuracy", right};
    }
    n_scalars += list_answers(t, answers, sizeof answers, scalars + n_scalars);
    log_note("step %" PRId64 ": evaluation loss %.6g%s over %" PRId64 " samples", v->step, v->loss, text, v->samples);
    TRY(folder_metrics(&t->folder, e, "{\"step\":%" PRId64 ",\"eval_loss\":%.9g%s,\"eval_samples\":%" PRId64 "%s}",
                       v->step, v->loss, more, v->samples, answers));
    if (t->answering.open) TRY(trainer_report_answers(t, e));
    return events_write(&t->events, v->step, scalars, (int)n_scalars, e);
}

int trainer_evaluate(struct trainer *t, struct scored *out, struct error *e)
{
    char left[512];
    int rc = trainer_score(t, out, e);
    if (!rc && trainer_answers(t)) rc = trainer_answer(t, e);
    if (t->answering.open && t->o->ranks) {
        t->o->ranks->patient = true; /* rank 0 answers, and writes */
        rc = agree_on(t->o->ranks, rc, e);
    }
    if (!rc) t->eval = out->loss;
    if (!rc && trainer_leads(t)) rc = report_evaluation(t, out, e);
    if (!rc && !t->said_left && feed_print_left(&t->validation, left, sizeof left)) log_note("%s", left);
    t->said_left = true; /* it is the same every time */
    return rc;
}
