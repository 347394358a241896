/*
 * quantize.c: chooses which frozen weights of linear layers are stored in fewer bits, and in which
 * form: NF4 (4 bits with double quantization, base/nf4.h), or e4m3 with a scale for each row
 * (base/e4m3.h), with memory.transposed_weights also the transpose, which the backward reads.
 * operands.c then gives each product its operands from there.
 *
 * The pass runs after recompute, which repeats readers, and before offload, which then copies the
 * bytes of the form.
 *
 * A weight [inputs,outputs] (param.transposed) is quantized as its transpose.
 *
 * A weight is quantized if it is frozen, products of linear layers read it in the forward, and no
 * embedding does. With memory.quantize nf4 these are all but the output head and the routers of
 * experts; with fp8 only matrices, whose dimensions are multiples of 16. Rules choose by the name
 * of the layer, or of a module around it. Weights that the model's folder has in 4 bits
 * (param.form) are kept so in any case.
 */

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

/* Dimensions of products of e4m3 are multiples of this number. */
enum { E4M3_UNIT = 16 };

static bool fits_e4m3(const struct graph *g, const struct param *p)
{
    const struct tensor *w = tensor_at(g, p->tensor);
    return w->rank == 2 && !p->transposed && w->dim[0] % E4M3_UNIT == 0 && w->dim[1] % E4M3_UNIT == 0;
}

/* Returns the form that the folder has, or the settings ask for, of a weight that linear layers
 * read. */
static enum stored form_asked(const struct graph *g, const struct settings *s, const struct param *p,
                              const struct reading *r)
{
    char module[256];
    module_of(g, p, module);
    if (p->form || is_adapter(module)) return p->form;
    const struct quantize_rule *rule =
        s->quantize ? rule_of(s, module, graph_name(g, g->scopes.at[r->scope].name)) : NULL;
    const bool all = s->quantize == QUANTIZE_NF4 || s->quantize == QUANTIZE_FP8;
    enum stored form = rule ? rule->form : STORED_PLAIN;
    if (all && !is_head(module) && !r->router) form = s->quantize == QUANTIZE_NF4 ? STORED_NF4 : STORED_E4M3;
    return form == STORED_E4M3 && !fits_e4m3(g, p) ? STORED_PLAIN : form;
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
    const bool all = s->quantize == QUANTIZE_NF4 || s->quantize == QUANTIZE_FP8;
    if (!rc && all && !quantized)
        rc = error_set(e, PL_USAGE,
                       "memory.quantize %s: no linear layer is frozen, and only frozen weights are quantized; freeze "
                       "some (model.freeze), or leave the key out",
                       s->quantize == QUANTIZE_NF4 ? "nf4" : "fp8");
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

bool quantize_has_fp8(const struct settings *s)
{
    bool any = s->quantize == QUANTIZE_FP8;
    for (uint32_t i = 0; i < s->n_quantize_rules && s->quantize == QUANTIZE_RULES; i++)
        any |= s->quantize_rules[i].form == STORED_E4M3;
    return any;
}

bool transposed_weights_excluded(const struct settings *s, const struct step_limits *l, struct text *why)
{
    (void)l;
    if (quantize_has_fp8(s)) return false;
    text_printf(why, "no frozen weight is in fp8, which memory.quantize fp8 asks for");
    return true;
}

/* --- the pass --------------------------------------------------------------------------------- */

static bool any_stored(const struct graph *g)
{
    for (uint32_t i = 0; i < g->params.n; i++)
        if (g->params.at[i].form) return true;
    return false;
}

/* Marks, by storage, the weights that a product of the backward reads. */
static bool *mark_backward(const struct graph *g)
{
    bool *read = mem_alloc(g->storages.n * sizeof *read);
    for (uint32_t k = 0; k < g->order[PROGRAM_STEP].nodes.n; k++) {
        const struct node *n = node_at(g, g->order[PROGRAM_STEP].nodes.at[k]);
        if (n->phase == PHASE_BACKWARD && n->op == OP_MATMUL) read[tensor_at(g, n->in[1])->storage] = true;
    }
    return read;
}

void pass_quantize(struct graph *g, const struct settings *s)
{
    if (!s->quantize && !any_stored(g)) return;
    uint8_t *forms = mem_alloc(g->params.n + 1);
    bool *read = mark_backward(g);
    quantize_forms(g, s, forms);
    for (uint32_t i = 0; i < g->params.n; i++) {
        const struct tensor *w = tensor_at(g, g->params.at[i].tensor);
        if (!forms[i]) continue;
        if (forms[i] == STORED_E4M3 && s->transposed_weights && read[w->storage]) forms[i] = STORED_E4M3_BOTH;
        g->storages.at[w->storage].form = forms[i];
        g->storages.at[w->storage].bytes = stored_bytes(g, w);
    }
    mem_free(read);
    mem_free(forms);
}
