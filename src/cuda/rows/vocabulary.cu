/*
 * vocabulary.cu: the cross-entropy where the vocabulary is divided into parts: PART_IDS, XENT_PART,
 * XENT_JOIN and their gradients (cpu/rows/vocabulary.c).
 */
#include "cuda/device/kernel.cuh"

constexpr int32_t IGNORED = -100;

static __global__ void part_ids_kernel(int32_t *to, const int32_t *ids, int64_t n, int64_t first, int64_t each)
{
    const int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= n) return;
    const int64_t id = ids[i] - first;
    to[i] = ids[i] == IGNORED ? IGNORED : id < 0 || id >= each ? -1 : (int32_t)id;
}

static int launch_part_ids(const struct launch *l, struct error *e)
{
    const auto &a = l->attr->part_ids;
    const int64_t n = operand_elements(&l->in[0]);
    part_ids_kernel<<<(unsigned)((n + BLOCK - 1) / BLOCK), BLOCK, 0, stream_of(l)>>>(
        out_as<int32_t>(l, 0), in_as<int32_t>(l, 0), n, part_index(part_number_read(a.of), launch_place(l)) * a.n, a.n);
    TRY_CUDA(cudaGetLastError());
    return PL_OK;
}

/* --- a part ----------------------------------------------------------------------------------- */

static int64_t part_of(const struct launch *l)
{
    return part_index(part_number_read(l->attr->xent_part.of), launch_place(l));
}
static int64_t columns_of(const struct launch *l, int64_t V)
{
    return max_i64(0, min_i64(V, l->attr->xent_part.vocabulary - part_of(l) * V));
}

/* One block a row: n columns of V, of which the others are padding. */
template <typename T>
static __global__ void xent_part_kernel(float *stats, const T *logits, const int32_t *labels, int64_t V, int64_t n,
                                        int64_t slots, int64_t part)
{
    __shared__ float partial[WARP];
    const int64_t row = blockIdx.x;
    const T *from = logits + row * V;
    float most = -INFINITY, sum = 0;
    for (int64_t k = threadIdx.x; k < n; k += BLOCK) {
        const float x = to_float(from[k]), top = fmaxf(most, x), shift = top == -INFINITY ? 0.0f : top;
        if (top > most) sum *= exp_of<T>(most - shift);
        most = top;
        sum += exp_of<T>(x - shift);
    }
    const float all = group_max(most, BLOCK, partial), shift = all == -INFINITY ? 0.0f : all;
    sum = group_sum(sum * exp_of<T>(most - shift), BLOCK, partial);
    for (int64_t k = threadIdx.x; k < slots; k += BLOCK)
        if (k / 2 != part) stats[row * slots + k] = 0;
    if (threadIdx.x) return;
    const int32_t label = labels[row];
    stats[row * slots + 2 * part] = (float)((double)all + log((double)sum));
    stats[row * slots + 2 * part + 1] = label >= 0 ? to_float(from[label]) : 0.0f;
}

static int launch_xent_part(const struct launch *l, struct error *e)
{
    const struct operand *x = &l->in[0];
    const int64_t V = operand_last(x);
    TRY_CUDA(by_type(store_of(x->dtype), [&](auto zero) {
        using T = decltype(zero);
        xent_part_kernel<T><<<(unsigned)operand_rows(x), BLOCK, 0, stream_of(l)>>>(
            out_as<float>(l, 0), in_as<T>(l, 0), in_as<int32_t>(l, 1), V, columns_of(l, V), operand_last(&l->out[0]),
            part_of(l));
    }));
    return PL_OK;
}

/* An element is read and written by one thread: d may be the logits. */
template <typename T>
static __global__ void xent_part_bwd_kernel(T *d, const float *dstats, const T *logits, const int32_t *labels,
                                            const float *stats, int64_t V, int64_t n, int64_t slots, int64_t part)
{
    const int64_t row = blockIdx.x, at = row * slots + 2 * part;
    const int32_t label = labels[row];
    const float lse = stats[at], dlse = dstats[at], dlogit = dstats[at + 1];
    for (int64_t k = threadIdx.x; k < V; k += BLOCK) {
        float x = k < n ? exp_of<T>(to_float(logits[row * V + k]) - lse) * dlse : 0.0f;
        if (k == label) x += dlogit;
        d[row * V + k] = from_float<T>(x);
    }
}

static int launch_xent_part_bwd(const struct launch *l, struct error *e)
{
    const struct operand *x = &l->in[1];
    const int64_t V = operand_last(x);
    TRY_CUDA(by_type(store_of(x->dtype), [&](auto zero) {
        using T = decltype(zero);
        xent_part_bwd_kernel<T><<<(unsigned)operand_rows(x), BLOCK, 0, stream_of(l)>>>(
            out_as<T>(l, 0), in_as<float>(l, 0), in_as<T>(l, 1), in_as<int32_t>(l, 2), in_as<float>(l, 3), V,
            columns_of(l, V), operand_last(&l->in[0]), part_of(l));
    }));
    return PL_OK;
}

/* --- all parts -------------------------------------------------------------------------------- */

static __device__ double join_slots(const float *stats, int64_t slots, double &logit)
{
    double max = -INFINITY, sum = 0;
    logit = 0;
    for (int64_t k = 0; k < slots; k += 2) max = fmax(max, (double)stats[k]);
    for (int64_t k = 0; k < slots; k += 2) {
        sum += exp((double)stats[k] - max);
        logit += (double)stats[k + 1];
    }
    return max + log(sum);
}

static __global__ void join_kernel(double *losses, const float *stats, const int32_t *labels, int64_t rows,
                                   int64_t slots)
{
    const int64_t r = (int64_t)blockIdx.x * BLOCK + threadIdx.x;
    double logit;
    if (r >= rows) return;
    const double lse = join_slots(stats + r * slots, slots, logit);
    losses[r] = labels[r] == IGNORED ? 0.0 : lse - logit;
}

/* Adds the losses in one block: every thread adds its rows in order, then the threads are added. */
static __global__ void sum_kernel(float *loss, const double *losses, const float *inv_count, int64_t rows)
{
    double sum = 0;
    for (int64_t r = threadIdx.x; r < rows; r += blockDim.x) sum += losses[r];
    sum = block_sum_double(sum);
    if (threadIdx.x == 0) *loss = (float)(sum * (double)*inv_count);
}

static int launch_xent_join(const struct launch *l, struct error *e)
{
    const int64_t rows = operand_rows(&l->in[0]), slots = operand_last(&l->in[0]);
    double *losses = (double *)l->work;
    join_kernel<<<(unsigned)((rows + BLOCK - 1) / BLOCK), BLOCK, 0, stream_of(l)>>>(losses, in_as<float>(l, 0),
                                                                                    in_as<int32_t>(l, 1), rows, slots);
    sum_kernel<<<1, 1024, 0, stream_of(l)>>>(out_as<float>(l, 0), losses, in_as<float>(l, 2), rows);
    TRY_CUDA(cudaGetLastError());
    return PL_OK;
}

static __global__ void join_bwd_kernel(float *d, const float *dloss, const float *stats, const int32_t *labels,
                                       const float *inv_count, int64_t rows, int64_t slots)
{
    const int64_t r = (int64_t)blockIdx.x * BLOCK + threadIdx.x;
    double logit;
    if (r >= rows) return;
    const double lse = join_slots(stats + r * slots, slots, logit), factor = (double)*dloss * (double)*inv_count;
    for (int64_t k = 0; k < slots; k += 2) {
        const bool ignored = labels[r] == IGNORED;
        d[r * slots + k] = ignored ? 0.0f : (float)(factor * exp((double)stats[r * slots + k] - lse));
        d[r * slots + k + 1] = ignored ? 0.0f : (float)-factor;
    }
}

static int launch_xent_join_bwd(const struct launch *l, struct error *e)
{
    const int64_t rows = operand_rows(&l->in[1]), slots = operand_last(&l->in[1]);
    join_bwd_kernel<<<(unsigned)((rows + BLOCK - 1) / BLOCK), BLOCK, 0, stream_of(l)>>>(
        out_as<float>(l, 0), in_as<float>(l, 0), in_as<float>(l, 1), in_as<int32_t>(l, 2), in_as<float>(l, 3), rows,
        slots);
    TRY_CUDA(cudaGetLastError());
    return PL_OK;
}

CUDA_KERNEL(cuda_part_ids, .launch = launch_part_ids);
CUDA_KERNEL(cuda_xent_part, .launch = launch_xent_part);
CUDA_KERNEL(cuda_xent_part_bwd, .launch = launch_xent_part_bwd);
CUDA_KERNEL(cuda_xent_join, .launch = launch_xent_join);
CUDA_KERNEL(cuda_xent_join_bwd, .launch = launch_xent_join_bwd);
