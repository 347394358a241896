/*
 * video.c: the frames of a video that the library takes, for tests/run_video.sh:
 *
 *     video FPS MAX_FRAMES VIDEO
 *
 * prints "COUNT frames, REPLACED replaced, WIDTHxHEIGHT, at SECOND... of DURATION s:" and the mean
 * of each frame's pixels, 0 to 255.
 */

#include "data/images/video.h"

struct seen {
    uint32_t frames, width, height;
    struct text means;
};

static int see(void *user, uint32_t i, const struct image *frame, struct error *e)
{
    struct seen *s = user;
    const size_t n = (size_t)frame->width * frame->height * 3;
    double sum = 0;
    if (i != s->frames++) return error_set(e, PL_FAIL, "frame %u comes as number %u", i, s->frames - 1);
    for (size_t k = 0; k < n; k++) sum += frame->rgb[k];
    s->width = frame->width;
    s->height = frame->height;
    text_printf(&s->means, " %.1f", sum / (double)n);
    return PL_OK;
}

int main(int argc, char **argv)
{
    if (argc != 4) return fprintf(stderr, "usage: video FPS MAX_FRAMES VIDEO\n"), 2;
    const struct video_options o = {.fps = atof(argv[1]), .max_frames = (uint32_t)atoi(argv[2])};
    struct seen s = {0};
    struct error e;
    struct video_times times = {0};
    struct bump b = {0};
    uint32_t frames, replaced;
    int rc = video_scan(VIDEO_AT(argv[3]), &o, &frames, &e);
    if (!rc) rc = video_read(VIDEO_AT(argv[3]), &o, see, &s, &replaced, &e);
    if (!rc && frames != s.frames) rc = error_set(&e, PL_FAIL, "%u frames by the scan, %u decoded", frames, s.frames);
    if (!rc) rc = video_time(VIDEO_AT(argv[3]), &o, &b, &times, &e);
    if (!rc && frames != times.frames)
        rc = error_set(&e, PL_FAIL, "%u frames by the scan, %u have times", frames, times.frames);
    if (rc) fprintf(stderr, "%s\n", e.text);
    else {
        printf("%u frames, %u replaced, %ux%u, at", frames, replaced, s.width, s.height);
        for (uint32_t i = 0; i < frames; i++) printf(" %u", times.seconds[i]);
        printf(" of %u s:%s\n", times.duration, s.means.at);
    }
    bump_free(&b);
    text_free(&s.means);
    return rc;
}
