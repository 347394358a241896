/*
 * image_reader.c: see image_reader.h.
 */
#include "data/images/image_reader.h"

#include "data/images/image.h"
#include "data/images/jpeg.h"

enum { JPEG_POOL = 32 << 20 }; /* bytes that libjpeg may allocate */

struct image_reader {
    struct image_reader_options o;
    char *room;      /* [o.room] the file, its pixels, the processor's scratch */
    struct jpg *jpg;
};

uint64_t image_reader_bytes(const struct image_reader_options *o) { return align_up(o->room, 64); }

uint64_t image_reader_size(const struct image_reader_options *o)
{
    uint32_t height, width;
    image_processor_size(&o->processor, &height, &width);
    return 3ull * height * width;
}

struct image_reader *image_reader_new(const struct image_reader_options *o, char *at)
{
    struct image_reader *r = mem_alloc(sizeof *r);
    r->o = *o;
    r->room = at;
    r->jpg = jpg_new(&(struct jpg_limits){.memory = JPEG_POOL});
    return r;
}

void image_reader_free(struct image_reader *r)
{
    if (!r) return;
    jpg_free(r->jpg);
    mem_free(r);
}

/* Finds the bytes of scratch for an image of this size. Patches are for the grid. */
static int find_scratch(const struct image_reader *r, uint32_t width, uint32_t height, uint64_t *bytes,
                        struct error *e)
{
    struct patch_grid grid;
    if (!r->o.patches) {
        *bytes = image_processor_scratch(&r->o.processor, width, height);
        return PL_OK;
    }
    TRY(patch_grid_image(r->o.patches, width, height, &grid, e));
    *bytes = patch_scratch(r->o.patches, &grid, width, height);
    return PL_OK;
}

/* Decodes the file of n bytes at the beginning of the room. *rest: after its pixels. */
static enum data_fault decode(struct image_reader *r, size_t n, struct image *out, size_t *rest, struct error *e)
{
    const struct image_options o = {.range = r->o.range, .on_white = true, .jpg = r->jpg};
    const size_t at = align_up(n, 64);
    uint32_t width, height;
    size_t need;
    if (image_peek(r->room, n, &o, &width, &height, &need, e)) return FAULT_IMAGE;
    if (width > IMAGE_READER_SIDE || height > IMAGE_READER_SIDE)
        return error_set(e, PL_USAGE, "the image has %u x %u pixels; expected sides of at most %d", width, height,
                         IMAGE_READER_SIDE), FAULT_TOO_LARGE;
    uint64_t scratch;
    if (find_scratch(r, width, height, &scratch, e)) return FAULT_SIZE;
    *rest = at + align_up(need, 64);
    const uint64_t all = *rest + scratch;
    if (all > r->o.room)
        return error_set(e, PL_NOFIT,
                         "the image of %u x %u pixels takes %llu MiB; expected at most %llu (data.sample_memory)",
                         width, height, (unsigned long long)(all >> 20) + 1, (unsigned long long)(r->o.room >> 20)),
               FAULT_TOO_LARGE;
    return image_decode(out, r->room, n, &o, r->room + at, need, e) ? FAULT_IMAGE : FAULT_NONE;
}

static enum data_fault other_size(const struct image *i, struct error *e)
{
    return error_set(e, PL_USAGE, "it has %u x %u pixels, which is not the size that its text was tokenized with",
                     i->width, i->height), FAULT_SIZE;
}

/* Finds the processor that makes `count` images: the one for an image beside others makes one
 * image. */
static enum data_fault choose_processor(const struct image_reader *r, const struct image *i, uint32_t count,
                                        struct image_processor *p, struct error *e)
{
    uint32_t rows, columns;
    *p = r->o.processor;
    if (image_processor_count(p, i->width, i->height, &rows, &columns) == count) return FAULT_NONE;
    *p = image_processor_beside(p);
    if (image_processor_count(p, i->width, i->height, &rows, &columns) == count) return FAULT_NONE;
    return other_size(i, e);
}

enum data_fault image_reader_read(struct image_reader *r, struct image_files *files, const char *reference,
                                  uint32_t count, uint8_t *to, struct error *e)
{
    struct image_processor p;
    struct image image;
    size_t n, rest = 0;
    int rc = image_files_read(files, reference, r->room, r->o.room, &n, e);
    if (rc) return rc == PL_NOFIT ? FAULT_TOO_LARGE : FAULT_READ;
    enum data_fault fault = decode(r, n, &image, &rest, e);
    if (!fault) fault = choose_processor(r, &image, count, &p, e);
    if (fault) return error_prepend(e, "%.100s", reference), fault;
    image_processor_run(&p, image.rgb, image.width, image.height, r->room + rest, r->o.room - rest, to);
    return FAULT_NONE;
}

enum data_fault image_reader_patches(struct image_reader *r, struct image_files *files, const char *reference,
                                     struct patches_read *x, struct error *e)
{
    const struct patch_rules *p = r->o.patches;
    struct image image;
    size_t n, rest = 0;
    x->replaced = 0;
    x->seconds = 0;
    int rc = image_files_read(files, reference, r->room, r->o.room, &n, e);
    if (rc) return rc == PL_NOFIT ? FAULT_TOO_LARGE : FAULT_READ;
    enum data_fault fault = decode(r, n, &image, &rest, e);
    if (!fault && patch_grid_image(p, image.width, image.height, &x->grid, e)) fault = FAULT_SIZE;
    if (!fault && x->tokens && patch_grid_tokens(p, &x->grid) != x->tokens) fault = other_size(&image, e);
    if (!fault && !x->tokens && patch_grid_patches(&x->grid) > x->most) {
        fault = FAULT_SIZE;
        error_set(e, PL_USAGE, "its %llu patches are more than data.max_pixels allows, %llu",
                  (unsigned long long)patch_grid_patches(&x->grid), (unsigned long long)x->most);
    }
    if (fault) return error_prepend(e, "%.100s", reference), fault;
    patch_image(p, &x->grid, image.rgb, image.width, image.height, r->room + rest, r->o.room - rest, x->to);
    return FAULT_NONE;
}

/* --- volumes ---------------------------------------------------------------------------------- */

static enum data_fault read_volume(struct image_reader *r, const struct volume *v, const struct modality *x, float *to,
                                   struct error *e)
{
    const uint64_t need = volume_patches_room(v, x);
    if (need > r->o.room)
        return error_set(e, PL_NOFIT, "reading a volume of %u x %u x %u voxels takes %llu MiB; expected at most %llu "
                         "(data.sample_memory)", v->dims[0], v->dims[1], v->dims[2],
                         (unsigned long long)(need >> 20) + 1, (unsigned long long)(r->o.room >> 20)),
               FAULT_TOO_LARGE;
    return volume_patches(v, x, &r->o.range, r->room, to, e) ? FAULT_IMAGE : FAULT_NONE;
}

enum data_fault image_reader_volume(struct image_reader *r, struct image_files *files, const char *reference,
                                    float *to, struct error *e)
{
    struct volume v;
    const int modality = media_modality(r->o.modalities, reference, e);
    if (modality < 0 || image_files_volume(files, reference, &r->o.volumes, &v, e)) return FAULT_READ;
    const enum data_fault fault = read_volume(r, &v, &r->o.modalities->at[modality], to, e);
    volume_close(&v);
    if (fault) error_prepend(e, "%.100s", media_volume_path(reference));
    return fault;
}

/* --- videos ----------------------------------------------------------------------------------- */

struct frames {
    struct image_reader *r;
    uint32_t count;
    uint64_t size;
    struct frames_to to;
};

/* Finds where the room is free behind a frame's pixels, for `scratch` bytes. */
static int room_behind(const struct image_reader *r, const struct image *frame, uint64_t scratch, size_t *rest,
                       struct error *e)
{
    *rest = align_up((size_t)((const char *)frame->rgb - r->room) + (size_t)frame->width * frame->height * 3, 64);
    if (scratch <= r->o.room && *rest + scratch <= r->o.room) return PL_OK;
    return error_set(e, PL_NOFIT,
                     "a frame of %u x %u pixels takes %llu MiB; expected at most %llu (data.sample_memory)",
                     frame->width, frame->height, (unsigned long long)((*rest + scratch) >> 20) + 1,
                     (unsigned long long)(r->o.room >> 20));
}

static int check_side(const struct image *frame, struct error *e)
{
    if (frame->width <= IMAGE_READER_SIDE && frame->height <= IMAGE_READER_SIDE) return PL_OK;
    return error_set(e, PL_NOFIT, "a frame has %u x %u pixels; expected sides of at most %d", frame->width,
                     frame->height, IMAGE_READER_SIDE);
}

static int take_frame(void *user, uint32_t i, const struct image *frame, struct error *e)
{
    const struct frames *f = user;
    const struct image_processor *p = &f->r->o.frame_processor;
    size_t rest;
    if (i >= f->count)
        return error_set(e, PL_USAGE, "it has more than the %u frames that its text was tokenized with", f->count);
    TRY(check_side(frame, e));
    TRY(room_behind(f->r, frame, image_processor_scratch(p, frame->width, frame->height), &rest, e));
    uint8_t *pixels = f->to.pixels + (f->to.take ? 0 : i * f->size);
    image_processor_run(p, frame->rgb, frame->width, frame->height, f->r->room + rest, f->r->o.room - rest, pixels);
    return f->to.take ? f->to.take(f->to.user, pixels, 1, e) : PL_OK;
}

enum data_fault image_reader_video(struct image_reader *r, struct image_files *files, const char *reference,
                                   uint32_t count, const struct frames_to *to, uint32_t *replaced, struct error *e)
{
    const struct video_sampling sampling =
        video_sampling_with(&r->o.frame_processor.frames, r->o.fps, r->o.max_frames);
    const struct video_options o = {.fps = r->o.fps, .max_frames = r->o.max_frames, .to = r->room, .room = r->o.room,
                                    .choose = sampling.on ? video_sample : NULL, .chooser = &sampling,
                                    .image = {.range = r->o.range, .on_white = true, .jpg = r->jpg}};
    struct frames f = {r, count, image_reader_size(&r->o), *to};
    struct video_at v;
    uint32_t frames = 0;
    int rc = image_files_video(files, reference, &v, e);
    if (rc) return FAULT_READ;
    rc = video_scan(&v, &o, &frames, e);
    if (!rc && frames != count)
        rc = error_set(e, PL_USAGE, "%s: it has %u frames, and its text was tokenized with %u", v.path, frames, count);
    if (!rc) rc = video_read(&v, &o, take_frame, &f, replaced, e);
    video_at_free(&v);
    return !rc ? FAULT_NONE : rc == PL_NOFIT ? FAULT_TOO_LARGE : FAULT_IMAGE;
}

/* --- videos as patches ------------------------------------------------------------------------ */

struct patch_frames {
    struct image_reader *r;
    uint32_t count, width, height; /* of the frames that are used */
    struct patches_read *x;
};

static int take_patches(void *user, uint32_t i, const struct image *frame, struct error *e)
{
    struct patch_frames *f = user;
    const struct patch_rules *p = f->r->o.video_patches;
    size_t rest;
    TRY(check_side(frame, e));
    if (frame->width != f->width || frame->height != f->height)
        return error_set(e, PL_USAGE, "frame %u has %u x %u pixels; expected %u x %u, the size of the first one", i,
                         frame->width, frame->height, f->width, f->height);
    TRY(room_behind(f->r, frame, patch_scratch(p, &f->x->grid, f->width, f->height), &rest, e));
    patch_frame(p, &f->x->grid, i, f->count, frame->rgb, f->width, f->height, f->r->room + rest, f->r->o.room - rest,
                f->x->to);
    return PL_OK;
}

/* Lists the frames, and counts their tokens. */
static int open_frames(struct patch_frames *f, const struct video_at *v, const struct video_options *o, struct error *e)
{
    const struct patch_rules *p = f->r->o.video_patches;
    struct bump b = {0};
    struct video_choice c;
    int rc = video_list(v, o, &b, &c, e);
    if (!rc) f->x->seconds = patch_seconds_per_grid(p, &c.facts, c.n);
    bump_free(&b);
    if (rc) return rc;
    f->count = c.n;
    f->width = c.facts.width;
    f->height = c.facts.height;
    if (patch_grid_video(p, c.n, f->width, f->height, &f->x->grid, e)) return error_prepend(e, "%s", v->path);
    if (patch_grid_tokens(p, &f->x->grid) == f->x->tokens) return PL_OK;
    return error_set(e, PL_USAGE,
                     "%s: it has %u frames of %u x %u pixels, which is not what its text was tokenized with", v->path,
                     c.n, f->width, f->height);
}

enum data_fault image_reader_video_patches(struct image_reader *r, struct image_files *files, const char *reference,
                                           struct patches_read *x, struct error *e)
{
    const struct video_options o = {.choose = patch_frames_choose, .chooser = r->o.video_patches, .to = r->room,
                                    .room = r->o.room,
                                    .image = {.range = r->o.range, .on_white = true, .jpg = r->jpg}};
    struct patch_frames f = {.r = r, .x = x};
    struct video_at v;
    x->replaced = 0;
    int rc = image_files_video(files, reference, &v, e);
    if (rc) return FAULT_READ;
    rc = open_frames(&f, &v, &o, e);
    if (!rc) rc = video_read(&v, &o, take_patches, &f, &x->replaced, e);
    video_at_free(&v);
    return !rc ? FAULT_NONE : rc == PL_NOFIT ? FAULT_TOO_LARGE : FAULT_IMAGE;
}
