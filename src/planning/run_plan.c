/*
 * run_plan.c: from a configuration to a plan: the model and its adapter are opened, the batches described, ranks
 * and budget resolved; then the plan is searched, or a plan file is followed.
 */
#include "planning/stages.h"

#include <string.h>

#include "config/config_model.h"
#include "cuda/cuda.h"
#include "adapter/adapter_keys.h"
#include "adapter/adapter_config.h"
#include "adapter/adapter_folder.h"
#include "planning/offload_budget.h"
#include "planning/parameter_groups.h"
#include "run/ranks.h"

/* Tokens of a prompt that an evaluation processes at once, at most. */
enum { ANSWERS_CHUNK = 256 };

/* --- the model and its adapter ------------------------------------------------------------------- */

/* The model's forward graph for the planner; frozen weights are marked here. Without a backward
 * pass all weights are frozen: a frozen weight has no master weight in another precision. */
static void build_forward(void *run, struct graph *g, int micro_batch)
{
    struct run *r = run;
    struct batch b = r->batch;
    b.B = micro_batch;
    if (program_is(g->at.program, PROGRAM_GENERATES)) {
        const bool single = program_is(g->at.program, PROGRAM_SINGLE);
        b.texts = r->prompts;
        b.B = single ? r->prompts : 1;
        b.T = single ? 1 : r->prompt_chunk;
    } else if (r->answers) {
        b.cache = 0;
    }
    r->model.family->build(&r->model, g, &b);
    if (r->has_adapter && !g->error.code) pass_lora(g, &r->adapter, (int)b.B);
    groups_freeze(r->config, g);
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
    groups_settings(c, &r->memory, &s);
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
static int check_names(struct run *r, bool train, struct error *e)
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
    if (!rc && !g.error.code) rc = groups_check(r->config, &g, train, e);
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
static int find_adapter_names(const struct config *c, const struct family *family, struct adapter *a, struct error *e)
{
    const char *root = family->root;
    struct adapter_folder f;
    a->spellings = family->spellings;
    a->spelled = spelling_in_memory(family->spellings);
    if (((!root || !*root) && !family->spellings) || !c->adapter_path) return PL_OK;
    if (adapter_folder_open(&f, c->adapter_path, e)) return e->code;
    if (root && *root && !count_beginning(&f, root)) a->root = root;
    a->spelled = find_spelling(&f, family->spellings);
    adapter_folder_close(&f);
    return PL_OK;
}

int run_open_adapter(const struct config *c, const struct model *m, struct bump *b, struct adapter *out, struct error *e)
{
    int rc = adapter_open(c, b, out, e);
    return rc ? rc : find_adapter_names(c, m->family, out, e);
}

/* Dropout is for training. */
static int open_adapter(struct run *r, bool train, struct error *e)
{
    if (!adapter_given(r->config)) return PL_OK;
    if (run_open_adapter(r->config, &r->model, &r->memory, &r->adapter, e)) return e->code;
    if (!train) r->adapter.dropout = 0;
    r->has_adapter = true;
    return PL_OK;
}

/* --- planning ------------------------------------------------------------------------ */

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
    r->batch.texts = 1;
    r->prompt_chunk = min_i64(c->data_sequence, ANSWERS_CHUNK);
    r->prompts = max_i64(1, c->train_eval_batch);
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
    if (r->batches.tokens) r->batch.T = r->batches.tokens;
    r->model.partial = r->batches.partial || (o->generate && r->model.answers_partly);
    return rc;
}

/* Whether the step updates running statistics. */
static bool updates_statistics(struct run *r)
{
    struct graph g;
    bool any = false;
    graph_init(&g);
    build_forward(r, &g, (int)max_i64(1, r->batch.bn_group));
    for (uint32_t i = 0; i < g.params.n; i++) any |= g.params.at[i].running;
    any |= g.error.code != 0; /* the planner reports it */
    graph_clear(&g);
    return any;
}

int64_t run_usual_group(const struct config *c, int64_t shares)
{
    const int64_t samples = ceil_div(c->train_effective_batch, shares), micro = config_micro_batch(c);
    int64_t group = 8;
    while (samples % group || micro % group) group /= 2;
    return group;
}

/* Sets the images that share batch normalization statistics. Layers whose weights are in a folder have trained running
 * statistics, which are used and not updated; those that the folder leaves out have none yet. */
static void set_groups(struct run *r, const struct run_options *o)
{
    const struct config *c = r->config;
    const bool train = o->train;
    if (!r->model.batch_norm || r->forward) return;
    if (c->model_bn_group) r->batch.bn_group = r->batch.bn_loaded = c->model_bn_group;
    else if (train && !c->model_path) r->batch.bn_group = 1;
    else if (train && !c->adapter_path) r->batch.bn_group = run_usual_group(c, r->shares);
    if (!c->model_path || !r->batch.bn_group) return;
    if (!updates_statistics(r)) r->batch.bn_group = 0;
    else if (!c->model_bn_group && !o->probe)
        log_note("batch normalization: layers whose weights are in no folder take the statistics of %lld images at a time (model.bn_group auto); the others keep theirs", (long long)r->batch.bn_group);
}

/* Groups lie within shares and micro-batches, and padding is in no group (measure_run): so the micro-batch
 * size does not change the statistics. */
static int check_groups(const struct run *r, bool train, struct error *e)
{
    const int64_t group = r->batch.bn_group, micro = config_micro_batch(r->config), shares = r->shares, images = r->effective_batch / shares;
    const char *of = train ? "train.effective_batch" : "a batch";
    if (!group) return PL_OK;
    if (r->effective_batch % shares)
        return error_set(e, PL_USAGE, "train.effective_batch of %d images is not divisible among %lld shares, and batch normalization over groups of %lld images (model.bn_group) takes no padding: "
                         "set a multiple of %lld", r->effective_batch, (long long)shares, (long long)group, (long long)(shares * group));
    if (images % group)
        return error_set(e, PL_USAGE, "model.bn_group: %s of %lld images%s is not divisible into groups of %lld that share statistics", of,
                         (long long)images, shares > 1 ? " a share" : "", (long long)group);
    if (train && micro && (micro % group || images % micro))
        return error_set(e, PL_USAGE,
                         "memory.micro_batch is %lld; with statistics over groups of %lld images (model.bn_group) it must be a multiple of "
                         "%lld that divides train.effective_batch%s %lld",
                         (long long)micro, (long long)group, (long long)group, shares > 1 ? " of a share," : "", (long long)images);
    return PL_OK;
}

/* A loss that compares all samples of a share with each other is no sum over micro-batches. */
static int check_whole(const struct run *r, struct error *e)
{
    const int64_t micro = config_micro_batch(r->config), samples = run_share_samples(r);
    if (!r->batches.indivisible || !micro || micro == samples) return PL_OK;
    error_set(e, PL_USAGE, "memory.micro_batch is %lld, and the contrastive loss compares all %lld samples of a share with each other: leave it out. Less memory take memory.recompute, memory.offload, "
              "a smaller train.effective_batch, or parallel.shares, whose samples are compared within each", (long long)micro, (long long)samples);
    return config_at_key(r->config, KEY_memory_micro_batch, e);
}

static int search_plan(struct run *r, struct settings s, const struct run_options *o, struct error *e)
{
    const struct config *c = r->config;
    struct freedom f = {.effective_batch = run_share_samples(r), .budget = r->budget,
                        .host_budget = r->host_budget,
                        .allow_bf16 = o->train && run_allows(c, "adamw-bf16"),
                        .allow_8bit = o->train && run_allows(c, "adamw-8bit"),
                        .whole = o->define || r->batch.bn_group,
                        .multiple = r->batches.indivisible ? run_share_samples(r) : (int)r->batch.bn_group,
                        .trips = run_limits(r).trips,
                        .fitting = o->fitting};
    if (!o->train) s.micro_batch = run_share_samples(r);
    for (enum technique_id id = 0; id < TECHNIQUES; id++) {
        struct text why = {0};
        f.free[id] = !config_technique(c, id)->chosen && !techniques[id].changes_results && (o->train || techniques[id].without_training) && !run_is_excluded(r, id, &s, &why);
        text_free(&why);
    }
    f.free[TECHNIQUE_quantize] = o->train && run_allows_nf4(c);
    if (run_check_excluded(r, &s, e)) return e->code;
    if (f.whole && run_share_samples(r) % s.micro_batch)
        return error_set(e, PL_USAGE, "memory.micro_batch %d does not divide train.effective_batch %d, which a user-defined model needs",
                         s.micro_batch, r->effective_batch);
    int rc = plan_space_open(&r->space, &r->source, &s, &f, &r->device.profile, e);
    if (rc) return rc;
    r->has_space = true;
    rc = plan_search_in(&r->space, &r->plan, &r->graph, e);
    r->has_graph = !rc || (rc == PL_NOFIT && !o->fitting);
    if (!rc && o->ablation) plan_ablation(&r->space, &r->plan, &s);
    if (!rc && r->answers && !c->train_eval_batch) rc = run_plan_answers(r, min_i64(c->train_eval_samples, PROMPTS_MOST), e);
    return rc;
}

void run_close_space(struct run *r)
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

void run_free_plan(struct run *r)
{
    run_close_space(r);
    drop_plan(r);
    model_close(&r->model);
    bump_free(&r->memory);
}

int run_plan_within(struct run *r, uint64_t budget, struct error *e)
{
    CHECK(r->has_space, "run_options.several");
    drop_plan(r);
    r->budget = r->space.f.budget = budget;
    int rc = plan_search_in(&r->space, &r->plan, &r->graph, e);
    r->has_graph = !rc || (rc == PL_NOFIT && !r->space.f.fitting);
    if (r->has_graph) run_warn(r);
    return rc;
}

int run_search(struct run *r, const struct config *c, const struct run_options *o, struct error *e)
{
    memset(r, 0, sizeof *r);
    r->config = c;
    r->defined = o->define;
    r->no_files = o->no_files;
    r->forward = o->forward || o->evaluate;
    r->effective_batch = (int)(o->train ? c->train_effective_batch : o->B);
    r->batch = (struct batch){.T = o->train ? c->data_sequence : o->T, .outputs = !o->train, .loss_output = o->forward ? "" : o->loss_output, .size = o->size};
    if (o->generate) r->batch.cache = o->generate->cache, r->batch.texts = 1;
    int rc = run_open_shares(r, o, e);
    if (!rc) rc = open_model(r, o, e);
    if (!rc) rc = weights_4bit_find(&r->stored, &r->model, &r->memory, e);
    if (!rc && r->stored.n && !o->probe) log_note("%s: %u weights are in 4 bits (NF4) and stay so, as with memory.quantize nf4", r->model.path, r->stored.n);
    if (!rc) rc = open_adapter(r, o->train, e);
    if (!rc && o->train) rc = prepare_answers(r, e);
    if (!rc) rc = describe(r, o, e);
    if (!rc && o->train && !o->define && !o->probe) rc = config_check_model(c, &r->model, e);
    if (!rc && o->train) rc = model_check_dropout(&r->model, e);
    if (!rc) set_groups(r, o);
    if (!rc) rc = check_groups(r, o->train, e);
    if (!rc && o->train) rc = check_whole(r, e);
    if (!rc) rc = check_names(r, o->train, e);
    if (rc) return rc;
    if (r->ranks && c->device_kind != ON_CPU) cuda_take_gpu(r->ranks->local_rank, r->ranks->local);
    if (run_open_profile(r, e)) return config_given(c, KEY_device_profile) ? config_at_key(c, KEY_device_profile, e) : e->code;
    if (o->gpu_memory) r->device.profile.memory_bytes = o->gpu_memory;
    if (run_check_gpus(r, e)) return e->code;
    if (run_resolve_budget(r, e)) return e->code;
    if ((rc = offload_budget(c, r->device.kind, run_gpu_is_here(r), r->ranks, run_host_ranks(r), &r->host_budget, &r->host_rule, e))) return rc;

    if ((rc = run_open_links(r, e))) return rc;

    r->source = (struct source){r, build_forward, .serial = o->define};
    struct settings s = run_base_settings(r, o);
    struct run_input ids;
    if ((rc = run_check_precision(r, &s, e)) || (rc = run_check_needs(&s, e))) return rc;
    if (o->generate) rc = run_plan_generation(r, s, o->generate, e);
    else rc = o->plan ? run_follow_plan(r, &r->source, s, o->plan, e) : search_plan(r, s, o, e);
    if (r->has_graph) run_warn(r);
    if (!rc) rc = run_check_hosts(r, e);
    if (!rc && r->defined) rc = run_check_ids(r, e);
    /* A user-defined model has no config.json: its embedding layer gives the vocabulary size. */
    if (!rc && r->defined && run_input(r, "input_ids", &ids)) {
        run_input_ids(r, &ids);
        r->model.vocabulary = ids.below;
    }
    return rc;
}
