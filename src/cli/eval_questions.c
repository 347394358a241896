/*
 * eval_questions.c: the answers of a PRS-Med model in `plimsoll eval`: it answers the questions of
 * the validation rows, greedily, and the answers are scored against the tables', by dataset and in
 * all.
 */
#include <stdio.h>
#include <string.h>

#include "base/progress.h"
#include "cli/eval.h"
#include "data/dataset.h"
#include "feed/feed.h"
#include "infer/questions.h"
#include "infer/ask.h"

enum { NEW_TOKENS = 128, DATASETS = 64 };

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

static int take_answer(void *to, uint64_t i, const struct answer *a, struct error *e)
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

static int answer_all(struct questions_scored *s, struct error *e)
{
    progress_begin(&s->progress, "answering", "questions", s->n);
    int rc = generate_all(&s->run, &(struct generate_queue){s, next_question, take_answer}, e);
    progress_clear();
    if (s->left)
        log_warn("%llu of %llu questions were left out", (unsigned long long)s->left, (unsigned long long)s->n);
    return rc;
}

static void print_row(struct text *out, const char *name, const struct text_scores *s)
{
    const struct text_score x = text_scores_result(s);
    text_printf(out, "%-24s  %7llu  %9.1f %%  %8.1f  %6.1f  %7.1f\n", name, (unsigned long long)s->answers, x.exact,
                x.f1, x.bleu, x.rouge_l);
}

static void print_scores(const struct questions_scored *s, struct text *out)
{
    text_printf(out, "\n%-24s  %7s  %11s  %8s  %6s  %7s\n", "dataset", "answers", "exact match", "token F1", "BLEU",
                "ROUGE-L");
    print_row(out, "all", &s->all);
    for (int32_t k = 0; k < DATASETS; k++)
        if (s->by[k].answers)
            print_row(out, k + 1 < DATASETS && dataset_category(s->set, k) ? dataset_category(s->set, k) : "other",
                      &s->by[k]);
}

static void put_scores(const struct questions_scored *s, struct json_writer *w)
{
    json_begin_map(w, "answers");
    json_begin_map(w, "all");
    answers_put_scores(w, &s->all);
    json_end(w);
    for (int32_t k = 0; k < DATASETS; k++) {
        if (!s->by[k].answers) continue;
        json_begin_map(w, k + 1 < DATASETS && dataset_category(s->set, k) ? dataset_category(s->set, k) : "other");
        answers_put_scores(w, &s->by[k]);
        json_end(w);
    }
    json_end(w);
}

/* The model is planned once, for prompts of up to data.sequence tokens. */
static int score(struct questions_scored *s, const struct config *c, const struct eval_text *o, struct error *e)
{
    const int64_t most = o->max_new ? (int64_t)o->max_new : NEW_TOKENS;
    s->n = o->samples ? min_u64(o->samples, dataset_count(s->set)) : dataset_count(s->set);
    const struct run_generation plan = {.cache = c->data_sequence + most,
                                        .prompt = c->data_sequence,
                                        .answer = most,
                                        .prompts = (int64_t)s->n,
                                        .tokens = (int64_t)s->n * c->data_sequence,
                                        .batch = c->train_eval_batch,
                                        .images = {.images = 1}};
    int rc = ask_open(&s->ask, c, dataset_image_path(s->set, 0), dataset_text(s->set, 0, DATASET_QUESTION), e);
    if (!rc) rc = generator_plan(&s->generator, &s->ask.config, &plan, e);
    if (!rc) rc = generator_start(&s->generator, e);
    if (!rc) {
        const struct generate_options options = ask_options(&s->ask, most);
        generate_open(&s->run, &s->generator, &options);
        rc = answer_all(s, e);
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
    if (!rc && w) put_scores(s, w);
    else if (!rc) print_scores(s, out);
    for (int k = 0; k < DATASETS; k++) text_scores_free(&s->by[k]);
    text_scores_free(&s->all);
    dataset_close(set);
    mem_free(s);
    return rc;
}
