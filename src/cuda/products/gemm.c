/*
 * gemm.c: matrix products by cuBLASLt.
 *
 * The library is column-major: a row-major [R, C] is its C x R with leading
 * dimension C. So c = a b, all row-major, is computed as
 *
 *     c' [N x M] = op(b') [N x K] * op(a') [K x M]  + bias down each column
 *
 * which is the orientation of the bias epilogue and needs no copy. An operand whose rows, instead
 * of columns, are contiguous is the transpose of a row-major matrix, op_T:
 *
 *     element (i,j) at i ld + j    stored as is            op_N
 *     element (i,j) at i + j ld    stored transposed       op_T
 *
 * Invariants. f32 is true f32: sums, products and inputs; an algorithm that rounds inputs to TF32
 * is refused. bf16 and f16 inputs are summed in f32, including split-K sums and the addend, and
 * rounded once at the end, whether the addend is the result's own memory or not (factor_on_gpu).
 * The algorithm keeps these rules and fits the planned workspace. It is selected once per
 * entry and then part of the captured graph: every launch gives the same bits. For a small matmul
 * it is the library's first proposal; for a large one it is the fastest, measured once per machine
 * and stored (matmul_autotune.c). A choice by timing at every start would change from run to run,
 * and the bits with it.
 *
 * Operands in e4m3 (base/e4m3.h) have a scale for each row, or for each row and block of 128 terms.
 * Sums are not the library's fast ones, which keep fewer bits over the whole of K.
 *
 * The plan gives products that the library does not support (gemm_shape.h) to a slow kernel of our
 * own (gemm_generic.cu). If the library has no algorithm for one that the plan gave to it, the
 * program cannot be recorded: an error says so.
 */
#include "cuda/products/gemm.h"

#include "cuda/products/matmul_autotune.h"
#include "cuda/products/launch_products.h"

enum { CANDIDATES = 8, CANDIDATES_TIMED = 24, ALIGN_MAX = 256 };

static cudaDataType_t type_of(enum dtype t)
{
    if (t == DT_E4M3) return CUDA_R_8F_E4M3;
    CHECK(t == DT_F32 || t == DT_BF16 || t == DT_F16, "%s has no CUDA product", dtype_name(t));
    return t == DT_F32 ? CUDA_R_32F : t == DT_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

/* --- preparing ------------------------------------------------------------------- */

/* Describes a row-major [rows, columns], or its transpose, to the library. */
static int describe_matrix(cublasLtMatrixLayout_t *m, const struct view *v, const struct matrix_storage *s,
                           int64_t rows, int64_t columns, int64_t batches, struct error *e)
{
    const int64_t R = s->transposed ? columns : rows, C = s->transposed ? rows : columns;
    TRY_BLAS(cublasLtMatrixLayoutCreate(m, type_of(v->dtype), (uint64_t)C, (uint64_t)R, s->ld));
    if (batches == 1) return PL_OK;
    const int32_t count = (int32_t)batches;
    CHECK(count == batches, "%lld products in one batch", (long long)batches);
    TRY_BLAS(cublasLtMatrixLayoutSetAttribute(*m, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count));
    TRY_BLAS(
        cublasLtMatrixLayoutSetAttribute(*m, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &v->batch, sizeof v->batch));
    return PL_OK;
}

/* Sets the scales of a launch: ours of a and b, which the library has in the other order. */
static int set_scales(const struct gemm *p, const float *a, const float *b, struct error *e)
{
    TRY_BLAS(cublasLtMatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &b, sizeof b));
    TRY_BLAS(cublasLtMatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &a, sizeof a));
    return PL_OK;
}

/* The first cuBLASLt with scales of rows and of blocks: that of CUDA 12.9. */
enum { LIBRARY_WITH_SCALES = 120900 };

/* Describes the scales of operands in e4m3. The library wants addresses before it proposes
 * algorithms: these are of a 1, until a launch sets its own. */
static int describe_scales(const struct gemm *p, struct error *e)
{
    if (cublasLtGetVersion() < LIBRARY_WITH_SCALES)
        return error_set(e, PL_FAIL, "fp8 needs cuBLASLt of CUDA 12.9 or later, and this one is %zu; install a later "
                         "one, or use memory.precision bf16", cublasLtGetVersion());
    const int32_t mode = p->shape.scales == SCALES_ROWS ? CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F
                                                        : CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    TRY_BLAS(cublasLtMatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &mode, sizeof mode));
    TRY_BLAS(cublasLtMatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &mode, sizeof mode));
    return set_scales(p, p->one, p->one, e);
}

int gemm_describe(struct gemm *p, const struct gemm_shape *s, struct error *e)
{
    struct matrix_storage a, b, c;
    gemm_end(p);
    p->shape = *s;
    CHECK(gemm_library_supports(s, &a, &b, &c), "the library does not support the layout of a product");
    const cublasOperation_t first = b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
                            second = a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    TRY_BLAS(cublasLtMatmulDescCreate(&p->product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    TRY_BLAS(cublasLtMatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first));
    TRY_BLAS(cublasLtMatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second));
    TRY(describe_matrix(&p->a, &s->a, &a, s->M, s->K, s->batches, e));
    TRY(describe_matrix(&p->b, &s->b, &b, s->K, s->N, s->batches, e));
    TRY(describe_matrix(&p->c, &s->c, &c, s->M, s->N, s->batches, e));
    if (s->scales) TRY(describe_scales(p, e));
    if (!s->bias) return PL_OK;
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    TRY_BLAS(cublasLtMatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
    return PL_OK;
}

/* Sets the preference, which takes the alignments of the library's a, b, c and d: ours with a and b
 * swapped. */
static int set_preference(cublasLtMatmulPreference_t p, const struct gemm_shape *s, uint64_t workspace, struct error *e)
{
    /* Partial sums of a split-K product stay f32 and are added in a separate step, in order: there
     * is no second rounding and no race for the output. A sum that may be shorter has one part. */
    const uint32_t schemes =
        s->least && s->sums ? CUBLASLT_REDUCTION_SCHEME_NONE : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    TRY_BLAS(cublasLtMatmulPreferenceSetAttribute(p, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                                  sizeof workspace));
    TRY_BLAS(
        cublasLtMatmulPreferenceSetAttribute(p, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes));
    const uint32_t *from = s->from_align ? &s->from_align : &s->c.align;
    const struct { cublasLtMatmulPreferenceAttributes_t of; const uint32_t *align;
    } want[] = {{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &s->b.align},
                {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &s->a.align},
                {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, from},
                {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &s->c.align}};
    for (size_t i = 0; i < COUNT(want); i++)
        TRY_BLAS(cublasLtMatmulPreferenceSetAttribute(p, want[i].of, want[i].align, sizeof *want[i].align));
    return PL_OK;
}

/* Reports whether an algorithm reads f32 as TF32. CUBLAS_COMPUTE_32F excludes these, but an
 * environment variable can enable them. */
static bool uses_tf32(const cublasLtMatmulAlgo_t *a)
{
    uint64_t flags = 0;
    size_t written = 0;
    return cublasLtMatmulAlgoCapGetAttribute(a, CUBLASLT_ALGO_CAP_NUMERICAL_IMPL_FLAGS, &flags, sizeof flags,
                                             &written) == CUBLAS_STATUS_SUCCESS &&
           (flags & CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_TF32);
}

/* Reports whether partial sums are accumulated in the output itself; the preference excludes these
 * too. */
static bool accumulates_in_output(const cublasLtMatmulAlgo_t *a)
{
    uint32_t scheme = 0;
    size_t written = 0;
    return cublasLtMatmulAlgoConfigGetAttribute(a, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme, sizeof scheme,
                                                &written) == CUBLAS_STATUS_SUCCESS &&
           (scheme & ~(uint32_t)CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
}

/* Reports whether an algorithm can read the factors of the product and the addend from the GPU's
 * memory. */
static bool reads_factors(const cublasLtMatmulAlgo_t *a)
{
    uint32_t modes = 0;
    size_t written = 0;
    return cublasLtMatmulAlgoCapGetAttribute(a, CUBLASLT_ALGO_CAP_POINTER_MODE_MASK, &modes, sizeof modes, &written) ==
               CUBLAS_STATUS_SUCCESS &&
           (modes & CUBLASLT_POINTER_MODE_MASK_DEVICE);
}

/* Reports whether factors are never read from the GPU's memory (factor_on_gpu): a product of e4m3
 * has an addend only if its shape says so. */
static bool factors_on_host(const struct gemm_shape *s)
{
    return s->a.dtype == DT_E4M3 && (!s->from_align || s->c.dtype == DT_F32);
}

/* Reports whether a candidate may be used: it runs, fits the workspace, adds in order, rounds an
 * addend once, and reads f32 as f32. */
static bool acceptable(const cublasLtMatmulHeuristicResult_t *r, uint64_t cap, const struct gemm_shape *s)
{
    return !accumulates_in_output(&r->algo) && (factors_on_host(s) || reads_factors(&r->algo)) &&
           r->state == CUBLAS_STATUS_SUCCESS && r->workspaceSize <= cap &&
           !(s->a.dtype == DT_F32 && uses_tf32(&r->algo));
}

static int refuse(const struct gemm_shape *s, const char *what, struct error *e)
{
    return error_set(e, PL_FAIL, "cuBLASLt %s the product [%lld,%lld] by [%lld,%lld] in %s on this GPU; another "
                     "memory.precision may have one", what, (long long)s->M, (long long)s->K, (long long)s->K,
                     (long long)s->N, dtype_name(s->a.dtype));
}

/* Returns the number of parts in which an algorithm sums K. */
static uint32_t splits(const cublasLtMatmulAlgo_t *a)
{
    uint32_t n = 1;
    size_t written = 0;
    cublasLtMatmulAlgoConfigGetAttribute(a, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &n, sizeof n, &written);
    return n;
}

/* Keeps, of *n candidates, those that compute the product also with the fewest rows or terms that a
 * launch has, in the same order. */
static int keep_for_least(const struct gemm *p, const struct gemm_shape *part, uint64_t workspace,
                          cublasLtMatmulHeuristicResult_t *found, int *n, struct error *e)
{
    struct gemm least = {.blas = p->blas, .one = p->one};
    struct gemm_shape s = *part;
    cublasLtMatmulHeuristicResult_t r;
    int good = 0;
    *(s.sums ? &s.K : &s.M) = s.least;
    int rc = gemm_describe(&least, &s, e);
    for (int i = 0; i < *n && !rc; i++)
        if ((!s.sums || splits(&found[i].algo) <= 1) &&
            cublasLtMatmulAlgoCheck(p->blas, least.product, least.b, least.a, least.c, least.c, &found[i].algo, &r) ==
                CUBLAS_STATUS_SUCCESS &&
            r.workspaceSize <= workspace)
            found[good++] = found[i];
    gemm_end(&least);
    *n = good;
    return rc;
}

/* Chooses the algorithm. `part`: what is computed of the product. */
static int choose_algorithm(struct gemm *p, const struct cuda_state *s, const struct gemm_shape *part,
                            cublasLtMatmulPreference_t preference, uint64_t workspace, struct error *e)
{
    const bool timed = autotune_applies(&p->shape);
    cublasLtMatmulHeuristicResult_t found[CANDIDATES_TIMED];
    int n = 0, good = 0;
    TRY(set_preference(preference, &p->shape, workspace, e));
    cublasStatus_t rc = cublasLtMatmulAlgoGetHeuristic(p->blas, p->product, p->b, p->a, p->c, p->c, preference,
                                                       timed ? CANDIDATES_TIMED : CANDIDATES, found, &n);
    if (rc == CUBLAS_STATUS_NOT_SUPPORTED || rc == CUBLAS_STATUS_INVALID_VALUE || rc == CUBLAS_STATUS_ARCH_MISMATCH)
        n = 0;
    else if (rc != CUBLAS_STATUS_SUCCESS) return blas_failed(e, rc, "cublasLtMatmulAlgoGetHeuristic");
    for (int i = 0; i < n; i++)
        if (acceptable(&found[i], workspace, &p->shape)) found[good++] = found[i];
    if (part->least) TRY(keep_for_least(p, part, workspace, found, &good, e));
    if (!good) return refuse(&p->shape, "has no algorithm for", e);
    p->algorithm = found[0].algo;
    return good > 1 && timed ? autotune_choose(p, s, part, found, good, workspace, e) : PL_OK;
}

/* Reports whether the algorithm of the whole computes the part too: its kernel, tiles and split of
 * K, and so the order of the sums. */
static bool computes_part(const struct gemm *p, uint64_t workspace)
{
    cublasLtMatmulHeuristicResult_t r;
    return cublasLtMatmulAlgoCheck(p->blas, p->product, p->b, p->a, p->c, p->c, &p->algorithm, &r) ==
               CUBLAS_STATUS_SUCCESS &&
           r.workspaceSize <= workspace;
}

/* Describes the product with the algorithm that is chosen for `whole`, of which it is all or a
 * part. */
static int choose_for(struct gemm *p, const struct cuda_state *s, const struct gemm_shape *whole,
                      const struct gemm_shape *shape, uint64_t workspace, struct error *e)
{
    cublasLtMatmulPreference_t preference = NULL;
    p->timed = false;
    TRY(gemm_describe(p, whole, e));
    TRY_BLAS(cublasLtMatmulPreferenceCreate(&preference));
    int rc = choose_algorithm(p, s, shape, preference, workspace, e);
    cublasLtMatmulPreferenceDestroy(preference);
    return rc ? rc : gemm_describe(p, shape, e);
}

int gemm_begin(struct gemm *p, const struct cuda_state *s, const struct gemm_shape *shape, uint64_t workspace,
               struct error *e)
{
    const struct gemm_shape whole = gemm_whole(shape);
    struct gemm_shape alone = *shape;
    struct matrix_storage a, b, c;
    alone.whole_M = alone.whole_batches = 0;
    p->blas = s->blas;
    p->library = true;
    if (!gemm_library_supports(shape, &a, &b, &c) || !gemm_library_supports(&whole, &a, &b, &c))
        return refuse(shape, "does not support the layout of", e);
    TRY_CUDA(cuda_gemm_one(&p->one));
    TRY(choose_for(p, s, &whole, shape, workspace, e));
    if ((whole.M == shape->M && whole.batches == shape->batches) || computes_part(p, workspace)) return PL_OK;
    /* few rows: the bits may be others; `profile --explain` shows it */
    return choose_for(p, s, &alone, &alone, workspace, e);
}

void gemm_begin_generic(struct gemm *p, const struct gemm_shape *shape) { p->shape = *shape; }

void gemm_end(struct gemm *p)
{
    if (p->c) cublasLtMatrixLayoutDestroy(p->c);
    if (p->b) cublasLtMatrixLayoutDestroy(p->b);
    if (p->a) cublasLtMatrixLayoutDestroy(p->a);
    if (p->product) cublasLtMatmulDescDestroy(p->product);
    p->a = p->b = p->c = NULL;
    p->product = NULL;
}

void gemm_list(const struct gemm *p, struct text *out)
{
    const struct gemm_shape *s = &p->shape, whole = gemm_whole(s);
    uint32_t number[CHOICE_NUMBERS];
    if (!p->product) return;
    autotune_identify(&p->algorithm, number);
    text_printf(out, "[%lld,%lld] by [%lld,%lld]", (long long)s->M, (long long)s->K, (long long)s->K, (long long)s->N);
    if (s->batches > 1) text_printf(out, " %lld times", (long long)s->batches);
    text_printf(out, " in %s", dtype_name(s->a.dtype));
    if (whole.M != s->M || whole.batches != s->batches)
        text_printf(out, ", as of %lld rows", (long long)(whole.M * whole.batches));
    text_printf(out, ": algorithm %u, tile %u, stages %u, split-K %u, cluster %u, %s\n", number[0], number[1],
                number[2], number[3], number[8], p->timed ? "timed" : "the first proposal");
}

uint32_t gemm_align(uint64_t bytes)
{
    bytes |= ALIGN_MAX;
    return (uint32_t)(bytes & -bytes);
}

uint32_t gemm_align_operand(const struct entry *entry, int slot)
{
    const struct launch *l = &entry->launch;
    const void *data = slot < MAX_IN ? l->in[slot].data : l->out[slot - MAX_IN].data;
    return gemm_align((uintptr_t)data | (entry->move[slot].loop ? (uint64_t)entry->move[slot].advance : 0));
}

/* --- launching --------------------------------------------------------------------- */

static struct strided strided_of(const struct view *v)
{
    return (struct strided){store_of(v->dtype), v->row, v->column, v->batch};
}

static int run_generic(const struct gemm *p, const struct gemm_at *at, cudaStream_t stream, struct error *e)
{
    const struct gemm_shape *s = &p->shape;
    const struct generic_gemm own = {
        .M = s->M, .N = s->N, .K = s->K, .batches = s->batches, .a = strided_of(&s->a), .b = strided_of(&s->b),
        .c = strided_of(&s->c), .bias = s->bias ? store_of(s->bias_dtype) : STORE_F32};
    TRY_CUDA(cuda_gemm_generic(at->c, at->a, at->b, s->bias ? at->bias : NULL, at->from, &own, stream));
    return PL_OK;
}

/* Reports whether the factor of product and addend, 1, is read from the GPU's memory. If the
 * library knows on the host that it is 1, and a 16-bit addend is the result's own memory, its
 * Hopper kernels round the product first and the sum again: other bits than with an addend
 * elsewhere. */
static bool factor_on_gpu(const struct gemm *p, const struct gemm_at *at)
{
    return at->from && p->shape.c.dtype != DT_F32;
}

int gemm_run(const struct gemm *p, const struct gemm_at *at, void *work, uint64_t bytes, cudaStream_t stream,
             struct error *e)
{
    if (!p->library) return run_generic(p, at, stream, e);
    static const float host_one = 1, zero = 0;
    const bool on_gpu = factor_on_gpu(p, at);
    const cublasLtPointerMode_t mode = on_gpu ? CUBLASLT_POINTER_MODE_DEVICE : CUBLASLT_POINTER_MODE_HOST;
    const float *one = on_gpu ? p->one : &host_one;
    const void *from = at->from ? at->from : at->c;
    if (p->shape.scales) TRY(set_scales(p, at->a_scale, at->b_scale, e));
    TRY_BLAS(cublasLtMatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_POINTER_MODE, &mode, sizeof mode));
    if (p->shape.bias) /* its address may advance with a loop */
        TRY_BLAS(
            cublasLtMatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &at->bias, sizeof at->bias));
    TRY_BLAS(cublasLtMatmul(p->blas, p->product, one, at->b, p->b, at->a, p->a, at->from ? one : &zero, from, p->c,
                            at->c, p->c, &p->algorithm, work, bytes, stream));
    return PL_OK;
}
