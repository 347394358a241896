/*
 * llama.c: decoder-only language models, by themselves or as a part of another model (parts.h):
 * Llama, Mistral (sliding window), Qwen2 (biases on q, k and v; optional sliding window in its
 * upper layers).
 *
 *     x = embed(ids)
 *     each layer:  x = x + o(attention(rope(q(n)), rope(k(n)), v(n)))   n = rmsnorm(x)
 *                  x = x + down(silu(gate(n)) * up(n))                  n = rmsnorm(x)
 *     loss = cross-entropy(rmsnorm(x) head^T, labels shifted by one)
 *
 * In generation (batch.cache) k and v of each token are kept in the token's slot of the cache,
 * attention sees those of the text so far, and the head gives the logits of the last token of each
 * text.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "models/parts.h"
#include "graph/ops.h"
#include "models/layers.h"
#include "models/model.h"
#include "io/value.h"

enum rope_type { ROPE_DEFAULT, ROPE_LINEAR, ROPE_DYNAMIC, ROPE_LLAMA3, ROPE_YARN };

struct rope {
    enum rope_type type;
    double theta, factor;
    double original_positions;           /* llama3, yarn; dynamic: the training length */
    double low_freq_factor, high_freq_factor; /* llama3 */
    double beta_fast, beta_slow, attention_factor, mscale, mscale_all_dim; /* yarn; 0: not given */
    bool truncate;                       /* yarn */
};

struct llama {
    int64_t vocabulary, hidden, inner, layers, heads, kv_heads, head_dim, positions;
    double eps, std;
    bool tied, qkv_bias, o_bias, mlp_bias;
    int64_t padding;      /* 1 + the id of the padding token; 0: none */
    int64_t window;       /* number of keys that a query of a windowed layer sees; 0: all */
    bool *windowed;       /* indexed by layer */
    struct rope rope;
    const char *root;     /* names of parameters begin with it, but for the head's */
    bool head_outside;    /* the head is beside the part, not in it */
};

/* ---- Rotary positions ----
 *
 * The tables follow from the configuration as Hugging Face defines them: rope_theta with
 * rope_scaling (transformers 4) or rope_parameters (5). Frequencies are computed in double and
 * rounded once.
 */

static int parse_type(struct rope *r, const struct value *map, struct error *e)
{
    static const char *const names[] = {"default", "linear", "dynamic", "llama3", "yarn"};
    const char *type = NULL;
    int rc = value_opt_string(map, "rope_type", &type, e);
    if (!rc && !type) rc = value_opt_string(map, "type", &type, e);
    if (rc || !type) return rc;
    for (size_t i = 0; i < COUNT(names); i++)
        if (!strcmp(names[i], type)) {
            r->type = (enum rope_type)i;
            return PL_OK;
        }
    return error_set(e, PL_USAGE, "rope type \"%s\" is not one of: default, linear, dynamic, llama3, yarn", type);
}

static int parse_factors(struct rope *r, const struct value *map, struct error *e)
{
    double partial = 1;
    int rc = PL_OK;
    const struct {
        const char *key;
        double *to;
    } numbers[] = {
        {"rope_theta", &r->theta}, {"factor", &r->factor},
        {"original_max_position_embeddings", &r->original_positions},
        {"low_freq_factor", &r->low_freq_factor}, {"high_freq_factor", &r->high_freq_factor},
        {"beta_fast", &r->beta_fast}, {"beta_slow", &r->beta_slow},
        {"attention_factor", &r->attention_factor}, {"mscale", &r->mscale},
        {"mscale_all_dim", &r->mscale_all_dim}, {"partial_rotary_factor", &partial},
    };
    for (size_t i = 0; i < COUNT(numbers) && !rc; i++) rc = value_opt_number(map, numbers[i].key, numbers[i].to, e);
    if (!rc) rc = value_opt_bool(map, "truncate", &r->truncate, e);
    if (!rc && partial != 1)
        rc = error_set(e, PL_USAGE, "partial_rotary_factor %g is not supported: expected 1", partial);
    return rc;
}

static int require_positive(const char *name, double x, struct error *e)
{
    if (x > 0 && isfinite(x)) return PL_OK;
    return error_set(e, PL_USAGE, "rope: %s is %g, it must be above 0", name, x);
}

/* Returns PL_USAGE for unknown types and invalid values. */
static int rope_parse(struct rope *r, const struct value *config, int64_t max_positions, struct error *e)
{
    *r = (struct rope){.theta = 10000, .factor = 1, .original_positions = (double)max_positions,
                       .beta_fast = 32, .beta_slow = 1, .truncate = true};
    int rc = value_opt_number(config, "rope_theta", &r->theta, e);
    const struct value *map = value_get(config, "rope_parameters");
    if (!map || map->kind == VALUE_NULL) map = value_get(config, "rope_scaling");
    if (!rc && map && map->kind != VALUE_NULL) {
        rc = value_as_map(map, "rope_scaling", e);
        if (!rc) rc = parse_type(r, map, e);
        if (!rc) rc = parse_factors(r, map, e);
    }
    if (!rc) rc = require_positive("rope_theta", r->theta, e);
    if (!rc) rc = require_positive("factor", r->factor, e);
    if (!rc) rc = require_positive("original_max_position_embeddings", r->original_positions, e);
    if (!rc && r->type == ROPE_LLAMA3) rc = require_positive("low_freq_factor", r->low_freq_factor, e);
    if (!rc && r->type == ROPE_LLAMA3)
        rc = require_positive("high_freq_factor - low_freq_factor", r->high_freq_factor - r->low_freq_factor, e);
    return rc;
}

/* Scales long wavelengths by the factor and keeps short ones, with a ramp in between. */
static double llama3_frequency(const struct rope *r, double f)
{
    double wave = 2 * M_PI / f, turns = r->original_positions / wave;
    if (turns < r->low_freq_factor) return f / r->factor;
    if (turns > r->high_freq_factor) return f;
    double smooth = (turns - r->low_freq_factor) / (r->high_freq_factor - r->low_freq_factor);
    return (1 - smooth) * f / r->factor + smooth * f;
}

/* Returns the dimension with a wave that makes `turns` turns over the original length. */
static double yarn_dimension(const struct rope *r, double turns, double D)
{
    return D * log(r->original_positions / (turns * 2 * M_PI)) / (2 * log(r->theta));
}

static double yarn_frequency(const struct rope *r, double f, double i, double D)
{
    double low = yarn_dimension(r, r->beta_fast, D), high = yarn_dimension(r, r->beta_slow, D);
    if (r->truncate) low = floor(low), high = ceil(high);
    low = fmax(low, 0);
    high = fmin(high, D - 1);
    if (low == high) high += 0.001;
    double ramp = fmin(fmax((i - low) / (high - low), 0), 1);
    return f / r->factor * ramp + f * (1 - ramp);
}

static double yarn_scale(double factor, double m) { return factor <= 1 ? 1 : 0.1 * m * log(factor) + 1; }

static double yarn_attention(const struct rope *r)
{
    if (r->attention_factor > 0) return r->attention_factor;
    if (r->mscale > 0 && r->mscale_all_dim > 0)
        return yarn_scale(r->factor, r->mscale) / yarn_scale(r->factor, r->mscale_all_dim);
    return yarn_scale(r->factor, 1);
}

/* Fills inv_freq[head_dim/2] for sequences of T tokens; returns the factor on the rotated vectors
 * (1 except for yarn). */
static float rope_table(const struct rope *r, int64_t head_dim, int64_t T, float *inv_freq)
{
    double D = (double)head_dim, theta = r->theta;
    if (r->type == ROPE_DYNAMIC && (double)T > r->original_positions && head_dim > 2)
        theta *= pow(r->factor * (double)T / r->original_positions - (r->factor - 1), D / (D - 2));
    for (int64_t i = 0; i < head_dim / 2; i++) {
        double f = pow(theta, -2.0 * (double)i / D);
        if (r->type == ROPE_LINEAR) f /= r->factor;
        if (r->type == ROPE_LLAMA3) f = llama3_frequency(r, f);
        if (r->type == ROPE_YARN) f = yarn_frequency(r, f, (double)i, D);
        inv_freq[i] = (float)f;
    }
    return r->type == ROPE_YARN ? (float)yarn_attention(r) : 1;
}

/* ---- The configuration ---- */

static int parse_sizes(struct llama *c, const struct value *config, struct error *e)
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

/* Parses layer_types, which, if given, lists the layers with a sliding window; otherwise they are
 * the layers from `first` on. */
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

/* Parses sliding_window: a number, or null for none; `absent` is the value if the key is
 * missing. */
static int parse_window(struct llama *c, const struct value *config, int64_t absent, struct error *e)
{
    const struct value *v = value_get(config, "sliding_window");
    c->window = v ? 0 : absent;
    if (!v || v->kind == VALUE_NULL) return PL_OK;
    return layer_parse_sizes(config, &(struct size_key){"sliding_window", &c->window, 1, 1 << 30}, 1, e);
}

/* Parses pad_token_id, as torch.nn.Embedding takes its padding_idx: -1 is the last row of the
 * table. */
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
    TRY(parse_sizes(c, config, e));
    TRY(parse_padding(c, config, e));
    TRY(value_opt_number(config, "rms_norm_eps", &c->eps, e));
    TRY(value_opt_number(config, "initializer_range", &c->std, e));
    TRY(value_opt_bool(config, "tie_word_embeddings", &c->tied, e));
    TRY(value_opt_int(config, "pretraining_tp", &tp, e));
    TRY(value_opt_string(config, "hidden_act", &act, e));
    if (strcmp(act, "silu") && strcmp(act, "swish"))
        return error_set(e, PL_USAGE, "hidden_act \"%s\": expected silu", act);
    if (!(c->eps > 0)) return error_set(e, PL_USAGE, "rms_norm_eps is %g, it must be above 0", c->eps);
    decoder_describe(m, m);
    return rope_parse(&c->rope, config, c->positions, e);
}

/* ---- The decoder ---- */

/* --- layers ------------------------------------------------------------------------ */

struct build {
    const struct llama *c;
    struct graph *g;
    int64_t B, T;
    id inv_freq;
    float rope_scale;
    struct token_rows rows;
};

/* Returns a matrix of the layer, applied to x. */
static id project(const struct build *b, id x, const char *layer, const char *name, int64_t rows, bool biased)
{
    return layer_linear_init(b->g, x, layer, name, rows, (struct linear_init){.std = b->c->std, .no_bias = !biased});
}

static id heads(const struct build *b, id x, int64_t n) /* [B,T,n*D] as [B,T,n,D] */
{
    return op_reshape(b->g, x, 4, (int64_t[]){b->B, b->T, n, b->c->head_dim});
}

/* Writes k or v to the cache and returns those of all slots so far. */
static id keep(const struct build *b, id x, const char *layer, const char *name)
{
    char full[256];
    if (!b->rows.cache) return x;
    snprintf(full, sizeof full, "%sself_attn.%s", layer, name);
    id cache = graph_cache(b->g, full, 4,
                           (int64_t[]){b->B, b->rows.texts / b->B * b->rows.cache, b->c->kv_heads, b->c->head_dim});
    return op_apply(b->g, OP_CACHE_WRITE, NULL, (id[]){cache, x, b->rows.slots}, 3);
}

/* Returns the keys that a token sees, at most; 0: all. A token of several texts in a row sees
 * those of its own. */
static int64_t window(const struct build *b, bool windowed)
{
    const int64_t own = windowed ? b->c->window : 0;
    if (b->rows.texts <= b->B) return own;
    return own ? min_i64(own, b->rows.cache) : b->rows.cache;
}

static id attend(const struct build *b, id x, const char *layer, bool windowed)
{
    const struct llama *c = b->c;
    struct graph *g = b->g;
    int64_t D = c->head_dim, width = c->heads * D, kv_width = c->kv_heads * D;
    id q = heads(b, project(b, x, layer, "self_attn.q_proj", width, c->qkv_bias), c->heads);
    id k = heads(b, project(b, x, layer, "self_attn.k_proj", kv_width, c->qkv_bias), c->kv_heads);
    id v = heads(b, project(b, x, layer, "self_attn.v_proj", kv_width, c->qkv_bias), c->kv_heads);
    q = op_rope_at(g, q, b->inv_freq, b->rows.positions, NULL, b->rope_scale);
    k = op_rope_at(g, k, b->inv_freq, b->rows.positions, NULL, b->rope_scale);
    struct attention_options options = {.scale = (float)(1 / sqrt((double)D)), .causal = !b->rows.ranges,
                                        .window = window(b, windowed), .ranges = b->rows.ranges};
    id o = op_attention_with(g, q, keep(b, k, layer, "k_cache"), keep(b, v, layer, "v_cache"), 0, options);
    o = op_reshape(g, o, 3, (int64_t[]){b->B, b->T, width});
    return project(b, o, layer, "self_attn.o_proj", c->hidden, c->o_bias);
}

static id gated_mlp(const struct build *b, id x, const char *layer)
{
    const struct llama *c = b->c;
    id gate = project(b, x, layer, "mlp.gate_proj", c->inner, c->mlp_bias);
    id up = project(b, x, layer, "mlp.up_proj", c->inner, c->mlp_bias);
    return project(b, op_silu_gate(b->g, gate, up), layer, "mlp.down_proj", c->hidden, c->mlp_bias);
}

static id decoder_layer(const struct build *b, id x, const struct layer *layer)
{
    struct graph *g = b->g;
    const char *prefix = layer->prefix;
    IN_SCOPE(g, "self_attn", 0)
        x = op_add(g, x, attend(b, layer_rmsnorm(g, x, prefix, "input_layernorm", b->c->eps), prefix,
                          b->c->windowed[layer->i]));
    IN_SCOPE(g, "mlp", 0)
        x = op_add(g, x, gated_mlp(b, layer_rmsnorm(g, x, prefix, "post_attention_layernorm", b->c->eps), prefix));
    return x;
}

/* Returns the tokens of the longest text that the rows may have. */
static int64_t longest(int64_t T, const struct token_rows *rows) { return rows->cache ? rows->cache : T; }

static struct build begin(const struct model *m, struct graph *g, int64_t B, int64_t T, struct token_rows rows)
{
    const struct llama *c = m->config;
    struct build b = {.c = c, .g = g, .B = B, .T = T, .rows = rows};
    float *table = mem_alloc((size_t)c->head_dim * sizeof *table);
    b.rope_scale = rope_table(&c->rope, c->head_dim, longest(T, &rows), table);
    /* Frequencies that follow the length of a row are not those of generated texts, in a model that
     * has both. */
    const char *name = rows.cache && c->rope.type == ROPE_DYNAMIC ? "rope.inv_freq.generation" : "rope.inv_freq";
    b.inv_freq = graph_const(g, name, DT_F32, 1, (int64_t[]){c->head_dim / 2}, table);
    mem_free(table);
    return b;
}

static id embedding(const struct llama *c, struct graph *g)
{
    char name[128];
    snprintf(name, sizeof name, "%sembed_tokens.weight", c->root);
    return graph_param(g, name, DT_F32, 2, (int64_t[]){c->vocabulary, c->hidden},
                       (struct init){INIT_NORMAL, (float)c->std, 0, c->padding});
}

/* --- as a part of a model (parts.h) ------------------------------------------------------- */

void decoder_describe(struct model *m, const struct model *decoder)
{
    const struct llama *c = decoder->config;
    m->vocabulary = c->vocabulary;
    m->longest = c->positions;
    model_add_port(m, &(struct port){"input_ids", VALUES_IDS, 2, {OPEN('B'), OPEN('T')}, false});
    model_add_port(m, &(struct port){"labels", VALUES_LABELS, 2, {OPEN('B'), OPEN('T')}, true});
    model_add_port(m, &(struct port){"attention_mask", VALUES_PADDING, 2, {OPEN('B'), OPEN('T')}, true});
    model_add_port(m, &(struct port){"position_ids", VALUES_POSITIONS, 2, {OPEN('B'), OPEN('T')}, true});
    /* beyond, the frequencies follow the longest document */
    m->positions = c->rope.type == ROPE_DYNAMIC ? (int64_t)c->rope.original_positions : 0;
    model_add_output(m, "logits");
}

int64_t decoder_width(const struct model *m) { return ((const struct llama *)m->config)->hidden; }

void decoder_set_names(struct model *m, const char *root, bool head_outside)
{
    struct llama *c = m->config;
    c->root = root;
    c->head_outside = head_outside;
}

void decoder_tie(struct model *m, bool tied) { ((struct llama *)m->config)->tied = tied; }

id decoder_embed(const struct model *m, struct graph *g, const char *part, id ids)
{
    const struct llama *c = m->config;
    id x = 0;
    IN_PART(g, part) {
        id table = embedding(c, g);
        char scope[128];
        snprintf(scope, sizeof scope, "%sembed_tokens", c->root);
        IN_SCOPE(g, scope, 0) x = op_embedding_padded(g, ids, table, c->padding);
    }
    return x;
}

id decoder_states(const struct model *m, struct graph *g, const char *part, id x, struct token_rows rows)
{
    const struct llama *c = m->config;
    if (!x) return 0;
    const struct tensor t = *tensor_at(g, x);
    if (t.rank != 3 || t.dim[2] != c->hidden)
        return graph_fail(g, "the decoder takes embeddings [B,T,%lld]", (long long)c->hidden);
    if (rows.positions && m->positions && longest(t.dim[1], &rows) > m->positions)
        return graph_fail(g, "%s have at most %lld tokens (max_position_embeddings) with rope type dynamic, not %lld",
                          rows.cache ? "texts that are generated" : "rows of several documents",
                          (long long)m->positions, (long long)longest(t.dim[1], &rows));
    IN_PART(g, part) {
        const struct build b = begin(m, g, t.dim[0], t.dim[1], rows);
        char root[128];
        snprintf(root, sizeof root, "%slayers", c->root);
        FOR_LAYERS(layer, g, root, c->layers) x = decoder_layer(&b, x, &layer);
        x = layer_rmsnorm(g, x, c->root, "norm", c->eps);
    }
    return x;
}

/* Returns the weight of the head, which is in this part. */
static id head(const struct llama *c, struct graph *g, const char *part)
{
    id w = 0;
    IN_PART (g, part)
        w = c->tied ? embedding(c, g)
                    : layer_param(g, "", "lm_head.weight", 2, (int64_t[]){c->vocabulary, c->hidden}, c->std);
    return w;
}
static const char *head_part(const struct llama *c, const char *part) { return c->head_outside ? "" : part; }

id decoder_logits(const struct model *m, struct graph *g, const char *part, id x)
{
    const struct llama *c = m->config;
    id logits = 0;
    id w = head(c, g, c->tied ? part : head_part(c, part));
    IN_PART(g, head_part(c, part)) IN_SCOPE(g, "lm_head", SCOPE_ROWS) logits = op_linear(g, x, w, 0);
    return logits;
}

struct decoded decoder_loss(const struct model *m, struct graph *g, const char *part, id x, id labels)
{
    return decoder_loss_by(m, g, part, x, labels, NULL);
}

struct decoded decoder_loss_by(const struct model *m, struct graph *g, const char *part, id x, id labels,
                               const char *count)
{
    const struct llama *c = m->config;
    struct decoded out = {0};
    id rows = op_reshape(g, x, 2, (int64_t[]){-1, c->hidden});
    id targets = op_reshape(g, op_shift_labels(g, labels), 1, (int64_t[]){-1});
    id w = head(c, g, c->tied ? part : head_part(c, part));
    IN_PART(g, head_part(c, part)) IN_SCOPE(g, "lm_head", SCOPE_ROWS) {
        out.logits = op_linear(g, rows, w, 0);
        out.loss = op_xent(g, out.logits, targets, count);
    }
    return out;
}

id decoder_ids(struct graph *g, const struct batch *batch)
{
    return graph_input(g, "input_ids", DT_I32, 2, (int64_t[]){batch->B, batch->T});
}

id decoder_labels(struct graph *g, const struct batch *batch)
{
    return batch->cache ? 0 : graph_input(g, "labels", DT_I32, 2, (int64_t[]){batch->B, batch->T});
}

struct token_rows decoder_rows(struct graph *g, const struct batch *batch)
{
    const int64_t B = batch->B, T = batch->T;
    struct token_rows rows = {.cache = batch->cache, .texts = batch->cache ? batch->texts : 0};
    if (batch->packed || batch->cache) {
        rows.positions = graph_input(g, "position_ids", DT_I32, 2, (int64_t[]){B, T});
        rows.ranges = graph_input(g, "ranges", DT_I32, 3, (int64_t[]){B, T, 2});
    }
    rows.slots = rows.texts > B ? graph_input(g, "cache_slots", DT_I32, 2, (int64_t[]){B, T}) : rows.positions;
    return rows;
}

/* Emits the logits of the token after the last one of each text. */
static void output_next(const struct model *m, struct graph *g, const char *part, const struct batch *batch, id x)
{
    const int64_t B = batch->B, texts = batch->texts;
    if (batch->T > 1 || texts > B)
        x = op_gather(g, x, graph_input(g, "last_token", DT_I32, 2, (int64_t[]){B, texts / B}));
    graph_output(g, "logits", decoder_logits(m, g, part, op_reshape(g, x, 2, (int64_t[]){texts, -1})));
}

void decoder_outputs(const struct model *m, struct graph *g, const char *part, const struct batch *batch, id x,
                     id labels)
{
    const struct llama *c = m->config;
    if (batch->cache) {
        output_next(m, g, part, batch, x);
        return;
    }
    struct decoded out = decoder_loss(m, g, part, x, labels);
    graph_output(g, "loss", out.loss);
    if (batch->outputs)
        graph_output(g, "logits", op_reshape(g, out.logits, 3, (int64_t[]){batch->B, batch->T, c->vocabulary}));
}

/* --- the model itself ------------------------------------------------------------------------ */

/* Builds the decoder as a model of its own. */
static void decoder_build(const struct model *m, struct graph *g, const struct batch *batch)
{
    id ids = decoder_ids(g, batch), labels = decoder_labels(g, batch);
    struct token_rows rows = decoder_rows(g, batch);
    decoder_outputs(m, g, "", batch, decoder_states(m, g, "", decoder_embed(m, g, "", ids), rows), labels);
}

bool decoder_is(const struct model *m) { return m->family->build == decoder_build; }

/* ---- The families ---- */

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
    TRY(parse_window(c, config, 4096, e));
    TRY(parse_decoder(m, c, config, e));
    return parse_windows(m, c, config, 0, e);
}

static int qwen2_parse(struct model *m, const struct value *config, struct error *e)
{
    struct llama *c = new_config(m, (struct llama){.vocabulary = 151936, .hidden = 4096, .inner = 22016, .layers = 32,
                                                   .heads = 32, .kv_heads = 32, .positions = 32768, .qkv_bias = true});
    bool sliding = false;
    int64_t first = 28;
    TRY(value_opt_bool(config, "use_sliding_window", &sliding, e));
    if (sliding) TRY(parse_window(c, config, 4096, e));
    TRY(value_opt_int(config, "max_window_layers", &first, e));
    TRY(parse_decoder(m, c, config, e));
    return parse_windows(m, c, config, first, e);
}

const struct family llama_family = {"llama", llama_parse, decoder_build, "model.", .generates = true};
const struct family mistral_family = {"mistral", mistral_parse, decoder_build, "model.", .generates = true};
const struct family qwen2_family = {"qwen2", qwen2_parse, decoder_build, "model.", .generates = true};
