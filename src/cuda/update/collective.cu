/*
 * collective.cu: ALL_REDUCE, REDUCE_SCATTER and ALL_GATHER: the transport moves the pieces
 * (device/transport.h), a kernel adds them in the tree over ranks of cpu/update/collective.c. Each
 * sum of two is one addition, rounded to the dtype: the bits do not depend on the transport, and
 * are those of FOLD over the same leaves. cpu/update/collective.c shows who gets which part, also
 * with several hosts.
 */
#include "cuda/device/kernel.cuh"

extern "C" {
#include "cuda/device/transport.h"
#include "cuda/update/collective.h"
}

constexpr int TREE_BLOCK = 256, LEVELS = 17; /* of the tree: 65536 ranks */
/* A rank's own part never travels. The only rank, which goes through the motions, sends this many
 * bytes of it to itself by NCCL: what is measured then is the cost of NCCL's launches. Through host
 * memory it sends everything. */
constexpr int64_t TOKEN = 64 << 10;
constexpr int GROUP_MOVES = 1024; /* most sends and receives of a group of NCCL's */

template <typename T> __device__ static T add(T a, T b) { return from_float<T>(to_float(a) + to_float(b)); }
template <> __device__ double add(double a, double b) { return a + b; }

/* y = the sum of n leaves, or y + that; leaf `self` is `own`, leaf i is at leaves + i * stride.
 * `self` negative: all are there. */
template <typename T>
static __global__ void __launch_bounds__(TREE_BLOCK)
    tree_kernel(T *y, const T *own, const T *leaves, int64_t stride, int n, int self, int64_t elements, bool onto)
{
    const int64_t step = (int64_t)gridDim.x * TREE_BLOCK;
    for (int64_t k = (int64_t)blockIdx.x * TREE_BLOCK + threadIdx.x; k < elements; k += step) {
        T partial[LEVELS], sum;
        for (int i = 0; i < n; i++) {
            const bool last = i + 1 == n;
            int level = 0;
            sum = i == self ? own[k] : leaves[i * stride + k];
            for (; last ? i >> level : i >> level & 1; level++)
                if (i >> level & 1) sum = add<T>(partial[level], sum);
            partial[level] = sum;
        }
        y[k] = onto ? add<T>(y[k], sum) : sum;
    }
}

struct collective {
    struct transport *transport;  /* NULL: the only rank, which sends nothing, not even to itself */
    const char *name;
    /* ranks that take part, of this host if there are several levels; and those of this place */
    struct rank_group group, beyond;
    int n, self;                  /* the number of those of `group`, and this one's place among them */
    int hosts, host;              /* levels: the hosts, and this one's number; else 1 and 0 */
    bool whole;                   /* a round has whole parts */
    enum dtype dtype;
    int64_t size, elements, part, piece;
    char *x, *leaves;
    struct move *moves;
    cudaStream_t stream;
};

/* Begins a collective. The caller frees c.moves. */
static struct collective begin(const struct launch *l, const char *name, const struct operand *x, int64_t part)
{
    struct transport *t = (struct transport *)l->state;
    const int n = l->attr->group.ranks, host = l->attr->group.host;
    CHECK(t ? launch_group_fits(l) : n == 1, "the plan is for %d ranks", n);
    struct collective c = {t, name};
    c.n = host ? host : n, c.hosts = n / c.n;
    if (t) {
        c.group = launch_group(l, c.n, l->attr->group.axis == AXIS_ACROSS);
        c.self = ranks_place(&c.group);
    }
    if (host) {
        c.beyond = launch_group(l, c.hosts, true);
        c.host = ranks_place(&c.beyond);
    }
    c.dtype = x->dtype, c.size = (int64_t)dtype_size(x->dtype), c.elements = operand_elements(x), c.part = part;
    c.piece = piece_elements(part, n, c.size), c.whole = c.piece == part;
    c.x = (char *)x->data, c.leaves = (char *)l->work, c.stream = (cudaStream_t)l->stream;
    c.moves = (struct move *)mem_alloc(2 * (size_t)n * sizeof *c.moves);
    return c;
}

/* Returns the elements of its own piece that a rank sends to itself. */
static int64_t own_elements(const struct collective *c, int64_t mine)
{
    if (c->n > 1 || !c->transport) return 0;
    return c->transport->nccl ? min_i64(mine, TOKEN / c->size) : mine;
}

/* Returns the number of a part: by the place of its rank on its host, then by host. */
static int part_number(const struct collective *c, int place, int host) { return place * c->hosts + host; }
static int own_part(const struct collective *c) { return part_number(c, c->self, c->host); }

/* Returns the piece of a part in the round that begins at `at`. */
static char *piece_at(const struct collective *c, int number, int64_t at, int64_t *n)
{
    const int64_t from = number * c->part + at, end = min_i64(c->elements, (number + 1) * c->part);
    *n = max_i64(0, min_i64(c->piece, end - from));
    return c->x + (*n ? from * c->size : 0);
}

/* Returns the room for a piece of a part. */
static char *leaf_of(const struct collective *c, int number) { return c->leaves + number * c->piece * c->size; }

/* Returns the rank at a place of this host, or of those that take part; beyond: the rank of this
 * place on another host. */
static int inside(const struct collective *c, int place)
{
    return c->transport ? ranks_member(&c->group, place) : 0;
}
static int beyond(const struct collective *c, int host)
{
    return ranks_member(&c->beyond, host);
}

/* Adds a move. Parts that follow each other are one move of NCCL's, where a round has all of them.
 * Host memory has room for parts, not for several at once. */
static void add_move(const struct collective *c, int *n, int peer, void *at, int64_t elements, bool send)
{
    const uint64_t bytes = (uint64_t)(elements * c->size);
    struct move *last = *n && c->whole && c->transport->nccl ? &c->moves[*n - 1] : NULL;
    if (last && last->peer == peer && last->send == send && (char *)last->at + last->bytes == at) last->bytes += bytes;
    else if (elements) c->moves[(*n)++] = (struct move){peer, at, bytes, send};
}

/* Leaves of a sum: n of them, `stride` elements apart; leaf `self` is at `own` instead, unless it
 * is negative. */
struct leaves {
    const char *first, *own;
    int64_t stride;
    int n, self;
};

/* Computes y = the sum of the leaves, or y + that. y may be the first of them. */
static int sum_leaves(const struct collective *c, char *y, struct leaves l, int64_t elements, bool onto,
                      struct error *e)
{
    const unsigned grid = (unsigned)min_i64(ceil_div(elements, TREE_BLOCK), 4096);
    if (!elements) return PL_OK;
    if (c->dtype == DT_F64) {
        tree_kernel<<<grid, TREE_BLOCK, 0, c->stream>>>((double *)y, (const double *)l.own, (const double *)l.first,
                                                        l.stride, l.n, l.self, elements, onto);
        TRY_CUDA(cudaGetLastError());
        return PL_OK;
    }
    TRY_CUDA(by_type(store_of(c->dtype), [&](auto zero) {
        using T = decltype(zero);
        tree_kernel<<<grid, TREE_BLOCK, 0, c->stream>>>((T *)y, (const T *)l.own, (const T *)l.first, l.stride, l.n,
                                                        l.self, elements, onto);
    }));
    return PL_OK;
}

/* Adds to the n moves: everyone's piece of each part goes to the rank of this host that takes
 * it. */
static void list_inside(const struct collective *c, int64_t at, int *n)
{
    int64_t elements;
    for (int peer = 0; peer < c->n; peer++)
        for (int k = 0; k < 2 * c->hosts && peer != c->self; k++) {
            const bool send = k < c->hosts;
            char *own = piece_at(c, part_number(c, send ? peer : c->self, k % c->hosts), at, &elements);
            add_move(c, n, inside(c, peer), send ? own : leaf_of(c, part_number(c, peer, k % c->hosts)), elements,
                     send);
        }
}

/* Exchanges sums between the two levels: the sums of this host are added into leaves 0 to hosts -
 * 1, and go to the rank whose part they are. */
static int exchange_sums(const struct collective *c, int64_t at, int64_t mine, struct error *e)
{
    int64_t elements;
    int n = 0;
    for (int h = 0; h < c->hosts; h++) {
        const char *own = piece_at(c, part_number(c, c->self, h), at, &elements);
        TRY(sum_leaves(c, leaf_of(c, h), (struct leaves){leaf_of(c, h), own, c->hosts * c->piece, c->n, c->self},
                       elements, false, e));
        if (h == c->host) continue;
        add_move(c, &n, beyond(c, h), leaf_of(c, h), elements, true);
        add_move(c, &n, beyond(c, h), leaf_of(c, c->hosts + h), mine, false);
    }
    return transport_exchange(c->transport, c->moves, n, c->name, c->stream, e);
}

/* Sends everyone's piece of each part to its rank, which adds them into y, or to it. y NULL: in
 * place. */
static int reduce_round(const struct collective *c, int64_t at, char *y, bool onto, int64_t *mine, struct error *e)
{
    char *own = piece_at(c, own_part(c), at, mine);
    int n = 0;
    list_inside(c, at, &n);
    const int64_t sent = own_elements(c, *mine);
    add_move(c, &n, inside(c, c->self), own, sent, true);
    add_move(c, &n, inside(c, c->self), c->leaves, sent, false);
    TRY(transport_exchange(c->transport, c->moves, n, c->name, c->stream, e));
    if (!y) y = own;
    if (c->hosts > 1) {
        TRY(exchange_sums(c, at, *mine, e));
        return sum_leaves(c, y, (struct leaves){leaf_of(c, c->hosts), leaf_of(c, c->host), c->piece, c->hosts, c->host},
                          *mine, onto, e);
    }
    if (sent) TRY(sum_leaves(c, y, (struct leaves){c->leaves, own, c->piece, c->n, -1}, sent, onto, e));
    if (sent == *mine || (c->n == 1 && y == own && !onto)) return PL_OK;
    return sum_leaves(c, y + sent * c->size, (struct leaves){c->leaves, own + sent * c->size, c->piece, c->n, c->self},
                      *mine - sent, onto, e);
}

/* Adds to the n moves: every rank sends its piece to those of its place on other hosts. */
static void list_gather_across(const struct collective *c, int64_t at, int *n)
{
    int64_t mine, theirs;
    char *own = piece_at(c, own_part(c), at, &mine);
    for (int h = 0; h < c->hosts; h++) {
        if (h == c->host) continue;
        char *from = piece_at(c, part_number(c, c->self, h), at, &theirs);
        add_move(c, n, beyond(c, h), own, mine, true);
        add_move(c, n, beyond(c, h), from, theirs, false);
    }
}

/* Adds to the n moves: then the pieces of its place, of all hosts, go to the others of this
 * host. */
static void list_gather_inside(const struct collective *c, int64_t at, int *n)
{
    int64_t elements;
    for (int peer = 0; peer < c->n; peer++)
        for (int k = 0; k < 2 * c->hosts && peer != c->self; k++) {
            const bool send = k < c->hosts;
            char *piece = piece_at(c, part_number(c, send ? c->self : peer, k % c->hosts), at, &elements);
            add_move(c, n, inside(c, peer), piece, elements, send);
        }
}

static int gather_round(const struct collective *c, int64_t at, struct error *e)
{
    int n = 0;
    list_gather_across(c, at, &n);
    TRY(transport_exchange(c->transport, c->moves, n, c->name, c->stream, e));
    n = 0;
    list_gather_inside(c, at, &n);
    return transport_exchange(c->transport, c->moves, n, c->name, c->stream, e);
}

/* Replaces the output by its sum over ranks. */
static int reduce_all(const struct launch *l, const char *name, struct error *e)
{
    const struct operand *x = &l->out[0];
    int64_t mine;
    int rc = PL_OK;
    const struct collective c = begin(l, name, x, part_elements(operand_elements(x), l->attr->group.ranks));
    for (int64_t at = 0; at < c.part && !rc; at += c.piece) {
        rc = reduce_round(&c, at, NULL, false, &mine, e);
        if (!rc) rc = gather_round(&c, at, e);
    }
    mem_free(c.moves);
    return rc;
}

static int launch_all_reduce(const struct launch *l, struct error *e)
{
    CHECK(l->in[0].data == l->out[0].data, "x is updated in place");
    return reduce_all(l, "ALL_REDUCE", e);
}

/* Sums an activation, which may be read again. */
static int launch_sum_ranks(const struct launch *l, struct error *e)
{
    const struct operand *x = &l->in[0], *y = &l->out[0];
    if (x->data != y->data)
        TRY_CUDA(cudaMemcpyAsync(y->data, x->data, (size_t)operand_elements(x) * dtype_size(x->dtype),
                                 cudaMemcpyDeviceToDevice, (cudaStream_t)l->stream));
    return reduce_all(l, "SUM_RANKS", e);
}

/* Clears a part behind the end of x. */
static int clear_tail(const struct collective *c, char *y, int64_t at, int64_t mine, struct error *e)
{
    const int64_t n = min_i64(c->piece, c->part - at) - mine;
    if (n) TRY_CUDA(cudaMemsetAsync(y + mine * c->size, 0, (size_t)(n * c->size), c->stream));
    return PL_OK;
}

static int launch_reduce_scatter(const struct launch *l, struct error *e)
{
    const bool onto = has(l, 1);
    int64_t mine;
    int rc = PL_OK;
    CHECK(!onto || l->in[1].data == l->out[0].data, "acc is updated in place");
    const struct collective c = begin(l, "REDUCE_SCATTER", &l->in[0], l->attr->group.part);
    for (int64_t at = 0; at < c.part && !rc; at += c.piece) {
        char *y = (char *)l->out[0].data + at * c.size;
        rc = reduce_round(&c, at, y, onto, &mine, e);
        if (!rc && !onto) rc = clear_tail(&c, y, at, mine, e);
    }
    mem_free(c.moves);
    return rc;
}

/* Copies the own part to its place, unless it is there. */
static int place_own(const struct collective *c, const struct launch *l, struct error *e)
{
    char *own = c->x + own_part(c) * c->part * c->size;
    if (own != l->in[0].data)
        TRY_CUDA(cudaMemcpyAsync(own, l->in[0].data, (size_t)(c->part * c->size), cudaMemcpyDeviceToDevice, c->stream));
    return PL_OK;
}

/* Gathers that stand side by side, as those of a block's weights do, are one group of NCCL's sends
 * and receives. Host memory has room for one gather at a time. */
static int batch_all_gather(const struct launch *l, uint32_t n, uint32_t *taken, struct error *e)
{
    struct transport *t = (struct transport *)l->state;
    const int each = 2 * l->attr->group.ranks;
    int rc = PL_OK;
    *taken = (uint32_t)min_i64(n, t && t->nccl ? max_i64(1, GROUP_MOVES / each) : 1);
    struct move *moves = (struct move *)mem_alloc((size_t)*taken * (size_t)each * sizeof *moves);
    for (int level = 0; level < 2 && !rc; level++) {
        int count = 0;
        for (uint32_t i = 0; i < *taken && !rc; i++) {
            struct collective c = begin(&l[i], "ALL_GATHER", &l[i].out[0], l[i].attr->group.part);
            mem_free(c.moves);
            c.moves = moves;
            c.piece = c.part, c.whole = true;
            if (!level) rc = place_own(&c, &l[i], e);
            (level ? list_gather_inside : list_gather_across)(&c, 0, &count);
        }
        if (!rc) rc = transport_exchange(t, moves, count, "ALL_GATHER", (cudaStream_t)l->stream, e);
    }
    mem_free(moves);
    return rc;
}

/* Keeps the transport, which is the device's, and lives longer than the launch. */
static int prepare(const struct cuda_state *s, struct entry *entry, struct error *e)
{
    if (!s->transport && entry->launch.attr->group.ranks > 1)
        return error_set(e, PL_FAIL, "this process is not connected to other ranks");
    entry->launch.state = s->transport;
    return PL_OK;
}

static void release(void *state) { (void)state; }

CUDA_KERNEL(cuda_all_reduce, .prepare = prepare, .launch = launch_all_reduce, .release = release);
CUDA_KERNEL(cuda_sum_ranks, .prepare = prepare, .launch = launch_sum_ranks, .release = release);
CUDA_KERNEL(cuda_reduce_scatter, .prepare = prepare, .launch = launch_reduce_scatter, .release = release);
CUDA_KERNEL(cuda_all_gather, .prepare = prepare, .release = release, .batch = batch_all_gather, .meets = true);
