/*
 * update.c: see update.h.
 */
#include "cpu/update/update.h"

#include <math.h>

#include "cpu/update/round.h"

bool update_is_off(const struct launch *l, struct update_slots at)
{
    const struct step_block *step = l->in[at.step].data;
    return step->found_inf || (launch_has(l, at.clip) && !isfinite(*(const float *)l->in[at.clip].data));
}

float update_clip(const struct launch *l, struct update_slots at)
{
    return launch_has(l, at.clip) ? ((const float *)l->in[at.clip].data)[1] : 1.0f;
}

double update_rate(const struct launch *l, struct update_slots at)
{
    const struct step_block *step = l->in[at.step].data;
    return (double)step->learning_rate * l->attr->adamw.lr_scale;
}

bool update_match(const struct query *q, struct update_slots at)
{
    if (!weight_is_kept(q->in[0])) return false;
    if (!tensor_is_fast(q->in[1])) return false;
    if (query_in(q, at.clip) && !tensor_is(query_in(q, at.clip), DT_F32)) return false;
    return !query_in(q, at.w) || tensor_is_fast(query_in(q, at.w));
}

void update_store(const struct launch *l, struct update_slots at, int64_t from, int n, const float *p)
{
    store_weight(&l->in[0], from, launch_first(l, l->attr->adamw.part), n, p,
                 round_key(l->in[at.step].data, l->attr->adamw.key));
    if (!launch_has(l, at.w)) return;
    float scratch[TILE];
    row_store(&l->in[at.w], from, n, row_view(&l->in[0], from, n, scratch));
}
