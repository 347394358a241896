/*
 * train_answer.c: the answers of a model in training to held-out prompts (train.eval_samples), and
 * their scores.
 *
 *     before the first step   prompts are read and tokenized
 *     each evaluation         programs prompt and next of the run, greedy; scores by file
 *                             answers/step-N.jsonl: a line for each answer, renamed into place when
 *                             all are there
 *
 * The programs read weights and write memory that steps do not read before they write it: answering
 * does not change the state of training. After the first step nothing is allocated: what an answer
 * needs comes from the pool.
 */
#include "train/trainer.h"

#include <fcntl.h>
#include <inttypes.h>
#include <unistd.h>

#include "io/file.h"

/* Bytes of the pool for an answer: words and n-grams of answer and reference, and the line of the
 * answer. */
enum { POOL_BASE = 1 << 20, POOL_PER_TOKEN = 2048, POOL_PER_BYTE = 128 };

/* --- before the first step ------------------------------------------------------------------ */

/* Returns the bytes of the longest line without its answer. */
static uint64_t longest_line(const struct held_out *h)
{
    const struct answer none = {0};
    const struct text_scores zero = {0};
    struct text line = {0};
    uint64_t most = 0;
    for (uint32_t f = 0; f < h->questions.files.n; f++)
        for (uint32_t i = 0; i < h->questions.file[f].n; i++) {
            line.n = 0;
            answers_put_line(&line, h, f, i, &none, &zero);
            if (line.n > most) most = line.n;
        }
    text_free(&line);
    return most;
}

int trainer_read_prompts(struct trainer *t, struct error *e)
{
    struct answering *x = &t->answering;
    const struct questions *q = &x->held.questions;
    if (!t->run.planned.answers) return PL_OK;
    const int64_t longest = min_i64(t->c->data_sequence, t->run.planned.batch.cache - 1);
    x->open = true;
    const struct question_limits most = {(uint64_t)t->c->train_eval_samples, longest,
                                         &contents_of(&t->run.planned.batch)->media};
    int rc = answers_open(&x->held, t->c, &most, e);
    if (rc) return error_prepend(e, "train.eval_samples");
    if (q->too_long)
        log_warn("train.eval_samples: %" PRIu64 " prompts have more than %" PRId64
                 " tokens and are left out (data.sequence)",
                 q->too_long, longest);
    if (q->too_many)
        log_warn("train.eval_samples: %" PRIu64 " prompts have more than %" PRId64
                 " images (data.max_images), %" PRId64
                 " frames (data.max_frames) or volumes than planned, and are left out",
                 q->too_many, most.media->images, most.media->frames);
    x->scores = mem_alloc(q->files.n * sizeof *x->scores);
    x->pool = POOL_BASE + POOL_PER_TOKEN * (uint64_t)t->c->train_eval_max_new + POOL_PER_BYTE * longest_line(&x->held) +
              q->image_bytes;
    return PL_OK;
}

uint64_t trainer_prompts(const struct trainer *t)
{
    const struct questions *q = &t->answering.held.questions;
    uint64_t h = 0;
    if (!t->answering.open || !settings_meet(&t->run.planned.plan.settings)) return 0;
    for (uint32_t i = 0; i < q->at.n; i++) {
        const struct prompt *p = &q->at.at[i].prompt;
        h = hash_bytes(p->ids, (size_t)p->n * sizeof *p->ids, h);
        for (uint32_t k = 0; k < p->n_images; k++) h = hash_bytes(p->images[k], strlen(p->images[k]) + 1, h);
    }
    return h;
}

void trainer_open_answers(struct trainer *t)
{
    struct answering *x = &t->answering;
    if (!trainer_answers(t)) return;
    generator_join(&x->generator, &t->run);
    struct generate_options o = answers_options(&x->held, t->c->train_eval_max_new);
    o.pooled = true;
    generate_open(&x->generate, &x->generator, &o);
}

void trainer_close_answers(struct trainer *t)
{
    struct answering *x = &t->answering;
    if (!x->open) return;
    if (x->generate.generator) generate_close(&x->generate);
    generator_close(&x->generator);
    answers_close(&x->held);
    mem_free(x->scores);
}

/* --- an evaluation -------------------------------------------------------------------------- */

/* The prompts of an evaluation, one file after the other. */
struct asking {
    struct trainer *t;
    struct progress progress;
    int fd;                  /* of the answers; negative: they are written nowhere */
    uint64_t given;          /* prompts so far */
};

static int next_prompt(void *to, struct prompt *out, bool *more, struct error *e)
{
    struct asking *a = to;
    const struct questions *q = &a->t->answering.held.questions;
    (void)e;
    if ((*more = a->given < q->at.n)) *out = q->at.at[a->given++].prompt;
    return PL_OK;
}

/* Leaves out a prompt without an answer if an image that was there when the run began is lost; else
 * returns the error. */
static int leave_out(const struct asking *a, uint64_t i, struct error *e)
{
    const struct questions *q = &a->t->answering.held.questions;
    const bool ended = a->t->o->ranks && a->t->o->ranks->ended; /* all ranks, with the message of one */
    if (ended) return e->code;
    if (e->code == PL_USAGE && q->at.at[i].prompt.n_images) {
        log_warn("train.eval_samples: a prompt is left out: %s", e->text);
        return PL_OK;
    }
    return error_prepend(e, "step %" PRIu64 ", %s:%" PRIu64, a->t->state.step,
                         q->files.at[questions_file(q, (uint32_t)i)], q->asked.at[i].line);
}

/* Scores an answer and writes its line. */
static int take_answer(void *to, uint64_t i, const struct answer *answer, struct error *e)
{
    struct asking *a = to;
    struct answering *x = &a->t->answering;
    const struct questions *q = &x->held.questions;
    const uint32_t f = questions_file(q, (uint32_t)i);
    struct text_scores one = {0};
    struct text line = {0};
    int rc = PL_OK;
    if (a->t->o->progress) progress_add(&a->progress, 1);
    if (!answer) return leave_out(a, i, e);
    text_scores_add(&one, answer->text.at, q->at.at[i].reference);
    text_scores_merge(&x->scores[f], &one);
    answers_put_line(&line, &x->held, f, (uint32_t)i - q->file[f].first, answer, &one);
    if (a->fd >= 0 && fd_write(a->fd, line.at, line.n)) rc = file_error("answers", "write an answer", e);
    text_free(&line);
    text_scores_free(&one);
    return rc;
}

static int answer_all(struct trainer *t, int fd, struct error *e)
{
    struct answering *x = &t->answering;
    const struct questions *q = &x->held.questions;
    struct asking a = {.t = t, .fd = fd};
    int rc = generator_enter(&x->generator, e);
    memset(x->scores, 0, q->files.n * sizeof *x->scores);
    if (t->o->progress) progress_begin(&a.progress, "answering", "prompts", q->at.n);
    if (!rc) rc = generate_all(&x->generate, &(struct generate_queue){&a, next_prompt, take_answer}, e);
    x->all = (struct text_scores){0};
    for (uint32_t f = 0; f < q->files.n; f++) text_scores_merge(&x->all, &x->scores[f]);
    return rc;
}

/* Opens the file that the answers are written to before it gets its name. */
static int open_part(const struct trainer *t, const char *part, int *fd, struct error *e)
{
    char folder[FOLDER_PATH + 64];
    snprintf(folder, sizeof folder, "%s/answers", t->folder.dir);
    mem_pool_enter();
    int rc = dir_make(folder, e);
    mem_pool_leave();
    if (rc) return rc;
    *fd = open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    return *fd < 0 ? file_error(part, "be created", e) : PL_OK;
}

int trainer_answer(struct trainer *t, struct error *e)
{
    char to[FOLDER_PATH + 64], part[FOLDER_PATH + 64];
    int fd = -1, rc = PL_OK;
    snprintf(part, sizeof part, "%s/answers/.step-%" PRIu64 ".jsonl.tmp", t->folder.dir, t->state.step);
    snprintf(to, sizeof to, "%s/answers/step-%" PRIu64 ".jsonl", t->folder.dir, t->state.step);
    if (trainer_leads(t)) rc = open_part(t, part, &fd, e);
    rc = agree_on(t->answering.generator.together, rc, e);
    if (!rc) rc = answer_all(t, fd, e);
    if (fd < 0) return rc;
    if (!rc && fsync(fd)) rc = file_error(part, "be written", e);
    close(fd);
    if (!rc) rc = file_rename(part, to, e);
    if (rc) unlink(part);
    return rc;
}

/* --- reporting ------------------------------------------------------------------------------ */

static void log_scores(const struct trainer *t, const char *file, const struct text_scores *s)
{
    const struct text_score x = text_scores_result(s);
    log_note("step %" PRIu64 ": exact match %.1f %%, token F1 %.1f, BLEU %.1f, ROUGE-L %.1f over %" PRIu64
             " prompts%s%s",
             t->state.step, x.exact, x.f1, x.bleu, x.rouge_l, s->answers, *file ? " of " : "", file);
}

/* Writes a line of metrics.jsonl for a file. A path that would be too long for a line is cut at its
 * beginning. */
static int report_file(struct trainer *t, uint32_t f, struct error *e)
{
    const struct answering *x = &t->answering;
    const char *name = x->held.questions.files.at[f];
    struct text line = {0};
    struct json_writer w = {.out = &line};
    const size_t n = strlen(name), most = FOLDER_LINE / 8; /* a byte is at most 6 in JSON */
    json_begin_map(&w, NULL);
    json_put_uint(&w, "step", t->state.step);
    json_put_string(&w, "file", n > most ? name + n - most : name);
    json_put_uint(&w, "prompts", x->scores[f].answers);
    answers_put_scores(&w, &x->scores[f]);
    json_end(&w);
    int rc = folder_metrics(&t->folder, e, "%s", line.at);
    text_free(&line);
    return rc;
}

int trainer_report_answers(struct trainer *t, struct error *e)
{
    const struct answering *x = &t->answering;
    const struct questions *q = &x->held.questions;
    int rc = PL_OK;
    mem_pool_enter();
    for (uint32_t f = 0; f < q->files.n && !rc; f++) {
        if (q->files.n > 1) log_scores(t, q->files.at[f], &x->scores[f]);
        rc = report_file(t, f, e);
    }
    mem_pool_leave();
    log_scores(t, "", &x->all);
    return rc;
}
