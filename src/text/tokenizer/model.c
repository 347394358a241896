/*
 * model.c: pre-tokens to tokens, word by word, through the cache of words (see model.h).
 */
#include <string.h>

#include "text/tokenizer/model.h"

static inline void append(struct token_list *out, const struct aligned *text, uint32_t base, const struct token *tokens,
                          uint32_t n)
{
    if (out->cap - out->n < n) vec_grow((void **)&out->at, &out->cap, out->n + n, sizeof *out->at);
    for (uint32_t i = 0; i < n; i++) {
        const struct byte_range from = aligned_from(text, base + tokens[i].begin, base + tokens[i].end);
        out->at[out->n++] = (struct token){tokens[i].id, from.begin, from.end};
    }
}

int model_encode(const struct model *m, struct model_work *w, const struct aligned *text, uint32_t begin, uint32_t end,
                 struct token_list *out, struct error *e)
{
    const bool bpe = m->kind == MODEL_BPE;
    for (uint32_t next; begin < end; begin = next) {
        next = bpe && m->bpe.seam ? bpe_word_end(&m->bpe, text->at, begin, end) : end;
        const char *word = text->at + begin;
        const uint32_t n = next - begin;
        const bool keep = n <= WORD_MOST && !(bpe && m->bpe.unused);
        const uint64_t hash = keep ? word_hash(word, n) : 0;
        const struct token *tokens;
        uint32_t count;
        if (keep && words_get(&w->words, hash, word, n, &tokens, &count)) {
            append(out, text, begin, tokens, count);
            continue;
        }
        if (bpe) bpe_word(&m->bpe, w, word, n);
        else if (m->kind == MODEL_UNIGRAM ? unigram_word(&m->unigram, w, word, n, e)
                                          : wordpiece_word(&m->wordpiece, w, word, n, e))
            return e->code;
        if (keep) words_put(&w->words, hash, word, n, w->tokens.at, w->tokens.n);
        append(out, text, begin, w->tokens.at, w->tokens.n);
    }
    return PL_OK;
}

void model_work_free(struct model_work *w)
{
    words_free(&w->words);
    merger_free(&w->merger);
    vec_free(&w->symbols);
    vec_free(&w->tokens);
    mem_free(w->nodes);
    text_free(&w->key);
    memset(w, 0, sizeof *w);
}

void model_free(struct model *m)
{
    merges_free(&m->bpe.merges);
    id_map_free(&m->bpe.ids);
    mem_free(m->bpe.unused);
    vec_free(&m->bpe.seam_joins);
    trie_free(&m->unigram.trie);
    mem_free(m->unigram.scores);
    memset(m, 0, sizeof *m);
}
