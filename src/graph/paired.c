/*
 * paired.c: the rules of ops whose gradient is a single op, the row that follows:
 *
 *     OP(NAME,     ..., shape,       paired, reads, ...)
 *     OP(NAME_BWD, ..., like_inputs, none,   NONE,  ..., OPF_GRAD, ...)
 *
 * NAME_BWD has NAME's attributes. Its inputs are the gradient dy of output 0, then the tensors that
 * `reads` names: inputs in order, then outputs in order. Its outputs are the gradients of NAME's
 * inputs, from the first on; inputs after the last output have none. An input that the gradient
 * does not read has the shape of the input before it (a bias that of its weight), and the first
 * input that of dy. If NAME_BWD's row has one more optional input and it is given, it is added to
 * the first gradient and has its shape.
 *
 * The shapes of the forward's inputs therefore follow from the backward's inputs, and the forward's
 * own shape rule checks them: a kernel of NAME_BWD may rely on everything that a kernel of NAME may
 * rely on.
 */
#include <string.h>

#include "graph/infer.h"
#include "graph/ops.h"

/* The previous row, named like this one without _BWD. */
static const struct op_row *forward_of(enum op backward)
{
    const struct op_row *row = &op_table[backward - 1];
    const size_t n = strlen(row->name);
    CHECK(!strncmp(op_table[backward].name, row->name, n) && !strcmp(op_table[backward].name + n, "_BWD"),
          "%s follows %s, which is not its forward", op_table[backward].name, row->name);
    return row;
}

void vjp_paired(struct vjp *v)
{
    const struct op_row *forward = forward_of(v->op + 1), *backward = forward + 1;
    id in[MAX_IN] = {v->dout[0]};
    int n = 1;
    for (int i = 0; i < MAX_IN && n < MAX_IN; i++)
        if (forward->reads >> i & 1) in[n++] = v->in[i];
    for (int o = 0; o < MAX_OUT && n < MAX_IN; o++)
        if (forward->reads >> (16 + o) & 1) in[n++] = v->out[o];
    id node = graph_emit(v->g, v->op + 1, v->attr, in, n);
    for (int i = 0; node && i < backward->outs; i++) v->din[i] = node_at(v->g, node)->out[i];
}

/* Fills fw->in with the forward's inputs; false: the backward's inputs are inconsistent. */
static bool forward_inputs(struct infer *f, struct infer *fw)
{
    const struct op_row *row = forward_of(f->op);
    const struct tensor *like = f->in[0];
    int at = 1;
    *fw = (struct infer){.op = f->op - 1, .attr = f->attr, .nin = row->max_in};
    for (int i = 0; i < row->max_in; i++) {
        if (row->reads >> i & 1) like = f->in[at++];
        fw->in[i] = like;
    }
    row->infer(fw);
    bool agree = fw->error[0] || same(f->in[0], &fw->out[0]);
    for (int o = 0; o < row->outs && agree && !fw->error[0]; o++)
        if (row->reads >> (16 + o) & 1) agree = tensor_elements(f->in[at++]) == tensor_elements(&fw->out[o]);
    if (!agree) snprintf(fw->error, sizeof fw->error, "dy or an output of %s has the wrong shape", row->name);
    const struct tensor *add = agree && !fw->error[0] && at < op_table[f->op].max_in ? f->in[at] : NULL;
    if (add && (!same(add, fw->in[0]) || add->dtype != fw->in[0]->dtype))
        snprintf(fw->error, sizeof fw->error, "the tensor added to a gradient differs from it in shape or dtype");
    memcpy(f->error, fw->error, sizeof f->error);
    return !f->error[0];
}

/* Each gradient has the dtype of its input. */
void infer_like_inputs(struct infer *f)
{
    struct infer fw;
    if (!forward_inputs(f, &fw)) return;
    for (int o = 0; o < op_table[f->op].outs; o++) like(&f->out[o], fw.in[o]);
}

/* The first input is an activation and the others are weights: weight gradients are sums, in
 * f32. */
void infer_like_weights(struct infer *f)
{
    infer_like_inputs(f);
    for (int o = 1; o < op_table[f->op].outs; o++) f->out[o].dtype = statistic(f->in[0]);
}
