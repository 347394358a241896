/*
 * validate.c: see validate.h.
 */
#include "infer/validate.h"

#include <math.h>

#include "base/caller.h"
#include "base/progress.h"
#include "data/text/tokens.h"
#include "infer/loss_sums.h"
#include "io/file.h"
#include "text/tokenizer/tokenizer.h"

enum { TEXT_MOST = 1 << 30 };

/* --- the forward over all samples --------------------------------------------------------- */

/* A run and its data, both started, and what is scored: NULL where nothing is. */
struct forward {
    struct run *run;
    struct feed *feed;
    struct mask_scores *masks;
    struct retrieval *found;
    struct own_size *own;
};

static int run_pass(const struct forward *v, struct progress *p, struct loss_sums *sums, struct error *e)
{
    const struct step_block b = {.loss_scale = 1, .step = 1, .adam_t = 1};
    struct run *r = v->run;
    const int64_t B = r->planned.effective_batch, n = (int64_t)v->feed->samples;
    const id loss = graph_find_output(&r->planned.graph, PROGRAM_STEP, "loss");
    for (int64_t at = 0; at < n; at += B) {
        struct feed_batch batch;
        float l = 0;
        TRY(caller_check(e));
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

/* Runs all passes of the feed. *counted: what the loss is divided by, such as the tokens with a
 * label. */
static int run_passes(const struct forward *v, double *loss, double *counted, struct error *e)
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
    *counted = sums.count[0];
    if (!loss_sums_mean(&sums, loss) && !rc) rc = feed_empty(v->feed, e);
    progress_clear();
    return rc;
}

/* Plans and starts a run and its data. `folder`: for the token store, if there is none beside the
 * data. */
static int start(struct run *run, struct feed *feed, const struct config *c, int64_t usual, bool picks,
                 const char *folder, struct error *e)
{
    const struct run_options o = {.evaluate = true, .picks = picks, .describe = feed_describe,
                                  .B = c->memory_micro_batch.chosen ? config_micro_batch(c) : usual,
                                  .T = c->data_sequence};
    TRY(run_plan(run, c, &o, e));
    TRY(feed_open(feed, c, run, FEED_VALIDATION, e));
    TRY(feed_prepare(feed, run, folder, e));
    TRY(run_start(run, NULL, true, e));
    return feed_start(feed, run, 0, 0, e);
}

/* --- the loss --------------------------------------------------------------------------------- */

static int find_loss(const struct config *c, const char *folder, struct mean_loss *out, struct error *e)
{
    struct run run = {0};
    struct feed feed = {0};
    int rc = start(&run, &feed, c, 1, false, folder, e);
    if (!rc) rc = run_passes(&(struct forward){.run = &run, .feed = &feed}, &out->loss, &out->tokens, e);
    if (!rc) out->arena = plan_arena(&run.planned.plan), out->samples = feed.samples;
    feed_close(&feed);
    run_close(&run);
    return rc;
}

int validate_loss(const struct config *c, struct mean_loss *out, struct error *e)
{
    struct temporary t;
    TRY(temporary_work(&t, e));
    int rc = find_loss(c, t.path, out, e);
    temporary_drop(&t);
    return rc;
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
        if (!is_plain_text(files->at[i]))
            return error_set(e, PL_USAGE, "%s and %s are given: expected files of the same kind, texts or tokens",
                             files->at[0], files->at[i]);
        if (!c->model_path)
            return error_set(e, PL_USAGE, "a preset has no tokenizer: give a model folder, or a file of tokens");
        TRY(tokenize_file(files->at[i], c->data_tokenizer ? c->data_tokenizer : c->model_path, paths[i], &n, e));
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

int validate_files(struct config *c, struct mean_loss *out, struct error *e)
{
    const struct config_list given = c->data_validation;
    struct bump memory = {0};
    struct temporary t;
    TRY(temporary_work(&t, e));
    int rc = c->data_format != FORMAT_TEXT && given.n && is_plain_text(given.at[0])
                 ? tokenize_texts(c, t.path, &memory, e)
                 : PL_OK;
    if (!rc) rc = find_loss(c, t.path, out, e);
    c->data_validation = given;
    temporary_drop(&t);
    bump_free(&memory);
    return rc;
}

/* --- masks, and what is matched with texts or classes ----------------------------------------- */

int mask_validation_open(struct mask_validation *v, const struct config *c, uint32_t worst,
                         const struct own_size_options *own, struct error *e)
{
    /* an image is compared with the texts of its batch */
    const int64_t usual = c->data_format == FORMAT_CAPTIONS ? c->train_effective_batch : 1;
    TRY(temporary_work(&v->folder, e));
    TRY(start(&v->run, &v->feed, c, usual, own, v->folder.path, e));
    const char *type = v->run.planned.model.family->model_type;
    v->matches = retrieval_open(&v->retrieval, &v->run, &v->feed, PROGRAM_STEP);
    if (!v->matches && !mask_scores_open(&v->found, &v->run, &v->feed, PROGRAM_STEP, worst))
        return error_set(e, PL_USAGE, "a %s predicts no masks, so there is nothing to score", type);
    v->has_own = own && own_size_open(&v->own, &v->run, &v->feed, v->found.prompts, own->mm, own->tolerance);
    if (own && !v->has_own)
        return error_set(e, PL_USAGE,
                         "scores at the image's own size are for models that take points and boxes, and a %s does not",
                         type);
    return PL_OK;
}

int mask_validation_run(struct mask_validation *v, struct error *e)
{
    const struct forward f = {&v->run, &v->feed, v->matches ? NULL : &v->found, v->matches ? &v->retrieval : NULL,
                              v->has_own ? &v->own : NULL};
    const double from = clock_seconds();
    double counted;
    int rc = run_passes(&f, &v->loss, &counted, e);
    if (v->has_own) volume_scores_end(&v->own.volumes);
    v->seconds = clock_seconds() - from;
    return rc;
}

void mask_validation_end_run(struct mask_validation *v)
{
    struct scores *s = &v->found.scores;
    for (uint32_t i = 0; i < s->n_worst; i++) s->worst[i].sample = question_number(&v->feed, s->worst[i].sample);
    feed_close(&v->feed);
    run_close(&v->run);
    v->run = (struct run){0};
}

void mask_validation_close(struct mask_validation *v)
{
    if (v->has_own) own_size_close(&v->own);
    mask_scores_close(&v->found);
    retrieval_close(&v->retrieval);
    feed_close(&v->feed);
    run_close(&v->run);
    temporary_drop(&v->folder);
}
