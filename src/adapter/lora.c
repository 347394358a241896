/*
 * lora.c: adds LoRA adapters to a model's forward.
 *
 *     before   z = LINEAR(x, w, bias)
 *     after    h = SCALE(LINEAR(dropout(x), A), s)    d = LINEAR(h, B)    y = ADD(d, z)
 *
 * A [r,in] and B [out,r] are trained, w and everything else is frozen, so the backward of the
 * product reads w but not x. linear_add.c turns the sum into the residual input of the product: it
 * adds d as it writes y. If several products read views of the rows of one weight (queries, keys
 * and values of a fused matrix), h is computed once, and each product adds the same rows of B.
 *
 * DoRA (use_dora) also trains m, the norms of the rows of the adapted weight. With v = w + s B A,
 * its row norms n as constants in the backward, and f = m / n:
 *
 *     y = f (x w^T + d) + bias
 *     y = x w^T + bias + f (dropout(x) w^T + d) - dropout(x) w^T     with dropout
 *
 * The experts of a layer have adapters of their own, which are stacks as their weights are: A
 * [experts,r,in], B [experts,out,r].
 *
 * The pass runs when the forward is built, before the parameters are frozen and grouped by the
 * configuration: the names of adapters are parameter names like others.
 */
#include "adapter/adapter.h"

#include <math.h>

#include "graph/ops.h"
#include "passes/uses.h"

enum { NAME_ROOM = 320 };
static const char weight_end[] = ".weight";

/* --- modules ------------------------------------------------------------------------------- */

static const char *tensor_name(const struct graph *g, id t) { return graph_name(g, tensor_at(g, t)->name); }

/* Returns the parameter that a tensor is a view, or a dense copy, of; 0: none. */
static id root_of(const struct graph *g, id t)
{
    for (id n = tensor_at(g, t)->node; n; n = tensor_at(g, t)->node) {
        if (!(op_table[node_at(g, n)->op].flags & OPF_VIEW) && node_at(g, n)->op != OP_COPY) return 0;
        t = node_at(g, n)->in[0];
    }
    return storage_of(g, t)->kind == KIND_PARAM ? t : 0;
}

/* Marks the tensors in which an EMBEDDING looks rows up: a product with one is a tied output head.
 * The caller frees the array. */
static bool *mark_tables(const struct graph *g, enum program p)
{
    bool *table = mem_alloc(g->tensors.n);
    for (uint32_t k = 0; k < g->order[p].nodes.n; k++) {
        const struct node *n = node_at(g, g->order[p].nodes.at[k]);
        if (n->op == OP_EMBEDDING) table[n->in[1]] = true;
    }
    return table;
}

/* Marks the tensors that a cross-entropy reads, itself or through a view or a soft cap, and the
 * output "logits". The caller frees the array. */
static bool *mark_logits(const struct graph *g, enum program p)
{
    bool *logits = mem_alloc(g->tensors.n);
    logits[graph_find_output(g, p, "logits")] = true;
    for (uint32_t k = g->order[p].nodes.n; k-- > 0;) {
        const struct node *n = node_at(g, g->order[p].nodes.at[k]);
        if (n->op == OP_XENT) logits[n->in[0]] = true;
        const bool passes = n->op == OP_SOFTCAP || op_table[n->op].flags & OPF_VIEW;
        if (passes && logits[n->out[0]]) logits[n->in[0]] = true;
    }
    return logits;
}

struct adapted_modules {
    const struct graph *g;
    bool *table, *logits; /* by tensor */
    uint32_t *readers;
};

static struct adapted_modules modules_begin(const struct graph *g, enum program p)
{
    return (struct adapted_modules){g, mark_tables(g, p), mark_logits(g, p), readers_by_tensor(g, p)};
}

static void modules_end(struct adapted_modules *m)
{
    mem_free(m->table);
    mem_free(m->logits);
    mem_free(m->readers);
}

/* A linear module: the product's weight, and the name that PyTorch gives the module. */
struct linear {
    id weight, model; /* the parameter; the one in the model, if the head is not tied any more */
    id matrix;        /* the weight as [outputs,inputs]: itself, or the transpose that the product reads rows of */
    bool head;
    id offsets; /* of a grouped product: the weight is a stack; else 0 */
    char name[NAME_ROOM];
};

static bool linear_of(const struct adapted_modules *m, const struct node *n, struct linear *out)
{
    const struct graph *g = m->g;
    id at;
    const bool grouped = n->op == OP_GROUPED_LINEAR;
    if ((n->op != OP_LINEAR && !grouped) || !(out->weight = root_of(g, n->in[1]))) return false;
    const char *name = tensor_name(g, out->weight);
    if (!text_ends_with(name, weight_end)) return false;
    if (!grouped && tensor_at(g, out->weight)->rank > 2) return false; /* a convolution that is a product */
    out->model = out->weight;
    out->offsets = grouped ? n->in[2] : 0;
    for (out->matrix = n->in[1]; out->matrix != out->weight; out->matrix = node_at(g, at)->in[0]) {
        at = tensor_at(g, out->matrix)->node;
        if (node_at(g, at)->op == OP_PERMUTE) break;
    }
    snprintf(out->name, sizeof out->name, "%.*s", (int)(strlen(name) - strlen(weight_end)), name);
    if (m->table[out->weight]) snprintf(out->name, sizeof out->name, "%s", graph_name(g, g->scopes.at[n->scope].name));
    out->head = m->logits[n->out[0]];
    return true;
}

/* Finds a matrix that the model declares but does not compute with, because the loss does not
 * depend on it: its module is a linear layer too, with an adapter that is only kept and saved. */
static bool idle_linear(const struct adapted_modules *m, id t, struct linear *out)
{
    const char *name = tensor_name(m->g, t);
    if (storage_of(m->g, t)->kind != KIND_PARAM || tensor_at(m->g, t)->rank != 2 || m->readers[t] ||
        !text_ends_with(name, weight_end))
        return false;
    *out = (struct linear){.weight = t, .model = t, .matrix = t};
    snprintf(out->name, sizeof out->name, "%.*s", (int)(strlen(name) - strlen(weight_end)), name);
    return true;
}

/* Reports whether a parameter belongs to a module that is trained as a whole. */
static bool is_saved(const struct adapter *a, const char *param)
{
    char module[NAME_ROOM];
    const char *dot = strrchr(param, '.');
    snprintf(module, sizeof module, "%.*s", (int)(dot ? dot - param : 0), param);
    return adapter_saves(a, module);
}

/* --- one product ----------------------------------------------------------------------------- */

struct lora {
    struct graph *g;
    const struct adapter *a;
    int64_t B;          /* samples */
    id samples;         /* the input; 0: not needed so far */
    uint32_t tensors;   /* before the pass */
    struct shared {
        id input, dropped, hidden; /* of the last adapter of this weight: x, x with dropout, h */
        uint32_t calls;            /* how often the input was dropped out */
    } *shared;          /* by weight of the model */
};

/* Declares a parameter by its whole name, in whatever part of the model its module is. */
static id param_named(struct graph *g, const char *name, int rank, const int64_t *dim, struct init init)
{
    const id scope = g->at.scope;
    g->at.scope = 0;
    const id t = graph_param(g, name, DT_F32, rank, dim, init);
    g->at.scope = scope;
    return t;
}

/* Declares a parameter of the adapter: a matrix, or a stack of them, or with columns 0 a vector. */
static id lora_param(struct lora *l, const struct linear *m, const char *end, int64_t rows, int64_t columns,
                     struct init init)
{
    char name[NAME_ROOM + 32];
    const struct tensor w = *tensor_at(l->g, m->weight);
    const int64_t dim[] = {w.dim[0], rows, columns};
    snprintf(name, sizeof name, "%s%s", m->name, end);
    const id t = m->offsets ? param_named(l->g, name, 3, dim, init)
                            : param_named(l->g, name, columns ? 2 : 1, dim + 1, init);
    if (t) graph_param_of(l->g, t)->added = true;
    return t;
}

static struct init init_of_a(const struct adapter *a, int64_t r, int64_t in)
{
    if (a->init == ADAPTER_INIT_GAUSSIAN) return (struct init){.kind = INIT_NORMAL, .std = (float)(1 / (double)r)};
    return (struct init){.kind = INIT_UNIFORM, .std = (float)(1 / sqrt((double)in))};
}

static struct init init_of_b(const struct adapter *a, int64_t r)
{
    if (a->init == ADAPTER_INIT_RANDOM) return (struct init){.kind = INIT_UNIFORM, .std = (float)(1 / sqrt((double)r))};
    return (struct init){.kind = INIT_ZERO};
}

/* Applies dropout to x. Random numbers are keyed by the sample, so the first dimension must be
 * samples, and by the module and how often the model has applied it. */
static id drop_samples(struct lora *l, id x, const struct linear *m)
{
    struct graph *g = l->g;
    struct tensor t = *tensor_at(g, x);
    if (!l->samples) l->samples = op_samples(g, l->B);
    const float p = (float)l->a->dropout;
    const uint32_t key = (uint32_t)hash_bytes(m->name, strlen(m->name), ++l->shared[m->model].calls);
    if (t.dim[0] == l->B) return op_dropout_keyed(g, op_dense(g, x), l->samples, p, key);
    if (t.dim[0] % l->B)
        return graph_fail(g, "adapter.lora_dropout: an input with %lld rows is not divisible into %lld samples",
                          (long long)t.dim[0], (long long)l->B);
    return op_reshape(g, op_dropout_keyed(g, op_reshape(g, x, 2, (int64_t[]){l->B, -1}), l->samples, p, key), t.rank,
                      t.dim);
}

/* Does the same where the adapter has dropout and the program trains. Rows of experts are brought
 * into the order of their samples, and back. */
static id drop(struct lora *l, id x, const struct linear *m)
{
    struct graph *g = l->g;
    if (!l->a->dropout || !program_is(g->at.program, PROGRAM_TRAINS)) return x;
    if (!m->offsets) return drop_samples(l, x, m);
    const id position = node_at(g, tensor_at(g, m->offsets)->node)->out[0];
    const id place = op_reshape(g, position, 2, (int64_t[]){tensor_at(g, x)->dim[0], 1});
    return op_dispatch(g, drop_samples(l, op_combine(g, x, place, 0), m), place);
}

/* Returns the rows of B that belong to `view`, some rows of the matrix w: the same views, with rows
 * of r values instead of C. */
static id same_rows(struct lora *l, id view, id w, id b)
{
    struct graph *g = l->g;
    if (view == w) return b;
    const struct node n = *node_at(g, tensor_at(g, view)->node);
    const id from = same_rows(l, n.in[0], w, b);
    const int64_t C = tensor_last(tensor_at(g, w)), r = tensor_last(tensor_at(g, b));
    struct tensor t = *tensor_at(g, view);
    if (!from || n.op == OP_COPY) return from;
    if (n.op == OP_SLICE && n.attr.slice.axis < t.rank - 1)
        return op_slice(g, from, n.attr.slice.axis, n.attr.slice.start, n.attr.slice.length);
    if (n.op != OP_RESHAPE || tensor_last(&t) % C)
        return graph_fail(g, "LoRA: the product does not read whole rows of its weight");
    t.dim[t.rank - 1] = tensor_last(&t) / C * r;
    return op_reshape(g, from, t.rank, t.dim);
}

/* The parts of one adapter at one product. */
struct parts {
    id a, b, m; /* parameters; m: of DoRA */
    id x, d;    /* x: what A reads; d: s (x A^T) B^T */
};

/* Returns the product of rows with a matrix of the adapter, or with a stack of them. */
static id multiply(struct lora *l, const struct linear *m, id x, id w)
{
    return m->offsets ? op_grouped_linear(l->g, x, w, m->offsets) : op_linear(l->g, x, w, 0);
}

static struct parts declare(struct lora *l, const struct linear *m)
{
    const struct tensor w = *tensor_at(l->g, m->matrix);
    const int64_t out = w.dim[w.rank - 2], in = w.dim[w.rank - 1], r = adapter_rank(l->a, m->name);
    struct parts p = {.a = lora_param(l, m, ".lora_A.weight", r, in, init_of_a(l->a, r, in)),
                      .b = lora_param(l, m, ".lora_B.weight", out, r, init_of_b(l->a, r))};
    if (!l->a->dora) return p;
    p.m = lora_param(l, m, ".lora_magnitude_vector", out, 0, (struct init){.kind = INIT_ROW_NORMS});
    if (p.m) graph_param_of(l->g, p.m)->like = (uint32_t)(graph_param_of(l->g, m->weight) - l->g->params.at) + 1;
    return p;
}

static struct parts adapter_product(struct lora *l, const struct node *n, const struct linear *m)
{
    struct graph *g = l->g;
    if (m->offsets && l->a->dora) {
        graph_fail(g, "adapter.use_dora: %s is a layer of experts, which takes LoRA without DoRA; name other modules "
                   "in adapter.target_modules", m->name);
        return (struct parts){0};
    }
    struct parts p = declare(l, m);
    struct shared *s = &l->shared[m->model];
    if (s->input != n->in[0]) {
        s->input = n->in[0];
        s->dropped = drop(l, n->in[0], m);
        s->hidden = op_scale(g, multiply(l, m, s->dropped, p.a), adapter_scale(l->a, m->name));
    }
    p.x = s->dropped;
    p.d = multiply(l, m, s->hidden, same_rows(l, n->in[1], m->matrix, p.b));
    return p;
}

/* --- DoRA ------------------------------------------------------------------------------------- */

/* Returns m / n for the rows of the weight that the product reads. */
static id row_factors(struct lora *l, const struct node *n, const struct linear *m, const struct parts *p)
{
    struct graph *g = l->g;
    const struct tensor w = *tensor_at(g, m->matrix);
    const int64_t out = w.dim[0], in = w.dim[1];
    float *ones = mem_alloc((size_t)in * sizeof *ones);
    for (int64_t i = 0; i < in; i++) ones[i] = 1;
    char name[NAME_ROOM];
    snprintf(name, sizeof name, "lora.ones.%lld", (long long)in);
    const id one = graph_const(g, name, DT_F32, 1, &in, ones);
    mem_free(ones);
    /* 1 / n is the scale of RMSNorm over sqrt(in). */
    const id columns = op_dense(g, op_permute(g, p->a, (int[]){1, 0}));
    const id v = op_add(g, m->matrix, op_linear(g, op_scale(g, p->b, adapter_scale(l->a, m->name)), columns, 0));
    const id scale = op_outputs(g, OP_RMSNORM, &(union attr){.rmsnorm = {0}}, (id[]){v, one}, 2).at[1];
    const id inverse = op_cast(g, op_scale(g, op_detach(g, scale), 1 / sqrt((double)in)), DT_NONE);
    const id factor = op_reshape(g, op_mul(g, p->m, inverse), 2, (int64_t[]){out, 1});
    return op_reshape(g, same_rows(l, n->in[1], m->matrix, factor), 1, (int64_t[]){-1});
}

/* Returns the result in place of z, the product of node n without its bias. */
static id dora(struct lora *l, const struct node *n, const struct linear *m, const struct parts *p)
{
    struct graph *g = l->g;
    const id factor = row_factors(l, n, m, p), bias = n->nin > 2 ? n->in[2] : 0, z = n->out[0];
    const bool dropped = p->x != n->in[0];
    const id w = dropped ? op_linear(g, p->x, n->in[1], 0) : z;
    id y = op_mul(g, op_add(g, p->d, w), factor);
    if (dropped) y = op_add(g, op_add(g, y, op_scale(g, w, -1)), z);
    return bias ? op_add(g, y, bias) : y;
}

/* --- the program ------------------------------------------------------------------------------ */

static void freeze(struct graph *g, const struct adapter *a)
{
    for (uint32_t i = 0; i < g->params.n; i++) {
        struct param *p = &g->params.at[i];
        const char *name = tensor_name(g, p->tensor);
        const bool constant = storage_of(g, p->tensor)->kind != KIND_PARAM;
        if (!p->added && !constant && !p->running)
            p->frozen = !adapter_trains_bias(a, name, false) && !is_saved(a, name);
    }
}

/* Gives a tied output head a weight of its own, which starts as the embedding's, if its module, or
 * the embedding's, is trained as a whole: PEFT copies such a module. */
static void untie(struct lora *l, struct node *n, const struct adapted_modules *m, struct linear *x)
{
    struct graph *g = l->g;
    char name[NAME_ROOM + 8];
    if (!m->table[x->weight] || (!adapter_saves(l->a, x->name) && !is_saved(l->a, tensor_name(g, x->weight)))) return;
    const struct tensor t = *tensor_at(g, x->weight);
    const struct param *table = graph_param_of(g, x->weight);
    const struct init init = table->init;
    const uint32_t like = (uint32_t)(table - g->params.at) + 1;
    snprintf(name, sizeof name, "%s%s", x->name, weight_end);
    n->in[1] = x->weight = x->matrix = param_named(g, name, t.rank, t.dim, init);
    if (!x->weight) return;
    graph_param_of(g, x->weight)->frozen = !adapter_saves(l->a, x->name);
    graph_param_of(g, x->weight)->like = like;
}

static void train_bias(struct graph *g, const struct adapter *a, const char *module)
{
    char name[NAME_ROOM + 8];
    snprintf(name, sizeof name, "%s.bias", module);
    for (uint32_t i = 0; i < g->params.n && a->bias != ADAPTER_BIAS_NONE; i++) {
        struct param *p = &g->params.at[i];
        if (!strcmp(tensor_name(g, p->tensor), name) && adapter_trains_bias(a, name, true)) p->frozen = false;
    }
}

/* Makes the sums outputs instead of the products. */
static void move_outputs(struct graph *g, enum program p, const id *instead, uint32_t tensors)
{
    for (id t = 1; t < tensors; t++)
        if (instead[t] && storage_of(g, t)->kind == KIND_OUTPUT) storage_of(g, t)->kind = KIND_ACT;
    for (uint32_t i = 0; i < g->outputs.n; i++) {
        id *t = &g->outputs.at[i].tensor;
        if (g->outputs.at[i].program != p) continue;
        if (*t < tensors && instead[*t]) *t = instead[*t];
        if (storage_of(g, *t)->kind == KIND_ACT) storage_of(g, *t)->kind = KIND_OUTPUT;
    }
}

void pass_lora(struct graph *g, const struct adapter *a, int64_t B)
{
    const enum program p = g->at.program;
    struct order *order = &g->order[p];
    const uint32_t count = order->nodes.n;
    struct adapted_modules m = modules_begin(g, p);
    struct lora l = {.g = g, .a = a, .B = B, .tensors = g->tensors.n};
    id *instead = mem_alloc(l.tensors * sizeof *instead), *old = mem_copy(order->nodes.at, count * sizeof *old);
    l.shared = mem_alloc(l.tensors * sizeof *l.shared);
    freeze(g, a);
    const struct cursor before = graph_move(g, p, PHASE_FORWARD, "lora");
    order->nodes.n = 0;
    for (uint32_t k = 0; k < count && !g->error.code; k++) {
        struct linear linear;
        struct node *n = node_at(g, old[k]);
        for (int i = 0; i < n->nin; i++)
            if (n->in[i] < l.tensors && instead[n->in[i]]) n->in[i] = instead[n->in[i]];
        const bool is_linear = linear_of(&m, n, &linear),
                   adapted = is_linear && adapter_adapts(a, linear.name, linear.head);
        if (is_linear) untie(&l, n, &m, &linear);
        g->at.scope = n->scope;
        g->at.loop = n->loop;
        const struct node was = *n;
        struct parts parts = {0};
        if (adapted) parts = adapter_product(&l, &was, &linear);
        if (adapted && a->dora) node_at(g, old[k])->nin = 2; /* the bias is added behind the factors */
        vec_push(&order->nodes, old[k]);
        if (!parts.d) continue;
        train_bias(g, a, linear.name);
        instead[was.out[0]] = a->dora ? dora(&l, &was, &linear, &parts) : op_add(g, parts.d, was.out[0]);
    }
    for (uint32_t i = 0, n = g->params.n; i < n && !g->error.code; i++) {
        struct linear idle;
        const id t = g->params.at[i].tensor;
        if (g->params.at[i].added || t >= l.tensors || !idle_linear(&m, t, &idle) ||
            !adapter_adapts(a, idle.name, false))
            continue;
        declare(&l, &idle);
        train_bias(g, a, idle.name);
    }
    g->at = before;
    if (!g->error.code) graph_infer(g, p); /* a view of a product is now one of the sum */
    move_outputs(g, p, instead, l.tensors);
    modules_end(&m);
    mem_free(instead);
    mem_free(old);
    mem_free(l.shared);
}

/* --- checking --------------------------------------------------------------------------------- */

/* Reports whether the name is the item, or ends in a dot and the item, as in a list of
 * target_modules. */
static bool ends_in(const char *name, const char *item)
{
    const size_t n = strlen(name), k = strlen(item);
    return n >= k && !strcmp(name + n - k, item) && (n == k || name[n - k - 1] == '.');
}

/* Returns the distance of an item from the end of a module's name with as many parts. */
static int item_distance(const char *item, const char *module)
{
    int parts = 1;
    for (const char *s = item; *s; s++) parts += *s == '.';
    const char *end = module + strlen(module);
    while (end > module && (end[-1] != '.' || --parts)) end--;
    return edit_distance(item, end);
}

/* The modules that have a weight or a bias, each once, and whether each is a linear layer. */
typedef VEC(struct linear) module_list;

static void list_modules(const struct graph *g, module_list *linears, module_list *others)
{
    const enum program p = g->at.program;
    struct adapted_modules m = modules_begin(g, p);
    for (uint32_t k = 0; k < g->order[p].nodes.n; k++) {
        struct linear x;
        if (!linear_of(&m, node_at(g, g->order[p].nodes.at[k]), &x)) continue;
        if (!linears->n || strcmp(linears->at[linears->n - 1].name, x.name)) vec_push(linears, x);
    }
    for (uint32_t i = 0; i < g->params.n; i++) {
        const id t = g->params.at[i].tensor;
        struct linear x = {.weight = t};
        const char *name = tensor_name(g, t), *dot = strrchr(name, '.');
        if (idle_linear(&m, t, &x)) vec_push(linears, x);
        if (storage_of(g, t)->kind != KIND_PARAM || !dot) continue;
        snprintf(x.name, sizeof x.name, "%.*s", (int)(dot - name), name);
        bool linear = false;
        for (uint32_t k = 0; k < linears->n && !linear; k++) linear = !strcmp(linears->at[k].name, x.name);
        if (!linear && (!others->n || strcmp(others->at[others->n - 1].name, x.name))) vec_push(others, x);
    }
    modules_end(&m);
}

/* Returns PL_USAGE for a name of a list that no module has; the message names the nearest
 * module. */
static int unmatched(const char *key, const char *item, const module_list *all, const module_list *more,
                     struct error *e)
{
    const char *nearest = "";
    int best = INT32_MAX;
    for (int pass = 0; pass < 2; pass++) {
        const module_list *list = pass ? more : all;
        for (uint32_t i = 0; list && i < list->n; i++) {
            const int distance = item_distance(item, list->at[i].name);
            if (distance < best) best = distance, nearest = list->at[i].name;
        }
    }
    return error_set(e, PL_USAGE, "%s: \"%.200s\" matches no module; the nearest is %s", key, item, nearest);
}

static bool any_ends_in(const module_list *list, const char *item)
{
    for (uint32_t i = 0; i < list->n; i++)
        if (ends_in(list->at[i].name, item)) return true;
    return false;
}

static int check_targets(const struct adapter *a, const module_list *linears, const module_list *others,
                         struct error *e)
{
    uint32_t adapted = 0;
    for (uint32_t i = 0; i < a->target.n; i++)
        if (!any_ends_in(linears, a->target.at[i]) && !any_ends_in(others, a->target.at[i]))
            return unmatched("adapter.target_modules", a->target.at[i], linears, NULL, e);
    for (uint32_t i = 0; i < linears->n; i++) adapted += adapter_adapts(a, linears->at[i].name, linears->at[i].head);
    for (uint32_t i = 0; i < others->n && !a->all_linear; i++)
        if (adapter_adapts(a, others->at[i].name, false))
            return error_set(e, PL_USAGE, "adapter.target_modules matches %s, which is not a linear layer; LoRA is for "
                             "linear layers: name it in adapter.exclude_modules, or train it whole with "
                             "adapter.modules_to_save", others->at[i].name);
    if (adapted) return PL_OK;
    if (a->target.regex)
        return error_set(e, PL_USAGE,
                         "adapter.target_modules: the regular expression \"%.200s\" matches no linear layer; it must "
                         "match the whole name, such as %s, or be a list of ends of names",
                         a->target.regex, linears->n ? linears->at[0].name : "none");
    return error_set(e, PL_USAGE, "adapter.target_modules: no linear layer is left to adapt; see "
                     "adapter.exclude_modules, adapter.modules_to_save and adapter.layers_to_transform");
}

static int check_saved(const struct graph *g, const struct adapter *a, const module_list *linears,
                       const module_list *others, struct error *e)
{
    for (uint32_t i = 0; i < a->n_save; i++) {
        struct adapter one = *a;
        one.save = &a->save[i];
        one.n_save = 1;
        struct bump memory = {0};
        bool found = false;
        if (adapter_check(&one, "adapter.", &memory, e)) return e->code;
        for (uint32_t k = 0; k < g->params.n && !found; k++)
            found = storage_of(g, g->params.at[k].tensor)->kind == KIND_PARAM &&
                    is_saved(&one, tensor_name(g, g->params.at[k].tensor));
        /* a tied head has no parameter */
        for (uint32_t k = 0; k < linears->n && !found; k++) found = adapter_saves(&one, linears->at[k].name);
        bump_free(&memory);
        if (!found) return unmatched("adapter.modules_to_save", a->save[i], linears, others, e);
    }
    return PL_OK;
}

/* Replaces names by those that the adapter has for them. */
static void respell(module_list *list, const struct adapter *a)
{
    for (uint32_t i = 0; i < list->n; i++) {
        char other[NAME_ROOM];
        const char *name = spelling_apply(a->spellings, a->spelled, list->at[i].name, other, sizeof other);
        if (name == other) memcpy(list->at[i].name, other, sizeof other);
    }
}

/* Checks that the adapter treats the experts of a layer alike. */
static int check_experts(const struct graph *g, const struct adapter *a, const module_list *linears, struct error *e)
{
    for (uint32_t i = 0; i < linears->n; i++) {
        const struct linear *x = &linears->at[i];
        const int64_t experts = x->offsets ? tensor_at(g, x->weight)->dim[0] : 0;
        for (int64_t k = 1; k < experts; k++) {
            char name[NAME_ROOM];
            name_in_stack(x->name, k, name, sizeof name);
            if (adapter_adapts(a, name, false) != adapter_adapts(a, x->name, false) ||
                adapter_rank(a, name) != adapter_rank(a, x->name) ||
                adapter_saves(a, name) != adapter_saves(a, x->name))
                return error_set(e, PL_USAGE, "the adapter is not the same for all experts of %s: %s differs from the "
                                 "first; name all experts or none, without their numbers", x->name, name);
        }
    }
    return PL_OK;
}

int lora_check(const struct graph *g, const struct adapter *a, struct error *e)
{
    module_list linears = {0}, others = {0};
    list_modules(g, &linears, &others);
    respell(&linears, a);
    respell(&others, a);
    int rc = check_targets(a, &linears, &others, e);
    if (!rc) rc = check_experts(g, a, &linears, e);
    if (!rc) rc = adapter_unanswered(a, "adapter.", e);
    if (!rc) rc = check_saved(g, a, &linears, &others, e);
    vec_free(&linears);
    vec_free(&others);
    return rc;
}

/* --- what it trains --------------------------------------------------------------------------- */

static const char a_end[] = ".lora_A.weight";

/* Lists the names of the modules that have an adapter, in the order of the forward. */
static uint32_t adapted_modules(const struct graph *g, struct bump *b, const char ***names)
{
    const char **list = bump_alloc(b, (g->params.n + 1) * sizeof *list);
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->params.n; i++) {
        const char *name = tensor_name(g, g->params.at[i].tensor);
        if (g->params.at[i].added && text_ends_with(name, a_end))
            list[n++] = bump_format(b, "%.*s", (int)(strlen(name) - strlen(a_end)), name);
    }
    *names = list;
    return n;
}

static const char *last_part(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot ? dot + 1 : name;
}

uint32_t lora_targets(const struct graph *g, struct bump *b, const char *const **names)
{
    const char **list;
    const uint32_t n = adapted_modules(g, b, &list);
    uint32_t kept = 0;
    bool experts = false;
    *names = list;
    for (uint32_t i = 0; i < n; i++) experts |= name_is_stack(list[i]);
    if (!experts) return n;
    for (uint32_t i = 0; i < n; i++) {
        const char *last = last_part(list[i]);
        uint32_t k = 0;
        while (k < kept && strcmp(list[k], last)) k++;
        if (k == kept) list[kept++] = last;
    }
    return kept;
}

bool lora_transposed(const struct graph *g)
{
    struct bump b = {0};
    const char **names;
    const uint32_t n = adapted_modules(g, &b, &names);
    const char *weight = n ? bump_format(&b, "%s%s", names[n - 1], weight_end) : "";
    bool transposed = false;
    for (uint32_t i = 0; i < g->params.n; i++)
        transposed |= g->params.at[i].transposed && !strcmp(tensor_name(g, g->params.at[i].tensor), weight);
    bump_free(&b);
    return transposed;
}

/* Prints how many modules have each last part of a name, in the order of the forward. */
static void print_leaves(const char *const *names, uint32_t n, struct text *out)
{
    enum { LEAVES = 12 };
    struct {
        const char *leaf;
        uint32_t count;
    } leaves[LEAVES] = {0};
    uint32_t found = 0, others = 0;
    for (uint32_t i = 0; i < n; i++) {
        const char *leaf = last_part(names[i]);
        uint32_t k = 0;
        while (k < found && strcmp(leaves[k].leaf, leaf)) k++;
        if (k == LEAVES) others++;
        else leaves[k].leaf = leaf, leaves[k].count++;
        if (k == found && k < LEAVES) found++;
    }
    for (uint32_t k = 0; k < found; k++) text_printf(out, "%s%s %u", k ? ", " : "", leaves[k].leaf, leaves[k].count);
    if (others) text_printf(out, ", others %u", others);
}

void lora_print(const struct graph *g, struct text *out)
{
    struct bump b = {0};
    const char **names;
    const uint32_t n = adapted_modules(g, &b, &names);
    uint64_t trained = 0, whole = 0, all = 0;
    char digits[3][32];
    for (uint32_t i = 0; i < g->params.n; i++) {
        const struct param *p = &g->params.at[i];
        if (storage_of(g, p->tensor)->kind == KIND_CONST) continue;
        const uint64_t elements = (uint64_t)tensor_elements(tensor_at(g, p->tensor));
        all += elements;
        if (!p->frozen) *(p->added ? &trained : &whole) += elements;
    }
    text_printf(out, "LoRA on %u modules (", n);
    print_leaves(names, n, out);
    text_printf(out, "); %s of %s weights are trained (%.3g %%)", count_print(trained + whole, digits[0]),
                count_print(all, digits[1]), 100 * (double)(trained + whole) / (double)all);
    if (whole) text_printf(out, ", %s of them in biases or modules_to_save", count_print(whole, digits[2]));
    bump_free(&b);
}
