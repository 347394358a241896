/*
 * test_video.c: which frames of a video are taken, and videos that are folders of images. Files are
 * the work of tests/run_video.sh, which needs the program ffmpeg to make them.
 */
#include "data/images/video.h"
#include "io/file.h"
#include "io/png.h"

#include "harness.h"

enum { MOST = 64 };

/* --- the choice ------------------------------------------------------------------------------ */

/* Expects the numbers of frames, which a -1 ends. */
static void expect_choice(const double *times, uint32_t n, double fps, uint32_t max_frames, const int *want)
{
    uint32_t chosen[MOST],
        got = video_choose(times, n, &(struct video_options){.fps = fps, .max_frames = max_frames}, chosen), i = 0;
    for (; want[i] >= 0; i++)
        if (i >= got || (int)chosen[i] != want[i])
            fail_msg("fps %g, max_frames %u: frame %u of %u is %d, expected %d", fps, max_frames, i, got,
                     i < got ? (int)chosen[i] : -1, want[i]);
    assert_int_equal(got, i);
}
#define CHOICE(times, n, fps, max_frames, ...) expect_choice(times, n, fps, max_frames, (const int[]){__VA_ARGS__})

/* Ten frames a second, the first one at a time that is not 0: seconds 3.0 to 4.9. */
TEST(test_constant_rate)
{
    double times[20];
    for (int i = 0; i < 20; i++) times[i] = 3 + i / 10.0;
    CHOICE(times, 20, 1, 0, 0, 10, -1);
    CHOICE(times, 20, 2, 0, 0, 5, 10, 15, -1);
    CHOICE(times, 20, 2.5, 0, 0, 4, 8, 12, 16, -1);
    CHOICE(times, 20, 3, 0, 0, 3, 6, 10, 13, 16, -1);        /* 0, 1/3, 2/3, 1, 4/3, 5/3 */
    CHOICE(times, 20, 0.6, 0, 0, 16, -1);                    /* 0, 5/3 */
    CHOICE(times, 20, 0.01, 0, 0, -1);
    CHOICE(times, 11, 1, 0, 0, 10, -1);                      /* the last frame's own time counts */
    CHOICE(times, 10, 1, 0, 0, -1);
    CHOICE(times, 4, 10, 0, 0, 1, 2, 3, -1);
    CHOICE(times, 4, 30, 0, 0, 1, 2, 3, -1);                 /* more than the file has: each frame once */
    CHOICE(times, 4, 1e9, 0, 0, 1, 2, 3, -1);
    CHOICE(times, 4, 0, 0, 0, 1, 2, 3, -1);
}

/* A time between two frames belongs to the earlier one, however long it is shown. */
TEST(test_variable_rate)
{
    const double times[] = {0, 0.1, 0.2, 1.5, 1.6, 4.0, 4.0, 4.25};
    CHOICE(times, 8, 1, 0, 0, 2, 4, 6, -1);                  /* 0, 1, 2 and 3, 4 */
    CHOICE(times, 8, 4, 0, 0, 2, 3, 4, 6, 7, -1);            /* 0, .25 to 1.25, 1.5, 1.75 to 3.75, 4, 4.25 */
    CHOICE(times, 8, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, -1);
    CHOICE(times, 5, 2, 0, 0, 2, 3, -1);
}

/* Times in milliseconds, as WebM has them: 30 frames a second, rounded. A frame that is late by
 * less than a microsecond still counts as shown; one by a third of a millisecond does not. */
TEST(test_rounded_times)
{
    double times[31];
    for (int i = 0; i <= 30; i++) times[i] = (int)(i * 1000 / 30.0 + 0.5) / 1000.0;
    CHOICE(times, 31, 3, 0, 0, 10, 19, 30, -1);              /* frame 20 has .667, after 2/3 */
    for (int i = 0; i <= 30; i++) times[i] = i / 30.0 + 1e-7;
    CHOICE(times, 31, 3, 0, 0, 10, 20, 30, -1);
}

TEST(test_max_frames)
{
    double times[20];
    for (int i = 0; i < 20; i++) times[i] = i / 10.0;
    CHOICE(times, 20, 0, 1, 0, -1);
    CHOICE(times, 20, 0, 4, 0, 5, 10, 15, -1);
    CHOICE(times, 20, 0, 3, 0, 6, 13, -1);                   /* floor(i * 20 / 3) */
    CHOICE(times, 20, 5, 3, 0, 6, 12, -1);                   /* of 0, 2, 4, ... 18 the frames 0, 3 and 6 */
    CHOICE(times, 20, 5, 10, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, -1);
    CHOICE(times, 20, 5, 100, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, -1);
    CHOICE(NULL, 7, 2, 3, 0, 2, 4, -1);                      /* images have no times */
    CHOICE(NULL, 3, 2, 0, 0, 1, 2, -1);
}

TEST(test_no_frames)
{
    const double none[1] = {0};
    CHOICE(none, 0, 1, 4, -1);
    CHOICE(NULL, 0, 0, 0, -1);
    CHOICE(none, 1, 1, 4, 0, -1);
}

/* --- folders --------------------------------------------------------------------------------- */

static void put(const char *name, const void *bytes, size_t n)
{
    char path[512];
    struct error e;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (file_write_atomic(path, bytes, n, &e)) fail_msg("%s", e.text);
}

/* An image of one grey level, `level` pixels wide and one high. */
static void put_image(const char *name, uint8_t level)
{
    char path[512];
    uint8_t rgb[256 * 3];
    struct error e;
    memset(rgb, level, sizeof rgb);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (png_write(path, PNG_RGB, level, 1, rgb, 0, &e)) fail_msg("%s", e.text);
}

static void empty_folder(void)
{
    struct error e;
    assert_int_equal(tree_remove(folder, &e), 0);
    assert_int_equal(dir_make(folder, &e), 0);
}

struct seen {
    uint32_t n;
    uint8_t level[MOST];
};

static int see(void *user, uint32_t i, const struct image *frame, struct error *e)
{
    struct seen *s = user;
    assert_int_equal(i, s->n);
    assert_int_equal(frame->height, 1);
    assert_int_equal(frame->width, frame->rgb[0]);
    s->level[s->n++] = frame->rgb[0];
    return frame->rgb[0] == 99 ? error_set(e, PL_FAIL, "enough") : PL_OK;
}

static void expect_frames(uint32_t max_frames, uint32_t replaced, const int *want)
{
    const struct video_options o = {.max_frames = max_frames};
    struct seen s = {0};
    struct error e;
    uint32_t n, got;
    if (video_scan(VIDEO_AT(folder), &o, &n, &e) || video_read(VIDEO_AT(folder), &o, see, &s, &got, &e))
        fail_msg("%s", e.text);
    for (uint32_t i = 0; i < s.n; i++) assert_int_equal(s.level[i], want[i]);
    assert_int_equal(want[s.n], -1);
    assert_int_equal(s.n, n);
    assert_int_equal(got, replaced);
}
#define FRAMES(max_frames, replaced, ...) expect_frames(max_frames, replaced, (const int[]){__VA_ARGS__})

TEST(test_folder)
{
    empty_folder();
    for (uint8_t i = 0; i < 7; i++) {
        char name[] = "frame_0.png";
        name[6] = (char)('6' - i);
        put_image(name, (uint8_t)(7 - i));
    }
    put_image(".hidden.png", 50);
    put("notes.txt", "frames of a walk", 16);
    FRAMES(0, 0, 1, 2, 3, 4, 5, 6, 7, -1);
    FRAMES(3, 0, 1, 3, 5, -1);
    FRAMES(1, 0, 1, -1);
}

/* A damaged image is replaced by the last good one, at the beginning by the first. */
TEST(test_damaged)
{
    static const char cut[] = "\x89PNG\r\n\x1a\n";
    empty_folder();
    put("a.png", cut, 8);
    put("b.png", cut, 8);
    put_image("c.png", 3);
    put("d.png", cut, 8);
    put_image("e.png", 5);
    put("f.png", cut, 8);
    FRAMES(0, 4, 3, 3, 3, 3, 5, 5, -1);
    FRAMES(3, 1, 3, 3, 5, -1);
}

static void expect_refused(const char *path, const char *says)
{
    const struct video_options o = {.fps = 1};
    struct seen s = {0};
    struct error e;
    uint32_t n, replaced;
    int rc = video_scan(VIDEO_AT(path), &o, &n, &e);
    if (!rc) rc = video_read(VIDEO_AT(path), &o, see, &s, &replaced, &e);
    assert_int_not_equal(rc, 0);
    if (strncmp(e.text, path, strlen(path)) || !strstr(e.text, says))
        fail_msg("expected %s and \"%s\": %s", path, says, e.text);
}

TEST(test_refused)
{
    char path[512];
    empty_folder();
    expect_refused(folder, "a video without frames");
    put("notes.txt", "no video", 8);
    expect_refused(folder, "a video without frames");
    put("a.png", "\x89PNG\r\n\x1a\n", 8);
    expect_refused(folder, "a video without frames");
    put_image("b.png", 99);
    expect_refused(folder, "enough");
    snprintf(path, sizeof path, "%s/none.mp4", folder);
    expect_refused(path, "there is no such video");
    snprintf(path, sizeof path, "%s/notes.txt", folder);
    expect_refused(path, "FFmpeg");
}

MAIN(make_folder, remove_folder)
