/*
 * softcap.c: SOFTCAP and its gradient, the reference and the fast kernels.
 *
 *     y = cap tanh(x / cap),  dx = dy (1 - tanh(x / cap)^2)
 *
 * The gradient reads x, not y: where y is close to the cap, 1 - (y / cap)^2 of a rounded y would
 * have few correct digits.
 */
#include <math.h>

#include "cpu/cpu.h"
#include "cpu/math.h"
#include "cpu/reference/ref.h"

enum { SERIAL = 8192 }; /* elements up to which one thread is faster */

static void ref_softcap(const struct launch *l)
{
    const double cap = l->attr->softcap.cap;
    for (int64_t i = 0; i < operand_elements(&l->out[0]); i++)
        ref_put(&l->out[0], i, cap * tanh(ref_get(&l->in[0], i) / cap));
}

static void ref_softcap_bwd(const struct launch *l)
{
    const double cap = l->attr->softcap.cap;
    for (int64_t i = 0; i < operand_elements(&l->out[0]); i++) {
        const double t = tanh(ref_get(&l->in[1], i) / cap);
        ref_put(&l->out[0], i, ref_get(&l->in[0], i) * (1 - t * t));
    }
}

static void softcap_run(const struct launch *l)
{
    const int64_t n = operand_elements(&l->out[0]);
    const float cap = l->attr->softcap.cap, inverse = 1 / cap;
#pragma omp parallel for num_threads(l->threads) schedule(static) if (n > SERIAL)
    for (int64_t at = 0; at < n; at += TILE) {
        float xs[TILE];
        const int width = row_tile(n - at);
        const float *x = row_view(&l->in[0], at, width, xs);
        float *y = row_place(&l->out[0], at, xs);
#pragma omp simd
        for (int i = 0; i < width; i++) y[i] = cap * tanh_fast(x[i] * inverse);
        row_store(&l->out[0], at, width, y);
    }
}

static void softcap_bwd_run(const struct launch *l)
{
    const int64_t n = operand_elements(&l->out[0]);
    const float inverse = 1 / l->attr->softcap.cap;
#pragma omp parallel for num_threads(l->threads) schedule(static) if (n > SERIAL)
    for (int64_t at = 0; at < n; at += TILE) {
        float ds[TILE], xs[TILE];
        const int width = row_tile(n - at);
        const float *dy = row_view(&l->in[0], at, width, ds), *x = row_view(&l->in[1], at, width, xs);
        float *dx = row_place(&l->out[0], at, ds);
#pragma omp simd
        for (int i = 0; i < width; i++) {
            const float t = tanh_fast(x[i] * inverse);
            dx[i] = dy[i] * (1 - t * t);
        }
        row_store(&l->out[0], at, width, dx);
    }
}

REF_KERNEL(SOFTCAP, softcap);
REF_KERNEL(SOFTCAP_BWD, softcap_bwd);
CPU_KERNEL_DENSE(SOFTCAP, softcap);
CPU_KERNEL_DENSE(SOFTCAP_BWD, softcap_bwd);
