/*
 * test_sam_names.c: the names of sam_names.c, checked against the real models' names and shapes
 * (golden/convert/NAME.names), without any weights: model detection, sizes derived from shapes,
 * names in a folder, and the reverse mapping; and wrong lists.
 */
#include "io/json.h"
#include "models/sam_names.h"

#include "harness.h"

#define FOLDER "tests/golden/convert/"

static uint32_t read_list(struct sam_names *n, const char *file)
{
    char path[128], name[256], shape[128];
    uint32_t count = 0;
    snprintf(path, sizeof path, FOLDER "%s.names", file);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fscanf(f, "%255s %127s", name, shape) == 2) {
        int64_t dim[SAM_RANK];
        int rank = 0;
        for (char *s = strcmp(shape, "-") ? strtok(shape, ",") : NULL; s; s = strtok(NULL, ",")) dim[rank++] = atoll(s);
        sam_names_add(n, name, DT_F32, rank, dim, count++);
    }
    fclose(f);
    return count;
}

static int64_t parameters(const struct sam_names *n)
{
    int64_t sum = 0;
    for (uint32_t i = 0; i < n->parts.n; i++) {
        const struct sam_part *p = &n->parts.at[i];
        int64_t elements = 1;
        for (int k = 0; k < p->from->rank; k++) elements *= p->from->dim[k];
        bool fixed = strstr(p->original, ".bn.running_") || strstr(p->original, "num_batches_tracked") ||
                     strstr(p->original, "gaussian_matrix");
        sum += fixed || p->again ? 0 : elements;
    }
    return sum;
}

/* Checks a number, or the first and last of a list, at a path of config.json. */
static void check_number(const struct value *config, const char *path, int64_t want)
{
    int64_t found = -1;
    struct error e = {0};
    if (value_as_int(value_path(config, path), path, &found, &e)) fail_msg("%s", e.text);
    if (found != want) fail_msg("%s is %d, expected %d", path, (int)found, (int)want);
}

static void check_list(const struct value *config, const char *path, const int64_t *want, uint32_t n)
{
    const struct value *list = value_path(config, path);
    assert_non_null(list);
    assert_int_equal(list->count, n);
    for (uint32_t i = 0; i < n; i++) assert_true(value_at(list, i)->number == (double)want[i]);
}

static struct value *config_of(const struct sam_names *n, struct bump *b)
{
    struct text t = {0};
    struct value *v;
    struct error e = {0};
    sam_config_json(n, &t);
    if (json_parse(t.at, t.n, b, &v, &e)) fail_msg("%s", e.text);
    text_free(&t);
    return v;
}

/* Every line is one tensor, in the order of the list. */
static void check_order(const struct sam_names *n, uint32_t lines)
{
    uint32_t k = 0;
    for (uint32_t i = 0; i < n->parts.n; i++) {
        if (n->parts.at[i].again) continue;
        assert_int_equal(n->parts.at[i].from->source, k);
        k++;
    }
    assert_int_equal(k, lines);
}

TEST(test_vit)
{
    static const struct {
        const char *file;
        int64_t parameters, hidden, depth, heads, global[4];
    } models[] = {
        {"vit_b", 93735472, 768, 12, 12, {2, 5, 8, 11}},
        {"vit_l", 312342832, 1024, 24, 16, {5, 11, 17, 23}},
        {"vit_h", 641090608, 1280, 32, 16, {7, 15, 23, 31}},
    };
    for (size_t i = 0; i < COUNT(models); i++) {
        struct sam_names n = {0};
        struct bump b = {0};
        struct error e = {0};
        uint32_t lines = read_list(&n, models[i].file);
        if (sam_names_resolve(&n, &e)) fail_msg("%s: %s", models[i].file, e.text);
        check_order(&n, lines);
        assert_false(n.tiny);
        assert_int_equal(parameters(&n), models[i].parameters);
        const struct value *c = config_of(&n, &b);
        check_number(c, "vision_config.hidden_size", models[i].hidden);
        check_number(c, "vision_config.mlp_dim", 4 * models[i].hidden);
        check_number(c, "vision_config.num_hidden_layers", models[i].depth);
        check_number(c, "vision_config.num_attention_heads", models[i].heads);
        check_number(c, "vision_config.window_size", 14);
        check_number(c, "vision_config.image_size", 1024);
        check_list(c, "vision_config.global_attn_indexes", models[i].global, 4);
        check_number(c, "prompt_encoder_config.image_embedding_size", 64);
        check_number(c, "mask_decoder_config.num_attention_heads", 8);
        check_number(c, "mask_decoder_config.attention_downsample_rate", 2);
        check_number(c, "mask_decoder_config.num_multimask_outputs", 3);
        bump_free(&b);
        sam_names_free(&n);
    }
}

TEST(test_tiny)
{
    struct sam_names n = {0};
    struct bump b = {0};
    struct error e = {0};
    uint32_t lines = read_list(&n, "tinysam");
    if (sam_names_resolve(&n, &e)) fail_msg("%s", e.text);
    check_order(&n, lines);
    assert_true(n.tiny);
    assert_int_equal(parameters(&n), 10130092);
    for (uint32_t i = 0; i < n.parts.n; i++) assert_string_equal(n.parts.at[i].name, n.parts.at[i].original);
    const struct value *c = config_of(&n, &b);
    check_list(c, "vision_config.embed_dims", (int64_t[]){64, 128, 160, 320}, 4);
    check_list(c, "vision_config.depths", (int64_t[]){2, 2, 6, 2}, 4);
    check_list(c, "vision_config.num_heads", (int64_t[]){2, 4, 5, 10}, 4);
    check_list(c, "vision_config.window_sizes", (int64_t[]){7, 7, 14, 7}, 4);
    check_number(c, "vision_config.mlp_ratio", 4);
    check_number(c, "vision_config.image_size", 1024);
    check_number(c, "mask_decoder_config.mlp_dim", 2048);
    bump_free(&b);
    sam_names_free(&n);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct sam_part *)a)->name, ((const struct sam_part *)b)->name);
}

/* transformers' names of ViT-B and the published names describe the same model. */
TEST(test_folder)
{
    struct sam_names a = {0}, b = {0};
    struct error e = {0};
    read_list(&a, "vit_b");
    uint32_t lines = read_list(&b, "vit_b_hf");
    assert_int_equal(sam_names_resolve(&a, &e), PL_OK);
    if (sam_names_resolve(&b, &e)) fail_msg("%s", e.text);
    assert_int_equal(a.parts.n, lines);
    assert_int_equal(a.parts.n, b.parts.n);
    qsort(a.parts.at, a.parts.n, sizeof *a.parts.at, by_name);
    qsort(b.parts.at, b.parts.n, sizeof *b.parts.at, by_name);
    for (uint32_t i = 0; i < a.parts.n; i++) {
        assert_string_equal(a.parts.at[i].original, b.parts.at[i].original);
        assert_string_equal(a.parts.at[i].name, b.parts.at[i].name);
        if (!b.parts.at[i].again && !strstr(b.parts.at[i].name, "positional"))
            assert_string_equal(b.parts.at[i].name, b.parts.at[i].from->found);
    }
    sam_names_free(&a);
    sam_names_free(&b);
}

/* Each tensor in turn removed, renamed, or with another shape: always rejected by name. */
TEST(test_wrong)
{
    struct sam_names whole = {0};
    uint32_t lines = read_list(&whole, "tinysam");
    for (uint32_t bad = 0; bad < 3 * lines; bad++) {
        struct sam_names n = {0};
        struct error e = {0};
        const char *name = whole.found.at[bad / 3].found;
        if (strstr(name, "num_batches_tracked") || strstr(name, "head.")) continue; /* may be missing */
        for (uint32_t i = 0; i < lines; i++) {
            struct sam_tensor t = whole.found.at[i];
            if (i == bad / 3 && bad % 3 == 0) continue;
            if (i == bad / 3 && bad % 3 == 1) t.found = "image_encoder.blocks.strange";
            if (i == bad / 3 && bad % 3 == 2) t.dim[t.rank - 1] += 1;
            sam_names_add(&n, t.found, t.dtype, t.rank, t.dim, i);
        }
        if (sam_names_resolve(&n, &e) != PL_USAGE || !e.text[0])
            fail_msg("%s: change %d was not seen", name, (int)(bad % 3));
        if (bad % 3 == 1) assert_non_null(strstr(e.text, "image_encoder.blocks.strange"));
        sam_names_free(&n);
    }
    sam_names_free(&whole);
}

/* Buffers that some programs save are not weights. */
TEST(test_dropped)
{
    struct sam_names n = {0};
    struct error e = {0};
    uint32_t lines = read_list(&n, "tinysam");
    sam_names_add(&n, "pixel_mean", DT_F32, 3, (int64_t[]){3, 1, 1}, lines);
    sam_names_add(&n, "image_encoder.layers.1.blocks.0.attn.attention_bias_idxs", DT_I64, 2, (int64_t[]){49, 49},
                  lines + 1);
    if (sam_names_resolve(&n, &e)) fail_msg("%s", e.text);
    assert_int_equal(n.parts.n, lines);
    sam_names_free(&n);
}

MAIN(NULL, NULL)
