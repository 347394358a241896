/*
 * test_fuse.c: an activation as the epilogue of a matrix product gives the bits of the two separate
 * ops, in every dtype and activation kind, on any number of threads, with and without the output z.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/random.h"
#include "cpu/cpu.h"
#include "cpu/gemm.h"
#include "graph/ops.h"
#include "passes/passes.h"
#include "guarded.h"

static struct operand dense(enum dtype f, int64_t rows, int64_t columns)
{
    struct operand x = {.dtype = f, .rank = 2, .dim = {rows, columns}, .stride = {columns, 1}};
    x.data = mem_alloc((uint64_t)(rows * columns) * dtype_size(f));
    return x;
}

static struct operand drawn(enum dtype f, int64_t rows, int64_t columns, uint64_t key)
{
    struct operand x = dense(f, rows, columns);
    for (int64_t i = 0; i < rows * columns; i++) {
        uint32_t word;
        random_words(&word, key, (uint64_t)i, 1);
        dtype_store(x.data, f, i, (double)word / 0x1p31 - 1);
    }
    return x;
}

static void same(const struct operand *a, const struct operand *b, const char *what, int kind, const int64_t *n)
{
    if (memcmp(a->data, b->data, (size_t)operand_elements(a) * dtype_size(a->dtype)))
        fail_msg("%s of kind %d, %s [%lld,%lld,%lld], differs from LINEAR's and ACT's", what, kind, dtype_name(a->dtype),
                 (long long)n[0], (long long)n[1], (long long)n[2]);
}

/* n: rows, columns, depth. */
static void check(enum dtype f, const int64_t *n, enum act_kind kind, bool bias)
{
    struct operand x = drawn(f, n[0], n[2], 1), w = drawn(f, n[1], n[2], 2), b = drawn(f, 1, n[1], 3);
    struct operand z = dense(f, n[0], n[1]), y = z, z2 = z, y2 = z;
    y.data = dense(f, n[0], n[1]).data, z2.data = dense(f, n[0], n[1]).data, y2.data = dense(f, n[0], n[1]).data;
    union attr attr = {.act = {(uint8_t)kind}};
    uint64_t bytes = gemm_workspace(n[0], n[1], n[2], f, 3);
    b.rank = 1, b.dim[0] = n[1], b.stride[0] = 1;
    struct launch l = {.attr = &attr, .in = {x, w, b}, .nin = bias ? 3 : 2, .nout = 1, .work_bytes = bytes, .threads = 3};
    const int apart[MAX_OUT] = {-1, -1, -1, -1, -1, -1};
    l.out[0] = z;
    guarded_run(cpu_kernel_named(OP_LINEAR, "cpu_linear"), &l, apart);
    l.out[0] = y, l.in[0] = z, l.nin = 1;
    guarded_run(cpu_kernel_named(OP_ACT, "cpu_act"), &l, apart);
    l.in[0] = x, l.nin = bias ? 3 : 2, l.nout = 2;
    for (int round = 0; round < 4; round++) {
        l.threads = round % 2 ? 3 : 1;
        l.out[0] = y2, l.out[1] = z2;
        if (round / 2) l.out[1].data = NULL;
        guarded_run(cpu_kernel_named(OP_LINEAR_ACT, "cpu_linear_act"), &l, apart);
        same(&y2, &y, "y", (int)kind, n);
        if (!(round / 2)) same(&z2, &z, "z", (int)kind, n);
        memset(y2.data, 0, (size_t)(n[0] * n[1]) * dtype_size(f));
    }
    void *all[] = {x.data, w.data, b.data, z.data, y.data, z2.data, y2.data};
    for (size_t i = 0; i < COUNT(all); i++) mem_free(all[i]);
}

static void test_bits(void **state)
{
    (void)state;
    static const enum dtype FLOATS[] = {DT_F32, DT_BF16, DT_F16};
    static const int64_t SHAPES[][3] = {{1, 1, 1}, {1, 77, 300}, {3, 130, 19}, {7, 259, 40}, {50, 131, 530}, {203, 800, 24}, {401, 37, 270}};
    for (size_t f = 0; f < COUNT(FLOATS); f++)
        for (size_t s = 0; s < COUNT(SHAPES); s++)
            for (int kind = 0; kind < ACT_KINDS; kind++) check(FLOATS[f], SHAPES[s], (enum act_kind)kind, (kind + (int)s) % 2);
}

/* Number of LINEAR_ACT nodes in an evaluation whose product reads x directly, or through a permuted
 * view. */
static int fused(bool strided, enum act_kind kind, bool gpu)
{
    struct graph g;
    struct settings s = {.forward = true, .device = device_traits(gpu ? DEVICE_CUDA : DEVICE_CPU)};
    int n = 0;
    graph_init(&g);
    id x = graph_input(&g, "x", DT_F32, 2, (int64_t[]){6, 6}), w = graph_param(&g, "w", DT_F32, 2, (int64_t[]){4, 6}, (struct init){0});
    if (strided) x = op_permute(&g, x, (int[]){1, 0});
    graph_output(&g, "y", op_act(&g, op_linear(&g, x, w, 0), kind));
    pass_fuse(&g, &s);
    graph_verify(&g, "fuse");
    for (uint32_t k = 0; k < g.order[PROGRAM_STEP].nodes.n; k++) n += node_at(&g, g.order[PROGRAM_STEP].nodes.at[k])->op == OP_LINEAR_ACT;
    graph_free(&g);
    return n;
}

/* The kernels that guarantee the same bits accept a dense x only. */
static void test_strided(void **state)
{
    (void)state;
    assert_int_equal(fused(false, ACT_GELU, false), 1);
    assert_int_equal(fused(true, ACT_GELU, false), 0);
    assert_int_equal(fused(true, ACT_RELU, false), 1);
    assert_int_equal(fused(true, ACT_GELU, true), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bits), cmocka_unit_test(test_strided)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
