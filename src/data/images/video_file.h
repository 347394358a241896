/*
 * video_file.h: video files, for video.c. Only video_file.c uses FFmpeg; a build without its
 * headers has video_file_none.c instead, in which every video file is an error.
 *
 * The libraries are loaded when the first video file is opened, so that other runs do not pay for
 * them. They must have the major versions of the headers at build time.
 */
#ifndef DATA_VIDEO_FILE_H
#define DATA_VIDEO_FILE_H

#include "data/images/video.h"

/* Returns the version of FFmpeg, whose libraries are loaded if they are not yet; NULL: this build
 * has none, or, with e->code, they cannot be loaded. */
const char *video_file_version(struct error *e);

/* Does as video_time; the others do as video_scan and video_read. */
int video_file_time(const struct video_at *at, const struct video_options *o, struct bump *b, struct video_times *out,
                    struct error *e);
int video_file_scan(const struct video_at *at, const struct video_options *o, uint32_t *frames, struct error *e);
int video_file_read(const struct video_at *at, const struct video_options *o, video_take *take, void *user,
                    uint32_t *replaced, struct error *e);

#endif
