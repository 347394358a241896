/*
 * olmo2.c: OLMo 2: norms behind attention and MLP instead of before them, and norms of the whole q
 * and k.
 */
#include "models/decoder.h"

static int olmo2_parse(struct model *m, const struct value *config, struct error *e)
{
    struct decoder *c = decoder_new(m, (struct decoder){.vocabulary = 50304, .hidden = 4096, .inner = 11008,
                                                        .layers = 32, .heads = 32, .positions = 2048, .eps = 1e-5,
                                                        .padding = 1 + 1, .whole_norms = true});
    c->names.before_attention = c->names.before_mlp = NULL;
    c->names.after_attention = "post_attention_layernorm";
    c->names.after_mlp = "post_feedforward_layernorm";
    c->names.q_norm = "self_attn.q_norm";
    c->names.k_norm = "self_attn.k_norm";
    TRY(value_opt_bool(config, "attention_bias", &c->qkv_bias, e));
    c->o_bias = c->qkv_bias;
    return decoder_parse(m, c, config, e);
}

const struct family olmo2_family = DECODER_FAMILY("olmo2", olmo2_parse);
