/*
 * ranges.cu: what the attention kernels read instead of the ranges of keys (work.h): the ranges
 * within 0 .. S with the window applied, the bounds of each 64 queries, and the tiles in the order
 * of their work, the longest first: blocks take the next tile when they are done with one, and so
 * end together. The order changes no result.
 */
#include "cuda/attention/ranges.cuh"

constexpr int THREADS = RANGES_THREADS, SIXTY_FOURS = RANGES_TILES; /* a warp has 64 queries at a time */

static __device__ span clean_range(const attention &a, int64_t b, int t)
{
    if (t >= a.T) return {0, 0};
    const int32_t *from = a.ranges + (b * a.T + t) * 2;
    const int64_t last = from[1], first = max((int64_t)from[0], a.window < INT32_MAX ? last - a.window : INT64_MIN);
    const int64_t begin = max(first, (int64_t)0), end = min(last, (int64_t)a.S);
    return begin < end ? span{(int)begin, (int)end} : span{0, 0};
}

/* Reports whether another document begins between neighbours: their ranges are disjoint. */
static __device__ bool are_apart(const span &x, const span &y) { return max(x.begin, y.begin) >= min(x.end, y.end); }

static __device__ int warp_min(int x)
{
    for (int m = 16; m > 0; m /= 2) x = min(x, __shfl_xor_sync(0xffffffffu, x, m));
    return x;
}
static __device__ int warp_max(int x) { return -warp_min(-x); }

/* Stores the ranges and bounds of 64 queries; a lane has two adjacent queries. */
static __device__ void store_bounds(const attention &a, int64_t i)
{
    const int lane = threadIdx.x % 32, tiles = (a.T + 63) / 64, t = (int)(i % tiles) * 64 + 2 * lane;
    const int64_t b = i / tiles;
    const span x = clean_range(a, b, t), y = clean_range(a, b, t + 1);
    reinterpret_cast<int4 *>(a.seen)[(i * 64 + 2 * lane) / 2] = {x.begin, x.end, y.begin, y.end};
    span before = {__shfl_up_sync(0xffffffffu, y.begin, 1), __shfl_up_sync(0xffffffffu, y.end, 1)};
    if (lane == 0 && t > 0) before = clean_range(a, b, t - 1);
    const bool fresh = t > 0 && t < a.T && are_apart(before, x), inner = t + 1 < a.T && are_apart(x, y);
    const unsigned apart = __ballot_sync(0xffffffffu, fresh) & ~1u, within = __ballot_sync(0xffffffffu, inner);
    const bool any[2] = {x.begin < x.end, y.begin < y.end}, there[2] = {t < a.T, t + 1 < a.T};
    range_bounds r = {};
    r.begin = warp_min(min(any[0] ? x.begin : INT32_MAX, any[1] ? y.begin : INT32_MAX));
    r.end = warp_max(max(x.end, y.end));
    r.all_begin = warp_max(max(there[0] && !any[0] ? INT32_MAX : x.begin, there[1] && !any[1] ? INT32_MAX : y.begin));
    r.all_end = warp_min(min(there[0] ? x.end : INT32_MAX, there[1] ? y.end : INT32_MAX));
    r.border = (apart | within) != 0;
    r.fresh = fresh;
    if (lane == 0) a.bounds[i] = r;
}

/* Sorts n tiles by their work, a number of up to THREADS - 1: counts, sums of the counts,
 * places. */
template <typename F> static __device__ void sort_tiles(int32_t *order, int n, F work)
{
    __shared__ int count[THREADS], sums[32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const auto place = [&](int i) { return THREADS - 1 - min(work(i), THREADS - 1); };
    count[threadIdx.x] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += THREADS) atomicAdd(&count[place(i)], 1);
    __syncthreads();
    const int own = count[threadIdx.x];
    int sum = own;
    for (int m = 1; m < 32; m *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, sum, m);
        if (lane >= m) sum += other;
    }
    if (lane == 31) sums[warp] = sum;
    __syncthreads();
    for (int w = 0; w < warp; w++) sum += sums[w];
    count[threadIdx.x] = sum - own; /* where the first of them goes */
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += THREADS) order[atomicAdd(&count[place(i)], 1)] = i;
    __syncthreads();
}

/* What each 64 queries see, in shared memory if it fits. */
struct seen_keys {
    enum { MOST = 2048 };
    const attention &a;
    const int2 *kept; /* nullptr: they are too many */
    __device__ int2 operator[](int i) const { return kept ? kept[i] : int2{a.bounds[i].begin, a.bounds[i].end}; }
};

/* Counts the 64s of queries that see one of the keys s0 .. s0+keys; a warp counts. */
static __device__ int count_queries(const seen_keys &seen, int first, int n, int s0, int keys)
{
    int count = 0;
    for (int t = threadIdx.x % 32; t < n; t += 32) {
        const int2 x = seen[first + t];
        count += x.x < s0 + keys && x.y > s0;
    }
    for (int m = 16; m > 0; m /= 2) count += __shfl_xor_sync(0xffffffffu, count, m);
    return count;
}

static __device__ void sort_all(const attention &a, int queries, int keys)
{
    __shared__ int2 kept[seen_keys::MOST];
    const int tiles = queries ? (a.T + queries - 1) / queries : 0, key_tiles = keys ? (a.S + keys - 1) / keys : 0,
              sixty_fours = (a.T + 63) / 64;
    const int all = a.B * sixty_fours;
    const seen_keys seen = {a, all <= seen_keys::MOST ? kept : nullptr};
    if (threadIdx.x < 2) a.taken[threadIdx.x] = 0;
    for (int i = threadIdx.x; i < all && seen.kept; i += THREADS) kept[i] = {a.bounds[i].begin, a.bounds[i].end};
    __syncthreads();
    if (queries)
        sort_tiles(a.order, a.B * tiles, [&](int i) {
            const int first = i % tiles * (queries / 64);
            int2 x = {INT32_MAX, 0};
            for (int t = first; t < min(first + queries / 64, sixty_fours); t++) {
                const int2 one = seen[i / tiles * sixty_fours + t];
                x = {min(x.x, one.x), max(x.y, one.y)};
            }
            return max(0, x.y - x.x + 63) / 64;
        });
    if (keys) {
        int32_t *work = a.key_order + a.B * ((a.S + 63) / 64);
        for (int i = threadIdx.x / 32; i < a.B * key_tiles; i += THREADS / 32) {
            const int n = count_queries(seen, i / key_tiles * sixty_fours, sixty_fours, i % key_tiles * keys, keys);
            if (threadIdx.x % 32 == 0) work[i] = n;
        }
        __syncthreads();
        sort_tiles(a.key_order, a.B * key_tiles, [&](int i) { return work[i]; });
    }
}

/* Stores bounds and, if it is one block, the order too; of several blocks each does a part, and the
 * order follows in a launch of its own. */
__global__ void __launch_bounds__(THREADS) ranges_kernel(const attention a, int queries, int keys)
{
    const int64_t n = (int64_t)a.B * ((a.T + 63) / 64);
    for (int64_t i = (int64_t)blockIdx.x * SIXTY_FOURS + threadIdx.x / 32; i < n; i += (int64_t)gridDim.x * SIXTY_FOURS)
        store_bounds(a, i);
    if (gridDim.x > 1) return;
    __syncthreads();
    sort_all(a, queries, keys);
}
__global__ void __launch_bounds__(THREADS) order_kernel(const attention a, int queries, int keys)
{
    sort_all(a, queries, keys);
}

extern "C" cudaError_t cuda_attention_ranges(const struct attention *a, int queries, int keys, enum seen_form form,
                                             cudaStream_t stream)
{
    const int64_t n = (int64_t)a->B * ((a->T + 63) / 64), blocks = ranges_blocks(a->B, a->T);
    /* tiles are counted in int */
    if (n > INT32_MAX / 4 || form != seen_form(a->B, a->T, a->ranges != nullptr, queries || keys))
        return cudaErrorInvalidValue;
    const cudaError_t rc = start_kernel(ranges_kernel,
                                        blocks <= RANGES_ALONE ? 1
                                        : blocks < 256         ? blocks
                                                               : 256,
                                        THREADS, 0, stream, *a, queries, keys);
    return rc == cudaSuccess && form == SEEN_RANGES_APART
               ? start_kernel(order_kernel, 1, THREADS, 0, stream, *a, queries, keys)
               : rc;
}
