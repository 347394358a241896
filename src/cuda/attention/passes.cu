/*
 * passes.cu: the passes before and after the attention kernels, small compared to them.
 *
 *     before   tables to f32, as rows and as columns; rel = q . the table rows of a query's
 *              positions; delta = rowsum(do * o), for the tensor-core kernels with lse in base 2
 *     after    the tables' gradients, dtable[j] = sum of drel q over the positions computed with
 *              row j: by groups of heads, then over the groups in order; the gradient of the bias
 *              over the partial sums that the dq kernel wrote; those of a window's tables and pad
 *              over all windows
 */
#include "cuda/attention/attention.cuh"

constexpr int QUERIES = 16, ROWS = 16, TOKENS = 64, SLICES = 32;

static __device__ void add_four(float *sum, const float4 &four, float x)
{
    sum[0] += four.x * x, sum[1] += four.y * x, sum[2] += four.z * x, sum[3] += four.w * x;
}

/* --- before ------------------------------------------------------------------------------ */

__global__ void tables_kernel(const attention a)
{
    const int J = table_rows(a), split = 2 * a.height - 1;
    float *across = a.tables + (int64_t)J * a.D;
    for (int i = blockIdx.x * BLOCK + threadIdx.x; i < J * a.D; i += gridDim.x * BLOCK) {
        const int j = i / a.D, d = i % a.D;
        const float x = j < split ? table_at(a.table[0], j, d) : table_at(a.table[1], j - split, d);
        a.tables[i] = x;
        across[(int64_t)d * J + j] = x;
    }
}

__global__ void bias_kernel(const attention a)
{
    for (int i = blockIdx.x * BLOCK + threadIdx.x; i < a.H * a.T; i += gridDim.x * BLOCK)
        a.bias[i] = table_at(a.table[0], i / a.T, i % a.T) * a.unit;
}

/* 16 queries of a head; a thread takes table rows, and for each query the position that uses the
 * row. */
template <typename T> __global__ void __launch_bounds__(BLOCK) rel_kernel(const attention a)
{
    extern __shared__ float4 columns[]; /* q by D: [D][16] */
    float *q = reinterpret_cast<float *>(columns);
    const int tiles = (a.T + QUERIES - 1) / QUERIES, t0 = (int)(blockIdx.x % tiles) * QUERIES;
    const int64_t head = blockIdx.x / tiles, b = head / a.H, h = head % a.H;
    const int J = table_rows(a), R = positions(a), split = 2 * a.height - 1, count = min(QUERIES, a.T - t0);
    const float *across = a.tables + (int64_t)J * a.D;
    for (int i = threadIdx.x; i < QUERIES * a.D; i += blockDim.x) {
        const int r = i / a.D, d = i - r * a.D;
        q[d * QUERIES + r] = r < count ? to_float(row_at<T>(a.q, b, t0 + r, h)[d]) : 0.0f;
    }
    __syncthreads();
    /* Row j of table_h is used by the queries of grid rows j-(height-1) .. j. */
    const int top = t0 / a.width, bottom = (t0 + count - 1) / a.width;
    for (int j = threadIdx.x; j < J; j += blockDim.x) {
        if (j < split && (top > j || bottom < j - (a.height - 1))) continue;
        float sum[QUERIES] = {0};
        for (int d = 0; d < a.D; d++) {
            const float x = across[(int64_t)d * J + j];
            each<QUERIES / 4>([&](int r) { add_four(&sum[4 * r], columns[d * (QUERIES / 4) + r], x); });
        }
        each<QUERIES>([&](int r) {
            const int t = t0 + r,
                      c = j < split ? t / a.width - j + a.height - 1 : t % a.width - (j - split) + a.width - 1;
            if (r < count && c >= 0 && c < (j < split ? a.height : a.width))
                a.rel[(head * a.T + t) * R + (j < split ? c : a.height + c)] = sum[r] * a.unit;
        });
    }
}

/* One warp per row. */
template <typename T> __global__ void __launch_bounds__(BLOCK) delta_kernel(const attention a)
{
    const int lane = threadIdx.x % 32;
    const int64_t rows = (int64_t)a.B * a.H * a.T, stride = (int64_t)gridDim.x * (BLOCK / 32);
    for (int64_t row = (int64_t)blockIdx.x * (BLOCK / 32) + threadIdx.x / 32; row < rows; row += stride) {
        const int64_t t = row / a.H % a.T, h = row % a.H, b = row / a.H / a.T; /* in memory order */
        const T *x = row_at<T>(a.dout, b, t, h), *y = row_at<T>(a.o, b, t, h);
        float sum = 0;
        for (int d = lane; d < a.D; d += 32) sum += to_float(x[d]) * to_float(y[d]);
        sum = lanes_sum<32>(sum);
        if (lane == 0) a.delta[(b * a.H + h) * a.T + t] = sum;
    }
}

/* Delta and lse in base 2, both [B,H,T rounded up to 64]. Beyond T lse is infinite, so that those
 * queries contribute nothing. PARTS threads per query, 8 elements each. */
template <typename T, int PARTS> __global__ void __launch_bounds__(BLOCK) row_stats_kernel(const attention a)
{
    constexpr int WARP_ROWS = 32 / PARTS;
    const int part = threadIdx.x % PARTS;
    const int64_t padded = (a.T + 63) / 64 * 64, rows = (int64_t)a.B * a.H * padded,
                  stride = (int64_t)gridDim.x * (BLOCK / PARTS);
    /* a multiple of a warp's rows, so that warps do not diverge */
    const int64_t end = (rows + WARP_ROWS - 1) / WARP_ROWS * WARP_ROWS;
    for (int64_t row = (int64_t)blockIdx.x * (BLOCK / PARTS) + threadIdx.x / PARTS; row < end; row += stride) {
        const int64_t h = row % a.H, t = row / a.H % padded, b = row / a.H / padded; /* in memory order */
        const bool there = row < rows && t < a.T;
        float sum = 0;
        if (there && 8 * part < a.D) {
            const uint4 x = *reinterpret_cast<const uint4 *>(row_at<T>(a.dout, b, t, h) + 8 * part);
            const uint4 y = *reinterpret_cast<const uint4 *>(row_at<T>(a.o, b, t, h) + 8 * part);
            const T *left = reinterpret_cast<const T *>(&x), *right = reinterpret_cast<const T *>(&y);
            each<8>([&](int i) { sum += to_float(left[i]) * to_float(right[i]); });
        }
        sum = lanes_sum<PARTS>(sum);
        if (part != 0 || row >= rows) continue;
        const float lse = there ? *lse_at(a, b, h, t) : CUDART_INF_F;
        a.delta[(b * a.H + h) * padded + t] = there ? sum : 0.0f;
        a.lse2[(b * a.H + h) * padded + t] = lse == -CUDART_INF_F ? CUDART_INF_F : lse * LOG2E; /* 2^(s - inf) = 0 */
    }
}

extern "C" cudaError_t cuda_attention_row_stats(const struct attention *a, cudaStream_t stream)
{
    const int64_t rows = (int64_t)a->B * a->H * ((a->T + 63) / 64 * 64);
    return by_type_and_length<32, 64, 80, 96, 128, 256>(a, [&](auto t, auto d) {
        constexpr int PARTS = d <= 64 ? 8 : d <= 128 ? 16 : 32;
        return start_kernel(row_stats_kernel<decltype(t), PARTS>, grid_for(rows * PARTS), BLOCK, 0, stream, *a);
    });
}

extern "C" cudaError_t cuda_attention_tables(const struct attention *a, cudaStream_t stream)
{
    return start_kernel(tables_kernel, grid_for((int64_t)table_rows(*a) * a->D), BLOCK, 0, stream, *a);
}

template <typename T> static cudaError_t before(const attention *a, int with_delta, cudaStream_t stream)
{
    const int64_t heads = (int64_t)a->B * a->H;
    cudaError_t rc = cudaSuccess;
    if (a->mode == ATTENTION_BY_TABLES) {
        const int threads = (table_rows(*a) + 31) / 32 * 32;
        rc = cuda_attention_tables(a, stream);
        if (rc != cudaSuccess) return rc;
        rc = start_kernel(rel_kernel<T>, heads * ((a->T + QUERIES - 1) / QUERIES), threads < BLOCK ? threads : BLOCK,
                          QUERIES * sizeof(float) * (size_t)a->D, stream, *a);
    }
    if (a->mode == ATTENTION_BY_BIAS)
        rc = start_kernel(bias_kernel, grid_for((int64_t)a->H * a->T), BLOCK, 0, stream, *a);
    return rc == cudaSuccess && with_delta
               ? start_kernel(delta_kernel<T>, grid_for(heads * a->T * 32), BLOCK, 0, stream, *a)
               : rc;
}

extern "C" cudaError_t cuda_attention_before(const struct attention *a, int with_delta, cudaStream_t stream)
{
    return by_store(a->type, [&](auto t) { return before<decltype(t)>(a, with_delta, stream); });
}

/* --- after ------------------------------------------------------------------------------- */

/* 16 rows of a table over the heads of a group. Threads are adjacent along D, in as many slices as
 * fit the block; a slice takes every (number of slices)-th token, and the slices are added in
 * order. */
template <typename T> __global__ void __launch_bounds__(BLOCK) dtable_kernel(const attention a, int groups)
{
    __shared__ float4 factors[TOKENS][ROWS / 4];
    __shared__ float meet[BLOCK];
    const int split = 2 * a.height - 1, first = (split + ROWS - 1) / ROWS;
    const int chunks = first + (2 * a.width - 1 + ROWS - 1) / ROWS, chunk = (int)(blockIdx.x % chunks);
    const int64_t group = blockIdx.x / chunks, heads = (int64_t)a.B * a.H;
    const bool by_row = chunk < first;
    const int side = by_row ? a.height : a.width, rows = 2 * side - 1, j0 = (by_row ? chunk : chunk - first) * ROWS;
    const int wide = (a.D + 31) / 32 * 32, slices = BLOCK / wide, slice = threadIdx.x / wide, d = threadIdx.x % wide;
    const int R = positions(a), J = table_rows(a);
    /* Row j of table_h is used by the queries of grid rows j-(height-1) .. j. */
    const int begin = by_row ? max(0, j0 - (side - 1)) * a.width : 0;
    const int end = by_row ? min(side, j0 + ROWS) * a.width : a.T;

    float sum[ROWS] = {0};
    for (int64_t head = group * heads / groups; head < (group + 1) * heads / groups; head++) {
        const int64_t b = head / a.H, h = head % a.H;
        for (int t0 = begin; t0 < end; t0 += TOKENS) {
            __syncthreads();
            for (int i = threadIdx.x; i < TOKENS * ROWS; i += BLOCK) {
                const int t = t0 + i / ROWS, j = j0 + i % ROWS, c = (by_row ? t / a.width : t % a.width) - j + side - 1;
                const bool is_there = t < end && j < rows && c >= 0 && c < side;
                reinterpret_cast<float *>(factors)[i] =
                    is_there ? a.drel[(head * a.T + t) * R + (by_row ? c : a.height + c)] : 0.0f;
            }
            __syncthreads();
            if (slice >= slices || d >= a.D) continue;
            for (int i = slice; i < min(TOKENS, end - t0); i += slices) {
                const float x = to_float(row_at<T>(a.q, b, t0 + i, h)[d]);
                each<ROWS / 4>([&](int r) { add_four(&sum[4 * r], factors[i][r], x); });
            }
        }
    }
    float *to = a.partial + group * J * a.D + (int64_t)(by_row ? j0 : split + j0) * a.D;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        __syncthreads();
        meet[threadIdx.x] = sum[r];
        __syncthreads();
        if (slice != 0 || d >= a.D || j0 + r >= rows) continue;
        float total = 0;
        for (int s = 0; s < slices; s++) total += meet[s * wide + d];
        to[(int64_t)r * a.D + d] = total;
    }
}

/* Sums `count` rows of n numbers, of which the first `split` go to `to`, the others to `next`: 32
 * columns per block, and SLICES slices of rows, which are added in order. With `heads` the columns
 * are [heads][2][D] and go to [2][heads][D]. */
__global__ void __launch_bounds__(SLICES * 32) sum_rows_kernel(float *to, float *next, int64_t split, const float *from,
                                                               int64_t count, int64_t n, int heads, int D)
{
    __shared__ float meet[SLICES][33];
    const int lane = threadIdx.x % 32, slice = threadIdx.x / 32;
    const int64_t i = (int64_t)blockIdx.x * 32 + lane;
    float sum = 0;
    for (int64_t r = slice; i < n && r < count; r += SLICES) sum += from[r * n + i];
    meet[slice][lane] = sum;
    __syncthreads();
    if (slice != 0 || i >= n) return;
    float total = 0;
    for (int s = 0; s < SLICES; s++) total += meet[s][lane];
    if (heads) to[(i / D % 2 * heads + i / D / 2) * D + i % D] = total;
    else if (i < split) to[i] = total;
    else next[i - split] = total;
}

static cudaError_t sum_rows(float *to, float *next, int64_t split, const float *from, int64_t count, int64_t n,
                            int heads, int D, cudaStream_t stream)
{
    return start_kernel(sum_rows_kernel, (n + 31) / 32, SLICES * 32, 0, stream, to, next, split, from, count, n, heads,
                        D);
}

extern "C" cudaError_t cuda_attention_sum_tables(const struct attention *a, cudaStream_t stream)
{
    const int64_t rows = (int64_t)(2 * a->height - 1) * a->D, columns = (int64_t)(2 * a->width - 1) * a->D;
    return sum_rows(a->dtable[0], a->dtable[1], rows, a->partial,
                    attention_groups((int64_t)a->B * a->H, a->height, a->width), rows + columns, 0, a->D, stream);
}

extern "C" cudaError_t cuda_window_sums(const struct attention *a, cudaStream_t stream)
{
    const int64_t places = (int64_t)a->B * a->across * a->down, table = (int64_t)(2 * a->window - 1) * a->D;
    const cudaError_t rc =
        sum_rows(a->dtable[0], a->dtable[1], table, a->tables, places * a->H, 2 * table, 0, a->D, stream);
    if (rc != cudaSuccess) return rc;
    return sum_rows(a->dpad, nullptr, 0, a->pads, places, (int64_t)a->H * 2 * a->D, a->H, a->D, stream);
}

template <typename T> static cudaError_t after_tables(const attention *a, cudaStream_t stream)
{
    const int64_t groups = attention_groups((int64_t)a->B * a->H, a->height, a->width);
    const int64_t chunks = (2 * a->height - 1 + ROWS - 1) / ROWS + (2 * a->width - 1 + ROWS - 1) / ROWS;
    const cudaError_t rc = start_kernel(dtable_kernel<T>, groups * chunks, BLOCK, 0, stream, *a, (int)groups);
    return rc == cudaSuccess ? cuda_attention_sum_tables(a, stream) : rc;
}

extern "C" cudaError_t cuda_attention_after(const struct attention *a, int tile, cudaStream_t stream)
{
    if (a->mode == ATTENTION_PLAIN) return cudaSuccess;
    if (a->mode == ATTENTION_BY_TABLES)
        return by_store(a->type, [&](auto t) { return after_tables<decltype(t)>(a, stream); });
    const int64_t count = (int64_t)a->B * ((a->T + tile - 1) / tile), n = (int64_t)a->H * a->T;
    return sum_rows(a->dtable[0], nullptr, n, a->partial, count, n, 0, a->D, stream);
}
