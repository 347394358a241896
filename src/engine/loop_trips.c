/*
 * loop_trips.c: trip counts of loops whose length depends on the batch (loop.counted, see run.h).
 *
 *     labels of the batch   | sample 0 | sample 1 | sample 2 | sample 3 |
 *     counts[]                   12         40         7          25
 *     micro-batches of two     52: 4 chunks of 16    32: 2 chunks of 16
 *
 * We count labels, or images by the indices of their features. Every write to the input updates the
 * counts: samples of a training step, of the next one while a step runs, of an evaluation. A step
 * that was submitted has its trip counts already. A count may be too large, which costs time and
 * changes nothing: values that replace others in a part of a sample are added to its count, a label
 * at the first token, which the label shift drops, is counted, and an image whose features are in
 * several places is counted in each.
 *
 * The same holds for the extents of a sequence (run/sequence.h), of each micro-batch or section:
 * the entries that it has, as their ranges say.
 */
#include "engine/run.h"

enum { IGNORED = -100 };

/* Returns a loop that depends on the input, or NULL if none does. All that do count the same. */
static const struct loop *loop_of(const struct graph *g, id storage)
{
    for (id l = 1; l < g->loops.n; l++)
        if (g->loops.at[l].counted == storage) return &g->loops.at[l];
    return NULL;
}

/* Reports whether the storage has the ranges of the sequence that launches follow. */
static bool has_ranges(const struct run *r, id storage)
{
    return r->tape.sequence.entries && storage == r->planned.graph.sequence.ranges;
}

static uint64_t tokens_of_sample(const struct run *r, id storage)
{
    return r->planned.graph.storages.at[storage].bytes / (uint64_t)planned_samples(&r->planned) / sizeof(int32_t);
}

void trips_start(struct run *r)
{
    const struct graph *g = &r->planned.graph;
    r->counts = bump_alloc(&r->memory, g->storages.n * sizeof *r->counts);
    const bool nested = planned_own_shares(&r->planned) > 1 && r->planned.plan.settings.accumulation > 1;
    if (nested && r->device.kind == DEVICE_CUDA) return; /* a loop in two others is captured with all its iterations */
    for (id s = 1; s < g->storages.n; s++) {
        if (!loop_of(g, s) && !has_ranges(r, s)) continue;
        r->counts[s] = bump_alloc(&r->memory, (size_t)planned_samples(&r->planned) * sizeof *r->counts[s]);
        const uint64_t most = has_ranges(r, s) ? (uint64_t)r->tape.sequence.entries : tokens_of_sample(r, s);
        for (int64_t i = 0; i < planned_samples(&r->planned); i++) r->counts[s][i] = (uint32_t)most;
    }
}

/* Reports whether the value is counted: a label, or the index of the first feature that an image
 * has in a run of indices. */
static bool is_counted(const struct loop *l, int32_t value, int32_t before)
{
    if (!l->block.rows) return value != IGNORED;
    return value >= 0 && (before < 0 || shared_block_of(l->block, value) != shared_block_of(l->block, before));
}

/* Counts the entries up to the last whose range is not empty. */
static void count_entries(struct run *r, uint64_t from, const void *data, uint64_t bytes)
{
    const struct sequence *s = &r->tape.sequence;
    const uint64_t P = (uint64_t)s->entries, whole = (uint64_t)s->whole, each = sizeof(int32_t[2]);
    uint32_t *counts = r->counts[r->planned.graph.sequence.ranges];
    const int32_t(*ranges)[2] = data;
    for (uint64_t at = from / each; at < (from + bytes) / each; at++, ranges++) {
        const uint64_t i = at % whole, section = at / whole * (uint64_t)s->sections + i / P;
        if (i == 0) memset(&counts[section], 0, (uint64_t)s->sections * sizeof *counts);
        if ((*ranges)[1] > (*ranges)[0]) counts[section] = (uint32_t)(i % P + 1);
    }
}

void trips_count(struct run *r, id storage, uint64_t from, const void *data, uint64_t bytes)
{
    uint32_t *counts = r->counts[storage];
    if (!counts) return;
    if (has_ranges(r, storage)) {
        count_entries(r, from, data, bytes);
        return;
    }
    const struct loop *l = loop_of(&r->planned.graph, storage);
    const uint64_t T = tokens_of_sample(r, storage), end = (from + bytes) / sizeof(int32_t);
    const int32_t *values = data;
    for (uint64_t at = from / sizeof(int32_t); at < end;) {
        const uint64_t sample = at / T, to = min_u64(end, (sample + 1) * T);
        uint32_t n = to - at == T ? 0 : counts[sample];
        for (int32_t before = -1; at < to; at++, before = *values++) n += is_counted(l, *values, before);
        counts[sample] = (uint32_t)min_u64(n, T);
    }
}

void trips_swap(struct run *r, id storage, int64_t micro_batch)
{
    const int64_t each = has_ranges(r, storage) ? r->tape.sequence.sections : r->planned.plan.settings.micro_batch;
    for (int64_t i = 0; i < each && r->counts[storage]; i++) {
        uint32_t *a = &r->counts[storage][i], *b = &r->counts[storage][micro_batch * each + i], count = *a;
        *a = *b;
        *b = count;
    }
}

/* Returns the sections of a micro-batch up to the last that has entries. */
static uint32_t sections_of(const struct run *r, int64_t micro_batch)
{
    const int64_t n = r->tape.sequence.sections;
    const uint32_t *counts = r->counts[r->planned.graph.sequence.ranges] + micro_batch * n;
    int64_t k = n;
    while (k && !counts[k - 1]) k--;
    return (uint32_t)k;
}

/* Returns the trip count for a micro-batch. A loop over rows with labels runs at least once,
 * because it writes the sums. */
static uint32_t trips_of(const struct run *r, const struct loop *l, int64_t micro_batch)
{
    const int64_t micro = r->planned.plan.settings.micro_batch;
    const uint32_t least = !l->block.rows;
    uint64_t n = 0;
    if (l->counted == r->planned.graph.sequence.ranges) return sections_of(r, micro_batch);
    for (int64_t i = 0; i < micro; i++) n += r->counts[l->counted][micro_batch * micro + i];
    const uint64_t trips = (n + l->rows - 1) / l->rows;
    return trips < least ? least : trips > l->trip ? l->trip : (uint32_t)trips;
}

/* Sets the extents of all micro-batches and sections. */
static void set_extents(struct run *r)
{
    const struct sequence *s = &r->tape.sequence;
    const uint32_t *counts = s->entries ? r->counts[r->planned.graph.sequence.ranges] : NULL;
    for (uint32_t i = 0; counts && i < r->tape.extents; i++)
        r->tape.extent[i] = (uint32_t)(r->whole ? s->entries : sequence_extent(s, counts[i]));
}

/* Sets the counts for every micro-batch, over which the parent loop runs; without a parent the
 * program reads the first micro-batch. */
void trips_set(struct run *r, enum program p)
{
    const struct graph *g = &r->planned.graph;
    for (id l = 1; l < g->loops.n; l++) {
        const struct loop *loop = &g->loops.at[l];
        /* micro-batches, of all shares */
        const uint32_t around =
            loop->parent ? (uint32_t)(planned_samples(&r->planned) / r->planned.plan.settings.micro_batch) : 1;
        if (loop->program != p || !r->counts[loop->counted]) continue;
        for (uint32_t i = 0; i < around; i++) r->tape.trip[l][i] = trips_of(r, loop, i);
    }
    set_extents(r);
}
