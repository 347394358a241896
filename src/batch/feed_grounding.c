/*
 * feed_grounding.c: images with masks and queries, for a model that matches both
 * (models/grounding.h).
 *
 *     loader's slot ─┬─ images, image_valid         the canvas, and the size of the image in it
 *                    └─ masks                       the share of each patch that a mask covers
 *     queries ─┬─ input_ids, position_ids, ranges   tokenized in `prepare` (data/formats/queries.h)
 *              └─ query_index, target_masks, candidates, answers
 *
 * The masks of the queries are always among those that the loader chooses; target_masks are their
 * indices there. A query whose mask turns out to cover no patch, or is malformed, has no weight.
 * Training and validation share one loader.
 */
#include <inttypes.h>

#include "data/formats/queries.h"
#include "batch/batch_plan.h"
#include "batch/feed.h"
#include "io/file.h"
#include "text/tokenizer/tokenizer.h"

struct grounding_feed {
    const struct loader_options *options;
    struct dataset *set;
    struct query_set queries;
    struct loader_source source;
    const struct ground_model *model;
    int64_t M, Q, T, patches;
    /* one row of the batch */
    float *areas;               /* [M][patches] */
    int32_t *ids, *positions, (*ranges)[2], *index;
    /* of all rows */
    struct feed_queries facts;
    int32_t *targets;           /* [rows][Q] */
    bool *is_mask;              /* [rows][M] */
};

/* --- opening ------------------------------------------------------------------------------- */

static bool has_tokenizer(const char *folder)
{
    char path[1100];
    static const char *const files[] = {"tokenizer.json", "tokenizer.model"};
    for (size_t i = 0; i < COUNT(files); i++) {
        snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        if (*folder && file_exists(path)) return true;
    }
    return false;
}

/* Opens the tokenizer; *out is NULL: a vocabulary of 256 ids without a tokenizer is that of
 * bytes. */
static int open_tokenizer(const struct config *c, const struct model *m, struct tokenizer **out, struct error *e)
{
    enum { BYTES = 256 };
    const char *folder = m->ground->text ? m->ground->text : m->path;
    *out = NULL;
    if (!c->data_tokenizer && !has_tokenizer(folder)) {
        if (m->vocabulary == BYTES) return PL_OK;
        return error_set(
            e, PL_USAGE,
            "%s has no tokenizer: set data.tokenizer to a model folder, a tokenizer.json or a tokenizer.model",
            *folder ? folder : "a preset");
    }
    int rc = tokenizer_open(out, c->data_tokenizer ? c->data_tokenizer : folder, e);
    return rc && c->data_tokenizer ? error_prepend(e, "data.tokenizer") : rc;
}

static const char *queries_path(const struct config *c, enum feed_role role)
{
    return role == FEED_VALIDATION && c->data_validation_queries ? c->data_validation_queries : c->data_queries;
}

static void report(const struct grounding_feed *s, enum feed_role role)
{
    const char *key = role == FEED_TRAIN ? "data.train" : "data.validation";
    struct text left = {0};
    log_note("%s: %u queries in %u samples of at most %" PRId64, key, s->queries.mask.n, s->queries.samples, s->Q);
    if (query_set_print_left(&s->queries, &left)) log_warn("%s: %s", key, left.at);
    text_free(&left);
}

static int open_queries(struct feed *f, struct run *r, struct grounding_feed *s, struct error *e)
{
    const struct config *c = f->config;
    const char *path = queries_path(c, f->role);
    struct queries all = {0};
    struct tokenizer *t = NULL;
    if (!path)
        return error_set(e, PL_USAGE,
                         "there are no queries: set data.queries to a CSV or JSON file with image, query and mask_id");
    int rc = queries_read(&all, path, e);
    if (!rc) rc = open_tokenizer(c, &r->planned.model, &t, e);
    const struct query_set_options o = {.queries = (uint32_t)s->Q, .sequence = s->T,
                                        .vocabulary = r->planned.model.vocabulary, .tokenizer = t,
                                        .room = s->options->room};
    if (!rc && (rc = query_set_open(&s->queries, s->set, &all, &o, e))) error_prepend(e, "%s", path);
    tokenizer_close(t);
    queries_free(&all);
    return rc;
}

static struct loader_source make_source(const struct config *c, const struct grounding_feed *s, enum feed_role role)
{
    struct loader_source x = {.order = feed_order(c, role), .set = s->set,
                              .wanted = {s->queries.first.at, s->queries.mask.at},
                              .sampler = {.strategy = (enum sampler_strategy)c->data_strategy,
                                          .max_masks = (uint32_t)s->M, .min_iou = (float)c->data_min_iou,
                                          .min_stability = (float)c->data_min_stability, .min_area = c->data_area.low,
                                          .max_area = c->data_area.high, .crowds = c->data_crowds}};
    if (role == FEED_TRAIN) x.augment = batch_augment(c);
    return x;
}

static void grounding_close(struct feed *f)
{
    struct grounding_feed *s = f->state;
    dataset_close(s->set);
    query_set_close(&s->queries);
    mem_free(s->areas);
    mem_free(s->ids), mem_free(s->positions), mem_free(s->ranges), mem_free(s->index);
    mem_free(s->targets);
    mem_free(s->is_mask);
    mem_free(s);
}

static const struct feed_matches matches = {"similarity", "retrieval ", "queries find their mask",
                                            "matches masks with texts", .queries = true};

static int grounding_open(struct feed *f, struct run *r, enum feed_role role, struct error *e)
{
    const struct config *c = f->config;
    struct feed_plan *batches = r->planned.batches.feed;
    if (config_tokens(c)) return batch_refuse_tokens(c, &r->planned.model, e);
    CHECK(batches && r->planned.batches.loader_bytes, "the run was not planned for images");
    const struct ground_model *m = r->planned.model.ground;
    struct grounding_feed *s = mem_alloc(sizeof *s);
    *s = (struct grounding_feed){.options = &batches->masks,
                                 .model = m,
                                 .M = batches->holds.prompts.masks,
                                 .Q = batches->holds.queries,
                                 .T = c->data_sequence,
                                 .patches = m->side * m->side};
    f->state = s;
    int rc = feed_open_dataset(&s->set, c, role, e);
    if (!rc) rc = open_queries(f, r, s, e);
    if (rc) {
        grounding_close(f);
        return rc;
    }
    report(s, role);
    s->source = make_source(c, s, role);
    f->order = &s->source.order;
    f->cells = s->options->cells;
    f->matches = &matches;
    f->samples = dataset_count(s->set);
    f->fingerprint = dataset_fingerprint(s->set);
    return PL_OK;
}

/* Runs after the memory is allocated. */
static void grounding_start(struct feed *f, struct run *r)
{
    struct grounding_feed *s = f->state;
    const size_t rows = (size_t)planned_samples(&r->planned);
    const size_t T = (size_t)s->T * sizeof(int32_t);
    s->areas = mem_alloc((size_t)(s->M * s->patches) * sizeof *s->areas);
    s->ids = mem_alloc(T), s->positions = mem_alloc(T), s->ranges = mem_alloc(2 * T);
    s->index = mem_alloc((size_t)s->Q * sizeof *s->index);
    s->targets = mem_alloc(rows * (size_t)s->Q * sizeof *s->targets);
    s->is_mask = mem_alloc(rows * (size_t)s->M * sizeof *s->is_mask);
    s->facts = (struct feed_queries){s->M, s->Q, s->targets, s->is_mask};
    f->queries = &s->facts;
}

/* --- a batch -------------------------------------------------------------------------------- */

/* Computes the shares of the sample's masks, and which of them cover anything; x NULL: the row is
 * padding. */
static void put_masks(struct grounding_feed *s, const struct loader_sample *x, bool *is_mask)
{
    float *shares = s->areas;
    const uint64_t cells = s->options->cells, stride = grid_stride((uint32_t)cells),
                   each = grid_mask_bytes((uint32_t)cells, (uint32_t)cells);
    for (int64_t m = 0; m < s->M; m++, shares += s->patches) {
        is_mask[m] = x && m < x->n && ground_shares(s->model, x->bits + (uint64_t)m * each, stride, shares);
        if (!is_mask[m]) memset(shares, 0, (size_t)s->patches * sizeof *shares);
    }
}

/* Writes the index of each query's mask among the sample's. Returns their number. */
static uint32_t put_targets(struct feed *f, const struct loader_sample *x, const bool *is_mask,
                            int32_t *targets)
{
    const struct grounding_feed *s = f->state;
    const uint32_t from = x ? s->queries.first.at[x->sample] : 0, n = x ? s->queries.first.at[x->sample + 1] - from : 0;
    uint32_t found = 0;
    for (uint32_t q = 0; q < s->Q; q++) {
        targets[q] = -100;
        for (uint32_t m = 0; q < n && x->n && m < x->n && targets[q] < 0; m++)
            if (x->masks[m].id == s->queries.mask.at[from + q] && is_mask[m]) targets[q] = (int32_t)m;
        found += targets[q] >= 0;
    }
    f->unmatched += n - found;
    return found;
}

/* Writes a row; of padding the old image has no weight. */
static int grounding_row(struct feed *f, const struct batch_target *t, const struct feed_row *at,
                         struct feed_batch *out, struct error *e)
{
    struct grounding_feed *s = f->state;
    const struct loader_sample *x = at->slot;
    bool *is_mask = s->is_mask + at->at * s->M;
    int32_t *targets = s->targets + at->at * s->Q;
    const int32_t size[2] = {x ? (int32_t)x->rows : 0, x ? (int32_t)x->columns : 0};
    put_masks(s, x, is_mask);
    out->count[0] += put_targets(f, x, is_mask, targets);
    if (x) out->count[1] += 1, out->units += 1;
    if (x)
        query_set_row(&s->queries, (uint32_t)x->sample, s->T, (uint32_t)s->Q, s->ids, s->positions, s->ranges,
                      s->index);
    else memset(s->ranges, 0, (size_t)s->T * sizeof *s->ranges); /* a token of padding sees nothing */
    const struct batch_record row = {.is = {[ROW_IMAGES] = {x ? x->image : NULL},
                                            [ROW_IMAGE_VALID] = {size},
                                            [ROW_AREAS] = {s->areas},
                                            [ROW_IDS] = {s->ids},
                                            [ROW_POSITIONS] = {s->positions},
                                            [ROW_RANGES] = {s->ranges},
                                            [ROW_QUERY_INDEX] = {s->index},
                                            [ROW_TARGETS] = {targets}},
                                     .is_mask = is_mask};
    return batch_write(f->writer, t, at->at, &row, e);
}

const struct feed_ops grounding_feed = {.port = "target_masks",
                                        .unit = "images",
                                        .counts = {"queries", "images"},
                                        .open = grounding_open,
                                        .start = grounding_start,
                                        .row = grounding_row,
                                        .close = grounding_close};
