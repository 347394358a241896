/*
 * scaler.c: SCALER: the next loss scale after a step, as torch.amp.GradScaler.
 *
 *     gradients finite   Adam's t + 1, good_steps + 1; after scale_window of them the scale doubles
 *     inf or NaN         the update is skipped (found_inf), the scale halves
 *
 * A scale that would overflow f32 is unchanged. These are a few scalars, so one implementation
 * serves as the reference too; tests/golden/scaler.txt has independent values.
 *
 * GUARD, for other precisions, only sets found_inf and never clears it (passes/guard.c).
 */
#include <math.h>

#include "cpu/cpu.h"
#include "cpu/reference/ref.h"
#include "cpu/rows.h"

static bool scaler_match(const struct query *q)
{
    return tensor_is(q->in[0], DT_F64) && tensor_is(q->in[1], DT_U8);
}

static bool all_finite(const struct launch *l)
{
    const struct operand *loss = &l->in[2];
    return isfinite(dtype_load(l->in[0].data, l->in[0].dtype, 0)) &&
           (!launch_has(l, 2) || isfinite(dtype_load(loss->data, loss->dtype, 0)));
}

static void scaler_run(const struct launch *l)
{
    CHECK(l->in[1].data == l->out[0].data, "the step is updated in place");
    struct step_block *step = l->out[0].data;
    step_scale(step, all_finite(l));
}
static void ref_scaler(const struct launch *l) { scaler_run(l); }

CPU_KERNEL(SCALER, scaler);
REF_KERNEL(SCALER, scaler);

static bool guard_match(const struct query *q) { return scaler_match(q); }

static void guard_run(const struct launch *l)
{
    CHECK(l->in[1].data == l->out[0].data, "the step is updated in place");
    struct step_block *step = l->out[0].data;
    if (!all_finite(l)) step->found_inf = 1;
}
static void ref_guard(const struct launch *l) { guard_run(l); }

CPU_KERNEL(GUARD, guard);
REF_KERNEL(GUARD, guard);
