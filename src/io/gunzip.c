/*
 * gunzip.c: see gunzip.h. A gzip file is a list of members; zeros after the last member are
 * padding. Memory is bounded: two blocks and zlib's window.
 */
#include "io/gunzip.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "base/progress.h"
#include "io/codec.h"
#include "io/file.h"

enum { BLOCK = 256 << 10 };

struct gunzip_state {
    z_stream z;
    int from, to;
    bool end; /* of the input */
    bool quiet;
    bool stopped; /* there are more than `most` bytes */
    uint64_t most;
    struct progress progress; /* in MiB of the input */
    uint8_t in[BLOCK], out[BLOCK];
};

static int fill(struct gunzip_state *s, struct gunzip_report *r, struct error *e)
{
    if (s->z.avail_in || s->end) return PL_OK;
    ssize_t got;
    do got = read(s->from, s->in, BLOCK);
    while (got < 0 && errno == EINTR);
    if (got < 0) return error_set(e, PL_FAIL, "cannot read: %s", strerror(errno));
    s->end = got == 0;
    s->z.next_in = s->in;
    s->z.avail_in = (unsigned)got;
    if (!s->quiet) progress_add(&s->progress, ((r->in + (uint64_t)got) >> 20) - (r->in >> 20));
    r->in += (uint64_t)got;
    return PL_OK;
}

static int flush(struct gunzip_state *s, struct gunzip_report *r, struct error *e)
{
    size_t n = BLOCK - s->z.avail_out;
    s->stopped = n > s->most - r->out;
    if (s->stopped) n = (size_t)(s->most - r->out);
    if (n && fd_write(s->to, s->out, n)) return error_set(e, PL_FAIL, "cannot write: %s", strerror(errno));
    r->out += n;
    s->z.next_out = s->out;
    s->z.avail_out = BLOCK;
    return PL_OK;
}

static void note(struct gunzip_report *r, const char *reason)
{
    r->damaged = true;
    snprintf(r->reason, sizeof r->reason, "%s", reason);
}

/* Finds whether another member follows: its magic bytes do. *more is false at the end. */
static int next_member(struct gunzip_state *s, struct gunzip_report *r, bool *more, struct error *e)
{
    do {
        if (fill(s, r, e)) return e->code;
        while (s->z.avail_in && !*s->z.next_in) s->z.next_in++, s->z.avail_in--;
    } while (!s->z.avail_in && !s->end);
    *more = s->z.avail_in != 0;
    if (*more && *s->z.next_in != 0x1f) note(r, "bytes that are not gzip after its end"), *more = false;
    inflateReset(&s->z);
    return PL_OK;
}

static int inflate_all(struct gunzip_state *s, struct gunzip_report *r, struct error *e)
{
    for (bool more = true; more;) {
        if (fill(s, r, e)) return e->code;
        int z = inflate(&s->z, Z_NO_FLUSH);
        bool stuck = z == Z_BUF_ERROR && s->end;
        if (flush(s, r, e)) return e->code;
        if (s->stopped) return PL_OK;
        if (z == Z_STREAM_END) {
            if (next_member(s, r, &more, e)) return e->code;
        } else if (stuck) { /* zlib needs more input, and none is left */
            note(r, "it ends too early");
            more = false;
        } else if (z != Z_OK && z != Z_BUF_ERROR) {
            note(r, s->z.msg ? s->z.msg : "it cannot be decoded");
            more = false;
        }
    }
    return PL_OK;
}

static int run(int from, int to, uint64_t most, bool quiet, struct gunzip_report *r, struct error *e)
{
    struct gunzip_state *s = mem_alloc(sizeof *s);
    memset(r, 0, sizeof *r);
    s->quiet = quiet;
    s->most = most;
    s->from = from;
    s->to = to;
    s->z.next_out = s->out;
    s->z.avail_out = BLOCK;
    struct stat file = {0};
    fstat(from, &file);
    if (!quiet) progress_begin(&s->progress, "decompressing", "MiB", (uint64_t)file.st_size >> 20);
    int rc = inflateInit2(&s->z, 15 + 16) == Z_OK ? PL_OK : error_set(e, PL_FAIL, "zlib cannot be initialised");
    if (!rc) rc = inflate_all(s, r, e);
    inflateEnd(&s->z);
    if (!quiet) progress_clear();
    mem_free(s);
    return rc;
}

int gunzip(int from, int to, struct gunzip_report *r, struct error *e)
{
    return run(from, to, UINT64_MAX, false, r, e);
}

int gunzip_at_most(int from, int to, uint64_t most, struct gunzip_report *r, struct error *e)
{
    return run(from, to, most, true, r, e);
}

size_t gunzip_peek(const char *path, void *to, size_t n)
{
    uint8_t in[4096];
    z_stream z = {.next_in = in, .next_out = to, .avail_out = (unsigned)n};
    z.avail_in = (unsigned)file_peek(path, in, sizeof in);
    if (z.avail_in < 2 || in[0] != 0x1f || in[1] != 0x8b || inflateInit2(&z, 15 + 16) != Z_OK) return 0;
    inflate(&z, Z_SYNC_FLUSH);
    inflateEnd(&z);
    return n - z.avail_out;
}
/* --- blocks in memory (codec.h) --------------------------------------------------------------- */

static void *open_block(uint64_t room[CODEC_ROOM], bool bounded)
{
    (void)bounded; /* its windows have 32 KiB */
    z_stream *z = memset(room, 0, sizeof *z);
    _Static_assert(sizeof *z <= CODEC_ROOM * sizeof *room, "zlib's state has room");
    return inflateInit2(z, 15 + 32) == Z_OK ? z : NULL; /* 32: gzip or zlib, as the first bytes say */
}

static void close_block(void *state) { inflateEnd(state); }

static int64_t read_block(void *state, const uint8_t **at, const uint8_t *end, uint8_t *to, size_t n)
{
    z_stream *z = state;
    const unsigned in = (unsigned)min_u64((uint64_t)(end - *at), 1u << 30), out = (unsigned)min_u64(n, 1u << 30);
    z->next_in = (uint8_t *)(uintptr_t)*at;
    z->avail_in = in;
    z->next_out = to;
    z->avail_out = out;
    int rc = inflate(z, Z_NO_FLUSH);
    while (rc == Z_STREAM_END && z->avail_in && z->avail_out)
        rc = inflateReset(z) == Z_OK ? inflate(z, Z_NO_FLUSH) : Z_STREAM_ERROR; /* the next member */
    *at += in - z->avail_in;
    return rc == Z_OK || rc == Z_STREAM_END || rc == Z_BUF_ERROR ? (int64_t)(out - z->avail_out) : -1;
}

static uint64_t window_block(const uint8_t *at, const uint8_t *end)
{
    (void)at, (void)end;
    return 32 << 10;
}

const struct codec_library codec_gzip = {"gzip", window_block, open_block, close_block, read_block};

/* --- compressing ----------------------------------------------------------------------------- */

/* Compresses a block, or, with the last one, what is left. */
static int deflate_block(struct gunzip_state *s, bool last, struct error *e)
{
    int z;
    do {
        s->z.next_out = s->out;
        s->z.avail_out = BLOCK;
        z = deflate(&s->z, last ? Z_FINISH : Z_NO_FLUSH);
        const size_t n = BLOCK - s->z.avail_out;
        if (n && fd_write(s->to, s->out, n)) return error_set(e, PL_FAIL, "cannot write: %s", strerror(errno));
    } while (last ? z == Z_OK || z == Z_BUF_ERROR : s->z.avail_in != 0);
    return PL_OK;
}

int gzip(int from, int to, struct error *e)
{
    struct gunzip_state *s = mem_alloc(sizeof *s);
    struct gunzip_report r = {0};
    s->from = from, s->to = to, s->quiet = true;
    int rc = deflateInit2(&s->z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK
                 ? PL_OK
                 : error_set(e, PL_FAIL, "zlib cannot be initialised");
    while (!rc && !s->end) {
        rc = fill(s, &r, e);
        if (!rc) rc = deflate_block(s, s->end, e);
    }
    deflateEnd(&s->z);
    mem_free(s);
    return rc;
}
