/*
 * bench_ops.c: every row of ops.def at the bench size of its test case, as a share of the machine's
 * ceiling.
 *
 *     bench_ops [name-filter]
 *
 * One line per row, dtype and thread count. Milliseconds are the best of several runs, because
 * other programs on a shared machine only ever add time. GFLOP/s and GB/s follow from the row's
 * cost rule (each operand moved once). The share of the ceiling is the machine's least time divided
 * by the measured time. The least time is that of the arithmetic at the peak of fused
 * multiply-adds, or that of the bytes at the rate of a plain a = b + c over as many bytes,
 * whichever is longer.
 *
 * The case builds a graph that contains the row, as in the tests. The graph is planned and run
 * once, so that all operands have values; then only the row's own kernels are timed.
 */
#pragma GCC optimize("fp-contract=fast")

#include <omp.h>
#include <sys/mman.h>

#include "opcases.h"
#include "cpu/cpu.h"

enum { STREAMS = 6 };

/* The machine's peak rates with `threads` threads. */
struct ceiling {
    int threads;
    double flops[2];      /* f32, bf16 */
    double stream[STREAMS]; /* bytes per second, on 256 KiB x 4^i of them */
};

static uint64_t stream_bytes(int i) { return (uint64_t)(256 << 10) << (2 * i); }

static size_t pages(int64_t n) { return align_up((uint64_t)n * sizeof(float), 2u << 20); }

/* Memory on huge pages, like the arena, with all pages present. */
static float *floats_new(int64_t n)
{
    float *at = mmap(NULL, pages(n), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED, "no memory for %lld floats", (long long)n);
    madvise(at, pages(n), MADV_HUGEPAGE);
    for (int64_t i = 0; i < n; i++) at[i] = 1;
    return at;
}

/* The rate of a = b + c, best of several runs; each array has a third of the bytes. */
static double stream_measure(uint64_t bytes, int threads)
{
    const int64_t n = (int64_t)(bytes / 3 / sizeof(float));
    float *a = floats_new(n), *b = floats_new(n), *c = floats_new(n);
    double best = 0, begin = clock_seconds();
    for (int r = 0; r < 3 || (r < 200 && clock_seconds() - begin < 0.1); r++) {
        double start = clock_seconds();
#pragma omp parallel for simd num_threads(threads) schedule(static)
        for (int64_t i = 0; i < n; i++) a[i] = b[i] + c[i];
        double rate = (double)bytes / (clock_seconds() - start);
        if (rate > best) best = rate;
        __asm__ volatile("" : : "r"(a) : "memory");
    }
    munmap(a, pages(n));
    munmap(b, pages(n));
    munmap(c, pages(n));
    return best;
}

static struct ceiling ceiling_measure(int threads)
{
    struct ceiling c = {.threads = threads, .flops = {peak_measure(DT_F32, threads), peak_measure(DT_BF16, threads)}};
    printf("%d thread%s: %.1f GFLOP/s in f32, %.1f in bf16;", threads, threads > 1 ? "s" : "", c.flops[0] * 1e-9,
           c.flops[1] * 1e-9);
    for (int i = 0; i < STREAMS; i++) {
        c.stream[i] = stream_measure(stream_bytes(i), threads);
        printf("%s %.1f GB/s on %llu KiB", i ? "," : "", c.stream[i] * 1e-9,
               (unsigned long long)(stream_bytes(i) >> 10));
    }
    printf("\n");
    return c;
}

/* The least time that these operations and bytes need. */
static double ceiling_seconds(const struct ceiling *c, enum dtype f, struct cost cost)
{
    int i = 0;
    while (i < STREAMS - 1 && (double)stream_bytes(i) < cost.bytes) i++;
    return fmax(cost.flops / c->flops[f == DT_BF16], cost.bytes / c->stream[i]);
}

/* Best seconds of one launch. */
static double time_launch(const struct entry *x)
{
    double best = 1e30, begin = clock_seconds();
    for (int r = 0; r < 3 || (r < 500 && clock_seconds() - begin < 0.05); r++) {
        double start = clock_seconds();
        x->kernel->run(&x->launch);
        double t = clock_seconds() - start;
        if (t < best) best = t;
    }
    return best;
}

/* Times all of the row's nodes in its graph together. */
static void bench_row(const struct row *row, enum dtype f, const struct ceiling *c)
{
    struct scene s = scene_of(row, row->c->bench, f, true);
    struct rig r = {.graph = s.g};
    struct cost sum = {0, 0};
    double seconds = 0;
    const char *kernel = "";
    rig_open_on(&r, DEVICE_CPU, c->threads);
    r.tape.poison = false;
    rig_run(&r);
    for (uint32_t e = 0; e < r.tape.program[PROGRAM_STEP].n; e++) {
        const struct entry *x = &r.tape.program[PROGRAM_STEP].at[e];
        if (node_at(&r.graph, x->node)->op != row->op) continue;
        struct query q;
        query_fill(&q, &r.graph, node_at(&r.graph, x->node), &r.device.profile);
        struct cost cost = op_table[row->op].cost(q.in, q.out, q.attr);
        sum = (struct cost){sum.flops + cost.flops, sum.bytes + cost.bytes};
        seconds += time_launch(x);
        kernel = x->kernel->name;
    }
    rig_close(&r);
    CHECK(seconds > 0, "the graph of the case of %s has no such node", op_table[row->op].name);
    printf("%-21s %-4s %2d  %9.3f  %8.1f  %7.1f  %4.0f%%  %s\n", op_table[row->op].name, dtype_name(f), c->threads,
           seconds * 1e3, sum.flops / seconds * 1e-9, sum.bytes / seconds * 1e-9,
           100 * ceiling_seconds(c, f, sum) / seconds, kernel);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    const char *filter = argc > 1 ? argv[1] : "";
    const int all = omp_get_max_threads();
    struct ceiling ceilings[2];
    int n = 0;
    seed_begin();
    ceilings[n++] = ceiling_measure(1);
    if (all > 1) ceilings[n++] = ceiling_measure(all);
    printf("%-21s %-4s %2s  %9s  %8s  %7s  %5s  %s\n", "op", "", "th", "ms", "GFLOP/s", "GB/s", "share", "kernel");
    for (size_t i = 1; i < COUNT(rows); i++) {
        if (op_table[i].flags & OPF_VIEW || !strcasestr(op_table[i].name, filter)) continue;
        CHECK(rows[i].c->bench[0], "the case of %s has no bench size", op_table[i].name);
        for (enum dtype f = DT_F32; f <= DT_BF16; f++)
            for (int c = 0; c < n; c++) bench_row(&rows[i], f, &ceilings[c]);
    }
    return 0;
}
