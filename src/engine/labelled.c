/*
 * labelled.c: how many iterations a loop over rows with labels needs (see run.h).
 *
 *     labels of the batch   | sample 0 | sample 1 | sample 2 | sample 3 |
 *     labelled[]                 12         40         7          25
 *     micro-batches of two     52: 4 chunks of 16    32: 2 chunks of 16
 *
 * The counts follow what is written into the input, on whatever way: samples of a training step, of the
 * next one while a step runs, of an evaluation. A step that was submitted has its trip counts already. Labels
 * that replace others in a part of a sample are added to its count, and a label at the first token, which the
 * label shift drops, is counted too. A count that is too large costs time and changes nothing.
 */
#include "engine/run.h"

enum { IGNORED = -100 };

/* The first input that the loops of the graph depend on: a model has one input of labels. */
static id labels_of(const struct graph *g)
{
    for (id l = 1; l < g->loops.n; l++)
        if (g->loops.at[l].labels) return g->loops.at[l].labels;
    return 0;
}

static uint64_t tokens_of_sample(const struct run *r, id storage) { return r->graph.storages.at[storage].bytes / (uint64_t)run_samples(r) / sizeof(int32_t); }

void labelled_start(struct run *r)
{
    const id labels = labels_of(&r->graph);
    const bool nested = r->plan.settings.shares > 1 && r->plan.settings.accumulation > 1; /* a captured graph has all iterations of a third loop */
    if (!labels || (nested && r->device.kind == DEVICE_CUDA)) return;
    r->labelled = bump_alloc(&r->memory, (size_t)run_samples(r) * sizeof *r->labelled);
    for (int64_t i = 0; i < run_samples(r); i++) r->labelled[i] = (uint32_t)tokens_of_sample(r, labels);
}

void labelled_count(struct run *r, id storage, uint64_t from, const void *data, uint64_t bytes)
{
    if (!r->labelled || storage != labels_of(&r->graph)) return;
    const uint64_t T = tokens_of_sample(r, storage), end = (from + bytes) / sizeof(int32_t);
    const int32_t *labels = data;
    for (uint64_t at = from / sizeof(int32_t); at < end;) {
        const uint64_t sample = at / T, to = min_u64(end, (sample + 1) * T);
        uint32_t n = to - at == T ? 0 : r->labelled[sample];
        for (; at < to; at++) n += *labels++ != IGNORED;
        r->labelled[sample] = (uint32_t)min_u64(n, T);
    }
}

void labelled_swap(struct run *r, id storage, int64_t micro_batch)
{
    const int64_t micro = r->plan.settings.micro_batch;
    if (!r->labelled || storage != labels_of(&r->graph)) return;
    for (int64_t i = 0; i < micro; i++) {
        uint32_t *a = &r->labelled[i], *b = &r->labelled[micro_batch * micro + i], count = *a;
        *a = *b;
        *b = count;
    }
}

/* Every loop runs once at least: it writes the sums. */
static uint32_t trips_of(const struct run *r, const struct loop *l, int64_t micro_batch)
{
    const int64_t micro = r->plan.settings.micro_batch;
    uint64_t rows = 0;
    for (int64_t i = 0; i < micro; i++) rows += r->labelled[micro_batch * micro + i];
    const uint64_t trips = (rows + l->rows - 1) / l->rows;
    return trips < 1 ? 1 : trips > l->trip ? l->trip : (uint32_t)trips;
}

/* The loop around is that over micro-batches; without one the program reads the first micro-batch. */
void labelled_trips(struct run *r, enum program p)
{
    const struct graph *g = &r->graph;
    if (!r->labelled) return;
    for (id l = 1; l < g->loops.n; l++) {
        const struct loop *loop = &g->loops.at[l];
        const uint32_t around = loop->parent ? (uint32_t)(run_samples(r) / r->plan.settings.micro_batch) : 1;
        if (loop->program != p || loop->labels != labels_of(g)) continue;
        for (uint32_t i = 0; i < around; i++) r->tape.trip[l][i] = trips_of(r, loop, i);
    }
}
