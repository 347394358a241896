/*
 * sam2_names.c: checkpoints of SAM 2: the names of their tensors, in the original code and in a
 * folder of transformers, and the configuration that the shapes determine.
 *
 *     original    image_encoder.trunk.blocks.0.norm1.weight     under the key "model"
 *     folder      vision_encoder.backbone.blocks.0.layer_norm1.weight
 *
 * A checkpoint with the weights for videos becomes a folder of model_type sam2_video. Shapes say
 * neither the windows nor which blocks attend to the whole map, so that the blocks of the stages
 * must be those of a published size. As in sam_names.c the tensors for images are compared with the
 * layer code of the configuration; those for videos are renamed only.
 *
 * The original has one tensor for each kind of point, a folder one for all kinds.
 */
#include "io/json.h"
#include "models/model.h"
#include "models/sam.h"
#include "models/sam_names.h"

#define DECODER "sam_mask_decoder."
#define HYPER "output_hypernetworks_mlps.#."
#define TRANSFORMER "mask_decoder.transformer."
#define POINTS "prompt_encoder.point_embed."
#define FREQUENCIES "shared_image_embedding.positional_embedding"
/* transformers' second name for the same tensor */
#define SECOND_NAME "prompt_encoder.shared_embedding.positional_embedding"

/* Beginnings of names; # is a number. The first that a name has counts. */
static const struct renaming {
    const char *original, *name;
} renamed[] = {
    {"image_encoder.trunk.blocks.#.norm", "vision_encoder.backbone.blocks.#.layer_norm"},
    {"image_encoder.trunk.blocks.#.mlp.layers.0.", "vision_encoder.backbone.blocks.#.mlp.proj_in."},
    {"image_encoder.trunk.blocks.#.mlp.layers.1.", "vision_encoder.backbone.blocks.#.mlp.proj_out."},
    {"image_encoder.trunk.patch_embed.proj.", "vision_encoder.backbone.patch_embed.projection."},
    {"image_encoder.trunk.", "vision_encoder.backbone."},
    {"image_encoder.neck.convs.#.conv.", "vision_encoder.neck.convs.#."},
    {"sam_prompt_encoder.pe_layer.positional_encoding_gaussian_matrix", FREQUENCIES},
    {"sam_prompt_encoder.mask_downscaling.0.", "prompt_encoder.mask_embed.conv1."},
    {"sam_prompt_encoder.mask_downscaling.1.", "prompt_encoder.mask_embed.layer_norm1."},
    {"sam_prompt_encoder.mask_downscaling.3.", "prompt_encoder.mask_embed.conv2."},
    {"sam_prompt_encoder.mask_downscaling.4.", "prompt_encoder.mask_embed.layer_norm2."},
    {"sam_prompt_encoder.mask_downscaling.6.", "prompt_encoder.mask_embed.conv3."},
    {"sam_prompt_encoder.point_embeddings.", POINTS},
    {"sam_prompt_encoder.", "prompt_encoder."},
    {"sam_" TRANSFORMER "layers.#.norm", TRANSFORMER "layers.#.layer_norm"},
    {"sam_" TRANSFORMER "layers.#.mlp.layers.0.", TRANSFORMER "layers.#.mlp.proj_in."},
    {"sam_" TRANSFORMER "layers.#.mlp.layers.1.", TRANSFORMER "layers.#.mlp.proj_out."},
    {"sam_" TRANSFORMER "layers.#.self_attn.out_proj.", TRANSFORMER "layers.#.self_attn.o_proj."},
    {"sam_" TRANSFORMER "layers.#.cross_attn_token_to_image.out_proj.",
     TRANSFORMER "layers.#.cross_attn_token_to_image.o_proj."},
    {"sam_" TRANSFORMER "layers.#.cross_attn_image_to_token.out_proj.",
     TRANSFORMER "layers.#.cross_attn_image_to_token.o_proj."},
    {"sam_" TRANSFORMER "final_attn_token_to_image.out_proj.", TRANSFORMER "final_attn_token_to_image.o_proj."},
    {"sam_" TRANSFORMER "norm_final_attn.", TRANSFORMER "layer_norm_final_attn."},
    {DECODER "output_upscaling.0.", "mask_decoder.upscale_conv1."},
    {DECODER "output_upscaling.1.", "mask_decoder.upscale_layer_norm."},
    {DECODER "output_upscaling.3.", "mask_decoder.upscale_conv2."},
    {DECODER HYPER "layers.0.", "mask_decoder." HYPER "proj_in."},
    {DECODER HYPER "layers.1.", "mask_decoder." HYPER "layers.0."},
    {DECODER HYPER "layers.2.", "mask_decoder." HYPER "proj_out."},
    {DECODER "iou_prediction_head.layers.0.", "mask_decoder.iou_prediction_head.proj_in."},
    {DECODER "iou_prediction_head.layers.1.", "mask_decoder.iou_prediction_head.layers.0."},
    {DECODER "iou_prediction_head.layers.2.", "mask_decoder.iou_prediction_head.proj_out."},
    {DECODER "pred_obj_score_head.layers.0.", "mask_decoder.pred_obj_score_head.proj_in."},
    {DECODER "pred_obj_score_head.layers.1.", "mask_decoder.pred_obj_score_head.layers.0."},
    {DECODER "pred_obj_score_head.layers.2.", "mask_decoder.pred_obj_score_head.proj_out."},
    {DECODER, "mask_decoder."},
    {"no_mem_embed", "no_memory_embedding"},
    /* for videos */
    {"memory_attention.layers.#.norm", "memory_attention.layers.#.layer_norm"},
    {"memory_attention.layers.#.self_attn.out_proj.", "memory_attention.layers.#.self_attn.o_proj."},
    {"memory_attention.layers.#.cross_attn_image.out_proj.", "memory_attention.layers.#.cross_attn_image.o_proj."},
    {"memory_attention.norm.", "memory_attention.layer_norm."},
    {"memory_encoder.mask_downsampler.encoder.0.", "memory_encoder.mask_downsampler.layers.0.conv."},
    {"memory_encoder.mask_downsampler.encoder.1.", "memory_encoder.mask_downsampler.layers.0.layer_norm."},
    {"memory_encoder.mask_downsampler.encoder.3.", "memory_encoder.mask_downsampler.layers.1.conv."},
    {"memory_encoder.mask_downsampler.encoder.4.", "memory_encoder.mask_downsampler.layers.1.layer_norm."},
    {"memory_encoder.mask_downsampler.encoder.6.", "memory_encoder.mask_downsampler.layers.2.conv."},
    {"memory_encoder.mask_downsampler.encoder.7.", "memory_encoder.mask_downsampler.layers.2.layer_norm."},
    {"memory_encoder.mask_downsampler.encoder.9.", "memory_encoder.mask_downsampler.layers.3.conv."},
    {"memory_encoder.mask_downsampler.encoder.10.", "memory_encoder.mask_downsampler.layers.3.layer_norm."},
    {"memory_encoder.mask_downsampler.encoder.12.", "memory_encoder.mask_downsampler.final_conv."},
    {"memory_encoder.pix_feat_proj.", "memory_encoder.feature_projection."},
    {"memory_encoder.fuser.layers.#.gamma", "memory_encoder.memory_fuser.layers.#.scale"},
    {"memory_encoder.fuser.layers.#.dwconv.", "memory_encoder.memory_fuser.layers.#.depthwise_conv."},
    {"memory_encoder.fuser.layers.#.norm.", "memory_encoder.memory_fuser.layers.#.layer_norm."},
    {"memory_encoder.fuser.layers.#.pwconv", "memory_encoder.memory_fuser.layers.#.pointwise_conv"},
    {"memory_encoder.out_proj.", "memory_encoder.projection."},
    {"maskmem_tpos_enc", "memory_temporal_positional_encoding"},
    {"no_mem_pos_enc", "no_memory_positional_encoding"},
    {"no_obj_ptr", "no_object_pointer"},
    {"no_obj_embed_spatial", "occlusion_spatial_embedding_parameter"},
    {"obj_ptr_proj.layers.0.", "object_pointer_proj.proj_in."},
    {"obj_ptr_proj.layers.1.", "object_pointer_proj.layers.0."},
    {"obj_ptr_proj.layers.2.", "object_pointer_proj.proj_out."},
    {"obj_ptr_tpos_proj.", "temporal_positional_encoding_projection_layer."},
};

/* The published sizes by the blocks of their stages. */
static const struct published_size {
    int64_t blocks[4];
    int heads; /* of the first stage */
    const char *windows, *global;
} published[] = {
    {{1, 2, 7, 2}, 1, "[8, 4, 14, 7]", "[5, 7, 9]"},
    {{1, 2, 11, 2}, 1, "[8, 4, 14, 7]", "[7, 10, 13]"},
    {{2, 3, 16, 3}, 2, "[8, 4, 14, 7]", "[12, 16, 20]"},
    {{2, 6, 36, 4}, 2, "[8, 4, 16, 8]", "[23, 33, 43]"},
};

enum { NAME_ROOM = 256, STAGES = 4, IMAGE = 1024, CELL = 16 };

/* --- names ------------------------------------------------------------------------------- */

/* Rewrites a name that begins as `from` to begin as `to`; false: it does not. */
static bool rewrite(const char *from, const char *to, const char *name, char out[NAME_ROOM])
{
    char number[8] = "";
    for (; *from; from++) {
        if (*from == '#') {
            const size_t n = strspn(name, "0123456789");
            if (!n || n >= sizeof number) return false;
            snprintf(number, sizeof number, "%.*s", (int)n, name);
            name += n;
        } else if (*from != *name++) {
            return false;
        }
    }
    size_t n = 0;
    for (; *to && n + sizeof number < NAME_ROOM; to++)
        if (*to == '#') n += (size_t)snprintf(out + n, NAME_ROOM - n, "%s", number);
        else out[n++] = *to;
    snprintf(out + n, NAME_ROOM - n, "%s", name);
    return true;
}

static const char *folder_name(const char *original, char out[NAME_ROOM])
{
    for (size_t i = 0; i < COUNT(renamed); i++)
        if (rewrite(renamed[i].original, renamed[i].name, original, out)) return out;
    return original;
}

static const char *original_name(const char *name, char out[NAME_ROOM])
{
    for (size_t i = 0; i < COUNT(renamed); i++)
        if (rewrite(renamed[i].name, renamed[i].original, name, out)) return out;
    return name;
}

static bool begins(const char *name, const char *with) { return !strncmp(name, with, strlen(with)); }

bool sam2_is(const struct sam_names *n)
{
    for (uint32_t i = 0; i < n->found.n; i++)
        if (begins(n->found.at[i].found, "sam_mask_decoder.") || begins(n->found.at[i].found, "image_encoder.trunk.") ||
            begins(n->found.at[i].found, "vision_encoder.backbone."))
            return true;
    return false;
}

/* --- sizes ------------------------------------------------------------------------------- */

/* Finds a tensor by its name in a folder. */
static struct sam_tensor *find(const struct sam_names *n, const char *name)
{
    for (uint32_t i = 0; i < n->found.n; i++)
        if (!strcmp(n->found.at[i].original, name)) return &n->found.at[i];
    return NULL;
}

/* Returns a dimension; 0: there is none. */
static int64_t size_of(struct sam_names *n, const char *name, int dim)
{
    const struct sam_tensor *t = find(n, name);
    if (!t && !n->missing) n->missing = bump_string(&n->memory, name);
    return t && dim < t->rank ? t->dim[dim] : 0;
}

/* Finds the width and the blocks of each stage: a stage begins where a block changes the width. */
static int find_stages(struct sam_names *n, struct error *e)
{
    int stage = 0;
    for (int i = 0; i < SAM_BLOCKS; i++) {
        char name[NAME_ROOM];
        snprintf(name, sizeof name, "vision_encoder.backbone.blocks.%d.attn.qkv.weight", i);
        const struct sam_tensor *t = find(n, name);
        if (!t || t->rank != 2) break;
        const int64_t in = t->dim[1], out = t->dim[0] / 3;
        if (i && in != out) stage++;
        if (stage >= STAGES) return error_set(e, PL_USAGE, "block %d begins a fifth stage; a Hiera has four", i);
        n->stage[stage].dim = out;
        n->stage[stage].depth++;
    }
    n->n_stages = stage + 1;
    for (size_t i = 0; i < COUNT(published); i++) {
        bool same = true;
        for (int k = 0; k < STAGES; k++) same &= published[i].blocks[k] == n->stage[k].depth;
        if (same) return n->window = (int64_t)i, PL_OK;
    }
    return error_set(e, PL_USAGE,
                     "stages of %lld, %lld, %lld and %lld blocks are those of no published size of SAM 2, and the "
                     "weights do not say its windows", (long long)n->stage[0].depth, (long long)n->stage[1].depth,
                     (long long)n->stage[2].depth, (long long)n->stage[3].depth);
}

/* --- configuration -------------------------------------------------------------------------- */

static void put_raw(struct json_writer *w, struct bump *b, const char *key, const char *json)
{
    struct value *v;
    struct error ignored;
    CHECK(!json_parse(json, strlen(json), b, &v, &ignored), "%s", json);
    json_put_value(w, key, v);
}

static void put_pair(struct json_writer *w, const char *key, int64_t a, int64_t b)
{
    json_begin_list(w, key);
    json_put_int(w, NULL, a);
    json_put_int(w, NULL, b);
    json_end(w);
}

static void put_vision(struct sam_names *n, struct json_writer *w)
{
    const struct published_size *p = &published[n->window];
    struct bump b = {0};
    const char *root = "vision_encoder.backbone.patch_embed.projection.weight";
    json_begin_map(w, "vision_config");
    json_put_string(w, "model_type", "sam2_vision_model");
    json_begin_map(w, "backbone_config");
    json_put_string(w, "model_type", "sam2_hiera_det_model");
    json_put_int(w, "hidden_size", n->stage[0].dim);
    json_put_int(w, "num_attention_heads", p->heads);
    json_put_int(w, "num_channels", size_of(n, root, 1));
    put_pair(w, "patch_kernel_size", size_of(n, root, 2), size_of(n, root, 3));
    put_pair(w, "window_positional_embedding_background_size", size_of(n, "vision_encoder.backbone.pos_embed", 2),
             size_of(n, "vision_encoder.backbone.pos_embed", 3));
    json_begin_list(w, "blocks_per_stage");
    for (int i = 0; i < STAGES; i++) json_put_int(w, NULL, n->stage[i].depth);
    json_end(w);
    json_begin_list(w, "embed_dim_per_stage");
    for (int i = 0; i < STAGES; i++) json_put_int(w, NULL, n->stage[i].dim);
    json_end(w);
    json_begin_list(w, "num_attention_heads_per_stage");
    for (int i = 0; i < STAGES; i++) json_put_int(w, NULL, (int64_t)p->heads << i);
    json_end(w);
    put_raw(w, &b, "window_size_per_stage", p->windows);
    put_raw(w, &b, "global_attention_blocks", p->global);
    json_end(w);
    json_begin_list(w, "backbone_channel_list");
    for (int i = STAGES - 1; i >= 0; i--) json_put_int(w, NULL, n->stage[i].dim);
    json_end(w);
    json_put_int(w, "fpn_hidden_size", size_of(n, "no_memory_embedding", 2));
    json_end(w);
    bump_free(&b);
}

static void put_heads(struct sam_names *n, struct json_writer *w)
{
    const int64_t C = size_of(n, "no_memory_embedding", 2),
                  inner = size_of(n, TRANSFORMER "layers.0.mlp.proj_in.weight", 0),
                  across = size_of(n, TRANSFORMER "final_attn_token_to_image.q_proj.weight", 0);
    int64_t layers = 0, heads = 8;
    char name[NAME_ROOM];
    do snprintf(name, sizeof name, TRANSFORMER "layers.%lld.layer_norm1.weight", (long long)layers);
    while (find(n, name) && layers++ < SAM_BLOCKS);
    while (heads > 1 && (across % heads || C % heads)) heads /= 2;
    json_begin_map(w, "prompt_encoder_config");
    json_put_string(w, "model_type", "sam2_prompt_encoder");
    json_put_int(w, "hidden_size", C);
    json_put_int(w, "image_size", IMAGE);
    json_put_int(w, "patch_size", CELL);
    json_put_int(w, "mask_input_channels", size_of(n, "prompt_encoder.mask_embed.conv2.weight", 0));
    json_end(w);
    json_begin_map(w, "mask_decoder_config");
    json_put_string(w, "model_type", "sam2_mask_decoder");
    json_put_int(w, "hidden_size", C);
    json_put_int(w, "mlp_dim", inner);
    json_put_int(w, "num_hidden_layers", layers);
    json_put_int(w, "num_attention_heads", heads);
    json_put_int(w, "attention_downsample_rate", C / max_i64(1, across));
    json_put_int(w, "num_multimask_outputs", size_of(n, "mask_decoder.mask_tokens.weight", 0) - 1);
    json_put_int(w, "iou_head_depth", 3);
    json_put_int(w, "iou_head_hidden_dim", size_of(n, "mask_decoder.iou_prediction_head.proj_in.weight", 0));
    json_end(w);
}

void sam2_config_json(struct sam_names *n, struct text *out)
{
    const struct sam_tensor *memories = find(n, "memory_temporal_positional_encoding");
    struct json_writer w = {.out = out, .indent = 2};
    json_begin_map(&w, NULL);
    json_begin_list(&w, "architectures");
    json_put_string(&w, NULL, memories ? "Sam2VideoModel" : "Sam2Model");
    json_end(&w);
    json_put_string(&w, "model_type", memories ? "sam2_video" : "sam2");
    json_put_number(&w, "initializer_range", 0.02);
    json_put_string(&w, "torch_dtype", sam_torch_dtype(n->found.n ? n->found.at[0].dtype : DT_F32));
    if (memories) {
        json_put_int(&w, "image_size", IMAGE);
        json_put_int(&w, "num_maskmem", memories->dim[0]);
        json_put_bool(&w, "enable_temporal_pos_encoding_for_object_pointers",
                      find(n, "temporal_positional_encoding_projection_layer.weight"));
        json_put_bool(&w, "enable_occlusion_spatial_embedding", find(n, "occlusion_spatial_embedding_parameter"));
    }
    put_vision(n, &w);
    put_heads(n, &w);
    json_end(&w);
    text_append(out, "\n", 1);
}

void sam2_preprocessor_json(struct text *out)
{
    struct json_writer w = {.out = out, .indent = 2};
    sam_begin_processor(&w, "Sam2ImageProcessorFast", "Sam2Processor", false);
    sam_put_square(&w, "size", IMAGE);
    sam_put_square(&w, "mask_size", IMAGE / 4);
    json_end(&w);
    text_append(out, "\n", 1);
}

/* --- the tensors of the model --------------------------------------------------------------- */

static int refuse(const struct sam_tensor *t, const char *expected, struct error *e)
{
    char shape[128];
    size_t n = (size_t)snprintf(shape, sizeof shape, "[");
    for (int i = 0; i < t->rank && n < 100; i++)
        n += (size_t)snprintf(shape + n, sizeof shape - n, "%s%lld", i ? "," : "", (long long)t->dim[i]);
    return error_set(e, PL_USAGE, "%s is %s]; the other tensors imply %s", t->found, shape, expected);
}

static int add_part(struct sam_names *n, struct sam_tensor *t, const char *name, int rank, const int64_t *dim,
                    struct error *e)
{
    char original[NAME_ROOM], expected[128];
    struct sam_part p = {.original = bump_string(&n->memory, original_name(name, original)),
                         .name = bump_string(&n->memory, name), .again = t->used, .from = t};
    t->used = true;
    vec_push(&n->parts, p);
    if (t->rank == rank && !memcmp(t->dim, dim, (size_t)rank * sizeof *dim)) return PL_OK;
    size_t k = (size_t)snprintf(expected, sizeof expected, "[");
    for (int i = 0; i < rank && k < 100; i++)
        k += (size_t)snprintf(expected + k, sizeof expected - k, "%s%lld", i ? "," : "", (long long)dim[i]);
    snprintf(expected + k, sizeof expected - k, "]");
    return refuse(t, expected, e);
}

/* Adds the table of point embeddings, `kinds` rows of C: of a folder one tensor, which becomes one
 * for each kind; of a checkpoint one for each kind. */
static int add_points(struct sam_names *n, int64_t kinds, int64_t C, struct error *e)
{
    struct sam_tensor *whole = find(n, POINTS "weight"), *each = bump_alloc(&n->memory, (size_t)kinds * sizeof *each);
    char name[NAME_ROOM], original[NAME_ROOM];
    if (whole && (whole->rank != 2 || whole->dim[0] != kinds || whole->dim[1] != C))
        return refuse(whole, "a row for each kind of point", e);
    for (int64_t i = 0; i < kinds; i++) {
        snprintf(name, sizeof name, POINTS "%lld.weight", (long long)i);
        struct sam_tensor *t = whole ? whole : find(n, name);
        if (!t) return error_set(e, PL_USAGE, "%s is missing", original_name(name, original));
        if (!whole && (t->rank != 2 || t->dim[0] != 1 || t->dim[1] != C || (i && t->dtype != each[0].dtype)))
            return refuse(t, "one row of the prompt's width, in one dtype", e);
        each[i] = *t;
        t->used = true;
        struct sam_part p = {.original = bump_string(&n->memory, original_name(name, original)),
                             .name = POINTS "weight", .again = i && !whole, .from = whole ? whole : &each[0],
                             .joined = i || whole ? 0 : (int)kinds, .row = i, .rows = whole ? 1 : 0};
        if (whole || !i) vec_push(&n->parts, p);
    }
    return PL_OK;
}

/* Compares the parameters of the layer code with the tensors. */
static int compare(struct sam_names *n, const struct model *m, struct error *e)
{
    struct graph g;
    char original[NAME_ROOM];
    graph_init(&g);
    m->family->build(m, &g, &(struct batch){.B = 1, .outputs = true});
    int rc = graph_error(&g, e);
    for (uint32_t i = 0; i < g.params.n && !rc; i++) {
        const id at = g.params.at[i].tensor;
        const struct tensor *x = tensor_at(&g, at);
        const char *name = graph_name(&g, x->name);
        if (storage_of(&g, at)->kind == KIND_CONST) continue;
        struct sam_tensor *t = find(n, name);
        if (!strcmp(name, POINTS "weight")) rc = add_points(n, x->dim[0], x->dim[1], e);
        else if (!t)
            rc = error_set(e, PL_USAGE, "%s is missing (%s in a folder)", original_name(name, original), name);
        else rc = add_part(n, t, name, x->rank, x->dim, e);
    }
    graph_free(&g);
    return rc;
}

/* Adds the tensors for videos, and transformers' second name. */
static int add_others(struct sam_names *n, const struct model *m, struct error *e)
{
    for (uint32_t i = 0; i < n->found.n; i++) {
        struct sam_tensor *t = &n->found.at[i];
        bool known = t->used;
        for (const char *const *c = m->copied; c && *c && !known; c++) known = begins(t->original, *c);
        if (!known) return error_set(e, PL_USAGE, "%s does not belong to a SAM 2 of these sizes", t->found);
        if (!t->used) TRY(add_part(n, t, t->original, t->rank, t->dim, e));
    }
    struct sam_tensor *t = find(n, FREQUENCIES);
    return add_part(n, t, SECOND_NAME, t->rank, t->dim, e);
}

static int by_source(const void *a, const void *b)
{
    const struct sam_part *x = a, *y = b;
    if (x->from->source != y->from->source) return x->from->source < y->from->source ? -1 : 1;
    return x->again != y->again ? x->again - y->again : (x->row > y->row) - (x->row < y->row);
}

/* Gives each tensor its name in a folder, in `original`, and drops a second one of that name. */
static void name_all(struct sam_names *n)
{
    char name[NAME_ROOM];
    uint32_t kept = 0;
    bool checkpoint = false;
    for (uint32_t i = 0; i < n->found.n; i++) checkpoint |= begins(n->found.at[i].found, "sam_");
    for (uint32_t i = 0; i < n->found.n; i++) {
        struct sam_tensor t = n->found.at[i];
        t.original = checkpoint ? bump_string(&n->memory, folder_name(t.found, name)) : t.found;
        if (!strcmp(t.original, SECOND_NAME)) continue;
        n->found.at[kept++] = t;
    }
    n->found.n = kept;
}

int sam2_resolve(struct sam_names *n, struct error *e)
{
    struct text config = {0};
    struct model m;
    TRY(sam_names_check_dims(n, e));
    n->second = true;
    name_all(n);
    TRY(find_stages(n, e));
    sam2_config_json(n, &config);
    int rc = n->missing ? error_set(e, PL_USAGE, "%s is missing (its name in a folder)", n->missing)
                        : model_text(&m, config.at, "the configuration that the weights imply", e);
    text_free(&config);
    if (rc) return rc;
    rc = compare(n, &m, e);
    if (!rc) rc = add_others(n, &m, e);
    model_close(&m);
    if (n->parts.n) qsort(n->parts.at, n->parts.n, sizeof *n->parts.at, by_source);
    return rc;
}

int sam2_config_check(struct sam_names *n, const struct model *m, struct error *e)
{
    struct text config = {0};
    struct model implied;
    sam2_config_json(n, &config);
    int rc = model_text(&implied, config.at, "the configuration implied by the weights", e);
    text_free(&config);
    if (rc) return rc;
    if (!sam2_same(m, &implied))
        rc = error_set(e, PL_USAGE,
                       "%s/config.json differs from what the exported file would be read as, in heads, windows, global "
                       "blocks, top-down levels or norms: it would be another model", m->path);
    else if (m->image != implied.image)
        log_warn("%s/config.json: image_size is %lld; programs that read the exported file assume %lld", m->path,
                 (long long)m->image, (long long)implied.image);
    model_close(&implied);
    return rc;
}
