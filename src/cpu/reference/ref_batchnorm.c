/*
 * ref_batchnorm.c: reference kernels of batch normalisation (see ref.h). A map [B,H,W,C] is treated
 * as rows of C; a group is `n` consecutive rows.
 */
#include <math.h>

#include "cpu/reference/ref.h"

static void ref_batchnorm(const struct launch *l)
{
    const struct operand *x = &l->in[0];
    const int64_t C = operand_last(x), G = l->out[1].dim[0], n = operand_rows(x) / G;
    for (int64_t k = 0; k < G * C; k++) {
        const int64_t g = k / C, c = k % C;
        double mean = 0, var = 0;
        for (int64_t r = g * n; r < (g + 1) * n; r++) mean += ref_get(x, r * C + c) / (double)n;
        for (int64_t r = g * n; r < (g + 1) * n; r++) var += pow(ref_get(x, r * C + c) - mean, 2) / (double)n;
        const double rstd = 1 / sqrt(var + l->attr->batchnorm.eps);
        for (int64_t r = g * n; r < (g + 1) * n; r++)
            ref_put(&l->out[0], r * C + c,
                    (ref_get(x, r * C + c) - mean) * rstd * ref_get(&l->in[1], c) + ref_get(&l->in[2], c));
        ref_put(&l->out[1], k, mean);
        ref_put(&l->out[2], k, rstd);
    }
}

/* Per channel and group of n elements, with r = rstd and h = (x - mean) r, y = h w + b:
 *   db = sum dy,  dw = sum dy h
 *   dx = w r (dy - sum(dy)/n - h sum(dy h)/n)      since dmean/dx = 1/n, dr/dx = -r^2 h/n
 * where the last line's sums are the group's and dw, db are over all groups. */
static void ref_batchnorm_bwd(const struct launch *l)
{
    const struct operand *dy = &l->in[0], *x = &l->in[1];
    const int64_t C = operand_last(x), G = l->in[3].dim[0], n = operand_rows(x) / G;
    for (int64_t c = 0; c < C; c++) {
        double dw = 0, db = 0;
        for (int64_t g = 0; g < G; g++) {
            const double mean = ref_get(&l->in[3], g * C + c), rstd = ref_get(&l->in[4], g * C + c);
            double sum = 0, dot = 0;
            for (int64_t r = g * n; r < (g + 1) * n; r++) {
                sum += ref_get(dy, r * C + c);
                dot += ref_get(dy, r * C + c) * (ref_get(x, r * C + c) - mean) * rstd;
            }
            for (int64_t r = g * n; r < (g + 1) * n; r++) {
                double h = (ref_get(x, r * C + c) - mean) * rstd, d = ref_get(dy, r * C + c);
                ref_put(&l->out[0], r * C + c,
                        ref_get(&l->in[2], c) * rstd * (d - sum / (double)n - h * dot / (double)n));
            }
            dw += dot;
            db += sum;
        }
        ref_put(&l->out[1], c, dw);
        ref_put(&l->out[2], c, db);
    }
}

static void ref_batchnorm_frozen(const struct launch *l)
{
    const int64_t C = operand_last(&l->in[0]);
    for (int64_t i = 0; i < operand_elements(&l->out[0]); i++) {
        const double rstd = 1 / sqrt(ref_get(&l->in[4], i % C) + l->attr->batchnorm_frozen.eps);
        const double h = (ref_get(&l->in[0], i) - ref_get(&l->in[3], i % C)) * rstd;
        ref_put(&l->out[0], i, h * ref_get(&l->in[1], i % C) + ref_get(&l->in[2], i % C));
    }
}

/* mean and var are given: dx = w dy / sqrt(var + eps), the others as above. */
static void ref_batchnorm_frozen_bwd(const struct launch *l)
{
    const int64_t C = operand_last(&l->in[1]), rows = operand_rows(&l->in[1]);
    for (int64_t c = 0; c < C; c++) {
        const double rstd = 1 / sqrt(ref_get(&l->in[4], c) + l->attr->batchnorm_frozen.eps);
        double dw = 0, db = 0;
        for (int64_t r = 0; r < rows; r++) {
            const double d = ref_get(&l->in[0], r * C + c), x = ref_get(&l->in[1], r * C + c);
            dw += d * (x - ref_get(&l->in[3], c)) * rstd;
            db += d;
            ref_put(&l->out[0], r * C + c, d * ref_get(&l->in[2], c) * rstd);
        }
        ref_put(&l->out[1], c, dw);
        ref_put(&l->out[2], c, db);
    }
}

/* Running statistics as torch.nn.BatchNorm2d updates them, with one update per group. */
static void ref_batchnorm_update(const struct launch *l)
{
    const int64_t G = l->in[0].dim[0], C = l->in[0].dim[1], count = l->attr->batchnorm_update.count;
    const double m = l->attr->batchnorm_update.momentum, unbiased = (double)count / (double)(count - 1);
    for (int64_t c = 0; c < C; c++)
        for (int64_t g = 0; g < G; g++) {
            double rstd = ref_get(&l->in[1], g * C + c), var = 1 / (rstd * rstd) - l->attr->batchnorm_update.eps;
            ref_put(&l->out[0], c, (1 - m) * ref_get(&l->in[2], c) + m * ref_get(&l->in[0], g * C + c));
            ref_put(&l->out[1], c, (1 - m) * ref_get(&l->in[3], c) + m * fmax(0, var) * unbiased);
        }
}

REF_KERNEL(BATCHNORM, batchnorm);
REF_KERNEL(BATCHNORM_BWD, batchnorm_bwd);
REF_KERNEL(BATCHNORM_FROZEN, batchnorm_frozen);
REF_KERNEL(BATCHNORM_FROZEN_BWD, batchnorm_frozen_bwd);
REF_KERNEL(BATCHNORM_UPDATE, batchnorm_update);
