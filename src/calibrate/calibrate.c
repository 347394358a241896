/*
 * calibrate.c: see calibrate.h.
 *
 * The peak rates are measured by loops that do nothing else (src/cpu/peak.c). The corrections are
 * measured on nodes inside training steps, with their neighbours' tensors in the caches: small and
 * medium language models, vision towers and a convolutional network, in f32 and in bf16, none of a
 * size that is used in practice. The time of a node is its minimum over several steps. The steps
 * come in rounds over all workloads, so that a temporary disturbance of the machine does not affect
 * only one workload. Nodes of one op, variant and class whose ideal times are within a factor of
 * four make one point of the curve, at their mean.
 *
 * The rate of the offload file is that of copies in a step whose state is larger than the caches of
 * the processor, between memory and pages that were written to the disk after the step before.
 */
#include <math.h>
#include <sys/mman.h>
#include <time.h>

#include "calibrate/bench.h"
#include "calibrate/calibrate.h"
#include "cpu/cpu.h"
#include "batch/feed.h"
#include "graph/emit.h"
#include "graph/ops.h"

#define LLAMA(vocabulary, hidden, inner, layers, heads, kv_heads)                                               \
    "{\"model_type\": \"llama\", \"vocab_size\": " #vocabulary ", \"hidden_size\": " #hidden                    \
    ", \"intermediate_size\": " #inner ", \"num_hidden_layers\": " #layers ", \"num_attention_heads\": " #heads \
    ", \"num_key_value_heads\": " #kv_heads ", \"max_position_embeddings\": 2048, \"hidden_act\": \"silu\", "   \
    "\"rms_norm_eps\": 1e-05, \"rope_theta\": 10000.0, \"tie_word_embeddings\": true}"
#define TOWER(type, hidden, inner, layers, heads, image, act)                                          \
    "{\"model_type\": \"" type "\", \"hidden_size\": " #hidden ", \"intermediate_size\": " #inner      \
    ", \"num_hidden_layers\": " #layers ", \"num_attention_heads\": " #heads ", \"num_channels\": 3, " \
    "\"image_size\": " #image ", \"patch_size\": 16, \"hidden_act\": \"" act "\"}"

/* The workloads that are timed. */
static const struct workload {
    const char *name, *config;
    struct maps_config maps;   /* used if there is no config */
    int batch, sequence;
    bool offload;              /* only its copies are used, which miss the caches */
} workloads[] = {
    {"a language model of 96", LLAMA(320, 96, 256, 2, 3, 3), {0}, 4, 160, false},
    {"a language model of 160", LLAMA(512, 160, 432, 2, 5, 5), {0}, 6, 320, false},
    {"a language model of 256", LLAMA(2000, 256, 704, 2, 4, 4), {0}, 4, 192, false},
    {"a language model of 640", LLAMA(8000, 640, 1728, 2, 10, 10), {0}, 2, 448, false},
    {"a language model of 896", LLAMA(44000, 896, 2432, 1, 14, 14), {0}, 2, 384, false},
    {"a tower of 192", TOWER("clip_vision_model", 192, 768, 2, 3, 160, "quick_gelu"), {0}, 2, 2, false},
    {"a tower of 384", TOWER("siglip_vision_model", 384, 1536, 2, 6, 192, "gelu_pytorch_tanh"), {0}, 4, 2, false},
    {"a tower of 640", TOWER("clip_vision_model", 640, 2560, 2, 10, 208, "quick_gelu"), {0}, 4, 2, false},
    {"a tower of 896", TOWER("clip_vision_model", 896, 3584, 1, 14, 240, "quick_gelu"), {0}, 3, 2, false},
    {"maps of 24", NULL, {48, 24}, 2, 2, false},
    {"maps of 64", NULL, {144, 64}, 2, 2, false},
    {"a language model of 640 with offloaded optimizer state", LLAMA(32000, 640, 1728, 1, 10, 10), {0}, 1, 32, true},
};

enum { ROUNDS = 3, STEPS_LEAST = 2, STEPS_MOST = 20 };
#define SECONDS_EACH 0.5   /* duration of the steps of a round, after STEPS_LEAST... */
#define SECONDS_COPIES 2.  /* ...and where only copies are used */
#define CACHED_BYTES (1 << 20)
#define STREAMED_BYTES (384u << 20)

/* One node of a workload. */
struct rate_sample {
    enum op op;
    int variant;
    enum dtype_class half;
    double ideal, seconds;     /* per launch */
};

struct rate_samples {
    VEC(struct rate_sample) list;
    uint32_t next;             /* index in a later round: the nodes come in the same order */
    double copied, copy_seconds; /* in the fastest round */
};

/* --- measuring ----------------------------------------------------------------------- */

static int set_all(struct config *c, const struct workload *w, enum dtype precision, int threads, struct error *e)
{
    char sets[8][64];
    int n = 0, rc = PL_OK;
    snprintf(sets[n++], 64, "data.sequence=%d", w->sequence);
    snprintf(sets[n++], 64, "train.effective_batch=%d", w->batch);
    snprintf(sets[n++], 64, "memory.micro_batch=%d", w->batch);
    snprintf(sets[n++], 64, "memory.precision=%s", dtype_name(precision));
    snprintf(sets[n++], 64, "memory.offload=%s", w->offload ? "optimizer" : "none");
    snprintf(sets[n++], 64, "device.threads=%d", threads);
    snprintf(sets[n++], 64, "device.profile=default");
    snprintf(sets[n++], 64, "memory.recompute=none");
    for (int i = 0; i < n && !rc; i++) rc = config_set(c, sets[i], e);
    if (!rc) rc = config_set(c, "memory.head_chunks=1", e);
    return rc ? rc : config_set(c, "train.clip_norm=1", e);
}

/* Writes the offload file to the disk: the kernel does so between two steps of usual length. The
 * step that follows finds the pages in memory and writes to each for the first time again, which
 * takes a page fault. */
static void flush_offloaded(const struct device *d)
{
    if (d->arena[SPACE_HOST]) msync(d->arena[SPACE_HOST], d->bytes[SPACE_HOST], MS_SYNC);
}

/* Measures the minimum time of each node over several steps, which take `seconds` together. */
static int time_nodes(struct bench *b, double seconds, struct timing *least, struct error *e)
{
    double begun = clock_seconds();
    int rc = PL_OK;
    timing_init(least, &b->run.planned.graph);
    for (int i = 0; i < STEPS_MOST && !rc && (i < STEPS_LEAST || clock_seconds() - begun < seconds); i++) {
        flush_offloaded(&b->run.device);
        rc = bench_run(b, 1, e);
        for (id n = 1; n < least->nodes; n++) {
            if (!i || b->now.seconds[n] < least->seconds[n]) least->seconds[n] = b->now.seconds[n];
            least->calls[n] = b->now.calls[n];
        }
    }
    return rc;
}

static void add_sample(struct rate_samples *s, const struct rate_sample *x, int round)
{
    if (!round) vec_push(&s->list, *x);
    struct rate_sample *had = &s->list.at[s->next++];
    CHECK(had->op == x->op && had->ideal == x->ideal);
    if (x->seconds < had->seconds) had->seconds = x->seconds;
}

static void add_samples(struct rate_samples *s, const struct graph *g, const struct timing *t, const struct profile *p,
                        bool copies, int round)
{
    double copied = 0, seconds = 0;
    for (id n = 1; n < t->nodes; n++) {
        const struct node *x = node_at(g, n);
        struct query q;
        if (!t->calls[n]) continue;
        query_fill(&q, g, x, p);
        if (q.crosses) {
            copied += (double)tensor_bytes(q.in[0]) * t->calls[n];
            seconds += t->seconds[n];
        } else if (!copies) {
            struct rate_sample one = {x->op, op_variant(x->op, q.in, q.attr), query_class(&q), kernel_ideal(&q, x->op),
                                 t->seconds[n] / t->calls[n]};
            add_sample(s, &one, round);
        }
    }
    if (copied > 0 && (!s->copied || copied / seconds > s->copied / s->copy_seconds)) {
        s->copied = copied;
        s->copy_seconds = seconds;
    }
}

static int measure(struct rate_samples *s, const struct workload *w, enum dtype precision, const struct profile *p,
                   int round, struct error *e)
{
    struct config c;
    struct bench b;
    struct timing least = {0};
    struct maps_config maps = w->maps;
    struct definition define = {&calibrate_maps_family, &maps, "{}"};
    struct run_options o = {.train = true, .describe = feed_describe, .probe = true, .config_json = w->config,
                            .define = w->config ? NULL : &define};
    config_init(&c);
    int rc = set_all(&c, w, precision, p->threads, e);
    if (!rc) {
        rc = bench_open(&b, &c, &o, e);
        if (!rc) rc = time_nodes(&b, w->offload ? SECONDS_COPIES : SECONDS_EACH, &least, e);
        if (!rc) add_samples(s, &b.run.planned.graph, &least, p, w->offload, round);
        timing_free(&least);
        bench_close(&b);
    }
    config_free(&c);
    return rc ? error_prepend(e, "%s", w->name) : PL_OK;
}

/* --- from samples to curves --------------------------------------------------------------- */

/* Estimates the cost of a launch by the cheapest of many nodes with almost no work, which cost one
 * launch each. */
static double find_launch(const struct rate_samples *s)
{
    double least = 1e-5;
    for (uint32_t i = 0; i < s->list.n; i++)
        if (s->list.at[i].ideal < 1e-6 && s->list.at[i].seconds < least) least = s->list.at[i].seconds;
    return least;
}

static void make_curve(struct curve *c, const struct rate_samples *s, enum op op, int variant, enum dtype_class half,
                       double launch)
{
    struct curve_fit fit = {0};
    for (uint32_t i = 0; i < s->list.n; i++) {
        const struct rate_sample *x = &s->list.at[i];
        if (x->op == op && x->variant == variant && x->half == half) curve_fit_add(&fit, x->ideal, x->seconds - launch);
    }
    curve_fit_end(&fit, c);
}

static void make_curves(struct calibration *c, const struct rate_samples *s, double launch)
{
    for (int op = 1; op < OP_COUNT; op++)
        for (int v = 0; v < OP_VARIANTS; v++)
            for (int half = 0; half < CLASS_COUNT; half++) make_curve(&c->curve[op][v][half], s, op, v, half, launch);
}

/* --- the whole ------------------------------------------------------------------------------- */

static int measure_ceilings(struct profile *p, struct error *e)
{
    p->flops_f32 = peak_measure(DT_F32, p->threads);
    p->flops_bf16 = p->flops_fp8 = peak_measure(DT_BF16, p->threads);
    p->cache_bytes = (double)CACHED_BYTES * p->threads;
    p->cache_bandwidth = peak_stream((uint64_t)p->cache_bytes, p->threads);
    p->memory_bandwidth = peak_stream(STREAMED_BYTES, p->threads);
    if (!p->cache_bandwidth || !p->memory_bandwidth)
        return error_set(e, PL_FAIL, "no memory for %u MiB of arrays", STREAMED_BYTES >> 20);
    /* Memory that measures faster than the caches means that the machine was disturbed. */
    if (p->cache_bandwidth < p->memory_bandwidth) p->cache_bandwidth = p->memory_bandwidth;
    return PL_OK;
}

/* Warns of other processes, which make this machine look slower than it is. */
static void warn_if_busy(void)
{
    double load = 0;
    if (getloadavg(&load, 1) == 1 && load > 0.5)
        log_warn("the load average is %.1f: other processes make the profile too slow; calibrate on an idle machine",
                 load);
}

int calibrate(struct profile *p, struct calibration *c, int threads, struct error *e)
{
    static const enum dtype precisions[] = {DT_F32, DT_BF16};
    struct rate_samples s = {0};
    struct cpu_identity cpu;
    time_t now = time(NULL);
    memset(c, 0, sizeof *c);
    struct progress progress;
    int rc = PL_OK;
    profile_default(p, DEVICE_CPU, threads);
    profile_onednn(p, false);
    cpu_identity(&cpu);
    snprintf(c->cpu, sizeof c->cpu, "%s", cpu.name);
    snprintf(c->isa, sizeof c->isa, "%s", cpu.isa);
    strftime(c->date, sizeof c->date, "%Y-%m-%dT%H:%M:%SZ", gmtime(&now));
    warn_if_busy();
    progress_begin(&progress, "calibrating", "workloads", ROUNDS * COUNT(workloads));
    if (!rc) rc = measure_ceilings(p, e);
    for (int round = 0; round < ROUNDS && !rc; round++) {
        s.next = 0;
        for (size_t i = 0; i < COUNT(workloads) && !rc; i++, progress_add(&progress, 1))
            for (size_t k = 0; k < COUNT(precisions) && !rc && !(k && workloads[i].offload); k++)
                rc = measure(&s, &workloads[i], precisions[k], p, round, e);
    }
    progress_clear();
    if (!rc) {
        if (s.copy_seconds > 0) p->copy_bandwidth = s.copied / s.copy_seconds;
        p->launch_seconds = find_launch(&s);
        make_curves(c, &s, p->launch_seconds);
        p->measured = c;
    }
    vec_free(&s.list);
    return rc;
}

/* --- curves from launches --------------------------------------------------------------------- */

#define IDEAL_LEAST 1e-7

/* Buckets begin at 1e-7 seconds; each spans a factor of four. */
static int bucket_of(double ideal)
{
    int k = ideal > IDEAL_LEAST ? (int)floor(log2(ideal / IDEAL_LEAST) / 2) : 0;
    return k < CURVE_POINTS ? k : CURVE_POINTS - 1;
}

void curve_fit_add(struct curve_fit *f, double ideal, double seconds)
{
    struct curve_bucket *b = &f->bucket[bucket_of(ideal)];
    b->n++;
    b->ideal += fmax(ideal, IDEAL_LEAST);
    b->seconds += fmax(seconds, 0);
}

void curve_fit_end(const struct curve_fit *f, struct curve *c)
{
    c->n = 0;
    for (int k = 0; k < CURVE_POINTS; k++) {
        const struct curve_bucket *b = &f->bucket[k];
        if (b->n) c->at[c->n++] = (struct curve_point){b->ideal / b->n, fmin(fmax(b->seconds / b->ideal, 0.01), 1e5)};
    }
}

/* --- a network for timing only ----------------------------------------------------------------
 *
 * It contains the ops that language models and vision
 * towers do not have. Its loss is the mean square of its result, so that every op has a gradient.
 *
 *     conv /2, norm, act   ->  depthwise, norm, act  ->  1x1, act  ->  3x3, act
 *     ->  resize x 2  ->  pool / 2  ->  concat with its beginning  ->  transposed x 2 */

static id weight(struct graph *g, const char *name, int64_t a, int64_t b, int64_t kh, int64_t kw)
{
    return graph_param(g, name, DT_F32, 4, (int64_t[]){a, b, kh, kw}, (struct init){INIT_NORMAL, 0.05f, 0});
}

static id vector(struct graph *g, const char *name, int64_t n, enum init_kind kind)
{
    return graph_param(g, name, DT_F32, 1, &n, (struct init){kind, 0, 0});
}

static id normed(struct graph *g, id x, const char *name, int64_t C, int64_t group)
{
    char w[64], b[64];
    snprintf(w, sizeof w, "%s.weight", name);
    snprintf(b, sizeof b, "%s.bias", name);
    id scale = vector(g, w, C, INIT_ONE), shift = vector(g, b, C, INIT_ZERO);
    return op_batchnorm(g, x, scale, shift, group, 1e-5f, 0, 0, 0);
}

static id all_activations(struct graph *g, id x)
{
    static const enum act_kind kinds[] = {ACT_GELU, ACT_SILU, ACT_TANH, ACT_SIGMOID, ACT_GELU_TANH};
    for (size_t i = 0; i < COUNT(kinds); i++) x = op_act(g, x, kinds[i]);
    return x;
}

static void build(const struct model *m, struct graph *g, const struct batch *b)
{
    const struct maps_config *c = m->config;
    int64_t H = c->image, C = c->channels;
    id x = graph_input(g, "pixels", DT_F32, 4, (int64_t[]){b->B, H, H, 3});
    id w = weight(g, "stem", C, 3, 3, 3), bias = vector(g, "stem.bias", C, INIT_ZERO);
    x = op_conv(g, x, w, bias, 2, 1, 1);
    id begin = x = op_act(g, normed(g, x, "stem.norm", C, b->B), ACT_RELU);
    x = op_conv(g, x, weight(g, "deep", C, 1, 3, 3), 0, 1, 1, (int)C);
    x = op_act(g, normed(g, x, "deep.norm", C, 1), ACT_RELU);
    w = weight(g, "wide", 2 * C, C, 1, 1), bias = vector(g, "wide.bias", 2 * C, INIT_ZERO);
    x = op_conv(g, x, w, bias, 1, 0, 1);
    x = all_activations(g, x);
    x = op_conv(g, x, weight(g, "narrow", C, 2 * C, 3, 3), 0, 1, 1, 1);
    x = op_resize(g, x, H, H, false);
    x = op_avgpool(g, x, (int64_t[]){2, 2}, (int64_t[]){2, 2}, (int64_t[]){0, 0}, false);
    x = op_concat(g, (id[]){x, begin}, 2, 3);
    x = op_softmax(g, x);
    w = weight(g, "back", 2 * C, C, 2, 2), bias = vector(g, "back.bias", C, INIT_ZERO);
    x = op_conv_transpose(g, x, w, bias, 2, 0);
    id wide = op_cast(g, x, DT_F32), sum = op_sum(g, op_mul(g, wide, wide));
    graph_output(g, "loss", op_mul(g, sum, graph_count(g, NULL)));
}

const struct family calibrate_maps_family = {.model_type = "calibrate_maps", .build = build};
