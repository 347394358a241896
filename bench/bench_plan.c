/*
 * bench_plan.c: the cost of planning: processor time of one compile and one placement, and of a
 * whole search, for given presets.
 *
 *     build/bench/bench_plan [PRESET...]        (sam-vit-b sam-vit-h llama-7b)
 */
#include <time.h>

#include "models/masks.h"
#include "models/model.h"
#include "plan/plan.h"

struct subject {
    struct model model;
    struct batch batch;
};

static void build(void *context, struct graph *g, int micro_batch)
{
    struct subject *x = context;
    struct batch b = x->batch;
    b.B = micro_batch;
    x->model.family->build(&x->model, g, &b);
}

/* CPU time of this process, so that a busy machine changes little. */
static double processor_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void bench_one(struct subject *x, const struct settings *s, const struct profile *profile)
{
    struct source source = {x, build};
    struct error e;
    double compile = 1e9, place = 1e9;
    uint64_t nodes = 0, padding = 0;
    for (int i = 0; i < 5; i++) {
        struct graph g;
        struct plan p = {.settings = *s};
        double t0 = processor_seconds();
        CHECK(!plan_draft(&g, &source, s, &e), "%s", e.text);
        double t1 = processor_seconds();
        CHECK(!plan_arrange(&p, &g, profile, &e), "%s", e.text);
        double t2 = processor_seconds();
        if (t1 - t0 < compile) compile = t1 - t0;
        if (t2 - t1 < place) place = t2 - t1;
        nodes = 0;
        for (int k = 0; k < PROGRAM_COUNT; k++) nodes += g.order[k].nodes.n;
        padding = plan_arena(&p) - p.peak.bytes;
        plan_free(&p);
        graph_free(&g);
    }
    char text[SETTING_ROOM];
    printf("  %2d x %d, recompute %-10s head %2d  %6llu nodes  compile %7.2f ms  place %7.2f ms  padding %llu\n",
           s->micro_batch, s->accumulation, recompute_text(&s->recompute, text), s->head_chunks,
           (unsigned long long)nodes, 1e3 * compile, 1e3 * place, (unsigned long long)padding);
}

static void bench_model(const char *preset)
{
    const struct prompting prompts = {.masks = 32, .points = 2, .rounds = 1, .slots = true, .targets = true};
    struct subject x = {.batch = {.T = 2048}};
    struct error e;
    struct profile profile;
    CHECK(!model_preset(&x.model, preset, &e), "%s", e.text);
    if (x.model.masks) x.batch.own = &prompts;
    profile_default(&profile, DEVICE_CPU, 2);
    printf("%s\n", preset);
    for (int accumulate = 0; accumulate < 2; accumulate++)
        for (enum recompute_kind kind = RECOMPUTE_NONE; kind <= RECOMPUTE_SELECTIVE; kind++) {
            struct settings s = {.micro_batch = accumulate ? 1 : 8, .accumulation = accumulate ? 8 : 1,
                                 .precision = PRECISION_BF16, .head_chunks = accumulate ? 4 : 1, .train = true,
                                 .recompute = {.kind = kind}};
            bench_one(&x, &s, &profile);
        }
    model_close(&x.model);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        bench_model("sam-vit-b");
        bench_model("sam-vit-h");
        bench_model("llama-7b");
    }
    for (int i = 1; i < argc; i++) bench_model(argv[i]);
    return 0;
}
