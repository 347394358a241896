/*
 * hopper.c: attention on GPUs of compute capability 9.0 (sm_90): the TMA tensor maps of its tiles,
 * and the passes before and after (launch_hopper.h). plan_attention.c says which shapes it takes.
 */
#include "cuda/attention/launch_hopper.h"
#include "cuda/device/host.h"

/* --- tensor maps ------------------------------------------------------------------------------ */

typedef CUresult encode_fn(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                           const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                           CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/* Encodes the tiles `box` of a tensor by the driver's function, which is looked up: the driver is
 * not linked. */
static int encode_map(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *from, const cuuint64_t *dim,
                      const cuuint64_t *stride, const cuuint32_t *box, CUtensorMapSwizzle swizzle, struct error *e)
{
    enum { SINCE = 12000 };
    enum cudaDriverEntryPointQueryResult found;
    const cuuint32_t one[4] = {1, 1, 1, 1};
    encode_fn *encode = NULL;
    void *p = NULL;
    TRY_CUDA(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &p, SINCE, cudaEnableDefault, &found));
    if (!p || found != cudaDriverEntryPointSuccess)
        return error_set(e, PL_FAIL, "CUDA: the driver has no cuTensorMapEncodeTiled");
    *(void **)&encode = p;
    const CUresult rc = encode(map, type, rank, from, dim, stride, box, one, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return rc == CUDA_SUCCESS ? PL_OK : error_set(e, PL_FAIL, "CUDA: cuTensorMapEncodeTiled failed with %d", (int)rc);
}

/* Describes tiles of `rows` rows of a head, 64 columns at a time. */
static int map_heads(CUtensorMap *map, const struct attention *a, const struct head_rows *x, int T, int H, int rows,
                     struct error *e)
{
    const CUtensorMapDataType type =
        a->type == STORE_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    const cuuint64_t dim[4] = {(cuuint64_t)a->D, (cuuint64_t)H, (cuuint64_t)T, (cuuint64_t)a->B};
    const int64_t step[3] = {x->head, x->token, x->sample};
    cuuint64_t stride[3];
    /* TMA requires strides that are multiples of 16 bytes, also for a dimension of one element,
     * whose stride is not used */
    for (int i = 0; i < 3; i++) stride[i] = dim[i + 1] > 1 ? (cuuint64_t)step[i] * 2 : 16;
    const cuuint32_t box[4] = {64, 1, (cuuint32_t)rows, 1};
    return encode_map(map, type, 4, x->data, dim, stride, box, CU_TENSOR_MAP_SWIZZLE_128B, e);
}

/* Describes tiles of rows of floats. */
static int map_floats(CUtensorMap *map, float *from, int64_t rows, int64_t columns, int box_rows, int box_columns,
                      CUtensorMapSwizzle swizzle, struct error *e)
{
    const cuuint64_t dim[2] = {(cuuint64_t)columns, (cuuint64_t)rows},
                     stride[1] = {(cuuint64_t)columns * sizeof(float)};
    const cuuint32_t box[2] = {(cuuint32_t)box_columns, (cuuint32_t)box_rows};
    return encode_map(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, from, dim, stride, box, swizzle, e);
}

static int map_row_stats(CUtensorMap *map, const struct attention *a, struct error *e)
{
    const int64_t heads = (int64_t)a->B * a->H, padded = (int64_t)(a->T + 63) / 64 * 64;
    CHECK(a->lse2 == a->delta + heads * padded, "lse2 does not follow delta");
    return map_floats(map, a->delta, 2 * heads, padded, 1, HOPPER_WALKED, CU_TENSOR_MAP_SWIZZLE_NONE, e);
}

static int map_positions(struct attention_maps *m, const struct attention *a, struct error *e)
{
    const int64_t rows = (int64_t)a->B * a->H * (a->height + a->width);
    TRY(map_floats(&m->columns, a->rel, rows, a->T, HOPPER_WIDTH, HOPPER_WALKED / 2, CU_TENSOR_MAP_SWIZZLE_128B, e));
    return map_floats(&m->rows, a->rel, rows, a->T, 1, HOPPER_WALKED, CU_TENSOR_MAP_SWIZZLE_NONE, e);
}

/* --- launching -------------------------------------------------------------------------------- */

static int compute_rel(const struct attention *a, cudaStream_t stream, struct error *e)
{
    TRY_CUDA(cuda_attention_tables(a, stream));
    TRY_CUDA(cuda_grid64_rel(a, 1 / a->scale, stream));
    return PL_OK;
}

int hopper_attention(const struct attention *a, cudaStream_t stream, struct error *e)
{
    const bool grid = a->mode == ATTENTION_BY_TABLES;
    struct attention_maps m = {0};
    if (grid) TRY(compute_rel(a, stream, e));
    TRY(map_heads(&m.q, a, &a->q, a->T, a->H, 64 * HOPPER_GROUPS(a->D, grid || a->ranges), e));
    TRY(map_heads(&m.k, a, &a->k, a->S, a->G, HOPPER_KEYS, e));
    TRY(map_heads(&m.v, a, &a->v, a->S, a->G, HOPPER_KEYS, e));
    TRY_CUDA(cuda_hopper_forward(a, &m, stream));
    return PL_OK;
}

/* Describes the heads for a kernel that holds tiles of one side and traverses the other. */
static int map_all(struct attention_maps *m, const struct attention *a, int queries, int keys, struct error *e)
{
    TRY(map_heads(&m->q, a, &a->q, a->T, a->H, queries, e));
    TRY(map_heads(&m->dout, a, &a->dout, a->T, a->H, queries, e));
    TRY(map_heads(&m->k, a, &a->k, a->S, a->G, keys, e));
    return map_heads(&m->v, a, &a->v, a->S, a->G, keys, e);
}

int hopper_attention_bwd(const struct attention *a, cudaStream_t stream, struct error *e)
{
    const bool grid = a->mode == ATTENTION_BY_TABLES;
    struct attention_maps m = {0};
    TRY_CUDA(cuda_attention_row_stats(a, stream));
    if (grid) TRY(compute_rel(a, stream, e));
    TRY(map_row_stats(&m.row_stats, a, e));
    if (grid) TRY(map_positions(&m, a, e));
    TRY(map_all(&m, a, HOPPER_WALKED, HOPPER_HELD, e));
    TRY_CUDA(cuda_hopper_dkv(a, &m, stream));
    TRY(map_all(&m, a, 64 * HOPPER_GROUPS(a->D, grid || a->ranges), HOPPER_WALKED, e));
    TRY_CUDA(cuda_hopper_dq(a, &m, stream));
    if (grid) TRY_CUDA(cuda_grid64_dtables(a, stream));
    return PL_OK;
}
