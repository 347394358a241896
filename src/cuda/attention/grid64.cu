/*
 * grid64.cu: the passes before and after the attention kernels for a grid of 64 columns
 * and up to 64 rows:
 *
 *     rel       q . the table rows of a query's positions
 *     dtables   dtable[j] = sum of drel q over the positions computed with row j, by groups of
 *               grid rows, then over the groups
 *
 * 64 queries are one row of the grid. Their terms for the key rows c are a product with rows y - c
 * of table_h. Their terms for the columns are a product with all rows of table_w, of which a query
 * takes the 64 that begin at its column. The tables' gradients are the transposed products. All use
 * tensor cores, with the tables rounded to the queries' type.
 *
 * rel, multiplied by `unit`, and drel are stored transposed: [B,H,height+width,T].
 */
#include "cuda/attention/mma.cuh"

constexpr int WIDTH = ATTENTION_GRID64_WIDTH, TABLE = 2 * WIDTH; /* rows of a table, plus one of zeros */
static_assert(HELD == WIDTH, "a block takes a row of the grid");

/* --- before ----------------------------------------------------------------------------------- */

/* Loads 64 rows of an f32 table, every step-th from j on; zeros beyond its ends. */
template <typename T, int D> static __device__ void load_table(T *to, const float *from, int j, int step, int rows)
{
    for (int i = threadIdx.x; i < WIDTH * (D / 2); i += FAST_BLOCK) {
        const int r = i / (D / 2), d = i % (D / 2) * 2, row = j + r * step;
        const float2 x = row >= 0 && row < rows ? pair_at(from + (int64_t)row * D + d) : float2{0, 0};
        *reinterpret_cast<unsigned *>(to + r * (D + 8) + d) = both(x.x, x.y, T());
    }
}

/* Four warps take 64 queries, which are row y of the grid. */
template <typename T, int D> __global__ void __launch_bounds__(FAST_BLOCK) rel_kernel(const attention a, float unit)
{
    if (!multiplies<T>()) return;
    extern __shared__ uint4 shared[];
    constexpr int ROW = D + 8, PITCH = WIDTH + 1;
    T *q = reinterpret_cast<T *>(shared), *table = q + WIDTH * ROW;
    float *out = reinterpret_cast<float *>(table + WIDTH * ROW); /* [position term][query] */
    const int y = (int)(blockIdx.x % a.height), t0 = y * WIDTH, lane = threadIdx.x % 32, own = threadIdx.x / 32 * 16;
    const int64_t head = blockIdx.x / a.height, b = head / a.H, h = head % a.H;
    const float *th = a.tables, *tw = a.tables + (int64_t)(2 * a.height - 1) * D;
    float *to = a.rel + head * positions(a) * a.T + t0;
    /* Multiplies the queries by 64 rows of a table: put(query, row, product). */
    const auto multiply_table = [&](const float *from, int j, int step, int rows, auto put) {
        __syncthreads();
        load_table<T, D>(table, from, j, step, rows);
        __syncthreads();
        float x[WIDTH / 8][4];
        product_rows<T, D, WIDTH / 8>(x, q + own * ROW, table);
        each<WIDTH / 8, 4>(
            [&](int n, int i) { put(own + lane / 4 + i / 2 * 8, 8 * n + lane % 4 * 2 + i % 2, x[n][i] * unit); });
    };
    /* Writes `count` position terms of all queries, from `first` on. */
    const auto store = [&](int first, int count) {
        __syncthreads();
        for (int i = threadIdx.x; i < count * WIDTH; i += FAST_BLOCK)
            to[(int64_t)(first + i / WIDTH) * a.T + i % WIDTH] = out[i / WIDTH * PITCH + i % WIDTH];
    };
    copy_rows<T, D, WIDTH>(q, a.q, b, h, t0, a.T);
    copy_commit();
    copy_wait<0>();
    multiply_table(th, y + a.height - 1, -1, 2 * a.height - 1, [&](int r, int c, float x) { out[c * PITCH + r] = x; });
    store(0, a.height);
    for (int j0 = 0; j0 < TABLE; j0 += WIDTH)
        multiply_table(tw, j0, 1, TABLE - 1, [&](int r, int j, float x) {
            const int c = r - (j0 + j) + WIDTH - 1;
            if (c >= 0 && c < WIDTH) out[c * PITCH + r] = x;
        });
    store(a.height, WIDTH);
}

/* --- after ------------------------------------------------------------------------------------ */

/* Eight warps hold the 128 rows of a table's gradient, 16 each, and traverse the grid rows of their
 * group over the heads: dtable += f q, f [row of the table][query]. */
constexpr int TURNERS = 8 * 32, TURN_ROW = WIDTH + 8;
template <typename T, int D> __global__ void __launch_bounds__(TURNERS) dtables_kernel(const attention a, int groups)
{
    if (!multiplies<T>()) return;
    extern __shared__ uint4 shared[];
    constexpr int ROW = D + 8;
    T *f = reinterpret_cast<T *>(shared), *q = f + TABLE * TURN_ROW;
    const bool by_row = blockIdx.x % 2 == 0;
    const int64_t group = blockIdx.x / 2, units = (int64_t)a.B * a.H * a.height, J = table_rows(a);
    const int side = by_row ? a.height : WIDTH, rows = 2 * side - 1, lane = threadIdx.x % 32,
              own = threadIdx.x / 32 * 16;
    float sum[D / 8][4];
    each<D / 8>([&](int n) { sum[n][0] = sum[n][1] = sum[n][2] = sum[n][3] = 0; });
    for (int i = threadIdx.x; i < TABLE * TURN_ROW / 2; i += TURNERS) reinterpret_cast<unsigned *>(f)[i] = 0;
    for (int64_t u = group * units / groups; u < (group + 1) * units / groups; u++) {
        const int64_t head = u / a.height;
        const int y = (int)(u % a.height);
        const float *drel = a.drel + head * positions(a) * a.T + (by_row ? 0 : (int64_t)a.height * a.T);
        __syncthreads();
        for (int i = threadIdx.x; i < WIDTH * (D / 8); i += TURNERS)
            copy16(q + i / (D / 8) * ROW + i % (D / 8) * 8,
                   row_at<T>(a.q, head / a.H, y * WIDTH + i / (D / 8), head % a.H) + i % (D / 8) * 8, true);
        copy_commit();
        if (by_row) /* row j has the queries' terms for key row y - j + height - 1 */
            for (int i = threadIdx.x; i < TABLE * WIDTH; i += TURNERS) {
                const int j = i / WIDTH, x = i % WIDTH, c = y - j + side - 1;
                f[j * TURN_ROW + x] = from_float<T>(c >= 0 && c < side ? drel[(int64_t)c * a.T + y * WIDTH + x] : 0.0f);
            }
        else /* the other elements are zero and stay so */
            for (int i = threadIdx.x; i < WIDTH * WIDTH; i += TURNERS) {
                const int c = i / WIDTH, x = i % WIDTH;
                f[(x - c + WIDTH - 1) * TURN_ROW + x] = from_float<T>(drel[(int64_t)c * a.T + y * WIDTH + x]);
            }
        copy_wait<0>();
        __syncthreads();
        product_add<T, D, WIDTH, TURN_ROW>(sum, f, own, q);
    }
    float *to = a.partial + group * J * D + (by_row ? 0 : (int64_t)(2 * a.height - 1) * D);
    each<D / 8, 4>([&](int n, int i) {
        const int j = own + lane / 4 + i / 2 * 8;
        if (j < rows) to[(int64_t)j * D + 8 * n + lane % 4 * 2 + i % 2] = sum[n][i];
    });
}

/* --- launching -------------------------------------------------------------------------------- */

extern "C" cudaError_t cuda_grid64_rel(const struct attention *a, float unit, cudaStream_t stream)
{
    return by_type_and_length<32, 64, 80, 96, 128>(a, [&](auto t, auto d) {
        constexpr int D = decltype(d)::value;
        constexpr size_t bytes = 2 * WIDTH * (D + 8) * sizeof(t) + WIDTH * (WIDTH + 1) * sizeof(float);
        static_assert(bytes <= ATTENTION_SHARED_SM75, "it fits");
        return start_kernel(rel_kernel<decltype(t), D>, (int64_t)a->B * a->H * a->height, FAST_BLOCK, bytes, stream, *a,
                            unit);
    });
}

extern "C" cudaError_t cuda_grid64_dtables(const struct attention *a, cudaStream_t stream)
{
    const int groups = (int)attention_groups((int64_t)a->B * a->H, a->height, a->width);
    const cudaError_t rc = by_type_and_length<32, 64, 80, 96, 128>(a, [&](auto t, auto d) {
        constexpr int D = decltype(d)::value;
        constexpr size_t bytes = (TABLE * TURN_ROW + WIDTH * (D + 8)) * sizeof(t);
        static_assert(bytes <= ATTENTION_SHARED_SM75, "it fits");
        return start_kernel(dtables_kernel<decltype(t), D>, 2 * groups, TURNERS, bytes, stream, *a, groups);
    });
    return rc == cudaSuccess ? cuda_attention_sum_tables(a, stream) : rc;
}
