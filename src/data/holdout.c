/*
 * holdout.c: see holdout.h.
 */
#include "data/holdout.h"

#include <stdlib.h>

#include "base/random.h"

static int compare_ranks(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    return x->sample < y->sample ? -1 : x->sample > y->sample;
}

uint64_t holdout_cut(struct ranked *samples, uint64_t n, double fraction)
{
    const uint64_t cut = (uint64_t)(fraction * (double)n + 0.5);
    uint64_t low = cut, high = cut;
    if (n) qsort(samples, n, sizeof *samples, compare_ranks);
    while (low && low < n && samples[low - 1].rank == samples[low].rank) low--;
    while (high && high < n && samples[high - 1].rank == samples[high].rank) high++;
    if ((!low || low == n) && high == n) return cut; /* one group */
    if (!low || low == n) return high;
    return high == n || cut - low <= high - cut ? low : high;
}

bool holdout_one_group(const struct ranked *samples, uint64_t n)
{
    return n > 1 && samples[0].rank == samples[n - 1].rank;
}

static int compare_members(const void *a, const void *b)
{
    const struct group_member *x = a, *y = b;
    if (x->group != y->group) return x->group < y->group ? -1 : 1;
    return x->sample < y->sample ? -1 : x->sample > y->sample;
}

/* Marks the samples that are held out. The rank of a group is that of its first sample. */
bool *holdout_mark(uint64_t n, struct group_member *members, uint64_t n_members, double fraction, uint64_t seed,
                   bool *one)
{
    *one = false;
    if (!(fraction > 0)) return NULL;
    const uint64_t key = random_key(seed, "split");
    struct ranked *ranks = mem_alloc((n + 1) * sizeof *ranks);
    bool *held = mem_alloc(n + 1);
    for (uint64_t i = 0; i < n; i++) ranks[i] = (struct ranked){random_bits(key, i), i};
    if (n_members) qsort(members, n_members, sizeof *members, compare_members);
    for (uint64_t i = 1, first = 0; i < n_members; i++) {
        if (members[i].group != members[first].group) first = i;
        ranks[members[i].sample].rank = random_bits(key, members[first].sample);
    }
    const uint64_t cut = holdout_cut(ranks, n, fraction);
    for (uint64_t i = 0; i < cut && i < n; i++) held[ranks[i].sample] = true;
    *one = holdout_one_group(ranks, n);
    mem_free(ranks);
    return held;
}
