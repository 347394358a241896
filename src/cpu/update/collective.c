/*
 * collective.c: FOLD, sums over shares; SQUARES and TOTAL, the norm of what shares and ranks leave;
 * and the ops in which all ranks meet: ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER. A transport moves
 * bytes (run/ranks.h); sums are made here.
 *
 * One tree adds leaves 0..n-1, whoever holds them:
 *
 *     for w = 1, 2, 4 .. < n:   for k = 0, 2w, 4w ..:   x[k] += x[k + w]
 *
 *     0   1   2   3   4
 *      \ /     \ /   |
 *        \     /     |
 *           \        /
 *
 * A rank's consecutive leaves are a subtree if their number is a power of two, so 2 ranks of 2
 * shares give the bits of 4 ranks and of 4 shares. Each sum of two is rounded to the dtype: also in
 * bf16 the grouping changes no bit.
 */
#include "cpu/cpu.h"
#include "cpu/reference/ref.h"
#include "run/ranks.h"

/* Computes to = a + b, n elements of dense memory; `to` may be a or b. */
static void fold_add(void *to, const void *a, const void *b, enum dtype t, int64_t n, int threads)
{
    if (t == DT_F64) {
        for (int64_t i = 0; i < n; i++) ((double *)to)[i] = ((const double *)a)[i] + ((const double *)b)[i];
        return;
    }
    struct operand r = {.data = to, .dtype = t}, x = {.data = (void *)(uintptr_t)a, .dtype = t},
                   y = {.data = (void *)(uintptr_t)b, .dtype = t};
    const int64_t each = 64 * TILE, blocks = ceil_div(n, each);
#pragma omp parallel for num_threads(threads) schedule(static) if (blocks > 1)
    for (int64_t k = 0; k < blocks; k++) row_add(&r, &x, &y, k * each, min_i64(each, n - k * each));
}

/* --- FOLD: sums over shares -------------------------------------------------------------------
 *
 * FOLD meets the leaves one after the other. Before leaf i, partial[l] is the sum of 2^l leaves for
 * every bit l of i. The leaf takes the partials of i's trailing ones, which are complete with it,
 * or after the last leaf all of them. */

static bool fold_match(const struct query *q)
{
    return tensor_is_fast(q->in[0]) && tensor_is(q->in[1], q->in[0]->dtype);
}

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
        if (i >> level & 1) fold_add(x, partials + (size_t)level * bytes, x, t, n, l->threads);
    if (!last) memcpy(partials + (size_t)level * bytes, x, bytes);
}

/* Does the same in double, with any strides of x. */
static void ref_fold(const struct launch *l)
{
    const uint32_t i = l->iteration;
    const bool last = (int)i + 1 == l->attr->fold.shares;
    const int64_t n = operand_elements(&l->out[0]);
    int level = 0;
    for (; last ? i >> level : i >> level & 1; level++)
        for (int64_t k = 0; k < n && i >> level & 1; k++)
            ref_put(&l->out[0], k, ref_get(&l->in[1], level * n + k) + ref_get(&l->out[0], k));
    for (int64_t k = 0; k < n && !last; k++) ref_put(&l->out[1], level * n + k, ref_get(&l->out[0], k));
}

CPU_KERNEL(FOLD, fold);
REF_KERNEL(FOLD, fold);

/* --- SQUARES and TOTAL: the norm of what shares and ranks leave ------------------------------- */

static bool squares_match(const struct query *q) { return tensor_is_fast(q->in[0]) && tensor_is(q->in[1], DT_F64); }

/* Returns the place of x in the whole gradient; and its elements without the padding of a shard. */
static int64_t squares_first(const struct launch *l) { return launch_first(l, l->attr->squares.part); }
static int64_t squares_elements(const struct launch *l)
{
    const int64_t n = operand_elements(&l->in[0]);
    return l->attr->squares.part ? max_i64(0, min_i64(n, l->attr->squares.n - squares_first(l))) : n;
}

/* Returns the first cell of the part of a weight that x belongs to. */
static int64_t squares_at(const struct launch *l)
{
    const struct attr_squares *a = &l->attr->squares;
    const int64_t n = a->part ? a->n : operand_elements(&l->in[0]);
    return a->at + part_index(part_number_read(a->of), launch_place(l)) * ceil_div(n, a->cell);
}

/* Makes eight sums over the elements with the same index modulo 8, then their tree: the order
 * depends only on the cell. */
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
    const int64_t cell = l->attr->squares.cell, first = squares_first(l), n = squares_elements(l),
                  cells = ceil_div(n, cell);
    double *to = (double *)l->out[0].data + squares_at(l) + first / cell;
    CHECK(l->in[1].data == l->out[0].data, "the cells are updated in place");
    if (!launch_is_first(l, l->attr->squares.of)) return;
#pragma omp parallel for num_threads(l->threads) schedule(static) if (n > 32768)
    for (int64_t c = 0; c < cells; c++) to[c] = squares_of(&l->in[0], c * cell, min_i64(n, (c + 1) * cell));
}

static void ref_squares(const struct launch *l)
{
    const int64_t cell = l->attr->squares.cell, first = squares_first(l), n = squares_elements(l);
    for (int64_t c = 0; c < ceil_div(n, cell) && launch_is_first(l, l->attr->squares.of); c++) {
        double sum = 0;
        for (int64_t i = c * cell; i < min_i64(n, (c + 1) * cell); i++)
            sum += ref_get(&l->in[0], i) * ref_get(&l->in[0], i);
        ref_put(&l->out[0], squares_at(l) + first / cell + c, sum);
    }
}

CPU_KERNEL(SQUARES, squares);
REF_KERNEL(SQUARES, squares);

enum { TOTAL_BLOCK = 1024 };

static bool total_match(const struct query *q) { return tensor_is(q->in[0], DT_F64); }
static uint64_t total_workspace(const struct query *q)
{
    return (uint64_t)ceil_div(tensor_elements(q->in[0]), TOTAL_BLOCK) * sizeof(double);
}

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

CPU_KERNEL_WORK(TOTAL, total);
/* f64 is the reference's own precision: one order of the sum. */
REF_KERNEL_AS_WORK(TOTAL, total);

/* --- collectives ------------------------------------------------------------------------------
 *
 *     REDUCE_SCATTER    x    [ part 0 | part 1 | part 2 ]     rank r gets everyone's part r and adds them
 *                       y             [ sum ]
 *     ALL_GATHER        y    [ of 0   | of 1   | of 2   ]     rank r sends its part to all
 *     ALL_REDUCE        both, in place
 *
 * A sum goes in rounds of a piece of each part. The workspace holds the pieces of a round and the
 * list of moves.
 *
 * Ranks on several hosts, of a power of two each, add inside hosts and then across them, so that
 * fewer bytes go from host to host; a gather goes the other way round. Parts are numbered so that
 * those of a host's rank follow each other. With 2 hosts of 2 ranks, a0 a1 and b0 b1:
 *
 *     x                                [ a0 | b0 | a1 | b1 ]     part = number on the host x hosts + host
 *     inside: a0 gets of a0 and a1     [ a0 | b0 ]               and adds them
 *     across: a0 gets of a0 and b0     [ a0 ]                    and adds them: the tree over all ranks */

/* Bytes of the pieces of a round, at most; a part of ALL_REDUCE begins at a multiple of PART
 * elements. */
enum { ROUND_BYTES = 8 << 20, PART = 64 };

/* Returns the elements of a part of ALL_REDUCE: the last ones may be shorter or empty. */
static int64_t part_of(int64_t n, int ranks) { return ceil_div(ceil_div(n, ranks), PART) * PART; }
/* Returns the elements of a piece: a part, or a part of it. */
static int64_t piece_of(int64_t part, int ranks, size_t size)
{
    const int64_t most = ROUND_BYTES / ranks / (int64_t)size / PART * PART;
    return min_i64(part, max_i64(most, PART));
}

static uint64_t moves_bytes(int ranks)
{
    return ranks < 2 ? 0 : align_up(2 * (uint64_t)ranks * sizeof(struct move), 64);
}

static uint64_t reduce_bytes(int64_t part, int ranks, size_t size)
{
    return ranks < 2 ? 0 : moves_bytes(ranks) + (uint64_t)ranks * (uint64_t)piece_of(part, ranks, size) * size;
}

struct collective {
    const char *name;
    struct ranks *ranks;
    struct rank_group group, beyond; /* ranks that take part, of this host if there are several levels; of this place */
    int n, self;                     /* the number of those of `group`, and this one's place among them */
    int hosts, host;                 /* levels: the hosts, and this one's number; else 1 and 0 */
    enum dtype dtype;
    size_t size;         /* of an element */
    char *x, *pieces;
    struct move *moves;
    int64_t elements, part, piece;
    int64_t at;          /* of the round: the first element of a piece in its part */
    int threads;
};

static struct collective begin(const struct launch *l, const char *name, const struct operand *x, int64_t part)
{
    const int all = l->attr->group.ranks, host = l->attr->group.host, n = host ? host : all;
    struct collective c = {.name = name,
                           .ranks = l->ranks,
                           .n = n,
                           .hosts = all / n,
                           .dtype = x->dtype,
                           .size = dtype_size(x->dtype),
                           .x = x->data,
                           .moves = l->work,
                           .pieces = (char *)l->work + moves_bytes(all),
                           .elements = operand_elements(x),
                           .part = part,
                           .threads = l->threads};
    if (n > 1) {
        CHECK(launch_group_fits(l), "the plan is for %d ranks", all);
        c.group = launch_group(l, n, l->attr->group.axis == AXIS_ACROSS);
        c.self = ranks_place(&c.group);
    }
    if (host) {
        c.beyond = launch_group(l, c.hosts, true);
        c.host = ranks_place(&c.beyond);
    }
    c.piece = piece_of(part, all, c.size);
    return c;
}

/* Returns the number of a part: parts are numbered by the place of their rank on its host, then by
 * host. */
static int part_number(const struct collective *c, int place, int host) { return place * c->hosts + host; }
static int own_part(const struct collective *c) { return part_number(c, c->self, c->host); }

/* Returns the piece of a part in this round, and its elements. */
static char *piece_at(const struct collective *c, int number, int64_t *n)
{
    const int64_t from = number * c->part + c->at, end = min_i64(c->elements, (number + 1) * c->part);
    *n = max_i64(0, min_i64(c->piece, end - from));
    return c->x + (*n ? (size_t)from * c->size : 0);
}

/* Returns the room for a piece of a part. */
static char *leaf_of(const struct collective *c, int number)
{
    return c->pieces + (size_t)(number * c->piece) * c->size;
}

/* Adds a move. Parts that follow each other are one move, where a round has all of them. */
static void add_move(const struct collective *c, int *n, int peer, void *at, int64_t elements, bool send)
{
    const uint64_t bytes = (uint64_t)elements * c->size;
    struct move *last = *n ? &c->moves[*n - 1] : NULL;
    if (c->piece == c->part && last && last->peer == peer && last->send == send && (char *)last->at + last->bytes == at)
        last->bytes += bytes;
    else if (elements) c->moves[(*n)++] = (struct move){peer, at, bytes, send};
}

/* Returns the rank at a place of this host, or of those that take part; and the rank of this place
 * on another host. */
static int inside(const struct collective *c, int place) { return ranks_member(&c->group, place); }
static int beyond(const struct collective *c, int host) { return ranks_member(&c->beyond, host); }

/* Exchanges n moves; also without moves of this rank: others may have some. */
static void exchange(const struct collective *c, int n)
{
    struct error e = {0};
    c->ranks->where = c->name;
    if (c->ranks->exchange(c->ranks, c->moves, n, &e)) c->ranks->abort(c->ranks, e.code, e.text);
    c->ranks->where = NULL;
}

/* Sums n leaves into the first, in the tree; from one to the next it is `stride`
 * leaves. */
static void sum_leaves(const struct collective *c, int first, int stride, int n, int64_t elements)
{
    for (int w = 1; w < n && elements; w *= 2)
        for (int k = 0; k + w < n; k += 2 * w) {
            char *a = leaf_of(c, first + k * stride);
            fold_add(a, a, leaf_of(c, first + (k + w) * stride), c->dtype, elements, c->threads);
        }
}

/* Sends everyone's piece of each part to the rank of this host that takes it, which adds them:
 * leaves 0 to hosts - 1. */
static void reduce_inside(const struct collective *c)
{
    int64_t elements;
    int n = 0;
    for (int peer = 0; peer < c->n; peer++) {
        if (peer == c->self) continue;
        for (int h = 0; h < c->hosts; h++) {
            char *at = piece_at(c, part_number(c, peer, h), &elements);
            add_move(c, &n, inside(c, peer), at, elements, true);
        }
        for (int h = 0; h < c->hosts; h++) {
            piece_at(c, part_number(c, c->self, h), &elements);
            add_move(c, &n, inside(c, peer), leaf_of(c, part_number(c, peer, h)), elements, false);
        }
    }
    exchange(c, n);
    for (int h = 0; h < c->hosts; h++) {
        const char *own = piece_at(c, part_number(c, c->self, h), &elements);
        memcpy(leaf_of(c, part_number(c, c->self, h)), own, (size_t)elements * c->size);
        sum_leaves(c, h, c->hosts, c->n, elements);
    }
}

/* Sends the sums of the hosts to the rank whose part they are, which adds them, in the leaves
 * behind those sums. */
static void reduce_across(const struct collective *c, int64_t mine)
{
    int64_t theirs;
    int n = 0;
    for (int h = 0; h < c->hosts; h++) {
        if (h == c->host) continue;
        piece_at(c, part_number(c, c->self, h), &theirs);
        add_move(c, &n, beyond(c, h), leaf_of(c, h), theirs, true);
        add_move(c, &n, beyond(c, h), leaf_of(c, c->hosts + h), mine, false);
    }
    exchange(c, n);
    memcpy(leaf_of(c, c->hosts + c->host), leaf_of(c, c->host), (size_t)mine * c->size);
    sum_leaves(c, c->hosts, 1, c->hosts, mine);
}

/* Returns the sum of everyone's piece of the own part, of `mine` elements. */
static char *reduce_round(const struct collective *c, int64_t *mine)
{
    piece_at(c, own_part(c), mine);
    reduce_inside(c);
    if (c->hosts > 1) reduce_across(c, *mine);
    return leaf_of(c, c->hosts > 1 ? c->hosts : 0);
}

/* Gives everyone the pieces of all parts: first those of its place on all hosts, then these of all
 * places. */
static void gather_round(const struct collective *c)
{
    int64_t elements;
    int n = 0;
    for (int h = 0; h < c->hosts; h++) {
        if (h == c->host) continue;
        char *own = piece_at(c, own_part(c), &elements);
        add_move(c, &n, beyond(c, h), own, elements, true);
        char *at = piece_at(c, part_number(c, c->self, h), &elements);
        add_move(c, &n, beyond(c, h), at, elements, false);
    }
    if (c->hosts > 1) exchange(c, n);
    n = 0;
    for (int peer = 0; peer < c->n; peer++)
        for (int k = 0; k < 2 * c->hosts && peer != c->self; k++) {
            const bool send = k < c->hosts;
            char *at = piece_at(c, part_number(c, send ? c->self : peer, k % c->hosts), &elements);
            add_move(c, &n, inside(c, peer), at, elements, send);
        }
    exchange(c, n);
}

/* --- ALL_REDUCE ------------------------------------------------------------------------------- */

static bool is_summed(const struct tensor *x) { return tensor_is_fast(x) || tensor_is(x, DT_F64); }

static bool all_reduce_match(const struct query *q) { return is_summed(q->in[0]); }
static uint64_t all_reduce_workspace(const struct query *q)
{
    const int n = q->attr->group.ranks;
    return reduce_bytes(part_of(tensor_elements(q->in[0]), n), n, dtype_size(q->in[0]->dtype));
}

/* Replaces the output by its sum over ranks. */
static void reduce_all(const struct launch *l, const char *name)
{
    const struct operand *x = &l->out[0];
    struct collective c = begin(l, name, x, part_of(operand_elements(x), l->attr->group.ranks));
    for (c.at = 0; c.at < c.part && c.n > 1; c.at += c.piece) {
        int64_t mine;
        const char *sum = reduce_round(&c, &mine);
        memcpy(piece_at(&c, own_part(&c), &mine), sum, (size_t)mine * c.size);
        gather_round(&c);
    }
}

static void all_reduce_run(const struct launch *l)
{
    CHECK(l->in[0].data == l->out[0].data, "x is updated in place");
    reduce_all(l, "ALL_REDUCE");
}

CPU_KERNEL_WORK(ALL_REDUCE, all_reduce);
/* The order of the sum is the result: there is no other one to compare with. */
REF_KERNEL_AS_WORK(ALL_REDUCE, all_reduce);

/* Sums x over ranks into the output, which may be x itself. */
static bool sum_ranks_match(const struct query *q) { return is_summed(q->in[0]) && tensor_is_dense(q->out[0]); }
static uint64_t sum_ranks_workspace(const struct query *q) { return all_reduce_workspace(q); }

static void sum_ranks_run(const struct launch *l)
{
    if (l->in[0].data != l->out[0].data)
        memcpy(l->out[0].data, l->in[0].data, (size_t)operand_elements(&l->out[0]) * dtype_size(l->out[0].dtype));
    reduce_all(l, "SUM_RANKS");
}

CPU_KERNEL_WORK(SUM_RANKS, sum_ranks);
REF_KERNEL_AS_WORK(SUM_RANKS, sum_ranks);

/* --- REDUCE_SCATTER --------------------------------------------------------------------------- */

static bool reduce_scatter_match(const struct query *q) { return is_summed(q->in[0]); }
static uint64_t reduce_scatter_workspace(const struct query *q)
{
    return reduce_bytes(q->attr->group.part, q->attr->group.ranks, dtype_size(q->in[0]->dtype));
}

/* Writes y = sum, or acc + sum, in y's elements from `at` on; zeros behind the end of x. */
static void put_sum(const struct launch *l, const struct collective *c, const char *sum, int64_t mine)
{
    char *y = (char *)l->out[0].data + (size_t)c->at * c->size;
    const int64_t n = min_i64(c->piece, c->part - c->at);
    if (launch_has(l, 1)) {
        CHECK(l->in[1].data == l->out[0].data, "acc is updated in place");
        fold_add(y, y, sum, c->dtype, mine, c->threads);
        return;
    }
    memcpy(y, sum, (size_t)mine * c->size);
    memset(y + (size_t)mine * c->size, 0, (size_t)(n - mine) * c->size);
}

static void reduce_scatter_run(const struct launch *l)
{
    struct collective c = begin(l, "REDUCE_SCATTER", &l->in[0], l->attr->group.part);
    int64_t mine;
    if (c.n < 2) {
        c.piece = c.part;
        put_sum(l, &c, c.x, c.elements);
        return;
    }
    for (; c.at < c.part; c.at += c.piece) {
        const char *sum = reduce_round(&c, &mine);
        put_sum(l, &c, sum, mine);
    }
}

CPU_KERNEL_WORK(REDUCE_SCATTER, reduce_scatter);
REF_KERNEL_AS_WORK(REDUCE_SCATTER, reduce_scatter);

/* --- ALL_GATHER ------------------------------------------------------------------------------- */

static bool all_gather_match(const struct query *q) { return tensor_is_dense(q->in[0]) && tensor_is_dense(q->out[0]); }
static uint64_t all_gather_workspace(const struct query *q) { return moves_bytes(q->attr->group.ranks); }

static void all_gather_run(const struct launch *l)
{
    struct collective c = begin(l, "ALL_GATHER", &l->out[0], l->attr->group.part);
    char *own = c.x + (size_t)(own_part(&c) * c.part) * c.size;
    c.piece = c.part;
    if (own != l->in[0].data) memcpy(own, l->in[0].data, (size_t)c.part * c.size);
    if (c.n > 1) gather_round(&c);
}

CPU_KERNEL_WORK(ALL_GATHER, all_gather);
REF_KERNEL_AS_WORK(ALL_GATHER, all_gather);
