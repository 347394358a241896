/*
 * test_library_text.c: tokenizers and generation through the library.
 */
#include "library.h"

/* Text to ids and back, without a session. */
TEST(test_tokenizer)
{
    struct pl_tokenizer *t = pl_tokenizer_open("tests/golden/tokenizers/llama3");
    const struct pl_token *tokens = NULL;
    const char *text = NULL;
    size_t count = 0, n = 0;
    assert_int_equal(pl_tokenizer_code(t), PL_OK);
    assert_string_equal(pl_tokenizer_message(t), "");
    assert_int_equal(pl_encode(t, "the then", 8, 1, &tokens, &count), PL_OK);
    assert_true(count >= 3 && pl_token_count(t) > 300);
    assert_int_equal(tokens[0].id, pl_token_id(t, "<s>"));
    assert_int_equal(tokens[0].begin, tokens[0].end);
    assert_int_equal(tokens[count - 1].id, pl_token_id(t, "</s>"));
    assert_int_equal(tokens[count - 2].end, 8);
    assert_string_equal(pl_token_content(t, tokens[0].id), "<s>");
    int32_t ids[16];
    for (size_t i = 0; i < count; i++) ids[i] = tokens[i].id;
    assert_int_equal(pl_decode(t, ids, count, 1, &text, &n), PL_OK);
    assert_string_equal(text, "the then");
    assert_int_equal(n, 8);
    assert_int_equal(pl_decode(t, ids, count, 0, &text, &n), PL_OK);
    assert_string_equal(text, "<s>the then</s>");
    assert_int_equal(pl_encode(t, "", 0, 0, &tokens, &count), PL_OK);
    assert_int_equal(count, 0);
    assert_int_equal(pl_encode(t, "\xff", 1, 0, &tokens, &count), PL_USAGE);
    assert_string_equal(pl_tokenizer_message(t), "byte 0 of the text is not UTF-8");
    assert_int_equal(pl_decode(t, (int32_t[]){1 << 20}, 1, 0, &text, &n), PL_USAGE);
    assert_int_equal(pl_encode(t, NULL, 3, 0, &tokens, &count), PL_USAGE);
    assert_int_equal(pl_token_id(t, "no such token"), -1);
    assert_null(pl_token_content(t, -1));
    pl_tokenizer_close(t);
    t = pl_tokenizer_open("no/such/folder");
    assert_int_equal(pl_tokenizer_code(t), PL_USAGE);
    assert_int_equal(pl_encode(t, "a", 1, 0, &tokens, &count), PL_USAGE);
    assert_non_null(strstr(pl_tokenizer_message(t), "no/such/folder"));
    assert_int_equal(pl_token_count(t), 0);
    pl_tokenizer_close(t);
    assert_int_equal(pl_encode(NULL, "a", 1, 0, &tokens, &count), PL_USAGE);
}

/* Tokens as they come; the answer ends after `most` of them. */
struct heard {
    int32_t id[64];
    size_t n, most;
    struct pl_session *session;
    int code; /* of a call on the same session */
};
static int hear(int32_t id, void *user)
{
    struct heard *h = user;
    struct pl_answer a = PL_INIT(pl_answer);
    h->id[h->n++] = id;
    h->code = pl_generate(h->session, &id, 1, NULL, NULL, NULL, &a);
    return h->n >= h->most;
}

static struct pl_session *language_model(const char *path)
{
    struct pl_session *s = pl_open();
    ok(s, pl_set(s, "model.path", path));
    ok(s, pl_set(s, "memory.precision", "f32"));
    ok(s, pl_set(s, "device.kind", "cpu"));
    return s;
}

/* The answers of transformers, with a callback for each token. */
TEST(test_generate)
{
    const int32_t prompt[] = {2, 16, 32, 31, 25}, want[] = {52, 52, 52, 4, 45, 25, 55, 7, 33, 25, 25, 55};
    struct pl_session *s = language_model("tests/golden/basic");
    struct heard h = {.most = 64, .session = s};
    struct pl_generation o = PL_INIT(pl_generation);
    struct pl_answer a = PL_INIT(pl_answer);
    ok(s, pl_generation_defaults(s, &o));
    assert_true(o.max_new == 256 && o.temperature == 0 && o.top_k == 50 && o.top_p == 1 && o.repetition_penalty == 1 &&
                !o.n_ends && !o.n_stops);
    o.max_new = 12;
    ok(s, pl_generate(s, prompt, 5, &o, hear, &h, &a));
    assert_int_equal(a.count, 12);
    assert_memory_equal(a.ids, want, sizeof want);
    assert_memory_equal(h.id, want, sizeof want);
    assert_int_equal(a.end, PL_END_LENGTH);
    assert_string_equal(a.text, ""); /* the folder has no tokenizer */
    assert_true(a.bytes == 0 && h.code == PL_USAGE); /* a callback cannot call functions on its session */
    /* 17 tokens of 48 bytes, for k and v of 2 layers */
    assert_true(a.kv_cache_bytes == 4 * 1024 && a.arena_bytes > a.kv_cache_bytes);

    o.ends = (int32_t[]){4}, o.n_ends = 1;
    ok(s, pl_generate(s, prompt, 5, &o, NULL, NULL, &a));
    assert_true(a.count == 4 && a.end == PL_END_EOS);
    o.n_ends = 0;
    h = (struct heard){.most = 3, .session = s};
    ok(s, pl_generate(s, prompt, 5, &o, hear, &h, &a));
    assert_true(a.count == 3 && a.end == PL_END_CALLBACK);

    /* The same draws with the same seed, in a longer context too. */
    int32_t first[12];
    o.temperature = 2;
    o.seed = 7;
    ok(s, pl_generate(s, prompt, 5, &o, NULL, NULL, &a));
    memcpy(first, a.ids, a.count * sizeof *first);
    o.context = 100;
    const size_t n = a.count;
    ok(s, pl_generate(s, prompt, 5, &o, NULL, NULL, &a));
    assert_true(a.count == n && a.kv_cache_bytes == 4 * 4864);
    assert_memory_equal(a.ids, first, n * sizeof *first);
    pl_close(s);
}

enum { IDS_MOST = 64 };
/* Reads numbers with commas between them; returns how many. */
static size_t read_ids(const char *text, int32_t ids[IDS_MOST])
{
    size_t n = 0;
    for (char *end; *text && n < IDS_MOST; text = *end ? end + 1 : end) ids[n++] = (int32_t)strtol(text, &end, 10);
    return n;
}

/* An adapter on the model learns two rows. */
static void check_trains(const char *path)
{
    enum { N = 2, T = 8, STEPS = 4 };
    static int32_t ids[N][T];
    double loss[STEPS];
    struct pl_session *s = language_model(path);
    for (int i = 0; i < N * T; i++) ids[i / T][i % T] = i * 7 % 29;
    ok(s, pl_set(s, "data.sequence", "8"));
    ok(s, pl_set(s, "train.effective_batch", "2"));
    ok(s, pl_set(s, "train.learning_rate", "1e-2"));
    ok(s, pl_set(s, "adapter.target_modules", "all-linear"));
    ok(s, pl_start(s));
    ok(s, pl_write_input(s, "input_ids", ids, sizeof ids));
    ok(s, pl_write_input(s, "labels", ids, sizeof ids));
    for (int i = 0; i < STEPS; i++) ok(s, pl_step(s, &loss[i], NULL));
    if (!(loss[STEPS - 1] < loss[0])) fail_msg("%s: loss %g, then %g", path, loss[0], loss[STEPS - 1]);
    pl_close(s);
}

/* Models of every family: trained, and the answers of transformers (tests/golden/generate.txt). */
TEST(test_families)
{
    char folder[64], adapter[64], options[64], prompt[512], answer[512], path[128];
    FILE *f = fopen("tests/golden/generate.txt", "r");
    assert_non_null(f);
    while (fscanf(f, "%63s %63s %63s %511s %511s", folder, adapter, options, prompt, answer) == 5) {
        static const char penalty[] = "--repetition-penalty=";
        int32_t given[IDS_MOST], want[IDS_MOST];
        struct pl_generation o = PL_INIT(pl_generation);
        struct pl_answer a = PL_INIT(pl_answer);
        if (strcmp(adapter, "-")) continue;
        snprintf(path, sizeof path, "tests/golden/%s", folder);
        check_trains(path);
        struct pl_session *s = language_model(path);
        ok(s, pl_generation_defaults(s, &o));
        o.max_new = (int64_t)read_ids(answer, want);
        if (!strncmp(options, penalty, strlen(penalty))) o.repetition_penalty = atof(options + strlen(penalty));
        ok(s, pl_generate(s, given, read_ids(prompt, given), &o, NULL, NULL, &a));
        if ((int64_t)a.count != o.max_new || memcmp(a.ids, want, a.count * sizeof *want))
            fail_msg("%s: another answer than that of transformers", folder);
        pl_close(s);
    }
    fclose(f);
}

TEST(test_generate_text)
{
    struct pl_session *s = language_model("tests/golden/chat/model");
    struct pl_tokenizer *t = pl_tokenizer_open("tests/golden/chat/model");
    const struct pl_token *tokens;
    int32_t ids[16];
    size_t count, n;
    const char *text;
    struct pl_generation o = PL_INIT(pl_generation);
    struct pl_answer a = PL_INIT(pl_answer);
    assert_int_equal(pl_encode(t, "hello", 5, 1, &tokens, &count), PL_OK);
    for (size_t i = 0; i < count; i++) ids[i] = tokens[i].id;
    ok(s, pl_generation_defaults(s, &o));
    o.max_new = 8;
    ok(s, pl_generate(s, ids, count, &o, NULL, NULL, &a));
    assert_int_equal(pl_decode(t, a.ids, a.count, 1, &text, &n), PL_OK);
    assert_int_equal(a.bytes, n);
    assert_memory_equal(a.text, text, n + 1);
    /* It ends before a stop text. */
    char stop[8] = {0};
    assert_true(n >= 3);
    size_t at = n / 2, end = at + 1; /* a whole code point */
    while (at && ((unsigned char)a.text[at] & 0xc0) == 0x80) at--;
    while (((unsigned char)a.text[end] & 0xc0) == 0x80) end++;
    memcpy(stop, a.text + at, end - at);
    o.stops = (const char *const[]){stop}, o.n_stops = 1;
    ok(s, pl_generate(s, ids, count, &o, NULL, NULL, &a));
    assert_true(a.end == PL_END_STOP && a.bytes <= at && !strstr(a.text, stop));
    pl_tokenizer_close(t);
    pl_close(s);
}

/* The only frame of a video, a folder, whose features are not pooled: the answer about it as an
 * image. */
static void test_generate_video(struct pl_session *s, const struct pl_generation *o)
{
    const char *const image[] = {"tests/golden/llava_text/images/large.png"},
                      *const video[] = {"video:tests/golden/llava_text/images"};
    int32_t want[8];
    struct pl_answer a = PL_INIT(pl_answer);
    ok(s, pl_generate_images(s, "What is this?", image, 1, o, NULL, NULL, &a));
    assert_true(a.count <= 8);
    memcpy(want, a.ids, a.count * sizeof *want);
    const size_t count = a.count;
    refused(s, pl_generate_images(s, "What is this?", video, 1, o, NULL, NULL, &a), "set data.max_frames");
    ok(s, pl_set(s, "data.max_frames", "1"));
    ok(s, pl_generate_images(s, "What is this?", video, 1, o, NULL, NULL, &a));
    assert_int_equal(a.count, count);
    assert_memory_equal(a.ids, want, count * sizeof *want);
}

/* A text about an image: the ids of transformers (tests/golden/llava_text). */
TEST(test_generate_images)
{
    static const int32_t want[] = {32, 307, 296, 73, 296, 73, 296, 307};
    const char *const images[] = {"tests/golden/llava_text/images/small.png",
                                  "tests/golden/llava_text/images/large.png"};
    struct pl_session *s = language_model("tests/golden/llava_text/llava");
    struct pl_generation o = PL_INIT(pl_generation);
    struct pl_answer a = PL_INIT(pl_answer);
    ok(s, pl_generation_defaults(s, &o));
    o.max_new = 8;
    ok(s, pl_generate_images(s, "USER: <image>\nWhat is this? ASSISTANT: ", images, 1, &o, NULL, NULL, &a));
    assert_int_equal(a.count, 8);
    assert_memory_equal(a.ids, want, sizeof want);
    ok(s, pl_generate_images(s, "What is this?", images, 2, &o, NULL, NULL, &a)); /* more images: another plan */
    ok(s, pl_generate_images(s, "What is this?", NULL, 0, &o, NULL, NULL, &a));
    ok(s, pl_generate_images(s, "USER: <image>\nWhat is this? ASSISTANT: ", images, 1, &o, NULL, NULL, &a));
    assert_memory_equal(a.ids, want, sizeof want);
    assert_int_equal(pl_generate_images(NULL, "", NULL, 0, NULL, NULL, NULL, &a), PL_USAGE);
    refused(s, pl_generate_images(s, NULL, NULL, 0, &o, NULL, NULL, &a), "the text is NULL");
    refused(s, pl_generate_images(s, "x", NULL, 1, &o, NULL, NULL, &a), "the images are NULL");
    refused(s, pl_generate_images(s, "x", images, 1, &o, NULL, NULL, NULL), "the struct is NULL");
    refused(s, pl_generate_images(s, "<image>", images, 2, &o, NULL, NULL, &a), "1 <image>, and 2 images are given");
    refused(s, pl_generate_images(s, "x", (const char *const[]){"none.png"}, 1, &o, NULL, NULL, &a), "none.png");
    test_generate_video(s, &o);
    pl_close(s);
    s = language_model("tests/golden/chat/model");
    refused(s, pl_generate_images(s, "x", images, 1, NULL, NULL, NULL, &a), "text");
    pl_close(s);
    s = language_model("tests/golden/llava_clip_llama");
    refused(s, pl_generate_images(s, "x", images, 1, NULL, NULL, NULL, &a), "tokenizer");
    pl_close(s);
}

TEST(test_generate_refuses)
{
    const int32_t prompt[] = {2, 16, 32, 31, 25};
    struct pl_session *s = language_model("tests/golden/basic");
    struct pl_generation o = PL_INIT(pl_generation);
    struct pl_answer a = PL_INIT(pl_answer);
    assert_int_equal(pl_generate(NULL, prompt, 5, NULL, NULL, NULL, &a), PL_USAGE);
    refused(s, pl_generate(s, prompt, 5, NULL, NULL, NULL, NULL), "the struct is NULL");
    refused(s, pl_generate(s, NULL, 5, NULL, NULL, NULL, &a), "the ids are NULL");
    refused(s, pl_generate(s, prompt, 0, NULL, NULL, NULL, &a), "the prompt has no tokens");
    refused(s, pl_generate(s, (int32_t[]){61}, 1, NULL, NULL, NULL, &a), "has the id 61");
    ok(s, pl_generation_defaults(s, &o));
    o.top_p = 2;
    refused(s, pl_generate(s, prompt, 5, &o, NULL, NULL, &a), "top-p is 2");
    o.top_p = 1, o.context = 5;
    refused(s, pl_generate(s, prompt, 5, &o, NULL, NULL, &a), "leaves no room");
    o.context = 0, o.max_new = 0;
    refused(s, pl_generate(s, prompt, 5, &o, NULL, NULL, &a), "max_new is 0");
    o.max_new = 4, o.stops = (const char *const[]){"x"}, o.n_stops = 1;
    refused(s, pl_generate(s, prompt, 5, &o, NULL, NULL, &a), "stops need a tokenizer");
    o.n_stops = 0;
    ok(s, pl_generate(s, prompt, 5, &o, NULL, NULL, &a)); /* nothing of that broke it */
    ok(s, pl_set(s, "data.tokenizer", "no/such/tokenizer.json")); /* one that was asked for must be there */
    refused(s, pl_generate(s, prompt, 5, &o, NULL, NULL, &a), "pl_generate: data.tokenizer");
    ok(s, pl_set(s, "data.tokenizer", "null"));
    ok(s, pl_set_memory(s, "10KiB"));
    assert_int_equal(pl_generate(s, prompt, 5, &o, NULL, NULL, &a), PL_NOFIT);
    ok(s, pl_set_memory(s, "1MiB"));
    ok(s, pl_generate(s, prompt, 5, &o, NULL, NULL, &a));
    assert_true(a.arena_bytes <= 1 << 20);
    pl_close(s);
    s = pl_open();
    refused(s, pl_generation_defaults(s, &o), "model");
    ok(s, pl_set(s, "model.preset", "sam-tiny"));
    refused(s, pl_generate(s, prompt, 5, NULL, NULL, NULL, &a), "generates no text");
    pl_close(s);
}

MAIN(make_folder, remove_folder)
