/*
 * attention.h: shared by attention's forward and backward, plain and on a grid: shapes, rows, the
 * mask, products of panels, relative positions.
 *
 *     q, o, do, dq  [B,T,H,D]      k, v, dk, dv  [B,S,G,D]      lse  [B,H,T]      mask  [B,S]      ranges  [B,T,2]
 *
 * Query head h reads key head h / (H/G). Operands may be strided views as long as D is contiguous.
 *
 * The visible keys of a query form a band around its own position among the keys:
 *
 *            keys 0 .. S
 *     query  x x x . . . .       first: start of the sliding window     last: itself if causal
 *      0..T  . x x x . . .
 *            . . x x x . .       blocks outside the band are never read
 *
 * With ranges each query has keys of its own:
 *
 *            x . . . . . .       Neighbours whose ranges meet belong to one document. Products never
 *            x x . . . . .       span two documents, because 0 times a NaN is a NaN: blocks of queries
 *            . . x . . . .       and of keys are cut where another document begins. Queries without
 *            . . x x . . .       keys are a document too.
 */
#pragma once

#include "cpu/products/micro.h"
#include "cpu/products/micro_bf16.h"
#include "run/kernel.h"

enum { HEAD_MAX = 256 };

struct heads {
    int64_t B, T, S, H, G, D;
    float scale, cap; /* cap 0: none */
    /* Query t sees the keys t + first .. t + last. Without a window first is so low, and without a
     * causal mask last so high, that every query sees all keys. */
    int64_t first, last;
    bool ranged;           /* each query has a range of keys instead, */
    struct operand ranges; /* set when it runs, */
    int64_t window;        /* of which it sees the last ones; 0: all */
};

/* Returns the shape from q's and k's dimensions. */
struct heads heads_of(const int64_t *q, const int64_t *k, const union attr *attr);
/* Does as heads_of for a launch whose input `ranges` may be given. */
struct heads heads_of_launch(const struct launch *l, int q, int k, int ranges);

/* Keys begin .. end - 1; if end is not greater than begin, there are none. */
struct span {
    int64_t begin, end;
};
static inline bool span_is_empty(struct span x) { return x.end <= x.begin; }

/* Returns the end of the queries from t on, at most `end`, that belong to one document, and the
 * keys that any of them sees. */
int64_t heads_document(const struct heads *n, int64_t b, int64_t t, int64_t end, struct span *seen);
/* Writes, with ranges, the keys of tn queries from t on, of one document. */
void heads_ranges(const struct heads *n, int64_t b, int64_t t, int64_t tn, struct key_range *range);
/* Returns the keys that any of queries t .. t+tn of one document sees; their ranges are those of
 * heads_ranges. */
struct span heads_seen(const struct heads *n, int64_t t, int64_t tn, const struct key_range *range);
/* Returns the band of these queries and the block of keys from s. With ranges it points to `own`,
 * which has `room` of them: queries beyond tn see nothing. */
struct key_band heads_band(const struct heads *n, int64_t t, int64_t tn, const struct key_range *range, int64_t s,
                           const float *bias, struct key_range *own, int64_t room);

/* Writes keys s .. s+sn of the mask in powers of two, padded with 0 to `room`. Returns false if all
 * of them are masked out. */
bool heads_bias(const struct operand *mask, int64_t b, int64_t s, int64_t sn, float *bias, int64_t room);

/* Returns the D elements of head h at position t of batch b. */
static inline void *heads_row(const struct operand *x, int64_t b, int64_t t, int64_t h)
{
    return (char *)x->data + (b * x->stride[0] + t * x->stride[1] + h * x->stride[2]) * dtype_size(x->dtype);
}

/* Report whether the kernels support a [.,.,.,D] tensor; and a mask and ranges, or none, from
 * `input` on. */
bool heads_fit(const struct tensor *t);
bool heads_mask_fits(const struct query *q, int input);

/* Returns the bf16 loops, if all of these operands are bf16 and the loops have the tile of u, so
 * that their results have the same layout; NULL: everything is multiplied as f32. */
const struct micro_bf16 *heads_bf16(const struct micro *u, const struct operand *x, int n);

/* Stores a panel [D][width] of n <= NR_MAX rows, each times its factor (NULL: 1), as rows t.. of a
 * head. `rows` is scratch for n * D floats. */
void heads_store(const struct operand *x, int64_t b, int64_t t, int64_t h, const float *panel, int width, int64_t n,
                 int64_t D, const float *factor, float *rows);

static inline int64_t round_up(int64_t a, int64_t b) { return (a + b - 1) / b * b; }

/* --- products of panels ----------------------------------------------------------------------- */

/* The loops of a run's products: in bf16 where `half` is given, else in f32. */
struct panels {
    const struct micro *u;
    const struct micro_bf16 *half;
};

/* Packs n rows of `length`, (i,k) at i * across + k * along, into panels of the products' dtype. */
void panels_pack(const struct panels *p, void *to, int width, const void *from, enum dtype t, int64_t across,
                 int64_t along, int64_t n, int64_t length);
/* Returns the length of a row of K in a panel. */
static inline int64_t panels_length(const struct panels *p, int64_t K)
{
    return p->half ? (K + p->half->group - 1) / p->half->group * p->half->group : K;
}
/* Computes c [mr][nr] = (add ? c : 0) + the panels at elements at and bt of two packed operands,
 * over K. */
static inline void panels_product(const struct panels *p, int64_t K, const void *a, int64_t at, const void *b,
                                  int64_t bt, float *c, int64_t ldc, bool add)
{
    if (p->half)
        p->half->product(panels_length(p, K) / p->half->group, (const uint16_t *)a + at, (const uint16_t *)b + bt, c,
                         ldc, add);
    else p->u->product(K, (const float *)a + at, (const float *)b + bt, c, ldc, add);
}
/* Does as panels_product, but stores only m x n elements of the tile. */
void panels_edge(const struct panels *p, int64_t K, const void *a, int64_t at, const void *b, int64_t bt, float *c,
                 int64_t ldc, bool add, int64_t m, int64_t n);

/* Takes `floats` from a layout, in whole cache lines; returns where they begin. */
static inline int64_t reserve_floats(int64_t *at, int64_t floats)
{
    int64_t here = *at;
    *at += (floats + 15) / 16 * 16;
    return here;
}

/* --- relative positions on a grid -------------------------------------------------------------
 *
 * They are added to the scores of attention inside its tiles (formulas: graph/vjp.c).
 *
 * There are two variants. With tables (ATTENTION_REL), the position term of query (h,w) and key
 * (kh,kw) is rel_h[kh] + rel_w[kw], where rel_h and rel_w are products of the query with the
 * tables' rows, computed once per query: height + width numbers instead of T. With a bias
 * (ATTENTION_BIAS), it is read from the head's table, mirrored so that neighbouring keys are
 * contiguous in memory:
 *
 *     mirror[head][|h-kh|][w-kw + width-1]
 *
 * All position terms are in powers of two, as attention's scores are. */

struct score_grid {
    int64_t height, width;
    bool biased;
    const struct operand *table[2]; /* of h and w; with a bias only the first */
    void *packed[2];                /* forward, with tables: panels of their rows */
    float *mirror;                  /* with a bias: [heads][height][2 width - 1] */
};

/* Returns the grid of a node, without its tables: enough for planning. */
struct score_grid grid_of(const union attr *attr, bool biased);
/* Returns the dimensions of q, k and v as plain attention has them. */
struct heads grid_heads(const int64_t *q, const union attr *attr);
bool grid_is_bf16(const struct score_grid *g);

/* Returns the numbers per query of its position terms. */
static inline int64_t grid_row(const struct score_grid *g) { return g->biased ? 0 : g->height + g->width; }

/* --- forward: one query per lane --------------------------------------------------------- */

/* Return the floats of the packed or mirrored tables, and of the position terms of `queries`. */
int64_t grid_table_floats(const struct score_grid *g, const struct heads *n);
int64_t grid_query_floats(const struct score_grid *g, int64_t queries);

/* Packs or mirrors the tables into `to`. */
void grid_pack(struct score_grid *g, const struct heads *n, const struct panels *p, float *to);
void grid_mirror(struct score_grid *g, const struct heads *n, float *to);

/* Computes the position terms of queries t .. t+tn, packed (unscaled) in q's panels of nr: for each
 * panel [height + width][nr]. The rest of `position` is scratch. */
void grid_positions(const struct score_grid *g, const struct panels *p, const void *q, int64_t D, int64_t t, int64_t tn,
                    float *position);

/* A panel of queries t .. t+tn of head h and its position terms. */
struct grid_panel {
    const struct micro *u;
    int64_t h, t, tn;
    const float *position;
};

/* Computes s [keys][nr] = factor s + position, for keys from s0 on. */
void grid_add_queries(const struct score_grid *g, const struct grid_panel *at, float *s, int64_t s0, int64_t keys,
                      float factor);

/* --- backward: one key per lane ------------------------------------------------------------ */

/* Memory of the backward, laid out by grid_bwd_floats. With tables, J = 2 height - 1 + 2 width - 1
 * is the number of rows of both. Each table is reversed, so that the product terms of a query are
 * contiguous: rel_h[kh] is at height-1-h + kh. */
struct grid_bwd {
    struct score_grid g;
    struct panels panels;
    const struct micro *u; /* panels.u */
    int64_t J, row;       /* row: numbers per query in rel and drel: height + width, plus the wrapped ones */
    int64_t groups;       /* number of groups of heads that share a partial sum of the tables' gradients */
    bool one_pass;        /* there is only one block of keys: a thread completes a block of queries in one pass */
    float *rel, *drel;    /* [B,H,T,row]; with one_pass each thread has the rows of one block of queries */
    void *rows, *by_row, *by_depth; /* tables [J,D]; panels of their rows; of their columns */
    float *partial;       /* [groups][J][D], in whole tiles; with a bias: [B,H,key blocks][height][2 width - 1] */
};

/* Return the floats of the shared section, and of each thread's. */
int64_t grid_bwd_floats(const struct grid_bwd *x, const struct heads *n, int64_t key_blocks);
int64_t grid_bwd_thread_floats(const struct grid_bwd *x, const struct heads *n);
struct grid_bwd grid_bwd_of(const union attr *attr, bool biased, const struct heads *n);
/* Sets the number of key blocks of the backward; call it before querying the other sizes. */
void grid_bwd_blocks(struct grid_bwd *x, const struct heads *n, int64_t key_blocks);
void grid_bwd_place(struct grid_bwd *x, const struct heads *n, const struct panels *p, float *to);

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

/* Computes s [queries][nr] = factor s + position, for the block's queries. */
void grid_add_keys(const struct grid_bwd *x, const struct heads *n, const struct grid_lanes *lanes,
                   const struct grid_block *at, float *s, float factor);
/* Adds ds, with tables, to the gradients of the queries' position terms. With a bias: to `bias`,
 * the sums of one block of keys. */
void grid_gather_keys(const struct grid_bwd *x, const struct heads *n, const struct grid_lanes *lanes,
                      const struct grid_block *at, const float *ds, float *bias);
/* Zeroes the gradients of the position terms of the block's queries. */
void grid_clear(const struct grid_bwd *x, const struct heads *n, const struct grid_block *at);

/* Computes, where there is one block of keys, the position terms of a block of queries; and, after
 * that block, adds their gradients to dq. */
void grid_block_begin(const struct grid_bwd *x, const struct heads *n, const struct operand *q,
                      const struct grid_block *at);
void grid_block_finish(const struct grid_bwd *x, const struct heads *n, const struct operand *q,
                       const struct operand *dq, const struct grid_block *at);

/* Are called by all threads of a parallel region. Before: computes the queries' position terms.
 * After: adds their gradients to dq (f32, [B,T,H,D] with strides) and to the tables' gradients. */
void grid_bwd_begin(const struct grid_bwd *x, const struct heads *n, const struct operand *q, float *work);
void grid_bwd_finish(const struct grid_bwd *x, const struct heads *n, const struct operand *q, const struct operand *dq,
                     const struct operand *dtable, int64_t key_blocks, float *work);

/* --- attention, plain or on a grid (NULL: plain) ---------------------------------------------- */

uint64_t attention_bytes(const struct heads *n, const struct score_grid *grid, int threads);
void attention_forward(const struct launch *l, const struct heads *n, struct score_grid *grid, bool masked);
uint64_t attention_bwd_bytes(const struct heads *n, struct grid_bwd *grid, bool narrow, int threads);
void attention_backward(const struct launch *l, const struct heads *n, struct grid_bwd *grid, bool masked);
