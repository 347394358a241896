/*
 * window.cu: windowed attention without tensor cores, for f32 and all cases that
 * window_fast.cu does not support.
 *
 *     forward   one block per window; a warp takes one query after the other: a row of scores in
 *               shared memory
 *     dq        one block per window, which takes one query after the other: ds, its sums by rows
 *               and columns (drel), dq, and the window's gradients of the tables, in the workspace
 *     dk, dv    one block per window; a warp takes one key after the other; keys outside the grid
 *               are summed in the warp's own rows, which are added in order
 *
 * Rows are read from global memory, 16 bytes at a time if the plan says so (attention.access), else
 * by element; keys outside the grid are read from pad.
 */
#include "cuda/attention/window_mma.cuh"

constexpr int PLAIN = 128, PLAIN_WARPS = PLAIN / 32;

/* Returns the table row that position term c of a query at (y,x) is computed with: c counts the
 * rows of a window, then its columns. */
static __device__ int row_of(const attention &a, int y, int x, int c)
{
    return (c < a.window ? y - c : x - (c - a.window)) + a.window - 1;
}

/* Elements of 16 bytes. */
template <typename T> constexpr int wide = 16 / sizeof(T);

/* x . row, with x as f32 in shared memory. */
template <typename T> static __device__ float dot(const float *x, const T *row, const attention &a)
{
    constexpr int V = wide<T>;
    const int D = a.D;
    float sum = 0;
    int d = 0;
    for (; a.access == 16 && d < D; d += V) {
        const pack<T, V> chunk = *reinterpret_cast<const pack<T, V> *>(row + d);
#pragma unroll
        for (int i = 0; i < V; i++) sum += x[d + i] * to_float(chunk.at[i]);
    }
    for (; d < D; d++) sum += x[d] * to_float(row[d]);
    return sum;
}
static __device__ float dot_shared(const float *x, const float *y, int D)
{
    float sum = 0;
    for (int d = 0; d < D; d++) sum += x[d] * y[d];
    return sum;
}

/* Loads the key and value of pad into shared memory, [2][D]. */
static __device__ void load_pad(float *pad, const attention &a, const window_block &s)
{
    for (int i = threadIdx.x; i < 2 * a.D; i += blockDim.x)
        pad[i] = a.pad ? stored(a.pad, a.pad_type, i / a.D * a.pad_which + s.h * a.pad_head + i % a.D * a.pad_element)
                       : 0.0f;
}

/* x . the key at (y,c) of the window: a row of `of`, or pad's. */
template <typename T>
static __device__ float dot_key(const float *x, const attention &a, const window_block &s, const head_rows &of,
                                const float *pad, int y, int c)
{
    if (y < s.rows && c < s.columns) return dot<T>(x, row_at<T>(of, s.b, token_at(a, s, y, c), s.h), a);
    return a.pad ? dot_shared(x, pad, a.D) : 0.0f;
}

/* Element d of the sum over all keys of p [window][window] times the row of each key. */
template <typename T>
static __device__ float sum_values(const float *p, const attention &a, const window_block &s, const head_rows &of,
                                   const float *pad, int d)
{
    const T *row = row_at<T>(of, s.b, token_at(a, s, 0, 0), s.h) + d;
    float sum = 0, beyond = 0;
    for (int y = 0; y < a.window; y++, p += a.window) {
        const int there = y < s.rows ? s.columns : 0;
        for (int x = 0; x < there; x++) sum += p[x] * to_float(row[(int64_t)(y * a.width + x) * of.token]);
        for (int x = there; x < a.window; x++) beyond += p[x];
    }
    return a.pad ? sum + beyond * pad[d] : sum;
}

static __device__ float position(const attention &a, const float *q, int y, int x, int c)
{
    const int row = row_of(a, y, x, c);
    float sum = 0;
    for (int d = 0; d < a.D; d++) sum += q[d] * table_at(a.table[c >= a.window], row, d);
    return sum;
}

/* --- forward ---------------------------------------------------------------------------------- */

template <typename T> __global__ void __launch_bounds__(PLAIN) plain_forward(const attention a)
{
    extern __shared__ float4 shared[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, W = a.window, keys = W * W, D = a.D;
    float *pad = reinterpret_cast<float *>(shared), *q = pad + 2 * D + warp * (D + 2 * W + keys), *rel = q + D,
          *p = rel + 2 * W;
    const window_block s = window_block_of(a, (int)blockIdx.x);
    load_pad(pad, a, s);
    __syncthreads();
    for (int r = warp; r < s.rows * s.columns; r += PLAIN_WARPS) {
        const int y = r / s.columns, x = r % s.columns;
        const int t = token_at(a, s, y, x);
        __syncwarp();
        for (int d = lane; d < D; d += 32) q[d] = to_float(row_at<T>(a.q, s.b, t, s.h)[d]);
        __syncwarp();
        for (int c = lane; c < 2 * W; c += 32) rel[c] = position(a, q, y, x, c);
        __syncwarp();
        float most = -CUDART_INF_F, sum = 0;
        for (int k = lane; k < keys; k += 32) {
            p[k] = dot_key<T>(q, a, s, a.k, pad, k / W, k % W) * a.scale + rel[k / W] + rel[W + k % W];
            most = fmaxf(most, p[k]);
        }
        most = lanes_max<32>(most);
        for (int k = lane; k < keys; k += 32) sum += p[k] = expf(p[k] - most);
        sum = lanes_sum<32>(sum);
        __syncwarp();
        for (int d = lane; d < D; d += 32)
            row_at<T>(a.o, s.b, t, s.h)[d] = from_float<T>(sum_values<T>(p, a, s, a.v, pad + D, d) / sum);
        if (lane == 0) *lse_at(a, s.b, s.h, t) = most + logf(sum);
    }
}

/* --- backward --------------------------------------------------------------------------------- */

template <typename T> __global__ void __launch_bounds__(PLAIN) plain_dq(const attention a)
{
    extern __shared__ float4 shared[];
    const int tid = threadIdx.x, W = a.window, keys = W * W, D = a.D, J = 2 * W - 1;
    float *pad = reinterpret_cast<float *>(shared), *q = pad + 2 * D, *dout = q + D, *rel = dout + D,
          *drel = rel + 2 * W, *ds = drel + 2 * W;
    float *meet = ds + keys; /* [PLAIN_WARPS] */
    const window_block s = window_block_of(a, (int)blockIdx.x);
    float *tables = a.tables + (int64_t)s.index * 2 * J * D;
    load_pad(pad, a, s);
    for (int i = tid; i < 2 * J * D; i += PLAIN) tables[i] = 0;
    for (int r = 0; r < s.rows * s.columns; r++) {
        const int y = r / s.columns, x = r % s.columns;
        const int t = token_at(a, s, y, x);
        float part = 0, delta = 0;
        __syncthreads();
        for (int d = tid; d < D; d += PLAIN) {
            q[d] = to_float(row_at<T>(a.q, s.b, t, s.h)[d]);
            dout[d] = to_float(row_at<T>(a.dout, s.b, t, s.h)[d]);
            part += dout[d] * to_float(row_at<T>(a.o, s.b, t, s.h)[d]);
        }
        part = lanes_sum<32>(part);
        if (tid % 32 == 0) meet[tid / 32] = part;
        __syncthreads();
        for (int w = 0; w < PLAIN_WARPS; w++) delta += meet[w];
        for (int c = tid; c < 2 * W; c += PLAIN) rel[c] = position(a, q, y, x, c);
        __syncthreads();
        const float lse = *lse_at(a, s.b, s.h, t);
        for (int k = tid; k < keys; k += PLAIN) {
            const float score = dot_key<T>(q, a, s, a.k, pad, k / W, k % W);
            const float dp = dot_key<T>(dout, a, s, a.v, pad + D, k / W, k % W);
            ds[k] = expf(score * a.scale + rel[k / W] + rel[W + k % W] - lse) * (dp - delta);
        }
        __syncthreads();
        for (int c = tid; c < 2 * W; c += PLAIN) {
            float sum = 0;
            for (int k = 0; k < W; k++) sum += c < W ? ds[c * W + k] : ds[k * W + c - W];
            drel[c] = sum;
        }
        __syncthreads();
        for (int d = tid; d < D; d += PLAIN) {
            const float sum = sum_values<T>(ds, a, s, a.k, pad, d);
            float positions = 0;
            for (int c = 0; c < W; c++)
                positions += drel[c] * table_at(a.table[0], y - c + W - 1, d) +
                             drel[W + c] * table_at(a.table[1], x - c + W - 1, d);
            row_at<T>(a.dq, s.b, t, s.h)[d] = from_float<T>(sum * a.scale + positions);
        }
        /* The table rows of a query's position terms are all different: no two threads write to one
         * element. */
        for (int i = tid; i < 2 * W * D; i += PLAIN) {
            const int c = i / D, d = i % D;
            tables[((c < W ? 0 : J) + row_of(a, y, x, c)) * D + d] += drel[c] * q[d];
        }
    }
}

/* The score of a key against a query: scale k plus the rows of both tables. Tables of another type
 * than the heads' are read by element. */
template <typename T> static __device__ float score_of(const float *k, const T *q, const attention &a, int h, int w)
{
    constexpr int V = wide<T>;
    float sum = 0;
    if (a.access != 16 || a.table[0].type != a.type || a.table[1].type != a.type) {
        for (int d = 0; d < a.D; d++)
            sum += to_float(q[d]) * (k[d] + table_at(a.table[0], h, d) + table_at(a.table[1], w, d));
        return sum;
    }
    const T *down = static_cast<const T *>(a.table[0].data) + h * a.table[0].row,
            *across = static_cast<const T *>(a.table[1].data) + w * a.table[1].row;
    for (int d = 0; d < a.D; d += V) {
        const pack<T, V> x = *reinterpret_cast<const pack<T, V> *>(q + d);
        const pack<T, V> y = *reinterpret_cast<const pack<T, V> *>(down + d),
                         z = *reinterpret_cast<const pack<T, V> *>(across + d);
#pragma unroll
        for (int i = 0; i < V; i++) sum += to_float(x.at[i]) * (k[d + i] + to_float(y.at[i]) + to_float(z.at[i]));
    }
    return sum;
}

template <typename T> __global__ void __launch_bounds__(PLAIN) plain_dkv(const attention a)
{
    extern __shared__ float4 shared[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, W = a.window, keys = W * W, D = a.D;
    const window_block s = window_block_of(a, (int)blockIdx.x);
    const int queries = s.rows * s.columns;
    /* [warps][2][D] */
    float *pad = reinterpret_cast<float *>(shared), *delta = pad + 2 * D, *lse = delta + keys, *pads = lse + keys;
    float *p = pads + PLAIN_WARPS * 2 * D + warp * (2 * keys + 2 * D), *ds = p + keys, *k = ds + keys, *v = k + D;
    load_pad(pad, a, s);
    for (int r = threadIdx.x; r < queries; r += PLAIN) {
        const int t = query_at(a, s, r);
        float sum = 0;
        for (int d = 0; d < D; d++)
            sum += to_float(row_at<T>(a.dout, s.b, t, s.h)[d]) * to_float(row_at<T>(a.o, s.b, t, s.h)[d]);
        delta[r] = sum, lse[r] = *lse_at(a, s.b, s.h, t);
    }
    for (int i = threadIdx.x; i < PLAIN_WARPS * 2 * D; i += PLAIN) pads[i] = 0;
    __syncthreads();
    for (int place = warp; place < keys; place += PLAIN_WARPS) {
        const int ky = place / W, kx = place % W;
        const bool is_there = ky < s.rows && kx < s.columns;
        const int token = is_there ? token_at(a, s, ky, kx) : 0;
        __syncwarp();
        for (int d = lane; d < D; d += 32) {
            k[d] = (is_there ? to_float(row_at<T>(a.k, s.b, token, s.h)[d]) : pad[d]) * a.scale;
            v[d] = is_there ? to_float(row_at<T>(a.v, s.b, token, s.h)[d]) : pad[D + d];
        }
        __syncwarp();
        for (int r = lane; r < queries; r += 32) {
            const int y = r / s.columns, x = r % s.columns, t = token_at(a, s, y, x);
            const float score = score_of<T>(k, row_at<T>(a.q, s.b, t, s.h), a, y - ky + W - 1, x - kx + W - 1);
            p[r] = expf(score - lse[r]);
            ds[r] = p[r] * (dot<T>(v, row_at<T>(a.dout, s.b, t, s.h), a) - delta[r]);
        }
        __syncwarp();
        for (int d = lane; d < D; d += 32) {
            const int first = token_at(a, s, 0, 0);
            const T *q = row_at<T>(a.q, s.b, first, s.h) + d, *dout = row_at<T>(a.dout, s.b, first, s.h) + d;
            float dk = 0, dv = 0;
            for (int y = 0; y < s.rows; y++)
                for (int x = 0; x < s.columns; x++) {
                    const int64_t t = y * a.width + x;
                    dk += ds[y * s.columns + x] * to_float(q[t * a.q.token]);
                    dv += p[y * s.columns + x] * to_float(dout[t * a.dout.token]);
                }
            if (is_there) {
                row_at<T>(a.dk, s.b, token, s.h)[d] = from_float<T>(dk * a.scale);
                row_at<T>(a.dv, s.b, token, s.h)[d] = from_float<T>(dv);
            } else {
                pads[(warp * 2) * D + d] += dk * a.scale;
                pads[(warp * 2 + 1) * D + d] += dv;
            }
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 2 * D; i += PLAIN) {
        float sum = 0;
        for (int w = 0; w < PLAIN_WARPS; w++) sum += pads[w * 2 * D + i];
        a.pads[(int64_t)s.index * 2 * D + i] = sum;
    }
}

/* --- launching -------------------------------------------------------------------------------- */

template <typename T> static cudaError_t forward(const attention *a, cudaStream_t stream)
{
    const size_t bytes =
        sizeof(float) * (size_t)(2 * a->D + PLAIN_WARPS * (a->D + 2 * a->window + a->window * a->window));
    return start_kernel(plain_forward<T>, windows_of(a), PLAIN, bytes, stream, *a);
}

template <typename T> static cudaError_t backward(const attention *a, cudaStream_t stream)
{
    const size_t keys = (size_t)a->window * (size_t)a->window, D = (size_t)a->D;
    const size_t by_query = sizeof(float) * (4 * D + 4 * (size_t)a->window + keys + PLAIN_WARPS);
    const size_t by_key = sizeof(float) * (2 * D + 2 * keys + PLAIN_WARPS * 2 * D + PLAIN_WARPS * (2 * keys + 2 * D));
    const cudaError_t rc = start_kernel(plain_dq<T>, windows_of(a), PLAIN, by_query, stream, *a);
    return rc == cudaSuccess ? start_kernel(plain_dkv<T>, windows_of(a), PLAIN, by_key, stream, *a) : rc;
}

extern "C" cudaError_t cuda_window_plain(const struct attention *a, cudaStream_t stream)
{
    if (misaligned(a->access, a->k.data)) return cudaErrorMisalignedAddress;
    return by_store(a->type, [&](auto t) { return forward<decltype(t)>(a, stream); });
}

extern "C" cudaError_t cuda_window_plain_bwd(const struct attention *a, cudaStream_t stream)
{
    if (misaligned(a->access, a->k.data, a->v.data, a->q.data, a->dout.data)) return cudaErrorMisalignedAddress;
    for (const head_table &t : a->table)
        if (t.type == a->type && misaligned(a->access, t.data)) return cudaErrorMisalignedAddress;
    return by_store(a->type, [&](auto t) { return backward<decltype(t)>(a, stream); });
}
