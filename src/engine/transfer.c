/*
 * transfer.c: chunks of elements between files and the arenas (see transfer.h).
 *
 * Invariant: bytes reach the arenas only through the device's write, and every weight that is
 * written is finite in its dtype.
 */
#include "engine/transfer.h"

#include <math.h>

/* The largest element has 8 bytes; the halves are aligned to cache lines. */
enum { ELEMENT_MOST = 8, HALF_ALIGN = 64 };

void transfer_init(struct transfer *x, struct device *d, const struct tape *t, void *staging, uint64_t bytes)
{
    CHECK(bytes >= TRANSFER_LEAST && (uintptr_t)staging % ELEMENT_MOST == 0, "a staging buffer of %llu bytes at %p",
          (unsigned long long)bytes, staging);
    uint64_t half = bytes / 2 / HALF_ALIGN * HALF_ALIGN;
    *x = (struct transfer){d, t, staging, (char *)staging + half, bytes, (int64_t)(half / ELEMENT_MOST)};
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

/* The address of elements [at, at + n); only dense tensors are saved and loaded. */
static char *element_address(const struct transfer *x, id tensor, int64_t at, int64_t n)
{
    const struct tensor *t = tensor_at(x->tape->graph, tensor);
    CHECK(tensor_is_dense(t) && at >= 0 && n >= 0 && at + n <= tensor_elements(t), "%s: elements %lld + %lld",
          graph_name(x->tape->graph, t->name), (long long)at, (long long)n);
    return (char *)tape_address(x->tape, tensor) + (uint64_t)at * dtype_size(t->dtype);
}

int transfer_write(struct transfer *x, id tensor, int64_t at, int64_t n, const void *data, struct error *e)
{
    uint64_t bytes = (uint64_t)n * dtype_size(tensor_at(x->tape->graph, tensor)->dtype);
    return x->device->ops->write(x->device, element_address(x, tensor, at, n), data, bytes, e);
}

int transfer_put(struct transfer *x, const struct param *p, enum dtype from, int64_t at, int64_t n, struct bad *bad,
                 struct error *e)
{
    const struct graph *g = x->tape->graph;
    enum dtype master = tensor_at(g, p->master)->dtype, work = tensor_at(g, p->tensor)->dtype;
    CHECK(n <= x->room && dtype_is_float(master) && dtype_is_float(work));
    dtype_convert(x->second, master, x->first, from, n);
    if (find_bad(bad, x->second, master, x->first, from, at, n)) return PL_OK;
    if (p->tensor == p->master) return transfer_write(x, p->master, at, n, x->second, e);
    /* The source is not needed any more: its half is reused for the working copy. */
    dtype_convert(x->first, work, x->second, master, n);
    if (find_bad(bad, x->first, work, x->second, master, at, n)) return PL_OK;
    int rc = transfer_write(x, p->master, at, n, x->second, e);
    return rc ? rc : transfer_write(x, p->tensor, at, n, x->first, e);
}

int transfer_get(struct transfer *x, id tensor, enum dtype to, int64_t at, int64_t n, const void **data,
                 struct bad *bad, struct error *e)
{
    enum dtype from = tensor_at(x->tape->graph, tensor)->dtype;
    CHECK(n <= x->room);
    int rc = x->device->ops->read(x->device, x->first, element_address(x, tensor, at, n), (uint64_t)n * dtype_size(from), e);
    if (rc) return rc;
    if (from != to) dtype_convert(x->second, to, x->first, from, n);
    *data = from != to ? x->second : x->first;
    if (bad) find_bad(bad, *data, to, x->first, from, at, n);
    return PL_OK;
}
