/*
 * tiles.cuh: tiles of rows in shared memory and their products on tensor cores, for
 * forward.cu, dq.cu and dkv.cu.
 *
 * A warp owns M times 16 rows of those that its block holds, so that each chunk of the tile that
 * they are multiplied with is read once for all of them. The row pitch is D elements without
 * padding; the 16-byte chunks of a row are swizzled by the row's number, so that the eight rows
 * which one ldmatrix reads are in different banks:
 *
 *     bytes of a row   64, 192         128, 256, 512  160
 *     chunk p is at    p ^ (r / 2 % 4) p ^ (r % 8)    p ^ (r / 4 % 2)
 *
 * The offset of 16 columns of a fragment is then that of the first ones, XORed with a constant
 * (tile_column). Fragments are those of mma.cuh. Tiles begin at multiples of 128 bytes;
 * addresses are shared-memory addresses.
 */
#pragma once

#include "cuda/attention/mma.cuh"
#include "cuda/attention/ranges.cuh"

/* Fragments of 16 columns that share one swizzle line of 8, 4 or 2 chunks. */
template <int D> constexpr int line_of = D % 64 == 0 ? 4 : D % 32 == 0 ? 2 : 1;

template <int D> __device__ inline unsigned chunk_offset(unsigned row, unsigned chunk)
{
    const unsigned turn = line_of<D> == 4 ? row % 8 : line_of<D> == 2 ? row / 2 % 4 : row / 4 % 2;
    return row * (2 * D) + (chunk ^ turn) * 16;
}

/* From the offset of a row's first columns to that of columns 16 k .. . */
template <int D> __device__ inline unsigned tile_column(unsigned at, int k)
{
    constexpr int LINE = line_of<D>;
    return (at ^ (k % LINE * 32)) + k / LINE * LINE * 32;
}

/* The offset that a lane's ldmatrix reads. ldmatrix_left: for the left operand, and for the right
 * operand read transposed, 16 rows down. ldmatrix_right: for the right operand of 16 rows. */
template <int D> __device__ inline unsigned ldmatrix_left(int lane) { return chunk_offset<D>(lane % 16, lane / 16); }
template <int D> __device__ inline unsigned ldmatrix_right(int lane)
{
    return chunk_offset<D>(lane / 16 * 8 + lane % 8, lane / 8 % 2);
}

/* --- copies ----------------------------------------------------------------------------------- */

/* Copies chunks FIRST .. FIRST+WIDE of N rows, from `from` on; zeros from row `left` and from
 * column `columns` on. */
template <typename T, int D, int N, int FIRST, int WIDE>
__device__ inline void copy_band(unsigned to, const T *from, int64_t token, int left, int columns = D)
{
    constexpr int STEP = FAST_BLOCK / WIDE; /* a multiple of 8: all rows of a thread have the same swizzle */
    const int row = threadIdx.x / WIDE, chunk = FIRST + threadIdx.x % WIDE;
    if (STEP > N && row >= N) return;
    from += row * token + chunk * 8;
    to += chunk_offset<D>(row, chunk);
#pragma unroll
    for (int i = 0; i < (N + STEP - 1) / STEP; i++) {
        copy_to(to + i * STEP * 2 * D, from, row + i * STEP < left && chunk * 8 < columns);
        from += STEP * token;
    }
}

/* Copies rows first .. first+N of a head of x, whose row 0 is `from`; zeros beyond `count`. */
template <typename T, int D, int N>
__device__ inline void copy_tile(unsigned to, const T *from, const head_rows &x, int first, int count)
{
    const int64_t token = x.token;
    from += first * token;
    if constexpr (D == 32) copy_band<T, D, N, 0, 4>(to, from, token, count - first);
    else if constexpr (D >= 128) copy_band<T, D, N, 0, 16>(to, from, token, count - first);
    else copy_band<T, D, N, 0, 8>(to, from, token, count - first, D == 64 ? x.columns : D);
    if constexpr (D == 80) copy_band<T, D, N, 8, 2>(to, from, token, count - first, x.columns);
    if constexpr (D == 96) copy_band<T, D, N, 8, 4>(to, from, token, count - first);
    if constexpr (D == 256) copy_band<T, D, N, 16, 16>(to, from, token, count - first);
}

/* --- products --------------------------------------------------------------------------------- */

template <int M, int N> __device__ inline void clear(float (&c)[M][N][4])
{
    each<M, N>([&](int m, int n) { c[m][n][0] = c[m][n][1] = c[m][n][2] = c[m][n][3] = 0; });
}

/* c [16 M][16] += 16 columns a of the warp's rows times b. */
template <typename T, int M, int N>
__device__ inline void multiply_both(float (&c)[M][N][4], const unsigned (&a)[M][4], const unsigned (&b)[4], int n)
{
    each<M>([&](int m) { mma(c[m][n], a[m], b[0], b[1], T()), mma(c[m][n + 1], a[m], b[2], b[3], T()); });
}

/* c [16 M][8 N] = the warp's rows times rows of y, over D. `x`, `y`: the lane's addresses. */
template <typename T, int D, int M, int N> __device__ inline void multiply(float (&c)[M][N][4], unsigned x, unsigned y)
{
    clear(c);
    each<D / 16>([&](int k) {
        unsigned a[M][4];
        each<M>([&](int m) { read4(a[m], tile_column<D>(x, k) + m * 16 * 2 * D); });
        each<N / 2>([&](int n) {
            unsigned b[4];
            read4(b, tile_column<D>(y, k) + n * 16 * 2 * D);
            multiply_both<T>(c, a, b, 2 * n);
        });
    });
}

/* The same with the warp's rows in registers. */
template <typename T, int D, int M, int N>
__device__ inline void multiply_held(float (&c)[M][N][4], const unsigned (&x)[D / 16][M][4], unsigned y)
{
    clear(c);
    each<D / 16, N / 2>([&](int k, int n) {
        unsigned b[4];
        read4(b, tile_column<D>(y, k) + n * 16 * 2 * D);
        multiply_both<T>(c, x[k], b, 2 * n);
    });
}
template <int D, int M> __device__ inline void load_held(unsigned (&x)[D / 16][M][4], unsigned at)
{
    each<D / 16, M>([&](int k, int m) { read4(x[k][m], tile_column<D>(at, k) + m * 16 * 2 * D); });
}

/* c [16 M][D] += p [16 M][8 N], rounded, times rows of y [8 N][D]. */
template <typename T, int D, int M, int N>
__device__ inline void multiply_add(float (&c)[M][D / 8][4], const float (&p)[M][N][4], unsigned y)
{
    each<N / 2>([&](int k) {
        unsigned a[M][4];
        each<M>([&](int m) { round_to<T, N>(a[m], p[m], k); });
        each<D / 16>([&](int n) {
            unsigned b[4];
            read4_transposed(b, tile_column<D>(y, n) + k * 16 * 2 * D);
            multiply_both<T>(c, a, b, 2 * n);
        });
    });
}

/* --- scores ----------------------------------------------------------------------------------- */

/* Scores of keys that a query does not see become -inf. Rows are queries from t0 on, columns are
 * keys from s0 on; transposed, rows are keys and columns are queries. A row sees one contiguous
 * range of columns. */
template <bool TRANSPOSED> __device__ inline span seen_of(const attention &a, int row)
{
    if (row >= (TRANSPOSED ? a.S : a.T)) return {0, 0};
    const span x = TRANSPOSED ? queries_of(a, row, 1) : keys_of(a, row, 1);
    return {x.begin, max(x.begin, x.end)};
}
template <bool TRANSPOSED, int M, int N>
__device__ inline void mask_scores(float (&x)[M][N][4], const attention &a, int row0, int column0)
{
    const int lane = threadIdx.x % 32;
    each<M, 2>([&](int m, int half) {
        const span seen = seen_of<TRANSPOSED>(a, row0 + m * 16 + half * 8 + lane / 4);
        const int first = column0 + lane % 4 * 2 - seen.begin;
        const unsigned length = (unsigned)(seen.end - seen.begin);
        each<N, 2>([&](int n, int i) {
            if ((unsigned)(first + 8 * n + i) >= length) x[m][n][2 * half + i] = -CUDART_INF_F;
        });
    });
}

/* Whether scores are products of rows: nothing is added to them, though they may be capped. */
template <score_terms ADDED> constexpr bool is_bare = ADDED == ADDS_NOTHING || ADDED == ADDS_CAP;

/* Turns products into capped scores in powers of two: with y = scale x / cap and C = cap log2(e),
 * C tanh y = C - 2 C / (e^2y + 1). The error is that of a sum with C, which is far below that of
 * the 16-bit factors. */
template <int M, int N> __device__ inline void cap_scores(float (&x)[M][N][4], const attention &a)
{
    const float most = a.cap * LOG2E, factor = 2 * LOG2E * a.scale / a.cap;
    each<M, N, 4>([&](int m, int n, int i) {
        x[m][n][i] = most - __fdividef(2 * most, power_of_two(x[m][n][i] * factor) + 1);
    });
}
/* Returns the slope of the tanh at a capped score; 0 at -inf, where a key is not seen. */
__device__ inline float cap_slope(const attention &a, float score)
{
    const float t = score * (1 / (a.cap * LOG2E));
    return fmaxf(1 - t * t, 0.0f);
}

/* --- softmax ---------------------------------------------------------------------------------- */

/* Online softmax: turns products times `factor` into powers of two relative to a maximum of each
 * row; o and sum are rescaled when it is raised. It is raised to the row's own maximum only if that
 * exceeds it by more than 2^8: until then o and sum keep their scale, and nothing has to be
 * rescaled. All rows of the warp are raised together, unless RANGES and `apart`: then rows are of
 * several documents, whose bits do not depend on each other. */
template <int D, int M, int N, bool RANGES = false>
__device__ inline void online_softmax(float (&x)[M][N][4], float (&o)[M][D / 8][4], float (&top)[M][2],
                                      float (&sum)[M][2], float factor, bool apart = false)
{
    constexpr float SLACK = 8;
    float now[M][2];
    bool grown = false;
    each<M, 2>([&](int m, int half) {
        float here = x[m][0][2 * half];
        each<N>([&](int n) { here = fmaxf(here, fmaxf(x[m][n][2 * half], x[m][n][2 * half + 1])); });
        here = quad_max(here) * factor;
        now[m][half] = fmaxf(here, top[m][half]);
        grown |= here > top[m][half] + SLACK;
    });
    if (__any_sync(0xffffffffu, grown))
        each<M, 2>([&](int m, int half) {
            if (RANGES && apart && !(now[m][half] > top[m][half] + SLACK)) return;
            /* no key seen so far: 2^-inf = 0 */
            const float shrink = now[m][half] == -CUDART_INF_F ? 0.0f : power_of_two(top[m][half] - now[m][half]);
            top[m][half] = now[m][half];
            sum[m][half] *= shrink;
            each<D / 8>([&](int n) { o[m][n][2 * half] *= shrink, o[m][n][2 * half + 1] *= shrink; });
        });
    each<M, 2>([&](int m, int half) {
        const float base = top[m][half] == -CUDART_INF_F ? 0.0f : top[m][half];
        each<N, 2>([&](int n, int i) {
            sum[m][half] += x[m][n][2 * half + i] = power_of_two(fmaf(x[m][n][2 * half + i], factor, -base));
        });
    });
}

/* Stores o divided by the sums, and lse, of the warp's queries from `first` on. */
template <typename T, int D, int M>
__device__ inline void store_output(const attention &a, int64_t b, int64_t h, int first, const float (&o)[M][D / 8][4],
                                    const float (&top)[M][2], const float (&sum)[M][2])
{
    const int lane = threadIdx.x % 32;
    each<M>([&](int m) {
        float all[2];
        each<2>([&](int half) {
            all[half] = quad_sum(sum[m][half]);
            const int t = first + 16 * m + lane / 4 + 8 * half;
            if (lane % 4 == 0 && t < a.T)
                *lse_at(a, b, h, t) = all[half] == 0 ? -CUDART_INF_F : top[m][half] * LN2 + logf(all[half]);
        });
        store_rows<T, D>(a.o, b, h, first + 16 * m, a.T, o[m], all[0] == 0 ? 0.0f : 1 / all[0],
                         all[1] == 0 ? 0.0f : 1 / all[1]);
    });
}

/* --- blocks ----------------------------------------------------------------------------------- */

/* A block's tile and head. With a causal mask, the tiles with most work come first, over a group of
 * heads whose keys stay in the cache meanwhile. */
struct block_of {
    int tile;
    int64_t head;
};
__device__ inline block_of block_in_order(int64_t heads, int tiles, bool triangle, bool last_first)
{
    constexpr int TOGETHER = 16;
    if (!triangle) return {(int)(blockIdx.x % tiles), blockIdx.x / tiles};
    const int64_t first = blockIdx.x / (TOGETHER * tiles) * TOGETHER;
    const int together = (int)min((int64_t)TOGETHER, heads - first), at = (int)(blockIdx.x - first * tiles);
    const int tile = at / together;
    return {last_first ? tiles - 1 - tile : tile, first + at % together};
}

/* --- ranges of keys (ranges.cuh) -------------------------------------------------------------- */

/* The bounds of the block's queries, in shared memory: registers are few. */
__device__ inline range_tile &block_bounds()
{
    __shared__ range_tile bounds;
    return bounds;
}

/* x = `with` where a query does not see a key. Rows are queries from t0 on, columns are keys from
 * s0 on. */
template <int M, int N>
__device__ inline void set_unseen(float (&x)[M][N][4], const attention &a, int64_t b, int t0, int s0, float with)
{
    const int lane = threadIdx.x % 32;
    each<M, 2>([&](int m, int half) {
        const int t = t0 + m * 16 + half * 8 + lane / 4;
        const span seen = t < a.T ? range_at(a, b, t) : span{0, 0};
        each<N, 2>([&](int n, int i) {
            if (!in_range(seen, s0 + 8 * n + lane % 4 * 2 + i)) x[m][n][2 * half + i] = with;
        });
    });
}

/* The same with keys as rows, for p and ds, which become 0. `delta`: of the queries; a NaN or
 * infinity in it, as do has it, becomes a NaN in p where the key is seen. */
template <int M, int N>
__device__ inline void clear_unseen(float (&p)[M][N][4], float (&ds)[M][N][4], const attention &a, int64_t b, int s0,
                                    int t0, const float *delta)
{
    const int lane = threadIdx.x % 32, column = lane % 4 * 2;
    const int64_t padded = (a.T + 63) / 64 * 64;
    const int4 *from = reinterpret_cast<const int4 *>(a.seen) + (b * padded + t0 + column) / 2;
    each<N>([&](int n) {
        const int4 two = from[4 * n];
        const float2 zero = {0 * delta[8 * n + column], 0 * delta[8 * n + column + 1]}; /* or NaN */
        each<M, 2>([&](int m, int half) {
            const int s = s0 + m * 16 + half * 8 + lane / 4;
            const bool left = in_range({two.x, two.y}, s), right = in_range({two.z, two.w}, s);
            float *own = &p[m][n][2 * half], *other = &ds[m][n][2 * half];
            own[0] = left ? own[0] + zero.x : 0.0f, own[1] = right ? own[1] + zero.y : 0.0f;
            other[0] = left ? other[0] : 0.0f, other[1] = right ? other[1] : 0.0f;
        });
    });
}

/* Turns rows of a tile that have a NaN or an infinity into zeros. `bad`, unless NULL, gets a bit
 * for each of them. All threads of the block call it; a barrier is before and behind it. */
template <typename T, int D, int ROWS> __device__ inline void clean_tile(char *tile, unsigned *bad)
{
    static_assert(ROWS <= FAST_BLOCK && ROWS % 32 == 0, "a thread has a row");
    if (threadIdx.x >= ROWS) return;
    const unsigned rows =
        __ballot_sync(0xffffffffu, clean_row<T, 2 * D>(tile + threadIdx.x * 2 * D, threadIdx.x % (D / 8)));
    if (bad && threadIdx.x % 32 == 0) bad[threadIdx.x / 32] = rows;
}

/* Scores of such keys become NaN where they are seen: where they are not -inf. */
template <int M, int N> __device__ inline void spoil_scores(float (&x)[M][N][4], const unsigned *bad)
{
    each<N, 2>([&](int n, int i) {
        const int column = 8 * n + threadIdx.x % 4 * 2 + i;
        const bool is_bad = bad[column / 32] >> column % 32 & 1;
        each<M, 2>([&](int m, int half) {
            float &score = x[m][n][2 * half + i];
            if (is_bad && score != -CUDART_INF_F) score = CUDART_NAN_F;
        });
    });
}

/* --- terms added to the scores ---------------------------------------------------------------- */

/* Terms added to the scores, for forward.cu, dq.cu and dkv.cu:
 * a mask by key, the position terms of a grid, a bias by distance.
 *
 * Rows of fragments are queries here. key_info has one word for each key of a tile: the mask, or
 * the key's cell of the grid. A query's position terms are those of the grid's rows, then, from an
 * even index on, those of its columns. */

__host__ __device__ inline int columns_offset_even(const attention &a) { return forward_columns(a.height); }

/* Beyond the last key the last key's cell is repeated; those scores are masked. */
template <score_terms ADDED, int KEYS>
__device__ inline void load_key_info(float *key_info, const attention &a, int64_t b, int s0)
{
    for (int i = threadIdx.x; i < KEYS; i += FAST_BLOCK) {
        const int s = min(s0 + i, a.S - 1);
        if (ADDED == ADDS_MASK) key_info[i] = a.mask ? a.mask[b * a.mask_sample + s * a.mask_key] * LOG2E : 0.0f;
        else reinterpret_cast<int *>(key_info)[i] = grid_cell(a, s);
    }
}

/* Loads the position terms of a tile of queries; transposed: the layout of a grid of 64 columns. */
__device__ inline void fetch_positions(float *to, int stride, const attention &a, int64_t head, int t0, bool transposed)
{
    const int R = positions(a), gap = columns_offset_even(a) - a.height;
    const float *from = a.rel + head * a.T * R;
    for (int i = threadIdx.x; i < HELD * R; i += FAST_BLOCK) {
        const int r = transposed ? i % HELD : i / R, c = transposed ? i / HELD : i % R, t = min(t0 + r, a.T - 1);
        to[r * stride + c + (c < a.height ? 0 : gap)] = from[transposed ? (int64_t)c * a.T + t : (int64_t)t * R + c];
    }
}

template <int N> __device__ inline void add_mask(float (&x)[N][4], const float *key_info, float factor)
{
    each<N>([&](int n) {
        const float2 add = pair_at(key_info + 8 * n + threadIdx.x % 4 * 2);
        x[n][0] = fmaf(x[n][0], factor, add.x), x[n][1] = fmaf(x[n][1], factor, add.y);
        x[n][2] = fmaf(x[n][2], factor, add.x), x[n][3] = fmaf(x[n][3], factor, add.y);
    });
}

/* `own`: the position terms of the thread's two queries, whose columns begin at `begin`; PAIRS: at
 * even indices. If the grid's width is a multiple of eight, eight adjacent keys are in one row of
 * the grid. */
template <int N, bool PAIRS>
__device__ inline void add_positions(float (&x)[N][4], const attention &a, const float *key_info,
                                     const float *const (&own)[2], int begin, int s0, float factor)
{
    const int column = threadIdx.x % 4 * 2;
    if (a.width % 8 == 0) {
        int row = s0 / a.width, across = s0 % a.width;
        each<N>([&](int n) {
            each<2>([&](int half) {
                const float *from = own[half] + begin + across + column, row_bias = own[half][row];
                const float2 add = PAIRS ? pair_at(from) : float2{from[0], from[1]};
                x[n][2 * half] = fmaf(x[n][2 * half], factor, row_bias + add.x);
                x[n][2 * half + 1] = fmaf(x[n][2 * half + 1], factor, row_bias + add.y);
            });
            across += 8;
            if (across == a.width) across = 0, row = min(row + 1, a.height - 1);
        });
        return;
    }
    each<N, 4>([&](int n, int i) {
        const int cell = reinterpret_cast<const int *>(key_info)[8 * n + column + i % 2];
        x[n][i] = fmaf(x[n][i], factor, own[i / 2][cell >> 16] + own[i / 2][begin + (cell & 0xffff)]);
    });
}

/* t: the upper of the thread's two queries. */
template <int N>
__device__ inline void add_bias(float (&x)[N][4], const attention &a, const float *key_info, const float *bias, int t,
                                float factor)
{
    const int own[2] = {grid_cell(a, min(t, a.T - 1)), grid_cell(a, min(t + 8, a.T - 1))};
    each<N, 4>([&](int n, int i) {
        const int cell = reinterpret_cast<const int *>(key_info)[8 * n + threadIdx.x % 4 * 2 + i % 2];
        x[n][i] = fmaf(x[n][i], factor, bias[bias_between(a, own[i / 2], cell)]);
    });
}

/* Calls f(T, D, terms, whether there are ranges), as types, for this attention. With ranges, and to
 * heads of 256, nothing is added; heads of language models are capped. */
template <score_terms ADDED> using adds = std::integral_constant<score_terms, ADDED>;
template <typename F> static cudaError_t by_kind(const attention *a, score_terms added, F f)
{
    return by_type_and_length<32, 64, 80, 96, 128, 256>(a, [&](auto t, auto d) {
        constexpr int D = d;
        const auto by_ranges = [&](auto terms) {
            return a->ranges ? f(t, d, terms, std::true_type()) : f(t, d, terms, std::false_type());
        };
        if (added == ADDS_NOTHING) return by_ranges(adds<ADDS_NOTHING>());
        if constexpr (D >= 128) {
            if (added == ADDS_CAP) return by_ranges(adds<ADDS_CAP>());
        }
        if constexpr (D <= 128) {
            if (added == ADDS_MASK) return f(t, d, adds<ADDS_MASK>(), std::false_type());
            if (added == ADDS_TABLES) return f(t, d, adds<ADDS_TABLES>(), std::false_type());
            if (added == ADDS_GRID64) return f(t, d, adds<ADDS_GRID64>(), std::false_type());
            if (added == ADDS_BIAS) return f(t, d, adds<ADDS_BIAS>(), std::false_type());
        }
        return cudaErrorInvalidValue;
    });
}
