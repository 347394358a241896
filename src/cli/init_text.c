/*
 * init_text.c: detects files of conversations (init.h) and measures them (init_text.h).
 *
 * A row holds nearly every sample, and several usual ones, so that packing fills it: the least
 * power of two that holds 99 % of the samples and twice the median, within what the model has
 * positions for.
 */
#include "cli/init_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/init.h"
#include "data/formats/parquet_set.h"
#include "data/text/records.h"
#include "feed/text_source.h"
#include "io/parquet.h"
#include "io/temporary.h"

enum { READ_MOST = 64 << 20, LEAST = 64, MOST = 4096, MOST_PLAIN = 1024, OBJECTS_TRIED = 16 };

/* ---- detection ---- */

/* Whether the first bytes have a key of conversations; other JSON, such as COCO's, can be large. */
static bool may_be_conversations(const char *path)
{
    static const char *const keys[] = {"\"messages\"",    "\"conversations\"", "\"conversation\"",
                                       "\"instruction\"", "\"completion\"",    "\"text\""};
    enum { LOOKED_AT = 1 << 16 };
    char *head = mem_alloc(LOOKED_AT + 1);
    bool found = false;
    size_t n = file_peek(path, head, LOOKED_AT);
    for (size_t i = 0; i < COUNT(keys) && !found; i++) found = memmem(head, n, keys[i], strlen(keys[i]));
    mem_free(head);
    return found;
}

const char *detect_conversations(const char *path)
{
    struct records r;
    struct record x;
    struct error ignored;
    bool more = true;
    const char *what = NULL;
    if (parquet_is(path) && parquet_set_usual(path)) return NULL; /* images and masks, perhaps with texts */
    if (!parquet_is(path) && (!records_peek(path) || !may_be_conversations(path))) return NULL;
    if (records_open(&r, path, RECORD_MOST, &ignored)) return NULL;
    /* the first ones may be damaged */
    for (int i = 0; i < OBJECTS_TRIED && !what && !records_next(&r, &x, &more, &ignored) && more; i++) {
        struct bump b = {0};
        struct value *sample;
        if (!conversation_parse(x.text, x.n, RECORD_MOST, &b, &sample, &ignored)) what = conversation_format(sample);
        bump_free(&b);
    }
    records_close(&r);
    return !what && parquet_is(path) ? "a table of conversations"
                                     : what; /* by its columns; reading it says what is wrong */
}

/* ---- measuring ---- */

/* Plain text fills rows of any length. */
static int64_t choose_sequence(const struct token_store *s, int64_t positions, bool plain)
{
    const uint64_t n = s->header->samples;
    const int64_t longest = plain ? MOST_PLAIN : MOST, most = positions && positions < longest ? positions : longest;
    int64_t T = LEAST;
    uint32_t *lengths = token_store_lengths(s);
    while (n && T * 2 <= most && (T < length_at(lengths, n, 0.99) || T < 2 * (int64_t)length_at(lengths, n, 0.5)))
        T *= 2;
    mem_free(lengths);
    return min_i64(T, most);
}

/* Images of a row: as many as rows have on average if there is room for all that fit, and those of
 * any sample. */
static int64_t choose_images(const struct config *c, const struct text_source *s, const char *path, int64_t vocabulary)
{
    struct conversations set;
    struct error ignored;
    const struct conversations_options o = text_rows(c, s, FEED_TRAIN, vocabulary);
    if (!o.images.features || conversations_open(&set, path, &o, &ignored)) return 0;
    const uint64_t mean = (set.images + set.rows.n - 1) / set.rows.n;
    const int64_t most =
        set.images ? (int64_t)min_u64(o.images.most, mean > set.most_images ? mean : set.most_images) : 0;
    conversations_close(&set);
    return most;
}

/* The share of the files' bytes that is read. */
static int share_read(char *const *paths, uint32_t n_paths, double *share, struct error *e)
{
    struct names files;
    uint64_t total = 0, size;
    int rc = tokenize_files(paths, n_paths, &files, e);
    for (uint32_t i = 0; i < files.n && !rc; i++) rc = file_size(files.at[i], &size, e), total += size;
    *share = total > READ_MOST ? (double)READ_MOST / (double)total : 1;
    names_free(&files);
    return rc;
}

static int measure_store(struct init_text *t, const struct config *c, const struct text_source *s, const char *path,
                         enum feed_role role, double share, struct error *e)
{
    const int part = role == FEED_VALIDATION;
    struct conversations set;
    const struct conversations_options o = text_rows(c, s, role, t->vocabulary);
    int rc = conversations_open(&set, path, &o, e);
    if (rc) return rc;
    t->samples[part] = (uint64_t)((double)(t->plain ? set.rows.n : set.samples) / share);
    t->rows[part] = (uint64_t)((double)set.rows.n / share);
    if (!part && !t->endless.n) text_print_endless(s->tokenizer, set.chats, set.endless, &t->endless);
    t->too_long[part] = (uint64_t)((double)set.too_long / share);
    t->estimated |= share < 1;
    conversations_close(&set);
    return PL_OK;
}

/* Both parts of a split of the store; 0 if one of them would have no row. */
static double choose_holdout(struct init_text *t, struct config *c, const struct text_source *s, const char *path,
                             double share)
{
    struct token_store store;
    struct error ignored;
    if (token_store_open(&store, path, &ignored)) return 0;
    uint64_t n = store.header->report.read;
    token_store_close(&store);
    /* of one text rows are held out */
    if (n == 1 && t->plain && !measure_store(t, c, s, path, FEED_TRAIN, share, &ignored)) n = t->rows[0];
    c->data_holdout = n >= 10 ? 0.1 : n > 1 ? 1.0 / (double)n : 0;
    if (n < 2 || measure_store(t, c, s, path, FEED_TRAIN, share, &ignored) ||
        measure_store(t, c, s, path, FEED_VALIDATION, share, &ignored))
        c->data_holdout = 0;
    return c->data_holdout;
}

static int measure_part(struct init_text *t, struct config *c, enum feed_role role, struct error *e)
{
    char path[4096];
    struct text_source s;
    struct model own;
    const struct model *model;
    struct token_store_key key = {0};
    struct token_store store;
    struct text left_out = {0};
    double share = 1;
    struct temporary tmp;
    if (text_image_model(&own, c->model_path, NULL, &model, e)) return e->code;
    int rc = text_source_open(&s, c, role, model, e);
    if (model) model_close(&own);
    if (rc) return rc;
    rc = temporary_work(&tmp, e);
    if (rc) return text_source_close(&s), rc;
    snprintf(path, sizeof path, "%s/tokenized", tmp.path);
    s.options.most = READ_MOST;
    rc = share_read(s.options.paths, s.options.n_paths, &share, e);
    if (!rc) rc = tokenize_build(&s.options, &key, path, e);
    if (!rc && !(rc = token_store_open(&store, path, e))) {
        report_print(&store.header->report, &left_out);
        if (left_out.n) t->left_out[role == FEED_VALIDATION] = mem_string(left_out.at);
        text_free(&left_out);
        if (role == FEED_TRAIN) c->data_sequence = t->sequence = choose_sequence(&store, t->positions, t->plain);
        token_store_close(&store);
    }
    if (!rc && role == FEED_TRAIN) {
        t->max_images = choose_images(c, &s, path, t->vocabulary);
        if (t->max_images) c->data_max_images = t->max_images;
    }
    if (!rc && !c->data_validation.n) t->holdout = choose_holdout(t, c, &s, path, share);
    if (!rc && !t->holdout) rc = measure_store(t, c, &s, path, role, share, e);
    temporary_drop(&tmp);
    text_source_close(&s);
    return rc;
}

int init_measure_text(struct init_text *t, const struct names *train, const struct names *validation, struct error *e)
{
    struct config c;
    config_init(&c);
    c.data_format = t->plain ? FORMAT_TEXT : FORMAT_CONVERSATIONS;
    c.model_path = (char *)t->tokenizer;
    c.data_template = (char *)t->template;
    c.data_images = (char *)t->images;
    c.data_max_frames = t->max_frames;
    c.data_train = (struct config_list){train->at, train->n};
    c.data_validation = (struct config_list){validation->at, validation->n};
    int rc = measure_part(t, &c, FEED_TRAIN, e);
    if (!rc && validation->n) rc = measure_part(t, &c, FEED_VALIDATION, e);
    c.model_path = NULL; /* the caller's */
    config_free(&c);
    return rc;
}
