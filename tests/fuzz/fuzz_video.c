/*
 * fuzz_video.c: any bytes as the times of frames, or as a video file. The first byte chooses, the
 * next two are max_frames and fps. Chosen frames ascend, begin with the first and are no more than
 * max_frames; decoding gives as many frames as the scan says. Built like fuzz_json.c.
 */
#include <sys/mman.h>
#include <unistd.h>

#include "data/images/video.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST = 1 << 14 };

/* Steps between times are in units of 1/7 of a hundredth of a second, so that no fps meets all of
 * them. */
static void choose(const struct video_options *o, const uint8_t *steps, uint32_t n)
{
    double *times = mem_alloc((n + 1) * sizeof *times), at = n ? steps[0] : 0;
    uint32_t *chosen = mem_alloc((n + 1) * sizeof *chosen);
    for (uint32_t i = 0; i < n; i++) times[i] = at += steps[i] / 700.0;
    uint32_t got = video_choose(times, n, o, chosen);
    CHECK(got <= n && (!o->max_frames || got <= o->max_frames) && !got == !n, "%u of %u frames", got, n);
    for (uint32_t i = 0; i < got; i++)
        CHECK(i ? chosen[i] > chosen[i - 1] && chosen[i] < n : times[chosen[0]] - times[0] < 1e-5,
              "frame %u is number %u", i, chosen[i]);
    mem_free(times);
    mem_free(chosen);
}

static int count(void *user, uint32_t i, const struct image *frame, struct error *e)
{
    static volatile uint8_t last;
    uint32_t *n = user;
    (void)e;
    CHECK(i == (*n)++ && frame->width && frame->height, "frame %u", i);
    last = frame->rgb[(size_t)frame->width * frame->height * 3 - 1];
    (void)last;
    return PL_OK;
}

static void read_file(const struct video_options *o, const uint8_t *bytes, size_t n)
{
    char path[64];
    struct error e = {0};
    uint32_t frames, replaced, got = 0;
    const int fd = memfd_create("video", 0);
    CHECK(fd >= 0 && write(fd, bytes, n) == (ssize_t)n, "no file in memory");
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int rc = video_scan(VIDEO_AT(path), o, &frames, &e);
    if (!rc) {
        rc = video_read(VIDEO_AT(path), o, count, &got, &replaced, &e);
        CHECK(rc || (got == frames && replaced <= got), "%u frames, expected %u", got, frames);
    }
    CHECK(!rc || e.text[0], "a failure without a message");
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 3 || size > MOST) return 0;
    const struct video_options o = {.max_frames = data[1], .fps = data[2] / 8.0};
    if (data[0] & 1)
        read_file(&(struct video_options){.max_frames = data[1] % 8 + 1, .fps = o.fps}, data + 3, size - 3);
    else choose(&o, data + 3, (uint32_t)(size - 3));
    return 0;
}
