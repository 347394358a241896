/*
 * test_offload.c: the bytes that each value of memory.offload must save, computed independently
 * from the plan without offload; the storage of the offload file; offload with arbitrary update
 * nodes.
 *
 * run_offload.sh shows with whole runs that no bit changes.
 */
#include "batch/batch_plan.h"
#include "batch/feed.h"
#include "graph/ops.h"
#include "passes/visit.h"
#include "engine/run.h"

#include "harness.h"
#include "planned_preset.h"

/* A plan of a preset that offloads these; nothing else is chosen. */
static void plan_offloading(struct planned_preset *p, const char *preset, const char *offload, const char *const *sets)
{
    char text[100];
    const char *all[16] = {"memory.head_chunks=1", "memory.recompute=none", text};
    snprintf(text, sizeof text, "memory.offload=%s", offload);
    for (size_t n = 3; *sets; sets++, n++) {
        assert_true(n + 1 < COUNT(all));
        all[n] = *sets;
    }
    plan_preset(p, preset, all);
}

static uint64_t padded(const struct graph *g, id s) { return align_up(g->storages.at[s].bytes, PLAN_ALIGN); }

static uint64_t device_arena(const struct planned_preset *p) { return p->r.planned.plan.placement.arena[SPACE_DEVICE]; }
static uint64_t host_arena(const struct planned_preset *p) { return p->r.planned.plan.placement.arena[SPACE_HOST]; }

/* --- counting --------------------------------------------------------------------------- */

static uint64_t bytes_of_kind(const struct graph *g, enum kind k)
{
    uint64_t sum = 0;
    for (id s = 1; s < g->storages.n; s++) sum += g->storages.at[s].kind == k ? padded(g, s) : 0;
    return sum;
}

/* The only block that uses a weight in the step and in the evaluation; 0: there is none. */
static id block_of_weight(const struct graph *g, id s)
{
    id block = 0;
    for (int p = 0; p < PROGRAM_COUNT; p++)
        for (uint32_t k = 0; k < g->order[p].nodes.n && p != PROGRAM_UPDATE; k++) {
            const struct node *n = node_at(g, g->order[p].nodes.at[k]);
            for (int i = 0; i < n->nin; i++)
                if (n->in[i] && tensor_at(g, n->in[i])->storage == s) {
                    id b = graph_block_of(g, n->scope);
                    if (!b) return 0;
                    block = b;
                }
        }
    return block;
}

struct weights_count {
    uint64_t all, two, largest; /* of all blocks; of the two largest blocks; of the largest weight */
};

static struct weights_count count_weights(const struct graph *g)
{
    struct weights_count c = {0};
    uint64_t *blocks = mem_alloc(g->scopes.n * sizeof *blocks), first = 0, second = 0;
    for (id s = 1; s < g->storages.n; s++) {
        id b = g->storages.at[s].kind == KIND_PARAM ? block_of_weight(g, s) : 0;
        if (!b) continue;
        c.all += padded(g, s);
        blocks[b] += padded(g, s);
        if (padded(g, s) > c.largest) c.largest = padded(g, s);
    }
    for (id b = 1; b < g->scopes.n; b++) {
        if (blocks[b] > first) second = first, first = blocks[b];
        else if (blocks[b] > second) second = blocks[b];
    }
    c.two = first + second;
    mem_free(blocks);
    return c;
}

/* The most bytes of storages of a kind that one node of the update reads or writes. */
static uint64_t largest_update_operands(const struct graph *g, enum kind kind)
{
    uint64_t most = 0;
    for (uint32_t k = 0; k < g->order[PROGRAM_UPDATE].nodes.n; k++) {
        const struct node *n = node_at(g, g->order[PROGRAM_UPDATE].nodes.at[k]);
        uint64_t sum = 0;
        for (int i = 0; i < n->nin; i++)
            if (n->in[i] && storage_of(g, n->in[i])->kind == kind) sum += padded(g, tensor_at(g, n->in[i])->storage);
        if (sum > most) most = sum;
    }
    return most;
}

/* The most bytes in device memory, at one instant, of tensors of this kind that were copied from
 * host memory. */
static uint64_t most_fetched(const struct planned_preset *x, enum program p, enum kind kind)
{
    const struct graph *g = &x->r.planned.graph;
    uint32_t n = g->order[p].nodes.n;
    int64_t *change = mem_alloc((n + 1) * sizeof *change), now = 0, most = 0;
    for (uint32_t k = 0; k < n; k++) {
        const struct node *c = node_at(g, g->order[p].nodes.at[k]);
        if (c->op != OP_COPY || storage_of(g, c->in[0])->space != SPACE_HOST || storage_of(g, c->in[0])->kind != kind)
            continue;
        id s = tensor_at(g, c->out[0])->storage;
        const struct life *l = &x->r.planned.plan.placement.life[p][s];
        assert_true(l->used && l->start == k && l->end > k);
        change[l->start] += (int64_t)padded(g, s);
        change[l->end + 1] -= (int64_t)padded(g, s);
    }
    for (uint32_t k = 0; k < n; k++) {
        now += change[k];
        if (now > most) most = now;
    }
    mem_free(change);
    return (uint64_t)most;
}

/* --- bytes that offload must save ------------------------------------------------------------ */

static const char *const presets_tested[] = {"llama-tiny", "sam-tiny", "tinysam-tiny", "sam2-tiny"};
static const char *const f32_sets[] = {"memory.precision=f32", "memory.micro_batch=8", NULL};
static const char *const bf16_sets[] = {"memory.precision=bf16", "memory.micro_batch=8", NULL};
static const char *const split_sets[] = {"memory.precision=f32", "memory.micro_batch=2", NULL};
static const char *const *const sets_tested[] = {f32_sets, bf16_sets, split_sets};

/* All storages of a kind move to host memory; the largest transient copy needs device memory. */
static void check_kind(const struct planned_preset *none, const char *preset, const char *word, enum kind kind,
                       const char *const *sets)
{
    struct planned_preset x;
    plan_offloading(&x, preset, word, sets);
    uint64_t all = bytes_of_kind(&none->r.planned.graph, kind),
             fetched = largest_update_operands(&none->r.planned.graph, kind);
    assert_true(all > 0 && fetched > 0 && fetched < all);
    assert_int_equal(none->r.planned.plan.persistent[SPACE_DEVICE] - x.r.planned.plan.persistent[SPACE_DEVICE], all);
    assert_int_equal(host_arena(&x), all);
    assert_int_equal(most_fetched(&x, PROGRAM_UPDATE, kind), fetched);
    if (device_arena(&x) > device_arena(none) - all + fetched)
        fail_msg("%s, %s: %llu bytes, without it %llu; %llu offloaded, at most %llu fetched", preset, word,
                 (unsigned long long)device_arena(&x), (unsigned long long)device_arena(none), (unsigned long long)all,
                 (unsigned long long)fetched);
    planned_preset_free(&x);
}

static void check_weights(const struct planned_preset *none, const char *preset, const char *const *sets)
{
    struct planned_preset x;
    plan_offloading(&x, preset, "weights", sets);
    struct weights_count c = count_weights(&none->r.planned.graph);
    assert_true(c.all > c.two);
    assert_int_equal(none->r.planned.plan.persistent[SPACE_DEVICE] - x.r.planned.plan.persistent[SPACE_DEVICE], c.all);
    assert_int_equal(host_arena(&x), c.all);
    for (int p = 0; p < PROGRAM_COUNT; p++) {
        if (!x.r.planned.graph.order[p].nodes.n) continue; /* training has no such program */
        uint64_t most = most_fetched(&x, p, KIND_PARAM);
        if (most > (p == PROGRAM_UPDATE ? c.largest : c.two) || !most)
            fail_msg("%s, program %s: %llu bytes of weights fetched; two blocks have %llu", preset, program_name(p),
                     (unsigned long long)most, (unsigned long long)c.two);
    }
    if (device_arena(&x) > device_arena(none) - c.all + c.two)
        fail_msg("%s: %llu bytes, without it %llu; %llu offloaded, two blocks have %llu", preset,
                 (unsigned long long)device_arena(&x), (unsigned long long)device_arena(none),
                 (unsigned long long)c.all, (unsigned long long)c.two);
    planned_preset_free(&x);
}

/* The start of the backward: there the saving is largest. */
static uint32_t backward_start(const struct graph *g)
{
    const struct order *o = &g->order[PROGRAM_STEP];
    for (uint32_t k = 0; k < o->nodes.n; k++)
        if (node_at(g, o->nodes.at[k])->phase == PHASE_BACKWARD && node_at(g, o->nodes.at[k])->op != OP_COPY &&
            node_at(g, o->nodes.at[k])->op != OP_FILL)
            return k;
    return 0;
}

static uint64_t alive(const struct planned_preset *x, enum space space, uint32_t at)
{
    const struct graph *g = &x->r.planned.graph;
    uint64_t sum = 0;
    for (id s = 1; s < g->storages.n; s++) {
        const struct life *l = &x->r.planned.plan.placement.life[PROGRAM_STEP][s];
        bool here = l->used && l->start <= at && at <= l->end && g->storages.at[s].kind == KIND_ACT &&
                    g->storages.at[s].space == space;
        sum += here ? padded(g, s) : 0;
    }
    return sum;
}

static void check_activations(const struct planned_preset *none, const char *preset, const char *const *sets)
{
    struct planned_preset x;
    plan_offloading(&x, preset, "activations", sets);
    assert_int_equal(none->r.planned.plan.persistent[SPACE_DEVICE], x.r.planned.plan.persistent[SPACE_DEVICE]);
    assert_int_equal(x.r.planned.plan.persistent[SPACE_HOST], 0);
    uint64_t offloaded = alive(&x, SPACE_HOST, backward_start(&x.r.planned.graph)),
             before = alive(none, SPACE_DEVICE, backward_start(&none->r.planned.graph)),
             after = alive(&x, SPACE_DEVICE, backward_start(&x.r.planned.graph));
    assert_true(offloaded > 0 && host_arena(&x) >= offloaded);
    /* Nothing is prefetched yet, and nothing else changed. */
    if (after != before - offloaded)
        fail_msg("%s: %llu bytes are alive at the turning point, without it %llu; %llu are away", preset,
                 (unsigned long long)after, (unsigned long long)before, (unsigned long long)offloaded);
    assert_true(device_arena(&x) < device_arena(none));
    print_message("%-14s %-22s activations %llu offloaded, arena %llu -> %llu\n", preset, sets[0],
                  (unsigned long long)offloaded, (unsigned long long)device_arena(none),
                  (unsigned long long)device_arena(&x));
    planned_preset_free(&x);
}

TEST(test_bytes)
{
    for (size_t i = 0; i < COUNT(presets_tested); i++)
        for (size_t k = 0; k < COUNT(sets_tested); k++) {
            const char *preset = presets_tested[i], *const *sets = sets_tested[k];
            struct planned_preset none, all;
            plan_offloading(&none, preset, "none", sets);
            assert_int_equal(host_arena(&none), 0);
            check_kind(&none, preset, "optimizer", KIND_STATE, sets);
            if (sets == bf16_sets) check_kind(&none, preset, "masters", KIND_MASTER, sets);
            check_weights(&none, preset, sets);
            check_activations(&none, preset, sets);
            plan_offloading(&all, preset, "optimizer+masters+weights+activations", sets);
            uint64_t gone = none.r.planned.plan.persistent[SPACE_DEVICE] - all.r.planned.plan.persistent[SPACE_DEVICE];
            assert_int_equal(gone, bytes_of_kind(&none.r.planned.graph, KIND_STATE) +
                                       bytes_of_kind(&none.r.planned.graph, KIND_MASTER) +
                                       count_weights(&none.r.planned.graph).all);
            assert_int_equal(all.r.planned.plan.persistent[SPACE_HOST], gone);
            planned_preset_free(&all);
            planned_preset_free(&none);
        }
}

/* --- copies ---------------------------------------------------------------------------------- */

/* Every copy between device and host is in the lane of its direction and at the level of the
 * micro-batch loop. A block's weights are prefetched before the preceding block starts. */
TEST(test_order)
{
    const char *sets[] = {"memory.precision=f32", "memory.micro_batch=2", "memory.head_chunks=2", NULL, NULL};
    for (size_t i = 0; i < COUNT(presets_tested); i++) {
        sets[3] = i ? "prompts.iterations=3" : NULL;
        struct planned_preset x;
        plan_offloading(&x, presets_tested[i], "weights+activations", sets);
        const struct graph *g = &x.r.planned.graph;
        const struct order *o = &g->order[PROGRAM_STEP];
        uint32_t copies = 0, ahead = 0;
        id last = 0;
        for (uint32_t k = 0; k < o->nodes.n; k++) {
            const struct node *n = node_at(g, o->nodes.at[k]);
            bool crosses = n->op == OP_COPY && storage_of(g, n->in[0])->space != storage_of(g, n->out[0])->space;
            if (!crosses) {
                last = graph_block_of(g, n->scope);
                continue;
            }
            copies++;
            assert_int_equal(n->lane, storage_of(g, n->out[0])->space == SPACE_DEVICE ? LANE_IN : LANE_OUT);
            assert_true(n->loop && !g->loops.at[n->loop].parent);
            ahead += n->phase == PHASE_FORWARD && graph_block_of(g, n->scope) && last != graph_block_of(g, n->scope);
        }
        assert_true(copies > 20 && ahead > 10);
        planned_preset_free(&x);
    }
}

/* --- any update ------------------------------------------------------------------------------ */

/* An update with other nodes than AdamW, with two states and a view: the update adds to state a and
 * overwrites state b, and afterwards host memory holds both completely. */
TEST(test_any_node)
{
    struct graph g;
    graph_init(&g);
    graph_step(&g);
    id w = graph_param(&g, "w", DT_F32, 2, (int64_t[]){4, 6}, (struct init){0});
    struct cursor before = graph_move(&g, PROGRAM_UPDATE, PHASE_UPDATE, "test");
    id storage_a = graph_storage(&g, "a", KIND_STATE, SPACE_DEVICE, 96),
       storage_b = graph_storage(&g, "b", KIND_STATE, SPACE_DEVICE, 48);
    id a = graph_tensor(&g, "a", storage_a, DT_F32, 2, (int64_t[]){4, 6}, 0),
       b = graph_tensor(&g, "b", storage_b, DT_F32, 2, (int64_t[]){2, 6}, 0);
    id sum = op_accumulate(&g, w, a), half = op_slice(&g, sum, 0, 1, 2);
    op_accumulate(&g, op_scale(&g, half, 2), b);
    g.at = before;
    graph_verify(&g, "test");
    struct settings s = {.offload = OFFLOAD_STATE, .accumulation = 1, .micro_batch = 1};
    pass_offload(&g, &s);
    graph_verify(&g, "offload");
    uint32_t fetched = 0, stored = 0, touched = 0;
    for (uint32_t k = 0; k < g.order[PROGRAM_UPDATE].nodes.n; k++) {
        const struct node *n = node_at(&g, g.order[PROGRAM_UPDATE].nodes.at[k]);
        for (int i = 0; i < n->nin; i++)
            touched += n->op != OP_COPY && n->in[i] && storage_of(&g, n->in[i])->space == SPACE_HOST;
        for (int i = 0; i < n->nout; i++)
            touched += n->op != OP_COPY && n->out[i] && storage_of(&g, n->out[i])->space == SPACE_HOST;
        if (n->op != OP_COPY) continue;
        fetched += storage_of(&g, n->in[0])->space == SPACE_HOST;
        stored += n->nin == 2 && storage_of(&g, n->in[1])->space == SPACE_HOST;
    }
    assert_int_equal(g.storages.at[storage_a].space, SPACE_HOST);
    assert_int_equal(fetched, 2);
    assert_int_equal(stored, 2);
    assert_int_equal(touched, 0);
    graph_free(&g);
}

/* --- updates on the host --------------------------------------------------------------------- */

/* What an update on the host leaves of copies: none of state and master weights. */
struct copies_count {
    uint32_t updates, gradients, weights, of_state; /* weights: copied back */
    uint64_t staged; /* largest sum of what three updates, one after the other, need of host memory */
};

static uint64_t staged_by(const struct graph *g, const struct node *n)
{
    uint64_t sum = 0;
    for (int i = 0; i < n->nin; i++)
        if (n->in[i] && storage_of(g, n->in[i])->kind == KIND_ACT) sum += padded(g, tensor_at(g, n->in[i])->storage);
    return sum;
}

static struct copies_count count_copies(const struct graph *g)
{
    struct copies_count c = {0};
    uint64_t last[2] = {0};
    for (enum program p = PROGRAM_STEP; p <= PROGRAM_UPDATE; p++)
        for (uint32_t k = 0; k < g->order[p].nodes.n; k++) {
            const struct node *n = node_at(g, g->order[p].nodes.at[k]);
            if (!node_launches(n)) continue;
            const bool copy = n->op == OP_COPY && n->lane != LANE_COMPUTE;
            const enum kind from = copy ? storage_of(g, n->in[0])->kind : KIND_NONE;
            c.of_state += from == KIND_STATE || from == KIND_MASTER;
            c.weights += n->lane == LANE_BACK;
            c.gradients +=
                n->lane == LANE_OUT && n->phase == PHASE_UPDATE && tensor_bytes(tensor_at(g, n->in[0])) > 512;
            if (n->lane != LANE_HOST) continue;
            c.updates++;
            for (int i = 0; i < n->nin; i++)
                assert_true(!n->in[i] || storage_of(g, n->in[i])->space == SPACE_HOST);
            const uint64_t now = staged_by(g, n);
            if (now + last[0] + last[1] > c.staged) c.staged = now + last[0] + last[1];
            last[1] = last[0], last[0] = now;
        }
    return c;
}

/* On a GPU gradients are copied out and weights back in, and nothing else of the update; host
 * memory has what is offloaded, and room for three updates. On a CPU nothing is copied. */
TEST(test_update)
{
    static const char *const fused[] = {"off", "on"};
    for (int i = 0; i < 4; i++) {
        char step[64];
        const bool weights = i / 2;
        const char *sets[] = {"memory.precision=bf16", "memory.micro_batch=8", "train.clip_norm=0", "device.kind=cuda",
                              "device.profile=h200", step, NULL};
        const char *word = weights ? "optimizer+masters+weights+update" : "optimizer+masters+update";
        struct planned_preset x;
        snprintf(step, sizeof step, "memory.fused_step=%s", fused[i % 2]);
        plan_offloading(&x, "llama-tiny", word, sets);
        const struct graph *g = &x.r.planned.graph;
        const struct copies_count c = count_copies(g);
        const uint64_t home = x.r.planned.plan.persistent[SPACE_HOST];
        assert_int_equal(c.of_state, 0);
        assert_true(c.updates > 10 && (weights ? c.weights < c.updates : c.weights == c.updates));
        assert_true(c.gradients > 10 && c.gradients <= c.updates);
        assert_true(home >= bytes_of_kind(g, KIND_STATE) + bytes_of_kind(g, KIND_MASTER));
        assert_true(host_arena(&x) > home && host_arena(&x) <= home + 2 * c.staged + 4096);
        planned_preset_free(&x);
        plan_offloading(&x, "llama-tiny", weights ? "optimizer+weights+update" : "optimizer+update", f32_sets);
        assert_int_equal(count_copies(&x.r.planned.graph).of_state, 0);
        assert_int_equal(most_fetched(&x, PROGRAM_UPDATE, KIND_STATE), 0);
        planned_preset_free(&x);
    }
}

/* Blocks with offloaded weights are spread evenly, and as many as asked for. */
TEST(test_blocks)
{
    for (uint32_t count = 1; count <= 40; count++)
        for (uint32_t n = 0; n <= count + 1; n++) {
            const struct settings s = {.offload = OFFLOAD_WEIGHTS, .offload_blocks = (int)n};
            uint32_t all = 0, gap = 0, most = 0;
            for (uint32_t i = 1; i <= count; i++) {
                gap = offload_has_block(&s, i, count) ? 0 : gap + 1;
                all += !gap;
                if (gap > most) most = gap;
            }
            assert_int_equal(all, !n || n > count ? count : n);
            assert_true(!n || most <= (count + n - 1) / n);
        }
}

TEST(test_words)
{
    static const char *const good[] = {"none", "optimizer", "weights:3", "optimizer+weights:12+activations",
                                       "masters+weights", "optimizer+masters+update"};
    static const char *const bad[] = {"", "weights:", "weights:0", "weights:-1", "optimizer:3", "weights:3:4",
                                      "weights:1x", "weights:2000000", "none+weights", "weights+"};
    struct settings s = {0};
    char text[SETTING_ROOM];
    for (size_t i = 0; i < COUNT(good); i++) {
        assert_true(technique_parse(TECHNIQUE_offload, good[i], &s));
        assert_string_equal(technique_print(TECHNIQUE_offload, &s, text), good[i]);
    }
    for (size_t i = 0; i < COUNT(bad); i++) assert_false(technique_parse(TECHNIQUE_offload, bad[i], &s));
}

/* --- the offload file ------------------------------------------------------------------------ */

/* On a CPU, host memory is a shared mapping of an unlinked file, and no byte of it is anonymous
 * memory. */
TEST(test_mapping)
{
    struct planned_preset x;
    struct error e = {0};
    char line[600], *at;
    plan_offloading(&x, "llama-tiny", "optimizer+weights", f32_sets);
    must(run_start(&x.r, NULL, true, &e), &e);
    memset(x.r.device.arena[SPACE_HOST], 1, host_arena(&x));
    bool found = false;
    long anonymous = -1;
    FILE *f = fopen("/proc/self/smaps", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        unsigned long from, to;
        char rights[8];
        if (sscanf(line, "%lx-%lx %7s", &from, &to, rights) == 3) {
            if (found) break;
            found = from == (unsigned long)x.r.device.arena[SPACE_HOST];
            if (!found) continue;
            assert_true(rights[3] == 's' && strstr(line, "/tmp/") && strstr(line, "(deleted)"));
            assert_int_equal(to - from, align_up(host_arena(&x), 4096));
        } else if (found && (at = strstr(line, "Anonymous:")) == line) {
            anonymous = atol(line + 10);
        }
    }
    fclose(f);
    assert_true(found);
    assert_int_equal(anonymous, 0);
    planned_preset_free(&x);
}

MAIN(NULL, NULL)
