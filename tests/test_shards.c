/*
 * test_shards.c: how weights are divided among ranks: the formulas of cells and shards, and the
 * bytes of a rank by kind in plans for ranks that are not there.
 */
#include "cost/links.h"
#include "graph/shard.h"
#include "graph/ops.h"
#include "graph/sizes.h"
#include "plan/plan.h"

#include "harness.h"
#include "planned_preset.h"

static const int RANKS[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 64, 512};

/* Every element has one owner; shards are whole cells, and hold whole blocks of 8-bit state and
 * aligned bytes. */
TEST(test_parts)
{
    static const int64_t lengths[] = {1,     255,           256,     257,           1000,        4095,
                                      65536, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 32000 * 4096};
    for (size_t k = 0; k < COUNT(RANKS); k++)
        for (size_t i = 0; i < COUNT(lengths); i++) {
            const int64_t n = lengths[i], c = shard_part(n, RANKS[k]), cell = weight_cell(n);
            assert_true(c > 0 && c % cell == 0 && c % STATE_BLOCK == 0 && c % PLAN_ALIGN == 0);
            assert_true(RANKS[k] * c >= n && (c == cell || RANKS[k] * (c - cell) < n));
        }
}

/* --- bytes by kind ---------------------------------------------------------------------------- */

static uint64_t aligned(uint64_t bytes) { return align_up(bytes, PLAN_ALIGN); }

static uint64_t bytes_of_kind(const struct planned_preset *p, enum kind kind)
{
    uint64_t sum = 0;
    for (id s = 1; s < p->r.planned.graph.storages.n; s++)
        if (p->r.planned.graph.storages.at[s].kind == kind && plan_reached(&p->r.planned.plan, &p->r.planned.graph, s))
            sum += aligned(p->r.planned.graph.storages.at[s].bytes);
    return sum;
}

struct expected {
    uint64_t weights, masters, gradients, state;
};

/* With groups of a host, N is its number of ranks. The table of graph/shard.h's formulas, over the
 * trained weights of a plan without ranks. */
static struct expected expect(const struct planned_preset *one, int N, enum shard_level level, uint64_t w, bool small)
{
    struct expected x = {0};
    const struct graph *g = &one->r.planned.graph;
    for (uint32_t i = 0; i < g->params.n; i++) {
        const struct param *p = &g->params.at[i];
        if (!p->grad || storage_of(g, p->tensor)->kind == KIND_CONST) continue;
        const struct tensor *t = tensor_at(g, p->tensor);
        const uint64_t n = (uint64_t)tensor_elements(t), c = (uint64_t)shard_part((int64_t)n, N);
        const uint64_t held = level >= SHARD_OPTIMIZER ? c : n;
        const char *name = graph_name(g, t->name);
        const bool exact = !small || n < 4096 || strstr(name, "embed_tokens");
        x.weights += aligned((level == SHARD_WEIGHTS ? c : level ? (uint64_t)N * c : n) * w);
        x.masters += w < 4 ? aligned(4 * held) : 0;
        x.gradients += aligned(4 * (level >= SHARD_GRADIENTS ? c : n));
        x.state += exact ? 2 * aligned(4 * held) : 2 * aligned(held) + aligned(8 * ((held + 255) / 256));
    }
    return x;
}

static void check_bytes(const char *precision, const char *optimizer, enum shard_level level, bool hosts)
{
    static const char *const names[] = {"none", "optimizer", "gradients", "weights"};
    static struct planned_preset one, many;
    char sets[5][100];
    const uint64_t w = strcmp(precision, "f32") ? 2 : 4;
    snprintf(sets[0], sizeof sets[0], "memory.precision=%s", precision);
    snprintf(sets[1], sizeof sets[1], "memory.optimizer=%s", optimizer);
    snprintf(sets[2], sizeof sets[2], "parallel.shard=%s", names[level]);
    plan_preset(&one, "llama-tiny",
                (const char *const[]){sets[0], sets[1], "memory.recompute=none", "memory.offload=none",
                                      "memory.fused_step=off", "train.effective_batch=512", "memory.micro_batch=1",
                                      NULL});
    for (size_t k = 1; k < COUNT(RANKS); k++) {
        if (hosts && (RANKS[k] & (RANKS[k] - 1) || RANKS[k] > 64)) continue;
        snprintf(sets[3], sizeof sets[3], "parallel.ranks=%d", hosts ? 4 * RANKS[k] : RANKS[k]);
        snprintf(sets[4], sizeof sets[4], hosts ? "parallel.per_host=%d" : "parallel.group=all", RANKS[k]);
        plan_preset(&many, "llama-tiny",
                    (const char *const[]){sets[0], sets[1], sets[2], sets[3], sets[4], "memory.recompute=none",
                                          "memory.offload=none", "train.effective_batch=512", "memory.micro_batch=1",
                                          hosts ? "parallel.group=host" : NULL, NULL});
        const struct expected x = expect(&one, RANKS[k], level, w, !strcmp(optimizer, "adamw-8bit"));
        assert_int_equal(bytes_of_kind(&many, KIND_PARAM), x.weights);
        assert_int_equal(bytes_of_kind(&many, KIND_MASTER), x.masters);
        assert_int_equal(bytes_of_kind(&many, KIND_GRAD), x.gradients);
        assert_int_equal(bytes_of_kind(&many, KIND_STATE), x.state);
        planned_preset_free(&many);
    }
    planned_preset_free(&one);
}

TEST(test_bytes)
{
    for (enum shard_level level = SHARD_NONE; level < SHARD_LEVELS; level++) {
        check_bytes("f32", "adamw", level, false);
        check_bytes("bf16", "adamw", level, false);
        check_bytes("bf16", "adamw-8bit", level, false);
        if (level) check_bytes("bf16", "adamw", level, true);
    }
}

/* parallel.shard optimizer saves at the peak what it divides, to the byte: the shards of the sums
 * lie in the gradients. */
TEST(test_optimizer_peak)
{
    static struct planned_preset whole, divided;
    const char *sets[] = {"parallel.ranks=2",    "memory.precision=f32",    "memory.recompute=none",
                          "memory.offload=none", "train.effective_batch=4", "memory.micro_batch=1",
                          "data.sequence=64",    "parallel.shard=none",     NULL};
    plan_preset(&whole, "llama-124m", sets);
    sets[7] = "parallel.shard=optimizer";
    plan_preset(&divided, "llama-124m", sets);
    const uint64_t saved = bytes_of_kind(&whole, KIND_STATE) - bytes_of_kind(&divided, KIND_STATE),
                   padding = bytes_of_kind(&divided, KIND_PARAM) - bytes_of_kind(&whole, KIND_PARAM);
    assert_int_equal(whole.r.planned.plan.peak.bytes - divided.r.planned.plan.peak.bytes, saved - padding);
    assert_int_equal(divided.r.planned.plan.peak.by_kind[KIND_GRAD], bytes_of_kind(&whole, KIND_GRAD));
    planned_preset_free(&divided);
    planned_preset_free(&whole);
}

/* Memory of collectives has a line of its own: nothing with one rank; else the gathered weights of
 * two blocks at most, or the scratch of an exchange. */
TEST(test_communication)
{
    static struct planned_preset p;
    static const char *const levels[] = {"parallel.shard=none", "parallel.shard=weights"};
    plan_preset(&p, "llama-tiny", (const char *const[]){"memory.precision=bf16", NULL});
    assert_int_equal(p.r.planned.plan.peak.by_kind[KIND_COMM], 0);
    assert_int_equal(plan_communication(&p.r.planned.plan, &p.r.planned.graph, &p.r.planned.profile).buffers, 0);
    planned_preset_free(&p);
    for (size_t i = 0; i < COUNT(levels); i++) {
        uint64_t sum = 0, gathered = 0, at_peak = 0;
        plan_preset(&p, "llama-tiny",
                    (const char *const[]){levels[i], "parallel.ranks=4", "memory.precision=bf16",
                                          "memory.recompute=none", "memory.micro_batch=1", NULL});
        const struct plan *plan = &p.r.planned.plan;
        for (int k = 0; k < KIND_COUNT; k++) sum += plan->peak.by_kind[k];
        assert_int_equal(sum, plan->peak.bytes);
        for (id s = 1; s < p.r.planned.graph.storages.n; s++) {
            const struct life *l = &plan->placement.life[plan->peak.program][s];
            if (p.r.planned.graph.storages.at[s].kind != KIND_COMM) continue;
            gathered += aligned(p.r.planned.graph.storages.at[s].bytes);
            if (l->used && l->start <= plan->peak.instant && plan->peak.instant <= l->end)
                at_peak += aligned(p.r.planned.graph.storages.at[s].bytes);
        }
        assert_true(plan->peak.by_kind[KIND_COMM] >= at_peak && (i || !gathered));
        const uint64_t buffers = plan_communication(plan, &p.r.planned.graph, &p.r.planned.profile).buffers;
        assert_true(buffers > 0 && buffers >= plan->peak.by_kind[KIND_COMM] && (!i || buffers < gathered));
        planned_preset_free(&p);
    }
}

/* Several hosts whose ranks hold one copy between them: the plan of one host, whose bytes and
 * digest it has. What is predicted is an exchange inside a host and one across hosts, for each
 * collective; a host of 3 ranks, or of one, exchanges at once. */
TEST(test_hosts)
{
    static struct planned_preset one, many;
    static const struct {
        const char *per_host, *shard;
        bool levels;
    } cases[] = {{"parallel.per_host=4", "parallel.shard=none", true},
                 {"parallel.per_host=2", "parallel.shard=optimizer", true},
                 {"parallel.per_host=2", "parallel.shard=gradients", true},
                 {"parallel.per_host=4", "parallel.shard=weights", true},
                 {"parallel.per_host=3", "parallel.shard=weights", false},
                 {"parallel.per_host=1", "parallel.shard=optimizer", false}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        const char *const sets[] = {cases[i].shard,
                                    "parallel.ranks=12",
                                    "parallel.group=all",
                                    "parallel.links=shm,eth-1g",
                                    "memory.precision=bf16",
                                    "memory.recompute=none",
                                    "memory.offload=none",
                                    "train.effective_batch=12",
                                    "memory.micro_batch=1",
                                    "memory.head_chunks=1",
                                    NULL,
                                    NULL};
        const char *own[COUNT(sets)];
        memcpy(own, sets, sizeof own);
        own[COUNT(sets) - 2] = cases[i].per_host;
        plan_preset(&one, "llama-tiny", sets);
        plan_preset(&many, "llama-tiny", own);
        assert_int_equal(plan_digest(&one.r.planned.plan, &one.r.planned.graph),
                         plan_digest(&many.r.planned.plan, &many.r.planned.graph));
        const struct profile *p = &many.r.planned.profile;
        const struct graph *g = &many.r.planned.graph;
        for (id n = 1; n < g->nodes.n; n++) {
            const struct node *x = node_at(g, n);
            struct query q;
            int times;
            if (!(op_table[x->op].flags & OPF_COMM)) continue;
            query_fill(&q, g, x, p);
            const double part = links_part(&q, x->op, &times), host = p->per_host, hosts = 12 / host;
            const struct link *in = &p->link[LINK_LOCAL], *out = &p->link[LINK_REMOTE];
            const double inside = in->latency + (host - 1) * (in->peer + hosts * part / in->bandwidth),
                         across = out->latency + (hosts - 1) * (out->peer + part / out->bandwidth);
            const double at_once = out->latency + (12 - host) * (out->peer + part / out->bandwidth);
            assert_int_equal(x->attr.group.host, cases[i].levels ? p->per_host : 0);
            assert_true(
                fabs(links_seconds(p, &q, x->op) / (times * (cases[i].levels ? inside + across : at_once)) - 1) < 1e-9);
        }
        planned_preset_free(&one);
        planned_preset_free(&many);
    }
}

/* Sums of shards over all weights of a preset, as elements of an f32 state. */
TEST(test_presets)
{
    static const struct {
        const char *preset;
        int ranks;
        uint64_t elements;
    } sums[] = {{"llama-tiny", 2, 387328},   {"llama-tiny", 3, 262144},   {"llama-tiny", 4, 194816},
                {"llama-tiny", 8, 98560},    {"llama-124m", 2, 61780480}, {"llama-124m", 3, 41195776},
                {"llama-124m", 8, 15456512}, {"llama-124m", 64, 2234624}};
    static struct planned_preset p;
    for (size_t i = 0; i < COUNT(sums); i++) {
        uint64_t sum = 0;
        plan_preset(&p, sums[i].preset,
                    (const char *const[]){"memory.micro_batch=1", "memory.recompute=all", "memory.offload=none",
                                          "memory.head_chunks=1", NULL});
        const struct graph *g = &p.r.planned.graph;
        for (uint32_t k = 0; k < g->params.n; k++)
            if (g->params.at[k].grad)
                sum += (uint64_t)shard_part(tensor_elements(tensor_at(g, g->params.at[k].tensor)), sums[i].ranks);
        assert_int_equal(sum, sums[i].elements);
        planned_preset_free(&p);
    }
}

MAIN(NULL, NULL)
