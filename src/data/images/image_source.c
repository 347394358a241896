/*
 * image_source.c: see image_source.h.
 */
#include "data/images/image_source.h"

#include "data/formats/packed.h"
#include "data/images/image.h"
#include "models/image_grid.h"

/* --- opening ---------------------------------------------------------------------------------- */

static enum image_family family_of(const struct model *m)
{
    return m->images->layout == IMAGE_AS_TILES  ? IMAGES_IDEFICS3
           : strstr(m->images->tower, "siglip") ? IMAGES_SIGLIP
                                                : IMAGES_CLIP;
}

int image_source_processor(struct image_processor *p, const struct model *m, struct error *e)
{
    if (*m->path) return image_processor_read(p, m->path, family_of(m), (uint32_t)m->image, e);
    image_processor_default(p, family_of(m), (uint32_t)m->image);
    return PL_OK;
}

int image_source_patches(struct patch_rules *p, const struct model *m, uint64_t min_pixels, uint64_t max_pixels,
                         struct error *e)
{
    const struct grid_model *g = m->images->grids;
    const struct patch_overrides o = {.min_pixels = min_pixels, .max_pixels = max_pixels};
    const enum patch_family family = g->apart ? PATCHES_QWEN3_VL : PATCHES_QWEN2_VL;
    TRY(patch_rules_read(p, m->path, family, false, &o, e));
    if (p->patch == g->patch && p->temporal == g->temporal && p->merge == g->merge) return PL_OK;
    return error_set(e, PL_USAGE,
                     "%s: the image processor makes patches of %u pixels and %u frames, of which %u x %u are a token; "
                     "vision_config has patch_size %lld, temporal_patch_size %lld and spatial_merge_size %lld", m->path,
                     p->patch, p->temporal, p->merge, p->merge, (long long)g->patch, (long long)g->temporal,
                     (long long)g->merge);
}

int image_source_frame_processor(struct image_processor *p, const struct model *m, struct error *e)
{
    if (*m->path) return image_processor_read_frames(p, m->path, family_of(m), (uint32_t)m->image, e);
    image_processor_default(p, family_of(m), (uint32_t)m->image);
    p->split = false;
    return PL_OK;
}

int image_source_open(struct image_source *s, const struct model *m, const struct tokenizer *t,
                      const struct template *template, const struct image_scope *scope, struct error *e)
{
    const struct image_model *x = m->images;
    *s = (struct image_source){.room = scope->room, .anywhere = scope->anywhere, .text = {.layout = x->layout,
                                        .token = x->token, .features = image_own_tokens(x) ? 1 : (uint32_t)x->features,
                                        .any_size = image_own_tokens(x), .start_end = x->start_end, .timed = x->timed}};
    int rc = t ? image_text_open(&s->text, t, template, e) : PL_OK;
    if (!rc)
        rc = x->grids ? image_source_patches(&s->patches, m, scope->min_pixels, scope->max_pixels, e)
                      : image_source_processor(&s->processor, m, e);
    if (!rc) rc = image_files_open(&s->files, scope, e);
    return rc;
}

/* Reports whether a model takes videos at all. */
static bool takes_videos(const struct image_text *x)
{
    return !x->any_size && (x->layout != IMAGE_AS_TILES || x->timed);
}

int image_source_take_videos(struct image_source *s, const struct model *m, const struct video_options *o,
                             int64_t tokens, bool own, struct error *e)
{
    int64_t features;
    if (m->images->grids || !takes_videos(&s->text))
        return error_set(e, PL_USAGE,
                         "data.max_frames is %u, and %s takes no videos: set it to 0, and give frames as images",
                         o->max_frames, m->family->model_type);
    if (images_frame_tokens(m, tokens, &features, e) || image_source_frame_processor(&s->frame_processor, m, e))
        return e->code;
    if (s->text.timed && !own && template_open(&s->video_template, NULL, "smolvlm", NULL, e)) return e->code;
    s->text.video_template = s->video_template;
    s->videos = *o;
    s->text.frame_features = (uint32_t)features;
    return PL_OK;
}

void image_source_close(struct image_source *s)
{
    if (s->files) image_files_close(s->files);
    template_close(s->video_template);
    *s = (struct image_source){0};
}

uint64_t image_source_fingerprint(const struct image_source *s)
{
    const struct image_processor *p = &s->processor;
    const uint32_t tiles[] = {p->tile, p->split, p->resize, p->longest_edge, p->height, p->width};
    uint64_t hash = image_text_fingerprint(&s->text) + s->anywhere;
    if (s->text.layout == IMAGE_AS_TILES) hash = hash_bytes(tiles, sizeof tiles, hash);
    if (s->text.any_size) hash = hash ^ patch_rules_hash(&s->patches);
    if (s->videos.max_frames) {
        hash = hash_bytes(&s->videos.fps, sizeof s->videos.fps, hash);
        hash = hash_bytes((const uint32_t[]){s->videos.max_frames, s->text.frame_features}, 2 * sizeof(uint32_t), hash);
    }
    /* 1: the wording of chat_images.c */
    if (s->videos.max_frames && s->text.timed)
        hash = hash_bytes((const uint32_t[]){1, s->video_template != NULL}, 2 * sizeof(uint32_t), hash);
    return hash;
}

/* --- videos ----------------------------------------------------------------------------------- */

/* Scans a video: with `b` also for the times of its frames. */
static int scan_video(const struct image_source *s, const char *reference, struct bump *b, struct video_times *out,
                      struct error *e)
{
    struct video_at v;
    if (!takes_videos(&s->text))
        return error_set(e, PL_USAGE, "%.100s: the model takes no videos: give frames as images", reference);
    if (!s->videos.max_frames)
        return error_set(e, PL_USAGE,
                         "%.100s: a video is given: set data.max_frames, and data.fps and data.tokens_per_frame if "
                         "they were set in training", reference);
    TRY(image_files_video(s->files, reference, &v, e));
    int rc = b ? video_time(&v, &s->videos, b, out, e) : video_scan(&v, &s->videos, &out->frames, e);
    video_at_free(&v);
    return rc;
}

static int take_none(void *user, const float *values, uint32_t count, struct error *e)
{
    (void)user, (void)values, (void)count, (void)e;
    return PL_OK;
}

/* Reads a video. Frames have the pixel values that the loader of training gives them. */
static int read_video(const struct image_source *s, const char *reference, image_take *take, void *user,
                      struct image_pixels *out, struct error *e)
{
    enum { LISTS = 1 << 20 }; /* of frames and their files */
    const struct image_reader_options o = {.processor = s->processor, .frame_processor = s->frame_processor,
                                           .range = s->videos.image.range, .room = s->videos.room, .fps = s->videos.fps,
                                           .max_frames = s->videos.max_frames};
    const uint64_t frame = image_reader_floats(&o) * sizeof(float);
    struct video_times times;
    uint32_t replaced;
    if (scan_video(s, reference, NULL, &times, e)) return e->code;
    out->count = times.frames;
    void *room = mem_alloc(image_reader_bytes(&o));
    struct image_reader *r = image_reader_new(&o, room);
    const struct frames_to to = {mem_alloc(frame), take ? take : take_none, user};
    const enum data_fault fault = image_reader_video(r, s->files, reference, out->count, &to, &replaced, e);
    out->used = image_reader_bytes(&o) + frame + LISTS;
    mem_free(to.values);
    image_reader_free(r);
    mem_free(room);
    if (fault && e->code != PL_FAIL) e->code = PL_USAGE;
    return fault ? e->code : PL_OK;
}

/* --- images ----------------------------------------------------------------------------------- */

static int too_large(const struct image_source *s, const char *reference, uint64_t bytes, struct error *e)
{
    error_set(e, PL_USAGE, "the image takes %llu MiB; expected at most %llu (data.sample_memory)",
              (unsigned long long)(bytes >> 20) + 1, (unsigned long long)(s->room >> 20));
    return error_prepend(e, "%.100s", reference);
}

/* Reads the file of an image, and how large the image is. The caller frees *file; after a failure
 * it is NULL. */
static int read_file(const struct image_source *s, const char *reference, char **file, size_t *n, uint32_t *width,
                     uint32_t *height, struct error *e)
{
    const struct image_options o = {.on_white = true};
    uint64_t bytes;
    size_t pixels = 0;
    *file = NULL;
    if (image_files_find(s->files, reference, &bytes, e)) return e->code;
    if (bytes > s->room) return too_large(s, reference, bytes, e);
    *file = mem_alloc(bytes + 1);
    int rc = image_files_read(s->files, reference, *file, bytes, n, e);
    if (!rc && image_peek(*file, *n, &o, width, height, &pixels, e)) rc = error_prepend(e, "%.100s", reference);
    if (!rc && !s->patches.merge) {
        const uint64_t all = bytes + pixels + image_processor_scratch(&s->processor, *width, *height);
        if (all > s->room) rc = too_large(s, reference, all, e);
    }
    if (rc) mem_free(*file), *file = NULL;
    return rc;
}

/* Decodes an image. */
static int read_rgb(const struct image_source *s, const char *reference, struct image *out, size_t *bytes,
                    struct error *e)
{
    uint32_t width, height;
    char *file;
    if (read_file(s, reference, &file, bytes, &width, &height, e)) return e->code;
    int rc = image_decode(out, file, *bytes, &(struct image_options){.on_white = true}, NULL, 0, e);
    mem_free(file);
    return rc ? error_prepend(e, "%.100s", reference) : PL_OK;
}

/* Reads the patches of an image of any size. */
static int read_any_size(const struct image_source *s, const char *reference, image_take *take, void *user,
                         struct image_pixels *out, struct error *e)
{
    const struct patch_rules *p = &s->patches;
    struct image image = {0};
    struct patch_grid grid;
    size_t bytes = 0;
    if (media_is_video(reference)) return scan_video(s, reference, NULL, NULL, e);
    TRY(read_rgb(s, reference, &image, &bytes, e));
    int rc = patch_grid_image(p, image.width, image.height, &grid, e);
    const uint64_t scratch = rc ? 0 : patch_scratch(p, &grid, image.width, image.height),
                   size = rc ? 0 : patch_grid_patches(&grid) * patch_floats(p) * sizeof(float);
    if (!rc && (scratch > s->room || size > s->room)) rc = too_large(s, reference, scratch > size ? scratch : size, e);
    if (!rc) {
        void *work = mem_alloc(scratch + 1);
        float *values = mem_alloc(size);
        patch_image(p, &grid, image.rgb, image.width, image.height, work, scratch, values);
        *out = (struct image_pixels){(uint32_t)patch_grid_patches(&grid), grid,
                                     bytes + 8ull * image.width * image.height + scratch + size};
        rc = take ? take(user, values, out->count, e) : PL_OK;
        mem_free(values);
        mem_free(work);
    }
    mem_free(image.rgb);
    return rc;
}

int image_source_read(const struct image_source *s, const char *reference, image_take *take, void *user,
                      struct image_pixels *out, struct error *e)
{
    const struct image_processor *p = &s->processor;
    struct image image = {0};
    size_t bytes = 0;
    uint32_t height, width, rows, columns;
    *out = (struct image_pixels){0};
    if (s->patches.merge) return read_any_size(s, reference, take, user, out, e);
    if (media_is_video(reference)) return read_video(s, reference, take, user, out, e);
    if (read_rgb(s, reference, &image, &bytes, e)) return e->code;
    const size_t scratch = image_processor_scratch(p, image.width, image.height);
    void *work = mem_alloc(scratch + 1);
    image_processor_size(p, &height, &width);
    out->count = image_processor_count(p, image.width, image.height, &rows, &columns);
    const uint64_t size = (uint64_t)out->count * 3 * height * width * sizeof(float);
    float *values = mem_alloc(size);
    out->used = bytes + 8ull * image.width * image.height + scratch + size;
    image_processor_run(p, image.rgb, image.width, image.height, work, scratch, values);
    int rc = take ? take(user, values, out->count, e) : PL_OK;
    mem_free(values);
    mem_free(work);
    mem_free(image.rgb);
    return rc;
}

/* --- tiles ------------------------------------------------------------------------------------ */

/* Finds the tiles that were found when the store was made. */
static int stored_tiles(const struct image_source *s, const char *reference, struct image_tiles *out, struct error *e)
{
    struct packed_output x;
    if (s->text.layout != IMAGE_AS_TILES && !media_is_video(reference)) return PL_OK;
    if (s->text.timed && media_is_video(reference))
        return error_set(e, PL_USAGE,
            "%.100s: the text names the times of a video's frames, which a store of embeddings does not have",
            reference);
    if (image_files_output(s->files, reference, &x, e)) return e->code;
    *out =
        (struct image_tiles){.rows = x.rows, .columns = x.columns, .frames = media_is_video(reference) ? x.count : 0};
    return PL_OK;
}

static int describe_video(const struct image_source *s, const char *reference, struct bump *b, struct image_tiles *out,
                          struct error *e)
{
    struct video_times t = {0};
    if (scan_video(s, reference, s->text.timed ? b : NULL, &t, e)) return e->code;
    *out = (struct image_tiles){.frames = t.frames, .seconds = t.seconds, .duration = t.duration};
    return PL_OK;
}

/* Counts the tokens of an image of any size. */
static int count_tokens(const struct image_source *s, const char *reference, uint32_t width, uint32_t height,
                        struct image_tiles *out, struct error *e)
{
    struct patch_grid grid;
    if (patch_grid_image(&s->patches, width, height, &grid, e)) return error_prepend(e, "%.100s", reference);
    out->tokens = (uint32_t)patch_grid_tokens(&s->patches, &grid);
    return PL_OK;
}

int image_source_tiles(const struct image_source *s, const char *reference, struct bump *b, struct image_tiles *out,
                       struct error *e)
{
    uint32_t width, height;
    size_t n = 0;
    char *file;
    *out = (struct image_tiles){0};
    if (image_files_store(s->files)) return stored_tiles(s, reference, out, e);
    if (media_is_video(reference)) return describe_video(s, reference, b, out, e);
    if (s->text.layout != IMAGE_AS_TILES && !s->text.any_size) return PL_OK;
    if (read_file(s, reference, &file, &n, &width, &height, e)) return e->code;
    mem_free(file);
    if (s->text.any_size) return count_tokens(s, reference, width, height, out, e);
    image_processor_count(&s->processor, width, height, &out->rows, &out->columns);
    return PL_OK;
}
