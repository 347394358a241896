/*
 * stored.h: the form in which a storage keeps the values of a tensor.
 *
 *     plain      one array: the elements, in the tensor's dtype
 *     nf4        codes of 4 bits and their scales, with double quantization (base/nf4.h)
 *     nf4-f32    the same with scales in f32, as some model folders have them
 *     e4m3       codes of 8 bits, and a scale for each row (base/e4m3.h)
 *     e4m3-both  the same, and behind it those of its transpose
 *
 * A form consists of parts, arrays that follow each other in the storage: a form with fewer bits
 * has codes, and scales that many codes share. A row of the table states the parts and how values
 * are packed into them and unpacked. Loading, saving, training state, precision, offload and the
 * verifier ask here how many bytes a tensor takes, so a new form is a row of stored.c.
 *
 * Values are moved in chunks, which begin at multiples of the form's group: values that share
 * something are never in two chunks. What all values of a tensor share is made at the end: pack
 * keeps a number for each few values, and finish makes the rest from all of these numbers. A form
 * of rows and columns is packed from the whole matrix at once.
 *
 * A u8 tensor on a storage of any form is a view of its bytes: it is what is copied and
 * dequantized. A tensor that is marked as a part (tensor.part) is one of the arrays.
 */
#pragma once

#include "graph/graph.h"

/* E4M3_BLOCKS is a form of operands only: the transpose of E4M3, with a scale for each row and
 * block. */
enum stored {
    STORED_PLAIN,
    STORED_NF4,
    STORED_NF4_F32,
    STORED_E4M3,
    STORED_E4M3_BOTH,
    STORED_FORMS,
    STORED_E4M3_BLOCKS = STORED_FORMS
};

enum { STORED_PARTS = 4 };

/* What an entry of a part covers, besides a number of values. */
enum { STORED_WHOLE = 0, STORED_ROW = -1, STORED_COLUMN = -2 };

struct stored_part {
    const char *name;
    int64_t values;  /* that one entry of the part covers, or STORED_WHOLE, STORED_ROW, STORED_COLUMN */
    uint32_t bytes;  /* of an entry; 0: those of an element of the tensor's dtype */
};

/* The values of a tensor, or of a chunk of it: n of them, in rows of `row`. */
struct stored_shape {
    enum dtype dtype;
    int64_t n, row;
};
static inline struct stored_shape stored_shape_of(const struct tensor *t)
{
    return (struct stored_shape){(enum dtype)t->dtype, tensor_elements(t), tensor_last(t)};
}
static inline struct stored_shape stored_chunk_of(const struct tensor *t, int64_t n)
{
    return (struct stored_shape){(enum dtype)t->dtype, n, tensor_last(t)};
}

struct stored_form {
    const char *name;
    int64_t group;
    int n_parts;
    struct stored_part part[STORED_PARTS];
    /* The values of a chunk, of dtype `from`, to its parts, and back. With `kept`, pack fills the
     * first part, and as parts[1] an f32 for each `kept` values; finish makes the other parts of a
     * tensor of n values. */
    int64_t kept;
    void (*pack)(void *const *parts, struct stored_shape s, const void *values, enum dtype from);
    void (*unpack)(void *values, enum dtype to, const void *const *parts, struct stored_shape s);
    void (*finish)(void *const *parts, const float *kept, int64_t n);
    /* pack takes all values of a tensor, in the tensor's dtype; chunks are only unpacked, by whole
     * rows */
    bool whole;
};
extern const struct stored_form stored_forms[STORED_FORMS];

/* The least common multiple of all groups. */
enum { STORED_GROUP = 16384 };

/* Returns the form of a tensor's storage; a u8 tensor is plain. */
const struct stored_form *tensor_form(const struct graph *g, const struct tensor *t);
/* Reports whether a parameter's storage has the values of its transpose: those of a matrix
 * [inputs,outputs] (param.transposed) that is not plain. */
bool stored_transposed(const struct graph *g, const struct param *p);
/* Returns the index, in the transpose of a matrix, of what has the index i in the matrix. */
int64_t transposed_index(int64_t i, int64_t rows, int64_t columns);
/* Returns the bytes of these values in one part. */
uint64_t stored_part_bytes(const struct stored_form *f, int part, struct stored_shape s);
/* Returns where the value behind these is in the part, and where the part begins in a storage of
 * these values, in bytes. */
uint64_t stored_part_at(const struct stored_form *f, int part, struct stored_shape before);
uint64_t stored_part_offset(const struct stored_form *f, int part, struct stored_shape s);
/* Returns the bytes of a whole tensor: in its storage, and in a file. */
uint64_t stored_bytes(const struct graph *g, const struct tensor *t);
uint64_t stored_file_bytes(const struct stored_form *f, struct stored_shape s);
