/*
 * allocation.h: how the tokens of an image are shared among its patches (ALLOCATE of
 * graph/ops.def), written once for the host and for GPUs.
 *
 * A patch here is a feature of the tower: unit = merge^2 of the tower's patches. A kept one has a
 * token, or at the finer level `unit` tokens. The first token of a patch is worth its score, and
 * each further one score / unit. The best are taken until all tokens are used:
 *
 *     scores                .9  .8  .3  .2  .1     unit 4, 6 tokens
 *     taken in this order   .9, .8, .3, .9/4 (three more tokens of the first)
 *
 * Since both kinds come in the order of the scores, the result is two numbers: the `kept` patches
 * with the highest scores are kept, and of these the `fine` best have the finer level.
 */
#pragma once

#include "base/shared.h"

enum { ALLOCATION_MOST = 1024 }; /* patches that are kept of an image */

/* Returns how many of n patches may be kept, at most `most`: where there are tokens for more than
 * one each, a number that all of them can be shared among. */
SHARED int64_t allocation_most(int64_t n, int64_t tokens, int64_t most, int64_t unit)
{
    const int64_t cap = n < most ? n : most;
    if (tokens <= cap || unit < 2) return cap;
    return cap - (cap + (tokens - cap) / (unit - 1) * (unit - 1) == tokens
                      ? 0
                      : (unit - 1) - (tokens - cap) % (unit - 1));
}

struct allocation {
    int64_t kept, fine;
};
/* Shares the tokens: best[] are the scores of at least min(tokens, allocation_most) patches, from
 * the highest on. */
SHARED struct allocation allocation_share(const float *best, int64_t n, int64_t tokens, int64_t most, int64_t unit)
{
    const int64_t cap = allocation_most(n, tokens, most, unit), step = unit - 1;
    struct allocation a = {0, 0};
    while (a.kept + a.fine * step < tokens) {
        const bool first = a.kept < cap,
                   finer = step && a.fine < a.kept && a.kept + (a.fine + 1) * step <= tokens;
        if (!first && !finer) break;
        if (!finer || (first && !(best[a.fine] / (float)unit > best[a.kept]))) a.kept++;
        else a.fine++;
    }
    return a;
}

/* Returns the patches that an image must have, so that all tokens are used. */
SHARED int64_t allocation_least(int64_t tokens, int64_t most, int64_t unit)
{
    int64_t n = (tokens + unit - 1) / unit;
    while (n < tokens && allocation_most(n, tokens, most, unit) * unit < tokens) n++;
    return n;
}
