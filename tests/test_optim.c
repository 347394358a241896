/*
 * test_optim.c: compares the optimizer updates with bitsandbytes' 8-bit AdamW, torch's SGD and
 * transformers' Adafactor (tests/golden/optim.safetensors, written by make_optim.py). Also the maps
 * of 8-bit codes, the bytes of optimizer state in a plan, and the effect of the fused step on a
 * program.
 */
#include "base/state_codes.h"
#include "graph/ops.h"
#include "graph/sizes.h"
#include "io/safetensors.h"
#include "run/kernel.h"
#include "engine/run.h"

#include "harness.h"
#include "guarded.h"

/* --- the file ------------------------------------------------------------------------------ */

static struct st_file file;

static const struct st_entry *entry(const char *name, const char *key)
{
    char full[128];
    snprintf(full, sizeof full, "%s.%s", name, key);
    const struct st_entry *t = st_find(&file, full);
    if (!t) fail_msg("optim.safetensors has no %s", full);
    return t;
}

/* A tensor's bytes; the caller frees. */
static void *data_of(const char *name, const char *key)
{
    struct error e = {0};
    const struct st_entry *t = entry(name, key);
    void *data = mem_alloc(t->bytes);
    if (st_read(&file, t, 0, t->bytes, data, &e)) fail_msg("%s", e.text);
    return data;
}

/* --- maps ---------------------------------------------------------------------------------- */

static int code_of(const struct codes *c, float x) { return c->zero ? code_signed(c, x) : code_magnitude(c, x); }

static void check_map(const struct codes *c, const char *key)
{
    float *want = data_of("map", key);
    for (int k = 0; k < 256; k++) {
        if (k && !(c->value[k] > c->value[k - 1]))
            fail_msg("%s: value %d is %.9g, the one before %.9g", key, k, c->value[k], c->value[k - 1]);
        if (!(fabsf(c->value[k] - want[k]) <= 4e-7f * fabsf(want[k])))
            fail_msg("%s: value %d is %.9g, bitsandbytes has %.9g", key, k, c->value[k], want[k]);
        if (code_of(c, c->value[k]) != k)
            fail_msg("%s: the code of value %d, %.9g, is %d", key, k, c->value[k], code_of(c, c->value[k]));
    }
    mem_free(want);
}

/* 256 ascending values, those of bitsandbytes, and each has its own code. */
TEST(test_maps)
{
    check_map(codes_signed(), "signed");
    check_map(codes_unsigned(), "unsigned");
    assert_int_equal(codes_signed()->zero, 127);
    assert_true(codes_signed()->value[255] == 1 && codes_unsigned()->value[255] == 1 &&
                codes_unsigned()->value[0] == 0);
}

/* The bucket table gives the result of a search among all values; signs are kept. */
TEST(test_nearest)
{
    for (int side = 0; side < 2; side++) {
        const struct codes *c = side ? codes_signed() : codes_unsigned();
        for (int i = 0; i < 400000; i++) {
            float x = (float)pow(10, -8.0 * (i % 200000) / 200000) * (side && i >= 200000 ? -1 : 1);
            int k = code_of(c, x), best = 0;
            for (int j = 0; j < 256 && i % 64 == 0; j++)
                if (fabsf(c->value[j] - x) < fabsf(c->value[best] - x)) best = j;
            if (x < 0 && !(c->value[k] < 0)) fail_msg("%.9g became %.9g", x, c->value[k]);
            if (i % 64 == 0 && best != k && !(x < 0 && best == c->zero) &&
                fabsf(c->value[k] - x) > fabsf(c->value[best] - x) * 1.000001f)
                fail_msg("%.9g is %.9g by its code, %.9g is nearer", x, c->value[k], c->value[best]);
        }
    }
    assert_int_equal(code_signed(codes_signed(), NAN) & ~255, 0);
    assert_int_equal(code_magnitude(codes_unsigned(), INFINITY) & ~255, 0);
}

/* --- updates ------------------------------------------------------------------------------ */

static struct operand operand(void *data, enum dtype t, int rank, const int64_t *dim)
{
    struct operand x = {.data = data, .dtype = t, .rank = rank};
    int64_t stride = 1;
    for (int i = rank - 1; i >= 0; i--) {
        x.dim[i] = dim[i];
        x.stride[i] = stride;
        stride *= dim[i];
    }
    return x;
}

/* One guarded launch of an op's kernel on `in`; outputs are the inputs that they update. */
static void launch_one(const struct kernel *k, enum op op, const union attr *attr, const struct operand *in, int nin,
                       int threads)
{
    struct launch l = {.attr = attr, .nin = nin, .nout = op_table[op].outs, .threads = threads,
                       .work_bytes = (1 << 16) * sizeof(double)};
    int alias[MAX_OUT] = {0};
    for (int i = 0; i < nin; i++) l.in[i] = in[i];
    for (int o = 0; o < l.nout; o++) {
        alias[o] = op_table[op].alias[o] <= nin ? op_table[op].alias[o] - 1 : -1;
        if (alias[o] >= 0) l.out[o] = in[alias[o]];
        if (alias[o] >= 0 && !in[alias[o]].data) alias[o] = -1;
    }
    guarded_run(k, &l, alias);
}

static void compare_weights(const char *what, const float *got, const float *want, int64_t n, double allowed)
{
    for (int64_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - want[i]) <= allowed))
            fail_msg("%s[%lld] is %.9g, expected %.9g", what, (long long)i, got[i], want[i]);
}

static void compare_codes(const char *key, const uint8_t *got, int64_t n)
{
    uint8_t *want = data_of("adamw8", key);
    int64_t off = 0;
    for (int64_t i = 0; i < n; i++) {
        if (abs(got[i] - want[i]) > 1)
            fail_msg("%s[%lld] is %d, bitsandbytes has %d", key, (long long)i, got[i], want[i]);
        off += got[i] != want[i];
    }
    /* Those are negative values that would become 0, and ties. */
    if (off * 50 > n) fail_msg("%s: %lld of %lld codes are one off", key, (long long)off, (long long)n);
    mem_free(want);
}

static void compare_8bit(int step, float *p, uint8_t *m, uint8_t *v, const float *absmax, int64_t n)
{
    char key[32];
    for (int which = 0; which < 2; which++) {
        snprintf(key, sizeof key, "%s_absmax%d", which ? "v" : "m", step);
        float *want = data_of("adamw8", key);
        for (int64_t b = 0; b < state_blocks(n); b++)
            if (!(fabsf(absmax[2 * b + which] - want[b]) <= 1e-2f * want[b]))
                fail_msg("%s[%lld] is %.9g, expected %.9g", key, (long long)b, absmax[2 * b + which], want[b]);
        mem_free(want);
    }
    snprintf(key, sizeof key, "m%d", step);
    compare_codes(key, m, n);
    snprintf(key, sizeof key, "v%d", step);
    compare_codes(key, v, n);
    snprintf(key, sizeof key, "p%d", step);
    float *want = data_of("adamw8", key);
    /* Codes that are one off, a percent of a moment, affect the next step: a fraction of 0.01. */
    compare_weights(key, p, want, n, step == 1 ? 2e-6 : 1e-3);
    mem_free(want);
}

static void check_adamw8(const struct kernel *k, int threads)
{
    const struct st_entry *t = entry("adamw8", "p");
    const int64_t n = t->elements, blocks[2] = {state_blocks(n), 2}, steps = entry("adamw8", "g")->dims[0];
    float *p = data_of("adamw8", "p"), *g = data_of("adamw8", "g"),
          *absmax = mem_alloc((size_t)blocks[0] * 2 * sizeof *absmax);
    uint8_t *m = mem_alloc((size_t)n), *v = mem_alloc((size_t)n);
    struct step_block step = {.learning_rate = 0.01f};
    const union attr attr = {.adamw = {0.9, 0.95, 1e-8, 0.1, 1, 0}};
    for (int s = 0; s < steps; s++) {
        step.adam_t = s + 1;
        const struct operand in[] = {operand(p, DT_F32, t->rank, t->dims),
                                     operand(g + s * n, DT_F32, t->rank, t->dims),
                                     operand(m, DT_U8, t->rank, t->dims),
                                     operand(v, DT_U8, t->rank, t->dims),
                                     operand(absmax, DT_F32, 2, blocks),
                                     operand(&step, DT_U8, 1, (int64_t[]){sizeof step})};
        launch_one(k, OP_ADAMW_8BIT, &attr, in, COUNT(in), threads);
        if (s == 0 || s == steps - 1) compare_8bit(s + 1, p, m, v, absmax, n);
    }
    mem_free(p);
    mem_free(g);
    mem_free(m);
    mem_free(v);
    mem_free(absmax);
}

TEST(test_adamw8)
{
    check_adamw8(cpu_kernels[OP_ADAMW_8BIT], 1);
    check_adamw8(cpu_kernels[OP_ADAMW_8BIT], 3);
    check_adamw8(ref_kernels[OP_ADAMW_8BIT], 1);
}

/* Ten steps of SGD (momentum >= 0) or Adafactor from zero state. */
static void check_ten(const char *name, double momentum, const struct kernel *k)
{
    const struct st_entry *t = entry(name, "p");
    const int64_t n = t->elements;
    const bool sgd = momentum >= 0, factored = !sgd && t->rank > 1;
    float *p = data_of(name, "p"), *g = data_of(name, "g"), *end = data_of(name, "end");
    float *a = mem_alloc((size_t)n * sizeof *a), *b = mem_alloc((size_t)n * sizeof *b);
    struct step_block step = {.learning_rate = sgd ? 0.05f : 0.01f};
    const union attr attr = {.adamw = {sgd ? momentum : 0, 0, 0, 0.1, 1, 0}};
    int64_t columns[MAX_RANK];
    memcpy(columns, t->dims, sizeof columns);
    if (t->rank > 1) columns[t->rank - 2] = t->dims[t->rank - 1];
    for (int s = 0; s < 10; s++) {
        step.adam_t = s + 1;
        const struct operand block = operand(&step, DT_U8, 1, (int64_t[]){sizeof step}), none = {0};
        const struct operand weight = operand(p, DT_F32, t->rank, t->dims),
                             gradient = operand(g + s * n, DT_F32, t->rank, t->dims);
        if (sgd) {
            const struct operand in[] = {weight, gradient, block, none, none, operand(a, DT_F32, t->rank, t->dims)};
            launch_one(k, OP_SGD, &attr, in, momentum ? 6 : 3, 2);
        } else {
            const struct operand in[] = {weight, gradient, operand(a, DT_F32, t->rank - factored, t->dims), block,
                                         none,   none,     operand(b, DT_F32, t->rank - 1, columns)};
            launch_one(k, OP_ADAFACTOR, &attr, in, factored ? 7 : 4, 2);
        }
    }
    compare_weights(name, p, end, n, 1e-5);
    mem_free(p);
    mem_free(g);
    mem_free(end);
    mem_free(a);
    mem_free(b);
}

TEST(test_sgd)
{
    for (int ref = 0; ref < 2; ref++) {
        const struct kernel *k = (ref ? ref_kernels : cpu_kernels)[OP_SGD];
        check_ten("sgd_momentum", 0.9, k);
        check_ten("sgd_plain", 0, k);
    }
}

TEST(test_adafactor)
{
    for (int ref = 0; ref < 2; ref++) {
        const struct kernel *k = (ref ? ref_kernels : cpu_kernels)[OP_ADAFACTOR];
        check_ten("adafactor_matrix", -1, k);
        check_ten("adafactor_kernel", -1, k);
        check_ten("adafactor_vector", -1, k);
    }
}

/* --- in a plan ------------------------------------------------------------------------------ */

static void make_plan(struct run *r, struct config *c, const char *const *sets)
{
    static const char *const base[] = {"data.sequence=8",       "train.effective_batch=1", "memory.micro_batch=1",
                                       "memory.recompute=none", "memory.offload=none",     "memory.head_chunks=1",
                                       "memory.precision=f32"};
    struct error e = {0};
    config_init(c);
    int rc = PL_OK;
    for (size_t i = 0; i < COUNT(base) && !rc; i++) rc = config_set(c, base[i], &e);
    for (; *sets && !rc; sets++) rc = config_set(c, *sets, &e);
    if (!rc) rc = config_check(c, CONFIG_NEEDS_MODEL, &e);
    if (!rc) rc = run_plan(r, c, &(struct run_options){.train = true}, &e);
    if (rc) fail_msg("%s", e.text);
}

/* Bytes of the optimizer state; for 8-bit state also its bytes (`*narrow`) and elements
 * (`*elements`). */
static uint64_t state_of(const struct graph *g, uint64_t *narrow, uint64_t *elements, bool *table)
{
    uint64_t bytes = 0;
    for (enum program p = PROGRAM_STEP; p <= PROGRAM_UPDATE; p++)
        for (uint32_t k = 0; k < g->order[p].nodes.n; k++) {
            const struct node *n = node_at(g, g->order[p].nodes.at[k]);
            for (int i = 0; i < n->nin; i++) {
                if (!n->in[i] || storage_of(g, n->in[i])->kind != KIND_STATE) continue;
                bytes += storage_of(g, n->in[i])->bytes;
                if (n->op == OP_ADAMW_8BIT) *narrow += storage_of(g, n->in[i])->bytes;
            }
            if (n->op != OP_ADAMW_8BIT) continue;
            *elements += (uint64_t)tensor_elements(tensor_at(g, n->in[0]));
            *table |= strstr(graph_name(g, storage_of(g, n->in[0])->name), "embed") != NULL;
        }
    return bytes;
}

/* 2 bytes per parameter and 8 per block of 256; f32 below 4096 elements and for embeddings. */
TEST(test_state_bytes)
{
    struct run wide, half, narrow;
    struct config c[3];
    uint64_t in_codes = 0, elements = 0;
    bool table = false;
    make_plan(&wide, &c[0], (const char *const[]){"model.preset=llama-tiny", NULL});
    make_plan(&half, &c[1], (const char *const[]){"model.preset=llama-tiny", "memory.optimizer=adamw-bf16", NULL});
    make_plan(&narrow, &c[2], (const char *const[]){"model.preset=llama-tiny", "memory.optimizer=adamw-8bit", NULL});
    uint64_t f32 = state_of(&wide.planned.graph, &in_codes, &elements, &table);
    assert_int_equal(elements, 0);
    assert_int_equal(state_of(&half.planned.graph, &in_codes, &elements, &table) * 2, f32);
    uint64_t all = state_of(&narrow.planned.graph, &in_codes, &elements, &table);
    assert_true(elements > 0 && !table);
    assert_int_equal(in_codes * 256, elements * (2 * 256 + 8)); /* shapes of whole blocks */
    assert_int_equal(all - in_codes, f32 - elements * 8);
    assert_true(plan_arena(&narrow.planned.plan) + (f32 - all) < plan_arena(&wide.planned.plan) + 65536);
    struct run *runs[] = {&wide, &half, &narrow};
    for (int i = 0; i < 3; i++) {
        run_close(runs[i]);
        config_free(&c[i]);
    }
}

/* --- the fused step -------------------------------------------------------------------------- */

/* Whether a node at or after position k of the step, other than `self`, reads or writes the
 * storage. */
static bool used_after(const struct graph *g, id storage, uint32_t k, id self)
{
    for (; k < g->order[PROGRAM_STEP].nodes.n; k++) {
        id at = g->order[PROGRAM_STEP].nodes.at[k];
        const struct node *n = node_at(g, at);
        for (int i = 0; i < n->nin + n->nout && at != self; i++) {
            id t = i < n->nin ? n->in[i] : n->out[i - n->nin];
            if (t && tensor_at(g, t)->storage == storage) return true;
        }
    }
    return false;
}

static void check_fused(const char *preset, const char *optimizer, const char *recompute)
{
    struct run plain, fused;
    struct config c[2];
    const char *sets[] = {preset, optimizer, recompute, "memory.fused_step=off", NULL};
    make_plan(&plain, &c[0], sets);
    sets[3] = "memory.fused_step=on";
    make_plan(&fused, &c[1], sets);
    const struct graph *g = &fused.planned.graph;
    uint32_t updates = 0, trained = 0;
    uint64_t gradients = 0, largest = 0;
    for (uint32_t k = 0; k < g->order[PROGRAM_STEP].nodes.n; k++) {
        id at = g->order[PROGRAM_STEP].nodes.at[k];
        const struct node *n = node_at(g, at);
        if (n->phase != PHASE_UPDATE || !(op_table[n->op].flags & OPF_EFFECT)) continue;
        updates++;
        if (used_after(g, tensor_at(g, n->in[0])->storage, k, at))
            fail_msg("%s: %s is used behind its update", preset, graph_name(g, tensor_at(g, n->in[0])->name));
    }
    for (uint32_t i = 0; i < g->params.n; i++) {
        if (!g->params.at[i].grad) continue;
        uint64_t bytes = tensor_bytes(tensor_at(g, g->params.at[i].grad));
        trained++;
        gradients += bytes;
        if (bytes > largest) largest = bytes;
    }
    assert_int_equal(updates, trained);
    assert_int_equal(g->order[PROGRAM_UPDATE].nodes.n, 0);
    int64_t saved = (int64_t)plan_arena(&plain.planned.plan) - (int64_t)plan_arena(&fused.planned.plan);
    print_message("%s %s %s: %.2f -> %.2f MiB, gradients %.2f MiB, the largest %.2f\n", preset, optimizer, recompute,
                  (double)plan_arena(&plain.planned.plan) / 0x1p20, (double)plan_arena(&fused.planned.plan) / 0x1p20,
                  (double)gradients / 0x1p20, (double)largest / 0x1p20);
    /* Where weights dominate, all but one or two gradients need no memory. */
    if (strstr(preset, "llama") && saved < (int64_t)(gradients / 2))
        fail_msg("%s: %lld bytes saved of %llu", preset, (long long)saved, (unsigned long long)gradients);
    if (saved < -4096) fail_msg("%s: the fused step needs %lld bytes more", preset, (long long)-saved);
    run_close(&plain);
    run_close(&fused);
    config_free(&c[0]);
    config_free(&c[1]);
}

TEST(test_fused)
{
    check_fused("model.preset=llama-tiny", "memory.optimizer=adamw", "memory.recompute=none");
    check_fused("model.preset=llama-tiny", "memory.optimizer=adamw-8bit", "memory.recompute=all");
    check_fused("model.preset=llama-tiny", "memory.optimizer=adafactor", "memory.head_chunks=4");
}

static int begin(void **state)
{
    struct error e = {0};
    if (!st_open("tests/golden/optim.safetensors", &file, &e)) return 0;
    print_error("%s\n", e.text);
    return 1;
}

static int end(void **state)
{
    st_close(&file);
    return 0;
}

MAIN(begin, end)
