/*
 * aligned.c: text that knows where it came from (see aligned.h).
 */
#include <string.h>

#include "text/tokenizer/aligned.h"

/* False: the text would be too large. */
static bool reserve(struct aligned_buffer *b, size_t n)
{
    b->full |= n > b->most - b->n;
    if (b->full || b->cap - b->n >= n) return !b->full;
    size_t cap = max_i64(2 * (int64_t)b->cap, (int64_t)(b->n + n));
    if (cap < 1024) cap = 1024;
    b->at = mem_resize(b->at, cap);
    b->from = mem_resize(b->from, cap * sizeof *b->from);
    b->cap = (uint32_t)cap;
    return true;
}

void aligned_put(struct aligned_buffer *b, const char *bytes, size_t n, struct byte_range from)
{
    if (!reserve(b, n)) return;
    for (size_t i = 0; i < n; i++) b->at[b->n + i] = bytes[i], b->from[b->n + i] = from;
    b->n += (uint32_t)n;
}

void aligned_copy(struct aligned_buffer *b, const struct aligned *a, uint32_t begin, uint32_t end)
{
    const uint32_t n = end - begin;
    if (!n || !reserve(b, n)) return;
    memcpy(b->at + b->n, a->at + begin, n);
    if (a->from) memcpy(b->from + b->n, a->from + begin, n * sizeof *a->from);
    else
        for (uint32_t i = 0; i < n; i++)
            b->from[b->n + i] = (struct byte_range){a->shift + begin + i, a->shift + begin + i + 1};
    b->n += n;
}

void aligned_free(struct aligned_buffer *b)
{
    mem_free(b->at);
    mem_free(b->from);
    memset(b, 0, sizeof *b);
}
