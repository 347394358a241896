/*
 * range_hopper.cuh: ranges of keys (ranges.cuh) in the kernels of hopper*.cu.
 *
 * The producer takes tiles of queries in the order of their work (ranges.cu), and tells the
 * warpgroups through shared memory which tile it fetches and what is known of its ranges.
 */
#pragma once

#include "cuda/attention/launch_hopper.h"
#include "cuda/attention/ranges.cuh"
#include "cuda/attention/wgmma_hopper.cuh"

/* A tile of queries, and the keys that each warpgroup sees; x.head < 0: there is none left. */
template <int QUERIES> struct ranged_task {
    task x;
    int border; /* of several documents */
    span own[QUERIES / 64];
};
/* The task and the ranges of its queries, in shared memory. */
template <int QUERIES> struct alignas(16) range_task {
    int2 seen[QUERIES];
    ranged_task<QUERIES> of;
};

/* Copies bytes, a multiple of 16, from and to such addresses. */
__device__ inline void fetch_bytes(void *to, const void *from, int bytes, uint64_t *bar)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(bar))
                 : "memory");
}
/* Lets products and copies see, after the next barrier, what this thread wrote to shared memory. */
__device__ inline void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/* Returns a number that is the same in all threads of a warp, so that the compiler knows it:
 * operands of products that depend on it are then computed once a warp. */
__device__ inline int uniform(int x) { return __shfl_sync(0xffffffffu, x, 0); }
__device__ inline task uniform(const task &x)
{
    return {uniform(x.head), uniform(x.b),  uniform(x.h),
            uniform(x.g),    uniform(x.t0), {uniform(x.keys.begin), uniform(x.keys.end)}};
}

/* Returns the number of the producer's next task; the first is the block's own. */
__device__ inline int take_next(const attention &a, int i, int items)
{
    return i < items ? (int)gridDim.x + atomicAdd(a.taken, 1) : items;
}

template <int QUERIES> __device__ inline ranged_task<QUERIES> ranged_task_of(const attention &a, int i, int items)
{
    ranged_task<QUERIES> r = {{-1, 0, 0, 0, 0, {0, 0}}, 0, {}};
    if (i >= items) return r;
    const int tiles = (a.T + QUERIES - 1) / QUERIES, sixty_fours = (a.T + 63) / 64, tile = a.order[i / a.H],
              h = i % a.H, b = tile / tiles;
    const int t0 = tile % tiles * QUERIES;
    range_tile all = {INT32_MAX, 0, 0, 0, false};
#pragma unroll
    for (int n = 0; n < QUERIES / 64; n++) {
        r.own[n] = {0, 0};
        if (t0 + 64 * n >= a.T) continue;
        const range_bounds *from = a.bounds + (int64_t)b * sixty_fours + t0 / 64 + n;
        all.begin = min(all.begin, from->begin), all.end = max(all.end, from->end);
        r.border |= from->border | (n > 0 && from->fresh);
        r.own[n] = {from->begin, from->end};
    }
    r.x = {b * a.H + h, b, h, h / (a.H / a.G), t0, {0, 0}};
    if (all.begin < all.end) r.x.keys = {all.begin, all.end};
    return r;
}

/* The bytes of these ranges: up to T, rounded up to a multiple of 64. */
template <int QUERIES> __device__ inline int seen_bytes(const attention &a, int t0)
{
    return min(QUERIES, (a.T + 63) / 64 * 64 - t0) * (int)sizeof(int2);
}
template <int QUERIES>
__device__ inline void fetch_seen(range_task<QUERIES> *to, const attention &a, const task &x, uint64_t *bar)
{
    const int64_t padded = (a.T + 63) / 64 * 64;
    fetch_bytes(to->seen, a.seen + (x.b * padded + x.t0) * 2, seen_bytes<QUERIES>(a, x.t0), bar);
}

/* The producer's i-th task, written to shared memory for the warpgroups when `free` lets it, and i
 * of the next one. `full` then expects `bytes` of operands and the ranges, which are on their way;
 * if there is no task left, head < 0, it expects nothing. */
template <int QUERIES>
__device__ inline task take_task(range_task<QUERIES> *to, const attention &a, int &i, int items, uint64_t *full,
                                 int bytes, uint64_t *free, int phase)
{
    const ranged_task<QUERIES> r = ranged_task_of<QUERIES>(a, i, items);
    i = take_next(a, i, items);
    barrier_wait(free, phase);
    to->of = r;
    if (r.x.head < 0) {
        barrier_arrive(full);
        return r.x;
    }
    barrier_expect(full, bytes + seen_bytes<QUERIES>(a, r.x.t0));
    fetch_seen(to, a, r.x, full);
    return r.x;
}

/* The n-th task of a block, for the producer; without ranges as well. What it waits for and expects
 * is as above. */
template <bool RANGES, int QUERIES>
__device__ inline task fetch_task(range_task<QUERIES> *to, const attention &a, int n, int &i, int items, uint64_t *full,
                                  int bytes, uint64_t *free)
{
    if (RANGES) return take_task(to, a, i, items, full, bytes, free, n % 2 ^ 1);
    const task x = task_of<QUERIES>(a, n, items);
    if (x.head < 0) return x;
    barrier_wait(free, n % 2 ^ 1);
    barrier_expect(full, bytes);
    return x;
}
/* The same for a warpgroup; with ranges its operands have arrived. */
template <bool RANGES, int QUERIES>
__device__ inline task await_task(const range_task<QUERIES> *from, const attention &a, int n, int items, uint64_t *full)
{
    if (!RANGES) return task_of<QUERIES>(a, n, items);
    barrier_wait(full, n % 2);
    return uniform(from->of.x);
}

/* The part of the task's keys, in tiles of KEYS, that the warpgroup's own 64 queries see. */
template <int KEYS, int QUERIES> __device__ inline span own_keys(const range_task<QUERIES> *from)
{
    const span own = from->of.own[threadIdx.x / GROUP], all = from->of.x.keys;
    if (own.begin >= own.end) return {uniform(all.end), uniform(all.end)};
    return {uniform(all.begin + (own.begin - all.begin) / KEYS * KEYS), uniform(own.end)};
}

/* The ranges of a thread's two queries, and the keys that all queries of the warp see. */
struct own_ranges {
    span of[2], all;
};
template <int QUERIES>
__device__ inline own_ranges load_ranges(const range_task<QUERIES> *from, const attention &a, int first)
{
    own_ranges r;
    int begin = 0, end = INT32_MAX;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int t = first + (int)threadIdx.x % 32 / 4 + 8 * half;
        r.of[half] = {0, 0};
        if (t >= a.T) continue;
        const int2 x = from->seen[t - from->of.x.t0];
        r.of[half] = {x.x, x.y};
        begin = max(begin, x.x < x.y ? x.x : INT32_MAX), end = min(end, x.y);
    }
    r.all = {__reduce_max_sync(0xffffffffu, begin), __reduce_min_sync(0xffffffffu, end)};
    return r;
}
__device__ inline bool sees_all(const own_ranges &r, int s0, int sn)
{
    return r.all.begin <= s0 && r.all.end >= s0 + sn;
}

/* x = `with` where a query does not see a key of s0 .. . */
template <int N> __device__ inline void set_unseen(float (&x)[N], const own_ranges &r, int s0, float with)
{
    const int column = s0 + threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < N; i++)
        if (!in_range(r.of[i / 2 % 2], column + i / 4 * 8 + i % 2)) x[i] = with;
}

/* Turns rows of a tile into zeros: those from row `kept` on, and, if `look`, those with a NaN or an
 * infinity, for which `bad`, unless NULL, gets a bit in one of its words, panel by panel. The
 * THREADS threads of the warpgroups call it, and products may follow. */
template <typename T, int ROWS, int PANELS, int THREADS>
__device__ inline void clean_panels(char *tile, int kept, bool look, unsigned *bad)
{
    const int lane = threadIdx.x % 32;
    for (int i = threadIdx.x; i < ROWS * PANELS; i += THREADS) {
        char *row = tile + i * 128;
        const bool lost = i % ROWS >= kept;
        bool spoilt = false;
        if (!lost && look) spoilt = clean_row<T, 128>(row, lane);
#pragma unroll 1
        for (int c = 0; c < 8 && lost; c++) *reinterpret_cast<uint4 *>(row + (c + lane) % 8 * 16) = uint4{0, 0, 0, 0};
        const unsigned rows = __ballot_sync(0xffffffffu, spoilt);
        if (bad && lane == 0) bad[i / 32] = rows;
    }
    fence_proxy_async();
    named_barrier_sync<THREADS>(2);
}

/* --- launching -------------------------------------------------------------------------------- */

/* Threads that multiply, of a block that holds queries. MORE: a grid, or ranges. */
template <int D, bool MORE> constexpr int workers_of = HOPPER_GROUPS(D, MORE) * GROUP;

/* Calls f(T, D, whether there is a grid, whether there are ranges), as types, for this
 * attention. */
template <typename F> static cudaError_t by_kind(const attention *a, F f)
{
    return by_type_and_length<64, 80, 128>(a, [&](auto t, auto d) {
        if (a->mode == ATTENTION_BY_TABLES) return f(t, d, std::true_type(), std::false_type());
        return a->ranges ? f(t, d, std::false_type(), std::true_type()) : f(t, d, std::false_type(), std::false_type());
    });
}

/* Launches a kernel whose blocks have one tile of `queries` queries each or, if `persistent`, as
 * many blocks as there are SMs, which take tile after tile. */
template <typename F>
static cudaError_t start_tasks(F *kernel, int queries, bool persistent, size_t bytes, cudaStream_t stream,
                               const attention *a, const attention_maps *m)
{
    int gpu = 0, most = 1;
    const int64_t items = (int64_t)a->B * a->H * ((a->T + queries - 1) / queries);
    if (items > INT32_MAX / 2) return cudaErrorInvalidValue; /* items are counted in int */
    if (cudaGetDevice(&gpu) != cudaSuccess ||
        cudaDeviceGetAttribute(&most, cudaDevAttrMultiProcessorCount, gpu) != cudaSuccess)
        most = 1;
    return start_kernel(kernel, persistent && items > most ? most : items, 2 * queries + GROUP, bytes, stream, *a, *m);
}
