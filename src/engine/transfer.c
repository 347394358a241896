/*
 * transfer.c: chunks of elements between files and the arenas (see transfer.h).
 *
 * Invariant: bytes reach the arenas only through the device's write, and every weight that is
 * written is finite in its dtype.
 */
#include "engine/transfer.h"

#include <math.h>

#include "engine/transfer_ranks.h"
#include "graph/stored.h"

/* The largest element has 8 bytes; the halves are aligned to cache lines. */
enum { ELEMENT_MOST = 8, HALF_ALIGN = 64 };

void transfer_init(struct transfer *x, struct device *d, const struct tape *t, void *staging, uint64_t bytes)
{
    CHECK(bytes >= TRANSFER_LEAST && (uintptr_t)staging % ELEMENT_MOST == 0, "a staging buffer of %llu bytes at %p",
          (unsigned long long)bytes, staging);
    uint64_t half = bytes / 2 / HALF_ALIGN * HALF_ALIGN;
    int64_t room = (int64_t)(half / ELEMENT_MOST);
    if (room > STORED_GROUP) room -= room % STORED_GROUP; /* a chunk begins at a group of every form */
    *x = (struct transfer){.device = d, .tape = t, .first = staging, .second = (char *)staging + half, .bytes = bytes, .room = room};
}

void transfer_end(struct transfer *x)
{
    mem_free(x->kept);
    x->kept = NULL;
}

/* --- finite or not ------------------------------------------------------------------ */

/* A float is finite unless its exponent is all ones. The test of a block is a
 * reduction without branches, which vectorises; only a bad block is searched. */
static bool any_nonfinite_16(const uint16_t *x, int64_t n, uint16_t exponent)
{
    uint16_t any = 0;
    for (int64_t i = 0; i < n; i++) any |= (uint16_t)-((x[i] & exponent) == exponent);
    return any;
}

static bool any_nonfinite_32(const uint32_t *x, int64_t n)
{
    uint32_t any = 0;
    for (int64_t i = 0; i < n; i++) any |= (uint32_t)-((x[i] & 0x7f800000u) == 0x7f800000u);
    return any;
}

static bool any_nonfinite(const void *data, enum dtype t, int64_t n)
{
    switch (t) {
    case DT_F32: return any_nonfinite_32(data, n);
    case DT_BF16: return any_nonfinite_16(data, n, 0x7f80);
    case DT_F16: return any_nonfinite_16(data, n, 0x7c00);
    default: return true; /* the element search decides */
    }
}

int64_t transfer_nonfinite(const void *data, enum dtype t, int64_t n)
{
    if (!dtype_is_float(t) || !any_nonfinite(data, t, n)) return -1;
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(dtype_load(data, t, i))) return i;
    return -1;
}

/* Checks `to`, converted from `from`; true if an element is not finite. */
static bool find_bad(struct bad *bad, const void *to, enum dtype t, const void *from, enum dtype t_from, int64_t at,
                     int64_t n)
{
    int64_t i = transfer_nonfinite(to, t, n);
    *bad = (struct bad){.index = -1};
    if (i < 0) return false;
    *bad = (struct bad){at + i, dtype_load(from, t_from, i), t};
    return true;
}

/* --- moving --------------------------------------------------------------------------- */

/* Moves bytes [at, at + n) of a tensor's storage, whoever holds them. */
static int move_bytes(struct transfer *x, id tensor, uint64_t at, uint64_t n, char *data, bool write, struct error *e)
{
    char *stored = (char *)tape_address(x->tape, tensor) + at;
    if (storage_of(x->tape->graph, tensor)->shard) return write ? shard_own(x, tensor, at, n, data, true, e) : shard_collect(x, tensor, at, n, data, e);
    return write ? x->device->ops->write(x->device, stored, data, n, e) : x->device->ops->read(x->device, data, stored, n, e);
}

int transfer_write_bytes(struct transfer *x, id tensor, uint64_t at, uint64_t n, const void *data, struct error *e)
{
    return move_bytes(x, tensor, at, n, (char *)(uintptr_t)data, true, e);
}

/* Moves elements [at, at + n) of a tensor, in its stored form: its parts lie in `data` as in a storage of
 * n elements. Only dense tensors are saved and loaded. */
static int move(struct transfer *x, id tensor, int64_t at, int64_t n, char *data, bool write, struct error *e)
{
    const struct graph *g = x->tape->graph;
    const struct tensor *t = tensor_at(g, tensor);
    const struct stored_form *f = tensor_form(g, t);
    CHECK(tensor_is_dense(t) && at >= 0 && n >= 0 && at + n <= tensor_elements(t) && at % f->group == 0, "%s: elements %lld + %lld",
          graph_name(g, t->name), (long long)at, (long long)n);
    int rc = PL_OK;
    for (int i = 0; i < f->n_parts && !rc; i++) {
        const uint64_t bytes = stored_part_bytes(f, i, t->dtype, n);
        const uint64_t stored = stored_part_offset(f, i, t->dtype, tensor_elements(t)) + stored_part_at(f, i, t->dtype, at);
        rc = move_bytes(x, tensor, stored, bytes, data + stored_part_offset(f, i, t->dtype, n), write, e);
    }
    return rc;
}

/* Where the parts of n elements begin in `data`, for move. */
static void parts_of(const struct stored_form *f, enum dtype t, int64_t n, char *data, void *parts[STORED_PARTS])
{
    for (int i = 0; i < f->n_parts; i++) parts[i] = data + stored_part_offset(f, i, t, n);
}

static bool is_plain(const struct transfer *x, id tensor) { return !storage_of(x->tape->graph, tensor)->form; }

/* Packs values of dtype `from` into the tensor's stored form; false: one of them is not finite, or
 * not in a plain tensor's dtype. */
static bool pack(const struct transfer *x, id tensor, char *to, const void *values, enum dtype from, int64_t at, int64_t n, struct bad *bad)
{
    const struct tensor *t = tensor_at(x->tape->graph, tensor);
    const struct stored_form *f = tensor_form(x->tape->graph, t);
    void *parts[STORED_PARTS];
    parts_of(f, t->dtype, n, to, parts);
    f->pack(parts, t->dtype, values, from, n);
    return !(is_plain(x, tensor) ? find_bad(bad, to, t->dtype, values, from, at, n) : find_bad(bad, values, from, values, from, at, n));
}

int transfer_write(struct transfer *x, id tensor, int64_t at, int64_t n, const void *data, struct error *e)
{
    if (x->spreads && transfer_spread_write(x, tensor, at, n, data, e)) return e->code;
    return move(x, tensor, at, n, (char *)(uintptr_t)data, true, e);
}

static int write_part(struct transfer *x, id tensor, int part, int64_t at, int64_t n, const void *data, struct error *e)
{
    const struct tensor *t = tensor_at(x->tape->graph, tensor);
    const struct stored_form *f = tensor_form(x->tape->graph, t);
    const uint64_t to = stored_part_offset(f, part, t->dtype, tensor_elements(t)) + stored_part_at(f, part, t->dtype, at);
    return move_bytes(x, tensor, to, stored_part_bytes(f, part, t->dtype, n), (char *)(uintptr_t)data, true, e);
}

/* The parts after the first, once the whole tensor was packed. */
static int write_finished(struct transfer *x, id tensor, struct error *e)
{
    const struct tensor *t = tensor_at(x->tape->graph, tensor);
    const struct stored_form *f = tensor_form(x->tape->graph, t);
    const int64_t n = tensor_elements(t);
    void *parts[STORED_PARTS] = {NULL};
    for (int i = 1; i < f->n_parts; i++) parts[i] = mem_alloc(stored_part_bytes(f, i, t->dtype, n));
    f->finish(parts, x->kept, n);
    int rc = PL_OK;
    for (int i = 1; i < f->n_parts; i++) {
        if (!rc) rc = write_part(x, tensor, i, 0, n, parts[i], e);
        mem_free(parts[i]);
    }
    transfer_end(x);
    return rc;
}

/* A chunk of a tensor whose form needs the whole tensor. */
static int put_kept(struct transfer *x, id tensor, enum dtype from, int64_t at, int64_t n, struct bad *bad, struct error *e)
{
    const struct tensor *t = tensor_at(x->tape->graph, tensor);
    const struct stored_form *f = tensor_form(x->tape->graph, t);
    const int64_t elements = tensor_elements(t);
    dtype_convert(x->second, t->dtype, x->first, from, n);
    if (find_bad(bad, x->second, t->dtype, x->first, from, at, n)) return PL_OK;
    if (!at) {
        transfer_end(x);
        x->kept = mem_alloc((size_t)((elements + f->kept - 1) / f->kept) * sizeof *x->kept);
    }
    CHECK(x->kept && at % f->group == 0, "%s: chunks in order", graph_name(x->tape->graph, t->name));
    f->pack((void *[STORED_PARTS]){x->second, x->kept + at / f->kept}, t->dtype, x->first, from, n);
    int rc = write_part(x, tensor, 0, at, n, x->second, e);
    return rc || at + n < elements ? rc : write_finished(x, tensor, e);
}

int transfer_put(struct transfer *x, const struct param *p, enum dtype from, int64_t at, int64_t n, struct bad *bad,
                 struct error *e)
{
    const struct graph *g = x->tape->graph;
    enum dtype master = tensor_at(g, p->master)->dtype, work = tensor_at(g, p->tensor)->dtype;
    CHECK(n <= x->room && dtype_is_float(master) && dtype_is_float(work));
    if (x->spreads && transfer_spread_put(x, p, from, at, n, e)) return e->code;
    if (tensor_form(g, tensor_at(g, p->master))->kept) {
        CHECK(p->tensor == p->master, "a master weight is plain");
        return put_kept(x, p->master, from, at, n, bad, e);
    }
    if (!pack(x, p->master, x->second, x->first, from, at, n, bad)) return PL_OK;
    if (p->tensor == p->master) return move(x, p->master, at, n, x->second, true, e);
    /* The source is not needed any more: its half is reused for the working copy. */
    CHECK(is_plain(x, p->master), "a master weight is plain");
    if (!pack(x, p->tensor, x->first, x->second, master, at, n, bad)) return PL_OK;
    int rc = move(x, p->master, at, n, x->second, true, e);
    return rc ? rc : move(x, p->tensor, at, n, x->first, true, e);
}

int transfer_get(struct transfer *x, id tensor, enum dtype to, int64_t at, int64_t n, const void **data,
                 struct bad *bad, struct error *e)
{
    const struct tensor *t = tensor_at(x->tape->graph, tensor);
    const struct stored_form *f = tensor_form(x->tape->graph, t);
    const enum dtype from = t->dtype;
    const int64_t before = at % f->group, all = before + n; /* from the begin of a group on */
    CHECK(n <= x->room && (uint64_t)all * dtype_size(to) <= x->bytes / 2);
    int rc = move(x, tensor, at - before, all, x->first, false, e);
    if (rc) return rc;
    const bool plain = is_plain(x, tensor), as_is = from == to && plain;
    void *parts[STORED_PARTS];
    parts_of(f, from, all, x->first, parts);
    if (!as_is) f->unpack(x->second, to, (const void *const *)parts, from, all);
    *data = as_is ? x->first : x->second + before * dtype_size(to);
    if (bad) find_bad(bad, *data, to, plain ? x->first : *data, plain ? from : to, at, n);
    return PL_OK;
}
