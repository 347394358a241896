/*
 * test_parts.c: a model put together from parts: a CLIP tower, a projector of the test's own, a
 * Llama decoder. It computes what the three compute one after the other, bit for bit; each part's
 * weights come from its own folder, and the model is saved as one.
 *
 * Run from the repository's root: the parts are folders of tests/golden. The decoder's has names
 * without "model." and tied embeddings.
 */
#include "engine/run.h"
#include "graph/ops.h"
#include "io/file.h"
#include "models/layers.h"
#include "models/parts.h"

#include "harness.h"

extern const struct family clip_vision_family, llama_family;

#define TOWER_FOLDER "tests/golden/clip_vision"
#define DECODER_FOLDER "tests/golden/noprefix"

enum { B = 2, T = 5, PATCHES = 4, WIDTH = 24, VOCABULARY = 79, CHANNELS = 3, IMAGE = 14, LENGTH = PATCHES + T };

/* --- the model ------------------------------------------------------------------------------- */

/* The tower's tokens without the class token, projected. */
static id project(struct graph *g, id states)
{
    id x = op_slice(g, states, 1, 1, PATCHES);
    return layer_linear(g, x, "multi_modal_projector.", "linear", WIDTH);
}

static id pixels_of(struct graph *g)
{
    return graph_input(g, "pixel_values", DT_F32, 4, (int64_t[]){B, CHANNELS, IMAGE, IMAGE});
}
static id ids_of(struct graph *g) { return graph_input(g, "input_ids", DT_I32, 2, (int64_t[]){B, T}); }
static id labels_of(struct graph *g) { return graph_input(g, "labels", DT_I32, 2, (int64_t[]){B, LENGTH}); }

static void decode(const struct model *decoder, struct graph *g, const char *part, id image)
{
    id text = decoder_embed(decoder, g, part, ids_of(g));
    id x = decoder_states(decoder, g, part, op_concat(g, (id[]){image, text}, 2, 1), (struct token_rows){0});
    struct decoded out = decoder_loss(decoder, g, part, x, labels_of(g));
    graph_output(g, "logits", out.logits);
    graph_output(g, "loss", out.loss);
}

static void build_whole(const struct model *m, struct graph *g, const struct batch *b)
{
    (void)b;
    id state = 0;
    tower_encode(model_part(m, "vision_tower"), g, "vision_tower", pixels_of(g), 1, (int64_t[]){-2}, &state);
    decode(model_part(m, "language_model"), g, "language_model", project(g, state));
}

/* Folders are those of the configuration, unless the whole model has one. */
static int parse_whole(struct model *m, const struct value *config, struct error *e)
{
    static const struct {
        const char *part, *config, *folder;
    } parts[] = {{"vision_tower", "vision_config", "vision_folder"}, {"language_model", "text_config", "text_folder"}};
    int rc = PL_OK;
    for (size_t i = 0; i < COUNT(parts) && !rc; i++) {
        const char *from = NULL;
        rc = value_opt_string(config, parts[i].folder, &from, e);
        if (!rc) rc = model_add_part(m, parts[i].part, value_get(config, parts[i].config), *m->path ? NULL : from, e);
    }
    return rc;
}
static const struct family whole_family = {"test", parse_whole, build_whole, "", false};

/* The projector and the decoder by itself, on what the part before them computed. */
static void build_projector(const struct model *m, struct graph *g, const struct batch *b)
{
    (void)m, (void)b;
    id x = project(g, graph_input(g, "states", DT_F32, 3, (int64_t[]){B, 1 + PATCHES, WIDTH}));
    graph_output(g, "projected", x);
    graph_output(g, "loss", op_sum(g, x));
}
static const struct family projector_family = {"test", NULL, build_projector, "", false};

static void build_decoder(const struct model *m, struct graph *g, const struct batch *b)
{
    (void)b;
    decode(m, g, "", graph_input(g, "image", DT_F32, 3, (int64_t[]){B, PATCHES, WIDTH}));
}
static int parse_decoder(struct model *m, const struct value *config, struct error *e)
{
    return llama_family.parse(m, config, e);
}
static const struct family decoder_family = {"llama", parse_decoder, build_decoder, "model.", false};

/* The whole model's config.json; `text_config` NULL: the decoder folder's own. */
static const char *whole_config(const char *text_config, const char *text_folder)
{
    static char out[8192];
    struct error e;
    char *vision;
    size_t n;
    must(file_read(TOWER_FOLDER "/config.json", 1 << 20, &vision, &n, &e), &e);
    n = (size_t)snprintf(out, sizeof out, "{\"model_type\": \"test\", \"vision_config\": %s, \"vision_folder\": \"%s\"",
                         vision, TOWER_FOLDER);
    if (text_config) n += (size_t)snprintf(out + n, sizeof out - n, ", \"text_config\": %s", text_config);
    if (text_folder) n += (size_t)snprintf(out + n, sizeof out - n, ", \"text_folder\": \"%s\"", text_folder);
    snprintf(out + n, sizeof out - n, "}");
    mem_free(vision);
    return out;
}

/* --- runs ------------------------------------------------------------------------------------- */

struct work {
    struct config c;
    struct run r;
};

static int work_open(struct work *w, const struct definition *d, const char *path, const char *const *sets,
                     struct error *e)
{
    static const char *const base[] = {"memory.precision=f32", "memory.offload=none", "memory.head_chunks=1",
                                       "memory.recompute=none", "device.threads=2"};
    memset(w, 0, sizeof *w);
    config_init(&w->c);
    char model[320];
    snprintf(model, sizeof model, "model.path=%s", path ? path : "");
    int rc = path ? config_set(&w->c, model, e) : PL_OK;
    for (size_t i = 0; i < COUNT(base) && !rc; i++) rc = config_set(&w->c, base[i], e);
    for (; sets && *sets && !rc; sets++) rc = config_set(&w->c, *sets, e);
    if (!rc) rc = run_plan(&w->r, &w->c, &(struct run_options){.define = d, .B = B, .T = T, .train = sets != NULL}, e);
    return rc ? rc : run_start(&w->r, NULL, true, e);
}

static void work_close(struct work *w)
{
    run_close(&w->r);
    config_free(&w->c);
}

static void put(struct work *w, const char *name, const void *data, size_t bytes)
{
    struct error e;
    must(run_write_input(&w->r, name, 0, data, bytes, &e), &e);
}

static void put_pixels(struct work *w)
{
    float x[B * CHANNELS * IMAGE * IMAGE];
    for (size_t i = 0; i < COUNT(x); i++) x[i] = (float)sin(0.37 * (double)i);
    put(w, "pixel_values", x, sizeof x);
}

static void put_text(struct work *w)
{
    int32_t ids[B * T], labels[B * LENGTH];
    for (int i = 0; i < B * T; i++) ids[i] = (7 * i + 3) % VOCABULARY;
    for (int i = 0; i < B * LENGTH; i++)
        labels[i] = i % LENGTH < PATCHES ? -100 : ids[i / LENGTH * T + i % LENGTH - PATCHES];
    put(w, "input_ids", ids, sizeof ids);
    put(w, "labels", labels, sizeof labels);
}

/* Runs the step and returns an output; the caller frees it. */
static float *outcome(struct work *w, const char *name, int64_t *n)
{
    struct error e;
    must(run_put_step(&w->r,
                      &(struct step_block){
                          .learning_rate = 0.1f, .inv_count = {0.125f}, .loss_scale = 1, .step = 1, .adam_t = 1},
                      &e),
         &e);
    must(run_program(&w->r, PROGRAM_STEP, &e), &e);
    id x = graph_find_output(&w->r.planned.graph, PROGRAM_STEP, name);
    assert_true(x);
    *n = tensor_elements(tensor_at(&w->r.planned.graph, x));
    float *out = mem_alloc((size_t)*n * sizeof *out);
    must(run_read(&w->r, x, out, &e), &e);
    return out;
}

static float *run_whole(const struct definition *d, const char *path, int64_t *n, const char *save_to)
{
    struct work w;
    struct error e;
    must(work_open(&w, d, path, NULL, &e), &e);
    put_pixels(&w);
    put_text(&w);
    float *logits = outcome(&w, "logits", n);
    if (save_to)
        must(weights_save(&w.r.weights, &w.r.planned.model, &w.r.planned.graph, &w.r.device, &w.r.tape,
                          run_staging(&w.r), PLAN_STAGING, save_to, &e),
             &e);
    work_close(&w);
    return logits;
}

static float *run_apart(int64_t *n)
{
    struct work w;
    struct error e;
    const struct definition tower = {.family = &clip_vision_family, .config_json = "{}"};
    must(work_open(&w, &tower, TOWER_FOLDER, NULL, &e), &e);
    put_pixels(&w);
    float *states = outcome(&w, "hidden_states.1", n);
    work_close(&w);
    assert_int_equal(*n, B * (1 + PATCHES) * WIDTH);

    const struct definition projector = {.family = &projector_family, .config_json = "{}"};
    must(work_open(&w, &projector, NULL, NULL, &e), &e);
    put(&w, "states", states, (size_t)*n * sizeof *states);
    float *image = outcome(&w, "projected", n);
    work_close(&w);

    const struct definition decoder = {.family = &decoder_family, .config_json = "{}"};
    must(work_open(&w, &decoder, DECODER_FOLDER, NULL, &e), &e);
    put(&w, "image", image, (size_t)*n * sizeof *image);
    put_text(&w);
    float *logits = outcome(&w, "logits", n);
    work_close(&w);
    mem_free(states);
    mem_free(image);
    return logits;
}

/* --- tests ------------------------------------------------------------------------------------ */

static void assert_same(const float *a, const float *b, int64_t n, int64_t k)
{
    assert_int_equal(n, k);
    assert_int_equal(n, B * LENGTH * VOCABULARY);
    assert_true(a[0] != 0 && a[0] != a[1]);
    for (int64_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof *a))
            fail_msg("element %lld is %.9g and %.9g", (long long)i, (double)a[i], (double)b[i]);
}

/* The saved tensor `name` has the bytes of `own` in a part's folder. */
static void assert_copied(const struct st_file *saved, const char *name, const char *dir, const char *own)
{
    struct st_file part;
    struct error e;
    char path[300], a[64], b[64];
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    must(st_open(path, &part, &e), &e);
    const struct st_entry *x = st_find(saved, name), *y = st_find(&part, own);
    if (!x || !y) fail_msg("%s in the saved folder and %s in %s", name, own, dir);
    assert_int_equal(x->dtype, y->dtype);
    assert_int_equal(x->bytes, y->bytes);
    must(st_read(saved, x, 0, sizeof a, a, &e), &e);
    must(st_read(&part, y, 0, sizeof b, b, &e), &e);
    assert_memory_equal(a, b, sizeof a);
    st_close(&part);
}

TEST(test_whole_is_its_parts)
{
    const struct definition d = {.family = &whole_family, .config_json = whole_config(NULL, DECODER_FOLDER)};
    struct st_file saved;
    struct error e;
    char dir[300], path[400];
    int64_t n, k;
    snprintf(dir, sizeof dir, "%s/saved", folder);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    must(dir_make(dir, &e), &e);
    float *whole = run_whole(&d, NULL, &n, dir), *apart = run_apart(&k);
    assert_same(whole, apart, n, k);
    must(st_open(path, &saved, &e), &e);
    assert_copied(&saved, "vision_tower.vision_model.embeddings.class_embedding", TOWER_FOLDER,
                  "vision_model.embeddings.class_embedding");
    assert_copied(&saved, "language_model.model.layers.1.mlp.up_proj.weight", DECODER_FOLDER,
                  "layers.1.mlp.up_proj.weight");
    assert_non_null(st_find(&saved, "multi_modal_projector.linear.weight"));
    assert_null(st_find(&saved, "language_model.rope.inv_freq"));
    st_close(&saved);
    mem_free(apart);

    /* The saved folder is the model: parts need no folders any more. */
    char *text;
    size_t bytes;
    must(file_read(DECODER_FOLDER "/config.json", 1 << 20, &text, &bytes, &e), &e);
    const char *config = whole_config(text, NULL);
    snprintf(path, sizeof path, "%s/config.json", dir);
    must(file_write_atomic(path, config, strlen(config), &e), &e);
    float *again = run_whole(&d, dir, &k, NULL);
    assert_same(whole, again, n, k);
    mem_free(text);
    mem_free(whole);
    mem_free(again);
}

/* A frozen tower, a decoder that is trained with its blocks recomputed and its head in chunks: the
 * blocks of both parts are found, the tower is saved as it was read, and the decoder's weights
 * change. */
TEST(test_training)
{
    static const char *const sets[] = {"model.freeze=vision_tower.*", "train.effective_batch=2", "memory.micro_batch=2",
                                       "memory.recompute=all",        "memory.head_chunks=2",    NULL};
    const struct definition d = {.family = &whole_family, .config_json = whole_config(NULL, DECODER_FOLDER)};
    struct work w;
    struct error e;
    struct st_file saved, part;
    char dir[300], path[400], a[64], b[64];
    int64_t n;
    must(work_open(&w, &d, NULL, sets, &e), &e);
    put_pixels(&w);
    put_text(&w);
    mem_free(outcome(&w, "loss", &n));
    for (uint32_t i = 0; i < w.r.planned.graph.params.n; i++) {
        const struct param *p = &w.r.planned.graph.params.at[i];
        if (!weight_is_constant(&w.r.planned.graph, p))
            assert_int_equal(!p->grad, !strncmp(weight_name(&w.r.planned.graph, p), "vision_tower.", 13));
    }
    must(run_program(&w.r, PROGRAM_UPDATE, &e), &e);
    snprintf(dir, sizeof dir, "%s/trained", folder);
    must(dir_make(dir, &e), &e);
    must(weights_save(&w.r.weights, &w.r.planned.model, &w.r.planned.graph, &w.r.device, &w.r.tape, run_staging(&w.r),
                      PLAN_STAGING, dir, &e),
         &e);
    work_close(&w);

    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    must(st_open(path, &saved, &e), &e);
    assert_copied(&saved, "vision_tower.vision_model.encoder.layers.0.mlp.fc1.weight", TOWER_FOLDER,
                  "vision_model.encoder.layers.0.mlp.fc1.weight");
    must(st_open(DECODER_FOLDER "/model.safetensors", &part, &e), &e);
    must(st_read(&saved, st_find(&saved, "language_model.model.norm.weight"), 0, sizeof a, a, &e), &e);
    must(st_read(&part, st_find(&part, "norm.weight"), 0, sizeof b, b, &e), &e);
    assert_memory_not_equal(a, b, sizeof a);
    st_close(&part);
    st_close(&saved);
}

/* The configuration asks for a third layer, which the decoder's folder does not have. */
TEST(test_missing_tensor)
{
    struct error e = {0};
    struct work w;
    char *text, config[4096];
    size_t n;
    must(file_read(DECODER_FOLDER "/config.json", 1 << 20, &text, &n, &e), &e);
    char *layers = strstr(text, "\"num_hidden_layers\": 2");
    assert_non_null(layers);
    layers[strlen("\"num_hidden_layers\": ")] = '3';
    snprintf(config, sizeof config, "%s", text);
    mem_free(text);
    const struct definition d = {.family = &whole_family, .config_json = whole_config(config, DECODER_FOLDER)};
    assert_int_equal(work_open(&w, &d, NULL, NULL, &e), PL_USAGE);
    assert_says(&e, DECODER_FOLDER ": tensor \"layers.2.");
    assert_says(&e, "is missing (9 in all");
    work_close(&w);
}

static int open_definition(const struct definition *d, struct error *e)
{
    struct work w;
    int rc = work_open(&w, d, NULL, NULL, e);
    work_close(&w);
    return rc;
}

TEST(test_wrong_parts)
{
    struct error e = {0};
    struct definition d = {.family = &whole_family, .config_json = whole_config(NULL, "tests/golden/nowhere")};
    assert_int_equal(open_definition(&d, &e), PL_USAGE);
    assert_says(&e, "part language_model");
    assert_says(&e, "tests/golden/nowhere");
    d.config_json = whole_config(NULL, NULL);
    assert_int_equal(open_definition(&d, &e), PL_USAGE);
    assert_says(&e, "neither a configuration nor a folder");
    /* Folders of a definition: one name twice, a name inside another, a name that no parameter
     * has. */
    const struct part_folder same[] = {{"a", TOWER_FOLDER}, {"a", TOWER_FOLDER}},
                             inside[] = {{"a.b", TOWER_FOLDER}, {"a", TOWER_FOLDER}}, unknown[] = {{"a", TOWER_FOLDER}};
    d = (struct definition){.family = &projector_family, .config_json = "{}", .parts = same, .n_parts = 2};
    assert_int_equal(open_definition(&d, &e), PL_USAGE);
    assert_says(&e, "parts a and a:");
    d.parts = inside;
    assert_int_equal(open_definition(&d, &e), PL_USAGE);
    assert_says(&e, "parts a.b and a:");
    d.parts = unknown, d.n_parts = 1;
    assert_int_equal(open_definition(&d, &e), PL_USAGE);
    assert_says(&e, "no parameter of the model begins with \"a.\"");
}

/* A hidden state that the tower does not have, and embeddings of another width. */
TEST(test_wrong_calls)
{
    struct model tower, decoder;
    struct graph g;
    struct error e = {0};
    id x;
    must(model_open(&tower, TOWER_FOLDER, &e), &e);
    must(model_open(&decoder, DECODER_FOLDER, &e), &e);
    graph_init(&g);
    tower_encode(&tower, &g, "", pixels_of(&g), 1, (int64_t[]){-4}, &x);
    assert_int_equal(graph_error(&g, &e), PL_USAGE);
    assert_says(&e, "hidden state -4 of a tower of 2 layers");
    graph_free(&g);
    graph_init(&g);
    assert_false(decoder_states(&decoder, &g, "", graph_input(&g, "x", DT_F32, 3, (int64_t[]){B, T, WIDTH + 1}),
                                (struct token_rows){0}));
    assert_int_equal(graph_error(&g, &e), PL_USAGE);
    assert_says(&e, "[B,T,24]");
    graph_free(&g);
    model_close(&tower);
    model_close(&decoder);
}

static int open_type(const char *type, struct error *e)
{
    struct model m = {0};
    char config[128];
    snprintf(config, sizeof config, "{\"model_type\": \"%s\"}", type);
    int rc = model_text(&m, config, "config.json", e);
    model_close(&m);
    return rc;
}

/* A published family that is not supported is called by its name, and what there is instead is
 * said. No row of the table is that of a supported family. */
TEST(test_unsupported)
{
    static const char *const rows[] = {
#define UNSUPPORTED(model_type, name, instead) model_type,
#include "models/unsupported.def"
#undef UNSUPPORTED
    };
    static const struct {
        const char *type, *says;
    } some[] = {
        {"qwen3_5", "config.json: model_type qwen3_5: Qwen3.5 (a gated delta rule in three of four layers, gates of "
                    "attention's output) is not supported; Qwen2, Qwen2.5 and Qwen3 are; "
                    "docs/reference/model-folders.md lists what is"},
        {"qwen3_5_moe_text", "a shared expert"},
        {"olmoe", "(a mixture of experts)"},
        {"qwen2_moe", "Qwen2.5 and Qwen3 are"},
        {"gemma3n_text", "Gemma 3n (embeddings for each layer"},
        {"gemma3n", "LLaVA 1.5"},
        {"phi", "Phi-2"},
        {"deepseek_v3", "R1"},
        {"gpt_oss", "config.json: model_type gpt_oss: gpt-oss (attention sinks, clamped experts with biases, weights "
                    "in MXFP4) is not supported; the language models llama, mistral"},
        {"gpt_oss", "gpt2, mixtral and qwen3_moe are; docs/reference/model-folders.md lists what is"},
        {"gemma4", "config.json: model_type gemma4: Gemma 4 (wider heads in full layers, layers that share keys and "
                   "values, embeddings for each layer, experts) is not supported; the vision-language models LLaVA"},
        {"gemma4_text", " are; docs/reference/model-folders.md lists what is"},
        {"starcoder2", "StarCoder2"},
        {"ministral", "Mistral is"},
        {"falcon", "Falcon"},
        {"bloom", "BLOOM"},
        {"bert", "an encoder"},
        {"llava_next_video", "LLaVA 1.5"},
        {"internvl_chat", "LLaVA 1.5"},
        {"sam3", "is not supported; the segmentation models SAM, MedSAM, MobileSAM, TinySAM and SAM 2 are"},
        {"no_such_type", "the language models llama, mistral, qwen2"},
        {"no_such_type", " are; the vision-language models"},
    };
    struct error e = {0};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(open_type(rows[i], &e), PL_USAGE);
        assert_says(&e, " is not supported; ");
        assert_null(strstr(e.text, "arr_coc"));
        for (size_t k = 0; k < i; k++) assert_string_not_equal(rows[i], rows[k]);
    }
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        assert_int_equal(open_type(some[i].type, &e), PL_USAGE);
        assert_says(&e, some[i].says);
    }
}

#define ONE_LAYER "\"num_hidden_layers\": 1, "

/* A key of a language model that changes the forward, with a value that is not supported, is
 * refused by its name. */
TEST(test_refused_keys)
{
    static const struct {
        const char *type, *keys, *says;
    } some[] = {
        {"llama", "\"hidden_act\": \"relu\"", "hidden_act \"relu\": expected silu or gelu_pytorch_tanh"},
        {"llama", "\"partial_rotary_factor\": 0.5", "partial_rotary_factor 0.5 is not supported"},
        {"llama", "\"rope_scaling\": {\"type\": \"mrope\"}", "rope_type \"mrope\" is not one of"},
        {"qwen3", "\"head_dim\": 7", "head_dim 7 is odd"},
        {"phi3", "\"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1], \"long_factor\": [1]}",
         "short_factor has 1 entries, expected 48"},
        {"phi3", "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}", "rope_type is default or longrope"},
        {"phi3", "\"partial_rotary_factor\": 2", "expected above 0, at most 1"},
        {"gemma", "\"use_bidirectional_attention\": true", "use_bidirectional_attention is true"},
        {"gemma2", "\"hidden_activation\": \"relu\"", "hidden_activation \"relu\""},
        {"gemma2", "\"attn_logit_softcapping\": -1", "attn_logit_softcapping is -1"},
        {"gemma3_text", "\"rope_parameters\": {\"rope_theta\": 1e6}", "neither full_attention nor sliding_attention"},
        {"gemma3_text", "\"attn_logit_softcapping\": 2", "attn_logit_softcapping is 2, and the attention"},
        {"gemma3_text", "\"sliding_window_pattern\": 0", "sliding_window_pattern is 0"},
        {"granite", "\"logits_scaling\": 0", "logits_scaling is 0"},
        {"olmo3", "\"layer_types\": [\"full_attention\"]", "layer_types has 1 entries, num_hidden_layers is 32"},
        {"llama", "\"rope_parameters\": {\"full_attention\": {\"rope_theta\": 5}}",
         "rope_parameters has a map for each kind"},
        {"gemma3_text", "\"rope_parameters\": {\"full_attention\": {}}, \"rope_scaling\": {\"factor\": 2}",
         "rope_parameters and rope_scaling are both given"},
        {"llama", ONE_LAYER "\"layer_types\": [\"sliding_attention\"]",
         "layer_types: layer 0 is sliding_attention, and the"},
        {"qwen2", ONE_LAYER "\"sliding_window\": 4, \"layer_types\": [\"sliding_attention\"]",
         "(sliding_window, use_sliding_window)"},
        {"mistral", ONE_LAYER "\"layer_types\": [\"full_attention\"]",
         "layer_types: layer 0 is full_attention, and in this family"},
        {"qwen3_moe", "\"num_experts\": 4, \"num_local_experts\": 5", "num_experts is 4 and num_local_experts is 5"},
        {"mixtral", "\"num_local_experts\": 1", "num_experts_per_tok is 2, more than the experts"},
        {"olmo2", "\"vocab_size\": 1", "pad_token_id is 1"},
        {"smollm3", "\"no_rope_layers\": [1]", "no_rope_layers for each layer is missing"},
        {"olmo3", "\"rope_theta\": 10000", "rope_theta is 10000, and layers with a window"},
        {"ministral3", "\"head_dim\": 8", "rope_parameters is missing"},
        {"ministral3", "\"rope_parameters\": {\"type\": \"yarn\"}", "rope_parameters.llama_4_scaling_beta is missing"},
        {"ministral3", "\"rope_parameters\": {\"llama_4_scaling_beta\": 1}", "the rope_type of this family is yarn"},
        {"ministral3", "\"rope_scaling\": {\"factor\": 2}, \"rope_parameters\": {\"rope_type\": \"yarn\", "
                       "\"llama_4_scaling_beta\": 1}", "rope_scaling is not for it"},
        {"gpt2", "\"reorder_and_upcast_attn\": true", "reorder_and_upcast_attn is true"},
        {"gpt2", "\"scale_attn_by_inverse_layer_idx\": true", "scale_attn_by_inverse_layer_idx is true"},
        {"gpt2", "\"head_dim\": 8", "head_dim is 8, expected n_embd / n_head"},
        {"gpt2", "\"add_cross_attention\": true", "add_cross_attention is true"},
    };
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        char config[512];
        struct model m;
        struct error e = {0};
        snprintf(config, sizeof config, "{\"model_type\": \"%s\", %s}", some[i].type, some[i].keys);
        assert_int_equal(model_text(&m, config, "config.json", &e), PL_USAGE);
        assert_says(&e, some[i].says);
    }
}

/* Builds the graph of rows that are longer than the model's positions. */
static void build_small(struct graph *g, const char *type, const char *keys)
{
    char config[1024];
    struct model m;
    struct error e = {0};
    snprintf(config, sizeof config,
             "{\"model_type\": \"%s\", \"vocab_size\": 16, \"hidden_size\": 16, \"num_hidden_layers\": 2, "
             "\"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 8, \"intermediate_size\": 8, "
             "\"max_position_embeddings\": 4, %s}", type, keys);
    must(model_text(&m, config, "config.json", &e), &e);
    graph_init(g);
    m.family->build(&m, g, &(struct batch){.B = 1, .T = 12});
    must(graph_error(g, &e), &e);
    model_close(&m);
}

/* A model has more than one spelling: folders of transformers 4 and 5, and keys that its family
 * does not heed. */
TEST(test_spellings_of_a_model)
{
    static const struct {
        const char *type, *one, *other;
    } pairs[] = {
        {"llama", "\"rope_theta\": 5, \"rope_scaling\": {\"type\": \"linear\", \"factor\": 4}",
         "\"rope_parameters\": {\"rope_type\": \"linear\", \"factor\": 4, \"rope_theta\": 5}"},
        {"llama", "\"rope_theta\": 5, \"rope_scaling\": {\"type\": \"linear\", \"factor\": 4}",
         "\"rope_theta\": 5, \"rope_scaling\": {\"type\": \"linear\", \"factor\": 4}, "
         "\"rope_parameters\": {\"rope_theta\": 3}"},
        {"llama", "\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 4}",
         "\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 4, \"original_max_position_embeddings\": 2}"},
        {"mistral", "\"sliding_window\": 3",
         "\"sliding_window\": 3, \"layer_types\": [\"sliding_attention\", \"sliding_attention\"]"},
        {"qwen3", "\"use_sliding_window\": true, \"sliding_window\": 3, \"max_window_layers\": 1",
         "\"use_sliding_window\": true, \"sliding_window\": 3, "
         "\"layer_types\": [\"full_attention\", \"sliding_attention\"]"},
        {"gemma3_text", "\"rope_theta\": 5, \"rope_local_base_freq\": 3, "
                        "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 4}",
         "\"rope_parameters\": {\"full_attention\": {\"rope_type\": \"linear\", \"factor\": 4, \"rope_theta\": 5}, "
         "\"sliding_attention\": {\"rope_theta\": 3}}"},
        {"qwen3_moe", "\"num_experts\": 9", "\"num_local_experts\": 9"},
        {"mixtral", "\"num_local_experts\": 9", "\"num_experts\": 9, \"num_local_experts\": 9"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        struct graph a, b;
        build_small(&a, pairs[i].type, pairs[i].one);
        build_small(&b, pairs[i].type, pairs[i].other);
        assert_int_equal(a.blob.n, b.blob.n);
        assert_memory_equal(a.blob.at, b.blob.at, a.blob.n);
        assert_int_equal(a.nodes.n, b.nodes.n);
        assert_memory_equal(a.nodes.at, b.nodes.at, a.nodes.n * sizeof *a.nodes.at);
        graph_free(&a);
        graph_free(&b);
    }
}

MAIN(make_folder, remove_folder)
