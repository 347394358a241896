/*
 * norm_rope.c: see norm_rope.h.
 */
#include "run/norm_rope.h"

/* Begins with the launch itself twice, each with the attributes of its op. */
static void begin(struct norm_rope *to, const struct launch *l)
{
    to->norm_attr = (union attr){.rmsnorm = {l->attr->rmsnorm_rope.eps, l->attr->rmsnorm_rope.unit_offset}};
    to->rope_attr = *l->attr;
    to->norm = to->rope = *l;
    to->norm.attr = &to->norm_attr;
    to->rope.attr = &to->rope_attr;
}

/* Sets the inputs of the rotation of x, in place or to y: input `table` is inv_freq, and positions
 * may follow it. */
static void set_rope(struct norm_rope *to, const struct launch *l, const struct operand *x, int table)
{
    to->rope.in[0] = *x;
    for (int i = table; i < l->nin; i++) to->rope.in[1 + i - table] = l->in[i];
    to->rope.nin = 1 + l->nin - table;
    to->rope.nout = 1;
}

void norm_rope_apart(struct norm_rope *to, const struct launch *l)
{
    begin(to, l);
    to->norm.nin = 2;
    set_rope(to, l, &l->out[0], 2);
}

void norm_rope_bwd_apart(struct norm_rope *to, const struct launch *l)
{
    begin(to, l);
    to->norm.in[0] = l->out[0];
    to->norm.nin = 4;
    set_rope(to, l, &l->in[0], 4);
    to->rope_attr.rope.inverse = !to->rope_attr.rope.inverse;
}
