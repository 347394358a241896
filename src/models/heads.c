/*
 * heads.c: see heads.h.
 */
#include "models/images.h"
#include "models/heads.h"

#include <math.h>

#include "graph/ops.h"
#include "io/file.h"
#include "io/json.h"
#include "models/layers.h"

#define TOWER "vision_model"
#define TEXT "text_model"
#define ENDING "ForImageClassification"

/* --- configuration ---------------------------------------------------------------------------- */

/* Reports whether the folder has a classifier. */
static bool has_classifier(const struct value *config)
{
    const struct value *list = value_get(config, "architectures"),
                       *first = list && list->kind == VALUE_LIST ? value_at(list, 0) : NULL;
    return first && first->kind == VALUE_STRING && text_ends_with(first->text, ENDING);
}

static enum head_kind head_of(const struct model *m, const struct value *config)
{
    if (m->chosen.head != HEAD_AUTO) return m->chosen.head;
    return has_classifier(config) ? HEAD_CLASSES : HEAD_NONE;
}

static void add_name(struct model *m, struct head_model *h, const char *name)
{
    const char **more = bump_alloc(&m->memory, (size_t)(h->classes + 1) * sizeof *more);
    if (h->classes) memcpy(more, h->names, (size_t)h->classes * sizeof *more);
    more[h->classes++] = bump_string(&m->memory, name);
    h->names = more;
}

/* Reads id2label: {"0": "cat", "1": "dog"}. */
static int read_names(struct model *m, struct head_model *h, const struct value *config, struct error *e)
{
    const struct value *map = value_get(config, "id2label"), *name;
    if (!map || map->kind != VALUE_MAP)
        return error_set(e, PL_USAGE, "it has a classifier, and no id2label with the names of its classes");
    for (uint32_t i = 0; i < map->count; i++) {
        char key[16];
        snprintf(key, sizeof key, "%u", i);
        name = value_get(map, key);
        if (!name || name->kind != VALUE_STRING)
            return error_set(e, PL_USAGE, "id2label has %u entries, and none is %s: \"name\"", map->count, key);
        add_name(m, h, name->text);
    }
    return PL_OK;
}

/* Lists the folders in a folder, by name. */
static int list_folders(struct model *m, struct head_model *h, const char *folder, struct error *e)
{
    struct names all;
    int rc = dir_list(folder, &all, e);
    for (uint32_t i = 0; i < all.n && !rc; i++) {
        const char *path = bump_format(&m->memory, "%s/%s", folder, all.at[i]);
        if (all.at[i][0] != '.' && dir_exists(path)) add_name(m, h, all.at[i]);
    }
    names_free(&all);
    return rc;
}

static bool same_names(const struct head_model *a, const struct head_model *b)
{
    for (int64_t i = 0; i < a->classes && a->classes == b->classes; i++)
        if (strcmp(a->names[i], b->names[i])) return false;
    return a->classes == b->classes;
}

static int check_names(const struct head_model *h, struct error *e)
{
    if (!h->classes)
        return error_set(e, PL_USAGE,
                         "the classes are not known: set model.classes to their names, [cat, dog], or data.train to a "
                         "folder that has a folder for each");
    if (h->classes == 1) return error_set(e, PL_USAGE, "there is one class, %s; expected 2 or more", h->names[0]);
    for (int64_t i = 1; i < h->classes; i++)
        for (int64_t k = 0; k < i; k++)
            if (!strcmp(h->names[i], h->names[k]))
                return error_set(e, PL_USAGE, "two classes are named %s", h->names[i]);
    return PL_OK;
}

/* Writes config.json of the model with a new classifier. A tower's own is the vision_config in
 * it. */
static void write_config(struct model *m, const struct value *config)
{
    struct bump *b = &m->memory;
    struct value *to = value_copy(b, config), *list = value_new(b, VALUE_LIST), *names = value_new(b, VALUE_MAP),
                 *ids = value_new(b, VALUE_MAP);
    struct text text = {0};
    if (!value_get(config, "vision_config")) {
        value_put(b, to, "architectures", value_new(b, VALUE_NULL));
        struct value *outer = value_new(b, VALUE_MAP);
        value_put(b, outer, "model_type", value_string(b, m->head->siglip ? "siglip" : "clip"));
        value_put(b, outer, "vision_config", to);
        to = outer;
    }
    for (int64_t i = 0; i < m->head->classes; i++) {
        value_put(b, names, bump_format(b, "%lld", (long long)i), value_string(b, m->head->names[i]));
        value_put(b, ids, m->head->names[i], value_int(b, i));
    }
    value_append(b, list, value_string(b, m->head->siglip ? "Siglip" ENDING : "CLIP" ENDING));
    value_put(b, to, "architectures", list);
    value_put(b, to, "id2label", names);
    value_put(b, to, "label2id", ids);
    json_write(to, 2, &text);
    text_printf(&text, "\n");
    mem_free(m->config_text);
    m->config_text = mem_string(text.at);
    text_free(&text);
}

static void describe_pixels(struct model *m)
{
    const struct tower_sizes s = tower_sizes(model_part(m, TOWER));
    m->image = s.image;
    model_add_port(m, &(struct port){"pixel_values", VALUES_REAL, 4, {OPEN('B'), s.channels, s.image, s.image}, false});
}

static void describe_classes(struct model *m)
{
    describe_pixels(m);
    model_add_port(m, &(struct port){"labels", VALUES_TARGETS, 1, {OPEN('B')}, true, .below = m->head->classes});
    model_add_output(m, "logits");
}

/* Adds the tower: with a new classifier its folder is that of a part. */
static int add_tower(struct model *m, const struct value *config, bool outside, struct error *e)
{
    int rc = model_add_part(m, TOWER, outside ? NULL : config, outside ? m->path : NULL, e);
    if (rc) return rc;
    struct model *tower = &m->parts[m->n_parts - 1].model;
    if (tower_sizes(tower).channels != 3)
        return error_set(e, PL_USAGE, "the vision tower takes images of %lld channels, expected 3",
                         (long long)tower_sizes(tower).channels);
    tower_set_root(tower, "");
    return PL_OK;
}

static int parse_classes(struct model *m, const struct value *config, struct error *e)
{
    struct head_model *h = m->head, stored = {0};
    const struct model_choices *c = &m->chosen;
    int rc = has_classifier(config) ? read_names(m, &stored, config, e) : PL_OK;
    for (uint32_t i = 0; i < c->n_classes; i++) add_name(m, h, c->classes[i]);
    if (!rc && !h->classes && stored.classes) h->names = stored.names, h->classes = stored.classes;
    if (!rc && !h->classes && c->class_folder && dir_exists(c->class_folder))
        rc = list_folders(m, h, c->class_folder, e);
    if (!rc) rc = check_names(h, e);
    const bool outside = !(stored.classes && same_names(h, &stored)) && *m->path;
    h->fresh = outside || !*m->path;
    if (!rc) rc = add_tower(m, config, outside, e);
    if (rc) return rc;
    if (h->fresh) write_config(m, config);
    if (outside) m->path[0] = 0;
    describe_classes(m);
    return PL_OK;
}

static int check_contrast(const struct model *m, struct error *e)
{
    const struct head_model *h = m->head;
    const struct tower_sizes s = tower_sizes(model_part(m, TOWER));
    const struct text_sizes t = text_tower_sizes(h->text);
    if (!s.pools) return error_set(e, PL_USAGE, "vision_use_head is false, and the image is pooled by that head");
    if (h->siglip && t.projection != s.width)
        return error_set(e, PL_USAGE,
            "text_config.projection_size is %lld, and the image tower has the width %lld: both must be equal",
            (long long)t.projection, (long long)s.width);
    return h->siglip || (h->projection >= 1 && h->projection <= 1 << 20)
               ? PL_OK
               : error_set(e, PL_USAGE, "projection_dim is %lld, it must lie between 1 and %d",
                           (long long)h->projection, 1 << 20);
}

static int parse_contrast(struct model *m, const struct value *config, struct error *e)
{
    struct head_model *h = m->head;
    static const char *const outputs[] = {"logits_per_image", "logits_per_text", "image_embeds", "text_embeds"};
    const struct value *text = value_get(config, "text_config");
    if (!text || text->kind != VALUE_MAP)
        return error_set(e, PL_USAGE, "model.head contrastive needs a text tower, and this is only a vision tower (no "
                         "text_config): expected the folder of a CLIPModel or a SiglipModel");
    h->projection = 512;
    int rc = value_opt_int(config, "projection_dim", &h->projection, e);
    if (!rc && (rc = text_tower_parse(&m->memory, text, h->siglip, &h->text, e))) error_prepend(e, "text_config");
    if (!rc) rc = add_tower(m, config, false, e);
    if (!rc) rc = check_contrast(m, e);
    if (rc) return rc;
    const struct text_sizes t = text_tower_sizes(h->text);
    m->vocabulary = t.vocabulary;
    m->longest = t.positions;
    describe_pixels(m);
    model_add_port(m, &(struct port){"input_ids", VALUES_IDS, 2, {OPEN('B'), OPEN('T')}, false});
    for (size_t i = 0; i < COUNT(outputs); i++) model_add_output(m, outputs[i]);
    return PL_OK;
}

static int parse_head(struct model *m, enum head_kind kind, const struct value *config, struct error *e)
{
    m->head = bump_alloc(&m->memory, sizeof *m->head);
    *m->head = (struct head_model){.kind = kind, .folder = bump_string(&m->memory, m->path),
                                   .siglip = !strncmp(m->family->model_type, "siglip", 6)};
    return kind == HEAD_CLASSES ? parse_classes(m, config, e) : parse_contrast(m, config, e);
}

int64_t head_class(const struct head_model *h, const char *name)
{
    char *end;
    for (int64_t i = 0; i < h->classes; i++)
        if (!strcmp(h->names[i], name)) return i;
    const long long number = strtoll(name, &end, 10);
    return *name >= '0' && *name <= '9' && !*end && number < h->classes ? number : -1;
}

int64_t head_text_end(const struct head_model *h, const int32_t *ids, int64_t T)
{
    enum { BEFORE_24773 = 2 }; /* folders from before a change of transformers: the end token is the largest id */
    const int64_t end = text_tower_sizes(h->text).end;
    int64_t at = 0;
    for (int64_t t = 1; t < T && end == BEFORE_24773; t++)
        if (ids[t] > ids[at]) at = t;
    if (end == BEFORE_24773) return at;
    while (at < T && ids[at] != end) at++;
    return at < T ? at : -1;
}

void head_pair(const struct head_model *h, const bool *is_sample, int64_t B, int64_t i, int32_t *labels, float *mask)
{
    *mask = is_sample[i] ? 0 : HEAD_NOT;
    if (!h->siglip) labels[0] = is_sample[i] ? (int32_t)i : -100;
    else for (int64_t k = 0; k < B; k++) labels[k] = is_sample[i] && is_sample[k] ? i == k : -100;
}

/* --- layers ----------------------------------------------------------------------------------- */

/* Returns the mean of the patch tokens [B,tokens,C], [B,C]. */
static id mean_patches(struct graph *g, id x, struct tower_sizes s)
{
    const int64_t patches = s.side * s.side, B = tensor_at(g, x)->dim[0];
    if (s.tokens > patches) x = op_dense(g, op_slice(g, x, 1, s.tokens - patches, patches));
    x = op_avgpool_adaptive(g, op_reshape(g, x, 4, (int64_t[]){B, s.side, s.side, s.width}), 1, 1);
    return op_reshape(g, x, 2, (int64_t[]){B, s.width});
}

static id pixels(const struct model *m, struct graph *g, const struct batch *batch)
{
    const struct tower_sizes s = tower_sizes(model_part(m, TOWER));
    return images_input(g, batch->holds, "pixel_values", 4, (int64_t[]){batch->B, s.channels, s.image, s.image}, 0,
                        s.image * s.image);
}

static void build_classes(const struct model *m, struct graph *g, const struct batch *batch)
{
    const struct model *tower = model_part(m, TOWER);
    const struct tower_sizes s = tower_sizes(tower);
    id labels = graph_input(g, "labels", DT_I32, 1, (int64_t[]){batch->B});
    id x = tower_encode(tower, g, TOWER, pixels(m, g, batch), 0, NULL, NULL), logits = 0, loss = 0;
    if (!x) return;
    IN_SCOPE(g, "classifier", 0)
        logits = op_cast(g, layer_linear_init(g, mean_patches(g, x, s), "", "classifier", m->head->classes,
                                           (struct linear_init){.std = s.factor / sqrt((double)s.width)}), DT_F32);
    IN_SCOPE(g, "loss", SCOPE_PASS) loss = op_xent(g, logits, labels, NULL);
    graph_output(g, "loss", loss);
    if (batch->outputs || !program_is(g->at.program, PROGRAM_TRAINS)) graph_output(g, "logits", logits);
}

/* What every pair of a batch is: inputs, or constants of a batch without padding. */
struct caption_pairs {
    id labels, mask;
};
static struct caption_pairs pairs_of(const struct model *m, struct graph *g, const struct batch *batch)
{
    const int64_t B = batch->B, dim[2] = {B, B};
    const int rank = m->head->siglip ? 2 : 1;
    if (contents_of(batch)->padded)
        return (struct caption_pairs){graph_input(g, "pair_labels", DT_I32, rank, dim),
                              m->head->siglip ? 0 : graph_input(g, "pair_mask", DT_F32, 1, dim)};
    int32_t *labels = mem_alloc((size_t)(rank == 2 ? B * B : B) * sizeof *labels);
    bool *all = mem_alloc((size_t)B * sizeof *all);
    float ignored;
    memset(all, true, (size_t)B * sizeof *all);
    for (int64_t i = 0; i < B; i++) head_pair(m->head, all, B, i, labels + (rank == 2 ? i * B : i), &ignored);
    const struct caption_pairs p = {graph_const(g, "pair_labels", DT_I32, rank, dim, labels), 0};
    mem_free(labels);
    mem_free(all);
    return p;
}

static id unit_rows(struct graph *g, id x)
{
    x = op_cast(g, x, DT_F32);
    return op_apply(g, OP_L2NORM, &(union attr){.rmsnorm = {.eps = 1e-12f}}, &x, 1);
}

static id clip_project(struct graph *g, id x, const char *name, int64_t width)
{
    return x ? layer_linear_init(g, x, "", name, width,
                                 (struct linear_init){.std = 1 / sqrt((double)tensor_last(tensor_at(g, x))),
                                                      .no_bias = true})
             : 0;
}

/* Computes the cross-entropy of the texts of an image, and of the images of a text. */
static id symmetric_loss(struct graph *g, id logits, struct caption_pairs p)
{
    id other = op_dense(g, op_permute(g, logits, (int[]){1, 0}));
    if (p.mask) {
        id mask = op_cast(g, p.mask, DT_F32);
        logits = op_add(g, logits, mask), other = op_add(g, other, mask);
    }
    return op_scale(g, op_add(g, op_xent(g, logits, p.labels, NULL), op_xent(g, other, p.labels, NULL)), 0.5);
}

/* Computes the loss of pairs. Each is a choice of two: -log sigmoid(x) is the cross-entropy of the
 * logits {0, x} with label 1. */
static id sigmoid_loss(struct graph *g, id logits, struct caption_pairs p, int64_t B)
{
    id x = op_reshape(g, logits, 2, (int64_t[]){B * B, 1});
    x = op_pad(g, x, (int64_t[]){0, 1}, (int64_t[]){0, 0});
    return op_xent(g, x, op_reshape(g, p.labels, 1, (int64_t[]){B * B}), NULL);
}

static void build_contrast(const struct model *m, struct graph *g, const struct batch *batch)
{
    const struct head_model *h = m->head;
    const struct model *tower = model_part(m, TOWER);
    const int64_t B = batch->B, one = 1;
    id x = tower_pool(tower, g, TOWER, tower_encode(tower, g, TOWER, pixels(m, g, batch), 0, NULL, NULL));
    id ids = graph_input(g, "input_ids", DT_I32, 2, (int64_t[]){B, batch->T});
    id at = h->siglip ? 0 : graph_input(g, "text_end", DT_I32, 2, (int64_t[]){B, 1});
    id y = text_tower_encode(h->text, g, TEXT, ids, at), logits = 0, loss = 0;
    if (!h->siglip) {
        IN_SCOPE(g, "visual_projection", 0) x = clip_project(g, x, "visual_projection", h->projection);
        IN_SCOPE(g, "text_projection", 0) y = clip_project(g, y, "text_projection", h->projection);
    }
    /* a folder has it: no preset has a text tower */
    id scale = graph_param(g, "logit_scale", DT_F32, h->siglip, &one, (struct init){INIT_ZERO, 0, 0});
    id bias = h->siglip ? graph_param(g, "logit_bias", DT_F32, 1, &one, (struct init){INIT_ZERO, 0, 0}) : 0;
    IN_SCOPE(g, "loss", SCOPE_PASS) {
        const struct caption_pairs p = pairs_of(m, g, batch);
        x = unit_rows(g, x), y = unit_rows(g, y);
        logits = op_mul(g, op_matmul(g, y, x, false, true, DT_F32), op_act(g, op_cast(g, scale, DT_F32), ACT_EXP));
        if (bias) logits = op_add(g, logits, op_cast(g, bias, DT_F32));
        loss = h->siglip ? sigmoid_loss(g, logits, p, B) : symmetric_loss(g, logits, p);
    }
    if (!loss) return;
    graph_output(g, "loss", loss);
    if (!batch->outputs && program_is(g->at.program, PROGRAM_TRAINS)) return;
    graph_output(g, "logits_per_image", op_dense(g, op_permute(g, logits, (int[]){1, 0})));
    if (!batch->outputs) return;
    graph_output(g, "logits_per_text", logits);
    graph_output(g, "image_embeds", x);
    graph_output(g, "text_embeds", y);
}

/* --- the families ----------------------------------------------------------------------------- */

/* Parses a head, which has the tower as its part; the tower is parsed without one. */
static int parse(struct model *m, const struct value *config, struct error *e)
{
    const enum head_kind head = head_of(m, config);
    return head ? parse_head(m, head, config, e) : tower_parse(m, config, e);
}

static void build(const struct model *m, struct graph *g, const struct batch *batch)
{
    if (m->head && m->head->kind == HEAD_CONTRASTIVE) build_contrast(m, g, batch);
    else if (m->head) build_classes(m, g, batch);
    else tower_build(m, g, batch);
}

const struct family clip_family = {"clip", parse, build, TOWER ".", true};
const struct family clip_vision_family = {"clip_vision_model", parse, build, TOWER ".", true};
const struct family siglip_family = {"siglip", parse, build, TOWER ".", true};
const struct family siglip_vision_family = {"siglip_vision_model", parse, build, TOWER ".", true};
