/*
 * test_sam.c: Segment Anything beyond the golden files: a step in micro-batches equals the whole
 * step, and empty mask slots have weight 0; folders are written back unchanged; untrained tensors
 * have no gradient; the presets have the published number of weights.
 *
 * Run from the repository's root: the models are those of tests/golden. With KEEP=DIR in the
 * environment the fresh weights of sam-tiny are kept there, for tests/golden/check_sam.py.
 */
#include <sys/stat.h>

#include "batch/batch_plan.h"
#include "graph/ops.h"
#include "planning/parameter_groups.h"
#include "model_run.h"

enum { MASKS = 3, POINTS = 2 };
static const char *const f32[] = {"memory.precision=f32", NULL};

static void begin(struct config *c, const char *model, const char *const *sets)
{
    struct error e = {0};
    must(model_configure(c, model, f32, sets, &e), &e);
}

/* --- splits ---------------------------------------------------------------------------- */

static float coordinate(int64_t i) { return 0.5f + 0.45f * wave(3 * i); }
static float kind(int64_t i) { return (float)(i % 4); }
static float bits(int64_t i) { return (float)(i * 37 % 251); }
/* Rows, columns: most of the mask, all of it, none of it. */
static float area(int64_t i)
{
    static const float known[] = {17, 13, 20, 20, 0, 0, 5, 20};
    return known[i % (int64_t)COUNT(known)];
}

static void put_batch(struct run *r)
{
    put_input(r, "pixel_values", wave);
    put_input(r, "input_points", coordinate);
    put_input(r, "input_labels", kind);
    put_input(r, "gt_masks", bits);
    put_input(r, "gt_valid", area);
}

static const struct contents by_points = {.prompts = {.masks = MASKS, .points = POINTS, .targets = true}};

/* The loss, followed by the step's gradients in the order of the parameters. */
static float *gradients(const struct contents *holds, void (*put)(struct run *), const char *const *sets,
                        int64_t *count)
{
    struct config c;
    struct run r = {0};
    struct error e = {0};
    begin(&c, "model.path=tests/golden/sam_target", sets);
    must(run_plan(&r, &c,
                  &(struct run_options){.train = true, .describe = feed_describe, .holds = holds},
                  &e),
         &e);
    must(run_start(&r, NULL, true, &e), &e);
    put(&r);
    floats all = model_gradients(&r, 0.125f);
    run_close(&r);
    config_free(&c);
    *count = all.n;
    return all.at;
}

static void expect_within(const float *a, const float *b, int64_t n, double bound, const char *what)
{
    double off = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        off += pow((double)a[i] - (double)b[i], 2);
        size += pow((double)b[i], 2);
    }
    assert_true(size > 0);
    if (!(sqrt(off / size) < bound)) fail_msg("%s: off by %.2g", what, sqrt(off / size));
}

/* Sums in another order: eps times the root of the number of terms, with a margin for the depth of
 * the network. */
static void expect_near(const float *a, const float *b, int64_t n, const char *what)
{
    expect_within(a, b, n, 30 * 1.2e-7, what);
}

TEST(test_micro_batches)
{
    static const char *const whole[] = {"memory.micro_batch=4", "memory.recompute=none", NULL};
    static const char *const split[][3] = {{"memory.micro_batch=1", "memory.recompute=none", NULL},
                                           {"memory.micro_batch=2", "memory.recompute=all", NULL},
                                           {"memory.micro_batch=4", "memory.recompute=all", NULL}};
    int64_t n, k;
    float *want = gradients(&by_points, put_batch, whole, &n);
    for (size_t i = 0; i < COUNT(split); i++) {
        float *got = gradients(&by_points, put_batch, split[i], &k);
        assert_int_equal(n, k);
        expect_near(got, want, n, split[i][0]);
        if (i == 2) assert_memory_equal(got, want, (size_t)n * sizeof *got); /* recompute changes no bit */
        mem_free(got);
    }
    mem_free(want);
}

/* In bf16, too: weights that layers read in slices (queries, keys and values are one matrix),
 * coordinates and targets; within bf16's eps of 1/128 times the depth. */
TEST(test_bf16)
{
    static const char *const exact[] = {"memory.micro_batch=4", "memory.recompute=none", NULL};
    static const char *const rounded[] = {"memory.micro_batch=2", "memory.recompute=none", "memory.precision=bf16",
                                          NULL};
    int64_t n, k;
    float *want = gradients(&by_points, put_batch, exact, &n), *got = gradients(&by_points, put_batch, rounded, &k);
    assert_int_equal(n, k);
    expect_within(got, want, n, 10.0 / 128, "bf16");
    mem_free(want);
    mem_free(got);
}

/* --- rounds ------------------------------------------------------------------------------ */

enum { ROUNDS = 5, ROUND_SLOTS = 2 + ROUNDS - 1 };
static float pixel(int64_t i) { return (float)(i * 31 % 256); }
static float image_area(int64_t i) { return (float)(i % 3 ? 300 : 30); }
static float identity(int64_t i) { return (float)i; }
static float first_kind(int64_t i)
{
    const int64_t slot = i % ROUND_SLOTS, box = i / ROUND_SLOTS % 2;
    return (float)(slot > 1 ? POINT_UNUSED
                   : slot   ? (box ? POINT_LAST : POINT_FILLER)
                   : box    ? POINT_FIRST
                            : POINT_FOREGROUND);
}

static void put_rounds(struct run *r)
{
    put_input(r, "images", pixel);
    put_input(r, "image_valid", image_area);
    put_input(r, "input_points", coordinate);
    put_input(r, "input_labels", first_kind);
    put_input(r, "gt_masks", bits);
    put_input(r, "gt_valid", area);
    put_input(r, "prompt_keys", identity);
}
static const struct contents in_rounds = {
    .prompts = {.masks = MASKS, .points = ROUND_SLOTS, .rounds = ROUNDS, .targets = true}};

/* A round draws its point by the mask's key, so micro-batches and chunks of the masks see the same
 * rounds. A pixel whose logit is near 0 may change its side by rounding, which would change the
 * result; with these weights none does. */
TEST(test_rounds)
{
    static const char *const whole[] = {"memory.micro_batch=4", "memory.recompute=none", NULL};
    static const char *const split[][4] =
        {{"memory.recompute=all", "memory.micro_batch=4", NULL},
         {"memory.recompute=selective", "memory.micro_batch=4", NULL},
         {"memory.recompute=none", "memory.micro_batch=1", NULL},
         {"memory.recompute=none", "memory.micro_batch=4", "memory.head_chunks=2", NULL},
         {"memory.recompute=none", "memory.micro_batch=4", "memory.head_chunks=3", NULL},
         /* chunks of one image's masks */
         {"memory.recompute=all", "memory.micro_batch=1", "memory.head_chunks=3", NULL},
         /* the last chunk is padded */
         {"memory.recompute=none", "memory.micro_batch=1", "memory.head_chunks=2", NULL},
         {"memory.recompute=selective", "memory.micro_batch=1", "memory.head_chunks=2", NULL}};
    int64_t n, k;
    float *want = gradients(&in_rounds, put_rounds, whole, &n);
    assert_true(isfinite(want[0]) && want[0] > 0);
    for (size_t i = 0; i < COUNT(split); i++) {
        char what[96];
        snprintf(what, sizeof what, "%s %s %s", split[i][0], split[i][1], split[i][2] ? split[i][2] : "");
        float *got = gradients(&in_rounds, put_rounds, split[i], &k);
        assert_int_equal(n, k);
        expect_near(got, want, n, what);
        if (i < 2) assert_memory_equal(got, want, (size_t)n * sizeof *got);
        mem_free(got);
    }
    mem_free(want);
}

/* The same prompts, a point and a box each: as points and boxes, and in slots of which two stay
 * unused. The contents of unused slots have no effect. */
enum { SLOTS = 5 };
static float slot_kind(int64_t i)
{
    static const int kinds[SLOTS] = {POINT_UNUSED, POINT_FIRST, POINT_FOREGROUND, POINT_LAST, POINT_UNUSED};
    return (float)kinds[i % SLOTS];
}
static float slot_coordinate(int64_t i)
{
    const int64_t mask = i / (2 * SLOTS), slot = i / 2 % SLOTS, axis = i % 2;
    if (slot == 2) return coordinate(2 * mask + axis);
    return slot == 0 || slot == 4 ? 7.5f : coordinate(100 + 4 * mask + (slot == 3 ? 2 : 0) + axis);
}
static float box_coordinate(int64_t i) { return coordinate(100 + i); }
static float foreground(int64_t i) { return (void)i, (float)POINT_FOREGROUND; }

static void put_apart(struct run *r)
{
    put_input(r, "pixel_values", wave);
    put_input(r, "input_points", coordinate);
    put_input(r, "input_labels", foreground);
    put_input(r, "input_boxes", box_coordinate);
    put_input(r, "gt_masks", bits);
    put_input(r, "gt_valid", area);
}

static void put_slots(struct run *r)
{
    put_input(r, "pixel_values", wave);
    put_input(r, "input_points", slot_coordinate);
    put_input(r, "input_labels", slot_kind);
    put_input(r, "gt_masks", bits);
    put_input(r, "gt_valid", area);
}

TEST(test_slots)
{
    static const char *const sets[] = {"memory.micro_batch=4", "memory.recompute=none", NULL};
    const struct contents apart = {.prompts = {.masks = MASKS, .points = 1, .boxes = true, .targets = true}};
    const struct contents slots = {.prompts = {.masks = MASKS, .points = SLOTS, .slots = true, .targets = true}};
    int64_t n, k;
    float *want = gradients(&apart, put_apart, sets, &n), *got = gradients(&slots, put_slots, sets, &k);
    assert_int_equal(n, k);
    expect_near(got, want, n, "slots");
    mem_free(want);
    mem_free(got);
}

/* --- folders ---------------------------------------------------------------------------- */

static void save(const char *model, const char *dir)
{
    static const char *const sets[] = {"memory.micro_batch=2", "memory.recompute=none", NULL};
    struct config c;
    begin(&c, model, sets);
    model_save(&c, dir);
    config_free(&c);
}

/* Read and written back, a folder's weights are the same bytes: with the copy of the frequencies in
 * published folders, with tensors that no prompt uses, in bf16. */
TEST(test_written_back)
{
    static const char *const models[] = {"tests/golden/sam_target", "tests/golden/sam_odd", "tests/golden/sam_vision",
                                         NULL};
    check_written_back(models, f32);
}

/* A preset's saved folder can be opened. */
TEST(test_preset_folder)
{
    const char *keep = getenv("KEEP");
    char dir[256] = "/tmp/sam.XXXXXX";
    struct model m;
    struct error e = {0};
    if (keep) snprintf(dir, sizeof dir, "%s", keep);
    assert_true(keep ? !mkdir(dir, 0777) : mkdtemp(dir) != NULL);
    save("model.preset=sam-tiny", dir);
    must(model_open(&m, dir, &e), &e);
    model_close(&m);
    if (!keep) drop_folder(dir);
}

/* --- parameters --------------------------------------------------------------------------- */

/* Training does not change the frequencies. Mask prompts are no input here, so their embedding has
 * no gradient either. */
TEST(test_unreached)
{
    static const char *const sets[] = {"memory.micro_batch=4", "memory.recompute=none", NULL};
    struct config c;
    struct run r = {0};
    struct error e = {0};
    int unreached = 0;
    begin(&c, "model.preset=sam-tiny", sets);
    must(run_plan(&r, &c, &(struct run_options){.train = true, .describe = feed_describe}, &e), &e);
    for (uint32_t i = 0; i < r.planned.graph.params.n; i++) {
        const struct param *p = &r.planned.graph.params.at[i];
        const char *name = graph_name(&r.planned.graph, tensor_at(&r.planned.graph, p->tensor)->name);
        if (storage_of(&r.planned.graph, p->tensor)->kind == KIND_CONST || p->grad) continue;
        bool known = strstr(name, "positional_embedding") || strstr(name, "mask_embed.") ||
                     strstr(name, "hypernetworks_mlps.0.");
        if (!known) fail_msg("%s has no gradient", name);
        assert_int_equal(p->frozen, strstr(name, "positional_embedding") != NULL);
        unreached++;
    }
    assert_int_equal(unreached, 1 + 10 + 6);
    run_close(&r);
    config_free(&c);
}

/* The published counts, plus the 256 frequencies that these do not include. */
TEST(test_presets)
{
    const struct {
        const char *name;
        int64_t weights;
    } known[] = {{"sam-vit-b", 93735472 + 256}, {"sam-vit-l", 312342832 + 256}, {"sam-vit-h", 641090608 + 256}};
    for (size_t i = 0; i < COUNT(known); i++) {
        struct model m;
        struct graph g;
        struct error e = {0};
        int64_t n = 0;
        must(model_preset(&m, known[i].name, &e), &e);
        graph_init(&g);
        m.family->build(&m, &g, &(struct batch){.B = 1});
        must(graph_error(&g, &e), &e);
        for (uint32_t k = 0; k < g.params.n; k++)
            if (storage_of(&g, g.params.at[k].tensor)->kind == KIND_PARAM)
                n += tensor_elements(tensor_at(&g, g.params.at[k].tensor));
        assert_int_equal(n, known[i].weights);
        graph_free(&g);
        model_close(&m);
    }
}

/* loss.preset sets the defaults of the other keys; an explicit key takes precedence. */
TEST(test_loss)
{
    struct config c;
    struct error e = {0};
    config_init(&c);
    struct mask_loss_options o = batch_loss(&c);
    assert_true(o.focal == 20 && o.dice == 1 && o.iou == 1 && o.alpha == 0.25f && o.gamma == 2 && o.smooth == 1 &&
                !o.alpha_both);
    must(config_set(&c, "loss.preset=equal-weights", &e), &e);
    must(config_set(&c, "loss.dice=3", &e), &e);
    o = batch_loss(&c);
    assert_true(o.focal == 1 && o.dice == 3 && o.iou == 1 && o.alpha == 0.8f && o.gamma == 2 && o.smooth == 1e-6f &&
                o.alpha_both);
    must(config_set(&c, "loss.focal=0", &e), &e);
    must(config_set(&c, "loss.dice=0", &e), &e);
    assert_int_equal(config_check(&c, 0, &e), PL_OK);
    must(config_set(&c, "loss.iou=0", &e), &e);
    assert_int_equal(config_check(&c, 0, &e), PL_USAGE);
    config_free(&c);
}

MAIN(NULL, NULL)
