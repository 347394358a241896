/*
 * test_scaler.c: the kernels that decide whether an update runs, and stochastic rounding.
 *
 *     SCALER               follows torch.amp.GradScaler, step by step (golden/scaler.txt)
 *     GUARD                keeps the first number that is not finite
 *     stochastic rounding  unbiased, to a neighbour, the same for any threads and tiles
 */
#include "trial.h"

#include "cpu/cpu.h"
#include "base/random.h"
#include "cpu/update/update.h"

/* --- the loss scale ------------------------------------------------------------------- */

static void run_check(enum op op, const char *kernel, struct step_block *b, double sum, const float *loss)
{
    struct launch l = {.nin = loss ? 3 : 2, .nout = 1, .threads = 1};
    l.in[0] = (struct operand){.data = &sum, .dtype = DT_F64};
    l.in[1] = l.out[0] = (struct operand){.data = b, .dtype = DT_U8, .rank = 1, .dim = {sizeof *b}, .stride = {1}};
    if (loss) l.in[2] = (struct operand){.data = (void *)loss, .dtype = DT_F32};
    cpu_kernel_named(op, kernel)->run(&l);
}
static void run_scaler(struct step_block *b, double sum, const float *loss)
{
    run_check(OP_SCALER, "cpu_scaler", b, sum, loss);
}

/* The host's task: each step starts with the state that the last one left. */
static void check_run(FILE *f, int window, float scale, int steps)
{
    struct step_block b = {.next_scale = scale, .scale_window = window};
    static const double bad[] = {INFINITY, NAN};
    for (int i = 0; i < steps; i++) {
        int found, good, moved, done = b.adam_t;
        float want;
        assert_int_equal(fscanf(f, "%d %f %d %d", &found, &want, &good, &moved), 4);
        b.loss_scale = b.next_scale;
        run_scaler(&b, found ? bad[i % 2] : 4, NULL);
        if (b.next_scale != want || b.good_steps != good || b.found_inf == moved || b.adam_t != done + moved)
            fail_msg("window %d, step %d: scale %g, %d good steps, found_inf %d, t %d; expected %g, %d, %d, %d", window,
                     i + 1, b.next_scale, b.good_steps, b.found_inf, b.adam_t, want, good, !moved, done + moved);
    }
}

TEST(test_scaler)
{
    FILE *f = fopen("tests/golden/scaler.txt", "r");
    if (!f) skip(); /* run from the repository's root */
    int window, steps, runs = 0;
    float scale;
    for (; fscanf(f, " run %d %f %d", &window, &scale, &steps) == 3; runs++) check_run(f, window, scale, steps);
    fclose(f);
    assert_int_equal(runs, 6);
}

TEST(test_scaler_loss)
{
    struct step_block b = {.loss_scale = 8, .adam_t = 5, .scale_window = 2};
    run_scaler(&b, 1, &(float){NAN});
    assert_true(b.found_inf && b.next_scale == 4 && b.adam_t == 5);
    run_scaler(&b, 1, &(float){1});
    assert_true(!b.found_inf && b.next_scale == 8 && b.good_steps == 1 && b.adam_t == 6);
}

/* A recorded value stays, and nothing else changes. */
TEST(test_guard)
{
    const struct step_block before =
        {.learning_rate = 1, .loss_scale = 1, .step = 9, .adam_t = 7, .good_steps = 3, .next_scale = 2};
    static const struct {
        double sum;
        float loss;
        int found;
    } rows[] = {{4, 1, 0}, {INFINITY, 1, 1}, {4, 1, 1}, {4, NAN, 1}};
    struct step_block b = before;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct step_block want = before;
        want.found_inf = rows[i].found;
        run_check(OP_GUARD, "cpu_guard", &b, rows[i].sum, &rows[i].loss);
        assert_memory_equal(&b, &want, sizeof b);
    }
    b = before;
    run_check(OP_GUARD, "cpu_guard", &b, 1, &(float){-INFINITY});
    assert_int_equal(b.found_inf, 1);
}

/* --- stochastic rounding --------------------------------------------------------------------- */

enum { DRAWS = 1 << 16 };

static void round_all(uint16_t *to, const float *from, int64_t n, uint64_t key, int tile)
{
    for (int64_t at = 0; at < n; at += tile) round_store(to, at, 0, (int)min_i64(tile, n - at), from + at, key);
}

/* The fraction rounded up equals the position between the neighbours; five deviations. */
static void check_unbiased(float x, float *from, uint16_t *to)
{
    uint32_t u, up = 0;
    memcpy(&u, &x, sizeof u);
    const uint16_t down = (uint16_t)(u >> 16);
    const double p = (u & 0xffff) / 65536.0, deviation = sqrt(p * (1 - p) / DRAWS);
    for (int i = 0; i < DRAWS; i++) from[i] = x;
    round_all(to, from, DRAWS, random_key(seed, "rounding"), 256);
    for (int i = 0; i < DRAWS; i++) {
        if (to[i] != down && to[i] != down + 1) fail_msg("%.9g became %.9g", x, bf16_to_f32(to[i]));
        up += to[i] != down;
    }
    if (fabs((double)up / DRAWS - p) > 5 * deviation)
        fail_msg("%.9g (seed %llu): %u of %d went up, expected %g +- %g", x, (unsigned long long)seed, up, DRAWS,
                 p * DRAWS, deviation * DRAWS);
}

TEST(test_rounding)
{
    static const float values[] = {1.001f, -1.001f, 0.0999f, 1e-3f, -3.3e-5f, 255.9f, 1.9999f, 1e-39f, 0.5f, 0, -2};
    float *from = mem_alloc(DRAWS * sizeof *from);
    uint16_t *to = mem_alloc(DRAWS * sizeof *to), *other = mem_alloc(DRAWS * sizeof *other);
    for (size_t i = 0; i < COUNT(values); i++) check_unbiased(values[i], from, to);
    /* Any tiles give the same bits; another step, seed or parameter gives others. */
    struct step_block a = {.seed = 1, .rng_step = 7}, b = {.seed = 1, .rng_step = 8}, c = {.seed = 2, .rng_step = 7};
    const uint64_t keys[] = {round_key(&a, 5), round_key(&b, 5), round_key(&c, 5), round_key(&a, 6)};
    for (int i = 0; i < DRAWS; i++) from[i] = (float)normal();
    round_all(to, from, DRAWS, keys[0], 256);
    round_all(other, from, DRAWS, keys[0], 12);
    assert_memory_equal(to, other, DRAWS * sizeof *to);
    for (int k = 1; k < 4; k++) {
        round_all(other, from, DRAWS, keys[k], 256);
        int same = 0;
        for (int i = 0; i < DRAWS; i++) same += to[i] == other[i];
        assert_true(same > DRAWS / 2 && same < DRAWS * 3 / 4); /* two thirds for uniform positions */
    }
    assert_int_equal(round_at_random(INFINITY, 0xffff), f32_to_bf16(INFINITY));
    assert_true(isnan(bf16_to_f32(round_at_random(NAN, 0xffff))));
    mem_free(from);
    mem_free(to);
    mem_free(other);
}

/* The kernel on bf16 weights: m and v as in f32, p a neighbour of the oracle's, for any threads. */
TEST(test_update)
{
    static const int64_t sizes[] = {1, 5, 257, 40000};
    for (size_t i = 0; i < COUNT(sizes); i++)
        for (int skipped = 0; skipped < 2; skipped++) {
            struct trial t = trial_of(OP_ADAMW);
            t.attr.adamw.beta1 = 0.9;
            t.attr.adamw.beta2 = 0.95;
            t.attr.adamw.eps = 1e-8;
            t.attr.adamw.lr_scale = 1;
            t.attr.adamw.key = 3;
            input_normal(&t, DT_BF16, DIM(sizes[i]));
            for (int k = 0; k < 2; k++) input_normal(&t, DT_F32, DIM(sizes[i]));
            input_square(&t, DT_F32, DIM(sizes[i]));
            input_step(&t);
            ((struct step_block *)t.in[4].data)->found_inf = skipped;
            const int places[] = {0, 2, 3};
            for (int o = 0; o < 3; o++) output_in_place(&t, places[o]);
            trial_check(&t);
        }
}

MAIN(NULL, NULL)
