/*
 * transfer.h: copies elements between files and the arenas.
 *
 *     file bytes --> [ first half | second half ] --> master, working copy
 *                       source       converted
 *
 * The only buffer is the caller's staging memory, so a model of any size is copied without further
 * memory, except for one tensor that is quantized: its scales, 4 bytes for 64 weights, or the whole
 * of one that is quantized by rows and columns. Positions and counts are in elements; a chunk has
 * at most `room` of them, whatever their dtypes.
 *
 * For a tensor that is divided among ranks (graph/shard.h), positions and counts refer to the full
 * tensor: putting and writing keep this rank's part, and getting collects the parts of all.
 */
#pragma once

#include "run/device.h"

struct transfer {
    struct device *device;
    const struct tape *tape;
    char *first, *second;     /* the halves */
    uint64_t bytes;           /* size of both together */
    int64_t room;             /* elements in a half */
    float *kept;              /* of the tensor that is being packed, until it is whole (stored.h); NULL: none */
    char *values;             /* the values of one whose form is packed at once, until it is whole; NULL: none */
    /* all ranks read the same elements at the same time; else rank 0 asks the others
     * (transfer_serve) */
    bool together;
    bool spreads;             /* what rank 0 puts and writes is for all ranks */
};

/* The error of a chunk: an element that is NaN or infinite, or becomes so in the dtype that it is
 * stored in. */
struct bad {
    int64_t index;            /* in the whole tensor; -1: no error */
    double value;             /* before the conversion */
    enum dtype as;            /* the dtype in which it is not finite */
};

enum { TRANSFER_LEAST = 1024 }; /* smallest staging buffer, bytes */

/* Splits the staging buffer, which is aligned to 8 bytes. Allocates nothing. */
void transfer_init(struct transfer *x, struct device *d, const struct tape *t, void *staging, uint64_t bytes);
/* Frees what was kept of a quantized tensor, after an error between its chunks. */
void transfer_end(struct transfer *x);

/* Writes elements [at, at + n) of the parameter, which x->first has in dtype `from`: its master
 * weights and, if that is another tensor, the working copy rounded from them. A chunk with a bad
 * element is not written; the result is PL_OK with bad->index set. The chunks of a tensor are put
 * in order. */
int transfer_put(struct transfer *x, const struct param *p, enum dtype from, int64_t at, int64_t n, struct bad *bad,
                 struct error *e);

/* Reads elements [at, at + n) of a tensor as dtype `to`; *data points into the staging buffer until
 * the next call. `bad` as above; NULL: values are not checked. */
int transfer_get(struct transfer *x, id tensor, enum dtype to, int64_t at, int64_t n, const void **data,
                 struct bad *bad, struct error *e);

/* Writes n elements of the tensor's own dtype from `data`. */
int transfer_write(struct transfer *x, id tensor, int64_t at, int64_t n, const void *data, struct error *e);

/* Writes bytes [at, at + n) of the tensor's storage. */
int transfer_write_bytes(struct transfer *x, id tensor, uint64_t at, uint64_t n, const void *data, struct error *e);

/* Returns the index of the first of n elements that is NaN or infinite; -1: none. */
int64_t transfer_nonfinite(const void *data, enum dtype t, int64_t n);

/* Reports whether the device is one of several ranks. */
bool transfer_has_ranks(const struct transfer *x);
/* Ends, on rank 0, what the others began with transfer_serve, also after an error; does nothing if
 * there is one rank. */
int transfer_release(struct transfer *x, struct error *e);
/* Does what rank 0 asks, on the other ranks, until it ends the service. `what`: for messages,
 * "saving". */
int transfer_serve(struct transfer *x, const char *what, struct error *e);
