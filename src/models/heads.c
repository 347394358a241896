/*
 * heads.c: see heads.h.
 */
#include "models/heads.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/file.h"
#include "io/json.h"
#include "models/layers.h"
#include "models/parts.h"

#define TOWER "vision_model"
#define ENDING "ForImageClassification"

/* --- configuration ------------------------------------------------------------------------------- */

/* Whether the folder has a classifier. */
static bool has_classifier(const struct value *config)
{
    const struct value *list = value_get(config, "architectures"), *first = list && list->kind == VALUE_LIST ? value_at(list, 0) : NULL;
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

/* id2label: {"0": "cat", "1": "dog"}. */
static int read_names(struct model *m, struct head_model *h, const struct value *config, struct error *e)
{
    const struct value *map = value_get(config, "id2label"), *name;
    if (!map || map->kind != VALUE_MAP) return error_set(e, PL_USAGE, "it has a classifier, and no id2label with the names of its classes");
    for (uint32_t i = 0; i < map->count; i++) {
        char key[16];
        snprintf(key, sizeof key, "%u", i);
        name = value_get(map, key);
        if (!name || name->kind != VALUE_STRING) return error_set(e, PL_USAGE, "id2label has %u entries, and none is %s: \"name\"", map->count, key);
        add_name(m, h, name->text);
    }
    return PL_OK;
}

/* The folders in a folder, by name. */
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
    if (!h->classes) return error_set(e, PL_USAGE, "the classes are not known: set model.classes to their names, [cat, dog], or data.train to a folder that has a folder for each");
    if (h->classes == 1) return error_set(e, PL_USAGE, "there is one class, %s; expected 2 or more", h->names[0]);
    for (int64_t i = 1; i < h->classes; i++)
        for (int64_t k = 0; k < i; k++)
            if (!strcmp(h->names[i], h->names[k])) return error_set(e, PL_USAGE, "two classes are named %s", h->names[i]);
    return PL_OK;
}

/* config.json of the model with a new classifier. A tower's own is the vision_config in it. */
static void write_config(struct model *m, const struct value *config)
{
    struct bump *b = &m->memory;
    struct value *to = value_copy(b, config), *list = value_new(b, VALUE_LIST), *names = value_new(b, VALUE_MAP), *ids = value_new(b, VALUE_MAP);
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

static void describe(struct model *m)
{
    const struct tower_sizes s = tower_sizes(model_part(m, TOWER));
    m->image = s.image;
    model_add_port(m, &(struct port){"pixel_values", VALUES_REAL, 4, {OPEN('B'), s.channels, s.image, s.image}, false});
    model_add_port(m, &(struct port){"labels", VALUES_TARGETS, 1, {OPEN('B')}, true, .below = m->head->classes});
    model_add_output(m, "logits");
}

/* Adds the tower: with a new classifier its folder is that of a part. */
static int add_tower(struct model *m, const struct value *config, bool outside, struct error *e)
{
    int rc = model_add_part(m, TOWER, outside ? NULL : config, outside ? m->path : NULL, e);
    if (rc) return rc;
    struct model *tower = &m->parts[m->n_parts - 1].model;
    if (tower_sizes(tower).channels != 3) return error_set(e, PL_USAGE, "the vision tower takes images of %lld channels, expected 3", (long long)tower_sizes(tower).channels);
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
    if (!rc && !h->classes && c->class_folder && dir_exists(c->class_folder)) rc = list_folders(m, h, c->class_folder, e);
    if (!rc) rc = check_names(h, e);
    const bool outside = !(stored.classes && same_names(h, &stored)) && *m->path;
    h->fresh = outside || !*m->path;
    if (!rc) rc = add_tower(m, config, outside, e);
    if (rc) return rc;
    if (h->fresh) write_config(m, config);
    if (outside) m->path[0] = 0;
    describe(m);
    return PL_OK;
}

static int parse_head(struct model *m, enum head_kind kind, const struct value *config, struct error *e)
{
    m->head = bump_alloc(&m->memory, sizeof *m->head);
    *m->head = (struct head_model){.kind = kind, .folder = bump_string(&m->memory, m->path), .siglip = !strncmp(m->family->model_type, "siglip", 6)};
    return parse_classes(m, config, e);
}

int64_t head_class(const struct head_model *h, const char *name)
{
    char *end;
    for (int64_t i = 0; i < h->classes; i++)
        if (!strcmp(h->names[i], name)) return i;
    const long long number = strtoll(name, &end, 10);
    return *name >= '0' && *name <= '9' && !*end && number < h->classes ? number : -1;
}

/* --- layers --------------------------------------------------------------------------------------- */

/* The mean of the patch tokens [B,tokens,C], [B,C]. */
static id mean_patches(struct graph *g, id x, struct tower_sizes s)
{
    const int64_t patches = s.side * s.side, B = tensor_at(g, x)->dim[0];
    if (s.tokens > patches) x = op_dense(g, op_slice(g, x, 1, s.tokens - patches, patches));
    x = op_avgpool_adaptive(g, op_reshape(g, x, 4, (int64_t[]){B, s.side, s.side, s.width}), 1, 1);
    return op_reshape(g, x, 2, (int64_t[]){B, s.width});
}

static void build_classes(const struct model *m, struct graph *g, const struct batch *batch)
{
    const struct model *tower = model_part(m, TOWER);
    const struct tower_sizes s = tower_sizes(tower);
    id pixels = graph_input(g, "pixel_values", DT_F32, 4, (int64_t[]){batch->B, s.channels, s.image, s.image});
    id labels = graph_input(g, "labels", DT_I32, 1, (int64_t[]){batch->B});
    id x = tower_encode(tower, g, TOWER, pixels, 0, NULL, NULL), logits = 0, loss = 0;
    if (!x) return;
    IN_SCOPE(g, "classifier", 0)
        logits = op_cast(g, layer_linear_init(g, mean_patches(g, x, s), "", "classifier", m->head->classes, (struct linear_init){.std = s.factor / sqrt((double)s.width)}), DT_F32);
    IN_SCOPE(g, "loss", SCOPE_PASS) loss = op_xent(g, logits, labels, NULL);
    graph_output(g, "loss", loss);
    if (batch->outputs || !program_is(g->at.program, PROGRAM_TRAINS)) graph_output(g, "logits", logits);
}

/* --- the families ---------------------------------------------------------------------------------- */

/* A head has the tower as its part, which is parsed without one. */
static int parse(struct model *m, const struct value *config, struct error *e)
{
    const enum head_kind head = head_of(m, config);
    return head ? parse_head(m, head, config, e) : tower_parse(m, config, e);
}

static void build(const struct model *m, struct graph *g, const struct batch *batch)
{
    if (m->head) build_classes(m, g, batch);
    else tower_build(m, g, batch);
}

const struct family clip_family = {"clip", parse, build, TOWER ".", true};
const struct family clip_vision_family = {"clip_vision_model", parse, build, TOWER ".", true};
const struct family siglip_family = {"siglip", parse, build, TOWER ".", true};
const struct family siglip_vision_family = {"siglip_vision_model", parse, build, TOWER ".", true};
