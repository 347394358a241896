/*
 * merges.h: joining pairs of symbols, best pair first: the inner loop of byte pair encoding.
 */
#ifndef MERGES_H
#define MERGES_H

#include "base/base.h"
#include "base/keyed.h"
#include "text/tokenizer/tokenizer.h"

/* Which pairs of symbols join, in which order (rank 0 first), and what they become. */
struct merges {
    struct merge {
        uint64_t pair; /* (left << 32 | right) + 1; 0: an empty slot */
        uint32_t rank;
        int32_t id;
    } *slots;
    uint32_t mask, n;
};
/* Adds a pair; a later rank of the same pair replaces the earlier one. */
void merges_put(struct merges *m, int32_t left, int32_t right, uint32_t rank, int32_t id);
void merges_free(struct merges *m);

/* NULL: the pair does not join. A symbol below 0 joins nothing. */
static inline const struct merge *merges_get(const struct merges *m, int32_t left, int32_t right)
{
    if (left < 0 || right < 0 || !m->slots) return NULL;
    const uint64_t pair = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) + 1;
    uint32_t i = (uint32_t)(pair * KEYED_GOLDEN >> 32) & m->mask;
    while (m->slots[i].pair && m->slots[i].pair != pair) i = (i + 1) & m->mask;
    return m->slots[i].pair ? &m->slots[i] : NULL;
}

/* Pairs that were looked up and would become a symbol of interest (merger.watched), the latest
 * last. */
struct merge_seen {
    int32_t id, left, right;
};

/* Memory of the loop; one for each thread. */
struct merger {
    struct merge_link *links;
    struct merge_candidate *heap;
    uint32_t cap_links, cap_heap, n_heap;
    const bool *watched; /* [id]; NULL: nothing is watched */
    VEC(struct merge_seen) seen;
};
/* Joins pairs among n symbols until none joins: the best rank first, of equal ranks the leftmost.
 * Symbols are ids with their ranges; returns how many are left. */
uint32_t merge_all(const struct merges *m, struct merger *w, struct token *symbols, uint32_t n);
void merger_free(struct merger *w);

#endif
