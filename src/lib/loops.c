/*
 * loops.c: PL_LAYERS and PL_LOOP of the builder: a block that is built several times, with weights
 * of its own each time or with the same ones.
 *
 * A loop is unrolled: each iteration emits its nodes, in a scope of its own. So a value that an
 * iteration hands to the next is an ordinary tensor, autodiff and all passes see ordinary nodes,
 * dropout has another key in each iteration, and the planner decides for each iteration what the
 * backward keeps and what it recomputes. The loops of graph.h are for sums over independent slices,
 * whose backward follows the forward inside the iteration; the backward of a recurrence begins
 * after the last iteration.
 */
#include "plimsoll.h"

#include "graph/emit.h"
#include "lib/builder.h"

/* Each iteration is some nodes; far beyond this the graph itself would need gigabytes. */
enum { ITERATIONS_MOST = 1 << 16 };

enum { SCOPE_ROOM = NAME_MOST + 32 };
static void iteration_name(char out[SCOPE_ROOM], const char *loop, int64_t i)
{
    snprintf(out, SCOPE_ROOM, "%s.%lld", loop, (long long)i);
}

/* Ends iteration i, which must be the innermost open scope. */
static bool end_iteration(struct pl_builder *b, const char *loop, int64_t i)
{
    char expected[SCOPE_ROOM];
    iteration_name(expected, loop, i);
    const char *open = graph_name(b->g, b->g->scopes.at[b->g->at.scope].name);
    const size_t n = strlen(open), tail = strlen(expected);
    if (!b->depth || n < tail || strcmp(open + n - tail, expected))
        return graph_fail(b->g, "loop %s: iteration %lld ends, and the innermost open scope is %s", loop, (long long)i,
                          b->depth ? open : "none");
    builder_close(b);
    return true;
}

int pl_iteration(struct pl_builder *b, const char *name, int64_t i, int64_t count)
{
    if (!builder_named(b, "a loop", name)) return 0;
    if (count < 0 || count > ITERATIONS_MOST || i < 0 || i > count)
        return (int)graph_fail(b->g, "loop %s: iteration %lld of %lld; expected at most %d", name, (long long)i,
                               (long long)count, ITERATIONS_MOST);
    if (i && !end_iteration(b, name, i - 1)) return 0;
    if (i == count) return 0;
    char scope[SCOPE_ROOM];
    iteration_name(scope, name, i);
    return builder_open(b, scope, SCOPE_BLOCK);
}

int pl_layer(struct pl_builder *b, const char *name, int64_t i, int64_t count)
{
    if (!pl_iteration(b, name, i, count)) return 0;
    const size_t n = strlen(b->prefix), room = sizeof b->prefix - n;
    if ((size_t)snprintf(b->prefix + n, room, "%s.%lld.", name, (long long)i) < room) return 1;
    return (int)graph_fail(b->g, "the names of nested layers have more than %d bytes: %.40s...", NAME_MOST, b->prefix);
}

pl_tensor pl_at(struct pl_builder *b, pl_tensor x, int axis, int64_t i)
{
    int64_t dim[MAX_RANK];
    int rank = 0;
    char text[160];
    if (!builder_tensor(b, x)) return 0;
    const struct tensor t = *tensor_at(b->g, x);
    if (axis < 0 || axis >= t.rank || i < 0 || i >= t.dim[axis])
        return graph_fail(b->g, "pl_at: element %lld along axis %d of %s", (long long)i, axis,
                          tensor_print(b->g, x, text));
    for (int k = 0; k < t.rank; k++)
        if (k != axis) dim[rank++] = t.dim[k];
    return op_reshape(b->g, op_slice(b->g, x, axis, i, 1), rank, dim);
}

/* Returns x with an axis of 1 before dimension `axis`. */
static id with_axis(struct pl_builder *b, id x, int axis)
{
    const struct tensor t = *tensor_at(b->g, x);
    int64_t dim[MAX_RANK];
    for (int k = 0, from = 0; k <= t.rank; k++) dim[k] = k == axis ? 1 : t.dim[from++];
    return op_reshape(b->g, x, t.rank + 1, dim);
}

pl_tensor pl_stack(struct pl_builder *b, int n, const pl_tensor *x, int axis)
{
    char text[160];
    if (n < 1 || !x) return graph_fail(b->g, "pl_stack: %d tensors", n);
    id *part = mem_alloc((size_t)n * sizeof *part);
    for (int i = 0; i < n && !b->g->error.code; i++) {
        if (!builder_tensor(b, x[i])) break;
        const int rank = tensor_at(b->g, x[i])->rank;
        if (axis < 0 || axis > rank || rank == MAX_RANK)
            graph_fail(b->g, "pl_stack: along a new axis %d of %s", axis, tensor_print(b->g, x[i], text));
        else part[i] = with_axis(b, x[i], axis);
    }
    const id all = b->g->error.code ? 0 : op_concat(b->g, part, n, axis);
    mem_free(part);
    return all;
}
