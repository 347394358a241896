/*
 * candidates.c: what choosing cuBLASLt's algorithms by timing would gain over its first proposal.
 *
 *     cc -O2 -I$CUDA_HOME/include bench/candidates.c -L$CUDA_HOME/lib64 -lcublasLt -lcudart -o build/candidates
 *     build/candidates [workspace MiB]
 *
 * For the products of SAM's encoders (B = 4) and of a 1.1 B language model (8 x 2048), forward and both
 * gradients, in bf16 with the preferences of src/cuda/product.c: the time of the first candidate, of the
 * fastest, and which one that is. The last line sums up, each product counted once a layer.
 */
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { CANDIDATES = 8, REPEATS = 20 };

#define MUST(call)                                                           \
    do {                                                                     \
        int rc_ = (int)(call);                                               \
        if (rc_) printf("%s: error %d\n", #call, rc_), exit(1);              \
    } while (0)

static cublasLtHandle_t blas;
static void *a, *b, *c, *work;
static uint64_t cap = 32u << 20;
static double total_first, total_best;

/* Row-major c [M,N] = op(a) op(b); `wide`: c is f32. Column-major it is c' = op(b') op(a'). */
struct product {
    const char *name;
    int64_t M, N, K;
    int ta, tb, wide;
};

static cublasLtMatrixLayout_t matrix(cudaDataType_t type, int64_t rows, int64_t columns, int turned)
{
    cublasLtMatrixLayout_t m;
    const int64_t R = turned ? columns : rows, C = turned ? rows : columns;
    MUST(cublasLtMatrixLayoutCreate(&m, type, (uint64_t)C, (uint64_t)R, C));
    return m;
}

static cublasLtMatmulPreference_t preference(void)
{
    cublasLtMatmulPreference_t p;
    const uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    MUST(cublasLtMatmulPreferenceCreate(&p));
    MUST(cublasLtMatmulPreferenceSetAttribute(p, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &cap, sizeof cap));
    MUST(cublasLtMatmulPreferenceSetAttribute(p, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes));
    return p;
}

/* Milliseconds of a launch, the best of three rounds. */
static float timed(cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t A, cublasLtMatrixLayout_t B, cublasLtMatrixLayout_t C,
                   const cublasLtMatmulAlgo_t *algorithm)
{
    const float one = 1, zero = 0;
    float best = 1e9f, ms;
    cudaEvent_t from, to;
    MUST(cudaEventCreate(&from));
    MUST(cudaEventCreate(&to));
    for (int round = 0; round < 4; round++) { /* the first is not counted */
        MUST(cudaEventRecord(from, 0));
        for (int i = 0; i < REPEATS; i++) MUST(cublasLtMatmul(blas, d, &one, b, B, a, A, &zero, c, C, c, C, algorithm, work, cap, 0));
        MUST(cudaEventRecord(to, 0));
        MUST(cudaEventSynchronize(to));
        MUST(cudaEventElapsedTime(&ms, from, to));
        if (round && ms / REPEATS < best) best = ms / REPEATS;
    }
    cudaEventDestroy(from);
    cudaEventDestroy(to);
    return best;
}

static void measure(const struct product *p)
{
    const cublasOperation_t first = p->tb ? CUBLAS_OP_T : CUBLAS_OP_N, second = p->ta ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    cublasLtMatmulDesc_t d;
    int n = 0, best = 0;
    float ms[CANDIDATES];
    MUST(cublasLtMatmulDescCreate(&d, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    MUST(cublasLtMatmulDescSetAttribute(d, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first));
    MUST(cublasLtMatmulDescSetAttribute(d, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second));
    cublasLtMatrixLayout_t A = matrix(CUDA_R_16BF, p->M, p->K, p->ta), B = matrix(CUDA_R_16BF, p->K, p->N, p->tb);
    cublasLtMatrixLayout_t C = matrix(p->wide ? CUDA_R_32F : CUDA_R_16BF, p->M, p->N, 0);
    cublasLtMatmulPreference_t like = preference();
    MUST(cublasLtMatmulAlgoGetHeuristic(blas, d, B, A, C, C, like, CANDIDATES, found, &n));
    for (int i = 0; i < n; i++) {
        ms[i] = timed(d, A, B, C, &found[i].algo);
        if (ms[i] < ms[best]) best = i;
    }
    if (n) {
        printf("%-22s %6lld %6lld %6lld  first %8.4f ms %6.0f TFLOP/s   fastest %8.4f ms (%d of %d)  %5.1f %%\n", p->name, (long long)p->M,
               (long long)p->N, (long long)p->K, ms[0], 2e-9 * (double)p->M * (double)p->N * (double)p->K / ms[0], ms[best], best + 1, n,
               100 * (1 - ms[best] / ms[0]));
        total_first += ms[0];
        total_best += ms[best];
    }
    cublasLtMatmulPreferenceDestroy(like);
    cublasLtMatrixLayoutDestroy(A);
    cublasLtMatrixLayoutDestroy(B);
    cublasLtMatrixLayoutDestroy(C);
    cublasLtMatmulDescDestroy(d);
}

/* A layer [rows,K] -> [rows,N] and its gradients. */
static void layer(const char *name, int64_t rows, int64_t N, int64_t K)
{
    char text[3][64];
    snprintf(text[0], sizeof text[0], "%s", name);
    snprintf(text[1], sizeof text[1], "%s dx", name);
    snprintf(text[2], sizeof text[2], "%s dw", name);
    measure(&(struct product){text[0], rows, N, K, 0, 1, 0});
    measure(&(struct product){text[1], rows, K, N, 0, 0, 0});
    measure(&(struct product){text[2], N, K, rows, 1, 0, 1});
}

/* Random bf16 of magnitude around 1, the same block again and again. */
static void fill(void *to, size_t bytes)
{
    enum { BLOCK = 4 << 20 };
    static uint16_t x[BLOCK / 2];
    for (size_t i = 0; i < BLOCK / 2; i++) x[i] = (uint16_t)((rand() & 0x807f) | (0x3f00 + (rand() & 0x80)));
    for (size_t at = 0; at < bytes; at += BLOCK) MUST(cudaMemcpy((char *)to + at, x, BLOCK, cudaMemcpyHostToDevice));
}

int main(int argc, char **argv)
{
    const size_t room = (size_t)512 << 20;
    if (argc > 1) cap = (uint64_t)atoi(argv[1]) << 20;
    MUST(cublasLtCreate(&blas));
    MUST(cudaMalloc(&a, room));
    MUST(cudaMalloc(&b, room));
    MUST(cudaMalloc(&c, room));
    MUST(cudaMalloc(&work, cap ? cap : 1));
    fill(a, room);
    fill(b, room);
    layer("vit-b qkv, windows", 19600, 2304, 768);
    layer("vit-b proj, windows", 19600, 768, 768);
    layer("vit-b mlp up", 16384, 3072, 768);
    layer("vit-b mlp down", 16384, 768, 3072);
    layer("vit-h qkv, windows", 19600, 3840, 1280);
    layer("vit-h proj, windows", 19600, 1280, 1280);
    layer("vit-h mlp up", 16384, 5120, 1280);
    layer("vit-h mlp down", 16384, 1280, 5120);
    layer("lm q", 16384, 2048, 2048);
    layer("lm mlp up", 16384, 5632, 2048);
    layer("lm mlp down", 16384, 2048, 5632);
    printf("all: first %.3f ms, fastest %.3f ms: %.1f %%\n", total_first, total_best, 100 * (1 - total_best / total_first));
    return 0;
}
