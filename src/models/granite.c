/*
 * granite.c: Granite: Llama with four factors, of the embeddings, of q k^T, of what is added to the
 * residual, and of the logits.
 */
#include "models/decoder.h"

static int granite_parse(struct model *m, const struct value *config, struct error *e)
{
    struct decoder *c = decoder_new(m, (struct decoder){.vocabulary = 32000, .hidden = 4096, .inner = 11008,
                                                        .layers = 32, .heads = 32, .positions = 2048,
                                                        .attention_scale = 1});
    double divisor = 1;
    TRY(value_opt_bool(config, "attention_bias", &c->qkv_bias, e));
    TRY(value_opt_bool(config, "mlp_bias", &c->mlp_bias, e));
    TRY(value_opt_number(config, "embedding_multiplier", &c->embedding_scale, e));
    TRY(value_opt_number(config, "attention_multiplier", &c->attention_scale, e));
    TRY(value_opt_number(config, "residual_multiplier", &c->residual_scale, e));
    TRY(value_opt_number(config, "logits_scaling", &divisor, e));
    if (divisor == 0) return error_set(e, PL_USAGE, "logits_scaling is 0; logits are divided by it");
    c->logits_scale = 1 / divisor;
    c->o_bias = c->qkv_bias;
    return decoder_parse(m, c, config, e);
}

const struct family granite_family = DECODER_FAMILY("granite", granite_parse);
