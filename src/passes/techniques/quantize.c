/*
 * quantize.c: keeps frozen weights of linear layers in 4 bits (NF4 with double quantization,
 * base/nf4.h).
 *
 *     before   y = LINEAR(x, w)              dx = MATMUL(dy, w)
 *     after    v = DEQUANTIZE(bytes of w)    u = DEQUANTIZE(bytes of w)
 *              y = LINEAR(x, v)              dx = MATMUL(dy, u)
 *
 * Each reader in forward, recomputation and backward gets a dequantized weight of its own, a
 * transient that lives from the DEQUANTIZE before the reader to the reader: none is alive between
 * forward and backward. The pass runs after recompute, which repeats readers, and before offload,
 * which then copies the bytes in 4 bits.
 *
 * Where weights are offloaded, because memory is scarce, the experts of a layer are dequantized and
 * multiplied group by group, each time in the same memory. A row has the same bits:
 *
 *     v = DEQUANTIZE(experts 0 to 15)     y  = GROUPED_LINEAR(x, v, their offsets)
 *     u = DEQUANTIZE(experts 16 to 31)    y' = GROUPED_LINEAR(x, u, their offsets, into y)   ...
 *
 * A weight [inputs,outputs] (param.transposed) is quantized as its transpose, and so are the
 * dequantized ones, whose views have other strides.
 *
 * A weight is quantized if it is frozen, products of linear layers read it in the forward, and no
 * embedding does. With memory.quantize nf4 these are all but the output head and the routers of
 * experts; rules choose by the name of the layer, or of a module around it. Weights that the
 * model's folder has in 4 bits (param.form) are kept so in any case.
 */

#include "base/nf4.h"
#include "graph/ops.h"
#include "graph/stored.h"
#include "passes/passes.h"

/* --- the weights ------------------------------------------------------------------------------ */

/* How the forward reads a weight, itself or views of it. */
struct reading {
    uint32_t linear;        /* products of linear layers that read it */
    bool tied;              /* an embedding reads it too */
    bool router;            /* its product chooses experts */
    id scope;               /* of the first product */
};

/* Returns the weight of the product that a TOPK chooses from, to which an adapter may add; 0:
 * none. */
static id router_of(const struct graph *g, const struct node *topk)
{
    const struct node *n = node_at(g, tensor_at(g, topk->in[0])->node);
    if (n->op == OP_ADD) n = node_at(g, tensor_at(g, n->in[1])->node);
    return n->op == OP_LINEAR ? n->in[1] : 0;
}

/* Reports whether input i of a node is the weight of a linear layer, or of many at once. */
static bool is_weight(const struct node *n, int i)
{
    return i == 1 && (n->op == OP_LINEAR || n->op == OP_LINEAR_ACT || n->op == OP_GROUPED_LINEAR);
}

/* Returns, by storage, how the forward reads it. */
static struct reading *readings_of(const struct graph *g)
{
    struct reading *r = mem_alloc(g->storages.n * sizeof *r);
    FOR_PROGRAMS(p, PROGRAM_FORWARD)
        for (uint32_t k = 0; k < g->order[p].nodes.n; k++) {
            const struct node *n = node_at(g, g->order[p].nodes.at[k]);
            if (n->phase != PHASE_FORWARD) continue;
            for (int i = 0; i < n->nin; i++) {
                if (!n->in[i]) continue;
                struct reading *x = &r[tensor_at(g, n->in[i])->storage];
                if (is_weight(n, i) && !x->linear++) x->scope = n->scope;
                x->tied |= n->op == OP_EMBEDDING;
            }
            if (n->op == OP_TOPK) r[tensor_at(g, router_of(g, n))->storage].router = true;
        }
    return r;
}

static const struct reading *reading_of(const struct graph *g, const struct reading *by_storage, const struct param *p)
{
    return &by_storage[tensor_at(g, p->tensor)->storage];
}

/* Prints a parameter's name without its last part. */
static const char *module_of(const struct graph *g, const struct param *p, char out[256])
{
    snprintf(out, 256, "%s", graph_name(g, tensor_at(g, p->tensor)->name));
    char *dot = strrchr(out, '.');
    if (dot) *dot = 0;
    return out;
}

static bool is_head(const char *module)
{
    const char *dot = strrchr(module, '.');
    return !strcmp(dot ? dot + 1 : module, "lm_head");
}

static bool rule_matches(const struct quantize_rule *r, const char *module, const char *scope)
{
    for (uint32_t i = 0; i < r->n_match; i++)
        if (module_pattern(r->match[i], module) || module_pattern(r->match[i], scope)) return true;
    return false;
}

/* Finds the last rule that matches the layer; NULL: none does. */
static const struct quantize_rule *rule_of(const struct settings *s, const char *module, const char *scope)
{
    for (uint32_t i = s->n_quantize_rules; i-- > 0;)
        if (rule_matches(&s->quantize_rules[i], module, scope)) return &s->quantize_rules[i];
    return NULL;
}

static bool may_quantize(const struct graph *g, const struct param *p, const struct reading *r)
{
    const bool convolution = tensor_at(g, p->tensor)->rank > 3; /* a kernel that a product reads; 3: of all experts */
    return p->frozen && !p->running && (!p->exact || p->form) && r->linear && !r->tied && !convolution &&
           storage_of(g, p->tensor)->kind == KIND_PARAM;
}

/* Reports whether the weights are those of a LoRA adapter, which a rule for the layer around them
 * does not mean. */
static bool is_adapter(const char *module)
{
    return text_ends_with(module, ".lora_A") || text_ends_with(module, ".lora_B");
}

/* Returns the form that the folder has, or the settings ask for, of a weight that linear layers
 * read. */
static enum stored form_asked(const struct graph *g, const struct settings *s, const struct param *p,
                              const struct reading *r)
{
    char module[256];
    module_of(g, p, module);
    if (p->form || is_adapter(module)) return p->form;
    if (s->quantize == QUANTIZE_NF4) return is_head(module) || r->router ? STORED_PLAIN : STORED_NF4;
    const struct quantize_rule *rule =
        s->quantize ? rule_of(s, module, graph_name(g, g->scopes.at[r->scope].name)) : NULL;
    return rule ? rule->form : STORED_PLAIN;
}

/* --- checking --------------------------------------------------------------------------------- */

static int refuse_stored(const struct graph *g, const struct param *p, struct error *e)
{
    char module[256];
    module_of(g, p, module);
    return error_set(e, PL_USAGE, "%s: the model's folder has its weight in 4 bits (NF4), %s; %s", module,
                     p->frozen ? "which only linear layers can have here" : "which cannot be trained",
                     p->frozen
                         ? "use a folder in 16 bits"
                         : "freeze it (model.freeze), train an adapter (section adapter), or use a folder in 16 bits");
}

static int refuse_weight(const struct graph *g, const struct settings *s, const struct param *p,
                         const struct reading *r, struct error *e)
{
    char module[256];
    module_of(g, p, module);
    const uint32_t number =
        (uint32_t)(rule_of(s, module, graph_name(g, g->scopes.at[r->scope].name)) - s->quantize_rules);
    if (r->tied)
        return error_set(e, PL_USAGE,
                         "memory.quantize[%u]: %s is tied: an embedding and a linear layer share its weight, which is "
                         "not quantized; leave it out of match",
                         number, module);
    return error_set(e, PL_USAGE,
                     "memory.quantize[%u]: %s is trained, and only frozen weights are quantized; freeze it "
                     "(model.freeze), or leave it out of match",
                     number, module);
}

/* Checks that a pattern matches a linear layer. */
static int check_pattern(const struct graph *g, const struct reading *readings, const char *pattern, uint32_t rule,
                         struct error *e)
{
    char module[256], nearest[256] = "";
    int best = INT32_MAX;
    for (uint32_t i = 0; i < g->params.n; i++) {
        const struct param *p = &g->params.at[i];
        const struct reading *r = reading_of(g, readings, p);
        if (!r->linear) continue;
        module_of(g, p, module);
        if (module_pattern(pattern, module) || module_pattern(pattern, graph_name(g, g->scopes.at[r->scope].name)))
            return PL_OK;
        for (char *dot = module; dot; dot = strrchr(module, '.')) { /* the layer, then the modules around it */
            if (dot != module) *dot = 0;
            const int distance = pattern_distance(pattern, module);
            if (distance < best) snprintf(nearest, sizeof nearest, "%s", module);
            best = distance < best ? distance : best;
        }
    }
    return error_set(e, PL_USAGE,
                     "memory.quantize[%u].match: the pattern \"%.200s\" matches no linear layer; the nearest is %s (* "
                     "matches any text, ? one character)",
                     rule, pattern, nearest);
}

int quantize_check(const struct graph *g, const struct settings *s, struct error *e)
{
    struct reading *readings = readings_of(g);
    uint32_t quantized = 0;
    int rc = PL_OK;
    for (uint32_t k = 0; k < s->n_quantize_rules && !rc; k++)
        for (uint32_t i = 0; i < s->quantize_rules[k].n_match && !rc; i++)
            rc = check_pattern(g, readings, s->quantize_rules[k].match[i], k, e);
    for (uint32_t i = 0; i < g->params.n && !rc; i++) {
        const struct param *p = &g->params.at[i];
        const struct reading *r = reading_of(g, readings, p);
        if ((!r->linear && !p->form) || !form_asked(g, s, p, r)) continue;
        if (may_quantize(g, p, r)) quantized++;
        else if (p->form) rc = refuse_stored(g, p, e);
        else if (s->quantize == QUANTIZE_RULES) rc = refuse_weight(g, s, p, r, e);
    }
    if (!rc && s->quantize == QUANTIZE_NF4 && !quantized)
        rc = error_set(e, PL_USAGE,
                       "memory.quantize nf4: no linear layer is frozen, and only frozen weights are quantized; freeze "
                       "some (model.freeze), or leave the key out");
    mem_free(readings);
    return rc;
}

void quantize_forms(const struct graph *g, const struct settings *s, uint8_t *forms)
{
    struct reading *readings = readings_of(g);
    for (uint32_t i = 0; i < g->params.n; i++) {
        const struct param *p = &g->params.at[i];
        const struct reading *r = reading_of(g, readings, p);
        forms[i] = (uint8_t)(may_quantize(g, p, r) ? form_asked(g, s, p, r) : STORED_PLAIN);
    }
    mem_free(readings);
}

void quantize_routers(const struct graph *g, bool *routers)
{
    struct reading *readings = readings_of(g);
    for (uint32_t i = 0; i < g->params.n; i++) routers[i] = reading_of(g, readings, &g->params.at[i])->router;
    mem_free(readings);
}

/* --- the rewrite ------------------------------------------------------------------------------ */

struct quantized {
    id bytes;  /* the u8 tensor over the storage; 0: the storage is plain */
    id weight; /* the tensor that was read */
    bool transposed; /* the bytes are of its transpose */
};

/* Makes a view of the matrix w one of its transpose, which has the same elements in another order.
 * A stride is an index too: that of the element behind the first. */
static void turn_view(struct tensor *view, const struct tensor *w)
{
    const uint32_t size = dtype_size(view->dtype);
    for (int i = 0; i < view->rank; i++) view->stride[i] = transposed_index(view->stride[i], w->dim[0], w->dim[1]);
    view->offset = (uint64_t)transposed_index((int64_t)(view->offset / size), w->dim[0], w->dim[1]) * size;
}

/* Emits a dequantized weight, and returns the reader's view `t` on it. */
static id dequantized(struct graph *g, const struct quantized *q, id t)
{
    const struct tensor w = *tensor_at(g, q->weight);
    const bool nested = storage_of(g, q->bytes)->form == STORED_NF4;
    const int64_t turned[] = {w.dim[1], w.dim[0]};
    const id whole = op_dequantize(g, q->bytes, nested, w.dtype, w.rank, q->transposed ? turned : w.dim,
                                   (struct weight_range){0, tensor_elements(&w)});
    CHECK(whole, "%s", g->error.text);
    storage_of(g, whole)->name = tensor_at(g, whole)->name = w.name;
    if (t == q->weight && !q->transposed) return whole;
    struct tensor view = *tensor_at(g, t);
    if (q->transposed) turn_view(&view, &w);
    view.storage = tensor_at(g, whole)->storage;
    view.node = tensor_at(g, whole)->node;
    vec_push(&g->tensors, view);
    return g->tensors.n - 1;
}

/* Groups in which the experts of a layer are dequantized, at most. */
enum { EXPERT_GROUPS = 8 };

/* Returns the experts of a group of w [experts,rows,columns], each group at the begin of a block of
 * NF4; 0: w is not divided. */
static int64_t group_experts(const struct tensor *w)
{
    const int64_t E = w->dim[0], matrix = tensor_elements(w) / E;
    int64_t each = (E + EXPERT_GROUPS - 1) / EXPERT_GROUPS;
    while (each < E && each * matrix % NF4_BLOCK) each++;
    return each < E ? each : 0;
}

/* Emits `n` dequantized experts from `first` on, and returns the reader's view `t` on them. */
static id dequantized_experts(struct graph *g, const struct quantized *q, id t, int64_t first, int64_t n)
{
    const struct tensor w = *tensor_at(g, q->weight);
    const int64_t dim[] = {n, w.dim[1], w.dim[2]};
    const bool nested = storage_of(g, q->bytes)->form == STORED_NF4;
    const id part = op_dequantize(g, q->bytes, nested, w.dtype, 3, dim,
                                  (struct weight_range){first * w.dim[1] * w.dim[2], tensor_elements(&w)});
    CHECK(part, "%s", g->error.text);
    storage_of(g, part)->name = tensor_at(g, part)->name = w.name;
    struct tensor view = *tensor_at(g, t);
    view.dim[0] = n;
    view.storage = tensor_at(g, part)->storage;
    view.node = tensor_at(g, part)->node;
    vec_push(&g->tensors, view);
    return g->tensors.n - 1;
}

/* Emits all groups of a GROUPED_LINEAR but the last, which becomes the node's own. */
static void divide_experts(struct graph *g, const struct quantized *q, id node, int64_t each)
{
    const struct node n = *node_at(g, node);
    const int64_t E = tensor_at(g, n.in[1])->dim[0];
    const union attr a = {.grouped_linear = {E}};
    id y = 0;
    for (int64_t first = 0; first < E; first += each) {
        const int64_t some = min_i64(each, E - first);
        id in[] = {n.in[0], 0, 0, y};
        in[1] = dequantized_experts(g, q, n.in[1], first, some);
        in[2] = op_slice(g, n.in[2], 0, first, some + 1);
        if (first + some == E) {
            struct node *last = node_at(g, node);
            memcpy(last->in, in, sizeof in);
            last->nin = COUNT(in);
            last->attr = a;
            return;
        }
        const id next = op_apply(g, OP_GROUPED_LINEAR, &a, in, y ? 4 : 3);
        CHECK(next, "%s", g->error.text);
        if (!y) graph_redirect(g, next, n.out[0]);
        y = next;
    }
}

static void rewrite_program(struct graph *g, enum program p, const struct quantized *by_storage, uint32_t storages,
                            bool scarce)
{
    struct order *order = &g->order[p];
    const uint32_t count = order->nodes.n;
    id *old = mem_copy(order->nodes.at, count * sizeof(id));
    struct cursor before = graph_move(g, p, PHASE_FORWARD, "quantize");
    order->nodes.n = 0;
    for (uint32_t k = 0; k < count; k++) {
        const struct node n = *node_at(g, old[k]);
        bool reads = false;
        for (int i = 0; i < n.nin; i++) {
            const id s = n.in[i] ? tensor_at(g, n.in[i])->storage : 0;
            if (s >= storages || !by_storage[s].bytes) continue;
            reads = true;
            if (op_table[n.op].flags & OPF_VIEW) continue; /* its reader gets the view of a dequantized weight */
            g->at.phase = n.phase;
            g->at.scope = n.scope;
            g->at.loop = n.loop;
            g->at.origin = old[k];
            const bool divides = scarce && n.op == OP_GROUPED_LINEAR && i == 1;
            const int64_t each = divides ? group_experts(tensor_at(g, by_storage[s].weight)) : 0;
            if (each) {
                divide_experts(g, &by_storage[s], old[k], each);
                continue;
            }
            const id here = dequantized(g, &by_storage[s], n.in[i]);
            node_at(g, old[k])->in[i] = here;
        }
        if (!reads || !(op_table[n.op].flags & OPF_VIEW)) vec_push(&order->nodes, old[k]);
    }
    g->at = before;
    mem_free(old);
}

static bool any_stored(const struct graph *g)
{
    for (uint32_t i = 0; i < g->params.n; i++)
        if (g->params.at[i].form) return true;
    return false;
}

void pass_quantize(struct graph *g, const struct settings *s)
{
    if (!s->quantize && !any_stored(g)) return;
    const uint32_t storages = g->storages.n;
    struct quantized *by_storage = mem_alloc(storages * sizeof *by_storage);
    struct reading *readings = readings_of(g);
    bool any = false;
    for (uint32_t i = 0; i < g->params.n; i++) {
        const struct param *p = &g->params.at[i];
        const struct reading *r = reading_of(g, readings, p);
        const enum stored form = may_quantize(g, p, r) ? form_asked(g, s, p, r) : STORED_PLAIN;
        if (!form) continue;
        const struct tensor w = *tensor_at(g, p->tensor);
        g->storages.at[w.storage].form = (uint8_t)form;
        const uint64_t bytes = g->storages.at[w.storage].bytes = stored_bytes(g, &w);
        const id raw = graph_tensor(g, graph_name(g, w.name), w.storage, DT_U8, 1, (int64_t[]){(int64_t)bytes}, 0);
        by_storage[w.storage] = (struct quantized){raw, p->tensor, p->transposed};
        any = true;
    }
    const bool scarce = s->offload & OFFLOAD_WEIGHTS;
    for (int p = 0; p < PROGRAM_COUNT && any; p++) rewrite_program(g, p, by_storage, storages, scarce);
    mem_free(readings);
    mem_free(by_storage);
}
