/*
 * text_facts.c: see text_facts.h.
 */
#include "feed/text_facts.h"

#include <stdio.h>
#include <string.h>

#include "feed/batch_plan.h"
#include "io/json.h"
#include "io/temporary.h"

static void count_sample(struct text_facts *f, const struct conversation *c)
{
    const uint64_t turns = c->messages ? c->messages->count : 1;
    f->counted++;
    f->turns += turns;
    if (turns > f->most_turns) f->most_turns = turns;
    if (c->messages && turns) f->with_system += !strcmp(value_get(c->messages->items[0], "role")->text, "system");
    f->with_tools += c->tools != NULL;
    f->with_media += c->media->count > 0;
}

int text_open_records(const struct config *c, const char *path, struct records *r, struct error *e)
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
