/*
 * experts.c: the rows of a mixture of experts, in the order of their experts and back.
 *
 *     index       [[0,2],[0,1],[1,2]]       each row's k experts
 *     position    [[0,4],[1,2],[3,5]]       the place of each choice, by expert, then by row
 *     offsets     [0,2,4,6]                 where the places of each expert begin
 *
 * Their number is constant, R k, whatever the router chooses: so are all bytes.
 */
#include "cpu/cpu.h"
#include "cpu/reference/ref.h"

enum { SERIAL = 8192 }; /* elements up to which one thread is faster */

/* --- EXPERT_ROWS ------------------------------------------------------------------------------ */

static int64_t expert_of(int64_t index, int64_t experts) { return index < 0 || index >= experts ? 0 : index; }

static void ref_expert_rows(const struct launch *l)
{
    const int64_t n = operand_elements(&l->in[0]), experts = l->attr->expert_rows.experts;
    int64_t place = 0;
    for (int64_t e = 0; e <= experts; e++) {
        ref_put(&l->out[1], e, (double)place);
        for (int64_t i = 0; i < n; i++)
            if (expert_of((int64_t)ref_get(&l->in[0], i), experts) == e) ref_put(&l->out[0], i, (double)place++);
    }
}

static bool expert_rows_match(const struct query *q)
{
    return tensor_is(q->in[0], DT_I32) && tensor_is(q->out[0], DT_I32) && tensor_is(q->out[1], DT_I32);
}

/* Counts the rows of each expert behind its place in offsets, sums the counts, and hands out the
 * places in order: offsets[e + 1] then is the next place of expert e, and at the end that of the
 * next expert. */
static void expert_rows_run(const struct launch *l)
{
    const int64_t n = operand_elements(&l->in[0]), experts = l->attr->expert_rows.experts;
    const int32_t *index = l->in[0].data;
    int32_t *position = l->out[0].data, *offsets = l->out[1].data, place = 0;
    for (int64_t e = 0; e <= experts; e++) offsets[e] = 0;
    for (int64_t i = 0; i < n; i++) offsets[expert_of(index[i], experts) + 1]++;
    for (int64_t e = 0; e < experts; e++) {
        const int32_t count = offsets[e + 1];
        offsets[e + 1] = place;
        place += count;
    }
    for (int64_t i = 0; i < n; i++) position[i] = offsets[expert_of(index[i], experts) + 1]++;
}

REF_KERNEL(EXPERT_ROWS, expert_rows);
CPU_KERNEL(EXPERT_ROWS, expert_rows);

/* --- DISPATCH --------------------------------------------------------------------------------- */

static void ref_dispatch(const struct launch *l)
{
    const int64_t C = operand_last(&l->in[0]), k = operand_last(&l->in[1]);
    for (int64_t i = 0; i < operand_elements(&l->in[1]); i++)
        for (int64_t c = 0; c < C; c++)
            ref_put(&l->out[0], (int64_t)ref_get(&l->in[1], i) * C + c, ref_get(&l->in[0], i / k * C + c));
}

static bool dispatch_match(const struct query *q)
{
    return tensor_is_fast(q->in[0]) && tensor_is(q->in[1], DT_I32) && tensor_is_fast(q->out[0]);
}

static void dispatch_run(const struct launch *l)
{
    const int64_t R = operand_rows(&l->in[0]), C = operand_last(&l->in[0]), k = operand_last(&l->in[1]);
    const size_t bytes = (size_t)C * dtype_size(l->in[0].dtype);
    const int32_t *position = l->in[1].data;
#pragma omp parallel for num_threads(l->threads) schedule(static) if (R * k * C > SERIAL)
    for (int64_t i = 0; i < R * k; i++)
        memcpy((char *)l->out[0].data + (size_t)position[i] * bytes, (char *)l->in[0].data + (size_t)(i / k) * bytes,
               bytes);
}

REF_KERNEL(DISPATCH, dispatch);
CPU_KERNEL(DISPATCH, dispatch);

/* --- COMBINE ---------------------------------------------------------------------------------- */

static void ref_combine(const struct launch *l)
{
    const int64_t C = operand_last(&l->in[0]), R = l->in[1].dim[0], k = l->in[1].dim[1];
    for (int64_t i = 0; i < R * C; i++) {
        double sum = 0;
        for (int64_t j = i / C * k; j < (i / C + 1) * k; j++)
            sum += (launch_has(l, 2) ? ref_get(&l->in[2], j) : 1) *
                   ref_get(&l->in[0], (int64_t)ref_get(&l->in[1], j) * C + i % C);
        ref_put(&l->out[0], i, sum);
    }
}

static bool combine_match(const struct query *q)
{
    const struct tensor *weight = query_in(q, 2);
    return tensor_is_fast(q->in[0]) && tensor_is(q->in[1], DT_I32) && (!weight || tensor_is_fast(weight)) &&
           tensor_is_fast(q->out[0]);
}

/* Returns the weight of a choice; 1 without weights. */
static float weight_of(const struct launch *l, int input, int64_t choice)
{
    float scratch[TILE];
    return launch_has(l, input) ? *row_view(&l->in[input], choice, 1, scratch) : 1;
}

/* Sums n elements of a row's choices, from column c on. */
static void combine_tile(const struct launch *l, int64_t r, int64_t c, int n)
{
    const int64_t C = operand_last(&l->in[0]), k = l->in[1].dim[1];
    const int32_t *position = l->in[1].data;
    float sum[TILE], scratch[TILE];
    memset(sum, 0, sizeof sum);
    for (int64_t j = r * k; j < (r + 1) * k; j++) {
        const float w = weight_of(l, 2, j), *y = row_view(&l->in[0], position[j] * C + c, n, scratch);
#pragma omp simd
        for (int i = 0; i < n; i++) sum[i] += w * y[i];
    }
    float *x = row_place(&l->out[0], r * C + c, scratch);
    memcpy(x, sum, (size_t)n * sizeof *sum);
    row_store(&l->out[0], r * C + c, n, x);
}

static void combine_run(const struct launch *l)
{
    const int64_t C = operand_last(&l->in[0]), R = l->in[1].dim[0], k = l->in[1].dim[1];
#pragma omp parallel for num_threads(l->threads) schedule(static) if (R * k * C > SERIAL)
    for (int64_t r = 0; r < R; r++)
        for (int64_t c = 0; c < C; c += TILE) combine_tile(l, r, c, row_tile(C - c));
}

REF_KERNEL(COMBINE, combine);
CPU_KERNEL(COMBINE, combine);

/* --- COMBINE_BWD ------------------------------------------------------------------------------ */

static void ref_combine_bwd(const struct launch *l)
{
    const int64_t C = operand_last(&l->in[0]), k = operand_last(&l->in[2]);
    for (int64_t i = 0; i < operand_elements(&l->in[2]); i++) {
        const int64_t row = i / k * C, place = (int64_t)ref_get(&l->in[2], i) * C;
        const double w = ref_get(&l->in[3], i), dot = ref_dot(&l->in[0], row, &l->in[1], place, C);
        for (int64_t c = 0; c < C; c++) ref_put(&l->out[0], place + c, w * ref_get(&l->in[0], row + c));
        ref_put(&l->out[1], i, dot);
    }
}

static bool combine_bwd_match(const struct query *q)
{
    return tensor_is_fast(q->in[0]) && tensor_is_fast(q->in[1]) && tensor_is(q->in[2], DT_I32) &&
           tensor_is_fast(q->in[3]) && tensor_is_fast(q->out[0]) && tensor_is_fast(q->out[1]);
}

/* Computes the row of one choice: its dot product first, because dy may have y's bytes. */
static void combine_bwd_row(const struct launch *l, int64_t choice, int64_t k)
{
    const int64_t C = operand_last(&l->in[0]), row = choice / k * C;
    const int64_t place = ((const int32_t *)l->in[2].data)[choice] * C;
    float xs[TILE], ys[TILE];
    const float w = weight_of(l, 3, choice);
    double dot = 0;
    for (int64_t c = 0; c < C; c += TILE) {
        const int n = row_tile(C - c);
        const float *dx = row_view(&l->in[0], row + c, n, xs), *y = row_view(&l->in[1], place + c, n, ys);
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int i = 0; i < n; i++) sum += dx[i] * y[i];
        dot += sum;
        float *dy = row_place(&l->out[0], place + c, ys);
#pragma omp simd
        for (int i = 0; i < n; i++) dy[i] = w * dx[i];
        row_store(&l->out[0], place + c, n, dy);
    }
    dtype_store(l->out[1].data, l->out[1].dtype, choice, dot);
}

static void combine_bwd_run(const struct launch *l)
{
    const int64_t C = operand_last(&l->in[0]), choices = operand_elements(&l->in[2]), k = operand_last(&l->in[2]);
#pragma omp parallel for num_threads(l->threads) schedule(static) if (choices * C > SERIAL)
    for (int64_t i = 0; i < choices; i++) combine_bwd_row(l, i, k);
}

REF_KERNEL(COMBINE_BWD, combine_bwd);
CPU_KERNEL(COMBINE_BWD, combine_bwd);
