/*
 * wordpiece.c: the WordPiece model of one word (see model.h): from its beginning, each time the
 * longest piece. Pieces behind the first one have a prefix in the vocabulary: "##ing".
 */
#include <string.h>

#include "text/tokenizer/model.h"
#include "text/unicode.h"

/* The longest piece that begins at `begin`: its end; 0: there is none. */
static uint32_t longest(const struct wordpiece *m, struct text *key, const char *word, uint32_t begin, uint32_t n,
                        int32_t *id)
{
    key->n = 0;
    if (begin) text_append(key, m->prefix, strlen(m->prefix));
    const size_t before = key->n;
    text_append(key, word + begin, n - begin);
    for (uint32_t end = n; end > begin;) {
        if ((*id = id_map_get(&m->vocabulary->ids, key->at, before + end - begin)) >= 0) return end;
        do end--;
        while (end > begin && ((unsigned char)word[end] & 0xc0) == 0x80);
    }
    return 0;
}

int wordpiece_word(const struct wordpiece *m, struct model_work *w, const char *word, uint32_t n, struct error *e)
{
    uint64_t characters = 0;
    for (uint32_t i = 0; i < n; i++) characters += ((unsigned char)word[i] & 0xc0) != 0x80;
    w->tokens.n = 0;
    bool known = characters <= m->most;
    for (uint32_t begin = 0, end; begin < n && known; begin = end) {
        int32_t id;
        end = longest(m, &w->key, word, begin, n, &id);
        known = end;
        if (known) vec_push(&w->tokens, ((struct token){id, begin, end}));
    }
    if (known) return PL_OK;
    if (m->unk < 0)
        return error_set(e, PL_USAGE,
                         "the vocabulary has not the unknown token of the model, and the word \"%.*s\" needs it",
                         (int)min_u64(n, 60), word);
    w->tokens.n = 0;
    vec_push(&w->tokens, ((struct token){m->unk, 0, n}));
    return PL_OK;
}
