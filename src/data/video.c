/*
 * video.c: see video.h. The choice of frames, and folders of images.
 */
#include "data/video.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "data/video_file.h"
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

static int read_image(const char *path, struct image *out, struct error *e)
{
    enum { MOST_BYTES = 1 << 30 };
    char *bytes;
    size_t n;
    if (file_read(path, MOST_BYTES, &bytes, &n, e)) return e->code;
    int rc = image_decode(out, bytes, n, &(struct image_options){.on_white = true}, NULL, 0, e);
    mem_free(bytes);
    return rc;
}

/* Frames that wait for the first good one are given when it comes. */
static int read_folder(const char *folder, const struct names *files, const uint32_t *chosen, uint32_t n, video_take *take, void *user, uint32_t *replaced, struct error *e)
{
    struct image last = {0}, next;
    uint32_t given = 0;
    int rc = PL_OK;
    for (uint32_t i = 0; i < n && !rc; i++) {
        if (!read_image(files->at[chosen[i]], &next, e)) {
            mem_free(last.rgb);
            last = next;
        } else ++*replaced;
        while (last.rgb && given <= i && !rc) rc = take(user, given, &last, e), given++;
    }
    if (!rc && !last.rgb) rc = error_prepend(e, "a video without frames, as none of its images can be decoded");
    if (rc) error_prepend(e, "%s", folder);
    mem_free(last.rgb);
    return rc;
}

/* --- any ------------------------------------------------------------------------------------- */

/* Scans, and with `take` reads. */
static int open_folder(const char *path, const struct video_options *o, uint32_t *frames, video_take *take, void *user, uint32_t *replaced, struct error *e)
{
    struct names files = {0};
    int rc = list_images(path, &files, e);
    if (!rc) {
        uint32_t *chosen = mem_alloc(files.n * sizeof *chosen);
        *frames = video_choose(NULL, files.n, o, chosen);
        if (take) rc = read_folder(path, &files, chosen, *frames, take, user, replaced, e);
        mem_free(chosen);
    }
    names_free(&files);
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
