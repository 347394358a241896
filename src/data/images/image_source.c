/*
 * image_source.c: see image_source.h.
 */
#include "data/images/image_source.h"

#include "data/formats/packed.h"
#include "data/images/image.h"

/* --- opening ---------------------------------------------------------------------------------- */

struct image_processor image_source_normalisation(const struct patch_rules *p)
{
    struct image_processor x = {.rescale = p->rescale, .normalize = p->normalize, .factor = p->factor};
    memcpy(x.mean, p->mean, sizeof x.mean);
    memcpy(x.std, p->std, sizeof x.std);
    return x;
}

int64_t image_source_patches_per_token(const struct image_source *s)
{
    return s->text.any_size ? (int64_t)s->patches.merge * s->patches.merge : 0;
}

uint32_t image_source_images(char *const *references, uint32_t n)
{
    uint32_t images = 0;
    for (uint32_t i = 0; i < n; i++) images += !media_is_video(references[i]);
    return images;
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
    const uint32_t tiles[] = {p->tile,   p->split, p->resize,    p->longest_edge,
                              p->height, p->width, p->min_tiles, p->max_tiles};
    uint64_t hash = image_text_fingerprint(&s->text) + s->anywhere;
    if (image_is_tiled(s->text.layout)) hash = hash_bytes(tiles, sizeof tiles, hash);
    if (s->text.anyres.n) hash = hash_bytes(&s->text.anyres, sizeof s->text.anyres, hash);
    for (int i = 0; i < s->modalities.n; i++) {
        const struct modality *x = &s->modalities.at[i];
        hash = hash_bytes(x->name, strlen(x->name), hash ^ (uint64_t)x->tokens);
    }
    if (s->text.any_size) hash = hash ^ patch_rules_hash(&s->patches);
    if (s->videos.max_frames && s->frame_processor.frames.on) {
        const struct video_sampling *f = &s->frame_processor.frames;
        hash = hash_bytes(&f->fps, sizeof f->fps, hash_bytes(&f->frames, sizeof f->frames, hash));
    }
    if (s->text.any_size && s->videos.max_frames) hash += patch_rules_hash(&s->video_patches);
    else if (s->videos.max_frames) {
        hash = hash_bytes(&s->videos.fps, sizeof s->videos.fps, hash);
        hash = hash_bytes((const uint32_t[]){s->videos.max_frames, s->text.frame_features}, 2 * sizeof(uint32_t), hash);
    }
    /* 1: the wording of chat_images.c */
    if (s->videos.max_frames && s->text.timed)
        hash = hash_bytes((const uint32_t[]){1, s->video_template != NULL}, 2 * sizeof(uint32_t), hash);
    return hash;
}

/* --- videos ----------------------------------------------------------------------------------- */

/* Finds a video, which the caller frees. */
static int find_video(const struct image_source *s, const char *reference, struct video_at *v, struct error *e)
{
    if (!image_text_takes_videos(&s->text))
        return error_set(e, PL_USAGE, "%.100s: the model takes no videos: give frames as images", reference);
    if (!s->videos.max_frames)
        return error_set(e, PL_USAGE,
                         "%.100s: a video is given: set data.max_frames, and data.fps and data.tokens_per_frame if "
                         "they were set in training", reference);
    return image_files_video(s->files, reference, v, e);
}

/* Scans a video: with `b` also for the times of its frames. */
static int scan_video(const struct image_source *s, const char *reference, struct bump *b, struct video_times *out,
                      struct error *e)
{
    const struct video_sampling sampling =
        video_sampling_with(&s->frame_processor.frames, s->videos.fps, s->videos.max_frames);
    struct video_options o = s->videos;
    struct video_at v;
    if (sampling.on) o.choose = video_sample, o.chooser = &sampling;
    TRY(find_video(s, reference, &v, e));
    int rc = b ? video_time(&v, &o, b, out, e) : video_scan(&v, &o, &out->frames, e);
    video_at_free(&v);
    return rc;
}

static int take_none(void *user, const void *values, uint32_t count, struct error *e)
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
    const uint64_t frame = image_reader_size(&o);
    struct video_times times;
    uint32_t replaced;
    if (scan_video(s, reference, NULL, &times, e)) return e->code;
    out->count = times.frames;
    void *room = mem_alloc(image_reader_bytes(&o));
    struct image_reader *r = image_reader_new(&o, room);
    const struct frames_to to = {mem_alloc(frame), take ? take : take_none, user};
    const enum data_fault fault = image_reader_video(r, s->files, reference, out->count, &to, &replaced, e);
    out->used = image_reader_bytes(&o) + frame + LISTS;
    mem_free(to.pixels);
    image_reader_free(r);
    mem_free(room);
    if (fault && e->code != PL_FAIL) e->code = PL_USAGE;
    return fault ? e->code : PL_OK;
}

/* --- volumes ---------------------------------------------------------------------------------- */

static int read_volume(const struct image_source *s, const char *reference, image_take *take, void *user,
                       struct image_pixels *out, struct error *e)
{
    enum { LISTS = 1 << 20 }; /* of the files of a series */
    out->modality = media_modality(&s->modalities, reference, e);
    if (out->modality < 0) return e->code;
    const struct image_reader_options o = {.range = s->range, .room = s->room, .modalities = &s->modalities,
                                           .volumes = s->volumes};
    const uint64_t bytes = (uint64_t)modality_floats(&s->modalities.at[out->modality]) * sizeof(float);
    void *room = mem_alloc(image_reader_bytes(&o));
    float *values = mem_alloc(bytes);
    struct image_reader *r = image_reader_new(&o, room);
    const enum data_fault fault = image_reader_volume(r, s->files, reference, values, e);
    out->count = 1;
    out->used = image_reader_bytes(&o) + bytes + LISTS;
    if (fault && e->code != PL_FAIL) e->code = PL_USAGE;
    const int rc = fault ? e->code : take ? take(user, values, 1, e) : PL_OK;
    image_reader_free(r);
    mem_free(values);
    mem_free(room);
    return rc;
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

/* Finds the grid of a video of any size, and the times of its grids in `b`. */
static int scan_patches(const struct image_source *s, const char *reference, struct bump *b, struct patch_grid *grid,
                        const double **times, struct error *e)
{
    const struct patch_rules *p = &s->video_patches;
    struct video_options o = s->videos;
    struct video_at v;
    struct video_choice c;
    TRY(find_video(s, reference, &v, e));
    o.choose = patch_frames_choose, o.chooser = p;
    int rc = video_list(&v, &o, b, &c, e);
    if (!rc && patch_grid_video(p, c.n, c.facts.width, c.facts.height, grid, e))
        rc = error_prepend(e, "%.100s", reference);
    if (!rc && p->family == PATCHES_QWEN3_VL) {
        double *seconds = bump_alloc(b, grid->t * sizeof *seconds);
        patch_grid_seconds(p, &c.facts, c.chosen, c.n, seconds);
        *times = seconds;
    }
    video_at_free(&v);
    return rc;
}

/* Reads the patches of a video, as the loader of training does. */
static int read_patch_video(const struct image_source *s, const char *reference, image_take *take, void *user,
                            struct image_pixels *out, struct error *e)
{
    const struct image_reader_options o = {.patches = &s->patches, .video_patches = &s->video_patches,
                                           .range = s->videos.image.range, .room = s->videos.room};
    struct patch_grid grid;
    const double *times;
    struct bump b = {0};
    int rc = scan_patches(s, reference, &b, &grid, &times, e);
    bump_free(&b);
    TRY(rc);
    const uint64_t size = patch_grid_patches(&grid) * patch_bytes(&s->video_patches);
    if (size > s->room) return too_large(s, reference, size, e);
    struct patches_read x = {.to = mem_alloc(size), .tokens = patch_grid_tokens(&s->video_patches, &grid)};
    void *room = mem_alloc(image_reader_bytes(&o));
    struct image_reader *r = image_reader_new(&o, room);
    const enum data_fault fault = image_reader_video_patches(r, s->files, reference, &x, e);
    *out = (struct image_pixels){(uint32_t)patch_grid_patches(&grid), grid, true, x.seconds,
                                 image_reader_bytes(&o) + size, -1};
    image_reader_free(r);
    mem_free(room);
    if (fault && e->code != PL_FAIL) e->code = PL_USAGE;
    rc = fault ? e->code : take ? take(user, x.to, out->count, e) : PL_OK;
    mem_free(x.to);
    return rc;
}

/* Reads the patches of an image of any size. */
static int read_any_size(const struct image_source *s, const char *reference, image_take *take, void *user,
                         struct image_pixels *out, struct error *e)
{
    const struct patch_rules *p = &s->patches;
    struct image image = {0};
    struct patch_grid grid;
    size_t bytes = 0;
    if (media_is_video(reference)) return read_patch_video(s, reference, take, user, out, e);
    TRY(read_rgb(s, reference, &image, &bytes, e));
    int rc = patch_grid_image(p, image.width, image.height, &grid, e);
    const uint64_t scratch = rc ? 0 : patch_scratch(p, &grid, image.width, image.height),
                   size = rc ? 0 : patch_grid_patches(&grid) * patch_bytes(p);
    if (!rc && (scratch > s->room || size > s->room)) rc = too_large(s, reference, scratch > size ? scratch : size, e);
    if (!rc) {
        void *work = mem_alloc(scratch + 1);
        uint8_t *pixels = mem_alloc(size);
        patch_image(p, &grid, image.rgb, image.width, image.height, work, scratch, pixels);
        *out = (struct image_pixels){(uint32_t)patch_grid_patches(&grid), grid, false, 0,
                                     bytes + 8ull * image.width * image.height + scratch + size, -1};
        rc = take ? take(user, pixels, out->count, e) : PL_OK;
        mem_free(pixels);
        mem_free(work);
    }
    mem_free(image.rgb);
    return rc;
}

int image_source_read(const struct image_source *s, const char *reference, bool beside, image_take *take, void *user,
                      struct image_pixels *out, struct error *e)
{
    const struct image_processor chosen = beside ? image_processor_beside(&s->processor) : s->processor,
                                 *p = &chosen;
    struct image image = {0};
    size_t bytes = 0;
    uint32_t height, width, rows, columns;
    *out = (struct image_pixels){.modality = -1};
    if (media_is_volume(reference)) return read_volume(s, reference, take, user, out, e);
    if (s->patches.merge) return read_any_size(s, reference, take, user, out, e);
    if (media_is_video(reference)) return read_video(s, reference, take, user, out, e);
    if (read_rgb(s, reference, &image, &bytes, e)) return e->code;
    const size_t scratch = image_processor_scratch(p, image.width, image.height);
    void *work = mem_alloc(scratch + 1);
    image_processor_size(p, &height, &width);
    out->count = image_processor_count(p, image.width, image.height, &rows, &columns);
    const uint64_t size = (uint64_t)out->count * 3 * height * width;
    uint8_t *pixels = mem_alloc(size);
    out->used = bytes + 8ull * image.width * image.height + scratch + size;
    image_processor_run(p, image.rgb, image.width, image.height, work, scratch, pixels);
    int rc = take ? take(user, pixels, out->count, e) : PL_OK;
    mem_free(pixels);
    mem_free(work);
    mem_free(image.rgb);
    return rc;
}

/* --- tiles ------------------------------------------------------------------------------------ */

/* Finds the tiles that were found when the store was made. */
static int stored_tiles(const struct image_source *s, const char *reference, struct image_tiles *out, struct error *e)
{
    struct packed_output x;
    if (!image_is_tiled(s->text.layout) && !s->text.any_size && !media_is_video(reference)) return PL_OK;
    if ((s->text.timed || s->text.any_size) && media_is_video(reference))
        return error_set(e, PL_USAGE,
            "%.100s: %s, which a store of embeddings does not have", reference,
            s->text.any_size ? "where its tokens are depends on the times of its frames"
                             : "the text names the times of a video's frames");
    if (image_files_output(s->files, reference, &x, e)) return e->code;
    if (s->text.any_size) {
        *out = (struct image_tiles){.tokens = x.count};
        return PL_OK;
    }
    *out =
        (struct image_tiles){.rows = x.rows, .columns = x.columns, .frames = media_is_video(reference) ? x.count : 0};
    return PL_OK;
}

static int describe_video(const struct image_source *s, const char *reference, struct bump *b, struct image_tiles *out,
                          struct error *e)
{
    struct video_times t = {0};
    struct patch_grid grid;
    if (s->text.any_size) {
        TRY(scan_patches(s, reference, b, &grid, &out->times, e));
        out->tokens = (uint32_t)patch_grid_tokens(&s->video_patches, &grid), out->grids = grid.t;
        return PL_OK;
    }
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
    if (media_is_volume(reference)) {
        const int modality = media_modality(&s->modalities, reference, e);
        if (modality >= 0) out->tokens = (uint32_t)s->modalities.at[modality].tokens;
        return modality < 0 ? e->code : PL_OK;
    }
    if (image_files_store(s->files)) return stored_tiles(s, reference, out, e);
    if (media_is_video(reference)) return describe_video(s, reference, b, out, e);
    if (!image_is_tiled(s->text.layout) && !s->text.any_size) return PL_OK;
    if (read_file(s, reference, &file, &n, &width, &height, e)) return e->code;
    mem_free(file);
    if (s->text.any_size) return count_tokens(s, reference, width, height, out, e);
    image_processor_count(&s->processor, width, height, &out->rows, &out->columns);
    if (s->text.anyres.n) out->shape = anyres_shape_of(&s->text.anyres, width, height);
    return PL_OK;
}
