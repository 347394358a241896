/*
 * test_gemm.c: compares LINEAR, MATMUL, and the forward and backward of attention, with loops in
 * double.
 *
 * The loops read the operands as stored (rounded to their dtype), so only the kernel's arithmetic
 * is compared. Tolerance of an element: for f32 sums of K terms c * eps(f32) * sqrt(K) relative to
 * the norm of the terms, plus one rounding to the result's dtype.
 *
 * Every launch runs on guarded copies (guarded.h).
 */
#include "cpu/cpu.h"
#include "cpu/products/gemm.h"
#include "cpu/products/micro.h"
#include "cpu/products/micro_bf16.h"
#include "cpu/products/onednn.h"
#include "cpu/products/pack.h"
#include "graph/ops.h"

#include "harness.h"
#include "guarded.h"

static const enum dtype floats[] = {DT_F32, DT_BF16, DT_F16};

/* --- random numbers ------------------------------------------------------------------ */

static uint64_t state;

static void seed_set(uint64_t s) { seed = state = s; }

static uint64_t random_word(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return state ^ state >> 29;
}

/* Uniform in [-1, 1). */
static double symmetric(void) { return (double)(int64_t)random_word() * 0x1p-63; }

/* --- tensors ------------------------------------------------------------------------------ */

static struct tensor tensor_new(enum dtype t, int rank, const int64_t *dim)
{
    struct tensor x = {.dtype = (uint8_t)t, .rank = (uint8_t)rank};
    memcpy(x.dim, dim, (size_t)rank * sizeof *dim);
    tensor_dense_strides(&x);
    return x;
}

/* Elements from the first to the last, gaps included. */
static int64_t tensor_span(const struct tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->rank; i++) n += (t->dim[i] - 1) * t->stride[i];
    return tensor_elements(t) ? n : 0;
}

static struct operand operand_new(const struct tensor *t)
{
    struct operand x = {.dtype = t->dtype, .rank = t->rank};
    memcpy(x.dim, t->dim, sizeof x.dim);
    memcpy(x.stride, t->stride, sizeof x.stride);
    x.data = mem_alloc((size_t)tensor_span(t) * dtype_size(t->dtype) + 64);
    for (int64_t i = 0; i < tensor_span(t); i++) dtype_store(x.data, x.dtype, i, symmetric());
    return x;
}

/* --- a launch ------------------------------------------------------------------------------- */

struct call {
    union attr attr;
    struct tensor in[MAX_IN], out[MAX_OUT];
    struct operand data_in[MAX_IN], data_out[MAX_OUT];
    int nin, nout;
    bool match;
};

static void call_free(struct call *c)
{
    for (int i = 0; i < c->nin; i++) mem_free(c->data_in[i].data);
    for (int i = 0; i < c->nout; i++) mem_free(c->data_out[i].data);
}

static void prepare(const struct kernel *k, struct launch *l)
{
    struct error e;
    assert_int_equal(onednn_prepare(k, l, &e), PL_OK);
}

static const struct guarded_hooks hooks = {prepare, onednn_release};

/* Queries the kernel, runs it on guarded copies, and copies the outputs back. An output at the
 * address of an input overwrites that input. Optional inputs have rank 0 and no data. */
static void call_run(struct call *c, const struct kernel *k, int threads)
{
    struct profile profile = {.threads = threads, .onednn = true};
    struct query q = {.attr = &c->attr, .nin = c->nin, .nout = c->nout, .profile = &profile};
    struct launch l = {.attr = &c->attr, .nin = c->nin, .nout = c->nout, .threads = threads};
    int alias[MAX_OUT] = {0};
    void *out[MAX_OUT] = {0};
    for (int i = 0; i < c->nin; i++) q.in[i] = c->data_in[i].data ? &c->in[i] : NULL, l.in[i] = c->data_in[i];
    for (int o = 0; o < c->nout; o++) {
        q.out[o] = &c->out[o], l.out[o] = c->data_out[o];
        alias[o] = -1;
        for (int i = 0; i < c->nin; i++)
            if (l.in[i].data == l.out[o].data) alias[o] = i;
    }
    assert_true(k->match(&q));
    guarded_launch(k->name, k, &l, k->workspace(&q), threads, alias, &hooks, out);
    for (int o = 0; o < c->nout; o++) memcpy(c->data_out[o].data, out[o], guarded_span(&l.out[o]));
    guarded_free_all(out);
}

/* --- comparing -------------------------------------------------------------------------------- */

/* `terms` is the norm of the summed terms, `n` their number. */
static void check(const char *what, double got, double want, double terms, double n, enum dtype t, int64_t at)
{
    double tolerance =
        4 * dtype_table[DT_F32].epsilon * sqrt(n + 1) * terms + dtype_table[t].epsilon * fabs(want) + 1e-7;
    if (!(fabs(got - want) <= tolerance))
        fail_msg("%s: element %lld is %.9g, expected %.9g within %.3g (seed %llu)", what, (long long)at, got, want,
                 tolerance, (unsigned long long)seed);
}

/* --- products -------------------------------------------------------------------------------- */

struct product {
    int64_t M, N, K;
    bool ta, tb, linear, bias, add;
    bool separate_addend; /* LINEAR: the addend is not stored in the result's bytes */
    enum dtype a, b, c;
};

/* Index of the input that is added. */
static int addend_index(const struct product *p) { return p->linear ? 3 : 2; }

static struct call product_call(const struct product *p)
{
    struct call c = {.nin = p->add ? addend_index(p) + 1 : p->bias ? 3 : 2, .nout = 1};
    c.attr.matmul.ta = p->ta, c.attr.matmul.tb = p->tb, c.attr.matmul.dtype = (uint8_t)p->c;
    /* Rows as two dimensions where divisible: kernels must flatten them. */
    int64_t split = p->M % 3 == 0 ? 3 : 1;
    c.in[0] = p->ta ? tensor_new(p->a, 2, (int64_t[]){p->K, p->M})
                    : tensor_new(p->a, 3, (int64_t[]){split, p->M / split, p->K});
    c.in[1] = tensor_new(p->b, 2, p->tb ? (int64_t[]){p->N, p->K} : (int64_t[]){p->K, p->N});
    c.out[0] = p->ta ? tensor_new(p->c, 2, (int64_t[]){p->M, p->N})
                     : tensor_new(p->c, 3, (int64_t[]){split, p->M / split, p->N});
    for (int i = 0; i < 2; i++) c.data_in[i] = operand_new(&c.in[i]);
    if (p->bias) c.in[2] = tensor_new(p->b, 1, &p->N);
    if (p->bias) c.data_in[2] = operand_new(&c.in[2]);
    if (p->add) c.in[addend_index(p)] = c.out[0];
    if (p->add) c.data_in[addend_index(p)] = operand_new(&c.in[addend_index(p)]);
    c.data_out[0] = operand_new(&c.out[0]);
    return c;
}

/* A copy of the addend: in place, the kernel overwrites it. */
static void *product_addend_copy(const struct product *p, const struct call *c)
{
    return mem_copy(p->add ? c->data_in[addend_index(p)].data : c->data_out[0].data, tensor_bytes(&c->out[0]));
}

static void product_run(const struct product *p, struct call *c, const struct kernel *k, int threads, const void *old)
{
    void *own = c->data_in[addend_index(p)].data;
    if (p->add && !p->separate_addend) {
        memcpy(c->data_out[0].data, old, tensor_bytes(&c->out[0]));
        c->data_in[addend_index(p)].data = c->data_out[0].data;
    }
    call_run(c, k, threads);
    c->data_in[addend_index(p)].data = own;
}

static inline double at(const struct operand *x, int64_t i)
{
    return x->dtype == DT_F64 ? ((const double *)x->data)[i] : dtype_load(x->data, x->dtype, i);
}

/* A copy in f64, which the loops read faster; the caller frees its data. */
static struct operand widened(const struct operand *x)
{
    struct operand wide = *x;
    const size_t n = guarded_span(x) / dtype_size(x->dtype);
    wide.dtype = DT_F64;
    wide.data = mem_alloc(n * sizeof(double) + 1);
    dtype_convert(wide.data, DT_F64, x->data, x->dtype, (int64_t)n);
    return wide;
}

static void product_compare(const struct product *p, const struct call *c, const void *old)
{
    const struct operand a = widened(&c->data_in[0]), b = widened(&c->data_in[1]);
    char what[128];
    snprintf(what, sizeof what, "%s%s%s %lldx%lldx%lld %s %s -> %s", p->linear ? "linear" : "matmul",
             p->ta ? " ta" : "", p->tb ? " tb" : "", (long long)p->M, (long long)p->N, (long long)p->K,
             dtype_name(p->a), dtype_name(p->b), dtype_name(p->c));
    for (int64_t i = 0; i < p->M; i++)
        for (int64_t j = 0; j < p->N; j++) {
            double sum = 0, norm = 0;
            for (int64_t k = 0; k < p->K; k++) {
                double term =
                    at(&a, p->ta ? k * p->M + i : i * p->K + k) * at(&b, p->tb ? j * p->K + k : k * p->N + j);
                sum += term, norm += term * term;
            }
            double other = (p->bias ? at(&c->data_in[2], j) : 0) + (p->add ? dtype_load(old, p->c, i * p->N + j) : 0);
            check(what, at(&c->data_out[0], i * p->N + j), sum + other, sqrt(norm + other * other), (double)p->K, p->c,
                  i * p->N + j);
        }
    mem_free(a.data);
    mem_free(b.data);
}

/* Where the oneDNN kernel accepts the product: compares it with the loops on 1 to 3 threads; its
 * bits may differ between thread counts. It must reject products for which oneDNN would allocate
 * memory. Returns whether it accepted, and counts the products whose bits differ. */
static bool product_onednn(const struct product *p, int *differ)
{
    struct call c = product_call(p);
    struct profile profile = {.threads = 2, .onednn = true};
    struct query q = {.attr = &c.attr, .out = {&c.out[0]}, .nin = c.nin, .nout = 1, .profile = &profile};
    for (int i = 0; i < c.nin; i++) q.in[i] = c.data_in[i].data ? &c.in[i] : NULL;
    const struct kernel *k =
        p->linear ? cpu_kernel_named(OP_LINEAR, "onednn_linear") : cpu_kernel_named(OP_MATMUL, "onednn_matmul");
    bool takes = k->match(&q);
    const char *name = onednn_implementation(&q, p->linear);
    assert_true(!takes || (name && strncmp(name, "gemm:", 5) && strncmp(name, "ref:", 4)));
    profile.onednn = false;
    assert_false(k->match(&q));
    void *old = product_addend_copy(p, &c), *first = NULL;
    bool other_bits = false;
    for (int threads = 1; takes && threads <= 3; threads++) {
        product_run(p, &c, k, threads, old);
        product_compare(p, &c, old);
        if (!first) first = mem_copy(c.data_out[0].data, tensor_bytes(&c.out[0]));
        other_bits |= memcmp(first, c.data_out[0].data, tensor_bytes(&c.out[0])) != 0;
    }
    *differ += other_bits;
    mem_free(old);
    mem_free(first);
    call_free(&c);
    return takes;
}

TEST(test_onednn)
{
    static const int64_t shapes[][3] = {{5, 12, 64}, {33, 50, 129}, {130, 97, 270}, {64, 192, 256}};
    int taken = 0, asked = 0, differ = 0;
    seed_set(6);
    for (size_t i = 0; i < COUNT(shapes); i++)
        for (int which = 0; which < 64; which++) {
            struct product p = {shapes[i][0],    shapes[i][1],         shapes[i][2],
                                .ta = which & 1, .tb = which >> 1 & 1, .add = which >> 2 & 1};
            if ((p.linear = which >> 3 & 1))
                p.ta = false, p.tb = true, p.bias = which & 1, p.separate_addend = which >> 1 & 1;
            p.a = p.b = which >> 4 & 1 ? DT_BF16 : DT_F32;
            p.c = which >> 5 ? DT_F32 : p.a;
            taken += product_onednn(&p, &differ), asked++;
        }
    print_message("oneDNN takes %d of %d products here; bits of %d depend on the thread count\n", taken, asked, differ);
    if (!taken) skip(); /* a build without oneDNN, or a processor for which it accepts no product */
}

/* Runs with 1, 2 and 3 threads: the first is compared with the loops, the others bit for bit with
 * it. */
static void product_test(const struct product *p)
{
    struct call c = product_call(p);
    size_t bytes = tensor_bytes(&c.out[0]);
    const struct kernel *k =
        p->linear ? cpu_kernel_named(OP_LINEAR, "cpu_linear") : cpu_kernel_named(OP_MATMUL, "cpu_matmul");
    void *old = product_addend_copy(p, &c), *first = NULL;
    for (int threads = 1; threads <= 3; threads++) {
        product_run(p, &c, k, threads, old);
        if (threads == 1) {
            product_compare(p, &c, old);
            first = mem_copy(c.data_out[0].data, bytes);
        } else if (memcmp(first, c.data_out[0].data, bytes)) {
            fail_msg("%lldx%lldx%lld: %d threads give other bits than 1", (long long)p->M, (long long)p->N,
                     (long long)p->K, threads);
        }
    }
    mem_free(old);
    mem_free(first);
    call_free(&c);
}

TEST(test_matmul_shapes)
{
    static const int64_t sizes[] = {1, 2, 3, 7, 17, 65, 129};
    seed_set(1);
    for (size_t m = 0; m < COUNT(sizes); m++)
        for (size_t n = 0; n < COUNT(sizes); n++)
            for (size_t k = 0; k < COUNT(sizes); k++) {
                int which = (int)(m + 2 * n + 3 * k);
                struct product p =
                    {sizes[m],    sizes[n],    sizes[k],   .ta = which & 1, .tb = which >> 1 & 1, .add = which % 3 == 0,
                     .a = DT_F32, .b = DT_F32, .c = DT_F32};
                product_test(&p);
            }
}

/* Sums over several K blocks, tiles over several blocks of rows and columns. */
TEST(test_matmul_blocks)
{
    static const struct product table[] = {
        {200, 37, 257}, {17, 800, 300}, {400, 9, 513}, {5, 13, 1100},
        {1, 100, 2500}, {4, 70, 1025},  {390, 780, 3}, {3, 5, 0},
    };
    seed_set(2);
    for (size_t i = 0; i < COUNT(table); i++)
        for (int which = 0; which < 16; which++) {
            struct product p = table[i];
            p.ta = which & 1, p.tb = which >> 1 & 1, p.add = which >> 2 & 1;
            p.a = p.b = which >> 3 ? DT_BF16 : DT_F32;
            p.c = which % 3 == 0 ? DT_F32 : p.a;
            product_test(&p);
        }
}

TEST(test_matmul_dtypes)
{
    seed_set(3);
    for (int which = 0; which < 27 * 8; which++) {
        int types = which / 8;
        struct product p = {29, 43, 71, .ta = which & 1, .tb = which >> 1 & 1, .add = which >> 2 & 1,
                            .a = floats[types % 3], .b = floats[types / 3 % 3], .c = floats[types / 9]};
        product_test(&p);
        p.K = 301;
        product_test(&p);
    }
}

TEST(test_linear)
{
    static const int64_t shapes[][3] = {{1, 1, 1},   {1, 65, 300},  {3, 17, 7},     {4, 129, 1030},
                                        {5, 12, 64}, {33, 50, 129}, {130, 97, 270}, {48, 96, 1100}};
    seed_set(4);
    for (size_t i = 0; i < COUNT(shapes); i++)
        for (int which = 0; which < 24; which++) {
            struct product p = {shapes[i][0], shapes[i][1], shapes[i][2], .tb = true, .linear = true, .bias = which & 1,
                                .add = which >> 1 & 1, .separate_addend = which >> 2 & 1};
            p.a = p.b = p.c = floats[which / 8];
            product_test(&p);
        }
}

/* Neither index of A or B is contiguous, and rows of C have gaps. */
TEST(test_gemm_strides)
{
    enum { M = 19, N = 26, K = 33, LD = 31 };
    static float a[M * K * 6], b[K * N * 6], c[M * LD];
    seed_set(5);
    for (size_t i = 0; i < COUNT(a); i++) a[i] = (float)symmetric();
    for (size_t i = 0; i < COUNT(b); i++) b[i] = (float)symmetric();
    memset(c, 0xFF, sizeof c);
    struct gemm g =
        {.M = M, .N = N, .K = K, .a = {a, DT_F32, 3 * K, 3}, .b = {b, DT_F32, 2 * N, 2}, .c = {c, DT_F32, LD, 1}};
    uint64_t bytes = gemm_workspace(M, N, K, DT_F32, 2);
    void *work = aligned_alloc(64, align_up(bytes, 64));
    gemm_run(&g, work, bytes, 2);
    free(work);
    for (int i = 0; i < M; i++) {
        for (int j = 0; j < N; j++) {
            double sum = 0, norm = 0;
            for (int k = 0; k < K; k++) {
                double term = (double)a[i * 3 * K + k * 3] * b[k * 2 * N + j * 2];
                sum += term, norm += term * term;
            }
            check("strided", c[i * LD + j], sum, sqrt(norm), K, DT_F32, i * LD + j);
        }
        if (i + 1 < M) /* the gap between rows does not belong to C */
            for (int j = N; j < LD; j++) assert_true(isnan(c[i * LD + j]));
    }
}

/* Panels of bf16 groups, in every ISA's layout, compared with their definition: all bits at their
 * offsets, zeros as padding, and nothing written beyond the end. */
static void pack_bf16_test(int width, int group, int whole, int64_t across, int64_t along, int64_t n, int64_t K)
{
    enum { GUARD = 8 };
    static uint16_t from[70 * 70 * 3], to[(96 + 32) * 96 + GUARD];
    int64_t tall = (K + whole - 1) / whole * whole, size = panel_bf16(width, n, K, whole);
    for (size_t i = 0; i < COUNT(from); i++) from[i] = (uint16_t)(i * 40503u + 1);
    memset(to, 0xFF, sizeof to);
    pack_panels_bf16(to, width, group, whole, from, across, along, n, K);
    for (int64_t x = 0; x < size; x++) {
        int64_t in = x % (width * tall), k = in / (width * group) * group + in % group;
        int64_t i = x / (width * tall) * width + in / group % width;
        uint16_t want = i < n && k < K ? from[i * across + k * along] : 0;
        if (to[x] != want)
            fail_msg("panel of %d, groups of %d, n %lld, K %lld: element %lld is %04x, not %04x", width, group,
                     (long long)n, (long long)K, (long long)x, to[x], want);
    }
    for (int64_t x = size; x < size + GUARD; x++) assert_int_equal(to[x], 0xFFFF);
}

TEST(test_pack_bf16)
{
    static const int64_t sizes[] = {1, 2, 3, 4, 5, 8, 12, 17, 33, 64, 70};
    static const struct { int width, group, whole; } kinds[] = {{8, 2, 2}, {8, 4, 4}, {12, 2, 2}, {12, 4, 4},
                                                                {32, 2, 2}, {32, 4, 4}, {32, 2, 32}, {32, 32, 32}};
    for (size_t n = 0; n < COUNT(sizes); n++)
        for (size_t k = 0; k < COUNT(sizes); k++)
            for (size_t i = 0; i < COUNT(kinds); i++) {
                int width = kinds[i].width, group = kinds[i].group, whole = kinds[i].whole;
                pack_bf16_test(width, group, whole, 71, 1, sizes[n], sizes[k]);
                pack_bf16_test(width, group, whole, 1, 71, sizes[n], sizes[k]);
                pack_bf16_test(width, group, whole, 3, 210, sizes[n], sizes[k]);
            }
}

/* For each bf16 instruction set of the processor: tiles fit the panel sizes that workspaces are
 * computed from, products are right, and results are rounded to bf16 as everywhere else. */
static void micro_bf16_product(const struct micro_bf16 *h, int64_t K, bool add)
{
    enum { K_MAX = 96, GAP = 3 };
    static uint16_t a[TILE_ROWS * K_MAX], b[NR_MAX * K_MAX], pa[TILE_ROWS * K_MAX], pb[NR_MAX * K_MAX];
    static float c[TILE_ROWS * (NR_MAX + GAP)];
    int64_t ldc = h->nr + GAP;
    for (int64_t i = 0; i < h->mr * K; i++) a[i] = f32_to_bf16((float)symmetric());
    for (int64_t i = 0; i < h->nr * K; i++) b[i] = f32_to_bf16((float)symmetric());
    for (int64_t i = 0; i < h->mr * ldc; i++) c[i] = (float)(i % 7);
    pack_panels_bf16(pa, h->mr, h->group, h->group, a, K, 1, h->mr, K);
    pack_panels_bf16(pb, h->nr, h->group_b, h->group, b, 1, h->nr, h->nr, K);
    if (h->begin) h->begin();
    h->product((K + h->group - 1) / h->group, pa, pb, c, ldc, add);
    if (h->end) h->end();
    for (int64_t i = 0; i < h->mr * ldc; i++) {
        int64_t m = i / ldc, n = i % ldc;
        double sum = add || n >= h->nr ? (double)(i % 7) : 0, norm = sum * sum;
        for (int64_t k = 0; k < K && n < h->nr; k++) {
            double term = (double)bf16_to_f32(a[m * K + k]) * (double)bf16_to_f32(b[k * h->nr + n]);
            sum += term, norm += term * term;
        }
        check(h->name, c[i], sum, sqrt(norm), (double)K, DT_F32, i);
    }
}

static void micro_bf16_narrow(const struct micro_bf16 *h)
{
    static const uint32_t special[] = {0,          0x80000000, 1,          0x80007fff, 0x00008000, 0x007fffff,
                                       0x3f808000, 0x3f818000, 0x3f808001, 0x7f7fffff, 0x7f800000, 0xff800000,
                                       0x7f800001, 0x7fc00000, 0xffffffff, 0x33333333};
    float from[TILE_ROWS * (NR_MAX + 3)];
    uint16_t to[(TILE_ROWS + GROUP_MAX) * (NR_MAX + 5)];
    for (int round = 0; round < 1000; round++) {
        for (int i = 0; i < h->mr * (h->nr + 3); i++) {
            uint32_t u = (uint32_t)(random_word() >> 32);
            if (u % 5 == 0) u = special[u / 5 % COUNT(special)];
            memcpy(&from[i], &u, sizeof u);
        }
        h->narrow(to, h->nr + 5, from, h->nr + 3);
        for (int i = 0; i < h->mr; i++)
            for (int j = 0; j < h->nr; j++)
                assert_int_equal(to[i * (h->nr + 5) + j], f32_to_bf16(from[i * (h->nr + 3) + j]));
        if (!h->pack_rows) continue;

        /* As panels: rows as k, in groups padded with 0, and columns as k. */
        int n = round % h->mr + 1, groups = (n + h->group - 1) / h->group, step = h->nr * h->group;
        h->pack_rows(to, from, n);
        for (int x = 0; x < groups * step; x++) {
            int k = x / step * h->group + x % h->group, j = x % step / h->group;
            assert_int_equal(to[x], k < n ? f32_to_bf16(from[k * h->nr + j]) : 0);
        }
        h->pack_columns(to, from);
        for (int x = 0; x < h->mr * h->nr; x++) {
            int k = x / (h->mr * h->group) * h->group + x % h->group, i = x / h->group % h->mr;
            assert_int_equal(to[x], f32_to_bf16(from[i * h->nr + k]));
        }
    }
}

TEST(test_micro_bf16)
{
    const struct micro_bf16 *v = micro_bf16_vectors(), *sets[] = {v, micro_bf16_tiles()};
    if (v) {
        assert_true(PANEL_A % v->mr == 0 && v->mr <= MR_MAX && v->group <= GROUP_MAX && v->group_b == v->group);
        assert_true(v->pack_rows && v->pack_columns);
    }
    seed_set(21);
    for (size_t i = 0; i < COUNT(sets); i++) {
        const struct micro_bf16 *h = sets[i];
        if (!h) continue;
        assert_true(PANEL_B % h->nr == 0 && h->nr <= NR_MAX && h->mr <= TILE_ROWS && h->group <= TILE_DEPTH);
        static const int64_t lengths[] = {1, 2, 7, 31, 32, 33, 64, 90};
        for (size_t k = 0; k < COUNT(lengths); k++)
            for (int add = 0; add < 2; add++) micro_bf16_product(h, lengths[k], add);
        micro_bf16_narrow(h);
    }
}

/* Batches of transposed and widely strided matrices, on both sides of the "many batches"
 * threshold. */
TEST(test_bmm_strides)
{
    enum { M = 7, N = 9, K = 21 };
    seed_set(12);
    for (int64_t B = 1; B <= 5; B += 2)
        for (size_t f = 0; f < COUNT(floats); f++) {
            struct call c = {.nin = 2, .nout = 1, .attr.matmul.tb = 1};
            /* a [B,2,M,K] is stored as [B,M,2,K]; b [B,2,N,K] as [2,K,B,N+1]; c as [B,M,2,N+2] */
            c.in[0] = tensor_new(floats[f], 4, (int64_t[]){B, 2, M, K}),
            c.in[1] = tensor_new(floats[f], 4, (int64_t[]){B, 2, N, K});
            c.out[0] = tensor_new(floats[f], 4, (int64_t[]){B, 2, M, N});
            memcpy(c.in[0].stride, (int64_t[]){2 * M * K, K, 2 * K, 1}, 4 * sizeof(int64_t));
            memcpy(c.in[1].stride, (int64_t[]){N + 1, K * B * (N + 1), 1, B * (N + 1)}, 4 * sizeof(int64_t));
            memcpy(c.out[0].stride, (int64_t[]){2 * M * (N + 2), N + 2, 2 * (N + 2), 1}, 4 * sizeof(int64_t));
            for (int i = 0; i < 2; i++) c.data_in[i] = operand_new(&c.in[i]);
            c.data_out[0] = operand_new(&c.out[0]);
            const int64_t *x = c.in[0].stride, *y = c.in[1].stride, *z = c.out[0].stride;
            for (int threads = 1; threads <= 3; threads++) {
                call_run(&c, cpu_kernel_named(OP_BMM, "cpu_bmm"), threads);
                for (int64_t i = 0; i < B * 2 * M * N; i++) {
                    int64_t n = i % N, m = i / N % M, h = i / N / M % 2, b = i / N / M / 2;
                    double sum = 0, norm = 0;
                    for (int64_t k = 0; k < K; k++) {
                        double term = at(&c.data_in[0], b * x[0] + h * x[1] + m * x[2] + k * x[3]) *
                                      at(&c.data_in[1], b * y[0] + h * y[1] + n * y[2] + k * y[3]);
                        sum += term, norm += term * term;
                    }
                    check("bmm", at(&c.data_out[0], b * z[0] + h * z[1] + m * z[2] + n * z[3]), sum, sqrt(norm), K,
                          floats[f], i);
                }
            }
            call_free(&c);
        }
}

/* Launches that the match function rejects run on the reference. */
TEST(test_match)
{
    struct tensor a = tensor_new(DT_F32, 2, (int64_t[]){4, 6}), b = tensor_new(DT_F32, 2, (int64_t[]){6, 5});
    struct tensor c = tensor_new(DT_F32, 2, (int64_t[]){4, 5});
    union attr attr = {.matmul = {.dtype = DT_F32}};
    struct profile profile = {.threads = 1};
    struct query q = {.attr = &attr, .in = {&a, &b}, .out = {&c}, .nin = 2, .nout = 1, .profile = &profile};
    bool (*match)(const struct query *) = cpu_kernel_named(OP_MATMUL, "cpu_matmul")->match;
    assert_true(match(&q));
    a.dtype = DT_F64;
    assert_false(match(&q));
    a.dtype = DT_F32;
    a.stride[0] = 8;
    assert_false(match(&q));
}

/* --- attention ------------------------------------------------------------------------------- */

struct shape {
    int64_t B, T, S, H, G, D;
    bool causal;
    bool strided; /* q, k, v as slices of wider tensors */
    enum dtype t;
    int64_t window;
    bool masked; /* every fifth key masked, the others biased */
};

/* The results of the loops, dense, in double, with the norms of the summed terms. */
struct truth {
    double *o, *lse, *dq, *dk, *dv, *norm_o, *norm_q, *norm_k, *norm_v;
};

static double *doubles(int64_t n) { return mem_alloc((size_t)n * sizeof(double)); }

static inline double value(const struct operand *x, int64_t b, int64_t t, int64_t h, int64_t d)
{
    return at(x, b * x->stride[0] + t * x->stride[1] + h * x->stride[2] + d);
}

static double score(const struct shape *n, double scale, const struct call *f, int64_t b, int64_t t, int64_t s,
                    int64_t h)
{
    double sum = 0;
    for (int64_t d = 0; d < n->D; d++)
        sum += value(&f->data_in[0], b, t, h, d) * value(&f->data_in[1], b, s, h / (n->H / n->G), d);
    return sum * scale + (n->masked ? at(&f->data_in[3], b * n->S + s) : 0);
}

static bool key_visible(const struct shape *n, int64_t t, int64_t s)
{
    int64_t before = t + n->S - n->T - s;
    return (!n->causal || before >= 0) && (!n->window || before < n->window);
}

/* One query row: writes its probabilities to p, and o; returns its lse. */
static double truth_row(const struct shape *n, const struct call *f, struct truth *x, double *p, int64_t b, int64_t t,
                        int64_t h)
{
    int64_t keys = n->S, row = ((b * n->T + t) * n->H + h) * n->D;
    double max = -INFINITY, sum = 0;
    for (int64_t s = 0; s < keys; s++) {
        p[s] = key_visible(n, t, s) ? score(n, f->attr.attention.scale, f, b, t, s, h) : -INFINITY;
        if (p[s] > max) max = p[s];
    }
    for (int64_t s = 0; s < keys; s++) sum += p[s] = max == -INFINITY ? 0 : exp(p[s] - max);
    for (int64_t s = 0; s < keys && sum > 0; s++) p[s] /= sum;
    for (int64_t s = 0; s < keys; s++)
        for (int64_t d = 0; d < n->D && p[s] != 0; d++) {
            double term = p[s] * value(&f->data_in[2], b, s, h / (n->H / n->G), d);
            x->o[row + d] += term, x->norm_o[row + d] += fabs(term);
        }
    return x->lse[(b * n->H + h) * n->T + t] = max + log(sum);
}

/* The row's contribution to the gradients. */
static void truth_row_bwd(const struct shape *n, const struct call *f, const struct operand *dO, struct truth *x,
                          const double *p, int64_t b, int64_t t, int64_t h)
{
    int64_t keys = n->S, g = h / (n->H / n->G), row = ((b * n->T + t) * n->H + h) * n->D;
    double delta = 0, spread = 0, scale = f->attr.attention.scale;
    for (int64_t d = 0; d < n->D; d++) {
        double term = value(dO, b, t, h, d) * x->o[row + d];
        delta += term, spread += fabs(value(dO, b, t, h, d)) * x->norm_o[row + d];
    }
    for (int64_t s = 0; s < keys; s++) {
        if (p[s] == 0) continue;
        double dp = 0, size = spread;
        int64_t key = ((b * n->S + s) * n->G + g) * n->D;
        for (int64_t d = 0; d < n->D; d++) {
            double term = value(dO, b, t, h, d) * value(&f->data_in[2], b, s, g, d);
            dp += term, size += fabs(term);
        }
        double ds = p[s] * (dp - delta) * scale;
        size *= p[s] * fabs(scale);
        for (int64_t d = 0; d < n->D; d++) {
            double k = value(&f->data_in[1], b, s, g, d), q = value(&f->data_in[0], b, t, h, d),
                   g_o = value(dO, b, t, h, d);
            x->dq[row + d] += ds * k, x->norm_q[row + d] += size * fabs(k);
            x->dk[key + d] += ds * q, x->norm_k[key + d] += size * fabs(q);
            x->dv[key + d] += p[s] * g_o, x->norm_v[key + d] += p[s] * fabs(g_o);
        }
    }
}

static struct truth truth_new(const struct shape *n, const struct call *forward, const struct operand *given_dO)
{
    struct call f = *forward;
    const struct operand dO = widened(given_dO);
    for (int i = 0; i < 3; i++) f.data_in[i] = widened(&forward->data_in[i]);
    int64_t queries = n->B * n->T * n->H * n->D, keys = n->B * n->S * n->G * n->D;
    struct truth x = {doubles(queries), doubles(n->B * n->H * n->T), doubles(queries), doubles(keys), doubles(keys),
                      doubles(queries), doubles(queries), doubles(keys), doubles(keys)};
    double *p = doubles(n->S);
    for (int64_t b = 0; b < n->B; b++)
        for (int64_t h = 0; h < n->H; h++)
            for (int64_t t = 0; t < n->T; t++) {
                truth_row(n, &f, &x, p, b, t, h);
                truth_row_bwd(n, &f, &dO, &x, p, b, t, h);
            }
    for (int i = 0; i < 3; i++) mem_free(f.data_in[i].data);
    mem_free(dO.data);
    mem_free(p);
    return x;
}

static void truth_free(struct truth *x)
{
    double *all[] = {x->o, x->lse, x->dq, x->dk, x->dv, x->norm_o, x->norm_q, x->norm_k, x->norm_v};
    for (size_t i = 0; i < COUNT(all); i++) mem_free(all[i]);
}

/* [B,rows,H,D], dense or as a slice of [B,rows,H+1,D+3]. */
static struct tensor head_tensor(const struct shape *n, int64_t rows, int64_t heads, bool strided)
{
    struct tensor t = tensor_new(n->t, 4, (int64_t[]){n->B, rows, heads, n->D});
    if (strided) {
        t.stride[2] = n->D + 3, t.stride[1] = (heads + 1) * t.stride[2], t.stride[0] = rows * t.stride[1] + 5;
    }
    return t;
}

/* Compares a dense result with the loops. In 16-bit storage o and do are rounded before the
 * backward reads them, so its terms carry the storage's error, too; in bf16 also the probabilities
 * that o sums (attention.c). */
static void heads_check(const char *what, const struct operand *x, const double *want, const double *norm, double n,
                        bool narrow)
{
    int64_t i = 0;
    for (int64_t b = 0; b < x->dim[0]; b++)
        for (int64_t t = 0; t < x->dim[1]; t++)
            for (int64_t h = 0; h < x->dim[2]; h++)
                for (int64_t d = 0; d < x->dim[3]; d++, i++) {
                    double slack = narrow ? dtype_table[x->dtype].epsilon / dtype_table[DT_F32].epsilon / 4 : 1;
                    check(what, value(x, b, t, h, d), want[i], norm[i] * slack, narrow ? 0 : n, x->dtype, i);
                }
}

/* Runs a kernel with 1, 2 and 3 threads; the bits must agree. */
static void call_threads(struct call *c, const struct kernel *k)
{
    void *first[MAX_OUT] = {0};
    for (int threads = 1; threads <= 3; threads++) {
        call_run(c, k, threads);
        for (int i = 0; i < c->nout; i++) {
            size_t bytes = (size_t)tensor_span(&c->out[i]) * dtype_size(c->out[i].dtype);
            if (threads == 1) first[i] = mem_copy(c->data_out[i].data, bytes);
            else if (memcmp(first[i], c->data_out[i].data, bytes))
                fail_msg("%s: %d threads give other bits in output %d than 1", k->name, threads, i);
        }
    }
    for (int i = 0; i < c->nout; i++) mem_free(first[i]);
}

/* Biases, and -inf for a fifth of the keys and for all from two thirds on: whole blocks. */
static struct operand mask_new(const struct tensor *t)
{
    struct operand x = operand_new(t);
    for (int64_t i = 0; i < tensor_elements(t); i++)
        if (i % t->dim[1] % 5 == 3 || i % t->dim[1] > t->dim[1] * 2 / 3) ((float *)x.data)[i] = -INFINITY;
    return x;
}

static void attention_test(const struct shape *n)
{
    struct call f = {.nin = n->masked ? 4 : 3, .nout = 2}, b = {.nin = n->masked ? 7 : 6, .nout = 3};
    f.attr.attention.scale = b.attr.attention.scale = (float)(1.5 / sqrt((double)n->D));
    f.attr.attention.causal = b.attr.attention.causal = n->causal;
    f.attr.attention.window = b.attr.attention.window = n->window;
    f.in[0] = head_tensor(n, n->T, n->H, n->strided), f.in[1] = f.in[2] = head_tensor(n, n->S, n->G, n->strided);
    f.out[0] = head_tensor(n, n->T, n->H, false), f.out[1] = tensor_new(DT_F32, 3, (int64_t[]){n->B, n->H, n->T});
    for (int i = 0; i < 3; i++) f.data_in[i] = operand_new(&f.in[i]);
    f.in[3] = b.in[6] = tensor_new(DT_F32, 2, (int64_t[]){n->B, n->S});
    if (n->masked) f.data_in[3] = b.data_in[6] = mask_new(&f.in[3]);
    for (int i = 0; i < 2; i++) f.data_out[i] = operand_new(&f.out[i]);
    b.in[0] = f.out[0], b.data_in[0] = operand_new(&f.out[0]);
    struct truth x = truth_new(n, &f, &b.data_in[0]);

    call_threads(&f, cpu_kernel_named(OP_ATTENTION, "cpu_attention"));
    heads_check("o", &f.data_out[0], x.o, x.norm_o, (double)(n->S + n->D), n->t == DT_BF16);
    for (int64_t i = 0; i < n->B * n->H * n->T; i++) {
        double got = at(&f.data_out[1], i);
        if (isinf(x.lse[i])) assert_true(got == -INFINITY);
        else check("lse", got, x.lse[i], 1 + fabs(x.lse[i]), (double)(n->S + n->D), DT_F32, i);
    }

    for (int i = 0; i < 3; i++) b.in[i + 1] = f.in[i], b.data_in[i + 1] = f.data_in[i];
    b.in[4] = f.out[0], b.data_in[4] = f.data_out[0], b.in[5] = f.out[1], b.data_in[5] = f.data_out[1];
    b.out[0] = head_tensor(n, n->T, n->H, n->strided), b.out[1] = b.out[2] = head_tensor(n, n->S, n->G, n->strided);
    for (int i = 0; i < 3; i++) b.data_out[i] = operand_new(&b.out[i]);
    call_threads(&b, cpu_kernel_named(OP_ATTENTION_BWD, "cpu_attention_bwd"));
    bool narrow = n->t != DT_F32;
    double terms = (double)(n->S + n->T * n->H / n->G + n->D);
    heads_check("dq", &b.data_out[0], x.dq, x.norm_q, terms, narrow);
    heads_check("dk", &b.data_out[1], x.dk, x.norm_k, terms, narrow);
    heads_check("dv", &b.data_out[2], x.dv, x.norm_v, terms, narrow);
    truth_free(&x);
    mem_free(b.data_in[0].data);
    for (int i = 0; i < 3; i++) mem_free(b.data_out[i].data);
    call_free(&f);
}

TEST(test_attention)
{
    static const struct shape table[] = {
        {1, 1, 1, 1, 1, 1}, {1, 1, 7, 1, 1, 3}, {2, 3, 2, 2, 1, 7}, {1, 17, 17, 2, 2, 64}, {1, 65, 129, 2, 1, 17},
        {1, 129, 65, 3, 1, 33}, {2, 13, 13, 6, 2, 12}, {1, 50, 50, 1, 1, 256}, {1, 100, 24, 1, 1, 65},
        /* several blocks of queries and of keys */
        {1, 200, 300, 2, 1, 16}, {1, 401, 390, 2, 2, 8},
    };
    seed_set(6);
    for (size_t i = 0; i < COUNT(table); i++)
        for (int which = 0; which < 4; which++) {
            struct shape n = table[i];
            n.causal = which & 1, n.strided = which >> 1 & 1, n.t = DT_F32;
            attention_test(&n);
        }
}

/* Windows smaller and larger than tiles and blocks, masks, and both; some queries see no key. */
TEST(test_attention_windows_and_masks)
{
    static const struct shape table[] = {
        {1, 1, 1, 1, 1, 1, .window = 1},        {2, 9, 9, 2, 1, 7, .window = 2},
        {1, 65, 129, 2, 1, 17, .window = 30},   {1, 129, 65, 3, 1, 33, .window = 12},
        {1, 300, 300, 2, 2, 8, .window = 1},    {1, 401, 401, 2, 1, 20, .window = 150},
        {1, 200, 610, 1, 1, 16, .window = 100}, {1, 610, 200, 1, 1, 16, .window = 3},
        {1, 50, 50, 1, 1, 256, .window = 1000}, {2, 70, 400, 1, 1, 12, .window = 0},
    };
    seed_set(10);
    for (size_t i = 0; i < COUNT(table); i++)
        for (int which = 0; which < 12; which++) {
            struct shape n = table[i];
            n.causal = which & 1, n.masked = which >> 1 & 1, n.strided = which % 5 == 0, n.t = floats[which / 4];
            attention_test(&n);
        }
}

/* All keys that a query sees have a bias much larger than the scores: the result is still
 * finite. */
TEST(test_attention_large_bias)
{
    enum { T = 30, D = 8 };
    struct call f = {.nin = 4, .nout = 2}, b = {.nin = 7, .nout = 3};
    f.attr.attention.scale = b.attr.attention.scale = 0.3f;
    struct tensor x = tensor_new(DT_F32, 4, (int64_t[]){1, T, 1, D}), lse = tensor_new(DT_F32, 3, (int64_t[]){1, 1, T});
    seed_set(11);
    for (int i = 0; i < 3; i++) f.in[i] = b.in[i + 1] = x, f.data_in[i] = b.data_in[i + 1] = operand_new(&x);
    f.in[3] = b.in[6] = tensor_new(DT_F32, 2, (int64_t[]){1, T}), f.data_in[3] = b.data_in[6] = operand_new(&f.in[3]);
    for (int i = 0; i < T; i++) ((float *)f.data_in[3].data)[i] = -1e9f;
    f.out[0] = b.in[4] = x, f.data_out[0] = b.data_in[4] = operand_new(&x);
    f.out[1] = b.in[5] = lse, f.data_out[1] = b.data_in[5] = operand_new(&lse);
    b.in[0] = x, b.data_in[0] = operand_new(&x);
    for (int i = 0; i < 3; i++) b.out[i] = x, b.data_out[i] = operand_new(&x);
    call_threads(&f, cpu_kernel_named(OP_ATTENTION, "cpu_attention"));
    call_threads(&b, cpu_kernel_named(OP_ATTENTION_BWD, "cpu_attention_bwd"));
    for (int64_t i = 0; i < T * D; i++) {
        assert_true(fabs(at(&f.data_out[0], i)) <= 1.0 + 1e-6);
        for (int o = 0; o < 3; o++) assert_true(fabs(at(&b.data_out[o], i)) <= 10.0 * T);
    }
    mem_free(b.data_in[0].data);
    for (int i = 0; i < 3; i++) mem_free(b.data_out[i].data);
    call_free(&f);
}

TEST(test_attention_dtypes)
{
    seed_set(7);
    for (int which = 0; which < 8; which++) {
        struct shape n = {1, 70, 210, 4, 2, 20, .causal = which & 1, .strided = which >> 1 & 1,
                          .t = which >> 2 ? DT_F16 : DT_BF16};
        attention_test(&n);
        n.T = 230, n.S = 40;
        attention_test(&n);
    }
}

/* Scores in the hundreds: the running maximum must avoid overflow. */
TEST(test_attention_large)
{
    enum { T = 40, D = 8 };
    struct call f = {.nin = 3, .nout = 2};
    f.attr.attention.scale = 400.0f;
    struct tensor x = tensor_new(DT_F32, 4, (int64_t[]){1, T, 1, D});
    seed_set(8);
    for (int i = 0; i < 3; i++) f.in[i] = x, f.data_in[i] = operand_new(&x);
    f.out[0] = x, f.data_out[0] = operand_new(&x);
    f.out[1] = tensor_new(DT_F32, 3, (int64_t[]){1, 1, T}), f.data_out[1] = operand_new(&f.out[1]);
    call_threads(&f, cpu_kernel_named(OP_ATTENTION, "cpu_attention"));
    for (int64_t i = 0; i < T * D; i++) assert_true(fabs(at(&f.data_out[0], i)) <= 1.0 + 1e-6);
    for (int64_t i = 0; i < T; i++) assert_true(isfinite(at(&f.data_out[1], i)));
    call_free(&f);
}

/* A NaN in a key reaches every query that sees this key, and no other. */
TEST(test_attention_nan)
{
    enum { T = 30, D = 4, BAD = 11 };
    struct call f = {.nin = 3, .nout = 2};
    f.attr.attention.scale = 0.5f, f.attr.attention.causal = 1;
    struct tensor x = tensor_new(DT_F32, 4, (int64_t[]){1, T, 1, D});
    seed_set(9);
    for (int i = 0; i < 3; i++) f.in[i] = x, f.data_in[i] = operand_new(&x);
    ((float *)f.data_in[1].data)[BAD * D] = NAN;
    f.out[0] = x, f.data_out[0] = operand_new(&x);
    f.out[1] = tensor_new(DT_F32, 3, (int64_t[]){1, 1, T}), f.data_out[1] = operand_new(&f.out[1]);
    call_threads(&f, cpu_kernel_named(OP_ATTENTION, "cpu_attention"));
    for (int64_t i = 0; i < T * D; i++) assert_true(isnan(at(&f.data_out[0], i)) == (i / D >= BAD));
    call_free(&f);
}

MAIN(NULL, NULL)
