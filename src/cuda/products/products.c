/*
 * products.c: the running half of LINEAR, LINEAR_ACT, MATMUL and BMM: each is described as a matrix
 * product of gemm.h.
 *
 * LINEAR_ACT is LINEAR's product into z, or into y if z is not needed, followed by a separate
 * launch for the activation. The library could fuse ReLU and tanh GELU into its epilogue, but it
 * applies the latter to the unrounded sum, and the op guarantees the bits of LINEAR and ACT, so
 * that fusing changes nothing.
 *
 * Each op has a second row for what the library does not support: the same product by our own
 * kernel (gemm_generic.cu).
 *
 * BMM's leading dimensions are merged into one where their strides allow it. The largest of
 * those that remain becomes the library's batch, and the others are launched one by one.
 */
#include "cuda/rows/operand_loops.h"
#include "cuda/products/launch_products.h"
#include "cuda/products/gemm.h"
#include "cuda/products/gemm_shape.h"


struct step {
    int64_t count, a, b, c; /* strides in elements */
    int64_t whole;          /* count, if the launch computes all samples; the first dimension counts them */
};

struct products {
    struct gemm product;
    struct step outer[MAX_RANK]; /* BMM: dimensions that are looped over by launches */
    int nouter;
};

/* --- views ----------------------------------------------------------------------------- */

/* Returns an operand as a matrix [rows, last], or its transpose. */
static struct view matrix_of(const struct entry *entry, int slot, bool transposed)
{
    const struct operand *x = slot < MAX_IN ? &entry->launch.in[slot] : &entry->launch.out[slot - MAX_IN];
    int64_t row, column = x->rank ? x->stride[x->rank - 1] : 1;
    CHECK(rows_have_one_stride(x->rank, x->dim, x->stride, &row), "plan_products.c matches no other");
    if (operand_last(x) == 1) column = 1;
    return (struct view){.dtype = x->dtype, .row = transposed ? column : row, .column = transposed ? row : column,
                         .align = gemm_align_operand(entry, slot)};
}

/* Describes LINEAR: x W^T + bias + an addend of the result's shape. Where a micro-batch is
 * computed in portions, the rows are those of one, and whole_M is all. */
static void shape_linear(struct gemm_shape *s, const struct entry *entry, int result)
{
    const struct launch *l = &entry->launch;
    const struct operand *x = &l->in[0];
    *s = (struct gemm_shape){.M = operand_rows(x), .N = l->in[1].dim[0], .K = operand_last(x), .batches = 1,
                             .whole_M = portion_whole(l->portion, operand_rows(x)), .a = matrix_of(entry, 0, false),
                             .b = matrix_of(entry, 1, true), .c = matrix_of(entry, MAX_IN + result, false),
                             .bias = has(l, 2), .least = entry->least};
    if (has(l, 3)) s->from_align = gemm_align_operand(entry, 3);
    if (!s->bias) return;
    s->bias_dtype = l->in[2].dtype;
    s->bias_align = gemm_align_operand(entry, 2);
}

static void shape_matmul(struct gemm_shape *s, const struct entry *entry)
{
    const struct launch *l = &entry->launch;
    const bool ta = l->attr->matmul.ta, tb = l->attr->matmul.tb;
    const struct operand *a = &l->in[0], *b = &l->in[1];
    *s = (struct gemm_shape){.M = ta ? operand_last(a) : operand_rows(a), .N = tb ? operand_rows(b) : operand_last(b),
                                .K = ta ? operand_rows(a) : operand_last(a), .batches = 1, .a = matrix_of(entry, 0, ta),
                                .b = matrix_of(entry, 1, tb), .least = entry->least, .sums = ta};
    /* The result has a's rows, or the accumulator's shape: it is dense in either case. */
    s->c =
        (struct view){.dtype = l->out[0].dtype, .row = s->N, .column = 1, .align = gemm_align_operand(entry, MAX_IN)};
    if (!ta) s->whole_M = portion_whole(l->portion, s->M);
}

/* Describes what a launch has of a product whose rows, or with `sums` terms, follow a sequence. */
static int fit(struct products *p, const struct launch *l, bool sums, struct error *e)
{
    const int64_t rows = operand_rows(&l->in[0]);
    struct gemm_shape s = p->product.shape;
    if (!l->extent.part || rows == (sums ? s.K : s.M)) return PL_OK;
    *(sums ? &s.K : &s.M) = rows;
    if (p->product.library) return gemm_describe(&p->product, &s, e);
    p->product.shape = s;
    return PL_OK;
}

/* --- preparing and launching ----------------------------------------------------------------- */

static struct products *products_new(struct entry *entry)
{
    CHECK((uintptr_t)entry->launch.work % 256 == 0, "cuBLASLt needs a workspace aligned to 256 bytes");
    return entry->launch.state = mem_alloc(sizeof(struct products));
}

static void products_release(void *state)
{
    gemm_end(&((struct products *)state)->product);
    mem_free(state);
}

static void products_list(const void *state, struct text *out)
{
    gemm_list(&((const struct products *)state)->product, out);
}

static int linear_prepare(const struct cuda_state *s, struct entry *entry, struct error *e)
{
    struct gemm_shape shape;
    shape_linear(&shape, entry, 0);
    return gemm_begin(&products_new(entry)->product, s, &shape, entry->launch.work_bytes, e);
}

static int linear_prepare_generic(const struct cuda_state *s, struct entry *entry, struct error *e)
{
    struct gemm_shape shape;
    (void)s, (void)e;
    shape_linear(&shape, entry, 0);
    gemm_begin_generic(&products_new(entry)->product, &shape);
    return PL_OK;
}

static int linear_into(const struct launch *l, void *y, struct error *e)
{
    struct products *p = l->state;
    TRY(fit(p, l, false, e));
    const struct gemm_at at = {y, l->in[0].data, l->in[1].data, has(l, 2) ? l->in[2].data : NULL,
                               has(l, 3) ? l->in[3].data : NULL};
    return gemm_run(&p->product, &at, l->work, l->work_bytes, l->stream, e);
}

static int linear_launch(const struct launch *l, struct error *e) { return linear_into(l, l->out[0].data, e); }

/* Returns the index of the output that the product is written to. */
static int product_output(const struct launch *l) { return l->nout > 1 && l->out[1].data ? 1 : 0; }

static int linear_act_prepare(const struct cuda_state *s, struct entry *entry, struct error *e)
{
    struct gemm_shape shape;
    shape_linear(&shape, entry, product_output(&entry->launch));
    return gemm_begin(&products_new(entry)->product, s, &shape, entry->launch.work_bytes, e);
}

static int linear_act_prepare_generic(const struct cuda_state *s, struct entry *entry, struct error *e)
{
    struct gemm_shape shape;
    (void)s, (void)e;
    shape_linear(&shape, entry, product_output(&entry->launch));
    gemm_begin_generic(&products_new(entry)->product, &shape);
    return PL_OK;
}

/* Uses ACT's own kernels, whose bits the op guarantees: for aligned results, and for any. */
static int linear_act_launch(const struct launch *l, struct error *e)
{
    const struct operand *z = &l->out[product_output(l)], *y = &l->out[0];
    TRY(linear_into(l, z->data, e));
    return cuda_launch_act(l, y, z, e);
}

static int linear_act_launch_any(const struct launch *l, struct error *e)
{
    const struct operand *z = &l->out[product_output(l)], *y = &l->out[0];
    const struct any_types types = {any_of(y->dtype), any_of(z->dtype), ANY_F32};
    TRY(linear_into(l, z->data, e));
    TRY_CUDA(cuda_any((enum function)(FUNCTION_ACT + l->attr->act.kind), y->data, z->data, NULL, types,
                      loop_nest_of(y, z, NULL), 0, l->stream));
    return PL_OK;
}

static int matmul_prepare(const struct cuda_state *s, struct entry *entry, struct error *e)
{
    struct gemm_shape shape;
    shape_matmul(&shape, entry);
    return gemm_begin(&products_new(entry)->product, s, &shape, entry->launch.work_bytes, e);
}

static int matmul_prepare_generic(const struct cuda_state *s, struct entry *entry, struct error *e)
{
    struct gemm_shape shape;
    (void)s, (void)e;
    shape_matmul(&shape, entry);
    gemm_begin_generic(&products_new(entry)->product, &shape);
    return PL_OK;
}

static int matmul_launch(const struct launch *l, struct error *e)
{
    struct products *p = l->state;
    TRY(fit(p, l, l->attr->matmul.ta, e));
    const struct gemm_at at = {l->out[0].data, l->in[0].data, l->in[1].data, NULL, has(l, 2) ? l->in[2].data : NULL};
    CHECK(!at.from || at.from == at.c, "the result is not in the accumulator's bytes");
    return gemm_run(&p->product, &at, l->work, l->work_bytes, l->stream, e);
}

/* --- BMM ------------------------------------------------------------------------------------ */

static bool can_merge(const struct step *outer, const struct step *inner)
{
    return outer->a == inner->a * inner->count && outer->b == inner->b * inner->count &&
           outer->c == inner->c * inner->count;
}

/* Lists the leading dimensions; neighbours are merged if all three operands allow it. */
static int bmm_steps(struct step *steps, const struct launch *l)
{
    int n = 0;
    for (int d = 0; d + 2 < l->out[0].rank; d++) {
        const int64_t count = l->out[0].dim[d];
        const struct step one = {count, l->in[0].stride[d], l->in[1].stride[d], l->out[0].stride[d],
                                 d ? count : portion_whole(l->portion, count)};
        if (one.whole == 1) continue;
        if (n && can_merge(&steps[n - 1], &one))
            steps[n - 1] =
                (struct step){steps[n - 1].count * one.count, one.a, one.b, one.c, steps[n - 1].whole * one.whole};
        else
            steps[n++] = one;
    }
    return n;
}

/* Returns the last two dimensions of an operand, or their transpose. */
static struct view batch_of(const struct entry *entry, int slot, bool transposed)
{
    const struct operand *x = slot < MAX_IN ? &entry->launch.in[slot] : &entry->launch.out[slot - MAX_IN];
    const int64_t row = x->stride[x->rank - 2], column = x->stride[x->rank - 1];
    struct view v = {.dtype = x->dtype, .row = transposed ? column : row, .column = transposed ? row : column,
                     .align = gemm_align_operand(entry, slot)};
    for (int d = 0; d + 2 < x->rank; d++)
        if (x->dim[d] > 1)
            v.align = (uint32_t)min_i64(v.align, gemm_align((uint64_t)x->stride[d] * dtype_size(x->dtype)));
    return v;
}

/* Removes the largest step from the list and makes it the library's batch. */
static void bmm_batch(struct gemm_shape *s, struct products *p)
{
    int most = 0;
    s->batches = 1;
    if (!p->nouter) return;
    for (int i = 1; i < p->nouter; i++)
        if (p->outer[i].whole > p->outer[most].whole) most = i;
    s->batches = p->outer[most].count;
    s->whole_batches = p->outer[most].whole;
    s->a.batch = p->outer[most].a, s->b.batch = p->outer[most].b, s->c.batch = p->outer[most].c;
    p->nouter--;
    for (int i = most; i < p->nouter; i++) p->outer[i] = p->outer[i + 1];
}

static struct products *bmm_begin(struct entry *entry, struct gemm_shape *shape)
{
    const struct launch *l = &entry->launch;
    const struct operand *a = &l->in[0], *c = &l->out[0];
    const bool ta = l->attr->matmul.ta, tb = l->attr->matmul.tb;
    struct products *p = products_new(entry);
    *shape = (struct gemm_shape){.M = c->dim[c->rank - 2], .N = c->dim[c->rank - 1],
                                 .K = a->dim[a->rank - (ta ? 2 : 1)], .a = batch_of(entry, 0, ta),
                                 .b = batch_of(entry, 1, tb), .c = batch_of(entry, MAX_IN, false)};
    p->nouter = bmm_steps(p->outer, l);
    bmm_batch(shape, p);
    return p;
}

static int bmm_prepare(const struct cuda_state *s, struct entry *entry, struct error *e)
{
    struct gemm_shape shape;
    struct products *p = bmm_begin(entry, &shape);
    return gemm_begin(&p->product, s, &shape, entry->launch.work_bytes, e);
}

static int bmm_prepare_generic(const struct cuda_state *s, struct entry *entry, struct error *e)
{
    struct gemm_shape shape;
    (void)s, (void)e;
    gemm_begin_generic(&bmm_begin(entry, &shape)->product, &shape);
    return PL_OK;
}

static void *offset_data(const struct operand *x, int64_t elements)
{
    return (char *)x->data + elements * (int64_t)dtype_size(x->dtype);
}

static int bmm_launch(const struct launch *l, struct error *e)
{
    const struct products *p = l->state;
    int64_t launches = 1;
    CHECK(!has(l, 2) || l->in[2].data == l->out[0].data, "the result is not in the accumulator's bytes");
    for (int i = 0; i < p->nouter; i++) launches *= p->outer[i].count;
    for (int64_t n = 0; n < launches; n++) {
        int64_t a = 0, b = 0, c = 0, rest = n;
        for (int i = p->nouter - 1; i >= 0; rest /= p->outer[i].count, i--) {
            const int64_t k = rest % p->outer[i].count;
            a += k * p->outer[i].a, b += k * p->outer[i].b, c += k * p->outer[i].c;
        }
        void *to = offset_data(&l->out[0], c);
        const struct gemm_at at = {to, offset_data(&l->in[0], a), offset_data(&l->in[1], b), NULL,
                                   has(l, 2) ? to : NULL};
        TRY(gemm_run(&p->product, &at, l->work, l->work_bytes, l->stream, e));
    }
    return PL_OK;
}

CUDA_KERNEL(cublaslt_linear, .prepare = linear_prepare, .launch = linear_launch, .list = products_list,
            .release = products_release);
CUDA_KERNEL(cublaslt_linear_act, .prepare = linear_act_prepare, .launch = linear_act_launch, .list = products_list,
            .release = products_release);
CUDA_KERNEL(cublaslt_matmul, .prepare = matmul_prepare, .launch = matmul_launch, .list = products_list,
            .release = products_release);
CUDA_KERNEL(cublaslt_bmm, .prepare = bmm_prepare, .launch = bmm_launch, .list = products_list,
            .release = products_release);
CUDA_KERNEL(cuda_linear, .prepare = linear_prepare_generic, .launch = linear_launch, .release = products_release);
CUDA_KERNEL(cuda_linear_act, .prepare = linear_act_prepare_generic, .launch = linear_act_launch_any,
            .release = products_release);
CUDA_KERNEL(cuda_matmul, .prepare = matmul_prepare_generic, .launch = matmul_launch, .release = products_release);
CUDA_KERNEL(cuda_bmm, .prepare = bmm_prepare_generic, .launch = bmm_launch, .release = products_release);

/* --- a few rows with a long matrix (thin.h, thin.cu) ------------------------------------------ */

static int launch_thin(const struct launch *l, struct error *e)
{
    const struct operand *a = &l->in[0], *b = &l->in[1], *c = &l->out[0];
    const struct typed_ptr first = typed_of(a), second = typed_of(b), result = typed_of(c);
    struct thin t = thin_of(l->attr->matmul.ta, l->attr->matmul.tb, c->rank, a->dim, b->dim, c->dim);
    t.add = has(l, 2);
    CHECK(!t.add || l->in[2].data == c->data, "the result is not in the accumulator's bytes");
    const enum thin_form form = (enum thin_form)l->form;
    switch (form) {
    case THIN_FORM_DOWN:
    case THIN_FORM_DOWN_ANY: TRY_CUDA(cuda_thin(first, second, result, NULL, NULL, t, form, l->stream)); break;
    case THIN_FORM_UP: TRY_CUDA(cuda_thin(second, result, first, NULL, NULL, t, form, l->stream)); break;
    case THIN_FORM_ACROSS: TRY_CUDA(cuda_thin(result, second, first, NULL, l->work, t, form, l->stream)); break;
    }
    return PL_OK;
}

CUDA_KERNEL(cuda_thin, .launch = launch_thin);
