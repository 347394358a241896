/*
 * merges.c: joining pairs of symbols (see merges.h).
 *
 * A short word keeps the merge of each pair in an array and scans it for the best one. A long one,
 * such as a whole text without blanks, has a heap of candidates over a linked list of symbols:
 *
 *     links   [ th ]-[ e ]-[ r ]-[ e ]        prev and next are positions; a joined symbol has end 0
 *     heap    (rank, position): a candidate whose pair has changed since is dropped when it comes up
 */
#include <string.h>

#include "text/tokenizer/merges.h"

enum { SHORT_WORD = 48 };
#define NO_RANK UINT32_MAX

struct merge_link {
    int32_t id;
    uint32_t begin, end;
    int32_t prev, next; /* -1: none */
    bool gone;
};

struct merge_candidate {
    uint32_t rank, position;
    int32_t id;
};

/* --- the table ---------------------------------------------------------------------------- */

static struct merge *slot_of(const struct merges *m, uint64_t pair)
{
    uint32_t i = (uint32_t)(pair * KEYED_GOLDEN >> 32) & m->mask;
    while (m->slots[i].pair && m->slots[i].pair != pair) i = (i + 1) & m->mask;
    return &m->slots[i];
}

static void grow(struct merges *m)
{
    struct merges larger = {.mask = m->slots ? 2 * m->mask + 1 : 63, .n = m->n};
    larger.slots = mem_alloc(((size_t)larger.mask + 1) * sizeof *larger.slots);
    for (uint32_t i = 0; m->slots && i <= m->mask; i++)
        if (m->slots[i].pair) *slot_of(&larger, m->slots[i].pair) = m->slots[i];
    mem_free(m->slots);
    *m = larger;
}

void merges_put(struct merges *m, int32_t left, int32_t right, uint32_t rank, int32_t id)
{
    CHECK(left >= 0 && right >= 0);
    if (!m->slots || 2 * (m->n + 1) > m->mask) grow(m);
    const uint64_t pair = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) + 1;
    struct merge *slot = slot_of(m, pair);
    m->n += !slot->pair;
    *slot = (struct merge){pair, rank, id};
}

void merges_free(struct merges *m)
{
    mem_free(m->slots);
    memset(m, 0, sizeof *m);
}

/* --- short words -------------------------------------------------------------------------- */

static uint32_t merge_short(const struct merges *m, struct token *symbols, uint32_t n)
{
    uint32_t rank[SHORT_WORD];
    int32_t id[SHORT_WORD];
    for (uint32_t i = 0; i + 1 < n; i++) {
        const struct merge *pair = merges_get(m, symbols[i].id, symbols[i + 1].id);
        rank[i] = pair ? pair->rank : NO_RANK;
        id[i] = pair ? pair->id : -1;
    }
    while (n > 1) {
        uint32_t best = 0;
        for (uint32_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best]) best = i;
        if (rank[best] == NO_RANK) break;
        symbols[best].id = id[best];
        symbols[best].end = symbols[best + 1].end;
        n--;
        memmove(symbols + best + 1, symbols + best + 2, (n - best - 1) * sizeof *symbols);
        memmove(rank + best, rank + best + 1, (n - best - 1) * sizeof *rank);
        memmove(id + best, id + best + 1, (n - best - 1) * sizeof *id);
        for (uint32_t i = best ? best - 1 : 0; i <= best && i + 1 < n; i++) {
            const struct merge *pair = merges_get(m, symbols[i].id, symbols[i + 1].id);
            rank[i] = pair ? pair->rank : NO_RANK;
            id[i] = pair ? pair->id : -1;
        }
    }
    return n;
}

/* --- long words --------------------------------------------------------------------------- */

static bool before(const struct merge_candidate *a, const struct merge_candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->position < b->position;
}

static void heap_push(struct merger *w, struct merge_candidate c)
{
    vec_grow((void **)&w->heap, &w->cap_heap, w->n_heap + 1, sizeof *w->heap);
    uint32_t i = w->n_heap++;
    for (; i && before(&c, &w->heap[(i - 1) / 2]); i = (i - 1) / 2) w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = c;
}

static struct merge_candidate heap_pop(struct merger *w)
{
    struct merge_candidate top = w->heap[0], last = w->heap[--w->n_heap];
    uint32_t i = 0;
    for (uint32_t child; (child = 2 * i + 1) < w->n_heap; i = child) {
        if (child + 1 < w->n_heap && before(&w->heap[child + 1], &w->heap[child])) child++;
        if (!before(&w->heap[child], &last)) break;
        w->heap[i] = w->heap[child];
    }
    if (w->n_heap) w->heap[i] = last;
    return top;
}

/* Looks the pair of a position and the one behind it up. */
static void consider(const struct merges *m, struct merger *w, int32_t position)
{
    if (position < 0 || w->links[position].next < 0) return;
    const struct merge_link *left = &w->links[position], *right = &w->links[left->next];
    const struct merge *pair = merges_get(m, left->id, right->id);
    if (!pair) return;
    heap_push(w, (struct merge_candidate){pair->rank, (uint32_t)position, pair->id});
    if (w->watched && w->watched[pair->id]) vec_push(&w->seen, ((struct merge_seen){pair->id, left->id, right->id}));
}

static void join(const struct merges *m, struct merger *w, struct merge_candidate c)
{
    struct merge_link *left = &w->links[c.position];
    if (left->gone || left->next < 0) return;
    struct merge_link *right = &w->links[left->next];
    const struct merge *pair = merges_get(m, left->id, right->id);
    if (!pair || pair->id != c.id) return;
    left->id = pair->id;
    left->end = right->end;
    left->next = right->next;
    right->gone = true;
    if (right->next >= 0) w->links[right->next].prev = (int32_t)c.position;
    consider(m, w, left->prev);
    consider(m, w, (int32_t)c.position);
}

static uint32_t merge_long(const struct merges *m, struct merger *w, struct token *symbols, uint32_t n)
{
    vec_grow((void **)&w->links, &w->cap_links, n, sizeof *w->links);
    w->n_heap = 0;
    for (uint32_t i = 0; i < n; i++)
        w->links[i] = (struct merge_link){symbols[i].id,
                                          symbols[i].begin,
                                          symbols[i].end,
                                          (int32_t)i - 1,
                                          i + 1 < n ? (int32_t)i + 1 : -1,
                                          false};
    for (uint32_t i = 0; i < n; i++) consider(m, w, (int32_t)i);
    while (w->n_heap) join(m, w, heap_pop(w));
    uint32_t left = 0;
    for (int32_t i = 0; n && i >= 0; i = w->links[i].next)
        symbols[left++] = (struct token){w->links[i].id, w->links[i].begin, w->links[i].end};
    return left;
}

uint32_t merge_all(const struct merges *m, struct merger *w, struct token *symbols, uint32_t n)
{
    w->seen.n = 0;
    return n <= SHORT_WORD && !w->watched ? merge_short(m, symbols, n) : merge_long(m, w, symbols, n);
}

void merger_free(struct merger *w)
{
    mem_free(w->links);
    mem_free(w->heap);
    vec_free(&w->seen);
    memset(w, 0, sizeof *w);
}
