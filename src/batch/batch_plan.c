/*
 * batch_plan.c: see batch_plan.h.
 */
#include "batch/batch_plan.h"

#include <inttypes.h>

#include "data/text/conversations.h"
#include "data/images/image_source.h"
#include "batch/embed.h"
#include "batch/feed.h"
#include "graph/emit.h"
#include "models/allocator.h"

enum {
    IMAGES_AHEAD = 16,        /* largest default of data.prefetch */
    MIB = 1 << 20,
};

/* Returns the advice in a message about a model with other inputs: "set data.format to tokens,
 * ...". */
static const char *batch_advice(const struct model *m)
{
    if (m->ground) return "set data.format to sa1b, coco, pairs or csv, and data.queries to a file of texts";
    if (m->head) return m->head->kind == HEAD_CLASSES ? "set data.format to classes" : "set data.format to captions";
    if (m->masks) return "set data.format to sa1b, coco, pairs, csv, packed or parquet";
    if (model_port(m, "input_ids"))
        return "set data.format to tokens, bytes or conversations, or use a model like sam-tiny";
    return "a vision tower trains with a head: set data.format to classes, for images of classes, or to captions, for "
           "images with texts";
}

int batch_refuse_tokens(const struct config *c, const struct model *m, struct error *e)
{
    char takes[256];
    return error_set(e, PL_USAGE, "data.format %s gives rows of tokens, and a %s takes %s; %s",
                     batch_format(c), m->family->model_type, model_list_ports(m, takes), batch_advice(m));
}

const char *batch_format(const struct config *c)
{
    static const char *const names[] = {[FORMAT_TOKENS] = "tokens",   [FORMAT_BYTES] = "bytes",
                                        [FORMAT_TEXT] = "text",       [FORMAT_CONVERSATIONS] = "conversations",
                                        [FORMAT_SA1B] = "sa1b",       [FORMAT_COCO] = "coco",
                                        [FORMAT_PAIRS] = "pairs",     [FORMAT_CSV] = "csv",
                                        [FORMAT_PACKED] = "packed",   [FORMAT_PARQUET] = "parquet",
                                        [FORMAT_CLASSES] = "classes", [FORMAT_CAPTIONS] = "captions"};
    return names[c->data_format];
}

static bool reads_stores(const struct config *c)
{
    const char *path = c->data_format == FORMAT_PACKED && c->data_train.n ? c->data_train.at[0] : "",
               *dot = strrchr(path, '.');
    return *path && !(dot && !strcmp(dot, ".json"));
}

/* Returns the number of slots that are prefetched: images, or rows with images. */
static uint32_t slots_of(const struct config *c)
{
    return (uint32_t)(c->data_prefetch ? c->data_prefetch : min_i64(c->train_effective_batch, IMAGES_AHEAD)) + 1;
}

uint64_t batch_room(const struct config *c)
{
    return c->data_sample_memory ? (uint64_t)c->data_sample_memory * MIB
                                 : loader_default_room(batch_format(c), reads_stores(c));
}

struct volume_options batch_volumes(const struct config *c)
{
    return (struct volume_options){.axis = (enum volume_axis)c->data_slice_axis, .cache = c->data_volume_cache,
                                   .room = batch_room(c)};
}

struct loader_augment batch_augment(const struct config *c)
{
    return (struct loader_augment){.flip = c->data_flip, .scale = c->data_scale, .crop = c->data_crop,
                                   .flip_vertical = c->data_flip_vertical, .turn = c->data_turn,
                                   .rotate = c->data_rotate, .brightness = c->data_brightness,
                                   .contrast = c->data_contrast, .gamma = c->data_gamma, .noise = c->data_noise};
}

enum config_key batch_augments(const struct config *c)
{
    const struct {
        enum config_key key;
        double value, none;
    } each[] = {{KEY_data_flip, c->data_flip, 0},
                {KEY_data_scale, c->data_scale, 1},
                {KEY_data_crop, c->data_crop, 1},
                {KEY_data_flip_vertical, c->data_flip_vertical, 0},
                {KEY_data_turn, c->data_turn, 0},
                {KEY_data_rotate, c->data_rotate, 0},
                {KEY_data_brightness, c->data_brightness, 0},
                {KEY_data_contrast, c->data_contrast, 0},
                {KEY_data_gamma, c->data_gamma, 0},
                {KEY_data_noise, c->data_noise, 0}};
    for (size_t i = 0; i < COUNT(each); i++)
        if (each[i].value != each[i].none) return each[i].key;
    return (enum config_key)CONFIG_KEYS;
}

static bool batch_moves(const struct config *c)
{
    const struct loader_augment a = batch_augment(c);
    return augment_moves(&a);
}

struct loader_options batch_loader(const struct config *c, const struct model *m, const struct packed_embeddings *x)
{
    int64_t side = c->data_image_size ? c->data_image_size : m->image;
    return (struct loader_options){.side = (uint32_t)side, .stretched = masks_stretch(m),
                                   .cells = (uint32_t)m->masks->side(m, side),
                                   .masks = (uint32_t)c->data_max_masks, .threads = (uint32_t)c->data_threads,
                                   .slots = slots_of(c), .room = batch_room(c),
                                   .polygon_runs = c->data_format == FORMAT_COCO ? LOADER_POLYGON_RUNS : 0,
                                   .least = c->data_scale, .moves = batch_moves(c),
                                   .embedding = x->type ? packed_embedding_bytes(x) : 0};
}

struct mask_batches *mask_batches(const struct run *r)
{
    return r->planned.model.masks ? r->planned.batches.feed : NULL;
}
struct ground_batches *ground_batches(const struct run *r)
{
    return r->planned.model.ground ? r->planned.batches.feed : NULL;
}
struct image_batches *image_batches(const struct run *r)
{
    return r->planned.model.images && !prs_model(&r->planned.model) ? r->planned.batches.feed : NULL;
}
struct head_batches *head_batches(const struct run *r)
{
    return r->planned.model.head ? r->planned.batches.feed : NULL;
}
struct prs_batches *prs_batches(const struct run *r)
{
    return prs_model(&r->planned.model) ? r->planned.batches.feed : NULL;
}

int64_t batch_images(const struct config *c, int64_t features)
{
    if (c->data_format == FORMAT_TEXT) return 0;
    return c->data_max_images >= 0 ? c->data_max_images : max_i64(1, c->data_sequence / features);
}

/* --- the loss --------------------------------------------------------------------------------- */

/* Returns a value of the loss: a key that was given overrides the preset. */
static float loss_value(const struct config *c, enum config_key key, double value, double equal_weights)
{
    return (float)(c->loss_preset == LOSS_EQUAL_WEIGHTS && !config_given(c, key) ? equal_weights : value);
}

struct mask_loss_options batch_loss(const struct config *c)
{
    return (struct mask_loss_options){
        .focal = loss_value(c, KEY_loss_focal, c->loss_focal, 1),
        .dice = loss_value(c, KEY_loss_dice, c->loss_dice, 1),
        .iou = loss_value(c, KEY_loss_iou, c->loss_iou, 1),
        .alpha = loss_value(c, KEY_loss_alpha, c->loss_alpha, 0.8),
        .gamma = loss_value(c, KEY_loss_gamma, c->loss_gamma, 2),
        .smooth = loss_value(c, KEY_loss_smooth, c->loss_smooth, 1e-6),
        .alpha_both = c->loss_preset == LOSS_EQUAL_WEIGHTS,
        .all_scores = c->loss_preset == LOSS_SAM2,
        .object = config_given(c, KEY_loss_object) || c->loss_preset != LOSS_SAM2 ? (float)c->loss_object : 1,
    };
}

static float given_or(const struct config *c, enum config_key key, double value, float usual)
{
    return config_given(c, key) ? (float)value : usual;
}

/* Checks the loss of a mask model, whose prompts have several candidates. */
static int check_loss(const struct config *c, const struct model *m, struct error *e)
{
    if (c->loss_preset == LOSS_SAM2 && !model_predicts_objects(m))
        error_set(e, PL_USAGE, "loss.preset is sam2, the loss of a model that predicts objects; a %s takes sam or "
                  "equal-weights", m->family->model_type);
    else if (c->loss_preset == LOSS_STRUCTURE)
        error_set(e, PL_USAGE, "loss.preset is structure, which is a loss of prs_med; a %s takes sam or equal-weights",
                  m->family->model_type);
    else return PL_OK;
    return config_at_key(c, KEY_loss_preset, e);
}

/* Sets the loss: a key that was given overrides binary cross-entropy + dice, and so does
 * loss.preset. */
void batch_prs(const struct config *c, struct prs_batch *out)
{
    enum { WINDOW = 31 };
    struct mask_loss_options o = prs_usual_batch.loss;
    const double edge = c->loss_edge, bce_edge = c->loss_edge_terms == EDGE_BOTH ? edge : 0;
    if (config_given(c, KEY_loss_preset)) o = batch_loss(c);
    if (c->loss_preset == LOSS_STRUCTURE)
        out->structure = (struct structure_loss_options){(float)edge, (float)bce_edge, (float)c->loss_smooth, WINDOW};
    o.iou = 0; /* its decoders predict no IoU */
    out->loss = (struct mask_loss_options){.focal = given_or(c, KEY_loss_focal, c->loss_focal, o.focal),
                                           .dice = given_or(c, KEY_loss_dice, c->loss_dice, o.dice),
                                           .alpha = given_or(c, KEY_loss_alpha, c->loss_alpha, o.alpha),
                                           .gamma = given_or(c, KEY_loss_gamma, c->loss_gamma, o.gamma),
                                           .smooth = given_or(c, KEY_loss_smooth, c->loss_smooth, o.smooth),
                                           .alpha_both = o.alpha_both && !config_given(c, KEY_loss_alpha)};
    out->mask_weight = c->loss_masks;
    out->text_weight = c->loss_text;
    out->class_weight = c->loss_classes;
}

/* --- the description -------------------------------------------------------------------------- */

/* Describes clips of videos instead of images. */
static int describe_clips(const struct config *c, const struct model *m, struct mask_batches *b, struct error *e)
{
    const enum config_key moves = batch_augments(c);
    enum config_key at = KEY_data_frames;
    if (!m->masks->clips)
        error_set(e, PL_USAGE, "data.frames is %" PRId64 ", and a %s takes no clips; expected a sam2_video",
                  c->data_frames, m->family->model_type);
    else if (c->data_format != FORMAT_PAIRS)
        error_set(e, PL_USAGE, "data.frames is %" PRId64 ", and data.format is %s: clips are pairs of frames and label "
                  "images", c->data_frames, batch_format(c));
    else if (c->prompts_iterations != 1)
        error_set(e, PL_USAGE, "prompts.iterations is %" PRId64 ": clips have prompts on their first frame, and no "
                  "later rounds", c->prompts_iterations), at = KEY_prompts_iterations;
    else if (moves != (enum config_key)CONFIG_KEYS)
        error_set(e, PL_USAGE, "%s is given: the frames of clips stay as they are", config_key_name(moves)), at = moves;
    else {
        b->clips = (struct clip_options){b->options, (uint32_t)c->data_frames};
        b->prompts.frames = c->data_frames;
        b->prompts.prompted = 1;
        b->reading = (struct feed_reading){&clips_kind, &b->clips};
        return PL_OK;
    }
    return config_at_key(c, at, e);
}

/* Describes images with masks: their prompts, the loader and the stored embeddings that will be
 * read. */
static int describe_images(const struct config *c, const struct model *m, const struct run_options *options,
                           struct mask_batches *b, struct run_batches *out, struct error *e)
{
    struct loader_options o = batch_loader(c, m, &b->embeddings);
    if (o.side % m->masks->patch || o.cells > GRID_MAX_CELLS) {
        error_set(e, PL_USAGE,
                  "data.image_size is %u, expected a multiple of the model's patches of %" PRId64 " pixels", o.side,
                  m->masks->patch);
        return config_at_key(c, KEY_data_image_size, e);
    }
    if (options->embedded ? embed_assume(c, m, o.side, &b->embeddings, e)
                          : embed_choose(c, m, o.side, options->train, &b->embeddings, e))
        return e->code;
    const uint32_t type = b->embeddings.type;
    o = batch_loader(c, m, &b->embeddings);
    b->prompts = (struct prompting){.part = type ? PART_REST : PART_ALL, .embeddings = packed_dtype(type),
                                    .image = o.side, .masks = o.masks,
                                    .points = FIRST_SLOTS + c->prompts_iterations - 1, .rounds = c->prompts_iterations,
                                    .slots = true, .targets = true};
    b->options = o;
    b->reading = (struct feed_reading){&loader_kind, &b->options};
    if (c->data_frames) TRY(describe_clips(c, m, b, e));
    out->loader_bytes = reading_bytes(&b->reading);
    out->size = KEY_data_max_masks;
    out->least = 1;
    return PL_OK;
}

/* Describes embeddings instead of the images of conversations: then the vision tower is not
 * built. */
static int describe_embeddings(const struct config *c, const struct model *m, const struct run_options *options,
                               struct image_batches *b, struct run_batches *out, struct error *e)
{
    if (options->embedded ? embed_assume(c, m, m->image, &b->embeddings, e)
                          : embed_choose_images(c, m, options->train, &b->embeddings, e))
        return e->code;
    b->whole = b->batch;
    if (!b->embeddings.type) return PL_OK;
    b->batch.part = PART_REST;
    b->batch.embeddings = packed_dtype(b->embeddings.type);
    b->rows.embedding = packed_embedding_bytes(&b->embeddings);
    out->partial = true;
    out->whole = &b->whole;
    return PL_OK;
}

int64_t batch_patches(const struct config *c, int64_t unit)
{
    if (c->data_format == FORMAT_TEXT) return 0;
    return c->data_max_patches >= 0 ? c->data_max_patches / unit * unit : c->data_sequence * unit;
}

/* Finds how many patches an image has at most, and checks that the smallest has enough for its
 * tokens. */
static int find_most_patches(const struct config *c, const struct model *m, const struct patch_rules *p, uint64_t *most,
                             struct error *e)
{
    const struct grid_model *g = m->images->grids;
    const uint64_t unit = (uint64_t)(g->merge * g->merge), least = (uint64_t)allocator_least_pixels(g);
    *most = p->max_pixels / (unit * (uint64_t)(g->patch * g->patch)) * unit;
    if (p->min_pixels >= least) return PL_OK;
    error_set(e, PL_USAGE,
              "images of %" PRIu64 " pixels have too few patches for num_visual_tokens %" PRId64
              ": expected data.min_pixels of at least %" PRIu64 ", or none",
              p->min_pixels, g->tokens, least);
    return config_at_key(c, KEY_data_min_pixels, e);
}

/* Describes rows of text with images of any size, of which each has as many tokens: a row has room
 * for data.max_images of the largest ones. */
static int describe_shared(const struct config *c, const struct model *m, struct image_batches *b,
                           struct run_batches *out, struct error *e)
{
    const bool room = config_text(c) || (c->data_max_images > 0 && !c->data_train.n);
    if (c->data_max_frames) {
        error_set(e, PL_USAGE, "data.max_frames is %" PRId64 ", and a %s takes no videos: set it to 0",
                  c->data_max_frames, m->family->model_type);
        return config_at_key(c, KEY_data_max_frames, e);
    }
    const struct patch_rules *p = &b->patches;
    uint64_t most;
    b->batch.images = room ? batch_images(c, m->images->features) : 0;
    out->feed = b;
    out->own = &b->batch;
    if (!b->batch.images) return PL_OK;
    const struct patch_overrides sizes = {.min_pixels = (uint64_t)c->data_min_pixels,
                                          .max_pixels = (uint64_t)c->data_max_pixels};
    TRY(image_source_patches(&b->patches, m, false, &sizes, e));
    TRY(find_most_patches(c, m, p, &most, e));
    b->batch.patches = b->batch.images * (int64_t)most;
    if (!config_text(c)) return PL_OK;
    b->rows = (struct image_rows_options){
        .sequence = (uint32_t)c->data_sequence, .images = (uint32_t)b->batch.images, .most_patches = (uint32_t)most,
        .threads = (uint32_t)c->data_threads, .slots = slots_of(c),
        .reader = {.patches = p, .range = feed_range(c), .room = batch_room(c),
                   .processor = image_source_normalisation(p)}};
    b->reading = (struct feed_reading){&image_rows_kind, &b->rows};
    out->loader_bytes = reading_bytes(&b->reading);
    return PL_OK;
}

/* Describes rows of text with images of any size. Without data, and without data.max_patches, there
 * is only text. */
static int describe_patches(const struct config *c, const struct model *m, const struct run_options *options,
                            struct image_batches *b, struct run_batches *out, struct error *e)
{
    const int64_t unit = m->images->grids->merge * m->images->grids->merge;
    if (m->images->grids->tokens) return describe_shared(c, m, b, out, e);
    if (config_text(c) || (c->data_max_patches > 0 && !c->data_train.n)) b->batch.patches = batch_patches(c, unit);
    out->feed = b;
    out->own = &b->batch;
    if (!config_text(c) || !b->batch.patches) return PL_OK;
    const struct patch_overrides sizes = {.min_pixels = (uint64_t)c->data_min_pixels,
                                          .max_pixels = (uint64_t)c->data_max_pixels},
                                 frames = {.fps = c->data_fps, .max_frames = (uint32_t)c->data_max_frames};
    TRY(image_source_patches(&b->patches, m, false, &sizes, e));
    if (c->data_max_frames) TRY(image_source_patches(&b->video_patches, m, true, &frames, e));
    b->rows = (struct image_rows_options){.sequence = (uint32_t)c->data_sequence,
                                          .images = (uint32_t)(b->batch.patches / unit),
                                          .threads = (uint32_t)c->data_threads,
                                          .slots = slots_of(c),
                                          .reader = {.patches = &b->patches, .video_patches = &b->video_patches,
                                                     .range = feed_range(c), .room = batch_room(c)}};
    TRY(describe_embeddings(c, m, options, b, out, e));
    b->reading = (struct feed_reading){&image_rows_kind, &b->rows};
    out->loader_bytes = reading_bytes(&b->reading);
    return PL_OK;
}

static bool lists(const struct config_list *l, const char *word)
{
    for (uint32_t i = 0; i < l->n; i++)
        if (!strcmp(l->at[i], word)) return true;
    return false;
}

/* Checks the adapter: new embeddings of modalities are trained and saved, with an adapter too. */
static int check_new_modalities(const struct config *c, const struct model *m, struct error *e)
{
    const bool adapter = c->adapter_target_modules.text || c->adapter_target_modules.list.n;
    for (uint32_t i = 0; adapter && m->images->modalities.n && m->fresh && m->fresh[i]; i++) {
        const char *name = m->fresh[i];
        if (lists(&c->adapter_modules_to_save, name) || lists(&c->adapter_modules_to_save, strchr(name, '.') + 1))
            continue;
        error_set(e, PL_USAGE, "%s is new, and an adapter would leave it as it is: add it to adapter.modules_to_save",
                  name);
        return config_at_key(c, KEY_adapter_target_modules, e);
    }
    return PL_OK;
}

/* Describes rows of text with images. Without data, and without data.max_images, the model's
 * default stays: an image a sample. */
static int describe_image_rows(const struct config *c, const struct model *m, const struct run_options *options,
                               struct bump *memory, struct run_batches *out, struct error *e)
{
    const bool conversations = config_text(c),
               given = c->data_max_images >= 0 || c->data_max_frames || config_given(c, KEY_data_max_volumes),
               room = conversations || (given && !c->data_train.n);
    struct image_batches *b = bump_alloc(memory, sizeof *b);
    if (m->images->grids) return describe_patches(c, m, options, b, out, e);
    if (options->train) TRY(check_new_modalities(c, m, e));
    *b = (struct image_batches){.batch = {.images = m->images->single ? 1
                                                    : room            ? batch_images(c, m->images->features)
                                                                      : 0,
                                          .frames = room && !m->images->single ? c->data_max_frames : 0}};
    for (int k = 0; k < m->images->modalities.n && room && c->data_format != FORMAT_TEXT; k++)
        b->batch.volumes[k] = c->data_max_volumes;
    if (m->images->single && (c->data_max_frames || (c->data_max_images >= 0 && c->data_max_images != 1))) {
        const enum config_key key = c->data_max_frames ? KEY_data_max_frames : KEY_data_max_images;
        error_set(e, PL_USAGE, "%s is %" PRId64 ", and a %s takes one image a row: leave it out", config_key_name(key),
                  c->data_max_frames ? c->data_max_frames : c->data_max_images, m->family->model_type);
        return config_at_key(c, key, e);
    }
    if (m->images->single && !conversations && c->data_train.n)
        return error_set(e, PL_USAGE, "a %s takes conversations with images: set data.format to conversations",
                         m->family->model_type);
    out->feed = b;
    if (b->batch.frames && images_frame_tokens(m, c->data_tokens_per_frame, &b->batch.tokens_per_frame, e))
        return config_at_key(c, KEY_data_tokens_per_frame, e);
    if (conversations || given || c->data_train.n) out->own = &b->batch;
    if (!conversations || !images_any(&b->batch)) return PL_OK;
    b->rows = (struct image_rows_options){.sequence = (uint32_t)c->data_sequence, .images = (uint32_t)b->batch.images,
                                          .frames = (uint32_t)b->batch.frames, .volumes = (uint32_t)b->batch.volumes[0],
                                          .threads = (uint32_t)c->data_threads, .slots = slots_of(c),
                                          .reader = {.range = feed_range(c), .room = batch_room(c), .fps = c->data_fps,
                                                     .max_frames = (uint32_t)c->data_max_frames,
                                                     .modalities = &m->images->modalities,
                                                     .volumes = batch_volumes(c)}};
    if (image_source_processor(&b->rows.reader.processor, m, e) ||
        image_source_frame_processor(&b->rows.reader.frame_processor, m, e) ||
        describe_embeddings(c, m, options, b, out, e))
        return e->code;
    if (b->embeddings.type && images_volumes(&b->batch)) {
        error_set(e, PL_USAGE, "data.images is a store of embeddings, and volumes are read from files: set data.images "
                  "to the folder of the images and volumes, or data.max_volumes to 0");
        return config_at_key(c, KEY_data_images, e);
    }
    b->reading = (struct feed_reading){&image_rows_kind, &b->rows};
    out->loader_bytes = reading_bytes(&b->reading);
    return PL_OK;
}

/* Describes images with masks and queries. A mask has a bit for each pixel of the image; the feed
 * computes its shares of patches. */
static int describe_ground(const struct config *c, const struct model *m, struct bump *memory, struct run_batches *out,
                           struct error *e)
{
    struct ground_batches *b = bump_alloc(memory, sizeof *b);
    *b = (struct ground_batches){
        .batch = {config_given(c, KEY_data_max_masks) ? c->data_max_masks : GROUND_MASKS, c->data_max_queries}};
    if (config_tokens(c) && c->data_train.n) return batch_refuse_tokens(c, m, e);
    if (b->batch.masks > GROUND_MASKS) {
        error_set(e, PL_USAGE, "data.max_masks is %" PRId64 "; a query chooses among at most %d masks", b->batch.masks,
                  GROUND_MASKS);
        return config_at_key(c, KEY_data_max_masks, e);
    }
    if (b->batch.queries > b->batch.masks) {
        error_set(e, PL_USAGE,
                  "data.max_queries is %" PRId64 ", and a sample has %" PRId64
                  " masks (data.max_masks), of which every query may need another",
                  b->batch.queries, b->batch.masks);
        return config_at_key(c, KEY_data_max_queries, e);
    }
    if (c->data_image_size && c->data_image_size != m->image) {
        error_set(e, PL_USAGE,
                  "data.image_size is %" PRId64 ", and the vision tower takes images of %" PRId64
                  " pixels: leave it out",
                  c->data_image_size, m->image);
        return config_at_key(c, KEY_data_image_size, e);
    }
    b->options = (struct loader_options){.side = (uint32_t)m->image, .cells = (uint32_t)m->image,
                                         .masks = (uint32_t)b->batch.masks, .threads = (uint32_t)c->data_threads,
                                         .slots = slots_of(c), .room = batch_room(c),
                                         .polygon_runs = c->data_format == FORMAT_COCO ? LOADER_POLYGON_RUNS : 0,
                                         .least = c->data_scale, .moves = batch_moves(c)};
    out->own = &b->batch;
    out->feed = b;
    out->packed = true; /* a row of queries */
    b->reading = (struct feed_reading){&loader_kind, &b->options};
    out->loader_bytes = config_tokens(c) ? 0 : reading_bytes(&b->reading);
    out->size = KEY_data_max_masks;
    out->least = b->batch.queries;
    return PL_OK;
}

/* Refuses augmentation: what moves an image changes the place that its question asks about. */
static int refuse_augmentation(const struct config *c, struct error *e)
{
    const enum config_key key = batch_augments(c);
    if (key == (enum config_key)CONFIG_KEYS) return PL_OK;
    error_set(e, PL_USAGE, "%s is given: questions and answers name places in the image, so that it must stay as it is",
              config_key_name(key));
    return config_at_key(c, key, e);
}

/* Describes tables of images, masks, questions and answers. Without data one such sample is
 * planned. */
static int describe_questions(const struct config *c, const struct model *m, const struct run_options *o,
                              struct bump *memory, struct run_batches *out, struct error *e)
{
    const struct prs_model *x = prs_model(m);
    struct prs_batches *b = bump_alloc(memory, sizeof *b);
    *b = (struct prs_batches){.batch = prs_usual_batch};
    batch_prs(c, &b->batch);
    b->batch.drops = o->train;
    b->batch.statistics = o->evaluate;
    out->own = &b->batch;
    out->feed = b;
    out->sparse_labels = true;
    if (c->data_format != FORMAT_CSV && (c->data_train.n || !config_tokens(c)))
        return error_set(
            e, PL_USAGE,
            "data.format is %s, and a prs_med reads tables with questions and answers; set data.format to csv",
            batch_format(c));
    if (refuse_augmentation(c, e)) return e->code;
    if (c->data_sequence <= m->images->features) {
        const long long tokens = (long long)m->images->features;
        error_set(e, PL_USAGE,
                  "data.sequence is %lld, and the image takes %lld tokens of a row; question and answer need "
                  "room too: set it to %lld, for example",
                  (long long)c->data_sequence, tokens, tokens + 128);
        return config_at_key(c, KEY_data_sequence, e);
    }
    if (c->data_format != FORMAT_CSV) return PL_OK;
    b->rows = (struct question_rows_options){.sequence = (uint32_t)c->data_sequence,
                                             .reader = {.range = feed_range(c), .room = batch_room(c)},
                                             .masks = {.side = (uint32_t)x->image, .cells = (uint32_t)x->mask,
                                                       .masks = 1, .threads = (uint32_t)c->data_threads,
                                                       .slots = slots_of(c), .room = batch_room(c)}};
    const struct model llava = prs_text_model(m);
    if (image_source_processor(&b->rows.reader.processor, &llava, e)) return e->code;
    b->reading = (struct feed_reading){&question_rows_kind, &b->rows};
    out->loader_bytes = reading_bytes(&b->reading);
    return PL_OK;
}

/* Describes texts. Rows are as long as the text tower takes, unless data.sequence says it. */
static int describe_texts(const struct config *c, const struct model *m, const struct run_options *o,
                          struct head_batches *b, struct run_batches *out, struct error *e)
{
    if (config_given(c, KEY_data_sequence) && c->data_sequence > m->longest) {
        error_set(e, PL_USAGE,
                  "data.sequence is %" PRId64 ", and the text tower has %" PRId64 " positions: leave it out",
                  c->data_sequence, m->longest);
        return config_at_key(c, KEY_data_sequence, e);
    }
    b->batch.padded = true;
    out->own = &b->batch;
    out->tokens = config_given(c, KEY_data_sequence) ? c->data_sequence : m->longest;
    out->indivisible = true;
    const int64_t shares = max_i64(1, c->parallel_shares > 0 ? c->parallel_shares : c->parallel_ranks);
    if (o->train && !o->probe)
        log_note("contrastive loss: the %" PRId64
                 " samples of %s are each other's negatives, so they are one micro-batch",
                 ceil_div(c->train_effective_batch, shares), shares > 1 ? "a share" : "a step");
    return PL_OK;
}

/* Checks the adapter: a new classifier is trained and saved, with an adapter too. */
static int check_adapter(const struct config *c, const struct model *m, struct error *e)
{
    if (!m->head->fresh || !(c->adapter_target_modules.text || c->adapter_target_modules.list.n) ||
        lists(&c->adapter_modules_to_save, "classifier"))
        return PL_OK;
    error_set(
        e, PL_USAGE,
        "the classifier is new, and an adapter would leave it as it is: set adapter.modules_to_save to [classifier]");
    return config_at_key(c, KEY_adapter_target_modules, e);
}

/* Describes images with a class or a text each. Without data only the batches are planned. */
static int describe_head(const struct config *c, const struct model *m, const struct run_options *o,
                         struct bump *memory, struct run_batches *out, struct error *e)
{
    struct head_batches *b = bump_alloc(memory, sizeof *b);
    char takes[256];
    *b = (struct head_batches){.list = {.threads = (uint32_t)c->data_threads,
                                        .slots = slots_of(c),
                                        .reader = {.range = feed_range(c), .room = batch_room(c)}}};
    const bool contrastive = m->head->kind == HEAD_CONTRASTIVE,
               fits = c->data_format == (contrastive ? FORMAT_CAPTIONS : FORMAT_CLASSES);
    if (!fits && (c->data_train.n || c->data_validation.n || !config_tokens(c)))
        return error_set(e, PL_USAGE, "data.format is %s, and a %s with a head takes %s; %s", batch_format(c),
                         m->family->model_type, model_list_ports(m, takes), batch_advice(m));
    const enum image_family family = m->head->siglip ? IMAGES_SIGLIP : IMAGES_CLIP;
    if (!*m->head->folder) image_processor_default(&b->list.reader.processor, family, (uint32_t)m->image);
    else if (image_processor_read(&b->list.reader.processor, m->head->folder, family, (uint32_t)m->image, e))
        return e->code;
    out->feed = b;
    b->reading = (struct feed_reading){&image_list_kind, &b->list};
    out->loader_bytes = fits ? reading_bytes(&b->reading) : 0;
    out->size = KEY_train_effective_batch; /* nothing of a sample can be made smaller */
    out->least = INT64_MAX;
    if (contrastive) return describe_texts(c, m, o, b, out, e);
    return o->train ? check_adapter(c, m, e) : PL_OK;
}

int feed_describe(const struct config *c, const struct model *m, const struct run_options *o, struct bump *memory,
                  struct run_batches *out, struct error *e)
{
    char takes[256];
    if (prs_model(m)) return describe_questions(c, m, o, memory, out, e);
    /* Calibration plans a mask model without data; with a configuration file the data format
     * must fit the model. */
    if (m->ground) return describe_ground(c, m, memory, out, e);
    if (m->head) return describe_head(c, m, o, memory, out, e);
    if (config_tokens(c) && m->masks && c->file) return batch_refuse_tokens(c, m, e);
    if (!config_tokens(c) && !m->masks)
        return error_set(e, PL_USAGE, "data.format %s gives images with masks, and a %s takes %s; %s",
                         batch_format(c), m->family->model_type, model_list_ports(m, takes), batch_advice(m));
    /* a row with padding after one conversation is a plain causal row */
    out->packed = config_text(c) && c->data_packing;
    out->sparse_labels =
        config_text(c) &&
        ((c->data_format == FORMAT_CONVERSATIONS && c->data_train_on != TRAIN_ON_ALL) || !c->data_packing);
    if (m->images && describe_image_rows(c, m, o, memory, out, e)) return e->code;
    if (!m->masks) return PL_OK;
    struct mask_batches *b = bump_alloc(memory, sizeof *b);
    *b = (struct mask_batches){.prompts = out->own ? *(const struct prompting *)out->own : (struct prompting){0}};
    if (!config_tokens(c) && describe_images(c, m, o, b, out, e)) return e->code;
    if (check_loss(c, m, e)) return e->code;
    b->prompts.loss = batch_loss(c);
    b->prompts.statistics = o->evaluate;
    b->prompts.picks = o->picks;
    b->whole = b->prompts;
    b->whole.part = PART_ALL;
    out->own = &b->prompts;
    out->partial = b->prompts.part != PART_ALL;
    out->whole = b->embeddings.type ? &b->whole : NULL;
    out->feed = b;
    return PL_OK;
}
