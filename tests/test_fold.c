/*
 * test_fold.c: the order of sums over shares and ranks: FOLD and ALL_REDUCE against the tree's
 * definition, bit for bit, and the norm by cells, which does not depend on who holds which cells.
 */
#include <pthread.h>

#include "graph/ops.h"
#include "graph/sizes.h"
#include "run/kernel.h"

#include "harness.h"
#include "rank_threads.h"

enum { LEAVES = 33, LONGEST = 5000 };

static uint64_t rng = 88172645463325252u;
static float number(void)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return ldexpf((float)((int64_t)(rng >> 40) - (1 << 23)) / (float)(1 << 23), (int)(rng % 9));
}

/* The definition, in f32, with a rounding of every sum of two to the dtype. */
static void tree(float *x, int leaves, int64_t n, enum dtype t)
{
    for (int w = 1; w < leaves; w *= 2)
        for (int k = 0; k + w < leaves; k += 2 * w)
            for (int64_t i = 0; i < n; i++) {
                uint32_t rounded = 0;
                float sum = x[k * n + i] + x[(k + w) * n + i];
                dtype_convert(&rounded, t, &sum, DT_F32, 1);
                dtype_convert(&x[k * n + i], DT_F32, &rounded, t, 1);
            }
}

static struct operand vector(void *data, enum dtype t, int64_t n)
{
    return (struct operand){.data = data, .dtype = t, .rank = 1, .dim = {n}, .stride = {1}};
}

struct leaves {
    int64_t n;
    enum dtype t;
    size_t bytes;                  /* of a leaf */
    char leaf[LEAVES][4 * LONGEST];
    char sum[4 * LONGEST];         /* of all of them */
};

static void fill(struct leaves *l, int count, int64_t n, enum dtype t)
{
    float *all = malloc(sizeof *all * (size_t)(count * n));
    l->n = n;
    l->t = t;
    l->bytes = (size_t)n * dtype_size(t);
    for (int k = 0; k < count; k++) {
        for (int64_t i = 0; i < n; i++) all[k * n + i] = number();
        dtype_convert(l->leaf[k], t, all + k * n, DT_F32, n);
        dtype_convert(all + k * n, DT_F32, l->leaf[k], t, n);
    }
    tree(all, count, n, t);
    dtype_convert(l->sum, t, all, DT_F32, n);
    free(all);
}

/* FOLD over leaves first .. first+count-1: the sum is left in x. */
static void fold(const struct leaves *l, int first, int count, int threads, char *x)
{
    const union attr a = {.fold = {count}};
    char *partials = malloc(l->bytes * (size_t)(fold_levels(count) + 1));
    if (count == 1) memcpy(x, l->leaf[first], l->bytes);
    for (int i = 0; i < count && count > 1; i++) {
        struct launch f = {.attr = &a, .nin = 2, .nout = 2, .threads = threads, .iteration = (uint32_t)i};
        memcpy(x, l->leaf[first + i], l->bytes);
        f.in[0] = f.out[0] = vector(x, l->t, l->n);
        f.in[1] = f.out[1] = vector(partials, l->t, fold_levels(count) * l->n);
        cpu_kernels[OP_FOLD]->run(&f);
    }
    free(partials);
}

TEST(test_fold)
{
    static struct leaves l;
    static char x[4 * LONGEST];
    const int64_t lengths[] = {1, 255, 257, LONGEST};
    for (int count = 1; count <= LEAVES; count++)
        for (int k = 0; k < 4; k++)
            for (int narrow = 0; narrow < 2; narrow++) {
                fill(&l, count, lengths[k], narrow ? DT_BF16 : DT_F32);
                for (int threads = 1; threads <= (k == 3 ? 3 : 1); threads++) {
                    fold(&l, 0, count, threads, x);
                    assert_memory_equal(x, l.sum, l.bytes);
                }
            }
}

/* --- ranks ------------------------------------------------------------------------------------ */

struct part {
    struct ranks *ranks;
    const struct leaves *l;
    int shares, threads, host;
    char x[4 * LONGEST];
};

static void *reduce(void *arg)
{
    struct part *p = arg;
    const union attr a = {.group = {.ranks = p->ranks->n, .host = p->host}};
    struct tensor x = {.dtype = (uint8_t)p->l->t, .rank = 1, .dim = {p->l->n}, .stride = {1}};
    const struct query q = {.attr = &a, .in = {&x}, .out = {&x}, .nin = 1, .nout = 1};
    struct launch f = {.attr = &a, .nin = 1, .nout = 1, .threads = p->threads, .ranks = p->ranks};
    fold(p->l, p->ranks->rank * p->shares, p->shares, 1, p->x);
    f.work_bytes = cpu_kernels[OP_ALL_REDUCE]->workspace(&q);
    f.work = malloc(f.work_bytes + 1);
    f.in[0] = f.out[0] = vector(p->x, p->l->t, p->l->n);
    cpu_kernels[OP_ALL_REDUCE]->run(&f);
    free(f.work);
    return NULL;
}

static void check_ranks(const struct leaves *l, int ranks, int shares, int threads, int host)
{
    static struct part part[LEAVES];
    static struct ranks r[LEAVES];
    pthread_t thread[LEAVES];
    rank_threads_open(r, ranks, 60);
    for (int i = 0; i < ranks; i++) {
        part[i] = (struct part){&r[i], l, shares, threads, host, {0}};
        assert_int_equal(pthread_create(&thread[i], NULL, reduce, &part[i]), 0);
    }
    for (int i = 0; i < ranks; i++) {
        pthread_join(thread[i], NULL);
        assert_memory_equal(part[i].x, l->sum, l->bytes);
    }
    rank_threads_close(r);
}

/* Any number of ranks; with shares on each, a power of two of them. */
TEST(test_all_reduce)
{
    static struct leaves l;
    const int64_t lengths[] = {1, 65, LONGEST};
    for (int k = 0; k < 3; k++)
        for (int narrow = 0; narrow < 2; narrow++) {
            for (int ranks = 1; ranks <= 9; ranks++)
                for (int shares = 1; ranks * shares <= 16; shares *= 2) {
                    fill(&l, ranks * shares, lengths[k], narrow ? DT_BF16 : DT_F32);
                    check_ranks(&l, ranks, shares, 1 + ranks % 2, 0);
                }
            fill(&l, LEAVES, lengths[k], narrow ? DT_BF16 : DT_F32);
            check_ranks(&l, LEAVES, 1, 1, 0);
        }
}

/* Inside hosts of 2, 4, 8 ranks and then across any number of them: the tree over all ranks. */
TEST(test_hosts)
{
    static struct leaves l;
    const int64_t lengths[] = {1, 65, 1000, LONGEST};
    for (int k = 0; k < 4; k++)
        for (int host = 2; host <= 8; host *= 2)
            for (int hosts = 2; hosts * host <= 24; hosts++) {
                fill(&l, hosts * host, lengths[k], hosts % 2 ? DT_BF16 : DT_F32);
                check_ranks(&l, hosts * host, 1, 1, host);
            }
}

/* Every shard has one holder, and rank 0 holds the first. */
TEST(test_holders)
{
    for (int host = 0; host <= 8; host = host ? 2 * host : 1)
        for (int hosts = 1; hosts <= 5; hosts++)
            for (int i = 0, n = (host ? host : 3) * hosts; i < n; i++) {
                const int shard = ranks_shard(n, host, i);
                assert_true(shard >= 0 && shard < n && ranks_holder(n, host, shard) == i && (i || !shard));
            }
}

/* More than a round: ranks exchange 12 MiB, without hosts or with 2 ranks on each. */
static void *reduce_long(void *arg)
{
    struct ranks *ranks = arg;
    const int64_t n = (3 << 20) + 100;
    const union attr a = {.group = {.ranks = ranks->n, .host = ranks->n % 2 ? 0 : 2}};
    struct tensor x = {.dtype = DT_F32, .rank = 1, .dim = {n}, .stride = {1}};
    const struct query q = {.attr = &a, .in = {&x}, .out = {&x}, .nin = 1, .nout = 1};
    float *data = malloc(4 * (size_t)n);
    for (int64_t i = 0; i < n; i++) data[i] = (float)(i % 1000) + 0.25f * (float)ranks->rank;
    struct launch f = {.attr = &a, .nin = 1, .nout = 1, .threads = 1, .ranks = ranks,
                       .work_bytes = cpu_kernels[OP_ALL_REDUCE]->workspace(&q)};
    assert_true(f.work_bytes < 9 << 20);
    f.work = malloc(f.work_bytes);
    f.in[0] = f.out[0] = vector(data, DT_F32, n);
    cpu_kernels[OP_ALL_REDUCE]->run(&f);
    int64_t wrong = 0;
    for (int64_t i = 0; i < n; i++)
        wrong += data[i] != (float)ranks->n * (float)(i % 1000) + 0.125f * (float)(ranks->n * (ranks->n - 1));
    free(f.work);
    free(data);
    return wrong ? ranks : NULL;
}

TEST(test_rounds)
{
    struct ranks r[6];
    pthread_t thread[6];
    void *wrong;
    for (int n = 3; n <= 6; n++) {
        rank_threads_open(r, n, 60);
        for (int i = 0; i < n; i++) assert_int_equal(pthread_create(&thread[i], NULL, reduce_long, &r[i]), 0);
        for (int i = 0; i < n; i++) {
            pthread_join(thread[i], &wrong);
            assert_null(wrong);
        }
        rank_threads_close(r);
    }
}

/* --- the norm --------------------------------------------------------------------------------- */

static void squares(const float *x, int64_t n, int64_t at, int64_t cell, double *cells, int64_t M, int threads)
{
    const union attr a = {.squares = {at, cell}};
    struct launch f = {.attr = &a, .nin = 2, .nout = 1, .threads = threads};
    f.in[0] = vector((void *)(uintptr_t)x, DT_F32, n);
    f.in[1] = f.out[0] = vector(cells, DT_F64, M);
    cpu_kernels[OP_SQUARES]->run(&f);
}

static double total(double *cells, int64_t M)
{
    double sum = -1, work[64];
    struct launch f = {.nin = 1, .nout = 1, .threads = 1, .work = work};
    f.in[0] = vector(cells, DT_F64, M);
    f.out[0] = (struct operand){.data = &sum, .dtype = DT_F64};
    cpu_kernels[OP_TOTAL]->run(&f);
    return sum;
}

/* A weight in one piece, or cut into shards of whole cells: the same cells, and so the same
 * norm. */
TEST(test_norm)
{
    enum { N = 300001, CELL = 256, M = (N + CELL - 1) / CELL };
    float *x = malloc(N * sizeof *x);
    double whole[M], cut[M], exact = 0;
    for (int i = 0; i < N; i++) {
        x[i] = number();
        exact += (double)x[i] * (double)x[i];
    }
    squares(x, N, 0, CELL, whole, M, 1);
    assert_true(fabs(total(whole, M) / exact - 1) < 1e-11);
    for (int shards = 1; shards <= 9; shards++) {
        const int64_t c = ceil_div(N, (int64_t)shards * CELL) * CELL;
        for (int s = 0; s < shards; s++)
            if (s * c < N) squares(x + s * c, min_i64(c, N - s * c), s * c / CELL, CELL, cut, M, 1 + s % 3);
        assert_memory_equal(cut, whole, sizeof whole);
    }
    free(x);
}

MAIN(NULL, NULL)
