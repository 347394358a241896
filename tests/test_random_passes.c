/*
 * test_random_passes.c: random subsets of all passes over random graphs.
 *
 *     seed -> a graph (random_graph.h) and a recipe (precision, optimizer, micro-batches, clipping)
 *          -> plain    no technique, and no rewrite that keeps the bits
 *          -> some     a random subset of techniques and rewrites
 *
 * Both train some steps on the CPU, with NaN in dead bytes, or, with a GPU's graph, `some` with its
 * lanes in a random order that their waits allow. Losses, other outputs, the gradient
 * norm, weights, optimizer state, running statistics and the evaluation's outputs have the same
 * bits. Where `some` has a rewrite that may change the sign of a zero, -0 counts as 0.
 *
 * A second comparison covers everything that changes the order of sums: micro-batches, chunks of
 * the head and of tokens, and the rewrites that passes.h documents so. Losses and gradients agree
 * within NEAR of their size, and SLACK times the change that `plain` itself shows when the weights'
 * last bits change: a random graph may be badly conditioned, and another order of sums changes last
 * bits in every op.
 *
 * Every plan goes through the verifier and the independent checker (plan_compile, plan_place), and
 * computes in device memory only, but for updates on the host.
 *
 *     build/tests/test_random_passes [SEED [COUNT]]     or SEED and COUNT in the environment
 *
 * A failure prints the seed, and the techniques that are needed to reproduce it.
 */
#include "lane_order.h"

#include <signal.h>

enum { STEPS = 2, COUNT_DEFAULT = 400 };
/* NEAR: some hundred f32 terms, one by one where the compiler vectorizes nothing */
static const double NEAR = 4e-6, SLACK = 8;
static uint64_t first_seed;
static int count = COUNT_DEFAULT;

/* --- settings --------------------------------------------------------------------------------- */

enum {
    ZERO_SIGN = REWRITE_join | REWRITE_first_sum,
    ORDER = REWRITE_split_linear | REWRITE_linear_add | REWRITE_labelled_first | REWRITE_bias_grad | REWRITE_dense
};

static const struct {
    enum rewrite flag;
    const char *name;
} rewrites[] = {
#define BASE_PASS(...)
#define TECHNIQUE_PASS(...)
#define AGAIN(...)
#define REWRITE_PASS(name, ...) {REWRITE_##name, #name},
#include "passes/pipeline.def"
};

/* One side of a comparison. */
struct side {
    struct settings s;
    struct module_rule rule;
    float clip_norm;
    bool any_order;           /* of the lanes */
};

static const char *const patterns[] = {"layers.1", "layers.*", "tower", "layers.0.attn", "layers.*.mlp"};

static void print_side(const struct side *x, char *out, size_t room)
{
    char a[SETTING_ROOM], b[SETTING_ROOM], c[SETTING_ROOM], rule[2 * SETTING_ROOM] = "";
    const struct settings *s = &x->s;
    if (s->n_modules)
        snprintf(rule, sizeof rule, ", %s recompute %s", x->rule.match[0], recompute_text(&x->rule.recompute, b));
    int n = snprintf(out, room, "%d x %d, %s, %s, clip %g, recompute %s%s", s->micro_batch, s->accumulation,
                     technique_print(TECHNIQUE_precision, s, b), technique_print(TECHNIQUE_optimizer, s, c),
                     (double)x->clip_norm, recompute_text(&s->recompute, a), rule);
    n += snprintf(out + n, room - (size_t)n,
                  ", offload %s, encode %d, %d and %d chunks, of tokens %d, of heads %d%s%s%s%s%s, rewrites:",
                  offload_text(s, a), s->encode, s->head_chunks, s->mask_chunks, s->token_chunks, s->attention_chunks,
                  s->fused_step ? ", fused step" : "",
                  s->pipelined ? ", pipelined" : "", s->loader_bytes ? ", loader" : "",
                  s->inputs_ahead ? ", inputs ahead" : "",
                  x->any_order                ? ", GPU's graph in any order"
                  : s->device.separate_memory ? ", GPU's graph"
                                              : "");
    for (size_t i = 0; i < COUNT(rewrites); i++)
        if (!(s->without & rewrites[i].flag)) n += snprintf(out + n, room - (size_t)n, " %s", rewrites[i].name);
}

static struct recompute random_recompute(struct dice *d)
{
    struct recompute r = {.kind = (enum recompute_kind)throw_dice(d, RECOMPUTE_KINDS), .n = 1 + (int)throw_dice(d, 3),
                          .ratio = 0.25 * (double)throw_dice(d, 5)};
    if (r.kind == RECOMPUTE_NONE || r.kind == RECOMPUTE_SELECTIVE) return r;
    r.selective = chance(d, 40);
    r.halves = r.kind != RECOMPUTE_SEGMENTS && chance(d, 40);
    return r;
}

/* The settings of both sides: the recipe only, and a random subset of the rewrites that change
 * sums. */
static struct side random_recipe(struct dice *d)
{
    static const enum precision precisions[] = {PRECISION_F32,  PRECISION_F32,       PRECISION_F32,
                                                 PRECISION_BF16, PRECISION_BF16_PURE, PRECISION_F16};
    struct side x = {.s = {.head_chunks = 1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.01,
                           .momentum = 0.9, .train = true, .sparse_labels = true}};
    struct settings *s = &x.s;
    const int64_t p = throw_dice(d, COUNT(precisions));
    s->micro_batch = 1 + (int)throw_dice(d, 3);
    s->accumulation = chance(d, 50) ? 1 : 2 + (int)throw_dice(d, 2);
    s->precision = precisions[p];
    s->optimizer = chance(d, 60) ? OPT_ADAMW : chance(d, 50) ? OPT_SGD : OPT_ADAFACTOR;
    if (s->optimizer == OPT_ADAMW) s->state = (enum state_dtype)throw_dice(d, STATE_DTYPES);
    if (chance(d, 20)) s->layer_decay = 0.8;
    if (chance(d, 20)) s->momentum = 0;
    if (chance(d, 20)) s->head_chunks = 2 + (int)throw_dice(d, 3);
    s->mask_chunks = s->head_chunks % 3 ? s->head_chunks - 1 : MASK_CHUNKS_SAME;
    s->device = device_traits(chance(d, 40) ? DEVICE_CUDA : DEVICE_CPU);
    x.clip_norm = chance(d, 40) ? 0.5f : 0;
    s->without = REWRITE_ALL & ~(unsigned)ORDER;
    for (size_t i = 0; i < COUNT(rewrites); i++)
        if (rewrites[i].flag & ORDER && chance(d, 40)) s->without |= rewrites[i].flag;
    if (s->precision != PRECISION_F32 && chance(d, 60)) s->without &= ~(unsigned)REWRITE_residual;
    return x;
}

/* A random subset of the techniques and rewrites that keep the bits. */
static struct side random_subset(struct dice *d, const struct side *plain)
{
    struct side x = *plain;
    struct settings *s = &x.s;
    const unsigned fixed = ORDER | (s->precision != PRECISION_F32 ? REWRITE_residual : 0u);
    for (size_t i = 0; i < COUNT(rewrites); i++)
        if (!(rewrites[i].flag & fixed) && chance(d, 60)) s->without &= ~(unsigned)rewrites[i].flag;
    if (chance(d, 70)) s->recompute = random_recompute(d);
    if (chance(d, 60)) s->offload = (unsigned)throw_dice(d, OFFLOAD_ALL + 1);
    if (s->offload & OFFLOAD_WEIGHTS && chance(d, 50)) s->offload_blocks = 1 + (int)throw_dice(d, 4);
    if (chance(d, 60)) s->fused_step = s->accumulation == 1 && x.clip_norm == 0 && s->precision != PRECISION_F16;
    if (chance(d, 30)) s->pipelined = true;
    if (chance(d, 20)) s->inputs_ahead = true;
    if (chance(d, 20)) s->loader_bytes = 1000;
    if (chance(d, 30)) {
        x.rule = (struct module_rule){.match = &patterns[throw_dice(d, COUNT(patterns))], .n_match = 1,
                                      .has_recompute = true};
        x.rule.recompute = random_recompute(d);
        s->n_modules = 1;
    }
    if (chance(d, 60)) s->encode = chance(d, 30) ? ENCODE_ALL : 1 + (int)throw_dice(d, 3);
    if (chance(d, 30)) s->attention_chunks = 2 + (int)throw_dice(d, 3);
    x.any_order = s->device.separate_memory && chance(d, 50);
    return x;
}

/* --- running --------------------------------------------------------------------------------- */

static char current[4096]; /* the current comparison, for the report of a crash */

static void report_crash(int signal_number)
{
    (void)signal_number;
    if (write(STDERR_FILENO, current, strlen(current)) < 0) _exit(3);
    _exit(2);
}

/* Only copies access host memory: a CPU could compute there, a GPU could not. Updates on the host
 * access nothing else, or are those of a CPU. */
static void check_spaces(const struct graph *g, const struct settings *s)
{
    for (enum program p = 0; p < PROGRAM_COUNT; p++)
        for (uint32_t k = 0; k < g->order[p].nodes.n; k++) {
            const struct node *n = node_at(g, g->order[p].nodes.at[k]);
            const bool in_place = s->offload & OFFLOAD_UPDATE && !s->device.separate_memory;
            if (n->op == OP_COPY || !node_launches(n) || (in_place && op_table[n->op].flags & OPF_HOST)) continue;
            for (int i = 0; i < n->nin + n->nout; i++) {
                const id t = i < n->nin ? n->in[i] : n->out[i - n->nin];
                if (t && (storage_of(g, t)->space == SPACE_HOST) != (n->lane == LANE_HOST))
                    fail_msg("%s  %s of program %s works on %s, which is in the wrong memory", current,
                             op_table[n->op].name, program_name(p), graph_name(g, storage_of(g, t)->name));
            }
        }
}

static void open_side(struct rig *r, struct random_model *m, const struct side *x)
{
    struct error e = {0};
    struct settings s = x->s;
    memset(r, 0, sizeof *r);
    s.modules = &x->rule;
    must(plan_compile(&r->graph, &(struct source){.model = m, .build = build_random}, &s, &e), &e);
    check_spaces(&r->graph, &s);
    rig_open_on(r, DEVICE_CPU, 1);
    /* the initial values are representable in the working precision */
    for (uint32_t i = 0; i < r->graph.params.n; i++) {
        const struct param *p = &r->graph.params.at[i];
        if (p->master == p->tensor) continue;
        dtype_convert(tape_address(&r->tape, p->master), tensor_at(&r->graph, p->master)->dtype,
                      tape_address(&r->tape, p->tensor), tensor_at(&r->graph, p->tensor)->dtype,
                      tensor_elements(tensor_at(&r->graph, p->tensor)));
    }
}

static void run_side_program(struct rig *r, const struct side *x, enum program p, int step)
{
    struct error e = {0};
    struct dice d = {random_key(seed, "order"), (uint64_t)step << 32};
    if (x->any_order) run_in_any_order(&r->tape, p, &d);
    else must(r->device.ops->run(&r->device, &r->tape, p, &e), &e);
}

static void run_side(struct rig *r, const struct side *x, int step)
{
    struct step_block *b = tape_address(&r->tape, r->graph.step), before = *b;
    const bool scaled = x->s.precision == PRECISION_F16;
    *b = (struct step_block){.learning_rate = 1e-2f,
                             .inv_count = {0.0625f},
                             .clip_norm = x->clip_norm,
                             .loss_scale = scaled ? 64 : 1,
                             .seed = 5,
                             .rng_step = (uint64_t)step,
                             .step = step + 1,
                             .scale_window = 1,
                             .adam_t = scaled ? 0 : step + 1};
    if (scaled && step) b->loss_scale = before.next_scale, b->adam_t = before.adam_t, b->good_steps = before.good_steps;
    run_side_program(r, x, PROGRAM_STEP, step);
}

/* --- comparing ------------------------------------------------------------------------------- */

static bool differ(const char *a, const char *b, uint64_t bytes, enum dtype t, bool zeros)
{
    if (!memcmp(a, b, bytes)) return false;
    if (!zeros || !dtype_is_float(t)) return true;
    for (uint64_t i = 0; i < bytes / dtype_size(t); i++)
        if (memcmp(a + i * dtype_size(t), b + i * dtype_size(t), dtype_size(t)) &&
            (dtype_load(a, t, (int64_t)i) != 0 || dtype_load(b, t, (int64_t)i) != 0)) return true;
    return false;
}

/* `what` receives the name of the differing tensor. */
static bool tensors_differ(const struct rig *a, const struct rig *b, id x, id y, bool zeros, char what[256])
{
    const struct tensor *t = tensor_at(&a->graph, x), *u = tensor_at(&b->graph, y);
    snprintf(what, 256, "%s", graph_name(&a->graph, t->name));
    if (t->dtype != u->dtype || tensor_bytes(t) != tensor_bytes(u) || !tensor_is_dense(t) || !tensor_is_dense(u))
        return true;
    return differ(tape_address(&a->tape, x), tape_address(&b->tape, y), tensor_bytes(t), t->dtype, zeros);
}

static bool outputs_differ(const struct rig *a, const struct rig *b, enum program p, bool zeros, char what[256])
{
    for (uint32_t i = 0; i < a->graph.outputs.n; i++) {
        const struct output *o = &a->graph.outputs.at[i];
        if (o->program != p) continue;
        const char *name = graph_name(&a->graph, o->name);
        id other = graph_find_output(&b->graph, p, name);
        if (!other) other = graph_find_output(&b->graph, PROGRAM_STEP, name); /* the norm of a fused step */
        if (!other || tensors_differ(a, b, o->tensor, other, zeros, what))
            return snprintf(what, 256, "%s of program %s", name, program_name(p)), true;
    }
    return false;
}

static id state_named(const struct graph *g, const char *name)
{
    for (id s = 1; s < g->storages.n; s++)
        if (g->storages.at[s].kind == KIND_STATE && !strcmp(graph_name(g, g->storages.at[s].name), name)) return s;
    return 0;
}

static char *state_at(const struct rig *r, id s)
{
    return r->device.arena[r->graph.storages.at[s].space] + r->plan.placement.offset[s];
}

/* A state's dtype is not stored with its storage; that of exp_avg is f32, bf16 or u8. */
static enum dtype state_type(const struct graph *g, id s)
{
    for (id t = 1; t < g->tensors.n; t++)
        if (tensor_at(g, t)->storage == s) return tensor_at(g, t)->dtype;
    return DT_U8;
}

static bool state_differs(const struct rig *a, const struct rig *b, bool zeros, char what[256])
{
    for (uint32_t i = 0; i < a->graph.params.n; i++) {
        const struct param *p = &a->graph.params.at[i], *q = &b->graph.params.at[i];
        if (tensors_differ(a, b, p->master, q->master, zeros, what) ||
            tensors_differ(a, b, p->tensor, q->tensor, zeros, what))
            return true;
    }
    for (id s = 1; s < a->graph.storages.n; s++) {
        if (a->graph.storages.at[s].kind != KIND_STATE) continue;
        snprintf(what, 256, "%s", graph_name(&a->graph, a->graph.storages.at[s].name));
        const id other = state_named(&b->graph, what);
        if (!other ||
            differ(state_at(a, s), state_at(b, other), a->graph.storages.at[s].bytes, state_type(&a->graph, s), zeros))
            return true;
    }
    return false;
}

/* Trains both and compares after each program. False, with `what`: they differ. */
static bool same_bits(struct random_model *m, const struct side *x, const struct side *y, char what[256])
{
    struct rig a, b;
    char name[200] = "";
    const bool zeros = (x->s.without ^ y->s.without) & ZERO_SIGN;
    bool same = true;
    int step = 0;
    open_side(&a, m, x);
    open_side(&b, m, y);
    for (; step < STEPS && same; step++) {
        run_side(&a, x, step);
        run_side(&b, y, step);
        same = !outputs_differ(&a, &b, PROGRAM_STEP, zeros, what);
        run_side_program(&a, x, PROGRAM_UPDATE, step);
        run_side_program(&b, y, PROGRAM_UPDATE, step);
        if (same) same = !outputs_differ(&a, &b, PROGRAM_UPDATE, zeros, what) && !state_differs(&a, &b, zeros, what);
        if (same && !isfinite(rig_loss(&a)) && x->s.precision != PRECISION_F16)
            fail_msg("seed %llu: the loss is %g", (unsigned long long)m->seed, rig_loss(&a));
    }
    if (same) {
        run_side_program(&a, x, PROGRAM_EVAL, step);
        run_side_program(&b, y, PROGRAM_EVAL, step);
        same = !outputs_differ(&a, &b, PROGRAM_EVAL, zeros, what);
    }
    if (!same) {
        snprintf(name, sizeof name, "%.190s", what);
        snprintf(what, 256, "%s after step %d", name, step);
    }
    rig_close(&a);
    rig_close(&b);
    return same;
}

/* --- minimizing a failure -------------------------------------------------------------------- */

/* Resets one difference between two sides to the setting of `plain`. False: there is no such
 * difference. */
static bool reset_one(struct side *x, const struct side *plain, int which)
{
    struct settings *s = &x->s;
    const struct settings before = *s, *p = &plain->s;
    if (which < 16) s->without = (s->without & ~(1u << which)) | (p->without & 1u << which);
    else if (which < 21) s->offload &= ~(1u << (which - 16));
    else if (which == 21) s->recompute = p->recompute;
    else if (which == 22) s->fused_step = false;
    else if (which == 23) s->pipelined = false;
    else if (which == 24) s->inputs_ahead = false;
    else if (which == 25) s->loader_bytes = 0;
    else if (which == 26) s->n_modules = 0;
    else if (which == 27) s->recompute.selective = false;
    else if (which == 28) s->recompute.halves = false;
    else if (which == 29) s->attention_chunks = p->attention_chunks;
    else if (which == 30) s->encode = ENCODE_INLINE;
    else if (x->any_order) return x->any_order = false, true;
    return memcmp(&before, s, sizeof before) != 0;
}

static void fail_with(struct random_model *m, const struct side *plain, struct side y)
{
    char what[256], a[1024], b[1024];
    for (int which = 0; which < 32; which++) {
        struct side less = y;
        if (reset_one(&less, plain, which) && !same_bits(m, plain, &less, what)) y = less;
    }
    same_bits(m, plain, &y, what);
    print_side(plain, a, sizeof a);
    print_side(&y, b, sizeof b);
    fail_msg("SEED=%llu COUNT=1: %s differs\n  plain  %s\n  some   %s", (unsigned long long)m->seed, what, a, b);
}

/* --- coverage -------------------------------------------------------------------------------- */

static uint32_t applied[COUNT(rewrites)], chunked, tokens, heads, encoded, recomputed, selective, copied, hosted,
    fused, guarded;

/* Counts the passes that changed a graph: a test of passes that never apply tests nothing. */
static void count_passes(struct random_model *m, const struct side *x)
{
    struct graph g;
    struct error e = {0};
    struct settings s = x->s;
    s.modules = &x->rule;
    must(plan_compile(&g, &(struct source){.model = m, .build = build_random}, &s, &e), &e);
    for (uint32_t p = 0; p < PROGRAM_COUNT; p++)
        for (uint32_t k = 0; k < g.order[p].nodes.n; k++) {
            const struct node *n = node_at(&g, g.order[p].nodes.at[k]);
            const char *by = graph_name(&g, n->made_by);
            for (size_t i = 0; i < COUNT(rewrites); i++) applied[i] += !strcmp(by, rewrites[i].name);
            chunked += !strcmp(by, "chunk");
            tokens += !strcmp(by, "token_chunks");
            heads += !strcmp(by, "attention_chunks");
            encoded += !strcmp(by, "encode");
            recomputed += !strcmp(by, "recompute");
            selective += !strcmp(by, "selective");
            copied += !strcmp(by, "offload");
            hosted += n->lane == LANE_HOST;
            fused += !strcmp(by, "fused step");
            guarded += n->op == OP_GUARD;
        }
    graph_free(&g);
}

static void check_applied(void)
{
    /* The first five add no node. A random model has no adapter: test_rewrites has those of
     * group_lora. */
    const unsigned uncounted = REWRITE_trim | REWRITE_handover | REWRITE_concat_in_place | REWRITE_reuse |
                               REWRITE_first_sum | REWRITE_group_lora;
    for (size_t i = 0; i < COUNT(rewrites); i++)
        if (!(rewrites[i].flag & uncounted) && !applied[i])
            fail_msg("%s never applied in %d graphs", rewrites[i].name, count);
    assert_true(chunked && heads && encoded && recomputed && selective && copied && hosted && fused && guarded);
}

/* --- tests ----------------------------------------------------------------------------------- */

/* cmocka reports a crash without the seed. */
static void catch_faults(void)
{
    signal(SIGABRT, report_crash);
    signal(SIGSEGV, report_crash);
    signal(SIGBUS, report_crash);
}

static void begin(uint64_t of, const char *test, const struct side *x, const struct side *y)
{
    char a[1024], b[1024];
    seed = of;
    print_side(x, a, sizeof a);
    print_side(y, b, sizeof b);
    snprintf(current, sizeof current, "%s, SEED=%llu COUNT=1: stopped in\n  plain  %s\n  some   %s\n", test,
             (unsigned long long)of, a, b);
}

/* Rewrites that change bits in this graph, because the CPU runs its reference kernels on strided
 * views, and these round once where two ops round twice: for a norm and the residual's gradient,
 * and for a product and its activation (a plan for a CPU keeps those separate, one for a GPU does
 * not). */
static unsigned rounding_rewrites(struct random_model *m, const struct side *x)
{
    struct graph g;
    struct error e = {0};
    unsigned found = 0;
    must(plan_compile(&g, &(struct source){.model = m, .build = build_random}, &x->s, &e), &e);
    for (enum program p = 0; p < PROGRAM_COUNT; p++)
        for (uint32_t k = 0; k < g.order[p].nodes.n; k++) {
            const struct node *n = node_at(&g, g.order[p].nodes.at[k]);
            bool strided = false;
            for (int i = 0; i < n->nin; i++) strided |= n->in[i] && !tensor_is_dense(tensor_at(&g, n->in[i]));
            if (strided && (n->op == OP_RMSNORM_BWD || n->op == OP_LAYERNORM_BWD)) found |= REWRITE_residual;
            if (strided && n->op == OP_LINEAR && x->s.device.fuses_strided) found |= REWRITE_fuse;
        }
    graph_free(&g);
    return found;
}

static void test_bits(void **state)
{
    catch_faults();
    for (int i = 0; i < count; i++) {
        const uint64_t of = first_seed + (uint64_t)i;
        struct dice d = {random_key(of, "settings"), 0};
        const struct side plain = random_recipe(&d);
        struct side some = random_subset(&d, &plain);
        struct random_model m = {of, plain.s.precision == PRECISION_F32};
        char what[256];
        begin(of, "bits", &plain, &some);
        const unsigned fixed = rounding_rewrites(&m, &plain);
        some.s.without = (some.s.without & ~fixed) | (plain.s.without & fixed);
        count_passes(&m, &some);
        if (!same_bits(&m, &plain, &some, what)) fail_with(&m, &plain, some);
    }
    if (count >= COUNT_DEFAULT) check_applied();
}

/* Reads the step's gradients from SGD's momentum buffers; adds the squares of their differences and
 * of themselves. */
static void add_gradients(const struct rig *a, const struct rig *b, double *error, double *size)
{
    for (id s = 1; s < a->graph.storages.n; s++) {
        if (a->graph.storages.at[s].kind != KIND_STATE) continue;
        const id other = state_named(&b->graph, graph_name(&a->graph, a->graph.storages.at[s].name));
        const float *x = (const float *)(const void *)state_at(a, s),
                    *y = (const float *)(const void *)state_at(b, other);
        for (uint64_t k = 0; k < a->graph.storages.at[s].bytes / sizeof *x; k++) {
            *error += pow((double)x[k] - (double)y[k], 2);
            *size += pow((double)x[k], 2);
        }
    }
}

/* How weights move: half of them, at random, by one last bit; or all by up to a thousandth. */
enum moving { MOVE_NONE, MOVE_LAST_BITS, MOVE_ALL };

static void move_weights(struct rig *r, enum moving how)
{
    for (uint32_t i = 0; i < r->graph.params.n && how; i++) {
        const struct param *p = &r->graph.params.at[i];
        float *x = tape_address(&r->tape, p->tensor);
        const uint64_t key = random_key(seed, name_of(r, p->tensor));
        for (int64_t k = 0; k < tensor_elements(tensor_at(&r->graph, p->tensor)); k++) {
            const uint64_t bits = random_bits(key, (uint64_t)k);
            if (how == MOVE_ALL) x[k] *= 1 + (float)(bits >> 40) * 0x1p-24f * 1e-3f;
            else if (bits % 2) x[k] = nextafterf(x[k], 0);
        }
    }
}

/* For one step each: the relative difference of the losses, and the relative norm of the gradients'
 * difference. */
struct distance {
    double loss, gradients;
};

static struct distance distance_between(struct random_model *m, const struct side *x, const struct side *y,
                                        enum moving both, enum moving second)
{
    struct rig a, b;
    struct error e = {0};
    double error = 0, size = 0;
    open_side(&a, m, x);
    open_side(&b, m, y);
    move_weights(&a, both);
    move_weights(&b, both);
    move_weights(&b, second);
    run_side(&a, x, 0);
    run_side(&b, y, 0);
    const double loss = fabs(rig_loss(&a) - rig_loss(&b)) / (1 + fabs(rig_loss(&a)));
    must(a.device.ops->run(&a.device, &a.tape, PROGRAM_UPDATE, &e), &e);
    must(b.device.ops->run(&b.device, &b.tape, PROGRAM_UPDATE, &e), &e);
    add_gradients(&a, &b, &error, &size);
    assert_true(size > 0);
    rig_close(&a);
    rig_close(&b);
    return (struct distance){loss, sqrt(error / size)};
}

/* Reports whether two sides differ by no more than rounding does. */
static bool are_near(struct random_model *m, const struct side *x, const struct side *y, enum moving both,
                     struct distance *d, struct distance *own)
{
    *d = distance_between(m, x, y, both, MOVE_NONE);
    *own = distance_between(m, x, x, both, MOVE_LAST_BITS);
    return d->loss <= NEAR + SLACK * own->loss && d->gradients <= NEAR + SLACK * own->gradients;
}

/* Where a sum cancels to 0, one order may give 0 and another what rounding leaves, on two sides of
 * a kink. Other weights are not on it, and a wrong rewrite is wrong for them too. */
static void compare_near(struct random_model *m, const struct side *x, const struct side *y)
{
    struct distance d, own;
    if (!are_near(m, x, y, MOVE_NONE, &d, &own) && !are_near(m, x, y, MOVE_ALL, &d, &own))
        fail_msg("%s  loss off by %.3g, gradients by %.3g; by the weights' last bits %.3g and %.3g", current, d.loss,
                 d.gradients, own.loss, own.gradients);
}

/* Other orders of sums, combined with all other techniques. */
static void test_reordered_sums(void **state)
{
    catch_faults();
    for (int i = 0; i < count; i += 2) {
        const uint64_t of = first_seed + (uint64_t)i;
        struct dice d = {random_key(of, "near"), 0};
        struct side plain = random_recipe(&d);
        plain.s.precision = PRECISION_F32;
        plain.s.device = device_traits(DEVICE_CPU);
        plain.s.optimizer = OPT_SGD;
        plain.s.momentum = 0.9;
        plain.s.weight_decay = 0;
        plain.s.state = STATE_F32;
        plain.s.head_chunks = 1;
        plain.s.without |= ORDER;
        plain.clip_norm = 0;
        struct side other = random_subset(&d, &plain);
        const int samples = plain.s.micro_batch * plain.s.accumulation;
        if (chance(&d, 50)) other.s.head_chunks = 2 + (int)throw_dice(&d, 4);
        other.s.mask_chunks = (int)(of % 5);
        if (chance(&d, 60)) other.s.token_chunks = 2 + (int)throw_dice(&d, 5);
        do other.s.micro_batch = 1 + (int)throw_dice(&d, samples);
        while (samples % other.s.micro_batch);
        other.s.accumulation = samples / other.s.micro_batch;
        other.s.fused_step &= other.s.accumulation == 1;
        other.s.device = device_traits(chance(&d, 50) ? DEVICE_CUDA : DEVICE_CPU);
        other.s.without &= ~(unsigned)throw_dice(&d, REWRITE_ALL + 1);
        struct random_model m = {of, true};
        begin(of, "near", &plain, &other);
        count_passes(&m, &other);
        compare_near(&m, &plain, &other);
    }
    assert_true(tokens || count < 50);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bits), cmocka_unit_test(test_reordered_sums)};
    seed_begin();
    first_seed = argc > 1 ? strtoull(argv[1], NULL, 0) : seed;
    const char *many = argc > 2 ? argv[2] : getenv("COUNT");
    if (many) count = atoi(many);
    log_quiet(true);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
