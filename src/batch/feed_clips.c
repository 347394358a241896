/*
 * feed_clips.c: clips of videos with the masks of their objects, for SAM 2 (models/sam2_video.c).
 *
 *     reader's slot (data/clips.h) ─┬─ images, image_valid         the frames
 *                                   ├─ gt_masks, gt_valid          each object on each frame
 *                                   ├─ frame_times                 0, 1, 2, ...
 *                                   └─ input_points, input_labels  a point or a box of each object on
 *                                                                  the first frame, simulated here
 *
 * An object that has left has a target without a pixel. The loss is divided by the objects. An
 * evaluation takes clips that do not overlap, and prompts by the exact boxes.
 */
#include "base/random.h"
#include "batch/batch_plan.h"
#include "batch/feed.h"
#include "batch/first_prompts.h"

struct clip_feed {
    struct dataset *set;
    struct clip_starts starts;
    struct clip_source source;
    const struct clip_options *o;
    struct first_prompts prompts;
    /* one row of the batch */
    float *coords;        /* [M][FIRST_SLOTS][2] */
    int32_t *kinds;       /* [M][FIRST_SLOTS] */
    int32_t *valid;       /* [T][M][2] */
    int32_t *times;       /* [T] */
    int32_t *sizes;       /* [T][2] */
};

static void clip_close(struct feed *f)
{
    struct clip_feed *m = f->state;
    void *const rooms[] = {m->coords, m->kinds, m->valid, m->times, m->sizes};
    for (size_t i = 0; i < COUNT(rooms); i++) mem_free(rooms[i]);
    vec_free(&m->starts.at);
    dataset_close(m->set);
    mem_free(m);
}

static int clip_open(struct feed *f, struct run *r, enum feed_role role, struct error *e)
{
    const struct config *c = f->config;
    struct feed_plan *b = r->planned.batches.feed;
    struct dataset *set;
    CHECK(b && b->clips.frames && r->planned.batches.loader_bytes, "the run was not planned for clips");
    TRY(feed_open_dataset(&set, c, role, e));
    struct clip_feed *m = mem_alloc(sizeof *m);
    const size_t M = b->clips.image.masks, T = b->clips.frames;
    f->state = m;
    *m = (struct clip_feed){.set = set, .o = &b->clips};
    if (clips_find(&m->starts, set, b->clips.frames, role == FEED_TRAIN ? 1 : b->clips.frames, e)) {
        clip_close(f);
        return e->code;
    }
    m->source = (struct clip_source){feed_order(c, role), set, &m->starts};
    m->prompts = (struct first_prompts){.side = m->o->image.side,
                                        .cells = m->o->image.cells,
                                        .masks = m->o->image.masks,
                                        .key = random_key((uint64_t)c->train_seed, "first prompts"),
                                        .box = c->prompts_box, .jitter = c->prompts_jitter};
    m->coords = mem_alloc(M * FIRST_SLOTS * 2 * sizeof *m->coords);
    m->kinds = mem_alloc(M * FIRST_SLOTS * sizeof *m->kinds);
    m->valid = mem_alloc(T * M * 2 * sizeof *m->valid);
    m->times = mem_alloc(T * sizeof *m->times);
    m->sizes = mem_alloc(T * 2 * sizeof *m->sizes);
    for (size_t t = 0; t < T; t++) m->times[t] = (int32_t)t;
    f->order = &m->source.order;
    f->samples = m->starts.at.n;
    f->fingerprint = dataset_fingerprint(set);
    log_note("data.%s: %u clips of %u frames in %llu videos%s", role == FEED_TRAIN ? "train" : "validation",
             m->starts.at.n, m->o->frames, (unsigned long long)m->starts.videos,
             m->starts.short_videos ? ", of which some are shorter" : "");
    return PL_OK;
}

/* Fills prompts, valid areas and sizes; s NULL: the row is padding. */
static void describe_row(struct clip_feed *m, enum feed_role role, const struct clip_sample *s)
{
    const uint32_t M = m->o->image.masks, T = m->o->frames, n = s ? s->first.n : 0;
    memset(m->coords, 0, (size_t)M * FIRST_SLOTS * 2 * sizeof *m->coords);
    for (uint32_t k = 0; k < M * FIRST_SLOTS; k++) m->kinds[k] = POINT_FILLER;
    for (uint32_t k = 0; k < n; k++)
        (role == FEED_TRAIN ? prompt_random : prompt_box)(&m->prompts, &s->first, k,
                                                          m->coords + (size_t)k * FIRST_SLOTS * 2,
                                                          m->kinds + k * FIRST_SLOTS);
    for (uint32_t t = 0; t < T; t++) {
        m->sizes[2 * t] = s ? (int32_t)s->first.rows : 0;
        m->sizes[2 * t + 1] = s ? (int32_t)s->first.columns : 0;
        for (uint32_t k = 0; k < M; k++) {
            int32_t *valid = m->valid + 2 * ((size_t)t * M + k);
            valid[0] = k < n ? (int32_t)s->first.mask_rows : 0;
            valid[1] = k < n ? (int32_t)s->first.mask_columns : 0;
        }
    }
}

static int clip_row(struct feed *f, const struct batch_target *t, const struct feed_row *x, struct feed_batch *out,
                    struct error *e)
{
    struct clip_feed *m = f->state;
    const struct clip_sample *s = x->slot;
    describe_row(m, f->role, s);
    const struct batch_record row = {.is = {[ROW_IMAGES] = {s ? s->images : NULL},
                                            [ROW_IMAGE_VALID] = {m->sizes},
                                            [ROW_FRAME_TIMES] = {m->times},
                                            [ROW_POINTS] = {m->coords},
                                            [ROW_POINT_KINDS] = {m->kinds},
                                            [ROW_MASKS] = {s ? s->bits : NULL},
                                            [ROW_MASK_VALID] = {m->valid}}};
    if (s) out->count[0] += s->first.n, out->count[1] += 1, out->units += m->o->frames;
    return batch_write(f->writer, t, x->at, &row, e);
}

const struct feed_ops clips_feed = {.port = "gt_masks",
                                    .unit = "images",
                                    .counts = {"masks", "clips"},
                                    .open = clip_open,
                                    .row = clip_row,
                                    .close = clip_close};
