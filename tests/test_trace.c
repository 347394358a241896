/*
 * test_trace.c: a step as Chrome's trace and as PyTorch's memory snapshot, read back and compared
 * with the plan: live bytes never exceed the arena, reach the plan's peak, and every allocated
 * block is freed.
 */
#include "batch/batch_plan.h"
#include "batch/feed.h"
#include "io/json.h"
#include "io/pth.h"
#include "report/trace.h"
#include "calibrate/bench.h"

#include "harness.h"

struct planned_bench {
    struct config config;
    struct bench bench;
    struct lives lives;
};

#define SETS 4
static const char *const MODELS[][SETS] = {{"model.preset=llama-tiny", "data.sequence=32", "memory.micro_batch=2"},
                                           {"model.preset=sam-tiny", "data.format=sa1b", "memory.head_chunks=2",
                                            "data.max_masks=4"}};

static void make(struct planned_bench *m, const char *const sets[SETS])
{
    struct error e = {0};
    config_init(&m->config);
    for (int i = 0; i < SETS && sets[i]; i++) assert_int_equal(config_set(&m->config, sets[i], &e), PL_OK);
    assert_int_equal(config_set(&m->config, "train.effective_batch=4", &e), PL_OK);
    assert_int_equal(bench_open(&m->bench, &m->config, &(struct run_options){.train = true, .describe = feed_describe},
                                &e),
                     PL_OK);
    timing_record_events(&m->bench.now, 100000);
    assert_int_equal(bench_run(&m->bench, 1, &e), PL_OK);
    lives_collect(&m->lives, &m->bench.run.planned.plan, &m->bench.run.planned.graph);
}

static void drop(struct planned_bench *m)
{
    lives_free(&m->lives);
    bench_close(&m->bench);
    config_free(&m->config);
}

/* The sums of live bytes by position agree with the planner's peak. */
TEST(test_live_bytes)
{
    for (size_t i = 0; i < COUNT(MODELS); i++) {
        struct planned_bench m;
        make(&m, MODELS[i]);
        const struct plan *p = &m.bench.run.planned.plan;
        uint64_t most = 0;
        for (int program = PROGRAM_STEP; program <= PROGRAM_UPDATE; program++) {
            uint64_t *alive = lives_by_position(&m.lives, &m.bench.run.planned.graph, program);
            for (uint32_t k = 0; k < m.bench.run.planned.graph.order[program].nodes.n; k++) {
                uint64_t sum = 0;
                for (int kind = 0; kind < KIND_COUNT; kind++) sum += alive[k * KIND_COUNT + (uint32_t)kind];
                assert_true(sum <= plan_arena(p));
                if (sum > most) most = sum;
            }
            mem_free(alive);
        }
        assert_int_equal(most, p->peak.bytes);
        drop(&m);
    }
}

TEST(test_trace)
{
    for (size_t i = 0; i < COUNT(MODELS); i++) {
        struct planned_bench m;
        struct text out = {0}, one = {0};
        struct bump b = {0};
        struct value *v;
        struct error e = {0};
        uint32_t slices = 0, counters = 0;
        double last = 0;
        make(&m, MODELS[i]);
        trace_events(&m.bench.run.planned.graph, &m.lives, &m.bench.now,
                     &(struct trace_process){1, "plimsoll", m.bench.now.events[0].from}, &one);
        trace_write(&m.bench.run.planned.plan, &one, 1, &out);
        text_free(&one);
        assert_int_equal(json_parse(out.at, out.n, &b, &v, &e), PL_OK);
        const struct value *events = value_get(v, "traceEvents");
        for (uint32_t k = 0; k < events->count; k++) {
            const char *kind = value_get(events->items[k], "ph")->text;
            if (!strcmp(kind, "M")) continue;
            double at = value_get(events->items[k], "ts")->number;
            assert_true(at >= last);
            last = at;
            slices += !strcmp(kind, "X");
            counters += !strcmp(kind, "C");
        }
        assert_int_equal(slices, m.bench.now.n_events);
        assert_true(counters > 10);
        bump_free(&b);
        text_free(&out);
        drop(&m);
    }
}

static int64_t number(const struct pickle *p, const char *key) { return pickle_get(p, key)->integer; }

/* Blocks tile the segment; in the trace no two live blocks overlap and all are freed. */
TEST(test_snapshot)
{
    struct planned_bench m;
    struct text out = {0};
    struct bump b = {0};
    struct pickle *root;
    struct error e = {0};
    size_t used;
    make(&m, MODELS[0]);
    snapshot_write(&m.bench.run.planned.plan, &m.bench.run.planned.graph, &m.lives, &out);
    assert_int_equal(pickle_read((const uint8_t *)out.at, out.n, &used, &b, &root, &e), PL_OK);
    assert_int_equal(used, out.n);
    const struct pickle *segment = pickle_get(root, "segments")->items[0], *blocks = pickle_get(segment, "blocks");
    const struct pickle *trace = pickle_get(root, "device_traces")->items[0];
    int64_t at = number(segment, "address"), end = at + number(segment, "total_size"),
            live = number(segment, "allocated_size"), most = live;
    assert_int_equal(end - at, plan_arena(&m.bench.run.planned.plan));
    for (uint32_t i = 0; i < blocks->n; i++) {
        assert_int_equal(number(blocks->items[i], "address"), at);
        at += number(blocks->items[i], "size");
    }
    assert_int_equal(at, end);
    for (uint32_t i = 0; i < trace->n; i++) {
        const struct pickle *v = trace->items[i];
        const char *action = pickle_get(v, "action")->text;
        assert_true(number(v, "addr") + number(v, "size") <= end);
        assert_true(pickle_get(v, "frames")->n >= 2);
        if (!strcmp(action, "alloc")) live += number(v, "size");
        if (!strcmp(action, "free_completed")) live -= number(v, "size");
        if (live > most) most = live;
    }
    assert_int_equal(live, number(segment, "allocated_size"));
    assert_int_equal(most, m.bench.run.planned.plan.peak.bytes);
    bump_free(&b);
    text_free(&out);
    drop(&m);
}

MAIN(NULL, NULL)
