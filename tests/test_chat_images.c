/*
 * test_chat_images.c: conversations with images have the ids and labels of transformers' processors
 * and of LLaVA's original code (tests/golden/make_llava_text.py), and what cannot be used is said.
 */
#include "data/text/conversations.h"
#include "data/text/tokenize.h"
#include "io/file.h"
#include "io/json.h"

#include "harness.h"
#include "chat_folder.h"

#define GOLDEN "tests/golden/llava_text/"

static void open_folder(struct folder *f, const char *name)
{
    char path[256];
    snprintf(path, sizeof path, GOLDEN "%s", name);
    folder_open(f, path, GOLDEN);
}

static void compare_ids(const char *what, uint32_t chat, const struct token_list *l, const struct value *want)
{
    for (uint32_t k = 0; k < l->n && k < want->count; k++) {
        int64_t id = 0;
        struct error e;
        assert_int_equal(value_as_int(want->items[k], "id", &id, &e), 0);
        if (l->at[k].id != id)
            fail_msg("%s, conversation %u: token %u is %d, expected %lld", what, chat, k, l->at[k].id, (long long)id);
    }
    if (l->n != want->count) fail_msg("%s, conversation %u: %u tokens, expected %u", what, chat, l->n, want->count);
}

/* Gives tokens the ids that transformers has for them. */
static void name_ids(const struct folder *f, struct token_list *l)
{
    for (uint32_t i = 0; i < l->n; i++) l->at[i].id = image_text_id(&f->images.text, l->at[i].id);
}

static void compare_labels(const char *what, uint32_t chat, const struct chat_tokens *t, const struct value *want)
{
    for (uint32_t k = 0, a = 0; k < t->tokens.n; k++) {
        int64_t label = 0;
        struct error e;
        while (a < t->answers.n && t->answers.at[a].end <= k) a++;
        const bool labelled = a < t->answers.n && t->answers.at[a].begin <= k;
        assert_int_equal(value_as_int(want->items[k], "label", &label, &e), 0);
        if ((labelled ? t->tokens.at[k].id : -100) != label)
            fail_msg("%s, conversation %u: the label of token %u is not %lld", what, chat, k, (long long)label);
    }
}

/* All tokens of the images, in order, and none elsewhere. */
static void check_images(const struct folder *f, const struct tokenized *t)
{
    uint32_t inside = 0, all = 0;
    assert_int_equal(t->tokens.images.n, t->conversation.media->count);
    for (uint32_t i = 0; i < t->tokens.tokens.n; i++) all += t->tokens.tokens.at[i].id == f->images.text.token;
    for (uint32_t i = 0; i < t->tokens.images.n; i++)
        for (uint32_t k = t->tokens.images.at[i].begin; k < t->tokens.images.at[i].end; k++)
            inside += t->tokens.tokens.at[k].id == f->images.text.token;
    assert_int_equal(inside, all);
    if (!f->images.text.anyres.n) assert_int_equal(all % f->images.text.features, 0);
}

static void compare_chats(const char *name, const char *lines, const char *template)
{
    char path[256];
    struct folder f;
    struct bump b = {0};
    struct error e = {0};
    snprintf(path, sizeof path, GOLDEN "%s", name);
    folder_open_with(&f, path, GOLDEN, template);
    snprintf(path, sizeof path, GOLDEN "%s.expected.jsonl", name);
    const struct value *chats = read_lines(lines, &b), *expected = read_lines(path, &b);
    assert_int_equal(chats->count, expected->count);
    for (uint32_t i = 0; i < chats->count; i++) {
        struct text json = {0};
        struct tokenized t;
        struct chat_tokens prompt;
        struct text_images images;
        json_write(chats->items[i], 0, &json);
        if (tokenize_sample(&f.options, json.at, json.n, &b, &t, &e))
            fail_msg("%s, conversation %u: %s", name, i, e.text);
        name_ids(&f, &t.tokens.tokens);
        compare_ids(name, i, &t.tokens.tokens, value_get(expected->items[i], "ids"));
        compare_labels(name, i, &t.tokens, value_get(expected->items[i], "labels"));
        check_images(&f, &t);
        t.conversation.messages->count--;
        assert_int_equal(tokenize_images(&f.images, &t.conversation, &b, &images, &e), SAMPLE_FINE);
        if (chat_encode_prompt(f.tokenizer, f.template, t.conversation.messages, NULL, &images, &prompt, NULL, &e))
            fail_msg("%s, prompt %u: %s", name, i, e.text);
        name_ids(&f, &prompt.tokens);
        compare_ids(name, i, &prompt.tokens, value_get(expected->items[i], "prompt"));
        chat_tokens_free(&prompt);
        tokenized_free(&t);
        text_free(&json);
    }
    bump_free(&b);
    close_folder(&f);
}

static void compare(const char *name) { compare_chats(name, GOLDEN "chats.jsonl", NULL); }

TEST(test_llava) { compare("llava"); }
TEST(test_strings) { compare("strings"); }
TEST(test_smolvlm) { compare("smolvlm"); }
TEST(test_internvl) { compare("internvl"); }
TEST(test_next) { compare("next"); }
TEST(test_gemma3) { compare("gemma3"); }
TEST(test_paligemma) { compare_chats("paligemma", GOLDEN "paligemma.chats.jsonl", "paligemma"); }
TEST(test_original) { compare("original"); }
TEST(test_start_end) { compare("start_end"); }

/* InternVL names the frames of a video by their numbers, as its processor in transformers does. */
TEST(test_numbered_frames)
{
    static const char json[] = "[{\"role\": \"user\", \"content\": \"<image>\\nWho?\"}]";
    static const char text[] = "<|im_start|>user\nFrame1: <img>!!!!</img>\nFrame2: <img>!!!!</img>\nWho?<|im_end|>\n"
                               "<|im_start|>assistant\n";
    struct folder f;
    struct bump b = {0};
    struct error e = {0};
    struct value *messages;
    struct token_list want = {0};
    struct chat_tokens got;
    struct image_tiles video = {.frames = 2};
    open_folder(&f, "internvl");
    f.images.text.frame_features = f.images.text.features;
    const struct text_images images = {&f.images.text, &video, 1};
    must(json_parse(json, strlen(json), &b, &messages, &e), &e);
    must(chat_encode_prompt(f.tokenizer, f.template, messages, NULL, &images, &got, NULL, &e), &e);
    struct text expanded = {0};
    for (const char *s = text; *s; s++) text_printf(&expanded, *s == '!' ? "<IMG_CONTEXT>" : "%c", *s);
    must(tokenizer_encode(f.tokenizer, expanded.at, expanded.n, NULL, 0, false, &want, &e), &e);
    assert_int_equal(got.tokens.n, want.n);
    for (uint32_t i = 0; i < want.n; i++) assert_int_equal(got.tokens.at[i].id, want.at[i].id);
    text_free(&expanded);
    token_list_free(&want);
    chat_tokens_free(&got);
    bump_free(&b);
    close_folder(&f);
}

/* A sample of one question with these images; the fault, and its sentence in `e`. */
static enum conversation_fault ask(const struct folder *f, const char *images, const char *question,
                                   struct tokenized *t, struct bump *b, struct error *e)
{
    struct text json = {0};
    text_printf(&json,
                "{\"images\": [%s], \"messages\": [{\"role\": \"user\", \"content\": \"%s\"}, {\"role\": "
                "\"assistant\", \"content\": \"Yes.\"}]}",
                images, question);
    const enum conversation_fault fault = tokenize_sample(&f->options, json.at, json.n, b, t, e);
    text_free(&json);
    return fault;
}

TEST(test_refused)
{
    static const struct {
        const char *folder, *images, *question;
        enum conversation_fault fault;
        const char *words;
    } cases[] = {
        {"llava", "\"a.png\"", "What?", SAMPLE_IMAGES, "0 <image> for 1 image;"},
        {"llava", "\"a.png\"", "<image> and <image>", SAMPLE_IMAGES, "2 <image> for 1 image;"},
        {"llava", "", "<image>\\nWhat?", SAMPLE_IMAGES, "1 <image> for 0 images;"},
        {"llava", "\"a.png\"", "<image>\\nWhat?", SAMPLE_FINE, ""}, /* its size does not matter */
        {"smolvlm", "\"a.png\"", "<image>\\nWhat?", SAMPLE_FILES, "a.png"},
        {"smolvlm", "\"chats.jsonl\"", "<image>\\nWhat?", SAMPLE_FILES, "chats.jsonl"},
        {"smolvlm", "\"http://a/b.png\"", "<image>\\nWhat?", SAMPLE_FILES, "http"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct folder f;
        struct tokenized t;
        struct bump b = {0};
        struct error e = {0};
        open_folder(&f, cases[i].folder);
        const enum conversation_fault fault = ask(&f, cases[i].images, cases[i].question, &t, &b, &e);
        if (fault != cases[i].fault) fail_msg("case %zu: fault %d: %s", i, fault, e.text);
        if (fault && !strstr(e.text, cases[i].words)) fail_msg("case %zu: %s", i, e.text);
        tokenized_free(&t);
        bump_free(&b);
        close_folder(&f);
    }
}

/* The image token must be the tokenizer's. */
TEST(test_token)
{
    struct folder f;
    struct error e = {0};
    open_folder(&f, "llava");
    const int32_t right = f.images.text.token;
    static const int32_t wrong[] = {5, 1, -1, 100000};
    for (size_t i = 0; i < COUNT(wrong); i++) {
        struct image_text x = {.token = wrong[i], .features = 2};
        assert_int_equal(image_text_open(&x, f.tokenizer, f.template, &e), PL_USAGE);
        assert_non_null(strstr(e.text, "the tokenizer's <image> has the id"));
    }
    struct tokenizer *without;
    assert_int_equal(tokenizer_open(&without, GOLDEN "original", &e), 0);
    struct image_text x = {.token = right, .features = 2};
    assert_int_equal(image_text_open(&x, without, f.template, &e), PL_USAGE);
    assert_non_null(strstr(e.text, "the tokenizer lacks the image token"));
    x = (struct image_text){.layout = IMAGE_AS_PIECES, .token = -200, .features = 2,
                            .around = {"<im_start>", "<im_end>"}};
    assert_int_equal(image_text_open(&x, without, f.template, &e), PL_USAGE);
    assert_non_null(strstr(e.text, "<im_start>"));
    tokenizer_close(without);
    close_folder(&f);
}

/* Text without turns: BOS, images, EOS; an image in the answer has no label. */
TEST(test_text)
{
    struct folder f;
    struct chat_tokens t;
    struct error e = {0};
    open_folder(&f, "llava");
    const struct text_images images = {&f.images.text, NULL, 2};
    const uint32_t n = f.images.text.features;
    assert_int_equal(chat_encode_text(f.tokenizer, "<image>", "the cat<image>", &images, &t, &e), CHAT_FINE);
    const struct token *l = t.tokens.at;
    assert_int_equal(l[0].id, tokenizer_bos(f.tokenizer));
    assert_int_equal(l[1].id, f.images.text.token);
    assert_int_equal(l[t.tokens.n - 1].id, tokenizer_eos(f.tokenizer));
    assert_int_equal(t.images.n, 2);
    assert_int_equal(t.images.at[0].begin, 1);
    assert_int_equal(t.images.at[0].end, 1 + n);
    assert_int_equal(t.answers.n, 2);
    assert_int_equal(t.answers.at[0].begin, 1 + n);
    assert_int_equal(t.answers.at[0].end, t.images.at[1].begin);
    assert_int_equal(t.answers.at[1].begin, t.tokens.n - 1);
    assert_int_equal(t.answers.at[1].end, t.tokens.n);
    chat_tokens_free(&t);
    assert_int_equal(chat_encode_text(f.tokenizer, "", "the cat", &images, &t, &e), CHAT_IMAGES);
    chat_tokens_free(&t);
    close_folder(&f);
}

/* Where all tokens have labels, images have none; the store keeps what is -200. */
TEST(test_labels_of_all)
{
    static char *paths[] = {GOLDEN "chats.jsonl"};
    char store[64];
    struct folder f;
    struct conversations c;
    struct error e = {0};
    struct token_store_key key = {0};
    open_folder(&f, "original");
    f.options.paths = paths, f.options.n_paths = 1;
    snprintf(store, sizeof store, "/tmp/plimsoll-chat-images-%ld", (long)getpid());
    if (tokenize_build(&f.options, &key, store, &e)) fail_msg("%s", e.text);
    const struct conversations_options o = {.sequence = 192, .train_on = TRAIN_ON_ALL, .packing = true,
                                            .vocabulary = f.model.vocabulary,
                                            .images = {.features = f.images.text.features, .token = f.images.text.token,
                                                       .most = 8}};
    if (conversations_open(&c, store, &o, &e)) fail_msg("%s", e.text);
    assert_int_equal(c.used.n, 6);
    assert_int_equal(c.labels, c.tokens - 6 - 8 * f.images.text.features); /* nor have first tokens */
    conversations_close(&c);
    unlink(store);
    close_folder(&f);
}

MAIN(NULL, NULL)
