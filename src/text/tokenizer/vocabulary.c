/*
 * vocabulary.c: tokens by content and by id (see vocabulary.h).
 */
#include <string.h>

#include "base/keyed.h"
#include "text/tokenizer/vocabulary.h"

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

/* The slot that has the string, or the empty slot for it. */
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

/* At most half of the slots are used. */
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
