/*
 * trie.h: strings by their prefixes: which of a set of strings begin at a position of a text.
 *
 * Nodes are numbers, 0 is the root; edges lie in a hash table keyed by (node, byte).
 */
#ifndef TRIE_H
#define TRIE_H

#include "base/base.h"

struct trie {
    struct trie_edge {
        uint64_t key;   /* (node << 8 | byte) + 1; 0: an empty slot */
        uint32_t node;
    } *edges;
    uint32_t mask, n_edges;
    int32_t *values;    /* [n_nodes]; -1: no string ends here */
    uint32_t n_nodes, cap_nodes;
    bool first[256];    /* whether a string begins with this byte */
};

/* Adds a string of at least one byte. False: it is there already. */
bool trie_add(struct trie *t, const char *s, size_t n, int32_t value);
/* The node behind a byte; 0: none. */
uint32_t trie_step(const struct trie *t, uint32_t node, char byte);
void trie_free(struct trie *t);

#endif
