/*
 * test_tokenizer.c: tokenizers: the ids, offsets and texts of the tokenizers library and of
 * SentencePiece, special tokens in data, decoding as a stream, and files that are refused.
 *
 * tests/golden/make_tokenizers.py made the vocabularies and the answers.
 */
#include <pthread.h>

#include "io/file.h"
#include "io/json.h"
#include "text/tokenizer/tokenizer_parts.h"
#include "text/pattern.h"
#include "text/tokenizer/tokenizer.h"
#include "text/unicode.h"

#include "harness.h"

#define GOLDEN "tests/golden/tokenizers"

static struct tokenizer *open_golden(const char *name)
{
    char path[512];
    struct error e = {0};
    struct tokenizer *t = NULL;
    snprintf(path, sizeof path, GOLDEN "/%s", name);
    if (tokenizer_open(&t, path, &e)) fail_msg("%s", e.text);
    return t;
}

/* --- the answers of the libraries ------------------------------------------------------------- */

static void widen(const char *text, size_t n, uint32_t *begin, uint32_t *end)
{
    while (*begin && *begin < n && ((unsigned char)text[*begin] & 0xc0) == 0x80) --*begin;
    while (*end < n && ((unsigned char)text[*end] & 0xc0) == 0x80) ++*end;
}

static void expect_ids(const struct tokenizer *t, const struct value *c, const char *key, bool special,
                       const char *where)
{
    const char *text = value_get(c, "text")->text;
    const struct value *ids = value_get(c, key), *bytes = special ? NULL : value_get(c, "bytes");
    struct token_list l = {0};
    struct error e = {0};
    if (tokenizer_encode(t, text, strlen(text), NULL, 0, special, &l, &e)) fail_msg("%s: %s", where, e.text);
    if (l.n != ids->count) fail_msg("%s, %s: %u tokens, expected %u", where, key, l.n, ids->count);
    for (uint32_t i = 0; i < l.n; i++) {
        int64_t id, begin, end;
        assert_int_equal(value_as_int(ids->items[i], key, &id, &e), PL_OK);
        if (l.at[i].id != id) fail_msg("%s, %s: token %u is %d, expected %d", where, key, i, l.at[i].id, (int)id);
        if (!bytes) continue;
        value_as_int(value_at(bytes->items[i], 0), "begin", &begin, &e);
        value_as_int(value_at(bytes->items[i], 1), "end", &end, &e);
        uint32_t b = l.at[i].begin, f = l.at[i].end;
        widen(text, strlen(text), &b, &f);
        const bool wide = value_get(c, "wide")->truth;
        if (wide ? b > begin || f < end : b != begin || f != end)
            fail_msg("%s: token %u has the bytes %u-%u, expected %d-%d", where, i, b, f, (int)begin, (int)end);
    }
    token_list_free(&l);
}

static void expect_text(const struct tokenizer *t, const struct value *c, const char *key, bool skip, const char *where)
{
    const struct value *ids = value_get(c, "ids");
    const char *expected = value_get(c, key)->text;
    int32_t *list = mem_alloc((ids->count + 1) * sizeof *list);
    struct text out = {0}, streamed = {0};
    struct error e = {0};
    struct token_stream *s = token_stream_begin(t, skip);
    for (uint32_t i = 0; i < ids->count; i++) {
        list[i] = (int32_t)ids->items[i]->number;
        assert_int_equal(token_stream_put(s, list[i], &streamed, &e), PL_OK);
        assert_int_equal(utf8_check(streamed.n ? streamed.at : "", streamed.n), streamed.n);
    }
    token_stream_end(s, &streamed);
    if (tokenizer_decode(t, list, ids->count, skip, &out, &e)) fail_msg("%s: %s", where, e.text);
    text_append(&out, "", 0);
    text_append(&streamed, "", 0);
    if (strcmp(out.at, expected)) fail_msg("%s, %s: \"%s\", expected \"%s\"", where, key, out.at, expected);
    if (!strstr(where, "<0x") && strcmp(streamed.at, expected))
        fail_msg("%s, %s: streamed \"%s\", expected \"%s\"", where, key, streamed.at, expected);
    text_free(&out);
    text_free(&streamed);
    mem_free(list);
}

static void follow(const char *name)
{
    char path[512], where[512];
    struct error e = {0};
    struct bump tree = {0};
    struct value *cases;
    snprintf(path, sizeof path, GOLDEN "/%s/cases.json", name);
    if (json_read_file(path, 1 << 20, &tree, &cases, &e)) fail_msg("%s", e.text);
    struct tokenizer *t = open_golden(name);
    for (uint32_t i = 0; i < cases->count; i++) {
        const struct value *c = cases->items[i];
        snprintf(where, sizeof where, "%s: \"%.100s\"", name, value_get(c, "text")->text);
        for (int again = 0; again < 2; again++) { /* the second time from the cache of words */
            expect_ids(t, c, "ids", true, where);
            expect_ids(t, c, "plain", false, where);
        }
        expect_text(t, c, "decoded", false, where);
        expect_text(t, c, "skipped", true, where);
    }
    tokenizer_close(t);
    bump_free(&tree);
}

TEST(test_golden)
{
    struct names l;
    struct error e = {0};
    if (dir_list(GOLDEN, &l, &e)) fail_msg("%s", e.text);
    assert_true(l.n >= 39);
    for (uint32_t i = 0; i < l.n; i++) follow(l.at[i]);
    names_free(&l);
}

/* --- encoding --------------------------------------------------------------------------------- */

static uint32_t count(const struct token_list *l, int32_t id)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < l->n; i++) n += l->at[i].id == id;
    return n;
}

/* What a user typed never becomes a control token; what the template wrote does. */
TEST(test_data)
{
    const char text[] = "<|im_start|>user says <|im_end|> and <image><|im_end|>";
    const char *user = strstr(text, "user"), *end = strrchr(text, '<');
    struct tokenizer *t = open_golden("qwen");
    struct error e = {0};
    struct token_list l = {0};
    const int32_t stop = tokenizer_id(t, "<|im_end|>"), start = tokenizer_id(t, "<|im_start|>"),
                  image = tokenizer_id(t, "<image>");
    struct byte_range data[] = {{(uint32_t)(user - text), (uint32_t)(end - text)}};
    assert_int_equal(tokenizer_encode(t, text, strlen(text), NULL, 0, false, &l, &e), PL_OK);
    assert_int_equal(count(&l, stop), 2);
    l.n = 0;
    assert_int_equal(tokenizer_encode(t, text, strlen(text), data, 1, false, &l, &e), PL_OK);
    assert_int_equal(count(&l, start), 1);
    assert_int_equal(count(&l, stop), 1);
    assert_int_equal(count(&l, image), 1); /* added, but not special */
    assert_int_equal(l.at[l.n - 1].id, stop);
    /* Tokens lie one behind the other and leave no byte out. */
    for (uint32_t i = 0, at = 0; i < l.n; at = l.at[i++].end) assert_int_equal(l.at[i].begin, at);
    /* Across a border, of either side, and with an empty range elsewhere. */
    for (uint32_t at = 0; at < 3; at++) {
        struct byte_range pair[] = {{0, 0},
                                    {at ? (uint32_t)(end - text) + at : 3,
                                     at == 2 ? (uint32_t)strlen(text) : (uint32_t)(end - text) + 4 + at}};
        l.n = 0;
        assert_int_equal(tokenizer_encode(t, text, strlen(text), pair, 2, false, &l, &e), PL_OK);
        assert_int_equal(count(&l, stop), at ? 1 : 0);
        assert_int_equal(count(&l, start), at ? 1 : 0);
    }
    token_list_free(&l);
    tokenizer_close(t);
}

TEST(test_invalid_text)
{
    struct tokenizer *t = open_golden("gpt2");
    struct token_list l = {0};
    struct error e = {0};
    static const char *const bad[] = {"abc\xff", "abc\xe2\x96", "abc\xed\xa0\x80", "abc\xc0\x80",
                                      "abc\xf4\x90\x80\x80"};
    for (size_t i = 0; i < COUNT(bad); i++) {
        assert_int_equal(tokenizer_encode(t, bad[i], strlen(bad[i]), NULL, 0, true, &l, &e), PL_USAGE);
        assert_string_equal(e.text, "byte 3 of the text is not UTF-8");
        assert_int_equal(l.n, 0);
    }
    assert_int_equal(tokenizer_encode(t, "a\0b", 3, NULL, 0, true, &l, &e), PL_OK); /* NUL is a character */
    assert_int_equal(l.n, 3);
    struct text out = {0};
    assert_int_equal(tokenizer_decode(t, (int32_t[]){l.at[0].id, l.at[1].id, l.at[2].id}, 3, false, &out, &e), PL_OK);
    assert_int_equal(out.n, 3);
    assert_memory_equal(out.at, "a\0b", 3);
    assert_int_equal(tokenizer_decode(t, (int32_t[]){1, tokenizer_size(t)}, 2, false, &out, &e), PL_USAGE);
    assert_non_null(strstr(e.text, "id 2 of 2 is"));
    assert_int_equal(tokenizer_decode(t, (int32_t[]){-1}, 1, false, &out, &e), PL_USAGE);
    text_free(&out);
    token_list_free(&l);
    tokenizer_close(t);
}

/* A text of a million characters without a blank, and runs of blanks: quick, and the text comes
 * back. */
TEST(test_long)
{
    static const char *const names[] = {"gpt2", "llama2", "sp_llama2", "unigram_bytes"};
    for (size_t k = 0; k < COUNT(names); k++) {
        struct tokenizer *t = open_golden(names[k]);
        struct text text = {0}, back = {0};
        struct token_list l = {0};
        struct error e = {0};
        for (int i = 0; i < 40000; i++) text_append(&text, "thethen", 7);
        for (int i = 0; i < 20000; i++) text_append(&text, i % 1000 ? " " : "x", 1);
        text_append(&text, "y", 1);
        assert_int_equal(tokenizer_encode(t, text.at, text.n, NULL, 0, false, &l, &e), PL_OK);
        int32_t *ids = mem_alloc(l.n * sizeof *ids);
        for (uint32_t i = 0; i < l.n; i++) ids[i] = l.at[i].id;
        assert_int_equal(tokenizer_decode(t, ids, l.n, true, &back, &e), PL_OK);
        assert_int_equal(back.n, text.n);
        assert_memory_equal(back.at, text.at, text.n);
        mem_free(ids);
        text_free(&text);
        text_free(&back);
        token_list_free(&l);
        tokenizer_close(t);
    }
}

static void *encode_much(void *argument)
{
    const struct tokenizer *t = argument;
    uint64_t hash = 0;
    for (int i = 0; i < 300; i++) {
        char text[256];
        struct token_list l = {0};
        struct error e;
        snprintf(text, sizeof text, "the %d then %d don't %x naïve", i, i * i, i * 7);
        assert_int_equal(tokenizer_encode(t, text, strlen(text), NULL, 0, true, &l, &e), PL_OK);
        hash = hash_bytes(l.at, l.n * sizeof *l.at, hash);
        token_list_free(&l);
    }
    return (void *)(uintptr_t)(hash >> 1);
}

TEST(test_threads)
{
    struct tokenizer *t = open_golden("qwen");
    const uint64_t expected = (uintptr_t)encode_much(t);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, encode_much, t), 0);
    for (int i = 0; i < 4; i++) {
        void *got;
        pthread_join(threads[i], &got);
        assert_true((uintptr_t)got == expected);
    }
    tokenizer_close(t);
}

/* --- streams ---------------------------------------------------------------------------------- */

/* Each character comes when its last byte does. */
TEST(test_stream)
{
    static const struct {
        const char *name, *text;
    } cases[] = {{"gpt2", "日🦄"}, {"llama2", "🦄"}, {"sp_llama2", "🦄"}};
    for (size_t k = 0; k < COUNT(cases); k++) {
        struct tokenizer *t = open_golden(cases[k].name);
        struct token_list l = {0};
        struct text out = {0};
        struct error e;
        tokenizer_encode(t, cases[k].text, strlen(cases[k].text), NULL, 0, false, &l, &e);
        struct token_stream *s = token_stream_begin(t, false);
        for (uint32_t i = 0; i < l.n; i++) {
            assert_int_equal(token_stream_put(s, l.at[i].id, &out, &e), PL_OK);
            assert_int_equal(utf8_check(out.n ? out.at : "", out.n), out.n);
            if (i + 1 == l.n) assert_string_equal(out.at, cases[k].text);
        }
        assert_int_equal(token_stream_put(s, 1 << 25, &out, &e), PL_USAGE);
        token_stream_end(s, NULL);
        /* A text that ends inside of a character. */
        s = token_stream_begin(t, false);
        out.n = 0;
        for (uint32_t i = 0; i + 1 < l.n; i++) token_stream_put(s, l.at[i].id, &out, &e);
        token_stream_end(s, &out);
        assert_non_null(strstr(out.at, "\xef\xbf\xbd"));
        text_free(&out);
        token_list_free(&l);
        tokenizer_close(t);
    }
}

/* --- files ------------------------------------------------------------------------------------ */

static const char *write_file(const char *name, const void *bytes, size_t n)
{
    static char path[512];
    struct error e;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_int_equal(file_write_atomic(path, bytes, n, &e), PL_OK);
    return path;
}

static void refused(const char *file, const void *bytes, size_t n, const char *why)
{
    struct tokenizer *t = NULL;
    struct error e = {0};
    const char *path = write_file(file, bytes, n);
    if (tokenizer_open(&t, path, &e) != PL_USAGE) fail_msg("accepted, expected: %s", why);
    assert_null(t);
    if (!strstr(e.text, why) || strncmp(e.text, path, strlen(path)))
        fail_msg("\"%s\", expected \"%s: ... %s\"", e.text, path, why);
}

#define MODEL(vocab, merges) "\"model\": {\"type\": \"BPE\", \"vocab\": {" vocab "}, \"merges\": [" merges "]}"

TEST(test_refused_json)
{
    static const struct { const char *json, *why;
    } cases[] = {
        {"", "too early"},
        {"[]", "the document is a list; expected a map"},
        {"{}", "model is missing"},
        {"{" MODEL("\"a\": 0, \"b\": 1", "\"a b\"") "}",
         "model.merges: the merge at index 0: it makes \"ab\", which is not in the vocabulary"},
        {"{" MODEL("\"a\": 0, \"ab\": 1", "[\"a\", \"b\"]") "}",
         "model.merges: the merge at index 0: \"b\" is not in the vocabulary"},
        {"{" MODEL("\"a\": 0", "\"a\"") "}", "expected \"LEFT RIGHT\""},
        {"{" MODEL("\"a\": 0", "7") "}", "expected \"LEFT RIGHT\""},
        {"{" MODEL("\"a\": 0, \"b\": 0", "") "}", "the tokens \"a\" and \"b\" have the same id, 0"},
        {"{" MODEL("\"a\": 0, \"a\": 1", "") "}", "\"a\" occurs twice"},
        {"{" MODEL("\"a\": -1", "") "}", "has the id -1; expected 0 to"},
        {"{" MODEL("\"a\": 4294967296", "") "}", "has the id 4294967296; expected 0 to"},
        {"{" MODEL("\"a\": 1e99", "") "}", "expected a whole number"},
        {"{" MODEL("\"a\": \"x\"", "") "}", "expected a whole number"},
        {"{\"model\": {\"type\": \"WordLevel\", \"vocab\": {}}}",
         "the model \"WordLevel\" is not known; known are BPE, Unigram and WordPiece"},
        {"{\"model\": {\"type\": \"WordPiece\", \"max_input_chars_per_word\": 1001, \"vocab\": {}}}",
         "model.max_input_chars_per_word is larger than 1000"},
        {"{\"normalizer\": {\"type\": \"Precompiled\", \"precompiled_charsmap\": \"A?\"}}",
         "normalizer.precompiled_charsmap is not base64 at character 1"},
        {"{\"normalizer\": {\"type\": \"Precompiled\", \"precompiled_charsmap\": \"BAAAAA==\"}}",
         "the table of replacements (precompiled_charsmap) of 4 bytes is cut or malformed"},
        {"{\"model\": {\"type\": \"BPE\", \"dropout\": 0.1, \"vocab\": {}, \"merges\": []}}", "model.dropout is 0.1"},
        {"{\"model\": {\"type\": \"Unigram\", \"unk_id\": 3, \"vocab\": [[\"a\", 0]]}}",
         "model.unk_id is 3; the vocabulary has 1 pieces"},
        {"{\"model\": {\"type\": \"Unigram\", \"vocab\": [[\"a\"]]}}",
         "model.vocab: the piece at index 0: expected [PIECE, SCORE]"},
        {"{\"normalizer\": {\"type\": \"Nmt\"}}", "the normalizer \"Nmt\" is not known; known are Sequence, NFC"},
        {"{\"normalizer\": {\"type\": \"Replace\", \"pattern\": \"x\", \"content\": \"\"}}",
         "normalizer.pattern is the string"},
        {"{\"pre_tokenizer\": {\"type\": \"UnicodeScripts\"}}",
         "the pre-tokenizer \"UnicodeScripts\" is not known; known are Sequence, Split"},
        {"{\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"(a\"}, \"behavior\": \"Isolated\", "
         "\"invert\": false}}",
         "the regular expression \"(a\" does not compile: end pattern with unmatched parenthesis"},
        {"{\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"a\"}, \"behavior\": \"Joined\", "
         "\"invert\": false}}",
         "pre_tokenizer.behavior is \"Joined\""},
        {"{\"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"ab\"}}",
         "replacement is \"ab\"; expected one character"},
        {"{\"decoder\": {\"type\": \"CTC\"}}", "the decoder \"CTC\" is not known; known are Sequence, ByteLevel"},
        {"{\"decoder\": {\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Fuse\"}, {\"type\": \"ByteFallback\"}]}}",
         "the decoder \"ByteFallback\" needs the tokens"},
        {"{" MODEL("\"a\": 0", "") ", \"post_processor\": {\"type\": \"Magic\"}}",
         "the post-processor \"Magic\" is not known"},
        {"{" MODEL(
             "\"a\": 0",
             "") ", \"post_processor\": {\"type\": \"BertProcessing\", \"cls\": [\"c\", 9], \"sep\": [\"s\", 0]}}",
         "post_processor: no token has the id 9"},
        {"{" MODEL("\"a\": 0", "") ", \"added_tokens\": [{\"id\": 0, \"content\": \"b\"}]}",
         "added_tokens[0]: the tokens \"a\" and \"b\" have the same id, 0"},
        {"{" MODEL("\"a\": 0", "") ", \"added_tokens\": [{\"id\": 1, \"content\": \"a\"}]}",
         "added_tokens[0]: \"a\" has the id 1, but 0 in the vocabulary"},
        {"{" MODEL("\"a\": 0",
                   "") ", \"added_tokens\": [{\"id\": 1, \"content\": \"b\"}, {\"id\": 1, \"content\": \"b\"}]}",
         "added_tokens[1]: \"b\" is searched for twice"},
        {"{" MODEL("\"a\": 0", "") ", \"added_tokens\": [{\"content\": \"b\"}]}", "added_tokens[0]: id is missing"},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        refused("tokenizer.json", cases[i].json, strlen(cases[i].json), cases[i].why);
}

/* Text that grows without end, and chains of many steps, are refused; nothing is exhausted. */
TEST(test_growth)
{
    struct text json = {0};
    struct aligned_buffer b = {.most = ALIGNED_MOST};
    aligned_put(&b, "ab", 2, (struct byte_range){0, 1});
    aligned_put(&b, "", ALIGNED_MOST - 1, (struct byte_range){0, 1}); /* refused before it is read */
    assert_true(b.full && b.n == 2);
    aligned_free(&b);
    text_printf(&json, "{" MODEL("\"a\": 0", "") ", \"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [");
    for (int i = 0; i < 30; i++)
        text_printf(&json, "%s{\"type\": \"Replace\", \"pattern\": {\"String\": \"a\"}, \"content\": \"aa\"}",
                    i ? ", " : "");
    text_printf(&json, "]}}");
    struct tokenizer *t = NULL;
    struct token_list l = {0};
    struct error e = {0};
    char text[1000];
    memset(text, 'a', sizeof text);
    assert_int_equal(tokenizer_open(&t, write_file("tokenizer.json", json.at, json.n), &e), PL_OK);
    assert_int_equal(tokenizer_encode(t, text, sizeof text, NULL, 0, false, &l, &e), PL_USAGE);
    assert_string_equal(e.text, "the normalizer makes more than 20096 bytes of a text of 1000");
    tokenizer_close(t);
    token_list_free(&l);
    json.n = 0;
    text_printf(&json,
                "{" MODEL("\"a\": 0", "") ", \"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [");
    for (int i = 0; i < 10000; i++) text_printf(&json, "%s{\"Sequence\": {\"id\": \"A\"}}", i ? ", " : "");
    text_printf(&json, "]}}");
    refused("tokenizer.json", json.at, json.n,
            "post_processor.single[1]: the sequence \"A\" stands there a second time");
    json.n = 0;
    text_printf(&json, "{" MODEL("\"a\": 0", "") ", \"post_processor\": {\"type\": \"TemplateProcessing\", "
                                                 "\"special_tokens\": {\"a\": {\"ids\": [0]}}, \"single\": [");
    for (int i = 0; i < 300; i++) text_printf(&json, "%s{\"SpecialToken\": {\"id\": \"a\"}}", i ? ", " : "");
    text_printf(&json, "]}}");
    refused("tokenizer.json", json.at, json.n, "post_processor: it adds more than 256 tokens to a text");
    json.n = 0;
    text_printf(&json, "{\"decoder\": {\"type\": \"Sequence\", \"decoders\": [");
    for (int i = 0; i < 10000; i++) text_printf(&json, "%s{\"type\": \"Fuse\"}", i ? ", " : "");
    text_printf(&json, "]}}");
    refused("tokenizer.json", json.at, json.n, "the decoder has more than 64 steps");
    text_free(&json);
}

/* A published file, cut anywhere, is refused with its path. */
TEST(test_cut)
{
    static const char *const files[][2] = {{GOLDEN "/llama3/tokenizer.json", "tokenizer.json"},
                                           {GOLDEN "/sp_llama2/tokenizer.model", "tokenizer.model"}};
    for (size_t k = 0; k < COUNT(files); k++) {
        char *bytes;
        size_t n;
        struct error e = {0};
        assert_int_equal(file_read(files[k][0], 1 << 20, &bytes, &n, &e), PL_OK);
        for (size_t i = 1; i < 40; i++) {
            struct tokenizer *t = NULL;
            const char *path = write_file(files[k][1], bytes, n * i / 40);
            if (!tokenizer_open(&t, path, &e)) tokenizer_close(t); /* a protocol buffer may end between fields */
            else assert_memory_equal(e.text, path, strlen(path));
        }
        mem_free(bytes);
    }
}

TEST(test_refused_model)
{
    static const struct { const char *bytes; size_t n; const char *why;
    } cases[] = {
        {"", 0, "the file is malformed or cut"},
        {"IQ== 0\n", 7, "is no SentencePiece model; a file of tiktoken ranks"},
        {"\x0a\x7f", 2, "the file is malformed or cut"},
        {"\x0a\x02\x0a\x00", 4, "the piece 0 is empty"},
        {"\x0a\x03\x0a\x01\xff", 5, "the piece 0 is not UTF-8"},
        {"\x0a\x08\x0a\x01x\x15\x00\x00\xc0\x7f", 10, "the piece 0 has no valid score"},
        {"\x0a\x05\x0a\x01x\x18\x09", 7, "the piece 0 has no valid type"},
        {"\x0a\x03\x0a\x01x\x0a\x03\x0a\x01x", 10, "the token \"x\" occurs twice, with the ids 0 and 1"},
        {"\x0a\x03\x0a\x01x\x12\x02\x18\x03", 9, "the model is of the type word; supported are Unigram, BPE and char"},
        {"\x0a\x03\x0a\x01x", 5, "no piece is of the type unknown"},
        {"\x0a\x03\x0a\x01x\x12\x02\x18\x02", 9, "no piece is of the type unknown"},
        {"\x0a\x05\x0a\x01x\x18\x02\x12\x05\x18\x02\x98\x02\x01", 14, "byte_fallback is set, but a piece of"},
        {"\x0a\x05\x0a\x01x\x18\x02\x12\x02\x18\x02\x1a\x06\x0a\x01n\x12\x01z", 19,
         "the table of replacements (precompiled_charsmap) of 1 bytes is cut or malformed"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) refused("tokenizer.model", cases[i].bytes, cases[i].n, cases[i].why);
}

/* Matches each of which looks at the whole text take time in proportion to the text, and then give
 * up. */
TEST(test_slow_matches)
{
    enum { LONG = 1 << 16 };
    struct pattern *p = NULL;
    struct error e = {0};
    char *text = mem_alloc(LONG);
    size_t begin = 0, end = 0;
    memset(text, 'a', LONG);
    assert_int_equal(pattern_compile(&p, "(?=(a*))a", &e), PL_OK);
    struct pattern_search *s = pattern_search_new();
    pattern_search_begin(s, LONG);
    int rc = 1;
    for (size_t at = 0; at < LONG && rc == 1; at = end) rc = pattern_find(p, s, text, LONG, at, &begin, &end);
    assert_int_equal(rc, -1);
    pattern_search_begin(s, LONG);
    assert_int_equal(pattern_find(p, s, text, LONG, 0, &begin, &end), 1);
    pattern_search_free(s);
    pattern_free(p);
    mem_free(text);
}

/* Expressions that backtrack without end give up; nesting is bounded. */
TEST(test_patterns)
{
    struct pattern *p = NULL;
    struct error e = {0};
    char text[4000], deep[2001];
    size_t begin, end;
    memset(text, 'a', sizeof text);
    text[sizeof text - 1] = 'b';
    assert_int_equal(pattern_compile(&p, "(?:a|a)*(?:a|a)*(?:a|a)*\\z", &e), PL_OK);
    struct pattern_search *s = pattern_search_new();
    assert_int_equal(pattern_find(p, s, text, sizeof text, 0, &begin, &end), -1);
    pattern_search_free(s);
    pattern_free(p);
    memset(deep, '(', 1000);
    memset(deep + 1000, ')', 1000);
    deep[2000] = 0;
    assert_int_equal(pattern_compile(&p, deep, &e), PL_USAGE);
}

/* --- model folders ---------------------------------------------------------------------------- */

static void copy_golden(const char *name, const char *file)
{
    char from[512], to[512];
    struct error e;
    snprintf(from, sizeof from, GOLDEN "/%s/%s", name, file);
    snprintf(to, sizeof to, "%s/%s", folder, file);
    assert_int_equal(file_copy(from, to, &e), PL_OK);
}

static void remove_file(const char *file)
{
    char path[512];
    struct error e;
    snprintf(path, sizeof path, "%s/%s", folder, file);
    tree_remove(path, &e);
}

TEST(test_roles)
{
    struct tokenizer *t = NULL;
    struct error e = {0};
    static const char config[] =
        "{\"bos_token\": \"<s>\", \"eos_token\": {\"content\": \"</s>\"}, \"pad_token\": null}",
                      map[] = "{\"pad_token\": \"<unk>\", \"bos_token\": \"x\"}";
    copy_golden("llama2", "tokenizer.json");
    write_file("tokenizer_config.json", config, strlen(config));
    write_file("special_tokens_map.json", map, strlen(map));
    assert_int_equal(tokenizer_open(&t, folder, &e), PL_OK);
    assert_int_equal(tokenizer_bos(t), 1);
    assert_int_equal(tokenizer_eos(t), 2);
    assert_int_equal(tokenizer_pad(t), 0);
    assert_string_equal(tokenizer_special(t, "eos_token"), "</s>");
    assert_null(tokenizer_special(t, "mask_token"));
    assert_true(tokenizer_is_special(t, 2) && !tokenizer_is_special(t, 3) && !tokenizer_is_special(t, -1));
    assert_string_equal(tokenizer_piece(t, 2), "</s>");
    assert_null(tokenizer_piece(t, tokenizer_size(t)));
    tokenizer_close(t);
    remove_file("tokenizer.json");
    remove_file("tokenizer_config.json");
    remove_file("special_tokens_map.json");
    remove_file("tokenizer.model");
    assert_int_equal(tokenizer_open(&t, folder, &e), PL_USAGE);
    assert_non_null(strstr(e.text, "has neither tokenizer.json nor tokenizer.model"));
}

/* A tokenizer.model in a folder as transformers writes it: BOS is added, <s> in the text is BOS,
 * <image> is a token. */
TEST(test_model_folder)
{
    struct tokenizer *bare = open_golden("sp_llama2"), *t = NULL;
    struct error e = {0};
    struct token_list l = {0};
    char config[512];
    const int32_t next = tokenizer_size(bare);
    copy_golden("sp_llama2", "tokenizer.model");
    snprintf(config, sizeof config,
             "{\"tokenizer_class\": \"LlamaTokenizer\", \"bos_token\": \"<s>\", \"eos_token\": \"</s>\", \"legacy\": "
             "false, \"added_tokens_decoder\": {\"%d\": {\"content\": \"<image>\"}}}",
             next);
    write_file("tokenizer_config.json", config, strlen(config));
    if (tokenizer_open(&t, folder, &e)) fail_msg("%s", e.text);
    assert_int_equal(tokenizer_size(t), next + 1);
    assert_true(tokenizer_fingerprint(t) != tokenizer_fingerprint(bare));
    const char text[] = "the</s><image>the";
    assert_int_equal(tokenizer_encode(t, text, strlen(text), NULL, 0, true, &l, &e), PL_OK);
    assert_int_equal(l.at[0].id, 1);
    assert_int_equal(l.at[0].begin, l.at[0].end);
    assert_int_equal(count(&l, 2), 1);
    assert_int_equal(count(&l, next), 1);
    assert_int_equal(l.at[1].id, tokenizer_id(t, "▁the"));
    assert_int_not_equal(l.at[l.n - 1].id, l.at[1].id); /* no blank is put before it */
    l.n = 0;
    assert_int_equal(tokenizer_encode(bare, text, strlen(text), NULL, 0, true, &l, &e), PL_OK);
    assert_int_equal(count(&l, 1) + count(&l, 2), 0);
    token_list_free(&l);
    tokenizer_close(t);
    tokenizer_close(bare);
    remove_file("tokenizer.model");
    remove_file("tokenizer_config.json");
}

MAIN(make_folder, remove_folder)
