/*
 * phi3.c: Phi-3, Phi-3.5, Phi-4 and Phi-4-mini: q, k and v are one matrix, and so are gate and up;
 * longrope; a part of each head may be rotated.
 */
#include "models/decoder.h"

static int phi3_parse(struct model *m, const struct value *config, struct error *e)
{
    struct decoder *c = decoder_new(m, (struct decoder){.vocabulary = 32064, .hidden = 3072, .inner = 8192,
                                                        .layers = 32, .heads = 32, .positions = 4096, .eps = 1e-5,
                                                        .padding = 1 + 32000,
                                                        .rotary = {{.partial = 1, .original_positions = 4096}}});
    c->names.qkv = "self_attn.qkv_proj";
    c->names.gate_up = "mlp.gate_up_proj";
    TRY(decoder_parse_window(c, config, 0, e));
    TRY(decoder_parse(m, c, config, e));
    if (c->rotary->type == ROTARY_DEFAULT || c->rotary->type == ROTARY_LONGROPE) return PL_OK;
    return error_set(e, PL_USAGE, "rope_scaling: this family's rope_type is default or longrope");
}

const struct family phi3_family = DECODER_FAMILY("phi3", phi3_parse);
