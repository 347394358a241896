/*
 * bench_cuda_update.c: only ADAMW and SUMSQ, over all weights of Llama 1.1 B, through the kernel
 * tables.
 *
 *     bench_cuda_update [--device cpu] [--layers 22] [--rows 32000] [--repeats 20] [--special]
 *
 * Each case prints one line: the time of one replay of the recorded program (the median of several
 * measurements of RUNS replays), TB/s with each operand read once and each result written once, and
 * a hash of p, m, v and w after the first update (of SUMSQ: the sum's bits). Equal hashes show that
 * two builds, or a GPU and the CPU, give the same bits. With --special every 61st number is a
 * special value (denormals, infinities, NaN) and sizes are odd. Such a run compares the hashes of
 * two builds only, since a NaN has other bits on a CPU.
 */
#include <math.h>

#include "base/random.h"
#include "graph/ops.h"
#include "plan/plan.h"

enum { WARM = 3, REPEATS_MOST = 1000, RUNS = 5, CHUNK = 1 << 20, TENSORS = 1024, SPECIAL = 61 };

struct scenario {
    const char *name;
    enum dtype p, g, m, w; /* p DT_NONE: SUMSQ of g */
};
static const struct scenario scenarios[] = {
    {"ADAMW p bf16, m v bf16, g bf16", DT_BF16, DT_BF16, DT_BF16, DT_NONE},
    {"ADAMW p bf16, m v bf16, g f32", DT_BF16, DT_F32, DT_BF16, DT_NONE},
    {"ADAMW p f32, m v f32, g f32, w bf16", DT_F32, DT_F32, DT_F32, DT_BF16},
    {"SUMSQ bf16", DT_NONE, DT_BF16, DT_NONE, DT_NONE},
    {"SUMSQ f32", DT_NONE, DT_F32, DT_NONE, DT_NONE},
};

enum role { P, G, M, V, W, ROLES };

struct options {
    enum device_kind kind;
    int64_t layers, rows;
    int repeats;
    bool special;
};

struct bench {
    const struct scenario *of;
    int64_t size[TENSORS], elements;
    int tensors;
    id at[TENSORS][ROLES], clip, sum;
    struct graph graph;
    struct plan plan;
    struct device device;
    struct tape tape;
};

/* The tensors of each layer, between the embedding table and the LM head. */
static void list_sizes(struct bench *b, const struct options *o)
{
    const int64_t C = 2048, layer[] = {C, C * C, 256 * C, 256 * C, C * C, C, 5632 * C, 5632 * C, 5632 * C};
    b->size[b->tensors++] = o->rows * C;
    for (int64_t i = 0; i < o->layers; i++)
        for (size_t k = 0; k < COUNT(layer); k++) b->size[b->tensors++] = layer[k];
    b->size[b->tensors++] = C;
    b->size[b->tensors++] = o->rows * C;
    for (int i = 0; i < b->tensors; i++) b->elements += b->size[i] += o->special ? i % 8 : 0;
}

static id state_tensor(struct graph *g, const char *name, enum kind kind, enum dtype t, int64_t n)
{
    if (t == DT_NONE) return 0;
    id s = graph_storage(g, name, kind, SPACE_DEVICE, (uint64_t)n * dtype_size(t));
    return graph_tensor(g, name, s, t, 1, &n, 0);
}

static void build(struct bench *b)
{
    struct graph *g = &b->graph;
    g->at.program = PROGRAM_UPDATE;
    g->at.phase = PHASE_UPDATE;
    const bool update = b->of->p != DT_NONE;
    if (update) b->clip = graph_input(g, "clip", DT_F32, 1, (int64_t[]){2});
    else b->sum = op_fill(g, DT_F64, 0, NULL, 0);
    for (int i = 0; i < b->tensors; i++) {
        id *x = b->at[i];
        x[P] = state_tensor(g, "p", KIND_MASTER, b->of->p, b->size[i]);
        x[G] = state_tensor(g, "g", KIND_GRAD, b->of->g, b->size[i]);
        x[M] = state_tensor(g, "m", KIND_STATE, b->of->m, b->size[i]);
        x[V] = state_tensor(g, "v", KIND_STATE, b->of->m, b->size[i]);
        x[W] = state_tensor(g, "w", KIND_PARAM, b->of->w, b->size[i]);
        const union attr attr = {.adamw = {0.9, 0.95, 1e-8, i % 2 ? 0.1 : 0, 1, (uint64_t)i}};
        if (update)
            graph_emit(g, OP_ADAMW, &attr, (id[]){x[P], x[G], x[M], x[V], graph_step(g), b->clip, x[W]}, x[W] ? 7 : 6);
        else b->sum = op_apply(g, OP_SUMSQ, NULL, (id[]){x[G], b->sum}, 2);
    }
    if (!update) graph_output(g, "sum", b->sum);
    graph_verify(g, "build");
}

/* Numbers for one role of tensor: a chunk, and TENSORS more so that each tensor can start at its
 * own offset. */
static void *pattern_of(enum role role, enum dtype t, bool special)
{
    static const float odd[] = {0,     -0.0f,  1e-40f, -3e-41f,  1e-30f, -1e-22f, 1e-19f,
                                3e13f, -2e18f, 1e-13f, INFINITY, NAN,    1e-37f,  1e19f};
    static const double deviation[ROLES] = {0.02, 1e-3, 1e-4, 1e-3, 0};
    const int64_t n = CHUNK + TENSORS;
    float *normal = mem_alloc((size_t)n * sizeof *normal);
    char *to = mem_alloc((size_t)n * dtype_size(t));
    random_normal(normal, random_key(1, "update"), (uint64_t)role << 32, n, (float)deviation[role]);
    for (int64_t i = 0; i < n; i++) {
        float x = role == V ? normal[i] * normal[i] : normal[i];
        if (special && (i + 7 * role) % SPECIAL == 0) x = odd[random_bits((uint64_t)role, (uint64_t)i) % COUNT(odd)];
        dtype_store(to, t, i, x);
    }
    mem_free(normal);
    return to;
}

static int fill(struct bench *b, bool special, struct error *e)
{
    const struct step_block step =
        {.learning_rate = 1e-4f, .clip_norm = 1, .loss_scale = 1, .seed = 5, .rng_step = 2, .step = 3, .adam_t = 3};
    int rc = PL_OK;
    if (b->graph.step)
        rc = b->device.ops->write(&b->device, tape_address(&b->tape, b->graph.step), &step, sizeof step, e);
    if (b->clip && !rc)
        rc = b->device.ops->write(&b->device, tape_address(&b->tape, b->clip), (float[]){3.5f, 0.75f},
                                  2 * sizeof(float), e);
    for (int r = 0; r < ROLES && !rc; r++) {
        if (!b->at[0][r]) continue;
        const enum dtype t = (enum dtype)tensor_at(&b->graph, b->at[0][r])->dtype;
        char *from = pattern_of((enum role)r, t, special);
        for (int i = 0; i < b->tensors && !rc; i++)
            for (int64_t k = 0; k < b->size[i] && !rc; k += CHUNK) {
                char *to = (char *)tape_address(&b->tape, b->at[i][r]) + (uint64_t)k * dtype_size(t);
                rc = b->device.ops->write(&b->device, to, from + (size_t)i * dtype_size(t),
                                          (uint64_t)min_i64(CHUNK, b->size[i] - k) * dtype_size(t), e);
            }
        mem_free(from);
    }
    return rc;
}

static int hash(struct bench *b, uint64_t *sum, struct error *e)
{
    char *piece = mem_alloc(CHUNK * sizeof(double));
    int rc = PL_OK;
    *sum = 1;
    if (b->sum) rc = b->device.ops->read(&b->device, sum, tape_address(&b->tape, b->sum), sizeof *sum, e);
    for (int i = 0; i < b->tensors * ROLES && !rc && !b->sum; i++) {
        const id x = b->at[i / ROLES][i % ROLES];
        const uint64_t bytes = x && i % ROLES != G ? tensor_bytes(tensor_at(&b->graph, x)) : 0;
        for (uint64_t k = 0, part; k < bytes && !rc; k += part) {
            part = bytes - k < CHUNK ? bytes - k : CHUNK;
            rc = b->device.ops->read(&b->device, piece, (char *)tape_address(&b->tape, x) + k, part, e);
            *sum = hash_bytes(piece, part, *sum);
        }
    }
    mem_free(piece);
    return rc;
}

static int by_value(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return a < b ? -1 : a > b;
}

/* Seconds of a run; reading a byte from the device waits for its end. */
static int measure(struct bench *b, int repeats, double *seconds, struct error *e)
{
    double all[REPEATS_MOST];
    char byte;
    int rc = PL_OK;
    for (int i = -WARM; i < repeats && !rc; i++) {
        const double start = clock_seconds();
        for (int k = 0; k < RUNS && !rc; k++) rc = b->device.ops->run(&b->device, &b->tape, PROGRAM_UPDATE, e);
        if (!rc) rc = b->device.ops->read(&b->device, &byte, b->device.arena[SPACE_DEVICE], 1, e);
        if (i >= 0) all[i] = (clock_seconds() - start) / RUNS;
    }
    qsort(all, (size_t)repeats, sizeof *all, by_value);
    *seconds = all[repeats / 2];
    return rc;
}

static int open_bench(struct bench *b, const struct options *o, struct error *e)
{
    graph_init(&b->graph);
    list_sizes(b, o);
    build(b);
    int rc = graph_error(&b->graph, e);
    if (!rc) rc = device_open(&b->device, o->kind, 0, e);
    if (!rc) rc = plan_place(&b->plan, &b->graph, &b->device.profile, e);
    if (!rc) rc = device_allocate(&b->device, b->plan.placement.arena, e);
    if (rc) return rc;
    tape_build(&b->tape, &b->graph, &b->plan.placement, b->device.arena, b->device.profile.threads, NULL);
    rc = b->device.ops->record(&b->device, &b->tape, e);
    return rc ? rc : fill(b, o->special, e);
}

static double bytes_of(const struct bench *b)
{
    const struct scenario *s = b->of;
    if (b->sum) return (double)b->elements * (double)dtype_size(s->g);
    const double each = 2.0 * (double)dtype_size(s->p) + (double)dtype_size(s->g) + 4.0 * (double)dtype_size(s->m);
    return (double)b->elements * (each + (s->w ? (double)dtype_size(s->w) : 0));
}

/* A failed case frees nothing: the process ends. */
static int run_scenario(const struct scenario *s, const struct options *o)
{
    struct bench *b = mem_alloc(sizeof *b);
    struct error e = {0};
    uint64_t sum = 0;
    double seconds = 0;
    b->of = s;
    int rc = open_bench(b, o, &e);
    if (!rc) rc = b->device.ops->run(&b->device, &b->tape, PROGRAM_UPDATE, &e);
    if (!rc) rc = hash(b, &sum, &e);
    if (!rc) rc = measure(b, o->repeats, &seconds, &e);
    if (rc) {
        fprintf(stderr, "%s: %s\n", s->name, e.text);
    } else {
        printf("%-36s %d tensors, %.4g elements: %8.4f ms, %.3f TB/s, hash %016llx\n", s->name, b->tensors,
               (double)b->elements, 1e3 * seconds, bytes_of(b) / seconds * 1e-12, (unsigned long long)sum);
        device_close(&b->device, &b->tape);
        tape_free(&b->tape);
        plan_free(&b->plan);
        graph_free(&b->graph);
    }
    fflush(stdout);
    mem_free(b);
    return rc;
}

int main(int argc, char **argv)
{
    struct options o = {DEVICE_CUDA, 22, 32000, 20, false};
    int worst = 0;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--device") && i + 1 < argc) o.kind = strcmp(argv[++i], "cpu") ? DEVICE_CUDA : DEVICE_CPU;
        else if (!strcmp(argv[i], "--layers") && i + 1 < argc) o.layers = atoll(argv[++i]);
        else if (!strcmp(argv[i], "--rows") && i + 1 < argc) o.rows = atoll(argv[++i]);
        else if (!strcmp(argv[i], "--repeats") && i + 1 < argc) o.repeats = atoi(argv[++i]);
        else if (!strcmp(argv[i], "--special")) o.special = true;
        else o.repeats = 0;
    }
    if (o.repeats < 1 || o.repeats > REPEATS_MOST || o.layers < 0 || o.layers > 100 || o.rows < 1)
        return fprintf(
                   stderr,
                   "usage: bench_cuda_update [--device cpu] [--layers 22] [--rows 32000] [--repeats 20] [--special]\n"),
               PL_USAGE;
    for (size_t i = 0; i < COUNT(scenarios); i++) worst |= run_scenario(&scenarios[i], &o) != PL_OK;
    return worst;
}
