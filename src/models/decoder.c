/*
 * decoder.c: the layers of decoder-only language models, by themselves or as a part of another
 * model (parts.h), by the options of decoder.h.
 *
 *     x = embed(ids)
 *     each layer:  x = x + norm(o(attention(rope(norm(q(n))), rope(norm(k(n))), v(n))))   n = norm(x)
 *                  x = x + norm(down(act(gate(n)) * up(n)))                               n = norm(x)
 *     loss = cross-entropy(norm(x) head^T, labels shifted by one)
 *
 * A family has some of these norms, and factors or biases where decoder.h names them. With experts
 * the MLP is
 *
 *     sum over the k largest of router(n), in order:  softmax(router(n)) down_e(act(gate_e(n)) * up_e(n))
 *
 * In generation (batch.cache) k and v of each token are kept in the token's slot of the cache,
 * attention sees those of the text so far, and the head gives the logits of the last token of each
 * text.
 */
#include "models/decoder.h"

#include <math.h>

#include "graph/ops.h"
#include "models/layers.h"
#include "models/parts.h"

/* --- layers ------------------------------------------------------------------------ */

struct build {
    const struct decoder *c;
    struct graph *g;
    int64_t B, T;
    struct token_rows rows;
    id inv_freq[TABLES];    /* of rotary positions... */
    float factor[TABLES];   /* ...and the factor of what is rotated */
    id growth;              /* [B,T,1,1] factors of queries; 0: none */
    VEC(struct expert_loads) loads; /* of each layer with experts, if rows.group */
};

/* A layer that is built. */
struct at {
    struct build *b;
    const char *prefix; /* of its names */
    const struct decoder_layer *layer;
};

/* Returns a matrix of the layer, applied to x. */
static id project(const struct at *a, id x, const char *name, int64_t rows, bool biased)
{
    return layer_linear_init(a->b->g, x, a->prefix, name, rows,
                             (struct linear_init){.std = a->b->c->std, .no_bias = !biased,
                                                  .transposed = a->b->c->transposed});
}

/* Returns x if the norm has no name. */
static id norm(const struct build *b, id x, const char *prefix, const char *name)
{
    if (!name) return x;
    if (b->c->layer_norms) return layer_norm(b->g, x, prefix, name, b->c->eps);
    return layer_rmsnorm_with(b->g, x, prefix, name, (struct rmsnorm_options){b->c->eps, b->c->unit_offset});
}

/* Returns q, k or v: n heads, [B,T,n,D]. */
static id heads(const struct at *a, id x, const char *name, const char *norm_name, int64_t n)
{
    const struct build *b = a->b;
    const struct decoder *c = b->c;
    id y = project(a, x, name, n * c->head_dim, c->qkv_bias);
    if (c->whole_norms) y = norm(b, y, a->prefix, norm_name);
    y = op_reshape(b->g, y, 4, (int64_t[]){b->B, b->T, n, c->head_dim});
    return c->whole_norms ? y : norm(b, y, a->prefix, norm_name);
}

/* Rotates the first numbers of each head by its position. */
static id rotate(const struct at *a, id x)
{
    const struct build *b = a->b;
    const int t = a->layer->table;
    if (t == TABLE_NONE || !x) return x;
    const int64_t D = b->c->head_dim, width = rotary_width(&b->c->rotary[t], D);
    id y = width < D ? op_slice(b->g, x, 3, 0, width) : x;
    y = op_rope_at(b->g, y, b->inv_freq[t], b->rows.positions, b->rows.three ? &b->c->rotary[t].sections : NULL,
                   b->factor[t]);
    return width < D ? op_concat(b->g, (id[]){y, op_slice(b->g, x, 3, width, D - width)}, 2, 3) : y;
}

static id grow(const struct build *b, id q) { return b->growth ? op_mul(b->g, q, b->growth) : q; }

/* Writes k or v to the cache and returns those of all slots so far. */
static id keep(const struct at *a, id x, const char *name)
{
    const struct build *b = a->b;
    char full[256];
    if (!b->rows.cache) return x;
    snprintf(full, sizeof full, "%s%s.%s", a->prefix, b->c->names.attention, name);
    id cache = graph_cache(b->g, full, 4,
                           (int64_t[]){b->B, b->rows.texts / b->B * b->rows.cache, b->c->kv_heads, b->c->head_dim});
    return op_apply(b->g, OP_CACHE_WRITE, NULL, (id[]){cache, x, b->rows.slots}, 3);
}

/* Returns the keys that a token sees, at most; 0: all. A token of several texts in a row sees
 * those of its own. */
static int64_t window(const struct at *a)
{
    const struct token_rows *rows = &a->b->rows;
    const int64_t own = rows->windows ? 0 : a->layer->window;
    if (rows->texts <= a->b->B) return own;
    return own ? min_i64(own, rows->cache) : rows->cache;
}

static id attend(const struct at *a, id x)
{
    const struct build *b = a->b;
    const struct decoder *c = b->c;
    id q, k, v;
    if (c->names.qkv) {
        id qkv = heads(a, x, c->names.qkv, NULL, c->heads + 2 * c->kv_heads);
        q = op_slice(b->g, qkv, 2, 0, c->heads);
        k = op_slice(b->g, qkv, 2, c->heads, c->kv_heads);
        v = op_slice(b->g, qkv, 2, c->heads + c->kv_heads, c->kv_heads);
    } else {
        q = heads(a, x, c->names.q, c->names.q_norm, c->heads);
        k = heads(a, x, c->names.k, c->names.k_norm, c->kv_heads);
        v = heads(a, x, c->names.v, NULL, c->kv_heads);
    }
    q = grow(b, rotate(a, q));
    k = rotate(a, k);
    const double scale = c->attention_scale ? c->attention_scale : 1 / sqrt((double)c->head_dim);
    struct attention_options options = {.scale = (float)scale, .causal = !b->rows.ranges, .window = window(a),
                                        .ranges = a->layer->window && b->rows.windows ? b->rows.windows
                                                                                      : b->rows.ranges,
                                        .cap = (float)c->attention_cap};
    v = keep(a, v, "v_cache");
    k = keep(a, k, "k_cache");
    id o = op_attention_with(b->g, q, k, v, 0, options);
    o = op_reshape(b->g, o, 3, (int64_t[]){b->B, b->T, c->heads * c->head_dim});
    return project(a, o, c->names.o, c->hidden, c->o_bias);
}

static id gated(struct graph *g, enum act_kind act, id gate, id up)
{
    return act == ACT_SILU ? op_silu_gate(g, gate, up) : op_gelu_gate(g, gate, up);
}

/* Returns the inner numbers of the MLP, after the activation. */
static id inner(const struct at *a, id x)
{
    const struct decoder *c = a->b->c;
    struct graph *g = a->b->g;
    id gate, up;
    if (!c->names.gate && !c->names.gate_up)
        return op_act(g, project(a, x, c->names.up, c->inner, c->mlp_bias), c->act);
    if (c->names.gate_up) {
        id both = project(a, x, c->names.gate_up, 2 * c->inner, c->mlp_bias);
        gate = op_slice(g, both, 2, 0, c->inner);
        up = op_slice(g, both, 2, c->inner, c->inner);
    } else {
        gate = project(a, x, c->names.gate, c->inner, c->mlp_bias);
        up = project(a, x, c->names.up, c->inner, c->mlp_bias);
    }
    return gated(g, c->act, gate, up);
}

/* --- experts -------------------------------------------------------------------------- */

/* Returns rows of an expert times its matrix, of the stack of this name. */
static id expert_product(const struct at *a, id rows, const char *name, int64_t out, id offsets)
{
    struct graph *g = a->b->g;
    char full[128];
    snprintf(full, sizeof full, "%s.weight", name);
    if (!rows) return 0;
    const int64_t dim[] = {a->b->c->experts.n, out, tensor_last(tensor_at(g, rows))};
    return op_grouped_linear(g, rows, layer_param(g, a->prefix, full, 3, dim, a->b->c->std), offsets);
}

/* Returns of each row of x [R,N] the columns in index [R,k]. */
static id columns(struct graph *g, id x, id index)
{
    const struct tensor t = *tensor_at(g, x), k = *tensor_at(g, index);
    return op_reshape(g, op_gather(g, op_reshape(g, x, 3, (int64_t[]){t.dim[0], t.dim[1], 1}), index), 2, k.dim);
}

/* Returns the weights of the chosen experts. That they add up to 1 makes them the softmax of the
 * chosen logits. */
static id expert_weights(const struct at *a, id logits, id index)
{
    struct graph *g = a->b->g;
    if (!logits || !index) return 0;
    return a->b->c->experts.normalised ? op_softmax(g, columns(g, logits, index))
                                       : columns(g, op_softmax(g, logits), index);
}

/* Notes which experts the rows of each group choose. Padding, which does not see itself, is left
 * out. */
static void note_load(const struct at *a, id logits, id index)
{
    struct graph *g = a->b->g;
    const struct token_rows *r = &a->b->rows;
    if (!r->group || !index) return;
    id ranges = r->ranges ? op_reshape(g, r->ranges, 2, (int64_t[]){-1, 2}) : 0;
    const struct outputs y = op_outputs(g, OP_EXPERT_LOAD, &(union attr){.expert_load = {r->group, a->b->T}},
                                        (id[]){logits, index, ranges}, 3);
    vec_push(&a->b->loads, ((struct expert_loads){y.at[0], y.at[1]}));
}

/* Sums the loads over the layers. */
static struct expert_loads sum_loads(struct build *b)
{
    struct expert_loads sum = {0};
    for (uint32_t i = 0; i < b->loads.n; i++) {
        const struct expert_loads *x = &b->loads.at[i];
        sum.chance = sum.chance ? op_add(b->g, sum.chance, x->chance) : x->chance;
        sum.load = sum.load ? op_add(b->g, sum.load, x->load) : x->load;
    }
    vec_free(&b->loads);
    return sum;
}

static id mixture(const struct at *a, id x)
{
    const struct decoder *c = a->b->c;
    struct graph *g = a->b->g;
    x = op_reshape(g, x, 2, (int64_t[]){-1, c->hidden});
    id logits = project(a, x, c->names.router, c->experts.n, false);
    id index = op_topk(g, logits, c->experts.chosen);
    note_load(a, logits, index);
    const struct outputs order =
        op_outputs(g, OP_EXPERT_ROWS, &(union attr){.expert_rows = {c->experts.n}}, &index, 1);
    id position = order.at[0], offsets = order.at[1];
    id rows = op_dispatch(g, x, position);
    id gate = expert_product(a, rows, c->names.expert_gate, c->experts.inner, offsets);
    id up = expert_product(a, rows, c->names.expert_up, c->experts.inner, offsets);
    id y = expert_product(a, gated(g, c->act, gate, up), c->names.expert_down, c->hidden, offsets);
    y = op_combine(g, y, position, expert_weights(a, logits, index));
    return op_reshape(g, y, 3, (int64_t[]){a->b->B, a->b->T, c->hidden});
}

static id mlp(const struct at *a, id x)
{
    const struct decoder *c = a->b->c;
    if (c->experts.n && !a->layer->dense) return mixture(a, x);
    return project(a, inner(a, x), c->names.down, c->hidden, c->mlp_bias);
}

/* --- a layer -------------------------------------------------------------------------- */

/* Returns x times a factor; 0: x. */
static id scaled(struct graph *g, id x, double factor) { return factor && factor != 1 ? op_scale(g, x, factor) : x; }

/* Adds what a part computes to the residual. */
static id add(const struct at *a, id x, id part, const char *after)
{
    const struct build *b = a->b;
    return op_add(b->g, x, scaled(b->g, norm(b, part, a->prefix, after), b->c->residual_scale));
}

static id decoder_layer(struct build *b, id x, const struct layer *layer)
{
    struct graph *g = b->g;
    const struct decoder_names *n = &b->c->names;
    const struct at a = {b, layer->prefix, &b->c->layer[layer->i]};
    IN_SCOPE(g, n->attention, 0)
        x = add(&a, x, attend(&a, norm(b, x, a.prefix, n->before_attention)), n->after_attention);
    IN_SCOPE(g, n->mlp, 0) x = add(&a, x, mlp(&a, norm(b, x, a.prefix, n->before_mlp)), n->after_mlp);
    return x;
}

/* Adds features of images to the tokens in whose places they stand, after the first layers. */
static id add_features(const struct build *b, id x, int64_t layer)
{
    const struct token_rows *r = &b->rows;
    struct graph *g = b->g;
    if (layer >= r->n_features || !x) return x;
    const int64_t C = b->c->hidden;
    if (tensor_at(g, r->features[layer])->rank == 3) return op_add(g, x, op_gather(g, r->features[layer], r->index));
    id rows = op_reshape(g, r->features[layer], 3, (int64_t[]){1, -1, C});
    rows = op_gather(g, rows, op_reshape(g, r->index, 2, (int64_t[]){1, b->B * b->T}));
    return op_add(g, x, op_reshape(g, rows, 3, (int64_t[]){b->B, b->T, C}));
}

/* Returns the tokens of the longest text that the rows may have. */
static int64_t longest(int64_t T, const struct token_rows *rows) { return rows->cache ? rows->cache : T; }

/* Returns the factors of queries by their positions; 0: all are 1. Rows whose positions are given
 * may have any up to the longest text's. */
static id growth(const struct build *b)
{
    const struct decoder *c = b->c;
    const double original = c->rotary->original_positions;
    const int64_t n = b->rows.positions ? max_i64(c->positions, longest(b->T, &b->rows)) : b->T;
    if (!c->query_growth || (double)n <= original) return 0;
    float *table = mem_alloc((size_t)n * sizeof *table);
    for (int64_t i = 0; i < n; i++) table[i] = (float)(1 + c->query_growth * log(1 + floor((double)i / original)));
    const char *name = b->rows.cache ? "query_growth.generation" : "query_growth";
    id x = graph_const(b->g, name, DT_F32, 3, (int64_t[]){1, n, 1}, table);
    mem_free(table);
    if (b->rows.positions)
        x = op_gather(b->g, x, op_reshape(b->g, b->rows.positions, 2, (int64_t[]){1, b->B * b->T}));
    const int64_t rows = b->rows.positions ? b->B : 1;
    return op_cast(b->g, op_reshape(b->g, x, 4, (int64_t[]){rows, b->T, 1, 1}), DT_NONE);
}

/* Adds the learned positions to embeddings. Padding may have a position below 0, which adds
 * nothing. */
static id add_positions(const struct build *b, id x)
{
    const struct decoder *c = b->c;
    if (!c->names.positions) return x;
    if (longest(b->T, &b->rows) > c->positions)
        return graph_fail(b->g, "texts have at most %lld tokens in this model, which has no more positions, not %lld",
                          (long long)c->positions, (long long)longest(b->T, &b->rows));
    char name[128];
    snprintf(name, sizeof name, "%s.weight", c->names.positions);
    id table = layer_param(b->g, c->root, name, 2, (int64_t[]){c->positions, c->hidden}, c->std);
    if (!b->rows.positions) return op_add(b->g, x, op_slice(b->g, table, 0, 0, b->T));
    id at = op_reshape(b->g, b->rows.positions, 2, (int64_t[]){1, b->B * b->T});
    id rows = op_gather(b->g, op_reshape(b->g, table, 3, (int64_t[]){1, c->positions, c->hidden}), at);
    return op_add(b->g, x, op_reshape(b->g, rows, 3, (int64_t[]){b->B, b->T, c->hidden}));
}

static struct build begin(const struct model *m, struct graph *g, int64_t B, int64_t T, struct token_rows rows)
{
    const struct decoder *c = m->config;
    struct build b = {.c = c, .g = g, .B = B, .T = T, .rows = rows};
    b.growth = growth(&b);
    float *table = mem_alloc((size_t)c->head_dim * sizeof *table);
    for (int i = 0; i < (c->layered_rotary ? TABLES : 1); i++) {
        b.factor[i] = rotary_table(&c->rotary[i], c->head_dim, longest(T, &rows), table);
        /* Frequencies that follow the length of a row are not those of generated texts, in a model
         * that has both. */
        char name[64];
        snprintf(name, sizeof name, "rope.inv_freq%s%s", i == TABLE_SLIDING ? ".sliding" : "",
                 rows.cache && rotary_follows_length(&c->rotary[i]) ? ".generation" : "");
        b.inv_freq[i] = graph_const(g, name, DT_F32, 1, (int64_t[]){rotary_width(&c->rotary[i], c->head_dim) / 2},
                                    table);
    }
    mem_free(table);
    return b;
}

static id embedding(const struct decoder *c, struct graph *g)
{
    char name[128];
    snprintf(name, sizeof name, "%s%s.weight", c->root, c->names.embedding);
    return graph_param(g, name, DT_F32, 2, (int64_t[]){c->vocabulary, c->hidden},
                       (struct init){INIT_NORMAL, (float)c->std, 0, c->padding});
}

/* --- as a part of a model (parts.h) ------------------------------------------------------- */

void decoder_describe(struct model *m, const struct model *decoder)
{
    const struct decoder *c = decoder->config;
    m->vocabulary = c->vocabulary;
    m->longest = c->positions;
    m->balances = m == decoder && c->experts.balanced;
    model_add_port(m, &(struct port){"input_ids", VALUES_IDS, 2, {OPEN('B'), OPEN('T')}, false});
    model_add_port(m, &(struct port){"labels", VALUES_LABELS, 2, {OPEN('B'), OPEN('T')}, true});
    model_add_port(m, &(struct port){"attention_mask", VALUES_PADDING, 2, {OPEN('B'), OPEN('T')}, true});
    if (!c->rotary->sectioned) /* three positions follow from the images */
        model_add_port(m, &(struct port){"position_ids", VALUES_POSITIONS, 2, {OPEN('B'), OPEN('T')}, true});
    /* beyond, the frequencies follow the longest document */
    m->positions = c->rotary->type == ROTARY_DYNAMIC       ? (int64_t)c->rotary->original_positions
                   : c->query_growth || c->names.positions ? c->positions
                                                           : 0;
    model_add_output(m, "logits");
    if (m->balances) model_add_output(m, "aux_loss");
}

int64_t decoder_window(const struct model *m)
{
    const struct decoder *c = m->config;
    for (int64_t i = 0; i < c->layers; i++)
        if (c->layer[i].window) return c->layer[i].window;
    return 0;
}

int64_t decoder_width(const struct model *m) { return ((const struct decoder *)m->config)->hidden; }

void decoder_set_names(struct model *m, const char *root, bool head_outside)
{
    struct decoder *c = m->config;
    c->root = root;
    c->head_outside = head_outside;
}

void decoder_tie(struct model *m, bool tied) { ((struct decoder *)m->config)->tied = tied; }

static id scaled_embedding(const struct decoder *c, struct graph *g, id x)
{
    if (!c->embedding_scale_rounded) return scaled(g, x, c->embedding_scale);
    const float factor = (float)c->embedding_scale;
    return op_mul(g, x, op_cast(g, graph_const(g, "embedding_scale", DT_F32, 1, (int64_t[]){1}, &factor), DT_NONE));
}

id decoder_embed(const struct model *m, struct graph *g, const char *part, id ids)
{
    const struct decoder *c = m->config;
    id x = 0;
    IN_PART(g, part) {
        id table = embedding(c, g);
        char scope[128];
        snprintf(scope, sizeof scope, "%s%s", c->root, c->names.embedding);
        IN_SCOPE(g, scope, 0) x = scaled_embedding(c, g, op_embedding_padded(g, ids, table, c->padding));
    }
    return x;
}

id decoder_states(const struct model *m, struct graph *g, const char *part, id x, struct token_rows rows)
{
    const struct decoder *c = m->config;
    if (!x) return 0;
    const struct tensor t = *tensor_at(g, x);
    if (t.rank != 3 || t.dim[2] != c->hidden)
        return graph_fail(g, "the decoder takes embeddings [B,T,%lld]", (long long)c->hidden);
    if (rows.positions && c->rotary->type == ROTARY_DYNAMIC && longest(t.dim[1], &rows) > m->positions)
        return graph_fail(g, "%s have at most %lld tokens (max_position_embeddings) with rope type dynamic, not %lld",
                          rows.cache ? "texts that are generated" : "rows of several documents",
                          (long long)m->positions, (long long)longest(t.dim[1], &rows));
    IN_PART(g, part) {
        struct build b = begin(m, g, t.dim[0], t.dim[1], rows);
        char root[128];
        snprintf(root, sizeof root, "%s%s", c->root, c->names.layers);
        x = add_positions(&b, x);
        FOR_LAYERS(layer, g, root, c->layers) x = add_features(&b, decoder_layer(&b, x, &layer), layer.i);
        x = norm(&b, x, c->root, c->names.norm);
        if (rows.group) *rows.loads = sum_loads(&b);
    }
    return x;
}

/* Returns what the head's weight multiplies, [rows,C], with the factor of the logits. */
static id head_rows(const struct decoder *c, struct graph *g, id x)
{
    return scaled(g, op_reshape(g, x, 2, (int64_t[]){-1, c->hidden}), c->logits_scale);
}

static id capped(const struct decoder *c, struct graph *g, id logits)
{
    return c->logits_cap ? op_softcap(g, logits, (float)c->logits_cap) : logits;
}

/* Returns the weight of the head, which is in this part. */
static id head(const struct decoder *c, struct graph *g, const char *part)
{
    id w = 0;
    IN_PART (g, part)
        w = c->tied ? embedding(c, g)
                    : layer_param(g, "", "lm_head.weight", 2, (int64_t[]){c->vocabulary, c->hidden}, c->std);
    return w;
}
static const char *head_part(const struct decoder *c, const char *part) { return c->head_outside ? "" : part; }

/* Computes the logits [rows,vocabulary] of states [rows,C]. */
static id decoder_logits(const struct model *m, struct graph *g, const char *part, id x)
{
    const struct decoder *c = m->config;
    id logits = 0;
    id rows = head_rows(c, g, x);
    id w = head(c, g, c->tied ? part : head_part(c, part));
    IN_PART(g, head_part(c, part)) IN_SCOPE(g, "lm_head", SCOPE_ROWS) logits = capped(c, g, op_linear(g, rows, w, 0));
    return logits;
}

struct decoded decoder_loss(const struct model *m, struct graph *g, const char *part, id x, id labels)
{
    return decoder_loss_by(m, g, part, x, labels, NULL);
}

struct decoded decoder_loss_by(const struct model *m, struct graph *g, const char *part, id x, id labels,
                               const char *count)
{
    const struct decoder *c = m->config;
    struct decoded out = {0};
    id rows = head_rows(c, g, x);
    id targets = op_reshape(g, op_shift_labels(g, labels), 1, (int64_t[]){-1});
    id w = head(c, g, c->tied ? part : head_part(c, part));
    IN_PART(g, head_part(c, part)) IN_SCOPE(g, "lm_head", SCOPE_ROWS) {
        out.logits = capped(c, g, op_linear(g, rows, w, 0));
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

/* Emits the loss, with `balance` in it unless that is 0, and if the batch asks for outputs the
 * logits. */
static void output_loss(const struct model *m, struct graph *g, const char *part, const struct batch *batch, id x,
                        id labels, id balance)
{
    const struct decoder *c = m->config;
    struct decoded out = decoder_loss(m, g, part, x, labels);
    if (balance) graph_output(g, "aux_loss", balance);
    graph_output(g, "loss", balance ? op_add(g, out.loss, op_scale(g, balance, c->experts.balance)) : out.loss);
    if (batch->outputs)
        graph_output(g, "logits", op_reshape(g, out.logits, 3, (int64_t[]){batch->B, batch->T, c->vocabulary}));
}

void decoder_outputs(const struct model *m, struct graph *g, const char *part, const struct batch *batch, id x,
                     id labels)
{
    if (batch->cache) output_next(m, g, part, batch, x);
    else output_loss(m, g, part, batch, x, labels, 0);
}

/* --- the model itself ------------------------------------------------------------------------ */

/* Builds the step of a model whose loss balances its experts: the mean of that loss over groups of
 * consecutive samples. */
static void build_balanced(const struct model *m, struct graph *g, const struct batch *batch)
{
    const struct decoder *c = m->config;
    id ids = decoder_ids(g, batch), labels = decoder_labels(g, batch);
    struct token_rows rows = decoder_rows(g, batch);
    struct expert_loads loads = {0};
    rows.group = batch->router_group * batch->T;
    rows.loads = &loads;
    id x = decoder_states(m, g, "", decoder_embed(m, g, "", ids), rows);
    id balance = op_scale(g, op_balance(g, loads.chance, loads.load, c->experts.chosen),
                          1 / (double)batch->router_groups);
    output_loss(m, g, "", batch, x, labels, balance);
}

void decoder_build(const struct model *m, struct graph *g, const struct batch *batch)
{
    if (batch->router_group && program_is(g->at.program, PROGRAM_TRAINS)) {
        build_balanced(m, g, batch);
        return;
    }
    id ids = decoder_ids(g, batch), labels = decoder_labels(g, batch);
    struct token_rows rows = decoder_rows(g, batch);
    decoder_outputs(m, g, "", batch, decoder_states(m, g, "", decoder_embed(m, g, "", ids), rows), labels);
}

