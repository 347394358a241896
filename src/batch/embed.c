/*
 * embed.c: decides whether a run reads stored embeddings instead of images (see embed.h).
 *
 * Invariant: embed_choose and embed_check together let a run read embeddings only if training on
 * the images would give the same result: the encoder is completely frozen, it is the encoder that
 * made the store, and the images are not augmented. Otherwise the run is an error, never a silent
 * fallback: with data.embeddings: off the user selects images.
 */
#include "batch/embed.h"

#include <inttypes.h>

#include "data/dataset.h"
#include "data/formats/memmap.h"
#include "adapter/adapter.h"
#include "planning/parameter_groups.h"
#include "batch/batch_plan.h"

/* --- reasons against stored embeddings ------------------------------------------------------- */

/* Returns what to do instead: a store of masks has the images too. */
static const char *or_images(const struct model *m)
{
    return m->images ? "or set data.images to the folder or tar of the images"
                     : "or set data.embeddings to off: the images are in the store too";
}

static int refuse_augmentation(const struct config *c, const struct model *m, struct error *e)
{
    const enum config_key key = batch_augments(c);
    if (key == (enum config_key)CONFIG_KEYS) return PL_OK;
    error_set(e, PL_USAGE, "%s is %g, and the store's embeddings were made without augmentation: leave %s out, %s",
              config_key_name(key), *(const double *)config_member(c, key), config_key_name(key), or_images(m));
    return config_at_key(c, key, e);
}

/* Refuses an encoder that is trained, which gives different embeddings after each step. */
static int refuse_trained(const struct config *c, const struct model *m, struct graph *g, struct error *e)
{
    const char *first = NULL;
    uint32_t trained = 0;
    struct bump memory = {0};
    struct adapter a;
    int rc = adapter_given(c) ? adapter_open(c, m->family, &memory, &a, e) : PL_OK;
    if (!rc && adapter_given(c)) pass_lora(g, &a, 1);
    bump_free(&memory);
    if (rc) return rc;
    groups_freeze(c, g);
    for (uint32_t i = 0; i < g->params.n; i++) {
        if (g->params.at[i].frozen || weight_is_constant(g, &g->params.at[i])) continue;
        if (!trained++) first = weight_name(g, &g->params.at[i]);
    }
    if (trained) {
        char pattern[64];
        embed_pattern_of(g, pattern);
        error_set(e, PL_USAGE,
                  "the store's embeddings need a completely frozen encoder; this run trains %s and %u more of its %u "
                  "parameters: "
                  "set model.freeze to \"%s\"%s, %s",
                  first, trained - 1, g->params.n, pattern,
                  adapter_given(c) ? ", and leave it out of adapter.target_modules" : "", or_images(m));
        return config_at_key(c, KEY_model_freeze, e);
    }
    if (!m->batch_norm || !c->model_bn_group) return PL_OK;
    error_set(e, PL_USAGE,
              "model.bn_group is %lld, so the encoder's batch statistics change with every batch, and stored "
              "embeddings do not: leave it out, %s",
              (long long)c->model_bn_group, or_images(m));
    return config_at_key(c, KEY_model_bn_group, e);
}

/* Prints the shape without the dtype. */
static const char *shape_of(const struct packed_embeddings *x, char out[64])
{
    return strchr(embed_print(x, out), '[');
}

static int refuse_shape(const struct model *m, const struct packed_embeddings *found,
                        const struct packed_embeddings *expected, struct error *e)
{
    char here[64], there[64];
    if (found->channels != expected->channels || found->grid != expected->grid || found->tokens != expected->tokens) {
        const struct packed_embeddings made = {.type = found->type, .channels = expected->channels,
                                               .grid = expected->grid, .tokens = expected->tokens};
        return error_set(e, PL_USAGE,
                         "embeddings of %s, made with %s; this model's encoder makes %s: pack again with --embeddings "
                         "and this model, %s",
                         shape_of(found, here), found->model, shape_of(&made, there), or_images(m));
    }
    if (found->layers == expected->layers) return PL_OK;
    return error_set(e, PL_USAGE,
                     "its embeddings were made by an encoder with other layers, sizes or normalisation%s (%016" PRIx64
                     ", of %s) than this model's (%016" PRIx64 "): "
                     "pack again with --embeddings and this model%s, %s",
                     images_grids(m) ? ", another image processor, data.min_pixels, data.max_pixels, data.range or "
                                       "memory.quantize"
                     : m->images ? ", another image processor, data.range, data.fps, data.max_frames or memory.quantize"
                                 : "",
                     found->layers, found->model, expected->layers, m->images ? ", and the run's keys as --set" : "",
                     or_images(m));
}

/* --- choosing --------------------------------------------------------------------------------- */

/* Reads the header of the first file; found->type 0: it has no embeddings, or there is no file
 * yet. */
static int read_store_header(const struct config *c, bool train, char **path, struct packed_header *h,
                             struct packed_embeddings *found, struct error *e)
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
    error_set(e, PL_USAGE,
              "data.embeddings is use, and %s has none: `plimsoll data pack ... --embeddings MODEL` writes a store "
              "with embeddings; auto uses images if there are none",
              path ? path : "data of this format");
    return config_at_key(c, KEY_data_embeddings, e);
}

/* Checks that the encoder is frozen, for a run that trains or whose weights an adapter changes. */
static int check_frozen(const struct config *c, const struct model *m, int64_t side, struct error *e)
{
    struct graph g;
    int rc = embed_build(m, side, &g, e);
    if (!rc) rc = refuse_trained(c, m, &g, e);
    graph_free(&g);
    return rc;
}

/* Checks that stored embeddings are those of this run's encoder: made from weights, of the shapes
 * that it expects of images of `side` pixels, and by an encoder that neither training nor an
 * adapter changes. */
static int check_encoder(const struct config *c, const struct model *m, int64_t side, bool train, const char *path,
                         const struct packed_embeddings *found, struct error *e)
{
    struct packed_embeddings expected = {0};
    struct graph g;
    if (!*m->path)
        return error_set(e, PL_USAGE,
                         "%s has embeddings, but the encoder of a preset has random weights: set model.path to %s, "
                         "which made them, %s",
                         path, found->model, or_images(m));
    if (train && refuse_augmentation(c, m, e)) return e->code;
    int rc = embed_build(m, side, &g, e);
    if (!rc) rc = embed_expect(c, m, &g, &expected, e);
    graph_free(&g);
    if (!rc && refuse_shape(m, found, &expected, e)) rc = error_prepend(e, "%s", path);
    return rc || !(train || adapter_given(c)) ? rc : check_frozen(c, m, side, e);
}

static int check_store(const struct config *c, const struct model *m, int64_t side, bool train, const char *path,
                       const struct packed_header *h, const struct packed_embeddings *found, struct error *e)
{
    if (*m->path && (int64_t)h->side != side) {
        error_set(e, PL_USAGE,
                  "%s has embeddings of images of %u pixels, but data.image_size is %lld: set it to %u, %s", path,
                  h->side, (long long)side, h->side, or_images(m));
        return config_at_key(c, KEY_data_image_size, e);
    }
    return check_encoder(c, m, side, train, path, found, e);
}

int embed_choose(const struct config *c, const struct model *m, int64_t side, bool train, struct packed_embeddings *out,
                 struct error *e)
{
    struct packed_header h;
    char *path;
    *out = (struct packed_embeddings){0};
    if (c->data_embeddings == EMBEDDINGS_OFF) return PL_OK;
    if (c->data_format != FORMAT_PACKED) return c->data_embeddings == EMBEDDINGS_USE ? missing(c, NULL, e) : PL_OK;
    int rc = read_store_header(c, train, &path, &h, out, e);
    if (!rc && out->tokens)
        rc = error_set(e, PL_USAGE,
                       "%s has embeddings of the images of conversations, and neither images nor masks: it is for "
                       "data.images of a run with data.format conversations",
                       path);
    else if (!rc && out->type) rc = check_store(c, m, side, train, path, &h, out, e);
    else if (!rc && c->data_embeddings == EMBEDDINGS_USE) rc = missing(c, path, e);
    mem_free(path);
    return rc;
}

/* --- the images of conversations -------------------------------------------------------------- */

/* Refuses what would need the images themselves. */
static int refuse_pixels(const struct config *c, const struct model *m, bool train, const char *path, struct error *e)
{
    if (c->data_embeddings == EMBEDDINGS_OFF) {
        error_set(e, PL_USAGE,
                  "data.embeddings is off, and %s has no images: set data.images to the folder or tar of the images",
                  path);
        return config_at_key(c, KEY_data_embeddings, e);
    }
    if (m->whole == WHOLE_CHOOSES)
        return error_set(e, PL_USAGE,
                         "%s has embeddings, and a %s also looks at the pixels of its images: set data.images to the "
                         "folder or tar of the images",
                         path, m->family->model_type);
    if (!train || !c->train_eval_samples) return PL_OK;
    error_set(e, PL_USAGE,
              "train.eval_samples is %lld, and answers need the vision tower, which a run on the embeddings of %s does "
              "not have: set it to 0 (`plimsoll eval` answers afterwards), %s",
              (long long)c->train_eval_samples, path, or_images(m));
    return config_at_key(c, KEY_train_eval_samples, e);
}

int embed_choose_images(const struct config *c, const struct model *m, bool train, struct packed_embeddings *out,
                        struct error *e)
{
    const char *path = !train && c->data_validation_images ? c->data_validation_images : c->data_images;
    struct packed_header h;
    *out = (struct packed_embeddings){0};
    if (!path || !packed_is(path)) {
        if (c->data_embeddings != EMBEDDINGS_USE) return PL_OK;
        error_set(e, PL_USAGE,
                  "data.embeddings is use, and data.images is not a store of embeddings: `plimsoll data pack "
                  "CONVERSATIONS --embeddings MODEL` writes one; auto uses images");
        return config_at_key(c, KEY_data_embeddings, e);
    }
    if (refuse_pixels(c, m, train, path, e) || packed_peek(path, &h, out, e)) return e->code;
    if (out->tokens) return check_encoder(c, m, m->image, train, path, out, e);
    error_set(e, PL_USAGE,
              "%s is a packed store of images with masks; expected one that `plimsoll data pack --embeddings` makes of "
              "conversations",
              path);
    return config_at_key(c, KEY_data_images, e);
}

/* --- a store that is not there yet ------------------------------------------------------------ */

int embed_assume(const struct config *c, const struct model *m, int64_t side, struct packed_embeddings *out,
                 struct error *e)
{
    struct graph g;
    *out = (struct packed_embeddings){.type = PACKED_F32};
    if ((m->images && refuse_pixels(c, m, true, "the store", e)) || check_frozen(c, m, side, e)) return e->code;
    int rc = embed_build(m, side, &g, e);
    if (!rc) rc = embed_expect(c, m, &g, out, e);
    graph_free(&g);
    return rc;
}

/* --- checking --------------------------------------------------------------------------------- */

/* Checks the weights of the run's encoder, which are hashed once. */
static int check_weights(struct run *r, int64_t side, const struct packed_embeddings *x, uint64_t *encoder,
                         struct error *e)
{
    char shape[64];
    if (!*encoder) {
        struct packed_embeddings expected = {0};
        if (embed_describe(r->planned.config, &r->planned.model, side, &expected, e)) return e->code;
        *encoder = expected.weights;
        log_note("image embeddings from the store (%s, made with %s); the encoder does not run", embed_print(x, shape),
                 x->model);
    }
    if (x->weights == *encoder) return PL_OK;
    return error_set(e, PL_USAGE,
                     "its embeddings were made with other weights: the encoder of %s has the fingerprint %016" PRIx64
                     ", that of %s has %016" PRIx64 ": "
                     "pack again with --embeddings %s, %s",
                     x->model, x->weights, r->planned.model.path, *encoder, r->planned.model.path,
                     or_images(&r->planned.model));
}

int embed_check(struct run *r, const struct dataset *set, struct error *e)
{
    struct feed_plan *b = r->planned.batches.feed;
    const struct packed_embeddings *x = dataset_embeddings(set), *planned = &b->embeddings;
    if (!x || x->type != planned->type || x->layers != planned->layers)
        return error_set(e, PL_USAGE,
                         "not all of its files have the embeddings that this run was planned for (%s, made with %s): "
                         "pack all of them with the same --embeddings, %s",
                         dtype_name(packed_dtype(planned->type)), planned->model, or_images(&r->planned.model));
    return check_weights(r, b->holds.prompts.image, x, &b->encoder, e);
}

int embed_check_images(struct run *r, const struct dataset *store, const char *key, struct error *e)
{
    struct feed_plan *b = r->planned.batches.feed;
    const struct packed_embeddings *x = store ? dataset_embeddings(store) : NULL, *planned = &b->embeddings;
    if (!x && !planned->type) return PL_OK;
    if (!planned->type)
        return error_set(e, PL_USAGE,
                         "%s is a store of embeddings, and the run was planned for images, as data.images is none: set "
                         "both to stores, or both to images",
                         key);
    if (!x)
        return error_set(e, PL_USAGE,
                         "%s is not a store of embeddings, and the run was planned without the vision tower, as "
                         "data.images is one: set both to stores, or both to images",
                         key);
    if (x->type != planned->type || x->layers != planned->layers)
        return error_set(e, PL_USAGE,
                         "%s: its embeddings (made with %s) are not those that this run was planned for (made with "
                         "%s): pack both with the same --embeddings",
                         key, x->model, planned->model);
    return check_weights(r, r->planned.model.image, x, &b->encoder, e) ? error_prepend(e, "%s", key) : PL_OK;
}
