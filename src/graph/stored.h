/*
 * stored.h: the form in which a storage keeps the values of a tensor.
 *
 *     plain    one array: the elements, in the tensor's dtype
 *
 * A form consists of parts, arrays that follow each other in the storage: a form with fewer bits has
 * codes, and scales that many codes share. A row of the table states the parts and how values are
 * packed into them and unpacked. Loading, saving, training state, precision, offload and the
 * verifier ask here how many bytes a tensor takes, so a new form is a row of stored.c.
 *
 * Values are moved in chunks, which begin at multiples of the form's group: values that share
 * something are never in two chunks.
 */
#ifndef STORED_H
#define STORED_H

#include "graph/graph.h"

enum stored { STORED_PLAIN, STORED_FORMS };

enum { STORED_PARTS = 4 };

struct stored_part {
    const char *name;
    int64_t values;  /* that one entry of the part stands for */
    uint32_t bytes;  /* of an entry; 0: those of an element of the tensor's dtype */
};

struct stored_form {
    const char *name;
    int64_t group;
    int n_parts;
    struct stored_part part[STORED_PARTS];
    /* n values of dtype `from` to the parts of a tensor of dtype t, and back. */
    void (*pack)(void *const *parts, enum dtype t, const void *values, enum dtype from, int64_t n);
    void (*unpack)(void *values, enum dtype to, const void *const *parts, enum dtype t, int64_t n);
};
extern const struct stored_form stored_forms[STORED_FORMS];

/* The form of a tensor: that of its storage. */
const struct stored_form *tensor_form(const struct graph *g, const struct tensor *t);
/* Bytes of n values in one part; where the part begins in a storage of `elements` values. */
uint64_t stored_part_bytes(const struct stored_form *f, int part, enum dtype t, int64_t n);
uint64_t stored_part_offset(const struct stored_form *f, int part, enum dtype t, int64_t elements);
/* Bytes of a whole tensor: in its storage, and in a file. */
uint64_t stored_bytes(const struct graph *g, const struct tensor *t);
uint64_t stored_file_bytes(const struct stored_form *f, enum dtype t, int64_t elements);

#endif
