/*
 * feed_masks.c: images with masks for a promptable model.
 *
 *     loader's slot ─┬─ images, image_valid         the canvas, and the size of the image in it; or
 *                    │  image_embeddings            its stored embedding (embed.h)
 *                    ├─ gt_masks, gt_valid          bits at the loss's resolution
 *                    └─ input_points, input_labels  the first prompt of each mask, simulated here
 *                       prompt_keys                 random keys of the points of later rounds
 *
 * Slots of a prompt: 0 and 1 are the first prompt, a point and a filler or two corners. The others
 * are unused at first; the program fills them, one round at a time (models/sam_prompt.c).
 *
 * Training draws a point or a box by seed, position and mask. An evaluation reads the dataset
 * twice: with the most interior point of each mask, and with its exact box.
 *
 * Training and validation share one loader: they never read at the same time, and switching
 * between them is a seek.
 */
#include <inttypes.h>

#include "base/random.h"
#include "batch/batch_plan.h"
#include "batch/embed.h"
#include "batch/feed.h"
#include "batch/first_prompts.h"

enum pass { PASS_POINT, PASS_BOX };
static const char *const passes[] = {"point", "box"};

struct mask_feed {
    struct dataset *set;
    struct loader_source source;
    const struct loader_options *o;
    int64_t P;                  /* slots of a prompt */
    struct first_prompts prompts;
    /* one row of the batch */
    float *coords;              /* [M][P][2] */
    int32_t *kinds;             /* [M][P] */
    int32_t *valid;             /* [M][2] */
    int32_t *keys;              /* [M] */
    struct feed_mask *masks;    /* [rows][M] */
};

/* --- opening ------------------------------------------------------------------------------- */

static struct dataset_options dataset_options(const struct config *c, enum feed_role role)
{
    bool train = role == FEED_TRAIN;
    const struct config_list *paths = train || !c->data_validation.n ? &c->data_train : &c->data_validation;
    return (struct dataset_options){.format = batch_format(c), .paths = paths->at, .n_paths = paths->n,
                                    .images = !train && c->data_validation_images ? c->data_validation_images
                                                                                  : c->data_images,
                                    .masks =
                                        !train && c->data_validation_masks ? c->data_validation_masks : c->data_masks,
                                    .image_prefix = c->data_image_prefix,
                                    .image_suffix = c->data_image_suffix,
                                    .mask_prefix = c->data_mask_prefix,
                                    .mask_suffix = c->data_mask_suffix,
                                    .categories = c->data_categories.at,
                                    .n_categories = c->data_categories.n,
                                    .crowds = c->data_crowds,
                                    .labels = (enum label_kind)c->data_labels,
                                    .ignore = (int)c->data_ignore,
                                    .threshold = (uint32_t)c->data_threshold,
                                    .range = feed_range(c),
                                    .slices = feed_slices(c),
                                    .room = batch_room(c),
                                    .image_column = c->data_image_column,
                                    .mask_column = c->data_mask_column,
                                    .split_column = c->data_split_column,
                                    .split = {.part = train ? "train" : "validation",
                                              .list = train ? c->data_train_list : c->data_validation_list,
                                              .glob = train ? c->data_train_match : c->data_validation_match,
                                              .column = train ? c->data_train_split : c->data_validation_split,
                                              .fraction = c->data_holdout,
                                              .rest = train,
                                              .folders = c->data_frames > 0,
                                              .seed = (uint64_t)c->data_split_seed}};
}

struct loader_source feed_source(const struct config *c, const struct dataset *set, enum feed_role role)
{
    struct loader_source s = {.order = feed_order(c, role), .set = set, .interior = role == FEED_VALIDATION,
                              .sampler = {.strategy = (enum sampler_strategy)c->data_strategy,
                                          .max_masks = (uint32_t)c->data_max_masks, .min_iou = (float)c->data_min_iou,
                                          .min_stability = (float)c->data_min_stability, .min_area = c->data_area.low,
                                          .max_area = c->data_area.high, .crowds = c->data_crowds}};
    if (role == FEED_TRAIN) s.augment = batch_augment(c);
    return s;
}

/* Reads files of their own for validation as those of training: what is auto is decided over
 * data.train. */
static void decide_as_training(const struct config *c, struct dataset_options *d)
{
    struct dataset_options train = dataset_options(c, FEED_TRAIN);
    struct dataset *set;
    struct error e;
    train.split = (struct dataset_split){0};
    if (dataset_open(&set, &train, &e)) {
        log_warn("data.labels and data.range are decided over data.validation, because data.train cannot be opened: %s",
                 e.text);
        return;
    }
    d->labels = set->labels.kind;
    d->ignore = set->labels.ignore;
    d->threshold = set->labels.threshold;
    d->range = set->range;
    dataset_close(set);
}

static int open_set(struct dataset **set, const struct config *c, enum feed_role role, bool texts, struct error *e)
{
    struct dataset_options d = dataset_options(c, role);
    d.texts = texts;
    if (texts && d.labels == LABELS_AUTO) d.labels = LABELS_BINARY; /* one mask for a question */
    const bool labels =
        (c->data_format == FORMAT_PAIRS || c->data_format == FORMAT_CSV || c->data_format == FORMAT_PARQUET) &&
        d.labels == LABELS_AUTO;
    if (role == FEED_VALIDATION && c->data_validation.n && c->data_train.n && c->data_format != FORMAT_PACKED &&
        (labels || d.range.kind == RANGE_AUTO))
        decide_as_training(c, &d);
    return dataset_open(set, &d, e);
}

int feed_open_dataset(struct dataset **set, const struct config *c, enum feed_role role, struct error *e)
{
    return open_set(set, c, role, false, e);
}
int feed_open_questions(struct dataset **set, const struct config *c, enum feed_role role, struct error *e)
{
    return open_set(set, c, role, true, e);
}

void feed_resolve(const struct feed *f, struct config *c)
{
    const struct dataset *d = feed_dataset(f);
    if (!d) return;
    if (d->format->label && c->data_labels == LABELS_AUTO) {
        c->data_labels = d->labels.kind;
        c->data_ignore = d->labels.ignore;
        c->data_threshold = d->labels.threshold;
    }
    if (c->data_range != RANGE_AUTO || d->range.kind == RANGE_AUTO) return;
    c->data_range = d->range.kind;
    if (d->range.kind != RANGE_WINDOW) return;
    c->data_window = (struct config_range){d->range.window[0], d->range.window[1]};
    c->origin[KEY_data_window].source = SOURCE_OPTION;
}

/* Says what was decided over the data, and what is left out of them. */
static void log_dataset(const struct dataset *set, const struct config *c, enum feed_role role, bool trained)
{
    struct text line = {0};
    /* the decisions are those of training, which has logged them */
    if (role == FEED_TRAIN || !trained) survey_log(set);
    if (dataset_print_left(set, c->data_crowds, &line))
        log_note("%s: %s", role == FEED_TRAIN ? "data.train" : "data.validation", line.at);
    text_free(&line);
}

static int try_samples(struct reader *l, struct loader_source *s, uint64_t samples, double max_bad, struct error *e)
{
    reader_seek(l, s, 0);
    for (uint64_t i = 0; i < samples; i++)
        if (!reader_next(l, e)) return e->code;
    const struct loader_counts *k = &s->order.counts;
    if ((double)k->broken <= max_bad * (double)k->seen) return PL_OK;
    return error_set(
        e, PL_USAGE,
        "%llu of %llu samples that were read cannot be used; the last one is %s; `plimsoll data verify` lists all",
        (unsigned long long)k->broken, (unsigned long long)k->seen, k->last);
}

/* Reads in another order than the files': the samples are spread over the dataset. */
int feed_try_images(const struct config *c, const struct model *m, enum feed_role role, uint64_t samples,
                    struct error *e)
{
    struct dataset *set;
    struct reader *l;
    const struct packed_embeddings none = {0};
    struct loader_options o = batch_loader(c, m, &none);
    int rc = feed_open_dataset(&set, c, role, e);
    if (rc) return rc;
    struct loader_source s = feed_source(c, set, role);
    s.order.shuffle = true, s.order.once = s.interior = false, s.order.max_bad = 1, s.order.quiet = true,
    s.augment = (struct loader_augment){0};
    char *memory = mem_alloc(reader_bytes(&loader_kind, &o) + 64);
    rc = reader_open(&l, &loader_kind, &o, memory + (64 - (uintptr_t)memory % 64) % 64, e);
    if (!rc) {
        rc = try_samples(l, &s, min_u64(samples, dataset_count(set)), c->data_max_bad, e);
        reader_close(l);
    }
    mem_free(memory);
    dataset_close(set);
    return rc;
}

static int mask_open(struct feed *f, struct run *r, enum feed_role role, struct error *e)
{
    const struct config *c = f->config;
    struct dataset *set;
    if (config_tokens(c)) return batch_refuse_tokens(c, &r->planned.model, e);
    struct feed_plan *batches = r->planned.batches.feed;
    CHECK(batches && r->planned.batches.loader_bytes, "the run was not planned for images");
    int rc = feed_open_dataset(&set, c, role, e);
    if (rc) return rc;
    log_dataset(set, c, role, r->planned.plan.settings.train);
    if (batches->embeddings.type && embed_check(r, set, e)) {
        dataset_close(set);
        return e->code;
    }
    set->from_embeddings = batches->embeddings.type;
    struct mask_feed *m = mem_alloc(sizeof *m);
    size_t M = (size_t)c->data_max_masks;
    *m = (struct mask_feed){.set = set,
                            .source = feed_source(c, set, role),
                            .o = &batches->masks,
                            .P = FIRST_SLOTS + c->prompts_iterations - 1};
    m->prompts = (struct first_prompts){.side = m->o->side, .cells = m->o->cells, .masks = m->o->masks,
                                        .key = random_key((uint64_t)c->train_seed, "first prompts"),
                                        .box = c->prompts_box, .jitter = c->prompts_jitter};
    m->coords = mem_alloc(M * (size_t)m->P * 2 * sizeof *m->coords);
    m->kinds = mem_alloc(M * (size_t)m->P * sizeof *m->kinds);
    m->valid = mem_alloc(M * 2 * sizeof *m->valid);
    m->keys = mem_alloc(M * sizeof *m->keys);
    f->order = &m->source.order;
    f->cells = m->o->cells;
    f->samples = dataset_count(set);
    f->fingerprint = dataset_fingerprint(set);
    f->state = m;
    return PL_OK;
}

/* Runs after the memory is allocated. */
static void mask_start(struct feed *f, struct run *r)
{
    struct mask_feed *m = f->state;
    f->masks = m->masks = mem_alloc((size_t)planned_samples(&r->planned) * m->o->masks * sizeof *m->masks);
}

static void mask_close(struct feed *f)
{
    struct mask_feed *m = f->state;
    dataset_close(m->set);
    mem_free(m->coords);
    mem_free(m->kinds);
    mem_free(m->valid);
    mem_free(m->keys);
    mem_free(m->masks);
    mem_free(m);
}

const struct dataset *feed_dataset(const struct feed *f)
{
    if (f->ops == &questions_feed) return question_dataset(f);
    return f->ops == &masks_feed ? ((const struct mask_feed *)f->state)->set : NULL;
}

/* --- a batch ---------------------------------------------------------------------------------- */

static void put_prompt(const struct feed *f, const struct loader_sample *s, uint32_t k, float *coords, int32_t *kinds)
{
    const struct mask_feed *m = f->state;
    if (f->role == FEED_TRAIN) prompt_random(&m->prompts, s, k, coords, kinds);
    else if (f->pass == PASS_BOX) prompt_box(&m->prompts, s, k, coords, kinds);
    else prompt_interior(&m->prompts, s, k, coords, kinds);
}

/* Fills prompts, valid sizes and facts of row `at`; s NULL: the row is padding. `from`: the
 * index of the first row in the step's batch, which the keys of later rounds' points depend on;
 * in an evaluation the position, so that the split into batches does not matter. */
static void describe_row(const struct feed *f, int64_t at, uint64_t from, const struct loader_sample *s)
{
    struct mask_feed *m = f->state;
    uint32_t M = m->o->masks, n = s ? s->n : 0;
    size_t P = (size_t)m->P;
    memset(m->coords, 0, M * P * 2 * sizeof *m->coords);
    memset(m->valid, 0, M * 2 * sizeof *m->valid);
    for (uint32_t k = 0; k < M; k++) {
        int32_t *kinds = m->kinds + k * P;
        for (size_t i = 0; i < P; i++) kinds[i] = i < FIRST_SLOTS ? POINT_FILLER : POINT_UNUSED;
        m->keys[k] = (int32_t)(uint32_t)((from + (uint64_t)at) * M + k);
        m->masks[at * M + k] = (struct feed_mask){0};
        if (k >= n) continue;
        put_prompt(f, s, k, m->coords + k * P * 2, kinds);
        m->valid[2 * k] = (int32_t)s->mask_rows;
        m->valid[2 * k + 1] = (int32_t)s->mask_columns;
        m->masks[at * M + k] = (struct feed_mask){s->sample, s->masks[k].id, s->masks[k].category, s->masks[k].area};
    }
}

/* Writes a row. Padding rows have weight 0. Old image bytes are always finite numbers and can stay,
 * but uninitialised memory of an embedding may hold NaN, and NaN times 0 is NaN. So a padding row
 * repeats the previous embedding. */
static int mask_row(struct feed *f, const struct batch_target *t, const struct feed_row *x, struct feed_batch *out,
                    struct error *e)
{
    const struct mask_feed *m = f->state;
    const struct loader_sample *s = x->slot, *last = x->last;
    const int32_t size[2] = {s ? (int32_t)s->rows : 0, s ? (int32_t)s->columns : 0};
    describe_row(f, x->at, f->role == FEED_TRAIN ? (uint64_t)t->sample : x->position, s);
    const struct batch_record row = {.is = {[ROW_IMAGES] = {s ? s->image : NULL},
                                            [ROW_EMBEDDINGS] = {last ? last->embedding : NULL},
                                            [ROW_IMAGE_VALID] = {size},
                                            [ROW_POINTS] = {m->coords},
                                            [ROW_POINT_KINDS] = {m->kinds},
                                            [ROW_MASKS] = {s ? s->bits : NULL},
                                            [ROW_MASK_VALID] = {m->valid},
                                            [ROW_PROMPT_KEYS] = {m->keys}}};
    if (s) out->count[0] += s->n, out->count[1] += 1, out->units += 1;
    return batch_write(f->writer, t, x->at, &row, e);
}

const struct feed_ops masks_feed = {.port = "gt_masks",
                                    .unit = "images",
                                    .counts = {"masks", "images"},
                                    .passes = passes,
                                    .n_passes = COUNT(passes),
                                    .open = mask_open,
                                    .start = mask_start,
                                    .row = mask_row,
                                    .close = mask_close};
