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

uint64_t image_reader_floats(const struct image_reader_options *o)
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
    *rest = at + align_up(need, 64);
    const uint64_t all = *rest + image_processor_scratch(&r->o.processor, width, height);
    if (all > r->o.room)
        return error_set(e, PL_NOFIT,
                         "the image of %u x %u pixels takes %llu MiB; expected at most %llu (data.sample_memory)",
                         width, height, (unsigned long long)(all >> 20) + 1, (unsigned long long)(r->o.room >> 20)),
               FAULT_TOO_LARGE;
    return image_decode(out, r->room, n, &o, r->room + at, need, e) ? FAULT_IMAGE : FAULT_NONE;
}

static enum data_fault check_count(const struct image_reader *r, const struct image *i, uint32_t count, struct error *e)
{
    uint32_t rows, columns;
    if (image_processor_count(&r->o.processor, i->width, i->height, &rows, &columns) == count) return FAULT_NONE;
    return error_set(e, PL_USAGE, "it has %u x %u pixels, which is not the size that its text was tokenized with",
                     i->width, i->height), FAULT_SIZE;
}

enum data_fault image_reader_read(struct image_reader *r, struct image_files *files, const char *reference,
                                  uint32_t count, float *to, struct error *e)
{
    struct image image;
    size_t n, rest = 0;
    int rc = image_files_read(files, reference, r->room, r->o.room, &n, e);
    if (rc) return rc == PL_NOFIT ? FAULT_TOO_LARGE : FAULT_READ;
    enum data_fault fault = decode(r, n, &image, &rest, e);
    if (!fault) fault = check_count(r, &image, count, e);
    if (fault) return error_prepend(e, "%.100s", reference), fault;
    image_processor_run(&r->o.processor, image.rgb, image.width, image.height, r->room + rest, r->o.room - rest, to);
    return FAULT_NONE;
}

/* --- videos ----------------------------------------------------------------------------------- */

struct frames {
    struct image_reader *r;
    uint32_t count;
    uint64_t floats;
    struct frames_to to;
};

static int take_frame(void *user, uint32_t i, const struct image *frame, struct error *e)
{
    const struct frames *f = user;
    const struct image_processor *p = &f->r->o.frame_processor;
    const size_t rest =
        align_up((size_t)((const char *)frame->rgb - f->r->room) + (size_t)frame->width * frame->height * 3, 64);
    const uint64_t all = rest + image_processor_scratch(p, frame->width, frame->height);
    if (i >= f->count)
        return error_set(e, PL_USAGE, "it has more than the %u frames that its text was tokenized with", f->count);
    if (frame->width > IMAGE_READER_SIDE || frame->height > IMAGE_READER_SIDE)
        return error_set(e, PL_NOFIT, "a frame has %u x %u pixels; expected sides of at most %d", frame->width,
                         frame->height, IMAGE_READER_SIDE);
    if (all > f->r->o.room)
        return error_set(e, PL_NOFIT,
                         "a frame of %u x %u pixels takes %llu MiB; expected at most %llu (data.sample_memory)",
                         frame->width, frame->height, (unsigned long long)(all >> 20) + 1,
                         (unsigned long long)(f->r->o.room >> 20));
    float *values = f->to.values + (f->to.take ? 0 : i * f->floats);
    image_processor_run(p, frame->rgb, frame->width, frame->height, f->r->room + rest, f->r->o.room - rest, values);
    return f->to.take ? f->to.take(f->to.user, values, 1, e) : PL_OK;
}

enum data_fault image_reader_video(struct image_reader *r, struct image_files *files, const char *reference,
                                   uint32_t count, const struct frames_to *to, uint32_t *replaced, struct error *e)
{
    const struct video_options o = {.fps = r->o.fps, .max_frames = r->o.max_frames, .to = r->room, .room = r->o.room,
                                    .image = {.range = r->o.range, .on_white = true, .jpg = r->jpg}};
    struct frames f = {r, count, image_reader_floats(&r->o), *to};
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
