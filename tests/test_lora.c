/*
 * test_lora.c: what an adapter computes from a plan: which inputs the backward keeps, where the
 * adapter's product is added, what is trained.
 *
 * golden.sh compares the numbers with PEFT's (tests/golden/peft), run_adapters.sh whole runs.
 */
#include "graph/ops.h"

#include "harness.h"
#include "planned_preset.h"

#define PLAIN "memory.recompute=none", "memory.offload=none", "memory.head_chunks=1", "memory.precision=f32"

/* The product in the forward of program step whose weight has this name. */
static const struct node *product(const struct graph *g, const char *weight)
{
    for (uint32_t k = 0; k < g->order[PROGRAM_STEP].nodes.n; k++) {
        const struct node *n = node_at(g, g->order[PROGRAM_STEP].nodes.at[k]);
        if (n->op == OP_LINEAR && n->phase == PHASE_FORWARD &&
            !strcmp(graph_name(g, tensor_at(g, n->in[1])->name), weight))
            return n;
    }
    fail_msg("no product with %s", weight);
    return NULL;
}

/* Whether the input of a product is kept from the forward to the backward. */
static bool keeps_input(const struct planned_preset *p, const char *weight)
{
    const struct graph *g = &p->r.planned.graph;
    const struct life *l =
        &p->r.planned.plan.placement.life[PROGRAM_STEP][tensor_at(g, product(g, weight)->in[0])->storage];
    const uint32_t turn = turn_of(g);
    return l->start < turn && l->end >= turn;
}

static id input_of(const struct planned_preset *p, const char *weight)
{
    return tensor_at(&p->r.planned.graph, product(&p->r.planned.graph, weight)->in[0])->storage;
}

/* The storage that the first factor of a module reads: that of the product of its group
 * (passes/rewrites/group_lora.c). */
static id input_of_first(const struct planned_preset *p, const char *module)
{
    const struct graph *g = &p->r.planned.graph;
    char name[128];
    snprintf(name, sizeof name, "%s.lora_A.weight", module);
    for (uint32_t k = 0; k < turn_of(g); k++) {
        const struct node *n = node_at(g, g->order[PROGRAM_STEP].nodes.at[k]);
        const struct node *w = n->op == OP_LINEAR ? node_at(g, tensor_at(g, n->in[1])->node) : NULL;
        for (int i = 0; w && w->op == OP_CONCAT && i < w->nin; i++)
            if (!strcmp(graph_name(g, tensor_at(g, w->in[i])->name), name)) return tensor_at(g, n->in[0])->storage;
    }
    fail_msg("no group with %s", name);
    return 0;
}

#define LAYER "model.layers.1."

/* A frozen linear without an adapter keeps no input; linears that share an input keep it once. */
TEST(test_kept)
{
    struct planned_preset p;
    plan_preset(&p, "llama-tiny", (const char *const[]){"adapter.target_modules=[q_proj, k_proj]", PLAIN, NULL});
    assert_true(keeps_input(&p, LAYER "self_attn.q_proj.weight"));
    assert_int_equal(input_of(&p, LAYER "self_attn.q_proj.weight"), input_of(&p, LAYER "self_attn.k_proj.weight"));
    assert_int_equal(input_of(&p, LAYER "self_attn.q_proj.weight"), input_of_first(&p, LAYER "self_attn.q_proj"));
    assert_false(keeps_input(&p, LAYER "mlp.gate_proj.weight"));
    assert_false(keeps_input(&p, LAYER "mlp.up_proj.weight"));
    assert_false(keeps_input(&p, LAYER "mlp.down_proj.weight"));
    planned_preset_free(&p);
    plan_preset(&p, "llama-tiny", (const char *const[]){"adapter.target_modules=[down_proj]", PLAIN, NULL});
    assert_true(keeps_input(&p, LAYER "mlp.down_proj.weight"));
    assert_false(keeps_input(&p, LAYER "self_attn.q_proj.weight"));
    planned_preset_free(&p);
}

/* Gradients of adapters are sums in f32, of grouped first factors too. */
TEST(test_gradients)
{
    struct planned_preset p;
    plan_preset(&p, "llama-tiny",
                (const char *const[]){"adapter.target_modules=all-linear", "memory.precision=bf16",
                                      "memory.recompute=none", NULL});
    const struct graph *g = &p.r.planned.graph;
    uint32_t products = 0;
    for (uint32_t k = 0; k < g->order[PROGRAM_STEP].nodes.n; k++) {
        const struct node *n = node_at(g, g->order[PROGRAM_STEP].nodes.at[k]);
        if (n->op != OP_MATMUL || !n->attr.matmul.ta) continue;
        products++;
        assert_int_equal(tensor_at(g, n->out[0])->dtype, DT_F32);
    }
    assert_int_equal(products, 4 * (7 + 4)); /* of each layer seven second factors; two groups, o_proj and down_proj */
    planned_preset_free(&p);
}

/* The product adds the adapter's through its residual input, and that adds the block's residual: no
 * sum is left in a block. */
TEST(test_sums)
{
    struct planned_preset p;
    plan_preset(&p, "llama-tiny", (const char *const[]){"adapter.target_modules=all-linear", PLAIN, NULL});
    const struct graph *g = &p.r.planned.graph;
    for (uint32_t k = 0; k < turn_of(g); k++)
        assert_int_not_equal(node_at(g, g->order[PROGRAM_STEP].nodes.at[k])->op, OP_ADD);
    const struct node *down = product(g, LAYER "mlp.down_proj.weight"),
                      *b = product(g, LAYER "mlp.down_proj.lora_B.weight");
    assert_true(down->nin == 4 && tensor_at(g, down->in[3])->node && node_at(g, tensor_at(g, down->in[3])->node) == b);
    assert_true(b->nin == 4 && b->in[3]);
    planned_preset_free(&p);
}

/* Only the weights of the modules are trained; with modules_to_save and biases those too. */
TEST(test_trained)
{
    struct planned_preset p;
    plan_preset(&p, "sam-tiny",
                (const char *const[]){"adapter.target_modules=[qkv]", "adapter.modules_to_save=[mask_decoder]",
                                      "adapter.bias=lora_only", PLAIN, NULL});
    const struct graph *g = &p.r.planned.graph;
    uint32_t added = 0;
    for (uint32_t i = 0; i < g->params.n; i++) {
        const struct param *x = &g->params.at[i];
        const char *name = graph_name(g, tensor_at(g, x->tensor)->name);
        const bool decoder = !strncmp(name, "mask_decoder.", 13), bias = strstr(name, "attn.qkv.bias");
        if (storage_of(g, x->tensor)->kind == KIND_CONST) continue;
        assert_int_equal(x->added, strstr(name, ".lora_") != NULL);
        if (x->frozen == (x->added || decoder || bias)) fail_msg("%s is %s", name, x->frozen ? "frozen" : "trained");
        added += x->added;
    }
    assert_int_equal(added, 2 * 4);
    planned_preset_free(&p);
}

/* A fused matrix of queries, keys and values that the model reads in three parts has one
 * adapter. */
TEST(test_parts_of_a_weight)
{
    struct planned_preset p;
    plan_preset(&p, "tinysam-tiny", (const char *const[]){"adapter.target_modules=[qkv]", PLAIN, NULL});
    const struct graph *g = &p.r.planned.graph;
    uint32_t modules = 0, products = 0;
    for (uint32_t i = 0; i < g->params.n; i++)
        modules += text_ends_with(graph_name(g, tensor_at(g, g->params.at[i].tensor)->name), "qkv.lora_A.weight");
    for (uint32_t k = 0; k < turn_of(g); k++) {
        const struct node *n = node_at(g, g->order[PROGRAM_STEP].nodes.at[k]);
        products +=
            n->op == OP_LINEAR && text_ends_with(graph_name(g, tensor_at(g, n->in[1])->name), "qkv.lora_A.weight");
    }
    assert_true(modules > 0);
    assert_int_equal(products, modules);
    planned_preset_free(&p);
}

MAIN(NULL, NULL)
