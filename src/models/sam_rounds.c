/*
 * sam_rounds.c: interactive training: a prompt, then in each round another point where the mask is
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
#include "graph/emit.h"
#include "graph/sizes.h"
#include "models/sam.h"

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

/* Positions and kinds of the points of the batch, by row. */
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

/* With more than one round, copies that the rounds can update. */
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

static struct round_result round_result(const struct sam_build *b, id image, id grid, const struct targets *t, id sum)
{
    struct graph *g = b->g;
    struct sam_encoded p = sam_prompt(b, grid);
    struct round_result a = {.masks = sam_decode(b, image, &p)};
    const struct mask_loss y = op_mask_loss(g, a.masks.logits, a.masks.iou, t->bits, t->valid, b->prompting.loss, NULL);
    a.statistics = y.statistics;
    a.sum = op_accumulate(g, y.loss, sum);
    return a;
}

/* The evaluation outputs statistics of each mask (MASK_LOSS in ops.def). */
static bool outputs_statistics(const struct sam_build *b)
{
    return b->prompting.statistics || !program_is(b->g->at.program, PROGRAM_TRAINS);
}

static void output_statistics(const struct sam_build *b, const char *name, id statistics)
{
    if (outputs_statistics(b) && statistics) graph_output(b->g, name, statistics);
}

/* Statistics of the candidate with the best predicted IoU, which inference returns. The loss
 * chooses its candidate by the target. */
static id picked_statistics(const struct sam_build *b, const struct sam_masks *m, const struct targets *t, id masks)
{
    struct graph *g = b->g;
    const int64_t N = b->B * b->M, h = 4 * b->grid;
    id one = op_reshape(g, masks, 4, (int64_t[]){N, 1, h, h}), score = op_dense(g, op_slice(g, m->iou, 1, 0, 1));
    return op_mask_loss(g, one, score, t->bits, t->valid, b->prompting.loss, NULL).statistics;
}

/* The rounds after the first, in a loop that carries prompts, round and masks. */
static id more_rounds(struct sam_build *b, id image, id grid, const struct targets *t, struct prompt_state s, id masks,
                      id sum)
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

void sam_rounds(const struct sam_build *given, id image)
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
