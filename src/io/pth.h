/*
 * pth.h: PyTorch checkpoints: the tensors of a state_dict, by name.
 *
 *     zip       NAME/data.pkl      a pickle in which a tensor is a call that names a storage
 *               NAME/data/KEY      the bytes of storage KEY, not compressed
 *     legacy    five pickles one after the other, then each storage: its length and bytes
 *
 * The file is memory-mapped, and tensors point into it. Nothing in it is executed
 * (pickle.c); every offset, length and shape is checked against the file first.
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
/* Does the same for tensors in a dictionary inside of the root, under this key. */
int pth_begin_inside(struct pth_writer **w, const char *path, const char *key, struct error *e);
int pth_write_begin(struct pth_writer *w, const char *name, enum dtype t, int rank, const int64_t *dim,
                    struct error *e);
int pth_write_bytes(struct pth_writer *w, const void *data, uint64_t n, struct error *e);
int pth_end(struct pth_writer *w, struct error *e);
void pth_abandon(struct pth_writer *w);

/* --- pickle ---------------------------------------------------------------------------------- */

/* Reads Python pickles as plain data, without executing anything.
 *
 * A pickle is a program for a stack machine that may name any Python function and call it. This
 * machine calls nothing. It builds numbers, strings, lists, tuples and dictionaries. A name
 * stays a name. A call becomes a value of kind PICKLE_CALL with the name and the arguments; the
 * caller interprets the calls that it knows. Everything is bounded by the length of the input
 * and by PICKLE_VALUES.
 */
/* A checkpoint of a large model has some ten thousand values. */
enum { PICKLE_VALUES = 1 << 22, PICKLE_DEPTH = 64, PICKLE_NAME_MOST = 1024 };

enum pickle_kind {
    PICKLE_NONE, PICKLE_BOOL, PICKLE_INT, PICKLE_FLOAT, PICKLE_STRING, PICKLE_BYTES,
    PICKLE_TUPLE, PICKLE_LIST, PICKLE_DICT, /* items; of a dictionary key, value, key, value ... */
    PICKLE_NAME,                            /* "module name" */
    /* items[0] called with the tuple items[1]; items[2]: state set afterwards */
    PICKLE_CALL,
    PICKLE_PERSISTENT,                      /* items[0]: the persistent id of an object outside the pickle */
};

struct pickle {
    enum pickle_kind kind;
    bool seen, weighed;    /* for walks over the tree: shared values are visited once */
    uint32_t n, room;
    struct pickle **items;
    const char *text;      /* string, bytes, name; terminated */
    size_t length;
    int64_t integer;       /* int, bool; a number beyond 64 bits is a float */
    double real;
};

/* Reads one pickle from the front of bytes; *used is its length. The tree lives in `b`. PL_USAGE
 * with the offset when the pickle is damaged, too deep, too large or of an unknown format. */
int pickle_read(const uint8_t *bytes, size_t n, size_t *used, struct bump *b, struct pickle **out, struct error *e);

/* Returns the value of a string key in a dictionary; NULL: no such key, or not a dictionary. */
struct pickle *pickle_get(const struct pickle *dict, const char *key);
bool pickle_is_name(const struct pickle *p, const char *module, const char *name);
