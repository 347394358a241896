/*
 * forge_questions.c: writes a table of images, masks, questions and answers for test scripts, as
 * PRS-Med has them:
 *
 *     forge_questions DIR TRAIN TEST SEED
 *
 *     DIR/annotations/shapes.csv                   image_path,image_name,question,answer,position,split
 *     DIR/images_and_masks/shapes/train_images/I.png    two shapes of two colours on a dark ground, one in each half
 *     DIR/images_and_masks/shapes/train_masks/I.png     the one that the question asks for
 *     DIR/blank/shapes/train_images/I.png          the same names: nothing but the ground; its masks are those above
 *     DIR/tokenizer/                               a token a byte, <image> 256, </s> 257
 *
 * Every other image to train on has only the shape that is asked for: colours are learned before
 * halves. Questions ask for the shape at the top or at the bottom, and the answer is its
 * colour. DIR/mute.csv has the same rows with a question that says neither.
 */

#include "base/random.h"
#include "io/file.h"
#include "io/png.h"

enum { SIDE = 64, HALF = SIDE / 2 };

static uint32_t draw(uint64_t key, uint64_t *at, uint32_t n) { return (uint32_t)(random_bits(key, (*at)++) % n); }

struct shape {
    uint32_t x, y, r, colour;
    bool round, hidden;
};
static const char *const colours[] = {"red", "green", "blue"};

static bool covers(const struct shape *s, uint32_t x, uint32_t y)
{
    if (s->hidden) return false;
    const int64_t dx = (int64_t)x - s->x, dy = (int64_t)y - s->y, r = s->r;
    return s->round ? dx * dx + dy * dy <= r * r : llabs(dx) <= r && llabs(dy) <= r;
}

static void draw_images(const struct shape s[2], uint32_t wanted, uint8_t *rgb, uint8_t *mask)
{
    for (uint32_t y = 0; y < SIDE; y++)
        for (uint32_t x = 0; x < SIDE; x++) {
            uint8_t *p = rgb + (y * SIDE + x) * 3;
            memset(p, 40, 3);
            for (int k = 0; k < 2; k++)
                if (covers(&s[k], x, y)) p[s[k].colour] = 230;
            mask[y * SIDE + x] = covers(&s[wanted], x, y) ? 255 : 0;
        }
}

static int write_png(const char *dir, const char *folder, const char *part, const char *what, uint32_t i,
                     enum png_kind kind, const uint8_t *pixels, struct error *e)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s/shapes/%s_%s", dir, folder, part, what);
    if (dir_make(path, e)) return e->code;
    snprintf(path + strlen(path), sizeof path - strlen(path), "/%u.png", i);
    return png_write(path, kind, SIDE, SIDE, pixels, 0, e);
}

static int write_sample(const char *dir, const char *part, uint32_t i, bool alone, uint64_t key, struct text *table,
                        struct text *mute, struct error *e)
{
    static uint8_t rgb[SIDE * SIDE * 3], mask[SIDE * SIDE];
    uint64_t at = 1;
    struct shape s[2];
    for (uint32_t k = 0; k < 2; k++) {
        const uint32_t r = 7 + draw(key, &at, 5);
        s[k] = (struct shape){.r = r, .y = k * HALF + r + 1 + draw(key, &at, HALF - 2 - 2 * r),
                              .x = r + 1 + draw(key, &at, SIDE - 2 - 2 * r),
                              .colour = k ? (s[0].colour + 1 + draw(key, &at, 2)) % 3 : draw(key, &at, 3),
                              .round = draw(key, &at, 2)};
    }
    const uint32_t wanted = draw(key, &at, 2);
    const char *side = wanted ? "bottom" : "top";
    s[!wanted].hidden = alone;
    draw_images(s, wanted, rgb, mask);
    int rc = write_png(dir, "images_and_masks", part, "images", i, PNG_RGB, rgb, e);
    if (!rc) rc = write_png(dir, "images_and_masks", part, "masks", i, PNG_GREY, mask, e);
    if (!rc) rc = write_png(dir, "blank", part, "masks", i, PNG_GREY, mask, e);
    memset(rgb, 40, sizeof rgb);
    if (!rc) rc = write_png(dir, "blank", part, "images", i, PNG_RGB, rgb, e);
    text_printf(table, "shapes/%s_images/%u.png,%u.png,%s?,%s,%s,%s\n", part, i, i, side, colours[s[wanted].colour],
                side, part);
    text_printf(mute, "shapes/%s_images/%u.png,%u.png,which?,%s,%s,%s\n", part, i, i, colours[s[wanted].colour], side,
                part);
    return rc;
}

/* The byte-level alphabet: printable bytes are themselves, the others are characters from
 * U+0100 on. */
static void print_vocabulary(struct text *out)
{
    uint32_t other = 256;
    for (uint32_t b = 0; b < 256; b++) {
        const bool same = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        text_printf(out, "%s\"\\u%04x\": %u", b ? ", " : "", same ? b : other++, b);
    }
}

static int write_tokenizer(const char *dir, struct error *e)
{
    struct text out = {0};
    char path[4096];
    text_printf(&out,
                "{\"version\": \"1.0\", \"added_tokens\": [{\"id\": 256, \"content\": \"<image>\", \"special\": true, "
                "\"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false}, "
                "{\"id\": 257, \"content\": \"</s>\", \"special\": true, \"single_word\": false, \"lstrip\": false, "
                "\"rstrip\": false, \"normalized\": false}], "
                "\"normalizer\": null, \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
                "\"trim_offsets\": true, \"use_regex\": true}, \"post_processor\": null, "
                "\"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": true, "
                "\"use_regex\": true}, "
                "\"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, \"continuing_subword_prefix\": "
                "null, \"end_of_word_suffix\": null, \"fuse_unk\": false, \"vocab\": {");
    print_vocabulary(&out);
    text_printf(&out, "}, \"merges\": []}}\n");
    snprintf(path, sizeof path, "%s/tokenizer", dir);
    int rc = dir_make(path, e);
    snprintf(path, sizeof path, "%s/tokenizer/tokenizer.json", dir);
    if (!rc) rc = file_write_atomic(path, out.at, out.n, e);
    snprintf(path, sizeof path, "%s/tokenizer/tokenizer_config.json", dir);
    static const char config[] = "{\"eos_token\": \"</s>\", \"pad_token\": \"</s>\"}\n";
    if (!rc) rc = file_write_atomic(path, config, sizeof config - 1, e);
    text_free(&out);
    return rc;
}

int main(int argc, char **argv)
{
    struct error e = {0};
    struct text table = {0}, mute = {0};
    char path[4096];
    if (argc < 5) return 2;
    const uint32_t train = (uint32_t)atoi(argv[2]), test = (uint32_t)atoi(argv[3]);
    const uint64_t seed = (uint64_t)atoll(argv[4]);
    text_printf(&table, "image_path,image_name,question,answer,position,split\n");
    text_printf(&mute, "%s", table.at);
    int rc = write_tokenizer(argv[1], &e);
    for (uint32_t i = 0; i < train + test && !rc; i++)
        rc = write_sample(argv[1], i < train ? "train" : "test", i, i < train && i % 2,
                          random_key(seed, "questions") + i, &table, &mute, &e);
    snprintf(path, sizeof path, "%s/annotations", argv[1]);
    if (!rc) rc = dir_make(path, &e);
    snprintf(path, sizeof path, "%s/annotations/shapes.csv", argv[1]);
    if (!rc) rc = file_write_atomic(path, table.at, table.n, &e);
    snprintf(path, sizeof path, "%s/mute.csv", argv[1]);
    if (!rc) rc = file_write_atomic(path, mute.at, mute.n, &e);
    if (rc) fprintf(stderr, "forge_questions: %s\n", e.text);
    text_free(&table);
    text_free(&mute);
    return rc;
}
