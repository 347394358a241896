/*
 * wgmma_hopper.cuh: the Hopper features used by hopper*.cu and window_hopper.cuh: products
 * of a warpgroup from shared memory (wgmma), copies of tiles by TMA that complete on an mbarrier,
 * and registers reassigned from the producer warps to the consumer warps (setmaxnreg).
 *
 * A tile is [rows][64] 16-bit numbers, rows of 128 bytes, whose 16-byte chunks are swizzled by row
 * as TMA does it (SWIZZLE_128B); a tile of wider rows is several such panels, one after the other.
 * The same panel serves as an operand along its rows (product over columns) and across them
 * (product over rows):
 *
 *     along     16 columns further: 32 bytes         8 rows further: 1024 bytes
 *     across    16 rows further: 2048 bytes          64 columns further: the next panel
 *
 * The accumulator of 64 x N has, by warp, the layout of mma m16n8 (mma.cuh): 16 rows per
 * warp, and d[4n + 2 half + i] is at row lane/4 + 8 half, column 8n + 2 (lane%4) + i. Rounded, it
 * is an operand A.
 */
#pragma once

#include <cuda.h>

#include "cuda/attention/mma.cuh"

constexpr int PANEL = 64;             /* columns of a panel */
constexpr int GROUP = 128;            /* threads of a warpgroup */
template <int D> constexpr int panels_of = (D + PANEL - 1) / PANEL;
template <int D, int ROWS> constexpr int tile_bytes = ROWS * panels_of<D> * 128;

/* A tile of queries of a head, and the keys that it sees; head < 0: none. */
struct task {
    int head, b, h, g, t0;
    span keys;
};

/* --- barriers --------------------------------------------------------------------------------- */

__device__ inline void barrier_init(uint64_t *bar, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(bar)), "r"(arrivals) : "memory");
}
__device__ inline void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ inline void barrier_arrive(uint64_t *bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(bar)) : "memory");
}
/* Arrives for a warp whose threads have read by ordinary loads, each at its own time; for products
 * the warp waits as one. */
__device__ inline void barrier_arrive_warp(uint64_t *bar)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(bar);
}
__device__ inline void barrier_expect(uint64_t *bar, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(bar)), "r"(bytes)
                 : "memory");
}
__device__ inline void barrier_wait(uint64_t *bar, int phase)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@done bra ready;\n"
                 "bra again;\n"
                 "ready:\n"
                 "}" ::"r"(shared_address(bar)), "r"(phase) : "memory");
}

/* A ring of slots: the slot, and the phase of its round. */
struct ring_slot {
    int slot, phase;
};
template <int SLOTS> __device__ inline void next(ring_slot &t)
{
    if (++t.slot == SLOTS) t.slot = 0, t.phase ^= 1;
}

/* --- copies ----------------------------------------------------------------------------------- */

__device__ inline void fetch4(void *to, const CUtensorMap *map, int c0, int c1, int c2, int c3, uint64_t *bar)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, "
                 "{%2,%3,%4,%5}], [%6];" ::"r"(shared_address(to)),
                 "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(shared_address(bar))
                 : "memory");
}
__device__ inline void fetch2(void *to, const CUtensorMap *map, int c0, int c1, uint64_t *bar)
{
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2,%3}], [%4];" ::
            "r"(shared_address(to)),
        "l"(map), "r"(c0), "r"(c1), "r"(shared_address(bar))
        : "memory");
}
/* Copies rows of a head into panels of N rows. */
template <int N, int PANELS>
__device__ inline void fetch_rows(void *to, const CUtensorMap *map, int b, int h, int first, uint64_t *bar)
{
    each<PANELS>([&](int p) { fetch4(static_cast<char *>(to) + p * N * 128, map, p * PANEL, h, first, b, bar); });
}

/* --- products --------------------------------------------------------------------------------- */

/* A block's warps exchange the registers that it was launched with, and registers_inc waits for
 * ever for more: 384 threads have 168 each, 2 x 128 x 240 + 128 x 24; 512 have 128, 3 x 128 x 160 +
 * 128 x 32. */
template <int n> __device__ inline void registers_inc()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(n));
}
template <int n> __device__ inline void registers_dec()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(n));
}

__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/* Waits until all but the latest n committed groups are done. */
template <int n> __device__ inline void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n) : "memory");
}
/* Prevents the compiler from moving registers that a product in flight writes. */
template <int N> __device__ inline void pin_registers(float (&d)[N])
{
    each<N>([&](int i) { asm volatile("" : "+f"(d[i])::"memory"); });
}
template <int N> __device__ inline void pin_registers(unsigned (&d)[N])
{
    each<N>([&](int i) { asm volatile("" : "+r"(d[i])::"memory"); });
}

/* Issues products as a group; issues products into d and waits for them. */
template <typename F> __device__ inline void issue(F products)
{
    wgmma_fence();
    products();
    wgmma_commit();
}
template <int N, typename F> __device__ inline void multiply_now(float (&d)[N], F products)
{
    pin_registers(d);
    issue(products);
    wgmma_wait<0>();
    pin_registers(d);
}

/* Returns the wgmma descriptor of an operand in shared memory. `far` is the distance between
 * panels, for operands across. */
__device__ inline uint64_t operand_at(const void *p, int far)
{
    return (uint64_t)((shared_address(p) & 0x3ffff) >> 4) | (uint64_t)(far >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 |
           (uint64_t)1 << 62;
}
constexpr int ALONG_STEP = 32 >> 4, ACROSS_STEP = 2048 >> 4; /* the descriptor's step to the next 16 */

/* The registers of an accumulator as operands of an instruction: their numbers, and what is bound
 * to them. */
#define NUMBERS_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define NUMBERS_32 \
    NUMBERS_8 ", %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, " \
              "%28, %29, %30, %31"
#define NUMBERS_40 NUMBERS_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define NUMBERS_56 NUMBERS_40 ", %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55"
#define NUMBERS_64 NUMBERS_56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define NUMBERS_112                                                                                                    \
    NUMBERS_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, "     \
               "%83, %84, %85, %86, %87"                                                                               \
               ", %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, "    \
               "%106, %107, %108, %109, %110, %111"
#define BOUND(i) \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
        "+f"(d[i + 7])
#define BOUND_8 BOUND(0)
#define BOUND_32 BOUND_8, BOUND(8), BOUND(16), BOUND(24)
#define BOUND_40 BOUND_32, BOUND(32)
#define BOUND_56 BOUND_40, BOUND(40), BOUND(48)
#define BOUND_64 BOUND_56, BOUND(56)
#define BOUND_112 BOUND_64, BOUND(64), BOUND(72), BOUND(80), BOUND(88), BOUND(96), BOUND(104)

/* d (+)= A B, for 64 rows of A and N columns of B, R registers of d: A in shared memory or in
 * registers, both along their rows or across them. The last arguments are the numbers of the
 * operands behind d. */
#define WGMMA(N, R, NAME, FACTORS, ADD) \
    "{\n.reg .pred p;\nsetp.ne.b32 p, %" #ADD ", 0;\n" \
    "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME " {" NUMBERS_##R "}, " FACTORS ";\n}"
#define WGMMA_SHARED_OF(T, NAME, N, R, A, B, ADD, TURN_A, TURN_B) \
    template <int A_ACROSS, int B_ACROSS> \
    __device__ inline void multiply(float (&d)[R], uint64_t a, uint64_t b, int add, T) \
    { \
        asm volatile(WGMMA(N, R, NAME, "%" #A ", %" #B ", p, 1, 1, %" #TURN_A ", %" #TURN_B, ADD) \
                     : BOUND_##R \
                     : "l"(a), "l"(b), "r"(add), "n"(A_ACROSS), "n"(B_ACROSS)); \
    }
#define WGMMA_HELD_OF(T, NAME, N, R, A0, A1, A2, A3, B, ADD, TURN_B) \
    template <int B_ACROSS> __device__ inline void multiply(float (&d)[R], const unsigned *a, uint64_t b, int add, T) \
    { \
        asm volatile(WGMMA(N, R, NAME, "{%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", p, 1, 1, %" #TURN_B, ADD) \
                     : BOUND_##R \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(B_ACROSS)); \
    }
#define WGMMA_SHARED(...) \
    WGMMA_SHARED_OF(__nv_bfloat16, "bf16", __VA_ARGS__) WGMMA_SHARED_OF(__half, "f16", __VA_ARGS__)
#define WGMMA_HELD(...) WGMMA_HELD_OF(__nv_bfloat16, "bf16", __VA_ARGS__) WGMMA_HELD_OF(__half, "f16", __VA_ARGS__)
WGMMA_SHARED(16, 8, 8, 9, 10, 11, 12)
WGMMA_SHARED(64, 32, 32, 33, 34, 35, 36)
WGMMA_SHARED(80, 40, 40, 41, 42, 43, 44)
WGMMA_SHARED(112, 56, 56, 57, 58, 59, 60)
WGMMA_SHARED(128, 64, 64, 65, 66, 67, 68)
WGMMA_SHARED(224, 112, 112, 113, 114, 115, 116)
WGMMA_HELD(64, 32, 32, 33, 34, 35, 36, 37, 38)
WGMMA_HELD(80, 40, 40, 41, 42, 43, 44, 45, 46)
WGMMA_HELD(128, 64, 64, 65, 66, 67, 68, 69, 70)

/* d (+)= x y^T over D columns: 64 rows of x, N of y; x of XROWS rows to a panel, y of YROWS. */
template <typename T, int D, int XROWS, int YROWS, int N>
__device__ inline void product_along(float (&d)[N], uint64_t x, uint64_t y, int add)
{
    each<D / 16>([&](int k) {
        const int in = k % 4 * ALONG_STEP, panel = k / 4 * (128 >> 4);
        multiply<0, 0>(d, x + in + panel * XROWS, y + in + panel * YROWS, add || k, T());
    });
}
/* The same with x in registers: this saves reading an operand from shared memory, which limits the
 * product at 64 columns of d. */
template <typename T, int D, int YROWS, int N>
__device__ inline void product_along(float (&d)[N], const unsigned (&x)[D / 4], uint64_t y, int add)
{
    each<D / 16>(
        [&](int k) { multiply<0>(d, x + 4 * k, y + k % 4 * ALONG_STEP + k / 4 * (128 >> 4) * YROWS, add || k, T()); });
}
/* Loads the warp's 16 rows of a tile as operand A. */
template <int D, int ROWS> __device__ inline void load_rows(unsigned (&x)[D / 4], const char *tile, int first)
{
    const int lane = threadIdx.x % 32, row = first + lane % 16;
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        const int chunk = k % 4 * 2 + lane / 16;
        load4(*reinterpret_cast<unsigned(*)[4]>(&x[4 * k]),
              tile + k / 4 * ROWS * 128 + row * 128 + (chunk ^ row % 8) * 16);
    }
}
/* d += p y: p in registers, 64 x 16 K; y has 16 K rows, and as many columns as d. */
template <typename T, int K, int N>
__device__ inline void product_across(float (&d)[N], const unsigned (&p)[4 * K], uint64_t y, int add)
{
    each<K>([&](int k) { multiply<1>(d, p + 4 * k, y + k * ACROSS_STEP, add || k, T()); });
}

/* Both as a group of products, which is to be waited for. */
template <typename T, int D, int XROWS, int YROWS, int N>
__device__ inline void issue_along(float (&d)[N], uint64_t x, uint64_t y, int add)
{
    wgmma_fence();
    product_along<T, D, XROWS, YROWS>(d, x, y, add);
    wgmma_commit();
}
template <typename T, int K, int N>
__device__ inline void issue_across(float (&d)[N], const unsigned (&p)[4 * K], uint64_t y, int add)
{
    wgmma_fence();
    product_across<T, K>(d, p, y, add);
    wgmma_commit();
}

/* --- work ------------------------------------------------------------------------------------- */

/* The n-th task of this block. Causal: the longest first over all heads, with every other round
 * reversed, so that blocks finish together. Otherwise the tiles of one head are adjacent, because
 * they share its keys. */
template <int QUERIES> __device__ inline task task_of(const attention &a, int n, int items)
{
    const int tiles = (a.T + QUERIES - 1) / QUERIES, heads = a.B * a.H;
    const int i = n * (int)gridDim.x + (a.causal && n % 2 ? (int)gridDim.x - 1 - (int)blockIdx.x : (int)blockIdx.x);
    if (i >= items) return {-1, 0, 0, 0, 0, {0, 0}};
    const int head = a.causal ? i % heads : i / tiles, t0 = (a.causal ? tiles - 1 - i / heads : i % tiles) * QUERIES,
              h = head % a.H;
    return {head, head / a.H, h, h / (a.H / a.G), t0, keys_of(a, t0, QUERIES)};
}

/* The range of those keys, in tiles of KEYS, that the warpgroup's own 64 queries see; it skips the
 * others. */
template <int KEYS> __device__ inline span own_keys(const attention &a, const task &x)
{
    const int t0 = x.t0 + (int)threadIdx.x / GROUP * 64;
    if (t0 >= a.T) return {x.keys.end, x.keys.end};
    const span own = keys_of(a, t0, 64);
    return {x.keys.begin + max(0, own.begin - x.keys.begin) / KEYS * KEYS, own.end};
}

/* --- numbers ---------------------------------------------------------------------------------- */

/* Rounds an accumulator to an operand A. */
template <typename T, int N> __device__ inline void round_all(unsigned (&a)[N / 2], const float (&d)[N])
{
    each<N / 2>([&](int i) { a[i] = both(d[2 * i], d[2 * i + 1], T()); });
}
/* Stores the warp's 16 rows of an accumulator, times the factor of each half, to rows of x from
 * `first` on. */
template <typename T, int N>
__device__ inline void store_block(const head_rows &x, int64_t b, int64_t h, int first, int count, const float (&d)[N],
                                   float upper, float lower)
{
    const int lane = threadIdx.x % 32, column = lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int t = first + lane / 4 + 8 * half;
        if (t >= count) continue;
        const float factor = half ? lower : upper;
        T *to = row_at<T>(x, b, t, h) + column;
#pragma unroll
        for (int n = 0; n < N / 4; n++) {
            if (8 * n >= stored_columns<2 * N>(x)) continue;
            *reinterpret_cast<unsigned *>(to + 8 * n) =
                both(d[4 * n + 2 * half] * factor, d[4 * n + 2 * half + 1] * factor, T());
        }
    }
}
/* Synchronizes the consumer threads; the producer warps do not take part. */
template <int THREADS> __device__ inline void named_barrier_sync(int name)
{
    asm volatile("bar.sync %0, %1;" ::"r"(name), "n"(THREADS) : "memory");
}
