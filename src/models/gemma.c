/*
 * gemma.c: Gemma, Gemma 2 and the text models of Gemma 3: norms times 1 + w, a gate of tanh-GELU,
 * embeddings times sqrt(C). Gemma 2 has norms before and behind each part, soft caps, and a sliding
 * window in every other layer; Gemma 3 has norms of the heads of q and k instead of the caps, and
 * rotary positions of their own in layers with a window.
 */
#include <math.h>

#include "models/decoder.h"

/* Parses what the three share. */
static int parse_gemma(struct model *m, struct decoder *c, const struct value *config, struct error *e)
{
    c->act = ACT_GELU_TANH;
    c->tied = c->unit_offset = c->embedding_scale_rounded = true;
    c->padding = 1 + 0;
    TRY(decoder_refuse(config, "use_bidirectional_attention", e));
    TRY(value_opt_bool(config, "attention_bias", &c->qkv_bias, e));
    c->o_bias = c->qkv_bias;
    TRY(decoder_parse(m, c, config, e));
    c->embedding_scale = sqrt((double)c->hidden);
    return PL_OK;
}

static int gemma_parse(struct model *m, const struct value *config, struct error *e)
{
    struct decoder *c = decoder_new(m, (struct decoder){.vocabulary = 256000, .hidden = 3072, .inner = 24576,
                                                        .layers = 28, .heads = 16, .kv_heads = 16, .head_dim = 256,
                                                        .positions = 8192, .gelu_is_tanh = true});
    return parse_gemma(m, c, config, e);
}

/* Parses what Gemma 2 and 3 share; soft caps have the family's defaults. */
static int parse_gemma2(struct model *m, struct decoder *c, const struct value *config, struct error *e)
{
    double scalar = 256;
    c->listed_windows = true;
    c->act_key = "hidden_activation";
    c->names.after_attention = "post_attention_layernorm";
    c->names.before_mlp = "pre_feedforward_layernorm";
    c->names.after_mlp = "post_feedforward_layernorm";
    TRY(decoder_parse_window(c, config, 4096, e));
    TRY(decoder_parse_cap(config, "attn_logit_softcapping", &c->attention_cap, e));
    TRY(decoder_parse_cap(config, "final_logit_softcapping", &c->logits_cap, e));
    TRY(value_opt_number(config, "query_pre_attn_scalar", &scalar, e));
    if (!(scalar > 0)) return error_set(e, PL_USAGE, "query_pre_attn_scalar is %g, it must be above 0", scalar);
    c->attention_scale = 1 / sqrt(scalar);
    return parse_gemma(m, c, config, e);
}

static int gemma2_parse(struct model *m, const struct value *config, struct error *e)
{
    struct decoder *c = decoder_new(m, (struct decoder){.vocabulary = 256000, .hidden = 2304, .inner = 9216,
                                                        .layers = 26, .heads = 8, .kv_heads = 4, .head_dim = 256,
                                                        .positions = 8192, .full_every = 2, .attention_cap = 50,
                                                        .logits_cap = 30});
    return parse_gemma2(m, c, config, e);
}

static int gemma3_parse(struct model *m, const struct value *config, struct error *e)
{
    struct decoder *c = decoder_new(m, (struct decoder){.vocabulary = 262208, .hidden = 2304, .inner = 9216,
                                                        .layers = 26, .heads = 8, .kv_heads = 4, .head_dim = 256,
                                                        .positions = 131072, .full_every = 6, .layered_rotary = true,
                                                        .rotary = {{.theta = 1e6}, {.theta = 1e4}}});
    c->names.q_norm = "self_attn.q_norm";
    c->names.k_norm = "self_attn.k_norm";
    TRY(value_opt_int(config, "sliding_window_pattern", &c->full_every, e));
    if (c->full_every < 1)
        return error_set(e, PL_USAGE, "sliding_window_pattern is %lld, it must be 1 or more", (long long)c->full_every);
    TRY(parse_gemma2(m, c, config, e));
    if (!c->attention_cap) return PL_OK;
    return error_set(e, PL_USAGE,
                     "attn_logit_softcapping is %g, and the attention of this family has no soft cap: set it to null",
                     c->attention_cap);
}

const struct family gemma_family = DECODER_FAMILY("gemma", gemma_parse);
const struct family gemma2_family = DECODER_FAMILY("gemma2", gemma2_parse);
const struct family gemma3_text_family = DECODER_FAMILY("gemma3_text", gemma3_parse);
