/*
 * prs_med.c: PRS-Med (model_type prs_med): TinySAM's image encoder, LLaVA, and a mask decoder over
 * both (see prs_med.h).
 *
 * The parts are "tinysam", of which only the encoder is used, and "llava", in the layout of
 * transformers or the original one. config.json has their configurations (tinysam_config,
 * llava_config), and the folder their weights after these names. Or it has the folders that they
 * are in (tinysam_path, llava_path, seen from config.json): then the decoder starts from random
 * values, and the trained model is saved as one folder.
 */
#include "models/prs_med.h"

#include <math.h>

#include "graph/emit.h"
#include "graph/sizes.h"
#include "io/json.h"
#include "models/layers.h"
#include "models/llava.h"
#include "models/sam.h"

#define TINYSAM "tinysam"
#define LLAVA "llava"

const struct contents prs_usual_contents = {
    .media = {.images = 1},
    .prompts = {.targets = true,
                .loss = {.focal = 1, .dice = 1, .alpha = 1, .alpha_both = true, .smooth = 1e-6f}},
    .answer = {.classes = true, .mask = 1, .text = 0.5, .class = 0.5},
};

/* The prompt of train_prs_med.py. */
static const char usual_template[] =
    "{% for m in messages %}{% if m['role'] == 'user' %}{{ 'USER: ' + m['content'] + '\nASSISTANT:' }}"
    "{% elif m['role'] == 'assistant' %}{{ ' ' + m['content'] + eos_token }}{% endif %}{% endfor %}";

extern const struct family prs_med_family, tinysam_family;

const struct prs_model *prs_model(const struct model *m)
{
    return m->family == &prs_med_family ? &((const struct prs *)m->config)->model : NULL;
}

/* --- parts ------------------------------------------------------------------------------------ */

/* Finds the folder of a part; NULL: the part is in the model's own. A relative one is seen from
 * config.json. */
static int part_folder(struct model *m, const struct value *config, const char *key, const char **out, struct error *e)
{
    const char *path = NULL;
    *out = NULL;
    int rc = value_opt_string(config, key, &path, e);
    if (rc || !path) return rc;
    *out = *path == '/' || !*m->path ? bump_string(&m->memory, path) : bump_format(&m->memory, "%s/%s", m->path, path);
    return PL_OK;
}

/* Adds to the configuration of LLaVA in its original layout that of a tower which is in a third
 * folder: in what is saved the tower is inside. */
static int put_tower(struct model *m, const struct model *part, struct value *config, struct error *e)
{
    struct value *tower;
    for (int i = 0; i < part->n_parts; i++) {
        const struct model *x = &part->parts[i].model;
        if (!*x->path || !x->config_text) continue;
        if (json_parse(x->config_text, strlen(x->config_text), &m->memory, &tower, e)) return e->code;
        value_put(&m->memory, config, "vision_config", tower);
    }
    return PL_OK;
}

/* Adds a part by its configuration, or by its folder, whose configuration then becomes the model's
 * own. */
static int add_part(struct model *m, const char *name, struct value *config, bool *outside, struct error *e)
{
    char map[64], path[64];
    const char *folder;
    snprintf(map, sizeof map, "%s_config", name);
    snprintf(path, sizeof path, "%s_path", name);
    TRY(part_folder(m, config, path, &folder, e));
    if (!folder && !value_get(config, map)) return error_set(e, PL_USAGE, "it has neither %s nor %s", map, path);
    int rc = model_add_part(m, name, folder ? NULL : value_get(config, map), folder, e);
    if (rc || !folder) return rc;
    struct value *own;
    *outside = true;
    TRY(model_take_config(m, name, config, map, path, &own, e));
    return put_tower(m, model_part(m, name), own, e);
}

/* Puts model.decoder in the place of config.json's, unless the folder holds the weights of one. */
static int change_decoder(struct model *m, struct value *config, bool outside, struct error *e)
{
    const char *name = "fusion", *chosen = m->chosen.decoder;
    int rc = value_opt_string(config, "decoder", &name, e);
    if (rc || !chosen || !strcmp(name, chosen)) return rc;
    if (*m->path && !outside)
        return error_set(e, PL_USAGE,
                         "model.decoder is %s, and the folder has the weights of the decoder %s: leave it out", chosen,
                         name);
    value_put(&m->memory, config, "decoder", value_string(&m->memory, chosen));
    model_gather(m, config);
    return PL_OK;
}

static int add_parts(struct model *m, const struct value *given, struct error *e)
{
    struct value *config = value_copy(&m->memory, given);
    bool outside = false;
    int rc = add_part(m, TINYSAM, config, &outside, e);
    if (!rc) rc = add_part(m, LLAVA, config, &outside, e);
    if (rc) return rc;
    if (model_part(m, TINYSAM)->family != &tinysam_family)
        return error_set(e, PL_USAGE, "its image encoder is a %s, expected tinysam",
                         model_part(m, TINYSAM)->family->model_type);
    if (!llava_is(model_part(m, LLAVA)))
        return error_set(e, PL_USAGE, "its language model is a %s, expected llava, llava_llama or llava_mistral",
                         model_part(m, LLAVA)->family->model_type);
    llava_part(m, TINYSAM)->partial = true; /* prompt encoder and mask decoder are not used */
    if (outside) model_gather(m, config);
    return change_decoder(m, config, outside, e);
}

/* --- configuration ---------------------------------------------------------------------------- */

static int parse_decoder(struct model *m, struct prs *c, const struct value *config, struct error *e)
{
    const char *name = "fusion";
    int rc = value_opt_string(config, "decoder", &name, e);
    m->has_decoders = true;
    if (m->chosen.decoder) name = m->chosen.decoder;
    if (!rc && strcmp(name, "fusion") && strcmp(name, "prompted"))
        rc = error_set(e, PL_USAGE, "decoder \"%.40s\": expected fusion or prompted", name);
    c->decoder = !rc && !strcmp(name, "prompted") ? PRS_PROMPTED : PRS_FUSION;
    return rc;
}

static int parse_channels(struct prs *c, const struct value *config, struct error *e)
{
    static const int64_t usual[] = {128, 64, 32, 16, 8, 4};
    static const char key[] = "mask_channels";
    const struct value *list = value_get(config, key);
    c->stages = COUNT(usual);
    memcpy(c->channels, usual, sizeof usual);
    if (!list || list->kind == VALUE_NULL) return PL_OK;
    if (value_as_list(list, key, e)) return e->code;
    if (list->count < 1 || list->count > PRS_STAGES)
        return error_set(e, PL_USAGE, "%s has %u numbers, expected 1 to %d", key, list->count, PRS_STAGES);
    c->stages = list->count;
    for (uint32_t i = 0; i < list->count; i++) {
        if (value_as_int(value_at(list, i), key, &c->channels[i], e)) return e->code;
        if (c->channels[i] < 1 || c->channels[i] > 1 << 16)
            return error_set(e, PL_USAGE, "%s[%u] is %lld, it must lie between 1 and 65536", key, i,
                             (long long)c->channels[i]);
    }
    return PL_OK;
}

static int parse_sizes(struct prs *c, const struct value *config, struct error *e)
{
    const struct size_key keys[] = {
        {"pooled_size", &c->pooled, 1, 1 << 10},        {"num_attention_heads", &c->heads, 1, 1 << 14},
        {"prompt_hidden_size", &c->prompt_hidden, 1, 1 << 20}, {"self_attention_heads", &c->self_heads, 1, 1 << 14},
        {"self_attention_mlp_dim", &c->self_inner, 1, 1 << 22}, {"num_classes", &c->model.classes, 0, 1 << 10},
    };
    TRY(layer_parse_sizes(config, keys, COUNT(keys), e));
    TRY(value_opt_number(config, "dropout", &c->dropout, e));
    TRY(value_opt_number(config, "attention_dropout", &c->attention_dropout, e));
    if (!(c->dropout >= 0 && c->dropout < 1))
        return error_set(e, PL_USAGE, "dropout is %g, it must be at least 0 and below 1", c->dropout);
    if (!(c->attention_dropout >= 0 && c->attention_dropout < 1))
        return error_set(e, PL_USAGE, "attention_dropout is %g, it must be at least 0 and below 1",
                         c->attention_dropout);
    return parse_channels(c, config, e);
}

static int check(const struct prs *c, struct error *e)
{
    if (c->width % c->heads)
        return error_set(e, PL_USAGE, "num_attention_heads %lld is not a divisor of TinySAM's %lld channels",
                         (long long)c->heads, (long long)c->width);
    if (c->decoder == PRS_FUSION) {
        if (c->pooled > c->grid)
            return error_set(e, PL_USAGE,
                             "pooled_size is %lld, and TinySAM's embedding has %lld positions along a side",
                             (long long)c->pooled, (long long)c->grid);
        return PL_OK;
    }
    if (c->width % c->self_heads)
        return error_set(e, PL_USAGE, "self_attention_heads %lld is not a divisor of TinySAM's %lld channels",
                         (long long)c->self_heads, (long long)c->width);
    return c->width % 4 ? error_set(e, PL_USAGE,
                                    "TinySAM's embedding has %lld channels; the prompted decoder needs a multiple of 4",
                                    (long long)c->width)
                        : PL_OK;
}

/* Declares inputs and outputs: those of LLaVA, and those of a question. H: the side of a mask. */
static void describe(struct model *m, const struct prs *c)
{
    const struct model *llava = model_part(m, LLAVA);
    m->vocabulary = llava->vocabulary;
    m->positions = llava->positions;
    m->longest = llava->longest;
    m->image = llava->image;
    m->images = llava->images;
    m->encoder = llava->encoder;
    m->reader = LLAVA;
    m->template = usual_template;
    m->whole = llava->whole;
    m->batch_norm = m->answers_partly = true;
    for (int i = 0; i < llava->n_ports; i++) model_add_port(m, &llava->ports[i]);
    model_add_port(m, &(struct port){"images", VALUES_BYTES, 4, {OPEN('B'), c->model.image, c->model.image, 3}, false});
    model_add_port(m, &(struct port){"question", VALUES_RANGE, 2, {OPEN('B'), 2}, false});
    model_add_port(m, &(struct port){"gt_masks", VALUES_MASKS, 3, {OPEN('B'), c->model.mask, c->model.mask}, true});
    if (c->model.classes)
        model_add_port(m,
                       &(struct port){"class_labels", VALUES_CLASS, 1, {OPEN('B')}, true, .below = c->model.classes});
    model_add_output(m, "logits");
    model_add_output(m, "pred_masks");
    model_add_output(m, "text_loss");
    model_add_output(m, "mask_loss");
    if (c->model.classes) model_add_output(m, "class_loss");
}

static int parse_prs(struct model *m, const struct value *config, struct error *e)
{
    struct prs *c = m->config = bump_alloc(&m->memory, sizeof *c);
    *c = (struct prs){.pooled = 16, .heads = 8, .dropout = 0.1, .prompt_hidden = 512, .self_heads = 16,
                      .self_inner = 512};
    int rc = parse_decoder(m, c, config, e);
    if (!rc) rc = parse_sizes(c, config, e);
    if (m->chosen.no_dropout) c->dropout = c->attention_dropout = 0;
    if (!rc) rc = add_parts(m, config, e);
    if (rc) return rc;
    const struct model *tiny = model_part(m, TINYSAM);
    const struct sam *s = tiny->config;
    const int64_t side = m->chosen.image ? m->chosen.image : s->vision.image;
    if (side % s->vision.patch)
        return error_set(e, PL_USAGE, "data.image_size is %lld, expected a multiple of the patches of %lld pixels",
                         (long long)side, (long long)s->vision.patch);
    c->width = s->vision.output;
    c->grid = side / s->vision.patch;
    c->model = (struct prs_model){.image = side, .mask = side, .classes = c->model.classes, .norm = tiny->masks->norm};
    if (c->decoder == PRS_FUSION) c->model.mask = c->pooled << c->stages;
    if (s->vision.channels != 3)
        return error_set(e, PL_USAGE, "tinysam_config: num_channels is %lld, expected 3",
                         (long long)s->vision.channels);
    rc = check(c, e);
    if (!rc) describe(m, c);
    return rc;
}

/* --- the model -------------------------------------------------------------------------------- */

/* Returns the embedding of the images, [B,grid,grid,C]. */
static id encode(const struct model *m, struct graph *g, const struct batch *batch)
{
    const struct model *tiny = model_part(m, TINYSAM);
    const struct sam *s = tiny->config;
    const struct prs *c = m->config;
    const struct sam_build b = {.c = s, .g = g, .B = batch->B, .M = 1, .side = c->model.image, .grid = c->grid,
                                .bn_group = model_bn_group(*m->path ? m : tiny, batch), .norm = &tiny->masks->norm};
    id x = 0;
    IN_PART(g, TINYSAM) x = b.c->encode(&b, sam_images(&b)).coarse;
    return x;
}

struct mask_targets {
    id bits, valid; /* 0: there are none */
};

/* Computes binary cross-entropy + dice, or what the configuration has instead, of logits
 * [B,1,h,h]. */
static struct mask_loss mask_terms(struct graph *g, const struct contents *own, struct mask_targets t, id logits)
{
    const struct structure_loss_options *s = &own->answer.structure;
    if (s->size) return op_structure_loss(g, logits, t.bits, t.valid, *s, "masks");
    /* the decoder predicts no IoU */
    id no_score = op_repeat(g, op_cast(g, op_fill(g, DT_F32, 2, (int64_t[]){1, 1}, 0), DT_NONE), logits);
    return op_mask_loss(g, logits, no_score, t.bits, t.valid, own->prompts.loss, "masks");
}

/* Returns the loss of mask logits [B,h,h,1]; 0: there are no targets. */
static id mask_loss(const struct prs *c, struct graph *g, const struct batch *batch, const struct contents *own,
                    struct mask_targets t, id logits)
{
    const int64_t h = c->model.mask;
    struct mask_loss y = {0};
    if (!t.bits) return 0;
    IN_SCOPE (g, "mask_loss", SCOPE_PASS)
        y = mask_terms(g, own, t, op_reshape(g, logits, 4, (int64_t[]){batch->B, 1, h, h}));
    if (own->prompts.statistics || !program_is(g->at.program, PROGRAM_TRAINS))
        graph_output(g, "first_picks", y.statistics);
    return y.loss;
}

struct masks {
    id logits, loss; /* [B,h,h,1]; loss 0: there are no targets */
};

/* Returns a row-wise scope: the maps of all images need not exist at once (memory.mask_chunks). */
static struct masks masks_of(const struct prs_build *b, const struct batch *batch, const struct contents *own, id x)
{
    struct graph *g = b->g;
    const int64_t h = b->c->model.mask;
    struct mask_targets t = {0};
    struct masks y = {0};
    if (own->prompts.targets)
        t = (struct mask_targets){graph_input(g, "gt_masks", DT_U8, 3, (int64_t[]){b->B, h, mask_row_bytes(h)}),
                                  graph_input(g, "gt_valid", DT_I32, 2, (int64_t[]){b->B, 2})};
    IN_SCOPE(g, "masks", SCOPE_ROWS) {
        y.logits = prs_masks(b, x);
        y.loss = mask_loss(b->c, g, batch, own, t, y.logits);
    }
    return y;
}

/* Returns the loss of the class of an image, from its embedding's mean; 0: there are no targets,
 * or no classes. */
static id class_loss(const struct prs *c, struct graph *g, const struct batch *batch, const struct contents *own,
                     id image)
{
    const int64_t n = c->model.classes, C = c->width;
    id loss = 0;
    if (!n || !own->prompts.targets || !own->answer.classes) return 0;
    id labels = graph_input(g, "class_labels", DT_I32, 1, &batch->B);
    IN_SCOPE(g, "cls", 0) {
        id x = op_reshape(g, op_avgpool_adaptive(g, image, 1, 1), 2, (int64_t[]){batch->B, C});
        id w = layer_param(g, "cls.", "weight", 2, (int64_t[]){n, C}, sqrt(2 / (double)(n + C)));
        id bias = graph_param(g, "cls.bias", DT_F32, 1, &n, (struct init){INIT_ONE, 0, 0});
        loss = op_xent(g, op_linear(g, x, w, bias), labels, "masks");
    }
    return loss;
}

struct losses {
    id text, masks, classes; /* 0: there is none */
};

static void output_losses(struct graph *g, const struct batch *batch, const struct prs *c, const struct contents *own,
                          struct losses l)
{
    id loss = op_scale(g, l.text, own->answer.text);
    if (batch->outputs || program_is(g->at.program, PROGRAM_TRAINS)) { /* training reports each loss */
        graph_output(g, "text_loss", l.text);
        graph_output(g, "mask_loss", l.masks ? l.masks : op_fill(g, DT_F32, 0, NULL, 0));
        if (c->model.classes) graph_output(g, "class_loss", l.classes ? l.classes : op_fill(g, DT_F32, 0, NULL, 0));
    }
    if (l.masks) loss = op_add(g, loss, op_scale(g, l.masks, own->answer.mask));
    if (l.classes) loss = op_add(g, loss, op_scale(g, l.classes, own->answer.class));
    graph_output(g, "loss", loss);
}

static void build_prs(const struct model *m, struct graph *g, const struct batch *batch)
{
    const struct prs *c = m->config;
    const struct model *llava = model_part(m, LLAVA);
    const struct contents *own = batch->holds ? batch->holds : &prs_usual_contents;
    struct batch text = *batch;
    text.holds = own;
    if (batch->cache) { /* an answer: the mask is not asked for */
        IN_PART(g, LLAVA) llava_build(llava, g, &text);
        return;
    }
    id ids = decoder_ids(g, batch), labels = decoder_labels(g, batch);
    struct decoded out = {0};
    struct prs_build b = {.c = c, .g = g, .B = batch->B, .bn_group = model_bn_group(m, batch),
                          .drops = own->answer.drops};
    IN_PART(g, LLAVA) {
        b.states = llava_states(llava, g, &text, ids);
        out = llava_loss(llava, g, b.states, labels, "tokens");
    }
    b.question = graph_input(g, "question", DT_I32, 2, (int64_t[]){batch->B, 2});
    if (prs_drops_attention(&b) && c->decoder == PRS_FUSION)
        b.unseen = graph_input(g, "question_mask", DT_F32, 2, (int64_t[]){batch->B, batch->T});
    const id image = encode(m, g, batch), classes = class_loss(c, g, batch, own, image);
    const struct masks masks = masks_of(&b, batch, own, prs_fuse(&b, image));
    if (!masks.logits || !out.logits) return;
    if (batch->outputs) {
        graph_output(g, "logits", op_reshape(g, out.logits, 3, (int64_t[]){batch->B, batch->T, m->vocabulary}));
        graph_output(g, "pred_masks",
                     op_reshape(g, masks.logits, 3, (int64_t[]){batch->B, c->model.mask, c->model.mask}));
    }
    output_losses(g, batch, c, own, (struct losses){out.loss, masks.loss, classes});
}

const struct family prs_med_family = {"prs_med", parse_prs, build_prs, "", false, .generates = true, .drops = true};
