/*
 * aligned.h: text on its way through a tokenizer. Each byte knows which bytes of the user's text it
 * came from.
 *
 *     user's text     H  e  l  l  o     w  o  r  l  d          bytes 0 ... 10
 *     normalized   ▁  H  e  l  l  o  ▁  w  o  r  l  d
 *     from        0-1 0 1 ...       5-6                        ▁ has three bytes, all from 5-6
 *
 * What is inserted comes from the character beside it.
 */
#ifndef ALIGNED_H
#define ALIGNED_H

#include "base/base.h"
#include "text/ranges.h"

struct aligned {
    const char *at;
    uint32_t n;
    uint32_t shift;                /* without `from`: byte i came from byte shift + i */
    const struct byte_range *from; /* [n] or NULL */
};

/* The bytes of the user's text that bytes begin, ..., end - 1 came from; begin < end. */
static inline struct byte_range aligned_from(const struct aligned *a, uint32_t begin, uint32_t end)
{
    if (!a->from) return (struct byte_range){a->shift + begin, a->shift + end};
    return (struct byte_range){a->from[begin].begin, a->from[end - 1].end};
}
static inline struct aligned aligned_part(const struct aligned *a, uint32_t begin, uint32_t end)
{
    return (struct aligned){a->at + begin, end - begin, a->shift + begin, a->from ? a->from + begin : NULL};
}

/* Bytes that a text of n bytes may become: steps that replace one character by many cannot exhaust
 * memory. The characters that grow most in a normal form become eleven times as many bytes. */
enum { ALIGNED_MOST = 384 << 20, ALIGNED_GROWTH = 16, ALIGNED_LEAST = 4096 };
static inline uint32_t aligned_most(uint32_t n)
{
    return (uint32_t)min_u64(ALIGNED_MOST, (uint64_t)n * ALIGNED_GROWTH + ALIGNED_LEAST);
}

/* Aligned text that grows. What would make it larger than `most` is dropped, and `full` is set. */
struct aligned_buffer {
    char *at;
    struct byte_range *from;
    uint32_t n, cap, most;
    bool full;
};
static inline void aligned_clear(struct aligned_buffer *b, uint32_t most) { b->n = 0, b->most = most, b->full = false; }
void aligned_put(struct aligned_buffer *b, const char *bytes, size_t n, struct byte_range from);
/* Appends bytes begin, ..., end - 1 of `a`. */
void aligned_copy(struct aligned_buffer *b, const struct aligned *a, uint32_t begin, uint32_t end);
static inline struct aligned aligned_of(const struct aligned_buffer *b)
{
    return (struct aligned){b->at, b->n, 0, b->from};
}
void aligned_free(struct aligned_buffer *b);

#endif
