/*
 * bench_grid.c: the cost of positions on a grid: ATTENTION_REL and ATTENTION_BIAS relative to
 * ATTENTION at the sizes of SAM's and TinyViT's encoders, forward and backward.
 *
 *     build/bench/bench_grid [name-filter]
 *
 * One thread; CPU time of that thread; the kernels interleaved, the best of each: so the ratios are
 * reliable on a shared machine too.
 */
#include <time.h>

#include "cpu/cpu.h"
#include "graph/ops.h"

enum { ROUNDS = 7, KINDS = 3 };

static double own_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

struct timed {
    struct query q;
    struct launch l;
    struct tensor in[MAX_IN], out[MAX_OUT];
    union attr attr;
    struct profile profile;
    const struct kernel *kernel;
};

static struct tensor dense(enum dtype t, int rank, const int64_t *dim)
{
    struct tensor x = {.dtype = (uint8_t)t, .rank = (uint8_t)rank};
    int64_t stride = 1;
    for (int i = rank - 1; i >= 0; stride *= dim[i], i--) x.dim[i] = dim[i], x.stride[i] = stride;
    return x;
}

static struct operand filled(const struct tensor *t)
{
    static uint64_t state = 88172645463325252u;
    struct operand x = {.dtype = t->dtype, .rank = t->rank,
                        .data = aligned_alloc(64, align_up(tensor_bytes(t) + 64, 64))};
    memcpy(x.dim, t->dim, sizeof x.dim);
    memcpy(x.stride, t->stride, sizeof x.stride);
    for (int64_t i = 0; i < tensor_elements(t); i++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        dtype_store(x.data, x.dtype, i, (double)(state >> 40) * 0x1p-23 - 1);
    }
    return x;
}

static void timed_ready(struct timed *n, enum op op, const char *name, int nin, int nout)
{
    n->kernel = cpu_kernel_named(op, name);
    n->profile.threads = n->l.threads = 1;
    n->q.profile = &n->profile;
    n->q.attr = n->l.attr = &n->attr;
    n->q.nin = n->l.nin = nin, n->q.nout = n->l.nout = nout;
    for (int i = 0; i < nin; i++) n->q.in[i] = &n->in[i];
    for (int i = 0; i < nout; i++) n->q.out[i] = &n->out[i];
    CHECK(n->kernel->match(&n->q), "%s does not take this", name);
    n->l.work_bytes = n->kernel->workspace(&n->q);
    n->l.work = aligned_alloc(64, align_up(n->l.work_bytes + 64, 64));
}

/* kind 0: ATTENTION, 1: ATTENTION_REL (tables), 2: ATTENTION_BIAS. */
static void case_nodes(struct timed *f, struct timed *b, int kind, int64_t B, int64_t side, int64_t H, int64_t D,
                       enum dtype t)
{
    static const struct { enum op op[2]; const char *name[2]; int tables; } kinds[KINDS] = {
        {{OP_ATTENTION, OP_ATTENTION_BWD}, {"cpu_attention", "cpu_attention_bwd"}, 0},
        {{OP_ATTENTION_REL, OP_ATTENTION_REL_BWD}, {"cpu_attention_rel", "cpu_attention_rel_bwd"}, 2},
        {{OP_ATTENTION_BIAS, OP_ATTENTION_BIAS_BWD}, {"cpu_attention_bias", "cpu_attention_bias_bwd"}, 1},
    };
    const int64_t T = side * side;
    const int tables = kinds[kind].tables;
    struct tensor q = dense(t, 4, (int64_t[]){B, T, H, D}), lse = dense(DT_F32, 3, (int64_t[]){B, H, T});
    struct tensor table = kind == 2 ? dense(t, 2, (int64_t[]){H, T}) : dense(t, 2, (int64_t[]){2 * side - 1, D}),
                  wide = table;
    wide.dtype = DT_F32;
    *f = *b = (struct timed){0};
    if (kind) f->attr.relative.scale = 0.125f, f->attr.relative.height = f->attr.relative.width = (int32_t)side;
    else f->attr.attention.scale = 0.125f;
    b->attr = f->attr;
    for (int i = 0; i < 3; i++) f->in[i] = b->in[i + 1] = b->out[i] = q;
    f->out[0] = b->in[0] = b->in[4] = q, f->out[1] = b->in[5] = lse;
    for (int i = 0; i < tables; i++) f->in[3 + i] = b->in[6 + i] = table, b->out[3 + i] = wide;
    for (int i = 0; i < 3 + tables; i++) f->l.in[i] = filled(&f->in[i]), b->l.out[i] = filled(&b->out[i]);
    for (int i = 0; i < 2; i++) f->l.out[i] = filled(&f->out[i]);
    b->l.in[0] = filled(&q), b->l.in[4] = f->l.out[0], b->l.in[5] = f->l.out[1];
    for (int i = 0; i < 3; i++) b->l.in[i + 1] = f->l.in[i];
    for (int i = 0; i < tables; i++) b->l.in[6 + i] = f->l.in[3 + i];
    timed_ready(f, kinds[kind].op[0], kinds[kind].name[0], 3 + tables, 2);
    timed_ready(b, kinds[kind].op[1], kinds[kind].name[1], 6 + tables, 3 + tables);
}

static double time_of(struct timed *n)
{
    double start = own_seconds();
    n->kernel->run(&n->l);
    return own_seconds() - start;
}

static void bench(const char *name, const char *filter, int64_t B, int64_t side, int64_t H, int64_t D, enum dtype t)
{
    if (!strstr(name, filter)) return;
    struct timed f[KINDS], b[KINDS];
    double best[2][KINDS];
    for (int k = 0; k < KINDS; k++) {
        case_nodes(&f[k], &b[k], k, B, side, H, D, t);
        best[0][k] = best[1][k] = 1e30;
    }
    for (int r = 0; r < ROUNDS; r++)
        for (int k = 0; k < KINDS; k++) {
            double forward = time_of(&f[k]), backward = time_of(&b[k]);
            if (forward < best[0][k]) best[0][k] = forward;
            if (backward < best[1][k]) best[1][k] = backward;
        }
    for (int i = 0; i < 2; i++)
        printf("%-26s %-5s %-9s %8.2f ms  tables %8.2f ms %.2f  bias %8.2f ms %.2f\n", name, dtype_name(t),
               i ? "backward" : "forward", 1e3 * best[i][0], 1e3 * best[i][1], best[i][1] / best[i][0],
               1e3 * best[i][2], best[i][2] / best[i][0]);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    const char *filter = argc > 1 ? argv[1] : "";
    static const enum dtype types[] = {DT_F32, DT_BF16};
    for (size_t i = 0; i < COUNT(types); i++) {
        bench("sam window 14", filter, 5, 14, 12, 64, types[i]);
        bench("sam global 64", filter, 1, 64, 1, 64, types[i]);
        bench("tinyvit window 7", filter, 40, 7, 4, 32, types[i]);
        bench("tinyvit window 14", filter, 8, 14, 5, 32, types[i]);
    }
    return 0;
}
