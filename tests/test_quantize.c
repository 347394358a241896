/*
 * test_quantize.c: what memory.quantize makes of a plan: bytes per weight; no dequantized weight is
 * alive between forward and backward, nor longer than its reader; what is offloaded are the 4-bit
 * bytes.
 *
 * run_quantize.sh shows with whole runs that the bits are those of the dequantized weights.
 */
#include "graph/ops.h"
#include "graph/stored.h"

#include "harness.h"
#include "planned_preset.h"

/* Only DEQUANTIZE reads a quantized weight, or a copy between memories. Its result lives until its
 * reader, the next node but for others of these two ops; none is alive at the turn from forward to
 * backward. */
static void check_lives(const struct planned_preset *p, uint32_t readers)
{
    const struct graph *g = &p->r.planned.graph;
    const struct order *o = &g->order[PROGRAM_STEP];
    const struct life *life = p->r.planned.plan.placement.life[PROGRAM_STEP];
    const uint32_t turn = turn_of(g);
    uint32_t count = 0;
    for (uint32_t k = 0; k < o->nodes.n; k++) {
        const struct node *n = node_at(g, o->nodes.at[k]);
        for (int i = 0; i < n->nin; i++) {
            const struct storage *s = n->in[i] ? storage_of(g, n->in[i]) : NULL;
            if (s && s->form) assert_true(n->op == OP_DEQUANTIZE || n->op == OP_COPY);
        }
        if (n->op != OP_DEQUANTIZE) continue;
        count++;
        const id s = tensor_at(g, n->out[0])->storage;
        assert_true(g->storages.at[s].kind == KIND_ACT && life[s].start == k && life[s].end > k);
        assert_false(life[s].start < turn && life[s].end >= turn);
        for (uint32_t j = k + 1; j < life[s].end; j++) {
            const int op = node_at(g, o->nodes.at[j])->op;
            assert_true(op == OP_DEQUANTIZE || op == OP_COPY);
        }
    }
    assert_int_equal(count, readers);
}

/* The quantized weights: their number, values and bytes. */
static uint32_t count_quantized(const struct graph *g, int64_t *values, uint64_t *bytes, enum space space)
{
    uint32_t n = 0;
    *values = 0;
    *bytes = 0;
    for (uint32_t i = 0; i < g->params.n; i++) {
        const struct storage *s = storage_of(g, g->params.at[i].tensor);
        if (!s->form) continue;
        assert_true(s->form == STORED_NF4 && g->params.at[i].frozen && s->space == space);
        *values += tensor_elements(tensor_at(g, g->params.at[i].tensor));
        *bytes += s->bytes;
        n++;
    }
    return n;
}

static const char *const frozen = "model.freeze=[\"*_proj.weight\"]";

TEST(test_language)
{
    struct planned_preset p;
    int64_t values;
    uint64_t bytes;
    /* Seven linear layers in each of four blocks, with a reader in the forward and one in the
     * backward: the embedding is trained, so the input of each layer has a gradient. */
    plan_preset(&p, "llama-tiny",
                (const char *const[]){frozen, "memory.quantize=nf4", "memory.recompute=none", "memory.offload=none",
                                      "memory.head_chunks=1", NULL});
    assert_int_equal(count_quantized(&p.r.planned.graph, &values, &bytes, SPACE_DEVICE), 28);
    /* four bytes and alignment per tensor of 16 Ki values and more */
    assert_true((double)bytes * 8 / (double)values < 4.135);
    check_lives(&p, 56);
    planned_preset_free(&p);
    plan_preset(&p, "llama-tiny",
                (const char *const[]){frozen, "memory.quantize=nf4", "memory.recompute=all", "memory.offload=weights",
                                      "memory.precision=bf16", NULL});
    assert_int_equal(count_quantized(&p.r.planned.graph, &values, &bytes, SPACE_HOST), 28);
    assert_true(p.r.planned.plan.placement.arena[SPACE_HOST] < 4.2 / 8 * (double)values + 1e6);
    check_lives(&p, 28 * 2 + 28 - 4); /* the last product of a block is not recomputed: only its input is needed */
    planned_preset_free(&p);
}

/* 4.127 bits per weight, on the shapes of a 7B model; embedding, head and norms stay as they
 * are. */
TEST(test_bits)
{
    struct planned_preset p;
    int64_t values;
    uint64_t bytes;
    plan_preset(&p, "llama-7b",
                (const char *const[]){frozen, "memory.quantize=nf4", "memory.micro_batch=1", "memory.recompute=all",
                                      "memory.offload=none", "memory.precision=bf16", "memory.head_chunks=1", NULL});
    const uint32_t n = count_quantized(&p.r.planned.graph, &values, &bytes, SPACE_DEVICE);
    assert_true(n > 100);
    assert_true((double)bytes * 8 / (double)values > 4.12695 && (double)bytes * 8 / (double)values < 4.1271);
    planned_preset_free(&p);
}

/* SAM with a frozen encoder: no gradient goes through it, so each weight has one reader. */
TEST(test_sam)
{
    struct planned_preset p;
    int64_t values;
    uint64_t bytes;
    plan_preset(&p, "sam-tiny",
                (const char *const[]){"model.freeze=[\"vision_encoder.*\", \"*embed*\"]", "memory.quantize=nf4",
                                      "memory.recompute=none", "memory.offload=none", NULL});
    const uint32_t n = count_quantized(&p.r.planned.graph, &values, &bytes, SPACE_DEVICE);
    assert_true(n >= 8);
    check_lives(&p, n);
    planned_preset_free(&p);
}

/* The last rule that matches a layer decides. */
TEST(test_rules)
{
    struct planned_preset p;
    int64_t values;
    uint64_t bytes;
    plan_preset(&p, "llama-tiny",
                (const char *const[]){frozen,
                                      "memory.quantize=[{match: [\"model.layers.*\"], form: nf4}, {match: "
                                      "[\"model.layers.2\", \"*.q_proj\"], form: none}]",
                                      NULL});
    assert_int_equal(count_quantized(&p.r.planned.graph, &values, &bytes, SPACE_DEVICE), 18);
    planned_preset_free(&p);
}

MAIN(NULL, NULL)
