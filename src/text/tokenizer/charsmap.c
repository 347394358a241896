/*
 * charsmap.c: see charsmap.h.
 *
 * A unit of the trie has a label in bits 0 to 7 (bit 31 marks a value instead), bit 8 says that a
 * string ends here, and the other bits are the distance to the children: child = (node ^ distance)
 * ^ byte.
 */
#include "text/tokenizer/charsmap.h"

#include <string.h>

#include "text/unicode.h"

int charsmap_read(struct charsmap *m, const char *bytes, size_t n, struct error *e)
{
    uint32_t size = 0;
    if (n >= sizeof size) memcpy(&size, bytes, sizeof size);
    if (n < 5 || n > UINT32_MAX || size > n - 5 || size % 4 || !size || bytes[n - 1])
        return error_set(e, PL_USAGE,
                         "the table of replacements (precompiled_charsmap) of %zu bytes is cut or malformed", n);
    if (utf8_check(bytes + 4 + size, n - 4 - size) != n - 4 - size)
        return error_set(e, PL_USAGE, "the table of replacements (precompiled_charsmap) has a text that is not UTF-8");
    m->n_units = size / 4;
    m->n_strings = (uint32_t)(n - 4 - size);
    m->units = mem_alloc(size);
    m->strings = mem_alloc(m->n_strings);
    memcpy(m->units, bytes + 4, size);
    memcpy(m->strings, bytes + 4 + size, m->n_strings);
    return PL_OK;
}

void charsmap_free(struct charsmap *m)
{
    mem_free(m->units);
    mem_free(m->strings);
    *m = (struct charsmap){0};
}

static bool inside_character(char c) { return (c & 0xc0) == 0x80; }
static uint32_t distance(uint32_t unit) { return (unit >> 10) << ((unit & 1u << 9) >> 6); }

const char *charsmap_find(const struct charsmap *m, const char *text, size_t n, bool longest, uint32_t *length)
{
    const char *found = NULL;
    uint32_t node = distance(m->units[0]);
    for (size_t i = 0; i < n; i++) {
        node ^= (unsigned char)text[i];
        if (node >= m->n_units || (m->units[node] & (1u << 31 | 0xff)) != (unsigned char)text[i]) break;
        const uint32_t unit = m->units[node];
        node ^= distance(unit);
        if (!(unit >> 8 & 1)) continue;
        const uint32_t value = node < m->n_units ? m->units[node] & ~(1u << 31) : UINT32_MAX;
        if (value >= m->n_strings || inside_character(m->strings[value]) ||
            (i + 1 < n && inside_character(text[i + 1])))
            break;
        found = m->strings + value;
        *length = (uint32_t)i + 1;
        if (!longest) break;
    }
    return found;
}
