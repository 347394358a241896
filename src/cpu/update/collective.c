/*
 * collective.c: ops in which all ranks meet: ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER. A transport
 * moves bytes (run/ranks.h); sums are made here, in the tree of fold.c.
 *
 *     REDUCE_SCATTER    x    [ part 0 | part 1 | part 2 ]     rank r gets everyone's part r, and adds them in the tree
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
 *     across: a0 gets of a0 and b0     [ a0 ]                    and adds them: the tree over all ranks, as without hosts
 */
#include <string.h>

#include "cpu/cpu.h"
#include "cpu/update/fold.h"
#include "cpu/reference/ref.h"
#include "cpu/rows.h"
#include "run/ranks.h"

/* Bytes of the pieces of a round, at most; a part of ALL_REDUCE begins at a multiple of PART
 * elements. */
enum { ROUND_BYTES = 8 << 20, PART = 64 };

/* Elements of a part of ALL_REDUCE: the last ones may be shorter or empty. */
static int64_t part_of(int64_t n, int ranks) { return ceil_div(ceil_div(n, ranks), PART) * PART; }
/* Elements of a piece: a part, or a part of it. */
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
    /* ranks that take part, on this host if there are several levels, and this one's place among
     * them */
    int n, self;
    int hosts, host;     /* levels: the hosts, and this one's number; else 1 and 0 */
    bool across;         /* the n ranks are on different hosts */
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
    const bool some = l->attr->group.axis > AXIS_ALL, across = l->attr->group.axis == AXIS_ACROSS;
    CHECK(all < 2 || (l->ranks && (some ? l->ranks->n % all == 0 : l->ranks->n == all)), "the plan is for %d ranks",
          all);
    struct collective c = {.name = name,
                           .ranks = l->ranks,
                           .n = n,
                           .hosts = all / n,
                           .across = across,
                           .dtype = x->dtype,
                           .size = dtype_size(x->dtype),
                           .x = x->data,
                           .moves = l->work,
                           .pieces = (char *)l->work + moves_bytes(all),
                           .elements = operand_elements(x),
                           .part = part,
                           .threads = l->threads};
    if (n > 1) c.self = ranks_place(l->ranks->n, l->ranks->rank, n, across);
    if (host) c.host = ranks_place(l->ranks->n, l->ranks->rank, c.hosts, true);
    c.piece = piece_of(part, all, c.size);
    return c;
}

/* Parts are numbered by the place of their rank on its host, then by host. */
static int part_number(const struct collective *c, int place, int host) { return place * c->hosts + host; }
static int own_part(const struct collective *c) { return part_number(c, c->self, c->host); }

/* The piece of a part in this round. */
static char *piece_at(const struct collective *c, int number, int64_t *n)
{
    const int64_t from = number * c->part + c->at, end = min_i64(c->elements, (number + 1) * c->part);
    *n = max_i64(0, min_i64(c->piece, end - from));
    return c->x + (*n ? (size_t)from * c->size : 0);
}

/* Room for a piece of each part. */
static char *leaf_of(const struct collective *c, int number)
{
    return c->pieces + (size_t)(number * c->piece) * c->size;
}

/* Parts that follow each other are one move, where a round has all of them. */
static void add_move(const struct collective *c, int *n, int peer, void *at, int64_t elements, bool send)
{
    const uint64_t bytes = (uint64_t)elements * c->size;
    struct move *last = *n ? &c->moves[*n - 1] : NULL;
    if (c->piece == c->part && last && last->peer == peer && last->send == send && (char *)last->at + last->bytes == at)
        last->bytes += bytes;
    else if (elements) c->moves[(*n)++] = (struct move){peer, at, bytes, send};
}

/* The rank at a place of this host, or of those that take part; the rank of this place on another
 * host. */
static int inside(const struct collective *c, int place)
{
    return ranks_member(c->ranks->n, c->ranks->rank, c->n, c->across, place);
}
static int beyond(const struct collective *c, int host)
{
    return ranks_member(c->ranks->n, c->ranks->rank, c->hosts, true, host);
}

/* Without moves of this rank, too: others may have some. */
static void exchange(const struct collective *c, int n)
{
    struct error e = {0};
    c->ranks->where = c->name;
    if (c->ranks->exchange(c->ranks, c->moves, n, &e)) c->ranks->abort(c->ranks, e.code, e.text);
    c->ranks->where = NULL;
}

/* The first of n leaves becomes their sum, in the tree; from one to the next it is `stride`
 * leaves. */
static void sum_leaves(const struct collective *c, int first, int stride, int n, int64_t elements)
{
    for (int w = 1; w < n && elements; w *= 2)
        for (int k = 0; k + w < n; k += 2 * w) {
            char *a = leaf_of(c, first + k * stride);
            fold_add(a, a, leaf_of(c, first + (k + w) * stride), c->dtype, elements, c->threads);
        }
}

/* Everyone's piece of each part goes to the rank of this host that takes it, which adds them:
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

/* The sums of the hosts go to the rank whose part they are, which adds them, in the leaves behind
 * those sums. */
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

/* The sum of everyone's piece of the own part, of `mine` elements. */
static char *reduce_round(const struct collective *c, int64_t *mine)
{
    piece_at(c, own_part(c), mine);
    reduce_inside(c);
    if (c->hosts > 1) reduce_across(c, *mine);
    return leaf_of(c, c->hosts > 1 ? c->hosts : 0);
}

/* Everyone gets the pieces of all parts: first those of its place on all hosts, then these of all
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

static void all_reduce_run(const struct launch *l)
{
    const struct operand *x = &l->out[0];
    CHECK(l->in[0].data == x->data, "x is updated in place");
    struct collective c = begin(l, "ALL_REDUCE", x, part_of(operand_elements(x), l->attr->group.ranks));
    for (c.at = 0; c.at < c.part && c.n > 1; c.at += c.piece) {
        int64_t mine;
        const char *sum = reduce_round(&c, &mine);
        memcpy(piece_at(&c, own_part(&c), &mine), sum, (size_t)mine * c.size);
        gather_round(&c);
    }
}

static uint64_t ref_all_reduce_workspace(const struct query *q) { return all_reduce_workspace(q); }
/* The order of the sum is the result: there is no other one to compare with. */
static void ref_all_reduce(const struct launch *l) { all_reduce_run(l); }

CPU_KERNEL_WORK(ALL_REDUCE, all_reduce);
REF_KERNEL_WORK(ALL_REDUCE, all_reduce);

/* --- REDUCE_SCATTER --------------------------------------------------------------------------- */

static bool reduce_scatter_match(const struct query *q) { return is_summed(q->in[0]); }
static uint64_t reduce_scatter_workspace(const struct query *q)
{
    return reduce_bytes(q->attr->group.part, q->attr->group.ranks, dtype_size(q->in[0]->dtype));
}

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

static uint64_t ref_all_gather_workspace(const struct query *q) { return all_gather_workspace(q); }
static void ref_all_gather(const struct launch *l) { all_gather_run(l); }

CPU_KERNEL_WORK(ALL_GATHER, all_gather);
REF_KERNEL_WORK(ALL_GATHER, all_gather);
