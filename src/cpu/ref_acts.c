/*
 * ref_acts.c: reference kernels of layer norm (see ref.c for what the reference promises).
 */
#include <math.h>

#include "cpu/ref.h"

/* --- layer norm ---------------------------------------------------------------------- */

void ref_layernorm(const struct launch *l)
{
    const struct operand *x = &l->in[0], *w = &l->in[1], *b = &l->in[2];
    const int64_t rows = operand_rows(x), C = operand_last(x);
    for (int64_t r = 0; r < rows; r++) {
        double mean = 0, variance = 0;
        for (int64_t c = 0; c < C; c++) mean += ref_get(x, r * C + c) / (double)C;
        for (int64_t c = 0; c < C; c++) variance += pow(ref_get(x, r * C + c) - mean, 2) / (double)C;
        double rstd = 1 / sqrt(variance + l->attr->layernorm.eps);
        ref_put(&l->out[1], r, mean);
        ref_put(&l->out[2], r, rstd);
        for (int64_t c = 0; c < C; c++)
            ref_put(&l->out[0], r * C + c, (ref_get(x, r * C + c) - mean) * rstd * ref_get(w, c) + ref_get(b, c));
    }
}

/* h of element i, which is of row i / C. */
static double ref_normal(const struct launch *l, int64_t i, int64_t C)
{
    return (ref_get(&l->in[1], i) - ref_get(&l->in[3], i / C)) * ref_get(&l->in[4], i / C);
}

/* dx = r (g - mean(g) - h mean(g h)) with g = dy w; dw = sum of dy h; db = sum of dy. */
void ref_layernorm_bwd(const struct launch *l)
{
    const struct operand *dy = &l->in[0], *w = &l->in[2];
    const int64_t rows = operand_rows(&l->in[1]), C = operand_last(&l->in[1]);
    for (int64_t c = 0; c < C; c++) {
        double dw = 0, db = 0;
        for (int64_t r = 0; r < rows; r++) {
            dw += ref_get(dy, r * C + c) * ref_normal(l, r * C + c, C);
            db += ref_get(dy, r * C + c);
        }
        ref_put(&l->out[1], c, dw);
        ref_put(&l->out[2], c, db);
    }
    for (int64_t r = 0; r < rows; r++) {
        double g = 0, gh = 0;
        for (int64_t c = 0; c < C; c++) {
            double one = ref_get(dy, r * C + c) * ref_get(w, c);
            g += one / (double)C;
            gh += one * ref_normal(l, r * C + c, C) / (double)C;
        }
        for (int64_t c = 0; c < C; c++)
            ref_put(&l->out[0], r * C + c,
                    ref_get(&l->in[4], r) * (ref_get(dy, r * C + c) * ref_get(w, c) - g - ref_normal(l, r * C + c, C) * gh));
    }
}
