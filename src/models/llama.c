/*
 * llama.c: Llama, Mistral (sliding window), Qwen2 (biases on q, k and v; optional sliding window in
 * its upper layers), Qwen3 (norms of the heads of q and k instead of the biases).
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

/* Parses the keys of Qwen's windows, and what all families share. */
static int parse_qwen(struct model *m, struct decoder *c, const struct value *config, struct error *e)
{
    bool sliding = false;
    TRY(value_opt_bool(config, "use_sliding_window", &sliding, e));
    if (sliding) TRY(decoder_parse_window(c, config, 4096, e));
    TRY(value_opt_int(config, "max_window_layers", &c->window_first, e));
    return decoder_parse(m, c, config, e);
}

static int qwen2_parse(struct model *m, const struct value *config, struct error *e)
{
    struct decoder *c = decoder_new(m, (struct decoder){.vocabulary = 151936, .hidden = 4096, .inner = 22016,
                                                        .layers = 32, .heads = 32, .kv_heads = 32,
                                                        .positions = 32768, .qkv_bias = true, .window_first = 28});
    return parse_qwen(m, c, config, e);
}

static int qwen3_parse(struct model *m, const struct value *config, struct error *e)
{
    struct decoder *c = decoder_new(m, (struct decoder){.vocabulary = 151936, .hidden = 4096, .inner = 22016,
                                                        .layers = 32, .heads = 32, .kv_heads = 32, .head_dim = 128,
                                                        .positions = 32768, .window_first = 28});
    c->names.q_norm = "self_attn.q_norm";
    c->names.k_norm = "self_attn.k_norm";
    TRY(value_opt_bool(config, "attention_bias", &c->qkv_bias, e));
    c->o_bias = c->qkv_bias;
    return parse_qwen(m, c, config, e);
}

const struct family llama_family = DECODER_FAMILY("llama", llama_parse);
const struct family mistral_family = DECODER_FAMILY("mistral", mistral_parse);
const struct family qwen2_family = DECODER_FAMILY("qwen2", qwen2_parse);
const struct family qwen3_family = DECODER_FAMILY("qwen3", qwen3_parse);
