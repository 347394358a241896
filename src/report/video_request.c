/*
 * video_request.c: the masks of objects on all frames of a video, as a command asks for them.
 *
 *     OUT/NAME.png       label images, the values the ids of the objects, as those of DAVIS; NAME is
 *                        that of a folder's frame, or the number of a file's frame in five digits
 *     OVERLAY/NAME.png   the frame with the masks in the colours of the label images
 *     FILE.json          a list: frame, id, COCO run lengths, the logit that the object is there
 *
 * Where masks overlap a pixel belongs to the object of the highest logit; the run lengths have each
 * object's own pixels.
 *
 * A volume is a video of its slices; its label images are one file, a label volume in its geometry.
 */
#include <math.h>

#include "data/masks/annotation.h"
#include "data/volumes/nifti.h"
#include "infer/slice_images.h"
#include "infer/tracker.h"
#include "io/json.h"
#include "io/png.h"
#include "report/draw.h"
#include "report/requests.h"

enum { IDS = 256, DIGITS = 5 };

struct video_request {
    struct mask_request *r;
    struct video_at at;
    struct tracker_video video;
    struct names names;             /* of the frames of a folder */
    struct slice_images slices;     /* of a volume */
    struct nifti_writer *writer;    /* of its label volume */
    struct image_prompts file;      /* of --prompts */
    VEC(struct tracker_prompt) prompts;
    uint32_t objects, id[IDS], object_of[IDS]; /* the id of each object; its object + 1, 0: none */
    uint8_t *masks;                 /* of --mask, [objects][h][w] */
    /* of a frame */
    float *scratch;
    uint16_t *labels;
    uint8_t *bytes;
    struct text *lines;             /* [frames] of the JSON list */
};

/* --- the video ------------------------------------------------------------------------------- */

struct chosen_frames {
    const uint32_t *at;
    uint32_t n;
};

static int choose_frames(const void *user, const struct video_facts *f, uint32_t *chosen, uint32_t *n, struct error *e)
{
    const struct chosen_frames *c = user;
    for (uint32_t i = 0; i < c->n; i++)
        if ((chosen[i] = c->at[i]) >= f->frames)
            return error_set(e, PL_FAIL, "the video has %u frames, and had more when it was opened", f->frames);
    *n = c->n;
    return PL_OK;
}

static int read_frames(const void *of, const uint32_t *chosen, uint32_t n, video_take *take, void *user,
                       struct error *e)
{
    const struct chosen_frames c = {chosen, n};
    const struct video_options o = {.choose = choose_frames, .chooser = &c};
    uint32_t replaced;
    TRY(video_read(of, &o, take, user, &replaced, e));
    if (replaced)
        log_warn("%s: %u of %u frames cannot be decoded; the frames before them replace them",
                 ((const struct video_at *)of)->path, replaced, n);
    return PL_OK;
}

static int read_slices(const void *of, const uint32_t *chosen, uint32_t n, video_take *take, void *user,
                       struct error *e)
{
    const struct video_request *q = of;
    int rc = PL_OK;
    for (uint32_t i = 0; i < n && !rc; i++) {
        struct image image;
        rc = slice_images_read(&q->slices, &q->r->many.reading.range, chosen[i], &image, e);
        if (!rc) rc = take(user, i, &image, e);
        image_free(&image);
    }
    return rc;
}

static bool is_volume(const struct video_request *q) { return q->slices.name[0]; }

static int open_volume(struct video_request *q, struct error *e)
{
    const struct volume *v = &q->slices.at[0];
    TRY(slice_images_open(&q->slices, q->r->video, &q->r->many.reading, e));
    q->video = (struct tracker_video){v->slices, v->w, v->h, read_slices, q};
    return PL_OK;
}

static int open_video(struct video_request *q, struct error *e)
{
    struct bump b = {0};
    struct video_choice choice;
    if (many_is_volume(q->r->video)) return open_volume(q, e);
    q->at = *VIDEO_AT(q->r->video);
    int rc = video_list(&q->at, &(struct video_options){0}, &b, &choice, e);
    if (!rc) rc = video_names(&q->at, &q->names, e);
    q->video = (struct tracker_video){choice.facts.frames, choice.facts.width, choice.facts.height, read_frames,
                                      &q->at};
    bump_free(&b);
    return rc;
}

/* --- prompts --------------------------------------------------------------------------------- */

static int find_frame(const struct video_request *q, const char *what, uint64_t frame, uint32_t *out, struct error *e)
{
    *out = (uint32_t)frame;
    if (frame < q->video.frames) return PL_OK;
    return error_set(e, PL_USAGE, "%s %llu: %s has %u %s, 0 to %u", what, (unsigned long long)frame, q->r->video,
                     q->video.frames, is_volume(q) ? "slices" : "frames", q->video.frames - 1);
}

/* Returns the object with an id, which it adds. */
static uint32_t object_with(struct video_request *q, uint32_t id)
{
    if (!q->object_of[id]) q->id[q->objects] = id, q->object_of[id] = ++q->objects;
    return q->object_of[id] - 1;
}

/* Adds the points and the box of an object. */
static int add_prompt(struct video_request *q, uint32_t frame, uint32_t id, const struct image_prompt *p,
                      struct error *e)
{
    const float w = (float)q->video.width, h = (float)q->video.height;
    for (uint32_t i = 0; i < p->n + 2 * p->box; i++) {
        const float *at = i < p->n ? p->points[i] : p->corners + 2 * (i - p->n);
        if (!(at[0] >= 0 && at[1] >= 0 && at[0] <= w && at[1] <= h))
            return error_set(e, PL_USAGE, "%g,%g of the prompt of object %u lies outside of the frames, which have "
                             "%u x %u pixels", (double)at[0], (double)at[1], id, q->video.width, q->video.height);
    }
    if (p->box && !(p->corners[0] < p->corners[2] && p->corners[1] < p->corners[3]))
        return error_set(e, PL_USAGE, "the box of object %u is empty: x0,y0 is the upper left corner, x1,y1 the lower "
                         "right", id);
    vec_push(&q->prompts, ((struct tracker_prompt){frame, object_with(q, id), p, NULL}));
    return PL_OK;
}

/* Parses a whole number of up to `most`. */
static bool parse_whole(const char *s, uint64_t most, uint64_t *out)
{
    char *end;
    *out = strtoull(s, &end, 10);
    return *s >= '0' && *s <= '9' && !*end && *out <= most;
}

static int read_prompts(struct video_request *q, struct error *e)
{
    const char *path = q->r->many.prompts;
    TRY(image_prompts_read(&q->file, path, e));
    for (uint32_t i = 0; i < q->file.all.n; i++) {
        const struct image_prompt *p = &q->file.all.at[i];
        uint64_t number, id = i + 1;
        uint32_t frame;
        if (!parse_whole(p->image, UINT32_MAX, &number))
            return error_set(e, PL_USAGE, "%s: the frame is \"%.40s\", expected a number, from 0", path, p->image);
        if (*p->id ? !parse_whole(p->id, IDS - 1, &id) || !id : id >= IDS)
            return error_set(e, PL_USAGE, "%s: the id is \"%.40s\", expected a number from 1 to 255, a value of the "
                             "label images", path, p->id);
        if (find_frame(q, "frame", number, &frame, e) || add_prompt(q, frame, (uint32_t)id, p, e))
            return error_prepend(e, "%s", path);
    }
    return PL_OK;
}

static int refuse_labels(const struct video_request *q, uint32_t w, uint32_t h, struct error *e)
{
    return error_set(e, PL_USAGE, "--mask %s has %u x %u pixels, and the frames of %s have %u x %u", q->r->labels, w, h,
                     q->r->video, q->video.width, q->video.height);
}

/* Reads a label image as values of a byte; the caller frees them. */
static int read_label_image(const struct video_request *q, uint8_t **values, struct error *e)
{
    struct png_pixels p;
    TRY(png_read(q->r->labels, PNG_AS_LABELS, 0, NULL, 0, &p, e));
    *values = p.at;
    if (p.width != q->video.width || p.height != q->video.height) return refuse_labels(q, p.width, p.height, e);
    if (p.depth == 8) return PL_OK;
    return error_set(e, PL_USAGE, "--mask %s has values of 16 bits, expected 1 to 255 for the objects", q->r->labels);
}

/* Reads a slice of a label volume, which lies on the volume that is the video. */
static int read_label_slice(struct video_request *q, uint32_t slice, uint8_t **values, struct error *e)
{
    const struct slice_options *s = &q->r->many.reading.slices;
    const size_t n = (size_t)q->video.width * q->video.height;
    struct volume v;
    struct plane plane;
    int bytes = 0;
    TRY(volume_open(&v, q->r->labels, &(struct volume_options){s->axis, s->cache}, e));
    const size_t room = volume_room(&v, true);
    void *memory = mem_alloc(room);
    int rc = volume_lay_on(&v, &q->slices.at[0], e);
    if (!rc && (v.w != q->video.width || v.h != q->video.height)) rc = refuse_labels(q, v.w, v.h, e);
    if (!rc) rc = volume_read(&v, slice, 0, true, memory, room, &plane, e);
    if (!rc) rc = plane_to_labels(&plane, &bytes, e);
    *values = mem_alloc(n);
    for (size_t i = 0; i < n && !rc; i++) {
        const uint32_t at = bytes == 1 ? ((uint8_t *)plane.at)[i] : ((uint16_t *)plane.at)[i];
        if (at >= IDS) rc = error_set(e, PL_USAGE, "the value %u; expected 1 to 255 for the objects", at);
        (*values)[i] = (uint8_t)at;
    }
    mem_free(memory);
    volume_close(&v);
    return rc ? error_prepend(e, "--mask %s", q->r->labels) : PL_OK;
}

static int read_labels(struct video_request *q, uint32_t frame, struct error *e)
{
    const size_t n = (size_t)q->video.width * q->video.height;
    uint8_t *values = NULL;
    int rc = is_volume(q) && many_is_volume(q->r->labels) ? read_label_slice(q, frame, &values, e)
                                                          : read_label_image(q, &values, e);
    for (size_t i = 0; i < n && !rc; i++)
        if (values[i]) object_with(q, values[i]);
    if (!rc && !q->objects)
        rc = error_set(e, PL_USAGE, "--mask %s has no object%s: it is 0 everywhere", q->r->labels,
                       many_is_volume(q->r->labels) ? " in this slice" : "");
    if (!rc) q->masks = mem_alloc(q->objects * n);
    for (uint32_t m = 0; m < q->objects && !rc; m++) {
        uint8_t *mask = q->masks + m * n;
        for (size_t i = 0; i < n; i++) mask[i] = values[i] == q->id[m];
        vec_push(&q->prompts, ((struct tracker_prompt){frame, m, NULL, mask}));
    }
    mem_free(values);
    return rc;
}

static int find_prompts(struct video_request *q, struct error *e)
{
    struct mask_request *r = q->r;
    uint32_t frame;
    if (r->many.prompts) return read_prompts(q, e);
    TRY(find_frame(q, "--frame", r->frame == UINT64_MAX ? 0 : r->frame, &frame, e));
    if (r->labels) return read_labels(q, frame, e);
    TRY(image_prompt_parse(&r->many.common, &r->points, r->box, NULL, NULL, e));
    return add_prompt(q, frame, 1, &r->many.common, e);
}

/* --- a frame --------------------------------------------------------------------------------- */

static void print_path(const struct video_request *q, const char *folder, uint32_t frame, struct text *out)
{
    if (frame < q->names.n) text_printf(out, "%s/%s.png", folder, q->names.at[frame]);
    else text_printf(out, "%s/%0*u.png", folder, DIGITS, frame);
}

static int write_png(const struct video_request *q, const char *folder, uint32_t frame, enum png_kind kind,
                     const uint8_t *pixels, struct error *e)
{
    struct text path = {0}, file = {0};
    print_path(q, folder, frame, &path);
    int rc = png_encode(&file, kind, q->video.width, q->video.height, pixels, 0, e);
    if (!rc) rc = file_write_unsynced(path.at, file.at, file.n, e);
    text_free(&file);
    text_free(&path);
    return rc;
}

static int write_overlay(struct video_request *q, const struct tracker_masks *m, const struct image *frame,
                         struct error *e)
{
    const uint32_t w = frame->width, h = frame->height;
    struct canvas out = {w, h, mem_copy(frame->rgb, (size_t)w * h * 3)};
    for (uint32_t k = 0; k < m->objects; k++) {
        uint8_t rgb[3];
        for (size_t i = 0; i < (size_t)w * h; i++) q->bytes[i] = q->labels[i] == k + 1;
        png_index_colour((uint8_t)q->id[k], rgb);
        draw_overlay(&out, (struct draw_area){0, 0, w, h},
                     &(struct draw_mask){.at = q->bytes, .stride = w, .w = w, .h = h},
                     (struct colour){rgb[0], rgb[1], rgb[2]}, 0.45, (int)max_i64(1, (int64_t)(w > h ? w : h) / 400));
    }
    int rc = write_png(q, q->r->overlay, m->frame, PNG_RGB, out.rgb, e);
    canvas_free(&out);
    return rc;
}

/* Puts the masks of a frame; an object without a pixel has none. */
static void put_masks(struct video_request *q, const struct tracker_masks *m)
{
    const uint32_t w = q->video.width, h = q->video.height;
    struct text *out = &q->lines[m->frame];
    text_free(out);
    for (uint32_t k = 0; k < m->objects; k++) {
        struct json_writer json = {.out = out};
        struct traced t = {0};
        logits_upsample(m->logits + (size_t)k * (size_t)(m->side * m->side), m->side, w, h, q->scratch);
        for (size_t i = 0; i < (size_t)w * h; i++) q->bytes[i] = q->scratch[i] > 0;
        trace_bytes(&t, q->bytes, w, h);
        if (t.area) {
            text_printf(out, ",\n");
            json_begin_map(&json, NULL);
            json_put_int(&json, "frame", m->frame);
            json_put_int(&json, "id", q->id[k]);
            trace_put_runs(&t, w, h, &json);
            json_put_number(&json, "object_score", (double)m->shown[k]);
            trace_put_box(&t, &json);
            json_end(&json);
        }
        trace_free(&t);
    }
}

static int take_masks(void *user, const struct tracker_masks *m, const struct image *frame, struct error *e)
{
    struct video_request *q = user;
    const size_t n = (size_t)q->video.width * q->video.height;
    tracker_labels(m, q->video.width, q->video.height, q->scratch, q->labels);
    if (q->r->overlay) TRY(write_overlay(q, m, frame, e));
    if (q->writer) {
        for (size_t i = 0; i < n; i++) q->labels[i] = (uint16_t)(q->labels[i] ? q->id[q->labels[i] - 1] : 0);
        TRY(nifti_write_slice(q->writer, m->frame, q->labels, e));
    } else if (q->r->many.output) {
        for (size_t i = 0; i < n; i++) q->bytes[i] = (uint8_t)(q->labels[i] ? q->id[q->labels[i] - 1] : 0);
        TRY(write_png(q, q->r->many.output, m->frame, PNG_INDEXED, q->bytes, e));
    }
    if (q->r->many.json) put_masks(q, m);
    return PL_OK;
}

static int write_list(struct video_request *q, struct error *e)
{
    struct text all = {0};
    bool first = true;
    text_printf(&all, "[");
    for (uint32_t f = 0; f < q->video.frames; f++) {
        if (!q->lines[f].n) continue;
        text_printf(&all, "%s", q->lines[f].at + first); /* the first line has no comma */
        first = false;
    }
    text_printf(&all, "\n]\n");
    return file_write_text(PL_OK, q->r->many.json, &all, e);
}

/* --- a request ------------------------------------------------------------------------------- */

static int check(const struct mask_request *r, struct error *e)
{
    const struct many_options *o = &r->many;
    const bool volume = many_is_volume(r->video);
    const int sources = (o->prompts != NULL) + (r->labels != NULL) + (r->points.n || r->box);
    const char *other = o->paths->n         ? o->paths->at[0]
                        : r->data           ? "--data"
                        : r->question       ? "--question"
                        : r->every.points   ? "--everything"
                        : r->all            ? "--multimask"
                        : o->single         ? "--single"
                        : o->slices         ? "--slices"
                        : o->derive         ? "--prompt"
                                            : NULL,
               *folders[] = {volume ? NULL : o->output, r->overlay};
    if (other) return error_set(e, PL_USAGE, "--video is the only input: leave out %s", other);
    if (sources != 1)
        return error_set(e, PL_USAGE, "%s: give one of --point and --box, --mask LABELS.png, or --prompts FILE.csv",
                         sources ? "the objects have prompts from several places" : "no prompt is given");
    if (o->prompts && r->frame != UINT64_MAX)
        return error_set(e, PL_USAGE, "--prompts has the frame of each prompt: leave out --frame");
    if (!o->output && !o->json && !r->overlay)
        return error_set(e, PL_USAGE, "no output is given: add -o FOLDER for label images, --overlay FOLDER for "
                         "frames with masks, or --json FILE for run lengths");
    if (volume && o->output && !path_has_ending(o->output, ".nii") && !path_has_ending(o->output, ".nii.gz"))
        return error_set(e, PL_USAGE, "-o %s: the masks of a volume are a label volume, FILE.nii.gz", o->output);
    if (volume && o->output && file_same(o->output, r->video))
        return error_set(e, PL_USAGE, "-o %s is the volume itself: give another file", o->output);
    for (size_t i = 0; i < COUNT(folders); i++) {
        if (folders[i] && file_exists(folders[i]) && !dir_exists(folders[i]))
            return error_set(e, PL_USAGE, "%s %s is a file, expected a folder for the frames",
                             i ? "--overlay" : "-o", folders[i]);
        if (folders[i] && file_same(folders[i], r->video))
            return error_set(e, PL_USAGE, "%s is the video: give another folder", folders[i]);
    }
    if (o->output && r->overlay && !strcmp(o->output, r->overlay))
        return error_set(e, PL_USAGE, "-o and --overlay are the same folder, %s", o->output);
    return PL_OK;
}

static int run(struct video_request *q, struct error *e)
{
    struct mask_request *r = q->r;
    struct tracker_result found;
    char size[3][32], time[32];
    const size_t n = (size_t)q->video.width * q->video.height;
    const struct tracker_options o = {r->many.config, r->many.reading.side, q->objects, q->prompts.at, q->prompts.n};
    const double from = clock_seconds();
    if (r->many.output && is_volume(q))
        TRY(nifti_write_begin(&q->writer, r->many.output, &q->slices.at[0], IDS - 1, e));
    else if (r->many.output) TRY(dir_make(r->many.output, e));
    if (r->overlay) TRY(dir_make(r->overlay, e));
    q->scratch = mem_alloc(2 * n * sizeof *q->scratch);
    q->labels = mem_alloc(n * sizeof *q->labels);
    q->bytes = mem_alloc(n);
    if (r->many.json) q->lines = mem_alloc(q->video.frames * sizeof *q->lines);
    TRY(tracker_run(&o, &q->video, take_masks, q, &found, e));
    if (r->many.json) TRY(write_list(q, e));
    printf("%u object%s on %u %s in %s; planned %s for prompts and %s for tracking, and a bank of %s\n", q->objects,
           q->objects == 1 ? "" : "s", q->video.frames, is_volume(q) ? "slices" : "frames",
           duration_print(clock_seconds() - from, time),
           size_print(found.prompted_bytes, size[0]), size_print(found.tracked_bytes, size[1]),
           size_print(found.bank_bytes, size[2]));
    return PL_OK;
}

int video_request_run(struct mask_request *r, struct error *e)
{
    struct video_request q = {.r = r};
    TRY(check(r, e));
    image_reading_find(&r->many.reading, r->many.config);
    TRY(tracker_check(r->many.config, r->many.reading.side, e));
    int rc = open_video(&q, e);
    if (!rc) rc = find_prompts(&q, e);
    if (!rc) rc = run(&q, e);
    struct error unused;
    const int ended = q.writer ? nifti_write_end(q.writer, rc, rc ? &unused : e) : PL_OK;
    if (!rc) rc = ended;
    slice_images_close(&q.slices);
    for (uint32_t f = 0; q.lines && f < q.video.frames; f++) text_free(&q.lines[f]);
    void *const rooms[] = {q.masks, q.scratch, q.labels, q.bytes, q.lines};
    for (size_t i = 0; i < COUNT(rooms); i++) mem_free(rooms[i]);
    mem_free(r->many.common.points);
    mem_free(r->many.common.labels);
    vec_free(&q.prompts);
    image_prompts_free(&q.file);
    names_free(&q.names);
    return rc;
}
