/*
 * batch_plan.c: see batch_plan.h.
 */
#include "batch/batch_plan.h"

#include <inttypes.h>

#include "data/text/conversations.h"
#include "batch/model_images.h"
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

/* Returns the options of a loader of images with masks that do not depend on the model. */
static struct loader_options any_loader(const struct config *c, int64_t masks)
{
    return (struct loader_options){.masks = (uint32_t)masks, .threads = (uint32_t)c->data_threads, .slots = slots_of(c),
                                   .room = batch_room(c),
                                   .polygon_runs = c->data_format == FORMAT_COCO ? LOADER_POLYGON_RUNS : 0,
                                   .least = c->data_scale, .moves = batch_moves(c)};
}

struct loader_options batch_loader(const struct config *c, const struct model *m, const struct packed_embeddings *x)
{
    struct loader_options o = any_loader(c, c->data_max_masks);
    struct mask_canvas canvas;
    CHECK(model_canvas(m, c->data_image_size, &canvas), "a %s predicts no masks", m->family->model_type);
    o.side = (uint32_t)canvas.side, o.cells = (uint32_t)canvas.cells, o.stretched = canvas.stretched;
    o.embedding = x->type ? packed_embedding_bytes(x) : 0;
    return o;
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
    if (c->loss_preset == LOSS_SAM2 && !m->masks->objects)
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
void batch_prs(const struct config *c, struct contents *out)
{
    enum { WINDOW = 31 };
    struct mask_loss_options o = prs_usual_contents.prompts.loss;
    const double edge = c->loss_edge, bce_edge = c->loss_edge_terms == EDGE_BOTH ? edge : 0;
    if (config_given(c, KEY_loss_preset)) o = batch_loss(c);
    if (c->loss_preset == LOSS_STRUCTURE)
        out->answer.structure =
            (struct structure_loss_options){(float)edge, (float)bce_edge, (float)c->loss_smooth, WINDOW};
    o.iou = 0; /* its decoders predict no IoU */
    out->prompts.loss =
        (struct mask_loss_options){.focal = given_or(c, KEY_loss_focal, c->loss_focal, o.focal),
                                   .dice = given_or(c, KEY_loss_dice, c->loss_dice, o.dice),
                                   .alpha = given_or(c, KEY_loss_alpha, c->loss_alpha, o.alpha),
                                   .gamma = given_or(c, KEY_loss_gamma, c->loss_gamma, o.gamma),
                                   .smooth = given_or(c, KEY_loss_smooth, c->loss_smooth, o.smooth),
                                   .alpha_both = o.alpha_both && !config_given(c, KEY_loss_alpha)};
    out->answer.mask = c->loss_masks;
    out->answer.text = c->loss_text;
    out->answer.class = c->loss_classes;
}

/* --- the description -------------------------------------------------------------------------- */

/* Describes clips of videos instead of images. */
static int describe_clips(const struct config *c, const struct model *m, struct feed_plan *b, struct error *e)
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
        b->clips = (struct clip_options){b->masks, (uint32_t)c->data_frames};
        b->holds.prompts.frames = c->data_frames;
        b->holds.prompts.prompted = 1;
        b->reading = (struct feed_reading){&clips_kind, &b->clips};
        return PL_OK;
    }
    return config_at_key(c, at, e);
}

/* Describes images with masks: their prompts, the loader and the stored embeddings that will be
 * read. */
static int describe_images(const struct config *c, const struct model *m, const struct run_options *options,
                           struct feed_plan *b, struct run_batches *out, struct error *e)
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
    b->holds = (struct contents){.part = type ? PART_REST : PART_ALL, .embeddings = packed_dtype(type),
                                 .prompts = {.image = o.side, .masks = o.masks,
                                             .points = FIRST_SLOTS + c->prompts_iterations - 1,
                                             .rounds = c->prompts_iterations, .slots = true, .targets = true}};
    b->masks = o;
    b->reading = (struct feed_reading){&loader_kind, &b->masks};
    if (c->data_frames) TRY(describe_clips(c, m, b, e));
    out->size = KEY_data_max_masks;
    out->least = 1;
    return PL_OK;
}

/* Describes embeddings instead of the images of conversations: then the vision tower is not
 * built. */
static int describe_embeddings(const struct config *c, const struct model *m, const struct run_options *options,
                               struct feed_plan *b, struct run_batches *out, struct error *e)
{
    if (options->embedded ? embed_assume(c, m, m->image, &b->embeddings, e)
                          : embed_choose_images(c, m, options->train, &b->embeddings, e))
        return e->code;
    b->whole = b->holds;
    if (!b->embeddings.type) return PL_OK;
    b->holds.part = PART_REST;
    b->holds.embeddings = packed_dtype(b->embeddings.type);
    b->rows.embedding = packed_embedding_bytes(&b->embeddings);
    out->partial = true;
    out->whole = &b->whole;
    return PL_OK;
}

/* Lets pixels be bytes, unless the program writes its own batches. */
static int describe_pixels(const struct run_options *options, struct feed_plan *b, const struct image_reader_options *o,
                           struct error *e)
{
    return options->whole ? PL_OK : model_images_table(&b->holds.pixels, o, &b->holds.media, b->memory, e);
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
static int describe_shared(const struct config *c, const struct model *m, const struct run_options *options,
                           struct feed_plan *b, struct run_batches *out, struct error *e)
{
    const bool room = config_text(c) || (c->data_max_images > 0 && !c->data_train.n);
    if (c->data_max_frames) {
        error_set(e, PL_USAGE, "data.max_frames is %" PRId64 ", and a %s takes no videos: set it to 0",
                  c->data_max_frames, m->family->model_type);
        return config_at_key(c, KEY_data_max_frames, e);
    }
    const struct patch_rules *p = &b->patches;
    struct media *holds = &b->holds.media;
    uint64_t most;
    holds->images = room ? batch_images(c, m->images->features) : 0;
    out->holds = &b->holds;
    if (!holds->images) return PL_OK;
    const struct patch_overrides sizes = {.min_pixels = (uint64_t)c->data_min_pixels,
                                          .max_pixels = (uint64_t)c->data_max_pixels};
    TRY(model_images_patches(&b->patches, m, false, &sizes, e));
    TRY(find_most_patches(c, m, p, &most, e));
    holds->patches = holds->images * (int64_t)most;
    b->rows.images = (uint32_t)holds->images, b->rows.most_patches = (uint32_t)most;
    b->rows.reader.patches = p, b->rows.reader.processor = image_source_normalisation(p);
    TRY(describe_pixels(options, b, &b->rows.reader, e));
    if (!config_text(c)) return PL_OK;
    b->reading = (struct feed_reading){&image_rows_kind, &b->rows};
    return PL_OK;
}

/* Describes rows of text with images of any size. Without data, and without data.max_patches, there
 * is only text. */
static int describe_patches(const struct config *c, const struct model *m, const struct run_options *options,
                            struct feed_plan *b, struct run_batches *out, struct error *e)
{
    const int64_t unit = m->images->grids->merge * m->images->grids->merge;
    if (m->images->grids->tokens) return describe_shared(c, m, options, b, out, e);
    const bool room = config_text(c) || (c->data_max_patches > 0 && !c->data_train.n);
    b->holds.media.patches = room ? batch_patches(c, unit) : 0;
    out->holds = &b->holds;
    if (!b->holds.media.patches) return PL_OK;
    const struct patch_overrides sizes = {.min_pixels = (uint64_t)c->data_min_pixels,
                                          .max_pixels = (uint64_t)c->data_max_pixels},
                                 frames = {.fps = c->data_fps, .max_frames = (uint32_t)c->data_max_frames};
    TRY(model_images_patches(&b->patches, m, false, &sizes, e));
    if (c->data_max_frames) TRY(model_images_patches(&b->video_patches, m, true, &frames, e));
    b->rows.images = (uint32_t)(b->holds.media.patches / unit);
    b->rows.reader.patches = &b->patches, b->rows.reader.video_patches = &b->video_patches;
    TRY(describe_pixels(options, b, &b->rows.reader, e));
    if (!config_text(c)) return PL_OK;
    TRY(describe_embeddings(c, m, options, b, out, e));
    b->reading = (struct feed_reading){&image_rows_kind, &b->rows};
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
                               struct feed_plan *b, struct run_batches *out, struct error *e)
{
    const bool conversations = config_text(c),
               given = c->data_max_images >= 0 || c->data_max_frames || config_given(c, KEY_data_max_volumes),
               room = conversations || (given && !c->data_train.n);
    struct media *holds = &b->holds.media;
    b->rows = (struct image_rows_options){.sequence = (uint32_t)c->data_sequence, .slots = slots_of(c),
                                          .threads = (uint32_t)c->data_threads,
                                          .reader = {.range = feed_range(c), .room = batch_room(c)}};
    if (m->images->grids) return describe_patches(c, m, options, b, out, e);
    if (options->train) TRY(check_new_modalities(c, m, e));
    holds->images = m->images->single ? 1 : room ? batch_images(c, m->images->features) : 0;
    holds->frames = room && !m->images->single ? c->data_max_frames : 0;
    for (int k = 0; k < m->images->modalities.n && room && c->data_format != FORMAT_TEXT; k++)
        holds->volumes[k] = c->data_max_volumes;
    if (m->images->single && (c->data_max_frames || (c->data_max_images >= 0 && c->data_max_images != 1))) {
        const enum config_key key = c->data_max_frames ? KEY_data_max_frames : KEY_data_max_images;
        error_set(e, PL_USAGE, "%s is %" PRId64 ", and a %s takes one image a row: leave it out", config_key_name(key),
                  c->data_max_frames ? c->data_max_frames : c->data_max_images, m->family->model_type);
        return config_at_key(c, key, e);
    }
    if (m->images->single && !conversations && c->data_train.n)
        return error_set(e, PL_USAGE, "a %s takes conversations with images: set data.format to conversations",
                         m->family->model_type);
    if (holds->frames && images_frame_tokens(m, c->data_tokens_per_frame, &holds->tokens_per_frame, e))
        return config_at_key(c, KEY_data_tokens_per_frame, e);
    if (conversations || given || c->data_train.n) out->holds = &b->holds;
    if (!media_any(holds)) return PL_OK;
    struct image_reader_options *reader = &b->rows.reader;
    b->rows.images = (uint32_t)holds->images, b->rows.frames = (uint32_t)holds->frames;
    b->rows.volumes = (uint32_t)holds->volumes[0];
    reader->fps = c->data_fps, reader->max_frames = (uint32_t)c->data_max_frames;
    reader->modalities = &m->images->modalities, reader->volumes = batch_volumes(c);
    if (model_images_processor(&reader->processor, m, e) ||
        model_images_frame_processor(&reader->frame_processor, m, e) || describe_pixels(options, b, reader, e))
        return e->code;
    if (!conversations) return PL_OK;
    TRY(describe_embeddings(c, m, options, b, out, e));
    if (b->embeddings.type && media_volumes(holds)) {
        error_set(e, PL_USAGE, "data.images is a store of embeddings, and volumes are read from files: set data.images "
                  "to the folder of the images and volumes, or data.max_volumes to 0");
        return config_at_key(c, KEY_data_images, e);
    }
    b->reading = (struct feed_reading){&image_rows_kind, &b->rows};
    return PL_OK;
}

/* Describes images with masks and queries. A mask has a bit for each pixel of the image; the feed
 * computes its shares of patches. */
static int describe_ground(const struct config *c, const struct model *m, struct feed_plan *b, struct run_batches *out,
                           struct error *e)
{
    const int64_t masks = config_given(c, KEY_data_max_masks) ? c->data_max_masks : GROUND_MASKS;
    b->holds = (struct contents){.prompts = {.masks = masks}, .queries = c->data_max_queries};
    if (config_tokens(c) && c->data_train.n) return batch_refuse_tokens(c, m, e);
    if (masks > GROUND_MASKS) {
        error_set(e, PL_USAGE, "data.max_masks is %" PRId64 "; a query chooses among at most %d masks", masks,
                  GROUND_MASKS);
        return config_at_key(c, KEY_data_max_masks, e);
    }
    if (b->holds.queries > masks) {
        error_set(e, PL_USAGE,
                  "data.max_queries is %" PRId64 ", and a sample has %" PRId64
                  " masks (data.max_masks), of which every query may need another",
                  b->holds.queries, masks);
        return config_at_key(c, KEY_data_max_queries, e);
    }
    if (c->data_image_size && c->data_image_size != m->image) {
        error_set(e, PL_USAGE,
                  "data.image_size is %" PRId64 ", and the vision tower takes images of %" PRId64
                  " pixels: leave it out",
                  c->data_image_size, m->image);
        return config_at_key(c, KEY_data_image_size, e);
    }
    b->masks = any_loader(c, masks);
    b->masks.side = b->masks.cells = (uint32_t)m->image;
    out->holds = &b->holds;
    out->packed = true; /* a row of queries */
    if (!config_tokens(c)) b->reading = (struct feed_reading){&loader_kind, &b->masks};
    out->size = KEY_data_max_masks;
    out->least = b->holds.queries;
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
                              struct feed_plan *b, struct run_batches *out, struct error *e)
{
    const struct prs_model *x = prs_model(m);
    b->holds = prs_usual_contents;
    batch_prs(c, &b->holds);
    b->holds.answer.drops = o->train;
    b->holds.prompts.statistics = o->evaluate;
    out->holds = &b->holds;
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
    b->questions = (struct question_rows_options){.sequence = (uint32_t)c->data_sequence,
                                                  .reader = {.range = feed_range(c), .room = batch_room(c)},
                                                  .masks = {.side = (uint32_t)x->image, .cells = (uint32_t)x->mask,
                                                            .masks = 1, .threads = (uint32_t)c->data_threads,
                                                            .slots = slots_of(c), .room = batch_room(c)}};
    const struct model llava = model_reader(m);
    TRY(model_images_processor(&b->questions.reader.processor, &llava, e));
    TRY(describe_pixels(o, b, &b->questions.reader, e));
    b->reading = (struct feed_reading){&question_rows_kind, &b->questions};
    return PL_OK;
}

/* Describes texts. Rows are as long as the text tower takes, unless data.sequence says it. */
static int describe_texts(const struct config *c, const struct model *m, const struct run_options *o,
                          struct feed_plan *b, struct run_batches *out, struct error *e)
{
    if (config_given(c, KEY_data_sequence) && c->data_sequence > m->longest) {
        error_set(e, PL_USAGE,
                  "data.sequence is %" PRId64 ", and the text tower has %" PRId64 " positions: leave it out",
                  c->data_sequence, m->longest);
        return config_at_key(c, KEY_data_sequence, e);
    }
    b->holds.padded = true;
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
                         struct feed_plan *b, struct run_batches *out, struct error *e)
{
    char takes[256];
    b->list = (struct image_list_options){.threads = (uint32_t)c->data_threads, .slots = slots_of(c),
                                          .reader = {.range = feed_range(c), .room = batch_room(c)}};
    const bool contrastive = m->head->kind == HEAD_CONTRASTIVE,
               fits = c->data_format == (contrastive ? FORMAT_CAPTIONS : FORMAT_CLASSES);
    if (!fits && (c->data_train.n || c->data_validation.n || !config_tokens(c)))
        return error_set(e, PL_USAGE, "data.format is %s, and a %s with a head takes %s; %s", batch_format(c),
                         m->family->model_type, model_list_ports(m, takes), batch_advice(m));
    const enum image_family family = m->head->siglip ? IMAGES_SIGLIP : IMAGES_CLIP;
    if (!*m->head->folder) image_processor_default(&b->list.reader.processor, family, (uint32_t)m->image);
    else if (image_processor_read(&b->list.reader.processor, m->head->folder, family, (uint32_t)m->image, e))
        return e->code;
    if (fits) b->reading = (struct feed_reading){&image_list_kind, &b->list};
    TRY(describe_pixels(o, b, &b->list.reader, e));
    out->holds = &b->holds;
    out->size = KEY_train_effective_batch; /* nothing of a sample can be made smaller */
    out->least = INT64_MAX;
    if (contrastive) return describe_texts(c, m, o, b, out, e);
    return o->train ? check_adapter(c, m, e) : PL_OK;
}

/* Describes text, with or without images among its tokens, or images with masks. */
static int describe_rest(const struct config *c, const struct model *m, const struct run_options *o,
                         struct feed_plan *b, struct run_batches *out, struct error *e)
{
    char takes[256];
    /* Calibration plans a mask model without data; with a configuration file the data format
     * must fit the model. */
    if (config_tokens(c) && m->masks && c->file) return batch_refuse_tokens(c, m, e);
    if (!config_tokens(c) && !m->masks)
        return error_set(e, PL_USAGE, "data.format %s gives images with masks, and a %s takes %s; %s",
                         batch_format(c), m->family->model_type, model_list_ports(m, takes), batch_advice(m));
    /* a row with padding after one conversation is a plain causal row */
    out->packed = config_text(c) && c->data_packing;
    out->sparse_labels =
        config_text(c) &&
        ((c->data_format == FORMAT_CONVERSATIONS && c->data_train_on != TRAIN_ON_ALL) || !c->data_packing);
    if (m->images) return describe_image_rows(c, m, o, b, out, e);
    if (!m->masks) return PL_OK;
    if (out->holds) b->holds = *out->holds;
    if (!config_tokens(c)) TRY(describe_images(c, m, o, b, out, e));
    TRY(check_loss(c, m, e));
    b->holds.prompts.loss = batch_loss(c);
    b->holds.prompts.statistics = o->evaluate;
    b->holds.prompts.picks = o->picks;
    b->whole = b->holds;
    b->whole.part = PART_ALL;
    out->holds = &b->holds;
    out->partial = b->holds.part != PART_ALL;
    out->whole = b->embeddings.type ? &b->whole : NULL;
    return PL_OK;
}

int feed_describe(const struct config *c, const struct model *m, const struct run_options *o, struct bump *memory,
                  struct run_batches *out, struct error *e)
{
    struct feed_plan *b = out->feed = bump_alloc(memory, sizeof *b);
    b->memory = memory;
    TRY(prs_model(m) ? describe_questions(c, m, o, b, out, e)
        : m->ground  ? describe_ground(c, m, b, out, e)
        : m->head    ? describe_head(c, m, o, b, out, e)
                     : describe_rest(c, m, o, b, out, e));
    out->loader_bytes = b->reading.kind ? reading_bytes(&b->reading) : 0;
    return PL_OK;
}
