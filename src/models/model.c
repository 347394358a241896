/*
 * model.c: opening a model from a folder or a preset; its inputs and outputs.
 */
#include "models/model.h"

#include "io/file.h"
#include "io/json.h"
#include "models/catalogue.h"
#include "models/heads.h"
#include "models/images.h"

#define FAMILY(name) extern const struct family name##_family;
#include "models/families.def"
#undef FAMILY
static const struct family *const families[] = {
#define FAMILY(name) &name##_family,
#include "models/families.def"
#undef FAMILY
};

/* Lists the families, for messages: "llama, clip_vision_model". */
static char *list_families(char out[512])
{
    size_t n = 0;
    for (size_t i = 0; i < COUNT(families) && n < 512; i++)
        n += (size_t)snprintf(out + n, 512 - n, "%s%s", i ? ", " : "", families[i]->model_type);
    return out;
}

char *model_list_decoders(char out[256], const char *last)
{
    const char *names[COUNT(families)];
    size_t count = 0, n = 0;
    for (size_t i = 0; i < COUNT(families); i++)
        if (families[i]->decoder && !families[i]->inside) names[count++] = families[i]->model_type;
    for (size_t i = 0; i < count && n < 256; i++)
        n += (size_t)(!i              ? snprintf(out, 256, "%s", names[i])
                      : i + 1 < count ? snprintf(out + n, 256 - n, ", %s", names[i])
                                      : snprintf(out + n, 256 - n, " %s %s", last, names[i]));
    return out;
}

/* Published families that are not supported. */
static const struct {
    const char *model_type, *name, *instead;
} unsupported[] = {
#define UNSUPPORTED(model_type, name, instead) {model_type, name, instead},
#include "models/unsupported.def"
#undef UNSUPPORTED
};

static int refuse_type(const char *type, const char *where, struct error *e)
{
    static const char *const list = "docs/reference/model-folders.md lists what is";
    char known[512], decoders[256], language[320];
    snprintf(language, sizeof language, "the language models %s are", model_list_decoders(decoders, "and"));
    for (size_t i = 0; i < COUNT(unsupported); i++)
        if (!strcmp(unsupported[i].model_type, type))
            return error_set(e, PL_USAGE, "%s: model_type %s: %s is not supported; %s; %s", where, type,
                             unsupported[i].name, unsupported[i].instead ? unsupported[i].instead : language, list);
    return error_set(e, PL_USAGE, "%s: model_type \"%s\" is not supported; %s; %s; %s; %s (model_type is one of: %s)",
                     where, type, language, WITH_IMAGES, MASKS, TOWERS, list_families(known));
}

/* --- dropout ----------------------------------------------------------------------------- */

/* Names of dropout in the configurations of transformers, TinyViT and the programs around them. */
static const char *const dropouts[] = {"attention_dropout", "dropout", "hidden_dropout", "hidden_dropout_prob",
                                       "attention_probs_dropout_prob", "attn_pdrop", "resid_pdrop", "embd_pdrop",
                                       "resid_dropout", "embedding_dropout", "activation_dropout", "projection_dropout",
                                       "drop_rate", "drop_path_rate", "layerdrop"};

static void find_dropout(struct model *m, const struct value *map, const char *inside)
{
    for (size_t i = 0; i < COUNT(dropouts) && !m->dropout; i++) {
        double p = 0;
        struct error ignored;
        if (value_opt_number(map, dropouts[i], &p, &ignored) || !(p > 0)) continue;
        m->dropout = bump_format(&m->memory, "%s%s is %g", inside, dropouts[i], p);
    }
}

/* Finds dropouts in the map and in those of the layers that the family builds; parts have their
 * own. */
static void find_dropouts(struct model *m, const struct value *config)
{
    static const char *const maps[] = {"vision_config", "vision_config_dict", "prompt_encoder_config",
                                       "mask_decoder_config"};
    char inside[64];
    if (!m->family->drops) find_dropout(m, config, "");
    for (size_t i = 0; i < COUNT(maps); i++) {
        const struct value *map = value_get(config, maps[i]);
        snprintf(inside, sizeof inside, "%s.", maps[i]);
        if (map && map->kind == VALUE_MAP) find_dropout(m, map, inside);
    }
    if (m->head && m->head->kind == HEAD_CONTRASTIVE) find_dropout(m, value_get(config, "text_config"), "text_config.");
}

int model_check_dropout(const struct model *m, struct error *e)
{
    if (!m->dropout || m->chosen.no_dropout) return PL_OK;
    return error_set(e, PL_USAGE,
                     "%s%sconfig.json: %s, and a %s has no dropout here; set model.dropout to 0 to train without it",
                     m->path, *m->path ? "/" : "", m->dropout, m->family->model_type);
}

/* --- opening ------------------------------------------------------------------------------ */

static int parse_map(struct model *m, const struct value *config, const char *where, struct error *e)
{
    const char *type = NULL;
    char known[512];
    int rc;
    if ((rc = value_as_map(config, "config.json", e)) || (rc = value_opt_string(config, "model_type", &type, e)))
        return error_prepend(e, "%s", where);
    if (!type) return error_set(e, PL_USAGE, "%s: no model_type; expected one of: %s", where, list_families(known));
    for (size_t i = 0; i < COUNT(families); i++)
        if (!strcmp(families[i]->model_type, type)) {
            m->family = families[i];
            rc = m->family->parse(m, config, e);
            if (rc) return error_prepend(e, "%s", where);
            find_dropouts(m, config);
            return m->family->read_folder ? m->family->read_folder(m, e) : PL_OK;
        }
    return refuse_type(type, where, e);
}

static int parse_config(struct model *m, size_t n, const char *where, struct error *e)
{
    struct value *config;
    int rc = json_parse(m->config_text, n, &m->memory, &config, e);
    return rc ? error_prepend(e, "%s", where) : parse_map(m, config, where, e);
}

int model_open(struct model *m, const char *path, struct error *e)
{
    return model_open_with(m, path, &(struct model_choices){0}, e);
}
int model_preset(struct model *m, const char *name, struct error *e)
{
    return model_preset_with(m, name, &(struct model_choices){0}, e);
}

static void choose(struct model *m, const struct model_choices *c)
{
    if (c->vision_tower) m->chosen.vision_tower = bump_string(&m->memory, c->vision_tower);
    if (c->decoder) m->chosen.decoder = bump_string(&m->memory, c->decoder);
    m->chosen.no_dropout = c->no_dropout;
    m->chosen.image = c->image;
    m->chosen.head = c->head;
    if (c->class_folder) m->chosen.class_folder = bump_string(&m->memory, c->class_folder);
    if (c->modalities) m->chosen.modalities = bump_string(&m->memory, c->modalities);
    char **names = bump_alloc(&m->memory, (c->n_classes + 1) * sizeof *names);
    for (uint32_t i = 0; i < c->n_classes; i++) names[i] = bump_string(&m->memory, c->classes[i]);
    m->chosen.classes = names, m->chosen.n_classes = c->n_classes;
}

static int check_choices(const struct model *m, const char *name, struct error *e)
{
    if (m->chosen.vision_tower && !m->leaves_tower)
        return error_set(e, PL_USAGE,
                         "model.vision_tower is for LLaVA models in the original layout (llava_llama, llava_mistral), "
                         "and %s is a %s: leave it out", name, m->family->model_type);
    if (m->chosen.decoder && !m->has_decoders)
        return error_set(e, PL_USAGE, "model.decoder is for a prs_med, and %s is a %s: leave it out", name,
                         m->family->model_type);
    if (m->chosen.head > HEAD_AUTO && !m->head)
        return error_set(e, PL_USAGE,
                         "model.head %s, which data.format %s asks for too, is for the vision towers of CLIP and "
                         "SigLIP, and %s is a %s", m->chosen.head == HEAD_CLASSES ? "classes" : "contrastive",
                         m->chosen.head == HEAD_CLASSES ? "classes" : "captions", name, m->family->model_type);
    if (m->chosen.n_classes && !(m->head && m->head->kind == HEAD_CLASSES))
        return error_set(e, PL_USAGE,
                         "model.classes is given, and %s has no head for classes (model.head): leave it out", name);
    if (m->chosen.modalities && !(m->images && m->images->modalities.n))
        return error_set(e, PL_USAGE, "model.modalities is for a llava, and %s is a %s: leave it out", name,
                         m->family->model_type);
    return PL_OK;
}

static int open_folder(struct model *m, const char *path, const struct model_choices *c, struct error *e)
{
    memset(m, 0, sizeof *m);
    char file[1100];
    snprintf(m->path, sizeof m->path, "%s", path);
    snprintf(file, sizeof file, "%s/config.json", path);
    if (!dir_exists(path)) return model_missing(path, e);
    if (!file_exists(file)) return model_missing_config(path, e);
    size_t n;
    choose(m, c);
    TRY(file_read(file, 16u << 20, &m->config_text, &n, e));
    return parse_config(m, n, file, e);
}

int model_open_with(struct model *m, const char *path, const struct model_choices *c, struct error *e)
{
    int rc = open_folder(m, path, c, e);
    if (!rc) rc = check_choices(m, path, e);
    if (rc) model_close(m);
    return rc;
}

int model_preset_with(struct model *m, const char *name, const struct model_choices *c, struct error *e)
{
    memset(m, 0, sizeof *m);
    if (!preset_config(name)) return model_missing_preset(name, e);
    choose(m, c);
    m->config_text = preset_text(name, c->clips);
    int rc = parse_config(m, strlen(m->config_text), name, e);
    if (!rc) rc = check_choices(m, name, e);
    if (rc) model_close(m);
    return rc;
}

int model_find(struct model *m, const char *name, struct error *e)
{
    memset(m, 0, sizeof *m);
    if (!dir_exists(name) && preset_config(name)) return model_preset(m, name, e);
    if (dir_exists(name) || strpbrk(name, "/.")) return model_open(m, name, e);
    model_missing_preset(name, e);
    return error_prepend(e, "there is no folder %s", name);
}

int model_text(struct model *m, const char *config_json, const char *name, struct error *e)
{
    memset(m, 0, sizeof *m);
    m->config_text = mem_string(config_json);
    int rc = parse_config(m, strlen(config_json), name, e);
    if (rc) model_close(m);
    return rc;
}

/* --- parts ------------------------------------------------------------------------------- */

/* Checks that names of two parts cannot be read as each other's: "vision" and "vision.head". */
static int check_part(const struct model *m, const char *name, struct error *e)
{
    if (strlen(name) >= sizeof m->parts->name)
        return error_set(e, PL_USAGE, "a part is named \"%.200s\"; a name has at most %zu bytes", name,
                         sizeof m->parts->name - 1);
    for (int i = 0; i < m->n_parts; i++) {
        const char *other = m->parts[i].name;
        size_t n = strlen(name) < strlen(other) ? strlen(name) : strlen(other);
        if (!strncmp(name, other, n) && (name[n] == '.' || other[n] == '.' || !strcmp(name, other)))
            return error_set(e, PL_USAGE,
                             "parts %s and %s: parameters of one would be parameters of the other; choose other names",
                             other, name);
    }
    return PL_OK;
}

static void push_part(struct model *m, const char *name, const struct model *part)
{
    struct part *more = mem_alloc((size_t)(m->n_parts + 1) * sizeof *more);
    if (m->n_parts) memcpy(more, m->parts, (size_t)m->n_parts * sizeof *more);
    mem_free(m->parts);
    m->parts = more;
    snprintf(more[m->n_parts].name, sizeof more->name, "%s", name);
    more[m->n_parts++].model = *part;
}

int model_add_part(struct model *m, const char *name, const struct value *config, const char *folder, struct error *e)
{
    struct model part = {0};
    int rc = check_part(m, name, e);
    if (rc) return rc;
    snprintf(part.path, sizeof part.path, "%s", folder ? folder : "");
    if (folder && !dir_exists(folder)) rc = model_missing(folder, e);
    else if (config) part.chosen.vision_tower = m->chosen.vision_tower, rc = parse_map(&part, config, name, e);
    else if (folder)
        rc = open_folder(&part, folder, &(struct model_choices){.vision_tower = m->chosen.vision_tower}, e);
    else rc = error_set(e, PL_USAGE, "it has neither a configuration nor a folder");
    if (!rc && part.balances)
        rc = error_set(e, PL_USAGE, "output_router_logits is true, and only a language model by itself has a loss that "
                       "balances experts; set it to false");
    if (rc) {
        model_close(&part);
        return error_prepend(e, "part %s", name);
    }
    m->leaves_tower |= part.leaves_tower;
    if (part.dropout && !m->dropout) m->dropout = bump_format(&m->memory, "%s: %s", name, part.dropout);
    push_part(m, name, &part);
    return PL_OK;
}

struct model model_reader(const struct model *m)
{
    struct model x = m->reader ? *model_part(m, m->reader) : *m;
    if (!*x.path) memcpy(x.path, m->path, sizeof x.path);
    return x;
}

const struct model *model_part(const struct model *m, const char *name)
{
    for (int i = 0; i < m->n_parts; i++)
        if (!strcmp(m->parts[i].name, name)) return &m->parts[i].model;
    return NULL;
}

/* Adds a part whose layers the program builds itself: its folder need not have a config.json. With
 * that of a known family, its names may be spelled as that family's are. */
static int add_weights(struct model *m, const struct part_folder *p, struct error *e)
{
    struct model part = {0};
    int rc = *p->name ? check_part(m, p->name, e) : error_set(e, PL_USAGE, "a part needs a name");
    if (rc) return rc;
    if (!dir_exists(p->path)) return model_missing(p->path, e) ? error_prepend(e, "part %s", p->name) : PL_OK;
    struct error unknown;
    if (model_open(&part, p->path, &unknown)) part = (struct model){0};
    snprintf(part.path, sizeof part.path, "%s", p->path);
    push_part(m, p->name, &part);
    return PL_OK;
}

/* Defines a model that the program builds itself. A folder's own config.json is kept, as with all
 * other models. */
int model_define(struct model *m, const struct definition *d, const char *path, struct error *e)
{
    memset(m, 0, sizeof *m);
    m->family = d->family;
    m->config = d->config;
    snprintf(m->path, sizeof m->path, "%s", path ? path : "");
    char file[1100];
    size_t n;
    int rc = PL_OK;
    snprintf(file, sizeof file, "%s/config.json", m->path);
    if (path && !dir_exists(path)) return model_missing(path, e);
    if (path && file_exists(file)) rc = file_read(file, 16u << 20, &m->config_text, &n, e);
    else m->config_text = mem_string(d->config_json);
    struct value *config;
    if (!rc && d->family->parse) rc = json_parse(m->config_text, strlen(m->config_text), &m->memory, &config, e);
    if (!rc && d->family->parse) rc = d->family->parse(m, config, e);
    for (int i = 0; i < d->n_parts && !rc && !path; i++) rc = add_weights(m, &d->parts[i], e);
    if (rc) model_close(m);
    return rc;
}

void model_close(struct model *m)
{
    for (int i = 0; i < m->n_parts; i++) model_close(&m->parts[i].model);
    mem_free(m->parts);
    m->parts = NULL;
    m->n_parts = 0;
    mem_free(m->config_text);
    m->config_text = NULL;
    bump_free(&m->memory);
}

int model_count(const struct model *m, uint64_t *weights, struct error *e)
{
    struct graph g;
    graph_init(&g);
    m->family->build(m, &g, &(struct batch){.B = 1, .T = 2});
    *weights = 0;
    for (uint32_t i = 0; i < g.params.n; i++)
        if (storage_of(&g, g.params.at[i].tensor)->kind == KIND_PARAM)
            *weights += (uint64_t)tensor_elements(tensor_at(&g, g.params.at[i].tensor));
    const int rc = graph_error(&g, e);
    graph_free(&g);
    return rc;
}

/* --- inputs and outputs -------------------------------------------------------------- */

void model_add_port(struct model *m, const struct port *p)
{
    CHECK(m->n_ports < MODEL_PORTS && p->rank > 0, "port %s", p->name);
    m->ports[m->n_ports++] = *p;
}

void model_add_output(struct model *m, const char *name)
{
    const char **more = bump_alloc(&m->memory, (m->n_outputs + 1) * sizeof *more);
    if (m->n_outputs) memcpy(more, m->outputs, m->n_outputs * sizeof *more);
    more[m->n_outputs++] = bump_string(&m->memory, name);
    m->outputs = more;
}

const struct port *model_port(const struct model *m, const char *name)
{
    for (int i = 0; i < m->n_ports; i++)
        if (!strcmp(m->ports[i].name, name)) return &m->ports[i];
    return NULL;
}

bool model_has_output(const struct model *m, const char *name)
{
    for (uint32_t i = 0; i < m->n_outputs; i++)
        if (!strcmp(m->outputs[i], name)) return true;
    return false;
}

char *model_list_ports(const struct model *m, char out[256])
{
    size_t n = 0;
    out[0] = 0;
    for (int i = 0; i < m->n_ports && n < 256; i++)
        n += (size_t)snprintf(out + n, 256 - n, "%s%s", i ? ", " : "", m->ports[i].name);
    return out;
}

/* Computes step.inv_count times the sum of squares, in f32 for any dtype of x. inv_count is the
 * count of the whole step, so sums over slices of the batch add up to the mean over all of it. */
static id mean_square(struct graph *g, id x)
{
    id outer = graph_scope_push(g, "loss", SCOPE_PASS);
    id wide = op_cast(g, x, DT_F32), sum = op_sum(g, op_mul(g, wide, wide));
    id loss = op_mul(g, sum, graph_count(g, NULL));
    graph_scope_pop(g, outer);
    return loss;
}

void model_output(const struct model *m, struct graph *g, const struct batch *b, const char *name, id tensor)
{
    const char *of = b->loss_output ? b->loss_output : m->loss_output;
    CHECK(model_has_output(m, name), "output %s was not declared", name);
    if (b->outputs) graph_output(g, name, tensor);
    if (of && !strcmp(of, name)) graph_output(g, "loss", mean_square(g, tensor));
}

int model_take_config(struct model *m, const char *part, struct value *config, const char *map, const char *path,
                      struct value **own, struct error *e)
{
    const char *text = model_part(m, part)->config_text;
    TRY(json_parse(text, strlen(text), &m->memory, own, e));
    value_put(&m->memory, config, map, *own);
    value_put(&m->memory, config, path, value_new(&m->memory, VALUE_NULL));
    return PL_OK;
}

void model_gather(struct model *m, const struct value *config)
{
    struct text text = {0};
    json_write(config, 2, &text);
    text_printf(&text, "\n");
    mem_free(m->config_text);
    m->config_text = mem_string(text.at);
    m->path[0] = 0;
    text_free(&text);
}
