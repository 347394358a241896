/*
 * forge_shapes.c: images of eight shapes, with masks and texts that describe them, for models that
 * match both.
 *
 *   forge_shapes DIR FIRST COUNT SEED [text-blind | image-blind]
 *   forge_shapes DIR FIRST COUNT SEED patches
 *
 * Writes DIR/N.png for N from FIRST on, DIR/masks.json in COCO's format and DIR/queries.csv with a
 * query for each shape. An image has each of four colours twice, as a circle and as a square, on
 * eight of the nine fields of a grid: "red circle". text-blind: all texts are "shape". image-blind:
 * all images are grey.
 *
 * patches: DIR/N.png of 64 x 64 grey pixels, with one of 8 x 8 patches in a colour, and
 * DIR/chats.json that asks for it: "what?", and the first letter of the colour.
 */
#include <math.h>

#include "base/random.h"
#include "io/file.h"
#include "io/png.h"

enum { SIDE = 64, FIELD = 21, SHAPES = 8, CORNERS = 16 };

static const char *const colours[] = {"red", "green", "blue", "yellow"}, *const kinds[] = {"circle", "square"};
static const uint8_t rgb[4][3] = {{220, 40, 40}, {40, 190, 60}, {50, 70, 220}, {230, 210, 40}};

struct shape {
    int x, y, radius, colour, kind; /* centre */
};

static bool covers(const struct shape *s, int x, int y)
{
    const int dx = abs(x - s->x), dy = abs(y - s->y);
    return s->kind ? dx <= s->radius && dy <= s->radius : dx * dx + dy * dy <= s->radius * s->radius;
}

/* Eight shapes on the fields of a permutation. */
static void place(struct shape *shapes, uint64_t key)
{
    int field[9];
    for (int i = 0; i < 9; i++) field[i] = i;
    for (int i = 8; i > 0; i--) {
        const int k = (int)(random_bits(key, (uint64_t)i) % (uint64_t)(i + 1)), keep = field[i];
        field[i] = field[k];
        field[k] = keep;
    }
    for (int i = 0; i < SHAPES; i++) {
        const uint64_t r = random_bits(key, 100 + (uint64_t)i);
        shapes[i] =
            (struct shape){field[i] % 3 * FIELD + FIELD / 2 + (int)(r % 3) - 1,
                           field[i] / 3 * FIELD + FIELD / 2 + (int)(r / 3 % 3) - 1, 7 + (int)(r / 9 % 2), i % 4, i / 4};
    }
}

static int draw(const struct shape *shapes, bool blind, const char *path, struct error *e)
{
    static uint8_t pixels[SIDE][SIDE][3];
    memset(pixels, 128, sizeof pixels);
    for (int i = 0; i < SHAPES && !blind; i++)
        for (int y = 0; y < SIDE; y++)
            for (int x = 0; x < SIDE; x++)
                if (covers(&shapes[i], x, y)) memcpy(pixels[y][x], rgb[shapes[i].colour], 3);
    return png_write(path, PNG_RGB, SIDE, SIDE, pixels, 0, e);
}

static void print_mask(const struct shape *s, uint64_t image, uint64_t id, struct text *out)
{
    text_printf(out,
                "%s{\"id\":%llu,\"image_id\":%llu,\"category_id\":1,\"iscrowd\":0,\"area\":%d,\"bbox\":[%d,%d,%d,%d],"
                "\"segmentation\":[[",
                id ? "," : "", (unsigned long long)id, (unsigned long long)image, 4 * s->radius * s->radius,
                s->x - s->radius, s->y - s->radius, 2 * s->radius, 2 * s->radius);
    const int corners = s->kind ? 4 : CORNERS;
    for (int i = 0; i < corners; i++) {
        const double angle = 6.283185307179586 * (i + 0.5) / corners,
                     reach = s->kind ? s->radius * 1.4142135623730951 : s->radius;
        text_printf(out, "%s%.2f,%.2f", i ? "," : "", s->x + 0.5 + reach * cos(angle), s->y + 0.5 + reach * sin(angle));
    }
    text_printf(out, "]]}");
}

/* --- a patch of an image ---------------------------------------------------------------------- */

static int draw_patch(uint64_t key, int colour, const char *path, struct error *e)
{
    enum { PATCH = 8, ALONG = SIDE / PATCH };
    uint8_t pixels[SIDE][SIDE][3];
    const int at = (int)(random_bits(key, 1) % (ALONG * ALONG)), x0 = at % ALONG * PATCH, y0 = at / ALONG * PATCH;
    memset(pixels, 128, sizeof pixels);
    for (int i = 0; i < PATCH * PATCH; i++) memcpy(pixels[y0 + i / PATCH][x0 + i % PATCH], rgb[colour], 3);
    return png_write(path, PNG_RGB, SIDE, SIDE, pixels, 0, e);
}

static int forge_patches(const char *dir, uint64_t first, uint64_t count, uint64_t seed, struct error *e)
{
    struct text chats = {0};
    char path[4096];
    int rc = PL_OK;
    for (uint64_t n = first; n < first + count && !rc; n++) {
        const uint64_t key = random_bits(seed, n);
        const int colour = (int)(random_bits(key, 0) % 4);
        snprintf(path, sizeof path, "%s/%llu.png", dir, (unsigned long long)n);
        rc = draw_patch(key, colour, path, e);
        text_printf(&chats,
                    "%s{\"image\": \"%llu.png\", \"conversations\": [{\"from\": \"human\", \"value\": "
                    "\"<image>what?\"}, {\"from\": \"gpt\", \"value\": \"%c\"}]}",
                    n > first ? ",\n" : "[", (unsigned long long)n, colours[colour][0]);
    }
    text_printf(&chats, "]\n");
    snprintf(path, sizeof path, "%s/chats.json", dir);
    if (!rc) rc = file_write_atomic(path, chats.at, chats.n, e);
    text_free(&chats);
    return rc;
}

int main(int argc, char **argv)
{
    if (argc < 5)
        return fprintf(stderr, "usage: forge_shapes DIR FIRST COUNT SEED [text-blind | image-blind | patches]\n"), 2;
    const uint64_t first = strtoull(argv[2], NULL, 10), count = strtoull(argv[3], NULL, 10),
                   key = random_key(strtoull(argv[4], NULL, 10), "shapes");
    const char *how = argc > 5 ? argv[5] : "";
    struct text masks = {0}, images = {0}, queries = {0};
    struct error e;
    char path[4096];
    int rc = PL_OK;
    if (!strcmp(how, "patches")) {
        rc = forge_patches(argv[1], first, count, key, &e);
        return rc ? fprintf(stderr, "forge_shapes: %s\n", e.text), 1 : 0;
    }
    text_printf(&queries, "image,query,mask_id\n");
    for (uint64_t n = 0; n < count && !rc; n++) {
        struct shape shapes[SHAPES];
        place(shapes, random_bits(key, first + n));
        text_printf(&images, "%s{\"id\":%llu,\"file_name\":\"%llu.png\",\"width\":%d,\"height\":%d}", n ? "," : "",
                    (unsigned long long)(first + n), (unsigned long long)(first + n), SIDE, SIDE);
        for (int i = 0; i < SHAPES; i++) {
            const struct shape *s = &shapes[i];
            print_mask(s, first + n, n * SHAPES + (uint64_t)i, &masks);
            if (!strcmp(how, "text-blind"))
                text_printf(&queries, "%llu,shape,%llu\n", (unsigned long long)(first + n),
                            (unsigned long long)(n * SHAPES + (uint64_t)i));
            else
                text_printf(&queries, "%llu.png,%s %s,%llu\n", (unsigned long long)(first + n), colours[s->colour],
                            kinds[s->kind], (unsigned long long)(n * SHAPES + (uint64_t)i));
        }
        snprintf(path, sizeof path, "%s/%llu.png", argv[1], (unsigned long long)(first + n));
        rc = draw(shapes, !strcmp(how, "image-blind"), path, &e);
    }
    struct text all = {0};
    text_printf(&all, "{\"images\":[%s],\"annotations\":[%s],\"categories\":[{\"id\":1,\"name\":\"shape\"}]}\n",
                images.at, masks.at);
    snprintf(path, sizeof path, "%s/masks.json", argv[1]);
    if (!rc) rc = file_write_atomic(path, all.at, all.n, &e);
    snprintf(path, sizeof path, "%s/queries.csv", argv[1]);
    if (!rc) rc = file_write_atomic(path, queries.at, queries.n, &e);
    if (rc) fprintf(stderr, "forge_shapes: %s\n", e.text);
    text_free(&all), text_free(&images), text_free(&masks), text_free(&queries);
    return rc;
}
