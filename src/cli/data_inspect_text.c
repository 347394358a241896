/*
 * data_inspect_text.c: `plimsoll data inspect` of conversations: what the files hold, what cannot
 * be used and why, lengths and labels, and some samples with the tokens that have labels marked.
 *
 * The numbers come from a token store, which is made in a temporary file with the code that
 * training uses. Without a tokenizer the files are read as far as that is possible.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/data.h"
#include "data/text/tokens.h"
#include "data/text/records.h"
#include "feed/batch_plan.h"
#include "feed/text_source.h"
#include "io/json.h"
#include "io/temporary.h"

/* ---- reading, without a tokenizer ---- */

struct facts {
    struct sample_report report;
    /* of samples that can be read; turns are messages */
    uint64_t counted, turns, most_turns, with_system, with_tools, with_media;
    const char *format;        /* of the first sample */
};

static void count_sample(struct facts *f, const struct conversation *c)
{
    const uint64_t turns = c->messages ? c->messages->count : 1;
    f->counted++;
    f->turns += turns;
    if (turns > f->most_turns) f->most_turns = turns;
    if (c->messages && turns) f->with_system += !strcmp(value_get(c->messages->items[0], "role")->text, "system");
    f->with_tools += c->tools != NULL;
    f->with_media += c->media->count > 0;
}

static int open_records(const struct config *c, const char *path, struct records *r, struct error *e)
{
    return c->data_format == FORMAT_TEXT ? records_open_text(r, path, e) : records_open(r, path, batch_room(c), e);
}

static int read_file(struct facts *f, const char *path, const struct config *c, struct error *e)
{
    struct records r;
    struct record x;
    bool more = true;
    int rc = open_records(c, path, &r, e);
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

static int read_files(struct facts *f, const struct config *c, struct error *e)
{
    struct names files;
    int rc = tokenize_files(c->data_train.at, c->data_train.n, &files, e);
    for (uint32_t i = 0; i < files.n && !rc; i++) rc = read_file(f, files.at[i], c, e);
    names_free(&files);
    return rc;
}

/* ---- lengths, with a tokenizer ---- */

struct measured {
    bool tokens;               /* the members below are filled */
    uint64_t samples, median, p95, longest, total, labels; /* samples: those with tokens; labels: of the rows */
    struct conversations set;
    bool rows;                 /* `set` is open */
    char no_rows[1024];        /* why it is not */
    uint64_t missing;          /* samples with an image that is not there, or that may not be read; the first one: */
    char first_missing[400];
};

static void measure_lengths(struct measured *m, const struct token_store *s)
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
static void find_images(struct measured *m, const struct token_store *s, struct image_files *files)
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

static int measure(struct measured *m, const struct config *c, const struct text_source *s,
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

/* Text of the data is printed as it is, but for control codes. */
static void put_text(struct text *out, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)bytes[i];
        if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7f) text_printf(out, "\\x%02x", c);
        else text_append(out, bytes + i, 1);
    }
}

/* The label ranges of the sample's tokens under data.train_on, as bytes of its text. */
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

/* The EOS that is added to a text has no bytes of it: shows it as it is stored. */
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

static int show_samples(const struct config *c, const struct text_source *s, uint64_t n, struct text *out,
                        struct error *e)
{
    struct names files;
    int rc = tokenize_files(c->data_train.at, c->data_train.n, &files, e);
    if (!rc && n) text_printf(out, "\nsamples; tokens with labels are between {+ and +}\n");
    for (uint32_t i = 0; i < files.n && !rc && n; i++) {
        struct records r;
        struct record x;
        bool more = true;
        rc = open_records(c, files.at[i], &r, e);
        while (!rc && n && !(rc = records_next(&r, &x, &more, e)) && more)
            n--, show_sample(c, &s->options, files.at[i], &x, out);
        records_close(&r);
    }
    names_free(&files);
    return rc;
}

/* ---- printing ---- */

static void print_endless(const struct measured *m, const struct tokenizer *t, struct text *out)
{
    struct text line = {0};
    if (m->rows) text_print_endless(t, m->set.chats, m->set.endless, &line);
    if (line.n) text_printf(out, "no end      %s\n", line.at);
    text_free(&line);
}

static void print_facts(const struct facts *f, const struct measured *m, struct text *out)
{
    const struct sample_report *r = &f->report;
    const uint64_t usable = r->read - report_bad(r);
    text_printf(out, "samples     %llu, %s\n", (unsigned long long)r->read, f->format ? f->format : "no known format");
    text_printf(out, "usable      %llu\n", (unsigned long long)usable);
    for (int i = SAMPLE_FINE + 1; i < SAMPLE_FAULTS; i++)
        if (r->bad[i])
            text_printf(out, "unusable    %llu: %s\n            first: %s\n", (unsigned long long)r->bad[i],
                        conversation_fault_name(i), r->first[i]);
    if (f->counted)
        text_printf(out,
                    "turns       %.1f a sample, at most %llu; %llu samples have a system prompt, %llu tools, %llu "
                    "images or videos\n",
                    (double)f->turns / (double)f->counted, (unsigned long long)f->most_turns,
                    (unsigned long long)f->with_system, (unsigned long long)f->with_tools,
                    (unsigned long long)f->with_media);
    if (!m->tokens || !m->samples) return;
    text_printf(out, "tokens      %llu; a sample has %llu (median), %llu (95 %%), at most %llu\n",
                (unsigned long long)m->total, (unsigned long long)m->median, (unsigned long long)m->p95,
                (unsigned long long)m->longest);
    if (m->missing)
        text_printf(out, "missing     %llu %s an image that cannot be used\n            first: %s\n",
                    (unsigned long long)m->missing, m->missing == 1 ? "sample has" : "samples have", m->first_missing);
    if (!m->rows) {
        text_printf(out, "rows        none: %s\n", m->no_rows);
        return;
    }
    const struct conversations *c = &m->set;
    text_printf(out, "labels      %.1f %% of the tokens\n", 100.0 * (double)c->labels / (double)c->tokens);
    text_printf(out, "rows        %u of %lld tokens, %.1f %% filled, for %llu samples\n", c->rows.n,
                (long long)c->o.sequence, 100.0 * (double)c->tokens / ((double)c->rows.n * (double)c->o.sequence),
                (unsigned long long)c->samples);
    if (c->o.images.most && c->images)
        text_printf(out, "images      %llu, %.2f a row of at most %u; %.1f %% of their slots are filled\n",
                    (unsigned long long)c->images, (double)c->images / (double)c->rows.n, c->o.images.most,
                    100.0 * (double)c->images / ((double)c->rows.n * c->o.images.most));
    if (c->o.images.most_frames && c->frames)
        text_printf(out, "frames      %llu of videos, %.2f a row of at most %u\n", (unsigned long long)c->frames,
                    (double)c->frames / (double)c->rows.n, c->o.images.most_frames);
    if (c->too_many_frames)
        text_printf(out,
                    "too many    %llu samples have more frames than data.max_frames, at most %llu, and are left out\n",
                    (unsigned long long)c->too_many_frames, (unsigned long long)c->most_frames);
    if (c->too_many)
        text_printf(out,
                    "too many    %llu samples have more images than data.max_images, at most %llu, and are left out\n",
                    (unsigned long long)c->too_many, (unsigned long long)c->most_images);
    if (c->split + c->split_long)
        text_printf(out, "split       %llu samples, at turns\n", (unsigned long long)(c->split + c->split_long));
    if (c->too_long)
        text_printf(out, "too long    %llu samples are left out%s\n", (unsigned long long)c->too_long,
                    c->o.too_long >= TOO_LONG_CUT ? "" : " (data.too_long: cut keeps turns that fit)");
    if (c->cut_texts)
        text_printf(out, "cut         %llu texts: %llu tokens are left out (data.too_long: split keeps them)\n",
                    (unsigned long long)c->cut_texts, (unsigned long long)c->cut_tokens);
    if (c->cut)
        text_printf(out, "cut         %llu samples, after the last answer that fits\n", (unsigned long long)c->cut);
}

static void json_facts(const struct facts *f, const struct measured *m, struct text *out)
{
    struct json_writer w = {.out = out, .indent = 2};
    json_begin_map(&w, NULL);
    json_put_uint(&w, "samples", f->report.read);
    if (f->format) json_put_string(&w, "format", f->format);
    json_put_uint(&w, "usable", f->report.read - report_bad(&f->report));
    json_begin_list(&w, "unusable");
    for (int i = SAMPLE_FINE + 1; i < SAMPLE_FAULTS; i++) {
        if (!f->report.bad[i]) continue;
        json_begin_map(&w, NULL);
        json_put_string(&w, "reason", conversation_fault_name(i));
        json_put_uint(&w, "samples", f->report.bad[i]);
        json_put_string(&w, "first", f->report.first[i]);
        json_end(&w);
    }
    json_end(&w);
    json_put_uint(&w, "turns", f->turns);
    if (m->tokens) {
        json_put_uint(&w, "tokens", m->total);
        json_put_uint(&w, "median_tokens", m->median);
        json_put_uint(&w, "longest", m->longest);
    }
    if (m->rows) {
        const struct conversations *c = &m->set;
        json_put_uint(&w, "rows", c->rows.n);
        json_put_uint(&w, "sequence", (uint64_t)c->o.sequence);
        json_put_number(&w, "filled", (double)c->tokens / ((double)c->rows.n * (double)c->o.sequence));
        json_put_number(&w, "labelled", (double)c->labels / (double)c->tokens);
        if (c->o.images.features) {
            json_put_uint(&w, "images", c->images);
            json_put_uint(&w, "max_images", c->o.images.most);
            json_put_uint(&w, "too_many_images", c->too_many);
            json_put_uint(&w, "missing_images", m->missing);
            json_put_uint(&w, "frames", c->frames);
            json_put_uint(&w, "too_many_frames", c->too_many_frames);
        }
        json_put_uint(&w, "conversations_without_end", c->endless);
        json_put_uint(&w, "too_long", c->too_long);
        json_put_uint(&w, "cut", c->cut);
    }
    json_end(&w);
    text_printf(out, "\n");
}

/* ---- the command ---- */

static int inspect(const struct config *c, const struct inspect_text *o, struct error *e)
{
    struct facts f = {0};
    struct measured m = {0};
    struct text_source s = {0};
    struct text out = {0};
    struct model own;
    const struct model *model = NULL;
    const bool tokenizer = c->data_tokenizer || c->model_path;
    int rc = read_files(&f, c, e);
    if (!rc && tokenizer) rc = text_image_model(&own, c->model_path, c->model_vision_tower, &model, e);
    if (!rc && tokenizer) rc = text_source_open(&s, c, FEED_TRAIN, model, e);
    if (model) model_close(&own);
    if (!rc && tokenizer) rc = measure(&m, c, &s, &f.report, e);
    if (!rc && o->json) json_facts(&f, &m, &out);
    else if (!rc) {
        print_facts(&f, &m, &out);
        print_endless(&m, s.tokenizer, &out);
        if (tokenizer) rc = show_samples(c, &s, o->samples, &out, e);
        else
            text_printf(&out, "\nAdd --model DIR, a folder with a tokenizer, for lengths, labels, rows and samples.\n");
    }
    if (out.n) fwrite(out.at, 1, out.n, stdout);
    if (m.rows) conversations_close(&m.set);
    text_source_close(&s);
    text_free(&out);
    return rc;
}

static int make_config(struct config *c, const struct inspect_text *o, struct error *e)
{
    int rc = PL_OK;
    if (o->run) rc = config_read(c, o->run, e);
    if (!rc && !o->run) {
        rc = config_assign(c, "data.format", is_plain_text(o->paths->at[0]) ? "text" : "conversations", e);
        c->data_train.at = o->paths->at; /* names with commas stay whole */
        c->data_train.n = o->paths->n;
    }
    for (uint32_t i = 0; i < o->set->n && !rc; i++) rc = config_set(c, o->set->at[i], e);
    if (!rc && o->images) rc = config_assign(c, "data.images", o->images, e);
    if (!rc && o->model) rc = config_assign(c, dir_exists(o->model) ? "model.path" : "data.tokenizer", o->model, e);
    if (!rc && !config_text(c)) {
        error_set(
            e, PL_USAGE,
            "data.format is not text or conversations; for images give their files or folders, not a configuration");
        rc = config_at_key(c, KEY_data_format, e);
    }
    if (!rc) rc = config_check_read(c, "data inspect", "model.* data.*", e);
    return rc ? rc : config_check(c, CONFIG_NEEDS_DATA, e);
}

int inspect_text(const struct inspect_text *o, struct error *e)
{
    struct config c;
    config_init(&c);
    int rc = make_config(&c, o, e);
    if (!rc) rc = inspect(&c, o, e);
    config_free(&c);
    return rc;
}
