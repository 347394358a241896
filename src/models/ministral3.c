/*
 * ministral3.c: the text model of Ministral 3: Mistral with yarn, and queries that grow with their
 * positions.
 */
#include "models/decoder.h"

static int ministral3_parse(struct model *m, const struct value *config, struct error *e)
{
    struct decoder *c = decoder_new(m, (struct decoder){.vocabulary = 131072, .hidden = 4096, .inner = 14336,
                                                        .layers = 34, .heads = 32, .kv_heads = 8, .head_dim = 128,
                                                        .positions = 262144, .eps = 1e-5, .padding = 1 + 11});
    const struct value *map = value_get(config, "rope_parameters"), *old = value_get(config, "rope_scaling");
    TRY(value_as_map(map, "rope_parameters", e));
    TRY(value_as_number(value_get(map, "llama_4_scaling_beta"), "rope_parameters.llama_4_scaling_beta",
                        &c->query_growth, e));
    TRY(decoder_parse_window(c, config, 0, e));
    TRY(decoder_parse(m, c, config, e));
    if (c->rotary->type == ROTARY_YARN && !(old && old->count)) return PL_OK;
    return error_set(e, PL_USAGE, "rope_parameters: the rope_type of this family is yarn; rope_scaling is not for it");
}

const struct family ministral3_family = DECODER_FAMILY("ministral3", ministral3_parse);
