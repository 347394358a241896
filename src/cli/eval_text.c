/*
 * eval_text.c: `plimsoll eval` of language models: the scores of their answers, and their loss
 * (infer/validate_answers.h, infer/validate.h).
 */
#include "cli/eval.h"

#include <math.h>

#include "io/table.h"

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

static void show_answered(const struct answered *v, const struct eval_text *o)
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

int eval_text(const struct config *c, struct eval_text *o, struct error *e)
{
    struct answered v;
    if (o->answers.max_new > 1 << 24)
        return error_set(e, PL_USAGE, "--max-new: expected at most %d tokens", 1 << 24);
    TRY(check_output(o->output, e));
    o->answers.lines = o->output;
    int rc = validate_answers(&v, c, &o->answers, e);
    if (!rc) show_answered(&v, o);
    if (!rc && o->output) rc = file_write_atomic(o->output, v.lines.n ? v.lines.at : "", v.lines.n, e);
    answered_close(&v);
    return rc;
}

/* --- questions ---------------------------------------------------------------------------- */

int eval_questions(const struct config *c, const struct eval_text *o, struct json_writer *w, struct text *out,
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

int eval_tokens(struct config *c, const struct eval_text *o, struct error *e)
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
