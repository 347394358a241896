/*
 * vocabulary.c: tokens by content and by id, strings by their prefixes, and added tokens.
 */
#include "text/tokenizer/tokenizer_parts.h"

/* ---- tokens by content and by id ---- */

uint64_t word_hash(const char *s, size_t n)
{
    uint64_t h = n * KEYED_GOLDEN, word;
    for (; n >= 8; s += 8, n -= 8) {
        memcpy(&word, s, 8);
        h = keyed_absorb(h, word);
    }
    if (n >= 4) { /* the ends overlap */
        uint32_t low, high;
        memcpy(&low, s, 4);
        memcpy(&high, s + n - 4, 4);
        h = keyed_absorb(h, low | (uint64_t)high << 32);
    } else if (n)
        h = keyed_absorb(h, (uint64_t)(unsigned char)s[0] | (uint64_t)(unsigned char)s[n / 2] << 8 |
                                (uint64_t)(unsigned char)s[n - 1] << 16);
    return h ^ h >> 32;
}

/* Finds the slot that has the string, or the empty slot for it. */
static struct id_entry *slot_of(const struct id_map *m, const char *s, size_t n)
{
    uint32_t i = (uint32_t)word_hash(s, n) & m->mask;
    while (m->slots[i].at && (m->slots[i].n != n || memcmp(m->slots[i].at, s, n))) i = (i + 1) & m->mask;
    return &m->slots[i];
}

int32_t id_map_get(const struct id_map *m, const char *s, size_t n)
{
    if (!m->slots) return -1;
    const struct id_entry *found = slot_of(m, s, n);
    return found->at ? found->id : -1;
}

/* Grows the table: at most half of the slots are used. */
static void grow(struct id_map *m)
{
    struct id_map larger = {.mask = m->slots ? 2 * m->mask + 1 : 63};
    larger.slots = mem_alloc(((size_t)larger.mask + 1) * sizeof *larger.slots);
    for (uint32_t i = 0; m->slots && i <= m->mask; i++)
        if (m->slots[i].at) *slot_of(&larger, m->slots[i].at, m->slots[i].n) = m->slots[i];
    larger.n = m->n;
    mem_free(m->slots);
    *m = larger;
}

bool id_map_put(struct id_map *m, const char *s, size_t n, int32_t id)
{
    if (!m->slots || 2 * (m->n + 1) > m->mask) grow(m);
    struct id_entry *slot = slot_of(m, s, n);
    if (slot->at) return false;
    *slot = (struct id_entry){s, (uint32_t)n, id};
    m->n++;
    return true;
}

void id_map_free(struct id_map *m)
{
    mem_free(m->slots);
    memset(m, 0, sizeof *m);
}

/* --- the vocabulary ------------------------------------------------------------------------ */

static void make_room(struct vocabulary *v, int32_t size)
{
    if (size > v->cap) {
        int32_t cap = (int32_t)max_i64(size, min_i64(2 * (int64_t)v->cap, VOCABULARY_MOST));
        v->piece = mem_resize(v->piece, (size_t)cap * sizeof *v->piece);
        v->length = mem_resize(v->length, (size_t)cap * sizeof *v->length);
        memset(v->piece + v->cap, 0, (size_t)(cap - v->cap) * sizeof *v->piece);
        memset(v->length + v->cap, 0, (size_t)(cap - v->cap) * sizeof *v->length);
        v->cap = cap;
    }
    if (size > v->size) v->size = size;
}

int vocabulary_add(struct vocabulary *v, const char *content, size_t n, int64_t id, struct error *e)
{
    if (id < 0 || id >= VOCABULARY_MOST)
        return error_set(e, PL_USAGE, "the token \"%.100s\" has the id %lld; expected 0 to %d", content, (long long)id,
                         VOCABULARY_MOST - 1);
    if (id < v->size && v->piece[id])
        return error_set(e, PL_USAGE, "the tokens \"%.100s\" and \"%.100s\" have the same id, %lld", v->piece[id],
                         content, (long long)id);
    char *copy = bump_alloc(&v->memory, n + 1);
    memcpy(copy, content, n);
    if (!id_map_put(&v->ids, copy, n, (int32_t)id))
        return error_set(e, PL_USAGE, "the token \"%.100s\" occurs twice, with the ids %d and %lld", content,
                         id_map_get(&v->ids, content, n), (long long)id);
    make_room(v, (int32_t)id + 1);
    v->piece[id] = copy;
    v->length[id] = (uint32_t)n;
    return PL_OK;
}

void vocabulary_free(struct vocabulary *v)
{
    bump_free(&v->memory);
    mem_free(v->piece);
    mem_free(v->length);
    id_map_free(&v->ids);
    memset(v, 0, sizeof *v);
}

/* ---- strings by their prefixes ---- */

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

static void grow_edges(struct trie *t)
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
        if (!t->edges || 2 * (t->n_edges + 1) > t->mask) grow_edges(t);
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

/* ---- added tokens ---- */

/* The first match from the left counts, and of several that begin there the longest. A match that
 * is then refused because of `single_word` is text, and the search goes on behind it. */

void added_free(struct added *a)
{
    vec_free(a);
    trie_free(&a->raw);
    trie_free(&a->normalized);
    id_map_free(&a->contents);
}

/* Reports whether a range touches text in which special tokens are text. */
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

/* Finds the longest token at `begin`; NULL: none. */
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
