/*
 * test_writer.c: the batch writer: its table has every input that a program reads, and image tokens
 * take the features of their images.
 */
#include "batch/writer.h"
#include "model_run.h"
#include "models/images.h"

static const char *const none[] = {NULL};

static void check_inputs(const char *preset, const struct run_options *o)
{
    struct config c;
    struct run r = {0};
    struct error e = {0};
    char model[64];
    snprintf(model, sizeof model, "model.preset=%s", preset);
    must(model_configure(&c, model, none, none, &e), &e);
    must(run_plan(&r, &c, o, &e), &e);
    const struct graph *g = &r.planned.graph;
    for (id s = 1; s < g->storages.n; s++) {
        struct planned_input x;
        const char *name = graph_name(g, g->storages.at[s].name);
        if (g->storages.at[s].kind != KIND_INPUT || !planned_input(&r.planned, name, &x) ||
            !planned_input_used(&r.planned, &x))
            continue;
        assert_string_equal(batch_inputs[batch_find(name)].name, name);
    }
    run_close(&r);
    config_free(&c);
}

TEST(test_every_input_has_a_row)
{
    static const char *const presets[] = {"llama-tiny",     "sam-tiny",     "tinysam-tiny",   "llava-tiny",
                                          "grounding-tiny", "prs-med-tiny", "allocator-tiny", "sam2-tiny"};
    for (size_t i = 0; i < COUNT(presets); i++) check_inputs(presets[i], &(struct run_options){.train = true});
}

/* Image, video of two frames, image: the features of frames are after those of all images. */
TEST(test_runs)
{
    enum { TOKEN = 9 };
    struct image_model images = {.token = TOKEN};
    const struct model m = {.images = &images, .vocabulary = TOKEN};
    const struct image_run runs[] = {{2, 0}, {4, 100}, {6, 2}};
    int32_t ids[] = {1, TOKEN, TOKEN, TOKEN, TOKEN, 2, TOKEN, TOKEN, TOKEN}, index[COUNT(ids)];
    int64_t feature = 0;
    struct batch_record x = {.runs = runs, .n_runs = COUNT(runs), .feature = &feature};
    batch_index(&m, &x, ids, COUNT(ids), index, NULL);
    assert_memory_equal(index, ((int32_t[]){-1, 0, 1, 100, 101, -1, 2, 3, -1}), sizeof index);
    assert_memory_equal(ids, ((int32_t[]){1, 0, 0, 0, 0, 2, 0, 0, TOKEN}), sizeof ids);
    assert_int_equal(feature, 6);
    x = (struct batch_record){.runs = runs};
    ids[0] = TOKEN;
    batch_index(&m, &x, ids, 1, index, NULL);
    assert_int_equal(index[0], -1);
}

MAIN(NULL, NULL)
