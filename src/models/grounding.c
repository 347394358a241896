/*
 * grounding.c: which mask of an image does a text describe? (model_type arr_coc)
 *
 *     pixel_values ─ tower ─ patches [P,C] ─ average over a mask ─ projection ─ normalise ─ masks
 *     [M,D] ─┐
 *     input_ids ─ decoder ─ state of a query's last token ─ projection ─ normalise ─ queries [Q,D]
 *     ──────┴─ similarity [Q,M]
 *
 * The similarity is the cosine divided by the temperature. The loss is InfoNCE with candidates of
 * only the same image, so that no split of a batch changes it: a query chooses among the masks, a
 * mask among the queries, and the loss is the mean of both, divided by the queries of the step.
 *
 * config.json has the configurations of both parts (vision_config, text_config), and the folder
 * their weights. Or it has the folders that they are in (vision_path, text_path, seen from
 * config.json): then the projections start from random values, and the trained model is saved as
 * one folder.
 *
 * The projections have no bias, so the length of what they are given does not matter after
 * normalising: the sum over a mask's patches serves as the average.
 */
#include "models/grounding.h"

#include <math.h>

#include "graph/ops.h"
#include "io/file.h"

#include "models/layers.h"
#include "models/llava.h"
#include "models/parts.h"

#define TOWER "vision_tower"
#define DECODER "language_model"

struct grounding {
    int64_t width;      /* D */
    int64_t state;      /* of the tower, as tower_encode takes it */
    double temperature;
};

/* --- configuration ---------------------------------------------------------------------------- */

static int parse_keys(struct grounding *c, const struct value *config, struct error *e)
{
    TRY(layer_parse_sizes(config, &(struct size_key){"projection_dim", &c->width, 1, 1 << 20}, 1, e));
    TRY(value_opt_int(config, "vision_feature_layer", &c->state, e));
    TRY(value_opt_number(config, "temperature", &c->temperature, e));
    if (!(c->temperature >= 0.001 && c->temperature <= 1000))
        return error_set(e, PL_USAGE, "temperature is %g, it must lie between 0.001 and 1000", c->temperature);
    return PL_OK;
}

/* Returns the normalisation of CLIP and of SigLIP, unless the folder says otherwise. */
static struct pixel_norm usual_norm(const struct model *tower)
{
    if (strncmp(tower->family->model_type, "clip", 4))
        return (struct pixel_norm){1.0 / 255, {0.5, 0.5, 0.5}, {0.5, 0.5, 0.5}};
    return (struct pixel_norm){1.0 / 255, {0.48145466, 0.4578275, 0.40821073}, {0.26862954, 0.26130258, 0.27577711}};
}

static int read_norm(struct model *m, struct error *e)
{
    char path[1100];
    static const char *const files[] = {"preprocessor_config.json", "processor_config.json"};
    for (size_t i = 0; i < COUNT(files); i++) {
        snprintf(path, sizeof path, "%s/%s", m->path, files[i]);
        if (*m->path && file_exists(path)) return pixel_norm_read(&m->ground->norm, m->path, e);
    }
    return PL_OK;
}

static int describe(struct model *m, const struct grounding *c, struct error *e)
{
    const struct model *decoder = model_part(m, DECODER);
    const struct tower_sizes s = tower_sizes(model_part(m, TOWER));
    if (s.channels != 3)
        return error_set(e, PL_USAGE, "the vision tower takes images of %lld channels, expected 3",
                         (long long)s.channels);
    if (c->state < -s.layers - 1 || c->state > s.layers)
        return error_set(e, PL_USAGE,
                         "vision_feature_layer is %lld; a vision tower of %lld layers has the states %lld to %lld",
                         (long long)c->state, (long long)s.layers, (long long)(-s.layers - 1), (long long)s.layers);
    m->vocabulary = decoder->vocabulary;
    m->positions = decoder->positions;
    m->longest = decoder->longest;
    m->image = s.image;
    m->ground = bump_alloc(&m->memory, sizeof *m->ground);
    *m->ground = (struct ground_model){.side = s.side, .patch = s.patch, .norm = usual_norm(model_part(m, TOWER)),
                                       .text = *decoder->path ? decoder->path : NULL};
    model_add_port(m, &(struct port){"pixel_values", VALUES_REAL, 4, {OPEN('B'), s.channels, s.image, s.image}, false});
    model_add_port(m, &(struct port){"masks", VALUES_REAL, 4, {OPEN('B'), OPEN('M'), s.side, s.side}, false});
    model_add_port(m, &(struct port){"input_ids", VALUES_IDS, 2, {OPEN('B'), OPEN('T')}, false});
    model_add_port(m,
                   &(struct port){"query_index", VALUES_INDEX, 2, {OPEN('B'), OPEN('Q')}, false, .below = OPEN('T')});
    model_add_port(m,
                   &(struct port){"target_masks", VALUES_TARGETS, 2, {OPEN('B'), OPEN('Q')}, true, .below = OPEN('M')});
    model_add_port(m, &(struct port){"position_ids", VALUES_POSITIONS, 2, {OPEN('B'), OPEN('T')}, true});
    model_add_output(m, "similarity");
    model_add_output(m, "mask_embeds");
    model_add_output(m, "text_embeds");
    return PL_OK;
}

/* A part and where its configuration is found. */
struct part_keys {
    const char *part, *config, *path, *type, *usual;
    int (*add)(struct model *m, const char *name, const struct value *config, const char *folder, struct error *e);
};
static const struct part_keys part_keys[] = {
    {TOWER, "vision_config", "vision_path", "clip_vision_model", "{\"model_type\": \"clip_vision_model\"}",
     llava_add_tower},
    {DECODER, "text_config", "text_path", "llama", "{\"model_type\": \"llama\"}", llava_add_decoder},
};

/* Adds a part by its configuration, or by its folder, whose configuration then becomes the model's
 * own. */
static int add_part(struct model *m, const struct part_keys *k, struct value *config, bool *outside, struct error *e)
{
    const struct value *map;
    const char *path = NULL;
    int rc = value_opt_string(config, k->path, &path, e);
    if (rc) return rc;
    if (!path) {
        rc = llava_part_config(m, config, k->config, k->type, k->usual, &map, e);
        return rc || !(rc = k->add(m, k->part, map, NULL, e)) ? rc : error_prepend(e, "%s", k->config);
    }
    const char *folder = *path == '/' || !*m->path ? path : bump_format(&m->memory, "%s/%s", m->path, path);
    if ((rc = k->add(m, k->part, NULL, folder, e))) return error_prepend(e, "%s", k->path);
    *outside = true;
    return model_take_config(m, k->part, config, k->config, k->path, &(struct value *){NULL}, e);
}

static int parse_grounding(struct model *m, const struct value *given, struct error *e)
{
    struct grounding *c = m->config = bump_alloc(&m->memory, sizeof *c);
    struct value *config = value_copy(&m->memory, given);
    bool outside = false;
    int rc = PL_OK;
    *c = (struct grounding){.width = 512, .state = -2, .temperature = 0.07};
    for (size_t i = 0; i < COUNT(part_keys) && !rc; i++) rc = add_part(m, &part_keys[i], config, &outside, e);
    if (!rc) rc = parse_keys(c, config, e);
    if (!rc) rc = describe(m, c, e);
    if (!rc && outside) model_gather(m, config);
    return rc;
}

/* --- layers ----------------------------------------------------------------------------------- */

struct build {
    const struct model *m;
    struct graph *g;
    const struct batch *batch;
    int64_t B, T, M, Q;
};

static struct build begin(const struct model *m, struct graph *g, const struct batch *batch)
{
    const struct contents *own = batch->holds;
    struct build b = {m, g, batch, batch->B, batch->T, GROUND_MASKS, GROUND_QUERIES};
    if (own) b.M = own->prompts.masks, b.Q = own->queries;
    if (batch->size) b.M = batch->size['M'], b.Q = batch->size['Q'];
    return b;
}

static id input(const struct build *b, const char *name, enum dtype t, int64_t rows, int64_t columns)
{
    return graph_input(b->g, name, t, columns ? 3 : 2, (int64_t[]){b->B, rows, columns});
}

/* Projects states [B,n,C] to unit vectors [B,n,D], in f32. */
static id project(const struct build *b, id x, const char *name)
{
    const struct grounding *c = b->m->config;
    if (!x) return 0;
    const int64_t C = tensor_last(tensor_at(b->g, x));
    id y = op_cast(b->g, layer_linear_init(b->g, x, "", name, c->width,
                                     (struct linear_init){.std = 1 / sqrt((double)C), .no_bias = true}), DT_F32);
    return op_apply(b->g, OP_L2NORM, &(union attr){.rmsnorm = {.eps = 1e-12f}}, &y, 1);
}

/* Returns pixels [B,3,S,S]: given, or from bytes. */
static id pixels(const struct build *b, int64_t side)
{
    struct graph *g = b->g;
    const struct pixel_norm *n = &b->m->ground->norm;
    float mean[3], std[3];
    if (!b->batch->holds) return graph_input(g, "pixel_values", DT_F32, 4, (int64_t[]){b->B, 3, side, side});
    for (int i = 0; i < 3; i++) mean[i] = (float)(n->mean[i] / n->scale), std[i] = (float)(n->std[i] / n->scale);
    id bytes = graph_input(g, "images", DT_U8, 4, (int64_t[]){b->B, side, side, 3}),
       valid = graph_input(g, "image_valid", DT_I32, 2, (int64_t[]){b->B, 2});
    return op_permute(g, op_image(g, bytes, valid, mean, std), (int[]){0, 3, 1, 2});
}

static id embed_masks(const struct build *b)
{
    struct graph *g = b->g;
    const struct grounding *c = b->m->config;
    const struct model *tower = model_part(b->m, TOWER);
    const struct tower_sizes s = tower_sizes(tower);
    const int64_t patches = s.side * s.side;
    id x, masks = 0;
    tower_encode(tower, g, TOWER, pixels(b, s.image), 1, &c->state, &x);
    IN_SCOPE(g, "mask_projection", 0) {
        if (s.tokens > patches) x = op_dense(g, op_slice(g, x, 1, s.tokens - patches, patches));
        masks = project(b,
                    op_cast(g, op_bmm(g, input(b, "masks", DT_F32, b->M, patches), x, false, false, DT_F32), DT_NONE),
                    "mask_projection");
    }
    return masks;
}

static id embed_queries(const struct build *b)
{
    struct graph *g = b->g;
    const struct model *decoder = model_part(b->m, DECODER);
    id x = decoder_embed(decoder, g, DECODER, decoder_ids(g, b->batch)), queries = 0;
    x = decoder_states(decoder, g, DECODER, x, decoder_rows(g, b->batch));
    IN_SCOPE (g, "text_projection", 0)
        queries = project(b, op_gather(g, x, input(b, "query_index", DT_I32, b->Q, 0)), "text_projection");
    return queries;
}

/* Computes InfoNCE of the similarities [B,Q,M]. Row q of `seen` are those of all queries with q's
 * target. */
static id contrast(const struct build *b, id similarity)
{
    struct graph *g = b->g;
    id target = input(b, "target_masks", DT_I32, b->Q, 0);
    id seen = op_gather(g, op_dense(g, op_permute(g, similarity, (int[]){0, 2, 1})), target);
    id both = op_concat(g, (id[]){similarity, seen}, 2, 2);
    id logits = op_concat(g, (id[]){both, both}, 2, 1);
    logits = op_add(g, logits, op_cast(g, input(b, "candidates", DT_F32, 2 * b->Q, b->M + b->Q), DT_F32));
    logits = op_reshape(g, logits, 2, (int64_t[]){-1, b->M + b->Q});
    id answers = op_reshape(g, input(b, "answers", DT_I32, 2 * b->Q, 0), 1, (int64_t[]){-1});
    return op_scale(g, op_xent(g, logits, answers, "queries"), 0.5);
}

static void build_grounding(const struct model *m, struct graph *g, const struct batch *batch)
{
    const struct build b = begin(m, g, batch);
    const struct grounding *c = m->config;
    id masks = embed_masks(&b), queries = embed_queries(&b), similarity = 0, loss = 0;
    IN_SCOPE(g, "loss", SCOPE_PASS) {
        similarity = op_scale(g, op_bmm(g, queries, masks, false, true, DT_F32), 1 / c->temperature);
        loss = contrast(&b, similarity);
    }
    graph_output(g, "loss", loss);
    if (batch->outputs || !program_is(g->at.program, PROGRAM_TRAINS)) graph_output(g, "similarity", similarity);
    if (!batch->outputs) return;
    graph_output(g, "mask_embeds", masks);
    graph_output(g, "text_embeds", queries);
}

/* --- for who fills a batch -------------------------------------------------------------------- */

/* Reports whether another query has another target: only then a mask chooses among queries. */
static bool has_other(const int32_t *target, int64_t Q, int64_t q)
{
    for (int64_t i = 0; i < Q; i++)
        if (target[i] >= 0 && target[i] != target[q]) return true;
    return false;
}

void ground_candidates(const bool *is_mask, int64_t M, const int32_t *target, int64_t Q, float *candidates,
                       int32_t *answers)
{
    const int64_t width = M + Q;
    for (int64_t r = 0; r < 2 * Q; r++) {
        const int64_t q = r % Q;
        const bool among_queries = r >= Q && target[q] >= 0 && has_other(target, Q, q);
        float *row = candidates + r * width;
        for (int64_t i = 0; i < M; i++) row[i] = !among_queries && is_mask[i] ? 0 : GROUND_NOT;
        for (int64_t i = 0; i < Q; i++)
            row[M + i] = among_queries && (i == q || (target[i] >= 0 && target[i] != target[q])) ? 0 : GROUND_NOT;
        answers[r] = target[q] < 0 ? -100 : among_queries ? (int32_t)(M + q) : target[q];
    }
}

bool ground_shares(const struct ground_model *g, const uint8_t *bits, uint64_t stride, float *shares)
{
    const int64_t side = g->side, patch = g->patch;
    bool any = false;
    memset(shares, 0, (size_t)(side * side) * sizeof *shares);
    for (int64_t y = 0; y < side * patch; y++)
        for (int64_t x = 0; x < side * patch; x++)
            if (bits[(uint64_t)y * stride + (uint64_t)x / 8] >> x % 8 & 1)
                shares[y / patch * side + x / patch] += 1, any = true;
    for (int64_t i = 0; i < side * side; i++) shares[i] /= (float)(patch * patch);
    return any;
}

const struct family arr_coc_family = {"arr_coc", parse_grounding, build_grounding, "", true, .read_folder = read_norm};
