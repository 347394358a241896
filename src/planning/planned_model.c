/*
 * planned_model.c: the first stages of planning: the model and its adapter are opened, the batches
 * described, groups of samples set, and the configuration's names checked (see stages.h).
 */
#include "planning/stages.h"

#include "adapter/adapter.h"
#include "models/contents.h"
#include "planning/parameter_groups.h"

/* Tokens of a prompt that an evaluation processes at once, at most. */
enum { ANSWERS_CHUNK = 256 };

/* --- the model and its adapter ---------------------------------------------------------------- */

/* Builds the model's forward graph for the planner, and marks its frozen weights. Without a
 * backward pass all weights are frozen: a frozen weight has no master weight in another
 * precision. */
static void build_forward(void *run, struct graph *g, int micro_batch)
{
    struct planned *r = run;
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
        /* generation without an adapter has nothing that was trained beside 4-bit weights */
        if (!p->frozen && (r->has_adapter || !r->batch.cache)) p->exact = true;
        p->frozen = true;
    }
}

static int open_model(struct planned *r, const struct run_options *o, struct error *e)
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

/* Opens the adapter that the configuration asks for; without training it has no dropout. */
static int open_adapter(struct planned *r, bool train, struct error *e)
{
    if (!adapter_given(r->config)) return PL_OK;
    if (adapter_open(r->config, r->model.family, &r->memory, &r->adapter, e)) return e->code;
    if (!train) r->adapter.dropout = 0;
    r->has_adapter = true;
    return PL_OK;
}

int planned_open_model(struct planned *r, const struct run_options *o, struct error *e)
{
    r->source = (struct source){r, build_forward, .serial = o->define};
    TRY(open_model(r, o, e));
    TRY(weights_4bit_find(&r->stored, &r->model, &r->memory, e));
    if (r->stored.n && !o->probe)
        log_note("%s: %u weights are in 4 bits (NF4) and stay so, as with memory.quantize nf4", r->model.path,
                 r->stored.n);
    return open_adapter(r, o->train, e);
}

/* --- the batches ----------------------------------------------------------------------- */

/* Gives a run with train.eval_samples the programs that answer prompts. A prompt is at most as long
 * as a row, and is processed in chunks that need no more memory than a row. */
static int prepare_answers(struct planned *r, struct error *e)
{
    const struct config *c = r->config;
    if (!c->train_eval_samples) return PL_OK;
    if (r->model.whole == WHOLE_CHOOSES) {
        error_set(e, PL_USAGE, "train.eval_samples is %lld, but a model of type %s answers only in `plimsoll "
                  "eval` and `plimsoll generate`; set it to 0",
                  (long long)c->train_eval_samples, r->model.family->model_type);
        return config_at_key(c, KEY_train_eval_samples, e);
    }
    if (!r->model.family->generates) {
        error_set(e, PL_USAGE, "train.eval_samples is %lld, but a model of type %s generates no text; set it to 0",
                  (long long)c->train_eval_samples, r->model.family->model_type);
        return config_at_key(c, KEY_train_eval_samples, e);
    }
    r->answers = true;
    r->batch.cache = c->data_sequence + c->train_eval_max_new;
    if (r->model.positions) r->batch.cache = min_i64(r->batch.cache, r->model.positions);
    r->batch.texts = 1;
    const bool whole = r->model.whole; /* an image is not cut */
    r->prompt_chunk = whole ? c->data_sequence : min_i64(c->data_sequence, ANSWERS_CHUNK);
    r->prompts = max_i64(1, c->train_eval_batch);
    return PL_OK;
}

/* Describes the batches, as the feed does or as they are given. */
static int describe(struct planned *r, const struct run_options *o, struct error *e)
{
    r->batches =
        (struct run_batches){.packed = o->packed, .partial = o->partial, .size = KEY_data_sequence, .least = 16};
    if (o->holds) r->batches.holds = memcpy(bump_alloc(&r->memory, sizeof *o->holds), o->holds, sizeof *o->holds);
    int rc = o->describe && (o->train || o->evaluate) ? o->describe(r->config, &r->model, o, &r->memory, &r->batches, e)
                                                      : PL_OK;
    r->batch.holds = r->batches.holds;
    r->batch.packed = r->batches.packed;
    if (r->batches.tokens) r->batch.T = r->batches.tokens;
    r->model.partial = r->batches.partial || (o->generate && r->model.answers_partly);
    return rc;
}

int planned_open_batches(struct planned *r, const struct run_options *o, struct error *e)
{
    if (o->train) TRY(prepare_answers(r, e));
    TRY(describe(r, o, e));
    if (o->train && !o->define && !o->probe) TRY(config_check_model(r->config, &r->model, e));
    return o->train ? model_check_dropout(&r->model, e) : PL_OK;
}

/* --- groups of samples: batch normalization, and the loss that balances experts --------------- */

int64_t planned_group(const struct planned *r)
{
    return r->batch.bn_group ? r->batch.bn_group : r->batch.router_group;
}

/* Reports whether the step updates running statistics. */
static bool updates_statistics(struct planned *r)
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

int64_t planned_usual_group(const struct config *c, int64_t shares)
{
    const int64_t samples = ceil_div(c->train_effective_batch, shares), micro = config_micro_batch(c);
    int64_t group = 8;
    while (samples % group || micro % group) group /= 2;
    return group;
}

/* Sets the images that share batch normalization statistics. Layers whose weights are in a folder
 * have trained running statistics, which are used and not updated; those that the folder leaves out
 * have none yet. */
static void set_image_groups(struct planned *r, const struct run_options *o)
{
    const struct config *c = r->config;
    const bool train = o->train;
    if (!r->model.batch_norm || r->forward) return;
    if (c->model_bn_group) r->batch.bn_group = r->batch.bn_loaded = c->model_bn_group;
    else if (train && !c->model_path) r->batch.bn_group = 1;
    else if (train && !c->adapter_path) r->batch.bn_group = planned_usual_group(c, r->shares);
    if (!c->model_path || !r->batch.bn_group) return;
    if (!updates_statistics(r)) r->batch.bn_group = 0;
    else if (!c->model_bn_group && !o->probe)
        log_note("batch normalization: layers whose weights are in no folder take the statistics of %lld images at a "
                 "time (model.bn_group auto); the others keep theirs", (long long)r->batch.bn_group);
}

/* Sets the samples whose tokens share the loss that balances experts. Given inputs are one group,
 * as in transformers. */
static void set_router_groups(struct planned *r, const struct run_options *o)
{
    if (!r->model.balances || r->forward || o->generate) return;
    r->batch.router_group = o->train ? planned_usual_group(r->config, r->shares) : r->effective_batch;
    if (r->config->model_router_group) r->batch.router_group = r->config->model_router_group;
    r->batch.router_groups = r->effective_batch / r->batch.router_group;
}

/* Groups lie within shares and micro-batches, and padding is in no group (measure_run): so the
 * micro-batch size does not change what they compute. */
static int check_groups(const struct planned *r, bool train, struct error *e)
{
    const int64_t group = planned_group(r), micro = config_micro_batch(r->config), shares = r->shares,
                  samples = r->effective_batch / shares;
    const char *of = train ? "train.effective_batch" : "a batch";
    const bool images = r->batch.bn_group;
    const char *key = images ? "model.bn_group" : "model.router_group", *unit = images ? "images" : "samples",
               *what = images ? "statistics" : "a loss of experts";
    if (!group) return PL_OK;
    if (r->effective_batch % shares)
        return error_set(e, PL_USAGE, "train.effective_batch of %d %s is not divisible among %lld shares, and "
                         "%s over groups of %lld %s (%s) takes no padding: set a multiple of %lld",
                         r->effective_batch, unit, (long long)shares, images ? "batch normalization" : what,
                         (long long)group, unit, key, (long long)(shares * group));
    if (samples % group)
        return error_set(e, PL_USAGE, "%s: %s of %lld %s%s is not divisible into groups of %lld that share %s", key,
                         of, (long long)samples, unit, shares > 1 ? " a share" : "", (long long)group, what);
    if (train && micro && (micro % group || samples % micro))
        return error_set(e, PL_USAGE,
                         "memory.micro_batch is %lld; with %s over groups of %lld %s (%s) it must be a multiple of "
                         "%lld that divides train.effective_batch%s %lld",
                         (long long)micro, what, (long long)group, unit, key, (long long)group,
                         shares > 1 ? " of a share," : "", (long long)samples);
    return PL_OK;
}

/* Returns PL_USAGE if a micro-batch is smaller than the share whose samples the loss compares with
 * each other: such a loss is no sum over micro-batches. */
static int check_whole(const struct planned *r, struct error *e)
{
    const int64_t micro = config_micro_batch(r->config), samples = planned_share_samples(r);
    if (!r->batches.indivisible || !micro || micro == samples) return PL_OK;
    error_set(e, PL_USAGE, "memory.micro_batch is %lld, and the contrastive loss compares all %lld samples of a share "
              "with each other: leave it out. Less memory take memory.recompute, memory.offload, a smaller "
              "train.effective_batch, or parallel.shares, whose samples are compared within each", (long long)micro,
              (long long)samples);
    return config_at_key(r->config, KEY_memory_micro_batch, e);
}

int planned_open_groups(struct planned *r, const struct run_options *o, struct error *e)
{
    set_image_groups(r, o);
    set_router_groups(r, o);
    int rc = check_groups(r, o->train, e);
    return rc || !o->train ? rc : check_whole(r, e);
}

/* --- the names of the configuration ------------------------------------------------------- */

static int check_quantize(struct planned *r, const struct graph *g, struct error *e)
{
    const struct config *c = r->config;
    struct settings s = {0};
    groups_settings(c, &r->memory, &s);
    CHECK(technique_parse(TECHNIQUE_quantize, c->memory_quantize.value, &s), "%s", c->memory_quantize.value);
    return quantize_check(g, &s, e) ? config_at_key(c, KEY_memory_quantize, e) : PL_OK;
}

/* Returns the batch with which all of the model is built. A part that this run does not build (an
 * encoder whose embeddings are stored, a mask decoder while text is generated) is not in its graph,
 * but its parameter names are valid. */
static struct batch whole_batch(const struct planned *r)
{
    struct batch b = r->batch;
    if (r->batches.whole) b.holds = r->batches.whole;
    if (b.cache && !r->answers && r->model.answers_partly) b.cache = 0, b.holds = NULL;
    return b;
}

/* Builds the forward graph of the whole model to check the parameter names of the configuration.
 * Errors of the model's builder are left to the planner. */
int planned_check_names(struct planned *r, const struct run_options *o, struct error *e)
{
    const int B = (int)max_i64(1, planned_group(r));
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
    if (!rc && !g.error.code) rc = groups_check(r->config, &g, o->train, e);
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
