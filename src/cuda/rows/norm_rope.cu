/*
 * norm_rope.cu: RMSNORM_ROPE and its gradient (as two launches: run/norm_rope.h).
 *
 *     head   |  first half  | second half  |
 *     lanes   0   1   2   3   0   1   2   3     a lane has a pack of 16 bytes of each half
 *
 * So the pairs that turn together are in one lane, and a head's sum is taken over a few lanes. A
 * block has several tokens with all their heads; their cosines and sines are computed once, in
 * shared memory. What is between the norm and the rotation is rounded as a tensor would be. In the
 * gradient a lane keeps the sums of its columns over all its heads; a block's groups of lanes are
 * added in order, then the blocks (column_sums.cuh).
 *
 * Other shapes run as the two launches.
 */
#include "cuda/rows/column_sums.cuh"
#include "cuda/rows/norms.cuh"
#include "cuda/rows/rope.cuh"
extern "C" {
#include "run/norm_rope.h"
}

constexpr int THREADS = HEAD_THREADS;
template <typename T> constexpr int PACK = 16 / sizeof(T);

/* A lane's packs of a head. */
template <typename T> struct halves {
    wide_pack<T, PACK<T>> at[2];
};

template <typename T> static __device__ inline halves<T> read(const T *head, int half, bool there)
{
    halves<T> x = {};
#pragma unroll
    for (int k = 0; k < 2; k++)
        if (there) x.at[k] = *reinterpret_cast<const wide_pack<T, PACK<T>> *>(head + k * half);
    return x;
}

template <typename T> static __device__ inline void write(T *head, int half, const float (&x)[2][PACK<T>])
{
#pragma unroll
    for (int k = 0; k < 2; k++) store<PACK<T>>(head + k * half, x[k]);
}

/* Returns w + offset at this lane's columns. */
template <typename T>
static __device__ inline void read_weights(float (&s)[2][PACK<T>], const T *w, int half, float offset)
{
#pragma unroll
    for (int k = 0; k < 2; k++) {
        load<PACK<T>>(s[k], w + k * half);
#pragma unroll
        for (int i = 0; i < PACK<T>; i++) s[k][i] += offset;
    }
}

/* Turns the pairs of a lane. `turn` has cosines, and sines behind `half` of them. */
template <int V> static __device__ inline void rotate(float (&x)[2][V], const float *turn, int half)
{
#pragma unroll
    for (int i = 0; i < V; i++) {
        const float a = x[0][i], b = x[1][i], cosine = turn[i], sine = turn[half + i];
        x[0][i] = a * cosine - b * sine;
        x[1][i] = b * cosine + a * sine;
    }
}

template <typename T> static __device__ inline float rounded(float x) { return to_float(from_float<T>(x)); }

/* The place of a thread: the lanes of a group have a head at a time. */
struct place {
    int lane, group, groups, half;
};
static __device__ inline place place_of(int lanes, int64_t D)
{
    return {(int)threadIdx.x & (lanes - 1), (int)threadIdx.x / lanes, THREADS / lanes, (int)(D / 2)};
}

template <typename T, bool GIVEN>
static __global__ void __launch_bounds__(THREADS)
    norm_rope_kernel(T *y, float *rstds, const T *x, const T *w, const float *inv_freq, rope_shape s, float eps,
                     float offset, int lanes, int each)
{
    constexpr int V = PACK<T>, ROWS = HEAD_ROWS;
    extern __shared__ float turns[]; /* [each, 2, D/2] */
    const place p = place_of(lanes, s.D);
    const int64_t first = (int64_t)blockIdx.x * each, left = s.B * s.T - first, c = p.lane * V;
    const int tokens = left < each ? (int)left : each, H = (int)s.H, rows = tokens * H;
    float weight[2][V];
    read_weights<T>(weight, w + c, p.half, offset);
    fill_turns<GIVEN>(turns, inv_freq, s, first, tokens);
    __syncthreads();
    for (int base = p.group; base - p.group < rows; base += p.groups * ROWS) {
        halves<T> raw[ROWS];
        float rstd[ROWS];
#pragma unroll
        for (int j = 0; j < ROWS; j++) {
            const int row = base + j * p.groups;
            raw[j] = read<T>(x + (first * H + row) * s.D + c, p.half, row < rows);
        }
#pragma unroll
        for (int j = 0; j < ROWS; j++) {
            float sum = 0;
#pragma unroll
            for (int i = 0; i < 2 * V; i++) {
                const float a = to_float(raw[j].at[i / V].at[i % V]);
                sum += a * a;
            }
            rstd[j] = 1.0f / sqrtf(group_sum(sum, lanes, nullptr) / (float)s.D + eps);
        }
#pragma unroll
        for (int j = 0; j < ROWS; j++) {
            const int row = base + j * p.groups;
            if (row >= rows) continue;
            if (p.lane == 0) rstds[first * H + row] = rstd[j];
            float a[2][V];
#pragma unroll
            for (int i = 0; i < 2 * V; i++)
                a[i / V][i % V] = rounded<T>(to_float(raw[j].at[i / V].at[i % V]) * rstd[j] * weight[i / V][i % V]);
            rotate<V>(a, turns + row / H * s.D + c, p.half);
            write<T>(y + (first * H + row) * s.D + c, p.half, a);
        }
    }
}

/* Computes, with d the gradient turned back, h = x r and g = d w: dx = r (g - h mean(g h)), and
 * dw = sum over heads of d h. */
template <typename T, bool GIVEN>
static __global__ void __launch_bounds__(THREADS)
    norm_rope_bwd_kernel(T *dx, float *partial, const T *dy, const T *x, const T *w, const float *rstds,
                         const float *inv_freq, rope_shape s, float offset, int lanes, int each)
{
    constexpr int V = PACK<T>, ROWS = HEAD_ROWS / 2;
    extern __shared__ float turns[]; /* [each, 2, D/2], then the sums of the groups [groups, D] */
    pdl_launch_dependents();
    const place p = place_of(lanes, s.D);
    const int64_t all = s.B * s.T, c = p.lane * V;
    const int H = (int)s.H;
    float weight[2][V], dw[2][V] = {};
    read_weights<T>(weight, w + c, p.half, offset);
    for (int64_t first = (int64_t)blockIdx.x * each; first < all; first += (int64_t)gridDim.x * each) {
        const int tokens = all - first < each ? (int)(all - first) : each, rows = tokens * H;
        __syncthreads(); /* the turns of the tokens before have been read */
        fill_turns<GIVEN>(turns, inv_freq, s, first, tokens);
        __syncthreads();
        for (int base = p.group; base - p.group < rows; base += p.groups * ROWS) {
            halves<T> raw[ROWS], grad[ROWS];
            float d[ROWS][2][V], rstd[ROWS], gh[ROWS];
#pragma unroll
            for (int j = 0; j < ROWS; j++) {
                const int row = base + j * p.groups;
                raw[j] = read<T>(x + (first * H + row) * s.D + c, p.half, row < rows);
                grad[j] = read<T>(dy + (first * H + row) * s.D + c, p.half, row < rows);
                rstd[j] = row < rows ? rstds[first * H + row] : 0.0f;
            }
#pragma unroll
            for (int j = 0; j < ROWS; j++) {
                const int row = base + j * p.groups;
                gh[j] = 0;
#pragma unroll
                for (int i = 0; i < 2 * V; i++) d[j][i / V][i % V] = to_float(grad[j].at[i / V].at[i % V]);
                if (row < rows) rotate<V>(d[j], turns + row / H * s.D + c, p.half);
#pragma unroll
                for (int i = 0; i < 2 * V; i++) {
                    float &e = d[j][i / V][i % V];
                    e = rounded<T>(e);
                    const float h = to_float(raw[j].at[i / V].at[i % V]) * rstd[j];
                    dw[i / V][i % V] += e * h;
                    gh[j] += e * weight[i / V][i % V] * h;
                }
            }
#pragma unroll
            for (int j = 0; j < ROWS; j++) gh[j] = group_sum(gh[j], lanes, nullptr) / (float)s.D;
#pragma unroll
            for (int j = 0; j < ROWS; j++) {
                const int row = base + j * p.groups;
                if (row >= rows) continue;
#pragma unroll
                for (int i = 0; i < 2 * V; i++) {
                    float &e = d[j][i / V][i % V];
                    e = rstd[j] * (e * weight[i / V][i % V] - to_float(raw[j].at[i / V].at[i % V]) * rstd[j] * gh[j]);
                }
                write<T>(dx + (first * H + row) * s.D + c, p.half, d[j]);
            }
        }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2 * V; i++) turns[p.group * s.D + i / V * p.half + c + i % V] = dw[i / V][i % V];
    __syncthreads();
    for (int column = threadIdx.x; column < s.D; column += THREADS) {
        float sum = 0;
        for (int g = 0; g < p.groups; g++) sum += turns[g * s.D + column];
        partial[blockIdx.x * s.D + column] = sum;
    }
}

/* --- launching -------------------------------------------------------------------------------- */

static float offset_of(const struct launch *l) { return l->attr->rmsnorm_rope.unit_offset ? 1.0f : 0.0f; }

static int launch_norm_rope(const struct launch *l, struct error *e)
{
    struct norm_rope n;
    norm_rope_apart(&n, l);
    const rope_shape s = rope_shape_of(&n.rope);
    TRY_CUDA(by_type(store_of(l->in[0].dtype), [&](auto zero) {
        using T = decltype(zero);
        const int lanes = head_lanes(s.D, sizeof(T));
        const int64_t each = head_tokens(s.H, s.D, lanes);
        const auto kernel = s.positions ? norm_rope_kernel<T, true> : norm_rope_kernel<T, false>;
        kernel<<<grid_of_rows(s.B * s.T, each, INT32_MAX), THREADS, (size_t)(each * s.D) * sizeof(float),
                 (cudaStream_t)l->stream>>>((T *)l->out[0].data, (float *)l->out[1].data, (const T *)l->in[0].data,
                                            (const T *)l->in[1].data, (const float *)l->in[2].data, s,
                                            l->attr->rmsnorm_rope.eps, offset_of(l), lanes, (int)each);
    }));
    return PL_OK;
}

static int launch_norm_rope_bwd(const struct launch *l, struct error *e)
{
    struct norm_rope n;
    norm_rope_bwd_apart(&n, l);
    const rope_shape s = rope_shape_of(&n.rope);
    float *dw = (float *)l->out[1].data, *partial = (float *)l->work;
    TRY_CUDA(by_type(store_of(l->in[0].dtype), [&](auto zero) {
        using T = decltype(zero);
        const int lanes = head_lanes(s.D, sizeof(T));
        const int64_t each = head_tokens(s.H, s.D, lanes), sums = THREADS / lanes * s.D,
                      shared = each * s.D > sums ? each * s.D : sums;
        const unsigned grid = (unsigned)head_blocks(s.B * s.T, each);
        const auto kernel = s.positions ? norm_rope_bwd_kernel<T, true> : norm_rope_bwd_kernel<T, false>;
        kernel<<<grid, THREADS, (size_t)shared * sizeof(float),
                 (cudaStream_t)l->stream>>>((T *)l->out[0].data, partial, (const T *)l->in[0].data,
                                            (const T *)l->in[1].data, (const T *)l->in[2].data,
                                            (const float *)l->in[3].data, (const float *)l->in[4].data, s,
                                            offset_of(l), lanes, (int)each);
        launch_column_sums({{dw, STORE_F32}, {nullptr, STORE_F32}, s.D, 0}, partial, grid, s.D,
                           (cudaStream_t)l->stream);
    }));
    return PL_OK;
}

static int launch_norm_rope_apart(const struct launch *l, struct error *e)
{
    struct norm_rope n;
    norm_rope_apart(&n, l);
    const struct operand *x = &l->in[0];
    TRY(norm_run(l, {l->out[0].data, x->data, {nullptr, out_as<float>(l, 1), offset_of(l)}, typed_of(&l->in[1]),
                     {nullptr, STORE_F32}, store_of(x->dtype), operand_rows(x), operand_last(x),
                     l->attr->rmsnorm_rope.eps}, e));
    return launch_rope(&n.rope, e);
}

static int launch_norm_rope_bwd_apart(const struct launch *l, struct error *e)
{
    struct norm_rope n;
    norm_rope_bwd_apart(&n, l);
    const struct operand *x = &l->in[1];
    const int64_t rows = operand_rows(x);
    TRY(launch_rope(&n.rope, e));
    return norm_bwd_run(l, {l->out[0].data, out_as<float>(l, 1), nullptr, l->out[0].data, x->data, nullptr,
                            {nullptr, (float *)l->in[3].data, offset_of(l)}, typed_of(&l->in[2]), store_of(x->dtype),
                            rows, rows, operand_last(x)}, e);
}

CUDA_KERNEL(cuda_rmsnorm_rope, .launch = launch_norm_rope);
CUDA_KERNEL(cuda_rmsnorm_rope_bwd, .launch = launch_norm_rope_bwd);
CUDA_KERNEL(cuda_rmsnorm_rope_apart, .launch = launch_norm_rope_apart);
CUDA_KERNEL(cuda_rmsnorm_rope_bwd_apart, .launch = launch_norm_rope_bwd_apart);
