/*
 * fuzz_chat_images.c: any text with images: its contents as parts, and as tokens in each layout.
 * The ranges of the expanded text are ascending and hold no image; each image has its tokens, and
 * image tokens are nowhere else. A text with <video>, or with the token of a video, has more places
 * than images if one of them is a video, and may be refused.
 *
 *     byte 0     its low bits the layout; 64: images are in tiles; 128: every other one is a video
 *     byte 1     n: the ranges of the data; 2 n bytes: the gap before each, and its length
 *     the rest   the text
 */

#include "text/template/chat.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_ranges(const struct byte_range *at, uint32_t n, const struct range_list *spans, size_t size)
{
    uint32_t k = 0;
    for (uint32_t i = 0; i < n; i++) {
        CHECK(at[i].begin < at[i].end && at[i].end <= size && (!i || at[i - 1].end <= at[i].begin), "range %u", i);
        while (k < spans->n && spans->at[k].end <= at[i].begin) k++;
        CHECK(k == spans->n || at[i].end <= spans->at[k].begin, "range %u holds an image", i);
    }
}

static bool is_image(const struct image_text *x, int32_t id)
{
    return x->layout == IMAGE_AS_ANYRES ? anyres_is_token(&x->anyres, id) : id == x->token;
}

static void check_tokens(const struct image_text *x, const struct token_list *l, const struct range_list *images,
                         uint32_t slots)
{
    uint32_t all = 0, at = 0, inside = 0;
    for (uint32_t i = 0; i < l->n; i++) all += is_image(x, l->at[i].id);
    for (uint32_t i = 0; i < images->n; i++) {
        CHECK(images->at[i].begin >= at && images->at[i].begin < images->at[i].end && images->at[i].end <= l->n,
              "image %u", i);
        for (at = images->at[i].begin; at < images->at[i].end; at++) inside += is_image(x, l->at[at].id);
    }
    CHECK(all == inside && all == slots, "%u image tokens, %u of them in images, for %u", all, inside, slots);
}

/* Contents as parts: as many images as there are in the text. */
static void check_parts(const char *text)
{
    struct bump b = {0};
    const struct text_images parts = {
        .how = &(struct image_text){.parts = true, .before = strlen(text) % 2, .after = strlen(text) % 3}};
    struct value *messages = value_new(&b, VALUE_LIST), *m = value_new(&b, VALUE_MAP);
    uint32_t images = 0;
    value_put(&b, m, "content", value_string(&b, text));
    value_append(&b, messages, m);
    const struct value *list = value_get(image_text_messages(&parts, messages, &b)->items[0], "content");
    for (uint32_t i = 0; i < list->count; i++) images += !strcmp(value_get(list->items[i], "type")->text, "image");
    CHECK(images == image_text_count(text) && list->count, "%u images of %u", images, image_text_count(text));
    bump_free(&b);
}

static void check_text(const struct tokenizer *t, const struct image_text *x, struct rendered *r, bool tiled,
                       bool videos, uint32_t n)
{
    static const uint32_t seconds[] = {0, 61};
    struct image_tiles *tiles = mem_alloc((n + 1) * sizeof *tiles);
    struct range_list spans = {0}, images = {0};
    struct token_list l = {0};
    struct error e = {0};
    uint32_t slots = 0;
    for (uint32_t i = 0; i < n; i++) {
        tiles[i] = tiled ? (struct image_tiles){.rows = i % 3, .columns = i % 3 ? 2 : 0} : (struct image_tiles){0};
        if (videos && i % 2)
            tiles[i] = (struct image_tiles){.frames = 2, .seconds = seconds, .duration = 90000};
        if (x->layout == IMAGE_AS_ANYRES) tiles[i].shape = anyres_shape_of(&x->anyres, 1 + 5 * i % 17, 1 + 3 * i % 17);
        const bool several = x->anyres.pooled && n - (videos ? n / 2 : 0) > 1;
        const struct anyres_shape whole = {0}, video = {.frames = (int32_t)tiles[i].frames},
                                  shape = tiles[i].frames ? video : several ? whole : tiles[i].shape;
        slots += x->layout == IMAGE_AS_ANYRES    ? (uint32_t)anyres_tokens(&x->anyres, shape)
                 : tiles[i].frames               ? tiles[i].frames * x->frame_features
                 : image_is_tiled(x->layout)     ? (tiles[i].rows * tiles[i].columns + 1) * x->features
                                                 : x->features;
    }
    const struct text_images all = {x, tiles, n};
    const char *place = x->video_content ? x->video_content : VIDEO_PLACEHOLDER;
    const bool video = videos && memmem(r->text.at, r->text.n, place, strlen(place));
    const int rc = image_text_expand(&all, r, &spans, &e);
    CHECK(rc ? video && e.code == PL_USAGE && e.text[0] : spans.n == n, "%s", e.text);
    if (!rc) check_ranges(r->data.at, r->data.n, &spans, r->text.n);
    if (rc) CHECK(!spans.n, "images of a text that was refused");
    else if (!image_text_encode(&all, t, r, &spans, &l, &images, &e)) check_tokens(x, &l, &images, slots);
    else CHECK(e.code == PL_USAGE && e.text[0], "a failure without a message");
    vec_free(&spans), vec_free(&images);
    token_list_free(&l);
    mem_free(tiles);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct tokenizer *tokenizer;
    struct error e = {0};
    if (!tokenizer) CHECK(!tokenizer_open(&tokenizer, "tests/golden/llava_text/llava", &e), "%s", e.text);
    if (size < 2 || size > 1 << 16) return 0;
    const size_t head = 2 + 2 * (size_t)data[1];
    if (size < head) return 0;
    static const enum image_layout layouts[] = {IMAGE_AS_TOKENS, IMAGE_AS_TILES, IMAGE_AS_PIECES, IMAGE_AS_CROPS,
                                                IMAGE_AS_ANYRES, IMAGE_AS_ANYRES};
    enum { ONEVISION = 5 };
    const int which = (data[0] & 63) % COUNT(layouts);
    struct image_text x = {.layout = layouts[which], .token = tokenizer_id(tokenizer, IMAGE_PLACEHOLDER), .features = 3,
                           .frame_features = 3, .content = IMAGE_PLACEHOLDER};
    const bool videos =
        data[0] & 128 && (x.layout == IMAGE_AS_TILES || x.layout == IMAGE_AS_CROPS || which == ONEVISION);
    x.timed = videos && x.layout == IMAGE_AS_TILES;
    x.anyres = (struct anyres){.tile = 4, .side = 2, .token = x.token, .n = 3, .sizes = {{4, 8}, {8, 4}, {8, 8}}};
    if (which == ONEVISION) {
        x.anyres.most = x.anyres.pooled = 1;
        x.anyres.video = x.video = 2, x.video_content = "</s>";
    }
    if (x.layout == IMAGE_AS_PIECES) x.token = -200;
    struct rendered r = {0};
    text_append(&r.text, (const char *)data + head, size - head);
    text_append(&r.text, "", 0);
    uint32_t at = 0;
    for (uint32_t i = 0; i < data[1]; i++) {
        const uint32_t begin = at + data[2 + 2 * i], end = begin + data[3 + 2 * i];
        if (begin < end && end <= r.text.n) vec_push(&r.data, ((struct byte_range){begin, end}));
        at = end;
    }
    uint32_t n = 0;
    for (const char *s = r.text.at, *stop = s + r.text.n;
         s < stop && (s = memmem(s, (size_t)(stop - s), IMAGE_PLACEHOLDER, strlen(IMAGE_PLACEHOLDER)));
         s += strlen(IMAGE_PLACEHOLDER))
        n++;
    check_parts(r.text.at);
    check_text(tokenizer, &x, &r, data[0] & 64, videos, n);
    rendered_free(&r);
    return 0;
}
