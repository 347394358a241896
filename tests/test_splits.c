/*
 * test_splits.c: the split into micro-batches never changes the gradient, with images that have
 * unequal numbers of masks and texts with unequal numbers of labels.
 *
 *     images   masks           one loss: the sum over all of them, divided by their number
 *        0       #  .  .  .
 *        1       #  #  #  #      micro-batches are rows, the last one padded with rows
 *        2       .  .  .  .      without masks; chunks of the decoder are columns
 *        3       #  #  #  .
 *
 * Two tests: Every split gives the gradient of the whole batch. That gradient is the sum of the
 * gradients of single images, each computed by itself with slots for its own masks only. A mean of
 * means, or an empty slot with a weight, would fail there.
 *
 * Slots that must have no weight contain noise, not zeros.
 */
#include "batch/batch_plan.h"

#include "model_run.h"

enum { IMAGES = 6, MASKS = 4, ROWS = 7, TOKENS = 16, CHUNKS = 4, SIDE = 64 };
static const int masks_of[IMAGES] = {1, 4, 0, 3, 2, 4};  /* 14 */
static const int labels_of[ROWS] = {15, 1, 0, 7, 4, 15, 2}; /* 44 */


/* A number in [0, 1) for each element of an input. */
static double draw(uint64_t what, int64_t row, int64_t i)
{
    uint64_t x = (what * 1000003 + (uint64_t)row) * 1000003 + (uint64_t)i;
    x = (x ^ x >> 31) * 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 29) * 0xBF58476D1CE4E5B9u;
    return (double)((x ^ x >> 32) >> 11) * 0x1p-53;
}

/* --- a step ------------------------------------------------------------------------------- */

/* The samples, the number of mask slots, and the split. */
struct task {
    const char *model;           /* a key with its value */
    int first, samples, masks;   /* samples first, first + 1, ...; masks 0: texts */
    int rounds;
    int micro_batch, chunks;
};

static void set(struct config *c, const char *key, int value)
{
    char text[64];
    struct error e = {0};
    snprintf(text, sizeof text, "%s=%d", key, value);
    must(config_set(c, text, &e), &e);
}

static void configure(struct config *c, const struct task *t)
{
    static const char *const base[] = {"memory.offload=none", "memory.recompute=none", "memory.precision=f32",
                                       "memory.fused_step=off"};
    struct error e = {0};
    config_init(c);
    must(config_set(c, t->model, &e), &e);
    for (size_t i = 0; i < COUNT(base); i++) must(config_set(c, base[i], &e), &e);
    set(c, "train.effective_batch", t->samples);
    set(c, "memory.micro_batch", t->micro_batch);
    set(c, "memory.head_chunks", t->chunks);
    set(c, "device.threads", 2);
    if (!t->masks) set(c, "data.sequence", TOKENS);
    must(config_check(c, CONFIG_NEEDS_MODEL, &e), &e);
}

/* Element i of row `row` of an input; n elements belong to one mask. A row beyond the samples has
 * no masks. */
static double value_of(const struct task *t, const char *name, int64_t row, int64_t i, int64_t n)
{
    static const char *const names[] = {"images",   "image_valid", "input_points", "input_labels", "gt_masks",
                                        "gt_valid", "prompt_keys", "input_ids",    "labels"};
    size_t k = 0;
    while (k < COUNT(names) && strcmp(names[k], name)) k++;
    const bool inside = row < t->samples;
    const int64_t sample = t->first + row, mask = i / n, at = i % n;
    const double x = draw(k, sample, i);
    const bool there = inside && mask < (t->masks ? masks_of[sample] : 0);
    switch (k) {
    case 0: return floor(256 * x);
    case 1: return inside ? SIDE / 2 + (double)(sample * 11 % (SIDE / 2)) : 0;
    case 2: return at < 4 ? 0.05 + 0.9 * x : 0; /* a point, or two corners */
    case 3:
        if (at > 1) return POINT_UNUSED;
        return there && mask % 2 ? (at ? POINT_LAST : POINT_FIRST) : there && !at ? POINT_FOREGROUND : POINT_FILLER;
    case 4: return floor(256 * x);
    /* a map has at least a quarter of the side */
    case 5: return there ? SIDE / 8 + (double)(sample * 5 % (SIDE / 8)) : 0;
    case 6: return (double)(sample * MASKS + mask);
    case 7: return floor(256 * x);
    /* the first one is never predicted */
    default: return inside && i > 0 && i <= labels_of[sample] ? floor(256 * x) : -100;
    }
}

static void put(struct run *r, const struct task *t, const char *name)
{
    struct planned_input x;
    struct error e = {0};
    assert_true(planned_input(&r->planned, name, &x));
    if (!planned_input_used(&r->planned, &x)) return;
    const int64_t elements = (int64_t)(x.sample / dtype_size(x.dtype)), rows = planned_samples(&r->planned);
    const bool of_masks = t->masks && strncmp(name, "image", 5);
    char *data = mem_alloc(x.sample);
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t i = 0; i < elements; i++)
            dtype_store(data, x.dtype, i, value_of(t, name, row, i, of_masks ? elements / t->masks : elements));
        must(run_write_input(r, name, row, data, x.sample, &e), &e);
    }
    mem_free(data);
}

static void put_all(struct run *r, const struct task *t)
{
    static const char *const of_masks[] = {"images",   "image_valid", "input_points", "input_labels",
                                           "gt_masks", "gt_valid",    "prompt_keys"};
    static const char *const of_texts[] = {"input_ids", "labels"};
    if (t->masks)
        for (size_t i = 0; i < COUNT(of_masks); i++) put(r, t, of_masks[i]);
    else
        for (size_t i = 0; i < COUNT(of_texts); i++) put(r, t, of_texts[i]);
}

static double counted(const struct task *t)
{
    int n = 0;
    for (int i = 0; i < (t->masks ? IMAGES : ROWS); i++) n += t->masks ? masks_of[i] : labels_of[i];
    return n;
}

/* The loss, followed by every gradient in the order of the parameters. */
static floats gradients(const struct task *t)
{
    struct config c;
    struct run r = {0};
    struct error e = {0};
    const struct contents asked = {.prompts = {.image = SIDE, .masks = t->masks, .points = 2 + t->rounds - 1,
                                               .rounds = t->rounds, .slots = true, .targets = true}};
    configure(&c, t);
    must(run_plan(&r, &c,
                  &(struct run_options){.train = true, .describe = feed_describe, .holds = t->masks ? &asked : NULL},
                  &e),
         &e);
    assert_int_equal(r.planned.plan.settings.micro_batch, t->micro_batch);
    must(run_start(&r, NULL, true, &e), &e);
    put_all(&r, t);
    floats all = model_gradients(&r, (float)(1 / counted(t)));
    run_close(&r);
    config_free(&c);
    return all;
}

/* --- comparing ------------------------------------------------------------------------------- */

static double norm(const float *a, const double *b, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += pow((a ? (double)a[i] : 0) - (b ? b[i] : 0), 2);
    return sqrt(sum);
}

/* Within 1e-6 of the norm of the gradients; the loss relative to itself. Instrumented code rounds
 * differently in more operations. */
#ifdef __SANITIZE_ADDRESS__
static const double BOUND = 2e-6;
#else
static const double BOUND = 1e-6;
#endif
static void expect_same(const floats *got, const double *want, const struct task *t, const char *what)
{
    double off = norm(got->at + 1, want + 1, got->n - 1) / norm(NULL, want + 1, got->n - 1),
           loss = fabs((double)got->at[0] - want[0]) / fabs(want[0]);
    if (getenv("VERBOSE"))
        print_message("%s, %d rounds, micro-batch %d, %d chunks%s: loss off by %.1e, gradients by %.1e\n", t->model,
                      t->rounds, t->micro_batch, t->chunks, what, loss, off);
    if (!(off < BOUND && loss < BOUND))
        fail_msg("%s, %d rounds, micro-batch %d, %d chunks%s: the loss is off by %.2g, gradients by %.2g", t->model,
                 t->rounds, t->micro_batch, t->chunks, what, loss, off);
}

static double *as_doubles(const floats *x)
{
    double *y = mem_alloc(x->n * sizeof *y);
    for (uint32_t i = 0; i < x->n; i++) y[i] = (double)x->at[i];
    return y;
}

/* Compares every micro-batch size and every number of chunks with the whole; `ragged` false: only
 * micro-batch sizes that divide the batch. */
static void check_every_split(struct task t, bool ragged)
{
    t.micro_batch = t.samples, t.chunks = 1;
    floats whole = gradients(&t);
    assert_true(isfinite(whole.at[0]) && whole.at[0] > 0);
    double *want = as_doubles(&whole);
    for (t.micro_batch = 1; t.micro_batch <= t.samples; t.micro_batch++)
        for (t.chunks = 1; t.chunks <= CHUNKS; t.chunks++) {
            if (!ragged && t.samples % t.micro_batch) continue;
            floats got = gradients(&t);
            assert_int_equal(got.n, whole.n);
            expect_same(&got, want, &t, "");
            vec_free(&got);
        }
    mem_free(want);
    vec_free(&whole);
}

/* Compares the whole batch with its samples one by one, each with slots for its own masks only. */
static void check_sum_of_samples(struct task t)
{
    t.micro_batch = t.samples, t.chunks = 1;
    floats whole = gradients(&t);
    double *sum = mem_alloc(whole.n * sizeof *sum);
    struct task one = t;
    one.samples = one.micro_batch = 1;
    for (one.first = 0; one.first < t.samples; one.first++) {
        if (t.masks && !(one.masks = masks_of[one.first])) continue;
        floats got = gradients(&one);
        assert_int_equal(got.n, whole.n);
        for (uint32_t i = 0; i < got.n; i++) sum[i] += (double)got.at[i];
        vec_free(&got);
    }
    expect_same(&whole, sum, &t, ", against the sum of its samples");
    mem_free(sum);
    vec_free(&whole);
}

/* --- models ---------------------------------------------------------------------------------- */

TEST(test_sam)
{
    for (int rounds = 1; rounds <= 3; rounds += 2) {
        struct task t = {.model = "model.preset=sam-tiny", .samples = IMAGES, .masks = MASKS, .rounds = rounds};
        check_every_split(t, true);
        check_sum_of_samples(t);
    }
}

TEST(test_sam2)
{
    for (int rounds = 1; rounds <= 3; rounds += 2) {
        struct task t = {.model = "model.preset=sam2-tiny", .samples = IMAGES, .masks = MASKS, .rounds = rounds};
        check_every_split(t, true);
        check_sum_of_samples(t);
    }
}

/* Fresh weights: statistics of one image each, which padding rows would change. */
TEST(test_tinysam)
{
    for (int rounds = 1; rounds <= 3; rounds += 2) {
        struct task t = {.model = "model.preset=tinysam-tiny", .samples = IMAGES, .masks = MASKS, .rounds = rounds};
        check_every_split(t, false);
        check_sum_of_samples(t);
    }
}

/* Weights from a folder keep their statistics, and any split is allowed. */
TEST(test_tinysam_folder)
{
    const struct task t =
        {.model = "model.preset=tinysam-tiny", .samples = 1, .masks = 1, .rounds = 1, .micro_batch = 1, .chunks = 1};
    char dir[] = "/tmp/splits.XXXXXX", model[64];
    struct config c;
    struct run r = {0};
    struct error e = {0};
    assert_non_null(mkdtemp(dir));
    configure(&c, &t);
    must(run_plan(&r, &c, &(struct run_options){.train = true, .describe = feed_describe}, &e), &e);
    must(run_start(&r, NULL, true, &e), &e);
    must(weights_save(&r.weights, &r.planned.model, &r.planned.graph, &r.device, &r.tape, run_staging(&r), PLAN_STAGING,
                      dir, &e),
         &e);
    run_close(&r);
    config_free(&c);
    snprintf(model, sizeof model, "model.path=%s", dir);
    for (int rounds = 1; rounds <= 3; rounds += 2)
        check_every_split((struct task){.model = model, .samples = IMAGES, .masks = MASKS, .rounds = rounds}, true);
    drop_folder(dir);
}

TEST(test_llama)
{
    struct task t = {.model = "model.preset=llama-tiny", .samples = ROWS};
    check_every_split(t, true);
    check_sum_of_samples(t);
}

MAIN(NULL, NULL)
