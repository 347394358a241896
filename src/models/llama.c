/*
 * llama.c: the families of decoder-only language models that decoder.c builds: Llama, Mistral
 * (sliding window), Qwen2 (biases on q, k and v; optional sliding window in its upper layers).
 */
#include "models/llama.h"

#include <string.h>

#include "models/parts.h"

static int require_range(const char *key, int64_t x, int64_t most, struct error *e)
{
    if (x >= 1 && x <= most) return PL_OK;
    return error_set(e, PL_USAGE, "%s is %lld, it must lie between 1 and %lld", key, (long long)x, (long long)most);
}

static int parse_sizes(struct llama *c, const struct value *config, struct error *e)
{
    int rc = PL_OK;
    const struct {
        const char *key;
        int64_t *to, most;
    } sizes[] = {
        {"vocab_size", &c->vocabulary, 1 << 24},       {"hidden_size", &c->hidden, 1 << 20},
        {"intermediate_size", &c->inner, 1 << 22},     {"num_hidden_layers", &c->layers, 4096},
        {"num_attention_heads", &c->heads, 1 << 14},   {"num_key_value_heads", &c->kv_heads, 1 << 14},
        {"head_dim", &c->head_dim, 1 << 12},           {"max_position_embeddings", &c->positions, 1 << 30},
    };
    for (size_t i = 0; i < COUNT(sizes) && !rc; i++) {
        rc = value_opt_int(config, sizes[i].key, sizes[i].to, e);
        if (sizes[i].to == &c->heads && !rc) {
            rc = require_range("num_attention_heads", c->heads, 1 << 14, e);
            if (!rc && !c->kv_heads) c->kv_heads = c->heads;
            if (!rc && !c->head_dim) c->head_dim = c->hidden / c->heads;
        }
        if (!rc) rc = require_range(sizes[i].key, *sizes[i].to, sizes[i].most, e);
    }
    if (!rc && c->heads % c->kv_heads)
        rc = error_set(e, PL_USAGE, "num_attention_heads %lld is not divisible by num_key_value_heads %lld",
                       (long long)c->heads, (long long)c->kv_heads);
    if (!rc && c->head_dim % 2)
        rc = error_set(e, PL_USAGE, "head_dim %lld is odd; rotary embeddings need an even number",
                       (long long)c->head_dim);
    return rc;
}

/* layer_types, if given, lists the layers with a sliding window; otherwise they are the layers from
 * `first` on. */
static int parse_windows(struct model *m, struct llama *c, const struct value *config, int64_t first, struct error *e)
{
    c->windowed = bump_alloc(&m->memory, (size_t)c->layers * sizeof *c->windowed);
    for (int64_t i = 0; i < c->layers; i++) c->windowed[i] = c->window > 0 && i >= first;
    const struct value *types = value_get(config, "layer_types");
    if (!types || types->kind == VALUE_NULL) return PL_OK;
    int rc = value_as_list(types, "layer_types", e);
    if (!rc && types->count != (uint64_t)c->layers)
        rc = error_set(e, PL_USAGE, "layer_types has %u entries, num_hidden_layers is %lld", types->count,
                       (long long)c->layers);
    for (int64_t i = 0; i < c->layers && !rc; i++) {
        const char *type = NULL;
        rc = value_as_string(value_at(types, (uint32_t)i), "layer_types", &type, e);
        if (!rc && strcmp(type, "sliding_attention") && strcmp(type, "full_attention"))
            rc = error_set(e, PL_USAGE, "layer_types: \"%s\" is not full_attention or sliding_attention", type);
        if (!rc) c->windowed[i] = c->window > 0 && !strcmp(type, "sliding_attention");
    }
    return rc;
}

/* sliding_window: a number, or null for none; `absent` is the value if the key is missing. */
static int parse_window(struct llama *c, const struct value *config, int64_t absent, struct error *e)
{
    const struct value *v = value_get(config, "sliding_window");
    c->window = v ? 0 : absent;
    if (!v || v->kind == VALUE_NULL) return PL_OK;
    int rc = value_as_int(v, "sliding_window", &c->window, e);
    return rc ? rc : require_range("sliding_window", c->window, 1 << 30, e);
}

/* pad_token_id, as torch.nn.Embedding takes its padding_idx: -1 is the last row of the table. */
static int parse_padding(struct llama *c, const struct value *config, struct error *e)
{
    const struct value *v = value_get(config, "pad_token_id");
    int64_t id = 0;
    if (!v || v->kind == VALUE_NULL) return PL_OK;
    int rc = value_as_int(v, "pad_token_id", &id, e);
    if (!rc && (id >= c->vocabulary || id < -c->vocabulary))
        rc = error_set(e, PL_USAGE,
                       "pad_token_id is %lld, it must be an id of the vocabulary of %lld (vocab_size), or null",
                       (long long)id, (long long)c->vocabulary);
    c->padding = 1 + (id < 0 ? id + c->vocabulary : id);
    return rc;
}

/* Parses the keys that all families share; *c holds the family's defaults. */
static int parse_decoder(struct model *m, struct llama *c, const struct value *config, struct error *e)
{
    const char *act = "silu";
    int64_t tp = 1;
    int rc = parse_sizes(c, config, e);
    if (!rc) rc = parse_padding(c, config, e);
    if (!rc) rc = value_opt_number(config, "rms_norm_eps", &c->eps, e);
    if (!rc) rc = value_opt_number(config, "initializer_range", &c->std, e);
    if (!rc) rc = value_opt_bool(config, "tie_word_embeddings", &c->tied, e);
    if (!rc) rc = value_opt_int(config, "pretraining_tp", &tp, e);
    if (!rc) rc = value_opt_string(config, "hidden_act", &act, e);
    if (!rc && strcmp(act, "silu") && strcmp(act, "swish"))
        rc = error_set(e, PL_USAGE, "hidden_act \"%s\": expected silu", act);
    if (!rc && !(c->eps > 0)) rc = error_set(e, PL_USAGE, "rms_norm_eps is %g, it must be above 0", c->eps);
    if (!rc) rc = rope_parse(&c->rope, config, c->positions, e);
    decoder_describe(m, m);
    return rc;
}

static struct llama *new_config(struct model *m, struct llama defaults)
{
    struct llama *c = m->config = bump_alloc(&m->memory, sizeof *c);
    *c = defaults;
    c->eps = 1e-6;
    c->std = 0.02;
    c->root = "model.";
    return c;
}

static int llama_parse(struct model *m, const struct value *config, struct error *e)
{
    struct llama *c = new_config(m, (struct llama){.vocabulary = 32000, .hidden = 4096, .inner = 11008, .layers = 32,
                                                   .heads = 32, .positions = 2048});
    int rc = value_opt_bool(config, "attention_bias", &c->qkv_bias, e);
    c->o_bias = c->qkv_bias;
    if (!rc) rc = value_opt_bool(config, "mlp_bias", &c->mlp_bias, e);
    if (!rc) rc = parse_decoder(m, c, config, e);
    return rc ? rc : parse_windows(m, c, config, 0, e);
}

static int mistral_parse(struct model *m, const struct value *config, struct error *e)
{
    struct llama *c = new_config(m, (struct llama){.vocabulary = 32000, .hidden = 4096, .inner = 14336, .layers = 32,
                                                   .heads = 32, .kv_heads = 8, .positions = 4096 * 32});
    int rc = parse_window(c, config, 4096, e);
    if (!rc) rc = parse_decoder(m, c, config, e);
    return rc ? rc : parse_windows(m, c, config, 0, e);
}

static int qwen2_parse(struct model *m, const struct value *config, struct error *e)
{
    struct llama *c = new_config(m, (struct llama){.vocabulary = 151936, .hidden = 4096, .inner = 22016, .layers = 32,
                                                   .heads = 32, .kv_heads = 32, .positions = 32768, .qkv_bias = true});
    bool sliding = false;
    int64_t first = 28;
    int rc = value_opt_bool(config, "use_sliding_window", &sliding, e);
    if (!rc && sliding) rc = parse_window(c, config, 4096, e);
    if (!rc) rc = value_opt_int(config, "max_window_layers", &first, e);
    if (!rc) rc = parse_decoder(m, c, config, e);
    return rc ? rc : parse_windows(m, c, config, first, e);
}

const struct family llama_family = {"llama", llama_parse, decoder_build, "model.", .generates = true};
const struct family mistral_family = {"mistral", mistral_parse, decoder_build, "model.", .generates = true};
const struct family qwen2_family = {"qwen2", qwen2_parse, decoder_build, "model.", .generates = true};
