/*
 * eval_text.c: the forward of `plimsoll eval` over all samples, and its kinds of language models.
 *
 *     conversations    the model answers held-out prompts, and the answers are scored against the
 *                      references, by file and in all
 *     questions        the same of a PRS-Med model and the questions of validation rows, by dataset
 *     tokens, texts    loss and perplexity, in rows of data.sequence tokens that do not overlap;
 *                      what is left at a file's end is not used. A text becomes tokens by the
 *                      model's tokenizer. data.format: text evaluates the rows that it held out
 */
#include "cli/eval.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/progress.h"
#include "data/dataset.h"
#include "data/text/tokens.h"
#include "batch/batch_plan.h"
#include "batch/feed.h"
#include "infer/questions.h"
#include "infer/ask.h"
#include "infer/loss_sums.h"
#include "infer/mask_scores.h"
#include "infer/own_size.h"
#include "infer/retrieval.h"
#include "io/table.h"
#include "io/temporary.h"
#include "text/tokenizer/tokenizer.h"

/* --max-new, where the folder has none, and of questions; datasets that are scored by themselves */
enum { NEW_TOKENS = 256, QUESTION_TOKENS = 128, DATASETS = 64, TEXT_MOST = 1 << 30 };

/* --- the forward over all samples --------------------------------------------------------- */

static int run_pass(const struct eval_pass *v, struct progress *p, struct loss_sums *sums, struct error *e)
{
    const struct step_block b = {.loss_scale = 1, .step = 1, .adam_t = 1};
    struct run *r = v->run;
    const int64_t B = r->planned.effective_batch, n = (int64_t)v->feed->samples;
    const id loss = graph_find_output(&r->planned.graph, PROGRAM_STEP, "loss");
    for (int64_t at = 0; at < n; at += B) {
        struct feed_batch batch;
        float l = 0;
        TRY(feed_put(v->feed, &(struct batch_target){0}, (uint64_t)at, min_i64(B, n - at), B, &batch, e));
        TRY(loss_sums_add(sums, r, PROGRAM_STEP, loss, b, v->feed, &batch, &l, e));
        if (!isfinite(l))
            return error_set(e, PL_FAIL, "the loss is %g in samples %lld to %lld", (double)l, (long long)at,
                             (long long)min_i64(at + B, n) - 1);
        if (v->masks) TRY(mask_scores_add(v->masks, r, v->feed, e));
        if (v->found) TRY(retrieval_add(v->found, r, v->feed, e));
        if (v->own) TRY(own_size_add(v->own, r, v->feed, e));
        progress_add(p, 1);
    }
    return PL_OK;
}

int eval_passes(const struct eval_pass *v, double *loss, struct error *e)
{
    struct progress p;
    struct loss_sums sums = {0};
    const int passes = feed_passes(v->feed);
    int rc = PL_OK;
    progress_begin(&p, "evaluating", "batches",
                   (uint64_t)(passes * ceil_div((int64_t)v->feed->samples, v->run->planned.effective_batch)));
    for (int pass = 0; pass < passes && !rc; pass++) {
        feed_set_pass(v->feed, pass);
        rc = run_pass(v, &p, &sums, e);
    }
    if (v->counted) *v->counted = sums.count[0];
    if (!loss_sums_mean(&sums, loss) && !rc) rc = feed_empty(v->feed, e);
    progress_clear();
    return rc;
}

/* --- scores ------------------------------------------------------------------------------- */

static const struct report_column FILES[] = {
    {"file", "file"}, {"prompts", "prompts", ""}, {"exact_match", "exact match", "%.1f %%"},
    {"token_f1", "token F1", "%.1f"}, {"bleu", "BLEU", "%.1f"}, {"rouge_l", "ROUGE-L", "%.1f"}};

static struct report_row *add_scores(struct report_table *t, const char *name, const struct text_scores *s)
{
    const struct text_score x = text_scores_result(s);
    return TABLE_ADD(t, CELL(name), CELL(s->answers), CELL(x.exact), CELL(x.f1), CELL(x.bleu), CELL(x.rouge_l));
}

static void put_scores(struct json_writer *w, const void *of) { answers_put_scores(w, of); }

/* --- conversations ------------------------------------------------------------------------ */

/* The mean loss of a language model. */
struct eval_loss {
    double loss;
    uint64_t arena, samples; /* bytes; rows of data.sequence tokens */
    double tokens;           /* with a label */
};

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

/* Computes the mean loss over data.validation: forward only, in memory of its own. `folder`: for
 * the token store, if there is none beside the data. */
static int eval_loss(const struct config *c, const char *folder, struct eval_loss *out, struct error *e)
{
    const struct run_options o = {.evaluate = true, .describe = feed_describe,
                                  .B = c->memory_micro_batch.chosen ? config_micro_batch(c) : 1, .T = c->data_sequence};
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

static void print_table(const struct evaluation *v, const struct report_table *files, struct text *out)
{
    char time[32], arena[32];
    table_print(files, 0, 0, out);
    if (v->o->loss) text_printf(out, "\nloss %.6g, perplexity %.6g\n", v->loss.loss, exp(v->loss.loss));
    text_printf(out, "\n%llu prompt%s in %s, %.3g prompts/s, %lld at once, arena %s\n",
                (unsigned long long)v->all.answers, v->all.answers == 1 ? "" : "s", duration_print(v->seconds, time),
                (double)v->all.answers / v->seconds, (long long)v->generator.texts,
                size_print(plan_arena(&v->generator.run->planned.plan), arena));
    if (v->unfinished)
        text_printf(out, "%llu answers are cut: they are as long as they may be (--max-new)\n",
                    (unsigned long long)v->unfinished);
    if (v->held.questions.unasked)
        text_printf(out, "%llu samples are left out: they have no prompt, or their answer is a call of a tool\n",
                    (unsigned long long)v->held.questions.unasked);
}

static int report(const struct evaluation *v, struct error *e)
{
    const struct questions *q = &v->held.questions;
    const bool loss = v->o->loss;
    struct report_table files = REPORT_TABLE(FILES);
    struct text out = {0};
    for (uint32_t i = 0; i < q->files.n; i++) add_scores(&files, q->files.at[i], &v->scores[i]);
    if (q->files.n > 1) add_scores(&files, "all", &v->all)->text_only = true;
    print_table(v, &files, &out);
    if (v->o->json)
        PRINT_FACTS(2, FACT("model", v->o->model), FACT("prompts", v->all.answers), FACT_CALL(put_scores, &v->all),
                    FACT_IF(loss, "loss", v->loss.loss), FACT_IF(loss, "perplexity", exp(v->loss.loss)),
                    FACT_IF(loss, "loss_arena_bytes", v->loss.arena), FACT("cut_answers", v->unfinished),
                    FACT("unusable_samples", report_bad(&q->report)), FACT("without_prompt", q->unasked),
                    FACT("seconds", v->seconds), FACT("arena_bytes", plan_arena(&v->generator.run->planned.plan)),
                    FACT("kv_cache_bytes", generator_cache_bytes(&v->generator)), FACT("batch", v->generator.texts),
                    FACT_TABLE("files", &files));
    else fputs(out.at, stdout);
    text_free(&out);
    table_free(&files);
    return v->o->answers ? file_write_atomic(v->o->answers, v->lines.n ? v->lines.at : "", v->lines.n, e) : PL_OK;
}

/* --- the whole -------------------------------------------------------------------------------- */

/* Checks the folder of the answers, which are written when all are there. */
static int check_output(const char *path, struct error *e)
{
    char folder[4096];
    if (!path) return PL_OK;
    TRY(path_dir(path, folder, sizeof folder, e));
    if (!dir_exists(folder)) return error_set(e, PL_USAGE, "-o %s: there is no folder %s", path, folder);
    return dir_exists(path) ? error_set(e, PL_USAGE, "-o %s is a folder, expected the name of a file", path) : PL_OK;
}

static int plan(struct evaluation *v, int64_t most, struct error *e)
{
    const struct questions *q = &v->held.questions;
    const struct run_generation o = {.cache = q->longest + most, .prompt = q->longest, .answer = most,
                                     .prompts = q->at.n, .tokens = q->tokens, .batch = v->config->train_eval_batch};
    int rc = generator_plan(&v->generator, v->config, &o, &q->images, e);
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

/* --- questions ---------------------------------------------------------------------------- */

struct questions_scored {
    const struct dataset *set;
    struct ask ask;
    struct generator generator;
    struct generate run;
    struct text_scores all, by[DATASETS]; /* by dataset; the last one has all others */
    struct progress progress;
    uint64_t n, asked, left;     /* questions: in all, so far, and those that are left out */
};

static int next_question(void *to, struct prompt *out, bool *more, struct error *e)
{
    struct questions_scored *s = to;
    struct ask *a = &s->ask;
    if (!(*more = s->asked < s->n)) return PL_OK;
    const uint64_t i = s->asked++;
    int rc = ask_again(a, dataset_image_path(s->set, i), dataset_text(s->set, i, DATASET_QUESTION), e);
    *out = (struct prompt){a->ids.at, a->ids.n, a->images.at, a->images.n};
    return rc;
}

static int take_scored(void *to, uint64_t i, const struct answer *a, struct error *e)
{
    struct questions_scored *s = to;
    progress_add(&s->progress, 1);
    if (!a && e->code != PL_USAGE) return e->code;
    if (!a) { /* of this sample: a broken image, a question that is too long */
        if (!s->left++) log_warn("a question is left out: %s", e->text);
        return PL_OK;
    }
    const char *reference = dataset_text(s->set, i, DATASET_ANSWER);
    text_scores_add(&s->all, a->text.n ? a->text.at : "", reference);
    text_scores_add(&s->by[min_i64(dataset_group(s->set, i), DATASETS - 1)], a->text.n ? a->text.at : "", reference);
    return PL_OK;
}

static int answer_questions(struct questions_scored *s, struct error *e)
{
    progress_begin(&s->progress, "answering", "questions", s->n);
    int rc = generate_all(&s->run, &(struct generate_queue){s, next_question, take_scored}, e);
    progress_clear();
    if (s->left)
        log_warn("%llu of %llu questions were left out", (unsigned long long)s->left, (unsigned long long)s->n);
    return rc;
}

/* Returns the name of a dataset. */
static const char *dataset_of(const struct questions_scored *s, int32_t k)
{
    return k + 1 < DATASETS && dataset_category(s->set, k) ? dataset_category(s->set, k) : "other";
}

/* Adds the scores to a JSON map, or if that is NULL to `out`. */
static void report_questions(const struct questions_scored *s, struct json_writer *w, struct text *out)
{
    struct report_column columns[COUNT(FILES)];
    struct report_table t = REPORT_TABLE(columns);
    memcpy(columns, FILES, sizeof columns);
    columns[0].title = "dataset", columns[1].title = "answers";
    if (w) json_begin_map(w, "answers");
    for (int32_t k = -1; k < DATASETS; k++) {
        const struct text_scores *x = k < 0 ? &s->all : &s->by[k];
        const char *name = k < 0 ? "all" : dataset_of(s, k);
        if (k >= 0 && !x->answers) continue;
        add_scores(&t, name, x);
        if (w) PUT_FACTS(w, FACT_MAP(name, FACT_CALL(put_scores, x)));
    }
    if (w) json_end(w);
    else text_printf(out, "\n"), table_print(&t, 0, 0, out);
    table_free(&t);
}

/* Plans the model once, for prompts of up to data.sequence tokens. */
static int score(struct questions_scored *s, const struct config *c, const struct eval_text *o, struct error *e)
{
    const int64_t most = o->max_new ? (int64_t)o->max_new : QUESTION_TOKENS;
    s->n = o->samples ? min_u64(o->samples, dataset_count(s->set)) : dataset_count(s->set);
    const struct run_generation plan = {.cache = c->data_sequence + most, .prompt = c->data_sequence, .answer = most,
                                        .prompts = (int64_t)s->n, .tokens = (int64_t)s->n * c->data_sequence,
                                        .batch = c->train_eval_batch};
    int rc = ask_open(&s->ask, c, dataset_image_path(s->set, 0), dataset_text(s->set, 0, DATASET_QUESTION), e);
    if (!rc) rc = generator_plan(&s->generator, &s->ask.config, &plan, &(struct image_batch){.images = 1}, e);
    if (!rc) rc = generator_start(&s->generator, e);
    if (!rc) {
        const struct generate_options options = ask_options(&s->ask, most);
        generate_open(&s->run, &s->generator, &options);
        rc = answer_questions(s, e);
        generate_close(&s->run);
    }
    generator_close(&s->generator);
    ask_close(&s->ask);
    return rc;
}

int eval_questions(const struct config *c, const struct eval_text *o, struct json_writer *w, struct text *out,
                   struct error *e)
{
    struct questions_scored *s = mem_alloc(sizeof *s);
    struct dataset *set = NULL;
    int rc = feed_open_questions(&set, c, FEED_VALIDATION, e);
    s->set = set;
    if (!rc) rc = score(s, c, o, e);
    if (!rc) report_questions(s, w, out);
    for (int k = 0; k < DATASETS; k++) text_scores_free(&s->by[k]);
    text_scores_free(&s->all);
    dataset_close(set);
    mem_free(s);
    return rc;
}

/* --- tokens and texts ---------------------------------------------------------------------- */

bool eval_is_text(const char *path) { return is_plain_text(path); }
bool eval_is_tokens(const char *path)
{
    return path_has_ending(path, ".bin") || path_has_ending(path, ".tokens") || path_has_ending(path, ".npy") ||
           path_has_ending(path, ".safetensors");
}

/* Writes the tokens of a text as a file of int32. */
static int tokenize_file(const char *path, const char *model, const char *to, uint64_t *n, struct error *e)
{
    struct tokenizer *t;
    struct token_list ids = {0};
    char *bytes;
    size_t size;
    int rc = tokenizer_open(&t, model, e);
    if (rc) return rc;
    rc = file_read(path, TEXT_MOST, &bytes, &size, e);
    if (!rc) {
        rc = tokenizer_encode(t, bytes, size, NULL, 0, true, &ids, e);
        mem_free(bytes);
        if (rc) error_prepend(e, "%s", path);
    }
    int32_t *values = mem_alloc((ids.n + 1) * sizeof *values);
    for (uint32_t i = 0; i < ids.n; i++) values[i] = ids.at[i].id;
    if (!rc) rc = file_write_atomic(to, values, ids.n * sizeof *values, e);
    mem_free(values);
    *n = ids.n;
    vec_free(&ids);
    tokenizer_close(t);
    return rc;
}

/* Replaces texts in data.validation by their tokens, in files of the folder. */
static int tokenize_texts(struct config *c, const char *folder, struct bump *memory, struct error *e)
{
    struct config_list *files = &c->data_validation;
    char **paths = bump_alloc(memory, files->n * sizeof *paths);
    uint64_t shortest = UINT64_MAX;
    for (uint32_t i = 0; i < files->n; i++) {
        uint64_t n;
        paths[i] = bump_format(memory, "%s/%u.bin", folder, i);
        if (!eval_is_text(files->at[i]))
            return error_set(e, PL_USAGE, "%s and %s are given: expected files of the same kind, texts or tokens",
                             files->at[0], files->at[i]);
        if (!c->model_path)
            return error_set(e, PL_USAGE, "a preset has no tokenizer: give a model folder, or a file of tokens");
        if (tokenize_file(files->at[i], c->data_tokenizer ? c->data_tokenizer : c->model_path, paths[i], &n, e))
            return e->code;
        if (n < 2)
            return error_set(e, PL_USAGE, "%s has %llu tokens, expected at least 2", files->at[i],
                             (unsigned long long)n);
        shortest = min_u64(shortest, n);
    }
    *files = (struct config_list){paths, files->n};
    c->data_token_dtype = TOKENS_I32;
    if (shortest < (uint64_t)c->data_sequence) c->data_sequence = (int64_t)shortest;
    return PL_OK;
}

int eval_tokens(struct config *c, const struct eval_text *o, struct error *e)
{
    struct bump memory = {0};
    struct eval_loss x;
    struct temporary t;
    char arena[32];
    TRY(temporary_work(&t, e));
    const struct config_list given = c->data_validation;
    int rc = c->data_format != FORMAT_TEXT && given.n && eval_is_text(given.at[0])
                 ? tokenize_texts(c, t.path, &memory, e)
                 : PL_OK;
    if (!rc) rc = eval_loss(c, t.path, &x, e);
    if (!rc && o->json)
        PRINT_FACTS(2, FACT("model", o->model), FACT("loss", x.loss), FACT("perplexity", exp(x.loss)),
                    FACT("rows", x.samples), FACT("sequence", c->data_sequence),
                    FACT("predicted_tokens", (uint64_t)x.tokens), FACT("arena_bytes", x.arena));
    else if (!rc)
        printf("loss %.6g, perplexity %.6g over %llu tokens, in %llu rows of %lld (data.sequence), arena %s\n", x.loss,
               exp(x.loss), (unsigned long long)x.tokens, (unsigned long long)x.samples, (long long)c->data_sequence,
               size_print(x.arena, arena));
    c->data_validation = given;
    temporary_drop(&t);
    bump_free(&memory);
    return rc;
}
