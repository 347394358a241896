/*
 * safetensors_write.c: writing .safetensors files.
 *
 * Invariant: the header, padded with blanks to 8 bytes to align the data, is complete before the
 * first byte of data, and data is written strictly in order. So a file is either whole, after
 * st_write_end, or shorter than its header says.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/file.h"
#include "io/json.h"
#include "io/safetensors.h"

/* A write failure is PL_FAIL (the environment), for every errno. */
static int write_error(const struct st_writer *w, uint64_t bytes, struct error *e)
{
    char doing[64];
    snprintf(doing, sizeof doing, "write %" PRIu64 " bytes", bytes);
    file_error(w->path, doing, e);
    return e->code = PL_FAIL;
}

/* The tensor's bytes. An overflow is an internal bug: the tensor was in memory before. */
static uint64_t spec_bytes(const struct st_spec *s)
{
    uint64_t bytes = dtype_size(s->dtype);
    CHECK(bytes, "tensor %s has no dtype", s->name);
    for (int i = 0; i < s->rank; i++) {
        CHECK(s->dims[i] >= 0, "tensor %s has a dimension of %" PRId64, s->name, s->dims[i]);
        CHECK(!__builtin_mul_overflow(bytes, (uint64_t)s->dims[i], &bytes), "tensor %s overflows", s->name);
    }
    return bytes;
}

static void header_metadata(struct json_writer *j, const struct st_pair *pairs, uint32_t n)
{
    if (!n) return;
    json_begin_map(j, "__metadata__");
    for (uint32_t i = 0; i < n; i++) json_put_string(j, pairs[i].key, pairs[i].value);
    json_end(j);
}

static void header_tensor(struct json_writer *j, const struct st_spec *s, uint64_t begin, uint64_t end)
{
    json_begin_map(j, s->name);
    json_put_string(j, "dtype", dtype_table[s->dtype].safetensors);
    json_begin_list(j, "shape");
    for (int i = 0; i < s->rank; i++) json_put_int(j, NULL, s->dims[i]);
    json_end(j);
    json_begin_list(j, "data_offsets");
    json_put_uint(j, NULL, begin);
    json_put_uint(j, NULL, end);
    json_end(j);
    json_end(j);
}

/* Prints the length and the padded header; returns the bytes of data that it describes. */
static uint64_t header_build(struct text *out, const struct st_spec *specs, uint32_t n,
                             const struct st_pair *metadata, uint32_t n_metadata)
{
    struct json_writer j = {.out = out};
    uint64_t at = 0;
    text_append(out, "\0\0\0\0\0\0\0\0", 8);
    json_begin_map(&j, NULL);
    header_metadata(&j, metadata, n_metadata);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t bytes = spec_bytes(&specs[i]);
        header_tensor(&j, &specs[i], at, at + bytes);
        at += bytes;
    }
    json_end(&j);
    while (out->n % 8) text_append(out, " ", 1);
    uint64_t length = out->n - 8;
    for (int i = 0; i < 8; i++) out->at[i] = (char)(length >> (8 * i));
    return at;
}

/* Reserves the disk space, so that a full disk is found before anything is written. Does nothing
 * on a file system that cannot reserve. */
static int reserve(struct st_writer *w, uint64_t header, struct error *e)
{
    uint64_t bytes = header + w->wanted;
    if (!w->is_regular || !fallocate(w->fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)bytes)) return PL_OK;
    return errno == ENOSPC || errno == EDQUOT || errno == EFBIG ? write_error(w, bytes, e) : PL_OK;
}

int st_write_begin(struct st_writer *w, const char *path, const struct st_spec *specs, uint32_t n,
                   const struct st_pair *metadata, uint32_t n_metadata, struct error *e)
{
    struct text header = {0};
    struct stat s;
    *w = (struct st_writer){.path = mem_string(path), .fd = -1};
    w->wanted = header_build(&header, specs, n, metadata, n_metadata);
    int rc = PL_OK;
    if (header.n - 8 > ST_HEADER_MOST)
        rc = error_set(e, PL_FAIL, "%s: the header has %zu bytes; safetensors allows %d", path, header.n,
                       ST_HEADER_MOST);
    if (!rc) {
        w->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
        if (w->fd < 0) rc = write_error(w, header.n + w->wanted, e);
    }
    if (!rc) {
        w->is_regular = !fstat(w->fd, &s) && S_ISREG(s.st_mode);
        rc = reserve(w, header.n, e);
    }
    if (!rc && fd_write(w->fd, header.at, header.n)) rc = write_error(w, header.n + w->wanted, e);
    text_free(&header);
    if (rc) st_write_abort(w);
    return rc;
}

int st_write_bytes(struct st_writer *w, const void *data, uint64_t n, struct error *e)
{
    CHECK(w->fd >= 0, "write to a closed file");
    CHECK(n <= w->wanted - w->written, "%s: %" PRIu64 " bytes more than the %" PRIu64 " announced", w->path,
          w->written + n - w->wanted, w->wanted);
    if (fd_write(w->fd, data, n)) return write_error(w, w->wanted, e);
    w->written += n;
    return PL_OK;
}

int st_write_end(struct st_writer *w, struct error *e)
{
    CHECK(w->fd >= 0, "st_write_end on a closed file");
    CHECK(w->written == w->wanted, "%s: %" PRIu64 " bytes of data written, %" PRIu64 " announced", w->path,
          w->written, w->wanted);
    int rc = fsync(w->fd) ? write_error(w, w->wanted, e) : PL_OK;
    if (!rc) {
        int fd = w->fd;
        w->fd = -1; /* close releases the descriptor even when it fails */
        if (close(fd)) rc = write_error(w, w->wanted, e);
    }
    if (rc) {
        st_write_abort(w);
        return rc;
    }
    mem_free(w->path);
    *w = (struct st_writer){.fd = -1};
    return PL_OK;
}

void st_write_abort(struct st_writer *w)
{
    if (w->fd >= 0) close(w->fd);
    if (w->path && w->is_regular) unlink(w->path);
    mem_free(w->path);
    *w = (struct st_writer){.fd = -1};
}
