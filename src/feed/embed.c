/*
 * embed.c: decides whether a run reads stored embeddings instead of images (see embed.h).
 *
 * Invariant: embed_choose and embed_check together let a run read embeddings only if training on
 * the images would give the same result: the encoder is completely frozen, it is the encoder that
 * made the store, and the images are not augmented. Otherwise the run is an error, never a silent
 * fallback: with data.embeddings: off the user selects images.
 */
#include "feed/embed.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "data/dataset.h"
#include "data/formats/memmap.h"
#include "engine/adapter.h"
#include "passes/lora.h"
#include "engine/recipe.h"
#include "feed/batch_plan.h"

enum { HASH_CHUNK = 1 << 18 }; /* elements of a weight that are hashed at once */

/* --- the encoder ------------------------------------------------------------------------- */

/* The forward from the bytes of one image to its embedding. */
static int build_encoder(const struct model *m, int64_t side, struct graph *g, struct error *e)
{
    const struct prompting prompts = {.image = side, .masks = 1, .points = 2, .rounds = 1, .slots = true, .part = PART_IMAGE};
    struct batch b = {.B = 1, .T = 1, .outputs = true, .loss_output = "", .own = &prompts};
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
        if (n->op == OP_IMAGE) h = hash_bytes(n->attr.image.mean, sizeof n->attr.image.mean, hash_bytes(n->attr.image.std, sizeof n->attr.image.std, h));
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

/* Hashes one weight of a file as f32: the same values in another dtype are the same encoder. */
static int hash_weight(const struct weights *w, const struct weight_slot *s, uint64_t *h, struct error *e)
{
    const struct st_entry *t = s->entry;
    const uint32_t size = dtype_size(t->dtype);
    void *raw = mem_alloc((size_t)HASH_CHUNK * size);
    float *wide = t->dtype == DT_F32 ? raw : mem_alloc(HASH_CHUNK * sizeof *wide);
    int rc = PL_OK;
    for (int64_t at = 0; at < t->elements && !rc; at += HASH_CHUNK) {
        int64_t n = min_i64(HASH_CHUNK, t->elements - at);
        rc = st_read(&w->files[s->file], t, (uint64_t)at * size, (uint64_t)n * size, raw, e);
        if (!rc && t->dtype != DT_F32) dtype_convert(wide, DT_F32, raw, t->dtype, n);
        if (!rc) *h = hash_bytes(wide, (size_t)n * sizeof *wide, *h);
    }
    if (t->dtype != DT_F32) mem_free(wide);
    mem_free(raw);
    return rc;
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
        else rc = hash_weight(&w, &w.slots[w.source[i] - 1], &h, e);
    }
    weights_close(&w);
    *out = h;
    return rc;
}

static void describe_shape(const struct graph *g, struct packed_embeddings *out)
{
    const struct tensor *t = tensor_at(g, graph_find_output(g, PROGRAM_STEP, "image_embeddings"));
    out->channels = (uint32_t)t->dim[1];
    out->grid = (uint32_t)t->dim[2];
    out->layers = hash_layers(g);
}

int embed_describe(const struct model *m, int64_t side, struct packed_embeddings *out, struct error *e)
{
    struct graph g;
    int rc = build_encoder(m, side, &g, e);
    if (!rc) describe_shape(&g, out);
    if (!rc) rc = hash_weights(m, &g, &out->weights, e);
    graph_free(&g);
    return rc;
}

int embed_assume(const struct model *m, int64_t side, struct packed_embeddings *out, struct error *e)
{
    struct graph g;
    *out = (struct packed_embeddings){.type = PACKED_F32};
    int rc = build_encoder(m, side, &g, e);
    if (!rc) describe_shape(&g, out);
    graph_free(&g);
    return rc;
}

int embed_pattern(const struct model *m, int64_t side, char out[64], struct error *e)
{
    struct graph g;
    int rc = build_encoder(m, side, &g, e);
    if (!rc) {
        const char *first = weight_name(&g, &g.params.at[0]);
        snprintf(out, 64, "%.*s.*", (int)strcspn(first, "."), first);
    }
    graph_free(&g);
    return rc;
}

/* --- reasons against stored embeddings ------------------------------------------------------- */

#define OR_OFF "or set data.embeddings to off: the images are in the store too"

static int refuse_augmentation(const struct config *c, struct error *e)
{
    const enum config_key key = batch_augments(c);
    if (key == (enum config_key)CONFIG_KEYS) return PL_OK;
    error_set(e, PL_USAGE, "%s is %g, and the store's embeddings were made without augmentation: leave %s out, " OR_OFF, config_key_name(key), *(const double *)config_member(c, key), config_key_name(key));
    return config_at_key(c, key, e);
}

/* An encoder that is trained gives different embeddings after each step. */
static int refuse_trained(const struct config *c, const struct model *m, struct graph *g, struct error *e)
{
    const char *first = NULL;
    uint32_t trained = 0;
    struct bump memory = {0};
    struct adapter a;
    int rc = adapter_given(c) ? adapter_open(c, &memory, &a, e) : PL_OK;
    if (!rc && adapter_given(c)) pass_lora(g, &a, 1);
    bump_free(&memory);
    if (rc) return rc;
    recipe_freeze(c, g);
    for (uint32_t i = 0; i < g->params.n; i++) {
        if (g->params.at[i].frozen || weight_is_constant(g, &g->params.at[i])) continue;
        if (!trained++) first = weight_name(g, &g->params.at[i]);
    }
    if (trained) {
        error_set(e, PL_USAGE, "the store's embeddings need a completely frozen encoder; this run trains %s and %u more of its %u parameters: "
                  "set model.freeze to \"%.*s.*\", " OR_OFF, first, trained - 1, g->params.n, (int)strcspn(first, "."), first);
        return config_at_key(c, KEY_model_freeze, e);
    }
    if (!m->batch_norm || !c->model_bn_group) return PL_OK;
    error_set(e, PL_USAGE, "model.bn_group is %lld, so the encoder's batch statistics change with every batch, and stored embeddings do not: leave it out, " OR_OFF, (long long)c->model_bn_group);
    return config_at_key(c, KEY_model_bn_group, e);
}

static int refuse_shape(const struct packed_embeddings *found, const struct packed_embeddings *expected, struct error *e)
{
    if (found->channels != expected->channels || found->grid != expected->grid)
        return error_set(e, PL_USAGE, "embeddings of [%u,%u,%u], made with %s; this model's encoder makes [%u,%u,%u]: pack again with --embeddings and this model, " OR_OFF,
                         found->channels, found->grid, found->grid, found->model, expected->channels, expected->grid, expected->grid);
    if (found->layers == expected->layers) return PL_OK;
    return error_set(e, PL_USAGE, "its embeddings were made by an encoder with other layers, sizes or normalisation (%016" PRIx64 ", of %s) than this model's (%016" PRIx64 "): "
                     "pack again with --embeddings and this model, " OR_OFF, found->layers, found->model, expected->layers);
}

/* --- choosing ---------------------------------------------------------------------------------- */

/* Reads the header of the first file; found->type 0: it has no embeddings, or there is no file
 * yet. */
static int read_store_header(const struct config *c, bool train, char **path, struct packed_header *h, struct packed_embeddings *found, struct error *e)
{
    const struct config_list *paths = train || !c->data_validation.n ? &c->data_train : &c->data_validation;
    struct dataset_options o = {.format = "packed", .paths = paths->at, .n_paths = paths->n};
    struct names files;
    *found = (struct packed_embeddings){0};
    *path = NULL;
    if (paths->n && memmap_is_index(&o)) return PL_OK;
    if (dataset_paths(&o, &files, e)) {
        if (c->data_embeddings == EMBEDDINGS_USE) return e->code;
        if (paths->n) log_note("data.embeddings: %s, so the plan is for images", e->text);
        e->code = PL_OK; /* a plan needs no data; a run reports the missing files when it opens them */
        return PL_OK;
    }
    *path = mem_string(files.at[0]);
    names_free(&files);
    return packed_peek(*path, h, found, e);
}

static int missing(const struct config *c, const char *path, struct error *e)
{
    error_set(e, PL_USAGE, "data.embeddings is use, and %s has none: `plimsoll data pack ... --embeddings MODEL` writes a store with embeddings; auto uses images if there are none",
              path ? path : "data of this format");
    return config_at_key(c, KEY_data_embeddings, e);
}

static int check_store(const struct config *c, const struct model *m, int64_t side, bool train, const char *path, const struct packed_header *h,
                 const struct packed_embeddings *found, struct error *e)
{
    struct packed_embeddings expected = {0};
    struct graph g;
    if (!*m->path)
        return error_set(e, PL_USAGE, "%s has embeddings, but the encoder of a preset has random weights: set model.path to %s, which made them, " OR_OFF, path, found->model);
    if ((int64_t)h->side != side) {
        error_set(e, PL_USAGE, "%s has embeddings of images of %u pixels, but data.image_size is %lld: set it to %u, " OR_OFF, path, h->side, (long long)side, h->side);
        return config_at_key(c, KEY_data_image_size, e);
    }
    if (train && refuse_augmentation(c, e)) return e->code;
    int rc = build_encoder(m, side, &g, e);
    if (!rc) describe_shape(&g, &expected);
    if (!rc && refuse_shape(found, &expected, e)) rc = error_prepend(e, "%s", path);
    if (!rc && (train || adapter_given(c))) rc = refuse_trained(c, m, &g, e);
    graph_free(&g);
    return rc;
}

int embed_choose(const struct config *c, const struct model *m, int64_t side, bool train, struct packed_embeddings *out, struct error *e)
{
    struct packed_header h;
    char *path;
    *out = (struct packed_embeddings){0};
    if (c->data_embeddings == EMBEDDINGS_OFF) return PL_OK;
    if (c->data_format != FORMAT_PACKED) return c->data_embeddings == EMBEDDINGS_USE ? missing(c, NULL, e) : PL_OK;
    int rc = read_store_header(c, train, &path, &h, out, e);
    if (!rc && out->type) rc = check_store(c, m, side, train, path, &h, out, e);
    else if (!rc && c->data_embeddings == EMBEDDINGS_USE) rc = missing(c, path, e);
    mem_free(path);
    return rc;
}

/* --- checking ------------------------------------------------------------------------------------ */

int embed_check(struct run *r, const struct dataset *set, struct error *e)
{
    const struct packed_embeddings *x = dataset_embeddings(set), *planned = &mask_batches(r)->embeddings;
    if (!x || x->type != planned->type || x->layers != planned->layers)
        return error_set(e, PL_USAGE, "not all of its files have the embeddings that this run was planned for (%s, made with %s): pack all of them with the same --embeddings, " OR_OFF,
                         dtype_name(packed_dtype(planned->type)), planned->model);
    uint64_t *encoder = &mask_batches(r)->encoder;
    if (!*encoder) {
        struct packed_embeddings expected = {0};
        if (embed_describe(&r->model, mask_batches(r)->prompts.image, &expected, e)) return e->code;
        *encoder = expected.weights;
        log_note("image embeddings from the store (%s [%u,%u,%u], made with %s); the encoder does not run", dtype_name(packed_dtype(x->type)), x->channels, x->grid,
                 x->grid, x->model);
    }
    if (x->weights == *encoder) return PL_OK;
    return error_set(e, PL_USAGE, "its embeddings were made with other weights: the encoder of %s has the fingerprint %016" PRIx64 ", that of %s has %016" PRIx64 ": "
                     "pack again with --embeddings %s, " OR_OFF, x->model, x->weights, r->model.path, *encoder, r->model.path);
}
