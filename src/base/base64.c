/*
 * base64.c: see base64.h.
 */
#include "base/base64.h"

#include <string.h>

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void base64_encode(struct text *out, const void *from, size_t n)
{
    const uint8_t *bytes = from;
    for (size_t i = 0; i < n; i += 3) {
        size_t have = n - i < 3 ? n - i : 3;
        uint32_t word =
            (uint32_t)bytes[i] << 16 | (have > 1 ? (uint32_t)bytes[i + 1] << 8 : 0) | (have > 2 ? bytes[i + 2] : 0);
        char quad[4] = {digits[word >> 18], digits[word >> 12 & 63], have > 1 ? digits[word >> 6 & 63] : '=',
                        have > 2 ? digits[word & 63] : '='};
        text_append(out, quad, 4);
    }
}

static int digit(char c)
{
    if (c == '-' || c == '+') return 62;
    if (c == '_' || c == '/') return 63;
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    return c >= '0' && c <= '9' ? c - '0' + 52 : -1;
}

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

int64_t base64_decode(void *out, const char *text, size_t n, size_t *bad)
{
    uint8_t *to = out;
    uint32_t word = 0, bits = 0, seen = 0, padding = 0;
    for (size_t i = 0; i < n; i++) {
        if (is_space(text[i])) continue;
        if (text[i] == '=' && seen % 4 + padding >= 2 && seen % 4 + padding < 4) {
            padding++;
            continue;
        }
        int d = digit(text[i]);
        *bad = i;
        if (d < 0 || padding) return -1;
        word = word << 6 | (uint32_t)d;
        bits += 6;
        seen++;
        if (bits >= 8) bits -= 8, *to++ = (uint8_t)(word >> bits);
    }
    *bad = n;
    return seen % 4 == 1 ? -1 : to - (uint8_t *)out; /* one digit is less than a byte */
}
