/*
 * test_adapter.c: adapters as PEFT describes them: which modules it adapts and saves, against
 * PEFT's own answers (golden/make_peft_matching.py), errors, and adapter_config.json in and out.
 */
#include "text/pattern.h"
#include "adapter/adapter_folder.h"
#include "io/file.h"

#include "harness.h"

#define GOLDEN "tests/golden/peft_matching.txt"

/* --- PEFT's answers ------------------------------------------------------------------------- */

struct module {
    const char *name;
    bool head;
};
struct model {
    const char *name;
    VEC(struct module) modules;
};
struct answers {
    const struct model *model;
    const char *title, *config;
    VEC(const char *) lines; /* "adapt MODULE R SCALE", "save MODULE", "error" */
};

static VEC(struct model) models;
static VEC(struct answers) cases;
static char *golden;

static const struct model *find_model(const char *name)
{
    for (uint32_t i = 0; i < models.n; i++)
        if (!strcmp(models.at[i].name, name)) return &models.at[i];
    fail_msg("no model %s", name);
    return NULL;
}

static void read_line(char *line)
{
    char *rest = strchr(line, ' ');
    rest = rest ? rest + 1 : line;
    if (!strncmp(line, "model ", 6)) {
        struct model m = {.name = rest};
        vec_push(&models, m);
    } else if (!strncmp(line, "module ", 7) || !strncmp(line, "head ", 5)) {
        struct module m = {rest, *line == 'h'};
        vec_push(&models.at[models.n - 1].modules, m);
    } else if (!strncmp(line, "case ", 5)) {
        char *title = strchr(rest, ' ');
        *title++ = 0;
        struct answers a = {.model = find_model(rest), .title = title};
        vec_push(&cases, a);
    } else if (!strncmp(line, "config ", 7)) cases.at[cases.n - 1].config = rest;
    else if (*line != '#') vec_push(&cases.at[cases.n - 1].lines, line);
}

static int read_golden(void **unused)
{
    struct error e = {0};
    size_t n;
    if (file_read(GOLDEN, 1 << 20, &golden, &n, &e)) return 1;
    for (char *line = strtok(golden, "\n"); line; line = strtok(NULL, "\n")) read_line(line);
    return 0;
}

static int free_golden(void **unused)
{
    for (uint32_t i = 0; i < models.n; i++) vec_free(&models.at[i].modules);
    for (uint32_t i = 0; i < cases.n; i++) vec_free(&cases.at[i].lines);
    vec_free(&models);
    vec_free(&cases);
    mem_free(golden);
    return 0;
}

/* The line of a case that begins with `verb` and the module, or NULL. */
static const char *line_of(const struct answers *c, const char *verb, const char *module)
{
    char start[512];
    snprintf(start, sizeof start, "%s %s", verb, module);
    size_t n = strlen(start);
    for (uint32_t i = 0; i < c->lines.n; i++)
        if (!strncmp(c->lines.at[i], start, n) && (!c->lines.at[i][n] || c->lines.at[i][n] == ' '))
            return c->lines.at[i];
    return NULL;
}

static void check_module(const struct answers *c, const struct adapter *a, const struct module *m)
{
    const char *adapted = line_of(c, "adapt", m->name);
    bool saved = line_of(c, "save", m->name);
    if (adapter_saves(a, m->name) != saved)
        fail_msg("%s %s: %s: PEFT %s it", c->model->name, c->title, m->name, saved ? "saves" : "does not save");
    if (adapter_adapts(a, m->name, m->head) != (adapted != NULL))
        fail_msg("%s %s: %s: PEFT %s it", c->model->name, c->title, m->name, adapted ? "adapts" : "does not adapt");
    if (!adapted) return;
    long r;
    double scale;
    assert_int_equal(sscanf(strrchr(adapted, ' ') + 1, "%lf", &scale), 1);
    assert_int_equal(sscanf(adapted, "adapt %*s %ld", &r), 1);
    if (adapter_rank(a, m->name) != r)
        fail_msg("%s: %s: rank %d, PEFT has %ld", c->title, m->name, (int)adapter_rank(a, m->name), r);
    if (adapter_scale(a, m->name) != scale)
        fail_msg("%s: %s: scale %g, PEFT has %g", c->title, m->name, adapter_scale(a, m->name), scale);
}

static void check_case(const struct answers *c)
{
    struct bump memory = {0};
    struct adapter a;
    struct error e = {0};
    bool refused = c->lines.n && !strcmp(c->lines.at[0], "error");
    int rc = adapter_config_parse(c->config, strlen(c->config), &memory, &a, &e);
    if (rc && !refused) fail_msg("%s: refused: %s", c->title, e.text);
    else if (!rc && refused) fail_msg("%s: accepted; PEFT refuses it", c->title);
    else if (rc) assert_int_equal(rc, PL_USAGE);
    else {
        for (uint32_t i = 0; i < c->model->modules.n; i++) check_module(c, &a, &c->model->modules.at[i]);
        assert_int_equal(adapter_unanswered(&a, "", &e), PL_OK);
    }
    bump_free(&memory);
}

TEST(test_matching)
{
    for (uint32_t i = 0; i < cases.n; i++) check_case(&cases.at[i]);
    assert_true(cases.n >= 100);
    printf("%u configurations answered as PEFT does\n", cases.n);
}

/* --- one question at a time ------------------------------------------------------------------- */

/* Compares with Python's re: what matches at the start, what matches whole, and what is refused. */
TEST(test_python_patterns)
{
    static const struct {
        const char *expression, *subject;
        enum python_answer full, start;
    } rows[] = {
        {".*\\.(q|v)_proj", "model.layers.0.q_proj", PYTHON_YES, PYTHON_YES},
        {"model", "model.layers", PYTHON_NO, PYTHON_YES},
        {"a|ab", "ab", PYTHON_YES, PYTHON_YES},
        {"layers", "model.layers", PYTHON_NO, PYTHON_NO},
        {"(?i)Q_PROJ", "q_proj", PYTHON_YES, PYTHON_YES},
        {"(?P<n>a)(?P=n)", "aa", PYTHON_YES, PYTHON_YES},
        {"(a)?b(?(1)c|d)", "bd", PYTHON_YES, PYTHON_YES},
        {"x{,2}", "xx", PYTHON_YES, PYTHON_YES},
        {"[]a[]+", "[a]", PYTHON_YES, PYTHON_YES},
        {"(?!a).*", "ab", PYTHON_NO, PYTHON_NO},
        {"\\d+\\Z", "12", PYTHON_YES, PYTHON_YES},
        {"[[:a:]]", "a]", PYTHON_YES, PYTHON_YES},
        {"(?x) a b # c", "ab", PYTHON_YES, PYTHON_YES},
    };
    static const char *const bad[] = {"(",      "a)",   "[a",     "*a",    "a**",      "a{2}{3}",   "a{3,2}",
                                      "\\q",    "\\K",  "\\x4",   "a\\",   "a(?i)b",   "(?R)",      "(?<n>a)",
                                      "(?P=n)", "\\1",   "(*ACCEPT)", "a(b)(c"};
    struct bump memory = {0};
    struct error e = {0};
    struct python_pattern *p;
    for (size_t i = 0; i < COUNT(rows); i++) {
        if (python_compile(&p, rows[i].expression, &memory, &e)) fail_msg("%s", e.text);
        if (python_full_match(p, rows[i].subject) != rows[i].full ||
            python_match(p, rows[i].subject, NULL, NULL) != rows[i].start)
            fail_msg("%s: another answer for %s than Python's", rows[i].expression, rows[i].subject);
    }
    for (size_t i = 0; i < COUNT(bad); i++)
        if (!python_compile(&p, bad[i], &memory, &e)) fail_msg("%s compiles", bad[i]);
    size_t at = 0;
    assert_int_equal(python_compile(&p, "(?:^|.*?\\.)(h|layers)\\.(?P<idx>\\d+)\\.", &memory, &e), PL_OK);
    assert_int_equal(python_match(p, "model.layers.31.mlp", "idx", &at), PYTHON_YES);
    assert_int_equal(at, strlen("model.layers."));
    bump_free(&memory);
}

/* An expression on which Python does not end gives up. */
TEST(test_regex_is_bounded)
{
    struct bump memory = {0};
    struct error e = {0};
    struct python_pattern *r;
    char name[200];
    memset(name, 'a', sizeof name);
    name[sizeof name - 1] = 0;
    assert_int_equal(python_compile(&r, "(a*)*[bc]", &memory, &e), PL_OK);
    assert_int_equal(python_full_match(r, name), PYTHON_GAVE_UP);
    assert_int_equal(python_compile(&r, "((a|aa)+)+c?", &memory, &e), PL_OK);
    assert_int_equal(python_full_match(r, name), PYTHON_YES);
    /* The adapter says so. */
    struct adapter a = {.r = 1, .alpha = 1, .target.regex = "((a|aa)+)+\\2\\2[bc]"};
    assert_int_equal(adapter_check(&a, "adapter.", &memory, &e), PL_OK);
    assert_false(adapter_adapts(&a, name, false));
    assert_int_equal(adapter_unanswered(&a, "adapter.", &e), PL_USAGE);
    assert_non_null(strstr(e.text, "adapter.target_modules: the regular expression needs too many steps"));
    bump_free(&memory);
}

TEST(test_bias)
{
    struct adapter a = {.bias = ADAPTER_BIAS_ALL};
    assert_true(adapter_trains_bias(&a, "model.q_proj.bias", false));
    assert_true(adapter_trains_bias(&a, "bias", false));
    assert_false(adapter_trains_bias(&a, "model.rel_bias", false));
    assert_false(adapter_trains_bias(&a, "model.q_proj.weight", true));
    a.bias = ADAPTER_BIAS_LORA_ONLY;
    assert_false(adapter_trains_bias(&a, "model.q_proj.bias", false));
    assert_true(adapter_trains_bias(&a, "model.q_proj.bias", true));
    a.bias = ADAPTER_BIAS_NONE;
    assert_false(adapter_trains_bias(&a, "model.q_proj.bias", true));
}

/* --- adapter_config.json -------------------------------------------------------------------- */

static void refuse(const char *config, const char *message)
{
    struct bump memory = {0};
    struct adapter a;
    struct error e = {0};
    if (!adapter_config_parse(config, strlen(config), &memory, &a, &e)) fail_msg("accepted: %s", config);
    assert_int_equal(e.code, PL_USAGE);
    if (!strstr(e.text, message)) fail_msg("%s: the message is \"%s\", expected \"%s\"", config, e.text, message);
    bump_free(&memory);
}
/* A configuration with these keys is refused, and the message holds the text. */
#define REFUSE(keys, message) refuse("{\"peft_type\": \"LORA\", \"target_modules\": [\"q_proj\"], " keys "}", message)

TEST(test_refused)
{
    refuse("[]", "map");
    refuse("{", "line 1");
    refuse("{\"r\": 8}", "peft_type is missing");
    refuse("{\"peft_type\": \"IA3\"}", "peft_type is \"IA3\"; Plimsoll does LORA only");
    refuse("{\"peft_type\": \"LORA\"}", "target_modules is missing");
    refuse("{\"peft_type\": \"LORA\", \"target_modules\": [\"a\", \"\"]}", "target_modules has an empty item");
    refuse("{\"peft_type\": \"LORA\", \"target_modules\": [3]}", "target_modules");
    refuse("{\"peft_type\": \"LORA\", \"target_modules\": {}}", "target_modules");
    REFUSE("\"r\": 0", "r is 0; expected a whole number from 1");
    REFUSE("\"r\": 1.5", "r");
    REFUSE("\"lora_dropout\": 1", "lora_dropout is 1;");
    REFUSE("\"lora_dropout\": -0.1", "lora_dropout is -0.1;");
    REFUSE("\"rank_pattern\": {\"q_proj\": 0}", "rank_pattern: the rank of \"q_proj\" is 0");
    REFUSE("\"rank_pattern\": {\"q_proj\": 2.5}", "rank_pattern: the rank of \"q_proj\" is 2.5");
    REFUSE("\"rank_pattern\": {\"\": 2}", "rank_pattern has an empty item");
    REFUSE("\"modules_to_save\": \"lm_head\"", "modules_to_save");
    REFUSE("\"rank_pattern\": [1]", "rank_pattern");
    REFUSE("\"layers_to_transform\": [-1]", "layers_to_transform has -1");
    REFUSE("\"layers_pattern\": \"layers\"", "layers_pattern needs layers_to_transform");
    REFUSE("\"bias\": \"some\"", "bias is \"some\"; expected none, all or lora_only");
    REFUSE("\"task_type\": \"CAUSAL\"", "task_type is \"CAUSAL\"");
    REFUSE("\"init_lora_weights\": \"pissa\"", "init_lora_weights is the string \"pissa\", which Plimsoll does not do");
    REFUSE("\"init_lora_weights\": \"olora\"", "olora");
    REFUSE("\"init_lora_weights\": \"corda\"", "corda");
    REFUSE("\"init_lora_weights\": \"loftq\"", "loftq");
    REFUSE("\"init_lora_weights\": \"lora_ga\"", "lora_ga\", which Plimsoll does not do: it changes the base weights");
    REFUSE("\"init_lora_weights\": \"mica\"", "mica\", which Plimsoll does not know");
    REFUSE("\"init_lora_weights\": 3", "init_lora_weights");
    REFUSE("\"fan_in_fan_out\": \"yes\"", "fan_in_fan_out");
    REFUSE("\"lora_bias\": true", "lora_bias is true");
    REFUSE("\"layer_replication\": [[0, 2], [1, 3]]", "layer_replication is a list");
    REFUSE("\"trainable_token_indices\": [1]", "trainable_token_indices is a list");
    REFUSE("\"megatron_config\": {\"a\": 1}", "megatron_config is a map");
    REFUSE("\"target_parameters\": [\"w\"]", "target_parameters is a list");
    REFUSE("\"use_qalora\": true", "use_qalora is true");
    REFUSE("\"alora_invocation_tokens\": [5]", "alora_invocation_tokens");
    REFUSE("\"ensure_weight_tying\": true", "ensure_weight_tying");
    REFUSE("\"a_key_of_tomorrow\": \"on\"", "a_key_of_tomorrow is the string \"on\", which Plimsoll does not do");
}

TEST(test_accepted)
{
    static const char config[] =
        "{\"peft_type\": \"LORA\", \"target_modules\": \"ALL-linear\", \"r\": 4, \"lora_alpha\": 32, \"lora_dropout\": "
        "0.05, "
        "\"init_lora_weights\": \"gaussian\", \"bias\": \"lora_only\", \"use_dora\": true, \"layers_to_transform\": "
        "null, "
        "\"a_key_of_tomorrow\": null, \"another\": {}, \"third\": 0, \"loftq_config\": {}, \"qalora_group_size\": 16, "
        "\"megatron_core\": \"megatron.core\", \"modules_to_save\": [\"lm_head\"], \"task_type\": \"CAUSAL_LM\"}";
    struct bump memory = {0};
    struct adapter a;
    struct error e = {0};
    if (adapter_config_parse(config, sizeof config - 1, &memory, &a, &e)) fail_msg("%s", e.text);
    assert_true(a.all_linear && a.dora && !a.rslora);
    assert_true(a.r == 4 && a.alpha == 32 && a.dropout == 0.05);
    assert_int_equal(a.bias, ADAPTER_BIAS_LORA_ONLY);
    assert_int_equal(a.init, ADAPTER_INIT_GAUSSIAN);
    assert_int_equal(a.n_save, 1);
    assert_string_equal(a.task_type, "CAUSAL_LM");
    struct text out = {0};
    adapter_config_write(&a, "elsewhere", NULL, 0, &out);
    assert_string_equal(out.at, config); /* as it was read */
    text_free(&out);
    bump_free(&memory);
}

/* What PEFT writes is what we write, to the byte (golden/make_peft_matching.py). */
static void check_written(const char *file, const struct adapter *a, const char *base, const char *const *names,
                          uint32_t n)
{
    struct bump memory = {0};
    struct adapter again;
    struct text out = {0};
    struct error e = {0};
    char *expected;
    size_t bytes;
    if (file_read(file, 1 << 20, &expected, &bytes, &e)) fail_msg("%s", e.text);
    adapter_config_write(a, base, names, n, &out);
    assert_string_equal(out.at, expected);
    if (adapter_config_read(file, &memory, &again, &e)) fail_msg("%s", e.text);
    assert_true(again.r == a->r && again.alpha == a->alpha && again.n_ranks == a->n_ranks && again.bias == a->bias);
    mem_free(expected);
    text_free(&out);
    bump_free(&memory);
}

TEST(test_written)
{
    static const char *const targets[] = {"q_proj"}, *const linears[] = {"model.fc"},
                             *const saved[] = {"mask_decoder", "lm_head"};
    static const struct adapter_pattern ranks[] = {{"k_proj", 2}, {"q_proj", 4}}, alphas[] = {{"q_proj", 0.5}};
    static const int64_t layers[] = {0, 3};
    static const char *const layers_pattern[] = {"layers"};
    const struct adapter plain = {.r = 8, .alpha = 8, .target = {targets, 1, NULL}};
    const struct adapter full = {.r = 16, .alpha = 32, .dropout = 0.05,
                                 .target = {targets, 1, NULL},
                                 .exclude.regex = ".*\\.x\"y",
                                 .save = saved,
                                 .n_save = 2,
                                 .bias = ADAPTER_BIAS_LORA_ONLY,
                                 .rslora = true,
                                 .dora = true,
                                 .ranks = ranks,
                                 .n_ranks = 2,
                                 .alphas = alphas,
                                 .n_alphas = 1,
                                 .layers = layers,
                                 .n_layers = 2,
                                 .layers_pattern = layers_pattern,
                                 .n_layers_pattern = 1,
                                 .init = ADAPTER_INIT_GAUSSIAN,
                                 .task_type = "CAUSAL_LM"};
    const struct adapter all = {.r = 4, .alpha = 1.5, .dropout = 0.5, .all_linear = true, .init = ADAPTER_INIT_RANDOM,
                                .bias = ADAPTER_BIAS_ALL};
    check_written("tests/golden/peft_config/plain.json", &plain, NULL, NULL, 0);
    check_written("tests/golden/peft_config/full.json", &full, "meta/llama \"x\"", NULL, 0);
    check_written("tests/golden/peft_config/all.json", &all, "base", linears, 1);
}

/* Initial values that leave the base weights as they are: the weights of the adapter are all that
 * counts. */
TEST(test_initial_values)
{
    static const struct {
        const char *name;
        enum adapter_init init;
    } each[] = {
        {"orthogonal", ADAPTER_INIT_ORTHOGONAL}, {"Orthogonal", ADAPTER_INIT_ORTHOGONAL}, {"eva", ADAPTER_INIT_EVA}};
    for (size_t i = 0; i < COUNT(each); i++) {
        char config[200], written[64];
        struct bump memory = {0};
        struct adapter a;
        struct error e = {0};
        struct text out = {0};
        snprintf(config, sizeof config,
                 "{\"peft_type\": \"LORA\", \"target_modules\": [\"q\"], \"init_lora_weights\": \"%s\", "
                 "\"eva_config\": {\"rho\": 2.0}}",
                 each[i].name);
        if (adapter_config_parse(config, strlen(config), &memory, &a, &e)) fail_msg("%s", e.text);
        assert_int_equal(a.init, each[i].init);
        a.source = NULL; /* written anew */
        adapter_config_write(&a, "base", NULL, 0, &out);
        snprintf(written, sizeof written, "\"init_lora_weights\": \"%c%s\"", each[i].name[0] | 32, each[i].name + 1);
        if (!strstr(out.at, written)) fail_msg("%s", out.at);
        text_free(&out);
        bump_free(&memory);
    }
}

/* --- names of the base ------------------------------------------------------------------------ */

/* An adapter of two modules and a whole tensor against a base's names: the names that are found. */
static void check_names(const char *a, const char *b, const char *whole, const char *found_a, const char *found_b,
                        const char *found_whole)
{
    char weights[3][200];
    struct adapter_tensor tensors[] = {{.name = a, .module = a, .part = ADAPTER_A},
                                       {.name = b, .module = b, .part = ADAPTER_B},
                                       {.name = whole, .module = whole, .part = ADAPTER_WHOLE}};
    struct adapter_folder f = {.dir = "adapter", .path = "adapter", .tensors = tensors, .n = 3};
    struct error e = {0};
    snprintf(weights[0], sizeof weights[0], "%s.weight", found_a);
    snprintf(weights[1], sizeof weights[1], "%s.weight", found_b);
    snprintf(weights[2], sizeof weights[2], "%s", found_whole);
    const char *const names[] = {"z.other", weights[2], weights[0], weights[1], "a.other"};
    if (adapter_folder_match(&f, "base", names, COUNT(names), &e)) fail_msg("%s", e.text);
    for (int i = 0; i < 3; i++) assert_string_equal(tensors[i].base, weights[i]);
    bump_free(&f.memory);
}

TEST(test_names)
{
    check_names("model.layers.0.q", "model.layers.1.q", "lm_head.weight", "model.layers.0.q", "model.layers.1.q",
                "lm_head.weight");
    /* without the root; made on the model without its head; behind a wrapper's prefix */
    check_names("model.layers.0.q", "model.layers.1.q", "model.norm.weight", "layers.0.q", "layers.1.q", "norm.weight");
    check_names("layers.0.q", "layers.1.q", "norm.weight", "model.layers.0.q", "model.layers.1.q", "model.norm.weight");
    check_names("model.layers.0.q", "model.layers.1.q", "lm_head.weight", "module.model.layers.0.q",
                "module.model.layers.1.q", "module.lm_head.weight");
    /* LLaVA, both ways */
    check_names("model.language_model.layers.0.q", "model.vision_tower.encoder.layers.0.q", "lm_head.weight",
                "language_model.model.layers.0.q", "vision_tower.vision_model.encoder.layers.0.q",
                "language_model.lm_head.weight");
    check_names("language_model.model.layers.0.q", "vision_tower.vision_model.encoder.layers.0.q",
                "multi_modal_projector.linear_1.bias", "model.language_model.layers.0.q",
                "model.vision_tower.encoder.layers.0.q", "model.multi_modal_projector.linear_1.bias");
    /* Qwen2-VL, both ways */
    check_names("model.language_model.layers.0.q", "model.visual.blocks.0.q", "lm_head.weight", "model.layers.0.q",
                "visual.blocks.0.q", "lm_head.weight");
    check_names("model.layers.0.q", "visual.blocks.0.q", "lm_head.weight", "model.language_model.layers.0.q",
                "model.visual.blocks.0.q", "lm_head.weight");
}

TEST(test_names_of_another_base)
{
    struct adapter_tensor tensors[] = {{.name = "a", .module = "model.layers.0.q_proj", .part = ADAPTER_A},
                                       {.name = "b", .module = "model.layers.9.q_proj", .part = ADAPTER_A}};
    struct adapter_folder f = {.dir = "adapter", .path = "adapter/file", .tensors = tensors, .n = 2};
    const char *const names[] = {"model.layers.0.q_proj.weight", "model.layers.8.q_proj.weight"};
    struct error e = {0};
    assert_int_equal(adapter_folder_match(&f, "base", names, COUNT(names), &e), PL_USAGE);
    assert_string_equal(e.text, "adapter/file: the adapter belongs to another base: base has no tensor "
                                "\"model.layers.9.q_proj.weight\" (1 of 2 tensors of the adapter fit); "
                                "the nearest name is \"model.layers.0.q_proj.weight\"");
    bump_free(&f.memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matching),
        cmocka_unit_test(test_python_patterns),
        cmocka_unit_test(test_regex_is_bounded),
        cmocka_unit_test(test_bias),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_accepted), cmocka_unit_test(test_initial_values),
        cmocka_unit_test(test_written),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_names_of_another_base),
    };
    return cmocka_run_group_tests(tests, read_golden, free_golden);
}
