/*
 * test_smolvlm_video.c: conversations with videos have the ids, labels and pixels of SmolVLM's
 * processor in transformers (tests/golden/make_smolvlm_video.py), and numbers in words are
 * num2words'.
 */
#include "data/text/tokenize.h"
#include "io/file.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "text/template/chat_images.h"

#include "harness.h"
#include "chat_folder.h"
#include "pixel_values.h"

#define GOLDEN "tests/golden/smolvlm_video/"
#define MODEL "tests/golden/llava_text/smolvlm"

static void open_folder(struct folder *f, double fps, uint32_t max_frames, bool own)
{
    struct error e = {0};
    const struct video_options o = {.fps = fps, .max_frames = max_frames, .room = 16 << 20};
    folder_open(f, MODEL, GOLDEN);
    if (model_images_take_videos(&f->images, &f->model, &o, 0, own, &e)) fail_msg("%s", e.text);
}

static int64_t whole(const struct value *list, uint32_t i)
{
    int64_t x = 0;
    struct error e;
    assert_int_equal(value_as_int(list->items[i], "id", &x, &e), 0);
    return x;
}

static void compare_ids(const char *what, uint32_t chat, const struct token_list *l, const struct value *want)
{
    for (uint32_t k = 0; k < l->n && k < want->count; k++)
        if (l->at[k].id != whole(want, k))
            fail_msg("%s of conversation %u: token %u is %d, expected %lld", what, chat, k, l->at[k].id,
                     (long long)whole(want, k));
    if (l->n != want->count) fail_msg("%s of conversation %u: %u tokens, expected %u", what, chat, l->n, want->count);
}

static void compare_labels(uint32_t chat, const struct chat_tokens *t, const struct value *want)
{
    for (uint32_t k = 0, a = 0; k < t->tokens.n; k++) {
        while (a < t->answers.n && t->answers.at[a].end <= k) a++;
        const bool labelled = a < t->answers.n && t->answers.at[a].begin <= k;
        if ((labelled ? t->tokens.at[k].id : -100) != whole(want, k))
            fail_msg("conversation %u: the label of token %u is not %lld", chat, k, (long long)whole(want, k));
    }
}

TEST(test_text)
{
    struct bump b = {0};
    const struct value *chats = read_lines(GOLDEN "chats.jsonl", &b),
                       *expected = read_lines(GOLDEN "expected.jsonl", &b);
    assert_int_equal(chats->count, expected->count);
    for (uint32_t i = 0; i < chats->count; i++) {
        struct folder f;
        struct text json = {0};
        struct tokenized t;
        struct chat_tokens prompt;
        struct text_images images;
        struct error e = {0};
        double fps = 0;
        assert_int_equal(value_opt_number(expected->items[i], "fps", &fps, &e), 0);
        open_folder(&f, fps, 64, false);
        json_write(chats->items[i], 0, &json);
        if (tokenize_sample(&f.options, json.at, json.n, &b, &t, &e)) fail_msg("conversation %u: %s", i, e.text);
        compare_ids("text", i, &t.tokens.tokens, value_get(expected->items[i], "ids"));
        compare_labels(i, &t.tokens, value_get(expected->items[i], "labels"));
        assert_int_equal(t.tokens.images.n, t.conversation.media->count);
        struct value *question = value_copy(&b, value_get(chats->items[i], "messages"));
        struct conversation asked;
        question->count--;
        assert_int_equal(conversation_read_chat(question, "", &b, &asked, &e), SAMPLE_FINE);
        assert_int_equal(tokenize_images(&f.images, &asked, &b, &images, &e), SAMPLE_FINE);
        if (chat_encode_prompt(f.tokenizer, f.template, asked.messages, NULL, &images, &prompt, NULL, &e))
            fail_msg("prompt %u: %s", i, e.text);
        compare_ids("prompt", i, &prompt.tokens, value_get(expected->items[i], "prompt"));
        chat_tokens_free(&prompt);
        tokenized_free(&t);
        text_free(&json);
        close_folder(&f);
    }
    bump_free(&b);
}

/* A template of the user's own renders videos, too: the folder's writes none. */
TEST(test_own_template)
{
    static const char json[] = "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"video\", \"path\": "
                               "\"clip\"}]}, {\"role\": \"assistant\", \"content\": \"Yes.\"}]}";
    struct folder f;
    struct tokenized t;
    struct bump b = {0};
    struct error e = {0};
    open_folder(&f, 1, 64, true);
    assert_int_equal(tokenize_sample(&f.options, json, strlen(json), &b, &t, &e), SAMPLE_IMAGES);
    assert_non_null(strstr(e.text, "the chat template leaves images out"));
    tokenized_free(&t);
    bump_free(&b);
    close_folder(&f);
}

/* Frames that are thinned have their own times. */
TEST(test_times)
{
    static const uint32_t seconds[] = {0, 1, 3, 4};
    struct folder f;
    struct bump b = {0};
    struct error e = {0};
    struct image_tiles t;
    open_folder(&f, 2, 4, false);
    if (image_source_tiles(&f.images, "video:long", &b, &t, &e)) fail_msg("%s", e.text);
    assert_int_equal(t.frames, 4);
    assert_int_equal(t.duration, 6);
    assert_memory_equal(t.seconds, seconds, sizeof seconds); /* frames 0, 3, 6 and 9 of 13 */
    bump_free(&b);
    close_folder(&f);
}

/* --- pixels ----------------------------------------------------------------------------------- */

struct seen {
    const char *name;
    float value[3][256];
    const float *want;
    uint32_t frames;
};

/* A byte is at most one away; pixel values are bytes / 127.5 - 1. */
static int see(void *user, const void *pixels, uint32_t count, struct error *e)
{
    enum { FLOATS = 3 * 16 * 16 };
    struct seen *s = user;
    float *values = pixel_values(pixels, count * FLOATS, 16 * 16, s->value);
    (void)e;
    for (uint32_t i = 0; i < count * FLOATS; i++)
        if (fabsf(values[i] - s->want[s->frames * FLOATS + i]) > 1.01f / 127.5f)
            fail_msg("%s, frame %u, value %u: %g, expected %g", s->name, s->frames, i, values[i],
                     s->want[s->frames * FLOATS + i]);
    mem_free(values);
    s->frames += count;
    return PL_OK;
}

TEST(test_pixels)
{
    static const char *const names[] = {"clip", "other", "long", "one"};
    struct folder f;
    struct st_file in;
    struct error e = {0};
    open_folder(&f, 1, 64, false);
    if (st_open(GOLDEN "pixels.safetensors", &in, &e)) fail_msg("%s", e.text);
    for (size_t i = 0; i < COUNT(names); i++) {
        char reference[64];
        const struct st_entry *t = st_find(&in, names[i]);
        struct image_pixels x;
        assert_non_null(t);
        float *want = mem_alloc(t->bytes);
        struct seen s = {.name = names[i], .want = want};
        image_processor_values(&f.images.frame_processor, s.value);
        if (st_read(&in, t, 0, t->bytes, want, &e)) fail_msg("%s", e.text);
        snprintf(reference, sizeof reference, "video:%s", names[i]);
        if (image_source_read(&f.images, reference, false, see, &s, &x, &e)) fail_msg("%s", e.text);
        assert_int_equal(s.frames, t->dims[0]);
        mem_free(want);
    }
    st_close(&in);
    close_folder(&f);
}

/* --- words and words of refusal --------------------------------------------------------------- */

TEST(test_words)
{
    char *text, *rest = NULL;
    size_t n;
    struct error e;
    if (file_read(GOLDEN "words.txt", 1 << 16, &text, &n, &e)) fail_msg("%s", e.text);
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        struct text got = {0};
        char *words;
        number_words((uint32_t)strtoul(line, &words, 10), &got);
        assert_string_equal(got.at, words + 1);
        text_free(&got);
    }
    mem_free(text);
}

/* No reference says how Idefics3 reads a video. */
TEST(test_idefics3)
{
    struct model m;
    struct image_source s;
    struct error e = {0};
    assert_int_equal(model_open(&m, "tests/golden/idefics3", &e), 0);
    assert_int_equal(
        model_images_open(&s, &m, NULL, NULL, &(struct image_scope){.anywhere = true, .room = 64 << 20}, &e), 0);
    assert_int_equal(model_images_take_videos(&s, &m, &(struct video_options){.max_frames = 8}, 0, false, &e),
                     PL_USAGE);
    assert_non_null(strstr(e.text, "idefics3 takes no videos: set it to 0, and give frames as images"));
    image_source_close(&s);
    model_close(&m);
}

MAIN(NULL, NULL)
