/*
 * mixtral.c: Mixtral: Mistral with a mixture of experts in every layer.
 */
#include "models/decoder.h"

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
    TRY(decoder_parse_experts(c, config, e));
    TRY(value_opt_number(config, "router_jitter_noise", &jitter, e));
    if (jitter != 0)
        return error_set(e, PL_USAGE, "router_jitter_noise is %g, which is not supported; 0 trains without it", jitter);
    TRY(decoder_parse_window(c, config, 0, e));
    TRY(decoder_parse(m, c, config, e));
    c->experts.inner = c->inner;
    return PL_OK;
}

static const struct fused_tensor fused[] = {
    {".mlp.experts.gate_up_proj", {".block_sparse_moe.experts.*.w1.weight", ".block_sparse_moe.experts.*.w3.weight"}},
    {".mlp.experts.down_proj", {".block_sparse_moe.experts.*.w2.weight"}},
    {".mlp.gate.weight", {".block_sparse_moe.gate.weight"}},
    {0},
};

const struct family mixtral_family = DECODER_FAMILY("mixtral", mixtral_parse, .fused = fused);
