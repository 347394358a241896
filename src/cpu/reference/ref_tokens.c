/*
 * ref_tokens.c: reference kernels of embeddings, labels and the cross-entropy (see ref.c for the
 * reference's guarantees). Unlike the fast kernels they check that every id and label is in range.
 */
#include <math.h>

#include "cpu/reference/ref.h"

/* Returns id i, which must be below n. */
static int64_t ref_id(const struct operand *ids, int64_t i, int64_t n)
{
    int64_t id = (int64_t)ref_get(ids, i);
    CHECK(id >= 0 && id < n, "id %lld of a table of %lld rows", (long long)id, (long long)n);
    return id;
}

static void ref_embedding(const struct launch *l)
{
    const struct operand *ids = &l->in[0], *table = &l->in[1];
    const int64_t rows = operand_elements(ids), V = table->dim[0], C = table->dim[1];
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < C; c++) {
            const bool none = ref_get(ids, r) < 0;
            ref_put(&l->out[0], r * C + c, none ? 0 : ref_get(table, ref_id(ids, r, V) * C + c));
        }
}

/* Computes every element of the table as a sum over all rows with its id: no scratch, and the sum
 * is a double from its first term to its last. */
static void ref_embedding_dw(const struct launch *l)
{
    const struct operand *ids = &l->in[0], *dy = &l->in[1], *dw = &l->out[0];
    const int64_t rows = operand_elements(ids), V = dw->dim[0], C = dw->dim[1];
    for (int64_t v = 0; v < V; v++)
        for (int64_t c = 0; c < C; c++) {
            double sum = ref_get_acc(l, 2, v * C + c);
            for (int64_t r = 0; r < rows; r++)
                if (ref_get(ids, r) >= 0 && ref_id(ids, r, V) == v && v != launch_padding(l))
                    sum += ref_get(dy, r * C + c);
            ref_put(dw, v * C + c, sum);
        }
}

static void ref_shift_labels(const struct launch *l)
{
    const int64_t B = operand_rows(&l->in[0]), T = operand_last(&l->in[0]);
    for (int64_t b = 0; b < B; b++)
        for (int64_t t = 0; t < T; t++)
            ref_put(&l->out[0], b * T + t, t + 1 < T ? ref_get(&l->in[0], b * T + t + 1) : REF_IGNORED);
}

/* Moves the labels to the front, with their rows: the position of a row is the number of labels
 * before it. */
static void ref_labelled_first(const struct launch *l)
{
    const struct operand *in = &l->in[0];
    const int64_t rows = operand_elements(in);
    for (int64_t r = 0; r < rows; r++) {
        ref_put(&l->out[0], r, REF_IGNORED);
        ref_put(&l->out[1], r, -1);
    }
    for (int64_t r = 0; r < rows; r++) {
        int64_t before = 0;
        for (int64_t k = 0; k < r; k++) before += ref_get(in, k) != REF_IGNORED;
        const bool labelled = ref_get(in, r) != REF_IGNORED;
        ref_put(&l->out[2], r, labelled ? (double)before : -1);
        if (!labelled) continue;
        ref_put(&l->out[0], before, ref_get(in, r));
        ref_put(&l->out[1], before, (double)r);
    }
}

/* Lists the blocks that an index points into, in order, by testing a block at a time. */
static void ref_used_first(const struct launch *l)
{
    const int64_t B = operand_rows(&l->in[0]), T = operand_last(&l->in[0]), blocks = l->attr->used_first.blocks;
    const struct attr_used_first *a = &l->attr->used_first;
    const struct feature_blocks of = {a->rows, a->first, a->first_rows};
    int64_t n = 0;
    for (int64_t k = 0; k < B * blocks; k++) {
        const int64_t block = k % blocks, firsts = block < of.first ? block : of.first;
        const int64_t begins = firsts * of.first_rows + (block - firsts) * of.rows,
                      rows = block < of.first ? of.first_rows : of.rows;
        bool used = false;
        for (int64_t t = 0; t < T; t++) {
            const double at = ref_get(&l->in[0], k / blocks * T + t);
            used |= at >= (double)begins && at < (double)(begins + rows);
        }
        if (used) ref_put(&l->out[0], n++, (double)k);
    }
    for (; n < l->attr->used_first.room; n++) ref_put(&l->out[0], n, -1);
}

/* --- cross entropy -------------------------------------------------------------------- */

static double ref_log_sum_exp(const struct operand *x, int64_t at, int64_t V)
{
    double max = -INFINITY, sum = 0;
    for (int64_t v = 0; v < V; v++) max = fmax(max, ref_get(x, at + v));
    for (int64_t v = 0; v < V; v++) sum += exp(ref_get(x, at + v) - max);
    return max + log(sum);
}

static void ref_xent(const struct launch *l)
{
    const struct operand *logits = &l->in[0], *labels = &l->in[1];
    const int64_t rows = operand_rows(logits), V = operand_last(logits);
    double loss = 0;
    for (int64_t r = 0; r < rows; r++) {
        double lse = ref_log_sum_exp(logits, r * V, V);
        ref_put(&l->out[1], r, lse);
        if (ref_get(labels, r) != REF_IGNORED) loss += lse - ref_get(logits, r * V + ref_id(labels, r, V));
    }
    ref_put(&l->out[0], 0, loss * ref_get(&l->in[2], 0));
}

static void ref_xent_bwd(const struct launch *l)
{
    const struct operand *logits = &l->in[0], *labels = &l->in[1], *lse = &l->in[3];
    const int64_t rows = operand_rows(logits), V = operand_last(logits);
    const double factor = ref_get(&l->in[2], 0) * ref_get(&l->in[4], 0);
    for (int64_t r = 0; r < rows; r++) {
        bool ignored = ref_get(labels, r) == REF_IGNORED;
        int64_t label = ignored ? -1 : ref_id(labels, r, V);
        for (int64_t v = 0; v < V; v++) {
            double p = exp(ref_get(logits, r * V + v) - ref_get(lse, r));
            ref_put(&l->out[0], r * V + v, ignored ? 0 : (p - (v == label)) * factor);
        }
    }
}

REF_KERNEL(EMBEDDING, embedding);
REF_KERNEL(EMBEDDING_DW, embedding_dw);
REF_KERNEL(SHIFT_LABELS, shift_labels);
REF_KERNEL(LABELLED_FIRST, labelled_first);
REF_KERNEL(USED_FIRST, used_first);
REF_KERNEL(XENT, xent);
REF_KERNEL(XENT_BWD, xent_bwd);
