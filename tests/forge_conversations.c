/*
 * forge_conversations.c: writes conversations with images for test scripts, in LLaVA's format:
 *
 *     forge_conversations DIR SAMPLES LEAST MOST SEED
 *
 *     DIR/chats.json          sample i has LEAST to MOST images: "how many?", and their bright cells as answer
 *     DIR/images/I_K.png      8 x 8 pixels: four cells of 4 x 4, each bright or dark, of any colour
 *     DIR/blank/I_K.png       the same names: all cells are grey
 */

#include "base/random.h"
#include "io/file.h"
#include "io/png.h"

enum { SIDE = 8, CELL = 4 };

static uint32_t draw(uint64_t key, uint64_t *at, uint32_t n) { return (uint32_t)(random_bits(key, (*at)++) % n); }

/* Returns the bright cells. */
static uint32_t draw_cells(uint64_t key, uint64_t *at, uint8_t rgb[SIDE * SIDE * 3])
{
    uint32_t bright = 0;
    for (uint32_t cell = 0; cell < 4; cell++) {
        const uint32_t on = draw(key, at, 2), y0 = cell / 2 * CELL, x0 = cell % 2 * CELL;
        bright += on;
        for (uint32_t c = 0; c < 3; c++) {
            const uint8_t value = (uint8_t)(on * 150 + draw(key, at, 100));
            for (uint32_t y = y0; y < y0 + CELL; y++)
                for (uint32_t x = x0; x < x0 + CELL; x++) rgb[(y * SIDE + x) * 3 + c] = value;
        }
    }
    return bright;
}

static int write_images(const char *dir, uint32_t i, uint32_t n, uint64_t key, struct text *list, uint32_t *bright,
                        struct error *e)
{
    uint8_t rgb[SIDE * SIDE * 3], grey[SIDE * SIDE * 3];
    uint64_t at = 1;
    int rc = PL_OK;
    memset(grey, 128, sizeof grey);
    for (uint32_t k = 0; k < n && !rc; k++) {
        char path[4096];
        *bright += draw_cells(key, &at, rgb);
        snprintf(path, sizeof path, "%s/images/%u_%u.png", dir, i, k);
        rc = png_write(path, PNG_RGB, SIDE, SIDE, rgb, 0, e);
        snprintf(path, sizeof path, "%s/blank/%u_%u.png", dir, i, k);
        if (!rc) rc = png_write(path, PNG_RGB, SIDE, SIDE, grey, 0, e);
        text_printf(list, "%s\"%u_%u.png\"", k ? ", " : "", i, k);
    }
    return rc;
}

static int write_sample(const char *dir, uint32_t i, uint32_t n, uint64_t key, struct text *out, struct error *e)
{
    struct text list = {0};
    uint32_t bright = 0;
    int rc = write_images(dir, i, n, key, &list, &bright, e);
    text_printf(out, "%s{\"id\": \"%u\", ", i ? ",\n" : "[", i);
    if (n) text_printf(out, "\"image\": [%s], ", list.at);
    text_printf(out, "\"conversations\": [{\"from\": \"human\", \"value\": \"");
    for (uint32_t k = 0; k < n; k++) text_printf(out, "<image>\\n");
    text_printf(out, "how many?\"}, {\"from\": \"gpt\", \"value\": \"%u\"}]}", bright);
    text_free(&list);
    return rc;
}

int main(int argc, char **argv)
{
    struct error e = {0};
    struct text json = {0};
    char path[4096];
    if (argc < 6) return 2;
    const uint32_t samples = (uint32_t)atoi(argv[2]), least = (uint32_t)atoi(argv[3]), most = (uint32_t)atoi(argv[4]);
    const uint64_t seed = (uint64_t)atoll(argv[5]);
    snprintf(path, sizeof path, "%s/images", argv[1]);
    int rc = dir_make(path, &e);
    snprintf(path, sizeof path, "%s/blank", argv[1]);
    if (!rc) rc = dir_make(path, &e);
    for (uint32_t i = 0; i < samples && !rc; i++)
        rc = write_sample(argv[1], i, least + i % (most - least + 1), random_bits(random_key(seed, "conversations"), i),
                          &json, &e);
    text_printf(&json, "]\n");
    snprintf(path, sizeof path, "%s/chats.json", argv[1]);
    if (!rc) rc = file_write_atomic(path, json.at, json.n, &e);
    if (rc) fprintf(stderr, "%s\n", e.text);
    text_free(&json);
    return rc;
}
