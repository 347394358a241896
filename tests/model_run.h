/*
 * model_run.h: a run of a small model, for the tests of models: its settings, inputs that are
 * functions of their index, its loss and gradients, and its folder written back.
 */
#pragma once

#include "engine/run.h"
#include "batch/feed.h"
#include "io/file.h"
#include "harness.h"

typedef VEC(float) floats;

/* Opens a configuration with a model ("model.path=..."), a step of 4 samples on 2 threads, and the
 * settings of two lists that end in NULL. */
static inline int model_configure(struct config *c, const char *model, const char *const *base, const char *const *sets,
                                  struct error *e)
{
    static const char *const common[] = {"train.effective_batch=4", "memory.offload=none", "memory.head_chunks=1",
                                         "device.threads=2", NULL};
    const char *const *const lists[] = {common, base, sets};
    config_init(c);
    int rc = config_set(c, model, e);
    for (size_t i = 0; i < COUNT(lists); i++)
        for (const char *const *s = lists[i]; *s && !rc; s++) rc = config_set(c, *s, e);
    return rc ? rc : config_check(c, CONFIG_NEEDS_MODEL, e);
}

/* Fills an input of the step's 4 samples by a rule. */
static inline void put_input(struct run *r, const char *name, float (*rule)(int64_t))
{
    struct planned_input x;
    struct error e = {0};
    assert_true(planned_input(&r->planned, name, &x));
    uint64_t bytes = x.sample * 4;
    char *data = mem_alloc(bytes);
    for (uint64_t i = 0; i < bytes / dtype_size(x.dtype); i++) dtype_store(data, x.dtype, (int64_t)i, rule((int64_t)i));
    must(run_write_input(r, name, 0, data, bytes, &e), &e);
    mem_free(data);
}

static inline float wave(int64_t i) { return (float)sin(0.37 * (double)i + 0.001 * (double)(i % 97)); }

static inline void append(floats *all, const struct run *r, id tensor)
{
    const float *x = (const float *)tape_address(&r->tape, tensor);
    for (int64_t k = 0; k < tensor_elements(tensor_at(&r->planned.graph, tensor)); k++) vec_push(all, x[k]);
}

/* Runs program step. Returns the loss, followed by the gradients in the order of the parameters. */
static inline floats model_gradients(struct run *r, float inv_count)
{
    const struct step_block b = {.inv_count = {inv_count}, .loss_scale = 1, .step = 1, .adam_t = 1};
    struct error e = {0};
    floats all = {0};
    must(run_put_step(r, &b, &e), &e);
    must(run_program(r, PROGRAM_STEP, &e), &e);
    vec_push(&all, 0);
    must(run_read(r, graph_find_output(&r->planned.graph, PROGRAM_STEP, "loss"), all.at, &e), &e);
    for (uint32_t i = 0; i < r->planned.graph.params.n; i++)
        if (r->planned.graph.params.at[i].grad) append(&all, r, r->planned.graph.params.at[i].grad);
    return all;
}

/* Starts a run of the configuration and saves its weights in a folder. */
static inline void model_save(const struct config *c, const char *dir)
{
    struct run r = {0};
    struct error e = {0};
    must(run_plan(&r, c, &(struct run_options){.train = true, .describe = feed_describe}, &e), &e);
    must(run_start(&r, NULL, true, &e), &e);
    must(weights_save(&r.weights, &r.planned.model, &r.planned.graph, &r.device, &r.tape, run_staging(&r), PLAN_STAGING,
                      dir, &e),
         &e);
    run_close(&r);
}

static inline void drop_folder(const char *dir)
{
    struct error e = {0};
    must(tree_remove(dir, &e), &e);
}

/* Read and written back, the weights of each folder of the list are the same bytes. */
static inline void check_written_back(const char *const *models, const char *const *base)
{
    static const char *const sets[] = {"memory.micro_batch=2", "memory.recompute=none", NULL};
    for (; *models; models++) {
        char dir[] = "/tmp/model.XXXXXX", path[256], *a, *b;
        size_t n, k;
        struct config c;
        struct error e = {0};
        assert_non_null(mkdtemp(dir));
        snprintf(path, sizeof path, "model.path=%s", *models);
        must(model_configure(&c, path, base, sets, &e), &e);
        model_save(&c, dir);
        config_free(&c);
        snprintf(path, sizeof path, "%s/model.safetensors", *models);
        must(file_read(path, UINT64_MAX, &a, &n, &e), &e);
        snprintf(path, sizeof path, "%s/model.safetensors", dir);
        must(file_read(path, UINT64_MAX, &b, &k, &e), &e);
        assert_int_equal(n, k);
        assert_memory_equal(a, b, n);
        mem_free(a);
        mem_free(b);
        drop_folder(dir);
    }
}
