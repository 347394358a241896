/*
 * bench_cuda_attention.c: only attention, forward and backward, through the kernel tables.
 *
 *     bench_cuda_attention [--device cpu] [--repeats 20] [--key-heads N] [--cap C] CASE...
 *
 *     dense,B,H,T,D,CAUSAL      CAUSAL is 0 or 1
 *     packed,B,H,T,D,N          N causal documents of T / N tokens in each row, as ranges of keys
 *     rel,B,H,HEIGHT,WIDTH,D    SAM's decomposed positions over a grid. A small square grid with B
 *                               a multiple of 25 is a window: B / 25 images of 5 x 5 windows, as
 *                               ATTENTION_WINDOW takes them
 *
 * All operands are bf16 [B,T,H,D]. The two nodes form a program, placed like any other and launched
 * node by node: on a GPU each is timed by events on the stream (src/cuda/device/nodes.c). Each case
 * prints one line of JSON: the medians, the arena with all operands, and the bytes of the arena
 * that are neither an operand nor a result. bench/peer_attention.py prints the same numbers for
 * PyTorch.
 */
#include <math.h>

#include "base/random.h"
#include "graph/ops.h"
#include "plan/plan.h"

enum { WARM = 3, REPEATS_MOST = 1000, PATTERN = 1000003, CHUNK = 1 << 20 };

struct shape {
    bool relative, causal;
    int64_t B, H, T, D, height, width;
    int64_t documents; /* 0: no ranges */
    int64_t window; /* 0: none */
};
enum { ACROSS = 5 };
static int64_t key_heads; /* --key-heads; 0: as many as query heads */
static float cap;         /* --cap, of dense and packed; 0: none */

struct bench {
    struct shape shape;
    struct graph graph;
    struct plan plan;
    struct device device;
    struct tape tape;
    struct timing timing;
    id forward, backward; /* nodes */
    double ms[2];
};

static bool read_shape(const char *text, struct shape *s)
{
    long long n[5];
    char kind[8];
    if (sscanf(text, "%7[a-z],%lld,%lld,%lld,%lld,%lld", kind, &n[0], &n[1], &n[2], &n[3], &n[4]) != 6) return false;
    *s = (struct shape){.relative = !strcmp(kind, "rel"), .B = n[0], .H = n[1]};
    if (s->relative) s->height = n[2], s->width = n[3], s->T = n[2] * n[3], s->D = n[4];
    else if (!strcmp(kind, "packed")) s->T = n[2], s->D = n[3], s->documents = n[4];
    else s->T = n[2], s->D = n[3], s->causal = n[4] != 0;
    if (s->relative && s->height == s->width && s->height < 32 && s->B % (ACROSS * ACROSS) == 0) {
        s->window = s->height, s->B /= ACROSS * ACROSS;
        s->height = s->width = ACROSS * s->window, s->T = s->height * s->width;
    }
    if (!strcmp(kind, "packed") && (s->documents < 1 || s->documents > s->T)) return false;
    return (s->relative || s->documents || !strcmp(kind, "dense")) && s->B > 0 && s->H > 0 && s->T > 0 && s->D > 0;
}

static id make_param(struct bench *b, const char *name, int rank, const int64_t *dim, double deviation)
{
    return graph_param(&b->graph, name, DT_BF16, rank, dim, (struct init){INIT_NORMAL, (float)deviation, 0});
}

/* Each query sees its document up to itself. */
static id make_ranges(struct bench *b)
{
    const struct shape *s = &b->shape;
    const int64_t length = (s->T + s->documents - 1) / s->documents;
    int32_t (*data)[2] = mem_alloc((size_t)(s->B * s->T) * sizeof *data);
    for (int64_t i = 0; i < s->B * s->T; i++)
        data[i][0] = (int32_t)(i % s->T / length * length), data[i][1] = (int32_t)(i % s->T + 1);
    id ranges = graph_const(&b->graph, "ranges", DT_I32, 3, (int64_t[]){s->B, s->T, 2}, data);
    mem_free(data);
    return ranges;
}

/* The forward gives o and lse; the backward gives the gradients from do. All results are
 * outputs. */
static void build(struct bench *b)
{
    const struct shape *s = &b->shape;
    struct graph *g = &b->graph;
    const int64_t heads[4] = {s->B, s->T, s->H, s->D},
                  keys[4] = {s->B, s->T, key_heads && !s->relative ? key_heads : s->H, s->D};
    const float scale = (float)(1 / sqrt((double)s->D));
    id q = make_param(b, "q", 4, heads, 1), k = make_param(b, "k", 4, keys, 1), v = make_param(b, "v", 4, keys, 1), o,
       in[8];
    int nin = 6;
    if (s->relative) {
        id h = make_param(b, "table_h", 2, (int64_t[]){2 * (s->window ? s->window : s->height) - 1, s->D}, 0.02);
        id w = make_param(b, "table_w", 2, (int64_t[]){2 * (s->window ? s->window : s->width) - 1, s->D}, 0.02);
        if (s->window)
            o = op_attention_window(g, q, k, v, h, w, 0,
                                    (struct window_options){(int)s->height, (int)s->width, (int)s->window, scale});
        else o = op_attention_rel(g, q, k, v, h, w, (int)s->height, (int)s->width, scale);
        in[nin++] = h;
        in[nin++] = w;
    } else if (s->documents) {
        id ranges = make_ranges(b);
        o = op_attention_with(g, q, k, v, 0, (struct attention_options){.scale = scale, .cap = cap, .ranges = ranges});
        in[nin++] = 0, in[nin++] = ranges;
    } else {
        o = op_attention_with(g, q, k, v, 0,
                              (struct attention_options){.scale = scale, .cap = cap, .causal = s->causal});
    }
    b->forward = o ? tensor_at(g, o)->node : 0;
    if (!b->forward) return;
    const struct node f = *node_at(g, b->forward);
    id first[6] = {make_param(b, "do", 4, heads, 1), q, k, v, f.out[0], f.out[1]};
    memcpy(in, first, sizeof first);
    b->backward = graph_emit(g,
                             s->window     ? OP_ATTENTION_WINDOW_BWD
                             : s->relative ? OP_ATTENTION_REL_BWD
                                           : OP_ATTENTION_BWD,
                             &f.attr, in, nin);
    graph_output(g, "o", o);
    for (int i = 0; b->backward && i < node_at(g, b->backward)->nout; i++) {
        char name[16];
        snprintf(name, sizeof name, "gradient%d", i);
        graph_output(g, name, node_at(g, b->backward)->out[i]);
    }
    graph_verify(g, "build");
}

/* Normal numbers with the parameter's deviation; one pattern is repeated. */
static int fill(struct bench *b, struct error *e)
{
    float *normal = mem_alloc(PATTERN * sizeof *normal);
    uint16_t *piece = mem_alloc(CHUNK * sizeof *piece);
    int rc = PL_OK;
    random_normal(normal, random_key(1, "attention"), 0, PATTERN, 1);
    for (uint32_t i = 0; i < b->graph.params.n && !rc; i++) {
        const struct param *p = &b->graph.params.at[i];
        const int64_t n = tensor_elements(tensor_at(&b->graph, p->tensor));
        if (p->init.kind == INIT_DATA) {
            rc = b->device.ops->write(&b->device, tape_address(&b->tape, p->tensor), b->graph.blob.at + p->init.data,
                                      tensor_bytes(tensor_at(&b->graph, p->tensor)), e);
            continue;
        }
        for (int64_t at = 0; at < n && !rc; at += CHUNK) {
            const int64_t here = min_i64(CHUNK, n - at);
            for (int64_t j = 0; j < here; j++)
                piece[j] = f32_to_bf16((float)p->init.std * normal[(at + j + 7919 * i) % PATTERN]);
            rc = b->device.ops->write(&b->device, (char *)tape_address(&b->tape, p->tensor) + 2 * at, piece,
                                      2 * (uint64_t)here, e);
        }
    }
    mem_free(piece);
    mem_free(normal);
    return rc;
}

static int open_bench(struct bench *b, enum device_kind kind, struct error *e)
{
    graph_init(&b->graph);
    build(b);
    int rc = graph_error(&b->graph, e);
    if (!rc) rc = device_open(&b->device, kind, 0, e);
    if (!rc) rc = plan_place(&b->plan, &b->graph, &b->device.profile, e);
    if (!rc && (!b->plan.placement.binding[b->forward].kernel || !b->plan.placement.binding[b->backward].kernel))
        rc = error_set(e, PL_USAGE, "the device has no kernel for this");
    if (!rc) rc = device_allocate(&b->device, b->plan.placement.arena, e);
    if (rc) return rc;
    tape_build(&b->tape, &b->graph, &b->plan.placement, b->device.arena, b->device.profile.threads, NULL);
    rc = b->device.ops->record(&b->device, &b->tape, e);
    return rc ? rc : fill(b, e);
}

static int by_value(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return a < b ? -1 : a > b;
}

static int measure(struct bench *b, int repeats, struct error *e)
{
    double seconds[2][REPEATS_MOST];
    int rc = PL_OK;
    timing_init(&b->timing, &b->graph);
    b->tape.timing = &b->timing;
    for (int i = -WARM; i < repeats && !rc; i++) {
        timing_clear(&b->timing);
        rc = b->device.ops->run(&b->device, &b->tape, PROGRAM_STEP, e);
        if (i < 0) continue;
        seconds[0][i] = b->timing.seconds[b->forward];
        seconds[1][i] = b->timing.seconds[b->backward];
    }
    for (int k = 0; k < 2 && !rc; k++) {
        qsort(seconds[k], (size_t)repeats, sizeof **seconds, by_value);
        b->ms[k] = 1e3 * (seconds[k][(repeats - 1) / 2] + seconds[k][repeats / 2]) / 2;
    }
    return rc;
}

/* The bytes of parameters and outputs, which a caller needs whatever the kernels do. */
static uint64_t operand_bytes(const struct graph *g)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < g->params.n; i++) sum += tensor_bytes(tensor_at(g, g->params.at[i].tensor));
    for (uint32_t i = 0; i < g->outputs.n; i++) sum += tensor_bytes(tensor_at(g, g->outputs.at[i].tensor));
    return sum;
}

static void print_case(const struct bench *b, const char *name)
{
    const uint64_t arena = plan_arena(&b->plan), operands = operand_bytes(&b->graph);
    const struct binding *binding = b->plan.placement.binding;
    printf("{\"side\": \"ours\", \"route\": \"ours\", \"case\": \"%s\", \"forward_ms\": %.5f, \"backward_ms\": %.5f, "
           "\"both_ms\": %.5f, \"peak_bytes\": %llu, "
           "\"extra_bytes\": %llu, \"kernel\": \"%s\", \"backward_kernel\": \"%s\"}\n",
           name, b->ms[0], b->ms[1], b->ms[0] + b->ms[1], (unsigned long long)arena,
           (unsigned long long)(arena > operands ? arena - operands : 0), binding[b->forward].kernel->name,
           binding[b->backward].kernel->name);
    fflush(stdout);
}

/* A failed case frees nothing: the process ends. */
static int run_case(const char *name, enum device_kind kind, int repeats)
{
    struct bench *b = mem_alloc(sizeof *b);
    struct error e = {0};
    int rc =
        read_shape(name, &b->shape)
            ? PL_OK
            : error_set(&e, PL_USAGE, "a case is dense,B,H,T,D,CAUSAL, packed,B,H,T,D,N or rel,B,H,HEIGHT,WIDTH,D");
    if (!rc) rc = open_bench(b, kind, &e);
    if (!rc) rc = measure(b, repeats, &e);
    if (rc) {
        fprintf(stderr, "%s: %s\n", name, e.text);
    } else {
        print_case(b, name);
        device_close(&b->device, &b->tape);
        tape_free(&b->tape);
        timing_free(&b->timing);
        plan_free(&b->plan);
        graph_free(&b->graph);
    }
    mem_free(b);
    return rc;
}

int main(int argc, char **argv)
{
    enum device_kind kind = DEVICE_CUDA;
    int repeats = 20, worst = 0;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--device") && i + 1 < argc) kind = strcmp(argv[++i], "cpu") ? DEVICE_CUDA : DEVICE_CPU;
        else if (!strcmp(argv[i], "--key-heads") && i + 1 < argc) key_heads = atoi(argv[++i]);
        else if (!strcmp(argv[i], "--cap") && i + 1 < argc) cap = (float)atof(argv[++i]);
        else if (!strcmp(argv[i], "--repeats") && i + 1 < argc) repeats = atoi(argv[++i]);
        else if (repeats < 1 || repeats > REPEATS_MOST)
            return fprintf(stderr, "--repeats is 1 to %d\n", REPEATS_MOST), PL_USAGE;
        else if (run_case(argv[i], kind, repeats)) worst = 1;
    }
    return worst;
}
