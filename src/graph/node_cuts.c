/*
 * node_cuts.c: see node_cuts.h.
 */
#include "graph/node_cuts.h"
#include "graph/ops.h"

static const char *const rows[OP_COUNT] = {
#define OP(...)
#define VIEW(...)
#define CUT(NAME, DIMENSIONS) [OP_##NAME] = DIMENSIONS,
#include "graph/ops.def"
};

/* --- cuts of an axis -------------------------------------------------------------------------- */

struct axis_cut axis_cut_even(int axis, int64_t length, int parts)
{
    struct axis_cut c = {.axis = (uint8_t)axis};
    if (length % parts == 0) c.section[c.sections++] = (struct section){length, 1};
    return c;
}

int64_t axis_cut_length(const struct axis_cut *c, int parts)
{
    int64_t n = 0;
    for (int i = 0; i < c->sections; i++) n += ceil_div(c->section[i].length, parts / c->section[i].copies);
    return n;
}

bool axis_cuts_alike(const struct axis_cut *a, const struct axis_cut *b)
{
    bool alike = a->axis == b->axis && a->sections == b->sections && a->ragged == b->ragged;
    for (int i = 0; i < a->sections && alike; i++)
        alike = a->section[i].length == b->section[i].length && a->section[i].copies == b->section[i].copies;
    return alike;
}

struct axis_cut axis_cut_part(const struct axis_cut *c, int64_t start, int64_t length)
{
    struct axis_cut part = {.axis = c->axis};
    int64_t at = 0;
    for (int i = 0; i < c->sections; i++) {
        const int64_t end = at + c->section[i].length;
        if (at >= start && end <= start + length) part.section[part.sections++] = c->section[i];
        else if (end > start && at < start + length) return (struct axis_cut){.axis = c->axis};
        at = end;
    }
    return part;
}

int64_t axis_cut_start(const struct axis_cut *c, int64_t start, int parts)
{
    int64_t at = 0, here = 0;
    for (int i = 0; i < c->sections && at < start; i++) {
        at += c->section[i].length;
        here += ceil_div(c->section[i].length, parts / c->section[i].copies);
    }
    return here;
}

/* --- views ------------------------------------------------------------------------------------ */

/* Returns the last axis of t with at most `outer` steps around it, which divide `outer`, and more
 * than one step of its own; *around is their number. */
static int axis_within(const struct tensor *t, int64_t outer, int64_t *around)
{
    int64_t here = 1;
    int found = -1;
    for (int i = 0; i < t->rank && outer % here == 0; here *= t->dim[i++])
        if (t->dim[i] > 1) found = i, *around = here;
    return found;
}

/* Multiplies the lengths of the sections, or divides them. */
static bool scale_sections(struct axis_cut *c, int64_t by, int64_t from, int parts)
{
    for (int i = 0; i < c->sections; i++) {
        if (c->section[i].length * by % from) return false;
        c->section[i].length = c->section[i].length * by / from;
        if (!c->ragged && c->section[i].length % (parts / c->section[i].copies)) return false;
    }
    return !c->ragged || by == from;
}

/* Repeats the sections for a reshape that joins the axes around the one that is cut with it, once
 * for each of their steps: [2,heads,D], cut along heads, becomes two sections of heads D. */
static bool join_axes(struct axis_cut *out, const struct axis_cut *c, int64_t steps)
{
    if (steps * c->sections > SECTIONS_MOST) return false;
    out->sections = 0;
    for (int64_t k = 0; k < steps; k++)
        for (int i = 0; i < c->sections; i++) out->section[out->sections++] = c->section[i];
    return true;
}

/* Does the reverse: one of equal sections remains. */
static bool split_axis(struct axis_cut *out, int64_t steps)
{
    for (int i = 1; i < out->sections; i++)
        if (out->section[i].length != out->section[0].length || out->section[i].copies != out->section[0].copies)
            return false;
    if (out->sections % steps) return false;
    out->sections = (uint8_t)(out->sections / steps);
    return true;
}

static bool cut_reshape(const struct tensor *from, const struct axis_cut *c, const struct tensor *to, int parts,
                        struct axis_cut *out)
{
    int64_t outer = 1, around = 1;
    for (int i = 0; i < c->axis; i++) outer *= from->dim[i];
    int axis = axis_within(to, outer, &around);
    *out = *c;
    if (axis < 0) return false;
    int64_t length = from->dim[c->axis];
    if (around < outer) { /* to's axis has other axes of from's in it */
        if (!join_axes(out, c, outer / around)) return false;
        length *= outer / around;
    } else if (c->sections > 1 && to->dim[axis] > 1 && c->sections % to->dim[axis] == 0 && axis + 1 < to->rank) {
        if (!split_axis(out, to->dim[axis])) return false;
        length /= to->dim[axis++];
    }
    out->axis = (uint8_t)axis;
    return scale_sections(out, to->dim[axis], length, parts);
}

static int permuted_axis(const struct node *n, int axis, bool forward, int rank)
{
    if (!forward) return n->attr.permute.axes[axis];
    for (int i = 0; i < rank; i++)
        if (n->attr.permute.axes[i] == axis) return i;
    return -1;
}

/* Cuts the other side of a view. The sections of what a slice is taken from are known only from all
 * of its slices: here only the slice follows. */
static bool cut_view(const struct graph *g, const struct node *n, int slot, const struct axis_cut *known, int parts,
                     struct node_cut *out)
{
    const bool forward = slot < MAX_IN;
    const struct tensor *x = tensor_at(g, n->in[0]), *y = tensor_at(g, n->out[0]);
    struct axis_cut *other = &out->tensor[forward ? MAX_IN : 0];
    *other = *known;
    switch (n->op) {
        case OP_RESHAPE:
        case OP_DETACH: return cut_reshape(forward ? x : y, known, forward ? y : x, parts, other);
        case OP_PERMUTE: other->axis = (uint8_t)permuted_axis(n, known->axis, forward, x->rank); return true;
        case OP_SLICE:
            if (known->axis != n->attr.slice.axis) return true;
            if (forward) *other = axis_cut_part(known, n->attr.slice.start, n->attr.slice.length);
            return forward && other->sections;
    }
    return false;
}

/* --- nodes with a kernel ---------------------------------------------------------------------- */

/* Sums and products of tensors whose dimensions are aligned from the last one on: one with size 1,
 * or without the dimension, is read whole. */
static bool cut_broadcast(const struct graph *g, const struct node *n, int slot, const struct axis_cut *known,
                          struct node_cut *out)
{
    const struct tensor *from = tensor_at(g, slot < MAX_IN ? n->in[slot] : n->out[slot - MAX_IN]);
    const int last = from->rank - known->axis;
    for (int i = 0; i < n->nin + 1; i++) {
        const int k = i < n->nin ? i : MAX_IN;
        const struct tensor *t = tensor_at(g, i < n->nin ? n->in[i] : n->out[0]);
        if (t->rank < last || t->dim[t->rank - last] != from->dim[known->axis]) continue;
        out->tensor[k] = *known;
        out->tensor[k].axis = (uint8_t)(t->rank - last);
    }
    return out->tensor[MAX_IN].sections;
}

/* Finds a dimension in a CUT row; returns the names that are cut with it, "H,G" or "K", and
 * *partial. NULL: it cannot be cut. */
static const char *find_group(enum op op, int dimension, size_t *n, bool *partial)
{
    for (const char *at = rows[op] ? rows[op] : ""; *at; at += strspn(at, " ")) {
        const size_t all = strcspn(at, " ");
        *partial = at[all - 1] == '+';
        *n = all - *partial;
        for (const char *name = at; name < at + *n;) {
            const size_t one = (size_t)(strcspn(name, ", +"));
            if (op_dimension_is(op, dimension, name, one)) return at;
            name += one + 1;
        }
        at += all;
    }
    return NULL;
}

static bool in_group(enum op op, int dimension, const char *group, size_t n)
{
    for (const char *name = group; name < group + n;) {
        const size_t one = strcspn(name, ", +");
        if (op_dimension_is(op, dimension, name, one)) return true;
        name += one + 1;
    }
    return false;
}

/* Cuts a tensor along a dimension that goes with the known one: heads of keys with those of
 * queries. Fewer of them than parts are repeated. */
static struct axis_cut cut_with(int axis, int64_t length, int parts)
{
    struct axis_cut c = axis_cut_even(axis, length, parts);
    if (!c.sections && parts % length == 0)
        c.section[c.sections++] = (struct section){length, (int32_t)(parts / length)};
    return c;
}

bool node_cut(const struct graph *g, const struct node *n, int slot, const struct axis_cut *known, int parts,
              struct node_cut *out)
{
    const struct tensor *from = tensor_at(g, slot < MAX_IN ? n->in[slot] : n->out[slot - MAX_IN]);
    const enum op op = (enum op)n->op;
    memset(out, 0, sizeof *out);
    out->tensor[slot] = *known;
    if (op_table[op].flags & OPF_VIEW) return cut_view(g, n, slot, known, parts, out);
    if (op == OP_ADD || op == OP_MUL) return cut_broadcast(g, n, slot, known, out);
    const int dimension = op_dimension(op, slot, from->rank, known->axis);
    size_t length = 0;
    const char *group = find_group(op, dimension, &length, &out->partial);
    if (!group) return false;
    for (int k = 0; k < n->nin + n->nout; k++) {
        const int at = k < n->nin ? k : MAX_IN + k - n->nin;
        const id x = k < n->nin ? n->in[k] : n->out[k - n->nin];
        if (!x || at == slot) continue;
        const struct tensor *t = tensor_at(g, x);
        const int axis = op_axis(op, at, t->rank, dimension);
        if (axis >= 0) {
            out->tensor[at] = *known;
            out->tensor[at].axis = (uint8_t)axis;
            continue;
        }
        for (int i = 0; i < t->rank && !out->tensor[at].sections; i++) {
            if (!in_group(op, op_dimension(op, at, t->rank, i), group, length)) continue;
            out->tensor[at] = cut_with(i, t->dim[i], parts);
            if (!out->tensor[at].sections || known->sections > 1) return false;
        }
        if (at >= MAX_IN && !out->tensor[at].sections && !out->partial) return false;
    }
    return true;
}
