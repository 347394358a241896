/*
 * questions.c: see questions.h.
 */
#include "infer/questions.h"

#include "data/order.h"
#include "data/text/records.h"
#include "data/text/tokenize.h"
#include "batch/batch_plan.h"
#include "batch/text_source.h"

static void questions_free(struct questions *q)
{
    names_free(&q->files);
    mem_free(q->file);
    vec_free(&q->at);
    vec_free(&q->asked);
    bump_free(&q->memory);
    *q = (struct questions){0};
}

uint32_t questions_file(const struct questions *q, uint32_t i)
{
    uint32_t f = 0;
    while (i >= q->file[f].first + q->file[f].n) f++;
    return f;
}

/* --- one sample ------------------------------------------------------------------------------- */

/* What a sample asks. */
struct asking {
    struct bump b;
    struct token_list tokens;
    struct value *prompt;         /* NULL: nothing */
    const char *reference;
    char **images;                /* of the prompt */
    struct text_images read;
    struct media slots;
    uint64_t image_bytes;         /* that reading them takes */
};

/* Tokenizes the prompt as training does: BOS once, and no EOS, which the answer ends with. */
static enum conversation_fault encode_text(const struct prompts *p, const char *prompt, struct asking *a,
                                           struct error *e)
{
    struct chat_tokens t;
    const enum chat_failure failed = chat_encode_text(p->tokenizer, prompt, "", p->has_images ? &a->read : NULL, &t, e);
    struct token_list *l = &t.tokens;
    while (!failed && l->n && l->at[l->n - 1].begin == l->at[l->n - 1].end &&
           l->at[l->n - 1].id == tokenizer_eos(p->tokenizer))
        l->n--;
    for (uint32_t i = 0; i < l->n && !failed; i++) vec_push(&a->tokens, l->at[i]);
    chat_tokens_free(&t);
    return failed ? SAMPLE_TOKENS : SAMPLE_FINE;
}

/* Returns the messages before the last one. */
static struct value *all_but_last(const struct value *messages, struct bump *b)
{
    struct value *out = value_new(b, VALUE_LIST);
    for (uint32_t i = 0; i + 1 < messages->count; i++) value_append(b, out, value_copy(b, messages->items[i]));
    return out;
}

/* Finds the images of the prompt: the first ones of the sample. An answer may have more. */
static enum conversation_fault ask_images(const struct prompts *p, struct conversation *c, struct asking *a,
                                          struct error *e)
{
    struct text_images all;
    const enum conversation_fault f = tokenize_images(p->has_images ? &p->images : NULL, c, &a->b, &all, e);
    if (f || !p->has_images) return f;
    const uint32_t last = image_text_count(a->reference), n = c->media->count - last;
    a->images = bump_alloc(&a->b, (n + 1) * sizeof *a->images);
    for (uint32_t i = 0; i < n; i++) a->images[i] = (char *)c->media->items[i]->text;
    return prompts_images(p, a->images, n, &a->b, &a->read, &a->slots, &a->image_bytes, e) ? SAMPLE_FILES : SAMPLE_FINE;
}

static enum conversation_fault ask(const struct prompts *p, struct conversation *c, struct asking *a, struct error *e)
{
    a->reference = c->messages ? value_get(c->messages->items[c->messages->count - 1], "content")->text : c->completion;
    const enum conversation_fault f = ask_images(p, c, a, e);
    if (f || !*(c->messages ? a->reference : c->prompt)) return f;
    if (!c->messages) {
        a->prompt = value_string(&a->b, c->prompt);
        return encode_text(p, c->prompt, a, e);
    }
    a->prompt = all_but_last(c->messages, &a->b);
    return prompts_chat(p, a->prompt, c->beside, p->has_images ? &a->read : NULL, &a->tokens, e) ? SAMPLE_TEMPLATE
                                                                                                 : SAMPLE_FINE;
}

static void add_question(struct questions *q, const struct asking *a, uint64_t line)
{
    const uint32_t n = a->read.n;
    int32_t *ids = bump_alloc(&q->memory, (a->tokens.n + 1) * sizeof *ids);
    char **images = bump_alloc(&q->memory, (n + 1) * sizeof *images);
    for (uint32_t i = 0; i < a->tokens.n; i++) ids[i] = a->tokens.at[i].id;
    for (uint32_t i = 0; i < n; i++) images[i] = (char *)bump_format(&q->memory, "%s", a->images[i]);
    vec_push(&q->at, ((struct question){{ids, a->tokens.n, images, n}, bump_format(&q->memory, "%s", a->reference)}));
    vec_push(&q->asked, ((struct asked){value_copy(&q->memory, a->prompt), line}));
    q->longest = max_i64(q->longest, a->tokens.n);
    q->tokens += a->tokens.n;
    media_grow(&q->images, &a->slots);
    if (a->image_bytes > q->image_bytes) q->image_bytes = a->image_bytes;
}

static int read_sample(struct questions *q, const struct config *c, const struct prompts *p, const char *path,
                       const struct record *x, const struct question_limits *most, struct error *e)
{
    struct asking a = {0};
    struct conversation read;
    struct value *sample;
    struct error why = {0};
    int rc = PL_OK;
    enum conversation_fault f = conversation_parse(x->text, x->n, batch_room(c), &a.b, &sample, &why);
    if (!f)
        f = conversation_read(sample, c->data_system, image_text_joint(p->has_images ? &p->images.text : NULL), &a.b,
                              &read, &why);
    if (!f && read.messages && !p->template) {
        *e = p->no_template;
        rc = error_prepend(e, "%s:%s is a conversation", path, record_place(x->line).text);
    } else if (!f) {
        f = ask(p, &read, &a, &why);
    }
    report_add(&q->report, f, x->times, path, x->line, why.text);
    if (!f && most->tokens && a.tokens.n > most->tokens) q->too_long++;
    else if (!f && most->media && !media_fit(most->media, &a.slots)) q->too_many++;
    else if (!f && !rc && a.prompt && a.tokens.n) add_question(q, &a, x->line);
    else if (!f) q->unasked++;
    token_list_free(&a.tokens);
    bump_free(&a.b);
    return rc;
}

/* --- files ------------------------------------------------------------------------------------ */

/* The samples of all files, for the split. */
struct counted {
    uint64_t n, empty; /* empty: rows without a value, of which a small table may have billions */
    VEC(struct group_member) members;
};

/* Finds the group of a sample as training does. */
static void find_group(const struct config *c, const struct prompts *p, const struct record *x, struct counted *out)
{
    struct bump b = {0};
    struct conversation read;
    struct value *sample;
    struct error ignored;
    if (!conversation_parse(x->text, x->n, batch_room(c), &b, &sample, &ignored) &&
        !conversation_read(sample, c->data_system, image_text_joint(p->has_images ? &p->images.text : NULL), &b, &read,
                           &ignored)) {
        const uint64_t group = conversation_group(read.media);
        if (group) vec_push(&out->members, ((struct group_member){group, out->n}));
    }
    bump_free(&b);
}

static int count_samples(const struct names *files, const struct config *c, const struct prompts *p,
                         struct counted *out, struct error *e)
{
    int rc = PL_OK;
    for (uint32_t i = 0; i < files->n && !rc; i++) {
        struct records r;
        struct record x;
        bool more = true;
        if ((rc = records_open(&r, files->at[i], batch_room(c), e))) break;
        while (!(rc = records_next(&r, &x, &more, e)) && more) {
            if (x.times == 1 && p->has_images) find_group(c, p, &x, out);
            out->n += x.times, out->empty += x.times - 1;
        }
        records_close(&r);
    }
    return rc;
}

/* Reads the questions of a file. `held`, unless NULL: which samples are asked, by their number;
 * *number is that of the next one. A file is then read to its end. */
static int read_file(struct questions *q, const struct config *c, const struct prompts *p, uint32_t i,
                     const struct question_limits *most, const bool *held, uint64_t *number, struct error *e)
{
    struct records r;
    struct record x;
    bool more = true;
    int rc = records_open(&r, q->files.at[i], batch_room(c), e);
    if (rc) return rc;
    q->file[i].first = q->at.n;
    while (!rc) {
        const bool enough = most->questions && q->at.n - q->file[i].first >= most->questions;
        if ((enough && !held) || (rc = records_next(&r, &x, &more, e)) || !more) break;
        const uint64_t times = x.times;
        for (uint64_t k = x.times = 0; k < times; k++) x.times += !held || held[*number + k];
        if (!enough && x.times) rc = read_sample(q, c, p, q->files.at[i], &x, most, e);
        *number += times;
    }
    q->file[i].n = q->at.n - q->file[i].first;
    records_close(&r);
    return rc;
}

/* Checks the faults. `samples`: of all files. A part that is held out may have as many that cannot
 * be used as training allows in the whole. */
static int check(const struct questions *q, const struct config *c, uint64_t samples, struct error *e)
{
    const struct sample_report *r = &q->report;
    const uint64_t bad = report_bad(r);
    struct text t = {0};
    int rc = PL_OK;
    report_print(r, &t);
    if (!r->read && c->data_holdout > 0)
        rc = error_set(e, PL_USAGE, "data.holdout is %g of the samples of data.train, which is none", c->data_holdout);
    else if (!r->read) rc = error_set(e, PL_USAGE, "the files have no samples");
    else if (bad == r->read) rc = error_set(e, PL_USAGE, "%s", t.at);
    else if ((double)bad > c->data_max_bad * (double)(samples ? samples : r->read))
        rc = error_set(e, PL_USAGE, "%s. data.max_bad is %g; `plimsoll data inspect` shows samples", t.at,
                       c->data_max_bad);
    else if (!q->at.n && q->too_long)
        rc = error_set(e, PL_USAGE, "all %llu prompts are too long: set a larger data.sequence",
                       (unsigned long long)q->too_long);
    else if (!q->at.n && q->too_many)
        rc = error_set(e, PL_USAGE,
                       "all %llu prompts have more images than data.max_images, or more frames than data.max_frames",
                       (unsigned long long)q->too_many);
    else if (!q->at.n)
        rc = error_set(e, PL_USAGE, "no sample has a prompt and an answer of text, so there is nothing to ask");
    else if (bad) log_warn("%s", t.at);
    text_free(&t);
    return rc;
}

/* Reads the files of data.validation, or with data.holdout the samples of data.train that are held
 * out. PL_USAGE: there are none, or more samples than data.max_bad could not be used.
 * answers_close is called in any case. */
static int questions_read(struct questions *q, const struct config *c, const struct prompts *p,
                          const struct question_limits *most, struct error *e)
{
    const struct config_list *paths = c->data_holdout > 0 ? &c->data_train : &c->data_validation;
    struct counted all = {0};
    uint64_t number = 0;
    bool *held = NULL, one;
    *q = (struct questions){0};
    int rc = tokenize_files(paths->at, paths->n, &q->files, e);
    if (!rc && c->data_holdout > 0) rc = count_samples(&q->files, c, p, &all, e);
    if (!rc && (double)all.empty > c->data_max_bad * (double)all.n)
        rc = error_set(e, PL_USAGE, "%llu of %llu rows have no value, and data.max_bad is %g",
                       (unsigned long long)all.empty, (unsigned long long)all.n, c->data_max_bad);
    if (!rc && c->data_holdout > 0)
        held = holdout_mark(all.n, all.members.at, all.members.n, c->data_holdout, (uint64_t)c->data_split_seed, &one);
    vec_free(&all.members);
    if (!rc) q->file = mem_alloc(q->files.n * sizeof *q->file);
    for (uint32_t i = 0; i < q->files.n && !rc; i++) rc = read_file(q, c, p, i, most, held, &number, e);
    mem_free(held);
    return rc ? rc : check(q, c, all.n, e);
}

/* --- answers and their scores ---------------------------------------------------------------- */

int answers_open(struct held_out *h, const struct config *c, const struct question_limits *most, struct error *e)
{
    struct text_scope x;
    *h = (struct held_out){0};
    int rc = text_scope_open(&x, c, FEED_VALIDATION, e);
    if (!rc) rc = generation_config_read(&h->folder, c->model_path, e);
    if (!rc) rc = prompts_open(&h->prompts, c, &x.scope, e);
    if (!rc && h->prompts.has_images && image_files_store(h->prompts.images.files))
        rc = error_set(e, PL_USAGE,
                       "%s has embeddings of images, and answers need the images, which the vision tower sees: set "
                       "data.images to their folder or tar",
                       x.where.at);
    if (!rc) rc = questions_read(&h->questions, c, &h->prompts, most, e);
    text_scope_close(&x);
    if (rc) return rc;
    const int32_t eos = tokenizer_eos(h->prompts.tokenizer); /* the end of a turn in many templates */
    if (eos >= 0) vec_push(&h->folder.eos, eos);
    return PL_OK;
}

void answers_close(struct held_out *h)
{
    questions_free(&h->questions);
    prompts_close(&h->prompts);
    generation_config_free(&h->folder);
}

struct generate_options answers_options(const struct held_out *h, int64_t tokens)
{
    return (struct generate_options){.sampling = {.top_p = 1, .repetition_penalty = 1},
                                     .most = tokens,
                                     .ends = h->folder.eos.at,
                                     .n_ends = h->folder.eos.n,
                                     .tokenizer = h->prompts.tokenizer,
                                     .images = h->prompts.has_images ? &h->prompts.images : NULL};
}

void answers_put_scores(struct json_writer *w, const struct text_scores *s)
{
    const struct text_score x = text_scores_result(s);
    json_put_number(w, "exact_match", x.exact);
    json_put_number(w, "token_f1", x.f1);
    json_put_number(w, "bleu", x.bleu);
    json_put_number(w, "rouge_l", x.rouge_l);
}

void answers_put_line(struct text *out, const struct held_out *h, uint32_t file, uint32_t i, const struct answer *a,
                      const struct text_scores *one)
{
    const struct questions *q = &h->questions;
    const uint32_t number = q->file[file].first + i;
    struct json_writer w = {.out = out};
    json_begin_map(&w, NULL);
    json_put_string(&w, "file", q->files.at[file]);
    json_put_uint(&w, "line", record_line(q->asked.at[number].line));
    const struct prompt *p = &q->at.at[number].prompt;
    if (p->n_images) json_begin_list(&w, "images");
    for (uint32_t k = 0; k < p->n_images; k++) json_put_string(&w, NULL, p->images[k]);
    if (p->n_images) json_end(&w);
    json_put_value(&w, "prompt", q->asked.at[number].prompt);
    json_put_bytes(&w, "answer", a->text.n ? a->text.at : "", a->text.n);
    json_put_string(&w, "reference", q->at.at[number].reference);
    json_put_string(&w, "finish", generate_end_name(a->end));
    answers_put_scores(&w, one);
    json_end(&w);
    text_printf(out, "\n");
}
