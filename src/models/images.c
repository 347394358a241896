/*
 * images.c: see images.h.
 */
#include "models/images.h"

#include "models/parts.h"

int images_describe(struct model *m, const struct model *tower, int64_t features, int64_t token, enum image_layout layout, struct error *e)
{
    const struct tower_sizes s = tower_sizes(tower);
    if (features < 1) return error_set(e, PL_USAGE, "the vision tower gives %lld tokens, and none is left for the text model", (long long)s.tokens);
    if (token < INT32_MIN || token > INT32_MAX) return error_set(e, PL_USAGE, "the image token is %lld, expected an id", (long long)token);
    const bool padded = layout == IMAGE_AS_TILES;
    m->image = s.image;
    m->images = bump_alloc(&m->memory, sizeof *m->images);
    *m->images = (struct image_model){.token = (int32_t)token, .features = features, .channels = s.channels, .layout = layout, .tower = tower->family->model_type, .padded = padded};
    model_add_port(m, &(struct port){"pixel_values", VALUES_REAL, 4, {OPEN_IMAGES, s.channels, s.image, s.image}, true});
    if (padded) model_add_port(m, &(struct port){"pixel_attention_mask", VALUES_PADDING, 4, {OPEN('B'), OPEN('M'), s.image, s.image}, true});
    return PL_OK;
}

/* Images in all, or with *each those of a sample. */
static int64_t count_images(const struct batch *batch, bool *each)
{
    const struct image_batch *own = batch->own;
    *each = !batch->size;
    if (batch->size) return batch->size['N'];
    return own ? own->images : batch->cache ? 0 : 1;
}

id images_merge(const struct model *m, struct graph *g, const struct batch *batch, id x, image_features *features)
{
    const int64_t B = batch->B, T = batch->T;
    bool each;
    const int64_t n = count_images(batch, &each), all = each ? B * n : n;
    /* Without images the features of one are built all the same, for their parameters. Nothing reads them, so
     * that they are never computed. */
    const int64_t dim[] = {all ? all : 1, m->images->channels, m->image, m->image};
    id pixels = graph_input_along(g, n ? "pixel_values" : "no_pixel_values", DT_F32, 4, dim, each && n ? 0 : INPUT_SHARED);
    id rows = features(m, g, pixels);
    const bool answer = program_is(g->at.program, PROGRAM_SINGLE); /* tokens that were generated: the images are before them */
    if (!rows || !x || !n || answer) return rows ? x : 0;
    const int64_t C = tensor_last(tensor_at(g, x)), R = n * m->images->features;
    rows = op_reshape(g, rows, each ? 3 : 2, each ? (int64_t[]){B, R, C} : (int64_t[]){R, C});
    return op_replace_rows(g, x, graph_input(g, "image_index", DT_I32, 2, (int64_t[]){B, T}), rows);
}

void image_index(const struct model *m, int32_t *ids, int64_t T, int64_t *next, int32_t *index)
{
    const int32_t token = m->images->token;
    for (int64_t t = 0; t < T; t++) {
        index[t] = ids[t] == token ? (int32_t)(*next)++ : -1;
        if (index[t] >= 0 && (token < 0 || token >= m->vocabulary)) ids[t] = 0;
    }
}
