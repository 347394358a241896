/*
 * cache.cu: CACHE_WRITE: rows into a cache, each at the position of its token. The bytes are moved
 * as they are, in units of up to 16.
 */
#include "cuda/device/kernel.cuh"

/* packs that a group of threads copies: few rows may be long, as the features of an image are */
constexpr int64_t PART = 1024;

template <typename P>
static __global__ void cache_write_kernel(P *cache, const P *x, const int32_t *positions, int64_t rows, int64_t S,
                                          int64_t T, int64_t packs, int64_t stride, int64_t parts, int size)
{
    const int lane = threadIdx.x & (size - 1), each = BLOCK / size;
    for (int64_t unit = (int64_t)blockIdx.x * each + (int)threadIdx.x / size; unit < rows * parts;
         unit += (int64_t)gridDim.x * each) {
        const int64_t row = unit / parts, first = unit % parts * PART, s = positions[row];
        if (s < 0 || s >= S) continue;
        P *to = cache + (row / T * S + s) * stride;
        for (int64_t k = first + lane; k < packs && k < first + PART; k += size) to[k] = x[row * packs + k];
    }
}

template <typename P> static void write_rows(const struct launch *l)
{
    const struct operand *cache = &l->out[0], *x = &l->in[1];
    const int64_t rows = x->dim[0] * x->dim[1], each = dtype_size(x->dtype),
                  packs = operand_elements(x) / rows * each / (int64_t)sizeof(P), parts = (packs + PART - 1) / PART,
                  stride = operand_elements(cache) / (cache->dim[0] * cache->dim[1]) * each / (int64_t)sizeof(P);
    const int size = group_size(packs < PART ? packs : PART, BLOCK);
    cache_write_kernel<P><<<grid_of_rows(rows * parts, BLOCK / size, GRID_MAX), BLOCK, 0, stream_of(l)>>>(
        out_as<P>(l, 0), in_as<P>(l, 1), in_as<int32_t>(l, 2), rows, cache->dim[1], x->dim[1], packs, stride, parts,
        size);
}

static int launch_cache_write(const struct launch *l, struct error *e)
{
    CHECK(l->in[0].data == l->out[0].data, "the cache is updated in place");
    if (misaligned(l->access, l->out[0].data, l->in[1].data)) TRY_CUDA(cudaErrorMisalignedAddress);
    if (l->access == 16) write_rows<uint4>(l);
    else write_rows<uint16_t>(l); /* no element is smaller */
    TRY_CUDA(cudaGetLastError());
    return PL_OK;
}

CUDA_KERNEL(cuda_cache_write, .launch = launch_cache_write);
