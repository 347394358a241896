/*
 * validate_videos.c: see validate.h. Each video is tracked as `plimsoll predict --video` does, at
 * the size of its frames. A volume is a video of all of its slices; each structure is tracked by
 * itself, from the slice where it is largest.
 */
#include "batch/batch_plan.h"
#include "batch/feed.h"
#include "data/clips.h"
#include "data/masks/label.h"
#include "infer/tracker.h"
#include "infer/validate.h"

enum { IDS = 1 << 16 };

struct scored {
    struct video_validation *v;
    const struct config *config;
    const struct dataset *set;
    struct pixel_range range;
    struct clip_video video;
    uint32_t w, h;
    char *room;              /* of a label image, or of a slice that is decoded */
    size_t bytes;
    uint32_t objects, *id;   /* [objects] */
    uint32_t object;         /* of a volume: the one that is tracked */
    uint8_t *predicted, *target, *scratch;
    uint16_t *labels;
    float *logits;
    struct video_object *score; /* [objects] */
};

/* Decodes the label image of frame k, of the size of the first one. */
static int read_labels(const struct scored *s, uint64_t k, struct label_image *out, struct error *e)
{
    const uint64_t i = s->video.first + k;
    char name[512];
    dataset_name(s->set, i, name, sizeof name);
    if (clips_labels(s->set, i, s->room, s->bytes, out, e)) return error_prepend(e, "%s", name), e->code = PL_USAGE;
    if (!s->w || (out->w == s->w && out->h == s->h)) return PL_OK;
    return error_set(e, PL_USAGE, "%s: the label image has %u x %u pixels, expected the %u x %u of the first one", name,
                     out->w, out->h, s->w, s->h);
}

static uint32_t label_at(const struct label_image *m, size_t i)
{
    return m->bytes == 2 ? ((const uint16_t *)m->pixels)[i] : ((const uint8_t *)m->pixels)[i];
}

/* Marks the values of a label image; data.ignore is none. */
static void mark_values(const struct scored *s, const struct label_image *m, bool *seen)
{
    for (size_t i = 0; i < (size_t)m->w * m->h; i++) seen[label_at(m, i)] = true;
    seen[0] = false;
    if (s->config->data_ignore > 0 && s->config->data_ignore < IDS) seen[s->config->data_ignore] = false;
}

/* Reads a frame, or a slice. */
static int read_frame(const struct scored *s, uint32_t frame, struct image *out, struct error *e)
{
    const uint64_t sample = s->video.first + frame;
    struct dataset_image slice;
    if (!s->video.volume) return image_read(out, dataset_image_path(s->set, sample), &s->range, e);
    if (dataset_image(s->set, sample, s->room, s->bytes, &slice, e)) return e->code = PL_USAGE;
    *out = (struct image){.width = slice.w, .height = slice.h, .rgb = mem_alloc((size_t)slice.w * slice.h * 3)};
    for (uint32_t y = 0; y < slice.h; y++)
        memcpy(out->rgb + (size_t)y * slice.w * 3, slice.pixels + y * slice.stride, (size_t)slice.w * 3);
    return PL_OK;
}

static int read_frames(const void *of, const uint32_t *chosen, uint32_t n, video_take *take, void *user,
                       struct error *e)
{
    const struct scored *s = of;
    for (uint32_t i = 0; i < n; i++) {
        struct image image = {0};
        TRY(read_frame(s, chosen[i], &image, e));
        const int rc = take(user, i, &image, e);
        image_free(&image);
        if (rc) return rc;
    }
    return PL_OK;
}

static int score_frame(void *user, const struct tracker_masks *m, const struct image *frame, struct error *e)
{
    struct scored *s = user;
    struct label_image truth;
    const size_t n = (size_t)s->w * s->h;
    (void)frame;
    if (!m->frame || m->frame + 1 == s->video.n) return PL_OK;
    TRY(read_labels(s, m->frame, &truth, e));
    tracker_labels(m, s->w, s->h, s->logits, s->labels);
    for (uint32_t k = 0; k < s->objects; k++) {
        for (size_t i = 0; i < n; i++)
            s->predicted[i] = s->labels[i] == k + 1, s->target[i] = label_at(&truth, i) == s->id[k];
        const struct overlap o = overlap_masks(s->predicted, s->target, n);
        s->score[k].j += overlap_iou(&o);
        s->score[k].f += boundary_score(s->predicted, s->target, s->w, s->h, s->scratch);
        s->score[k].frames++;
    }
    return PL_OK;
}

/* An object's prompt: its mask, or the box of it. */
struct given {
    uint8_t *mask;
    struct image_prompt box;
};

static struct given make_prompt(const struct scored *s, const struct label_image *m, uint32_t id)
{
    const size_t n = (size_t)s->w * s->h;
    struct given g = {mem_alloc(n), {.box = true, .corners = {(float)s->w, (float)s->h, 0, 0}}};
    float *c = g.box.corners;
    for (size_t i = 0; i < n; i++) {
        if (!(g.mask[i] = label_at(m, i) == id)) continue;
        const float x = (float)(i % s->w), y = (float)(i / s->w);
        if (x < c[0]) c[0] = x;
        if (y < c[1]) c[1] = y;
        if (x + 1 > c[2]) c[2] = x + 1;
        if (y + 1 > c[3]) c[3] = y + 1;
    }
    return g;
}

/* Tracks objects from their prompts on one frame. */
static int track(struct scored *s, const struct given *given, uint32_t n, uint32_t frame, bool boxes,
                 tracker_take *take, struct error *e)
{
    struct tracker_prompt *prompts = mem_alloc(n * sizeof *prompts);
    for (uint32_t k = 0; k < n; k++)
        prompts[k] = (struct tracker_prompt){frame, k, boxes ? &given[k].box : NULL, boxes ? NULL : given[k].mask};
    struct tracker_result planned = {0};
    const struct tracker_video video = {(uint32_t)s->video.n, s->w, s->h, read_frames, s};
    const struct tracker_options o = {s->config, s->config->data_image_size, n, prompts, n};
    const int rc = tracker_run(&o, &video, take, s, &planned, e);
    if (s->v->arena < planned.prompted_bytes) s->v->arena = planned.prompted_bytes;
    if (s->v->arena < planned.tracked_bytes) s->v->arena = planned.tracked_bytes;
    mem_free(prompts);
    return rc;
}

/* Tracks the objects of the first frame. */
static int track_objects(struct scored *s, const struct label_image *first, bool boxes, struct error *e)
{
    struct given *given = mem_alloc(s->objects * sizeof *given);
    for (uint32_t k = 0; k < s->objects; k++) given[k] = make_prompt(s, first, s->id[k]);
    const int rc = track(s, given, s->objects, 0, boxes, score_frame, e);
    for (uint32_t k = 0; k < s->objects; k++) mem_free(given[k].mask);
    mem_free(given);
    return rc;
}

/* Finds the objects of the first frame, and counts those that appear later. */
static int find_objects(struct scored *s, struct error *e)
{
    bool *seen = mem_alloc(IDS * sizeof *seen), *later = mem_alloc(IDS * sizeof *later);
    struct label_image m;
    int rc = read_labels(s, 0, &m, e);
    if (!rc) s->w = m.w, s->h = m.h, mark_values(s, &m, seen);
    for (uint64_t k = 1; k < s->video.n && !rc; k++) {
        rc = read_labels(s, k, &m, e);
        if (!rc) mark_values(s, &m, later);
    }
    s->id = mem_alloc(IDS * sizeof *s->id);
    for (uint32_t i = 1; i < IDS && !rc; i++) {
        if (seen[i]) s->id[s->objects++] = i;
        else s->v->later += later[i];
    }
    mem_free(seen);
    mem_free(later);
    return rc;
}

static void make_room(struct scored *s)
{
    const size_t n = (size_t)s->w * s->h;
    s->predicted = mem_alloc(n), s->target = mem_alloc(n), s->scratch = mem_alloc(3 * n);
    s->labels = mem_alloc(n * sizeof *s->labels);
    s->logits = mem_alloc(2 * n * sizeof *s->logits);
    s->score = mem_alloc(s->objects * sizeof *s->score);
}

/* --- volumes ---------------------------------------------------------------------------------- */

static int score_slice(void *user, const struct tracker_masks *m, const struct image *frame, struct error *e)
{
    struct scored *s = user;
    struct label_image truth;
    const size_t n = (size_t)s->w * s->h;
    const char *name;
    const uint32_t id = s->id[s->object];
    struct body_slice at = {.volume = s->video.volume, .sample = s->video.first, .mask = id, .category = (int32_t)id};
    (void)frame;
    TRY(read_labels(s, m->frame, &truth, e));
    dataset_slice(s->set, s->video.first + m->frame, &at.slice, &name);
    tracker_labels(m, s->w, s->h, s->logits, s->labels);
    for (size_t i = 0; i < n; i++) s->predicted[i] = s->labels[i] > 0, s->target[i] = label_at(&truth, i) == id;
    volume_scores_add(&s->v->volumes, &at, s->predicted, s->target);
    return PL_OK;
}

/* Finds the values of a volume, and for each the slice with most of it. */
static int find_structures(struct scored *s, uint32_t *slice, struct error *e)
{
    uint32_t *area = mem_alloc(IDS * sizeof *area), *most = mem_alloc(IDS * sizeof *most);
    bool *seen = mem_alloc(IDS * sizeof *seen);
    int rc = PL_OK;
    for (uint32_t z = 0; z < s->video.n && !rc; z++) {
        struct label_image m;
        if ((rc = read_labels(s, z, &m, e))) break;
        s->w = m.w, s->h = m.h;
        memset(area, 0, IDS * sizeof *area);
        for (size_t i = 0; i < (size_t)m.w * m.h; i++) area[label_at(&m, i)]++;
        mark_values(s, &m, seen);
        for (uint32_t i = 1; i < IDS; i++)
            if (area[i] > most[i]) most[i] = area[i], slice[i] = z;
    }
    s->id = mem_alloc(IDS * sizeof *s->id);
    for (uint32_t i = 1; i < IDS && !rc; i++)
        if (seen[i]) s->id[s->objects++] = i;
    mem_free(area);
    mem_free(most);
    mem_free(seen);
    return rc;
}

static int score_volume(struct scored *s, bool boxes, struct error *e)
{
    uint32_t *slice = mem_alloc(IDS * sizeof *slice);
    int rc = find_structures(s, slice, e);
    if (!rc && !s->objects) s->v->unscored++;
    if (!rc) make_room(s);
    for (s->object = 0; s->object < s->objects && !rc; s->object++) {
        const uint32_t id = s->id[s->object];
        struct label_image m;
        struct given given;
        if ((rc = read_labels(s, slice[id], &m, e))) break;
        given = make_prompt(s, &m, id);
        rc = track(s, &given, 1, slice[id], boxes, score_slice, e);
        mem_free(given.mask);
    }
    volume_scores_end(&s->v->volumes);
    mem_free(slice);
    return rc;
}

/* --- all of them ------------------------------------------------------------------------------ */

static int score_video(struct scored *s, bool boxes, struct error *e)
{
    struct label_image first;
    TRY(find_objects(s, e));
    if (s->video.n < 3 || !s->objects) return s->v->unscored++, PL_OK;
    make_room(s);
    for (uint32_t k = 0; k < s->objects; k++) {
        s->score[k].id = s->id[k];
        snprintf(s->score[k].video, sizeof s->score[k].video, "%s", s->video.name);
    }
    TRY(read_labels(s, 0, &first, e));
    TRY(track_objects(s, &first, boxes, e));
    for (uint32_t k = 0; k < s->objects; k++) {
        s->score[k].j /= s->score[k].frames, s->score[k].f /= s->score[k].frames;
        vec_push(&s->v->objects, s->score[k]);
    }
    return PL_OK;
}

/* Scores the video or volume s->video. */
static int score_one(struct scored *s, bool boxes, struct error *e)
{
    s->objects = s->w = s->h = 0;
    s->v->videos++;
    s->v->frames += s->video.n;
    const int rc = s->video.volume ? score_volume(s, boxes, e) : score_video(s, boxes, e);
    void *const rooms[] = {s->id, s->predicted, s->target, s->scratch, s->labels, s->logits, s->score};
    for (size_t i = 0; i < COUNT(rooms); i++) mem_free(rooms[i]);
    s->id = NULL, s->predicted = s->target = s->scratch = NULL, s->labels = NULL, s->logits = NULL, s->score = NULL;
    return rc ? error_prepend(e, "%s", s->video.name) : PL_OK;
}

int validate_videos(struct video_validation *v, const struct config *given, bool boxes, double tolerance,
                    struct error *e)
{
    static const char *const prompts[] = {"mask", "box"};
    struct config all = *given;
    const struct config *c = &all;
    struct scored s = {.v = v, .config = c};
    struct image_reading reading = {0};
    struct dataset *set;
    const double from = clock_seconds();
    *v = (struct video_validation){0};
    all.data_slices = true; /* those without a label too */
    image_reading_find(&reading, c);
    s.range = reading.range;
    TRY(tracker_check(c, c->data_image_size, e));
    TRY(feed_open_dataset(&set, c, FEED_VALIDATION, e));
    s.set = v->set = set;
    volume_scores_open(&v->volumes, set, prompts + boxes, tolerance);
    s.bytes = batch_room(c);
    s.room = mem_alloc(s.bytes);
    int rc = PL_OK;
    for (uint64_t i = 0; i < dataset_count(set) && !rc; i += s.video.n) {
        rc = clips_video(set, i, &s.video, e);
        if (!rc) rc = score_one(&s, boxes, e);
    }
    if (!rc && !v->objects.n && !v->volumes.table.rows.n)
        rc = error_set(e, PL_USAGE, "no video is scored: of %llu videos none has three frames or more and an object on "
                       "the first", (unsigned long long)v->videos);
    mem_free(s.room);
    v->seconds = clock_seconds() - from;
    return rc;
}

void validate_videos_close(struct video_validation *v)
{
    vec_free(&v->objects);
    volume_scores_close(&v->volumes);
    if (v->set) dataset_close(v->set);
}
