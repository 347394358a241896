/*
 * parquet.h: tables in Parquet, as Hugging Face `datasets` and pyarrow write them.
 *
 *   PAR1
 *   row group 0: column 0: [dictionary page] data page, data page, ...  each page compressed
 *                column 1: ...
 *   row group 1: ...
 *   footer: the schema, and where each column of each group is (Thrift), its length, PAR1
 *
 * The schema is a tree. Its leaves are the columns that are stored; {image: {bytes, path}} has the
 * two leaves image.bytes and image.path. A leaf's data are entries: one for each row and, below a
 * list, one for each item. An entry has a repetition level, which is 0 where a row begins, and a
 * definition level, which says whether there is a value or how much of its path there is.
 *
 * parquet_page.h reads pages, parquet_rows.h the entries of a column in order and whole rows as
 * JSON, and parquet_cell.h one value by its row. The file is memory-mapped: opening
 * reads only the footer. After that a table is constant, but for parquet_index (parquet_cell.h),
 * and any number of threads may read.
 */
#pragma once

#include "base/mapped.h"
#include "io/codec.h"

/* In the order of the format's numbers. */
enum parquet_type {
    PARQUET_BOOLEAN,
    PARQUET_INT32,
    PARQUET_INT64,
    PARQUET_INT96,
    PARQUET_FLOAT,
    PARQUET_DOUBLE,
    PARQUET_BYTES,
    PARQUET_FIXED,
    PARQUET_TYPES
};

struct parquet_node {
    const char *name;
    const char *path;       /* leaf: names from the root on, "image.bytes" */
    bool leaf;
    enum parquet_type type; /* leaf */
    bool text;              /* leaf: PARQUET_BYTES in UTF-8 */
    bool blob;              /* leaf: PARQUET_BYTES of anything, such as the file of an image */
    bool half;              /* leaf: PARQUET_FIXED that is a float16 */
    bool decimal;           /* leaf of any type: decimal numbers, which are not read */
    bool list;              /* annotated as a list: its one child is repeated */
    bool repeated, optional;
    uint8_t def, rep;       /* the levels of an entry in which this node is there; its lists so far, with itself */
    uint32_t end;           /* one past its last descendant */
    uint32_t column;        /* the first leaf at or below it */
};

struct parquet_chunk {
    uint64_t at, bytes;     /* of its pages */
    uint64_t entries;
    int32_t codec;          /* the format's number */
};

struct parquet_group {
    uint64_t first_row, rows;
    struct parquet_chunk *chunks; /* [columns] */
};

struct parquet {
    char *path;
    struct mapped map;
    uint64_t footer;              /* bytes at the end of the file */
    struct bump memory;
    /* [n_nodes] in the order of the schema: a node's children follow it. nodes[0] is the root */
    struct parquet_node *nodes;
    uint32_t n_nodes;
    uint32_t *columns;            /* [n_columns] the leaves, as nodes */
    uint32_t n_columns;
    struct parquet_group *groups; /* [n_groups] */
    uint32_t n_groups;
    uint64_t rows;
    struct parquet_index *index;  /* [n_columns], by parquet_index */
};

/* Reports whether a file begins and ends as Parquet does. */
bool parquet_is(const char *path);

/* Opens a table, which must not be moved while it is open. PL_USAGE, with the path: there is no
 * such file, it is something else, cut or damaged. The caller calls parquet_close after success. */
int parquet_open(struct parquet *p, const char *path, struct error *e);
void parquet_close(struct parquet *p);
/* Returns PL_FAIL if a page of the file could not be read since it was opened: what was read is
 * not valid. */
int parquet_check(const struct parquet *p, struct error *e);

/* Returns a column of the table (a child of the root) by its name; 0: there is none. */
uint32_t parquet_find(const struct parquet *p, const char *name);
/* Prints the table's columns, for messages: "image, mask, label". */
void parquet_print_columns(const struct parquet *p, struct text *out);
/* Returns the leaf in which the files of images of a node are: a leaf of bytes, or the `bytes` of
 * {bytes, path}; -1: it has none. *many: the node is a list of them. */
int64_t parquet_image_leaf(const struct parquet *p, uint32_t node, bool *many);
