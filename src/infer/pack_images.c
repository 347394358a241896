/*
 * pack_images.c: stores the outputs of a vision tower for the images of conversations, by their
 * references (pack_store.h; data/formats/packed.h, version 3).
 *
 *     conversations ─ references, each once, sorted ─ blocks: threads read pixels ─ tower, one
 *     image at a time ─ store
 *
 * Images are read with the loader's own code. One that cannot be read is in the store with its
 * reason, so that training replaces its conversation as it would without the store. Where images
 * have any size, the sizes are read first: the tower has room for the largest.
 */
#include "base/progress.h"
#include "data/images/image_source.h"
#include "data/text/conversation.h"
#include "data/text/records.h"
#include "data/text/tokenize.h"
#include "batch/batch_plan.h"
#include "batch/feed.h"
#include "batch/text_source.h"
#include "batch/embed.h"
#include "batch/model_images.h"
#include "infer/pack_store.h"

enum { BLOCK = 16, BLOCK_IMAGES = 64 }; /* references, and images for the tower, of a block */

struct image_packer {
    struct config config;
    struct model model;
    struct embedder tower;
    struct image_source source;
    struct image_reader_options reader;
    struct names references;     /* sorted by packed_name, each once */
    struct packed_writer *store;
    struct progress progress;
    uint64_t conversations, unusable; /* read; without images for this model, because they are malformed */
    uint64_t images, embeddings, broken, left_out;
};

/* One reference between reading and the tower. */
struct packable {
    const char *reference;
    struct packed_output out;
    struct patch_grid grid;      /* of an image of any size */
    uint8_t *pixels;             /* [out.count], or [patches] */
    struct error e;
    bool missing;                /* how many images it has is not known: it is not stored */
};

/* --- references ------------------------------------------------------------------------------- */

static void add_references(struct image_packer *p, const struct record *x)
{
    struct bump b = {0};
    struct value *sample;
    struct conversation c;
    struct error ignored;
    const bool usable = !conversation_parse(x->text, x->n, p->reader.room, &b, &sample, &ignored) &&
                        !conversation_read(sample, NULL, "", &b, &c, &ignored) &&
                        (!c.videos || p->source.videos.max_frames) && !conversation_place_media(&c, &b, &ignored);
    p->conversations += x->times;
    p->unusable += usable ? 0 : x->times;
    for (uint32_t i = 0; usable && i < c.media->count; i++)
        if (!media_is_volume(c.media->items[i]->text))
            vec_push(&p->references, mem_string(c.media->items[i]->text));
    bump_free(&b);
}

static int read_conversations(struct image_packer *p, const char *path, struct error *e)
{
    struct records r;
    struct record x;
    bool more = true;
    int rc = records_open(&r, path, p->reader.room, e);
    if (rc) return rc;
    while (!(rc = records_next(&r, &x, &more, e)) && more) add_references(p, &x);
    records_close(&r);
    return rc;
}

static int compare_names(const void *pa, const void *pb)
{
    char a[PACKED_NAME], b[PACKED_NAME];
    return strcmp(packed_name(*(char *const *)pa, a), packed_name(*(char *const *)pb, b));
}

/* Sorts them and keeps each once. */
static void sort_references(struct names *all)
{
    uint32_t n = 0;
    if (all->n) qsort(all->at, all->n, sizeof *all->at, compare_names);
    for (uint32_t i = 0; i < all->n; i++) {
        if (n && !compare_names(&all->at[n - 1], &all->at[i])) mem_free(all->at[i]);
        else all->at[n++] = all->at[i];
    }
    all->n = n;
}

/* Refuses videos whose text names times: a store has frames, and not their times. */
static int check_videos(const struct image_packer *p, struct error *e)
{
    for (uint32_t i = 0; p->source.text.timed && i < p->references.n; i++)
        if (media_is_video(p->references.at[i]))
            return error_set(e, PL_USAGE,
                             "%.100s: the text of this model names the time of each frame, which a store of embeddings "
                             "does not have: train on the videos themselves",
                             p->references.at[i]);
    return PL_OK;
}

static int list_references(struct image_packer *p, const struct names *files, struct error *e)
{
    int rc = PL_OK;
    for (uint32_t i = 0; i < files->n && !rc; i++) rc = read_conversations(p, files->at[i], e);
    if (rc) return rc;
    sort_references(&p->references);
    if (p->unusable)
        log_note("%llu of %llu conversations cannot be used, and their images are not stored; `plimsoll data inspect` "
                 "says why",
                 (unsigned long long)p->unusable, (unsigned long long)p->conversations);
    return p->references.n ? check_videos(p, e)
                           : error_set(e, PL_USAGE,
                                       "no conversation of %llu has an image that this model takes: no file is written",
                                       (unsigned long long)p->conversations);
}

/* --- reading ---------------------------------------------------------------------------------- */

/* Fills out.count and the rest of `x` but the pixels. */
static void measure(const struct image_packer *p, const char *reference, struct packable *x)
{
    struct image_tiles t;
    *x = (struct packable){.reference = reference};
    x->missing = image_source_tiles(&p->source, reference, NULL, &t, &x->e);
    if (p->source.text.any_size) {
        x->out.count = t.tokens;
        return;
    }
    const uint32_t tiles = t.rows * t.columns;
    x->out = (struct packed_output){.count = media_is_video(reference) ? t.frames : tiles + 1, .rows = t.rows,
                                    .columns = t.columns};
}

/* Reads the patches of an image of any size. */
static void read_patches(const struct image_packer *p, struct image_reader *r, struct packable *x)
{
    const struct patch_rules *rules = p->reader.patches;
    const uint64_t patches = (uint64_t)x->out.count * rules->merge * rules->merge;
    struct patches_read read = {.tokens = x->out.count};
    read.to = x->pixels = mem_alloc(patches * patch_bytes(rules));
    x->out.fault = image_reader_patches(r, p->source.files, x->reference, &read, &x->e);
    x->grid = read.grid;
    x->out.rows = read.grid.h / rules->merge;
    x->out.columns = read.grid.w / rules->merge;
}

static void read_pixels(const struct image_packer *p, struct image_reader *r, struct packable *x)
{
    if (x->missing) return;
    if (p->reader.patches) {
        read_patches(p, r, x);
        return;
    }
    x->pixels = mem_alloc(x->out.count * image_reader_size(&p->reader));
    if (media_is_video(x->reference))
        x->out.fault = image_reader_video(r, p->source.files, x->reference, x->out.count,
                                          &(struct frames_to){.pixels = x->pixels}, &x->out.replaced, &x->e);
    else x->out.fault = image_reader_read(r, p->source.files, x->reference, x->out.count, x->pixels, &x->e);
}

static void read_block(const struct image_packer *p, struct packable *block, uint32_t n)
{
#pragma omp parallel
    {
        char *memory = mem_alloc(image_reader_bytes(&p->reader) + 64);
        struct image_reader *r = image_reader_new(&p->reader, (char *)align_up((uintptr_t)memory, 64));
#pragma omp for schedule(dynamic)
        for (uint32_t i = 0; i < n; i++) read_pixels(p, r, &block[i]);
        image_reader_free(r);
        mem_free(memory);
    }
}

/* --- the tower -------------------------------------------------------------------------------- */

static void report(struct image_packer *p, const struct packable *x)
{
    if (p->broken + p->left_out > PACK_REPORTED) return;
    progress_clear();
    log_note("%s: %s", x->missing ? "not stored" : "broken", x->e.text);
}

/* Computes the embeddings of a reference. */
static int encode(struct image_packer *p, const struct packable *x, char *to, struct error *e)
{
    const uint64_t size = p->reader.patches ? 0 : image_reader_size(&p->reader);
    const struct image_grid grid = {x->grid.t, x->grid.h, x->grid.w, false, 0};
    int rc = p->reader.patches ? embed_patches(&p->tower, x->pixels, grid, to, e) : PL_OK;
    for (uint32_t i = 0; i < x->out.count && !rc; i++, to += p->tower.bytes) {
        if (!p->reader.patches) rc = embed_pixels(&p->tower, x->pixels + i * size, to, e);
        if (!rc) rc = embed_finite(&p->tower, to, x->reference, e);
    }
    return rc;
}

static int write_output(struct image_packer *p, struct packable *x, struct error *e)
{
    char *all = mem_alloc(x->out.count * p->tower.bytes);
    int rc = x->out.fault ? PL_OK : encode(p, x, all, e);
    p->images++;
    if (x->out.fault) x->out.why = x->e.text, p->broken++, report(p, x);
    else x->out.at = all, p->embeddings += x->out.count;
    if (!rc) rc = packed_add_output(p->store, x->reference, &x->out, e);
    mem_free(all);
    return rc;
}

static int write_block(struct image_packer *p, struct packable *block, uint32_t n, struct error *e)
{
    int rc = PL_OK;
    for (uint32_t i = 0; i < n; i++) {
        if (block[i].missing) p->left_out++, report(p, &block[i]);
        else if (!rc) rc = write_output(p, &block[i], e);
        progress_add(&p->progress, 1);
        mem_free(block[i].pixels);
    }
    return rc;
}

static int encode_all(struct image_packer *p, struct error *e)
{
    struct packable block[BLOCK];
    int rc = PL_OK;
    progress_begin(&p->progress, "encoding", "images", p->references.n);
    for (uint32_t at = 0; at < p->references.n && !rc;) {
        uint32_t n = 0, images = 0;
        while (n < BLOCK && at < p->references.n && images < BLOCK_IMAGES) {
            measure(p, p->references.at[at++], &block[n]);
            images += block[n++].out.count;
        }
        read_block(p, block, n);
        rc = write_block(p, block, n, e);
    }
    progress_clear();
    return rc;
}

/* --- the store -------------------------------------------------------------------------------- */

/* Finds where images are, as in the run: --images, data.images, or the folder of the first file. */
static int open_source(struct image_packer *p, const char *where, const struct names *files, struct error *e)
{
    const struct config *c = &p->config;
    const struct model *m = &p->model;
    char folder[4096];
    if (!where) where = c->data_images;
    if (!where && path_dir(files->at[0], folder, sizeof folder, e)) return e->code;
    const struct image_scope scope = {.where = where ? where : folder, .anywhere = c->data_outside_images,
                                      .tables = files->at, .n_tables = files->n, .room = batch_room(c),
                                      .min_pixels = (uint64_t)c->data_min_pixels,
                                      .max_pixels = (uint64_t)c->data_max_pixels};
    if (model_images_open(&p->source, m, NULL, NULL, &scope, e)) return error_prepend(e, "data.images");
    const bool any_size = p->source.patches.merge;
    if (any_size && c->data_max_frames)
        return error_set(e, PL_USAGE,
                         "data.max_frames is %lld, and the tokens of a %s depend on the times of a video's frames, "
                         "which a store does not have: set it to 0, and train on the videos themselves",
                         (long long)c->data_max_frames, m->family->model_type);
    if (image_files_store(p->source.files))
        return error_set(e, PL_USAGE,
                         "data.images: %s is a store of embeddings itself; expected the folder or tar of the images",
                         where);
    p->reader = (struct image_reader_options){.processor = p->source.processor,
                                              .frame_processor = p->source.frame_processor,
                                              .patches = any_size ? &p->source.patches : NULL,
                                              .range = feed_range(c), .room = batch_room(c), .fps = c->data_fps,
                                              .max_frames = (uint32_t)c->data_max_frames};
    if (p->source.text.timed && c->data_max_frames)
        return error_set(e, PL_USAGE,
                         "data.max_frames is %lld, and the text of a %s names the times of a video's frames, which a "
                         "store does not have: set it to 0",
                         (long long)c->data_max_frames, m->family->model_type);
    if (!any_size) TRY(model_images_frame_processor(&p->reader.frame_processor, m, e));
    return text_take_videos(&p->source, c, m, e);
}

/* Opens the tower. For images of any size it has room for the patches of the largest. */
static int open_tower(struct image_packer *p, const struct pack_options *o, struct error *e)
{
    const uint32_t merge = p->source.patches.merge;
    struct packable x;
    int64_t most = 0;
    for (uint32_t i = 0; merge && i < p->references.n; i++) {
        measure(p, p->references.at[i], &x);
        if (!x.missing) most = max_i64(most, (int64_t)x.out.count * merge * merge);
    }
    return embed_open(&p->tower, o->encoder, most, o->dtype, o->keys, e);
}

static int open_model(struct image_packer *p, const struct pack_options *o, struct error *e)
{
    int64_t side = 0;
    int rc = embed_config(&p->config, o->encoder, o->dtype, o->keys, e);
    if (!rc) rc = embed_model(&p->config, o->encoder, &side, &p->model, e);
    return rc ? error_prepend(e, "--embeddings") : PL_OK;
}

static int write_store(struct image_packer *p, const char *output, struct error *e)
{
    const struct patch_rules *r = &p->source.patches;
    int rc = packed_create(&p->store, output, r->merge ? r->patch : (uint32_t)p->tower.side, 0, e);
    if (rc) return rc;
    packed_embed(p->store, &p->tower.about);
    rc = encode_all(p, e);
    if (!rc && !p->embeddings)
        rc = error_set(e, PL_USAGE, "none of %u images can be read: no file is written", p->references.n);
    if (!rc) return packed_finish(p->store, e);
    packed_abandon(p->store);
    return rc;
}

int pack_images(const struct pack_options *o, struct pack_result *out, struct error *e)
{
    const double from = clock_seconds();
    struct image_packer p = {0};
    struct names files = {0};
    int rc = tokenize_files(o->paths->at, o->paths->n, &files, e);
    if (!rc) rc = open_model(&p, o, e);
    if (!rc) rc = open_source(&p, o->set->images, &files, e);
    if (!rc) rc = list_references(&p, &files, e);
    if (!rc) rc = open_tower(&p, o, e);
    if (!rc) rc = write_store(&p, o->output, e);
    *out = (struct pack_result){.samples = p.conversations,
                                .images = p.images,
                                .count = p.embeddings,
                                .left_out = p.broken + p.left_out,
                                .embeddings = p.tower.about,
                                .bytes = p.tower.bytes,
                                .seconds = clock_seconds() - from};
    image_source_close(&p.source);
    embed_close(&p.tower);
    model_close(&p.model);
    config_free(&p.config);
    names_free(&p.references);
    names_free(&files);
    return rc;
}
