/*
 * moe.c: mixtures of experts: Mixtral, and Qwen3-MoE, which is Qwen3 with experts in all or some of
 * its layers.
 */
#include "models/decoder.h"
#include "models/layers.h"

/* Parses how many experts there are, by the family's key, and how many a token chooses. */
static int parse_experts(struct decoder *c, const struct value *config, const char *key, struct error *e)
{
    const struct size_key keys[] = {{key, &c->experts.n, 1, 1 << 12},
                                    {"num_experts_per_tok", &c->experts.chosen, 1, 1 << 12}};
    TRY(layer_parse_sizes(config, keys, COUNT(keys), e));
    if (c->experts.chosen > c->experts.n)
        return error_set(e, PL_USAGE, "num_experts_per_tok is %lld, more than %s, which is %lld",
                         (long long)c->experts.chosen, key, (long long)c->experts.n);
    return decoder_refuse(config, "output_router_logits", e);
}

static int mixtral_parse(struct model *m, const struct value *config, struct error *e)
{
    struct decoder *c = decoder_new(m, (struct decoder){.vocabulary = 32000, .hidden = 4096, .inner = 14336,
                                                        .layers = 32, .heads = 32, .kv_heads = 8, .eps = 1e-5,
                                                        .positions = 4096 * 32, .rotary = {{.theta = 1e6}},
                                                        .experts = {.n = 8, .chosen = 2, .normalised = true}});
    double jitter = 0;
    c->names.mlp = "block_sparse_moe";
    c->names.router = "block_sparse_moe.gate";
    c->names.expert_gate = "block_sparse_moe.experts.*.w1";
    c->names.expert_up = "block_sparse_moe.experts.*.w3";
    c->names.expert_down = "block_sparse_moe.experts.*.w2";
    TRY(parse_experts(c, config, "num_local_experts", e));
    TRY(value_opt_number(config, "router_jitter_noise", &jitter, e));
    if (jitter != 0)
        return error_set(e, PL_USAGE, "router_jitter_noise is %g, which is not supported; 0 trains without it", jitter);
    TRY(decoder_parse_window(c, config, 0, e));
    TRY(decoder_parse(m, c, config, e));
    c->experts.inner = c->inner;
    return PL_OK;
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
                                                        .layers = 24, .heads = 32, .kv_heads = 4,
                                                        .positions = 32768,
                                                        .experts = {.n = 128, .chosen = 8, .inner = 768}});
    bool sliding = false;
    c->names.q_norm = "self_attn.q_norm";
    c->names.k_norm = "self_attn.k_norm";
    c->names.router = "mlp.gate";
    c->names.expert_gate = "mlp.experts.*.gate_proj";
    c->names.expert_up = "mlp.experts.*.up_proj";
    c->names.expert_down = "mlp.experts.*.down_proj";
    TRY(value_opt_bool(config, "attention_bias", &c->qkv_bias, e));
    c->o_bias = c->qkv_bias;
    TRY(parse_experts(c, config, "num_experts", e));
    TRY(value_opt_bool(config, "norm_topk_prob", &c->experts.normalised, e));
    TRY(layer_parse_sizes(config, &(struct size_key){"moe_intermediate_size", &c->experts.inner, 1, 1 << 22}, 1, e));
    TRY(value_opt_bool(config, "use_sliding_window", &sliding, e));
    if (sliding) TRY(decoder_parse_window(c, config, 4096, e));
    TRY(decoder_parse(m, c, config, e));
    return parse_dense_layers(c, config, e);
}

const struct family mixtral_family = DECODER_FAMILY("mixtral", mixtral_parse);
const struct family qwen3_moe_family = DECODER_FAMILY("qwen3_moe", qwen3_moe_parse);
