/*
 * j2k_memory.c: what OpenJPEG allocates for a codestream, from its markers (see dicom.h).
 *
 * OpenJPEG has no allocator of the caller's. It takes 4 bytes for each sample, the bytes of a
 * tile's packets, and structures for each tile, and for each precinct and code block of the tile
 * that it decodes. The largest sizes of these structures were measured with OpenJPEG 2.5.
 */
#include "data/volumes/dicom.h"

enum {
    OF_TILE = 10240,
    OF_TILE_CHANNEL = 2048,
    OF_PRECINCT = 1536,
    OF_BLOCK = 448,
    OF_STREAM = 1 << 20,
    SOC = 0xff4f,
    SIZ = 0xff51,
    COD = 0xff52,
    COC = 0xff53,
    SOT = 0xff90,
    SOD = 0xff93,
    EOC = 0xffd9
};

struct codestream {
    uint32_t w, h, tile_w, tile_h, channels;
    uint64_t tiles;
    uint32_t levels;                /* of the wavelet transform */
    uint32_t block[2];              /* the smallest exponents of their sides, of all channels... */
    uint32_t precinct[33][2];       /* ...and of each resolution, from the smallest */
};

static uint32_t u16(const uint8_t *p) { return (uint32_t)p[0] << 8 | p[1]; }
static uint32_t u32(const uint8_t *p) { return u16(p) << 16 | u16(p + 2); }
static uint64_t divide_up(uint64_t n, uint64_t by) { return (n + by - 1) / by; }

static bool read_siz(struct codestream *c, const uint8_t *p, size_t n)
{
    if (n < 36) return false;
    const uint32_t x1 = u32(p + 2), y1 = u32(p + 6), x0 = u32(p + 10), y0 = u32(p + 14), tx = u32(p + 26),
                   ty = u32(p + 30);
    *c = (struct codestream){.w = x1 - x0, .h = y1 - y0, .tile_w = u32(p + 18), .tile_h = u32(p + 22),
                             .channels = u16(p + 34), .levels = UINT32_MAX};
    if (x0 >= x1 || y0 >= y1 || tx > x0 || ty > y0 || !c->tile_w || !c->tile_h) return false;
    c->tiles = divide_up(x1 - tx, c->tile_w) * divide_up(y1 - ty, c->tile_h);
    c->tile_w = (uint32_t)min_u64(c->tile_w, c->w), c->tile_h = (uint32_t)min_u64(c->tile_h, c->h);
    return true;
}

/* Returns a coding style: p[0] is the number of levels. */
static bool read_style(struct codestream *c, const uint8_t *p, size_t n, bool precincts)
{
    if (n < 5 || p[0] > 32 || (precincts && n < 6u + p[0])) return false;
    if (c->levels == UINT32_MAX) {
        c->levels = 0;
        c->block[0] = c->block[1] = 15;
        for (uint32_t r = 0; r <= 32; r++) c->precinct[r][0] = c->precinct[r][1] = 15;
    }
    for (int k = 0; k < 2; k++) {
        c->block[k] = (uint32_t)min_u64(c->block[k], (p[1 + k] & 15) + 2u);
        for (uint32_t r = 0; r <= p[0] && precincts; r++)
            c->precinct[r][k] = (uint32_t)min_u64(c->precinct[r][k], k ? p[5 + r] >> 4 : p[5 + r] & 15);
    }
    if (p[0] > c->levels) c->levels = p[0];
    return true;
}

/* Returns one marker with its m bytes at p. Tiles may have coding styles of their own. */
static bool read_marker(struct codestream *c, uint32_t marker, const uint8_t *p, size_t m)
{
    const uint32_t wide = c->channels > 256 ? 2 : 1; /* bytes of a channel's number */
    if (marker == SIZ) return !c->w && read_siz(c, p, m);
    if (marker == COD) return c->w && m >= 5 && read_style(c, p + 5, m - 5, p[0] & 1);
    if (marker == COC) return c->w && m >= 1 + wide && read_style(c, p + wide + 1, m - 1 - wide, p[wide] & 1);
    return marker != SOT || m >= 8;
}

/* Returns the markers before the first tile, and those of each part of a tile. */
static bool read_markers(struct codestream *c, const uint8_t *at, size_t n)
{
    uint64_t i = 2, next = 0; /* next: the end of the part of a tile; 0: it is the last */
    if (n < 4 || u16(at) != SOC || u16(at + 2) != SIZ) return false;
    while (n - i >= 4) {
        const uint32_t marker = u16(at + i), length = u16(at + i + 2);
        if (marker == EOC) return true;
        if (marker == SOD) { /* packets follow */
            if (!next || next > n) return true;
            if (next <= i) return false;
            i = next;
            continue;
        }
        if (length < 2 || length > n - i - 2 || !read_marker(c, marker, at + i + 4, length - 2)) return false;
        if (marker == SOT) next = u32(at + i + 6) ? i + u32(at + i + 6) : 0;
        i += 2 + length;
    }
    return true;
}

/* Returns the bytes of one tile and channel: the structures of all resolutions, each in up to
 * three bands. */
static uint64_t tile_bytes(const struct codestream *c)
{
    uint64_t sum = 0;
    for (uint32_t r = 0; r <= c->levels; r++) {
        const uint64_t less = 1ull << (c->levels - r), w = divide_up(c->tile_w, less), h = divide_up(c->tile_h, less);
        uint64_t precincts = 1, blocks = 1;
        for (int k = 0; k < 2; k++) {
            const uint32_t precinct = c->precinct[r][k], inner = precinct ? precinct - 1 : 0,
                           block = inner < c->block[k] ? inner : c->block[k];
            precincts *= divide_up(k ? h : w, 1ull << precinct) + 1;
            blocks *= divide_up(k ? h : w, 1ull << block) + 1;
        }
        sum += precincts * 3 * OF_PRECINCT + blocks * OF_BLOCK; /* a band has a quarter of the blocks */
    }
    return sum;
}

uint64_t j2k_room(uint32_t w, uint32_t h, uint32_t channels, uint64_t n)
{
    return 5ull * w * h * channels + n + 2 * OF_STREAM;
}

uint64_t j2k_memory(const uint8_t *at, size_t n)
{
    struct codestream c = {0};
    if (!read_markers(&c, at, n) || !c.w || c.levels == UINT32_MAX) return UINT64_MAX;
    const uint64_t samples = (uint64_t)c.w * c.h * c.channels;
    return 4 * samples + n + OF_STREAM + c.tiles * (OF_TILE + (uint64_t)c.channels * OF_TILE_CHANNEL) +
           c.channels * tile_bytes(&c);
}

const uint8_t *j2k_codestream(const uint8_t *at, size_t *n)
{
    for (const uint8_t *end = at + *n; end - at >= 8 && memcmp(at, "\xff\x4f", 2);) {
        const uint64_t bytes = u32(at);
        if (!memcmp(at + 4, "jp2c", 4)) return *n = (size_t)(end - at) - 8, at + 8;
        if (bytes < 8 || bytes > (uint64_t)(end - at)) break;
        at += bytes, *n = (size_t)(end - at);
    }
    return at;
}
