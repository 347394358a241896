/*
 * embed_describe.c: the encoder of a model and what identifies it: its layers, its weights, and how
 * it gets its images (see embed.h).
 */
#include "batch/embed.h"

#include "batch/model_images.h"
#include "planning/parameter_groups.h"
#include "folder/weights_4bit.h"
#include "batch/feed.h"
#include "graph/ops.h"
#include "graph/stored.h"
#include "models/images.h"

enum { HASH_CHUNK = 1 << 18 }; /* elements of a weight that are hashed at once */

/* --- the encoder ------------------------------------------------------------------------- */

struct contents embed_contents(const struct model *m, int64_t side)
{
    struct contents x = {.part = PART_IMAGE};
    if (m->images) x.media.images = 1;
    else x.prompts = (struct prompting){.image = side, .masks = 1, .points = 2, .rounds = 1, .slots = true};
    if (images_grids(m)) x.media.patches = max_i64(side, m->images->tokens);
    return x;
}

int embed_build(const struct model *m, int64_t side, struct graph *g, struct error *e)
{
    const struct contents holds = embed_contents(m, side);
    struct batch b = {.B = 1, .T = 1, .outputs = true, .loss_output = "", .holds = &holds};
    graph_init(g);
    m->family->build(m, g, &b);
    if (g->error.code) *e = g->error;
    return g->error.code;
}

static uint64_t hash_text(const char *s, uint64_t h) { return hash_bytes(s, strlen(s), h); }

static uint64_t hash_shape(const struct tensor *t, uint64_t h)
{
    uint64_t x[2] = {t->dtype, t->rank};
    h = hash_bytes(x, sizeof x, h);
    return hash_bytes(t->dim, (size_t)t->rank * sizeof *t->dim, h);
}

/* Hashes every op with its attributes and operands: results by their index in the order, weights
 * and inputs by name. */
static uint64_t hash_layers(const struct graph *g)
{
    const struct order *order = &g->order[PROGRAM_STEP];
    uint32_t *index = mem_alloc(g->nodes.n * sizeof *index);
    uint64_t h = 1;
    for (uint32_t k = 0; k < order->nodes.n; k++) {
        const struct node *n = node_at(g, order->nodes.at[k]);
        index[order->nodes.at[k]] = k + 1;
        h = attr_hash(&n->attr, n->op, hash_text(op_table[n->op].name, h));
        if (n->op == OP_IMAGE)
            h = hash_bytes(n->attr.image.mean, sizeof n->attr.image.mean,
                           hash_bytes(n->attr.image.std, sizeof n->attr.image.std, h));
        for (int i = 0; i < n->nin; i++) {
            if (!n->in[i]) continue;
            const struct tensor *t = tensor_at(g, n->in[i]);
            h = hash_shape(t, h);
            h = t->node ? hash_bytes(&index[t->node], sizeof *index, h) : hash_text(graph_name(g, t->name), h);
        }
        h = hash_shape(tensor_at(g, n->out[0]), h);
    }
    mem_free(index);
    return h;
}

/* Hashes one tensor of a file as f32, if it is of real numbers: the same values in another dtype
 * are the same encoder. */
static int hash_tensor(const struct weights *w, const struct weight_slot *s, uint64_t *h, struct error *e)
{
    const struct st_entry *t = s->entry;
    const uint32_t size = dtype_size(t->dtype);
    const bool convert = dtype_is_float(t->dtype) && t->dtype != DT_F32;
    void *raw = mem_alloc((size_t)HASH_CHUNK * size);
    float *wide = convert ? mem_alloc(HASH_CHUNK * sizeof *wide) : NULL;
    int rc = PL_OK;
    for (int64_t at = 0; at < t->elements && !rc; at += HASH_CHUNK) {
        int64_t n = min_i64(HASH_CHUNK, t->elements - at);
        rc = st_read(&w->in.files[s->file], t, (uint64_t)at * size, (uint64_t)n * size, raw, e);
        if (!rc && convert) dtype_convert(wide, DT_F32, raw, t->dtype, n);
        if (!rc) *h = convert ? hash_bytes(wide, (size_t)n * sizeof *wide, *h) : hash_bytes(raw, (size_t)n * size, *h);
    }
    mem_free(wide);
    mem_free(raw);
    return rc;
}

/* Hashes a weight, and what is stored beside it if it is in 4 bits: "NAME.absmax" and others
 * (weights_4bit.h). */
static int hash_weight(const struct weights *w, const struct weight_slot *s, uint64_t *h, struct error *e)
{
    const size_t n = strlen(s->entry->name);
    int rc = hash_tensor(w, s, h, e);
    for (uint32_t i = 0; i < w->in.n_slots && !rc && !dtype_is_float(s->entry->dtype); i++)
        if (!strncmp(w->in.slots[i].entry->name, s->entry->name, n) && w->in.slots[i].entry->name[n] == '.')
            rc = hash_tensor(w, &w->in.slots[i], h, e);
    return rc;
}

static int hash_source(const struct weights *w, uint32_t param, const char *name, uint64_t *h, struct error *e)
{
    const struct weights *of = weights_of(w, param);
    if (!of)
        return error_set(e, PL_USAGE, "%s: the folder has no weights of the encoder: %s is missing", w->in.dir, name);
    for (uint32_t slot = of->source[param]; slot; slot = of->in.slots[slot - 1].next)
        TRY(hash_weight(of, &of->in.slots[slot - 1], h, e));
    return PL_OK;
}

static int hash_weights(const struct model *m, const struct graph *g, uint64_t *out, struct error *e)
{
    struct model part = *m;
    struct weights w;
    uint64_t h = 2;
    part.partial = true; /* the folder also holds the decoder's weights */
    int rc = weights_open(&w, &part, g, NULL, e);
    if (rc) return rc;
    for (uint32_t i = 0; i < g->params.n && !rc; i++) {
        const struct param *p = &g->params.at[i];
        const struct tensor *t = tensor_at(g, p->tensor);
        h = hash_shape(t, hash_text(weight_name(g, p), h));
        if (weight_is_constant(g, p)) h = hash_bytes(&g->blob.at[p->init.data], tensor_bytes(t), h);
        else rc = hash_source(&w, i, weight_name(g, p), &h, e);
    }
    weights_close(&w);
    *out = h;
    return rc;
}

/* --- what else decides embeddings ------------------------------------------------------------ */

static uint64_t hash_numbers(const double *x, size_t n, uint64_t h) { return hash_bytes(x, n * sizeof *x, h); }

static uint64_t hash_processor(const struct image_processor *p, uint64_t h)
{
    const double numbers[] = {p->pad_square, p->resize, p->filter,  p->shortest_edge, p->longest_edge,
                              p->height,     p->width,  p->crop,    p->crop_height,   p->crop_width,
                              p->tile,       p->split,  p->rescale, p->normalize,     p->factor,
                              p->min_tiles,  p->max_tiles};
    return hash_numbers(p->std, 3, hash_numbers(p->mean, 3, hash_numbers(numbers, COUNT(numbers), h)));
}

int embed_rules(const struct config *c, const struct model *m, struct patch_rules *out, struct error *e)
{
    const struct patch_overrides sizes = {.min_pixels = (uint64_t)c->data_min_pixels,
                                          .max_pixels = (uint64_t)c->data_max_pixels};
    return model_images_patches(out, m, false, &sizes, e);
}

/* Hashes how images of any size become patches. */
static int hash_patches(const struct config *c, const struct model *m, uint64_t *h, struct error *e)
{
    struct patch_rules rules;
    TRY(embed_rules(c, m, &rules, e));
    const struct image_processor p = image_source_normalisation(&rules);
    *h = hash_processor(&p, *h ^ patch_rules_hash(&rules));
    return PL_OK;
}

/* Hashes how the images and videos of conversations become pixels. */
static int hash_reading(const struct config *c, const struct model *m, uint64_t *h, struct error *e)
{
    const struct pixel_range r = feed_range(c);
    struct image_processor p;
    if (images_grids(m)) TRY(hash_patches(c, m, h, e));
    else if (model_images_processor(&p, m, e)) return e->code;
    else *h = hash_processor(&p, *h);
    *h = hash_numbers((const double[]){r.kind, r.percentiles[0], r.percentiles[1], r.window[0], r.window[1]}, 5, *h);
    if (!c->data_max_frames || images_grids(m)) return PL_OK;
    if (model_images_frame_processor(&p, m, e)) return e->code;
    *h = hash_numbers((const double[]){c->data_fps, (double)c->data_max_frames}, 2, hash_processor(&p, *h));
    return PL_OK;
}

/* Hashes which weights are in 4 bits: of the folder, or by memory.quantize. Where none is, the hash
 * does not change. */
static int hash_forms(const struct config *c, const struct model *m, struct graph *g, uint64_t *h, struct error *e)
{
    struct bump memory = {0};
    struct weights_4bit stored = {0};
    struct settings s = {0};
    bool any = false;
    int rc = weights_4bit_find(&stored, m, &memory, e);
    if (!rc) {
        uint8_t *forms = bump_alloc(&memory, g->params.n);
        for (uint32_t i = 0; i < g->params.n; i++) g->params.at[i].frozen = true;
        weights_4bit_mark(&stored, g);
        groups_settings(c, &memory, &s);
        CHECK(technique_parse(TECHNIQUE_quantize, c->memory_quantize.value, &s), "%s", c->memory_quantize.value);
        quantize_forms(g, &s, forms);
        for (uint32_t i = 0; i < g->params.n; i++) any |= forms[i] != STORED_PLAIN;
        if (any) *h = hash_bytes(forms, g->params.n, *h);
    }
    bump_free(&memory);
    return rc;
}

int embed_expect(const struct config *c, const struct model *m, struct graph *g, struct packed_embeddings *out,
                 struct error *e)
{
    const struct tensor *t = tensor_at(g, graph_find_output(g, PROGRAM_STEP, "image_embeddings"));
    out->channels = (uint32_t)(m->images ? t->dim[2] : t->dim[1]);
    out->any_size = images_grids(m) != NULL;
    if (m->images) out->tokens = (uint32_t)m->images->tokens;
    else out->grid = (uint32_t)t->dim[2];
    out->layers = hash_layers(g);
    int rc = m->images ? hash_reading(c, m, &out->layers, e) : PL_OK;
    return rc || !c ? rc : hash_forms(c, m, g, &out->layers, e);
}

int embed_describe(const struct config *c, const struct model *m, int64_t side, struct packed_embeddings *out,
                   struct error *e)
{
    struct graph g;
    int rc = embed_build(m, side, &g, e);
    if (!rc) rc = embed_expect(c, m, &g, out, e);
    if (!rc) rc = hash_weights(m, &g, &out->weights, e);
    graph_free(&g);
    return rc;
}

static size_t first_part(const char *name) { return strcspn(name, "."); }

/* Returns how many bytes the names of weights that begin with the same part as name i have in
 * common; 0: an earlier name begins so, or i is a constant. `all`: so do all names. */
static size_t common_bytes(const struct graph *g, uint32_t i, bool *all)
{
    const char *first = weight_name(g, &g->params.at[i]);
    size_t n = strlen(first);
    const size_t part = first_part(first);
    *all = true;
    if (weight_is_constant(g, &g->params.at[i])) return 0;
    for (uint32_t k = 0; k < g->params.n; k++) {
        const char *name = weight_name(g, &g->params.at[k]);
        if (weight_is_constant(g, &g->params.at[k])) continue;
        const bool same = first_part(name) == part && !strncmp(name, first, part);
        *all &= same;
        if (same && k < i) return 0;
        size_t at = 0;
        while (at < n && name[at] == first[at]) at++;
        if (same) n = at;
    }
    return n;
}

void embed_pattern_of(const struct graph *g, char out[64])
{
    size_t used = 0;
    for (uint32_t i = 0; i < g->params.n && used < 64; i++) {
        const char *name = weight_name(g, &g->params.at[i]);
        bool all;
        size_t n = common_bytes(g, i, &all);
        if (!n) continue;
        while (all && n && name[n - 1] != '.') n--;
        used += (size_t)snprintf(out + used, 64 - used, "%s%.*s%s", used ? "," : "", (int)n, name, name[n] ? "*" : "");
    }
}

int embed_pattern(const struct model *m, int64_t side, char out[64], struct error *e)
{
    struct graph g;
    int rc = embed_build(m, side, &g, e);
    if (!rc) embed_pattern_of(&g, out);
    graph_free(&g);
    return rc;
}

const char *embed_print(const struct packed_embeddings *x, char out[64])
{
    if (x->tokens) snprintf(out, 64, "%s [%u,%u]", dtype_name(packed_dtype(x->type)), x->tokens, x->channels);
    else snprintf(out, 64, "%s [%u,%u,%u]", dtype_name(packed_dtype(x->type)), x->channels, x->grid, x->grid);
    return out;
}
