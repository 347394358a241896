/*
 * words.c: a cache of words (see words.h).
 */
#include <string.h>

#include "text/tokenizer/words.h"

enum { KEYS = 4 << 20, TOKENS = 256 << 10 };

static void start(struct words *w)
{
    if (!w->slots) {
        w->slots = mem_alloc(WORD_SLOTS * sizeof *w->slots);
        w->keys = mem_alloc(KEYS);
        w->tokens = mem_alloc(TOKENS * sizeof *w->tokens);
    } else memset(w->slots, 0, WORD_SLOTS * sizeof *w->slots);
    w->n = w->n_keys = w->n_tokens = 0;
}

void words_put(struct words *w, uint64_t hash, const char *word, uint32_t n, const struct token *tokens, uint32_t count)
{
    if (!n || n > WORD_MOST || count > WORD_MOST) return;
    if (!w->slots || w->n > WORD_SLOTS / 2 || w->n_keys + n > KEYS || w->n_tokens + count > TOKENS) start(w);
    struct word_slot *slot = NULL;
    for (uint32_t i = 0; i < WORD_PROBES && !slot; i++) {
        struct word_slot *s = &w->slots[(hash + i) % WORD_SLOTS];
        if (!s->n) slot = s;
    }
    if (!slot) slot = &w->slots[hash % WORD_SLOTS]; /* the older word gives way */
    else w->n++;
    *slot = (struct word_slot){.hash = (uint32_t)(hash >> 32), .n = (uint16_t)n, .count = (uint16_t)count, .tokens = w->n_tokens};
    if (n > WORD_INLINE) {
        memcpy(slot->key, &w->n_keys, sizeof w->n_keys);
        memcpy(w->keys + w->n_keys, word, n);
        w->n_keys += n;
    } else memcpy(slot->key, word, n);
    if (count) memcpy(w->tokens + w->n_tokens, tokens, count * sizeof *tokens);
    w->n_tokens += count;
}

void words_free(struct words *w)
{
    mem_free(w->slots);
    mem_free(w->keys);
    mem_free(w->tokens);
    memset(w, 0, sizeof *w);
}
