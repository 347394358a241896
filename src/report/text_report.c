/*
 * text_report.c: see data_report.h.
 */
#include "report/data_report.h"

#include "batch/embed.h"
#include "data/dataset.h"
#include "data/formats/packed.h"
#include "data/prepare/prepare.h"
#include "io/table.h"

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
    const uint64_t unit = c->o.images.patches;
    if (c->o.images.most && c->images && unit)
        text_printf(out, "patches     %llu of images, %.0f a row of at most %llu; %.1f %% of their room is filled\n",
                    (unsigned long long)(c->images * unit), (double)(c->images * unit) / (double)c->rows.n,
                    (unsigned long long)(c->o.images.most * unit),
                    100.0 * (double)c->images / ((double)c->rows.n * c->o.images.most));
    else if (c->o.images.most && c->images)
        text_printf(out, "images      %llu, %.2f a row of at most %u; %.1f %% of their slots are filled\n",
                    (unsigned long long)c->images, (double)c->images / (double)c->rows.n, c->o.images.most,
                    100.0 * (double)c->images / ((double)c->rows.n * c->o.images.most));
    if (c->o.images.most_frames && c->frames)
        text_printf(out, "frames      %llu of videos, %.2f a row of at most %u\n", (unsigned long long)c->frames,
                    (double)c->frames / (double)c->rows.n, c->o.images.most_frames);
    if (c->volumes)
        text_printf(out, "volumes     %llu, %.2f a row of at most %u of each modality\n",
                    (unsigned long long)c->volumes, (double)c->volumes / (double)c->rows.n, c->o.images.most_volumes);
    if (c->too_many_volumes)
        text_printf(out,
                    "too many    %llu samples have more volumes of a modality than data.max_volumes, at most %llu, "
                    "and are left out\n",
                    (unsigned long long)c->too_many_volumes, (unsigned long long)c->most_volumes);
    if (c->too_many_frames)
        text_printf(out,
                    "too many    %llu samples have more frames than data.max_frames, at most %llu, and are left out\n",
                    (unsigned long long)c->too_many_frames, (unsigned long long)c->most_frames);
    if (c->too_many)
        text_printf(out, "too many    %llu samples have more %s, at most %llu, and are left out\n",
                    (unsigned long long)c->too_many,
                    unit ? "patches than data.max_patches" : "images than data.max_images",
                    (unsigned long long)(c->most_images * (unit ? unit : 1)));
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

/* Prints the report. `t`: the tokenizer; NULL: there is none, and no text is measured. */
static void print_report(const struct text_facts *f, const struct text_measures *m, const struct tokenizer *t,
                         struct text *out)
{
    struct text line = {0};
    print_facts(f, m, out);
    if (m->rows) text_print_endless(t, m->set.chats, m->set.endless, &line);
    if (line.n) text_printf(out, "no end      %s\n", line.at);
    text_free(&line);
}

static void put_report(const struct text_facts *f, const struct text_measures *m, struct text *out)
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
            const uint64_t unit = c->o.images.patches ? c->o.images.patches : 1;
            json_put_uint(&w, c->o.images.patches ? "patches" : "images", c->images * unit);
            json_put_uint(&w, c->o.images.patches ? "max_patches" : "max_images", c->o.images.most * unit);
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

/* --- inspecting ------------------------------------------------------------------------------- */

int inspect_texts(const struct config *c, uint64_t shown, bool json, struct error *e)
{
    struct text_facts f = {0};
    struct text_measures m = {0};
    struct text_source s = {0};
    struct text out = {0};
    struct model own;
    const struct model *model = NULL;
    const bool tokenizer = c->data_tokenizer || c->model_path;
    int rc = text_count(&f, c, e);
    const struct model_choices chosen = text_choices(c);
    if (!rc && tokenizer) rc = text_image_model(&own, c->model_path, &chosen, &model, e);
    if (!rc && tokenizer) rc = text_source_open(&s, c, FEED_TRAIN, model, e);
    if (model) model_close(&own);
    if (!rc && tokenizer) rc = text_measure(&m, c, &s, &f.report, e);
    if (!rc && json) put_report(&f, &m, &out);
    else if (!rc) {
        print_report(&f, &m, s.tokenizer, &out);
        if (tokenizer) rc = text_show_samples(c, &s, shown, &out, e);
        else
            text_printf(&out, "\nAdd --model DIR, a folder with a tokenizer, for lengths, labels, rows and samples.\n");
    }
    if (out.n) fwrite(out.at, 1, out.n, stdout);
    if (m.rows) conversations_close(&m.set);
    text_source_close(&s);
    text_free(&out);
    return rc;
}

/* --- embeddings of the images of conversations ------------------------------------------------ */

bool embeddings_alone(const struct names *paths)
{
    struct packed_header h;
    struct packed_embeddings x;
    struct error ignored;
    return packed_is(paths->at[0]) && !packed_peek(paths->at[0], &h, &x, &ignored) && x.tokens;
}

int inspect_embeddings(const struct names *paths, bool check, bool json, struct error *e)
{
    struct dataset *d;
    struct embedding_counts n = {0};
    char shape[64];
    int rc = dataset_open(&d,
                          &(struct dataset_options){.format = "packed",
                                                    .paths = paths->at,
                                                    .n_paths = paths->n,
                                                    .embeddings_alone = true},
                          e);
    if (rc) return rc;
    if (!dataset_embeddings(d)) {
        dataset_close(d);
        return error_set(e, PL_USAGE, "%s and others have embeddings of different encoders: give one at a time",
                         paths->at[0]);
    }
    verify_embeddings(d, check, &n);
    const struct packed_embeddings *x = dataset_embeddings(d);
    if (json)
        PRINT_FACTS(0, FACT("format", "packed"), FACT("images", dataset_count(d)), FACT("embeddings", n.embeddings),
                    FACT("unreadable", n.unreadable), FACT("dtype", dtype_name(packed_dtype(x->type))),
                    FACT("tokens", x->tokens), FACT("channels", x->channels), FACT("model", (const char *)x->model));
    else
        printf("packed: %llu images of conversations, %llu embeddings %s, computed with %s: %llu images could not be "
               "read, %llu bad samples\n",
               (unsigned long long)dataset_count(d), (unsigned long long)n.embeddings,
               embed_print(x, shape), x->model,
               (unsigned long long)n.unreadable, (unsigned long long)n.damaged);
    rc = dataset_intact(d, e);
    if (!rc && n.damaged)
        rc = error_set(e, PL_FAIL, "%llu of %llu samples are bad", (unsigned long long)n.damaged,
                       (unsigned long long)dataset_count(d));
    dataset_close(d);
    return rc;
}
