/*
 * safetensors.c: reading .safetensors files.
 *
 * Invariant: in an open file every entry lies within the data, has the length that its shape and
 * dtype imply, and touches its neighbours without hole or overlap, so st_read needs no further
 * checks. The header is untrusted: all arithmetic on its numbers is checked, and no number in it
 * sets the size of an allocation. It is parsed tensor by tensor: memory is that of the entries.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/file.h"
#include "io/json.h"
#include "io/safetensors.h"

/* One read(2) requests at most this much, so a complete read is never reported as short. */
enum { READ_MOST = 1 << 30, LENGTH_BYTES = 8 };

/* ---- the header's entries ---- */

/* Sets dims and elements from the "shape" list. */
static int entry_shape(struct st_file *f, const struct value *shape, struct st_entry *t, struct error *e)
{
    if (value_as_list(shape, "shape", e)) return e->code;
    int64_t *dims = bump_alloc(&f->bump, shape->count * sizeof *dims);
    bool overflow = false, empty = false;
    t->elements = 1;
    for (uint32_t i = 0; i < shape->count; i++) {
        uint64_t d;
        if (value_as_uint(shape->items[i], "a dimension of shape", &d, e)) return e->code;
        if (d > INT64_MAX) return error_set(e, PL_USAGE, "a dimension has %" PRIu64 " elements", d);
        dims[i] = (int64_t)d;
        empty |= !d;
        overflow |= __builtin_mul_overflow(t->elements, dims[i], &t->elements);
    }
    if (empty) t->elements = 0; /* even if the other dimensions overflow */
    else if (overflow) return error_set(e, PL_USAGE, "shape has more elements than 63 bits hold");
    t->rank = (int)shape->count;
    t->dims = dims;
    return PL_OK;
}

static int entry_offsets(const struct value *offsets, uint64_t data_bytes, struct st_entry *t, struct error *e)
{
    uint64_t end = 0;
    if (value_as_list(offsets, "data_offsets", e)) return e->code;
    if (offsets->count != 2)
        return error_set(e, PL_USAGE, "data_offsets has %u numbers; expected [begin, end]", offsets->count);
    if (value_as_uint(offsets->items[0], "the begin of data_offsets", &t->begin, e) ||
        value_as_uint(offsets->items[1], "the end of data_offsets", &end, e))
        return e->code;
    if (t->begin > end || end > data_bytes)
        return error_set(e, PL_USAGE, "data_offsets [%" PRIu64 ", %" PRIu64 "] are not a range within the %" PRIu64
                         " bytes of data; the file is damaged or truncated", t->begin, end, data_bytes);
    t->bytes = end - t->begin;
    return PL_OK;
}

static int entry_parse(struct st_file *f, const struct value *v, uint64_t data_bytes,
                       struct st_entry *t, struct error *e)
{
    uint64_t expected = 0;
    *t = (struct st_entry){.name = bump_string(&f->bump, v->key)};
    if (value_as_map(v, "the entry", e) || value_as_string(value_get(v, "dtype"), "dtype", &t->dtype_name, e) ||
        entry_shape(f, value_get(v, "shape"), t, e) || entry_offsets(value_get(v, "data_offsets"), data_bytes, t, e))
        return e->code;
    t->dtype = dtype_by_safetensors_name(t->dtype_name);
    t->dtype_name = t->dtype == DT_NONE ? bump_string(&f->bump, t->dtype_name) : dtype_table[t->dtype].safetensors;
    if (t->dtype == DT_NONE) return PL_OK; /* unknown element size: the length cannot be checked */
    bool overflow = __builtin_mul_overflow((uint64_t)t->elements, (uint64_t)dtype_size(t->dtype), &expected);
    if (overflow || expected != t->bytes)
        return error_set(e, PL_USAGE,
                         "data_offsets span %" PRIu64 " bytes, but %" PRId64 " elements of %s need %s%" PRIu64,
                         t->bytes, t->elements, t->dtype_name, overflow ? "more than " : "",
                         overflow ? UINT64_MAX : expected);
    return PL_OK;
}

static int metadata_parse(struct st_file *f, const struct value *v, struct error *e)
{
    if (value_as_map(v, "__metadata__", e)) return e->code;
    if (f->metadata) return error_set(e, PL_USAGE, "the key \"__metadata__\" occurs twice in one map");
    f->metadata = bump_alloc(&f->bump, (v->count + 1) * sizeof *f->metadata);
    for (uint32_t i = 0; i < v->count; i++) {
        struct st_pair *p = &f->metadata[f->n_metadata++];
        if (value_as_string(v->items[i], "a value of __metadata__", &p->value, e)) return e->code;
        p->key = bump_string(&f->bump, v->items[i]->key);
        p->value = bump_string(&f->bump, p->value);
    }
    return PL_OK;
}

/* ---- the header as a whole ---- */

/* Compares tensors by their data. An empty tensor sorts before the tensor that starts at the same
 * byte. */
static int data_order(const void *a, const void *b)
{
    const struct st_entry *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int name_order(const void *a, const void *b, void *entries)
{
    const struct st_entry *at = entries;
    return strcmp(at[*(const uint32_t *)a].name, at[*(const uint32_t *)b].name);
}

/* Checks that, sorted by data offset, each tensor starts where the previous one ends. */
static int layout_check(struct st_file *f, uint64_t data_bytes, struct error *e)
{
    uint64_t at = 0;
    if (f->n_entries) qsort(f->entries, f->n_entries, sizeof *f->entries, data_order);
    for (uint32_t i = 0; i < f->n_entries; i++) {
        const struct st_entry *t = &f->entries[i];
        if (t->begin < at)
            return error_set(e, PL_USAGE, "tensors \"%.200s\" and \"%.200s\" overlap in the data",
                             f->entries[i - 1].name, t->name);
        if (t->begin > at)
            return error_set(e, PL_USAGE, "there is a hole of %" PRIu64 " bytes in the data before tensor \"%.200s\"",
                             t->begin - at, t->name);
        at += t->bytes;
    }
    if (at != data_bytes)
        return error_set(e, PL_USAGE,
                         "the tensors take %" PRIu64 " bytes, but %" PRIu64 " bytes of data follow the header", at,
                         data_bytes);
    return PL_OK;
}

static int index_names(struct st_file *f, struct error *e)
{
    f->by_name = bump_alloc(&f->bump, f->n_entries * sizeof *f->by_name);
    for (uint32_t i = 0; i < f->n_entries; i++) f->by_name[i] = i;
    if (f->n_entries) qsort_r(f->by_name, f->n_entries, sizeof *f->by_name, name_order, f->entries);
    for (uint32_t i = 1; i < f->n_entries; i++)
        if (!name_order(&f->by_name[i - 1], &f->by_name[i], f->entries))
            return error_set(e, PL_USAGE, "the key \"%.200s\" occurs twice in one map", f->entries[f->by_name[i]].name);
    return PL_OK;
}

struct parsing {
    struct st_file *f;
    uint64_t data_bytes;
    VEC(struct st_entry) entries;
};

static int member_parse(void *user, const struct value *v, struct error *e)
{
    struct parsing *p = user;
    struct st_entry t;
    if (!strcmp(v->key, "__metadata__")) return metadata_parse(p->f, v, e);
    if (entry_parse(p->f, v, p->data_bytes, &t, e)) return error_prepend(e, "tensor \"%.200s\"", v->key);
    vec_push(&p->entries, t);
    return PL_OK;
}

int st_parse_header(const char *header, size_t n, uint64_t data_bytes, struct st_file *f, struct error *e)
{
    enum { MEMBER_MOST = 64 << 20 }; /* bytes of memory for the values of a tensor's entry, or of the metadata */
    struct parsing p = {.f = f, .data_bytes = data_bytes};
    int rc = json_each(header, n, MEMBER_MOST, member_parse, &p, e) ? error_prepend(e, "in the header") : PL_OK;
    f->entries = bump_alloc(&f->bump, p.entries.n * sizeof *f->entries);
    if (p.entries.n) memcpy(f->entries, p.entries.at, p.entries.n * sizeof *f->entries);
    f->n_entries = p.entries.n;
    vec_free(&p.entries);
    f->data_bytes = data_bytes;
    return rc || layout_check(f, data_bytes, e) ? e->code : index_names(f, e);
}

/* ---- the file ---- */

/* Calls pread until n bytes are read. PL_FAIL on an error or at the end of the file. */
static int read_full(const struct st_file *f, uint64_t at, uint64_t n, void *dst, struct error *e)
{
    char *to = dst;
    uint64_t left = n;
    while (left) {
        ssize_t k = pread(f->fd, to, left < READ_MOST ? left : READ_MOST, (off_t)(at + n - left));
        if (k < 0 && errno == EINTR) continue;
        if (k < 0) {
            file_error(f->path, "read it", e);
            return e->code = PL_FAIL;
        }
        if (!k)
            return error_set(e, PL_FAIL, "%s: ends at byte %" PRIu64 "; %" PRIu64
                             " more were expected (was it truncated while open?)", f->path, at + n - left, left);
        to += k;
        left -= (uint64_t)k;
    }
    return PL_OK;
}

/* Reads the header length and checks it against the limit and the file size. */
static int header_length(struct st_file *f, uint64_t file_bytes, uint64_t *length, struct error *e)
{
    unsigned char word[LENGTH_BYTES];
    if (file_bytes < LENGTH_BYTES)
        return error_set(e, PL_USAGE, "%s: %" PRIu64 " bytes long; a safetensors file has at least 8", f->path,
                         file_bytes);
    if (read_full(f, 0, sizeof word, word, e)) return e->code;
    *length = 0;
    for (int i = 0; i < LENGTH_BYTES; i++) *length |= (uint64_t)word[i] << (8 * i);
    if (*length > ST_HEADER_MOST || *length > file_bytes - LENGTH_BYTES)
        return error_set(e, PL_USAGE, "%s: claims a header of %" PRIu64 " bytes; the file has %" PRIu64
                         " bytes and a header at most %d: not a safetensors file, or truncated",
                         f->path, *length, file_bytes, ST_HEADER_MOST);
    return PL_OK;
}

static int header_read(struct st_file *f, uint64_t file_bytes, struct error *e)
{
    uint64_t length = 0;
    if (header_length(f, file_bytes, &length, e)) return e->code;
    f->data_begin = LENGTH_BYTES + length;
    char *header = mem_alloc(length);
    int rc = read_full(f, LENGTH_BYTES, length, header, e);
    if (!rc) {
        rc = st_parse_header(header, length, file_bytes - f->data_begin, f, e);
        if (rc) error_prepend(e, "%s", f->path);
    }
    mem_free(header);
    return rc;
}

int st_open(const char *path, struct st_file *f, struct error *e)
{
    uint64_t bytes;
    *f = (struct st_file){.fd = file_open(path, &bytes, e)};
    if (f->fd < 0) return e->code;
    f->path = mem_string(path);
    int rc = header_read(f, bytes, e);
    if (rc) st_close(f);
    return rc;
}

void st_close(struct st_file *f)
{
    if (f->path && f->fd >= 0) close(f->fd);
    mem_free(f->path);
    bump_free(&f->bump);
    *f = (struct st_file){.fd = -1};
}

const struct st_entry *st_find(const struct st_file *f, const char *name)
{
    uint32_t low = 0, high = f->n_entries;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const struct st_entry *t = &f->entries[f->by_name[middle]];
        int order = strcmp(name, t->name);
        if (!order) return t;
        if (order < 0) high = middle;
        else low = middle + 1;
    }
    return NULL;
}

const char *st_metadata(const struct st_file *f, const char *key)
{
    for (uint32_t i = 0; i < f->n_metadata; i++)
        if (!strcmp(f->metadata[i].key, key)) return f->metadata[i].value;
    return NULL;
}

int st_read(const struct st_file *f, const struct st_entry *t, uint64_t offset, uint64_t n, void *dst, struct error *e)
{
    CHECK(offset <= t->bytes && n <= t->bytes - offset,
          "bytes %" PRIu64 " + %" PRIu64 " of tensor %s, which has %" PRIu64, offset, n, t->name, t->bytes);
    if (read_full(f, f->data_begin + t->begin + offset, n, dst, e))
        return error_prepend(e, "tensor \"%.200s\"", t->name);
    return PL_OK;
}

int st_read_transposed(const struct st_file *f, const struct st_entry *t, int64_t at, int64_t n, void *dst,
                       struct error *e)
{
    CHECK(t->rank == 2 && at >= 0 && n > 0 && at + n <= t->elements, "%s", t->name);
    const int64_t rows = t->dims[0], columns = t->dims[1];
    const size_t size = dtype_size(t->dtype);
    char *run = mem_alloc((size_t)(n / rows + 2) * size), *to = dst;
    int rc = PL_OK;
    /* A row has element j rows + i of the transpose in column j: those that are asked for follow
     * each other. */
    for (int64_t i = 0; i < rows && !rc; i++) {
        const int64_t first = at > i ? (at - i + rows - 1) / rows : 0, end = (at + n - i + rows - 1) / rows;
        if (first >= end) continue;
        rc = st_read(f, t, (uint64_t)(i * columns + first) * size, (uint64_t)(end - first) * size, run, e);
        for (int64_t j = first; j < end && !rc; j++)
            memcpy(to + (size_t)(j * rows + i - at) * size, run + (size_t)(j - first) * size, size);
    }
    mem_free(run);
    return rc;
}

/* ---- Writing ----
 *
 * writing .safetensors files.
 *
 * Invariant: the header, padded with blanks to 8 bytes to align the data, is complete before the
 * first byte of data, and data is written strictly in order. So a file is either whole, after
 * st_write_end, or shorter than its header says.
 */

/* Reports a write failure, which is PL_FAIL (the environment) for every errno. */
static int write_error(const struct st_writer *w, uint64_t bytes, struct error *e)
{
    char doing[64];
    snprintf(doing, sizeof doing, "write %" PRIu64 " bytes", bytes);
    file_error(w->path, doing, e);
    return e->code = PL_FAIL;
}

/* Returns the tensor's bytes. An overflow is an internal bug: the tensor was in memory before. */
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

int st_write_finish(struct st_writer *w, int rc, struct error *e)
{
    if (!rc) return st_write_end(w, e);
    st_write_abort(w);
    return rc;
}

void st_write_abort(struct st_writer *w)
{
    if (w->fd >= 0) close(w->fd);
    if (w->path && w->is_regular) unlink(w->path);
    mem_free(w->path);
    *w = (struct st_writer){.fd = -1};
}
