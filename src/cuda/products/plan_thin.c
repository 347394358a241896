/*
 * plan_thin.c: batched products of a few rows with a long matrix (thin.h): SAM's masks from its
 * hypernetworks, and their gradients. Operands may have different dtypes, as they do in the
 * gradients; the library does not support that.
 */
#include "cuda/plan.h"
#include "cuda/products/thin.h"
#include "graph/ops.h"

static struct thin thin_query(const struct query *q)
{
    const struct tensor *a = q->in[0], *b = q->in[1], *c = q->out[0];
    return thin_of(q->attr->matmul.ta, q->attr->matmul.tb, c->rank, a->dim, b->dim, c->dim);
}

static bool match_thin(const struct query *q)
{
    const struct tensor *acc = given(q, 2);
    if (!is_storable(q->in[0]) || !is_storable(q->in[1]) || !is_storable(q->out[0])) return false;
    if (acc && !is_dense(acc, q->out[0]->dtype)) return false;
    const struct thin t = thin_query(q);
    return t.mode && is_aligned(t.mode == THIN_UP ? q->out[0] : q->in[1]);
}

static uint64_t work_thin(const struct query *q)
{
    const struct thin t = thin_query(q);
    return t.mode == THIN_ACROSS ? (uint64_t)(t.batches * t.blocks * t.m * t.K) * sizeof(float) : 0;
}

static int form_thin(const struct query *q)
{
    const struct thin t = thin_query(q);
    return thin_form(&t);
}
static const struct forms forms_thin = {
    form_thin,
    {[THIN_FORM_DOWN] = "nt, depth 32", [THIN_FORM_DOWN_ANY] = "nt", [THIN_FORM_UP] = "tn", [THIN_FORM_ACROSS] = "nn"}};

const struct kernel cuda_plan_thin[] = {
#include "cuda/products/thin.def"
    {.op = OP_NONE},
};
