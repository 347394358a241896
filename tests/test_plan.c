/*
 * test_plan.c: the planner: lifetimes, placement, its checker and the graph verifier, wait lists,
 * and the search under a budget.
 *
 * The tests check each invariant independently, by brute force: every pair of storages, every
 * instant, every pair of tape entries. Code that must abort runs in a child process, which must die
 * by SIGABRT with the expected words on stderr.
 */
#include "optest.h"

#include <signal.h>
#include <sys/wait.h>
#include "cost/calibration.h"
#include "io/json.h"
#include "models/model.h"
#include "plan/plan.h"

/* --- errors of the graph builder ------------------------------------------------------------- */

TEST(test_sticky_errors)
{
    struct graph g;
    struct error e = {0};
    graph_init(&g);
    id x = graph_param(&g, "x", DT_F32, DIM(2, 3), (struct init){0}),
       w = graph_param(&g, "w", DT_F32, DIM(4, 5), (struct init){0});
    assert_int_equal(graph_error(&g, &e), PL_OK);
    uint32_t nodes = g.nodes.n;
    id outer = graph_scope_push(&g, "layer7", 0);
    id y = op_linear(&g, x, w, 0);
    graph_scope_pop(&g, outer);
    assert_int_equal(y, 0);
    assert_int_equal(graph_error(&g, &e), PL_USAGE);
    /* The message names the op, the shapes, the scope and the reason. */
    const char *const words[] = {"layer7", "LINEAR", "x f32[2,3]", "w f32[4,5]", "w must be [N,3]"};
    for (size_t i = 0; i < COUNT(words); i++)
        if (!strstr(e.text, words[i])) fail_msg("\"%s\" is not in: %s", words[i], e.text);

    /* Every call on 0 returns 0, other bad calls return 0, and the first message remains. */
    char first[sizeof e.text];
    snprintf(first, sizeof first, "%s", e.text);
    assert_int_equal(op_add(&g, y, x), 0);
    assert_int_equal(op_rmsnorm(&g, x, 0, 1), 0);
    assert_int_equal(op_reshape(&g, x, DIM(7)), 0);
    assert_int_equal(op_scale(&g, x, 2), 0);
    assert_int_equal(op_attention(&g, 0, 0, 0, 1, true), 0);
    assert_int_equal(graph_param(&g, "late", DT_F32, DIM(2), (struct init){0}), 0);
    assert_int_equal(graph_fail(&g, "a second message"), 0);
    graph_output(&g, "loss", y);
    graph_differentiate(&g, PROGRAM_STEP, y);
    assert_int_equal(g.nodes.n, nodes);
    assert_int_equal(graph_error(&g, &e), PL_USAGE);
    assert_string_equal(e.text, first);
    graph_free(&g);
}

/* Calls that must be rejected, each on a fresh graph. */
static id bad_shape_twice(struct graph *g, id x)
{
    (void)x;
    return graph_param(g, "x", DT_F32, DIM(3, 2), (struct init){0});
}
static id bad_dimension(struct graph *g, id x) { (void)x; return graph_input(g, "in", DT_F32, DIM(2, 0)); }
static id bad_slice(struct graph *g, id x) { return op_slice(g, x, 1, 2, 2); }
static id bad_axis(struct graph *g, id x) { return op_slice(g, x, 2, 0, 1); }
static id bad_reshape(struct graph *g, id x) { return op_reshape(g, x, DIM(-1, 4)); }
static id bad_reshape_two_unknowns(struct graph *g, id x) { return op_reshape(g, x, DIM(-1, -1)); }
/* op_reshape would insert a copy; the op itself accepts dense tensors only. */
static id bad_reshape_strided(struct graph *g, id x)
{
    union attr a = {.reshape = {1, {4}}};
    return graph_emit(g, OP_RESHAPE, &a, (id[]){op_slice(g, x, 1, 0, 2)}, 1);
}
static id bad_permutation(struct graph *g, id x) { return op_permute(g, x, (int[]){1, 1}); }
static id bad_add(struct graph *g, id x) { return op_add(g, x, op_reshape(g, x, DIM(3, 2))); }
static id bad_dtypes(struct graph *g, id x) { return op_mul(g, x, op_cast(g, x, DT_BF16)); }
static id bad_matmul(struct graph *g, id x) { return op_matmul(g, x, x, false, false, DT_F32); }
static id bad_labels(struct graph *g, id x) { return op_xent(g, x, x, NULL); }
static id bad_arity(struct graph *g, id x) { return graph_emit(g, OP_ADD, NULL, (id[]){x, x, x}, 3); }
static id bad_accumulator(struct graph *g, id x)
{
    union attr a = {.sum_to = {.dtype = DT_F32, .rank = 1, .dim = {3}}};
    return graph_emit(g, OP_SUM_TO, &a, (id[]){x, op_fill(g, DT_F32, DIM(2), 0)}, 2);
}
static id bad_rope(struct graph *g, id x) { return op_rope(g, x, x, 1, false); }

TEST(test_refused_calls)
{
    id (*const calls[])(struct graph *, id) =
        {bad_shape_twice,     bad_dimension, bad_slice,      bad_axis,   bad_reshape, bad_reshape_two_unknowns,
         bad_reshape_strided, bad_add,       bad_dtypes,     bad_matmul, bad_labels,  bad_arity,
         bad_accumulator,     bad_rope,      bad_permutation};
    for (size_t i = 0; i < COUNT(calls); i++) {
        struct graph g;
        struct error e = {0};
        graph_init(&g);
        id x = graph_param(&g, "x", DT_F32, DIM(2, 3), (struct init){0});
        if (calls[i](&g, x)) fail_msg("call %zu was taken", i);
        assert_int_equal(graph_error(&g, &e), PL_USAGE);
        assert_true(e.text[0] != '\0');
        graph_free(&g);
    }
}

/* --- lifetimes ------------------------------------------------------------------------------- */

static void expect_lifetime(const struct graph *g, const struct life *life, id tensor, uint32_t start, uint32_t end)
{
    const struct life *l = &life[tensor_at(g, tensor)->storage];
    if (!l->used || l->start != start || l->end != end)
        fail_msg("%s lives [%u, %u], it should live [%u, %u]", graph_name(g, tensor_at(g, tensor)->name), l->start,
                 l->end, start, end);
}

static struct life *lifetimes_of(const struct graph *g)
{
    struct life *life = mem_alloc(g->storages.n * sizeof *life);
    graph_verify(g, "test");
    graph_lifetimes(g, PROGRAM_STEP, life);
    return life;
}

static id scalar(struct graph *g, double value) { return op_fill(g, DT_F32, 0, NULL, value); }

/* The view of `whole` that advances by one row per iteration of `loop`. */
static id row_of(struct graph *g, id whole, id loop)
{
    struct tensor x = *tensor_at(g, whole);
    x.dim[0] = 1;
    id row = graph_view(g, whole, x.dtype, x.rank, x.dim, NULL, x.offset);
    tensor_at(g, row)->loop = loop;
    tensor_at(g, row)->advance = (int64_t)tensor_bytes(&x);
    return row;
}

TEST(test_lifetimes_straight)
{
    struct graph g;
    graph_init(&g);
    id a = scalar(&g, 1);                           /* 0 */
    id b = scalar(&g, 2);                           /* 1 */
    id c = op_add(&g, a, b);                        /* 2 */
    id v = op_reshape(&g, c, DIM(1));               /* 3: a view, keeps c alive */
    id d = op_scale(&g, a, 2);                      /* 4 */
    id e = op_scale(&g, v, 2);                      /* 5 */
    id f = op_accumulate(&g, d, scalar(&g, 0));     /* 6 fill, 7 in place */
    struct life *life = lifetimes_of(&g);
    expect_lifetime(&g, life, a, 0, 4);
    expect_lifetime(&g, life, b, 1, 2);
    expect_lifetime(&g, life, c, 2, 5);
    expect_lifetime(&g, life, d, 4, 7);
    expect_lifetime(&g, life, e, 5, 5);
    expect_lifetime(&g, life, f, 6, 7);
    mem_free(life);
    graph_free(&g);
}

/* Storages that are carried, traversed by rows, filled by rows, local to an iteration, read from
 * outside the loop, and read after it. */
TEST(test_lifetimes_loop)
{
    struct graph g;
    graph_init(&g);
    id before = op_fill(&g, DT_F32, DIM(4, 3), 1);  /* 0: the loop traverses it by rows */
    id outside = op_fill(&g, DT_F32, DIM(1, 3), 1); /* 1: every iteration reads it */
    id gathered = op_fill(&g, DT_F32, DIM(4, 3), 0); /* 2: replaced below */
    id acc = scalar(&g, 0);                         /* 3 */
    id early = scalar(&g, 5);                       /* 4: dead before the loop */
    id use = op_scale(&g, early, 2);                /* 5 */
    id loop = g.at.loop = graph_loop(&g, "rows", 4);
    id s = op_mul(&g, row_of(&g, before, loop), outside); /* 6 */
    id t = op_scale(&g, s, 2);                      /* 7: into a row of `gathered` */
    id total = op_sum(&g, t);                       /* 8 */
    id sum = op_accumulate(&g, total, acc);         /* 9 */
    id last = op_scale(&g, total, 1);               /* 10: its last value is read after the loop */
    g.at.loop = 0;
    id after = op_add(&g, sum, last);               /* 11 */
    id read = op_scale(&g, gathered, 1);            /* 12 */
    id row = row_of(&g, gathered, loop);
    graph_redirect(&g, t, row);
    tensor_at(&g, gathered)->node = tensor_at(&g, t)->node;
    struct order *order = &g.order[PROGRAM_STEP];
    /* positions below are one less */
    memmove(order->nodes.at + 2, order->nodes.at + 3, (--order->nodes.n - 2) * sizeof(id));

    struct life *life = lifetimes_of(&g);
    expect_lifetime(&g, life, before, 0, 9);   /* a new row each iteration: until the loop ends */
    expect_lifetime(&g, life, outside, 1, 9);
    expect_lifetime(&g, life, acc, 2, 10);
    expect_lifetime(&g, life, early, 3, 4);
    expect_lifetime(&g, life, use, 4, 4);
    expect_lifetime(&g, life, s, 5, 6);        /* new in every iteration */
    expect_lifetime(&g, life, gathered, 5, 11); /* filled row by row: from the loop's start */
    expect_lifetime(&g, life, total, 7, 9);
    expect_lifetime(&g, life, last, 5, 10);    /* read after the loop: kept through the whole loop, conservatively */
    expect_lifetime(&g, life, after, 10, 10);
    expect_lifetime(&g, life, read, 11, 11);
    mem_free(life);
    graph_free(&g);
}

/* Written and read by rows inside the loop only: every row is kept until the loop ends. */
TEST(test_lifetimes_rows)
{
    struct graph g;
    graph_init(&g);
    id x = graph_param(&g, "x", DT_F32, DIM(1, 3), (struct init){0});
    id loop = g.at.loop = graph_loop(&g, "rows", 4);
    id first = op_scale(&g, x, 2);                  /* 0 */
    id row = op_scale(&g, x, 3);                    /* 1: into a row of `rows` */
    id last = op_add(&g, row, first);               /* 2 */
    op_scale(&g, last, 1);                          /* 3 */
    g.at.loop = 0;
    id rows = graph_tensor(&g, "rows", graph_storage(&g, "rows", KIND_ACT, SPACE_DEVICE, 48), DT_F32, DIM(4, 3), 0);
    graph_redirect(&g, row, row_of(&g, rows, loop));
    struct life *life = lifetimes_of(&g);
    expect_lifetime(&g, life, first, 0, 2);
    expect_lifetime(&g, life, rows, 0, 3);
    expect_lifetime(&g, life, last, 2, 3);
    mem_free(life);
    graph_free(&g);
}

/* A storage that an outer iteration writes and the inner loop carries lives through the inner loop
 * only. */
TEST(test_lifetimes_nested)
{
    struct graph g;
    graph_init(&g);
    id total = scalar(&g, 0);                       /* 0 */
    id outer = g.at.loop = graph_loop(&g, "outer", 3);
    id x = scalar(&g, 1);                           /* 1: read inside the inner loop */
    id acc = scalar(&g, 0);                         /* 2: carried by the inner loop */
    id inner = g.at.loop = graph_loop(&g, "inner", 2);
    id y = op_scale(&g, x, 2);                      /* 3 */
    id sum = op_accumulate(&g, y, acc);             /* 4 */
    id z = op_scale(&g, y, 3);                      /* 5: no reader */
    g.at.loop = outer;
    id w = op_scale(&g, sum, 1);                    /* 6 */
    id all = op_accumulate(&g, w, total);           /* 7 */
    g.at.loop = 0;
    id end = op_scale(&g, all, 1);                  /* 8 */
    (void)inner;
    struct life *life = lifetimes_of(&g);
    expect_lifetime(&g, life, total, 0, 8);
    expect_lifetime(&g, life, x, 1, 5);
    expect_lifetime(&g, life, acc, 2, 6);
    expect_lifetime(&g, life, y, 3, 5);
    expect_lifetime(&g, life, z, 5, 5);
    expect_lifetime(&g, life, w, 6, 7);
    expect_lifetime(&g, life, end, 8, 8);
    mem_free(life);
    graph_free(&g);
}

/* --- a small language model ------------------------------------------------------------------ */

struct language {
    struct model model;
    int64_t T;
};

static void build_language(void *context, struct graph *g, int micro_batch)
{
    struct language *l = context;
    l->model.family->build(&l->model, g, &(struct batch){.B = micro_batch, .T = l->T});
}

static void open_language(struct language *l, int64_t T)
{
    struct error e;
    l->T = T;
    must(model_preset(&l->model, "llama-tiny", &e), &e);
}

static const struct settings BASE = {.micro_batch = 2, .accumulation = 2, .precision = PRECISION_F32, .head_chunks = 1,
                                     .train = true, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8};

static void place(struct plan *p, struct graph *g, struct language *l, const struct settings *s, enum device_kind kind)
{
    struct error e;
    struct source source = {l, build_language};
    struct profile profile;
    profile_default(&profile, kind, 2);
    memset(p, 0, sizeof *p);
    must(plan_compile(g, &source, s, &e), &e);
    must(plan_place(p, g, &profile, &e), &e);
}

/* --- placement by brute force ---------------------------------------------------------------- */

struct box {
    uint64_t from, to;
    uint32_t start, end;
    uint8_t space;
    const char *name;
};

/* All blocks in the arenas while a program runs. */
static uint32_t boxes_of(const struct plan *p, const struct graph *g, enum program program, struct box *box)
{
    uint32_t n = 0, count = g->order[program].nodes.n;
    for (id s = 1; s < g->storages.n; s++) {
        const struct storage *x = &g->storages.at[s];
        const struct life *l = &p->placement.life[program][s];
        bool lasting = storage_is_persistent(x), anywhere = x->kind == KIND_STAGING || x->kind == KIND_STEP;
        for (int q = 0; q < PROGRAM_COUNT; q++) anywhere |= p->placement.life[q][s].used;
        for (uint32_t i = 0; i < g->params.n; i++) anywhere |= tensor_at(g, g->params.at[i].tensor)->storage == s;
        if (lasting ? !anywhere : !l->used) continue;
        uint64_t at = p->placement.offset[s];
        box[n++] = (struct box){at,       at + x->bytes,         lasting ? 0 : l->start, lasting ? count : l->end,
                                x->space, graph_name(g, x->name)};
    }
    for (uint32_t k = 0; k < count; k++) {
        const struct binding *b = &p->placement.binding[g->order[program].nodes.at[k]];
        if (b->work_bytes)
            box[n++] = (struct box){b->work_offset, b->work_offset + b->work_bytes, k, k, SPACE_DEVICE, "workspace"};
    }
    return n;
}

/* No two boxes overlap in both time and space, and none exceeds its arena. The lower bound is the
 * most bytes alive at any instant, each storage rounded up to the alignment. */
static void check_boxes(const struct plan *p, const struct graph *g)
{
    uint64_t most = 0, highest = 0;
    for (int program = 0; program < PROGRAM_COUNT; program++) {
        struct box *box = mem_alloc((g->storages.n + g->nodes.n) * sizeof *box);
        uint32_t n = boxes_of(p, g, program, box);
        for (uint32_t i = 0; i < n; i++) {
            assert_true(box[i].from % PLAN_ALIGN == 0 && box[i].to <= p->placement.arena[box[i].space]);
            if (box[i].space == SPACE_DEVICE && box[i].to > highest) highest = box[i].to;
            for (uint32_t j = 0; j < i; j++)
                if (box[i].space == box[j].space && box[i].from < box[j].to && box[j].from < box[i].to &&
                    box[i].start <= box[j].end && box[j].start <= box[i].end)
                    fail_msg("%s and %s share bytes at %llu in program %s", box[i].name, box[j].name,
                             (unsigned long long)box[i].from, program_name(program));
        }
        for (uint32_t k = 0; k < g->order[program].nodes.n; k++) {
            uint64_t alive = 0;
            for (uint32_t i = 0; i < n; i++)
                if (box[i].space == SPACE_DEVICE && box[i].start <= k && k <= box[i].end)
                    alive += align_up(box[i].to - box[i].from, PLAN_ALIGN);
            if (alive > most) most = alive;
        }
        mem_free(box);
    }
    uint64_t broken_down = 0;
    for (int k = 0; k < KIND_COUNT; k++) broken_down += p->peak.by_kind[k];
    assert_int_equal(p->peak.bytes, most);
    assert_int_equal(p->peak.bytes, broken_down);
    assert_true(plan_arena(p) >= p->peak.bytes);
    assert_int_equal(align_up(highest, PLAN_ALIGN), plan_arena(p));
}

/* The predicted time is the sum of all node times, each multiplied by its loops' trip counts. */
static void check_seconds(const struct plan *p, const struct graph *g, const struct profile *profile)
{
    double seconds = 0;
    for (int program = 0; program < PROGRAM_COUNT; program++)
        for (uint32_t k = 0; k < g->order[program].nodes.n && program != PROGRAM_EVAL; k++) {
            const struct node *n = node_at(g, g->order[program].nodes.at[k]);
            struct query q;
            if (!node_launches(n)) continue;
            query_fill(&q, g, n, profile);
            double times = 1;
            for (id l = n->loop; l; l = g->loops.at[l].parent) times *= g->loops.at[l].trip;
            seconds += times * kernel_seconds(&q, n->op);
        }
    assert_true(fabs(seconds - p->seconds) <= 1e-9 * seconds);
}

/* In the JSON, padding, breakdown and arenas add up. */
static void check_json(const struct plan *p, const struct graph *g)
{
    struct text text = {0};
    struct error e;
    struct bump memory = {0};
    struct value *v;
    struct profile profile;
    int64_t arena = 0, bound = 0, padding = -1, sum = 0;
    profile_default(&profile, DEVICE_CPU, 2);
    plan_write(p, g, &(struct plan_note){.fits = true, .effective_batch = 4, .profile = &profile}, &text);
    must(json_parse(text.at, text.n, &memory, &v, &e), &e);
    must(value_opt_int(v, "arena_bytes", &arena, &e) || value_opt_int(v, "lower_bound_bytes", &bound, &e) ||
             value_opt_int(v, "padding", &padding, &e), &e);
    for (int k = 0; k < KIND_COUNT; k++) {
        int64_t bytes = 0;
        must(value_opt_int(value_get(v, "breakdown"), kind_name(k), &bytes, &e), &e);
        sum += bytes;
    }
    assert_int_equal(arena, plan_arena(p));
    assert_int_equal(padding, arena - bound);
    assert_int_equal(sum, bound);
    bump_free(&memory);
    text_free(&text);
}

TEST(test_placement)
{
    struct language l;
    struct profile profile;
    open_language(&l, 32);
    for (int i = 0; i < 16; i++) {
        struct settings s = BASE;
        struct graph g;
        struct plan p;
        s.micro_batch = i & 8 ? 4 : 1;
        s.accumulation = 4 / s.micro_batch;
        s.head_chunks = i & 1 ? 3 : 1;
        s.recompute.kind = i & 2 ? RECOMPUTE_SELECTIVE : RECOMPUTE_NONE;
        s.offload = i & 4 ? OFFLOAD_STATE : 0;
        s.precision = i % 3 == 2 ? PRECISION_BF16 : PRECISION_F32;
        place(&p, &g, &l, &s, DEVICE_CPU);
        check_boxes(&p, &g);
        profile_default(&profile, DEVICE_CPU, 2);
        check_seconds(&p, &g, &profile);
        check_json(&p, &g);
        plan_free(&p);
        graph_free(&g);
    }
    model_close(&l.model);
}

/* --- code that must abort -------------------------------------------------------------------- */

/* Runs `violation` in a child process, which must die by SIGABRT with `word` in its message. */
static void expect_abort(void (*violation)(void *), void *context, const char *word)
{
    int pipes[2], status;
    char said[4096] = "";
    assert_int_equal(pipe(pipes), 0);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        dup2(pipes[1], 2);
        close(pipes[0]);
        violation(context);
        _exit(0);
    }
    close(pipes[1]);
    size_t n = 0;
    for (ssize_t got; n + 1 < sizeof said && (got = read(pipes[0], said + n, sizeof said - 1 - n)) > 0;)
        n += (size_t)got;
    close(pipes[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT) fail_msg("no abort; wanted one about \"%s\"", word);
    if (!strstr(said, word)) fail_msg("\"%s\" is not in: %s", word, said);
}

struct placed {
    struct plan p;
    struct graph g;
};

static void check_placed(void *context)
{
    const struct placed *x = context;
    plan_check(&x->p, &x->g);
}

/* The transient storage with `part` in its name. */
static id storage_named(const struct graph *g, const char *part)
{
    for (id s = 1; s < g->storages.n; s++)
        if (g->storages.at[s].kind == KIND_ACT && strstr(graph_name(g, g->storages.at[s].name), part)) return s;
    fail_msg("no storage called %s", part);
    return 0;
}

/* A chain in which x is read at the end and the middle needs memory of its own. */
static void chain(struct placed *c)
{
    struct error e;
    struct profile profile;
    profile_default(&profile, DEVICE_CPU, 2);
    memset(c, 0, sizeof *c);
    graph_init(&c->g);
    struct graph *g = &c->g;
    id w = graph_param(g, "w", DT_F32, DIM(64, 64), (struct init){0}),
       u = graph_param(g, "u", DT_F32, DIM(64, 64), (struct init){0});
    id outer = graph_scope_push(g, "first", 0);
    id x = op_scale(g, w, 2);
    graph_scope_pop(g, outer);
    outer = graph_scope_push(g, "second", 0);
    id y = op_linear(g, x, w, 0);
    graph_scope_pop(g, outer);
    id loop = graph_loop(g, "rows", 3);
    outer = graph_scope_push(g, "sum", 0);
    id acc = op_fill(g, DT_F32, 0, NULL, 0);
    graph_scope_pop(g, outer);
    g->at.loop = loop;
    outer = graph_scope_push(g, "third", 0);
    id z = op_sum(g, op_mul(g, y, u));
    graph_scope_pop(g, outer);
    id sum = op_accumulate(g, z, acc);
    g->at.loop = 0;
    id first = op_sum(g, x), second = op_scale(g, sum, 1);
    graph_output(g, "out", op_add(g, first, second));
    graph_verify(g, "test");
    must(plan_place(&c->p, g, &profile, &e), &e);
}

TEST(test_checker)
{
    struct placed c;
    chain(&c);
    uint64_t *offset = c.p.placement.offset, kept;
    plan_check(&c.p, &c.g);
    check_boxes(&c.p, &c.g);
    id x = storage_named(&c.g, "first.SCALE"), y = storage_named(&c.g, "second.LINEAR");
    id acc = storage_named(&c.g, "sum.FILL"), product = storage_named(&c.g, "third.MUL"),
       total = storage_named(&c.g, "third.SUM");
    id w = tensor_at(&c.g, c.g.params.at[0].tensor)->storage, u = tensor_at(&c.g, c.g.params.at[1].tensor)->storage;
    const struct { id moved; uint64_t to; const char *word; } violations[] = {
        {x, offset[y], "owns"},                              /* both alive at the product */
        {x, offset[y] + 256, "owns"},                        /* partial overlap */
        {acc, offset[product], "owns"},                      /* carried through the loop */
        {total, offset[y], "owns"},                          /* y is dead in the second iteration only */
        {x, c.p.placement.arena[SPACE_DEVICE] - 256, "arena"},
        {x, offset[w], "persistent"},
        {w, offset[u], "overlap"},
        {w, offset[w] + 64, "PLAN_ALIGN"},
        {w, offset[x], "persistent"},
    };
    for (size_t i = 0; i < COUNT(violations); i++) {
        kept = offset[violations[i].moved];
        offset[violations[i].moved] = violations[i].to;
        expect_abort(check_placed, &c, violations[i].word);
        offset[violations[i].moved] = kept;
    }
    /* A workspace that overlaps an operand of its own node. */
    for (uint32_t k = 0; k < c.g.order[PROGRAM_STEP].nodes.n; k++) {
        id n = c.g.order[PROGRAM_STEP].nodes.at[k];
        struct binding *b = &c.p.placement.binding[n];
        if (node_at(&c.g, n)->op != OP_LINEAR) continue;
        assert_true(b->work_bytes > 0);
        kept = b->work_offset;
        b->work_offset = offset[x];
        expect_abort(check_placed, &c, "owns");
        b->work_offset = kept;
    }
    plan_check(&c.p, &c.g);
    plan_free(&c.p);
    graph_free(&c.g);
}

/* Without loops lifetimes are exact, so the checker must find any two storages that are alive at
 * the same time and share a byte. */
TEST(test_checker_at_random)
{
    enum { TRIALS = 80 };
    struct language l;
    struct placed c;
    struct settings s = BASE;
    open_language(&l, 8);
    s.micro_batch = s.accumulation = 1;
    place(&c.p, &c.g, &l, &s, DEVICE_CPU);
    const struct life *life = c.p.placement.life[PROGRAM_STEP];
    uint64_t key = random_key(seed, "crimes"), draw = 0;
    for (int found = 0; found < TRIALS; draw++) {
        id a = (id)(random_bits(key, 2 * draw) % c.g.storages.n),
           b = (id)(random_bits(key, 2 * draw + 1) % c.g.storages.n);
        if (a == b || !life[a].used || !life[b].used || life[a].start > life[b].end || life[b].start > life[a].end)
            continue;
        if (storage_is_persistent(&c.g.storages.at[a]) || storage_is_persistent(&c.g.storages.at[b])) continue;
        uint64_t kept = c.p.placement.offset[a];
        c.p.placement.offset[a] = c.p.placement.offset[b];
        expect_abort(check_placed, &c, "plan/check.c");
        c.p.placement.offset[a] = kept;
        found++;
    }
    plan_free(&c.p);
    graph_free(&c.g);
    model_close(&l.model);
}

/* --- the verifier ---------------------------------------------------------------------------- */

static void verify(void *graph) { graph_verify(graph, "crime"); }

/* w -> a -> b (loop: c, acc' ) -> d; the tests below use the positions. */
static void build_sample_graph(struct graph *g)
{
    graph_init(g);
    id w = graph_param(g, "w", DT_F32, DIM(4, 4), (struct init){0});
    id a = op_scale(g, w, 2);                            /* 0 */
    id b = op_linear(g, a, w, 0);                        /* 1 */
    id acc = op_fill(g, DT_F32, 0, NULL, 0);             /* 2 */
    g->at.loop = graph_loop(g, "rows", 2);
    id c = op_sum(g, b);                                 /* 3 */
    id sum = op_accumulate(g, c, acc);                   /* 4 */
    g->at.loop = 0;
    id d = op_add(g, op_sum(g, a), sum);                 /* 5, 6 */
    graph_output(g, "out", d);
}

static struct node *at(struct graph *g, uint32_t k) { return node_at(g, g->order[PROGRAM_STEP].nodes.at[k]); }

static void swap(struct graph *g, uint32_t a, uint32_t b)
{
    id *order = g->order[PROGRAM_STEP].nodes.at, kept = order[a];
    order[a] = order[b];
    order[b] = kept;
}

static void read_before_write(struct graph *g) { swap(g, 0, 1); }
static void stale_read(struct graph *g) { at(g, 6)->in[1] = at(g, 2)->out[0]; }
static void loop_not_contiguous(struct graph *g) { swap(g, 4, 5); }
static void wrong_shape(struct graph *g) { tensor_at(g, at(g, 1)->out[0])->dim[0] = 3; }
static void wrong_dtype(struct graph *g) { tensor_at(g, at(g, 5)->out[0])->dtype = DT_F64; }
static void outside_storage(struct graph *g) { storage_of(g, at(g, 1)->out[0])->bytes -= 4; }
static void outside_in_last_iteration(struct graph *g)
{
    struct tensor *x = tensor_at(g, at(g, 1)->out[0]); /* the advance of three iterations in a storage of one */
    x->loop = at(g, 3)->loop;
    x->advance = 64;
}
static void moves_outside_loop(struct graph *g)
{
    struct tensor *x = tensor_at(g, at(g, 0)->out[0]);
    storage_of(g, at(g, 0)->out[0])->bytes *= 2;
    x->loop = at(g, 3)->loop;
    x->advance = 64;
}
static void alias_broken(struct graph *g)
{
    tensor_at(g, at(g, 4)->out[0])->storage = graph_storage(g, "elsewhere", KIND_ACT, SPACE_DEVICE, 4);
}
static void twice_in_order(struct graph *g) { g->order[PROGRAM_STEP].nodes.at[5] = g->order[PROGRAM_STEP].nodes.at[0]; }
static void wrong_program(struct graph *g) { at(g, 0)->program = PROGRAM_EVAL; }
static void missing_input(struct graph *g) { at(g, 1)->in[0] = 0; }
static void unknown_tensor(struct graph *g) { at(g, 1)->in[0] = 1000; }

TEST(test_verifier)
{
    static const struct { void (*commit)(struct graph *); const char *word; } violations[] = {
        {read_before_write, "written"}, {stale_read, "stale"},
        {loop_not_contiguous, "closed"},         {wrong_shape, "dim"},
        {wrong_dtype, "dtype"},               {outside_storage, "bytes"},
        {outside_in_last_iteration, "bytes"}, {moves_outside_loop, "loop_inside"},
        {alias_broken, "storage"},           {twice_in_order, "twice"},
        {wrong_program, "program"},    {missing_input, "in[i]"},
        {unknown_tensor, "tensors.n"},
    };
    struct graph g;
    build_sample_graph(&g);
    graph_verify(&g, "test");
    graph_free(&g);
    for (size_t i = 0; i < COUNT(violations); i++) {
        build_sample_graph(&g);
        violations[i].commit(&g);
        expect_abort(verify, &g, violations[i].word);
        graph_free(&g);
    }
}

/* The bytes are overwritten between the creation of a view and its read. */
TEST(test_stale_view)
{
    struct graph g;
    graph_init(&g);
    id x = op_fill(&g, DT_F32, DIM(4), 1), acc = op_fill(&g, DT_F32, DIM(4), 0);
    id view = op_reshape(&g, acc, DIM(2, 2)), half = op_slice(&g, acc, 0, 2, 2);
    id sum = op_accumulate(&g, x, acc), later = op_reshape(&g, sum, DIM(2, 2));
    op_add(&g, later, later);
    graph_verify(&g, "test");
    uint32_t n = g.order[PROGRAM_STEP].nodes.n;
    op_add(&g, later, view);
    expect_abort(verify, &g, "stale");
    g.order[PROGRAM_STEP].nodes.n = n;
    op_scale(&g, half, 2);
    expect_abort(verify, &g, "stale");
    graph_free(&g);
}

/* --- wait lists ------------------------------------------------------------------------------ */

struct span {
    const char *from, *to;
    bool write;
};

/* The byte ranges that an entry accesses, from its launch by itself; dense operands. */
static int spans_of(const struct entry *e, struct span *s)
{
    int n = 0;
    for (int i = 0; i < e->launch.nin + e->launch.nout; i++) {
        const struct operand *x = i < e->launch.nin ? &e->launch.in[i] : &e->launch.out[i - e->launch.nin];
        if (x->data)
            s[n++] = (struct span){x->data, (char *)x->data + operand_elements(x) * dtype_size(x->dtype),
                                   i >= e->launch.nin};
    }
    if (e->launch.work_bytes)
        s[n++] = (struct span){e->launch.work, (char *)e->launch.work + e->launch.work_bytes, true};
    return n;
}

static bool in_conflict(const struct entry *a, const struct entry *b)
{
    struct span x[MAX_IN + MAX_OUT + 1], y[MAX_IN + MAX_OUT + 1];
    int n = spans_of(a, x), m = spans_of(b, y);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < m; j++)
            if ((x[i].write || y[j].write) && x[i].from < y[j].to && y[j].from < x[i].to) return true;
    return false;
}

/* before[i * n + j]: entry i is certainly complete when j starts: same lane, waits, a loop boundary
 * between them (it joins the lanes), and the transitive closure of these. */
static bool *happens_before(const struct tape *t, enum program p)
{
    uint32_t n = t->program[p].n;
    bool *before = mem_alloc((size_t)n * n + 1);
    for (uint32_t j = 0; j < n; j++) {
        const struct entry *e = &t->program[p].at[j];
        for (uint32_t i = j; i-- > 0;) {
            const struct entry *f = &t->program[p].at[i];
            bool direct = e->kind == ENTRY_END || f->kind == ENTRY_END ||
                          (f->kind == ENTRY_LAUNCH && e->kind == ENTRY_LAUNCH && f->lane == e->lane);
            for (int w = 0; w < e->nwait; w++) direct |= e->wait[w] == i;
            if (!direct) continue;
            before[(size_t)i * n + j] = true;
            for (uint32_t k = 0; k < i; k++) before[(size_t)k * n + j] |= before[(size_t)k * n + i];
        }
    }
    return before;
}

/* Every conflicting pair is ordered. Returns the number of such pairs in different lanes. */
static uint32_t check_waits(const struct tape *t, enum program p)
{
    uint32_t n = t->program[p].n, across = 0;
    bool *before = happens_before(t, p);
    for (uint32_t j = 0; j < n; j++) {
        const struct entry *e = &t->program[p].at[j];
        for (int w = 0; w < e->nwait; w++) assert_true(e->wait[w] < j);
        for (uint32_t i = 0; i < j; i++) {
            const struct entry *f = &t->program[p].at[i];
            if (e->kind != ENTRY_LAUNCH || f->kind != ENTRY_LAUNCH || !in_conflict(f, e)) continue;
            across += e->lane != f->lane;
            if (!before[(size_t)i * n + j])
                fail_msg("program %s: entry %u (%s) touches the bytes of entry %u (%s) and does not wait for it",
                         program_name(p), j, e->kernel->name, i, f->kernel->name);
        }
    }
    mem_free(before);
    return across;
}

/* A hand-written offload pattern: copies that read what compute wrote, compute that reads what
 * copies wrote, and bytes that pass from one lane's storage to the other's. */
TEST(test_waits_by_hand)
{
    struct rig r = {0};
    struct graph *g = &r.graph;
    graph_init(g);
    id w = graph_param(g, "w", DT_F32, DIM(100, 100), (struct init){0});
    id acc = op_fill(g, DT_F32, DIM(100, 100), 0);
    for (int i = 0; i < 4; i++) {
        id y = op_scale(g, w, i);
        id offloaded = op_copy(g, y, SPACE_HOST);    /* waits for the scale */
        id back = op_copy(g, offloaded, SPACE_DEVICE);
        acc = op_accumulate(g, back, acc);      /* waits for the copy; then back's bytes are free */
        id reused = op_scale(g, acc, 2);        /* may reuse them */
        id there = op_copy(g, reused, SPACE_HOST);
        g->at.loop = graph_loop(g, "again", 2);
        id inside = op_copy(g, there, SPACE_DEVICE);
        acc = op_accumulate(g, inside, acc);
        g->at.loop = 0;
    }
    graph_output(g, "out", op_sum(g, acc));
    graph_verify(g, "test");
    rig_open(&r, DEVICE_CPU);
    check_boxes(&r.plan, g);
    assert_true(check_waits(&r.tape, PROGRAM_STEP) > 20);

    /* The check is sensitive: without some wait, some pair is not ordered. */
    uint32_t needed = 0, waits = 0;
    for (uint32_t k = 0; k < r.tape.program[PROGRAM_STEP].n; k++) {
        struct entry *e = &r.tape.program[PROGRAM_STEP].at[k];
        if (!e->nwait) continue;
        uint8_t kept = e->nwait;
        waits++;
        e->nwait = 0;
        bool *before = happens_before(&r.tape, PROGRAM_STEP), ordered = true;
        for (uint32_t i = 0; i < k; i++)
            if (e->kind == ENTRY_LAUNCH && r.tape.program[PROGRAM_STEP].at[i].kind == ENTRY_LAUNCH &&
                in_conflict(&r.tape.program[PROGRAM_STEP].at[i], e))
                ordered &= before[(size_t)i * r.tape.program[PROGRAM_STEP].n + k];
        needed += !ordered;
        mem_free(before);
        e->nwait = kept;
    }
    assert_true(waits >= 12 && needed >= waits / 2);
    rig_run(&r);
    rig_close(&r);
}

/* `step`: the step program contains copies, too. */
static void check_waits_offload(unsigned offload, enum device_kind kind, bool step)
{
    struct language l;
    open_language(&l, 16);
    struct settings s = BASE;
    struct graph g;
    struct plan p;
    struct tape t;
    char *arena[SPACE_COUNT];
    s.offload = offload;
    s.head_chunks = 2;
    s.device = device_traits(kind);
    place(&p, &g, &l, &s, DEVICE_CPU);
    /* distinct addresses that nothing dereferences */
    for (int i = 0; i < SPACE_COUNT; i++) arena[i] = (char *)((uint64_t)(i + 1) << 40);
    tape_build(&t, &g, &p.placement, arena, 2, NULL);
    assert_true(check_waits(&t, PROGRAM_UPDATE) > 100);
    const uint32_t across = check_waits(&t, PROGRAM_STEP);
    assert_true(step ? across >= 50 : across == 0);
    check_waits(&t, PROGRAM_EVAL);
    tape_free(&t);
    plan_free(&p);
    graph_free(&g);
    model_close(&l.model);
}

TEST(test_waits_offload)
{
    check_waits_offload(OFFLOAD_STATE, DEVICE_CPU, false);
    check_waits_offload(OFFLOAD_ALL & ~OFFLOAD_UPDATE, DEVICE_CPU, true);
    check_waits_offload(OFFLOAD_STATE | OFFLOAD_UPDATE, DEVICE_CUDA, false);
    check_waits_offload(OFFLOAD_ALL, DEVICE_CUDA, true);
}

/* --- whole steps ----------------------------------------------------------------------------- */

/* Runs `steps` steps, each but the last with its update; returns all master weights, or all
 * gradients, concatenated. */
static double *train(struct language *l, const struct settings *s, int steps, bool gradients, uint64_t *count)
{
    struct rig r = {0};
    struct error e;
    double *all = NULL;
    must(plan_compile(&r.graph, &(struct source){l, build_language}, s, &e), &e);
    rig_open(&r, DEVICE_CPU);
    for (int step = 0; step < steps; step++) {
        must(r.device.ops->run(&r.device, &r.tape, PROGRAM_STEP, &e), &e);
        if (step + 1 < steps) must(r.device.ops->run(&r.device, &r.tape, PROGRAM_UPDATE, &e), &e);
    }
    *count = 0;
    for (uint32_t i = 0; i < r.graph.params.n; i++) {
        if (!r.graph.params.at[i].grad) continue;
        id t = gradients ? r.graph.params.at[i].grad : r.graph.params.at[i].master;
        uint64_t n = (uint64_t)tensor_elements(tensor_at(&r.graph, t));
        double *x = rig_read(&r, t);
        all = mem_resize(all, (*count + n) * sizeof *all);
        memcpy(all + *count, x, n * sizeof *all);
        *count += n;
        mem_free(x);
    }
    rig_close(&r);
    return all;
}

/* A memory technique never changes the result. With recompute or offload the weights are bit-equal
 * after two updates. With another split into micro-batches or head chunks the gradient agrees
 * within 1e-6 (not the weights: Adam turns the rounding of a tiny gradient into a whole step). */
static void check_same(struct language *l, int technique)
{
    bool exact = technique < 4;
    struct settings plain = BASE, s;
    plain.micro_batch = 4;
    plain.accumulation = 1;
    s = plain;
    s.recompute.kind = technique & 1 ? RECOMPUTE_ALL : RECOMPUTE_NONE;
    s.offload = technique & 2 ? OFFLOAD_ALL : 0;
    s.head_chunks = exact ? 1 : 5;
    s.micro_batch = exact ? 4 : 2;
    s.accumulation = 4 / s.micro_batch;
    uint64_t n, m;
    double *want = train(l, &plain, exact ? 3 : 1, !exact, &n), *got = train(l, &s, exact ? 3 : 1, !exact, &m),
           error = 0, size = 0;
    assert_int_equal(n, m);
    for (uint64_t k = 0; k < n; k++) error += pow(got[k] - want[k], 2), size += want[k] * want[k];
    if (exact ? error != 0 : !(sqrt(error) <= 1e-6 * sqrt(size)))
        fail_msg("technique %d, seed %llu: off by %.3g", technique, (unsigned long long)seed, sqrt(error / size));
    mem_free(got);
    mem_free(want);
}

TEST(test_same_result)
{
    struct language l;
    open_language(&l, 9);
    for (int technique = 1; technique < 8; technique++) check_same(&l, technique);
    model_close(&l.model);
}

/* --- the search ------------------------------------------------------------------------------ */

struct found {
    int rc;
    uint64_t arena, smallest;
    double seconds;
};

static struct found search(struct language *l, uint64_t budget)
{
    struct source source = {l, build_language};
    struct freedom f = {.effective_batch = 4, .free[TECHNIQUE_micro_batch] = true, .free[TECHNIQUE_recompute] = true,
                        .free[TECHNIQUE_offload] = true, .free[TECHNIQUE_head_chunks] = true, .budget = budget};
    struct profile profile;
    struct plan p;
    struct graph g;
    struct error e = {0};
    profile_default(&profile, DEVICE_CPU, 2);
    int rc = plan_search(&p, &g, &source, &BASE, &f, &profile, &e);
    if (rc != PL_OK && rc != PL_NOFIT) fail_msg("%s", e.text);
    if (rc == PL_NOFIT && !strstr(e.text, "does not fit")) fail_msg("%s", e.text);
    struct found found = {rc, plan_arena(&p), p.smallest, p.seconds};
    plan_free(&p);
    graph_free(&g);
    return found;
}

TEST(test_search)
{
    enum { BUDGETS = 50 };
    struct language l;
    open_language(&l, 48);
    struct found free = search(&l, 0), least = search(&l, 1);
    assert_int_equal(free.rc, PL_OK);
    assert_int_equal(least.rc, PL_NOFIT);
    assert_int_equal(least.arena, least.smallest); /* the reported plan is the smallest one */
    assert_int_equal(free.smallest, least.smallest);
    uint64_t smallest = least.smallest;

    struct found exact = search(&l, smallest), under = search(&l, smallest - 1);
    assert_int_equal(exact.rc, PL_OK);
    assert_int_equal(exact.arena, smallest);
    assert_int_equal(under.rc, PL_NOFIT);

    double seconds = INFINITY;
    uint64_t from = smallest - smallest / 50, to = free.arena + free.arena / 50;
    int fitting = 0, distinct = 0;
    for (int i = 0; i < BUDGETS; i++) {
        uint64_t budget = from + (to - from) * (uint64_t)i / (BUDGETS - 1);
        struct found x = search(&l, budget);
        assert_int_equal(x.rc, budget < smallest ? PL_NOFIT : PL_OK);
        assert_int_equal(x.smallest, smallest); /* the candidates do not depend on the budget */
        if (x.rc) continue;
        fitting++;
        assert_true(x.arena <= budget);
        if (!(x.seconds <= seconds))
            fail_msg("%llu bytes: %.9g s, less memory took %.9g s", (unsigned long long)budget, x.seconds, seconds);
        distinct += x.seconds < seconds;
        seconds = x.seconds;
    }
    assert_true(fitting > BUDGETS / 2 && distinct > 2); /* the budgets gave different plans */
    assert_true(seconds == free.seconds);
    model_close(&l.model);
}

MAIN(NULL, NULL)
