/*
 * bench_gemm.c: matrix products and attention as a share of the machine's peak.
 *
 *     bench_gemm [--small-pages] [--threads N] [name-filter]
 *
 * The peak is measured: a loop of independent fused multiply-adds in registers, or of the bf16
 * instruction for bf16 operands, on the same number of threads. Each line is the best of several
 * runs, because other programs on a shared machine only ever add time. Memory is on huge pages,
 * like the arena, unless --small-pages is given. Where oneDNN has a kernel for a product, a second
 * line has its time.
 */
#pragma GCC optimize("fp-contract=fast")

#include <omp.h>
#include <sys/mman.h>

#include "cpu/cpu.h"
#include "cpu/products/micro.h"
#include "cpu/products/micro_bf16.h"
#include "cpu/products/onednn.h"
#include "graph/ops.h"

static bool small_pages;
static int many = 2; /* threads of the second column */
static const char *filter = "";

/* --- memory --------------------------------------------------------------------------- */

/* Zeroed memory whose pages are present; never freed. */
static void *bytes_new(uint64_t bytes)
{
    const uint64_t large = 2u << 20;
    bytes = align_up(bytes + 64, large);
    char *at = mmap(NULL, bytes + large, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED, "no memory for %llu bytes", (unsigned long long)bytes);
    at = (char *)align_up((uint64_t)at, large);
    madvise(at, bytes, small_pages ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
    memset(at, 0, bytes);
    return at;
}

static struct tensor tensor_new(enum dtype t, int rank, const int64_t *dim)
{
    struct tensor x = {.dtype = (uint8_t)t, .rank = (uint8_t)rank};
    memcpy(x.dim, dim, (size_t)rank * sizeof *dim);
    tensor_dense_strides(&x);
    return x;
}

/* Small numbers of both signs. The values do not change the time; denormals would. */
static struct operand operand_new(const struct tensor *t)
{
    struct operand x = {.dtype = t->dtype, .rank = t->rank};
    memcpy(x.dim, t->dim, sizeof x.dim);
    memcpy(x.stride, t->stride, sizeof x.stride);
    x.data = bytes_new(tensor_bytes(t));
    uint32_t state = 1;
    for (int64_t i = 0, n = tensor_elements(t); i < n; i++) {
        state = state * 1664525u + 1013904223u;
        float value = (float)(int32_t)state * 0x1p-31f;
        if (x.dtype == DT_F32) ((float *)x.data)[i] = value;
        else ((uint16_t *)x.data)[i] = f32_to_bf16(value);
    }
    return x;
}

/* --- cases ------------------------------------------------------------------------------------ */

struct bench {
    struct query q;
    struct tensor in[MAX_IN], out[MAX_OUT];
    struct launch l;
    union attr attr;
    struct profile profile;
};

/* The best seconds of a kernel over a minimum number of runs and a minimum time. */
static double bench_time(struct bench *b, const struct kernel *k, int threads)
{
    b->profile.threads = b->l.threads = threads;
    b->q.attr = b->l.attr = &b->attr;
    b->q.profile = &b->profile;
    for (int i = 0; i < b->q.nin; i++) b->q.in[i] = b->l.in[i].data ? &b->in[i] : NULL;
    for (int i = 0; i < b->q.nout; i++) b->q.out[i] = &b->out[i];
    b->l.nin = b->q.nin, b->l.nout = b->q.nout;
    CHECK(k->match(&b->q));
    b->l.work_bytes = k->workspace(&b->q);
    b->l.work = bytes_new(b->l.work_bytes);
    struct error e;
    CHECK(onednn_prepare(k, &b->l, &e) == PL_OK, "%s", e.text);
    double best = 1e30, begin = clock_seconds();
    for (int r = 0; r < 3 || (r < 200 && clock_seconds() - begin < 0.4); r++) {
        double start = clock_seconds();
        k->run(&b->l);
        double t = clock_seconds() - start;
        if (t < best) best = t;
    }
    onednn_release(k, &b->l);
    munmap(b->l.work, align_up(b->l.work_bytes + 64, 2u << 20));
    return best;
}

static void bench_print(const char *name, double flops, struct bench *b, const struct kernel *k)
{
    static double peaks[2][2];
    enum dtype t = b->in[0].dtype;
    double *peak = peaks[t == DT_BF16];
    printf("%-44s", name);
    for (int column = 0; column < 2; column++) {
        int threads = column ? many : 1;
        if (!peak[column]) peak[column] = peak_measure(t, threads);
        double rate = flops / bench_time(b, k, threads);
        printf("  %7.1f %4.0f%%", rate * 1e-9, 100 * rate / peak[column]);
    }
    printf("  %6.1f\n", (double)b->l.work_bytes / (1 << 20));
    fflush(stdout);
}

/* a times b, each transposed or not; LINEAR has tb. */
static void bench_product(int64_t M, int64_t N, int64_t K, bool ta, bool tb, enum dtype t, enum dtype out)
{
    char name[96];
    snprintf(name, sizeof name, "%s%s %lld x %lld x %lld %s -> %s", ta ? "T" : "N", tb ? "T" : "N", (long long)M,
             (long long)N, (long long)K, dtype_name(t), dtype_name(out));
    if (!strstr(name, filter)) return;
    struct bench b = {.q = {.nin = 2, .nout = 1}};
    b.profile.onednn = true;
    b.attr.matmul.ta = ta, b.attr.matmul.tb = tb, b.attr.matmul.dtype = (uint8_t)out;
    b.in[0] = tensor_new(t, 2, ta ? (int64_t[]){K, M} : (int64_t[]){M, K});
    b.in[1] = tensor_new(t, 2, tb ? (int64_t[]){N, K} : (int64_t[]){K, N});
    b.out[0] = tensor_new(out, 2, (int64_t[]){M, N});
    for (int i = 0; i < 2; i++) b.l.in[i] = operand_new(&b.in[i]);
    b.l.out[0] = operand_new(&b.out[0]);
    bench_print(name, 2.0 * (double)M * (double)N * (double)K, &b, cpu_kernel_named(OP_MATMUL, "cpu_matmul"));
    if (onednn_matmul_match(&b.q)) {
        snprintf(name, sizeof name, "  oneDNN %s", onednn_implementation(&b.q, false));
        bench_print(name, 2.0 * (double)M * (double)N * (double)K, &b, cpu_kernel_named(OP_MATMUL, "onednn_matmul"));
    }
    for (int i = 0; i < 2; i++) munmap(b.l.in[i].data, align_up(tensor_bytes(&b.in[i]) + 64, 2u << 20));
    munmap(b.l.out[0].data, align_up(tensor_bytes(&b.out[0]) + 64, 2u << 20));
}

/* Makes the ranges of `documents` causal documents of one length. */
static struct operand documents_new(const struct tensor *t, int64_t documents)
{
    struct operand x = {.dtype = DT_I32, .rank = 3, .data = bytes_new(tensor_bytes(t))};
    memcpy(x.dim, t->dim, sizeof x.dim);
    memcpy(x.stride, t->stride, sizeof x.stride);
    int32_t (*range)[2] = x.data;
    const int64_t T = t->dim[1], length = T / documents;
    for (int64_t i = 0; i < t->dim[0] * T; i++)
        range[i][0] = (int32_t)(i % T / length * length), range[i][1] = (int32_t)(i % T) + 1;
    return x;
}

/* With a causal mask only the useful half of the FLOPs counts; with documents (0: none), that of
 * each. */
static void bench_attention(int64_t B, int64_t T, int64_t H, int64_t G, int64_t D, bool causal, int64_t documents,
                            enum dtype t)
{
    char name[96];
    int n = snprintf(name, sizeof name, "attention B%lld T%lld H%lld/%lld D%lld%s %s", (long long)B, (long long)T,
                     (long long)H, (long long)G, (long long)D, causal && !documents ? " causal" : "", dtype_name(t));
    if (documents) snprintf(name + n, sizeof name - (size_t)n, " %lld docs", (long long)documents);
    if (!strstr(name, filter)) return;
    struct bench f = {.q = {.nin = 3, .nout = 2}}, b = {.q = {.nin = 6, .nout = 3}};
    struct tensor q = tensor_new(t, 4, (int64_t[]){B, T, H, D}), k = tensor_new(t, 4, (int64_t[]){B, T, G, D});
    struct tensor lse = tensor_new(DT_F32, 3, (int64_t[]){B, H, T});
    f.attr.attention.scale = b.attr.attention.scale = 0.125f;
    f.attr.attention.causal = b.attr.attention.causal = causal && !documents;
    f.in[0] = q, f.in[1] = f.in[2] = k, f.out[0] = q, f.out[1] = lse;
    for (int i = 0; i < 3; i++) f.l.in[i] = operand_new(&f.in[i]);
    for (int i = 0; i < 2; i++) f.l.out[i] = operand_new(&f.out[i]);
    b.in[0] = b.in[1] = b.in[4] = q, b.in[2] = b.in[3] = k, b.in[5] = lse;
    b.out[0] = q, b.out[1] = b.out[2] = k;
    b.l.in[0] = operand_new(&q), b.l.in[1] = f.l.in[0], b.l.in[2] = f.l.in[1], b.l.in[3] = f.l.in[2];
    b.l.in[4] = f.l.out[0], b.l.in[5] = f.l.out[1];
    for (int i = 0; i < 3; i++) b.l.out[i] = operand_new(&b.out[i]);
    if (documents) {
        f.q.nin = 5, b.q.nin = 8;
        f.in[4] = b.in[7] = tensor_new(DT_I32, 3, (int64_t[]){B, T, 2});
        f.l.in[4] = b.l.in[7] = documents_new(&f.in[4], documents);
    }
    const double rows = documents ? (double)documents : 1, length = (double)T / rows;
    double pairs = (double)(B * H) * rows * (causal ? 0.5 * length * (length + 1) : length * length);
    bench_print(name, pairs * (double)D * 4, &f, cpu_kernel_named(OP_ATTENTION, "cpu_attention"));
    bench_print("  backward", pairs * (double)D * 10, &b, cpu_kernel_named(OP_ATTENTION_BWD, "cpu_attention_bwd"));
}

static void bench_products(enum dtype t)
{
    static const int64_t squares[] = {64, 128, 256, 512, 1024, 2048};
    for (size_t i = 0; i < COUNT(squares); i++) bench_product(squares[i], squares[i], squares[i], false, true, t, t);
    bench_product(1024, 1024, 1024, false, false, t, t);
    bench_product(1024, 1024, 1024, true, false, t, t);
    static const int64_t rows[] = {1, 2, 4, 8, 16, 32, 64};
    for (size_t i = 0; i < COUNT(rows); i++) bench_product(rows[i], 2048, 2048, false, true, t, t);
    bench_product(8, 2048, 2048, false, false, t, t);
    /* A transformer's layers: forward, and both gradients of one of them. */
    static const int64_t layers[][2] = {{768, 768}, {3072, 768}, {768, 3072}};
    for (int64_t M = 64; M <= 1024; M *= 16)
        for (size_t i = 0; i < COUNT(layers); i++) bench_product(M, layers[i][0], layers[i][1], false, true, t, t);
    bench_product(1024, 768, 3072, false, false, t, t);
    bench_product(3072, 768, 1024, true, false, t, DT_F32);
    bench_product(512, 512, 64, false, true, t, t);
    bench_product(512, 32000, 64, false, true, t, t);
    bench_product(256, 32000, 576, false, true, t, t);
    bench_product(512, 576, 1536, false, true, t, t);
    bench_product(4096, 1024, 512, true, false, t, DT_F32);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--small-pages")) small_pages = true;
        else if (!strcmp(argv[i], "--threads") && i + 1 < argc) many = atoi(argv[++i]);
        else filter = argv[i];
    }
    printf("inner loops: %s, tile %d x %d; peak %.1f GFLOP/s on 1 thread, %.1f on %d\n", micro_best()->name,
           micro_best()->mr, micro_best()->nr, peak_measure(DT_F32, 1) * 1e-9, peak_measure(DT_F32, many) * 1e-9, many);
    const struct micro_bf16 *h = micro_bf16_best();
    if (h) printf("of bf16: %s, tile %d x %d; peak %.1f GFLOP/s on 1 thread, %.1f on %d\n", h->name, h->mr, h->nr,
                  peak_measure(DT_BF16, 1) * 1e-9, peak_measure(DT_BF16, many) * 1e-9, many);
    printf("%-44s  %13s  %13s  %6s\n", "op, M x N x K", "1 thread", many == 2 ? "2 threads" : "many threads", "MiB");
    bench_products(DT_F32);
    bench_products(DT_BF16);
    for (enum dtype t = DT_F32; t <= DT_BF16; t++) {
        bench_attention(2, 512, 12, 12, 64, true, 0, t);
        bench_attention(2, 512, 12, 12, 64, false, 0, t);
        bench_attention(1, 2048, 9, 3, 64, true, 0, t);
        bench_attention(1, 2048, 9, 3, 64, true, 1, t);
        bench_attention(1, 2048, 9, 3, 64, true, 4, t);
        bench_attention(1, 512, 8, 8, 128, true, 0, t);
    }
    return 0;
}
