/*
 * eval_text.c: `plimsoll eval` for conversations: a language model answers held-out prompts, and
 * the answers are scored against the references, by file and in all.
 */
#include "cli/eval.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/progress.h"
#include "feed/batch_plan.h"
#include "feed/feed.h"
#include "infer/questions.h"
#include "io/temporary.h"

enum { NEW_TOKENS = 256 }; /* --max-new, where the folder has none */

struct evaluation {
    const struct eval_text *o;
    const struct config *config;
    struct held_out held;
    struct generator generator;
    struct text_scores *scores;  /* of each file */
    struct text_scores all, one; /* one: of an answer */
    struct text lines;           /* the file of the answers */
    struct progress progress;
    uint32_t asked;              /* questions of all files, so far */
    uint64_t unfinished;         /* answers that are as long as they may be */
    double seconds;
    struct eval_loss loss;       /* with --loss */
};

/* --- answers --------------------------------------------------------------------------------- */

static int next_prompt(void *to, struct prompt *out, bool *more, struct error *e)
{
    struct evaluation *v = to;
    const struct questions *q = &v->held.questions;
    (void)e;
    if ((*more = v->asked < q->at.n)) *out = q->at.at[v->asked++].prompt;
    return PL_OK;
}

static int take_answer(void *to, uint64_t i, const struct answer *a, struct error *e)
{
    struct evaluation *v = to;
    const struct questions *q = &v->held.questions;
    const uint32_t file = questions_file(q, (uint32_t)i);
    const char *reference = q->at.at[i].reference;
    if (!a) return error_prepend(e, "%s:%llu", q->files.at[file], (unsigned long long)q->asked.at[i].line);
    text_scores_add(&v->scores[file], a->text.at, reference);
    v->unfinished += a->end == GENERATE_LENGTH;
    if (v->o->answers) {
        v->one = (struct text_scores){.work = v->one.work};
        text_scores_add(&v->one, a->text.at, reference);
        answers_put_line(&v->lines, &v->held, file, (uint32_t)i - q->file[file].first, a, &v->one);
    }
    progress_add(&v->progress, 1);
    return PL_OK;
}

static int answer_all(struct evaluation *v, int64_t most, struct error *e)
{
    const struct generate_options options = answers_options(&v->held, most);
    const struct questions *q = &v->held.questions;
    struct generate run;
    const double from = clock_seconds();
    generate_open(&run, &v->generator, &options);
    progress_begin(&v->progress, "answering", "prompts", q->at.n);
    int rc = generate_all(&run, &(struct generate_queue){v, next_prompt, take_answer}, e);
    for (uint32_t f = 0; f < q->files.n; f++) text_scores_merge(&v->all, &v->scores[f]);
    progress_clear();
    generate_close(&run);
    v->seconds = clock_seconds() - from;
    return rc;
}

/* --- the loss --------------------------------------------------------------------------------- */

/* Forward only, in memory of its own. `folder`: for the token store, if there is none beside the
 * data. */
int eval_loss(const struct config *c, const char *folder, struct eval_loss *out, struct error *e)
{
    const struct run_options o = {.evaluate = true,
                                  .describe = feed_describe,
                                  .B = c->memory_micro_batch.chosen ? config_micro_batch(c) : 1,
                                  .T = c->data_sequence};
    struct run run;
    struct feed feed = {0};
    int rc = run_plan(&run, c, &o, e);
    if (!rc) rc = feed_open(&feed, c, &run, FEED_VALIDATION, e);
    if (!rc) rc = feed_prepare(&feed, &run, folder, e);
    if (!rc) rc = run_start(&run, NULL, true, e);
    if (!rc) rc = feed_start(&feed, &run, 0, 0, e);
    if (!rc) rc = eval_passes(&(struct eval_pass){.run = &run, .feed = &feed, .counted = &out->tokens}, &out->loss, e);
    if (!rc) out->arena = plan_arena(&run.planned.plan), out->samples = feed.samples;
    feed_close(&feed);
    run_close(&run);
    return rc;
}

static int compute_loss_in_folder(struct evaluation *v, struct error *e)
{
    struct temporary t;
    if (temporary_work(&t, e)) return e->code;
    int rc = eval_loss(v->config, t.path, &v->loss, e);
    temporary_drop(&t);
    return rc ? error_prepend(e, "--loss") : PL_OK;
}

/* --- reporting -------------------------------------------------------------------------------- */

static void print_row(struct text *out, int width, const char *name, const struct text_scores *s)
{
    const struct text_score x = text_scores_result(s);
    text_printf(out, "%-*s  %7llu  %9.1f %%  %8.1f  %6.1f  %7.1f\n", width, name, (unsigned long long)s->answers,
                x.exact, x.f1, x.bleu, x.rouge_l);
}

static void print_table(const struct evaluation *v, struct text *out)
{
    const struct questions *q = &v->held.questions;
    char time[32], arena[32];
    int width = 4;
    for (uint32_t i = 0; i < q->files.n; i++)
        width = (int)min_i64(80, (int64_t)strlen(q->files.at[i]) > width ? (int64_t)strlen(q->files.at[i]) : width);
    text_printf(out, "%-*s  prompts  exact match  token F1    BLEU  ROUGE-L\n", width, "file");
    for (uint32_t i = 0; i < q->files.n; i++) print_row(out, width, q->files.at[i], &v->scores[i]);
    if (q->files.n > 1) print_row(out, width, "all", &v->all);
    if (v->o->loss) text_printf(out, "\nloss %.6g, perplexity %.6g\n", v->loss.loss, exp(v->loss.loss));
    text_printf(out, "\n%llu prompt%s in %s, %.3g prompts/s, %lld at once, arena %s\n",
                (unsigned long long)v->all.answers, v->all.answers == 1 ? "" : "s", duration_print(v->seconds, time),
                (double)v->all.answers / v->seconds, (long long)v->generator.texts,
                size_print(plan_arena(&v->generator.run->planned.plan), arena));
    if (v->unfinished)
        text_printf(out, "%llu answers are cut: they are as long as they may be (--max-new)\n",
                    (unsigned long long)v->unfinished);
    if (q->unasked)
        text_printf(out, "%llu samples are left out: they have no prompt, or their answer is a call of a tool\n",
                    (unsigned long long)q->unasked);
}

static void print_json(const struct evaluation *v, struct text *out)
{
    const struct questions *q = &v->held.questions;
    struct json_writer w = {.out = out, .indent = 2};
    json_begin_map(&w, NULL);
    json_put_string(&w, "model", v->o->model);
    json_put_uint(&w, "prompts", v->all.answers);
    answers_put_scores(&w, &v->all);
    if (v->o->loss) {
        json_put_number(&w, "loss", v->loss.loss);
        json_put_number(&w, "perplexity", exp(v->loss.loss));
        json_put_uint(&w, "loss_arena_bytes", v->loss.arena);
    }
    json_put_uint(&w, "cut_answers", v->unfinished);
    json_put_uint(&w, "unusable_samples", report_bad(&q->report));
    json_put_uint(&w, "without_prompt", q->unasked);
    json_put_number(&w, "seconds", v->seconds);
    json_put_uint(&w, "arena_bytes", plan_arena(&v->generator.run->planned.plan));
    json_put_uint(&w, "kv_cache_bytes", generator_cache_bytes(&v->generator));
    json_put_int(&w, "batch", v->generator.texts);
    json_begin_list(&w, "files");
    for (uint32_t i = 0; i < q->files.n; i++) {
        json_begin_map(&w, NULL);
        json_put_string(&w, "file", q->files.at[i]);
        json_put_uint(&w, "prompts", v->scores[i].answers);
        answers_put_scores(&w, &v->scores[i]);
        json_end(&w);
    }
    json_end(&w);
    json_end(&w);
    text_printf(out, "\n");
}

static int report(const struct evaluation *v, struct error *e)
{
    struct text out = {0};
    if (v->o->json) print_json(v, &out);
    else print_table(v, &out);
    fputs(out.at, stdout);
    text_free(&out);
    return v->o->answers ? file_write_atomic(v->o->answers, v->lines.n ? v->lines.at : "", v->lines.n, e) : PL_OK;
}

/* --- the whole -------------------------------------------------------------------------------- */

/* The answers are written when all are there: their folder is checked before. */
static int check_output(const char *path, struct error *e)
{
    char folder[4096];
    if (!path) return PL_OK;
    int rc = path_dir(path, folder, sizeof folder, e);
    if (!rc && !dir_exists(folder)) rc = error_set(e, PL_USAGE, "-o %s: there is no folder %s", path, folder);
    if (!rc && dir_exists(path)) rc = error_set(e, PL_USAGE, "-o %s is a folder, expected the name of a file", path);
    return rc;
}

static int plan(struct evaluation *v, int64_t most, struct error *e)
{
    const struct questions *q = &v->held.questions;
    const struct run_generation o = {.cache = q->longest + most,
                                     .prompt = q->longest,
                                     .answer = most,
                                     .prompts = q->at.n,
                                     .tokens = q->tokens,
                                     .batch = v->config->train_eval_batch,
                                     .images = q->images};
    int rc = generator_plan(&v->generator, v->config, &o, e);
    const int64_t longest = v->generator.run->planned.model.longest;
    if (!rc && longest && o.cache > longest)
        log_warn("the longest prompt and its answer may have %lld tokens, and the model was made for at most %lld "
                 "(max_position_embeddings): what comes after may be worse",
                 (long long)o.cache, (long long)longest);
    return rc ? rc : generator_start(&v->generator, e);
}

static int evaluate(struct evaluation *v, struct error *e)
{
    int rc = answers_open(&v->held, v->config, &(struct question_limits){.questions = v->o->samples}, e);
    if (!rc && v->o->loss) rc = compute_loss_in_folder(v, e);
    if (rc) return rc;
    const int64_t most = v->o->max_new            ? (int64_t)v->o->max_new
                         : v->held.folder.max_new ? v->held.folder.max_new
                                                  : NEW_TOKENS;
    v->scores = mem_alloc(v->held.questions.files.n * sizeof *v->scores);
    rc = plan(v, most, e);
    if (!rc) rc = answer_all(v, most, e);
    return rc ? rc : report(v, e);
}

int eval_text(const struct config *c, const struct eval_text *o, struct error *e)
{
    struct evaluation v = {.o = o, .config = c};
    if (o->max_new > 1 << 24) return error_set(e, PL_USAGE, "--max-new: expected at most %d tokens", 1 << 24);
    int rc = check_output(o->answers, e);
    if (!rc) rc = evaluate(&v, e);
    for (uint32_t i = 0; i < v.held.questions.files.n && v.scores; i++) text_scores_free(&v.scores[i]);
    mem_free(v.scores);
    text_scores_free(&v.all);
    text_scores_free(&v.one);
    text_free(&v.lines);
    generator_close(&v.generator);
    answers_close(&v.held);
    return rc;
}
