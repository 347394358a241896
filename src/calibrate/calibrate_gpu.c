/*
 * calibrate_gpu.c: measures a GPU (see calibrate.h).
 */
#include <math.h>
#include <time.h>

#include "calibrate/bench.h"
#include "calibrate/calibrate.h"
#include "cost/profile.h"
#include "cuda/cuda.h"
#include "batch/feed.h"
#include "graph/ops.h"

enum { STEPS_LEAST = 3, STEPS_MOST = 12, NODE_STEPS = 2 };
#define SECONDS_EACH 0.25      /* duration of the replays, after STEPS_LEAST */
#define SECONDS_ALL 50.        /* workloads after this time are left out */
#define COPY_LEAST (4 << 20)   /* smallest copy that is used to measure the copy rate */

/* --- samples ----------------------------------------------------------------------------- */

void gpu_add_samples(struct gpu_samples *s, const char *name, const struct run *r, const struct timing *t,
                     double replay, const struct profile *p)
{
    struct gpu_whole whole = {.name = name, .replay = replay};
    for (id n = 1; n < t->nodes; n++) {
        const struct node *x = node_at(&r->planned.graph, n);
        struct gpu_sample one = {0};
        struct query q;
        if (!t->calls[n]) continue;
        query_fill(&q, &r->planned.graph, x, p);
        q.kernel = r->planned.plan.placement.binding[n].kernel;
        class_of(&one.of, &q, x->op);
        one.crosses = q.crosses;
        one.host = q.host;
        one.calls = t->calls[n];
        one.ideal = kernel_ideal(&q, x->op);
        one.seconds = t->seconds[n] / t->calls[n];
        vec_push(&s->list, one);
        whole.nodes += t->seconds[n];
        whole.launches += t->calls[n];
        whole.lanes |= x->lane != LANE_COMPUTE;
    }
    vec_push(&s->wholes, whole);
}

void gpu_free(struct gpu_samples *s)
{
    vec_free(&s->list);
    vec_free(&s->wholes);
}

/* --- from samples to a profile -------------------------------------------------------------- */

/* Rounds to four digits, which are more than the clock's precision, and keep the file short. */
static double rounded(double x)
{
    char text[32];
    snprintf(text, sizeof text, "%.4g", x);
    return strtod(text, NULL);
}

/* Estimates the cost of a launch by the cheapest of many nodes with almost no work, which cost one
 * launch each. */
static double find_launch(const struct gpu_samples *s)
{
    double least = 1e-5;
    for (uint32_t i = 0; i < s->list.n; i++)
        if (s->list.at[i].ideal < 1e-6 && s->list.at[i].seconds < least) least = s->list.at[i].seconds;
    return least;
}

static bool is_copy(const struct gpu_sample *x) { return x->crosses; }
static bool is_on_host(const struct gpu_sample *x) { return x->host; }

/* Sets a rate to that of the fastest long one of the nodes that `is` selects; their ideal times,
 * which are of rate `was`, are recomputed from it. */
static void fit_rate(struct gpu_samples *s, bool (*is)(const struct gpu_sample *), double was, double *rate)
{
    double best = 0;
    for (uint32_t i = 0; i < s->list.n; i++) {
        const struct gpu_sample *x = &s->list.at[i];
        const double bytes = x->ideal * was;
        if (is(x) && bytes >= COPY_LEAST) best = fmax(best, bytes / x->seconds);
    }
    if (!(best > 0)) return;
    for (uint32_t i = 0; i < s->list.n; i++)
        if (is(&s->list.at[i])) s->list.at[i].ideal *= was / rounded(best);
    *rate = rounded(best);
}

/* Fits speed and gap to the replay times by least squares of relative errors. A speed outside its
 * plausible range is set to the bound, and the gap is fitted with it. */
static void fit_replays(struct gpu_samples *s)
{
    double uu = 0, uv = 0, vv = 0, u1 = 0, v1 = 0;
    for (uint32_t i = 0; i < s->wholes.n; i++) {
        const struct gpu_whole *w = &s->wholes.at[i];
        if (w->lanes || !(w->replay > 0)) continue;
        double u = w->nodes / w->replay, v = w->launches / w->replay;
        uu += u * u, uv += u * v, vv += v * v, u1 += u, v1 += v;
    }
    s->speed = 1;
    s->gap = 0;
    if (!(vv > 0)) return;
    double determinant = uu * vv - uv * uv;
    if (determinant > 1e-9 * uu * vv) s->speed = fmin(fmax((u1 * vv - v1 * uv) / determinant, 0.8), 1.3);
    s->gap = (v1 - s->speed * uv) / vv;
}

/* Rounds a curve's points. Those with equal rounded ideal times are merged, so that ideal times
 * ascend. */
static void round_curve(struct curve *c, double speed)
{
    int n = 0;
    for (int i = 0; i < c->n; i++) {
        struct curve_point x = {rounded(c->at[i].ideal), rounded(fmin(fmax(speed * c->at[i].factor, 1e-3), 1e6))};
        if (!n || x.ideal > c->at[n - 1].ideal) c->at[n++] = x;
    }
    memset(c->at + n, 0, (size_t)(CURVE_POINTS - n) * sizeof *c->at);
    c->n = n;
}

/* Fits a curve for each op, variant and dtype class, which a node's class without samples uses. */
static void fit_ops(const struct gpu_samples *s, struct calibration *c, double launch)
{
    for (int op = 1; op < OP_COUNT; op++)
        for (int v = 0; v < OP_VARIANTS; v++)
            for (int half = 0; half < CLASS_COUNT; half++) {
                struct curve_fit fit = {0};
                for (uint32_t i = 0; i < s->list.n; i++) {
                    const struct gpu_sample *x = &s->list.at[i];
                    if ((int)x->of.op == op && x->of.variant == v && x->of.half == half && !x->crosses && !x->host)
                        curve_fit_add(&fit, x->ideal, x->seconds - launch);
                }
                curve_fit_end(&fit, &c->curve[op][v][half]);
                round_curve(&c->curve[op][v][half], s->speed);
            }
}

static int by_class(const void *a, const void *b)
{
    return class_order(&((const struct gpu_sample *)a)->of, &((const struct gpu_sample *)b)->of);
}

/* Fits a curve for each class, whose samples are adjacent once sorted. Classes beyond the table's
 * capacity use their op's curve or that of a near class. */
static void fit_classes(struct gpu_samples *s, struct calibration *c, double launch)
{
    qsort(s->list.at, s->list.n, sizeof *s->list.at, by_class);
    for (uint32_t i = 0, end; i < s->list.n && c->classes < CLASSES_MOST; i = end) {
        struct curve_fit fit = {0};
        for (end = i; end < s->list.n && !by_class(&s->list.at[i], &s->list.at[end]); end++)
            curve_fit_add(&fit, s->list.at[end].ideal, s->list.at[end].seconds - launch);
        struct op_class *x = &c->class[c->classes++];
        *x = s->list.at[i].of;
        curve_fit_end(&fit, &x->curve);
        round_curve(&x->curve, s->list.at[i].host ? 1 : s->speed); /* the host is as fast in a replay */
    }
    calibration_sort(c);
}

void gpu_fit(struct gpu_samples *s, struct profile *p, struct calibration *c)
{
    double launch = find_launch(s);
    fit_rate(s, is_copy, p->copy_bandwidth, &p->copy_bandwidth);
    fit_rate(s, is_on_host, host_rate(p), &p->host_bandwidth);
    fit_replays(s);
    fit_ops(s, c, launch);
    fit_classes(s, c, launch);
    p->launch_seconds = rounded(fmax(s->speed * launch + s->gap, 0));
    p->measured = c;
}

/* --- measuring -------------------------------------------------------------------------------- */

/* Measures the minimum time of each node over several steps. */
static int time_nodes(struct bench *b, struct timing *least, struct error *e)
{
    int rc = PL_OK;
    timing_init(least, &b->run.planned.graph);
    for (int i = 0; i < NODE_STEPS && !rc; i++) {
        rc = bench_time_nodes(b, e);
        for (id n = 1; n < least->nodes; n++) {
            if (!i || b->fastest.seconds[n] < least->seconds[n]) least->seconds[n] = b->fastest.seconds[n];
            least->calls[n] = b->fastest.calls[n];
        }
    }
    return rc;
}

static int replay(struct bench *b, struct error *e)
{
    double begun = clock_seconds();
    int rc = PL_OK;
    for (int i = 0; i < STEPS_MOST && !rc && (i < STEPS_LEAST || clock_seconds() - begun < SECONDS_EACH);
         i += STEPS_LEAST)
        rc = bench_run(b, STEPS_LEAST, e);
    return rc;
}

/* Measures one workload. `view` describes the GPU after it was opened. */
static int measure(struct gpu_samples *s, const char *name, const struct config *c, const struct run_options *o,
                   struct profile *p, struct cuda_view *view, struct error *e)
{
    struct bench b = {0};
    struct timing least = {0};
    int rc = bench_open(&b, c, o, e);
    if (!rc) rc = replay(&b, e);
    if (!rc) rc = time_nodes(&b, &least, e);
    if (!rc) {
        gpu_add_samples(s, name, &b.run, &least, bench_median(&b), p);
        if (!view->total_bytes) cuda_get_view(&b.run.device, view);
    }
    timing_free(&least);
    bench_close(&b);
    return rc;
}

static void log_workload(const struct gpu_samples *s, const char *name, int rc, double seconds, const struct error *e)
{
    char step[32], nodes[32], took[32];
    const struct gpu_whole *w = s->wholes.n ? &s->wholes.at[s->wholes.n - 1] : NULL;
    if (rc) log_warn("calibrating: %s is left out: %.500s", name, e->text);
    else if (w)
        log_note("calibrating: %-30s %8s a step, its nodes %8s; took %s", name, duration_print(w->replay, step),
                 duration_print(w->nodes, nodes), duration_print(seconds, took));
}

/* Measures the workloads. One that fails, or that does not fit into the GPU's memory, is left out.
 * If all are left out, the error of the last one is returned. */
static int measure_all(struct gpu_samples *s, struct profile *p, enum dtype half, struct cuda_view *view,
                       struct error *e)
{
    double begun = clock_seconds();
    struct config c;
    struct run_options o;
    const char *name;
    int rc = PL_OK;
    for (int i = 0; gpu_workload(i, half, &c, &o, &name, e); i++) {
        double from = clock_seconds();
        rc = e->code;
        if (view->free_bytes) c.memory_budget = (struct config_budget){BUDGET_BYTES, view->free_bytes / 10 * 9};
        if (!rc && from - begun > SECONDS_ALL) rc = error_set(e, PL_USAGE, "the time limit is reached");
        if (!rc) rc = measure(s, name, &c, &o, p, view, e);
        log_workload(s, name, rc, clock_seconds() - from, e);
        config_free(&c);
    }
    return s->wholes.n ? PL_OK : rc;
}

int calibrate_gpu(struct profile *p, struct calibration *c, struct error *e)
{
    struct gpu_samples s = {0};
    struct cuda_view view = {0};
    struct gpu gpu = {0};
    time_t now = time(NULL);
    memset(c, 0, sizeof *c);
    if (cuda_gpu(&gpu, e)) return error_prepend(e, "there is no GPU to measure");
    profile_here(p, &gpu);
    p->published = NULL;
    int rc = measure_all(&s, p, gpu.capability < 80 ? DT_F16 : DT_BF16, &view, e);
    if (!rc) {
        snprintf(c->cpu, sizeof c->cpu, "%.*s", (int)sizeof c->cpu - 1, gpu.name);
        snprintf(c->isa, sizeof c->isa, "sm_%d", gpu.capability);
        strftime(c->date, sizeof c->date, "%Y-%m-%dT%H:%M:%SZ", gmtime(&now));
        gpu_fit(&s, p, c);
        log_note("calibrated: %u nodes in %d classes; a replay takes %.3f of the sum of its node times and %+.2f us "
                 "per node",
                 s.list.n, c->classes, s.speed, 1e6 * s.gap);
    }
    gpu_free(&s);
    return rc;
}

/* --- workloads --------------------------------------------------------------------------------
 *
 * Widths, heads, windows and
 * tokens are those of the presets; two layers contain each kind of node and keep it short. */

#define LLAMA(vocabulary, hidden, inner, layers, heads, kv_heads)                                               \
    "{\"model_type\": \"llama\", \"vocab_size\": " #vocabulary ", \"hidden_size\": " #hidden                    \
    ", \"intermediate_size\": " #inner ", \"num_hidden_layers\": " #layers ", \"num_attention_heads\": " #heads \
    ", \"num_key_value_heads\": " #kv_heads ", \"max_position_embeddings\": 4096, \"hidden_act\": \"silu\", "   \
    "\"rms_norm_eps\": 1e-05, \"rope_theta\": 10000.0, \"tie_word_embeddings\": true}"
#define SAM(hidden, heads, inner)                                                                              \
    "{\"model_type\": \"sam\", \"initializer_range\": 0.02, "                                                  \
    "\"vision_config\": {\"model_type\": \"sam_vision_model\", \"hidden_size\": " #hidden                      \
    ", \"num_hidden_layers\": 2, \"num_attention_heads\": " #heads ", \"mlp_dim\": " #inner                    \
    ", \"global_attn_indexes\": [1], \"window_size\": 14, \"image_size\": 1024, \"patch_size\": 16, "          \
    "\"output_channels\": 256, \"num_pos_feats\": 128, \"hidden_act\": \"gelu\", \"layer_norm_eps\": 1e-06}, " \
    "\"prompt_encoder_config\": {\"model_type\": \"sam_prompt_encoder\", \"hidden_size\": 256, "               \
    "\"image_size\": 1024, \"patch_size\": 16}, "                                                              \
    "\"mask_decoder_config\": {\"model_type\": \"sam_mask_decoder\", \"hidden_size\": 256, \"mlp_dim\": 2048}}"
#define VIT_B SAM(768, 12, 3072)
#define VIT_L SAM(1024, 16, 4096)
#define VIT_H SAM(1280, 16, 5120)
#define LM_1B LLAMA(32000, 2048, 5632, 2, 32, 4)
#define LM_7B LLAMA(32000, 4096, 11008, 1, 32, 32)
#define LORA "adapter.target_modules=all-linear"
#define LM_124M LLAMA(50257, 768, 2048, 2, 12, 12)

/* The first ones are small, so that a GPU that cannot run any of them fails at once. */
static const struct workload {
    const char *name, *preset, *config;
    int batch, sequence, chunks;
    const char *set[3];      /* more settings */
    bool full;               /* f32 */
} workloads[] = {
    {"sam-tiny", "sam-tiny", NULL, 4, 2, 1, {0}, false},
    {"llama-tiny", "llama-tiny", NULL, 8, 256, 1, {0}, false},
    {"ViT-B, 1 image", NULL, VIT_B, 1, 2, 1, {0}, false},
    {"ViT-B, 4 images", NULL, VIT_B, 4, 2, 1, {0}, false},
    {"ViT-B, 8 images", NULL, VIT_B, 8, 2, 2, {0}, false},
    {"ViT-B, 1 image, 32 masks", NULL, VIT_B, 1, 2, 1, {"data.format=sa1b"}, false},
    {"ViT-B, 8 images, 32 masks", NULL, VIT_B, 8, 2, 1, {"data.format=sa1b"}, false},
    {"ViT-H, 1 image", NULL, VIT_H, 1, 2, 1, {0}, false},
    {"ViT-H, 1 image, decoder in 8 chunks", NULL, VIT_H, 1, 2, 8, {0}, false},
    {"ViT-H, 2 images", NULL, VIT_H, 2, 2, 1, {0}, false},
    {"ViT-H, 4 images", NULL, VIT_H, 4, 2, 1, {0}, false},
    {"ViT-H, 8 images", NULL, VIT_H, 8, 2, 2, {0}, false},
    {"1.1 B, 1 x 2048", NULL, LM_1B, 1, 2048, 1, {0}, false},
    {"1.1 B, 4 x 2048", NULL, LM_1B, 4, 2048, 1, {0}, false},
    {"1.1 B, 8 x 2048", NULL, LM_1B, 8, 2048, 1, {0}, false},
    {"1.1 B, 8 x 2048, head in 8 chunks", NULL, LM_1B, 8, 2048, 8, {"memory.precision=bf16-pure"}, false},
    {"ViT-H with everything offloaded",
     NULL,
     VIT_H,
     2,
     2,
     1,
     {"memory.offload=[optimizer, masters, weights, activations]"},
     false},
    {"1.1 B with everything offloaded",
     NULL,
     LM_1B,
     4,
     2048,
     1,
     {"memory.offload=[optimizer, masters, weights, activations]"},
     false},
    {"1.1 B updated on the host", NULL, LM_1B, 1, 512, 1, {"memory.offload=[optimizer, masters, update]"}, false},
    {"7 B, 4 x 2048, LoRA", NULL, LM_7B, 4, 2048, 4, {LORA, "adapter.r=16"}, false},
    {"7 B, 1 x 2048, LoRA on NF4", NULL, LM_7B, 1, 2048, 1, {LORA, "adapter.r=16", "memory.quantize=nf4"}, false},
    {"ViT-H, 2 images, LoRA", NULL, VIT_H, 2, 2, 1, {LORA, "adapter.r=16"}, false},
    {"1.1 B, 8-bit state", NULL, LM_1B, 1, 512, 1, {"memory.optimizer=adamw-8bit"}, false},
    {"1.1 B, bf16 state", NULL, LM_1B, 1, 512, 1, {"memory.optimizer=adamw-bf16"}, false},
    {"TinySAM, 2 images", "tinysam", NULL, 2, 2, 1, {0}, false},
    {"TinySAM, 8 images", "tinysam", NULL, 8, 2, 1, {0}, false},
    {"7 B, 1 x 2048", NULL, LM_7B, 1, 2048, 1, {0}, false},
    {"7 B, 4 x 2048", NULL, LM_7B, 4, 2048, 4, {0}, false},
    {"1.1 B, 2 tokens, as a token of an answer", NULL, LM_1B, 1, 2, 1, {0}, false},
    {"7 B, 2 tokens, as a token of an answer", NULL, LM_7B, 1, 2, 1, {0}, false},
    {"0.5 B with 152 k tokens, head in 2 chunks", "qwen2-0.5b", NULL, 4, 2048, 2, {0}, false},
    {"0.5 B with 152 k tokens, head in 8 chunks", "qwen2-0.5b", NULL, 4, 2048, 8, {0}, false},
    {"124 M, 16 x 1024", NULL, LM_124M, 16, 1024, 1, {0}, false},
    {"SigLIP, 32 images", "siglip-base-16-224", NULL, 32, 2, 1, {0}, false},
    {"ViT-L, 2 images", NULL, VIT_L, 2, 2, 1, {0}, false},
    {"ViT-B in f32, 1 image", NULL, VIT_B, 1, 2, 1, {0}, true},
    {"124 M in f32, 4 x 1024", NULL, LM_124M, 4, 1024, 1, {0}, true},
};

/* Sets every key, so that the planner has nothing to search. */
static int set_all(struct config *c, const struct workload *w, enum dtype half, struct error *e)
{
    static const char *const always[] = {"device.kind=cuda",      "device.profile=default", "memory.recompute=none",
                                         "memory.fused_step=off", "memory.offload=none",    "memory.host_budget=none",
                                         "data.max_masks=32",     "train.clip_norm=1"};
    char sets[5][64];
    int n = 0, rc = PL_OK;
    snprintf(sets[n++], 64, "data.sequence=%d", w->sequence);
    snprintf(sets[n++], 64, "train.effective_batch=%d", w->batch);
    snprintf(sets[n++], 64, "memory.micro_batch=%d", w->batch);
    snprintf(sets[n++], 64, "memory.head_chunks=%d", w->chunks);
    snprintf(sets[n++], 64, "memory.precision=%s", dtype_name(w->full ? DT_F32 : half));
    for (size_t i = 0; i < COUNT(always) && !rc; i++) rc = config_set(c, always[i], e);
    for (int i = 0; i < n && !rc; i++) rc = config_set(c, sets[i], e);
    for (size_t i = 0; i < COUNT(w->set) && w->set[i] && !rc; i++) rc = config_set(c, w->set[i], e);
    if (!rc && w->preset) {
        snprintf(sets[0], 64, "model.preset=%s", w->preset);
        rc = config_set(c, sets[0], e);
    }
    return rc;
}

bool gpu_workload(int i, enum dtype half, struct config *c, struct run_options *o, const char **name, struct error *e)
{
    if (i >= (int)COUNT(workloads)) return false;
    *name = workloads[i].name;
    *o = (struct run_options){.train = true,
                              .describe = feed_describe,
                              .probe = true,
                              .config_json = workloads[i].config};
    e->code = PL_OK;
    config_init(c);
    if (set_all(c, &workloads[i], half, e)) error_prepend(e, "%s", *name);
    return true;
}
