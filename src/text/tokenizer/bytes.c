/*
 * bytes.c: the alphabet of byte-level BPE (see bytes.h).
 */
#include "text/tokenizer/bytes.h"
#include "text/unicode.h"

static bool is_itself(uint32_t c) { return (c >= 33 && c <= 126) || (c >= 161 && c <= 172) || (c >= 174 && c <= 255); }

uint32_t byte_character(unsigned char b)
{
    if (is_itself(b)) return b;
    return b <= 32 ? 0x100u + b : b < 161 ? 0x100u + 33 + (b - 127u) : 0x143;
}

int character_byte(uint32_t c)
{
    if (c < 0x100) return is_itself(c) ? (int)c : -1;
    if (c <= 0x120) return (int)c - 0x100;
    if (c < 0x143) return (int)c - 0x100 - 33 + 127;
    return c == 0x143 ? 173 : -1;
}

int64_t characters_to_bytes(const char *s, size_t n, char *out)
{
    int64_t count = 0;
    for (size_t i = 0; i < n;) {
        uint32_t code;
        i += (size_t)utf8_next(s + i, &code);
        int byte = character_byte(code);
        if (byte < 0) return -1;
        out[count++] = (char)byte;
    }
    return count;
}
