/*
 * ref_maps.c: reference kernels of the ops that move elements and of those on maps
 * [B,H,W,C] (see ref.h).
 */
#include <math.h>

#include "cpu/ref.h"

/* --- moving elements --------------------------------------------------------- */

void ref_concat(const struct launch *l)
{
    const struct operand *y = &l->out[0];
    int64_t inner = 1, at = 0;
    for (int d = l->attr->concat.axis + 1; d < y->rank; d++) inner *= y->dim[d];
    const int64_t total = y->dim[l->attr->concat.axis] * inner;
    for (int k = 0; k < l->nin; k++) {
        const int64_t part = l->in[k].dim[l->attr->concat.axis] * inner;
        for (int64_t i = 0; i < operand_elements(&l->in[k]); i++)
            ref_put(y, i / part * total + at + i % part, ref_get(&l->in[k], i));
        at += part;
    }
}

void ref_pad(const struct launch *l)
{
    const struct operand *x = &l->in[0], *y = &l->out[0];
    for (int64_t i = 0; i < operand_elements(y); i++) {
        int64_t rest = i, from = 0, scale = 1;
        bool inside = true;
        for (int d = y->rank - 1; d >= 0; d--) {
            int64_t k = rest % y->dim[d] - l->attr->pad.before[d];
            inside &= k >= 0 && k < x->dim[d];
            from += k * scale;
            scale *= x->dim[d];
            rest /= y->dim[d];
        }
        ref_put(y, i, inside ? ref_get(x, from) : 0);
    }
}

void ref_gather(const struct launch *l)
{
    const int64_t N = l->in[0].dim[1], M = l->out[0].dim[1], C = l->in[0].dim[2];
    for (int64_t i = 0; i < operand_elements(&l->out[0]); i++) {
        const int64_t row = i / C, n = (int64_t)ref_get(&l->in[1], row);
        ref_put(&l->out[0], i, n >= 0 && n < N ? ref_get(&l->in[0], (row / M * N + n) * C + i % C) : 0);
    }
}

void ref_scatter_add(const struct launch *l)
{
    const int64_t N = l->out[0].dim[1], M = l->in[1].dim[1], C = l->out[0].dim[2];
    for (int64_t i = 0; i < operand_elements(&l->out[0]); i++) {
        const int64_t b = i / (N * C), n = i / C % N;
        double sum = ref_get_acc(l, 2, i);
        for (int64_t m = 0; m < M; m++)
            if ((int64_t)ref_get(&l->in[1], b * M + m) == n) sum += ref_get(&l->in[0], (b * M + m) * C + i % C);
        ref_put(&l->out[0], i, sum);
    }
}
