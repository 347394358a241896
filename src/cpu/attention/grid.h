/*
 * grid.h: relative positions on a grid, added to the scores of attention inside its tiles. The
 * formulas are in graph/vjp.c; attention.c and attention_bwd.c call these functions between a
 * block's product and its softmax.
 *
 * There are two variants. With tables (ATTENTION_REL), the position term of query (h,w) and key
 * (kh,kw) is rel_h[kh] + rel_w[kw], where rel_h and rel_w are products of the query with the
 * tables' rows, computed once per query: height + width numbers instead of T. With a bias
 * (ATTENTION_BIAS), it is read from the head's table, mirrored so that neighbouring keys are
 * contiguous in memory:
 *
 *     mirror[head][|h-kh|][w-kw + width-1]
 *
 * All position terms are in powers of two, as attention's scores are.
 */
#ifndef CPU_GRID_H
#define CPU_GRID_H

#include "cpu/attention/attention.h"

struct grid {
    int64_t height, width;
    bool biased;
    const struct operand *table[2]; /* of h and w; with a bias only the first */
    void *packed[2];                /* forward, with tables: panels of their rows */
    float *mirror;                  /* with a bias: [heads][height][2 width - 1] */
};

/* The grid of a node, without its tables: enough for planning. */
struct grid grid_of(const union attr *attr, bool biased);
/* The dimensions of q, k and v as plain attention has them. */
struct heads grid_heads(const int64_t *q, const union attr *attr);
bool grid_is_bf16(const struct grid *g);

/* Numbers per query of its position terms. */
static inline int64_t grid_row(const struct grid *g) { return g->biased ? 0 : g->height + g->width; }

/* --- forward: one query per lane --------------------------------------------------------- */

/* Floats of the packed or mirrored tables; of the position terms of so many queries. */
int64_t grid_table_floats(const struct grid *g, const struct heads *n);
int64_t grid_query_floats(const struct grid *g, int64_t queries);

/* Packs or mirrors the tables into `to`. */
void grid_pack(struct grid *g, const struct heads *n, const struct micro *u, const struct micro_bf16 *half, float *to);
void grid_mirror(struct grid *g, const struct heads *n, float *to);

/* Position terms of queries t .. t+tn, packed (unscaled) in q's panels of nr: for each panel
 * [height + width][nr]. The rest of `position` is scratch. */
void grid_positions(const struct grid *g, const struct micro *u, const struct micro_bf16 *half, const void *q,
                    int64_t D, int64_t t, int64_t tn, float *position);

/* A panel of queries t .. t+tn of head h and its position terms. */
struct grid_panel {
    const struct micro *u;
    int64_t h, t, tn;
    const float *position;
};

/* s [keys][nr] = factor s + position, for keys from s0 on. */
void grid_add_queries(const struct grid *g, const struct grid_panel *at, float *s, int64_t s0, int64_t keys,
                      float factor);

/* --- backward: one key per lane ------------------------------------------------------------ */

/* Memory of the backward, laid out by grid_bwd_floats. With tables, J = 2 height - 1 + 2 width - 1
 * is the number of rows of both. Each table is reversed, so that the product terms of a query are
 * contiguous: rel_h[kh] is at height-1-h + kh. */
struct grid_bwd {
    struct grid g;
    const struct micro *u;
    const struct micro_bf16 *half; /* NULL: products are f32 */
    int64_t J, row;       /* row: numbers per query in rel and drel: height + width, plus the wrapped ones */
    int64_t groups;       /* number of groups of heads that share a partial sum of the tables' gradients */
    bool alone;           /* there is only one block of keys: a thread completes a block of queries in one pass */
    float *rel, *drel;    /* [B,H,T,row]; alone: each thread has the rows of one block of queries */
    void *rows, *by_row, *by_depth; /* tables [J,D]; panels of their rows; of their columns */
    float *partial;       /* [groups][J][D], in whole tiles; with a bias: [B,H,key blocks][height][2 width - 1] */
};

/* Floats of the shared section, and of each thread's. */
int64_t grid_bwd_floats(const struct grid_bwd *x, const struct heads *n, int64_t key_blocks);
int64_t grid_bwd_thread_floats(const struct grid_bwd *x, const struct heads *n);
struct grid_bwd grid_bwd_of(const union attr *attr, bool biased, const struct heads *n);
/* Sets the number of key blocks of the backward; call it before querying the other sizes. */
void grid_bwd_blocks(struct grid_bwd *x, const struct heads *n, int64_t key_blocks);
void grid_bwd_place(struct grid_bwd *x, const struct heads *n, const struct micro *u, const struct micro_bf16 *half,
                    float *to);

/* Shared by a panel of keys s .. s+n: its rows of the grid, and which lanes are in which row. */
struct grid_lanes {
    int64_t s, n;
    int steps;
    float masks[NR_MAX * NR_MAX];
};
void grid_lanes_of(const struct grid_bwd *x, const struct micro *u, int64_t s, int64_t n, struct grid_lanes *to);

/* Queries t0 .. t0+tn of head h of batch b, and the thread's memory. */
struct grid_block {
    int64_t b, h, t0, tn;
    float *work;
};

/* s [queries][nr] = factor s + position, for the block's queries. */
void grid_add_keys(const struct grid_bwd *x, const struct heads *n, const struct grid_lanes *lanes,
                   const struct grid_block *at, float *s, float factor);
/* With tables: adds ds to the gradients of the queries' position terms. With a bias: to `bias`, the
 * sums of one block of keys. */
void grid_gather_keys(const struct grid_bwd *x, const struct heads *n, const struct grid_lanes *lanes,
                      const struct grid_block *at, const float *ds, float *bias);
/* Zeroes the gradients of the position terms of the block's queries. */
void grid_clear(const struct grid_bwd *x, const struct heads *n, const struct grid_block *at);

/* Alone: computes the block's position terms; after its only block of keys, adds their gradients to
 * dq. */
void grid_block_begin(const struct grid_bwd *x, const struct heads *n, const struct operand *q,
                      const struct grid_block *at);
void grid_block_finish(const struct grid_bwd *x, const struct heads *n, const struct operand *q,
                       const struct operand *dq, const struct grid_block *at);

/* Inside a parallel region, by all threads. Before: the queries' position terms. After: their
 * gradients are added to dq (f32, [B,T,H,D] with strides) and to the tables' gradients. */
void grid_bwd_begin(const struct grid_bwd *x, const struct heads *n, const struct operand *q, float *work);
void grid_bwd_finish(const struct grid_bwd *x, const struct heads *n, const struct operand *q, const struct operand *dq,
                     const struct operand *dtable, int64_t key_blocks, float *work);

/* --- shared by the kernels of ATTENTION and of grids ------------------------------------------ */

uint64_t attention_bytes(const struct heads *n, const struct grid *grid, int threads);
void attention_forward(const struct launch *l, const struct heads *n, struct grid *grid, bool masked);
uint64_t attention_bwd_bytes(const struct heads *n, struct grid_bwd *grid, bool narrow, int threads);
void attention_backward(const struct launch *l, const struct heads *n, struct grid_bwd *grid, bool masked);

#endif
