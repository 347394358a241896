/*
 * mpi_ranks.c: the sum of a gradient over ranks, divided among them: our exchange and tree of
 * additions (REDUCE_SCATTER of cpu/update/collective.c) beside MPI_Reduce_scatter_block on the same
 * bytes in the same run.
 *
 *     bench/ranks.sh [MIB] [RANKS]...
 *
 * The two take turns, and each has the time of the slowest rank, the best of several. Rank 0 prints
 * a line.
 */
#include <math.h>
#include <mpi.h>

#include "cpu/cpu.h"
#include "dist/dist.h"
#include "graph/ops.h"

enum { TRIES = 10 };

static double slowest(double seconds)
{
    double all;
    MPI_Allreduce(&seconds, &all, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return all;
}

int main(int argc, char **argv)
{
    struct error e = {0};
    struct ranks *r = dist_open(&e);
    if (!r) return fprintf(stderr, "mpi_ranks: %s\n", e.code ? e.text : "start it with mpirun"), 2;
    r->timeout = 60;
    const int64_t n = (argc > 1 ? atoll(argv[1]) : 64) * (1 << 20) / (int64_t)sizeof(float), part = n / r->n;
    const union attr attr = {.group = {.ranks = r->n, .part = part}};
    const struct tensor x = {.dtype = DT_F32, .rank = 1, .dim = {part * r->n}},
                        y = {.dtype = DT_F32, .rank = 1, .dim = {part}};
    const struct kernel *k = cpu_kernels[OP_REDUCE_SCATTER];
    const struct query q = {.attr = &attr, .in = {&x}, .out = {&y}, .nin = 1, .nout = 1};
    float *in = mem_alloc((size_t)n * sizeof *in), *ours = mem_alloc((size_t)part * sizeof *ours),
          *theirs = mem_alloc((size_t)part * sizeof *theirs);
    struct launch l = {.attr = &attr, .nin = 1, .nout = 1, .threads = 1, .ranks = r, .work_bytes = k->workspace(&q)};
    l.work = aligned_alloc(64, align_up(l.work_bytes, 64));
    l.in[0] = (struct operand){.data = in, .dtype = DT_F32, .rank = 1, .dim = {part * r->n}};
    l.out[0] = (struct operand){.data = ours, .dtype = DT_F32, .rank = 1, .dim = {part}};
    for (int64_t i = 0; i < n; i++) in[i] = (float)((i + r->rank) % 8);
    double best[2] = {1e9, 1e9};
    for (int t = 0; t < TRIES; t++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double from = MPI_Wtime();
        k->run(&l);
        best[0] = fmin(best[0], slowest(MPI_Wtime() - from));
        MPI_Barrier(MPI_COMM_WORLD);
        from = MPI_Wtime();
        MPI_Reduce_scatter_block(in, theirs, (int)part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        best[1] = fmin(best[1], slowest(MPI_Wtime() - from));
    }
    if (memcmp(ours, theirs, (size_t)part * sizeof *ours)) return fprintf(stderr, "mpi_ranks: the sums differ\n"), 1;
    if (!r->rank)
        printf("%lld MiB, %d ranks: ours %.1f ms, MPI_Reduce_scatter_block %.1f ms, ratio %.2f\n",
               (long long)n * 4 >> 20, r->n, 1e3 * best[0], 1e3 * best[1], best[0] / best[1]);
    dist_close(r);
    return 0;
}
