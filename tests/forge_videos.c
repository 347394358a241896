/*
 * forge_videos.c: writes conversations about videos for test scripts, in LLaVA's format:
 *
 *     forge_videos DIR SAMPLES SEED
 *
 *     DIR/chats.json           sample i: "lighter?" about a video growing lighter, y, or darker, n. Some with images
 *                              after the video, and asks about the video before it all the same
 *     DIR/videos/I/K.png       its frames, 8 x 8 pixels of one tone; reversed they have the other answer
 *     DIR/videos/I.png         the image
 *     DIR/blank/...            the same names: all are grey
 */

#include "base/random.h"
#include "io/file.h"
#include "io/png.h"

enum { SIDE = 8, FRAMES = 4 };

static uint32_t draw(uint64_t key, uint64_t *at, uint32_t n) { return (uint32_t)(random_bits(key, (*at)++) % n); }

static int write_tone(const char *dir, const char *name, const uint8_t tone[3], struct error *e)
{
    char path[4096];
    uint8_t rgb[SIDE * SIDE * 3];
    for (int i = 0; i < SIDE * SIDE; i++) memcpy(rgb + i * 3, tone, 3);
    snprintf(path, sizeof path, "%s/videos/%s", dir, name);
    if (png_write(path, PNG_RGB, SIDE, SIDE, rgb, 0, e)) return e->code;
    memset(rgb, 128, sizeof rgb);
    snprintf(path, sizeof path, "%s/blank/%s", dir, name);
    return png_write(path, PNG_RGB, SIDE, SIDE, rgb, 0, e);
}

static int write_video(const char *dir, uint32_t i, bool lighter, uint64_t key, struct error *e)
{
    uint64_t at = 1;
    char name[64];
    int rc = PL_OK;
    const uint32_t step = 45 + draw(key, &at, 15);
    for (uint32_t k = 0; k < FRAMES && !rc; k++) {
        uint8_t tone[3];
        for (int c = 0; c < 3; c++) tone[c] = (uint8_t)((lighter ? k : FRAMES - 1 - k) * step + draw(key, &at, 30));
        snprintf(name, sizeof name, "%u/%u.png", i, k);
        rc = write_tone(dir, name, tone, e);
    }
    const uint8_t any[3] = {(uint8_t)draw(key, &at, 256), (uint8_t)draw(key, &at, 256), (uint8_t)draw(key, &at, 256)};
    snprintf(name, sizeof name, "%u.png", i);
    return rc ? rc : write_tone(dir, name, any, e);
}

static int make_folders(const char *dir, uint32_t samples, struct error *e)
{
    char path[4096];
    int rc = PL_OK;
    for (uint32_t i = 0; i < samples && !rc; i++) {
        snprintf(path, sizeof path, "%s/videos/%u", dir, i);
        rc = dir_make(path, e);
        snprintf(path, sizeof path, "%s/blank/%u", dir, i);
        if (!rc) rc = dir_make(path, e);
    }
    return rc;
}

int main(int argc, char **argv)
{
    struct error e;
    struct text out = {0};
    char path[4096];
    if (argc != 4) return fprintf(stderr, "usage: forge_videos DIR SAMPLES SEED\n"), 2;
    const uint32_t samples = (uint32_t)atoi(argv[2]);
    const uint64_t seed = (uint64_t)atoi(argv[3]);
    int rc = make_folders(argv[1], samples, &e);
    for (uint32_t i = 0; i < samples && !rc; i++) {
        const uint64_t key = seed * 1000003 + i;
        uint64_t at = 0;
        const bool lighter = draw(key, &at, 2);
        rc = write_video(argv[1], i, lighter, key, &e);
        text_printf(&out, "%s\n{", i ? "," : "[");
        if (i % 3 == 0) text_printf(&out, "\"image\": \"%u.png\", ", i);
        text_printf(&out,
                    "\"video\": \"%u\", \"conversations\": [{\"from\": \"human\", \"value\": "
                    "\"<video>\\n%slighter?\"}, {\"from\": \"gpt\", \"value\": \"%s\"}]}",
                    i, i % 3 ? "" : "<image>\\n", lighter ? "y" : "n");
    }
    if (!rc) text_printf(&out, "]\n");
    snprintf(path, sizeof path, "%s/chats.json", argv[1]);
    if (!rc) rc = file_write_atomic(path, out.at, out.n, &e);
    if (rc) fprintf(stderr, "forge_videos: %s\n", e.text);
    text_free(&out);
    return rc;
}
