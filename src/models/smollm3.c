/*
 * smollm3.c: SmolLM3: Llama, of which some layers do not rotate positions (no_rope_layers, 0: this
 * layer does not).
 */
#include "models/decoder.h"

/* Parses which layers rotate: a list, or all but each no_rope_layer_interval-th. A layer that does
 * not has the sliding window, if use_sliding_window is set and layer_types does not say. */
static int parse_rotated(struct decoder *c, const struct value *config, struct error *e)
{
    const struct value *list = value_get(config, "no_rope_layers"), *types = value_get(config, "layer_types");
    int64_t interval = 4, rotated;
    bool sliding = false;
    TRY(value_opt_int(config, "no_rope_layer_interval", &interval, e));
    TRY(value_opt_bool(config, "use_sliding_window", &sliding, e));
    if (interval < 1) return error_set(e, PL_USAGE, "no_rope_layer_interval is %lld, it must be 1 or more",
                                       (long long)interval);
    for (int64_t i = 0; i < c->layers; i++) {
        rotated = (i + 1) % interval != 0;
        if (list && list->kind != VALUE_NULL)
            TRY(value_as_int(value_at(list, (uint32_t)i), "an entry of no_rope_layers for each layer", &rotated, e));
        if (!rotated) c->layer[i].table = TABLE_NONE;
        if (!types || types->kind == VALUE_NULL) c->layer[i].window = sliding && !rotated ? c->window : 0;
    }
    return PL_OK;
}

static int smollm3_parse(struct model *m, const struct value *config, struct error *e)
{
    struct decoder *c = decoder_new(m, (struct decoder){.vocabulary = 128256, .hidden = 2048, .inner = 11008,
                                                        .layers = 36, .heads = 16, .kv_heads = 4, .tied = true,
                                                        .positions = 32768, .padding = 1 + 128004,
                                                        .rotary = {{.theta = 2000000}}});
    TRY(value_opt_bool(config, "attention_bias", &c->qkv_bias, e));
    TRY(value_opt_bool(config, "mlp_bias", &c->mlp_bias, e));
    TRY(decoder_parse_window(c, config, 0, e));
    c->o_bias = c->qkv_bias;
    c->listed_windows = true;
    TRY(decoder_parse(m, c, config, e));
    return parse_rotated(c, config, e);
}

const struct family smollm3_family = DECODER_FAMILY("smollm3", smollm3_parse);
