/*
 * compose.c: see compose.h.
 *
 * The seconds are those of the busiest lane, or of the blocks one after the other with their copies
 * beside them:
 *
 *     compute   [ f1 ][ f2 ][ f3 ] turn [ b3 ]   [ b2 ][ b1 ]   b2 ends after its activations came
 *     in        [w1][w2][w3][w3]  [ w2 ][ a2 ][w1]..            a2 follows the outs before its own
 *     out       [ a1 ]  [ a2 ]
 *
 * A copy out begins with its block at the earliest, and a block ends when what was fetched for it
 * is there: nodes within a block may overlap with its copies in any way. What a fused step writes
 * back comes after the forward.
 */
#include "plan/compose.h"

static const struct survey *survey_of(const struct composition *c, uint32_t block)
{
    return c->of[c->is_fetched[block]][c->is_recomputed[block]];
}

static void add_seconds(const struct composition *c, double seconds[LANE_COUNT])
{
    for (int lane = 0; lane < LANE_COUNT; lane++) {
        seconds[lane] = 0;
        for (uint32_t b = 0; b <= c->of[0][0]->blocks; b++) seconds[lane] += survey_of(c, b)->block[b].seconds[lane];
    }
}

/* Returns moment `i` of its survey, `m`, in another survey of the model; NULL: it has none. */
static const struct moment *same_moment(const struct survey *v, const struct moment *m, uint32_t i)
{
    if (i < v->moments && v->moment[i].owner == m->owner && v->moment[i].signature == m->signature)
        return &v->moment[i];
    for (i = 0; i < v->moments; i++)
        if (v->moment[i].owner == m->owner && v->moment[i].signature == m->signature) return &v->moment[i];
    return NULL;
}

/* Returns the bytes of the step at moment `i` of a survey. */
static uint64_t moment_bytes(const struct composition *c, const struct survey *v, uint32_t i)
{
    const struct moment *m = &v->moment[i], *same[2][2];
    uint64_t bytes = m->kept[0] - (c->lean ? m->handed : 0);
    for (int fetched = 0; fetched < 2; fetched++)
        for (int recomputed = 0; recomputed < 2; recomputed++) {
            const struct survey *other = c->of[fetched][recomputed];
            same[fetched][recomputed] = other == v ? m : same_moment(other, m, i);
        }
    for (uint32_t b = 1; b <= v->blocks; b++) {
        const struct moment *other = same[c->is_fetched[b]][c->is_recomputed[b]];
        if (other) bytes += other->kept[b];
    }
    return bytes;
}

/* Returns the most bytes at the moments whose owner is composed from a survey. */
static uint64_t most_bytes(const struct composition *c, const struct survey *v)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < v->moments; i++) {
        const uint64_t bytes = survey_of(c, v->moment[i].owner) == v ? moment_bytes(c, v, i) : 0;
        if (bytes > most) most = bytes;
    }
    return most;
}

static double later(double a, double b) { return a > b ? a : b; }

/* Returns a lower bound of the seconds of a step whose copies wait for its blocks. */
static double flow_seconds(const struct composition *c)
{
    const uint32_t n = c->of[0][0]->blocks;
    double *sent = mem_alloc((n + 1) * sizeof *sent), at = 0, in = 0, out = 0;
    for (uint32_t b = 1; b <= n; b++) {
        const struct surveyed *x = &survey_of(c, b)->block[b];
        if (x->forward[LANE_OUT] > 0) out = later(out, at) + x->forward[LANE_OUT];
        sent[b] = out;
        in += x->forward[LANE_IN];
        at = later(at + x->forward[LANE_COMPUTE], x->forward[LANE_IN] > 0 ? in : 0);
    }
    const struct surveyed *others = &survey_of(c, 0)->block[0];
    double after = at + (c->away ? 0 : others->seconds[LANE_OUT] - others->forward[LANE_OUT]);
    at += survey_of(c, 0)->turn;
    for (uint32_t b = n; b > 0; b--) {
        const struct surveyed *x = &survey_of(c, b)->block[b];
        const double fetched = x->seconds[LANE_IN] - x->forward[LANE_IN],
                     weights = x->forward[LANE_IN] < fetched ? x->forward[LANE_IN] : fetched;
        in += weights;
        if (c->away && fetched > weights) in = later(in, sent[b - 1]) + (fetched - weights);
        else in += fetched - weights;
        const double written = x->seconds[LANE_OUT] - x->forward[LANE_OUT];
        if (written > 0) out = later(out, at) + written;
        after += written;
        at = later(at + x->seconds[LANE_COMPUTE] - x->forward[LANE_COMPUTE], fetched > 0 ? in : 0);
    }
    mem_free(sent);
    return later(later(at, after), later(in, out));
}

struct composed compose(const struct composition *c)
{
    const struct survey *first = c->of[0][0];
    struct composed out = {0};
    bool mixed = false, fetched = false;
    add_seconds(c, out.lane);
    for (int lane = 0; lane < LANE_COUNT; lane++) out.seconds = later(out.seconds, out.lane[lane]);
    if (out.lane[LANE_IN] > 0) out.seconds = later(out.seconds, flow_seconds(c));
    for (int k = 0; k < 4; k++) {
        const struct survey *v = c->of[k / 2][k % 2];
        bool listed = false;
        for (int before = 0; before < k; before++) listed |= c->of[before / 2][before % 2] == v;
        const uint64_t bytes = listed ? 0 : most_bytes(c, v);
        if (bytes > out.bytes) out.bytes = bytes;
    }
    for (uint32_t b = 1; b <= first->blocks; b++) {
        mixed |= c->is_recomputed[b] != c->is_recomputed[1];
        fetched |= c->is_fetched[b] != c->is_fetched[1];
    }
    const uint64_t shared = (mixed + fetched) * first->shared;
    out.bytes = out.bytes > shared ? out.bytes - shared : 0;
    return out;
}
