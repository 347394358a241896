/*
 * npy.h: the header of a NumPy .npy file.
 */
#pragma once

#include "base/base.h"

enum { NPY_MAX_DIMS = 8 };

struct npy_header {
    char type;           /* 'u', 'i', 'f', 'b', ... as in NumPy's descr */
    uint32_t size;       /* bytes of an element */
    bool big_endian;
    bool fortran_order;
    uint32_t rank;
    uint64_t shape[NPY_MAX_DIMS];
    uint64_t count;      /* elements: the product of the shape */
    uint64_t data;       /* offset of the first element in the file */
};

/* Reads the header of an open file (format versions 1 to 3). A header that is truncated,
 * contradicts itself or describes more than size_of_file bytes is PL_USAGE, with a message that
 * does not name the file. */
int npy_read_header(int fd, uint64_t size_of_file, struct npy_header *h, struct error *e);
