/*
 * words.h: a cache of words and their tokens. Text repeats its words: most are found here.
 *
 * It is bounded: when it is full it begins anew.
 */
#ifndef WORDS_H
#define WORDS_H

#include "text/tokenizer/tokenizer.h"

/* A word longer than this is never kept. */
enum { WORD_MOST = 255 };

struct words {
    struct word_slot *slots;
    char *keys;
    struct token *tokens;
    uint32_t n, n_keys, n_tokens;
};

/* Appends the tokens of a word; their ranges count from the word's begin. False: it is not
 * known. */
static inline bool words_get(const struct words *w, uint64_t hash, const char *word, uint32_t n,
                             const struct token **tokens, uint32_t *count);
/* Keeps a word. */
void words_put(struct words *w, uint64_t hash, const char *word, uint32_t n, const struct token *tokens,
               uint32_t count);
void words_free(struct words *w);

/* --- the table, here because words_get is the inner loop of a tokenizer --------------------- */

enum { WORD_SLOTS = 1 << 16, WORD_PROBES = 4, WORD_INLINE = 20 };

/* Words of up to WORD_INLINE bytes lie in the slot; others in `keys`, behind an offset. */
struct word_slot {
    uint32_t hash;   /* the upper half */
    uint16_t n;      /* bytes; 0: an empty slot */
    uint16_t count;
    uint32_t tokens; /* an index of words.tokens */
    char key[WORD_INLINE];
};

static inline bool words_get(const struct words *w, uint64_t hash, const char *word, uint32_t n,
                             const struct token **tokens, uint32_t *count)
{
    if (!w->slots) return false;
    const uint32_t upper = (uint32_t)(hash >> 32);
    for (uint32_t i = 0; i < WORD_PROBES; i++) {
        const struct word_slot *s = &w->slots[(hash + i) % WORD_SLOTS];
        if (!s->n) return false;
        if (s->hash != upper || s->n != n) continue;
        const char *key = s->key;
        uint32_t at;
        if (n > WORD_INLINE) {
            __builtin_memcpy(&at, s->key, sizeof at);
            key = w->keys + at;
        }
        if (__builtin_memcmp(key, word, n)) continue;
        *tokens = w->tokens + s->tokens;
        *count = s->count;
        return true;
    }
    return false;
}

#endif
