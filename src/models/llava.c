/*
 * llava.c: LLaVA as transformers has it (model_type llava): a tower of CLIP or SigLIP, a projector
 * of two linear layers, a decoder of any family of language models.
 *
 * The features of an image are the tokens of one hidden state of the tower, or of several that are
 * joined along their channels. What the tower has beyond the deepest of them is loaded and saved,
 * and never computed.
 */
#include "models/llava.h"

#include "graph/emit.h"
#include "io/json.h"
#include "models/layers.h"
#include "io/file.h"
#include "io/safetensors.h"

#define PROJECTOR "multi_modal_projector."

/* --- for all models of a tower and a decoder -------------------------------------------------- */

struct model *llava_part(struct model *m, const char *name)
{
    for (int i = 0; i < m->n_parts; i++)
        if (!strcmp(m->parts[i].name, name)) return &m->parts[i].model;
    return NULL;
}

int llava_add_tower(struct model *m, const char *name, const struct value *config, const char *folder, struct error *e)
{
    int rc = model_add_part(m, name, config, folder, e);
    if (rc || tower_is(model_part(m, name))) return rc;
    return error_set(e, PL_USAGE, "its vision tower is a %s, expected clip_vision_model or siglip_vision_model",
                     model_part(m, name)->family->model_type);
}

int llava_add_decoder(struct model *m, const char *name, const struct value *config, const char *folder,
                      struct error *e)
{
    char known[256];
    int rc = model_add_part(m, name, config, folder, e);
    if (rc || model_part(m, name)->family->decoder) return rc;
    return error_set(e, PL_USAGE, "its text model is a %s, expected %s", model_part(m, name)->family->model_type,
                     model_list_decoders(known, "or"));
}

int llava_part_config(struct model *m, const struct value *config, const char *key, const char *model_type,
                      const char *absent, const struct value **out, struct error *e)
{
    const struct value *map = value_get(config, key);
    struct value *made;
    if (!map || map->kind == VALUE_NULL) {
        int rc = json_parse(absent, strlen(absent), &m->memory, &made, e);
        *out = made;
        return rc;
    }
    if (value_as_map(map, key, e)) return e->code;
    *out = map;
    if (value_get(map, "model_type")) return PL_OK;
    *out = made = value_copy(&m->memory, map);
    value_put(&m->memory, made, "model_type", value_string(&m->memory, model_type));
    return PL_OK;
}

/* --- configuration ---------------------------------------------------------------------------- */

static int parse_states(struct llava *c, const struct value *config, int64_t usual, struct error *e)
{
    static const char key[] = "vision_feature_layer";
    const struct value *v = value_get(config, key);
    c->n_states = 1;
    c->states[0] = usual;
    if (!v || v->kind == VALUE_NULL) return PL_OK;
    if (v->kind != VALUE_LIST) return value_as_int(v, key, &c->states[0], e);
    if (v->count < 1 || v->count > LLAVA_STATES)
        return error_set(e, PL_USAGE, "%s lists %u states, expected 1 to %d", key, v->count, LLAVA_STATES);
    c->n_states = v->count;
    for (uint32_t i = 0; i < v->count; i++)
        if (value_as_int(value_at(v, i), key, &c->states[i], e)) return e->code;
    return PL_OK;
}

static int parse_projector(struct llava *c, const struct value *config, bool full, struct error *e)
{
    const char *strategy = full ? "full" : "default";
    c->act = ACT_GELU;
    c->bias = true;
    int rc = value_opt_bool(config, "multimodal_projector_bias", &c->bias, e);
    if (!rc) rc = value_opt_string(config, "vision_feature_select_strategy", &strategy, e);
    if (!rc && strcmp(strategy, "default") && strcmp(strategy, "full"))
        rc = error_set(e, PL_USAGE, "vision_feature_select_strategy \"%.40s\": expected default or full", strategy);
    c->drop_first = !rc && !strcmp(strategy, "default");
    return rc ? rc : layer_parse_act_at(config, "projector_hidden_act", &c->act, e);
}

int llava_describe(struct model *m, const struct llava *c, int64_t image_token, enum image_layout layout,
                   struct error *e)
{
    const struct model *tower = model_part(m, c->tower), *decoder = model_part(m, c->decoder);
    const struct tower_sizes s = tower_sizes(tower);
    for (int64_t i = 0; i < c->n_states; i++)
        if (c->states[i] < -s.layers - 1 || c->states[i] > s.layers)
            return error_set(e, PL_USAGE,
                "vision_feature_layer is %lld; a vision tower of %lld layers has the hidden states %lld to %lld",
                (long long)c->states[i], (long long)s.layers, (long long)(-s.layers - 1), (long long)s.layers);
    if (!c->linears && c->n_states * s.width != decoder_width(decoder))
        return error_set(e, PL_USAGE,
                         "without a projector the vision tower's width %lld must be the text model's, which is %lld",
                         (long long)(c->n_states * s.width), (long long)decoder_width(decoder));
    decoder_describe(m, decoder);
    TRY(images_describe(m, s, tower->family->model_type, s.tokens - c->drop_first, image_token, layout, e));
    m->images->tokens = m->images->features;
    m->images->width = c->n_states * s.width;
    return PL_OK;
}

/* transformers' defaults: CLIP ViT-L/14 at 336 pixels, and Llama. */
static const char usual_tower[] = "{\"model_type\": \"clip_vision_model\", \"hidden_size\": 1024, "
                                  "\"intermediate_size\": 4096, \"num_hidden_layers\": 24, "
                                  "\"num_attention_heads\": 16, \"image_size\": 336, \"patch_size\": 14}";
const struct llava_defaults llava_usual = {.tower_type = "clip_vision_model", .tower = usual_tower,
                                           .decoder_type = "llama", .decoder = "{\"model_type\": \"llama\"}",
                                           .token = 32000, .state = -2};

int llava_parse_parts(struct model *m, struct llava *c, const struct value *config, const struct llava_defaults *usual,
                      int64_t *token, struct error *e)
{
    *c = (struct llava){.tower = "vision_tower", .decoder = "language_model", .prefix = PROJECTOR,
                        .linear = {"linear_1", "linear_2"},
                        .linears = 2, .std = 0.02};
    const struct value *vision = NULL, *text = NULL;
    bool tied = false;
    *token = usual->token;
    int rc = llava_part_config(m, config, "vision_config", usual->tower_type, usual->tower, &vision, e);
    if (!rc) rc = llava_part_config(m, config, "text_config", usual->decoder_type, usual->decoder, &text, e);
    if (!rc && (rc = llava_add_tower(m, c->tower, vision, NULL, e))) error_prepend(e, "vision_config");
    if (!rc && (rc = llava_add_decoder(m, c->decoder, text, NULL, e))) error_prepend(e, "text_config");
    if (!rc) rc = value_opt_bool(config, "tie_word_embeddings", &tied, e);
    if (!rc && tied) decoder_tie(llava_part(m, c->decoder), true); /* else text_config decides */
    if (!rc) rc = value_opt_int(config, "image_token_index", token, e);
    if (!rc) rc = value_opt_int(config, "image_token_id", token, e);
    if (!rc) rc = value_opt_number(text, "initializer_range", &c->std, e);
    if (!rc) rc = value_opt_number(config, "initializer_range", &c->std, e);
    if (!rc) rc = parse_states(c, config, usual->state, e);
    return rc ? rc : parse_projector(c, config, usual->full, e);
}

/* --- modalities ------------------------------------------------------------------------------- */

/* Declares the inputs of the volumes, whose order in the text `volume_order` may say. */
static void describe_volumes(struct model *m)
{
    const struct modality_list *l = &m->images->modalities;
    for (int k = 0; k < l->n; k++) {
        const struct modality *x = &l->at[k];
        struct port p = {bump_format(&m->memory, "volumes.%s", x->name), VALUES_VOLUMES, 4, {OPEN_VOLUMES(k)}, true};
        for (int axis = x->series ? 0 : 1; axis < 4; axis++) p.dim[axis + x->series] = x->size[axis];
        p.rank += x->series;
        model_add_port(m, &p);
    }
    if (l->n) model_add_port(m, &(struct port){"volume_order", VALUES_ORDER, 1, {OPEN('v')}, true});
}

/* Makes the chosen modalities those of config.json. Modalities that the folder does not have start
 * from their inits; those that it has may not become others. */
static int choose_modalities(struct model *m, const struct value *config, struct modality_list *l, struct error *e)
{
    struct modality_list had = *l;
    struct value *map, *whole = value_copy(&m->memory, config);
    const char **fresh = bump_alloc(&m->memory, (MODALITIES + 1) * sizeof *fresh);
    char path[sizeof m->path];
    int n = 0;
    TRY(json_parse(m->chosen.modalities, strlen(m->chosen.modalities), &m->memory, &map, e));
    if (modalities_parse(l, map, e)) return error_prepend(e, "model");
    for (int k = 0; k < l->n; k++) {
        const int old = modality_find(&had, l->at[k].name, strlen(l->at[k].name));
        if (old < 0) fresh[n++] = bump_format(&m->memory, "modalities.%s", l->at[k].name);
        else if (!modality_equal(&had.at[old], &l->at[k]))
            return error_set(e, PL_USAGE,
                             "model.modalities.%s is another one than that of config.json, whose weights the folder "
                             "has: leave it out, or give it another name", l->at[k].name);
    }
    value_put(&m->memory, whole, "modalities", map);
    memcpy(path, m->path, sizeof path);
    model_gather(m, whole);
    memcpy(m->path, path, sizeof path); /* the other weights are in the folder */
    fresh[n] = NULL;
    if (n && *m->path) m->fresh = fresh;
    return PL_OK;
}

static int parse_modalities(struct model *m, const struct value *config, struct error *e)
{
    struct modality_list *l = &m->images->modalities;
    TRY(modalities_parse(l, value_get(config, "modalities"), e));
    if (m->chosen.modalities) TRY(choose_modalities(m, config, l, e));
    describe_volumes(m);
    return PL_OK;
}

static int parse_llava(struct model *m, const struct value *config, struct error *e)
{
    if (value_get(config, "mm_vision_tower")) return llava_parse_original(m, config, "llama", e);
    struct llava *c = m->config = bump_alloc(&m->memory, sizeof *c);
    int64_t token;
    TRY(llava_parse_parts(m, c, config, &llava_usual, &token, e));
    TRY(llava_describe(m, c, token, IMAGE_AS_TOKENS, e));
    return parse_modalities(m, config, e);
}

/* --- layers ----------------------------------------------------------------------------------- */

static id project(const struct model *m, struct graph *g, id x)
{
    const struct llava *c = m->config;
    const int64_t width = decoder_width(model_part(m, c->decoder));
    IN_SCOPE(g, "projector", SCOPE_IMAGES)
        for (int i = 0; i < c->linears; i++) {
            if (i) x = op_act(g, x, c->act);
            x = layer_linear_init(g, x, c->prefix, c->linear[i], width,
                                  (struct linear_init){.std = c->std, .no_bias = !c->bias});
        }
    return x;
}

/* Returns the chosen states, joined along their channels. */
static id encode(const struct model *m, struct graph *g, id pixels)
{
    const struct llava *c = m->config;
    const struct model *tower = model_part(m, c->tower);
    id state[LLAVA_STATES] = {0}, x = 0;
    tower_encode(tower, g, c->tower, pixels, c->n_states, c->states, state);
    IN_SCOPE(g, "projector", SCOPE_IMAGES) {
        for (int64_t i = 0; i < c->n_states && c->drop_first; i++)
            state[i] = op_slice(g, state[i], 1, 1, tower_sizes(tower).tokens - 1);
        /* products take dense rows */
        x = c->n_states > 1 ? op_concat(g, state, (int)c->n_states, 2) : op_dense(g, state[0]);
    }
    return x;
}

/* Returns the input of the projector for volumes: their tokens, after the tower's layers or without
 * these. */
static id encode_volumes(const struct model *m, struct graph *g, const struct modality *x, id patches)
{
    const struct llava *c = m->config;
    const struct model *tower = model_part(m, c->tower);
    const int64_t width = tower_sizes(tower).width;
    id state[LLAVA_STATES] = {0};
    if (!x->to_tower) return modality_embed(x, g, patches, c->n_states * width);
    tower_encode_tokens(tower, g, c->tower, x->name, modality_embed(x, g, patches, width), c->n_states, c->states,
                        state);
    return c->n_states > 1 ? op_concat(g, state, (int)c->n_states, 2) : state[0];
}

const struct image_layers llava_layers = {encode, project, encode_volumes};

bool llava_is(const struct model *m) { return m->family->build == llava_build; }
int64_t llava_width(const struct model *m)
{
    return decoder_width(model_part(m, ((const struct llava *)m->config)->decoder));
}

id llava_states(const struct model *m, struct graph *g, const struct batch *batch, id ids)
{
    const struct llava *c = m->config;
    const struct model *decoder = model_part(m, c->decoder);
    struct token_rows rows = decoder_rows(g, batch);
    id x = images_merge(m, g, batch, decoder_embed(decoder, g, c->decoder, ids), llava_layers);
    return decoder_states(decoder, g, c->decoder, x, rows);
}

struct decoded llava_loss(const struct model *m, struct graph *g, id states, id labels, const char *count)
{
    const struct llava *c = m->config;
    return decoder_loss_by(model_part(m, c->decoder), g, c->decoder, states, labels, count);
}

void llava_build(const struct model *m, struct graph *g, const struct batch *batch)
{
    const struct llava *c = m->config;
    if (images_encode(m, g, batch, llava_layers)) return;
    id ids = decoder_ids(g, batch), labels = decoder_labels(g, batch);
    decoder_outputs(model_part(m, c->decoder), g, c->decoder, batch, llava_states(m, g, batch, ids), labels);
}

/* Published: folders on the Hub. Then modules in memory, which some folders have too, and what
 * transformers 5 saves. */
const struct spelling llava_spellings[] = {
    {"language_model.model.", {"model.language_model.", "language_model."}},
    {"language_model.lm_head.", {"lm_head."}},
    {PROJECTOR, {"model." PROJECTOR}},
    {"vision_tower.vision_model.", {"model.vision_tower.", "vision_tower.", "model.vision_tower.vision_model."}},
    {NULL, {NULL}},
};

const struct family llava_family =
    {"llava", parse_llava, llava_build, "", true, .generates = true, .spellings = llava_spellings};

/* ---- The authors' layout ----
 *
 * LLaVA as its authors saved it, and LLaVA-Med (model_type llava_llama,
 * llava_mistral or llava): one config.json with the decoder's keys and those of the vision tower
 * (mm_*) beside each other.
 *
 *    model.layers.0..., lm_head.weight            the decoder, under its own names
 *    model.mm_projector.0.weight, .2.weight       mlp2x_gelu; of `linear` model.mm_projector.weight
 *    model.vision_tower.vision_tower.vision_model...   the tower, where it was saved
 *
 * Often the tower was not saved: then it is in a folder of its own, which the key
 * model.vision_tower names. Its configuration is that of this folder, or follows from
 * mm_vision_tower, a name on the Hugging Face Hub.
 */

#define TOWER "model.vision_tower.vision_tower"
enum { IMAGE_TOKEN = -200 }; /* in input_ids, at each feature of an image; no id of a vocabulary */

#define CLIP_LARGE(image)                                                                                              \
    "{\"model_type\": \"clip_vision_model\", \"hidden_size\": 1024, \"intermediate_size\": 4096, "                     \
    "\"num_hidden_layers\": 24, \"num_attention_heads\": 16, "                                                         \
    "\"image_size\": " #image ", \"patch_size\": 14}"

/* Towers by their names on the Hub. */
static const struct {
    const char *name, *config;
} published[] = {
    {"openai/clip-vit-large-patch14-336", CLIP_LARGE(336)},
    {"openai/clip-vit-large-patch14", CLIP_LARGE(224)},
    {"google/siglip-so400m-patch14-384",
     "{\"model_type\": \"siglip_vision_model\", \"hidden_size\": 1152, \"intermediate_size\": 4304, "
     "\"num_hidden_layers\": 27, \"num_attention_heads\": 16, "
     "\"image_size\": 384, \"patch_size\": 14}"},
};

/* --- the tower -------------------------------------------------------------------------------- */

static bool is_of_tower(const char *name) { return strstr(name, "vision_tower.") != NULL; }

static int find_in_file(const char *path, bool *found, struct error *e)
{
    struct st_file f;
    if (st_open(path, &f, e)) return e->code;
    for (uint32_t i = 0; i < f.n_entries && !*found; i++) *found = is_of_tower(f.entries[i].name);
    st_close(&f);
    return PL_OK;
}

/* Finds whether the folder's index, its model.safetensors, or else any of its files has a tensor
 * of the tower. */
static int find_tower(struct model *m, bool *found, struct error *e)
{
    const char *index = bump_format(&m->memory, "%s/model.safetensors.index.json", m->path),
               *file = bump_format(&m->memory, "%s/model.safetensors", m->path);
    *found = false;
    if (file_exists(index)) {
        struct value *root;
        int rc = json_read_file(index, 64u << 20, &m->memory, &root, e);
        const struct value *map = rc ? NULL : value_get(root, "weight_map");
        for (uint32_t i = 0; map && i < map->count && !*found; i++)
            *found = map->kind == VALUE_MAP && is_of_tower(map->items[i]->key);
        return rc;
    }
    if (file_exists(file)) return find_in_file(file, found, e);
    struct names files;
    int rc = dir_list_ending(m->path, ".safetensors", &files, e);
    for (uint32_t i = 0; i < files.n && !rc && !*found; i++) rc = find_in_file(files.at[i], found, e);
    names_free(&files);
    return rc;
}

static int unknown_tower(const struct model *m, const char *name, bool inside, struct error *e)
{
    return error_set(e, PL_USAGE,
                     "%s the vision tower %.200s (mm_vision_tower); set model.vision_tower to the folder of that model",
                     inside     ? "the sizes are not known of"
                     : *m->path ? "the folder has no weights of"
                                : "there is no folder of",
                     *name ? name : "without a name");
}

/* Reads the configuration of a tower that is in the model's own folder: that of `folder`, or by
 * the tower's name; or vision_config, where a model that was put together has it (prs_med.c). */
static int read_sizes(struct model *m, const struct value *config, const char *folder, const char *name,
                      struct value **out, struct error *e)
{
    const struct value *own = config ? value_get(config, "vision_config") : NULL;
    char path[1100];
    if (own && own->kind == VALUE_MAP) return *out = value_copy(&m->memory, own), PL_OK;
    snprintf(path, sizeof path, "%s/config.json", folder ? folder : "");
    if (folder) return json_read_file(path, 16u << 20, &m->memory, out, e);
    for (size_t i = 0; i < COUNT(published); i++)
        if (!strcmp(published[i].name, name))
            return json_parse(published[i].config, strlen(published[i].config), &m->memory, out, e);
    return unknown_tower(m, name, true, e);
}

/* Adds a tower in a folder of its own. That folder must not name another: it may be the model's. */
static int add_folder(struct model *m, const char *folder, struct error *e)
{
    struct value *config;
    const char *type = "";
    TRY(read_sizes(m, NULL, folder, NULL, &config, e));
    TRY(value_opt_string(config, "model_type", &type, e));
    if (!strncmp(type, "llava", 5))
        return error_set(e, PL_USAGE,
                         "the vision tower %.300s is a %.40s, expected clip_vision_model or siglip_vision_model",
                         folder, type);
    return llava_add_tower(m, TOWER, NULL, folder, e);
}

/* Adds the tower. Its folder is that of model.vision_tower, or the one that mm_vision_tower is.
 * Weights in the model's own folder come first: they were trained there. */
static int add_tower(struct model *m, const struct value *config, struct error *e)
{
    const char *name = "", *folder = m->chosen.vision_tower;
    struct value *sizes;
    bool inside = !*m->path;
    int rc = value_opt_string(config, "mm_vision_tower", &name, e);
    if (!rc && *m->path) rc = find_tower(m, &inside, e);
    if (rc) return rc;
    if (folder && !dir_exists(folder)) return model_missing(folder, e) ? error_prepend(e, "model.vision_tower") : PL_OK;
    if (!folder && *name && dir_exists(name)) folder = name;
    if (!inside) return folder ? add_folder(m, folder, e) : unknown_tower(m, name, false, e);
    rc = read_sizes(m, config, folder, name, &sizes, e);
    return rc ? rc : llava_add_tower(m, TOWER, sizes, NULL, e);
}

/* --- the projector ---------------------------------------------------------------------------- */

/* Parses linear, identity, or mlpNx_gelu: N linear layers, numbered with the activations between
 * them. */
static int parse_authors_projector(struct llava *c, const struct value *config, struct error *e)
{
    static const char *const numbers[LLAVA_LINEARS] = {"0", "2", "4", "6", "8", "10", "12", "14"};
    const char *type = "linear";
    int rc = value_opt_string(config, "mm_projector_type", &type, e);
    c->act = ACT_GELU;
    c->bias = true;
    c->prefix = "model.mm_projector.";
    if (!rc && !strcmp(type, "linear")) {
        c->prefix = "model.";
        c->linear[0] = "mm_projector";
        c->linears = 1;
    } else if (!rc && strcmp(type, "identity")) {
        char *end = NULL;
        const long n = !strncmp(type, "mlp", 3) ? strtol(type + 3, &end, 10) : 0;
        if (n < 1 || n > LLAVA_LINEARS || strcmp(end, "x_gelu"))
            return error_set(e, PL_USAGE,
                "mm_projector_type \"%.60s\": expected linear, identity, or mlpNx_gelu with N from 1 to %d", type,
                LLAVA_LINEARS);
        c->linears = (int)n;
        memcpy(c->linear, numbers, sizeof numbers);
    }
    return rc;
}

static int parse_selection(struct llava *c, const struct value *config, struct error *e)
{
    const char *feature = "patch", *aspect = "pad", *merge = "flat";
    c->n_states = 1;
    c->states[0] = -2;
    TRY(value_opt_int(config, "mm_vision_select_layer", &c->states[0], e));
    TRY(value_opt_string(config, "mm_vision_select_feature", &feature, e));
    TRY(value_opt_string(config, "image_aspect_ratio", &aspect, e));
    TRY(value_opt_string(config, "mm_patch_merge_type", &merge, e));
    if (strcmp(feature, "patch") && strcmp(feature, "cls_patch"))
        return error_set(e, PL_USAGE, "mm_vision_select_feature \"%.40s\": expected patch or cls_patch", feature);
    if (!strncmp(aspect, "anyres", 6) || strcmp(merge, "flat"))
        return error_set(e, PL_USAGE,
                         "image_aspect_ratio %.40s with mm_patch_merge_type %.40s: images in tiles are not supported; "
                         "use a model with image_aspect_ratio pad or square", aspect, merge);
    return PL_OK;
}

/* --- the model -------------------------------------------------------------------------------- */

/* Leaves CLIP's class token out; SigLIP has none. */
static void drop_class_token(struct model *m, struct llava *c, const struct value *config)
{
    const char *feature = "patch";
    struct error ignored;
    const struct tower_sizes s = tower_sizes(model_part(m, TOWER));
    value_opt_string(config, "mm_vision_select_feature", &feature, &ignored);
    c->drop_first = !strcmp(feature, "patch") && s.tokens > s.side * s.side;
}

int llava_parse_original(struct model *m, const struct value *config, const char *decoder, struct error *e)
{
    struct llava *c = m->config = bump_alloc(&m->memory, sizeof *c);
    *c = (struct llava){.tower = TOWER, .decoder = "", .std = 0.02};
    m->leaves_tower = true;
    struct value *text = value_copy(&m->memory, config);
    value_put(&m->memory, text, "model_type", value_string(&m->memory, decoder));
    int64_t width = 0;
    TRY(llava_add_decoder(m, c->decoder, text, NULL, e));
    TRY(parse_authors_projector(c, config, e));
    TRY(parse_selection(c, config, e));
    TRY(add_tower(m, config, e));
    TRY(value_opt_int(config, "mm_hidden_size", &width, e));
    if (width && width != tower_sizes(model_part(m, TOWER)).width)
        return error_set(e, PL_USAGE,
            "mm_hidden_size is %lld, and the vision tower%s%.300s has a hidden_size of %lld: it belongs to "
            "another model",
            (long long)width, m->chosen.vision_tower ? " " : "", m->chosen.vision_tower ? m->chosen.vision_tower : "",
            (long long)tower_sizes(model_part(m, TOWER)).width);
    drop_class_token(m, c, config);
    bool start_end = false;
    if (value_opt_bool(config, "mm_use_im_start_end", &start_end, e) ||
        llava_describe(m, c, IMAGE_TOKEN, IMAGE_AS_PIECES, e))
        return e->code;
    if (start_end) m->images->around[0] = "<im_start>", m->images->around[1] = "<im_end>";
    return PL_OK;
}

static int parse_llama(struct model *m, const struct value *v, struct error *e)
{
    return llava_parse_original(m, v, "llama", e);
}
static int parse_mistral(struct model *m, const struct value *v, struct error *e)
{
    return llava_parse_original(m, v, "mistral", e);
}

const struct family llava_llama_family = {"llava_llama", parse_llama, llava_build, "", true, .generates = true};
const struct family llava_mistral_family = {"llava_mistral", parse_mistral, llava_build, "", true, .generates = true};
