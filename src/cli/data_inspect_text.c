/*
 * data_inspect_text.c: `plimsoll data inspect` of conversations: what the files hold, what cannot
 * be used and why, lengths and labels, and some samples with the tokens that have labels marked.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/data.h"
#include "data/text/tokens.h"
#include "feed/text_facts.h"
#include "io/json.h"

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
        rc = text_open_records(c, files.at[i], &r, e);
        while (!rc && n && !(rc = records_next(&r, &x, &more, e)) && more)
            n--, show_sample(c, &s->options, files.at[i], &x, out);
        records_close(&r);
    }
    names_free(&files);
    return rc;
}

/* ---- printing ---- */

static void print_endless(const struct text_measures *m, const struct tokenizer *t, struct text *out)
{
    struct text line = {0};
    if (m->rows) text_print_endless(t, m->set.chats, m->set.endless, &line);
    if (line.n) text_printf(out, "no end      %s\n", line.at);
    text_free(&line);
}

static void print_facts(const struct text_facts *f, const struct text_measures *m, struct text *out)
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

static void json_facts(const struct text_facts *f, const struct text_measures *m, struct text *out)
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
    struct text_facts f = {0};
    struct text_measures m = {0};
    struct text_source s = {0};
    struct text out = {0};
    struct model own;
    const struct model *model = NULL;
    const bool tokenizer = c->data_tokenizer || c->model_path;
    int rc = text_count(&f, c, e);
    if (!rc && tokenizer) rc = text_image_model(&own, c->model_path, c->model_vision_tower, &model, e);
    if (!rc && tokenizer) rc = text_source_open(&s, c, FEED_TRAIN, model, e);
    if (model) model_close(&own);
    if (!rc && tokenizer) rc = text_measure(&m, c, &s, &f.report, e);
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
