/*
 * images.c: see images.h.
 */
#include <math.h>

#include "models/images.h"

#include "graph/emit.h"
#include "models/parts.h"
#include "io/file.h"
#include "io/json.h"
#include "models/image_grid.h"
#include "models/layers.h"
#include "models/masks.h"

/* Returns the square root, rounded down. */
static int64_t square_root(int64_t n)
{
    int64_t k = 0;
    while ((k + 1) * (k + 1) <= n) k++;
    return k;
}

int images_describe(struct model *m, struct tower_sizes s, const char *type, int64_t features, int64_t token,
                    enum image_layout layout, struct error *e)
{
    if (features < 1)
        return error_set(e, PL_USAGE, "the vision tower gives %lld tokens, and none is left for the text model",
                         (long long)s.tokens);
    if (token < INT32_MIN || token > INT32_MAX)
        return error_set(e, PL_USAGE, "the image token is %lld, expected an id", (long long)token);
    const bool padded = layout == IMAGE_AS_TILES; /* with a mask */
    m->image = s.image;
    m->encoder = "";
    m->images = bump_alloc(&m->memory, sizeof *m->images);
    *m->images = (struct image_model){.token = (int32_t)token, .features = features, .tokens = s.tokens,
                                      .width = s.width, .channels = s.channels, .layout = layout,
                                      .tower = type, .padded = padded};
    /* a class token besides a square makes no square */
    m->images->grid = square_root(features) * square_root(features) == features ? square_root(features) : 0;
    model_add_port(m,
                   &(struct port){"pixel_values", VALUES_REAL, 4, {OPEN_IMAGES, s.channels, s.image, s.image}, true});
    if (layout != IMAGE_AS_ANYRES) /* which takes no videos, or names them otherwise */
        model_add_port(
            m, &(struct port){"frame_values", VALUES_REAL, 4, {OPEN_FRAMES, s.channels, s.image, s.image}, true});
    if (padded)
        model_add_port(m, &(struct port){"pixel_attention_mask", VALUES_PADDING, 4,
                                         {OPEN('B'), OPEN('M'), s.image, s.image},
                                         true});
    return PL_OK;
}

const struct grid_model *images_grids(const struct model *m) { return m->images ? m->images->grids : NULL; }
const struct anyres *images_tiles(const struct model *m) { return m->images ? m->images->anyres : NULL; }
bool image_own_tokens(const struct model *m) { return images_grids(m) && !m->images->grids->tokens; }
bool images_sum(const struct model *m) { return images_tiles(m) && m->images->anyres->pooled; }

bool media_volumes(const struct media *m)
{
    bool any = false;
    for (int k = 0; k < MODALITIES; k++) any |= m->volumes[k];
    return any;
}
bool media_any(const struct media *m) { return m->images || m->frames || m->patches || media_volumes(m); }
bool media_fit(const struct media *room, const struct media *m)
{
    for (int k = 0; k < MODALITIES; k++)
        if (m->volumes[k] > room->volumes[k]) return false;
    return m->images <= room->images && m->frames <= room->frames && m->patches <= room->patches;
}

void media_grow(struct media *room, const struct media *m)
{
    room->images = max_i64(room->images, m->images);
    room->frames = max_i64(room->frames, m->frames);
    room->patches = max_i64(room->patches, m->patches);
    room->tokens_per_frame = max_i64(room->tokens_per_frame, m->tokens_per_frame);
    for (int k = 0; k < MODALITIES; k++) room->volumes[k] = max_i64(room->volumes[k], m->volumes[k]);
}

const struct contents *contents_of(const struct batch *b)
{
    static const struct contents nothing;
    return b->holds ? b->holds : &nothing;
}

int64_t images_volume_row(const struct model *m, const struct media *room, int modality)
{
    int64_t row = 0;
    for (int k = 0; k < modality; k++) row += room->volumes[k] * m->images->modalities.at[k].tokens;
    return row;
}

int images_frame_tokens(const struct model *m, int64_t tokens_per_frame, int64_t *out, struct error *e)
{
    const struct image_model *x = m->images;
    const int64_t k = square_root(tokens_per_frame);
    if (images_sum(m)) {
        *out = (int64_t)x->anyres->pooled * x->anyres->pooled;
        if (!tokens_per_frame || tokens_per_frame == *out) return PL_OK;
        return error_set(e, PL_USAGE,
                         "data.tokens_per_frame is %lld, and a frame has %lld tokens in a %s: leave it unset",
                         (long long)tokens_per_frame, (long long)*out, m->family->model_type);
    }
    *out = tokens_per_frame ? tokens_per_frame : x->features;
    if (*out == x->features) return PL_OK;
    if (!x->grid)
        return error_set(e, PL_USAGE,
                         "data.tokens_per_frame is %lld, and the %lld features of an image are no square grid that can "
                         "be pooled: leave it unset", (long long)tokens_per_frame, (long long)x->features);
    if (k * k == tokens_per_frame && k <= x->grid) return PL_OK;
    return error_set(e, PL_USAGE,
                     "data.tokens_per_frame is %lld, expected a square number of at most %lld, the features of an "
                     "image: %lld x %lld",
                     (long long)tokens_per_frame, (long long)x->features, (long long)x->grid, (long long)x->grid);
}

/* What a batch holds: in all, or of each sample. */
struct room {
    bool each;
    int64_t images, frames, frame_tokens;
};

static struct room find_room(const struct model *m, const struct batch *batch)
{
    const struct contents *own = batch->holds;
    struct room r = {.each = !batch->size,
                     .frame_tokens =
                         own && own->media.tokens_per_frame ? own->media.tokens_per_frame : m->images->features};
    if (batch->size) r.images = batch->size['N'], r.frames = batch->size['F'];
    else if (own) r.images = own->media.images, r.frames = own->media.frames;
    else r.images = batch->cache ? 0 : 1;
    if (images_sum(m)) r.frame_tokens = m->images->features; /* each token is a sum of them */
    return r;
}

int64_t images_first_frame(const struct model *m, const struct batch *batch)
{
    return find_room(m, batch).images * m->images->features + (m->images->newline != NULL);
}

/* Pools frames x [B,frames,features,C] to rows [B,frames * frame_tokens,C], which are fewer. */
static id pool_frames(const struct model *m, struct graph *g, id x, int64_t B, int64_t C, const struct room *r)
{
    const int64_t grid = m->images->grid, k = square_root(r->frame_tokens);
    x = op_reshape(g, op_dense(g, x), 4, (int64_t[]){B * r->frames, grid, grid, C});
    x = op_avgpool_adaptive(g, x, k, k);
    return op_reshape(g, x, 3, (int64_t[]){B, r->frames * r->frame_tokens, C});
}

/* Returns the features of B samples' images and frames [B * (images + frames),features,C] to rows
 * [B,R,C]. */
static id join_rows(const struct model *m, struct graph *g, id x, int64_t B, int64_t C, const struct room *r)
{
    const int64_t features = m->images->features;
    id rows[2];
    x = op_reshape(g, x, 4, (int64_t[]){B, r->images + r->frames, features, C});
    rows[1] = pool_frames(m, g, op_slice(g, x, 1, r->images, r->frames), B, C, r);
    if (!r->images) return rows[1];
    rows[0] = op_reshape(g, op_dense(g, op_slice(g, x, 1, 0, r->images)), 3, (int64_t[]){B, r->images * features, C});
    return op_concat(g, rows, 2, 1);
}

id images_input(struct graph *g, const struct contents *holds, const char *name, int rank, const int64_t *dim, int axis,
                int64_t plane)
{
    const struct pixel_table none = {0}, *t = holds ? &holds->pixels : &none;
    if (!t->rows) return graph_input_along(g, name, DT_F32, rank, dim, axis);
    id bytes = graph_input_along(g, name, DT_U8, rank, dim, axis);
    return op_pixels(g, bytes, graph_const(g, "pixel_table", DT_F32, 2, (int64_t[]){t->rows, 256}, t->value), plane);
}

bool images_encode(const struct model *m, struct graph *g, const struct batch *batch, struct image_layers layers)
{
    const struct contents *own = batch->holds;
    if (batch->size || !own || own->part != PART_IMAGE) return false;
    id pixels = images_input(g, own, "pixel_values", 4,
                             (int64_t[]){batch->B, m->images->channels, m->image, m->image}, 0, m->image * m->image);
    graph_output(g, "image_embeddings", op_dense(g, layers.tower(m, g, pixels)));
    return true;
}

/* Returns the tower's output for n images: [n,tokens,width]. */
static id read_embeddings(const struct model *m, struct graph *g, const struct contents *own, int64_t n)
{
    id x = graph_input(g, "image_embeddings", own->embeddings, 3, (int64_t[]){n, m->images->tokens, m->images->width});
    return own->embeddings == DT_F32 ? x : op_cast(g, x, DT_NONE);
}

static id tower_of_pixels(const struct model *m, struct graph *g, const struct contents *own, int64_t n, bool each,
                          image_map *tower)
{
    /* Without images the features of one are built all the same, for their parameters. Nothing
     * reads them, so that they are never computed. */
    const int64_t dim[] = {n ? n : 1, m->images->channels, m->image, m->image};
    return tower(m, g, n ? images_input(g, own, "pixel_values", 4, dim, each ? 0 : INPUT_SHARED, m->image * m->image)
                         : graph_input_along(g, "no_pixel_values", DT_F32, 4, dim, INPUT_SHARED));
}

/* Reports whether the rows may have images. Rows of generated tokens have none: the images are
 * before them. */
static bool has_images(const struct model *m, const struct graph *g, const struct batch *batch)
{
    const struct room r = find_room(m, batch);
    return r.images + r.frames && !program_is(g->at.program, PROGRAM_SINGLE);
}

/* Returns the row [1,1,C] that is before all features. */
static id newline_row(const struct model *m, struct graph *g, int64_t C)
{
    return op_reshape(g, layer_param(g, "", m->images->newline, 1, &C, 1 / sqrt((double)C)), 3, (int64_t[]){1, 1, C});
}

/* Adds to each token of x [B,T,C] the sum of up to four rows, with their weights. */
static id add_sums(struct graph *g, const struct batch *batch, id x, id rows)
{
    const int64_t B = batch->B, T = batch->T, dim[] = {B, T, 4}, C = tensor_last(tensor_at(g, x));
    const bool each = tensor_at(g, rows)->rank == 3;
    const int64_t one[] = {1, tensor_at(g, rows)->dim[0], C}; /* rows that all samples share */
    id terms = graph_input(g, "sum_index", DT_I32, 3, dim),
       weights = op_cast(g, graph_input(g, "sum_weights", DT_F32, 3, dim), DT_NONE);
    if (!each) rows = op_reshape(g, rows, 3, one);
    for (int i = 0; i < 4; i++) {
        id at = op_dense(g, op_slice(g, terms, 2, i, 1));
        at = op_reshape(g, at, 2, each ? (int64_t[]){B, T} : (int64_t[]){1, B * T});
        id term = op_reshape(g, op_gather(g, rows, at), 3, (int64_t[]){B, T, C});
        x = op_add(g, x, op_mul(g, term, op_slice(g, weights, 2, i, 1)));
    }
    return x;
}

/* --- volumes ---------------------------------------------------------------------------------- */

/* Returns the features of a modality's volumes as rows [B,n * tokens,C], or [n * tokens,C] where
 * the batch shares them; 0: it has none. Its parameters are declared all the same. */
static id volume_rows(const struct model *m, struct graph *g, const struct batch *batch, int k,
                      struct image_layers layers)
{
    const struct modality *x = &m->images->modalities.at[k];
    const struct contents *own = batch->holds;
    const bool each = !batch->size, single = program_is(g->at.program, PROGRAM_SINGLE);
    const int64_t n = single ? 0 : batch->size ? batch->size['a' + k] : own ? own->media.volumes[k] : 0,
                  all = each ? batch->B * n : n;
    char name[32];
    snprintf(name, sizeof name, n ? "volumes_%d" : "no_volumes_%d", k);
    id rows = graph_input_along(g, name, DT_F32, 3, (int64_t[]){max_i64(all, 1), x->tokens, x->values},
                                each && n ? 0 : INPUT_SHARED);
    rows = layers.project(m, g, layers.volumes(m, g, x, rows));
    if (!rows || !n) return 0;
    const int64_t C = tensor_last(tensor_at(g, rows));
    return op_reshape(g, rows, each ? 3 : 2, each ? (int64_t[]){batch->B, n * x->tokens, C}
                                                  : (int64_t[]){n * x->tokens, C});
}

/* Puts the features of the batch's volumes among the embeddings x. */
static id merge_volumes(const struct model *m, struct graph *g, const struct batch *batch, id x,
                        struct image_layers layers)
{
    const struct modality_list *l = &m->images->modalities;
    id rows[MODALITIES];
    int n = 0;
    for (int k = 0; k < l->n; k++)
        if ((rows[n] = volume_rows(m, g, batch, k, layers))) n++;
    if (!n || !x) return x;
    id all = n > 1 ? op_concat(g, rows, n, tensor_at(g, rows[0])->rank - 2) : rows[0];
    return op_replace_rows(g, x, graph_input(g, "volume_index", DT_I32, 2, (int64_t[]){batch->B, batch->T}), all);
}

/* --- images among tokens ---------------------------------------------------------------------- */

static id merge_images(const struct model *m, struct graph *g, const struct batch *batch, id x,
                       struct image_layers layers)
{
    const int64_t B = batch->B, T = batch->T;
    const struct room r = find_room(m, batch);
    const struct contents *own = batch->holds;
    const int64_t n = has_images(m, g, batch) ? r.images + r.frames : 0, all = r.each ? B * n : n;
    const bool kept = r.each && own && own->part == PART_REST;
    id rows = layers.project(m, g, kept ? read_embeddings(m, g, own, all)
                                        : tower_of_pixels(m, g, own, all, r.each, layers.tower));
    id newline = m->images->newline && x ? newline_row(m, g, tensor_last(tensor_at(g, x))) : 0;
    if (!rows || !x || !n) return rows ? x : 0;
    const int64_t C = tensor_last(tensor_at(g, x)), R = r.images * m->images->features + r.frames * r.frame_tokens;
    if (r.frames && r.frame_tokens != m->images->features) rows = join_rows(m, g, rows, r.each ? B : 1, C, &r);
    rows = op_reshape(g, rows, r.each ? 3 : 2, r.each ? (int64_t[]){B, R, C} : (int64_t[]){R, C});
    if (newline) {
        if (r.each) newline = op_repeat(g, newline, op_slice(g, rows, 1, 0, 1));
        else newline = op_reshape(g, newline, 2, (int64_t[]){1, C});
        rows = op_concat(g, (id[]){newline, rows}, 2, r.each);
    }
    id index = graph_input(g, "image_index", DT_I32, 2, (int64_t[]){B, T});
    if (!images_sum(m)) return op_replace_rows(g, x, index, rows);
    return add_sums(g, batch, op_replace_rows(g, x, index, 0), rows);
}

id images_merge(const struct model *m, struct graph *g, const struct batch *batch, id x, struct image_layers layers)
{
    return merge_volumes(m, g, batch, merge_images(m, g, batch, x, layers), layers);
}

void images_build(const struct model *m, struct graph *g, const struct batch *batch, const char *decoder,
                  struct image_layers layers)
{
    const struct model *text = model_part(m, decoder);
    if (images_encode(m, g, batch, layers)) return;
    id ids = decoder_ids(g, batch), labels = decoder_labels(g, batch);
    struct token_rows rows = decoder_rows(g, batch);
    const bool any = m->images->both == BOTH_PROMPT ? !program_is(g->at.program, PROGRAM_SINGLE)
                                                    : has_images(m, g, batch);
    if (m->images->both && any) {
        const int64_t dim[] = {batch->B, batch->T, 2};
        if (!rows.ranges) rows.ranges = graph_input(g, "ranges", DT_I32, 3, dim);
        if (m->images->window) rows.windows = graph_input(g, "token_windows", DT_I32, 3, dim);
    }
    id x = images_merge(m, g, batch, decoder_embed(text, g, decoder, ids), layers);
    decoder_outputs(text, g, decoder, batch, decoder_states(text, g, decoder, x, rows), labels);
}

/* ---- Normalisation ----
 *
 * the normalisation of image values before a model (see model.h).
 *
 * It is read only here, so that training, evaluation, stored embeddings and `predict` agree.
 */

enum { JSON_MOST = 1 << 20 };

static int read_three(const struct value *map, const char *key, double out[3], struct error *e)
{
    const struct value *list = value_get(map, key);
    if (!list || list->kind == VALUE_NULL) return PL_OK;
    if (value_as_list(list, key, e)) return e->code;
    if (list->count != 3) return error_set(e, PL_USAGE, "%s has %u numbers, expected 3", key, list->count);
    for (uint32_t i = 0; i < 3; i++)
        if (value_as_number(value_at(list, i), key, &out[i], e)) return e->code;
    return PL_OK;
}

static int read_norm(struct pixel_norm *n, const struct value *map, struct error *e)
{
    bool scale = true, normalise = true;
    TRY(value_opt_bool(map, "do_rescale", &scale, e));
    TRY(value_opt_bool(map, "do_normalize", &normalise, e));
    TRY(value_opt_number(map, "rescale_factor", &n->scale, e));
    TRY(read_three(map, "image_mean", n->mean, e));
    TRY(read_three(map, "image_std", n->std, e));
    if (!scale) n->scale = 1;
    if (!(n->scale > 0)) return error_set(e, PL_USAGE, "rescale_factor is %g, it must be above 0", n->scale);
    for (int k = 0; k < 3; k++) {
        if (!normalise) n->mean[k] = 0, n->std[k] = 1;
        if (!(n->std[k] > 0)) return error_set(e, PL_USAGE, "image_std is %g, it must be above 0", n->std[k]);
    }
    return PL_OK;
}

int pixel_norm_read(struct pixel_norm *n, const char *folder, struct error *e)
{
    *n = (struct pixel_norm){1.0 / 255, {0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}};
    if (!*folder) return PL_OK;
    struct bump memory = {0};
    char path[1100];
    int rc = PL_OK;
    for (int nested = 0; nested < 2; nested++) {
        struct value *root;
        snprintf(path, sizeof path, "%s/%s", folder, nested ? "processor_config.json" : "preprocessor_config.json");
        if (!file_exists(path)) continue;
        rc = json_read_file(path, JSON_MOST, &memory, &root, e);
        if (!rc && read_norm(n, nested ? value_get(root, "image_processor") : root, e))
            rc = error_prepend(e, "%s", path);
        break;
    }
    bump_free(&memory);
    return rc;
}
