/*
 * qwen.c: Qwen2 (biases on q, k and v; optional sliding window in its upper layers), Qwen3 (norms
 * of the heads of q and k instead of the biases), Qwen3-MoE (Qwen3 with experts in all or some of
 * its layers; a sliding window is in all of them). The decoders of Qwen2-VL, Qwen2.5-VL and
 * Qwen3-VL (qwen_vl.c) are Qwen2's and Qwen3's, and their tokens have three positions.
 */
#include "models/decoder.h"
#include "models/layers.h"

/* Parses the keys of Qwen's windows, and what all families share. */
static int parse_qwen(struct model *m, struct decoder *c, const struct value *config, struct error *e)
{
    bool sliding = false;
    TRY(value_opt_bool(config, "use_sliding_window", &sliding, e));
    if (sliding) TRY(decoder_parse_window(c, config, 4096, e));
    c->listed_windows = !c->experts.n;
    if (c->listed_windows) TRY(value_opt_int(config, "max_window_layers", &c->window_first, e));
    return decoder_parse(m, c, config, e);
}

static int qwen2_parse(struct model *m, const struct value *config, struct error *e)
{
    struct decoder *c = decoder_new(m, (struct decoder){.vocabulary = 151936, .hidden = 4096, .inner = 22016,
                                                        .layers = 32, .heads = 32, .kv_heads = 32,
                                                        .positions = 32768, .qkv_bias = true, .window_first = 28});
    return parse_qwen(m, c, config, e);
}

/* Parses what Qwen3 has with experts and without. */
static int parse_qwen3(struct model *m, struct decoder *c, const struct value *config, struct error *e)
{
    c->names.q_norm = "self_attn.q_norm";
    c->names.k_norm = "self_attn.k_norm";
    TRY(value_opt_bool(config, "attention_bias", &c->qkv_bias, e));
    c->o_bias = c->qkv_bias;
    return parse_qwen(m, c, config, e);
}

static int qwen3_parse(struct model *m, const struct value *config, struct error *e)
{
    struct decoder *c = decoder_new(m, (struct decoder){.vocabulary = 151936, .hidden = 4096, .inner = 22016,
                                                        .layers = 32, .heads = 32, .kv_heads = 32, .head_dim = 128,
                                                        .positions = 32768, .window_first = 28});
    return parse_qwen3(m, c, config, e);
}

static int qwen2_vl_text_parse(struct model *m, const struct value *config, struct error *e)
{
    struct decoder *c = decoder_new(m, (struct decoder){.vocabulary = 152064, .hidden = 8192, .inner = 29568,
                                                        .layers = 80, .heads = 64, .kv_heads = 8, .positions = 32768,
                                                        .eps = 1e-5, .qkv_bias = true, .window_first = 80});
    c->rotary->theta = 1e6;
    c->rotary->sectioned = true;
    return parse_qwen(m, c, config, e);
}

static int qwen3_vl_text_parse(struct model *m, const struct value *config, struct error *e)
{
    struct decoder *c = decoder_new(m, (struct decoder){.vocabulary = 151936, .hidden = 4096, .inner = 22016,
                                                        .layers = 32, .heads = 32, .kv_heads = 32, .head_dim = 128,
                                                        .positions = 128000});
    c->rotary->theta = 5e5;
    c->rotary->sectioned = true;
    return parse_qwen3(m, c, config, e);
}

/* Marks the layers that have an MLP: those of mlp_only_layers, and all but each
 * decoder_sparse_step-th. */
static int parse_dense_layers(struct decoder *c, const struct value *config, struct error *e)
{
    const struct value *list = value_get(config, "mlp_only_layers");
    int64_t every = 1, layer;
    TRY(layer_parse_sizes(config, &(struct size_key){"decoder_sparse_step", &every, 1, 1 << 12}, 1, e));
    for (int64_t i = 0; i < c->layers; i++) c->layer[i].dense = (i + 1) % every != 0;
    if (!list || list->kind == VALUE_NULL) return PL_OK;
    TRY(value_as_list(list, "mlp_only_layers", e));
    for (uint32_t i = 0; i < list->count; i++) {
        TRY(value_as_int(value_at(list, i), "mlp_only_layers", &layer, e));
        if (layer >= 0 && layer < c->layers) c->layer[layer].dense = true;
    }
    return PL_OK;
}

static int qwen3_moe_parse(struct model *m, const struct value *config, struct error *e)
{
    struct decoder *c = decoder_new(m, (struct decoder){.vocabulary = 151936, .hidden = 2048, .inner = 6144,
                                                        .layers = 24, .heads = 32, .kv_heads = 4, .positions = 32768,
                                                        .experts = {.n = 128, .chosen = 8, .inner = 768}});
    c->names.router = "mlp.gate";
    c->names.expert_gate = "mlp.experts.*.gate_proj";
    c->names.expert_up = "mlp.experts.*.up_proj";
    c->names.expert_down = "mlp.experts.*.down_proj";
    TRY(decoder_parse_experts(c, config, e));
    TRY(value_opt_bool(config, "norm_topk_prob", &c->experts.normalised, e));
    TRY(layer_parse_sizes(config, &(struct size_key){"moe_intermediate_size", &c->experts.inner, 1, 1 << 22}, 1, e));
    TRY(parse_qwen3(m, c, config, e));
    return parse_dense_layers(c, config, e);
}

const struct family qwen2_family = DECODER_FAMILY("qwen2", qwen2_parse);
const struct family qwen3_family = DECODER_FAMILY("qwen3", qwen3_parse);
static const struct fused_tensor fused[] = {
    {".mlp.experts.gate_up_proj", {".mlp.experts.*.gate_proj.weight", ".mlp.experts.*.up_proj.weight"}},
    {".mlp.experts.down_proj", {".mlp.experts.*.down_proj.weight"}},
    {0},
};
const struct family qwen3_moe_family = DECODER_FAMILY("qwen3_moe", qwen3_moe_parse, .fused = fused);
const struct family qwen2_vl_text_family =
    {"qwen2_vl_text", qwen2_vl_text_parse, decoder_build, "model.", .decoder = true, .inside = true};
const struct family qwen3_vl_text_family =
    {"qwen3_vl_text", qwen3_vl_text_parse, decoder_build, "model.", .decoder = true, .inside = true};
