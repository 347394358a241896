/*
 * zstd.c: decodes zstd with libzstd (codec.h). Only this file uses it; zstd_none.c replaces it where the library is not found.
 */
#include <zstd.h>

#include "io/codec.h"

enum { WINDOW_LOG = 27 }; /* 128 MiB: that of the highest level */

static void *open_zstd(uint64_t room[CODEC_ROOM])
{
    (void)room;
    ZSTD_DCtx *d = ZSTD_createDCtx();
    if (d) ZSTD_DCtx_setParameter(d, ZSTD_d_windowLogMax, WINDOW_LOG);
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

const struct codec_library codec_zstd = {"zstd", open_zstd, close_zstd, read_zstd};
