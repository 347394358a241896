/*
 * fuzz_template.c: any bytes as a chat template, rendered with a conversation. Whatever is rendered
 * must be UTF-8, and its ranges must be ascending, apart and within the text.
 */

#include "io/json.h"
#include "text/template/template.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char variables[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"Be brief.\"}, {\"role\": \"user\", \"content\": [{\"type\": "
    "\"text\", \"text\": \"\\u00c4 <|im_end|>\"}]},"
    " {\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"id\": \"c0\", \"function\": {\"name\": \"f\", "
    "\"arguments\": {\"a\": [1, 2.5, true]}}}]}],"
    " \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"type\": \"object\", "
    "\"properties\": {\"a\": {\"type\": \"array\", \"items\": {\"type\": \"number\"}}}}}}],"
    " \"add_generation_prompt\": true, \"bos_token\": \"<s>\", \"eos_token\": \"</s>\", \"strftime_now\": "
    "\"2026-01-31\", \"x\": \" a\\n b \\u4f60 \", \"n\": 3}";

static void check_ranges(const struct byte_range *at, uint32_t n, size_t size)
{
    for (uint32_t i = 0; i < n; i++) {
        CHECK(at[i].begin < at[i].end && at[i].end <= size, "a range outside of the text");
        CHECK(!i || at[i - 1].end < at[i].begin, "ranges that touch");
    }
}

static void check_text(const char *text, size_t n)
{
    for (size_t i = 0; i < n;) {
        uint32_t code;
        const int k = utf8_decode(text + i, n - i, &code);
        CHECK(k, "the text is not UTF-8 at %zu", i);
        i += (size_t)k;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct error e = {0};
    struct template *t = NULL;
    if (template_read(&t, (const char *)data, size, "input", &e)) {
        CHECK(e.code == PL_USAGE && e.text[0] && !t, "a refusal without a message");
        return 0;
    }
    struct bump memory = {0};
    struct value *v = NULL;
    struct rendered out;
    CHECK(!json_parse(variables, strlen(variables), &memory, &v, &e), "%s", e.text);
    if (template_render(t, v, &out, &e)) {
        CHECK(e.code == PL_USAGE && e.text[0], "a failure without a message");
    } else {
        check_text(out.text.at, out.text.n);
        check_ranges(out.data.at, out.data.n, out.text.n);
        check_ranges(out.answers.at, out.answers.n, out.text.n);
    }
    rendered_free(&out);
    bump_free(&memory);
    template_close(t);
    return 0;
}
