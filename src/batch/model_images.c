/*
 * model_images.c: see model_images.h.
 */
#include "batch/model_images.h"

#include "data/images/processor_file.h"
#include "models/allocator.h"
#include "models/images.h"

static enum image_family family_of(const struct model *m)
{
    return m->images->layout == IMAGE_AS_TILES  ? IMAGES_IDEFICS3
           : m->images->layout == IMAGE_AS_CROPS ? IMAGES_INTERNVL
           : images_sum(m)              ? IMAGES_ONEVISION
           : m->images->layout == IMAGE_AS_ANYRES ? IMAGES_ANYRES
           : m->images->bilinear                ? IMAGES_GEMMA3
           : strstr(m->images->tower, "siglip") ? IMAGES_SIGLIP
                                                : IMAGES_CLIP;
}

int model_images_processor(struct image_processor *p, const struct model *m, struct error *e)
{
    if (*m->path) return image_processor_read(p, m->path, family_of(m), (uint32_t)m->image, e);
    image_processor_default(p, family_of(m), (uint32_t)m->image);
    return PL_OK;
}

int model_images_patches(struct patch_rules *p, const struct model *m, bool videos, const struct patch_overrides *o,
                         struct error *e)
{
    const struct grid_model *g = m->images->grids;
    const enum patch_family family = g->apart ? PATCHES_QWEN3_VL : PATCHES_QWEN2_VL;
    TRY(patch_rules_read(p, m->path, family, videos, o, e));
    const uint64_t least = (uint64_t)allocator_least_pixels(g);
    if (p->min_pixels < least && !(o && o->min_pixels)) p->min_pixels = least;
    if (p->max_pixels < p->min_pixels)
        return error_set(e, PL_USAGE, "max_pixels is %llu, and num_visual_tokens %lld needs images of at least %llu",
                         (unsigned long long)p->max_pixels, (long long)g->tokens, (unsigned long long)least);
    if (p->patch == g->patch && p->temporal == g->temporal && p->merge == g->merge) return PL_OK;
    return error_set(e, PL_USAGE,
                     "%s: the %s processor makes patches of %u pixels and %u frames, of which %u x %u are a token; "
                     "vision_config has patch_size %lld, temporal_patch_size %lld and spatial_merge_size %lld", m->path,
                     videos ? "video" : "image", p->patch, p->temporal, p->merge, p->merge, (long long)g->patch,
                     (long long)g->temporal, (long long)g->merge);
}

int model_images_frame_processor(struct image_processor *p, const struct model *m, struct error *e)
{
    if (*m->path) return image_processor_read_frames(p, m->path, family_of(m), (uint32_t)m->image, e);
    image_processor_default(p, family_of(m), (uint32_t)m->image);
    p->split = false;
    return PL_OK;
}

/* Checks what the processor of LLaVA-OneVision says in processor_config.json about tokens: the
 * model has as many. */
static int check_processor(const struct model *m, struct error *e)
{
    const struct anyres *a = m->images->anyres;
    struct bump b = {0};
    const struct value *v = NULL;
    const char *aspect = NULL, *strategy = "full";
    char expected[32];
    uint64_t tokens = 0;
    int rc = *m->path ? processor_file_read(m->path, "processor_config.json", &b, &v, e) : PL_OK;
    snprintf(expected, sizeof expected, "anyres_max_%d", a->most);
    if (!rc && v) rc = value_opt_uint(v, "num_image_tokens", &tokens, e);
    if (!rc && v) rc = value_opt_string(v, "vision_feature_select_strategy", &strategy, e);
    if (!rc && v) rc = value_opt_string(v, "vision_aspect_ratio", &aspect, e);
    if (!rc && aspect && strcmp(aspect, expected) != 0)
        rc = error_set(e, PL_USAGE, "vision_aspect_ratio is %.40s, and that of config.json is %s", aspect, expected);
    const uint64_t has = (uint64_t)m->images->features + !strcmp(strategy, "default"); /* with a class token */
    if (!rc && tokens && tokens != has)
        rc = error_set(e, PL_USAGE, "num_image_tokens is %llu, and the model's images have %llu",
                       (unsigned long long)tokens, (unsigned long long)has);
    if (rc) error_prepend(e, "%s/processor_config.json", m->path);
    bump_free(&b);
    return rc;
}

int model_images_open(struct image_source *s, const struct model *m, const struct tokenizer *t,
                      const struct template *template, const struct image_scope *scope, struct error *e)
{
    const struct image_model *x = m->images;
    const int32_t video = x->grids ? x->grids->video : images_sum(m) ? x->anyres->video : -1;
    *s = (struct image_source){.room = scope->room, .anywhere = scope->anywhere, .text = {.layout = x->layout,
                                        .token = x->token, .features = image_own_tokens(m) ? 1 : (uint32_t)x->features,
                                        .any_size = image_own_tokens(m), .video = video,
                                        .around = {x->around[0], x->around[1]}, .place = x->place,
                                        .bos_behind = x->bos_behind, .timed = x->timed}};
    s->modalities = x->modalities, s->volumes = scope->volumes, s->range = scope->range;
    if (x->anyres) s->text.anyres = *x->anyres;
    int rc = t ? image_text_open(&s->text, t, template, e) : PL_OK;
    if (!rc)
        rc = x->grids ? model_images_patches(&s->patches, m, false,
                                             &(struct patch_overrides){.min_pixels = scope->min_pixels,
                                                                       .max_pixels = scope->max_pixels}, e)
                      : model_images_processor(&s->processor, m, e);
    if (!rc && x->anyres && !anyres_equal(x->anyres, &s->processor.anyres))
        rc = error_set(e, PL_USAGE, "%s: image_grid_pinpoints of config.json are not those of the image processor",
                       m->path);
    if (!rc && images_sum(m)) rc = check_processor(m, e);
    if (!rc) rc = image_files_open(&s->files, scope, e);
    if (!rc && x->anyres && image_files_store(s->files))
        rc = error_set(e, PL_USAGE, "a store of embeddings does not have the sizes of images, on which the text of a "
                       "%s depends: set data.images to the images", m->family->model_type);
    return rc;
}

/* Takes videos of any size, with frames that the folder's video processor chooses. */
static int take_patch_videos(struct image_source *s, const struct model *m, const struct video_options *o,
                             int64_t tokens, struct error *e)
{
    const struct patch_overrides over = {.fps = o->fps, .max_frames = o->max_frames};
    if (!s->text.video_content)
        return error_set(e, PL_USAGE,
                         "the tokenizer lacks the video token: config.json has its id, %d (video_token_id)",
                         s->text.video);
    if (tokens)
        return error_set(
            e, PL_USAGE,
            "data.tokens_per_frame is %lld, and the size of a frame decides how many tokens it has in a %s: "
            "leave it out",
            (long long)tokens, m->family->model_type);
    s->videos = *o;
    return model_images_patches(&s->video_patches, m, true, &over, e);
}

int model_images_take_videos(struct image_source *s, const struct model *m, const struct video_options *o,
                             int64_t tokens, bool own, struct error *e)
{
    int64_t features;
    if ((images_grids(m) && images_grids(m)->tokens) || !image_text_takes_videos(&s->text))
        return error_set(e, PL_USAGE,
                         "data.max_frames is %u, and %s takes no videos: set it to 0, and give frames as images",
                         o->max_frames, m->family->model_type);
    if (s->text.any_size) return take_patch_videos(s, m, o, tokens, e);
    if (images_frame_tokens(m, tokens, &features, e) || model_images_frame_processor(&s->frame_processor, m, e))
        return e->code;
    if (s->text.timed && !own && template_open(&s->video_template, NULL, "smolvlm", NULL, e)) return e->code;
    s->text.video_template = s->video_template;
    s->videos = *o;
    s->text.frame_features = (uint32_t)features;
    return PL_OK;
}

/* --- the values of bytes ---------------------------------------------------------------------- */

enum { CHANNELS = 3 };
typedef float values[CHANNELS][256];

int model_images_table(struct pixel_table *out, const struct image_reader_options *o, const struct media *room,
                       struct bump *b, struct error *e)
{
    const bool apart = room->frames && !o->patches;
    values own, *each, frames;
    if (o->patches) patch_values(o->patches, own);
    else image_processor_values(&o->processor, own);
    if (o->patches && o->video_patches && o->video_patches->merge) patch_values(o->video_patches, frames);
    else if (apart) image_processor_values(&o->frame_processor, frames);
    else memcpy(frames, own, sizeof own);
    const bool differ = memcmp(own, frames, sizeof own) != 0;
    if (differ && o->patches)
        return error_set(e, PL_USAGE, "the processor of videos normalises pixels otherwise than that of images, and "
                                      "both share a sequence of patches: set data.max_frames to 0");
    const int64_t n = differ ? room->images + room->frames : 1; /* a table for each image and frame */
    each = bump_alloc(b, (size_t)n * sizeof *each);
    for (int64_t i = 0; i < n; i++) memcpy(each[i], differ && i >= room->images ? frames : own, sizeof own);
    *out = (struct pixel_table){n * CHANNELS, each[0]};
    return PL_OK;
}

int image_source_table(struct pixel_table *out, const struct image_source *s, const struct media *room, struct bump *b,
                       struct error *e)
{
    const bool any_size = s->patches.merge;
    return model_images_table(out,
                              &(struct image_reader_options){.processor = s->processor,
                                                             .frame_processor = s->frame_processor,
                                                             .patches = any_size ? &s->patches : NULL,
                                                             .video_patches = any_size ? &s->video_patches : NULL},
                              room, b, e);
}
