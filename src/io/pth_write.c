/*
 * pth_write.c: the writer of pth.h: a zip archive of stored members.
 *
 *     checkpoint/data/0, 1, ...   the bytes of one tensor each, aligned to 64
 *     checkpoint/data.pkl         the dictionary, complete only at the end
 *     checkpoint/version, byteorder
 *
 * All offsets have 64 bits. Data is written in chunks as it arrives; the checksum is written into
 * the header before it after the last chunk. The archive is written to a temporary file beside
 * its path and renamed.
 */
#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>

#include "io/file.h"
#include "io/pth.h"
#include "io/temporary.h"

struct member {
    char name[64];
    uint64_t at, bytes;
    uint32_t crc;
};

struct pth_writer {
    char path[4096];
    struct temporary to;
    uint64_t at;
    uint64_t left;                /* bytes still missing from the open member */
    VEC(struct member) members;
    struct text pickle;
    bool inside; /* the tensors are in a dictionary inside of the root */
};

/* --- the archive ------------------------------------------------------------------------ */

static int put(struct pth_writer *w, const void *bytes, size_t n, struct error *e)
{
    if (fd_write(w->to.fd, bytes, n)) return file_error(w->to.path, "write", e);
    w->at += n;
    return PL_OK;
}

static void put_number(struct text *t, uint64_t x, int bytes)
{
    for (int i = 0; i < bytes; i++) text_append(t, &(char){(char)(x >> (8 * i))}, 1);
}

/* Writes the fields shared by a member's header and its directory entry, from the version on. */
static void put_facts(struct text *t, const struct member *m)
{
    put_number(t, 45, 2);         /* needs 64-bit sizes */
    put_number(t, 0, 2);          /* no flags */
    put_number(t, 0, 2);          /* stored */
    put_number(t, 0, 4);          /* no time */
    put_number(t, m->crc, 4);
    put_number(t, UINT32_MAX, 4); /* both sizes are in the extra field */
    put_number(t, UINT32_MAX, 4);
    put_number(t, strlen(m->name), 2);
}

/* Writes header, name and an extra field that ends at an aligned offset; data follows. */
static int open_member(struct pth_writer *w, const char *name, uint64_t bytes, struct error *e)
{
    struct member m = {.at = w->at, .bytes = bytes};
    struct text t = {0};
    CHECK(!w->left, "%s: the previous member is not complete", w->path);
    snprintf(m.name, sizeof m.name, "%s", name);
    size_t fixed = 30 + strlen(m.name) + 20 + 4, fill = (size_t)((64 - (w->at + fixed) % 64) % 64);
    put_number(&t, 0x04034b50, 4);
    put_facts(&t, &m);
    put_number(&t, 20 + 4 + fill, 2);
    text_append(&t, m.name, strlen(m.name));
    put_number(&t, 1, 2);
    put_number(&t, 16, 2);
    put_number(&t, bytes, 8);
    put_number(&t, bytes, 8);
    put_number(&t, 0x4246, 2);    /* padding, as torch writes it */
    put_number(&t, fill, 2);
    for (size_t i = 0; i < fill; i++) text_append(&t, "Z", 1);
    int rc = put(w, t.at, t.n, e);
    text_free(&t);
    vec_push(&w->members, m);
    w->left = bytes;
    return rc;
}

/* Writes data of the open member. After its last byte the checksum goes into its header. */
static int fill_member(struct pth_writer *w, const void *data, uint64_t n, struct error *e)
{
    struct member *m = &w->members.at[w->members.n - 1];
    CHECK(n <= w->left, "%s: more data than the size of %s", w->path, m->name);
    if (n) m->crc = (uint32_t)crc32_z(m->crc, data, n);
    int rc = n ? put(w, data, n, e) : PL_OK;
    w->left -= n;
    if (rc || w->left) return rc;
    uint8_t crc[4] = {(uint8_t)m->crc, (uint8_t)(m->crc >> 8), (uint8_t)(m->crc >> 16), (uint8_t)(m->crc >> 24)};
    return pwrite(w->to.fd, crc, 4, (off_t)m->at + 14) == 4 ? PL_OK : file_error(w->to.path, "write", e);
}

static int put_member(struct pth_writer *w, const char *name, const void *data, uint64_t bytes, struct error *e)
{
    TRY(open_member(w, name, bytes, e));
    return fill_member(w, data, bytes, e);
}

static int put_directory(struct pth_writer *w, struct error *e)
{
    struct text t = {0};
    uint64_t at = w->at;
    for (uint32_t i = 0; i < w->members.n; i++) {
        const struct member *m = &w->members.at[i];
        put_number(&t, 0x02014b50, 4);
        put_number(&t, 45, 2);
        put_facts(&t, m);
        put_number(&t, 28, 2);    /* extra */
        put_number(&t, 0, 2);     /* no comment */
        put_number(&t, 0, 2);     /* disk */
        put_number(&t, 0, 2);
        put_number(&t, 0, 4);
        put_number(&t, UINT32_MAX, 4);
        text_append(&t, m->name, strlen(m->name));
        put_number(&t, 1, 2);
        put_number(&t, 24, 2);
        put_number(&t, m->bytes, 8);
        put_number(&t, m->bytes, 8);
        put_number(&t, m->at, 8);
    }
    uint64_t bytes = t.n;
    put_number(&t, 0x06064b50, 4);
    put_number(&t, 44, 8);
    put_number(&t, 45, 2);
    put_number(&t, 45, 2);
    put_number(&t, 0, 8);         /* disks */
    put_number(&t, w->members.n, 8);
    put_number(&t, w->members.n, 8);
    put_number(&t, bytes, 8);
    put_number(&t, at, 8);
    put_number(&t, 0x07064b50, 4);
    put_number(&t, 0, 4);
    put_number(&t, at + bytes, 8);
    put_number(&t, 1, 4);
    put_number(&t, 0x06054b50, 4);
    put_number(&t, 0, 4);
    put_number(&t, UINT16_MAX, 2);
    put_number(&t, UINT16_MAX, 2);
    put_number(&t, UINT32_MAX, 4);
    put_number(&t, UINT32_MAX, 4);
    put_number(&t, 0, 2);
    int rc = put(w, t.at, t.n, e);
    text_free(&t);
    return rc;
}

/* --- the pickle ------------------------------------------------------------------------------ */

static void op(struct text *t, const char *bytes) { text_append(t, bytes, strlen(bytes)); }

static void op_text(struct text *t, const char *s)
{
    op(t, "X");
    put_number(t, strlen(s), 4);
    op(t, s);
}

/* Writes the shortest of three encodings; a number beyond 31 bits is a long. */
static void op_int(struct text *t, int64_t x)
{
    if (x < 256) op(t, "K"), put_number(t, (uint64_t)x, 1);
    else if (x < INT32_MAX) op(t, "J"), put_number(t, (uint64_t)x, 4);
    else op(t, "\x8a"), put_number(t, 8, 1), put_number(t, (uint64_t)x, 8);
}

static void op_tuple(struct text *t, int n, const int64_t *x)
{
    op(t, "(");
    for (int i = 0; i < n; i++) op_int(t, x[i]);
    op(t, "t");
}

static const char *storage_name(enum dtype t)
{
    switch (t) {
    case DT_F32: return "FloatStorage";
    case DT_F16: return "HalfStorage";
    case DT_BF16: return "BFloat16Storage";
    case DT_F64: return "DoubleStorage";
    case DT_I32: return "IntStorage";
    case DT_I64: return "LongStorage";
    default: return "ByteStorage";
    }
}

/* Writes name: _rebuild_tensor_v2(storage, 0, shape, strides, False, OrderedDict()). */
static void op_tensor(struct text *t, const char *name, const char *key, enum dtype type, int rank, const int64_t *dim)
{
    int64_t stride[PTH_RANK], elements = 1;
    for (int i = rank; i-- > 0; elements *= dim[i]) stride[i] = elements;
    op_text(t, name);
    op(t, "ctorch._utils\n_rebuild_tensor_v2\n((");
    op_text(t, "storage");
    op(t, "ctorch\n");
    op(t, storage_name(type));
    op(t, "\n");
    op_text(t, key);
    op_text(t, "cpu");
    op_int(t, elements);
    op(t, "tQ");
    op_int(t, 0);
    op_tuple(t, rank, dim);
    op_tuple(t, rank, stride);
    op(t, "\x89" "ccollections\nOrderedDict\n)RtR");
}

/* --- the interface ---------------------------------------------------------------------------- */

int pth_begin(struct pth_writer **out, const char *path, struct error *e)
{
    if (strlen(path) >= 4096)
        return error_set(e, PL_USAGE, "the path has %zu bytes; at most 4095 are possible", strlen(path));
    struct pth_writer *w = mem_alloc(sizeof *w);
    snprintf(w->path, sizeof w->path, "%s", path);
    if (temporary_file(&w->to, path, e)) return mem_free(w), e->code;
    op(&w->pickle, "\x80\x02}(");
    *out = w;
    return PL_OK;
}

int pth_begin_inside(struct pth_writer **out, const char *path, const char *key, struct error *e)
{
    TRY(pth_begin(out, path, e));
    op_text(&(*out)->pickle, key);
    op(&(*out)->pickle, "}(");
    (*out)->inside = true;
    return PL_OK;
}

int pth_write_begin(struct pth_writer *w, const char *name, enum dtype t, int rank, const int64_t *dim, struct error *e)
{
    char key[32], member[64];
    uint64_t bytes = dtype_size(t);
    CHECK(bytes && rank <= PTH_RANK, "tensor %s has no dtype, or has %d dimensions", name, rank);
    for (int i = 0; i < rank; i++) bytes *= (uint64_t)dim[i];
    snprintf(key, sizeof key, "%u", w->members.n);
    snprintf(member, sizeof member, "checkpoint/data/%s", key);
    op_tensor(&w->pickle, name, key, t, rank, dim);
    return open_member(w, member, bytes, e);
}

int pth_write_bytes(struct pth_writer *w, const void *data, uint64_t n, struct error *e)
{
    return fill_member(w, data, n, e);
}

static void release(struct pth_writer *w)
{
    vec_free(&w->members);
    text_free(&w->pickle);
    mem_free(w);
}

void pth_abandon(struct pth_writer *w)
{
    temporary_drop(&w->to);
    release(w);
}

int pth_end(struct pth_writer *w, struct error *e)
{
    op(&w->pickle, w->inside ? "uu." : "u.");
    int rc = put_member(w, "checkpoint/data.pkl", w->pickle.at, w->pickle.n, e);
    if (!rc) rc = put_member(w, "checkpoint/byteorder", "little", 6, e);
    if (!rc) rc = put_member(w, "checkpoint/version", "3\n", 2, e);
    if (!rc) rc = put_directory(w, e);
    if (!rc) rc = temporary_keep(&w->to, w->path, true, e);
    else temporary_drop(&w->to);
    release(w);
    return rc;
}
