/*
 * collective.cu: ALL_REDUCE: the transport moves the pieces (device/transport.h), a kernel adds them in the tree over ranks of
 * cpu/fold.c. Each sum of two is one f32 addition, rounded to the dtype: the bits do not depend on the transport, and are
 * those of FOLD over the same leaves.
 */
#include "cuda/device/kernel.cuh"

extern "C" {
#include "cuda/device/transport.h"
#include "cuda/update/collective.h"
}

constexpr int TREE_BLOCK = 256, LEVELS = 17; /* of the tree: 65536 ranks */

/* own = the sum of n leaves; leaf `self` is `own`, leaf i is at leaves + i * stride. `self` negative: all are there. */
template <typename T> static __global__ void __launch_bounds__(TREE_BLOCK) tree_kernel(T *own, const T *leaves, int64_t stride, int n, int self, int64_t elements)
{
    const int64_t step = (int64_t)gridDim.x * TREE_BLOCK;
    for (int64_t k = (int64_t)blockIdx.x * TREE_BLOCK + threadIdx.x; k < elements; k += step) {
        T partial[LEVELS], sum = from_float<T>(0);
        for (int i = 0; i < n; i++) {
            const bool last = i + 1 == n;
            int level = 0;
            sum = i == self ? own[k] : leaves[i * stride + k];
            for (; last ? i >> level : i >> level & 1; level++)
                if (i >> level & 1) sum = from_float<T>(to_float(partial[level]) + to_float(sum));
            partial[level] = sum;
        }
        own[k] = sum;
    }
}

struct reduction {
    struct transport *transport;
    int n, self;
    enum store type;
    int64_t size, elements, part, piece;
    char *x, *leaves;
    struct move *moves;
    cudaStream_t stream;
};

/* The piece of a rank's part in the round that begins at `at`. */
static char *piece_at(const struct reduction *r, int rank, int64_t at, int64_t *n)
{
    const int64_t from = rank * r->part + at, end = min_i64(r->elements, (rank + 1) * r->part);
    *n = max_i64(0, min_i64(r->piece, end - from));
    return r->x + (*n ? from * r->size : 0);
}

static void add_move(const struct reduction *r, int *n, int peer, void *at, int64_t elements, bool send)
{
    if (elements) r->moves[(*n)++] = (struct move){peer, at, (uint64_t)(elements * r->size), send};
}

/* Everyone's piece of each part goes to its rank, which adds them. A rank that is alone sends it to itself. */
static int reduce_round(const struct reduction *r, int64_t at, struct error *e)
{
    int64_t mine, theirs;
    char *own = piece_at(r, r->self, at, &mine);
    int n = 0;
    for (int peer = 0; peer < r->n; peer++) {
        if (peer == r->self && r->n > 1) continue;
        char *to = piece_at(r, peer, at, &theirs);
        add_move(r, &n, peer, to, theirs, true);
        add_move(r, &n, peer, r->leaves + peer * r->piece * r->size, mine, false);
    }
    TRY(transport_exchange(r->transport, r->moves, n, "ALL_REDUCE", r->stream, e));
    if (!mine) return PL_OK;
    const unsigned grid = (unsigned)min_i64(ceil_div(mine, TREE_BLOCK), 4096);
    TRY_CUDA(by_type(r->type, [&](auto zero) {
        using T = decltype(zero);
        tree_kernel<<<grid, TREE_BLOCK, 0, r->stream>>>((T *)own, (const T *)r->leaves, r->piece, r->n, r->n > 1 ? r->self : -1, mine);
    }));
    return PL_OK;
}

/* Every rank sends its sums to all others. */
static int gather_round(const struct reduction *r, int64_t at, struct error *e)
{
    int64_t mine, theirs;
    char *own = piece_at(r, r->self, at, &mine);
    int n = 0;
    for (int peer = 0; peer < r->n; peer++) {
        if (peer == r->self) continue;
        char *from = piece_at(r, peer, at, &theirs);
        add_move(r, &n, peer, own, mine, true);
        add_move(r, &n, peer, from, theirs, false);
    }
    return transport_exchange(r->transport, r->moves, n, "ALL_REDUCE", r->stream, e);
}

static int launch_all_reduce(const struct launch *l, struct error *e)
{
    const struct operand *x = &l->out[0];
    const int n = l->attr->group.ranks;
    struct transport *t = (struct transport *)l->state;
    CHECK(l->in[0].data == x->data, "x is updated in place");
    CHECK(t && t->ranks->n == n, "the plan is for %d ranks", n);
    struct reduction r = {t, n, t->ranks->rank, store_of(x->dtype), (int64_t)dtype_size(x->dtype), operand_elements(x)};
    r.part = part_elements(r.elements, n);
    r.piece = piece_elements(r.elements, n, r.size);
    r.x = (char *)x->data, r.leaves = (char *)l->work, r.stream = (cudaStream_t)l->stream;
    r.moves = (struct move *)mem_alloc(2 * (size_t)n * sizeof *r.moves);
    int rc = PL_OK;
    for (int64_t at = 0; at < r.part && !rc; at += r.piece) {
        rc = reduce_round(&r, at, e);
        if (!rc) rc = gather_round(&r, at, e);
    }
    mem_free(r.moves);
    return rc;
}

/* The transport is the device's, and lives longer than the launch. */
static int prepare_all_reduce(const struct cuda_state *s, struct entry *entry, struct error *e)
{
    if (!s->transport) return error_set(e, PL_FAIL, "this process is not connected to other ranks");
    entry->launch.state = s->transport;
    return PL_OK;
}

static void release_all_reduce(void *state) { (void)state; }

CUDA_KERNEL(cuda_all_reduce, .prepare = prepare_all_reduce, .launch = launch_all_reduce, .release = release_all_reduce);
