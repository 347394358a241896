/*
 * recurrent.c: a recurrent network: a loop whose iterations share weights and hand a state to the
 * next.
 *
 *     make examples && build/examples/recurrent
 *
 * The adding problem: a series of numbers, two of which are marked; the answer is the sum of these
 * two. At each step two gated layers update their states:
 *
 *     z = sigmoid(gate(x, h))     h = h + z * (tanh(new(x, h)) - h)
 *
 * The program plans a step without a budget and with the smallest one, and trains with each. The
 * second plan recomputes iterations in the backward pass instead of keeping them; the losses are
 * the same bits.
 */
#include <plimsoll.h>
#include <stdio.h>
#include <stdlib.h>

enum { BATCH = 64, T = 24, WIDTH = 32, LAYERS = 2, STEPS = 150 };

/* A linear layer of x and h, side by side. */
static pl_tensor linear(struct pl_builder *b, pl_tensor x_and_h, const char *weight, const char *bias)
{
    pl_tensor w = pl_param(b, weight, PL_SHAPE(WIDTH, 2 * WIDTH), PL_NORMAL, 0.2f);
    return pl_linear(b, x_and_h, w, pl_param(b, bias, PL_SHAPE(WIDTH), PL_ZEROS, 0));
}

/* The next state of a layer; x and h are [batch, WIDTH]. */
static pl_tensor cell(struct pl_builder *b, pl_tensor x, pl_tensor h)
{
    pl_tensor in = pl_concat(b, PL_TENSORS(x, h), 1);
    pl_tensor z = pl_activate(b, linear(b, in, "gate.weight", "gate.bias"), PL_SIGMOID);
    pl_tensor n = pl_activate(b, linear(b, in, "new.weight", "new.bias"), PL_TANH);
    return pl_add(b, h, pl_mul(b, z, pl_add(b, n, pl_scale(b, h, -1))));
}

static void adder(struct pl_builder *b, int64_t batch, void *user)
{
    (void)user;
    /* numbers and marks; axis 1 is the batch */
    pl_tensor series = pl_input_along(b, "series", PL_F32, 1, PL_SHAPE(T, batch, 2));
    pl_tensor sums = pl_input(b, "sums", PL_F32, PL_SHAPE(batch, 1));
    pl_tensor w = pl_param(b, "in.weight", PL_SHAPE(WIDTH, 2), PL_NORMAL, 0.7f);
    pl_tensor h[LAYERS], x = 0;
    PL_LOOP(b, t, "steps", T) { /* all steps share their weights... */
        x = pl_linear(b, pl_at(b, series, 0, t), w, 0);
        /* ...and each layer has its own: layers.0.gate.weight, layers.1.gate.weight */
        PL_LAYERS(b, i, "layers", LAYERS) {
            if (!t) h[i] = pl_scale(b, x, 0);
            x = h[i] = cell(b, x, h[i]);
        }
    }
    w = pl_param(b, "out.weight", PL_SHAPE(1, WIDTH), PL_NORMAL, 0.2f);
    pl_tensor d = pl_add(b, pl_linear(b, x, w, 0), pl_scale(b, sums, -1));
    pl_output(b, "loss", pl_per_count(b, pl_sum(b, pl_mul(b, d, d))));
}

static float uniform(void) { return (float)rand() / (float)RAND_MAX; }

static void make_series(float series[T][BATCH][2], float sums[BATCH])
{
    for (int i = 0; i < BATCH; i++) {
        const int first = rand() % (T / 2), second = T / 2 + rand() % (T / 2);
        for (int t = 0; t < T; t++) {
            series[t][i][0] = uniform();
            series[t][i][1] = t == first || t == second;
        }
        sums[i] = series[first][i][0] + series[second][i][0];
    }
}

/* Ends the program if a call failed. */
static void check(struct pl_session *s, int code)
{
    if (!code) return;
    fprintf(stderr, "recurrent: %s\n", pl_message(s));
    exit(code);
}

/* The loss of the last step; `budget` NULL: none. *smallest: the smallest budget. */
static double train(const char *budget, uint64_t *smallest)
{
    static float series[T][BATCH][2], sums[BATCH];
    struct pl_plan_info plan = PL_INIT(pl_plan_info);
    double loss = 0;
    struct pl_session *s = pl_open();
    check(s, pl_define(s, adder, NULL, NULL));
    check(s, pl_set(s, "train.effective_batch", "64"));
    check(s, pl_set(s, "memory.micro_batch", "64"));
    check(s, pl_set(s, "memory.precision", "f32"));
    check(s, pl_set(s, "train.learning_rate", "5e-3"));
    check(s, pl_set(s, "device.threads", "1"));
    if (budget) check(s, pl_set_memory(s, budget));
    check(s, pl_plan(s, &plan));
    *smallest = plan.smallest_budget_bytes;
    printf("%s: %llu bytes, recompute %s\n", budget ? "smallest budget" : "no budget",
           (unsigned long long)plan.arena_bytes, pl_technique_value(&plan, "recompute"));
    check(s, pl_start(s));
    srand(1);
    for (int step = 1; step <= STEPS; step++) {
        make_series(series, sums);
        check(s, pl_write_input(s, "series", series, sizeof series));
        check(s, pl_write_input(s, "sums", sums, sizeof sums));
        check(s, pl_step(s, &loss, NULL));
        if (step == 1 || step % 50 == 0) printf("step %3d  loss %.4f\n", step, loss);
    }
    pl_close(s);
    return loss;
}

int main(void)
{
    uint64_t smallest;
    char budget[32];
    const double loss = train(NULL, &smallest);
    snprintf(budget, sizeof budget, "%llu", (unsigned long long)smallest);
    const double again = train(budget, &smallest);
    return loss < 0.05 && again == loss ? 0 : 1; /* the variance of the sums is 1/6 */
}
