/*
 * sums.cu: SUM and SUM_TO in two stages: blocks write their sums to the workspace, and a second
 * kernel adds those in order. The number of blocks is a function of the shapes (loop_nest.h); if
 * one block has all elements of a result, it writes the result itself.
 */
#include "cuda/rows/column_sums.cuh"
#include "cuda/rows/elementwise.cuh"

template <typename S> static __device__ S warp_sum(S x)
{
    for (int mask = WARP / 2; mask > 0; mask /= 2) x += __shfl_xor_sync(0xffffffffu, x, mask);
    return x;
}

/* Over a block of BLOCK threads; the result is in thread 0. */
template <typename S> static __device__ S block_total(S x)
{
    __shared__ S partial[BLOCK / WARP];
    x = warp_sum(x);
    if (threadIdx.x % WARP == 0) partial[threadIdx.x / WARP] = x;
    __syncthreads();
    S sum = 0;
    for (int w = 0; w < BLOCK / WARP; w++) sum += partial[w];
    return sum;
}

/* --- the sum of all elements ----------------------------------------------------------- */

/* Dense: block b sums `each` elements from b * each on; each is a multiple of V. */
template <typename T, int V> __global__ void sum_kernel(float *partial, const T *x, int64_t each, int64_t n)
{
    const int64_t from = blockIdx.x * each, to = from + each < n ? from + each : n, packs = (to - from) / V;
    const pack<T, V> *at = reinterpret_cast<const pack<T, V> *>(x + from);
    float sum = 0;
    for (int64_t k = threadIdx.x; k < packs; k += BLOCK) {
        const pack<T, V> a = at[k];
#pragma unroll
        for (int i = 0; i < V; i++) sum += to_float(a.at[i]);
    }
    for (int64_t i = from + packs * V + threadIdx.x; i < to; i += BLOCK) sum += to_float(x[i]);
    sum = block_total(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

template <typename T> __global__ void sum_form_kernel(float *partial, const T *x, loop_nest f, int64_t each, int64_t n)
{
    const int64_t from = blockIdx.x * each, to = from + each < n ? from + each : n;
    float sum = 0;
    for (int64_t i = from + threadIdx.x; i < to; i += BLOCK) {
        const int64_t row = quotient(i, f.size[0]);
        sum += to_float(x[offsets_of(f, row, i - row * f.size[0]).a]);
    }
    sum = block_total(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

/* Adds the partial sums in one block. */
__global__ void sum_end_kernel(float *y, const float *partial, int64_t blocks)
{
    double sum = 0;
    for (int64_t b = threadIdx.x; b < blocks; b += BLOCK) sum += partial[b];
    sum = block_total(sum);
    if (threadIdx.x == 0) *y = (float)sum;
}

static int launch_sum(const struct launch *l, struct error *e)
{
    const struct operand *x = &l->in[0];
    const loop_nest f = loop_nest_of(x, x, nullptr);
    const int64_t n = loop_nest_elements(&f), each = sum_each(n), blocks = sum_blocks(n);
    float *partial = (float *)l->work;
    if (l->form != sum_form(&f)) TRY_CUDA(cudaErrorInvalidValue);
    TRY_CUDA(by_access(store_of(x->dtype), l->access, [&](auto zero, auto width) {
        using T = decltype(zero);
        constexpr int V = decltype(width)::value;
        const T *from = in_as<T>(l, 0);
        if (l->form == SUM_STRIDED)
            sum_form_kernel<T><<<(unsigned)blocks, BLOCK, 0, stream_of(l)>>>(partial, from, f, each, n);
        else sum_kernel<T, V><<<(unsigned)blocks, BLOCK, 0, stream_of(l)>>>(partial, from, each, n);
    }, x->data));
    sum_end_kernel<<<1, BLOCK, 0, stream_of(l)>>>(out_as<float>(l, 0), partial, blocks);
    TRY_CUDA(cudaGetLastError());
    return PL_OK;
}

/* --- the sum over broadcast dimensions --------------------------------------------------- */

static __device__ int64_t axes_at(const axes &x, int64_t i)
{
    int64_t at = 0;
    for (int k = 0; k < x.n; k++) {
        const int64_t next = k + 1 < x.n ? quotient(i, x.size[k]) : 0;
        at += (i - next * x.size[k]) * x.stride[k];
        i = next;
    }
    return at;
}

static_assert(BLOCK == SUM_THREADS, "loop_nest.h counts in blocks of this size");

/* The destination of a block's sums: the workspace, [blocks,N], or with a single block the result
 * itself. */
struct sum_target {
    typed_ptr y;
    float *partial;
    int64_t N;
    int accumulate;
};

template <int V>
static __device__ void put_sums(const sum_target &to, int64_t blocks, int64_t block, int64_t at, float (&sum)[V])
{
    if (blocks > 1) return store<V>(to.partial + block * to.N + at, sum);
    if (to.accumulate) {
        float before[V];
        load<V>(before, to.y, at);
#pragma unroll
        for (int i = 0; i < V; i++) sum[i] += before[i];
    }
    store<V>(to.y, at, sum);
}

/* Rows of C results, V per thread. The grid has column tiles, innermost, then kept positions, then
 * blocks of summed positions. EVEN: the summed positions are one loop. */
template <typename T, int V, bool EVEN> __global__ void __launch_bounds__(BLOCK, EVEN ? 4 : 2)
    sum_rows_kernel(sum_target to, const T *x, summing s, int64_t tiles)
{
    __shared__ float meet[BLOCK * V];
    pdl_launch_dependents();
    const int64_t rest = quotient(blockIdx.x, tiles), tile = blockIdx.x - rest * tiles;
    const int64_t block = quotient(rest, s.kept.count), kept = rest - block * s.kept.count;
    const int across = s.across, lane = threadIdx.x & (across - 1), line = (int)threadIdx.x / across,
              lines = BLOCK / across;
    const int64_t c = (tile * across + lane) * V, begin = block * s.each;
    const int64_t end = begin + s.each < s.summed.count ? begin + s.each : s.summed.count;
    const T *from = x + axes_at(s.kept, kept) + c * s.stride;
    const int64_t pitch = EVEN && s.summed.n ? s.summed.stride[0] : 0;
    auto row = [&](int64_t r) {
        return *reinterpret_cast<const pack<T, V> *>(from + (EVEN ? r * pitch : axes_at(s.summed, r)));
    };
    float sum[V];
#pragma unroll
    for (int i = 0; i < V; i++) sum[i] = 0;
    if (c < s.C) {
        int64_t r = begin + line;
        for (; r + (SUM_TURN - 1) * lines < end; r += SUM_TURN * lines) {
            pack<T, V> a[SUM_TURN];
#pragma unroll
            for (int k = 0; k < SUM_TURN; k++) a[k] = row(r + k * lines);
#pragma unroll
            for (int k = 0; k < SUM_TURN; k++)
#pragma unroll
                for (int i = 0; i < V; i++) sum[i] += to_float(a[k].at[i]);
        }
        for (; r < end; r += lines) {
            const pack<T, V> a = row(r);
#pragma unroll
            for (int i = 0; i < V; i++) sum[i] += to_float(a.at[i]);
        }
    }
    if (lines == 1) {
        if (c < s.C) put_sums<V>(to, s.blocks, block, kept * s.C + c, sum);
        return;
    }
    /* Column i of a thread's V is at i * across + lane of its line. */
#pragma unroll
    for (int i = 0; i < V; i++) meet[line * across * V + i * across + lane] = sum[i];
    __syncthreads();
    for (int j = threadIdx.x; j < across * V; j += BLOCK) {
        const int64_t column = (tile * across + (j & (across - 1))) * V + j / across;
        float total[1] = {0};
        for (int l = 0; l < lines; l++) total[0] += meet[l * across * V + j];
        if (column < s.C) put_sums<1>(to, s.blocks, block, kept * s.C + column, total);
    }
}

/* Separate results: G threads, a warp or a block, for each kept position and block of summed
 * positions. */
template <typename T, int G> __global__ void sum_alone_kernel(sum_target to, const T *x, summing s)
{
    pdl_launch_dependents();
    const int64_t task = (int64_t)blockIdx.x * (BLOCK / G) + threadIdx.x / G;
    const bool works = task < s.kept.count * s.blocks;
    const int64_t block = quotient(task, s.kept.count), kept = task - block * s.kept.count;
    const int64_t end = (block + 1) * s.each < s.summed.count ? (block + 1) * s.each : s.summed.count;
    float sum[1] = {0};
    if (works) {
        const T *from = x + axes_at(s.kept, kept);
        for (int64_t r = block * s.each + threadIdx.x % G; r < end; r += G)
            sum[0] += to_float(from[axes_at(s.summed, r)]);
    }
    sum[0] = G == WARP ? warp_sum(sum[0]) : block_total(sum[0]);
    if (works && threadIdx.x % G == 0) put_sums<1>(to, s.blocks, block, kept, sum);
}

template <typename T, int V>
static cudaError_t launch_sum_rows(const sum_target &to, const T *x, const summing &s, bool even, cudaStream_t stream)
{
    const int64_t tiles = ceiling(s.C, (int64_t)s.across * V), grid = tiles * s.kept.count * s.blocks;
    if (grid > INT32_MAX) return cudaErrorInvalidValue;
    if (even) sum_rows_kernel<T, V, true><<<(unsigned)grid, BLOCK, 0, stream>>>(to, x, s, tiles);
    else sum_rows_kernel<T, V, false><<<(unsigned)grid, BLOCK, 0, stream>>>(to, x, s, tiles);
    return cudaGetLastError();
}

template <typename T>
static cudaError_t launch_sum_to(const sum_target &to, const void *x, const summing &s, int access,
                                 enum sum_to_form form, cudaStream_t stream)
{
    constexpr int V = 16 / sizeof(T), WARPS = BLOCK / WARP;
    const bool rows = form == SUM_ROWS || form == SUM_ROWS_OF_LOOPS;
    if (form != sum_to_form(&s) || (access == 16 && !rows)) return cudaErrorInvalidValue;
    if (misaligned(access, x, to.y.data, to.partial)) return cudaErrorMisalignedAddress;
    const T *from = static_cast<const T *>(x);
    const int64_t tasks = s.kept.count * s.blocks;
    if (rows)
        return access == 16 ? launch_sum_rows<T, V>(to, from, s, form == SUM_ROWS, stream)
                            : launch_sum_rows<T, 1>(to, from, s, form == SUM_ROWS, stream);
    if (tasks > INT32_MAX) return cudaErrorInvalidValue;
    if (form == SUM_BY_WARP)
        sum_alone_kernel<T, WARP><<<(unsigned)ceiling(tasks, WARPS), BLOCK, 0, stream>>>(to, from, s);
    else sum_alone_kernel<T, BLOCK><<<(unsigned)tasks, BLOCK, 0, stream>>>(to, from, s);
    return cudaGetLastError();
}

int launch_sum_columns(const struct launch *l, const struct operand *x, const struct operand *y, bool add,
                       struct error *e)
{
    const enum store type = store_of(x->dtype);
    const summing s = summing_of_part(x->rank, x->dim, x->stride, y->rank, y->dim, (int)dtype_size(x->dtype),
                                      l->extent.part ? l->extent.part : 1, l->extent.part ? l->extent.whole : 1);
    const sum_target to = {typed_of(y), (float *)l->work, operand_elements(y), add};
    TRY_CUDA(try_by_type(type, [&](auto zero) {
        return launch_sum_to<decltype(zero)>(to, x->data, s, l->access, (enum sum_to_form)l->form, stream_of(l));
    }));
    if (s.blocks > 1) launch_column_sums({to.y, to.y, to.N, add}, to.partial, s.blocks, to.N, stream_of(l));
    TRY_CUDA(cudaGetLastError());
    return PL_OK;
}

static int launch_sum_to(const struct launch *l, struct error *e)
{
    CHECK(!has(l, 1) || l->in[1].data == l->out[0].data, "the accumulator is updated in place");
    return launch_sum_columns(l, &l->in[0], &l->out[0], has(l, 1), e);
}

CUDA_KERNEL(cuda_sum, .launch = launch_sum);
CUDA_KERNEL(cuda_sum_to, .launch = launch_sum_to);
