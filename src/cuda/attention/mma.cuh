/*
 * mma.cuh: copies into shared memory, fragments and products on tensor cores (cp.async,
 * ldmatrix, mma.sync), shared by all tensor-core attention kernels and conv_tiles.cu.
 *
 * A warp multiplies 16 rows; a fragment's registers hold, with row = lane / 4 and column = 2 (lane
 * % 4):
 *
 *     A 16x16   {row, column..} {row+8, column..} {row, column+8..} {row+8, column+8..}
 *     C 16x8    {row, column} {row, column+1} {row+8, column} {row+8, column+1}
 *
 * so two adjacent C fragments, rounded, are an A fragment: products chain without shared memory.
 *
 * In the tiles of copy_rows, product_rows and product_add the row pitch is D + 8 elements, an odd
 * number of 16-byte chunks: the eight rows that one ldmatrix reads are in different banks.
 * tiles.cuh uses a swizzle instead.
 */
#pragma once

#include "cuda/attention/attention.cuh"
#include "cuda/attention/work.h"

constexpr int WARPS = FAST_WARPS, FAST_BLOCK = WARPS * 32, HELD = FAST_HELD; /* HELD: rows that a block holds */

/* Whether the tensor cores multiply type T: 7.5 only f16, and without cp.async. */
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
#define HAS_BF16 1
#else
#define HAS_BF16 0
#endif
template <typename T> __device__ constexpr bool multiplies() { return HAS_BF16 || std::is_same<T, __half>::value; }

__device__ inline unsigned shared_address(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }

/* Copies 16 bytes to a shared address, zeros if not `there`; copies 4 bytes. */
#if HAS_BF16
__device__ inline void copy_to(unsigned to, const void *from, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}
__device__ inline void copy4_to(unsigned to, const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, 4;" ::"r"(to), "l"(from) : "memory");
}
__device__ inline void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/* Waits until all but the latest n groups have arrived. */
template <int n> __device__ inline void copy_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory"); }
#else
__device__ inline void copy_to(unsigned to, const void *from, bool there)
{
    const uint4 x = there ? *static_cast<const uint4 *>(from) : uint4{0, 0, 0, 0};
    asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}
__device__ inline void copy4_to(unsigned to, const void *from)
{
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(*static_cast<const unsigned *>(from)) : "memory");
}
__device__ inline void copy_commit() {}
template <int n> __device__ inline void copy_wait() {}
#endif
__device__ inline void store_to(unsigned to, int x)
{
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
}
__device__ inline void copy16(void *to, const void *from, bool there) { copy_to(shared_address(to), from, there); }

/* Copies rows first .. first+N of a head; zeros beyond `count`. */
template <typename T, int D, int N>
__device__ inline void copy_rows(T *to, const head_rows &x, int64_t b, int64_t h, int first, int count)
{
    constexpr int CHUNKS = D / 8;
    for (int i = threadIdx.x; i < N * CHUNKS; i += FAST_BLOCK) {
        const int r = i / CHUNKS, d = i % CHUNKS * 8;
        const bool there = first + r < count;
        copy16(to + r * (D + 8) + d, row_at<T>(x, b, there ? first + r : 0, h) + d, there);
    }
}

/* Four 8x8 blocks at a shared address, as they are and transposed; at a pointer. */
#define LDMATRIX(NAME, TURN) \
    __device__ inline void NAME(unsigned (&r)[4], unsigned at) \
    { \
        asm volatile("ldmatrix.sync.aligned.m8n8.x4" TURN ".shared.b16 {%0,%1,%2,%3}, [%4];" \
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory"); \
    }
LDMATRIX(read4, "")
LDMATRIX(read4_transposed, ".trans")
__device__ inline void load4(unsigned (&r)[4], const void *p) { read4(r, shared_address(p)); }
__device__ inline void load4_transposed(unsigned (&r)[4], const void *p) { read4_transposed(r, shared_address(p)); }

__device__ inline float power_of_two(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* c [16][8] += a [16][8] b [8][8]; c += a [16][16] b [16][8]. Before 8.0 the latter in two
 * halves. */
#define MMA8(T, NAME) \
    __device__ inline void mma8(float (&c)[4], unsigned a0, unsigned a1, unsigned b, T) \
    { \
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32." NAME "." NAME ".f32 " \
                     "{%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};" \
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) \
                     : "r"(a0), "r"(a1), "r"(b)); \
    }
#define MMA16(T, NAME) \
    __device__ inline void mma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, T) \
    { \
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." NAME "." NAME ".f32 " \
                     "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1)); \
    }
MMA8(__half, "f16")
#if HAS_BF16
MMA8(__nv_bfloat16, "bf16")
MMA16(__half, "f16")
MMA16(__nv_bfloat16, "bf16")
#else
__device__ inline void mma8(float (&)[4], unsigned, unsigned, unsigned, __nv_bfloat16) {}
__device__ inline void mma(float (&)[4], const unsigned (&)[4], unsigned, unsigned, __nv_bfloat16) {}
__device__ inline void mma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, __half)
{
    mma8(c, a[0], a[1], b0, __half()), mma8(c, a[2], a[3], b1, __half());
}
#endif

/* Packs two adjacent elements, the first in the lower half. */
__device__ inline unsigned both(float x, float y, __nv_bfloat16)
{
    const __nv_bfloat162 z = __floats2bfloat162_rn(x, y);
    return *reinterpret_cast<const unsigned *>(&z);
}
__device__ inline unsigned both(float x, float y, __half)
{
    const __half2 z = __floats2half2_rn(x, y);
    return *reinterpret_cast<const unsigned *>(&z);
}

/* The A fragment of columns 16 k .. from a row of C fragments. */
template <typename T, int N> __device__ inline void round_to(unsigned (&a)[4], const float (&c)[N][4], int k)
{
    a[0] = both(c[2 * k][0], c[2 * k][1], T()), a[1] = both(c[2 * k][2], c[2 * k][3], T());
    a[2] = both(c[2 * k + 1][0], c[2 * k + 1][1], T()), a[3] = both(c[2 * k + 1][2], c[2 * k + 1][3], T());
}

/* The 16 rows of the right operand that a lane's ldmatrix reads, in a tile of rows of D + 8: along
 * its rows, or across them. The left operand has lane_across. */
template <typename T, int D> __device__ inline const T *lane_along(const T *y)
{
    const int lane = threadIdx.x % 32;
    return y + (lane / 16 * 8 + lane % 8) * (D + 8) + lane / 8 % 2 * 8;
}
template <typename T, int ROW> __device__ inline const T *lane_across(const T *y)
{
    return y + threadIdx.x % 16 * ROW + threadIdx.x % 32 / 16 * 8;
}

/* c [16][8N] += 16 columns a of the warp's rows times rows of y [8N][16]. `y`: the lane's
 * address. */
template <typename T, int D, int N>
__device__ inline void add_along(float (&c)[N][4], const unsigned (&a)[4], const T *y)
{
    each<N / 2>([&](int n) {
        unsigned b[4];
        load4(b, y + n * 16 * (D + 8));
        mma(c[2 * n], a, b[0], b[1], T());
        mma(c[2 * n + 1], a, b[2], b[3], T());
    });
}
/* c [16][D] += 16 columns a of the warp's rows times y [16][D], likewise. */
template <typename T, int D> __device__ inline void add_across(float (&c)[D / 8][4], const unsigned (&a)[4], const T *y)
{
#pragma unroll
    for (int n = 0; n < D / 8; n += 2) {
        unsigned b[4];
        load4_transposed(b, y + n * 8);
        mma(c[n], a, b[0], b[1], T());
        mma(c[n + 1], a, b[2], b[3], T());
    }
}

/* c [16][8N] = rows of x (the warp's 16) times rows of y (8N), over D. */
template <typename T, int D, int N> __device__ inline void product_rows(float (&c)[N][4], const T *x, const T *y)
{
    const T *left = lane_across<T, D + 8>(x), *right = lane_along<T, D>(y);
    each<N>([&](int n) { c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0; });
    each<D / 16>([&](int i) {
        unsigned a[4];
        load4(a, left + 16 * i);
        add_along<T, D>(c, a, right + 16 * i);
    });
}

/* c [16][D] += p [16][8N], rounded, times rows of y [8N][D]. */
template <typename T, int D, int N>
__device__ inline void product_add(float (&c)[D / 8][4], const float (&p)[N][4], const T *y)
{
    const T *right = lane_across<T, D + 8>(y);
    each<N / 2>([&](int k) {
        unsigned a[4];
        round_to<T, N>(a, p, k);
        add_across<T, D>(c, a, right + k * 16 * (D + 8));
    });
}

/* The same with p already rounded: rows of x, K long, in shared memory. `left`, `right`: the lane's
 * addresses. */
template <typename T, int D, int K, int UNROLLED = K / 16>
__device__ inline void add_product(float (&c)[D / 8][4], const T *left, const T *right)
{
#pragma unroll UNROLLED
    for (int k = 0; k < K; k += 16) {
        unsigned a[4];
        load4(a, left + k);
        add_across<T, D>(c, a, right + k * (D + 8));
    }
}
/* x has the pitch XROW, and the warp's rows begin at `first`. */
template <typename T, int D, int K, int XROW>
__device__ inline void product_add(float (&c)[D / 8][4], const T *x, int first, const T *y)
{
    add_product<T, D, K>(c, lane_across<T, XROW>(x + first * XROW), lane_across<T, D + 8>(y));
}

/* Stores a thread's part of the upper or lower row of C fragments, times `factor`. */
template <typename T, int N>
__device__ inline void store_half(T *row, const float (&c)[N][4], int half, float factor, int columns = 8 * N)
{
    T *to = row + threadIdx.x % 4 * 2;
    each<N>([&](int n) {
        if (8 * n >= columns) return;
        *reinterpret_cast<unsigned *>(to + 8 * n) = both(c[n][2 * half] * factor, c[n][2 * half + 1] * factor, T());
    });
}
/* Stores the warp's 16 rows, times the factor of each half, to rows of x from `first` on. */
template <typename T, int D>
__device__ inline void store_rows(const head_rows &x, int64_t b, int64_t h, int first, int count,
                                  const float (&c)[D / 8][4], float upper, float lower)
{
    each<2>([&](int half) {
        const int t = first + threadIdx.x % 32 / 4 + 8 * half;
        if (t < count) store_half(row_at<T>(x, b, t, h), c, half, half ? lower : upper, stored_columns<D>(x));
    });
}

/* --- scores ----------------------------------------------------------------------------------- */

/* Reports whether every query of a tile sees every key of another, by position. */
__device__ inline bool all_seen(const attention &a, int t0, int tn, int s0, int sn)
{
    const int cell = a.S - a.T;
    return (!a.causal || s0 + sn - 1 <= t0 + cell) && (int64_t)t0 + tn - 1 + cell - s0 < a.window;
}

/* Returns the grid cell (row, column) of a token, packed; bias_between is the index of the bias
 * between two cells in a head's row. */
__device__ inline int grid_cell(const attention &a, int t) { return t / a.width << 16 | t % a.width; }
__device__ inline int bias_between(const attention &a, int x, int y)
{
    return abs((x >> 16) - (y >> 16)) * a.width + abs((x & 0xffff) - (y & 0xffff));
}
