/*
 * gpt2.c: GPT-2, and the shapes of GPT-3: learned positions, LayerNorm, biases everywhere, q, k and
 * v in one matrix, an MLP without a gate, weights stored as [inputs,outputs].
 */
#include "models/decoder.h"
#include "models/layers.h"

static const struct decoder_names names = {
    .embedding = "wte", .positions = "wpe", .layers = "h", .norm = "ln_f",
    .before_attention = "ln_1", .before_mlp = "ln_2", .attention = "attn", .qkv = "attn.c_attn", .o = "attn.c_proj",
    .mlp = "mlp", .up = "mlp.c_fc", .down = "mlp.c_proj",
};

/* Parses the keys that have names of their own here. */
static int parse_keys(struct decoder *c, const struct value *config, struct error *e)
{
    const struct size_key sizes[] = {{"n_embd", &c->hidden, 1, 1 << 20}, {"hidden_size", &c->hidden, 1, 1 << 20},
                                     {"n_layer", &c->layers, 1, 4096},
                                     {"n_head", &c->heads, 1, 1 << 14}, {"n_positions", &c->positions, 1, 1 << 30}};
    bool scaled = true;
    TRY(layer_parse_sizes(config, sizes, COUNT(sizes), e));
    c->inner = 4 * c->hidden;
    TRY(layer_parse_sizes(config, &(struct size_key){"n_inner", &c->inner, 1, 1 << 22}, 1, e));
    TRY(value_opt_number(config, "layer_norm_epsilon", &c->eps, e));
    TRY(value_opt_bool(config, "scale_attn_weights", &scaled, e));
    if (!scaled) c->attention_scale = 1;
    TRY(decoder_refuse(config, "scale_attn_by_inverse_layer_idx", e));
    TRY(decoder_refuse(config, "reorder_and_upcast_attn", e));
    return decoder_refuse(config, "add_cross_attention", e);
}

/* Notes the dropouts, which are 0.1 where config.json does not say (model_check_dropout). */
static int parse_dropouts(struct model *m, const struct value *config, struct error *e)
{
    static const char *const keys[] = {"attn_pdrop", "embd_pdrop", "resid_pdrop"};
    for (size_t i = 0; i < COUNT(keys); i++) {
        double p = 0.1;
        TRY(value_opt_number(config, keys[i], &p, e));
        if (p > 0) m->dropout = bump_format(&m->memory, "%s is %g", keys[i], p);
    }
    return PL_OK;
}

static int gpt2_parse(struct model *m, const struct value *config, struct error *e)
{
    struct decoder *c = decoder_new(m, (struct decoder){.vocabulary = 50257, .hidden = 768, .layers = 12, .heads = 12,
                                                        .positions = 1024, .eps = 1e-5, .tied = true,
                                                        .qkv_bias = true, .o_bias = true, .mlp_bias = true,
                                                        .act = ACT_GELU_TANH, .act_key = "activation_function",
                                                        .layer_norms = true, .transposed = true});
    c->root = "transformer.";
    c->names = names;
    TRY(parse_keys(c, config, e));
    TRY(parse_dropouts(m, config, e));
    TRY(decoder_parse(m, c, config, e));
    if (c->head_dim * c->heads != c->hidden)
        return error_set(e, PL_USAGE, "head_dim is %lld, expected n_embd / n_head", (long long)c->head_dim);
    c->padding = 0; /* its embedding takes no notice of pad_token_id */
    for (int64_t i = 0; i < c->layers; i++) c->layer[i] = (struct decoder_layer){.table = TABLE_NONE};
    return PL_OK;
}

const struct family gpt2_family = {"gpt2", gpt2_parse, decoder_build, "transformer.", .generates = true,
                                   .decoder = true};
