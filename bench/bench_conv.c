/*
 * bench_conv.c: convolutions as a share of the machine's peak of fused multiply-adds.
 *
 *     bench_conv [name-filter]
 *
 * One line per shape and op: GFLOP/s on one and two threads, as a share of the peak, and the
 * workspace. Depthwise shapes are bound by memory bandwidth, so GB/s are printed too, with each map
 * read or written once. Each figure is the best of several runs, because other programs on a shared
 * machine only ever add time.
 */
#pragma GCC optimize("fp-contract=fast")

#include <omp.h>
#include <sys/mman.h>

#include "cpu/cpu.h"
#include "graph/ops.h"

static const char *filter = "";

/* --- memory ------------------------------------------------------------------------------- */

static uint64_t pages(uint64_t bytes) { return align_up(bytes + 64, 2u << 20); }

/* Zeroed memory on huge pages, like the arena. */
static void *bytes_new(uint64_t bytes)
{
    char *at = mmap(NULL, pages(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED, "no memory for %llu bytes", (unsigned long long)bytes);
    madvise(at, pages(bytes), MADV_HUGEPAGE);
    memset(at, 0, pages(bytes));
    return at;
}

/* Small numbers of both signs. The values do not change the time; denormals would. */
static void fill(struct operand *x)
{
    uint32_t state = 1;
    for (int64_t i = 0; i < operand_elements(x); i++) {
        state = state * 1664525u + 1013904223u;
        float value = (float)(int32_t)state * 0x1p-31f;
        if (x->dtype == DT_F32) ((float *)x->data)[i] = value;
        else ((uint16_t *)x->data)[i] = f32_to_bf16(value);
    }
}

/* --- one op ----------------------------------------------------------------------------------- */

/* in[0], in[1] -> out; the node is built as a plan would build it. */
struct bench {
    enum op op;
    union attr attr;
    struct tensor in[2], out;
};

static struct operand operand_new(const struct tensor *t)
{
    struct operand x = {.data = bytes_new(tensor_bytes(t)), .dtype = t->dtype, .rank = t->rank};
    memcpy(x.dim, t->dim, sizeof x.dim);
    memcpy(x.stride, t->stride, sizeof x.stride);
    fill(&x);
    return x;
}

/* The best seconds on `threads` threads; *work: bytes of workspace. */
static double bench_time(const struct bench *b, struct launch *l, int threads, uint64_t *work)
{
    const struct profile profile = {.kind = DEVICE_CPU, .threads = threads};
    const struct query q =
        {.attr = &b->attr, .in = {&b->in[0], &b->in[1]}, .out = {&b->out}, .nin = 2, .nout = 1, .profile = &profile};
    const struct kernel *k = kernel_find(DEVICE_CPU, b->op, &q);
    l->threads = threads;
    *work = l->work_bytes = k->workspace ? k->workspace(&q) : 0;
    l->work = bytes_new(l->work_bytes);
    double best = 1e30, begin = clock_seconds();
    for (int r = 0; r < 3 || (r < 200 && clock_seconds() - begin < 0.4); r++) {
        double start = clock_seconds();
        k->run(l);
        double t = clock_seconds() - start;
        if (t < best) best = t;
    }
    munmap(l->work, pages(l->work_bytes));
    return best;
}

static void bench_print(const char *name, const struct bench *b)
{
    static double peak[3];
    const struct tensor *const in[MAX_IN] = {&b->in[0], &b->in[1]}, *const out[MAX_OUT] = {&b->out};
    const struct cost cost = op_table[b->op].cost(in, out, &b->attr);
    struct launch l = {.attr = &b->attr, .nin = 2, .nout = 1};
    for (int i = 0; i < 2; i++) l.in[i] = operand_new(&b->in[i]);
    l.out[0] = operand_new(&b->out);
    uint64_t work = 0;
    double seconds = 0;
    printf("%-46s %-3s", name, b->op == OP_CONV ? "y" : b->op == OP_CONV_DX ? "dx" : "dw");
    for (int threads = 1; threads <= 2; threads++) {
        if (!peak[threads]) peak[threads] = peak_measure(DT_F32, threads);
        seconds = bench_time(b, &l, threads, &work);
        printf("  %7.1f %3.0f%%", cost.flops / seconds * 1e-9, 100 * cost.flops / seconds / peak[threads]);
    }
    printf("  %8.2f  %6.1f  %6.1f\n", seconds * 1e3, cost.bytes / seconds * 1e-9, (double)work / (1 << 20));
    fflush(stdout);
    for (int i = 0; i < 2; i++) munmap(l.in[i].data, pages(tensor_bytes(&b->in[i])));
    munmap(l.out[0].data, pages(tensor_bytes(&b->out)));
}

/* --- shapes ----------------------------------------------------------------------------------- */

struct shape {
    const char *what;
    int64_t H, C, O;  /* a square map of one image */
    int k, stride, pad;
    bool depthwise, transposed;
};

static struct tensor tensor_new(enum dtype t, int64_t a, int64_t b, int64_t c, int64_t d)
{
    struct tensor x = {.dtype = (uint8_t)t, .rank = 4, .dim = {a, b, c, d}};
    tensor_dense_strides(&x);
    return x;
}

/* The forward and both gradients. For a transposed convolution H and C are those of its input. */
static void bench_shape(const struct shape *s, enum dtype t)
{
    char name[96];
    int64_t H2 = (s->H + 2 * s->pad - s->k) / s->stride + 1, H = s->H, C = s->C, O = s->O;
    if (s->transposed) H2 = s->H, H = (s->H - 1) * s->stride - 2 * s->pad + s->k, C = s->O, O = s->C;
    snprintf(name, sizeof name, "%s %dx%d/%d %lldx%lldx%lld->%lld %s", s->what, s->k, s->k, s->stride, (long long)s->H,
             (long long)s->H, (long long)s->C, (long long)s->O, dtype_name(t));
    if (!strstr(name, filter)) return;
    const struct tensor x = tensor_new(t, 1, H, H, C), y = tensor_new(t, 1, H2, H2, O);
    const struct tensor w = tensor_new(t, O, s->depthwise ? 1 : C, s->k, s->k);
    struct tensor dw = w;
    dw.dtype = DT_F32;
    const union attr attr = {.conv = {.stride = s->stride, .pad = s->pad, .groups = s->depthwise ? (int32_t)C : 1,
                                      .kh = s->k, .kw = s->k, .H = H, .W = H}};
    bench_print(name, &(struct bench){OP_CONV, attr, {x, w}, y});
    bench_print(name, &(struct bench){OP_CONV_DX, attr, {y, w}, x});
    bench_print(name, &(struct bench){OP_CONV_DW, attr, {y, x}, dw});
}

int main(int argc, char **argv)
{
    static const struct shape SHAPES[] = {
        {"patch", 1024, 3, 768, 16, 16, 0, false, false},
        {"neck 1x1", 64, 768, 256, 1, 1, 0, false, false},
        {"neck 3x3", 64, 256, 256, 3, 1, 1, false, false},
        {"stem 1", 1024, 3, 32, 3, 2, 1, false, false},
        {"stem 2", 512, 32, 64, 3, 2, 1, false, false},
        {"expand", 256, 64, 256, 1, 1, 0, false, false},
        {"depthwise", 256, 256, 256, 3, 1, 1, true, false},
        {"depthwise", 256, 256, 256, 3, 2, 1, true, false},
        {"transposed", 64, 256, 64, 2, 2, 0, false, true},
        {"transposed", 128, 64, 32, 2, 2, 0, false, true},
        {"transposed", 64, 256, 256, 4, 2, 1, false, true},
    };
    if (argc > 1) filter = argv[1];
    printf("peak %.1f GFLOP/s on 1 thread, %.1f on 2\n", peak_measure(DT_F32, 1) * 1e-9,
           peak_measure(DT_F32, 2) * 1e-9);
    printf("%-50s  %12s  %12s  %8s  %6s  %6s\n", "convolution", "1 thread", "2 threads", "ms", "GB/s", "MiB");
    for (enum dtype t = DT_F32; t <= DT_BF16; t++)
        for (size_t i = 0; i < COUNT(SHAPES); i++) bench_shape(&SHAPES[i], t);
    return 0;
}
