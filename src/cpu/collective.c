/*
 * collective.c: ops in which all ranks meet: ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER. A transport moves bytes
 * (run/ranks.h); sums are made here, in the tree of fold.c.
 *
 *     REDUCE_SCATTER    x    [ part 0 | part 1 | part 2 ]     rank r gets everyone's part r, and adds them in the tree
 *                       y             [ sum ]
 *     ALL_GATHER        y    [ of 0   | of 1   | of 2   ]     rank r sends its part to all
 *     ALL_REDUCE        both, in place
 *
 * A sum goes in rounds of a piece of each part. The workspace holds the pieces of a round and the list of moves.
 */
#include <string.h>

#include "cpu/cpu.h"
#include "cpu/fold.h"
#include "cpu/ref.h"
#include "cpu/rows.h"
#include "run/ranks.h"

/* Bytes of the pieces of a round, at most; a part of ALL_REDUCE begins at a multiple of PART elements. */
enum { ROUND_BYTES = 8 << 20, PART = 64 };

/* Elements of a part of ALL_REDUCE: the last ones may be shorter or empty. */
static int64_t part_of(int64_t n, int ranks) { return ceil_div(ceil_div(n, ranks), PART) * PART; }
/* Elements of a piece: a part, or a part of it. */
static int64_t piece_of(int64_t part, int ranks, size_t size)
{
    const int64_t most = ROUND_BYTES / ranks / (int64_t)size / PART * PART;
    return min_i64(part, max_i64(most, PART));
}

static uint64_t moves_bytes(int ranks) { return ranks < 2 ? 0 : align_up(2 * (uint64_t)ranks * sizeof(struct move), 64); }

static uint64_t reduce_bytes(int64_t part, int ranks, size_t size)
{
    return ranks < 2 ? 0 : moves_bytes(ranks) + (uint64_t)ranks * (uint64_t)piece_of(part, ranks, size) * size;
}

struct collective {
    const char *name;
    struct ranks *ranks;
    int n, self;         /* ranks that take part, and this one's place among them */
    bool across;         /* they are on different hosts */
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
    const int n = l->attr->group.ranks;
    const bool some = l->attr->group.axis > AXIS_ALL, across = l->attr->group.axis == AXIS_ACROSS;
    CHECK(n < 2 || (l->ranks && (some ? l->ranks->n % n == 0 : l->ranks->n == n)), "the plan is for %d ranks", n);
    struct collective c = {.name = name, .ranks = l->ranks, .n = n, .across = across, .self = n > 1 ? ranks_place(l->ranks->n, l->ranks->rank, n, across) : 0, .dtype = x->dtype, .size = dtype_size(x->dtype), .x = x->data, .moves = l->work,
                           .pieces = (char *)l->work + moves_bytes(n), .elements = operand_elements(x), .part = part, .threads = l->threads};
    c.piece = piece_of(part, n, c.size);
    return c;
}

/* The piece of a rank's part in this round. */
static char *piece_at(const struct collective *c, int rank, int64_t *n)
{
    const int64_t from = rank * c->part + c->at, end = min_i64(c->elements, (rank + 1) * c->part);
    *n = max_i64(0, min_i64(c->piece, end - from));
    return c->x + (*n ? (size_t)from * c->size : 0);
}

static char *leaf_of(const struct collective *c, int rank) { return c->pieces + (size_t)(rank * c->piece) * c->size; }

static void add_move(const struct collective *c, int *n, int peer, void *at, int64_t elements, bool send)
{
    if (elements) c->moves[(*n)++] = (struct move){ranks_member(c->ranks->n, c->ranks->rank, c->n, c->across, peer), at, (uint64_t)elements * c->size, send};
}

static void exchange(const struct collective *c, int n)
{
    struct error e = {0};
    c->ranks->where = c->name;
    if (n && c->ranks->exchange(c->ranks, c->moves, n, &e)) c->ranks->abort(c->ranks, e.code, e.text);
    c->ranks->where = NULL;
}

/* Everyone's piece of each part goes to its rank, which adds them in the tree. Returns the sum, of `mine` elements. */
static char *reduce_round(const struct collective *c, int64_t *mine)
{
    const int self = c->self;
    int64_t theirs;
    char *own = piece_at(c, self, mine);
    int n = 0;
    for (int peer = 0; peer < c->n; peer++) {
        if (peer == self) continue;
        char *at = piece_at(c, peer, &theirs);
        add_move(c, &n, peer, at, theirs, true);
        add_move(c, &n, peer, leaf_of(c, peer), *mine, false);
    }
    exchange(c, n);
    memcpy(leaf_of(c, self), own, (size_t)*mine * c->size);
    for (int w = 1; w < c->n && *mine; w *= 2)
        for (int k = 0; k + w < c->n; k += 2 * w) fold_add(leaf_of(c, k), leaf_of(c, k), leaf_of(c, k + w), c->dtype, *mine, c->threads);
    return leaf_of(c, 0);
}

/* Every rank sends its piece to all others. */
static void gather_round(const struct collective *c)
{
    const int self = c->self;
    int64_t mine, theirs;
    char *own = piece_at(c, self, &mine);
    int n = 0;
    for (int peer = 0; peer < c->n; peer++) {
        if (peer == self) continue;
        char *at = piece_at(c, peer, &theirs);
        add_move(c, &n, peer, own, mine, true);
        add_move(c, &n, peer, at, theirs, false);
    }
    exchange(c, n);
}

/* --- ALL_REDUCE ----------------------------------------------------------------------------------------------- */

static bool is_summed(const struct tensor *x) { return tensor_is_fast(x) || tensor_is(x, DT_F64); }

static bool all_reduce_match(const struct query *q) { return is_summed(q->in[0]); }
static uint64_t all_reduce_workspace(const struct query *q)
{
    const int n = q->attr->group.ranks;
    return reduce_bytes(part_of(tensor_elements(q->in[0]), n), n, dtype_size(q->in[0]->dtype));
}

static void all_reduce_run(const struct launch *l)
{
    const struct operand *x = &l->out[0];
    CHECK(l->in[0].data == x->data, "x is updated in place");
    struct collective c = begin(l, "ALL_REDUCE", x, part_of(operand_elements(x), l->attr->group.ranks));
    for (c.at = 0; c.at < c.part && c.n > 1; c.at += c.piece) {
        int64_t mine;
        const char *sum = reduce_round(&c, &mine);
        memcpy(piece_at(&c, c.self, &mine), sum, (size_t)mine * c.size);
        gather_round(&c);
    }
}

static uint64_t ref_all_reduce_workspace(const struct query *q) { return all_reduce_workspace(q); }
/* The order of the sum is the result: there is no other one to compare with. */
static void ref_all_reduce(const struct launch *l) { all_reduce_run(l); }

CPU_KERNEL_WORK(ALL_REDUCE, all_reduce);
REF_KERNEL_WORK(ALL_REDUCE, all_reduce);

/* --- REDUCE_SCATTER ------------------------------------------------------------------------------------------- */

static bool reduce_scatter_match(const struct query *q) { return is_summed(q->in[0]); }
static uint64_t reduce_scatter_workspace(const struct query *q) { return reduce_bytes(q->attr->group.part, q->attr->group.ranks, dtype_size(q->in[0]->dtype)); }

/* y = sum, or acc + sum, in y's elements from `at` on; zeros behind the end of x. */
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

static uint64_t ref_reduce_scatter_workspace(const struct query *q) { return reduce_scatter_workspace(q); }
static void ref_reduce_scatter(const struct launch *l) { reduce_scatter_run(l); }

CPU_KERNEL_WORK(REDUCE_SCATTER, reduce_scatter);
REF_KERNEL_WORK(REDUCE_SCATTER, reduce_scatter);

/* --- ALL_GATHER ----------------------------------------------------------------------------------------------- */

static bool all_gather_match(const struct query *q) { return tensor_is_dense(q->in[0]) && tensor_is_dense(q->out[0]); }
static uint64_t all_gather_workspace(const struct query *q) { return moves_bytes(q->attr->group.ranks); }

static void all_gather_run(const struct launch *l)
{
    struct collective c = begin(l, "ALL_GATHER", &l->out[0], l->attr->group.part);
    char *own = c.x + (size_t)(c.self * c.part) * c.size;
    c.piece = c.part;
    if (own != l->in[0].data) memcpy(own, l->in[0].data, (size_t)c.part * c.size);
    if (c.n > 1) gather_round(&c);
}

static uint64_t ref_all_gather_workspace(const struct query *q) { return all_gather_workspace(q); }
static void ref_all_gather(const struct launch *l) { all_gather_run(l); }

CPU_KERNEL_WORK(ALL_GATHER, all_gather);
REF_KERNEL_WORK(ALL_GATHER, all_gather);
