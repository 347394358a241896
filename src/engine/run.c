/*
 * run.c: see run.h.
 */
#include "engine/run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/system.h"
#include "config/config_model.h"
#include "cuda/cuda.h"
#include "dist/agree.h"
#include "io/file.h"
#include "engine/adapter.h"
#include "engine/adapter_config.h"
#include "engine/adapter_folder.h"
#include "engine/recipe.h"
#include "engine/offload_budget.h"
#include "cost/links.h"
#include "run/ranks.h"

/* Reserve of `memory.budget: auto` for the system and this program's own code. */
enum { BUDGET_RESERVE = 512 << 20 };
/* Tokens of a prompt that an evaluation processes at once, at most. */
enum { ANSWERS_CHUNK = 256 };
/* Bytes through which a GPU gets its weights. */
enum { LOAD_BUFFER = 16 << 20 };

static int parallel_ranks(const struct run *r) { return r->ranks ? r->ranks->n : r->config->parallel_ranks > 0 && r->shares > 1 ? (int)r->config->parallel_ranks : 1; }

int run_host_ranks(const struct run *r)
{
    const int n = parallel_ranks(r);
    return r->ranks ? (int)max_i64(1, r->ranks->local) : r->config->parallel_per_host > 0 ? (int)min_i64(n, r->config->parallel_per_host) : n;
}

/* --- the budget ------------------------------------------------------------------ */

/* The available memory that the kernel reports, or what the control group leaves. */
static uint64_t free_memory(void)
{
    struct system_memory m;
    system_memory(&m);
    return m.available;
}

/* Ranks that share a GPU of this host (parallel.crowd). */
static int64_t ranks_of_gpu(const struct run *r) { return r->ranks && r->device.kind == DEVICE_CUDA ? ceil_div(r->ranks->local, max_i64(1, cuda_gpus())) : 1; }

uint64_t run_gpu_budget(uint64_t memory) { return memory - min_u64(GPU_RESERVE, memory / 2); }

/* GPU memory that NCCL takes for itself, about: with one peer, and for each further one. */
static uint64_t nccl_reserve(const struct run *r)
{
    const int64_t n = r->ranks ? r->ranks->n : r->config->parallel_ranks;
    return n > 1 ? (uint64_t)(512 + 32 * (n - 1)) << 20 : 0;
}

/* A rank has a GPU of its own. */
static int check_gpus(const struct run *r, struct error *e)
{
    if (!r->ranks || r->config->parallel_crowd || !run_gpu_is_here(r) || ranks_of_gpu(r) == 1) return PL_OK;
    return error_set(e, PL_USAGE, "%d ranks were started on %s, which has %d GPU%s: start one for each GPU, or set parallel.crowd true, with which they share them", r->ranks->local, r->ranks->host, cuda_gpus(),
                     cuda_gpus() == 1 ? "" : "s");
}

static int resolve_budget(struct run *r, struct error *e)
{
    const struct config_budget *b = &r->config->memory_budget;
    r->budget = b->kind == BUDGET_BYTES ? b->bytes : 0;
    if (b->kind != BUDGET_AUTO) return PL_OK;
    if (r->device.kind == DEVICE_CUDA) { /* the plan's GPU, which need not be present */
        if (!r->device.profile.memory_bytes) return error_set(e, PL_USAGE, "memory.budget auto: the profile has no GPU memory size; give a size");
        r->budget = run_gpu_budget(r->device.profile.memory_bytes) / (uint64_t)ranks_of_gpu(r);
        r->budget -= min_u64(nccl_reserve(r), r->budget / 2);
        return PL_OK;
    }
    uint64_t free = r->ranks && r->ranks->share.free ? r->ranks->share.free : free_memory() / (uint64_t)run_host_ranks(r);
    char have[32], keep[32];
    if (free <= BUDGET_RESERVE)
        return error_set(e, PL_FAIL, "memory.budget auto: %s are free and %s are kept in reserve; free some memory or give a size",
                         size_print(free, have), size_print(BUDGET_RESERVE, keep));
    r->budget = free - BUDGET_RESERVE;
    log_note("memory.budget auto: %s free, %s kept in reserve", size_print(free, have), size_print(BUDGET_RESERVE, keep));
    return PL_OK;
}

/* --- planning ------------------------------------------------------------------------ */

/* The model's forward graph for the planner; frozen weights are marked here. Without a backward
 * pass all weights are frozen: a frozen weight has no master weight in another precision. */
static void build_forward(void *run, struct graph *g, int micro_batch)
{
    struct run *r = run;
    struct batch b = r->batch;
    b.B = micro_batch;
    if (program_is(g->at.program, PROGRAM_GENERATES)) {
        b.B = 1;
        b.T = program_is(g->at.program, PROGRAM_SINGLE) ? 1 : r->prompt_chunk;
    } else if (r->answers) {
        b.cache = 0;
    }
    r->model.family->build(&r->model, g, &b);
    if (r->has_adapter && !g->error.code) pass_lora(g, &r->adapter, (int)b.B);
    recipe_freeze(r->config, g);
    weights_4bit_mark(&r->stored, g);
    for (uint32_t i = 0; i < g->params.n && r->forward; i++) {
        struct param *p = &g->params.at[i];
        if (!p->frozen && (r->has_adapter || !r->batch.cache)) p->exact = true; /* generation without an adapter has nothing that was trained beside 4-bit weights */
        p->frozen = true;
    }
}

static int check_quantize(struct run *r, const struct graph *g, struct error *e)
{
    const struct config *c = r->config;
    struct settings s = {0};
    recipe_settings(c, &r->memory, &s);
    CHECK(technique_parse(TECHNIQUE_quantize, c->memory_quantize.value, &s), "%s", c->memory_quantize.value);
    return quantize_check(g, &s, e) ? config_at_key(c, KEY_memory_quantize, e) : PL_OK;
}

/* The batch with which all of the model is built. A part that this run does not build (an encoder whose embeddings are
 * stored, a mask decoder while text is generated) is not in its graph, but its parameter names are valid. */
static struct batch whole_batch(const struct run *r)
{
    struct batch b = r->batch;
    if (r->batches.whole) b.own = r->batches.whole;
    if (b.cache && !r->answers && r->model.answers_partly) b.cache = 0, b.own = NULL;
    return b;
}

/* Builds the forward graph of the whole model to check the parameter names of the configuration. Errors of
 * the model's builder are left to the planner. */
static int check_recipe(struct run *r, bool train, struct error *e)
{
    const int B = (int)max_i64(1, r->batch.bn_group);
    const struct batch planned = r->batch;
    struct graph g;
    int rc = PL_OK;
    graph_init(&g);
    r->batch = whole_batch(r);
    if (r->has_adapter && !(r->batches.partial && !r->batches.whole)) {
        r->has_adapter = false; /* its names are checked against the model itself */
        build_forward(r, &g, B);
        r->has_adapter = true;
        if (!g.error.code) rc = lora_check(&g, &r->adapter, e);
        graph_clear(&g);
    }
    if (!rc) build_forward(r, &g, B);
    r->batch = planned;
    if (!rc && !g.error.code) rc = recipe_check(r->config, &g, train, e);
    if (!rc && !g.error.code && !r->forward) rc = check_quantize(r, &g, e);
    if (!rc && r->has_adapter && !g.error.code) {
        struct text words = {0};
        lora_print(&g, &words);
        r->adapted = bump_string(&r->memory, words.at);
        text_free(&words);
    }
    graph_free(&g);
    return rc;
}

/* Tensors of the adapter that begin so. */
static uint32_t count_beginning(const struct adapter_folder *f, const char *with)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < f->n; i++) n += !strncmp(f->tensors[i].module, with, strlen(with));
    return n;
}

/* The spelling of each beginning of names that most of the adapter's tensors have. */
static struct spelled find_spelling(const struct adapter_folder *f, const struct spelling *list)
{
    struct spelled how = spelling_in_memory(list);
    for (int i = 0; list && list[i].name; i++)
        for (int k = 0; k < spelling_count(&list[i]); k++)
            if (count_beginning(f, spelling_at(&list[i], k)) > count_beginning(f, spelling_at(&list[i], how.by[i]))) how.by[i] = (uint8_t)k;
    return how;
}

/* PEFT names modules as they are in memory, which for some models is without the root of the published names, or in
 * another spelling. */
static int find_adapter_names(struct run *r, struct error *e)
{
    const struct family *family = r->model.family;
    const char *root = family->root;
    struct adapter_folder f;
    r->adapter.spellings = family->spellings;
    r->adapter.spelled = spelling_in_memory(family->spellings);
    if (((!root || !*root) && !family->spellings) || !r->config->adapter_path) return PL_OK;
    if (adapter_folder_open(&f, r->config->adapter_path, e)) return e->code;
    if (root && *root && !count_beginning(&f, root)) r->adapter.root = root;
    r->adapter.spelled = find_spelling(&f, family->spellings);
    adapter_folder_close(&f);
    return PL_OK;
}

/* Dropout is for training. */
static int open_adapter(struct run *r, bool train, struct error *e)
{
    if (!adapter_given(r->config)) return PL_OK;
    if (adapter_open(r->config, &r->memory, &r->adapter, e) || find_adapter_names(r, e)) return e->code;
    if (!train) r->adapter.dropout = 0;
    r->has_adapter = true;
    return PL_OK;
}

/* Depends on the configuration and the device, never on the budget. GPUs without bf16 use f16 with
 * loss scaling; CPUs without bf16 use f32. */
static enum dtype auto_precision(const struct profile *device)
{
    return device->native_bf16 ? DT_BF16 : device->kind == DEVICE_CUDA ? DT_F16 : DT_F32;
}

/* --- ranks and shares ---------------------------------------------------------------- */

/* Number of shares of a step. `plan` may be asked for ranks that are not there. */
static int open_shares(struct run *r, const struct run_options *o, struct error *e)
{
    const struct config *c = r->config;
    const int64_t ranks = o->ranks ? o->ranks->n : max_i64(1, c->parallel_ranks), shares = c->parallel_shares > 0 ? c->parallel_shares : ranks;
    r->shares = 1;
    if (!o->train) return PL_OK;
    if (o->whole && (ranks > 1 || shares > 1))
        return error_set(e, PL_USAGE, "parallel.ranks and parallel.shares are for `plimsoll train`, which reads its own data; leave them out");
    if (shares % ranks) {
        error_set(e, PL_USAGE, "parallel.shares is %lld, which is not divisible by the %lld ranks: every rank runs the same number of shares", (long long)shares, (long long)ranks);
        return config_at_key(c, KEY_parallel_shares, e);
    }
    r->ranks = o->ranks;
    r->shares = (int)shares;
    if (shares > c->train_effective_batch && !o->probe && (!o->ranks || !o->ranks->rank))
        log_warn("train.effective_batch %lld has fewer samples than the step has shares (%lld): some of them, and their ranks, have nothing to do", (long long)c->train_effective_batch, (long long)shares);
    return PL_OK;
}

/* What connects the ranks: a plan is a function of it. */
static int open_links(struct run *r, struct error *e)
{
    const struct config *c = r->config;
    const int n = parallel_ranks(r);
    const int64_t host = c->parallel_per_host > 0 ? c->parallel_per_host : r->ranks ? r->ranks->local : n;
    if (n < 2) return PL_OK;
    if (host > n || n % host) {
        error_set(e, PL_USAGE, "parallel.per_host is %lld, which does not divide the %d ranks: every host has the same number of them", (long long)host, n);
        return config_at_key(c, KEY_parallel_per_host, e);
    }
    return links_set(&r->device.profile, c->parallel_links, host < n ? (int)host : 0, e) ? config_at_key(c, KEY_parallel_links, e) : PL_OK;
}

/* Groups of a host are ranks that follow each other. */
static int check_hosts(const struct run *r, struct error *e)
{
    const struct ranks *x = r->ranks;
    if (!x || r->plan.settings.group != GROUP_HOST || r->config->parallel_per_host > 0 || x->rank % x->local == x->local_rank) return PL_OK;
    return error_set(e, PL_USAGE, "parallel.group host: rank %d is number %d of its host, so ranks are not numbered host by host; start them with mpirun --map-by slot, or set parallel.group all", x->rank, x->local_rank);
}

static struct settings base_settings(struct run *r, const struct run_options *o)
{
    const struct config *c = r->config;
    struct settings s = {.train = o->train, .forward = r->forward, .few_labels = r->batches.few_labels, .loader_bytes = r->batches.loader_bytes,
                         .device = device_traits(r->device.kind)};
    if (r->answers) s.prompt_chunk = (int)r->prompt_chunk;
    const char *pipeline = getenv("PLIMSOLL_PIPELINE");
    r->serial_steps = pipeline && !strcmp(pipeline, "0");
    s.pipelined = o->train && (s.device.separate_memory || (pipeline && !r->serial_steps && r->device.kind == DEVICE_CPU));
    s.inputs_ahead = s.pipelined && c->data_train.n;
    recipe_settings(c, &r->memory, &s);
    s.micro_batch = run_share_samples(r);
    s.ranks = parallel_ranks(r);
    s.shares = r->shares / s.ranks;
    if (s.ranks * s.shares == 1) s.ranks = s.shares = 0; /* a plan without them is the plan of one process */
    if (s.ranks > 1) s.per_host = r->device.profile.per_host;
    s.motions = r->ranks && r->ranks->motions;
    for (enum technique_id id = 0; id < TECHNIQUES; id++) {
        const struct config_setting *x = config_technique(c, id);
        const char *value = x->chosen && (o->train || !techniques[id].updates_only) ? x->value : techniques[id].off;
        CHECK(!value || technique_parse(id, value, &s), "%s %s", techniques[id].name, value);
    }
    if (!c->memory_precision.chosen) s.precision = auto_precision(&r->device.profile);
    if (s.ranks < 2) s.shard = SHARD_NONE; /* there is nobody to divide with */
    if (!s.per_host) s.group = GROUP_ALL;  /* these are the ranks of the host */
    return s;
}

/* A GPU without bf16 arithmetic emulates it in f32, many times slower than f16, so bf16 is an
 * error there. */
static int check_precision(const struct run *r, const struct settings *s, struct error *e)
{
    const char *gpu = r->device.profile.name;
    if (r->device.kind != DEVICE_CUDA || r->device.profile.native_bf16) return PL_OK;
    if (s->precision == DT_BF16)
        return error_set(e, PL_USAGE, "memory.precision %s: %s has no bf16 arithmetic (compute capability 8.0 has it); use f16, which scales the loss, "
                         "or f32, or auto, which selects f16", technique_print(TECHNIQUE_precision, s, (char[SETTING_ROOM]){0}), gpu);
    for (int i = 0; i < (int)s->n_modules; i++)
        if (s->modules[i].has_precision && s->modules[i].precision == DT_BF16)
            return error_set(e, PL_USAGE, "memory.modules[%d].precision bf16: %s has no bf16 arithmetic; use f16 or f32", i, gpu);
    return PL_OK;
}

/* Checks that every technique has what it needs of the others. */
static int check_needs(const struct settings *s, struct error *e)
{
    for (enum technique_id id = 0; id < TECHNIQUES; id++) {
        char value[SETTING_ROOM], has[SETTING_ROOM], first[SETTING_ROOM];
        enum technique_id other;
        const char *values;
        if (technique_met(id, s, &other, &values)) continue;
        CHECK(technique_value(values, 0, first), "%s", values);
        return error_set(e, PL_USAGE, "%s.%s %s needs %s.%s %s, which is %s here; set it, or %s.%s %s", techniques[id].section, techniques[id].name,
                         technique_print(id, s, value), techniques[other].section, techniques[other].name, first, technique_print(other, s, has), techniques[id].section, techniques[id].name, techniques[id].off);
    }
    return PL_OK;
}

static bool is_listed(const struct config *c, const char *word)
{
    for (uint32_t i = 0; i < c->memory_allow.n; i++)
        if (!strcmp(c->memory_allow.at[i], word)) return true;
    return false;
}

/* Whether memory.allow lists this variant of AdamW's state; whether it lists 4-bit weights. */
static bool allows(const struct config *c, const char *form) { return !strcmp(c->memory_optimizer.value, "adamw") && is_listed(c, form); }
static bool allows_nf4(const struct config *c) { return !strcmp(c->memory_quantize.value, "none") && is_listed(c, "nf4"); }

/* What bounds a step of this run. */
static struct step_limits limits_of(const struct run *r)
{
    return (struct step_limits){run_share_samples(r), run_least_micro_batch(r), r->device.kind == DEVICE_CUDA ? GPU_TRIPS : 0, r->config->train_clip_norm > 0};
}

static bool is_excluded(const struct run *r, enum technique_id id, const struct settings *s, struct text *why)
{
    const struct step_limits limits = limits_of(r);
    return techniques[id].excluded && techniques[id].excluded(s, &limits, why);
}

/* Checks that nothing excludes the techniques in use. The planner respects the limits itself. */
static int check_excluded(const struct run *r, const struct settings *s, struct error *e)
{
    struct text why = {0};
    for (enum technique_id id = 0; id < TECHNIQUES; id++) {
        char value[SETTING_ROOM];
        if (technique_is_off(id, s) || !is_excluded(r, id, s, &why)) continue;
        error_set(e, PL_USAGE, "%s.%s %s: %s", techniques[id].section, techniques[id].name, technique_print(id, s, value), why.at);
        text_free(&why);
        return e->code;
    }
    return PL_OK;
}

/* A plan file decides only what the configuration leaves open: it must agree with keys that were
 * given. */
static int check_plan_keys(const struct run *r, const struct settings *configured, const struct settings *plan, const char *path, struct error *e)
{
    for (enum technique_id id = 0; id < TECHNIQUES; id++) {
        char has[SETTING_ROOM], planned[SETTING_ROOM];
        const enum config_key key = config_technique_key(id);
        const bool automatic = !config_technique(r->config, id)->chosen || !config_given(r->config, key);
        if (automatic || !strcmp(technique_print(id, configured, has), technique_print(id, plan, planned))) continue;
        if (id == TECHNIQUE_optimizer && allows(r->config, planned)) continue;
        if (id == TECHNIQUE_quantize && allows_nf4(r->config) && !strcmp(planned, "nf4")) continue;
        return error_set(e, PL_USAGE, "%s: made with another %s than the configuration has; leave the key out, or plan again", path, config_key_name(key));
    }
    return PL_OK;
}

static int follow_plan(struct run *r, const struct source *source, struct settings s, const char *path, struct error *e)
{
    struct plan_file f;
    int rc = plan_read(path, &f, e);
    if (!rc) rc = check_plan_keys(r, &s, &f.settings, path, e);
    if (rc) return rc;
    settings_follow(&s, &f.settings);
    if (check_excluded(r, &s, e)) return e->code;
    if (f.effective_batch != r->effective_batch)
        return error_set(e, PL_USAGE, "%s: made for train.effective_batch %d, the configuration has %d", path, f.effective_batch,
                         r->effective_batch);
    if (f.ranks * f.shares > 1 ? f.ranks != s.ranks || f.shares != s.shares : s.ranks * s.shares > 1)
        return error_set(e, PL_USAGE, "%s: made for %d ranks with %d shares each, this run has %d with %d; plan again", path, f.ranks, f.shares, (int)max_i64(1, s.ranks), (int)max_i64(1, s.shares));
    if (s.group == GROUP_HOST && f.per_host != s.per_host)
        return error_set(e, PL_USAGE, "%s: made for hosts of %d ranks, and they have %d here; plan again", path, f.per_host, s.per_host);
    if (strcmp(f.profile, r->device.profile.name) || f.threads != r->device.profile.threads)
        return error_set(e, PL_USAGE, "%s: made for device %s with %d threads, this is %s with %d; plan again", path, f.profile,
                         f.threads, r->device.profile.name, r->device.profile.threads);
    if ((rc = plan_compile(&r->graph, source, &s, e))) return rc;
    r->has_graph = true;
    r->plan.settings = s;
    if ((rc = plan_place(&r->plan, &r->graph, &r->device.profile, e))) return rc;
    r->plan.smallest = f.smallest;
    if (plan_digest(&r->plan, &r->graph) != f.digest || plan_arena(&r->plan) != f.arena[SPACE_DEVICE])
        return error_set(e, PL_USAGE, "%s: made for another model, sequence or version (its arena of %llu bytes differs from this one of %llu); plan again",
                         path, (unsigned long long)f.arena[SPACE_DEVICE], (unsigned long long)plan_arena(&r->plan));
    /* A run that is resumed keeps its plan while it fits the free memory: auto's reserve is for what changed since. */
    const bool whole = r->config->memory_budget.kind == BUDGET_AUTO && r->device.kind != DEVICE_CUDA;
    if (r->budget && plan_arena(&r->plan) > r->budget + (whole ? BUDGET_RESERVE : 0))
        return error_set(e, PL_NOFIT, "%s: needs %llu bytes, the budget is %llu; leave out --plan to search again", path,
                         (unsigned long long)plan_arena(&r->plan), (unsigned long long)r->budget);
    if (run_exceeds_host(r))
        return error_set(e, PL_NOFIT, "%s: needs %llu bytes of %s, memory.host_budget is %llu; leave out --plan to search again", path,
                         (unsigned long long)r->plan.placement.arena[SPACE_HOST], plan_host_name(&r->plan), (unsigned long long)r->host_budget);
    return PL_OK;
}

static int open_model(struct run *r, const struct run_options *o, struct error *e)
{
    const struct config *c = r->config;
    if (o->config_json) return model_text(&r->model, o->config_json, "the given config.json", e);
    if (o->define) return model_define(&r->model, o->define, c->model_path, e);
    if (c->model_vision_tower && !c->model_path) {
        error_set(e, PL_USAGE, "model.vision_tower is for a model folder (model.path), which is not given");
        return config_at_key(c, KEY_model_vision_tower, e);
    }
    const enum config_key key = c->model_path ? KEY_model_path : KEY_model_preset;
    int rc = config_open_model(c, &r->model, e);
    if (!rc || !o->train || !config_given(c, key)) return rc; /* in other commands --model overrides the file */
    error_prepend(e, "%s", config_key_name(key));
    return config_at_key(c, key, e);
}

/* With train.eval_samples the run has the programs that answer prompts. A prompt is at most as long as a row, and is
 * processed in chunks that need no more memory than a row. */
static int prepare_answers(struct run *r, struct error *e)
{
    const struct config *c = r->config;
    if (!c->train_eval_samples) return PL_OK;
    if (r->model.images && r->model.images->single) {
        error_set(e, PL_USAGE, "train.eval_samples is %lld, but a %s answers in `plimsoll eval` and `plimsoll generate` alone; set it to 0", (long long)c->train_eval_samples, r->model.family->model_type);
        return config_at_key(c, KEY_train_eval_samples, e);
    }
    if (!r->model.family->generates) {
        error_set(e, PL_USAGE, "train.eval_samples is %lld, but a model of type %s generates no text; set it to 0", (long long)c->train_eval_samples, r->model.family->model_type);
        return config_at_key(c, KEY_train_eval_samples, e);
    }
    r->answers = true;
    r->batch.cache = c->data_sequence + c->train_eval_max_new;
    if (r->model.positions) r->batch.cache = min_i64(r->batch.cache, r->model.positions);
    r->prompt_chunk = min_i64(c->data_sequence, ANSWERS_CHUNK);
    return PL_OK;
}

/* The batches as the feed describes them, or as they are given. */
static int describe(struct run *r, const struct run_options *o, struct error *e)
{
    r->batches = (struct run_batches){.packed = o->packed, .partial = o->partial, .size = KEY_data_sequence, .least = 16};
    if (o->own) r->batches.own = memcpy(bump_alloc(&r->memory, o->own_bytes), o->own, o->own_bytes);
    int rc = o->describe && (o->train || o->evaluate) ? o->describe(r->config, &r->model, o, &r->memory, &r->batches, e) : PL_OK;
    r->batch.own = r->batches.own;
    r->batch.packed = r->batches.packed;
    r->model.partial = r->batches.partial || (o->generate && r->model.answers_partly);
    return rc;
}

/* Number of images that share batch normalization statistics; 0: the running statistics are used
 * and not updated. Weights from a folder have trained running statistics. */
static int64_t bn_group(const struct run *r, bool train)
{
    const struct config *c = r->config;
    if (!r->model.batch_norm || r->forward) return 0;
    if (c->model_bn_group) return c->model_bn_group;
    return train && !c->model_path ? 1 : 0;
}

/* Groups lie within micro-batches, and padding is in no group (measure_run): so the micro-batch
 * size does not change the statistics. */
static int check_groups(const struct run *r, bool train, struct error *e)
{
    const int64_t group = r->batch.bn_group, micro = config_micro_batch(r->config), images = r->effective_batch;
    const char *of = train ? "train.effective_batch" : "a batch";
    if (!group) return PL_OK;
    if (r->shares > 1)
        return error_set(e, PL_USAGE, "batch normalization over groups of %lld images updates running statistics in the order of samples, which several ranks or shares do not keep; "
                         "%s, or train from a folder of weights, whose statistics stay as they are", (long long)group, parallel_ranks(r) > 1 ? "train in one process" : "set parallel.shares 1");
    if (images % group)
        return error_set(e, PL_USAGE, "model.bn_group: %s of %lld images is not divisible into groups of %lld that share statistics", of,
                         (long long)images, (long long)group);
    if (train && micro && (micro % group || images % micro))
        return error_set(e, PL_USAGE,
                         "memory.micro_batch is %lld; with statistics over groups of %lld images (model.bn_group) it must be a multiple of "
                         "%lld that divides train.effective_batch %lld",
                         (long long)micro, (long long)group, (long long)group, (long long)images);
    return PL_OK;
}

int run_least_micro_batch(const struct run *r)
{
    const int images = run_share_samples(r), group = (int)r->batch.bn_group;
    int least = r->device.kind == DEVICE_CUDA ? (images + GPU_TRIPS - 1) / GPU_TRIPS : 1;
    while (group && (least % group || images % least)) least++; /* ends at the whole batch, which check_groups accepts */
    return least;
}

static int search_plan(struct run *r, struct settings s, const struct run_options *o, struct error *e)
{
    const struct config *c = r->config;
    struct freedom f = {.effective_batch = run_share_samples(r), .budget = r->budget,
                        .host_budget = r->host_budget,
                        .allow_bf16 = o->train && allows(c, "adamw-bf16"),
                        .allow_8bit = o->train && allows(c, "adamw-8bit"),
                        .whole = o->define || r->batch.bn_group,
                        .multiple = (int)r->batch.bn_group,
                        .trips = limits_of(r).trips};
    if (!o->train) s.micro_batch = run_share_samples(r);
    for (enum technique_id id = 0; id < TECHNIQUES; id++) {
        struct text why = {0};
        f.free[id] = !config_technique(c, id)->chosen && !techniques[id].changes_results && (o->train || techniques[id].without_training) && !is_excluded(r, id, &s, &why);
        text_free(&why);
    }
    f.free[TECHNIQUE_quantize] = o->train && allows_nf4(c);
    if (check_excluded(r, &s, e)) return e->code;
    if (f.whole && run_share_samples(r) % s.micro_batch)
        return error_set(e, PL_USAGE, "memory.micro_batch %d does not divide train.effective_batch %d, which a user-defined model needs",
                         s.micro_batch, r->effective_batch);
    int rc = plan_space_open(&r->space, &r->source, &s, &f, &r->device.profile, e);
    if (rc) return rc;
    r->has_space = true;
    rc = plan_search_in(&r->space, &r->plan, &r->graph, e);
    r->has_graph = !rc || rc == PL_NOFIT;
    if (!rc && o->ablation) plan_ablation(&r->space, &r->plan, &s);
    return rc;
}

static void close_space(struct run *r)
{
    if (r->has_space) plan_space_close(&r->space);
    r->has_space = false;
}

static void drop_plan(struct run *r)
{
    if (r->has_graph) {
        plan_free(&r->plan);
        graph_free(&r->graph);
    }
    r->has_graph = false;
    memset(&r->plan, 0, sizeof r->plan);
}

int run_plan_within(struct run *r, uint64_t budget, struct error *e)
{
    CHECK(r->has_space, "run_options.several");
    drop_plan(r);
    r->budget = r->space.f.budget = budget;
    int rc = plan_search_in(&r->space, &r->plan, &r->graph, e);
    r->has_graph = !rc || rc == PL_NOFIT;
    if (r->has_graph) run_warn(r);
    return rc;
}

int run_plan(struct run *r, const struct config *c, const struct run_options *o, struct error *e)
{
    memset(r, 0, sizeof *r);
    r->config = c;
    r->defined = o->define;
    r->no_files = o->no_files;
    r->forward = o->forward || o->evaluate;
    r->effective_batch = (int)(o->train ? c->train_effective_batch : o->B);
    r->batch = (struct batch){.T = o->train ? c->data_sequence : o->T, .outputs = !o->train, .loss_output = o->forward ? "" : o->loss_output, .size = o->size};
    if (o->generate) r->batch.cache = o->generate->cache;
    int rc = open_shares(r, o, e);
    if (!rc) rc = open_model(r, o, e);
    if (!rc) rc = weights_4bit_find(&r->stored, &r->model, &r->memory, e);
    if (!rc && r->stored.n && !o->probe) log_note("%s: %u weights are in 4 bits (NF4) and stay so, as with memory.quantize nf4", r->model.path, r->stored.n);
    if (!rc) rc = open_adapter(r, o->train, e);
    if (!rc && o->train) rc = prepare_answers(r, e);
    if (!rc) rc = describe(r, o, e);
    if (!rc) r->batch.bn_group = bn_group(r, o->train);
    if (!rc) rc = check_groups(r, o->train, e);
    if (!rc) rc = check_recipe(r, o->train, e);
    if (rc) return rc;
    if (r->ranks && c->device_kind != ON_CPU) cuda_take_gpu(r->ranks->local_rank, r->ranks->local);
    if (run_open_profile(r, e)) return config_given(c, KEY_device_profile) ? config_at_key(c, KEY_device_profile, e) : e->code;
    if (o->gpu_memory) r->device.profile.memory_bytes = o->gpu_memory;
    if (check_gpus(r, e)) return e->code;
    if (resolve_budget(r, e)) return e->code;
    if ((rc = offload_budget(c, r->device.kind, run_gpu_is_here(r), r->ranks, run_host_ranks(r), &r->host_budget, &r->host_rule, e))) return rc;

    if ((rc = open_links(r, e))) return rc;

    r->source = (struct source){r, build_forward, .serial = o->define};
    struct settings s = base_settings(r, o);
    struct run_input ids;
    if ((rc = check_precision(r, &s, e)) || (rc = check_needs(&s, e))) return rc;
    if (o->generate) rc = run_plan_generation(r, s, o->generate, e);
    else rc = o->plan ? follow_plan(r, &r->source, s, o->plan, e) : search_plan(r, s, o, e);
    if (r->has_graph) run_warn(r);
    if (rc == PL_NOFIT && !o->plan && !o->generate) run_remedies(r, o, e);
    if (!o->several) close_space(r);
    if (!rc) rc = check_hosts(r, e);
    if (!rc && r->defined) rc = run_check_ids(r, e);
    /* A user-defined model has no config.json: its embedding layer gives the vocabulary size. */
    if (!rc && r->defined && run_input(r, "input_ids", &ids)) {
        run_input_ids(r, &ids);
        r->model.vocabulary = ids.below;
    }
    return rc;
}

bool run_exceeds_host(const struct run *r) { return r->host_budget && r->plan.placement.arena[SPACE_HOST] > r->host_budget; }

struct plan_note run_note(const struct run *r, bool fits)
{
    const bool host = !fits && run_exceeds_host(r), stated = host || r->config->memory_host_budget.kind == BUDGET_BYTES;
    return (struct plan_note){.fits = fits, .refused_by = fits ? NULL : host ? "memory.host_budget" : "memory.budget", .budget = r->budget,
                              .host_budget = stated ? r->host_budget : 0, .effective_batch = r->effective_batch,
                              .profile = &r->device.profile, .adapter = r->adapted, .remedy = r->remedy, .n_remedies = r->n_remedies,
                              .warning = r->warning, .n_warnings = r->n_warnings};
}

/* --- starting -------------------------------------------------------------------------- */

static void *staging_named(const struct run *r, const char *name)
{
    for (id s = 1; s < r->graph.storages.n; s++) {
        const struct storage *x = &r->graph.storages.at[s];
        if (x->kind == KIND_STAGING && !strcmp(graph_name(&r->graph, x->name), name)) return r->device.arena[x->space] + r->plan.placement.offset[s];
    }
    return NULL;
}

void *run_staging(const struct run *r) { return staging_named(r, "staging"); }
void *run_loader_memory(const struct run *r) { return staging_named(r, "loader"); }
void *run_tickets(const struct run *r) { return staging_named(r, "tickets"); }

/* Fills the input "samples", if the graph has it: each row's index in the step's batch, whichever rank has it. It
 * never changes, so it is written once; padding rows are numbered on. */
static int put_samples(struct run *r, struct error *e)
{
    const struct graph *g = &r->graph;
    for (id s = 1; s < g->storages.n; s++) {
        const struct storage *x = &g->storages.at[s];
        if (!run_input_used(r, &(struct run_input){.storage = s}) || x->kind != KIND_INPUT || strcmp(graph_name(g, x->name), "samples")) continue;
        uint64_t n = x->bytes / sizeof(int32_t);
        int32_t *indices = mem_alloc(x->bytes);
        const uint64_t rows = (uint64_t)run_share_rows(r);
        for (uint64_t i = 0; i < n; i++) indices[i] = (int32_t)(((uint64_t)run_first_share(r) + i / rows) * (uint64_t)run_share_samples(r) + i % rows);
        int rc = r->device.ops->write(&r->device, r->device.arena[x->space] + r->plan.placement.offset[s], indices, x->bytes, e);
        mem_free(indices);
        return rc;
    }
    return PL_OK;
}

/* A plan for a GPU may contain ops without a kernel. Attention with ranges, which generation and packed
 * rows need, has none yet. */
static int refuse_missing(const struct run *r, struct error *e)
{
    struct text missing = {0};
    plan_print_missing(&r->plan, &missing);
    int rc = missing.n ? error_set(e, PL_USAGE,
                                   "device %s has no kernel for %s of these sizes: the plan cannot run; "
                                   "set a smaller memory.micro_batch or more memory.head_chunks, or leave them to the planner",
                                   r->device.profile.name, missing.at)
                       : PL_OK;
    text_free(&missing);
    return rc;
}

/* The offload file has no name, so the nearest existing folder above the run's serves as well. */
static int choose_spill(struct run *r, const char *spill, struct error *e)
{
    r->device.no_file = r->no_files;
    if (r->device.kind == DEVICE_CUDA || !r->plan.placement.arena[SPACE_HOST]) return PL_OK;
    return folder_above(spill ? spill : offload_folder(r->config->train_out), r->device.spill, sizeof r->device.spill, e);
}

static int open_weights(struct run *r, struct error *e)
{
    struct text config = {0};
    struct bump names = {0};
    if (!r->has_adapter) return weights_open(&r->weights, &r->model, &r->graph, NULL, e);
    if (!r->config->adapter_path) {
        const char *const *modules;
        const uint32_t n = lora_modules(&r->graph, &names, &modules);
        const char **spelled = bump_alloc(&names, (n + 1) * sizeof *spelled);
        for (uint32_t i = 0; i < n; i++) {
            char name[512];
            spelled[i] = bump_string(&names, spelling_apply(r->adapter.spellings, r->adapter.spelled, modules[i], name, sizeof name));
        }
        adapter_config_write(&r->adapter, r->model.path, spelled, n, &config);
    }
    const struct weights_adapter a = {r->config->adapter_path, config.at};
    int rc = weights_open(&r->weights, &r->model, &r->graph, &a, e);
    text_free(&config);
    bump_free(&names);
    return rc;
}

/* The staging buffer of the arena is small, because it stays for the whole run. A GPU gets its weights
 * through a larger one, in few copies; it is freed before the first step. */
static int load_weights(struct run *r, struct error *e)
{
    const bool separate = device_traits(r->device.kind).separate_memory;
    void *buffer = separate ? mem_alloc(LOAD_BUFFER) : run_staging(r);
    int rc = weights_load(&r->weights, &r->graph, &r->device, &r->tape, buffer, separate ? LOAD_BUFFER : PLAN_STAGING, (uint64_t)r->config->train_seed, e);
    if (separate) mem_free(buffer);
    return rc;
}

static int open_memory(struct run *r, const char *spill, struct error *e)
{
    int rc = refuse_missing(r, e);
    if (!rc) rc = run_check_room(r, e);
    if (!rc) rc = open_weights(r, e);
    if (rc) return rc;
    r->has_weights = true;
    struct profile planned = r->device.profile;
    if ((rc = device_open(&r->device, planned.kind, planned.threads, e))) return rc;
    r->device.profile = planned;
    r->has_device = true;
    r->device.ranks = r->ranks;
    r->device.deterministic = r->config->device_deterministic;
    if ((rc = choose_spill(r, spill, e))) return rc;
    return device_allocate(&r->device, r->plan.placement.arena, e);
}

int run_start(struct run *r, const char *spill, bool load, struct error *e)
{
    int rc = open_memory(r, spill, e);
    if ((rc = agree_on(r->ranks, rc, e))) return rc; /* no rank waits for one that has no memory */
    tape_build(&r->tape, &r->graph, &r->plan.placement, r->device.arena, r->device.profile.threads, r->device.ranks);
    r->has_tape = true;
    if ((rc = r->device.ops->record(&r->device, &r->tape, e))) return rc;
    r->tape.poison = getenv("PLIMSOLL_POISON") != NULL && r->device.kind != DEVICE_CUDA;
    r->tape.nodes = getenv("PLIMSOLL_NODES") != NULL;
    trips_start(r);
    if ((rc = put_samples(r, e))) return rc;
    if (!load) return PL_OK;
    return load_weights(r, e);
}

void run_close(struct run *r)
{
    if (r->has_weights) weights_close(&r->weights);
    if (r->has_device) device_close(&r->device, r->has_tape ? &r->tape : NULL);
    if (r->has_tape) tape_free(&r->tape);
    close_space(r);
    drop_plan(r);
    model_close(&r->model);
    bump_free(&r->memory);
}

/* --- the host's side of a step ------------------------------------------------------------ */

int run_put_step(struct run *r, const struct step_block *b, struct error *e)
{
    return r->device.ops->write(&r->device, tape_address(&r->tape, r->graph.step), b, sizeof *b, e);
}

int run_get_step(struct run *r, struct step_block *b, struct error *e)
{
    return r->device.ops->read(&r->device, b, tape_address(&r->tape, r->graph.step), sizeof *b, e);
}

int run_program(struct run *r, enum program p, struct error *e)
{
    trips_set(r, p);
    return r->device.ops->run(&r->device, &r->tape, p, e);
}

id run_clip(const struct run *r)
{
    id found = graph_find_output(&r->graph, PROGRAM_UPDATE, "clip");
    return found ? found : graph_find_output(&r->graph, PROGRAM_STEP, "clip");
}

int run_read(struct run *r, id tensor, void *to, struct error *e)
{
    return r->device.ops->read(&r->device, to, tape_address(&r->tape, tensor), tensor_bytes(tensor_at(&r->graph, tensor)), e);
}

/* --- prefetching a batch ------------------------------------------------------------------- */

bool run_can_prefetch(const struct run *r) { return r->device.ops->write_later && staging_named(r, "next"); }

/* Waits until the previous batch has left the staging buffer, which usually is long done. */
int run_prefetch_begin(struct run *r, struct error *e)
{
    int rc = r->device.ops->synchronize_writes(&r->device, e);
    r->prefetching = !rc;
    r->prefetched = false;
    return rc;
}

void run_prefetch_end(struct run *r, bool ready)
{
    r->prefetching = false;
    r->prefetched = ready;
}

/* Copies through the staging buffer, in which the inputs are adjacent, so that the caller may reuse
 * its memory at once. */
static int write_prefetched(struct run *r, id storage, uint64_t from, char *to, const void *data, uint64_t bytes, struct error *e)
{
    char *next = staging_named(r, "next");
    for (id s = 1; s < storage; s++)
        if (r->graph.storages.at[s].kind == KIND_INPUT) next += r->graph.storages.at[s].bytes;
    memcpy(next + from, data, bytes);
    return r->device.ops->write_later(&r->device, to, next + from, bytes, e);
}

static int write_bytes(struct run *r, id storage, uint64_t from, const void *data, uint64_t bytes, struct error *e)
{
    CHECK(from + bytes <= r->graph.storages.at[storage].bytes, "input %s is too small", graph_name(&r->graph, r->graph.storages.at[storage].name));
    char *to = r->device.arena[SPACE_DEVICE] + r->plan.placement.offset[storage] + from;
    trips_count(r, storage, from, data, bytes);
    if (r->prefetching) return write_prefetched(r, storage, from, to, data, bytes, e);
    r->prefetched = false;
    return r->device.ops->write(&r->device, to, data, bytes, e);
}

int run_write_bytes(struct run *r, const char *input, uint64_t from, const void *data, uint64_t bytes, struct error *e)
{
    struct run_input x;
    CHECK(run_input(r, input, &x), "no input %s", input);
    return run_input_used(r, &x) ? write_bytes(r, x.storage, from, data, bytes, e) : PL_OK; /* if no program reads it, it has no storage in the arena */
}

/* Writes n samples, starting at sample `at`, from an array [outer][stride samples][entries of a
 * sample]: `data` is its first sample. */
static int write_samples(struct run *r, const struct run_input *x, int64_t at, int64_t n, const char *data, int64_t stride, struct error *e)
{
    const int64_t micro = r->plan.settings.micro_batch;
    const uint64_t piece = x->sample / x->outer; /* bytes of a sample in one of the outer ones */
    int rc = PL_OK;
    for (int64_t end = at + n; at < end && !rc;) {
        const int64_t k = min_i64(end - at, micro - at % micro);
        const uint64_t first = (uint64_t)(at / micro) * x->outer * x->entries * x->entry;
        for (uint64_t o = 0; o < x->outer && !rc; o++)
            rc = write_bytes(r, x->storage, first + o * x->entries * x->entry + (uint64_t)(at % micro) * piece, data + o * (uint64_t)stride * piece, (uint64_t)k * piece, e);
        data += (uint64_t)k * piece;
        at += k;
    }
    return rc;
}

int run_write_input(struct run *r, const char *input, int64_t at, const void *data, uint64_t bytes, struct error *e)
{
    struct run_input x;
    CHECK(run_input(r, input, &x), "no input %s", input);
    if (!run_input_used(r, &x)) return PL_OK;
    at += r->share.row;
    if (x.axis <= 0) return write_bytes(r, x.storage, x.axis == INPUT_SHARED ? 0 : (uint64_t)at * x.sample, data, bytes, e);
    int rc = PL_OK;
    for (uint64_t done = 0; done < bytes && !rc; done += x.sample, at++) rc = write_samples(r, &x, at, 1, (const char *)data + done, 1, e);
    return rc;
}

int run_write_batch(struct run *r, const char *input, const void *data, struct error *e)
{
    struct run_input x;
    CHECK(run_input(r, input, &x), "no input %s", input);
    if (x.axis <= 0) return run_write_input(r, input, 0, data, x.sample * (uint64_t)(x.axis < 0 ? 1 : r->effective_batch), e);
    return run_input_used(r, &x) ? write_samples(r, &x, 0, r->effective_batch, data, r->effective_batch, e) : PL_OK;
}
