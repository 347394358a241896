/*
 * expert_load.c: how groups of rows are spread over experts, and the loss that balances them, with
 * their references.
 *
 *     chance[e] = sum over the rows of a group of softmax(logits)[e]
 *     load[e]   = choices of expert e by these rows
 *     loss      = sum over groups of E sum over e of chance[e] load[e] / n^2,   n rows
 *
 * A group is computed by itself, its rows in order: its bits depend on no other group.
 */
#include "cpu/cpu.h"
#include "cpu/math.h"
#include "cpu/reference/ref.h"

#include <math.h>

static int64_t expert_of(int64_t index, int64_t experts) { return index < 0 || index >= experts ? 0 : index; }

/* --- EXPERT_LOAD: reference ------------------------------------------------------------------- */

/* Reports whether the row counts. */
static bool ref_counts(const struct launch *l, int64_t row)
{
    const int64_t t = row % l->attr->expert_load.tokens;
    return !launch_has(l, 2) ||
           (ref_get(&l->in[2], 2 * row) <= (double)t && (double)t < ref_get(&l->in[2], 2 * row + 1));
}

/* Returns the largest of a row's logits, and the sum of exponentials above it. */
static double ref_top(const struct operand *x, int64_t row, int64_t E, double *sum)
{
    double top = -INFINITY;
    for (int64_t e = 0; e < E; e++) top = fmax(top, ref_get(x, row * E + e));
    *sum = 0;
    for (int64_t e = 0; e < E; e++) *sum += exp(ref_get(x, row * E + e) - top);
    return top;
}

static void ref_expert_load(const struct launch *l)
{
    const int64_t R = l->in[0].dim[0], E = l->in[0].dim[1], k = l->in[1].dim[1], rows = l->attr->expert_load.rows;
    for (int64_t g = 0; g < R / rows; g++)
        for (int64_t e = 0; e < E; e++) {
            double chance = 0, load = 0, sum;
            for (int64_t r = g * rows; r < (g + 1) * rows; r++) {
                if (!ref_counts(l, r)) continue;
                const double top = ref_top(&l->in[0], r, E, &sum);
                chance += exp(ref_get(&l->in[0], r * E + e) - top) / sum;
                for (int64_t j = 0; j < k; j++) load += expert_of((int64_t)ref_get(&l->in[1], r * k + j), E) == e;
            }
            ref_put(&l->out[0], g * E + e, chance);
            ref_put(&l->out[1], g * E + e, load);
        }
}

static void ref_expert_load_bwd(const struct launch *l)
{
    const int64_t R = l->in[1].dim[0], E = l->in[1].dim[1], rows = l->attr->expert_load.rows;
    for (int64_t r = 0; r < R; r++) {
        double sum, dot = 0;
        const bool counts = ref_counts(l, r);
        const double top = ref_top(&l->in[1], r, E, &sum);
        for (int64_t e = 0; e < E; e++)
            dot += exp(ref_get(&l->in[1], r * E + e) - top) / sum * ref_get(&l->in[0], r / rows * E + e);
        for (int64_t e = 0; e < E; e++) {
            const double p = exp(ref_get(&l->in[1], r * E + e) - top) / sum;
            ref_put(&l->out[0], r * E + e, counts ? p * (ref_get(&l->in[0], r / rows * E + e) - dot) : 0);
        }
    }
}

REF_KERNEL(EXPERT_LOAD, expert_load);
REF_KERNEL(EXPERT_LOAD_BWD, expert_load_bwd);

/* --- EXPERT_LOAD ------------------------------------------------------------------------------ */

enum { SERIAL = 8192 }; /* elements up to which one thread is faster */

static bool ranges_match(const struct query *q)
{
    return !query_in(q, 2) || tensor_is(query_in(q, 2), DT_I32);
}

static bool counts(const struct launch *l, int64_t row)
{
    const int32_t *range = launch_has(l, 2) ? (const int32_t *)l->in[2].data + 2 * row : NULL;
    const int64_t t = row % l->attr->expert_load.tokens;
    return !range || (range[0] <= t && t < range[1]);
}

/* Writes the softmax of a row [E] of logits. */
static void chances(const struct operand *logits, int64_t row, int64_t E, float *p)
{
    float scratch[TILE], top = -INFINITY;
    double sum = 0;
    for (int64_t e = 0; e < E; e += TILE) {
        const int n = row_tile(E - e);
        memcpy(p + e, row_view(logits, row * E + e, n, scratch), (size_t)n * sizeof *p);
    }
    for (int64_t e = 0; e < E; e++) top = fmaxf(top, p[e]);
#pragma omp simd
    for (int64_t e = 0; e < E; e++) p[e] = exp_fast(p[e] - top);
    for (int64_t e = 0; e < E; e++) sum += (double)p[e];
    const float factor = (float)(1 / sum);
#pragma omp simd
    for (int64_t e = 0; e < E; e++) p[e] *= factor;
}

static bool expert_load_match(const struct query *q)
{
    return tensor_is_fast(q->in[0]) && tensor_is(q->in[1], DT_I32) && ranges_match(q) &&
           tensor_is(q->out[0], DT_F32) && tensor_is(q->out[1], DT_F32);
}

/* Returns the room for the chances of a row and the sums of each group. */
static uint64_t expert_load_workspace(const struct query *q)
{
    const int64_t E = q->in[0]->dim[1];
    return (uint64_t)(q->out[0]->dim[0] * E) * (sizeof(float) + sizeof(double));
}

static void load_group(const struct launch *l, int64_t g, double *sum, float *p)
{
    const int64_t E = l->in[0].dim[1], k = l->in[1].dim[1], rows = l->attr->expert_load.rows;
    const int32_t *index = l->in[1].data;
    float *chance = (float *)l->out[0].data + g * E, *load = (float *)l->out[1].data + g * E;
    memset(sum, 0, (size_t)E * sizeof *sum);
    memset(load, 0, (size_t)E * sizeof *load);
    for (int64_t r = g * rows; r < (g + 1) * rows; r++) {
        if (!counts(l, r)) continue;
        chances(&l->in[0], r, E, p);
        for (int64_t e = 0; e < E; e++) sum[e] += (double)p[e];
        for (int64_t j = r * k; j < (r + 1) * k; j++) load[expert_of(index[j], E)]++;
    }
    for (int64_t e = 0; e < E; e++) chance[e] = (float)sum[e];
}

static void expert_load_run(const struct launch *l)
{
    const int64_t G = l->out[0].dim[0], E = l->in[0].dim[1];
    double *sums = l->work;
    float *scratch = (float *)(sums + G * E);
#pragma omp parallel for num_threads(l->threads) schedule(static) if (operand_elements(&l->in[0]) > SERIAL)
    for (int64_t g = 0; g < G; g++) load_group(l, g, sums + g * E, scratch + g * E);
}

static bool expert_load_bwd_match(const struct query *q)
{
    return tensor_is(q->in[0], DT_F32) && tensor_is_fast(q->in[1]) && ranges_match(q) && tensor_is_fast(q->out[0]);
}

static uint64_t expert_load_bwd_workspace(const struct query *q)
{
    return (uint64_t)tensor_elements(q->in[1]) * sizeof(float);
}

/* Writes the row of dlogits; p has room for it. */
static void load_row_bwd(const struct launch *l, int64_t r, float *p)
{
    const int64_t E = l->in[1].dim[1];
    const float *d = (const float *)l->in[0].data + r / l->attr->expert_load.rows * E;
    double dot = 0;
    if (counts(l, r)) {
        chances(&l->in[1], r, E, p);
        for (int64_t e = 0; e < E; e++) dot += (double)p[e] * (double)d[e];
#pragma omp simd
        for (int64_t e = 0; e < E; e++) p[e] *= d[e] - (float)dot;
    } else {
        memset(p, 0, (size_t)E * sizeof *p);
    }
    for (int64_t e = 0; e < E; e += TILE) {
        float scratch[TILE], *to = row_place(&l->out[0], r * E + e, scratch);
        const int n = row_tile(E - e);
        memcpy(to, p + e, (size_t)n * sizeof *p);
        row_store(&l->out[0], r * E + e, n, to);
    }
}

static void expert_load_bwd_run(const struct launch *l)
{
    const int64_t R = l->in[1].dim[0], E = l->in[1].dim[1];
    float *work = l->work;
#pragma omp parallel for num_threads(l->threads) schedule(static) if (R * E > SERIAL)
    for (int64_t r = 0; r < R; r++) load_row_bwd(l, r, work + r * E);
}

CPU_KERNEL_WORK(EXPERT_LOAD, expert_load);
CPU_KERNEL_WORK(EXPERT_LOAD_BWD, expert_load_bwd);

/* --- BALANCE: one implementation -------------------------------------------------------------- */

/* Returns E / n^2 of a group; 0: it has no rows. */
static double balance_factor(const struct launch *l, int64_t g)
{
    const struct operand *load = &l->in[1];
    const int64_t E = load->dim[1];
    double n = 0;
    for (int64_t e = 0; e < E; e++) n += ref_get(load, g * E + e);
    n /= (double)l->attr->balance.k;
    return n > 0 ? (double)E / (n * n) : 0;
}

static void balance_run(const struct launch *l)
{
    const int64_t G = l->in[0].dim[0], E = l->in[0].dim[1];
    double loss = 0;
    for (int64_t g = 0; g < G; g++) loss += balance_factor(l, g) * ref_dot(&l->in[0], g * E, &l->in[1], g * E, E);
    ref_put(&l->out[0], 0, loss);
}

static void balance_bwd_run(const struct launch *l)
{
    const int64_t G = l->in[0].dim[0], E = l->in[0].dim[1];
    for (int64_t g = 0; g < G; g++) {
        const double factor = balance_factor(l, g) * ref_get(&l->in[2], 0);
        for (int64_t e = 0; e < E; e++) ref_put(&l->out[0], g * E + e, factor * ref_get(&l->in[1], g * E + e));
    }
}

REF_KERNEL_AS(BALANCE, balance);
REF_KERNEL_AS(BALANCE_BWD, balance_bwd);
CPU_KERNEL_DENSE(BALANCE, balance);
CPU_KERNEL_DENSE(BALANCE_BWD, balance_bwd);
