/*
 * zstd.c: decodes zstd with libzstd (codec.h). Only this file uses it; zstd_none.c replaces it
 * where the library is not found.
 */
#include <zstd.h>

#include "io/codec.h"

enum { WINDOW_LOG = 27, BOUNDED_LOG = 25 }; /* 128 MiB, that of the highest level; CODEC_WINDOW_MOST */

/* Returns the window of a frame, which states it, or is one segment and states its whole length. */
static uint64_t window_zstd(const uint8_t *at, const uint8_t *end)
{
    static const uint8_t lengths[] = {1, 2, 4, 8};
    uint64_t window = 0;
    if (end - at < 14) return 0;
    const uint8_t how = at[4], n = lengths[how >> 6];
    const uint8_t *const length = at + 5 +
                                  ((const uint8_t[]){0, 1, 2, 4})[how & 3]; /* behind the number of a dictionary */
    if (how & 0x20) {
        for (uint8_t i = 0; i < n && length + i < end; i++) window |= (uint64_t)length[i] << 8 * i;
        if (n == 2) window += 256;
    } else {
        window = (uint64_t)(8 + (at[5] & 7)) << (7 + (at[5] >> 3));
    }
    return window;
}

static void *open_zstd(uint64_t room[CODEC_ROOM], bool bounded)
{
    (void)room;
    ZSTD_DCtx *d = ZSTD_createDCtx();
    if (d) ZSTD_DCtx_setParameter(d, ZSTD_d_windowLogMax, bounded ? BOUNDED_LOG : WINDOW_LOG);
    return d;
}

static void close_zstd(void *state) { ZSTD_freeDCtx(state); }

static int64_t read_zstd(void *state, const uint8_t **at, const uint8_t *end, uint8_t *to, size_t n)
{
    ZSTD_inBuffer in = {*at, (size_t)(end - *at), 0};
    ZSTD_outBuffer out = {to, n, 0};
    const size_t rc = ZSTD_decompressStream(state, &out, &in);
    *at += in.pos;
    return ZSTD_isError(rc) ? -1 : (int64_t)out.pos;
}

const struct codec_library codec_zstd = {"zstd", window_zstd, open_zstd, close_zstd, read_zstd};

const char *zstd_version(void) { return ZSTD_versionString(); }
