/*
 * gelu_gate.c: GELU_GATE and its gradient, the reference and the fast kernels.
 *
 *     y = g s up,  s = (1 + tanh u) / 2 = sigmoid(2u),  u = sqrt(2 / pi) (g + 0.044715 g^3)
 *     dup = dy g s,  dgate = dy up (s + 2 g s (1 - s) u'),  u' = sqrt(2 / pi) (1 + 3 0.044715 g^2)
 *
 * sigmoid(2u) does not cancel for negative u, where 1 + tanh u would.
 */
#include <math.h>

#include "cpu/cpu.h"
#include "cpu/math.h"
#include "cpu/reference/ref.h"

enum { SERIAL = 8192 }; /* elements up to which one thread is faster */
#define ROOT_TWO_OVER_PI 0.79788456080286535588
#define CUBE 0.044715

/* --- the reference ---------------------------------------------------------------- */

static double share(double g) { return 1 / (1 + exp(-2 * ROOT_TWO_OVER_PI * (g + CUBE * g * g * g))); }

static void ref_gelu_gate(const struct launch *l)
{
    for (int64_t i = 0; i < operand_elements(&l->out[0]); i++) {
        const double g = ref_get(&l->in[0], i);
        ref_put(&l->out[0], i, g * share(g) * ref_get(&l->in[1], i));
    }
}

static void ref_gelu_gate_bwd(const struct launch *l)
{
    for (int64_t i = 0; i < operand_elements(&l->in[0]); i++) {
        const double dy = ref_get(&l->in[0], i), g = ref_get(&l->in[1], i), up = ref_get(&l->in[2], i), s = share(g);
        const double slope = s + 2 * g * s * (1 - s) * ROOT_TWO_OVER_PI * (1 + 3 * CUBE * g * g);
        ref_put(&l->out[0], i, dy * up * slope);
        ref_put(&l->out[1], i, dy * g * s);
    }
}

/* --- fast ---------------------------------------------------------------------------- */

static inline float share_fast(float g)
{
    return sigmoid_fast((float)(2 * ROOT_TWO_OVER_PI) * (g + (float)CUBE * g * g * g));
}

static void gelu_gate_run(const struct launch *l)
{
    const int64_t n = operand_elements(&l->out[0]);
#pragma omp parallel for num_threads(l->threads) schedule(static) if (n > SERIAL)
    for (int64_t at = 0; at < n; at += TILE) {
        float gs[TILE], us[TILE];
        const int width = row_tile(n - at);
        const float *gate = row_view(&l->in[0], at, width, gs), *up = row_view(&l->in[1], at, width, us);
        float *y = row_place(&l->out[0], at, gs);
#pragma omp simd
        for (int i = 0; i < width; i++) y[i] = gate[i] * share_fast(gate[i]) * up[i];
        row_store(&l->out[0], at, width, y);
    }
}

static void gelu_gate_bwd_run(const struct launch *l)
{
    const int64_t n = operand_elements(&l->in[0]);
#pragma omp parallel for num_threads(l->threads) schedule(static) if (n > SERIAL)
    for (int64_t at = 0; at < n; at += TILE) {
        float ds[TILE], gs[TILE], us[TILE];
        const int width = row_tile(n - at);
        const float *dy = row_view(&l->in[0], at, width, ds), *gate = row_view(&l->in[1], at, width, gs),
                    *up = row_view(&l->in[2], at, width, us);
        float *dgate = row_place(&l->out[0], at, gs), *dup = row_place(&l->out[1], at, us);
#pragma omp simd
        for (int i = 0; i < width; i++) {
            const float d = dy[i], g = gate[i], u = up[i], s = share_fast(g);
            dgate[i] =
                d * u * (s + 2.0f * g * s * (1.0f - s) * (float)ROOT_TWO_OVER_PI * (1.0f + (float)(3 * CUBE) * g * g));
            dup[i] = d * g * s;
        }
        row_store(&l->out[0], at, width, dgate);
        row_store(&l->out[1], at, width, dup);
    }
}

REF_KERNEL(GELU_GATE, gelu_gate);
REF_KERNEL(GELU_GATE_BWD, gelu_gate_bwd);
CPU_KERNEL_DENSE(GELU_GATE, gelu_gate);
CPU_KERNEL_DENSE(GELU_GATE_BWD, gelu_gate_bwd);
