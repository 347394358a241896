/*
 * allocator.c: the token allocator (see allocator.h).
 *
 * The scores, each from 0 to 1:
 *
 *   information    entropy of the softmax over a cell's channels, from 0 to 1 over the image
 *   perspectival   strength of edges: channel 7 of the texture
 *   participatory  (1 + cosine of the scorer's vector of a cell and the question) / 2; the question
 *                  is the mean of its
 *                  tokens' embeddings
 *
 * The balancer sees mean, largest value and standard deviation of each score, and the question, and
 * gives weights that sum to 1. The weighted sum is the score of a cell. A kept token is multiplied
 * by its score: so the loss has a gradient for scorer and balancer, although the choice itself has
 * none. Scores are compared in f16: patches that look alike have the same score up to rounding,
 * which depends on how a batch is split, and then the first is chosen. ARR-COC spreads the sum over
 * 0 to 1 once more. That changes no choice, and where all scores of an image are equal its gradient
 * has no bound: it is left out.
 */
#include "models/allocator.h"

#include <math.h>

#include "graph/ops.h"
#include "models/images.h"
#include "models/layers.h"
#include "models/llava.h"

enum { SCORES = 3, STATISTICS = 3, SCORER_WIDTH = 64, BALANCER_WIDTH = 128 };

struct allocator {
    struct llava llava;
    int64_t kept, side; /* tokens of an image; patches along it */
    bool random;
};

/* --- configuration ---------------------------------------------------------------------------- */

static int describe(struct model *m, const struct allocator *c, int64_t token, struct error *e)
{
    TRY(llava_describe(m, &c->llava, token, IMAGE_AS_TOKENS, e));
    const int64_t patches = c->side * c->side;
    if (m->images->features != patches)
        return error_set(e, PL_USAGE,
                         "vision_feature_select_strategy is %s, and tokens are chosen only among the patches of an "
                         "image: a %s %s; set it to %s",
                         c->llava.drop_first ? "default" : "full", model_part(m, c->llava.tower)->family->model_type,
                         c->llava.drop_first ? "has no class token that could be dropped"
                                             : "has a class token before them",
                         c->llava.drop_first ? "full" : "default");
    if (c->kept < 1 || c->kept > patches)
        return error_set(e, PL_USAGE, "num_visual_tokens is %lld, expected 1 to %lld, the patches of an image",
                         (long long)c->kept, (long long)patches);
    m->images->features = c->kept;
    m->images->single = true;
    m->whole = WHOLE_CHOOSES;
    if (c->random) {
        model_add_port(m, &(struct port){"random_scores", VALUES_REAL, 2, {OPEN('B'), patches}, false});
        return PL_OK;
    }
    model_add_port(m, &(struct port){"texture", VALUES_REAL, 3, {OPEN('B'), TEXTURE_CELLS, TEXTURE_CHANNELS}, false});
    model_add_port(m, &(struct port){"information", VALUES_REAL, 2, {OPEN('B'), TEXTURE_CELLS}, false});
    model_add_port(m, &(struct port){"query_weights", VALUES_REAL, 2, {OPEN('B'), OPEN('T')}, false});
    return PL_OK;
}

static int parse_allocator(struct model *m, const struct value *config, struct error *e)
{
    struct allocator *c = m->config = bump_alloc(&m->memory, sizeof *c);
    const char *selection = "scored";
    int64_t token;
    int rc = llava_parse_parts(m, &c->llava, config, &llava_usual, &token, e);
    c->kept = 200;
    if (!rc) rc = value_opt_int(config, "num_visual_tokens", &c->kept, e);
    if (!rc) rc = value_opt_string(config, "token_selection", &selection, e);
    if (!rc && strcmp(selection, "scored") && strcmp(selection, "random"))
        rc = error_set(e, PL_USAGE, "token_selection \"%.40s\": expected scored or random", selection);
    if (rc) return rc;
    c->random = !strcmp(selection, "random");
    c->side = tower_sizes(model_part(m, c->llava.tower)).side;
    return describe(m, c, token, e);
}

/* --- scores ----------------------------------------------------------------------------------- */

struct build {
    const struct allocator *c;
    struct graph *g;
    int64_t B, T, D;
};

/* What images are scored by. */
struct scored {
    struct graph *g;
    int64_t n, D; /* images; the width of a question */
    id texture, information, query;
};

static id unit(struct graph *g, id x)
{
    return op_apply(g, OP_L2NORM, &(union attr){.rmsnorm = {.eps = 1e-8f}}, &x, 1);
}
static id wide(struct graph *g, id x) { return op_cast(g, x, DT_F32); }

/* Returns the question [B,1,D] of the embeddings [B,T,D]. */
static id question(const struct build *b, id embeddings)
{
    struct graph *g = b->g;
    id weights = op_reshape(g, graph_input(g, "query_weights", DT_F32, 2, (int64_t[]){b->B, b->T}), 3,
                            (int64_t[]){b->B, 1, b->T});
    return op_cast(g, op_bmm(g, weights, embeddings, false, false, DT_F32), DT_NONE);
}

/* Returns the three scores of each cell, [B,cells,3]. */
static id score_cells(const struct scored *b)
{
    struct graph *g = b->g;
    id seen = layer_linear(g, op_act(g, layer_linear(g, b->texture, "scorer.", "fc1", SCORER_WIDTH), ACT_RELU),
                           "scorer.", "fc2", b->D);
    id query = unit(g, b->query), cosine = op_bmm(g, unit(g, seen), query, false, true, DT_F32);
    id half = op_fill(g, DT_F32, 1, (int64_t[]){1}, 0.5);
    id scores[SCORES] = {wide(g, op_reshape(g, b->information, 3, (int64_t[]){b->n, TEXTURE_CELLS, 1})),
                         wide(g, op_dense(g, op_slice(g, b->texture, 2, TEXTURE_EDGES, 1))),
                         op_add(g, op_scale(g, cosine, 0.5), half)};
    return op_concat(g, scores, SCORES, 2);
}

/* Computes mean, largest value and standard deviation of each score, [B,9]. The length of a vector
 * is its product with itself divided by its length. */
static id summarise(const struct scored *b, id scores)
{
    struct graph *g = b->g;
    const int64_t rows = b->n * SCORES, cells = TEXTURE_CELLS;
    float share[TEXTURE_CELLS];
    for (int i = 0; i < TEXTURE_CELLS; i++) share[i] = 1.0f / TEXTURE_CELLS;
    id x = op_reshape(g, op_dense(g, op_permute(g, scores, (int[]){0, 2, 1})), 3, (int64_t[]){rows, 1, cells});
    id mean = op_linear(g, x, graph_const(g, "balancer.mean", DT_F32, 2, (int64_t[]){1, cells}, share), 0);
    id apart = op_add(g, x, op_scale(g, mean, -1));
    id deviation = op_scale(g, op_bmm(g, apart, unit(g, apart), false, true, DT_F32), 1 / sqrt(TEXTURE_CELLS - 1));
    id first = op_topk(g, op_reshape(g, x, 2, (int64_t[]){rows, cells}), 1);
    id largest = op_gather(g, op_reshape(g, x, 3, (int64_t[]){rows, cells, 1}), first);
    return op_reshape(g, op_concat(g, (id[]){mean, largest, deviation}, STATISTICS, 2), 2,
                      (int64_t[]){b->n, SCORES * STATISTICS});
}

/* Returns one score of each cell, [B,cells,1]. */
static id balance(const struct scored *b, id scores)
{
    struct graph *g = b->g;
    id x = op_concat(g, (id[]){op_cast(g, summarise(b, scores), DT_NONE),
                               op_reshape(g, b->query, 2, (int64_t[]){b->n, b->D})}, 2, 1);
    x = op_act(g, layer_linear(g, x, "balancer.", "fc1", BALANCER_WIDTH), ACT_RELU);
    x = op_act(g, layer_linear(g, x, "balancer.", "fc2", BALANCER_WIDTH), ACT_RELU);
    id weights = op_softmax(g, wide(g, layer_linear(g, x, "balancer.", "fc3", SCORES)));
    return op_bmm(g, scores, op_reshape(g, weights, 3, (int64_t[]){b->n, SCORES, 1}), false, false, DT_F32);
}

id allocator_scores(struct graph *g, id texture, id information, id query)
{
    if (!texture || !information || !query) return 0;
    const struct tensor *q = tensor_at(g, query);
    const struct scored b = {g, q->dim[0], tensor_last(q), texture, information, query};
    return balance(&b, score_cells(&b));
}

/* --- tokens ----------------------------------------------------------------------------------- */

/* Returns the kept ones of the tokens [B,P,C], times their scores: [B,kept,C]. */
static id keep(const struct build *b, id tokens, id embeddings)
{
    struct graph *g = b->g;
    const int64_t B = b->B, side = b->c->side, P = side * side;
    if (b->c->random)
        return op_gather(g, tokens, op_topk(g, wide(g, graph_input(g, "random_scores", DT_F32, 2, (int64_t[]){B, P})),
                                 b->c->kept));
    id texture = graph_input(g, "texture", DT_F32, 3, (int64_t[]){B, TEXTURE_CELLS, TEXTURE_CHANNELS});
    id information = graph_input(g, "information", DT_F32, 2, (int64_t[]){B, TEXTURE_CELLS});
    id map = op_reshape(g, allocator_scores(g, texture, information, question(b, embeddings)), 4,
                        (int64_t[]){B, TEXTURE_SIDE, TEXTURE_SIDE, 1});
    map = side > TEXTURE_SIDE ? op_resize(g, map, side, side, false) : op_avgpool_adaptive(g, map, side, side);
    id score = op_reshape(g, map, 3, (int64_t[]){B, P, 1});
    /* equal up to rounding is equal */
    id index = op_topk(g, op_cast(g, op_reshape(g, score, 2, (int64_t[]){B, P}), DT_F16), b->c->kept);
    return op_mul(g, op_gather(g, tokens, index), op_cast(g, op_gather(g, score, index), DT_NONE));
}

static id place(const struct build *b, const struct model *m, const struct batch *batch, id embeddings)
{
    struct graph *g = b->g;
    const struct contents *own = batch->holds;
    const int64_t B = b->B;
    /* tokens that were generated: the image is before them */
    if (program_is(g->at.program, PROGRAM_SINGLE)) return embeddings;
    const int64_t images = batch->size ? batch->size['N'] : own ? B * own->media.images : B;
    if (images != B)
        return graph_fail(g, "%lld images for %lld samples; the token allocator takes one image a sample",
                          (long long)images, (long long)B);
    id pixels = images_input(g, own, "pixel_values", 4, (int64_t[]){B, m->images->channels, m->image, m->image},
                             batch->size ? INPUT_SHARED : 0, m->image * m->image), kept = 0;
    id tokens = llava_layers.project(m, g, llava_layers.tower(m, g, pixels));
    IN_SCOPE(g, "allocator", 0) kept = keep(b, tokens, embeddings);
    if (!kept || !embeddings) return 0;
    const int64_t C = tensor_last(tensor_at(g, kept));
    if (batch->size) kept = op_reshape(g, kept, 2, (int64_t[]){-1, C}); /* the indices count over all images */
    return op_replace_rows(g, embeddings, graph_input(g, "image_index", DT_I32, 2, (int64_t[]){B, b->T}), kept);
}

static void build_allocator(const struct model *m, struct graph *g, const struct batch *batch)
{
    const struct allocator *c = m->config;
    const char *part = c->llava.decoder;
    const struct model *decoder = model_part(m, part);
    const struct build b = {c, g, batch->B, batch->T, decoder_width(decoder)};
    id ids = decoder_ids(g, batch), labels = decoder_labels(g, batch);
    struct token_rows rows = decoder_rows(g, batch);
    id x = place(&b, m, batch, decoder_embed(decoder, g, part, ids));
    decoder_outputs(decoder, g, part, batch, decoder_states(decoder, g, part, x, rows), labels);
}

/* --- for who fills a batch -------------------------------------------------------------------- */

void question_weights(const int32_t *positions, const int32_t *labels, const int32_t *index, int64_t T,
                      int32_t slot, float *weights)
{
    int64_t image = 0, n = 0;
    memset(weights, 0, (size_t)T * sizeof *weights);
    while (image < T && index[image] != slot) image++;
    if (image == T) return;
    int64_t begin = image - positions[image], end = begin;
    while (end < T && (!labels || labels[end] == -100) &&
           (end == begin || positions[end] == positions[end - 1] + 1))
        n += index[end++] < 0;
    for (int64_t i = begin; i < end; i++)
        if (index[i] < 0) weights[i] = 1.0f / (float)n;
}

const struct family arr_coc_allocator_family =
    {"arr_coc_allocator", parse_allocator, build_allocator, "", true, .generates = true, .spellings = llava_spellings};

/* ---- Texture ----
 *
 * what the pixels of an image look like in 32 x 32 cells, for the token allocator
 * (allocator.h).
 *
 *     0-2    red, green, blue of the cell              8, 9   row, column, 0 to 1
 *     3, 4   L* / 100, (a* + 128) / 255                10     distance from the centre, 0 to 1
 *     5-7    Sobel of grey: x, y, magnitude            11     as 7
 *                                                      12     as 3
 *
 * An image is resized to 512 x 512 (bilinear, without antialiasing), and a cell is the mean of 16 x
 * 16 pixels. Channels 5 to 7 are spread over 0 to 1 by the smallest and largest value of this
 * image: ARR-COC takes those of a batch, so that its results depend on what shares a batch. At the
 * border of the grid its outermost cells are repeated.
 */

enum { RESIZED = 512, BLOCK = RESIZED / TEXTURE_SIDE, WIDEST = 1 << 14 }; /* no tower takes wider images */

/* The neighbours of position i of the resized image, and the share of the second. */
struct between {
    int64_t a, b;
    float share;
};
static struct between between(int i, int64_t side)
{
    const float at = fmaxf(0, ((float)i + 0.5f) * (float)side / RESIZED - 0.5f);
    const int64_t a = (int64_t)at;
    return (struct between){a, min_i64(a + 1, side - 1), at - (float)a};
}

/* Computes the means of a row of cells of one plane: first over the rows of the resized image,
 * then along them. */
static void put_means(const float *plane, int64_t height, int64_t width, int row, float *cells)
{
    float line[WIDEST];
    for (int64_t x = 0; x < width; x++) line[x] = 0;
    for (int i = 0; i < BLOCK; i++) {
        const struct between y = between(row * BLOCK + i, height);
        const float *above = plane + y.a * width, *below = plane + y.b * width, rest = 1 - y.share;
        for (int64_t x = 0; x < width; x++) line[x] += above[x] * rest + below[x] * y.share;
    }
    for (int column = 0; column < TEXTURE_SIDE; column++) {
        float sum = 0;
        for (int i = 0; i < BLOCK; i++) {
            const struct between x = between(column * BLOCK + i, width);
            sum += line[x.a] * (1 - x.share) + line[x.b] * x.share;
        }
        cells[column * TEXTURE_CHANNELS] = sum / (BLOCK * BLOCK);
    }
}

/* Converts sRGB to linear light; the next is the curve of CIELAB. */
static double linear_light(double c) { return c <= 0.04045 ? c / 12.92 : pow((c + 0.055) / 1.055, 2.4); }
static double lab_curve(double t) { return t > 216.0 / 24389 ? cbrt(t) : (24389.0 / 27 * t + 16) / 116; }

static void put_lab(float *cell)
{
    const double r = linear_light(cell[0]), g = linear_light(cell[1]), b = linear_light(cell[2]);
    const double x = lab_curve((0.4124564 * r + 0.3575761 * g + 0.1804375 * b) / 0.95047),
                 y = lab_curve(0.2126729 * r + 0.7151522 * g + 0.0721750 * b);
    cell[3] = (float)((116 * y - 16) / 100);
    cell[4] = (float)((500 * (x - y) + 128) / 255);
}

static float grey(const float *texture, int row, int column)
{
    row = row < 0 ? 0 : row >= TEXTURE_SIDE ? TEXTURE_SIDE - 1 : row;
    column = column < 0 ? 0 : column >= TEXTURE_SIDE ? TEXTURE_SIDE - 1 : column;
    const float *cell = texture + (row * TEXTURE_SIDE + column) * TEXTURE_CHANNELS;
    return 0.299f * cell[0] + 0.587f * cell[1] + 0.114f * cell[2];
}

static void put_edges(const float *texture, int row, int column, float *cell)
{
    float x = 0, y = 0;
    for (int k = -1; k <= 1; k++) {
        const float weight = k ? 1 : 2;
        x += weight * (grey(texture, row + k, column + 1) - grey(texture, row + k, column - 1));
        y += weight * (grey(texture, row + 1, column + k) - grey(texture, row - 1, column + k));
    }
    cell[5] = x;
    cell[6] = y;
    cell[7] = sqrtf(x * x + y * y);
}

static void put_position(int row, int column, float *cell)
{
    const float most = TEXTURE_SIDE - 1, y = (float)row / most, x = (float)column / most;
    cell[8] = y;
    cell[9] = x;
    cell[10] = sqrtf(((y - 0.5f) * (y - 0.5f) + (x - 0.5f) * (x - 0.5f)) / 0.5f);
}

/* Spreads every `step`-th of the numbers over 0 to 1; equal ones become 0. */
static void spread(float *x, int step)
{
    float least = x[0], most = x[0];
    for (int i = 0; i < TEXTURE_CELLS; i++) least = fminf(least, x[i * step]), most = fmaxf(most, x[i * step]);
    for (int i = 0; i < TEXTURE_CELLS; i++) x[i * step] = (x[i * step] - least) / (most - least + 1e-8f);
}

void texture_of(const float *rgb, int64_t height, int64_t width, float *texture)
{
    CHECK(width <= WIDEST, "an image of %lld pixels across has no texture", (long long)width);
    for (int c = 0; c < 3; c++)
        for (int row = 0; row < TEXTURE_SIDE; row++)
            put_means(rgb + c * height * width, height, width, row,
                      texture + row * TEXTURE_SIDE * TEXTURE_CHANNELS + c);
    for (int i = 0; i < TEXTURE_CELLS; i++) {
        float *cell = texture + i * TEXTURE_CHANNELS;
        put_lab(cell);
        put_position(i / TEXTURE_SIDE, i % TEXTURE_SIDE, cell);
    }
    for (int i = 0; i < TEXTURE_CELLS; i++)
        put_edges(texture, i / TEXTURE_SIDE, i % TEXTURE_SIDE, texture + i * TEXTURE_CHANNELS);
    for (int c = 5; c <= TEXTURE_EDGES; c++) spread(texture + c, TEXTURE_CHANNELS);
    for (int i = 0; i < TEXTURE_CELLS; i++) {
        float *cell = texture + i * TEXTURE_CHANNELS;
        cell[11] = cell[TEXTURE_EDGES];
        cell[12] = cell[3];
    }
}

void texture_information(const float *texture, float *out)
{
    for (int i = 0; i < TEXTURE_CELLS; i++) {
        const float *cell = texture + i * TEXTURE_CHANNELS;
        double sum = 0, weighted = 0;
        for (int c = 0; c < TEXTURE_CHANNELS; c++) {
            const double share = exp((double)cell[c]);
            sum += share;
            weighted += share * (double)cell[c];
        }
        out[i] = (float)(log(sum) - weighted / sum); /* - sum of p log p, with log p = x - log(sum) */
    }
    spread(out, 1);
}
