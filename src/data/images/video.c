/*
 * video.c: see video.h. The choice of frames, and folders of images.
 */
#include "data/images/video.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#include "data/images/video_file.h"
#include "io/file.h"

/* --- the choice ------------------------------------------------------------------------------ */

/* Whether a time k/fps falls to frame i: it is the frame's own or later, and before the next frame's. */
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

uint32_t video_choose(const double *times, uint32_t n, const struct video_options *o, uint32_t *chosen)
{
    uint32_t taken = 0;
    for (uint32_t i = 0; i < n; i++)
        if (!times || o->fps <= 0 || shown(times, n, i, o->fps)) chosen[taken++] = i;
    return thin(chosen, taken, o->max_frames);
}

/* --- a folder -------------------------------------------------------------------------------- */

/* Lists the files that begin as an image does; hidden files are no frames. */
static int list_images(const char *folder, struct names *out, struct error *e)
{
    struct names all = {0};
    char head[16];
    int rc = dir_list_ending(folder, "", &all, e);
    for (uint32_t i = 0; i < all.n && !rc; i++)
        if (image_format(head, file_peek(all.at[i], head, sizeof head))) vec_push(out, mem_string(all.at[i]));
    names_free(&all);
    if (!rc && !out->n) rc = error_set(e, PL_USAGE, "%s: a video without frames: the folder has no JPEG, PNG or WebP images", folder);
    return rc;
}

/* Reads an image into o->to, or onto the heap. */
static int read_image(const char *path, const struct video_options *o, struct image *out, struct error *e)
{
    enum { MOST_BYTES = 1 << 30 };
    uint64_t n;
    const int fd = file_open(path, &n, e);
    if (fd < 0) return e->code;
    const size_t pixels = align_up(n, 64);
    char *bytes = o->to ? o->to : mem_alloc(n < MOST_BYTES ? n + 1 : 1);
    int rc = PL_OK;
    if (n > MOST_BYTES || (o->to && pixels > o->room)) rc = error_set(e, PL_NOFIT, "the image has %llu bytes; expected at most %zu", (unsigned long long)n, o->to ? o->room : (size_t)MOST_BYTES);
    if (!rc) rc = fd_read_at(fd, 0, bytes, n, e);
    if (!rc) rc = image_decode(out, bytes, n, &o->image, o->to ? bytes + pixels : NULL, o->to ? o->room - pixels : 0, e);
    if (!o->to) mem_free(bytes);
    close(fd);
    return rc;
}

static void free_image(const struct video_options *o, struct image *i)
{
    if (!o->to) mem_free(i->rgb);
    i->rgb = NULL;
}

/* The images of a folder that are used. */
struct folder {
    const char *path;
    struct names files;
    uint32_t *chosen, n;
};

/* Frames that wait for the first good one are given when it comes. */
static int read_folder(const struct folder *f, const struct video_options *o, video_take *take, void *user, uint32_t *replaced, struct error *e)
{
    struct image image = {0};
    const char *last = NULL; /* the last good one */
    uint32_t given = 0;
    int rc = PL_OK;
    for (uint32_t i = 0; i < f->n && !rc; i++) {
        const char *file = f->files.at[f->chosen[i]];
        int bad = read_image(file, o, &image, e);
        *replaced += bad != 0;
        if (bad == PL_NOFIT) rc = bad;
        if (!bad) last = file;
        else if (last && !rc) rc = read_image(last, o, &image, e); /* its pixels may be overwritten */
        while (last && given <= i && !rc) rc = take(user, given, &image, e), given++;
        free_image(o, &image);
    }
    if (!rc && !last) rc = error_prepend(e, "a video without frames, as none of its images can be decoded");
    return rc ? error_prepend(e, "%s", f->path) : PL_OK;
}

/* --- any ------------------------------------------------------------------------------------- */

/* Scans, and with `take` reads. */
static int open_folder(const char *path, const struct video_options *o, uint32_t *frames, video_take *take, void *user, uint32_t *replaced, struct error *e)
{
    struct folder f = {.path = path};
    int rc = list_images(path, &f.files, e);
    if (!rc) {
        f.chosen = mem_alloc(f.files.n * sizeof *f.chosen);
        *frames = f.n = video_choose(NULL, f.files.n, o, f.chosen);
        if (take) rc = read_folder(&f, o, take, user, replaced, e);
        mem_free(f.chosen);
    }
    names_free(&f.files);
    return rc;
}

static int check_path(const char *path, struct error *e)
{
    return file_exists(path) ? PL_OK : error_set(e, PL_USAGE, "%s: there is no such video", path);
}

int video_scan(const char *path, const struct video_options *o, uint32_t *frames, struct error *e)
{
    *frames = 0;
    if (check_path(path, e)) return e->code;
    return dir_exists(path) ? open_folder(path, o, frames, NULL, NULL, NULL, e) : video_file_scan(path, o, frames, e);
}

int video_read(const char *path, const struct video_options *o, video_take *take, void *user, uint32_t *replaced, struct error *e)
{
    uint32_t frames;
    *replaced = 0;
    if (check_path(path, e)) return e->code;
    return dir_exists(path) ? open_folder(path, o, &frames, take, user, replaced, e) : video_file_read(path, o, take, user, replaced, e);
}
