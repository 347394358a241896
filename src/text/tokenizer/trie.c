/*
 * trie.c: strings by their prefixes (see trie.h).
 */
#include <string.h>

#include "base/keyed.h"
#include "text/tokenizer/trie.h"

static struct trie_edge *edge_of(const struct trie *t, uint64_t key)
{
    uint32_t i = (uint32_t)((key * KEYED_GOLDEN) >> 32) & t->mask;
    while (t->edges[i].key && t->edges[i].key != key) i = (i + 1) & t->mask;
    return &t->edges[i];
}

static uint64_t key_of(uint32_t node, char byte) { return ((uint64_t)node << 8 | (unsigned char)byte) + 1; }

uint32_t trie_step(const struct trie *t, uint32_t node, char byte)
{
    return t->edges ? edge_of(t, key_of(node, byte))->node : 0;
}

static void grow(struct trie *t)
{
    struct trie larger = *t;
    larger.mask = t->edges ? 2 * t->mask + 1 : 255;
    larger.edges = mem_alloc(((size_t)larger.mask + 1) * sizeof *larger.edges);
    for (uint32_t i = 0; t->edges && i <= t->mask; i++)
        if (t->edges[i].key) *edge_of(&larger, t->edges[i].key) = t->edges[i];
    mem_free(t->edges);
    *t = larger;
}

static uint32_t new_node(struct trie *t)
{
    vec_grow((void **)&t->values, &t->cap_nodes, t->n_nodes + 1, sizeof *t->values);
    t->values[t->n_nodes] = -1;
    return t->n_nodes++;
}

bool trie_add(struct trie *t, const char *s, size_t n, int32_t value)
{
    CHECK(n);
    if (!t->n_nodes) new_node(t);
    t->first[(unsigned char)*s] = true;
    uint32_t node = 0;
    for (size_t i = 0; i < n; i++) {
        if (!t->edges || 2 * (t->n_edges + 1) > t->mask) grow(t);
        struct trie_edge *edge = edge_of(t, key_of(node, s[i]));
        if (!edge->key) {
            *edge = (struct trie_edge){key_of(node, s[i]), new_node(t)};
            t->n_edges++;
        }
        node = edge->node;
    }
    if (t->values[node] >= 0) return false;
    t->values[node] = value;
    return true;
}

void trie_free(struct trie *t)
{
    mem_free(t->edges);
    mem_free(t->values);
    memset(t, 0, sizeof *t);
}
