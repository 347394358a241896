/*
 * feed_labelled.c: images with a class or a text each, for a vision tower with a head
 * (models/heads.h).
 *
 *     list of images ─ threads (data/image_rows.h) ─ pixel_values
 *     classes ────────────────────────────────────── labels
 *     texts ─ tokenized when opened ──────────────── input_ids, text_end
 *     which rows are samples ─────────────────────── pair_labels, pair_mask
 *
 * Training and validation share the threads: they never read at the same time.
 */
#include <inttypes.h>

#include "batch/batch_plan.h"
#include "batch/captions.h"
#include "batch/feed.h"

struct labelled_feed {
    struct labelled set;
    int32_t *classes;              /* [samples] */
    int64_t T;                     /* contrastive: tokens of a row... */
    VEC(int32_t) ids;              /* ...all texts, one after the other... */
    uint64_t *first;               /* [samples + 1] ...and where each begins */
    int32_t padding;
    struct image_files *files;
    struct image_list_source source;
    struct feed_queries facts;
    int32_t *targets;              /* [rows] */
    bool *is_sample;               /* [rows][rows], contrastive: each row says which rows are samples */
    int32_t *row;                  /* [T] a text */
};

/* --- opening ---------------------------------------------------------------------------------- */

static int open_list(struct labelled *l, const struct config *c, enum feed_role role, struct error *e)
{
    const bool train = role == FEED_TRAIN || c->data_holdout > 0;
    const struct config_list *paths = train ? &c->data_train : &c->data_validation;
    const struct labelled_options o = {.paths = paths->at, .n_paths = paths->n, .image_column = c->data_image_column,
                                       .text_column = c->data_label_column,
                                       .captions = c->data_format == FORMAT_CAPTIONS, .room = batch_room(c),
                                       .max_bad = c->data_max_bad, .holdout = c->data_holdout,
                                       .split_seed = (uint64_t)c->data_split_seed, .held = role == FEED_VALIDATION};
    return labelled_open(l, &o, e);
}

static int open_files(struct labelled_feed *s, const struct config *c, enum feed_role role, struct error *e)
{
    const bool train = role == FEED_TRAIN || c->data_holdout > 0;
    const struct config_list *paths = train ? &c->data_train : &c->data_validation;
    const char *named = !train && c->data_validation_images ? c->data_validation_images : c->data_images;
    if (named && s->set.folders)
        return error_set(e, PL_USAGE, "data.images is for tables, and the classes are folders of %s: leave it out",
                         paths->at[0]);
    const struct image_scope scope = {.where = named ? named : s->set.where, .anywhere = c->data_outside_images,
                                      .tables = paths->at, .n_tables = paths->n, .room = batch_room(c)};
    int rc = image_files_open(&s->files, &scope, e);
    for (uint32_t i = 0; i < s->set.samples.n && !rc; i++)
        rc = image_files_allow(s->files, s->set.samples.at[i].image, e);
    return rc;
}

/* Finds the number of every sample's class. */
static int find_classes(struct labelled_feed *s, const struct head_model *h, struct error *e)
{
    s->classes = mem_alloc((s->set.samples.n + 1) * sizeof *s->classes);
    for (uint32_t i = 0; i < s->set.samples.n; i++) {
        const int64_t class = head_class(h, s->set.samples.at[i].text);
        char name[256];
        labelled_name(&s->set, i, name, sizeof name);
        if (class < 0)
            return error_set(e, PL_USAGE,
                             "%s has the class %.80s, which is none of the model's %" PRId64
                             ": %.40s, %.40s%s (model.classes)",
                             name, s->set.samples.at[i].text, h->classes, h->names[0], h->names[1],
                             h->classes > 2 ? ", ..." : "");
        s->classes[i] = (int32_t)class;
    }
    return PL_OK;
}

static int tokenize(struct labelled_feed *s, const struct config *c, const struct model *m, struct error *e)
{
    struct captions x;
    if (captions_open(&x, c, m, s->T, e)) return e->code;
    int32_t *row = mem_alloc((size_t)s->T * sizeof *row);
    int rc = PL_OK;
    s->padding = x.padding;
    s->first = mem_alloc((s->set.samples.n + 1) * sizeof *s->first);
    for (uint32_t i = 0; i < s->set.samples.n && !rc; i++) {
        int64_t n;
        char name[256];
        labelled_name(&s->set, i, name, sizeof name);
        if ((rc = captions_encode(&x, s->set.samples.at[i].text, row, &n, e))) error_prepend(e, "%s", name);
        for (int64_t k = 0; k < n && !rc; k++) vec_push(&s->ids, row[k]);
        s->first[i + 1] = s->ids.n;
    }
    if (!rc && x.cut)
        log_warn("%" PRIu64 " of %u texts are longer than %" PRId64 " tokens and are cut", x.cut, s->set.samples.n,
                 s->T);
    captions_close(&x);
    mem_free(row);
    return rc;
}

static void labelled_feed_close(struct feed *f)
{
    struct labelled_feed *s = f->state;
    image_files_close(s->files);
    labelled_close(&s->set);
    mem_free(s->classes);
    mem_free(s->targets);
    vec_free(&s->ids);
    mem_free(s->first), mem_free(s->is_sample), mem_free(s->row);
    mem_free(s);
}

static const struct feed_matches
    classes = {"logits", "", "images get their class", "with a head predicts none"},
    texts = {"logits_per_image", "retrieval ", "images find their text among those of a batch",
             "with a head predicts none"};

static int labelled_feed_open(struct feed *f, struct run *r, enum feed_role role, struct error *e)
{
    const struct config *c = f->config;
    struct feed_plan *b = r->planned.batches.feed;
    CHECK(b && r->planned.batches.loader_bytes, "the run was not planned for images");
    struct labelled_feed *s = mem_alloc(sizeof *s);
    f->state = s;
    int rc = open_list(&s->set, c, role, e);
    if (!rc) rc = open_files(s, c, role, e);
    s->T = b->holds.padded ? r->planned.batch.T : 0;
    if (!rc) rc = s->T ? tokenize(s, c, &r->planned.model, e) : find_classes(s, r->planned.model.head, e);
    if (rc) {
        labelled_feed_close(f);
        return rc;
    }
    s->source = (struct image_list_source){.order = feed_order(c, role), .set = &s->set, .files = s->files};
    f->order = &s->source.order;
    f->matches = s->T ? &texts : &classes;
    f->samples = s->set.samples.n;
    f->fingerprint = s->set.fingerprint;
    const char *key = role == FEED_TRAIN ? "data.train" : "data.validation";
    if (s->T)
        log_note("%s: %u pairs of an image and a text, in rows of %" PRId64 " tokens", key, s->set.samples.n, s->T);
    else log_note("%s: %u images of %" PRId64 " classes", key, s->set.samples.n, r->planned.model.head->classes);
    if (role == FEED_TRAIN && s->set.one_group)
        log_warn("data.train: all samples are of one image: data.holdout holds out some of them, so that scores will "
                 "be too high");
    return PL_OK;
}

/* Runs after the memory is allocated. */
static void labelled_start(struct feed *f, struct run *r)
{
    struct labelled_feed *s = f->state;
    const int64_t rows = planned_samples(&r->planned), B = r->planned.plan.settings.micro_batch;
    s->targets = mem_alloc((size_t)rows * sizeof *s->targets);
    s->is_sample = mem_alloc((size_t)(s->T ? B * B : 1) * sizeof *s->is_sample);
    s->row = mem_alloc((size_t)s->T * sizeof *s->row);
    s->facts = (struct feed_queries){.M = s->T ? B : r->planned.model.head->classes, .Q = 1, .targets = s->targets,
                                     .is_mask = s->T ? s->is_sample : NULL};
    f->queries = &s->facts;
}

/* --- a batch ---------------------------------------------------------------------------------- */

/* Returns the text of a row; x NULL: padding, with the text of sample 0. */
static const int32_t *find_text(struct labelled_feed *s, const struct list_image *x)
{
    const uint64_t i = x ? x->sample : 0;
    const int64_t n = (int64_t)(s->first[i + 1] - s->first[i]);
    for (int64_t t = 0; t < s->T; t++) s->row[t] = t < n ? s->ids.at[s->first[i] + (uint64_t)t] : s->padding;
    return s->row;
}

/* Writes a row: an image with its class or, of a contrastive run, with its text, whose target is
 * the row itself. Divisors of the loss: [0] samples that are whole, [1] all but padding. Padding
 * repeats the pixels of the row before it: what is in fresh memory may be NaN. */
static int labelled_row(struct feed *f, const struct batch_target *t, const struct feed_row *at,
                        struct feed_batch *out, struct error *e)
{
    struct labelled_feed *s = f->state;
    const struct list_image *x = at->slot, *last = at->last;
    const bool sample = x && !x->broken;
    int32_t *target = &s->targets[at->at];
    *target = !sample ? -100 : s->T ? (int32_t)at->at : s->classes[x->sample];
    const struct batch_record row = {.is = {[ROW_PIXELS] = {last ? last->pixels : NULL},
                                            [ROW_IDS] = {s->T ? find_text(s, x) : NULL},
                                            [ROW_LABELS] = {s->T ? NULL : target}}};
    out->count[0] += sample;
    if (x) out->count[1] += 1, out->units += 1;
    return batch_write(f->writer, t, at->at, &row, e);
}

/* Writes which rows are each other's negatives: the samples of the batch. */
static int labelled_end(struct feed *f, const struct batch_target *t, int64_t B, struct error *e)
{
    struct labelled_feed *s = f->state;
    if (!s->T) return PL_OK;
    CHECK(B == f->run->planned.plan.settings.micro_batch, "a contrastive micro-batch is whole");
    for (int64_t i = 0; i < B * B; i++) s->is_sample[i] = s->targets[i % B] >= 0;
    return batch_write_pairs(f->writer, t, s->is_sample, B, e);
}

const struct feed_ops labelled_feed = {.port = "pixel_values",
                                       .unit = "images",
                                       .counts = {"images", "samples"},
                                       .open = labelled_feed_open,
                                       .start = labelled_start,
                                       .row = labelled_row,
                                       .end = labelled_end,
                                       .close = labelled_feed_close};
