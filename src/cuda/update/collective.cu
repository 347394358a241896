/*
 * collective.cu: ALL_REDUCE, REDUCE_SCATTER and ALL_GATHER (cpu/collective.c has a drawing): the transport moves the pieces
 * (device/transport.h), a kernel adds them in the tree over ranks of cpu/fold.c. Each sum of two is one f32 addition, rounded to the dtype: the bits do not depend on the transport, and are
 * those of FOLD over the same leaves.
 */
#include "cuda/device/kernel.cuh"

extern "C" {
#include "cuda/device/transport.h"
#include "cuda/update/collective.h"
}

constexpr int TREE_BLOCK = 256, LEVELS = 17; /* of the tree: 65536 ranks */

template <typename T> static __device__ T add(T a, T b) { return from_float<T>(to_float(a) + to_float(b)); }
template <> __device__ double add(double a, double b) { return a + b; }

/* to = the sum of n leaves, or to + the sum; leaf `self` is `own`, leaf i is at leaves + i * stride. `self` negative: all are there. */
template <typename T> static __global__ void __launch_bounds__(TREE_BLOCK) tree_kernel(T *to, const T *own, const T *leaves, int64_t stride, int n, int self, int64_t elements, bool adds)
{
    const int64_t step = (int64_t)gridDim.x * TREE_BLOCK;
    for (int64_t k = (int64_t)blockIdx.x * TREE_BLOCK + threadIdx.x; k < elements; k += step) {
        T partial[LEVELS], sum = T(0);
        for (int i = 0; i < n; i++) {
            const bool last = i + 1 == n;
            int level = 0;
            sum = i == self ? own[k] : leaves[i * stride + k];
            for (; last ? i >> level : i >> level & 1; level++)
                if (i >> level & 1) sum = add(partial[level], sum);
            partial[level] = sum;
        }
        to[k] = adds ? add(to[k], sum) : sum;
    }
}

struct reduction {
    const char *name;
    struct transport *transport;
    int n, self;
    enum dtype dtype;
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

template <typename T> static cudaError_t launch_tree(const struct reduction *r, void *to, const void *own, int64_t n, bool adds)
{
    const unsigned grid = (unsigned)min_i64(ceil_div(n, TREE_BLOCK), 4096);
    tree_kernel<<<grid, TREE_BLOCK, 0, r->stream>>>((T *)to, (const T *)own, (const T *)r->leaves, r->piece, r->n, r->n > 1 ? r->self : -1, n, adds);
    return cudaGetLastError();
}

/* Everyone's piece of each part goes to its rank, which adds them: into `to`, or in place if that is NULL. A rank that is
 * alone sends it to itself. */
static int reduce_round(const struct reduction *r, int64_t at, void *to, bool adds, struct error *e)
{
    int64_t mine, theirs;
    char *own = piece_at(r, r->self, at, &mine);
    int n = 0;
    for (int peer = 0; peer < r->n; peer++) {
        if (peer == r->self && r->n > 1) continue;
        char *from = piece_at(r, peer, at, &theirs);
        add_move(r, &n, peer, from, theirs, true);
        add_move(r, &n, peer, r->leaves + peer * r->piece * r->size, mine, false);
    }
    TRY(transport_exchange(r->transport, r->moves, n, r->name, r->stream, e));
    if (!mine) return PL_OK;
    if (!to) to = own;
    if (r->dtype == DT_F64) TRY_CUDA(launch_tree<double>(r, to, own, mine, adds));
    else TRY_CUDA(by_type(store_of(r->dtype), [&](auto zero) { launch_tree<decltype(zero)>(r, to, own, mine, adds); }));
    return PL_OK;
}

/* Every rank sends its piece to all others. */
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
    return transport_exchange(r->transport, r->moves, n, r->name, r->stream, e);
}

static struct reduction begin(const struct launch *l, const char *name, const struct operand *x, int64_t part)
{
    const int n = l->attr->group.ranks;
    struct transport *t = (struct transport *)l->state;
    CHECK(t && t->ranks->n == n, "the plan is for %d ranks", n);
    struct reduction r = {name, t, n, t->ranks->rank, x->dtype, (int64_t)dtype_size(x->dtype), operand_elements(x), part};
    r.piece = piece_elements(part, n, r.size);
    r.x = (char *)x->data, r.leaves = (char *)l->work, r.stream = (cudaStream_t)l->stream;
    r.moves = (struct move *)mem_alloc(2 * (size_t)n * sizeof *r.moves);
    return r;
}

static int launch_all_reduce(const struct launch *l, struct error *e)
{
    const struct operand *x = &l->out[0];
    CHECK(l->in[0].data == x->data, "x is updated in place");
    struct reduction r = begin(l, "ALL_REDUCE", x, part_elements(operand_elements(x), l->attr->group.ranks));
    int rc = PL_OK;
    for (int64_t at = 0; at < r.part && !rc; at += r.piece) {
        rc = reduce_round(&r, at, NULL, false, e);
        if (!rc) rc = gather_round(&r, at, e);
    }
    mem_free(r.moves);
    return rc;
}

/* Zeros behind the end of x, then a round for each piece. */
static int launch_reduce_scatter(const struct launch *l, struct error *e)
{
    struct reduction r = begin(l, "REDUCE_SCATTER", &l->in[0], l->attr->group.part);
    const bool adds = l->nin > 1 && l->in[1].data;
    const int64_t mine = max_i64(0, min_i64(r.part, r.elements - r.self * r.part));
    char *y = (char *)l->out[0].data;
    CHECK(!adds || l->in[1].data == y, "acc is updated in place");
    int rc = PL_OK;
    if (!adds && mine < r.part && cudaMemsetAsync(y + mine * r.size, 0, (size_t)((r.part - mine) * r.size), r.stream) != cudaSuccess) rc = error_set(e, PL_FAIL, "cudaMemsetAsync failed");
    for (int64_t at = 0; at < r.part && !rc; at += r.piece) rc = reduce_round(&r, at, y + at * r.size, adds, e);
    mem_free(r.moves);
    return rc;
}

static int launch_all_gather(const struct launch *l, struct error *e)
{
    struct reduction r = begin(l, "ALL_GATHER", &l->out[0], l->attr->group.part);
    char *own = r.x + r.self * r.part * r.size;
    int rc = PL_OK;
    r.piece = r.part;
    if (own != l->in[0].data && cudaMemcpyAsync(own, l->in[0].data, (size_t)(r.part * r.size), cudaMemcpyDeviceToDevice, r.stream) != cudaSuccess) rc = error_set(e, PL_FAIL, "cudaMemcpyAsync failed");
    if (!rc && r.n > 1) rc = gather_round(&r, 0, e);
    mem_free(r.moves);
    return rc;
}

/* The transport is the device's, and lives longer than the launch. */
static int prepare_collective(const struct cuda_state *s, struct entry *entry, struct error *e)
{
    if (!s->transport) return error_set(e, PL_FAIL, "this process is not connected to other ranks");
    entry->launch.state = s->transport;
    return PL_OK;
}

static void release_collective(void *state) { (void)state; }

CUDA_KERNEL(cuda_all_reduce, .prepare = prepare_collective, .launch = launch_all_reduce, .release = release_collective);
CUDA_KERNEL(cuda_reduce_scatter, .prepare = prepare_collective, .launch = launch_reduce_scatter, .release = release_collective);
CUDA_KERNEL(cuda_all_gather, .prepare = prepare_collective, .launch = launch_all_gather, .release = release_collective);
