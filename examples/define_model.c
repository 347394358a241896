/*
 * define_model.c: a model of your own, planned under a budget, trained, saved.
 *
 *     make examples && build/examples/define_model [FOLDER]
 *
 * The model is a small classifier of points in the square [-1, 1] x [-1, 1], which is divided into
 * 4 x 4 fields of four classes. The planner decides on memory and micro-batches; the model code
 * does not mention them.
 */
#include <plimsoll.h>
#include <stdio.h>
#include <stdlib.h>

enum { BATCH = 256, WIDTH = 64, INNER = 128, BLOCKS = 4, CLASSES = 4, STEPS = 300 };

static pl_tensor linear(struct pl_builder *b, pl_tensor x, const char *weight, int64_t rows, int64_t columns)
{
    return pl_linear(b, x, pl_param(b, weight, PL_SHAPE(rows, columns), PL_NORMAL, 0.1f), 0);
}

/* x + down(silu(gate(n)) * up(n)), n = rmsnorm(x) */
static pl_tensor block(struct pl_builder *b, pl_tensor x)
{
    pl_tensor n = pl_rmsnorm(b, x, pl_param(b, "norm.weight", PL_SHAPE(WIDTH), PL_ONES, 0), 1e-5f);
    pl_tensor gate = linear(b, n, "gate.weight", INNER, WIDTH), up = linear(b, n, "up.weight", INNER, WIDTH);
    return pl_add(b, x, linear(b, pl_silu_gate(b, gate, up), "down.weight", WIDTH, INNER));
}

static void classifier(struct pl_builder *b, int64_t batch, void *user)
{
    (void)user;
    pl_tensor points = pl_input(b, "points", PL_F32, PL_SHAPE(batch, 2));
    pl_tensor colours = pl_input(b, "colours", PL_I32, PL_SHAPE(batch));
    /* Parameters are in the order of these calls. C leaves the order of a call's arguments open, so
     * each call has its own line. */
    pl_tensor w = pl_param(b, "in.weight", PL_SHAPE(WIDTH, 2), PL_NORMAL, 1);
    pl_tensor bias = pl_param(b, "in.bias", PL_SHAPE(WIDTH), PL_NORMAL, 1);
    pl_tensor x = pl_linear(b, points, w, bias);
    PL_LAYERS(b, i, "blocks", BLOCKS) x = block(b, x); /* its weights are blocks.0.norm.weight ... */
    w = pl_param(b, "out.weight", PL_SHAPE(CLASSES, WIDTH), PL_NORMAL, 0.1f);
    bias = pl_param(b, "out.bias", PL_SHAPE(CLASSES), PL_ZEROS, 0);
    pl_tensor logits = pl_linear(b, x, w, bias);
    pl_output(b, "loss", pl_cross_entropy(b, logits, colours));
    pl_output(b, "logits", logits);
}

static void make_points(float points[BATCH][2], int32_t colours[BATCH])
{
    for (int i = 0; i < BATCH; i++) {
        for (int k = 0; k < 2; k++) points[i][k] = 2 * (float)rand() / (float)RAND_MAX - 1;
        int column = (int)(2 * (points[i][0] + 1)), row = (int)(2 * (points[i][1] + 1));
        colours[i] = (column + 2 * row) % CLASSES;
    }
}

/* Ends the program if a call failed. */
static void check(struct pl_session *s, int code)
{
    if (!code) return;
    fprintf(stderr, "define_model: %s\n", pl_message(s));
    exit(code);
}

static double accuracy(struct pl_session *s, const int32_t colours[BATCH])
{
    static float logits[BATCH][CLASSES];
    int right = 0;
    check(s, pl_read_output(s, "logits", logits, sizeof logits));
    for (int i = 0; i < BATCH; i++) {
        int best = 0;
        for (int c = 1; c < CLASSES; c++)
            if (logits[i][c] > logits[i][best]) best = c;
        right += best == colours[i];
    }
    return (double)right / BATCH;
}

int main(int argc, char **argv)
{
    static float points[BATCH][2];
    static int32_t colours[BATCH];
    double loss = 0, first = 0;
    struct pl_plan_info plan = PL_INIT(pl_plan_info);
    struct pl_session *s = pl_open();
    check(s, pl_define(s, classifier, NULL, "{\"model_type\": \"chessboard\"}\n"));
    check(s, pl_set(s, "train.effective_batch", "256"));
    check(s, pl_set(s, "train.learning_rate", "3e-3"));
    check(s, pl_set(s, "train.schedule", "cosine"));
    check(s, pl_set(s, "train.steps", "300"));
    check(s, pl_set(s, "device.threads", "1")); /* the model is too small for several threads */

    check(s, pl_plan(s, &plan));
    printf("without a budget: %llu bytes, %lld samples at a time\n", (unsigned long long)plan.arena_bytes,
           (long long)plan.micro_batch);
    char budget[32];
    snprintf(budget, sizeof budget, "%llu", (unsigned long long)(plan.smallest_budget_bytes + plan.arena_bytes) / 2);
    check(s, pl_set_memory(s, budget));
    check(s, pl_plan(s, &plan));
    printf("within %s bytes:\n\n%s\n", budget, pl_plan_table(s));

    check(s, pl_start(s));
    for (int step = 1; step <= STEPS; step++) {
        make_points(points, colours);
        check(s, pl_write_input(s, "points", points, sizeof points));
        check(s, pl_write_input(s, "colours", colours, sizeof colours));
        check(s, pl_step(s, &loss, NULL));
        if (step == 1) first = loss;
        if (step == 1 || step % 50 == 0) printf("step %3d  loss %.4f\n", step, loss);
    }
    make_points(points, colours);
    check(s, pl_write_input(s, "points", points, sizeof points));
    check(s, pl_write_input(s, "colours", colours, sizeof colours));
    printf("right on fresh points: %.1f %%\n", 100 * accuracy(s, colours));
    if (argc > 1) {
        check(s, pl_save(s, argv[1]));
        printf("the model is in %s\n", pl_model_path(s));
    }
    pl_close(s);
    return loss < first / 2 ? 0 : 1;
}
