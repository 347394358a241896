/*
 * video.c: see video.h. The choice of frames, and folders of images.
 */
#include "data/images/video.h"

#include <math.h>
#include <unistd.h>

#include "io/file.h"

/* --- the choice ------------------------------------------------------------------------------ */

/* Reports whether a time k/fps falls to frame i: it is the frame's own or later, and before the
 * next frame's. */
static bool shown(const double *times, uint32_t n, uint32_t i, double fps)
{
    const double microsecond = 1e-6, begins = times[i] - times[0];
    const double time = ceil((begins - microsecond) * fps) / fps; /* the first such time from this frame on */
    return i + 1 < n ? time + microsecond < times[i + 1] - times[0] : time <= begins + microsecond;
}

static uint32_t thin(uint32_t *chosen, uint32_t n, uint32_t most)
{
    if (!most || n <= most) return n;
    for (uint32_t i = 0; i < most; i++) chosen[i] = chosen[(uint64_t)i * n / most];
    return most;
}

/* Returns number i of torch.arange(0, frames, step) with `count` numbers, on a CPU. PyTorch
 * computes 16 at a time, eight of them from the first one, which is rounded; the last ones one by
 * one. Beyond 2^14 frames the rounding decides on frames. */
static float arange(double step, uint32_t i, uint32_t count)
{
    const uint32_t first = i < count / 16 * 16 ? i / 8 * 8 : 0;
    return (float)((double)(float)(first * step) + (i - first) * step);
}

void video_spread(uint32_t frames, uint32_t n, uint32_t *chosen)
{
    const double step = (double)frames / n;
    const uint32_t count = (uint32_t)ceil(frames / step); /* n, or one more by rounding, behind the last frame */
    for (uint32_t i = 0; i < n; i++) chosen[i] = (uint32_t)fmin(arange(step, i, count), frames - 1.0);
}

struct video_sampling video_sampling_with(const struct video_sampling *s, double fps, uint32_t most)
{
    struct video_sampling x = *s;
    if (fps > 0) x.fps = fps, x.frames = 0;
    x.most = most;
    return x;
}

int video_sample(const void *sampling, const struct video_facts *f, uint32_t *chosen, uint32_t *n, struct error *e)
{
    const struct video_sampling *s = sampling;
    double wanted = s->frames ? s->frames : f->frames;
    if (s->fps > 0 && f->fps > 0) wanted = floor(f->frames / f->fps * s->fps);
    if (s->most) wanted = fmin(wanted, s->most);
    if (!f->frames) return error_set(e, PL_USAGE, "a video without frames");
    *n = (uint32_t)fmin(fmax(wanted, 1), f->frames);
    video_spread(f->frames, *n, chosen);
    return PL_OK;
}

uint32_t video_choose(const double *times, uint32_t n, const struct video_options *o, uint32_t *chosen)
{
    uint32_t taken = 0;
    for (uint32_t i = 0; i < n; i++)
        if (!times || o->fps <= 0 || shown(times, n, i, o->fps)) chosen[taken++] = i;
    return thin(chosen, taken, o->max_frames);
}

/* --- times ----------------------------------------------------------------------------------- */

static uint32_t whole_seconds(double t) { return (uint32_t)fmin(fmax(t + 1e-6, 0), UINT32_MAX); }

void video_times_fill(const double *times, uint32_t n, double duration, const uint32_t *chosen, uint32_t frames,
                      struct bump *b, struct video_times *out)
{
    *out = (struct video_times){bump_alloc(b, (frames + 1) * sizeof *out->seconds), frames, whole_seconds(duration)};
    for (uint32_t i = 0; i < frames; i++) {
        CHECK(chosen[i] < n, "frame %u of %u", chosen[i], n);
        out->seconds[i] = whole_seconds(times[chosen[i]]);
    }
}

void video_choice_fill(const struct video_facts *f, const uint32_t *chosen, uint32_t n, struct bump *b,
                       struct video_choice *out)
{
    uint32_t *copy = bump_alloc(b, (n + 1) * sizeof *copy);
    if (n) memcpy(copy, chosen, n * sizeof *copy);
    *out = (struct video_choice){*f, copy, n};
}

/* --- a folder -------------------------------------------------------------------------------- */

/* A file of a folder: by its path, or in a tar. */
struct frame_file {
    const char *path;
    int fd;
    struct video_part part;
};

/* The images of a folder, and those that are used. */
struct video_folder {
    const struct video_at *at;
    struct names paths;          /* on the disk */
    VEC(struct frame_file) files;
    uint32_t *chosen, n;
};

static void add_image(struct video_folder *f, struct frame_file x)
{
    char head[16];
    struct error ignored;
    size_t n = x.fd < 0 ? file_peek(x.path, head, sizeof head) : (size_t)min_u64(x.part.size, sizeof head);
    if (x.fd >= 0 && fd_read_at(x.fd, x.part.offset, head, n, &ignored)) n = 0;
    if (image_format(head, n)) vec_push(&f->files, x);
}

/* Lists the files that begin as an image does; hidden files are no frames. */
static int list_images(struct video_folder *f, struct error *e)
{
    const struct video_at *v = f->at;
    if (v->fd < 0 && dir_list_ending(v->path, "", &f->paths, e)) return e->code;
    for (uint32_t i = 0; i < f->paths.n; i++) add_image(f, (struct frame_file){.path = f->paths.at[i], .fd = -1});
    for (uint32_t i = 0; i < v->n_parts; i++) add_image(f, (struct frame_file){v->path, v->fd, v->parts[i]});
    return f->files.n ? PL_OK
                      : error_set(e, PL_USAGE, "%s: a video without frames: the folder has no JPEG, PNG or WebP images",
                                  v->path);
}

/* Opens a file of a folder on the disk; in a tar it is open. */
static int open_frame(struct frame_file *x, struct error *e)
{
    if (x->fd >= 0) return PL_OK;
    x->fd = file_open(x->path, &x->part.size, e);
    return x->fd < 0 ? e->code : PL_OK;
}

/* Reads an image into o->to, or onto the heap. */
static int read_image(const struct frame_file *file, const struct video_options *o, struct image *out, struct error *e)
{
    enum { MOST_BYTES = 1 << 30 };
    struct frame_file x = *file;
    if (open_frame(&x, e)) return e->code;
    const uint64_t n = x.part.size;
    const size_t pixels = align_up(n, 64);
    char *bytes = o->to ? o->to : mem_alloc(n < MOST_BYTES ? n + 1 : 1);
    int rc = PL_OK;
    if (n > MOST_BYTES || (o->to && pixels > o->room))
        rc = error_set(e, PL_NOFIT, "the image has %llu bytes; expected at most %zu", (unsigned long long)n,
                       o->to ? o->room : (size_t)MOST_BYTES);
    if (!rc) rc = fd_read_at(x.fd, x.part.offset, bytes, n, e);
    if (!rc)
        rc = image_decode(out, bytes, n, &o->image, o->to ? bytes + pixels : NULL, o->to ? o->room - pixels : 0, e);
    if (!o->to) mem_free(bytes);
    if (file->fd < 0) close(x.fd);
    return rc;
}

static void free_image(const struct video_options *o, struct image *i)
{
    if (!o->to) mem_free(i->rgb);
    i->rgb = NULL;
}

/* Reads the frames of a folder. Frames that wait for the first good one are given when it comes. */
static int read_folder(const struct video_folder *f, const struct video_options *o, video_take *take, void *user,
                       uint32_t *replaced, struct error *e)
{
    struct image image = {0};
    const struct frame_file *last = NULL; /* the last good one */
    uint32_t given = 0;
    int rc = PL_OK;
    for (uint32_t i = 0; i < f->n && !rc; i++) {
        const struct frame_file *file = &f->files.at[f->chosen[i]];
        int bad = read_image(file, o, &image, e);
        *replaced += bad != 0;
        if (bad == PL_NOFIT) rc = bad;
        if (!bad) last = file;
        else if (last && !rc) rc = read_image(last, o, &image, e); /* its pixels may be overwritten */
        while (last && given <= i && !rc) rc = take(user, given, &image, e), given++;
        free_image(o, &image);
    }
    if (!rc && !last) rc = error_prepend(e, "a video without frames, as none of its images can be decoded");
    return rc ? error_prepend(e, "%s", f->at->path) : PL_OK;
}

/* --- any ------------------------------------------------------------------------------------- */

static void close_folder(struct video_folder *f)
{
    mem_free(f->chosen);
    vec_free(&f->files);
    names_free(&f->paths);
}

/* Lists the images of a folder and chooses among them; close_folder frees it in any case. */
static int open_folder(struct video_folder *f, const struct video_at *v, const struct video_options *o, struct error *e)
{
    *f = (struct video_folder){.at = v};
    if (list_images(f, e)) return e->code;
    f->chosen = mem_alloc(f->files.n * sizeof *f->chosen);
    if (o->choose) {
        int rc = o->choose(o->chooser, &(struct video_facts){.frames = f->files.n}, f->chosen, &f->n, e);
        return rc ? error_prepend(e, "%s", v->path) : PL_OK;
    }
    f->n = video_choose(NULL, f->files.n, o, f->chosen);
    return PL_OK;
}

/* Finds the size of the first image that can be decoded, of those that are used. */
static int measure_folder(const struct video_folder *f, struct video_facts *out, struct error *e)
{
    int rc = PL_USAGE;
    for (uint32_t i = 0; i < f->n && rc; i++) {
        const struct video_options o = {0};
        struct image image = {0};
        rc = read_image(&f->files.at[f->chosen[i]], &o, &image, e);
        *out = (struct video_facts){.frames = f->files.n, .width = image.width, .height = image.height};
        free_image(&o, &image);
    }
    if (rc) error_prepend(e, "%s: a video without frames, as none of its images can be decoded", f->at->path);
    return rc;
}

static void time_folder(const struct video_folder *f, const struct video_options *o, struct bump *b,
                        struct video_times *out)
{
    enum { USUAL_RATE = 24 };
    const double rate = o->fps > 0 ? o->fps : USUAL_RATE;
    double *times = mem_alloc(f->files.n * sizeof *times);
    for (uint32_t i = 0; i < f->files.n; i++) times[i] = i / rate;
    video_times_fill(times, f->files.n, f->files.n / rate, f->chosen, f->n, b, out);
    mem_free(times);
}

static int check_path(const struct video_at *v, struct error *e)
{
    return v->fd >= 0 || file_exists(v->path) ? PL_OK : error_set(e, PL_USAGE, "%s: there is no such video", v->path);
}

static bool is_folder(const struct video_at *v) { return v->fd < 0 ? dir_exists(v->path) : v->n_parts; }

int video_scan(const struct video_at *v, const struct video_options *o, uint32_t *frames, struct error *e)
{
    struct video_folder f;
    *frames = 0;
    if (check_path(v, e)) return e->code;
    if (!is_folder(v)) return video_file_scan(v, o, frames, e);
    int rc = open_folder(&f, v, o, e);
    *frames = f.n;
    close_folder(&f);
    return rc;
}

int video_list(const struct video_at *v, const struct video_options *o, struct bump *b, struct video_choice *out,
               struct error *e)
{
    struct video_folder f;
    struct video_facts facts;
    *out = (struct video_choice){0};
    if (check_path(v, e)) return e->code;
    if (!is_folder(v)) return video_file_list(v, o, b, out, e);
    int rc = open_folder(&f, v, o, e);
    if (!rc) rc = measure_folder(&f, &facts, e);
    if (!rc) video_choice_fill(&facts, f.chosen, f.n, b, out);
    close_folder(&f);
    return rc;
}

int video_names(const struct video_at *v, struct names *out, struct error *e)
{
    struct video_folder f = {.at = v};
    if (check_path(v, e)) return e->code;
    if (v->fd >= 0 || !is_folder(v)) return PL_OK;
    int rc = list_images(&f, e);
    for (uint32_t i = 0; i < f.files.n && !rc; i++) {
        const char *slash = strrchr(f.files.at[i].path, '/');
        char *name = mem_string(slash ? slash + 1 : f.files.at[i].path), *dot = strrchr(name, '.');
        if (dot && dot > name) *dot = 0;
        vec_push(out, name);
    }
    close_folder(&f);
    return rc;
}

int video_time(const struct video_at *v, const struct video_options *o, struct bump *b, struct video_times *out,
               struct error *e)
{
    struct video_folder f;
    *out = (struct video_times){0};
    if (check_path(v, e)) return e->code;
    if (!is_folder(v)) return video_file_time(v, o, b, out, e);
    int rc = open_folder(&f, v, o, e);
    if (!rc) time_folder(&f, o, b, out);
    close_folder(&f);
    return rc;
}

int video_read(const struct video_at *v, const struct video_options *o, video_take *take, void *user,
               uint32_t *replaced, struct error *e)
{
    struct video_folder f;
    *replaced = 0;
    if (check_path(v, e)) return e->code;
    if (!is_folder(v)) return video_file_read(v, o, take, user, replaced, e);
    int rc = open_folder(&f, v, o, e);
    if (!rc) rc = read_folder(&f, o, take, user, replaced, e);
    close_folder(&f);
    return rc;
}
