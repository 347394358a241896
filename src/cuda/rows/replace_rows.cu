/*
 * replace_rows.cu: REPLACE_ROWS: rows of x, and rows of y where an index says so. The bytes are
 * moved as they are, in units of up to 16. The result may be x itself.
 */
#include "cuda/device/kernel.cuh"

struct row_sources {
    const void *x, *y;
    const int32_t *index;
    int64_t rows, T;
    int64_t N, each; /* rows of y, 0 without it; how far those of two samples lie apart, 0 if they share them */
};

template <typename P> static __global__ void replace_rows_kernel(P *to, row_sources s, int64_t packs, int size)
{
    const P *x = static_cast<const P *>(s.x), *y = static_cast<const P *>(s.y);
    const int lane = threadIdx.x & (size - 1), each = BLOCK / size;
    for (int64_t row = (int64_t)blockIdx.x * each + (int)threadIdx.x / size; row < s.rows;
         row += (int64_t)gridDim.x * each) {
        const int64_t n = s.index[row];
        if (n < 0 && to == x) continue;
        const P *from = n < 0 ? x + row * packs : y + (row / s.T * s.each + n) * packs;
        for (int64_t k = lane; k < packs; k += size) to[row * packs + k] = n < s.N ? from[k] : P{};
    }
}

template <typename P> static void launch_rows(void *to, const row_sources &s, int64_t bytes, cudaStream_t stream)
{
    const int64_t packs = bytes / (int64_t)sizeof(P);
    const int size = group_size(packs, BLOCK);
    replace_rows_kernel<P>
        <<<grid_of_rows(s.rows, BLOCK / size, GRID_MAX), BLOCK, 0, stream>>>(static_cast<P *>(to), s, packs, size);
}

static int launch_replace_rows(const struct launch *l, struct error *e)
{
    const struct operand *x = &l->in[0], *y = has(l, 2) ? &l->in[2] : NULL;
    const int64_t bytes = x->dim[2] * (int64_t)dtype_size(x->dtype);
    const row_sources s =
        {x->data,   y ? y->data : x->data,       (const int32_t *)l->in[1].data,   x->dim[0] * x->dim[1],
         x->dim[1], y ? y->dim[y->rank - 2] : 0, y && y->rank == 3 ? y->dim[1] : 0};
    if (misaligned(l->access, l->out[0].data, s.x, s.y)) TRY_CUDA(cudaErrorMisalignedAddress);
    if (l->access == 16) launch_rows<uint4>(l->out[0].data, s, bytes, (cudaStream_t)l->stream);
    else launch_rows<uint16_t>(l->out[0].data, s, bytes, (cudaStream_t)l->stream); /* no element is smaller */
    TRY_CUDA(cudaGetLastError());
    return PL_OK;
}

CUDA_KERNEL(cuda_replace_rows, .launch = launch_replace_rows);
