/*
 * run_forward.c: a forward over the whole batch, and the padding behind it (see run.h).
 *
 *     an input's storage   | micro-batch 0 | micro-batch 1 | ... | n-1 |
 *     evaluation program     reads the first one
 *
 * A forward over the whole batch therefore swaps micro-batch i with the first one, runs the
 * evaluation program, and swaps them back. It uses the staging buffer and no memory of its own.
 */
#include "engine/run.h"

enum { IGNORED = -100 };

static int64_t micro_batches(const struct run *r)
{
    return planned_samples(&r->planned) / r->planned.plan.settings.micro_batch;
}

/* Writes the staging buffer's bytes over a range of the input. */
static int fill_range(struct run *r, const struct planned_input *x, uint64_t from, uint64_t bytes, struct error *e)
{
    char *to = r->device.arena[SPACE_DEVICE] + r->planned.plan.placement.offset[x->storage] + from;
    for (uint64_t b = 0; b < bytes; b += PLAN_STAGING)
        TRY(r->device.ops->write(&r->device, to + b, run_staging(r), min_u64(PLAN_STAGING, bytes - b), e));
    return PL_OK;
}

/* Fills the padding, which is at the end of the last micro-batch, in each of its outer
 * dimensions. */
int run_fill_ragged(struct run *r, struct error *e)
{
    const struct graph *g = &r->planned.graph;
    int64_t at = r->planned.effective_batch, rows = planned_samples(&r->planned);
    char *fill = run_staging(r);
    for (id s = 1; s < g->storages.n && at < rows; s++) {
        struct planned_input x;
        if (g->storages.at[s].kind != KIND_INPUT ||
            !planned_input(&r->planned, graph_name(g, g->storages.at[s].name), &x) ||
            !planned_input_used(&r->planned, &x) || x.axis == INPUT_SHARED)
            continue;
        planned_input_ids(&r->planned, &x);
        memset(fill, 0, PLAN_STAGING);
        for (int64_t i = 0; x.ignores && i < PLAN_STAGING / 4; i++) ((int32_t *)(void *)fill)[i] = IGNORED;
        const uint64_t row = x.entries * x.entry, padding = (uint64_t)(rows - at) * (x.sample / x.outer),
                       end = (uint64_t)rows * x.sample;
        for (uint64_t o = 0; o < x.outer; o++) TRY(fill_range(r, &x, end - o * row - padding, padding, e));
    }
    return PL_OK;
}

/* --- a forward over the whole batch ---------------------------------------------------- */

/* Swaps `bytes` at two addresses of device memory, one chunk of the staging buffer at a time. */
static int swap_bytes(struct run *r, char *a, char *b, uint64_t bytes, struct error *e)
{
    const struct device_ops *ops = r->device.ops;
    uint64_t chunk = PLAN_STAGING / 2;
    char *x = run_staging(r), *y = x + chunk;
    for (uint64_t at = 0; at < bytes; at += chunk) {
        uint64_t n = bytes - at < chunk ? bytes - at : chunk;
        TRY(ops->read(&r->device, x, a + at, n, e));
        TRY(ops->read(&r->device, y, b + at, n, e));
        TRY(ops->write(&r->device, a + at, y, n, e));
        TRY(ops->write(&r->device, b + at, x, n, e));
    }
    return PL_OK;
}

static int swap_inputs(struct run *r, int64_t micro_batch, struct error *e)
{
    const struct graph *g = &r->planned.graph;
    for (id s = 1; s < g->storages.n && micro_batch; s++) {
        if (g->storages.at[s].kind != KIND_INPUT || g->storages.at[s].axis == INPUT_SHARED) continue;
        trips_swap(r, s, micro_batch);
        if (!planned_input_used(&r->planned, &(struct planned_input){.storage = s})) continue;
        uint64_t bytes = g->storages.at[s].bytes / (uint64_t)micro_batches(r);
        char *first = r->device.arena[SPACE_DEVICE] + r->planned.plan.placement.offset[s];
        TRY(swap_bytes(r, first, first + bytes * (uint64_t)micro_batch, bytes, e));
    }
    return PL_OK;
}

/* Reads the first n elements of a tensor, as f32 or i32. */
static int read_elements(struct run *r, id tensor, int64_t n, char *to, struct error *e)
{
    const struct tensor *t = tensor_at(&r->planned.graph, tensor);
    const char *from = tape_address(&r->tape, tensor);
    enum dtype as = dtype_is_float(t->dtype) ? DT_F32 : DT_I32;
    int64_t chunk = PLAN_STAGING / 8;
    for (int64_t at = 0; at < n; at += chunk) {
        int64_t k = min_i64(chunk, n - at);
        TRY(r->device.ops->read(&r->device, run_staging(r), from + (uint64_t)at * dtype_size(t->dtype),
                                (uint64_t)k * dtype_size(t->dtype), e));
        dtype_convert(to + at * 4, as, run_staging(r), t->dtype, k);
    }
    return PL_OK;
}

int64_t run_forward_elements(const struct run *r, id output)
{
    const struct tensor *t = tensor_at(&r->planned.graph, output);
    if (!t->rank) return 1;
    return tensor_elements(t) * micro_batches(r) / planned_samples(&r->planned) * r->planned.effective_batch;
}

int run_forward(struct run *r, id output, void *to, struct error *e)
{
    const struct tensor *t = tensor_at(&r->planned.graph, output);
    int64_t each = tensor_elements(t), left = run_forward_elements(r, output);
    double sum = 0;
    for (int64_t i = 0; i < micro_batches(r); i++) {
        float one = 0;
        TRY(swap_inputs(r, i, e));
        TRY(run_program(r, PROGRAM_EVAL, e));
        if (t->rank) TRY(read_elements(r, output, min_i64(each, left), (char *)to + i * each * 4, e));
        else TRY(read_elements(r, output, 1, (char *)&one, e));
        TRY(swap_inputs(r, i, e));
        sum += one;
        left -= each;
    }
    if (!t->rank) *(float *)to = (float)sum;
    return PL_OK;
}
