/*
 * vocabulary.c: the cross-entropy where the vocabulary is divided into parts (passes/tensor.c), and
 * its references.
 *
 *     ids of a part     id - the part's first, -1 if it is another part's; -100 stays
 *     XENT_PART         of each row {log-sum-exp over the part, logit of the label or 0}, in the
 *                       part's slot, zeros in those of others: the sum over parts has all
 *     XENT_JOIN         the log-sum-exp over all slots, and the loss
 *
 * A part may have fewer columns than the others: the rest are logits of padding, which count for
 * nothing.
 */
#include <math.h>

#include "cpu/cpu.h"
#include "cpu/math.h"
#include "cpu/reference/ref.h"

enum { IGNORED = -100 };

/* --- PART_IDS -------------------------------------------------------------------------------- */

static bool part_ids_match(const struct query *q)
{
    return tensor_is(q->in[0], DT_I32) && tensor_is(q->out[0], DT_I32);
}

static void part_ids_run(const struct launch *l)
{
    const struct attr_part_ids *a = &l->attr->part_ids;
    const int64_t n = operand_elements(&l->in[0]), first = part_index(part_number_read(a->of), launch_place(l)) * a->n;
    const int32_t *ids = l->in[0].data;
    int32_t *to = l->out[0].data;
    for (int64_t i = 0; i < n; i++) {
        const int64_t id = ids[i] - first;
        to[i] = ids[i] == IGNORED ? IGNORED : id < 0 || id >= a->n ? -1 : (int32_t)id;
    }
}

CPU_KERNEL(PART_IDS, part_ids);
REF_KERNEL_AS(PART_IDS, part_ids);

/* --- XENT_PART ------------------------------------------------------------------------------- */

/* Returns the number of a part, and its columns without padding. */
static int64_t part_of(const struct launch *l)
{
    return part_index(part_number_read(l->attr->xent_part.of), launch_place(l));
}
static int64_t columns_of(const struct launch *l, int64_t V)
{
    return max_i64(0, min_i64(V, l->attr->xent_part.vocabulary - part_of(l) * V));
}

static bool xent_part_match(const struct query *q)
{
    return tensor_is_fast(q->in[0]) && tensor_is(q->in[1], DT_I32) && tensor_is(q->out[0], DT_F32);
}

/* Returns log(sum(exp)) of n columns from element `at` on; -inf without any. */
static double log_sum_exp(const struct operand *x, int64_t at, int64_t n)
{
    float max = -INFINITY, scratch[TILE];
    double sum = 0;
    for (int64_t v = 0; v < n; v += TILE) {
        const int m = row_tile(n - v);
        const float *tile = row_view(x, at + v, m, scratch);
        float top = max, part = 0;
#pragma omp simd reduction(max : top)
        for (int i = 0; i < m; i++) top = tile[i] > top ? tile[i] : top;
        if (top > max) sum *= exp((double)max - (double)top);
        max = top;
        const float shift = max == -INFINITY ? 0.0f : max;
#pragma omp simd reduction(+ : part)
        for (int i = 0; i < m; i++) part += exp_fast(tile[i] - shift);
        sum += part;
    }
    return (double)max + log(sum);
}

static void xent_part_run(const struct launch *l)
{
    const struct operand *x = &l->in[0];
    const int64_t rows = operand_rows(x), V = operand_last(x), n = columns_of(l, V), slots = operand_last(&l->out[0]),
                  part = part_of(l);
    const int32_t *labels = l->in[1].data;
    float *stats = l->out[0].data;
#pragma omp parallel for num_threads(l->threads) schedule(static) if (rows * V > 4096)
    for (int64_t r = 0; r < rows; r++) {
        float scratch[TILE], *to = stats + r * slots;
        memset(to, 0, (size_t)slots * sizeof *to);
        to[2 * part] = (float)log_sum_exp(x, r * V, n);
        if (labels[r] >= 0) to[2 * part + 1] = *row_view(x, r * V + labels[r], 1, scratch);
    }
}

static void ref_xent_part(const struct launch *l)
{
    const struct operand *x = &l->in[0];
    const int64_t rows = operand_rows(x), V = operand_last(x), n = columns_of(l, V), slots = operand_last(&l->out[0]);
    for (int64_t r = 0; r < rows; r++) {
        double max = -INFINITY, sum = 0;
        const int64_t label = (int64_t)ref_get(&l->in[1], r), at = r * slots + 2 * part_of(l);
        for (int64_t v = 0; v < n; v++) max = fmax(max, ref_get(x, r * V + v));
        for (int64_t v = 0; v < n; v++) sum += exp(ref_get(x, r * V + v) - max);
        for (int64_t k = 0; k < slots; k++) ref_put(&l->out[0], r * slots + k, 0);
        ref_put(&l->out[0], at, max + log(sum));
        if (label >= 0) ref_put(&l->out[0], at + 1, ref_get(x, r * V + label));
    }
}

static bool xent_part_bwd_match(const struct query *q)
{
    return tensor_is(q->in[0], DT_F32) && tensor_is_fast(q->in[1]) && tensor_is(q->in[2], DT_I32) &&
           tensor_is(q->in[3], DT_F32) && tensor_is_fast(q->out[0]);
}

/* Writes one row: the softmax over the part times the gradient of its log-sum-exp, and that of the
 * label's logit. */
static void part_row_bwd(const struct operand *out, const struct operand *x, int64_t at, int64_t V, int64_t n,
                         int32_t label, const float *stat, const float *d)
{
    float scratch[TILE];
    for (int64_t v = 0; v < V; v += TILE) {
        const int m = row_tile(V - v), live = (int)max_i64(0, min_i64(m, n - v));
        float *to = row_place(out, at + v, scratch);
        const float *from = row_view(x, at + v, m, scratch);
#pragma omp simd
        for (int i = 0; i < live; i++) to[i] = exp_fast(from[i] - stat[0]) * d[0];
        for (int i = live; i < m; i++) to[i] = 0;
        if (label >= v && label < v + m) to[label - v] += d[1];
        row_store(out, at + v, m, to);
    }
}

static void xent_part_bwd_run(const struct launch *l)
{
    const struct operand *x = &l->in[1];
    const int64_t rows = operand_rows(x), V = operand_last(x), n = columns_of(l, V), slots = operand_last(&l->in[0]),
                  part = part_of(l);
    const int32_t *labels = l->in[2].data;
    const float *d = l->in[0].data, *stats = l->in[3].data;
#pragma omp parallel for num_threads(l->threads) schedule(static) if (rows * V > 4096)
    for (int64_t r = 0; r < rows; r++)
        part_row_bwd(&l->out[0], x, r * V, V, n, labels[r], stats + r * slots + 2 * part, d + r * slots + 2 * part);
}

static void ref_xent_part_bwd(const struct launch *l)
{
    const struct operand *x = &l->in[1];
    const int64_t rows = operand_rows(x), V = operand_last(x), n = columns_of(l, V), slots = operand_last(&l->in[0]);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t v = 0; v < V; v++) {
            const int64_t at = r * slots + 2 * part_of(l);
            const double p = v < n ? exp(ref_get(x, r * V + v) - ref_get(&l->in[3], at)) : 0;
            ref_put(&l->out[0], r * V + v,
                    p * ref_get(&l->in[0], at) +
                        ((double)v == ref_get(&l->in[2], r) ? ref_get(&l->in[0], at + 1) : 0));
        }
}

CPU_KERNEL(XENT_PART, xent_part);
CPU_KERNEL(XENT_PART_BWD, xent_part_bwd);
REF_KERNEL(XENT_PART, xent_part);
REF_KERNEL(XENT_PART_BWD, xent_part_bwd);

/* --- XENT_JOIN ------------------------------------------------------------------------------- */

static bool xent_join_match(const struct query *q)
{
    return tensor_is(q->in[0], DT_F32) && tensor_is(q->in[1], DT_I32) && tensor_is(q->out[0], DT_F32);
}
static uint64_t xent_join_workspace(const struct query *q) { return (uint64_t)tensor_rows(q->in[0]) * sizeof(double); }

/* Returns the log-sum-exp over the slots of a row; *logit: of its label. */
static double join_slots(const struct operand *stats, int64_t at, int64_t slots, double *logit)
{
    double max = -INFINITY, sum = 0;
    *logit = 0;
    for (int64_t k = 0; k < slots; k += 2) max = fmax(max, ref_get(stats, at + k));
    for (int64_t k = 0; k < slots; k += 2) {
        sum += exp(ref_get(stats, at + k) - max);
        *logit += ref_get(stats, at + k + 1);
    }
    return max + log(sum);
}

static void xent_join_run(const struct launch *l)
{
    const struct operand *stats = &l->in[0];
    const int64_t rows = operand_rows(stats), slots = operand_last(stats);
    double *loss = l->work, total = 0;
#pragma omp parallel for num_threads(l->threads) schedule(static) if (rows > 256)
    for (int64_t r = 0; r < rows; r++) {
        double logit, lse = join_slots(stats, r * slots, slots, &logit);
        loss[r] = ref_get(&l->in[1], r) == IGNORED ? 0 : lse - logit;
    }
    for (int64_t r = 0; r < rows; r++) total += loss[r];
    ref_put(&l->out[0], 0, total * ref_get(&l->in[2], 0));
}

static bool xent_join_bwd_match(const struct query *q)
{
    return tensor_is(q->in[0], DT_F32) && tensor_is(q->in[1], DT_F32) && tensor_is(q->in[2], DT_I32);
}

static void xent_join_bwd_run(const struct launch *l)
{
    const struct operand *stats = &l->in[1];
    const int64_t rows = operand_rows(stats), slots = operand_last(stats);
    const double factor = ref_get(&l->in[0], 0) * ref_get(&l->in[3], 0);
#pragma omp parallel for num_threads(l->threads) schedule(static) if (rows > 256)
    for (int64_t r = 0; r < rows; r++) {
        const bool ignored = ref_get(&l->in[2], r) == IGNORED;
        double logit, lse = join_slots(stats, r * slots, slots, &logit);
        for (int64_t k = 0; k < slots; k += 2) {
            ref_put(&l->out[0], r * slots + k, ignored ? 0 : factor * exp(ref_get(stats, r * slots + k) - lse));
            ref_put(&l->out[0], r * slots + k + 1, ignored ? 0 : -factor);
        }
    }
}

CPU_KERNEL_WORK(XENT_JOIN, xent_join);
CPU_KERNEL(XENT_JOIN_BWD, xent_join_bwd);
REF_KERNEL_AS_WORK(XENT_JOIN, xent_join);
REF_KERNEL_AS(XENT_JOIN_BWD, xent_join_bwd);
