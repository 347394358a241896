/*
 * linear.c: LINEAR by cuBLASLt.
 *
 * The library is column-major: a row-major [R, C] is its C x R with leading
 * dimension C. So y = x w^T + bias, all row-major, is asked for as
 *
 *     y' [N x rows] = op_T(w' [K x N]) * x' [K x rows]  + bias down each column
 *
 * which is the bias epilogue's own orientation and needs no copy.
 *
 * Invariants. f32 is true f32: sums, products and inputs; an algorithm that
 * rounds inputs to TF32 is refused. bf16 and f16 inputs are summed in f32, split
 * sums included, and rounded once at the end. The algorithm is chosen once per
 * entry, within the planned workspace, and is then part of the captured graph:
 * the same bits at every launch.
 */
#include <stdint.h>

#include "cuda/host.h"

enum { CANDIDATES = 8, ALIGN_MAX = 256 };

struct linear {
    cublasLtHandle_t blas;                /* the device's */
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t w, x, y;
    cublasLtMatmulAlgo_t algorithm;
};

static const struct operand *bias_of(const struct launch *l)
{
    return l->nin > 2 && l->in[2].data ? &l->in[2] : NULL;
}

static cudaDataType_t type_of(enum dtype t)
{
    CHECK(t == DT_F32 || t == DT_BF16 || t == DT_F16, "%s has no CUDA product", dtype_name(t));
    return t == DT_F32 ? CUDA_R_32F : t == DT_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

/* --- preparing ------------------------------------------------------------------- */

static int describe(struct linear *m, const struct launch *l, struct error *e)
{
    const struct operand *x = &l->in[0], *bias = bias_of(l);
    const uint64_t rows = (uint64_t)operand_rows(x), K = (uint64_t)operand_last(x), N = (uint64_t)l->in[1].dim[0];
    const cudaDataType_t type = type_of(x->dtype);
    const cublasOperation_t transposed = CUBLAS_OP_T;
    TRY_BLAS(cublasLtMatmulDescCreate(&m->product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    TRY_BLAS(cublasLtMatmulDescSetAttribute(m->product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed));
    TRY_BLAS(cublasLtMatrixLayoutCreate(&m->w, type, K, N, (int64_t)K));
    TRY_BLAS(cublasLtMatrixLayoutCreate(&m->x, type, K, rows, (int64_t)K));
    TRY_BLAS(cublasLtMatrixLayoutCreate(&m->y, type, N, rows, (int64_t)N));
    if (bias) {
        const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
        CHECK((uintptr_t)bias->data % 16 == 0, "plan.c matches no other: the library reads it in 16-byte pieces");
        TRY_BLAS(cublasLtMatmulDescSetAttribute(m->product, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
        TRY_BLAS(cublasLtMatmulDescSetAttribute(m->product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias->data,
                                                sizeof bias->data));
    }
    return PL_OK;
}

/* The largest power of two that divides the operand's address in every iteration. */
static uint32_t alignment(const struct entry *entry, const struct operand *x, int slot)
{
    uintptr_t bits = (uintptr_t)x->data | ALIGN_MAX;
    if (entry->move[slot].loop) bits |= (uintptr_t)entry->move[slot].advance;
    return (uint32_t)(bits & -bits);
}

static int prefer(cublasLtMatmulPreference_t p, const struct entry *entry, struct error *e)
{
    const struct launch *l = &entry->launch;
    /* Partial sums of a split product stay f32 and are added in a separate step,
     * in order: neither a second rounding nor a race for the output. */
    const uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const uint32_t w = alignment(entry, &l->in[1], 1), x = alignment(entry, &l->in[0], 0);
    const uint32_t y = alignment(entry, &l->out[0], MAX_IN);
    TRY_BLAS(cublasLtMatmulPreferenceSetAttribute(p, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &l->work_bytes,
                                                  sizeof l->work_bytes));
    TRY_BLAS(cublasLtMatmulPreferenceSetAttribute(p, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes));
    TRY_BLAS(cublasLtMatmulPreferenceSetAttribute(p, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &w, sizeof w));
    TRY_BLAS(cublasLtMatmulPreferenceSetAttribute(p, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &x, sizeof x));
    TRY_BLAS(cublasLtMatmulPreferenceSetAttribute(p, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &y, sizeof y));
    TRY_BLAS(cublasLtMatmulPreferenceSetAttribute(p, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &y, sizeof y));
    return PL_OK;
}

/* An algorithm that reads f32 as TF32; CUBLAS_COMPUTE_32F excludes these, an
 * override from the environment brings them back. */
static bool rounds_inputs(const cublasLtMatmulAlgo_t *a)
{
    uint64_t flags = 0;
    size_t written = 0;
    return cublasLtMatmulAlgoCapGetAttribute(a, CUBLASLT_ALGO_CAP_NUMERICAL_IMPL_FLAGS, &flags, sizeof flags, &written) ==
               CUBLAS_STATUS_SUCCESS &&
           (flags & CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_TF32);
}

/* Whether a candidate may be used: it runs, fits, and reads f32 as f32. */
static bool acceptable(const cublasLtMatmulHeuristicResult_t *r, uint64_t cap, bool f32)
{
    return r->state == CUBLAS_STATUS_SUCCESS && r->workspaceSize <= cap && !(f32 && rounds_inputs(&r->algo));
}

static int choose(struct linear *m, cublasLtMatmulPreference_t p, const struct entry *entry, struct error *e)
{
    const struct launch *l = &entry->launch;
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    int n = 0;
    TRY(prefer(p, entry, e));
    cublasStatus_t rc = cublasLtMatmulAlgoGetHeuristic(m->blas, m->product, m->w, m->x, m->y, m->y, p, CANDIDATES, found, &n);
    if (rc != CUBLAS_STATUS_SUCCESS && rc != CUBLAS_STATUS_NOT_SUPPORTED)
        return blas_failed(e, rc, "cublasLtMatmulAlgoGetHeuristic");
    for (int i = 0; i < n; i++)
        if (acceptable(&found[i], l->work_bytes, l->in[0].dtype == DT_F32)) {
            m->algorithm = found[i].algo;
            return PL_OK;
        }
    return error_set(e, PL_FAIL,
                     "cuBLASLt has no %s product of [%lld,%lld] and [%lld,%lld]^T%s within the workspace of %llu bytes "
                     "(%d candidates, %s): raise the device profile's library_workspace",
                     dtype_name(l->in[0].dtype), (long long)operand_rows(&l->in[0]), (long long)operand_last(&l->in[0]),
                     (long long)l->in[1].dim[0], (long long)l->in[1].dim[1], bias_of(l) ? " with bias" : "",
                     (unsigned long long)l->work_bytes, n, cublasLtGetStatusName(rc));
}

static int linear_prepare(const struct cuda_state *s, struct entry *entry, struct error *e)
{
    CHECK((uintptr_t)entry->launch.work % 256 == 0, "the library wants its workspace aligned to 256");
    struct linear *m = mem_alloc(sizeof *m);
    entry->launch.state = m;
    m->blas = s->blas;
    TRY(describe(m, &entry->launch, e));
    cublasLtMatmulPreference_t p = NULL;
    TRY_BLAS(cublasLtMatmulPreferenceCreate(&p));
    int rc = choose(m, p, entry, e);
    cublasLtMatmulPreferenceDestroy(p);
    return rc;
}

static void linear_release(void *state)
{
    struct linear *m = state;
    if (m->y) cublasLtMatrixLayoutDestroy(m->y);
    if (m->x) cublasLtMatrixLayoutDestroy(m->x);
    if (m->w) cublasLtMatrixLayoutDestroy(m->w);
    if (m->product) cublasLtMatmulDescDestroy(m->product);
    mem_free(m);
}

/* --- launching --------------------------------------------------------------------- */

static int linear_launch(const struct launch *l, struct error *e)
{
    const struct linear *m = l->state;
    const float one = 1, zero = 0;
    const struct operand *bias = bias_of(l);
    if (bias) /* it may advance with a loop */
        TRY_BLAS(cublasLtMatmulDescSetAttribute(m->product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias->data,
                                                sizeof bias->data));
    TRY_BLAS(cublasLtMatmul(m->blas, m->product, &one, l->in[1].data, m->w, l->in[0].data, m->x, &zero, l->out[0].data,
                            m->y, l->out[0].data, m->y, &m->algorithm, l->work, l->work_bytes, l->stream));
    return PL_OK;
}

const struct cuda_kernel cuda_run_products[] = {
    {"cublaslt_linear", linear_prepare, linear_launch, linear_release},
    {0},
};
