/*
 * rank_member.h: ranks as threads of a test, each with a planned and started run, and the batches
 * that they get: rank_threads.h moves their bytes.
 */
#pragma once

#include <pthread.h>

#include "folder/train_state.h"

#include "planned_preset.h"
#include "rank_threads.h"

/* --- a rank ----------------------------------------------------------------------------------- */

struct member {
    struct planned_preset p;
    struct error e;
    float clip_norm;
    int rc;
};

/* Plans and starts a rank; preset: the name of one, or a folder of a language model. */
static inline void start(struct member *m, const char *preset, const char *const *sets, struct ranks *ranks, int shares)
{
    static const char *const base[] = {"device.threads=1", "memory.offload=none"};
    const bool folder = strchr(preset, '/'), tokens = folder || strstr(preset, "llama");
    char text[100];
    memset(m, 0, sizeof *m);
    config_init(&m->p.c);
    snprintf(text, sizeof text, "model.%s=%s", folder ? "path" : "preset", preset);
    must(config_set(&m->p.c, text, &m->e), &m->e);
    snprintf(text, sizeof text, "parallel.shares=%d", shares);
    must(config_set(&m->p.c, text, &m->e), &m->e);
    if (!tokens) must(config_set(&m->p.c, "data.format=sa1b", &m->e), &m->e);
    must(config_set(&m->p.c, tokens ? "data.sequence=16" : "data.max_masks=3", &m->e), &m->e);
    for (size_t i = 0; i < COUNT(base); i++) must(config_set(&m->p.c, base[i], &m->e), &m->e);
    for (; *sets; sets++) must(config_set(&m->p.c, *sets, &m->e), &m->e);
    /* One micro-batch and one chunk, unless said: the planner may choose another split for other
     * ranks. */
    if (!m->p.c.memory_head_chunks.chosen) must(config_set(&m->p.c, "memory.head_chunks=1", &m->e), &m->e);
    snprintf(text, sizeof text, "memory.micro_batch=%lld", (long long)ceil_div(m->p.c.train_effective_batch, shares));
    if (!m->p.c.memory_micro_batch.chosen) must(config_set(&m->p.c, text, &m->e), &m->e);
    must(config_check(&m->p.c, CONFIG_NEEDS_MODEL, &m->e), &m->e);
    must(run_plan(&m->p.r, &m->p.c,
                  &(struct run_options){.train = true, .describe = feed_describe, .ranks = ranks, .no_files = true},
                  &m->e),
         &m->e);
    must(run_start(&m->p.r, NULL, true, &m->e), &m->e);
    must(state_reset(&m->p.r.planned.graph, &m->p.r.device, &m->p.r.tape, run_staging(&m->p.r), PLAN_STAGING, &m->e),
         &m->e);
}

/* --- batches ---------------------------------------------------------------------------------- */

static inline uint32_t mix(uint32_t a, uint32_t b)
{
    uint64_t x = ((uint64_t)a << 32 | b) * 0x9e3779b97f4a7c15ull;
    return (uint32_t)(x >> 32) ^ (uint32_t)(x >> 11);
}

/* The value of element i of an input in a sample of the step's batch; `real` false: padding.
 * Samples have 0 to 3 masks. */
static inline int32_t integer(const struct run *r, const char *input, int step, int64_t sample, uint64_t i, bool real)
{
    const uint32_t h = mix((uint32_t)(step * 1000 + sample), (uint32_t)i);
    if (!strcmp(input, "input_ids") || !strcmp(input, "labels"))
        return !real && input[0] == 'l' ? -100 : (int32_t)(h % (uint32_t)r->planned.model.vocabulary);
    if (!strcmp(input, "image_valid"))
        return (int32_t)r->planned.model.image - (int32_t)(sample % 3 * 16) * (int32_t)(i % 2);
    if (!strcmp(input, "gt_valid")) return real && (int64_t)i / 2 < 1 + sample % 3 ? 16 : 0;
    if (!strcmp(input, "prompt_keys")) return (int32_t)(sample * 3 + (int64_t)i);
    return (int32_t)(i % 2); /* input_labels */
}

static inline void write_sample(struct run *r, const char *input, const struct planned_input *x, int step, int64_t row,
                                int64_t sample, bool real)
{
    struct error e = {0};
    char *data = mem_alloc(x->sample);
    const uint64_t n = x->sample / dtype_size(x->dtype);
    for (uint64_t i = 0; i < n; i++) {
        const uint32_t h = mix((uint32_t)(step * 77 + sample), (uint32_t)i * 13);
        if (x->dtype == DT_U8) ((uint8_t *)data)[i] = (uint8_t)h;
        else if (x->dtype == DT_F32) ((float *)(void *)data)[i] = (float)(h % 1000) / 1000;
        else ((int32_t *)(void *)data)[i] = integer(r, input, step, sample, i, real);
    }
    must(run_write_input(r, input, row, data, x->sample, &e), &e);
    mem_free(data);
}

/* Writes this rank's rows, as train/train_step.c does. */
static inline void write_batch(struct run *r, int step)
{
    const int64_t each = planned_share_samples(&r->planned), rows = planned_share_rows(&r->planned);
    for (id s = 1; s < r->planned.graph.storages.n; s++) {
        struct planned_input x;
        const char *name = graph_name(&r->planned.graph, r->planned.graph.storages.at[s].name);
        if (r->planned.graph.storages.at[s].kind != KIND_INPUT || !strcmp(name, "samples")) continue;
        assert_true(planned_input(&r->planned, name, &x));
        for (int k = 0; k < planned_own_shares(&r->planned); k++)
            for (int64_t i = 0; i < rows; i++) {
                const int64_t sample = (planned_first_share(&r->planned) + k) * each + i;
                write_sample(r, name, &x, step, k * rows + i, sample, i < each && sample < r->planned.effective_batch);
            }
    }
}

static inline void *run_step(void *arg)
{
    struct member *m = arg;
    struct step_block b = {.learning_rate = 1e-3f,
                           .clip_norm = m->clip_norm,
                           .loss_scale = 1,
                           .seed = 3,
                           .rng_step = 1,
                           .step = 1,
                           .adam_t = 1};
    for (int i = 0; i < STEP_COUNTS; i++) b.inv_count[i] = 1.0f / 200;
    m->rc = run_put_step(&m->p.r, &b, &m->e);
    if (!m->rc) m->rc = run_program(&m->p.r, PROGRAM_STEP, &m->e);
    if (!m->rc) m->rc = run_program(&m->p.r, PROGRAM_UPDATE, &m->e);
    return NULL;
}

/* --- what a rank has -------------------------------------------------------------------------- */

static inline const void *bytes_of(const struct run *r, id s)
{
    return r->device.arena[r->planned.graph.storages.at[s].space] + r->planned.plan.placement.offset[s];
}

static inline float loss_of(const struct run *r)
{
    return *(float *)tape_address(&r->tape, graph_find_output(&r->planned.graph, PROGRAM_STEP, "loss"));
}

#define SETS(...)                                                                                                      \
    (const char *const[]) { __VA_ARGS__, NULL }
