/*
 * video.h: the frames of a video, which is a folder of images or a file that FFmpeg's libraries
 * read, on the disk or in a tar.
 *
 * Which frames are used (video_choose). Time begins with the first frame. At the times 0, 1/fps,
 * 2/fps, ... up to the last frame's, the frame that is shown then is taken: the last one that began
 * by that time, to the microsecond. No frame is taken twice. If these n frames are more than
 * max_frames, they are thinned evenly: the frames floor(i * n / max_frames). The times are the
 * file's own, so that a variable frame rate is followed. The images of a folder, in the order of
 * their names' bytes, have no times: all of them are taken, and thinned in the same way.
 *
 * A frame that cannot be decoded is replaced by the last good one before it, or else by the first
 * good one after it, and counted. Orientation in a file's metadata is not applied. Messages begin
 * with the path.
 */
#pragma once

#include "data/images/image.h"

/* Where a video is: a file or a folder; or, in a tar, one of its files, or as parts those of a
 * folder. */
struct video_at {
    const char *path;      /* in a tar it is for messages */
    int fd;                /* of the tar; -1: it is in none */
    uint64_t offset, size; /* of the file in the tar */
    const struct video_part {
        uint64_t offset, size;
    } *parts;              /* [n_parts] the files of the folder in the tar, in the order of their names */
    uint32_t n_parts;
};
#define VIDEO_AT(file_or_folder) (&(struct video_at){.path = (file_or_folder), .fd = -1})

/* What is known of a video before its frames are chosen. */
struct video_facts {
    uint32_t frames;        /* all */
    double fps;             /* a file's average: its frames by its length; 0: a folder, whose images have no times */
    uint32_t width, height; /* only from video_list: of a file as it says, of a folder as its first good image */
};

/* Chooses frames by a rule of its own: writes their numbers, ascending, to chosen[f->frames], and
 * how many they are to *n. */
typedef int video_chooser(const void *user, const struct video_facts *f, uint32_t *chosen, uint32_t *n,
                          struct error *e);

/* Frames at even distances, as torch.arange(0, frames, frames / n) has them, rounded down. */
struct video_sampling {
    bool on;             /* else video_choose chooses */
    double fps;          /* n is this many a second; 0, and for a folder: */
    uint32_t frames;     /* n; 0: all */
    uint32_t most;       /* at most n; 0: any number */
};
/* Chooses so; a video_chooser, of which a struct video_sampling is the user. */
int video_sample(const void *sampling, const struct video_facts *f, uint32_t *chosen, uint32_t *n, struct error *e);
/* Returns the sampling with this many frames a second, where fps is above 0, and at most `most`. */
struct video_sampling video_sampling_with(const struct video_sampling *s, double fps, uint32_t most);
/* Writes n even numbers below `frames`, which are at least n. */
void video_spread(uint32_t frames, uint32_t n, uint32_t *chosen);

struct video_options {
    double fps;          /* frames a second that are taken; 0: every frame */
    uint32_t max_frames; /* 0: any number */
    video_chooser *choose; /* chooses instead of fps and max_frames; NULL: they do */
    const void *chooser;   /* its `user` */
    /* Only from video_read: */
    /* memory for a frame, with the file of an image before its pixels; NULL: frames are on the
     * heap */
    void *to;
    size_t room;         /* its bytes */
    struct image_options image; /* how the images of a folder are decoded */
};

/* Chooses among n frames by their times in seconds, ascending, and writes their numbers in order to
 * chosen[n]. Returns how many. times NULL: the frames have none. */
uint32_t video_choose(const double *times, uint32_t n, const struct video_options *o, uint32_t *chosen);

/* Counts the frames of a video that are used, without decoding any. PL_USAGE: there is no such
 * video, it is not one that is read, or it has no frames. */
int video_scan(const struct video_at *v, const struct video_options *o, uint32_t *frames, struct error *e);

/* What is known of a video, and the numbers of the frames that are used. */
struct video_choice {
    struct video_facts facts;
    const uint32_t *chosen; /* [n] */
    uint32_t n;
};
/* Does as video_scan, and gives the choice, in `b`. For a folder it decodes images until one is
 * good. */
int video_list(const struct video_at *v, const struct video_options *o, struct bump *b, struct video_choice *out,
               struct error *e);

/* Lists the file names of a folder's images, without endings; of a file and in a tar none. */
struct names;
int video_names(const struct video_at *v, struct names *out, struct error *e);

/* When the frames that are used are shown, in whole seconds rounded down (to the microsecond). A
 * file's last frame lasts as long as the others do on average. The images of a folder are taken to
 * be o->fps a second; 24, where that is 0. */
struct video_times {
    uint32_t *seconds; /* [frames] */
    uint32_t frames, duration;
};
/* Does as video_scan, and gives the times, in `b`. */
int video_time(const struct video_at *v, const struct video_options *o, struct bump *b, struct video_times *out,
               struct error *e);
/* Fill *out for the two kinds of videos; the second from the times of all n frames. */
void video_choice_fill(const struct video_facts *f, const uint32_t *chosen, uint32_t n, struct bump *b,
                       struct video_choice *out);
void video_times_fill(const double *times, uint32_t n, double duration, const uint32_t *chosen, uint32_t frames,
                      struct bump *b, struct video_times *out);

/* Receives frame i of those that are used. Its pixels are valid during the call; a failure ends the
 * reading. */
typedef int video_take(void *user, uint32_t i, const struct image *frame, struct error *e);
/* Decodes the frames that are used, in order, one at a time; *replaced of them could not be
 * decoded. PL_USAGE as in video_scan, and when no frame can be decoded; PL_NOFIT: o->room is too
 * small for one. FFmpeg decodes in the calling thread; what it allocates is freed when the call
 * returns, and so is the list of the frames. */
int video_read(const struct video_at *v, const struct video_options *o, video_take *take, void *user,
               uint32_t *replaced, struct error *e);

/* ---- Video files ----
 *
 * video files, for video.c. Only video_file.c uses FFmpeg; a build without its
 * headers has video_file_none.c instead, in which every video file is an error.
 *
 * The libraries are loaded when the first video file is opened, so that other runs do not pay for
 * them. They must have the major versions of the headers at build time.
 */

/* Returns the version of FFmpeg, whose libraries are loaded if they are not yet; NULL: this build
 * has none, or, with e->code, they cannot be loaded. */
const char *video_file_version(struct error *e);

/* Do as the functions above without _file. */
int video_file_list(const struct video_at *at, const struct video_options *o, struct bump *b, struct video_choice *out,
                    struct error *e);
int video_file_time(const struct video_at *at, const struct video_options *o, struct bump *b, struct video_times *out,
                    struct error *e);
int video_file_scan(const struct video_at *at, const struct video_options *o, uint32_t *frames, struct error *e);
int video_file_read(const struct video_at *at, const struct video_options *o, video_take *take, void *user,
                    uint32_t *replaced, struct error *e);
