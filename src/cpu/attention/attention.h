/*
 * attention.h: shared by attention's forward and backward: shapes, rows, the mask.
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
#ifndef CPU_ATTENTION_H
#define CPU_ATTENTION_H

#include "cpu/products/micro.h"
#include "cpu/products/micro_bf16.h"
#include "run/kernel.h"

enum { HEAD_MAX = 256 };

struct heads {
    int64_t B, T, S, H, G, D;
    float scale;
    /* Query t sees the keys t + first .. t + last. Without a window first is so low, and without a
     * causal mask last so high, that every query sees all keys. */
    int64_t first, last;
    bool ranged;           /* each query has a range of keys instead, */
    struct operand ranges; /* set when it runs, */
    int64_t window;        /* of which it sees the last ones; 0: all */
};

/* From q's and k's dimensions. */
struct heads heads_of(const int64_t *q, const int64_t *k, const union attr *attr);
/* Of a launch whose input `ranges` may be given. */
struct heads heads_of_launch(const struct launch *l, int q, int k, int ranges);

/* Keys begin .. end - 1; if end is not greater than begin, there are none. */
struct span {
    int64_t begin, end;
};
static inline bool span_is_empty(struct span x) { return x.end <= x.begin; }

/* The end of the queries from t on, at most `end`, that belong to one document, and the keys that
 * any of them sees. */
int64_t heads_document(const struct heads *n, int64_t b, int64_t t, int64_t end, struct span *seen);
/* With ranges: the keys of tn queries from t on, of one document. Without: nothing is written. */
void heads_ranges(const struct heads *n, int64_t b, int64_t t, int64_t tn, struct key_range *range);
/* The keys that any of queries t .. t+tn of one document sees; their ranges are those of
 * heads_ranges. */
struct span heads_seen(const struct heads *n, int64_t t, int64_t tn, const struct key_range *range);
/* The band of these queries and the block of keys from s. With ranges it points to `own`, which has
 * `room` of them: queries beyond tn see nothing. */
struct key_band heads_band(const struct heads *n, int64_t t, int64_t tn, const struct key_range *range, int64_t s,
                           const float *bias, struct key_range *own, int64_t room);

/* Keys s .. s+sn of the mask in powers of two, padded with 0 to `room`. Returns false if all of
 * them are masked out. */
bool heads_bias(const struct operand *mask, int64_t b, int64_t s, int64_t sn, float *bias, int64_t room);

/* The D elements of head h at position t of batch b. */
static inline void *heads_row(const struct operand *x, int64_t b, int64_t t, int64_t h)
{
    return (char *)x->data + (b * x->stride[0] + t * x->stride[1] + h * x->stride[2]) * dtype_size(x->dtype);
}

/* True for a [.,.,.,D] tensor that the kernels support; for a mask and ranges that they support, or
 * none, from `input` on. */
bool heads_fit(const struct tensor *t);
bool heads_mask_fits(const struct query *q, int input);

/* The bf16 loops, if all of these operands are bf16 and the loops have the tile of u, so that their
 * results have the same layout; NULL: everything is multiplied as f32. */
const struct micro_bf16 *heads_bf16(const struct micro *u, const struct operand *x, int n);

/* Stores a panel [D][width] of n <= NR_MAX rows, each times its factor (NULL: 1), as rows t.. of a
 * head. `rows` is scratch for n * D floats. */
void heads_store(const struct operand *x, int64_t b, int64_t t, int64_t h, const float *panel, int width, int64_t n,
                 int64_t D, const float *factor, float *rows);

static inline int64_t round_up(int64_t a, int64_t b) { return (a + b - 1) / b * b; }

#endif
