/*
 * test_chat.c: conversations have the ids and labels that transformers gives them: by {% generation
 * %}, and by the rule of prefixes for a template without it (tests/golden/make_chat.py,
 * make_labels.py).
 */
#include "io/file.h"
#include "io/json.h"
#include "text/template/chat.h"

#include "harness.h"

#define GOLDEN "tests/golden/chat/"

static struct tokenizer *tokenizer;
static struct template *plain, *marked, *thinking;
static struct bump memory;
static struct value *chats, *expected;

/* The lines of a file as a list. */
static struct value *read_lines(const char *path)
{
    char *text;
    size_t n;
    struct error e;
    struct value *list = value_new(&memory, VALUE_LIST);
    if (file_read(path, 1 << 20, &text, &n, &e)) fail_msg("%s", e.text);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        struct value *v;
        if (json_parse(line, strlen(line), &memory, &v, &e)) fail_msg("%s", e.text);
        value_append(&memory, list, v);
    }
    mem_free(text);
    return list;
}

static int open_all(void **state)
{
    struct error e;
    int rc = tokenizer_open(&tokenizer, GOLDEN "model", &e);
    if (!rc) rc = template_open(&plain, GOLDEN "model", NULL, NULL, &e);
    if (!rc) rc = template_open(&marked, NULL, GOLDEN "generation.jinja", NULL, &e);
    if (!rc) rc = template_open(&thinking, NULL, GOLDEN "thinking.jinja", NULL, &e);
    if (rc) fail_msg("%s", e.text);
    chats = read_lines(GOLDEN "chats.jsonl");
    expected = read_lines(GOLDEN "expected.jsonl");
    return 0;
}

static int close_all(void **state)
{
    template_close(plain), template_close(marked), template_close(thinking);
    tokenizer_close(tokenizer);
    bump_free(&memory);
    return 0;
}

static struct value *messages_of(uint32_t i) { return (struct value *)value_get(chats->items[i], "messages"); }

/* The labels as a list of -100 and ids. */
static int32_t *labels_of(const struct chat_tokens *t)
{
    int32_t *l = mem_alloc((t->tokens.n + 1) * sizeof *l);
    for (uint32_t k = 0; k < t->tokens.n; k++) l[k] = -100;
    for (uint32_t a = 0; a < t->answers.n; a++)
        for (uint32_t k = t->answers.at[a].begin; k < t->answers.at[a].end; k++) l[k] = t->tokens.at[k].id;
    return l;
}

static void compare(const struct template *template, const char *key)
{
    uint32_t compared = 0;
    for (uint32_t i = 0; i < chats->count; i++) {
        const struct value *want = expected->items[i], *ids = value_get(want, "ids"), *labels = value_get(want, key);
        struct chat_tokens t;
        struct error e;
        if (want->kind == VALUE_NULL) continue;
        if (chat_encode(tokenizer, template, messages_of(i), NULL, NULL, &t, NULL, &e))
            fail_msg("conversation %u: %s", i, e.text);
        int32_t *l = labels_of(&t);
        assert_int_equal(t.tokens.n, ids->count);
        for (uint32_t k = 0; k < ids->count; k++) {
            assert_int_equal(t.tokens.at[k].id, (int)ids->items[k]->number);
            if (l[k] != (int)labels->items[k]->number)
                fail_msg("conversation %u, token %u: label %d, expected %d", i, k, l[k], (int)labels->items[k]->number);
        }
        compared++;
        mem_free(l);
        chat_tokens_free(&t);
    }
    assert_int_equal(compared, chats->count - 1);
}

TEST(test_prefixes)
{
    assert_false(template_marks_answers(plain));
    compare(plain, "labels");
}

TEST(test_generation)
{
    assert_true(template_marks_answers(marked));
    compare(marked, "marked");
}

/* One conversation of tests/golden/labels: how many tokens go beyond an answer, which have no
 * label. */
static uint32_t compare_marked(const struct value *x)
{
    const struct value *ids = value_get(x, "ids"), *labels = value_get(x, "labels"), *beyond = value_get(x, "beyond"),
                       *source = value_get(x, "template");
    char folder[64];
    struct tokenizer *t = NULL;
    struct template *template = NULL;
    struct chat_tokens c;
    struct error e;
    snprintf(folder, sizeof folder, "tests/golden/labels/%s", value_get(x, "tokenizer")->text);
    int rc = tokenizer_open(&t, folder, &e);
    if (!rc) rc = template_read(&template, source->text, strlen(source->text), "template", &e);
    if (!rc) rc = chat_encode(t, template, (struct value *)value_get(x, "messages"), NULL, NULL, &c, NULL, &e);
    if (rc) fail_msg("%s", e.text);
    int32_t *l = labels_of(&c);
    for (uint32_t k = 0; k < beyond->count; k++) labels->items[(uint32_t)beyond->items[k]->number]->number = -100;
    assert_int_equal(c.tokens.n, ids->count);
    for (uint32_t k = 0; k < ids->count; k++) {
        assert_int_equal(c.tokens.at[k].id, (int)ids->items[k]->number);
        if (l[k] != (int)labels->items[k]->number)
            fail_msg("%s: %s: token %u has the label %d, expected %d", folder, source->text, k, l[k],
                     (int)labels->items[k]->number);
    }
    mem_free(l);
    chat_tokens_free(&c);
    template_close(template);
    tokenizer_close(t);
    return beyond->count;
}

/* A token that has any byte of an answer has a label, also where its blank stands before {%
 * generation %}. */
TEST(test_borders)
{
    char *text;
    size_t n;
    struct value *list;
    struct error e;
    uint32_t beyond = 0;
    if (file_read("tests/golden/labels/expected.json", 1 << 20, &text, &n, &e) ||
        json_parse(text, n, &memory, &list, &e))
        fail_msg("%s", e.text);
    for (uint32_t i = 0; i < list->count; i++) beyond += compare_marked(list->items[i]);
    assert_true(list->count > 40 && beyond > 10);
    mem_free(text);
}

/* What a user types is text: the only control tokens are the template's. */
TEST(test_control_tokens)
{
    const uint32_t i = 24;
    const int32_t end = tokenizer_id(tokenizer, "<|im_end|>");
    uint32_t ends = 0;
    struct chat_tokens t;
    struct text text = {0}, back = {0};
    struct error e;
    assert_int_equal(chat_encode(tokenizer, plain, messages_of(i), NULL, NULL, &t, &text, &e), CHAT_FINE);
    int32_t *ids = mem_alloc(t.tokens.n * sizeof *ids);
    for (uint32_t k = 0; k < t.tokens.n; k++) ids[k] = t.tokens.at[k].id, ends += ids[k] == end;
    assert_int_equal(ends, 2);
    assert_int_equal(tokenizer_decode(tokenizer, ids, t.tokens.n, false, &back, &e), 0);
    assert_string_equal(back.at, text.at);
    text_free(&text), text_free(&back);
    mem_free(ids);
    chat_tokens_free(&t);
}

/* A template that renders earlier answers differently is refused, once there is an earlier
 * answer. */
TEST(test_thinking)
{
    static const char json[] =
        "[{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": \"<think>t</think>a\"}, "
        "{\"role\": \"user\", \"content\": \"r\"}, {\"role\": \"assistant\", \"content\": \"b\"}]";
    struct value *messages;
    struct chat_tokens t;
    struct error e;
    assert_int_equal(json_parse(json, sizeof json - 1, &memory, &messages, &e), 0);
    assert_int_equal(chat_encode(tokenizer, thinking, messages, NULL, NULL, &t, NULL, &e), CHAT_ANSWERS);
    assert_non_null(strstr(e.text, "{% generation %}"));
    chat_tokens_free(&t);
    messages->count = 2;
    assert_int_equal(chat_encode(tokenizer, thinking, messages, NULL, NULL, &t, NULL, &e), CHAT_FINE);
    assert_int_equal(t.answers.n, 1);
    chat_tokens_free(&t);
}

/* A conversation sets variables of the template, in training and for an answer; those that name
 * tokens are the tokenizer's. */
TEST(test_options)
{
    static const char source[] =
        "{{ eos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking is false %}<think></think>{% endif "
        "%}{% else %}{{ mode|default('none') }}{% endif %}";
    static const char json[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}], \"chat_template_kwargs\": "
                               "{\"enable_thinking\": false, \"mode\": \"x\", \"eos_token\": \"no\"}}";
    struct template *template;
    struct value *chat;
    struct chat_tokens t;
    struct text text = {0};
    struct error e;
    assert_int_equal(json_parse(json, sizeof json - 1, &memory, &chat, &e), 0);
    assert_int_equal(template_read(&template, source, sizeof source - 1, "test", &e), 0);
    struct value *messages = (struct value *)value_get(chat, "messages");
    assert_int_equal(chat_encode_prompt(tokenizer, template, messages, chat, NULL, &t, &text, &e), CHAT_FINE);
    assert_string_equal(text.at, "<|im_end|><|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think></think>");
    chat_tokens_free(&t), text_free(&text);
    assert_int_equal(chat_encode(tokenizer, template, messages, chat, NULL, &t, &text, &e), CHAT_FINE);
    assert_string_equal(text.at, "<|im_end|><|im_start|>user\nq<|im_end|>\nx");
    chat_tokens_free(&t), text_free(&text);
    value_put(&memory, chat, "chat_template_kwargs", value_string(&memory, "x"));
    assert_int_equal(chat_encode(tokenizer, template, messages, chat, NULL, &t, NULL, &e), CHAT_RENDER);
    assert_non_null(strstr(e.text, "chat_template_kwargs"));
    chat_tokens_free(&t);
    template_close(template);
}

/* A generation prompt that opens thoughts is no beginning of an answer without any: the answer
 * begins where they part. A message that begins as the prompt goes on is labelled from its first
 * byte. */
TEST(test_parting)
{
    static const char source[] =
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content.split('</think>')[-1] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}";
    static const struct {
        const char *answer, *labelled;
    } cases[] = {{"the cat", "the cat<|im_end|>\n"},
                 {"<the cat", "<the cat<|im_end|>\n"},
                 {"<think>\nno</think>the cat", "the cat<|im_end|>\n"}};
    struct template *template;
    struct error e;
    assert_int_equal(template_read(&template, source, sizeof source - 1, "test", &e), 0);
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct value *messages = value_new(&memory, VALUE_LIST);
        for (int k = 0; k < 4; k++) {
            struct value *m = value_new(&memory, VALUE_MAP);
            value_put(&memory, m, "role", value_string(&memory, k % 2 ? "assistant" : "user"));
            value_put(&memory, m, "content", value_string(&memory, k % 2 ? cases[i].answer : "why"));
            value_append(&memory, messages, m);
        }
        struct chat_tokens t;
        struct text text = {0};
        if (chat_encode(tokenizer, template, messages, NULL, NULL, &t, &text, &e)) fail_msg("%s", e.text);
        assert_int_equal(t.answers.n, 2);
        for (uint32_t a = 0; a < 2; a++) {
            const uint32_t begin = t.tokens.at[t.answers.at[a].begin].begin,
                           end = t.tokens.at[t.answers.at[a].end - 1].end;
            assert_int_equal(end - begin, strlen(cases[i].labelled));
            assert_memory_equal(text.at + begin, cases[i].labelled, end - begin);
        }
        text_free(&text);
        chat_tokens_free(&t);
    }
    template_close(template);
}

/* Empty thoughts and the end of the text are written behind the last message only: each answer is
 * what the loop writes for it. */
TEST(test_last_differs)
{
    static const char source[] = "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and "
                                 "loop.last %}<think></think>{% endif %}{{ m.content }}<|im_end|>{% endfor %}"
                                 "{% if add_generation_prompt %}<|im_start|>assistant\n{% else %}</s>{% endif %}";
    static const char *const labelled[] = {"no<|im_end|>", "<think></think>yes<|im_end|></s>"};
    static const char json[] =
        "[{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": \"no\"}, {\"role\": "
        "\"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": \"yes\"}]";
    struct template *template;
    struct value *messages;
    struct chat_tokens t;
    struct text text = {0};
    struct error e;
    assert_int_equal(json_parse(json, sizeof json - 1, &memory, &messages, &e), 0);
    assert_int_equal(template_read(&template, source, sizeof source - 1, "test", &e), 0);
    if (chat_encode(tokenizer, template, messages, NULL, NULL, &t, &text, &e)) fail_msg("%s", e.text);
    assert_int_equal(t.answers.n, 2);
    for (uint32_t a = 0; a < 2; a++) {
        const uint32_t begin = t.tokens.at[t.answers.at[a].begin].begin, end = t.tokens.at[t.answers.at[a].end - 1].end;
        assert_int_equal(end - begin, strlen(labelled[a]));
        assert_memory_equal(text.at + begin, labelled[a], end - begin);
    }
    text_free(&text);
    chat_tokens_free(&t);
    template_close(template);
}

static struct value *long_chat(uint32_t n)
{
    struct value *messages = value_new(&memory, VALUE_LIST);
    for (uint32_t k = 0; k < n; k++) {
        struct value *m = value_new(&memory, VALUE_MAP);
        value_put(&memory, m, "role", value_string(&memory, k % 2 ? "assistant" : "user"));
        value_put(&memory, m, "content",
                  value_string(&memory, bump_format(&memory, "the cat%.*s", (int)(k % 5), " sat on the mat")));
        value_append(&memory, messages, m);
    }
    return messages;
}

/* Long conversations have the labels of short ones, found in a few renderings; all of these would
 * take many times RENDER_STEPS. Those that a template does not write alike are refused. */
TEST(test_long)
{
    static const char odd[] = "{% for m in messages %}{{ m.role }}:{% if m.role == 'assistant' %}{{ '-' * (loop.index0 "
                              "% 3) }}{% endif %}{{ m.content }}\n{% endfor %}"
                              "{% if add_generation_prompt %}assistant:{{ '-' * (messages|length % 3) }}{% endif %}";
    struct value *messages = long_chat(3000);
    struct chat_tokens t, marks;
    struct template *template;
    struct error e;
    if (chat_encode(tokenizer, plain, messages, NULL, NULL, &t, NULL, &e)) fail_msg("%s", e.text);
    assert_int_equal(chat_encode(tokenizer, marked, messages, NULL, NULL, &marks, NULL, &e), CHAT_FINE);
    assert_int_equal(t.answers.n, 1500);
    assert_int_equal(marks.answers.n, 1500);
    for (uint32_t i = 0; i < t.answers.n; i++) { /* whose answers have the line break behind their end, too */
        assert_int_equal(t.answers.at[i].begin, marks.answers.at[i].begin);
        assert_int_equal(t.answers.at[i].end, marks.answers.at[i].end + 1);
    }
    chat_tokens_free(&t), chat_tokens_free(&marks);
    assert_int_equal(template_read(&template, odd, sizeof odd - 1, "test", &e), 0);
    assert_int_equal(chat_encode(tokenizer, template, messages, NULL, NULL, &t, NULL, &e), CHAT_ANSWERS);
    assert_non_null(strstr(e.text, "not written alike"));
    assert_true(t.tokens.n > 3000 && !t.answers.n);
    chat_tokens_free(&t);
    messages->count = 100;
    assert_int_equal(chat_encode(tokenizer, template, messages, NULL, NULL, &t, NULL, &e), CHAT_FINE);
    assert_int_equal(t.answers.n, 50);
    chat_tokens_free(&t);
    template_close(template);
}

/* Thoughts under any name reach the template under both names that templates use; the date of
 * training data does not depend on the day. */
TEST(test_variables)
{
    static const char source[] =
        "{{ strftime_now('%d %b %Y') }}{% for m in messages %}|{{ m.thinking }},{{ m.reasoning_content }}{% endfor %}";
    static const char json[] =
        "[{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": \"a\", \"reasoning\": "
        "\"r\"}, "
        "{\"role\": \"assistant\", \"content\": \"a\", \"thinking\": \"t\", \"reasoning_content\": null}]";
    struct template *template;
    struct value *messages;
    struct chat_tokens t;
    struct text text = {0};
    struct error e;
    assert_int_equal(json_parse(json, sizeof json - 1, &memory, &messages, &e), 0);
    assert_int_equal(template_read(&template, source, sizeof source - 1, "test", &e), 0);
    struct rendered today = {0};
    assert_int_equal(chat_render(tokenizer, template, messages, NULL, false, &today, &e), 0);
    assert_string_equal(strchr(today.text.at, '|'), "|,|r,r|t,t");
    assert_int_not_equal(strncmp(today.text.at, "26 Jul 2024", 11), 0);
    rendered_free(&today);
    /* Without an answer to locate, the text is complete. */
    messages->count = 1;
    assert_int_equal(chat_encode(tokenizer, template, messages, NULL, NULL, &t, &text, &e), CHAT_FINE);
    assert_string_equal(text.at, "26 Jul 2024|,");
    chat_tokens_free(&t);
    text_free(&text);
    template_close(template);
}

TEST(test_texts)
{
    const int32_t eos = tokenizer_eos(tokenizer);
    struct chat_tokens t;
    struct error e;
    assert_int_equal(chat_encode_text(tokenizer, "the cat", " sat", NULL, &t, &e), CHAT_FINE);
    assert_int_equal(t.answers.n, 1);
    assert_int_equal(t.answers.at[0].end, t.tokens.n);
    assert_int_equal(t.tokens.at[t.tokens.n - 1].id, eos);
    assert_int_equal(t.tokens.at[t.answers.at[0].begin].begin, 7);
    const uint32_t n = t.tokens.n;
    chat_tokens_free(&t);
    /* has its end already */
    assert_int_equal(chat_encode_text(tokenizer, "", "the cat sat<|im_end|>", NULL, &t, &e), CHAT_FINE);
    assert_int_equal(t.tokens.n, n);
    assert_true(t.answers.n == 1 && !t.answers.at[0].begin && t.answers.at[0].end == n);
    chat_tokens_free(&t);
}

MAIN(open_all, close_all)
