/*
 * print.c: a program as text, one node per line, stable from run to run:
 *
 *     12 forward   model.layers.0.mlp   t31 f32[2,8,64] = LINEAR(t29, t4)
 *     loop head x4
 */
#include "graph/graph.h"
#include "graph/ops.h"

static void print_tensor(const struct graph *g, id t, struct text *out)
{
    const struct tensor *x = tensor_at(g, t);
    text_printf(out, "t%u@s%u", t, x->storage);
    if (x->offset) text_printf(out, "+%llu", (unsigned long long)x->offset);
    if (x->loop) text_printf(out, "+i*%lld", (long long)x->advance);
    text_printf(out, " %s[", dtype_name(x->dtype));
    for (int i = 0; i < x->rank; i++) text_printf(out, "%s%lld", i ? "," : "", (long long)x->dim[i]);
    text_printf(out, "]");
}

static void print_node(const struct graph *g, id n, int indent, struct text *out)
{
    const struct node *x = node_at(g, n);
    text_printf(out, "%*s%5u %-9s ", indent, "", n, phase_name(x->phase));
    bool any = false;
    for (int o = 0; o < x->nout; o++)
        if (x->out[o]) {
            text_printf(out, "%s", any ? ", " : "");
            print_tensor(g, x->out[o], out);
            any = true;
        }
    text_printf(out, " = %s(", op_table[x->op].name);
    for (int i = 0; i < x->nin; i++) {
        if (!x->in[i]) text_printf(out, "%s-", i ? ", " : "");
        else {
            const struct tensor *t = tensor_at(g, x->in[i]);
            bool leaf = !t->node && t->name;
            text_printf(out, "%st%u%s%s", i ? ", " : "", x->in[i], leaf ? ":" : "", leaf ? graph_name(g, t->name) : "");
        }
    }
    text_printf(out, ")");
    const char *scope = graph_name(g, g->scopes.at[x->scope].name);
    if (*scope) text_printf(out, "  # %s", scope);
    if (x->made_by) text_printf(out, " (%s", graph_name(g, x->made_by));
    if (x->made_by) text_printf(out, x->origin ? " of %u)" : ")", x->origin);
    text_printf(out, "\n");
}

void graph_print(const struct graph *g, enum program p, struct text *out)
{
    text_printf(out, "program %s: %u nodes\n", program_name(p), g->order[p].nodes.n);
    id inside = 0;
    int indent = 0;
    for (uint32_t k = 0; k < g->order[p].nodes.n; k++) {
        id n = g->order[p].nodes.at[k], to = node_at(g, n)->loop;
        while (inside && !loop_inside(g, to, inside)) {
            inside = g->loops.at[inside].parent;
            indent -= 2;
        }
        while (inside != to) { /* open the outermost loop that is not open yet */
            id l = to;
            while (g->loops.at[l].parent != inside) l = g->loops.at[l].parent;
            text_printf(out, "%*sloop %s x%u\n", indent, "", graph_name(g, g->loops.at[l].name), g->loops.at[l].trip);
            inside = l;
            indent += 2;
        }
        print_node(g, n, indent, out);
    }
}
