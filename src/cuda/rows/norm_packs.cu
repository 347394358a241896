/*
 * norm_packs.cu: RMSNORM and LAYERNORM and their gradients for rows of whole 16-byte packs: a
 * thread keeps one pack of columns for all rows.
 *
 *     a row of up to 32 packs     a group of 8, 16 or 32 lanes per row, several groups per block
 *     a longer row                the whole block is the group
 *
 * So the data of a column never leave the thread: its weights, and the sums over rows that become
 * their gradients. Four rows are read at once, which keeps enough loads in flight, and their sums
 * are reduced together: each exchange halves the number of sums per lane.
 *
 *     lane    0          1                      sums a b c d of four rows
 *           a b c d    a b c d
 *           a b     ->     c d                  each lane sends the sums that the other keeps,
 *           a   (with lane 2's)  ...            until a lane has one sum over all lanes
 *
 * The order of a sum is fixed by the shape. Gradients of weights: a block's groups are added in
 * order, then the blocks (column_sums.cuh). The thread that writes a pack is the one that read it:
 * results may alias inputs.
 */
#include "cuda/rows/column_sums.cuh"
#include "cuda/rows/norms.cuh"

constexpr int MOST = NORM_MOST, WIDEST = 1024;
static __host__ __device__ constexpr int rows_at_once(int threads) { return threads > MOST ? 2 : 4; }

template <typename T> constexpr int PACK = 16 / sizeof(T);

template <typename T> static __device__ inline void unpack(float (&to)[PACK<T>], const uint4 &from)
{
    const wide_pack<T, PACK<T>> p = *reinterpret_cast<const wide_pack<T, PACK<T>> *>(&from);
#pragma unroll
    for (int i = 0; i < PACK<T>; i++) to[i] = to_float(p.at[i]);
}

template <typename T> static __device__ inline uint4 packed(const float (&from)[PACK<T>])
{
    uint4 to;
    store<PACK<T>>(reinterpret_cast<T *>(&to), from);
    return to;
}

/* Hides a pack's value from the compiler, which would otherwise keep its floats in twice the
 * registers. */
template <int N> static __device__ inline void hide_from_compiler(uint4 (&pack)[N])
{
#pragma unroll
    for (int j = 0; j < N; j++) asm volatile("" : "+r"(pack[j].x), "+r"(pack[j].y), "+r"(pack[j].z), "+r"(pack[j].w));
}

/* --- sums of several rows at once ---------------------------------------------------------- */

/* The lane, by its low bits, that ends up with sum i of N. */
template <int N> static __device__ constexpr int holder_of(int i)
{
    return N == 8 ? (i >> 2 & 1) | (i & 2) | (i & 1) << 2 : N == 4 ? (i >> 1 & 1) | (i & 1) << 1 : i;
}

/* N is 2, 4 or 8. A block alternates between two of these: all threads have read one before the
 * barrier of the next. */
template <int N> struct reduce_buffer {
    float at[2][WARP][N];
};

/* Replaces v[i] by the group's sum of v[i], in all its threads. `lanes`: 8, 16 or 32; 0: the
 * block. */
template <int N>
static __device__ inline void sum_rows_together(float (&v)[N], int lanes, reduce_buffer<N> &buffer, int &turn)
{
    const int lane = threadIdx.x % WARP;
    int bit = 1;
#pragma unroll
    for (int half = N / 2; half > 0; half /= 2, bit *= 2) {
        const bool upper = lane & bit;
#pragma unroll
        for (int i = 0; i < half; i++) {
            const float mine = upper ? v[half + i] : v[i], theirs = upper ? v[i] : v[half + i];
            v[i] = mine + __shfl_xor_sync(ALL_LANES, theirs, bit);
        }
    }
    const int width = lanes ? lanes : WARP;
    for (; bit < width; bit *= 2) v[0] += __shfl_xor_sync(ALL_LANES, v[0], bit);
    const float own = v[0];
    if (lanes) {
        const int first = lane & ~(lanes - 1);
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = __shfl_sync(ALL_LANES, own, first + holder_of<N>(i));
        return;
    }
    if (lane < N) buffer.at[turn][threadIdx.x / WARP][lane] = own;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < N; i++) v[i] = 0;
    for (int w = 0; w < (int)blockDim.x / WARP; w++)
#pragma unroll
        for (int i = 0; i < N; i++) v[i] += buffer.at[turn][w][holder_of<N>(i)];
    turn ^= 1;
}

/* --- forward --------------------------------------------------------------------------------- */

/* Returns the launch bound in threads per SM; with both a sum and a mean, 1024 threads would not
 * have enough registers. */
static constexpr int resident(bool centred, bool add, int threads)
{
    return centred && add && threads == MOST ? 768 : WIDEST;
}

/* ADD: normalises x + more, which is written to r; the rounded sum is used. */
template <bool CENTRED, bool ADD, typename T, int THREADS>
static __global__ void __launch_bounds__(resident(CENTRED, ADD, THREADS), 1)
    norm_packs_kernel(T *y, norm_stats stats, const T *x, T *r, const T *more, const T *w, const T *b, int64_t rows,
                      int64_t C, float eps, int lanes)
{
    constexpr int V = PACK<T>, ROWS = rows_at_once(THREADS);
    __shared__ reduce_buffer<ROWS> buffer;
    const int group = lanes ? (int)threadIdx.x / lanes : 0, groups = lanes ? (int)blockDim.x / lanes : 1;
    const int pack = lanes ? (int)threadIdx.x & (lanes - 1) : (int)threadIdx.x;
    const int64_t c = (int64_t)pack * V;
    const bool live = c < C;
    const float inverse = 1.0f / (float)C;
    int turn = 0;
    uint4 weight = make_uint4(0, 0, 0, 0), shift = weight;
    if (live) weight = *reinterpret_cast<const uint4 *>(w + c);
    if (live && CENTRED) shift = *reinterpret_cast<const uint4 *>(b + c);
    for (int64_t base = (int64_t)blockIdx.x * groups * ROWS; base < rows; base += (int64_t)gridDim.x * groups * ROWS) {
        const int64_t row = base + group * ROWS;
        uint4 raw[ROWS];
        float mean[ROWS], rstd[ROWS], a[V];
#pragma unroll
        for (int j = 0; j < ROWS; j++) {
            raw[j] = make_uint4(0, 0, 0, 0);
            if (live && row + j < rows) raw[j] = *reinterpret_cast<const uint4 *>(x + (row + j) * C + c);
        }
        if (ADD) {
            uint4 other[ROWS];
#pragma unroll
            for (int j = 0; j < ROWS; j++) {
                other[j] = make_uint4(0, 0, 0, 0);
                if (live && row + j < rows) other[j] = *reinterpret_cast<const uint4 *>(more + (row + j) * C + c);
            }
#pragma unroll
            for (int j = 0; j < ROWS; j++) {
                float o[V];
                unpack<T>(a, raw[j]);
                unpack<T>(o, other[j]);
#pragma unroll
                for (int i = 0; i < V; i++) a[i] += o[i];
                raw[j] = packed<T>(a);
                if (live && row + j < rows) *reinterpret_cast<uint4 *>(r + (row + j) * C + c) = raw[j];
            }
            hide_from_compiler(raw);
        }
#pragma unroll
        for (int j = 0; j < ROWS; j++) {
            mean[j] = 0;
            if (!CENTRED) continue;
            unpack<T>(a, raw[j]);
#pragma unroll
            for (int i = 0; i < V; i++) mean[j] += a[i];
        }
        if (CENTRED) {
            sum_rows_together<ROWS>(mean, lanes, buffer, turn);
#pragma unroll
            for (int j = 0; j < ROWS; j++) mean[j] *= inverse;
            hide_from_compiler(raw);
        }
#pragma unroll
        for (int j = 0; j < ROWS; j++) {
            rstd[j] = 0;
            unpack<T>(a, raw[j]);
#pragma unroll
            for (int i = 0; i < V; i++) rstd[j] += live ? (a[i] - mean[j]) * (a[i] - mean[j]) : 0.0f;
        }
        sum_rows_together<ROWS>(rstd, lanes, buffer, turn);
        hide_from_compiler(raw);
#pragma unroll
        for (int j = 0; j < ROWS; j++) {
            rstd[j] = 1.0f / sqrtf(rstd[j] * inverse + eps);
            if (!live || row + j >= rows) continue;
            if (pack == 0) {
                if (CENTRED) stats.mean[row + j] = mean[j];
                stats.rstd[row + j] = rstd[j];
            }
            float s[V], t[V];
            unpack<T>(a, raw[j]);
            unpack<T>(s, weight);
            unpack<T>(t, shift);
#pragma unroll
            for (int i = 0; i < V; i++)
                a[i] = (a[i] - mean[j]) * rstd[j] * (s[i] + stats.offset) + (CENTRED ? t[i] : 0.0f);
            store<V>(y + (row + j) * C + c, a);
        }
    }
}

/* --- gradients: the formulas are in norms.cu -------------------------------------------------- */

/* This thread's pack of a row: its contribution to the row's sums and to the column sums. */
template <bool CENTRED, typename T>
static __device__ inline void add_row(float (&dw)[PACK<T>], float (&db)[PACK<T>], float &g, float &gh, const uint4 &dy,
                                      const uint4 &x, const float (&s)[PACK<T>], float mean, float rstd)
{
    float d[PACK<T>], a[PACK<T>];
    unpack<T>(d, dy);
    unpack<T>(a, x);
#pragma unroll
    for (int i = 0; i < PACK<T>; i++) {
        const float h = (a[i] - mean) * rstd, ds = d[i] * s[i];
        dw[i] += d[i] * h;
        if (CENTRED) db[i] += d[i];
        if (CENTRED) g += ds;
        gh += ds * h;
    }
}

/* Adds the groups of a block in order and writes the block's part of `partial`, [SUMS,C]. */
template <int V>
static __device__ inline void put_columns(float *partial, const float (&sum)[V], int64_t c, int64_t C, int groups,
                                          int lanes)
{
    extern __shared__ float columns[]; /* [V, threads] */
    if (groups == 1) {
        if (c < C) store<V>(partial + c, sum);
        return;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < V; i++) columns[i * blockDim.x + threadIdx.x] = sum[i];
    __syncthreads();
    if ((int)threadIdx.x >= lanes || c >= C) return;
    float total[V] = {};
    for (int k = 0; k < groups; k++)
#pragma unroll
        for (int i = 0; i < V; i++) total[i] += columns[i * blockDim.x + k * lanes + threadIdx.x];
    store<V>(partial + c, total);
}

template <bool CENTRED, bool ADD, typename T, int THREADS>
static __global__ void __launch_bounds__(THREADS)
    norm_packs_bwd_kernel(T *dx, float *partial, const T *dy, const T *x, const T *w, const T *add, norm_stats stats,
                          int64_t rows, int64_t C, int lanes)
{
    constexpr int V = PACK<T>, SUMS = CENTRED ? 2 : 1, ROWS = rows_at_once(THREADS);
    constexpr bool EARLY = ADD && THREADS <= MOST; /* `add` is loaded with the rest if there are enough registers */
    __shared__ reduce_buffer<SUMS * ROWS> buffer;
    pdl_launch_dependents();
    const int group = lanes ? (int)threadIdx.x / lanes : 0, groups = lanes ? (int)blockDim.x / lanes : 1;
    const int64_t c = (int64_t)(lanes ? (int)threadIdx.x & (lanes - 1) : (int)threadIdx.x) * V;
    const bool live = c < C;
    const float inverse = 1.0f / (float)C;
    int turn = 0;
    float s[V] = {}, dw[V] = {}, db[V] = {};
    if (live) load<V>(s, w + c);
#pragma unroll
    for (int i = 0; i < V; i++) s[i] += stats.offset;
    for (int64_t base = (int64_t)blockIdx.x * groups * ROWS; base < rows; base += (int64_t)gridDim.x * groups * ROWS) {
        const int64_t row = base + group * ROWS;
        uint4 d[ROWS], a[ROWS], more[EARLY ? ROWS : 1];
        float mean[ROWS], rstd[ROWS], sums[SUMS * ROWS];
#pragma unroll
        for (int j = 0; j < ROWS; j++) {
            const bool there = live && row + j < rows;
            d[j] = a[j] = make_uint4(0, 0, 0, 0);
            if (there) d[j] = *reinterpret_cast<const uint4 *>(dy + (row + j) * C + c);
            if (there) a[j] = *reinterpret_cast<const uint4 *>(x + (row + j) * C + c);
            if (EARLY) more[j] = make_uint4(0, 0, 0, 0);
            if (EARLY && there) more[j] = *reinterpret_cast<const uint4 *>(add + (row + j) * C + c);
            mean[j] = CENTRED && there ? stats.mean[row + j] : 0.0f;
            rstd[j] = there ? stats.rstd[row + j] : 0.0f;
        }
#pragma unroll
        for (int j = 0; j < ROWS; j++) {
            float g = 0, gh = 0;
            add_row<CENTRED, T>(dw, db, g, gh, d[j], a[j], s, mean[j], rstd[j]);
            sums[j] = gh;
            if (CENTRED) sums[(SUMS - 1) * ROWS + j] = g;
        }
        sum_rows_together<SUMS * ROWS>(sums, lanes, buffer, turn);
        hide_from_compiler(d);
        hide_from_compiler(a);
        if (EARLY) hide_from_compiler(more);
#pragma unroll
        for (int j = 0; j < ROWS; j++) {
            if (!live || row + j >= rows) continue;
            const float gh = sums[j] * inverse, g = CENTRED ? sums[(SUMS - 1) * ROWS + j] * inverse : 0.0f;
            float e[V], h[V];
            unpack<T>(e, d[j]);
            unpack<T>(h, a[j]);
#pragma unroll
            for (int i = 0; i < V; i++) e[i] = rstd[j] * (e[i] * s[i] - g - (h[i] - mean[j]) * rstd[j] * gh);
            if (ADD) {
                unpack<T>(h, EARLY ? more[j] : *reinterpret_cast<const uint4 *>(add + (row + j) * C + c));
#pragma unroll
                /* added after rounding, as a separate ADD would */
                for (int i = 0; i < V; i++) e[i] = __fadd_rn(e[i], h[i]);
            }
            store<V>(dx + (row + j) * C + c, e);
        }
    }
    float *to = partial + blockIdx.x * SUMS * C;
    put_columns<V>(to, dw, c, C, groups, lanes);
    if (CENTRED) put_columns<V>(to + C, db, c, C, groups, lanes);
}

/* --- launching -------------------------------------------------------------------------------- */

/* Threads per block, lanes per row (0: all threads), rows per block at a time. */
struct shape {
    int threads, lanes;
    int64_t each;
};

static shape shape_of(int64_t packs)
{
    const int threads = norm_threads(packs);
    if (norm_packs_form(packs) != NORM_LANES) return {threads, 0, rows_at_once(threads)};
    int lanes = 8;
    while (lanes < packs) lanes *= 2;
    return {threads, lanes, (int64_t)threads / lanes * rows_at_once(threads)};
}

/* Reports whether the plan chose the form that rows of these packs have. */
static bool is_form(const struct launch *l, enum store type, int64_t C)
{
    return l->form == norm_packs_form(C * (type == STORE_F32 ? 4 : 2) / 16);
}

template <bool CENTRED, bool ADDED> static int launch_norm_packs(const struct launch *l, struct error *e)
{
    const norm_pieces n = norm_of(l, CENTRED, ADDED);
    if (!is_form(l, n.type, n.C)) TRY_CUDA(cudaErrorInvalidValue);
    TRY_CUDA(by_type(n.type, [&](auto zero) {
        using T = decltype(zero);
        const shape f = shape_of(n.C / PACK<T>);
        const auto kernel = l->form == NORM_WIDE_BLOCK ? norm_packs_kernel<CENTRED, ADDED, T, WIDEST>
                                                       : norm_packs_kernel<CENTRED, ADDED, T, MOST>;
        kernel<<<grid_of_rows(n.rows, f.each, GRID_MAX), f.threads, 0, stream_of(l)>>>(
            (T *)n.y, n.stats, in_as<T>(l, 0), ADDED ? (T *)n.x : nullptr, ADDED ? in_as<T>(l, 1) : nullptr,
            (const T *)n.w.data, (const T *)n.b.data, n.rows, n.C, n.eps, f.lanes);
    }));
    return PL_OK;
}

template <bool CENTRED> static int launch_norm_packs_bwd(const struct launch *l, struct error *e)
{
    const norm_bwd_pieces n = norm_bwd_of(l, CENTRED);
    float *partial = (float *)l->work;
    if (!is_form(l, n.type, n.C)) TRY_CUDA(cudaErrorInvalidValue);
    TRY_CUDA(by_type(n.type, [&](auto zero) {
        using T = decltype(zero);
        const shape f = shape_of(n.C / PACK<T>);
        const unsigned grid = grid_of_rows(n.whole, f.each, norm_blocks(n.whole, n.C, sizeof(T)));
        const bool wide = l->form == NORM_WIDE_BLOCK;
        const auto kernel = n.add ? wide ? norm_packs_bwd_kernel<CENTRED, true, T, WIDEST>
                                         : norm_packs_bwd_kernel<CENTRED, true, T, MOST>
                            : wide ? norm_packs_bwd_kernel<CENTRED, false, T, WIDEST>
                                   : norm_packs_bwd_kernel<CENTRED, false, T, MOST>;
        kernel<<<grid, f.threads, f.lanes ? (size_t)f.threads * PACK<T> * sizeof(float) : 0, stream_of(l)>>>(
            (T *)n.dx, partial, (const T *)n.dy, (const T *)n.x, (const T *)n.w.data, (const T *)n.add, n.stats,
            n.rows, n.C, f.lanes);
        launch_column_sums({{n.dw, STORE_F32}, {n.db, STORE_F32}, n.C, 0}, partial, grid, (CENTRED ? 2 : 1) * n.C,
                           stream_of(l));
    }));
    return PL_OK;
}

CUDA_KERNEL(cuda_rmsnorm_packs, .launch = launch_norm_packs<false, false>);
CUDA_KERNEL(cuda_rmsnorm_packs_bwd, .launch = launch_norm_packs_bwd<false>);
CUDA_KERNEL(cuda_layernorm_packs, .launch = launch_norm_packs<true, false>);
CUDA_KERNEL(cuda_layernorm_packs_bwd, .launch = launch_norm_packs_bwd<true>);
CUDA_KERNEL(cuda_add_rmsnorm_packs, .launch = launch_norm_packs<false, true>);
CUDA_KERNEL(cuda_add_layernorm_packs, .launch = launch_norm_packs<true, true>);
