/*
 * attention_window.cu: attention within squares without tensor cores, for f32 and whatever
 * attention_window_fast.cu does not take; and the sums over squares after either backward.
 *
 *     forward   a block has a square, a warp one query after the other: a row of scores in shared memory
 *     dq        a block has a square and takes one query after the other: ds, its sums by rows and columns
 *               (drel), dq, and the tables' gradients of the square, which lie in the workspace
 *     dk, dv    a block has a square, a warp one place after the other; places beyond the grid add up
 *               in the warp's own rows, which meet in order
 *
 * Rows of keys are read where they lie; what a place beyond the grid has comes from pad.
 */
#include "cuda/attention_window.cuh"

constexpr int PLAIN = 128, PLAIN_WARPS = PLAIN / 32, MEET = 32;

static __device__ float stored(const void *data, enum store type, int64_t at)
{
    switch (type) {
    case STORE_BF16: return to_float(static_cast<const __nv_bfloat16 *>(data)[at]);
    case STORE_F16: return to_float(static_cast<const __half *>(data)[at]);
    default: return static_cast<const float *>(data)[at];
    }
}

static __device__ float table_at(const window_attention &a, int axis, int row, int d)
{
    return stored(a.table[axis].data, a.table[axis].type, row * a.table[axis].row + d * a.table[axis].column);
}

/* Element d of what stands at place (y,x): x's row, or pad's. */
template <typename T>
static __device__ float place_value(const window_attention &a, const square &s, const head_rows &x, int which, int y, int c, int d)
{
    if (y < s.rows && c < s.columns) return to_float(row_at<T>(x, s.b, token_at(a, s, y, c), s.h)[d]);
    return a.pad ? stored(a.pad, a.pad_type, which * a.pad_which + s.h * a.pad_head + d * a.pad_element) : 0.0f;
}

static __device__ float warp_sum(float x)
{
    for (int m = 16; m > 0; m /= 2) x += __shfl_xor_sync(0xffffffffu, x, m);
    return x;
}
static __device__ float warp_max(float x)
{
    for (int m = 16; m > 0; m /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, m));
    return x;
}

/* Position c of a query at (y,x): c counts the rows of a square, then its columns. */
static __device__ float position(const window_attention &a, const float *q, int y, int x, int c)
{
    const int axis = c >= a.window, row = (axis ? x - (c - a.window) : y - c) + a.window - 1;
    float sum = 0;
    for (int d = 0; d < a.D; d++) sum += q[d] * table_at(a, axis, row, d);
    return sum;
}

/* --- forward ---------------------------------------------------------------------------------- */

template <typename T> __global__ void __launch_bounds__(PLAIN) plain_forward(const window_attention a)
{
    extern __shared__ float4 shared[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, W = a.window, keys = W * W, D = a.D;
    float *q = reinterpret_cast<float *>(shared) + warp * (D + 2 * W + keys), *rel = q + D, *p = rel + 2 * W;
    const square s = square_of(a, (int)blockIdx.x);
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
            float score = 0;
            for (int d = 0; d < D; d++) score += q[d] * place_value<T>(a, s, a.k, 0, k / W, k % W, d);
            p[k] = score * a.scale + rel[k / W] + rel[W + k % W];
            most = fmaxf(most, p[k]);
        }
        most = warp_max(most);
        for (int k = lane; k < keys; k += 32) sum += p[k] = expf(p[k] - most);
        sum = warp_sum(sum);
        __syncwarp();
        for (int d = lane; d < D; d += 32) {
            float o = 0;
            for (int k = 0; k < keys; k++) o += p[k] * place_value<T>(a, s, a.v, 1, k / W, k % W, d);
            row_at<T>(a.o, s.b, t, s.h)[d] = from_float<T>(o / sum);
        }
        if (lane == 0) *window_lse_at(a, s, t) = most + logf(sum);
    }
}

/* --- backward --------------------------------------------------------------------------------- */

template <typename T> __global__ void __launch_bounds__(PLAIN) plain_dq(const window_attention a)
{
    extern __shared__ float4 shared[];
    const int tid = threadIdx.x, W = a.window, keys = W * W, D = a.D, J = 2 * W - 1;
    float *q = reinterpret_cast<float *>(shared), *dout = q + D, *rel = dout + D, *drel = rel + 2 * W, *ds = drel + 2 * W;
    float *meet = ds + keys; /* [PLAIN_WARPS] */
    const square s = square_of(a, (int)blockIdx.x);
    float *tables = a.tables + (int64_t)s.index * 2 * J * D;
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
        part = warp_sum(part);
        if (tid % 32 == 0) meet[tid / 32] = part;
        __syncthreads();
        for (int w = 0; w < PLAIN_WARPS; w++) delta += meet[w];
        for (int c = tid; c < 2 * W; c += PLAIN) rel[c] = position(a, q, y, x, c);
        __syncthreads();
        const float lse = *window_lse_at(a, s, t);
        for (int k = tid; k < keys; k += PLAIN) {
            float score = 0, dp = 0;
            for (int d = 0; d < D; d++) {
                score += q[d] * place_value<T>(a, s, a.k, 0, k / W, k % W, d);
                dp += dout[d] * place_value<T>(a, s, a.v, 1, k / W, k % W, d);
            }
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
            float sum = 0, positions = 0;
            for (int k = 0; k < keys; k++) sum += ds[k] * place_value<T>(a, s, a.k, 0, k / W, k % W, d);
            for (int c = 0; c < W; c++)
                positions += drel[c] * table_at(a, 0, y - c + W - 1, d) + drel[W + c] * table_at(a, 1, x - c + W - 1, d);
            row_at<T>(a.dq, s.b, t, s.h)[d] = from_float<T>(sum * a.scale + positions);
        }
        /* The rows of a query's positions are all different: no two threads meet. */
        for (int i = tid; i < 2 * W * D; i += PLAIN) {
            const int c = i / D, d = i % D, row = c < W ? y - c + W - 1 : J + x - (c - W) + W - 1;
            tables[row * D + d] += drel[c] * q[d];
        }
    }
}

template <typename T> __global__ void __launch_bounds__(PLAIN) plain_dkv(const window_attention a)
{
    extern __shared__ float4 shared[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, W = a.window, keys = W * W, D = a.D;
    const square s = square_of(a, (int)blockIdx.x);
    const int queries = s.rows * s.columns;
    float *delta = reinterpret_cast<float *>(shared), *lse = delta + keys, *pads = lse + keys; /* [warps][2][D] */
    float *p = pads + PLAIN_WARPS * 2 * D + warp * (2 * keys + 2 * D), *ds = p + keys, *k = ds + keys, *v = k + D;
    for (int r = threadIdx.x; r < queries; r += PLAIN) {
        const int t = query_at(a, s, r);
        float sum = 0;
        for (int d = 0; d < D; d++) sum += to_float(row_at<T>(a.dout, s.b, t, s.h)[d]) * to_float(row_at<T>(a.o, s.b, t, s.h)[d]);
        delta[r] = sum, lse[r] = *window_lse_at(a, s, t);
    }
    for (int i = threadIdx.x; i < PLAIN_WARPS * 2 * D; i += PLAIN) pads[i] = 0;
    __syncthreads();
    for (int place = warp; place < keys; place += PLAIN_WARPS) {
        const int ky = place / W, kx = place % W;
        const bool is_there = ky < s.rows && kx < s.columns;
        __syncwarp();
        for (int d = lane; d < D; d += 32) {
            k[d] = place_value<T>(a, s, a.k, 0, ky, kx, d) * a.scale;
            v[d] = place_value<T>(a, s, a.v, 1, ky, kx, d);
        }
        __syncwarp();
        for (int r = lane; r < queries; r += 32) {
            const int y = r / s.columns, x = r % s.columns;
            const int t = token_at(a, s, y, x);
            float score = 0, dp = 0;
            for (int d = 0; d < D; d++) {
                score += to_float(row_at<T>(a.q, s.b, t, s.h)[d]) *
                         (k[d] + table_at(a, 0, y - ky + W - 1, d) + table_at(a, 1, x - kx + W - 1, d));
                dp += to_float(row_at<T>(a.dout, s.b, t, s.h)[d]) * v[d];
            }
            p[r] = expf(score - lse[r]);
            ds[r] = p[r] * (dp - delta[r]);
        }
        __syncwarp();
        for (int d = lane; d < D; d += 32) {
            float dk = 0, dv = 0;
            for (int r = 0; r < queries; r++) {
                const int t = query_at(a, s, r);
                dk += ds[r] * to_float(row_at<T>(a.q, s.b, t, s.h)[d]);
                dv += p[r] * to_float(row_at<T>(a.dout, s.b, t, s.h)[d]);
            }
            if (is_there) {
                const int t = token_at(a, s, ky, kx);
                row_at<T>(a.dk, s.b, t, s.h)[d] = from_float<T>(dk * a.scale);
                row_at<T>(a.dv, s.b, t, s.h)[d] = from_float<T>(dv);
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

/* --- sums over squares ---------------------------------------------------------------------------- */

/* to[i] = the sum over `count` rows of n numbers: 32 columns to a block, and as many slices of
 * rows, which meet in order. With `heads` the columns are [heads][2][D], and go to [2][heads][D]. */
__global__ void __launch_bounds__(MEET * 32) window_sums(float *to, float *next, int64_t split, const float *from, int64_t count, int64_t n,
                                                         int heads, int D)
{
    __shared__ float meet[MEET][33];
    const int lane = threadIdx.x % 32, slice = threadIdx.x / 32;
    const int64_t i = (int64_t)blockIdx.x * 32 + lane;
    float sum = 0;
    for (int64_t r = slice; i < n && r < count; r += MEET) sum += from[r * n + i];
    meet[slice][lane] = sum;
    __syncthreads();
    if (slice != 0 || i >= n) return;
    float total = 0;
    for (int s = 0; s < MEET; s++) total += meet[s][lane];
    if (heads) to[(i / D % 2 * heads + i / D / 2) * D + i % D] = total;
    else if (i < split) to[i] = total;
    else next[i - split] = total;
}

extern "C" cudaError_t cuda_window_sums(const struct window_attention *a, cudaStream_t stream)
{
    const int64_t places = (int64_t)a->B * a->across * a->down, table = (int64_t)(2 * a->window - 1) * a->D, pad = (int64_t)a->H * 2 * a->D;
    window_sums<<<(unsigned)((2 * table + 31) / 32), MEET * 32, 0, stream>>>(a->dtable[0], a->dtable[1], table, a->tables, places * a->H,
                                                                           2 * table, 0, a->D);
    window_sums<<<(unsigned)((pad + 31) / 32), MEET * 32, 0, stream>>>(a->dpad, nullptr, 0, a->pads, places, pad, a->H, a->D);
    return cudaGetLastError();
}

/* --- launching ------------------------------------------------------------------------------------- */

static unsigned blocks_of(const window_attention *a) { return (unsigned)((int64_t)a->B * a->across * a->down * a->H); }

template <typename T> static cudaError_t forward(const window_attention *a, cudaStream_t stream)
{
    const size_t bytes = PLAIN_WARPS * sizeof(float) * (size_t)(a->D + 2 * a->window + a->window * a->window);
    const cudaError_t rc = allow_shared(plain_forward<T>, bytes);
    if (rc != cudaSuccess) return rc;
    plain_forward<T><<<blocks_of(a), PLAIN, bytes, stream>>>(*a);
    return cudaGetLastError();
}

template <typename T> static cudaError_t backward(const window_attention *a, cudaStream_t stream)
{
    const size_t keys = (size_t)a->window * (size_t)a->window, D = (size_t)a->D;
    const size_t by_query = sizeof(float) * (2 * D + 4 * (size_t)a->window + keys + PLAIN_WARPS);
    const size_t by_key = sizeof(float) * (2 * keys + PLAIN_WARPS * 2 * D + PLAIN_WARPS * (2 * keys + 2 * D));
    cudaError_t rc = allow_shared(plain_dq<T>, by_query);
    if (rc == cudaSuccess) rc = allow_shared(plain_dkv<T>, by_key);
    if (rc != cudaSuccess) return rc;
    plain_dq<T><<<blocks_of(a), PLAIN, by_query, stream>>>(*a);
    plain_dkv<T><<<blocks_of(a), PLAIN, by_key, stream>>>(*a);
    return cudaGetLastError();
}

extern "C" cudaError_t cuda_window_plain(const struct window_attention *a, cudaStream_t stream)
{
    switch (a->type) {
    case STORE_F32: return forward<float>(a, stream);
    case STORE_BF16: return forward<__nv_bfloat16>(a, stream);
    case STORE_F16: return forward<__half>(a, stream);
    }
    return cudaErrorInvalidValue;
}

extern "C" cudaError_t cuda_window_plain_bwd(const struct window_attention *a, cudaStream_t stream)
{
    switch (a->type) {
    case STORE_F32: return backward<float>(a, stream);
    case STORE_BF16: return backward<__nv_bfloat16>(a, stream);
    case STORE_F16: return backward<__half>(a, stream);
    }
    return cudaErrorInvalidValue;
}
