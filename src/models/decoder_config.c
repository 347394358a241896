/*
 * decoder_config.c: the keys of config.json that the families of decoders share (see decoder.h).
 */
#include "models/decoder.h"
#include "models/layers.h"
#include "models/parts.h"

struct decoder *decoder_new(struct model *m, struct decoder defaults)
{
    struct decoder *c = m->config = bump_alloc(&m->memory, sizeof *c);
    *c = defaults;
    if (c->eps == 0) c->eps = 1e-6;
    if (!c->act_key) c->act_key = "hidden_act";
    if (!c->act) c->act = ACT_SILU;
    if (c->rotary[TABLE_FULL].theta == 0) c->rotary[TABLE_FULL].theta = 10000;
    c->std = 0.02;
    c->root = "model.";
    c->names = (struct decoder_names){
        .embedding = "embed_tokens", .layers = "layers", .norm = "norm",
        .before_attention = "input_layernorm", .before_mlp = "post_attention_layernorm",
        .attention = "self_attn", .q = "self_attn.q_proj", .k = "self_attn.k_proj", .v = "self_attn.v_proj",
        .o = "self_attn.o_proj",
        .mlp = "mlp", .gate = "mlp.gate_proj", .up = "mlp.up_proj", .down = "mlp.down_proj",
    };
    return c;
}

static int parse_sizes(struct decoder *c, const struct value *config, struct error *e)
{
    const struct size_key sizes[] = {
        {"vocab_size", &c->vocabulary, 1, 1 << 24},     {"hidden_size", &c->hidden, 1, 1 << 20},
        {"intermediate_size", &c->inner, 1, 1 << 22},   {"num_hidden_layers", &c->layers, 1, 4096},
        {"num_attention_heads", &c->heads, 1, 1 << 14},
    };
    const struct size_key others[] = {
        {"num_key_value_heads", &c->kv_heads, 1, 1 << 14}, {"head_dim", &c->head_dim, 1, 1 << 12},
        {"max_position_embeddings", &c->positions, 1, 1 << 30},
    };
    TRY(layer_parse_sizes(config, sizes, COUNT(sizes), e));
    if (!c->kv_heads) c->kv_heads = c->heads;
    if (!c->head_dim) c->head_dim = c->hidden / c->heads;
    TRY(layer_parse_sizes(config, others, COUNT(others), e));
    if (c->heads % c->kv_heads)
        return error_set(e, PL_USAGE, "num_attention_heads %lld is not divisible by num_key_value_heads %lld",
                         (long long)c->heads, (long long)c->kv_heads);
    if (c->head_dim % 2)
        return error_set(e, PL_USAGE, "head_dim %lld is odd; rotary embeddings need an even number",
                         (long long)c->head_dim);
    return PL_OK;
}

int decoder_parse_window(struct decoder *c, const struct value *config, int64_t absent, struct error *e)
{
    const struct value *v = value_get(config, "sliding_window");
    c->window = v ? 0 : absent;
    if (!v || v->kind == VALUE_NULL) return PL_OK;
    return layer_parse_sizes(config, &(struct size_key){"sliding_window", &c->window, 1, 1 << 30}, 1, e);
}

/* Returns a layer with or without the sliding window. */
static struct decoder_layer layer_of(const struct decoder *c, bool sliding)
{
    return (struct decoder_layer){.window = sliding ? c->window : 0,
                                  .table = sliding && c->layered_rotary ? TABLE_SLIDING : TABLE_FULL};
}

int decoder_parse_cap(const struct value *config, const char *key, double *cap, struct error *e)
{
    const struct value *v = value_get(config, key);
    if (v && v->kind == VALUE_NULL) *cap = 0;
    if (!v || v->kind == VALUE_NULL) return PL_OK;
    TRY(value_as_number(v, key, cap, e));
    return *cap > 0 ? PL_OK : error_set(e, PL_USAGE, "%s is %g, it must be above 0, or null", key, *cap);
}

int decoder_refuse(const struct value *config, const char *key, struct error *e)
{
    bool set = false;
    TRY(value_opt_bool(config, key, &set, e));
    return set ? error_set(e, PL_USAGE, "%s is true, which is not supported", key) : PL_OK;
}

int decoder_parse_experts(struct decoder *c, const struct value *config, struct error *e)
{
    int64_t experts = c->experts.n, local = experts;
    const struct size_key keys[] = {{"num_experts", &experts, 1, 1 << 12}, {"num_local_experts", &local, 1, 1 << 12},
                                    {"num_experts_per_tok", &c->experts.chosen, 1, 1 << 12}};
    TRY(layer_parse_sizes(config, keys, COUNT(keys), e));
    const bool both = value_get(config, "num_experts") && value_get(config, "num_local_experts");
    if (both && local != experts)
        return error_set(e, PL_USAGE, "num_experts is %lld and num_local_experts is %lld: leave one of them out",
                         (long long)experts, (long long)local);
    c->experts.n = value_get(config, "num_experts") ? experts : local;
    if (c->experts.chosen > c->experts.n)
        return error_set(e, PL_USAGE,
                         "num_experts_per_tok is %lld, more than the experts (num_experts), which are %lld",
                         (long long)c->experts.chosen, (long long)c->experts.n);
    c->experts.balance = 0.001;
    TRY(value_opt_bool(config, "output_router_logits", &c->experts.balanced, e));
    TRY(value_opt_number(config, "router_aux_loss_coef", &c->experts.balance, e));
    return c->experts.balance >= 0 ? PL_OK
                                   : error_set(e, PL_USAGE, "router_aux_loss_coef is %g, it must be 0 or more",
                                               c->experts.balance);
}

/* Parses an entry of layer_types. A family whose layers do not follow the list takes one that says
 * what they are. */
static int parse_layer_type(struct decoder *c, int64_t i, const char *type, struct error *e)
{
    const bool sliding = !strcmp(type, "sliding_attention");
    if (!sliding && strcmp(type, "full_attention"))
        return error_set(e, PL_USAGE, "layer_types: \"%s\" is not full_attention or sliding_attention", type);
    if (sliding && !c->window)
        return error_set(e, PL_USAGE, "layer_types: layer %lld is sliding_attention, and the model has no sliding "
                                      "window (sliding_window, use_sliding_window)", (long long)i);
    if (!c->listed_windows && sliding != (c->layer[i].window > 0))
        return error_set(e, PL_USAGE, "layer_types: layer %lld is %s, and in this family all layers have the sliding "
                                      "window, or none (sliding_window)", (long long)i, type);
    if (c->listed_windows) c->layer[i] = layer_of(c, sliding);
    return PL_OK;
}

/* Parses layer_types, which, if given, lists the layers with a sliding window. */
static int parse_types(struct decoder *c, const struct value *config, struct error *e)
{
    const struct value *types = value_get(config, "layer_types");
    if (!types || types->kind == VALUE_NULL) return PL_OK;
    int rc = value_as_list(types, "layer_types", e);
    if (!rc && types->count != (uint64_t)c->layers)
        rc = error_set(e, PL_USAGE, "layer_types has %u entries, num_hidden_layers is %lld", types->count,
                       (long long)c->layers);
    for (int64_t i = 0; i < c->layers && !rc; i++) {
        const char *type = NULL;
        rc = value_as_string(value_at(types, (uint32_t)i), "layer_types", &type, e);
        if (!rc) rc = parse_layer_type(c, i, type, e);
    }
    return rc;
}

static int parse_layers(struct model *m, struct decoder *c, const struct value *config, struct error *e)
{
    c->layer = bump_alloc(&m->memory, (size_t)c->layers * sizeof *c->layer);
    for (int64_t i = 0; i < c->layers; i++) {
        const bool full = i < c->window_first || (c->full_every && (i + 1) % c->full_every == 0);
        c->layer[i] = layer_of(c, !full);
    }
    return parse_types(c, config, e);
}

/* Parses pad_token_id over the default, as torch.nn.Embedding takes its padding_idx: -1 is the last
 * row of the table. */
static int parse_padding(struct decoder *c, const struct value *config, struct error *e)
{
    const struct value *v = value_get(config, "pad_token_id");
    int64_t id = c->padding - 1;
    if (v ? v->kind == VALUE_NULL : !c->padding) {
        c->padding = 0;
        return PL_OK;
    }
    int rc = v ? value_as_int(v, "pad_token_id", &id, e) : PL_OK;
    if (!rc && (id >= c->vocabulary || id < -c->vocabulary))
        rc = error_set(e, PL_USAGE,
                       "pad_token_id is %lld, it must be an id of the vocabulary of %lld (vocab_size), or null",
                       (long long)id, (long long)c->vocabulary);
    c->padding = 1 + (id < 0 ? id + c->vocabulary : id);
    return rc;
}

/* Parses the activation by the family's key. A gate has fewer kinds than a layer without one. */
static int parse_act(struct decoder *c, const struct value *config, struct error *e)
{
    const char *name = NULL;
    TRY(value_opt_string(config, c->act_key, &name, e));
    const bool gate = !name || !strcmp(name, "silu") || !strcmp(name, "swish") || !strcmp(name, "gelu_pytorch_tanh") ||
                      (c->gelu_is_tanh && !strcmp(name, "gelu"));
    if ((c->names.gate || c->names.gate_up) && !gate)
        return error_set(e, PL_USAGE, "%s \"%s\": expected silu or gelu_pytorch_tanh", c->act_key, name);
    TRY(layer_parse_act_at(config, c->act_key, &c->act, e));
    if (c->gelu_is_tanh && c->act == ACT_GELU) c->act = ACT_GELU_TANH;
    return PL_OK;
}

int decoder_parse(struct model *m, struct decoder *c, const struct value *config, struct error *e)
{
    int64_t tp = 1;
    TRY(parse_sizes(c, config, e));
    TRY(parse_act(c, config, e));
    TRY(parse_padding(c, config, e));
    TRY(value_opt_number(config, "rms_norm_eps", &c->eps, e));
    TRY(value_opt_number(config, "initializer_range", &c->std, e));
    TRY(value_opt_bool(config, "tie_word_embeddings", &c->tied, e));
    TRY(value_opt_int(config, "pretraining_tp", &tp, e));
    if (!(c->eps > 0)) return error_set(e, PL_USAGE, "rms_norm_eps is %g, it must be above 0", c->eps);
    const struct rotary_sizes sizes = {c->head_dim, c->positions, &m->memory};
    TRY((c->layered_rotary ? rotary_parse_layers : rotary_parse)(c->rotary, config, sizes, e));
    decoder_describe(m, m);
    return parse_layers(m, c, config, e);
}
