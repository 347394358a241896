/*
 * test_parameter_groups.c: which parameters are trained, with which learning rate and weight decay:
 * layers numbered from the graph, overlapping groups, patterns that match nothing.
 *
 * The test computes the expected values from the parameters' names; the tested code does not use
 * names.
 */
#include "graph/ops.h"
#include "planning/parameter_groups.h"
#include "engine/run.h"

#include "harness.h"


/* A configuration whose plan is one candidate: nothing is searched. */
static void begin(struct config *c, const char *preset, const char *const *sets)
{
    static const char *const base[] = {"data.sequence=16",        "train.effective_batch=2", "memory.micro_batch=2",
                                       "memory.recompute=none",   "memory.offload=none",     "memory.head_chunks=1",
                                       "train.learning_rate=0.01"};
    struct error e = {0};
    char model[64];
    snprintf(model, sizeof model, "model.preset=%s", preset);
    config_init(c);
    int rc = config_set(c, model, &e);
    for (size_t i = 0; i < COUNT(base) && !rc; i++) rc = config_set(c, base[i], &e);
    for (; sets && *sets && !rc; sets++) rc = config_set(c, *sets, &e);
    if (!rc) rc = config_check(c, CONFIG_NEEDS_MODEL, &e);
    if (rc) fail_msg("%s", e.text);
}

static void make_plan(struct run *r, const struct config *c)
{
    struct error e = {0};
    if (run_plan(r, c, &(struct run_options){.train = true}, &e)) fail_msg("%s", e.text);
}

/* The update node of a parameter; NULL: it has none. */
static const struct node *update_of(const struct graph *g, const char *name)
{
    for (uint32_t k = 0; k < g->order[PROGRAM_UPDATE].nodes.n; k++) {
        const struct node *n = node_at(g, g->order[PROGRAM_UPDATE].nodes.at[k]);
        if (n->op == OP_ADAMW && !strcmp(graph_name(g, g->scopes.at[n->scope].name), name)) return n;
    }
    return NULL;
}

static void expect_update(const struct graph *g, const char *name, double lr_scale, double weight_decay)
{
    const struct node *n = update_of(g, name);
    if (!n) fail_msg("%s is not updated", name);
    if (fabs(n->attr.adamw.lr_scale - lr_scale) > 1e-15 || n->attr.adamw.weight_decay != weight_decay)
        fail_msg("%s: rate x %.17g, decay %g; expected x %.17g and %g", name, n->attr.adamw.lr_scale,
                 n->attr.adamw.weight_decay, lr_scale, weight_decay);
}

/* --- layers ---------------------------------------------------------------------------- */

/* Layer by name: embeddings 0, model.layers.i -> i + 1, all others L. */
static void expect_layers(const struct config *c, int layers)
{
    struct run r;
    int updates = 0;
    make_plan(&r, c);
    for (uint32_t i = 0; i < r.planned.graph.params.n; i++) {
        const struct param *p = &r.planned.graph.params.at[i];
        const char *name = graph_name(&r.planned.graph, tensor_at(&r.planned.graph, p->tensor)->name);
        int layer = layers + 1;
        if (!p->grad) continue;
        if (!strncmp(name, "model.layers.", 13)) layer = atoi(name + 13) + 1;
        else if (strstr(name, "embed")) layer = 0;
        expect_update(&r.planned.graph, name, pow(0.75, layers + 1 - layer), 0.01);
        updates++;
    }
    assert_true(updates > 9 * layers);
    run_close(&r);
}

/* The layers are the model's, whatever the passes did to the forward. */
TEST(test_layers)
{
    static const char *const variants[][5] = {
        {"train.layer_decay=0.75"},
        {"train.layer_decay=0.75", "memory.precision=bf16"},
        {"train.layer_decay=0.75", "memory.recompute=all", "memory.micro_batch=1"},
        {"train.layer_decay=0.75", "memory.head_chunks=4", "memory.offload=optimizer"},
    };
    for (size_t i = 0; i < COUNT(variants); i++) {
        struct config c;
        begin(&c, "llama-tiny", variants[i]); /* the head is the embedding: its first use counts */
        expect_layers(&c, 4);
        config_free(&c);
    }
    struct config c;
    begin(&c, "llama-1b", variants[3]); /* a head of its own */
    expect_layers(&c, 22);
    config_free(&c);
}

/* first | block: inside | between | block: again, inside again | last, and `first` once more */
static void build_blocks(void *model, struct graph *g, int micro_batch)
{
    (void)model;
    id x = graph_input(g, "x", DT_F32, DIM(micro_batch, 4));
    const char *const names[] = {"first", "inside", "between", "again", "last"};
    id w[5];
    for (int i = 0; i < 5; i++) w[i] = graph_param(g, names[i], DT_F32, DIM(4, 4), (struct init){0});
    x = op_linear(g, x, w[0], 0);
    id outer = graph_scope_push(g, "a", SCOPE_BLOCK), inner = graph_scope_push(g, "mlp", 0);
    x = op_linear(g, x, w[1], 0);
    graph_scope_pop(g, inner);
    graph_scope_pop(g, outer);
    x = op_linear(g, x, w[2], 0);
    outer = graph_scope_push(g, "b", SCOPE_BLOCK);
    x = op_linear(g, op_linear(g, x, w[3], 0), w[1], 0);
    graph_scope_pop(g, outer);
    x = op_linear(g, op_linear(g, x, w[4], 0), w[0], 0);
    graph_output(g, "loss", op_sum(g, x));
}

static void build_plain(void *model, struct graph *g, int micro_batch)
{
    (void)model;
    id x = graph_input(g, "x", DT_F32, DIM(micro_batch, 4));
    id first = graph_param(g, "first", DT_F32, DIM(4, 4), (struct init){0}),
       last = graph_param(g, "last", DT_F32, DIM(4, 4), (struct init){0});
    graph_output(g, "loss", op_sum(g, op_linear(g, op_linear(g, x, first, 0), last, 0)));
}

TEST(test_first_use)
{
    struct settings s = {.micro_batch = 2,
                         .accumulation = 2,
                         .precision = PRECISION_F32,
                         .head_chunks = 1,
                         .train = true,
                         .layer_decay = 0.5};
    struct graph g;
    struct error e = {0};
    if (plan_compile(&g, &(struct source){NULL, build_blocks}, &s, &e)) fail_msg("%s", e.text);
    expect_update(&g, "first", 0.125, 0);
    expect_update(&g, "inside", 0.25, 0);
    expect_update(&g, "between", 0.25, 0);
    expect_update(&g, "again", 0.5, 0);
    expect_update(&g, "last", 1, 0);
    graph_free(&g);
    /* without blocks there is no layer-wise decay */
    if (plan_compile(&g, &(struct source){NULL, build_plain}, &s, &e)) fail_msg("%s", e.text);
    expect_update(&g, "first", 1, 0);
    expect_update(&g, "last", 1, 0);
    graph_free(&g);
}

/* --- groups ------------------------------------------------------------------------------- */

TEST(test_groups)
{
    static const char *const sets[] = {
        "train.layer_decay=0.5",
        "train.no_decay=*norm*",
        "model.freeze=model.layers.0.*",
        "train.groups=[{match: 'model.layers.1.*', lr_scale: 3, weight_decay: 0.2},"
        " {match: ['*.1.mlp.*', '*.2.mlp.up_proj.*'], learning_rate: 0.04},"
        " {match: '*.1.mlp.down_proj.weight', lr_scale: 5},"
        " {match: '*.1.post_attention_layernorm.weight', weight_decay: 0.3},"
        " {match: 'model.layers.3.*', frozen: true},"
        " {match: 'model.layers.?.self_attn.q_proj.weight', frozen: false}]",
        NULL};
    struct config c;
    struct run r;
    begin(&c, "llama-1b", sets);
    make_plan(&r, &c);
    const struct graph *g = &r.planned.graph;
    double depth1 = pow(0.5, 23 - 2); /* of block 1 of 22 */
    expect_update(g, "model.layers.1.self_attn.k_proj.weight", 3 * depth1, 0.2);
    expect_update(g, "model.layers.1.input_layernorm.weight", 3 * depth1, 0.2);     /* takes precedence over no_decay */
    expect_update(g, "model.layers.1.post_attention_layernorm.weight", 3 * depth1, 0.3);
    /* absolute; the decay is unchanged */
    expect_update(g, "model.layers.1.mlp.gate_proj.weight", 4, 0.2);
    expect_update(g, "model.layers.1.mlp.down_proj.weight", 5 * depth1, 0.2);       /* relative once more */
    expect_update(g, "model.layers.2.mlp.up_proj.weight", 4, 0.01);
    expect_update(g, "model.layers.4.input_layernorm.weight", pow(0.5, 23 - 5), 0); /* no group */
    expect_update(g, "lm_head.weight", 1, 0.01);
    assert_null(update_of(g, "model.layers.0.mlp.up_proj.weight"));
    assert_null(update_of(g, "model.layers.3.mlp.up_proj.weight"));
    expect_update(g, "model.layers.0.self_attn.q_proj.weight", pow(0.5, 22), 0.01); /* frozen: false */
    expect_update(g, "model.layers.3.self_attn.q_proj.weight", pow(0.5, 19), 0.01);
    run_close(&r);
    config_free(&c);
}

/* --- patterns that match nothing -------------------------------------------------------------- */

static void refuses(const char *set, const char *part, const char *other)
{
    struct config c;
    struct run r;
    struct error e = {0};
    begin(&c, "llama-tiny", (const char *const[]){set, NULL});
    if (run_plan(&r, &c, &(struct run_options){.train = true}, &e) != PL_USAGE) fail_msg("accepted: %s", set);
    if (!strstr(e.text, part) || !strstr(e.text, other)) fail_msg("no \"%s\" and \"%s\" in: %s", part, other, e.text);
    run_close(&r);
    config_free(&c);
}

TEST(test_no_match)
{
    refuses("model.freeze=[model.embed*, model.layer.0.*]",
            "model.freeze: the pattern \"model.layer.0.*\" matches no parameter", "nearest is model.layers.0.");
    refuses("train.groups=[{match: '*', lr_scale: 1}, {match: ['*norm*', lm_head.weight], lr_scale: 2}]",
            "train.groups[1].match: the pattern \"lm_head.weight\"", "nearest is ");
    refuses("model.freeze=rope.*", "matches no parameter", "nearest is "); /* a table is not a parameter */
    refuses("model.freeze='*'", "model.freeze: every parameter is frozen", "nothing to train");
    refuses("train.groups=[{match: '*', frozen: true}]", "train.groups: every parameter is frozen", "nothing to train");
}

/* --- parts of a model ----------------------------------------------------------------------- */

/* Parameters are frozen that have a text in their name, and no others; "": none is. */
static void expect_frozen(const char *preset, const char *const *sets, const char *text)
{
    struct config c;
    struct run r;
    uint32_t frozen = 0;
    begin(&c, preset, sets);
    make_plan(&r, &c);
    for (uint32_t i = 0; i < r.planned.graph.params.n; i++) {
        const struct param *p = &r.planned.graph.params.at[i];
        const char *name = graph_name(&r.planned.graph, tensor_at(&r.planned.graph, p->tensor)->name);
        const bool want = *text && strstr(name, text);
        if (storage_of(&r.planned.graph, p->tensor)->kind == KIND_CONST) continue;
        if (p->frozen != want) fail_msg("%s: %s is %s", preset, name, p->frozen ? "frozen" : "trained");
        frozen += p->frozen;
    }
    assert_true(!frozen == !*text);
    run_close(&r);
    config_free(&c);
}

TEST(test_parts)
{
    static const char *const tower[] = {"data.sequence=80", "data.format=conversations", "model.freeze=vision_tower",
                                        NULL};
    static const char *const projector[] = {"data.sequence=80", "data.format=conversations",
                                            "train.groups=[{match: projector, frozen: true}]", NULL};
    static const char *const text[] = {"data.sequence=80", "data.format=conversations", "model.freeze=language_model",
                                       NULL};
    static const char *const none[] = {"model.freeze=[vision_tower, projector]",
                                       "memory.modules=[{match: vision_tower, recompute: all}]", NULL};
    expect_frozen("llava-tiny", tower, "vision_tower.");
    expect_frozen("llava-tiny", projector, "multi_modal_projector.");
    expect_frozen("llava-tiny", text, "language_model.");
    expect_frozen("llama-tiny", none, "");
}

/* The blocks of a language model, by itself or with a tower, and not those of the tower. */
static void expect_recomputed(const char *preset, const char *const *sets, const char *only)
{
    struct config c;
    struct run r;
    int again = 0;
    begin(&c, preset, sets);
    make_plan(&r, &c);
    for (uint32_t k = 0; k < r.planned.graph.order[PROGRAM_STEP].nodes.n; k++) {
        const struct node *n = node_at(&r.planned.graph, r.planned.graph.order[PROGRAM_STEP].nodes.at[k]);
        if (n->phase != PHASE_RECOMPUTE) continue;
        const char *scope = graph_name(&r.planned.graph, r.planned.graph.scopes.at[n->scope].name);
        if (strncmp(scope, only, strlen(only))) fail_msg("%s: %s is recomputed", preset, scope);
        again++;
    }
    assert_true(again > 0);
    run_close(&r);
    config_free(&c);
}

TEST(test_recompute_part)
{
    static const char *const images[] = {"data.sequence=80", "data.format=conversations",
                                         "memory.modules=[{match: language_model, recompute: all}]", NULL};
    static const char *const text[] = {"memory.modules=[{match: language_model, recompute: all}]", NULL};
    expect_recomputed("llava-tiny", images, "language_model.");
    expect_recomputed("llama-tiny", text, "model.layers.");
}

MAIN(NULL, NULL)
