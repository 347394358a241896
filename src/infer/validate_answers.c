/*
 * validate_answers.c: see validate.h.
 */
#include "infer/validate.h"

#include "base/progress.h"
#include "data/dataset.h"
#include "infer/ask.h"

/* tokens of an answer where the folder has no number, and of an answer to a question */
enum { NEW_TOKENS = 256, QUESTION_TOKENS = 128 };

/* --- conversations ---------------------------------------------------------------------------- */

/* A queue of the questions. */
struct conversation_queue {
    struct answered *v;
    bool lines;
    uint32_t asked;         /* questions of all files, so far */
    struct text_scores one; /* of an answer */
    struct progress progress;
};

static int next_prompt(void *to, struct prompt *out, bool *more, struct error *e)
{
    struct conversation_queue *s = to;
    const struct questions *q = &s->v->held.questions;
    (void)e;
    if ((*more = s->asked < q->at.n)) *out = q->at.at[s->asked++].prompt;
    return PL_OK;
}

static int take_answer(void *to, uint64_t i, const struct answer *a, struct error *e)
{
    struct conversation_queue *s = to;
    struct answered *v = s->v;
    const struct questions *q = &v->held.questions;
    const uint32_t file = questions_file(q, (uint32_t)i);
    const char *reference = q->at.at[i].reference;
    if (!a) return error_prepend(e, "%s:%llu", q->files.at[file], (unsigned long long)q->asked.at[i].line);
    text_scores_add(&v->scores[file], a->text.at, reference);
    v->unfinished += a->end == GENERATE_LENGTH;
    if (s->lines) {
        s->one = (struct text_scores){.work = s->one.work};
        text_scores_add(&s->one, a->text.at, reference);
        answers_put_line(&v->lines, &v->held, file, (uint32_t)i - q->file[file].first, a, &s->one);
    }
    progress_add(&s->progress, 1);
    return PL_OK;
}

static int answer_all(struct answered *v, int64_t most, bool lines, struct error *e)
{
    const struct generate_options options = answers_options(&v->held, most);
    const struct questions *q = &v->held.questions;
    struct conversation_queue s = {.v = v, .lines = lines};
    struct generate run;
    const double from = clock_seconds();
    generate_open(&run, &v->generator, &options);
    progress_begin(&s.progress, "answering", "prompts", q->at.n);
    int rc = generate_all(&run, &(struct generate_queue){&s, next_prompt, take_answer}, e);
    for (uint32_t f = 0; f < q->files.n; f++) text_scores_merge(&v->all, &v->scores[f]);
    progress_clear();
    generate_close(&run);
    text_scores_free(&s.one);
    v->seconds = clock_seconds() - from;
    return rc;
}

int validate_answers(struct answered *v, const struct config *c, const struct answer_options *o, struct error *e)
{
    const struct questions *q = &v->held.questions;
    *v = (struct answered){0};
    TRY(answers_open(&v->held, c, &(struct question_limits){.questions = o->samples}, e));
    if (o->loss && validate_loss(c, &v->loss, e)) return error_prepend(e, "--loss");
    const int64_t most = o->max_new             ? (int64_t)o->max_new
                         : v->held.folder.max_new ? v->held.folder.max_new
                                                  : NEW_TOKENS;
    const struct run_generation plan = {.cache = q->longest + most, .prompt = q->longest, .answer = most,
                                        .prompts = q->at.n, .tokens = q->tokens, .batch = c->train_eval_batch};
    v->scores = mem_alloc(q->files.n * sizeof *v->scores);
    int rc = generator_plan(&v->generator, c, &plan, &v->held.prompts.images, &q->images, e);
    if (!rc) generator_warn_longest(&v->generator, plan.cache, "the longest prompt and its answer");
    if (!rc) rc = generator_start(&v->generator, e);
    return rc ? rc : answer_all(v, most, o->lines, e);
}

void answered_close(struct answered *v)
{
    for (uint32_t i = 0; i < v->held.questions.files.n && v->scores; i++) text_scores_free(&v->scores[i]);
    mem_free(v->scores);
    text_scores_free(&v->all);
    text_free(&v->lines);
    generator_close(&v->generator);
    answers_close(&v->held);
}

/* --- questions -------------------------------------------------------------------------------- */

/* A queue of the rows. */
struct row_queue {
    struct answered_questions *v;
    struct ask ask;
    struct generator generator;
    uint64_t n, asked, left; /* questions: in all, so far, and those that are left out */
    struct progress progress;
};

static int next_question(void *to, struct prompt *out, bool *more, struct error *e)
{
    struct row_queue *s = to;
    struct ask *a = &s->ask;
    if (!(*more = s->asked < s->n)) return PL_OK;
    const uint64_t i = s->asked++;
    int rc = ask_again(a, dataset_image_path(s->v->set, i), dataset_text(s->v->set, i, DATASET_QUESTION), e);
    *out = (struct prompt){a->ids.at, a->ids.n, a->images.at, a->images.n};
    return rc;
}

static int take_scored(void *to, uint64_t i, const struct answer *a, struct error *e)
{
    struct row_queue *s = to;
    struct answered_questions *v = s->v;
    progress_add(&s->progress, 1);
    if (!a && e->code != PL_USAGE) return e->code;
    if (!a) { /* of this sample: a broken image, a question that is too long */
        if (!s->left++) log_warn("a question is left out: %s", e->text);
        return PL_OK;
    }
    const char *reference = dataset_text(v->set, i, DATASET_ANSWER), *answer = a->text.n ? a->text.at : "";
    text_scores_add(&v->all, answer, reference);
    text_scores_add(&v->by[min_i64(dataset_group(v->set, i), ANSWER_DATASETS - 1)], answer, reference);
    return PL_OK;
}

static int answer_questions(struct row_queue *s, int64_t most, struct error *e)
{
    const struct generate_options options = ask_options(&s->ask, most);
    struct generate run;
    generate_open(&run, &s->generator, &options);
    progress_begin(&s->progress, "answering", "questions", s->n);
    int rc = generate_all(&run, &(struct generate_queue){s, next_question, take_scored}, e);
    progress_clear();
    if (s->left)
        log_warn("%llu of %llu questions were left out", (unsigned long long)s->left, (unsigned long long)s->n);
    generate_close(&run);
    return rc;
}

int validate_questions(struct answered_questions *v, const struct config *c, const struct answer_options *o,
                       struct error *e)
{
    const int64_t most = o->max_new ? (int64_t)o->max_new : QUESTION_TOKENS;
    const struct media one = {.images = 1};
    struct row_queue s = {.v = v};
    *v = (struct answered_questions){0};
    TRY(feed_open_questions(&v->set, c, FEED_VALIDATION, e));
    s.n = o->samples ? min_u64(o->samples, dataset_count(v->set)) : dataset_count(v->set);
    const struct run_generation plan = {.cache = c->data_sequence + most, .prompt = c->data_sequence, .answer = most,
                                        .prompts = (int64_t)s.n, .tokens = (int64_t)s.n * c->data_sequence,
                                        .batch = c->train_eval_batch};
    int rc = ask_open(&s.ask, c, dataset_image_path(v->set, 0), dataset_text(v->set, 0, DATASET_QUESTION), e);
    if (!rc) rc = generator_plan(&s.generator, &s.ask.config, &plan, &s.ask.prompts.images, &one, e);
    if (!rc) rc = generator_start(&s.generator, e);
    if (!rc) rc = answer_questions(&s, most, e);
    generator_close(&s.generator);
    ask_close(&s.ask);
    return rc;
}

const char *answered_dataset(const struct answered_questions *v, int32_t k)
{
    return k + 1 < ANSWER_DATASETS && dataset_category(v->set, k) ? dataset_category(v->set, k) : "other";
}

void answered_questions_close(struct answered_questions *v)
{
    for (int k = 0; k < ANSWER_DATASETS; k++) text_scores_free(&v->by[k]);
    text_scores_free(&v->all);
    dataset_close(v->set);
}
