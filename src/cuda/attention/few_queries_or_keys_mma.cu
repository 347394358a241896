/*
 * few_queries_or_keys_mma.cu: attention with few queries or few keys on tensor cores: bf16 or f16,
 * D = 16.
 *
 * The sides are those of work.h. Here a warp has one head, streams 16 rows at a time from
 * memory into registers and keeps the few side, in groups of eight, as the other operand; shared
 * memory is not used. With g = lane / 4 and c = lane % 4 a lane reads elements 4c .. 4c+3 of rows g
 * and g+8, and of item g of the few side:
 *
 *     scores     [16 rows, 8 few]  = rows . few^T      contracted over a head's 16 elements, in the
 *                                                      order of both sides, 4c 4c+1 | 4c+2 4c+3
 *     mixtures   [16 rows, 16]     = scores . few      the scores' registers are the operand
 *     sums       [16, 8 few]      += rows^T . scores   8x8 blocks transposed in registers
 *                (movmatrix)
 *
 *     few keys      o and dq are mixtures, dk and dv sums
 *     few queries   o and dq are sums, dk and dv mixtures
 *
 * Element 4c' + 2j + e of a mixture is column 2c'+e of product j, so a lane has the four adjacent
 * elements that it writes. In a sum, row i of 8j+i is element 4(i/2) + 2j + i%2.
 *
 * Probabilities and their gradients are rounded to the storage type as operands; sums, maxima and
 * exponents are f32. Sums over splits of the rows are written as in
 * few_queries_or_keys.cu, which adds them up.
 */
#include "cuda/attention/mma.cuh"

constexpr int WARP = 32, THREADS = WARP * FEW_WARPS, WIDTH = FEW_MMA_WIDTH, ROWS = 16, EIGHT = 8;

/* --- instructions ----------------------------------------------------------------------------- */

/* Transposes an 8x8 block across the warp; before 8.0 these kernels do not run. */
static __device__ uint32_t transposed(uint32_t x)
{
    uint32_t y = x;
#if HAS_BF16
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
#endif
    return y;
}

/* Computes 1/x in one approximate instruction; log2(x) below. */
static __device__ float inverse(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
static __device__ float logarithm(float x)
{
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* --- rows ------------------------------------------------------------------------------------- */

/* Reduces over the rows of a column. */
static __device__ float sum_rows(float x)
{
    for (int m = 4; m < WARP; m *= 2) x += __shfl_xor_sync(0xffffffffu, x, m);
    return x;
}
static __device__ float max_rows(float x)
{
    for (int m = 4; m < WARP; m *= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, m));
    return x;
}

/* A warp's work: a sample, a head, a tile of queries, a split of the rows. */
struct warp_work {
    int64_t b;
    int head, tile, split, begin, end, g, c;
};
static __device__ warp_work warp_work_of(const attention &a, int tiles, int splits, int64_t split_rows)
{
    const int lane = threadIdx.x % WARP, groups = (a.H + FEW_WARPS - 1) / FEW_WARPS;
    int64_t i = blockIdx.x;
    warp_work s;
    s.split = (int)(i % splits), i /= splits;
    s.tile = (int)(i % tiles), i /= tiles;
    s.head = (int)(i % groups) * FEW_WARPS + (int)threadIdx.x / WARP, s.b = i / groups;
    s.begin = (int)(s.split * split_rows), s.end = (int)min(a.cut.rows, s.begin + split_rows);
    s.g = lane / 4, s.c = lane % 4;
    return s;
}

/* A lane's part of a tensor's rows, and the stride to the next eight rows. */
template <typename T> struct stream {
    T *at;
    int64_t eight;
};
template <typename T> static __device__ stream<T> stream_of(const head_rows &x, const warp_work &w)
{
    return {row_at<T>(x, w.b, w.begin + w.g, w.head) + 4 * w.c, EIGHT * x.token};
}

/* Reads four elements; zeros if the row does not exist. */
template <typename T> static __device__ uint2 read(const T *from, bool there)
{
    return there ? *reinterpret_cast<const uint2 *>(from) : make_uint2(0, 0);
}

/* Reads the next 16 rows as a left operand; transposes such an operand. `left` rows remain from the
 * lane's first row on. */
template <typename T> static __device__ void read_rows(uint32_t (&to)[4], stream<T> &x, int left)
{
    const uint2 upper = read(x.at, left > 0), lower = read(x.at + x.eight, left > EIGHT);
    to[0] = upper.x, to[1] = lower.x, to[2] = upper.y, to[3] = lower.y;
    x.at += 2 * x.eight;
}
static __device__ void transpose_rows(uint32_t (&to)[4], const uint32_t (&x)[4])
{
    to[0] = transposed(x[0]), to[1] = transposed(x[2]), to[2] = transposed(x[1]), to[3] = transposed(x[3]);
}

/* Writes the rows of a mixture. */
template <typename T>
static __device__ void write_rows(stream<T> &to, int left, const float (&x)[2][4], float upper, float lower)
{
    const uint2 first =
        make_uint2(both(x[0][0] * upper, x[0][1] * upper, T()), both(x[1][0] * upper, x[1][1] * upper, T()));
    const uint2 second =
        make_uint2(both(x[0][2] * lower, x[0][3] * lower, T()), both(x[1][2] * lower, x[1][3] * lower, T()));
    if (left > 0) *reinterpret_cast<uint2 *>(to.at) = first;
    if (left > EIGHT) *reinterpret_cast<uint2 *>(to.at + to.eight) = second;
    to.at += 2 * to.eight;
}

/* --- the few side ----------------------------------------------------------------------------- */

/* Groups of eight items as right operands: `by_element` is contracted over elements, `by_item` over
 * items. */
template <int E> struct few_operands {
    uint32_t by_element[E][2], by_item[E][2];
};
template <typename T, int E>
static __device__ void fill(few_operands<E> &f, const head_rows &x, const warp_work &w, int first, int end)
{
    each<E>([&](int n) {
        const int item = first + n * EIGHT + w.g;
        const uint2 y = read(row_at<T>(x, w.b, item, w.head) + 4 * w.c, item < end);
        f.by_element[n][0] = y.x, f.by_element[n][1] = y.y;
        f.by_item[n][0] = transposed(y.x), f.by_item[n][1] = transposed(y.y);
    });
}

/* Writes a sum: into the split's part of `partial` [splits,B,all,H,16] or, with one split, into
 * `to`. */
template <typename T, int E>
static __device__ void write_sums(const float (&x)[E][4], const attention &a, const warp_work &w, const head_rows &to,
                                  float *partial, int splits, int first, int all, float factor)
{
    each<E, 4>([&](int n, int i) {
        const int item = first + n * EIGHT + 2 * w.c + i % 2, d = 4 * (w.g / 2) + 2 * (i / 2) + w.g % 2;
        if (item >= all) return;
        if (splits == 1) row_at<T>(to, w.b, item, w.head)[d] = from_float<T>(x[n][i] * factor);
        else partial[(((w.split * (int64_t)a.B + w.b) * all + item) * a.H + w.head) * WIDTH + d] = x[n][i] * factor;
    });
}

/* --- few keys --------------------------------------------------------------------------------- */

/* Turns a row's scores, in base 2, into probabilities, not yet divided by their sum. `at` is 0 for
 * row g, 2 for row g+8. */
struct row_sum {
    float top, sum;
};
template <int E> static __device__ row_sum softmax_row(float (&s)[E][4], int at)
{
    row_sum x = {-CUDART_INF_F, 0};
    each<E>([&](int n) { x.top = fmaxf(x.top, fmaxf(s[n][at], s[n][at + 1])); });
    x.top = quad_max(x.top);
    const float base = x.top == -CUDART_INF_F ? 0.0f : x.top; /* no key is seen: exp(-inf) = 0 */
    each<E>([&](int n) {
        s[n][at] = power_of_two(s[n][at] - base), s[n][at + 1] = power_of_two(s[n][at + 1] - base);
        x.sum += s[n][at] + s[n][at + 1];
    });
    x.sum = quad_sum(x.sum);
    return x;
}

/* The masked scores of 16 queries. */
template <typename T, int E>
static __device__ void score_keys(float (&s)[E][4], const uint32_t (&q)[4], const few_operands<E> &keys,
                                  const float (&bias)[E][2], float scale)
{
    each<E>([&](int n) {
        s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
        mma(s[n], q, keys.by_element[n][0], keys.by_element[n][1], T());
        each<4>([&](int i) { s[n][i] = s[n][i] * scale + bias[n][i % 2]; });
    });
}

template <typename T, int E, int U> __global__ void __launch_bounds__(THREADS) keys_forward(const attention a)
{
    const warp_work w = warp_work_of(a, 1, a.cut.splits, a.cut.split_rows);
    if (w.head >= a.H) return;
    few_operands<E> keys, values;
    float bias[E][2];
    fill<T>(keys, a.k, w, 0, a.S);
    fill<T>(values, a.v, w, 0, a.S);
    each<2 * E>([&](int i) { bias[i / 2][i % 2] = key_term(a, w.b, i / 2 * EIGHT + 2 * w.c + i % 2); });
    stream<T> queries = stream_of<T>(a.q, w), outputs = stream_of<T>(a.o, w);
    /* Lanes 0 and 1 of a row's four write the lse of the upper and of the lower row. */
    float *lse = lse_at(a, w.b, w.head, w.begin + w.g + EIGHT * w.c);
    for (int left = w.end - w.begin - w.g, more = w.end - w.begin; more > 0; more -= U * ROWS) {
        uint32_t q[U][4];
        each<U>([&](int u) { read_rows(q[u], queries, left - u * ROWS); });
#pragma unroll
        for (int u = 0; u < U; u++, left -= ROWS, lse += ROWS * a.lse_token) {
            float s[E][4], o[2][4] = {};
            score_keys<T>(s, q[u], keys, bias, a.scale * LOG2E);
            const row_sum upper = softmax_row(s, 0), lower = softmax_row(s, 2);
            each<E>([&](int n) {
                const uint32_t p[2] = {both(s[n][0], s[n][1], T()), both(s[n][2], s[n][3], T())};
                mma8(o[0], p[0], p[1], values.by_item[n][0], T());
                mma8(o[1], p[0], p[1], values.by_item[n][1], T());
            });
            write_rows(outputs, left, o, upper.sum == 0 ? 0.0f : inverse(upper.sum),
                       lower.sum == 0 ? 0.0f : inverse(lower.sum));
            const row_sum mine = w.c ? lower : upper;
            const float query_stats = mine.sum == 0 ? -CUDART_INF_F : (mine.top + logarithm(mine.sum)) * LN2;
            if (w.c < 2 && left > EIGHT * w.c) *lse = query_stats;
        }
    }
}

/* Probabilities and their gradients of one row, selected by `at`: ds = p (dp - rowsum(p dp)). */
template <int E> static __device__ void softmax_backward(float (&s)[E][4], float (&ds)[E][4], int at)
{
    const row_sum x = softmax_row(s, at);
    const float factor = x.sum == 0 ? 0.0f : inverse(x.sum);
    float delta = 0;
    each<E>([&](int n) {
#pragma unroll
        for (int i = at; i < at + 2; i++) s[n][i] *= factor, delta += s[n][i] * ds[n][i];
    });
    delta = quad_sum(delta);
    each<E>([&](int n) {
#pragma unroll
        for (int i = at; i < at + 2; i++) ds[n][i] = s[n][i] * (ds[n][i] - delta);
    });
}

/* A row has all its keys here, so neither lse nor o is read. */
template <typename T, int E, int U> __global__ void __launch_bounds__(THREADS) keys_backward(const attention a)
{
    const warp_work w = warp_work_of(a, 1, a.cut.splits, a.cut.split_rows);
    if (w.head >= a.H) return;
    few_operands<E> keys, values;
    float bias[E][2], dk[E][4] = {}, dv[E][4] = {};
    fill<T>(keys, a.k, w, 0, a.S);
    fill<T>(values, a.v, w, 0, a.S);
    each<2 * E>([&](int i) { bias[i / 2][i % 2] = key_term(a, w.b, i / 2 * EIGHT + 2 * w.c + i % 2); });
    stream<T> queries = stream_of<T>(a.q, w), douts = stream_of<T>(a.dout, w), dqs = stream_of<T>(a.dq, w);
    for (int left = w.end - w.begin - w.g, more = w.end - w.begin; more > 0; more -= U * ROWS) {
        uint32_t q[U][4], dout[U][4];
        each<U>([&](int u) {
            read_rows(q[u], queries, left - u * ROWS);
            read_rows(dout[u], douts, left - u * ROWS);
        });
#pragma unroll
        for (int u = 0; u < U; u++, left -= ROWS) {
            float s[E][4], ds[E][4] = {}, dq[2][4] = {};
            uint32_t q_turned[4], dout_turned[4];
            score_keys<T>(s, q[u], keys, bias, a.scale * LOG2E);
            each<E>([&](int n) { mma(ds[n], dout[u], values.by_element[n][0], values.by_element[n][1], T()); });
            softmax_backward(s, ds, 0);
            softmax_backward(s, ds, 2);
            transpose_rows(q_turned, q[u]);
            transpose_rows(dout_turned, dout[u]);
            each<E>([&](int n) {
                const uint32_t p[2] = {both(s[n][0], s[n][1], T()), both(s[n][2], s[n][3], T())};
                const uint32_t d[2] = {both(ds[n][0], ds[n][1], T()), both(ds[n][2], ds[n][3], T())};
                mma8(dq[0], d[0], d[1], keys.by_item[n][0], T());
                mma8(dq[1], d[0], d[1], keys.by_item[n][1], T());
                mma(dk[n], q_turned, transposed(d[0]), transposed(d[1]), T());
                mma(dv[n], dout_turned, transposed(p[0]), transposed(p[1]), T());
            });
            write_rows(dqs, left, dq, a.scale, a.scale);
        }
    }
    write_sums<T>(dk, a, w, a.dk, a.partial, a.cut.splits, 0, a.S, a.scale);
    write_sums<T>(dv, a, w, a.dv, a.other, a.cut.splits, 0, a.S, 1.0f);
}

/* --- few queries ------------------------------------------------------------------------------ */

/* The mask biases of a lane's two rows; -inf if a row does not exist. */
struct row_bias {
    float upper, lower;
};
static __device__ row_bias bias_rows(const attention &a, const warp_work &w, int left)
{
    row_bias x = {left > 0 ? 0.0f : -CUDART_INF_F, left > EIGHT ? 0.0f : -CUDART_INF_F};
    if (a.mask && left > 0) x.upper = key_term(a, w.b, w.end - left);
    if (a.mask && left > EIGHT) x.lower = key_term(a, w.b, w.end - left + EIGHT);
    return x;
}

/* The running maximum is raised only if a score exceeds it by more than MAX_SLACK, a factor of
 * 2^MAX_SLACK: the sums stay small enough, and few iterations have to rescale earlier sums. */
constexpr float MAX_SLACK = 8;

template <int E>
static __device__ void raise_max(const float (&s)[E][4], float (&top)[E][2], float (&sum)[E][2], float (&o)[E][4])
{
    bool above = false;
    each<E, 4>([&](int n, int i) { above = above || s[n][i] > top[n][i % 2] + MAX_SLACK; });
    if (!__any_sync(0xffffffffu, above)) return;
    each<E, 2>([&](int n, int i) {
        const float now = fmaxf(top[n][i], max_rows(fmaxf(s[n][i], s[n][i + 2])));
        const float shrink = power_of_two(top[n][i] - (now == -CUDART_INF_F ? 0.0f : now));
        top[n][i] = now, sum[n][i] *= shrink;
        o[n][i] *= shrink, o[n][i + 2] *= shrink;
    });
}

template <typename T, int E, int U>
__global__ void __launch_bounds__(THREADS) queries_forward(const attention a, int tiles)
{
    const warp_work w = warp_work_of(a, tiles, a.cut.splits, a.cut.split_rows);
    if (w.head >= a.H) return;
    const int first = w.tile * E * EIGHT;
    few_operands<E> queries;
    float top[E][2], sum[E][2] = {}, o[E][4] = {};
    fill<T>(queries, a.q, w, first, a.T);
    each<E>([&](int n) { top[n][0] = top[n][1] = -CUDART_INF_F; });
    stream<T> keys = stream_of<T>(a.k, w), values = stream_of<T>(a.v, w);
    for (int left = w.end - w.begin - w.g, more = w.end - w.begin; more > 0; more -= U * ROWS) {
        uint32_t k[U][4], v[U][4];
        each<U>([&](int u) {
            read_rows(k[u], keys, left - u * ROWS);
            read_rows(v[u], values, left - u * ROWS);
        });
#pragma unroll
        for (int u = 0; u < U; u++, left -= ROWS) {
            const row_bias bias = bias_rows(a, w, left);
            float s[E][4] = {};
            uint32_t v_turned[4];
            each<E>([&](int n) {
                mma(s[n], k[u], queries.by_element[n][0], queries.by_element[n][1], T());
                each<4>([&](int i) { s[n][i] = s[n][i] * (a.scale * LOG2E) + (i < 2 ? bias.upper : bias.lower); });
            });
            raise_max(s, top, sum, o);
            transpose_rows(v_turned, v[u]);
            each<E>([&](int n) {
                each<4>([&](int i) {
                    s[n][i] = power_of_two(s[n][i] - (top[n][i % 2] == -CUDART_INF_F ? 0.0f : top[n][i % 2]));
                });
                sum[n][0] += s[n][0] + s[n][2], sum[n][1] += s[n][1] + s[n][3];
                mma(o[n], v_turned, transposed(both(s[n][0], s[n][1], T())), transposed(both(s[n][2], s[n][3], T())),
                    T());
            });
        }
    }
    write_sums<float>(o, a, w, head_rows{}, a.partial, 0, first, a.T, 1.0f);
    const int64_t all = (int64_t)a.cut.splits * a.B * a.T * a.H;
    each<E, 2>([&](int n, int i) {
        const int t = first + n * EIGHT + 2 * w.c + i;
        const float total = sum_rows(sum[n][i]);
        if (w.g || t >= a.T) return;
        const int64_t at = ((w.split * (int64_t)a.B + w.b) * a.T + t) * a.H + w.head;
        a.other[at] = top[n][i], a.other[all + at] = total;
    });
}

/* The statistics of a lane's two queries of each group of eight: lse in base 2, and rowsum(do * o).
 * A query that sees no key, or that does not exist, has lse = inf, which makes p 0. */
template <int E> struct query_stats {
    float lse[E][2], delta[E][2];
};
template <typename T, int E>
static __device__ void fill_query_stats(query_stats<E> &x, const few_operands<E> &douts, const attention &a,
                                        const warp_work &w, int first)
{
    each<E>([&](int n) {
        const int t = first + n * EIGHT + w.g;
        const uint2 y = read(row_at<T>(a.o, w.b, t, w.head) + 4 * w.c, t < a.T),
                    z = make_uint2(douts.by_element[n][0], douts.by_element[n][1]);
        const pack<T, 4> o = *reinterpret_cast<const pack<T, 4> *>(&y), d = *reinterpret_cast<const pack<T, 4> *>(&z);
        float delta = 0, lse = t < a.T ? *lse_at(a, w.b, w.head, t) : -CUDART_INF_F;
        lse = lse == -CUDART_INF_F ? CUDART_INF_F : lse * LOG2E;
        each<4>([&](int i) { delta += to_float(o.at[i]) * to_float(d.at[i]); });
        delta = quad_sum(delta);
        each<2>([&](int i) {
            const int from = 4 * (2 * w.c + i); /* a lane that holds the query of this column */
            x.lse[n][i] = __shfl_sync(0xffffffffu, lse, from);
            x.delta[n][i] = __shfl_sync(0xffffffffu, delta, from);
        });
    });
}

/* With DQ a warp has one tile of queries; without, it iterates over all of them for U times 16
 * keys. */
template <typename T, int E, int U, bool DQ, bool DKV>
__global__ void __launch_bounds__(THREADS)
    queries_backward(const attention a, int tiles, int splits, int64_t split_rows)
{
    const warp_work w = warp_work_of(a, DQ ? tiles : 1, splits, split_rows);
    if (w.head >= a.H) return;
    const int last = DQ ? w.tile + 1 : tiles;
    few_operands<E> queries, douts;
    query_stats<E> facts;
    float dq[E][4] = {};
    if (DQ) {
        fill<T>(queries, a.q, w, w.tile * E * EIGHT, a.T);
        fill<T>(douts, a.dout, w, w.tile * E * EIGHT, a.T);
        fill_query_stats<T>(facts, douts, a, w, w.tile * E * EIGHT);
    }
    stream<T> keys = stream_of<T>(a.k, w), values = stream_of<T>(a.v, w), dks = stream_of<T>(a.dk, w),
              dvs = stream_of<T>(a.dv, w);
    for (int left = w.end - w.begin - w.g, more = w.end - w.begin; more > 0; more -= U * ROWS) {
        uint32_t k[U][4], v[U][4];
        float dk[U][2][4] = {}, dv[U][2][4] = {};
        row_bias bias[U];
        each<U>([&](int u) {
            read_rows(k[u], keys, left - u * ROWS);
            read_rows(v[u], values, left - u * ROWS);
            bias[u] = bias_rows(a, w, left - u * ROWS);
        });
        for (int tile = w.tile; tile < last; tile++) {
            if (!DQ) {
                fill<T>(queries, a.q, w, tile * E * EIGHT, a.T);
                fill<T>(douts, a.dout, w, tile * E * EIGHT, a.T);
                fill_query_stats<T>(facts, douts, a, w, tile * E * EIGHT);
            }
            each<U>([&](int u) {
                uint32_t k_turned[4];
                if (DQ) transpose_rows(k_turned, k[u]);
                each<E>([&](int n) {
                    float s[4] = {}, ds[4] = {};
                    mma(s, k[u], queries.by_element[n][0], queries.by_element[n][1], T());
                    mma(ds, v[u], douts.by_element[n][0], douts.by_element[n][1], T());
                    each<4>([&](int i) {
                        s[i] = power_of_two(s[i] * (a.scale * LOG2E) + (i < 2 ? bias[u].upper : bias[u].lower) -
                                            facts.lse[n][i % 2]);
                        ds[i] = s[i] * (ds[i] - facts.delta[n][i % 2]);
                    });
                    const uint32_t p[2] = {both(s[0], s[1], T()), both(s[2], s[3], T())};
                    const uint32_t d[2] = {both(ds[0], ds[1], T()), both(ds[2], ds[3], T())};
#pragma unroll
                    for (int j = 0; j < 2 && DKV; j++) {
                        mma8(dv[u][j], p[0], p[1], douts.by_item[n][j], T());
                        mma8(dk[u][j], d[0], d[1], queries.by_item[n][j], T());
                    }
                    if (DQ) mma(dq[n], k_turned, transposed(d[0]), transposed(d[1]), T());
                });
            });
        }
#pragma unroll
        for (int u = 0; u < U && DKV; u++) {
            write_rows(dks, left - u * ROWS, dk[u], a.scale, a.scale);
            write_rows(dvs, left - u * ROWS, dv[u], 1.0f, 1.0f);
        }
        left -= U * ROWS;
    }
    if (DQ) write_sums<T>(dq, a, w, a.dq, a.partial, splits, w.tile * E * EIGHT, a.T, a.scale);
}

/* --- launching -------------------------------------------------------------------------------- */

static int64_t blocks_of(const attention *a, int tiles, int splits)
{
    return a->B * few_ceil(a->H, FEW_WARPS) * tiles * splits;
}
static int tiles_of(const attention *a, int eights) { return (int)few_ceil(a->T, eights * EIGHT); }

template <typename T, int E> static cudaError_t run_keys(const attention *a, bool backward, cudaStream_t stream)
{
    return start_kernel(backward ? keys_backward<T, E, 2> : keys_forward<T, E, 4>, blocks_of(a, 1, a->cut.splits),
                        THREADS, 0, stream, *a);
}

template <typename T, int E> static cudaError_t run_queries(const attention *a, bool backward, cudaStream_t stream)
{
    constexpr bool WHOLE = E < 4; /* one tile: dk and dv are computed as well */
    const int tiles = tiles_of(a, E);
    const int64_t blocks = blocks_of(a, tiles, a->cut.splits);
    if (!backward) return start_kernel(queries_forward<T, E, 2>, blocks, THREADS, 0, stream, *a, tiles);
    return start_kernel(queries_backward<T, E, 2, true, WHOLE>, blocks, THREADS, 0, stream, *a, tiles, a->cut.splits,
                        a->cut.split_rows);
}

/* dk and dv over all queries, if those have more than one tile. */
template <typename T> static cudaError_t run_tiles(const attention *a, cudaStream_t stream)
{
    constexpr int U = 4;
    const int splits = (int)few_ceil(a->cut.rows, U * ROWS);
    return start_kernel(queries_backward<T, 1, U, false, true>, blocks_of(a, 1, splits), THREADS, 0, stream, *a,
                        tiles_of(a, 1), splits, (int64_t)U * ROWS);
}

/* Groups of eight items per warp: one, two, or four if there are more than that. */
template <typename T> static cudaError_t run(const attention *a, bool backward, enum few_form form, cudaStream_t stream)
{
    switch (form) {
    case FEW_KEYS_8: return run_keys<T, 1>(a, backward, stream);
    case FEW_KEYS_16: return run_keys<T, 2>(a, backward, stream);
    case FEW_QUERIES_8: return run_queries<T, 1>(a, backward, stream);
    case FEW_QUERIES_16: return run_queries<T, 2>(a, backward, stream);
    case FEW_QUERY_TILES: break;
    }
    const cudaError_t rc = run_queries<T, 4>(a, backward, stream);
    return rc == cudaSuccess && backward ? run_tiles<T>(a, stream) : rc;
}

extern "C" cudaError_t cuda_attention_few_mma(const struct attention *a, int backward, enum few_form form,
                                              cudaStream_t stream)
{
    if (a->D != WIDTH || a->type == STORE_F32 || form != few_form(a->T, a->S)) return cudaErrorInvalidValue;
    return a->type == STORE_BF16 ? run<__nv_bfloat16>(a, backward, form, stream)
                                 : run<__half>(a, backward, form, stream);
}
