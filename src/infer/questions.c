/*
 * questions.c: see questions.h.
 */
#include "infer/questions.h"

#include <stdio.h>
#include <string.h>

#include "data/holdout.h"
#include "data/records.h"
#include "data/tokenize.h"

void questions_free(struct questions *q)
{
    names_free(&q->files);
    mem_free(q->file);
    vec_free(&q->at);
    vec_free(&q->asked);
    bump_free(&q->memory);
    *q = (struct questions){0};
}

/* --- one sample ------------------------------------------------------------------------------- */

/* The prompt as training tokenizes it: BOS once, and no EOS, which the answer ends with. */
static enum conversation_fault encode_text(const struct prompts *p, const char *prompt, struct token_list *out, struct error *e)
{
    struct chat_tokens t;
    const size_t n = strlen(prompt);
    const enum chat_failure failed = chat_encode_text(p->tokenizer, prompt, "", NULL, &t, e);
    struct token_list *l = &t.tokens;
    while (!failed && l->n && l->at[l->n - 1].begin == n && l->at[l->n - 1].id == tokenizer_eos(p->tokenizer)) l->n--;
    for (uint32_t i = 0; i < l->n && !failed; i++) vec_push(out, l->at[i]);
    chat_tokens_free(&t);
    return failed ? SAMPLE_TOKENS : SAMPLE_FINE;
}

/* The messages before the last one. */
static struct value *all_but_last(const struct value *messages, struct bump *b)
{
    struct value *out = value_new(b, VALUE_LIST);
    for (uint32_t i = 0; i + 1 < messages->count; i++) value_append(b, out, value_copy(b, messages->items[i]));
    return out;
}

/* What a sample asks; *prompt NULL: nothing. `b` owns the prompt. */
static enum conversation_fault ask(const struct prompts *p, const struct conversation *c, struct bump *b, struct token_list *tokens, struct value **prompt,
                                   const char **reference, struct error *e)
{
    *prompt = NULL;
    if (c->media->count) {
        error_set(e, PL_USAGE, "it has images or videos (%.100s), and the model takes text alone", c->media->items[0]->text);
        return SAMPLE_MEDIA;
    }
    if (!c->messages) {
        *reference = c->completion;
        if (!*c->prompt) return SAMPLE_FINE;
        *prompt = value_string(b, c->prompt);
        return encode_text(p, c->prompt, tokens, e);
    }
    *reference = value_get(c->messages->items[c->messages->count - 1], "content")->text;
    if (!**reference) return SAMPLE_FINE;
    *prompt = all_but_last(c->messages, b);
    return prompts_chat(p, *prompt, c->tools, tokens, e) ? SAMPLE_TEMPLATE : SAMPLE_FINE;
}

static void add_question(struct questions *q, const struct token_list *tokens, struct value *prompt, const char *reference, uint64_t line)
{
    int32_t *ids = bump_alloc(&q->memory, (tokens->n + 1) * sizeof *ids);
    for (uint32_t i = 0; i < tokens->n; i++) ids[i] = tokens->at[i].id;
    vec_push(&q->at, ((struct question){ids, tokens->n, bump_format(&q->memory, "%s", reference)}));
    vec_push(&q->asked, ((struct asked){value_copy(&q->memory, prompt), line}));
    if (tokens->n > q->longest) q->longest = tokens->n;
}

static int read_sample(struct questions *q, const struct config *c, const struct prompts *p, const char *path, const struct record *x, int64_t longest, struct error *e)
{
    struct bump b = {0};
    struct token_list tokens = {0};
    struct conversation read;
    struct value *sample, *prompt = NULL;
    const char *reference = NULL;
    struct error why = {0};
    int rc = PL_OK;
    enum conversation_fault f = conversation_parse(x->text, x->n, &b, &sample, &why);
    if (!f) f = conversation_read(sample, c->data_system, &b, &read, &why);
    if (!f && read.messages && !p->template) {
        *e = p->no_template;
        rc = error_prepend(e, "%s:%llu is a conversation", path, (unsigned long long)x->line);
    } else if (!f) {
        f = ask(p, &read, &b, &tokens, &prompt, &reference, &why);
    }
    q->report.read++;
    if (!q->report.bad[f]++ && f) snprintf(q->report.first[f], sizeof q->report.first[f], "%.80s:%llu: %.140s", path, (unsigned long long)x->line, why.text);
    if (!f && longest && tokens.n > longest) q->too_long++;
    else if (!f && !rc && prompt && tokens.n) add_question(q, &tokens, prompt, reference, x->line);
    else if (!f) q->unasked++;
    token_list_free(&tokens);
    bump_free(&b);
    return rc;
}

/* --- files ------------------------------------------------------------------------------------- */

/* Counts the samples of all files, for the split. */
static int count_samples(const struct names *files, uint64_t *n, struct error *e)
{
    int rc = PL_OK;
    *n = 0;
    for (uint32_t i = 0; i < files->n && !rc; i++) {
        struct records r;
        struct record x;
        bool more = true;
        if ((rc = records_open(&r, files->at[i], e))) break;
        while (!(rc = records_next(&r, &x, &more, e)) && more) ++*n;
        records_close(&r);
    }
    return rc;
}

/* `held`, unless NULL: which samples are asked, by their number; *number is that of the next one. A file is then read to its end. */
static int read_file(struct questions *q, const struct config *c, const struct prompts *p, uint32_t i, uint64_t most, int64_t longest, const bool *held, uint64_t *number, struct error *e)
{
    struct records r;
    struct record x;
    bool more = true;
    int rc = records_open(&r, q->files.at[i], e);
    if (rc) return rc;
    q->file[i].first = q->at.n;
    while (!rc) {
        const bool enough = most && q->at.n - q->file[i].first >= most;
        if ((enough && !held) || (rc = records_next(&r, &x, &more, e)) || !more) break;
        if (!enough && (!held || held[*number])) rc = read_sample(q, c, p, q->files.at[i], &x, longest, e);
        ++*number;
    }
    q->file[i].n = q->at.n - q->file[i].first;
    records_close(&r);
    return rc;
}

static int check(const struct questions *q, const struct config *c, struct error *e)
{
    const struct sample_report *r = &q->report;
    const uint64_t bad = report_bad(r);
    struct text t = {0};
    int rc = PL_OK;
    report_print(r, &t);
    if (!r->read && c->data_holdout > 0) rc = error_set(e, PL_USAGE, "data.holdout is %g of the samples of data.train, which is none", c->data_holdout);
    else if (!r->read) rc = error_set(e, PL_USAGE, "the files have no samples");
    else if (bad == r->read) rc = error_set(e, PL_USAGE, "%s", t.at);
    else if ((double)bad > c->data_max_bad * (double)r->read) rc = error_set(e, PL_USAGE, "%s. data.max_bad is %g; `plimsoll data inspect` shows samples", t.at, c->data_max_bad);
    else if (!q->at.n && q->too_long) rc = error_set(e, PL_USAGE, "all %llu prompts are too long: set a larger data.sequence", (unsigned long long)q->too_long);
    else if (!q->at.n) rc = error_set(e, PL_USAGE, "no sample has a prompt and an answer of text, so there is nothing to ask");
    else if (bad) log_warn("%s", t.at);
    text_free(&t);
    return rc;
}

int questions_read(struct questions *q, const struct config *c, const struct prompts *p, uint64_t most, int64_t longest, struct error *e)
{
    const struct config_list *paths = c->data_holdout > 0 ? &c->data_train : &c->data_validation;
    uint64_t n = 0, number = 0;
    bool *held = NULL;
    *q = (struct questions){0};
    int rc = tokenize_files(paths->at, paths->n, &q->files, e);
    if (!rc && c->data_holdout > 0 && !(rc = count_samples(&q->files, &n, e))) held = holdout_mark(n, c->data_holdout, (uint64_t)c->data_split_seed);
    if (!rc) q->file = mem_alloc(q->files.n * sizeof *q->file);
    for (uint32_t i = 0; i < q->files.n && !rc; i++) rc = read_file(q, c, p, i, most, longest, held, &number, e);
    mem_free(held);
    return rc ? rc : check(q, c, e);
}
