/*
 * words.c: see words.h.
 */
#include "base/words.h"

#include <inttypes.h>

bool extent_parse(const char *s, uint32_t size[2])
{
    char *end;
    unsigned long w = strtoul(s, &end, 10), h;
    if (end == s || *s < '0' || *s > '9' || (*end != 'x' && *end != 'X')) return false;
    s = end + 1;
    h = strtoul(s, &end, 10);
    if (end == s || *s < '0' || *s > '9' || *end || !w || !h || w > 1000000 || h > 1000000) return false;
    size[0] = (uint32_t)w;
    size[1] = (uint32_t)h;
    return true;
}

int option_count(const char *option, const char *text, int64_t least, int64_t most, int64_t *out, struct error *e)
{
    char *end;
    if (!text) return PL_OK;
    long long x = strtoll(text, &end, 10);
    if (!*text || *end || x < least || x > most)
        return error_set(e, PL_USAGE, "%s is %s, expected a number from %" PRId64 " to %" PRId64, option, text, least,
                         most);
    *out = x;
    return PL_OK;
}

void text_quote(struct text *out, const char *word)
{
    if (*word && !word[strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:=,+-")]) {
        text_printf(out, " %s", word);
        return;
    }
    text_printf(out, " '");
    for (; *word; word++) text_printf(out, *word == '\'' ? "'\\''" : "%c", *word);
    text_printf(out, "'");
}
