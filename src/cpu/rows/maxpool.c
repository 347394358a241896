/*
 * maxpool.c: MAXPOOL and its gradient, and their reference.
 *
 * Windows lie side by side, so each element of a map is in one window at most: a thread takes whole
 * rows of windows, and the gradient may overwrite the map that it reads.
 */
#include <math.h>

#include "cpu/cpu.h"
#include "cpu/reference/ref.h"

/* Reports whether b is larger than a as pooling has it: a NaN is larger than any number. */
static inline bool is_larger(float b, float a) { return b > a || isnan(b); }

/* The windows of a map [B,H,W,C]. */
struct pools {
    int64_t B, H, W, C, size, rows, columns; /* rows, columns: of windows */
};

static struct pools pools_of(const struct launch *l, const struct operand *x)
{
    const int64_t size = l->attr->maxpool.size;
    return (struct pools){x->dim[0], x->dim[1], x->dim[2], x->dim[3], size, x->dim[1] / size, x->dim[2] / size};
}

/* Returns the first element of channel c of pixel (u,v) of a window; r numbers the rows of windows
 * of all maps. */
static int64_t element_of(const struct pools *p, int64_t r, int64_t column, int64_t u, int64_t v, int64_t c)
{
    const int64_t b = r / p->rows, y = r % p->rows * p->size + u, x = column * p->size + v;
    return ((b * p->H + y) * p->W + x) * p->C + c;
}

/* Finds the largest of n channels of a window, and in `at` the pixel u size + v where each of them
 * is first. */
static void find_largest(const struct operand *x, const struct pools *p, int64_t r, int64_t column, int64_t c, int n,
                         float best[TILE], int32_t at[TILE])
{
    float scratch[TILE];
    memcpy(best, row_view(x, element_of(p, r, column, 0, 0, c), n, scratch), (size_t)n * sizeof *best);
    memset(at, 0, (size_t)n * sizeof *at);
    for (int64_t i = 1; i < p->size * p->size; i++) {
        const float *next = row_view(x, element_of(p, r, column, i / p->size, i % p->size, c), n, scratch);
        for (int k = 0; k < n; k++)
            if (is_larger(next[k], best[k])) best[k] = next[k], at[k] = (int32_t)i;
    }
}

static void maxpool_run(const struct launch *l)
{
    const struct operand *x = &l->in[0], *y = &l->out[0];
    const struct pools p = pools_of(l, x);
#pragma omp parallel for num_threads(l->threads) schedule(static) if (operand_elements(x) > 16384)
    for (int64_t r = 0; r < p.B * p.rows; r++)
        for (int64_t column = 0; column < p.columns; column++)
            for (int64_t c = 0; c < p.C; c += TILE) {
                float best[TILE];
                int32_t at[TILE];
                const int n = row_tile(p.C - c);
                find_largest(x, &p, r, column, c, n, best, at);
                const int64_t to = (r * p.columns + column) * p.C + c;
                dtype_convert((char *)y->data + to * dtype_size(y->dtype), y->dtype, best, DT_F32, n);
            }
}

/* Writes the gradient of n channels of a window. */
static void put_window(const struct operand *dx, const struct pools *p, int64_t r, int64_t column, int64_t c, int n,
                       const float *dy, const int32_t *at)
{
    for (int64_t i = 0; i < p->size * p->size; i++) {
        float scratch[TILE];
        const int64_t to = element_of(p, r, column, i / p->size, i % p->size, c);
        float *out = row_place(dx, to, scratch);
        for (int k = 0; k < n; k++) out[k] = at[k] == (int32_t)i ? dy[k] : 0;
        row_store(dx, to, n, out);
    }
}

/* Zeroes what is in no window: the columns behind the last one of row y, or all of them. */
static void clear_rest(const struct operand *dx, const struct pools *p, int64_t b, int64_t y)
{
    const int64_t from = y < p->rows * p->size ? p->columns * p->size : 0, size = dtype_size(dx->dtype);
    memset((char *)dx->data + ((b * p->H + y) * p->W + from) * p->C * size, 0, (size_t)((p->W - from) * p->C * size));
}

static void maxpool_bwd_run(const struct launch *l)
{
    const struct operand *dy = &l->in[0], *x = &l->in[1], *dx = &l->out[0];
    const struct pools p = pools_of(l, x);
#pragma omp parallel for num_threads(l->threads) schedule(static) if (operand_elements(x) > 16384)
    for (int64_t r = 0; r < p.B * p.rows; r++)
        for (int64_t column = 0; column < p.columns; column++)
            for (int64_t c = 0; c < p.C; c += TILE) {
                float best[TILE], scratch[TILE];
                int32_t at[TILE];
                const int n = row_tile(p.C - c);
                find_largest(x, &p, r, column, c, n, best, at);
                put_window(dx, &p, r, column, c, n, row_view(dy, (r * p.columns + column) * p.C + c, n, scratch), at);
            }
    for (int64_t i = 0; i < p.B * p.H; i++) clear_rest(dx, &p, i / p.H, i % p.H);
}

/* --- the reference ------------------------------------------------------------------------ */

/* Returns the element of x that is the first of the largest in the window of element i of y. */
static int64_t largest_of(const struct operand *x, const struct pools *p, int64_t i)
{
    const int64_t c = i % p->C, column = i / p->C % p->columns, r = i / p->C / p->columns;
    int64_t best = element_of(p, r, column, 0, 0, c);
    for (int64_t k = 1; k < p->size * p->size; k++) {
        const int64_t next = element_of(p, r, column, k / p->size, k % p->size, c);
        if (ref_get(x, next) > ref_get(x, best) || isnan(ref_get(x, next))) best = next;
    }
    return best;
}

static void ref_maxpool(const struct launch *l)
{
    const struct pools p = pools_of(l, &l->in[0]);
    for (int64_t i = 0; i < operand_elements(&l->out[0]); i++)
        ref_put(&l->out[0], i, ref_get(&l->in[0], largest_of(&l->in[0], &p, i)));
}

/* Finds each window's element before anything of it is written: dx may be x. */
static void ref_maxpool_bwd(const struct launch *l)
{
    const struct operand *dy = &l->in[0], *x = &l->in[1], *dx = &l->out[0];
    const struct pools p = pools_of(l, x);
    const int64_t n = operand_elements(dy);
    int64_t *at = mem_alloc((size_t)n * sizeof *at);
    for (int64_t i = 0; i < n; i++) at[i] = largest_of(x, &p, i);
    for (int64_t i = 0; i < operand_elements(dx); i++) ref_put(dx, i, 0);
    for (int64_t i = 0; i < n; i++) ref_put(dx, at[i], ref_get(dy, i));
    mem_free(at);
}

CPU_KERNEL_DENSE(MAXPOOL, maxpool);
CPU_KERNEL_DENSE(MAXPOOL_BWD, maxpool_bwd);
REF_KERNEL(MAXPOOL, maxpool);
REF_KERNEL(MAXPOOL_BWD, maxpool_bwd);
