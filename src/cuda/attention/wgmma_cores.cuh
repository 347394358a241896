/*
 * wgmma_cores.cuh: products of a warpgroup (wgmma_hopper.cuh) from tiles whose rows have any
 * multiple of 8 columns.
 *
 * A tile of R rows is split into core matrices of 8 rows of 8 16-bit numbers, 128 contiguous bytes;
 * a column of cores is R rows of 16 bytes, and the columns follow each other. There is no swizzle
 * and no padding: 80 columns are 160 bytes, where panels of 64 take 256. A core is an operand along
 * its rows and across them, and the part of an accumulator that covers a core is, by warp, its 128
 * bytes in order. TMA has no mode for this layout: rows are loaded by copy16, a core by eight
 * threads.
 *
 *     along     16 columns further: two columns of cores    8 rows further: 128 bytes
 *     across    16 rows further: 256 bytes                  8 columns further: next column of cores
 */
#ifndef WGMMA_CORES_CUH
#define WGMMA_CORES_CUH

#include "cuda/attention/wgmma_hopper.cuh"

/* The offset in bytes of row r and column c in a tile of R rows. */
template <int R> __host__ __device__ constexpr int core_at(int r, int c) { return c / 8 * (R * 16) + r * 16 + c % 8 * 2; }

#if HAS_WGMMA

/* After this and the next barrier, products may read what ordinary stores have written. */
__device__ inline void fence_shared_stores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/* The descriptor of an operand in a tile of R rows, from p on. */
__device__ inline uint64_t core_operand(const void *p, int leading, int stride)
{
    return (uint64_t)((shared_address(p) & 0x3ffff) >> 4) | (uint64_t)(leading >> 4) << 16 | (uint64_t)(stride >> 4) << 32;
}
template <int R> __device__ inline uint64_t cores_along(const void *p) { return core_operand(p, R * 16, 128); }
template <int R> __device__ inline uint64_t cores_across(const void *p) { return core_operand(p, 128, R * 16); }
/* The step to the next 16 of either. */
template <int R> constexpr int along_step = R * 32 >> 4;
constexpr int across_step = 256 >> 4;

/* d (+)= A B, with A and B along their rows or across them. */
#define WGMMA_CORES_16(T, NAME) \
    template <int A_ACROSS, int B_ACROSS> __device__ inline void multiply_cores(float (&d)[8], uint64_t a, uint64_t b, int add, T) \
    { \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %10, 0;\n" \
                     "wgmma.mma_async.sync.aligned.m64n16k16.f32." NAME "." NAME " {" \
                     "%0, %1, %2, %3, %4, %5, %6, %7" \
                     "}, %8, %9, p, 1, 1, %11, %12;\n}" \
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]) \
                     : "l"(a), "l"(b), "r"(add), "n"(A_ACROSS), "n"(B_ACROSS)); \
    }
WGMMA_TYPES(WGMMA_CORES_16)

#define WGMMA_CORES_64(T, NAME) \
    template <int A_ACROSS, int B_ACROSS> __device__ inline void multiply_cores(float (&d)[32], uint64_t a, uint64_t b, int add, T) \
    { \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n" \
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32." NAME "." NAME " {" \
                     "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
                     "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31" \
                     "}, %32, %33, p, 1, 1, %35, %36;\n}" \
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
                       "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), \
                       "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), \
                       "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]) \
                     : "l"(a), "l"(b), "r"(add), "n"(A_ACROSS), "n"(B_ACROSS)); \
    }
WGMMA_TYPES(WGMMA_CORES_64)

#define WGMMA_CORES_80(T, NAME) \
    template <int A_ACROSS, int B_ACROSS> __device__ inline void multiply_cores(float (&d)[40], uint64_t a, uint64_t b, int add, T) \
    { \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %42, 0;\n" \
                     "wgmma.mma_async.sync.aligned.m64n80k16.f32." NAME "." NAME " {" \
                     "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
                     "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
                     "%32, %33, %34, %35, %36, %37, %38, %39" \
                     "}, %40, %41, p, 1, 1, %43, %44;\n}" \
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
                       "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), \
                       "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), \
                       "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), \
                       "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]) \
                     : "l"(a), "l"(b), "r"(add), "n"(A_ACROSS), "n"(B_ACROSS)); \
    }
WGMMA_TYPES(WGMMA_CORES_80)

#define WGMMA_CORES_112(T, NAME) \
    template <int A_ACROSS, int B_ACROSS> __device__ inline void multiply_cores(float (&d)[56], uint64_t a, uint64_t b, int add, T) \
    { \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %58, 0;\n" \
                     "wgmma.mma_async.sync.aligned.m64n112k16.f32." NAME "." NAME " {" \
                     "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
                     "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
                     "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
                     "%48, %49, %50, %51, %52, %53, %54, %55" \
                     "}, %56, %57, p, 1, 1, %59, %60;\n}" \
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
                       "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), \
                       "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), \
                       "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), \
                       "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), \
                       "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), \
                       "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]) \
                     : "l"(a), "l"(b), "r"(add), "n"(A_ACROSS), "n"(B_ACROSS)); \
    }
WGMMA_TYPES(WGMMA_CORES_112)

#define WGMMA_CORES_224(T, NAME) \
    template <int A_ACROSS, int B_ACROSS> __device__ inline void multiply_cores(float (&d)[112], uint64_t a, uint64_t b, int add, T) \
    { \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %114, 0;\n" \
                     "wgmma.mma_async.sync.aligned.m64n224k16.f32." NAME "." NAME " {" \
                     "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
                     "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
                     "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
                     "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
                     "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
                     "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
                     "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
                     "}, %112, %113, p, 1, 1, %115, %116;\n}" \
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
                       "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), \
                       "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), \
                       "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), \
                       "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), \
                       "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), \
                       "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), \
                       "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]), \
                       "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]), \
                       "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]), \
                       "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), \
                       "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]), \
                       "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]), \
                       "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]) \
                     : "l"(a), "l"(b), "r"(add), "n"(A_ACROSS), "n"(B_ACROSS)); \
    }
WGMMA_TYPES(WGMMA_CORES_224)

/* d (+)= x y^T over D columns: 64 rows of a tile of XR rows, and as many rows of a tile of YR rows
 * as d has columns. */
template <typename T, int D, int XR, int YR, int N> __device__ inline void cores_product(float (&d)[N], uint64_t x, uint64_t y, int add)
{
#pragma unroll
    for (int k = 0; k < D / 16; k++) multiply_cores<0, 0>(d, x + k * along_step<XR>, y + k * along_step<YR>, add || k, T());
}
/* d (+)= p y: p in registers, 64 x 16 K; y has 16 K rows, and as many columns as d. Until the wait
 * p must not be overwritten, not even through a copy: ptxas (13.0) merges the copy with p and
 * writes registers that a product still reads. */
template <typename T, int K, int N> __device__ inline void cores_add(float (&d)[N], const unsigned (&p)[4 * K], uint64_t y, int add)
{
#pragma unroll
    for (int k = 0; k < K; k++) multiply<1>(d, p + 4 * k, y + k * across_step, add || k, T());
}

#endif
#endif
