/*
 * decoder.c: a decoder-only language model, by itself or as a part of another model (parts.h).
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

#include "graph/ops.h"
#include "models/layers.h"
#include "models/llama.h"
#include "models/parts.h"

/* --- layers ------------------------------------------------------------------------ */

struct build {
    const struct llama *c;
    struct graph *g;
    int64_t B, T;
    id inv_freq;
    float rope_scale;
    struct token_rows rows;
};

/* A matrix of the layer, applied to x. */
static id project(const struct build *b, id x, const char *layer, const char *name, int64_t rows, bool biased)
{
    return layer_linear_init(b->g, x, layer, name, rows, (struct linear_init){.std = b->c->std, .no_bias = !biased});
}

static id heads(const struct build *b, id x, int64_t n) /* [B,T,n*D] as [B,T,n,D] */
{
    return op_reshape(b->g, x, 4, (int64_t[]){b->B, b->T, n, b->c->head_dim});
}

/* k or v of all slots so far. */
static id keep(const struct build *b, id x, const char *layer, const char *name)
{
    char full[256];
    if (!b->rows.cache) return x;
    snprintf(full, sizeof full, "%sself_attn.%s", layer, name);
    id cache = graph_cache(b->g, full, 4,
                           (int64_t[]){b->B, b->rows.texts / b->B * b->rows.cache, b->c->kv_heads, b->c->head_dim});
    return op_apply(b->g, OP_CACHE_WRITE, NULL, (id[]){cache, x, b->rows.slots}, 3);
}

/* The keys that a token sees, at most; 0: all. A token of several texts in a row sees those of its
 * own. */
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
    struct attention_options options = {.scale = (float)(1 / sqrt((double)D)),
                                        .causal = !b->rows.ranges,
                                        .window = window(b, windowed),
                                        .ranges = b->rows.ranges};
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
        x = op_add(g, x,
                   attend(b, layer_rmsnorm(g, x, prefix, "input_layernorm", b->c->eps), prefix,
                          b->c->windowed[layer->i]));
    IN_SCOPE(g, "mlp", 0)
        x = op_add(g, x, gated_mlp(b, layer_rmsnorm(g, x, prefix, "post_attention_layernorm", b->c->eps), prefix));
    return x;
}

/* Tokens of the longest text that the rows may have. */
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

bool decoder_is(const struct model *m) { return m->family->build == decoder_build; }
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

/* The weight of the head, which is in this part. */
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

/* The logits of the token after the last one of each text. */
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

void decoder_build(const struct model *m, struct graph *g, const struct batch *batch)
{
    id ids = decoder_ids(g, batch), labels = decoder_labels(g, batch);
    struct token_rows rows = decoder_rows(g, batch);
    decoder_outputs(m, g, "", batch, decoder_states(m, g, "", decoder_embed(m, g, "", ids), rows), labels);
}
