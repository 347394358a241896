/*
 * added_media.c: images and videos that are added to the rows of a run that is planned (feed.h).
 */
#include "batch/feed.h"

#include "batch/model_images.h"
#include "models/image_grid.h"
#include "models/images.h"

/* tokens of an image or frame in the sequence of a model that takes text only: a 24 x 24 grid */
enum { IMAGE_TOKENS = 576 };

/* tokens of a frame's time, and around its image, where videos are described
 * (text/template/chat_images.h) */
enum { FRAME_TEXT = 16 };

/* Makes room for images and frames in a row of a model that takes images; finds their tokens. */
static int plan_images(struct config *c, const struct model *m, const struct added_media *x, int64_t *tokens,
                       struct error *e)
{
    int64_t frame;
    if (x->images || c->data_max_images < 0) c->data_max_images = x->images;
    if (x->frames) c->data_max_frames = x->frames;
    TRY(images_frame_tokens(m, c->data_tokens_per_frame, &frame, e));
    *tokens = x->images * m->images->features + x->frames * (frame + (m->images->timed ? FRAME_TEXT : 0));
    return PL_OK;
}

/* Does the same for a model whose images are tiles with a map, by their size; of several images
 * LLaVA-OneVision takes only the wholes. The frames are one video. */
static int plan_tiles(struct config *c, const struct model *m, const struct added_media *x, int64_t *tokens,
                      struct error *e)
{
    const struct anyres *a = images_tiles(m);
    const struct anyres_shape whole = {0}, video = {.frames = (int32_t)x->frames},
                              shape = images_sum(m) && x->images > 1 ? whole
                                                             : anyres_shape_of(a, x->width, x->height);
    if (x->frames && !a->pooled)
        return error_set(e, PL_USAGE, "--frames: a %s takes no videos", m->family->model_type);
    if (x->images || c->data_max_images < 0) c->data_max_images = x->images * anyres_images(shape);
    if (x->frames) c->data_max_frames = x->frames;
    *tokens = x->images * anyres_tokens(a, shape) + (x->frames ? anyres_tokens(a, video) : 0);
    return PL_OK;
}

/* Does the same for patches of a model that takes images of any size; the frames are one video. */
static int plan_patches(struct config *c, const struct model *m, const struct added_media *x, int64_t *tokens,
                        struct error *e)
{
    const struct grid_model *g = images_grids(m);
    const struct patch_overrides sizes = {.min_pixels = (uint64_t)c->data_min_pixels,
                                          .max_pixels = (uint64_t)c->data_max_pixels};
    struct patch_rules p;
    struct patch_grid grid;
    TRY(model_images_patches(&p, m, false, &sizes, e));
    TRY(patch_grid_image(&p, x->width, x->height, &grid, e));
    if (g->tokens) {
        c->data_max_images = x->images;
        c->data_max_frames = x->frames; /* which the model refuses */
        if (!c->data_max_pixels) c->data_max_pixels = (int64_t)(grid.h * grid.w * p.patch * p.patch);
        *tokens = x->images * (g->tokens + 2);
        return PL_OK;
    }
    int64_t features = x->images * (int64_t)patch_grid_tokens(&p, &grid);
    *tokens = features + 2 * x->images; /* <|vision_start|>, <|vision_end|> */
    if (x->frames) {
        TRY(model_images_patches(&p, m, true, NULL, e));
        TRY(patch_grid_video(&p, (uint32_t)x->frames, x->width, x->height, &grid, e));
        features += (int64_t)patch_grid_tokens(&p, &grid);
        *tokens += (int64_t)patch_grid_tokens(&p, &grid) + 2 + (g->apart ? grid.t * FRAME_TEXT : 0);
        c->data_max_frames = x->frames;
    }
    c->data_max_patches = features * g->merge * g->merge;
    return PL_OK;
}

int batch_add_media(struct config *c, const struct added_media *x, struct error *e)
{
    struct model m;
    int64_t tokens = IMAGE_TOKENS * (x->images + x->frames);
    const bool named = c->model_path || c->model_preset;
    int rc = PL_OK;
    if (!(x->images + x->frames) || !config_tokens(c))
        return x->sized ? error_set(e, PL_USAGE, "--image-size is given without --images or --frames") : PL_OK;
    if (named && config_open_model(c, &m, e)) return e->code;
    if (x->sized && !(named && (images_grids(&m) || images_tiles(&m))))
        rc = error_set(e, PL_USAGE, "--image-size is for models whose images have tokens by their size, such as "
                       "qwen2_vl and llava_onevision");
    else if (named && m.images)
        rc = (images_grids(&m) ? plan_patches : images_tiles(&m) ? plan_tiles : plan_images)(c, &m, x, &tokens, e);
    if (named) model_close(&m);
    c->data_sequence += tokens;
    return rc;
}
