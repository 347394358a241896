/*
 * order.c: a shuffle without an array.
 *
 * A Feistel network is a bijection on b bits for any round function: each round changes one half
 * by a hash of the other half, and can be inverted because the other half is unchanged.
 *
 *      left (b/2 bits)    right (the rest)
 *        ^= H(right)   <---   |
 *        |          --->   ^= H(left)        four such pairs
 *
 * With b the least number of bits that holds n values, the range is below 2n. A result of n or
 * more is fed back in until a result is below n (cycle walking). Starting from a value below n,
 * the cycle of the bijection returns to such a value, so the walk is a bijection on 0..n-1. It
 * takes less than two rounds on average.
 */
#include "data/order.h"

#include "base/random.h"

enum { ROUND_PAIRS = 4 };

/* Returns the finalizer of splitmix64: every input bit affects every output bit. */
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static uint64_t round_hash(uint64_t key, int round, uint64_t half)
{
    return mix(key ^ mix(half ^ ((uint64_t)round << 56)));
}

/* Permutes the numbers of left_bits + right_bits bits: one pass of a Feistel network. A half may
 * have no bits, as of an order of two samples: then its mask is 0, and the other half gets a keyed
 * constant. */
static uint64_t feistel(uint64_t x, uint64_t key, int left_bits, int right_bits)
{
    uint64_t left_mask = (UINT64_C(1) << left_bits) - 1;
    uint64_t right_mask = (UINT64_C(1) << right_bits) - 1;
    uint64_t left = x >> right_bits, right = x & right_mask;
    for (int i = 0; i < ROUND_PAIRS; i++) {
        left ^= round_hash(key, 2 * i, right) & left_mask;
        right ^= round_hash(key, 2 * i + 1, left) & right_mask;
    }
    return left << right_bits | right;
}

uint64_t sample_order(uint64_t seed, uint64_t epoch, uint64_t position, uint64_t n, bool shuffle)
{
    CHECK(position < n, "position %llu of %llu", (unsigned long long)position, (unsigned long long)n);
    if (!shuffle || n == 1) return position;
    int bits = 64 - __builtin_clzll(n - 1);
    uint64_t key = mix(mix(seed) + epoch);
    uint64_t x = position;
    do {
        x = feistel(x, key, bits / 2, bits - bits / 2);
    } while (x >= n);
    return x;
}

uint64_t sample_at(uint64_t seed, uint64_t p, uint64_t n, bool shuffle)
{
    return sample_order(seed, p / n, p % n, n, shuffle);
}

/* ---- Holding samples out ---- */

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
