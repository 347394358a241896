/*
 * coding.c: CRC-32C and base64.
 *
 * The checksum takes eight bytes per iteration through eight tables: table[k][b] is the remainder
 * of byte b followed by k zero bytes, and an iteration is the xor of eight entries. The tables are
 * computed at the first call.
 */
#include "base/coding.h"

#include <pthread.h>

static uint32_t table[8][256];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_tables(void)
{
    for (uint32_t b = 0; b < 256; b++) {
        uint32_t r = b;
        for (int i = 0; i < 8; i++) r = r >> 1 ^ (0x82f63b78u & -(r & 1));
        table[0][b] = r;
    }
    for (int k = 1; k < 8; k++)
        for (int b = 0; b < 256; b++) table[k][b] = table[k - 1][b] >> 8 ^ table[0][table[k - 1][b] & 255];
}

uint32_t crc32c(uint32_t crc, const void *bytes, size_t n)
{
    const uint8_t *p = bytes;
    pthread_once(&once, make_tables);
    crc = ~crc;
    for (; n >= 8; p += 8, n -= 8) {
        uint64_t word; /* little-endian, as on all supported machines */
        memcpy(&word, p, 8);
        word ^= crc;
        crc = 0;
        for (int k = 0; k < 8; k++) crc ^= table[7 - k][word >> 8 * k & 255];
    }
    for (; n; p++, n--) crc = crc >> 8 ^ table[0][(crc ^ *p) & 255];
    return ~crc;
}

/* --- base64 --------------------------------------------------------------------------------- */

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
