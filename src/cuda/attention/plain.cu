/*
 * plain.cu: attention without tensor cores: any head dimension up to 256, f32,
 * bf16 and f16, all arithmetic in f32.
 *
 * A block of 16 x 16 threads holds a tile of rows in shared memory as f32 and traverses the
 * other side tile by tile. Thread (y,x) computes the scores of queries y, y+16, .. against keys x,
 * x+16, ..; the 16 threads of a query are adjacent in a warp, so a row's maximum and sum are
 * reduced by shuffles. The row pitch is an odd number of floats: columns cause no bank conflicts.
 *
 *     forward   a tile of queries, all keys:   o, lse         running maximum and sum
 *     dq        a tile of queries, all keys:   dq, drel or the partial sums of the bias
 *     dk, dv    a tile of keys, all queries of all heads that read it
 *
 * With RANGES (ranges.cuh) a query sees its range of keys; a product with p = 0 or ds = 0 is left
 * out where not all queries see all keys, so that a NaN that is not seen is not added.
 *
 * Each output has one owner that adds in one order: the same bits every time. p is recomputed
 * from lse in both kernels of the backward; no T x S tensor exists.
 */
#include "cuda/attention/ranges.cuh"

constexpr int SIDE = 16, PLAIN_BLOCK = SIDE * SIDE;

/* The type is checked where rows are read and written, and is the same for all threads: the
 * computation in between is f32 anyway, and a kernel per type would be three times the code. */

/* Loads rows first .. first+rows to shared memory; zeros beyond `count`. */
template <typename T>
static __device__ void load_rows_as(float *to, int stride, const T *x, int64_t token, int first, int rows, int count,
                                    int D)
{
    for (int i = threadIdx.x; i < rows * D; i += PLAIN_BLOCK) {
        const int r = i / D, d = i - r * D;
        to[r * stride + d] = first + r < count ? to_float(x[(first + r) * token + d]) : 0.0f;
    }
}
/* Loads rows of a head as f32. It is not inlined: the call costs no measurable time here, but many
 * inlined copies cost compile time. Nothing is passed by reference, which would place the kernel's
 * arguments in local memory. */
static __device__ __noinline__ void load_head(enum store type, float *to, int stride, const void *x, int64_t at,
                                              int64_t token, int first, int rows, int count, int D)
{
    if (type == STORE_F32) load_rows_as(to, stride, static_cast<const float *>(x) + at, token, first, rows, count, D);
    else if (type == STORE_BF16)
        load_rows_as(to, stride, static_cast<const __nv_bfloat16 *>(x) + at, token, first, rows, count, D);
    else load_rows_as(to, stride, static_cast<const __half *>(x) + at, token, first, rows, count, D);
}
static __device__ void load_rows(const attention &a, float *to, int stride, const head_rows &x, int64_t b, int64_t h,
                                 int first, int rows, int count)
{
    load_head(a.type, to, stride, x.data, b * x.sample + h * x.head, x.token, first, rows, count, a.D);
}

static __device__ void store_element(const attention &a, const head_rows &to, int64_t b, int64_t t, int64_t h, int d,
                                     float x)
{
    if (a.type == STORE_F32) row_at<float>(to, b, t, h)[d] = x;
    else if (a.type == STORE_BF16) row_at<__nv_bfloat16>(to, b, t, h)[d] = from_float<__nv_bfloat16>(x);
    else row_at<__half>(to, b, t, h)[d] = from_float<__half>(x);
}

/* to[i][j] = row y+16i of x . row x+16j of y. */
template <int M, int N>
static __device__ void dots(float (&to)[M][N], const float *x, const float *y, int stride, int D)
{
    const int ty = threadIdx.x / SIDE, tx = threadIdx.x % SIDE;
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) to[i][j] = 0;
    for (int d = 0; d < D; d++) {
        float left[M], right[N];
#pragma unroll
        for (int i = 0; i < M; i++) left[i] = x[(ty + SIDE * i) * stride + d];
#pragma unroll
        for (int j = 0; j < N; j++) right[j] = y[(tx + SIDE * j) * stride + d];
#pragma unroll
        for (int i = 0; i < M; i++)
#pragma unroll
            for (int j = 0; j < N; j++) to[i][j] += left[i] * right[j];
    }
}

/* sum[i] += row y+16i of p [..][BN + 1] times BN rows of x: every 16th column from x on. SKIPS:
 * without the rows whose factor is 0. */
template <int M, int C, int BN, bool SKIPS = false>
static __device__ void add_rows(float (&sum)[M][C], const float *p, const float *x, int stride, int D)
{
    const int ty = threadIdx.x / SIDE, tx = threadIdx.x % SIDE;
#pragma unroll 2
    for (int s = 0; s < BN; s++) {
        float left[M];
#pragma unroll
        for (int i = 0; i < M; i++) left[i] = p[(ty + SIDE * i) * (BN + 1) + s];
#pragma unroll
        for (int c = 0; c < C; c++) {
            const int d = tx + SIDE * c;
            if (d >= D) break;
            const float right = x[s * stride + d];
#pragma unroll
            for (int i = 0; i < M; i++)
                if (!SKIPS || left[i] != 0) sum[i][c] += left[i] * right;
        }
    }
}

/* Returns the tanh of a product of capped attention. */
static __device__ float capped(const attention &a, float dot) { return tanhf(a.scale * dot / a.cap); }

/* The score of a product: adds the mask and the position terms. `range`: the query's keys, with
 * RANGES. */
template <bool RANGES>
static __device__ float score_of(const attention &a, float dot, int64_t b, int64_t h, int t, int s, const span &range)
{
    if (RANGES ? !in_range(range, s) : !key_seen(a, t, s)) return -CUDART_INF_F;
    if (a.cap > 0) return a.cap * capped(a, dot) + (a.mask ? a.mask[b * a.mask_sample + s * a.mask_key] : 0.0f);
    float score = a.scale * dot;
    if (a.mask) score += a.mask[b * a.mask_sample + s * a.mask_key];
    if (a.mode == ATTENTION_BY_TABLES) {
        const float *rel = a.rel + ((b * a.H + h) * a.T + t) * positions(a);
        score += rel[s / a.width] + rel[a.height + s % a.width];
    }
    if (a.mode == ATTENTION_BY_BIAS) score += a.bias[h * a.T + bias_index(a, t, s)];
    return score;
}

/* The ranges of a thread's queries. */
template <bool RANGES, int M>
static __device__ void load_ranges(const attention &a, int64_t b, int t0, span (&range)[M])
{
#pragma unroll
    for (int i = 0; i < M; i++) {
        const int t = t0 + (int)threadIdx.x / SIDE + SIDE * i;
        range[i] = RANGES && t < a.T ? range_at(a, b, t) : span{0, 0};
    }
}

/* --- forward -------------------------------------------------------------------------------- */

/* Queries M x 16, keys N x 16, D up to C x 16. */
template <int M, int N, int C, bool RANGES>
__global__ void __launch_bounds__(PLAIN_BLOCK) plain_forward(const attention a)
{
    extern __shared__ float shared[];
    constexpr int BM = M * SIDE, BN = N * SIDE, P = BN + 1;
    const int stride = a.D | 1, ty = threadIdx.x / SIDE, tx = threadIdx.x % SIDE;
    float *q = shared, *kv = q + BM * stride, *p = kv + BN * stride;
    const int tiles = (a.T + BM - 1) / BM, t0 = (int)(blockIdx.x % tiles) * BM;
    const int64_t head = blockIdx.x / tiles, b = head / a.H, h = head % a.H, g = h / (a.H / a.G);

    float top[M], sum[M] = {}, o[M][C] = {};
    each<M>([&](int i) { top[i] = -CUDART_INF_F; });
    load_rows(a, q, stride, a.q, b, h, t0, BM, a.T);
    span range[M];
    range_tile tile = {};
    load_ranges<RANGES>(a, b, t0, range);
    if (RANGES) tile = bounds_of(a, b, t0, BM);
    const span keys = RANGES ? span{tile.begin, tile.end} : keys_of(a, t0, BM);
    for (int s0 = keys.begin; s0 < keys.end; s0 += BN) {
        __syncthreads();
        load_rows(a, kv, stride, a.k, b, g, s0, BN, a.S);
        __syncthreads();
        float x[M][N];
        dots<M, N>(x, q, kv, stride, a.D);
        each<M>([&](int i) {
            float here = -CUDART_INF_F;
            each<N>([&](int j) {
                x[i][j] = score_of<RANGES>(a, x[i][j], b, h, t0 + ty + SIDE * i, s0 + tx + SIDE * j, range[i]);
                here = fmaxf(here, x[i][j]);
            });
            const float now = fmaxf(top[i], lanes_max<SIDE>(here));
            const float base = now == -CUDART_INF_F ? 0.0f : now; /* no key seen so far: exp(-inf) = 0 */
            const float shrink = expf(top[i] - base);
            float part = 0;
            each<N>([&](int j) { part += p[(ty + SIDE * i) * P + tx + SIDE * j] = expf(x[i][j] - base); });
            sum[i] = sum[i] * shrink + lanes_sum<SIDE>(part);
            top[i] = now;
            each<C>([&](int c) { o[i][c] *= shrink; });
        });
        __syncthreads();
        load_rows(a, kv, stride, a.v, b, g, s0, BN, a.S);
        __syncthreads();
        if (RANGES && !sees_all(tile, s0, BN)) add_rows<M, C, BN, RANGES>(o, p, kv, stride, a.D);
        else add_rows<M, C, BN>(o, p, kv, stride, a.D);
    }
    each<M>([&](int i) {
        const int t = t0 + ty + SIDE * i;
        if (t >= a.T) return;
        const float factor = sum[i] == 0 ? 0.0f : 1 / sum[i];
        each<C>([&](int c) {
            if (tx + SIDE * c < a.D) store_element(a, a.o, b, t, h, tx + SIDE * c, o[i][c] * factor);
        });
        if (tx == 0) *lse_at(a, b, h, t) = sum[i] == 0 ? -CUDART_INF_F : top[i] + logf(sum[i]);
    });
}

/* --- backward: shared by both kernels ------------------------------------------------------ */

/* p and ds, not yet scaled, of query t and key s, from their two products. */
struct pair {
    float p, ds;
};
template <bool RANGES>
static __device__ pair pair_of(const attention &a, float dot, float dp, int64_t b, int64_t h, int t, int s, float lse,
                               float delta, const span &range)
{
    const float score = score_of<RANGES>(a, dot, b, h, t, s, range);
    if (RANGES && score == -CUDART_INF_F) return {0, 0};
    const float p = score == -CUDART_INF_F ? 0.0f : expf(score - lse);
    const float y = a.cap > 0 ? capped(a, dot) : 0.0f;
    return {p, p * (dp - delta) * (1 - y * y)};
}

/* lse and delta of a thread's queries. */
template <int M>
static __device__ void load_statistics(const attention &a, int64_t b, int64_t h, int t0, float (&lse)[M],
                                       float (&delta)[M])
{
#pragma unroll
    for (int i = 0; i < M; i++) {
        const int t = t0 + (int)threadIdx.x / SIDE + SIDE * i;
        lse[i] = t < a.T ? *lse_at(a, b, h, t) : 0.0f;
        delta[i] = t < a.T ? a.delta[(b * a.H + h) * a.T + t] : 0.0f;
    }
}

/* --- backward: dq --------------------------------------------------------------------------- */

/* Adds a tile of ds into drel, rows of all position terms. One thread owns a position term
 * throughout. */
static __device__ void add_positions(const attention &a, float *drel, const float *ds, int stride, int t0, int tn,
                                     int s0, int sn)
{
    const int R = positions(a), count = min(tn, a.T - t0), end = min(s0 + sn, a.S);
    for (int i = threadIdx.x; i < count * R; i += PLAIN_BLOCK) {
        const int r = i / R, c = i - r * R;
        float sum = 0;
        if (c < a.height) {
            const int first = max(s0, c * a.width), last = min(end, (c + 1) * a.width);
            for (int s = first; s < last; s++) sum += ds[r * stride + s - s0];
        } else {
            int s = s0 - s0 % a.width + (c - a.height);
            if (s < s0) s += a.width;
            for (; s < end; s += a.width) sum += ds[r * stride + s - s0];
        }
        drel[i] += sum;
    }
}

/* Adds a tile of ds into a head's row of bias gradients, likewise. */
static __device__ void add_biases(const attention &a, float *dbias, const float *ds, int stride, int t0, int tn, int s0,
                                  int sn)
{
    const int count = min(tn, a.T - t0), end = min(s0 + sn, a.S);
    for (int i = threadIdx.x; i < a.T; i += PLAIN_BLOCK) {
        const int dy = i / a.width, dx = i % a.width;
        float sum = 0;
        for (int r = 0; r < count; r++) {
            const int y = (t0 + r) / a.width, x = (t0 + r) % a.width;
            for (int corner = 0; corner < 4; corner++) {
                if ((corner & 1 && !dx) || (corner & 2 && !dy)) continue; /* the same index as another corner */
                const int kx = corner & 1 ? x - dx : x + dx, ky = corner & 2 ? y - dy : y + dy, s = ky * a.width + kx;
                if (kx < 0 || kx >= a.width || ky < 0 || ky >= a.height || s < s0 || s >= end) continue;
                sum += ds[r * stride + s - s0];
            }
        }
        dbias[i] += sum;
    }
}

template <int M, int N, int C, bool RANGES>
__global__ void __launch_bounds__(PLAIN_BLOCK) plain_dq(const attention a)
{
    extern __shared__ float shared[];
    constexpr int BM = M * SIDE, BN = N * SIDE, P = BN + 1;
    const int stride = a.D | 1, ty = threadIdx.x / SIDE, tx = threadIdx.x % SIDE;
    float *q = shared, *dout = q + BM * stride, *k = dout + BM * stride, *v = k + BN * stride, *ds = v + BN * stride;
    const int tiles = (a.T + BM - 1) / BM, tile = (int)(blockIdx.x % tiles), t0 = tile * BM;
    const int64_t head = blockIdx.x / tiles, b = head / a.H, h = head % a.H, g = h / (a.H / a.G);
    float *drel = a.drel + (head * a.T + t0) * positions(a);
    float *dbias = a.partial + ((b * tiles + tile) * a.H + h) * a.T;

    float lse[M], delta[M], dq[M][C];
    for (int i = 0; i < M; i++)
        for (int c = 0; c < C; c++) dq[i][c] = 0;
    load_statistics<M>(a, b, h, t0, lse, delta);
    load_rows(a, q, stride, a.q, b, h, t0, BM, a.T);
    load_rows(a, dout, stride, a.dout, b, h, t0, BM, a.T);
    if (a.mode == ATTENTION_BY_TABLES)
        for (int i = threadIdx.x; i < min(BM, a.T - t0) * positions(a); i += PLAIN_BLOCK) drel[i] = 0;
    if (a.mode == ATTENTION_BY_BIAS)
        for (int i = threadIdx.x; i < a.T; i += PLAIN_BLOCK) dbias[i] = 0;

    span range[M];
    range_tile bounds = {};
    load_ranges<RANGES>(a, b, t0, range);
    if (RANGES) bounds = bounds_of(a, b, t0, BM);
    const span keys = RANGES ? span{bounds.begin, bounds.end} : keys_of(a, t0, BM);
    for (int s0 = keys.begin; s0 < keys.end; s0 += BN) {
        __syncthreads();
        load_rows(a, k, stride, a.k, b, g, s0, BN, a.S);
        load_rows(a, v, stride, a.v, b, g, s0, BN, a.S);
        __syncthreads();
        float x[M][N], dp[M][N];
        dots<M, N>(x, q, k, stride, a.D);
        dots<M, N>(dp, dout, v, stride, a.D);
#pragma unroll
        for (int i = 0; i < M; i++)
#pragma unroll
            for (int j = 0; j < N; j++) {
                const int t = t0 + ty + SIDE * i, s = s0 + tx + SIDE * j;
                ds[(ty + SIDE * i) * P + tx + SIDE * j] =
                    pair_of<RANGES>(a, x[i][j], dp[i][j], b, h, t, s, lse[i], delta[i], range[i]).ds;
            }
        __syncthreads();
        if (RANGES && !sees_all(bounds, s0, BN)) add_rows<M, C, BN, RANGES>(dq, ds, k, stride, a.D);
        else add_rows<M, C, BN>(dq, ds, k, stride, a.D);
        if (a.mode == ATTENTION_BY_TABLES) add_positions(a, drel, ds, P, t0, BM, s0, BN);
        if (a.mode == ATTENTION_BY_BIAS) add_biases(a, dbias, ds, P, t0, BM, s0, BN);
    }
    __syncthreads(); /* drel is complete */
#pragma unroll
    for (int i = 0; i < M; i++) {
        const int r = ty + SIDE * i, t = t0 + r;
        if (t >= a.T) continue;
#pragma unroll
        for (int c = 0; c < C; c++) {
            const int d = tx + SIDE * c;
            if (d >= a.D) break;
            float sum = dq[i][c] * a.scale;
            if (a.mode == ATTENTION_BY_TABLES)
#pragma unroll 1
                for (int n = 0; n < positions(a); n++)
                    sum += drel[r * positions(a) + n] * a.tables[(int64_t)table_row(a, t, n) * a.D + d];
            store_element(a, a.dq, b, t, h, d, sum);
        }
    }
}

/* --- backward: dk and dv -------------------------------------------------------------------- */

/* dk, dv += the transposed p, ds [BM][N x 16 + 1] times BM rows of q and do. SKIPS: as add_rows. */
template <int BM, int N, int C, bool SKIPS>
static __device__ void add_pairs(float (&dk)[N][C], float (&dv)[N][C], const float *p, const float *ds, const float *q,
                                 const float *dout, int stride, int D)
{
    constexpr int P = N * SIDE + 1;
    const int ty = threadIdx.x / SIDE, tx = threadIdx.x % SIDE;
#pragma unroll 2
    for (int r = 0; r < BM; r++) {
        float left[N], lower[N];
#pragma unroll
        for (int j = 0; j < N; j++) left[j] = p[r * P + ty + SIDE * j], lower[j] = ds[r * P + ty + SIDE * j];
#pragma unroll
        for (int c = 0; c < C; c++) {
            const int d = tx + SIDE * c;
            if (d >= D) break;
            const float from_dout = dout[r * stride + d], from_q = q[r * stride + d];
#pragma unroll
            for (int j = 0; j < N; j++) {
                if (!SKIPS || left[j] != 0) dv[j][c] += left[j] * from_dout;
                if (!SKIPS || lower[j] != 0) dk[j][c] += lower[j] * from_q;
            }
        }
    }
}

template <int M, int N, int C, bool RANGES>
__global__ void __launch_bounds__(PLAIN_BLOCK) plain_dkv(const attention a)
{
    extern __shared__ float shared[];
    constexpr int BM = M * SIDE, BN = N * SIDE, P = BN + 1;
    const int stride = a.D | 1, ty = threadIdx.x / SIDE, tx = threadIdx.x % SIDE;
    float *q = shared, *dout = q + BM * stride, *k = dout + BM * stride, *v = k + BN * stride;
    float *p = v + BN * stride, *ds = p + BM * P;
    const int tiles = (a.S + BN - 1) / BN, s0 = (int)(blockIdx.x % tiles) * BN, group = a.H / a.G;
    const int64_t head = blockIdx.x / tiles, b = head / a.G, g = head % a.G;

    float dk[N][C], dv[N][C];
    for (int j = 0; j < N; j++)
        for (int c = 0; c < C; c++) dk[j][c] = dv[j][c] = 0;
    load_rows(a, k, stride, a.k, b, g, s0, BN, a.S);
    load_rows(a, v, stride, a.v, b, g, s0, BN, a.S);
    const span queries = RANGES ? span{0, a.T} : queries_of(a, s0, BN);
    for (int64_t h = g * group; h < (g + 1) * group; h++)
        for (int t0 = queries.begin; t0 < queries.end; t0 += BM) {
            range_tile bounds = {};
            if (RANGES) bounds = bounds_of(a, b, t0, BM);
            if (RANGES && !meets(bounds, s0, BN)) continue;
            __syncthreads();
            load_rows(a, q, stride, a.q, b, h, t0, BM, a.T);
            load_rows(a, dout, stride, a.dout, b, h, t0, BM, a.T);
            __syncthreads();
            float x[M][N], dp[M][N], lse[M], delta[M];
            span range[M];
            load_statistics<M>(a, b, h, t0, lse, delta);
            load_ranges<RANGES>(a, b, t0, range);
            dots<M, N>(x, q, k, stride, a.D);
            dots<M, N>(dp, dout, v, stride, a.D);
#pragma unroll
            for (int i = 0; i < M; i++)
#pragma unroll
                for (int j = 0; j < N; j++) {
                    const int t = t0 + ty + SIDE * i, s = s0 + tx + SIDE * j, at = (ty + SIDE * i) * P + tx + SIDE * j;
                    const pair both = pair_of<RANGES>(a, x[i][j], dp[i][j], b, h, t, s, lse[i], delta[i], range[i]);
                    p[at] = both.p, ds[at] = both.ds;
                }
            __syncthreads();
            if (RANGES && !sees_all(bounds, s0, BN)) add_pairs<BM, N, C, RANGES>(dk, dv, p, ds, q, dout, stride, a.D);
            else add_pairs<BM, N, C, false>(dk, dv, p, ds, q, dout, stride, a.D);
        }
#pragma unroll
    for (int j = 0; j < N; j++) {
        const int s = s0 + ty + SIDE * j;
        if (s >= a.S) continue;
#pragma unroll
        for (int c = 0; c < C; c++) {
            const int d = tx + SIDE * c;
            if (d >= a.D) break;
            store_element(a, a.dk, b, s, g, d, dk[j][c] * a.scale);
            store_element(a, a.dv, b, s, g, d, dv[j][c]);
        }
    }
}

/* --- launching -------------------------------------------------------------------------------- */

static int64_t tiles_of(int64_t n, int64_t tile) { return (n + tile - 1) / tile; }

template <int M, int N, int C> static cudaError_t start_forward(const attention *a, bool ranges, cudaStream_t stream)
{
    const size_t row = (size_t)(a->D | 1), floats = (M + N) * SIDE * row + (size_t)(M * SIDE) * (N * SIDE + 1);
    return start_kernel(ranges ? plain_forward<M, N, C, true> : plain_forward<M, N, C, false>,
                        (int64_t)a->B * a->H * tiles_of(a->T, M * SIDE), PLAIN_BLOCK, floats * sizeof(float), stream,
                        *a);
}

/* A block of dq has attention_small_tile(D) queries. */
template <int M, int N, int C> static cudaError_t start_backward(const attention *a, bool ranges, cudaStream_t stream)
{
    const size_t row = (size_t)(a->D | 1), scores = (size_t)(M * SIDE) * (N * SIDE + 1),
                 rows = 2 * (M + N) * SIDE * row;
    const int64_t by_key = (int64_t)a->B * a->G * tiles_of(a->S, N * SIDE),
                  by_query = (int64_t)a->B * a->H * tiles_of(a->T, M * SIDE);
    const cudaError_t rc = start_kernel(ranges ? plain_dkv<M, N, C, true> : plain_dkv<M, N, C, false>, by_key,
                                        PLAIN_BLOCK, (rows + 2 * scores) * sizeof(float), stream, *a);
    return rc == cudaSuccess ? start_kernel(ranges ? plain_dq<M, N, C, true> : plain_dq<M, N, C, false>, by_query,
                                            PLAIN_BLOCK, (rows + scores) * sizeof(float), stream, *a)
                             : rc;
}

static bool is_small(enum plain_form form) { return form == PLAIN_64 || form == PLAIN_64_RANGES; }
static bool has_ranges(enum plain_form form) { return form == PLAIN_64_RANGES || form == PLAIN_256_RANGES; }

extern "C" cudaError_t cuda_attention_plain(const struct attention *a, enum plain_form form, cudaStream_t stream)
{
    if (form != plain_form(a->D, a->ranges != nullptr)) return cudaErrorInvalidValue;
    return is_small(form) ? start_forward<4, 4, 4>(a, has_ranges(form), stream)
                          : start_forward<2, 2, 16>(a, has_ranges(form), stream);
}

extern "C" cudaError_t cuda_attention_plain_bwd(const struct attention *a, enum plain_form form, cudaStream_t stream)
{
    if (form != plain_form(a->D, a->ranges != nullptr)) return cudaErrorInvalidValue;
    return is_small(form) ? start_backward<2, 2, 4>(a, has_ranges(form), stream)
                          : start_backward<1, 1, 16>(a, has_ranges(form), stream);
}
