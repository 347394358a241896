/*
 * generate.c: `plimsoll generate`: a language model continues prompts, which may have images.
 */
#include <inttypes.h>
#include <math.h>

#include <unistd.h>

#include "cli/data.h"
#include "infer/generate.h"
#include "infer/sample.h"
#include "infer/prompt_list.h"
#include "io/table.h"
#include "plan/explain.h"

enum { NEW_TOKENS = 256 }; /* --max-new, where the folder has none */

struct generation {
    struct options o;
    struct given_prompt given;
    uint64_t max_new, context, chunk, batch, top_k, seed;
    double temperature, top_p, repetition_penalty;
    bool dry_run, explain;
    struct names stops;
    struct prompts prompts;   /* the tokenizer is NULL with ids, unless the folder has one */
    struct generation_config folder;
    struct sampling sampling;
    struct prompt_list list;  /* those of the file, or one */
    uint32_t asked;           /* of them, so far */
    struct generator generator;
};

/* --- the configuration ------------------------------------------------------------------------ */

static int make_config(struct generation *g, struct error *e)
{
    struct config *c = &g->o.config;
    struct import f = {0};
    config_init(c);
    g->o.configured = true;
    int rc = options_begin(&g->o, &f, c, e);
    if (!rc) import_drop_training(c);
    if (!rc) rc = options_end(&g->o, &f, c, e);
    import_free(&f);
    use_model(c, g->o.model, "text");
    config_use_adapter(c, g->o.adapter);
    if (rc) return rc;
    TRY(config_check_read(c, "generate",
                          "model.* adapter.* data.tokenizer data.template data.chat_template_kwargs data.max_frames "
                          "data.fps data.tokens_per_frame data.range data.window data.percentiles data.slice_axis "
                          "data.volume_cache data.sample_memory memory.* device.*",
                          e));
    return config_check(c, CONFIG_OPTIONS_ONLY, e);
}

/* Takes the folder's values, and over them those of the command. */
static int make_sampling(struct generation *g, struct error *e)
{
    struct sampling *s = &g->sampling;
    TRY(generation_config_read(&g->folder, g->o.config.model_path, e));
    *s = g->folder.sampling;
    if (!isnan(g->temperature)) s->temperature = g->temperature;
    if (!isnan(g->top_p)) s->top_p = g->top_p;
    if (!isnan(g->repetition_penalty)) s->repetition_penalty = g->repetition_penalty;
    if (g->top_k != UINT64_MAX) s->top_k = (int64_t)min_u64(g->top_k, INT64_MAX);
    s->seed = g->seed;
    if (!s->temperature && (g->top_k != UINT64_MAX || !isnan(g->top_p)))
        return error_set(e, PL_USAGE,
                         "%s chooses among likely tokens, and at temperature 0 the most likely one is taken; add "
                         "--temperature 1, or leave it out",
                         g->top_k != UINT64_MAX ? "--top-k" : "--top-p");
    return sampling_check(s, e);
}

/* Finds the lengths of prompts, answers and cache. */
static int measure(const struct generation *g, struct run_generation *out, struct error *e)
{
    const struct prompt_list *l = &g->list;
    const int64_t n = l->longest, most = g->max_new          ? (int64_t)g->max_new
                                         : g->folder.max_new ? g->folder.max_new
                                                             : NEW_TOKENS;
    if (most > 1 << 24 || g->context > 1 << 24 || g->chunk > 1 << 20)
        return error_set(e, PL_USAGE, "--max-new, --context: expected at most %d tokens, --chunk: at most %d", 1 << 24,
                         1 << 20);
    *out = (struct run_generation){.cache = g->context ? (int64_t)g->context : n + most, .prompt = n, .answer = most,
                                   .chunk = (int64_t)g->chunk, .prompts = l->at.n, .tokens = l->tokens,
                                   .batch = (int64_t)min_u64(g->batch, INT32_MAX)};
    if (n >= out->cache)
        return error_set(e, PL_USAGE,
                         "the %sprompt has %lld tokens, and --context %lld leaves no room for an answer; set it to "
                         "more than %lld, or shorten the prompt",
                         l->at.n > 1 ? "longest " : "", (long long)n, (long long)out->cache, (long long)n);
    out->answer = min_i64(most, out->cache - n);
    return PL_OK;
}

/* --- the answer ------------------------------------------------------------------------------- */

static void put_ids(struct json_writer *w, const void *of)
{
    const struct answer *a = of;
    json_begin_list(w, "ids");
    for (uint32_t i = 0; i < a->ids.n; i++) json_put_int(w, NULL, a->ids.at[i]);
    json_end(w);
}

static void put_text(struct json_writer *w, const void *of)
{
    const struct answer *a = of;
    json_put_bytes(w, "text", a->text.n ? a->text.at : "", a->text.n);
}

/* Prints text as it comes. A terminal gets no control codes but line breaks and tabs. */
static void show_text(void *to, const char *bytes, size_t n)
{
    const bool terminal = *(bool *)to;
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)bytes[i];
        if (!terminal || (c >= 32 && c != 127) || c == '\n' || c == '\t') putchar(c);
    }
    fflush(stdout);
}

static uint32_t count_media(const struct generation *g, bool videos)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->given.images.n; i++) n += media_is_video(g->given.images.at[i]) == videos;
    return n;
}

/* Prints an answer as JSON, one of a file as a line; or as ids. */
static void print_answer(const struct generation *g, const struct listed_prompt *p, const struct answer *a)
{
    const bool one = !g->given.file, text = g->prompts.tokenizer;
    const uint32_t videos = one ? count_media(g, true) : 0;
    const struct generator *x = &g->generator;
    const double speed = a->ids.n > 1 && a->seconds > 0 ? (double)(a->ids.n - 1) / a->seconds : 0;
    if (!one || g->o.json)
        PRINT_FACTS(0, FACT_IF(!one, "line", p->line), FACT_CALL(put_ids, a), FACT_CALL_IF(text, put_text, a),
                    FACT("finish", generate_end_name(a->end)), FACT("prompt_tokens", (int64_t)p->prompt.n),
                    FACT_IF(one && g->given.images.n, "images", count_media(g, false)),
                    FACT_IF(videos, "videos", videos), FACT_IF(videos, "frames", g->given.slots.frames),
                    FACT_IF(one, "prompt_seconds", a->prompt_seconds), FACT_IF(one, "tokens_per_second", speed),
                    FACT_IF(one, "arena_bytes", plan_arena(&x->run->planned.plan)),
                    FACT_IF(one, "kv_cache_bytes", generator_cache_bytes(x)), FACT_IF(one, "context", x->cache),
                    FACT_IF(one, "prompt_chunk", x->chunk), FACT_IF(one, "batch", x->texts));
    else {
        for (uint32_t i = 0; g->given.ids && i < a->ids.n; i++) printf("%s%d", i ? "," : "", a->ids.at[i]);
        printf("\n");
    }
    fflush(stdout);
}

static int next_prompt(void *to, struct prompt *out, bool *more, struct error *e)
{
    struct generation *g = to;
    (void)e;
    if ((*more = g->asked < g->list.at.n)) *out = g->list.at.at[g->asked++].prompt;
    return PL_OK;
}

static int take_answer(void *to, uint64_t i, const struct answer *a, struct error *e)
{
    const struct generation *g = to;
    const struct listed_prompt *p = &g->list.at.at[i];
    if (!a) return g->given.file ? error_prepend(e, "%s:%llu", g->given.file, (unsigned long long)p->line) : e->code;
    print_answer(g, p, a);
    return PL_OK;
}

/* Adds to the folder's EOS the stop texts that are special tokens: answers have no text of
 * these. */
static void add_ends(struct generation *g)
{
    const struct tokenizer *t = g->prompts.tokenizer;
    for (uint32_t i = 0; i < g->stops.n; i++) {
        const int32_t id = tokenizer_id(t, g->stops.at[i]);
        if (id >= 0 && tokenizer_is_special(t, id)) vec_push(&g->folder.eos, id);
    }
}

static void log_speed(const struct generation *g, double seconds)
{
    char time[32], arena[32];
    log_note("%u prompts in %s, %.3g prompts/s, %lld at once, arena %s", g->list.at.n, duration_print(seconds, time),
             g->list.at.n / seconds, (long long)g->generator.texts,
             size_print(plan_arena(&g->generator.run->planned.plan), arena));
}

static int answer(struct generation *g, const struct run_generation *o, struct error *e)
{
    add_ends(g);
    bool terminal = isatty(STDOUT_FILENO);
    const struct generate_options options = {.sampling = g->sampling, .most = o->answer, .ends = g->folder.eos.at,
                                             .n_ends = g->folder.eos.n,
                                             .images = g->prompts.has_images ? &g->prompts.images : NULL,
                                             .tokenizer = g->prompts.tokenizer, .stops = g->stops.at,
                                             .n_stops = g->stops.n,
                                             .show = g->o.json || g->given.ids || g->given.file ? NULL : show_text,
                                             .to = &terminal};
    struct generate run;
    TRY(generator_start(&g->generator, e));
    generate_open(&run, &g->generator, &options);
    const double from = clock_seconds();
    int rc = generate_all(&run, &(struct generate_queue){g, next_prompt, take_answer}, e);
    if (!rc && g->given.file) log_speed(g, clock_seconds() - from);
    generate_close(&run);
    return rc;
}

static void show_plan(const struct generation *g, bool fits)
{
    const struct run *r = g->generator.run;
    struct text text = {0};
    const struct plan_note note = planned_note(&r->planned, fits);
    if (g->o.json) plan_write(&r->planned.plan, &r->planned.graph, &note, &text);
    else plan_print(&r->planned.plan, &r->planned.graph, &r->planned.profile, &text);
    if (g->explain && !g->o.json)
        plan_explain(&r->planned.plan, &r->planned.graph, &text),
            plan_explain_all(&r->planned.plan, &r->planned.graph, &text);
    fputs(text.at, stdout);
    text_free(&text);
}

static int plan_and_answer(struct generation *g, struct error *e)
{
    struct run_generation o;
    if (measure(g, &o, e)) return e->code;
    int rc = generator_plan(&g->generator, &g->o.config, &o, &g->list.images, e);
    const struct run *r = g->generator.run;
    if (r->planned.has_graph && g->o.json && rc == PL_NOFIT) show_plan(g, false);
    if (!rc) generator_warn_longest(&g->generator, o.cache, "the text");
    if (!rc && g->dry_run) show_plan(g, true);
    if (!rc && !g->dry_run) rc = answer(g, &o, e);
    generator_close(&g->generator);
    return rc;
}

/* --- the command ------------------------------------------------------------------------------ */

static int check_prompts(const struct generation *g, struct error *e)
{
    const int given = !!g->given.ids + !!g->given.text + !!g->given.chat + !!g->given.file;
    if (!given)
        return error_set(e, PL_USAGE,
                         "no prompt is given: add --prompt TEXT, --chat FILE.json, --ids 1,2,3 or --prompts FILE");
    if (given > 1) return error_set(e, PL_USAGE, "--prompt, --chat, --ids and --prompts exclude each other");
    if (g->given.file && g->given.images.n + g->given.videos.n)
        return error_set(
            e, PL_USAGE,
            "--%s is for one prompt; the samples of --prompts name their own: {\"prompt\": ..., \"images\": [...]}",
            g->given.images.n ? "image" : "video");
    if (g->batch && !g->given.file)
        return error_set(e, PL_USAGE, "--batch is for a file of prompts, --prompts FILE; this is one prompt");
    return PL_OK;
}

static int generate(struct options *o, struct error *e)
{
    struct generation *g = (struct generation *)o;
    if (!o->model)
        return error_set(e, PL_USAGE, "no model is given: add --model DIR, a folder with config.json and weights");
    TRY(check_prompts(g, e));
    for (uint32_t i = 0; i < g->stops.n; i++)
        if (!*g->stops.at[i]) return error_set(e, PL_USAGE, "--stop: expected a text that is not empty");
    int rc = make_config(g, e);
    if (!rc) rc = make_sampling(g, e);
    if (!rc) rc = prompt_list_open(&g->list, &g->prompts, &g->o.config, &g->given, g->stops.n, e);
    if (!rc) rc = plan_and_answer(g, e);
    generation_config_free(&g->folder);
    prompts_close(&g->prompts);
    prompt_list_free(&g->list);
    return rc;
}

static const struct generation START = {
    .temperature = NAN, .top_p = NAN, .repetition_penalty = NAN, .top_k = UINT64_MAX};
static const struct option OPTIONS[] = {
    OPTION(struct generation, "--prompt", TEXT, given.text), OPTION(struct generation, "--chat", TEXT, given.chat),
    OPTION(struct generation, "--ids", TEXT, given.ids), OPTION(struct generation, "--prompts", TEXT, given.file),
    OPTION(struct generation, "--stop", LIST, stops), OPTION(struct generation, "--image", LIST, given.images),
    OPTION(struct generation, "--video", LIST, given.videos), OPTION(struct generation, "--max-new", POSITIVE, max_new),
    OPTION(struct generation, "--batch", POSITIVE, batch),
    OPTION(struct generation, "--temperature", REAL, temperature), OPTION(struct generation, "--top-k", COUNT, top_k),
    OPTION(struct generation, "--top-p", REAL, top_p),
    OPTION(struct generation, "--repetition-penalty", REAL, repetition_penalty),
    OPTION(struct generation, "--seed", COUNT, seed), OPTION(struct generation, "--context", POSITIVE, context),
    OPTION(struct generation, "--chunk", POSITIVE, chunk), OPTION(struct generation, "--dry-run", SWITCH, dry_run),
    OPTION(struct generation, "--explain", SWITCH, explain)};

const struct command command_generate = {
    "generate",
    "generate --model DIR [--adapter DIR] (--prompt TEXT | --chat FILE.json | --ids 1,2,3 | --prompts FILE) "
    "[--image FILE]... [--video FILE]... [--max-new N] [--temperature T] [--config-from FILE]... [--memory SIZE] "
    "[--json]",
    "Generates text: a language model continues a prompt, or answers a chat, about images if it takes\n"
    "them. Weights, the KV cache and both programs, for chunks of the prompt and for the next token, are\n"
    "planned within --memory before anything runs.\n"
    "\n"
    "  --model DIR            a model folder, or the name of a preset\n"
    "  --adapter DIR          a LoRA adapter for that model, as PEFT or a run with an adapter saves it\n"
    "  --prompt TEXT          the text to continue\n"
    "  --chat FILE.json       messages, [{\"role\": \"user\", \"content\": \"...\"}, ...], or a map with messages,\n"
    "                         tools and chat_template_kwargs: the model's chat template renders them, and\n"
    "                         the answer is the assistant's next turn\n"
    "  --ids 1,2,3            the prompt as token ids; the answer is printed as ids\n"
    "  --prompts FILE         many prompts: JSON lines, a JSON list or Parquet with {\"prompt\": TEXT},\n"
    "                         {\"messages\": [...]} or {\"conversations\": [...]}, perhaps with images and\n"
    "                         videos; or a .txt with a prompt a line. Prints a line of JSON for each, in\n"
    "                         their order\n"
    "  --batch N              prompts that are answered at once; default: as many as --memory allows, at\n"
    "                         most 32; without it as many as the free memory allows\n"
    "  --image FILE           an image of the prompt, for a model that takes images; may be given several\n"
    "                         times. Where <image> is in the text, the images stand there, else before\n"
    "                         the text. A chat's messages may name images themselves\n"
    "  --video FILE           a video of the prompt, a file or a folder of its frames, where <video> is\n"
    "                         in the text or before it. Set data.max_frames, and data.fps and\n"
    "                         data.tokens_per_frame, as in training (--set)\n"
    "  --max-new N            tokens of the answer, at most; default: max_new_tokens of\n"
    "                         generation_config.json, else 256\n"
    "  --temperature T        0: greedy, always the most likely token. Above 0: tokens are drawn, and a\n"
    "                         higher T makes unlikely ones likelier. Default: generation_config.json,\n"
    "                         else 0\n"
    "  --top-k K              draws among the K most likely tokens; 0: all. Default:\n"
    "                         generation_config.json, else 50\n"
    "  --top-p P              draws among the most likely tokens that together have the probability P.\n"
    "                         Default: likewise, else 1\n"
    "  --repetition-penalty P makes tokens of the text so far less likely; 1: none. Default: likewise,\n"
    "                         else 1\n"
    "  --seed N               of the draws (0): the same seed gives the same text. Each prompt of a file\n"
    "                         has draws of its own, whatever --batch is\n"
    "  --stop TEXT            ends the answer before this text; may be given several times. The tokens of\n"
    "                         eos_token_id in generation_config.json, else config.json, end it too, and\n"
    "                         in a chat the tokenizer's eos_token\n"
    "  --context N            tokens of prompt and answer for which the KV cache is planned; default: the\n"
    "                         prompt and --max-new\n"
    "  --chunk N              tokens of the prompt that are processed at once; default: the planner\n"
    "                         chooses\n"
    "  --dry-run              prints the plan and generates nothing\n"
    "  --explain              with --dry-run: also shows the largest tensors, and lists both programs,\n"
    "                         their kernels, and every storage with its offset\n"
    "  --json                 prints one JSON object: ids, text, finish (eos, stop or length), speed,\n"
    "                         memory\n"
    "  --memory SIZE          memory budget, memory.budget\n"
    CONFIG_FROM_HELP
    "  --set key=value        sets a configuration key, such as device=cuda, memory.precision=f32,\n"
    "                         memory.quantize=nf4, data.tokenizer, data.template, or\n"
    "                         data.chat_template_kwargs={enable_thinking: false}",
    .shared = OPT_MODEL | OPT_MEMORY | OPT_JSON | OPT_SET | OPT_FROM, COMMAND_OPTIONS(OPTIONS), COMMAND_STATE(START),
    .run = generate};
