/*
 * test_precision.c: the dtype in which each tensor is computed and stored, on graphs of a small
 * model.
 *
 *     a skipped step       changes no weight, no master weight and no optimizer state
 *     scaled gradients     divided by the scale they are f32's, within f16's rounding
 *     weights              pure bf16 has no masters; a frozen weight has the compute dtype only
 *     gradients            in bf16 they are f32's, rounded; master weights stay f32
 *     modules              have a precision of their own, with casts only at their borders
 *
 * test_scaler.c tests the kernels.
 */
#include "optest.h"

#include "models/masks.h"

enum { SAMPLES = 2, TOKENS = 17 };

/* --- graphs ---------------------------------------------------------------------------------- */

struct source_model {
    struct model model;
    const char *freeze; /* a pattern; NULL: nothing */
};

static void build(void *context, struct graph *g, int micro_batch)
{
    const struct source_model *m = context;
    m->model.family->build(&m->model, g, &(struct batch){.B = micro_batch, .T = TOKENS});
    for (uint32_t i = 0; i < g->params.n && m->freeze; i++)
        if (pattern_match(m->freeze, graph_name(g, tensor_at(g, g->params.at[i].tensor)->name)))
            g->params.at[i].frozen = true;
}

static struct settings settings_of(enum precision precision)
{
    return (struct settings){.micro_batch = SAMPLES, .accumulation = 1, .head_chunks = 1, .train = true,
                             .precision = precision, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8};
}

static void open_model(struct source_model *m, const char *freeze)
{
    struct error e;
    must(model_preset(&m->model, "llama-tiny", &e), &e);
    m->freeze = freeze;
}

/* Compiled, placed, with values; master weights start as the working copies. */
static void open_rig(struct rig *r, struct source_model *m, const struct settings *s)
{
    struct error e;
    *r = (struct rig){0};
    must(plan_compile(&r->graph, &(struct source){m, build}, s, &e), &e);
    rig_open(r, DEVICE_CPU);
    for (uint32_t i = 0; i < r->graph.params.n; i++) {
        const struct param *p = &r->graph.params.at[i];
        const struct tensor *w = tensor_at(&r->graph, p->tensor), *to = tensor_at(&r->graph, p->master);
        for (int64_t k = 0; p->master != p->tensor && k < tensor_elements(w); k++)
            dtype_store(tape_address(&r->tape, p->master), to->dtype, k,
                        dtype_load(tape_address(&r->tape, p->tensor), w->dtype, k));
    }
    for (id t = 1; t < r->graph.tensors.n; t++) {
        const struct tensor *x = tensor_at(&r->graph, t);
        if (storage_of(&r->graph, t)->kind == KIND_STATE && !x->node)
            memset(tape_address(&r->tape, t), 0, tensor_bytes(x));
    }
}

static struct step_block *block_of(const struct rig *r) { return tape_address(&r->tape, r->graph.step); }

static void run_update(struct rig *r)
{
    struct error e;
    must(r->device.ops->run(&r->device, &r->tape, PROGRAM_UPDATE, &e), &e);
}

static uint64_t kind_bytes(const struct graph *g, enum kind kind)
{
    uint64_t bytes = 0;
    for (id s = 1; s < g->storages.n; s++) bytes += g->storages.at[s].kind == kind ? g->storages.at[s].bytes : 0;
    return bytes;
}

/* --- loss scaling, whole programs ------------------------------------------------------------ */

/* A hash of every persistent byte that an update may change. */
static uint64_t hash_persistent(const struct rig *r)
{
    uint64_t hash = 1;
    for (id s = 1; s < r->graph.storages.n; s++) {
        const struct storage *x = &r->graph.storages.at[s];
        if (x->kind == KIND_PARAM || x->kind == KIND_MASTER || x->kind == KIND_STATE)
            hash = hash_bytes(r->device.arena[x->space] + r->plan.placement.offset[s], x->bytes, hash);
    }
    return hash;
}

TEST(test_skipped)
{
    struct source_model m;
    struct rig r;
    struct settings s = settings_of(PRECISION_F16);
    open_model(&m, NULL);
    open_rig(&r, &m, &s);
    for (int bad = 0; bad < 3; bad++) { /* a scale beyond f16, one within it, and the first once more */
        uint64_t before = hash_persistent(&r);
        *block_of(&r) = (struct step_block){.learning_rate = 1e-2f,
                                            .inv_count = {0.125f},
                                            .clip_norm = 1,
                                            .loss_scale = bad == 1 ? 256 : 0x1p40f,
                                            .step = bad + 1,
                                            .adam_t = bad == 2,
                                            .scale_window = 9};
        rig_run(&r);
        run_update(&r);
        const struct step_block *b = block_of(&r);
        assert_int_equal(b->found_inf, bad != 1);
        assert_int_equal(b->adam_t, bad == 0 ? 0 : 1);
        assert_true(b->next_scale == (bad == 1 ? 256 : 0x1p39f) && b->good_steps == (bad == 1));
        assert_int_equal(hash_persistent(&r) == before, bad != 1);
    }
    rig_close(&r);
    model_close(&m.model);
}

/* Gradients of the scaled loss are the scale times f32's, within f16's rounding; the reported norm
 * is unscaled. */
TEST(test_scaled)
{
    struct source_model m;
    struct rig half, full;
    struct settings s = settings_of(PRECISION_F16), plain = settings_of(PRECISION_F32);
    open_model(&m, NULL);
    open_rig(&half, &m, &s);
    open_rig(&full, &m, &plain);
    block_of(&half)->loss_scale = 64;
    rig_run(&half);
    rig_run(&full);
    for (uint32_t i = 0; i < full.graph.params.n; i++) {
        id a = full.graph.params.at[i].grad, b = half.graph.params.at[i].grad;
        assert_int_equal(!a, !b);
        if (!a) continue;
        double *x = rig_read(&full, a), *y = rig_read(&half, b), size = 0, off = 0;
        int64_t n = tensor_elements(tensor_at(&full.graph, a));
        for (int64_t k = 0; k < n; k++) size += x[k] * x[k], off += pow(y[k] / 64 - x[k], 2);
        /* About fifty roundings to f16 on the path, and those of the weights. */
        if (sqrt(off) > 50 * dtype_table[DT_F16].epsilon * sqrt(size))
            fail_msg("%s: off by %g of %g", name_of(&full, a), sqrt(off), sqrt(size));
        mem_free(x);
        mem_free(y);
    }
    run_update(&half);
    run_update(&full);
    const float *p = tape_address(&half.tape, graph_find_output(&half.graph, PROGRAM_UPDATE, "clip"));
    const float *q = tape_address(&full.tape, graph_find_output(&full.graph, PROGRAM_UPDATE, "clip"));
    assert_true(fabsf(p[0] / q[0] - 1) < 0.02f && fabsf(p[1] * 64 / q[1] - 1) < 0.02f);
    rig_close(&half);
    rig_close(&full);
    model_close(&m.model);
}

/* --- weights --------------------------------------------------------------------------------- */

static void check_weights(struct source_model *m, enum precision precision)
{
    const bool pure = precision == PRECISION_BF16_PURE;
    struct graph g;
    struct error e;
    struct settings s = settings_of(precision);
    uint64_t trained = 0, frozen = 0, narrow = 0;
    must(plan_compile(&g, &(struct source){m, build}, &s, &e), &e);
    for (uint32_t i = 0; i < g.params.n; i++) {
        const struct param *p = &g.params.at[i];
        if (storage_of(&g, p->tensor)->kind != KIND_PARAM) continue;
        const struct tensor *w = tensor_at(&g, p->tensor);
        assert_int_equal(w->dtype, policies[precision].compute);
        assert_int_equal(p->tensor == p->master, p->frozen || pure);
        assert_true(!p->frozen || !p->grad);
        /* A layer's matrix without a master weight has a gradient in its own dtype; vectors and
         * tables have f32 gradients. */
        const bool layer = w->rank == 2 && strstr(graph_name(&g, w->name), "layers.");
        if (p->grad) assert_int_equal(tensor_at(&g, p->grad)->dtype, pure && layer ? DT_BF16 : DT_F32);
        if (p->grad && pure && layer) narrow += (uint64_t)tensor_elements(w);
        *(p->frozen ? &frozen : &trained) += (uint64_t)tensor_elements(w);
    }
    assert_true(trained > 1000 && (frozen > 1000 || !m->freeze) && (narrow > 1000) == pure);
    /* Bytes: 2 per weight, and per trained weight 4 for the master, 4 or 2 for the gradient, 8 for
     * the moments. */
    assert_int_equal(kind_bytes(&g, KIND_PARAM), 2 * (trained + frozen));
    assert_int_equal(kind_bytes(&g, KIND_MASTER), pure ? 0 : 4 * trained);
    assert_int_equal(kind_bytes(&g, KIND_STATE), 8 * trained);
    assert_int_equal(kind_bytes(&g, KIND_GRAD), 4 * trained - 2 * narrow);
    graph_free(&g);
}

TEST(test_weights)
{
    static const char *const freeze[] = {NULL, "*.mlp.*"};
    for (size_t i = 0; i < COUNT(freeze); i++) {
        struct source_model m;
        open_model(&m, freeze[i]);
        check_weights(&m, PRECISION_BF16);
        check_weights(&m, PRECISION_F16);
        check_weights(&m, PRECISION_BF16_PURE);
        model_close(&m.model);
    }
}

/* --- gradients in bf16 ------------------------------------------------------------------------ */

/* One micro-batch: every bf16 gradient is the f32 gradient, rounded. */
TEST(test_gradients)
{
    struct source_model m;
    struct rig wide, narrow;
    struct settings s = settings_of(PRECISION_BF16);
    uint64_t rounded = 0;
    open_model(&m, NULL);
    open_rig(&wide, &m, &s);
    s.gradients = 1;
    open_rig(&narrow, &m, &s);
    rig_run(&wide);
    rig_run(&narrow);
    for (uint32_t i = 0; i < wide.graph.params.n; i++) {
        const id a = wide.graph.params.at[i].grad, b = narrow.graph.params.at[i].grad;
        if (!a) continue;
        const struct tensor *x = tensor_at(&wide.graph, a), *y = tensor_at(&narrow.graph, b);
        assert_int_equal(x->dtype, DT_F32);
        assert_int_equal(tensor_at(&narrow.graph, narrow.graph.params.at[i].master)->dtype, DT_F32);
        for (int64_t k = 0; k < tensor_elements(x); k++) {
            const double u = dtype_load(tape_address(&wide.tape, a), x->dtype, k),
                         v = dtype_load(tape_address(&narrow.tape, b), y->dtype, k);
            assert_true(fabs(u - v) <= (y->dtype == DT_BF16 ? fabs(u) / 256 + 1e-30 : 0));
        }
        if (y->dtype == DT_BF16) rounded += (uint64_t)tensor_elements(y);
    }
    assert_true(rounded > 1000);
    assert_int_equal(kind_bytes(&wide.graph, KIND_GRAD) - kind_bytes(&narrow.graph, KIND_GRAD), 2 * rounded);
    assert_int_equal(kind_bytes(&wide.graph, KIND_MASTER), kind_bytes(&narrow.graph, KIND_MASTER));
    rig_close(&wide);
    rig_close(&narrow);
    model_close(&m.model);
}

/* --- modules --------------------------------------------------------------------------------- */

static const char *const mlps[] = {"*.mlp"}, *const blocks[] = {"model.layers.?"},
                         *const first_mlp[] = {"model.layers.0.mlp"}, *const nothing[] = {"no.such"},
                         *const head[] = {"lm_head"};

/* Weights and results of the module's nodes have its dtype; only casts change dtypes. */
static void check_module(const struct graph *g, const char *pattern, enum dtype inside)
{
    uint32_t weights = 0, casts = 0, nodes = 0;
    for (uint32_t k = 0; k < g->order[PROGRAM_STEP].nodes.n; k++) {
        const struct node *n = node_at(g, g->order[PROGRAM_STEP].nodes.at[k]);
        if (n->phase != PHASE_FORWARD) continue;
        casts += n->op == OP_CAST;
        if (!pattern_match(pattern, graph_name(g, g->scopes.at[n->scope].name))) continue;
        nodes++;
        if (n->op == OP_LINEAR || n->op == OP_LINEAR_ACT || n->op == OP_SILU_GATE)
            assert_int_equal(tensor_at(g, n->out[0])->dtype, inside);
        for (int i = 0; i < n->nin; i++) {
            const struct param *p = n->in[i] ? graph_param_of(g, n->in[i]) : NULL;
            if (!p || storage_of(g, p->tensor)->kind != KIND_PARAM) continue;
            assert_int_equal(tensor_at(g, p->tensor)->dtype, inside);
            assert_int_equal(p->tensor == p->master, inside == DT_F32);
            weights++;
        }
    }
    assert_true(nodes && weights && casts);
}

static double loss_with(struct source_model *m, const struct settings *s, const char *pattern, enum dtype inside)
{
    struct rig r;
    open_rig(&r, m, s);
    if (pattern) check_module(&r.graph, pattern, inside);
    block_of(&r)->scale_window = 100;
    rig_run(&r);
    double before = rig_loss(&r);
    run_update(&r);
    rig_run(&r);
    assert_true(isfinite(before) && rig_loss(&r) < before);
    rig_close(&r);
    return before;
}

TEST(test_modules)
{
    struct source_model m;
    open_model(&m, NULL);
    struct settings plain = settings_of(PRECISION_F32);
    const double want = loss_with(&m, &plain, NULL, 0);
    const struct module_rule f32 = {.match = mlps, .n_match = 1, .has_precision = true, .precision = PRECISION_F32};
    const struct module_rule bf16 = {.match = mlps, .n_match = 1, .has_precision = true, .precision = PRECISION_BF16};
    const struct module_rule f16 = {.match = mlps, .n_match = 1, .has_precision = true, .precision = PRECISION_F16};
    const struct module_rule other = {.match = mlps, .n_match = 1, .has_recompute = true};
    const struct module_rule one = {.match = first_mlp,
                                    .n_match = 1,
                                    .has_precision = true,
                                    .precision = PRECISION_F32};
    const struct module_rule wide = {.match = blocks, .n_match = 1, .has_precision = true, .precision = PRECISION_BF16};
    const struct module_rule none = {.match = nothing,
                                     .n_match = 1,
                                     .has_precision = true,
                                     .precision = PRECISION_BF16};
    const struct module_rule tied = {.match = head, .n_match = 1, .has_precision = true, .precision = PRECISION_F32};
    const struct module_rule tied16 = {.match = head, .n_match = 1, .has_precision = true, .precision = PRECISION_F16};
    const struct {
        enum precision precision;
        struct module_rule rules[3];
        uint32_t n;
        const char *pattern;
        enum dtype inside;
    } cases[] = {
        {PRECISION_BF16, {f32}, 1, "*.mlp", DT_F32},
        {PRECISION_BF16_PURE, {f32}, 1, "*.mlp", DT_F32},
        {PRECISION_F16, {f32}, 1, "*.mlp", DT_F32},
        {PRECISION_F32, {bf16}, 1, "*.mlp", DT_BF16},
        {PRECISION_BF16, {f16}, 1, "*.mlp", DT_F16},
        {PRECISION_BF16_PURE, {f16}, 1, "*.mlp", DT_F16},
        {PRECISION_BF16, {bf16, f32, other}, 3, "*.mlp", DT_F32}, /* the last matching rule wins */
        {PRECISION_F32, {wide, one}, 2, "model.layers.0.mlp", DT_F32}, /* a module inside a module */
        {PRECISION_F32, {wide, one}, 2, "model.layers.1.mlp", DT_BF16},
        /* the table's weight, which the head reads through a cast in each program */
        {PRECISION_BF16, {tied}, 1, NULL, 0},
        {PRECISION_BF16, {tied16}, 1, NULL, 0},
        {PRECISION_BF16_PURE, {tied}, 1, NULL, 0},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct settings s = settings_of(cases[i].precision);
        s.modules = cases[i].rules;
        s.n_modules = cases[i].n;
        double got = loss_with(&m, &s, cases[i].pattern, cases[i].inside);
        if (fabs(got - want) > 4 * dtype_table[DT_BF16].epsilon * want)
            fail_msg("case %zu: the loss is %.9g, in f32 %.9g", i, got, want);
    }
    /* A rule that matches nothing changes nothing. */
    struct settings s = settings_of(PRECISION_F32);
    s.modules = &none;
    s.n_modules = 1;
    assert_true(loss_with(&m, &s, NULL, 0) == want);
    model_close(&m.model);
}

/* Segmentation models: modules that several scopes call, prompts in rounds, micro-batches and
 * chunks. */
static void build_masks(void *context, struct graph *g, int micro_batch)
{
    const struct source_model *m = context;
    m->model.family->build(&m->model, g,
                           &(struct batch){.B = micro_batch, .bn_group = m->model.batch_norm ? 1 : 0,
                                           .holds = &(struct contents){
                                               .prompts = {.masks = 4, .points = 4, .rounds = 2, .slots = true,
                                                           .targets = true}}});
}

static void check_masks(struct source_model *m, const char *preset, enum precision precision, const char *pattern)
{
    const struct module_rule rule = {.match = &pattern,
                                     .n_match = 1,
                                     .has_precision = true,
                                     .precision = PRECISION_F32};
    struct settings s = settings_of(precision);
    struct graph g;
    struct plan plan = {0};
    struct profile profile;
    struct error e;
    uint32_t alone = 0, behind = 0;
    s.modules = &rule;
    s.n_modules = 1;
    s.accumulation = s.head_chunks = 2;
    profile_default(&profile, DEVICE_CPU, 2);
    must(plan_compile(&g, &(struct source){m, build_masks}, &s, &e), &e);
    must(plan_place(&plan, &g, &profile, &e), &e); /* the plan checker replays it */
    for (uint32_t i = 0; i < g.params.n; i++) {
        const struct param *p = &g.params.at[i];
        if (!p->grad) continue;
        bool f32 = tensor_at(&g, p->tensor)->dtype == DT_F32;
        assert_int_equal(f32, p->tensor == p->master);
        *(f32 ? &alone : &behind) += 1;
    }
    if (!alone || !behind) fail_msg("%s, %s: %u weights in f32, %u not", preset, pattern, alone, behind);
    plan_free(&plan);
    graph_free(&g);
}

TEST(test_masks)
{
    static const char *const presets[] = {"sam-tiny", "tinysam-tiny"}, *const patterns[] = {"*mask_decoder*",
                                                                                            "*layers.0*", "*neck",
                                                                                            "*attn"};
    for (size_t i = 0; i < COUNT(presets); i++) {
        struct source_model m = {0};
        struct error e;
        must(model_preset(&m.model, presets[i], &e), &e);
        for (size_t k = 0; k < COUNT(patterns); k++)
            check_masks(&m, presets[i], k % 2 ? PRECISION_F16 : PRECISION_BF16, patterns[k]);
        model_close(&m.model);
    }
}

MAIN(NULL, NULL)
