/*
 * test_ticket.c: steps that are submitted before the previous one is retired (engine/ticket.h).
 *
 *     a row of steps     two in flight: every number, weight and moment is the same as one by one
 *     a lazy device      the same, executed as late as allowed, each step with its own prefetch
 *     a bad step         neither this step nor those submitted after it change a weight or a moment
 *     a step after it    a step submitted with none in flight starts anew
 *     times of steps     each ends when the device completes the step, not when the host reads
 *
 * The CPU executes submitted work at once; PLIMSOLL_PIPELINE gives its plan the tickets and the
 * GUARD of a GPU's.
 */
#include "folder/train_state.h"
#include "engine/ticket.h"

#include "harness.h"

enum { STEPS = 6, ROWS = 2, TOKENS = 16 };

struct setting {
    const char *precision, *fused;
    bool pipelined;
};

struct rig {
    struct config c;
    struct run r;
    struct tickets t;
};

/* The batch of step n. */
static void put_batch(struct rig *g, int n)
{
    int32_t row[TOKENS];
    struct error e = {0};
    for (int at = 0; at < ROWS; at++) {
        for (int i = 0; i < TOKENS; i++) row[i] = (n * 17 + at * 31 + i * 7) % 251;
        must(run_write_input(&g->r, "input_ids", at, row, sizeof row, &e), &e);
        must(run_write_input(&g->r, "labels", at, row, sizeof row, &e), &e);
    }
}

static void rig_open(struct rig *g, const struct setting *w)
{
    static const char *const base[] = {"model.preset=llama-tiny", "memory.recompute=none", "memory.offload=none",
                                       "train.effective_batch=2", "memory.micro_batch=2",  "data.sequence=16",
                                       "device.threads=1",        "device.kind=cpu",       "data.train=nowhere"};
    struct error e = {0};
    char text[64];
    memset(g, 0, sizeof *g);
    config_init(&g->c);
    for (size_t i = 0; i < COUNT(base); i++) must(config_set(&g->c, base[i], &e), &e);
    snprintf(text, sizeof text, "memory.precision=%s", w->precision);
    must(config_set(&g->c, text, &e), &e);
    snprintf(text, sizeof text, "memory.fused_step=%s", w->fused);
    must(config_set(&g->c, text, &e), &e);
    if (w->pipelined) setenv("PLIMSOLL_PIPELINE", "1", 1);
    else unsetenv("PLIMSOLL_PIPELINE");
    must(run_plan(&g->r, &g->c, &(struct run_options){.train = true}, &e), &e);
    must(run_start(&g->r, NULL, true, &e), &e);
    must(state_reset(&g->r.planned.graph, &g->r.device, &g->r.tape, run_staging(&g->r), PLAN_STAGING, &e), &e);
    tickets_begin(&g->t, &g->r);
    assert_int_equal(tickets_overlap(&g->t), w->pipelined);
    put_batch(g, 0);
}

static void rig_close(struct rig *g)
{
    run_close(&g->r);
    config_free(&g->c);
}

/* A hash of every persistent byte that an update may change. */
static uint64_t hash_persistent(const struct rig *g)
{
    uint64_t hash = 1;
    for (id s = 1; s < g->r.planned.graph.storages.n; s++) {
        const struct storage *x = &g->r.planned.graph.storages.at[s];
        if (x->kind == KIND_PARAM || x->kind == KIND_MASTER || x->kind == KIND_STATE)
            hash = hash_bytes(g->r.device.arena[x->space] + g->r.planned.plan.placement.offset[s], x->bytes, hash);
    }
    return hash;
}

/* Submits step n, from 0. With f16 Adam's t is the number of updates before it: `updates`, with
 * none in flight. */
static void submit(struct rig *g, int n, int updates, float scale, bool bad)
{
    struct step_block b = {.learning_rate = 1e-2f / (float)(n + 1),
                           .inv_count = {bad ? INFINITY : 1.0f / (ROWS * (TOKENS - 1))},
                           .clip_norm = 1,
                           .step = n + 1,
                           .adam_t = updates + !g->t.scaled,
                           .loss_scale = scale,
                           .next_scale = scale,
                           .scale_window = 2};
    struct error e = {0};
    must(ticket_submit(&g->t, &b, clock_seconds(), &e), &e);
}

static struct ticket retire(struct rig *g)
{
    struct ticket k;
    struct error e = {0};
    must(ticket_retire(&g->t, &k, &e), &e);
    return k;
}

/* --- a row of steps ------------------------------------------------------------------------ */

/* `scale` is so high that f16 skips some of the steps. */
static uint64_t run_row(const struct setting *w, float scale, struct ticket out[STEPS])
{
    struct rig g;
    int retired = 0, updates = 0;
    rig_open(&g, w);
    for (int n = 0; n < STEPS; n++) {
        submit(&g, n, g.t.scaled ? updates : n, scale, false);
        while (tickets_in_flight(&g.t) > (uint32_t)(w->pipelined && n + 1 < STEPS)) {
            out[retired] = retire(&g);
            updates = out[retired].block.adam_t;
            scale = out[retired++].block.next_scale;
        }
    }
    assert_int_equal(retired, STEPS);
    uint64_t hash = hash_persistent(&g);
    rig_close(&g);
    return hash;
}

static void compare_row(const char *precision, const char *fused, float scale)
{
    struct ticket one[STEPS], two[STEPS];
    int skipped = 0;
    uint64_t a = run_row(&(struct setting){precision, fused, false}, scale, one),
             b = run_row(&(struct setting){precision, fused, true}, scale, two);
    for (int n = 0; n < STEPS; n++) {
        assert_true(two[n].loss == one[n].loss && !memcmp(two[n].clip, one[n].clip, sizeof one[n].clip));
        assert_memory_equal(&two[n].block, &one[n].block, sizeof one[n].block);
        skipped += one[n].block.found_inf;
    }
    assert_true(a == b);
    assert_true(scale > 1 ? skipped > 0 && skipped < STEPS : !skipped);
}

TEST(test_row)
{
    compare_row("f32", "off", 1);
    compare_row("bf16", "off", 1);
    compare_row("f32", "on", 1);
    compare_row("f16", "off", 0x1p22f);
}

/* --- a lazy device ---------------------------------------------------------------------------
 *
 * It queues all submitted work and executes it when the host waits for a result. If the host
 * changes data too early, or reads before the result is complete, the result is wrong. A prefetch
 * is executed as late as possible, after the last step, so that the batch's memory holds the
 * previous batch until then. */

enum { QUEUE_LENGTH = 64 };
static struct command {
    enum { COMMAND_RUN, COMMAND_SEND, COMMAND_PREFETCH, COMMAND_MARK } what;
    struct device *device;
    struct tape *tape;
    enum program program;
    void *to;
    const void *from;
    uint64_t bytes;
    int number;
} queue[QUEUE_LENGTH];
static int queued;

static int enqueue(struct command n)
{
    assert_true(queued < QUEUE_LENGTH);
    queue[queued++] = n;
    return PL_OK;
}

/* Executes the first n. */
static void execute(int n)
{
    struct error e;
    for (int i = 0; i < n; i++) {
        if (queue[i].what == COMMAND_RUN)
            must(cpu_device.run(queue[i].device, queue[i].tape, queue[i].program, &e), &e);
        else if (queue[i].what != COMMAND_MARK) memcpy(queue[i].to, queue[i].from, queue[i].bytes);
    }
    queued -= n;
    memmove(queue, queue + n, (size_t)queued * sizeof *queue);
}

/* The number of queued commands up to the last one of this kind and number. */
static int count_until(int what, int number)
{
    int n = 0;
    for (int i = 0; i < queued; i++)
        if ((int)queue[i].what == what && queue[i].number == number) n = i + 1;
    return n;
}

static int lazy_run(struct device *d, struct tape *t, enum program p, struct error *e)
{
    (void)e;
    return enqueue((struct command){COMMAND_RUN, .device = d, .tape = t, .program = p});
}
static int lazy_send(struct device *d, void *to, const void *from, uint64_t bytes, struct error *e)
{
    (void)d, (void)e;
    return enqueue((struct command){COMMAND_SEND, .to = to, .from = from, .bytes = bytes});
}
static int lazy_later(struct device *d, void *to, const void *from, uint64_t bytes, struct error *e)
{
    (void)d, (void)e;
    return enqueue((struct command){COMMAND_PREFETCH, .to = to, .from = from, .bytes = bytes});
}
static int lazy_record_event(struct device *d, int number, struct error *e)
{
    (void)d, (void)e;
    return enqueue((struct command){COMMAND_MARK, .number = number});
}
static int lazy_wait_event(struct device *d, int number, double *reached, struct error *e)
{
    (void)d, (void)e;
    *reached = clock_seconds();
    execute(count_until(COMMAND_MARK, number));
    return PL_OK;
}
static int lazy_synchronize_writes(struct device *d, struct error *e)
{
    (void)d, (void)e;
    execute(count_until(COMMAND_PREFETCH, 0));
    return PL_OK;
}

/* As in the training loop: submit n, write batch n+1, retire n-1. */
static uint64_t run_ahead(const struct setting *w, float scale, bool lazy, struct ticket out[STEPS])
{
    static struct device_ops ops;
    struct rig g;
    struct error e = {0};
    int retired = 0, updates = 0;
    rig_open(&g, w);
    ops = cpu_device;
    ops.run = lazy_run, ops.send = lazy_send, ops.write_later = lazy_later, ops.record_event = lazy_record_event,
    ops.wait_event = lazy_wait_event, ops.synchronize_writes = lazy_synchronize_writes;
    if (lazy) g.r.device.ops = &ops;
    for (int n = 0; n < STEPS; n++) {
        submit(&g, n, g.t.scaled ? updates : n, scale, false);
        if (lazy) must(run_prefetch_begin(&g.r, &e), &e);
        put_batch(&g, n + 1);
        if (lazy) run_prefetch_end(&g.r, true);
        while (tickets_in_flight(&g.t) > (uint32_t)(lazy && n + 1 < STEPS)) {
            out[retired] = retire(&g);
            updates = out[retired].block.adam_t;
            scale = out[retired++].block.next_scale;
        }
    }
    execute(queued);
    uint64_t hash = hash_persistent(&g);
    g.r.device.ops = &cpu_device;
    rig_close(&g);
    return hash;
}

static void compare_lazy(const char *precision, const char *fused, float scale)
{
    struct ticket one[STEPS], two[STEPS];
    const struct setting pipelined = {precision, fused, true}, sequential = {precision, fused, false};
    assert_true(run_ahead(&sequential, scale, false, one) == run_ahead(&pipelined, scale, true, two));
    for (int n = 0; n < STEPS; n++) {
        assert_true(two[n].loss == one[n].loss && !memcmp(two[n].clip, one[n].clip, sizeof one[n].clip));
        assert_memory_equal(&two[n].block, &one[n].block, sizeof one[n].block);
    }
}

TEST(test_lazy)
{
    compare_lazy("f32", "off", 1);
    compare_lazy("f32", "on", 1);
    compare_lazy("f16", "off", 0x1p22f);
}

/* --- a bad step ------------------------------------------------------------------------------ */

static void check_bad_step(const struct setting *w)
{
    struct rig g;
    rig_open(&g, w);
    submit(&g, 0, 0, 1, false);
    assert_true(isfinite(retire(&g).loss));
    const uint64_t before = hash_persistent(&g);
    submit(&g, 1, 1, 1, true);
    submit(&g, 2, 2, 1, false); /* a good step, submitted before the bad one is retired */
    const struct ticket bad = retire(&g), next = retire(&g);
    assert_true(ticket_fatal(&g.t, bad.loss) && !ticket_fatal(&g.t, next.loss) && isfinite(next.clip[0]));
    assert_true(hash_persistent(&g) == before);
    submit(&g, 3, 3, 1, false); /* with none in flight a step counts as usual */
    assert_true(isfinite(retire(&g).loss));
    assert_true(hash_persistent(&g) != before);
    rig_close(&g);
}

TEST(test_bad)
{
    check_bad_step(&(struct setting){"f32", "off", true});
    check_bad_step(&(struct setting){"bf16", "off", true});
    check_bad_step(&(struct setting){"f32", "on", true});
}

/* --- times of steps --------------------------------------------------------------------------
 *
 * The host reads the results of step n after it submitted step n+1. Where submitting takes most of
 * a step, the interval between two reads is not a step's time: that of the last two is a fraction
 * of one. */

/* The CPU has completed a step when its submission returns. So after each step the sum of all times
 * lies between the beginning and the end of its submission: an exact bound, however slow the
 * machine is. */
TEST(test_seconds_cpu)
{
    for (int pipelined = 0; pipelined < 2; pipelined++) {
        struct rig g;
        double before[STEPS], after[STEPS], sum = 0;
        int retired = 0;
        rig_open(&g, &(struct setting){"f32", "off", pipelined});
        for (int n = 0; n < STEPS; n++) {
            before[n] = clock_seconds();
            submit(&g, n, n, 1, false);
            after[n] = clock_seconds();
            while (tickets_in_flight(&g.t) > (uint32_t)(pipelined && n + 1 < STEPS)) {
                retire(&g);
                sum += g.t.seconds;
                assert_true(g.t.seconds > 0 && g.t.seconds <= clock_seconds() - before[retired ? retired - 1 : 0]);
                if (pipelined)
                    assert_true(sum >= before[retired] - after[0] && sum <= after[retired] - before[0] + 1e-6);
                retired++;
            }
        }
        assert_int_equal(retired, STEPS);
        rig_close(&g);
    }
}

enum { STEP_SECONDS = 100 };
static double device_at, done_at[DEVICE_EVENTS]; /* a device that takes STEP_SECONDS per step, on a simulated clock */

static int slow_run(struct device *d, struct tape *t, enum program p, struct error *e)
{
    if (p == PROGRAM_STEP) device_at = fmax(device_at, clock_seconds()) + STEP_SECONDS;
    return cpu_device.run(d, t, p, e);
}
static int slow_record_event(struct device *d, int number, struct error *e)
{
    (void)d, (void)e;
    done_at[number] = device_at;
    return PL_OK;
}
static int slow_wait_event(struct device *d, int number, double *reached, struct error *e)
{
    (void)d, (void)e;
    *reached = done_at[number];
    return PL_OK;
}

/* Two sequences of steps with nothing in flight between them. */
TEST(test_seconds_device)
{
    struct device_ops ops = cpu_device;
    struct rig g;
    rig_open(&g, &(struct setting){"f32", "off", true});
    ops.run = slow_run, ops.record_event = slow_record_event, ops.wait_event = slow_wait_event;
    g.r.device.ops = &ops;
    for (int stretch = 0; stretch < 2; stretch++) {
        double sum = 0;
        const double from = clock_seconds();
        device_at = 0;
        for (int n = 0; n < STEPS; n++) {
            submit(&g, n, n, 1, false);
            while (tickets_in_flight(&g.t) > (uint32_t)(n + 1 < STEPS)) {
                retire(&g);
                sum += g.t.seconds;
                assert_true(g.t.seconds >= STEP_SECONDS - 1e-6 && g.t.seconds < STEP_SECONDS * 1.5);
            }
        }
        assert_true(fabs(sum - (device_at - from)) < STEP_SECONDS / 2.0);
    }
    g.r.device.ops = &cpu_device;
    rig_close(&g);
}

MAIN(NULL, NULL)
