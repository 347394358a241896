/*
 * grouped_tiles.cu: GROUPED_LINEAR and GROUPED_DW of bf16 and f16 on tensor cores, from compute
 * capability 8.0 on.
 *
 * A factor of the product passes through shared memory in steps of STEP of the depth, several of
 * which are in flight. It lies there as in memory, along its depth or across it:
 *
 *     GROUPED_LINEAR    x along, w along or, turned, across     [128 or 64][32]    [32][128]
 *     GROUPED_DW        dy and x across: the depth is rows
 *
 * Its 16-byte chunks are swizzled (tiles.cuh); what lies across is transposed as ldmatrix reads it.
 * Rows and columns beyond the matrices are zeros. Eight warps have two by four parts of the tile.
 */
#include "cuda/attention/tiles.cuh"
#include "cuda/products/grouped.cuh"

constexpr int STEP = 32, STAGES = 4, DOWN = 2, ACROSS_WARPS = BLOCK / 32 / DOWN, COLUMNS = GROUPED_COLUMNS;

/* A factor of WIDE rows or columns of the tile, in shared memory. LINE: the numbers of a line. */
template <bool ACROSS, int WIDE> struct part {
    static constexpr int LINE = ACROSS ? WIDE : STEP, LINES = ACROSS ? STEP : WIDE, CHUNKS = LINE / 8,
                         BYTES = WIDE * STEP * 2;
    static_assert(LINES * CHUNKS % BLOCK == 0, "every thread copies the same number of chunks");

    /* Copies a step; zeros beyond `wide` and `deep`. */
    template <typename T> static __device__ void fetch(unsigned to, const T *from, int64_t pitch, int wide, int deep)
    {
        each<LINES * CHUNKS / BLOCK>([&](int k) {
            const int n = k * BLOCK + (int)threadIdx.x, line = n / CHUNKS, chunk = n % CHUNKS;
            const bool there = line < (ACROSS ? deep : wide) && chunk * 8 < (ACROSS ? wide : deep);
            copy_to(to + chunk_offset<LINE>(line, chunk), there ? from + line * pitch + chunk * 8 : from, there);
        });
    }

    /* Returns the offset that a lane's ldmatrix reads, for the 16 from `first` on: of the left
     * operand, of the right one. */
    static __device__ unsigned left(int lane, int first)
    {
        if (!ACROSS) return ldmatrix_left<LINE>(lane) + first * 2 * LINE;
        return tile_column<LINE>(chunk_offset<LINE>(lane / 16 * 8 + lane % 8, lane / 8 % 2), first / 16);
    }
    static __device__ unsigned right(int lane, int first)
    {
        if (!ACROSS) return ldmatrix_right<LINE>(lane) + first * 2 * LINE;
        return tile_column<LINE>(ldmatrix_left<LINE>(lane), first / 16);
    }

    /* Reads the n-th 16 from there on, of the k-th 16 of the depth. `n` does not leave the line of
     * the swizzle. */
    static __device__ void read(unsigned (&r)[4], unsigned at, int n, int k)
    {
        if (ACROSS) read4_transposed(r, (at ^ (n * 32)) + k * 16 * 2 * LINE);
        else read4(r, tile_column<LINE>(at, k) + n * 16 * 2 * LINE);
    }
};

/* Stores two adjacent results, which an R in f32 can be added to. */
template <typename R> static __device__ inline void put(R *to, float x, float y, bool add)
{
    if constexpr (std::is_same<R, float>::value) {
        float2 *at = reinterpret_cast<float2 *>(to);
        const float2 old = add ? *at : make_float2(0, 0);
        *at = make_float2(old.x + x, old.y + y);
    } else *reinterpret_cast<unsigned *>(to) = both(x, y, R());
}

template <bool DW, bool TURNED, int ROWS> struct config {
    typedef part<DW, ROWS> left;
    typedef part<DW || TURNED, COLUMNS> right;
    static constexpr int STAGE = left::BYTES + right::BYTES, BYTES = STAGES * STAGE;
    static constexpr int HIGH = ROWS / DOWN, LONG = COLUMNS / ACROSS_WARPS; /* per warp */
};

template <typename T, typename R, bool DW, bool TURNED, int ROWS>
static __global__ void __launch_bounds__(BLOCK, 2) tiles_kernel(R *c, const T *a, const T *b, grouped g)
{
#if HAS_BF16
    typedef config<DW, TURNED, ROWS> config;
    constexpr int M = config::HIGH / 16, N = config::LONG / 8;
    extern __shared__ __align__(128) char shared[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, i0 = warp % DOWN * config::HIGH,
              j0 = warp / DOWN * config::LONG;
    tile t;
    if (!find_tile<DW, ROWS, COLUMNS>(t, g)) return;
    const unsigned base = shared_address(shared);
    const unsigned x = base + config::left::left(lane, i0),
                   y = base + config::left::BYTES + config::right::right(lane, j0);
    const int64_t a_pitch = DW ? g.a.deep : g.a.wide, b_pitch = DW || TURNED ? g.b.deep : g.b.wide;
    const int steps = (t.depth + STEP - 1) / STEP;
    a += t.a, b += t.b, c += t.c;
    auto fetch = [&](int s) {
        if (s < steps) {
            const int d = s * STEP;
            const unsigned to = base + s % STAGES * config::STAGE;
            config::left::fetch(to, a + d * g.a.deep, a_pitch, t.rows, t.depth - d);
            config::right::fetch(to + config::left::BYTES, b + d * g.b.deep, b_pitch, t.columns, t.depth - d);
        }
        copy_commit();
    };
    float sum[M][N][4];
    clear(sum);
    for (int s = 0; s < STAGES - 1; s++) fetch(s);
    for (int s = 0; s < steps; s++) {
        copy_wait<STAGES - 2>();
        __syncthreads(); /* step s has arrived, and all threads are done with the one before */
        fetch(s + STAGES - 1);
        const unsigned stage = s % STAGES * config::STAGE;
        each<STEP / 16>([&](int k) {
            unsigned p[M][4];
            each<M>([&](int m) { config::left::read(p[m], x + stage, m, k); });
            each<N / 2>([&](int n) {
                unsigned q[4];
                config::right::read(q, y + stage, n, k);
                multiply_both<T>(sum, p, q, 2 * n);
            });
        });
    }
    copy_wait<0>();
    each<M, 2>([&](int m, int half) {
        const int i = i0 + 16 * m + 8 * half + lane / 4;
        if (i >= t.rows) return;
        R *to = c + i * g.c_row;
        each<N>([&](int n) {
            const int j = j0 + 8 * n + lane % 4 * 2;
            if (j < t.columns) put(to + j, sum[m][n][2 * half], sum[m][n][2 * half + 1], g.add);
        });
    });
#endif
}

template <typename T, typename R, bool DW, bool TURNED, int ROWS>
static cudaError_t start(const struct launch *l, const grouped &g)
{
    if (misaligned(16, l->out[0].data, l->in[0].data, l->in[1].data)) return cudaErrorMisalignedAddress;
    return start_kernel(tiles_kernel<T, R, DW, TURNED, ROWS>, grouped_grid(g), BLOCK, config<DW, TURNED, ROWS>::BYTES,
                        (cudaStream_t)l->stream, (R *)l->out[0].data, (const T *)l->in[0].data,
                        (const T *)l->in[1].data, g);
}

template <typename T> static cudaError_t start_linear(const struct launch *l)
{
    const grouped many = grouped_linear(l, GROUPED_ROWS, COLUMNS), few = grouped_linear(l, GROUPED_FEW, COLUMNS);
    if (l->form != grouped_form(many.rows, many.experts, many.b.deep != 1)) return cudaErrorInvalidValue;
    switch (l->form) {
    case GROUPED_PLAIN: return start<T, T, false, false, GROUPED_ROWS>(l, many);
    case GROUPED_PLAIN_FEW: return start<T, T, false, false, GROUPED_FEW>(l, few);
    case GROUPED_TURNED: return start<T, T, false, true, GROUPED_ROWS>(l, many);
    default: return start<T, T, false, true, GROUPED_FEW>(l, few);
    }
}

template <typename T> static cudaError_t start_dw(const struct launch *l)
{
    if (has(l, 3) && l->in[3].data != l->out[0].data) return cudaErrorInvalidValue;
    return start<T, float, true, false, GROUPED_ROWS>(l, grouped_dw(l, GROUPED_ROWS, COLUMNS));
}

static int launch_linear(const struct launch *l, struct error *e)
{
    TRY_CUDA(l->in[0].dtype == DT_BF16 ? start_linear<__nv_bfloat16>(l) : start_linear<__half>(l));
    return PL_OK;
}

static int launch_dw(const struct launch *l, struct error *e)
{
    TRY_CUDA(l->in[0].dtype == DT_BF16 ? start_dw<__nv_bfloat16>(l) : start_dw<__half>(l));
    return PL_OK;
}

CUDA_KERNEL(cuda_grouped_linear_tiles, .launch = launch_linear);
CUDA_KERNEL(cuda_grouped_dw_tiles, .launch = launch_dw);
