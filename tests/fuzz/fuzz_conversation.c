/*
 * fuzz_conversation.c: any bytes as a file of conversations: the objects of the file, and each as a
 * sample of any format. Messages of a sample that is accepted have known roles in order, and texts;
 * its images and videos find their places in these, or are refused. As plain text the file is given
 * back whole.
 */

#include "data/text/conversation.h"
#include "data/text/records.h"
#include "files.h"
#include "io/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_sample(const struct conversation *c)
{
    if (!c->messages) CHECK(*c->completion);
    for (uint32_t i = 0; c->messages && i < c->messages->count; i++) {
        const struct value *role = value_get(c->messages->items[i], "role"),
                           *content = value_get(c->messages->items[i], "content");
        CHECK(role && role->kind == VALUE_STRING && content && content->kind == VALUE_STRING);
        CHECK(!strcmp(role->text, "user") || !strcmp(role->text, "assistant") || !strcmp(role->text, "tool") ||
              (!i && !strcmp(role->text, "system")));
    }
    for (uint32_t i = 0; i < c->media->count; i++) CHECK(c->media->items[i]->kind == VALUE_STRING);
    struct error e = {0};
    CHECK(c->videos <= c->media->count && (!conversation_check_images(c, &e) || e.text[0]));
}

/* Images and videos that find their places are as many as before, each with an <image>. */
static void check_media(struct conversation *c, struct bump *b)
{
    struct error e = {0};
    const uint32_t n = c->media->count;
    const enum conversation_fault f = conversation_place_media(c, b, &e);
    CHECK(f ? f == SAMPLE_IMAGES && e.text[0] : c->media->count == n && conversation_images(c) == n);
    if (!f) check_sample(c);
}

/* The objects of the file as plain text hold all of it but a byte order mark. */
static void check_text(const uint8_t *data, size_t size)
{
    struct records r;
    struct record x;
    struct error e = {0};
    struct text all = {0};
    bool more = true;
    if (records_open_text(&r, fuzz_put("a.txt", data, size), &e)) {
        CHECK(e.code == PL_USAGE && e.text[0]);
        return;
    }
    int rc;
    while (!(rc = records_next(&r, &x, &more, &e)) && more) {
        struct bump b = {0};
        struct value *sample;
        CHECK(!json_parse(x.text, x.n, &b, &sample, &e), "%s", e.text);
        const char *text = value_get(sample, "text")->text;
        CHECK(*text && strlen(text) <= TEXT_MOST);
        text_append(&all, text, strlen(text));
        bump_free(&b);
    }
    const size_t mark = size >= 3 && !memcmp(data, "\xef\xbb\xbf", 3) ? 3 : 0;
    CHECK(rc ? e.code == PL_USAGE && e.text[0]
             : all.n == size - mark && (!all.n || !memcmp(all.at, data + mark, all.n)));
    text_free(&all);
    records_close(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct records r;
    struct record x;
    struct error e = {0};
    bool more = true;
    uint64_t line = 1;
    fuzz_begin();
    check_text(data, size);
    const char *path = fuzz_put("a.jsonl", data, size);
    if (records_open(&r, path, RECORD_MOST, &e)) {
        CHECK(e.code == PL_USAGE && e.text[0]);
        return 0;
    }
    while (!records_next(&r, &x, &more, &e) && more) {
        struct bump b = {0};
        struct value *sample;
        struct conversation c;
        CHECK(x.n >= 2 && x.n <= size && record_line(x.line) >= line && x.text[0] == '{');
        line = record_line(x.line);
        if (!json_parse(x.text, x.n, &b, &sample, &e)) {
            if (!conversation_read(sample, x.line & 1 ? "Be brief" : NULL, "\n", &b, &c, &e))
                check_sample(&c), check_media(&c, &b);
            else CHECK(e.text[0]);
            CHECK(!conversation_read_chat(sample, "\n", &b, &c, &e) || e.text[0]);
            CHECK(conversation_read_prompt(sample, "\n", &b, &c, &e) ? e.text[0]
                                                                     : c.media && (!c.messages || c.messages->count),
                  "a prompt without anything");
        }
        bump_free(&b);
    }
    CHECK(!more || e.code == PL_USAGE, "a failure without a message");
    records_close(&r);
    return 0;
}
