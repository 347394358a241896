/*
 * few_queries_or_keys.cu: attention with few queries or few keys, without tensor cores. The few
 * side is in shared memory, and the other side is streamed once (work.h explains the layout and the
 * names).
 *
 *     keys_forward      rows are queries: all scores of a row are in registers; o and lse are final
 *     keys_backward     dq is final; dk and dv are summed in registers, then over the block
 *     queries_forward   rows are keys: o, maximum and sum of each query are updated row by row,
 *                       reduced over the block, and over splits in queries_join
 *     queries_backward  dk and dv are final; dq is summed like dk above. With several tiles of
 *                       queries there are two launches: dk and dv over all tiles, dq tile by tile
 *
 * A warp reads whole rows of adjacent heads, 16 bytes per lane in 16-bit storage. Lanes that hold
 * one head are reduced by shuffles. Each value read from shared memory is used for R rows.
 *
 * Scores are in base 2: the few side is multiplied by scale * log2(e). For rows, heads or elements
 * that do not exist, zeros are read and the score is -inf, so they contribute nothing; nothing is
 * written for them. Each sum has one order, given by the shape: the same bits every time.
 */
#include "cuda/attention/attention.cuh"

constexpr int WARP = 32, THREADS = WARP * FEW_WARPS;

/* --- rows ----------------------------------------------------------------------------------- */

/* V elements in their storage type, in chunks of up to 16 bytes. */
template <typename T, int V> struct chunk {
    static constexpr int WIDE = V * sizeof(T) > 16 ? 16 / (int)sizeof(T) : V, COUNT = V / WIDE;
    pack<T, WIDE> at[COUNT];
};

template <typename T, int V> static __device__ void read_as(float (&to)[V], const T *from)
{
    using P = pack<T, chunk<T, V>::WIDE>;
    chunk<T, V> x;
    each<x.COUNT>([&](int i) { x.at[i] = reinterpret_cast<const P *>(from)[i]; });
    each<V>([&](int i) { to[i] = to_float(x.at[i / x.WIDE].at[i % x.WIDE]); });
}

template <typename T, int V> static __device__ void write(T *to, const float (&x)[V], float factor)
{
    using P = pack<T, chunk<T, V>::WIDE>;
    chunk<T, V> y;
    each<V>([&](int i) { y.at[i / y.WIDE].at[i % y.WIDE] = from_float<T>(x[i] * factor); });
    each<y.COUNT>([&](int i) { reinterpret_cast<P *>(to)[i] = y.at[i]; });
}

/* The type is checked at each access and is the same for all threads: the computation between
 * accesses is f32 anyway, and a kernel per type would be three times the code. Reads from element
 * `from` of row t of head h on. */
template <int V>
static __device__ void read(float (&to)[V], enum store type, const head_rows &x, int64_t b, int64_t t, int64_t h,
                            int from, bool live)
{
    each<V>([&](int i) { to[i] = 0; });
    if (!live) return;
    if (type == STORE_F32) read_as(to, row_at<float>(x, b, t, h) + from);
    else if (type == STORE_BF16) read_as(to, row_at<__nv_bfloat16>(x, b, t, h) + from);
    else read_as(to, row_at<__half>(x, b, t, h) + from);
}

template <int V>
static __device__ void write(enum store type, const head_rows &to, int64_t b, int64_t t, int64_t h, int from,
                             const float (&x)[V], float factor)
{
    if (type == STORE_F32) write(row_at<float>(to, b, t, h) + from, x, factor);
    else if (type == STORE_BF16) write(row_at<__nv_bfloat16>(to, b, t, h) + from, x, factor);
    else write(row_at<__half>(to, b, t, h) + from, x, factor);
}

/* --- the work of a block ---------------------------------------------------------------------- */

/* A block's work: a sample, a group of heads, a tile of queries, a split of rows. */
struct block_work {
    int64_t b;
    int group, tile, split, begin, end;
};
static __device__ block_work block_work_of(const attention &a, int tiles, int splits, int64_t split_rows)
{
    int64_t i = blockIdx.x;
    block_work s;
    s.split = (int)(i % splits), i /= splits;
    s.tile = (int)(i % tiles), i /= tiles;
    s.group = (int)(i % a.cut.groups), s.b = i / a.cut.groups;
    s.begin = (int)(s.split * split_rows), s.end = (int)min(a.cut.rows, s.begin + split_rows);
    return s;
}

/* A lane's slice: which of the warp's rows, which chunk of the row, and the chunk's first element
 * in its head. */
struct lane_slice {
    int row, chunk, head, from;
    bool live;
};
template <int V> static __device__ lane_slice lane_slice_of(const attention &a, int group, int lane)
{
    const int chunks = a.cut.heads * a.cut.lanes;
    lane_slice p;
    p.row = lane / chunks, p.chunk = lane % chunks;
    p.head = group * a.cut.heads + p.chunk / a.cut.lanes, p.from = p.chunk % a.cut.lanes * V;
    p.live = p.row < WARP / chunks && p.head < a.H && p.from < a.D;
    return p;
}

/* Row r of a lane in the iteration that begins at `base`; an iteration has rows_per_iteration<R>(a)
 * rows. */
template <int R> static __device__ int rows_per_iteration(const attention &a)
{
    return R * FEW_WARPS * (WARP / (a.cut.heads * a.cut.lanes));
}
static __device__ int row_of(const attention &a, const lane_slice &p, int base, int r)
{
    return base + (r * FEW_WARPS + (int)threadIdx.x / WARP) * (WARP / (a.cut.heads * a.cut.lanes)) + p.row;
}

/* --- the few side, in shared memory -------------------------------------------------------------
 *
 * A tile: four elements of item n, chunk c, from 4 j on, are at (n * V/4 + j) * 32 + c, so that
 * neighbouring lanes read neighbouring words.
 */

template <int V> static __device__ void store_item(float4 *tile, int n, int c, const float (&x)[V], float factor)
{
    each<V / 4>([&](int j) {
        tile[(n * (V / 4) + j) * WARP + c] =
            make_float4(x[4 * j] * factor, x[4 * j + 1] * factor, x[4 * j + 2] * factor, x[4 * j + 3] * factor);
    });
}

template <int V> static __device__ void load_item(float (&x)[V], const float4 *tile, int n, int c)
{
    each<V / 4>([&](int j) {
        const float4 y = tile[(n * (V / 4) + j) * WARP + c];
        x[4 * j] = y.x, x[4 * j + 1] = y.y, x[4 * j + 2] = y.z, x[4 * j + 3] = y.w;
    });
}

/* Loads items first .. first+count of x, times factor. */
template <int N, int V>
static __device__ void fill(float4 *tile, const head_rows &x, const attention &a, const block_work &w, int first,
                            int count, float factor)
{
    for (int i = threadIdx.x; i < N * WARP; i += THREADS) {
        const int n = i / WARP, c = i % WARP;
        const lane_slice p = lane_slice_of<V>(a, w.group, c);
        const bool live = p.live && p.row == 0 && n < count;
        float e[V];
        read(e, a.type, x, w.b, first + n, p.head, p.from, live);
        store_item(tile, n, c, e, factor);
    }
}

/* --- sums ------------------------------------------------------------------------------------- */

template <int V> static __device__ float dot(const float (&x)[V], const float (&y)[V])
{
    float sum = x[0] * y[0];
#pragma unroll
    for (int i = 1; i < V; i++) sum += x[i] * y[i];
    return sum;
}

/* Reduces over the lanes of a head. */
template <int M> static __device__ void reduce_lanes(float (&x)[M], int lanes)
{
#pragma unroll 1
    for (int m = lanes / 2; m > 0; m /= 2)
        each<M>([&](int i) { x[i] += __shfl_xor_sync(0xffffffffu, x[i], m); });
}

struct adding {
    static __device__ float of(float x, float y) { return x + y; }
};
struct larger {
    static __device__ float of(float x, float y) { return fmaxf(x, y); }
};

/* Reduces the block's warps, lane by lane: M floats of each lane, a multiple of 4, to
 * scratch[M/4][32]. scratch holds the values of four warps; all earlier contents must have been
 * read. */
template <typename F, int M> static __device__ void reduce_warps(float (&x)[M], float4 *scratch)
{
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
#pragma unroll
    for (int half = FEW_WARPS / 2; half >= 0; half /= 2) {
        __syncthreads();
        if (warp >= half && warp < (half ? 2 * half : 1))
            each<M / 4>([&](int i) {
                scratch[((warp - half) * (M / 4) + i) * WARP + lane] =
                    make_float4(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
            });
        __syncthreads();
        if (half == 0) break;
        if (warp < half)
            each<M / 4>([&](int i) {
                const float4 y = scratch[(warp * (M / 4) + i) * WARP + lane];
                x[4 * i] = F::of(x[4 * i], y.x), x[4 * i + 1] = F::of(x[4 * i + 1], y.y);
                x[4 * i + 2] = F::of(x[4 * i + 2], y.z), x[4 * i + 3] = F::of(x[4 * i + 3], y.w);
            });
    }
}

/* Reduces those values over the rows of a warp: four floats of chunk c. */
template <typename F> static __device__ float4 reduce_rows(const attention &a, const float4 *scratch, int i, int c)
{
    const int chunks = a.cut.heads * a.cut.lanes;
    float4 x = scratch[i * WARP + c];
    for (int at = c + chunks; at + chunks <= WARP + c && at < WARP; at += chunks) {
        const float4 y = scratch[i * WARP + at];
        x = make_float4(F::of(x.x, y.x), F::of(x.y, y.y), F::of(x.z, y.z), F::of(x.w, y.w));
    }
    return x;
}

/* Writes the block's sum of x, [N,V] per lane: into the split's part of `partial`
 * [splits,B,count of all,H,D] or, with one split, into `to`. The block's items are first ..
 * first+count of `all`. */
template <int N, int V>
static __device__ void write_sums(float (&x)[N * V], float4 *scratch, const attention &a, const block_work &w,
                                  const head_rows &to, float *partial, int splits, int first, int count, int all,
                                  float factor)
{
    const int chunks = a.cut.heads * a.cut.lanes;
    reduce_warps<adding>(x, scratch);
    for (int i = threadIdx.x; i < N * (V / 4) * WARP; i += THREADS) {
        const int c = i % WARP, j = i / WARP, n = j / (V / 4);
        const lane_slice p = lane_slice_of<V>(a, w.group, c);
        const int from = p.from + j % (V / 4) * 4;
        if (c >= chunks || !p.live || n >= count) continue;
        const float4 y = reduce_rows<adding>(a, scratch, j, c);
        const float four[4] = {y.x * factor, y.y * factor, y.z * factor, y.w * factor};
        if (splits == 1) write(a.type, to, w.b, first + n, p.head, from, four, 1.0f);
        else
            write(partial + (((w.split * (int64_t)a.B + w.b) * all + first + n) * a.H + p.head) * a.D + from, four,
                  1.0f);
    }
}

/* Adds the splits' sums in order: [B,count,H,D]. */
template <typename T>
__global__ void __launch_bounds__(BLOCK)
    join(const head_rows to, const float *partial, int splits, int B, int count, int H, int D)
{
    const int64_t fours = (int64_t)B * count * H * (D / 4);
    for (int64_t i = blockIdx.x * (int64_t)BLOCK + threadIdx.x; i < fours; i += (int64_t)gridDim.x * BLOCK) {
        float sum[4] = {0, 0, 0, 0};
        for (int s = 0; s < splits; s++) {
            const float4 x = reinterpret_cast<const float4 *>(partial)[s * fours + i];
            sum[0] += x.x, sum[1] += x.y, sum[2] += x.z, sum[3] += x.w;
        }
        const int d = (int)(i % (D / 4)) * 4;
        const int64_t row = i / (D / 4), h = row % H, n = row / H % count, b = row / H / count;
        write(row_at<T>(to, b, n, h) + d, sum, 1.0f);
    }
}

/* --- few keys --------------------------------------------------------------------------------- */

/* Turns the scores of one query into probabilities, not yet divided by their sum. */
struct row_sum {
    float top, sum;
};
template <int N> static __device__ row_sum softmax_row(float (&s)[N])
{
    row_sum x = {s[0], 0};
#pragma unroll
    for (int n = 1; n < N; n++) x.top = fmaxf(x.top, s[n]);
    const float base = x.top == -CUDART_INF_F ? 0.0f : x.top; /* no key is seen: exp(-inf) = 0 */
    each<N>([&](int n) {
        s[n] = exp2f(s[n] - base);
        x.sum += s[n];
    });
    return x;
}

template <int N, int V, int R> __global__ void __launch_bounds__(THREADS) keys_forward(const attention a)
{
    __shared__ float4 keys[N * V / 4 * WARP], values[N * V / 4 * WARP];
    const block_work w = block_work_of(a, 1, a.cut.splits, a.cut.split_rows);
    const lane_slice p = lane_slice_of<V>(a, w.group, threadIdx.x % WARP);
    float bias[N];
    fill<N, V>(keys, a.k, a, w, 0, a.S, a.scale * LOG2E);
    fill<N, V>(values, a.v, a, w, 0, a.S, 1.0f);
    each<N>([&](int n) { bias[n] = key_term(a, w.b, n); });
    __syncthreads();
    for (int base = w.begin; base < w.end; base += rows_per_iteration<R>(a)) {
        float q[R][V], s[R][N], o[R][V];
        each<R>([&](int r) {
            const int t = row_of(a, p, base, r);
            read(q[r], a.type, a.q, w.b, t, p.head, p.from, p.live && t < w.end);
            each<V>([&](int i) { o[r][i] = 0; });
        });
        each<N>([&](int n) {
            float k[V];
            load_item(k, keys, n, p.chunk);
            each<R>([&](int r) { s[r][n] = dot(q[r], k); });
        });
        row_sum sums[R];
        each<R>([&](int r) {
            reduce_lanes(s[r], a.cut.lanes);
            each<N>([&](int n) { s[r][n] += bias[n]; });
            sums[r] = softmax_row(s[r]);
        });
        each<N>([&](int n) {
            float v[V];
            load_item(v, values, n, p.chunk);
            each<R, V>([&](int r, int i) { o[r][i] += s[r][n] * v[i]; });
        });
        each<R>([&](int r) {
            const int t = row_of(a, p, base, r);
            if (!p.live || t >= w.end) return;
            const bool empty = sums[r].sum == 0;
            write(a.type, a.o, w.b, t, p.head, p.from, o[r], empty ? 0.0f : 1 / sums[r].sum);
            if (p.from == 0)
                *lse_at(a, w.b, p.head, t) = empty ? -CUDART_INF_F : (sums[r].top + log2f(sums[r].sum)) * LN2;
        });
    }
}

/* A row has all its keys here, so p comes from the scores and rowsum(do * o) from p: neither lse
 * nor o is read. */
template <int N, int V, int R> __global__ void __launch_bounds__(THREADS) keys_backward(const attention a)
{
    __shared__ float4 scratch[FEW_WARPS / 2 * N * V / 4 * WARP];
    float4 *keys = scratch, *values = scratch + N * V / 4 * WARP;
    const block_work w = block_work_of(a, 1, a.cut.splits, a.cut.split_rows);
    const lane_slice p = lane_slice_of<V>(a, w.group, threadIdx.x % WARP);
    float dk[N * V], dv[N * V];
    fill<N, V>(keys, a.k, a, w, 0, a.S, a.scale * LOG2E);
    fill<N, V>(values, a.v, a, w, 0, a.S, 1.0f);
    each<N * V>([&](int i) { dk[i] = dv[i] = 0; });
    __syncthreads();
    for (int base = w.begin; base < w.end; base += rows_per_iteration<R>(a)) {
        float q[R][V], dout[R][V], s[R][N], ds[R][N], dq[R][V];
        each<R>([&](int r) {
            const int t = row_of(a, p, base, r);
            const bool live = p.live && t < w.end;
            read(q[r], a.type, a.q, w.b, t, p.head, p.from, live);
            read(dout[r], a.type, a.dout, w.b, t, p.head, p.from, live);
            each<V>([&](int i) { dq[r][i] = 0; });
        });
        each<N>([&](int n) {
            float k[V], v[V];
            load_item(k, keys, n, p.chunk);
            load_item(v, values, n, p.chunk);
            each<R>([&](int r) { s[r][n] = dot(q[r], k), ds[r][n] = dot(dout[r], v); });
        });
        each<R>([&](int r) {
            reduce_lanes(s[r], a.cut.lanes);
            reduce_lanes(ds[r], a.cut.lanes);
            each<N>([&](int n) { s[r][n] += key_term(a, w.b, n); });
            const row_sum x = softmax_row(s[r]);
            const float factor = x.sum == 0 ? 0.0f : 1 / x.sum;
            float delta = 0;
            each<N>([&](int n) { s[r][n] *= factor, delta += s[r][n] * ds[r][n]; });
            each<N>([&](int n) { ds[r][n] = s[r][n] * (ds[r][n] - delta); });
        });
        each<N>([&](int n) {
            float k[V];
            load_item(k, keys, n, p.chunk);
            each<R, V>([&](int r, int i) {
                dq[r][i] += ds[r][n] * k[i];
                dk[n * V + i] += ds[r][n] * q[r][i];
                dv[n * V + i] += s[r][n] * dout[r][i];
            });
        });
        each<R>([&](int r) {
            const int t = row_of(a, p, base, r);
            /* undoes the log2(e) in k */
            if (p.live && t < w.end) write(a.type, a.dq, w.b, t, p.head, p.from, dq[r], LN2);
        });
    }
    write_sums<N, V>(dk, scratch, a, w, a.dk, a.partial, a.cut.splits, 0, a.S, a.S, a.scale);
    write_sums<N, V>(dv, scratch, a, w, a.dv, a.other, a.cut.splits, 0, a.S, a.S, 1.0f);
}

/* --- few queries ------------------------------------------------------------------------------ */

/* Returns the index in the splits' maxima and sums: [splits,B,T,H] each. */
static __device__ int64_t sum_at(const attention &a, int split, int64_t b, int t, int h)
{
    return ((split * (int64_t)a.B + b) * a.T + t) * a.H + h;
}

/* Reduces the block's maxima, rescales everything to them, then reduces the sums. */
template <int N, int V>
static __device__ void reduce_queries(const attention &a, const block_work &w, const lane_slice &p, float4 *scratch,
                                      float (&top)[N], float (&sum)[N], float (&o)[N * V], int first, int count)
{
    const int64_t all = (int64_t)a.cut.splits * a.B * a.T * a.H;
    float most[N];
    each<N>([&](int n) { most[n] = top[n]; });
    reduce_warps<larger>(most, scratch);
    each<N / 4>([&](int i) {
        const float4 x = reduce_rows<larger>(a, scratch, i, p.chunk);
        most[4 * i] = x.x, most[4 * i + 1] = x.y, most[4 * i + 2] = x.z, most[4 * i + 3] = x.w;
    });
    each<N>([&](int n) {
        const float shrink = exp2f(top[n] - (most[n] == -CUDART_INF_F ? 0.0f : most[n]));
        sum[n] *= shrink;
        each<V>([&](int i) { o[n * V + i] *= shrink; });
        if (threadIdx.x / WARP == 0 && p.live && p.row == 0 && p.from == 0 && n < count)
            a.other[sum_at(a, w.split, w.b, first + n, p.head)] = most[n];
    });
    reduce_warps<adding>(sum, scratch);
    if (threadIdx.x / WARP == 0 && p.live && p.row == 0 && p.from == 0)
        each<N / 4>([&](int i) {
            const float4 x = reduce_rows<adding>(a, scratch, i, p.chunk);
            const float four[4] = {x.x, x.y, x.z, x.w};
            each<4>([&](int j) {
                if (4 * i + j < count) a.other[all + sum_at(a, w.split, w.b, first + 4 * i + j, p.head)] = four[j];
            });
        });
}

template <int N, int V, int R> __global__ void __launch_bounds__(THREADS) queries_forward(const attention a)
{
    __shared__ float4 scratch[FEW_WARPS / 2 * N * V / 4 * WARP];
    const block_work w = block_work_of(a, a.cut.tiles, a.cut.splits, a.cut.split_rows);
    const lane_slice p = lane_slice_of<V>(a, w.group, threadIdx.x % WARP);
    const int first = w.tile * N, count = min(N, a.T - first);
    float top[N], sum[N], o[N * V];
    fill<N, V>(scratch, a.q, a, w, first, count, a.scale * LOG2E);
    each<N>([&](int n) { top[n] = -CUDART_INF_F, sum[n] = 0; });
    each<N * V>([&](int i) { o[i] = 0; });
    __syncthreads();
    for (int base = w.begin; base < w.end; base += rows_per_iteration<R>(a)) {
        float k[R][V], v[R][V], s[R][N];
        each<R>([&](int r) {
            const int row = row_of(a, p, base, r);
            read(k[r], a.type, a.k, w.b, row, p.head, p.from, p.live && row < w.end);
            read(v[r], a.type, a.v, w.b, row, p.head, p.from, p.live && row < w.end);
        });
        each<N>([&](int n) {
            float q[V];
            load_item(q, scratch, n, p.chunk);
            each<R>([&](int r) { s[r][n] = dot(q, k[r]); });
        });
        each<R>([&](int r) {
            const int row = row_of(a, p, base, r);
            const float bias = row < w.end ? key_term(a, w.b, row) : -CUDART_INF_F;
            reduce_lanes(s[r], a.cut.lanes);
            each<N>([&](int n) { s[r][n] += bias; });
        });
        each<N>([&](int n) {
            float now = top[n];
            each<R>([&](int r) { now = fmaxf(now, s[r][n]); });
            const float from = now == -CUDART_INF_F ? 0.0f : now, shrink = exp2f(top[n] - from);
            top[n] = now, sum[n] *= shrink;
            each<R>([&](int r) { s[r][n] = exp2f(s[r][n] - from), sum[n] += s[r][n]; });
            each<V>([&](int i) { o[n * V + i] *= shrink; });
        });
        each<R, N, V>([&](int r, int n, int i) { o[n * V + i] += s[r][n] * v[r][i]; });
    }
    reduce_queries<N, V>(a, w, p, scratch, top, sum, o, first, count);
    write_sums<N, V>(o, scratch, a, w, head_rows{}, a.partial, 0, first, count, a.T, 1.0f);
}

/* Combines o and lse of the splits. */
template <typename T> __global__ void __launch_bounds__(BLOCK) queries_join(const attention a)
{
    const int D4 = a.D / 4;
    const int64_t fours = (int64_t)a.B * a.T * a.H * D4, all = (int64_t)a.cut.splits * a.B * a.T * a.H;
    for (int64_t i = blockIdx.x * (int64_t)BLOCK + threadIdx.x; i < fours; i += (int64_t)gridDim.x * BLOCK) {
        const int64_t row = i / D4, b = row / a.H / a.T;
        const int h = (int)(row % a.H), t = (int)(row / a.H % a.T), d = (int)(i % D4) * 4;
        float top = -CUDART_INF_F, sum = 0, o[4] = {0, 0, 0, 0};
        for (int s = 0; s < a.cut.splits; s++) top = fmaxf(top, a.other[sum_at(a, s, b, t, h)]);
        const float from = top == -CUDART_INF_F ? 0.0f : top;
        for (int s = 0; s < a.cut.splits; s++) {
            const int64_t at = sum_at(a, s, b, t, h);
            const float block_work = exp2f(a.other[at] - from);
            const float4 x = reinterpret_cast<const float4 *>(a.partial)[s * fours + i];
            sum += block_work * a.other[all + at];
            o[0] += block_work * x.x, o[1] += block_work * x.y, o[2] += block_work * x.z, o[3] += block_work * x.w;
        }
        write(row_at<T>(a.o, b, t, h) + d, o, sum == 0 ? 0.0f : 1 / sum);
        if (d == 0) *lse_at(a, b, h, t) = sum == 0 ? -CUDART_INF_F : (top + log2f(sum)) * LN2;
    }
}

/* Loads a tile of queries and their gradients; lse in base 2 and rowsum(do * o). A query that sees
 * no key, or that does not exist, has lse = inf, which makes p 0. */
template <int N, int V>
static __device__ void fill_queries(float4 *queries, float4 *douts, float2 *sums, const attention &a,
                                    const block_work &w, int first, int count)
{
    fill<N, V>(queries, a.q, a, w, first, count, a.scale * LOG2E);
    for (int i = threadIdx.x; i < N * WARP; i += THREADS) {
        const int n = i / WARP, c = i % WARP;
        const lane_slice p = lane_slice_of<V>(a, w.group, c);
        const bool live = p.live && p.row == 0 && n < count;
        float dout[V], o[V];
        read(dout, a.type, a.dout, w.b, first + n, p.head, p.from, live);
        read(o, a.type, a.o, w.b, first + n, p.head, p.from, live);
        store_item(douts, n, c, dout, 1.0f);
        float delta[1] = {dot(dout, o)};
        reduce_lanes(delta, a.cut.lanes);
        const bool there = p.row == 0 && p.head < a.H && n < count;
        const float lse = there ? *lse_at(a, w.b, p.head, first + n) : -CUDART_INF_F;
        sums[i] = make_float2(lse == -CUDART_INF_F ? CUDART_INF_F : lse * LOG2E, delta[0]);
    }
}

/* With DQ a block has one tile of queries; without, it iterates over all of them. */
template <int N, int V, int R, bool DQ, bool DKV>
__global__ void __launch_bounds__(THREADS) queries_backward(const attention a, int splits, int64_t split_rows)
{
    constexpr int TILE = N * V / 4 * WARP, MEETING = FEW_WARPS / 2 * TILE;
    __shared__ float4 scratch[DQ ? MEETING : 2 * TILE];
    __shared__ float2 sums[N * WARP];
    float4 *queries = scratch, *douts = scratch + TILE;
    const block_work w = block_work_of(a, DQ ? a.cut.tiles : 1, splits, split_rows);
    const lane_slice p = lane_slice_of<V>(a, w.group, threadIdx.x % WARP);
    const int last = DQ ? w.tile + 1 : a.cut.tiles;
    float dq[N * V];
    each<N * V>([&](int i) { dq[i] = 0; });
    if (DQ) fill_queries<N, V>(queries, douts, sums, a, w, w.tile * N, min(N, a.T - w.tile * N));
    __syncthreads();
    for (int base = w.begin; base < w.end; base += rows_per_iteration<R>(a)) {
        float k[R][V], v[R][V], dk[R][V], dv[R][V], bias[R];
        each<R>([&](int r) {
            const int row = row_of(a, p, base, r);
            read(k[r], a.type, a.k, w.b, row, p.head, p.from, p.live && row < w.end);
            read(v[r], a.type, a.v, w.b, row, p.head, p.from, p.live && row < w.end);
            bias[r] = row < w.end ? key_term(a, w.b, row) : -CUDART_INF_F;
            each<V>([&](int i) { dk[r][i] = dv[r][i] = 0; });
        });
        for (int tile = w.tile; tile < last; tile++) {
            if (!DQ) {
                __syncthreads();
                fill_queries<N, V>(queries, douts, sums, a, w, tile * N, min(N, a.T - tile * N));
                __syncthreads();
            }
            each<N>([&](int n) {
                float q[V], dout[V], both[2 * R];
                const float2 known = sums[n * WARP + p.chunk];
                load_item(q, queries, n, p.chunk);
                load_item(dout, douts, n, p.chunk);
                each<R>([&](int r) { both[r] = dot(q, k[r]), both[R + r] = dot(dout, v[r]); });
                reduce_lanes(both, a.cut.lanes);
                each<R>([&](int r) {
                    const float e = exp2f(both[r] + bias[r] - known.x), ds = e * (both[R + r] - known.y);
                    each<V>([&](int i) {
                        if (DKV) dv[r][i] += e * dout[i], dk[r][i] += ds * q[i];
                        if (DQ) dq[n * V + i] += ds * k[r][i];
                    });
                });
            });
        }
        each<R>([&](int r) {
            const int row = row_of(a, p, base, r);
            if (!DKV || !p.live || row >= w.end) return;
            write(a.type, a.dk, w.b, row, p.head, p.from, dk[r], LN2); /* undoes the log2(e) in q */
            write(a.type, a.dv, w.b, row, p.head, p.from, dv[r], 1.0f);
        });
    }
    if (DQ)
        write_sums<N, V>(dq, scratch, a, w, a.dq, a.partial, splits, w.tile * N, min(N, a.T - w.tile * N), a.T,
                         a.scale);
}

/* --- launching -------------------------------------------------------------------------------- */

static int64_t blocks_of(const attention *a, int tiles, int splits)
{
    return (int64_t)a->B * a->cut.groups * tiles * splits;
}

template <int N, int V> static cudaError_t run_forward(const attention *a, enum few_form form, cudaStream_t stream)
{
    const auto kernel = form == FEW_KEYS_8 || form == FEW_KEYS_16 ? keys_forward<N, V, 2> : queries_forward<N, V, 2>;
    return start_kernel(kernel, blocks_of(a, a->cut.tiles, a->cut.splits), THREADS, 0, stream, *a);
}

/* With several tiles of queries, dk and dv first: each block has as many keys as its lanes hold at
 * once. */
template <int N, int V> static cudaError_t run_backward(const attention *a, enum few_form form, cudaStream_t stream)
{
    constexpr int R = 2;
    const int64_t blocks = blocks_of(a, a->cut.tiles, a->cut.splits),
                  rows = R * FEW_WARPS * (WARP / (a->cut.heads * a->cut.lanes));
    const int splits = (int)few_ceil(a->cut.rows, rows);
    if (form == FEW_KEYS_8 || form == FEW_KEYS_16)
        return start_kernel(keys_backward<N, V, 1>, blocks, THREADS, 0, stream, *a);
    auto kernel = queries_backward<N, V, R, true, true>;
    if constexpr (N == FEW_TILE)
        if (form == FEW_QUERY_TILES) {
            const cudaError_t rc = start_kernel(queries_backward<N, V, R, false, true>, blocks_of(a, 1, splits),
                                                THREADS, 0, stream, *a, splits, rows);
            if (rc != cudaSuccess) return rc;
            kernel = queries_backward<N, V, R, true, false>;
        }
    return start_kernel(kernel, blocks, THREADS, 0, stream, *a, a->cut.splits, a->cut.split_rows);
}

extern "C" cudaError_t cuda_attention_few(const struct attention *a, int backward, enum few_form form,
                                          cudaStream_t stream)
{
    if (form != few_form(a->T, a->S)) return cudaErrorInvalidValue;
    if (form == FEW_KEYS_16 || form == FEW_QUERIES_16)
        return backward ? run_backward<16, 4>(a, form, stream) : run_forward<16, 4>(a, form, stream);
    return backward ? run_backward<8, 8>(a, form, stream) : run_forward<8, 8>(a, form, stream);
}

/* --- joining ---------------------------------------------------------------------------------- */

template <typename T>
static cudaError_t join_splits(const attention *a, const head_rows &to, const float *partial, int count,
                               cudaStream_t stream)
{
    const unsigned blocks = grid_for((int64_t)a->B * count * a->H * (a->D / 4));
    return a->cut.splits == 1
               ? cudaSuccess
               : start_kernel(join<T>, blocks, BLOCK, 0, stream, to, partial, a->cut.splits, a->B, count, a->H, a->D);
}

template <typename T> static cudaError_t run_join(const attention *a, bool backward, cudaStream_t stream)
{
    const bool keys = a->cut.side == FEW_KEYS;
    if (!backward)
        return keys ? cudaSuccess
                    : start_kernel(queries_join<T>, grid_for((int64_t)a->B * a->T * a->H * (a->D / 4)), BLOCK, 0,
                                   stream, *a);
    const cudaError_t rc =
        keys ? join_splits<T>(a, a->dk, a->partial, a->S, stream) : join_splits<T>(a, a->dq, a->partial, a->T, stream);
    return rc == cudaSuccess && keys ? join_splits<T>(a, a->dv, a->other, a->S, stream) : rc;
}

extern "C" cudaError_t cuda_attention_few_join(const struct attention *a, int backward, cudaStream_t stream)
{
    return by_store(a->type, [&](auto t) { return run_join<decltype(t)>(a, backward, stream); });
}
