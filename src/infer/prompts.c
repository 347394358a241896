/*
 * prompts.c: see prompts.h.
 */
#include "infer/prompts.h"

#include "models/model.h"
#include "data/text/tokenize.h"
#include "batch/batch_plan.h"
#include "batch/text_source.h"
#include "io/json.h"

enum { CHAT_MOST = 256 << 20 }; /* bytes of a chat's file */

/* Returns the folder of the model's tokenizer; NULL: it has none. */
static const char *tokenizer_folder(const struct config *c, char room[sizeof(((struct model *)0)->path)])
{
    struct model m;
    struct error ignored;
    if (!c->model_path || config_open_model(c, &m, &ignored)) return c->model_path;
    memcpy(room, model_reader(&m).path, sizeof m.path);
    model_close(&m);
    return *room ? room : c->model_path;
}

static int open_tokenizer(struct prompts *p, const struct config *c, struct error *e)
{
    char room[sizeof(((struct model *)0)->path)];
    const char *path = c->data_tokenizer ? c->data_tokenizer : tokenizer_folder(c, room);
    if (!path)
        return error_set(e, PL_USAGE,
                         "a preset has no tokenizer: set data.tokenizer to a model folder, a tokenizer.json or a "
                         "tokenizer.model, or give the prompt as --ids");
    int rc = tokenizer_open(&p->tokenizer, path, e);
    if (rc) return c->data_tokenizer ? error_prepend(e, "data.tokenizer") : rc;
    return text_template_open(&p->template, &p->no_template, c, path, e);
}

struct image_scope prompts_scope(const struct config *c, const char *where)
{
    enum { ROOM = 1 << 30 };
    return (struct image_scope){.where = where, .anywhere = true, .room = c->data_sample_memory ? batch_room(c) : ROOM,
                                .volumes = batch_volumes(c), .range = feed_range(c)};
}

int prompts_open(struct prompts *p, const struct config *c, const struct image_scope *scope, struct error *e)
{
    *p = (struct prompts){0};
    int rc = open_tokenizer(p, c, e);
    if (!rc) rc = text_images_open(&p->images, &p->has_images, c, p->tokenizer, p->template, scope, e);
    if (rc) prompts_close(p);
    return rc;
}

int prompts_open_ids(struct prompts *p, const struct config *c, const struct image_scope *scope, struct error *e)
{
    struct error none;
    *p = (struct prompts){0};
    if (!prompts_open(p, c, scope, &none)) return PL_OK;
    return text_images_open(&p->images, &p->has_images, c, NULL, NULL, scope, e);
}

void prompts_close(struct prompts *p)
{
    image_source_close(&p->images);
    template_close(p->template);
    tokenizer_close(p->tokenizer);
    *p = (struct prompts){0};
}

/* --- images ----------------------------------------------------------------------------------- */

int prompts_images(const struct prompts *p, char *const *references, uint32_t n, struct bump *b,
                   struct text_images *out, struct media *slots, uint64_t *used, struct error *e)
{
    *slots = (struct media){.tokens_per_frame = p->images.text.frame_features};
    *out = (struct text_images){0};
    if (n && !p->has_images)
        return error_set(e, PL_USAGE, "the model takes only text, and an image is given: %.100s", references[0]);
    struct image_tiles *tiles = bump_alloc(b, (n + 1) * sizeof *tiles);
    *out = (struct text_images){&p->images.text, tiles, n};
    const bool beside = image_source_images(references, n) > 1;
    for (uint32_t i = 0; i < n; i++) {
        struct image_pixels x;
        if (image_source_tiles(&p->images, references[i], b, &tiles[i], e) ||
            image_source_read(&p->images, references[i], beside, NULL, NULL, &x, e))
            return e->code;
        slots->images += p->images.patches.merge && !p->images.text.any_size;
        *(x.modality >= 0                 ? &slots->volumes[x.modality]
          : p->images.patches.merge       ? &slots->patches
          : media_is_video(references[i]) ? &slots->frames
                                          : &slots->images) += x.count;
        if (used) *used += x.used;
    }
    return PL_OK;
}

/* --- tokens ----------------------------------------------------------------------------------- */

/* Appends the tokens of a text, or of ids, to `out`; `images` are those of the prompt, NULL: none.
 * Text gets the special tokens that the tokenizer adds, such as BOS. */
static int encode_prompt(const struct prompts *p, const char *text, const struct text_images *images,
                         struct token_list *out, struct error *e)
{
    struct rendered r = {0};
    struct range_list spans = {0}, places = {0};
    if (!images) return tokenizer_encode(p->tokenizer, text, strlen(text), NULL, 0, true, out, e);
    text_append(&r.text, text, strlen(text));
    int rc = image_text_expand(images, &r, &spans, e);
    if (!rc) rc = image_text_encode(images, p->tokenizer, &r, &spans, out, &places, e);
    vec_free(&spans);
    vec_free(&places);
    rendered_free(&r);
    return rc;
}

int prompts_chat(const struct prompts *p, struct value *messages, const struct value *beside,
                 const struct text_images *images, struct token_list *out, struct error *e)
{
    struct chat_tokens t;
    if (!p->template) {
        *e = p->no_template;
        return e->code;
    }
    const enum chat_failure failed =
        chat_encode_prompt(p->tokenizer, p->template, messages, beside, images, &t, NULL, e);
    for (uint32_t i = 0; i < t.tokens.n && !failed; i++) vec_push(out, t.tokens.at[i]);
    chat_tokens_free(&t);
    return failed ? e->code : PL_OK;
}

/* --- questions -------------------------------------------------------------------------------- */

/* Reports whether a text says where images are, or videos, if there are any: else <video> is
 * text. */
static bool is_marked(const char *text, const struct names *images)
{
    bool videos = false;
    for (uint32_t i = 0; i < images->n; i++) videos |= media_is_video(images->at[i]);
    return image_text_count(text) || (videos && strstr(text, VIDEO_PLACEHOLDER));
}

/* Returns a text with <image> or <video> for each of its images and videos: as it is, or with all
 * of them before it. */
static const char *with_images(const char *text, const struct names *images, const char *joint, struct bump *b)
{
    struct text out = {0};
    for (uint32_t i = 0; i < images->n && !is_marked(text, images); i++)
        text_printf(&out, "%s%s", media_is_video(images->at[i]) ? VIDEO_PLACEHOLDER : IMAGE_PLACEHOLDER, joint);
    text_printf(&out, "%s", text);
    const char *kept = bump_format(b, "%s", out.at);
    text_free(&out);
    return kept;
}

static int check_marks(uint32_t marks, uint32_t n, struct error *e)
{
    if (marks == n) return PL_OK;
    return error_set(e, PL_USAGE,
                     "the text has %u %s, and %u image%s given; expected one for each image, or none, which sets the "
                     "images before the text",
                     marks, IMAGE_PLACEHOLDER, n, n == 1 ? " is" : "s are");
}

/* Adds images to those of a conversation, and puts all of them into the order of their marks. */
static int place_images(struct conversation *c, struct names *images, struct bump *b, struct error *e)
{
    for (uint32_t i = 0; i < images->n; i++) {
        const char *volume = media_volume(images->at[i], NULL, b);
        value_append(b, c->media, value_string(b, volume ? volume : images->at[i]));
        c->videos += media_is_video(images->at[i]);
    }
    if (c->videos ? conversation_place_media(c, b, e) != SAMPLE_FINE
                  : check_marks(conversation_images(c), c->media->count, e) != PL_OK)
        return e->code;
    names_free(images);
    for (uint32_t i = 0; i < c->media->count; i++) vec_push(images, mem_string(c->media->items[i]->text));
    return PL_OK;
}

int prompts_question(const struct prompts *p, const char *text, struct names *images, struct token_list *out,
                     struct media *slots, struct error *e)
{
    struct bump b = {0};
    struct text_images read;
    struct conversation c = {.prompt = text, .completion = "", .media = value_new(&b, VALUE_LIST)};
    int rc = PL_OK;
    if (p->has_images) {
        const bool behind = p->images.text.bos_behind; /* then the text ends in a line break */
        c.prompt = with_images(text, images, behind ? "" : "\n", &b);
        if (behind) c.prompt = bump_format(&b, "%s\n", c.prompt);
        rc = place_images(&c, images, &b, e);
    }
    if (!rc) rc = prompts_images(p, images->at, images->n, &b, &read, slots, NULL, e);
    if (!rc) rc = encode_prompt(p, c.prompt, p->has_images ? &read : NULL, out, e);
    bump_free(&b);
    return rc;
}

/* Checks that each message is a map with a role; the template reads the rest. */
static int check_messages(const struct value *messages, struct error *e)
{
    const char *role;
    int rc = value_as_list(messages, "messages", e);
    if (!rc && !messages->count) rc = error_set(e, PL_USAGE, "messages is an empty list");
    for (uint32_t i = 0; i < (rc ? 0 : messages->count) && !rc; i++) {
        rc = value_as_map(value_at(messages, i), "a message", e);
        if (!rc) rc = value_as_string(value_get(value_at(messages, i), "role"), "role", &role, e);
        if (rc) error_prepend(e, "message %u", i + 1);
    }
    return rc;
}

/* Joins the images of a chat and those that are added to it: before the last question, if no
 * message has a mark. */
static int join_images(struct conversation *c, struct names *images, const char *joint, struct bump *b, struct error *e)
{
    struct value *last = NULL;
    bool marked = c->media->count;
    for (uint32_t i = 0; i < c->messages->count; i++) {
        const char *text = value_get(c->messages->items[i], "content")->text;
        if (!strcmp(value_get(c->messages->items[i], "role")->text, "user")) last = c->messages->items[i];
        marked |= is_marked(text, images);
    }
    if (!marked && last)
        value_put(b, last, "content", value_string(b, with_images(value_get(last, "content")->text, images, joint, b)));
    return place_images(c, images, b, e);
}

/* Renders a chat for a model that takes images. */
static int chat_with_images(const struct prompts *p, struct conversation *c, struct names *images, struct bump *b,
                            struct token_list *out, struct media *slots, struct error *e)
{
    struct text_images read;
    if (join_images(c, images, image_text_joint(&p->images.text), b, e)) return e->code;
    int rc = prompts_images(p, images->at, images->n, b, &read, slots, NULL, e);
    return rc ? rc : prompts_chat(p, c->messages, c->beside, &read, out, e);
}

/* Reads a chat that is a map or a list. */
static int read_chat(const struct prompts *p, const struct value *chat, struct names *images, struct bump *b,
                     struct token_list *out, struct media *slots, struct error *e)
{
    struct conversation c;
    if (conversation_read_chat(chat, image_text_joint(&p->images.text), b, &c, e)) return e->code;
    return chat_with_images(p, &c, images, b, out, slots, e);
}

int prompts_ask(const struct prompts *p, const char *text, struct names *images, struct token_list *out,
                struct media *slots, struct error *e)
{
    struct bump b = {0};
    struct value *chat = value_new(&b, VALUE_MAP), *messages = value_new(&b, VALUE_LIST),
                 *message = value_new(&b, VALUE_MAP);
    value_put(&b, message, "role", value_string(&b, "user"));
    value_put(&b, message, "content", value_string(&b, text));
    value_append(&b, messages, message);
    value_put(&b, chat, "messages", messages);
    int rc = read_chat(p, chat, images, &b, out, slots, e);
    bump_free(&b);
    return rc;
}

static int text_chat(const struct prompts *p, struct value *v, struct token_list *out, struct error *e)
{
    const bool map = v->kind == VALUE_MAP;
    struct value *messages = map ? (struct value *)value_get(v, "messages") : v;
    const struct value *tools = value_get(v, "tools");
    int rc = check_messages(messages, e);
    if (!rc && tools && tools->kind != VALUE_NULL) rc = value_as_list(tools, "tools", e);
    return rc ? rc : prompts_chat(p, messages, v, NULL, out, e);
}

int prompts_sample(const struct prompts *p, struct value *sample, struct names *images, struct token_list *out,
                   struct media *slots, bool *chat, struct error *e)
{
    struct bump b = {0};
    struct conversation c;
    *slots = (struct media){0};
    int rc = conversation_read_prompt(sample, image_text_joint(&p->images.text), &b, &c, e) ? e->code : PL_OK;
    *chat = !rc && c.messages;
    for (uint32_t i = 0; !rc && i < c.media->count && !(*chat && p->has_images); i++)
        vec_push(images, mem_string(c.media->items[i]->text));
    if (!rc && !*chat) rc = prompts_question(p, c.prompt, images, out, slots, e);
    else if (!rc && p->has_images) rc = chat_with_images(p, &c, images, &b, out, slots, e);
    else if (!rc && images->n)
        rc = prompts_images(p, images->at, images->n, &b, &(struct text_images){0}, slots, NULL, e);
    /* messages are the template's own */
    else if (!rc)
        rc = value_get(sample, "messages") ? text_chat(p, sample, out, e)
                                           : prompts_chat(p, c.messages, c.beside, NULL, out, e);
    bump_free(&b);
    return rc;
}

static int any_chat(const struct prompts *p, struct value *v, struct names *images, struct bump *b,
                    struct token_list *out, struct media *slots, struct error *e)
{
    struct text_images none;
    if (p->has_images) return read_chat(p, v, images, b, out, slots, e);
    TRY(prompts_images(p, images->at, images->n, b, &none, slots, NULL, e));
    return text_chat(p, v, out, e);
}

int prompts_chat_file(const struct prompts *p, const char *path, struct names *images, struct token_list *out,
                      struct media *slots, struct error *e)
{
    struct bump b = {0};
    struct value *v = NULL;
    *slots = (struct media){0};
    int rc = json_read_file(path, CHAT_MOST, &b, &v, e);
    if (!rc && (rc = any_chat(p, v, images, &b, out, slots, e))) error_prepend(e, "%s", path);
    bump_free(&b);
    return rc;
}

int prompts_chat_text(const struct prompts *p, const char *json, struct names *images, struct token_list *out,
                      struct media *slots, struct error *e)
{
    struct bump b = {0};
    struct value *v = NULL;
    *slots = (struct media){0};
    int rc = json_parse(json, strlen(json), &b, &v, e);
    if (!rc) rc = any_chat(p, v, images, &b, out, slots, e);
    bump_free(&b);
    return rc;
}
