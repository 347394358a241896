/*
 * video_file_none.c: a build without FFmpeg's headers (see video.h). No video file is read.
 */
#include "data/images/video.h"

const char *video_file_version(struct error *e)
{
    *e = (struct error){0};
    return NULL;
}

static int refuse(const char *path, struct error *e)
{
    return error_set(e, PL_USAGE,
                     "%s: this build has no FFmpeg to read video files: give a folder of the frames, or run make deps "
                     "and build again", path);
}

int video_file_list(const struct video_at *at, const struct video_options *o, struct bump *b, struct video_choice *out,
                    struct error *e)
{
    (void)o, (void)b, (void)out;
    return refuse(at->path, e);
}

int video_file_time(const struct video_at *at, const struct video_options *o, struct bump *b, struct video_times *out,
                    struct error *e)
{
    (void)o, (void)b, (void)out;
    return refuse(at->path, e);
}

int video_file_scan(const struct video_at *at, const struct video_options *o, uint32_t *frames, struct error *e)
{
    (void)o, (void)frames;
    return refuse(at->path, e);
}

int video_file_read(const struct video_at *at, const struct video_options *o, video_take *take, void *user,
                    uint32_t *replaced, struct error *e)
{
    (void)o, (void)take, (void)user, (void)replaced;
    return refuse(at->path, e);
}
