/*
 * test_profile.c: measured profiles: the file format, the errors for damaged files, and the effect
 * of its corrections on a plan's times.
 */
#include "optest.h"

#include "base/processor.h"
#include "cost/calibration.h"
#include "io/file.h"
#include "cost/profile.h"

/* A profile with a few curves of odd numbers. */
static void make_profile(struct profile *p, struct calibration *c)
{
    profile_default(p, DEVICE_CPU, 3);
    memset(c, 0, sizeof *c);
    snprintf(c->cpu, sizeof c->cpu, "A processor \"with\" quotes");
    snprintf(c->isa, sizeof c->isa, "none");
    snprintf(c->date, sizeof c->date, "2026-01-02T03:04:05Z");
    p->flops_f32 = 1e11 / 3;
    p->cache_bandwidth = 1e11 / 7;
    p->cache_bytes = 3 << 20;
    p->launch_seconds = 1e-6 / 3;
    c->curve[OP_ADD][0][CLASS_FULL] = (struct curve){1, {{1e-6, 1.5}}};
    c->curve[OP_LINEAR][0][CLASS_FULL] = (struct curve){2, {{1e-5, 8}, {1e-3, 2}}};
    c->curve[OP_ACT][ACT_RELU][CLASS_HALF] = (struct curve){1, {{1.0 / 3, 0.7}}};
    c->curve[OP_MATMUL][1][CLASS_FULL] = (struct curve){1, {{1e-4, 3}}};
    p->measured = c;
}

static struct calibration given, taken;

TEST(test_round_trip)
{
    struct profile a, b;
    struct text once = {0}, again = {0};
    struct error e = {0};
    make_profile(&a, &given);
    profile_write(&a, &once);
    if (profile_parse(once.at, once.n, &b, &taken, &e)) fail_msg("%s", e.text);
    assert_memory_equal(&given, &taken, sizeof given);
    assert_string_equal(b.name, "cpu-3");
    assert_true(a.flops_f32 == b.flops_f32 && a.cache_bandwidth == b.cache_bandwidth &&
                a.launch_seconds == b.launch_seconds);
    profile_write(&b, &again);
    assert_string_equal(once.at, again.at);
    text_free(&once);
    text_free(&again);
}

/* Replacing `from` by `to` in the written profile makes it invalid; the message contains `word`. */
static void refuses(const char *from, const char *to, const char *word)
{
    struct profile p;
    struct text t = {0}, bad = {0};
    struct error e = {0};
    make_profile(&p, &given);
    profile_write(&p, &t);
    char *at = strstr(t.at, from);
    if (!at) fail_msg("no %s in the profile", from);
    text_printf(&bad, "%.*s%s%s", (int)(at - t.at), t.at, to, at + strlen(from));
    int rc = profile_parse(bad.at, bad.n, &p, &taken, &e);
    if (rc != PL_USAGE || !strstr(e.text, word))
        fail_msg("%s -> %s: code %d, \"%s\", expected the word %s", from, to, rc, e.text, word);
    text_free(&t);
    text_free(&bad);
}

TEST(test_damaged)
{
    refuses("\"profile_format\": 1", "\"profile_format\": 2", "profile_format");
    refuses("\"device\": \"cpu\"", "\"device\": \"abacus\"", "abacus");
    refuses("\"threads\": 3", "\"threads\": 0", "threads");
    refuses("\"threads\": 3", "\"threads\": 1e99", "threads");
    refuses("\"flops_bf16\"", "\"flops_bf17\"", "flops_bf16");
    refuses("\"memory_bandwidth\": ", "\"memory_bandwidth\": -", "memory_bandwidth");
    refuses("\"launch_seconds\": ", "\"launch_seconds\": -", "launch_seconds");
    refuses("\"op\": \"ADD\"", "\"op\": \"ADDLE\"", "ADDLE");
    refuses("\"op\": \"ADD\"", "\"op\": \"LINEAR\"", "twice");
    refuses("\"variant\": \"relu\"", "\"variant\": \"nn\"", "variant");
    refuses("\"dtype\": \"bf16\"", "\"dtype\": \"f8\"", "f8");
    refuses("1.5", "0", "corrections[");
    refuses("1.5", "\"much\"", "corrections[");
    refuses("1.5", "1.5, 2", "3 numbers");
    refuses("0.001,", "1e-6,", "above the previous one");
    refuses("\"corrections\": [", "\"corrections\": 7, \"rest\": [", "corrections");
}

TEST(test_truncated)
{
    struct profile p;
    struct text t = {0};
    make_profile(&p, &given);
    profile_write(&p, &t);
    for (size_t n = 0; n + 2 < t.n; n++) {
        struct error e = {0};
        if (profile_parse(t.at, n, &p, &taken, &e) != PL_USAGE || !e.text[0])
            fail_msg("%zu of %zu bytes are taken for a profile", n, t.n);
    }
    char path[] = "/tmp/plimsoll-profile-XXXXXX";
    struct error e = {0};
    close(mkstemp(path));
    assert_int_equal(file_write_atomic(path, t.at, t.n / 2, &e), PL_OK);
    assert_int_equal(profile_read(path, &p, &taken, &e), PL_USAGE);
    assert_true(strstr(e.text, path) && strstr(e.text, "bench --calibrate") &&
                strstr(e.text, "device.profile: default"));
    unlink(path);
    text_free(&t);
}

TEST(test_curve)
{
    struct curve c = {3, {{1e-6, 16}, {1e-4, 4}, {1e-2, 1}}};
    assert_true(curve_factor(&c, 1e-9) == 16 && curve_factor(&c, 1) == 1);
    assert_true(fabs(curve_factor(&c, 1e-5) - 8) < 1e-9 && fabs(curve_factor(&c, 1e-3) - 2) < 1e-9);
    assert_true(fabs(curve_factor(&c, 1e-4) - 4) < 1e-9);
}

/* The time of y = x w^T, x and w of 1024 x 1024; of y + y; and of an activation. */
static void seconds_of(const struct profile *p, double *linear, double *add, double *act)
{
    struct graph g;
    struct query q;
    graph_init(&g);
    id x = graph_param(&g, "x", DT_F32, DIM(1024, 1024), (struct init){0}),
       w = graph_param(&g, "w", DT_F32, DIM(1024, 1024), (struct init){0});
    id y = op_linear(&g, x, w, 0), z = op_add(&g, y, y), a = op_act(&g, z, ACT_TANH);
    id *const of[] = {&y, &z, &a};
    double *const to[] = {linear, add, act};
    for (int i = 0; i < 3; i++) {
        const struct node *n = node_at(&g, tensor_at(&g, *of[i])->node);
        query_fill(&q, &g, n, p);
        *to[i] = kernel_seconds(&q, n->op);
    }
    graph_free(&g);
}

TEST(test_corrections_are_used)
{
    struct profile p;
    double linear[2], add[2], act[2];
    make_profile(&p, &given);
    p.measured = NULL;
    seconds_of(&p, &linear[0], &add[0], &act[0]);
    p.measured = &given;
    seconds_of(&p, &linear[1], &add[1], &act[1]);
    double launch = p.launch_seconds;
    /* 2 * 1024^3 flops at 1e11 / 3 take 64 ms: beyond the curve's last point. */
    assert_true(fabs((linear[1] - launch) / (linear[0] - launch) - 2) < 1e-9);
    assert_true(fabs((add[1] - launch) / (add[0] - launch) - 1.5) < 1e-9);
    /* A curve of another activation and dtype exists: it is used. */
    assert_true(fabs((act[1] - launch) / (act[0] - launch) - 0.7) < 1e-9);
    /* An op without any curve uses that of an addition. */
    given.curve[OP_ACT][ACT_RELU][CLASS_HALF].n = 0;
    seconds_of(&p, &linear[1], &add[1], &act[1]);
    assert_true(fabs((act[1] - launch) / (act[0] - launch) - 1.5) < 1e-9);
}

TEST(test_cached_bytes_are_faster)
{
    struct profile p;
    double last = 0;
    make_profile(&p, &given);
    p.cache_bandwidth = 4 * p.memory_bandwidth;
    for (int64_t n = 1024; n <= 64 << 20; n *= 2) {
        struct graph g;
        struct query q;
        graph_init(&g);
        id x = graph_param(&g, "x", DT_F32, 1, &n, (struct init){0});
        const struct node *node = node_at(&g, tensor_at(&g, op_scale(&g, x, 2))->node);
        query_fill(&q, &g, node, &p);
        double rate = (double)n * 8 / kernel_ideal(&q, OP_SCALE);
        assert_true(rate <= p.cache_bandwidth * 1.0001 && rate >= p.memory_bandwidth * 0.9999);
        assert_true(kernel_ideal(&q, OP_SCALE) > last);
        last = kernel_ideal(&q, OP_SCALE);
        graph_free(&g);
    }
}

TEST(test_path)
{
    char path[512], hidden[64], end[80];
    snprintf(end, sizeof end, "-3%s.json", cpu_hidden_print("-no-", hidden));
    setenv("XDG_DATA_HOME", "/somewhere", 1);
    assert_true(profile_path(3, path, sizeof path));
    assert_true(!strncmp(path, "/somewhere/plimsoll/", 20) && strstr(path, end));
    assert_null(strchr(path + 20, '/'));
    setenv("XDG_DATA_HOME", "relative", 1);
    setenv("HOME", "/home/someone", 1);
    assert_true(profile_path(3, path, sizeof path));
    assert_true(!strncmp(path, "/home/someone/.local/share/plimsoll/", 36));
    unsetenv("HOME");
    assert_false(profile_path(3, path, sizeof path));
}

/* --- installed GPUs -------------------------------------------------------------------------- */

static struct profile installed(const char *name, int capability, double gib)
{
    struct gpu c = {.capability = capability, .multiprocessors = 46, .clock = 1.725e9, .memory_bandwidth = 448e9,
                    .memory_bytes = (uint64_t)(gib * (double)(1u << 30))};
    struct profile p;
    snprintf(c.name, sizeof c.name, "%s", name);
    profile_here(&p, &c);
    return p;
}

/* The driver's name selects the profile, whatever surrounds the model name; the memory is that of
 * the installed GPU. */
TEST(test_gpu_installed)
{
    static const struct { const char *driver; int capability; double gib; const char *profile; bool bf16; } known[] = {
        {"Tesla T4", 75, 14.6, "t4", false},
        {"NVIDIA GeForce RTX 4090", 89, 23.6, "rtx-4090", true},
        {"NVIDIA A100-SXM4-80GB", 80, 79.2, "a100-80", true},
        {"NVIDIA A100-SXM4-40GB", 80, 39.4, "a100-40", true},
        {"NVIDIA H100 80GB HBM3", 90, 79.1, "h100", true},
        {"NVIDIA GeForce RTX 3070", 86, 7.8, "rtx-3070", true},
        {"NVIDIA GeForce RTX 3070 Ti", 86, 7.8, "geforce-rtx-3070-ti", true},
        {"NVIDIA GeForce RTX 4070 Ti", 89, 11.7, "geforce-rtx-4070-ti", true},
        {"NVIDIA GeForce GTX 1660", 75, 5.8, "geforce-gtx-1660", false},
        {"NVIDIA A100-PCIE-40GB", 80, 39.4, "a100-pcie-40gb", true},
        {"NVIDIA H200 NVL", 90, 139.8, "h200-nvl", true},
    };
    for (size_t i = 0; i < COUNT(known); i++) {
        struct profile p = installed(known[i].driver, known[i].capability, known[i].gib);
        assert_string_equal(p.name, known[i].profile);
        assert_int_equal(p.native_bf16, known[i].bf16);
        assert_int_equal(p.memory_bytes, (uint64_t)(known[i].gib * (double)(1u << 30)));
        assert_true(p.flops_f32 > 1e12 && p.flops_bf16 > p.flops_f32 && p.memory_bandwidth > 1e11 &&
                    p.library_workspace > 0);
    }
}

/* A plan made elsewhere equals the plan made on the GPU: the profile does not depend on the
 * installed GPU. */
TEST(test_h200_installed)
{
    struct profile p = installed("NVIDIA H200", 90, 139.7), stored;
    profile_default(&stored, DEVICE_CUDA, 0);
    assert_memory_equal(&p, &stored, sizeof p);
}

/* A GPU without an entry, from the driver's properties: an RTX 3070 has 20.3 and 40.6 TFLOP/s. */
TEST(test_unlisted_gpu)
{
    struct profile p = installed("NVIDIA GeForce RTX 3070", 86, 7.8);
    assert_true(fabs(p.flops_f32 - 20.3e12) < 0.1e12 && fabs(p.flops_bf16 - 40.6e12) < 0.1e12);
    assert_true(p.memory_bandwidth == 448e9 && p.published);
}

MAIN(NULL, NULL)
