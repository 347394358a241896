/*
 * fold.c: FOLD and ALL_REDUCE: sums over shares and over ranks, and SQUARES and TOTAL: the norm of what they leave.
 *
 * One tree adds leaves 0..n-1, whoever holds them:
 *
 *     for w = 1, 2, 4 .. < n:   for k = 0, 2w, 4w ..:   x[k] += x[k + w]
 *
 *     0   1   2   3   4          A rank's consecutive leaves are a subtree if their number is a power of two, so
 *      \ /     \ /   |           2 ranks of 2 shares give the bits of 4 ranks and of 4 shares. Each sum of two is
 *        \     /     |           rounded to the dtype: also in bf16 the grouping changes no bit.
 *           \        /
 *
 * FOLD meets the leaves one after the other. Before leaf i, partial[l] is the sum of 2^l leaves for every bit l of i.
 * The leaf takes the partials of i's trailing ones, which are complete with it, or after the last leaf all of them.
 *
 * ALL_REDUCE cuts x into a part for each rank. In a round every rank gets the others' pieces of its own part, adds
 * them to its own in the tree, and sends the sum to all. The workspace holds the pieces of a round; the moves are on it too.
 */
#include <string.h>

#include "cpu/cpu.h"
#include "cpu/ref.h"
#include "cpu/rows.h"
#include "run/ranks.h"

/* --- two terms ------------------------------------------------------------------------------------------------ */

/* to = a + b, n elements from 0 on of dense memory; `to` may be a or b. */
static void add(void *to, const void *a, const void *b, enum dtype t, int64_t n, int threads)
{
    if (t == DT_F64) {
        for (int64_t i = 0; i < n; i++) ((double *)to)[i] = ((const double *)a)[i] + ((const double *)b)[i];
        return;
    }
    struct operand r = {.data = to, .dtype = t}, x = {.data = (void *)(uintptr_t)a, .dtype = t}, y = {.data = (void *)(uintptr_t)b, .dtype = t};
    const int64_t each = 64 * TILE, blocks = ceil_div(n, each);
#pragma omp parallel for num_threads(threads) schedule(static) if (blocks > 1)
    for (int64_t k = 0; k < blocks; k++) row_sum(&r, &x, &y, k * each, min_i64(each, n - k * each));
}

/* --- FOLD ----------------------------------------------------------------------------------------------------- */

static bool fold_match(const struct query *q) { return tensor_is_fast(q->in[0]) && tensor_is(q->in[1], q->in[0]->dtype); }

static void fold_run(const struct launch *l)
{
    const uint32_t i = l->iteration;
    const bool last = (int)i + 1 == l->attr->fold.shares;
    const enum dtype t = l->out[0].dtype;
    const int64_t n = operand_elements(&l->out[0]);
    const size_t bytes = (size_t)n * dtype_size(t);
    char *x = l->out[0].data, *partials = l->out[1].data;
    int level = 0;
    CHECK(l->in[0].data == x && l->in[1].data == partials, "x and the partial sums are updated in place");
    for (; last ? i >> level : i >> level & 1; level++)
        if (i >> level & 1) add(x, partials + (size_t)level * bytes, x, t, n, l->threads);
    if (!last) memcpy(partials + (size_t)level * bytes, x, bytes);
}

/* The same in double, with any strides of x. */
static void ref_fold(const struct launch *l)
{
    const uint32_t i = l->iteration;
    const bool last = (int)i + 1 == l->attr->fold.shares;
    const int64_t n = operand_elements(&l->out[0]);
    int level = 0;
    for (; last ? i >> level : i >> level & 1; level++)
        for (int64_t k = 0; k < n && i >> level & 1; k++) ref_put(&l->out[0], k, ref_get(&l->in[1], level * n + k) + ref_get(&l->out[0], k));
    for (int64_t k = 0; k < n && !last; k++) ref_put(&l->out[1], level * n + k, ref_get(&l->out[0], k));
}

CPU_KERNEL(FOLD, fold);
REF_KERNEL(FOLD, fold);

/* --- ALL_REDUCE ----------------------------------------------------------------------------------------------- */

/* Bytes of the pieces of a round, at most; a part begins at a multiple of PART elements. */
enum { ROUND_BYTES = 8 << 20, PART = 64 };

/* Elements of a part: the last ones may be shorter or empty. */
static int64_t part_of(int64_t n, int ranks) { return ceil_div(ceil_div(n, ranks), PART) * PART; }
/* Elements of a piece: a part, or a part of it. */
static int64_t piece_of(int64_t n, int ranks, size_t size)
{
    const int64_t most = ROUND_BYTES / ranks / (int64_t)size / PART * PART;
    return min_i64(part_of(n, ranks), max_i64(most, PART));
}

static uint64_t moves_bytes(int ranks) { return align_up(2 * (uint64_t)ranks * sizeof(struct move), 64); }

static uint64_t all_reduce_bytes(int64_t n, int ranks, size_t size)
{
    return ranks < 2 ? 0 : moves_bytes(ranks) + (uint64_t)ranks * (uint64_t)piece_of(n, ranks, size) * size;
}

struct reduction {
    struct ranks *ranks;
    int n;               /* of them */
    enum dtype dtype;
    size_t size;         /* of an element */
    char *x, *pieces;
    struct move *moves;
    int64_t elements, part, piece;
    int64_t at;          /* of the round: the first element of a piece in its part */
    int threads;
};

/* The piece of a rank's part in this round. */
static char *piece_at(const struct reduction *r, int rank, int64_t *n)
{
    const int64_t from = rank * r->part + r->at, end = min_i64(r->elements, (rank + 1) * r->part);
    *n = max_i64(0, min_i64(r->piece, end - from));
    return r->x + (*n ? (size_t)from * r->size : 0);
}

static char *leaf_of(const struct reduction *r, int rank) { return r->pieces + (size_t)(rank * r->piece) * r->size; }

static void add_move(const struct reduction *r, int *n, int peer, void *at, int64_t elements, bool send)
{
    if (elements) r->moves[(*n)++] = (struct move){peer, at, (uint64_t)elements * r->size, send};
}

static void exchange(const struct reduction *r, int n)
{
    struct error e = {0};
    r->ranks->where = "ALL_REDUCE";
    if (n && r->ranks->exchange(r->ranks, r->moves, n, &e)) r->ranks->abort(r->ranks, e.code, e.text);
    r->ranks->where = NULL;
}

/* Everyone's piece of each part goes to its rank, which adds them in the tree. */
static void reduce_round(const struct reduction *r)
{
    const int self = r->ranks->rank;
    int64_t mine, theirs;
    char *own = piece_at(r, self, &mine);
    int n = 0;
    for (int peer = 0; peer < r->n; peer++) {
        if (peer == self) continue;
        char *at = piece_at(r, peer, &theirs);
        add_move(r, &n, peer, at, theirs, true);
        add_move(r, &n, peer, leaf_of(r, peer), mine, false);
    }
    exchange(r, n);
    if (!mine) return;
    memcpy(leaf_of(r, self), own, (size_t)mine * r->size);
    for (int w = 1; w < r->n; w *= 2)
        for (int k = 0; k + w < r->n; k += 2 * w) add(leaf_of(r, k), leaf_of(r, k), leaf_of(r, k + w), r->dtype, mine, r->threads);
    memcpy(own, leaf_of(r, 0), (size_t)mine * r->size);
}

/* Every rank sends its sums to all others. */
static void gather_round(const struct reduction *r)
{
    const int self = r->ranks->rank;
    int64_t mine, theirs;
    char *own = piece_at(r, self, &mine);
    int n = 0;
    for (int peer = 0; peer < r->n; peer++) {
        if (peer == self) continue;
        char *at = piece_at(r, peer, &theirs);
        add_move(r, &n, peer, own, mine, true);
        add_move(r, &n, peer, at, theirs, false);
    }
    exchange(r, n);
}

static bool all_reduce_match(const struct query *q) { return tensor_is_fast(q->in[0]); }
static uint64_t all_reduce_workspace(const struct query *q) { return all_reduce_bytes(tensor_elements(q->in[0]), q->attr->group.ranks, dtype_size(q->in[0]->dtype)); }

static void all_reduce_run(const struct launch *l)
{
    const struct operand *x = &l->out[0];
    const int n = l->attr->group.ranks;
    const size_t size = dtype_size(x->dtype);
    if (n < 2) return;
    CHECK(l->in[0].data == x->data, "x is updated in place");
    CHECK(l->ranks && l->ranks->n == n, "the plan is for %d ranks", n);
    struct reduction r = {l->ranks, n, x->dtype, size, x->data, (char *)l->work + moves_bytes(n), l->work, operand_elements(x), .threads = l->threads};
    r.part = part_of(r.elements, n);
    r.piece = piece_of(r.elements, n, size);
    for (r.at = 0; r.at < r.part; r.at += r.piece) {
        reduce_round(&r);
        gather_round(&r);
    }
}

static uint64_t ref_all_reduce_workspace(const struct query *q) { return all_reduce_workspace(q); }
/* The order of the sum is the result: there is no other one to compare with. */
static void ref_all_reduce(const struct launch *l) { all_reduce_run(l); }

CPU_KERNEL_WORK(ALL_REDUCE, all_reduce);
REF_KERNEL_WORK(ALL_REDUCE, all_reduce);

/* --- the norm ------------------------------------------------------------------------------------------------- */

static bool squares_match(const struct query *q) { return tensor_is_fast(q->in[0]) && tensor_is(q->in[1], DT_F64); }

/* Eight sums over the elements with the same index modulo 8, then their tree: the order depends on the cell alone. */
static double squares_of(const struct operand *x, int64_t from, int64_t to)
{
    double sum[8] = {0};
    float scratch[TILE];
    for (int64_t at = from; at < to; at += TILE) {
        const int n = row_tile(to - at);
        const float *v = row_view(x, at, n, scratch);
        int i = 0;
        for (; i + 8 <= n; i += 8)
            for (int k = 0; k < 8; k++) sum[k] += (double)v[i + k] * (double)v[i + k];
        for (; i < n; i++) sum[i % 8] += (double)v[i] * (double)v[i];
    }
    return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
}

static void squares_run(const struct launch *l)
{
    const int64_t n = operand_elements(&l->in[0]), cell = l->attr->squares.cell, cells = ceil_div(n, cell);
    double *to = (double *)l->out[0].data + l->attr->squares.at;
    CHECK(l->in[1].data == l->out[0].data, "the cells are updated in place");
#pragma omp parallel for num_threads(l->threads) schedule(static) if (n > 32768)
    for (int64_t c = 0; c < cells; c++) to[c] = squares_of(&l->in[0], c * cell, min_i64(n, (c + 1) * cell));
}

static void ref_squares(const struct launch *l)
{
    const int64_t n = operand_elements(&l->in[0]), cell = l->attr->squares.cell;
    for (int64_t c = 0; c < ceil_div(n, cell); c++) {
        double sum = 0;
        for (int64_t i = c * cell; i < min_i64(n, (c + 1) * cell); i++) sum += ref_get(&l->in[0], i) * ref_get(&l->in[0], i);
        ref_put(&l->out[0], l->attr->squares.at + c, sum);
    }
}

CPU_KERNEL(SQUARES, squares);
REF_KERNEL(SQUARES, squares);

enum { TOTAL_BLOCK = 1024 };

static bool total_match(const struct query *q) { return tensor_is(q->in[0], DT_F64); }
static uint64_t total_workspace(const struct query *q) { return (uint64_t)ceil_div(tensor_elements(q->in[0]), TOTAL_BLOCK) * sizeof(double); }

static void total_run(const struct launch *l)
{
    const int64_t n = operand_elements(&l->in[0]), blocks = ceil_div(n, TOTAL_BLOCK);
    const double *x = l->in[0].data;
    double *sum = l->work;
    for (int64_t b = 0; b < blocks; b++) {
        sum[b] = 0;
        for (int64_t i = b * TOTAL_BLOCK; i < min_i64(n, (b + 1) * TOTAL_BLOCK); i++) sum[b] += x[i];
    }
    for (int64_t w = 1; w < blocks; w *= 2)
        for (int64_t k = 0; k + w < blocks; k += 2 * w) sum[k] += sum[k + w];
    *(double *)l->out[0].data = blocks ? sum[0] : 0;
}

static uint64_t ref_total_workspace(const struct query *q) { return total_workspace(q); }
/* f64 is the reference's own precision: one order of the sum. */
static void ref_total(const struct launch *l) { total_run(l); }

CPU_KERNEL_WORK(TOTAL, total);
REF_KERNEL_WORK(TOTAL, total);
