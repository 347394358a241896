/*
 * test_library_models.c: the library's calls on model folders besides training: chats, masks,
 * scores, merged adapters; and what becomes of a call that cannot get memory.
 */
#include "library.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

static struct pl_session *model(const char *path)
{
    struct pl_session *s = open_f32();
    ok(s, pl_set(s, "model.path", path));
    ok(s, pl_set(s, "device", "cpu"));
    return s;
}

/* A chat is the text that the model's template renders. */
TEST(test_chat)
{
    struct pl_session *s = model("tests/golden/chat/model");
    struct pl_generation o = PL_INIT(pl_generation);
    struct pl_answer a = PL_INIT(pl_answer), b = PL_INIT(pl_answer);
    int32_t first[8];
    ok(s, pl_generation_defaults(s, &o));
    o.max_new = 8;
    ok(s, pl_chat(s, "[{\"role\": \"user\", \"content\": \"hello\"}]", NULL, 0, &o, NULL, NULL, &a));
    assert_true(a.count > 0 && a.count <= 8);
    memcpy(first, a.ids, a.count * sizeof *first);
    const size_t n = a.count;
    ok(s, pl_chat(s, "{\"messages\": [{\"role\": \"user\", \"content\": \"hello\"}]}", NULL, 0, &o, NULL, NULL, &b));
    assert_true(b.count == n && !memcmp(first, b.ids, n * sizeof *first));
    refused(s, pl_chat(s, "[{\"role\": \"user\"", NULL, 0, &o, NULL, NULL, &a), "pl_chat");
    refused(s, pl_chat(s, "[]", NULL, 0, &o, NULL, NULL, &a), "pl_chat");
    refused(s, pl_chat(s, NULL, NULL, 0, &o, NULL, NULL, &a), "NULL");
    pl_close(s);
}

static int cancel_second(int32_t id, void *user)
{
    static int n;
    if (++n == 2) pl_cancel(user, 1);
    return 0;
}

/* A cancelled answer holds the tokens so far. */
TEST(test_cancel_answer)
{
    struct pl_session *s = model("tests/golden/basic");
    struct pl_generation o = PL_INIT(pl_generation);
    struct pl_answer a = PL_INIT(pl_answer);
    ok(s, pl_generation_defaults(s, &o));
    o.max_new = 12;
    assert_int_equal(pl_generate(s, (int32_t[]){2, 16, 32, 31, 25}, 5, &o, cancel_second, s, &a), PL_STOPPED);
    assert_true(a.count == 2 && a.ids[0] == 52 && a.end == PL_END_CALLBACK);
    ok(s, pl_generate(s, (int32_t[]){2, 16, 32, 31, 25}, 5, &o, NULL, NULL, &a));
    assert_int_equal(a.count, 12);
    pl_close(s);
}

TEST(test_predict)
{
    enum { MOST = 1 << 20 };
    static uint8_t a[MOST], b[MOST], rgb[MOST * 3];
    struct pl_session *s = model("tests/golden/predict/model");
    const float box[4] = {20, 10, 180.5f, 100}, points[2] = {150, 60};
    const int32_t label[1] = {1};
    struct pl_image image = PL_INIT(pl_image);
    struct pl_prompt prompt[2] = {PL_INIT(pl_prompt), PL_INIT(pl_prompt)};
    struct pl_masks m = PL_INIT(pl_masks);
    refused(s, pl_mask(s, 0, -1, a, 1), "call pl_predict first");
    image.path = "tests/golden/predict/wide.png";
    for (int i = 0; i < 2; i++) prompt[i].points = points, prompt[i].labels = label, prompt[i].n_points = 1;
    prompt[0].box = prompt[1].box = box;
    ok(s, pl_predict(s, &image, prompt, 2, 0, &m));
    assert_true(m.width > 0 && m.height > 0 && m.width * m.height <= MOST && m.prompts == 2 && m.candidates == 3);
    const uint64_t bytes = (uint64_t)(m.width * m.height);
    ok(s, pl_mask(s, 0, -1, a, bytes));
    ok(s, pl_mask(s, 1, m.best[1], b, bytes));
    assert_memory_equal(a, b, bytes); /* both prompts are the same */
    uint64_t set = 0;
    for (uint64_t i = 0; i < bytes; i++) set += a[i] == 1;
    assert_true(set > 0 && m.scores[m.best[0]] >= m.scores[0] && m.arena_bytes > 0);
    refused(s, pl_mask(s, 2, -1, a, bytes), "prompt 2");
    refused(s, pl_mask(s, 0, 9, a, bytes), "candidate 9");
    refused(s, pl_mask(s, 0, 0, a, 7), "7 bytes");
    /* Pixels instead of a file: any image of that size is accepted. */
    struct pl_image pixels = PL_INIT(pl_image);
    pixels.rgb = rgb, pixels.width = m.width, pixels.height = m.height;
    prompt[0].box = NULL;
    ok(s, pl_predict(s, &pixels, prompt, 1, 1, &m));
    assert_int_equal(m.candidates, 1);
    ok(s, pl_mask(s, 0, 0, b, bytes));

    pixels.path = image.path;
    refused(s, pl_predict(s, &pixels, prompt, 1, 0, &m), "one of the two");
    refused(s, pl_predict(s, &image, prompt, 2, 0, &m), "prompt 1 has other points");
    refused(s, pl_predict(s, &image, prompt, 0, 0, &m), "0 prompts");
    prompt[0].n_points = 0;
    refused(s, pl_predict(s, &image, prompt, 1, 0, &m), "neither points");
    prompt[0].n_points = 1;
    image.path = "none.png";
    refused(s, pl_predict(s, &image, prompt, 1, 0, &m), "none.png");
    refused(s, pl_mask(s, 0, 0, b, bytes), "call pl_predict first");
    pl_close(s);

    s = model("tests/golden/basic");
    image.path = "tests/golden/predict/wide.png";
    refused(s, pl_predict(s, &image, prompt, 1, 0, &m), "pl_predict");
    pl_close(s);
}

TEST(test_score)
{
    char data[160];
    struct pl_scores x = PL_INIT(pl_scores);
    struct pl_session *s = open_f32();
    snprintf(data, sizeof data, "%s/held-out", folder);
    FILE *f = fopen(data, "w");
    for (int i = 0; i < 4000; i++) fputc(i * 7 % 60, f);
    fclose(f);
    refused(s, pl_score(s, &x), "model");
    ok(s, pl_set(s, "model.path", "tests/golden/train_untied"));
    refused(s, pl_score(s, &x), "data.validation");
    ok(s, pl_set(s, "data.format", "bytes"));
    ok(s, pl_set(s, "data.sequence", "16"));
    ok(s, pl_set(s, "data.validation", data));
    const int code = pl_score(s, &x);
    if (code) printf("%s\n", pl_message(s));
    assert_true(code || (x.loss > 0 && x.tokens > 0 && x.samples > 0 && x.masks == 0 && isnan(x.iou)));
    assert_int_equal(code, PL_OK);
    pl_close(s);
}

TEST(test_merge)
{
    char out[160];
    struct pl_session *s = open_f32();
    struct stat st;
    snprintf(out, sizeof out, "%s/merged", folder);
    ok(s, pl_merge(s, "tests/golden/peft_merge/tied", "tests/golden/peft_merge/tied_lora", out));
    assert_string_equal(pl_model_path(s), out);
    strcat(out, "/config.json");
    assert_int_equal(stat(out, &st), 0);
    refused(s, pl_merge(s, "tests/golden/peft_merge/tied", "tests/golden/peft_merge/tied_lora", folder), "pl_merge");
    refused(s, pl_merge(s, "tests/golden/peft_merge/tied", "none", "other"), "none");
    refused(s, pl_merge(s, NULL, "none", "other"), "NULL");
    pl_close(s);
}

/* A call that cannot get memory returns, with a session that cannot go on, and others can. */
TEST(test_no_abort)
{
    const pid_t child = fork();
    if (!child) {
        struct pl_session *s = pl_open(), *other = pl_open();
        pl_set(s, "model.preset", "llama-tiny");
        static char long_name[1 << 20];
        memset(long_name, 'x', sizeof long_name - 1);
        const struct rlimit none = {1 << 20, 1 << 20};
        setrlimit(RLIMIT_AS, &none); /* less than there is: nothing more is given */
        int code = 0;
        for (int i = 0; i < 4096 && code != PL_FAIL; i++) code = pl_set(s, "data.train", long_name);
        if (code != PL_FAIL || !strstr(pl_message(s), "out of host memory")) _exit(1);
        if (pl_set(s, "train.steps", "3") != PL_FAIL || !strstr(pl_message(s), "out of host memory")) _exit(2);
        if (pl_set(other, "train.steps", "nothing") != PL_USAGE) _exit(3);
        pl_close(s);
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFEXITED(status) || WEXITSTATUS(status)) fail_msg("status %x", (unsigned)status);
}

MAIN(make_folder, remove_folder)
