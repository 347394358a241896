/*
 * optest.h: runs a graph on a device, from input values to output values. test_ops.c,
 * test_autodiff.c, test_plan.c and the tests of graph passes share this harness. Each of them is a
 * program of its own, so the functions are static inline.
 *
 *     graph -> plan_place -> arenas -> tape -> values -> run -> loss and gradients
 *
 * Each value is a function of the seed, the tensor's name and the element's index. The same graph
 * in f64, f32 and bf16, with or without micro-batches, therefore starts from the same numbers. All
 * values are representable in bf16, so any difference in the results comes only from arithmetic.
 * Every run poisons dead bytes with NaN, so a wrong plan shows up as a NaN.
 */
#pragma once

#include "base/random.h"
#include "graph/ops.h"
#include "plan/plan.h"
#include "harness.h"

enum { IGNORED = -100, VOCABULARY = 11 };

/* --- values -------------------------------------------------------------------------- */

static inline double rounded(float x) { return bf16_to_f32(f32_to_bf16(x)); }

/* Element i of the float tensor called `name`: normally distributed, representable in bf16. */
static inline double value_of(const char *name, int64_t i)
{
    float x;
    random_normal(&x, random_key(seed, name), (uint64_t)i, 1, 1);
    return rounded(x);
}

/* Returns the first n elements before they are rounded, drawn at once; the caller frees them. */
static inline float *first_values(const char *name, int64_t n)
{
    float *x = mem_alloc((size_t)n * sizeof *x);
    random_normal(x, random_key(seed, name), 0, n, 1);
    return x;
}

/* Element i of the ids called `name`, below V; with `ignored` about every fifth one is -100. */
static inline int32_t id_of(const char *name, int64_t i, int64_t V, bool ignored)
{
    uint64_t bits = random_bits(random_key(seed, name), (uint64_t)i);
    return ignored && bits % 5 == 0 ? IGNORED : (int32_t)((bits >> 8) % (uint64_t)V);
}

/* --- a graph on a device ------------------------------------------------------------------ */

struct rig {
    struct graph graph; /* built by the caller, freed by rig_close */
    struct plan plan;
    struct device device;
    struct tape tape;
};

static inline const char *name_of(const struct rig *r, id tensor)
{
    return graph_name(&r->graph, tensor_at(&r->graph, tensor)->name);
}

/* Writes a parameter's initial values plus h along `direction` (NULL: no displacement). The initial
 * values depend on the parameter's name; its init gives their scale. */
static inline void rig_set_param(struct rig *r, const struct param *p, const char *direction, double h)
{
    const struct tensor *x = tensor_at(&r->graph, p->tensor);
    int64_t n = tensor_elements(x);
    float *start = mem_alloc((size_t)n * sizeof *start), *along = mem_alloc((size_t)n * sizeof *along);
    char name[300];
    snprintf(name, sizeof name, "%s %s", direction ? direction : "", name_of(r, p->tensor));
    random_normal(start, random_key(seed, name_of(r, p->tensor)), 0, n, 1);
    if (direction) random_normal(along, random_key(seed, name), 0, n, 1);
    double size = p->init.kind == INIT_NORMAL ? p->init.std : 1;
    for (int64_t k = 0; k < n; k++) {
        double at = p->init.kind == INIT_ONE ? 1 : rounded(start[k]) * size;
        dtype_store(tape_address(&r->tape, p->tensor), x->dtype, k, at + h * rounded(along[k]));
    }
    mem_free(start);
    mem_free(along);
}

/* Fills parameters by their names and constants from their data. */
static inline void rig_load_params(struct rig *r)
{
    for (uint32_t i = 0; i < r->graph.params.n; i++) {
        const struct param *p = &r->graph.params.at[i];
        const struct tensor *x = tensor_at(&r->graph, p->tensor);
        if (p->init.kind != INIT_DATA) rig_set_param(r, p, NULL, 0);
        else memcpy(tape_address(&r->tape, p->tensor), r->graph.blob.at + p->init.data, tensor_bytes(x));
    }
}

/* Element k of an input. An i32 input holds ids below VOCABULARY; the one called "labels" also
 * holds ignored entries, "image_index" is below 0 for most tokens; "samples" holds the number of
 * samples. */
static inline double rig_input(const char *name, enum dtype type, int64_t k)
{
    if (!strcmp(name, "samples")) return (double)k;
    if (!strcmp(name, "image_index")) return id_of(name, k, 64, false) - 36;
    return type == DT_I32 ? id_of(name, k, VOCABULARY, !strncmp(name, "labels", 6)) : value_of(name, k);
}

/* Fills each whole storage, hence the inputs of all micro-batches. */
static inline void rig_load_inputs(struct rig *r)
{
    const struct graph *g = &r->graph;
    bool *done = mem_alloc(g->storages.n);
    for (id t = 1; t < g->tensors.n; t++) {
        id s = tensor_at(g, t)->storage;
        if (g->storages.at[s].kind != KIND_INPUT || done[s]) continue;
        done[s] = true;
        const char *name = graph_name(g, g->storages.at[s].name);
        enum dtype type = tensor_at(g, t)->dtype;
        char *at = r->device.arena[SPACE_DEVICE] + r->plan.placement.offset[s];
        bool used = false;
        for (int p = 0; p < PROGRAM_COUNT; p++) used |= r->plan.placement.life[p][s].used;
        for (uint64_t k = 0; used && k < g->storages.at[s].bytes / dtype_size(type); k++)
            dtype_store(at, type, (int64_t)k, rig_input(name, type, (int64_t)k));
    }
    mem_free(done);
}

/* Places r->graph, allocates the arenas, records the tape, and writes all values. */
static inline void rig_open_on(struct rig *r, enum device_kind kind, int threads)
{
    struct error e = {0};
    must(graph_error(&r->graph, &e), &e);
    must(device_open(&r->device, kind, threads, &e), &e);
    must(plan_place(&r->plan, &r->graph, &r->device.profile, &e), &e);
    must(device_allocate(&r->device, r->plan.placement.arena, &e), &e);
    tape_build(&r->tape, &r->graph, &r->plan.placement, r->device.arena, r->device.profile.threads, NULL);
    must(r->device.ops->record(&r->device, &r->tape, &e), &e);
    r->tape.poison = true;
    if (r->graph.step) {
        struct step_block step =
            {.learning_rate = 1e-2f, .inv_count = {0.125f}, .clip_norm = 1, .loss_scale = 1, .step = 3, .adam_t = 3};
        memcpy(tape_address(&r->tape, r->graph.step), &step, sizeof step);
    }
    rig_load_params(r);
    rig_load_inputs(r);
}

static inline void rig_open(struct rig *r, enum device_kind kind) { rig_open_on(r, kind, 2); }

static inline void rig_close(struct rig *r)
{
    device_close(&r->device, &r->tape);
    tape_free(&r->tape);
    plan_free(&r->plan);
    graph_free(&r->graph);
}

/* Counts the nodes of one op in the step program. */
static inline int count_ops(const struct graph *g, enum op op)
{
    int n = 0;
    for (uint32_t k = 0; k < g->order[PROGRAM_STEP].nodes.n; k++)
        n += node_at(g, g->order[PROGRAM_STEP].nodes.at[k])->op == op;
    return n;
}

static inline void rig_run(struct rig *r)
{
    struct error e = {0};
    must(r->device.ops->run(&r->device, &r->tape, PROGRAM_STEP, &e), &e);
}

/* A tensor's elements in row-major order, for any strides. The caller frees. */
static inline double *rig_read(const struct rig *r, id tensor)
{
    const struct tensor *x = tensor_at(&r->graph, tensor);
    int64_t n = tensor_elements(x);
    double *out = mem_alloc((size_t)n * sizeof *out);
    for (int64_t i = 0; i < n; i++) {
        int64_t at = 0, rest = i;
        for (int d = x->rank - 1; d >= 0; rest /= x->dim[d], d--) at += rest % x->dim[d] * x->stride[d];
        out[i] = dtype_load(tape_address(&r->tape, tensor), x->dtype, at);
    }
    return out;
}

/* Compares a tensor of a graph with that of the same graph after a pass. They must be bit-equal,
 * or, where `tolerance` is not 0, within tolerance * (1 + |value|). */
static inline void rig_same_values(const struct rig *a, id s, const struct rig *b, id t, double tolerance,
                                   const char *what, const char *name)
{
    double *x = rig_read(a, s), *y = rig_read(b, t);
    for (int64_t k = 0; k < tensor_elements(tensor_at(&a->graph, s)); k++)
        if (!(fabs(x[k] - y[k]) <= tolerance * (1 + fabs(x[k]))))
            fail_msg("%s: %s[%d] is %g, without the pass %g", what, name, (int)k, y[k], x[k]);
    mem_free(x);
    mem_free(y);
}

/* Compares the gradients of all parameters that have one. */
static inline void rig_same_gradients(const struct rig *a, const struct rig *b, double tolerance, const char *what)
{
    for (uint32_t i = 0; i < a->graph.params.n; i++) {
        const struct param *p = &a->graph.params.at[i], *q = &b->graph.params.at[i];
        if (p->grad) rig_same_values(a, p->grad, b, q->grad, tolerance, what, name_of(a, p->tensor));
    }
}

static inline id rig_loss_tensor(const struct rig *r) { return graph_find_output(&r->graph, PROGRAM_STEP, "loss"); }

static inline double rig_loss(const struct rig *r)
{
    id loss = rig_loss_tensor(r);
    assert_true(loss != 0);
    return dtype_load(tape_address(&r->tape, loss), tensor_at(&r->graph, loss)->dtype, 0);
}

static inline const struct param *rig_param(const struct rig *r, const char *name)
{
    for (uint32_t i = 0; i < r->graph.params.n; i++)
        if (!strcmp(name_of(r, r->graph.params.at[i].tensor), name)) return &r->graph.params.at[i];
    return NULL;
}

/* --- finite differences -------------------------------------------------------------------- */

/* Moves every trained parameter by h along the direction called `direction`. */
static inline void rig_move(struct rig *r, const char *direction, double h)
{
    for (uint32_t i = 0; i < r->graph.params.n; i++)
        if (r->graph.params.at[i].grad) rig_set_param(r, &r->graph.params.at[i], direction, h);
}

static inline double rig_loss_at(struct rig *r, const char *direction, double h)
{
    rig_move(r, direction, h);
    rig_run(r);
    return rig_loss(r);
}

struct slope {
    double difference, product; /* finite difference of the loss along v; <gradient, v> */
    double size;                /* |gradient|, the scale of the product */
};

/* Computes <gradient, v> and |gradient|; returns the number of elements. */
static inline double rig_product(struct rig *r, const char *direction, struct slope *s)
{
    double g2 = 0, n = 0;
    rig_run(r);
    for (uint32_t i = 0; i < r->graph.params.n; i++) {
        const struct param *p = &r->graph.params.at[i];
        if (!p->grad) continue;
        char name[300];
        snprintf(name, sizeof name, "%s %s", direction, name_of(r, p->tensor));
        int64_t elements = tensor_elements(tensor_at(&r->graph, p->tensor));
        float *along = mem_alloc((size_t)elements * sizeof *along);
        double *g = rig_read(r, p->grad);
        random_normal(along, random_key(seed, name), 0, elements, 1);
        for (int64_t k = 0; k < elements; k++, n++) {
            s->product += g[k] * rounded(along[k]);
            g2 += g[k] * g[k];
        }
        mem_free(along);
        mem_free(g);
    }
    s->size = sqrt(g2);
    return n;
}

/* The slope of the loss along v by central differences of two points, h apart on each side. */
static inline double rig_difference(struct rig *r, const char *direction, double h)
{
    const double ahead = rig_loss_at(r, direction, h);
    return (ahead - rig_loss_at(r, direction, -h)) / (2 * h);
}

/* The slope of the loss along a random direction v, by finite differences and by gradient. A short
 * step mostly agrees at once. Else four points tell: their truncation error is h^4 times the fifth
 * derivative, which varies much between graphs, and their rounding error eps |loss| / h. So three
 * steps are tried and the best agreement is returned: the differences converge to the slope, and a
 * wrong gradient agrees with none of them. */
static inline struct slope rig_slope(struct rig *r, const char *direction)
{
    struct slope s = {0};
    const double n = rig_product(r, direction, &s), length = sqrt(n + 1); /* |v| is about sqrt(n) */
    s.difference = rig_difference(r, direction, 1e-4 / length);
    for (double h = 1e-3 / length; h > 1e-5 / length && !(fabs(s.difference - s.product) < 1e-7 * s.size); h /= 8) {
        const double slope = (4 * rig_difference(r, direction, h) - rig_difference(r, direction, 2 * h)) / 3;
        if (!(fabs(slope - s.product) >= fabs(s.difference - s.product))) s.difference = slope;
    }
    rig_move(r, direction, 0);
    return s;
}
