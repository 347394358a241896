/*
 * attention.h: what the two halves of attention share: shapes, rows, the mask.
 *
 *     q, o, do, dq  [B,T,H,D]      k, v, dk, dv  [B,S,G,D]      lse  [B,H,T]      mask  [B,S]
 *
 * Query head h reads key head h / (H/G). Operands may be strided views as long as
 * D is contiguous.
 *
 * What a query sees is a band around its own place among the keys:
 *
 *            keys 0 .. S
 *     query  x x x . . . .       first: the window's begin     last: itself when causal
 *      0..T  . x x x . . .
 *            . . x x x . .       blocks outside the band are never touched
 */
#ifndef CPU_ATTENTION_H
#define CPU_ATTENTION_H

#include "cpu/micro.h"
#include "cpu/micro_bf16.h"
#include "run/kernel.h"

enum { HEAD_MAX = 256 };

struct heads {
    int64_t B, T, S, H, G, D;
    float scale;
    /* Query t sees the keys t + first .. t + last. Without a window first is so low, and
     * without a causal mask last so high, that every query sees all keys. */
    int64_t first, last;
};

/* From q's and k's dimensions. */
struct heads heads_of(const int64_t *q, const int64_t *k, const union attr *attr);

/* The keys that queries t .. t+tn see between them: from this one... */
static inline int64_t heads_begin(const struct heads *n, int64_t t) { return max_i64(0, t + n->first); }
/* ...to before this one. The end may not be behind the beginning: then there are none. */
static inline int64_t heads_end(const struct heads *n, int64_t t, int64_t tn)
{
    return max_i64(0, min_i64(n->S, t + tn + n->last));
}

/* The same for the block of queries from t against the block of keys from s. */
static inline struct sight heads_sight(const struct heads *n, int64_t t, int64_t s, const float *bias)
{
    return (struct sight){t + n->first - s, t + n->last - s, bias};
}

/* Keys s .. s+sn of the mask in powers of two; filled up with 0 to `room`. Returns false
 * when all of them are hidden. */
bool heads_bias(const struct operand *mask, int64_t b, int64_t s, int64_t sn, float *bias, int64_t room);

/* The D elements of head h at position t of batch b. */
static inline void *heads_row(const struct operand *x, int64_t b, int64_t t, int64_t h)
{
    return (char *)x->data + (b * x->stride[0] + t * x->stride[1] + h * x->stride[2]) * dtype_size(x->dtype);
}

/* A [.,.,.,D] tensor that the kernels take; a mask that they take, or none. */
bool heads_fit(const struct tensor *t);
bool heads_mask_fits(const struct query *q, int input);

/* The bf16 loops, where all of these operands are bf16 and the loops' tile is u's, so that
 * their results lie as u's do; NULL: everything is multiplied as f32. */
const struct micro_bf16 *heads_bf16(const struct micro *u, const struct operand *x, int n);

/* A panel [D][width] of n <= NR_MAX rows, each times its factor (NULL: 1), stored as rows
 * t.. of a head. `rows` is scratch for n * D floats. */
void heads_store(const struct operand *x, int64_t b, int64_t t, int64_t h, const float *panel, int width, int64_t n,
                 int64_t D, const float *factor, float *rows);

static inline int64_t round_up(int64_t a, int64_t b) { return (a + b - 1) / b * b; }

#endif
