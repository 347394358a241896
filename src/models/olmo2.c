/*
 * olmo2.c: OLMo 2 and 3: norms behind attention and MLP instead of before them, and norms of the
 * whole q and k. OLMo 3 has a sliding window in three of four layers, where rotary positions are
 * not scaled.
 */
#include "models/decoder.h"

static const struct decoder defaults = {.vocabulary = 50304, .hidden = 4096, .inner = 11008, .layers = 32, .heads = 32,
                                        .positions = 2048, .eps = 1e-5, .padding = 1 + 1, .whole_norms = true};

/* Parses what the two share. */
static int parse_olmo(struct model *m, struct decoder *c, const struct value *config, struct error *e)
{
    c->names.before_attention = c->names.before_mlp = NULL;
    c->names.after_attention = "post_attention_layernorm";
    c->names.after_mlp = "post_feedforward_layernorm";
    c->names.q_norm = "self_attn.q_norm";
    c->names.k_norm = "self_attn.k_norm";
    TRY(value_opt_bool(config, "attention_bias", &c->qkv_bias, e));
    c->o_bias = c->qkv_bias;
    return decoder_parse(m, c, config, e);
}

static int olmo2_parse(struct model *m, const struct value *config, struct error *e)
{
    return parse_olmo(m, decoder_new(m, defaults), config, e);
}

static int olmo3_parse(struct model *m, const struct value *config, struct error *e)
{
    struct decoder *c = decoder_new(m, defaults);
    double theta = 500000;
    c->layered_rotary = true;
    c->rotary[TABLE_FULL].theta = c->rotary[TABLE_SLIDING].theta = theta;
    TRY(value_opt_number(config, "rope_theta", &theta, e));
    if (theta != 500000 && !value_get(config, "rope_parameters"))
        return error_set(e, PL_USAGE, "rope_theta is %g, and layers with a window and without have a table each: give "
                                      "each its rope_theta, in rope_parameters", theta);
    c->full_every = 4;
    c->listed_windows = true;
    TRY(decoder_parse_window(c, config, 4096, e));
    return parse_olmo(m, c, config, e);
}

const struct family olmo2_family = DECODER_FAMILY("olmo2", olmo2_parse);
const struct family olmo3_family = DECODER_FAMILY("olmo3", olmo3_parse);
