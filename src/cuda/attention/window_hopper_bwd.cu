/*
 * window_hopper_bwd.cu: the gradient of windowed attention with 14 x 14 windows on
 * Hopper, bf16 and f16.
 *
 * A block has one window of a head, all of it in shared memory, and two warpgroups that work
 * independently: each takes 64 queries at a time and computes their dq, then 64 keys at a time and
 * computes their dk and dv.
 *
 *     64 queries   s = q k^T,  dp = do v^T,  in halves of the keys   ->   p, ds     dq += ds k
 *                  sums of ds over the window's rows and columns go to g; dq = scale dq + g tables
 *     64 keys      s^T = k q^T,  dp^T = v do^T,  64 queries at a time   ->   p^T, ds^T
 *                  dv += p^T do,  dk += ds^T q
 *     at the end   the tables' gradients = g^T q
 *
 * These are seven products where one pass would need five, but intermediate results never leave the
 * registers: in their layout they are operands of the next product. g [208][64] has the gradients
 * of a query's position terms at the table rows that these are computed with. Nothing is added
 * across blocks (cuda_window_sums).
 */
#include "cuda/attention/window_hopper.cuh"

constexpr int GROUPS = 2, THREADS = GROUPS * GROUP, HALF = KEYS / 2, HALF_ROWS = WINDOW / 2;

/* Floats from one row of position terms to the next: the pairs of 16 threads are in different
 * banks. */
constexpr int REL_ROW = QUERIES + 8;
static_assert(REL_ROW % 32 == 24 && QUERIES % 64 == 16, "few bank conflicts; three steps of 64 queries, one of 16");

/* The shared-memory layout, as byte offsets in order. A product takes 64 rows also at the end of a
 * tile, and reads beyond it: the results of those rows are not used. */
template <int D> struct gradient_layout {
    static constexpr int k = 0, v = k + KEYS * D * 2, q = v + KEYS * D * 2, dout = q + QUERIES * D * 2,
                         g = dout + QUERIES * D * 2;
    static constexpr int tables = g + QUERIES * BOTH * 2, rel = tables + BOTH * D * 2,
                         pads = rel + 4 * (WINDOW + SIDE) * REL_ROW;
    static constexpr int lse = pads + 4 * WINDOW * 2 * D, delta = lse + 4 * QUERIES, token = delta + 4 * QUERIES,
                         total = token + 4 * QUERIES;
};

/* Computes the position terms, with the row terms minus lse: p = 2^(s + row + column). */
template <typename T, int D>
static __device__ void make_positions(char *shared, const attention &a, const numbering &n, int queries)
{
    const uint64_t q = cores_along<QUERIES>(shared + gradient_layout<D>::q),
                   tables = cores_along<BOTH>(shared + gradient_layout<D>::tables);
    float *rel = reinterpret_cast<float *>(shared + gradient_layout<D>::rel);
    const float *lse = reinterpret_cast<const float *>(shared + gradient_layout<D>::lse);
    for (int t0 = threadIdx.x / GROUP * 64; t0 < queries; t0 += GROUPS * 64) {
        float g[BOTH / 2];
        multiply_now(g, [&] { cores_product<T, D, QUERIES, BOTH>(g, q + t0, tables, 0); });
        const int first = t0 + threadIdx.x % GROUP / 32 * 16 + threadIdx.x % 32 / 4;
        stage_positions<REL_ROW>(rel + t0, g, {lse[min(first, QUERIES - 1)], lse[min(first + 8, QUERIES - 1)]}, n, t0,
                                 QUERIES);
    }
    for (int i = threadIdx.x; i < (SIDE - WINDOW) * QUERIES; i += THREADS)
        rel[(2 * WINDOW + i / QUERIES) * REL_ROW + i % QUERIES] = -CUDART_INF_F;
}

/* Computes four sums over the quad's threads: thread i of the quad gets sum i. */
static __device__ float quad_sums(const float (&x)[4])
{
    const bool odd = threadIdx.x & 1, later = threadIdx.x & 2;
    float left = odd ? x[1] : x[0], right = odd ? x[3] : x[2];
    left += __shfl_xor_sync(0xffffffffu, odd ? x[0] : x[1], 1);
    right += __shfl_xor_sync(0xffffffffu, odd ? x[2] : x[3], 1);
    return (later ? right : left) + __shfl_xor_sync(0xffffffffu, later ? left : right, 2);
}

template <typename T> static __device__ void put(char *at, float x) { *reinterpret_cast<T *>(at) = from_float<T>(x); }

/* Computes dq of the 64 queries from t0 on, and their rows of g. */
template <typename T, int D>
static __device__ void queries_backward_64(const attention &a, const window_block &s, const numbering &n, char *shared,
                                           int t0)
{
    using at = gradient_layout<D>;
    const int lane = threadIdx.x % 32, column = lane % 4 * 2, first = t0 + threadIdx.x % GROUP / 32 * 16 + lane / 4;
    const float *rel = reinterpret_cast<const float *>(shared + at::rel), factor = a.scale * LOG2E;
    const uint64_t q = cores_along<QUERIES>(shared + at::q + t0 * 16),
                   dout = cores_along<QUERIES>(shared + at::dout + t0 * 16);
    const uint64_t k = cores_along<KEYS>(shared + at::k), v = cores_along<KEYS>(shared + at::v),
                   keys = cores_across<KEYS>(shared + at::k);
    float dq[D / 2], columns[2][4], dcolumns[2][4], delta[2];
    int r[2], y[2];
    /* whether the warp has any query; other rows of g are already zero */
    const bool is_any = first - lane / 4 < s.rows * s.columns;
    each<2>([&](int half) {
        /* a row beyond the last computes the last row and is not written */
        r[half] = min(first + 8 * half, QUERIES - 1);
        y[half] = min(row_of(n, r[half]), WINDOW - 1);
        delta[half] = reinterpret_cast<const float *>(shared + at::delta)[r[half]];
        each<4>([&](int i) {
            columns[half][i] = rel[(WINDOW + i / 2 * 8 + column + i % 2) * REL_ROW + r[half]];
            dcolumns[half][i] = 0;
        });
    });
    each<2>([&](int part) {
        float p[HALF / 2], dp[HALF / 2];
        unsigned ds[HALF / 4];
        pin_registers(p), pin_registers(dp);
        issue([&] { cores_product<T, D, QUERIES, KEYS>(p, q, k + part * HALF, 0); });
        cores_product<T, D, QUERIES, KEYS>(dp, dout, v + part * HALF, 0);
        wgmma_commit();
        wgmma_wait<1>();
        pin_registers(p);
        if (is_any)
            each<HALF_ROWS, 2>([&](int i, int half) {
                const float row_bias = rel[(part * HALF_ROWS + i) * REL_ROW + r[half]];
                each<4>([&](int j) {
                    float &x = p[8 * i + j / 2 * 4 + 2 * half + j % 2];
                    x = power_of_two(fmaf(x, factor, columns[half][j] + row_bias));
                });
            });
        wgmma_wait<0>();
        pin_registers(dp);
        if (is_any) {
            each<HALF / 2>([&](int i) { dp[i] = p[i] * (dp[i] - delta[i / 2 % 2]); });
            round_all<T>(ds, dp);
        }
        pin_registers(ds), pin_registers(dq);
        issue([&] { cores_add<T, HALF / 16>(dq, ds, keys + part * (HALF * 16 >> 4), part); });
        if (is_any)
            each<2>([&](int half) {
#pragma unroll
                for (int i = 0; i < HALF_ROWS; i += 4) {
                    float sum[4] = {0, 0, 0, 0};
#pragma unroll
                    for (int m = 0; m < 4 && i + m < HALF_ROWS; m++)
                        each<4>([&](int j) {
                            const float x = dp[8 * (i + m) + j / 2 * 4 + 2 * half + j % 2];
                            dcolumns[half][j] += x, sum[m] += x;
                        });
                    const float mine = quad_sums(sum);
                    if (i + lane % 4 < HALF_ROWS && first + 8 * half < QUERIES)
                        put<T>(shared + at::g +
                                   core_at<QUERIES>(r[half], y[half] - (part * HALF_ROWS + i + lane % 4) + WINDOW - 1),
                               mine);
                }
            });
        wgmma_wait<0>();
        pin_registers(dq), pin_registers(ds);
    });
    each<2>([&](int half) {
        const int x = column_of(n, r[half]);
        each<4>([&](int i) {
            const int c = i / 2 * 8 + column + i % 2;
            if (is_any && c < WINDOW && first + 8 * half < QUERIES)
                put<T>(shared + at::g + core_at<QUERIES>(r[half], ROWS + x - c + WINDOW - 1), dcolumns[half][i]);
        });
    });
    each<D / 2>([&](int i) { dq[i] *= a.scale; });
    fence_shared_stores();
    named_barrier_sync<GROUP>(1 + (int)threadIdx.x / GROUP);
    const uint64_t g = cores_along<QUERIES>(shared + at::g + t0 * 16), tables = cores_across<BOTH>(shared + at::tables);
    multiply_now(dq, [&] {
        each<BOTH / 16>(
            [&](int i) { multiply<0, 1>(dq, g + i * along_step<QUERIES>, tables + i * across_step, 1, T()); });
    });
    each<2>([&](int half) {
        const int t = reinterpret_cast<const int *>(shared + at::token)[r[half]];
        store_row<T>(row_at<T>(a.dq, s.b, max(t, 0), s.h), dq, half, 1.0f, t >= 0 && first + 8 * half < QUERIES);
    });
}

/* Turns products of 64 keys with N queries from t0 on into p^T. The warp's keys are row y of the
 * window; results beyond the last row are not used. */
template <int N, int D>
static __device__ void to_probabilities(float (&p)[N / 2], const char *shared, int y, int t0, float factor)
{
    if (y >= WINDOW) return;
    const int lane = threadIdx.x % 32;
    const float *rel = reinterpret_cast<const float *>(shared + gradient_layout<D>::rel) + t0 + lane % 4 * 2;
    each<N / 8>([&](int i) {
        const float2 row_bias = pair_at(rel + y * REL_ROW + 8 * i);
        each<2>([&](int half) {
            const float2 column = pair_at(rel + (WINDOW + lane / 4 + 8 * half) * REL_ROW + 8 * i);
            float *x = &p[4 * i + 2 * half];
            x[0] = power_of_two(fmaf(x[0], factor, column.x + row_bias.x));
            x[1] = power_of_two(fmaf(x[1], factor, column.y + row_bias.y));
        });
    });
}

/* dv += p^T do, ds^T = p^T (dp^T - delta), dk += ds^T q, with dp already computed. */
template <int N, typename T, int D>
static __device__ void add_both(float (&dk)[D / 2], float (&dv)[D / 2], const float (&p)[N / 2], float (&dp)[N / 2],
                                char *shared, int t0)
{
    using at = gradient_layout<D>;
    const float *delta = reinterpret_cast<const float *>(shared + at::delta) + t0 + threadIdx.x % 4 * 2;
    unsigned pt[N / 4], ds[N / 4];
    round_all<T>(pt, p);
    pin_registers(pt), pin_registers(dv);
    issue([&] { cores_add<T, N / 16>(dv, pt, cores_across<QUERIES>(shared + at::dout + t0 * 16), t0); });
    each<N / 8>([&](int i) {
        const float2 mean = pair_at(delta + 8 * i);
        each<4>([&](int j) { dp[4 * i + j] = p[4 * i + j] * (dp[4 * i + j] - (j % 2 ? mean.y : mean.x)); });
    });
    round_all<T>(ds, dp);
    pin_registers(ds), pin_registers(dk);
    issue([&] { cores_add<T, N / 16>(dk, ds, cores_across<QUERIES>(shared + at::q + t0 * 16), t0); });
    wgmma_wait<0>();
    pin_registers(dk), pin_registers(dv), pin_registers(pt), pin_registers(ds);
}

/* The contribution of N queries from t0 on to dk and dv of 64 keys, whose operands are k and v. */
template <int N, typename T, int D>
static __device__ void add_queries(float (&dk)[D / 2], float (&dv)[D / 2], char *shared, uint64_t k, uint64_t v, int y,
                                   int t0, float factor)
{
    float p[N / 2], dp[N / 2];
    pin_registers(p), pin_registers(dp);
    issue([&] {
        cores_product<T, D, KEYS, QUERIES>(p, k, cores_along<QUERIES>(shared + gradient_layout<D>::q + t0 * 16), 0);
    });
    cores_product<T, D, KEYS, QUERIES>(dp, v, cores_along<QUERIES>(shared + gradient_layout<D>::dout + t0 * 16), 0);
    wgmma_commit();
    wgmma_wait<1>();
    pin_registers(p);
    to_probabilities<N, D>(p, shared, y, t0, factor);
    wgmma_wait<0>();
    pin_registers(dp);
    add_both<N, T, D>(dk, dv, p, dp, shared, t0);
}

/* The same for 64 queries after 64, up to `end`, with the scores of the next ones always in flight.
 * After the last there are no next ones: the product computed then is not used. */
template <typename T, int D>
static __device__ void add_ahead(float (&dk)[D / 2], float (&dv)[D / 2], char *shared, uint64_t k, uint64_t v, int y,
                                 int end, float factor)
{
    const uint64_t q = cores_along<QUERIES>(shared + gradient_layout<D>::q),
                   dout = cores_along<QUERIES>(shared + gradient_layout<D>::dout);
    float p[32], dp[32], ahead[32];
    multiply_now(ahead, [&] { cores_product<T, D, KEYS, QUERIES>(ahead, k, q, 0); });
#pragma unroll 1
    for (int t0 = 0; t0 < end; t0 += 64) {
        each<32>([&](int i) { p[i] = ahead[i]; });
        pin_registers(dp), pin_registers(ahead);
        issue([&] { cores_product<T, D, KEYS, QUERIES>(dp, v, dout + t0, 0); });
        cores_product<T, D, KEYS, QUERIES>(ahead, k, q + t0 + 64, 0);
        wgmma_commit();
        to_probabilities<64, D>(p, shared, y, t0, factor);
        wgmma_wait<1>();
        pin_registers(dp);
        add_both<64, T, D>(dk, dv, p, dp, shared, t0);
        pin_registers(ahead);
    }
}

/* The warp's row of dk or dv: keys on the grid are stored, those outside are summed in `pads`
 * [D]. */
template <typename T, int D>
static __device__ void store_keys(const attention &a, const window_block &s, const head_rows &to,
                                  const float (&sum)[D / 2], float factor, int y, float *pads)
{
    float take[2];
    each<2>([&](int half) {
        const int x = threadIdx.x % 32 / 4 + 8 * half;
        const bool is_there = y < s.rows && x < s.columns;
        take[half] = !is_there && x < WINDOW ? factor : 0.0f;
        store_row<T>(row_at<T>(to, s.b, is_there ? token_at(a, s, y, x) : 0, s.h), sum, half, factor, is_there);
    });
    if (s.rows != WINDOW || s.columns != WINDOW)
        sum_beyond(pads, reinterpret_cast<const float(&)[D / 8][4]>(sum), take);
}

/* Computes dk and dv of the 64 keys from k0 on. */
template <typename T, int D>
static __device__ void keys_backward_64(const attention &a, const window_block &s, char *shared, int k0)
{
    using at = gradient_layout<D>;
    const uint64_t k = cores_along<KEYS>(shared + at::k + k0 * 16), v = cores_along<KEYS>(shared + at::v + k0 * 16);
    const int y = k0 / SIDE + (int)threadIdx.x % GROUP / 32, queries = s.rows * s.columns;
    const float factor = a.scale * LOG2E;
    float dk[D / 2], dv[D / 2];
    add_ahead<T, D>(dk, dv, shared, k, v, y, min(queries, QUERIES / 64 * 64), factor);
    if (queries > QUERIES / 64 * 64)
        add_queries<QUERIES % 64, T, D>(dk, dv, shared, k, v, y, QUERIES / 64 * 64, factor);
    if (y >= WINDOW) return;
    float *pads = reinterpret_cast<float *>(shared + at::pads) + y * 2 * D;
    store_keys<T, D>(a, s, a.dk, dk, a.scale, y, pads);
    store_keys<T, D>(a, s, a.dv, dv, 1.0f, y, pads + D);
}

/* The window's part of the tables' gradients, g^T q. */
template <typename T, int D> static __device__ void make_tables(const attention &a, const window_block &s, char *shared)
{
    const uint64_t g = cores_across<QUERIES>(shared + gradient_layout<D>::g),
                   q = cores_across<QUERIES>(shared + gradient_layout<D>::q);
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
    float sum[D / 2];
    multiply_now(sum, [&] {
        each<QUERIES / 16>([&](int i) { multiply<1, 1>(sum, g + i * across_step, q + i * across_step, i, T()); });
    });
    float *to = a.tables + (int64_t)s.index * 2 * ROWS * D + lane % 4 * 2;
    each<2, D / 8>([&](int half, int n) {
        if (row + 8 * half < 2 * ROWS)
            *reinterpret_cast<float2 *>(to + (row + 8 * half) * D + 8 * n) =
                float2{sum[4 * n + 2 * half], sum[4 * n + 2 * half + 1]};
    });
}

template <typename T, int D>
__global__ void __launch_bounds__(THREADS, 1) window_hopper_bwd(const __grid_constant__ attention a)
{
    extern __shared__ uint4 shared_pieces[];
    using at = gradient_layout<D>;
    char *shared = reinterpret_cast<char *>(shared_pieces);
    const window_block s = window_block_of(a, (int)blockIdx.x);
    const numbering n = numbering_of(s);
    const int group = threadIdx.x / GROUP, queries = s.rows * s.columns;

    /* The position terms are computed while keys are in flight. */
    stage_queries<T, D, QUERIES, THREADS>(shared + at::q, a, s, n, a.q, 0);
    stage_tables<T, D, THREADS>(shared + at::tables, a);
    copy_commit();
    stage_keys<T, D, THREADS>(shared + at::k, a, s, a.k, 0);
    stage_keys<T, D, THREADS>(shared + at::v, a, s, a.v, 1);
    stage_queries<T, D, QUERIES, THREADS>(shared + at::dout, a, s, n, a.dout, 0);
    copy_commit();
    for (int i = threadIdx.x; i < QUERIES * BOTH / 8; i += THREADS)
        reinterpret_cast<uint4 *>(shared + at::g)[i] = uint4{0, 0, 0, 0};
    float *lse = reinterpret_cast<float *>(shared + at::lse), *delta = reinterpret_cast<float *>(shared + at::delta);
    int *token = reinterpret_cast<int *>(shared + at::token);
    load_row_stats<T, D, QUERIES>(lse, delta, token, a, s, THREADS, [&](int r) { return token_of(a, s, n, r); });
    copy_wait<1>();
    fence_shared_stores();
    __syncthreads();
    make_positions<T, D>(shared, a, n, queries);
    copy_wait<0>();
    fence_shared_stores();
    __syncthreads();

#pragma unroll 1
    for (int t0 = group * 64; t0 < queries; t0 += GROUPS * 64) queries_backward_64<T, D>(a, s, n, shared, t0);
#pragma unroll 1
    for (int k0 = (GROUPS - 1 - group) * 64; k0 < KEYS; k0 += GROUPS * 64) keys_backward_64<T, D>(a, s, shared, k0);
    __syncthreads();
    __syncthreads(); /* for compute-sanitizer racecheck, which sometimes misses the first barrier of a warp */
    if (group == 0) make_tables<T, D>(a, s, shared);
    else store_pads<D>(a, s, reinterpret_cast<const float *>(shared + at::pads), WINDOW, threadIdx.x - GROUP, GROUP);
}

extern "C" cudaError_t cuda_window_hopper_bwd(const struct attention *a, cudaStream_t stream)
{
    return by_type_and_length<64, 80>(a, [&](auto t, auto d) {
        constexpr int D = decltype(d)::value;
        return start_kernel(window_hopper_bwd<decltype(t), D>, windows_of(a), THREADS, gradient_layout<D>::total,
                            stream, *a);
    });
}
