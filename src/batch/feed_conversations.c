/*
 * feed_conversations.c: rows of conversations for a language model (data/text/conversations.h): ids
 * and labels; for packed rows also positions, and for each token the range of keys that it may see.
 * Everything textual happens in `prepare`; a step copies ids out of a memory-mapped store.
 *
 * A model that takes images also gets pixel_values and image_index (models/images.h); or
 * image_embeddings, if data.images is a store of them. Its rows come from threads that
 * read the images (data/image_rows.h); training and validation share them: they never read at the
 * same time.
 */
#include <inttypes.h>

#include "data/dataset.h"
#include "data/text/records.h"
#include "batch/batch_plan.h"
#include "batch/embed.h"
#include "batch/feed.h"
#include "batch/text_source.h"

struct conversation_feed {
    struct text_source source;    /* closed after `prepare` */
    struct conversations set;
    struct token_row row;
    bool open;                    /* `set` */
    /* of a model that takes images: */
    const struct feed_plan *images; /* NULL: rows are only text */
    struct image_files *files;
    struct image_rows_source rows;
    struct image_run *runs;       /* which features the tokens of a row with videos or volumes take */
};

static const struct {
    const char *input;
    int32_t each;                 /* elements for a token */
} inputs[] = {{"input_ids", 1}, {"labels", 1}, {"position_ids", 1}, {"ranges", 2}};
enum { UNPACKED_INPUTS = 2 };     /* padding comes after the conversation, so no token of it sees padding */

static int32_t **row_array(struct token_row *r, size_t i)
{
    int32_t **const arrays[] = {&r->ids, &r->labels, &r->positions, &r->ranges};
    return arrays[i];
}

/* Returns the elements that the model takes for a token: with images of any size, three
 * positions. */
static int32_t elements_of(const struct model *m, size_t i)
{
    const bool three = m->images && m->images->grids && !strcmp(inputs[i].input, "position_ids");
    return three ? 3 : inputs[i].each;
}

/* Checks the model. One that a program defines gets token rows, without ranges. */
static int check_model(const struct run *r, struct error *e)
{
    const struct model *m = &r->planned.model;
    struct planned_input x;
    if (!model_port(&r->planned.model, "input_ids") && !r->planned.defined)
        return batch_refuse_tokens(r->planned.config, &r->planned.model, e);
    for (size_t i = 0; i < (r->planned.batch.packed ? COUNT(inputs) : UNPACKED_INPUTS); i++)
        if (!planned_input(&r->planned, inputs[i].input, &x) || x.dtype != DT_I32 || x.axis ||
            x.sample != (uint64_t)r->planned.config->data_sequence * (uint64_t)elements_of(m, i) * 4)
            return error_set(e, PL_USAGE,
                             "conversations need a model with the inputs input_ids, labels and position_ids, i32 "
                             "[batch, data.sequence], and ranges, i32 [batch, data.sequence, 2]; %s does not fit. With "
                             "data.packing: false, input_ids and labels are enough",
                             inputs[i].input);
    return PL_OK;
}

/* Returns the run's images, if its rows have room for any. */
static const struct feed_plan *images_of(const struct run *r)
{
    const struct feed_plan *b = r->planned.batches.feed;
    return b && media_any(&b->holds.media) ? b : NULL;
}

static int check_images(const struct text_source *s, const struct config *c, enum feed_role role, struct run *r,
                        struct error *e)
{
    const bool own = text_files_of(c, role) == FEED_VALIDATION && c->data_validation_images;
    return embed_check_images(r, image_files_store(s->images.files),
                              own              ? "data.validation_images"
                              : c->data_images ? "data.images"
                                               : "the folder of the data",
                              e);
}

static int conversation_open(struct feed *f, struct run *r, enum feed_role role, struct error *e)
{
    int rc = check_model(r, e);
    if (rc) return rc;
    struct conversation_feed *s = mem_alloc(sizeof *s);
    s->images = images_of(r);
    rc = text_source_open(&s->source, f->config, role, &r->planned.model, e);
    if (!rc && s->images && (rc = check_images(&s->source, f->config, role, r, e))) text_source_close(&s->source);
    if (rc) mem_free(s);
    else f->state = s;
    return rc;
}

/* Reports that rows with room for fewer images may do, where memory is planned for images that
 * rarely come. */
static void report_images(const char *key, const struct conversations *c)
{
    const uint32_t most = c->o.images.most, frames = c->o.images.most_frames;
    if (frames)
        log_note("%s: %" PRIu64 " frames of videos, %.2f a row of at most %u (data.max_frames)", key, c->frames,
                 (double)c->frames / (double)c->rows.n, frames);
    const double mean = (double)c->images / (double)c->rows.n;
    const uint32_t unit = c->o.images.patches;
    if (c->volumes)
        log_note("%s: %" PRIu64 " volumes, %.2f a row of at most %u of each modality (data.max_volumes)", key,
                 c->volumes, (double)c->volumes / (double)c->rows.n, c->o.images.most_volumes);
    if (!most) return;
    if (unit) {
        log_note("%s: images of %" PRIu64 " patches, %.0f a row of at most %u (data.max_patches): %.1f %%%s", key,
                 c->images * unit, mean * unit, most * unit, 100 * mean / most,
                 mean < 0.5 * most ? "; a smaller data.max_patches takes less memory and time" : "");
        return;
    }
    if (!c->images)
        log_note("%s: no conversation has an image; with data.max_images: 0 %s", key,
                 frames || c->volumes ? "the run takes less memory" : "the vision tower does not run");
    else
        log_note("%s: %" PRIu64
                 " images, %.2f a row of at most %u (data.max_images); %.1f %% of their slots are filled%s",
                 key, c->images, mean, most, 100 * mean / most,
                 mean < 0.8 * most - 1 ? "; a smaller data.max_images takes less memory" : "");
}

/* Says what the rows hold and what was left out. */
static void report(const struct feed *f, const struct conversations *c, const struct tokenizer *t)
{
    const char *key = f->role == FEED_TRAIN         ? "data.train"
                      : f->config->data_holdout > 0 ? "data.holdout"
                                                    : "data.validation";
    struct text left = {0};
    const bool text = f->config->data_format == FORMAT_TEXT;
    log_note("%s: %" PRIu64 " %s in %u rows of %" PRId64 " tokens, %.1f %% filled; %.1f %% of the tokens have labels",
             key, text ? c->samples : c->used.n, text ? c->samples == 1 ? "text" : "texts" : "conversations", c->rows.n,
             c->o.sequence, 100.0 * (double)c->tokens / ((double)c->rows.n * (double)c->o.sequence),
             100.0 * (double)c->labels / (double)c->tokens);
    report_images(key, c);
    if (f->role == FEED_TRAIN && c->one_group)
        log_warn("%s: all conversations are about one image or video: data.holdout holds out some of them, so that "
                 "scores will be too high; evaluate on another one",
                 key);
    conversations_print_left(c, &left);
    if (left.n) log_warn("%s: %s", key, left.at);
    left.n = 0;
    if (f->role == FEED_TRAIN) text_print_endless(t, c->chats, c->endless, &left);
    if (left.n) log_warn("%s: %s", key, left.at);
    text_free(&left);
}

static void prepare_images(struct feed *f)
{
    struct conversation_feed *s = f->state;
    s->rows = (struct image_rows_source){.order = feed_order(f->config, f->role), .set = &s->set, .files = s->files};
    f->order = &s->rows.order;
    s->runs = mem_alloc((2 * (size_t)image_rows_media(&s->images->rows) + 1) * sizeof *s->runs);
    if (image_files_store(s->files))
        f->fingerprint = hash_bytes((const uint64_t[]){dataset_fingerprint(image_files_store(s->files))},
                                    sizeof f->fingerprint, f->fingerprint);
}

/* Checks references: those that lead out of data.images end the run: they are no faults of single
 * samples. */
static int check_references(const struct conversation_feed *s, struct error *e)
{
    const struct token_store *store = &s->set.store;
    for (uint32_t i = 0; i < s->set.used.n && s->files; i++) {
        const struct stored_sample *x = &store->samples[s->set.used.at[i].sample];
        const char *name = store->names + x->media;
        for (uint32_t k = 0; k < x->n_media; k++, name += strlen(name) + 1)
            if (image_files_allow(s->files, name, e))
                return error_prepend(e, "%s:%s", store->names + x->file, record_place(x->line).text);
    }
    return PL_OK;
}

static int conversation_prepare(struct feed *f, struct run *r, const char *folder, struct error *e)
{
    struct conversation_feed *s = f->state;
    struct text path = {0};
    s->source.options.interrupted = f->interrupted;
    int rc = text_store_find(&s->source, f->config, folder, f->role, &path, e);
    struct conversations_options o = text_rows(f->config, &s->source, f->role, r->planned.model.vocabulary);
    if (s->images) o.images.most = s->images->rows.images;
    if (!rc) rc = conversations_open(&s->set, path.at, &o, e);
    text_free(&path);
    s->files = s->source.images.files, s->source.images.files = NULL; /* rows are read from them */
    s->open = !rc;
    if (!rc) rc = check_references(s, e);
    if (!rc) report(f, &s->set, s->source.tokenizer);
    text_source_close(&s->source);
    if (rc) return rc;
    for (size_t i = 0; i < COUNT(inputs); i++)
        *row_array(&s->row, i) = mem_alloc((size_t)o.sequence * (size_t)inputs[i].each * sizeof(int32_t));
    f->samples = conversations_count(&s->set);
    f->fingerprint = conversations_fingerprint(&s->set);
    if (s->images) prepare_images(f);
    return PL_OK;
}

/* Runs after the memory is allocated. */
static void conversation_start(struct feed *f, struct run *r)
{
    const struct conversation_feed *s = f->state;
    (void)r;
    if (s->images) batch_writer_set_pixels(f->writer, &s->images->rows.reader.processor);
}

static int64_t count_images(const struct conversation_feed *s, const int32_t *ids, int64_t from, int64_t to)
{
    int64_t n = 0;
    for (int64_t t = from; t < to; t++) n += ids[t] == s->set.o.images.token;
    return n;
}

/* Finds the features of a row's image tokens: those of images, in videos those of frames, which
 * follow them, and in volumes those of their modality. Returns the number of runs. */
static uint32_t find_runs(const struct feed *f, const struct image_row *x)
{
    const struct conversation_feed *s = f->state;
    const int32_t *ids = x->tokens.ids;
    int64_t image = 0, frame = s->images->holds.media.images * s->set.o.images.features, at = 0, end = 0,
            volume[MODALITIES] = {0};
    uint32_t n = 0;
    for (int k = 0; k < s->set.o.images.modalities.n; k++)
        volume[k] = images_volume_row(&f->run->planned.model, &s->images->holds.media, k);
    for (uint32_t k = 0; k < x->n_media; k++) {
        const struct row_media v = x->media[k];
        int64_t *row = v.modality < 0 ? &frame : &volume[v.modality];
        const int64_t before = count_images(s, ids, at, v.begin), inside = count_images(s, ids, v.begin, v.end);
        s->runs[n++] = (struct image_run){end += before, image, false};
        s->runs[n++] = (struct image_run){end += inside, *row, v.modality >= 0};
        image += before, *row += inside;
        at = v.end;
    }
    s->runs[n++] = (struct image_run){INT64_MAX, image, false};
    return n;
}

/* Writes row i of the batch, at this position. `last` has its images and volumes; NULL: it has
 * none, and the old bytes stay. `x` NULL: no token is of any. */
static int put_row(struct feed *f, const struct batch_target *t, int64_t i, uint64_t position,
                   const struct token_row *row, const struct image_row *last, const struct image_row *x,
                   struct error *e)
{
    const struct conversation_feed *s = f->state;
    const bool stored = s->images && s->images->rows.embedding;
    struct batch_record record = {.is = {[ROW_IDS] = {row->ids},
                                         [ROW_LABELS] = {row->labels},
                                         [ROW_POSITIONS] = {row->positions},
                                         [ROW_RANGES] = {row->ranges}},
                                  .position = position};
    record.is[stored ? ROW_EMBEDDINGS : ROW_PIXELS].at = last ? last->pixels : NULL;
    for (int k = 0; k < MODALITIES && last; k++) record.is[ROW_VOLUMES_0 + k].at = last->volumes[k];
    if (x) record.grids = x->grids, record.n_grids = x->n_grids;
    if (x && x->n_media) record.runs = s->runs, record.n_runs = find_runs(f, x);
    return batch_write(f->writer, t, i, &record, e);
}

/* Writes a row with images. A row of padding refers to no image. It repeats the pixels of the row
 * before it, because the tower computes with them: what is in fresh memory may be NaN. */
static int conversation_row(struct feed *f, const struct batch_target *t, const struct feed_row *at,
                            struct feed_batch *out, struct error *e)
{
    struct conversation_feed *s = f->state;
    const struct image_row *x = at->slot, *last = at->last;
    struct token_row row = x ? x->tokens : s->row;
    if (!x) conversations_pad(&s->set, &row);
    out->count[0] += row.labelled;
    out->count[1] += x != NULL;
    out->units += row.tokens;
    return put_row(f, t, at->at, at->position + (uint64_t)at->at, &row, last, x, e);
}

static int conversation_put(struct feed *f, const struct batch_target *t, uint64_t position, int64_t samples,
                            int64_t rows, struct feed_batch *out, struct error *e)
{
    struct conversation_feed *s = f->state;
    int rc = PL_OK;
    out->count[1] = (double)samples;
    for (int64_t i = 0; i < rows && !rc; i++) {
        if (i < samples) rc = conversations_read(&s->set, feed_sample(f, position + (uint64_t)i), &s->row, e);
        else conversations_pad(&s->set, &s->row);
        if (!rc) rc = put_row(f, t, i, position + (uint64_t)i, &s->row, NULL, NULL, e);
        out->count[0] += s->row.labelled;
        out->units += s->row.tokens;
    }
    return rc;
}

static void conversation_close(struct feed *f)
{
    struct conversation_feed *s = f->state;
    image_files_close(s->files);
    mem_free(s->runs);
    if (s->open) conversations_close(&s->set);
    for (size_t i = 0; i < COUNT(inputs); i++) mem_free(*row_array(&s->row, i));
    text_source_close(&s->source);
    mem_free(s);
}

const struct feed_ops conversations_feed = {.port = "input_ids",
                                            .unit = "tokens",
                                            .counts = {"tokens", "samples"},
                                            .open = conversation_open,
                                            .prepare = conversation_prepare,
                                            .start = conversation_start,
                                            .row = conversation_row,
                                            .put = conversation_put,
                                            .close = conversation_close};
