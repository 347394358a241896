/*
 * forge_png.c: writes a mask image for test scripts, a white area in the middle of black: forge_png
 * PATH [WIDTH HEIGHT].
 */

#include "io/png.h"

int main(int argc, char **argv)
{
    uint32_t w = argc > 3 ? (uint32_t)atoi(argv[2]) : 96, h = argc > 3 ? (uint32_t)atoi(argv[3]) : 80;
    struct error e;
    if (argc < 2) return 2;
    uint8_t *pixels = mem_alloc((size_t)w * h);
    for (uint32_t y = h / 4; y < h - h / 4; y++)
        for (uint32_t x = w / 4; x < w - w / 4; x++) pixels[(size_t)y * w + x] = 255;
    int rc = png_write(argv[1], PNG_GREY, w, h, pixels, 0, &e);
    if (rc) fprintf(stderr, "%s\n", e.text);
    mem_free(pixels);
    return rc;
}
