/*
 * cpu.c: the CPU's table of kernels, and tiles of f32 over dense rows of any float dtype (see
 * cpu.h).
 *
 * dtype_convert rounds to nearest even and its loops vectorise; f32 operands are never copied.
 */
#include "cpu/cpu.h"

#include "graph/ops.h"

/* --- the table: for each row of ops.def, the list that its kernel file defines. A row without a
 * list is a link error. */

#define VIEW(NAME, ...)
#define OP(NAME, ...) extern const struct kernel cpu_##NAME[];
#include "graph/ops.def"
#undef OP

const struct kernel *const cpu_kernels[OP_COUNT] = {
#define VIEW(NAME, ...)
#define OP(NAME, ...) [OP_##NAME] = cpu_##NAME,
#include "graph/ops.def"
#undef OP
};

const struct kernel *cpu_kernel_named(uint16_t op, const char *name)
{
    const struct kernel *k = cpu_kernels[op];
    while (k && k->name && strcmp(k->name, name)) k++;
    CHECK(k && k->name, "%s has no kernel %s", op_table[op].name, name);
    return k;
}

bool tensor_is(const struct tensor *t, enum dtype dtype)
{
    return t && t->dtype == dtype && tensor_is_dense(t);
}

bool tensor_is_fast(const struct tensor *t)
{
    return t && dtype_is_fast(t->dtype) && tensor_is_dense(t);
}

bool query_is_fast(const struct query *q)
{
    for (int i = 0; i < q->nin; i++)
        if (q->in[i] && !tensor_is_fast(q->in[i])) return false;
    for (int i = 0; i < q->nout; i++)
        if (q->out[i] && !tensor_is_fast(q->out[i])) return false;
    return true;
}

/* --- tiles ------------------------------------------------------------------------------------ */

/* Returns the address of element `at` of a dense operand. */
static void *row_at(const struct operand *x, int64_t at)
{
    return (char *)x->data + at * dtype_size(x->dtype);
}

const float *row_view(const struct operand *x, int64_t at, int n, float scratch[TILE])
{
    if (x->dtype == DT_F32) return row_at(x, at);
    dtype_convert(scratch, DT_F32, row_at(x, at), x->dtype, n);
    return scratch;
}

float *row_place(const struct operand *x, int64_t at, float scratch[TILE])
{
    return x->dtype == DT_F32 ? row_at(x, at) : scratch;
}

void row_store(const struct operand *x, int64_t at, int n, const float *from)
{
    if (row_at(x, at) != (const void *)from) dtype_convert(row_at(x, at), x->dtype, from, DT_F32, n);
}

void row_add(const struct operand *r, const struct operand *a, const struct operand *b, int64_t at, int64_t n)
{
    float as[TILE], bs[TILE];
    for (int64_t c = 0; c < n; c += TILE) {
        const int m = row_tile(n - c);
        const float *av = row_view(a, at + c, m, as), *bv = row_view(b, at + c, m, bs);
        float *to = row_place(r, at + c, as);
#pragma omp simd
        for (int i = 0; i < m; i++) to[i] = av[i] + bv[i];
        row_store(r, at + c, m, to);
    }
}

void row_copy(const struct operand *to, const struct operand *from, int threads)
{
    enum { RUN = 1 << 15 }; /* bytes */
    const int64_t bytes = operand_elements(to) * dtype_size(to->dtype);
    if (to->data == from->data) return;
#pragma omp parallel for num_threads(threads) schedule(static) if (bytes > 4 * RUN)
    for (int64_t at = 0; at < bytes; at += RUN)
        memcpy((char *)to->data + at, (const char *)from->data + at, (size_t)min_i64(RUN, bytes - at));
}
