/*
 * labels.c: compares label images with those of all frames in one image, one below the other:
 *
 *     labels EXPECTED FRAME...      prints how many pixels differ; those of value 255 are left out
 *
 * For tests/run_sam2_video.sh and tests/golden/make_track_sam2.py.
 */
#include "io/png.h"

int main(int argc, char **argv)
{
    struct error e;
    struct png_pixels all, one;
    uint64_t different = 0, left_out = 0;
    if (argc < 3) return fprintf(stderr, "usage: labels EXPECTED FRAME...\n"), 2;
    if (png_read(argv[1], PNG_AS_STORED, 0, NULL, 0, &all, &e)) return fprintf(stderr, "%s\n", e.text), 1;
    const uint32_t frames = (uint32_t)argc - 2, h = all.height / frames;
    for (uint32_t f = 0; f < frames; f++) {
        if (png_read(argv[2 + f], PNG_AS_STORED, 0, NULL, 0, &one, &e)) return fprintf(stderr, "%s\n", e.text), 1;
        if (one.width != all.width || one.height != h || one.channels != 1 || one.depth != 8)
            return fprintf(stderr, "%s has another size or depth\n", argv[2 + f]), 1;
        const uint8_t *a = (const uint8_t *)all.at + (size_t)f * h * all.width, *b = one.at;
        uint64_t here = 0;
        for (size_t i = 0; i < (size_t)h * all.width; i++) left_out += a[i] == 255, here += a[i] != 255 && a[i] != b[i];
        if (here) printf("%s: %llu\n", argv[2 + f], (unsigned long long)here);
        different += here;
        mem_free(one.at);
    }
    printf("%llu of %u pixels differ, %llu are left out\n", (unsigned long long)different, all.width * all.height,
           (unsigned long long)left_out);
    mem_free(all.at);
    return different != 0;
}
