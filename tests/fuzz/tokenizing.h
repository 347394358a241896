/*
 * tokenizing.h: what any tokenizer that opens must do, for the fuzz targets of tokenizer files.
 */
#pragma once

#include "files.h"
#include "text/tokenizer/tokenizer.h"
#include "text/unicode.h"

/* Whatever is encoded decodes to UTF-8, whole and as a stream. */
static inline void fuzz_decode(const struct tokenizer *t, const struct token_list *l)
{
    struct text whole = {0}, parts = {0};
    struct error e;
    int32_t *ids = mem_alloc((l->n + 1) * sizeof *ids);
    struct token_stream *s = token_stream_begin(t, l->n % 2);
    for (uint32_t i = 0; i < l->n; i++) {
        ids[i] = l->at[i].id;
        CHECK(!token_stream_put(s, ids[i], &parts, &e), "%s", e.text);
    }
    token_stream_end(s, &parts);
    CHECK(!tokenizer_decode(t, ids, l->n, false, &whole, &e), "%s", e.text);
    CHECK(!whole.n || utf8_check(whole.at, whole.n) == whole.n, "decoded text is not UTF-8");
    CHECK(!parts.n || utf8_check(parts.at, parts.n) == parts.n, "streamed text is not UTF-8");
    mem_free(ids);
    text_free(&whole);
    text_free(&parts);
}

static inline void fuzz_tokenize(const char *path)
{
    static const char *const texts[] =
        {"", "a", " the  then\n",
         ("ab<s>ba </s>  <s>\xc3\xa9"
          "e\xcc\x81 12345 \xe2\x96\x81\xe2\x96\x81x"),
         "\xf0\x9f\xa6\x84 \xe6\x97\xa5\xe6\x9c\xac aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab"};
    struct tokenizer *t = NULL;
    struct error e = {0};
    if (tokenizer_open(&t, path, &e)) {
        CHECK(e.code && *e.text);
        return;
    }
    for (size_t i = 0; i < COUNT(texts); i++) {
        const uint32_t n = (uint32_t)strlen(texts[i]);
        const struct byte_range data = {n / 3, n / 2};
        struct token_list l = {0};
        if (!tokenizer_encode(t, texts[i], n, &data, i % 2, i % 3, &l, &e)) {
            for (uint32_t k = 0; k < l.n; k++) {
                CHECK(tokenizer_piece(t, l.at[k].id), "no token has the id %d", l.at[k].id);
                CHECK(l.at[k].begin <= l.at[k].end && l.at[k].end <= n, "a token outside of the text");
            }
            fuzz_decode(t, &l);
        }
        token_list_free(&l);
    }
    tokenizer_close(t);
}
