/*
 * test_conversation.c: files of conversations: every format becomes the same messages, files are
 * read object by object, and what cannot be used is named with its file, line and reason.
 */
#include "data/text/conversation.h"
#include "data/text/records.h"
#include "io/file.h"
#include "io/json.h"

#include "harness.h"

/* --- records ---------------------------------------------------------------------------- */

static char path[256];

static void put(const char *bytes, size_t n)
{
    struct error e;
    if (file_write_atomic(path, bytes, n, &e)) fail_msg("%s", e.text);
}

/* Reads all objects of a text; "line:object line:object" or "line:object !error". */
static char *read_all(const char *text, size_t n)
{
    static char out[4096];
    struct records r;
    struct record x;
    struct error e = {0};
    bool more = true;
    out[0] = 0;
    put(text, n);
    int rc = records_open(&r, path, RECORD_MOST, &e);
    while (!rc && !(rc = records_next(&r, &x, &more, &e)) && more)
        snprintf(out + strlen(out), sizeof out - strlen(out), "%s%s:%.*s", *out ? " " : "", record_place(x.line).text,
                 (int)x.n, x.text);
    if (rc) {
        assert_int_equal(e.code, PL_USAGE);
        assert_non_null(strstr(e.text, path));
        snprintf(out + strlen(out), sizeof out - strlen(out), " !%s", e.text + strlen(path));
    }
    if (r.buffer) records_close(&r);
    return out;
}
#define READS(text, want) assert_string_equal(read_all(text, sizeof text - 1), want)
#define REFUSES(text, want)                                                                          \
    do {                                                                                             \
        const char *got = read_all(text, sizeof text - 1);                                           \
        if (!strstr(got, want)) fail_msg("%s: got \"%s\", expected \"%s\"", text, got, want);         \
    } while (0)

TEST(test_lists_and_lines)
{
    READS("[]", "");
    READS("[{\"a\":1}]", "1:{\"a\":1}");
    READS("\xef\xbb\xbf [\n {\"a\":[1,{}]} ,\n{}\n]\n", "2:{\"a\":[1,{}]} 3:{}");
    READS("{\"a\":\"}\\\"{\"}\n{}\r\n\n{\"b\":\"\\\\\"}", "1:{\"a\":\"}\\\"{\"} 2:{} 4:{\"b\":\"\\\\\"}");
    /* lines that do not close their object */
    READS("{\"a\": [}\n{\"b\": \"x}\n{}\n", "1:{\"a\": [} 2:{\"b\": \"x} 3:{}");
    READS("{\n\"a\": [\n{\n}\n]\n}\n{}", "1:{\n\"a\": [\n{\n}\n]\n} 7:{}"); /* json.dumps with indent 0 */
    READS("{}{}", "1:{} 1 (sample 2):{}"); /* one after the other without a line break */
    READS("{\n\"a\":\n1\n}\n{}", "1:{\n\"a\":\n1\n} 5:{}");
}

TEST(test_refused_files)
{
    REFUSES("", "the file is empty");
    REFUSES("  \n ", ":2: the file holds nothing but blanks");
    REFUSES("hello", ":1: expected JSON");
    REFUSES("\n[{}", ":2: the list of samples does not end");
    REFUSES("[{},]", ":1: expected an object");
    REFUSES("[{} {}]", ":1: expected a comma or ]");
    REFUSES("[1]", ":1: expected an object");
    REFUSES("[{}]\n{}", ":2: unexpected text");
    REFUSES("{}\n{\"a\": \"b\n", ":2: the object that begins here does not end");
    REFUSES("{}\n,{}", ":2: expected an object");
    REFUSES("{}\n\0", ":2: expected an object");
    REFUSES("PAR1\x15\x04\x15", "the table does not end with PAR1");
    REFUSES("\x1f\x8b\x08\x00 abc", "gzip data");
    REFUSES("\xff\xfe{\0}\0", "text in UTF-16");
}

/* Objects around the buffer's size, and one over the bound. */
TEST(test_long_objects)
{
    for (size_t n = 65530; n < 65545; n++) {
        char *text = mem_alloc(2 * n + 64);
        int at = sprintf(text, "{\"a\":\"");
        memset(text + at, 'x', n);
        sprintf(text + at + n, "\\\"\"}\n{\"b\":1}\n");
        struct records r;
        struct record x;
        struct error e;
        bool more;
        put(text, strlen(text));
        assert_int_equal(records_open(&r, path, RECORD_MOST, &e), 0);
        assert_int_equal(records_next(&r, &x, &more, &e), 0);
        assert_true(more && x.n == n + 10 && x.line == 1);
        assert_int_equal(records_next(&r, &x, &more, &e), 0);
        assert_true(more && x.line == 2 && !memcmp(x.text, "{\"b\":1}", x.n));
        assert_int_equal(records_next(&r, &x, &more, &e), 0);
        assert_false(more);
        records_close(&r);
        mem_free(text);
    }
}

/* A line of 1 GiB, which takes no room on the disk: it is refused after 64 MiB. */
TEST(test_huge_line)
{
    struct records r;
    struct record x;
    struct error e;
    bool more;
    put("{\"a\": \"", 7);
    if (truncate(path, 1l << 30)) skip();
    assert_int_equal(records_open(&r, path, RECORD_MOST, &e), 0);
    assert_int_equal(records_next(&r, &x, &more, &e), PL_USAGE);
    assert_non_null(strstr(e.text, ":1: the object that begins here is longer than 64 MiB"));
    assert_true(r.room <= 2 * RECORD_MOST);
    records_close(&r);
}

/* Plain text is one object, and a long one several, cut behind empty lines, lines, words or
 * characters. */
TEST(test_plain)
{
    static const struct {
        const char *unit, *end;
    } units[] = {{"the cat\nsat\n\n", "\n\n"}, {"the cat sat\n", "\n"}, {"thecatsat ", " "}, {"\xe6\xbc\xa2", ""}};
    struct records r;
    struct record x;
    struct error e = {0};
    bool more;
    char name[400];
    snprintf(name, sizeof name, "%s.txt", path);
    for (size_t i = 0; i < COUNT(units); i++) {
        struct text text = {0}, back = {0};
        struct bump b = {0};
        uint32_t objects = 0;
        while (text.n < 5 * TEXT_MOST / 2) text_printf(&text, "%s", units[i].unit);
        assert_int_equal(file_write_atomic(name, text.at, text.n, &e), 0);
        assert_int_equal(records_open_text(&r, name, &e), 0);
        while (!records_next(&r, &x, &more, &e) && more) {
            struct value *sample;
            assert_int_equal(conversation_parse(x.text, x.n, RECORD_MOST, &b, &sample, &e), SAMPLE_FINE);
            const char *part = value_get(sample, "text")->text;
            text_printf(&back, "%s", part);
            objects++;
            assert_true(strlen(part) <= TEXT_MOST && text_ends_with(part, units[i].end));
        }
        assert_int_equal(objects, 3);
        assert_string_equal(back.at, text.at);
        records_close(&r);
        text_free(&text), text_free(&back);
        bump_free(&b);
    }
    assert_int_equal(file_write_atomic(name, "\xef\xbb\xbfHi\r\n\"you\"", 12, &e), 0);
    assert_int_equal(records_open_text(&r, name, &e), 0);
    assert_true(!records_next(&r, &x, &more, &e) && more);
    struct bump b = {0};
    struct value *sample;
    assert_int_equal(conversation_parse(x.text, x.n, RECORD_MOST, &b, &sample, &e), SAMPLE_FINE);
    assert_string_equal(value_get(sample, "text")->text, "Hi\r\n\"you\"");
    bump_free(&b);
    records_close(&r);
    static const struct {
        const char *text;
        size_t n;
        const char *why;
    } bad[] = {{"abc\xff", 4, "byte 3 begins no character"}, {"ab\0c", 4, "byte 2 is 0"}};
    for (size_t i = 0; i < COUNT(bad); i++) {
        assert_int_equal(file_write_atomic(name, bad[i].text, bad[i].n, &e), 0);
        assert_int_equal(records_open_text(&r, name, &e), 0);
        assert_int_equal(records_next(&r, &x, &more, &e), PL_USAGE);
        assert_non_null(strstr(e.text, bad[i].why));
        records_close(&r);
    }
}

/* --- formats -------------------------------------------------------------------------------- */

/* The sample as JSON of messages, tools and media, or "!fault: message". */
static char *normalised(const char *json, const char *system)
{
    static char out[4096];
    struct bump b = {0};
    struct value *sample;
    struct conversation c;
    struct error e = {0};
    if (json_parse(json, strlen(json), &b, &sample, &e)) fail_msg("%s: %s", json, e.text);
    enum conversation_fault f = conversation_read(sample, system, "\n", &b, &c, &e);
    if (f) {
        assert_true(e.text[0]);
        snprintf(out, sizeof out, "!%s: %s", conversation_fault_name(f), e.text);
    } else {
        struct text t = {0};
        if (c.messages) json_write(c.messages, 0, &t);
        else text_printf(&t, "%s|%s", c.prompt, c.completion);
        for (uint32_t i = 0; i < c.beside->count; i++)
            text_printf(&t, " %s ", c.beside->items[i]->key), json_write(c.beside->items[i], 0, &t);
        if (c.media->count) text_printf(&t, " media "), json_write(c.media, 0, &t);
        snprintf(out, sizeof out, "%s", t.at);
        text_free(&t);
    }
    bump_free(&b);
    return out;
}
static void same_messages(const char *json, const char *want)
{
    char plain[4096];
    size_t n = 0;
    const char *got = normalised(json, NULL);
    bool string = false;
    for (const char *p = got; *p; p++) { /* without the blanks of the writer */
        if (*p == '"') string = !string;
        if (string || *p != ' ' || strncmp(got, "[", 1)) plain[n++] = *p;
    }
    plain[n] = 0;
    if (strcmp(plain, want)) fail_msg("%s\n  gives    %s\n  expected %s", json, plain, want);
}
#define TWO "[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\",\"content\":\"Yes\"}]"
#define THREE                                                                                                          \
    "[{\"role\":\"system\",\"content\":\"Be "                                                                          \
    "kind\"},{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\",\"content\":\"Yes\"}]"

TEST(test_formats)
{
    same_messages("{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", \"content\": "
                  "\"Yes\"}], \"prompt\": \"Hi\"}",
                  TWO);
    same_messages("{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"H\"}, "
                  "{\"type\": \"text\", \"text\": \"i\"}]}, {\"role\": \"assistant\", \"content\": \"Yes\"}]}",
                  TWO);
    same_messages("{\"id\": 3, \"conversations\": [{\"from\": \"human\", \"value\": \"Hi\"}, {\"from\": \"gpt\", "
                  "\"value\": \"Yes\"}]}",
                  TWO);
    same_messages("{\"conversations\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", "
                  "\"content\": \"Yes\"}]}",
                  TWO);
    /* by column */
    same_messages("{\"conversations\": {\"from\": [\"human\", \"gpt\"], \"value\": [\"Hi\", \"Yes\"]}}", TWO);
    same_messages("{\"system\": \"Be kind\", \"conversations\": [{\"from\": \"human\", \"value\": \"Hi\"}, {\"from\": "
                  "\"gpt\", \"value\": \"Yes\"}]}",
                  THREE);
    same_messages("{\"conversations\": [{\"from\": \"system\", \"value\": \"Be kind\"}, {\"from\": \"human\", "
                  "\"value\": \"Hi\"}, {\"from\": \"gpt\", \"value\": \"Yes\"}]}",
                  THREE);
    same_messages("{\"instruction\": \"Hi\", \"input\": \"\", \"output\": \"Yes\", \"text\": \"### Hi\"}", TWO);
    same_messages("{\"instruction\": \"Be kind\", \"input\": \"Hi\", \"output\": \"Yes\"}",
                  "[{\"role\":\"user\",\"content\":\"Be kind\\nHi\"},{\"role\":\"assistant\",\"content\":\"Yes\"}]");
    same_messages(
        "{\"instruction\": \"c\", \"output\": \"d\", \"history\": [[\"a\", \"b\"]], \"system\": \"s\"}",
        "[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\","
        "\"content\":\"b\"},{\"role\":\"user\",\"content\":\"c\"},{\"role\":\"assistant\",\"content\":\"d\"}]");
    same_messages("{\"prompt\": [{\"role\": \"user\", \"content\": \"Hi\"}], \"completion\": [{\"role\": "
                  "\"assistant\", \"content\": \"Yes\"}]}",
                  TWO);
    same_messages("{\"prompt\": \"1 + 1 =\", \"completion\": \" 2\"}", "1 + 1 =| 2");
    same_messages("{\"text\": \"Once upon\", \"meta\": {}}", "|Once upon");
    assert_string_equal(normalised("{\"instruction\": \"Hi\", \"output\": \"Yes\"}", "Be kind"),
                        normalised("{\"system\": \"Be kind\", \"messages\": [{\"role\": \"user\", \"content\": "
                                   "\"Hi\"}, {\"role\": \"assistant\", \"content\": \"Yes\"}]}",
                                   "Be brief"));
}

#define U "{\"role\": \"user\", \"content\": \"q\"}"
#define A "{\"role\": \"assistant\", \"content\": \"a\"}"
TEST(test_tools_and_media)
{
    const char *call = normalised(
        "{\"tools\": \"[{\\\"name\\\": \\\"add\\\"}]\", \"conversations\": [{\"from\": \"human\", \"value\": "
        "\"1+1?\"}, "
        "{\"from\": \"function_call\", \"value\": \"{\\\"name\\\": \\\"add\\\", \\\"arguments\\\": {\\\"a\\\": 1}}\"}, "
        "{\"from\": \"observation\", \"value\": \"2\"}, {\"from\": \"gpt\", \"value\": \"2.\"}]}",
        NULL);
    assert_non_null(strstr(
        call,
        "\"tool_calls\": [{\"type\": \"function\", \"function\": {\"name\": \"add\", \"arguments\": {\"a\": 1}}}]"));
    assert_non_null(strstr(call, "{\"role\": \"tool\", \"content\": \"2\"}"));
    assert_non_null(strstr(call, "tools [{\"type\": \"function\", \"function\": {\"name\": \"add\"}}]"));
    const char *kept =
        normalised("{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": "
                   "null, \"tool_calls\": [{\"id\": \"x\", \"type\": \"function\", \"function\": {\"name\": \"f\"}}]}, "
                   "{\"role\": \"tool\", \"tool_call_id\": \"x\", \"content\": \"1\"}, {\"role\": \"assistant\", "
                   "\"content\": \"b\"}]}",
                   NULL);
    assert_non_null(strstr(kept, "\"tool_call_id\": \"x\""));
    assert_non_null(strstr(kept, "\"tool_calls\": [{\"id\": \"x\""));
    assert_non_null(strstr(normalised("{\"image\": \"a/b.jpg\", \"conversations\": [{\"from\": \"human\", \"value\": "
                                      "\"<image>\\nHi\"}, {\"from\": \"gpt\", \"value\": \"Yes\"}]}",
                                      NULL),
                           " media [\"a/b.jpg\"]"));
    assert_non_null(strstr(normalised("{\"images\": [{\"path\": \"a.png\", \"modality\": \"CT\"}, \"b.png\"], "
                                      "\"video\": \"c.mp4\", \"conversations\": [{\"role\": \"user\", \"content\": "
                                      "\"Hi\"}, {\"role\": \"assistant\", \"content\": \"Yes\"}]}",
                                      NULL),
                           " media [\"a.png\", \"b.png\", \"video:c.mp4\"]"));
    assert_non_null(strstr(normalised("{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image_url\", "
                                      "\"image_url\": {\"url\": \"data:image/png;base64,AA\"}}, {\"type\": \"text\", "
                                      "\"text\": \"Hi\"}]}, {\"role\": \"assistant\", \"content\": \"Yes\"}]}",
                                      NULL),
                           " media [\"data:image/png;base64,AA\"]"));
    const char *options =
        normalised("{\"messages\": [" U "," A "], \"chat_template_kwargs\": {\"enable_thinking\": false}}", NULL);
    assert_non_null(strstr(options, " chat_template_kwargs {\"enable_thinking\": false}"));
}

/* The media of a conversation after they are placed, and the text of its first turn. */
static void places(const char *keys, const char *text, const char *media, const char *placed)
{
    struct bump b = {0};
    struct error e = {0};
    struct value *sample;
    struct conversation c;
    struct text found = {0};
    char *json = bump_format(
        &b,
        "{%s, \"conversations\": [{\"from\": \"human\", \"value\": \"%s\"}, {\"from\": \"gpt\", \"value\": \"a\"}]}",
        keys, text);
    assert_int_equal(conversation_parse(json, strlen(json), RECORD_MOST, &b, &sample, &e), SAMPLE_FINE);
    assert_int_equal(conversation_read(sample, NULL, "\n", &b, &c, &e), SAMPLE_FINE);
    const enum conversation_fault f = conversation_place_media(&c, &b, &e);
    if (f) assert_string_equal(e.text, placed);
    else {
        for (uint32_t i = 0; i < c.media->count; i++)
            text_printf(&found, "%s%s", i ? " " : "", c.media->items[i]->text);
        assert_string_equal(found.at, media);
        assert_string_equal(value_get(c.messages->items[0], "content")->text, placed);
    }
    assert_int_equal(f, media ? SAMPLE_FINE : SAMPLE_IMAGES);
    text_free(&found);
    bump_free(&b);
}

/* Images and videos take the order of <image> and <video>; a video may stand at <image> where there
 * are no images. */
TEST(test_videos)
{
    places("\"image\": \"a\", \"video\": \"v\"", "<video><image>?", "video:v a", "<image><image>?");
    places("\"images\": [\"a\", \"b\"], \"videos\": [\"v\", \"w\"]", "<image> <video> <video> <image>",
           "a video:v video:w b", "<image> <image> <image> <image>");
    places("\"video\": \"v\"", "<image> what?", "video:v", "<image> what?");
    places("\"image\": \"a\"", "<image> in <video> of HTML", "a", "<image> in <video> of HTML");
    places("\"image\": \"a\", \"video\": \"v\"", "<image><image>", NULL,
           "its text has 2 <image> for 1 image; expected one where each image stands");
    places("\"videos\": [\"v\", \"w\"]", "<video>", NULL,
           "its text has 1 <video> for 2 videos; expected one where each video stands");
}

static void refuses(const char *json, const char *want)
{
    const char *got = normalised(json, NULL);
    if (got[0] != '!' || !strstr(got, want)) fail_msg("%s\n  gives    %s\n  expected %s", json, got, want);
}
#define M(...) "{\"messages\": [" __VA_ARGS__ "]}"
#define S "{\"role\": \"system\", \"content\": \"s\"}"
#define T "{\"role\": \"tool\", \"content\": \"t\"}"

TEST(test_refused_samples)
{
    refuses("{\"question\": 1, \"answer\": 2}",
            "!keys of no known format: its keys are question, answer; expected messages");
    refuses("{\"chosen\": [], \"rejected\": []}", "!keys of no known format");
    refuses("{\"messages\": \"x\"}",
            "!a value of an unexpected type: messages is the string \"x\", expected a list of messages");
    refuses("{\"messages\": [\"x\"]}", "turn 1 is the string");
    refuses(M("{\"content\": \"x\"}"), "the role of turn 1 is missing, expected a string");
    refuses(M("{\"role\": \"user\", \"content\": 3}"), "expected a string or a list of parts");
    refuses(M(U ", {\"role\": \"narrator\", \"content\": \"x\"}"),
            "!unknown role: turn 2 has the role \"narrator\"; known are system");
    refuses(M(A "," U), "!turns out of order: the first message is by assistant");
    refuses(M(U "," U "," A), "!turns out of order: message 2 is by user, after one by user");
    refuses(M(U "," A "," A), "!turns out of order: message 3 is by assistant");
    refuses(M(U "," S "," A), "!turns out of order: message 2 is by system");
    refuses(M(U "," T "," A), "!turns out of order: message 2 is by tool");
    refuses(M(), "!no answer");
    refuses(M(U), "!no answer: no turn of the assistant says anything");
    refuses(M(U "," A "," U), "!no answer: the last turn is not the assistant's");
    refuses(M(U ", {\"role\": \"assistant\", \"content\": \"\"}"), "!no answer");
    refuses("{\"instruction\": \"a\", \"output\": null}", "!no answer");
    refuses("{\"text\": \"\"}", "!no answer: its text is empty");
    refuses("{\"text\": 3}", "text is the number 3, expected a string");
    refuses("{\"image\": 3, \"messages\": []}", "image is the number 3, expected a path");
    refuses("{\"instruction\": \"a\", \"output\": \"b\", \"history\": [\"c\"]}", "an item of history");
    refuses("{\"tools\": \"{\", \"messages\": [" U "," A "]}", "tools is a string that is not JSON");
    refuses("{\"conversations\": [{\"from\": \"human\", \"value\": \"a\"}, {\"from\": \"function_call\", \"value\": "
            "\"add(1)\"}]}",
            "a function_call turn is not JSON");
}

static int make_path(void **state)
{
    int rc = make_folder(state);
    snprintf(path, sizeof path, "%.200s/chats.jsonl", folder);
    return rc;
}

MAIN(make_path, remove_folder)
