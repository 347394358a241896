/*
 * trial.c: see trial.h.
 */
#include "compare/trial.h"

#include "batch/feed.h"
#include "calibrate/calibrate.h"
#include "cost/links.h"
#include "data/images/image_source.h"
#include "models/image_grid.h"

/* tokens of an image or frame in the sequence of a model that takes text only: a 24 x 24 grid */
enum { IMAGE_TOKENS = 576 };

/* tokens of a frame's time, and around its image, where videos are described
 * (text/template/chat_images.h) */
enum { FRAME_TEXT = 16 };

/* --- images and frames ------------------------------------------------------------------------ */

/* Makes room for images and frames in a row of a model that takes images; finds their tokens. */
static int plan_images(struct config *c, const struct model *m, const struct plan_source *x, int64_t *tokens,
                       struct error *e)
{
    int64_t frame;
    if (x->images || c->data_max_images < 0) c->data_max_images = x->images;
    if (x->frames) c->data_max_frames = x->frames;
    TRY(images_frame_tokens(m, c->data_tokens_per_frame, &frame, e));
    *tokens = x->images * images_features(m) + x->frames * (frame + (images_timed(m) ? FRAME_TEXT : 0));
    return PL_OK;
}

/* Does the same for a model whose images are tiles with a map, by their size; of several images
 * LLaVA-OneVision takes only the wholes. The frames are one video. */
static int plan_tiles(struct config *c, const struct model *m, const struct plan_source *x, int64_t *tokens,
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
static int plan_patches(struct config *c, const struct model *m, const struct plan_source *x, int64_t *tokens,
                        struct error *e)
{
    const struct grid_model *g = images_grids(m);
    const struct patch_overrides sizes = {.min_pixels = (uint64_t)c->data_min_pixels,
                                          .max_pixels = (uint64_t)c->data_max_pixels};
    struct patch_rules p;
    struct patch_grid grid;
    TRY(image_source_patches(&p, m, false, &sizes, e));
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
        TRY(image_source_patches(&p, m, true, NULL, e));
        TRY(patch_grid_video(&p, (uint32_t)x->frames, x->width, x->height, &grid, e));
        features += (int64_t)patch_grid_tokens(&p, &grid);
        *tokens += (int64_t)patch_grid_tokens(&p, &grid) + 2 + (g->apart ? grid.t * FRAME_TEXT : 0);
        c->data_max_frames = x->frames;
    }
    c->data_max_patches = features * g->merge * g->merge;
    return PL_OK;
}

/* Adds images and frames to the sequence. A model that takes images plans these: their tokens, and
 * its tower. */
static int add_images(struct config *c, const struct plan_source *x, struct error *e)
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
    else if (named && model_takes_images(&m))
        rc = (images_grids(&m) ? plan_patches : images_tiles(&m) ? plan_tiles : plan_images)(c, &m, x, &tokens, e);
    if (named) model_close(&m);
    c->data_sequence += tokens;
    return rc;
}

int plan_source_read(const struct plan_source *s, struct config *c, struct error *e)
{
    int rc = s->read(s->of, c, e);
    if (rc) return rc;
    if ((s->images > 1 || s->frames) && !config_tokens(c))
        rc = error_set(e, PL_USAGE,
                       "--images and --frames are for language models; with this data.format a sample is one image");
    if (!rc && s->masks) c->data_max_masks = s->masks;
    if (!rc) rc = add_images(c, s, e);
    if (rc) config_free(c);
    return rc;
}

/* --- rows ------------------------------------------------------------------------------------- */

/* Plans again within the host memory that a machine with such a GPU is likely to have, where the
 * plan takes more of it and nothing is known of the machine. If nothing fits that, the plan
 * stays. */
static int prefer_likely_host(struct plan_trial *p, uint64_t likely, struct error *e)
{
    struct planned *r = &p->run;
    if (r->host_budget || !r->has_space || r->plan.placement.arena[SPACE_HOST] <= likely) return PL_OK;
    const int rc = planned_with_host(r, likely, e);
    return rc == PL_NOFIT ? planned_with_host(r, 0, e) : rc;
}

int plan_trial_open(struct plan_trial *p, const struct plan_source *s, const struct plan_change *x, struct error *e)
{
    TRY(plan_source_read(s, &p->config, e));
    struct config *c = &p->config;
    int rc = PL_OK;
    for (size_t i = 0; i < x->n && !rc; i++) rc = config_set(c, x->sets[i], e);
    if (x->ranks) c->parallel_ranks = x->ranks;
    if (x->ranks && c->parallel_per_host > x->ranks) c->parallel_per_host = x->ranks;
    if (!rc) rc = config_check(c, CONFIG_NEEDS_MODEL, e);
    if (!rc) {
        if (!x->budget)
            c->memory_budget = x->gpu ? (struct config_budget){BUDGET_BYTES, planned_gpu_budget(x->gpu)}
                                      : (struct config_budget){BUDGET_NONE, 0};
        if (x->host) c->memory_host_budget = (struct config_budget){BUDGET_BYTES, x->host};
        const struct run_options options = {.train = true, .describe = feed_describe, .probe = true,
                                            .fitting = x->fitting, .unsized = true, .several = !x->ranks,
                                            .gpu_memory = x->gpu};
        p->rc = rc = planned_open(&p->run, c, &options, e);
        if (!rc && x->gpu && !x->plain) rc = prefer_likely_host(p, offload_likely(x->gpu), e);
        if (rc == PL_NOFIT && x->gpu && !x->plain) planned_find_remedies(&p->run, &options);
        if (!rc || (rc == PL_NOFIT && (!x->ranks || p->run.has_graph))) return PL_OK;
        planned_close(&p->run);
    }
    config_free(c);
    return rc;
}

void plan_trial_close(struct plan_trial *p)
{
    planned_close(&p->run);
    config_free(&p->config);
}

void plan_row_fill(struct plan_row *row, const struct plan_trial *p)
{
    const struct planned *r = &p->run;
    row->fits = !p->rc;
    row->budget = r->budget;
    row->arena = p->rc ? r->plan.smallest : plan_arena(&r->plan);
    row->host = r->plan.placement.arena[SPACE_HOST];
    row->host_budget = p->rc && planned_exceeds_host(r) ? r->host_budget : 0;
    row->factor = row->ranks ? 0 : time_factor(r);
    row->seconds = r->plan.seconds * (row->ranks ? 1 : time_scale(r));
    row->effective = r->effective_batch;
    row->least = planned_least_micro_batch(r);
    row->settings = r->plan.settings;
    row->measured = r->profile.measured != NULL;
    row->processor = r->kind != DEVICE_CUDA;
    snprintf(row->profile, sizeof row->profile, "%s", r->profile.name);
    memcpy(row->warning, r->warning, sizeof row->warning);
    row->n_warnings = r->n_warnings;
    memcpy(row->remedy, r->remedy, sizeof row->remedy);
    row->n_remedies = r->n_remedies;
    if (!row->ranks) return;
    struct text links = {0};
    row->per_host = r->profile.per_host ? r->profile.per_host : row->ranks;
    row->sends = plan_communication(&r->plan, &r->graph, &r->profile);
    links_print(&r->profile, &links);
    snprintf(row->links, sizeof row->links, "%s", links.n ? links.at : "");
    text_free(&links);
}

int plan_row_make(const struct plan_source *s, const struct plan_change *x, struct plan_row *row, struct error *e)
{
    struct plan_trial p;
    TRY(plan_trial_open(&p, s, x, e));
    row->ranks = (int)x->ranks;
    plan_row_fill(row, &p);
    plan_trial_close(&p);
    return PL_OK;
}
