/*
 * crc32c.c: eight bytes per iteration through eight tables (see crc32c.h).
 *
 * table[k][b] is the remainder of byte b followed by k zero bytes; an iteration is the xor of
 * eight entries. The tables are computed at the first call.
 */
#include "base/crc32c.h"

#include <pthread.h>
#include <string.h>

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
