/*
 * evaluation.c: see requests.h.
 */
#include "report/requests.h"

#include <math.h>

#include "data/dataset.h"
#include "io/png.h"
#include "io/table.h"
#include "report/worst.h"

enum { WORST = 8 };

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

static void print_answered(const struct answered *v, bool loss, const struct report_table *files, struct text *out)
{
    char time[32], arena[32];
    table_print(files, 0, 0, out);
    if (loss) text_printf(out, "\nloss %.6g, perplexity %.6g\n", v->loss.loss, exp(v->loss.loss));
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

static void show_answered(const struct answered *v, const struct evaluation *o)
{
    const struct questions *q = &v->held.questions;
    const bool loss = o->answers.loss;
    struct report_table files = REPORT_TABLE(FILES);
    struct text out = {0};
    for (uint32_t i = 0; i < q->files.n; i++) add_scores(&files, q->files.at[i], &v->scores[i]);
    if (q->files.n > 1) add_scores(&files, "all", &v->all)->text_only = true;
    print_answered(v, loss, &files, &out);
    if (o->json)
        PRINT_FACTS(2, FACT("model", o->model), FACT("prompts", v->all.answers), FACT_CALL(put_scores, &v->all),
                    FACT_IF(loss, "loss", v->loss.loss), FACT_IF(loss, "perplexity", exp(v->loss.loss)),
                    FACT_IF(loss, "loss_arena_bytes", v->loss.arena), FACT("cut_answers", v->unfinished),
                    FACT("unusable_samples", report_bad(&q->report)), FACT("without_prompt", q->unasked),
                    FACT("seconds", v->seconds), FACT("arena_bytes", plan_arena(&v->generator.run->planned.plan)),
                    FACT("kv_cache_bytes", generator_cache_bytes(&v->generator)), FACT("batch", v->generator.texts),
                    FACT_TABLE("files", &files));
    else fputs(out.at, stdout);
    text_free(&out);
    table_free(&files);
}

/* Checks the folder of the answers, which are written when all are there. */
static int check_output(const char *path, struct error *e)
{
    char folder[4096];
    if (!path) return PL_OK;
    TRY(path_dir(path, folder, sizeof folder, e));
    if (!dir_exists(folder)) return error_set(e, PL_USAGE, "-o %s: there is no folder %s", path, folder);
    return dir_exists(path) ? error_set(e, PL_USAGE, "-o %s is a folder, expected the name of a file", path) : PL_OK;
}

int evaluate_answers(struct config *c, const struct evaluation *o, struct error *e)
{
    struct answered v;
    if (o->answers.max_new > 1 << 24)
        return error_set(e, PL_USAGE, "--max-new: expected at most %d tokens", 1 << 24);
    TRY(check_output(o->output, e));
    struct answer_options answers = o->answers;
    answers.lines = o->output;
    int rc = validate_answers(&v, c, &answers, e);
    if (!rc) show_answered(&v, o);
    if (!rc && o->output) rc = file_write_atomic(o->output, v.lines.n ? v.lines.at : "", v.lines.n, e);
    answered_close(&v);
    return rc;
}

/* --- questions ---------------------------------------------------------------------------- */

/* Answers the questions of the validation rows of a table, and adds the scores to a JSON map `w`,
 * or if that is NULL to `out`. */
static int score_questions(const struct config *c, const struct evaluation *o, struct json_writer *w, struct text *out,
                   struct error *e)
{
    struct answered_questions *v = mem_alloc(sizeof *v);
    struct report_column columns[COUNT(FILES)];
    struct report_table t = REPORT_TABLE(columns);
    memcpy(columns, FILES, sizeof columns);
    columns[0].title = "dataset", columns[1].title = "answers";
    int rc = validate_questions(v, c, &o->answers, e);
    if (w && !rc) json_begin_map(w, "answers");
    for (int32_t k = -1; k < ANSWER_DATASETS && !rc; k++) {
        const struct text_scores *x = k < 0 ? &v->all : &v->by[k];
        const char *name = k < 0 ? "all" : answered_dataset(v, k);
        if (k >= 0 && !x->answers) continue;
        add_scores(&t, name, x);
        if (w) PUT_FACTS(w, FACT_MAP(name, FACT_CALL(put_scores, x)));
    }
    if (w && !rc) json_end(w);
    else if (!rc) text_printf(out, "\n"), table_print(&t, 0, 0, out);
    table_free(&t);
    answered_questions_close(v);
    mem_free(v);
    return rc;
}

/* --- tokens and texts ---------------------------------------------------------------------- */

int evaluate_tokens(struct config *c, const struct evaluation *o, struct error *e)
{
    struct mean_loss x;
    char arena[32];
    TRY(validate_files(c, &x, e));
    if (o->json)
        PRINT_FACTS(2, FACT("model", o->model), FACT("loss", x.loss), FACT("perplexity", exp(x.loss)),
                    FACT("rows", x.samples), FACT("sequence", c->data_sequence),
                    FACT("predicted_tokens", (uint64_t)x.tokens), FACT("arena_bytes", x.arena));
    else
        printf("loss %.6g, perplexity %.6g over %llu tokens, in %llu rows of %lld (data.sequence), arena %s\n", x.loss,
               exp(x.loss), (unsigned long long)x.tokens, (unsigned long long)x.samples, (long long)c->data_sequence,
               size_print(x.arena, arena));
    return PL_OK;
}

/* --- masks -------------------------------------------------------------------------------- */

struct shown {
    const struct evaluation *o;
    struct config *config;
    struct mask_validation masks;
    bool questions; /* masks were asked for by questions: the run is closed */
};

static void print_worst(const struct shown *v, struct text *out)
{
    const struct scores *s = &v->masks.found.scores;
    for (uint32_t i = 0; i < s->n_worst; i++) {
        const struct worst *w = &s->worst[i];
        char name[512];
        dataset_name(feed_dataset(&v->masks.feed), w->sample, name, sizeof name);
        text_printf(out, "%s%-10s IoU %.4f  %s, mask %lld\n", i ? "" : "\nworst:\n", s->prompts[w->prompt], w->iou,
                    name, (long long)w->mask);
    }
}

static void print_loss(const struct mask_validation *x, const char *unit, struct text *out)
{
    char arena[32], time[32], left[512];
    text_printf(out, "loss %.6g over %llu %s%s, %llu of them unreadable, %s, arena %s\n", x->loss,
                (unsigned long long)x->feed.samples, unit, x->feed.samples == 1 ? "" : "s",
                (unsigned long long)x->feed.broken, duration_print(x->seconds, time),
                size_print(plan_arena(&x->run.planned.plan), arena));
    if (feed_print_left(&x->feed, left, sizeof left)) text_printf(out, "%s\n", left);
}

static void put_prompts(struct json_writer *w, const void *of)
{
    const struct scores *s = of;
    json_begin_map(w, "prompts");
    for (uint32_t p = 0; p < s->n_prompts; p++) scores_json(s, p, w);
    json_end(w);
}

/* Prints the scores. A model that answers in words too gets the memory of the run for that. */
static int report_masks(struct shown *v, struct text *out, struct error *e)
{
    struct mask_validation *x = &v->masks;
    struct json_writer w = {.out = out, .indent = 2};
    v->questions = model_is(&x->run.planned.model, "questions");
    if (v->o->json) {
        json_begin_map(&w, NULL);
        PUT_FACTS(&w, FACT("model", v->o->model), FACT("samples", x->feed.samples),
                  FACT("broken_samples", x->feed.broken), FACT("too_small_masks", x->feed.left.small),
                  FACT("loss", x->loss), FACT("seconds", x->seconds),
                  FACT("arena_bytes", plan_arena(&x->run.planned.plan)), FACT_CALL(put_prompts, &x->found.scores),
                  FACT_CALL_IF(x->has_own, own_size_put, &x->own));
    } else {
        scores_print(&x->found.scores, out);
        if (x->has_own) own_size_print(&x->own, out);
        print_worst(v, out);
        text_printf(out, "\n");
        print_loss(x, "image", out);
    }
    int rc = PL_OK;
    if (v->questions) {
        mask_validation_end_run(x);
        rc = score_questions(v->config, v->o, v->o->json ? &w : NULL, out, e);
    }
    if (v->o->json) json_end(&w), text_printf(out, "\n");
    return rc;
}

static int report(struct shown *v, struct error *e)
{
    struct text out = {0}, csv = {0};
    scores_csv(&v->masks.found.scores, &csv);
    int rc = report_masks(v, &out, e);
    if (!rc) fputs(out.at, stdout);
    if (!rc && v->o->csv) rc = file_write_atomic(v->o->csv, csv.at, csv.n, e);
    if (!rc && v->masks.has_own) rc = own_size_write(&v->masks.own, v->o->images, v->o->structures, e);
    text_free(&out);
    text_free(&csv);
    return rc;
}

/* Reports a model that matches masks with texts, or a vision tower with a head. */
static void report_retrieval(const struct shown *v)
{
    const struct mask_validation *m = &v->masks;
    const struct retrieval *x = &m->retrieval;
    struct text out = {0};
    if (v->o->json)
        PRINT_FACTS(2, FACT("model", v->o->model), FACT("samples", m->feed.samples),
                    FACT("broken_samples", m->feed.broken), FACT("queries", x->queries),
                    FACT("accuracy", retrieval_accuracy(x)), FACT("chance", retrieval_chance(x)),
                    FACT("loss", m->loss), FACT("seconds", m->seconds),
                    FACT("arena_bytes", plan_arena(&m->run.planned.plan)));
    else {
        print_loss(m, "sample", &out);
        printf("%saccuracy %.4f: %llu of %llu %s; by chance %.4f would\n%s", m->feed.matches->word,
               retrieval_accuracy(x), (unsigned long long)x->right, (unsigned long long)x->queries,
               m->feed.matches->found, retrieval_chance(x), out.at);
    }
    text_free(&out);
}

static int draw(const struct shown *v, struct error *e)
{
    const struct mask_validation *x = &v->masks;
    const struct scores *s = &x->found.scores;
    struct dataset *rows = NULL;
    struct text table = {0};
    if (x->has_own) own_size_page(&x->own, &table);
    int rc = v->questions ? feed_open_questions(&rows, v->config, FEED_VALIDATION, e) : PL_OK;
    if (!rc)
        rc = worst_sheet(&(struct worst_masks){v->config, rows ? rows : feed_dataset(&x->feed), s->prompts, s->worst,
                                               s->n_worst, table.at},
                         v->o->overlays, e);
    dataset_close(rows);
    text_free(&table);
    return rc;
}

int evaluate_masks(struct config *c, const struct evaluation *o, struct error *e)
{
    struct shown v = {.o = o, .config = c};
    struct mask_validation *x = &v.masks;
    const uint32_t worst = o->worst == UINT64_MAX ? WORST : (uint32_t)o->worst;
    int rc = mask_validation_open(x, c, worst, o->own_size ? &o->own : NULL, e);
    if (!rc && x->matches && (o->csv || o->overlays))
        rc = error_set(e, PL_USAGE, "%s is for models that predict masks, and a %s %s", o->csv ? "--csv" : "--overlays",
                       x->run.planned.model.family->model_type,
                       x->feed.matches->model);
    if (!rc) rc = mask_validation_run(x, e);
    if (!rc && x->matches) report_retrieval(&v);
    if (!rc && !x->matches) rc = report(&v, e);
    if (!rc && o->overlays) rc = draw(&v, e);
    mask_validation_close(x);
    return rc;
}

/* --- options ------------------------------------------------------------------------------ */

int evaluation_check(struct evaluation *o, struct error *e)
{
    double *mm = o->own.mm;
    char *end = NULL;
    o->own_size |= o->images || o->structures;
    if (o->worst > 100000 && o->worst != UINT64_MAX)
        return error_set(e, PL_USAGE, "--worst %llu: expected at most 100000", (unsigned long long)o->worst);
    if (o->spacing) {
        mm[0] = strtod(o->spacing, &end);
        mm[1] = *end == ',' ? strtod(end + 1, &end) : mm[0];
        if (end == o->spacing || *end || !(mm[0] > 0 && mm[1] > 0 && isfinite(mm[0]) && isfinite(mm[1])))
            return error_set(e, PL_USAGE, "--spacing %s: expected X,Y, the size of a pixel in mm, such as 0.7,0.7",
                             o->spacing);
    }
    if (!(o->own.tolerance >= 0))
        return error_set(e, PL_USAGE, "--tolerance %g: expected at least 0 mm", o->own.tolerance);
    if (o->spacing && !(o->own_size))
        return error_set(e, PL_USAGE, "--spacing is for scores at the image's own size: add --own-size");
    return png_check_name("--overlays", o->overlays, e);
}

