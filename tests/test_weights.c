/*
 * test_weights.c: model folders and training state: what is read, what is rejected, and that files
 * are written back as they were read.
 *
 * The graphs are parameters without ops, placed by hand. Staging has its minimal size, so that
 * tensors are transferred in several chunks. The last tests take whole models from tests/golden
 * through the planner.
 */
#include "base/random.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "folder/transfer.h"
#include "folder/weights.h"
#include "plan/plan.h"
#include "folder/train_state.h"

#include "harness.h"

extern const struct family llama_family;

static _Alignas(64) char staging[TRANSFER_LEAST];

/* --- folders ------------------------------------------------------------------------ */

/* An empty folder of that name. */
static const char *fresh(const char *name)
{
    static char path[8][512];
    static int next;
    struct error e;
    char *p = path[next++ % 8];
    snprintf(p, sizeof path[0], "%s/%s", folder, name);
    assert_int_equal(tree_remove(p, &e), PL_OK);
    assert_int_equal(dir_make(p, &e), PL_OK);
    return p;
}

static const char *join(const char *dir, const char *name)
{
    static char path[8][768];
    static int next;
    char *p = path[next++ % 8];
    snprintf(p, sizeof path[0], "%s/%s", dir, name);
    return p;
}

static void put_file(const char *dir, const char *name, const char *text)
{
    struct error e;
    assert_int_equal(file_write_atomic(join(dir, name), text, strlen(text), &e), PL_OK);
}

static void assert_same_file(const char *a, const char *b)
{
    struct error e;
    char *x, *y;
    size_t nx, ny;
    if (file_read(a, 1 << 30, &x, &nx, &e)) fail_msg("%s", e.text);
    if (file_read(b, 1 << 30, &y, &ny, &e)) fail_msg("%s", e.text);
    if (nx != ny || memcmp(x, y, nx)) fail_msg("%s and %s differ", a, b);
    mem_free(x);
    mem_free(y);
}

/* --- fixture: graph, placement, device ------------------------------------------------------- */

struct fixture {
    struct graph g;
    struct placement places;
    struct device d;
    struct tape t;
    struct model m;
    struct weights w;
};

enum { TIED = 1, BF16 = 2, FREEZE_NORM = 4, MOMENTS = 8, REVERSED = 16 };

static const float table[2] = {1, 0.5f};

static void add_param(struct graph *g, const char *name, int rank, int64_t rows, int64_t cols, enum init_kind init)
{
    assert_true(graph_param(g, name, DT_F32, rank, (int64_t[]){rows, cols}, (struct init){init, 0.02f, 0}));
}

static void add_params(struct graph *g, int flags)
{
    if (flags & REVERSED) add_param(g, "model.norm.weight", 1, 7, 1, INIT_ONE);
    if (flags & REVERSED) add_param(g, "model.layers.0.mlp.weight", 2, 3, 29, INIT_NORMAL);
    add_param(g, "model.embed_tokens.weight", 2, 37, 7, INIT_NORMAL);
    assert_true(graph_const(g, "rope.inv_freq", DT_F32, 1, (int64_t[]){2}, table));
    if (!(flags & REVERSED)) add_param(g, "model.layers.0.mlp.weight", 2, 3, 29, INIT_NORMAL);
    add_param(g, "model.layers.0.mlp.bias", 1, 3, 1, INIT_ZERO);
    if (!(flags & REVERSED)) add_param(g, "model.norm.weight", 1, 7, 1, INIT_ONE);
    if (!(flags & TIED)) add_param(g, "lm_head.weight", 2, 37, 7, INIT_NORMAL);
}

static void add_moments(struct graph *g)
{
    static const char *const which[] = {"exp_avg", "exp_avg_sq"};
    for (uint32_t i = 0; i < g->params.n; i++)
        for (int k = 0; k < 2; k++) {
            struct param p = g->params.at[i];
            struct tensor x = *tensor_at(g, p.master);
            char name[300];
            if (p.frozen) continue;
            snprintf(name, sizeof name, "%s.%s", graph_name(g, tensor_at(g, p.tensor)->name), which[k]);
            id s = graph_storage(g, name, KIND_STATE, k ? SPACE_HOST : SPACE_DEVICE, tensor_bytes(&x));
            id t = graph_tensor(g, name, s, DT_F32, x.rank, x.dim, 0);
            /* An op's result on the same storage, as the optimizer creates them: not an item of its
             * own. */
            id out = graph_tensor(g, "adamw/1", s, DT_F32, x.rank, x.dim, 0);
            tensor_at(g, out)->node = 1;
            assert_true(t);
        }
}

static void place_by_hand(struct fixture *w)
{
    struct error e;
    w->places = (struct placement){.storages = w->g.storages.n};
    w->places.offset = mem_alloc(w->g.storages.n * sizeof(uint64_t));
    for (id s = 1; s < w->g.storages.n; s++) {
        uint64_t *top = &w->places.arena[w->g.storages.at[s].space];
        w->places.offset[s] = *top;
        *top += align_up(w->g.storages.at[s].bytes, 256);
    }
    assert_int_equal(device_open(&w->d, DEVICE_REF, 1, &e), PL_OK);
    snprintf(w->d.spill, sizeof w->d.spill, "%s", folder);
    assert_int_equal(device_allocate(&w->d, w->places.arena, &e), PL_OK);
    w->t = (struct tape){.graph = &w->g, .placement = &w->places};
    memcpy(w->t.arena, w->d.arena, sizeof w->t.arena);
}

static void fixture_open(struct fixture *w, int flags)
{
    memset(w, 0, sizeof *w);
    graph_init(&w->g);
    add_params(&w->g, flags);
    for (uint32_t i = 0; i < w->g.params.n && flags & FREEZE_NORM; i++)
        if (!strcmp(weight_name(&w->g, &w->g.params.at[i]), "model.norm.weight")) w->g.params.at[i].frozen = true;
    struct settings s = {.precision = flags & BF16 ? PRECISION_BF16 : PRECISION_F32};
    pass_precision(&w->g, &s);
    if (flags & MOMENTS) add_moments(&w->g);
    place_by_hand(w);
    w->m.family = &llama_family; /* for the prefix of its names */
    w->m.config_text = mem_string("{\"model_type\": \"test\"}\n");
}

static void fixture_close(struct fixture *w)
{
    weights_close(&w->w);
    device_close(&w->d, &w->t);
    placement_free(&w->places);
    graph_free(&w->g);
    mem_free(w->m.config_text);
}

static int fixture_load(struct fixture *w, const char *dir, uint64_t seed, struct error *e)
{
    snprintf(w->m.path, sizeof w->m.path, "%s", dir);
    int rc = weights_open(&w->w, &w->m, &w->g, NULL, e);
    return rc ? rc : weights_load(&w->w, &w->g, &w->d, &w->t, staging, sizeof staging, seed, e);
}

static void fixture_save(struct fixture *w, const char *dir)
{
    struct error e;
    if (weights_save(&w->w, &w->m, &w->g, &w->d, &w->t, staging, sizeof staging, dir, &e)) fail_msg("%s", e.text);
}

static void *data_of(const struct fixture *w, id tensor) { return tape_address(&w->t, tensor); }

static struct param *param_of(const struct fixture *w, const char *name)
{
    for (uint32_t i = 0; i < w->g.params.n; i++)
        if (!strcmp(weight_name(&w->g, &w->g.params.at[i]), name)) return &w->g.params.at[i];
    fail_msg("no parameter %s", name);
    return NULL;
}

/* --- files to read ------------------------------------------------------------------------ */

/* The value of an element by the tensor's published name: exact in every float dtype. */
static double sample_value(const char *name, int64_t i)
{
    return (double)((int64_t)(hash_bytes(name, strlen(name), 1) % 13) + i % 41 - 20) / 8;
}

struct file_tensor {
    const char *published, *name; /* name NULL: as published */
    enum dtype dtype;
    int rank;
    int64_t dims[2];
};

/* The five parameters of the fixture in F32, as published. */
static const struct file_tensor five[] = {
    {"model.layers.0.mlp.weight", NULL, DT_F32, 2, {3, 29}}, {"lm_head.weight", NULL, DT_F32, 2, {37, 7}},
    {"model.norm.weight", NULL, DT_F32, 1, {7, 1}},          {"model.layers.0.mlp.bias", NULL, DT_F32, 1, {3, 1}},
    {"model.embed_tokens.weight", NULL, DT_F32, 2, {37, 7}},
};

static void write_file(const char *path, const struct file_tensor *f, uint32_t n)
{
    struct st_pair metadata[] = {{"format", "pt"}, {"note", "\xc3\xa9 \"x\""}};
    struct st_spec specs[8];
    struct st_writer out;
    struct error e;
    for (uint32_t i = 0; i < n; i++)
        specs[i] = (struct st_spec){f[i].name ? f[i].name : f[i].published, f[i].dtype, f[i].rank, f[i].dims};
    assert_int_equal(st_write_begin(&out, path, specs, n, metadata, 2, &e), PL_OK);
    for (uint32_t i = 0; i < n; i++)
        for (int64_t k = 0; k < (f[i].rank > 1 ? f[i].dims[0] * f[i].dims[1] : f[i].dims[0]); k++) {
            char x[8];
            dtype_store(x, f[i].dtype, 0, sample_value(f[i].published, k));
            assert_int_equal(st_write_bytes(&out, x, dtype_size(f[i].dtype), &e), PL_OK);
        }
    assert_int_equal(st_write_end(&out, &e), PL_OK);
}

/* The five under other names: with a prefix, or without "model.". */
static void name_five(struct file_tensor out[5], char names[5][128], const char *prefix, bool strip)
{
    memcpy(out, five, sizeof five);
    for (int i = 0; i < 5; i++) {
        const char *name = five[i].published;
        if (strip && !strncmp(name, "model.", 6)) name += 6;
        snprintf(names[i], 128, "%s%s", prefix, name);
        out[i].name = names[i];
    }
}

/* Master weights hold the values, working copies the rounded master weights, constants their
 * data. */
static void assert_values(const struct fixture *w)
{
    for (uint32_t i = 0; i < w->g.params.n; i++) {
        const struct param *p = &w->g.params.at[i];
        const struct tensor *m = tensor_at(&w->g, p->master), *x = tensor_at(&w->g, p->tensor);
        const char *name = weight_name(&w->g, p);
        for (int64_t k = 0; k < tensor_elements(m); k++) {
            double want = weight_is_constant(&w->g, p) ? table[k] : sample_value(name, k);
            if (dtype_load(data_of(w, p->master), m->dtype, k) != want ||
                dtype_load(data_of(w, p->tensor), x->dtype, k) != want)
                fail_msg("%s[%d] is %g, expected %g", name, (int)k, dtype_load(data_of(w, p->tensor), x->dtype, k),
                         want);
        }
    }
}

/* --- reading and writing back ----------------------------------------------------------- */

/* Every float dtype, into f32 and into bf16 with master weights. Untouched weights are written back
 * byte for byte, header and metadata included. */
TEST(test_round_trip)
{
    static const enum dtype types[] = {DT_F32, DT_BF16, DT_F16, DT_F64};
    for (size_t k = 0; k < COUNT(types); k++)
        for (int flags = 0; flags <= BF16; flags += BF16) {
            const char *in = fresh("in"), *out = fresh("out");
            struct file_tensor f[5];
            struct fixture w;
            struct error e;
            memcpy(f, five, sizeof f);
            /* one of another dtype */
            for (int i = 0; i < 5; i++) f[i].dtype = types[(k + (size_t)i * (i == 2)) % COUNT(types)];
            write_file(join(in, "model.safetensors"), f, 5);
            fixture_open(&w, flags);
            if (fixture_load(&w, in, 0, &e)) fail_msg("%s", e.text);
            assert_values(&w);
            fixture_save(&w, out);
            assert_same_file(join(in, "model.safetensors"), join(out, "model.safetensors"));
            uint64_t bytes, config;
            assert_int_equal(file_size(join(out, "model.safetensors"), &bytes, &e), PL_OK);
            assert_int_equal(file_size(join(out, "config.json"), &config, &e), PL_OK);
            assert_int_equal(weights_bytes(&w.w, &w.g), bytes + config);
            fixture_close(&w);
        }
}

/* A trained tensor is rounded to the file's dtype; a frozen one keeps the file's bytes. */
TEST(test_trained_and_frozen)
{
    const char *in = fresh("in"), *out = fresh("out");
    struct file_tensor f[5];
    struct fixture w;
    struct st_file file;
    struct error e;
    memcpy(f, five, sizeof f);
    for (int i = 0; i < 5; i++) f[i].dtype = DT_BF16;
    write_file(join(in, "model.safetensors"), f, 5);
    fixture_open(&w, FREEZE_NORM);
    if (fixture_load(&w, in, 0, &e)) fail_msg("%s", e.text);
    float *mlp = data_of(&w, param_of(&w, "model.layers.0.mlp.weight")->master);
    for (int i = 0; i < 3 * 29; i++) mlp[i] = 1 + (float)i * 0x1p-9f;
    *(float *)data_of(&w, param_of(&w, "model.norm.weight")->master) = 99;
    fixture_save(&w, out);

    uint16_t got[3 * 29];
    assert_int_equal(st_open(join(out, "model.safetensors"), &file, &e), PL_OK);
    assert_int_equal(st_read(&file, st_find(&file, "model.layers.0.mlp.weight"), 0, sizeof got, got, &e), PL_OK);
    for (int i = 0; i < 3 * 29; i++) assert_int_equal(got[i], f32_to_bf16(mlp[i]));
    assert_int_equal(st_read(&file, st_find(&file, "model.norm.weight"), 0, 2, got, &e), PL_OK);
    assert_float_equal(bf16_to_f32(got[0]), sample_value("model.norm.weight", 0), 0);
    st_close(&file);

    /* A value that the dtype cannot represent is an error, not written silently. */
    mlp[70] = NAN;
    int rc = weights_save(&w.w, &w.m, &w.g, &w.d, &w.t, staging, sizeof staging, fresh("out"), &e);
    assert_int_equal(rc, PL_FAIL);
    assert_says(&e, "element 70 of the trained tensor model.layers.0.mlp.weight");
    assert_false(file_exists(join(out, "model.safetensors")));
    fixture_close(&w);
}

/* Two files and an index; other files are copied, weights in other formats are not. */
TEST(test_sharded)
{
    const char *in = fresh("in"), *out = fresh("out");
    struct fixture w;
    struct error e;
    write_file(join(in, "a.safetensors"), five, 2);
    write_file(join(in, "b.weights"), five + 2, 3); /* an unusual name, which the index gives */
    write_file(join(in, "unrelated.safetensors"), five, 5);
    put_file(in, "model.safetensors.index.json",
             "{\"metadata\": {}, \"weight_map\": {\"model.layers.0.mlp.weight\": \"a.safetensors\", "
             "\"lm_head.weight\": \"a.safetensors\","
             "\"model.norm.weight\": \"b.weights\", \"model.layers.0.mlp.bias\": \"b.weights\", "
             "\"model.embed_tokens.weight\": \"b.weights\"}}");
    put_file(in, "tokenizer.json", "{}");
    put_file(in, "pytorch_model.bin", "x");
    put_file(in, "state.json", "{}");
    put_file(in, "DONE", "");
    assert_int_equal(dir_make(join(in, "sub"), &e), PL_OK);
    fixture_open(&w, BF16);
    if (fixture_load(&w, in, 0, &e)) fail_msg("%s", e.text);
    assert_values(&w);
    fixture_save(&w, out);
    struct names names;
    assert_int_equal(dir_list(out, &names, &e), PL_OK);
    static const char *const want[] = {"a.safetensors", "b.weights", "config.json", "model.safetensors.index.json",
                                       "tokenizer.json"};
    assert_int_equal(names.n, COUNT(want));
    for (uint32_t i = 0; i < names.n; i++) assert_string_equal(names.at[i], want[i]);
    names_free(&names);
    assert_same_file(join(in, "a.safetensors"), join(out, "a.safetensors"));
    assert_same_file(join(in, "b.weights"), join(out, "b.weights"));
    fixture_close(&w);
}

TEST(test_naming)
{
    static const struct {
        const char *prefix, *file, *says;
        bool strip;
    } cases[] = {{"", "model.safetensors", "names without \"model.\"", true},
                 {"module.", "only.safetensors", "names after \"module.\"", false},
                 {"base_model.model.", "model.safetensors", "names after \"base_model.model.\"", false}};
    for (size_t k = 0; k < COUNT(cases); k++) {
        const char *in = fresh("in"), *out = fresh("out");
        struct file_tensor f[5];
        char names[5][128], rule[160];
        struct fixture w;
        struct error e;
        name_five(f, names, cases[k].prefix, cases[k].strip);
        write_file(join(in, cases[k].file), f, 5);
        fixture_open(&w, 0);
        if (fixture_load(&w, in, 0, &e)) fail_msg("%s", e.text);
        assert_string_equal(weights_describe_naming(&w.w, rule), cases[k].says);
        assert_values(&w);
        fixture_save(&w, out);
        assert_same_file(join(in, cases[k].file), join(out, cases[k].file));
        fixture_close(&w);
    }
}

/* Extra tensors, one of an unsupported dtype, and a stored tied head: the extra ones are copied,
 * and the head follows its embedding. */
TEST(test_extras)
{
    const char *in = fresh("in"), *out = fresh("out");
    static const char header[] =
        "{\"flags\":{\"dtype\":\"BOOL\",\"shape\":[3],\"data_offsets\":[0,3]},"
        "\"lm_head.weight\":{\"dtype\":\"BF16\",\"shape\":[37,7],\"data_offsets\":[3,521]},"
        "\"model.embed_tokens.weight\":{\"dtype\":\"F32\",\"shape\":[37,7],\"data_offsets\":[521,1557]},"
        "\"model.layers.0.mlp.bias\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[1557,1569]},"
        "\"model.layers.0.mlp.weight\":{\"dtype\":\"F32\",\"shape\":[3,29],\"data_offsets\":[1569,1917]},"
        "\"model.layers.0.rotary_emb.inv_freq\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[1917,1925]},"
        "\"model.norm.weight\":{\"dtype\":\"F32\",\"shape\":[7],\"data_offsets\":[1925,1953]}}  ";
    struct text t = {0};
    struct fixture w;
    struct error e;
    uint64_t length = sizeof header - 1;
    for (int i = 0; i < 8; i++) text_append(&t, (char[]){(char)(length >> (8 * i))}, 1);
    text_append(&t, header, length);
    /* finite in any grouping */
    for (int i = 0; i < 1953; i++) text_append(&t, (char[]){(char)(i % 4 == 0 ? 0x3f : i % 50)}, 1);
    assert_int_equal(file_write_atomic(join(in, "model.safetensors"), t.at, t.n, &e), PL_OK);
    text_free(&t);

    fixture_open(&w, TIED);
    if (fixture_load(&w, in, 0, &e)) fail_msg("%s", e.text);
    float *embed = data_of(&w, param_of(&w, "model.embed_tokens.weight")->master);
    for (int i = 0; i < 37 * 7; i++) embed[i] = (float)i;
    fixture_save(&w, out);

    struct st_file a, b;
    uint16_t head[37 * 7];
    char x[32], y[32];
    assert_int_equal(st_open(join(in, "model.safetensors"), &a, &e), PL_OK);
    assert_int_equal(st_open(join(out, "model.safetensors"), &b, &e), PL_OK);
    assert_int_equal(st_read(&b, st_find(&b, "lm_head.weight"), 0, sizeof head, head, &e), PL_OK);
    for (int i = 0; i < 37 * 7; i++) assert_int_equal(head[i], f32_to_bf16((float)i));
    static const char *const kept[] = {"flags", "model.layers.0.rotary_emb.inv_freq", "model.norm.weight"};
    for (size_t i = 0; i < COUNT(kept); i++) {
        uint64_t n = st_find(&a, kept[i])->bytes;
        assert_int_equal(st_read(&a, st_find(&a, kept[i]), 0, n, x, &e), PL_OK);
        assert_int_equal(st_read(&b, st_find(&b, kept[i]), 0, n, y, &e), PL_OK);
        assert_memory_equal(x, y, n);
    }
    st_close(&a);
    st_close(&b);
    fixture_close(&w);
}

/* A stored head with the values of the embedding that it is tied to is fine, and one with others is
 * no copy of it. */
TEST(test_tied_head)
{
    const char *in = fresh("in");
    struct fixture w;
    struct error e;
    struct file_tensor f[5];
    memcpy(f, five, sizeof f);
    for (int other = 0; other < 2; other++) {
        f[1].name = "lm_head.weight";
        f[1].published = other ? f[1].name : "model.embed_tokens.weight"; /* its values follow from this name */
        write_file(join(in, "model.safetensors"), f, 5);
        fixture_open(&w, TIED);
        assert_int_equal(fixture_load(&w, in, 0, &e), other ? PL_USAGE : PL_OK);
        if (other) assert_says(&e, "tensor \"lm_head.weight\" has other values than \"model.embed_tokens.weight\"");
        if (other) assert_says(&e, "set tie_word_embeddings to false");
        fixture_close(&w);
    }
}

/* --- rejected folders ------------------------------------------------------------------------ */

/* The folder must be rejected with a message that contains both texts. */
static void refuse(const char *dir, const char *first, const char *second)
{
    struct fixture w;
    struct error e = {0};
    fixture_open(&w, 0);
    assert_int_equal(fixture_load(&w, dir, 0, &e), PL_USAGE);
    assert_says(&e, first);
    assert_says(&e, second);
    fixture_close(&w);
}

TEST(test_refused_tensors)
{
    const char *in = fresh("in");
    struct file_tensor f[5];
    memcpy(f, five, sizeof f);
    f[2].name = "model.norn.weight";
    write_file(join(in, "model.safetensors"), f, 5);
    refuse(in, "tensor \"model.norm.weight\" is missing", "nearest name is \"model.norn.weight\"");

    memcpy(f, five, sizeof f);
    f[0].dims[0] = 29, f[0].dims[1] = 3;
    write_file(join(in, "model.safetensors"), f, 5);
    refuse(in, "\"model.layers.0.mlp.weight\" has the shape [29,3]", "asks for [3,29]");

    memcpy(f, five, sizeof f);
    f[2].rank = 2;
    write_file(join(in, "model.safetensors"), f, 5);
    refuse(in, "has the shape [7,1]", "asks for [7]");

    memcpy(f, five, sizeof f);
    f[3].dtype = DT_I32;
    write_file(join(in, "model.safetensors"), f, 5);
    refuse(in, "\"model.layers.0.mlp.bias\" is I32", "expected F32, BF16, F16 or F64");

    /* Two whole models under two prefixes. */
    struct file_tensor ten[5];
    char names[5][128];
    name_five(ten, names, "teacher.", false);
    write_file(join(in, "a.safetensors"), ten, 5);
    name_five(ten, names, "student.", false);
    write_file(join(in, "b.safetensors"), ten, 5);
    struct text index = {0};
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < 5; i++)
            text_printf(&index, "%s\"%s.%s\": \"%c.safetensors\"", index.n ? "," : "{\"weight_map\": {",
                        k ? "student" : "teacher", five[i].published, k ? 'b' : 'a');
    text_printf(&index, "}}");
    put_file(in, "model.safetensors.index.json", index.at);
    text_free(&index);
    refuse(in, "holds this model twice", "\"teacher.\"");
}

TEST(test_refused_folders)
{
    const char *in = fresh("in");
    put_file(in, "pytorch_model.bin", "x");
    refuse(in, "no weights found: looked for model.safetensors.index.json, model.safetensors",
           "found pytorch_model.bin");
    write_file(join(in, "a.safetensors"), five, 2);
    write_file(join(in, "b.safetensors"), five + 2, 3);
    refuse(in, "(there are 2)", "a.safetensors, b.safetensors");
    refuse(join(in, "nowhere"), "no such folder", "nowhere");

    static const char *const outside[] = {"../a.safetensors", "sub/a.safetensors", "/etc/passwd", "..", ""};
    for (size_t i = 0; i < COUNT(outside); i++) {
        char index[200];
        snprintf(index, sizeof index, "{\"weight_map\": {\"lm_head.weight\": \"%s\"}}", outside[i]);
        put_file(in, "model.safetensors.index.json", index);
        refuse(in, "tensor \"lm_head.weight\" is listed in", "expected the plain name");
    }
    put_file(in, "model.safetensors.index.json", "{\"weight_map\": {\"lm_head.weight\": \"b.safetensors\"}}");
    refuse(in, "lists tensor \"lm_head.weight\" in b.safetensors", "does not have it");
    put_file(in, "model.safetensors.index.json", "{\"weight_map\": {\"lm_head.weight\": \"c.safetensors\"}}");
    refuse(in, "c.safetensors", "cannot open it");
    put_file(in, "model.safetensors.index.json", "{\"weight_map\": {}}");
    refuse(in, "index.json", "weight_map is empty");
    put_file(in, "model.safetensors.index.json", "{\"weight_map\": [1]}");
    refuse(in, "index.json", "weight_map");

    /* The file has the tensor, the index does not list it. */
    put_file(
        in, "model.safetensors.index.json",
        "{\"weight_map\": {\"model.layers.0.mlp.weight\": \"a.safetensors\", \"lm_head.weight\": \"a.safetensors\","
        "\"model.norm.weight\": \"b.safetensors\", \"model.layers.0.mlp.bias\": \"b.safetensors\"}}");
    refuse(in, "tensor \"model.embed_tokens.weight\" is in b.safetensors", "does not name it there");
}

/* Writes an element of a tensor in the file. */
static void poke(const char *path, const char *tensor, int64_t i, double x)
{
    struct st_file f;
    struct error e;
    char bytes[8];
    assert_int_equal(st_open(path, &f, &e), PL_OK);
    const struct st_entry *t = st_find(&f, tensor);
    uint32_t size = dtype_size(t->dtype);
    dtype_store(bytes, t->dtype, 0, x);
    FILE *out = fopen(path, "r+b");
    assert_non_null(out);
    assert_int_equal(fseek(out, (long)(f.data_begin + t->begin + (uint64_t)i * size), SEEK_SET), 0);
    assert_int_equal(fwrite(bytes, size, 1, out), 1);
    fclose(out);
    st_close(&f);
}

TEST(test_not_finite)
{
    static const enum dtype types[] = {DT_F32, DT_BF16, DT_F16, DT_F64};
    for (size_t k = 0; k < COUNT(types); k++) {
        const char *in = fresh("in"), *path = join(in, "model.safetensors");
        struct file_tensor f[5];
        memcpy(f, five, sizeof f);
        for (int i = 0; i < 5; i++) f[i].dtype = types[k];
        write_file(path, f, 5);
        poke(path, "lm_head.weight", 200, NAN);
        refuse(in, "model.safetensors: tensor \"lm_head.weight\": element 200 is nan", "finite");
        poke(path, "lm_head.weight", 200, 0);
        poke(path, "lm_head.weight", 258, -INFINITY);
        refuse(in, "element 258 is -inf", "model.safetensors");
        if (types[k] != DT_F64) continue;
        poke(path, "lm_head.weight", 258, 1e300);
        refuse(in, "element 258 is 1e+300, as f32", "lm_head.weight");
    }
}

/* --- presets --------------------------------------------------------------------------------- */

/* The same seed gives the same weights in any order of parameters and with any staging size;
 * another seed gives others. */
TEST(test_preset)
{
    static _Alignas(64) char large[1 << 16];
    struct fixture a, b, c;
    struct error e;
    fixture_open(&a, 0);
    fixture_open(&b, REVERSED);
    fixture_open(&c, 0);
    assert_int_equal(fixture_load(&a, "", 7, &e), PL_OK);
    assert_int_equal(weights_open(&b.w, &b.m, &b.g, NULL, &e), PL_OK);
    assert_int_equal(weights_load(&b.w, &b.g, &b.d, &b.t, large, sizeof large, 7, &e), PL_OK);
    assert_int_equal(fixture_load(&c, "", 8, &e), PL_OK);
    double sum = 0, squares = 0, n = 0;
    for (uint32_t i = 0; i < a.g.params.n; i++) {
        const struct param *p = &a.g.params.at[i], *q = NULL;
        for (uint32_t k = 0; k < b.g.params.n; k++)
            if (!strcmp(weight_name(&a.g, p), weight_name(&b.g, &b.g.params.at[k]))) q = &b.g.params.at[k];
        uint64_t bytes = tensor_bytes(tensor_at(&a.g, p->tensor));
        const float *x = data_of(&a, p->tensor);
        assert_memory_equal(x, data_of(&b, q->tensor), bytes);
        if (p->init.kind == INIT_ONE || p->init.kind == INIT_ZERO)
            for (uint64_t k = 0; k < bytes / 4; k++) assert_true(x[k] == (p->init.kind == INIT_ONE));
        if (p->init.kind != INIT_NORMAL) continue;
        assert_memory_not_equal(x, data_of(&c, p->tensor), bytes);
        for (uint64_t k = 0; k < bytes / 4; k++) sum += x[k], squares += (double)x[k] * x[k], n++;
    }
    /* Mean and variance of n normal numbers: within five of their own deviations. */
    assert_true(fabs(sum / n) < 5 * 0.02 / sqrt(n));
    assert_true(fabs(squares / n / (0.02 * 0.02) - 1) < 5 * sqrt(2 / n));
    assert_memory_not_equal(data_of(&a, param_of(&a, "model.embed_tokens.weight")->tensor),
                            data_of(&a, param_of(&a, "lm_head.weight")->tensor), 37 * 7 * 4);
    fixture_close(&a);
    fixture_close(&b);
    fixture_close(&c);
}

/* A padding row is 0 and changes no other row, also where it is at an end of the table or of the
 * staging buffer. */
TEST(test_padding)
{
    const int64_t rows[] = {0, 17, 36};
    struct fixture plain, padded;
    struct error e;
    fixture_open(&plain, TIED);
    assert_int_equal(fixture_load(&plain, "", 7, &e), PL_OK);
    const float *x = data_of(&plain, param_of(&plain, "model.embed_tokens.weight")->tensor);
    for (size_t i = 0; i < COUNT(rows); i++) {
        fixture_open(&padded, TIED);
        for (uint32_t k = 0; k < padded.g.params.n; k++)
            if (!strcmp(weight_name(&padded.g, &padded.g.params.at[k]), "model.embed_tokens.weight"))
                padded.g.params.at[k].init.padding = 1 + rows[i];
        assert_int_equal(fixture_load(&padded, "", 7, &e), PL_OK);
        const float *y = data_of(&padded, param_of(&padded, "model.embed_tokens.weight")->tensor);
        for (int64_t k = 0; k < 37 * 7; k++) assert_true(y[k] == (k / 7 == rows[i] ? 0 : x[k]));
        fixture_close(&padded);
    }
    fixture_close(&plain);
}

/* A preset's folder opens as a folder, and gives the same master weights. */
TEST(test_preset_saved)
{
    const char *out = fresh("out");
    struct fixture a, b;
    struct error e;
    uint64_t bytes, config;
    fixture_open(&a, BF16);
    fixture_open(&b, BF16);
    assert_int_equal(fixture_load(&a, "", 3, &e), PL_OK);
    fixture_save(&a, out);
    assert_int_equal(file_size(join(out, "model.safetensors"), &bytes, &e), PL_OK);
    assert_int_equal(file_size(join(out, "config.json"), &config, &e), PL_OK);
    assert_true(weights_bytes(&a.w, &a.g) >= bytes + config);
    if (fixture_load(&b, out, 0, &e)) fail_msg("%s", e.text);
    for (uint32_t i = 0; i < a.g.params.n; i++) {
        const struct param *p = &a.g.params.at[i];
        assert_memory_equal(data_of(&a, p->master), data_of(&b, p->master), tensor_bytes(tensor_at(&a.g, p->master)));
        assert_memory_equal(data_of(&a, p->tensor), data_of(&b, p->tensor), tensor_bytes(tensor_at(&a.g, p->tensor)));
    }
    struct st_file f;
    assert_int_equal(st_open(join(out, "model.safetensors"), &f, &e), PL_OK);
    assert_string_equal(st_metadata(&f, "format"), "pt");
    assert_string_equal(f.entries[0].name, "model.embed_tokens.weight");
    assert_int_equal(f.n_entries, 5);
    st_close(&f);
    fixture_close(&a);
    fixture_close(&b);
}

/* --- training state -------------------------------------------------------------------------- */

/* Fills every byte of the state's storages from a seed. */
static void scramble(struct fixture *w, uint64_t seed)
{
    for (id s = 1; s < w->g.storages.n; s++) {
        const struct storage *x = &w->g.storages.at[s];
        if (x->kind != KIND_MASTER && x->kind != KIND_STATE && x->kind != KIND_PARAM) continue;
        random_normal((float *)(void *)(w->t.arena[x->space] + w->places.offset[s]),
                      random_key(seed, graph_name(&w->g, x->name)), 0, (int64_t)(x->bytes / 4), 1);
    }
}

TEST(test_state_round_trip)
{
    const char *first = fresh("s1"), *second = fresh("s2");
    struct train_state in = {12, 11, UINT64_MAX - 5, UINT64_MAX, 1}, out, peek;
    struct fixture a, b;
    struct error e;
    fixture_open(&a, BF16 | MOMENTS | FREEZE_NORM);
    fixture_open(&b, BF16 | MOMENTS | FREEZE_NORM);
    scramble(&a, 1);
    scramble(&b, 2);
    if (state_save(first, &in, &a.g, &a.d, &a.t, staging, sizeof staging, &e)) fail_msg("%s", e.text);
    if (state_load(first, &out, &b.g, &b.d, &b.t, staging, sizeof staging, &e)) fail_msg("%s", e.text);
    assert_memory_equal(&in, &out, sizeof in);
    assert_int_equal(state_read(first, &peek, &e), PL_OK);
    assert_memory_equal(&in, &peek, sizeof in);
    if (state_save(second, &out, &b.g, &b.d, &b.t, staging, sizeof staging, &e)) fail_msg("%s", e.text);
    assert_same_file(join(first, "state.safetensors"), join(second, "state.safetensors"));
    assert_same_file(join(first, "state.json"), join(second, "state.json"));
    /* Working copies follow their master weights; the frozen weight is unchanged. */
    const struct param *p = param_of(&b, "model.layers.0.mlp.weight"), *frozen = param_of(&b, "model.norm.weight");
    const float *master = data_of(&b, p->master);
    const uint16_t *work = data_of(&b, p->tensor);
    for (int i = 0; i < 3 * 29; i++) assert_int_equal(work[i], f32_to_bf16(master[i]));
    assert_memory_not_equal(data_of(&a, frozen->tensor), data_of(&b, frozen->tensor), 14);
    uint64_t tensors, json;
    assert_int_equal(file_size(join(first, "state.safetensors"), &tensors, &e), PL_OK);
    assert_int_equal(file_size(join(first, "state.json"), &json, &e), PL_OK);
    assert_true(state_bytes(&a.g) >= tensors + json);
    assert_int_equal(state_reset(&b.g, &b.d, &b.t, staging, sizeof staging, &e), PL_OK);
    for (id s = 1; s < b.g.storages.n; s++)
        for (uint64_t k = 0; b.g.storages.at[s].kind == KIND_STATE && k < b.g.storages.at[s].bytes; k++)
            assert_int_equal(b.t.arena[b.g.storages.at[s].space][b.places.offset[s] + k], 0);
    fixture_close(&a);
    fixture_close(&b);
}

/* Another plan reads the same state: f32 here, bf16 with master weights there. */
TEST(test_state_other_plan)
{
    const char *dir = fresh("s1");
    struct train_state in = {.step = 3}, out;
    struct fixture a, b;
    struct error e;
    fixture_open(&a, MOMENTS);
    fixture_open(&b, BF16 | MOMENTS);
    scramble(&a, 1);
    if (state_save(dir, &in, &a.g, &a.d, &a.t, staging, sizeof staging, &e)) fail_msg("%s", e.text);
    if (state_load(dir, &out, &b.g, &b.d, &b.t, staging, sizeof staging, &e)) fail_msg("%s", e.text);
    assert_memory_equal(data_of(&a, param_of(&a, "lm_head.weight")->master),
                        data_of(&b, param_of(&b, "lm_head.weight")->master), 37 * 7 * 4);
    fixture_close(&a);
    fixture_close(&b);
}

static void refuse_state(const char *dir, int flags, const char *says)
{
    struct train_state out;
    struct fixture w;
    struct error e = {0};
    fixture_open(&w, flags);
    assert_int_equal(state_load(dir, &out, &w.g, &w.d, &w.t, staging, sizeof staging, &e), PL_USAGE);
    assert_says(&e, says);
    fixture_close(&w);
}

/* Makes state.json that of a program without checksums. */
static void drop_checksums(const char *path)
{
    char *text;
    size_t n;
    struct error e;
    if (file_read(path, 1 << 20, &text, &n, &e)) fail_msg("%s", e.text);
    char *at = strstr(text, ",\n  \"tensors_crc32c\"");
    assert_non_null(at);
    strcpy(at, "\n}\n");
    if (file_write_atomic(path, text, strlen(text), &e)) fail_msg("%s", e.text);
    mem_free(text);
}

TEST(test_state_refused)
{
    const char *dir = fresh("s1");
    struct train_state in = {.step = 3};
    struct fixture a;
    struct error e;
    fixture_open(&a, MOMENTS | TIED);
    scramble(&a, 1);
    if (state_save(dir, &in, &a.g, &a.d, &a.t, staging, sizeof staging, &e)) fail_msg("%s", e.text);
    fixture_close(&a);
    refuse_state(dir, MOMENTS, "no tensor \"master.lm_head.weight\"");
    refuse_state(dir, MOMENTS | TIED | FREEZE_NORM, "\"master.model.norm.weight\" is not trained by this run");
    refuse_state(fresh("empty"), MOMENTS | TIED, "state.json");
    poke(join(dir, "state.safetensors"), "master.model.norm.weight", 6, NAN);
    refuse_state(dir, MOMENTS | TIED, "state.safetensors: it is damaged: the checksum is wrong");
    drop_checksums(join(dir, "state.json"));
    refuse_state(dir, MOMENTS | TIED, "\"master.model.norm.weight\": element 6 is nan");
    put_file(dir, "state.json",
             "{\"format\":1,\"step\":4,\"adam_t\":0,\"position\":0,\"seed\":0,\"skipped\":0}");
    refuse_state(dir, MOMENTS | TIED, "is of step 3, but state.json is of step 4");
    put_file(dir, "state.json", "{\"format\":2,\"step\":3,\"adam_t\":0,\"position\":0,\"seed\":0,\"skipped\":0}");
    refuse_state(dir, MOMENTS | TIED, "format is 2");
    put_file(dir, "state.json", "{\"format\":1,\"step\":3}");
    refuse_state(dir, MOMENTS | TIED, "adam_t");
}

/* --- whole models through the planner -------------------------------------------------------- */

static void build_model(void *model, struct graph *g, int micro_batch)
{
    const struct model *m = model;
    struct batch b = {.B = micro_batch, .T = 4};
    m->family->build(m, g, &b);
}

/* Loaded, not trained, saved: the same files; and the state after them, byte for byte. */
static void check_through_planner(const char *dir, enum precision precision, bool offload)
{
    struct settings s = {.micro_batch = 1, .accumulation = 1, .precision = precision,
                         .offload = offload ? OFFLOAD_STATE : 0, .head_chunks = 1, .train = true};
    struct train_state at = {.step = 1}, back;
    const char *out = fresh("out"), *state = fresh("s1"), *again = fresh("s2");
    struct fixture w = {0};
    struct plan plan = {0};
    struct error e;
    if (model_open(&w.m, dir, &e)) fail_msg("%s", e.text);
    struct source source = {&w.m, build_model};
    if (plan_compile(&w.g, &source, &s, &e)) fail_msg("%s", e.text);
    assert_int_equal(device_open(&w.d, DEVICE_REF, 1, &e), PL_OK);
    snprintf(w.d.spill, sizeof w.d.spill, "%s", folder);
    if (plan_place(&plan, &w.g, &w.d.profile, &e)) fail_msg("%s", e.text);
    assert_int_equal(device_allocate(&w.d, plan.placement.arena, &e), PL_OK);
    tape_build(&w.t, &w.g, &plan.placement, w.d.arena, 1, NULL);
    if (fixture_load(&w, dir, 0, &e)) fail_msg("%s", e.text);
    fixture_save(&w, out);
    for (uint32_t i = 0; i < w.w.in.n_files; i++)
        assert_same_file(join(dir, w.w.in.names[i]), join(out, w.w.in.names[i]));
    assert_same_file(join(dir, "config.json"), join(out, "config.json"));
    if (state_reset(&w.g, &w.d, &w.t, staging, sizeof staging, &e) ||
        state_save(state, &at, &w.g, &w.d, &w.t, staging, sizeof staging, &e) ||
        state_load(state, &back, &w.g, &w.d, &w.t, staging, sizeof staging, &e) ||
        state_save(again, &back, &w.g, &w.d, &w.t, staging, sizeof staging, &e))
        fail_msg("%s", e.text);
    assert_same_file(join(state, "state.safetensors"), join(again, "state.safetensors"));
    struct st_file f;
    assert_int_equal(st_open(join(state, "state.safetensors"), &f, &e), PL_OK);
    assert_non_null(st_find(&f, "master.model.norm.weight"));
    assert_non_null(st_find(&f, "model.norm.weight.exp_avg_sq"));
    st_close(&f);
    weights_close(&w.w);
    device_close(&w.d, &w.t);
    tape_free(&w.t);
    plan_free(&plan);
    graph_free(&w.g);
    model_close(&w.m);
}

TEST(test_golden)
{
    static const char *const names[] = {"basic", "tied", "sharded", "bf16", "noprefix"};
    for (size_t i = 0; i < COUNT(names); i++) {
        char dir[64];
        snprintf(dir, sizeof dir, "tests/golden/%s", names[i]);
        if (!dir_exists(dir)) skip(); /* run from the repository's root */
        check_through_planner(dir, PRECISION_F32, false);
        check_through_planner(dir, PRECISION_BF16, true);
    }
}

MAIN(make_folder, remove_folder)
