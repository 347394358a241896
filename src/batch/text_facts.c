/*
 * text_facts.c: see text_source.h.
 */
#include "batch/text_source.h"

#include "batch/batch_plan.h"
#include "io/json.h"
#include "io/temporary.h"

static void count_sample(struct text_facts *f, const struct conversation *c)
{
    const uint64_t turns = c->messages ? c->messages->count : 1;
    f->counted++;
    f->turns += turns;
    if (turns > f->most_turns) f->most_turns = turns;
    if (c->messages && turns) f->with_system += !strcmp(value_get(c->messages->items[0], "role")->text, "system");
    f->with_tools += value_get(c->beside, "tools") != NULL;
    f->with_media += c->media->count > 0;
}

/* Opens a file of conversations, or of plain text, as the configuration says. */
static int text_open_records(const struct config *c, const char *path, struct records *r, struct error *e)
{
    return c->data_format == FORMAT_TEXT ? records_open_text(r, path, e) : records_open(r, path, batch_room(c), e);
}

static int read_file(struct text_facts *f, const char *path, const struct config *c, struct error *e)
{
    struct records r;
    struct record x;
    bool more = true;
    int rc = text_open_records(c, path, &r, e);
    if (rc) return rc;
    while (!(rc = records_next(&r, &x, &more, e)) && more) {
        struct bump b = {0};
        struct value *sample;
        struct conversation read;
        struct error why = {0};
        enum conversation_fault fault = conversation_parse(x.text, x.n, batch_room(c), &b, &sample, &why);
        if (!fault) fault = conversation_read(sample, c->data_system, "", &b, &read, &why);
        if (!f->format && fault != SAMPLE_JSON) f->format = conversation_format(sample);
        report_add(&f->report, fault, x.times, path, x.line, why.text);
        if (!fault) count_sample(f, &read);
        bump_free(&b);
    }
    records_close(&r);
    return rc;
}

int text_count(struct text_facts *f, const struct config *c, struct error *e)
{
    struct names files;
    int rc = tokenize_files(c->data_train.at, c->data_train.n, &files, e);
    for (uint32_t i = 0; i < files.n && !rc; i++) rc = read_file(f, files.at[i], c, e);
    names_free(&files);
    return rc;
}

static void measure_lengths(struct text_measures *m, const struct token_store *s)
{
    const uint64_t n = s->header->samples;
    uint32_t *lengths = token_store_lengths(s);
    m->tokens = true;
    m->samples = n;
    m->total = s->header->tokens;
    m->median = length_at(lengths, n, 0.5), m->p95 = length_at(lengths, n, 0.95), m->longest = length_at(lengths, n, 1);
    mem_free(lengths);
}

/* Looks for each image; none is decoded. */
static void find_images(struct text_measures *m, const struct token_store *s, struct image_files *files)
{
    for (uint64_t i = 0; i < s->header->samples; i++) {
        const struct stored_sample *x = &s->samples[i];
        const char *name = s->names + x->media;
        struct error e;
        uint64_t bytes;
        int rc = PL_OK;
        for (uint32_t k = 0; k < x->n_media && !rc; k++, name += strlen(name) + 1)
            rc = image_files_find(files, name, &bytes, &e);
        if (rc && !m->missing++)
            snprintf(m->first_missing, sizeof m->first_missing, "%.80s:%s: %.240s", s->names + x->file,
                     record_place(x->line).text, e.text);
    }
}

int text_measure(struct text_measures *m, const struct config *c, const struct text_source *s,
                 struct sample_report *report, struct error *e)
{
    char path[4096];
    struct token_store_key key = {0};
    struct token_store store;
    struct temporary t;
    if (temporary_work(&t, e)) return e->code;
    snprintf(path, sizeof path, "%s/tokenized", t.path);
    int rc = tokenize_build(&s->options, &key, path, e);
    if (!rc && !(rc = token_store_open(&store, path, e))) {
        *report = store.header->report;
        measure_lengths(m, &store);
        if (s->images.files) find_images(m, &store, s->images.files);
        token_store_close(&store);
    }
    if (!rc) {
        struct conversations_options o = text_rows(c, s, FEED_TRAIN, 0);
        struct error why;
        o.max_bad = 1;
        o.holdout = 0;
        m->rows = !conversations_open(&m->set, path, &o, &why);
        if (!m->rows) snprintf(m->no_rows, sizeof m->no_rows, "%.1000s", why.text);
    }
    temporary_drop(&t); /* the map of `set` remains */
    return rc;
}

/* ---- samples ---- */

/* Prints text of the data as it is, but for control codes. */
static void put_text(struct text *out, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)bytes[i];
        if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7f) text_printf(out, "\\x%02x", c);
        else text_append(out, bytes + i, 1);
    }
}

/* Prints the text with the label ranges of its tokens under data.train_on marked; returns the
 * number of labels. */
static uint32_t mark_labels(const struct config *c, const struct tokenized *t, const char *text, size_t n,
                            struct text *out)
{
    const struct token_list *l = &t->tokens.tokens;
    uint32_t labels = 0;
    size_t at = 0;
    const uint32_t answers = t->tokens.answers.n;
    for (uint32_t i = c->data_train_on == TRAIN_ON_LAST && answers ? answers - 1 : 0;
         i < (c->data_train_on == TRAIN_ON_ALL ? 1 : answers); i++) {
        struct byte_range r = c->data_train_on == TRAIN_ON_ALL ? (struct byte_range){0, l->n} : t->tokens.answers.at[i];
        if (!r.begin) r.begin = 1; /* nothing predicts the first token */
        const size_t from = r.begin < l->n ? l->at[r.begin].begin : n, to = r.end ? l->at[r.end - 1].end : 0;
        put_text(out, text + at, from - at);
        text_printf(out, "{+");
        put_text(out, text + from, to - from);
        text_printf(out, "+}");
        at = to;
        labels += r.end - r.begin;
    }
    put_text(out, text + at, n - at);
    return labels;
}

/* Shows the EOS that is added to a text, which has no bytes of it, as it is stored. */
static void show_end(const struct tokenize_options *o, const struct token_list *l, struct text *out)
{
    struct token *last = l->n ? &l->at[l->n - 1] : NULL;
    const char *piece = last && last->begin == last->end ? tokenizer_piece(o->tokenizer, last->id) : NULL;
    if (!piece) return;
    text_printf(out, "%s", piece);
    last->end = (uint32_t)out->n;
}

static void show_sample(const struct config *c, const struct tokenize_options *o, const char *path,
                        const struct record *x, struct text *out)
{
    struct bump b = {0};
    struct tokenized t = {0};
    struct error why = {0};
    struct text marked = {0}, plain = {0};
    const enum conversation_fault fault = tokenize_sample(o, x->text, x->n, &b, &t, &why);
    text_printf(out, "\n%s:%s: ", path, record_place(x->line).text);
    if (fault) text_printf(out, "%s: %s\n", conversation_fault_name(fault), why.text);
    else {
        const struct conversation *s = &t.conversation;
        for (uint32_t i = 0; s->messages && i < s->messages->count; i++)
            text_printf(&plain, "%s%s", i ? ", " : "", value_get(s->messages->items[i], "role")->text);
        struct text whole = {0};
        if (!s->messages) text_printf(&whole, "%s%s", s->prompt, s->completion), show_end(o, &t.tokens.tokens, &whole);
        const struct text *text = s->messages ? &t.text : &whole;
        const uint32_t labels = mark_labels(c, &t, text->n ? text->at : "", text->n, &marked);
        if (!s->messages) text_printf(&plain, "text");
        for (uint32_t i = 0; i < s->media->count; i++) {
            text_printf(&plain, i ? ", " : "; ");
            /* data: URLs are long */
            put_text(&plain, s->media->items[i]->text, min_u64(80, strlen(s->media->items[i]->text)));
        }
        text_printf(out, "%s; %u tokens, %u with labels\n%s\n", plain.at, t.tokens.tokens.n, labels,
                    marked.n ? marked.at : "");
        text_free(&whole);
    }
    text_free(&marked);
    text_free(&plain);
    tokenized_free(&t);
    bump_free(&b);
}

int text_show_samples(const struct config *c, const struct text_source *s, uint64_t n, struct text *out,
                        struct error *e)
{
    struct names files;
    int rc = tokenize_files(c->data_train.at, c->data_train.n, &files, e);
    if (!rc && n) text_printf(out, "\nsamples; tokens with labels are between {+ and +}\n");
    for (uint32_t i = 0; i < files.n && !rc && n; i++) {
        struct records r;
        struct record x;
        bool more = true;
        rc = text_open_records(c, files.at[i], &r, e);
        while (!rc && n && !(rc = records_next(&r, &x, &more, e)) && more)
            n--, show_sample(c, &s->options, files.at[i], &x, out);
        records_close(&r);
    }
    names_free(&files);
    return rc;
}
