/*
 * validate_videos.c: see validate.h. Each video is tracked as `plimsoll predict --video` does, at
 * the size of its frames.
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
    char *room;              /* of a label image */
    size_t bytes;
    uint32_t objects, *id;   /* [objects] */
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

static int read_frames(const void *of, const uint32_t *chosen, uint32_t n, video_take *take, void *user,
                       struct error *e)
{
    const struct scored *s = of;
    for (uint32_t i = 0; i < n; i++) {
        struct image image;
        TRY(image_read(&image, dataset_image_path(s->set, s->video.first + chosen[i]), &s->range, e));
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

/* Makes the prompts of the first frame, and tracks. */
static int track_objects(struct scored *s, const struct label_image *first, bool boxes, struct error *e)
{
    const size_t n = (size_t)s->w * s->h;
    struct tracker_prompt *prompts = mem_alloc(s->objects * sizeof *prompts);
    struct image_prompt *given = mem_alloc(s->objects * sizeof *given);
    uint8_t *masks = mem_alloc(s->objects * n);
    for (uint32_t k = 0; k < s->objects; k++) {
        float *c = given[k].corners;
        given[k].box = true;
        c[0] = (float)s->w, c[1] = (float)s->h;
        for (size_t i = 0; i < n; i++) {
            if (!(masks[k * n + i] = label_at(first, i) == s->id[k])) continue;
            const float x = (float)(i % s->w), y = (float)(i / s->w);
            if (x < c[0]) c[0] = x;
            if (y < c[1]) c[1] = y;
            if (x + 1 > c[2]) c[2] = x + 1;
            if (y + 1 > c[3]) c[3] = y + 1;
        }
        prompts[k] = (struct tracker_prompt){0, k, boxes ? &given[k] : NULL, boxes ? NULL : masks + k * n};
    }
    struct tracker_result planned;
    const struct tracker_video video = {(uint32_t)s->video.n, s->w, s->h, read_frames, s};
    const struct tracker_options o = {s->config, s->config->data_image_size, s->objects, prompts, s->objects};
    const int rc = tracker_run(&o, &video, score_frame, s, &planned, e);
    if (s->v->arena < planned.prompted_bytes) s->v->arena = planned.prompted_bytes;
    if (s->v->arena < planned.tracked_bytes) s->v->arena = planned.tracked_bytes;
    mem_free(prompts);
    mem_free(given);
    mem_free(masks);
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

static int score_video(struct scored *s, bool boxes, struct error *e)
{
    struct label_image first;
    s->objects = s->w = s->h = 0;
    int rc = find_objects(s, e);
    const size_t n = (size_t)s->w * s->h;
    s->v->videos++;
    s->v->frames += s->video.n;
    if (!rc && (s->video.n < 3 || !s->objects)) s->v->unscored++;
    else if (!rc) {
        s->predicted = mem_alloc(n), s->target = mem_alloc(n), s->scratch = mem_alloc(3 * n);
        s->labels = mem_alloc(n * sizeof *s->labels);
        s->logits = mem_alloc(2 * n * sizeof *s->logits);
        s->score = mem_alloc(s->objects * sizeof *s->score);
        for (uint32_t k = 0; k < s->objects; k++) {
            s->score[k].id = s->id[k];
            snprintf(s->score[k].video, sizeof s->score[k].video, "%s", s->video.name);
        }
        rc = read_labels(s, 0, &first, e);
        if (!rc) rc = track_objects(s, &first, boxes, e);
        for (uint32_t k = 0; k < s->objects && !rc; k++) {
            s->score[k].j /= s->score[k].frames, s->score[k].f /= s->score[k].frames;
            vec_push(&s->v->objects, s->score[k]);
        }
    }
    void *const rooms[] = {s->id, s->predicted, s->target, s->scratch, s->labels, s->logits, s->score};
    for (size_t i = 0; i < COUNT(rooms); i++) mem_free(rooms[i]);
    s->id = NULL, s->predicted = s->target = s->scratch = NULL, s->labels = NULL, s->logits = NULL, s->score = NULL;
    return rc ? error_prepend(e, "%s", s->video.name) : PL_OK;
}

int validate_videos(struct video_validation *v, const struct config *c, bool boxes, struct error *e)
{
    struct scored s = {.v = v, .config = c};
    struct image_reading reading = {0};
    struct dataset *set;
    const double from = clock_seconds();
    *v = (struct video_validation){0};
    image_reading_find(&reading, c);
    s.range = reading.range;
    TRY(tracker_check(c, c->data_image_size, e));
    TRY(feed_open_dataset(&set, c, FEED_VALIDATION, e));
    s.set = set;
    s.bytes = batch_room(c);
    s.room = mem_alloc(s.bytes);
    int rc = PL_OK;
    for (uint64_t i = 0; i < dataset_count(set) && !rc; i += s.video.n) {
        rc = clips_video(set, i, &s.video, e);
        if (!rc) rc = score_video(&s, boxes, e);
    }
    if (!rc && !v->objects.n)
        rc = error_set(e, PL_USAGE, "no video is scored: of %llu videos none has three frames or more and an object on "
                       "the first", (unsigned long long)v->videos);
    mem_free(s.room);
    dataset_close(set);
    v->seconds = clock_seconds() - from;
    return rc;
}

void validate_videos_close(struct video_validation *v) { vec_free(&v->objects); }
