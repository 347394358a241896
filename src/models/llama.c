/*
 * llama.c: Llama, and Mistral, which has a sliding window.
 */
#include "models/decoder.h"

static int llama_parse(struct model *m, const struct value *config, struct error *e)
{
    struct decoder *c = decoder_new(m, (struct decoder){.vocabulary = 32000, .hidden = 4096, .inner = 11008,
                                                        .layers = 32, .heads = 32, .positions = 2048});
    TRY(value_opt_bool(config, "attention_bias", &c->qkv_bias, e));
    TRY(value_opt_bool(config, "mlp_bias", &c->mlp_bias, e));
    c->o_bias = c->qkv_bias;
    return decoder_parse(m, c, config, e);
}

static int mistral_parse(struct model *m, const struct value *config, struct error *e)
{
    struct decoder *c = decoder_new(m, (struct decoder){.vocabulary = 32000, .hidden = 4096, .inner = 14336,
                                                        .layers = 32, .heads = 32, .kv_heads = 8,
                                                        .positions = 4096 * 32});
    TRY(decoder_parse_window(c, config, 4096, e));
    return decoder_parse(m, c, config, e);
}

const struct family llama_family = DECODER_FAMILY("llama", llama_parse);
const struct family mistral_family = DECODER_FAMILY("mistral", mistral_parse);
