/*
 * time_factor.c: see calibrate.h. The step is that of a language model of one layer: seven linear
 * layers and their gradients take nearly all of its time. Its speed is the mean of a few steps, so
 * that what other programs take of the processors counts, as it will while the run trains.
 */
#include "calibrate/calibrate.h"

#include "calibrate/bench.h"
#include "batch/feed.h"

static const char MODEL[] = "{\"model_type\": \"llama\", \"vocab_size\": 256, \"hidden_size\": 512, "
                            "\"intermediate_size\": 1376, \"num_hidden_layers\": 1, "
                            "\"num_attention_heads\": 8, \"num_key_value_heads\": 8, \"max_position_embeddings\": 256, "
                            "\"hidden_act\": \"silu\", \"rms_norm_eps\": 1e-05}";
enum { STEPS_MOST = 8 };
#define SECONDS_MOST 0.15 /* no further step begins after this */

static int set_keys(struct config *c, const struct planned *r, struct error *e)
{
    const char *fixed[] = {"device.kind=cpu",         "device.profile=default", "data.sequence=128",
                           "train.effective_batch=2", "memory.micro_batch=2",   "memory.recompute=none",
                           "memory.offload=none",     "memory.head_chunks=1",   "train.clip_norm=1"};
    char precision[SETTING_ROOM], set[64];
    int rc = PL_OK;
    for (size_t i = 0; i < COUNT(fixed) && !rc; i++) rc = config_set(c, fixed[i], e);
    snprintf(set, sizeof set, "device.threads=%d", r->profile.threads);
    if (!rc) rc = config_set(c, set, e);
    snprintf(set, sizeof set, "memory.precision=%.32s", settings_precision(&r->plan.settings, precision));
    return rc ? rc : config_set(c, set, e);
}

/* Returns the measured time over the predicted one; 0 if it cannot be measured. */
static double measure(const struct planned *r)
{
    struct config c;
    struct bench b = {0};
    struct error e;
    double factor = 0;
    config_init(&c);
    int rc = set_keys(&c, r, &e);
    if (!rc) {
        rc = bench_open(&b, &c,
                        &(struct run_options){.train = true, .describe = feed_describe, .config_json = MODEL,
                                              .probe = true},
                        &e);
        for (int i = 0; i < STEPS_MOST && !rc && bench_total(&b) < SECONDS_MOST; i++) rc = bench_run(&b, 1, &e);
        if (!rc) factor = bench_mean(&b) / b.run.planned.plan.seconds;
        bench_close(&b);
    }
    config_free(&c);
    return factor;
}

double time_factor(const struct planned *r)
{
    static double factor;
    static bool measured;
    const char *switched = getenv("PLIMSOLL_MEASURE");
    const struct profile *p = &r->profile;
    if (p->kind != DEVICE_CPU || p->measured || r->plan.settings.ranks > 1 || r->config->device_profile ||
        (switched && !strcmp(switched, "0")))
        return 0;
    if (!measured) factor = measure(r);
    measured = true;
    return factor;
}

double time_scale(const struct planned *r)
{
    const double factor = time_factor(r);
    return factor > 0 ? factor : 1;
}
