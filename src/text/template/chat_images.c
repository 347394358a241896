/*
 * chat_images.c: see chat_images.h.
 */
#include "text/template/chat_images.h"

#include "text/template/chat.h"

/* --- the text of images and videos of Qwen-VL ------------------------------------------------ */

static void repeat(const char *token, uint64_t n, struct text *out)
{
    const size_t bytes = strlen(token);
    for (uint64_t i = 0; i < n; i++) text_append(out, token, bytes);
}

void vision_text_put(const struct vision_text *v, struct text *out)
{
    if (!v->seconds) {
        repeat(v->token, vision_text_features(v), out);
        return;
    }
    for (uint32_t i = 0; i < v->grids; i++) {
        text_printf(out, "<%.1f seconds>%s", v->seconds[i], v->start);
        repeat(v->token, v->tokens, out);
        text_printf(out, "%s", v->end);
    }
}

uint64_t vision_text_features(const struct vision_text *v) { return v->grids * v->tokens; }

/* ---- the description of a video ---- */

static void below_hundred(uint32_t n, struct text *out)
{
    static const char *const small[] = {"zero",    "one",     "two",       "three",    "four",
                                        "five",    "six",     "seven",     "eight",    "nine",
                                        "ten",     "eleven",  "twelve",    "thirteen", "fourteen",
                                        "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"};
    static const char *const tens[] = {"",      "",      "twenty",  "thirty", "forty",
                                       "fifty", "sixty", "seventy", "eighty", "ninety"};
    if (n < COUNT(small)) text_printf(out, "%s", small[n]);
    else text_printf(out, "%s%s%s", tens[n / 10], n % 10 ? "-" : "", n % 10 ? small[n % 10] : "");
}

/* Writes the largest unit, then the rest: after "and" below a hundred, else after a comma. */
void number_words(uint32_t n, struct text *out)
{
    static const struct {
        uint32_t of;
        const char *name;
    } units[] = {{1000000000, "billion"}, {1000000, "million"}, {1000, "thousand"}, {100, "hundred"}};
    for (size_t i = 0; i < COUNT(units); i++) {
        if (n < units[i].of) continue;
        const uint32_t rest = n % units[i].of;
        number_words(n / units[i].of, out);
        text_printf(out, " %s%s", units[i].name, !rest ? "" : rest < 100 ? " and " : ", ");
        if (rest) number_words(rest, out);
        return;
    }
    below_hundred(n, out);
}

/* Writes a duration as Python writes a timedelta: hours without leading zeros, days before them. */
static void put_duration(uint32_t seconds, struct text *out)
{
    const uint32_t days = seconds / 86400, rest = seconds % 86400;
    if (days) text_printf(out, "%u day%s, ", days, days == 1 ? "" : "s");
    text_printf(out, "%u:%02u:%02u", rest / 3600, rest / 60 % 60, rest % 60);
}

/* The description of a video for SmolVLM: how many frames it has and how long it is, then each
 * frame with its time.
 *
 *     You are provided the following series of two frames from a 0:00:07 [H:MM:SS] video.
 *
 *     Frame from 00:00:<before><image><after>
 *     Frame from 00:03:<before><image><after> */
struct video_words {
    const uint32_t *seconds; /* [frames] */
    uint32_t frames, duration;
    const char *image, *before, *after; /* a frame's text */
};

static void video_text(const struct video_words *v, struct text *out)
{
    text_printf(out, "You are provided the following series of ");
    number_words(v->frames, out);
    text_printf(out, " frames from a ");
    put_duration(v->duration, out);
    text_printf(out, " [H:MM:SS] video.\n");
    for (uint32_t i = 0; i < v->frames; i++)
        text_printf(out, "\nFrame from %02u:%02u:%s%s%s", v->seconds[i] / 60, v->seconds[i] % 60, v->before, v->image,
                    v->after);
    text_printf(out, "\n\n");
}

#define AROUND "<fake_token_around_image>"
#define WHOLE "<global-img>"
#define VISION_START "<|vision_start|>"
#define VISION_END "<|vision_end|>"

/* --- opening ---------------------------------------------------------------------------------- */

static int lacks_token(const struct image_text *x, const struct tokenizer *t, struct error *e)
{
    const int32_t id = tokenizer_id(t, IMAGE_PLACEHOLDER);
    if (id >= 0)
        return error_set(e, PL_USAGE,
                         "the tokenizer's " IMAGE_PLACEHOLDER
                         " has the id %d, and the model's image token (image_token_index or image_token_id in "
                         "config.json) is %d: use the model's own tokenizer, or set the id in config.json",
                         id, x->token);
    return error_set(
        e, PL_USAGE,
        "the tokenizer lacks the image token: config.json has its id, %d (image_token_index or image_token_id). Use "
        "the model's own tokenizer, or add the token in Python: tokenizer.add_tokens(AddedToken(\"" IMAGE_PLACEHOLDER
        "\", special=True)), then set its id in config.json",
        x->token);
}

/* Finds the text of the image token, for which the tokenizer must give that token, and nothing
 * else. */
static int find_token(struct image_text *x, const struct tokenizer *t, struct error *e)
{
    const int32_t id = tokenizer_id(t, IMAGE_PLACEHOLDER);
    struct token_list l = {0};
    struct error ignored;
    x->content = x->token >= 0 && x->token < tokenizer_size(t) ? tokenizer_piece(t, x->token) : NULL;
    if (!x->content || (id >= 0 && id != x->token)) return lacks_token(x, t, e);
    const bool one = !tokenizer_encode(t, x->content, strlen(x->content), NULL, 0, false, &l, &ignored) && l.n == 1 &&
                     l.at[0].id == x->token && (id >= 0 || tokenizer_is_special(t, x->token));
    token_list_free(&l);
    return one ? PL_OK : lacks_token(x, t, e);
}

/* Renders a message of the parts of `content`; whether image and text are written once each, and
 * what stands between them. */
static bool probe(const struct image_text *x, const struct tokenizer *t, const struct template *template,
                  const char *content, bool *apart)
{
    static const char text[] = "word";
    struct bump b = {0};
    struct rendered r = {0};
    struct error ignored;
    struct value *messages = value_new(&b, VALUE_LIST), *m = value_new(&b, VALUE_MAP);
    value_put(&b, m, "role", value_string(&b, "user"));
    value_put(&b, m, "content", value_string(&b, content));
    value_append(&b, messages, m);
    const struct text_images as_parts = {.how = &(struct image_text){.parts = true}};
    const bool rendered =
        !chat_render(t, template, image_text_messages(&as_parts, messages, &b), NULL, false, &r, &ignored) && r.text.n;
    const char *place = x->place ? x->place : x->content, *image = rendered ? strstr(r.text.at, place) : NULL,
               *word = rendered ? strstr(r.text.at, text) : NULL;
    const bool first = content[0] == text[0], written = image && word && !strstr(image + 1, place);
    if (written && (word < image) == first) *apart = first ? image[-1] == '\n' : image[strlen(place)] == '\n';
    else *apart = true; /* the template moves the image */
    rendered_free(&r);
    bump_free(&b);
    return written;
}

int image_text_open(struct image_text *x, const struct tokenizer *t, const struct template *template, struct error *e)
{
    x->content = IMAGE_PLACEHOLDER;
    x->bos = tokenizer_special(t, "bos_token");
    if (x->bos_behind && !(x->bos && *x->bos))
        return error_set(e, PL_USAGE, "BOS stands behind the images of this model, and the tokenizer has no bos_token: "
                                      "use the model's own tokenizer");
    if (x->layout != IMAGE_AS_PIECES && find_token(x, t, e)) return e->code;
    if (x->video >= 0 && x->video < tokenizer_size(t)) x->video_content = tokenizer_piece(t, x->video);
    for (int i = 0; i < 2 && x->around[i] && !x->place; i++)
        if (tokenizer_id(t, x->around[i]) < 0)
            return error_set(e, PL_USAGE, "the model's images stand between %s and %s%s, and the tokenizer lacks %s: "
                                          "use the model's own tokenizer", x->around[0], x->around[1],
                             x->layout == IMAGE_AS_PIECES ? " (mm_use_im_start_end in config.json)" : "",
                             x->around[i]);
    x->parts = template && probe(x, t, template, IMAGE_PLACEHOLDER "word", &x->after) &&
               probe(x, t, template, "word" IMAGE_PLACEHOLDER, &x->before);
    return PL_OK;
}

int32_t image_text_id(const struct image_text *x, int32_t id)
{
    return x->layout == IMAGE_AS_ANYRES ? anyres_placeholder(&x->anyres, id) : id;
}

uint64_t image_text_fingerprint(const struct image_text *x)
{
    const uint64_t facts[] = {1,         x->layout, (uint64_t)x->token, x->features, x->around[0] != NULL,
                              x->parts + 2u * x->bos_behind, x->before, x->after};
    return hash_bytes(facts, sizeof facts, x->any_size ? 1 + (uint64_t)x->video : 0);
}

/* --- messages --------------------------------------------------------------------------------- */

const char *image_text_joint(const struct image_text *x) { return x && x->parts ? "" : "\n"; }

uint32_t image_text_count(const char *text)
{
    uint32_t n = 0;
    for (const char *s = text; (s = strstr(s, IMAGE_PLACEHOLDER)); s += strlen(IMAGE_PLACEHOLDER)) n++;
    return n;
}

static void add_part(struct value *parts, const char *type, const char *text, size_t n, struct bump *b)
{
    struct value *p = value_new(b, VALUE_MAP);
    value_put(b, p, "type", value_string(b, type));
    if (text) value_put(b, p, "text", value_string(b, bump_format(b, "%.*s", (int)n, text)));
    value_append(b, parts, p);
}

/* Reports whether image i is a video that is described: each frame has an image token. */
static bool is_described(const struct text_images *images, uint32_t i)
{
    const struct image_text *x = images->how;
    return (x->timed || x->layout == IMAGE_AS_CROPS) && images->tiles && i < images->n && images->tiles[i].frames;
}

/* Reports whether image i is a video of LLaVA-OneVision, whose frames have a token of their own. */
static bool is_pooled(const struct text_images *images, uint32_t i)
{
    const struct image_text *x = images->how;
    if (x->layout != IMAGE_AS_ANYRES || !x->video_content || !images->tiles || i >= images->n) return false;
    return images->tiles[i].frames;
}

/* Reports whether image i is a video that templates take as one. */
static bool is_video(const struct text_images *images, uint32_t i)
{
    if (is_described(images, i) || is_pooled(images, i)) return true;
    return images->tiles && i < images->n && images->tiles[i].grids;
}

static bool has_videos(const struct text_images *images)
{
    for (uint32_t i = 0; i < images->n; i++)
        if (is_video(images, i)) return true;
    return false;
}

const struct template *image_text_template(const struct text_images *images, const struct template *template)
{
    return images->how->video_template && has_videos(images) ? images->how->video_template : template;
}

/* Writes a content as parts: without a line break beside an image where the template has one
 * itself. *k: how many images come before it, and after it. */
static struct value *split_content(const struct text_images *images, const char *s, uint32_t *k, struct bump *b)
{
    struct value *parts = value_new(b, VALUE_LIST);
    for (bool after = false;; after = true) {
        const char *image = strstr(s, IMAGE_PLACEHOLDER);
        if (after && images->how->after && *s == '\n') s++;
        size_t n = image ? (image > s ? (size_t)(image - s) : 0) : strlen(s);
        if (image && images->how->before && n && s[n - 1] == '\n') n--;
        if (n || (!image && !parts->count)) add_part(parts, "text", s, n, b);
        if (!image) return parts;
        add_part(parts, is_video(images, (*k)++) ? "video" : "image", NULL, 0, b);
        s = image + strlen(IMAGE_PLACEHOLDER);
    }
}

struct value *image_text_messages(const struct text_images *images, struct value *messages, struct bump *b)
{
    uint32_t k = 0;
    if (!images->how->parts && !image_text_template(images, NULL)) return messages;
    struct value *list = value_new(b, VALUE_LIST);
    for (uint32_t i = 0; i < messages->count; i++) {
        const struct value *content = value_get(messages->items[i], "content");
        struct value *m = value_copy(b, messages->items[i]);
        if (content && content->kind == VALUE_STRING)
            value_put(b, m, "content", split_content(images, content->text, &k, b));
        value_append(b, list, m);
    }
    return list;
}

/* --- text ------------------------------------------------------------------------------------- */

static bool inside(const struct rendered *r, uint32_t at)
{
    for (uint32_t i = 0; i < r->data.n && r->data.at[i].begin <= at; i++)
        if (at < r->data.at[i].end) return true;
    return false;
}

/* Finds the next image from byte `at`: <image> anywhere, or outside of the data the token's own
 * text, and that of a video, or <video> of one that is described. */
static bool find_place(const struct text_images *images, const struct rendered *r, uint32_t at, struct byte_range *out)
{
    const char *const place = images->how->place ? images->how->place : images->how->content;
    const char *const names[] = {IMAGE_PLACEHOLDER,
                                 strcmp(IMAGE_PLACEHOLDER, place) ? place : NULL,
                                 !has_videos(images)            ? NULL
                                 : images->how->video_content ? images->how->video_content
                                                              : VIDEO_PLACEHOLDER};
    bool found = false;
    for (size_t k = 0; k < COUNT(names); k++) {
        const uint32_t n = names[k] ? (uint32_t)strlen(names[k]) : 0;
        if (!n) continue;
        for (uint32_t from = at; from < r->text.n;) {
            const char *s = memmem(r->text.at + from, r->text.n - from, names[k], n);
            if (!s) break;
            const uint32_t begin = (uint32_t)(s - r->text.at);
            from = begin + 1;
            if (k && inside(r, begin)) continue;
            if (!found || begin < out->begin) *out = (struct byte_range){begin, begin + n};
            found = true;
            break;
        }
    }
    return found;
}

/* Returns the image tokens that the text has for image k before they become features. */
static uint32_t tokens_of(const struct text_images *images, uint32_t k)
{
    const struct image_tiles t = images->tiles && k < images->n ? images->tiles[k] : (struct image_tiles){0};
    if (!image_is_tiled(images->how->layout) || images->how->layout == IMAGE_AS_ANYRES) return t.times ? t.grids : 1;
    return t.frames ? t.frames : t.rows * t.columns + 1;
}

/* Writes an image token `times`, with what stands around them. */
static void put_tokens(const struct image_text *x, uint32_t times, struct text *out)
{
    text_printf(out, "%s", x->around[0] ? x->around[0] : "");
    for (uint32_t k = 0; k < times; k++) text_printf(out, "%s", x->content);
    text_printf(out, "%s", x->around[1] ? x->around[1] : "");
}

static void put_image(const struct text_images *images, uint32_t i, struct text *out)
{
    const struct image_text *x = images->how;
    const struct image_tiles t = images->tiles ? images->tiles[i] : (struct image_tiles){0};
    const bool described = is_described(images, i);
    if (t.grids) {
        vision_text_put(&(struct vision_text){x->video_content, VISION_START, VISION_END, t.times ? t.grids : 1, 1,
                                              t.times}, out);
        return;
    }
    if (is_pooled(images, i)) {
        text_printf(out, "%s", x->video_content);
        return;
    }
    if (x->layout != IMAGE_AS_TILES) {
        for (uint32_t k = 0; k < t.frames && described; k++) {
            text_printf(out, "%sFrame%u: ", k ? "\n" : "", k + 1);
            put_tokens(x, 1, out);
        }
        if (!described) put_tokens(x, tokens_of(images, i), out);
        if (x->bos_behind && i + 1 == images->n) text_printf(out, "%s", x->bos);
        return;
    }
    if (described) {
        video_text(&(struct video_words){t.seconds, t.frames, t.duration, x->content, AROUND WHOLE, AROUND}, out);
        return;
    }
    for (uint32_t row = 1; row <= t.rows; row++) {
        for (uint32_t column = 1; column <= t.columns; column++)
            text_printf(out, AROUND "<row_%u_col_%u>%s", row, column, x->content);
        text_printf(out, "\n");
    }
    text_printf(out, "%s" AROUND WHOLE "%s" AROUND, t.rows ? "\n" : "", x->content);
}

/* Moves ranges of the text before `places` became `spans` to ranges of the new one. */
static void move_ranges(struct byte_range *at, uint32_t n, const struct range_list *places,
                        const struct range_list *spans, struct range_list *out)
{
    uint32_t k = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t begin = at[i].begin;
        while (k < places->n && places->at[k].end <= begin) k++;
        for (uint32_t p = k; begin < at[i].end; p++) {
            const bool last = p == places->n || places->at[p].begin >= at[i].end;
            const uint32_t end = last ? at[i].end : places->at[p].begin;
            const int64_t shift = p ? (int64_t)spans->at[p - 1].end - places->at[p - 1].end : 0;
            if (begin < end) vec_push(out, ((struct byte_range){(uint32_t)(begin + shift), (uint32_t)(end + shift)}));
            begin = last ? at[i].end : places->at[p].end;
        }
    }
}

/* Checks that the template writes images and videos in their order: places that it names are those
 * of their kind. */
static int check_kinds(const struct text_images *images, const struct rendered *r, const struct range_list *places,
                       struct error *e)
{
    const struct image_text *x = images->how;
    for (uint32_t i = 0; i < places->n && x->parts && x->video_content; i++) {
        const char *at = r->text.at + places->at[i].begin;
        const bool video = !strncmp(at, x->video_content, strlen(x->video_content));
        if (inside(r, places->at[i].begin) || video == is_video(images, i)) continue;
        return error_set(e, PL_USAGE,
                         "the chat template writes %s, and the data has %s there: give the images and videos of a "
                         "message in the order of the template", video ? "a video" : "an image",
                         video ? "an image" : "a video");
    }
    return PL_OK;
}

static int count_error(const struct text_images *images, uint32_t found, struct error *e)
{
    return error_set(e, PL_USAGE,
                     "the rendered text has %u " IMAGE_PLACEHOLDER ", and there %s %u image%s: the chat template %s",
                     found, images->n == 1 ? "is" : "are", images->n, images->n == 1 ? "" : "s",
                     found < images->n ? "leaves images out" : "repeats them");
}

int image_text_expand(const struct text_images *images, struct rendered *r, struct range_list *spans, struct error *e)
{
    struct range_list places = {0}, data = {0}, answers = {0};
    struct byte_range place;
    struct text out = {0};
    uint32_t at = 0;
    while (find_place(images, r, at, &place)) {
        vec_push(&places, place);
        at = place.end;
    }
    if (places.n != images->n ? count_error(images, places.n, e) : check_kinds(images, r, &places, e)) {
        vec_free(&places);
        return e->code;
    }
    at = 0;
    for (uint32_t i = 0; i < places.n; i++) {
        text_append(&out, r->text.at + at, places.at[i].begin - at);
        const uint32_t begin = (uint32_t)out.n;
        put_image(images, i, &out);
        vec_push(spans, ((struct byte_range){begin, (uint32_t)out.n}));
        at = places.at[i].end;
    }
    if (places.n) {
        text_append(&out, r->text.at + at, r->text.n - at);
        move_ranges(r->data.at, r->data.n, &places, spans, &data);
        move_ranges(r->answers.at, r->answers.n, &places, spans, &answers);
        rendered_free(r);
        r->text = out;
        r->data.at = data.at, r->data.n = data.n, r->data.cap = data.cap;
        r->answers.at = answers.at, r->answers.n = answers.n, r->answers.cap = answers.cap;
    }
    vec_free(&places);
    return PL_OK;
}

/* --- tokens ----------------------------------------------------------------------------------- */

/* Reports whether the tokenizer has yet to add BOS, as transformers' processors decide: it comes
 * first, once. */
static bool wants_special(const struct tokenizer *t, const struct rendered *r)
{
    const char *bos = tokenizer_special(t, "bos_token");
    return !(bos && *bos && r->text.n && !strncmp(r->text.at, bos, strlen(bos)));
}

/* Encodes a piece of the text. */
static int encode_piece(const struct tokenizer *t, const struct rendered *r, struct byte_range piece, bool special,
                        struct token_list *out, struct error *e)
{
    struct range_list data = {0};
    const uint32_t first = out->n;
    for (uint32_t i = 0; i < r->data.n; i++) {
        const uint32_t begin = r->data.at[i].begin > piece.begin ? r->data.at[i].begin : piece.begin,
                       end = r->data.at[i].end < piece.end ? r->data.at[i].end : piece.end;
        if (begin < end) vec_push(&data, ((struct byte_range){begin - piece.begin, end - piece.begin}));
    }
    int rc = tokenizer_encode(t, r->text.n ? r->text.at + piece.begin : "", piece.end - piece.begin, data.at, data.n,
                              special, out, e);
    for (uint32_t i = first; i < out->n && !rc; i++) out->at[i].begin += piece.begin, out->at[i].end += piece.begin;
    vec_free(&data);
    return rc;
}

/* Reports whether a token is the placeholder of a feature. */
static bool is_feature(const struct image_text *x, int32_t token)
{
    return token == x->token || (x->video_content && token == x->video);
}

/* Returns the shape of image k. Images of LLaVA-OneVision that share a conversation have no
 * tiles. */
static struct anyres_shape shape_of(const struct text_images *images, uint32_t k)
{
    uint32_t n = 0;
    if (!images->tiles || k >= images->n) return (struct anyres_shape){0}; /* find_images refuses the text */
    if (is_pooled(images, k)) return (struct anyres_shape){.frames = (int32_t)images->tiles[k].frames};
    for (uint32_t i = 0; i < images->n; i++) n += !is_pooled(images, i);
    return images->how->anyres.pooled && n > 1 ? (struct anyres_shape){0} : images->tiles[k].shape;
}

/* Puts the ids of image k, in tiles with a map, in the place of its token. */
static void put_shape(const struct text_images *images, uint32_t k, struct token at, struct token_list *out)
{
    const struct anyres *a = &images->how->anyres;
    const struct anyres_shape shape = shape_of(images, k);
    const int32_t tokens = anyres_tokens(a, shape);
    int32_t *ids = mem_alloc((size_t)tokens * sizeof *ids);
    anyres_put(a, shape, ids);
    for (int32_t i = 0; i < tokens; i++) vec_push(out, ((struct token){ids[i], at.begin, at.end}));
    mem_free(ids);
}

/* Puts the features of a token of image k: of the image or a tile, of a frame or a grid, or of all
 * frames of a video. */
static void put_features(const struct text_images *images, uint32_t k, struct token at, struct token_list *out)
{
    const struct image_text *x = images->how;
    const struct image_tiles t = images->tiles && k < images->n ? images->tiles[k] : (struct image_tiles){0};
    const uint32_t n = x->any_size ? t.tokens / tokens_of(images, k)
                       : t.tokens  ? t.tokens
                       : !t.frames ? x->features
                                   : (is_described(images, k) ? 1 : t.frames) * x->frame_features;
    if (x->layout == IMAGE_AS_ANYRES) put_shape(images, k, at, out);
    else for (uint32_t i = 0; i < n; i++) vec_push(out, at);
}

/* Appends BOS, if the tokenizer begins texts with it. */
static int put_bos(const struct tokenizer *t, struct token_list *out, struct error *e)
{
    struct token_list l = {0};
    int rc = tokenizer_encode(t, "", 0, NULL, 0, true, &l, e);
    if (!rc && l.n && l.at[0].id == tokenizer_bos(t)) vec_push(out, ((struct token){l.at[0].id, 0, 0}));
    token_list_free(&l);
    return rc;
}

/* Encodes the pieces between the images, each by itself. */
static int encode_pieces(const struct text_images *images, const struct tokenizer *t, const struct rendered *r,
                         const struct range_list *spans, struct token_list *out, struct error *e)
{
    const struct image_text *x = images->how;
    const uint32_t before = x->around[0] ? (uint32_t)strlen(x->around[0]) : 0;
    uint32_t at = 0;
    int rc = wants_special(t, r) ? put_bos(t, out, e) : PL_OK;
    for (uint32_t i = 0; i <= spans->n && !rc; i++) {
        const bool last = i == spans->n;
        const uint32_t end = last ? (uint32_t)r->text.n : spans->at[i].begin + before;
        rc = encode_piece(t, r, (struct byte_range){at, end}, false, out, e);
        at = last ? end : end + (uint32_t)strlen(x->content);
        if (!rc && !last) put_features(images, i, (struct token){x->token, end, at}, out);
    }
    return rc;
}

/* Encodes the whole text, in which each image token then becomes all its features. */
static int encode_whole(const struct text_images *images, const struct tokenizer *t, const struct rendered *r,
                        struct token_list *out, struct error *e)
{
    const struct image_text *x = images->how;
    struct token_list once = {0};
    uint32_t k = 0, seen = 0; /* the image, and how many of its tokens are before */
    int rc = encode_piece(t, r, (struct byte_range){0, (uint32_t)r->text.n},
                          !(x->bos_behind && images->n) && wants_special(t, r), &once, e);
    for (uint32_t i = 0; i < once.n && !rc; i++) {
        if (!is_feature(x, once.at[i].id)) {
            vec_push(out, once.at[i]);
            continue;
        }
        put_features(images, k, once.at[i], out);
        if (++seen == tokens_of(images, k)) k++, seen = 0;
    }
    token_list_free(&once);
    return rc;
}

/* Finds the tokens of each image, and checks that image tokens are nowhere else. */
static bool find_images(const struct image_text *x, const struct range_list *spans, const struct token_list *l,
                        struct range_list *tokens)
{
    uint32_t k = 0;
    for (uint32_t i = 0; i <= spans->n; i++) {
        const uint32_t begin = i < spans->n ? spans->at[i].begin : UINT32_MAX,
                       end = i < spans->n ? spans->at[i].end : 0;
        for (; k < l->n && (l->at[k].begin < begin || l->at[k].begin == l->at[k].end); k++)
            if (is_feature(x, l->at[k].id)) return false;
        const uint32_t first = k;
        while (k < l->n && l->at[k].begin < end) k++;
        if (i < spans->n) vec_push(tokens, ((struct byte_range){first, k}));
    }
    return true;
}

int image_text_encode(const struct text_images *images, const struct tokenizer *t, const struct rendered *r,
                      const struct range_list *spans, struct token_list *out, struct range_list *tokens,
                      struct error *e)
{
    int rc = images->how->layout == IMAGE_AS_PIECES ? encode_pieces(images, t, r, spans, out, e)
                                                    : encode_whole(images, t, r, out, e);
    if (!rc && !find_images(images->how, spans, out, tokens))
        rc = error_set(e, PL_USAGE, "the text itself has the image token %.60s, which only an image may have",
                       images->how->content);
    return rc;
}
