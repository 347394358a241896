/*
 * tokens.cu: EMBEDDING and its gradient, the cross entropy over the vocabulary and its
 * gradient.
 *
 * Ids and labels are in range: the loader has checked them. An id below 0 has its row in another
 * part of the table (vocabulary.cu). The logits are read once in the forward (an online
 * log-sum-exp, which rescales when a larger logit occurs) and once in the backward, where the
 * gradient may overwrite them; the backward does not read rows with an ignored label.
 */
#include "cuda/device/kernel.cuh"

constexpr int32_t IGNORED = -100;

/* --- embedding -------------------------------------------------------------------------- */

/* P: the type by which a row is moved, in `packs` accesses. */
template <typename P>
static __global__ void embedding_kernel(P *y, const int32_t *ids, const P *table, int64_t rows, int64_t packs, int size)
{
    const int lane = threadIdx.x & (size - 1), each = BLOCK / size;
    for (int64_t row = (int64_t)blockIdx.x * each + (int)threadIdx.x / size; row < rows;
         row += (int64_t)gridDim.x * each) {
        const int32_t id = ids[row];
        const P *from = table + id * packs;
        for (int64_t k = lane; k < packs; k += size) y[row * packs + k] = id < 0 ? P{} : from[k];
    }
}

template <typename P> static void embed(const struct launch *l)
{
    const struct operand *table = &l->in[1];
    const int64_t rows = operand_elements(&l->in[0]),
                  packs = operand_last(table) * dtype_size(table->dtype) / (int64_t)sizeof(P);
    const int size = group_size(packs, BLOCK);
    embedding_kernel<P><<<grid_of_rows(rows, BLOCK / size, GRID_MAX), BLOCK, 0, stream_of(l)>>>(
        out_as<P>(l, 0), in_as<int32_t>(l, 0), in_as<P>(l, 1), rows, packs, size);
}

static int launch_embedding(const struct launch *l, struct error *e)
{
    if (misaligned(l->access, l->out[0].data, l->in[1].data)) TRY_CUDA(cudaErrorMisalignedAddress);
    if (l->access == 16) embed<uint4>(l);
    else embed<uint16_t>(l); /* no element is smaller */
    TRY_CUDA(cudaGetLastError());
    return PL_OK;
}

/* --- embedding gradient --------------------------------------------------------------------
 *
 * Ids repeat. link_kernel finds for each row the next one with the same id, and whether it is the
 * first with its id. Then the first row's block adds all of them, in order, to the table's row:
 * no row of the table has two writers, and a sum has one order. Few rows are followed link by
 * link; if there are many (padding, a full stop), the ids are searched from there on, a block's
 * width at a time, so that loads do not wait for each other.
 *
 *     next[r]   the next row with the same id, or rows;  -1 - that: r is not the first
 */

static __global__ void link_kernel(int32_t *next, const int32_t *ids, int rows)
{
    __shared__ int32_t tile[BLOCK];
    const int r = blockIdx.x * BLOCK + threadIdx.x;
    const int32_t id = r < rows ? ids[r] : -1;
    int found = rows;
    bool first = true;
    for (int base = 0; base < rows; base += BLOCK) {
        const int count = rows - base < BLOCK ? rows - base : BLOCK;
        __syncthreads();
        if ((int)threadIdx.x < count) tile[threadIdx.x] = ids[base + threadIdx.x];
        __syncthreads();
        if (base < (int)blockIdx.x * BLOCK) { /* all of these rows come before */
            if (first)
                for (int i = 0; i < count; i++) first = first && tile[i] != id;
            continue;
        }
        if (found == rows)
            for (int i = 0; i < count; i++) {
                if (tile[i] != id) continue;
                if (base + i < r) first = false;
                else if (base + i > r && base + i < found) found = base + i;
            }
        if (__syncthreads_and(r >= rows || found < rows)) break;
    }
    if (r < rows) next[r] = first ? found : -1 - found;
}

constexpr int HOPS = 8;

static __device__ int32_t following(int32_t link) { return link < 0 ? -1 - link : link; }

/* Block (row, range of columns). */
template <typename T, int V>
static __global__ void embedding_dw_kernel(float *dw, const int32_t *next, const int32_t *ids, const T *dy, int rows,
                                           int64_t C, int32_t padding, bool accumulate)
{
    __shared__ int32_t list[BLOCK], counts[BLOCK / WARP];
    int r = blockIdx.x;
    int32_t link = next[r];
    const int32_t id = ids[r];
    /* the whole block returns: another block handles this id, or it gets no gradient */
    if (link < 0 || id == padding || id < 0) return;
    const int64_t c = ((int64_t)blockIdx.y * BLOCK + threadIdx.x) * V;
    const bool live = c < C;
    float sum[V] = {}, d[V];
    if (live && accumulate) load<V>(sum, dw + id * C + c);

    for (int hop = 0; hop < HOPS && r < rows; hop++) {
        if (live) {
            load<V>(d, dy + r * C + c);
#pragma unroll
            for (int i = 0; i < V; i++) sum[i] += d[i];
        }
        r = following(next[r]);
    }
    for (int base = r; base < rows; base += BLOCK) {
        const int mine = base + (int)threadIdx.x, warp = threadIdx.x / WARP;
        const bool same = mine < rows && ids[mine] == id;
        const unsigned votes = __ballot_sync(ALL_LANES, same);
        if (threadIdx.x % WARP == 0) counts[warp] = __popc(votes);
        __syncthreads();
        int at = __popc(votes & ((1u << threadIdx.x % WARP) - 1)), total = 0;
        for (int w = 0; w < BLOCK / WARP; w++) {
            if (w < warp) at += counts[w];
            total += counts[w];
        }
        if (same) list[at] = mine;
        __syncthreads();
        if (live) {
#pragma unroll 4
            for (int k = 0; k < total; k++) {
                load<V>(d, dy + list[k] * C + c);
#pragma unroll
                for (int i = 0; i < V; i++) sum[i] += d[i];
            }
        }
        __syncthreads();
    }
    if (live) store<V>(dw + id * C + c, sum);
}

static int launch_embedding_dw(const struct launch *l, struct error *e)
{
    const struct operand *dy = &l->in[1], *dw = &l->out[0];
    const int rows = (int)operand_elements(&l->in[0]);
    const int64_t C = dw->dim[1];
    const bool accumulate = has(l, 2);
    int32_t *next = (int32_t *)l->work;
    if (accumulate) CHECK(l->in[2].data == dw->data, "the accumulator is updated in place");
    else TRY_CUDA(cudaMemsetAsync(dw->data, 0, (size_t)(dw->dim[0] * C) * sizeof(float), stream_of(l)));
    link_kernel<<<(unsigned)((rows + BLOCK - 1) / BLOCK), BLOCK, 0, stream_of(l)>>>(next, in_as<int32_t>(l, 0), rows);
    TRY_CUDA(by_access(store_of(dy->dtype), l->access, [&](auto zero, auto width) {
        using T = decltype(zero);
        constexpr int V = decltype(width)::value;
        const dim3 grid((unsigned)rows, (unsigned)((C + BLOCK * V - 1) / (BLOCK * V)));
        embedding_dw_kernel<T, V><<<grid, BLOCK, 0, stream_of(l)>>>(out_as<float>(l, 0), next, in_as<int32_t>(l, 0),
                                                                    in_as<T>(l, 1), rows, C,
                                                                    (int32_t)launch_padding(l),
                                                                    accumulate);
    }, dw->data, dy->data));
    return PL_OK;
}

/* --- cross entropy ------------------------------------------------------------------------- */

template <typename T, int V>
static __global__ void xent_kernel(float *lse, double *losses, const T *logits, const int32_t *labels, int64_t C)
{
    __shared__ float partial[WARP];
    const int64_t row = blockIdx.x, packs = C / V;
    const T *from = logits + row * C;
    float most = -INFINITY, sum = 0;
#pragma unroll 2
    for (int64_t k = threadIdx.x; k < packs; k += BLOCK) {
        float a[V];
        load<V>(a, from + k * V);
        float top = most;
#pragma unroll
        for (int i = 0; i < V; i++) top = fmaxf(top, a[i]);
        /* Only -inf so far: any finite shift makes each term 0. */
        const float shift = top == -INFINITY ? 0.0f : top;
        if (top > most) sum *= exp_of<T>(most - shift);
        most = top;
#pragma unroll
        for (int i = 0; i < V; i++) sum += exp_of<T>(a[i] - shift);
    }
    const float all = group_max(most, BLOCK, partial), shift = all == -INFINITY ? 0.0f : all;
    sum = group_sum(sum * exp_of<T>(most - shift), BLOCK, partial);
    if (threadIdx.x) return;
    const double value = (double)all + log((double)sum);
    const int32_t label = labels[row];
    lse[row] = (float)value;
    losses[row] = label == IGNORED ? 0.0 : value - (double)to_float(from[label]);
}

/* Adds the losses in one block: every thread adds its rows in order, then the threads are added. */
static __global__ void loss_kernel(float *loss, const double *losses, const float *inv_count, int64_t rows)
{
    double sum = 0;
    for (int64_t r = threadIdx.x; r < rows; r += blockDim.x) sum += losses[r];
    sum = block_sum_double(sum);
    if (threadIdx.x == 0) *loss = (float)(sum * (double)*inv_count);
}

static int launch_xent(const struct launch *l, struct error *e)
{
    const struct operand *x = &l->in[0];
    const int64_t rows = operand_rows(x);
    double *losses = (double *)l->work;
    TRY_CUDA(by_access(store_of(x->dtype), l->access, [&](auto zero, auto width) {
        using T = decltype(zero);
        xent_kernel<T, decltype(width)::value><<<(unsigned)rows, BLOCK, 0, stream_of(l)>>>(
            out_as<float>(l, 1), losses, in_as<T>(l, 0), in_as<int32_t>(l, 1), operand_last(x));
    }, x->data));
    loss_kernel<<<1, 1024, 0, stream_of(l)>>>(out_as<float>(l, 0), losses, in_as<float>(l, 2), rows);
    TRY_CUDA(cudaGetLastError());
    return PL_OK;
}

template <typename T, int V>
static __global__ void xent_bwd_kernel(T *d, const T *logits, const int32_t *labels, const float *inv_count,
                                       const float *lse, const float *dloss, int64_t C)
{
    const int64_t row = blockIdx.x, packs = C / V;
    const int32_t label = labels[row];
    const float factor = *inv_count * *dloss, shift = lse[row];
    /* The gradient may alias the logits, so a thread reads all its packs before it writes any. */
    for (int64_t k = threadIdx.x; k < packs; k += BLOCK * TURN) {
        wide_pack<T, V> x[TURN];
#pragma unroll
        for (int u = 0; u < TURN; u++)
            if (label != IGNORED && k + u * BLOCK < packs)
                x[u] = *reinterpret_cast<const wide_pack<T, V> *>(logits + row * C + (k + u * BLOCK) * V);
#pragma unroll
        for (int u = 0; u < TURN; u++) {
            const int64_t at = (k + u * BLOCK) * V;
            float a[V] = {};
            if (k + u * BLOCK >= packs) continue;
#pragma unroll
            for (int i = 0; i < V && label != IGNORED; i++)
                a[i] = (exp_of<T>(to_float(x[u].at[i]) - shift) - (at + i == label ? 1.0f : 0.0f)) * factor;
            store<V>(d + row * C + at, a);
        }
    }
}

static int launch_xent_bwd(const struct launch *l, struct error *e)
{
    const struct operand *x = &l->in[0];
    TRY_CUDA(by_access(store_of(x->dtype), l->access, [&](auto zero, auto width) {
        using T = decltype(zero);
        xent_bwd_kernel<T, decltype(width)::value><<<(unsigned)operand_rows(x), BLOCK, 0, stream_of(l)>>>(
            out_as<T>(l, 0), in_as<T>(l, 0), in_as<int32_t>(l, 1), in_as<float>(l, 2), in_as<float>(l, 3),
            in_as<float>(l, 4), operand_last(x));
    }, l->out[0].data, x->data));
    return PL_OK;
}

CUDA_KERNEL(cuda_embedding, .launch = launch_embedding);
CUDA_KERNEL(cuda_embedding_dw, .launch = launch_embedding_dw);
CUDA_KERNEL(cuda_xent, .launch = launch_xent);
CUDA_KERNEL(cuda_xent_bwd, .launch = launch_xent_bwd);
