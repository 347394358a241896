/*
 * thin.c: the running half of products of a few rows with a long matrix (thin.h, thin.cu).
 */
#include "cuda/products/launch_thin.h"
#include "cuda/device/operands.h"

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
