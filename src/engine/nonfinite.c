/*
 * nonfinite.c: finds the first tensor that is not finite after a loss or a norm that is not.
 *
 * The step runs again, node by node, and the results of every node are checked. If the host cannot
 * access them, they are copied through the staging buffer in chunks. This is slow, but the run ends
 * afterwards.
 */
#include "engine/run.h"

#include <math.h>

#include "folder/transfer.h"

/* Reports whether the element at offset `far` belongs to x, and not to another tensor between x's
 * rows. */
static bool belongs_to(const struct operand *x, int64_t far)
{
    int64_t below = INT64_MAX;
    for (int done = 0; done < x->rank; done++) {
        int64_t step = 0, count = 1;
        for (int d = 0; d < x->rank; d++)
            if (x->dim[d] > 1 && x->stride[d] > step && x->stride[d] < below) step = x->stride[d], count = x->dim[d];
        if (!step) break;
        if (far / step >= count) return false;
        far %= step;
        below = step;
    }
    return far == 0;
}

static int64_t span_of(const struct operand *x)
{
    int64_t last = 0;
    for (int d = 0; d < x->rank; d++) last += (x->dim[d] - 1) * x->stride[d];
    return last + 1;
}

/* Counts the elements of x that are NaN or infinite; with `first` the search ends at the first. A
 * tensor that cannot be read counts 0: the device's own error ends the run then. */
static int64_t count_nonfinite(struct run *r, const struct operand *x, bool first)
{
    const enum dtype t = x->dtype;
    const int64_t n = span_of(x);
    const void *data = x->data;
    const struct device_ops *ops = r->device.ops;
    const int64_t room = PLAN_STAGING / (int64_t)dtype_size(t);
    char *buffer = run_staging(r);
    struct error e;
    int64_t bad = 0;
    for (int64_t at = 0; at < n && !(first && bad); at += room) {
        int64_t k = min_i64(room, n - at);
        if (ops->read(&r->device, buffer, (const char *)data + (uint64_t)at * dtype_size(t),
                      (uint64_t)k * dtype_size(t), &e))
            return 0;
        if (transfer_nonfinite(buffer, t, k) < 0) continue;
        for (int64_t i = 0; i < k; i++) bad += !isfinite(dtype_load(buffer, t, i)) && belongs_to(x, at + i);
    }
    return bad;
}

static bool operand_finite(struct run *r, const struct operand *x)
{
    return !x->data || !dtype_is_float(x->dtype) || !count_nonfinite(r, x, true);
}

struct probe {
    struct run *run;
    char *out;
    size_t room;
};

static void probe_entry(void *context, const struct entry *e)
{
    struct probe *p = context;
    if (p->out[0]) return;
    const struct graph *g = &p->run->planned.graph;
    const struct node *n = node_at(g, e->node);
    for (int i = 0; i < n->nin; i++)
        if (n->in[i] && !tensor_at(g, n->in[i])->node && !operand_finite(p->run, &e->launch.in[i])) {
            snprintf(p->out, p->room, "%s", graph_name(g, tensor_at(g, n->in[i])->name));
            return;
        }
    for (int o = 0; o < n->nout; o++)
        if (!operand_finite(p->run, &e->launch.out[o])) {
            snprintf(p->out, p->room, "%s (%s)", graph_name(g, tensor_at(g, n->out[o])->name), phase_name(n->phase));
            return;
        }
}

/* Searches from the last parameter on: parameters are in forward order, so the backward pass
 * reaches the last one first. */
void run_find_stored_nonfinite(struct run *r, char *out, size_t room)
{
    const struct graph *g = &r->planned.graph;
    out[0] = '\0';
    for (uint32_t i = g->params.n; i-- > 0 && !out[0];) {
        const struct param *p = &g->params.at[i];
        if (!p->grad || storage_of(g, p->grad)->kind != KIND_GRAD) continue;
        const struct tensor *t = tensor_at(g, p->grad);
        struct operand x = {.data = tape_address(&r->tape, p->grad), .dtype = t->dtype, .rank = t->rank};
        memcpy(x.dim, t->dim, sizeof x.dim);
        memcpy(x.stride, t->stride, sizeof x.stride);
        int64_t n = tensor_elements(t), bad = count_nonfinite(r, &x, false);
        if (bad)
            snprintf(out, room, "the gradient of %s (%lld of %lld elements)",
                     graph_name(g, tensor_at(g, p->tensor)->name), (long long)bad, (long long)n);
    }
}

/* Runs a fused step once more, because it keeps no gradients. */
void run_find_nonfinite_gradient(struct run *r, char *out, size_t room)
{
    run_find_stored_nonfinite(r, out, room);
    if (!out[0] && !r->planned.graph.order[PROGRAM_UPDATE].nodes.n) run_find_nonfinite(r, out, room);
}

void run_find_nonfinite(struct run *r, char *out, size_t room)
{
    struct probe p = {r, out, room};
    struct step_block b;
    struct error e;
    out[0] = '\0';
    if (run_get_step(r, &b, &e)) return;
    b.found_inf = 1; /* a step that updates weights must not do it again */
    if (run_put_step(r, &b, &e)) return;
    r->tape.observe = probe_entry;
    r->tape.observer = &p;
    int rc = run_program(r, PROGRAM_STEP, &e);
    r->tape.observe = NULL;
    if (rc && !out[0]) snprintf(out, room, "nothing: the step could not be run again (%.120s)", e.text);
}
