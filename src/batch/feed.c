/*
 * feed.c: see feed.h.
 */
#include "batch/feed.h"

#include "batch/batch_plan.h"
#include "run/ranks.h"

#include "data/order.h"
#include "data/dataset.h"
#include "data/reader.h"

/* Returns the feed that fills the model's inputs. A model that a program defines has no ports: the
 * data's format decides. */
static const struct feed_ops *choose(const struct config *c, const struct model *m)
{
    if (model_port(m, questions_feed.port)) return &questions_feed;
    if (m->head) return &labelled_feed;
    if (c->data_frames && m->masks) return &clips_feed;
    if (config_text(c)) return &conversations_feed;
    static const struct feed_ops *const feeds[] = {&grounding_feed, &tokens_feed, &masks_feed};
    for (size_t i = 0; i < COUNT(feeds); i++)
        if (model_port(m, feeds[i]->port)) return feeds[i];
    return config_tokens(c) ? &tokens_feed : &masks_feed;
}

static int find_count(const struct feed_ops *ops, const char *name)
{
    for (int i = 0; i < FEED_COUNTS; i++)
        if (!*name || !strcmp(ops->counts[i], name)) return i;
    return -1;
}

/* Checks that the data have every count that a loss of the model is divided by. */
static int check_counts(const struct feed_ops *ops, const struct graph *g, struct error *e)
{
    for (uint32_t k = 0; k < g->n_counts; k++)
        if (find_count(ops, graph_count_name(g, k)) < 0)
            return error_set(
                e, PL_USAGE,
                "a loss of the model is divided by the count %s, which this data does not have; it has: %s, %s",
                graph_count_name(g, k), ops->counts[0], ops->counts[1]);
    return PL_OK;
}

double feed_count(const struct feed *f, const struct feed_batch *b, const char *name)
{
    return b->count[find_count(f->ops, name)];
}

static const char *role_key(enum feed_role role) { return role == FEED_TRAIN ? "data.train" : "data.validation"; }

int feed_open(struct feed *f, const struct config *c, struct run *r, enum feed_role role, struct error *e)
{
    const struct feed_ops *ops = choose(c, &r->planned.model);
    *f = (struct feed){.config = c, .run = r, .role = role};
    int rc = check_counts(ops, &r->planned.graph, e);
    if (!rc) rc = ops->open(f, r, role, e);
    if (rc) return error_prepend(e, "%s", role_key(role));
    f->ops = ops;
    return PL_OK;
}

int feed_prepare(struct feed *f, struct run *r, const char *folder, struct error *e)
{
    int rc = f->ops && f->ops->prepare ? f->ops->prepare(f, r, folder, e) : PL_OK;
    return rc ? error_prepend(e, "%s", role_key(f->role)) : PL_OK;
}

/* Starts reading. The first feed of a run opens the reader. */
static int start_reading(struct feed *f, struct run *r, struct error *e)
{
    struct feed_reading *b = &r->planned.batches.feed->reading;
    f->order->counts.seen = b->kind->seen ? b->kind->seen(f->order, f->start) : f->start;
    f->order->counts.broken = f->broken;
    if (!b->reader) TRY(reader_open(&b->reader, b->kind, b->options, run_loader_memory(r), e));
    const struct feed_part part = feed_part(f, r);
    f->order->each = part.each, f->order->every = part.every;
    /* prefetches for the first step */
    if (f->role == FEED_TRAIN && (part.each || !part.every)) reader_seek(b->reader, f->order, part.first);
    return PL_OK;
}

int feed_start(struct feed *f, struct run *r, uint64_t position, uint64_t broken, struct error *e)
{
    f->start = position;
    f->broken = broken;
    if (!f->ops) return PL_OK;
    f->writer = batch_writer_new(r);
    if (f->ops->start) f->ops->start(f, r);
    if (!f->order) return PL_OK;
    TRY(start_reading(f, r, e));
    if (r->planned.ranks && f->role == FEED_TRAIN) f->order->max_bad = 1;
    return PL_OK;
}

struct feed_part feed_part(const struct feed *f, const struct run *r)
{
    if (f->role == FEED_VALIDATION) {
        const uint64_t B = (uint64_t)r->planned.plan.settings.micro_batch;
        return r->planned.ranks ? (struct feed_part){B * (uint64_t)planned_data_place(&r->planned), B,
                                                     B * (uint64_t)planned_data_ranks(&r->planned)}
                                : (struct feed_part){0};
    }
    const struct planned_part part = planned_part(&r->planned);
    struct feed_part p = {.first = f->start + (uint64_t)part.first};
    if (part.n < r->planned.effective_batch) p.each = (uint64_t)part.n, p.every = (uint64_t)r->planned.effective_batch;
    return p;
}

uint64_t feed_seen(const struct feed *f) { return f->order ? f->order->counts.seen : 0; }

int feed_check(struct feed *f, uint64_t seen, uint64_t broken, uint64_t position, int64_t n, struct error *e)
{
    if (!f->order) return PL_OK;
    /* the end of an epoch */
    const bool whole = f->samples && position / f->samples != (position + (uint64_t)n) / f->samples;
    f->order->counts.seen = seen;
    f->order->counts.broken = f->broken = broken;
    return faults_check(&f->order->counts, f->config->data_max_bad, whole, "", e);
}

int feed_passes(const struct feed *f) { return f->ops->passes ? f->ops->n_passes : 1; }
const char *feed_pass_name(const struct feed *f, int pass) { return f->ops->passes ? f->ops->passes[pass] : ""; }
void feed_set_pass(struct feed *f, int pass) { f->pass = pass; }

/* Writes the slots of a reader, and then padding. */
static int put_slots(struct feed *f, const struct batch_target *t, uint64_t position, int64_t samples, int64_t rows,
                     struct feed_batch *out, struct error *e)
{
    struct sample_order *o = f->order;
    struct reader *r = f->run->planned.batches.feed->reading.reader;
    struct feed_row x = {.position = position};
    int rc = PL_OK;
    if (f->role == FEED_VALIDATION && feed_begins(position, o->each, o->every))
        o->counts = (struct loader_counts){0}, f->unmatched = 0;
    if (samples && !reader_at(r, o, position)) reader_seek(r, o, position);
    for (; x.at < rows && !rc; x.at++) {
        x.slot = NULL;
        if (x.at < samples && !(x.slot = reader_next(r, e))) rc = e->code;
        if (x.slot) x.last = x.slot;
        if (!rc) rc = f->ops->row(f, t, &x, out, e);
    }
    if (!rc && f->ops->end) rc = f->ops->end(f, t, rows, e);
    f->broken = o->counts.broken;
    if (f->cells)
        f->left = (struct feed_left){.images = o->counts.seen - (f->role == FEED_TRAIN ? f->start : 0),
                                     .small = o->counts.lost_masks, .malformed = o->counts.bad_masks,
                                     .without = o->counts.empty, .queries = f->unmatched, .cells = f->cells};
    return rc;
}

int feed_put(struct feed *f, const struct batch_target *t, uint64_t position, int64_t samples, int64_t rows,
             struct feed_batch *out, struct error *e)
{
    *out = (struct feed_batch){0};
    return (f->order ? put_slots : f->ops->put)(f, t, position, samples, rows, out, e);
}

bool feed_print_left(const struct feed *f, char *out, size_t room)
{
    const struct feed_left *l = &f->left;
    const bool train = f->role == FEED_TRAIN;
    int n = snprintf(out, room, "%s: left out of %llu %s:", train ? "data.train" : "data.validation",
                     (unsigned long long)l->images, l->images == 1 ? "image" : "images");
    if (l->small)
        n += snprintf(out + n, room - (size_t)n,
                      " %llu %s too small to be %s%s (on no cell of the loss's grid of %u x %u);",
                      (unsigned long long)l->small, l->small == 1 ? "mask" : "masks", train ? "trained on" : "scored",
                      train && f->config->data_crop < 1 ? ", or outside of the crop" : "", l->cells, l->cells);
    if (l->malformed)
        n += snprintf(out + n, room - (size_t)n, " %llu malformed %s;", (unsigned long long)l->malformed,
                      l->malformed == 1 ? "mask" : "masks");
    if (l->without)
        n += snprintf(out + n, room - (size_t)n, " %llu %s without a mask to %s;", (unsigned long long)l->without,
                      l->without == 1 ? "image" : "images", train ? "train on" : "score");
    if (l->queries)
        n += snprintf(out + n, room - (size_t)n, " %llu %s of masks that cover no patch;",
                      (unsigned long long)l->queries, l->queries == 1 ? "query" : "queries");
    out[n - 1] = 0; /* the last ; */
    return l->small || l->malformed || l->without || l->queries;
}

int feed_empty(const struct feed *f, struct error *e)
{
    return error_set(e, PL_USAGE, "data.validation: none of its %llu samples has something to predict%s",
                     (unsigned long long)f->samples,
                     f->masks ? ": no mask passes data.min_iou, data.min_stability, data.area and data.categories"
                              : "");
}

void feed_close(struct feed *f)
{
    if (f->ops && f->order) { /* before what it reads is closed */
        struct feed_reading *b = &f->run->planned.batches.feed->reading;
        reader_close(b->reader);
        b->reader = NULL;
    }
    if (f->ops) f->ops->close(f);
    batch_writer_free(f->writer);
    f->ops = NULL, f->writer = NULL;
}

uint64_t feed_sample(const struct feed *f, uint64_t position)
{
    if (f->role == FEED_VALIDATION) return position;
    return sample_at((uint64_t)f->config->train_seed, position, f->samples, f->config->data_shuffle);
}

/* --- how images are read, by the keys of section data -------------------------------------- */

struct sample_order feed_order(const struct config *c, enum feed_role role)
{
    return (struct sample_order){.seed = (uint64_t)c->train_seed, .shuffle = c->data_shuffle,
                                 .once = role == FEED_VALIDATION, .max_bad = c->data_max_bad};
}

struct pixel_range feed_range(const struct config *c)
{
    return (struct pixel_range){.kind =
                                    config_given(c, KEY_data_window) ? RANGE_WINDOW : (enum range_kind)c->data_range,
                                .percentiles = {c->data_percentiles.low, c->data_percentiles.high},
                                .window = {c->data_window.low, c->data_window.high}};
}

struct slice_options feed_slices(const struct config *c)
{
    return (struct slice_options){.axis = (enum volume_axis)c->data_slice_axis, .all = c->data_slices,
                                  .neighbours = c->data_neighbours, .modalities = c->data_modalities.at,
                                  .n_modalities = c->data_modalities.n, .cache = c->data_volume_cache};
}
