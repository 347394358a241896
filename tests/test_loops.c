/*
 * test_loops.c: PL_LAYERS and PL_LOOP of the library, seen from outside as test_library.c sees it.
 *
 * The model reads a series step by step, with a cell of two layers that all steps share, a gain
 * that each step has for itself, and a state that a step hands to the next. Its gradients are
 * compared with finite differences in double of the same network, which is written here a second
 * time; its weights, after some steps with dropout, between all memory techniques, bit by bit.
 */
#include <plimsoll.h>

#include "harness.h"

enum { B = 4, T = 6, C = 2, W = 3, CELLS = 2, STEPS = 3 };

#define ok(s, call)                                                     \
    do {                                                                \
        if ((call) != PL_OK) fail_msg("%s: %s", #call, pl_message(s));  \
    } while (0)

/* --- the model --------------------------------------------------------------------- */

struct options {
    float dropout;
    int unrolled; /* by the caller: scopes, names and a C loop instead of PL_LOOP and PL_LAYERS */
};

static pl_tensor layer(struct pl_builder *b, pl_tensor h, const char *prefix, float dropout)
{
    char name[64];
    strcat(strcpy(name, prefix), "weight");
    pl_tensor z = pl_linear(b, h, pl_param(b, name, PL_SHAPE(W, W), PL_NORMAL, 0.6f), 0);
    z = pl_add(b, h, pl_activate(b, z, PL_TANH));
    return dropout > 0 ? pl_dropout(b, z, dropout) : z;
}

static pl_tensor cell(struct pl_builder *b, pl_tensor x, pl_tensor h, const struct options *o)
{
    pl_tensor z = pl_linear(b, x, pl_param(b, "in.weight", PL_SHAPE(W, C), PL_NORMAL, 0.7f), 0);
    h = h ? pl_add(b, z, pl_scale(b, h, 0.5)) : z;
    if (!o->unrolled) {
        PL_LAYERS(b, i, "cell", CELLS) h = layer(b, h, "", o->dropout);
        return h;
    }
    for (int i = 0; i < CELLS; i++) {
        pl_scope_begin(b, i ? "cell.1" : "cell.0", PL_BLOCK);
        h = layer(b, h, i ? "cell.1." : "cell.0.", o->dropout);
        pl_scope_end(b);
    }
    return h;
}

static void recurrent(struct pl_builder *b, int64_t batch, void *user)
{
    const struct options *o = user;
    pl_tensor x = pl_input_along(b, "x", PL_F32, 1, PL_SHAPE(T, batch, C)),
              y = pl_input(b, "y", PL_F32, PL_SHAPE(batch, T));
    pl_tensor gains = pl_param(b, "gains", PL_SHAPE(T, W), PL_NORMAL, 1), h = 0, states[T];
    if (o->unrolled)
        for (int t = 0; t < T; t++) {
            static const char *const names[] = {"steps.0", "steps.1", "steps.2", "steps.3", "steps.4", "steps.5"};
            pl_scope_begin(b, names[t], PL_BLOCK);
            h = cell(b, pl_at(b, x, 0, t), h, o);
            states[t] = pl_mul(b, h, pl_at(b, gains, 0, t));
            pl_scope_end(b);
        }
    else PL_LOOP(b, t, "steps", T) {
        h = cell(b, pl_at(b, x, 0, t), h, o);
        states[t] = pl_mul(b, h, pl_at(b, gains, 0, t));
    }
    pl_tensor all = pl_stack(b, T, states, 1); /* [batch, T, W] */
    pl_tensor p = pl_reshape(b, pl_linear(b, all, pl_param(b, "out.weight", PL_SHAPE(1, W), PL_NORMAL, 0.5f), 0),
                             PL_SHAPE(batch, T));
    pl_tensor d = pl_add(b, p, pl_scale(b, y, -1));
    pl_output(b, "states", all);
    pl_output(b, "loss", pl_per_count(b, pl_sum(b, pl_mul(b, d, d))));
}

/* The same in double. Weights follow one another in the order in which the model declares them. */
enum { GAINS = 0, IN = GAINS + T * W, CELL = IN + W * C, OUT = CELL + CELLS * W * W, WEIGHTS = OUT + W };
static const struct { const char *name; int at, count;
} parameters[] = {{"gains", GAINS, T *W},
                  {"in.weight", IN, W *C},
                  {"cell.0.weight", CELL, W *W},
                  {"cell.1.weight", CELL + W *W, W *W},
                  {"out.weight", OUT, W}};
enum { PARAMETERS = sizeof parameters / sizeof *parameters };

struct data {
    float x[T][B][C], y[B][T];
};

static void layer_in_double(double h[W], const double *w)
{
    double z[W];
    for (int i = 0; i < W; i++) {
        double sum = 0;
        for (int k = 0; k < W; k++) sum += w[i * W + k] * h[k];
        z[i] = h[i] + tanh(sum);
    }
    memcpy(h, z, sizeof z);
}

static double loss_in_double(const double *w, const struct data *d)
{
    double loss = 0;
    for (int b = 0; b < B; b++) {
        double h[W] = {0};
        for (int t = 0; t < T; t++) {
            double p = 0;
            for (int i = 0; i < W; i++) {
                h[i] *= 0.5;
                for (int k = 0; k < C; k++) h[i] += w[IN + i * C + k] * (double)d->x[t][b][k];
            }
            for (int i = 0; i < CELLS; i++) layer_in_double(h, w + CELL + i * W * W);
            for (int i = 0; i < W; i++) p += w[OUT + i] * h[i] * w[GAINS + t * W + i];
            loss += (p - (double)d->y[b][t]) * (p - (double)d->y[b][t]);
        }
    }
    return loss / B;
}

/* --- runs -------------------------------------------------------------------------------- */

static void make_data(struct data *d)
{
    uint32_t r = 4321;
    float *at = &d->x[0][0][0];
    for (size_t i = 0; i < sizeof *d / sizeof *at; i++) {
        r = r * 1664525u + 1013904223u;
        at[i] = (float)(r >> 8) / (float)(1 << 23) - 1;
    }
}

static struct pl_session *open_with(pl_build build, void *user)
{
    struct pl_session *s = pl_open();
    ok(s, pl_define(s, build, user, NULL));
    ok(s, pl_set(s, "memory.precision", "f32"));
    ok(s, pl_set(s, "train.effective_batch", "4"));
    ok(s, pl_set(s, "device.threads", "1"));
    return s;
}

/* Sets "key=value key=value". */
static void set_all(struct pl_session *s, const char *settings)
{
    char text[160], *next = text;
    strcpy(text, settings);
    for (char *word; (word = strtok(next, " ")); next = NULL) {
        char *value = strchr(word, '=');
        *value++ = 0;
        ok(s, pl_set(s, word, value));
    }
}

static void read_weights(struct pl_session *s, float *w)
{
    for (int i = 0; i < PARAMETERS; i++)
        ok(s, pl_read_parameter(s, parameters[i].name, w + parameters[i].at, (size_t)parameters[i].count * sizeof *w));
}

static void start(struct pl_session *s, const struct data *d)
{
    ok(s, pl_start(s));
    ok(s, pl_write_input(s, "x", d->x, sizeof d->x));
    ok(s, pl_write_input(s, "y", d->y, sizeof d->y));
}

/* The weights after some steps. */
static void train(const struct options *o, const char *settings, float *w)
{
    struct data d;
    double loss;
    struct options given = *o;
    struct pl_session *s = open_with(recurrent, &given);
    make_data(&d);
    set_all(s, settings);
    start(s, &d);
    for (int i = 0; i < STEPS; i++) ok(s, pl_step(s, &loss, NULL));
    read_weights(s, w);
    pl_close(s);
}

/* --- tests ------------------------------------------------------------------------------------ */

/* A step of plain SGD with a rate of 1 moves the weights by their gradient. */
TEST(test_gradient)
{
    static const char *const splits[] = {"4", "1"};
    struct data d;
    make_data(&d);
    for (int k = 0; k < 2; k++) {
        struct options o = {0};
        float before[WEIGHTS], after[WEIGHTS];
        double w[WEIGHTS], loss;
        struct pl_session *s = open_with(recurrent, &o);
        set_all(s, "memory.optimizer=sgd train.momentum=0 train.weight_decay=0 train.learning_rate=1");
        ok(s, pl_set(s, "memory.micro_batch", splits[k]));
        start(s, &d);
        read_weights(s, before);
        ok(s, pl_step(s, &loss, NULL));
        read_weights(s, after);
        pl_close(s);
        for (int i = 0; i < WEIGHTS; i++) w[i] = (double)before[i];
        assert_true(fabs(loss - loss_in_double(w, &d)) < 1e-5 * loss);
        for (int i = 0; i < WEIGHTS; i++) {
            const double h = 1e-5, at = w[i], g = (double)before[i] - (double)after[i];
            w[i] = at + h;
            double slope = loss_in_double(w, &d);
            w[i] = at - h;
            slope = (slope - loss_in_double(w, &d)) / (2 * h);
            w[i] = at;
            if (fabs(g - slope) > 2e-5 * (1 + fabs(slope)))
                fail_msg("micro-batch %s, weight %d: gradient %.8g, by differences %.8g", splits[k], i, g, slope);
        }
    }
}

TEST(test_same_bits)
{
    static const char *const settings[] =
        {"memory.recompute=none",          "memory.recompute=all",
         "memory.recompute=first:3",       "memory.recompute=every:2",
         "memory.recompute=segments:2",    "memory.recompute=selective",
         "memory.recompute=all+selective", "memory.recompute=all+halves",
         "memory.offload=[optimizer]",     "memory.offload=[weights]",
         "memory.offload=[activations]",   "memory.offload=[optimizer,weights,activations] memory.recompute=first:2",
         "memory.fused_step=on",           "memory.fused_step=on memory.recompute=all memory.offload=[optimizer]"};
    const struct options o = {.dropout = 0.3f}, by_hand = {.dropout = 0.3f, .unrolled = 1};
    float first[WEIGHTS], w[WEIGHTS];
    train(&o, "", first);
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        char all[160] = "memory.micro_batch=4 ";
        train(&o, strcat(all, settings[i]), w);
        if (memcmp(first, w, sizeof w)) fail_msg("other bits with %s", settings[i]);
    }
    train(&by_hand, "", w); /* the same graph as by scopes and names of the caller's own */
    assert_memory_equal(first, w, sizeof w);
    train(&o, "memory.micro_batch=1 memory.recompute=all", w); /* dropout follows the sample */
    for (int i = 0; i < WEIGHTS; i++) assert_true(fabsf(first[i] - w[i]) < 1e-5f);
}

/* Dropout by itself: the loss is the sum of dropout(w[t] * x), x = 1, so the gradient of w[t] is
 * the mask of iteration t. */
enum { WIDE = 256 };
static void masks(struct pl_builder *b, int64_t batch, void *user)
{
    (void)user;
    pl_tensor x = pl_input(b, "x", PL_F32, PL_SHAPE(batch, WIDE)), w = pl_param(b, "w", PL_SHAPE(T, WIDE), PL_ZEROS, 0),
              sum = 0;
    PL_LOOP(b, t, "steps", T) {
        pl_tensor kept = pl_sum(b, pl_dropout(b, pl_mul(b, x, pl_at(b, w, 0, t)), 0.25f));
        sum = sum ? pl_add(b, sum, kept) : kept;
    }
    pl_output(b, "loss", pl_per_count(b, sum));
}

TEST(test_dropout_by_iteration)
{
    float x[WIDE], w[2][T][WIDE];
    double loss;
    struct pl_session *s = open_with(masks, NULL);
    for (int i = 0; i < WIDE; i++) x[i] = 1;
    set_all(s,
            "train.effective_batch=1 memory.optimizer=sgd train.momentum=0 train.weight_decay=0 train.learning_rate=1");
    ok(s, pl_start(s));
    ok(s, pl_write_input(s, "x", x, sizeof x));
    for (int step = 0; step < 2; step++) {
        ok(s, pl_step(s, &loss, NULL));
        ok(s, pl_read_parameter(s, "w", &w[step][0][0], sizeof w[step]));
    }
    pl_close(s);
    for (int t = 0; t < T; t++) {
        int dropped = 0, differs = 0, again = 0;
        for (int i = 0; i < WIDE; i++) {
            assert_true(w[0][t][i] == 0 || fabsf(w[0][t][i] + 1 / 0.75f) < 1e-6f);
            dropped += w[0][t][i] == 0;
            differs += (w[0][t][i] == 0) != (w[0][(t + 1) % T][i] == 0);
            again += (w[0][t][i] == 0) != (w[1][t][i] == w[0][t][i]);
        }
        assert_in_range(dropped, WIDE / 8, 3 * WIDE / 8);
        assert_in_range(differs, WIDE / 4, WIDE / 2); /* of 0.375: another iteration is another choice... */
        assert_in_range(again, WIDE / 4, WIDE / 2);   /* ...and so is another step */
    }
}

/* Loops in layers, and a loop of several layers: which weights are shared follows from the
 * names. */
static void nested(struct pl_builder *b, int64_t batch, void *user)
{
    const int64_t *none = user;
    pl_tensor x = pl_input(b, "x", PL_F32, PL_SHAPE(batch, W));
    PL_LAYERS(b, i, "layers", 2) {
        x = pl_linear(b, x, pl_param(b, "up.weight", PL_SHAPE(W, W), PL_NORMAL, 0.5f), 0);
        PL_LOOP(b, t, "refine", 3)
        PL_LAYERS(b, k, "parts", 2) x =
            pl_add(b, x, pl_linear(b, x, pl_param(b, "weight", PL_SHAPE(W, W), PL_NORMAL, 0.1f), 0));
    }
    PL_LOOP(b, t, "never", *none) x = 0;
    pl_output(b, "loss", pl_per_count(b, pl_sum(b, pl_mul(b, x, x))));
}

TEST(test_names)
{
    static const char *const names[] = {"layers.0.up.weight", "layers.0.parts.0.weight", "layers.0.parts.1.weight",
                                        "layers.1.up.weight", "layers.1.parts.0.weight", "layers.1.parts.1.weight"};
    int64_t none = 0;
    struct pl_session *s = open_with(nested, &none);
    float first[W * W], w[W * W], x[B][W] = {{1, 2, 3}, {0, 1, 0}, {-1, 0, 1}, {2, 2, 2}};
    for (int way = 0; way < 2; way++) {
        double loss;
        ok(s, pl_set(s, "memory.recompute", way ? "all" : "none"));
        ok(s, pl_start(s));
        struct pl_parameter p = PL_INIT(pl_parameter);
        for (int i = 0; i < 6; i++) {
            ok(s, pl_parameter_at(s, i, &p));
            assert_string_equal(p.name, names[i]);
        }
        assert_int_equal(pl_parameter_at(s, 6, &p), PL_USAGE);
        ok(s, pl_write_input(s, "x", x, sizeof x));
        for (int i = 0; i < STEPS; i++) ok(s, pl_step(s, &loss, NULL));
        ok(s, pl_read_parameter(s, names[1], way ? w : first, sizeof w));
        pl_close(s);
        if (!way) s = open_with(nested, &none);
    }
    assert_memory_equal(first, w, sizeof w);
}

/* --- what is refused -------------------------------------------------------------------------- */

static void wrong(struct pl_builder *b, int64_t batch, void *user)
{
    pl_tensor x = pl_input(b, "x", PL_F32, PL_SHAPE(batch, W)), w = pl_param(b, "w", PL_SHAPE(W, W), PL_ZEROS, 0);
    static const char long_name[] =
        "123456789.123456789.123456789.123456789.123456789.123456789.123456789.123456789.123456789.123456789";
    const float one = 1, two = 2;
    switch (*(const int *)user) {
    case 0: PL_LOOP(b, i, "steps", -1) x = pl_linear(b, x, w, 0); break;
    case 1: PL_LOOP(b, i, "steps", 1 << 20) x = pl_linear(b, x, w, 0); break;
    case 2: PL_LOOP(b, i, "", 2) x = pl_linear(b, x, w, 0); break;
    case 3: PL_LOOP(b, i, "steps", 2) pl_scope_begin(b, "open", 0); break;
    case 4: PL_LOOP(b, i, "steps", 2) break; break;
    case 5: pl_iteration(b, "steps", 1, 3); break;
    case 6: pl_iteration(b, "steps", 0, 3), pl_iteration(b, "steps", 2, 3); break;
    case 7: x = pl_at(b, x, 1, W); break;
    case 8: x = pl_at(b, x, 2, 0); break;
    case 9: x = pl_stack(b, 0, NULL, 0); break;
    case 10: x = pl_stack(b, PL_TENSORS(x, x), 3); break;
    case 11: x = pl_stack(b, PL_TENSORS(x, w), 0); break;
    case 12:
        PL_LAYERS(b, i, long_name, 1)
        PL_LAYERS(b, k, long_name, 1) PL_LAYERS(b, n, long_name, 1) x = pl_linear(b, x, w, 0);
        break;
    case 13:
        PL_LAYERS(b, i, long_name, 1)
        PL_LAYERS(b, k, "layers", 1) x = pl_linear(b, x, pl_param(b, long_name, PL_SHAPE(W, W), PL_ZEROS, 0), 0);
        break;
    case 14: x = pl_add(b, pl_constant(b, "c", PL_SHAPE(1), &one), pl_constant(b, "c", PL_SHAPE(1), &two)); break;
    case 15:
        PL_LOOP(b, i, "steps", 3) x = pl_linear(b, x, pl_param(b, "shaped", PL_SHAPE(W, W + i), PL_ZEROS, 0), 0);
        break;
    default: break;
    }
    pl_output(b, "loss", pl_per_count(b, pl_sum(b, x)));
}

TEST(test_refused)
{
    static const char *const says[] = {"iteration 0 of -1",
                                       "at most 65536",
                                       "a loop without a name",
                                       "steps.0.open",
                                       "left before its end",
                                       "innermost open scope is none",
                                       "innermost open scope is steps.0",
                                       "element 3 along axis 1",
                                       "axis 2",
                                       "0 tensors",
                                       "new axis 3",
                                       "CONCAT",
                                       "nested layers",
                                       "bytes, at most",
                                       "data differ",
                                       "used twice"};
    for (int way = 0; way < (int)(sizeof says / sizeof *says); way++) {
        struct pl_session *s = open_with(wrong, &way);
        assert_int_equal(pl_plan(s, NULL), PL_USAGE);
        if (!strstr(pl_message(s), says[way])) fail_msg("case %d: no '%s' in: %s", way, says[way], pl_message(s));
        pl_close(s);
    }
}

MAIN(NULL, NULL)
