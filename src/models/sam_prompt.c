/*
 * sam_prompt.c: the prompt encoder: prompts as tokens and as a map.
 *
 *     point   encode(position) + embedding of its kind        one token
 *     filler  only the "not a point" embedding                one token
 *     box     encode(corner) + embedding of first, of last    two tokens
 *     mask    convolutions down to the grid                   a map, added to the image's
 *     none    one learned vector instead of the map
 *
 * encode(c) = [sin, cos](2 pi (2 c - 1) G) with fixed random frequencies G [2,C/2]; positions are 0
 * to 1 over the image. The decoder gets the positions of the grid's cells in the same encoding.
 * Points without a box are followed by one filler, as in the reference.
 *
 * In SAM 2 a filler ends each prompt, also one with a box, and a prompt of nothing is two fillers.
 *
 * Kinds are looked up by GATHER, which returns zeros for an index out of range: so an unused point
 * has no embedding, and a filler no position. In slots, corners are points like others and unused
 * points are masked out: any prompt fits. SAM 2's one filler then follows the slots, in which
 * fillers are masked out too.
 */
#include <math.h>

#include "graph/emit.h"
#include "models/layers.h"
#include "models/sam.h"
#include "graph/sizes.h"

#define ROOT "prompt_encoder."

id sam_frequencies(const struct sam_build *b)
{
    return layer_param(b->g, "shared_image_embedding.", "positional_embedding", 2,
                       (int64_t[]){2, b->c->prompts.hidden / 2}, 1);
}

/* Returns the embedding of a point kind, [1,C]. */
static id kind_embedding(const struct sam_build *b, int kind)
{
    const struct sam_prompts *c = &b->c->prompts;
    char name[40];
    if (c->joined) {
        id all = layer_param(b->g, ROOT, "point_embed.weight", 2, (int64_t[]){c->kinds, c->hidden}, 1);
        return op_slice(b->g, all, 0, kind, 1);
    }
    snprintf(name, sizeof name, "point_embed.%d.weight", kind);
    return layer_param(b->g, ROOT, name, 2, (int64_t[]){1, c->hidden}, 1);
}

static id filler_embedding(const struct sam_build *b)
{
    return layer_param(b->g, ROOT, "not_a_point_embed.weight", 2, (int64_t[]){1, b->c->prompts.hidden}, 1);
}

static id point_kinds(const struct sam_build *b)
{
    return b->kinds ? b->kinds
                    : graph_input(b->g, "input_labels", DT_I32, 3, (int64_t[]){b->B, b->M, b->prompting.points});
}

/* Returns the encoded position of each point: [B*M*P,C], zeros for points without a position. */
static id point_positions(const struct sam_build *b, id gauss)
{
    struct graph *g = b->g;
    const int64_t P = b->prompting.points, C = b->c->prompts.hidden, n = b->B * b->M * P;
    id positions =
        b->positions ? b->positions : graph_input(g, "input_points", DT_F32, 4, (int64_t[]){b->B, b->M, P, 2});
    id one = op_reshape(g, op_fourier(g, positions, gauss), 3, (int64_t[]){n, 1, C});
    /* A row for each kind with a position; other kinds are out of range and get zeros. */
    id rows = op_concat(g, (id[]){one, one, one, one}, POINT_FILLER, 1);
    return op_reshape(g, op_gather(g, rows, op_reshape(g, point_kinds(b), 2, (int64_t[]){n, 1})), 2, (int64_t[]){n, C});
}

/* Returns the kind embedding of each point: [B*M*P,C]. */
static id point_embeddings(const struct sam_build *b)
{
    struct graph *g = b->g;
    const int64_t C = b->c->prompts.hidden, n = b->B * b->M * b->prompting.points;
    id known[POINT_UNUSED];
    for (int i = 0; i < POINT_FILLER; i++) known[i] = kind_embedding(b, i);
    known[POINT_FILLER] = filler_embedding(b);
    id table = op_reshape(g, op_concat(g, known, POINT_UNUSED, 0), 3, (int64_t[]){1, POINT_UNUSED, C});
    return op_reshape(g, op_gather(g, table, op_reshape(g, point_kinds(b), 2, (int64_t[]){1, n})), 2,
                      (int64_t[]){n, C});
}

/* Appends the filler to tokens [B*M,n,C]. */
static id append_filler(const struct sam_build *b, id tokens)
{
    struct graph *g = b->g;
    if (!tokens) return 0;
    const int64_t n = tensor_at(g, tokens)->dim[1];
    id last = op_pad(g, filler_embedding(b), (int64_t[]){n, 0}, (int64_t[]){0, 0});
    return op_add(g, op_pad(g, tokens, (int64_t[]){0, 0, 0}, (int64_t[]){0, 1, 0}), last);
}

/* Returns `n` fillers as the tokens of each prompt, [B*M,n,C]. */
static id only_fillers(const struct sam_build *b, int64_t n)
{
    struct graph *g = b->g;
    const int64_t C = b->c->prompts.hidden, N = b->B * b->M;
    int32_t *zeros = mem_alloc((size_t)(N * n) * sizeof *zeros);
    char name[48];
    snprintf(name, sizeof name, "no_prompts.%lld", (long long)(N * n));
    id index = graph_const(g, name, DT_I32, 2, (int64_t[]){1, N * n}, zeros);
    mem_free(zeros);
    id all = op_gather(g, op_reshape(g, filler_embedding(b), 3, (int64_t[]){1, 1, C}), index);
    return op_reshape(g, all, 3, (int64_t[]){N, n, C});
}

/* Returns tokens [B*M,P,C], followed by the filler if no box follows. */
static id point_tokens(const struct sam_build *b, id gauss)
{
    struct graph *g = b->g;
    const int64_t P = b->prompting.points, C = b->c->prompts.hidden;
    /* two statements: the evaluation order must not depend on the compiler */
    id positions = point_positions(b, gauss), embeddings = point_embeddings(b);
    id tokens = op_reshape(g, op_add(g, positions, embeddings), 3, (int64_t[]){b->B * b->M, P, C});
    return b->prompting.boxes || b->prompting.slots || b->c->prompts.ends ? tokens : append_filler(b, tokens);
}

/* Returns [B*M,tokens]: -inf for unused slots, 0 for the rest. */
static id hidden_slots(const struct sam_build *b)
{
    struct graph *g = b->g;
    const int64_t P = b->prompting.points, N = b->B * b->M;
    float score[POINT_KINDS] = {0};
    score[POINT_UNUSED] = -INFINITY;
    if (b->c->prompts.ends) score[POINT_FILLER] = -INFINITY;
    id table = graph_const(g, "slot_scores", DT_F32, 3, (int64_t[]){1, POINT_KINDS, 1}, score);
    id all = op_gather(g, table, op_reshape(g, point_kinds(b), 2, (int64_t[]){1, N * P}));
    return op_pad(g, op_reshape(g, all, 2, (int64_t[]){N, P}), (int64_t[]){0, 0},
                  (int64_t[]){0, 2 * b->prompting.boxes + b->c->prompts.ends});
}

/* Returns the tokens of the two corners, [B*M,2,C]. */
static id box_tokens(const struct sam_build *b, id gauss)
{
    struct graph *g = b->g;
    id corners = graph_input(g, "input_boxes", DT_F32, 4, (int64_t[]){b->B, b->M, 2, 2});
    id encoded = op_reshape(g, op_fourier(g, corners, gauss), 3, (int64_t[]){b->B * b->M, 2, b->c->prompts.hidden});
    id first = kind_embedding(b, POINT_FIRST), last = kind_embedding(b, POINT_LAST);
    return op_add(g, encoded, op_concat(g, (id[]){first, last}, 2, 0));
}

/* Embeds masks with four times the side of the grid, [B,n,h,h], as [B*n,grid*grid,C]. */
static id mask_embedding(const struct sam_build *b)
{
    const struct sam_prompts *c = &b->c->prompts;
    struct graph *g = b->g;
    const int64_t h = 4 * b->grid, n = b->prompting.mask_inputs, few = c->mask_channels / 4;
    const struct kernel_shape half = {2, 2, 0, true}, same = {1, 1, 0, true};
    id x = b->masks ? b->masks : graph_input(g, "input_masks", DT_F32, 4, (int64_t[]){b->B, n, h, h});
    /* The logits of an earlier round are f32 in any precision. */
    x = op_cast(g, op_reshape(g, x, 4, (int64_t[]){b->B * n, h, h, 1}), DT_NONE);
    x = layer_conv(g, x, ROOT "mask_embed.", "conv1", few, half);
    x = op_act(g, layer_norm(g, x, ROOT "mask_embed.", "layer_norm1", c->eps), c->act);
    x = layer_conv(g, x, ROOT "mask_embed.", "conv2", c->mask_channels, half);
    x = op_act(g, layer_norm(g, x, ROOT "mask_embed.", "layer_norm2", c->eps), c->act);
    x = layer_conv(g, x, ROOT "mask_embed.", "conv3", c->hidden, same);
    return op_reshape(g, x, 3, (int64_t[]){b->B * n, b->grid * b->grid, c->hidden});
}

/* Declares the weights of mask_embedding for a build without masks: they are parameters all the
 * same. */
static void mask_weights(const struct sam_build *b)
{
    const int64_t wide = b->c->prompts.mask_channels, few = wide / 4, C = b->c->prompts.hidden;
    const struct {
        const char *name;
        int64_t out, in, size;
    } convs[] = {{"conv1", few, 1, 2}, {"conv2", wide, few, 2}, {"conv3", C, wide, 1}};
    for (size_t i = 0; i < COUNT(convs); i++)
        layer_conv_weights(b->g, ROOT "mask_embed.", convs[i].name, convs[i].out, convs[i].in, (int)convs[i].size);
    layer_norm_weights(b->g, ROOT "mask_embed.", "layer_norm1", few);
    layer_norm_weights(b->g, ROOT "mask_embed.", "layer_norm2", wide);
}

/* Returns the centres of the grid's cells, row by row, x before y. */
id sam_positions(const struct sam_build *b)
{
    const int64_t n = b->grid;
    float *at = mem_alloc((size_t)(n * n * 2) * sizeof *at);
    for (int64_t i = 0; i < n * n; i++) {
        at[2 * i] = ((float)(i % n) + 0.5f) / (float)n;
        at[2 * i + 1] = ((float)(i / n) + 0.5f) / (float)n;
    }
    id centres = graph_const(b->g, "grid_centres", DT_F32, 2, (int64_t[]){n * n, 2}, at);
    mem_free(at);
    return op_fourier(b->g, centres, sam_frequencies(b));
}

static id all_tokens(const struct sam_build *b, id gauss)
{
    id parts[2];
    int n = 0;
    if (b->prompting.points) parts[n++] = point_tokens(b, gauss);
    if (b->prompting.boxes) parts[n++] = box_tokens(b, gauss);
    id all = n == 2 ? op_concat(b->g, parts, n, 1) : n ? parts[0] : 0;
    if (!b->c->prompts.ends) return all;
    return all ? append_filler(b, all) : only_fillers(b, 2);
}

struct sam_encoded sam_prompt(const struct sam_build *b, id positions)
{
    const struct sam_prompts *c = &b->c->prompts;
    struct graph *g = b->g;
    struct sam_encoded p = {.positions = positions};
    IN_SCOPE(g, "prompt_encoder", 0) {
        id gauss = sam_frequencies(b);
        for (int64_t i = 0; i < c->kinds; i++) kind_embedding(b, (int)i);
        filler_embedding(b);
        mask_weights(b);
        id none = layer_param(g, ROOT, "no_mask_embed.weight", 2, (int64_t[]){1, c->hidden}, 1);
        p.tokens = all_tokens(b, gauss);
        if (b->prompting.slots && b->prompting.points) p.hidden = hidden_slots(b);
        p.dense = b->prompting.mask_inputs ? mask_embedding(b) : op_reshape(g, none, 3, (int64_t[]){1, 1, c->hidden});
    }
    return p;
}

/* ---- Rounds ----
 *
 * interactive training: a prompt, then in each round another point where the mask is
 * wrong.
 *
 *     first round    a point or a box; several candidate masks; the best one counts in the loss
 *     later rounds   PROMPT_NEXT adds a point where the last mask and the target differ;
 *                    the last mask's logits are an input as well; a single mask
 *
 *     loss = mean over the rounds
 *
 * The fed-back masks are constants: no gradient flows from a round to the one before. So each
 * round's backward directly follows its forward, inside the loop over rounds, and only one round's
 * activations exist at a time. The gradient of the image embedding is the sum over rounds.
 *
 * Prompts are in slots (sam_prompt.c): slots 0 and 1 hold the first prompt, a point and a filler or
 * two corners; from FIRST_FREE on, each later round has one slot.
 */

enum { FIRST_FREE = 2 };

/* The training targets, by row. */
struct targets {
    id bits, valid, keys;
};

static struct targets target_inputs(const struct sam_build *b)
{
    struct graph *g = b->g;
    const int64_t N = b->B * b->M, h = 4 * b->grid, row = mask_row_bytes(h);
    id bits = graph_input(g, "gt_masks", DT_U8, 4, (int64_t[]){b->B, b->M, h, row});
    id valid = graph_input(g, "gt_valid", DT_I32, 3, (int64_t[]){b->B, b->M, 2});
    id keys = graph_input(g, "prompt_keys", DT_I32, 2, (int64_t[]){b->B, b->M});
    bits = op_reshape(g, bits, 3, (int64_t[]){N, h, row});
    valid = op_reshape(g, valid, 2, (int64_t[]){N, 2});
    keys = op_reshape(g, keys, 1, (int64_t[]){N});
    return (struct targets){bits, valid, keys};
}

/* Returns positions and kinds of the points of the batch, by row. */
static struct prompt_state prompt_inputs(const struct sam_build *b)
{
    struct graph *g = b->g;
    const int64_t N = b->B * b->M, P = b->prompting.points;
    id positions = graph_input(g, "input_points", DT_F32, 4, (int64_t[]){b->B, b->M, P, 2});
    id kinds = graph_input(g, "input_labels", DT_I32, 3, (int64_t[]){b->B, b->M, P});
    positions = op_reshape(g, positions, 3, (int64_t[]){N, P, 2});
    kinds = op_reshape(g, kinds, 2, (int64_t[]){N, P});
    return (struct prompt_state){positions, kinds, 0};
}

/* Copies the prompts if there is more than one round, so that the rounds can update them. */
static struct prompt_state first_prompts(const struct sam_build *b, struct prompt_state s)
{
    struct graph *g = b->g;
    if (b->prompting.rounds == 1) return s;
    id positions = op_copy(g, s.positions, SPACE_DEVICE), kinds = op_copy(g, s.kinds, SPACE_DEVICE);
    id round = op_fill(g, DT_I32, 1, (int64_t[]){1}, 0);
    return (struct prompt_state){positions, kinds, round};
}

/* The result of one round, with its loss added to `sum`. */
struct round_result {
    struct sam_masks masks;
    id sum, statistics;
};

static struct round_result round_result(const struct sam_build *b, struct sam_image image, id grid,
                                        const struct targets *t, id sum)
{
    struct graph *g = b->g;
    struct sam_encoded p = sam_prompt(b, grid);
    struct round_result a = {.masks = sam_decode(b, image, &p)};
    const struct sam_losses y = sam_loss(b, &a.masks, t->bits, t->valid);
    a.statistics = y.statistics;
    a.sum = op_accumulate(g, y.masks, sum);
    if (y.scores) a.sum = op_accumulate(g, y.scores, a.sum);
    return a;
}

/* Returns the evaluation outputs statistics of each mask (MASK_LOSS in ops.def). */
static bool outputs_statistics(const struct sam_build *b)
{
    return b->prompting.statistics || !program_is(b->g->at.program, PROGRAM_TRAINS);
}

static void output_statistics(const struct sam_build *b, const char *name, id statistics)
{
    if (outputs_statistics(b) && statistics) graph_output(b->g, name, statistics);
}

/* Emits statistics of the candidate with the best predicted IoU, which inference returns. The loss
 * chooses its candidate by the target. */
static id picked_statistics(const struct sam_build *b, const struct sam_masks *m, const struct targets *t, id masks)
{
    struct graph *g = b->g;
    const int64_t N = b->B * b->M, h = 4 * b->grid;
    id one = op_reshape(g, masks, 4, (int64_t[]){N, 1, h, h}), score = op_dense(g, op_slice(g, m->iou, 1, 0, 1));
    return op_mask_loss(g, one, score, t->bits, t->valid, b->prompting.loss, NULL).statistics;
}

/* Returns the rounds after the first, in a loop that carries prompts, round and masks. */
static id more_rounds(struct sam_build *b, struct sam_image image, id grid, const struct targets *t,
                      struct prompt_state s, id masks, id sum)
{
    struct graph *g = b->g;
    const int64_t rounds = b->prompting.rounds - 1, h = 4 * b->grid;
    struct round_result a = {0};
    IN_SCOPE(g, "next", SCOPE_PASS) IN_LOOP(g, "rounds", (uint32_t)rounds) {
        s = op_prompt_next(g, s, masks, t->bits, t->valid, t->keys, (int)rounds, FIRST_FREE);
        b->positions = s.positions;
        b->kinds = s.kinds;
        /* A copy: when the backward reads it, `masks` already holds the next round's. */
        b->masks = op_reshape(g, op_copy(g, masks, SPACE_DEVICE), 4, (int64_t[]){b->B, b->M, h, h});
        b->prompting.mask_inputs = b->M;
        b->prompting.single = true;
        a = round_result(b, image, grid, t, sum);
        op_mask_pick(g, a.masks.logits, a.masks.iou, masks);
    }
    output_statistics(b, "last_statistics", a.statistics);
    return a.sum;
}

void sam_rounds(const struct sam_build *given, struct sam_image image)
{
    struct sam_build b = *given;
    struct graph *g = b.g;
    b.prompting.slots = true;
    b.prompting.boxes = b.prompting.single = false;
    b.prompting.mask_inputs = 0;
    id grid = sam_positions(&b);
    struct targets t = target_inputs(&b);
    struct prompt_state s = prompt_inputs(&b);
    id loss = 0;
    IN_SCOPE(g, "masks", SCOPE_ROWS | SCOPE_PASS) {
        s = first_prompts(&b, s);
        id sum = op_fill(g, DT_F32, 0, NULL, 0), masks = 0, best = 0;
        struct round_result a = {0};
        IN_SCOPE(g, "first", SCOPE_PASS) IN_LOOP(g, "first round", b.prompting.rounds > 1) {
            b.positions = s.positions;
            b.kinds = s.kinds;
            a = round_result(&b, image, grid, &t, sum);
            if (b.prompting.rounds > 1 || outputs_statistics(&b))
                masks = op_mask_pick(g, a.masks.logits, a.masks.iou, 0);
            if (masks && outputs_statistics(&b)) best = picked_statistics(&b, &a.masks, &t, masks);
        }
        output_statistics(&b, "first_statistics", a.statistics);
        output_statistics(&b, "first_picks", best);
        /* later rounds overwrite them */
        if (masks && b.prompting.picks)
            graph_output(g, "picked_masks", b.prompting.rounds > 1 ? op_copy(g, masks, SPACE_DEVICE) : masks);
        if (b.prompting.rounds > 1) a.sum = more_rounds(&b, image, grid, &t, s, masks, a.sum);
        loss = op_scale(g, a.sum, 1.0 / (double)b.prompting.rounds);
    }
    graph_output(g, "loss", loss);
}
