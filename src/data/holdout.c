/*
 * holdout.c: see holdout.h. The samples with the lowest random numbers are held out.
 */
#include "data/holdout.h"

#include <stdlib.h>

#include "base/random.h"

struct ranked {
    uint64_t rank, number;
};

static int compare(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    return x->number < y->number ? -1 : x->number > y->number;
}

bool *holdout_mark(uint64_t n, double fraction, uint64_t seed)
{
    if (!(fraction > 0)) return NULL;
    const uint64_t key = random_key(seed, "split"), cut = (uint64_t)(fraction * (double)n + 0.5);
    struct ranked *ranks = mem_alloc((n + 1) * sizeof *ranks);
    bool *held = mem_alloc(n + 1);
    for (uint64_t i = 0; i < n; i++) ranks[i] = (struct ranked){random_bits(key, i), i};
    qsort(ranks, n, sizeof *ranks, compare);
    for (uint64_t i = 0; i < cut && i < n; i++) held[ranks[i].number] = true;
    mem_free(ranks);
    return held;
}
