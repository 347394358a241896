/*
 * loss_scale.c: dynamic loss scaling for f16.
 *
 *     step     d loss = step.loss_scale        (differentiate.c) scales every gradient
 *     update   sum of squares of all gradients
 *              SCALER   finite? sets found_inf, the next scale, Adam's t      <- this pass
 *              CLIP     the norm without the scale; one factor unscales and clips
 *              updates  read found_inf: if set, they change no byte
 *
 * All of it is in the step's storage: the tape does not depend on it, and the host does not take
 * part between the gradients and the update. The sum must include all gradients before the first
 * update, so an update inside the backward (the fused step) is not possible.
 */
#include "graph/ops.h"
#include "passes/passes.h"

bool settings_scale_loss(const struct settings *s)
{
    bool any = settings_dtype(s) == DT_F16;
    for (uint32_t i = 0; i < s->n_modules; i++)
        any |= s->modules[i].has_precision && s->modules[i].precision == PRECISION_F16;
    return any;
}

static uint32_t find_clip(const struct graph *g)
{
    const struct order *order = &g->order[PROGRAM_UPDATE];
    uint32_t k = 0;
    while (k < order->nodes.n && node_at(g, order->nodes.at[k])->op != OP_CLIP) k++;
    return k;
}

/* Moves the last node to position k. */
static void move_last_to(struct order *order, uint32_t k)
{
    uint32_t last = order->nodes.n - 1;
    id node = order->nodes.at[last];
    for (uint32_t i = last; i > k; i--) order->nodes.at[i] = order->nodes.at[i - 1];
    order->nodes.at[k] = node;
}

bool emit_before_clip(struct graph *g, uint16_t op, const char *pass)
{
    struct order *order = &g->order[PROGRAM_UPDATE];
    uint32_t at = find_clip(g);
    if (at == order->nodes.n) return false;
    struct cursor before = graph_move(g, PROGRAM_UPDATE, PHASE_UPDATE, pass);
    id step = graph_step(g), sum = node_at(g, order->nodes.at[at])->in[0],
       loss = graph_find_output(g, PROGRAM_STEP, "loss");
    id n = graph_emit(g, op, NULL, (id[]){sum, step, loss}, 3);
    if (n) {
        graph_replace(g, PROGRAM_UPDATE, step, node_at(g, n)->out[0]);
        node_at(g, n)->in[1] = step;
        move_last_to(order, at);
    }
    g->at = before;
    return true;
}

void pass_loss_scale(struct graph *g, const struct settings *s)
{
    if (!s->train || !settings_scale_loss(s)) return;
    if (s->fused_step || !emit_before_clip(g, OP_SCALER, "loss_scale"))
        graph_fail(g, "f16 skips an update if a gradient is not finite, which is known only after the last gradient: "
                      "weights cannot be "
                      "updated inside the backward; set memory.fused_step: off, or memory.precision: bf16");
}
