/*
 * bench_image.c: one core's time from a JPEG in memory to a letterboxed image of 1024, and the
 * times of decoding and resizing. The image is textured so that its file is as large as a
 * photograph of that size (about 1 MB at 2250x1500, quality 95).
 */
#include <time.h>

#include "data/images/jpeg.h"
#include "data/images/resize.h"

enum { W = 2250, H = 1500, SIDE = 1024, PASSES = 9 };

static void texture(uint8_t *rgb)
{
    uint32_t state = 12345;
    for (int y = 0; y < H; y++)
        for (int x = 0; x < W; x++)
            for (int c = 0; c < 3; c++) {
                state = state * 1664525 + 1013904223;
                int grain = (int)(state >> 28) - 8, block = (x / 37 * 31 + y / 41 * 17 + c * 50) % 160;
                rgb[((size_t)y * W + x) * 3 + c] = (uint8_t)(48 + block + grain);
            }
}

/* CPU time of this thread, so that other programs on the machine do not count. */
static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Seconds for one image; it is resized if `to` is given. */
static double once(struct jpg *j, const struct text *file, uint32_t divisor, uint8_t *to, uint8_t *scratch, size_t room,
                   uint8_t *rows)
{
    struct error e;
    struct resize r;
    double from = cpu_seconds();
    struct resize_view v = {.to = to, .stride = SIDE * 3};
    CHECK(!jpg_start(j, file->at, file->n, divisor, &v.width, &v.height, &e), "%s", e.text);
    resize_longest(v.width, v.height, SIDE, &v.to_width, &v.to_height);
    if (to) resize_begin(&r, &v, scratch, room);
    for (uint32_t y = 0; y < v.height;) {
        uint32_t n = v.height - y < 8 ? v.height - y : 8;
        CHECK(!jpg_rows(j, rows, (size_t)v.width * 3, n, &e), "%s", e.text);
        for (uint32_t k = 0; k < n && to; k++) resize_row(&r, rows + (size_t)k * v.width * 3);
        y += n;
    }
    CHECK(!jpg_finish(j, &e), "%s", e.text);
    return cpu_seconds() - from;
}

static double best(struct jpg *j, const struct text *file, uint32_t divisor, uint8_t *to)
{
    size_t room = resize_scratch_most(W, SIDE);
    uint8_t *scratch = mem_alloc(room), *rows = mem_alloc(8 * W * 3);
    double least = 1e9;
    for (int pass = 0; pass < PASSES; pass++) {
        double t = once(j, file, divisor, to, scratch, room, rows);
        if (t < least) least = t;
    }
    mem_free(scratch);
    mem_free(rows);
    return least;
}

int main(void)
{
    struct text file = {0};
    struct error e;
    uint8_t *rgb = mem_alloc((size_t)W * H * 3), *to = mem_alloc((size_t)SIDE * SIDE * 3);
    texture(rgb);
    CHECK(!jpg_encode(&file, W, H, rgb, 0, 95, &e), "%s", e.text);
    struct jpg *j = jpg_new(NULL);
    printf("image: a JPEG of %dx%d, %.2f MB, to %d; best of %d, one core\n", W, H, file.n / 1e6, SIDE, PASSES);
    for (uint32_t divisor = 1; divisor <= 2; divisor++) {
        double decode = best(j, &file, divisor, NULL), all = best(j, &file, divisor, to);
        printf("  %s decode %6.2f ms   resize %5.2f ms   together %6.2f ms = %5.1f images/s\n",
               divisor == 1 ? "full" : "half", decode * 1e3, (all - decode) * 1e3, all * 1e3, 1 / all);
    }
    jpg_free(j);
    text_free(&file);
    mem_free(rgb);
    mem_free(to);
    return 0;
}
