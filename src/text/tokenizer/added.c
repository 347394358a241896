/*
 * added.c: added tokens (see added.h).
 *
 * The first match from the left counts, and of several that begin there the longest. A match that
 * is then refused because of `single_word` is text, and the search goes on behind it.
 */
#include <string.h>

#include "text/tokenizer/added.h"
#include "text/unicode.h"

void added_free(struct added *a)
{
    vec_free(a);
    trie_free(&a->raw);
    trie_free(&a->normalized);
    id_map_free(&a->contents);
}

/* Whether a range touches text in which special tokens are text. */
static bool is_protected(const struct protected_text *data, struct byte_range r)
{
    uint32_t low = 0, high = data->n;
    while (low < high) { /* the first range that ends behind r.begin */
        uint32_t middle = low + (high - low) / 2;
        if (data->at[middle].end <= r.begin) low = middle + 1;
        else high = middle;
    }
    return low < data->n && data->at[low].begin < r.end;
}

/* The longest token at `begin`; NULL: none. */
static const struct added_token *longest(const struct added_walk *w, uint32_t begin, uint32_t *end)
{
    const struct added_token *best = NULL;
    uint32_t node = 0;
    for (uint32_t i = begin; i < w->text.n; i++) {
        node = trie_step(w->trie, node, w->text.at[i]);
        if (!node) break;
        if (w->trie->values[node] < 0) continue;
        const struct added_token *t = &w->added->at[w->trie->values[node]];
        if (t->special && w->data.n && is_protected(&w->data, aligned_from(&w->text, begin, i + 1))) continue;
        best = t, *end = i + 1;
    }
    return best;
}

static uint32_t code_before(const char *text, uint32_t at, uint32_t *begin)
{
    uint32_t code;
    do at--;
    while (at && ((unsigned char)text[at] & 0xc0) == 0x80);
    utf8_next(text + at, &code);
    *begin = at;
    return code;
}

static bool inside_word(const struct aligned *text, uint32_t begin, uint32_t end)
{
    uint32_t code, unused;
    if (begin && unicode_is_word(code_before(text->at, begin, &unused))) return true;
    if (end == text->n) return false;
    utf8_next(text->at + end, &code);
    return unicode_is_word(code);
}

/* Finds the next token, with the blanks that it takes. */
static void find(struct added_walk *w)
{
    const char *text = w->text.at;
    w->token = NULL;
    while (w->from < w->text.n) {
        uint32_t begin = w->from, end = 0, at;
        while (begin < w->text.n && !w->trie->first[(unsigned char)text[begin]]) begin++;
        if (begin == w->text.n) break;
        const struct added_token *t = longest(w, begin, &end);
        w->from = t ? end : begin + 1;
        if (!t || (t->single_word && inside_word(&w->text, begin, end))) continue;
        if (t->lstrip) {
            while (begin && unicode_is_space(code_before(text, begin, &at))) begin = at;
            if (begin < w->done) begin = w->done;
        }
        for (uint32_t code; t->rstrip && end < w->text.n; end += (uint32_t)utf8_length(text[end])) {
            utf8_next(text + end, &code);
            if (!unicode_is_space(code)) break;
        }
        w->token = t, w->begin = begin, w->end = end;
        return;
    }
    w->ended = true;
}

bool added_next(struct added_walk *w, const struct added_token **token, struct byte_range *piece)
{
    if (!w->token && !w->ended) find(w);
    const uint32_t next = w->token ? w->begin : w->text.n;
    *token = NULL;
    if (w->done < next) {
        *piece = (struct byte_range){w->done, next};
        w->done = next;
        return true;
    }
    if (!w->token) return false;
    *token = w->token;
    *piece = (struct byte_range){w->begin, w->end};
    w->done = w->end;
    w->token = NULL;
    return true;
}
