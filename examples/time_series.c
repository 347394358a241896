/*
 * time_series.c: a model family with a kind of input of its own: time series [T, batch, C], as
 * PyTorch's recurrent layers take them, with the batch second; real weights [T, batch], 0 where a
 * series has ended; and a table of times [T, C] that all series share.
 *
 *     make examples && build/examples/time_series [FOLDER]
 *
 * A series is a noisy sine of one of four frequencies and of a random length; the model tells the
 * frequency. It has two layers, each x + silu(x), in which the steps of a series are mixed by a
 * matrix over time. The mean over time is weighted by the mask.
 */
#include <math.h>
#include <plimsoll.h>
#include <stdio.h>
#include <stdlib.h>

enum { BATCH = 64, T = 32, C = 2, WIDTH = 24, LAYERS = 2, CLASSES = 4, STEPS = 200 };

/* Exchanges the last two dimensions of x [batch, n, m]. */
static pl_tensor turn(struct pl_builder *b, pl_tensor x)
{
    static const int axes[] = {0, 2, 1};
    return pl_op(b, "copy", PL_TENSORS(pl_permute(b, x, 3, axes)), NULL);
}

/* x [batch, T, WIDTH]: x + silu(mix(n)), n = channels(x); mix is a matrix over time. */
static pl_tensor layer(struct pl_builder *b, pl_tensor x)
{
    pl_tensor n = pl_linear(b, x, pl_param(b, "channels.weight", PL_SHAPE(WIDTH, WIDTH), PL_NORMAL, 0.15f), 0);
    pl_tensor mixed = pl_linear(b, turn(b, n), pl_param(b, "time.weight", PL_SHAPE(T, T), PL_NORMAL, 0.15f), 0);
    return pl_add(b, x, pl_activate(b, turn(b, mixed), PL_SILU));
}

static void classifier(struct pl_builder *b, int64_t batch, void *user)
{
    static const int first[] = {1, 0, 2}; /* the batch first */
    (void)user;
    pl_tensor series = pl_input_along(b, "series", PL_F32, 1, PL_SHAPE(T, batch, C)); /* axis 1 is the batch */
    pl_tensor mask = pl_input_along(b, "mask", PL_F32, 1, PL_SHAPE(T, batch));
    pl_tensor times = pl_input_along(b, "times", PL_F32, PL_SHARED, PL_SHAPE(T, C)); /* no axis is */
    pl_tensor labels = pl_input(b, "labels", PL_I32, PL_SHAPE(batch));
    pl_tensor x = pl_op(b, "copy", PL_TENSORS(pl_permute(b, series, 3, first)), NULL); /* [batch, T, C] */
    pl_tensor w = pl_param(b, "in.weight", PL_SHAPE(WIDTH, C), PL_NORMAL, 0.7f);
    x = pl_linear(b, pl_add(b, x, times), w, 0);
    PL_LAYERS(b, i, "layers", LAYERS) x = layer(b, x);
    pl_tensor rows = pl_op(b, "copy", PL_TENSORS(pl_permute(b, mask, 2, first)), NULL); /* [batch, T] */
    x = pl_bmm(b, pl_reshape(b, rows, PL_SHAPE(batch, 1, T)), x, 0, 0); /* the weighted mean: [batch, 1, WIDTH] */
    w = pl_param(b, "out.weight", PL_SHAPE(CLASSES, WIDTH), PL_NORMAL, 0.3f);
    pl_tensor logits = pl_linear(b, pl_reshape(b, x, PL_SHAPE(batch, WIDTH)), w, 0);
    pl_output(b, "logits", logits);
    pl_output(b, "loss", pl_cross_entropy(b, logits, labels));
}

struct batch {
    float series[T][BATCH][C], mask[T][BATCH];
    int32_t labels[BATCH];
};

static float uniform(void) { return (float)rand() / (float)RAND_MAX; }

static void make_batch(struct batch *d)
{
    for (int i = 0; i < BATCH; i++) {
        const int kind = rand() % CLASSES, length = T / 2 + rand() % (T / 2) + 1;
        const float phase = 6.28f * uniform(), rate = 0.2f + 0.25f * (float)kind;
        d->labels[i] = kind;
        for (int t = 0; t < T; t++) {
            d->mask[t][i] = t < length ? 1.0f / (float)length : 0;
            d->series[t][i][0] = sinf(rate * (float)t + phase) + 0.1f * uniform();
            d->series[t][i][1] = cosf(rate * (float)t + phase) + 0.1f * uniform();
        }
    }
}

/* Ends the program if a call failed. */
static void check(struct pl_session *s, int code)
{
    if (!code) return;
    fprintf(stderr, "time_series: %s\n", pl_message(s));
    exit(code);
}

static void write_batch(struct pl_session *s, const struct batch *d)
{
    check(s, pl_write_input(s, "series", d->series, sizeof d->series));
    check(s, pl_write_input(s, "mask", d->mask, sizeof d->mask));
    check(s, pl_write_input(s, "labels", d->labels, sizeof d->labels));
}

int main(int argc, char **argv)
{
    static struct batch d;
    static float times[T][C];
    double loss = 0, first = 0;
    struct pl_plan_info plan = PL_INIT(pl_plan_info);
    struct pl_session *s = pl_open();
    for (int t = 0; t < T; t++) times[t][0] = (float)t / T, times[t][1] = 1 - (float)t / T;
    check(s, pl_define(s, classifier, NULL, "{\"model_type\": \"time_series\"}\n"));
    check(s, pl_set(s, "train.effective_batch", "64"));
    check(s, pl_set(s, "train.learning_rate", "5e-3"));
    check(s, pl_set(s, "memory.precision", "f32"));
    check(s, pl_set(s, "memory.micro_batch", "16")); /* a step is four micro-batches of 16 series */
    check(s, pl_set(s, "device.threads", "1"));
    check(s, pl_plan(s, &plan));
    printf("%llu bytes, %lld series at a time\n", (unsigned long long)plan.arena_bytes, (long long)plan.micro_batch);
    check(s, pl_start(s));
    check(s, pl_write_input(s, "times", times, sizeof times)); /* kept for all steps */
    for (int step = 1; step <= STEPS; step++) {
        make_batch(&d);
        write_batch(s, &d);
        check(s, pl_step(s, &loss, NULL));
        if (step == 1) first = loss;
        if (step == 1 || step % 50 == 0) printf("step %3d  loss %.4f\n", step, loss);
    }
    if (argc > 1) {
        check(s, pl_save(s, argv[1]));
        printf("the model is in %s\n", pl_model_path(s));
    }
    pl_close(s);
    return loss < first / 2 ? 0 : 1;
}
