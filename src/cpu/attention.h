/*
 * attention.h: what the two halves of attention share: shapes, rows, the mask.
 *
 *     q, o, do, dq  [B,T,H,D]      k, v, dk, dv  [B,S,G,D]      lse  [B,H,T]
 *
 * Query head h reads key head h / (H/G). Operands may be strided views as long as
 * D is contiguous.
 */
#ifndef CPU_ATTENTION_H
#define CPU_ATTENTION_H

#include "run/kernel.h"

enum { HEAD_MAX = 256 };

struct heads {
    int64_t B, T, S, H, G, D;
    float scale;
    bool causal;
    int64_t ahead; /* causal: query t sees keys s <= t + ahead; otherwise all */
};

/* From q's and k's dimensions. */
struct heads heads_of(const int64_t *q, const int64_t *k, const union attr *attr);

/* How many keys the query t sees. */
static inline int64_t heads_seen(const struct heads *n, int64_t t)
{
    return n->causal ? max_i64(0, min_i64(n->S, t + n->ahead + 1)) : n->S;
}

/* The D elements of head h at position t of batch b. */
static inline void *heads_row(const struct operand *x, int64_t b, int64_t t, int64_t h)
{
    return (char *)x->data + (b * x->stride[0] + t * x->stride[1] + h * x->stride[2]) * dtype_size(x->dtype);
}

/* A [.,.,.,D] tensor that the kernels take. */
bool heads_fit(const struct tensor *t);

/* A panel [D][width] of n <= NR_MAX rows, each times its factor (NULL: 1), stored as rows
 * t.. of a head. `rows` is scratch for n * D floats. */
void heads_store(const struct operand *x, int64_t b, int64_t t, int64_t h, const float *panel, int width, int64_t n,
                 int64_t D, const float *factor, float *rows);

static inline int64_t round_up(int64_t a, int64_t b) { return (a + b - 1) / b * b; }

#endif
