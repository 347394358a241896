/*
 * pth.h: PyTorch checkpoints: the tensors of a state_dict, by name.
 *
 *     zip       NAME/data.pkl      a pickle in which a tensor is a call that names a storage
 *               NAME/data/KEY      the bytes of storage KEY, not compressed
 *     legacy    five pickles one after the other, then each storage: its length and bytes
 *
 * The file is memory-mapped, and tensors point into it. Nothing in it is executed
 * (pickle.h); every offset, length and shape is checked against the file first.
 */
#pragma once

#include "base/base.h"
#include "base/dtype.h"
#include "base/mapped.h"

enum { PTH_RANK = 8 };

struct pth_tensor {
    const char *name;
    enum dtype dtype;
    int rank;
    int64_t dim[PTH_RANK], stride[PTH_RANK]; /* strides in elements */
    const uint8_t *data;                     /* element 0; all elements are inside the file */
};

struct pth {
    struct bump memory;
    const uint8_t *bytes;
    size_t n;
    struct mapped *map;                      /* of pth_open, or NULL */
    VEC(struct pth_tensor) tensors;          /* in the order of the dictionary */
    const struct pth_tensor **by_name;       /* the same, sorted */
    uint32_t skipped;                        /* tensors of unsupported dtypes */
};

/* Finds the state_dict: the root, or the dictionary inside it (under `model`, `state_dict` or any
 * other name) with the most tensors. Prefixes that wrappers add to all names (`module.`,
 * `_orig_mod.`, `model.`, `sam.`) are removed. The PL_USAGE message describes what was found
 * instead; on failure nothing needs closing. */
int pth_open(struct pth *p, const char *path, struct error *e);
/* Opens a checkpoint in memory; the caller owns the bytes. */
int pth_open_memory(struct pth *p, const uint8_t *bytes, size_t n, struct error *e);
void pth_close(struct pth *p);

const struct pth_tensor *pth_find(const struct pth *p, const char *name); /* NULL: none */
/* Reports whether the elements are in row-major order in the file, from `data` on. */
bool pth_is_contiguous(const struct pth_tensor *t);
int64_t pth_elements(const struct pth_tensor *t);
/* Copies the elements in row-major order, for any strides; `to` has room for them. What was read is
 * valid if pth_check, which names `path`, succeeds afterwards. */
void pth_read(const struct pth_tensor *t, void *to);
int pth_check(const struct pth *p, const char *path, struct error *e);

/* --- writing: files for torch.load, also with weights_only ------------------------------- */

struct pth_writer;
/* Writes tensors to `path` in the order of the calls, atomically: the file appears when pth_end
 * succeeds. A tensor is pth_write_begin followed by its data in any number of pth_write_bytes
 * calls. After a failure only pth_abandon may follow; pth_end calls it itself. */
int pth_begin(struct pth_writer **w, const char *path, struct error *e);
int pth_write_begin(struct pth_writer *w, const char *name, enum dtype t, int rank, const int64_t *dim,
                    struct error *e);
int pth_write_bytes(struct pth_writer *w, const void *data, uint64_t n, struct error *e);
int pth_end(struct pth_writer *w, struct error *e);
void pth_abandon(struct pth_writer *w);
